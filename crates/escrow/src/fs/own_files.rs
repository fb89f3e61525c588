//! Opens and closes files without a loss of locks.
//!
//! When a process closes a file, the kernel drops every record lock that the process holds on it, whichever descriptor they
//! were taken through. The locks belong to the table of open files, so a thread with a table of its own closes what it
//! likes: SQLite, in this program or in one that uses the engine, keeps its locks.
#![allow(
    unsafe_code,
    reason = "the kernel asks callers to know what they share; nothing else in this file is unsafe"
)]

use rustix::thread::UnshareFlags;

/// Does something in a thread with a table of open files of its own: what the caller has open is open there too, and what is
/// opened there is closed at its end. `None` where the kernel does not permit it, or the thread cannot be started.
pub fn with_own_files<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: the thread ends with the call, and no descriptor that it opens leaves it: `T` is a value that was
            // read, and the caller's descriptors are only borrowed.
            let alone = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) };
            alone.ok().map(|()| work())
        });
        match thread.ok()?.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
