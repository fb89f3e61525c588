//! Garbage collection: deletes leftovers of finished plans, never of unfinished ones.
//!
//! Everything of a plan goes under its lock, looked at again once it is held. One that cannot be
//! removed does not stop the others (rule C17). Records change before what they tell of is removed, so
//! that a process that is killed in between leaves something that the next one finds by its name.
//!
//! | file | promise |
//! |---|---|
//! | `find` | everything that is left, and whose it is |
//! | `choose` | what of it may go now |
//! | `orphans` | what has no record is named, and goes only by its name |

mod choose;
mod find;
mod orphans;

use std::collections::HashSet;
use std::time::Duration;

use self::choose::{age, choose};
use self::find::{GarbageCandidate, GarbageScan, area_at};
pub use self::orphans::Orphan;
use super::Manager;
use super::sessions;
use crate::error::{Error, Result, chain};
use crate::event::Unobserved;
use crate::fs::state_dir::Lock;
use crate::model::text::Location;
use crate::model::words::words;
use crate::model::{JournaledWork, Phase, PlanId, PlanState};
use crate::store::Plan;

/// Who works on a plan for longer than this is at it; a process that is just being started may hold the
/// locks of the one that starts it.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// What is to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct GarbageRequest {
    /// Only what ended at least so long ago.
    pub older_than: Option<Duration>,
    /// Of what is finished, the oldest first, until the rest takes no more bytes than this; also what
    /// could still be undone.
    pub max_size: Option<u64>,
    /// Only say what would go.
    pub dry_run: bool,
}

words! {
    /// What is left of something.
    pub enum LeftoverKind {
        /// A workspace of a plan that is over.
        Workspace = "workspace",
        /// What is kept to undo a commit.
        Undo = "undo",
        /// What commands wrote into the home directory.
        Scratch = "scratch",
        /// What belongs to nothing any more.
        Orphan = "orphan",
        /// A lock of a plan that is no more.
        Lock = "lock",
        /// A cache of a tool that commands of a project use.
        Cache = "cache",
        /// The sessions of a coding agent.
        AgentHome = "agent_home",
        /// What belongs to an open plan.
        Open = "open",
        /// Another process's work, set aside by an undo.
        Aside = "aside",
        /// What is not known to be ours.
        Unknown = "unknown",
    }
    else |word| format!("nothing that is left is called '{word}'")
}

/// Something that is left on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Of what.
    pub kind: LeftoverKind,
    /// The plan it belongs to, by name.
    pub plan: Option<String>,
    /// Where it is.
    pub path: Location,
    /// The bytes on disk that go with it.
    pub bytes: u64,
}

/// Something that stays, and why.
pub type KeptLeftover = (Leftover, String);

/// What became of everything that was found.
#[derive(Debug, Default)]
pub struct GarbageReport {
    /// What is gone, or would go.
    pub removed: Vec<Leftover>,
    /// What stays, and why.
    pub kept: Vec<KeptLeftover>,
    /// What could not be removed, and why.
    pub failed: Vec<KeptLeftover>,
}

impl GarbageReport {
    /// The bytes that were given back.
    pub fn freed(&self) -> u64 {
        self.removed.iter().map(|one| one.bytes).sum()
    }

    fn keep(&mut self, candidates: &[GarbageCandidate], why: &str) {
        let kept = candidates.iter().flat_map(GarbageCandidate::leftovers);
        self.kept.extend(kept.map(|one| (one, why.to_owned())));
    }

    fn fail(&mut self, candidate: &GarbageCandidate, why: &str) {
        let failed = candidate.leftovers();
        self.failed.extend(failed.map(|one| (one, why.to_owned())));
    }
}

impl Manager {
    /// Removes what finished work left and what belongs to nothing. Open plans are named and left
    /// alone, whatever they hold.
    pub fn collect_garbage(&self, request: &GarbageRequest) -> Result<GarbageReport> {
        let only_own = self.permit_gc()?;
        if !request.dry_run {
            self.make_room_to_clean()?;
            self.recover_dead()?;
        }
        let GarbageScan {
            candidates,
            mut kept,
            unrecorded,
            over,
            held,
        } = self.find_garbage()?;
        kept.extend(unrecorded);
        let now = self.options.origin.now();
        // As the configuration says that the plan was made under; where that cannot be read, it stays.
        let undo = |one: &GarbageCandidate| {
            let effective = self.effective(one.plan.as_ref().map(|plan| plan.id));
            effective.map_or(Duration::MAX, |effective| effective.settings.undo_keep)
        };
        let goes = choose(&candidates, undo, request, now);
        let own = |plan: PlanId| self.is_maker(plan).unwrap_or(false);
        let mine = |plan: Option<PlanId>| !only_own || plan.is_some_and(own);
        let (mut chosen, mut spared, mut denied) = (Vec::new(), Vec::new(), Vec::new());
        for (candidate, goes) in candidates.into_iter().zip(goes) {
            match goes {
                true if !mine(plan_of(&candidate)) => denied.push(candidate),
                true => chosen.push(candidate),
                false => spared.push(candidate),
            }
        }
        let mut collected = GarbageReport {
            kept,
            ..GarbageReport::default()
        };
        collected.keep(&spared, "its retention time is not over");
        collected.keep(&denied, "a policy denies it, and the plan is not your own");
        spared.extend(denied);
        if request.dry_run {
            let all = chosen.iter().flat_map(GarbageCandidate::leftovers);
            collected.removed.extend(all);
            return Ok(collected);
        }
        // Plans whose last thing goes now are over for good, and so are those that have none.
        let busy: HashSet<PlanId> = spared.iter().filter_map(plan_of).collect();
        let old = |ended| age(ended, now) >= request.older_than.unwrap_or_default();
        let over = over
            .into_iter()
            .filter(|(plan, ended)| old(*ended) && !busy.contains(&plan.id) && mine(Some(plan.id)));
        let mut plans: Vec<Plan> = over.map(|(plan, _)| plan).collect();
        for plan in chosen.iter().filter_map(|one| one.plan.as_ref()) {
            if !plans.iter().any(|known| known.id == plan.id) {
                plans.push(plan.clone());
            }
        }
        for plan in plans {
            let own = |one: &GarbageCandidate| plan_of(one) == Some(plan.id);
            let (theirs, rest) = chosen.into_iter().partition(own);
            chosen = rest;
            self.collect_of_plan(&plan, theirs, held.contains(&plan.id), &mut collected);
        }
        self.collect_loose(chosen, &mut collected);
        // What is gone is gone, whether the state gets smaller by it or not.
        if let Err(error) = self.store.shrink() {
            self.notice(format!(
                "could not compact the state; the next gc tries again: {}",
                chain(&error)
            ));
        }
        Ok(collected)
    }

    /// What belongs to nothing, for those who only want to know.
    pub(super) fn orphans(&self) -> Result<Vec<Leftover>> {
        let found = self.find_loose()?;
        let loose = |one: &&GarbageCandidate| one.kind == LeftoverKind::Orphan;
        let orphans = found.candidates.iter().filter(loose);
        let mut orphans: Vec<Leftover> = orphans.flat_map(GarbageCandidate::leftovers).collect();
        let own = |one: &Leftover| one.path.as_path().starts_with(self.home());
        let told = |one: &Leftover| match one.kind {
            LeftoverKind::Aside => true,
            // What lies beside an original may be another home's, and is no concern there.
            LeftoverKind::Unknown => own(one),
            _ => false,
        };
        let kept = found.kept.into_iter().chain(found.unrecorded);
        let kept = kept.map(|(one, _)| one);
        orphans.extend(kept.filter(told));
        Ok(orphans)
    }

    fn collect_of_plan(
        &self,
        plan: &Plan,
        things: Vec<GarbageCandidate>,
        held: bool,
        collected: &mut GarbageReport,
    ) {
        let lock = match self.lock_over(plan) {
            Ok(Ok(lock)) => lock,
            Ok(Err(why)) => return collected.keep(&things, why),
            Err(error) => {
                let why = chain(&error);
                return things.iter().for_each(|one| collected.fail(one, &why));
            }
        };
        let (before, mut failed) = (collected.failed.len(), Vec::new());
        let done = match things.is_empty() {
            true => Ok(()),
            false => self.record("gc", Some(plan.id), &plan.name, || {
                for one in &things {
                    match self.remove_of_plan(plan, one) {
                        Ok(()) => collected.removed.extend(one.leftovers()),
                        Err(error) => {
                            collected.fail(one, &chain(&error));
                            failed.push((one.kind.as_str().to_owned(), error));
                        }
                    }
                }
                match failed.is_empty() {
                    true => Ok(()),
                    false => Err(Error::partly(plan, "removed", Vec::new(), failed)),
                }
            }),
        };
        // What failed was reported one by one, but for what could not be logged.
        let told = collected.failed.len() > before;
        let ended = match (done, held) {
            (Err(error), _) if !told => Err(error),
            (Err(_), _) | (_, true) => Ok(()),
            (Ok(()), false) => self.end_plan(plan, lock),
        };
        if let Err(error) = ended {
            let lock = Leftover {
                kind: LeftoverKind::Lock,
                plan: Some(plan.name.clone()),
                path: Location::from(self.locks.path().join(plan.id.to_string())),
                bytes: 0,
            };
            collected.failed.push((lock, chain(&error)));
        }
    }

    /// The lock of a plan that is over, or why nothing of it may go, looked at under the lock.
    fn lock_over(&self, plan: &Plan) -> Result<std::result::Result<Lock, &'static str>> {
        let name = plan.id.to_string();
        let Some(lock) = Lock::take(&self.locks, name.as_bytes(), false, LOCK_PATIENCE)? else {
            return Ok(Err("another process works on its plan"));
        };
        let now = self.store.plan(plan.id)?;
        if now.is_none_or(|now| now.state != plan.state) {
            return Ok(Err("its plan changed meanwhile"));
        }
        if self.live(plan)? != sessions::SessionState::Idle {
            return Ok(Err("a command runs inside its plan"));
        }
        self.mark_interrupted(plan.id)?;
        Ok(match self.store.journal_of(plan.id)? {
            Some(journal) if journal.phase.is_unfinished() => {
                Err("its commit is half way; `escrow recover` finishes it or rolls it back")
            }
            _ => Ok(lock),
        })
    }

    fn remove_of_plan(&self, plan: &Plan, thing: &GarbageCandidate) -> Result<()> {
        match thing.kind {
            LeftoverKind::Workspace => {
                let views = self.live_sandboxes(plan)?;
                let of = |path: &Location| views.iter().find(|view| view.sandbox.area == *path);
                for (path, _) in &thing.parts {
                    if let Some(view) = of(path) {
                        self.clean_one(view, false)?;
                    }
                }
                Ok(())
            }
            LeftoverKind::Undo if plan.state == PlanState::Open => self.drop_rollbacks(plan),
            LeftoverKind::Undo => {
                let views = self.live_sandboxes(plan)?;
                for view in &views {
                    if thing
                        .parts
                        .iter()
                        .any(|(path, _)| view.sandbox.area == *path)
                    {
                        self.clean_one(view, false)?;
                    }
                }
                self.drop_undo(plan)
            }
            LeftoverKind::Scratch => self.drop_scratch(plan),
            _ => self.remove_orphan(thing),
        }
    }

    /// Gives up what the rollbacks of an open plan keep for undo.
    fn drop_rollbacks(&self, plan: &Plan) -> Result<()> {
        for journal in self.store.journals_of(plan.id)? {
            let stands = journal.phase == Phase::Committed;
            if journal.work == JournaledWork::Rollback && stands {
                self.store.forget_commit(journal.id)?;
                if let Some(checkpoint) = journal.checkpoint {
                    self.store.forget_checkpoint(checkpoint)?;
                }
            }
        }
        self.release_checkpoints(plan, false)
    }

    /// Gives up what the commits of a plan keep for undo.
    fn drop_undo(&self, plan: &Plan) -> Result<()> {
        // All are tried; the first failure is reported.
        let mut first = Ok(());
        for journal in self.store.journals_of(plan.id)? {
            // First the need for it is forgotten: a process that is killed after this finds the rest by its name.
            self.store.forget_commit(journal.id)?;
            for member in &journal.members {
                let removed = self.workspaces().remove(member.area.as_path());
                first = first.and(removed.map_err(Error::from));
            }
        }
        first
    }

    /// Removes what no record accounts for, unless one does by now.
    fn remove_orphan(&self, thing: &GarbageCandidate) -> Result<()> {
        let rows = self.rows(false)?;
        for (path, _) in &thing.parts {
            if area_at(path.as_path()).is_some_and(|area| rows.record(area).is_none()) {
                self.workspaces().remove(path.as_path())?;
            }
        }
        Ok(())
    }

    /// Ends a plan of which nothing is left.
    fn end_plan(&self, plan: &Plan, lock: Lock) -> Result<()> {
        if plan.state != PlanState::CleanedUp {
            let journals = self.store.journals_of(plan.id)?;
            let undoable = journals
                .iter()
                .any(|one| one.phase != Phase::Undone && one.work == JournaledWork::Commit);
            let open = plan.state == PlanState::Open;
            if open || undoable || !self.live_sandboxes(plan)?.is_empty() {
                return Ok(());
            }
            self.store.forget_commits(plan.id)?;
            self.store.end_removal(plan.id)?;
            self.engine(&Unobserved).forget()?;
        }
        self.forget_live(plan)?;
        Ok(lock.remove(&self.locks, plan.id.to_string().as_bytes())?)
    }

    /// What belongs to no plan that is known.
    fn collect_loose(&self, things: Vec<GarbageCandidate>, collected: &mut GarbageReport) {
        if things.is_empty() {
            return;
        }
        let before = collected.failed.len();
        let done = self.record("gc", None, "what belongs to nothing", || {
            let mut first = Ok(());
            for one in &things {
                let removed = match one.kind {
                    LeftoverKind::Lock => self.remove_lock(one),
                    LeftoverKind::Cache | LeftoverKind::AgentHome => {
                        match self.remove_unused(one) {
                            Ok(true) => Ok(()),
                            Ok(false) => {
                                collected.keep(std::slice::from_ref(one), "a command uses it");
                                continue;
                            }
                            Err(error) => Err(error),
                        }
                    }
                    _ => self.remove_orphan(one),
                };
                match removed {
                    Ok(()) => collected.removed.extend(one.leftovers()),
                    Err(error) => {
                        collected.fail(one, &chain(&error));
                        first = first.and(Err(error));
                    }
                }
            }
            first
        });
        if let Err(error) = done
            && collected.failed.len() == before
        {
            things
                .iter()
                .for_each(|one| collected.fail(one, &chain(&error)));
        }
    }

    /// Removes a cache or an agent home that no command uses; says whether it is gone.
    fn remove_unused(&self, thing: &GarbageCandidate) -> Result<bool> {
        let mut parts = thing.parts.iter();
        parts.try_fold(true, |gone, (path, _)| {
            let removed = match thing.kind {
                LeftoverKind::AgentHome => self.remove_agent_home(path.as_path())?,
                _ => self.remove_cache(path.as_path())?,
            };
            Ok(removed && gone)
        })
    }

    /// Removes a lock that no process holds.
    fn remove_lock(&self, thing: &GarbageCandidate) -> Result<()> {
        for (path, _) in &thing.parts {
            let name = path.as_path().file_name().unwrap_or_default();
            let name = name.as_encoded_bytes();
            if let Some(lock) = Lock::take(&self.locks, name, false, Duration::ZERO)? {
                lock.remove(&self.locks, name)?;
            }
        }
        Ok(())
    }
}

fn plan_of(candidate: &GarbageCandidate) -> Option<PlanId> {
    candidate.plan.as_ref().map(|plan| plan.id)
}
