//! The tree commit, shared by all directory strategies.
//!
//! New versions are staged in the commit's area, on the original's own file system: as hard links
//! where possible, else sharing contents, else copied. Then each takes its place in one rename, by
//! which the old version lands in the area; undoing is the same renames backwards. A directory that
//! is added, removed or replaced goes as a whole, so that no child is ever without its parent.
//!
//! | file | promise |
//! |---|---|
//! | `conflicts` | what stands in the original at each changed path, and what contradicts the change |
//! | `found` | what the preview found, for the staging |
//! | `plain_databases` | which SQLite databases among the files cannot be replaced: a program has them open, or left a journal |
//! | `merge` | text files that both sides changed, line by line, and the versions that such a merge begins from |
//! | `steps` | which renames make the changes that were chosen |
//! | `stage` | every new version, complete, in the area; the original untouched |
//! | `overlaid` | originals on an overlay file system, as in a container: what can be moved there, and what cannot |
//! | `flags` | a new version has the flags (`chattr`) of the old one |
//! | `directories` | whether names can be changed in the directories around, and how these look at the end |
//! | `apply` | the renames, in any order, as often as needed, with the same result |
//! | `unshare` | what the original still shares with the sandbox becomes its own |
//! | `finish` | nothing of the sandbox shows in the original, and no inode is shared |
//! | `undo` | the same backwards, from wherever it stopped |
//! | `undo_apart` | the steps of an undo that are not one rename |
//! | `undo_choices` | which changes an undo leaves, and which it merges with what changed since |
//! | `take_in` | the new versions of an undone commit, in a sandbox again; `plain_sink`: in a plain tree |
//! | `released` | what partial commits left, as the base of what their sandbox changes since |
//! | `intent` | all of this on disk before the decision, record by record, known by its digest; `codec`: its values as bytes |
//!
//! ```text
//! <commit area>/
//!   stage/0, 1, …    before: the new version of a step; after: the old one
//!   stage/0-old, …   a copy of the directory that a step removes, where it cannot be moved
//!   intent           what is to be done, and how to take it back
//!   finished         the same once it is done
//!   texts/0, 1, …    the texts that it brought in the place of others, for an undo that merges
//!   choices          what the next undo leaves and merges
//!   made             while it is taken back: the steps that had been made
//! ```
//!
//! A step is recognised by inode and time of birth on both sides, so that the process that finds a commit
//! half done knows of each step whether it was made.

mod apply;
mod both_sides;
mod codec;
mod conflicts;
mod directories;
mod finish;
mod flags;
mod found;
mod intent;
mod merge;
pub(super) mod onto;
mod overlaid;
mod plain_databases;
mod plain_sink;
mod released;
mod stage;
mod steps;
mod take_in;
mod undo;
mod undo_apart;
mod undo_choices;
mod unshare;

pub(super) use apply::{apply, apply_and};
pub(super) use both_sides::both_sides;
pub(super) use conflicts::{EntryAt, OriginalBase, Releases, introduced, look};
pub(super) use finish::finish;
pub(super) use found::{LastPreview, StageRequest, TreePreview};
pub(super) use merge::{BaseText, forget_bases, hand_on_bases, keep_bases};
pub(super) use plain_sink::PlainTree;
pub(super) use released::Released;
pub(super) use stage::{StageSource, prepare};
pub(super) use take_in::{VersionSink, take_in};
pub(super) use undo::{check, undo};
pub(super) use undo_choices::plan as plan_undo;

use self::intent::{IntentRecords, IntentReference, RecordFileDigest};
use super::Intent;
use super::error::{Result, StrategyError};
use super::tree::{Original, STAGE};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Dir, Fingerprint, Meta, Stamp};
use crate::model::text::Location;
use crate::model::{Conflict, EntryKind, ResourcePath};

/// Where the new versions of a sandbox are.
pub(super) trait VersionSource {
    /// The directory at a path.
    fn dir(&self, path: &ResourcePath) -> Result<Dir>;

    /// The directory that holds the entry at a path, and the entry's name.
    fn parent<'p>(&self, path: &'p ResourcePath) -> Result<(Dir, &'p [u8])>;

    /// What stands at a path, as it is to look; `None` where nothing does.
    fn meta(&self, path: &ResourcePath) -> Result<Option<Meta>> {
        let found = match path.is_root() {
            true => self.dir(path).and_then(|dir| Ok(Some(dir.meta()?))),
            false => self
                .parent(path)
                .and_then(|(dir, name)| Ok(dir.stat(name)?)),
        };
        match found {
            Err(StrategyError::Fs(error)) if error.is_absent() || error.leaves() => Ok(None),
            answer => answer,
        }
    }

    /// The attributes of an entry of it as its user sees them.
    fn visible(&self) -> fn(Xattrs) -> Xattrs {
        |attributes| attributes
    }

    /// The same as they are released: a mark of an overlay would hide files in later sandboxes.
    fn released(&self, attributes: Xattrs) -> Xattrs {
        let mut seen = self.visible()(attributes);
        seen.retain(|(name, _)| !xattr::is_overlay_mark(name));
        seen
    }

    /// What tells which paths are names of one file, of the version at a path; `None` where it has no other.
    fn file(&self, _path: &ResourcePath, meta: &Meta) -> Option<u64> {
        (meta.nlink > 1).then_some(meta.ino)
    }
}

impl VersionSource for Dir {
    fn dir(&self, path: &ResourcePath) -> Result<Dir> {
        Ok(self.dir(path)?)
    }

    fn parent<'p>(&self, path: &'p ResourcePath) -> Result<(Dir, &'p [u8])> {
        Ok(self.parent(path)?)
    }
}

/// Everything needed to make the changes, or to take them back.
struct TreeIntent {
    original: Original,
    area: Location,
    /// The area of the sandbox whose own tree this is, if it is one.
    own: Option<Location>,
    /// Which sandbox this releases a part of, where it stays.
    part: Option<String>,
    /// The commit is over: what was seen is what it left, to the ctime.
    finished: bool,
    /// The last ctime that old versions have of ours, if it is known.
    kept_until: Option<Stamp>,
    records: IntentRecords,
}

/// Another name for a file that stays as it is.
#[derive(Debug, Clone)]
struct KeptLink {
    path: ResourcePath,
    to: ResourcePath,
    /// The file.
    file: Fingerprint,
}

/// A directory that gets its mode, owner, attributes and times when everything in it is done; or a file that was written
/// as it was before, which gets the time of that.
#[derive(Debug, Clone)]
struct DirUpdate {
    path: ResourcePath,
    /// The directory before; `None` for one that the commit puts there.
    seen: Option<Fingerprint>,
    before: DirMetadata,
    after: DirMetadata,
    /// Where only a part is released: no other process had changed it.
    known: bool,
}

impl DirUpdate {
    fn is_file(&self) -> bool {
        self.seen.is_some_and(|seen| seen.kind == EntryKind::File)
    }
}

/// How a directory is to look.
#[derive(Debug, Clone)]
struct DirMetadata {
    mode: u16,
    owner: (u32, u32),
    /// `None`: as it comes.
    mtime: Option<Stamp>,
    /// `None`: as they are.
    xattrs: Option<Xattrs>,
}

impl DirMetadata {
    fn of(meta: &Meta) -> Self {
        Self {
            mode: meta.mode,
            owner: (meta.uid, meta.gid),
            mtime: Some(meta.mtime),
            xattrs: None,
        }
    }
}

/// What the journal says of an intent, without the records.
fn reference(intent: &Intent) -> Result<IntentReference> {
    super::tree::parse(&intent.0, "the intent")
}

/// The area of the sandbox whose own tree is changed, if it is one: by a return to a snapshot.
pub(super) fn own_area(intent: &Intent) -> Result<Option<Location>> {
    Ok(reference(intent)?.own)
}

/// Where a commit keeps what it replaced.
fn area_of(intent: &Intent) -> Result<Location> {
    Ok(reference(intent)?.area)
}

/// The file system of what is changed; 0 where that is gone.
pub(super) fn device(intent: &Intent) -> Result<u64> {
    match reference(intent)?.original.open() {
        Err(StrategyError::Gone { .. }) => Ok(0),
        dir => Ok(dir?.meta()?.dev),
    }
}

/// Whether everything that an intent refers to is what was written. An area that is not there at all is no
/// contradiction: one that was set aside is done with.
pub(super) fn verify(intent: &Intent) -> Result<()> {
    if intent.0.get("file").is_none() {
        return Ok(());
    }
    match TreeIntent::read(intent) {
        Err(StrategyError::Fs(error)) if error.is_absent() => {
            let IntentReference { area, file, .. } = reference(intent)?;
            match Dir::open(area.as_path()) {
                Err(error) if error.is_absent() => Ok(()),
                there => {
                    there?;
                    let path = Location::from(area.as_path().join(file));
                    Err(StrategyError::Altered { path })
                }
            }
        }
        answer => answer.map(drop),
    }
}

impl TreeIntent {
    fn read(intent: &Intent) -> Result<Self> {
        let reference = reference(intent)?;
        let records = IntentRecords::read(&reference)?;
        Ok(Self {
            original: reference.original,
            area: reference.area,
            own: reference.own,
            part: reference.part,
            finished: reference.finished,
            kept_until: reference.kept_until,
            records,
        })
    }

    /// The same once the commit is over, with the records that are in the area under `file`.
    fn store(&self, file: &str, written: RecordFileDigest, kept_until: Option<Stamp>) -> Intent {
        Intent(super::tree::stored(&IntentReference {
            original: self.original.clone(),
            area: self.area.clone(),
            own: self.own.clone(),
            part: self.part.clone(),
            finished: true,
            kept_until,
            file: file.to_owned(),
            digest: written.digest,
            linked: written.linked,
        }))
    }

    fn stage(&self) -> Result<Dir> {
        Ok(Dir::open(self.area.as_path())?.subdir(STAGE)?)
    }
}

/// Refuses what cannot be replaced, moved or removed when it is time to.
fn check_loose(path: &ResourcePath, fixed: bool) -> Result<()> {
    match fixed {
        true => Err(StrategyError::Forbidden {
            path: path.clone(),
            why: "it is immutable or append-only in the original; `chattr -i -a` it there first"
                .to_owned(),
        }),
        false => Ok(()),
    }
}

/// In the order of their paths, each path once.
fn sort(conflicts: &mut Vec<Conflict>) {
    conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    conflicts.dedup_by(|a, b| a.path == b.path);
}

/// What stands at `path`; `None` where nothing does, or where its directory is none any more.
pub(super) fn stat(root: &Dir, path: &ResourcePath) -> Result<Option<Meta>> {
    match root.stat_path(path) {
        Err(error) if error.leaves() => Ok(None),
        answer => Ok(answer?),
    }
}

/// Whether a new version carries more power than the original granted: setuid and setgid bits, file
/// capabilities. They are dropped (rule F7).
fn privileges(mode: u16, attributes: &Xattrs) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (bit, word) in [(0o4000, "setuid"), (0o2000, "setgid")] {
        if mode & bit != 0 {
            found.push(word);
        }
    }
    if attributes.iter().any(|(name, _)| name == CAPABILITY) {
        found.push("capabilities");
    }
    found
}

/// A mode without the bits among what is dropped.
pub(super) fn without(dropped: &[&str], mode: u16) -> u16 {
    let bits = [("setuid", 0o4000_u16), ("setgid", 0o2000)];
    let bits = bits.iter().filter(|(word, _)| dropped.contains(word));
    bits.fold(mode, |mode, (_, bit)| mode & !bit)
}

pub(super) const CAPABILITY: &[u8] = b"security.capability";
