//! The disk that a command takes: looked at again and again, since no quota can be had without privileges.
//!
//! What grows are the layers of its sandboxes and of its home directory, or the copies, and what checkpoints keep of them. They are measured once a second, or less often
//! where that takes long; when they have grown too much, the command is ended. A single file is limited by the kernel, and so are
//! directories in memory.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::spec::RunSpec;
use super::supervise::{CommandExit, RunError, at_io};
use crate::fs::{Dir, FsError, usage};
use crate::model::view::View;

/// How often one looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// What looking takes at most, as a part of the time.
const PART: u32 = 10;

/// Looks at what a command takes, until this is dropped.
pub(crate) struct DiskWatch {
    limit: u64,
    /// Readable once the limit is reached.
    reached: OwnedFd,
    over: Arc<(Mutex<bool>, Condvar)>,
    looks: Option<JoinHandle<()>>,
}

impl DiskWatch {
    /// Begins to look; what is there already does not count.
    pub(crate) fn start(spec: &RunSpec, limit: u64) -> Result<Self, RunError> {
        let (reached, tell) = std::io::pipe().map_err(at_io("watch the disk"))?;
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let shown = spec.views.iter().filter(|one| one.area.is_some());
        let own = shown.map(|one| match &one.view {
            View::Layers(layers) => layers.upper.as_path().to_owned(),
            View::Directory(at) | View::ReadOnly(at) => at.as_path().to_owned(),
        });
        let scratch = spec
            .scratch
            .iter()
            .map(|(_, layers)| layers.upper.as_path());
        let private = spec.copied.iter().map(|one| one.private.as_path());
        let beside = scratch.chain(private).map(ToOwned::to_owned);
        let areas = spec.views.iter().filter_map(|one| one.area.as_ref());
        let taken = TakenDisk {
            trees: own.chain(beside).collect(),
            areas: areas.map(|area| area.as_path().to_owned()).collect(),
        };
        let before = taken.bytes();
        let looks = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let mut pause = INTERVAL;
                while !ended(&over, pause) {
                    let start = Instant::now();
                    if taken.bytes().saturating_sub(before) > limit {
                        // The end of the pipe is what is read.
                        drop(tell);
                        return;
                    }
                    pause = INTERVAL.max(start.elapsed() * PART);
                }
            })
        };
        Ok(Self {
            limit,
            reached: reached.into(),
            over,
            looks: Some(looks),
        })
    }

    /// Readable once the limit is reached.
    pub(crate) fn reached(&self) -> BorrowedFd<'_> {
        self.reached.as_fd()
    }

    /// What is told of a command that the kernel ended at its limit for one file.
    pub(crate) fn text_of(&self, exit: CommandExit) -> Option<String> {
        let large = exit.status() == 128 + libc::SIGXFSZ;
        large.then(|| {
            format!(
                "a file of the command reached its limit of {} bytes",
                self.limit
            )
        })
    }

    /// What is told then.
    pub(crate) fn text(&self) -> String {
        format!(
            "the command reached its limit of {} bytes on disk, and was ended",
            self.limit
        )
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.1.notify_all();
        match self.looks.take().map(JoinHandle::join) {
            Some(Ok(()) | Err(_)) | None => {}
        }
    }
}

/// Waits; whether all is over.
fn ended((over, news): &(Mutex<bool>, Condvar), pause: Duration) -> bool {
    let over = over.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = news.wait_timeout_while(over, pause, |over| !*over);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

/// What a command and its checkpoints take.
struct TakenDisk {
    /// What it writes into.
    trees: Vec<PathBuf>,
    /// The areas of its sandboxes. What lies in them beside the trees is kept by checkpoints.
    areas: BTreeSet<PathBuf>,
}

impl TakenDisk {
    /// The bytes of all of it; what cannot be looked at while it changes counts nothing this time.
    fn bytes(&self) -> u64 {
        let tree = |tree: &PathBuf| Dir::open(tree).and_then(|dir| usage::occupied(&dir));
        let trees = self.trees.iter().filter_map(|one| tree(one).ok());
        let area = |area: &PathBuf| Dir::open(area).and_then(|dir| self.kept(&dir));
        let areas = self.areas.iter().filter_map(|one| area(one).ok());
        trees.chain(areas).sum()
    }

    /// The bytes in a directory of an area that belong to no tree. What a file shares with a tree counts there.
    fn kept(&self, dir: &Dir) -> Result<u64, FsError> {
        let mut sum = 0;
        for entry in dir.entries()? {
            let at = dir.path().join(OsStr::from_bytes(&entry.name));
            let mut leads = self.trees.iter().filter(|tree| tree.starts_with(&at));
            sum += match leads.next() {
                Some(tree) if *tree == at => 0,
                Some(_) => self.kept(&dir.subdir(&entry.name)?)?,
                None => usage::measure(dir, &entry.name)?.private,
            };
        }
        Ok(sum)
    }
}
