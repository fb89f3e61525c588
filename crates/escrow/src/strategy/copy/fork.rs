//! Forks a copy sandbox: a new copy that begins at a snapshot of another copy.
//!
//! It has the tree as it was then, and the first one's record of the original, so that whatever another process
//! changed there since is found as it is found for the first. The two share nothing that either can change.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::event::Observer;
use crate::fs::content::{Reflinks, Transfer};
use crate::fs::copy::{CopiedLeaf, CopyLoss, CopyReport, ExpectedWriters, copy_leaf, settle};
use crate::fs::manifest::{Manifest, ManifestRecord, RecordIndex};
use crate::fs::walk::{NextDirs, descend};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta, Stamp, remove};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::copy::checkpoints::{FROM_THE_ORIGINAL, OpenSnapshot, SnapshotEntry, is_kept};
use crate::strategy::copy::diff::{CopiedTree, OriginalState, remark};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree;
use crate::strategy::unreadable;

/// Copies the tree as it was at a snapshot into the empty directory `to`.
pub(in crate::strategy) fn fork(
    copied: &CopiedTree<'_>,
    area: &Dir,
    snapshot: &OpenSnapshot,
    to: &Dir,
    observer: &dyn Observer,
) -> Result<(Manifest, CopyReport)> {
    let mut below: HashMap<ResourcePath, Vec<&SnapshotEntry>> = HashMap::new();
    for entry in &snapshot.kept.entries {
        if let Some((parent, _)) = entry.path.split() {
            below.entry(parent).or_default().push(entry);
        }
    }
    let gone = snapshot.kept.changes.iter();
    let gone = gone.filter(|change| change.new.is_none());
    let fork = CopyFork {
        copied,
        area,
        snapshot,
        to,
        observer,
        below,
        gone: gone.map(|change| &change.path).collect(),
        reflinks: Reflinks::wanted(),
        same: Mutex::default(),
        made: Mutex::default(),
        linked: Mutex::default(),
        directories: Mutex::default(),
        losses: Mutex::default(),
        alike: Mutex::default(),
        entries: AtomicU64::new(0),
        shared: AtomicU64::new(0),
        copies: AtomicU64::new(0),
    };
    descend(Some(Manifest::ROOT), |path, index| {
        fork.directory(path, index)
    })?;
    fork.finish()
}

/// How it went, in a few words.
pub(in crate::strategy) fn message(report: &CopyReport) -> String {
    let entries = match report.entries {
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    };
    let shared = match report.shared {
        0 => String::new(),
        1 => ", 1 file shares its contents with it".to_owned(),
        files => format!(", {files} files share their contents with it"),
    };
    format!("a copy of the sandbox of another plan: {entries}{shared}")
}

/// Where the first name of an inode is, once it is there.
type FirstName = Arc<Mutex<Option<ResourcePath>>>;

struct CopyFork<'a> {
    copied: &'a CopiedTree<'a>,
    area: &'a Dir,
    snapshot: &'a OpenSnapshot,
    to: &'a Dir,
    observer: &'a dyn Observer,
    /// What was kept, by the directory it lies in.
    below: HashMap<ResourcePath, Vec<&'a SnapshotEntry>>,
    gone: HashSet<&'a ResourcePath>,
    reflinks: Reflinks,
    /// Files of several names, by what they were in the sandbox.
    same: Mutex<HashMap<u64, FirstName>>,
    /// What each record's copy became.
    made: Mutex<Vec<(RecordIndex, ForkedRecord)>>,
    /// Copies that got further names since, which moved their ctimes.
    linked: Mutex<Vec<(RecordIndex, ResourcePath)>>,
    directories: Mutex<Vec<(ResourcePath, Option<RecordIndex>)>>,
    losses: Mutex<Vec<CopyLoss>>,
    /// What the original had, touched by another process.
    alike: Mutex<Vec<ResourcePath>>,
    entries: AtomicU64,
    shared: AtomicU64,
    copies: AtomicU64,
}

/// What the copy of a record became.
enum ForkedRecord {
    /// Exactly what was copied from the original.
    Copy(Meta),
    /// What another process made of that copy.
    Touched(u64),
    /// Something else that stands there.
    Other,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The directory at `path`; `None` where there is none any more.
fn there(root: &Dir, path: &ResourcePath) -> Result<Option<Dir>> {
    match root.dir(path) {
        Err(error) if error.is_absent() || error.leaves() => Ok(None),
        dir => Ok(Some(dir?)),
    }
}

fn lost(path: &ResourcePath) -> StrategyError {
    StrategyError::Lost {
        path: path.clone(),
        what: FROM_THE_ORIGINAL,
    }
}

impl CopyFork<'_> {
    /// Makes everything in a directory; what it is itself comes last.
    fn directory(
        &self,
        path: &ResourcePath,
        index: Option<RecordIndex>,
    ) -> Result<NextDirs<Option<RecordIndex>>> {
        let to = self.to.dir(path)?;
        let now = there(self.copied.tree, path)?;
        let manifest = self.copied.manifest;
        let mut next = Vec::new();
        for child in index.map_or(0..0, |index| manifest.children(index)) {
            let name = manifest.name(child);
            let path = path.join(name);
            if self.gone.contains(&path) || self.snapshot.entry(&path).is_some() {
                continue;
            }
            let record = manifest.record(child);
            if record.kind == EntryKind::Directory {
                to.make_dir(name, 0o700)?;
                next.push((name.into(), Some(child)));
            } else if !record.is_left_out() {
                self.as_copied(&path, child, now.as_ref(), (&to, name))?;
            }
        }
        for entry in self.below.get(path).into_iter().flatten() {
            let (_, name) = entry.path.split().expect("the root lies in nothing");
            let index = self.copied.find(&entry.path);
            if entry.kind == EntryKind::Directory {
                to.make_dir(name, 0o700)?;
                next.push((name.into(), index));
            } else if is_kept(entry.kind) {
                self.kept(entry, index, (&to, name))?;
            } else {
                lock(&self.losses).push(CopyLoss {
                    path: entry.path.clone(),
                    what: format!("a {} is not copied", entry.kind.word()),
                });
            }
        }
        lock(&self.directories).push((path.clone(), index));
        Ok(next)
    }

    /// Something that no process had touched: from the sandbox where that is still so, else from the original.
    fn as_copied(
        &self,
        path: &ResourcePath,
        index: RecordIndex,
        now: Option<&Dir>,
        to: (&Dir, &[u8]),
    ) -> Result<()> {
        let record = self.copied.manifest.record(index);
        let several = record.link != 0;
        let linked = self.once(record.copy_ino, several, path, to, || {
            let leaf = match now {
                Some(now) => self.try_copy(record, now, to, ManifestRecord::is_untouched)?,
                None => None,
            };
            let leaf = match leaf {
                Some(leaf) => Some(leaf),
                None => self.as_original(path, index, to)?,
            };
            Ok(leaf.ok_or_else(|| lost(path))?.copy)
        })?;
        match linked {
            Some(copy) if !several => lock(&self.made).push((index, ForkedRecord::Copy(copy))),
            _ => lock(&self.linked).push((index, path.clone())),
        }
        Ok(())
    }

    /// Copies what the original has, if that is still what the record describes.
    fn as_original(
        &self,
        path: &ResourcePath,
        index: RecordIndex,
        to: (&Dir, &[u8]),
    ) -> Result<Option<CopiedLeaf>> {
        let is = match self.copied.still(path, index)? {
            OriginalState::No => return Ok(None),
            OriginalState::Itself | OriginalState::Alike => ManifestRecord::looks_current,
        };
        let (dir, _) = self.copied.original.parent(path)?;
        let record = self.copied.manifest.record(index);
        let leaf = self.try_copy(record, &dir, to, is)?;
        if let Some(leaf) = leaf
            .as_ref()
            .filter(|leaf| !record.is_current(&leaf.original))
            && leaf.original.is_file()
            && leaf.original.size > 0
        {
            lock(&self.alike).push(path.clone());
        }
        Ok(leaf)
    }

    /// Copies what stands in `from` under the same name, if it `is` what the record describes, before and after.
    fn try_copy(
        &self,
        record: &ManifestRecord,
        from: &Dir,
        (to, name): (&Dir, &[u8]),
        is: fn(&ManifestRecord, &Meta) -> bool,
    ) -> Result<Option<CopiedLeaf>> {
        if !from.stat(name)?.is_some_and(|meta| is(record, &meta)) {
            return Ok(None);
        }
        let leaf = copy_leaf(
            (from, name),
            (to, name),
            record.kind,
            &self.reflinks,
            ExpectedWriters::Live,
        );
        match leaf {
            Ok(leaf)
                if is(record, &leaf.original)
                    && xattr::digest(&leaf.attributes) == record.xattrs =>
            {
                self.count(&leaf);
                Ok(Some(leaf))
            }
            // Another process was at it just now.
            Ok(_) => Ok(remove::remove(to, name).map(|()| None)?),
            Err(error) if error.is_absent() => Ok(remove::remove(to, name).map(|()| None)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Something that was kept because another process had touched it.
    fn kept(
        &self,
        entry: &SnapshotEntry,
        index: Option<RecordIndex>,
        to: (&Dir, &[u8]),
    ) -> Result<()> {
        let path = &entry.path;
        let made = self.once(entry.ino, true, path, to, || {
            let (from, name) = self.snapshot.tree.parent(path)?;
            let (reflinks, care) = (&self.reflinks, ExpectedWriters::Quiet);
            let meta = from.stat(name)?.ok_or_else(|| {
                from.error("find what was kept of", name, Cause::Os(Errno::NOENT))
            })?;
            let leaf = unreadable::copy(self.area, (&from, name), to, &meta, reflinks, care)?;
            tree::refuse_lost(to.0, to.1, &leaf.lost)?;
            self.count(&leaf);
            Ok(leaf.copy)
        })?;
        if let Some(index) = index {
            let copy = match made {
                Some(copy) => Some(copy),
                None => to.0.stat(to.1)?,
            };
            let same = self.copied.manifest.record(index).copy_ino == entry.ino;
            let became = match copy.filter(|_| same) {
                Some(copy) => ForkedRecord::Touched(copy.ino),
                None => ForkedRecord::Other,
            };
            lock(&self.made).push((index, became));
        }
        Ok(())
    }

    /// Makes one entry, or another name for it if it is one that was made before; `None` then.
    fn once(
        &self,
        ino: u64,
        several: bool,
        path: &ResourcePath,
        (to, name): (&Dir, &[u8]),
        make: impl FnOnce() -> Result<Meta>,
    ) -> Result<Option<Meta>> {
        if self.observer.is_cancelled() {
            return Err(to.error("copy", name, Cause::Cancelled).into());
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        if !several {
            return make().map(Some);
        }
        let first = Arc::clone(lock(&self.same).entry(ino).or_default());
        let mut first = lock(&first);
        if let Some(first) = &*first {
            to.hard_link(name, self.to, first)?;
            return Ok(None);
        }
        let made = make()?;
        *first = Some(path.clone());
        Ok(Some(made))
    }

    fn count(&self, leaf: &CopiedLeaf) {
        match leaf.transfer {
            Transfer::Shared => self.shared.fetch_add(1, Ordering::Relaxed),
            Transfer::Copied => self.copies.fetch_add(1, Ordering::Relaxed),
            Transfer::Nothing => 0,
        };
        self.observer.copied(1, leaf.original.size);
    }

    /// Directories get their looks, deepest first; then every copy is as it stays, and is recorded.
    fn finish(self) -> Result<(Manifest, CopyReport)> {
        let mut directories = std::mem::take(&mut *lock(&self.directories));
        directories.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
        for (path, index) in &directories {
            let became = self.apply_metadata(path, *index)?;
            if let (Some(index), Some(became)) = (*index, became) {
                lock(&self.made).push((index, became));
            }
        }
        for (index, path) in lock(&self.linked).iter() {
            let copy = self.to.stat_path(path)?.ok_or_else(|| {
                let cause = Cause::Os(Errno::NOENT);
                self.to.error("find the copy of", path.as_bytes(), cause)
            })?;
            lock(&self.made).push((*index, ForkedRecord::Copy(copy)));
        }
        let mut manifest = self.copied.manifest.clone();
        let mut newest = Stamp::default();
        for (index, became) in take(self.made) {
            if let ForkedRecord::Copy(copy) = &became {
                newest = newest.max(copy.ctime);
            }
            manifest.update(index, |record| note(record, &became));
        }
        manifest.ctime_decides = settle(newest);
        if let Some(remark) = remark(take(self.alike)) {
            self.observer.notice(remark);
        }
        let mut losses = take(self.losses);
        losses.sort_unstable();
        let report = CopyReport {
            entries: self.entries.into_inner() + directories.len() as u64 - 1,
            shared: self.shared.into_inner(),
            copied: self.copies.into_inner(),
            disowned: 0,
            losses,
        };
        Ok((manifest, report))
    }

    /// Makes a directory look as it did. What belongs to others has no looks.
    fn apply_metadata(
        &self,
        path: &ResourcePath,
        index: Option<RecordIndex>,
    ) -> Result<Option<ForkedRecord>> {
        let manifest = self.copied.manifest;
        let record = index.map(|index| manifest.record(index));
        let to = self.to.dir(path)?;
        let (looks, attributes) = match (self.snapshot.entry(path), record) {
            (Some(entry), _) => {
                let kept = self.snapshot.tree.dir(path)?;
                let mode = entry.mode;
                let looks = Meta {
                    mode,
                    ..kept.meta()?
                };
                (looks, tree::xattrs_of(&kept)?)
            }
            (None, Some(record)) if record.is_dir() => {
                let looks = Meta {
                    mode: record.mode,
                    uid: record.copy_owner.0,
                    gid: record.copy_owner.1,
                    mtime: record.mtime,
                    atime: record.mtime,
                    ..to.meta()?
                };
                (looks, self.first_attributes(path, record)?)
            }
            (None, _) => return Ok(None),
        };
        let lost = EntryHandle::of(&to).apply_metadata(&looks, &attributes);
        let lost = lost.map_err(|errno| to.error("set the metadata of", b"", Cause::Os(errno)))?;
        tree::refuse_lost(&to, b"", &lost)?;
        let copy = to.meta()?;
        Ok(Some(match (self.snapshot.entry(path), record) {
            (None, _) => ForkedRecord::Copy(copy),
            (Some(entry), Some(record)) if record.copy_ino == entry.ino => {
                ForkedRecord::Touched(copy.ino)
            }
            (Some(_), _) => ForkedRecord::Other,
        }))
    }

    /// The attributes that a directory was copied with, from wherever it still has them.
    fn first_attributes(&self, path: &ResourcePath, record: &ManifestRecord) -> Result<Xattrs> {
        for root in [self.copied.tree, self.copied.original] {
            let Some(dir) = there(root, path)? else {
                continue;
            };
            let attributes = tree::xattrs_of(&dir)?;
            if xattr::digest(&attributes) == record.xattrs {
                return Ok(attributes);
            }
        }
        Err(lost(path))
    }
}

/// Writes down what a copy became. What was touched must not pass for what was copied: its number is
/// known, its ctime stays that of the first copy.
fn note(record: &mut ManifestRecord, became: &ForkedRecord) {
    match became {
        ForkedRecord::Copy(copy) => {
            let first = record.copy_ctime;
            record.copied(copy);
            // With whole seconds it counts when the original was looked at.
            if record.ctime.nsec == 0 {
                record.copy_ctime = first;
            }
        }
        ForkedRecord::Touched(ino) => record.copy_ino = *ino,
        ForkedRecord::Other => record.copy_ino = 0,
    }
}
