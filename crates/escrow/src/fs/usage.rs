//! Disk usage of a tree, and how much of it is shared with files elsewhere.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::dir::{Dir, DirEntry};
use super::extents;
use super::walk::{Shared, walk};
use super::{FsError, Meta, Result};

/// Bytes on disk, as the file system counts blocks.
///
/// Shared are files that have a name outside of the tree, and blocks that a reflink shares with another
/// file, where the kernel reports them; also if that one lies in the tree too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// What goes with the tree.
    pub private: u64,
    /// What has a name elsewhere and stays.
    pub shared: u64,
    /// Directories that could not be looked into.
    pub unread: u64,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.private += other.private;
        self.shared += other.shared;
        self.unread += other.unread;
    }
}

fn on_disk(meta: &Meta) -> u64 {
    meta.blocks * 512
}

/// The bytes of a file that another one holds too; those of one that we cannot read are its own.
fn shared_of(dir: &Dir, entry: &DirEntry) -> u64 {
    if !entry.meta.is_file() || entry.meta.blocks == 0 {
        return 0;
    }
    match dir.file(&entry.name) {
        Ok((file, _)) => extents::shared_bytes(&file).min(on_disk(&entry.meta)),
        Err(_) => 0,
    }
}

/// Whether a directory cannot be looked into.
fn is_closed(dir: &Dir, name: &[u8], meta: &Meta) -> bool {
    let open = rustix::process::geteuid().is_root() || meta.mode & 0o500 == 0o500;
    !open && dir.subdir(name).is_err_and(|error| error.is(Errno::ACCESS))
}

/// The bytes of everything in a directory, roughly and fast: a file counts once for each of its names.
pub fn occupied(top: &Dir) -> Result<u64> {
    let sum = AtomicU64::new(0);
    walk(top, (), |visit| {
        let mut next = Vec::new();
        for entry in visit.entries {
            sum.fetch_add(on_disk(&entry.meta), Ordering::Relaxed);
            if entry.meta.is_dir() && !is_closed(visit.dir, &entry.name, &entry.meta) {
                next.push((entry.name, ()));
            }
        }
        Ok::<_, FsError>(next)
    })?;
    Ok(sum.into_inner())
}

/// Measures `name` and everything in it; nothing where it is not there. What is closed to us is counted as unread.
pub fn measure(parent: &Dir, name: &[u8]) -> Result<Usage> {
    let Some(meta) = parent.stat(name)? else {
        return Ok(Usage::default());
    };
    let (private, unread) = (AtomicU64::new(on_disk(&meta)), AtomicU64::new(0));
    let shared = AtomicU64::new(0);
    // Files of several names: bytes, names, and how many of these are in the tree.
    let several = Shared::new(HashMap::<u64, (u64, u32, u32)>::new());
    if meta.is_dir() && is_closed(parent, name, &meta) {
        unread.store(1, Ordering::Relaxed);
    } else if meta.is_dir() && !parent.is_mount_point(&meta) {
        let top = parent.subdir(name)?;
        let reflinks = extents::can_share(&top);
        walk(&top, (), |visit| {
            let mut next = Vec::new();
            for entry in visit.entries {
                let meta = entry.meta;
                if meta.is_dir() && visit.dir.is_mount_point(&meta) {
                    continue;
                }
                if !meta.is_dir() && meta.nlink > 1 {
                    let mut several = several.lock();
                    let seen = several.entry(meta.ino);
                    seen.or_insert((on_disk(&meta), meta.nlink, 0)).2 += 1;
                    continue;
                }
                let elsewhere = match reflinks {
                    true => shared_of(visit.dir, &entry),
                    false => 0,
                };
                shared.fetch_add(elsewhere, Ordering::Relaxed);
                private.fetch_add(on_disk(&meta) - elsewhere, Ordering::Relaxed);
                match meta.is_dir() {
                    true if is_closed(visit.dir, &entry.name, &meta) => {
                        unread.fetch_add(1, Ordering::Relaxed);
                    }
                    true => next.push((entry.name, ())),
                    false => {}
                }
            }
            Ok::<_, FsError>(next)
        })?;
    }
    let mut usage = Usage {
        private: private.into_inner(),
        shared: shared.into_inner(),
        unread: unread.into_inner(),
    };
    let several = several.into_inner();
    for (bytes, names, inside) in several.into_values() {
        match inside >= names {
            true => usage.private += bytes,
            false => usage.shared += bytes,
        }
    }
    Ok(usage)
}
