//! Files that a release puts in place by itself: merged ones in the checkout, named ones in the git directory.
//!
//! Each new version is complete in the commit's area before anything is applied. It changes places with the old one in
//! one rename, so the area then holds the old version, and an undo is the same rename again. A file that is not what it
//! was is never replaced.

use std::io::Write;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::repository::path_text;
use super::seed;
use crate::fs::{Cause, Dir, Fingerprint, Meta};
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath};

/// Where the versions lie in the area of a commit.
const SLOTS: &[u8] = b"replaced";

/// A file that is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Replacement {
    /// The directory it is named from: the checkout, or its git directory.
    root: Location,
    path: ResourcePath,
    /// How it is named in the resource.
    shown: ResourcePath,
    old: Option<Fingerprint>,
    new: Option<Fingerprint>,
}

/// A new version of a file.
pub(super) struct NewFile<'a> {
    pub(super) root: &'a Path,
    pub(super) path: ResourcePath,
    pub(super) shown: ResourcePath,
    /// What was found there; none where nothing was.
    pub(super) old: Option<Meta>,
    /// None where the file goes.
    pub(super) content: Option<&'a [u8]>,
    /// Whether it can be started.
    pub(super) executable: bool,
}

fn slot(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Writes the new version of a file into the area, as the next one.
pub(super) fn stage(area: &Dir, all: &mut Vec<Replacement>, file: &NewFile<'_>) -> Result<()> {
    if area.stat(SLOTS)?.is_none() {
        area.make_dir(SLOTS, 0o700)?;
    }
    let (slots, name) = (area.subdir(SLOTS)?, slot(all.len()));
    let mut new = None;
    if let Some(content) = file.content {
        let mut made = slots.create(&name, 0o600)?;
        let written = made.write_all(content).and_then(|()| made.sync_all());
        written.map_err(|error| seed::io_error(&slots, "write", &name, &error))?;
        let root = Dir::open(file.root)?;
        let model = match &file.old {
            Some(old) => *old,
            None => Meta {
                mode: 0o644,
                ..root.meta()?
            },
        };
        let execute = (model.mode & 0o444) >> 2;
        let mode = match file.executable {
            true => model.mode | execute,
            false => model.mode & !0o111,
        };
        let handle = slots.handle(&name)?;
        let set = match &file.old {
            Some(_) => {
                let (dir, last) = root.parent(&file.path)?;
                let attributes = tree::xattrs(&dir, last)?;
                handle
                    .apply_metadata_without_times(&model, &attributes)
                    .map(drop)
            }
            None => handle.give_to(&model),
        };
        set.and_then(|()| handle.set_mode(mode & 0o777))
            .map_err(|errno| slots.error("set the metadata of", &name, Cause::Os(errno)))?;
        new = slots.stat(&name)?.as_ref().map(Fingerprint::from);
    }
    all.push(Replacement {
        root: Location::from(file.root),
        path: file.path.clone(),
        shown: file.shown.clone(),
        old: file.old.as_ref().map(Fingerprint::from),
        new,
    });
    Ok(())
}

/// Whether nothing is there, or this very file as it was.
fn is(seen: Option<&Fingerprint>, now: Option<&Meta>) -> bool {
    match (seen, now) {
        (None, None) => true,
        (Some(seen), Some(now)) => seen.looks_the_same(now),
        _ => false,
    }
}

/// Puts the new versions in place.
pub(super) fn apply(area: &Dir, all: &[Replacement]) -> Result<()> {
    for (number, one) in all.iter().enumerate() {
        one.put(area, number)?;
    }
    Ok(())
}

/// Puts the old versions back, last first. Returns what other processes wrote in their place, and where it is now.
pub(super) fn undo(area: &Dir, all: &[Replacement]) -> Result<Vec<(ResourcePath, Location)>> {
    let mut kept = Vec::new();
    for (number, one) in all.iter().enumerate().rev() {
        kept.extend(one.put_back(area, number)?);
    }
    Ok(kept)
}

/// Those that are neither what they were nor what they became.
pub(super) fn check(all: &[Replacement]) -> Result<Vec<Conflict>> {
    let mut conflicts = Vec::new();
    for one in all {
        let now = Dir::open(one.root.as_path())?.stat_path(&one.path)?;
        if !is(one.new.as_ref(), now.as_ref()) && !is(one.old.as_ref(), now.as_ref()) {
            let what = "changed since: an undo would lose that";
            conflicts.push(Conflict::with(
                one.shown.clone(),
                what,
                now.map(|now| now.facts()),
            ));
        }
    }
    Ok(conflicts)
}

impl Replacement {
    /// Exchanges what is in the area and what is in place, unless that was done.
    fn put(&self, area: &Dir, number: usize) -> Result<()> {
        let (slots, name, root) = self.places(area, number)?;
        let now = root.stat_path(&self.path)?;
        let moved = || StrategyError::Moved {
            path: self.shown.clone(),
            what: "another process changed it".to_owned(),
        };
        if !is(self.new.as_ref(), now.as_ref()) {
            if !is(self.old.as_ref(), now.as_ref()) {
                return Err(moved());
            }
            if self.new.is_some() {
                make_parents(&root, &self.path)?;
            }
            let (dir, last) = root.parent(&self.path)?;
            match (&self.old, &self.new) {
                (Some(_), Some(_)) => slots.exchange(&name, &dir, last)?,
                (None, Some(_)) => match slots.rename_new(&name, &dir, last) {
                    Err(error) if error.is(Errno::EXIST) => return Err(moved()),
                    done => done?,
                },
                (Some(_), None) => dir.rename_new(last, &slots, &name)?,
                (None, None) => {}
            }
            // What was written between the look and the rename is put back.
            if let Some(old) = &self.old
                && !slots
                    .stat(&name)?
                    .is_some_and(|now| old.looks_the_same(&now))
            {
                match self.new {
                    Some(_) => slots.exchange(&name, &dir, last)?,
                    None => slots.rename_new(&name, &dir, last)?,
                }
                return Err(moved());
            }
        }
        self.sync(&slots, &root)
    }

    /// Puts the old version back, if it was replaced. What another process wrote in its place comes into the area.
    fn put_back(&self, area: &Dir, number: usize) -> Result<Option<(ResourcePath, Location)>> {
        let (slots, name, root) = self.places(area, number)?;
        let slot = slots.stat(&name)?;
        let replaced = match &self.old {
            Some(old) => slot.is_some_and(|slot| old.is(&slot)),
            None => slot.is_none() && self.new.is_some(),
        };
        let now = root.stat_path(&self.path)?;
        if replaced && (slot.is_some() || now.is_some()) {
            make_parents(&root, &self.path)?;
            let (dir, last) = root.parent(&self.path)?;
            match (slot, now) {
                (Some(_), Some(_)) => slots.exchange(&name, &dir, last)?,
                (Some(_), None) => slots.rename_new(&name, &dir, last)?,
                (None, _) => dir.rename_new(last, &slots, &name)?,
            }
        }
        self.sync(&slots, &root)?;
        let Some(there) = slots.stat(&name)? else {
            return Ok(None);
        };
        let own = |of: &Option<Fingerprint>| of.is_some_and(|of| of.looks_the_same(&there));
        let foreign = !own(&self.new) && !own(&self.old);
        Ok(foreign.then(|| {
            let at = slots.path().join(path_text(&name));
            (self.shown.clone(), Location::from(at))
        }))
    }

    fn places(&self, area: &Dir, number: usize) -> Result<(Dir, Vec<u8>, Dir)> {
        let root = Dir::open(self.root.as_path())?;
        Ok((area.subdir(SLOTS)?, slot(number), root))
    }

    /// Also what a process did that was killed before it was durable.
    fn sync(&self, slots: &Dir, root: &Dir) -> Result<()> {
        slots.sync()?;
        match root.parent(&self.path) {
            Err(error) if error.is_absent() => Ok(()),
            found => Ok(found?.0.sync()?),
        }
    }
}

/// The directories that a new file lies in.
fn make_parents(root: &Dir, path: &ResourcePath) -> Result<()> {
    let mut above: Vec<ResourcePath> = path.ancestors().filter(|one| !one.is_root()).collect();
    above.reverse();
    for dir in above {
        if root.stat_path(&dir)?.is_none() {
            let (parent, name) = root.parent(&dir)?;
            parent.make_dir(name, 0o755)?;
            let owner = parent.meta()?;
            let given = parent.handle(name)?.give_to(&owner);
            given.map_err(|errno| parent.error("give away", name, Cause::Os(errno)))?;
        }
    }
    Ok(())
}
