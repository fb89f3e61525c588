//! A session with a git sandbox: files and history as one.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::super::{
    Access, BothSides, Intent, Mount, PrepareRequest, Preview, PreviewNote, PreviewOptions,
    RestoreRequest, Sandbox, Snapshot, StagedCommit, unsupported,
};
use super::carried::Beside;
use super::command::Git;
use super::history::{self, Compared, History, RefState, STASH, is_released};
use super::index::{self, PrivateIndex};
use super::intent::{self, GitIntent, Release};
use super::make::Making;
use super::modules;
use super::named::Named;
use super::part::{check_part, digest};
use super::release::{Found, Look};
use super::repository::{Head, Repository, line, path_text};
use super::said;
use super::work::Work;
use super::{
    Both, CommitIntent, FILES, GIT, GIT_DIR, GitMetadata, NAME, RestoreIntent, commit_intent,
    git_dir, parse, refused, seed,
};
use crate::event::Observer;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigests;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{CarriedContents, Change, Detail, DiffView, ResourcePath};

/// What is said of a branch where that is asked for.
const BECOMES_COMMIT: &str = "what was left uncommitted becomes a commit";

/// A session with both.
pub(super) struct GitSession {
    pub(super) sandbox: GitMetadata,
    pub(super) files: Box<dyn Sandbox>,
    pub(super) private: Box<dyn Sandbox>,
    pub(super) program: Git,
    /// A command works in it.
    pub(super) live: bool,
    /// What the last preview found.
    pub(super) found: RefCell<Option<LastLook>>,
}

/// What the last preview found, and what belongs together in it.
pub(super) struct LastLook {
    pub(super) found: Found,
    /// The tree of what was left uncommitted.
    work: Option<String>,
    /// The changes of the history.
    pub(super) rows: Vec<ResourcePath>,
    /// The changed files.
    pub(super) files: HashSet<ResourcePath>,
}

/// A state of both, with where the history was.
#[derive(Serialize, Deserialize)]
pub(super) struct GitSnapshot {
    #[serde(flatten)]
    pub(super) both: Both<Snapshot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<RefState>,
}

impl GitSession {
    /// Refuses a checkout whose git directory went: the history inside is made of what it has.
    fn check_there(&self) -> Result<()> {
        let user = self.sandbox.repository.objects();
        match Dir::open(&user) {
            Err(error) if error.is_absent() => Err(StrategyError::Gone {
                original: self.sandbox.repository.git_dir.clone(),
            }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    pub(super) fn history(&self) -> Result<History> {
        self.check_there()?;
        let user = self.sandbox.repository.objects();
        History::read(&*self.private, self.sandbox.seed.as_path().to_owned(), user)
    }

    /// The sandbox a path is in, and the path in it.
    fn route<'a>(&'a self, path: &'a ResourcePath) -> (&'a dyn Sandbox, ResourcePath) {
        match path.lies_in(&git_dir()) {
            true => {
                let inner = path.parts().skip(1);
                let inner = inner.fold(ResourcePath::root(), |path, part| path.join(part));
                (&*self.private, inner)
            }
            false => (&*self.files, path.clone()),
        }
    }

    /// Gives a directory for objects and an index that are only looked at. Several may look at once, so each has its own.
    pub(super) fn with_scratch<T>(&self, look: impl FnOnce(&Dir) -> Result<T>) -> Result<T> {
        let area = Dir::open(self.sandbox.area.as_path())?;
        let thread = std::thread::current().id();
        let name = format!("scratch-{}-{thread:?}", std::process::id()).into_bytes();
        remove::remove(&area, &name)?;
        area.make_dir(&name, 0o700)?;
        let scratch = area.subdir(&name)?;
        let found = look(&scratch);
        remove::remove(&area, &name)?;
        found
    }

    /// The tree of what was left uncommitted, if that is to become a commit.
    fn work(
        &self,
        history: &History,
        files: &DiffView,
        scratch: &Dir,
        made: &Dir,
    ) -> Result<Option<String>> {
        if !self.sandbox.options.commit {
            return Ok(None);
        }
        let format = self.sandbox.repository.format.as_str();
        let index = self.index(history, scratch)?;
        let work = Work {
            git: &self.program,
            history,
            files: &*self.files,
            index: &index,
            format,
            scratch,
            made,
        };
        work.tree(files)
    }

    pub(super) fn index(&self, history: &History, scratch: &Dir) -> Result<PrivateIndex> {
        let format = self.sandbox.repository.format.as_str();
        let base = (&self.sandbox.head, format);
        PrivateIndex::read(&self.program, history, &*self.private, base, scratch)
    }

    fn named<'a>(&'a self, history: &'a History, scratch: &'a Dir) -> Named<'a> {
        Named {
            git: &self.program,
            history,
            private: &*self.private,
            repository: &self.sandbox.repository,
            scratch,
        }
    }

    /// What changed beside the files: references and the index, and what is released only by name. Of what was left
    /// uncommitted there is its tree, or why it cannot be committed.
    fn changes(
        &self,
        history: &History,
        files: &DiffView,
        work: Option<&std::result::Result<String, String>>,
        scratch: &Dir,
    ) -> Result<Vec<Change>> {
        let head = &self.sandbox.head;
        let before = Compared {
            head,
            refs: &history.base,
            branch: head.branch.as_deref(),
            all: self.sandbox.options.all_refs,
        };
        let (mut changes, graph) = history.changes(&self.program, &before)?;
        let index = self.index(history, scratch)?;
        match work {
            Some(Ok(tree)) => {
                history.note_work(&mut changes, &before, BECOMES_COMMIT, Some(tree))?
            }
            Some(Err(why)) => history.note_work(&mut changes, &before, why, None)?,
            None => changes.extend(index.change()?),
        }
        if self.sandbox.options.squash {
            history::note_squash(&mut changes);
        }
        let beside = Beside {
            files,
            now: true,
            index: Some(&index),
            work: work.and_then(|work| work.as_deref().ok()),
            objects: Some(scratch.path()),
        };
        self.carry(history, (&mut changes, graph), &beside)?;
        changes.extend(self.named(history, scratch).changes()?);
        Ok(changes)
    }

    /// Looks at what a release would do.
    fn look(&self, files: &Preview) -> Result<(LastLook, Vec<Change>)> {
        let history = self.history()?;
        history.check_objects()?;
        self.with_scratch(|scratch| {
            let work = self.work(&history, &files.diff, scratch, scratch)?;
            let tree = work.clone().map(Ok);
            let changes = self.changes(&history, &files.diff, tree.as_ref(), scratch)?;
            let commit = match &work {
                Some(tree) => Some(self.throwaway(&history, tree, scratch)?),
                None => None,
            };
            let look = Look {
                git: &self.program,
                sandbox: &self.sandbox,
                history: &history,
                private: &*self.private,
                work: commit,
                scratch,
            };
            let mut found = look.find()?;
            look.settle_files(&mut found, &*self.files, &files.conflicts)?;
            let rows = changes.iter().filter(|one| is_released(one));
            let last = LastLook {
                found,
                work,
                rows: rows.map(|one| one.path.clone()).collect(),
                files: files
                    .diff
                    .changes
                    .iter()
                    .map(|one| one.path.clone())
                    .collect(),
            };
            Ok((last, changes))
        })
    }

    /// A commit of a tree that is only looked at.
    fn throwaway(&self, history: &History, tree: &str, scratch: &Dir) -> Result<String> {
        let call = history.making(&self.program, scratch.path());
        let mut call = call.args(["commit-tree", "-m", "look", tree]);
        if let Some(parent) = &history.head.commit {
            call = call.args(["-p", parent]);
        }
        Ok(line(&call.run()?))
    }
}

/// Changes of files, then those of the history.
fn joined(files: &DiffView, history: Vec<Change>) -> DiffView {
    let files = files.changes.iter().cloned();
    DiffView::new(files.chain(history).collect())
}

fn is_history(change: &Change) -> bool {
    matches!(change.detail, Detail::Opaque { .. }) && change.path.lies_in(&git_dir())
}

impl Sandbox for GitSession {
    fn read(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let (sandbox, path) = self.route(path);
        sandbox.read(&path)
    }

    fn write(&self, path: &ResourcePath, content: &mut dyn Read) -> Result<Change> {
        let (sandbox, inner) = self.route(path);
        let mut change = sandbox.write(&inner, content)?;
        change.path = path.clone();
        Ok(change)
    }

    fn diff(&self, from: Option<&Snapshot>, to: Option<&Snapshot>) -> Result<DiffView> {
        let read = |one: Option<&Snapshot>| one.map(|one| parse::<GitSnapshot>(&one.0)).transpose();
        let (from, to) = (read(from)?, read(to)?);
        let files = self.files.diff(
            from.as_ref().map(|one| &one.both.files),
            to.as_ref().map(|one| &one.both.files),
        )?;
        let history = self.history()?;
        if let Err(StrategyError::Unsupported { why, .. }) = history.check_objects() {
            // It is shown all the same; the commit refuses.
            let states = (from, to);
            let changes = self.since(history.without_objects(), states, &files, Some(&why))?;
            return Ok(joined(&files, changes));
        }
        if from.is_none() && to.is_none() {
            let changes = self.with_scratch(|scratch| {
                let work = match self.work(&history, &files, scratch, scratch) {
                    // It is shown all the same; the commit refuses.
                    Err(StrategyError::Unsupported { what, why, .. }) => {
                        Some(Err(format!("cannot {what}: {why}")))
                    }
                    work => work?.map(Ok),
                };
                let mut changes = self.changes(&history, &files, work.as_ref(), scratch)?;
                changes.extend(self.moved_modules(&history, scratch)?);
                Ok(changes)
            })?;
            return Ok(joined(&files, changes));
        }
        let changes = self.since(history, (from, to), &files, None)?;
        Ok(joined(&files, changes))
    }

    fn digests(&self, changes: &[Change]) -> Result<VersionDigests> {
        let (history, files): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|change| is_history(change));
        let files: Vec<Change> = files.into_iter().cloned().collect();
        let mut digests = self.files.digests(&files)?;
        digests.extend(history.into_iter().filter_map(digest));
        Ok(digests)
    }

    fn carried(&self, change: &Change) -> Result<CarriedContents> {
        self.carried_contents(change)
    }

    fn keep_bases(&self, changes: &[Change]) -> Result<()> {
        let own = changes.iter().filter(|one| !is_history(one)).cloned();
        self.files.keep_bases(&own.collect::<Vec<_>>())
    }

    fn both_sides(&self, changes: &[Change]) -> Result<BothSides> {
        let own = changes.iter().filter(|one| !is_history(one)).cloned();
        self.files.both_sides(&own.collect::<Vec<_>>())
    }

    fn rollback(&self, observer: &dyn Observer) -> Result<String> {
        self.private.rollback(observer)?;
        let said = self.files.rollback(observer)?;
        let base = &self.sandbox.head;
        let short = |head: &Head| match &head.commit {
            Some(id) => id.get(..10).unwrap_or(id).to_owned(),
            None => "no commit".to_owned(),
        };
        // A repository that cannot be asked has not gone on.
        match self.sandbox.repository.head(&self.program) {
            Ok(user) if user != *base => Ok(format!(
                "{said}; its history begins at {} again, and the user's is at {} by now: a new plan begins there",
                short(base),
                short(&user)
            )),
            _ => Ok(said),
        }
    }

    fn checkpoint(&self, parent: Option<&Snapshot>, observer: &dyn Observer) -> Result<Snapshot> {
        let parent = parent
            .map(|one| parse::<Both<Snapshot>>(&one.0))
            .transpose()?;
        let parent = parent.as_ref();
        let kept = GitSnapshot {
            history: Some(self.history()?.state()),
            both: Both {
                files: self
                    .files
                    .checkpoint(parent.map(|one| &one.files), observer)?,
                git: self
                    .private
                    .checkpoint(parent.map(|one| &one.git), observer)?,
            },
        };
        Ok(Snapshot(tree::stored(&kept)))
    }

    fn retain(&self, keep: &[Snapshot]) -> Result<Vec<Snapshot>> {
        let all: Result<Vec<GitSnapshot>> = keep.iter().map(|one| parse(&one.0)).collect();
        let (mut files, mut git, mut histories) = (Vec::new(), Vec::new(), Vec::new());
        for one in all? {
            files.push(one.both.files);
            git.push(one.both.git);
            histories.push(one.history);
        }
        let (files, git) = (self.files.retain(&files)?, self.private.retain(&git)?);
        let kept = files.into_iter().zip(git).zip(histories);
        let one = |((files, git), history)| {
            let both = Both { files, git };
            Snapshot(tree::stored(&GitSnapshot { both, history }))
        };
        Ok(kept.map(one).collect())
    }

    fn preview(&self, options: &PreviewOptions) -> Result<Preview> {
        let files = PreviewOptions {
            merge: false,
            ..options.clone()
        };
        let mut preview = self.files.preview(&files)?;
        let (last, changes) = self.look(&preview)?;
        if options.merge {
            // Git merges what was committed; what was not is merged as in any directory.
            let both = preview.conflicts.iter().map(|one| one.path.clone());
            let (settled, left): (BTreeSet<_>, BTreeSet<_>) =
                both.partition(|path| last.found.settles(path));
            if !left.is_empty() {
                preview = self.files.preview(&PreviewOptions {
                    settled,
                    ..options.clone()
                })?;
            }
        }
        preview
            .conflicts
            .retain(|one| !last.found.merged.contains_key(&one.path));
        // Of what both sides committed the histories say more.
        for one in &mut preview.conflicts {
            let both = last
                .found
                .contested
                .iter()
                .find(|other| other.path == one.path);
            if let Some(both) = both {
                one.what.clone_from(&both.what);
            }
        }
        // A path in which the files contradict each other is named once.
        let files: HashSet<ResourcePath> = preview
            .conflicts
            .iter()
            .map(|one| one.path.clone())
            .collect();
        let both = last.found.conflicts();
        preview
            .conflicts
            .extend(both.filter(|one| !files.contains(&one.path)));
        let shown = |one: &Change| is_released(one) || one.is_by_name();
        let (released, left): (Vec<Change>, Vec<Change>) = changes.into_iter().partition(shown);
        for change in left {
            let what = match change.path.as_bytes().strip_prefix(b".git/") {
                Some(name) if name == STASH.as_bytes() => {
                    "it stays in the sandbox, and what it holds goes with that; `git stash pop` inside brings it back"
                }
                _ => {
                    "it stays in the sandbox: only the branch that was checked out is committed, without `refs: all`"
                }
            };
            preview.notes.push(PreviewNote {
                path: change.path,
                what: what.to_owned(),
            });
        }
        preview.diff = Arc::new(joined(&preview.diff, released));
        self.found.replace(Some(last));
        Ok(preview)
    }

    fn prepare(&self, request: &PrepareRequest<'_>) -> Result<StagedCommit> {
        let place = tree::commit_area(NAME, request.area)?;
        let area = Dir::open(place)?;
        for name in [FILES, GIT] {
            remove::remove(&area, name.as_bytes())?;
            area.make_dir(name.as_bytes(), 0o700)?;
        }
        let last = match self.found.take() {
            Some(last) => last,
            None => {
                let preview = self.files.preview(&PreviewOptions::default())?;
                self.look(&preview)?.0
            }
        };
        let changes = &request.preview.diff.changes;
        let (history, own): (Vec<&Change>, Vec<&Change>) =
            changes.iter().partition(|one| is_history(one));
        let (named, history): (Vec<&Change>, Vec<&Change>) =
            history.into_iter().partition(|one| one.is_by_name());
        // A part without its history leaves the history where it is.
        let whole = !request.preview.part || !history.is_empty();
        if request.preview.part && whole {
            let in_hunks = &request.preview.in_hunks;
            let whole = own.iter().filter(|one| !in_hunks.contains(&one.path));
            check_part(&last, &history, whole)?;
        }
        modules::check(
            &self.sandbox.modules,
            &*self.private,
            &*self.files,
            &own,
            whole,
        )?;
        // What the histories settle is none of the files' business, but for deletions, which may be those of whole directories.
        let merged = |one: &&Change| {
            let found = last.found.merged.get(&one.path);
            whole && found.is_some_and(|file| file.stays || file.new.is_some())
        };
        let (settled, own): (Vec<&Change>, Vec<&Change>) = own.into_iter().partition(merged);
        let mut files = request.preview.clone();
        files.diff = Arc::new(DiffView::new(own.into_iter().cloned().collect()));
        files.notes.retain(|note| !note.path.lies_in(&git_dir()));
        let inner = PrepareRequest {
            preview: &files,
            area: Some(&place.join(FILES)),
            ..*request
        };
        let mut staged = self.files.prepare(&inner)?;
        if request.digests {
            let settled: Vec<Change> = settled.into_iter().cloned().collect();
            staged.digests.extend(self.files.digests(&settled)?);
            let rows = history.iter().chain(&named);
            staged.digests.extend(rows.filter_map(|one| digest(one)));
        }
        let last = whole.then_some(last);
        let intent = CommitIntent {
            below: self.sandbox.files.strategy_name.clone(),
            files: staged.intent,
            repository: self.prepare_release(last, &named, request, &area)?,
        };
        Ok(StagedCommit {
            intent: Intent(tree::stored(&intent)),
            digests: staged.digests,
        })
    }

    fn prepare_restore(&self, request: &RestoreRequest<'_>) -> Result<Intent> {
        let place = tree::commit_area(NAME, request.area)?;
        let area = Dir::open(place)?;
        let (from, to) = (
            parse::<Both<Snapshot>>(&request.from.0)?,
            parse::<Both<Snapshot>>(&request.to.0)?,
        );
        let prepared = |sandbox: &dyn Sandbox, name: &str, from: &Snapshot, to: &Snapshot| {
            remove::remove(&area, name.as_bytes())?;
            area.make_dir(name.as_bytes(), 0o700)?;
            sandbox.prepare_restore(&RestoreRequest {
                from,
                to,
                area: Some(&place.join(name)),
                observer: request.observer,
            })
        };
        let restore = RestoreIntent {
            both: Both {
                files: prepared(&*self.files, FILES, &from.files, &to.files)?,
                git: prepared(&*self.private, GIT, &from.git, &to.git)?,
            },
            below: self.sandbox.files.strategy_name.clone(),
        };
        Ok(Intent(tree::stored(&restore)))
    }

    fn prepare_discard(
        &self,
        request: &RestoreRequest<'_>,
        paths: &BTreeSet<ResourcePath>,
    ) -> Result<Intent> {
        if paths.iter().any(|path| path.lies_in(&git_dir())) {
            let why = "it belongs together: `git` inside, or `escrow restore`, goes back in it";
            return Err(unsupported(NAME, "give a part of its history back", why));
        }
        // The history stays where it is.
        let mut staged: RestoreIntent = parse(&self.prepare_restore(request)?.0)?;
        let place = tree::commit_area(NAME, request.area)?;
        let area = Dir::open(place)?;
        remove::remove(&area, FILES.as_bytes())?;
        area.make_dir(FILES.as_bytes(), 0o700)?;
        let at = parse::<Both<Snapshot>>(&request.from.0)?.files;
        let files = RestoreRequest {
            from: &at,
            to: &at,
            area: Some(&place.join(FILES)),
            observer: request.observer,
        };
        staged.both.files = self.files.prepare_discard(&files, paths)?;
        Ok(Intent(tree::stored(&staged)))
    }

    fn take_in(&self, intent: &Intent) -> Result<()> {
        let Some(commit) = commit_intent(intent)? else {
            return Ok(());
        };
        self.files.take_in(&commit.files)?;
        match &commit.repository {
            Some(repository) if !repository.is_left()? => self.take_in_history(repository),
            _ => Ok(()),
        }
    }

    fn access(&self) -> Result<Access> {
        self.check_there()?;
        let mut access = self.files.access()?;
        // Files without their git directory are no place to work in.
        access.cwd = access.cwd.filter(|_| self.live);
        // The one in the checkout, or where its file says.
        let at = self.sandbox.repository.git_dir.as_path();
        let moved = |mount: Mount, at: &Path| Mount {
            at: Location::from(at),
            ..mount
        };
        let private = self.private.access()?.mounts;
        access
            .mounts
            .extend(private.into_iter().map(|mount| moved(mount, at)));
        let file = self.sandbox.checkout.as_path().join(path_text(GIT_DIR));
        if file != at {
            // The file that names it is no part of a copy, nor of a clean tree.
            access.mounts.push(Mount {
                at: Location::from(file.as_path()),
                view: View::ReadOnly(Location::from(file)),
                area: None,
            });
        }
        let borrowed = |at: &Path, repository: &Repository| Mount {
            at: Location::from(at.join(seed::BORROWED)),
            view: View::ReadOnly(Location::from(repository.objects())),
            area: None,
        };
        access.mounts.push(borrowed(at, &self.sandbox.repository));
        for module in &self.sandbox.modules {
            let at = at.join(path_text(module.at.as_bytes()));
            access.mounts.push(borrowed(&at, &module.repository));
        }
        Ok(access)
    }
}

impl GitSession {
    fn prepare_release(
        &self,
        last: Option<LastLook>,
        named: &[&Change],
        request: &PrepareRequest<'_>,
        area: &Dir,
    ) -> Result<Option<GitIntent>> {
        let (area, history) = (area.subdir(GIT.as_bytes())?, self.history()?);
        area.make_dir(b"objects", 0o700)?;
        let made = area.subdir(b"objects")?;
        let mut release = match last {
            Some(last) => {
                let found = last.found.settled(request.on_conflict)?;
                if let Some(tree) = &last.work {
                    let files = self.files.diff(None, None)?;
                    let again =
                        self.with_scratch(|scratch| self.work(&history, &files, scratch, &made))?;
                    if again.as_ref() != Some(tree) {
                        return Err(StrategyError::Moved {
                            path: git_dir(),
                            what: "the files inside are not those that were looked at".to_owned(),
                        });
                    }
                }
                let making = Making {
                    git: &self.program,
                    sandbox: &self.sandbox,
                    history: &history,
                    message: request.message,
                    on_conflict: request.on_conflict,
                    work: last.work,
                    area: &area,
                    made: &made,
                };
                let release = making.prepare(found)?;
                let changes = &request.preview.diff.changes;
                if let Some(why) = changes.iter().find_map(said::refused) {
                    return Err(refused("commit this history", why));
                }
                self.check_released(&history, &release, changes, &area)?;
                release
            }
            None => Release::default(),
        };
        if !named.is_empty() {
            self.with_scratch(|scratch| {
                let files = self.named(&history, scratch);
                files.stage(named, &area, &mut release.files)
            })?;
        }
        if release.is_empty() {
            return Ok(None);
        }
        if !release.index.is_empty() {
            index::wait_unlocked(&self.sandbox.repository.dir()?)?;
        }
        Ok(Some(GitIntent {
            repository: self.sandbox.repository.clone(),
            checkout: self.sandbox.checkout.clone(),
            branch: self.sandbox.head.branch.clone(),
            area: Location::from(area.path()),
            settings: Location::from(area.path().join(intent::SETTINGS)),
            packs: intent::packs(&area)?,
            release,
        }))
    }
}
