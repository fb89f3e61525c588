//! `git_worktree`: the working files of a checkout, and a private git directory.
//!
//! Both are sandboxes of a directory strategy: one of the checkout without its `.git`, one of a git directory that is
//! written once (`seed/`). So checkpoints, restores, forks and rollbacks of files, index, references, stash and reflog
//! are those of directories. Inside, the second one lies where `.git` is, and the user's objects can be read below it.
//!
//! ```text
//! <area>/
//!   seed/            the private git directory as it was when the sandbox was made
//!   files/           the area of the sandbox of the working files
//!   git/             the area of the sandbox of the git directory
//! ```
//!
//! A release is that of the files, then objects, references and index ([`release`]). In the user's repository there is
//! one reference, `refs/escrow/<plan>-<resource>`, which keeps the base alive; nothing else before a release.

mod between;
mod carried;
mod checked;
mod clean;
mod command;
mod danger;
mod databases;
mod history;
mod identity;
mod ignored;
mod index;
mod intent;
mod keep;
mod locks;
mod make;
mod modules;
mod named;
mod options;
mod part;
mod place;
mod release;
mod replace;
mod repository;
mod said;
mod seed;
mod session;
mod trees;
mod work;

pub(crate) use databases::tracked;
pub(crate) use ignored::{ignored_files, ignored_paths};

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use self::clean::CleanTree;
use self::command::Git;
use self::intent::GitIntent;
use self::keep::keep_ref;
use self::modules::Module;
use self::options::GitOptions;
use self::repository::{Head, Repository};
use self::session::GitSession;
use super::error::{Result, StrategyError};
use super::tree;
use super::tree_commit::onto;
use super::{
    Capabilities, CreateRequest, Created, Exposes, FinishedCommit, Intent, LiveView, Outcome,
    Probe, Remember, RollbackReport, Sandbox, Session, Snapshot, Strategy, Target, TargetLocation,
    UndoChoices, UndoPlan, unsupported,
};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::text::{Location, escape};
use crate::model::{Conflict, ResourcePath, SandboxRef};

const NAME: &str = "git_worktree";
const SEED: &[u8] = b"seed";
const TREE: &[u8] = b"tree";
const FILES: &str = "files";
const GIT: &str = "git";
const GIT_DIR: &[u8] = b".git";

/// The strategy, over those for directories: layers first, then copies for where layers cannot be had.
pub(super) struct GitWorktree {
    below: Vec<Arc<dyn Strategy>>,
    git: OnceLock<std::result::Result<Git, String>>,
}

/// What is written down about a sandbox.
#[derive(Serialize, Deserialize)]
struct GitMetadata {
    files: SandboxRef,
    git: SandboxRef,
    area: Location,
    checkout: Location,
    repository: Repository,
    /// Where the user's HEAD was.
    head: Head,
    #[serde(default)]
    depends_on: Vec<Location>,
    #[serde(default)]
    options: GitOptions,
    /// Where the seed is: in its own area, or in that of the sandbox it was forked from.
    seed: Location,
    /// The submodules that are checked out, where the files are seen as they lie.
    #[serde(default)]
    modules: Vec<Module>,
    /// Databases in it that are resources of their own.
    #[serde(default)]
    databases: Vec<ResourcePath>,
}

/// A state of both, or an intent of both.
#[derive(Serialize, Deserialize)]
struct Both<T> {
    files: T,
    git: T,
}

/// What a commit carries out.
#[derive(Serialize, Deserialize)]
struct CommitIntent {
    files: Intent,
    repository: Option<GitIntent>,
    /// The strategy of both.
    #[serde(default = "layers")]
    below: String,
}

/// A return of both to a snapshot.
#[derive(Serialize, Deserialize)]
struct RestoreIntent {
    #[serde(flatten)]
    both: Both<Intent>,
    #[serde(default = "layers")]
    below: String,
}

fn layers() -> String {
    "overlay".to_owned()
}

fn refused(what: &str, why: &str) -> StrategyError {
    unsupported(NAME, what, why)
}

fn metadata(sandbox: &SandboxRef) -> Result<GitMetadata> {
    tree::metadata(sandbox)
}

fn git_dir() -> ResourcePath {
    ResourcePath::root().join(GIT_DIR)
}

fn parse<T: for<'de> Deserialize<'de>>(stored: &serde_json::Value) -> Result<T> {
    serde_json::from_value(stored.clone()).map_err(|error| StrategyError::Damaged {
        what: format!("what it stored cannot be read ({error})"),
    })
}

impl GitWorktree {
    pub(super) fn new(below: Vec<Arc<dyn Strategy>>) -> Self {
        Self {
            below,
            git: OnceLock::new(),
        }
    }

    fn git(&self) -> Result<&Git> {
        let found = self.git.get_or_init(Git::find);
        found.as_ref().map_err(|why| StrategyError::Git {
            what: "be started".to_owned(),
            said: why.clone(),
        })
    }

    /// The strategy of this name below.
    fn below(&self, name: &str) -> Result<&dyn Strategy> {
        let found = self.below.iter().find(|one| one.name() == name);
        found
            .map(AsRef::as_ref)
            .ok_or_else(|| StrategyError::Damaged {
                what: format!("it was made by '{name}', which is not known"),
            })
    }

    /// The first strategy that works below for this checkout, and what it answered; else what the first one answered.
    fn choose(&self, target: &Target, area: Option<&Path>) -> (Option<&dyn Strategy>, Probe) {
        let mut first: Option<Probe> = None;
        for one in &self.below {
            let mut answer = one.probe(target, area);
            if answer.works {
                let own = "a git checkout, with a git directory of its own";
                answer.reason = match first {
                    None => own.to_owned(),
                    Some(layers) => format!("{own}; it is copied: {}", layers.reason),
                };
                return (Some(one.as_ref()), answer);
            }
            first.get_or_insert(answer);
        }
        let none = || Probe::no("nothing works below");
        (None, first.unwrap_or_else(none))
    }

    fn open_both(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<GitSession> {
        let sandbox = metadata(sandbox)?;
        let mut released = Vec::new();
        for part in parts {
            released.extend(commit_intent(part)?.map(|part| part.files));
        }
        let inner = match &session {
            Session::Live(view) => Session::Live(LiveView {
                path: sandbox.repository.git_dir.clone(),
                ..view.clone()
            }),
            other => other.clone(),
        };
        let below = self.below(&sandbox.files.strategy_name)?;
        Ok(GitSession {
            live: matches!(session, Session::Live(_)),
            files: below.open(&sandbox.files, session, &released)?,
            private: below.open(&sandbox.git, inner, &[])?,
            program: self.git()?.clone(),
            sandbox,
            found: RefCell::default(),
        })
    }

    fn create_new(&self, request: &CreateRequest<'_>, at: &Path, area: &Dir) -> Result<Created> {
        let git = self.git()?;
        let options = GitOptions::read(&request.target.options)?;
        let repository = Repository::of(git, at)?;
        let (below, why) = match self.choose(request.target, request.area) {
            (Some(below), answer) => (below, answer.reason),
            (None, answer) => return Err(refused("keep a private history here", &answer.reason)),
        };
        for name in [SEED, TREE, FILES.as_bytes(), GIT.as_bytes()] {
            remove::remove(area, name)?;
            area.make_dir(name, 0o700)?;
        }
        let base = clean::wanted(request.target)?;
        let mut modules = modules::find(git, &repository, at)?;
        let (head, mut warnings) = self.begin(request, &repository, at, base, area)?;
        if base.is_some() {
            // They are no part of the tree of a commit.
            warnings.extend(modules::left_out(&modules));
            modules.clear();
        }
        for module in &modules {
            self.keep(request, &module.repository, module.base(), area)?;
        }
        let databases = databases::among(at, &request.target.carved);
        databases::leave_out(&databases, &area.subdir(SEED)?)?;
        let place = (at, repository.objects());
        databases::hold(git, &databases, place, &area.subdir(SEED)?)?;
        modules::fill(git, &modules, &area.subdir(SEED)?)?;
        let mut target = request.target.clone();
        target.carved.push(git_dir());
        target.carved.sort_unstable();
        let (seed, tree) = (area.subdir(SEED)?, area.subdir(TREE)?);
        if base.is_some() {
            target.location = TargetLocation::Path(Location::from(tree.path()));
        }
        let made = |target: &Target, name: &str| {
            below.create(&CreateRequest {
                target,
                area: Some(&area.path().join(name)),
                ..*request
            })
        };
        let mut files = made(&target, FILES)?;
        if base.is_some() {
            onto::release_into(&mut files.sandbox, at)?;
        }
        let private = Target {
            location: TargetLocation::Path(Location::from(seed.path())),
            carved: Vec::new(),
            ..target.clone()
        };
        let private = made(&private, GIT)?;
        let sandbox = GitMetadata {
            files: files.sandbox,
            git: private.sandbox,
            area: Location::from(area.path()),
            checkout: Location::from(at),
            repository,
            head,
            depends_on: Vec::new(),
            options,
            seed: Location::from(seed.path()),
            modules,
            databases,
        };
        warnings.extend(files.warnings);
        let copied = self
            .below
            .first()
            .is_some_and(|one| one.name() != below.name());
        warnings.extend(copied.then_some(why));
        let what = match base {
            Some(name) => format!("a clean tree of {}", escape(name.as_bytes())),
            None => "the files as they lie".to_owned(),
        };
        Ok(Created {
            sandbox: reference(request, &sandbox),
            message: format!("{what}; a private git directory; {}", files.message),
            warnings,
        })
    }

    /// Fills the seed, and the clean tree if one is asked for. Returns where the history begins, and what is not there.
    fn begin(
        &self,
        request: &CreateRequest<'_>,
        repository: &Repository,
        at: &Path,
        base: Option<&str>,
        area: &Dir,
    ) -> Result<(Head, Vec<String>)> {
        let (git, seed) = (self.git()?, area.subdir(SEED)?);
        let user = repository.head(git)?;
        let mut head = user.clone();
        if let Some(name) = base {
            if user.commit.is_none() {
                return Err(refused(
                    "begin at a revision",
                    "the branch has no commit yet",
                ));
            }
            head.commit = Some(repository.commit(git, name)?);
        }
        self.keep(request, repository, &head, area)?;
        seed::fill(git, repository, &user, &seed)?;
        named::keep_settings(repository, area)?;
        let mut warnings = seed::left_out(&repository.settings(git)?);
        if let (Some(_), Some(commit)) = (base, &head.commit) {
            let clean = CleanTree {
                git,
                repository,
                checkout: at,
                seed: &seed,
                tree: &area.subdir(TREE)?,
            };
            warnings.extend(clean.make(&head, commit)?);
        }
        Ok((head, warnings))
    }

    fn fork(&self, request: &CreateRequest<'_>, area: &Dir) -> Result<Created> {
        let Some((from, snapshot)) = request.from else {
            return Err(refused("fork", "there is nothing to begin with"));
        };
        let (other, snapshot) = (metadata(from)?, parse::<Both<Snapshot>>(&snapshot.0)?);
        let below = self.below(&other.files.strategy_name)?;
        let made = |from: &SandboxRef, snapshot: &Snapshot, name: &str| {
            remove::remove(area, name.as_bytes())?;
            area.make_dir(name.as_bytes(), 0o700)?;
            below.create(&CreateRequest {
                area: Some(&area.path().join(name)),
                from: Some((from, snapshot)),
                ..*request
            })
        };
        self.keep(request, &other.repository, &other.head, area)?;
        for module in &other.modules {
            self.keep(request, &module.repository, module.base(), area)?;
        }
        let files = made(&other.files, &snapshot.files, FILES)?;
        let private = made(&other.git, &snapshot.git, GIT)?;
        let mut depends_on = other.depends_on;
        depends_on.push(other.area);
        let sandbox = GitMetadata {
            files: files.sandbox,
            git: private.sandbox,
            area: Location::from(area.path()),
            checkout: other.checkout,
            repository: other.repository,
            head: other.head,
            depends_on,
            options: other.options,
            seed: other.seed,
            modules: other.modules,
            databases: other.databases,
        };
        Ok(Created {
            sandbox: reference(request, &sandbox),
            message: format!("a history of its own; files: {}", files.message),
            warnings: files.warnings,
        })
    }
}

fn reference(request: &CreateRequest<'_>, sandbox: &GitMetadata) -> SandboxRef {
    SandboxRef {
        plan_id: request.plan_id,
        resource_id: request.target.resource_id,
        strategy_name: NAME.to_owned(),
        metadata: tree::stored(sandbox),
    }
}

fn commit_intent(intent: &Intent) -> Result<Option<CommitIntent>> {
    if intent.0.get("repository").is_none() {
        return Ok(None);
    }
    parse(&intent.0).map(Some)
}

/// What is promised over a strategy for directories: nothing is seen from outside, where the git directory is another.
fn over(below: &Arc<dyn Strategy>) -> Capabilities {
    Capabilities {
        strength: 7,
        exposes: Exposes::Nothing,
        ..below.capabilities()
    }
}

impl Strategy for GitWorktree {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.below.first().map_or_else(Capabilities::default, over)
    }

    fn capabilities_of(&self, sandbox: &SandboxRef) -> Capabilities {
        let below = metadata(sandbox).map(|sandbox| sandbox.files.strategy_name);
        let below = below.unwrap_or_else(|_| layers());
        let mut found = self.below.iter().filter(|one| one.name() == below);
        found.next().map_or_else(|| self.capabilities(), over)
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        let Some(at) = target.path() else {
            return Probe::no("the resource has no path");
        };
        let found = self.git().and_then(|git| {
            let repository = Repository::of(git, at)?;
            modules::find(git, &repository, at)
        });
        let mut answer = match found {
            Err(StrategyError::Unsupported { why, .. }) => Probe::no(why),
            Err(error) => Probe::no(error.to_string()),
            Ok(_) => self.choose(target, area).1,
        };
        answer.remember = Remember::Never;
        answer
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (at, place) = tree::places(NAME, request)?;
        let area = Dir::open(place)?;
        match request.from {
            Some(_) => self.fork(request, &area),
            None => self.create_new(request, at, &area),
        }
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        Ok(Box::new(self.open_both(sandbox, session, parts)?))
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        match commit_intent(intent)? {
            Some(intent) => {
                let below = self.below(&intent.below)?;
                below.commit(&intent.files, observer)?;
                match &intent.repository {
                    Some(repository) => repository.apply(self.git()?),
                    None => Ok(()),
                }
            }
            None => {
                let RestoreIntent { both, below } = parse(&intent.0)?;
                let below = self.below(&below)?;
                below.commit(&both.files, observer)?;
                below.commit(&both.git, observer)
            }
        }
    }

    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> {
        match commit_intent(intent)? {
            Some(intent) => {
                let kept = match &intent.repository {
                    Some(repository) if !repository.is_left()? => repository.undo(self.git()?)?,
                    _ => Vec::new(),
                };
                let below = self.below(&intent.below)?;
                let mut undone = below.undo(&intent.files, observer)?;
                undone.kept.extend(kept);
                Ok(undone)
            }
            None => {
                let RestoreIntent { both, below } = parse(&intent.0)?;
                let below = self.below(&below)?;
                below.undo(&both.git, observer)?;
                below.undo(&both.files, observer)
            }
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        let (files, below) = match commit_intent(intent)? {
            Some(intent) => (intent.files, intent.below),
            None => {
                let RestoreIntent { both, below } = parse(&intent.0)?;
                (both.files, below)
            }
        };
        self.below(&below)?.outcome(&files)
    }

    fn takes_in_later(&self, _sandbox: &SandboxRef) -> bool {
        false
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let Some(intent) = commit_intent(intent)? else {
            return Ok(Vec::new());
        };
        let mut conflicts = self.below(&intent.below)?.check_undo(&intent.files)?;
        if let Some(repository) = &intent.repository {
            conflicts.extend(repository.check_undo(self.git()?)?);
        }
        Ok(conflicts)
    }

    fn plan_undo(&self, intent: &Intent, choices: &UndoChoices, record: bool) -> Result<UndoPlan> {
        let Some(commit) = commit_intent(intent)? else {
            return Ok(UndoPlan::default());
        };
        let (history, files): (BTreeSet<_>, BTreeSet<_>) = choices
            .leave
            .iter()
            .cloned()
            .partition(|path| path.lies_in(&git_dir()));
        let files = UndoChoices {
            leave: files,
            ..choices.clone()
        };
        let mut plan = self
            .below(&commit.below)?
            .plan_undo(&commit.files, &files, record)?;
        if let Some(repository) = &commit.repository {
            let rows = repository.rows()?;
            let all = !history.is_empty() && rows.iter().all(|row| history.contains(row));
            if !all && !history.is_empty() {
                let why = "its branches and its index go back together: `.git/**` names them";
                return Err(refused("take a part of a history back", why));
            }
            if record {
                repository.leave(all)?;
            }
            plan.paths.extend(rows);
        }
        Ok(plan)
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let Some(mut commit) = commit_intent(&intent)? else {
            return Ok(FinishedCommit {
                intent,
                notes: Vec::new(),
            });
        };
        let finished = self.below(&commit.below)?.finish(commit.files)?;
        commit.files = finished.intent;
        Ok(FinishedCommit {
            intent: Intent(tree::stored(&commit)),
            notes: finished.notes,
        })
    }

    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, area: Option<&Path>) -> Result<()> {
        let name = keep_ref(sandbox.plan_id, sandbox.resource_id);
        let mut area = area.map(Path::to_owned);
        let all = if sandbox.metadata.is_null() {
            // Its creation was interrupted, by whichever strategy.
            self.begun(target)?
        } else {
            let sandbox = metadata(sandbox)?;
            let below = self.below(&sandbox.files.strategy_name)?;
            below.cleanup(&sandbox.files, target, None)?;
            below.cleanup(&sandbox.git, target, None)?;
            area.get_or_insert(sandbox.area.as_path().to_owned());
            let modules = sandbox.modules.into_iter().map(|one| one.repository);
            modules.chain([sandbox.repository]).collect()
        };
        // A repository that is gone keeps nothing.
        let there = |one: &Repository| match Dir::open(one.common()) {
            Err(error) => !error.is_absent(),
            Ok(_) => true,
        };
        let all: Vec<Repository> = all.iter().map(Repository::shared).filter(there).collect();
        let area = area.and_then(|area| Dir::open(&area).ok());
        // The mark does not say in which of them a killed process left locks.
        if let Some(area) = area.as_ref().filter(|_| !all.is_empty()) {
            for one in &all {
                one.clear_locks([name.as_str()].into_iter(), area)?;
            }
        }
        let mut all = all.iter();
        all.try_for_each(|one| self.forget(one, &name, area.as_ref()))
    }
}
