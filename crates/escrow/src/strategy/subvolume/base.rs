//! What a sandbox knows of its original: the snapshot of it that was taken when the sandbox was made.

use super::compare::compare;
use crate::fs::{Dir, Meta, state_dir};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::tree;
use crate::strategy::tree_commit::{self, BaseText, EntryAt, OriginalBase, Releases};

/// The original as it was, as the measure of what it is: inode and ctime tell what was changed since.
pub(super) struct FrozenBase<'a> {
    pub(super) base: &'a Dir,
    pub(super) releases: Releases<'a>,
}

impl FrozenBase<'_> {
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
        if self.releases.moved.leads(now.ino, now.ctime, was.ctime) {
            return Ok(true);
        }
        if !now.is_dir() || (was.mode, was.uid, was.gid) != (now.mode, now.uid, now.gid) {
            return Ok(false);
        }
        // The ctime of a directory moves with every name in it; its own looks are what counts.
        let theirs = match at {
            Some((dir, name)) => tree::xattrs_if_open(dir, name)?,
            None => tree::xattrs_if_open(self.releases.original, b".")?,
        };
        let own = tree::xattrs_of(&self.base.dir(path)?)?;
        Ok(theirs.is_none_or(|theirs| theirs == own))
    }
}

impl OriginalBase for FrozenBase<'_> {
    fn releases(&self) -> Option<Releases<'_>> {
        Some(self.releases)
    }

    fn is_as_made(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool> {
        match tree_commit::stat(self.base, path)? {
            Some(was) => self.is_same(path, at, &was, now),
            None => Ok(false),
        }
    }

    fn is_still_as_made(&self, path: &ResourcePath, now: &Meta) -> bool {
        let was = tree_commit::stat(self.base, path).ok().flatten();
        was.is_some_and(|was| was.mtime == now.mtime)
    }

    fn everything_moved(&self, carved: &[ResourcePath]) -> Result<Vec<Conflict>> {
        let mut conflicts = Vec::new();
        for change in compare(self.base, self.releases.original)?.changes {
            let path = change.path.clone();
            let ours = path.parts().any(state_dir::is_area_beside);
            if ours || carved.iter().any(|one| path.lies_in(one)) {
                continue;
            }
            let now = tree::entry_at(self.releases.original, &path)?;
            let name = path.split().map(|(_, name)| name);
            let current = match &now {
                Some((dir, now)) => self.is_current(&path, name.map(|name| (dir, name)), now)?,
                None => self.releases.released.has(&path),
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

    fn base_text(&self, _path: &ResourcePath) -> BaseText<'_> {
        BaseText::In(self.base)
    }
}
