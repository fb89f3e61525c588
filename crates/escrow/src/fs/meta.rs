//! Metadata of one entry, as `statx` returns it, in one small value.

use rustix::fs::{FileType, Statx, StatxAttributes};
use serde::{Deserialize, Serialize};

use crate::model::{EntryInfo, EntryKind};

/// A point in time of the file system, to the nanosecond.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// The metadata of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: EntryKind,
    /// The twelve permission bits.
    pub mode: u16,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// How many names it has.
    pub nlink: u32,
    /// Its file system.
    pub dev: u64,
    /// Its number on the file system.
    pub ino: u64,
    /// The device behind a device node.
    pub rdev: u64,
    /// Blocks of 512 bytes on disk.
    pub blocks: u64,
    /// When its content was changed, which anyone may set.
    pub mtime: Stamp,
    /// When it was last read.
    pub atime: Stamp,
    /// When anything about it was changed, which no program can set.
    pub ctime: Stamp,
    /// When it was made; zero where the file system does not say.
    pub born: Stamp,
    /// The mount it was seen through.
    pub mount: u64,
    /// It is immutable or append-only (`chattr +i`, `+a`): no process can replace, move or remove it.
    pub fixed: bool,
}

impl Meta {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == EntryKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == EntryKind::File
    }

    /// Whether this is the mark that OverlayFS leaves for what was deleted.
    pub fn is_whiteout(&self) -> bool {
        self.kind == EntryKind::Device && self.rdev == 0
    }

    /// Whether two looks at one entry saw the same state: nothing happened in between.
    pub fn same_state(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.size, self.mtime, self.ctime)
            == (other.dev, other.ino, other.size, other.mtime, other.ctime)
    }

    /// What a diff says of it, but for a link's target.
    pub fn facts(&self) -> EntryInfo {
        let sized = matches!(self.kind, EntryKind::File | EntryKind::Symlink);
        EntryInfo {
            kind: self.kind,
            size: if sized { self.size } else { 0 },
            mode: self.mode,
            target: None,
        }
    }
}

fn stamp(time: rustix::fs::StatxTimestamp) -> Stamp {
    Stamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

impl From<Statx> for Meta {
    fn from(stat: Statx) -> Self {
        let kind = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            _ => EntryKind::Device,
        };
        let number = |major: u32, minor: u32| (u64::from(major) << 32) | u64::from(minor);
        Self {
            kind,
            mode: stat.stx_mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            nlink: stat.stx_nlink,
            dev: number(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            rdev: number(stat.stx_rdev_major, stat.stx_rdev_minor),
            blocks: stat.stx_blocks,
            mtime: stamp(stat.stx_mtime),
            atime: stamp(stat.stx_atime),
            ctime: stamp(stat.stx_ctime),
            born: stamp(stat.stx_btime),
            mount: stat.stx_mnt_id,
            fixed: stat
                .stx_attributes
                .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
        }
    }
}
