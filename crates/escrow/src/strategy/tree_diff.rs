//! How a copied tree differs from its original, and how its changes are discarded.
//!
//! One walk over the copy. Whatever still has the inode and the ctime that its record knows was
//! not touched and is not opened; only the rest is looked at closer, and only files whose sizes
//! are equal are read (rules F6, F8).

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::error::Result;
use super::tree;
use crate::fs::beneath::Entry;
use crate::fs::content::Reflinks;
use crate::fs::copy::copy_entry;
use crate::fs::manifest::{Index, Manifest};
use crate::fs::walk::{Next, Visit, walk};
use crate::fs::{Cause, Dir, Handle, Meta, remove, xattr};
use crate::model::{Change, ChangeKind, DiffView, EntryKind, Field, ResourcePath};

/// A copy, what it was made from, and the record of how it was made.
pub(super) struct Copied<'a> {
    pub(super) original: &'a Dir,
    pub(super) tree: &'a Dir,
    pub(super) manifest: &'a Manifest,
}

impl Copied<'_> {
    /// Every path that differs.
    pub(super) fn diff(&self) -> Result<DiffView> {
        let changes = Mutex::new(Vec::new());
        let report = |found: Vec<Change>| {
            changes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(found);
        };
        let root = self.tree.meta()?;
        report(
            self.compare(&ResourcePath::root(), None, &root, Manifest::ROOT)?
                .into_iter()
                .collect(),
        );
        walk(self.tree, Some(Manifest::ROOT), |visit| {
            let mut found = Vec::new();
            let next = self.directory(visit, &mut found)?;
            report(found);
            Ok::<_, super::StrategyError>(next)
        })?;
        Ok(DiffView::new(
            changes.into_inner().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// Merges a directory of the copy with the records of it; both are sorted.
    fn directory(
        &self,
        visit: Visit<'_, Option<Index>>,
        found: &mut Vec<Change>,
    ) -> Result<Next<Option<Index>>> {
        let mut next = Vec::new();
        let mut recorded = visit
            .state
            .map_or(0..0, |index| self.manifest.children(index))
            .peekable();
        for entry in visit.entries {
            while let Some(index) =
                recorded.next_if(|index| self.manifest.name(*index) < &*entry.name)
            {
                self.deleted(index, visit.path, found);
            }
            let path = visit.path.join(&entry.name);
            let same =
                |index: &Index| self.manifest.name(*index).cmp(&entry.name) == Ordering::Equal;
            let index = recorded.next_if(same);
            let mut below = None;
            match index {
                None => {
                    let facts = visit.dir.facts(&entry.name, &entry.meta)?;
                    found.push(Change::added(path.clone(), facts));
                }
                Some(index) => {
                    found.extend(self.compare(
                        &path,
                        Some((visit.dir, &entry)),
                        &entry.meta,
                        index,
                    )?);
                    let was_dir = self.manifest.record(index).kind == EntryKind::Directory;
                    if was_dir && entry.meta.is_dir() {
                        below = Some(index);
                    } else if was_dir {
                        self.deleted_below(index, &path, found);
                    }
                }
            }
            if entry.meta.is_dir() {
                next.push((entry.name, below));
            }
        }
        for index in recorded {
            self.deleted(index, visit.path, found);
        }
        Ok(next)
    }

    fn deleted(&self, index: Index, parent: &ResourcePath, found: &mut Vec<Change>) {
        let record = self.manifest.record(index);
        // What was never copied is not missed, unless it is a mount point's directory.
        if record.is_left_out() && record.kind != EntryKind::Directory {
            return;
        }
        let path = parent.join(self.manifest.name(index));
        found.push(Change::deleted(path.clone(), self.manifest.facts(index)));
        self.deleted_below(index, &path, found);
    }

    fn deleted_below(&self, index: Index, path: &ResourcePath, found: &mut Vec<Change>) {
        self.manifest.below(index, path, &mut |index, path| {
            found.push(Change::deleted(path.clone(), self.manifest.facts(index)));
        });
    }

    /// Compares one entry that both have; `at` is `None` for the root.
    fn compare(
        &self,
        path: &ResourcePath,
        at: Option<(&Dir, &Entry)>,
        meta: &Meta,
        index: Index,
    ) -> Result<Option<Change>> {
        let record = self.manifest.record(index);
        let untouched = self.manifest.ctime_decides && record.is_untouched(meta);
        if untouched || (record.is_left_out() && record.kind == meta.kind) {
            return Ok(None);
        }
        let mut fields = Vec::new();
        if record.kind == meta.kind {
            if record.kind != EntryKind::Symlink && record.mode != meta.mode {
                fields.push(Field::Mode);
            }
            if record.copy_owner != (meta.uid, meta.gid) {
                fields.push(Field::Owner);
            }
            let attributes = match at {
                Some((dir, entry)) => tree::xattrs(dir, &entry.name)?,
                None => xattr::read(&Handle::of(self.tree)).map_err(|errno| {
                    self.tree
                        .error("read the attributes of", b"", Cause::Os(errno))
                })?,
            };
            if record.xattrs != xattr::digest(&attributes) {
                fields.push(Field::Xattrs);
            }
            if let Some((dir, entry)) = at {
                fields.extend(self.compare_content(path, dir, entry, index)?);
            }
        }
        let new = match at {
            Some((dir, entry)) => dir.facts(&entry.name, meta)?,
            None => meta.facts(),
        };
        Ok(Change::between(
            path.clone(),
            self.manifest.facts(index),
            new,
            fields,
        ))
    }

    fn compare_content(
        &self,
        path: &ResourcePath,
        dir: &Dir,
        entry: &Entry,
        index: Index,
    ) -> Result<Option<Field>> {
        let record = self.manifest.record(index);
        match record.kind {
            EntryKind::Symlink => {
                let same = dir.read_link(&entry.name)? == self.manifest.target(index);
                Ok((!same).then_some(Field::Target))
            }
            EntryKind::File if record.size != entry.meta.size => Ok(Some(Field::Content)),
            EntryKind::File if record.size > 0 => {
                let same = match self.original_of(path)? {
                    Some((original, meta)) if meta.is_file() && meta.size == entry.meta.size => {
                        let (_, name) = path.split().expect("the root is no file");
                        tree::same_content((dir, &entry.name), (&original, name))?
                    }
                    _ => false,
                };
                Ok((!same).then_some(Field::Content))
            }
            _ => Ok(None),
        }
    }

    /// The entry of the original at `path`, with the directory it lies in.
    fn original_of(&self, path: &ResourcePath) -> Result<Option<(Dir, Meta)>> {
        let (dir, name) = match self.original.parent(path) {
            Ok(found) => found,
            // Somebody removed the directory, or put a link in its place.
            Err(error) if error.is_absent() || error.leaves() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(dir.stat(name)?.map(|meta| (dir, meta)))
    }

    /// The record at `path`.
    fn find(&self, path: &ResourcePath) -> Option<Index> {
        path.parts().try_fold(Manifest::ROOT, |index, part| {
            let children = self.manifest.children(index);
            let (first, count) = (children.start, children.len());
            let mut range = 0..count;
            while !range.is_empty() {
                let middle = range.start + range.len() / 2;
                let index = first + middle as Index;
                match self.manifest.name(index).cmp(part) {
                    Ordering::Equal => return Some(index),
                    Ordering::Less => range.start = middle + 1,
                    Ordering::Greater => range.end = middle,
                }
            }
            None
        })
    }
}

/// Takes every change of the copy back, at the cost of the changes. Returns `false`, with
/// nothing done, where that cannot give the tree that was copied: somebody changed the original
/// of a changed path since, or hard links are involved.
pub(super) fn restore(copied: &Copied<'_>, diff: &DiffView, stage: &Dir) -> Result<bool> {
    for change in diff.changes.iter().filter(|change| change.old.is_some()) {
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
    let mut directories = BTreeSet::new();
    for change in &diff.changes {
        directories.extend(change.path.split().map(|(parent, _)| parent));
    }
    unlock(copied.tree, &directories)?;
    // What is in the way goes first, children before parents.
    for change in diff.changes.iter().rev() {
        if matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged) {
            let (dir, name) = copied.tree.parent(&change.path)?;
            remove::remove(&dir, name)?;
        }
    }
    // What was there comes back, parents before children; directories are dressed at the end.
    for change in &diff.changes {
        let Some(old) = &change.old else { continue };
        if old.kind != EntryKind::Directory {
            bring_back(copied, &change.path, stage)?;
            continue;
        }
        if change.kind != ChangeKind::ModeChanged {
            let (dir, name) = copied.tree.parent(&change.path)?;
            dir.make_dir(name, 0o700)?;
        }
        directories.insert(change.path.clone());
    }
    for path in directories.iter().rev() {
        if let Some(index) = copied.find(path) {
            let listed = |change: &Change| change.path == *path;
            dress_directory(copied, path, index, diff.changes.iter().any(listed))?;
        }
    }
    Ok(true)
}

/// Lets this user work in directories of the copy that are closed to writing.
fn unlock(tree: &Dir, directories: &BTreeSet<ResourcePath>) -> Result<()> {
    for path in directories {
        let dir = match tree.dir(path) {
            Err(error) if error.is_absent() || error.leaves() => continue,
            answer => answer?,
        };
        let mode = dir.meta()?.mode;
        if mode & 0o700 != 0o700 {
            Handle::of(&dir)
                .set_mode(mode | 0o700)
                .map_err(|errno| dir.error("set the mode of", b"", Cause::Os(errno)))?;
        }
    }
    Ok(())
}

/// Puts the original's version of a path that is no directory in the place of the copy's.
fn bring_back(copied: &Copied<'_>, path: &ResourcePath, stage: &Dir) -> Result<()> {
    let (dir, name) = copied.tree.parent(path)?;
    let (from, _) = copied.original.parent(path)?;
    let meta = from
        .stat(name)?
        .ok_or_else(|| from.error("find", name, Cause::Os(rustix::io::Errno::NOENT)))?;
    remove::remove(stage, name)?;
    copy_entry(&from, stage, name, &meta, &Reflinks::wanted())?;
    Ok(stage.rename(name, &dir, name)?)
}

/// Gives a directory of the copy the metadata it was made with; its attributes too, where they
/// are among the changes.
fn dress_directory(
    copied: &Copied<'_>,
    path: &ResourcePath,
    index: Index,
    attributes: bool,
) -> Result<()> {
    let record = copied.manifest.record(index);
    let dir = copied.tree.dir(path)?;
    let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
    let handle = Handle::of(&dir);
    let mut wanted = Vec::new();
    if attributes {
        let original = copied.original.dir(path)?;
        wanted = xattr::read(&Handle::of(&original))
            .map_err(|errno| original.error("read the attributes of", b"", Cause::Os(errno)))?;
        for (name, _) in xattr::read(&handle).map_err(fail)? {
            if !wanted.iter().any(|(kept, _)| *kept == name) {
                xattr::remove(&handle, &name).map_err(fail)?;
            }
        }
    }
    let meta = Meta {
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        mtime: record.mtime,
        ..dir.meta()?
    };
    handle.dress(&meta, &wanted).map_err(fail)?;
    Ok(())
}
