//! Takes what an undone commit had released into a plain tree of its own: a copy, or a snapshot.

use super::VersionSink;
use crate::fs::{Dir, remove};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::Result;

/// A tree that shares nothing with the original.
pub(in crate::strategy) struct PlainTree<'a>(pub(in crate::strategy) &'a Dir);

impl VersionSink for PlainTree<'_> {
    fn dir(&self, path: &ResourcePath) -> Result<Dir> {
        crate::strategy::tree::make_directories(self.0, path)
    }

    fn clear(&self, (dir, name): (&Dir, &[u8]), _: &ResourcePath, _: bool) -> Result<()> {
        Ok(remove::remove(dir, name)?)
    }

    fn mark(&self, _: (&Dir, &[u8]), _: Option<EntryKind>) -> Result<()> {
        Ok(())
    }

    fn own(&self, _: &ResourcePath) -> Result<()> {
        Ok(())
    }
}
