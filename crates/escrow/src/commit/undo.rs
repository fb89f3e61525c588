//! Undoes a finished commit: all of it, or, where the original changed since, nothing.

use super::Execution;
use super::step::Direction;
use crate::error::{Error, Result};
use crate::failpoints;
use crate::model::text::Location;
use crate::model::{Conflict, JournaledWork, Phase, ResourcePath};
use crate::store::JournalEntry;
use crate::strategy::PathSample;

/// A commit that was taken back.
#[derive(Debug)]
pub struct UndoReport {
    /// The resources that are as they were before it.
    pub resources: Vec<String>,
    /// What another process wrote meanwhile: resource, path, and where it is kept now.
    pub kept: Vec<(String, ResourcePath, Location)>,
    /// What was kept for undo and could not be removed, and why.
    pub left: Vec<String>,
    /// What was taken back in each resource, as far as it is known.
    pub paths: Vec<(String, PathSample)>,
    /// It was the commit of a part: what it had released is its plan's again.
    pub part: bool,
    /// How many earlier commits of the plan still stand.
    pub standing: usize,
}

impl Execution<'_> {
    /// Takes a commit back. An original that moved on is a conflict, and then nothing is done.
    pub(crate) fn undo(mut self) -> Result<UndoReport> {
        let conflicts = self.undo_conflicts()?;
        if !conflicts.is_empty() {
            return Err(Error::Conflicts {
                undo: true,
                plan: self.plan.name.clone(),
                conflicts,
            });
        }
        if failpoints::bug("undo-not-recorded") {
            self.take_back();
        }
        // One that could not be recorded may be on disk all the same.
        let reverted = self.set_phase(Phase::Undoing).and_then(|()| self.go_back());
        let reverted = reverted.map_err(|error| self.undecided(Error::Undoing, &error))?;
        if !reverted.not_undone.is_empty() {
            return Err(reverted.into_error(&self.plan, self.journal.work, Error::Undoing));
        }
        let mut resources = reverted.undone;
        resources.reverse();
        Ok(UndoReport {
            resources,
            kept: reverted.kept,
            left: reverted.left,
            paths: reverted.paths,
            part: self.journal.part,
            standing: self.standing(),
        })
    }

    /// Where originals moved on since the commit.
    fn undo_conflicts(&self) -> Result<Vec<(String, Conflict)>> {
        let mut conflicts = Vec::new();
        for (position, member) in self.members.iter().enumerate() {
            let Some(intent) = self.prepared(position)? else {
                continue;
            };
            if member.direction(JournaledWork::Commit) == Direction::Irreversible {
                continue;
            }
            let found = member.call(|strategy| strategy.check_undo(&intent))?;
            conflicts.extend(found.into_iter().map(|one| (member.name(), one)));
        }
        Ok(conflicts)
    }

    /// How many commits of the plan can still be undone. The undo is over; not to know is no failure of it.
    fn standing(&self) -> usize {
        let journals = self.engine.store.journals_of(self.plan.id);
        let stands = |one: &&JournalEntry| one.phase == Phase::Committed;
        journals.unwrap_or_default().iter().filter(stands).count()
    }
}
