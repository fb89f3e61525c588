//! The disk that a command takes: looked at again and again, since no quota can be had without privileges.
//!
//! What grows are the layers of its sandboxes and of its home directory, or the copies. They are measured once a second, or less often
//! where that takes long; when they have grown too much, the command is ended. A single file is limited by the kernel, and so are
//! directories in memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::spec::RunSpec;
use super::supervise::{CommandExit, RunError, at_io};
use crate::fs::{Dir, usage};
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
        let trees: Vec<PathBuf> = own.chain(scratch.map(ToOwned::to_owned)).collect();
        let before = occupied(&trees);
        let looks = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let mut pause = INTERVAL;
                while !ended(&over, pause) {
                    let start = Instant::now();
                    if occupied(&trees).saturating_sub(before) > limit {
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

/// The bytes in all of them; what cannot be looked at while it changes counts nothing this time.
fn occupied(trees: &[PathBuf]) -> u64 {
    let one = |tree: &PathBuf| Dir::open(tree).and_then(|dir| usage::occupied(&dir));
    trees.iter().filter_map(|tree| one(tree).ok()).sum()
}
