//! Files that their own user may not read. They are open for the moment it takes to copy them, and never stay so.
//!
//! Which mode one is to have is noted in the area, durably, before it is opened; whoever opens an area that has such
//! a note puts the mode back first. Only what lies in the area is ever opened: an original is never touched.
//!
//! ```text
//! <area>/
//!   opened/
//!     N         path, number and mode of a file that is open for a moment; named by its number
//! ```

use std::io::{Read, Write};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use crate::fs::content::Reflinks;
use crate::fs::copy::{At, Care, Leaf, copy_leaf};
use crate::fs::durable::Draft;
use crate::fs::xattr::Xattrs;
use crate::fs::{Cause, Dir, Meta};
use crate::model::ResourcePath;

use super::tree;

const OPENED: &[u8] = b"opened";

/// What is noted of a file.
#[derive(Serialize, Deserialize)]
struct Note {
    /// Where it is, from the area.
    path: ResourcePath,
    ino: u64,
    mode: u16,
}

/// Whether a file is one that its own user may not read.
pub(super) fn is_closed(meta: &Meta) -> bool {
    let me = rustix::process::geteuid();
    meta.is_file() && meta.mode & 0o400 == 0 && !me.is_root() && meta.uid == me.as_raw()
}

/// Copies what is no directory, with everything it has.
pub(super) fn copy(
    area: &Dir,
    from: At<'_>,
    to: At<'_>,
    meta: &Meta,
    reflinks: &Reflinks,
    care: Care,
) -> Result<Leaf> {
    let mut leaf = read(area, from, meta, || {
        Ok(copy_leaf(from, to, meta.kind, reflinks, care)?)
    })?;
    if is_closed(meta) {
        let fail = |errno| to.0.error("set the mode of", to.1, Cause::Os(errno));
        let copy = to.0.handle(to.1)?;
        copy.set_mode(meta.mode).map_err(fail)?;
        leaf.copy = copy.meta().map_err(fail)?;
    }
    Ok(leaf)
}

/// The attributes of what is no directory.
pub(super) fn xattrs(area: &Dir, at: At<'_>, meta: &Meta) -> Result<Xattrs> {
    read(area, at, meta, || tree::xattrs(at.0, at.1))
}

/// Does something with a file that needs to read it.
pub(super) fn read<T>(
    area: &Dir,
    at: At<'_>,
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
    let fail = |errno| at.0.error("open for a moment", at.1, Cause::Os(errno));
    let handle = at.0.handle(at.1)?;
    let name = meta.ino.to_string().into_bytes();
    let room = note(
        area,
        &name,
        &Note {
            path,
            ino: meta.ino,
            mode: meta.mode,
        },
    )?;
    handle.set_mode(meta.mode | 0o400).map_err(fail)?;
    let done = work();
    handle.set_mode(meta.mode).map_err(fail)?;
    room.unlink(&name)?;
    done
}

fn note(area: &Dir, name: &[u8], note: &Note) -> Result<Dir> {
    match area.make_dir(OPENED, 0o700) {
        Err(error) if error.is(Errno::EXIST) => {}
        made => {
            made?;
            area.sync()?;
        }
    }
    let room = area.subdir(OPENED)?;
    let text = serde_json::to_vec(note).expect("a path and numbers are JSON");
    let draft = Draft {
        stage: &room,
        to: &room,
        name,
        fresh: true,
    };
    draft.write(|file| file.write_all(&text), |_| Ok(()))?;
    Ok(room)
}

/// Puts the modes back of files that whoever opened them did not close again, because he died.
pub(super) fn put_back(area: &Dir) -> Result<()> {
    let room = match area.subdir(OPENED) {
        Err(error) if error.is_absent() => return Ok(()),
        room => room?,
    };
    for entry in room.entries()? {
        let (mut file, _) = room.file(&entry.name)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            room.error("read", &entry.name, Cause::Os(errno))
        })?;
        // Half a name of a draft that never took its place says nothing.
        if let Ok(note) = serde_json::from_slice::<Note>(&text) {
            close(area, &note)?;
        }
        match room.unlink(&entry.name) {
            Err(error) if error.is_absent() => {}
            gone => gone?,
        }
    }
    Ok(())
}

fn close(area: &Dir, note: &Note) -> Result<()> {
    let (dir, name) = match area.parent(&note.path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(()),
        found => found?,
    };
    let Some(_) = dir
        .stat(name)?
        .filter(|now| now.ino == note.ino && now.is_file())
    else {
        return Ok(());
    };
    let fail = |errno| StrategyError::from(dir.error("close again", name, Cause::Os(errno)));
    dir.handle(name)?.set_mode(note.mode).map_err(fail)
}
