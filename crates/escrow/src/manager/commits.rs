//! Commit, undo and recover: all sandboxes of a plan or none.

use std::time::Duration;

use super::content::check_readable;
use super::{Manager, SandboxView};
use crate::commit::{
    Batch, CommitEngine, CommitPreview, CommitTerms, Member, MemberPreview, Previewed,
    check_expected,
};
use crate::config::AutoCheckpoint;
use crate::error::{Error, Result, chain};
use crate::event::{Observer, Unobserved};
use crate::fs::state_dir::{self, DirLock};
use crate::fs::workspace::is_absent;
use crate::model::text::Location;
use crate::model::{Action, CleanupPolicy, Expected, JournaledWork, Phase};
use crate::policy::select::ReleaseSelection;
use crate::resource::ResourceGraph;
use crate::store::{JournalEntry, Plan, Resource};
use crate::strategy::{Session, unsupported};

/// How a plan is to be committed.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitRequest<'a> {
    /// Why, in the user's words.
    pub message: Option<&'a str>,
    /// Under which terms.
    pub terms: CommitTerms,
    /// What is to be released; anything else is refused. `None`: whatever the sandboxes hold.
    pub expected: Option<&'a Expected>,
    /// Commands may run inside, and the plan stays open. They are paused until everything is staged, so that it is of one point
    /// in time; what they change afterwards is committed the next time, without conflicting with this.
    pub live: bool,
}

/// A plan that was committed.
#[derive(Debug)]
pub struct CommitReport {
    /// What was found before, in the order in which it was released.
    pub preview: CommitPreview,
    /// Sandboxes that could not be removed afterwards, and why.
    pub left: Vec<(String, String)>,
}

impl Manager {
    pub(super) fn engine<'a>(&'a self, observer: &'a dyn Observer) -> CommitEngine<'a> {
        CommitEngine {
            store: &self.store,
            registry: self.registry(),
            origin: &*self.options.origin,
            observer,
            keeps: self.settings().cleanup == CleanupPolicy::Manual,
            areas: self.workspaces(),
        }
    }

    /// The same with the strategies that count for a plan.
    pub(super) fn engine_for<'a>(
        &'a self,
        plan: &Plan,
        observer: &'a dyn Observer,
    ) -> Result<CommitEngine<'a>> {
        Ok(CommitEngine {
            registry: self.registry_of(plan.id)?,
            ..self.engine(observer)
        })
    }

    /// The same for a plan, as the configuration that it was made under says.
    pub(super) fn engine_of<'a>(
        &'a self,
        plan: &Plan,
        observer: &'a dyn Observer,
    ) -> Result<CommitEngine<'a>> {
        Ok(CommitEngine {
            keeps: self.settings_of(plan)?.cleanup == CleanupPolicy::Manual,
            ..self.engine_for(plan, observer)?
        })
    }

    pub(super) fn members(
        &self,
        engine: &CommitEngine<'_>,
        views: Vec<SandboxView>,
    ) -> Result<Vec<Member>> {
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        let member = |view: SandboxView| {
            let depth = graph.depth(&view.resource);
            let reference = &view.sandbox.reference;
            let target =
                self.target(reference.plan_id, &view.resource, &reference.strategy_name)?;
            Member::new(engine, view.sandbox, view.resource, target, depth)
        };
        views.into_iter().map(member).collect()
    }

    /// In the order in which sandboxes are discarded (rule C8).
    pub(super) fn parents_first(&self, mut views: Vec<SandboxView>) -> Result<Vec<SandboxView>> {
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        views.sort_by_key(|view| graph.depth(&view.resource));
        Ok(views)
    }

    /// Takes the locks of originals, in one order, so that two who need several never wait for
    /// each other.
    pub(super) fn lock_originals(
        &self,
        resources: &[&Resource],
        shared: bool,
    ) -> Result<Vec<DirLock>> {
        self.lock_originals_for(resources, shared, self.options.patience)
    }

    pub(super) fn lock_originals_for(
        &self,
        resources: &[&Resource],
        shared: bool,
        patience: Duration,
    ) -> Result<Vec<DirLock>> {
        let mut places = Vec::new();
        for resource in resources {
            let place = match resource.root() {
                Some(root) => root.to_owned(),
                // What has no path has a place of its own to be locked at.
                None => {
                    let name = format!("{}.original", resource.id);
                    let room = state_dir::room(&self.locks, name.as_bytes())?;
                    room.path().to_owned()
                }
            };
            places.push((place, resource));
        }
        let waits = |resource: &&&Resource, locker: Option<u32>| {
            let who = locker.map_or_else(String::new, |pid| format!(" (process {pid})"));
            let (at, most) = (&resource.at, patience.as_secs());
            self.options.console.waits(&format!(
                "waiting, for {most} seconds at most, for another process{who} that holds a lock on '{at}'"
            ));
        };
        let locks = DirLock::take_all(places, shared, patience, waits)?;
        locks.map_err(|resource| Error::BusyOriginal {
            at: resource.at.clone(),
        })
    }

    /// The sandboxes of a plan that are to be committed.
    fn committable(&self, plan: &Plan) -> Result<Vec<SandboxView>> {
        let views = self.live_sandboxes(plan)?;
        check_readable(plan, &views)?;
        Ok(views)
    }

    /// What a commit would do. Nothing is written.
    pub fn preview(&self, plan: &Plan, terms: CommitTerms) -> Result<CommitPreview> {
        self.preview_part(plan, terms, &ReleaseSelection::default(), false)
    }

    /// What a commit of what was selected would do, and what would stay; with its digest, for which contents are read, or
    /// without.
    pub fn preview_part(
        &self,
        plan: &Plan,
        terms: CommitTerms,
        selection: &ReleaseSelection,
        digest: bool,
    ) -> Result<CommitPreview> {
        self.permit_commit(plan)?;
        let _lock = self.begin_call(plan, true)?;
        let mut views = self.live_sandboxes(plan)?;
        let (_, selection) = &self.take_gone(&mut views, selection);
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        let _originals = self.lock_originals(&resources, true)?;
        check_readable(plan, &views)?;
        let looked = (terms, &Session::Shared, selection);
        let previewed = self.look(plan, &views, looked, &Unobserved)?;
        let mut preview = previewed.show();
        let authorized = self.authorize_release(&preview, &views);
        self.denied(Action::Commit, Some(plan), authorized)?;
        preview.digest = digest.then(|| previewed.digest()).transpose()?;
        Ok(preview)
    }

    /// Looks at what a commit would do, of what was selected.
    fn look<'a>(
        &'a self,
        plan: &Plan,
        views: &[SandboxView],
        (terms, session, selection): (CommitTerms, &Session, &ReleaseSelection),
        observer: &'a dyn Observer,
    ) -> Result<Previewed<'a>> {
        let engine = self.engine_of(plan, observer)?;
        let members = self.members(&engine, views.to_vec())?;
        let batch = Batch::new(engine, plan.clone(), members);
        let mut previewed = batch.preview(terms, session, &selection.hunks)?;
        let unvalidated = terms.merge || !selection.hunks.is_empty();
        if unvalidated && !self.validations(plan)?.is_empty() {
            if !selection.hunks.is_empty() {
                let why = "what is left of a file without the others would be committed without having been validated: mark it as a whole";
                let what = "commit some hunks of a file";
                return Err(unsupported("a plan with `validate`", what, why).into());
            }
            previewed = previewed.refuse_merged(
                "changed there and here; a merged text would be released without having been validated: make the change inside \
                 again, or choose a side with `--on-conflict sandbox` or `original`",
            );
        }
        previewed.select(selection, &self.ignore_patterns(plan)?)
    }

    /// Refuses to release what the policy protects, however it came into the sandbox.
    fn authorize_release(&self, preview: &CommitPreview, views: &[SandboxView]) -> Result<()> {
        for view in views {
            let ours = |member: &&MemberPreview| member.resource == view.resource.name;
            if let Some(member) = preview.members.iter().find(ours) {
                self.authorize_changes(Action::Commit, view, &member.diff)?;
            }
        }
        Ok(())
    }

    /// Commits every sandbox of a plan, or none.
    pub fn commit(
        &self,
        plan: &Plan,
        request: &CommitRequest<'_>,
        observer: &dyn Observer,
    ) -> Result<CommitReport> {
        self.commit_part(plan, request, &ReleaseSelection::default(), observer)
    }

    /// Commits what was selected, in all sandboxes or in none. If anything is left, it stays in them and the
    /// plan stays open.
    pub fn commit_part(
        &self,
        plan: &Plan,
        request: &CommitRequest<'_>,
        selection: &ReleaseSelection,
        observer: &dyn Observer,
    ) -> Result<CommitReport> {
        let live = request.live;
        self.permit_commit(plan)?;
        let lock = self.begin_call(plan, false)?;
        // Validation runs inside the sandboxes too, where nothing else may run.
        if !live || !self.validations(plan)?.is_empty() {
            self.check_quiet(plan)?;
        }
        let mut views = self.committable(plan)?;
        let (gone, selection) = &self.take_gone(&mut views, selection);
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        let about = self.about_with("commit", plan, request.message)?;
        let looked = (request.terms, &Session::Exclusive, selection);
        let mut released = self.record_about(about, |touched| {
            if !self.validations(plan)?.is_empty() {
                // What the commit would be refused for is said before anything runs, which may take minutes.
                let _originals = self.lock_originals(&resources, true)?;
                let looked = (request.terms, &Session::Shared, selection);
                let previewed = self.look(plan, &views, looked, observer)?;
                let preview = previewed.show();
                self.authorize_release(&preview, &views)?;
                self.say_unvalidated(&preview);
                previewed.check()?;
                if let Some(expected) = request.expected {
                    check_expected(plan, expected, &previewed.digest()?)?;
                }
            }
            self.validate(plan, &views, observer)?;
            let _originals = self.lock_originals(&resources, false)?;
            self.check_neighbours(plan, &resources)?;
            // Only what was worked in can be committed; one that was never touched counts as worked in.
            self.activate(&views)?;
            let paused = match live {
                true => self.pause(plan)?,
                false => None,
            };
            // A process that was killed at a checkpoint may have left what looks like further names of files.
            self.release_checkpoints(plan, false)?;
            let mut previewed = self.look(plan, &views, looked, observer)?;
            if live {
                previewed = previewed.keep_open()?;
            }
            let preview = previewed.show();
            for member in &preview.members {
                touched.all(&member.resource, &member.diff);
            }
            self.authorize_release(&preview, &views)?;
            let settings = self.settings_of(plan)?.checkpoint;
            let wanted = settings.keep > 0 && settings.auto.contains(&AutoCheckpoint::BeforeCommit);
            if paused.is_none() {
                self.checkpoint_before(plan, AutoCheckpoint::BeforeCommit, "commit", observer)?;
            } else if wanted {
                self.notice("no checkpoint was taken before the commit, since a command runs inside: `escrow checkpoint` takes one".to_owned());
            }
            let prepared = previewed.prepare(request.message, request.expected)?;
            drop(paused);
            let ended = prepared.decide()?.execute()?;
            Ok(CommitReport {
                preview,
                left: ended.left,
            })
        })?;
        if live || released.preview.left() > 0 {
            drop(lock);
            return Ok(released);
        }
        // Nothing was left of these.
        for view in gone {
            if let Err(error) = self.clean_one(view, false) {
                let name = view.resource.name.clone();
                released.left.push((name, chain(&error)));
            }
        }
        // With the checkpoints goes what rollbacks had kept.
        if let Err(error) = self.store.forget_rollbacks(plan.id) {
            released
                .left
                .push(("the journal".to_owned(), chain(&error)));
        }
        if let Err(error) = self.store.forget_checkpoints(plan.id) {
            let what = "the list of checkpoints".to_owned();
            released.left.push((what, chain(&error)));
        }
        if let Err(error) = self.drop_scratch(plan) {
            let what = "what was written into the home directory".to_owned();
            released.left.push((what, chain(&error)));
        }
        drop(lock);
        Ok(released)
    }

    /// What the commits of a plan keep that is out of reach: it is there, unless its file system is not.
    pub(super) fn away_commits(&self, plan: &Plan) -> Result<Vec<(String, Error)>> {
        let mut away = Vec::new();
        let views = self.all_sandboxes(plan)?;
        let journals = self.store.journals_of(plan.id)?;
        let kept = |one: &&JournalEntry| matches!(one.phase, Phase::Committed | Phase::TakenBack);
        let kept = journals.iter().filter(kept);
        for (position, member) in kept.flat_map(|one| one.members.iter().enumerate()) {
            let view = views
                .iter()
                .find(|view| view.sandbox.id == member.sandbox_id);
            let name = view.map_or_else(|| position.to_string(), |view| view.resource.name.clone());
            let area = &member.area;
            let beside = !area.as_path().starts_with(self.home()) && !area.as_bytes().is_empty();
            if beside && is_absent(area.as_path()) {
                away.push((name, Error::Away { area: area.clone() }));
            }
        }
        Ok(away)
    }

    /// Removes what a plan keeps for undo, and what others wrote and was set aside. What is out of
    /// reach together with its original is an error, unless it is to be forgotten.
    pub(super) fn forget_commits(&self, plan: &Plan, forget: bool) -> Result<()> {
        let mut failed = match forget {
            true => Vec::new(),
            false => self.away_commits(plan)?,
        };
        if !failed.is_empty() {
            return Err(Error::partly(plan, "removed", Vec::new(), failed));
        }
        let journals = self.store.journals_of(plan.id)?;
        let views = self.all_sandboxes(plan)?;
        // First the need for it is forgotten: a process that is killed after this finds the rest by its name.
        if !journals.is_empty() {
            self.store.forget_commits(plan.id)?;
        }
        for journal in journals {
            for member in &journal.members {
                if let Err(error) = self.workspaces().remove(member.area.as_path()) {
                    failed.push((member.area.to_string(), error.into()));
                }
            }
        }
        if !failed.is_empty() {
            return Err(Error::partly(plan, "removed", Vec::new(), failed));
        }
        for view in &views {
            let area = view.sandbox.area.as_path();
            let parents = [area.parent(), view.resource.root()].into_iter().flatten();
            for parent in parents {
                state_dir::sweep_commits(&self.home, parent, view.sandbox.id, forget)?;
            }
        }
        self.engine(&Unobserved).forget()
    }

    /// Gives a commit up that cannot be brought to an end, because what it needs is gone for good.
    /// What is left of it stays where it is, and is named.
    pub(super) fn abandon_commit(&self, plan: &Plan) -> Result<()> {
        for journal in self.store.journals_of(plan.id)? {
            for member in &journal.members {
                if member.area.as_bytes().is_empty() {
                    continue;
                }
                let kept = state_dir::give_up_commit(&self.home, member.area.as_path())?;
                if let Some(at) = kept.map(Location::from) {
                    self.notice(format!(
                        "what the commit had staged or kept stays in '{at}'; remove it once nothing of it is needed"
                    ));
                }
            }
            self.store.forget_commit(journal.id)?;
        }
        Ok(())
    }

    /// The sandboxes of a commit, in its order.
    pub(super) fn journal_views(
        &self,
        plan: &Plan,
        journal: &JournalEntry,
    ) -> Result<Vec<SandboxView>> {
        let all = self.all_sandboxes(plan)?;
        let mut views = Vec::new();
        for member in &journal.members {
            let found = all.iter().find(|view| view.sandbox.id == member.sandbox_id);
            let view = found.ok_or_else(|| Error::UnknownResource {
                name: member.sandbox_id.to_string(),
                known: Vec::new(),
            })?;
            views.push(view.clone());
        }
        Ok(views)
    }

    /// Refuses where a commit of another plan into the same originals is still to be brought to an
    /// end: it is not known what they will be.
    pub(super) fn check_neighbours(&self, plan: &Plan, resources: &[&Resource]) -> Result<()> {
        for journal in self.store.unfinished()? {
            // Only a commit changes originals.
            if journal.plan_id == plan.id || journal.work != JournaledWork::Commit {
                continue;
            }
            let Some(other) = self.store.plan(journal.plan_id)? else {
                continue;
            };
            let views = self.journal_views(&other, &journal)?;
            let known = self.store.resources()?;
            let theirs: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
            let graph = ResourceGraph::new(&known);
            let mut near = false;
            for resource in resources {
                near |= theirs.iter().any(|one| one.at == resource.at)
                    || graph.overlap(resource, &theirs)?.is_some();
            }
            if near {
                return Err(Error::RecoveryNeeded {
                    what: journal.work,
                    plan: other.name,
                    phase: journal.phase,
                    why: None,
                });
            }
        }
        Ok(())
    }
}
