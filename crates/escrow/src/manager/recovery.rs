//! What a crashed process left is brought to an end: here, and once for each call that changes something.
//!
//! [`begin_call`](Manager::begin_call) is how such a call begins: other plans are recovered as far as no
//! process works on them, the plan of the call is locked, and recovered under its lock. Everything that locks
//! later in the same call only locks.

use std::collections::HashSet;
use std::time::Duration;

use super::Manager;
use crate::commit::{Execution, RecoveredPlan, Settled};
use crate::error::{Error, Result, chain};
use crate::event::Unobserved;
use crate::fs::state_dir::Lock;
use crate::fs::times;
use crate::model::{Action, JournaledWork, Phase, PlanId, PlanState, Scope};
use crate::store::{JournalEntry, OperationEnd, OperationOutcome, Plan, Resource};

/// How long a lock may outlive its holder: a thread of the same program that starts a process at that moment hands all
/// descriptors on to it until it executes another program.
const FORKED: Duration = Duration::from_millis(50);

impl Manager {
    /// Begins a call on an open plan: takes its lock, shared to look, alone to change. Before a change everything is
    /// recovered; before a look, nothing is.
    pub(super) fn begin_call(&self, plan: &Plan, shared: bool) -> Result<Lock> {
        if shared {
            return self.lock_open(plan, true);
        }
        let mut state = Some(plan.state);
        if plan.state.is_half() {
            self.recover_dead()?;
            state = self.store.plan(plan.id)?.map(|now| now.state);
        }
        if state != Some(PlanState::Open) {
            return Err(self.not_open(plan, state)?);
        }
        let lock = self.begin_any_call(plan)?;
        self.check_open(plan, lock)
    }

    /// Begins a change of a plan in any state.
    pub(super) fn begin_any_call(&self, plan: &Plan) -> Result<Lock> {
        let lock = self.begin_unsettled_call(plan)?;
        self.settle(plan)?;
        Ok(lock)
    }

    /// The same, where the caller deals with what was interrupted in the plan itself.
    pub(super) fn begin_unsettled_call(&self, plan: &Plan) -> Result<Lock> {
        self.recover_others(Some(plan.id))?;
        let lock = self.lock(plan, false)?;
        self.end_dead_operations(plan)?;
        Ok(lock)
    }

    /// Finishes or takes back everything that a crashed process left half done: commits, restores and rollbacks, and
    /// plans that were being created or removed. One that cannot be does not stop the others (rule C17).
    pub fn recover(&self) -> Result<Vec<(String, Result<RecoveredPlan>)>> {
        self.recover_settled(&Settled::new())
    }

    /// The same, where a person says what became of steps whose outcome no strategy knows (rule C19).
    pub fn recover_settled(
        &self,
        settled: &Settled,
    ) -> Result<Vec<(String, Result<RecoveredPlan>)>> {
        self.permit(Action::Admin, None, Scope::All)?;
        self.check_asked(settled)?;
        self.make_room_to_clean()?;
        self.recover_all(None, settled)
    }

    /// Refuses what is said of a resource that no commit past its point of no return waits for.
    fn check_asked(&self, settled: &Settled) -> Result<()> {
        let mut asked: Vec<String> = Vec::new();
        for journal in self.store.unfinished()? {
            let forward = journal.phase == Phase::Forward && journal.work == JournaledWork::Commit;
            if let Some(plan) = self.store.plan(journal.plan_id)?.filter(|_| forward) {
                let views = self.journal_views(&plan, &journal)?;
                for (view, member) in views.into_iter().zip(&journal.members) {
                    let strategy = self.registry_of(plan.id)?.of(&view.sandbox.reference)?;
                    let can = strategy.capabilities();
                    if !member.carried && (can.only_forward() || !can.undoes) {
                        asked.push(view.resource.name);
                    }
                }
            }
        }
        match settled.keys().find(|name| !asked.contains(*name)) {
            Some(name) => Err(Error::NotAsked {
                resource: name.clone(),
                asked,
            }),
            None => Ok(()),
        }
    }

    /// The same, but for a plan that the caller deals with.
    fn recover_all(
        &self,
        but: Option<PlanId>,
        settled: &Settled,
    ) -> Result<Vec<(String, Result<RecoveredPlan>)>> {
        self.mark_strays_interrupted()?;
        self.put_times_back();
        let mut answers = Vec::new();
        let unfinished = self.store.unfinished()?.into_iter();
        let unfinished = unfinished.map(|journal| journal.plan_id);
        let mut left = self.store.half_plans()?;
        left.extend(unfinished.chain(self.dead_operations()?));
        let mut looked_at = HashSet::new();
        for id in left.into_iter().filter(|id| Some(*id) != but) {
            if !looked_at.insert(id) {
                continue;
            }
            let name = id.to_string();
            // A process that holds the lock for longer is alive, and at it.
            let Some(lock) = Lock::take(&self.locks, name.as_bytes(), false, FORKED)? else {
                continue;
            };
            // Another process may have been quicker.
            let plan = self.store.plan(id)?;
            let Some(plan) = plan.filter(|plan| plan.state != PlanState::CleanedUp) else {
                lock.remove(&self.locks, name.as_bytes())?;
                continue;
            };
            let recover = |journal| {
                self.make_room_for(id)?;
                match journal {
                    Some(journal) => self.recover_one(&plan, journal, settled),
                    None => self.recover_half(&plan, lock),
                }
            };
            let journal = match plan.state.is_half() {
                true => None,
                false => self.unfinished_of(id)?,
            };
            if plan.state.is_half() || journal.is_some() {
                let recovered = recover(journal);
                answers.push((plan.name, recovered));
            } else if let Err(error) = self.end_dead_operations(&plan) {
                answers.push((plan.name, Err(error)));
            }
        }
        Ok(answers)
    }

    /// The plans in which a process crashed that had begun an operation.
    fn dead_operations(&self) -> Result<Vec<PlanId>> {
        let mut plans = Vec::new();
        for operation in self.store.running()? {
            if let Some(plan) = operation.plan_id
                && !operation.owner.is_alive()?
            {
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// What is still to be brought to an end of a plan.
    pub(super) fn unfinished_of(&self, plan: PlanId) -> Result<Option<JournalEntry>> {
        let journal = self.store.journal_of(plan)?;
        Ok(journal.filter(|journal| journal.phase.is_unfinished()))
    }

    /// Directories in which a crashed process had an area get their times back.
    fn put_times_back(&self) {
        for error in times::put_back(&self.home) {
            self.notice(chain(&error));
        }
    }

    fn recover_one(
        &self,
        plan: &Plan,
        journal: JournalEntry,
        settled: &Settled,
    ) -> Result<RecoveredPlan> {
        let views = self.journal_views(plan, &journal)?;
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        // A process that only wants to do something else does not wait long for this.
        let patience = self.options.patience.min(Duration::from_secs(2));
        let shared = journal.work == JournaledWork::Rollback;
        let _originals = self.lock_originals_for(&resources, shared, patience)?;
        self.end_dead_operations(plan)?;
        self.put_times_back();
        self.record("recover", Some(plan.id), &plan.name, || {
            let engine = self.engine_of(plan, &Unobserved)?;
            let members = self.members(&engine, views.clone())?;
            let restores = journal.work == JournaledWork::Restore;
            // A command may have outlived the process that restored under it.
            let _paused = match restores {
                true => self.pause(plan)?,
                false => None,
            };
            let undecided = journal.phase == Phase::Preparing;
            let found = Execution::found(engine, plan.clone(), journal, members)?;
            if restores && !undecided {
                self.checkpoint_present(plan)?;
            }
            let recovered = found.recover(settled)?;
            if restores {
                self.forget_mixtures(plan)?;
            }
            Ok(recovered)
        })
    }

    /// Recovers before anything is changed. What cannot be recovered is reported, and refused where it
    /// matters.
    pub(super) fn recover_dead(&self) -> Result<()> {
        self.recover_others(None)
    }

    /// The same, but for a plan that the caller deals with.
    fn recover_others(&self, but: Option<PlanId>) -> Result<()> {
        for (plan, answer) in self.recover_all(but, &Settled::new())? {
            self.notice(notice(&plan, answer.as_ref()));
        }
        Ok(())
    }

    /// Recovers a plan whose lock we hold.
    pub(super) fn settle(&self, plan: &Plan) -> Result<()> {
        let Some(journal) = self.unfinished_of(plan.id)? else {
            return Ok(());
        };
        let (work, phase) = (journal.work, journal.phase);
        let done = self.recover_one(plan, journal, &Settled::new());
        let done = done.map_err(|error| needed(plan, work, phase, Some(chain(&error))))?;
        self.notice(notice(&plan.name, Ok(&done)));
        Ok(())
    }

    /// Refuses where a commit, or a restore, of the plan is still to be brought to an end.
    pub(super) fn check_unfinished(&self, plan: &Plan) -> Result<()> {
        match self.unfinished_of(plan.id)? {
            Some(journal) => Err(needed(plan, journal.work, journal.phase, None)),
            None => Ok(()),
        }
    }

    /// Notes that operations of this plan whose process died were interrupted, and removes what their validations left.
    /// While something still runs in those, that is left to the next call. The plan is locked.
    fn end_dead_operations(&self, plan: &Plan) -> Result<()> {
        if self.dead_operations()?.contains(&plan.id) && self.drop_dead_fork(plan)? {
            self.mark_interrupted(plan.id)?;
        }
        Ok(())
    }

    /// Notes that operations of this plan whose process died were interrupted. The plan is locked.
    pub(super) fn mark_interrupted(&self, plan: PlanId) -> Result<()> {
        for operation in self.store.running()? {
            if operation.plan_id == Some(plan) && !operation.owner.is_alive()? {
                self.store.end(operation.id, &self.interrupted())?;
            }
        }
        Ok(())
    }

    /// The same for operations that no open plan will be locked for again: of no plan, of one that came to
    /// nothing before it was there, and of one that is over.
    fn mark_strays_interrupted(&self) -> Result<()> {
        for operation in self.store.running()? {
            let stray = match operation.plan_id {
                Some(plan) => !self.is_open(plan)?,
                None => true,
            };
            if stray && !operation.owner.is_alive()? {
                match self.store.end(operation.id, &self.interrupted()) {
                    // What makes room must not be stopped by it.
                    Err(error) if error.wants_room() => {}
                    ended => ended?,
                }
            }
        }
        Ok(())
    }

    fn interrupted(&self) -> OperationEnd {
        OperationEnd::plain(OperationOutcome::Interrupted, self.options.origin.now())
    }
}

/// Something of a plan must be brought to an end first.
pub(super) fn needed(plan: &Plan, what: JournaledWork, phase: Phase, why: Option<String>) -> Error {
    Error::RecoveryNeeded {
        what,
        plan: plan.name.clone(),
        phase,
        why,
    }
}

/// What became of an interrupted commit, for people.
fn notice(plan: &str, answer: std::result::Result<&RecoveredPlan, &Error>) -> String {
    match answer {
        Ok(done) => {
            let because = done.because.as_ref().map(|why| format!(" ({why})"));
            let because = because.unwrap_or_default();
            let mut text = format!(
                "an interrupted {} of the plan '{plan}' ({}) was settled: {}{because}",
                done.work,
                done.found,
                done.outcome()
            );
            for (resource, path, at) in &done.kept {
                text = format!(
                    "{text}; another program's version of {resource}:{path} is kept in '{at}'"
                );
            }
            text
        }
        Err(error) => format!("cannot recover the plan '{plan}': {}", chain(error)),
    }
}
