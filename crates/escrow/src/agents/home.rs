//! The agent home: an agent's sessions and histories, in plain directories that every run shows at their usual places.
//!
//! ```text
//! $ESCROW_HOME/agents/<name>/lock       held while the home is seeded, or credentials are synced
//!                           /used       held by every run that shows it; when that was last
//!                           /state/     directories, by their paths in the home directory
//!                           /files/     single files, a name for each path; links in the home directory lead here
//!                           /bases/     what each credential was when both sides were last alike
//!                           /wanted/    what the agent wanted to change of its configuration
//! ```
//!
//! Each directory and file is seeded once, from the real one. Locks and databases of the agent work, since nothing is layered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use super::paths::{AgentPaths, PresetEntry, match_name};
use crate::fs::content::Reflinks;
use crate::fs::place::{CopyOptions, copy_leaf};
use crate::fs::state_dir::{Lock, make_all, make_plain, room};
use crate::fs::{Cause, Dir, FsError, Result, Stamp, remove, usage};
use crate::model::EntryKind;

/// Where agent homes lie in the state directory.
const PLACE: &[u8] = b"agents";
const LOCK: &[u8] = b"lock";
const USED: &[u8] = b"used";
const STATE: &[u8] = b"state";
const FILES: &[u8] = b"files";
const SEEDING: &[u8] = b"seeding";

/// How long one waits for another process that seeds or syncs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many bytes of an entry are taken over from the real home directory: the newest files first.
pub(crate) const SEEDED: u64 = 1 << 30;

/// How many files of an entry are looked at.
const MOST: usize = 100_000;

/// How many files of one pattern are shown.
const PATTERN: usize = 256;

/// How many bytes of sessions an agent home holds: the oldest go.
const MOST_STATE: u64 = 5 << 30;

/// After so many seconds an agent home is measured again.
const MEASURED: i64 = 24 * 60 * 60;

/// How long an agent home stays that no command uses.
pub(crate) const KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The home of one agent.
#[derive(Debug)]
pub(crate) struct AgentHome {
    pub(crate) dir: Dir,
}

/// A kept file, and which name it has in the agent home.
#[derive(Debug, Clone)]
pub(crate) struct KeptFile {
    /// Where it appears.
    pub(crate) entry: PresetEntry,
    /// Its name among the files of the agent home.
    pub(crate) name: Vec<u8>,
}

/// An agent home that is on disk.
#[derive(Debug, Clone)]
pub struct StoredAgentHome {
    /// Whose it is.
    pub name: String,
    /// Where it is.
    pub path: std::path::PathBuf,
    /// When a command began last that had it.
    pub(crate) used: Stamp,
}

impl StoredAgentHome {
    /// When a command began last that had it.
    pub fn used_at(&self) -> Option<jiff::Timestamp> {
        jiff::Timestamp::from_second(self.used.sec).ok()
    }
}

/// The name of a path among the files of an agent home; `None` for one that could be read in two ways, or that no directory takes.
pub(crate) fn flat(path: &str) -> Option<Vec<u8>> {
    let plain = !path.contains('%') && path.len() <= 255;
    plain.then(|| path.replace('/', "%").into_bytes())
}

impl AgentHome {
    /// The home of an agent in the state directory; made where it is missing.
    pub(crate) fn open(state: &Dir, name: &str) -> Result<Self> {
        let dir = room(&room(state, PLACE)?, name.as_bytes())?;
        Ok(Self { dir })
    }

    /// Whether a directory can be the home of an agent: there is nothing, or what a home consists of.
    pub(crate) fn may_be(at: &Path) -> Result<bool> {
        match Dir::open(at) {
            Err(error) if error.is_absent() => Ok(!at.ancestors().any(is_no_dir)),
            dir => {
                let names = dir?.names()?;
                Ok(names.is_empty() || names.iter().any(|name| **name == *USED))
            }
        }
    }

    /// The home in a directory of the user's; made where it is missing.
    pub(crate) fn in_dir(at: &Path) -> Result<Self> {
        let dir = make_all(at)?;
        Ok(Self { dir })
    }

    /// The home of an agent, if there is one.
    pub(crate) fn find(state: &Dir, name: &str) -> Result<Option<Self>> {
        let dir = state
            .subdir(PLACE)
            .and_then(|all| all.subdir(name.as_bytes()));
        match dir {
            Ok(dir) => Ok(Some(Self { dir })),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lock under which the home is seeded and synced; an error where another process holds it for long.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let lock = Lock::take(&self.dir, LOCK, false, PATIENCE)?;
        lock.ok_or_else(|| self.busy())
    }

    /// The share of a run, which keeps the home from being removed.
    pub(crate) fn share(&self, now: i64) -> Result<Lock> {
        let lock = Lock::take(&self.dir, USED, true, PATIENCE)?;
        let lock = lock.ok_or_else(|| self.busy())?;
        lock.note(&format!("{now}\n"))?;
        Ok(lock)
    }

    /// Removes the oldest files of the state where that is too large, once a day and only where no run shows it; returns how many
    /// bytes went. The caller holds the lock.
    pub(crate) fn trim(&self, lock: &Lock, now: i64) -> Result<u64> {
        let noted = Lock::noted(&self.dir, LOCK)?.trim().parse().ok();
        if noted.is_some_and(|measured: i64| now - measured < MEASURED) {
            return Ok(0);
        }
        lock.note(&format!("{now}\n"))?;
        let state = room(&self.dir, STATE)?;
        if usage::measure(&self.dir, STATE)?.private <= MOST_STATE {
            return Ok(0);
        }
        let Some(_alone) = Lock::take(&self.dir, USED, false, Duration::ZERO)? else {
            return Ok(0);
        };
        let mut files = Vec::new();
        list(&state, &mut Vec::new(), &mut files)?;
        files.sort_by_key(|(stamp, _)| *stamp);
        let total: u64 = files.iter().map(|(_, (_, size))| size).sum();
        let mut gone = 0;
        for (_, (path, size)) in &files {
            if total - gone <= MOST_STATE {
                break;
            }
            let (name, above) = path.split_last().expect("a file has a name");
            let mut dir = state.again();
            for part in above {
                dir = dir.subdir(part)?;
            }
            dir.unlink(name)?;
            gone += size;
        }
        Ok(gone)
    }

    fn busy(&self) -> FsError {
        self.dir.error("lock", LOCK, Cause::Os(Errno::BUSY))
    }

    pub(crate) fn files(&self) -> Result<Dir> {
        room(&self.dir, FILES)
    }

    /// The directory of a kept entry, where it is new seeded from the real one if that is wanted. Returns how many bytes were left out.
    pub(crate) fn state_dir(&self, entry: &PresetEntry, seeded: bool) -> Result<(Dir, u64)> {
        let mut dir = room(&self.dir, STATE)?;
        let parts: Vec<&str> = entry.name.split('/').collect();
        let (last, above) = parts.split_last().expect("a path has a name");
        for part in above {
            dir = room(&dir, part.as_bytes())?;
        }
        match dir.subdir(last.as_bytes()) {
            Err(error) if error.is_absent() => {}
            // A command inside can close it to everyone.
            Err(error) if error.is(Errno::ACCESS) => {
                open_up(&dir, last.as_bytes())?;
                return Ok((dir.subdir(last.as_bytes())?, 0));
            }
            found => return Ok((found?, 0)),
        }
        remove::remove(&self.dir, SEEDING)?;
        let seeding = make_plain(&self.dir, SEEDING)?;
        let left_out = match Dir::open(&entry.at) {
            _ if !seeded => 0,
            Ok(real) => seed(&real, &seeding)?,
            Err(error) if error.is_absent() || error.is(Errno::NOTDIR) => 0,
            Err(error) => return Err(error),
        };
        self.dir.rename(SEEDING, &dir, last.as_bytes())?;
        Ok((dir.subdir(last.as_bytes())?, left_out))
    }

    /// The kept files of a preset, seeded where they are new: named ones whether they are there or not, and those of a pattern
    /// that are.
    pub(crate) fn kept_files(&self, paths: &AgentPaths, seeded: bool) -> Result<Vec<KeptFile>> {
        let files = self.files()?;
        let mut found: Vec<KeptFile> = Vec::new();
        for entry in paths.entries(&paths.preset.state).filter(|one| !one.is_dir) {
            let mut names = vec![entry.clone()];
            if entry.name.contains('*') {
                names = self.of_pattern(&files, &entry, seeded)?;
            }
            for entry in names {
                let Some(name) = flat(&entry.name) else {
                    continue;
                };
                // A pattern means files that have a name of their own, too.
                if found.iter().any(|one| one.name == name) {
                    continue;
                }
                // What a command put in the place of a file goes.
                let is_odd = |meta: crate::fs::Meta| !meta.is_file();
                if files.stat(&name)?.is_some_and(is_odd) {
                    remove::remove(&files, &name)?;
                }
                if seeded && files.stat(&name)?.is_none() {
                    self.seed_once(&entry, &files, &name)?;
                }
                found.push(KeptFile { entry, name });
            }
        }
        Ok(found)
    }

    /// Takes a file over that never was; noted once it is whole.
    fn seed_once(&self, entry: &PresetEntry, files: &Dir, name: &[u8]) -> Result<()> {
        let seeded = room(&self.dir, b"seeded")?;
        if seeded.stat(name)?.is_some() {
            return Ok(());
        }
        remove::remove(&self.dir, SEEDING)?;
        let seeding = make_plain(&self.dir, SEEDING)?;
        if !seed_file(entry, &seeding, name)? {
            return Ok(());
        }
        if seeding.stat(name)?.is_some() {
            seeding.rename(name, files, name)?;
        }
        seeded.create(name, 0o600).map(drop)
    }

    /// The files that a pattern means, of the real directory and of the agent home.
    fn of_pattern(
        &self,
        files: &Dir,
        entry: &PresetEntry,
        seeded: bool,
    ) -> Result<Vec<PresetEntry>> {
        let (above, pattern) = entry.name.rsplit_once('/').unwrap_or(("", &entry.name));
        let real = entry.at.parent().unwrap_or(Path::new("/"));
        let mut names: Vec<String> = Vec::new();
        let mut add = |name: &[u8]| {
            let Ok(name) = std::str::from_utf8(name) else {
                return;
            };
            let known = names.iter().any(|known| known == name);
            if names.len() < PATTERN && match_name(pattern, name) && !known {
                names.push(name.to_owned());
            }
        };
        if seeded {
            let there = Dir::open(real).and_then(|dir| dir.names());
            there.unwrap_or_default().iter().for_each(|name| add(name));
        }
        let prefix = flat(&format!("{above}/")).unwrap_or_default();
        for name in files.names()? {
            if let Some(rest) = name.strip_prefix(prefix.as_slice()) {
                add(rest);
            }
        }
        let inner = entry.inner.parent().unwrap_or(Path::new(""));
        let place = entry.own.parent().unwrap_or(Path::new(""));
        let one = |name: String| PresetEntry {
            own: place.join(&name),
            at: real.join(&name),
            inner: inner.join(&name),
            name: format!("{above}/{name}"),
            is_dir: false,
        };
        Ok(names.into_iter().map(one).collect())
    }
}

/// Copies the newest files of a directory, up to a bound; returns how many bytes were left out. Links and sockets stay behind.
fn seed(real: &Dir, to: &Dir) -> Result<u64> {
    let mut files = Vec::new();
    list(real, &mut Vec::new(), &mut files)?;
    files.sort_by_key(|(meta, _): &(Stamp, _)| std::cmp::Reverse(*meta));
    let (mut taken, mut left_out) = (0, 0);
    for (_, (path, size)) in &files {
        if taken + size > SEEDED {
            left_out += size;
            continue;
        }
        taken += size;
        let (name, above) = path.split_last().expect("a file has a name");
        let (mut from, mut into) = (real.again(), to.again());
        for part in above {
            from = from.subdir(part)?;
            into = room(&into, part)?;
        }
        take((&from, name), (&into, name))?;
    }
    Ok(left_out)
}

type FoundFile = (Stamp, (Vec<Box<[u8]>>, u64));

fn list(dir: &Dir, above: &mut Vec<Box<[u8]>>, found: &mut Vec<FoundFile>) -> Result<()> {
    for entry in dir.entries()? {
        if found.len() >= MOST || above.len() > 16 {
            break;
        }
        above.push(entry.name.clone());
        match entry.meta.kind {
            EntryKind::Directory => {
                if let Ok(dir) = dir.subdir(&entry.name) {
                    list(&dir, above, found)?;
                }
            }
            EntryKind::File => found.push((entry.meta.mtime, (above.clone(), entry.meta.size))),
            _ => {}
        }
        above.pop();
    }
    Ok(())
}

/// Copies one file; one that this user cannot read, or that is gone, is left out.
fn take(from: (&Dir, &[u8]), to: (&Dir, &[u8])) -> Result<()> {
    let options = CopyOptions {
        lossy: true,
        ..CopyOptions::LIVE
    };
    match copy_leaf(from, to, EntryKind::File, &Reflinks::wanted(), options) {
        Ok(_) => Ok(()),
        Err(error) if error.is_absent() || error.is(Errno::ACCESS) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes a real file over; a database by SQLite's own means, since its newest rows may lie beside it. Returns whether that is settled: a
/// database that is in use now is tried again.
fn seed_file(entry: &PresetEntry, to: &Dir, name: &[u8]) -> Result<bool> {
    let parent = match Dir::open(entry.at.parent().unwrap_or(Path::new("/"))) {
        Ok(parent) => parent,
        Err(_) => return Ok(true),
    };
    let own = entry.at.file_name().unwrap_or_default().as_bytes();
    let Some(meta) = parent.stat(own)?.filter(|meta| meta.is_file()) else {
        return Ok(true);
    };
    if meta.size > SEEDED {
        return Ok(true);
    }
    let is_database = [&b".sqlite"[..], b".db"]
        .iter()
        .any(|end| own.ends_with(end));
    match is_database {
        true => Ok(copy_database(
            &entry.at,
            &to.path().join(OsStr::from_bytes(name)),
        )),
        false => take((&parent, own), (to, name)).map(|()| true),
    }
}

/// Copies a file whole, in the place of another one.
pub(crate) fn copy_whole(from: (&Dir, &[u8]), (to, name): (&Dir, &[u8])) -> Result<()> {
    let staged = [b".new-", name].concat();
    remove::remove(to, &staged)?;
    take(from, (to, &staged))?;
    to.rename(&staged, to, name)
}

/// Opens what a command closed to its owner.
fn open_up(dir: &Dir, name: &[u8]) -> Result<()> {
    let handle = dir.handle(name)?;
    let fail = |errno| dir.error("open", name, Cause::Os(errno));
    handle.set_mode(0o700).map_err(fail)
}

fn is_no_dir(at: &Path) -> bool {
    Dir::look(at).is_ok_and(|meta| !meta.is_dir())
}

/// Copies a database as one consistent state; says whether that worked.
fn copy_database(from: &Path, to: &Path) -> bool {
    let flags =
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = || -> rusqlite::Result<()> {
        let source = rusqlite::Connection::open_with_flags(from, flags)?;
        source.busy_timeout(Duration::from_secs(5))?;
        source.backup("main", to, None::<fn(rusqlite::backup::Progress)>)
    };
    copy().is_ok()
}

/// Every agent home in the state directory.
pub(crate) fn stored(state: &Dir) -> Result<Vec<StoredAgentHome>> {
    let all = match state.subdir(PLACE) {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        all => all?,
    };
    let mut found = Vec::new();
    for entry in all.entries()?.into_iter().filter(|one| one.meta.is_dir()) {
        let dir = all.subdir(&entry.name)?;
        found.push(StoredAgentHome {
            name: String::from_utf8_lossy(&entry.name).into_owned(),
            path: dir.path().to_owned(),
            used: dir.stat(USED)?.unwrap_or(entry.meta).mtime,
        });
    }
    Ok(found)
}

/// The bytes that an agent home takes on disk.
pub(crate) fn measured(path: &Path) -> u64 {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().as_bytes();
    let measured = Dir::open(parent).and_then(|dir| usage::measure(&dir, name));
    measured.unwrap_or_default().private
}

/// Removes an agent home; says whether it could: not while a run shows it.
pub(crate) fn remove_home(path: &Path) -> Result<bool> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(false);
    };
    let home = AgentHome {
        dir: Dir::open(path)?,
    };
    let Some(_used) = Lock::take(&home.dir, USED, false, Duration::ZERO)? else {
        return Ok(false);
    };
    remove::remove(&Dir::open(parent)?, name.as_bytes())?;
    Ok(true)
}

/// Removes the place of all agent homes.
pub(crate) fn remove_place(state: &Dir) -> Result<()> {
    remove::remove(state, PLACE)
}
