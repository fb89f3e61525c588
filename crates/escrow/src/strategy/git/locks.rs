//! Locks of references: which ones a git of ours holds is written down in the area before references move, so that those
//! which a killed process left are known, and no lock of another process is ever taken for one.
//!
//! Git itself makes the locks, so there is a short time in which they are there and not written down. Only then, where a
//! mark says that references were about to move and nothing is written down, a lock is told by its time and owner.

use std::time::{Duration, Instant};

use super::super::error::Result;
use super::super::tree;
use super::history::path_of;
use super::release::read_all;
use super::repository::Repository;
use crate::fs::meta::Stamp;
use crate::fs::{Dir, Meta, atomic_file, remove};
use crate::model::ResourcePath;

/// Says in an area that references are being moved: a process that was killed may have left locks, and may have moved some.
pub(super) const MOVING: &[u8] = b"moving";
const BEGUN: &[u8] = b"moving-new";

/// The locks that git holds meanwhile.
const LOCKS: &[u8] = b"locks";

/// How long a lock of a reference may be held by the user's git.
const PATIENCE: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(20);

/// How long after the mark git has its locks, in seconds: it waits five for those of others.
const LATEST: i64 = 30;

/// A file that is a lock: no other file ever has its number and was made at its time.
type HeldLock = (String, u64, Stamp);

/// The locks that git takes beside those of the references that move.
const SHARED: [&str; 3] = ["HEAD", "packed-refs", "reftable/tables.list"];

impl Repository {
    /// Marks in an area that references are about to move.
    pub(super) fn begin_moving(&self, area: &Dir) -> Result<()> {
        for old in [LOCKS, BEGUN] {
            remove::remove(area, old)?;
        }
        area.create(BEGUN, 0o600)?;
        area.rename(BEGUN, area, MOVING)?;
        Ok(area.sync()?)
    }

    /// Writes down the locks on these references, which a git of ours holds now.
    pub(super) fn note_locks<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        area: &Dir,
    ) -> Result<()> {
        let mut held: Vec<HeldLock> = Vec::new();
        for name in names.chain(SHARED) {
            let (dir, lock) = self.lock(name)?;
            let there = dir.stat_path(&lock)?;
            held.extend(there.map(|there| (name.to_owned(), there.ino, there.born)));
        }
        let held = tree::stored(&held).to_string();
        Ok(atomic_file::create(area, LOCKS, held.as_bytes())?)
    }

    /// Removes the locks that were written down, and that git did not remove.
    pub(super) fn remove_noted_locks(&self, area: &Dir) -> Result<bool> {
        if area.stat(LOCKS)?.is_none() {
            return Ok(false);
        }
        let held = serde_json::from_slice(&read_all(area.file(LOCKS)?.0)?);
        let held: Vec<HeldLock> = held.map_err(|error| super::StrategyError::Damaged {
            what: format!("the list of its locks cannot be read ({error})"),
        })?;
        for (name, ino, born) in held {
            let (dir, lock) = self.lock(&name)?;
            if let Some(there) = dir.stat_path(&lock)?
                && (there.ino, there.born) == (ino, born)
            {
                let (parent, name) = dir.parent(&lock)?;
                parent.unlink(name)?;
            }
        }
        Ok(true)
    }

    /// Whether references were being moved when a process was killed: removes the locks that it left on these.
    pub(super) fn clear_locks<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        area: &Dir,
    ) -> Result<bool> {
        let Some(begun) = area.stat(MOVING)? else {
            return Ok(false);
        };
        if self.remove_noted_locks(area)? {
            return Ok(true);
        }
        for name in names.chain(SHARED) {
            let (dir, lock) = self.lock(name)?;
            let until = Instant::now() + PATIENCE;
            // One of the user's git is held for a short time only.
            while let Some(there) = dir.stat_path(&lock)? {
                if Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                let (parent, name) = dir.parent(&lock)?;
                match self.may_be_ours(&there, &begun)? && tree::is_quiet(&parent, name)? {
                    true => parent.unlink(name)?,
                    false => break,
                }
            }
        }
        Ok(true)
    }

    /// The same of one reference, whichever value it has by now.
    pub(super) fn settle_locks(&self, name: &str, area: &Dir) -> Result<()> {
        match self.clear_locks([name].into_iter(), area)? {
            true => Ok(area.unlink(MOVING)?),
            false => Ok(()),
        }
    }

    /// Whether a lock is of the time and the user of a git of ours that was marked then.
    fn may_be_ours(&self, lock: &Meta, begun: &Meta) -> Result<bool> {
        let latest = begun.ctime.sec.saturating_add(LATEST);
        let owner = Dir::open(self.common())?.meta()?.uid;
        let user = rustix::process::geteuid();
        let user = if user.is_root() { owner } else { user.as_raw() };
        Ok(lock.ctime >= begun.ctime && lock.ctime.sec <= latest && lock.uid == user)
    }

    /// Where the lock of a reference, or of what holds many, is.
    fn lock(&self, name: &str) -> Result<(Dir, ResourcePath)> {
        let dir = match name {
            "HEAD" => self.dir()?,
            _ => Dir::open(self.common())?,
        };
        Ok((dir, path_of(format!("{name}.lock").as_bytes())?))
    }
}
