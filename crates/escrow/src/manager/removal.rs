//! Removal: deletes all of a plan. From its first step on nothing else can be done with the plan.
//!
//! One transaction marks the plan and all its sandboxes as being removed; then what they have on disk goes; one
//! transaction notes that nothing is left. A plan that is found in between is removed further by `recover`, by
//! `cleanup`, and by every command that changes something. A plan that was never wholly created goes the same way,
//! and is forgotten as if it had never been.

use std::path::Path;

use super::{Manager, SandboxView};
use crate::commit::shared_layers;
use crate::commit::{RecoveredPlan, RecoveredTo};
use crate::error::{Error, Result, chain};
use crate::event::Unobserved;
use crate::failpoints;
use crate::fs::state_dir::Lock;
use crate::fs::workspace::{self, is_absent};
use crate::model::text::Location;
use crate::model::{Action, JournaledWork, Phase, PlanState, SandboxState};
use crate::store::{Plan, Resource, SandboxRecord};
use crate::strategy::{Session, StrategyError};

/// What a cleanup removed.
#[derive(Debug)]
pub struct CleanupReport {
    /// The resource whose sandbox it was.
    pub resource: String,
    /// The area that is gone.
    pub area: Location,
}

impl Manager {
    /// Removes everything the plan has on disk; legal in every state, and again. One that cannot
    /// be removed does not stop the others.
    ///
    /// An area that cannot be found is an error where its file system may be away; `forget` counts
    /// it as removed.
    pub fn cleanup(&self, plan: &Plan, forget: bool) -> Result<Vec<CleanupReport>> {
        self.permit_plan(Action::Cleanup, plan)?;
        self.make_room_to_clean()?;
        self.make_room_for(plan.id)?;
        let lock = self.begin_unsettled_call(plan)?;
        self.check_quiet(plan)?;
        match self.settle(plan) {
            // What can never be brought to an end is dropped, if that is wanted.
            Err(Error::RecoveryNeeded { .. }) if forget => self.abandon_commit(plan)?,
            // What is half discarded goes as a whole.
            Err(Error::RecoveryNeeded {
                what: JournaledWork::Rollback,
                ..
            }) => {}
            answer => answer?,
        }
        self.remove_plan(plan, lock, forget)
    }

    /// The same for a plan whose lock is held and whose commit is at an end.
    pub(super) fn remove_plan(
        &self,
        plan: &Plan,
        lock: Lock,
        forget: bool,
    ) -> Result<Vec<CleanupReport>> {
        let cleaned = self.record("cleanup", Some(plan.id), &plan.name, || {
            if !forget {
                self.check_reachable(plan)?;
            }
            if !failpoints::bug("cleanup-one-by-one") {
                self.store.begin_removal(plan.id)?;
            }
            self.continue_removal(plan, forget)
        })?;
        self.forget_live(plan)?;
        lock.remove(&self.locks, plan.id.to_string().as_bytes())?;
        Ok(cleaned)
    }

    /// Refuses where something of the plan is out of reach, before anything goes: its file system may come back.
    fn check_reachable(&self, plan: &Plan) -> Result<()> {
        let mut away = self.away_commits(plan)?;
        for view in self.live_sandboxes(plan)? {
            let area = view.sandbox.area;
            if self.is_out_of_reach(area.as_path(), &view.resource) {
                away.push((view.resource.name, Error::Away { area }));
            }
        }
        match away.is_empty() {
            true => Ok(()),
            false => Err(Error::partly(plan, "removed", Vec::new(), away)),
        }
    }

    /// Removes what is left of a plan that is marked as being removed. The mark goes last.
    fn continue_removal(&self, plan: &Plan, forget: bool) -> Result<Vec<CleanupReport>> {
        let (cleaned, needs) = self.remove_sandboxes(plan, forget)?;
        self.forget_commits(plan, forget)?;
        self.drop_scratch(plan)?;
        self.store.end_removal(plan.id)?;
        shared_layers::reclaim(&self.engine(&Unobserved), &needs)?;
        Ok(cleaned)
    }

    /// Removes the areas of a plan's sandboxes; also returns the areas of others that they lived on.
    fn remove_sandboxes(
        &self,
        plan: &Plan,
        forget: bool,
    ) -> Result<(Vec<CleanupReport>, Vec<Location>)> {
        let engine = self.engine(&Unobserved);
        let others = shared_layers::needed_by_others(&engine, plan.id)?;
        let is_needed = |area: &Location| others.contains(area);
        let (mut cleaned, mut failed, mut needs) = (Vec::new(), Vec::new(), Vec::new());
        for view in &self.live_sandboxes(plan)? {
            let removed = match failpoints::bug("cleanup-one-by-one") {
                true => self.clean_one(view, forget).map(|()| Vec::new()),
                false => self.remove_sandbox(view, forget, is_needed(&view.sandbox.area)),
            };
            match removed {
                Ok(depends_on) => {
                    needs.extend(depends_on);
                    cleaned.push(CleanupReport {
                        resource: view.resource.name.clone(),
                        area: view.sandbox.area.clone(),
                    });
                }
                Err(error) => failed.push((view.resource.name.clone(), error)),
            }
        }
        if !failed.is_empty() {
            let done = cleaned.into_iter().map(|one| one.resource).collect();
            return Err(Error::partly(plan, "removed", done, failed));
        }
        Ok((cleaned, needs))
    }

    /// Removes what a sandbox that is marked as being removed has on disk, but for an area that another one lives
    /// on. Returns the areas that it lived on itself.
    fn remove_sandbox(
        &self,
        view: &SandboxView,
        forget: bool,
        is_needed: bool,
    ) -> Result<Vec<Location>> {
        let sandbox = &view.sandbox;
        let (area, original) = (sandbox.area.as_path(), &view.resource);
        if !forget && self.is_out_of_reach(area, original) {
            return Err(Error::Away {
                area: sandbox.area.clone(),
            });
        }
        match self.forget_outside(sandbox, &view.resource) {
            // Its program, or its server, is gone for good, and the user knows.
            Err(
                error @ (Error::Registry(_)
                | Error::Strategy(StrategyError::Plugin(_) | StrategyError::Server { .. })),
            ) if forget => {
                let name = &view.resource.name;
                self.notice(format!(
                    "what the sandbox of {name} has outside of its area may be left: {}",
                    chain(&error)
                ));
            }
            answer => answer?,
        }
        let needs = sandbox.reference.depends_on();
        if !is_needed {
            workspace::remove(area)?;
        }
        Ok(needs)
    }

    /// Removes what a sandbox has outside its area.
    pub(super) fn forget_outside(&self, sandbox: &SandboxRecord, of: &Resource) -> Result<()> {
        let (reference, area) = (&sandbox.reference, Some(sandbox.area.as_path()));
        let plan = reference.plan_id;
        let target = self.target(plan, of, &reference.strategy_name)?;
        let registry = self.registry_of(plan)?;
        if reference.metadata.is_null() {
            // It was never finished, and no process knows by which strategy it was begun.
            let kind = self.settings().types.named(&of.kind);
            for one in registry.may_have_begun(&reference.strategy_name, kind) {
                one.ready()?.cleanup(reference, &target, area)?;
            }
            return Ok(());
        }
        Ok(registry.of(reference)?.cleanup(reference, &target, area)?)
    }

    /// Removes one sandbox of a plan that is over.
    pub(super) fn clean_one(&self, view: &SandboxView, forget: bool) -> Result<()> {
        let (sandbox, engine) = (&view.sandbox, self.engine(&Unobserved));
        // From here on it is not whole: a process that finds it half removed must know.
        let state = sandbox.state.go(SandboxState::Errored)?;
        self.store.set_sandbox_states(&[(sandbox.id, state)])?;
        let is_needed = shared_layers::is_needed(&engine, &sandbox.area, sandbox.id)?;
        let needs = self.remove_sandbox(view, forget, is_needed)?;
        let state = state.go(SandboxState::CleanedUp)?;
        self.store.set_sandbox_states(&[(sandbox.id, state)])?;
        shared_layers::reclaim(&engine, &needs)
    }

    /// Removes a plan that was never wholly created, with everything made for it; the plan is locked. What takes room
    /// goes first: the disk may be full.
    pub(super) fn unmake(&self, plan: &Plan) -> Result<()> {
        let (_, needs) = self.remove_sandboxes(plan, false)?;
        self.store.forget_plan(plan.id)?;
        shared_layers::reclaim(&self.engine(&Unobserved), &needs)
    }

    /// Removes a plan that a crashed process left half made or half removed.
    pub(super) fn recover_half(&self, plan: &Plan, lock: Lock) -> Result<RecoveredPlan> {
        self.mark_interrupted(plan.id)?;
        let recovered = self.recover_plan(plan)?;
        self.forget_live(plan)?;
        lock.remove(&self.locks, plan.id.to_string().as_bytes())?;
        Ok(recovered)
    }

    fn recover_plan(&self, plan: &Plan) -> Result<RecoveredPlan> {
        self.record("recover", Some(plan.id), &plan.name, || match plan.state {
            PlanState::Creating => {
                self.unmake(plan)?;
                let (work, found) = (JournaledWork::Creation, Phase::Preparing);
                Ok(RecoveredPlan::plain(plan, work, found, RecoveredTo::Old))
            }
            _ => {
                self.continue_removal(plan, false)?;
                let (work, found) = (JournaledWork::Removal, Phase::Decided);
                Ok(RecoveredPlan::plain(plan, work, found, RecoveredTo::New))
            }
        })
    }

    /// Removes a plan in which nothing was changed that a commit would release; says whether it did.
    pub fn take_away_unused(&self, plan: &Plan) -> Result<bool> {
        let lock = self.begin_call(plan, false)?;
        self.check_quiet(plan)?;
        for view in self.live_sandboxes(plan)? {
            let sandbox = self.open_sandbox(&view, Session::Exclusive)?;
            let mut diff = sandbox.diff(None, None)?;
            self.leave_ignored(plan, &view, &mut diff)?;
            if !diff.is_empty() {
                return Ok(false);
            }
        }
        self.remove_plan(plan, lock, false)?;
        Ok(true)
    }

    /// Whether a sandbox beside its original is out of reach together with it: then their file
    /// system is not mounted, or the directory they lie in was moved.
    pub(super) fn is_out_of_reach(&self, area: &Path, original: &Resource) -> bool {
        let gone = original.root().is_some_and(is_absent);
        !area.starts_with(self.areas.path()) && is_absent(area) && gone
    }
}
