//! Detects open writers of a file, by a read lease.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;

/// Which signal describes a lease that others want; not in `libc` for every C library.
const F_SETSIG: i32 = 10;

/// Whether no process can write to this file any more: no process has it open, or mapped, for writing.
/// Where the kernel does not say, it counts as open.
pub fn is_quiet(file: &File) -> bool {
    lease(file).is_ok()
}

/// Whether a process has this file open, or mapped, for writing. Where the kernel does not say (of another user's file, and on file
/// systems without leases), it does not count as open.
pub fn is_written(file: &File) -> bool {
    lease(file).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Takes a read lease, which is granted on exactly that condition. It ends when `file` is closed: until then a process that opens the
/// file for writing waits, so the caller closes it soon.
#[allow(
    unsafe_code,
    reason = "leases have no safe form; the call takes two numbers and no memory"
)]
fn lease(file: &File) -> io::Result<()> {
    // A process that opens it meanwhile must not end us: this signal is ignored unless another process asks for it.
    // SAFETY: F_SETSIG takes a descriptor that is open for as long as `file` lives, and a number.
    if unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: F_SETLEASE takes a descriptor that is open for as long as `file` lives, and a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
