//! The fixtures for directories, with one of each thing that strategies get wrong, and for single files between others
//! that a strategy must leave alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::{Access, Target};
use super::fixture_dir::{FixtureDir, fill, looks, outside, plain, rewrite, text};
use super::{Case, Fixture};
use crate::fs::walk::{Shared, walk};
use crate::fs::{Dir, FsError, Meta};
use crate::model::resource::{FS_DIRECTORY, FS_FILE, GIT_CHECKOUT};
use crate::model::{EntryKind, ResourceId, ResourcePath, SystemIdSource};

const CONTENT: &[u8] = b"the original's own\n";

/// Makes directories below a directory that the caller chose, on the file system that matters.
pub struct DirectoryFixture {
    base: PathBuf,
    kind: &'static str,
}

/// The same for single files.
pub struct FileFixture {
    base: PathBuf,
}

impl DirectoryFixture {
    /// Cases are made below `base`, an existing directory.
    pub fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            kind: FS_DIRECTORY,
        }
    }

    /// The same with a git repository in each, which has no commit yet.
    pub fn checkout(base: &Path) -> Self {
        Self {
            kind: GIT_CHECKOUT,
            ..Self::new(base)
        }
    }
}

impl FileFixture {
    /// Cases are made below `base`, an existing directory.
    pub fn new(base: &Path) -> Self {
        let base = base.to_owned();
        Self { base }
    }
}

impl Fixture for DirectoryFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        let case = PathCase::new(&self.base, self.kind)?;
        case.build_directory().map_err(text)?;
        if self.kind == GIT_CHECKOUT {
            build_repository(&case.original().map_err(text)?).map_err(text)?;
        }
        Ok(Box::new(case))
    }
}

impl Fixture for FileFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        let case = PathCase::new(&self.base, FS_FILE)?;
        build_file(&case.original().map_err(text)?).map_err(text)?;
        Ok(Box::new(case))
    }
}

struct PathCase {
    room: FixtureDir,
    /// The directory, or the one that holds the file.
    original: PathBuf,
    kind: &'static str,
    /// The resource is one file in it.
    file: bool,
}

/// The file, and further names of the same bytes and of others.
fn build_file(holder: &Dir) -> Result<(), FsError> {
    fill(holder, b"known", CONTENT)?;
    holder.hard_link(b"again", holder, &plain("known"))?;
    holder.make_link(b"link", b"known")?;
    holder.make_dir(b"directory", 0o755)?;
    fill(holder, b"neighbour", b"another's\n")
}

/// A git repository without a commit.
fn build_repository(checkout: &Dir) -> Result<(), FsError> {
    checkout.make_dir(b".git", 0o755)?;
    let dir = checkout.subdir(b".git")?;
    for name in [&b"objects"[..], b"refs"] {
        dir.make_dir(name, 0o755)?;
    }
    dir.subdir(b"objects")?.make_dir(b"pack", 0o755)?;
    fill(&dir, b"HEAD", b"ref: refs/heads/main\n")?;
    fill(&dir, b"config", b"[core]\n\trepositoryformatversion = 0\n")
}

/// Whether a path belongs to a repository, which a sandbox has as its own.
fn is_repository(path: &ResourcePath) -> bool {
    path.lies_in(&plain(".git"))
}

impl PathCase {
    fn new(base: &Path, kind: &'static str) -> Result<Self, String> {
        let room = FixtureDir::new(base)?;
        let made = room.open().and_then(|dir| {
            let mut names = [&b"original"[..], b"outside"].into_iter();
            names.try_for_each(|name| dir.make_dir(name, 0o700))
        });
        made.map_err(text)?;
        Ok(Self {
            original: room.path().join("original"),
            room,
            kind,
            file: kind == FS_FILE,
        })
    }

    fn original(&self) -> Result<Dir, FsError> {
        self.room.open()?.subdir(b"original")
    }

    fn build_directory(&self) -> Result<(), FsError> {
        let outside = self.room.open()?.subdir(b"outside")?;
        fill(&outside, b"secret", b"outside\n")?;
        let original = self.original()?;
        original.make_dir(b"deep", 0o755)?;
        let deep = original.subdir(b"deep")?;
        deep.make_dir(b"er", 0o750)?;
        fill(&original, b"known", CONTENT)?;
        fill(&original, b"empty", b"")?;
        fill(&original, b"- odd\n\xff", b"odd name\n")?;
        fill(&deep.subdir(b"er")?, b"file", &[7; 70_000])?;
        original.make_link(b"out", b"../outside")?;
        original.make_link(b"secret", b"../outside/secret")?;
        original.make_link(b"broken", b"nowhere")?;
        original.make_link(b"root", b"/")?;
        original.make_fifo(b"pipe", 0o600)
    }

    /// Every entry of a tree, with what is `seen` of it and where links point; its root too, but not that which holds a
    /// file.
    fn entries(
        &self,
        dir: &Dir,
        seen: fn(&Meta) -> Meta,
    ) -> Result<Vec<(ResourcePath, String)>, FsError> {
        let all = Shared::new(Vec::new());
        if !self.file {
            let root = format!("{:?}", seen(&dir.meta()?));
            all.lock().push((ResourcePath::root(), root));
        }
        walk(dir, (), |visit| {
            let mut next = Vec::new();
            for entry in visit.entries {
                let path = visit.path.join(&entry.name);
                let mut text = format!("{:?}", seen(&entry.meta));
                if entry.meta.kind == EntryKind::Symlink {
                    let target = visit.dir.read_link(&entry.name)?;
                    text = format!("{text} {}", target.escape_ascii());
                }
                all.lock().push((path, text));
                if entry.meta.is_dir() {
                    next.push((entry.name, ()));
                }
            }
            Ok::<_, FsError>(next)
        })?;
        Ok(all.into_inner())
    }
}

impl Case for PathCase {
    fn target(&self) -> Target {
        let id = ResourceId::new(&SystemIdSource);
        match self.file {
            true => Target::at(id, self.kind, &self.original.join("known")),
            false => Target::at(id, self.kind, &self.original),
        }
    }

    fn room(&self) -> Option<&FixtureDir> {
        Some(&self.room)
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        (plain("known"), CONTENT.to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        (!self.file).then(|| plain("deep/new/absent"))
    }

    fn on_the_way(&self) -> Vec<ResourcePath> {
        match self.file {
            true => Vec::new(),
            false => vec![plain("deep/new")],
        }
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        let names: &[&str] = match self.file {
            true => &["known/below", "new", "neighbour"],
            false => &["deep", "pipe", "broken", "known/below"],
        };
        let names = names.iter().copied().map(plain);
        [ResourcePath::root()].into_iter().chain(names).collect()
    }

    fn ways_out(&self) -> Vec<ResourcePath> {
        let names: &[&str] = match self.file {
            true => &["again", "link", "neighbour", "directory/new"],
            false => &[
                "out",
                "out/secret",
                "out/new",
                "secret",
                "root",
                "root/etc/passwd",
            ],
        };
        names.iter().copied().map(plain).collect()
    }

    fn fingerprint(&self) -> Result<String, String> {
        let root = self.room.open().map_err(text)?;
        let mut lines = Vec::new();
        for name in [&b"original"[..], b"outside"] {
            let dir = root.subdir(name).map_err(text)?;
            let found = self.entries(&dir, looks).map_err(text)?.into_iter();
            lines.extend(found.map(|(path, what)| format!("{path:?} {what}")));
        }
        lines.sort();
        Ok(lines.join("\n"))
    }

    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String> {
        let found = self.original().and_then(|dir| self.entries(&dir, outside));
        let found = found.map_err(text)?.into_iter();
        Ok(found.filter(|(path, _)| !is_repository(path)).collect())
    }

    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
        let found = Shared::new(Vec::new());
        let file = self.file;
        let is_part = |path: &ResourcePath| match file {
            true => *path == plain("known"),
            false => !is_repository(path),
        };
        walk(&self.original().map_err(text)?, (), |visit| {
            let mut next = Vec::new();
            for entry in visit.entries {
                let path = visit.path.join(&entry.name);
                match entry.meta.kind {
                    EntryKind::Directory => next.push((entry.name, ())),
                    EntryKind::File if is_part(&path) => {
                        found.lock().push((path, visit.dir.read(&entry.name)?));
                    }
                    _ => {}
                }
            }
            Ok::<_, FsError>(next)
        })
        .map_err(text)?;
        Ok(found.into_inner())
    }

    fn replace_original(&self) -> Result<bool, String> {
        let replace = || -> Result<(), FsError> {
            let room = self.room.open()?;
            room.rename(b"original", &room, b"moved away")?;
            room.make_dir(b"original", 0o700)?;
            match self.file {
                true => fill(&self.original()?, b"known", CONTENT),
                false => Ok(()),
            }
        };
        replace().map(|()| true).map_err(text)
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
