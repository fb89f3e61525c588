//! The calls that change what a disk holds or promise that it is held: what is known of each, and the filter that stops
//! a program at these and at no others.

use libc::{c_long, sock_filter};

use When::{Always, Clones, Creates, CreatesHow, InFile};

/// One system call. Numbers in it are places of arguments.
pub(super) struct Call {
    pub(super) number: c_long,
    pub(super) name: &'static str,
    pub(super) when: When,
    pub(super) about: About,
    pub(super) length: Length,
}

/// When the call counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// When the handle is that of a file on a disk, not of a pipe, a terminal, a socket or of memory.
    InFile(usize),
    /// When these flags create or truncate.
    Creates(usize),
    /// When the flags in this `open_how` do.
    CreatesHow(usize),
    /// When this is a request to share blocks, or to make, change or delete a subvolume.
    Clones(usize),
}

/// What the call names.
#[derive(Clone, Copy)]
pub(super) enum About {
    Nothing,
    Handle(usize),
    Path(usize),
    /// A path, relative to a handle.
    At(usize, usize),
    Paths(usize, usize),
    /// Two paths, each relative to a handle: the first four arguments.
    Ats,
}

/// How the call can be made to do half of its work.
#[derive(Clone, Copy)]
pub(super) enum Length {
    /// It cannot: it does all or nothing.
    Whole,
    /// By this number of bytes.
    Bytes(usize),
    /// By this number of bytes, which may be more than the file behind this handle has.
    Copied { bytes: usize, from: usize },
    /// By the buffers that the second and the third argument list.
    Buffers,
}

const fn call(number: c_long, name: &'static str, when: When, about: About) -> Call {
    Call {
        number,
        name,
        when,
        about,
        length: Length::Whole,
    }
}

const fn write(number: c_long, name: &'static str, fd: usize, length: Length) -> Call {
    Call {
        number,
        name,
        when: InFile(fd),
        about: About::Handle(fd),
        length,
    }
}

const fn copied(bytes: usize, from: usize) -> Length {
    Length::Copied { bytes, from }
}

const fn fd(number: c_long, name: &'static str) -> Call {
    call(number, name, Always, About::Handle(0))
}

const fn path(number: c_long, name: &'static str) -> Call {
    call(number, name, Always, About::Path(0))
}

const fn at(number: c_long, name: &'static str) -> Call {
    call(number, name, Always, About::At(0, 1))
}

// Newer than the libc crate.
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;

/// All of them.
pub(super) const CALLS: &[Call] = &[
    call(libc::SYS_open, "open", Creates(1), About::Path(0)),
    call(libc::SYS_openat, "openat", Creates(2), About::At(0, 1)),
    call(libc::SYS_openat2, "openat2", CreatesHow(2), About::At(0, 1)),
    path(libc::SYS_creat, "creat"),
    write(libc::SYS_write, "write", 0, Length::Bytes(2)),
    write(libc::SYS_pwrite64, "pwrite64", 0, Length::Bytes(2)),
    write(libc::SYS_writev, "writev", 0, Length::Buffers),
    write(libc::SYS_pwritev, "pwritev", 0, Length::Buffers),
    write(libc::SYS_pwritev2, "pwritev2", 0, Length::Buffers),
    write(
        libc::SYS_copy_file_range,
        "copy_file_range",
        2,
        copied(4, 0),
    ),
    write(libc::SYS_sendfile, "sendfile", 0, copied(3, 1)),
    write(libc::SYS_splice, "splice", 2, Length::Bytes(4)),
    write(libc::SYS_ftruncate, "ftruncate", 0, Length::Whole),
    write(libc::SYS_fallocate, "fallocate", 0, Length::Whole),
    path(libc::SYS_truncate, "truncate"),
    call(libc::SYS_ioctl, "ioctl", Clones(1), About::Handle(0)),
    call(libc::SYS_rename, "rename", Always, About::Paths(0, 1)),
    call(libc::SYS_renameat, "renameat", Always, About::Ats),
    call(libc::SYS_renameat2, "renameat2", Always, About::Ats),
    call(libc::SYS_link, "link", Always, About::Paths(0, 1)),
    call(libc::SYS_linkat, "linkat", Always, About::Ats),
    call(libc::SYS_symlink, "symlink", Always, About::Path(1)),
    call(libc::SYS_symlinkat, "symlinkat", Always, About::At(1, 2)),
    path(libc::SYS_unlink, "unlink"),
    at(libc::SYS_unlinkat, "unlinkat"),
    path(libc::SYS_rmdir, "rmdir"),
    path(libc::SYS_mkdir, "mkdir"),
    at(libc::SYS_mkdirat, "mkdirat"),
    path(libc::SYS_mknod, "mknod"),
    at(libc::SYS_mknodat, "mknodat"),
    path(libc::SYS_chmod, "chmod"),
    fd(libc::SYS_fchmod, "fchmod"),
    at(libc::SYS_fchmodat, "fchmodat"),
    at(libc::SYS_fchmodat2, "fchmodat2"),
    path(libc::SYS_chown, "chown"),
    path(libc::SYS_lchown, "lchown"),
    fd(libc::SYS_fchown, "fchown"),
    at(libc::SYS_fchownat, "fchownat"),
    path(libc::SYS_utime, "utime"),
    path(libc::SYS_utimes, "utimes"),
    at(libc::SYS_futimesat, "futimesat"),
    at(libc::SYS_utimensat, "utimensat"),
    path(libc::SYS_setxattr, "setxattr"),
    path(libc::SYS_lsetxattr, "lsetxattr"),
    fd(libc::SYS_fsetxattr, "fsetxattr"),
    at(SETXATTRAT, "setxattrat"),
    path(libc::SYS_removexattr, "removexattr"),
    path(libc::SYS_lremovexattr, "lremovexattr"),
    fd(libc::SYS_fremovexattr, "fremovexattr"),
    at(REMOVEXATTRAT, "removexattrat"),
    at(FILE_SETATTR, "file_setattr"),
    fd(libc::SYS_fsync, "fsync"),
    fd(libc::SYS_fdatasync, "fdatasync"),
    fd(libc::SYS_syncfs, "syncfs"),
    fd(libc::SYS_sync_file_range, "sync_file_range"),
    call(libc::SYS_sync, "sync", Always, About::Nothing),
    call(libc::SYS_msync, "msync", Always, About::Nothing),
];

/// Flags of open that make a file or empty it. `O_TMPFILE` is two bits, of which the other is `O_DIRECTORY`.
pub(super) const CREATING: u32 =
    (libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

/// Requests of ioctl that change what a disk holds: those that share blocks, and those of btrfs that take a snapshot, make and
/// delete a subvolume, and let one be written.
const REQUESTS: [u32; 6] = [
    libc::FICLONE as u32,
    libc::FICLONERANGE as u32,
    0x5000_9417,
    0x5000_940e,
    0x5000_940f,
    0x4008_941a,
];

/// The call of this number.
pub(super) fn find(number: u64) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.number as u64 == number)
}

/// A filter that stops at the calls for which `wanted` holds, refuses `io_uring` (its writes pass no filter; programs
/// then do without), ends programs of another architecture, and does not look at anything else.
pub(super) fn filter(wanted: impl Fn(&Call) -> bool) -> Vec<sock_filter> {
    let mut out = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        jump(libc::BPF_JGE, X32, 0, 1),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        jump(libc::BPF_JEQ, libc::SYS_io_uring_setup as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ];
    let trace = answer(libc::SECCOMP_RET_TRACE);
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    for call in CALLS.iter().filter(|call| wanted(call)) {
        let body = match call.when {
            Always | InFile(_) | CreatesHow(_) => vec![trace],
            Creates(place) => vec![
                load(argument(place)),
                jump(libc::BPF_JSET, CREATING, 0, 1),
                trace,
                allow,
            ],
            Clones(place) => {
                let mut body = vec![load(argument(place))];
                for (number, request) in (1..).zip(REQUESTS) {
                    let to_trace = REQUESTS.len() as u8 - number + 1;
                    body.push(jump(libc::BPF_JEQ, request, to_trace, 0));
                }
                body.extend([allow, trace, allow]);
                body
            }
        };
        out.push(jump(libc::BPF_JEQ, call.number as u32, 0, body.len() as u8));
        out.extend(body);
    }
    out.push(allow);
    out
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// From here on, numbers of calls are those of another calling convention.
const X32: u32 = 0x4000_0000;
/// Where `struct seccomp_data` has what.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Where the lower half of an argument is.
fn argument(place: usize) -> u32 {
    16 + 8 * place as u32
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Skips `yes` or `no` instructions.
fn jump(how: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(libc::BPF_JMP | how | libc::BPF_K, value, yes, no)
}

fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}
