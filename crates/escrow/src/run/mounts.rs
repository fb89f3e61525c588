//! The mounts of the namespace. They are created detached before anything is covered, and then moved into
//! place.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    self, FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use super::launcher::StepResult;
use super::spec::{MountedSandbox, RunSpec, SOCKETS};
use super::supervise::{RunError, at};
use super::{hidden, renames, stand_ins, sys};
use crate::failpoints;
use crate::fs::layering;
use crate::model::text::Location;
use crate::model::view::{Layers, View};

/// How long one waits for the kernel to close files of processes that have ended.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long one waits before trying again.
const PAUSE: Duration = Duration::from_millis(5);

/// How many layers fit into one option, which the kernel takes up to 256 bytes of.
const TOGETHER: usize = 8;

/// A mount that is nowhere yet.
struct DetachedMount {
    fd: OwnedFd,
    at: PathBuf,
}

/// What was mounted.
#[derive(Default)]
pub(super) struct Mounted {
    /// What is mounted of each sandbox, in the order of the sandboxes.
    pub(super) held: Vec<OwnedFd>,
    /// What has to be said.
    pub(super) notice: Option<String>,
    /// What is mounted at places that were made for it in the layer over the home directory.
    places: Vec<Location>,
}

/// Makes all of them, with a name for a terminal.
pub(super) fn make(spec: &RunSpec, terminal: Option<&Path>) -> StepResult<Mounted> {
    let mut ready = Vec::new();
    let (mut held, mut notice, mut places) = (Vec::new(), None, Vec::new());
    let (mut linked, mut covered) = (true, spec.covered.paths.clone());
    if let Some((home, scratch)) = &spec.scratch {
        let lay = |over: &Location, layers: &Layers| -> StepResult<DetachedMount> {
            let fd = overlay(over, layers, true)?;
            if !spec.look.scratch {
                sys::frozen(fd.as_fd()).map_err(at(format!("restrict '{over}'")))?;
            }
            let at = over.as_path().to_owned();
            Ok(DetachedMount { fd, at })
        };
        let (hiding, without) = hidden::hide_between(spec, home, scratch)?;
        covered.extend(without);
        match lay(home, &hiding) {
            Ok(layer) => ready.push(layer),
            // As in a container: an overlay takes no layers.
            Err(_) if renames::is_overlay(scratch.upper.as_path()) => {
                ready.push(lay(home, &in_memory(&hiding, spec.disk)?)?);
                notice = Some(format!(
                    "what is written into the home directory '{home}' is kept in memory, and gone when no command is inside: \
                    the state lies on an overlay file system, as in a container; ESCROW_HOME on a volume keeps it"
                ));
            }
            // An ordinary user cannot lay a layer over what something is mounted in.
            Err(RunError::Step { errno, .. }) if errno == Errno::INVAL => {
                let laid = by_entries(spec, home, scratch, lay)?;
                ready.extend(laid.0);
                (places, linked) = (laid.1, false);
                covered = spec.covered.all();
                notice = Some(format!(
                    "a file system is mounted in the home directory '{home}': what is mounted there cannot be written inside"
                ));
            }
            Err(failed) => return Err(failed),
        }
    }
    for cache in &spec.caches {
        // Without one, a tool downloads into the layer over the home directory.
        if let Ok(fd) = overlay(&cache.at, &cache.layers, false) {
            let at = cache.at.as_path().to_owned();
            ready.push(DetachedMount { fd, at });
        }
    }
    if let Some(agent) = &spec.agent {
        let state = agent.state.iter().map(|one| (&one.from, &one.at));
        for (from, at) in state.chain([(&agent.files, &agent.place)]) {
            let fd = clone_tree(from.as_path(), OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
            sys::harmless(fd.as_fd()).map_err(self::at(format!("restrict '{from}'")))?;
            let at = at.as_path().to_owned();
            ready.push(DetachedMount { fd, at });
        }
    }
    for path in &spec.look.writable {
        let fd = clone_tree(path.as_path(), OpenTreeFlags::AT_RECURSIVE)?;
        sys::harmless(fd.as_fd()).map_err(at(format!("restrict '{path}'")))?;
        ready.push(DetachedMount {
            fd,
            at: path.as_path().to_owned(),
        });
    }
    for shown in &spec.views {
        let MountedSandbox { at: path, view, .. } = shown;
        if matches!(view, View::Layers(_)) {
            ready.extend(mounted_in(path.as_path())?);
        }
        let fd = match view {
            View::Layers(layers) => overlay(path, layers, shown.throw_away)?,
            View::Directory(from) => {
                // It must not be a link by now.
                let fd = clone_tree(from.as_path(), OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
                sys::harmless(fd.as_fd()).map_err(at(format!("restrict '{from}'")))?;
                fd
            }
            View::ReadOnly(from) => {
                let fd = clone_tree(from.as_path(), OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
                sys::fixed(fd.as_fd()).map_err(at(format!("restrict '{from}'")))?;
                fd
            }
        };
        held.push(rustix::io::fcntl_dupfd_cloexec(&fd, 3).map_err(at("hold a sandbox"))?);
        ready.push(DetachedMount {
            fd,
            at: path.as_path().to_owned(),
        });
    }
    if spec.look.open {
        ready.sort_by_key(|one| one.at.components().count());
        put_all(&ready)?;
        return Ok(Mounted {
            held,
            ..Mounted::default()
        });
    }
    for (_, own) in &spec.covered.homes {
        if let Some(own) = own
            .as_ref()
            .filter(|own| !ready.iter().any(|one| one.at == own.as_path()))
        {
            ready.push(still(own.as_path())?);
        }
    }
    let shown = spec.covered.shown.iter().map(|path| still(path.as_path()));
    let shown: Vec<DetachedMount> = shown.collect::<StepResult<_>>()?;
    // Whatever lies in something else is mounted in it.
    ready.sort_by_key(|one| one.at.components().count());
    let mut devices = devices()?;
    if let Some(fd) = terminal.map(|path| clone_tree(path, OpenTreeFlags::empty()))
        && let Ok(fd) = fd
        && stand_ins::is_terminal(&fd)
    {
        sys::fixed(fd.as_fd()).map_err(at("restrict the terminal"))?;
        let at = PathBuf::from("/dev/console");
        devices.push(DetachedMount { fd, at });
    }
    let parts = stand_ins::ssh_parts(spec, || tmpfs("0755", spec.disk))?;
    ready.extend(parts.map(|(fd, at)| DetachedMount { fd, at }));
    let names = names()?;
    let root = fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(at("open the root"))?;
    if !failpoints::bug("mounts-left-writable") && !failpoints::bug("both-walls-open") {
        sys::read_only(root.as_fd()).map_err(at("make everything else read-only"))?;
    }
    // Root could read, and by reading take away, what the kernel has for those who debug it. An ordinary user can neither.
    for path in ["/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/pstore"] {
        match mount::unmount(path, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(at(format!("hide '{path}'"))(errno)),
        }
    }
    put(tmpfs("1777", spec.disk)?.as_fd(), Path::new("/tmp"))?;
    if is_there(Path::new("/run")) {
        put(tmpfs("0755", spec.disk)?.as_fd(), Path::new("/run"))?;
    }
    for path in &spec.covered.private {
        put(tmpfs("1777", spec.disk)?.as_fd(), path.as_path())?;
    }
    for (homes, _) in &spec.covered.homes {
        put(tmpfs("0755", spec.disk)?.as_fd(), homes.as_path())?;
    }
    put_devices(devices, spec.disk)?;
    if linked {
        hidden::stand_for(&spec.covered.links)?;
    }
    ready.extend(names);
    put_all(&ready)?;
    hidden::cover(&covered)?;
    put_all(&shown)?;
    for path in &spec.hidden {
        // In the home directory a link may stand there already, which leads to nothing of it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if fs::open(path.as_path(), flags, Mode::empty()).is_ok() {
            put(tmpfs("0700", spec.disk)?.as_fd(), path.as_path())?;
        }
    }
    Ok(Mounted {
        held,
        notice,
        places,
    })
}

/// Gives the caches of tools back: what is in them is written, and others may have them.
pub(super) fn release_caches(spec: &RunSpec) {
    for cache in &spec.caches {
        match mount::unmount(cache.at.as_path(), UnmountFlags::DETACH) {
            // One that could not be mounted goes with the namespace.
            Ok(()) | Err(_) => drop(sys::adopt(cache.lock)),
        }
    }
}

/// Removes the places that were made for mounts in the layer over the home directory, with what is mounted there.
pub(super) fn remove_places(mounted: &Mounted) {
    for place in mounted.places.iter().rev() {
        let path = place.as_path();
        let gone = mount::unmount(path, UnmountFlags::DETACH).and_then(|()| {
            let remove = |flags: AtFlags| fs::unlinkat(CWD, path, flags);
            remove(AtFlags::REMOVEDIR).or_else(|_| remove(AtFlags::empty()))
        });
        match gone {
            // What is left goes before the next command.
            Ok(()) | Err(_) => {}
        }
    }
}

/// A home directory by its entries, in the place of one layer over it; with them what needed a place in it.
fn by_entries(
    spec: &RunSpec,
    home: &Location,
    scratch: &Layers,
    lay: impl Fn(&Location, &Layers) -> StepResult<DetachedMount>,
) -> StepResult<(Vec<DetachedMount>, Vec<Location>)> {
    let failed = |_| at(format!("lay out '{home}' by its entries"))(Errno::IO);
    let entries = layering::around_mounts(scratch, &spec.covered.all()).map_err(failed)?;
    let fd = clone_tree(scratch.upper.as_path(), OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
    let restricted = match spec.look.scratch {
        true => sys::harmless(fd.as_fd()),
        false => sys::fixed(fd.as_fd()),
    };
    restricted.map_err(at(format!("restrict '{home}'")))?;
    let mut found = vec![DetachedMount {
        fd,
        at: home.as_path().to_owned(),
    }];
    for path in &entries.still {
        found.push(still(path.as_path())?);
    }
    for (over, layers) in &entries.layers {
        // What has no layer is as everything else: it can be read.
        let layer = lay(over, layers).or_else(|_| still(over.as_path()));
        found.push(layer?);
    }
    Ok((found, entries.still))
}

/// What is mounted in a directory that gets a layer: it is no part of the layer, can be seen, and not be written.
fn mounted_in(path: &Path) -> StepResult<Vec<DetachedMount>> {
    let mut found: Vec<DetachedMount> = Vec::new();
    let points = crate::fs::mounts::below(path)
        .map_err(|_| at(format!("list what is mounted in '{}'", path.display()))(Errno::IO))?;
    for point in points {
        if !found.iter().any(|one| point.starts_with(&one.at)) {
            found.push(still(&point)?);
        }
    }
    Ok(found)
}

/// The same layers with the upper one in memory.
fn in_memory(layers: &Layers, size: Option<u64>) -> StepResult<Layers> {
    // Nothing but the kernel uses this place, and only if it can take layers.
    let place = layers.work.as_path();
    put(tmpfs("0700", size)?.as_fd(), place)?;
    let room = |name: &str| {
        let path = place.join(name);
        let made = fs::mkdir(&path, Mode::from_raw_mode(0o755));
        made.map(|()| Location::from(path))
            .map_err(at("make room in memory"))
    };
    Ok(Layers {
        below: layers.below.clone(),
        upper: room("upper")?,
        work: room("work")?,
    })
}

/// Puts each in its place, which is made where it is missing.
fn put_all(all: &[DetachedMount]) -> StepResult<()> {
    for DetachedMount { fd, at: path } in all {
        let stat = fs::fstat(fd).map_err(at(format!("look at '{}'", path.display())))?;
        match fs::FileType::from_raw_mode(stat.st_mode) {
            fs::FileType::Directory => make_point(path)?,
            _ if is_there(path) => {}
            _ => make_file(path)?,
        }
        put(fd.as_fd(), path)?;
    }
    Ok(())
}

/// A path as it is, read-only, mounted nowhere.
fn still(path: &Path) -> StepResult<DetachedMount> {
    let fd = clone_tree(path, OpenTreeFlags::AT_RECURSIVE)?;
    sys::read_only(fd.as_fd()).map_err(at(format!("restrict '{}'", path.display())))?;
    let at = path.to_owned();
    Ok(DetachedMount { fd, at })
}

/// Makes a sandbox read-only for good. Refused while a process has a file open, or mapped, for writing. Layers are a file
/// system of their own, which itself becomes read-only: no descriptor that is left anywhere can write any more. Of a
/// directory only this mount does, and a command may have made another one of it.
pub(super) fn freeze(mount: BorrowedFd<'_>, layers: bool) -> Result<(), Errno> {
    let flags = FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC;
    let pick = || -> Result<OwnedFd, Errno> {
        let fs = mount::fspick(mount, c"", flags)?;
        mount::fsconfig_set_flag(fs.as_fd(), c"ro").map(|()| fs)
    };
    let fs = layers.then(pick).transpose()?;
    let start = Instant::now();
    loop {
        let done = match &fs {
            Some(fs) => mount::fsconfig_reconfigure(fs.as_fd()),
            None => sys::frozen(mount),
        };
        match done {
            // The kernel may still be closing files of those that have just ended.
            Err(Errno::BUSY) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// A new file system, mounted nowhere. No program in it can gain privileges.
fn new_mount(
    kind: &CStr,
    set: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let fs = mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    set(fs.as_fd())?;
    mount::fsconfig_create(fs.as_fd())?;
    let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Layers as one, mounted nowhere.
fn overlay(over: &Location, layers: &Layers, throw_away: bool) -> StepResult<OwnedFd> {
    let set = |fs: BorrowedFd<'_>| {
        mount::fsconfig_set_flag(fs, c"userxattr")?;
        // What is thrown away need not be written back.
        if throw_away {
            mount::fsconfig_set_flag(fs, c"volatile")?;
        }
        // A layer in memory between those of one file system would change the numbers of files that are written.
        if layers.below.len() > 1 && throw_away {
            mount::fsconfig_set_string(fs, c"xino", c"on")?;
        }
        let open = |path: &Location| -> Result<(OwnedFd, String), Errno> {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = fs::open(path.as_path(), flags, Mode::empty())?;
            // By number, never by name: a comma or a colon in a path is just a path (rule S4).
            let number = format!("/proc/self/fd/{}", fd.as_raw_fd());
            Ok((fd, number))
        };
        let below: Vec<(OwnedFd, String)> =
            layers.below.iter().map(open).collect::<Result<_, _>>()?;
        match below.len() <= TOGETHER {
            true => {
                let numbers: Vec<&str> = below.iter().map(|(_, number)| number.as_str()).collect();
                mount::fsconfig_set_string(fs, c"lowerdir", numbers.join(":"))?;
            }
            // One by one, which older kernels do not know.
            false => {
                for (_, number) in &below {
                    mount::fsconfig_set_string(fs, c"lowerdir+", number.as_str())?;
                }
            }
        }
        for (key, path) in [(c"upperdir", &layers.upper), (c"workdir", &layers.work)] {
            let (_fd, number) = open(path)?;
            mount::fsconfig_set_string(fs, key, number)?;
        }
        Ok(())
    };
    let laid = new_mount(c"overlay", set, MountAttrFlags::MOUNT_ATTR_NODEV)
        .map_err(at(format!("lay a layer over '{over}'")))?;
    open_to_owner(layers.work.as_path());
    Ok(laid)
}

/// The kernel closes the directories that it makes for itself to everyone, and leaves them: their owner could not remove what
/// holds them. Nobody else gets as far as there.
fn open_to_owner(work: &Path) {
    for own in ["work", "work/incompat", "work/incompat/volatile"] {
        // Which of them there are is the kernel's business.
        match fs::chmod(work.join(own), Mode::RWXU) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Another view of what is at a path, mounted nowhere.
pub(super) fn clone_tree(path: &Path, how: OpenTreeFlags) -> StepResult<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | how;
    mount::open_tree(CWD, path, flags).map_err(at(format!("take '{}' inside", path.display())))
}

pub(super) fn tmpfs(mode: &str, size: Option<u64>) -> StepResult<OwnedFd> {
    tmpfs_with(mode, size, MountAttrFlags::empty())
}

fn tmpfs_with(mode: &str, size: Option<u64>, more: MountAttrFlags) -> StepResult<OwnedFd> {
    let set = |fs: BorrowedFd<'_>| {
        // Without one it is half of the memory, and a limit makes it no larger.
        if let Some(size) = size.filter(|size| *size < sys::memory() / 2) {
            mount::fsconfig_set_string(fs, c"size", size.to_string())?;
        }
        mount::fsconfig_set_string(fs, c"mode", mode)
    };
    new_mount(c"tmpfs", set, MountAttrFlags::MOUNT_ATTR_NODEV | more)
        .map_err(at("make a private directory in memory"))
}

/// Whether anything is at a path.
pub(super) fn is_there(path: &Path) -> bool {
    fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

pub(super) fn put(mount: BorrowedFd<'_>, path: &Path) -> StepResult<()> {
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
pub(super) fn make_point(path: &Path) -> StepResult<()> {
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

pub(super) fn make_file(path: &Path) -> StepResult<()> {
    if let Some(parent) = path.parent() {
        make_point(parent)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = fs::open(path, flags, Mode::from_raw_mode(0o644));
    made.map(drop)
        .map_err(at(format!("make '{}'", path.display())))
}

/// The few devices that programs need; disks and memory are not among them.
fn devices() -> StepResult<Vec<DetachedMount>> {
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
        let fd = clone_tree(&path, OpenTreeFlags::empty())?;
        // Looked at once it is held: the process that put something else there must not choose what is shown.
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
        // It is the machine's own: root inside owns it, and could give it another mode.
        sys::fixed(fd.as_fd()).map_err(at(format!("restrict '{}'", path.display())))?;
        found.push(DetachedMount { fd, at: path });
    }
    Ok(found)
}

fn put_devices(devices: Vec<DetachedMount>, size: Option<u64>) -> StepResult<()> {
    // Times of access say what a command looked for that is hidden.
    let noting = MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    put(tmpfs_with("0755", size, noting)?.as_fd(), Path::new("/dev"))?;
    for DetachedMount { fd, at } in devices {
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
    for name in ["/dev/shm", "/dev/pts", SOCKETS] {
        make_point(Path::new(name))?;
    }
    put(tmpfs("1777", size)?.as_fd(), Path::new("/dev/shm"))?;
    let set = |fs: BorrowedFd<'_>| mount::fsconfig_set_string(fs, c"ptmxmode", c"0666");
    let terminals = new_mount(c"devpts", set, MountAttrFlags::MOUNT_ATTR_NOEXEC)
        .map_err(at("mount terminals for the namespace"))?;
    put(terminals.as_fd(), Path::new("/dev/pts"))
}

/// The file that says how names are looked up, if it lies in what is covered.
fn names() -> StepResult<Option<DetachedMount>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(fd) = fs::open(c"/etc/resolv.conf", flags, Mode::empty()) else {
        return Ok(None);
    };
    let number = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let Ok(target) = fs::readlink(number, Vec::new()) else {
        return Ok(None);
    };
    let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
    if !target.starts_with("/run") {
        return Ok(None);
    }
    let fd = clone_tree(&target, OpenTreeFlags::empty())?;
    sys::fixed(fd.as_fd()).map_err(at(format!("restrict '{}'", target.display())))?;
    Ok(Some(DetachedMount { fd, at: target }))
}

/// The processes of the namespace, and nothing of the kernel's that could be changed.
pub(super) fn fresh_proc() -> StepResult<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = new_mount(c"proc", |_| Ok(()), attributes).map_err(at("mount /proc"))?;
    put(proc.as_fd(), Path::new("/proc"))?;
    // Some of these the kernel lets the user 0 write without any capability: `scsi` takes disks away.
    for name in [
        "sys",
        "sysrq-trigger",
        "irq",
        "bus",
        "fs",
        "scsi",
        "acpi",
        "asound",
    ] {
        let path = Path::new("/proc").join(name);
        if is_there(&path) {
            let closed = clone_tree(&path, OpenTreeFlags::empty())?;
            let step = format!("make '{}' read-only", path.display());
            sys::read_only(closed.as_fd()).map_err(at(step))?;
            put(closed.as_fd(), &path)?;
        }
    }
    // Root could read from these what the memory of the machine is used for.
    for name in ["kpagecount", "kpageflags", "kpagecgroup", "kcore"] {
        let path = Path::new("/proc").join(name);
        if is_there(&path) {
            let nothing = clone_tree(Path::new("/dev/null"), OpenTreeFlags::empty())?;
            put(nothing.as_fd(), &path)?;
        }
    }
    Ok(())
}
