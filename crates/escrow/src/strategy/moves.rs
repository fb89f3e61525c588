//! What Escrow itself moved away and put back in originals: such a file is unchanged although its ctime is new.
//!
//! A commit and an undo add to it; previews and checks of an undo ask it, in this and in other processes. What is missing costs
//! a conflict that is none, and never hides one. So a full disk stops nothing here.
//!
//! ```text
//! <directory>/
//!   moves-<device>        one line for each: inode, ctime before, ctime after
//!   moves-<device>.lock   held while it is written
//!   moves-<device>.new/   where it is written first
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use super::error::Result;
use crate::fs::atomic_file;
use crate::fs::ballast::with_ballast;
use crate::fs::state_dir::{self, Lock};
use crate::fs::walk::Shared;
use crate::fs::{Dir, FsError, MovedEntries, MovedEntry, Stamp, remove};

/// How long a process waits for another one that writes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The memory of the directory strategies, shared by all of them.
#[derive(Default)]
pub(super) struct MoveLog {
    directory: OnceLock<PathBuf>,
    /// What was added and is not written, each with its file system.
    pending: Shared<Vec<(u64, MovedEntry)>>,
    /// Why this process writes nothing more: a failed sync is final.
    failed: Shared<Option<FsError>>,
}

impl MoveLog {
    /// From now on everything is kept in this directory, which is made where it is missing.
    pub(super) fn keep_in(&self, directory: &Path) {
        self.directory.get_or_init(|| directory.to_owned());
    }

    /// Notes what was moved on a file system; durable once it is [stored](Self::store). Until then whoever takes the same
    /// commit back again, or ends it again, finds the same moves.
    pub(super) fn add(&self, device: u64, moved: &[MovedEntry]) {
        let mut pending = self.pending.lock();
        pending.extend(moved.iter().map(|one| (device, *one)));
    }

    /// Makes what was added durable, of all members of a commit at once.
    pub(super) fn store(&self) -> Result<()> {
        let Some(directory) = self.directory.get() else {
            return Ok(());
        };
        let mut failed = self.failed.lock();
        let pending = std::mem::take(&mut *self.pending.lock());
        let mut devices: BTreeMap<u64, Vec<MovedEntry>> = BTreeMap::new();
        for (device, moved) in pending {
            devices.entry(device).or_default().push(moved);
        }
        for (device, moved) in devices {
            if let Some(error) = &*failed {
                return Err(error.clone().into());
            }
            if let Err(error) = append_or_make_room(directory, device, &moved) {
                return Err(failed.insert(error).clone().into());
            }
        }
        Ok(())
    }

    /// Everything that was moved on a file system.
    pub(super) fn read(&self, device: u64) -> Result<MovedEntries> {
        let stored = self.directory.get().map(|directory| {
            let dir = Dir::open(directory)?;
            dir.read(&name(device))
        });
        let text = match stored.transpose() {
            Err(error) if error.is_absent() => Vec::new(),
            text => text?.unwrap_or_default(),
        };
        let lines = text.split(|byte| *byte == b'\n');
        let pending = self.pending.lock();
        let own = pending.iter().filter(|(of, _)| *of == device);
        let own = own.map(|(_, moved)| *moved);
        Ok(lines.filter_map(parse).chain(own).collect())
    }

    /// Forgets everything: no sandbox and no commit is left that could ask.
    pub(super) fn forget(&self) -> Result<()> {
        self.pending.lock().clear();
        let Some(directory) = self.directory.get() else {
            return Ok(());
        };
        let dir = match Dir::open(directory) {
            Err(error) if error.is_absent() => return Ok(()),
            dir => dir?,
        };
        for entry in dir.entries()? {
            let lines = entry.name.starts_with(b"moves-") && !entry.name.ends_with(b".lock");
            // What a process that was killed had begun to write.
            if lines || entry.name.starts_with(b".escrow-") {
                remove::remove(&dir, &entry.name)?;
            }
        }
        Ok(())
    }
}

fn name(device: u64) -> Vec<u8> {
    format!("moves-{device}").into_bytes()
}

/// On a full disk with the room that is kept for that, and without these lines where that is not enough.
fn append_or_make_room(
    directory: &Path,
    device: u64,
    moved: &[MovedEntry],
) -> crate::fs::Result<()> {
    let append = || append(directory, device, moved);
    let done = match append() {
        Err(error) if error.wants_room() => {
            let home = Dir::open(directory.parent().unwrap_or(directory))?;
            with_ballast(&home, FsError::wants_room, append)
        }
        done => done,
    };
    match done {
        Err(error) if error.wants_room() => Ok(()),
        done => done,
    }
}

fn append(directory: &Path, device: u64, moved: &[MovedEntry]) -> crate::fs::Result<()> {
    let dir = state_dir::make_all(directory)?;
    let name = name(device);
    let lock = [&name[..], b".lock"].concat();
    // Without it lines of another process would be lost; without these there is a conflict that is none.
    let Some(_lock) = Lock::take(&dir, &lock, false, PATIENCE)? else {
        return Ok(());
    };
    let mut text = match dir.read(&name) {
        Err(error) if error.is_absent() => Vec::new(),
        text => text?,
    };
    for MovedEntry { ino, before, after } in moved {
        let numbers = [before.sec, before.nsec.into(), after.sec, after.nsec.into()];
        let [a, b, c, d] = numbers;
        text.extend_from_slice(format!("{ino} {a} {b} {c} {d}\n").as_bytes());
    }
    let new = [&name[..], b".new"].concat();
    let stage = match dir.subdir(&new) {
        Err(error) if error.is_absent() => state_dir::make_plain(&dir, &new)?,
        stage => stage?,
    };
    // What a process that was killed had begun: it held the lock.
    for left in stage.names()? {
        remove::remove(&stage, &left)?;
    }
    atomic_file::replace(&stage, &dir, &name, &text)
}

fn parse(line: &[u8]) -> Option<MovedEntry> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let ino = words.next()?.parse().ok()?;
    let mut stamp = || {
        let (sec, nsec) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Stamp { sec, nsec })
    };
    let (before, after) = (stamp()?, stamp()?);
    Some(MovedEntry { ino, before, after })
}
