//! Areas that other sandboxes live on: a fork shares the layers of the plan it came from, which stay for
//! as long as it needs them, whatever becomes of that plan.

use std::collections::HashSet;

use super::{Engine, remove_area};
use crate::error::Result;
use crate::model::text::Location;
use crate::model::{PlanId, SandboxId, SandboxState};
use crate::store::Sandbox;

/// The areas that sandboxes live on which are not theirs.
pub fn all(sandboxes: &[Sandbox], but: Option<SandboxId>) -> HashSet<Location> {
    let living = sandboxes
        .iter()
        .filter(|one| Some(one.id) != but && one.state != SandboxState::CleanedUp);
    living.flat_map(|one| one.reference.depends_on()).collect()
}

/// Whether a sandbox other than `own` lives on an area.
pub fn is_needed(engine: &Engine<'_>, area: &Location, own: SandboxId) -> Result<bool> {
    let lent = all(&engine.store.sandboxes(None)?, Some(own));
    Ok(lent.contains(area))
}

/// The areas that sandboxes of other plans live on.
pub fn by_others(engine: &Engine<'_>, plan: PlanId) -> Result<HashSet<Location>> {
    let mut others = engine.store.sandboxes(None)?;
    others.retain(|one| one.reference.plan_id != plan);
    Ok(all(&others, None))
}

/// Removes areas of sandboxes that are gone and that nobody lives on any more.
pub fn take_in(engine: &Engine<'_>, areas: &[Location]) -> Result<()> {
    if areas.is_empty() {
        return Ok(());
    }
    let all = engine.store.sandboxes(None)?;
    for area in areas {
        let owner = all.iter().find(|one| one.area == *area);
        let owner = owner.filter(|one| one.state == SandboxState::CleanedUp);
        if let Some(owner) = owner
            && !is_needed(engine, area, owner.id)?
        {
            remove_area(engine.home, area)?;
        }
    }
    Ok(())
}
