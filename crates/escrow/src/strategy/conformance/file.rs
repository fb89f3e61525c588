//! The fixture for single files: one file between others that a strategy must leave alone.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::directory::{fill, looks, plain, text};
use super::{Case, Fixture};
use crate::fs::{Cause, Dir, FsError, private, remove};
use crate::model::ResourcePath;

const CONTENT: &[u8] = b"the file's own\n";

/// Makes cases below a directory that the caller chose, on the file system that matters.
pub struct FileFixture {
    base: PathBuf,
}

impl FileFixture {
    /// Cases are made below `base`, an existing directory.
    pub fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
        }
    }
}

struct FileCase {
    base: Dir,
    name: String,
    original: PathBuf,
    area: PathBuf,
    commit_area: PathBuf,
}

impl Fixture for FileFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-file-{}-{number}", std::process::id());
        let base = private::canonical(&self.base)
            .and_then(|base| Dir::open(&base))
            .map_err(text)?;
        base.make_dir(name.as_bytes(), 0o700).map_err(text)?;
        let room = base.path().join(&name);
        let case = FileCase {
            base,
            name,
            original: room.join("holder").join("known"),
            area: room.join("area"),
            commit_area: room.join("commit"),
        };
        case.build().map_err(text)?;
        Ok(Box::new(case))
    }
}

impl FileCase {
    fn room(&self) -> Result<Dir, FsError> {
        self.base.subdir(self.name.as_bytes())
    }

    fn holder(&self) -> Result<Dir, FsError> {
        self.room()?.subdir(b"holder")
    }

    fn build(&self) -> Result<(), FsError> {
        let room = self.room()?;
        for name in [&b"holder"[..], b"area", b"commit"] {
            room.make_dir(name, 0o700)?;
        }
        let holder = room.subdir(b"holder")?;
        fill(&holder, b"known", CONTENT)?;
        // Further names of the same bytes, and of others.
        holder.hard_link(b"again", &holder, &plain("known"))?;
        holder.make_link(b"link", b"known")?;
        holder.make_dir(b"directory", 0o755)?;
        fill(&holder, b"neighbour", b"somebody else's\n")
    }
}

impl Drop for FileCase {
    fn drop(&mut self) {
        // A case that cannot be removed shows in the directory that the caller chose.
        match remove::remove(&self.base, self.name.as_bytes()) {
            Ok(()) | Err(_) => {}
        }
    }
}

impl Case for FileCase {
    fn original(&self) -> &Path {
        &self.original
    }

    fn area(&self) -> &Path {
        &self.area
    }

    fn commit_area(&self) -> &Path {
        &self.commit_area
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        (plain("known"), CONTENT.to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        None
    }

    fn on_the_way(&self) -> Vec<ResourcePath> {
        Vec::new()
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        vec![
            ResourcePath::root(),
            plain("known/below"),
            plain("new"),
            plain("neighbour"),
        ]
    }

    fn ways_out(&self) -> Vec<ResourcePath> {
        ["again", "link", "neighbour", "directory/new"]
            .map(plain)
            .to_vec()
    }

    fn fingerprint(&self) -> Result<String, String> {
        let read = || -> Result<String, FsError> {
            let mut lines = Vec::new();
            for entry in self.holder()?.entries()? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                lines.push(format!("{name} {:?}", looks(&entry.meta)));
            }
            Ok(lines.join("\n"))
        };
        read().map_err(text)
    }

    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
        let read = || -> Result<Vec<u8>, FsError> {
            let holder = self.holder()?;
            let (mut file, _) = holder.file(b"known")?;
            let mut bytes = Vec::new();
            let read = file.read_to_end(&mut bytes);
            read.map_err(|_| holder.error("read", b"known", Cause::Os(rustix::io::Errno::IO)))?;
            Ok(bytes)
        };
        Ok(vec![(plain("known"), read().map_err(text)?)])
    }

    fn replace_original(&self) -> Result<(), String> {
        let room = self.room().map_err(text)?;
        let replace = || -> Result<(), FsError> {
            room.rename(b"holder", &room, b"moved away")?;
            room.make_dir(b"holder", 0o700)?;
            fill(&room.subdir(b"holder")?, b"known", CONTENT)
        };
        replace().map_err(text)
    }

    fn work_in(&self, directory: &Path, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
        let directory = match directory == self.original {
            true => self.holder().map_err(text)?,
            false => Dir::open(directory).map_err(text)?,
        };
        let work = || -> Result<(), FsError> {
            let (dir, name) = directory.parent(path)?;
            dir.unlink(name)?;
            fill(&dir, name, content)
        };
        work().map_err(text)
    }
}
