//! The diff of a copied tree against its original.
//!
//! One walk over the copy. Whatever still has the inode and the ctime that its record knows was
//! not touched and is not opened; only the rest is looked at closer, and only files whose sizes
//! are equal are read (rules F6, F8).

use std::cmp::Ordering;

use crate::fs::dir::DirEntry;
use crate::fs::manifest::{Manifest, RecordIndex};
use crate::fs::walk::{DirVisit, NextDirs, Shared, walk};
use crate::fs::{Cause, Dir, EntryHandle, Meta, MovedEntries, xattr};
use crate::model::{Change, ChangedField, Conflict, EntryInfo, EntryKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::tree;
use crate::strategy::tree_commit::{BaseText, EntryAt, OriginalBase, Released, Releases};

/// A copy, what it was made from, and the record of how it was made.
pub(in crate::strategy) struct CopiedTree<'a> {
    pub(in crate::strategy) original: &'a Dir,
    pub(in crate::strategy) tree: &'a Dir,
    pub(in crate::strategy) manifest: &'a Manifest,
    /// What was released of it.
    pub(in crate::strategy) released: &'a Released,
    /// The directory that it was released into.
    pub(in crate::strategy) to: &'a Dir,
    /// The file, if not everything in the original is meant.
    pub(in crate::strategy) only: Option<&'a ResourcePath>,
}

/// Whether an entry of the original is still what was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::strategy) enum OriginalState {
    /// No process touched it.
    Itself,
    /// Another process touched it, and everything that can be known of it is as it was.
    Alike,
    /// It is something else.
    No,
}

/// How many paths a remark names.
const NAMED: usize = 3;

/// A remark on what had to be taken from the original, where another process had touched it.
///
/// No copy of it is left to compare contents with, and a moved ctime tells neither what was done nor what not. A mode
/// that was changed and changed back, a name that came and went, or a commit and its undo are no change
/// (rule F8), and a checkpoint must not be lost by them. Another process that writes into a file and then sets its
/// time back looks the same (rule F6), so it is said.
pub(in crate::strategy) fn remark(mut alike: Vec<ResourcePath>) -> Option<String> {
    alike.sort_unstable();
    let more = alike.len().saturating_sub(NAMED);
    let named = alike.iter().take(NAMED).map(|path| format!("'{path}'"));
    let mut named: Vec<String> = named.collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    let named = named.join(", ");
    (!alike.is_empty()).then(|| {
        format!(
            "restored from the original, which was touched since, although size, times, mode, owner and attributes are unchanged: {named}"
        )
    })
}

/// What a walk over a copy found.
#[derive(Default)]
pub(in crate::strategy) struct CopyScan {
    /// What differs.
    pub(in crate::strategy) changes: Vec<Change>,
    /// What another process touched, whether it differs or not.
    pub(in crate::strategy) touched: Vec<(ResourcePath, RecordIndex)>,
    /// Files that were released, and are the same in the original.
    pub(in crate::strategy) same: Vec<ResourcePath>,
}

impl CopiedTree<'_> {
    /// One walk over the copy; what was released is then compared with the original.
    pub(in crate::strategy) fn look(&self) -> Result<CopyScan> {
        let all = Shared::new(CopyScan::default());
        let report = |found: CopyScan| {
            let mut all = all.lock();
            all.changes.extend(found.changes);
            all.touched.extend(found.touched);
        };
        // The directory that holds a file is not part of it.
        if self.only.is_none() {
            let mut found = CopyScan::default();
            let (root, meta) = (ResourcePath::root(), self.tree.meta()?);
            self.compare(&root, None, &meta, Manifest::ROOT, &mut found)?;
            report(found);
        }
        walk(self.tree, Some(Manifest::ROOT), |visit| {
            let mut found = CopyScan::default();
            let next = self.directory(visit, &mut found)?;
            report(found);
            Ok::<_, crate::strategy::StrategyError>(next)
        })?;
        let mut all = all.into_inner();
        let same = self
            .released
            .compare(self.tree, self.to, &mut all.changes)?;
        all.same = same;
        Ok(all)
    }

    /// Merges a directory of the copy with the records of it; both are sorted.
    fn directory(
        &self,
        visit: DirVisit<'_, Option<RecordIndex>>,
        found: &mut CopyScan,
    ) -> Result<NextDirs<Option<RecordIndex>>> {
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
            let same = |index: &RecordIndex| {
                self.manifest.name(*index).cmp(&entry.name) == Ordering::Equal
            };
            let index = recorded.next_if(same);
            let mut below = None;
            match index {
                None => {
                    let facts = visit.dir.facts(&entry.name, &entry.meta)?;
                    found.changes.push(Change::added(path.clone(), facts));
                }
                Some(index) => {
                    let at = Some((visit.dir, &entry));
                    self.compare(&path, at, &entry.meta, index, found)?;
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

    fn deleted(&self, index: RecordIndex, parent: &ResourcePath, found: &mut CopyScan) {
        let record = self.manifest.record(index);
        // What was never copied is not missed, unless it is a mount point's directory.
        if record.is_left_out() && record.kind != EntryKind::Directory {
            return;
        }
        let path = parent.join(self.manifest.name(index));
        found
            .changes
            .push(Change::deleted(path.clone(), self.manifest.facts(index)));
        self.deleted_below(index, &path, found);
    }

    fn deleted_below(&self, index: RecordIndex, path: &ResourcePath, found: &mut CopyScan) {
        self.manifest.below(index, path, &mut |index, path| {
            found
                .changes
                .push(Change::deleted(path.clone(), self.manifest.facts(index)));
        });
    }

    /// Compares one entry that both have; `at` is `None` for the root.
    fn compare(
        &self,
        path: &ResourcePath,
        at: Option<(&Dir, &DirEntry)>,
        meta: &Meta,
        index: RecordIndex,
        found: &mut CopyScan,
    ) -> Result<()> {
        let record = self.manifest.record(index);
        let untouched = self.manifest.ctime_decides && record.is_untouched(meta);
        if untouched || (record.is_left_out() && record.kind == meta.kind) {
            return Ok(());
        }
        found.touched.push((path.clone(), index));
        if self.released.has(path) {
            return Ok(());
        }
        let mut fields = Vec::new();
        if record.kind == meta.kind {
            if record.kind != EntryKind::Symlink && record.mode != meta.mode {
                fields.push(ChangedField::Mode);
            }
            if record.copy_owner != (meta.uid, meta.gid) {
                fields.push(ChangedField::Owner);
            }
            let attributes = match at {
                Some((dir, entry)) => tree::xattrs_if_open(dir, &entry.name)?,
                None => Some(xattr::read(&EntryHandle::of(self.tree)).map_err(|errno| {
                    self.tree
                        .error("read the attributes of", b"", Cause::Os(errno))
                })?),
            };
            if attributes.is_some_and(|attributes| record.xattrs != xattr::digest(&attributes)) {
                fields.push(ChangedField::Xattrs);
            }
            if let Some((dir, entry)) = at {
                fields.extend(self.compare_content(path, dir, entry, index)?);
            }
        }
        let new = match at {
            Some((dir, entry)) => dir.facts(&entry.name, meta)?,
            None => meta.facts(),
        };
        let old = self.manifest.facts(index);
        found
            .changes
            .extend(Change::between(path.clone(), old, new, fields));
        Ok(())
    }

    fn compare_content(
        &self,
        path: &ResourcePath,
        dir: &Dir,
        entry: &DirEntry,
        index: RecordIndex,
    ) -> Result<Option<ChangedField>> {
        let record = self.manifest.record(index);
        match record.kind {
            EntryKind::Symlink => {
                let same = dir.read_link(&entry.name)? == self.manifest.target(index);
                Ok((!same).then_some(ChangedField::Target))
            }
            EntryKind::File if record.size != entry.meta.size => Ok(Some(ChangedField::Content)),
            EntryKind::File if record.size > 0 => {
                // A file of several names is touched when one of them is; if its original is another
                // one by now, its own time is all there is to go by.
                let named = record.link != 0
                    && (record.copy_ino, record.mtime) == (entry.meta.ino, entry.meta.mtime);
                let same = match self.original_of(path)? {
                    None if named => true,
                    Some((_, meta)) if named && !record.is_current(&meta) => true,
                    Some((original, meta)) if meta.is_file() && meta.size == entry.meta.size => {
                        let (_, name) = path.split().expect("the root is no file");
                        tree::same_content((dir, &entry.name), (&original, name))?
                    }
                    _ => false,
                };
                Ok((!same).then_some(ChangedField::Content))
            }
            _ => Ok(None),
        }
    }

    /// The entry of the original at `path`, with the directory it lies in.
    pub(in crate::strategy) fn original_of(
        &self,
        path: &ResourcePath,
    ) -> Result<Option<(Dir, Meta)>> {
        tree::entry_at(self.original, path)
    }

    /// Whether what is no directory is still in the original as it was copied. What a link points to is
    /// compared; of a file that was touched, the contents cannot be.
    pub(in crate::strategy) fn still(
        &self,
        path: &ResourcePath,
        index: RecordIndex,
    ) -> Result<OriginalState> {
        let record = self.manifest.record(index);
        let Some((dir, meta)) = self.original_of(path)? else {
            return Ok(OriginalState::No);
        };
        if record.is_current(&meta) {
            return Ok(OriginalState::Itself);
        }
        let Some((_, name)) = path.split().filter(|_| record.looks_current(&meta)) else {
            return Ok(OriginalState::No);
        };
        let attributes = tree::xattrs_if_open(&dir, name)?;
        if attributes.is_none_or(|attributes| record.xattrs != xattr::digest(&attributes)) {
            return Ok(OriginalState::No);
        }
        Ok(match record.kind {
            EntryKind::Symlink if dir.read_link(name)? != self.manifest.target(index) => {
                OriginalState::No
            }
            EntryKind::File if record.size > 0 => OriginalState::Alike,
            // Nothing else of it could have changed.
            _ => OriginalState::Itself,
        })
    }
}

/// A copy as the measure of its original: whatever is not what was copied has changed since.
pub(in crate::strategy) struct CopyBase<'a> {
    pub(in crate::strategy) area: &'a Dir,
    pub(in crate::strategy) copied: &'a CopiedTree<'a>,
    pub(in crate::strategy) moved: &'a MovedEntries,
}

impl CopyBase<'_> {
    fn is_same(&self, index: RecordIndex, at: Option<(&Dir, &[u8])>, now: &Meta) -> Result<bool> {
        let record = self.copied.manifest.record(index);
        // A directory that an undo made again is another one, with the same in it.
        if record.kind != now.kind || (record.ino != now.ino && !now.is_dir()) {
            return Ok(false);
        }
        // With whole seconds, a change in the second of the copy would not show.
        let racy = record.ctime.nsec == 0 && record.copy_ctime.sec <= record.ctime.sec + 1;
        if self.moved.leads(now.ino, now.ctime, record.ctime) && !racy {
            return Ok(true);
        }
        if !now.is_dir() {
            return Ok(false);
        }
        // The ctime of a directory moves with every name in it; its own looks are what counts.
        let attributes = match at {
            Some((dir, name)) => tree::xattrs_if_open(dir, name)?,
            None => xattr::read(&EntryHandle::of(self.copied.original)).ok(),
        };
        let same = |attributes| record.xattrs == xattr::digest(&attributes);
        Ok(
            (record.mode, record.uid, record.gid) == (now.mode, now.uid, now.gid)
                && attributes.is_none_or(same),
        )
    }
}

impl OriginalBase for CopyBase<'_> {
    fn releases(&self) -> Option<Releases<'_>> {
        Some(Releases {
            released: self.copied.released,
            original: self.copied.original,
            moved: self.moved,
        })
    }

    fn is_as_made(&self, path: &ResourcePath, at: Option<EntryAt<'_>>, now: &Meta) -> Result<bool> {
        match self.copied.manifest.find(path) {
            Some(index) => self.is_same(index, at, now),
            None => Ok(false),
        }
    }

    fn is_still_as_made(&self, path: &ResourcePath, now: &Meta) -> bool {
        let index = self.copied.manifest.find(path);
        index.is_some_and(|index| self.copied.manifest.record(index).mtime == now.mtime)
    }

    fn base_text(&self, path: &ResourcePath) -> BaseText<'_> {
        let manifest = self.copied.manifest;
        let record = manifest.find(path).map(|index| manifest.record(index));
        record.map_or(BaseText::Unknown, |record| {
            let (ino, ctime) = (record.ino, record.ctime);
            let version = format!("{ino} {}.{}", ctime.sec, ctime.nsec);
            BaseText::Kept(self.area, version.into_bytes())
        })
    }

    fn everything_moved(&self, carved: &[ResourcePath]) -> Result<Vec<Conflict>> {
        let found = Shared::new(Vec::new());
        let tell = |path: ResourcePath, theirs: Option<EntryInfo>, what: &str| {
            found.lock().push(Conflict::with(path, what, theirs));
        };
        let gone = |path: ResourcePath| {
            if !self.copied.released.has(&path) {
                tell(path, None, "deleted there since");
            }
        };
        let there = |path: &ResourcePath, at: Option<(&Dir, &[u8])>, now: &Meta| -> Result<bool> {
            let current = self.is_current(path, at, now)?;
            if !current {
                let what = match self.copied.manifest.find(path) {
                    Some(_) => "changed there since",
                    None => "added there since",
                };
                tell(path.clone(), Some(now.facts()), what);
            }
            Ok(current)
        };
        let manifest = self.copied.manifest;
        match self.copied.only {
            Some(only) => match (self.copied.original_of(only)?, only.split()) {
                (Some((dir, now)), Some((_, name))) => {
                    there(only, Some((&dir, name)), &now)?;
                }
                _ if self.copied.manifest.find(only).is_some() => gone(only.clone()),
                _ => {}
            },
            None => {
                there(&ResourcePath::root(), None, &self.copied.original.meta()?)?;
                walk(self.copied.original, Some(Manifest::ROOT), |visit| {
                    let mut next = Vec::new();
                    let recorded = visit.state.map_or(0..0, |index| manifest.children(index));
                    let mut recorded = recorded.peekable();
                    for DirEntry { name, meta } in visit.entries {
                        while let Some(index) =
                            recorded.next_if(|index| manifest.name(*index) < &*name)
                        {
                            gone(visit.path.join(manifest.name(index)));
                        }
                        let path = visit.path.join(&name);
                        let index = recorded.next_if(|index| manifest.name(*index) == &*name);
                        if carved.contains(&path) || crate::fs::state_dir::is_area_beside(&name) {
                            continue;
                        }
                        let current = there(&path, Some((visit.dir, &*name)), &meta)?;
                        let index = index.filter(|index| manifest.record(*index).is_dir());
                        let known = index.is_some() || self.copied.released.has(&path);
                        if current && meta.is_dir() && known {
                            next.push((name, index));
                        }
                    }
                    recorded.for_each(|index| gone(visit.path.join(manifest.name(index))));
                    Ok::<_, crate::strategy::StrategyError>(next)
                })?;
            }
        }
        Ok(found.into_inner())
    }
}
