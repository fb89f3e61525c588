//! Probes whether OverlayFS works here: mounts for real, in a child with namespaces of its own.
//!
//! The child mounts the original under an empty layer in the area, detached from every directory,
//! and ends; the kernel takes namespaces and mount with it. So nothing can leak (rule S8).

use std::ffi::{CStr, CString};
use std::io::{Cursor, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::UnshareFlags;

use super::super::Probe;
use crate::fs::{Dir, EntryHandle, mounts, remove, xattr};

/// The child only makes a dozen system calls. One that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(10);

const PROBE: &[u8] = b"probe";

/// Mounts `original` under a layer in `area` and says how it went.
pub(super) fn probe(original: &Path, area: &Path) -> Probe {
    let tried = || -> crate::fs::Result<Probe> {
        let lower = Dir::open(original)?;
        let area = Dir::open(area)?;
        if area.is_overlay()? {
            return Ok(Probe::no(
                "the sandbox's area would lie on an overlay file system, as in a container, which can take no layer: it is \
                copied, and committed into; on a volume it has a layer",
            ));
        }
        remove::remove(&area, PROBE)?;
        area.make_dir(PROBE, 0o700)?;
        let room = area.subdir(PROBE)?;
        room.make_dir(b"upper", 0o700)?;
        room.make_dir(b"work", 0o700)?;
        let (upper, work) = (room.subdir(b"upper")?, room.subdir(b"work")?);
        let answer = match xattr::set(&EntryHandle::of(&upper), b"user.overlay.opaque", b"y") {
            Ok(()) => try_mount(&lower, &upper, &work),
            Err(errno) => Probe::no(format!(
                "the file system of the sandbox's area cannot hold the marks of a layer: {}",
                std::io::Error::from(errno)
            )),
        };
        remove::remove(&area, PROBE)?;
        Ok(answer)
    };
    tried().unwrap_or_else(|error| Probe::no(format!("{error}: {}", error.cause)))
}

/// The steps of the child, for the reason that people read.
const STEPS: [&str; 5] = [
    "make a user and mount namespace (are unprivileged user namespaces forbidden here?)",
    "map the own user into the new namespace",
    "open the overlay file system (is the kernel module missing?)",
    "set the layers",
    "mount the layers",
];

fn try_mount(lower: &Dir, upper: &Dir, work: &Dir) -> Probe {
    let inside = ProbeChild::prepare(lower, upper, work);
    let answer = inside.and_then(|inside| run_in_child(&inside));
    match answer {
        Ok(None) => Probe::yes("the kernel mounts the original under an empty layer, without root"),
        Ok(Some((step, errno))) => {
            let step = STEPS.get(step).copied().unwrap_or("end in order");
            Probe::no(format!("cannot {step}: {}", std::io::Error::from(errno)))
        }
        Err(errno) => Probe::no(format!(
            "cannot try it in a child process: {}",
            std::io::Error::from(errno)
        )),
    }
}

/// What is mounted in a directory, if no layer can be laid over it because of that.
pub(super) fn mounted_in(original: &Path) -> Option<PathBuf> {
    let mut points = mounts::below(original).unwrap_or_default().into_iter();
    let user = !rustix::process::geteuid().is_root();
    points.find(|_| user)
}

/// Everything the child needs, made before the fork: after it nothing may be allocated.
struct ProbeChild {
    uid_map: String,
    gid_map: String,
    lower: CString,
    upper: CString,
    work: CString,
    report: OwnedFd,
    answer: OwnedFd,
}

impl ProbeChild {
    fn prepare(lower: &Dir, upper: &Dir, work: &Dir) -> Result<Self, Errno> {
        let (answer, report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let path =
            |dir: &Dir| CString::new(dir.path().as_os_str().as_bytes()).map_err(|_| Errno::INVAL);
        Ok(Self {
            uid_map: format!("{uid} {uid} 1"),
            gid_map: format!("{gid} {gid} 1"),
            lower: path(lower)?,
            upper: path(upper)?,
            work: path(work)?,
            report,
            answer,
        })
    }

    /// Runs in the child. Makes system calls only.
    fn mount(&self) -> Result<(), (u8, Errno)> {
        let at = |step: u8| move |errno| (step, errno);
        // As commands are run: root mounts with its own rights.
        if rustix::process::geteuid().is_root() {
            unshare(UnshareFlags::NEWNS).map_err(at(0))?;
        } else {
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(at(0))?;
            put(c"/proc/self/setgroups", "deny").map_err(at(1))?;
            put(c"/proc/self/uid_map", &self.uid_map).map_err(at(1))?;
            put(c"/proc/self/gid_map", &self.gid_map).map_err(at(1))?;
        }
        let fs = mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(at(2))?;
        let fs = fs.as_fd();
        let set = |key: &CStr, path: &CStr| {
            // Opened again inside: a handle from outside belongs to the mounts outside.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::open(path, flags, Mode::empty())?;
            // By number, never by name: a comma or a colon in a path is just a path (rule S4).
            mount::fsconfig_set_string(fs, key, numbered(fd.as_raw_fd(), &mut [0; 32])?)
        };
        mount::fsconfig_set_flag(fs, c"userxattr").map_err(at(3))?;
        set(c"lowerdir", &self.lower).map_err(at(3))?;
        set(c"upperdir", &self.upper).map_err(at(3))?;
        set(c"workdir", &self.work).map_err(at(3))?;
        mount::fsconfig_create(fs).map_err(at(4))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        mount::fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(at(4))?;
        Ok(())
    }
}

/// `/proc/self/fd/N`, written without allocating.
fn numbered(fd: i32, buffer: &mut [u8; 32]) -> Result<&str, Errno> {
    let mut cursor = Cursor::new(&mut buffer[..]);
    write!(cursor, "/proc/self/fd/{fd}").map_err(|_| Errno::RANGE)?;
    let length = cursor.position() as usize;
    std::str::from_utf8(&buffer[..length]).map_err(|_| Errno::RANGE)
}

fn put(path: &CStr, text: &str) -> Result<(), Errno> {
    let fd = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, text.as_bytes()).map(drop)
}

#[allow(
    unsafe_code,
    reason = "the kernel asks callers to know what they share"
)]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: called in a forked child with one thread and no memory of anyone else.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// `None`: it worked. Otherwise the step that failed and why.
#[allow(
    unsafe_code,
    reason = "fork has no safe form; the child makes system calls only"
)]
fn run_in_child(inside: &ProbeChild) -> Result<Option<(usize, Errno)>, Errno> {
    // SAFETY: the child allocates nothing, takes no lock and ends in `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (step, errno) = match inside.mount() {
            Ok(()) => (u8::MAX, 0),
            Err((step, errno)) => (step, errno.raw_os_error()),
        };
        let mut message = [step, 0, 0, 0, 0];
        message[1..].copy_from_slice(&errno.to_le_bytes());
        // Without an answer the parent reports a child that did not end in order.
        let status = i32::from(rustix::io::write(&inside.report, &message).is_err());
        // SAFETY: ends this process at once, running nothing of the parent's.
        unsafe { libc::_exit(status) };
    }
    let Some(pid) = rustix::process::Pid::from_raw(child) else {
        return Err(Errno::AGAIN);
    };
    let answered = wait_for(&inside.answer);
    if answered.is_err() {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
    let message = answered?;
    let errno = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
    Ok((message[0] != u8::MAX).then(|| (usize::from(message[0]), Errno::from_raw_os_error(errno))))
}

fn wait_for(answer: &OwnedFd) -> Result<[u8; 5], Errno> {
    let limit = rustix::event::Timespec {
        tv_sec: LIMIT.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut ready = [rustix::event::PollFd::new(
        answer,
        rustix::event::PollFlags::IN,
    )];
    if rustix::event::poll(&mut ready, Some(&limit))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let mut message = [0; 5];
    match rustix::io::read(answer, &mut message)? {
        5 => Ok(message),
        _ => Err(Errno::PIPE),
    }
}
