//! Calls that the kernel asks about before it carries them out (seccomp user notification).
//!
//! An answer only ever lets the call go on as it is: the kernel carries it out with the rights of the process that made
//! it, so what that process changes in its memory meanwhile gains it nothing.
#![allow(
    unsafe_code,
    reason = "the notifications of seccomp and the memory of another process have no safe form"
)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// The longest path that the kernel takes, with the byte that ends it.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The size of a page, or a part of it: what is read never begins in one and ends in one that is not there.
const PAGE: usize = 4096;

/// A call that waits for an answer.
pub(super) struct HeldCall {
    id: u64,
    /// The thread that made it.
    pub(super) thread: u32,
    /// The machine, and the number of the call there.
    pub(super) call: (u32, u32),
    /// Its arguments.
    pub(super) arguments: [u64; 6],
}

fn check(answer: i64) -> Result<i64, Errno> {
    match answer {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        answer => Ok(answer),
    }
}

/// Lets a filter answer the system calls of this process and of whatever it becomes. Returns where those can be heard that
/// it asks about.
pub(super) fn filter_calls(mut filter: Vec<libc::sock_filter>) -> Result<OwnedFd, Errno> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // Signals do not interrupt a call that is being looked at: it would begin again, and again.
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program lives until the call returns, and its length is right; the descriptor is new and ours.
    unsafe {
        let listener = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program);
        Ok(OwnedFd::from_raw_fd(check(listener)? as i32))
    }
}

/// Lets the one that asks and the one that answers take turns on one processor, where the kernel can.
pub(super) fn take_turns(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    let set = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
    // SAFETY: takes numbers only. Older kernels are a little slower.
    unsafe { libc::ioctl(listener.as_raw_fd(), set, SYNC_WAKE_UP) };
}

/// The next call that waits. `None` if its process has just ended.
pub(super) fn receive(listener: BorrowedFd<'_>) -> Result<Option<HeldCall>, Errno> {
    // SAFETY: numbers may be zero, and must be.
    let mut found = unsafe { std::mem::zeroed::<libc::seccomp_notif>() };
    // SAFETY: the answer is of the kind that the call writes.
    let received = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut found,
        )
    };
    match check(received.into()) {
        Ok(_) => Ok(Some(HeldCall {
            id: found.id,
            thread: found.pid,
            call: (found.data.arch, found.data.nr as u32),
            arguments: found.data.args,
        })),
        Err(Errno::NOENT | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl HeldCall {
    /// Whether the process still waits: it has not ended, and its number is its own.
    pub(super) fn waits(&self, listener: BorrowedFd<'_>) -> bool {
        let asked = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
        // SAFETY: the number lives until the call returns.
        unsafe { libc::ioctl(listener.as_raw_fd(), asked, &raw const self.id) == 0 }
    }

    /// Lets the kernel carry the call out.
    pub(super) fn go_on(&self, listener: BorrowedFd<'_>) {
        let answer = libc::seccomp_notif_resp {
            id: self.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the answer is of the kind that the call reads. A process that has ended needs none.
        unsafe {
            libc::ioctl(
                listener.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const answer,
            )
        };
    }

    /// The path that lies at an address of the process.
    pub(super) fn path_at(&self, address: u64) -> Option<CString> {
        let mut bytes = vec![0; PATH_MAX];
        let first = (PAGE - address as usize % PAGE).min(PATH_MAX);
        let own = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: PATH_MAX,
        };
        let part = |offset: usize, iov_len: usize| libc::iovec {
            iov_base: (address as usize).wrapping_add(offset) as *mut libc::c_void,
            iov_len,
        };
        let theirs = [part(0, first), part(first, PATH_MAX - first)];
        let (ours, thread) = (&raw const own, self.thread as i32);
        // SAFETY: what is read is written into bytes of ours, at most as many as there are; addresses of another process
        // are just numbers here.
        let read = unsafe { libc::process_vm_readv(thread, ours, 1, theirs.as_ptr(), 2, 0) };
        let length = usize::try_from(read).ok()?;
        let end = bytes[..length].iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        CString::new(bytes).ok()
    }
}
