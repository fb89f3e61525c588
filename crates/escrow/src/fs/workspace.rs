//! The areas of sandboxes and commits as a whole: made, set aside, removed. Nothing here looks into them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use super::areas::{RESTORE, is_of};
pub use super::atomic_file::sync_file_systems;
use super::ballast::{self, keep_reserve};
pub use super::ballast::{GivenUp, keep_ballast};
use super::dir::Dir;
use super::state_dir::make_plain;
use super::usage::{self, Usage};
use super::{Cause, FsError, Result, remove, times};
use crate::model::text::Location;

/// Where the areas of a home are made and removed.
#[derive(Clone, Copy)]
pub struct Workspaces<'a> {
    /// Where the state lives.
    pub home: &'a Dir,
    /// Where areas lie, unless they lie beside their originals.
    pub own: &'a Dir,
}

impl Workspaces<'_> {
    /// Makes an area, empty and private; `synced`: also durable.
    pub fn make(&self, area: &Path, synced: bool) -> Result<()> {
        let parent = Dir::open(area.parent().unwrap_or(area))?;
        let name = area.file_name().unwrap_or_default().as_encoded_bytes();
        check(area)?;
        let made = times::traceless(self.home, &parent, name, || {
            remove::remove(&parent, name)?;
            make_plain(&parent, name)
        })?;
        keep_reserve(&made);
        match synced {
            true => parent.sync(),
            false => Ok(()),
        }
    }

    /// Removes the area of a commit; done already if it is not there, or if there never was one.
    pub fn remove(&self, area: &Path) -> Result<()> {
        check(area)?;
        self.remove_found(area)
    }

    /// Removes what was found where areas lie, and the user named, whatever its name is.
    pub fn remove_found(&self, path: &Path) -> Result<()> {
        let Some((parent, name)) = split(path)? else {
            return Ok(());
        };
        match parent.stat(name)? {
            Some(_) => times::traceless(self.home, &parent, name, || remove::remove(&parent, name)),
            None => Ok(()),
        }
    }

    /// Puts an area out of the way of everything that removes, durably.
    pub fn set_aside(&self, area: &Path, aside: &Path) -> Result<()> {
        let (Some((parent, name)), Some(to)) = (place(area)?, aside.file_name()) else {
            return Ok(());
        };
        let rename = || parent.rename(name, &parent, to.as_encoded_bytes());
        times::traceless(self.home, &parent, name, rename)?;
        parent.sync()
    }

    /// Moves one thing of an area out of the way of everything that removes, durably; where it is now.
    pub fn set_one_aside(&self, at: &Path, aside: &Path) -> Result<Location> {
        let (Some((from, name)), Some((parent, to))) = (split(at)?, place(aside)?) else {
            return Ok(Location::from(at.to_owned()));
        };
        if parent.stat(to)?.is_none() {
            times::traceless(self.home, &parent, to, || parent.make_dir(to, 0o700))?;
            parent.sync()?;
        }
        let dir = parent.subdir(to)?;
        let mut free = name.to_owned();
        while dir.stat(&free)?.is_some() {
            free.push(b'+');
        }
        from.rename(name, &dir, &free)?;
        dir.sync()?;
        from.sync()?;
        Ok(Location::from(aside.join(OsStr::from_bytes(&free))))
    }

    /// Removes what lies among the engine's own areas under a name.
    pub fn remove_own(&self, name: &[u8]) -> Result<()> {
        remove::remove(self.own, name)
    }
}

/// Makes the area of a new sandbox.
pub fn make(area: &Path) -> Result<()> {
    let parent = Dir::open(area.parent().unwrap_or(area))?;
    let name = area.file_name().unwrap_or_default();
    keep_reserve(&make_plain(&parent, name.as_encoded_bytes())?);
    Ok(())
}

/// Removes the area of a sandbox; done already if it, or the directory it lay in, is not there.
pub fn remove(area: &Path) -> Result<()> {
    match place(area)? {
        Some((parent, name)) => remove::remove(&parent, name),
        None => Ok(()),
    }
}

/// Removes what lies in an area under a name; done already if that is not there.
pub fn remove_within(area: &Path, name: &[u8]) -> Result<()> {
    match Dir::open(area) {
        Err(error) if error.is_absent() => Ok(()),
        area => remove::remove(&area?, name),
    }
}

/// Whether something is there that can be opened.
pub fn is_there(area: &Path) -> bool {
    Dir::open(area).is_ok()
}

/// Whether nothing is there.
pub fn is_absent(area: &Path) -> bool {
    Dir::open(area).is_err_and(|error| error.is_absent())
}

/// The bytes that are free for what is staged in an original from an area; `None` where nothing is copied, since both
/// lie on one mount, and where the strategy will say what is missing.
pub fn free_for_copies(area: &Path, original: &Path) -> Result<Option<u64>> {
    let (Ok(area), Ok(original)) = (Dir::open(area), Dir::open(original)) else {
        return Ok(None);
    };
    match area.meta()?.mount == original.meta()?.mount {
        true => Ok(None),
        false => original.free_space().map(Some),
    }
}

/// Whether so little is free where an area lies that it is left for what frees more.
pub fn is_tight(area: &Path) -> bool {
    let tight = Dir::open(area).and_then(|area| ballast::is_tight(&area));
    tight.unwrap_or(false)
}

/// The bytes that are free where an area lies; none where it is gone.
pub fn free_at(area: &Path) -> Result<Option<u64>> {
    match Dir::open(area) {
        Ok(area) => area.free_space().map(Some),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Measures an area; what cannot be looked at is counted as unread.
pub fn measured(area: &Path) -> Usage {
    let unread = Usage {
        unread: 1,
        ..Usage::default()
    };
    match place(area) {
        Ok(Some((parent, name))) => usage::measure(&parent, name).unwrap_or(unread),
        Ok(None) => Usage::default(),
        Err(_) => unread,
    }
}

/// Refuses what is no area by its name, whatever the store says: it is not ours to remove. No path at all is none.
fn check(area: &Path) -> Result<()> {
    match area.file_name().is_none() || is_of(area, None) {
        true => Ok(()),
        false => Err(FsError {
            action: "remove",
            path: Location::from(area),
            cause: Cause::Damaged("the state calls it an area, and it is none by its name"),
        }),
    }
}

/// The directory that an area lies in, and its name there; `None` where there is none.
fn place(area: &Path) -> Result<Option<(Dir, &[u8])>> {
    check(area)?;
    split(area)
}

/// The same of anything.
fn split(path: &Path) -> Result<Option<(Dir, &[u8])>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    match Dir::open(parent) {
        Err(error) if error.is_absent() => Ok(None),
        parent => Ok(Some((parent?, name.as_encoded_bytes()))),
    }
}
