//! Discards the changes of a copied tree, at the cost of the changes.

use std::collections::BTreeSet;

use crate::fs::content::Reflinks;
use crate::fs::copy::{ExpectedWriters, copy_leaf};
use crate::fs::manifest::{ManifestRecord, RecordIndex};
use crate::fs::{Cause, Dir, EntryHandle, Meta, remove, xattr};
use crate::model::{Change, ChangeKind, EntryKind, ResourcePath};
use crate::strategy::copy::diff::{CopiedTree, CopyScan};
use crate::strategy::error::Result;

/// Gives the copy back what it was made with: what differs comes from the original, what was
/// only touched gets its times back. Returns `false`, with nothing done, where that cannot give
/// the tree that was copied: another process changed the original of a changed path since, or hard links
/// are involved.
pub(in crate::strategy) fn restore(
    copied: &CopiedTree<'_>,
    mut found: CopyScan,
    stage: &Dir,
) -> Result<bool> {
    found.changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    if !is_possible(copied, &found)? {
        return Ok(false);
    }
    let changes = &found.changes;
    let parents = changes.iter().filter_map(|change| change.path.split());
    let mut directories: BTreeSet<ResourcePath> = parents.map(|(parent, _)| parent).collect();
    make_readable(copied.tree, &directories)?;
    // What is in the way goes first, children before parents.
    for change in changes.iter().rev() {
        if matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged) {
            let (dir, name) = copied.tree.parent(&change.path)?;
            remove::remove(&dir, name)?;
        }
    }
    // What was there comes back, parents before children; directories are dressed at the end.
    for change in changes {
        let Some(old) = &change.old else { continue };
        if old.kind != EntryKind::Directory {
            restore_entry(copied, &change.path, stage)?;
        } else if change.kind != ChangeKind::ModeChanged {
            let (dir, name) = copied.tree.parent(&change.path)?;
            dir.make_dir(name, 0o700)?;
        }
        directories.insert(change.path.clone());
    }
    let listed = |path: &ResourcePath| {
        changes
            .binary_search_by(|change| change.path.cmp(path))
            .is_ok()
    };
    for (path, index) in found.touched {
        if copied.manifest.record(index).kind == EntryKind::Directory {
            directories.insert(path);
        } else if !listed(&path) {
            let (dir, name) = copied.tree.parent(&path)?;
            apply_metadata(
                copied.manifest.record(index),
                &dir,
                name,
                &dir.handle(name)?,
            )?;
        }
    }
    for path in directories.iter().rev() {
        let index = copied.find(path);
        if let Some(index) = index.filter(|index| copied.manifest.record(*index).is_dir()) {
            apply_dir_metadata(copied, path, index, listed(path))?;
        }
    }
    Ok(true)
}

fn is_possible(copied: &CopiedTree<'_>, found: &CopyScan) -> Result<bool> {
    let linked =
        |(_, index): &(ResourcePath, RecordIndex)| copied.manifest.record(*index).link != 0;
    if found.touched.iter().any(linked) {
        return Ok(false);
    }
    let had = |change: &&Change| change.old.is_some();
    for change in found.changes.iter().filter(had) {
        let Some(index) = copied.find(&change.path) else {
            return Ok(false);
        };
        let record = copied.manifest.record(index);
        let current = match change.path.is_root() {
            true => record.is_current(&copied.original.meta()?),
            false => copied
                .original_of(&change.path)?
                .is_some_and(|(_, meta)| record.is_current(&meta)),
        };
        if !current || record.link != 0 || record.is_left_out() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lets this user work in directories of the copy that are closed to writing.
fn make_readable(tree: &Dir, directories: &BTreeSet<ResourcePath>) -> Result<()> {
    for path in directories {
        let dir = match tree.dir(path) {
            Err(error) if error.is_absent() || error.leaves() => continue,
            answer => answer?,
        };
        let mode = dir.meta()?.mode;
        if mode & 0o700 != 0o700 {
            EntryHandle::of(&dir)
                .set_mode(mode | 0o700)
                .map_err(|errno| dir.error("set the mode of", b"", Cause::Os(errno)))?;
        }
    }
    Ok(())
}

/// Puts the original's version of a path that is no directory in the place of the copy's.
fn restore_entry(copied: &CopiedTree<'_>, path: &ResourcePath, stage: &Dir) -> Result<()> {
    let (dir, name) = copied.tree.parent(path)?;
    let (from, _) = copied.original.parent(path)?;
    let meta = from
        .stat(name)?
        .ok_or_else(|| from.error("find", name, Cause::Os(rustix::io::Errno::NOENT)))?;
    remove::remove(stage, name)?;
    let reflinks = Reflinks::wanted();
    copy_leaf(
        (&from, name),
        (stage, name),
        meta.kind,
        &reflinks,
        ExpectedWriters::Live,
    )?;
    Ok(stage.rename(name, &dir, name)?)
}

/// Gives an entry of the copy the owner, mode and time it was made with.
fn apply_metadata(
    record: &ManifestRecord,
    dir: &Dir,
    name: &[u8],
    handle: &EntryHandle<'_>,
) -> Result<()> {
    let fail = |errno| dir.error("set the metadata of", name, Cause::Os(errno));
    let meta = Meta {
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        mtime: record.mtime,
        ..handle.meta().map_err(fail)?
    };
    handle.apply_metadata(&meta, &Vec::new()).map_err(fail)?;
    Ok(())
}

/// The same for a directory; with its attributes, where they are among the changes.
fn apply_dir_metadata(
    copied: &CopiedTree<'_>,
    path: &ResourcePath,
    index: RecordIndex,
    attributes: bool,
) -> Result<()> {
    let dir = copied.tree.dir(path)?;
    let handle = EntryHandle::of(&dir);
    let fail = |errno| dir.error("set the attributes of", b"", Cause::Os(errno));
    if attributes {
        let original = copied.original.dir(path)?;
        let wanted = xattr::read(&EntryHandle::of(&original))
            .map_err(|errno| original.error("read the attributes of", b"", Cause::Os(errno)))?;
        for (name, _) in xattr::read(&handle).map_err(fail)? {
            if !wanted.iter().any(|(kept, _)| *kept == name) {
                xattr::remove(&handle, &name).map_err(fail)?;
            }
        }
        for (name, value) in &wanted {
            match xattr::set(&handle, name, value) {
                // The copy never had it either.
                Err(errno) if xattr::cannot_be_kept(errno) => {}
                answer => answer.map_err(fail)?,
            }
        }
    }
    apply_metadata(copied.manifest.record(index), &dir, b"", &handle)
}
