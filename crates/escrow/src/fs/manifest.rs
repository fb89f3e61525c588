//! The manifest of a copied tree: metadata of each entry, compact enough for a million files.
//!
//! One fixed-size record for each entry and one arena for all names. The children of a directory
//! are one contiguous, sorted run of records, so that a later walk compares directory by
//! directory without an index and without a global sort. A record remembers both sides: how the
//! original looked (to notice that another process changed it) and which inode and ctime its copy got
//! (to know without opening it that no process touched the copy).
//!
//! On disk: magic, header, records, names, and a BLAKE3 checksum of all before it.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use super::codec::{RecordBytes, RecordField, fields};
use super::meta::{Meta, Stamp};
use super::walk::Shared;
use super::xattr::Digest;
use crate::model::text::Location;
use crate::model::{EntryInfo, EntryKind, ResourcePath};

const MAGIC: &[u8; 16] = b"escrow-manifest1";
const RECORD: usize = 113;

/// The entry was recorded, not copied: a socket, a device, or what is mounted there.
const LEFT_OUT: u8 = 1;

/// One entry as it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestRecord {
    /// The original's size.
    pub size: u64,
    /// The original's inode.
    pub ino: u64,
    /// The copy's inode.
    pub copy_ino: u64,
    /// The modification time of both.
    pub mtime: Stamp,
    /// The original's change time.
    pub ctime: Stamp,
    /// The copy's change time.
    pub copy_ctime: Stamp,
    /// Digest of the attributes that the copy has.
    pub xattrs: Digest,
    /// The original's user.
    pub uid: u32,
    /// The original's group.
    pub gid: u32,
    /// User and group of the copy: another one's where this user cannot give files away.
    pub copy_owner: (u32, u32),
    /// Which entries are one inode: equal numbers, 0 for none.
    pub link: u32,
    /// The permission bits of both.
    pub mode: u16,
    /// What it is.
    pub kind: EntryKind,
    flags: u8,
    name: u32,
    name_len: u8,
    /// Directories: first child and number of children. Links: offset and length of the target.
    span: (u32, u32),
}

impl ManifestRecord {
    /// A record of an original that has no copy yet.
    pub fn of(meta: &Meta) -> Self {
        Self {
            size: meta.size,
            ino: meta.ino,
            copy_ino: 0,
            mtime: meta.mtime,
            ctime: meta.ctime,
            copy_ctime: Stamp::default(),
            xattrs: [0; 16],
            uid: meta.uid,
            gid: meta.gid,
            copy_owner: (meta.uid, meta.gid),
            link: 0,
            mode: meta.mode,
            kind: meta.kind,
            flags: 0,
            name: 0,
            name_len: 0,
            span: (0, 0),
        }
    }

    /// Notes that the entry was left out of the copy.
    pub fn leave_out(&mut self) {
        self.flags |= LEFT_OUT;
    }

    /// Whether it is a directory that was copied with what is in it.
    pub fn is_dir(&self) -> bool {
        self.kind == EntryKind::Directory && !self.is_left_out()
    }

    /// Whether the entry was left out of the copy.
    pub fn is_left_out(&self) -> bool {
        self.flags & LEFT_OUT != 0
    }

    /// Notes what the copy became.
    pub fn copied(&mut self, copy: &Meta) {
        self.copy_ino = copy.ino;
        self.copy_ctime = copy.ctime;
        self.copy_owner = (copy.uid, copy.gid);
    }

    /// Whether `copy` is still exactly what was made: any change since then would show in its
    /// ctime, which no program can set (rule F6).
    pub fn is_untouched(&self, copy: &Meta) -> bool {
        self.copy_ino == copy.ino && self.copy_ctime == copy.ctime && self.kind == copy.kind
    }

    /// Whether `original` is still what was copied.
    pub fn is_current(&self, original: &Meta) -> bool {
        (self.kind, self.ino, self.ctime) == (original.kind, original.ino, original.ctime)
    }

    /// Whether `original` is what was copied but for its ctime, as after a change of mode and back, or a further
    /// name that came and went. Its attributes are not among what is compared.
    pub fn looks_current(&self, original: &Meta) -> bool {
        let looks = (self.mode, self.uid, self.gid) == (original.mode, original.uid, original.gid);
        let content = (self.size, self.mtime) == (original.size, original.mtime);
        (self.kind, self.ino) == (original.kind, original.ino) && looks && content
    }
}

/// The records of a whole tree; record 0 is the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    records: Vec<ManifestRecord>,
    arena: Vec<u8>,
    /// Whether every change after the copy is sure to have moved a ctime.
    pub ctime_decides: bool,
}

/// A number of a record.
pub type RecordIndex = u32;

/// A tree with more entries or longer names than the format holds (four thousand million).
fn too_large() -> io::Error {
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        "the tree is too large for a manifest",
    )
}

impl Manifest {
    /// The root directory.
    pub const ROOT: RecordIndex = 0;

    /// One record.
    pub fn record(&self, index: RecordIndex) -> &ManifestRecord {
        &self.records[index as usize]
    }

    /// The name of one entry; empty for the root.
    pub fn name(&self, index: RecordIndex) -> &[u8] {
        let record = self.record(index);
        &self.arena[record.name as usize..][..usize::from(record.name_len)]
    }

    /// Where a symbolic link pointed.
    pub fn target(&self, index: RecordIndex) -> &[u8] {
        let record = self.record(index);
        match record.kind {
            EntryKind::Symlink => &self.arena[record.span.0 as usize..][..record.span.1 as usize],
            _ => &[],
        }
    }

    /// What a diff says of it.
    pub fn facts(&self, index: RecordIndex) -> EntryInfo {
        let record = self.record(index);
        let sized = matches!(record.kind, EntryKind::File | EntryKind::Symlink);
        EntryInfo {
            kind: record.kind,
            size: if sized { record.size } else { 0 },
            mode: record.mode,
            target: (record.kind == EntryKind::Symlink)
                .then(|| Box::new(Location::from_bytes(self.target(index)))),
        }
    }

    /// The entries of a directory, sorted by name.
    pub fn children(&self, index: RecordIndex) -> std::ops::Range<RecordIndex> {
        let record = self.record(index);
        match record.kind {
            EntryKind::Directory => record.span.0..record.span.0 + record.span.1,
            _ => 0..0,
        }
    }

    /// How many entries there are, the root among them.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Never: a manifest has at least its root.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The record at `path`.
    pub fn find(&self, path: &ResourcePath) -> Option<RecordIndex> {
        path.parts().try_fold(Self::ROOT, |index, part| {
            let mut range = self.children(index);
            while !range.is_empty() {
                let middle = range.start + (range.end - range.start) / 2;
                match self.name(middle).cmp(part) {
                    Ordering::Equal => return Some(middle),
                    Ordering::Less => range.start = middle + 1,
                    Ordering::Greater => range.end = middle,
                }
            }
            None
        })
    }

    /// Calls `each` for everything below a directory, parents first.
    pub fn below(
        &self,
        index: RecordIndex,
        path: &ResourcePath,
        each: &mut impl FnMut(RecordIndex, &ResourcePath),
    ) {
        // A list instead of recursion: the tree may be deeper than the stack.
        let mut open = vec![(index, path.clone())];
        while let Some((index, path)) = open.pop() {
            for child in self.children(index) {
                let path = path.join(self.name(child));
                each(child, &path);
                open.push((child, path));
            }
        }
    }

    /// Writes the manifest.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut to = HashingWriter {
            inner: to,
            hasher: blake3::Hasher::new(),
        };
        to.write_all(MAGIC)?;
        to.write_all(&[u8::from(self.ctime_decides)])?;
        to.write_all(&(self.records.len() as u64).to_le_bytes())?;
        to.write_all(&(self.arena.len() as u64).to_le_bytes())?;
        let mut bytes = Vec::with_capacity(RECORD);
        for record in &self.records {
            bytes.clear();
            record.put(&mut bytes);
            to.write_all(&bytes)?;
        }
        to.write_all(&self.arena)?;
        let checksum = to.hasher.finalize();
        to.inner.write_all(checksum.as_bytes())
    }

    /// Reads a manifest back; damage of any kind is an error.
    pub fn read(file: &File) -> io::Result<Self> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the manifest is damaged");
        let mut from = HashingWriter {
            inner: BufReader::with_capacity(256 * 1024, file),
            hasher: blake3::Hasher::new(),
        };
        if &from.take::<16>()? != MAGIC {
            return Err(damaged());
        }
        let [ctime_decides] = from.take::<1>()?;
        let count = u64::from_le_bytes(from.take()?);
        let names = u64::from_le_bytes(from.take()?);
        let expected = (16 + 1 + 16 + 32u64)
            .checked_add(count.checked_mul(RECORD as u64).ok_or_else(damaged)?)
            .and_then(|sum| sum.checked_add(names));
        if expected != Some(file.metadata()?.len()) || count == 0 {
            return Err(damaged());
        }
        let mut records = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let bytes: [u8; RECORD] = from.take()?;
            let record = ManifestRecord::take(&mut RecordBytes(&bytes));
            records.push(record.ok_or_else(damaged)?);
        }
        let mut arena = vec![0; names as usize];
        from.fill(&mut arena)?;
        let checksum = from.hasher.finalize();
        let mut stored = [0; 32];
        from.inner.read_exact(&mut stored)?;
        if checksum != stored {
            return Err(damaged());
        }
        Ok(Self {
            records,
            arena,
            ctime_decides: ctime_decides == 1,
        })
    }
}

struct HashingWriter<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<T: Write> HashingWriter<&mut T> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> HashingWriter<T> {
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(buffer)?;
        self.hasher.update(buffer);
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }
}

fields!(ManifestRecord {
    size,
    ino,
    copy_ino,
    mtime,
    ctime,
    copy_ctime,
    xattrs,
    uid,
    gid,
    copy_owner,
    link,
    name,
    span,
    mode,
    kind,
    flags,
    name_len
});

/// One entry on its way into a manifest.
pub struct NewEntry {
    /// Its name.
    pub name: Box<[u8]>,
    /// Where it points, for a link.
    pub target: Vec<u8>,
    /// The rest.
    pub record: ManifestRecord,
}

/// A manifest that several threads fill, a directory at a time.
pub struct ManifestBuilder {
    inner: Shared<Manifest>,
}

impl ManifestBuilder {
    /// A manifest with nothing but its root.
    pub fn new(root: ManifestRecord) -> Self {
        Self {
            inner: Shared::new(Manifest {
                records: vec![root],
                arena: Vec::new(),
                ctime_decides: false,
            }),
        }
    }

    /// Adds the entries of the directory `parent`, sorted by name, and returns the number of the
    /// first of them.
    pub fn add(&self, parent: RecordIndex, entries: Vec<NewEntry>) -> io::Result<RecordIndex> {
        let mut manifest = self.inner.lock();
        let manifest = &mut *manifest;
        let first = RecordIndex::try_from(manifest.records.len()).map_err(|_| too_large())?;
        let count = RecordIndex::try_from(entries.len()).map_err(|_| too_large())?;
        first.checked_add(count).ok_or_else(too_large)?;
        for mut entry in entries {
            entry.record.name = u32::try_from(manifest.arena.len()).map_err(|_| too_large())?;
            entry.record.name_len = u8::try_from(entry.name.len()).map_err(|_| too_large())?;
            manifest.arena.extend_from_slice(&entry.name);
            if entry.record.kind == EntryKind::Symlink {
                let start = u32::try_from(manifest.arena.len()).map_err(|_| too_large())?;
                let length = u32::try_from(entry.target.len()).map_err(|_| too_large())?;
                entry.record.span = (start, length);
                manifest.arena.extend_from_slice(&entry.target);
            }
            manifest.records.push(entry.record);
        }
        manifest.records[parent as usize].span = (first, count);
        Ok(first)
    }

    /// The manifest so far, to be completed by one thread.
    pub fn finish(self) -> Manifest {
        self.inner.into_inner()
    }
}

impl Manifest {
    /// Changes one record in place.
    pub fn update(&mut self, index: RecordIndex, change: impl FnOnce(&mut ManifestRecord)) {
        change(&mut self.records[index as usize]);
    }
}
