//! Layers for one command: over the home directory, and over what a validation sees. What is written goes into them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::content::Reflinks;
use super::dir::{Dir, DirEntry};
use super::handle::EntryHandle;
use super::place::{CopyOptions, copy_leaf};
use super::state_dir::{self, room};
use super::{Cause, Result, atomic_file, mounts, remove};
use crate::model::text::Location;
use crate::model::view::{Layers, View};
use crate::model::{EntryKind, ResourcePath};

/// A layer in an area, over others.
fn over(area: &Dir, below: Vec<Location>) -> Result<Layers> {
    let upper = room(area, b"upper")?;
    // What the kernel left from an earlier command would be refused.
    remove::remove(area, b"work")?;
    let work = room(area, b"work")?;
    Ok(Layers {
        below,
        upper: Location::from(upper.path()),
        work: Location::from(work.path()),
    })
}

/// A layer over the home directory, in the area called `name`. In a fork it lies there, without what earlier commands
/// wrote.
pub fn over_home(areas: &Dir, name: &[u8], home: &Path, fork: Option<&Path>) -> Result<Layers> {
    let mode = (Dir::open(home)?.meta()?.mode | 0o700) & !0o022;
    let area = room(areas, name)?;
    let area = match fork {
        None => area,
        Some(fork) => room(&Dir::open(fork)?, b"home")?,
    };
    remove_places(&area)?;
    let layers = over(&area, vec![Location::from(home)])?;
    let upper = Dir::open(layers.upper.as_path())?;
    EntryHandle::of(&upper)
        .set_mode(mode)
        .map_err(|errno| upper.error("set the mode of", b"", Cause::Os(errno)))?;
    Ok(layers)
}

/// A layer over the cache of a tool, in an area of its own.
pub fn over_cache(area: &Dir, cache: &Path) -> Result<Layers> {
    let mode = Dir::open(cache)?.meta()?.mode | 0o700;
    let layers = over(area, vec![Location::from(cache)])?;
    let upper = Dir::open(layers.upper.as_path())?;
    EntryHandle::of(&upper)
        .set_mode(mode & !0o022)
        .map_err(|errno| upper.error("set the mode of", b"", Cause::Os(errno)))?;
    Ok(layers)
}

/// How many layers are laid around mounts at most.
const MOST: usize = 256;

/// Files up to this size are copied where no layer can be: larger ones can only be read.
const COPIED: u64 = 8 << 20;

/// The list of what stands in an upper directory only as the place for a mount, in the area.
const PLACES: &[u8] = b"places";

/// What appears in a home directory in which something is mounted, entry by entry.
#[derive(Debug, Default)]
pub struct HomeEntries {
    /// Directories with a layer each.
    pub layers: Vec<(Location, Layers)>,
    /// What appears as it is, and cannot be written: mounts among it. Each has an empty place in the upper directory.
    pub still: Vec<Location>,
}

/// Lays a home directory out by its entries: over one that holds a mount, an ordinary user can lay no layer. The upper directory
/// itself stands in its place: directories get layers, files are copied unless they are `covered` or large, links are made again,
/// and what is mounted stays as it is. What is written lies where the one layer would have it.
pub fn around_mounts(layers: &Layers, covered: &[Location]) -> Result<HomeEntries> {
    let open = |at: &Location| Dir::open(at.as_path());
    let Some(home) = layers.below.last() else {
        return Ok(HomeEntries::default());
    };
    let points = mounts::below(home.as_path())?;
    let (upper, work) = (open(&layers.upper)?, open(&layers.work)?);
    let mut laying = Laying {
        points: &points,
        covered,
        work: &work,
        found: HomeEntries::default(),
        places: Vec::new(),
    };
    laying.lay(&open(home)?, &upper, &ResourcePath::root())?;
    // Whoever reads the list finds every place on it.
    let list = laying.places.iter().map(|(path, _)| path.as_bytes());
    let area = Dir::open(upper.path().parent().unwrap_or(Path::new("/")))?;
    atomic_file::replace(&area, &area, PLACES, &list.collect::<Vec<_>>().join(&0))?;
    for (path, is_dir) in &laying.places {
        let (parent, name) = upper.parent(path)?;
        match is_dir {
            true => room(&parent, name).map(drop)?,
            false => state_dir::make_file(&parent, name)?,
        }
    }
    Ok(laying.found)
}

/// The paths of an upper directory that are only places for mounts.
fn places(area: &Path) -> Result<Vec<ResourcePath>> {
    let list = match Dir::open(area).and_then(|area| area.read(PLACES)) {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        list => list?,
    };
    let paths = list.split(|byte| *byte == 0);
    Ok(paths
        .filter_map(|path| ResourcePath::parse(path).ok())
        .collect())
}

/// Removes those that a process left which was killed: under a layer they would hide what is there.
fn remove_places(area: &Dir) -> Result<()> {
    for path in places(area.path())? {
        let upper = Dir::open(&area.path().join("upper"))?;
        let gone = upper.parent(&path).and_then(|(parent, name)| {
            let meta = parent.stat(name)?;
            match meta {
                Some(meta) if meta.is_dir() => parent.remove_dir(name),
                Some(meta) if meta.size == 0 => parent.unlink(name),
                _ => Ok(()),
            }
        });
        match gone {
            // What a command made of it stays.
            Ok(()) | Err(_) => {}
        }
    }
    remove::remove(area, PLACES)
}

struct Laying<'a> {
    points: &'a [PathBuf],
    covered: &'a [Location],
    work: &'a Dir,
    found: HomeEntries,
    /// Where a mount needs a place, and whether that is a directory.
    places: Vec<(ResourcePath, bool)>,
}

impl Laying<'_> {
    /// Lays out one directory, which holds a mount, or one of its directories does.
    fn lay(&mut self, dir: &Dir, upper: &Dir, path: &ResourcePath) -> Result<()> {
        let own = rustix::process::geteuid().as_raw();
        for DirEntry { name, meta } in dir.entries()? {
            let (at, path) = (dir.path().join(OsStr::from_bytes(&name)), path.join(&name));
            let is_point = self.points.contains(&at);
            let usable = match meta.is_dir() {
                true => {
                    meta.uid == own && meta.mode & 0o700 == 0o700 && self.found.layers.len() < MOST
                }
                false => meta.size <= COPIED,
            };
            if !meta.is_dir() && !is_point {
                // A socket would lead outside, and what is covered is not to be copied.
                let leaf = matches!(meta.kind, EntryKind::File | EntryKind::Symlink);
                if !leaf || self.covered.iter().any(|one| one.as_path() == at) {
                    continue;
                }
                if usable {
                    copy_in(dir, upper, &name, meta.kind)?;
                    continue;
                }
            }
            if is_point || !usable {
                // A version that a command made stands where there is one.
                if is_point
                    || upper
                        .stat(&name)?
                        .is_none_or(|there| there.is_dir() == meta.is_dir())
                {
                    self.places.push((path, meta.is_dir()));
                    self.found.still.push(Location::from(at));
                }
                continue;
            }
            let taken = match state_dir::make_plain(upper, &name) {
                Err(error) if error.is(Errno::EXIST) => upper.subdir(&name),
                made => made,
            };
            // So does this one.
            let Ok(taken) = taken else {
                continue;
            };
            let holds = self.points.iter().any(|point| point.starts_with(&at));
            if holds {
                self.lay(&dir.subdir(&name)?, &taken, &path)?;
            }
            EntryHandle::of(&taken)
                .set_mode(meta.mode)
                .map_err(|errno| taken.error("set the mode of", b"", Cause::Os(errno)))?;
            if holds {
                continue;
            }
            let work = room(self.work, self.found.layers.len().to_string().as_bytes())?;
            let layers = Layers {
                below: vec![Location::from(at.as_path())],
                upper: Location::from(taken.path()),
                work: Location::from(work.path()),
            };
            self.found.layers.push((Location::from(at), layers));
        }
        Ok(())
    }
}

/// Copies a file or link, unless an earlier command left something in its place.
fn copy_in(from: &Dir, to: &Dir, name: &[u8], kind: EntryKind) -> Result<()> {
    if to.stat(name)?.is_some() {
        return Ok(());
    }
    let options = CopyOptions {
        lossy: true,
        ..CopyOptions::LIVE
    };
    match copy_leaf((from, name), (to, name), kind, &Reflinks::wanted(), options) {
        // What this user cannot read, a command cannot read either.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What a command sees, as a fork of it: under a layer that takes its writes. One file is copied.
pub fn forked(fork: &Path, number: usize, seen: View, is_file: bool) -> Result<View> {
    let fork = &Dir::open(fork)?;
    let name = number.to_string();
    let is_new = fork.stat(name.as_bytes())?.is_none();
    let area = room(fork, name.as_bytes())?;
    let below = match seen {
        View::Directory(from) if is_file => {
            if is_new {
                let path = from.as_path();
                let dir = Dir::open(path.parent().unwrap_or(Path::new("/")))?;
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                let (from, to) = ((&dir, name), (&area, &b"file"[..]));
                // What cannot be kept, a validation does without.
                let options = CopyOptions {
                    lossy: true,
                    ..CopyOptions::QUIET
                };
                copy_leaf(from, to, EntryKind::File, &Reflinks::wanted(), options)?;
            }
            return Ok(View::Directory(Location::from(area.path().join("file"))));
        }
        View::ReadOnly(from) => return Ok(View::ReadOnly(from)),
        View::Directory(from) => vec![from],
        View::Layers(Layers { below, upper, .. }) => [vec![upper], below].concat(),
    };
    let mut look = Dir::open(below[0].as_path())?.meta()?;
    look.mode |= 0o700;
    let layers = over(&area, below)?;
    let upper = Dir::open(layers.upper.as_path())?;
    if is_new {
        let set = EntryHandle::of(&upper).reapply_metadata(&look);
        set.map_err(|errno| upper.error("set the metadata of", b"", Cause::Os(errno)))?;
    }
    Ok(View::Layers(layers))
}
