//! Allocates the shared memory of SQLite (`state.db-shm`) before it is used, so that a full disk is an error
//! and not a SIGBUS.
//!
//! SQLite extends that file by one byte a page. With blocks smaller than a page this leaves holes, and a file system
//! that copies on write needs a new block for each page that is written again: on a full disk the next touch of the
//! memory is then a SIGBUS, which ends the process. So each mapping is allocated and written before SQLite gets it,
//! and the file is exempt from copying on write where it can be (btrfs). What cannot be allocated is an
//! error that SQLite reports, like that of any other call. `docs/design/state.md` has the measurements.
#![allow(
    unsafe_code,
    reason = "SQLite takes its system calls as C functions; nothing else in this module is unsafe"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use rusqlite::ffi;

/// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` and `FS_NOCOW_FL` of the kernel's `fs.h`; the kernel reads and writes an `int`.
const GET_FLAGS: libc::Ioctl = 0x8008_6601_u32 as libc::Ioctl;
const SET_FLAGS: libc::Ioctl = 0x4008_6602_u32 as libc::Ioctl;
const NO_COPY_ON_WRITE: c_int = 0x0080_0000;

/// Lets SQLite open and map through the functions below, from now on and in the whole process.
pub(super) fn allocate_before_use() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the VFS is a static of SQLite. The functions have the signatures by which SQLite calls these two
        // (`int open(const char*, int, int)` and `mmap`), and live as long as the process.
        unsafe {
            ffi::sqlite3_initialize();
            let vfs = ffi::sqlite3_vfs_find(c"unix".as_ptr());
            let Some(set) = vfs.as_ref().and_then(|vfs| vfs.xSetSystemCall) else {
                return;
            };
            let open: unsafe extern "C" fn(*const c_char, c_int, c_int) -> c_int = open;
            let map: unsafe extern "C" fn(
                *mut c_void,
                usize,
                c_int,
                c_int,
                c_int,
                libc::off_t,
            ) -> *mut c_void = map;
            type SystemCallPointer = unsafe extern "C" fn();
            let open =
                std::mem::transmute::<*const c_void, SystemCallPointer>(open as *const c_void);
            let map = std::mem::transmute::<*const c_void, SystemCallPointer>(map as *const c_void);
            set(vfs, c"open".as_ptr(), Some(open));
            set(vfs, c"mmap".as_ptr(), Some(map));
        }
    });
}

/// Opens a file; a new `-shm` is exempt from copying on write.
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    // SAFETY: SQLite hands in what `open` takes.
    let file = unsafe { libc::open(path, flags, mode) };
    // SAFETY: as above, the path ends with a NUL.
    let named = unsafe { CStr::from_ptr(path) };
    if file >= 0 && flags & libc::O_CREAT != 0 && named.to_bytes().ends_with(b"-shm") {
        exempt(file);
    }
    file
}

/// Only an empty file takes the flag. Where there is no such flag, nothing is copied either, or nothing can be done.
fn exempt(file: c_int) {
    let mut flags: c_int = 0;
    // SAFETY: the descriptor is open; the kernel writes one `int` and reads one.
    unsafe {
        let errno = *libc::__errno_location();
        if libc::ioctl(file, GET_FLAGS, &raw mut flags) == 0 && flags & NO_COPY_ON_WRITE == 0 {
            flags |= NO_COPY_ON_WRITE;
            libc::ioctl(file, SET_FLAGS, &raw const flags);
        }
        *libc::__errno_location() = errno;
    }
}

/// Maps a part of a file; what will be written has its blocks afterwards, and its pages are there.
unsafe extern "C" fn map(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let written = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_SHARED != 0;
    // SAFETY: SQLite hands in what `mmap` takes; what was mapped here and is not handed out is unmapped again.
    unsafe {
        if written && let Err(errno) = allocate(file, offset, length) {
            *libc::__errno_location() = errno;
            return libc::MAP_FAILED;
        }
        let mapped = libc::mmap(at, length, protection, flags, file, offset);
        if mapped == libc::MAP_FAILED || !written {
            return mapped;
        }
        let populated = libc::madvise(mapped, length, libc::MADV_POPULATE_WRITE);
        // A kernel before 5.14 does not know how; there, what is allocated must do.
        if populated == 0 || *libc::__errno_location() == libc::EINVAL {
            return mapped;
        }
        libc::munmap(mapped, length);
        *libc::__errno_location() = libc::ENOSPC;
        libc::MAP_FAILED
    }
}

fn allocate(file: c_int, offset: libc::off_t, length: usize) -> Result<(), c_int> {
    let Ok(length) = libc::off_t::try_from(length) else {
        return Err(libc::EINVAL);
    };
    loop {
        // SAFETY: takes numbers only; the size of the file stays, which covers what is mapped.
        let answer = unsafe { libc::fallocate(file, libc::FALLOC_FL_KEEP_SIZE, offset, length) };
        // SAFETY: the error number of this thread.
        let errno = unsafe { *libc::__errno_location() };
        match (answer, errno) {
            (0, _) | (_, libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(()),
            (_, libc::EINTR) => {}
            (_, errno) => return Err(errno),
        }
    }
}
