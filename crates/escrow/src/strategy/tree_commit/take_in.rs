//! Takes the new versions of an undone commit into a sandbox again.
//!
//! The undo moved them out of the original into the commit's area, where they stay until the plan is open again. Each file
//! gets a further name in the sandbox where that can be, else it is copied; the area is removed afterwards. A path that the
//! sandbox changed itself keeps the sandbox's version, so the work can be repeated after a crash.

use std::collections::HashSet;

use super::intent::RenameStep;
use super::undo::read_found;
use super::undo_choices::{MERGED, Recorded};
use super::{DirMetadata, DirUpdate, KeptLink, TreeIntent};
use crate::event::Unobserved;
use crate::fs::place::{CopyOptions, DirLook, Placer};
use crate::fs::{Cause, Dir, EntryHandle, Fingerprint, Meta, xattr};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::Intent;
use crate::strategy::error::{Result, StrategyError};

/// Where a sandbox takes versions in.
pub(in crate::strategy) trait VersionSink {
    /// The directory at a path, to put entries into.
    fn dir(&self, path: &ResourcePath) -> Result<Dir>;

    /// Makes room for a version at a path, or hides the original's where none comes.
    fn clear(&self, at: (&Dir, &[u8]), path: &ResourcePath, comes: bool) -> Result<()>;

    /// Notes on a version that was taken in what kind of entry of the original it replaces.
    fn mark(&self, at: (&Dir, &[u8]), replaces: Option<EntryKind>) -> Result<()>;

    /// Makes a file of the original the sandbox's own, so that it can get another name.
    fn own(&self, path: &ResourcePath) -> Result<()>;
}

/// Takes in what an intent released and its undo took back, but at these paths.
pub(in crate::strategy) fn take_in(
    intent: &Intent,
    changed: &HashSet<ResourcePath>,
    sink: &dyn VersionSink,
) -> Result<()> {
    if intent.0.get("file").is_none() {
        return Ok(());
    }
    let tree = TreeIntent::read(intent)?;
    if tree.records.is_empty() {
        return Ok(());
    }
    let stage = tree.stage()?;
    let area = Dir::open(tree.area.as_path())?;
    let Recorded {
        leave: left, take, ..
    } = Recorded::read(&area)?;
    let Some(found) = read_found(&area)? else {
        return Ok(());
    };
    let is_free = |path: &ResourcePath| !changed.contains(path) && !left.contains(path);
    for step in tree
        .records
        .steps()
        .filter(|step| found.made.contains(&step.slot))
    {
        let is_dir = |one: &Fingerprint| one.kind == EntryKind::Directory;
        if step.top.old.is_none() && step.top.new.as_ref().is_some_and(is_dir) {
            take_directory(&stage, &step, sink)?;
        } else if is_free(&step.top.path) {
            take_step(&stage, (&step, take.contains(&step.top.path)), sink)?;
        }
    }
    for link in tree.records.links().filter(|link| is_free(&link.path)) {
        take_link(&link, sink)?;
    }
    for update in tree.records.directories() {
        if !update.is_file() && update.seen.is_some() && is_free(&update.path) {
            dress(&update, sink)?;
        }
    }
    Ok(())
}

/// Takes in what a step brought; `newer`: or what others put in the place of that.
fn take_step(
    stage: &Dir,
    (step, newer): (&RenameStep, bool),
    sink: &dyn VersionSink,
) -> Result<()> {
    let path = &step.top.path;
    let Some((parent, name)) = path.split() else {
        return Ok(());
    };
    let merged = [&step.slot()[..], MERGED].concat();
    let from = match stage.stat(&merged)? {
        Some(_) => merged,
        None => step.slot(),
    };
    let staged = stage
        .stat(&from)?
        .filter(|_| newer || step.top.new.is_some());
    if staged.is_none() && step.top.new.is_some() {
        // It was deleted from the original before the undo.
        return Ok(());
    }
    let dir = match sink.dir(&parent) {
        // What the sandbox made of its directory counts.
        Err(StrategyError::InTheWay { .. }) => return Ok(()),
        dir => dir?,
    };
    sink.clear((&dir, name), path, staged.is_some())?;
    let Some(meta) = staged else {
        return Ok(());
    };
    let placer = Placer::new(&dir, &Unobserved);
    place(&placer, (stage, &from), (&dir, name), &meta)?;
    sink.mark((&dir, name), step.top.old.map(|old| old.kind))
}

/// Takes a new directory in; what the sandbox has in it stays.
fn take_directory(stage: &Dir, step: &RenameStep, sink: &dyn VersionSink) -> Result<()> {
    let Some(meta) = stage.stat(&step.slot())? else {
        return Ok(());
    };
    let Some((parent, name)) = step.top.path.split() else {
        return Ok(());
    };
    let dir = sink.dir(&parent)?;
    let placer = Placer::new(&dir, &Unobserved);
    place(&placer, (stage, &step.slot()), (&dir, name), &meta)
}

/// Puts a version, with everything in it, into a directory; what is there already stays.
fn place(
    placer: &Placer<'_>,
    (from, from_name): (&Dir, &[u8]),
    (to, name): (&Dir, &[u8]),
    meta: &Meta,
) -> Result<()> {
    if !place_one(placer, (from, from_name), (to, name), meta)? {
        return Ok(());
    }
    let (from, to) = (from.subdir(from_name)?, to.subdir(name)?);
    // A list instead of recursion: the tree may be deeper than the stack.
    let (mut open, mut all) = (vec![ResourcePath::root()], Vec::new());
    while let Some(path) = open.pop() {
        let (inner, made) = (from.dir(&path)?, to.dir(&path)?);
        for entry in inner.entries()? {
            let at = (&made, &*entry.name);
            if place_one(placer, (&inner, &entry.name), at, &entry.meta)? {
                open.push(path.join(&entry.name));
            }
        }
        all.push(path);
    }
    for path in all.iter().rev() {
        let (inner, made) = (from.dir(path)?, to.dir(path)?);
        let look = DirLook::of(&inner)?;
        crate::fs::place::refuse_lost((&inner, b""), &look.apply(&made)?)?;
    }
    Ok(())
}

/// The same for one entry, of a directory an empty one. Whether it is one to be filled.
fn place_one(
    placer: &Placer<'_>,
    (from, from_name): (&Dir, &[u8]),
    (to, name): (&Dir, &[u8]),
    meta: &Meta,
) -> Result<bool> {
    let there = to.stat(name)?;
    if there.is_some_and(|there| !there.is_dir() || !meta.is_dir()) {
        return Ok(false);
    }
    if !meta.is_dir() {
        if to.link_to(name, from, from_name).is_err() {
            let (from, to) = ((from, from_name), (to, name));
            placer.copy(from, to, meta.kind, CopyOptions::QUIET)?;
        }
        return Ok(false);
    }
    if there.is_none() {
        to.make_dir(name, 0o700)?;
    }
    Ok(true)
}

/// Another name for a file that stayed as it was.
fn take_link(link: &KeptLink, sink: &dyn VersionSink) -> Result<()> {
    let (Some((parent, name)), Some((other, first))) = (link.path.split(), link.to.split()) else {
        return Ok(());
    };
    sink.own(&link.to)?;
    let (dir, of) = (sink.dir(&parent)?, sink.dir(&other)?);
    if of
        .stat(first)?
        .is_none_or(|meta| meta.kind != EntryKind::File)
    {
        return Ok(());
    }
    sink.clear((&dir, name), &link.path, true)?;
    Ok(dir.link_to(name, &of, first)?)
}

/// Gives a directory of the sandbox the looks that the commit had released.
fn dress(update: &DirUpdate, sink: &dyn VersionSink) -> Result<()> {
    let (before, after): (&DirMetadata, &DirMetadata) = (&update.before, &update.after);
    let same = (before.mode, before.owner) == (after.mode, after.owner);
    if same && before.xattrs == after.xattrs {
        return Ok(());
    }
    let dir = sink.dir(&update.path)?;
    let handle = EntryHandle::of(&dir);
    let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
    let (old, new) = (before.xattrs.as_deref(), after.xattrs.as_deref());
    if let (Some(old), Some(new)) = (old, new) {
        for (name, _) in old
            .iter()
            .filter(|(name, _)| !new.iter().any(|(one, _)| one == name))
        {
            xattr::remove(&handle, name).map_err(fail)?;
        }
        for (name, value) in new.iter().filter(|one| !old.contains(one)) {
            xattr::set(&handle, name, value).map_err(fail)?;
        }
    }
    let looks = Meta {
        mode: after.mode,
        uid: after.owner.0,
        gid: after.owner.1,
        ..dir.meta()?
    };
    Ok(handle.reapply_metadata(&looks).map_err(fail)?)
}
