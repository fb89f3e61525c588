//! The fixture for directories: a small tree with one of each thing that strategies get wrong.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::super::{Access, Target};
use super::fixture_dir::{FixtureDir, fill, looks, outside, plain, rewrite, text};
use super::{Case, Fixture};
use crate::fs::walk::walk;
use crate::fs::{Dir, FsError, Meta};
use crate::model::{EntryKind, ResourceId, ResourcePath, SystemIdSource};

/// Makes cases below a directory that the caller chose, on the file system that matters.
pub struct DirectoryFixture {
    base: PathBuf,
}

impl DirectoryFixture {
    /// Cases are made below `base`, an existing directory.
    pub fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
        }
    }
}

struct DirectoryCase {
    room: FixtureDir,
    original: PathBuf,
}

impl Fixture for DirectoryFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        let room = FixtureDir::new(&self.base)?;
        let case = DirectoryCase {
            original: room.path().join("original"),
            room,
        };
        case.build().map_err(text)?;
        Ok(Box::new(case))
    }
}

impl DirectoryCase {
    fn build(&self) -> Result<(), FsError> {
        let room = self.room.open()?;
        for name in [&b"original"[..], b"outside"] {
            room.make_dir(name, 0o700)?;
        }
        fill(&room.subdir(b"outside")?, b"secret", b"outside\n")?;
        let original = room.subdir(b"original")?;
        original.make_dir(b"deep", 0o755)?;
        let deep = original.subdir(b"deep")?;
        deep.make_dir(b"er", 0o750)?;
        fill(&original, b"known", b"the original's own\n")?;
        fill(&original, b"empty", b"")?;
        fill(&original, b"- odd\n\xff", b"odd name\n")?;
        fill(&deep.subdir(b"er")?, b"file", &[7; 70_000])?;
        original.make_link(b"out", b"../outside")?;
        original.make_link(b"secret", b"../outside/secret")?;
        original.make_link(b"broken", b"nowhere")?;
        original.make_link(b"root", b"/")?;
        original.make_fifo(b"pipe", 0o600)
    }
}

/// Every entry of a tree, the root among them, with what is `seen` of it and where links point.
fn entries(dir: &Dir, seen: fn(&Meta) -> Meta) -> Result<Vec<(ResourcePath, String)>, FsError> {
    let all = Mutex::new(Vec::new());
    walk(dir, (), |visit| {
        let mut next = Vec::new();
        let mut found = Vec::new();
        if visit.path.is_root() {
            let meta = visit.dir.meta()?;
            found.push((visit.path.clone(), format!("{:?}", seen(&meta))));
        }
        for entry in visit.entries {
            let path = visit.path.join(&entry.name);
            let mut text = format!("{:?}", seen(&entry.meta));
            if entry.meta.kind == EntryKind::Symlink {
                let target = visit.dir.read_link(&entry.name)?;
                text = format!("{text} {}", target.escape_ascii());
            }
            found.push((path, text));
            if entry.meta.is_dir() {
                next.push((entry.name, ()));
            }
        }
        all.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .extend(found);
        Ok::<_, FsError>(next)
    })?;
    Ok(all
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner))
}

impl Case for DirectoryCase {
    fn target(&self) -> Target {
        Target::at(
            ResourceId::new(&SystemIdSource),
            "fs-directory",
            &self.original,
        )
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
        (plain("known"), b"the original's own\n".to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        Some(plain("deep/new/absent"))
    }

    fn on_the_way(&self) -> Vec<ResourcePath> {
        vec![plain("deep/new")]
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        vec![
            ResourcePath::root(),
            plain("deep"),
            plain("pipe"),
            plain("broken"),
            plain("known/below"),
        ]
    }

    fn ways_out(&self) -> Vec<ResourcePath> {
        let names = [
            "out",
            "out/secret",
            "out/new",
            "secret",
            "root",
            "root/etc/passwd",
        ];
        names.map(plain).to_vec()
    }

    fn fingerprint(&self) -> Result<String, String> {
        let root = self.room.open().map_err(text)?;
        let mut lines = Vec::new();
        for name in [&b"original"[..], b"outside"] {
            let dir = root.subdir(name).map_err(text)?;
            let found = entries(&dir, looks).map_err(text)?.into_iter();
            lines.extend(found.map(|(path, what)| format!("{path:?} {what}")));
        }
        lines.sort();
        Ok(lines.join("\n"))
    }

    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String> {
        let original = Dir::open(&self.original).map_err(text)?;
        Ok(entries(&original, outside)
            .map_err(text)?
            .into_iter()
            .collect())
    }

    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
        let found = Mutex::new(Vec::new());
        let original = Dir::open(&self.original).map_err(text)?;
        walk(&original, (), |visit| {
            let mut next = Vec::new();
            for entry in visit.entries {
                match entry.meta.kind {
                    EntryKind::Directory => next.push((entry.name, ())),
                    EntryKind::File => {
                        let (mut file, _) = visit.dir.file(&entry.name)?;
                        let mut bytes = Vec::new();
                        file.read_to_end(&mut bytes).map_err(|_| {
                            let cause = crate::fs::Cause::Os(rustix::io::Errno::IO);
                            visit.dir.error("read", &entry.name, cause)
                        })?;
                        let path = visit.path.join(&entry.name);
                        found
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner)
                            .push((path, bytes));
                    }
                    _ => {}
                }
            }
            Ok::<_, FsError>(next)
        })
        .map_err(text)?;
        Ok(found
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn replace_original(&self) -> Result<bool, String> {
        let room = self.room.open().map_err(text)?;
        room.rename(b"original", &room, b"moved away")
            .map_err(text)?;
        room.make_dir(b"original", 0o700).map_err(text)?;
        Ok(true)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
        rewrite(&self.original, path, content)
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
