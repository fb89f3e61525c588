//! The diff between two states of one subvolume, each a whole tree.
//!
//! Inode and ctime come with a snapshot, and no program can set a ctime: what has both in either state was not touched in
//! between, and is not opened. Only the rest is looked at closer, and only files whose sizes are equal are read
//! (rules F6, F8).

use crate::fs::dir::DirEntry;
use crate::fs::walk::{DirVisit, NextDirs, Shared, walk};
use crate::fs::{Dir, Meta, btrfs};
use crate::model::{Change, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::tree;

/// What a walk over two states found.
#[derive(Debug, Default)]
pub(super) struct TreeScan {
    /// What differs.
    pub(super) changes: Vec<Change>,
    /// What both have and was touched, but differs in nothing that a diff lists.
    pub(super) alike: Vec<(ResourcePath, Meta)>,
}

impl TreeScan {
    /// Whether nothing was touched.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.alike.is_empty()
    }

    /// Files that were touched, but are no change.
    pub(super) fn kept(&self) -> impl Iterator<Item = ResourcePath> {
        let files = self.alike.iter().filter(|(_, meta)| !meta.is_dir());
        files.map(|(path, _)| path.clone())
    }
}

/// Compares two states, directory by directory.
pub(super) fn compare(old: &Dir, new: &Dir) -> Result<TreeScan> {
    tree::steady(|| {
        let comparison = Comparison {
            old,
            found: Shared::default(),
        };
        let (was, is) = (old.meta()?, new.meta()?);
        comparison.pair(&ResourcePath::root(), (old, &was), (new, &is))?;
        walk(new, true, |visit| comparison.directory(visit))?;
        Ok(comparison.found.into_inner())
    })
}

struct Comparison<'a> {
    old: &'a Dir,
    found: Shared<TreeScan>,
}

impl Comparison<'_> {
    /// Merges a directory with what the old state has there, if it has the directory; both are sorted.
    fn directory(&self, visit: DirVisit<'_, bool>) -> Result<NextDirs<bool>> {
        let (path, new) = (visit.path, visit.dir);
        let old = visit.state.then(|| self.old.dir(path)).transpose()?;
        let before = old.as_ref().map(Dir::entries).transpose()?;
        let mut before = before.unwrap_or_default().into_iter().peekable();
        let mut next = Vec::new();
        for DirEntry { name, meta } in visit.entries {
            while let Some(gone) = before.next_if(|one| one.name < name) {
                self.deleted(old.as_ref(), path, &gone)?;
            }
            let at = path.join(&name);
            let was = before.next_if(|one| one.name == name);
            match (&old, &was) {
                (Some(old), Some(was)) => self.pair(&at, (old, &was.meta), (new, &meta))?,
                _ => {
                    let added = Change::added(at.clone(), new.facts(&name, &meta)?);
                    self.found.lock().changes.push(added);
                }
            }
            let was_dir = was.as_ref().is_some_and(|was| was.meta.is_dir());
            match (meta.is_dir(), was) {
                // What another subvolume is, is not part of either state.
                (true, Some(was)) if is_apart(&was.meta, &meta) => {}
                (true, _) => next.push((name, was_dir)),
                (false, Some(was)) if was_dir => self.deleted_below(&at, &was.meta)?,
                (false, _) => {}
            }
        }
        for gone in before {
            self.deleted(old.as_ref(), path, &gone)?;
        }
        Ok(next)
    }

    /// Compares one entry that both have.
    fn pair(&self, path: &ResourcePath, old: (&Dir, &Meta), new: (&Dir, &Meta)) -> Result<()> {
        let state = |meta: &Meta| (meta.kind, meta.ino, meta.ctime);
        if state(old.1) == state(new.1) || is_apart(old.1, new.1) {
            return Ok(());
        }
        let change = tree::change(path, old, new, |all| all, |fields| fields)?;
        let mut found = self.found.lock();
        match change {
            Some(change) => found.changes.push(change),
            None => found.alike.push((path.clone(), *new.1)),
        }
        Ok(())
    }

    fn deleted(&self, old: Option<&Dir>, parent: &ResourcePath, gone: &DirEntry) -> Result<()> {
        let Some(old) = old else { return Ok(()) };
        let path = parent.join(&gone.name);
        let change = Change::deleted(path.clone(), old.facts(&gone.name, &gone.meta)?);
        self.found.lock().changes.push(change);
        self.deleted_below(&path, &gone.meta)
    }

    fn deleted_below(&self, path: &ResourcePath, meta: &Meta) -> Result<()> {
        if !meta.is_dir() || btrfs::is_stub(meta) {
            return Ok(());
        }
        // A list instead of recursion: the tree may be deeper than the stack.
        let mut open = vec![path.clone()];
        while let Some(path) = open.pop() {
            let dir = self.old.dir(&path)?;
            for DirEntry { name, meta } in dir.entries()? {
                let path = path.join(&name);
                let change = Change::deleted(path.clone(), dir.facts(&name, &meta)?);
                self.found.lock().changes.push(change);
                if meta.is_dir() && !btrfs::is_stub(&meta) {
                    open.push(path);
                }
            }
        }
        Ok(())
    }
}

/// Whether two directories are a subvolume of its own, which is not part of one state at least.
fn is_apart(old: &Meta, new: &Meta) -> bool {
    old.is_dir() && new.is_dir() && (btrfs::is_stub(old) || btrfs::is_stub(new))
}
