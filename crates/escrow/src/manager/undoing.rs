//! Undo: the last commit or rollback of a plan is taken back, and the plan is open again with its changes.
//!
//! First the originals become what they were, all or none, as the journal says. Then the plan gets its sandboxes again: each
//! is made anew from its original and takes in what the commit had released, which lies in the commit's area until then. A
//! process that dies in between, or a full disk, leaves a plan that is rolled back and keeps these changes; the next undo of it
//! opens it. A rollback that ended its plan set the sandboxes aside as they were; they only become usable again.

use std::path::Path;

use super::creation::NewSandbox;
use super::resources::free_name;
use super::{Manager, SandboxView, half};
use crate::commit::{CommitEngine, Execution, UndoReport, UndoRequest};
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::model::text::Location;
use crate::model::{Action, Change, JournaledWork, Phase, PlanId, PlanState, SandboxState};
use crate::store::{JournalEntry, Plan, Resource};
use crate::strategy::{Intent, OnConflict, Sandbox, Session, unsupported};

impl Manager {
    /// Takes the newest commit or rollback of a plan back that was not taken back yet, and opens the plan again.
    pub fn undo(&self, plan: &Plan, observer: &dyn Observer) -> Result<UndoReport> {
        self.undo_as(plan, &UndoRequest::default(), observer)
    }

    /// The same as a request says.
    pub fn undo_as(
        &self,
        plan: &Plan,
        request: &UndoRequest,
        observer: &dyn Observer,
    ) -> Result<UndoReport> {
        let nothing = |plan: &Plan| Error::NothingToUndo {
            plan: plan.name.clone(),
            state: plan.state,
        };
        let stands = |journal: &JournalEntry| journal.phase != Phase::Undone;
        let over = matches!(plan.state, PlanState::CleanedUp | PlanState::RolledBack);
        if over
            && !self
                .store
                .journal_of(plan.id)?
                .is_some_and(|one| stands(&one))
        {
            return Err(nothing(plan));
        }
        self.permit_plan(Action::Undo, plan)?;
        self.make_room_to_clean()?;
        self.make_room_for(plan.id)?;
        let lock = self.begin_any_call(plan)?;
        let plan = self.store.plan(plan.id)?.unwrap_or_else(|| plan.clone());
        if plan.state.is_half() {
            return Err(half(&plan));
        }
        self.check_unfinished(&plan)?;
        let journal = self.store.journal_of(plan.id)?;
        let Some(journal) = journal.filter(|one| stands(one) && plan.state != PlanState::CleanedUp)
        else {
            if plan.state == PlanState::CleanedUp {
                lock.remove(&self.locks, plan.id.to_string().as_bytes())?;
            }
            return Err(nothing(&plan));
        };
        let whole = request.selection.is_everything()
            && !request.merge
            && request.on_conflict == OnConflict::Abort;
        if journal.work == JournaledWork::Rollback && !whole {
            let why = "nothing was released by it, so nothing in the originals is in the way";
            return Err(unsupported("a rollback", "be undone in part", why).into());
        }
        match (journal.work, journal.phase) {
            (JournaledWork::Rollback, _) => self.undo_rollback(&plan, &journal, request, observer),
            (_, Phase::TakenBack) if request.dry_run => Ok(UndoReport::default()),
            (_, Phase::TakenBack) => {
                let views = self.journal_views(&plan, &journal)?;
                if self.needs_apart(&plan, &journal, &views)? {
                    let name = self.reopen_apart(&plan, &journal, &views, observer)?;
                    return Ok(UndoReport {
                        reopened: Some(Ok(())),
                        apart: Some(name),
                        again: true,
                        ..UndoReport::default()
                    });
                }
                let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
                let _originals = self.lock_originals(&resources, false)?;
                self.record("undo", Some(plan.id), &plan.name, || {
                    let lost = self.reopen(&plan, &journal, &views, observer)?;
                    Ok(UndoReport {
                        reopened: Some(Ok(())),
                        lost,
                        again: true,
                        ..UndoReport::default()
                    })
                })
            }
            _ => self.undo_commit(&plan, journal, request, observer),
        }
    }

    /// Whether what was done last to a plan was a rollback that can be undone.
    pub fn keeps_discarded(&self, plan: &Plan) -> Result<bool> {
        let newest = self.store.journal_of(plan.id)?;
        Ok(newest.is_some_and(|one| {
            one.work == JournaledWork::Rollback && one.phase == Phase::Committed
        }))
    }

    /// The resources whose changes an undo of the plan's last commit, or a rollback, cannot keep in the plan.
    pub fn not_kept(&self, plan: &Plan) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        let views = self.all_sandboxes(plan)?;
        let registry = self.registry_of(plan.id)?;
        let of: Vec<&SandboxView> = match self.store.journal_of(plan.id)? {
            Some(journal) if plan.state == PlanState::Committed => {
                let is_member = |view: &&SandboxView| {
                    let mut members = journal.members.iter();
                    members.any(|one| one.sandbox_id == view.sandbox.id)
                };
                views.iter().filter(is_member).collect()
            }
            _ => return Ok(lost),
        };
        for view in of {
            let reference = &view.sandbox.reference;
            let can = registry.of(reference)?.capabilities_of(reference);
            if can.isolates && !can.reopens {
                lost.push(view.resource.name.clone());
            }
        }
        Ok(lost)
    }

    fn undo_commit(
        &self,
        plan: &Plan,
        journal: JournalEntry,
        request: &UndoRequest,
        observer: &dyn Observer,
    ) -> Result<UndoReport> {
        if journal.part {
            self.check_quiet(plan)?;
        }
        let views = self.journal_views(plan, &journal)?;
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        let originals = self.lock_originals(&resources, false)?;
        self.check_neighbours(plan, &resources)?;
        let id = journal.id;
        let taken_back = || -> Result<UndoReport> {
            let engine = self.engine_for(plan, observer)?;
            let members = self.members(&engine, views.clone())?;
            let found = Execution::found(engine, plan.clone(), journal, members)?;
            found.undo(request)
        };
        if request.dry_run {
            return taken_back();
        }
        let about = self.about("undo", Some(plan.id), &plan.name)?;
        let mut undone = self.record_about(about, |touched| {
            let undone = taken_back()?;
            for (resource, paths) in &undone.paths {
                touched.some(resource, paths);
            }
            Ok(undone)
        })?;
        let journal = self.store.journal_of(plan.id)?;
        let Some(journal) = journal.filter(|one| one.id == id && one.phase == Phase::TakenBack)
        else {
            return Ok(undone);
        };
        // The originals are as before, whatever becomes of this.
        if self.needs_apart(plan, &journal, &views)? {
            drop(originals);
            match self.reopen_apart(plan, &journal, &views, observer) {
                Ok(name) => {
                    undone.apart = Some(name);
                    undone.reopened = Some(Ok(()));
                }
                Err(error) => undone.reopened = Some(Err(chain(&error))),
            }
            return Ok(undone);
        }
        match self.reopen(plan, &journal, &views, observer) {
            Ok(lost) => {
                undone.lost = lost;
                undone.reopened = Some(Ok(()));
            }
            Err(error) => undone.reopened = Some(Err(chain(&error))),
        }
        Ok(undone)
    }

    /// Gives a plan whose commit was taken back its sandboxes again, with what it had released. Returns the resources of which
    /// that cannot be had. The plan and its originals are locked.
    fn reopen(
        &self,
        plan: &Plan,
        journal: &JournalEntry,
        views: &[SandboxView],
        observer: &dyn Observer,
    ) -> Result<Vec<String>> {
        self.forget_unfinished(plan, journal)?;
        let live = self.live_sandboxes(plan)?;
        let of = |view: &SandboxView| live.iter().find(|one| same(&one.resource, &view.resource));
        let registry = self.registry_of(plan.id)?;
        let (mut new, mut lost) = (Vec::new(), Vec::new());
        for (view, member) in views.iter().zip(&journal.members) {
            let reference = &view.sandbox.reference;
            let can = registry.of(reference)?.capabilities_of(reference).reopens;
            if of(view).is_some() {
                continue;
            } else if can {
                new.push(NewSandbox {
                    resource: self.resource_again(&view.resource)?,
                    wanted: reference.strategy_name.clone(),
                    from: None,
                });
            } else if member.intent.is_some() {
                // An empty one would only be in the way of others, as an open transaction is.
                lost.push(view.resource.name.clone());
            }
        }
        let made = self.add_sandboxes(plan, &new, observer)?;
        let all: Vec<SandboxView> = made
            .into_iter()
            .zip(new)
            .map(|(sandbox, new)| SandboxView {
                sandbox,
                resource: new.resource,
            })
            .collect();
        self.activate(&all)?;
        let made = |view: &SandboxView| all.iter().find(|one| same(&one.resource, &view.resource));
        let engine = self.engine_for(plan, observer)?;
        let mut states = Vec::new();
        for (view, member) in views.iter().zip(&journal.members) {
            let Some(here) = of(view).or_else(|| made(view)) else {
                continue;
            };
            states.push((here.sandbox.id, SandboxState::Active));
            let intent = member.intent.as_deref().map(read_intent).transpose()?;
            // One that stayed holds its changes.
            if let Some(intent) = intent.filter(|_| here.sandbox.id != member.sandbox_id) {
                self.take_in(&engine, here, &intent)?;
            }
        }
        let name = self.reopened_name(plan)?;
        if !self.store.reopen(journal, &name, &states)? {
            return Err(Error::PlanExists { name });
        }
        if name != plan.name {
            self.notice(format!(
                "another open plan is called '{}': this one is '{name}' now",
                plan.name
            ));
        }
        self.give_up_areas(journal);
        engine.forget()?;
        Ok(lost)
    }

    fn take_in(
        &self,
        engine: &CommitEngine<'_>,
        here: &SandboxView,
        intent: &Intent,
    ) -> Result<()> {
        let members = self.members(engine, vec![here.clone()])?;
        for member in members {
            let opened = member.open(engine.store, Session::Exclusive)?;
            let session: &dyn Sandbox = &*opened;
            member.session(session, |one| one.take_in(intent))?;
            // A later merge begins from these.
            let changes: Vec<Change> = member.session(session, |one| one.diff(None, None))?.changes;
            member.session(session, |one| one.keep_bases(&changes))?;
        }
        Ok(())
    }

    /// The resource of a sandbox that is made again. One that nobody named is forgotten with its plan, and may have another id now.
    fn resource_again(&self, of: &Resource) -> Result<Resource> {
        let known = self.store.resources()?;
        match known.iter().find(|one| same(one, of)) {
            Some(there) => Ok(there.clone()),
            None if known.iter().any(|one| one.name == of.name) => self.take_at(&of.at),
            None => Ok(of.clone()),
        }
    }

    /// Removes sandboxes of a plan that a crashed process began and never finished. What they took in is still in the commit's
    /// area, and a half of it cannot be told from work; no work is in them, since their plan was not open.
    fn forget_unfinished(&self, plan: &Plan, journal: &JournalEntry) -> Result<()> {
        for view in self.live_sandboxes(plan)? {
            let mut members = journal.members.iter();
            let of_commit = members.any(|one| one.sandbox_id == view.sandbox.id);
            if view.sandbox.state == SandboxState::Pending || (!journal.part && !of_commit) {
                self.forget_sandbox(&view.sandbox, &view.resource)?;
            }
        }
        Ok(())
    }

    /// Whether the plan's sandboxes cannot take in what a part had released, since they were made while it stood.
    fn needs_apart(
        &self,
        plan: &Plan,
        journal: &JournalEntry,
        views: &[SandboxView],
    ) -> Result<bool> {
        if !journal.part {
            return Ok(false);
        }
        let live = self.live_sandboxes(plan)?;
        let registry = self.registry_of(plan.id)?;
        for (view, member) in views.iter().zip(&journal.members) {
            let here = live.iter().find(|one| same(&one.resource, &view.resource));
            let Some(here) = here.filter(|one| one.sandbox.id != member.sandbox_id) else {
                continue;
            };
            let strategy = registry.of(&here.sandbox.reference)?;
            if member.intent.is_some() && !strategy.takes_in_later(&here.sandbox.reference) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes a plan of its own that holds what a part had released; its name.
    fn reopen_apart(
        &self,
        plan: &Plan,
        journal: &JournalEntry,
        views: &[SandboxView],
        observer: &dyn Observer,
    ) -> Result<String> {
        let registry = self.registry_of(plan.id)?;
        let (mut new, mut intents) = (Vec::new(), Vec::new());
        for (view, member) in views.iter().zip(&journal.members) {
            let reference = &view.sandbox.reference;
            let can = registry.of(reference)?.capabilities_of(reference).reopens;
            let Some(intent) = member.intent.as_deref().filter(|_| can) else {
                continue;
            };
            intents.push(read_intent(intent)?);
            new.push(NewSandbox {
                resource: self.resource_again(&view.resource)?,
                wanted: reference.strategy_name.clone(),
                from: None,
            });
        }
        let id = PlanId::new(&*self.options.origin);
        let resources: Vec<Resource> = new.iter().map(|one| one.resource.clone()).collect();
        let config = self.binding(resources.first())?;
        let own = config.as_ref().map(|config| self.bound_levels(config));
        self.settle_plan(id, &own.transpose()?.unwrap_or_default(), &resources)?;
        let taken = self.taken_names()?;
        let name = free_name(&Location::from(Path::new(&plan.name)), |name| {
            taken.iter().any(|taken| taken == name)
        });
        let named = (Some(name.as_str()), plan.implicit);
        let made = self.make_plan(id, config, named, &plan.directory, &new, observer)?;
        self.activate(&made.sandboxes)?;
        let engine = self.engine_for(&made.plan, observer)?;
        for (one, intent) in new.iter().zip(&intents) {
            let mut sandboxes = made.sandboxes.iter();
            if let Some(here) = sandboxes.find(|here| same(&here.resource, &one.resource)) {
                self.take_in(&engine, here, intent)?;
            }
        }
        self.store.reopen(journal, &plan.name, &[])?;
        self.give_up_areas(journal);
        engine.forget()?;
        Ok(name)
    }

    /// Removes what a commit kept for its undo, unless some of it still stands.
    fn give_up_areas(&self, journal: &JournalEntry) {
        for member in journal.members.iter().filter(|_| !journal.stands) {
            if let Err(error) = self.workspaces().remove(member.area.as_path()) {
                let why = chain(&error);
                self.notice(format!("what was kept for the undo is left: {why}"));
            }
        }
    }

    /// The name of a plan that is opened again: its own, unless another open plan has it.
    fn reopened_name(&self, plan: &Plan) -> Result<String> {
        let plans = self.store.plans_in(&[PlanState::Open])?;
        let open = |one: &&Plan| one.id != plan.id;
        let taken: Vec<&String> = plans.iter().filter(open).map(|one| &one.name).collect();
        if !taken.contains(&&plan.name) {
            return Ok(plan.name.clone());
        }
        let free = (2..).map(|number| format!("{}-{number}", plan.name));
        let mut free = free.filter(|name| !taken.contains(&name));
        Ok(free.next().unwrap_or_else(|| plan.id.to_string()))
    }

    /// Whether sandboxes may hold changes.
    fn holds_work(&self, views: &[SandboxView]) -> bool {
        let holds = |view: &SandboxView| {
            let sandbox = self.open_sandbox(view, Session::Exclusive);
            let found = sandbox.and_then(|one| Ok(one.diff(None, None)?));
            found.map_or(true, |found| !found.is_empty())
        };
        views.iter().any(holds)
    }

    /// Opens a plan again that a rollback ended, or brings the changes back that it discarded.
    fn undo_rollback(
        &self,
        plan: &Plan,
        journal: &JournalEntry,
        request: &UndoRequest,
        observer: &dyn Observer,
    ) -> Result<UndoReport> {
        let views = self.live_sandboxes(plan)?;
        let resources: Vec<String> = views
            .iter()
            .map(|view| view.resource.name.clone())
            .collect();
        let report = UndoReport {
            resources,
            reopened: Some(Ok(())),
            rollback: true,
            ..UndoReport::default()
        };
        if request.dry_run {
            return Ok(report);
        }
        if let Some(checkpoint) = journal.checkpoint {
            self.check_quiet(plan)?;
            let all = self.store.checkpoints(plan.id)?;
            let Some(checkpoint) = all.iter().find(|one| one.id == checkpoint) else {
                return Err(Error::NothingToUndo {
                    plan: plan.name.clone(),
                    state: plan.state,
                });
            };
            let changed = self.holds_work(&views);
            // What the checkpoint does not have had nothing to keep.
            let mut kept = views;
            kept.retain(|view| {
                checkpoint
                    .snapshots
                    .iter()
                    .any(|(id, _)| *id == view.sandbox.id)
            });
            let names = kept.into_iter().map(|view| view.resource.name);
            let names: Vec<String> = names.collect();
            let done = self.return_to(plan, checkpoint, &names, observer)?;
            self.store.forget_commit(journal.id)?;
            if let Some(before) = done.before.filter(|_| changed) {
                self.notice(format!(
                    "what was changed since the rollback is kept: `escrow restore {} {}` returns to it",
                    plan.name, before.id
                ));
            }
            return Ok(report);
        }
        self.record("undo", Some(plan.id), &plan.name, || {
            let name = self.reopened_name(plan)?;
            let states = views
                .iter()
                .map(|view| (view.sandbox.id, SandboxState::Active));
            match self
                .store
                .reopen(journal, &name, &states.collect::<Vec<_>>())?
            {
                true => Ok(report),
                false => Err(Error::PlanExists { name }),
            }
        })
    }
}

/// Whether both are records of the same thing.
fn same(one: &Resource, other: &Resource) -> bool {
    one.id == other.id || (&one.at, &one.kind) == (&other.at, &other.kind)
}

fn read_intent(text: &str) -> Result<Intent> {
    serde_json::from_str(text).map_err(|error| {
        Error::from(crate::strategy::StrategyError::Damaged {
            what: format!("the intent cannot be read ({error})"),
        })
    })
}
