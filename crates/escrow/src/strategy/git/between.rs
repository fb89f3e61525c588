//! The history of a sandbox: between two states, and that of an undone commit taken in again.

use super::carried::Beside;
use super::history::{self, Compared, History, RefState};
use super::intent::GitIntent;
use super::session::{GitSession, GitSnapshot};
use crate::fs::Dir;
use crate::model::{Change, DiffView};
use crate::strategy::error::Result;

impl GitSession {
    /// Moves the private branches to where the undone commit had brought the user's, and stages what it had staged. The objects
    /// are in the user's repository still.
    pub(super) fn take_in_history(&self, undone: &GitIntent) -> Result<()> {
        for one in &undone.release.moves {
            if let Some(id) = &one.new {
                let path = history::path_of(one.name.as_bytes())?;
                self.private
                    .write(&path, &mut format!("{id}\n").as_bytes())?;
            }
        }
        let seed = Dir::open(self.sandbox.seed.as_path())?;
        let index = self.with_scratch(|scratch| {
            match undone.write_index(&self.program, scratch, &seed, false)? {
                true => Ok(Some(scratch.read(b"index")?)),
                false => Ok(None),
            }
        })?;
        if let Some(index) = index {
            let path = history::path_of(b"index")?;
            self.private.write(&path, &mut &index[..])?;
        }
        Ok(())
    }

    /// The changes of the history between two states.
    pub(super) fn since(
        &self,
        history: History,
        (from, to): (Option<GitSnapshot>, Option<GitSnapshot>),
        files: &DiffView,
        line: Option<&str>,
    ) -> Result<Vec<Change>> {
        let state = |one: Option<GitSnapshot>| one.map(|one| one.history);
        let base = RefState::new(&self.sandbox.head);
        let (before, after) = match (state(from), state(to)) {
            // One that an earlier version of Escrow took says nothing of the history.
            (Some(None), _) | (_, Some(None)) => return Ok(Vec::new()),
            (from, to) => (from.flatten().unwrap_or(base), to.flatten()),
        };
        let before = history.clone().at(before);
        let after = match after {
            Some(state) => history.at(state),
            None => history,
        };
        let compared = Compared {
            head: &before.head,
            refs: &before.refs,
            branch: self.sandbox.head.branch.as_deref(),
            all: self.sandbox.options.all_refs,
        };
        let (mut changes, graph) = after.changes(&self.program, &compared)?;
        if let Some(line) = line {
            after.note_work(&mut changes, &compared, line, None)?;
        }
        let beside = Beside {
            files,
            now: false,
            index: None,
            work: None,
            objects: None,
        };
        self.carry(&after, (&mut changes, graph), &beside)?;
        Ok(changes)
    }
}
