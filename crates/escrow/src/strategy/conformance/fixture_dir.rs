//! The temporary directory of one conformance case, and helpers of all fixtures.

use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs::state_dir;
use crate::fs::{Dir, FsError, Meta, Stamp, remove};
use crate::model::ResourcePath;

/// A private directory with an area for a sandbox and one for its commit.
pub struct FixtureDir {
    base: Dir,
    name: String,
    path: PathBuf,
    area: PathBuf,
    commits: Cell<u32>,
}

impl FixtureDir {
    /// A new one below `base`, an existing directory.
    pub(in crate::strategy) fn new(base: &Path) -> Result<Self, String> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let base = state_dir::canonical(base)
            .and_then(|base| Dir::open(&base))
            .map_err(text)?;
        base.make_dir(name.as_bytes(), 0o700).map_err(text)?;
        let path = base.path().join(&name);
        let room = Self {
            base,
            name,
            area: path.join("area"),
            commits: Cell::new(0),
            path,
        };
        let dir = room.open().map_err(text)?;
        dir.make_dir(b"area", 0o700).map_err(text)?;
        Ok(room)
    }

    pub(in crate::strategy) fn open(&self) -> Result<Dir, FsError> {
        self.base.subdir(self.name.as_bytes())
    }

    pub(in crate::strategy) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::strategy) fn area(&self) -> &Path {
        &self.area
    }

    pub(in crate::strategy) fn area_entries(&self) -> Result<usize, String> {
        let area = self.open().and_then(|dir| dir.subdir(b"area"));
        let entries = area.and_then(|area| area.entries()).map_err(text)?;
        Ok(entries.len())
    }

    /// Another directory for a commit.
    pub(in crate::strategy) fn commit_area(&self) -> Result<Option<PathBuf>, String> {
        let name = format!("commit-{}", self.commits.get());
        self.commits.set(self.commits.get() + 1);
        let made = self
            .open()
            .and_then(|dir| dir.make_dir(name.as_bytes(), 0o700));
        made.map_err(text)?;
        Ok(Some(self.path.join(name)))
    }

    pub(in crate::strategy) fn clear_commit_areas(&self) -> Result<(), String> {
        let dir = self.open().map_err(text)?;
        for number in 0..self.commits.get() {
            let name = format!("commit-{number}");
            remove::remove(&dir, name.as_bytes()).map_err(text)?;
        }
        Ok(())
    }
}

impl Drop for FixtureDir {
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
    file.write_all(content)
        .map_err(|error| dir.io_error("write", name, &error))
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

/// Puts another file with this content at a path of a directory.
pub(super) fn rewrite(directory: &Path, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
    let root = Dir::open(directory).map_err(text)?;
    let (dir, name) = root.parent(path).map_err(text)?;
    dir.unlink(name).map_err(text)?;
    fill(&dir, name, content).map_err(text)
}
