//! Takes what an undone commit had released into the topmost layer again, as the kernel would have put it there.

use super::super::error::Result;
use super::super::tree::STAGE;
use super::super::tree_commit::VersionSink;
use super::layers::{self, LayerEntry, OPAQUE};
use super::{OpenLayers, base};
use crate::event::Unobserved;
use crate::fs::place::{CopyOptions, Placer};
use crate::fs::{Cause, Dir, EntryHandle, remove, xattr};
use crate::model::{EntryKind, ResourcePath};

/// The topmost layer of a sandbox that no process works in.
pub(super) struct TopLayer<'a>(pub(super) &'a OpenLayers);

impl TopLayer<'_> {
    fn stage(&self) -> Result<Dir> {
        Ok(self.0.area.subdir(STAGE)?)
    }

    /// Whether what lies below the topmost layer shows something at a path.
    fn is_below(&self, path: &ResourcePath) -> Result<bool> {
        let found = layers::find(&self.0.upper, &self.0.lower, path)?;
        Ok(!matches!(found, LayerEntry::Nothing))
    }
}

impl VersionSink for TopLayer<'_> {
    fn dir(&self, path: &ResourcePath) -> Result<Dir> {
        layers::make_upper(&self.0.upper, &self.0.lower, &self.stage()?, path)
    }

    fn clear(&self, (dir, name): (&Dir, &[u8]), path: &ResourcePath, comes: bool) -> Result<()> {
        remove::remove(dir, name)?;
        if !comes && self.is_below(path)? {
            dir.make_whiteout(name)?;
        }
        Ok(())
    }

    fn mark(&self, (dir, name): (&Dir, &[u8]), replaces: Option<EntryKind>) -> Result<()> {
        let Some(replaced) = replaces else {
            return Ok(());
        };
        let is_dir = dir.stat(name)?.is_some_and(|meta| meta.is_dir());
        let fail = |errno| dir.error("mark", name, Cause::Os(errno));
        if is_dir {
            let made = dir.subdir(name)?;
            let opaque = xattr::set(&EntryHandle::of(&made), OPAQUE.as_bytes(), b"y");
            return Ok(opaque.map_err(fail)?);
        }
        let is_file = dir.stat(name)?.is_some_and(|meta| meta.is_file());
        if is_file && replaced == EntryKind::File {
            let (attribute, value) = base::derived();
            xattr::set(&dir.handle(name)?, &attribute, &value).map_err(fail)?;
        }
        Ok(())
    }

    fn own(&self, path: &ResourcePath) -> Result<()> {
        let Some((parent, name)) = path.split() else {
            return Ok(());
        };
        let to = self.dir(&parent)?;
        if to.stat(name)?.is_some() {
            return Ok(());
        }
        if let LayerEntry::Lower(from, meta) = layers::find(&self.0.upper, &self.0.lower, path)? {
            let placer = Placer::<()>::new(&to, &Unobserved);
            let look = |_: &mut _, attributes: &mut xattr::Xattrs| {
                *attributes = layers::stored(std::mem::take(attributes));
            };
            let options = CopyOptions {
                look: &look,
                ..CopyOptions::QUIET
            };
            placer.copy((&from, name), (&to, name), meta.kind, options)?;
            self.mark((&to, name), Some(EntryKind::File))?;
        }
        Ok(())
    }
}
