//! Intents of the directory strategies: taken back, checked and finished alike, whichever of them prepared it.

use super::error::Result;
use super::moves::MoveLog;
use super::partial_commits;
use super::{FinishedCommit, Intent, Outcome, RollbackReport, tree_commit};
use crate::failpoints;
use crate::fs::Dir;
use crate::model::Conflict;
use crate::model::text::Location;

/// Takes a commit back; a sandbox of which it released a part has those changes again.
pub(super) fn undo(intent: &Intent, moves: &MoveLog) -> Result<RollbackReport> {
    let (done, moved) = tree_commit::undo(intent)?;
    moves.add(tree_commit::device(intent)?, &moved)?;
    let part_of = tree_commit::part_of(intent)?;
    if let Some(area) = part_of.filter(|_| !failpoints::bug("part-returned-late")) {
        match Dir::open(area.as_path()) {
            // The sandbox is gone.
            Err(error) if error.is_absent() => {}
            area => {
                let area = area?;
                partial_commits::forget(&area, &tree_commit::area_of(intent)?)?;
            }
        }
    }
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

/// Ends a commit; a sandbox of which it released a part counts that as the original's. `identity` tells the sandbox in
/// an area from one that takes its place later.
pub(super) fn finish(
    intent: Intent,
    moves: &MoveLog,
    identity: impl FnOnce(&Dir) -> Result<String>,
) -> Result<FinishedCommit> {
    let (finished, moved) = tree_commit::finish(intent)?;
    moves.add(tree_commit::device(&finished.intent)?, &moved)?;
    let part_of: Option<Location> = tree_commit::part_of(&finished.intent)?;
    if let Some(area) = part_of.filter(|_| !failpoints::bug("part-recorded-late")) {
        let area = Dir::open(area.as_path())?;
        let release = tree_commit::released(&finished.intent)?;
        partial_commits::add(&area, &identity(&area)?, release)?;
    }
    Ok(finished)
}
