//! Inode flags (`chattr`): which of them belong to a file and are copied with it.
//!
//! Immutable and append-only do not: they say what may not be done, and a copy is made to be worked in. An original
//! that has one of them is not replaced at all ([`Meta::fixed`](super::Meta)).

use std::os::fd::AsFd;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::{Errno, Result};

/// `FS_NOCOMP_FL`, which the library does not name.
const NOCOMP: IFlags = IFlags::from_bits_retain(0x400);

/// What a file or directory keeps.
const KEPT: IFlags = IFlags::NODUMP
    .union(IFlags::NOATIME)
    .union(IFlags::SYNC)
    .union(IFlags::DIRSYNC)
    .union(IFlags::NOTAIL)
    .union(IFlags::TOPDIR)
    .union(IFlags::NOCOW)
    .union(IFlags::COMPRESSED)
    .union(NOCOMP)
    .union(IFlags::UNRM)
    .union(IFlags::SECURE_REMOVAL)
    .union(IFlags::JOURNALING);

/// What a new entry gets from its directory where the file system hands on what says how data is stored (Btrfs).
const STORAGE: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED).union(NOCOMP);

/// What it gets elsewhere.
const HANDED_ON: IFlags = IFlags::NODUMP.union(IFlags::NOATIME).union(IFlags::SYNC);

/// The flags that an entry keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags(IFlags);

impl Flags {
    /// None.
    pub const NONE: Self = Self(IFlags::empty());

    /// Those of something open; none where the file system has no flags.
    pub fn read(open: impl AsFd) -> Result<Self> {
        match ioctl_getflags(open) {
            Ok(flags) => Ok(Self(flags & KEPT)),
            Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(Self::NONE),
            Err(errno) => Err(errno),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// What a new entry gets in a directory that has these.
    pub fn handed_on(self, dir: impl AsFd) -> Result<Self> {
        if self.is_empty() {
            return Ok(self);
        }
        const BTRFS: u64 = 0x9123_683e;
        let kind = rustix::fs::fstatfs(dir)?.f_type;
        let given = match u64::try_from(kind).is_ok_and(|kind| kind == BTRFS) {
            true => STORAGE,
            false => HANDED_ON,
        };
        Ok(Self(self.0 & given))
    }

    /// Whether data is stored otherwise than with `other`: only an empty file can be given that.
    pub fn stores_otherwise(self, other: Self) -> bool {
        (self.0 ^ other.0).contains(IFlags::NOCOW)
    }

    /// Gives a file, which is empty, what it can be given only then. Where it cannot be had, one does without.
    pub fn begin(self, file: impl AsFd) -> Result<()> {
        let have = Self::read(&file)?;
        match self.stores_otherwise(have) {
            true => Self(have.0 ^ IFlags::NOCOW).set(file).map(|_| ()),
            false => Ok(()),
        }
    }

    /// Gives something open these flags and no others of the kind; says whether it has them now. What this user or this
    /// file system cannot set is not an error.
    pub fn set(self, open: impl AsFd) -> Result<bool> {
        let all = match ioctl_getflags(&open) {
            Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Ok(self.is_empty());
            }
            all => all?,
        };
        if all & KEPT == self.0 {
            return Ok(true);
        }
        // Those that are not kept stay as they are; what only shows how an inode is stored may be set as it is.
        let refused = |errno: Errno| {
            matches!(
                errno,
                Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL | Errno::ACCESS
            )
        };
        match ioctl_setflags(&open, (all - KEPT) | self.0) {
            Err(errno) if refused(errno) => {}
            answer => {
                answer?;
                return Ok(ioctl_getflags(&open)? & KEPT == self.0);
            }
        }
        // Together they are refused; each that is permitted is better than none.
        for flag in (self.0 ^ (all & KEPT)).iter() {
            let now = ioctl_getflags(&open)?;
            match ioctl_setflags(&open, now ^ flag) {
                Err(errno) if refused(errno) => {}
                answer => answer?,
            }
        }
        Ok(ioctl_getflags(&open)? & KEPT == self.0)
    }
}
