//! Areas that other sandboxes live on: a fork shares the layers of the plan it came from, which stay for
//! as long as it needs them, whatever becomes of that plan.

use super::{Engine, remove_area};
use crate::error::Result;
use crate::model::text::Location;
use crate::model::{SandboxId, SandboxState};
use crate::store::Sandbox;

/// The areas of others that a sandbox cannot do without. One that cannot say needs none any more.
pub fn needs(engine: &Engine<'_>, sandbox: &Sandbox) -> Vec<Location> {
    let strategy = engine.registry.get(&sandbox.reference.strategy);
    match strategy.map(|strategy| strategy.needs(&sandbox.reference)) {
        Ok(Ok(needs)) => needs,
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// Whether a sandbox other than `own` lives on an area.
pub fn is_needed(engine: &Engine<'_>, area: &Location, own: SandboxId) -> Result<bool> {
    let others = engine.store.sandboxes(None)?;
    let mut living = others.iter().filter(|one| {
        let made = !one.reference.metadata.is_null();
        one.id != own && made && one.state != SandboxState::CleanedUp
    });
    Ok(living.any(|one| needs(engine, one).contains(area)))
}

/// Removes areas of sandboxes that are gone and that nobody lives on any more.
pub fn take_in(engine: &Engine<'_>, areas: &[Location]) -> Result<()> {
    let all = engine.store.sandboxes(None)?;
    for area in areas {
        let owner = all.iter().find(|one| one.area == *area);
        let owner = owner.filter(|one| one.state == SandboxState::CleanedUp);
        if let Some(owner) = owner
            && !is_needed(engine, area, owner.id)?
        {
            remove_area(area)?;
        }
    }
    Ok(())
}
