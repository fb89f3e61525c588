//! Status and doctor: what exists and what works on this machine. Changes nothing.

use std::path::Path;

use super::{Leftover, Manager, PlanView};
use crate::error::Result;
use crate::fs::Resolver;
use crate::fs::state_dir::{self, AreaLocation, ScratchDir};
use crate::model::resource::{POSTGRES, is_url};
use crate::model::text::Location;
use crate::model::{JournaledWork, Phase, PlanState, ResourceId, SandboxId, TargetLocation};
use crate::resource::{accept, detect};
use crate::store::{Operation, Plan};
use crate::strategy::registry::RegistryError;
use crate::strategy::{Capabilities, Probe, Target};

/// An operation that has not ended.
#[derive(Debug)]
pub struct RunningOperation {
    /// What it is.
    pub operation: Operation,
    /// Whether its process still runs; otherwise it was interrupted.
    pub alive: bool,
    /// The name of the open plan it is done on, if there is one: it may have died before there was.
    pub plan: Option<String>,
}

/// What is done with a plan as a whole and has not ended.
#[derive(Debug)]
pub struct UnfinishedWork {
    /// The plan.
    pub plan: String,
    /// What it is.
    pub what: JournaledWork,
    /// Where it stands.
    pub phase: Phase,
}

/// What there is now.
#[derive(Debug)]
pub struct StatusReport {
    /// The plans that are not over, newest first.
    pub plans: Vec<PlanView>,
    /// What has not ended.
    pub running: Vec<RunningOperation>,
    /// What has not ended of plans: a commit, its undo, a restore, a rollback, their creation or removal.
    pub unfinished: Vec<UnfinishedWork>,
    /// Plans that are over and may still have something on disk, newest first.
    pub over: Vec<Plan>,
    /// What belongs to nothing.
    pub orphans: Vec<Leftover>,
}

/// What is said of one strategy for one directory.
#[derive(Debug)]
pub struct StrategyVerdict {
    /// Its name.
    pub name: String,
    /// Whether it works there, and why.
    pub probe: Probe,
    /// What it promises.
    pub capabilities: Capabilities,
}

/// What works for one directory, file or database on this machine.
#[derive(Debug)]
pub struct DoctorReport {
    /// Where it is.
    pub at: Location,
    /// Where the area of a sandbox would be made.
    pub area: Location,
    /// Why there.
    pub area_reason: &'static str,
    /// How paths are confined.
    pub resolver: Resolver,
    /// What `auto` takes.
    pub auto: String,
    /// Every strategy for it.
    pub verdicts: Vec<StrategyVerdict>,
}

impl Manager {
    /// What there is now.
    pub fn status(&self) -> Result<StatusReport> {
        let plans = self.views(self.open_plans()?)?;
        let mut running = Vec::new();
        for operation in self.store.running()? {
            let alive = operation.owner.is_alive()?;
            let on = |view: &&PlanView| Some(view.plan.id) == operation.plan_id;
            let plan = plans.iter().find(on).map(|view| view.plan.name.clone());
            running.push(RunningOperation {
                operation,
                alive,
                plan,
            });
        }
        let mut unfinished = Vec::new();
        for id in self.store.half_plans()? {
            let at_it = |one: &RunningOperation| one.alive && one.operation.plan_id == Some(id);
            let Some(plan) = self.store.plan(id)? else {
                continue;
            };
            // Shown as running.
            if running.iter().any(at_it) {
                continue;
            }
            let (what, phase) = match plan.state {
                PlanState::Creating => (JournaledWork::Creation, Phase::Preparing),
                _ => (JournaledWork::Removal, Phase::Decided),
            };
            unfinished.push(UnfinishedWork {
                plan: plan.name,
                what,
                phase,
            });
        }
        for journal in self.store.unfinished()? {
            let plan = self.store.plan(journal.plan_id)?;
            let name = plan.map_or_else(|| journal.plan_id.to_string(), |plan| plan.name);
            unfinished.push(UnfinishedWork {
                plan: name,
                what: journal.work,
                phase: journal.phase,
            });
        }
        Ok(StatusReport {
            plans,
            running,
            unfinished,
            over: self.over()?,
            orphans: self.orphans()?,
        })
    }

    /// What works here for what is at `location`: a directory, a file, or a URL. Strategies are tried for real, in an area of their own
    /// that is gone afterwards.
    pub fn doctor(&self, location: &Path) -> Result<DoctorReport> {
        let is_url = is_url(location.as_os_str());
        let at = match is_url {
            true => location.to_owned(),
            false => state_dir::canonical_or_file(location)?,
        };
        let AreaLocation {
            parent,
            prefix,
            why,
        } = match is_url {
            true => AreaLocation {
                parent: self.areas.path().to_owned(),
                prefix: "",
                why: "what is on a server has no directory beside it",
            },
            false => self.place(&at)?,
        };
        let unique = SandboxId::new(&*self.options.origin).to_string();
        let prefix = format!("{prefix}probe-");
        let area = ScratchDir::make_at(&parent, &prefix, &unique)?;
        let kind = self.kind(if is_url { POSTGRES } else { detect(&at)? })?;
        let mut target = Target::at(ResourceId::new(&*self.options.origin), &kind.name, &at);
        if is_url {
            accept(kind, &at)?;
            target.location = TargetLocation::Url(at.to_string_lossy().into_owned());
        }
        let verdicts = self.verdicts(&kind.base, &target, area.path());
        let registry = self.registry();
        let auto = match registry.choose(&kind.default, kind, &target, Some(area.path())) {
            Ok(choice) => choice.strategy.name().to_owned(),
            Err(RegistryError::NothingWorks { .. }) => "none of them".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(DoctorReport {
            at: Location::from(at),
            area: Location::from(parent),
            area_reason: why,
            resolver: Resolver::here(),
            auto,
            verdicts,
        })
    }

    fn verdicts(&self, base: &str, target: &Target, area: &Path) -> Vec<StrategyVerdict> {
        let verdict = |strategy: &std::sync::Arc<dyn crate::strategy::Strategy>| StrategyVerdict {
            name: strategy.name().to_owned(),
            probe: self.registry().probe(strategy, target, Some(area)),
            capabilities: strategy.capabilities(),
        };
        let serving = self.registry().registrations();
        serving
            .filter(|one| one.serves(base))
            .map(|one| verdict(one.strategy()))
            .collect()
    }
}
