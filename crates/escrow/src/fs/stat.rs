//! Metadata by `statx`, without the births that identify nothing.
//!
//! On an overlay file system the first change to a file makes it anew in the upper layer: its number stays, its birth does
//! not. There `born` is zero, as on file systems that keep no births.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{self, AtFlags, Mode, OFlags, StatFs, Statx, StatxFlags};
use rustix::io::Result;

use super::as_owner::as_owner;
use super::meta::{Meta, Stamp};

/// What the kernel calls an overlay file system.
const OVERLAY: fs::FsWord = 0x794c_7630;

thread_local! {
    /// The mount and the device that were looked at last, and whether they are an overlay's.
    static LAST: Cell<(u64, u64, bool)> = const { Cell::new((0, 0, false)) };
}

/// What stands at a name in a directory; a link is not followed.
pub(super) fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Meta> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = as_owner(|| fs::statx(dir, name, flags, wanted()))?;
    settled(stat, || {
        let held = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::fstatfs(as_owner(|| fs::openat(dir, name, held, Mode::empty()))?)
    })
}

/// What is open.
pub(super) fn stat_fd(fd: impl AsFd) -> Result<Meta> {
    let stat = fs::statx(fd.as_fd(), c"", AtFlags::EMPTY_PATH, wanted())?;
    settled(stat, || fs::fstatfs(fd))
}

fn settled(stat: Statx, file_system: impl FnOnce() -> Result<StatFs>) -> Result<Meta> {
    let mut meta = Meta::from(stat);
    // An overlay has no device behind it.
    if stat.stx_dev_major == 0 && is_overlay(&meta, file_system)? {
        meta.born = Stamp::default();
    }
    Ok(meta)
}

fn is_overlay(meta: &Meta, file_system: impl FnOnce() -> Result<StatFs>) -> Result<bool> {
    let (mount, dev, known) = LAST.get();
    if (mount, dev) == (meta.mount, meta.dev) {
        return Ok(known);
    }
    let found = is_overlay_type(&file_system()?);
    LAST.set((meta.mount, meta.dev, found));
    Ok(found)
}

/// Whether a file system is an overlay.
pub(super) fn is_overlay_type(file_system: &StatFs) -> bool {
    file_system.f_type == OVERLAY
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID
}
