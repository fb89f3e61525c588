//! Layers for one command: over the home directory, and over what a validation sees. What is written goes into them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::content::Reflinks;
use super::dir::{Dir, DirEntry};
use super::handle::EntryHandle;
use super::place::{CopyOptions, copy_leaf};
use super::state_dir::room;
use super::{Cause, Result, mounts, remove};
use crate::model::EntryKind;
use crate::model::text::Location;
use crate::model::view::{Layers, View};

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
    let layers = over(&area, vec![Location::from(home)])?;
    let upper = Dir::open(layers.upper.as_path())?;
    EntryHandle::of(&upper)
        .set_mode(mode)
        .map_err(|errno| upper.error("set the mode of", b"", Cause::Os(errno)))?;
    Ok(layers)
}

/// How many layers are laid around mounts at most.
const MOST: usize = 256;

/// Layers for the directories beside what is mounted in a home directory: over one that holds a mount, an ordinary user can
/// lay none. What they take lies where the one layer would have it.
pub fn around_mounts(layers: &Layers) -> Result<Vec<(Location, Layers)>> {
    let open = |at: &Location| Dir::open(at.as_path());
    let Some(home) = layers.below.last() else {
        return Ok(Vec::new());
    };
    let points = mounts::below(home.as_path())?;
    let mut found = Vec::new();
    let rooms = (&open(&layers.upper)?, &open(&layers.work)?);
    around(&open(home)?, rooms, &points, &mut found)?;
    Ok(found)
}

fn around(
    dir: &Dir,
    (upper, work): (&Dir, &Dir),
    points: &[PathBuf],
    found: &mut Vec<(Location, Layers)>,
) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for DirEntry { name, meta } in dir.entries()? {
        let at = dir.path().join(OsStr::from_bytes(&name));
        let usable = meta.is_dir() && meta.uid == own && meta.mode & 0o700 == 0o700;
        if !usable || points.contains(&at) || found.len() >= MOST {
            continue;
        }
        let taken = room(upper, &name)?;
        if points.iter().any(|point| point.starts_with(&at)) {
            around(&dir.subdir(&name)?, (&taken, work), points, found)?;
            continue;
        }
        EntryHandle::of(&taken)
            .set_mode(meta.mode)
            .map_err(|errno| taken.error("set the mode of", b"", Cause::Os(errno)))?;
        let work = room(work, found.len().to_string().as_bytes())?;
        let layers = Layers {
            below: vec![Location::from(at.as_path())],
            upper: Location::from(taken.path()),
            work: Location::from(work.path()),
        };
        found.push((Location::from(at), layers));
    }
    Ok(())
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
