//! The steps of an undo that are not one rename: new directories in which something stays, and merged texts.

use std::collections::HashSet;

use rustix::io::Errno;

use super::apply::open_parent;
use super::intent::{IntentEntry, RenameStep};
use super::stage::staged_path;
use super::undo::{ADDED, PathShift, UndoJob, foreign};
use super::undo_choices::MERGED;
use crate::fs::place::DirLook;
use crate::fs::{Dir, Fingerprint};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::tree;

impl UndoJob<'_> {
    /// The new directories in which something stays: what others put there, and what the undo leaves.
    pub(super) fn with_others(&self, made: &HashSet<u32>) -> Result<HashSet<u32>> {
        let is_dir =
            |one: &Option<Fingerprint>| one.is_some_and(|one| one.kind == EntryKind::Directory);
        let mut apart = HashSet::new();
        if !self.tree.finished {
            return Ok(apart);
        }
        let new = |step: &RenameStep| step.top.old.is_none() && is_dir(&step.top.new);
        for step in self.tree.records.steps().filter(new) {
            if !made.contains(&step.slot) {
                continue;
            }
            let mut below = self.tree.records.below(&step);
            let mut stays = below.any(|entry| self.choices.leave.contains(&entry.path))
                || self.choices.leave.contains(&step.top.path)
                // A part of it went before.
                || self.stage.stat(&step.slot())?.is_some();
            let of = (&self.tree.records, &step);
            let here: (&Dir, PathShift<'_>) = (&self.original, &ResourcePath::clone);
            foreign(of, here, &self.linked, None, &mut |_, what, now| {
                stays |= now.is_some() && what == ADDED;
            })?;
            if stays {
                apart.insert(step.slot);
            }
        }
        Ok(apart)
    }

    /// Takes back what the commit put into a new directory, entry by entry: what others put there stays, and what is left.
    pub(super) fn take_apart(&mut self, step: &RenameStep) -> Result<()> {
        let top = step.top.path.as_bytes().len();
        let mut entries: Vec<IntentEntry> = self.tree.records.below(step).collect();
        entries.push(step.top.clone());
        for entry in entries {
            if self.choices.leave.contains(&entry.path) || entry.new.is_none() {
                continue;
            }
            let Some((dir, name)) = open_parent(&self.original, &entry.path)? else {
                continue;
            };
            let Some(now) = dir.stat(name)? else {
                continue;
            };
            let to = staged_path(step.slot, &entry.path.as_bytes()[top..]);
            if !now.is_dir() {
                let (parent, last) = to.split().unwrap_or((ResourcePath::root(), b""));
                let parent = tree::make_directories(&self.stage, &parent)?;
                dir.rename_new(name, &parent, last)?;
                continue;
            }
            let staged = tree::make_directories(&self.stage, &to)?;
            let from = dir.subdir(name)?;
            DirLook::of(&from)?.apply(&staged)?;
            match dir.remove_dir(name) {
                Err(error) if error.is(Errno::NOTEMPTY) => {
                    let others = from.entries()?.into_iter();
                    let others = others.map(|other| entry.path.join(&other.name));
                    let is_left = |path: &ResourcePath| !self.choices.leave.contains(path);
                    let own: HashSet<ResourcePath> =
                        self.tree.records.below(step).map(|one| one.path).collect();
                    let foreign = others.filter(|path| is_left(path) && !own.contains(path));
                    self.done.stays.extend(foreign);
                }
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Puts the merged text of a step in place; the version that stood there is in the stage afterwards.
    pub(super) fn put_merged(&mut self, step: &RenameStep) -> Result<()> {
        let name_of = [&step.slot()[..], MERGED].concat();
        let Some((dir, name)) = open_parent(&self.original, &step.top.path)? else {
            return Ok(());
        };
        let (merged, staged) = (
            self.choices.merged.get(&step.slot),
            self.stage.stat(&name_of)?,
        );
        let is_staged = merged
            .zip(staged)
            .is_some_and(|(merged, now)| merged.is(&now));
        match is_staged && dir.stat(name)?.is_some() {
            true => Ok(self.stage.exchange(&name_of, &dir, name)?),
            false => Ok(()),
        }
    }
}
