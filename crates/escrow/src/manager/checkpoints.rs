//! Checkpoints of a plan: creates, lists, restores and deletes the saved state of all its sandboxes.

use std::path::Path;

use super::content::check_readable;
use super::creation::NewSandbox;
use super::discard::ROLLBACK;
use super::prompts::PROMPT;
use super::sessions::SessionState;
use super::{Manager, PlanDiff, PlanView, ResourceDiff, SandboxView};
use crate::commit::{Return, prepare_restore, standing_parts};
use crate::config::AutoCheckpoint;
use crate::error::{Error, Kind, Result, chain};
use crate::event::{BufferedObserver, Observer, Unobserved};
use crate::fs::state_dir::{self, DirLock};
use crate::model::Shape;
use crate::model::text::Location;
use crate::model::{Action, CheckpointId, PlanId, SandboxId, SandboxState};
use crate::store::{Checkpoint, Plan, RenewedSnapshot, Resource};
use crate::strategy::{Base, BothSides, Checkpoints, Session, Snapshot, StrategyError};

/// Why a checkpoint is taken with which a fork begins.
const FORK: &str = "fork";

/// Why one is taken before an interrupted restore is brought to an end.
const RECOVERY: &str = "before_recovery";

/// Why one is stored that holds where a restore comes from while it goes on, where a sandbox cannot return to that: it is a
/// mixture, so it is never shown, and it goes with the restore.
const RESTORE: &str = "restore";

/// A return to a checkpoint.
#[derive(Debug)]
pub struct RestoreOutcome {
    /// The one that was returned to.
    pub checkpoint: Checkpoint,
    /// Where the plan was before; nothing where a sandbox cannot return to it.
    pub before: Option<Checkpoint>,
}

/// The snapshot of a sandbox in a checkpoint.
pub(super) fn snapshot_of(checkpoint: &Checkpoint, sandbox: SandboxId) -> Result<Option<Snapshot>> {
    let found = checkpoint.snapshots.iter().find(|(id, _)| *id == sandbox);
    let read = |(_, text): &(SandboxId, String)| {
        serde_json::from_str(text).map_err(|error| {
            Error::from(StrategyError::Damaged {
                what: format!("the snapshot cannot be read ({error})"),
            })
        })
    };
    found.map(read).transpose()
}

fn is_mixture(checkpoint: &Checkpoint) -> bool {
    checkpoint.reason.as_deref() == Some(RESTORE)
}

fn stored(snapshot: &Snapshot) -> String {
    serde_json::to_string(snapshot).expect("a snapshot is JSON")
}

/// The same for a sandbox that must have been there.
pub(super) fn needed_snapshot(checkpoint: &Checkpoint, view: &SandboxView) -> Result<Snapshot> {
    let missing = || Error::LaterThanCheckpoint {
        resource: view.resource.name.clone(),
    };
    snapshot_of(checkpoint, view.sandbox.id)?.ok_or_else(missing)
}

fn cannot_be_kept(view: &SandboxView, error: StrategyError) -> Error {
    Error::Snapshot {
        resource: view.resource.name.clone(),
        what: "be kept".to_owned(),
        cause: Box::new(error.into()),
    }
}

impl Manager {
    /// Keeps every sandbox of a plan as it is now.
    pub fn create_checkpoint(
        &self,
        plan: &Plan,
        label: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<Checkpoint> {
        self.create_checkpoint_for(plan, label, None, observer)
    }

    /// The same for a reason.
    pub(super) fn create_checkpoint_for(
        &self,
        plan: &Plan,
        label: Option<&str>,
        why: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<Checkpoint> {
        self.permit_plan(Action::Checkpoint, plan)?;
        let _lock = self.begin_call(plan, false)?;
        self.check_asked_checkpoint(plan)?;
        let about = self.about_with("checkpoint", plan, label)?;
        self.record_about(about, |_| {
            let _originals = self.steady_originals(plan)?;
            let paused = self.pause(plan)?;
            let kept = self.keep(plan, label, why, (paused.is_some(), observer), None)?;
            let (views, others) = self.split_kept(self.live_sandboxes(plan)?);
            for (view, why) in others {
                let name = view.resource.name;
                self.notice(format!("'{name}' is not in the checkpoint: {why}"));
            }
            let linear = |view: &&SandboxView| self.checkpoints_of(view) == Checkpoints::Linear;
            if let Some(view) = views.iter().find(linear) {
                self.notice(format!(
                    "a return to this checkpoint cannot be taken back, and drops those after it: '{}' keeps them one inside the other",
                    view.resource.name
                ));
            }
            Ok(kept)
        })
    }

    /// The same without being asked, for a plan that is locked with its originals and in which no process is,
    /// if that is wanted and there is anything to keep. Old ones of this kind go.
    pub(super) fn checkpoint_automatically(
        &self,
        plan: &Plan,
        why: AutoCheckpoint,
        observer: &dyn Observer,
    ) -> Result<Option<CheckpointId>> {
        let views = self.live_sandboxes(plan)?;
        // Those that drop the later ones have room for few, which are for those that the user asks for.
        let can = |view: &SandboxView| {
            let how = self.checkpoints_of(view);
            !matches!(how, Checkpoints::None | Checkpoints::Linear)
        };
        // Where no process worked yet, nothing can be lost.
        let worked = |view: &SandboxView| view.sandbox.state == SandboxState::Active;
        let settings = self.settings_of(plan)?.checkpoint;
        if settings.keep == 0 {
            // None is taken only to go again; there may be some of when more were kept.
            return self.prune(plan, &[], false).map(|()| None);
        }
        let wanted = settings.auto.contains(&why);
        if !wanted || !views.iter().all(can) || !views.iter().any(worked) {
            // A process that was killed at a checkpoint may have left what looks like further names of files.
            return self.release_checkpoints(plan, false).map(|()| None);
        }
        let taken = self.keep(plan, None, Some(why.as_str()), (false, observer), None)?;
        self.prune(plan, &[taken.id], true).map(|()| Some(taken.id))
    }

    /// How a sandbox keeps checkpoints.
    fn checkpoints_of(&self, view: &SandboxView) -> Checkpoints {
        let reference = &view.sandbox.reference;
        let registry = self.registry_of(reference.plan_id).ok();
        let strategy = registry.and_then(|registry| registry.of(reference).ok());
        strategy.map_or(Checkpoints::None, |one| {
            one.capabilities_of(reference).checkpoints
        })
    }

    /// The resource whose sandbox drops later checkpoints when it returns to one. More than one could not return together: the second
    /// may fail when the first can no longer go back.
    fn linear(&self, views: &[SandboxView]) -> Result<Option<SandboxId>> {
        let linear = |view: &&SandboxView| self.checkpoints_of(view) == Checkpoints::Linear;
        let found: Vec<&SandboxView> = views.iter().filter(linear).collect();
        match found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.sandbox.id)),
            [one, other, ..] => Err(Error::Snapshot {
                resource: other.resource.name.clone(),
                what: "return to a checkpoint".to_owned(),
                cause: Box::new(Error::from(StrategyError::Unsupported {
                    strategy: other.sandbox.reference.strategy_name.clone(),
                    what: format!("return together with '{}'", one.resource.name),
                    why: "neither can go back once it has returned; roll the plan back instead"
                        .to_owned(),
                })),
            }),
        }
    }

    /// The same before something, which goes on where the sandboxes keep no checkpoints.
    pub(super) fn checkpoint_before(
        &self,
        plan: &Plan,
        why: AutoCheckpoint,
        what: &str,
        observer: &dyn Observer,
    ) -> Result<Option<CheckpointId>> {
        match self.checkpoint_automatically(plan, why, observer) {
            Err(error) if error.kind() == Kind::Unsupported => {
                let why = chain(&error);
                self.notice(format!("no checkpoint was taken before the {what}: {why}"));
                Ok(None)
            }
            kept => kept,
        }
    }

    /// Says what was heard while something was done.
    fn tell(&self, heard: BufferedObserver<'_>) {
        heard.heard().into_iter().for_each(|told| self.notice(told));
    }

    /// No process commits into the originals while they are looked at.
    pub(super) fn steady_originals(&self, plan: &Plan) -> Result<Vec<DirLock>> {
        let views = self.live_sandboxes(plan)?;
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        self.lock_originals(&resources, true)
    }

    /// Keeps every sandbox; `in_use`: the commands inside are paused. Of one that cannot be kept for what comes, `stays` stands for it.
    pub(super) fn keep(
        &self,
        plan: &Plan,
        label: Option<&str>,
        why: Option<&str>,
        (in_use, observer): (bool, &dyn Observer),
        stays: Option<(SandboxId, Snapshot)>,
    ) -> Result<Checkpoint> {
        let (views, _) = self.split_kept(self.live_sandboxes(plan)?);
        check_readable(plan, &views)?;
        let last = self.store.last_checkpoint(plan.id)?;
        let sessions = self.sessions(plan, &views, in_use)?;
        let kept = self.snapshot_each(&views, sessions, (last.as_ref(), stays), observer);
        let snapshots = match kept {
            Ok(snapshots) => snapshots,
            // What some of them kept belongs to no checkpoint.
            Err(error) => {
                return Err(error.and_left(self.release_checkpoints(plan, false)));
            }
        };
        // Nothing happened since the last one, which the user did not ask for either. Before a restore it must
        // be one that stays longer than others.
        let restores = AutoCheckpoint::BeforeRestore.as_str();
        let need_not = |last: &Checkpoint| match why {
            None => false,
            Some(_) if is_mixture(last) => false,
            // One before a command has no label by which a person finds the prompt.
            Some(PROMPT) => false,
            Some(why) if why == restores => {
                let reason = last.reason.as_deref();
                reason.is_none_or(|reason| reason == restores)
            }
            Some(_) => true,
        };
        if let Some(last) = last.filter(|last| need_not(last) && last.snapshots == snapshots)
            && !self.store.is_stale(last.id)?
        {
            return Ok(last);
        }
        let checkpoint = Checkpoint {
            id: CheckpointId::new(&*self.options.origin),
            plan_id: plan.id,
            label: label.map(str::to_owned),
            reason: why.map(str::to_owned),
            created_at: self.options.origin.now(),
            snapshots,
        };
        self.store.add_checkpoint(&checkpoint)?;
        Ok(checkpoint)
    }

    /// How each sandbox is opened: where a command is inside, which is paused, as it sees it. One file is the
    /// same for both.
    fn sessions(&self, plan: &Plan, views: &[SandboxView], in_use: bool) -> Result<Vec<Session>> {
        let session = |view: &SandboxView| match in_use && view.resource.shape != Shape::File {
            true => self.session(plan, view),
            false => Ok(Session::Exclusive),
        };
        views.iter().map(session).collect()
    }

    /// The snapshot of each sandbox.
    fn snapshot_each(
        &self,
        views: &[SandboxView],
        sessions: Vec<Session>,
        (last, stays): (Option<&Checkpoint>, Option<(SandboxId, Snapshot)>),
        observer: &dyn Observer,
    ) -> Result<Vec<(SandboxId, String)>> {
        let mut snapshots = Vec::new();
        for (view, session) in views.iter().zip(sessions) {
            let stays = stays.as_ref().filter(|(of, _)| *of == view.sandbox.id);
            if let Some((id, snapshot)) = stays {
                snapshots.push((*id, stored(snapshot)));
                continue;
            }
            let sandbox = self.open_sandbox(view, session)?;
            let before = last.map(|last| snapshot_of(last, view.sandbox.id));
            let before = before.transpose()?.flatten();
            let snapshot = sandbox.checkpoint(before.as_ref(), observer);
            let snapshot = snapshot.map_err(|error| cannot_be_kept(view, error))?;
            snapshots.push((view.sandbox.id, stored(&snapshot)));
        }
        Ok(snapshots)
    }

    /// The checkpoints of a plan, oldest first.
    pub fn checkpoints(&self, plan: &Plan) -> Result<Vec<Checkpoint>> {
        let mut all = self.store.checkpoints(plan.id)?;
        all.retain(|one| !is_mixture(one));
        Ok(all)
    }

    /// The checkpoint that was typed: its id, its label, or the beginning of its id. A command inside may label
    /// checkpoints too, so a label never stands in for the beginning of one other id, and what means two
    /// checkpoints means none.
    pub fn resolve_checkpoint(&self, plan: &Plan, typed: &str) -> Result<Checkpoint> {
        let mut all = self.store.checkpoints_called(plan.id, typed)?;
        all.retain(|one| !is_mixture(one));
        if let Some(exact) = all.iter().find(|one| one.id.to_string() == typed) {
            return Ok(exact.clone());
        }
        let labelled = |one: &&Checkpoint| one.label.as_deref() == Some(typed);
        let begins = |one: &&Checkpoint| {
            let id = one.id.to_string();
            let bare = &id[CheckpointId::PREFIX.len()..];
            !typed.is_empty() && (id.starts_with(typed) || bare.starts_with(typed))
        };
        let by_label: Vec<&Checkpoint> = all.iter().filter(labelled).collect();
        let by_id: Vec<&Checkpoint> = all.iter().filter(begins).collect();
        let unknown = |ambiguous| Error::UnknownCheckpoint {
            plan: plan.name.clone(),
            typed: typed.to_owned(),
            ambiguous,
        };
        match (by_label.as_slice(), by_id.as_slice()) {
            ([one], []) | ([], [one]) => Ok((*one).clone()),
            ([one], [other]) if one.id == other.id => Ok((*one).clone()),
            ([_], [_]) => Err(unknown(true)),
            // A beginning that several have in common means none of them.
            ([one], _) => Ok((*one).clone()),
            ([], []) => Err(unknown(false)),
            _ => Err(unknown(true)),
        }
    }

    /// Returns every sandbox of a plan to a checkpoint, or none; first keeps where they were.
    pub fn restore(
        &self,
        plan: &Plan,
        checkpoint: &Checkpoint,
        observer: &dyn Observer,
    ) -> Result<RestoreOutcome> {
        self.restore_some(plan, checkpoint, &[], observer)
    }

    /// The same of the sandboxes of these resources only; of all, if none is named.
    pub fn restore_some(
        &self,
        plan: &Plan,
        checkpoint: &Checkpoint,
        named: &[String],
        observer: &dyn Observer,
    ) -> Result<RestoreOutcome> {
        self.permit_plan(Action::Restore, plan)?;
        let _lock = self.begin_call(plan, false)?;
        self.return_to(plan, checkpoint, named, observer)
    }

    /// The same for a plan that is locked.
    pub(super) fn return_to(
        &self,
        plan: &Plan,
        checkpoint: &Checkpoint,
        named: &[String],
        observer: &dyn Observer,
    ) -> Result<RestoreOutcome> {
        let checkpoint = &self.fresh(plan, checkpoint)?;
        let views = self.returning(plan, checkpoint, named)?;
        let target = checkpoint.id.to_string();
        let about = self.about_with("restore", plan, Some(&target))?;
        self.record_about(about, |_| {
            let _originals = self.steady_originals(plan)?;
            for view in &views {
                needed_snapshot(checkpoint, view)?;
            }
            let linear = self.linear(&views)?;
            // Before anything is decided: afterwards nothing may fail that is not part of the way.
            self.activate(&views)?;
            let listening = BufferedObserver::new(observer);
            let engine = self.engine_for(plan, &listening)?;
            let members = self.members(&engine, views.clone())?;
            let paused = self.pause(plan)?;
            let sessions = views.iter().map(|view| self.session(plan, view));
            let sessions = sessions.collect::<Result<Vec<_>>>()?;
            let why = match linear {
                None => AutoCheckpoint::BeforeRestore.as_str(),
                Some(_) => RESTORE,
            };
            let stays = match linear {
                Some(id) => snapshot_of(checkpoint, id)?.map(|snapshot| (id, snapshot)),
                None => None,
            };
            let listens = (paused.is_some(), observer);
            let before = self.keep(plan, None, Some(why), listens, stays)?;
            let mut ways = Vec::new();
            for ((member, view), session) in members.into_iter().zip(&views).zip(sessions) {
                let from = needed_snapshot(&before, view)?;
                let to = needed_snapshot(checkpoint, view)?;
                let back = None;
                ways.push((
                    member,
                    Return {
                        from,
                        to,
                        back,
                        session,
                    },
                ));
            }
            // What cannot go back goes last, when nothing else can fail any more.
            ways.sort_by_key(|(member, _)| Some(member.sandbox.id) == linear);
            let ended = prepare_restore(engine, plan, checkpoint.id, ways)
                .and_then(|prepared| prepared.decide()?.execute());
            let ended = match ended {
                Ok(ended) => ended,
                Err(error) => return Err(error.and_left(self.forget_mixtures(plan))),
            };
            self.tell(listening);
            for (_, why) in ended.left {
                self.notice(format!("what was staged for the restore is left: {why}"));
            }
            let before = linear.is_none().then_some(before);
            // Both ends of the way stay.
            let spared: Vec<CheckpointId> = before
                .iter()
                .chain([checkpoint])
                .map(|one| one.id)
                .collect();
            if let Err(error) = self.prune(plan, &spared, paused.is_none()) {
                let why = chain(&error);
                self.notice(format!("could not delete old checkpoints: {why}"));
            }
            Ok(RestoreOutcome {
                checkpoint: checkpoint.clone(),
                before,
            })
        })
    }

    /// Forgets where an ended restore came from, of which a sandbox cannot return to its part.
    pub(super) fn forget_mixtures(&self, plan: &Plan) -> Result<()> {
        if self.unfinished_of(plan.id)?.is_some() {
            return Ok(());
        }
        let mixed = self.store.checkpoints_for(plan.id, Some(RESTORE))?;
        let mut mixed = mixed.iter();
        mixed.try_for_each(|one| Ok(self.store.forget_checkpoint(one.id)?))
    }

    /// A checkpoint as it is stored now that the plan is locked. Refuses one since which a part of the plan was
    /// committed, or such a commit was taken back: what it did not keep, because it was as in the originals, is
    /// another thing there now.
    fn fresh(&self, plan: &Plan, checkpoint: &Checkpoint) -> Result<Checkpoint> {
        let found = self.store.checkpoint(plan.id, checkpoint.id)?;
        let Some(found) = found.filter(|one| !is_mixture(one)) else {
            return Err(Error::UnknownCheckpoint {
                plan: plan.name.clone(),
                typed: checkpoint.id.to_string(),
                ambiguous: false,
            });
        };
        match self.store.is_stale(checkpoint.id)? {
            false => Ok(found),
            true => Err(Error::StaleCheckpoint {
                plan: plan.name.clone(),
                checkpoint: checkpoint.id.to_string(),
            }),
        }
    }

    /// Refuses to fork a sandbox whose checkpoints lie one inside the other: none of them can be copied.
    fn check_forks(&self, view: &SandboxView) -> Result<()> {
        match self.checkpoints_of(view) {
            Checkpoints::Linear => Err(Error::from(StrategyError::Unsupported {
                strategy: view.sandbox.reference.strategy_name.clone(),
                what: "be forked".to_owned(),
                why: "it is one transaction; another plan of the same original begins beside it"
                    .to_owned(),
            })),
            _ => Ok(()),
        }
    }

    /// Refuses to fork a sandbox that knows its original as it was, of which a part is committed: that would be a change
    /// of the fork, and a conflict.
    fn check_whole(&self, view: &SandboxView) -> Result<()> {
        let reference = &view.sandbox.reference;
        let strategy = self.registry_of(reference.plan_id)?.of(reference)?;
        let frozen = strategy.capabilities_of(reference).base == Base::Frozen;
        match frozen && !standing_parts(&self.store, &view.sandbox)?.is_empty() {
            true => Err(Error::from(StrategyError::Unsupported {
                strategy: strategy.name().to_owned(),
                what: "be forked".to_owned(),
                why: "a part of its plan is committed: commit the rest, or undo the part with `escrow undo`"
                    .to_owned(),
            })),
            false => Ok(()),
        }
    }

    /// Deletes a checkpoint.
    pub fn delete_checkpoint(&self, plan: &Plan, checkpoint: &Checkpoint) -> Result<()> {
        self.permit_plan(Action::Checkpoint, plan)?;
        let _lock = self.begin_call(plan, false)?;
        let target = checkpoint.id.to_string();
        let about = self.about_with("checkpoint delete", plan, Some(&target))?;
        self.record_about(about, |_| {
            self.store.forget_checkpoint(checkpoint.id)?;
            self.release_checkpoints(plan, self.live(plan)? == SessionState::Idle)
        })
    }

    /// Deletes automatic checkpoints but the newest, where the last restore came from (rule R2), and `spared`
    /// ones; those that the user asked for stay (rule R5).
    pub(super) fn prune(&self, plan: &Plan, spared: &[CheckpointId], squash: bool) -> Result<()> {
        let mut automatic = self.store.checkpoints_for(plan.id, None)?;
        // What a rollback discarded is kept as long as a commit can be undone.
        let apart = [Some(ROLLBACK), Some(PROMPT)];
        automatic.retain(|one| !is_mixture(one) && !apart.contains(&one.reason.as_deref()));
        let keep = self.settings_of(plan)?.checkpoint.keep;
        let many = automatic.len().saturating_sub(keep as usize);
        let restores = Some(AutoCheckpoint::BeforeRestore.as_str());
        let from = |one: &&Checkpoint| one.reason.as_deref() == restores;
        let from = automatic.iter().rfind(from).map(|one| one.id);
        let stays = |id: CheckpointId| Some(id) == from || spared.contains(&id);
        let old = automatic[..many].iter().map(|one| one.id);
        for id in old.filter(|id| !stays(*id)) {
            self.store.forget_checkpoint(id)?;
        }
        self.release_checkpoints(plan, squash)
    }

    /// Keeps where a plan is whose restore was interrupted: processes may have continued to work.
    pub(super) fn checkpoint_present(&self, plan: &Plan) -> Result<()> {
        let in_use = self.inside(plan)?.is_some();
        let kept = self.keep(plan, None, Some(RECOVERY), (in_use, &Unobserved), None);
        match kept {
            Ok(kept) => self.notice(format!(
                "the plan '{}' as it was before its interrupted restore was finished is saved as {}",
                plan.name, kept.id
            )),
            Err(error) if error.kind() == Kind::Unsupported => {
                let why = chain(&error);
                self.notice(format!(
                    "could not save the plan '{}' before the restore: {why}",
                    plan.name
                ));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Removes what no checkpoint needs any more. `squash`: strategies may rewrite what is left; only while no command
    /// is inside and no restore is under way.
    pub(super) fn release_checkpoints(&self, plan: &Plan, squash: bool) -> Result<()> {
        self.forget_mixtures(plan)?;
        let renewed = self.retain_each(plan, squash)?;
        if renewed.is_empty() {
            return Ok(());
        }
        self.store.renew_snapshots(&renewed)?;
        // What the old ones named goes once the new ones are stored.
        self.retain_each(plan, false).map(drop)
    }

    /// The snapshots that were rewritten.
    fn retain_each(&self, plan: &Plan, squash: bool) -> Result<Vec<RenewedSnapshot>> {
        let all = self.store.checkpoints(plan.id)?;
        let mut renewed = Vec::new();
        for view in self.live_sandboxes(plan)? {
            let sandbox = view.sandbox.id;
            let (mut ids, mut kept) = (Vec::new(), Vec::new());
            for checkpoint in &all {
                if let Some(snapshot) = snapshot_of(checkpoint, sandbox)? {
                    ids.push(checkpoint.id);
                    kept.push(snapshot);
                }
            }
            let alone = match squash {
                true => self.open_sandbox(&view, Session::Exclusive).ok(),
                false => None,
            };
            // Where the original is gone, what is not needed can still be removed.
            let opened = match alone {
                Some(opened) => opened,
                None => self.open_sandbox(&view, Session::Shared)?,
            };
            let now = opened.retain(&kept)?;
            for ((checkpoint, old), new) in ids.into_iter().zip(kept).zip(now) {
                if new != old {
                    let snapshot = stored(&new);
                    renewed.push(RenewedSnapshot {
                        checkpoint,
                        sandbox,
                        snapshot,
                    });
                }
            }
        }
        Ok(renewed)
    }

    /// What changed in each sandbox between a checkpoint and another one, or now.
    pub fn since(
        &self,
        plan: &Plan,
        checkpoint: &Checkpoint,
        until: Option<&Checkpoint>,
    ) -> Result<PlanDiff> {
        self.permit_within(Action::Diff, plan)?;
        let _lock = self.begin_call(plan, true)?;
        let checkpoint = self.fresh(plan, checkpoint)?;
        let until = until.map(|until| self.fresh(plan, until)).transpose()?;
        let _originals = self.steady_originals(plan)?;
        let (views, _) = self.split_kept(self.live_sandboxes(plan)?);
        check_readable(plan, &views)?;
        let mut found = Vec::new();
        for view in views {
            let snapshot = needed_snapshot(&checkpoint, &view)?;
            let until = until.as_ref().map(|until| needed_snapshot(until, &view));
            let until = until.transpose()?;
            let sandbox = self.open_sandbox(&view, Session::Shared)?;
            let mut diff = sandbox.diff(Some(&snapshot), until.as_ref())?;
            let ignored = self.leave_ignored(plan, &view, &mut diff)?;
            let authorized = self.authorize_changes(Action::Diff, &view, &diff);
            self.denied(Action::Diff, Some(plan), authorized)?;
            found.push(ResourceDiff {
                view,
                diff,
                both_sides: BothSides::new(),
                ignored,
            });
        }
        Ok(PlanDiff::new(found, plan))
    }

    /// A new plan that begins where another one is, or was at a checkpoint.
    pub fn fork(
        &self,
        plan: &Plan,
        at: Option<&Checkpoint>,
        name: Option<&str>,
        directory: &Path,
        observer: &dyn Observer,
    ) -> Result<PlanView> {
        self.permit_plan(Action::Create, plan)?;
        let _lock = self.begin_call(plan, false)?;
        self.check_new_name(name)?;
        let (views, others) = self.split_kept(self.live_sandboxes(plan)?);
        let directory = Location::from(state_dir::canonical(directory)?);
        self.record("fork", Some(plan.id), &plan.name, || {
            let _originals = self.steady_originals(plan)?;
            views.iter().try_for_each(|view| self.check_forks(view))?;
            let at = match at {
                Some(at) => self.fresh(plan, at)?,
                None => {
                    let paused = self.pause(plan)?;
                    self.keep(plan, None, Some(FORK), (paused.is_some(), observer), None)?
                }
            };
            let mut from = Vec::new();
            for view in views {
                check_readable(plan, [&view])?;
                self.check_whole(&view)?;
                let snapshot = needed_snapshot(&at, &view)?;
                from.push((view, snapshot));
            }
            let new = from.iter().map(|(view, snapshot)| NewSandbox {
                resource: view.resource.clone(),
                wanted: view.sandbox.requested.clone(),
                from: Some((view, snapshot)),
            });
            let listening = BufferedObserver::new(observer);
            let new: Vec<NewSandbox<'_>> = new.collect();
            let id = PlanId::new(&*self.options.origin);
            let config = self.store.plan_config(plan.id)?;
            let fork = self.make_plan(id, config, (name, false), &directory, &new, &listening)?;
            self.tell(listening);
            for (view, why) in others {
                let name = view.resource.name;
                self.notice(format!("'{name}' is not in the fork: {why}"));
            }
            Ok(fork)
        })
    }
}
