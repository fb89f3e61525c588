//! The independent checker: everything a tree is made of, as one value that can be compared.
//!
//! Promise: nothing is followed, changed or opened that could block. Symlinks, FIFOs, sockets and devices are only
//! looked at. Depth and length of paths do not matter. Content counts by its bytes, so a hole equals zeros there, and
//! the hole map says separately where data is allocated.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::walk::{self, Step};

mod compare;
pub use compare::{Ignore, assert_same, differences, unchanged};

/// A tree: relative path in bytes, empty for the root, to what is there.
pub type Sig = BTreeMap<Vec<u8>, Entry>;

/// What kind of thing an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// The content of a file or directory, as far as this process may read it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Digest of a file's bytes; see also the size.
    Digest(u128),
    /// A directory that could be listed.
    Listed,
    /// Permission denied: nothing is known about the content.
    Unreadable,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest(digest) => write!(f, "{digest:032x}"),
            Self::Listed => f.write_str("listed"),
            Self::Unreadable => f.write_str("unreadable"),
        }
    }
}

/// All there is to know about one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: Kind,
    /// Permissions with setuid, setgid and sticky: 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file, 0 for all other kinds.
    pub size: u64,
    /// Seconds and nanoseconds of the last change of content.
    pub mtime: (i64, u32),
    /// Major and minor number of a device, else zeros.
    pub rdev: (u32, u32),
    /// Where a symlink points.
    pub target: Option<Vec<u8>>,
    /// Content of files and directories.
    pub content: Option<Content>,
    /// All extended attributes this process can see, ACLs among them (`system.posix_acl_*`). A value that may not be
    /// read is `<unreadable>`.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The smallest path of the same inode, if the tree has more than one.
    pub link_group: Option<Vec<u8>>,
    /// Flags that `chattr` sets, of files and directories that can be opened.
    pub flags: u32,
    /// Where a file has data: start and end of each extent, by `SEEK_DATA` and `SEEK_HOLE`.
    pub data: Vec<(u64, u64)>,
}

/// Takes the signature of the tree at `root`.
///
/// # Panics
/// When something cannot be looked at for another reason than permission.
pub fn signature(root: &Path) -> Sig {
    let mut sig = Sig::new();
    let mut inodes: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
    let mut unreadable = Vec::new();
    walk::visit(
        root,
        |step| {
            let entry = look(step);
            if entry.kind != Kind::Dir && step.stat.st_nlink > 1 {
                inodes
                    .entry((step.stat.st_dev, step.stat.st_ino))
                    .or_default()
                    .push(step.path.to_vec());
            }
            sig.insert(step.path.to_vec(), entry);
        },
        |path, error| match error {
            Errno::ACCESS => unreadable.push(path.to_vec()),
            other => panic!(
                "cannot look at {} in {}: {other}",
                crate::text::show(path),
                root.display()
            ),
        },
    );
    for path in unreadable {
        // A directory with r but no x lists names that cannot be looked at: then it is the parent that hides them.
        let known = match path.iter().rposition(|b| *b == b'/') {
            _ if sig.contains_key(&path) => &path[..],
            Some(slash) => &path[..slash],
            None => b"",
        };
        sig.get_mut(known)
            .expect("a directory is entered before it is listed")
            .content = Some(Content::Unreadable);
    }
    for mut paths in inodes.into_values().filter(|paths| paths.len() > 1) {
        paths.sort();
        for path in &paths {
            sig.get_mut(path)
                .expect("the path was entered above")
                .link_group = Some(paths[0].clone());
        }
    }
    sig
}

fn look(step: &Step<'_>) -> Entry {
    let stat = &step.stat;
    let kind = kind(step.kind());
    // O_PATH opens nothing: it cannot block, and needs no permission on the entry itself.
    let handle = rustix::fs::openat(
        step.dir,
        step.name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap_or_else(|error| step.fail("get a handle of", error));
    let (content, data) = match kind {
        Kind::File => file(step),
        Kind::Dir => (Some(Content::Listed), Vec::new()),
        _ => (None, Vec::new()),
    };
    let flags = match kind {
        Kind::File | Kind::Dir => flags(step),
        _ => 0,
    };
    let device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
    Entry {
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if kind == Kind::File {
            u64::try_from(stat.st_size).expect("sizes are not negative")
        } else {
            0
        },
        mtime: (
            stat.st_mtime,
            u32::try_from(stat.st_mtime_nsec).expect("nanoseconds are below a billion"),
        ),
        rdev: if device {
            (
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            )
        } else {
            (0, 0)
        },
        target: (kind == Kind::Symlink).then(|| {
            rustix::fs::readlinkat(step.dir, step.name, Vec::new())
                .unwrap_or_else(|error| step.fail("read the link", error))
                .into_bytes()
        }),
        content,
        xattrs: xattrs(handle.as_fd())
            .unwrap_or_else(|error| step.fail("read the attributes of", error)),
        link_group: None,
        flags,
        data,
    }
}

/// Those that a user sets, not those by which a file system says how it stores something; none where no process
/// may look.
fn flags(step: &Step<'_>) -> u32 {
    // s u c S i a d A m j t D T C
    const SET: u32 = 0x0083_c4ff;
    let open = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::openat(step.dir, step.name, open, Mode::empty()) else {
        return 0;
    };
    rustix::fs::ioctl_getflags(&fd).map_or(0, |flags| flags.bits() & SET)
}

fn kind(of: FileType) -> Kind {
    match of {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => panic!("stat gave a mode without a known type"),
    }
}

/// All extended attributes of the inode behind an `O_PATH` handle, through its magic link, which works for symlinks
/// and for paths of any length.
pub(crate) fn xattrs(handle: BorrowedFd<'_>) -> rustix::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mut list = vec![0u8; 64 * 1024];
    let used = match rustix::fs::listxattr(&path, &mut list[..]) {
        Ok(used) => used,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error),
    };
    let mut found = BTreeMap::new();
    let mut value = vec![0u8; 64 * 1024];
    for name in list[..used]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
    {
        match rustix::fs::getxattr(&path, name, &mut value[..]) {
            Ok(length) => found.insert(name.to_vec(), value[..length].to_vec()),
            Err(Errno::ACCESS | Errno::PERM) => {
                found.insert(name.to_vec(), b"<unreadable>".to_vec())
            }
            Err(Errno::NODATA) => None,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

fn file(step: &Step<'_>) -> (Option<Content>, Vec<(u64, u64)>) {
    let size = u64::try_from(step.stat.st_size).expect("sizes are not negative");
    let fd = match open_file(step) {
        Ok(fd) => fd,
        Err(Errno::ACCESS) => return (Some(Content::Unreadable), Vec::new()),
        Err(error) => step.fail("open", error),
    };
    let data = extents(&fd, size).unwrap_or_else(|error| step.fail("find the holes of", error));
    let digest = digest(&fd, size, &data).unwrap_or_else(|error| step.fail("read", error));
    (Some(Content::Digest(digest)), data)
}

/// Opens a regular file to read, leaving its access time alone where that is permitted.
pub(crate) fn open_file(step: &Step<'_>) -> rustix::io::Result<OwnedFd> {
    // NONBLOCK: should the file have become a FIFO meanwhile, this does not hang.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(step.dir, step.name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::openat(step.dir, step.name, flags, Mode::empty()),
        other => other,
    }
}

/// The parts of a file that hold data.
pub(crate) fn extents(fd: &OwnedFd, size: u64) -> rustix::io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        at = rustix::fs::seek(fd, SeekFrom::Hole(start))?.min(size);
        found.push((start, at));
    }
    Ok(found)
}

const BLOCK: u64 = 4096;

/// A digest of the bytes, blind to how they are stored: blocks of zeros count by their place only, stored or not.
fn digest(fd: &OwnedFd, size: u64, data: &[(u64, u64)]) -> rustix::io::Result<u128> {
    const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    let mut hash = Hash::new();
    let mut next = 0;
    for &(start, end) in data {
        let mut at = (start / BLOCK * BLOCK).max(next);
        while at < end {
            let length = usize::try_from(BLOCK.min(size - at)).expect("a block fits");
            let mut block = [0; BLOCK as usize];
            let mut have = 0;
            while have < length {
                match rustix::io::pread(fd, &mut block[have..length], at + have as u64)? {
                    0 => break,
                    count => have += count,
                }
            }
            if block != ZEROS {
                hash.word(at);
                for word in block.chunks_exact(8) {
                    hash.word(u64::from_le_bytes(word.try_into().expect("chunks of 8")));
                }
            }
            at += BLOCK;
        }
        next = at;
    }
    hash.word(size);
    Ok(hash.finish())
}

/// FNV-1a over words of 64 bits, twice with different multipliers and a fold, so that high bits reach low ones.
struct Hash(u64, u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325, 0x9e37_79b9_7f4a_7c15)
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        self.0 ^= self.0 >> 29;
        self.1 = (self.1.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.1 ^= self.1 >> 33;
    }

    fn finish(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}
