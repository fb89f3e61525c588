//! Areas shared by several sandboxes: a fork uses the layers of the plan it came from, which stay as long as it
//! needs them.

use std::collections::HashSet;

use super::CommitEngine;
use crate::error::Result;
use crate::model::text::Location;
use crate::model::{PlanId, SandboxId, SandboxState};
use crate::store::SandboxRecord;

/// The areas that sandboxes live on which are not theirs.
pub(crate) fn all(sandboxes: &[SandboxRecord], but: Option<SandboxId>) -> HashSet<Location> {
    let living = sandboxes
        .iter()
        .filter(|one| Some(one.id) != but && one.state != SandboxState::CleanedUp);
    living.flat_map(|one| one.reference.depends_on()).collect()
}

/// Whether a sandbox other than `own` lives on an area.
pub(crate) fn is_needed(
    engine: &CommitEngine<'_>,
    area: &Location,
    own: SandboxId,
) -> Result<bool> {
    let shared = all(&engine.store.live_sandboxes()?, Some(own));
    Ok(shared.contains(area))
}

/// The areas that sandboxes of other plans live on.
pub(crate) fn needed_by_others(
    engine: &CommitEngine<'_>,
    plan: PlanId,
) -> Result<HashSet<Location>> {
    let mut others = engine.store.live_sandboxes()?;
    others.retain(|one| one.reference.plan_id != plan);
    Ok(all(&others, None))
}

/// Removes areas of sandboxes that are gone and that no sandbox uses any more.
pub(crate) fn reclaim(engine: &CommitEngine<'_>, areas: &[Location]) -> Result<()> {
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
            engine.areas.remove(area.as_path())?;
        }
    }
    Ok(())
}
