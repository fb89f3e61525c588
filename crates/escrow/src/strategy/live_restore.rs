//! Restores a sandbox while commands work in it: applies the differences through what they see, while they are paused.
//!
//! What differs is looked for anew each time, so the process that finds the work half done can simply do it again,
//! or go back the same way.

use std::collections::{BTreeMap, BTreeSet};

use super::error::Result;
use super::tree;
use crate::event::Unobserved;
use crate::fs::place::{CopyOptions, DirLook, Placer};
use crate::fs::xattr::Xattrs;
use crate::fs::{Dir, Meta};
use crate::model::{EntryKind, ResourcePath};

/// A version of a path: the directory it lies in, or itself for the root, and what the kernel says of it.
pub(super) type PathVersion = Option<(Dir, Meta)>;

/// What stands at a path in one state of a sandbox.
pub(super) type PathVersions<'a> = &'a dyn Fn(&ResourcePath) -> Result<PathVersion>;

/// Makes what is seen in `root` what it is `to` be, at these paths; elsewhere it is that already. Attributes count as
/// they are `visible`.
pub(super) fn go(
    root: &Dir,
    paths: BTreeSet<ResourcePath>,
    (is, to): (PathVersions<'_>, PathVersions<'_>),
    visible: fn(Xattrs) -> Xattrs,
) -> Result<()> {
    let differing = differing(paths, (is, to), visible)?;
    let mut going = LiveRestore {
        root,
        to,
        visible,
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
    paths: BTreeSet<ResourcePath>,
    (is, to): (PathVersions<'_>, PathVersions<'_>),
    visible: fn(Xattrs) -> Xattrs,
) -> Result<BTreeMap<ResourcePath, (PathVersion, PathVersion)>> {
    let mut all = Vec::new();
    // Files of several names that must be put anew: with one of their names all of them.
    let mut linked = BTreeSet::new();
    for path in paths {
        let (is, to) = (is(&path)?, to(&path)?);
        let same = same(&path, is.as_ref(), to.as_ref(), visible)?;
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
fn same(
    path: &ResourcePath,
    is: Option<&(Dir, Meta)>,
    to: Option<&(Dir, Meta)>,
    visible: fn(Xattrs) -> Xattrs,
) -> Result<bool> {
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
    Ok(tree::differences(name, is, to, visible, content)?.is_empty())
}

struct LiveRestore<'a> {
    root: &'a Dir,
    to: PathVersions<'a>,
    visible: fn(Xattrs) -> Xattrs,
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
            look: &|_, attributes| *attributes = (self.visible)(std::mem::take(attributes)),
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
        let Some((from, meta)) = (self.to)(path)? else {
            return Ok(None);
        };
        let model = match path.split() {
            Some((_, name)) => from.subdir(name)?,
            None => from,
        };
        let attributes = (self.visible)(model.xattrs()?);
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
