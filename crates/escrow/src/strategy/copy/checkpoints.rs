//! Copy checkpoints: store each version that is not as it was copied, once.
//!
//! ```text
//! <area>/
//!   moments/0, 1, …
//!     tree/          the versions: what was touched since the copy was made, and nothing else
//!     moment         what they are, and in what the sandbox differed from the original
//! ```
//!
//! A version that was kept before and has not been touched since is another name for that. Going back is a
//! commit into the sandbox's own tree, so it is all or nothing and can be taken back. What was as copied at
//! the snapshot and is not any more comes from the original; if another process changed it there, the return is
//! refused, with nothing done.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::event::Observer;
use crate::failpoints;
use crate::fs::atomic_file;
use crate::fs::copy::{clock, settle};
use crate::fs::manifest::{Manifest, RecordIndex};
use crate::fs::place::{CopyOptions, DirAndName, DirLook, Placer};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Dir, Fingerprint, Meta, Stamp, remove};
use crate::model::{Change, ChangedField, DiffView, EntryInfo, EntryKind, ResourcePath};
use crate::strategy::copy::diff::{CopiedTree, CopyScan, OriginalState, remark};
use crate::strategy::copy::set_aside;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::snapshot_diff;
use crate::strategy::tree::{self, Original, STAGE};
use crate::strategy::tree_commit::{
    self, EntryAt, OriginalBase, Releases, StageRequest, StageSource, TreePreview, VersionSource,
};
use crate::strategy::{Intent, OnConflict, Preview, RestoreRequest, Snapshot};

pub(super) const SNAPSHOTS: &[u8] = b"moments";
pub(super) const NEW: &[u8] = b"new";
const TREE: &[u8] = b"tree";
pub(super) const SNAPSHOT: &[u8] = b"moment";

/// What is stored of a snapshot by the caller.
#[derive(Serialize, Deserialize)]
struct SnapshotNumber {
    number: u32,
}

/// What was at a snapshot.
#[derive(Serialize, Deserialize)]
pub(in crate::strategy) struct StoredSnapshot {
    pub(in crate::strategy) changes: Vec<Change>,
    pub(in crate::strategy) entries: Vec<SnapshotEntry>,
    /// Whether any later change shows in a ctime.
    ctime_decides: bool,
    /// The copy that it is a snapshot of; one that was made anew since is another.
    pub(super) copy: Fingerprint,
}

/// One entry that was not as it was copied.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::strategy) struct SnapshotEntry {
    pub(in crate::strategy) path: ResourcePath,
    pub(in crate::strategy) kind: EntryKind,
    pub(in crate::strategy) mode: u16,
    /// What it was in the sandbox.
    pub(in crate::strategy) ino: u64,
    ctime: Stamp,
}

impl SnapshotEntry {
    fn is(&self, now: &Meta) -> bool {
        (self.ino, self.ctime, self.kind) == (now.ino, now.ctime, now.kind)
    }
}

/// Sockets and devices are neither kept nor brought back.
pub(in crate::strategy) fn is_kept(kind: EntryKind) -> bool {
    !matches!(kind, EntryKind::Socket | EntryKind::Device)
}

/// A snapshot, opened.
pub(in crate::strategy) struct OpenSnapshot {
    pub(in crate::strategy) tree: Dir,
    pub(in crate::strategy) kept: StoredSnapshot,
    numbers: HashMap<ResourcePath, usize>,
}

impl OpenSnapshot {
    pub(in crate::strategy) fn entry(&self, path: &ResourcePath) -> Option<&SnapshotEntry> {
        self.numbers
            .get(path)
            .map(|number| &self.kept.entries[*number])
    }
}

pub(super) fn number_of(snapshot: &Snapshot) -> Result<Vec<u8>> {
    let SnapshotNumber { number } = tree::parse(&snapshot.0, "the snapshot")?;
    Ok(number.to_string().into_bytes())
}

pub(in crate::strategy) fn open(
    copied: &CopiedTree<'_>,
    area: &Dir,
    snapshot: &Snapshot,
) -> Result<OpenSnapshot> {
    let (dir, kept) = set_aside::stored(area, &number_of(snapshot)?)?;
    if !kept.copy.is(&copied.tree.meta()?) {
        return Err(set_aside::lost());
    }
    let numbered = kept.entries.iter().enumerate();
    let numbers = numbered.map(|(number, entry)| (entry.path.clone(), number));
    Ok(OpenSnapshot {
        tree: dir.subdir(TREE)?,
        numbers: numbers.collect(),
        kept,
    })
}

/// The directory at `path`, made with all above it.
fn make_dirs(root: &Dir, path: &ResourcePath) -> Result<Dir> {
    // Mostly it is there, or what holds it: a tree that is thousands deep is not walked from its top for each directory.
    let (mut at, missing) = match path.split() {
        None => return Ok(root.again()),
        Some((parent, name)) => match root.dir(&parent) {
            Ok(parent) => (parent, vec![name]),
            Err(error) if error.is_absent() => (root.again(), path.parts().collect()),
            Err(error) => return Err(error.into()),
        },
    };
    for part in missing {
        match at.make_dir(part, 0o700) {
            Ok(()) => {}
            Err(error) if error.is(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = at.subdir(part)?;
    }
    Ok(at)
}

/// Keeps the tree as it is.
pub(in crate::strategy) fn checkpoint(
    copied: &CopiedTree<'_>,
    area: &Dir,
    last: Option<&Snapshot>,
    observer: &dyn Observer,
) -> Result<Snapshot> {
    let last = match last
        .map(|snapshot| open(copied, area, snapshot))
        .transpose()
    {
        // Nothing of another copy can be used again.
        Err(StrategyError::Lost { .. }) => None,
        last => last?,
    };
    let CopyScan {
        changes, touched, ..
    } = tree::steady(|| copied.look())?;
    if area.stat(SNAPSHOTS)?.is_none() {
        area.make_dir(SNAPSHOTS, 0o700)?;
    }
    let room = area.subdir(SNAPSHOTS)?;
    remove::remove(&room, NEW)?;
    room.make_dir(NEW, 0o700)?;
    let new = room.subdir(NEW)?;
    new.make_dir(TREE, 0o700)?;
    let added = changes.iter().filter(|change| change.new.is_some());
    let mut paths: BTreeSet<ResourcePath> = added.map(|change| change.path.clone()).collect();
    paths.extend(touched.into_iter().map(|(path, _)| path));
    let store = new.subdir(TREE)?;
    let keeping = SnapshotWriter {
        tree: copied.tree,
        store: &store,
        last: last.as_ref(),
        placer: Placer::new(&store, observer),
    };
    let mut entries = Vec::new();
    for path in paths {
        entries.extend(keeping.keep(path)?);
    }
    keeping.placer.finish()?;
    let kept = StoredSnapshot {
        changes: DiffView::new(changes).changes,
        entries,
        ctime_decides: settle(clock()),
        copy: Fingerprint::from(&copied.tree.meta()?),
    };
    let text = serde_json::to_vec(&kept).expect("paths and numbers are JSON");
    atomic_file::create(&new, SNAPSHOT, &text)?;
    if !failpoints::bug("checkpoint-not-synced") {
        area.sync_file_system()?;
    }
    let number = numbers(&room)?
        .into_iter()
        .max()
        .map_or(0, |number| number + 1);
    room.rename(NEW, &room, number.to_string().as_bytes())?;
    room.sync()?;
    Ok(Snapshot(tree::stored(&SnapshotNumber { number })))
}

pub(super) fn numbers(room: &Dir) -> Result<Vec<u32>> {
    let number = |entry: &crate::fs::dir::DirEntry| {
        let name = std::str::from_utf8(&entry.name).ok()?;
        name.parse().ok()
    };
    Ok(room.entries()?.iter().filter_map(number).collect())
}

struct SnapshotWriter<'a> {
    tree: &'a Dir,
    store: &'a Dir,
    last: Option<&'a OpenSnapshot>,
    placer: Placer<'a>,
}

impl SnapshotWriter<'_> {
    fn keep(&self, path: ResourcePath) -> Result<Option<SnapshotEntry>> {
        let Some(meta) = tree_commit::stat(self.tree, &path)? else {
            return Ok(None);
        };
        let entry = SnapshotEntry {
            kind: meta.kind,
            mode: meta.mode,
            ino: meta.ino,
            ctime: meta.ctime,
            path,
        };
        if meta.is_dir() {
            make_dirs(self.store, &entry.path)?;
            // It stays open to us; its mode is written down.
            let mut look = DirLook::of(&self.tree.dir(&entry.path)?)?;
            look.meta.mode |= 0o700;
            self.placer.dir(entry.path.clone(), look);
        } else if let Some((parent, name)) = entry.path.split().filter(|_| is_kept(meta.kind)) {
            let to = make_dirs(self.store, &parent)?;
            let key = (meta.nlink > 1).then_some((0, meta.ino));
            let make = || self.version(&entry, &meta, (&to, name));
            self.placer.entry(key, &entry.path, (&to, name), make)?;
        }
        Ok(Some(entry))
    }

    /// Keeps one version: what was kept before and was not touched since under another name, else a copy.
    fn version(
        &self,
        entry: &SnapshotEntry,
        meta: &Meta,
        to: DirAndName<'_>,
    ) -> Result<((), bool)> {
        let path = &entry.path;
        let is_same = |last: &&OpenSnapshot| {
            let before = last.entry(path).filter(|before| before.is(meta));
            last.kept.ctime_decides && before.is_some()
        };
        match self.last.filter(is_same) {
            Some(last) => to.0.hard_link(to.1, &last.tree, path)?,
            None => {
                let (from, name) = self.tree.parent(path)?;
                let (from, options) = ((&from, name), CopyOptions::LIVE);
                self.placer.copy(from, to, meta.kind, options)?;
            }
        }
        Ok(((), true))
    }
}

/// The state to return to: what was kept, and what is as it was copied.
struct RestoreTarget<'a> {
    snapshot: &'a OpenSnapshot,
    copied: &'a CopiedTree<'a>,
    /// What the original has, touched by another process.
    alike: RefCell<Vec<ResourcePath>>,
}

/// Why a version is lost that was not kept.
pub(in crate::strategy) const FROM_THE_ORIGINAL: &str = "the sandbox had not changed it, so the original has that version, and another program changed it there since";

impl<'a> RestoreTarget<'a> {
    fn new(copied: &'a CopiedTree<'a>, snapshot: &'a OpenSnapshot) -> Self {
        Self {
            snapshot,
            copied,
            alike: RefCell::default(),
        }
    }

    /// The inode that stood at a path of the sandbox; `None` where nothing did.
    fn inode(&self, path: &ResourcePath) -> Option<u64> {
        if let Some(entry) = self.snapshot.entry(path) {
            return Some(entry.ino);
        }
        let index = self.copied.manifest.find(path)?;
        Some(self.copied.manifest.record(index).copy_ino).filter(|ino| *ino != 0)
    }

    /// Names in the sandbox's tree, none of them about to change, of files that the changes bring back under
    /// others. `stays` are those of the snapshot that were not touched since.
    fn other_names(
        &self,
        changes: &[Change],
        stays: Vec<ResourcePath>,
    ) -> Result<Vec<ResourcePath>> {
        let of = |change: &Change| change.path.clone();
        let changed: BTreeSet<ResourcePath> = changes.iter().map(of).collect();
        let comes = changes.iter().filter(|change| {
            let new = change.new.as_ref();
            new.is_some_and(|new| new.kind != EntryKind::Directory)
        });
        let comes: HashSet<u64> = comes
            .filter_map(|change| self.inode(&change.path))
            .collect();
        let mut names: Vec<ResourcePath> = stays;
        names.retain(|path| self.inode(path).is_some_and(|ino| comes.contains(&ino)));
        let (copied, manifest) = (self.copied, self.copied.manifest);
        let is_one = |index: RecordIndex| {
            let record = manifest.record(index);
            record.kind != EntryKind::Directory && comes.contains(&record.copy_ino)
        };
        let numbers = changed.iter().filter_map(|path| manifest.find(path));
        let known = numbers.filter(|index| is_one(*index)).count();
        let all = (0..manifest.len() as RecordIndex).filter(|index| is_one(*index));
        // Seldom is there any, and only then the paths of all of them are made.
        if all.count() > known {
            let root = ResourcePath::root();
            manifest.below(Manifest::ROOT, &root, &mut |index, path| {
                let kept = self.snapshot.entry(path).is_some() || changed.contains(path);
                if is_one(index) && !kept {
                    names.push(path.clone());
                }
            });
        }
        let mut there = Vec::new();
        for path in names {
            let now = tree_commit::stat(copied.tree, &path)?;
            if now.is_some_and(|now| Some(now.ino) == self.inode(&path)) {
                there.push(path);
            }
        }
        Ok(there)
    }

    fn holder(&self, path: &ResourcePath) -> &Dir {
        match self.snapshot.entry(path) {
            Some(_) => &self.snapshot.tree,
            None => self.copied.original,
        }
    }

    /// What stands at a path, if anything does. What must come from the original must be what was copied.
    fn facts(&self, path: &ResourcePath) -> Result<Option<EntryInfo>> {
        if let Some(entry) = self.snapshot.entry(path) {
            let meta = self.snapshot.tree.stat_path(path)?;
            let (dir, name) = match path.split() {
                Some((parent, name)) => (self.snapshot.tree.dir(&parent)?, name),
                None => return Ok(meta.map(|meta| meta.facts())),
            };
            let facts = meta.map(|meta| dir.facts(name, &meta)).transpose()?;
            return Ok(facts.map(|facts| EntryInfo {
                mode: entry.mode,
                ..facts
            }));
        }
        let deleted = |change: &Change| change.path == *path && change.new.is_none();
        let changes = &self.snapshot.kept.changes;
        let at = changes.binary_search_by(|change| change.path.cmp(path));
        if at.is_ok_and(|at| deleted(&changes[at])) {
            return Ok(None);
        }
        let manifest = self.copied.manifest;
        let Some(index) = self.copied.manifest.find(path) else {
            return Ok(None);
        };
        let record = manifest.record(index);
        if record.is_left_out() {
            return Ok(None);
        }
        let current = match (record.is_dir(), path.is_root()) {
            // A directory comes with its own looks; only its attributes are read there.
            (true, _) => match self.copied.original.dir(path) {
                Err(error) if error.is_absent() || error.leaves() => false,
                dir => xattr::digest(&dir?.xattrs()?) == record.xattrs,
            },
            (false, _) => {
                let still = self.copied.still(path, index)?;
                if still == OriginalState::Alike {
                    self.alike.borrow_mut().push(path.clone());
                }
                still != OriginalState::No
            }
        };
        match current {
            true => Ok(Some(manifest.facts(index))),
            false => Err(StrategyError::Lost {
                path: path.clone(),
                what: FROM_THE_ORIGINAL.to_owned(),
            }),
        }
    }
}

impl VersionSource for RestoreTarget<'_> {
    fn dir(&self, path: &ResourcePath) -> Result<Dir> {
        Ok(self.holder(path).dir(path)?)
    }

    fn parent<'p>(&self, path: &'p ResourcePath) -> Result<(Dir, &'p [u8])> {
        Ok(self.holder(path).parent(path)?)
    }

    /// Nothing is released: the sandbox becomes as it was.
    fn released(&self, attributes: Xattrs) -> Xattrs {
        attributes
    }

    fn meta(&self, path: &ResourcePath) -> Result<Option<Meta>> {
        if let Some(entry) = self.snapshot.entry(path) {
            let meta = self.snapshot.tree.stat_path(path)?;
            let looks = |meta| Meta {
                mode: entry.mode,
                ..meta
            };
            return Ok(meta.map(looks));
        }
        let index = self.copied.manifest.find(path);
        let index = index.filter(|index| self.copied.manifest.record(*index).is_dir());
        if index.is_none() {
            return VersionSource::meta(self.copied.original, path);
        }
        let now = match tree_commit::stat(self.copied.tree, path)? {
            Some(now) => Some(now),
            None => VersionSource::meta(self.copied.original, path)?,
        };
        let (Some(index), Some(now)) = (index, now) else {
            return Ok(now);
        };
        let record = self.copied.manifest.record(index);
        Ok(Some(Meta {
            kind: EntryKind::Directory,
            mode: record.mode,
            uid: record.copy_owner.0,
            gid: record.copy_owner.1,
            mtime: record.mtime,
            ..now
        }))
    }

    /// What it was in the sandbox: what is kept is another file, and so is the original's.
    fn file(&self, path: &ResourcePath, _: &Meta) -> Option<u64> {
        self.inode(path)
    }
}

/// The sandbox's own tree is no other process's: what is seen in it is what it is.
struct OwnTree;

impl OriginalBase for OwnTree {
    fn releases(&self) -> Option<Releases<'_>> {
        None
    }

    fn is_as_made(&self, _: &ResourcePath, _: Option<EntryAt<'_>>, _: &Meta) -> Result<bool> {
        Ok(true)
    }

    fn is_still_as_made(&self, _: &ResourcePath, _: &Meta) -> bool {
        true
    }
}

/// Every path at which a snapshot is not what was copied.
pub(super) fn differs(kept: &StoredSnapshot) -> impl Iterator<Item = ResourcePath> + '_ {
    let entries = kept.entries.iter().map(|entry| &entry.path);
    let gone = kept.changes.iter().filter(|change| change.new.is_none());
    entries.chain(gone.map(|change| &change.path)).cloned()
}

/// Stages the way back to a snapshot. Where the tree is was kept just now, so it is not walked again.
pub(in crate::strategy) fn prepare_restore(
    copied: &CopiedTree<'_>,
    area: &Dir,
    request: &RestoreRequest<'_>,
    to: &Path,
) -> Result<Intent> {
    let from = open(copied, area, request.from)?;
    let snapshot = open(copied, area, request.to)?;
    let paths = differs(&from.kept).chain(differs(&snapshot.kept)).collect();
    let intent = stage_restore(copied, area, &snapshot, paths, request.observer, to)?;
    // Called once, since a failed one is final.
    area.sync_file_system()?;
    Ok(intent)
}

/// As it was copied: a snapshot in which nothing was touched.
fn as_copied(copied: &CopiedTree<'_>) -> Result<OpenSnapshot> {
    Ok(OpenSnapshot {
        tree: copied.tree.again(),
        kept: StoredSnapshot {
            changes: Vec::new(),
            entries: Vec::new(),
            ctime_decides: false,
            copy: Fingerprint::from(&copied.tree.meta()?),
        },
        numbers: HashMap::new(),
    })
}

/// What was never copied cannot be brought back.
fn is_left_out(copied: &CopiedTree<'_>, path: &ResourcePath) -> bool {
    let index = copied.manifest.find(path);
    index.is_some_and(|index| copied.manifest.record(index).is_left_out())
}

/// Stages the way of some paths to what was copied.
pub(in crate::strategy) fn prepare_discard(
    copied: &CopiedTree<'_>,
    area: &Dir,
    (request, paths): (&RestoreRequest<'_>, &BTreeSet<ResourcePath>),
    to: &Path,
) -> Result<Intent> {
    if let Some(path) = paths.iter().find(|path| is_left_out(copied, path)) {
        return Err(StrategyError::Lost {
            path: path.clone(),
            what: "it was never copied".to_owned(),
        });
    }
    let first = as_copied(copied)?;
    let intent = stage_restore(copied, area, &first, paths.clone(), request.observer, to)?;
    area.sync_file_system()?;
    Ok(intent)
}

/// Gives the copy back what it was made with, at the cost of what was touched. Returns `false`, with nothing done, where
/// that cannot give the tree that was copied: another process changed the original of a touched path since.
pub(in crate::strategy) fn discard(
    copied: &CopiedTree<'_>,
    area: &Dir,
    observer: &dyn Observer,
) -> Result<bool> {
    let found = copied.look()?;
    if found.changes.is_empty() && found.touched.is_empty() {
        return Ok(true);
    }
    let mut changed = found.changes.iter().map(|change| &change.path);
    if changed.any(|path| is_left_out(copied, path)) {
        return Ok(false);
    }
    let first = as_copied(copied)?;
    let changes = found.changes.into_iter().map(|change| change.path);
    let touched = found.touched.into_iter().map(|(path, _)| path);
    let stage = area.subdir(STAGE)?;
    remove::remove(&stage, NEW)?;
    stage.make_dir(NEW, 0o700)?;
    let to = stage.subdir(NEW)?;
    let paths = changes.chain(touched).collect();
    let done = match stage_restore(copied, area, &first, paths, observer, to.path()) {
        Err(StrategyError::Lost { .. }) => false,
        // The caller syncs the file system when everything is discarded; until then it can be repeated.
        staged => tree_commit::apply_and(&staged?, observer, false).map(|()| true)?,
    };
    remove::remove(&stage, NEW)?;
    Ok(done)
}

/// Stages the way to a snapshot at the paths where the tree may differ from it.
pub(super) fn stage_restore(
    copied: &CopiedTree<'_>,
    area: &Dir,
    snapshot: &OpenSnapshot,
    paths: BTreeSet<ResourcePath>,
    observer: &dyn Observer,
    to: &Path,
) -> Result<Intent> {
    let target = RestoreTarget::new(copied, snapshot);
    let (mut changes, mut seen, mut stays) = (Vec::new(), Vec::new(), Vec::new());
    let mut fixed = BTreeSet::new();
    for path in paths {
        let now = tree_commit::stat(copied.tree, &path)?;
        if let (Some(entry), Some(now)) = (snapshot.entry(&path), &now) {
            // Neither what was not touched since, nor what can not be brought back.
            let same = snapshot.kept.ctime_decides && entry.is(now);
            if same && !now.is_dir() {
                stays.push(path.clone());
            }
            if same || !is_kept(now.kind) {
                continue;
            }
        }
        let old = match (&now, path.split()) {
            (Some(meta), Some((_, name))) => Some(copied.tree.parent(&path)?.0.facts(name, meta)?),
            (Some(meta), None) => Some(meta.facts()),
            (None, _) => None,
        };
        let change = match (old, target.facts(&path)?) {
            (None, None) => None,
            (None, Some(new)) => Some(Change::added(path.clone(), new)),
            (Some(old), None) => Some(Change::deleted(path.clone(), old)),
            (Some(old), Some(new)) => {
                let fields = match new.kind {
                    EntryKind::Directory => vec![
                        ChangedField::Mode,
                        ChangedField::Owner,
                        ChangedField::Xattrs,
                    ],
                    EntryKind::Symlink => vec![ChangedField::Target],
                    _ => vec![ChangedField::Content],
                };
                Change::between(path.clone(), old, new, fields)
            }
        };
        if let Some(change) = change {
            if now.is_some_and(|now| now.fixed) {
                fixed.insert(change.path.clone());
            }
            changes.push(change);
            seen.push(now.as_ref().map(Fingerprint::from));
        }
    }
    if let Some(remark) = remark(target.alike.take()) {
        observer.notice(remark);
    }
    let preview = TreePreview {
        kept: target.other_names(&changes, stays)?,
        preview: Preview {
            diff: Arc::new(DiffView { changes }),
            ..Preview::default()
        },
        seen,
        fixed,
        ..TreePreview::default()
    };
    let source = StageSource {
        area,
        root: &target,
        base: &OwnTree,
        whole: true,
    };
    let request = StageRequest {
        preview: &preview,
        on_conflict: OnConflict::Ours,
        keeps: true,
        digests: false,
        area: to,
        part: None,
        observer,
    };
    let (tree, _) = Original::take(copied.tree.path())?;
    let staged = tree_commit::prepare(&tree, &source, &request)?;
    Ok(staged.intent)
}

/// Removes every snapshot but these.
pub(in crate::strategy) fn keep_only(area: &Dir, kept: &[Snapshot]) -> Result<()> {
    if area.stat(SNAPSHOTS)?.is_none() {
        return Ok(());
    }
    let room = area.subdir(SNAPSHOTS)?;
    let kept: Vec<Vec<u8>> = kept.iter().map(number_of).collect::<Result<_>>()?;
    for entry in room.entries()? {
        if !kept.iter().any(|name| name[..] == *entry.name) {
            remove::remove(&room, &entry.name)?;
        }
    }
    Ok(())
}

/// What changed between a snapshot and another, or now.
pub(in crate::strategy) fn since(
    copied: &CopiedTree<'_>,
    area: &Dir,
    snapshot: &Snapshot,
    until: Option<&Snapshot>,
) -> Result<Vec<Change>> {
    let then = open(copied, area, snapshot)?;
    let old = RestoreTarget::new(copied, &then);
    let visible = |attributes| attributes;
    match until {
        Some(until) => {
            let later = open(copied, area, until)?;
            let new = RestoreTarget::new(copied, &later);
            let sides = (
                (&then.kept.changes[..], &old as _),
                (&later.kept.changes[..], &new as _),
            );
            snapshot_diff::between(sides.0, sides.1, visible)
        }
        None => {
            let now = DiffView::new(tree::steady(|| copied.look())?.changes).changes;
            snapshot_diff::between((&then.kept.changes, &old), (&now, copied.tree), visible)
        }
    }
}
