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
use crate::strategy::registry::StrategyChoice;
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
        self.create_plan_as((name, false), directory, resources, strategy, observer)
    }

    /// The same for a command that is about to run, of a plan that was not asked for by itself: a rollback ends it.
    pub fn create_implicit_plan(
        &self,
        directory: &Path,
        resources: &[OsString],
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<PlanView> {
        self.create_plan_as((None, true), directory, resources, strategy, observer)
    }

    fn create_plan_as(
        &self,
        (name, implicit): (Option<&str>, bool),
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
        let mut made = self.begin_plan((name, implicit), &directory, resources, strategy, observer);
        for _ in 0..TRIES {
            // Its resource has another id now.
            let Err(Error::Forgotten { .. }) = made else {
                break;
            };
            made = self.begin_plan((name, implicit), &directory, resources, strategy, observer);
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
        // One that is over gives its name up.
        let of_open = |plan: &Plan| {
            plan.name == name && matches!(plan.state, PlanState::Creating | PlanState::Open)
        };
        match self.store.plans_called(name)?.iter().any(of_open) {
            true => Err(Error::PlanExists {
                name: name.to_owned(),
            }),
            false => Ok(()),
        }
    }

    fn begin_plan(
        &self,
        named: (Option<&str>, bool),
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
        self.make_plan(id, config, named, directory, &new, observer)
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
        (name, implicit): (Option<&str>, bool),
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
                implicit,
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
            let chosen = match self.choose_all(plan, new, &sandboxes) {
                Ok(chosen) => chosen,
                Err(error) => {
                    let left = self.forget_unmade(&sandboxes);
                    return Err(error.and_left(left.and_then(|()| self.unmake(plan))));
                }
            };
            if let Err(error) = self.fill_all(plan, new, chosen, &mut sandboxes, early, observer) {
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
        chosen: Vec<Option<StrategyChoice>>,
        sandboxes: &mut [SandboxRecord],
        early: bool,
        observer: &dyn Observer,
    ) -> Result<()> {
        let resources = self.store.resources()?;
        let all = new.iter().zip(chosen).zip(sandboxes.iter_mut());
        for ((new, choice), sandbox) in all {
            if early {
                self.begin(plan, None, std::slice::from_ref(sandbox))?;
            }
            self.fill((new, choice), sandbox, &resources, observer)?;
            if early {
                self.store.put_sandboxes(std::slice::from_ref(sandbox))?;
            }
        }
        sync_areas(sandboxes)
    }

    /// Makes the area of each sandbox, and chooses its strategy; that of one that begins from another is the other's. Until this
    /// is done for all of them no strategy makes anything.
    fn choose_all(
        &self,
        plan: &Plan,
        new: &[NewSandbox<'_>],
        sandboxes: &[SandboxRecord],
    ) -> Result<Vec<Option<StrategyChoice>>> {
        let mut chosen = Vec::new();
        for (new, sandbox) in new.iter().zip(sandboxes) {
            workspace::make(sandbox.area.as_path())?;
            if new.from.is_some() {
                chosen.push(None);
                continue;
            }
            let (resource, registry) = (&new.resource, self.registry_of(plan.id)?);
            let kind = self.kind(&resource.kind)?;
            // What stands there may be another thing than when the resource was named.
            resource.path().map_or(Ok(()), |path| accept(kind, path))?;
            let target = self.target(plan.id, resource, &new.wanted)?;
            let area = Some(sandbox.area.as_path());
            chosen.push(Some(registry.choose(&new.wanted, kind, &target, area)?));
        }
        Ok(chosen)
    }

    /// Removes sandboxes that are recorded, and that no strategy was asked to make: none is asked to remove anything, which could
    /// fail for the same reason.
    fn forget_unmade(&self, sandboxes: &[SandboxRecord]) -> Result<()> {
        let mut left = Ok(());
        for sandbox in sandboxes {
            let removed = workspace::remove(sandbox.area.as_path()).map_err(Error::from);
            let forgotten = removed.and_then(|()| Ok(self.store.forget_sandbox(sandbox.id)?));
            left = left.and(forgotten);
        }
        left
    }

    /// Makes one more sandbox in a plan; the plan and the original are locked.
    pub(super) fn add_sandbox(
        &self,
        plan: &Plan,
        new: &NewSandbox<'_>,
        observer: &dyn Observer,
    ) -> Result<SandboxRecord> {
        let mut made = self.add_sandboxes(plan, std::slice::from_ref(new), observer)?;
        Ok(made.remove(0))
    }

    /// Makes more sandboxes in a plan, all or none; the plan and the originals are locked.
    pub(super) fn add_sandboxes(
        &self,
        plan: &Plan,
        new: &[NewSandbox<'_>],
        observer: &dyn Observer,
    ) -> Result<Vec<SandboxRecord>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let mut sandboxes = self.pending(plan, new)?;
        self.begin(plan, None, &sandboxes)?;
        let chosen = match self.choose_all(plan, new, &sandboxes) {
            Ok(chosen) => chosen,
            Err(error) => return Err(error.and_left(self.forget_unmade(&sandboxes))),
        };
        if let Err(error) = self.fill_all(plan, new, chosen, &mut sandboxes, false, observer) {
            // Nothing of them stays. Should even that fail, the records stay as pending, where `cleanup` finds them.
            let mut left = Ok(());
            for (sandbox, new) in sandboxes.iter().zip(new) {
                left = left.and(self.forget_sandbox(sandbox, &new.resource));
            }
            return Err(error.and_left(left));
        }
        self.store.put_sandboxes(&sandboxes)?;
        Ok(sandboxes)
    }

    /// Removes a sandbox that was never finished, with its record.
    pub(super) fn forget_sandbox(&self, sandbox: &SandboxRecord, of: &Resource) -> Result<()> {
        self.forget_outside(sandbox, of)?;
        workspace::remove(sandbox.area.as_path())?;
        Ok(self.store.forget_sandbox(sandbox.id)?)
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
        let mut outcome = self.store.begin_sandboxes(new, sandboxes)?;
        if matches!(outcome, BeginOutcome::NameTaken) && self.give_up_name(&name)? {
            outcome = self.store.begin_sandboxes(new, sandboxes)?;
        }
        match outcome {
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

    /// Gives plans that are over another name, so that a new one can have theirs: `escrow undo` of a name never means two. Whether
    /// there was one.
    fn give_up_name(&self, name: &str) -> Result<bool> {
        let mut given_up = false;
        for plan in self.store.plans_called(name)? {
            let over = matches!(plan.state, PlanState::Committed | PlanState::RolledBack);
            if plan.name != name || !over {
                continue;
            }
            let taken = self.taken_names()?;
            let free = free_name(&Location::from(Path::new(name)), |one| {
                taken.iter().any(|other| other == one)
            });
            if self.store.rename_plan(plan.id, &free)? {
                let state = plan.state.as_str().replace('_', " ");
                self.notice(format!(
                    "the plan '{name}' that was {state} is called '{free}' now: `escrow undo {free}` takes that back"
                ));
                given_up = true;
            }
        }
        Ok(given_up)
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
        (new, choice): (&NewSandbox<'_>, Option<StrategyChoice>),
        sandbox: &mut SandboxRecord,
        resources: &[Resource],
        observer: &dyn Observer,
    ) -> Result<()> {
        let (resource, plan) = (&new.resource, sandbox.reference.plan_id);
        let (registry, area) = (self.registry_of(plan)?, sandbox.area.as_path());
        let strategy = match (&choice, new.from) {
            (Some(choice), _) => &choice.strategy,
            (None, Some((from, _))) => registry.of(&from.sandbox.reference)?,
            (None, None) => registry.get(&new.wanted)?,
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
