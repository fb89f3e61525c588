//! Rollback: the changes of all sandboxes of a plan are discarded, or none.
//!
//! Whatever can keep a sandbox from being discarded is found out first. Then one record in the journal decides; then
//! each sandbox is discarded; one sync and one transaction end it. What is interrupted, or fails in the middle, is
//! finished by `recover` and by every command that changes something; until then the plan cannot be used.

use super::content::check_readable;
use super::{Manager, SandboxView};
use crate::commit::prepare_discard;
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::model::{Action, CleanupPolicy, Phase, SandboxState};
use crate::store::{JournalEntry, Plan, Resource};
use crate::strategy::{Session, unsupported};

/// A sandbox whose changes were discarded.
#[derive(Debug)]
pub struct DiscardedSandbox {
    /// The resource.
    pub resource: String,
    /// What was done.
    pub message: String,
}

impl Manager {
    /// Discards the changes of every sandbox of the plan. What cannot be discarded is found before anything is;
    /// one that fails then does not stop the others, and is discarded by `recover`.
    pub fn rollback(&self, plan: &Plan, observer: &dyn Observer) -> Result<Vec<DiscardedSandbox>> {
        self.permit_plan(Action::Rollback, plan)?;
        self.make_room_to_clean()?;
        self.make_room_for(plan.id)?;
        let lock = self.begin_call(plan, false)?;
        self.check_quiet(plan)?;
        let mut done = self.record("rollback", Some(plan.id), &plan.name, || {
            let views = self.parents_first(self.live_sandboxes(plan)?)?;
            self.check_discardable(plan, &views)?;
            let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
            let _originals = self.lock_originals(&resources, true)?;
            let engine = self.engine_for(plan, observer)?;
            let members = self.members(&engine, views.clone())?;
            let ended = prepare_discard(engine, plan, members)?.execute()?;
            let one = |(resource, message)| DiscardedSandbox { resource, message };
            Ok(ended.messages.into_iter().map(one).collect::<Vec<_>>())
        })?;
        // What was released in parts can be taken back, into the sandboxes it came from.
        let ends = self.settings_of(plan)?.cleanup == CleanupPolicy::OnTerminal;
        let stands = |one: &JournalEntry| one.phase == Phase::Committed;
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
        } else if let Err(error) = self.release_checkpoints(plan, false) {
            self.notice(format!(
                "the plan '{0}' is rolled back, but what it held is left: {1}; `escrow cleanup {0}` removes it",
                plan.name,
                chain(&error)
            ));
        }
        Ok(done)
    }

    /// Refuses where the changes of a sandbox cannot be discarded, before those of any are.
    fn check_discardable(&self, plan: &Plan, views: &[SandboxView]) -> Result<()> {
        let mut failed = Vec::new();
        for view in views {
            let check = || -> Result<()> {
                check_readable(plan, [view])?;
                view.sandbox.state.go(SandboxState::RolledBack)?;
                let reference = &view.sandbox.reference;
                if !self
                    .registry_of(plan.id)?
                    .of(reference)?
                    .capabilities()
                    .isolates
                {
                    let why =
                        "nothing was isolated, so what was written is already in the original";
                    return Err(
                        unsupported(&reference.strategy_name, "discard changes", why).into(),
                    );
                }
                self.open_sandbox(view, Session::Exclusive).map(drop)
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
}
