//! Restores an overlay while it is mounted: applies the differences through the mount, while the commands
//! inside are paused.
//!
//! What differs is looked for anew each time, so the process that finds the work half done can simply do it again,
//! or go back the same way.

use std::collections::{BTreeMap, BTreeSet};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::layers::{self, LayerEntry};
use super::stack::LayerStack;
use super::{OpenLayers, diff};
use crate::event::Unobserved;
use crate::fs::place::{CopyOptions, DirLook, Placer};
use crate::fs::{Dir, Meta};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::tree_commit::Released;

/// A version of a path: where it is, and what the kernel says of it.
type PathVersion = Option<(Dir, Meta)>;

/// Makes what is seen in `root` what `target` shows.
pub(super) fn go(open: &OpenLayers, target: &LayerStack, root: &Dir) -> Result<()> {
    let differing = differing(open, target)?;
    let mut going = LiveRestore {
        root,
        open: &open.lower,
        target,
        placer: Placer::new(root, &Unobserved),
        dirs: BTreeSet::new(),
    };
    for (path, (is, to)) in differing.iter().rev() {
        going.take_away(path, is.as_ref(), to.as_ref())?;
    }
    for (path, (is, to)) in &differing {
        if let Some(to) = to {
            going.put(path, is.as_ref(), to)?;
        }
    }
    for path in &going.dirs {
        if let Some(look) = going.look(path)? {
            going.placer.dir(path.clone(), look);
        }
    }
    going.placer.finish()?;
    // Once, for everything.
    Ok(root.sync_file_system()?)
}

/// Every path at which the two states differ, with both versions.
fn differing(
    open: &OpenLayers,
    target: &LayerStack,
) -> Result<BTreeMap<ResourcePath, (PathVersion, PathVersion)>> {
    let mut paths = BTreeSet::new();
    for stack in [&open.upper, target] {
        let looked = tree::steady(|| diff::look(stack, &open.lower, &Released::default()))?;
        paths.extend(looked.changes.into_iter().map(|change| change.path));
        paths.extend(looked.kept);
        paths.extend(looked.directories);
    }
    let mut all = Vec::new();
    // Files of several names that must be put anew: with one of their names all of them.
    let mut linked = BTreeSet::new();
    for path in paths {
        if open.carved.iter().any(|carved| path.lies_in(carved)) {
            continue;
        }
        let find = |stack: &LayerStack| -> Result<PathVersion> {
            match layers::find(stack, &open.lower, &path) {
                // Below a link there is nothing.
                Ok(LayerEntry::Nothing) | Err(StrategyError::Leaves { .. }) => Ok(None),
                Ok(LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta)) => {
                    Ok(Some((dir, meta)))
                }
                Err(error) => Err(error),
            }
        };
        let (is, to) = (find(&open.upper)?, find(target)?);
        let same = same(&path, is.as_ref(), to.as_ref())?;
        let file = to.as_ref().filter(|(_, to)| !to.is_dir() && to.nlink > 1);
        let file = file.map(|(_, to)| (to.dev, to.ino));
        linked.extend(file.filter(|_| !same));
        all.push((path, (is, to), same, file));
    }
    all.retain(|(_, _, same, file)| !same || file.is_some_and(|file| linked.contains(&file)));
    let all = all.into_iter().map(|(path, versions, ..)| (path, versions));
    Ok(all.collect())
}

/// Whether two versions are alike, times included.
fn same(path: &ResourcePath, is: Option<&(Dir, Meta)>, to: Option<&(Dir, Meta)>) -> Result<bool> {
    let ((a_dir, a), (b_dir, b)) = match (is, to) {
        (None, None) => return Ok(true),
        (Some(is), Some(to)) => (is, to),
        _ => return Ok(false),
    };
    if (a.dev, a.ino) == (b.dev, b.ino) {
        return Ok(true);
    }
    let names = !a.is_file() || a.nlink == b.nlink;
    if (a.kind, a.mtime, a.mode) != (b.kind, b.mtime, b.mode) || !names {
        return Ok(false);
    }
    let name = path.split().map_or(&b"."[..], |(_, name)| name);
    let content = || tree::same_content((a_dir, name), (b_dir, name));
    let (is, to) = ((a_dir, a), (b_dir, b));
    Ok(tree::differences(name, is, to, layers::visible, content)?.is_empty())
}

struct LiveRestore<'a> {
    root: &'a Dir,
    open: &'a Dir,
    target: &'a LayerStack,
    placer: Placer<'a>,
    /// Directories that were made, or worked in, and get their looks last.
    dirs: BTreeSet<ResourcePath>,
}

impl LiveRestore<'_> {
    /// The directory at `path`, which gets its metadata in the end.
    fn dir(&mut self, path: &ResourcePath) -> Result<Dir> {
        self.dirs.insert(path.clone());
        Ok(self.root.dir(path)?)
    }

    /// Removes what must be gone before something else can stand in its place.
    fn take_away(
        &mut self,
        path: &ResourcePath,
        is: Option<&(Dir, Meta)>,
        to: Option<&(Dir, Meta)>,
    ) -> Result<()> {
        let Some((_, is)) = is else {
            return Ok(());
        };
        // One file is replaced by another in one rename.
        let stays = to.is_some_and(|(_, to)| to.is_dir() == is.is_dir());
        let Some((parent, name)) = path.split().filter(|_| !stays) else {
            return Ok(());
        };
        let dir = self.dir(&parent)?;
        match is.is_dir() {
            true => {
                dir.remove_dir(name)?;
                self.dirs.remove(path);
            }
            false => dir.unlink(name)?,
        }
        Ok(())
    }

    fn put(
        &mut self,
        path: &ResourcePath,
        is: Option<&(Dir, Meta)>,
        (from, meta): &(Dir, Meta),
    ) -> Result<()> {
        let Some((parent, name)) = path.split() else {
            self.dirs.insert(path.clone());
            return Ok(());
        };
        if meta.is_dir() {
            if is.is_none_or(|(_, is)| !is.is_dir()) {
                self.dir(&parent)?.make_dir(name, 0o700)?;
            }
            self.dirs.insert(path.clone());
            return Ok(());
        }
        // No process listens to a socket of another time, and devices mean nothing inside.
        if matches!(meta.kind, EntryKind::Socket | EntryKind::Device) {
            let other = is.is_some_and(|(_, is)| !is.is_dir() && is.kind != meta.kind);
            return match other {
                true => Ok(self.dir(&parent)?.unlink(name)?),
                false => Ok(()),
            };
        }
        let dir = self.dir(&parent)?;
        let temporary = free_name(&dir)?;
        let key = (meta.nlink > 1).then_some((meta.dev, meta.ino));
        let (from, to) = ((from, name), (&dir, &*temporary));
        // As it is to be seen.
        let options = CopyOptions {
            look: &|_, attributes| *attributes = layers::visible(std::mem::take(attributes)),
            ..CopyOptions::QUIET
        };
        self.placer.entry(key, path, to, || -> Result<_> {
            self.placer.copy(from, to, meta.kind, options)?;
            Ok(((), true))
        })?;
        if let Err(error) = dir.rename(&temporary, &dir, name) {
            dir.unlink(&temporary)?;
            return Err(error.into());
        }
        // Two names of one file: a rename of one onto the other does nothing.
        match dir.stat(&temporary)? {
            Some(_) => Ok(dir.unlink(&temporary)?),
            None => Ok(()),
        }
    }

    /// How a directory is to look; `None` where there is to be none.
    fn look(&self, path: &ResourcePath) -> Result<Option<DirLook>> {
        let (from, meta) = match layers::find(self.target, self.open, path)? {
            LayerEntry::Nothing => return Ok(None),
            LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta) => (dir, meta),
        };
        let model = match path.split() {
            Some((_, name)) => from.subdir(name)?,
            None => from,
        };
        let attributes = layers::visible(model.xattrs()?);
        Ok(Some(DirLook {
            stood: true,
            ..DirLook::new(meta, attributes)
        }))
    }
}

/// A name that is free in a directory.
fn free_name(dir: &Dir) -> Result<Vec<u8>> {
    let mut number = 0;
    loop {
        let name = format!(".escrow-restore-{number}").into_bytes();
        if dir.stat(&name)?.is_none() {
            return Ok(name);
        }
        number += 1;
    }
}
