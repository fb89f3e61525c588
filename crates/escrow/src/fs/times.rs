//! Restores the times of directories in which the engine creates or removes entries, also after a crash.
//!
//! What the time was is noted in the home, durably, before anything is done. The note is locked by the process
//! that wrote it, so that one which can be locked was left by a crashed process.
//!
//! ```text
//! $ESCROW_HOME/
//!   times/<name of the area>   the directory, its time, and a digest of what was in it
//! ```

use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::dir::Dir;
use super::handle::EntryHandle;
use super::state_dir::{self, Lock};
use super::{Cause, FsError, Meta, Result, Stamp};
use crate::model::text::Location;

const TIMES: &[u8] = b"times";

/// What is noted of a directory.
#[derive(Debug, Serialize, Deserialize)]
struct TimesNote {
    at: Location,
    ino: u64,
    born: Stamp,
    mtime: Stamp,
    /// Of the names and inodes in it, but for areas of ours: where it is another by now, another process was there,
    /// and the time is its.
    held: [u8; 16],
}

/// Does something with the area `name` in a directory that may be another's, and gives it its time back.
pub fn traceless<T>(
    home: &Dir,
    dir: &Dir,
    name: &[u8],
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let before = dir.meta()?;
    let user = rustix::process::geteuid();
    let mine = user.is_root() || before.uid == user.as_raw();
    if !mine || !state_dir::is_area_beside(name) {
        return work();
    }
    let held = held(dir)?;
    let note = match write(home, dir, name, &before, held) {
        // What makes room must be possible; then only a crash just here would leave a trace.
        Err(error) if error.wants_room() => None,
        written => Some(written?),
    };
    let answer = work();
    give_back(dir, before.mtime, held)?;
    if let Some(lock) = note {
        lock.remove(&state_dir::room(home, TIMES)?, name)?;
    }
    answer
}

fn write(home: &Dir, dir: &Dir, name: &[u8], before: &Meta, held: [u8; 16]) -> Result<Lock> {
    let note = TimesNote {
        at: Location::from(dir.path()),
        ino: before.ino,
        born: before.born,
        mtime: before.mtime,
        held,
    };
    let text = serde_json::to_string(&note).expect("a path and numbers are JSON");
    let times = state_dir::room(home, TIMES)?;
    let lock = Lock::take(&times, name, false, Duration::from_secs(5))?;
    let lock = lock.ok_or_else(|| times.error("lock", name, Cause::Os(Errno::WOULDBLOCK)))?;
    lock.note(&text)?;
    lock.sync()?;
    times.sync()?;
    home.sync()?;
    Ok(lock)
}

/// Gives a directory its time back, durably, unless another process changed what is in it.
fn give_back(dir: &Dir, mtime: Stamp, then: [u8; 16]) -> Result<()> {
    let now = dir.meta()?;
    if now.mtime == mtime || held(dir)? != then {
        return Ok(());
    }
    let model = Meta { mtime, ..now };
    EntryHandle::of(dir)
        .reapply_metadata(&model)
        .map_err(|errno| dir.error("set the times of", b"", Cause::Os(errno)))?;
    dir.sync()
}

/// Gives directories their times back that crashed processes did not. What fails stays noted, stops nothing
/// else, and is reported.
pub fn put_back(home: &Dir) -> Vec<FsError> {
    let mut failed = Vec::new();
    let notes = match home.subdir(TIMES) {
        Err(error) if error.is_absent() => return failed,
        times => times.and_then(|times| Ok((times.entries()?, times))),
    };
    match notes {
        Ok((entries, times)) => {
            for entry in entries {
                failed.extend(put_one_back(&times, &entry.name).err());
            }
        }
        Err(error) => failed.push(error),
    }
    failed
}

fn put_one_back(times: &Dir, name: &[u8]) -> Result<()> {
    let Some(lock) = Lock::take(times, name, false, Duration::ZERO)? else {
        return Ok(());
    };
    if let Some(note) = read(times, name)? {
        let dir = match Dir::open(note.at.as_path()) {
            // Its file system may be mounted again later.
            Err(error) if error.is_absent() => return Ok(()),
            dir => dir?,
        };
        let now = dir.meta()?;
        // Another directory than the one it was noted of has a time of its own.
        if (now.ino, now.born) == (note.ino, note.born) {
            give_back(&dir, note.mtime, note.held)?;
        }
    }
    lock.remove(times, name)
}

/// One that is not complete was never acted on.
fn read(times: &Dir, name: &[u8]) -> Result<Option<TimesNote>> {
    Ok(serde_json::from_slice(&times.read(name)?).ok())
}

/// A digest of the names in a directory and of what they name.
fn held(dir: &Dir) -> Result<[u8; 16]> {
    let mut names = dir.numbered_names()?;
    names.retain(|(name, _)| !state_dir::is_area_beside(name));
    names.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for (name, ino) in names {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(&name);
        hasher.update(&ino.to_le_bytes());
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Ok(digest)
}
