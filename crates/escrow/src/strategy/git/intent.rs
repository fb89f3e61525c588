//! What a commit does to the user's repository: objects as a pack, references by compare-and-swap, entries of the index,
//! and single files. Everything here can be repeated, and taken back.

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::history::path_of;
use super::index::IndexChange;
use super::replace::{self, Replacement};
use super::repository::{RefMove, Refs, Repository, is_id};
use crate::fs::{Cause, Dir, remove};
use crate::model::Conflict;
use crate::model::text::Location;

/// The git directory with the settings, in the area of a commit.
pub(super) const SETTINGS: &str = "settings";

/// Says in the area of a commit that its objects may be in use.
const USED: &[u8] = b"used";

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
    Ok(Conflict::of(
        path_of(format!(".git/{name}").as_bytes())?,
        what,
    ))
}

/// What references are now, asked in one call; those that do not exist are left out.
pub(super) fn values<'a>(
    git: &Git,
    repository: &Repository,
    names: impl Iterator<Item = &'a str>,
) -> Result<Refs> {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(Refs::new());
    }
    let asked: String = names.iter().flat_map(|name| [*name, "\n"]).collect();
    let call = repository.call(git);
    let call = call.args(["cat-file", "--batch-check=%(objectname)"]);
    let said = call.input(asked).run()?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let named = names.iter().zip(said.lines());
    let value =
        |(name, value): (&&str, &str)| is_id(value).then(|| ((*name).to_owned(), value.to_owned()));
    Ok(named.filter_map(value).collect())
}

impl GitIntent {
    /// Carries it out, after the files are in place.
    pub(super) fn apply(&self, git: &Git) -> Result<()> {
        replace::apply(&self.area()?, &self.release.files)?;
        self.install_packs()?;
        self.move_refs(git, false)?;
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

    /// Takes it back, before the files are. What may refuse comes first.
    pub(super) fn undo(&self, git: &Git) -> Result<()> {
        self.move_refs(git, true)?;
        self.set_index(git, true)?;
        let area = self.area()?;
        replace::undo(&area, &self.release.files)?;
        match area.stat(USED)? {
            Some(_) => Ok(()),
            None => self.remove_packs(),
        }
    }

    /// Where the repository moved on since.
    pub(super) fn check_undo(&self, git: &Git) -> Result<Vec<Conflict>> {
        let mut conflicts = replace::check(&self.release.files)?;
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
        Ok(conflicts)
    }

    /// What the references that move are now, asked in one call.
    fn values(&self, git: &Git) -> Result<Refs> {
        let names = self.release.moves.iter().map(|one| one.name.as_str());
        values(git, &self.repository, names)
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

    /// Removes what was brought and never used: what is not in the area any more.
    fn remove_packs(&self) -> Result<()> {
        if self.packs.is_empty() {
            return Ok(());
        }
        let (area, packs) = (self.area()?, self.packs()?);
        for name in self.packs.iter().rev().map(String::as_bytes) {
            if area.stat(name)?.is_none() {
                remove::remove(&packs, name)?;
            }
        }
        Ok(packs.sync()?)
    }

    fn move_refs(&self, git: &Git, back: bool) -> Result<()> {
        let names = self.release.moves.iter().map(|one| one.name.as_str());
        self.repository.clear_locks(names, &self.area()?)?;
        let mut moves = Vec::new();
        let values = self.values(git)?;
        for one in &self.release.moves {
            let (from, to) = match back {
                true => (&one.new, &one.old),
                false => (&one.old, &one.new),
            };
            let now = values.get(&one.name).cloned();
            if now == *to {
                continue;
            }
            if now != *from {
                return Err(StrategyError::Moved {
                    path: path_of(format!(".git/{}", one.name).as_bytes())?,
                    what: "it has another commit by now".to_owned(),
                });
            }
            moves.push(RefMove {
                name: one.name.clone(),
                old: from.clone(),
                new: to.clone(),
            });
        }
        // The process that moved it may have died before it could say so.
        if back && !moves.is_empty() {
            self.mark_used()?;
        }
        let message = match back {
            true => "escrow: undo",
            false => &self.release.message,
        };
        self.repository
            .move_refs(git, &moves, message, Some(&self.area()?))?;
        // Git syncs neither the log of a reference nor its directory.
        match self.release.moves.is_empty() {
            true => Ok(()),
            false => Ok(self.repository.dir()?.sync_file_system()?),
        }
    }
}
