//! What all directory strategies share: where original and area are, one way to write a file,
//! one way to compare two entries.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Result, StrategyError};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, FsError, Handle, Meta, content, durable};
use crate::model::text::Location;
use crate::model::{ChangeKind, ResourcePath, SandboxRef};

/// Where staged files wait inside an area.
pub(super) const STAGE: &[u8] = b"stage";

/// How often a tree that changes under our eyes is looked at again.
const TRIES: usize = 8;

/// The directory that was sandboxed: its path, and the inode that tells it from another
/// directory that was moved there since.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Original {
    at: Location,
    inode: u64,
}

impl Original {
    /// Opens a directory for the first time.
    pub(super) fn take(at: &std::path::Path) -> Result<(Self, Dir)> {
        let dir = Dir::open(at)?;
        let original = Self {
            at: Location::from(at),
            inode: dir.meta()?.ino,
        };
        Ok((original, dir))
    }

    /// Opens it again, if it is still the same directory.
    pub(super) fn open(&self) -> Result<Dir> {
        let dir = Dir::open(self.at.as_path())?;
        if dir.meta()?.ino != self.inode {
            return Err(StrategyError::Replaced {
                original: self.at.clone(),
            });
        }
        Ok(dir)
    }
}

/// What a strategy wrote into [`SandboxRef::metadata`].
pub(super) fn metadata<T: DeserializeOwned>(sandbox: &SandboxRef) -> Result<T> {
    serde_json::from_value(sandbox.metadata.clone()).map_err(|error| StrategyError::Damaged {
        what: format!("its metadata cannot be read ({error})"),
    })
}

/// The same as a value to store.
pub(super) fn stored(metadata: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(metadata).expect("plain structs of text and numbers are JSON")
}

/// Says of a failed access to `path` what the caller can do about it.
pub(super) fn explain(path: &ResourcePath, error: FsError) -> StrategyError {
    let path = path.clone();
    match error.cause {
        _ if error.is_absent() => StrategyError::NotThere { path },
        Cause::Kind(kind) => StrategyError::NotAFile { path, kind },
        _ if error.leaves() => StrategyError::Leaves {
            path,
            source: error,
        },
        _ => StrategyError::Fs(error),
    }
}

/// Opens a file of a plain tree for reading.
pub(super) fn read(root: &Dir, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
    if path.is_root() {
        return Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: "directory",
        });
    }
    let (file, _) = root.file_path(path).map_err(|error| explain(path, error))?;
    Ok(Box::new(file))
}

/// The directory at `path` in a plain tree, made with all above it where it is missing.
pub(super) fn make_directories(root: &Dir, path: &ResourcePath) -> Result<Dir> {
    let mut dir = root.again()?;
    for name in path.parts() {
        dir = match dir.subdir(name) {
            Err(error) if error.is(Errno::NOENT) => {
                dir.make_dir(name, 0o777)?;
                dir.subdir(name)?
            }
            Err(error) if error.is(Errno::NOTDIR) => {
                return Err(FsError {
                    cause: Cause::Kind("file, where a directory is needed"),
                    ..error
                }
                .into());
            }
            answer => answer.map_err(|error| explain(path, error))?,
        };
    }
    Ok(dir)
}

/// The file that `content` is about to replace, if one is there.
///
/// Anything but a file is refused: a link would be followed, a directory lost.
pub(super) fn replaceable(meta: Option<Meta>, path: &ResourcePath) -> Result<Option<Meta>> {
    match meta {
        Some(meta) if !meta.is_file() => Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: meta.kind.word(),
        }),
        meta => Ok(meta),
    }
}

/// Puts a file with this content at `name` in `to`, wholly or not at all, by way of `stage`.
///
/// `before` is what it replaces, whose metadata it keeps.
pub(super) fn put(
    stage: &Dir,
    to: &Dir,
    path: &ResourcePath,
    name: &[u8],
    before: Option<(Meta, Xattrs)>,
    content: &mut dyn Read,
) -> Result<ChangeKind> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let staged = format!(
        ".escrow-{}-{}",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed)
    );
    let kind = match before {
        Some(_) => ChangeKind::Modified,
        None => ChangeKind::Added,
    };
    let mut unreadable = None;
    let written = durable::replace(
        stage,
        staged.as_bytes(),
        to,
        name,
        |file| pour(content, file, &mut unreadable),
        |file| match before {
            Some((meta, attributes)) => keep(to, name, file, meta, attributes),
            None => Ok(()),
        },
    );
    match (written, unreadable) {
        (Err(_), Some(source)) => Err(StrategyError::Input {
            path: path.clone(),
            source,
        }),
        (Err(error), None) => Err(error.into()),
        (Ok(()), _) => Ok(kind),
    }
}

/// Copies `content` into `file`, telling an error of the one from an error of the other.
fn pour(
    content: &mut dyn Read,
    file: &mut BufWriter<&File>,
    unreadable: &mut Option<std::io::Error>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => file.write_all(&buffer[..length])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                *unreadable = Some(error);
                return Err(std::io::ErrorKind::Other.into());
            }
        }
    }
}

/// Writes a file of a plain tree; by way of `stage`, or else of a private name beside it.
pub(super) fn write(
    root: &Dir,
    stage: Option<&Dir>,
    path: &ResourcePath,
    content: &mut dyn Read,
) -> Result<ChangeKind> {
    let Some((parent, name)) = path.split() else {
        return Err(StrategyError::NotAFile {
            path: path.clone(),
            kind: "directory",
        });
    };
    let dir = make_directories(root, &parent)?;
    let before = match replaceable(dir.stat(name)?, path)? {
        Some(meta) => Some((meta, xattrs(&dir, name)?)),
        None => None,
    };
    put(stage.unwrap_or(&dir), &dir, path, name, before, content)
}

/// Gives a rewritten file the metadata of the old one, less what any write takes away.
fn keep(
    dir: &Dir,
    name: &[u8],
    file: &File,
    mut meta: Meta,
    mut attributes: Xattrs,
) -> crate::fs::Result<()> {
    meta.mode &= !0o6000;
    attributes.retain(|(attribute, _)| attribute != b"security.capability");
    let lost = Handle::of(file)
        .dress_timeless(&meta, &attributes)
        .map_err(|errno| dir.error("set the metadata of", name, Cause::Os(errno)))?;
    match lost.is_empty() {
        true => Ok(()),
        false => Err(dir.error("keep the attributes of", name, Cause::Os(Errno::PERM))),
    }
}

/// The attributes of `name` in `dir`.
pub(super) fn xattrs(dir: &Dir, name: &[u8]) -> Result<Xattrs> {
    let handle = dir.handle(name)?;
    xattr::read(&handle).map_err(|errno| {
        dir.error("read the attributes of", name, Cause::Os(errno))
            .into()
    })
}

/// Looks again where something vanished between being listed and being looked at: others may be
/// at work in the tree.
pub(super) fn steady<T>(look: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..TRIES {
        match look() {
            Err(StrategyError::Fs(error)) if error.is_absent() => {}
            answer => return answer,
        }
    }
    look()
}

/// Whether two regular files hold the same bytes; sizes are equal already.
pub(super) fn same_content(a: (&Dir, &[u8]), b: (&Dir, &[u8])) -> Result<bool> {
    let (left, _) = a.0.file(a.1)?;
    let (right, _) = b.0.file(b.1)?;
    content::same(&left, &right).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        a.0.error("compare", a.1, Cause::Os(errno)).into()
    })
}
