//! Credentials: what an agent logs in with, the same inside and outside.
//!
//! Inside stands a copy in the agent home, which every run of the agent shares. Both sides are compared with their last common state:
//! the side that changed since wins, and where both did the real file. That is replaced whole, under the lock of the agent home, and
//! only by a login that names no other server: a process that is killed leaves the old file or the new one.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use serde_json::{Map, Value};

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
            // No later run obeys it either.
            Decision::Refuse => match &real {
                Some((bytes, _)) => write_shared(&files, &name, bytes)?,
                None => files.unlink(&name)?,
            },
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
    /// The copy is no login: the real file takes its place, or it goes where there is none, and that is said.
    Refuse,
}

type Content = (Vec<u8>, Meta);

fn decide(real: Option<&Content>, own: Option<&Content>, base: &[u8]) -> Decision {
    let is_base = |one: &Content| blake3::hash(&one.0).to_hex().as_bytes() == base;
    let (real, own) = match (real, own) {
        (None, None) => return Decision::Alike,
        (Some(_), None) => return Decision::TakeReal,
        // The user logged out, whatever a command wrote meanwhile.
        (None, Some(_)) if !base.is_empty() => return Decision::Forget,
        (None, Some(own)) if is_login(&own.0, None) => return Decision::WriteReal,
        (None, Some(_)) => return Decision::Refuse,
        (Some(real), Some(own)) if real.0 == own.0 => return Decision::Alike,
        (Some(real), Some(own)) => (real, own),
    };
    match (is_base(real), is_base(own)) {
        (_, true) => Decision::TakeReal,
        (true, false) if is_login(&own.0, Some(&real.0)) => Decision::WriteReal,
        (true, false) => Decision::Refuse,
        // Both changed: the user's is not overwritten, and no time that a command can set decides.
        (false, false) => Decision::TakeReal,
    }
}

/// Whether a text is a login that may take the place of the real one: an object that names no other place. A login with another
/// server, or with a variable that programs obey, would run what that says.
fn is_login(own: &[u8], real: Option<&[u8]>) -> bool {
    let read = |bytes: &[u8]| -> Option<Map<String, Value>> { serde_json::from_slice(bytes).ok() };
    let Some(own) = read(own).filter(|object| !object.is_empty()) else {
        return false;
    };
    let real = real.and_then(read).map(Value::Object);
    names_no_new_place(&Value::Object(own), real.as_ref())
}

/// Whether nothing in a value names a place that the real one does not name there.
fn names_no_new_place(own: &Value, real: Option<&Value>) -> bool {
    if real == Some(own) {
        return true;
    }
    let is_place = |text: &str| text.contains("://");
    match own {
        Value::Object(own) => own.iter().all(|(key, value)| {
            let real = real.and_then(|real| real.get(key));
            let known = real == Some(value);
            let names = key.to_lowercase();
            let names = PLACES.iter().any(|word| names.contains(word)) || is_place(key);
            known || (!names && names_no_new_place(value, real))
        }),
        Value::Array(own) => own.iter().enumerate().all(|(number, value)| {
            let real = real.and_then(|real| real.get(number));
            names_no_new_place(value, real)
        }),
        Value::String(text) => !is_place(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Words in keys whose values name a server, a program or a variable.
const PLACES: [&str; 9] = [
    "url",
    "host",
    "endpoint",
    "server",
    "issuer",
    "proxy",
    "command",
    "env",
    "wellknown",
];

/// Reads a file that commands write. Removes anything else in its place, and a file beyond the bound.
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

/// Opens a directory of a home; makes it, and those above it, for the owner of the home where they are missing.
fn made(path: &Path) -> Result<Dir> {
    let error = match Dir::open(path) {
        Err(error) if error.is_absent() => error,
        found => return found,
    };
    let above = path.parent().filter(|above| *above != path).ok_or(error)?;
    let model = made(above)?.meta()?;
    let dir = make_all(path)?;
    if rustix::process::geteuid().is_root() {
        let fail = |errno| dir.error("set the owner of", b"", Cause::Os(errno));
        EntryHandle::of(&dir).give_to(&model).map_err(fail)?;
    }
    Ok(dir)
}

/// Puts a real file whole in its place, with the owner and mode that it had; a new one belongs to the owner of its directory.
pub(crate) fn write_real(at: &Path, bytes: &[u8], was: Option<&Meta>, mode: u16) -> Result<()> {
    let parent = made(at.parent().unwrap_or(Path::new("/")))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_names_no_other_place() {
        let is = |own: &str, real: Option<&str>| is_login(own.as_bytes(), real.map(str::as_bytes));
        let real = r#"{"claudeAiOauth":{"accessToken":"a","expiresAt":1,"scopes":["x"]},"resource_url":"qwen.example"}"#;
        let fresh = r#"{"claudeAiOauth":{"accessToken":"b","expiresAt":2,"scopes":["x","y"]},"resource_url":"qwen.example"}"#;
        assert!(is(fresh, Some(real)));
        assert!(is(r#"{"anthropic":{"type":"api","key":"k"}}"#, None));
        assert!(is(
            r#"{"tokens":{"id_token":"e.y.J","account_id":null}}"#,
            None
        ));
        for bad in [
            r#"{"https://evil.example":{"type":"wellknown","key":"NODE_OPTIONS","token":"x"}}"#,
            r#"{"resource_url":"evil.example"}"#,
            r#"{"claudeAiOauth":{"accessToken":"http://evil.example/"}}"#,
            r#"{"a":[{"endpoint":"x"}]}"#,
            "{}",
            "[]",
            "{",
            "",
        ] {
            assert!(!is(bad, Some(real)), "{bad}");
            assert!(!is(bad, None), "{bad}");
        }
    }
}
