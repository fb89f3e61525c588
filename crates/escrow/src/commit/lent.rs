//! Areas that other sandboxes live on: a fork shares the layers of the plan it came from, which stay for
//! as long as it needs them, whatever becomes of that plan.

use std::collections::HashSet;

use super::{Engine, remove_area};
use crate::error::Result;
use crate::model::text::Location;
use crate::model::{PlanId, SandboxId, SandboxState};
use crate::store::Sandbox;

/// The areas of others that a sandbox cannot do without. One that was never made whole, or whose
/// strategy is not known, needs none.
pub fn needs(engine: &Engine<'_>, sandbox: &Sandbox) -> Result<Vec<Location>> {
    if sandbox.reference.metadata.is_null() {
        return Ok(Vec::new());
    }
    match engine.registry.get(&sandbox.reference.strategy) {
        Ok(strategy) => Ok(strategy.needs(&sandbox.reference)?),
        Err(_) => Ok(Vec::new()),
    }
}

/// The areas that sandboxes live on which are not theirs; `None` where one of them cannot tell.
pub fn all(
    engine: &Engine<'_>,
    sandboxes: &[Sandbox],
    but: Option<SandboxId>,
) -> Option<HashSet<Location>> {
    let living = sandboxes
        .iter()
        .filter(|one| Some(one.id) != but && one.state != SandboxState::CleanedUp);
    let mut lent = HashSet::new();
    for one in living {
        lent.extend(needs(engine, one).ok()?);
    }
    Some(lent)
}

/// Whether a sandbox other than `own` lives on an area. Where one of them cannot tell, it may.
pub fn is_needed(engine: &Engine<'_>, area: &Location, own: SandboxId) -> Result<bool> {
    let lent = all(engine, &engine.store.sandboxes(None)?, Some(own));
    Ok(lent.is_none_or(|lent| lent.contains(area)))
}

/// The areas that sandboxes of other plans live on; `None` where one of them cannot tell.
pub fn by_others(engine: &Engine<'_>, plan: PlanId) -> Result<Option<HashSet<Location>>> {
    let mut others = engine.store.sandboxes(None)?;
    others.retain(|one| one.reference.plan_id != plan);
    Ok(all(engine, &others, None))
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
