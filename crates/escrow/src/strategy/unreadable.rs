//! Copies files that their own user may not read: makes them readable for the copy, and restores the mode, also
//! after a crash.
//!
//! Which mode one is to have is noted in the area, durably, before it is opened; a process that opens an area
//! that has such a note puts the mode back first. Only what lies in the area is ever opened: an original is
//! never touched.
//!
//! ```text
//! <area>/
//!   opened/
//!     N         path, number and mode of a file, or a directory, that is temporarily open; named by its number
//! ```

use std::io::{Read, Write};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use crate::fs::atomic_file::AtomicFile;
use crate::fs::place::{CopiedLeaf, CopyOptions, DirAndName, Placer};
use crate::fs::xattr::Xattrs;
use crate::fs::{Cause, Dir, Meta};
use crate::model::ResourcePath;

use super::tree;
use super::unreadable_dirs;

pub(super) const OPENED: &[u8] = b"opened";

/// What is noted of a file, or of a directory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ModeNote {
    /// Where it is, from the area.
    pub(super) path: ResourcePath,
    pub(super) ino: u64,
    pub(super) mode: u16,
}

impl ModeNote {
    fn name(&self) -> Vec<u8> {
        self.ino.to_string().into_bytes()
    }
}

/// Whether a file is one that its own user may not read.
pub(super) fn is_closed(meta: &Meta) -> bool {
    let me = rustix::process::geteuid();
    meta.is_file() && meta.mode & 0o400 == 0 && !me.is_root() && meta.uid == me.as_raw()
}

/// Copies what is no directory.
pub(super) fn copy<T: Clone>(
    area: &Dir,
    placer: &Placer<'_, T>,
    from: DirAndName<'_>,
    to: DirAndName<'_>,
    meta: &Meta,
    options: CopyOptions<'_>,
) -> Result<CopiedLeaf> {
    let look = |look: &mut Meta, attributes: &mut Xattrs| {
        look.mode = meta.mode;
        (options.look)(look, attributes);
    };
    let options = match is_closed(meta) {
        true => CopyOptions {
            look: &look,
            ..options
        },
        false => options,
    };
    read(area, from, meta, || {
        Ok(placer.copy(from, to, meta.kind, options)?)
    })
}

/// The attributes of what is no directory.
pub(super) fn xattrs(area: &Dir, at: DirAndName<'_>, meta: &Meta) -> Result<Xattrs> {
    read(area, at, meta, || tree::xattrs(at.0, at.1))
}

/// Does something with a file that needs to read it.
pub(super) fn read<T>(
    area: &Dir,
    at: DirAndName<'_>,
    meta: &Meta,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let within = at.0.path().strip_prefix(area.path());
    let Some(within) = within.ok().filter(|_| is_closed(meta)) else {
        return work();
    };
    let within = std::os::unix::ffi::OsStrExt::as_bytes(within.as_os_str());
    let parts = within.split(|byte| *byte == b'/').chain([at.1]);
    let parts = parts.filter(|part| !part.is_empty());
    let path = parts.fold(ResourcePath::root(), |path, part| path.join(part));
    let fail = |errno| at.0.error("make readable", at.1, Cause::Os(errno));
    let handle = at.0.handle(at.1)?;
    let note = ModeNote {
        path,
        ino: meta.ino,
        mode: meta.mode,
    };
    let room = room(area)?;
    write_note(&room, &note)?;
    handle.set_mode(meta.mode | 0o400).map_err(fail)?;
    let done = work();
    handle.set_mode(meta.mode).map_err(fail)?;
    strike(&room, &note)?;
    done
}

/// Where the notes of an area are; made if it is not there.
pub(super) fn room(area: &Dir) -> Result<Dir> {
    match area.make_dir(OPENED, 0o700) {
        Err(error) if error.is(Errno::EXIST) => {}
        made => {
            made?;
            area.sync()?;
        }
    }
    Ok(area.subdir(OPENED)?)
}

/// Notes something, durably.
pub(super) fn write_note(room: &Dir, note: &ModeNote) -> Result<()> {
    let text = serde_json::to_vec(note).expect("a path and numbers are JSON");
    let draft = AtomicFile {
        stage: room,
        to: room,
        name: &note.name(),
        fresh: true,
        synced: true,
    };
    Ok(draft.write(|file| file.write_all(&text), |_| Ok(()))?)
}

/// What a note says; `None` where it is gone, or half a name of a draft that never took its place.
pub(super) fn read_note(room: &Dir, name: &[u8]) -> Result<Option<ModeNote>> {
    let (mut file, _) = match room.file(name) {
        Err(error) if error.is_absent() => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        room.error("read", name, Cause::Os(errno))
    })?;
    Ok(serde_json::from_slice(&text).ok())
}

/// Strikes a note that is done with.
pub(super) fn strike(room: &Dir, note: &ModeNote) -> Result<()> {
    gone(room.unlink(&note.name()))
}

fn gone(unlinked: crate::fs::Result<()>) -> Result<()> {
    match unlinked {
        Err(error) if error.is_absent() => Ok(()),
        unlinked => Ok(unlinked?),
    }
}

/// Puts the modes back of what the process that opened it did not close again, because it died.
pub(super) fn put_back(area: &Dir, room: &Dir) -> Result<()> {
    let mut notes = Vec::new();
    for entry in room.entries()? {
        notes.push((read_note(room, &entry.name)?, entry.name));
    }
    // What is in a directory before the directory.
    notes.sort_by_key(|(note, _)| std::cmp::Reverse(note.as_ref().map(|note| note.path.clone())));
    for (note, name) in notes {
        if let Some(note) = note {
            close(area, &note)?;
        }
        gone(room.unlink(&name))?;
    }
    Ok(())
}

/// Gives what is still what was noted its mode again.
pub(super) fn close(area: &Dir, note: &ModeNote) -> Result<()> {
    let (dir, name) = match area.parent(&note.path) {
        // Nothing in a directory that is closed again is open.
        Err(error) if error.is(Errno::ACCESS) => return Ok(()),
        Err(error) if error.is_absent() || error.leaves() => return Ok(()),
        found => found?,
    };
    // What has another mode by now got it from another process; after a power cut a note may be there that was struck.
    let ours = |now: &Meta| {
        let open = match now.is_dir() {
            true => unreadable_dirs::while_open(note.mode),
            false => note.mode | 0o400,
        };
        now.ino == note.ino && now.mode == open
    };
    let Some(_) = dir.stat(name)?.filter(ours) else {
        return Ok(());
    };
    let fail =
        |errno| StrategyError::from(dir.error("restore the mode of", name, Cause::Os(errno)));
    dir.handle(name)?.set_mode(note.mode).map_err(fail)
}
