//! System calls that have no safe wrapper, each with the reason why its use is sound.
#![allow(
    unsafe_code,
    reason = "fork, exec, seccomp, Landlock and ptrace have no safe form; nothing else in this room is unsafe"
)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

fn check(answer: i64) -> Result<i64, Errno> {
    match answer {
        -1 => Err(last()),
        answer => Ok(answer),
    }
}

fn last() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// New namespaces for this process, or for its children.
pub(super) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: called in a process with one thread, which shares nothing that it must keep.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Two processes from here on: `None` in the child.
pub(super) fn fork() -> Result<Option<Pid>, Errno> {
    // SAFETY: this process has one thread, or the child makes system calls only and ends in `exit`.
    check(unsafe { libc::fork() }.into()).map(|pid| Pid::from_raw(pid as i32))
}

/// Lets a command that is about to be started be killed when the thread that starts it ends.
pub(super) fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // Where the parent was quicker to end, no signal comes.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(std::io::Error::from(Errno::SRCH)),
        }
    };
    // SAFETY: between fork and exec, only system calls are made and nothing is allocated.
    unsafe { command.pre_exec(prepare) };
}

/// Lets a command that is about to be started do this first. It may make system calls only, and allocate nothing.
pub(super) fn before_exec(
    command: &mut std::process::Command,
    prepare: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec, only system calls are made and nothing is allocated, as the callers promise.
    unsafe { command.pre_exec(move || Ok(prepare()?)) };
}

/// Ends this process at once, running nothing on the way.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Gives every capability up but these, for this process and whatever it becomes, and every way to gain one.
pub(super) fn give_up_privileges(kept: CapabilitySet) -> Result<(), Errno> {
    let all = (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number));
    for capability in all.filter(|one| !kept.contains(*one)) {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Capabilities this kernel does not know are refused with EINVAL.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_no_new_privs(true)?;
    let left = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, left)
}

/// Lets a filter answer the system calls of this process and of whatever it becomes.
pub(super) fn filter_calls(mut filter: Vec<libc::sock_filter>) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program lives until the call returns, and its length is right.
    check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) }.into()).map(drop)
}

/// Whether only root may open a terminal again.
pub(super) fn is_exclusive(terminal: BorrowedFd<'_>) -> Result<bool, Errno> {
    const TIOCGEXCL: u32 = 0x8004_5440;
    let mut found: libc::c_int = 0;
    // SAFETY: the answer is a number of ours.
    let asked = unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCGEXCL as _, &raw mut found) };
    check(asked.into()).map(|_| found != 0)
}

/// The device of a terminal, also of one that was opened as `/dev/tty`.
pub(super) fn terminal_device(terminal: &OwnedFd) -> Result<u64, Errno> {
    const TIOCGDEV: u32 = 0x8004_5432;
    let mut found: libc::c_uint = 0;
    // SAFETY: the answer is a number of ours.
    let asked = unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCGDEV as _, &raw mut found) };
    check(asked.into()).map(|_| found.into())
}

/// Lets only root open a terminal again, or everyone who may.
pub(super) fn set_exclusive(terminal: &OwnedFd, exclusive: bool) -> Result<(), Errno> {
    let what = match exclusive {
        true => libc::TIOCEXCL,
        false => libc::TIOCNXCL,
    };
    // SAFETY: takes no argument.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), what) }.into()).map(drop)
}

/// Brings the device `lo` of this network namespace up, so that processes in it reach each other.
pub(super) fn raise_loopback() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let socket = check(unsafe { libc::socket(libc::AF_INET, kind, 0) }.into())?;
    // SAFETY: the descriptor is new and ours.
    let socket = unsafe { OwnedFd::from_raw_fd(socket as i32) };
    // SAFETY: numbers and arrays of them may be zero.
    let mut device = unsafe { std::mem::zeroed::<libc::ifreq>() };
    for (to, from) in device.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    device.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is of the kind that this call reads, and lives until it returns.
    let set = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const device) };
    check(set.into()).map(drop)
}

/// A session keyring of its own, instead of the caller's.
pub(super) fn new_session_keyring() -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let unnamed = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name nothing is read.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, unnamed) }).map(drop)
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

/// Waits for any child; `None` where there is none to wait for, or none has changed and `options` do not block.
pub(super) fn wait_any(options: WaitOptions) -> Result<Option<(Pid, WaitStatus)>, Errno> {
    match rustix::process::wait(options | WaitOptions::UNTRACED) {
        Err(Errno::CHILD | Errno::INTR) => Ok(None),
        answer => answer,
    }
}

/// Detaches from the terminal and from the streams of the parent process.
pub(super) fn leave_terminal() -> Result<(), Errno> {
    rustix::process::setsid()?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)
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

/// Does nothing until it is killed.
pub(super) fn sleep_for_ever() -> ! {
    loop {
        rustix::event::pause();
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

/// Closes every descriptor from `from` on but these. What the caller had open, and did not mean for the namespace,
/// does not get there.
pub(super) fn keep_only(kept: &mut [i32], mut from: u32) -> Result<(), Errno> {
    kept.sort_unstable();
    for number in kept
        .iter()
        .map(|number| number.unsigned_abs())
        .chain([u32::MAX])
    {
        if from < number {
            // SAFETY: takes numbers only; no owner of what is closed is used here again.
            check(unsafe { libc::syscall(libc::SYS_close_range, from, number - 1, 0) })?;
        }
        from = from.max(number.saturating_add(1));
    }
    Ok(())
}

/// Which version of Landlock the kernel has; 0 if none.
pub(super) fn landlock_version() -> i64 {
    const VERSION: u32 = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: only asks for a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    version.max(0)
}

/// New rules of Landlock, which permit nothing yet of these accesses to files, and none of what is scoped.
pub(super) fn landlock_rules(files: u64, scoped: u64) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct LandlockRules {
        files: u64,
        network: u64,
        scoped: u64,
    }
    let network = 0;
    let rules = LandlockRules {
        files,
        network,
        scoped,
    };
    let size = size_of::<LandlockRules>();
    // SAFETY: the rules are of the size that is passed, and live until the call returns.
    let made =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, size, 0) };
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(check(made)? as i32) })
}

/// Permits these accesses to a file, or below a directory.
pub(super) fn landlock_permit(
    rules: &OwnedFd,
    at: BorrowedFd<'_>,
    access: u64,
) -> Result<(), Errno> {
    #[repr(C, packed)]
    struct BelowPath {
        access: u64,
        parent: i32,
    }
    const BELOW_PATH: u32 = 1;
    let parent = at.as_raw_fd();
    let rule = BelowPath { access, parent };
    let fd = rules.as_raw_fd();
    // SAFETY: the rule is of the kind that is named, and lives until the call returns.
    let added = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            fd,
            BELOW_PATH,
            &raw const rule,
            0,
        )
    };
    check(added).map(drop)
}

/// Confines this process and its descendants by rules.
pub(super) fn landlock_enter(rules: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
        .map(drop)
}

/// Makes a mount and everything below it read-only; set-user-id programs and device nodes on it mean
/// nothing.
pub(super) fn read_only(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(
        at,
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV,
        libc::AT_RECURSIVE,
    )
}

/// Makes the mount of one device or file read-only: the device can be used, what is known of it cannot be
/// changed, and it is no program.
pub(super) fn fixed(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(
        at,
        libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOEXEC,
        libc::AT_RECURSIVE,
    )
}

/// Makes a mount harmless that can be written.
pub(super) fn harmless(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, libc::MOUNT_ATTR_NODEV, libc::AT_RECURSIVE)
}

/// Makes one mount read-only, not those in it; refused while something has a file open through it for writing.
pub(super) fn frozen(at: BorrowedFd<'_>) -> Result<(), Errno> {
    restrict(at, libc::MOUNT_ATTR_RDONLY, 0)
}

fn restrict(at: BorrowedFd<'_>, more: u64, deep: i32) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: more | libc::MOUNT_ATTR_NOSUID,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the path is a literal, the struct is of the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | deep,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
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

/// The memory of this machine in bytes.
pub(super) fn memory() -> u64 {
    // SAFETY: all zeroes is a value of it, and the kernel fills it in.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a value of the type that the call writes.
    match unsafe { libc::sysinfo(&raw mut info) } {
        0 => info.totalram.saturating_mul(info.mem_unit.into()),
        _ => u64::MAX,
    }
}
