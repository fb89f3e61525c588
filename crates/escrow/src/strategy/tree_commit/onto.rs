//! A sandbox of one directory, released into another: it begins as a clean tree, and its changes go where the user works.
//!
//! What the clean tree holds at a path is the base of a change there; times say nothing of it.

use std::path::Path;

use super::super::error::Result;
use super::super::tree::{self, Original};
use super::{BaseText, EntryAt, OriginalBase, Releases};
use crate::fs::{Dir, Meta};
use crate::model::{EntryKind, ResourcePath, SandboxRef};

/// From now on the changes of a new sandbox, of layers or a copy, are shown and released at this directory.
pub(in crate::strategy) fn release_into(sandbox: &mut SandboxRef, at: &Path) -> Result<()> {
    sandbox.metadata["onto"] = tree::stored(&Original::take(at)?.0);
    Ok(())
}

/// A clean tree as the measure of the directory that it is released into.
pub(in crate::strategy) struct TreeBase<'a> {
    pub(in crate::strategy) tree: &'a Dir,
    pub(in crate::strategy) releases: Releases<'a>,
}

impl TreeBase<'_> {
    /// Whether both have the same at a path, as git sees it: of a mode, whether its owner may execute the file.
    fn is_same(&self, path: &ResourcePath, at: EntryAt<'_>, now: &Meta) -> Result<bool> {
        let (dir, name) = match self.tree.parent(path) {
            Err(error) if error.is_absent() || error.leaves() => return Ok(false),
            found => found?,
        };
        let Some(base) = dir.stat(name)?.filter(|base| base.kind == now.kind) else {
            return Ok(false);
        };
        match now.kind {
            EntryKind::Directory => Ok(true),
            EntryKind::Symlink => Ok(dir.read_link(name)? == at.0.read_link(at.1)?),
            EntryKind::File if base.size != now.size || (base.mode ^ now.mode) & 0o100 != 0 => {
                Ok(false)
            }
            EntryKind::File => tree::same_content((&dir, name), at),
            _ => Ok(false),
        }
    }
}

impl OriginalBase for TreeBase<'_> {
    fn releases(&self) -> Option<Releases<'_>> {
        Some(self.releases)
    }

    fn is_as_made(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool> {
        at.map_or(Ok(true), |at| self.is_same(path, at, now))
    }

    fn is_still_as_made(&self, _path: &ResourcePath, _now: &Meta) -> bool {
        false
    }

    fn base_text(&self, _path: &ResourcePath) -> BaseText<'_> {
        BaseText::In(self.tree)
    }
}

/// The directory that changes are released into, if it is not the one that the sandbox was made of.
pub(in crate::strategy) fn open(onto: Option<&Original>) -> Result<Option<Dir>> {
    onto.map(Original::open).transpose()
}
