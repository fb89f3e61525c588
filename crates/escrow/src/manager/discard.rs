//! Rollback: the changes of all sandboxes of a plan are discarded, or none.
//!
//! Whatever can keep a sandbox from being discarded is found out first. Then one record in the journal decides; then
//! each sandbox is discarded; one sync and one transaction end it. What is interrupted, or fails in the middle, is
//! finished by `recover` and by every command that changes something; until then the plan cannot be used.

use std::collections::BTreeSet;

use super::checkpoints::needed_snapshot;
use super::content::check_readable;
use super::{Manager, SandboxView};
use crate::commit::{Return, discarded, prepare_discard, prepare_restore};
use crate::config::AutoCheckpoint;
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::model::{Action, Change, CleanupPolicy, Phase, ResourcePath, SandboxState};
use crate::policy::select::ReleaseSelection;
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

    /// Discards what was selected, in all sandboxes or in none: it is as in the originals again, and all else stays. Where the
    /// sandboxes were is kept as a checkpoint.
    pub fn rollback_part(
        &self,
        plan: &Plan,
        selection: &ReleaseSelection,
        observer: &dyn Observer,
    ) -> Result<Vec<DiscardedSandbox>> {
        self.permit_plan(Action::Rollback, plan)?;
        let _lock = self.begin_call(plan, false)?;
        self.check_quiet(plan)?;
        self.record("rollback", Some(plan.id), &plan.name, || {
            let views = self.parents_first(self.live_sandboxes(plan)?)?;
            check_readable(plan, &views)?;
            let _originals = self.steady_originals(plan)?;
            let back = self.selected_to_discard(plan, &views, selection)?;
            let (views, paths): (Vec<SandboxView>, Vec<_>) = views
                .into_iter()
                .zip(back)
                .filter(|(_, back)| !back.is_empty())
                .unzip();
            self.check_discardable(plan, &views)?;
            let engine = self.engine_for(plan, observer)?;
            let members = self.members(&engine, views.clone())?;
            let why = AutoCheckpoint::BeforeRestore.as_str();
            let before = self.keep(plan, None, Some(why), (false, observer), None)?;
            let (mut ways, mut done) = (Vec::new(), Vec::new());
            for ((member, view), back) in members.into_iter().zip(&views).zip(paths) {
                let from = needed_snapshot(&before, view)?;
                done.push(DiscardedSandbox {
                    resource: view.resource.name.clone(),
                    message: format!(
                        "discarded {} of its changes; `escrow restore {} {}` brings back what was",
                        back.len(),
                        plan.name,
                        before.id
                    ),
                });
                let way = Return {
                    to: from.clone(),
                    from,
                    back: Some(back),
                    session: Session::Exclusive,
                };
                ways.push((member, way));
            }
            let ended = prepare_restore(engine, plan, before.id, ways)
                .and_then(|prepared| prepared.decide()?.execute())?;
            for (_, why) in ended.left {
                self.notice(format!("what was staged for the rollback is left: {why}"));
            }
            if let Err(error) = self.prune(plan, &[before.id], true) {
                let why = chain(&error);
                self.notice(format!("could not delete old checkpoints: {why}"));
            }
            Ok(done)
        })
    }

    /// The paths of each sandbox that are discarded.
    fn selected_to_discard(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        selection: &ReleaseSelection,
    ) -> Result<Vec<BTreeSet<ResourcePath>>> {
        let mut diffs = Vec::new();
        for view in views {
            let sandbox = self.open_sandbox(view, Session::Exclusive)?;
            diffs.push((view.resource.name.as_str(), sandbox.diff(None, None)?));
        }
        let shown = diffs.iter().map(|(name, diff)| (*name, &diff.changes[..]));
        let shown: Vec<(&str, &[Change])> = shown.collect();
        if let Some(unmatched) = selection.unmatched(&shown) {
            return Err(Error::Unmatched {
                plan: plan.name.clone(),
                pattern: unmatched.pattern,
                near: unmatched.near,
            });
        }
        let back = shown
            .iter()
            .map(|(name, changes)| discarded(selection, name, changes));
        let back: Vec<BTreeSet<ResourcePath>> = back.collect();
        match back.iter().all(BTreeSet::is_empty) {
            true => Err(Error::NothingSelected {
                plan: plan.name.clone(),
            }),
            false => Ok(back),
        }
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
