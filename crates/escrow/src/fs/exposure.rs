//! The exposure mark of a sandbox: a process outside may still write its files, through a descriptor that a
//! command opened.
//!
//! A command can hand a descriptor to a process outside, where it outlives the command and its mounts, and be
//! opened again for writing. The area of a sandbox has a mark from before its files are shown to the first
//! command until it is proven that no such descriptor is left that can write. A process that dies leaves the mark.
//! The mark names the boot: no descriptor outlives the machine's. So it need not survive a power cut, and is
//! not synced.

use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Cause, Dir, Result, process};

/// The mark.
const MARK: &[u8] = b"exposed";
/// The same until it is complete.
const DRAFT: &[u8] = b"exposed.new";

/// How long one waits for a lock that is being given back, and how long before one looks again.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// A mark that was set, or found.
pub struct ExposureMark {
    area: Dir,
    /// Another one had set it, and did not take it off.
    earlier: bool,
}

impl ExposureMark {
    /// Marks an area, before the files of its sandbox are shown to a command. It is locked until the mark is dropped: a layer can be
    /// mounted once only, and another home may know of the same area (`EBUSY`).
    pub fn set(area: &Path) -> Result<Self> {
        let area = Dir::open(area)?;
        let start = Instant::now();
        while let Err(errno) = flock(&area, FlockOperation::NonBlockingLockExclusive) {
            match errno {
                // One that was killed may still be giving it back.
                Errno::WOULDBLOCK if start.elapsed() < PATIENCE => thread::sleep(PAUSE),
                Errno::WOULDBLOCK => return Err(area.error("lock", b"", Cause::Os(Errno::BUSY))),
                Errno::INTR => {}
                // Not every file system knows locks of directories.
                _ => break,
            }
        }
        let earlier = is_exposed(&area)?;
        if !earlier {
            write(&area)?;
        }
        Ok(Self { area, earlier })
    }

    /// Takes the mark off: no command of this time can write any more. One that was there before stays, since
    /// nothing is proven of those.
    pub fn take_off(self) -> Result<()> {
        match self.earlier {
            true => Ok(()),
            false => absent_or(self.area.unlink(MARK)),
        }
    }
}

/// Whether an area has the mark, of this boot.
pub fn is_exposed(area: &Dir) -> Result<bool> {
    match area.read(MARK) {
        Err(error) if error.is_absent() => Ok(false),
        boot => Ok(boot? == process::boot()?.as_bytes()),
    }
}

/// The same of an area at a path.
pub fn is_exposed_at(area: &Path) -> Result<bool> {
    is_exposed(&Dir::open(area)?)
}

/// Marks an area whose sandbox shares files with one that has the mark.
pub fn inherit(from: &Dir, to: &Dir) -> Result<()> {
    match is_exposed(from)? {
        true => write(to),
        false => Ok(()),
    }
}

fn write(area: &Dir) -> Result<()> {
    absent_or(area.unlink(DRAFT))?;
    let boot = process::boot()?;
    let mut file = area.create(DRAFT, 0o600)?;
    file.write_all(boot.as_bytes())
        .map_err(|error| area.io_error("write", DRAFT, &error))?;
    area.rename(DRAFT, area, MARK)
}

fn absent_or(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.is_absent() => Ok(()),
        done => done,
    }
}
