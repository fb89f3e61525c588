//! A parallel tree copy that keeps all metadata (rules F1 to F5) and builds a manifest in the same pass.
//!
//! Files get their owner, mode, attributes and times as they are made; directories get theirs
//! last, deepest first, so that a restrictive mode or a time is not undone by what follows.
//! Hard links stay hard links: the first name of an inode is copied, the others are linked to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rayon::prelude::*;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::content::{self, Reflinks, Transfer};
use super::dir::{Dir, DirEntry};
use super::handle::EntryHandle;
use super::manifest::{Manifest, ManifestBuilder, ManifestRecord, NewEntry, RecordIndex};
use super::walk::walk;
use super::xattr::{self, Xattrs};
use super::{Cause, Flags, FsError, Meta, Result, Stamp};
use crate::event::Observer;
use crate::model::text::{Location, escape};
use crate::model::{EntryKind, ResourcePath};

/// How often a file that changes under our eyes is read again before we give up.
const TRIES: usize = 4;

/// A directory with at least this many entries is copied by several threads.
const WIDE: usize = 64;

/// Something that the copy does not have, or not as it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyLoss {
    /// Where.
    pub path: ResourcePath,
    /// What is missing and why.
    pub what: String,
}

/// What a copy did.
#[derive(Debug, Default)]
pub struct CopyReport {
    /// Entries below the root that were copied.
    pub entries: u64,
    /// Files whose content is shared with the original.
    pub shared: u64,
    /// Files whose content was copied.
    pub copied: u64,
    /// Entries whose copies belong to another owner than the originals.
    pub disowned: u64,
    /// Everything that was left out or could not be kept, sorted.
    pub losses: Vec<CopyLoss>,
}

impl CopyReport {
    /// Everything that is not in the copy, or not as in the original, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self
            .losses
            .iter()
            .map(|loss| format!("'{}': {}", loss.path, loss.what))
            .collect();
        if self.disowned > 0 {
            warnings.push(format!(
                "the copies of {} entries belong to you, not to the owners of the originals",
                self.disowned
            ));
        }
        warnings
    }
}

/// The names of one inode: the first one copied, once it is there.
struct LinkGroup {
    number: u32,
    first: Mutex<Option<ResourcePath>>,
}

struct TreeCopier<'a> {
    from: &'a Dir,
    to: &'a Dir,
    reflinks: Reflinks,
    carved: &'a [ResourcePath],
    observer: &'a dyn Observer,
    builder: ManifestBuilder,
    links: Mutex<HashMap<(u64, u64), Arc<LinkGroup>>>,
    linked: Mutex<Vec<(RecordIndex, ResourcePath)>>,
    expected: Mutex<HashMap<RecordIndex, ResourcePath>>,
    directories: Mutex<Vec<UnfinishedDir>>,
    losses: Mutex<Vec<CopyLoss>>,
    shared: AtomicU64,
    copied: AtomicU64,
}

/// A directory whose looks come when everything in it is there.
type UnfinishedDir = (RecordIndex, ResourcePath, Meta, Xattrs, Flags);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Copies everything in `from` into the empty directory `to`, the root's own metadata included, but
/// not what is `carved` out.
pub fn copy_tree(
    from: &Dir,
    to: &Dir,
    reflinks: Reflinks,
    carved: &[ResourcePath],
    observer: &dyn Observer,
) -> Result<(Manifest, CopyReport)> {
    let root = ManifestRecord::of(&from.meta()?);
    let copy = TreeCopier::new(from, to, reflinks, carved, observer, root);
    walk(from, Manifest::ROOT, |visit| {
        copy.directory(visit.dir, visit.path, visit.entries, visit.state)
    })?;
    copy.finish()
}

/// Copies the one file `name` of `from` into the empty directory `to`, whose own looks stay.
pub fn copy_one(
    from: &Dir,
    to: &Dir,
    name: &[u8],
    reflinks: Reflinks,
    observer: &dyn Observer,
) -> Result<(Manifest, CopyReport)> {
    let copy = TreeCopier::new(
        from,
        to,
        reflinks,
        &[],
        observer,
        ManifestRecord::of(&to.meta()?),
    );
    let root = ResourcePath::root();
    if let Some(meta) = from.stat(name)? {
        if !meta.is_file() {
            return Err(from.error("copy", name, Cause::Kind(meta.kind.word())));
        }
        let entry = DirEntry {
            name: name.into(),
            // Its other names are not in the copy.
            meta: Meta { nlink: 1, ..meta },
        };
        let copied = copy.entry(from, to, &root, entry)?;
        let copied: Vec<NewEntry> = copied.into_iter().collect();
        copy.builder
            .add(Manifest::ROOT, copied)
            .map_err(|_| from.error("record", name, Cause::Damaged("its name is too long")))?;
    }
    copy.finish()
}

impl<'a> TreeCopier<'a> {
    fn new(
        from: &'a Dir,
        to: &'a Dir,
        reflinks: Reflinks,
        carved: &'a [ResourcePath],
        observer: &'a dyn Observer,
        root: ManifestRecord,
    ) -> Self {
        Self {
            from,
            to,
            reflinks,
            carved,
            observer,
            builder: ManifestBuilder::new(root),
            links: Mutex::default(),
            linked: Mutex::default(),
            expected: Mutex::default(),
            directories: Mutex::default(),
            losses: Mutex::default(),
            shared: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        }
    }

    fn directory(
        &self,
        from: &Dir,
        path: &ResourcePath,
        entries: Vec<DirEntry>,
        index: RecordIndex,
    ) -> Result<Vec<(Box<[u8]>, RecordIndex)>> {
        let to = self.to.dir(path)?;
        let meta = from.meta()?;
        let attributes = xattr::read(&EntryHandle::of(from))
            .map_err(|errno| from.error("read the attributes of", b"", Cause::Os(errno)))?;
        let flags = Flags::read(from)
            .map_err(|errno| from.error("read the flags of", b"", Cause::Os(errno)))?;
        let one = |entry: DirEntry| self.entry(from, &to, path, entry).transpose();
        let copied: Vec<NewEntry> = if entries.len() < WIDE {
            entries.into_iter().filter_map(one).collect::<Result<_>>()?
        } else {
            entries
                .into_par_iter()
                .filter_map(one)
                .collect::<Result<_>>()?
        };
        let notable: Vec<(usize, Box<[u8]>, bool)> = copied
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.record.is_dir() || entry.record.link != 0)
            .map(|(at, entry)| (at, entry.name.clone(), entry.record.is_dir()))
            .collect();
        let first = self
            .builder
            .add(index, copied)
            .map_err(|_| from.error("record", b"", Cause::Damaged("the tree is too large")))?;
        lock(&self.expected).remove(&index);
        lock(&self.directories).push((index, path.clone(), meta, attributes, flags));
        let mut next = Vec::new();
        for (at, name, is_dir) in notable {
            let index = first + at as RecordIndex;
            let path = path.join(&name);
            if is_dir {
                lock(&self.expected).insert(index, path);
                next.push((name, index));
            } else {
                lock(&self.linked).push((index, path));
            }
        }
        Ok(next)
    }

    /// Copies one entry; of a directory only the empty shell. `None` where it is gone by now.
    fn entry(
        &self,
        from: &Dir,
        to: &Dir,
        path: &ResourcePath,
        entry: DirEntry,
    ) -> Result<Option<NewEntry>> {
        if self.observer.is_cancelled() {
            return Err(from.error("copy", &entry.name, Cause::Cancelled));
        }
        if entry.meta.is_dir() && super::state_dir::is_area_beside(&entry.name) {
            let what = "it is a sandbox of Escrow, not part of the resource";
            self.lost(path, &entry.name, what.to_owned());
            return Ok(None);
        }
        let name = entry.name.clone();
        match self.present(from, to, path, entry) {
            Err(error) if error.is_absent() && from.stat(&name)?.is_none() => {
                super::remove::remove(to, &name)?;
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    fn present(
        &self,
        from: &Dir,
        to: &Dir,
        path: &ResourcePath,
        entry: DirEntry,
    ) -> Result<NewEntry> {
        let DirEntry { name, meta } = entry;
        let mut new = NewEntry {
            target: Vec::new(),
            record: ManifestRecord::of(&meta),
            name,
        };
        if self.carved.contains(&path.join(&new.name)) {
            new.record.leave_out();
        } else if let Some(why) = why_left_out(from, &meta) {
            new.record.leave_out();
            self.lost(path, &new.name, why);
        }
        if meta.is_dir() {
            to.make_dir(&new.name, 0o700)?;
        } else if !new.record.is_left_out() {
            self.leaf(from, to, path, &mut new, &meta)?;
        }
        Ok(new)
    }

    /// Copies what is no directory: the first name of an inode, or a link to its copy.
    fn leaf(
        &self,
        from: &Dir,
        to: &Dir,
        path: &ResourcePath,
        new: &mut NewEntry,
        meta: &Meta,
    ) -> Result<()> {
        let name = &*new.name;
        let links = (meta.nlink > 1).then(|| self.links_of(meta));
        let mut first = links.as_ref().map(|links| {
            new.record.link = links.number;
            lock(&links.first)
        });
        if let Some(Some(first)) = first.as_deref() {
            let now = from.stat(name)?;
            // Otherwise another process put another file there since it was listed.
            if now.is_some_and(|now| (now.dev, now.ino) == (meta.dev, meta.ino)) {
                // Its metadata came with the first name; the record is completed at the end.
                to.hard_link(name, self.to, first)?;
                if meta.kind == EntryKind::Symlink {
                    new.target = from.read_link(name)?;
                }
                self.observer.copied(1, 0);
                return Ok(());
            }
        }
        let (original, copy, attributes, lost) = match meta.kind {
            EntryKind::File => self.file(from, to, name)?,
            kind => {
                let (copied, target) = special((from, name), (to, name), kind)?;
                new.target = target;
                copied
            }
        };
        for attribute in lost {
            self.lost(path, name, not_kept(&attribute));
        }
        // What was copied need not be what was listed: then it is no name of that inode.
        let same = (original.dev, original.ino) == (meta.dev, meta.ino);
        let link = if same { new.record.link } else { 0 };
        new.record = ManifestRecord::of(&original);
        new.record.link = link;
        new.record.copied(&copy);
        new.record.xattrs = xattr::digest(&attributes);
        if let Some(first) = first.as_deref_mut().filter(|_| same) {
            *first = Some(path.join(name));
        }
        self.observer.copied(1, original.size);
        Ok(())
    }

    fn file(&self, from: &Dir, to: &Dir, name: &[u8]) -> Result<CopiedMetadata> {
        let copied = copy_file(
            (from, name),
            (to, name),
            &self.reflinks,
            ExpectedWriters::Live,
        )?;
        let (meta, copy, attributes, lost, transfer) = copied;
        match transfer {
            Transfer::Shared => self.shared.fetch_add(1, Ordering::Relaxed),
            Transfer::Copied => self.copied.fetch_add(1, Ordering::Relaxed),
            Transfer::Nothing => 0,
        };
        Ok((meta, copy, attributes, lost))
    }

    fn links_of(&self, meta: &Meta) -> Arc<LinkGroup> {
        let mut table = lock(&self.links);
        let number = table.len() as u32 + 1;
        let links = table.entry((meta.dev, meta.ino)).or_insert_with(|| {
            Arc::new(LinkGroup {
                number,
                first: Mutex::new(None),
            })
        });
        Arc::clone(links)
    }

    fn lost(&self, path: &ResourcePath, name: &[u8], what: String) {
        lock(&self.losses).push(CopyLoss {
            path: path.join(name),
            what,
        });
    }

    fn finish(self) -> Result<(Manifest, CopyReport)> {
        let mut manifest = self.builder.finish();
        let mut losses = take(self.losses);
        let mut newest = Stamp::default();
        // A further name moves the ctime of an inode, so they are looked at when all are made;
        // the attributes of the inode came with the name that was copied.
        let linked = take(self.linked);
        let mut digests = HashMap::new();
        for (index, _) in &linked {
            let record = manifest.record(*index);
            if record.xattrs != [0; 16] {
                digests.insert(record.link, record.xattrs);
            }
        }
        for (index, path) in &linked {
            let copy = self.to.stat_path(path)?.ok_or_else(|| {
                self.to
                    .error("find the copy of", path.as_bytes(), Cause::Os(Errno::NOENT))
            })?;
            manifest.update(*index, |record| {
                record.copied(&copy);
                record.xattrs = digests.get(&record.link).copied().unwrap_or_default();
            });
        }
        // Parents were recorded before their children, so backwards is deepest first.
        let mut directories = take(self.directories);
        directories.sort_unstable_by_key(|(index, ..)| *index);
        for (index, path, meta, attributes, flags) in directories.iter().rev() {
            let dir = self.to.dir(path)?;
            flags
                .set(&dir)
                .map_err(|errno| dir.error("set the flags of", b"", Cause::Os(errno)))?;
            let dressed = EntryHandle::of(&dir).apply_metadata(meta, attributes);
            let lost =
                dressed.map_err(|errno| dir.error("set the metadata of", b"", Cause::Os(errno)))?;
            let mut kept = attributes.clone();
            for attribute in lost {
                kept.retain(|(name, _)| *name != attribute);
                losses.push(CopyLoss {
                    path: path.clone(),
                    what: not_kept(&attribute),
                });
            }
            let copy = dir.meta()?;
            manifest.update(*index, |record| {
                record.copied(&copy);
                record.xattrs = xattr::digest(&kept);
            });
        }
        if let Some(path) = take(self.expected).into_values().min() {
            return Err(FsError {
                action: "copy the directory",
                path: Location::from(self.from.locate(&path)),
                cause: Cause::Vanished,
            });
        }
        let mut disowned = 0;
        for index in 0..manifest.len() {
            let record = manifest.record(index as RecordIndex);
            newest = newest.max(record.copy_ctime);
            disowned += u64::from(record.copy_owner != (record.uid, record.gid));
        }
        manifest.ctime_decides = settle(newest);
        losses.sort_unstable();
        let report = CopyReport {
            entries: manifest.len() as u64 - 1,
            shared: self.shared.into_inner(),
            copied: self.copied.into_inner(),
            disowned,
            losses,
        };
        Ok((manifest, report))
    }
}

/// The original's metadata as copied, the copy's, the attributes it has, those it could not keep.
type CopiedMetadata = (Meta, Meta, Xattrs, Vec<Vec<u8>>);

type CopiedEntry = (Meta, Meta, Xattrs, Vec<Vec<u8>>, Transfer);

/// Why an entry is not copied, if it is not.
fn why_left_out(from: &Dir, meta: &Meta) -> Option<String> {
    if from.is_mount_point(meta) {
        let why = "another file system is mounted there; it is not part of the resource";
        return Some(why.to_owned());
    }
    let special = matches!(meta.kind, EntryKind::Socket | EntryKind::Device);
    special.then(|| format!("a {} is not copied", meta.kind.word()))
}

fn not_kept(attribute: &[u8]) -> String {
    format!("the attribute {} cannot be kept here", escape(attribute))
}

/// Whether others may be writing to what is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedWriters {
    /// They may: what changed just now is read a second time, to be sure.
    Live,
    /// They do not, and if one does all the same, its times tell.
    Quiet,
}

/// A name in a directory.
pub type DirAndName<'a> = (&'a Dir, &'a [u8]);

/// Copies one regular file with all its metadata; nothing may stand at `to`.
///
/// Returns the original's metadata as copied, the copy's, the attributes the copy has, and those
/// it could not keep. A file that changes meanwhile is copied again.
pub fn copy_file(
    (from, name): DirAndName<'_>,
    (to, to_name): DirAndName<'_>,
    reflinks: &Reflinks,
    care: ExpectedWriters,
) -> Result<CopiedEntry> {
    for _ in 0..TRIES {
        let (source, before) = from.file(name)?;
        let target = to.create(to_name, 0o600)?;
        let io = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            from.error("copy", name, Cause::Os(errno))
        };
        let set_flags = |errno| to.error("set the flags of", to_name, Cause::Os(errno));
        let flags = Flags::read(&source)
            .map_err(|errno| from.error("read the flags of", name, Cause::Os(errno)))?;
        flags.begin(&target).map_err(set_flags)?;
        let transfer = content::transfer(&source, &target, &before, reflinks).map_err(io)?;
        let mut attributes = xattr::read(&EntryHandle::of(&source))
            .map_err(|errno| from.error("read the attributes of", name, Cause::Os(errno)))?;
        // A write that was under way when the file was opened had moved its ctime already, so for
        // one that changed just now the bytes themselves must agree.
        let unsure = care == ExpectedWriters::Live
            && transfer == Transfer::Copied
            && is_recent(before.ctime);
        let steady = (!unsure || content::same(&source, &target).map_err(io)?)
            && from.meta_of(name, &source)?.same_state(&before);
        if !steady {
            to.unlink(to_name)?;
            continue;
        }
        let lost = EntryHandle::of(&target)
            .apply_metadata(&before, &attributes)
            .map_err(|errno| to.error("set the metadata of", to_name, Cause::Os(errno)))?;
        attributes.retain(|(attribute, _)| !lost.contains(attribute));
        // A sandbox does without those that cannot be had: a commit takes them from the original.
        flags.set(&target).map_err(set_flags)?;
        let copy = to.meta_of(to_name, &target)?;
        return Ok((before, copy, attributes, lost, transfer));
    }
    Err(from.error("copy", name, Cause::Unsteady))
}

/// Makes a file anew that lies at `name` with no other name: with flags that only an empty file can be given.
pub fn recast(dir: &Dir, name: &[u8], flags: Flags) -> Result<()> {
    let fresh = [name, b".new"].concat();
    let fail = |errno| dir.error("set the flags of", name, Cause::Os(errno));
    let (source, meta) = dir.file(name)?;
    let target = dir.create(&fresh, 0o600)?;
    flags.begin(&target).map_err(fail)?;
    content::transfer(&source, &target, &meta, &Reflinks::never()).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        dir.error("copy", name, Cause::Os(errno))
    })?;
    let attributes = xattr::read(&EntryHandle::of(&source)).map_err(fail)?;
    EntryHandle::of(&target)
        .apply_metadata(&meta, &attributes)
        .map_err(fail)?;
    dir.rename(&fresh, dir, name)
}

/// Copies a symbolic link, whose target it returns, or a named pipe.
fn special(
    (from, name): DirAndName<'_>,
    (to, to_name): DirAndName<'_>,
    kind: EntryKind,
) -> Result<(CopiedMetadata, Vec<u8>)> {
    let gone = |dir: &Dir| dir.error("copy", to_name, Cause::Os(Errno::NOENT));
    let original = from.handle(name)?;
    let fail = |errno| from.error("read the attributes of", name, Cause::Os(errno));
    let meta = original.meta().map_err(fail)?;
    if meta.kind != kind {
        return Err(from.error("copy", name, Cause::Vanished));
    }
    let mut attributes = xattr::read(&original).map_err(fail)?;
    let mut target = Vec::new();
    match kind {
        EntryKind::Symlink => {
            target = original.read_link().map_err(fail)?;
            to.make_link(to_name, &target)?;
        }
        _ => to.make_fifo(to_name, 0o600)?,
    }
    let lost = to
        .handle(to_name)?
        .apply_metadata(&meta, &attributes)
        .map_err(|errno| to.error("set the metadata of", to_name, Cause::Os(errno)))?;
    attributes.retain(|(attribute, _)| !lost.contains(attribute));
    let copy = to.stat(to_name)?.ok_or_else(|| gone(to))?;
    Ok(((meta, copy, attributes, lost), target))
}

/// One entry that is no directory, copied.
#[derive(Debug)]
pub struct CopiedLeaf {
    /// The original's metadata as copied.
    pub original: Meta,
    /// The copy's.
    pub copy: Meta,
    /// The attributes that the copy has.
    pub attributes: Xattrs,
    /// Those that it could not keep.
    pub lost: Vec<Vec<u8>>,
    /// How its bytes came across.
    pub transfer: Transfer,
}

/// Copies one entry that is no directory; nothing may stand at `to`.
pub fn copy_leaf(
    from: DirAndName<'_>,
    to: DirAndName<'_>,
    kind: EntryKind,
    reflinks: &Reflinks,
    care: ExpectedWriters,
) -> Result<CopiedLeaf> {
    let (original, copy, attributes, lost, transfer) = match kind {
        EntryKind::File => copy_file(from, to, reflinks, care)?,
        EntryKind::Symlink | EntryKind::Fifo => {
            let ((original, copy, attributes, lost), _) = special(from, to, kind)?;
            (original, copy, attributes, lost, Transfer::Nothing)
        }
        kind => return Err(from.0.error("copy", from.1, Cause::Kind(kind.word()))),
    };
    Ok(CopiedLeaf {
        original,
        copy,
        attributes,
        lost,
        transfer,
    })
}

/// Waits until the clock by which the file system stamps changes has moved past `newest`, so
/// that any later change gets a later ctime. Says whether that can be relied on.
pub fn settle(newest: Stamp) -> bool {
    // A file system that keeps whole seconds only cannot distinguish two changes of one second: they
    // are distinguished by waiting, but what came before cannot be relied on.
    if newest.nsec == 0 {
        while clock().sec <= newest.sec && clock().sec + 2 > newest.sec {
            std::thread::sleep(Duration::from_millis(20));
        }
        return false;
    }
    for _ in 0..64 {
        if clock() > newest {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// The clock by which the file system stamps changes.
pub fn clock() -> Stamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Stamp {
        sec: now.tv_sec,
        nsec: u32::try_from(now.tv_nsec).unwrap_or_default(),
    }
}

/// Whether a change is so fresh that the write behind it may still be going on.
fn is_recent(ctime: Stamp) -> bool {
    (ctime.sec - clock().sec).abs() <= 2
}
