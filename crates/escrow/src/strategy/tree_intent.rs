//! Intents of the directory strategies: taken back, checked and finished alike, whichever of them prepared it.

use super::error::Result;
use super::moves::MoveLog;
use super::{FinishedCommit, Intent, Outcome, RollbackReport, tree_commit};
use crate::model::Conflict;

/// Takes a commit back.
pub(super) fn undo(intent: &Intent, moves: &MoveLog) -> Result<RollbackReport> {
    let (done, moved) = tree_commit::undo(intent)?;
    moves.add(tree_commit::device(intent)?, &moved);
    Ok(done)
}

/// Checks that everything is there as it was written. It can be carried out again whatever was done of it.
pub(super) fn outcome(intent: &Intent) -> Result<Outcome> {
    tree_commit::verify(intent)?;
    Ok(Outcome::NotDone)
}

/// Where the original moved on since the commit.
pub(super) fn check_undo(intent: &Intent, moves: &MoveLog) -> Result<Vec<Conflict>> {
    let moved = moves.read(tree_commit::device(intent)?)?;
    tree_commit::check(intent, &moved)
}

/// Ends a commit.
pub(super) fn finish(intent: Intent, moves: &MoveLog) -> Result<FinishedCommit> {
    let (finished, moved) = tree_commit::finish(intent)?;
    moves.add(tree_commit::device(&finished.intent)?, &moved);
    Ok(finished)
}
