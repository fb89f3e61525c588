//! Credentials: what an agent logs in with, the same inside and outside.
//!
//! Inside stands a copy in the agent home, which every run of the agent shares: a mount of one file, since a link would be replaced
//! by the first refresh. Both sides are compared with what they were
//! when they were last alike: the side that changed wins, and of two the newer one. The real file is replaced whole, under the lock of
//! the agent home, and only by content that parses. So of two sessions that refresh one rotating login the last one is kept, and a
//! process that is killed leaves the old file or the new one.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use super::home::{AgentHome, flat};
use super::paths::{AgentPaths, PresetEntry};
use crate::fs::atomic_file::AtomicFile;
use crate::fs::state_dir::{make_all, room};
use crate::fs::{Cause, Dir, EntryHandle, Meta, Result, remove};

/// The largest file that is taken for a credential.
pub(crate) const MOST: u64 = 1 << 20;

/// A credential whose real file was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncedCredential {
    /// Where the real file is.
    pub(crate) entry: PresetEntry,
    /// Whether what stood inside did not parse, so that the real file was kept.
    pub(crate) is_refused: bool,
}

/// Brings the credentials of an agent to one state on both sides. The caller holds the lock of the agent home.
pub(crate) fn sync(home: &AgentHome, paths: &AgentPaths) -> Result<Vec<SyncedCredential>> {
    let (files, bases) = (home.files()?, room(&home.dir, b"bases")?);
    let mut synced = Vec::new();
    for entry in paths.entries(&paths.preset.credentials) {
        let Some(name) = flat(&entry.name) else {
            continue;
        };
        let real = read_real(&entry.at, MOST)?;
        let own = read_own(&files, &name, MOST)?;
        let base = bases.read(&name).unwrap_or_default();
        let decided = decide(real.as_ref(), own.as_ref(), &base);
        match decided {
            Decision::Alike => {}
            Decision::TakeReal => {
                let (bytes, _) = real.as_ref().expect("it is there where it is taken");
                write_shared(&files, &name, bytes)?;
            }
            Decision::Forget => files.unlink(&name)?,
            Decision::WriteReal => {
                let (bytes, _) = own.as_ref().expect("it is there where it is written");
                write_real(&entry.at, bytes, real.as_ref().map(|(_, meta)| meta), 0o600)?;
            }
            Decision::Refuse => {
                if let Some((bytes, _)) = &real {
                    write_shared(&files, &name, bytes)?;
                }
            }
        }
        if matches!(decided, Decision::WriteReal | Decision::Refuse) {
            let is_refused = decided == Decision::Refuse;
            synced.push(SyncedCredential {
                entry: entry.clone(),
                is_refused,
            });
        }
        let alike = match decided {
            Decision::WriteReal => own,
            _ => real,
        };
        match alike {
            Some((bytes, _)) => {
                let now = blake3::hash(&bytes).to_hex();
                if base != now.as_bytes() {
                    private_file(&bases, &name, now.as_bytes())?;
                }
            }
            None if !base.is_empty() => bases.unlink(&name)?,
            None => {}
        }
    }
    Ok(synced)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Alike,
    /// The copy becomes what the real file is.
    TakeReal,
    /// The real file becomes what the copy is.
    WriteReal,
    /// The real file is gone outside, and so goes the copy.
    Forget,
    /// The copy is no credential any more: it becomes what the real file is, and that is said.
    Refuse,
}

type Content = (Vec<u8>, Meta);

fn decide(real: Option<&Content>, own: Option<&Content>, base: &[u8]) -> Decision {
    let is_base = |one: &Content| blake3::hash(&one.0).to_hex().as_bytes() == base;
    let (real, own) = match (real, own) {
        (None, None) => return Decision::Alike,
        (Some(_), None) => return Decision::TakeReal,
        (None, Some(own)) if is_base(own) => return Decision::Forget,
        (None, Some(own)) if parses(&own.0) => return Decision::WriteReal,
        (None, Some(_)) => return Decision::Refuse,
        (Some(real), Some(own)) if real.0 == own.0 => return Decision::Alike,
        (Some(real), Some(own)) => (real, own),
    };
    match (is_base(real), is_base(own)) {
        (_, true) => Decision::TakeReal,
        _ if !parses(&own.0) => Decision::Refuse,
        (true, false) => Decision::WriteReal,
        (false, false) if own.1.mtime > real.1.mtime => Decision::WriteReal,
        (false, false) => Decision::TakeReal,
    }
}

/// Whether a text is what agents keep a login in: an object that holds something.
fn parses(bytes: &[u8]) -> bool {
    let read: std::result::Result<serde_json::Map<String, serde_json::Value>, _> =
        serde_json::from_slice(bytes);
    read.is_ok_and(|object| !object.is_empty())
}

/// A file that commands write: what is no file, or too large for one, goes.
pub(crate) fn read_own(dir: &Dir, name: &[u8], most: u64) -> Result<Option<Content>> {
    let found = read(dir, name, most)?;
    if found.is_none() && dir.stat(name)?.is_some() {
        remove::remove(dir, name)?;
    }
    Ok(found)
}

/// A file of a directory that commands write: nothing there is followed, waited for, or read beyond a bound.
pub(crate) fn read(dir: &Dir, name: &[u8], most: u64) -> Result<Option<Content>> {
    match dir.stat(name)? {
        Some(meta) if meta.is_file() && meta.size <= most => {}
        _ => return Ok(None),
    }
    let (file, meta) = match dir.file(name) {
        Err(error) if error.is_absent() => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    let read = file.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|error| dir.io_error("read", name, &error))?;
    Ok((bytes.len() as u64 <= most).then_some((bytes, meta)))
}

/// Writes a file that runs have mounted: into the file that is there, so that they see it.
pub(crate) fn write_shared(dir: &Dir, name: &[u8], bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut file = dir.write_over(name, 0o600)?;
    let mut write = || -> std::io::Result<()> {
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| dir.io_error("write", name, &error))
}

/// The real file at a path.
pub(crate) fn read_real(at: &Path, most: u64) -> Result<Option<Content>> {
    match Dir::open(at.parent().unwrap_or(Path::new("/"))) {
        Err(error) if error.is_absent() || error.is(Errno::NOTDIR) => Ok(None),
        dir => {
            let (dir, name) = (dir?, at.file_name().unwrap_or_default().as_bytes());
            match (read(&dir, name, most)?, dir.stat(name)?) {
                // What is there is the user's, and not to be replaced by something else.
                (None, Some(meta)) if meta.is_file() => {
                    Err(dir.error("read", name, Cause::Damaged("it is too large")))
                }
                (None, Some(meta)) => Err(dir.error("read", name, Cause::Kind(meta.kind.word()))),
                (found, _) => Ok(found),
            }
        }
    }
}

/// Replaces a file that is this user's alone.
pub(crate) fn private_file(dir: &Dir, name: &[u8], bytes: &[u8]) -> Result<()> {
    let made = AtomicFile {
        stage: dir,
        to: dir,
        name,
        fresh: false,
        synced: true,
    };
    let (mode, fail) = (0o600, |errno| {
        dir.error("set the mode of", name, Cause::Os(errno))
    });
    made.write(
        |file| std::io::Write::write_all(file, bytes),
        |file| EntryHandle::of(file).set_mode(mode).map_err(fail),
    )
}

/// Puts a real file whole in its place, with the owner and mode that it had; a new one belongs to the owner of its directory.
pub(crate) fn write_real(at: &Path, bytes: &[u8], was: Option<&Meta>, mode: u16) -> Result<()> {
    let parent = at.parent().unwrap_or(Path::new("/"));
    let parent = match Dir::open(parent) {
        Err(error) if error.is_absent() => make_all(parent)?,
        dir => dir?,
    };
    let name = at.file_name().unwrap_or_default().as_bytes();
    let made = AtomicFile {
        stage: &parent,
        to: &parent,
        name,
        fresh: false,
        synced: true,
    };
    let model = match was {
        Some(meta) => *meta,
        None => Meta {
            mode,
            ..parent.meta()?
        },
    };
    made.write(
        |file| std::io::Write::write_all(file, bytes),
        |file| {
            let fail = |errno| parent.error("set the mode of", name, Cause::Os(errno));
            let handle = EntryHandle::of(file);
            // Root works in the home directory of another user now and then.
            if rustix::process::geteuid().is_root() {
                handle.give_to(&model).map_err(fail)?;
            }
            handle.set_mode(model.mode & 0o777).map_err(fail)
        },
    )
}
