//! btrfs subvolumes: takes snapshots of them, recognises and removes them.
//!
//! A subvolume has a number of its own ([`id`]) that is never given again, unlike inode and time of birth of its root,
//! which a snapshot has from what it was taken of. What another subvolume is inside of what was snapshotted, is
//! an empty directory there ([`is_stub`]).

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::opcode;

use super::dir::Dir;
use super::{Cause, Meta, Result};
use crate::model::ResourcePath;

const BTRFS: u64 = 0x9123_683e;
/// The inode of the root of every subvolume.
const ROOT: u64 = 256;
/// The inode of what stands for a subvolume in a snapshot.
const STUB: u64 = 2;
const MAGIC: u8 = 0x94;
const READ_ONLY: u64 = 1 << 1;

/// `btrfs_ioctl_vol_args`.
#[repr(C)]
struct NamedArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct SnapshotArgs {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct LookupArgs {
    tree: u64,
    inode: u64,
    name: [u8; 4080],
}

/// `btrfs_ioctl_ino_lookup_user_args`.
#[repr(C)]
struct UserLookupArgs {
    directory: u64,
    tree: u64,
    name: [u8; 256],
    path: [u8; 3824],
}

/// `btrfs_ioctl_get_subvol_rootref_args`.
#[repr(C)]
struct ChildrenArgs {
    min_tree: u64,
    children: [(u64, u64); 255],
    count: u8,
    align: [u8; 7],
}

/// `btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct InfoArgs {
    max_id: u64,
    devices: u64,
    identity: [u8; 16],
    rest: [u8; 992],
}

#[allow(
    unsafe_code,
    reason = "the calls have no safe form; each reads or fills one value whose size is part of its number"
)]
fn ask<T>(open: impl AsFd, call: u32, args: &mut T) -> std::result::Result<(), Errno> {
    debug_assert_eq!((call >> 16) as usize & 0x3fff, size_of::<T>());
    let fd = open.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open; the kernel reads and writes as many bytes as the number of the call says, which
    // is the size of `args`, and any bytes are valid for the plain numbers in it.
    match unsafe { libc::ioctl(fd, call as _, std::ptr::from_mut(args)) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

fn named<const N: usize>(dir: &Dir, name: &[u8]) -> Result<[u8; N]> {
    let mut field = [0; N];
    match field.get_mut(..name.len()) {
        Some(place) if name.len() < N => place.copy_from_slice(name),
        _ => return Err(dir.error("use the name", name, Cause::Os(Errno::NAMETOOLONG))),
    }
    Ok(field)
}

fn text(field: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(field).map_or(field, CStr::to_bytes)
}

/// Whether something open lies on btrfs.
pub fn is_btrfs(open: impl AsFd) -> bool {
    let kind = rustix::fs::fstatfs(open).map(|stat| stat.f_type as u64);
    kind.is_ok_and(|kind| kind & 0xffff_ffff == BTRFS)
}

/// Whether two directories lie on one btrfs, in whichever subvolumes.
pub fn is_shared(a: &Dir, b: &Dir) -> bool {
    let identity = |dir: &Dir| {
        let mut info = InfoArgs {
            max_id: 0,
            devices: 0,
            identity: [0; 16],
            rest: [0; 992],
        };
        let call = opcode::read::<InfoArgs>(MAGIC, 31);
        let known = is_btrfs(dir) && ask(dir, call, &mut info).is_ok();
        known.then_some(info.identity)
    };
    identity(a).is_some_and(|own| identity(b) == Some(own))
}

/// Whether an entry of a directory is the root of a subvolume.
pub fn is_subvolume(dir: &Dir, meta: &Meta) -> bool {
    meta.is_dir() && meta.ino == ROOT && is_btrfs(dir)
}

/// Whether an entry, of a tree on btrfs, stands for a subvolume that is not part of a snapshot.
pub fn is_stub(meta: &Meta) -> bool {
    meta.is_dir() && meta.ino == STUB
}

/// The number of the subvolume that a directory lies in.
pub fn id(dir: &Dir) -> Result<u64> {
    let mut args = LookupArgs {
        tree: 0,
        inode: ROOT,
        name: [0; 4080],
    };
    let call = opcode::read_write::<LookupArgs>(MAGIC, 18);
    ask(dir, call, &mut args)
        .map_err(|errno| dir.error("find the subvolume of", b"", Cause::Os(errno)))?;
    Ok(args.tree)
}

/// The root of the subvolume that holds the directory at a path, and where it lies in that; `None` where the root cannot
/// be reached by the path, as when only a part of the subvolume is mounted.
pub fn holder(at: &Path) -> Result<Option<(PathBuf, ResourcePath)>> {
    let meta = Dir::look(at)?;
    for above in at.ancestors() {
        let Ok(found) = Dir::look(above) else {
            return Ok(None);
        };
        if (found.dev, found.mount) != (meta.dev, meta.mount) {
            return Ok(None);
        }
        if found.ino == ROOT {
            let inside = at.strip_prefix(above).unwrap_or(Path::new(""));
            let inside = inside.iter().map(OsStr::as_bytes);
            let inside = inside.fold(ResourcePath::root(), |path, name| path.join(name));
            return Ok(Some((above.to_owned(), inside)));
        }
    }
    Ok(None)
}

/// Takes a snapshot of the subvolume whose root is `of`, as `name` in `to`. It is durable when this returns.
pub fn snapshot(of: &Dir, to: &Dir, name: &[u8], read_only: bool) -> Result<()> {
    let mut args = SnapshotArgs {
        fd: of.as_fd().as_raw_fd().into(),
        transid: 0,
        flags: if read_only { READ_ONLY } else { 0 },
        unused: [0; 4],
        name: named(to, name)?,
    };
    let call = opcode::write::<SnapshotArgs>(MAGIC, 23);
    ask(to, call, &mut args)
        .map_err(|errno| of.error("take a snapshot of the subvolume", b"", Cause::Os(errno)))
}

/// Makes an empty subvolume.
pub fn create(parent: &Dir, name: &[u8]) -> Result<()> {
    let mut args = NamedArgs {
        fd: 0,
        name: named(parent, name)?,
    };
    ask(parent, opcode::write::<NamedArgs>(MAGIC, 14), &mut args)
        .map_err(|errno| parent.error("create the subvolume", name, Cause::Os(errno)))
}

/// Deletes the subvolume `name` with everything in it, whose room comes back a little later; `false` where this user may not, or others lie in it.
pub fn delete(parent: &Dir, name: &[u8]) -> Result<bool> {
    let mut args = NamedArgs {
        fd: 0,
        name: named(parent, name)?,
    };
    match ask(parent, opcode::write::<NamedArgs>(MAGIC, 15), &mut args) {
        Ok(()) => Ok(true),
        // One that is read-only is closed to ordinary users, also where they may delete others.
        Err(Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(parent.error("delete the subvolume", name, Cause::Os(errno))),
    }
}

/// Lets a subvolume be written that could not be.
pub fn make_writable(root: &Dir) -> Result<()> {
    let fail = |errno| root.error("make writable the subvolume", b"", Cause::Os(errno));
    let mut flags = 0_u64;
    ask(root, opcode::read::<u64>(MAGIC, 25), &mut flags).map_err(fail)?;
    if flags & READ_ONLY == 0 {
        return Ok(());
    }
    flags &= !READ_ONLY;
    ask(root, opcode::write::<u64>(MAGIC, 26), &mut flags).map_err(fail)
}

/// The subvolumes below a directory of the subvolume whose root is `root`, by their paths from that directory. What this
/// user may not look at is not found.
pub fn nested(root: &Dir, inside: &ResourcePath) -> Result<Vec<ResourcePath>> {
    let fail = |errno| root.error("list the subvolumes in", b"", Cause::Os(errno));
    let mut found = Vec::new();
    let mut args = ChildrenArgs {
        min_tree: 0,
        children: [(0, 0); 255],
        count: 0,
        align: [0; 7],
    };
    loop {
        let call = opcode::read_write::<ChildrenArgs>(MAGIC, 61);
        let more = match ask(root, call, &mut args) {
            Ok(()) => false,
            Err(Errno::OVERFLOW) => true,
            Err(errno) => return Err(fail(errno)),
        };
        for (tree, directory) in &args.children[..usize::from(args.count).min(255)] {
            let mut at = UserLookupArgs {
                directory: *directory,
                tree: *tree,
                name: [0; 256],
                path: [0; 3824],
            };
            let call = opcode::read_write::<UserLookupArgs>(MAGIC, 62);
            match ask(root, call, &mut at) {
                Ok(()) => {}
                // It is closed to this user, or was removed since.
                Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) => continue,
                Err(errno) => return Err(fail(errno)),
            }
            let parts = text(&at.path).split(|byte| *byte == b'/');
            let parts = parts
                .filter(|part| !part.is_empty())
                .chain([text(&at.name)]);
            let path = parts.fold(ResourcePath::root(), |path, part| path.join(part));
            if path.lies_in(inside) && path != *inside {
                let depth = inside.parts().count();
                let below = path.parts().skip(depth);
                found.push(below.fold(ResourcePath::root(), |path, part| path.join(part)));
            }
        }
        if !more {
            found.sort();
            return Ok(found);
        }
    }
}
