//! The system calls of the stepper that have no safe form: forking, tracing, waiting, the filter, and looking into the
//! memory of another process.
//!
//! Promise: every function here is safe to call with any arguments; what the kernel refuses is an error.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use libc::{c_int, c_long, sock_filter, user_regs_struct};
use rustix::io::Errno;

/// What a traced task did that the tracer is reported. Except after `Ended` it is paused until [`resume`].
pub(super) enum Event {
    /// It is gone.
    Ended(ExitStatus),
    /// It is about to make a call that the filter traces.
    Call,
    /// It has finished a call, after [`Resume::ToExit`].
    CallDone,
    /// It has a child or a new thread, which is traced too; after a vfork it waits for that child.
    Born { child: i32, vfork: bool },
    /// The child of its vfork has let it go.
    VforkDone,
    /// It runs another program; before, its id was this.
    Exec { former: i32 },
    /// It is to get this signal.
    Signal(i32),
}

/// How far a task may run.
pub(super) enum Resume {
    /// To the next event, with this signal; 0 is none.
    With(i32),
    /// To the end of the call it is about to make.
    ToExit,
}

/// Forks, and runs `command` under `filter` in the child, which is traced by the calling thread. The child waits to be
/// resumed before it does anything, as the signal SIGSTOP. Should it then fail to start, it says so on its standard
/// error, and ends without an [`Event::Exec`].
#[expect(unsafe_code, reason = "fork, and what is to happen before exec")]
pub(super) fn start(mut command: Command, filter: Vec<sock_filter>) -> io::Result<i32> {
    let privileged = rustix::process::geteuid().is_root();
    // SAFETY: system calls only.
    unsafe { command.pre_exec(move || install(&filter, privileged)) };
    // SAFETY: the child ends in exec or _exit. It allocates, which both glibc and musl allow after a fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: makes a system call only.
            let stop = || done(c_long::from(unsafe { libc::raise(libc::SIGSTOP) }));
            let error = plain(libc::PTRACE_TRACEME, 0, 0)
                .and_then(|()| stop())
                .map_or_else(io::Error::from, |()| command.exec());
            let text = error.to_string();
            // SAFETY: reads the text, takes no lock that another thread may have held when this process was made, and
            // ends this process at once, running nothing of the parent's.
            unsafe {
                libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
                libc::_exit(127)
            }
        }
        child => Ok(child),
    }
}

/// Puts this process under `filter`, for ever and for all it becomes.
#[expect(unsafe_code, reason = "prctl and seccomp have no safe form")]
fn install(filter: &[sock_filter], privileged: bool) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which outlives the call, and does not change it.
    let done = unsafe {
        // Root may do without, and then keeps programs that change the user working.
        (privileged || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const program,
            ) == 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the stopped task tell of calls, children and exec, and die with the tracer.
pub(super) fn watch(tid: i32) -> Result<(), Errno> {
    let options = libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEVFORKDONE
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    plain(libc::PTRACE_SETOPTIONS, tid, c_long::from(options))
}

/// Lets a stopped task run on.
pub(super) fn resume(tid: i32, how: Resume) -> Result<(), Errno> {
    match how {
        Resume::With(signal) => plain(libc::PTRACE_CONT, tid, c_long::from(signal)),
        Resume::ToExit => plain(libc::PTRACE_SYSCALL, tid, 0),
    }
}

/// The registers of a stopped task.
#[expect(unsafe_code, reason = "ptrace has no safe form")]
pub(super) fn registers(tid: i32) -> Result<user_regs_struct, Errno> {
    let mut registers = MaybeUninit::<user_regs_struct>::zeroed();
    // SAFETY: the kernel writes exactly this structure, of which every pattern of bits is a value.
    unsafe {
        ptrace(libc::PTRACE_GETREGS, tid, registers.as_mut_ptr() as c_long)?;
        Ok(registers.assume_init())
    }
}

/// Changes the registers of a stopped task.
#[expect(unsafe_code, reason = "ptrace has no safe form")]
pub(super) fn set_registers(tid: i32, registers: &user_regs_struct) -> Result<(), Errno> {
    let registers: *const user_regs_struct = registers;
    // SAFETY: the kernel reads exactly this structure, and changes another process only.
    unsafe { ptrace(libc::PTRACE_SETREGS, tid, registers as c_long) }
}

/// Reads the memory of a stopped task; how many bytes could be read.
#[expect(unsafe_code, reason = "reading another process has no safe form")]
pub(super) fn read_memory(tid: i32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let here = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let there = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    let (here, there): (*const _, *const _) = (&here, &there);
    let one: c_long = 1;
    // SAFETY: writes at most `into.len()` bytes into `into`; the kernel checks the other address.
    let count = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            c_long::from(tid),
            here,
            one,
            there,
            one,
            0 as c_long,
        )
    };
    usize::try_from(count).map_err(|_| last())
}

/// Waits for an event of one traced task, or with -1 of any that this thread traces; of no other thread's.
/// `None`: there is none now, and `block` is false.
#[expect(unsafe_code, reason = "the flags have no safe form")]
pub(super) fn wait(tid: i32, block: bool) -> Result<Option<(i32, Event)>, Errno> {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | if block { 0 } else { libc::WNOHANG };
    let tid = loop {
        // SAFETY: writes one integer.
        match unsafe { libc::waitpid(tid, &raw mut status, flags) } {
            -1 if last() == Errno::INTR => {}
            -1 => return Err(last()),
            0 => return Ok(None),
            tid => break tid,
        }
    };
    if !libc::WIFSTOPPED(status) {
        return Ok(Some((tid, Event::Ended(ExitStatus::from_raw(status)))));
    }
    // A task that was killed meanwhile has no message; its end is the next event.
    let message = || message(tid).unwrap_or(0);
    let event = match status >> 16 {
        libc::PTRACE_EVENT_SECCOMP => Event::Call,
        libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_CLONE => Event::Born {
            child: message(),
            vfork: false,
        },
        libc::PTRACE_EVENT_VFORK => Event::Born {
            child: message(),
            vfork: true,
        },
        libc::PTRACE_EVENT_VFORK_DONE => Event::VforkDone,
        libc::PTRACE_EVENT_EXEC => Event::Exec { former: message() },
        _ if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Event::CallDone,
        _ => Event::Signal(libc::WSTOPSIG(status)),
    };
    Ok(Some((tid, event)))
}

/// Sends a signal to one task.
#[expect(unsafe_code, reason = "tkill has no safe form")]
pub(super) fn signal(tid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: touches no memory.
    done(unsafe { libc::syscall(libc::SYS_tkill, tid, signal) })
}

/// An empty file that exists in memory only, and is always written at its end.
#[expect(unsafe_code, reason = "the file belongs to whoever asked for it")]
pub(super) fn memory_file() -> io::Result<File> {
    // SAFETY: the name ends in NUL; the new descriptor belongs to no other process.
    unsafe {
        let fd = libc::memfd_create(c"stepper".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = File::from_raw_fd(fd);
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
        Ok(file)
    }
}

#[expect(unsafe_code, reason = "ptrace has no safe form")]
fn message(tid: i32) -> Result<i32, Errno> {
    let mut message: c_long = 0;
    let at: *mut c_long = &mut message;
    // SAFETY: the kernel writes one long integer.
    unsafe { ptrace(libc::PTRACE_GETEVENTMSG, tid, at as c_long)? };
    c_int::try_from(message).map_err(|_| Errno::RANGE)
}

/// A request that takes a number, not an address.
#[expect(unsafe_code, reason = "ptrace has no safe form")]
fn plain(request: impl Into<c_long>, tid: i32, number: c_long) -> Result<(), Errno> {
    // SAFETY: no memory is touched.
    unsafe { ptrace(request, tid, number) }
}

/// The type of a request is not the same in all C libraries.
///
/// # Safety
/// If the request takes an address, `data` is one where the kernel may read or write what the request is for.
#[expect(unsafe_code, reason = "ptrace has no safe form")]
unsafe fn ptrace(request: impl Into<c_long>, tid: i32, data: c_long) -> Result<(), Errno> {
    // SAFETY: as promised by the caller.
    done(unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            request.into(),
            c_long::from(tid),
            0 as c_long,
            data,
        )
    })
}

fn done(result: c_long) -> Result<(), Errno> {
    if result < 0 { Err(last()) } else { Ok(()) }
}

fn last() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
