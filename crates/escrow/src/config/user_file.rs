//! A configuration file of another program, such as a coding agent's: read as it is, replaced as a whole or not at all.

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, Uid};

use crate::fs::atomic_file::AtomicFile;
use crate::fs::dir::Dir;
use crate::fs::{self, state_dir};

/// The directory that holds the file and its name there; a link is followed, since it is how people keep such files elsewhere.
fn place(file: &Path) -> Option<(PathBuf, PathBuf)> {
    let real = state_dir::known_as(file)?;
    Some((real.parent()?.to_owned(), real.file_name()?.into()))
}

/// The content of the file; `None` where there is none.
pub fn read_user_file(file: &Path) -> fs::Result<Option<Vec<u8>>> {
    let Some((directory, name)) = place(file) else {
        return Ok(None);
    };
    let directory = Dir::open(&directory)?;
    let name = name.as_os_str().as_bytes();
    if directory.stat(name)?.is_none() {
        return Ok(None);
    }
    let (mut file, _) = directory.file(name)?;
    let mut bytes = Vec::new();
    let read = file.read_to_end(&mut bytes);
    read.map_err(|error| directory.io_error("read", name, &error))?;
    Ok(Some(bytes))
}

/// Puts `content` in the place of the file, or removes it where that is `None`. Guarantees that a crash leaves the old file or
/// the new one; mode and owner stay.
pub fn replace_user_file(file: &Path, content: Option<&[u8]>) -> fs::Result<()> {
    if let Some(parent) = file.parent() {
        state_dir::make_all(parent)?;
    }
    let Some((directory, name)) = place(file) else {
        return Ok(());
    };
    let directory = Dir::open(&directory)?;
    let name = name.as_os_str().as_bytes();
    let there = directory.stat(name)?;
    let Some(content) = content else {
        return there.map_or(Ok(()), |_| directory.unlink(name));
    };
    let draft = AtomicFile {
        stage: &directory,
        to: &directory,
        name,
        fresh: there.is_none(),
        synced: true,
    };
    let failed = |cause: rustix::io::Errno| directory.io_error("write", name, &cause.into());
    draft.write(
        |new| new.write_all(content),
        |new| match &there {
            None => Ok(()),
            Some(old) => {
                let (uid, gid) = (Uid::from_raw(old.uid), Gid::from_raw(old.gid));
                rustix::fs::fchown(new, Some(uid), Some(gid)).map_err(failed)?;
                rustix::fs::fchmod(new, Mode::from_raw_mode(old.mode.into())).map_err(failed)
            }
        },
    )
}
