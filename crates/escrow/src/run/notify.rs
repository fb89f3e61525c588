//! Calls that the kernel asks about before it carries them out (seccomp user notification).
//!
//! A call that goes on is carried out by the kernel with the rights of the process that made it: what that process changes
//! meanwhile, in its memory or among its descriptors, gains it nothing, and so nothing can be refused by looking at them. A
//! call that may have to be refused does not go on: the process that looks carries it out itself, on what it looked at.
#![allow(
    unsafe_code,
    reason = "the notifications of seccomp and the memory of another process have no safe form"
)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// The longest path that the kernel takes, with the byte that ends it.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The size of a page, or a part of it: what is read never begins in one and ends in one that is not there.
const PAGE: usize = 4096;

/// The session of the process that started the one that answers.
static SESSION: AtomicI32 = AtomicI32::new(0);

/// Remembers it, before this process leaves it.
pub(super) fn remember_session() {
    // SAFETY: these take and return numbers.
    let session = unsafe { libc::getsid(libc::getppid()) };
    SESSION.store(session, Ordering::Relaxed);
}

/// The calls that processes of ours are about to answer, in memory that they share: 0 is none.
pub(super) struct HeldCalls(&'static [AtomicU64; Self::MOST]);

impl HeldCalls {
    const MOST: usize = 64;

    pub(super) fn new() -> Result<Self, Errno> {
        let length = size_of::<[AtomicU64; Self::MOST]>();
        let (rights, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new memory of zeroes, which is never unmapped, and holds as many numbers as are read from it.
        unsafe {
            let shared = libc::mmap(std::ptr::null_mut(), length, rights, kind, -1, 0);
            match shared == libc::MAP_FAILED {
                true => Err(Errno::NOMEM),
                false => Ok(Self(&*shared.cast())),
            }
        }
    }

    /// Notes a call; where it is noted, unless there are too many.
    pub(super) fn note(&self, call: &HeldCall) -> Option<usize> {
        let free = self
            .0
            .iter()
            .position(|one| one.load(Ordering::SeqCst) == 0)?;
        self.0[free].store(call.id, Ordering::SeqCst);
        Some(free)
    }

    /// Forgets the call that is noted there.
    pub(super) fn forget(&self, at: usize) {
        self.0[at].store(0, Ordering::SeqCst);
    }

    /// Ends the call that is noted there, if it still waits: who was to answer it is gone.
    pub(super) fn fail(&self, listener: BorrowedFd<'_>, at: usize) {
        let id = self.0[at].swap(0, Ordering::SeqCst);
        if id != 0 {
            send(listener, id, -Errno::IO.raw_os_error(), 0);
        }
    }

    /// The same of all.
    pub(super) fn fail_all(&self, listener: BorrowedFd<'_>) {
        (0..Self::MOST).for_each(|at| self.fail(listener, at));
    }
}

fn send(listener: BorrowedFd<'_>, id: u64, error: i32, flags: u32) {
    let answer = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
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

/// Whether this kernel asks about calls (Linux 5.19). Nothing is set: the kernel looks at what is wanted before it looks at the
/// filter, of which there is none.
pub(super) fn can_ask() -> bool {
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let (mode, none) = (
        libc::SECCOMP_SET_MODE_FILTER,
        std::ptr::null::<libc::sock_fprog>(),
    );
    // SAFETY: the kernel reads no filter at this address: it refuses it.
    let refused = check(unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, none) });
    refused == Err(Errno::FAULT)
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
        send(
            listener,
            self.id,
            0,
            libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        );
    }

    /// Ends the call, which the kernel does not carry out.
    pub(super) fn finish(&self, listener: BorrowedFd<'_>, result: Result<(), Errno>) {
        let error = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        send(listener, self.id, error, 0);
    }

    /// Whether the caller is in the session of the process that started ours.
    pub(super) fn is_in_our_session(&self) -> bool {
        // SAFETY: takes and returns numbers; 0 is a session of which this process sees nothing.
        unsafe { libc::getsid(self.thread as i32) == SESSION.load(Ordering::Relaxed) }
    }

    /// What the caller has open by this number; `processes` is the directory of the processes that this one sees.
    pub(super) fn descriptor(&self, processes: &OwnedFd, number: i32) -> Result<OwnedFd, Errno> {
        if number < 0 {
            return Err(Errno::BADF);
        }
        let open = |pid: u32, flags: u32| {
            let pid = Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
            pidfd_open(pid, PidfdFlags::from_bits_retain(flags))
        };
        let process = match open(self.thread, libc::PIDFD_THREAD) {
            // Before Linux 6.9 only processes can be opened. Nearly every thread has the descriptors of its process.
            Err(Errno::INVAL) => open(self.process(processes).ok_or(Errno::SRCH)?, 0),
            opened => opened,
        };
        pidfd_getfd(process?, number, PidfdGetfdFlags::empty())
    }

    /// The process that the caller is a thread of.
    fn process(&self, processes: &OwnedFd) -> Option<u32> {
        let path = format!("{}/status", self.thread);
        let file = openat(processes, path, OFlags::CLOEXEC, Mode::empty()).ok()?;
        let status = std::io::read_to_string(std::fs::File::from(file)).ok()?;
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
    }

    /// The four words that lie at an address of the process.
    pub(super) fn words_at(&self, address: u64) -> Option<[u16; 4]> {
        let mut bytes = [0; 8];
        let all = self.read(&mut bytes, address)? == bytes.len();
        let [a, b, c, d, e, f, g, h] = bytes;
        all.then(|| [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes))
    }

    /// Reads bytes that lie at an address of the process. Returns how many there were.
    pub(super) fn bytes_at(&self, address: u64, bytes: &mut [u8]) -> Option<usize> {
        self.read(bytes, address)
    }

    /// The path that lies at an address of the process.
    pub(super) fn path_at(&self, address: u64) -> Option<CString> {
        let mut bytes = vec![0; PATH_MAX];
        let length = self.read(&mut bytes, address)?;
        let end = bytes[..length].iter().position(|byte| *byte == 0)?;
        bytes.truncate(end);
        CString::new(bytes).ok()
    }

    /// Reads what lies at an address of the process, up to the end of its page at least. Returns how much that was.
    fn read(&self, bytes: &mut [u8], address: u64) -> Option<usize> {
        let length = bytes.len();
        let first = (PAGE - address as usize % PAGE).min(length);
        let own = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: length,
        };
        let part = |offset: usize, iov_len: usize| libc::iovec {
            iov_base: (address as usize).wrapping_add(offset) as *mut libc::c_void,
            iov_len,
        };
        let theirs = [part(0, first), part(first, length - first)];
        let (ours, thread) = (&raw const own, self.thread as i32);
        // SAFETY: what is read is written into bytes of ours, at most as many as there are; addresses of another process
        // are just numbers here.
        let read = unsafe { libc::process_vm_readv(thread, ours, 1, theirs.as_ptr(), 2, 0) };
        usize::try_from(read).ok()
    }
}
