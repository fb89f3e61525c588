//! Detects changes of an overlay's original. Nothing was recorded at creation, so times decide.
//!
//! The layer carries the time it was made. Whatever in the original has a later ctime, which no program can
//! set, was changed since. A version in the layer that was made from one of the original says so, because once
//! that one is gone nothing else would tell it from a new file.

use std::collections::HashSet;

use rustix::io::Errno;

use super::super::error::{Result, StrategyError};
use super::super::tree_commit::{BaseText, EntryAt, OriginalBase, Releases};
use super::super::{tree, unsupported};
use super::layers::{self, LayerDirMetadata, OPAQUE};
use super::stack::{self, LayerStack};
use super::{NAME, OpenLayers};
use crate::fs::copy::{clock, settle};
use crate::fs::dir::DirEntry;
use crate::fs::walk::{Shared, walk};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta, Stamp};
use crate::model::{Change, Conflict, ResourcePath};

const STAMP: &[u8] = b"user.overlay.escrow-stamp";
const DERIVED: &[u8] = b"user.overlay.escrow-derived";
/// On a directory that the original did not have. Once a part was committed it has it, and a kernel that meets both marks
/// the sandbox's as copied up.
const MADE: &[u8] = b"user.overlay.escrow-made";
/// What the kernel leaves on what it copied up, or moved.
pub(super) const ORIGIN: &[u8] = b"user.overlay.origin";

/// Notes on a new layer when it was made. Any later change of the original gets a later ctime.
pub(super) fn stamp(upper: &Dir) -> Result<()> {
    let now = upper.meta()?.ctime.max(clock());
    let text = serde_json::to_vec(&now).expect("numbers are JSON");
    xattr::set(&EntryHandle::of(upper), STAMP, &text)
        .map_err(|errno| upper.error("mark", b"", Cause::Os(errno)))?;
    // Where the clock does not move on, whatever has the same time counts as changed.
    settle(now);
    Ok(())
}

fn read_stamp(layer: &Dir) -> Result<Option<Vec<u8>>> {
    let text = xattr::get(&EntryHandle::of(layer), STAMP)
        .map_err(|errno| layer.error("read the attributes of", b"", Cause::Os(errno)))?;
    Ok(text)
}

/// What tells the layers of a sandbox from those that take their place when it is rolled back: when the
/// first of them was made.
pub(super) fn identity(layer: &Dir) -> Result<String> {
    let text = read_stamp(layer)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Notes on a new layer when the first one below it was made.
pub(super) fn hand_on_stamp(from: &Dir, to: &Dir) -> Result<()> {
    let text = read_stamp(from)?.unwrap_or_default();
    xattr::set(&EntryHandle::of(to), STAMP, &text)
        .map_err(|errno| to.error("mark", b"", Cause::Os(errno)).into())
}

/// The mark of a version that was made from one of the original.
pub(super) fn derived() -> (Vec<u8>, Vec<u8>) {
    (DERIVED.to_vec(), b"y".to_vec())
}

/// Whether a version carries it.
pub(super) fn is_derived(attributes: &Xattrs) -> bool {
    attributes.iter().any(|(name, _)| name == DERIVED)
}

/// Marks the directories that a part adds to the original, before it has them.
pub(super) fn mark_made<'a>(
    upper: &LayerStack,
    added: impl Iterator<Item = &'a Change>,
) -> Result<()> {
    for change in added {
        for dir in upper.all(&change.path)? {
            match xattr::set(&EntryHandle::of(&dir), MADE, b"y") {
                // Of one that may not be written no mark is made; an undo then leaves a conflict that is none.
                Ok(()) | Err(Errno::ACCESS) => {}
                Err(errno) => return Err(dir.error("mark", b"", Cause::Os(errno)).into()),
            }
        }
    }
    Ok(())
}

/// Makes the directories opaque that a part adds to the original while commands see them. For their mount nothing lies below
/// such a directory, so what they delete in it leaves no whiteout: without the mark it would be back with the next mount.
pub(super) fn hide_below<'a>(
    open: &OpenLayers,
    added: impl Iterator<Item = &'a Change>,
) -> Result<()> {
    for change in added {
        // The lowest that shows; what lies below an opaque one does not.
        let mut lowest = None;
        for (number, dir) in open.upper.holders(&change.path)? {
            let opaque = layers::is_opaque(&dir)?;
            lowest = (!opaque).then_some((number, dir));
            if opaque {
                break;
            }
        }
        let Some((number, dir)) = lowest else {
            continue;
        };
        let layer = &open.now.layers[number];
        if layer.area.is_some() || open.now.shared.contains(&layer.number) {
            let why = format!(
                "the directory '{}' lies in a layer that another plan shares; commit when no command runs",
                change.path
            );
            return Err(unsupported(NAME, "be committed with --live", &why));
        }
        xattr::set(&EntryHandle::of(&dir), OPAQUE.as_bytes(), b"y")
            .map_err(|errno| dir.error("mark as opaque", b"", Cause::Os(errno)))?;
    }
    Ok(())
}

/// Whether a directory was hidden so: what the original has there and was not released came from another process.
pub(super) fn hides_released(dir: &Dir) -> Result<bool> {
    let made = xattr::get(&EntryHandle::of(dir), MADE)
        .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
    Ok(made.is_some() && layers::is_opaque(dir)?)
}

/// A layer as the measure of its original.
pub(super) struct LayerBase<'a> {
    area: &'a Dir,
    upper: &'a LayerStack,
    lower: &'a Dir,
    stamp: Stamp,
    version: String,
    /// Size and time of the files that the layer deletes: one that is moved leaves such a trace.
    gone: &'a HashSet<(u64, Stamp)>,
    releases: Releases<'a>,
}

impl<'a> LayerBase<'a> {
    pub(super) fn open(
        (area, upper): (&'a Dir, &'a LayerStack),
        lower: &'a Dir,
        gone: &'a HashSet<(u64, Stamp)>,
        releases: Releases<'a>,
    ) -> Result<Self> {
        let version = identity(upper.top())?;
        let stamp: Option<Stamp> = serde_json::from_str(&version).ok();
        Ok(Self {
            area,
            upper,
            lower,
            stamp: stamp.ok_or_else(|| StrategyError::Damaged {
                what: "its layer does not say when it was made".to_owned(),
            })?,
            version,
            gone,
            releases,
        })
    }

    /// Whether an entry is as it was when the layer was made, or as a partial commit left it.
    fn is_ours(&self, path: &ResourcePath, at: (&Dir, &[u8]), now: &Meta) -> Result<bool> {
        if self.is_older(now) {
            return Ok(true);
        }
        Ok(self.releases.is_current(path, at, now)? == Some(true))
    }

    /// Whether the ctime of a directory, but for what we moved ourselves, is that of a change to what is in it.
    fn came_with_a_name(&self, now: &Meta) -> bool {
        self.releases.moved.settled(now.ino, now.ctime) == now.mtime
    }

    fn is_older(&self, now: &Meta) -> bool {
        let ctime = self.releases.moved.settled(now.ino, now.ctime);
        match ctime.nsec {
            // A file system that keeps whole seconds does not tell two changes of one second apart.
            0 => ctime.sec < self.stamp.sec,
            _ => ctime <= self.stamp,
        }
    }
}

impl OriginalBase for LayerBase<'_> {
    fn releases(&self) -> Option<Releases<'_>> {
        Some(self.releases)
    }

    fn is_as_made(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool> {
        if self.is_older(now) {
            return Ok(true);
        }
        // One that was made since was never seen.
        if !now.is_dir() || now.born > self.stamp {
            return Ok(false);
        }
        // The ctime of a directory moves with every name in it. Where we know how it looked, that
        // decides; else a ctime that came with a name tells nothing against it.
        let Some(made) = stack::remembered(&self.upper.all(path)?)? else {
            return Ok(self.came_with_a_name(now));
        };
        let theirs = match at {
            Some((dir, name)) => LayerDirMetadata::of(&dir.subdir(name)?)?,
            None => LayerDirMetadata::of(self.lower)?,
        };
        let owned = rustix::process::geteuid().is_root();
        Ok((made.mode, made.xattrs) == (theirs.mode, theirs.xattrs)
            && (!owned || made.owner == theirs.owner))
    }

    fn is_still_as_made(&self, _path: &ResourcePath, now: &Meta) -> bool {
        now.mtime <= self.stamp
    }

    fn had(&self, path: &ResourcePath) -> Result<bool> {
        let Some((parent, name)) = path.split() else {
            return Ok(false);
        };
        // The lowest layer that has it knows whether it was made from one of the original.
        let mut dir = None;
        for at in self.upper.all(&parent)?.into_iter().rev() {
            match at.stat(name)? {
                Some(meta) if !layers::is_hidden(&at, name, &meta)? => {
                    dir = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let Some(dir) = dir else {
            return Ok(false);
        };
        let attributes = tree::xattrs_if_open(&dir, name)?.unwrap_or_default();
        if is_derived(&attributes) {
            return Ok(true);
        }
        if attributes.iter().any(|(name, _)| name == MADE) {
            return Ok(false);
        }
        let Some(meta) = dir.stat(name)? else {
            return Ok(false);
        };
        let copied = attributes.iter().any(|(name, _)| name == ORIGIN);
        if meta.is_dir() {
            // A directory of the original is copied up, but never moved.
            return Ok(copied || LayerDirMetadata::remembered(&dir.subdir(name)?)?.is_some());
        }
        // A file that the kernel marked may also have been moved, or linked, from elsewhere.
        let moved = self.gone.contains(&(meta.size, meta.mtime));
        if !copied || meta.nlink > 1 || moved {
            return Ok(false);
        }
        let lower = layers::parent_below(self.lower, &parent)?;
        Ok(lower.is_none_or(|meta| !self.is_still(&parent, &meta)))
    }

    fn base_text(&self, _path: &ResourcePath) -> BaseText<'_> {
        BaseText::Kept(self.area, self.version.clone().into_bytes())
    }

    fn everything_moved(&self, carved: &[ResourcePath]) -> Result<Vec<Conflict>> {
        let found = Shared::new(Vec::new());
        let tell = |path: ResourcePath, theirs: &Meta| {
            let theirs = Some(theirs.facts());
            let conflict = Conflict::with(path, "changed there since", theirs);
            found.lock().push(conflict);
        };
        walk(self.lower, (), |visit| {
            let mut next = Vec::new();
            let own = visit.dir.meta()?;
            let left = self.releases.released.is_still(visit.path, &own);
            let still = left && self.came_with_a_name(&own);
            if !still && !self.is_ours(visit.path, (visit.dir, b"."), &own)? {
                tell(visit.path.clone(), &own);
            }
            for DirEntry { name, meta } in visit.entries {
                let path = visit.path.join(&name);
                if carved.contains(&path) || crate::fs::state_dir::is_area_beside(&name) {
                    continue;
                }
                if !meta.is_dir() && !self.is_ours(&path, (visit.dir, &name), &meta)? {
                    tell(path, &meta);
                } else if meta.is_dir() && !visit.dir.is_mount_point(&meta) {
                    next.push((name, ()));
                }
            }
            Ok::<_, StrategyError>(next)
        })?;
        Ok(found.into_inner())
    }
}
