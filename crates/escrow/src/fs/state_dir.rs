//! The engine's private directories, in which no other user can prepare anything (rule S3): the state
//! directory, areas, locks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::ballast::with_ballast;
use super::dir::Dir;
use super::handle::EntryHandle;
use super::{Cause, FsError, Result, btrfs, process, xattr};
use crate::model::text::Location;
use crate::model::{CommitId, SandboxId};

fn failed(action: &'static str, path: &Path, errno: Errno) -> FsError {
    FsError {
        action,
        path: Location::from(path),
        cause: Cause::Os(errno),
    }
}

/// The one absolute path of a directory, all links resolved by the kernel.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    let fail = |errno| failed("find the directory", path, errno);
    resolved(path, OFlags::DIRECTORY).map_err(fail)
}

/// The one absolute path of anything that exists, all links resolved by the kernel.
pub fn canonical_any(path: &Path) -> Result<PathBuf> {
    resolved(path, OFlags::empty()).map_err(|errno| failed("find", path, errno))
}

/// The same of a directory, and whether nothing is in it.
pub fn canonical_empty(path: &Path) -> Result<(PathBuf, bool)> {
    let path = canonical(path)?;
    let empty = Dir::open(&path)?.names()?.is_empty();
    Ok((path, empty))
}

fn resolved(path: &Path, flags: OFlags) -> std::result::Result<PathBuf, Errno> {
    let fd = fs::open(path, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let target = fs::readlink(link, Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// The same for what may be a directory or anything else; errors speak of a directory, which is what
/// most people mean.
pub fn canonical_or_file(path: &Path) -> Result<PathBuf> {
    match canonical(path) {
        Err(error) if error.is(Errno::NOTDIR) => canonical_any(path),
        answer => answer,
    }
}

/// The path by which something is known that may be gone by now; `None` where even its directory is.
pub fn known_as(path: &Path) -> Option<PathBuf> {
    let gone = || {
        let directory = canonical(path.parent()?).ok()?;
        Some(directory.join(path.file_name()?))
    };
    canonical_or_file(path).ok().or_else(gone)
}

/// The ways to something that may be gone, or not there yet: one for each link that is followed, up to the
/// name of that link, and at last the path without links. A process that changes what stands on one of them changes
/// what is meant.
pub fn ways_to(path: &Path) -> Vec<PathBuf> {
    let (mut ways, mut here) = (Vec::new(), PathBuf::new());
    let mut todo = path.to_owned();
    loop {
        let mut parts = todo.components();
        let Some(part) = parts.next() else {
            break;
        };
        let rest = parts.as_path().to_owned();
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                here.pop();
            }
            part => here.push(part),
        }
        let link = match part {
            // The kernel does not follow more either.
            Component::Normal(_) if ways.len() < 40 => fs::readlink(&here, Vec::new()).ok(),
            _ => None,
        };
        todo = match link {
            Some(target) => {
                ways.push(plain(&here.join(&rest)));
                here.pop();
                let target = OsString::from_vec(target.into_bytes());
                PathBuf::from(target).join(rest)
            }
            None => rest,
        };
    }
    ways.push(here);
    ways
}

/// A path without `..`, by its text alone.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Makes a directory and all above it, open to this user only, and opens it. One that exists
/// must belong to this user.
pub fn make_all(path: &Path) -> Result<Dir> {
    let fail = |errno| failed("create the directory", path, errno);
    let ancestors: Vec<&Path> = path.ancestors().collect();
    for ancestor in ancestors
        .into_iter()
        .rev()
        .filter(|path| !path.as_os_str().is_empty())
    {
        match fs::mkdir(ancestor, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            // It may exist where we may not write, which is fine if the next one can be made.
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) if ancestor != path => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    let dir = Dir::open(&canonical(path)?)?;
    check_own(&dir)?;
    Ok(dir)
}

/// The first directory above a path in which everybody may exchange names, the path among them.
pub fn open_above(path: &Path) -> Option<PathBuf> {
    let real = canonical(path).ok()?;
    let open = |above: &&Path| Dir::look(above).is_ok_and(|meta| meta.mode & 0o1002 == 0o002);
    real.ancestors().skip(1).find(open).map(Path::to_owned)
}

/// Makes sure that no other process can change what is in a directory.
fn check_own(dir: &Dir) -> Result<()> {
    let meta = dir.meta()?;
    let refuse = |why| dir.error("use the directory", b"", Cause::Damaged(why));
    if meta.uid != rustix::process::geteuid().as_raw() {
        return Err(refuse("it belongs to another user"));
    }
    if meta.mode & 0o022 != 0 {
        return Err(refuse(
            "others may write in it; `chmod go-w` it, or use another one",
        ));
    }
    Ok(())
}

/// What a home consists of, in the order in which it goes.
const HOME: [&[u8]; 11] = [
    b"sandboxes",
    b"memory",
    b"times",
    b"locks",
    b"ballast.new",
    b"ballast",
    b"state.db-wal",
    b"state.db-shm",
    b"state.db",
    b"generation.new",
    b"generation",
];

/// Removes a home, but for what else lies in it, which is named.
pub fn remove_home(home: &Path) -> Result<Vec<PathBuf>> {
    let dir = Dir::open(home)?;
    for name in HOME {
        super::remove::remove(&dir, name)?;
    }
    let left = dir.names()?;
    if left.is_empty() {
        let parent = Dir::open(home.parent().unwrap_or(home))?;
        parent.remove_dir(home.file_name().unwrap_or_default().as_bytes())?;
    }
    let paths = left.iter().map(|name| home.join(OsStr::from_bytes(name)));
    Ok(paths.collect())
}

/// The directory `name` in the engine's own, made if it is missing, closed to everyone else.
pub fn room(home: &Dir, name: &[u8]) -> Result<Dir> {
    match make_plain(home, name) {
        Err(error) if error.is(Errno::EXIST) => {}
        answer => return answer,
    }
    let dir = home.subdir(name)?;
    check_own(&dir)?;
    Ok(dir)
}

/// Makes sure that a file exists and only this user can open it.
pub fn make_file(dir: &Dir, name: &[u8]) -> Result<()> {
    match dir.create(name, 0o600) {
        Ok(_) => Ok(()),
        Err(error) if error.is(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a directory that is open to this user only and hands nothing down: neither a group nor
/// access control lists of the directory it lies in.
pub fn make_plain(parent: &Dir, name: &[u8]) -> Result<Dir> {
    parent.make_dir(name, 0o700)?;
    close(parent.subdir(name)?)
}

/// Opens a directory to this user only.
pub(super) fn close(dir: Dir) -> Result<Dir> {
    let fail = |errno| dir.error("close", b"", Cause::Os(errno));
    let handle = EntryHandle::of(&dir);
    for (attribute, _) in xattr::read(&handle).map_err(fail)? {
        if attribute.starts_with(b"system.posix_acl_") {
            xattr::remove(&handle, &attribute).map_err(fail)?;
        }
    }
    handle.set_mode(0o700).map_err(fail)?;
    Ok(dir)
}

/// A temporary directory: gone when this is dropped, and, should the process die before, swept
/// by the next one that is made beside it.
#[derive(Debug)]
pub struct ScratchDir {
    parent: Dir,
    name: String,
    dir: Dir,
}

impl ScratchDir {
    /// The same in the directory at a path.
    pub fn make_at(parent: &Path, prefix: &str, unique: &str) -> Result<Self> {
        Self::make(Dir::open(parent)?, prefix, unique)
    }

    /// Makes one in `parent`; `unique` distinguishes it from others of the same `prefix`.
    pub fn make(parent: Dir, prefix: &str, unique: &str) -> Result<Self> {
        let me = rustix::process::geteuid().as_raw();
        for entry in parent.entries()? {
            let ours = entry.meta.is_dir() && entry.meta.uid == me;
            if ours && entry.name.starts_with(prefix.as_bytes()) {
                sweep(&parent, &entry.name);
            }
        }
        for attempt in 0.. {
            let name = format!("{prefix}{unique}-{attempt}");
            let dir = make_plain(&parent, name.as_bytes())?;
            // Another process that sweeps may have come between the making and the locking.
            let locked = fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok();
            let now = parent.stat(name.as_bytes())?;
            if locked && now.is_some_and(|now| dir.meta().is_ok_and(|meta| meta.ino == now.ino)) {
                return Ok(Self { parent, name, dir });
            }
        }
        unreachable!("too many attempts")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes a directory in it in which nothing can be made.
    pub fn closed_dir(&self, name: &OsStr) -> Result<PathBuf> {
        self.dir.make_dir(name.as_bytes(), 0o500)?;
        Ok(self.path().join(name))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What cannot be removed now is swept by the next one.
        match super::remove::remove(&self.parent, self.name.as_bytes()) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Removes a directory whose maker, who held it locked, is gone. What cannot be removed stays for
/// the next who sweeps.
fn sweep(parent: &Dir, name: &[u8]) {
    let swept = parent.subdir(name).and_then(|dir| {
        match fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => super::remove::remove(parent, name),
            Err(_) => Ok(()),
        }
    });
    match swept {
        Ok(()) | Err(_) => {}
    }
}

/// What the name of an area beside its original begins with.
pub(super) const BESIDE: &str = ".escrow-";

/// What the name of the area of a commit ends with.
pub(super) const UNDO: &str = ".undo";

/// Whether a directory is, by its name, the area of a sandbox, or of its commit, beside or in its
/// original.
pub fn is_area_beside(name: &[u8]) -> bool {
    std::str::from_utf8(name)
        .ok()
        .and_then(|name| name.strip_prefix(BESIDE))
        .map(|name| name.split_once('.').map_or(name, |(id, _)| id))
        .is_some_and(|id| id.parse::<SandboxId>().is_ok())
}

/// Where the commit of a sandbox stages new versions and keeps old ones: beside the sandbox's area
/// if that is on the original's mount, since only there a version can be put in place by renaming
/// it; else, where nothing else is, in the original itself. A commit of a `part` has one of its own.
pub fn commit_area(
    area: &Path,
    original: &Path,
    id: SandboxId,
    part: Option<CommitId>,
) -> Result<PathBuf> {
    let original = Dir::open(original)?;
    let part = part.map(|commit| format!("-{commit}")).unwrap_or_default();
    let place = |dir: &Dir| dir.meta().map(|meta| (meta.mount, meta.dev));
    if let Some(parent) = area.parent()
        && place(&Dir::open(parent)?)? == place(&original)?
    {
        let mut name = area.file_name().unwrap_or_default().to_owned();
        name.push(UNDO);
        name.push(part);
        return Ok(parent.join(name));
    }
    Ok(original.path().join(format!("{BESIDE}{id}{UNDO}{part}")))
}

/// Removes the areas of the commits of a sandbox from a directory, also those that were set aside.
pub fn sweep_commits(home: &Dir, dir: &Path, id: SandboxId, given_up: bool) -> Result<()> {
    let dir = &match Dir::open(dir) {
        Err(error) if error.is_absent() => return Ok(()),
        dir => dir?,
    };
    for prefix in ["", BESIDE] {
        let begins = format!("{prefix}{id}{UNDO}");
        for entry in dir.entries()? {
            let stays = given_up && entry.name.ends_with(GIVEN_UP.as_bytes());
            if entry.name.starts_with(begins.as_bytes()) && !stays {
                super::times::traceless(home, dir, &entry.name, || {
                    super::remove::remove(dir, &entry.name)
                })?;
            }
        }
    }
    Ok(())
}

/// What the name of the area of a commit ends with that could not be brought to an end and was given up. It may hold the
/// only old versions there are.
const GIVEN_UP: &str = ".kept-given-up";

/// Sets the area of a commit that is given up aside; returns where it is now, if there is one.
pub fn give_up_commit(home: &Dir, area: &Path) -> Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (area.parent(), area.file_name()) else {
        return Ok(None);
    };
    let parent = match Dir::open(parent) {
        Err(error) if error.is_absent() => return Ok(None),
        parent => parent?,
    };
    let name = name.as_encoded_bytes();
    if parent.stat(name)?.is_none() {
        return Ok(None);
    }
    let aside = [name, GIVEN_UP.as_bytes()].concat();
    super::times::traceless(home, &parent, name, || parent.rename(name, &parent, &aside))?;
    parent.sync()?;
    let aside = OsString::from_vec(aside);
    Ok(Some(parent.path().join(aside)))
}

/// Where the area of a sandbox of `original` is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaLocation {
    /// The directory that will hold the area.
    pub parent: PathBuf,
    /// What the name of the area begins with there.
    pub prefix: &'static str,
    /// Why it is there.
    pub why: &'static str,
}

/// On the file system of the original, so that releasing is renaming: among the engine's own
/// `areas` if they are there, else beside the original under a hidden name, unless that would be
/// inside one of the `others`.
pub fn place(areas: &Dir, original: &Path, others: &[&Path]) -> Result<AreaLocation> {
    let own = |why| AreaLocation {
        parent: areas.path().to_owned(),
        prefix: "",
        why,
    };
    let device = Dir::look(original)?.dev;
    if areas.meta()?.dev == device {
        return Ok(own("on the original's file system"));
    }
    let Some(parent) = original.parent() else {
        return Ok(own("there is no directory beside the original"));
    };
    if others.iter().any(|other| parent.starts_with(other)) {
        return Ok(own("beside the original it would lie in another resource"));
    }
    let Ok(beside) = Dir::open(parent) else {
        return Ok(own("the directory beside the original cannot be opened"));
    };
    // Beside a subvolume of btrfs is another one, of the same file system.
    let is_near =
        |dir: &Dir| Dir::open(original).is_ok_and(|original| btrfs::is_shared(dir, &original));
    if beside.meta()?.dev != device {
        if is_near(areas) {
            return Ok(own("on the original's file system"));
        }
        if !is_near(&beside) {
            return Ok(own(
                "the original is the root of a file system, so nothing is beside it",
            ));
        }
    }
    if fs::accessat(&beside, c".", fs::Access::WRITE_OK, fs::AtFlags::EACCESS).is_err() {
        return Ok(own("nothing can be created beside the original"));
    }
    Ok(AreaLocation {
        parent: parent.to_owned(),
        prefix: BESIDE,
        why: "beside the original, on its file system",
    })
}

/// A lock that ends with the process that holds it, however that ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock `name`, waiting for at most `limit`; `None` where others hold it for longer.
    pub fn take(dir: &Dir, name: &[u8], shared: bool, limit: Duration) -> Result<Option<Self>> {
        let operation = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let start = Instant::now();
        loop {
            let file = open_lock(dir, name)?;
            match fs::flock(&file, operation) {
                // A process that cleaned up may have removed the file between our open and our lock.
                Ok(()) if is_current(dir, name, &file)? => return Ok(Some(Self { file })),
                Ok(()) | Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if start.elapsed() >= limit => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
                Err(errno) => return Err(dir.error("lock", name, Cause::Os(errno))),
            }
        }
    }

    /// Another hold on the lock, which takes it only when its owner does.
    pub fn untaken(dir: &Dir, name: &[u8]) -> Result<Self> {
        open_lock(dir, name).map(|file| Self { file })
    }

    /// Writes something on the lock, for those who find it taken.
    pub fn note(&self, text: &str) -> Result<()> {
        let write = || -> std::io::Result<()> {
            self.file.set_len(0)?;
            std::os::unix::fs::FileExt::write_all_at(&self.file, text.as_bytes(), 0)
        };
        write().map_err(|error| FsError {
            action: "write on the lock",
            path: Location::from_bytes(b""),
            cause: Cause::Os(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        })
    }

    /// Makes what was written on the lock durable.
    pub fn sync(&self) -> Result<()> {
        fs::fsync(&self.file).map_err(|errno| FsError {
            action: "sync the lock",
            path: Location::from_bytes(b""),
            cause: Cause::Os(errno),
        })
    }

    /// What its holder wrote on a lock that is taken.
    pub fn noted(dir: &Dir, name: &[u8]) -> Result<String> {
        Ok(String::from_utf8_lossy(&dir.read(name)?).into_owned())
    }

    /// The lock as a descriptor: a process that inherits it holds it too.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Removes the lock for good. Held exclusively, so no other process is inside.
    pub fn remove(self, dir: &Dir, name: &[u8]) -> Result<()> {
        let removed = dir.unlink(name);
        drop(self.file);
        removed
    }
}

/// What takes longer is told.
const NOTICEABLE: Duration = Duration::from_secs(1);

/// The lock of an original, held on the directory itself: the process that commits into it holds it alone,
/// from whichever home, and it ends with the process.
#[derive(Debug)]
pub struct DirLock {
    _dir: Dir,
}

impl DirLock {
    /// Takes the lock of each of these directories, in an order that every process keeps; `Err` holds what belongs to one
    /// that others hold for longer. One that is gone needs no lock.
    pub fn take_all<T>(
        places: impl IntoIterator<Item = (PathBuf, T)>,
        shared: bool,
        limit: Duration,
        waits: impl Fn(&T, Option<u32>),
    ) -> Result<std::result::Result<Vec<Self>, T>> {
        let mut open = Vec::new();
        for (path, of) in places {
            let dir = match Dir::open(&path) {
                Err(error) if error.is_absent() => continue,
                dir => dir?,
            };
            let meta = dir.meta()?;
            open.push(((meta.dev, meta.ino), dir, of));
        }
        open.sort_by_key(|(key, ..)| *key);
        open.dedup_by_key(|(key, ..)| *key);
        let mut locks = Vec::new();
        for (_, dir, of) in open {
            match Self::take(dir, shared, limit, |locker| waits(&of, locker))? {
                Some(lock) => locks.push(lock),
                None => return Ok(Err(of)),
            }
        }
        Ok(Ok(locks))
    }

    /// Takes the lock, waiting for at most `limit`; `None` where others hold it for longer. What takes longer than a second is
    /// told, with the process that holds it, where the kernel says which.
    pub fn take(
        dir: Dir,
        shared: bool,
        limit: Duration,
        waits: impl FnOnce(Option<u32>),
    ) -> Result<Option<Self>> {
        let operation = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let (start, mut waits) = (Instant::now(), Some(waits));
        loop {
            match fs::flock(&dir, operation) {
                Ok(()) => return Ok(Some(Self { _dir: dir })),
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if start.elapsed() >= limit => return Ok(None),
                Err(Errno::WOULDBLOCK) => {
                    std::thread::sleep(Duration::from_millis(5));
                    if start.elapsed() >= NOTICEABLE
                        && let Some(waits) = waits.take()
                    {
                        waits(process::locker_of(&dir.meta()?));
                    }
                }
                // Not every file system knows locks of directories; there one does without.
                Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return Ok(Some(Self { _dir: dir }));
                }
                Err(errno) => return Err(dir.error("lock", b"", Cause::Os(errno))),
            }
        }
    }
}

/// Opens a lock, which lies in a directory of the home; one that has no room there takes that of the ballast.
fn open_lock(dir: &Dir, name: &[u8]) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || {
        let opened = fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        opened.map_err(|errno| dir.error("open the lock", name, Cause::Os(errno)))
    };
    let file = match dir.path().parent() {
        Some(home) => match open() {
            Err(error) if error.wants_room() => {
                with_ballast(&Dir::open(home)?, FsError::wants_room, open)?
            }
            opened => opened?,
        },
        None => open()?,
    };
    match dir.meta_of(name, &file)?.is_file() {
        true => Ok(file),
        // A pipe in its place could be locked, and would let those wait who read it.
        false => Err(dir.error(
            "open the lock",
            name,
            Cause::Damaged("it is not a regular file"),
        )),
    }
}

fn is_current(dir: &Dir, name: &[u8], file: &File) -> Result<bool> {
    let held = dir.meta_of(name, file)?;
    Ok(dir
        .stat(name)?
        .is_some_and(|meta| (meta.dev, meta.ino) == (held.dev, held.ino)))
}
