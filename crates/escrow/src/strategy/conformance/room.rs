//! The place of one case, gone with it; and the small words of all fixtures.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs::{Cause, Dir, FsError, Meta, Stamp, private, remove};
use crate::model::ResourcePath;

/// A private directory with an area for a sandbox and one for its commit.
pub(super) struct Room {
    base: Dir,
    name: String,
    path: PathBuf,
    area: PathBuf,
    commit_area: PathBuf,
}

impl Room {
    /// A new one below `base`, an existing directory.
    pub(super) fn new(base: &Path) -> Result<Self, String> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let base = private::canonical(base)
            .and_then(|base| Dir::open(&base))
            .map_err(text)?;
        base.make_dir(name.as_bytes(), 0o700).map_err(text)?;
        let path = base.path().join(&name);
        let room = Self {
            base,
            name,
            area: path.join("area"),
            commit_area: path.join("commit"),
            path,
        };
        let dir = room.open().map_err(text)?;
        for name in [&b"area"[..], b"commit"] {
            dir.make_dir(name, 0o700).map_err(text)?;
        }
        Ok(room)
    }

    pub(super) fn open(&self) -> Result<Dir, FsError> {
        self.base.subdir(self.name.as_bytes())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn area(&self) -> &Path {
        &self.area
    }

    pub(super) fn commit_area(&self) -> &Path {
        &self.commit_area
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // One that cannot be removed shows in the directory that the caller chose.
        match remove::remove(&self.base, self.name.as_bytes()) {
            Ok(()) | Err(_) => {}
        }
    }
}

pub(super) fn text(error: FsError) -> String {
    format!("{error}: {}", error.cause)
}

pub(super) fn plain(path: &str) -> ResourcePath {
    ResourcePath::parse(path.as_bytes()).expect("a path of the fixture")
}

pub(super) fn fill(dir: &Dir, name: &[u8], content: &[u8]) -> Result<(), FsError> {
    let mut file = dir.create(name, 0o644)?;
    file.write_all(content).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        dir.error("write", name, Cause::Os(errno))
    })
}

/// Everything about an entry but when it was last read. Its ctime stands for the content too:
/// nothing can be changed without moving it.
pub(super) fn looks(meta: &Meta) -> Meta {
    Meta {
        atime: Stamp::default(),
        blocks: 0,
        ..*meta
    }
}

/// What of an entry can be brought back. The size of a directory is the file system's business.
pub(super) fn outside(meta: &Meta) -> Meta {
    Meta {
        size: match meta.is_dir() {
            true => 0,
            false => meta.size,
        },
        ino: 0,
        ctime: Stamp::default(),
        born: Stamp::default(),
        ..looks(meta)
    }
}
