//! The fixture for single files: one file between others that a strategy must leave alone.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::{Access, Target};
use super::fixture_dir::{FixtureDir, fill, looks, outside, plain, rewrite, text};
use super::{Case, Fixture};
use crate::fs::{Cause, Dir, FsError, Meta};
use crate::model::{ResourceId, ResourcePath, SystemIdSource};

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
    room: FixtureDir,
    original: PathBuf,
}

impl Fixture for FileFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        let room = FixtureDir::new(&self.base)?;
        let case = FileCase {
            original: room.path().join("holder").join("known"),
            room,
        };
        case.build().map_err(text)?;
        Ok(Box::new(case))
    }
}

impl FileCase {
    fn holder(&self) -> Result<Dir, FsError> {
        self.room.open()?.subdir(b"holder")
    }

    fn build(&self) -> Result<(), FsError> {
        self.room.open()?.make_dir(b"holder", 0o700)?;
        let holder = self.holder()?;
        fill(&holder, b"known", CONTENT)?;
        // Further names of the same bytes, and of others.
        holder.hard_link(b"again", &holder, &plain("known"))?;
        holder.make_link(b"link", b"known")?;
        holder.make_dir(b"directory", 0o755)?;
        fill(&holder, b"neighbour", b"somebody else's\n")
    }
}

impl FileCase {
    /// The file and its neighbours, with what is `seen` of each.
    fn entries(&self, seen: fn(&Meta) -> Meta) -> Result<Vec<(ResourcePath, String)>, FsError> {
        let mut found = Vec::new();
        for entry in self.holder()?.entries()? {
            let path = ResourcePath::root().join(&entry.name);
            found.push((path, format!("{:?}", seen(&entry.meta))));
        }
        Ok(found)
    }
}

impl Case for FileCase {
    fn target(&self) -> Target {
        Target::at(ResourceId::new(&SystemIdSource), "fs-file", &self.original)
    }

    fn area(&self) -> Option<&Path> {
        Some(self.room.area())
    }

    fn area_entries(&self) -> Result<usize, String> {
        self.room.area_entries()
    }

    fn commit_area(&self) -> Result<Option<PathBuf>, String> {
        self.room.commit_area()
    }

    fn clear_commit_areas(&self) -> Result<(), String> {
        self.room.clear_commit_areas()
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
        let found = self.entries(looks).map_err(text)?.into_iter();
        let lines: Vec<String> = found.map(|(path, what)| format!("{path} {what}")).collect();
        Ok(lines.join("\n"))
    }

    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String> {
        let found = self.entries(outside).map_err(text)?;
        Ok(found.into_iter().collect())
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

    fn replace_original(&self) -> Result<bool, String> {
        let room = self.room.open().map_err(text)?;
        let replace = || -> Result<(), FsError> {
            room.rename(b"holder", &room, b"moved away")?;
            room.make_dir(b"holder", 0o700)?;
            fill(&room.subdir(b"holder")?, b"known", CONTENT)
        };
        replace().map_err(text)?;
        Ok(true)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
        rewrite(&self.room.path().join("holder"), path, content)
    }

    fn work_through(
        &self,
        access: &Access,
        path: &ResourcePath,
        content: &[u8],
    ) -> Result<(), String> {
        let cwd = access.cwd.as_ref().ok_or("it gives no path")?;
        rewrite(cwd.as_path(), path, content)
    }
}
