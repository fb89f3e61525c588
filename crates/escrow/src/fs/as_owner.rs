//! Does one step on files that are closed to their own owner (mode 0), without opening them to anybody.
//!
//! Their owner could change the mode, do the step and change it back; a crash in between would leave them open. In a
//! user namespace of one's own, every file whose owner and group are mapped can be used as root uses it. A process
//! with several threads cannot enter one, so the step is done by a child that shares its memory and its descriptors
//! while the calling thread waits, as `posix_spawn` does it. What the child opens is open here, what it read is
//! here, and the locks of this process are held until the child has ended, also when this process is killed.
#![allow(
    unsafe_code,
    reason = "clone, setns and signal masks have no safe form; nothing else in this file is unsafe"
)]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use rustix::process::{getegid, geteuid};

/// The child does a few system calls.
const STACK: usize = 128 * 1024;

/// Does a step; where it is refused, once more as the owner of every file of this user's.
pub(super) fn as_owner<T>(mut step: impl FnMut() -> Result<T>) -> Result<T> {
    match step() {
        Err(Errno::ACCESS) if !geteuid().is_root() => {}
        done => return done,
    }
    let Ok(namespace) = namespace() else {
        return Err(Errno::ACCESS);
    };
    in_child(0, || {
        // SAFETY: takes an open descriptor and a number; the child has one thread.
        match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) } {
            0 => step(),
            _ => Err(Errno::ACCESS),
        }
    })?
}

/// Why this user cannot do anything as the owner of closed files; `None` where it can.
pub(super) fn forbidden() -> Option<Errno> {
    match geteuid().is_root() {
        true => None,
        false => namespace().err(),
    }
}

/// The namespace of this process, in which its user and group are what they are here. One that could not be made is
/// tried again: there may have been too many.
fn namespace() -> Result<&'static OwnedFd> {
    static NAMESPACE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(namespace) = NAMESPACE.get() {
        return Ok(namespace);
    }
    // Asked before: in the new namespace nothing has an id until it is mapped.
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let maps = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", format!("{user} {user} 1")),
        (c"/proc/self/gid_map", format!("{group} {group} 1")),
    ];
    let open = |path: &CStr, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty());
    let made = in_child(libc::CLONE_NEWUSER, || {
        for (path, text) in &maps {
            rustix::io::write(open(path, OFlags::WRONLY)?, text.as_bytes())?;
        }
        open(c"/proc/self/ns/user", OFlags::RDONLY)
    })??;
    Ok(NAMESPACE.get_or_init(|| made))
}

/// What a child is to do, and what came of it.
struct Call<W, T> {
    work: Option<W>,
    done: Option<T>,
}

extern "C" fn run<T, W: FnOnce() -> T>(call: *mut c_void) -> c_int {
    // SAFETY: it points to the `Call` of `in_child`, which waits and does not touch it meanwhile.
    let call = unsafe { &mut *call.cast::<Call<W, T>>() };
    call.done = call.work.take().map(|work| work());
    0
}

/// Does something in a child that shares everything but its user and its namespaces, which are new by `flags`.
fn in_child<T, W: FnOnce() -> T>(flags: c_int, work: W) -> Result<T> {
    let mut call = Call {
        work: Some(work),
        done: None,
    };
    let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>());
    let flags = flags | libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK;
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are written before they are read. The stack is the child's alone and outlives it, as the call
    // does: with CLONE_VFORK this thread goes on when the child has ended. So nothing of what belongs to the thread
    // is used twice at a time, and no handler of a signal, which are blocked, runs in the child. It sends no signal
    // when it ends, so no other part of the program can be waiting for it.
    let child = unsafe {
        libc::sigfillset(mask.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), before.as_mut_ptr());
        let top = stack.as_mut_ptr().add(stack.capacity());
        let call = (&raw mut call).cast();
        let child = libc::clone(run::<T, W>, top.cast(), flags, call);
        let failed = std::io::Error::last_os_error();
        if child > 0 {
            libc::waitpid(child, std::ptr::null_mut(), libc::__WALL);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        match child {
            -1 => Err(Errno::from_io_error(&failed).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    };
    child?;
    // None: it was killed.
    call.done.ok_or(Errno::INTR)
}
