//! Intents of the directory strategies: taken back, checked and finished alike, whichever of them prepared it.

use serde::de::DeserializeOwned;

use super::error::Result;
use super::moves::MoveLog;
use super::{FinishedCommit, Intent, Outcome, RollbackReport, tree, tree_commit};
use crate::event::Observer;
use crate::model::Conflict;

/// A return to a snapshot that is one switch, instead of a commit of the differences. Its intent has the key `switch`.
pub(super) trait RestoreSwitch: DeserializeOwned {
    /// Goes there, or back.
    fn go(self, back: bool) -> Result<()>;
}

/// The switch that an intent is, if it is one.
fn switch<S: RestoreSwitch>(intent: &Intent) -> Result<Option<S>> {
    match intent.0.get("switch") {
        Some(_) => tree::parse(&intent.0, "the restore intent").map(Some),
        None => Ok(None),
    }
}

/// Carries an intent out that is a commit or a switch.
pub(super) fn commit_or_switch<S: RestoreSwitch>(
    intent: &Intent,
    observer: &dyn Observer,
) -> Result<()> {
    match switch::<S>(intent)? {
        Some(switch) => switch.go(false),
        None => tree_commit::apply(intent, observer),
    }
}

/// Takes such an intent back.
pub(super) fn undo_or_switch<S: RestoreSwitch>(
    intent: &Intent,
    moves: &MoveLog,
) -> Result<RollbackReport> {
    match switch::<S>(intent)? {
        Some(switch) => switch.go(true).map(|()| RollbackReport::default()),
        None => undo(intent, moves),
    }
}

/// The outcome of such an intent: a switch can be carried out again.
pub(super) fn outcome_or_switch<S: RestoreSwitch>(intent: &Intent) -> Result<Outcome> {
    match switch::<S>(intent)? {
        Some(_) => Ok(Outcome::NotDone),
        None => outcome(intent),
    }
}

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
