//! The intent of a tree commit: a file of records in the commit area, which the journal refers to by its
//! digest.
//!
//! Staging appends each record as soon as it is known, and nothing is collected. The file is synced together with
//! what is staged, before the journal gets the [`IntentReference`]. A process that acts on it reads all of it, compares the digest, and
//! decodes records from those same bytes as they are needed: what does not match is never acted on.
//!
//! ```text
//! escrow intent 1\n          the version
//! e path old new …           an entry in the directory of the step that follows
//! s slot path old new …      a step; with the entries before it, it is one rename
//! r copy slot path old new … the same where the old version is an empty directory that cannot be moved
//! l path to file             another name for a file that stays as it is
//! d path before after …      a directory that is dressed at the end, deepest first
//! ```
//!
//! Values have a fixed width (`fs::codec`), but for texts, which do not change. So the file that `finish` writes is as
//! long as the one it replaces: staging reserves its room, and a full disk does not stop a commit that was decided.
//!
//! ```text
//! <commit area>/
//!   intent           what `prepare` wrote
//!   finished         the room for, and then, what `finish` wrote: what undo needs
//! ```

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{DirUpdate, KeptLink};
use crate::fs::codec::{RecordBytes, RecordField};
use crate::fs::{Cause, Dir, Fingerprint, Stamp};
use crate::model::ResourcePath;
use crate::model::text::Location;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree::Original;

/// What `prepare` wrote.
pub(super) const INTENT: &str = "intent";
/// What `finish` wrote.
pub(super) const FINISHED: &str = "finished";

const MAGIC: &[u8] = b"escrow intent 1\n";

/// What the journal holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IntentReference {
    pub(super) original: Original,
    pub(super) area: Location,
    /// The area of the sandbox whose own tree this is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<Location>,
    /// Which sandbox this releases a part of, where it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<String>,
    /// The commit is over: what was seen is what it left, to the ctime.
    pub(super) finished: bool,
    /// The last ctime that old versions in the area have of ours; a later one means that something changed them. None where some have
    /// another name elsewhere, through which others move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kept_until: Option<Stamp>,
    /// The name of the file with the records, in the area.
    pub(super) file: String,
    /// The blake3 digest of the file.
    pub(super) digest: String,
    /// How many files are the sandbox's own, under another name.
    pub(super) linked: u64,
}

/// One path at which something comes or goes.
#[derive(Debug, Clone)]
pub(super) struct IntentEntry {
    pub(super) path: ResourcePath,
    /// What stands there before; `None` where nothing does.
    pub(super) old: Option<Fingerprint>,
    /// What is put there; `None` where it is taken away.
    pub(super) new: Option<Fingerprint>,
    /// The new version is the sandbox's own file, under another name.
    pub(super) linked: bool,
    /// Marks of a layer on it, which go when the sandbox is gone.
    pub(super) marks: Vec<Vec<u8>>,
}

/// One rename: something is put, swapped or taken away, with everything in it.
#[derive(Debug, Clone)]
pub(super) struct RenameStep {
    /// The name in the stage.
    pub(super) slot: u32,
    pub(super) top: IntentEntry,
    /// What stands for the old version in the stage, beside the slot: that is a directory which cannot be moved.
    pub(super) copy: Option<Fingerprint>,
    /// Where the entries that lie in it are.
    below: Range<usize>,
}

impl RenameStep {
    fn take(tag: u8, from: &mut RecordBytes<'_>, below: Range<usize>) -> Option<Self> {
        let copy = match tag {
            b'r' => Some(RecordField::take(from)?),
            _ => None,
        };
        Some(Self {
            slot: u32::take(from)?,
            top: IntentEntry::take(from)?,
            copy,
            below,
        })
    }

    /// The name in the stage, as a file system takes it.
    pub(super) fn slot(&self) -> Vec<u8> {
        self.slot.to_string().into_bytes()
    }

    /// The name in the stage at which the old version is kept.
    pub(super) fn kept(&self) -> Vec<u8> {
        match self.copy {
            Some(_) => copy_name(self.slot),
            None => self.slot(),
        }
    }

    /// What is kept there, once the step is made.
    pub(super) fn kept_version(&self) -> Option<Fingerprint> {
        self.copy.or(self.top.old)
    }

    /// Whether nothing is known to lie in it, before or after.
    pub(super) fn is_leaf(&self) -> bool {
        self.below.is_empty()
    }
}

/// Where in the stage the copy is of a directory that a step removes.
pub(super) fn copy_name(slot: u32) -> Vec<u8> {
    format!("{slot}-old").into_bytes()
}

/// Appends records.
pub(super) struct RecordWriter<W> {
    to: W,
    hash: blake3::Hasher,
    record: Vec<u8>,
    written: u64,
    linked: u64,
}

/// What tells a file of records from any other.
pub(super) struct RecordFileDigest {
    pub(super) digest: String,
    pub(super) length: u64,
    pub(super) linked: u64,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn new(to: W) -> std::io::Result<Self> {
        let mut writer = Self {
            to,
            hash: blake3::Hasher::new(),
            record: MAGIC.to_vec(),
            written: 0,
            linked: 0,
        };
        writer.append()?;
        Ok(writer)
    }

    fn append(&mut self) -> std::io::Result<()> {
        self.hash.update(&self.record);
        self.written += self.record.len() as u64;
        self.to.write_all(&self.record)
    }

    fn begin(&mut self, tag: u8) -> &mut Vec<u8> {
        self.record.clear();
        self.record.push(tag);
        &mut self.record
    }

    /// An entry in the directory of the step that is written next.
    pub(super) fn entry(&mut self, entry: &IntentEntry) -> std::io::Result<()> {
        self.linked += u64::from(entry.linked);
        entry.put(self.begin(b'e'));
        self.append()
    }

    /// A step, after everything that lies in it.
    pub(super) fn step(
        &mut self,
        slot: u32,
        top: &IntentEntry,
        copy: Option<&Fingerprint>,
    ) -> std::io::Result<()> {
        self.linked += u64::from(top.linked);
        self.begin(if copy.is_some() { b'r' } else { b's' });
        if let Some(copy) = copy {
            copy.put(&mut self.record);
        }
        slot.put(&mut self.record);
        top.put(&mut self.record);
        self.append()
    }

    pub(super) fn link(&mut self, link: &KeptLink) -> std::io::Result<()> {
        link.put(self.begin(b'l'));
        self.append()
    }

    pub(super) fn directory(&mut self, dressing: &DirUpdate) -> std::io::Result<()> {
        dressing.put(self.begin(b'd'));
        self.append()
    }

    /// Ends the file; what was written is with `to`, not yet on disk.
    pub(super) fn end(mut self) -> std::io::Result<(W, RecordFileDigest)> {
        self.to.flush()?;
        let written = RecordFileDigest {
            digest: self.hash.finalize().to_hex().to_string(),
            length: self.written,
            linked: self.linked,
        };
        Ok((self.to, written))
    }
}

/// A file of records that is being written in a commit area.
pub(super) type RecordFileWriter = RecordWriter<BufWriter<File>>;

/// Begins a file of records in an area, over what is there under its name.
pub(super) fn create(area: &Dir, name: &str) -> Result<RecordFileWriter> {
    let file = area.write_over(name.as_bytes(), 0o600)?;
    let writer = RecordWriter::new(BufWriter::with_capacity(128 * 1024, file));
    writer.map_err(|error| failed(area, name, "write", &error))
}

/// Ends it; it is on disk when its file system was synced, which the caller's caller does for all members at once.
pub(super) fn close(area: &Dir, name: &str, writer: RecordFileWriter) -> Result<RecordFileDigest> {
    let end = || -> std::io::Result<RecordFileDigest> {
        let (buffer, written) = writer.end()?;
        let file = buffer.into_inner().map_err(|error| error.into_error())?;
        file.set_len(written.length)?;
        Ok(written)
    };
    end().map_err(|error| failed(area, name, "write", &error))
}

/// Reserves room for a file of records. Where a file system has no such thing, the room is asked for when the file is
/// written.
pub(super) fn reserve(area: &Dir, name: &str, length: u64) -> Result<()> {
    let file = area.write_over(name.as_bytes(), 0o600)?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => {
            let error = area.error("reserve room for", name.as_bytes(), Cause::Os(errno));
            Err(error.into())
        }
    }
}

/// Says where writing or reading a file of records failed.
pub(super) fn failed(
    area: &Dir,
    name: &str,
    action: &'static str,
    error: &std::io::Error,
) -> StrategyError {
    area.io_error(action, name.as_bytes(), error).into()
}

/// The records of a commit, whole and unchanged.
pub(super) struct IntentRecords {
    bytes: Vec<u8>,
    /// Where each step begins, and where what lies in it begins.
    steps: Vec<(usize, usize)>,
    links: Vec<usize>,
    directories: Vec<usize>,
}

/// Why records cannot fail to decode: all of them were, when they were read.
const DECODED: &str = "every record was decoded once when the file was read";

impl IntentRecords {
    /// Reads a file of records, if it is what was written.
    pub(super) fn read(reference: &IntentReference) -> Result<Self> {
        let area = Dir::open(reference.area.as_path())?;
        let name = reference.file.as_str();
        let (mut file, meta) = area.file(name.as_bytes())?;
        let mut bytes = Vec::with_capacity(usize::try_from(meta.size).unwrap_or_default() + 1);
        file.read_to_end(&mut bytes)
            .map_err(|error| failed(&area, name, "read", &error))?;
        let altered = || StrategyError::Altered {
            path: Location::from(area.path().join(name)),
        };
        if blake3::hash(&bytes).to_hex().as_str() != reference.digest {
            return Err(altered());
        }
        Self::decode(bytes).ok_or_else(altered)
    }

    /// The records in these bytes; `None` where they are none.
    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        let mut records = Self {
            bytes: Vec::new(),
            steps: Vec::new(),
            links: Vec::new(),
            directories: Vec::new(),
        };
        let mut from = RecordBytes(bytes.strip_prefix(MAGIC)?);
        let at = |from: &RecordBytes<'_>| bytes.len() - from.0.len();
        let mut below = at(&from);
        while !from.0.is_empty() {
            let here = at(&from);
            match u8::take(&mut from)? {
                b'e' => drop(IntentEntry::take(&mut from)?),
                tag @ (b's' | b'r') => {
                    RenameStep::take(tag, &mut from, below..here)?;
                    records.steps.push((here, below));
                }
                b'l' => {
                    KeptLink::take(&mut from)?;
                    records.links.push(here);
                }
                b'd' => {
                    DirUpdate::take(&mut from)?;
                    records.directories.push(here);
                }
                _ => return None,
            }
            if bytes[here] != b'e' {
                below = at(&from);
            }
        }
        records.bytes = bytes;
        Some(records)
    }

    /// Whether there is nothing to do at all.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.links.is_empty() && self.directories.is_empty()
    }

    /// What follows the tag of the record at `at`.
    fn body(&self, at: usize) -> RecordBytes<'_> {
        RecordBytes(&self.bytes[at + 1..])
    }

    fn all<T: RecordField>(&self, at: &[usize]) -> impl DoubleEndedIterator<Item = T> {
        at.iter()
            .map(|at| T::take(&mut self.body(*at)).expect(DECODED))
    }

    /// Every step, in the order in which they are made.
    pub(super) fn steps(&self) -> impl DoubleEndedIterator<Item = RenameStep> {
        self.steps.iter().map(|(at, below)| {
            let (tag, mut from) = (self.bytes[*at], self.body(*at));
            RenameStep::take(tag, &mut from, *below..*at).expect(DECODED)
        })
    }

    /// What lies in what a step moves; a directory that is put there comes after what lies in it.
    pub(super) fn below<'a>(
        &'a self,
        step: &RenameStep,
    ) -> impl Iterator<Item = IntentEntry> + use<'a> {
        let mut from = RecordBytes(&self.bytes[step.below.clone()]);
        std::iter::from_fn(move || {
            (!from.0.is_empty()).then(|| {
                from.0 = &from.0[1..];
                IntentEntry::take(&mut from).expect(DECODED)
            })
        })
    }

    pub(super) fn links(&self) -> impl DoubleEndedIterator<Item = KeptLink> {
        self.all(&self.links)
    }

    /// The directories that are dressed, deepest first.
    pub(super) fn directories(&self) -> impl DoubleEndedIterator<Item = DirUpdate> {
        self.all(&self.directories)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DirMetadata;
    use super::*;
    use crate::model::EntryKind;

    fn path(text: &str) -> ResourcePath {
        ResourcePath::parse(text.as_bytes()).expect("a path")
    }

    fn seen(ino: u64) -> Fingerprint {
        let stamp = |nsec| Stamp { sec: -3, nsec };
        Fingerprint {
            kind: EntryKind::Directory,
            ino,
            born: stamp(1),
            size: u64::MAX,
            mtime: stamp(2),
            ctime: stamp(999_999_999),
            mode: 0o7777,
            owner: (u32::MAX, 0),
        }
    }

    fn entry(text: &str, old: Option<u64>, new: Option<u64>) -> IntentEntry {
        IntentEntry {
            path: path(text),
            old: old.map(seen),
            new: new.map(seen),
            linked: new.is_some(),
            marks: vec![b"user.overlay.origin".to_vec(), Vec::new()],
        }
    }

    fn dir_update(mtime: Option<Stamp>) -> DirUpdate {
        let looks = |mtime| DirMetadata {
            mode: 0o750,
            owner: (1, 2),
            mtime,
            xattrs: Some(vec![(b"user.a".to_vec(), vec![0, 255])]),
        };
        DirUpdate {
            path: ResourcePath::root(),
            seen: Some(seen(9)),
            before: looks(Some(Stamp::default())),
            after: looks(mtime),
            known: true,
        }
    }

    fn written(mtime: Option<Stamp>) -> Vec<u8> {
        let write = || -> std::io::Result<Vec<u8>> {
            let mut writer = RecordWriter::new(Vec::new())?;
            writer.entry(&entry("d/a\n", Some(1), Some(2)))?;
            writer.entry(&entry("d/e", None, Some(3)))?;
            writer.step(0, &entry("d", None, Some(4)), None)?;
            writer.step(7, &entry("gone", Some(5), None), Some(&seen(6)))?;
            writer.directory(&dir_update(mtime))?;
            Ok(writer.end()?.0)
        };
        write().expect("a list takes everything")
    }

    #[test]
    fn records_come_back_as_they_were_forwards_and_backwards() {
        let records = IntentRecords::decode(written(None)).expect("they are records");
        let told = |step: RenameStep| {
            let below = records.below(&step).map(|entry| format!("{entry:?}"));
            (
                step.slot,
                below.collect::<Vec<_>>(),
                format!("{:?}", (step.copy, step.top)),
            )
        };
        let text = |entry: IntentEntry| format!("{entry:?}");
        let step = |copy: Option<u64>, entry| format!("{:?}", (copy.map(seen), entry));
        let mut expected = vec![
            (
                0,
                vec![
                    text(entry("d/a\n", Some(1), Some(2))),
                    text(entry("d/e", None, Some(3))),
                ],
                step(None, entry("d", None, Some(4))),
            ),
            (7, Vec::new(), step(Some(6), entry("gone", Some(5), None))),
        ];
        assert_eq!(records.steps().map(told).collect::<Vec<_>>(), expected);
        expected.reverse();
        assert_eq!(
            records.steps().rev().map(told).collect::<Vec<_>>(),
            expected
        );
        let directories: Vec<String> = records
            .directories()
            .map(|one| format!("{one:?}"))
            .collect();
        assert_eq!(directories, [format!("{:?}", dir_update(None))]);
    }

    #[test]
    fn what_finish_learns_makes_the_file_no_longer() {
        let learnt = Some(Stamp { sec: 1, nsec: 2 });
        assert_eq!(written(None).len(), written(learnt).len());
    }

    #[test]
    fn bytes_that_are_no_records_are_not_decoded() {
        let whole = written(None);
        assert!(
            IntentRecords::decode(whole[1..].to_vec()).is_none(),
            "no version"
        );
        for end in 0..whole.len() {
            // One that ends with a record is recognized by its digest.
            if let Some(records) = IntentRecords::decode(whole[..end].to_vec()) {
                assert!(records.directories().next().is_none(), "cut at {end}");
            }
        }
    }
}
