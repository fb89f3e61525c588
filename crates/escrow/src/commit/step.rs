//! One step: what is done to one member. The only place that knows which calls of a strategy carry out, and take
//! back, a commit, a restore and a rollback.

use super::{Engine, Member};
use crate::error::Result;
use crate::model::{SandboxState, Work};
use crate::seeded;
use crate::strategy::{Intent, Outcome, RolledBack};

/// Where a step can go. The order is that of a commit (rule C8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// It can be taken back.
    Reversible,
    /// It can be neither promised nor taken back.
    Irreversible,
    /// It was promised, and can only go forward.
    ForwardOnly,
}

impl Member {
    /// Where its step of this work can go.
    pub(super) fn direction(&self, work: Work) -> Direction {
        let capabilities = self.capabilities();
        match (work, capabilities.undoes, capabilities.prepares) {
            (Work::Rollback, ..) => Direction::ForwardOnly,
            (Work::Commit, false, false) => Direction::Irreversible,
            (Work::Commit, false, true) => Direction::ForwardOnly,
            _ => Direction::Reversible,
        }
    }
}

/// Carries a step out; returns what was done, in a few words. Can be repeated where the step is not irreversible.
pub(super) fn apply(
    engine: &Engine<'_>,
    work: Work,
    member: &Member,
    intent: &Intent,
) -> Result<String> {
    let (reference, observer) = (&member.sandbox.reference, engine.observer);
    let message = member.call(|strategy| {
        match (work, &member.through) {
            (Work::Restore, None) => strategy.restore_checkpoint(reference, intent, observer)?,
            (Work::Restore, Some(root)) => {
                strategy.restore_in_use(reference, intent, root, observer)?;
            }
            (Work::Rollback, _) => {
                return Ok(strategy.rollback(reference, None, observer)?.message);
            }
            _ => strategy.commit(reference, intent, observer)?,
        }
        Ok(String::new())
    })?;
    if work == Work::Rollback && seeded::bug("rollback-one-by-one") {
        let next = (member.sandbox.id, SandboxState::RolledBack);
        engine.store.set_sandbox_states(&[next])?;
    }
    Ok(message)
}

/// Takes a step back, however much of it was done. Can be repeated.
pub(super) fn revert(
    engine: &Engine<'_>,
    work: Work,
    member: &Member,
    intent: &Intent,
) -> Result<RolledBack> {
    let reference = &member.sandbox.reference;
    member.call(|strategy| match (work, &member.through) {
        (Work::Restore, None) => strategy.undo_restore(reference, intent),
        (Work::Restore, Some(root)) => strategy.undo_restore_in_use(reference, intent, root),
        _ => strategy.rollback(reference, Some(intent), engine.observer),
    })
}

/// Whether a step that may have been begun was carried out. Discarding can always be repeated.
pub(super) fn outcome(work: Work, member: &Member, intent: &Intent) -> Result<Outcome> {
    match work {
        Work::Commit if seeded::bug("outcome-guessed") => Ok(Outcome::NotDone),
        Work::Commit => {
            let reference = &member.sandbox.reference;
            member.call(|strategy| strategy.outcome(reference, intent))
        }
        _ => Ok(Outcome::NotDone),
    }
}
