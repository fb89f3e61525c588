//! Partial commits: the record, beside a sandbox, of what was released while the rest stayed.
//!
//! What is seen in the sandbox does not change by that, nor when the release is taken back; only what
//! counts as its change does. So the record is all there is: with it, a version that is still the one that
//! was released is no change, whatever became of the original since, and the original as the release left
//! it is known; without it, everything is as before.
//!
//! ```text
//! <area>/
//!   released         each release with its versions, oldest first; of one path the last counts
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use super::tree::STAGE;
use crate::fs::atomic_file::AtomicFile;
use crate::fs::manifest::{Manifest, ManifestBuilder, ManifestRecord, NewEntry, RecordIndex};
use crate::fs::xattr::Digest;
use crate::fs::{Cause, Dir, Fingerprint, Meta, MovedEntries, Stamp};
use crate::model::text::Location;
use crate::model::{EntryKind, ResourcePath};

const RELEASED: &[u8] = b"released";

/// One path that was released.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReleasedPath {
    pub(super) path: ResourcePath,
    /// The versions in sandbox and original; `None` where it was released that there is none.
    pub(super) both: Option<ReleasedVersion>,
    /// The original had nothing there before.
    #[serde(default)]
    pub(super) added: bool,
    /// Size and time of what the original had before, where there is nothing now.
    #[serde(default)]
    pub(super) gone: Option<(u64, Stamp)>,
}

/// A version that sandbox and original have.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReleasedVersion {
    pub(super) ours: Fingerprint,
    pub(super) theirs: Fingerprint,
    /// Of the attributes that a user of the sandbox sees.
    pub(super) xattrs: Digest,
    /// Where a link points.
    pub(super) target: Option<Location>,
    /// It is no other version of what the original had, but something new.
    pub(super) made: bool,
}

/// Everything that one commit released.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PartialCommit {
    /// Where it keeps what it replaced: what tells it from other commits.
    pub(super) area: Location,
    pub(super) versions: Vec<ReleasedPath>,
    /// Directories in which something was done: inode, ctime, and whether they were known until then.
    pub(super) directories: Vec<(u64, Stamp, bool)>,
}

impl PartialCommit {
    /// Whether this is what the commit with this area released. Its name is unique, wherever it lies by now.
    fn is_of(&self, commit: &Location) -> bool {
        self.area.as_path().file_name() == commit.as_path().file_name()
    }
}

/// What is on disk.
#[derive(Default, Serialize, Deserialize)]
struct StoredPartialCommits {
    /// Of which sandbox it is; after a rollback there is another one in its place.
    of: String,
    releases: Vec<PartialCommit>,
    /// Directories of releases that were taken back, which the original never had by itself: a kernel that
    /// met both marked them as if they came from there.
    #[serde(default)]
    alone: HashSet<ResourcePath>,
}

impl StoredPartialCommits {
    fn new(of: &str) -> Self {
        Self {
            of: of.to_owned(),
            ..Self::default()
        }
    }
}

/// What was released of each sandbox that was in this place: after a rollback there is another one, and
/// with a checkpoint the one before comes back.
fn read_all(area: &Dir) -> Result<Vec<StoredPartialCommits>> {
    let mut file = match area.file(RELEASED) {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        file => file?.0,
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        area.error("read", RELEASED, Cause::Os(errno))
    })?;
    serde_json::from_slice(&text).map_err(|error| StrategyError::Damaged {
        what: format!("its partial commits cannot be read ({error})"),
    })
}

fn read(area: &Dir, of: &str) -> Result<StoredPartialCommits> {
    let found = read_all(area)?.into_iter().find(|one| one.of == of);
    Ok(found.unwrap_or_else(|| StoredPartialCommits::new(of)))
}

fn write(area: &Dir, all: &[StoredPartialCommits]) -> Result<()> {
    let text = serde_json::to_vec(all).expect("paths and numbers are JSON");
    let draft = AtomicFile {
        stage: &area.subdir(STAGE)?,
        to: area,
        name: RELEASED,
        fresh: false,
        synced: true,
    };
    Ok(draft.write(|file| file.write_all(&text), |_| Ok(()))?)
}

/// Notes what a commit released. A commit that is noted already is noted anew.
pub(super) fn add(area: &Dir, of: &str, release: PartialCommit) -> Result<()> {
    let mut all = read_all(area)?;
    let at = all.iter().position(|one| one.of == of).unwrap_or_else(|| {
        all.push(StoredPartialCommits::new(of));
        all.len() - 1
    });
    let stored = &mut all[at];
    stored.releases.retain(|one| !one.is_of(&release.area));
    stored.releases.push(release);
    write(area, &all)
}

/// Forgets what a commit released, whichever sandbox it was of; done already if it is not noted.
pub(super) fn forget(area: &Dir, commit: &Location) -> Result<()> {
    let mut all = read_all(area)?;
    let mut noted = false;
    for stored in &mut all {
        let Some(at) = stored.releases.iter().position(|one| one.is_of(commit)) else {
            continue;
        };
        noted = true;
        let is_dir = |both: &ReleasedVersion| both.ours.kind == EntryKind::Directory;
        let versions = stored.releases.remove(at).versions.into_iter();
        let made = versions.filter(|one| one.added && one.both.as_ref().is_some_and(is_dir));
        stored.alone.extend(made.map(|one| one.path));
    }
    match noted {
        true => write(area, &all),
        false => Ok(()),
    }
}

/// What of a sandbox is released at present.
#[derive(Debug, Default)]
pub(super) struct PartialCommits {
    versions: BTreeMap<ResourcePath, Option<ReleasedVersion>>,
    /// The states of entries of the original that are the sandbox's own doing, by inode.
    known: HashMap<u64, Vec<Stamp>>,
    /// Directories that another process had changed before something was done in them, which moved their times.
    foreign: HashSet<u64>,
    alone: HashSet<ResourcePath>,
    /// Size and time of the files whose removal was released: one that was moved left such a trace.
    gone: HashSet<(u64, Stamp)>,
}

impl PartialCommits {
    /// What was noted of this very sandbox.
    pub(super) fn read(area: &Dir, of: &str) -> Result<Self> {
        let stored = read(area, of)?;
        let mut released = Self {
            alone: stored.alone,
            ..Self::default()
        };
        for release in stored.releases {
            for (ino, ctime, known) in release.directories {
                match known {
                    true => released.known.entry(ino).or_default().push(ctime),
                    false => drop(released.foreign.insert(ino)),
                }
            }
            for ReleasedPath {
                path, both, gone, ..
            } in release.versions
            {
                released.gone.extend(gone);
                if let Some(ReleasedVersion { theirs, .. }) = &both {
                    let known = released.known.entry(theirs.ino).or_default();
                    known.push(theirs.ctime);
                }
                released.versions.insert(path, both);
            }
        }
        Ok(released)
    }

    /// Whether nothing was released.
    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Whether the original had something at a path when the sandbox was made, or has it by a release; `None`
    /// where that must be derived from the sandbox.
    pub(super) fn was_there(&self, path: &ResourcePath) -> Option<bool> {
        match self.versions.get(path) {
            Some(both) => Some(both.is_some()),
            None => self.alone.contains(path).then_some(false),
        }
    }

    /// Whether it was released that nothing stands at a path.
    pub(super) fn is_gone(&self, path: &ResourcePath) -> bool {
        matches!(self.versions.get(path), Some(None))
    }

    /// Whether the removal of such a file was released.
    pub(super) fn took(&self, size: u64, mtime: Stamp) -> bool {
        self.gone.contains(&(size, mtime))
    }

    /// What was released at a path, if it stands there.
    pub(super) fn version(&self, path: &ResourcePath) -> Option<&ReleasedVersion> {
        self.versions.get(path)?.as_ref()
    }

    /// Whether the version of the sandbox is still the one that was released.
    pub(super) fn is_untouched(&self, path: &ResourcePath, ours: &Meta) -> bool {
        let same =
            |both: &ReleasedVersion| (both.ours.ino, both.ours.ctime) == (ours.ino, ours.ctime);
        self.version(path)
            .is_some_and(|both| both.ours.kind == ours.kind && same(both))
    }

    /// Whether an entry of the original is as a release left it.
    pub(super) fn knows(&self, now: &Meta, moved: &MovedEntries) -> bool {
        let known = self.known.get(&now.ino);
        let leads = |then: &Stamp| moved.leads(now.ino, now.ctime, *then);
        known.is_some_and(|known| known.iter().any(leads))
    }

    /// Whether another process had changed a directory of the original before a release moved its times.
    pub(super) fn is_foreign(&self, now: &Meta) -> bool {
        self.foreign.contains(&now.ino)
    }

    /// Whether an entry of the original was put there, whatever became of it.
    pub(super) fn put(&self, path: &ResourcePath, now: &Meta) -> bool {
        self.version(path).is_some_and(|both| both.theirs.is(now))
    }

    /// The files that were released.
    pub(super) fn files(&self) -> impl Iterator<Item = &ResourcePath> {
        let file = |both: &&Option<ReleasedVersion>| {
            let both = both.as_ref();
            both.is_some_and(|both| both.ours.kind == EntryKind::File)
        };
        let all = self.versions.iter();
        all.filter(move |(_, both)| file(both))
            .map(|(path, _)| path)
    }

    /// The record of a copy as if it had been made after the releases: every version that was released
    /// is what was copied.
    pub(super) fn apply(&self, manifest: Manifest) -> Result<Manifest> {
        if self.is_empty() {
            return Ok(manifest);
        }
        ManifestRebuild::new(self, &manifest)
            .build()
            .map_err(|error| StrategyError::Damaged {
                what: format!("could not record the partial commit ({error})"),
            })
    }
}

impl ReleasedVersion {
    fn record(&self) -> ManifestRecord {
        let (ours, theirs) = (&self.ours, &self.theirs);
        let mut record = ManifestRecord::of(&Meta {
            kind: ours.kind,
            mode: ours.mode,
            uid: theirs.owner.0,
            gid: theirs.owner.1,
            size: ours.size,
            nlink: 1,
            dev: 0,
            ino: theirs.ino,
            rdev: 0,
            blocks: 0,
            mtime: ours.mtime,
            atime: ours.mtime,
            ctime: theirs.ctime,
            born: theirs.born,
            mount: 0,
            fixed: false,
        });
        record.copy_ino = ours.ino;
        record.copy_ctime = ours.ctime;
        record.copy_owner = ours.owner;
        record.xattrs = self.xattrs;
        record
    }
}

/// A manifest on its way into another one.
struct ManifestRebuild<'a> {
    old: &'a Manifest,
    /// What was released in each directory, by name.
    changed: HashMap<ResourcePath, BTreeMap<&'a [u8], &'a Option<ReleasedVersion>>>,
    root: Option<&'a ReleasedVersion>,
}

/// A directory whose entries are to be added: its number there, its number before, and its path where
/// something was released in it or below.
type RebuiltDir = (RecordIndex, Option<RecordIndex>, Option<ResourcePath>);

impl<'a> ManifestRebuild<'a> {
    fn new(released: &'a PartialCommits, old: &'a Manifest) -> Self {
        let mut changed: HashMap<ResourcePath, BTreeMap<&[u8], &Option<ReleasedVersion>>> =
            HashMap::new();
        for (path, both) in &released.versions {
            let Some((parent, name)) = path.split() else {
                continue;
            };
            for above in parent.ancestors() {
                changed.entry(above).or_default();
            }
            changed.entry(parent).or_default().insert(name, both);
        }
        changed.entry(ResourcePath::root()).or_default();
        Self {
            old,
            changed,
            root: released.version(&ResourcePath::root()),
        }
    }

    fn build(self) -> std::io::Result<Manifest> {
        let root = match self.root {
            Some(both) => both.record(),
            None => *self.old.record(Manifest::ROOT),
        };
        let builder = ManifestBuilder::new(root);
        let top = Some(ResourcePath::root());
        // A list instead of recursion: the tree may be deeper than the stack.
        let mut open: Vec<RebuiltDir> = vec![(Manifest::ROOT, Some(Manifest::ROOT), top)];
        while let Some((number, before, path)) = open.pop() {
            let entries = self.entries(before, path.as_ref());
            let below: Vec<(bool, Option<RecordIndex>, Option<ResourcePath>)> = entries
                .iter()
                .map(|(entry, before)| {
                    let path = path.as_ref().map(|path| path.join(&entry.name));
                    let path = path.filter(|path| self.changed.contains_key(path));
                    (entry.record.is_dir(), *before, path)
                })
                .collect();
            let entries = entries.into_iter().map(|(entry, _)| entry).collect();
            let first = builder.add(number, entries)?;
            for (offset, (is_dir, before, path)) in (first..).zip(below) {
                if is_dir {
                    open.push((offset, before, path));
                }
            }
        }
        let mut manifest = builder.finish();
        manifest.ctime_decides = self.old.ctime_decides;
        Ok(manifest)
    }

    /// The entries of a directory, sorted, each with its number before if it was a directory then too.
    fn entries(
        &self,
        before: Option<RecordIndex>,
        path: Option<&ResourcePath>,
    ) -> Vec<(NewEntry, Option<RecordIndex>)> {
        let none = BTreeMap::new();
        let changed = path
            .and_then(|path| self.changed.get(path))
            .unwrap_or(&none);
        let children = before.map_or(0..0, |before| self.old.children(before));
        let mut entries: BTreeMap<&[u8], (NewEntry, Option<RecordIndex>)> = BTreeMap::new();
        for index in children {
            let (name, record) = (self.old.name(index), *self.old.record(index));
            if changed.get(name).is_some_and(|both| both.is_none()) {
                continue;
            }
            let entry = NewEntry {
                name: name.into(),
                target: self.old.target(index).to_vec(),
                record,
            };
            entries.insert(name, (entry, Some(index)));
        }
        for (name, both) in changed {
            let Some(both) = both else { continue };
            let old = entries.get(name).and_then(|(_, index)| *index);
            let was_dir = |index: &RecordIndex| self.old.record(*index).is_dir();
            let entry = NewEntry {
                name: (*name).into(),
                target: both
                    .target
                    .iter()
                    .flat_map(|at| at.as_bytes().to_vec())
                    .collect(),
                record: both.record(),
            };
            entries.insert(name, (entry, old.filter(was_dir)));
        }
        entries.into_values().collect()
    }
}
