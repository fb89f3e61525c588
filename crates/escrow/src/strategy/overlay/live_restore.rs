//! Restores an overlay while it is mounted: applies the differences through the mount, while the commands
//! inside are paused.
//!
//! What differs is looked for anew each time, so the process that finds the work half done can simply do it again,
//! or go back the same way.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rustix::io::Errno;

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::layers::{self, LayerEntry};
use super::stack::LayerStack;
use super::{OpenLayers, diff};
use crate::fs::content::{Reflinks, transfer};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::unreadable;

/// A version of a path: where it is, and what the kernel says of it.
type PathVersion = Option<(Dir, Meta)>;

/// Makes what is seen in `root` what `target` shows.
pub(super) fn go(open: &OpenLayers, target: &LayerStack, root: &Dir) -> Result<()> {
    let differing = differing(open, target)?;
    let mut going = LiveRestore {
        area: &open.area,
        root,
        open: &open.lower,
        target,
        reflinks: Reflinks::wanted(),
        same: HashMap::new(),
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
    let dirs = std::mem::take(&mut going.dirs);
    for path in dirs.iter().rev() {
        going.apply_metadata(path)?;
    }
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
        let looked = tree::steady(|| diff::look(stack, &open.lower))?;
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
    let mode = a.mode == b.mode || a.kind == EntryKind::Symlink;
    let looks = (a.kind, a.uid, a.gid, a.mtime) == (b.kind, b.uid, b.gid, b.mtime);
    if !mode || !looks {
        return Ok(false);
    }
    let Some((_, name)) = path.split() else {
        return Ok(
            layers::visible(tree::xattrs_of(a_dir)?) == layers::visible(tree::xattrs_of(b_dir)?)
        );
    };
    let seen = |dir| -> Result<_> { Ok(tree::xattrs_if_open(dir, name)?.map(layers::visible)) };
    if seen(a_dir)? != seen(b_dir)? {
        return Ok(false);
    }
    Ok(match a.kind {
        EntryKind::File => {
            (a.size, a.nlink) == (b.size, b.nlink)
                && tree::same_content((a_dir, name), (b_dir, name))?
        }
        EntryKind::Symlink => a_dir.read_link(name)? == b_dir.read_link(name)?,
        _ => true,
    })
}

struct LiveRestore<'a> {
    area: &'a Dir,
    root: &'a Dir,
    open: &'a Dir,
    target: &'a LayerStack,
    reflinks: Reflinks,
    /// Files of several names, by inode, and where the first of them was put.
    same: HashMap<(u64, u64), ResourcePath>,
    /// Directories that were made, or worked in, and get their looks last.
    dirs: BTreeSet<ResourcePath>,
}

impl LiveRestore<'_> {
    /// The directory at `path`, opened to us if it was closed, and to be dressed in the end.
    fn dir(&mut self, path: &ResourcePath) -> Result<Dir> {
        let mut at = self.root.again();
        let mut walked = ResourcePath::root();
        for part in path.parts() {
            walked = walked.join(part);
            at = match at.subdir(part) {
                Err(error) if error.is(Errno::ACCESS) => {
                    at.make_readable(part)?;
                    self.dirs.insert(walked.clone());
                    at.subdir(part)?
                }
                dir => dir?,
            };
        }
        self.dirs.insert(path.clone());
        layers::set_mode(&at, at.meta()?.mode | 0o700)?;
        Ok(at)
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
        let key = (meta.dev, meta.ino);
        match self.same.get(&key) {
            Some(first) => dir.hard_link(&temporary, self.root, first)?,
            None => self.copy((from, name), (&dir, &temporary), meta)?,
        }
        if meta.nlink > 1 {
            self.same.insert(key, path.clone());
        }
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

    /// A version as it is to be seen, under another name.
    fn copy(
        &self,
        (from, name): (&Dir, &[u8]),
        (to, new): (&Dir, &[u8]),
        meta: &Meta,
    ) -> Result<()> {
        // Of an original that no process may read nothing is taken.
        let attributes = layers::visible(unreadable::xattrs(self.area, (from, name), meta)?);
        let fail = |errno| to.error("set the metadata of", new, Cause::Os(errno));
        let lost = match meta.kind {
            EntryKind::File => {
                let (source, before) =
                    unreadable::read(self.area, (from, name), meta, || Ok(from.file(name)?))?;
                let target = to.create(new, 0o600)?;
                transfer(&source, &target, &before, &self.reflinks).map_err(|error| {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    from.error("copy", name, Cause::Os(errno))
                })?;
                EntryHandle::of(&target).apply_metadata(meta, &attributes)
            }
            EntryKind::Symlink => {
                to.make_link(new, &from.read_link(name)?)?;
                to.handle(new)?.apply_metadata(meta, &attributes)
            }
            _ => {
                to.make_fifo(new, 0o600)?;
                to.handle(new)?.apply_metadata(meta, &attributes)
            }
        };
        tree::refuse_lost(from, name, &lost.map_err(fail)?)
    }

    /// Gives a directory the looks it is to have.
    fn apply_metadata(&self, path: &ResourcePath) -> Result<()> {
        let (from, meta) = match layers::find(self.target, self.open, path)? {
            LayerEntry::Nothing => return Ok(()),
            LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta) => (dir, meta),
        };
        let model = match path.split() {
            Some((_, name)) => from.subdir(name)?,
            None => from,
        };
        let wanted = layers::visible(tree::xattrs_of(&model)?);
        let dir = self.root.dir(path)?;
        let handle = EntryHandle::of(&dir);
        let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
        let have: Xattrs = xattr::read(&handle).map_err(fail)?;
        let gone = |one: &&(Vec<u8>, Vec<u8>)| !wanted.iter().any(|(name, _)| *name == one.0);
        for (name, _) in have.iter().filter(gone) {
            xattr::remove(&handle, name).map_err(fail)?;
        }
        let lost = handle.apply_metadata(&meta, &wanted).map_err(fail)?;
        tree::refuse_lost(&model, b"", &lost)
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
