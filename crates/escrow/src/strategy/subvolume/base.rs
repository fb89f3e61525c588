//! What a sandbox knows of its original: the snapshot of it that was taken when the sandbox was made.

use super::compare::compare;
use crate::fs::{Dir, Meta, MovedEntries, state_dir};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::tree;
use crate::strategy::tree_commit::{self, BaseText, OriginalBase, Released};

/// The original as it was, as the measure of what it is: inode and ctime tell what was changed since.
pub(super) struct FrozenBase<'a> {
    pub(super) base: &'a Dir,
    pub(super) original: &'a Dir,
    /// What was released of the sandbox.
    pub(super) released: &'a Released,
    pub(super) moved: &'a MovedEntries,
}

impl FrozenBase<'_> {
    /// Everything in the original that is neither what it was nor what was released, by any process.
    pub(super) fn everything_moved(&self, carved: &[ResourcePath]) -> Result<Vec<Conflict>> {
        let mut conflicts = Vec::new();
        for change in compare(self.base, self.original)?.changes {
            let path = change.path.clone();
            let ours = path.parts().any(state_dir::is_area_beside);
            if ours || carved.iter().any(|one| path.lies_in(one)) {
                continue;
            }
            let now = tree::entry_at(self.original, &path)?;
            let name = path.split().map(|(_, name)| name);
            let current = match &now {
                Some((dir, now)) => self.is_current(&path, name.map(|name| (dir, name)), now)?,
                None => self.released.has(&path),
            };
            let what = match (&change.old, &change.new) {
                (None, _) => "added there since",
                (_, None) => "deleted there since",
                _ => "changed there since",
            };
            if !current {
                conflicts.push(Conflict::with(path, what, change.new.clone()));
            }
        }
        Ok(conflicts)
    }

    fn is_same(
        &self,
        path: &ResourcePath,
        at: Option<(&Dir, &[u8])>,
        was: &Meta,
        now: &Meta,
    ) -> Result<bool> {
        if (was.kind, was.ino) != (now.kind, now.ino) {
            return Ok(false);
        }
        if self.moved.leads(now.ino, now.ctime, was.ctime) {
            return Ok(true);
        }
        if !now.is_dir() || (was.mode, was.uid, was.gid) != (now.mode, now.uid, now.gid) {
            return Ok(false);
        }
        // The ctime of a directory moves with every name in it; its own looks are what counts.
        let theirs = match at {
            Some((dir, name)) => tree::xattrs_if_open(dir, name)?,
            None => tree::xattrs_if_open(self.original, b".")?,
        };
        let own = tree::xattrs_of(&self.base.dir(path)?)?;
        Ok(theirs.is_none_or(|theirs| theirs == own))
    }
}

impl OriginalBase for FrozenBase<'_> {
    fn is_current(
        &self,
        path: &ResourcePath,
        at: Option<(&Dir, &[u8])>,
        now: &Meta,
    ) -> Result<bool> {
        let place = at.unwrap_or((self.original, b"."));
        let released = self.released.is_current(path, place, now, self.moved)?;
        match (released, tree_commit::stat(self.base, path)?) {
            (Some(current), _) => Ok(current),
            (None, Some(was)) => self.is_same(path, at, &was, now),
            (None, None) => Ok(false),
        }
    }

    fn is_still(&self, path: &ResourcePath, now: &Meta) -> bool {
        let was = tree_commit::stat(self.base, path).ok().flatten();
        was.is_some_and(|was| was.mtime == now.mtime) || self.released.is_still(path, now)
    }

    fn was_there(&self, path: &ResourcePath) -> Result<bool> {
        // What was in the original then is in the snapshot, and is not called added.
        Ok(self.released.was_there(path) == Some(true))
    }

    fn base_text(&self, path: &ResourcePath) -> BaseText<'_> {
        match self.released.has(path) {
            true => BaseText::Unknown,
            false => BaseText::In(self.base),
        }
    }
}
