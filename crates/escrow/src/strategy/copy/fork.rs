//! Forks a copy sandbox: a new copy that begins at a snapshot of another copy.
//!
//! It has the tree as it was then, and the first one's record of the original, so that whatever another process
//! changed there since is found as it is found for the first. The two share nothing that either can change.

use std::collections::{HashMap, HashSet};

use crate::event::Observer;
use crate::fs::copy::settle;
use crate::fs::manifest::{Manifest, ManifestRecord, RecordIndex};
use crate::fs::place::{CopiedLeaf, CopyOptions, CopyReport, DirAndName, DirLook, Placer};
use crate::fs::walk::{NextDirs, Shared, descend};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Dir, Meta, Stamp, remove};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::copy::checkpoints::{FROM_THE_ORIGINAL, OpenSnapshot, SnapshotEntry, is_kept};
use crate::strategy::copy::diff::{CopiedTree, OriginalState, remark};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree;

/// Copies the tree as it was at a snapshot into the empty directory `to`.
pub(in crate::strategy) fn fork(
    copied: &CopiedTree<'_>,
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
        snapshot,
        to,
        below,
        gone: gone.map(|change| &change.path).collect(),
        placer: Placer::new(to, observer),
        made: Shared::new((copied.manifest.clone(), Stamp::default())),
        alike: Shared::default(),
    };
    descend(Some(Manifest::ROOT), |path, index| {
        fork.directory(path, index)
    })?;
    let (made, alike) = (fork.made, fork.alike);
    let report = fork
        .placer
        .finish_with(|path, copy, _| note(copied, snapshot, &made, path, copy))?;
    let (mut manifest, newest) = made.into_inner();
    manifest.ctime_decides = settle(newest);
    if let Some(remark) = remark(alike.into_inner()) {
        observer.notice(remark);
    }
    Ok((manifest, report))
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

struct CopyFork<'a> {
    copied: &'a CopiedTree<'a>,
    snapshot: &'a OpenSnapshot,
    to: &'a Dir,
    /// What was kept, by the directory it lies in.
    below: HashMap<ResourcePath, Vec<&'a SnapshotEntry>>,
    gone: HashSet<&'a ResourcePath>,
    /// Files of several names are known by what they were in the sandbox.
    placer: Placer<'a>,
    made: Shared<ForkedManifest>,
    /// What the original had, touched by another process.
    alike: Shared<Vec<ResourcePath>>,
}

/// The first one's records with what their copies became, and the latest time of such a copy.
type ForkedManifest = (Manifest, Stamp);

/// Writes down what a copy became: what was copied from the original, or what another process made of that copy, or
/// something else that stands there. What was touched must not pass for what was copied: its number is known, its ctime
/// stays that of the first copy.
fn note(
    copied: &CopiedTree<'_>,
    snapshot: &OpenSnapshot,
    made: &Shared<ForkedManifest>,
    path: &ResourcePath,
    copy: &Meta,
) {
    let Some(index) = copied.manifest.find(path) else {
        return;
    };
    let (manifest, newest) = &mut *made.lock();
    let first = copied.manifest.record(index);
    manifest.update(index, |record| match snapshot.entry(path) {
        None => {
            *newest = (*newest).max(copy.ctime);
            record.copied(copy);
            // With whole seconds it counts when the original was looked at.
            if record.ctime.nsec == 0 {
                record.copy_ctime = first.copy_ctime;
            }
        }
        Some(entry) if first.copy_ino == entry.ino => record.copy_ino = copy.ino,
        Some(_) => record.copy_ino = 0,
    });
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
        what: FROM_THE_ORIGINAL.to_owned(),
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
            let index = manifest.find(&entry.path);
            if entry.kind == EntryKind::Directory {
                to.make_dir(name, 0o700)?;
                next.push((name.into(), index));
            } else if is_kept(entry.kind) {
                self.kept(entry, (&to, name))?;
            } else {
                let what = format!("a {} is not copied", entry.kind.word());
                self.placer.lost(entry.path.clone(), what);
            }
        }
        if let Some(look) = self.look(path, index, &to)? {
            self.placer.dir(path.clone(), look);
        }
        Ok(next)
    }

    /// Something that no process had touched: from the sandbox where that is still so, else from the original.
    fn as_copied(
        &self,
        path: &ResourcePath,
        index: RecordIndex,
        now: Option<&Dir>,
        to: DirAndName<'_>,
    ) -> Result<()> {
        let record = self.copied.manifest.record(index);
        let key = (record.link != 0).then_some((0, record.copy_ino));
        self.placer.entry(key, path, to, || -> Result<_> {
            let leaf = match now {
                Some(now) => self.try_copy(record, now, to, ManifestRecord::is_untouched)?,
                None => None,
            };
            let leaf = match leaf {
                Some(leaf) => leaf,
                None => self
                    .as_original(path, index, to)?
                    .ok_or_else(|| lost(path))?,
            };
            if key.is_none() {
                note(self.copied, self.snapshot, &self.made, path, &leaf.copy);
            }
            Ok(((), true))
        })?;
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
            self.alike.lock().push(path.clone());
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
        // What the first copy could not keep, this one need not keep either.
        let options = CopyOptions {
            lossy: true,
            ..CopyOptions::LIVE
        };
        let at = (to, name);
        let leaf = self.placer.copy((from, name), at, record.kind, options);
        match leaf {
            Ok(leaf)
                if is(record, &leaf.original)
                    && xattr::digest(&leaf.attributes) == record.xattrs =>
            {
                Ok(Some(leaf))
            }
            // Another process was at it just now.
            Ok(_) => Ok(remove::remove(to, name).map(|()| None)?),
            Err(error) if error.is_absent() => Ok(remove::remove(to, name).map(|()| None)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Something that was kept because another process had touched it.
    fn kept(&self, entry: &SnapshotEntry, to: DirAndName<'_>) -> Result<()> {
        let (path, key) = (&entry.path, Some((0, entry.ino)));
        self.placer.entry(key, path, to, || -> Result<_> {
            let (from, name) = self.snapshot.tree.parent(path)?;
            let meta = from.stat(name)?;
            let meta = meta.ok_or_else(|| from.absent("find what was kept of", name))?;
            let (from, options) = ((&from, name), CopyOptions::QUIET);
            self.placer.copy(from, to, meta.kind, options)?;
            Ok(((), true))
        })?;
        Ok(())
    }

    /// How a directory looked. What belongs to others has no looks.
    fn look(
        &self,
        path: &ResourcePath,
        index: Option<RecordIndex>,
        to: &Dir,
    ) -> Result<Option<DirLook>> {
        if let Some(entry) = self.snapshot.entry(path) {
            let mut look = DirLook::of(&self.snapshot.tree.dir(path)?)?;
            look.meta.mode = entry.mode;
            return Ok(Some(look));
        }
        let record = index.map(|index| self.copied.manifest.record(index));
        let Some(record) = record.filter(|record| record.is_dir()) else {
            return Ok(None);
        };
        let meta = Meta {
            mode: record.mode,
            uid: record.copy_owner.0,
            gid: record.copy_owner.1,
            mtime: record.mtime,
            atime: record.mtime,
            ..to.meta()?
        };
        Ok(Some(DirLook::new(
            meta,
            self.first_attributes(path, record)?,
        )))
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
