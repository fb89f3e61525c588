//! Private directories: where the engine keeps what is its own, and where nobody else can
//! prepare anything (rule S3).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::beneath::Dir;
use super::{Cause, FsError, Result};
use crate::model::text::Location;

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
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = fs::open(path, flags, Mode::empty()).map_err(fail)?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let target = fs::readlink(link, Vec::new()).map_err(fail)?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(
        target.into_bytes(),
    )))
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
    if dir.meta()?.uid != rustix::process::geteuid().as_raw() {
        return Err(FsError {
            action: "use the directory",
            path: Location::from(path),
            cause: Cause::Damaged("it belongs to another user"),
        });
    }
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

/// Where the area of a sandbox of `original` is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory that will hold the area.
    pub parent: PathBuf,
    /// What the name of the area begins with there.
    pub prefix: &'static str,
    /// Why it is there.
    pub why: &'static str,
}

/// On the file system of the original, so that releasing is renaming: among the engine's own
/// `areas` if they are there, else beside the original under a hidden name.
pub fn place(areas: &Dir, original: &Path) -> Result<Place> {
    let own = |why| Place {
        parent: areas.path().to_owned(),
        prefix: "",
        why,
    };
    let device = Dir::open(original)?.meta()?.dev;
    if areas.meta()?.dev == device {
        return Ok(own("on the original's file system"));
    }
    let Some(parent) = original.parent() else {
        return Ok(own("there is no directory beside the original"));
    };
    let beside = Dir::open(parent)?;
    if beside.meta()?.dev != device {
        return Ok(own(
            "the original is the root of a file system, so nothing is beside it",
        ));
    }
    if fs::accessat(&beside, c".", fs::Access::WRITE_OK, fs::AtFlags::EACCESS).is_err() {
        return Ok(own("nothing can be created beside the original"));
    }
    Ok(Place {
        parent: parent.to_owned(),
        prefix: ".escrow-",
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
                // Whoever cleaned up may have removed the file between our open and our lock.
                Ok(()) if is_current(dir, name, &file)? => return Ok(Some(Self { file })),
                Ok(()) | Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) if start.elapsed() >= limit => return Ok(None),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
                Err(errno) => return Err(dir.error("lock", name, Cause::Os(errno))),
            }
        }
    }

    /// Removes the lock for good. Held exclusively, so nobody else is inside.
    pub fn remove(self, dir: &Dir, name: &[u8]) -> Result<()> {
        let removed = dir.unlink(name);
        drop(self.file);
        removed
    }
}

fn open_lock(dir: &Dir, name: &[u8]) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
        .map(File::from)
        .map_err(|errno| dir.error("open the lock", name, Cause::Os(errno)))
}

fn is_current(dir: &Dir, name: &[u8], file: &File) -> Result<bool> {
    let held = dir.meta_of(name, file)?;
    Ok(dir
        .stat(name)?
        .is_some_and(|meta| (meta.dev, meta.ino) == (held.dev, held.ino)))
}
