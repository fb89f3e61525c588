//! What a commit does to the user's repository: objects as a pack, references by compare-and-swap, entries of the index,
//! and single files. Everything here can be repeated, and taken back.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::history::in_git_dir;
use super::index::IndexChange;
use super::locks::MOVING;
use super::release::read_all;
use super::replace::{self, Replacement};
use super::repository::{RefMove, Refs, Repository, USED, line};
use crate::fs::{Cause, Dir, remove};
use crate::model::text::Location;
use crate::model::{Choice, Conflict, ResourcePath};

/// The git directory with the settings, in the area of a commit.
pub(super) const SETTINGS: &str = "settings";

/// A mark in the area of a commit: its undo leaves the repository as it is.
const LEFT: &[u8] = b"left";

/// What a release does to the repository.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Release {
    /// The branch that was checked out first, if it moves.
    pub(super) moves: Vec<RefMove>,
    pub(super) index: Vec<IndexChange>,
    #[serde(default)]
    pub(super) files: Vec<Replacement>,
    /// What is said in the reflog.
    #[serde(default)]
    pub(super) message: String,
}

impl Release {
    pub(super) fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.index.is_empty() && self.files.is_empty()
    }
}

/// What of a repository a commit changes, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GitIntent {
    pub(super) repository: Repository,
    pub(super) checkout: Location,
    /// The branch that was checked out; none where HEAD was detached.
    #[serde(default)]
    pub(super) branch: Option<String>,
    /// Where the pack, and an index in the making, lie.
    pub(super) area: Location,
    /// A git directory with the settings that git is called with, which stays as long as the commit can be undone.
    pub(super) settings: Location,
    pub(super) release: Release,
    /// The files of the pack; the index of it last, which is what makes it one.
    pub(super) packs: Vec<String>,
}

/// The files of the pack in an area.
pub(super) fn packs(area: &Dir) -> Result<Vec<String>> {
    let names = area.entries()?.into_iter();
    let names = names.map(|one| String::from_utf8_lossy(&one.name).into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("pack-")).collect();
    names.sort_by_key(|name| name.ends_with(".idx"));
    Ok(names)
}

/// A conflict at a place in the git directory.
pub(super) fn conflict(name: &str, what: &str) -> Result<Conflict> {
    Ok(Conflict::of(in_git_dir(name)?, what))
}

impl GitIntent {
    /// Carries it out, after the files are in place.
    pub(super) fn apply(&self, git: &Git) -> Result<()> {
        replace::apply(&self.area()?, &self.release.files)?;
        self.install_packs()?;
        self.move_refs(git)?;
        self.mark_used()?;
        self.set_index(git, false)
    }

    /// Notes that a reflog, or the index, may name the objects from now on: then they stay, whatever is taken back.
    fn mark_used(&self) -> Result<()> {
        let area = self.area()?;
        if area.stat(USED)?.is_none() {
            area.create(USED, 0o600)?;
            area.sync()?;
        }
        Ok(())
    }

    /// Takes it back, before the files are. What another process changed meanwhile stays, and is named with where it is.
    pub(super) fn undo(&self, git: &Git) -> Result<Vec<(ResourcePath, Location)>> {
        let area = self.area()?;
        let is = |mark: &[u8]| Ok::<_, StrategyError>(area.stat(mark)?.is_some());
        let mut kept = Vec::new();
        // What was never begun is the user's: equal values there were put there by the user.
        if is(USED)? || is(MOVING)? {
            kept = self.move_back(git)?;
            self.set_index(git, true)?;
        }
        kept.extend(replace::undo(&area, &self.release.files)?);
        if !is(USED)? {
            self.remove_packs(git)?;
        }
        Ok(kept)
    }

    /// Where the repository moved on since.
    pub(super) fn check_undo(&self, git: &Git) -> Result<Vec<Conflict>> {
        let mut conflicts = replace::check(&self.release.files)?;
        let files = conflicts.len();
        let values = self.values(git)?;
        for one in &self.release.moves {
            let now = values.get(&one.name).cloned();
            if now == one.new || now == one.old {
                continue;
            }
            conflicts.push(match now {
                Some(_) => conflict(
                    &one.name,
                    "it has other commits by now: an undo would lose them",
                )?,
                None => conflict(
                    &one.name,
                    "it was deleted since: an undo would make it again",
                )?,
            });
        }
        let moved = self
            .release
            .moves
            .iter()
            .any(|one| Some(&one.name) == self.branch.as_ref());
        let head = self.repository.head(git)?;
        if moved && head.branch != self.branch {
            let what = "the checkout is on another branch by now";
            conflicts.push(conflict("HEAD", what)?);
        }
        // A branch that went on is not moved back, and the rest of a history goes with it.
        let history = conflicts.drain(files..);
        let history: Vec<Conflict> = history.map(|one| one.choosing(Choice::Neither)).collect();
        conflicts.extend(history);
        Ok(conflicts)
    }

    /// What it moves, as paths of the resource.
    pub(super) fn rows(&self) -> Result<Vec<ResourcePath>> {
        let moves = self.release.moves.iter().map(|one| in_git_dir(&one.name));
        let index = (!self.release.index.is_empty()).then(|| in_git_dir("index"));
        moves.chain(index).collect()
    }

    /// Notes whether the next undo leaves all of it where it is.
    pub(super) fn leave(&self, all: bool) -> Result<()> {
        let area = self.area()?;
        remove::remove(&area, LEFT)?;
        if all {
            area.create(LEFT, 0o600)?;
        }
        Ok(area.sync()?)
    }

    /// Whether an undo leaves it where it is.
    pub(super) fn is_left(&self) -> Result<bool> {
        Ok(self.area()?.stat(LEFT)?.is_some())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.release.moves.iter().map(|one| one.name.as_str())
    }

    /// What the references that move are now.
    fn values(&self, git: &Git) -> Result<Refs> {
        self.repository.values(git, self.names())
    }

    pub(super) fn area(&self) -> Result<Dir> {
        Ok(Dir::open(self.area.as_path())?)
    }

    fn install_packs(&self) -> Result<()> {
        if self.packs.is_empty() {
            return Ok(());
        }
        let area = self.area()?;
        let packs = self.packs()?;
        let owner = packs.meta()?;
        for name in self.packs.iter().map(String::as_bytes) {
            // It was brought by a process that died, or the same objects were brought before.
            if area.stat(name)?.is_none() || packs.stat(name)?.is_some() {
                continue;
            }
            let handle = area.handle(name)?;
            let given = handle.give_to(&owner);
            given.map_err(|errno| area.error("give away", name, Cause::Os(errno)))?;
            area.rename(name, &packs, name)?;
        }
        // Also what a process brought that died before it was durable.
        Ok(packs.sync()?)
    }

    fn packs(&self) -> Result<Dir> {
        Ok(Dir::open(&self.repository.objects().join("pack"))?)
    }

    /// Removes what was brought, unless the user has something by now that needs it. Where that cannot be found out it stays:
    /// nothing reads a pack that is not needed, and taking back does not wait for it.
    fn remove_packs(&self, git: &Git) -> Result<()> {
        let Ok(packs) = self.packs() else {
            return Ok(());
        };
        let area = self.area()?;
        let mut brought = Vec::new();
        for name in self.packs.iter().rev().map(String::as_bytes) {
            if area.stat(name)?.is_none() && packs.stat(name)?.is_some() {
                brought.push(name);
            }
        }
        // Without its index it is no pack: git reads nothing from it.
        let index = brought.iter().find(|name| name.ends_with(b".idx"));
        let needed = index.map(|index| self.needs(git, &packs, index));
        match needed {
            Some(Ok(true) | Err(_)) => Ok(()),
            Some(Ok(false)) | None => remove_all(&packs, &brought),
        }
    }

    /// Whether the user has something that needs an object of the pack with this index.
    fn needs(&self, git: &Git, packs: &Dir, index: &[u8]) -> Result<bool> {
        let (file, _) = packs.file(index)?;
        let own = self.repository.call(git).args(["show-index"]);
        let own = line(&own.input(read_all(file)?).run()?);
        let own = own.lines().filter_map(|one| one.split(' ').nth(1));
        self.reaches(git, &own.collect())
    }

    /// Whether a reference, a reflog, a stash or an index of the user names any of these objects, or something that does.
    fn reaches(&self, git: &Git, objects: &HashSet<&str>) -> Result<bool> {
        let call = self.repository.call(git);
        let call = call.line("rev-list --objects --no-object-names --missing=print");
        let call = call.line("--ignore-missing --all --reflog --indexed-objects --not");
        // What was there before the release needs nothing of it.
        let old = self.release.moves.iter().filter_map(|one| one.old.as_ref());
        let said = line(&call.args(old).run()?);
        let mut named = said.lines().map(|one| one.trim_start_matches('?'));
        Ok(named.any(|id| objects.contains(id)))
    }

    /// Moves the references to where the release has them.
    fn move_refs(&self, git: &Git) -> Result<()> {
        let area = self.area()?;
        let begun = self.repository.clear_locks(self.names(), &area)?;
        let values = self.values(git)?;
        let mut moves = Vec::new();
        for one in &self.release.moves {
            let now = values.get(&one.name);
            if now == one.new.as_ref() {
                continue;
            }
            if now != one.old.as_ref() {
                return Err(StrategyError::Moved {
                    path: in_git_dir(&one.name)?,
                    what: "it has another commit by now".to_owned(),
                });
            }
            moves.push(one.clone());
        }
        // A killed process had moved some of them.
        if begun && moves.len() < self.release.moves.len() {
            self.mark_used()?;
        }
        let message = &self.release.message;
        self.repository
            .move_refs(git, &moves, message, Some(&area))?;
        if begun && moves.is_empty() {
            area.unlink(MOVING)?;
        }
        self.sync_refs()
    }

    /// Moves the references back that are where the release put them. Returns those that another process moved on.
    fn move_back(&self, git: &Git) -> Result<Vec<(ResourcePath, Location)>> {
        let area = self.area()?;
        let begun = self.repository.clear_locks(self.names(), &area)?;
        let values = self.values(git)?;
        let (mut moves, mut kept) = (Vec::new(), Vec::new());
        for one in &self.release.moves {
            let now = values.get(&one.name);
            if now == one.old.as_ref() {
                continue;
            }
            if now != one.new.as_ref() {
                let at = self.repository.common().join(&one.name);
                kept.push((in_git_dir(&one.name)?, Location::from(at)));
                continue;
            }
            moves.push(RefMove {
                name: one.name.clone(),
                old: one.new.clone(),
                new: one.old.clone(),
            });
        }
        // Reflogs name the objects.
        if !moves.is_empty() {
            self.mark_used()?;
        }
        self.repository
            .move_refs(git, &moves, "escrow: undo", Some(&area))?;
        if begun && moves.is_empty() {
            area.unlink(MOVING)?;
        }
        self.sync_refs()?;
        Ok(kept)
    }

    /// Git syncs neither the log of a reference nor its directory.
    fn sync_refs(&self) -> Result<()> {
        match self.release.moves.is_empty() {
            true => Ok(()),
            false => Ok(self.repository.dir()?.sync_file_system()?),
        }
    }
}

fn remove_all(packs: &Dir, names: &[&[u8]]) -> Result<()> {
    for name in names {
        remove::remove(packs, name)?;
    }
    match names.is_empty() {
        true => Ok(()),
        false => Ok(packs.sync()?),
    }
}
