//! Shared extents: how many bytes of a file lie in blocks that other files use too (FIEMAP).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::ioctl::opcode;

/// What is asked, and how much was answered; the extents follow it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// One extent, as the kernel reports it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

const LAST: u32 = 0x1;
const SHARED: u32 = 0x2000;
const ROOM: usize = 64;

#[repr(C)]
struct FiemapRequest {
    header: FiemapHeader,
    extents: [Extent; ROOM],
}

/// File systems whose files can share blocks: XFS, Btrfs, bcachefs.
const SHARING: [u64; 3] = [0x5846_5342, 0x9123_683e, 0xca45_1a4e];

/// Whether files of this file system can share blocks, as far as we know.
pub fn can_share(fd: impl AsFd) -> bool {
    let kind = rustix::fs::fstatfs(fd).map(|stat| stat.f_type as u64);
    kind.is_ok_and(|kind| SHARING.contains(&(kind & 0xffff_ffff)))
}

/// The bytes of a file that another file holds too. What the kernel does not report counts as its own.
pub fn shared_bytes(file: &File) -> u64 {
    let (mut total, mut start) = (0, 0);
    loop {
        let mut map = FiemapRequest {
            header: FiemapHeader {
                start,
                length: u64::MAX - start,
                room: ROOM as u32,
                ..FiemapHeader::default()
            },
            extents: [Extent::default(); ROOM],
        };
        if !ask(file, &mut map) {
            return total;
        }
        let known = usize::try_from(map.header.mapped).map_or(ROOM, |mapped| mapped.min(ROOM));
        let extents = &map.extents[..known];
        let shared = extents.iter().filter(|extent| extent.flags & SHARED != 0);
        total += shared.map(|extent| extent.length).sum::<u64>();
        let last = extents.last().filter(|last| last.flags & LAST == 0);
        match last.map(|last| last.logical.saturating_add(last.length)) {
            Some(end) if end > start => start = end,
            _ => return total,
        }
    }
}

#[allow(
    unsafe_code,
    reason = "the call has no safe form; it fills the memory it is given, whose size it is told"
)]
fn ask(file: &File, map: &mut FiemapRequest) -> bool {
    let call = opcode::read_write::<FiemapHeader>(b'f', 11);
    // SAFETY: the descriptor is open for as long as `file` lives; the kernel writes a header and at most
    // `room` extents, for which `map` has place, and any bytes are valid for both.
    unsafe { libc::ioctl(file.as_raw_fd(), call as _, std::ptr::from_mut(map)) == 0 }
}
