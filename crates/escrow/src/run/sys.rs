//! System calls that have no safe wrapper, each with the reason why its use is sound.
#![allow(
    unsafe_code,
    reason = "fork, prctl, seccomp and terminals have no safe form; nothing else in this room is unsafe"
)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

fn check(answer: i64) -> Result<i64, Errno> {
    match answer {
        -1 => Err(last()),
        answer => Ok(answer),
    }
}

pub(super) fn last() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// New namespaces for this process, or for its children.
pub(super) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: called in a process with one thread, which shares nothing that it must keep.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Goes into a namespace of another process.
pub(super) fn join(namespace: BorrowedFd<'_>, kind: i32) -> Result<(), Errno> {
    // SAFETY: takes an open descriptor and a number; this process has one thread.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind) }.into()).map(drop)
}

/// Two processes from here on: 0 in the child, else the child's number.
pub(super) fn fork() -> Result<u32, Errno> {
    // SAFETY: this process has one thread, so the child has everything it needs.
    check(unsafe { libc::fork() }.into()).map(|pid| pid as u32)
}

/// Ends this process at once, running nothing on the way.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Lets this process end when its parent does.
pub(super) fn end_with_parent() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }.into()).map(drop)
}

/// Lets the files of this process in `/proc` belong to its user.
pub(super) fn set_dumpable() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }.into()).map(drop)
}

/// Gives every capability up, for this process and whatever it becomes, and every way to gain one.
pub(super) fn give_up_privileges() -> Result<(), Errno> {
    #[repr(C)]
    struct CapabilityHeader {
        version: u32,
        pid: i32,
    }
    let header = CapabilityHeader {
        version: 0x2008_0522,
        pid: 0,
    };
    let none = [0u32; 6];
    for capability in 0..64 {
        // SAFETY: takes numbers only. Capabilities this kernel does not know are refused with EINVAL.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability) };
        if dropped != 0 && last() != Errno::INVAL && last() != Errno::PERM {
            return Err(last());
        }
    }
    // SAFETY: takes numbers only.
    let ambient = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    check(ambient.into())?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    // SAFETY: both point to values of the size that this version of the call reads.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) }).map(drop)
}

/// Forbids to type into the terminal on behalf of its user.
pub(super) fn forbid_typing() -> Result<(), Errno> {
    const TIOCSTI: u32 = 0x5412;
    const TIOCLINUX: u32 = 0x541C;
    /// The 32-bit machine that this one also runs programs of, and its number of `ioctl`.
    #[cfg(target_arch = "x86_64")]
    const FOREIGN: (u32, u32) = (0x4000_0003, 54);
    #[cfg(not(target_arch = "x86_64"))]
    const FOREIGN: (u32, u32) = (0x4000_0028, 54);
    const X32_IOCTL: u32 = 0x4000_0000 | 514;
    let step = |code: u32, k: u32, yes: u8, no: u8| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k,
    };
    let (load, equal, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let allowed = step(answer, libc::SECCOMP_RET_ALLOW, 0, 0);
    // The number of the call is at 0, the machine at 4; the low half of the second argument at 24
    // (little endian). A call of 32 bits, or of the x32 kind, has another number for the same thing.
    let mut filter = vec![
        step(load, 4, 0, 0),
        step(equal, FOREIGN.0, 0, 2),
        step(load, 0, 0, 0),
        step(equal, FOREIGN.1, 4, 8),
        step(load, 0, 0, 0),
        step(equal, libc::SYS_ioctl as u32, 2, 0),
        step(equal, X32_IOCTL, 1, 0),
        allowed,
        step(load, 24, 0, 0),
        step(equal, TIOCSTI, 1, 0),
        step(equal, TIOCLINUX, 0, 1),
        step(answer, refused, 0, 0),
        allowed,
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program lives until the call returns, and its length is right.
    let set = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    check(set.into()).map(drop)
}

/// Becomes the program in this file; returns only if that fails.
pub(super) fn exec(program: &CString, command: &[CString], environment: &[CString]) -> Errno {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        let all = texts.iter().map(|text| text.as_ptr());
        all.chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(command), pointers(environment));
    // SAFETY: both lists end with null and point to texts that live longer than the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    last()
}

/// What became of a child.
pub(super) enum ChildEvent {
    /// It ended with this status.
    Exited(i32),
    /// It was ended by this signal.
    Signaled(i32),
    /// It was stopped by this signal.
    Stopped(i32),
}

/// Waits for any child; `None` where there is none to wait for, or none has changed and `block` is
/// not set.
pub(super) fn wait_any(block: bool) -> Result<Option<(u32, ChildEvent)>, Errno> {
    let mut status = 0;
    let flags = libc::WUNTRACED | if block { 0 } else { libc::WNOHANG };
    // SAFETY: `status` is a number of ours.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
    match pid {
        0 => Ok(None),
        -1 if matches!(last(), Errno::CHILD | Errno::INTR) => Ok(None),
        -1 => Err(last()),
        pid if libc::WIFSTOPPED(status) => Ok(Some((
            pid as u32,
            ChildEvent::Stopped(libc::WSTOPSIG(status)),
        ))),
        pid if libc::WIFSIGNALED(status) => Ok(Some((
            pid as u32,
            ChildEvent::Signaled(libc::WTERMSIG(status)),
        ))),
        pid => Ok(Some((
            pid as u32,
            ChildEvent::Exited(libc::WEXITSTATUS(status)),
        ))),
    }
}

/// Sends a signal to a process, or, with a negative number, to a group.
pub(super) fn kill(target: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(target, signal) }.into()).map(drop)
}

/// A group of its own for a process.
pub(super) fn set_group(pid: u32) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::setpgid(pid as i32, pid as i32) }.into()).map(drop)
}

/// The group of this process.
pub(super) fn own_group() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::getpgrp() }
}

/// Gives the terminal to a group.
pub(super) fn give_terminal(terminal: BorrowedFd<'_>, group: i32) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), group) }.into()).map(drop)
}

/// The group that has the terminal.
pub(super) fn terminal_group(terminal: BorrowedFd<'_>) -> Result<i32, Errno> {
    // SAFETY: takes a number only.
    check(unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) }.into()).map(|group| group as i32)
}

/// Detaches from the terminal and from the streams of the parent process.
pub(super) fn leave_terminal() -> Result<(), Errno> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }.into())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty())?;
    for stream in 0..3 {
        // SAFETY: takes numbers only; the three streams belong to no value.
        check(unsafe { libc::dup2(null.as_raw_fd(), stream) }.into())?;
    }
    Ok(())
}

/// A descriptor that came by its number.
pub(super) fn adopt(number: i32) -> OwnedFd {
    // SAFETY: the process that described the namespace opened it for this process, and no other process here knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // It goes no further.
    match rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
        Ok(()) | Err(_) => fd,
    }
}

/// Closes a descriptor whose owner is never dropped in this process, which ends without running
/// anything.
pub(super) fn close(fd: BorrowedFd<'_>) {
    // SAFETY: takes a number; the owner is not used here again.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// A process that loses its parent among those started from here becomes a child of this process.
pub(super) fn adopt_orphans() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }.into()).map(drop)
}

/// Whether there is any child, in whatever state.
pub(super) fn has_children() -> bool {
    // SAFETY: the answer is ignored, and no child is taken.
    let answer = unsafe {
        libc::waitid(
            libc::P_ALL,
            0,
            std::ptr::null_mut(),
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
        )
    };
    answer == 0
}

/// Does nothing until it is killed.
pub(super) fn sleep_for_ever() -> ! {
    loop {
        // SAFETY: takes nothing.
        unsafe { libc::pause() };
    }
}

/// What happens on a signal.
pub(super) fn set_signal(signal: i32, ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither ignoring nor the default runs code of ours.
    unsafe { libc::signal(signal, action) };
}

/// Unblocks every signal.
pub(super) fn unblock_signals() {
    // SAFETY: the set is made empty before it is used.
    unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Closes every descriptor but the first three and these. What the caller had open, and did not mean
/// for the namespace, does not get there.
pub(super) fn keep_only(mut kept: Vec<i32>) -> Result<(), Errno> {
    kept.retain(|number| *number >= 3);
    kept.sort_unstable();
    let mut from = 3;
    for number in kept.into_iter().map(i32::unsigned_abs).chain([u32::MAX]) {
        if from < number {
            // SAFETY: takes numbers only; no owner of what is closed is used here again.
            check(unsafe { libc::syscall(libc::SYS_close_range, from, number - 1, 0) })?;
        }
        from = number.saturating_add(1);
    }
    Ok(())
}

/// Lets no process without capabilities trace this one, or take its descriptors, until it becomes
/// another program: the kernel closes what is not handed on before that one can be traced.
pub(super) fn hide() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }.into()).map(drop)
}

/// Whether the kernel can confine processes to abstract Unix sockets of their own.
pub(super) fn can_scope_abstract_sockets() -> bool {
    const VERSION: u32 = 1;
    const SCOPES: i64 = 6;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: only asks for a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    version >= SCOPES
}

/// Confines this process and its descendants to abstract Unix sockets of their own, by Landlock. Does
/// nothing where the kernel cannot (before Linux 6.12).
pub(super) fn scope_abstract_sockets() -> Result<(), Errno> {
    const ABSTRACT_UNIX_SOCKET: u64 = 1;
    #[repr(C)]
    struct LandlockRules {
        files: u64,
        network: u64,
        scoped: u64,
    }
    if !can_scope_abstract_sockets() {
        return Ok(());
    }
    let rules = LandlockRules {
        files: 0,
        network: 0,
        scoped: ABSTRACT_UNIX_SOCKET,
    };
    let size = size_of::<LandlockRules>();
    // SAFETY: the rules are of the size that is passed, and live until the call returns.
    let made =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size, 0) };
    // SAFETY: the descriptor is new and ours.
    let made = unsafe { OwnedFd::from_raw_fd(check(made)? as i32) };
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, made.as_raw_fd(), 0) }).map(drop)
}

const RDONLY: u64 = 1;
const NOSUID: u64 = 2;
const NODEV: u64 = 4;
const NOEXEC: u64 = 8;

/// Makes a mount and everything below it read-only; set-user-id programs and device nodes on it mean
/// nothing.
pub(super) fn read_only(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, RDONLY | NODEV, libc::AT_RECURSIVE)
}

/// Makes the mount of one device or file read-only: the device can be used, what is known of it cannot be
/// changed, and it is no program.
pub(super) fn fixed(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, RDONLY | NOEXEC, libc::AT_RECURSIVE)
}

/// Makes a mount harmless that can be written.
pub(super) fn harmless(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, NODEV, libc::AT_RECURSIVE)
}

/// Makes one mount read-only, not those in it; refused while something has a file open through it for writing.
pub(super) fn frozen(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, RDONLY, 0)
}

fn restrict(at: BorrowedFd<'_>, more: u64, deep: i32) -> Result<(), Errno> {
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        namespace: u64,
    }
    let attributes = MountAttributes {
        set: more | NOSUID,
        clear: 0,
        propagation: libc::MS_PRIVATE,
        namespace: 0,
    };
    // SAFETY: the path is a literal, the struct is of the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | deep,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// Becomes readable when a child ends or stops.
pub(super) fn child_news() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is made empty before it is used, and the descriptor is new and ours.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let fd = check(libc::signalfd(-1, &raw const set, flags).into())?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Takes out whatever can be read at once.
pub(super) fn drain(fd: &impl std::os::fd::AsFd) {
    let mut buffer = [0; 1024];
    // Nothing is left, or nothing can be had: either way one waits again.
    while matches!(rustix::io::read(fd, &mut buffer), Ok(length) if length > 0) {}
}

/// What a thread that was seized does.
pub(super) enum TraceEvent {
    /// It is paused; it was about to get this signal, if it is not 0.
    Stopped(i32),
    /// It runs, or waits in the kernel.
    Runs,
    /// It has ended.
    Gone,
}

/// Holds a thread as a debugger does, and has it pause as soon as it can.
pub(super) fn seize(thread: u32) -> Result<(), Errno> {
    let (none, thread) = (std::ptr::null_mut::<libc::c_void>(), thread as i32);
    // SAFETY: neither call reads or writes memory of ours.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) })?;
    // SAFETY: as above.
    check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) }).map(drop)
}

/// Whether it is paused by now.
pub(super) fn look_at(thread: u32) -> Result<TraceEvent, Errno> {
    let mut status = 0;
    // SAFETY: `status` is a number of ours.
    let pid =
        unsafe { libc::waitpid(thread as i32, &raw mut status, libc::__WALL | libc::WNOHANG) };
    match pid {
        -1 => Err(last()),
        0 => Ok(TraceEvent::Runs),
        // The number above the signal says that the kernel, and no signal, stopped it.
        _ if libc::WIFSTOPPED(status) && status >> 16 != 0 => Ok(TraceEvent::Stopped(0)),
        _ if libc::WIFSTOPPED(status) => Ok(TraceEvent::Stopped(libc::WSTOPSIG(status))),
        _ => Ok(TraceEvent::Gone),
    }
}

/// Lets a thread go on, with the signal it was about to get.
pub(super) fn release(thread: u32, signal: i32) {
    let none = std::ptr::null_mut::<libc::c_void>();
    let signal = signal as usize as *mut libc::c_void;
    // SAFETY: takes numbers only. One that is gone needs nothing.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, thread as i32, none, signal) };
}

/// Whether a call makes a process, and may wait for it.
pub(super) fn makes_process(call: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_vfork {
        return true;
    }
    call == libc::SYS_clone || call == libc::SYS_clone3
}
