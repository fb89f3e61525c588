//! The layer stack of a sandbox, read as one tree: an entry of a layer hides those below it, except that
//! directories merge. The topmost layer takes every change; the others never change again.
//!
//! ```text
//! <area>/
//!   layers/0, 1, …   each made once, under a number that is never used again
//!   now              which of them are in use, topmost first
//! ```
//!
//! `now` is replaced in one rename, so a sandbox goes from one stack to another at once.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree::STAGE;
use super::super::tree_commit::VersionSource;
use super::layers::{self, LayerDirMetadata, LayerMark};
use crate::fs::atomic_file::AtomicFile;
use crate::fs::dir::DirEntry;
use crate::fs::xattr::Xattrs;
use crate::fs::{Cause, Dir, Meta, remove};
use crate::model::ResourcePath;
use crate::model::text::Location;

const LAYERS: &[u8] = b"layers";
const NOW: &[u8] = b"now";

/// Which layers are in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerState {
    /// Topmost first.
    pub(super) layers: Vec<LayerRef>,
    /// The number of the next one.
    pub(super) next: u32,
    /// Those that forks began on. It is not known here when the last of them ends, so they stay for as long as the
    /// area does.
    #[serde(default, alias = "lent")]
    pub(super) shared: Vec<u32>,
    /// What the last squash did, for snapshots that still name the old layers.
    #[serde(default, alias = "folds")]
    pub(super) squashed: Vec<SquashedLayer>,
    /// One that a prepared return switches to, which no snapshot names.
    #[serde(default)]
    pub(super) prepared: Option<u32>,
}

/// A layer that took the place of several neighbours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SquashedLayer {
    pub(super) number: u32,
    pub(super) was: Vec<u32>,
}

/// One layer: its number, and whose it is if it is not this sandbox's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRef {
    pub(super) number: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) area: Option<Location>,
}

impl LayerRef {
    pub(super) fn own(number: u32) -> Self {
        Self { number, area: None }
    }

    pub(super) fn name(&self) -> Vec<u8> {
        self.number.to_string().into_bytes()
    }

    /// The directory of the layer.
    pub(super) fn path(&self, area: &Dir) -> Location {
        let area = self
            .area
            .as_ref()
            .map_or(area.path(), |area| area.as_path());
        let layers = area.join(OsStr::from_bytes(LAYERS));
        Location::from(layers.join(OsStr::from_bytes(&self.name())))
    }

    pub(super) fn open(&self, area: &Dir) -> Result<Dir> {
        let dir = match &self.area {
            Some(area) => Dir::open(area.as_path())?,
            None => area.again(),
        };
        Ok(dir.subdir(LAYERS)?.subdir(&self.name())?)
    }
}

impl LayerState {
    /// The stack of a new sandbox: its first layer over these of other sandboxes.
    pub(super) fn new(below: Vec<LayerRef>) -> Self {
        Self {
            layers: [vec![LayerRef::own(0)], below].concat(),
            next: 1,
            shared: Vec::new(),
            squashed: Vec::new(),
            prepared: None,
        }
    }

    /// These layers, with those that were squashed replaced by what took their place.
    pub(super) fn renewed(&self, layers: &[LayerRef]) -> Vec<LayerRef> {
        let renew = |layer: &LayerRef| {
            let is_it =
                |one: &&SquashedLayer| layer.area.is_none() && one.was.contains(&layer.number);
            let squashed = self.squashed.iter().find(is_it);
            squashed.map_or_else(|| layer.clone(), |one| LayerRef::own(one.number))
        };
        let mut layers: Vec<LayerRef> = layers.iter().map(renew).collect();
        layers.dedup();
        layers
    }

    /// What is in use in an area.
    pub(super) fn read(area: &Dir) -> Result<Self> {
        let (mut file, _) = area.file(NOW)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            area.error("read", NOW, Cause::Os(errno))
        })?;
        let now: Option<Self> = serde_json::from_slice(&text).ok();
        let now = now.filter(|now| !now.layers.is_empty());
        let mut now = now.ok_or_else(|| StrategyError::Damaged {
            what: "it does not say which layers it is made of".to_owned(),
        })?;
        let beside = area.path().parent().unwrap_or(area.path());
        for shared in now.shared_areas() {
            *shared = Location::from(beside.join(shared.as_path()));
        }
        Ok(now)
    }

    /// The areas of other sandboxes that this stack has layers of.
    fn shared_areas(&mut self) -> impl Iterator<Item = &mut Location> {
        self.layers
            .iter_mut()
            .filter_map(|layer| layer.area.as_mut())
    }

    /// The same with so many numbers taken.
    pub(super) fn reserve(&self, numbers: u32) -> Self {
        Self {
            next: self.next + numbers,
            ..self.clone()
        }
    }

    /// Puts these to use from now on, durably. Areas that lie beside this one are written by their names, so that all
    /// of them can be moved together.
    pub(super) fn write(&self, area: &Dir) -> Result<()> {
        self.put(area, true)
    }

    /// The same in an area that nothing relies on before the caller has synced its file system.
    pub(super) fn write_first(&self, area: &Dir) -> Result<()> {
        self.put(area, false)
    }

    fn put(&self, area: &Dir, synced: bool) -> Result<()> {
        let mut portable = self.clone();
        if let Some(beside) = area.path().parent() {
            for shared in portable.shared_areas() {
                if let Ok(name) = shared.as_path().strip_prefix(beside) {
                    *shared = Location::from(name);
                }
            }
        }
        let text = serde_json::to_vec(&portable).expect("numbers are JSON");
        let draft = AtomicFile {
            stage: &area.subdir(STAGE)?,
            to: area,
            name: NOW,
            fresh: false,
            synced,
        };
        Ok(draft.write(|file| file.write_all(&text), |_| Ok(()))?)
    }

    /// Where the layers of an area are kept; made if they are not there.
    pub(super) fn room(area: &Dir) -> Result<Dir> {
        if area.stat(LAYERS)?.is_none() {
            area.make_dir(LAYERS, 0o700)?;
        }
        Ok(area.subdir(LAYERS)?)
    }

    /// Removes the layers of an area that neither this stack, nor a fork, nor one of these snapshots is made of.
    pub(super) fn sweep<'a>(
        &'a self,
        area: &Dir,
        snapshots: impl Iterator<Item = &'a Vec<LayerRef>>,
    ) -> Result<()> {
        let needed = own(snapshots.chain([&self.layers]).flatten());
        let apart = self.shared.iter().copied().chain(self.prepared);
        let needed: HashSet<u32> = needed.chain(apart).collect();
        let room = Self::room(area)?;
        for DirEntry { name, .. } in room.entries()? {
            let number = std::str::from_utf8(&name).ok();
            let number = number.and_then(|name| name.parse().ok());
            if number.is_none_or(|number| !needed.contains(&number)) {
                remove::remove(&room, &name)?;
            }
        }
        Ok(())
    }

    pub(super) fn open(&self, area: &Dir) -> Result<LayerStack> {
        LayerStack::open(&self.layers, area)
    }
}

/// The numbers of those that are the sandbox's own.
pub(super) fn own<'a>(layers: impl IntoIterator<Item = &'a LayerRef>) -> impl Iterator<Item = u32> {
    let own = layers.into_iter().filter(|layer| layer.area.is_none());
    own.map(|layer| layer.number)
}

/// Open layers, topmost first; at least one, but for what lies below others.
pub(super) struct LayerStack {
    layers: Vec<Dir>,
}

/// A directory as the layers show it together: those that have it, topmost first.
pub(super) struct StackedDir {
    pub(super) dirs: Vec<Dir>,
    /// Which layer each is of.
    pub(super) numbers: Vec<usize>,
}

/// An entry of a level: in which of its directories it stands, and how it is marked.
pub(super) struct StackedEntry {
    pub(super) at: usize,
    pub(super) meta: Meta,
    pub(super) mark: LayerMark,
}

impl LayerStack {
    /// These layers of an area, topmost first.
    pub(super) fn open(layers: &[LayerRef], area: &Dir) -> Result<Self> {
        let layers = layers.iter().map(|layer| layer.open(area));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// One layer alone.
    pub(super) fn of(layer: &Dir) -> Result<Self> {
        Ok(Self {
            layers: vec![layer.again()],
        })
    }

    /// The same layers, each of which keeps the directory of the last path open.
    pub(super) fn keeping(&self) -> Self {
        let layers = self.layers.iter().map(|layer| layer.again().keeping());
        Self {
            layers: layers.collect(),
        }
    }

    /// The layer that takes the changes.
    pub(super) fn top(&self) -> &Dir {
        &self.layers[0]
    }

    /// The one that everything else lies on.
    pub(super) fn bottom(&self) -> &Dir {
        &self.layers[self.layers.len() - 1]
    }

    /// The roots of all of them.
    pub(super) fn root(&self) -> Result<StackedDir> {
        self.level(&ResourcePath::root(), (0..self.layers.len()).collect())
    }

    /// The directory at `path` in these layers. One that is gone is none.
    pub(super) fn level(&self, path: &ResourcePath, numbers: Vec<usize>) -> Result<StackedDir> {
        let mut level = StackedDir {
            dirs: Vec::new(),
            numbers: Vec::new(),
        };
        for number in numbers {
            match self.layers[number].dir(path) {
                Err(error) if error.is_absent() && !path.is_root() => {}
                dir => {
                    level.dirs.push(dir?);
                    level.numbers.push(number);
                }
            }
        }
        Ok(level)
    }

    /// Every layer's directory at `path`, topmost first, whether the others hide it or not.
    pub(super) fn all(&self, path: &ResourcePath) -> Result<Vec<Dir>> {
        let holders = self.holders(path)?.into_iter();
        Ok(holders.map(|(_, dir)| dir).collect())
    }

    /// The same, each with which layer it is of.
    pub(super) fn holders(&self, path: &ResourcePath) -> Result<Vec<(usize, Dir)>> {
        let mut found = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            match layer.dir(path) {
                Err(error) if error.is_absent() || error.leaves() => {}
                dir => found.push((number, dir?)),
            }
        }
        Ok(found)
    }

    /// The topmost layer that has something at `path`.
    fn holder(&self, path: &ResourcePath) -> Result<&Dir> {
        // What is asked for can be seen, so no layer above the first one that has it hides it.
        for layer in &self.layers[..self.layers.len() - 1] {
            match layer.stat_path(path) {
                Ok(Some(_)) => return Ok(layer),
                Ok(None) => {}
                Err(error) if error.leaves() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.bottom())
    }
}

impl VersionSource for LayerStack {
    fn dir(&self, path: &ResourcePath) -> Result<Dir> {
        Ok(self.holder(path)?.dir(path)?)
    }

    fn parent<'p>(&self, path: &'p ResourcePath) -> Result<(Dir, &'p [u8])> {
        Ok(self.holder(path)?.parent(path)?)
    }

    fn visible(&self) -> fn(Xattrs) -> Xattrs {
        layers::visible
    }
}

impl StackedDir {
    /// What stands in it, sorted by name.
    pub(super) fn entries(&self) -> Result<Vec<(usize, DirEntry)>> {
        let mut all: Vec<(usize, DirEntry)> = Vec::new();
        for (at, dir) in self.dirs.iter().enumerate() {
            all.extend(dir.entries()?.into_iter().map(|entry| (at, entry)));
        }
        if self.dirs.len() > 1 {
            // Stable, so of one name the topmost comes first.
            all.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
            all.dedup_by(|(_, later), (_, first)| later.name == first.name);
        }
        Ok(all)
    }

    /// What stands at `name`.
    pub(super) fn look(&self, name: &[u8], path: &ResourcePath) -> Result<Option<StackedEntry>> {
        for (at, dir) in self.dirs.iter().enumerate() {
            if let Some(meta) = dir.stat(name)? {
                let mark = layers::mark(dir, name, &meta, path)?;
                return Ok(Some(StackedEntry { at, meta, mark }));
            }
        }
        Ok(None)
    }

    /// Which layers show the directory `name`, which stands in the one at `at`, and whether they hide
    /// the original's.
    pub(super) fn below(
        &self,
        name: &[u8],
        path: &ResourcePath,
        (at, mark): (usize, LayerMark),
    ) -> Result<(Vec<usize>, bool)> {
        let mut numbers = vec![self.numbers[at]];
        if mark == LayerMark::Opaque {
            return Ok((numbers, true));
        }
        for (dir, number) in self.dirs.iter().zip(&self.numbers).skip(at + 1) {
            let Some(meta) = dir.stat(name)? else {
                continue;
            };
            if !meta.is_dir() {
                return Ok((numbers, true));
            }
            numbers.push(*number);
            if layers::mark(dir, name, &meta, path)? == LayerMark::Opaque {
                return Ok((numbers, true));
            }
        }
        Ok((numbers, false))
    }

    /// How the original's directory looked when it was first copied up; `None` where the kernel did
    /// that, or where the original has none.
    pub(super) fn remembered(&self) -> Result<Option<LayerDirMetadata>> {
        remembered(&self.dirs)
    }
}

/// What one of these directories, topmost first, remembers of the original's.
pub(super) fn remembered(dirs: &[Dir]) -> Result<Option<LayerDirMetadata>> {
    for dir in dirs {
        if let Some(looks) = LayerDirMetadata::remembered(dir)? {
            return Ok(Some(looks));
        }
    }
    Ok(None)
}
