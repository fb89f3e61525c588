//! Rollback: the changes of all sandboxes of a plan are discarded, or none; what was discarded is kept for an undo.
//!
//! A plan that `run` made by itself ends: its sandboxes are set aside as they are, which costs nothing. Of any other a
//! checkpoint keeps the changes, and its sandboxes can be worked in again.
//!
//! Whatever can keep a sandbox from being discarded is found out first. Then one record in the journal decides; then
//! each sandbox is discarded; one sync and one transaction end it. What is interrupted, or fails in the middle, is
//! finished by `recover` and by every command that changes something; until then the plan cannot be used.

use std::collections::BTreeSet;

use super::checkpoints::{needed_snapshot, snapshot_of};
use super::content::check_readable;
use super::{Manager, SandboxView};
use crate::commit::{Return, discarded, prepare_discard, prepare_restore};
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::workspace::{free_at, is_tight};
use crate::model::{
    Action, Change, CheckpointId, CleanupPolicy, CommitId, JournaledWork, Phase, ResourcePath,
    SandboxState,
};
use crate::policy::select::ReleaseSelection;
use crate::store::{JournalEntry, Plan, Resource};
use crate::strategy::{Session, unsupported};

/// Why a checkpoint is taken that keeps what a rollback discards.
pub(super) const ROLLBACK: &str = "before_rollback";

/// Why what was written without isolation is not discarded.
const NOT_ISOLATED: &str = "nothing was isolated, so what was written is already in the original";

/// With less room than this, a rollback says what would free some.
const LITTLE: u64 = 64 << 20;

/// A sandbox whose changes were discarded.
#[derive(Debug)]
pub struct DiscardedSandbox {
    /// The resource.
    pub resource: String,
    /// What was done.
    pub message: String,
}

impl Manager {
    /// Discards the changes of every sandbox of the plan, and keeps them for as long as a commit can be undone. A plan that `run`
    /// made by itself ends; any other can be worked in again. What cannot be discarded is found before anything is; one that
    /// fails then does not stop the others, and is discarded by `recover`.
    pub fn rollback(&self, plan: &Plan, observer: &dyn Observer) -> Result<Vec<DiscardedSandbox>> {
        self.permit_plan(Action::Rollback, plan)?;
        self.make_room_to_clean()?;
        self.make_room_for(plan.id)?;
        let lock = self.begin_call(plan, false)?;
        self.check_quiet(plan)?;
        let ends = self.settings_of(plan)?.cleanup == CleanupPolicy::OnTerminal;
        let mut done = self.record("rollback", Some(plan.id), &plan.name, || {
            let views = self.parents_first(self.live_sandboxes(plan)?)?;
            let all = views.clone();
            let (views, open) = self.split_isolated(views);
            self.check_discardable(plan, &views)?;
            let resources: Vec<&Resource> = all.iter().map(|view| &view.resource).collect();
            let _originals = self.lock_originals(&resources, true)?;
            let mut done = match plan.implicit && !ends {
                true => self.end_by_rollback(plan, all, observer)?,
                false => self.discard_all(plan, views, ends, observer)?,
            };
            done.retain(|one| !open.contains(&one.resource));
            done.extend(open.into_iter().map(|resource| DiscardedSandbox {
                resource,
                message: format!("irreversible: {NOT_ISOLATED}"),
            }));
            Ok(done)
        })?;
        if plan.implicit && !ends {
            self.warn_of_space(plan)?;
            return Ok(done);
        }
        // What was released in parts can be taken back, into the sandboxes it came from.
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
        self.warn_of_space(plan)?;
        Ok(done)
    }

    /// The sandboxes that are apart from their originals, and the resources of the others; all of them where none is, since that is
    /// refused.
    fn split_isolated(&self, views: Vec<SandboxView>) -> (Vec<SandboxView>, Vec<String>) {
        let isolates = |view: &SandboxView| {
            let reference = &view.sandbox.reference;
            let registry = self.registry_for(reference);
            let strategy = registry.and_then(|registry| Ok(registry.of(reference)?));
            strategy.map_or(true, |one| one.capabilities().isolates)
        };
        let (apart, open): (Vec<_>, Vec<_>) = views.into_iter().partition(isolates);
        match apart.is_empty() {
            true => (open, Vec::new()),
            false => {
                let names = open.into_iter().map(|view| view.resource.name);
                (apart, names.collect())
            }
        }
    }

    /// Discards the changes of these sandboxes. A checkpoint keeps them, unless the plan `ends` with its sandboxes.
    fn discard_all(
        &self,
        plan: &Plan,
        views: Vec<SandboxView>,
        ends: bool,
        observer: &dyn Observer,
    ) -> Result<Vec<DiscardedSandbox>> {
        let kept = match ends {
            true => {
                self.notice(format!(
                    "`escrow undo {}` will not bring back what is discarded: `sandbox.cleanup` is on_terminal",
                    plan.name
                ));
                None
            }
            false => self.keep_discarded(plan, &views, observer)?,
        };
        let engine = self.engine_for(plan, observer)?;
        let members = self.members(&engine, views.clone())?;
        let ended = prepare_discard(engine, plan, members, kept)?.execute()?;
        if let Some(kept) = kept {
            self.check_kept(plan, &views, kept)?;
        }
        let one = |(resource, message)| DiscardedSandbox { resource, message };
        Ok(ended.messages.into_iter().map(one).collect())
    }

    /// Says so where what a sandbox was cannot be returned to: on a full disk it made room for what took its place.
    fn check_kept(&self, plan: &Plan, views: &[SandboxView], kept: CheckpointId) -> Result<()> {
        let all = self.store.checkpoints(plan.id)?;
        let Some(checkpoint) = all.iter().find(|one| one.id == kept) else {
            return Ok(());
        };
        for view in views {
            let Some(snapshot) = snapshot_of(checkpoint, view.sandbox.id)? else {
                continue;
            };
            let sandbox = self.open_sandbox(view, Session::Exclusive)?;
            let Err(error) = sandbox.diff(None, Some(&snapshot)) else {
                continue;
            };
            self.notice(format!(
                "`escrow undo {}` cannot bring back what was discarded in {}: {}",
                plan.name,
                view.resource.name,
                chain(&error)
            ));
            self.store.forget_rollbacks(plan.id)?;
            break;
        }
        Ok(())
    }

    /// Keeps what a rollback is about to discard; says so where that cannot be.
    fn keep_discarded(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        observer: &dyn Observer,
    ) -> Result<Option<CheckpointId>> {
        let worked = |view: &SandboxView| view.sandbox.state == SandboxState::Active;
        if !views.iter().any(worked) {
            return Ok(None);
        }
        // A rollback gets rid of what is broken, and frees space: what cannot be kept is said, and stops nothing.
        // The room that is given up for what frees space is not for what keeps it.
        let is_full = |view: &SandboxView| is_tight(view.sandbox.area.as_path());
        let why = match views.iter().any(is_full) {
            true => "the disk is nearly full".to_owned(),
            false => match self.keep(plan, None, Some(ROLLBACK), (false, observer), None) {
                Ok(kept) => {
                    let is_kept = |view: &SandboxView| {
                        let mut snapshots = kept.snapshots.iter();
                        snapshots.any(|(id, _)| *id == view.sandbox.id)
                    };
                    for view in views.iter().filter(|view| !is_kept(view)) {
                        let (plan, name) = (&plan.name, &view.resource.name);
                        self.notice(format!(
                            "`escrow undo {plan}` will not bring back what was changed in {name}: nothing of its sandbox is left"
                        ));
                    }
                    return Ok(Some(kept.id));
                }
                Err(error) => chain(&error),
            },
        };
        self.notice(format!(
            "`escrow undo {}` will not bring back what is discarded: {why}",
            plan.name
        ));
        Ok(None)
    }

    /// Ends a plan: its sandboxes stay as they are, set aside, for as long as a commit can be undone. One that ends with its
    /// process, such as an open transaction, is discarded, and that is said.
    fn end_by_rollback(
        &self,
        plan: &Plan,
        views: Vec<SandboxView>,
        observer: &dyn Observer,
    ) -> Result<Vec<DiscardedSandbox>> {
        let registry = self.registry_of(plan.id)?;
        let (mut stay, mut go, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for view in views {
            let reference = &view.sandbox.reference;
            let survives = registry.of(reference)?.capabilities_of(reference).survives;
            let to = if survives { &mut stay } else { &mut go };
            to.push(view);
        }
        for view in &go {
            self.notice(format!(
                "`escrow undo {}` will not bring back what was changed in {}: its sandbox ends now",
                plan.name, view.resource.name
            ));
        }
        if !go.is_empty() {
            let engine = self.engine_for(plan, observer)?;
            let members = self.members(&engine, go.clone())?;
            prepare_discard(engine, plan, members, None)?.execute()?;
        }
        let mut states = Vec::new();
        for view in &stay {
            let state = view.sandbox.state.go(SandboxState::RolledBack)?;
            states.push((view.sandbox.id, state));
        }
        let journal = JournalEntry {
            id: CommitId::new(&*self.options.origin),
            plan_id: plan.id,
            work: JournaledWork::Rollback,
            phase: Phase::Committed,
            message: None,
            checkpoint: None,
            part: false,
            stands: false,
            created_at: self.options.origin.now(),
            members: Vec::new(),
            damaged: None,
        };
        self.store.set_aside(&journal, &states)?;
        for view in stay.iter().chain(&go) {
            done.push(DiscardedSandbox {
                resource: view.resource.name.clone(),
                message: "its changes were discarded".to_owned(),
            });
        }
        for view in &go {
            self.clean_one(view, false)?;
        }
        Ok(done)
    }

    /// Says what frees room where a rollback that keeps what it discarded leaves little.
    fn warn_of_space(&self, plan: &Plan) -> Result<()> {
        for view in self.live_sandboxes(plan)? {
            let Some(free) = free_at(view.sandbox.area.as_path())? else {
                continue;
            };
            if free < LITTLE {
                self.notice(format!(
                    "only {} MiB are free at '{}': `escrow cleanup {}` frees what the rollback keeps for `escrow undo`",
                    free >> 20,
                    view.sandbox.area,
                    plan.name
                ));
                break;
            }
        }
        Ok(())
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
            let (views, _) = self.split_kept(self.live_sandboxes(plan)?);
            let views = self.parents_first(views)?;
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
            // No later checkpoint takes its place: what was discarded stays until the plan goes or is committed.
            let before = self.keep(plan, None, Some(ROLLBACK), (false, observer), None)?;
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
                    return Err(unsupported(
                        &reference.strategy_name,
                        "discard changes",
                        NOT_ISOLATED,
                    )
                    .into());
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
