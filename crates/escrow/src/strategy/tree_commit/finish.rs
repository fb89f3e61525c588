//! What is left to do once the sandbox is gone: nothing of it may show in the original, and what undo
//! will compare with is what is there now.

use std::collections::HashSet;

use rustix::io::Errno;

use super::apart::{Copies, separate};
use super::{CAPABILITY, Looked, TreeIntent, stat, stat_if_open};
use crate::fs::{Cause, Dir, Meta, Moved, Seen, xattr};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::{Finished, Intent};

/// Whether files of the sandbox became the original's, under another name.
pub(in crate::strategy) fn shares(intent: &Intent) -> Result<bool> {
    Ok(!TreeIntent::read(intent)?.linked.is_empty())
}

/// Takes marks and late privileges off, and remembers exactly what the commit left. Can be repeated.
pub(in crate::strategy) fn finish(intent: Intent) -> Result<Finished> {
    let mut tree = TreeIntent::read(&intent)?;
    if tree.is_empty() {
        return Ok(Finished {
            intent,
            moved: Vec::new(),
            notes: Vec::new(),
        });
    }
    let original = tree.original.open()?;
    for (path, marks) in &tree.marked {
        unmark(&original, path, marks)?;
    }
    let area = Dir::open(tree.area.as_path())?;
    let mut notes = Vec::new();
    let copies = match tree.linked.is_empty() {
        true => Copies::default(),
        false => separate(&tree, &original, &area, &mut notes)?,
    };
    let linked: HashSet<ResourcePath> = tree.linked.iter().cloned().collect();
    let settle = |path: &ResourcePath, seen: &mut Seen| -> Result<()> {
        // What lies in a directory that is closed was copied there, and nothing happened to it.
        let now = stat_if_open(&original, path)?.there();
        let ours = |now: &Meta| seen.is(now) || copies.stand_for(seen, now);
        let Some(mut now) = now.filter(ours) else {
            // What somebody replaced meanwhile keeps its description, and so shows as replaced.
            return Ok(());
        };
        if seen.kind == EntryKind::File && linked.contains(path) {
            now = part(&original, path, seen, now)?;
        }
        // One that was opened to be moved has its own mode by now.
        if seen.kind == EntryKind::Directory {
            seen.mode = now.mode;
        }
        if seen.ino != now.ino || seen.looks_the_same(&now) {
            *seen = Seen::from(&now);
        }
        Ok(())
    };
    for step in &mut tree.steps {
        if let Some(new) = &mut step.new {
            settle(&step.path, new)?;
        }
        for (path, seen) in &mut step.below {
            settle(path, seen)?;
        }
    }
    for dressing in &mut tree.directories {
        if let Looked::Is(now) = stat_if_open(&original, &dressing.path)? {
            dressing.after.mtime = Some(now.mtime);
        }
    }
    let moved = still_named(&tree)?;
    tree.finished = true;
    Ok(Finished {
        intent: tree.store(),
        moved,
        notes,
    })
}

/// Old versions that have another name in the original: it is the same file as before, although its
/// ctime says that something happened to it.
fn still_named(tree: &TreeIntent) -> Result<Vec<Moved>> {
    let stage = tree.stage()?;
    let mut moved = Vec::new();
    for step in &tree.steps {
        let Some(old) = &step.old else { continue };
        let kept = stage.stat(&step.slot())?;
        if let Some(now) = kept.filter(|now| old.is(now) && !now.is_dir() && now.nlink > 1) {
            moved.push(Moved {
                ino: old.ino,
                before: old.ctime,
                after: now.ctime,
            });
        }
    }
    Ok(moved)
}

/// Removes the marks of a layer.
fn unmark(original: &Dir, path: &ResourcePath, marks: &[Vec<u8>]) -> Result<()> {
    let (dir, name) = match original.parent(path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(()),
        found => found?,
    };
    let handle = match dir.handle(name) {
        Err(error) if error.is_absent() => return Ok(()),
        handle => handle?,
    };
    let fail = |errno| dir.error("unmark", name, Cause::Os(errno));
    let take_off = || -> rustix::io::Result<()> {
        for mark in marks {
            match xattr::remove(&handle, mark) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    };
    match take_off() {
        // Its owner closed it to himself; it is opened for the moment it takes.
        Err(Errno::ACCESS) => {
            let mode = handle.meta().map_err(fail)?.mode;
            handle.set_mode(mode | 0o200).map_err(fail)?;
            let taken = take_off();
            handle.set_mode(mode).map_err(fail)?;
            Ok(taken.map_err(fail)?)
        }
        answer => Ok(answer.map_err(fail)?),
    }
}

/// A file that was the sandbox's own until now: privileges that it gained since it was looked at go.
fn part(original: &Dir, path: &ResourcePath, seen: &Seen, now: Meta) -> Result<Meta> {
    let (dir, name) = original.parent(path)?;
    let fail = |errno| dir.error("set the mode of", name, Cause::Os(errno));
    let handle = dir.handle(name)?;
    if now.mode & 0o6000 & !seen.mode != 0 {
        handle.set_mode(seen.mode).map_err(fail)?;
    }
    if now.mode & 0o111 != 0 && xattr::get(&handle, CAPABILITY).map_err(fail)?.is_some() {
        xattr::remove(&handle, CAPABILITY).map_err(fail)?;
    }
    Ok(stat(original, path)?.unwrap_or(now))
}
