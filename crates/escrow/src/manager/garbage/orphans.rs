//! Orphans: areas without a record. They are listed, and deleted only one by one and by name.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::find::{area_at, time};
use super::{GarbageReport, KeptLeftover, Leftover, LeftoverKind};
use crate::error::{Error, Result, chain};
use crate::fs::areas::{self, Area};
use crate::fs::state_dir;
use crate::fs::workspace::measured;
use crate::manager::Manager;
use crate::model::text::Location;
use crate::model::{Action, Scope};

/// An area, or what lies among areas, without a record.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// Where it is.
    pub path: Location,
    /// What it is, by its name.
    pub what: &'static str,
    /// When it was made; `None` where its name does not say.
    pub made: Option<Timestamp>,
    /// When it last changed.
    pub changed: Option<Timestamp>,
    /// The bytes on disk that go with it.
    pub bytes: u64,
    /// Why it stays.
    pub why: String,
}

impl Orphan {
    fn at(path: &Path, bytes: u64, why: String) -> Self {
        let (what, made) = match area_at(path) {
            Some(Area::Sandbox(id)) => ("sandbox", id.made_at()),
            Some(Area::Commit(id)) => ("undo data", id.made_at()),
            Some(Area::Part(_, commit)) => ("undo data", commit.made_at()),
            Some(Area::Aside(id)) => ("set aside", id.made_at()),
            Some(Area::Scratch(plan)) => ("scratch", plan.made_at()),
            Some(Area::Temporary) => ("temporary", None),
            None => ("unknown", None),
        };
        Self {
            path: Location::from(path),
            what,
            made,
            changed: areas::changed(path).map(time),
            bytes,
            why,
        }
    }
}

impl Manager {
    /// Everything without a record. Nothing is changed.
    pub fn unrecorded(&self) -> Result<Vec<Orphan>> {
        self.permit(Action::Gc, None, Scope::All)?;
        let found = self.find_garbage()?.unrecorded.into_iter();
        let orphan = |(one, why): KeptLeftover| Orphan::at(one.path.as_path(), one.bytes, why);
        Ok(found.map(orphan).collect())
    }

    /// Removes what was named, if it has no record; with `dry_run`, only says what would go. Where one of the
    /// paths is anything else, nothing is removed.
    pub fn remove_unrecorded(&self, paths: &[PathBuf], dry_run: bool) -> Result<GarbageReport> {
        let orphans = self.unrecorded()?;
        let mut chosen: Vec<&Orphan> = Vec::new();
        for path in paths {
            let known = state_dir::known_as(path).unwrap_or_else(|| path.clone());
            let found = orphans.iter().find(|one| one.path.as_path() == known);
            chosen.push(found.ok_or_else(|| Error::NoOrphan {
                path: Location::from(path.as_path()),
            })?);
        }
        chosen.dedup_by(|one, other| one.path == other.path);
        let mut collected = GarbageReport::default();
        for one in chosen {
            let left = Leftover {
                kind: LeftoverKind::Unknown,
                plan: None,
                path: one.path.clone(),
                bytes: one.bytes,
            };
            let target = one.path.to_string();
            let removed = match dry_run {
                true => Ok(()),
                false => self.record("gc", None, &target, || {
                    Ok(self.workspaces().remove_found(one.path.as_path())?)
                }),
            };
            match removed {
                Ok(()) => collected.removed.push(left),
                Err(error) => collected.failed.push((left, chain(&error))),
            }
        }
        Ok(collected)
    }

    /// What lies among the areas of a home whose state cannot be used. Nothing is changed, and nothing is asked of the state.
    pub fn areas_without_state(home: &Path) -> Result<Vec<Orphan>> {
        let dir = state_dir::canonical(home)?.join("sandboxes");
        let found = match areas::list(&dir, false) {
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            found => found?,
        };
        let why = "the state that knew it lost its records";
        let found = found.into_iter().map(|found| {
            let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&found.name);
            let path = dir.join(name);
            Orphan::at(&path, measured(&path).private, why.to_owned())
        });
        Ok(found.collect())
    }
}
