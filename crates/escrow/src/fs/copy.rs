//! A parallel tree copy that keeps all metadata and builds a manifest in the same pass.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rayon::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::content::Reflinks;
use super::dir::{Dir, DirEntry};
use super::manifest::{Manifest, ManifestBuilder, ManifestRecord, NewEntry, RecordIndex};
use super::place::{CopiedLeaf, CopyOptions, CopyReport, DirLook, Placed, Placer};
use super::walk::walk;
use super::{Cause, Flags, FsError, Meta, Result, Stamp, xattr};
use crate::event::Observer;
use crate::model::text::Location;
use crate::model::{EntryKind, ResourcePath};

/// A directory with at least this many entries is copied by several threads.
const WIDE: usize = 64;

struct TreeCopier<'a> {
    from: &'a Dir,
    to: &'a Dir,
    carved: &'a [ResourcePath],
    builder: ManifestBuilder,
    /// Of a file of several names its number is known too.
    placer: Placer<'a, (CopiedLeaf, u32)>,
    files: AtomicU32,
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
    let copy = TreeCopier {
        from,
        to,
        carved,
        builder: ManifestBuilder::new(ManifestRecord::of(&from.meta()?)),
        placer: Placer::reporting(to, reflinks, observer),
        files: AtomicU32::new(1),
    };
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
    let copy = TreeCopier {
        from,
        to,
        carved: &[],
        builder: ManifestBuilder::new(ManifestRecord::of(&to.meta()?)),
        placer: Placer::reporting(to, reflinks, observer),
        files: AtomicU32::new(1),
    };
    if let Some(meta) = from.stat(name)? {
        if !meta.is_file() {
            return Err(from.error("copy", name, Cause::Kind(meta.kind.word())));
        }
        let entry = DirEntry {
            name: name.into(),
            // Its other names are not in the copy.
            meta: Meta { nlink: 1, ..meta },
        };
        let copied = copy.entry(from, to, &ResourcePath::root(), entry)?;
        copy.builder
            .add(Manifest::ROOT, copied.into_iter().collect())
            .map_err(|_| from.error("record", name, Cause::Damaged("its name is too long")))?;
    }
    copy.finish()
}

impl TreeCopier<'_> {
    fn directory(
        &self,
        from: &Dir,
        path: &ResourcePath,
        entries: Vec<DirEntry>,
        index: RecordIndex,
    ) -> Result<Vec<(Box<[u8]>, RecordIndex)>> {
        let to = self.to.dir(path)?;
        let flags = Flags::read(from)
            .map_err(|errno| from.error("read the flags of", b"", Cause::Os(errno)))?;
        let look = DirLook {
            flags: Some(flags),
            ..DirLook::of(from)?
        };
        let one = |entry: DirEntry| self.entry(from, &to, path, entry).transpose();
        let copied: Vec<NewEntry> = if entries.len() < WIDE {
            entries.into_iter().filter_map(one).collect::<Result<_>>()?
        } else {
            entries
                .into_par_iter()
                .filter_map(one)
                .collect::<Result<_>>()?
        };
        let is_dir = |(_, entry): &(RecordIndex, &NewEntry)| entry.record.is_dir();
        let dirs = (0..).zip(&copied).filter(is_dir);
        let mut next: Vec<_> = dirs.map(|(at, entry)| (entry.name.clone(), at)).collect();
        let first = self
            .builder
            .add(index, copied)
            .map_err(|_| from.error("record", b"", Cause::Damaged("the tree is too large")))?;
        next.iter_mut().for_each(|(_, at)| *at += first);
        self.placer.dir(path.clone(), look);
        Ok(next)
    }

    /// Copies one entry; of a directory only the empty shell. `None` where it is gone by now.
    fn entry(
        &self,
        from: &Dir,
        to: &Dir,
        path: &ResourcePath,
        DirEntry { name, meta }: DirEntry,
    ) -> Result<Option<NewEntry>> {
        let path = path.join(&name);
        self.placer.check((from, &name))?;
        if meta.is_dir() && super::state_dir::is_area_beside(&name) {
            let what = "it is a sandbox of Escrow, not part of the resource";
            self.placer.lost(path, what.to_owned());
            return Ok(None);
        }
        let mut new = NewEntry {
            target: Vec::new(),
            record: ManifestRecord::of(&meta),
            name,
        };
        if self.carved.contains(&path) {
            new.record.leave_out();
        } else if let Some(why) = why_left_out(from, &meta) {
            new.record.leave_out();
            self.placer.lost(path.clone(), why);
        }
        let made = match meta.is_dir() {
            true => to.make_dir(&new.name, 0o700),
            false if new.record.is_left_out() => Ok(()),
            false => self.leaf(from, to, &path, &mut new, &meta),
        };
        match made {
            Err(error) if error.is_absent() && from.stat(&new.name)?.is_none() => {
                super::remove::remove(to, &new.name)?;
                Ok(None)
            }
            made => made.map(|()| Some(new)),
        }
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
        // What is there by now need not be what was listed: then it is no name of that inode.
        let is_it = |now: &Meta| (now.dev, now.ino) == (meta.dev, meta.ino);
        let key = (meta.nlink > 1).then_some((meta.dev, meta.ino));
        let copy = || -> Result<_> {
            let options = CopyOptions {
                lossy: true,
                ..CopyOptions::LIVE
            };
            let (from, to) = ((from, name), (to, name));
            let leaf = self.placer.copy(from, to, meta.kind, options)?;
            for attribute in &leaf.lost {
                self.placer.lost_attribute(path.clone(), attribute);
            }
            let number = match key.filter(|_| is_it(&leaf.original)) {
                Some(_) => self.files.fetch_add(1, Ordering::Relaxed),
                None => 0,
            };
            Ok(((leaf, number), number != 0))
        };
        let (leaf, number) = match self.placer.entry(key, path, (to, name), copy)? {
            Placed::Linked(_) if !from.stat(name)?.is_some_and(|now| is_it(&now)) => {
                to.unlink(name)?;
                let ((leaf, _), _) = copy()?;
                (leaf, 0)
            }
            Placed::Linked(known) | Placed::Made(known) => known,
        };
        new.record = ManifestRecord::of(&leaf.original);
        new.record.link = number;
        new.record.copied(&leaf.copy);
        new.record.xattrs = xattr::digest(&leaf.attributes);
        new.target = leaf.target;
        Ok(())
    }

    fn finish(self) -> Result<(Manifest, CopyReport)> {
        let mut manifest = self.builder.finish();
        let mut report = self.placer.finish_with(|path, copy, kept| {
            let Some(index) = manifest.find(path) else {
                return;
            };
            manifest.update(index, |record| {
                record.copied(copy);
                if let Some(kept) = kept {
                    record.xattrs = xattr::digest(kept);
                }
            });
        })?;
        // One that was listed and is not there when it is to be copied.
        let mut vanished = None;
        manifest.below(Manifest::ROOT, &ResourcePath::root(), &mut |index, path| {
            let record = manifest.record(index);
            if record.is_dir() && record.copy_ino == 0 {
                vanished.get_or_insert_with(|| path.clone());
            }
        });
        if let Some(path) = vanished {
            return Err(FsError {
                action: "copy the directory",
                path: Location::from(self.from.locate(&path)),
                cause: Cause::Vanished,
            });
        }
        let mut newest = Stamp::default();
        for index in 0..manifest.len() {
            let record = manifest.record(index as RecordIndex);
            newest = newest.max(record.copy_ctime);
            report.disowned += u64::from(record.copy_owner != (record.uid, record.gid));
        }
        manifest.ctime_decides = settle(newest);
        report.entries = manifest.len() as u64 - 1;
        Ok((manifest, report))
    }
}

/// Why an entry is not copied, if it is not.
fn why_left_out(from: &Dir, meta: &Meta) -> Option<String> {
    if from.is_mount_point(meta) {
        let why = "another file system is mounted there; it is not part of the resource";
        return Some(why.to_owned());
    }
    let special = matches!(meta.kind, EntryKind::Socket | EntryKind::Device);
    special.then(|| format!("a {} is not copied", meta.kind.word()))
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
