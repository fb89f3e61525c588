//! Creation: a plan is created with all its sandboxes, or not at all.
//!
//! One transaction records the plan as being created, with a pending sandbox of each resource; then each area is
//! filled; one sync for each file system makes all of them durable; one transaction makes the plan open and every
//! sandbox usable. The lock of the plan is taken before it is recorded and held until then. A plan that is being
//! created while its lock is free was left by a crashed process, and is removed as if it had never been.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::audit::OperationSubject;
use super::resources::{check_name, free_name};
use super::{Manager, PlanView, SandboxView};
use crate::error::{Error, Result};
use crate::event::Observer;
use crate::failpoints;
use crate::fs::state_dir::{self, AreaLocation, Lock};
use crate::fs::workspace;
use crate::model::text::Location;
use crate::model::{Action, PlanId, PlanState, SandboxId, SandboxRef, SandboxState, Scope};
use crate::resource::{ResourceGraph, accept};
use crate::store::{BeginOutcome, Plan, PlanConfig, Resource, SandboxRecord};
use crate::strategy::{CreateRequest, Probe, Snapshot, Target};

/// How often a resource is taken again that others forget and add meanwhile.
const TRIES: usize = 16;

/// A sandbox that is to be made.
pub(super) struct NewSandbox<'a> {
    /// What it is a sandbox of.
    pub(super) resource: Resource,
    /// The strategy that is asked for.
    pub(super) wanted: String,
    /// The sandbox of another plan it begins from, and where; without one, it begins from the original.
    pub(super) from: Option<(&'a SandboxView, &'a Snapshot)>,
}

impl Manager {
    /// Begins a plan and makes a sandbox of each resource; if one of them cannot be made, nothing
    /// of the plan remains.
    pub fn create_plan(
        &self,
        name: Option<&str>,
        directory: &Path,
        resources: &[OsString],
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<PlanView> {
        self.permit(Action::Create, None, Scope::Within(None))?;
        self.recover_dead()?;
        let directory = Location::from(state_dir::canonical(directory)?);
        self.check_new_name(name)?;
        if let Some(strategy) = strategy {
            self.registry().check_name(strategy)?;
        }
        let mut made = self.begin_plan(name, &directory, resources, strategy, observer);
        for _ in 0..TRIES {
            // Its resource has another id now.
            let Err(Error::Forgotten { .. }) = made else {
                break;
            };
            made = self.begin_plan(name, &directory, resources, strategy, observer);
        }
        made.map_err(|error| {
            // Directories that became resources on the way are none again.
            let forgotten = self.forget_new_resources(resources, &directory);
            error.and_left(forgotten)
        })
    }

    /// Refuses a name that a new plan cannot have.
    pub(super) fn check_new_name(&self, name: Option<&str>) -> Result<()> {
        let Some(name) = name else {
            return Ok(());
        };
        check_name(name)?;
        match self.taken_names()?.iter().any(|taken| taken == name) {
            true => Err(Error::PlanExists {
                name: name.to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn begin_plan(
        &self,
        name: Option<&str>,
        directory: &Location,
        typed: &[OsString],
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<PlanView> {
        let mut resources = Vec::new();
        for typed in typed {
            resources.push(self.take_resource(typed, directory.as_path())?);
        }
        let id = PlanId::new(&*self.options.origin);
        let config = self.binding(resources.first())?;
        let own = config.as_ref().map(|config| self.bound_levels(config));
        self.settle_plan(id, &own.transpose()?.unwrap_or_default(), &resources)?;
        let (mut new, mut known) = (Vec::new(), HashSet::new());
        for resource in &resources {
            self.check_strategy(id, resource, strategy)?;
            // Resources of one boundary share one sandbox.
            let (resource, _) = self.boundary(resource)?;
            let scope = Scope::Resource(resource.name.clone());
            self.permit_in(Action::Create, id, scope)?;
            if known.insert(resource.id) {
                new.push(NewSandbox {
                    wanted: self.check_strategy(id, &resource, strategy)?,
                    resource,
                    from: None,
                });
            }
        }
        self.make_plan(id, config, name, directory, &new, observer)
    }

    /// Forgets the resources among `typed` that the user did not name and no plan uses.
    fn forget_new_resources(&self, typed: &[OsString], directory: &Location) -> Result<()> {
        for typed in typed {
            if let Ok(resource) = self.find_resource(typed, directory.as_path()) {
                self.store.forget_resource(resource.id, true)?;
            }
        }
        Ok(())
    }

    /// Makes a plan with these sandboxes, bound to this configuration.
    pub(super) fn make_plan(
        &self,
        id: PlanId,
        config: Option<PlanConfig>,
        name: Option<&str>,
        directory: &Location,
        new: &[NewSandbox<'_>],
        observer: &dyn Observer,
    ) -> Result<PlanView> {
        let file = id.to_string();
        let lock = Lock::take(&self.locks, file.as_bytes(), false, Duration::ZERO)?;
        let lock = lock.ok_or_else(|| Error::Busy {
            plan: file.clone(),
            owner: None,
        })?;
        let mut tries = 0;
        let made = loop {
            let taken = self.taken_names()?;
            let plan = Plan {
                id,
                name: match name {
                    Some(name) => name.to_owned(),
                    None => free_name(directory, |name| taken.iter().any(|taken| taken == name)),
                },
                state: PlanState::Creating,
                directory: directory.clone(),
                created_at: self.options.origin.now(),
            };
            match self.make_named(&plan, config.as_ref(), new, observer) {
                // Another process was quicker with the name that we made up: make up another.
                Err(Error::PlanExists { .. }) if name.is_none() && tries < TRIES => tries += 1,
                made => break made,
            }
        };
        match made {
            Ok(plan) => {
                drop(lock);
                self.view(plan)
            }
            Err(error) => {
                let removed = lock.remove(&self.locks, file.as_bytes());
                Err(error.and_left(removed.map_err(Error::from)))
            }
        }
    }

    fn make_named(
        &self,
        plan: &Plan,
        config: Option<&PlanConfig>,
        new: &[NewSandbox<'_>],
        observer: &dyn Observer,
    ) -> Result<Plan> {
        let about = OperationSubject {
            action: "plan create",
            plan: Some(plan.id),
            target: &plan.name,
            resources: new.iter().map(|one| one.resource.name.clone()).collect(),
            message: None,
        };
        let resources: Vec<&Resource> = new.iter().map(|one| &one.resource).collect();
        self.record_about(about, |_| {
            // Nothing is committed into the originals while they are looked at.
            let _originals = self.lock_originals(&resources, true)?;
            let forks = new.iter().any(|one| one.from.is_some());
            if !forks {
                self.check_neighbours(plan, &resources)?;
                self.check_apart(&resources)?;
            }
            let mut sandboxes = self.pending(plan, new)?;
            // With the seeded bug the plan is usable from the beginning, with what is there of it.
            let early = failpoints::bug(match forks {
                true => "fork-one-by-one",
                false => "create-one-by-one",
            });
            match early {
                true => {
                    let open = with_state(plan, PlanState::Open);
                    self.begin(&open, Some(config), &[])?;
                }
                false => self.begin(plan, Some(config), &sandboxes)?,
            }
            if let Err(error) = self.fill_all(plan, new, &mut sandboxes, early, observer) {
                return Err(error.and_left(self.unmake(plan)));
            }
            match self.store.finish_creation(plan.id, &sandboxes) {
                Ok(()) => Ok(with_state(plan, PlanState::Open)),
                Err(error) => {
                    // It may be on disk all the same: the opposite is said, durably, before anything is removed.
                    let said = self.store.set_plan_state(plan.id, PlanState::Creating);
                    let removed = said.map_err(Error::from).and_then(|()| self.unmake(plan));
                    Err(Error::from(error).and_left(removed))
                }
            }
        })
    }

    fn fill_all(
        &self,
        plan: &Plan,
        new: &[NewSandbox<'_>],
        sandboxes: &mut [SandboxRecord],
        early: bool,
        observer: &dyn Observer,
    ) -> Result<()> {
        let resources = self.store.resources()?;
        for (new, sandbox) in new.iter().zip(sandboxes.iter_mut()) {
            if early {
                self.begin(plan, None, std::slice::from_ref(sandbox))?;
            }
            self.fill(new, sandbox, &resources, observer)?;
            if early {
                self.store.put_sandbox(sandbox)?;
            }
        }
        sync_areas(sandboxes)
    }

    /// Makes one more sandbox in a plan; the plan and the original are locked.
    pub(super) fn add_sandbox(
        &self,
        plan: &Plan,
        new: &NewSandbox<'_>,
        observer: &dyn Observer,
    ) -> Result<SandboxRecord> {
        let mut sandboxes = self.pending(plan, std::slice::from_ref(new))?;
        self.begin(plan, None, &sandboxes)?;
        let resources = self.store.resources()?;
        let sandbox = &mut sandboxes[0];
        let filled = self.fill(new, sandbox, &resources, observer);
        let filled = filled.and_then(|()| sync_areas(std::slice::from_ref(sandbox)));
        if let Err(error) = filled {
            // Nothing of it stays. Should even that fail, the record stays as pending, where
            // `cleanup` finds it.
            let forget = || Ok(self.store.forget_sandbox(sandbox.id)?);
            let swept = self.forget_outside(sandbox, &new.resource).and_then(|()| {
                workspace::remove(sandbox.area.as_path())?;
                forget()
            });
            return Err(error.and_left(swept));
        }
        self.store.put_sandbox(sandbox)?;
        Ok(sandbox.clone())
    }

    /// Records what is about to be made, and its plan with its configuration if that is new, before it exists: if this
    /// process ends, others know where to look.
    fn begin(
        &self,
        plan: &Plan,
        new: Option<Option<&PlanConfig>>,
        sandboxes: &[SandboxRecord],
    ) -> Result<()> {
        let name = plan.name.clone();
        let new = new.map(|config| (plan, config));
        match self.store.begin_sandboxes(new, sandboxes)? {
            BeginOutcome::Recorded => Ok(()),
            BeginOutcome::NameTaken => Err(Error::PlanExists { name }),
            BeginOutcome::Exists => Err(Error::Busy {
                plan: name,
                owner: None,
            }),
            BeginOutcome::Forgotten(id) => {
                let resource = self.store.resource(id)?;
                let resource = resource.map_or_else(|| id.to_string(), |one| one.name);
                Err(Error::Forgotten { resource })
            }
        }
    }

    /// The records of sandboxes that are about to be made.
    fn pending(&self, plan: &Plan, new: &[NewSandbox<'_>]) -> Result<Vec<SandboxRecord>> {
        let resources = self.store.resources()?;
        let mut sandboxes = Vec::new();
        for one in new {
            let id = SandboxId::new(&*self.options.origin);
            let (parent, prefix) = match one.resource.path() {
                Some(path) => {
                    let place = self.place_among(&resources, path)?;
                    (place.parent, place.prefix)
                }
                None => (self.areas.path().to_owned(), Default::default()),
            };
            let name = format!("{prefix}{id}");
            sandboxes.push(SandboxRecord {
                id,
                reference: SandboxRef {
                    plan_id: plan.id,
                    resource_id: one.resource.id,
                    strategy_name: one.wanted.clone(),
                    metadata: serde_json::Value::Null,
                },
                requested: one.wanted.clone(),
                state: SandboxState::Pending,
                area: Location::from(parent.join(&name)),
                message: String::new(),
                warnings: Vec::new(),
                reasons: Vec::new(),
                created_at: self.options.origin.now(),
            });
        }
        Ok(sandboxes)
    }

    /// Makes a sandbox that is recorded. The caller syncs its area, and records that it is usable.
    fn fill(
        &self,
        new: &NewSandbox<'_>,
        sandbox: &mut SandboxRecord,
        resources: &[Resource],
        observer: &dyn Observer,
    ) -> Result<()> {
        workspace::make(sandbox.area.as_path())?;
        let (resource, plan) = (&new.resource, sandbox.reference.plan_id);
        let (registry, area) = (self.registry_of(plan)?, sandbox.area.as_path());
        let mut choice = None;
        let strategy = match new.from {
            Some((from, _)) => registry.of(&from.sandbox.reference)?,
            None => {
                let kind = self.kind(&resource.kind)?;
                // What stands there may be another thing than when the resource was named.
                resource.path().map_or(Ok(()), |path| accept(kind, path))?;
                let target = self.target(plan, resource, &new.wanted)?;
                let chosen = registry.choose(&new.wanted, kind, &target, Some(area))?;
                &choice.insert(chosen).strategy
            }
        };
        let mut target = self.target(plan, resource, strategy.name())?;
        if new.from.is_none() {
            target.carved = ResourceGraph::new(resources).carved(resource)?;
        }
        let mut created = strategy.create(&CreateRequest {
            plan_id: plan,
            target: &target,
            area: Some(area).filter(|_| strategy.capabilities().area),
            from: new
                .from
                .map(|(view, snapshot)| (&view.sandbox.reference, snapshot)),
            observer,
        })?;
        registry.mark(strategy, &mut created.sandbox);
        if let Some(choice) = choice {
            if let Some(instead) = choice.instead {
                created.message = format!("{instead}; instead: {}", created.message);
            }
            // The strategy may have found the same.
            let known = &created.warnings;
            let more = choice.warning.filter(|one| !known.contains(one));
            created.warnings.extend(more);
            let reason = |(name, probe): &(String, Probe)| probe.summary(name);
            sandbox.reasons = choice.probes.iter().map(reason).collect();
        }
        sandbox.state = sandbox.state.go(SandboxState::Created)?;
        if new.from.is_some() {
            // It holds the work of the other one.
            sandbox.state = sandbox.state.go(SandboxState::Active)?;
        }
        sandbox.reference = created.sandbox;
        sandbox.message = created.message;
        sandbox.warnings = created.warnings;
        Ok(())
    }

    /// A resource as a strategy is given it for a plan, without carved paths: with the `options` that the configuration
    /// has for both.
    pub(super) fn target(
        &self,
        plan: PlanId,
        resource: &Resource,
        strategy: &str,
    ) -> Result<Target> {
        let settings = &self.effective(Some(plan))?.settings;
        let own = settings.custom_strategies.get(strategy);
        let mut target = resource.target();
        target
            .options
            .extend(own.into_iter().flat_map(|own| own.options.clone()));
        if let Some(declared) = settings.resource(&resource.name) {
            target.options.extend(declared.options.clone());
        }
        Ok(target)
    }

    /// Where the area of a sandbox of `original` goes: never into another resource.
    pub(super) fn place(&self, original: &Path) -> Result<AreaLocation> {
        self.place_among(&self.store.resources()?, original)
    }

    fn place_among(&self, resources: &[Resource], original: &Path) -> Result<AreaLocation> {
        let others: Vec<&Path> = resources
            .iter()
            .filter_map(Resource::path)
            .filter(|at| *at != original)
            .collect();
        Ok(state_dir::place(&self.areas, original, &others)?)
    }
}

fn with_state(plan: &Plan, state: PlanState) -> Plan {
    Plan {
        state,
        ..plan.clone()
    }
}

fn sync_areas(sandboxes: &[SandboxRecord]) -> Result<()> {
    let areas = sandboxes.iter().map(|sandbox| sandbox.area.as_path());
    Ok(workspace::sync_file_systems(areas)?)
}
