//! Submodules that are checked out: their files are files of the checkout, and each has a private git directory inside that
//! of the checkout, so that git works in them.
//!
//! What is committed in a submodule inside is not released: where its HEAD moved, or what is released names a commit that the
//! user's submodule does not have, a commit of the plan refuses what belongs to it, with the reason. A submodule, or a linked worktree, that is made inside has its git directory in the private one, so its
//! `.git` would lead nowhere: it is refused too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::slice;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::history::{History, path_of, read_file};
use super::place::Place;
use super::repository::{Head, Repository, is_id, line, read_refs, read_settings, subdir};
use super::seed;
use super::session::GitSession;
use super::trees::{self, Pointers};
use crate::fs::{Dir, state_dir};
use crate::model::{Change, ChangeKind, ResourcePath};

/// Where the git directories of submodules are.
const MODULES: &[u8] = b"modules";

/// How deep the name of a submodule, and submodules of submodules, may go.
const DEEPEST: usize = 32;

/// A submodule that is checked out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Module {
    /// Its git directory, in that of the checkout.
    pub(super) at: ResourcePath,
    /// Its files, in the checkout.
    files: ResourcePath,
    pub(super) repository: Repository,
    /// Where its HEAD was.
    head: Head,
}

/// The git directories of the submodules of a repository, whether they are checked out or not.
pub(super) fn git_dirs(repository: &Repository) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if let Some(modules) = subdir(&repository.dir()?, MODULES)? {
        add_git_dirs(&modules, &mut found, DEEPEST)?;
    }
    Ok(found)
}

/// A name may have several parts, and a submodule may have submodules.
fn add_git_dirs(dir: &Dir, found: &mut Vec<PathBuf>, depth: usize) -> Result<()> {
    for entry in dir.entries()? {
        if !entry.meta.is_dir() || depth == 0 {
            continue;
        }
        let below = dir.subdir(&entry.name)?;
        let mut parts = ["HEAD", "objects", "refs"].iter();
        let is_one = parts.try_fold(true, |all, name| {
            Ok::<_, StrategyError>(all && below.stat(name.as_bytes())?.is_some())
        })?;
        if !is_one {
            add_git_dirs(&below, found, depth - 1)?;
            continue;
        }
        found.push(below.path().to_owned());
        if let Some(modules) = subdir(&below, MODULES)? {
            add_git_dirs(&modules, found, depth - 1)?;
        }
    }
    Ok(())
}

/// The submodules of a checkout that are checked out; refuses one in which something is under way.
pub(super) fn find(git: &Git, repository: &Repository, checkout: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for git_dir in git_dirs(repository)? {
        // A sparse checkout has it among the settings of the worktree.
        let settings = read_settings(git, &git_dir, &git_dir)?;
        let mut worktree = settings.iter().rev();
        let worktree = worktree.find(|(key, _)| key == "core.worktree");
        let Some((_, worktree)) = worktree else {
            continue;
        };
        let Ok(files) = state_dir::canonical(&git_dir.join(worktree)) else {
            continue;
        };
        let own = state_dir::canonical(&git_dir).ok();
        let (Ok(below), Ok(place)) = (files.strip_prefix(checkout), Place::of(&files)) else {
            continue;
        };
        if Some(&place.git_dir) != own.as_ref() || below.as_os_str().is_empty() {
            continue;
        }
        let of = Repository::of(git, &files)?;
        let at = git_dir.strip_prefix(repository.git_dir.as_path());
        let at = at.map_err(|_| StrategyError::Damaged {
            what: "a submodule lies outside of its repository".to_owned(),
        })?;
        modules.push(Module {
            at: path_of(at.as_os_str().as_encoded_bytes())?,
            files: path_of(below.as_os_str().as_encoded_bytes())?,
            head: of.head(git)?,
            repository: of,
        });
    }
    Ok(modules)
}

/// Fills the private git directories, in the seed of that of the checkout.
pub(super) fn fill(git: &Git, modules: &[Module], seed: &Dir) -> Result<()> {
    for module in modules {
        let mut to = seed.again();
        for part in module.at.parts() {
            if to.stat(part)?.is_none() {
                to.make_dir(part, 0o755)?;
            }
            to = to.subdir(part)?;
        }
        seed::fill(git, &module.repository, &module.head, &to)?;
    }
    Ok(())
}

/// Says that these are not there.
pub(super) fn left_out(modules: &[Module]) -> Option<String> {
    let names: Vec<String> = modules
        .iter()
        .map(|one| format!("'{}'", one.files))
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "the files of submodules are not in the sandbox: {}",
            names.join(", ")
        )
    })
}

impl Module {
    /// Where its HEAD was.
    pub(super) fn base(&self) -> &Head {
        &self.head
    }

    /// Where its files are in the checkout.
    pub(super) fn files(&self) -> &ResourcePath {
        &self.files
    }

    fn refused(&self, why: &str) -> StrategyError {
        let what = format!("release the commits of the submodule '{}'", self.files);
        super::refused(&what, why)
    }

    /// Whether its HEAD is where it was, or was removed inside with its git directory: the user's stays as it is.
    fn is_unmoved(&self, private: &dyn Sandbox) -> Result<bool> {
        let read = |name: &str| {
            let path = [self.at.as_bytes(), b"/", name.as_bytes()].concat();
            read_file(private, &path)
        };
        let Some(at) = read("HEAD")? else {
            return Ok(true);
        };
        let at = line(&at);
        let Some(branch) = at.strip_prefix("ref: ") else {
            return Ok(self.head.commit.as_ref() == Some(&at));
        };
        // A name that leads elsewhere is none.
        if path_of(branch.as_bytes()).is_err() {
            return Ok(self.head.commit.is_none());
        }
        let loose = read(branch)?.map(|id| line(&id)).filter(|id| is_id(id));
        let packed = read_refs(&read("packed-refs")?.unwrap_or_default())?;
        Ok(loose.as_ref().or(packed.get(branch)) == self.head.commit.as_ref())
    }
}

/// Says of each submodule in which something was committed inside that this keeps the checkout from being released. `recorded`
/// says whether the history of the checkout, or its index, names such a commit too: then it does not help to move the HEAD of
/// the submodule back.
fn changes(
    modules: &[Module],
    private: &dyn Sandbox,
    recorded: impl Fn(&Module) -> Result<bool>,
) -> Result<Vec<Change>> {
    let mut found = Vec::new();
    for module in modules {
        if module.is_unmoved(private)? {
            continue;
        }
        let line = "what was committed in it is not released, and keeps this checkout from being committed";
        let detail = json!({
            "submodule": module.files,
            "was": module.head.commit,
            "recorded": recorded(module)?,
            "released": false,
            "lines": [line],
        });
        let path = path_of(&[b".git/", module.at.as_bytes()].concat())?;
        found.push(Change::opaque(path, ChangeKind::Modified, detail));
    }
    Ok(found)
}

impl GitSession {
    /// The submodules in which something was committed.
    pub(super) fn moved_modules(&self, history: &History, scratch: &Dir) -> Result<Vec<Change>> {
        changes(&self.sandbox.modules, &*self.private, |module| {
            let path = module.files().as_bytes().to_vec();
            let (before, after) = self.index(history, scratch)?.of(&path);
            let of = |head: &Head| match &head.commit {
                Some(id) => {
                    trees::entries(|| history.call(&self.program), id, slice::from_ref(&path))
                }
                None => Ok(BTreeMap::new()),
            };
            Ok(before != after || of(&self.sandbox.head)? != of(&history.head)?)
        })
    }
}

/// Refuses to release commits of a submodule, and a submodule or a worktree that was made inside. `history` says whether
/// that of the checkout is released too, which may name the commit of a submodule.
pub(super) fn check(
    modules: &[Module],
    private: &dyn Sandbox,
    files: &dyn Sandbox,
    changes: &[&Change],
    history: bool,
) -> Result<()> {
    for module in modules {
        let concerned = history || changes.iter().any(|one| one.path.lies_in(&module.files));
        if concerned && !module.is_unmoved(private)? {
            return Err(module.refused(
                "only those of the checkout itself are released; give the submodule a plan of its own, or move its HEAD back inside \
                 (`git reset --soft`), and its files arrive uncommitted",
            ));
        }
    }
    for change in changes.iter().filter(|one| one.kind == ChangeKind::Added) {
        let Some((above, name)) = change.path.split() else {
            continue;
        };
        if name != b".git" || above.is_root() {
            continue;
        }
        let Ok(Some(text)) = read_file(files, change.path.as_bytes()) else {
            continue;
        };
        let leads = text.strip_prefix(b"gitdir: ").unwrap_or_default();
        let into = |name: &[u8]| leads.windows(name.len()).any(|part| part == name);
        if into(b"/modules/") || into(b"/worktrees/") {
            let what = format!("release '{above}', a submodule or worktree that was made inside");
            let why = format!(
                "its history lies in the private git directory; `git submodule deinit` or `git worktree remove` it inside, or leave it \
                 out with `--exclude '{above}/**'`"
            );
            return Err(super::refused(&what, &why));
        }
    }
    Ok(())
}

/// Refuses to release what names commits that the user's submodule does not have: they may lie in the private git directory
/// only, on a branch that its HEAD is not at, and would be gone with the sandbox.
pub(super) fn check_pointers(git: &Git, modules: &[Module], pointers: &Pointers) -> Result<()> {
    for module in modules {
        let Some(ids) = pointers.get(module.files.as_bytes()) else {
            continue;
        };
        let asked: String = ids.iter().map(|id| format!("{id}\n")).collect();
        let call = module.repository.call(git);
        let args = ["cat-file", "--batch-check=%(objectname)"];
        let said = line(&call.args(args).input(asked).run()?);
        // Of one that is missing it says so behind the name.
        let known: BTreeSet<&str> = said.lines().collect();
        if let Some(id) = ids.iter().find(|id| !known.contains(id.as_str())) {
            let why = format!(
                "the history or index of the checkout names {id}, which the user's submodule does not have, and only commits of the \
                 checkout itself are released; give the submodule a plan of its own, fetch the commit there, or commit inside \
                 without it"
            );
            return Err(module.refused(&why));
        }
    }
    Ok(())
}
