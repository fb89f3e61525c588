//! The way in: new namespaces, every mount, and then process 1. Whatever fails here fails before the
//! command begins, and is told with the step that failed.
//!
//! Runs in a process of its own with one thread. Mounts are made detached before anything is covered,
//! and then moved into place.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    self, FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags,
};
use rustix::thread::UnshareFlags;

use super::spec::Spec;
use super::supervise::Channel;
use super::{News, init, sys};
use crate::model::view::{Layers, View};

/// A step that failed, in words, and why.
pub(super) type Step<T> = Result<T, (String, Errno)>;

pub(super) fn at(step: impl Into<String>) -> impl FnOnce(Errno) -> (String, Errno) {
    let step = step.into();
    move |errno| (step, errno)
}

/// Builds the inside that was described and runs the command in it. Never returns.
pub fn enter(spec: OwnedFd, channel: OwnedFd) -> ! {
    let channel = Channel::new(channel);
    let status = match go_in(spec, &channel) {
        Ok(status) => status,
        Err((step, errno)) => {
            // Without an answer the supervisor says that the inside ended too early.
            match channel.tell(&News::Failed(step, errno.raw_os_error())) {
                Ok(()) | Err(_) => 125,
            }
        }
    };
    sys::exit(status)
}

fn go_in(spec: OwnedFd, channel: &Channel) -> Step<i32> {
    sys::end_with_parent().map_err(at("tie the inside to its supervisor"))?;
    let spec = read_spec(spec)?;
    if let Some(pid) = spec.join {
        join(pid)?;
        return init::watch(&spec, channel, false);
    }
    make_namespaces(&spec)?;
    make_mounts(&spec)?;
    let child = sys::fork().map_err(at("start process 1"))?;
    if child == 0 {
        let status = begin(&spec, channel);
        if let Err((step, errno)) = status {
            match channel.tell(&News::Failed(step, errno.raw_os_error())) {
                Ok(()) | Err(_) => sys::exit(125),
            }
        }
        sys::exit(status.unwrap_or(125));
    }
    channel
        .tell(&News::Init(child))
        .map_err(at("tell the supervisor"))?;
    loop {
        match sys::wait_any(true).map_err(at("wait for process 1"))? {
            Some((_, sys::Child::Exited(status))) => return Ok(status),
            Some((_, sys::Child::Signaled(signal))) => return Ok(128 + signal),
            _ => {}
        }
    }
}

fn read_spec(from: OwnedFd) -> Step<Spec> {
    let file = std::fs::File::from(from);
    serde_json::from_reader(std::io::BufReader::new(file))
        .map_err(|_| ("read what the inside looks like".to_owned(), Errno::INVAL))
}

/// Process 1: what can only be done from there, and then the command.
fn begin(spec: &Spec, channel: &Channel) -> Step<i32> {
    sys::end_with_parent().map_err(at("tie process 1 to its parent"))?;
    fresh_proc()?;
    init::watch(spec, channel, true)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn make_namespaces(spec: &Spec) -> Step<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
    if !is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    if !spec.network {
        flags |= UnshareFlags::NEWNET;
    }
    sys::unshare(flags).map_err(at(
        "make namespaces (are unprivileged user namespaces forbidden here?)",
    ))?;
    if !is_root() || flags.contains(UnshareFlags::NEWUSER) {
        let map = |id: u32| format!("{id} {id} 1");
        let step = "map the own user into the new namespace";
        write("/proc/self/setgroups", "deny").map_err(at(step))?;
        write("/proc/self/uid_map", &map(uid.as_raw())).map_err(at(step))?;
        write("/proc/self/gid_map", &map(gid.as_raw())).map_err(at(step))?;
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount::mount_change(c"/", private).map_err(at("part from the mounts outside"))
}

fn write(path: &str, text: &str) -> Result<(), Errno> {
    let fd = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, text.as_bytes()).map(drop)
}

/// Goes into the namespaces of a process that is inside already.
fn join(pid: u32) -> Step<()> {
    let open = |whose: &str, name: &str| {
        let path = format!("/proc/{whose}/ns/{name}");
        fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    };
    let step = || "join the command that runs already (it may have just ended)".to_owned();
    // Opened first: once inside, they can no longer be named.
    let mut namespaces = Vec::new();
    let all = [
        ("user", libc::CLONE_NEWUSER),
        ("ipc", libc::CLONE_NEWIPC),
        ("net", libc::CLONE_NEWNET),
        ("pid", libc::CLONE_NEWPID),
        ("mnt", libc::CLONE_NEWNS),
    ];
    for (name, kind) in all {
        let (own, theirs) = (open("self", name), open(&pid.to_string(), name));
        let (own, theirs) = (own.map_err(at(step()))?, theirs.map_err(at(step()))?);
        let number = |fd: &OwnedFd| fs::fstat(fd).map(|stat| stat.st_ino);
        // What is shared already cannot, and need not, be joined.
        if number(&own).map_err(at(step()))? != number(&theirs).map_err(at(step()))? {
            namespaces.push((theirs, kind));
        }
    }
    for (namespace, kind) in namespaces {
        sys::join(namespace.as_fd(), kind).map_err(at(step()))?;
    }
    Ok(())
}

/// A mount that is nowhere yet.
struct Detached {
    fd: OwnedFd,
    at: PathBuf,
}

fn make_mounts(spec: &Spec) -> Step<()> {
    let mut ready = Vec::new();
    if let Some(scratch) = &spec.scratch {
        ready.push(Detached {
            fd: overlay(scratch, true)?,
            at: scratch.lower.as_path().to_owned(),
        });
    }
    for path in &spec.writable {
        let fd = clone_tree(path.as_path(), true)?;
        sys::harmless(fd.as_fd()).map_err(at(format!("restrict '{path}'")))?;
        ready.push(Detached {
            fd,
            at: path.as_path().to_owned(),
        });
    }
    for (path, view) in &spec.views {
        let fd = match view {
            View::Layers(layers) => overlay(layers, false)?,
            View::Directory(from) => {
                let fd = clone_tree(from.as_path(), false)?;
                sys::harmless(fd.as_fd()).map_err(at(format!("restrict '{from}'")))?;
                fd
            }
        };
        ready.push(Detached {
            fd,
            at: path.as_path().to_owned(),
        });
    }
    let devices = devices()?;
    let names = names()?;
    let root = fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(at("open the root"))?;
    sys::read_only(root.as_fd()).map_err(at("make everything else read-only"))?;
    put(tmpfs("1777")?.as_fd(), Path::new("/tmp"))?;
    if is_there(Path::new("/run")) {
        put(tmpfs("0755")?.as_fd(), Path::new("/run"))?;
    }
    put_devices(devices)?;
    if let Some(names) = names {
        make_file(&names.at)?;
        put(names.fd.as_fd(), &names.at)?;
    }
    for Detached { fd, at } in &ready {
        make_point(at)?;
        put(fd.as_fd(), at)?;
    }
    for path in &spec.hidden {
        if is_there(path.as_path()) {
            put(tmpfs("0700")?.as_fd(), path.as_path())?;
        }
    }
    Ok(())
}

/// Two layers as one, mounted nowhere.
fn overlay(layers: &Layers, throw_away: bool) -> Step<OwnedFd> {
    let step = || format!("lay a layer over '{}'", layers.lower);
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::open(path, flags, Mode::empty())
    };
    let make = || -> Result<OwnedFd, Errno> {
        let fs = mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_flag(fs.as_fd(), c"userxattr")?;
        // What is thrown away need not be written back.
        if throw_away {
            mount::fsconfig_set_flag(fs.as_fd(), c"volatile")?;
        }
        let all = [
            (c"lowerdir", &layers.lower),
            (c"upperdir", &layers.upper),
            (c"workdir", &layers.work),
        ];
        for (key, path) in all {
            let fd = open(path.as_path())?;
            // By number, never by name: a comma or a colon in a path is just a path (rule S4).
            let number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
            mount::fsconfig_set_string(fs.as_fd(), key, number)?;
        }
        mount::fsconfig_create(fs.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(at(step()))
}

/// Another view of what is at a path, mounted nowhere.
fn clone_tree(path: &Path, deep: bool) -> Step<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if deep {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    mount::open_tree(CWD, path, flags).map_err(at(format!("take '{}' inside", path.display())))
}

fn tmpfs(mode: &str) -> Step<OwnedFd> {
    let make = || -> Result<OwnedFd, Errno> {
        let fs = mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_string(fs.as_fd(), c"mode", mode)?;
        mount::fsconfig_create(fs.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(at("make a private directory in memory"))
}

/// Whether anything is at a path.
fn is_there(path: &Path) -> bool {
    fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

fn put(mount: BorrowedFd<'_>, path: &Path) -> Step<()> {
    mount::move_mount(
        mount,
        c"",
        CWD,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(at(format!("show '{}' inside", path.display())))
}

/// The place for a mount, where a directory in memory covers the one that was there.
fn make_point(path: &Path) -> Step<()> {
    if is_there(path) {
        return Ok(());
    }
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    for path in above {
        match fs::mkdir(path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST | Errno::ROFS | Errno::ACCESS) => {}
            Err(errno) => return Err(at(format!("make '{}'", path.display()))(errno)),
        }
    }
    Ok(())
}

fn make_file(path: &Path) -> Step<()> {
    if let Some(parent) = path.parent() {
        make_point(parent)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = fs::open(path, flags, Mode::from_raw_mode(0o644));
    made.map(drop)
        .map_err(at(format!("make '{}'", path.display())))
}

/// The few devices that programs need; disks and memory are not among them.
fn devices() -> Step<Vec<Detached>> {
    const DEVICES: [(&str, u32, u32); 6] = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ];
    let mut found = Vec::new();
    for (name, major, minor) in DEVICES {
        let path = Path::new("/dev").join(name);
        if !is_there(&path) {
            continue;
        }
        let fd = clone_tree(&path, false)?;
        // Looked at once it is held: whoever put something else there must not choose what is shown.
        let step = || {
            format!(
                "use '{}', which is not the device it should be",
                path.display()
            )
        };
        let stat = fs::fstat(&fd).map_err(at(step()))?;
        let is_device = fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::CharacterDevice;
        if !is_device || stat.st_rdev != fs::makedev(major, minor) {
            return Err(at(step())(Errno::NODEV));
        }
        found.push(Detached { fd, at: path });
    }
    Ok(found)
}

fn put_devices(devices: Vec<Detached>) -> Step<()> {
    put(tmpfs("0755")?.as_fd(), Path::new("/dev"))?;
    for Detached { fd, at } in devices {
        make_file(&at)?;
        put(fd.as_fd(), &at)?;
    }
    let links = [
        ("/proc/self/fd", "/dev/fd"),
        ("/proc/self/fd/0", "/dev/stdin"),
        ("/proc/self/fd/1", "/dev/stdout"),
        ("/proc/self/fd/2", "/dev/stderr"),
        ("pts/ptmx", "/dev/ptmx"),
    ];
    for (target, name) in links {
        fs::symlink(target, name).map_err(at(format!("make '{name}'")))?;
    }
    for name in ["/dev/shm", "/dev/pts"] {
        make_point(Path::new(name))?;
    }
    put(tmpfs("1777")?.as_fd(), Path::new("/dev/shm"))?;
    let terminals = || -> Result<OwnedFd, Errno> {
        let fs = mount::fsopen(c"devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_string(fs.as_fd(), c"ptmxmode", c"0666")?;
        mount::fsconfig_create(fs.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    let terminals = terminals().map_err(at("make terminals for the inside"))?;
    put(terminals.as_fd(), Path::new("/dev/pts"))
}

/// The file that says how names are looked up, if it lies in what is covered.
fn names() -> Step<Option<Detached>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(fd) = fs::open(c"/etc/resolv.conf", flags, Mode::empty()) else {
        return Ok(None);
    };
    let number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let Ok(target) = fs::readlink(number, Vec::new()) else {
        return Ok(None);
    };
    let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
    if !target.starts_with("/run") {
        return Ok(None);
    }
    Ok(Some(Detached {
        fd: clone_tree(&target, false)?,
        at: target,
    }))
}

/// The processes of the inside, and nothing of the kernel's that could be changed.
fn fresh_proc() -> Step<()> {
    let make = || -> Result<OwnedFd, Errno> {
        let fs = mount::fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_create(fs.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    let proc = make().map_err(at("show the processes of the inside"))?;
    put(proc.as_fd(), Path::new("/proc"))?;
    for name in ["sys", "sysrq-trigger", "irq", "bus", "fs"] {
        let path = Path::new("/proc").join(name);
        if is_there(&path) {
            let closed = clone_tree(&path, false)?;
            let step = format!("make '{}' read-only", path.display());
            sys::read_only(closed.as_fd()).map_err(at(step))?;
            put(closed.as_fd(), &path)?;
        }
    }
    Ok(())
}
