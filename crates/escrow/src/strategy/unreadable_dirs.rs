//! Makes directories of a sandbox readable that their own user may not list or enter, for an exclusive session,
//! and shows them with their own modes meanwhile.
//!
//! As with [files](crate::strategy::unreadable): which mode one is to have is noted in the area, durably,
//! before it is opened, and a process that opens an area that has such a note puts the mode back first, unless
//! another process, which is at work, holds the lock of the notes. A crashed process is recognized by that lock
//! alone. A directory that is open has a mode that no process gave it, so what became another one's meanwhile
//! is left as it is. Originals are never opened.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::{Result, StrategyError};
use super::unreadable::{self, ModeNote, OPENED};
use crate::fs::dir::{DirEntry, ModeOverrides};
use crate::fs::{Cause, Dir, EntryHandle, Meta};
use crate::model::ResourcePath;

/// How long one waits for another process that has directories open.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many directories are held; more are found by their paths.
const HELD: usize = 256;

/// Whether a mode lets the owner of a directory list and enter it.
fn is_open(mode: u16) -> bool {
    mode & 0o500 == 0o500
}

/// Whether a directory is one that its own user may not list or enter.
pub(super) fn is_closed(meta: &Meta) -> bool {
    let me = rustix::process::geteuid();
    meta.is_dir() && !is_open(meta.mode) && !me.is_root() && meta.uid == me.as_raw()
}

/// The mode that one has while it is open: the sticky bit tells it from any that another process would give.
pub(super) fn while_open(mode: u16) -> u16 {
    (mode | 0o700) ^ 0o1000
}

/// Whether a failure says that this user may not go somewhere.
pub(super) fn refused(error: &StrategyError) -> bool {
    matches!(error, StrategyError::Closed { .. })
        || matches!(error, StrategyError::Fs(error) if error.is(Errno::ACCESS))
}

/// An area as it is to be looked at: nothing that the crashed process had opened is open any more, and what
/// another process has opened is seen with its own mode.
pub(super) fn enter(area: Dir) -> Result<Dir> {
    let room = match area.subdir(OPENED) {
        Err(error) if error.is_absent() => return Ok(area),
        room => room?,
    };
    if flock(&room, FlockOperation::NonBlockingLockExclusive).is_ok() {
        unreadable::put_back(&area, &room)?;
        return Ok(area);
    }
    let mut modes = ModeOverrides::new();
    for DirEntry { name, .. } in room.entries()? {
        if let Some(note) = unreadable::read_note(&room, &name)? {
            modes.insert(note.ino, (while_open(note.mode), note.mode));
        }
    }
    Ok(area.with_modes(Arc::new(modes)))
}

/// Does something with an area whose trees are `roots`. Where a directory turns out to be closed, it is done again with
/// all of them open, by `open`; `true` then.
pub(super) fn with_open<T>(
    area: &Dir,
    roots: &[ResourcePath],
    open: impl FnOnce() -> Result<Vec<OpenedDirs>>,
    work: impl Fn(&Dir, bool) -> Result<T>,
) -> Result<T> {
    let first = enter(area.again())?;
    let failed = match work(&first, false) {
        Err(error) if refused(&error) => error,
        done => return done,
    };
    // Another process has opened what can be opened.
    if first.is_seeing() {
        return Err(in_the_sandbox(area, roots, failed));
    }
    let opened = open()?;
    if opened.iter().all(OpenedDirs::is_empty) {
        return Err(in_the_sandbox(area, roots, failed));
    }
    let done = work(&enter(area.again())?, true);
    opened.into_iter().try_for_each(OpenedDirs::close)?;
    done.map_err(|error| in_the_sandbox(area, roots, error))
}

/// A refusal in terms of the sandbox, not of where it is kept.
pub(super) fn in_the_sandbox(
    area: &Dir,
    roots: &[ResourcePath],
    error: StrategyError,
) -> StrategyError {
    let StrategyError::Fs(cause) = &error else {
        return error;
    };
    let within = |root: &ResourcePath| {
        let path = cause.path.as_path().strip_prefix(area.locate(root)).ok()?;
        let parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
        let parts = parts.filter(|part| !part.is_empty());
        Some(parts.fold(ResourcePath::root(), |path, part| path.join(part)))
    };
    match roots.iter().find_map(within) {
        Some(path) if cause.is(Errno::ACCESS) => StrategyError::Closed { path },
        _ => error,
    }
}

/// The closed directories of an area, open until this is dropped.
#[derive(Debug)]
pub(super) struct OpenedDirs {
    area: Dir,
    /// Locked for as long as they are open.
    room: Dir,
    /// Parents before what is in them.
    notes: Vec<ModeNote>,
    /// The first of them, wherever they are moved meanwhile.
    held: Vec<EntryHandle<'static>>,
    closed: bool,
}

impl OpenedDirs {
    /// Opens every closed directory of these trees of an area.
    pub(super) fn all(area: &Dir, roots: &[ResourcePath]) -> Result<Self> {
        let room = unreadable::room(area)?;
        let start = Instant::now();
        while let Err(errno) = flock(&room, FlockOperation::NonBlockingLockExclusive) {
            if start.elapsed() > PATIENCE {
                return Err(room.error("lock", b"", Cause::Os(errno)).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        unreadable::put_back(area, &room)?;
        let mut opened = Self {
            area: area.again(),
            room,
            notes: Vec::new(),
            held: Vec::new(),
            closed: false,
        };
        for root in roots {
            opened.tree(root)?;
        }
        Ok(opened)
    }

    fn is_empty(&self) -> bool {
        self.notes.is_empty()
    }

    fn tree(&mut self, root: &ResourcePath) -> Result<()> {
        let mut open = vec![root.clone()];
        while let Some(path) = open.pop() {
            let (parent, name) = self.area.parent(&path)?;
            let Some(meta) = parent.stat(name)?.filter(Meta::is_dir) else {
                continue;
            };
            if parent.is_mount_point(&meta) {
                continue;
            }
            if is_closed(&meta) {
                self.open(&path, (&parent, name), &meta)?;
            }
            let dir = match parent.subdir(name) {
                // It belongs to another user.
                Err(error) if error.is(Errno::ACCESS) => continue,
                dir => dir?,
            };
            for DirEntry { name, meta } in dir.entries()? {
                if meta.is_dir() {
                    open.push(path.join(&name));
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, path: &ResourcePath, at: (&Dir, &[u8]), meta: &Meta) -> Result<()> {
        let note = ModeNote {
            path: path.clone(),
            ino: meta.ino,
            mode: meta.mode,
        };
        let handle = at.0.handle(at.1)?;
        unreadable::write_note(&self.room, &note)?;
        self.notes.push(note);
        let fail = |errno| at.0.error("make readable", at.1, Cause::Os(errno));
        handle.set_mode(while_open(meta.mode)).map_err(fail)?;
        if self.held.len() < HELD {
            self.held.push(handle);
        }
        Ok(())
    }

    /// Closes them again, what is in them before they are.
    fn close(mut self) -> Result<()> {
        self.close_all()
    }

    fn close_all(&mut self) -> Result<()> {
        self.closed = true;
        while let Some(note) = self.notes.pop() {
            let at = self.notes.len();
            match self.held.get(at) {
                Some(handle) => {
                    let fail = |errno| {
                        let name = note.path.as_bytes();
                        self.area
                            .error("restore the mode of", name, Cause::Os(errno))
                    };
                    if handle.meta().map_err(fail)?.mode == while_open(note.mode) {
                        handle.set_mode(note.mode).map_err(fail)?;
                    }
                }
                None => unreadable::close(&self.area, &note)?,
            }
            unreadable::strike(&self.room, &note)?;
        }
        Ok(())
    }
}

impl Drop for OpenedDirs {
    fn drop(&mut self) {
        if !self.closed {
            // What stays open is noted, and closed by the next process.
            drop(self.close_all());
        }
    }
}
