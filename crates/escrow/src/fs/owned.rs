//! Reads text files that only this user or root can have written.
//!
//! A file is opened once, without following a link; owner and mode are those of the handle that is
//! read. So what was checked is what was read.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::stat::stat_fd;
use super::{Cause, Dir, FsError, Meta, Result};
use crate::model::text::Location;

/// What stands where a text may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFileState {
    /// Nothing.
    Absent,
    /// A text that counts.
    Text(Vec<u8>),
    /// A text of this user or root that others may have changed, and how to fix that: what it denies
    /// counts.
    Shared(Vec<u8>, String),
    /// Something that does not count, and why.
    PassedOver(String),
}

/// Who may have written a text that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedWriters {
    /// Root alone.
    Root,
    /// This user, and root.
    User,
}

impl AllowedWriters {
    fn include(self, uid: u32) -> bool {
        uid == 0 || (self == Self::User && uid == rustix::process::geteuid().as_raw())
    }
}

const ACTION: &str = "read the configuration";

fn failed(path: &Path, cause: Cause) -> FsError {
    FsError {
        action: ACTION,
        path: Location::from(path),
        cause,
    }
}

/// Reads the file `name` of `directory`, at most `most` bytes, if it belongs to this user or root and so
/// does the way to it. Where others can change the file or the way to it, that is said.
pub fn find(directory: &Path, name: &str, most: u64) -> Result<ConfigFileState> {
    let path = directory.join(name);
    let fail = |errno| failed(&path, Cause::Os(errno));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match fs::open(directory, flags, Mode::empty()) {
        Ok(parent) => parent,
        // Nothing was put for this user to find where this user may not look.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(ConfigFileState::Absent),
        Err(errno) => return Err(fail(errno)),
    };
    let opened = match open(parent.as_fd(), name, OFlags::NOFOLLOW) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(ConfigFileState::Absent),
        Err(Errno::LOOP) => return Ok(ConfigFileState::PassedOver("it is a link".to_owned())),
        Err(errno) => {
            let seen = fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            return match (errno, seen) {
                (Errno::ACCESS, Err(_)) => Ok(ConfigFileState::Absent),
                (_, Ok(seen)) if !AllowedWriters::User.include(seen.st_uid) => {
                    Ok(ConfigFileState::PassedOver(foreign(seen.st_uid)))
                }
                _ => Err(fail(errno)),
            };
        }
    };
    let meta = stat_fd(&opened).map_err(fail)?;
    if !AllowedWriters::User.include(meta.uid) {
        return Ok(ConfigFileState::PassedOver(foreign(meta.uid)));
    }
    if let Some(why) = why_not_way(directory) {
        return Ok(ConfigFileState::PassedOver(why));
    }
    let why = why_not(&meta, AllowedWriters::User).or_else(|| shared_way(directory));
    let text = content(&path, opened, &meta, most)?;
    Ok(match why {
        Some(why) => ConfigFileState::Shared(text, why),
        None => ConfigFileState::Text(text),
    })
}

/// Reads a file of the user, or of the system: links are followed, and what others can change is
/// an error, because going on without it would lose a policy.
pub fn read(path: &Path, writers: AllowedWriters, most: u64) -> Result<ConfigFileState> {
    let fail = |errno| failed(path, Cause::Os(errno));
    let opened = match open(fs::CWD, path, OFlags::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR) if !is_dangling(path) => {
            return Ok(ConfigFileState::Absent);
        }
        Err(errno) => return Err(fail(errno)),
    };
    let meta = stat_fd(&opened).map_err(fail)?;
    if writers == AllowedWriters::User && !writers.include(meta.uid) {
        return Ok(ConfigFileState::PassedOver(foreign(meta.uid)));
    }
    match why_not(&meta, writers) {
        Some(_) if meta.uid != 0 && writers == AllowedWriters::Root => {
            Err(failed(path, Cause::Damaged("it does not belong to root")))
        }
        Some(_) => Err(failed(
            path,
            Cause::Damaged("others may write it; `chmod go-w` it"),
        )),
        None => Ok(ConfigFileState::Text(content(path, opened, &meta, most)?)),
    }
}

/// Reads a file that the user named, whatever it is. It may be a pipe without a name, as shells make them; at a pipe with a
/// name one could wait for ever for a process that writes.
pub fn read_named(path: &Path, most: u64) -> Result<Vec<u8>> {
    /// The file system of pipes without a name.
    const PIPES: i128 = 0x5049_5045;
    let fail = |errno| failed(path, Cause::Os(errno));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = fs::open(path, flags, Mode::empty()).map_err(fail)?;
    let stat = fs::fstat(&opened).map_err(fail)?;
    if fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::Fifo {
        if i128::from(fs::fstatfs(&opened).map_err(fail)?.f_type) != PIPES {
            return Err(failed(path, Cause::Damaged("it is a named pipe")));
        }
        fs::fcntl_setfl(&opened, OFlags::empty()).map_err(fail)?;
    }
    limited(path, opened, most)
}

/// Reads a file again that was named once; nothing where it is no regular file any more.
pub fn read_again(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let fail = |errno| failed(path, Cause::Os(errno));
    let opened = match open(fs::CWD, path, OFlags::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(fail(errno)),
    };
    let meta = stat_fd(&opened).map_err(fail)?;
    match meta.is_file() {
        true => limited(path, opened, most).map(Some),
        false => Ok(None),
    }
}

/// The link that leads nowhere because of which a file is not found: itself, or one on the way to it.
pub fn dangling(path: &Path) -> Option<std::path::PathBuf> {
    let leads_nowhere = |path: &&Path| {
        let link = fs::readlink(*path, Vec::new()).is_ok();
        link && fs::stat(*path).is_err()
    };
    path.ancestors().find(leads_nowhere).map(Path::to_owned)
}

fn is_dangling(path: &Path) -> bool {
    dangling(path).is_some()
}

/// Opens a file for reading. Whatever stands there, opening it waits for no other process.
fn open(
    parent: impl AsFd,
    name: impl rustix::path::Arg,
    more: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    fs::openat(parent, name, flags, Mode::empty())
}

fn content(path: &Path, opened: OwnedFd, meta: &Meta, most: u64) -> Result<Vec<u8>> {
    match meta.is_file() {
        true => limited(path, opened, most),
        false => Err(failed(path, Cause::Damaged("it is not a file"))),
    }
}

fn limited(path: &Path, opened: OwnedFd, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(4096);
    let read = File::from(opened).take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        failed(path, Cause::Os(errno))
    })?;
    match bytes.len() as u64 > most {
        true => Err(failed(path, Cause::Damaged("it is larger than one MiB"))),
        false => Ok(bytes),
    }
}

fn foreign(uid: u32) -> String {
    format!("it belongs to another user ({uid})")
}

/// Why a file does not count.
fn why_not(meta: &Meta, writers: AllowedWriters) -> Option<String> {
    match (writers.include(meta.uid), is_open_to_others(meta)) {
        (false, _) => Some(foreign(meta.uid)),
        (true, true) => Some("others may write it; `chmod go-w` it".to_owned()),
        (true, false) => None,
    }
}

/// Why the way to a directory does not count: whose directory it is decides what is in it.
fn why_not_way(directory: &Path) -> Option<String> {
    directory.ancestors().find_map(|way| {
        let shown = Location::from(way);
        let Ok(meta) = Dir::look(way) else {
            return Some(format!("'{shown}', which it lies in, cannot be looked at"));
        };
        if !AllowedWriters::User.include(meta.uid) {
            let uid = meta.uid;
            return Some(format!(
                "'{shown}', which it lies in, belongs to another user ({uid})"
            ));
        }
        None
    })
}

/// Which directory on the way others may write, so that they decide what is in it. Where it is sticky,
/// they can add entries of their own but replace no others.
fn shared_way(directory: &Path) -> Option<String> {
    let open = |way: &&Path| {
        let sticky = |meta: &Meta| meta.mode & 0o1000 != 0;
        Dir::look(way).map_or(true, |meta| is_open_to_others(&meta) && !sticky(&meta))
    };
    let way = Location::from(directory.ancestors().find(open)?);
    Some(format!(
        "others may write '{way}', which it lies in; `chmod go-w '{way}'`"
    ))
}

/// Whether others than the owner may write an entry. A group that is the user's own, as where every
/// user has one, is not others.
fn is_open_to_others(meta: &Meta) -> bool {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let own = meta.gid == 0 || (meta.gid == gid && gid == uid);
    meta.mode & 0o002 != 0 || (meta.mode & 0o020 != 0 && !own)
}
