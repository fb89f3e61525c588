//! Detects open writers of a file, by a read lease.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Which signal describes a lease that others want; not in `libc` for every C library.
const F_SETSIG: i32 = 10;

/// Whether no process can write to this file any more: no process has it open, or mapped, for writing.
/// Where the kernel does not say, it counts as open.
///
/// A read lease is granted on exactly that condition. It ends when `file` is closed: until then a process that opens the file
/// for writing waits, so the caller closes it soon.
#[allow(
    unsafe_code,
    reason = "leases have no safe form; the call takes two numbers and no memory"
)]
pub fn is_quiet(file: &File) -> bool {
    // A process that opens it meanwhile must not end us: this signal is ignored unless another process asks for it.
    // SAFETY: F_SETSIG takes a descriptor that is open for as long as `file` lives, and a number.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) } != 0 {
        return false;
    }
    // SAFETY: F_SETLEASE takes a descriptor that is open for as long as `file` lives, and a number.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) == 0 }
}
