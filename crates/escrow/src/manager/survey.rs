//! What there is and what works here, without changing anything.

use std::path::Path;

use super::{Leftover, Manager, PlanView};
use crate::error::Result;
use crate::fs::private::{self, Place, Scratch};
use crate::fs::{Dir, Resolver};
use crate::model::resource::FS_DIRECTORY;
use crate::model::text::Location;
use crate::model::{Phase, PlanState, ResourceId, SandboxId, Work};
use crate::store::{Operation, Plan};
use crate::strategy::registry::AUTO;
use crate::strategy::{Capabilities, Probe, Target};

/// An operation that has not ended.
#[derive(Debug)]
pub struct Running {
    /// What it is.
    pub operation: Operation,
    /// Whether its process still runs; otherwise it was interrupted.
    pub alive: bool,
    /// The name of the open plan it is done on, if there is one: it may have died before there was.
    pub plan: Option<String>,
}

/// What is done with a plan as a whole and has not ended.
#[derive(Debug)]
pub struct Unfinished {
    /// The plan.
    pub plan: String,
    /// What it is.
    pub what: Work,
    /// Where it stands.
    pub phase: Phase,
}

/// What there is at this moment.
#[derive(Debug)]
pub struct Status {
    /// The plans that are not over, newest first.
    pub plans: Vec<PlanView>,
    /// What has not ended.
    pub running: Vec<Running>,
    /// What has not ended of plans: a commit, its undo, a restore, a rollback, their creation or removal.
    pub unfinished: Vec<Unfinished>,
    /// Plans that are over and may still have something on disk, newest first.
    pub over: Vec<Plan>,
    /// What belongs to nothing.
    pub orphans: Vec<Leftover>,
}

/// What is said of one strategy for one directory.
#[derive(Debug)]
pub struct Verdict {
    /// Its name.
    pub name: String,
    /// Whether it works there, and why.
    pub probe: Probe,
    /// What it promises.
    pub capabilities: Capabilities,
}

/// What works for one directory on this machine.
#[derive(Debug)]
pub struct Doctor {
    /// The directory.
    pub at: Location,
    /// Where the area of a sandbox would be made.
    pub area: Location,
    /// Why there.
    pub area_reason: &'static str,
    /// How paths are confined.
    pub resolver: Resolver,
    /// What `auto` takes.
    pub auto: String,
    /// Every strategy for a directory.
    pub verdicts: Vec<Verdict>,
}

impl Manager {
    /// What there is at this moment.
    pub fn status(&self) -> Result<Status> {
        let plans = self.views(self.open_plans()?)?;
        let mut running = Vec::new();
        for operation in self.store.running()? {
            let alive = operation.owner.is_alive()?;
            let on = |view: &&PlanView| Some(view.plan.id) == operation.plan_id;
            let plan = plans.iter().find(on).map(|view| view.plan.name.clone());
            running.push(Running {
                operation,
                alive,
                plan,
            });
        }
        let mut unfinished = Vec::new();
        for id in self.store.half_plans()? {
            let at_it = |one: &Running| one.alive && one.operation.plan_id == Some(id);
            let Some(plan) = self.store.plan(id)? else {
                continue;
            };
            // Shown as running.
            if running.iter().any(at_it) {
                continue;
            }
            let (what, phase) = match plan.state {
                PlanState::Creating => (Work::Creation, Phase::Preparing),
                _ => (Work::Removal, Phase::Decided),
            };
            unfinished.push(Unfinished {
                plan: plan.name,
                what,
                phase,
            });
        }
        for journal in self.store.unfinished()? {
            let plan = self.store.plan(journal.plan_id)?;
            let name = plan.map_or_else(|| journal.plan_id.to_string(), |plan| plan.name);
            unfinished.push(Unfinished {
                plan: name,
                what: journal.work,
                phase: journal.phase,
            });
        }
        Ok(Status {
            plans,
            running,
            unfinished,
            over: self.over()?,
            orphans: self.orphans()?,
        })
    }

    /// What works for `directory` here. Strategies are tried for real, in an area of their own
    /// that is gone afterwards.
    pub fn doctor(&self, directory: &Path) -> Result<Doctor> {
        let at = private::canonical(directory)?;
        let Place {
            parent,
            prefix,
            why,
        } = self.place(&at)?;
        let unique = SandboxId::new(&*self.options.origin).to_string();
        let prefix = format!("{prefix}probe-");
        let area = Scratch::make(Dir::open(&parent)?, &prefix, &unique)?;
        let target = Target::at(ResourceId::new(&*self.options.origin), FS_DIRECTORY, &at);
        let verdicts = self.verdicts(&target, area.path());
        let kind = self.kind(FS_DIRECTORY)?;
        let registry = self.registry();
        let auto = registry.choose(AUTO, kind, &target, Some(area.path()))?;
        Ok(Doctor {
            at: Location::from(at),
            area: Location::from(parent),
            area_reason: why,
            resolver: Resolver::here(),
            auto: auto.strategy.name().to_owned(),
            verdicts,
        })
    }

    fn verdicts(&self, target: &Target, area: &Path) -> Vec<Verdict> {
        let verdict = |strategy: &std::sync::Arc<dyn crate::strategy::Strategy>| Verdict {
            name: strategy.name().to_owned(),
            probe: self.registry().probe(strategy, target, Some(area)),
            capabilities: strategy.capabilities(),
        };
        self.registry().all().map(verdict).collect()
    }
}
