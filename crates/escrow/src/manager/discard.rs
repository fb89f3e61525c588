//! Rollback: the changes of all sandboxes of a plan are discarded, or none.
//!
//! Whatever can keep a sandbox from being discarded is found out first. Then one record in the journal decides; then
//! each sandbox is discarded; one sync and one transaction end it. What is interrupted, or fails in the middle, is
//! finished by `recover` and by every command that changes something; until then the plan cannot be used.

use super::work::check_readable;
use super::{Manager, SandboxView};
use crate::commit::{Recovered, Side};
use crate::error::{Error, Result, chain};
use crate::event::{Observer, Unobserved};
use crate::fs::durable;
use crate::model::text::Location;
use crate::model::{Action, Cleanup, CommitId, Phase, SandboxState, Work};
use crate::seeded;
use crate::store::{Journal, JournalMember, Plan, Resource};

/// A sandbox whose changes were discarded.
#[derive(Debug)]
pub struct Discarded {
    /// The resource.
    pub resource: String,
    /// What was done.
    pub message: String,
}

impl Manager {
    /// Discards the changes of every sandbox of the plan. What cannot be discarded is found before anything is;
    /// one that fails then does not stop the others, and is discarded by `recover`.
    pub fn rollback(&self, plan: &Plan, observer: &dyn Observer) -> Result<Vec<Discarded>> {
        self.permit_plan(Action::Rollback, plan)?;
        self.make_room_to_clean()?;
        self.make_room_for(plan.id)?;
        let lock = self.lock(plan, false)?;
        self.check_quiet(plan)?;
        let mut done = self.record("rollback", Some(plan.id), &plan.name, || {
            let views = self.parents_first(self.live_sandboxes(plan)?)?;
            self.check_discardable(plan, &views)?;
            let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
            let _originals = self.lock_originals(&resources, true)?;
            let id = self.decide_discard(plan, &views)?;
            self.go_on_discarding(plan, id, &views, observer)
        })?;
        // What was released in parts can be taken back, into the sandboxes it came from.
        let ends = self.settings_of(plan)?.cleanup == Cleanup::OnTerminal;
        let stands = |one: &Journal| one.phase == Phase::Committed;
        if ends && !self.store.journals_of(plan.id)?.iter().any(stands) {
            match self.remove_plan(plan, lock, false) {
                Ok(_) => {
                    for one in &mut done {
                        one.message.push_str("; its sandbox was removed");
                    }
                }
                // What was asked for is done; that the workspace is still there is no harm (rule C7).
                Err(error) => self.notice(format!(
                    "the plan '{0}' is rolled back, but not removed: {1}; `escrow cleanup {0}` finishes its removal",
                    plan.name,
                    chain(&error)
                )),
            }
        }
        Ok(done)
    }

    /// Refuses where the changes of a sandbox cannot be discarded, before those of any are.
    fn check_discardable(&self, plan: &Plan, views: &[SandboxView]) -> Result<()> {
        let mut failed = Vec::new();
        for view in views {
            let check = || -> Result<()> {
                check_readable(plan, view)?;
                view.sandbox.state.go(SandboxState::RolledBack)?;
                let reference = &view.sandbox.reference;
                let strategy = self.registry().get(&reference.strategy)?;
                Ok(strategy.check_discard(reference)?)
            };
            if let Err(error) = check() {
                failed.push((view.resource.name.clone(), error));
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::partly(plan, "rolled back", Vec::new(), failed)),
        }
    }

    /// Decides, durably, that every sandbox is discarded.
    fn decide_discard(&self, plan: &Plan, views: &[SandboxView]) -> Result<CommitId> {
        let member = |view: &SandboxView| JournalMember {
            sandbox_id: view.sandbox.id,
            area: Location::from_bytes(b""),
            intent: None,
            carried: false,
        };
        let journal = Journal {
            id: CommitId::new(&*self.options.origin),
            plan_id: plan.id,
            work: Work::Rollback,
            phase: Phase::Decided,
            message: None,
            checkpoint: None,
            part: false,
            created_at: self.options.origin.now(),
            members: views.iter().map(member).collect(),
            damaged: None,
        };
        if seeded::bug("rollback-one-by-one") {
            return Ok(journal.id);
        }
        let Err(cause) = self.store.begin_commit(&journal) else {
            return Ok(journal.id);
        };
        // It may be on disk all the same: the opposite is said, durably, and nothing is discarded.
        match self.store.forget_commit(journal.id) {
            Ok(()) => Err(cause.into()),
            Err(error) => Err(Error::Undecided {
                plan: plan.name.clone(),
                cause: Box::new(cause.into()),
                why: chain(&error),
            }),
        }
    }

    /// Discards every sandbox of a plan for which that is decided; can be repeated. One that fails does not stop the
    /// others (rule C17), and the decision stays until all are discarded.
    fn go_on_discarding(
        &self,
        plan: &Plan,
        id: CommitId,
        views: &[SandboxView],
        observer: &dyn Observer,
    ) -> Result<Vec<Discarded>> {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for view in views {
            let resource = view.resource.name.clone();
            match self.discard(view, observer) {
                Ok(message) => done.push(Discarded { resource, message }),
                Err(error) => failed.push((resource, chain(&error))),
            }
        }
        let half = |done: Vec<Discarded>, failed| Error::HalfDiscarded {
            plan: plan.name.clone(),
            done: done.into_iter().map(|one| one.resource).collect(),
            failed,
        };
        if !failed.is_empty() {
            return Err(half(done, failed));
        }
        match self.end_discard(plan, id, views) {
            Ok(()) => Ok(done),
            Err(error) => {
                let what = "what was written beside the sandboxes, or the record of it".to_owned();
                Err(half(done, vec![(what, chain(&error))]))
            }
        }
    }

    fn discard(&self, view: &SandboxView, observer: &dyn Observer) -> Result<String> {
        let strategy = self.registry().get(&view.sandbox.reference.strategy)?;
        let done = strategy.rollback(&view.sandbox.reference, None, observer)?;
        if seeded::bug("rollback-one-by-one") {
            let next = (view.sandbox.id, SandboxState::RolledBack);
            self.store.set_sandbox_states(&[next])?;
        }
        Ok(done.message)
    }

    fn end_discard(&self, plan: &Plan, id: CommitId, views: &[SandboxView]) -> Result<()> {
        self.drop_scratch(plan)?;
        durable::sync_file_systems(views.iter().map(|view| view.sandbox.area.as_path()))?;
        let mut states = Vec::new();
        for view in views {
            let next = view.sandbox.state.go(SandboxState::RolledBack)?;
            states.push((view.sandbox.id, next));
        }
        Ok(self.store.finish_rollback(id, &states)?)
    }

    /// Finishes a rollback whose process crashed; the plan and its originals are locked.
    pub(super) fn recover_discard(
        &self,
        plan: &Plan,
        journal: &Journal,
        views: &[SandboxView],
    ) -> Result<Recovered> {
        self.go_on_discarding(plan, journal.id, views, &Unobserved)?;
        let (work, found) = (Work::Rollback, journal.phase);
        Ok(Recovered::plain(plan, work, found, Side::New))
    }
}
