//! One step: what is done to one member. The only place that knows which calls of a strategy carry out, and take
//! back, a commit, a restore and a rollback.

use super::{CommitEngine, Member};
use crate::error::Result;
use crate::failpoints;
use crate::model::{JournaledWork, SandboxState};
use crate::strategy::{Intent, Outcome, RollbackReport, Session};

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
    pub(super) fn direction(&self, work: JournaledWork) -> Direction {
        let capabilities = self.capabilities();
        match (work, capabilities.undoes) {
            (JournaledWork::Rollback, _) => Direction::ForwardOnly,
            (JournaledWork::Commit, _) if capabilities.only_forward() => Direction::ForwardOnly,
            (JournaledWork::Commit, false) => Direction::Irreversible,
            _ => Direction::Reversible,
        }
    }
}

/// Carries a step out; returns what was done, in a few words. Can be repeated where the step is not irreversible.
pub(super) fn apply(
    engine: &CommitEngine<'_>,
    work: JournaledWork,
    member: &Member,
    intent: &Intent,
) -> Result<String> {
    let observer = engine.observer;
    let message = match work {
        JournaledWork::Rollback => {
            let session = member.open(engine.store, Session::Exclusive)?;
            member.session(&*session, |session| session.rollback(observer))?
        }
        _ => {
            member.call(|strategy| strategy.commit(intent, observer))?;
            String::new()
        }
    };
    if work == JournaledWork::Rollback && failpoints::bug("rollback-one-by-one") {
        let next = (member.sandbox.id, SandboxState::RolledBack);
        engine.store.set_sandbox_states(&[next])?;
    }
    Ok(message)
}

/// Takes a step back, however much of it was done. Can be repeated.
pub(super) fn revert(
    engine: &CommitEngine<'_>,
    member: &Member,
    intent: &Intent,
) -> Result<RollbackReport> {
    member.call(|strategy| strategy.undo(intent, engine.observer))
}

/// Whether a step that may have been begun was carried out. Discarding can always be repeated.
pub(super) fn outcome(work: JournaledWork, member: &Member, intent: &Intent) -> Result<Outcome> {
    match work {
        JournaledWork::Commit if failpoints::bug("outcome-guessed") => Ok(Outcome::NotDone),
        JournaledWork::Commit => member.call(|strategy| strategy.outcome(intent)),
        _ => Ok(Outcome::NotDone),
    }
}
