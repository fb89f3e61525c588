//! Inode flags (`chattr`) in a tree commit: a new version gets those of the version it replaces, a new entry
//! those that its directory passes on. A sandbox has no say in them: layers, and tools that save by renaming,
//! lose flags unintentionally.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::stat;
use crate::fs::place::{DirAndName, recast};
use crate::fs::{Cause, Dir, Flags, Meta};
use crate::model::ResourcePath;
use crate::strategy::error::{Result, StrategyError};

/// The flags of an original.
pub(super) struct OriginalFlags<'a> {
    original: &'a Dir,
    /// What directories hand on, by their paths.
    handed_on: RefCell<HashMap<ResourcePath, Flags>>,
}

/// What a version is to have, and whether it may not be without: what is new does without what cannot be had.
type WantedFlags = (Flags, bool);

impl<'a> OriginalFlags<'a> {
    pub(super) fn of(original: &'a Dir) -> Self {
        Self {
            original,
            handed_on: RefCell::default(),
        }
    }

    /// Gives a staged file, which is open already if it is the sandbox's own, its flags: those of the file that stood there,
    /// if one did. One that its own user may not read, here or there, stays as it is.
    pub(super) fn give(
        &self,
        path: &ResourcePath,
        was_file: bool,
        (dir, name): DirAndName<'_>,
        opened: Option<(File, Meta)>,
    ) -> Result<()> {
        let old = was_file.then(|| self.original.file_path(path));
        let old = match old.transpose() {
            // Gone meanwhile, which the step will find.
            Err(error) if error.is_absent() || error.leaves() => None,
            Err(error) if error.is(Errno::ACCESS) => return Ok(()),
            old => old?,
        };
        let wanted = match old {
            Some((old, _)) => (read(self.original, path, old)?, true),
            None => self.of_new(path)?,
        };
        let open = || match dir.file(name) {
            Err(error) if error.is(Errno::ACCESS) => Ok(None),
            file => file.map(Some),
        };
        let opened = match opened {
            None => open()?,
            opened => opened,
        };
        let Some((mut file, meta)) = opened else {
            return Ok(());
        };
        let fail = |errno| dir.error("read the flags of", name, Cause::Os(errno));
        let have = Flags::read(&file).map_err(fail)?;
        if have == wanted.0 {
            return Ok(());
        }
        if meta.size > 0 && wanted.0.stores_otherwise(have) {
            recast(dir, name, wanted.0)?;
            match open()? {
                Some((again, _)) => file = again,
                None => return Ok(()),
            }
        }
        set(dir, path, file, wanted)
    }

    /// Gives a staged directory its flags.
    pub(super) fn give_dir(&self, path: &ResourcePath, staged: &Dir) -> Result<()> {
        let old = stat(self.original, path)?.filter(|old| old.is_dir());
        let wanted = match old.map(|_| self.original.dir(path)).transpose() {
            Err(error) if error.is(Errno::ACCESS) => return Ok(()),
            old => match old? {
                Some(old) => (read(self.original, path, old)?, true),
                None => self.of_new(path)?,
            },
        };
        set(staged, path, staged, wanted)
    }

    /// What an entry gets where nothing stood before: its directory may be new as well, and gets the same.
    fn of_new(&self, path: &ResourcePath) -> Result<WantedFlags> {
        let Some((mut parent, _)) = path.split() else {
            return Ok((Flags::NONE, false));
        };
        let mut below = Vec::new();
        let given = loop {
            if let Some(known) = self.handed_on.borrow().get(&parent) {
                break *known;
            }
            let there = stat(self.original, &parent)?.is_some_and(|meta| meta.is_dir());
            match parent.split() {
                Some((above, _)) if !there => below.push(std::mem::replace(&mut parent, above)),
                _ => break self.given_by(&parent)?,
            }
        };
        let mut known = self.handed_on.borrow_mut();
        known.extend(below.into_iter().chain([parent]).map(|one| (one, given)));
        Ok((given, false))
    }

    /// The flags that a directory of the original hands on.
    fn given_by(&self, path: &ResourcePath) -> Result<Flags> {
        match self.original.dir(path) {
            Err(error) if error.is(Errno::ACCESS) => Ok(Flags::NONE),
            dir => {
                let dir = dir?;
                let fail = |errno| dir.error("read the flags of", b"", Cause::Os(errno));
                let given = Flags::read(&dir).and_then(|flags| flags.handed_on(&dir));
                Ok(given.map_err(fail)?)
            }
        }
    }
}

fn read(original: &Dir, path: &ResourcePath, open: impl AsFd) -> Result<Flags> {
    let fail = |errno| original.error("read the flags of", path.as_bytes(), Cause::Os(errno));
    Ok(Flags::read(open).map_err(fail)?)
}

fn set(dir: &Dir, path: &ResourcePath, open: impl AsFd, (flags, must): WantedFlags) -> Result<()> {
    let fail = |errno| dir.error("set the flags of", path.as_bytes(), Cause::Os(errno));
    match flags.set(open).map_err(fail)? || !must {
        true => Ok(()),
        false => Err(StrategyError::Forbidden {
            path: path.clone(),
            why: "it has flags (`lsattr`) in the original that this user may not set on its new version".to_owned(),
        }),
    }
}
