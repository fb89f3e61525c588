//! Sandboxes: made once for a plan and a resource, cleaned up for good.

use std::path::Path;

use super::Manager;
use super::records::About;
use super::work::check_readable;
use crate::commit::lent;
use crate::error::{Error, Result};
use crate::event::{Observer, Unobserved};
use crate::fs::private::{self, Lock, Place};
use crate::fs::{Dir, remove};
use crate::model::text::Location;
use crate::model::{Action, PlanState, ResourceId, SandboxId, SandboxRef, SandboxState, Scope};
use crate::resource::{Graph, INHERIT, SandboxRequest};
use crate::seeded;
use crate::store::{Plan, Resource, Sandbox, StoreError};
use crate::strategy::registry::AUTO;
use crate::strategy::{CreateRequest, Moment};

/// What is asked for by the record of a sandbox that is being forked; no strategy has such a name.
pub(super) const FORK: &str = "(fork)";

/// A sandbox and what it is a sandbox of.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Its resource.
    pub resource: Resource,
}

/// The answer to a wish for a sandbox.
#[derive(Debug)]
pub struct Made {
    /// The sandbox.
    pub view: SandboxView,
    /// Whether it was made now; otherwise it was there (rule P4).
    pub created: bool,
}

/// What a cleanup removed.
#[derive(Debug)]
pub struct Cleaned {
    /// The resource whose sandbox it was.
    pub resource: String,
    /// The area that is gone.
    pub area: Location,
}

impl Manager {
    /// Every sandbox of a plan, those that were cleaned up among them.
    pub(super) fn all_sandboxes(&self, plan: &Plan) -> Result<Vec<SandboxView>> {
        let mut views = Vec::new();
        for sandbox in self.store.sandboxes(Some(plan.id))? {
            let id = sandbox.reference.resource_id;
            let resource = self.store.resource(id)?.ok_or_else(|| unknown(id))?;
            views.push(SandboxView { sandbox, resource });
        }
        Ok(views)
    }

    /// The sandboxes of a plan that are still there.
    pub(super) fn live_sandboxes(&self, plan: &Plan) -> Result<Vec<SandboxView>> {
        let mut views = self.all_sandboxes(plan)?;
        views.retain(|view| view.sandbox.state != SandboxState::CleanedUp);
        Ok(views)
    }

    /// The strategy a new sandbox asks for: what was typed, else what the resource says, else its
    /// type, else the general setting.
    pub(super) fn check_strategy(
        &self,
        plan: Option<&Plan>,
        resource: &Resource,
        typed: Option<&str>,
    ) -> Result<String> {
        let kind = self.kind(&resource.kind)?;
        let effective = self.effective(plan.map(|plan| plan.id))?;
        let usual = self.usual_strategy(&effective);
        if typed.is_none() {
            let of = |table: &str, name: &str| format!("{table}.{name}.");
            let own = of("resources", &resource.name);
            let of_kind = of("resource_types", &resource.kind);
            self.tell_ignored(&effective, |key| {
                key.starts_with(&own) || key.starts_with(&of_kind) || key == "sandbox.strategy"
            });
        }
        let wanted = match (typed, resource.strategy.as_str(), kind.default.as_str()) {
            (Some(typed), _, _) => typed,
            // It is made as its boundary is.
            (None, INHERIT, _) => AUTO,
            (None, AUTO, AUTO) => usual.as_str(),
            (None, AUTO, usual) => usual,
            (None, named, _) => named,
        };
        self.registry().check(wanted, kind)?;
        Ok(wanted.to_owned())
    }

    /// The plan's sandbox of a resource, made if it is not there.
    pub fn create_sandbox(
        &self,
        plan: &Plan,
        resource: &Resource,
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<Made> {
        // Resources of one boundary share one sandbox.
        let (boundary, _) = self.boundary(resource)?;
        let resource = &boundary;
        let scope = Scope::Resource(resource.name.clone());
        self.permit(Action::Create, Some(plan), scope)?;
        self.check_strategy(Some(plan), resource, strategy)?;
        let _lock = self.lock(plan, false)?;
        // Nobody commits into the original while it is looked at.
        let _original = self.lock_originals(&[resource], true)?;
        self.check_neighbours(plan, &[resource])?;
        let there = self.live_sandboxes(plan)?;
        let found = there
            .into_iter()
            .find(|view| view.resource.id == resource.id);
        let mut unfinished = None;
        if let Some(view) = found {
            if view.sandbox.state != SandboxState::Pending {
                check_readable(plan, &view)?;
                return Ok(Made {
                    view,
                    created: false,
                });
            }
            if view.sandbox.requested == FORK {
                // Begun anew it would be a sandbox of the original, not of where the other plan was.
                return Err(Error::HalfForked {
                    plan: plan.name.clone(),
                });
            }
            // Its maker died: we hold the lock that it held. What it left goes, and it begins anew.
            unfinished = Some(view.sandbox);
        }
        self.check_overlap(plan, resource)?;
        // Begun anew, it is made as it was to be made.
        let requested = unfinished.as_ref().map(|old| old.requested.clone());
        let strategy = strategy.or(requested.as_deref());
        let about = About::one("create", plan, &resource.name, resource);
        self.record_about(about, |_| {
            if let Some(old) = unfinished {
                remove_area(&old)?;
                self.store.forget_sandbox(old.id)?;
            }
            let wanted = self.check_strategy(Some(plan), resource, strategy)?;
            let sandbox = self.make_new(plan, resource, &wanted, observer)?;
            let resource = resource.clone();
            Ok(Made {
                view: SandboxView { sandbox, resource },
                created: true,
            })
        })
    }

    fn make_new(
        &self,
        plan: &Plan,
        resource: &Resource,
        wanted: &str,
        observer: &dyn Observer,
    ) -> Result<Sandbox> {
        self.make_by(plan, resource, wanted, |sandbox| {
            self.fill(sandbox, resource, wanted, observer)
        })
    }

    /// Sandboxes in another plan that begin at moments of these. Until all of them are whole, none can be used.
    pub(super) fn fork_sandboxes(
        &self,
        plan: &Plan,
        from: &[(SandboxView, Moment)],
        observer: &dyn Observer,
    ) -> Result<()> {
        let mut forks = Vec::new();
        for (view, _) in from {
            forks.push(self.begin_sandbox(plan, &view.resource, FORK)?);
        }
        for (new, (SandboxView { sandbox, resource }, moment)) in forks.iter_mut().zip(from) {
            let strategy = self.registry().get(&sandbox.reference.strategy)?;
            self.make_room(new)?;
            let created = strategy.fork(
                &sandbox.reference,
                moment,
                &CreateRequest {
                    plan_id: plan.id,
                    resource_id: resource.id,
                    original: resource.at.as_path(),
                    area: new.area.as_path(),
                    carved: &[],
                    observer,
                },
            )?;
            // It holds the work of the other one.
            let made = new.state.go(SandboxState::Created)?;
            new.state = made.go(SandboxState::Active)?;
            new.requested.clone_from(&sandbox.requested);
            new.reference = created.sandbox;
            new.message = created.message;
            new.warnings = created.warnings;
            if seeded::bug("fork-one-by-one") {
                self.store.put_sandbox(new)?;
            }
        }
        Ok(self.store.put_sandboxes(&forks)?)
    }

    /// Makes a sandbox whose area `fill` fills.
    fn make_by(
        &self,
        plan: &Plan,
        resource: &Resource,
        wanted: &str,
        fill: impl FnOnce(&mut Sandbox) -> Result<()>,
    ) -> Result<Sandbox> {
        let mut sandbox = self.begin_sandbox(plan, resource, wanted)?;
        let made = fill(&mut sandbox);
        if let Err(error) = made {
            // Nothing of it stays. Should even that fail, the record stays as pending, where
            // `cleanup` finds it.
            let forget = || Ok(self.store.forget_sandbox(sandbox.id)?);
            let swept = remove_area(&sandbox).and_then(|()| forget());
            return Err(error.and_left(swept));
        }
        Ok(sandbox)
    }

    /// Records a sandbox that is about to be made.
    fn begin_sandbox(&self, plan: &Plan, resource: &Resource, wanted: &str) -> Result<Sandbox> {
        let id = SandboxId::new(&*self.options.origin);
        let place = self.place(resource.at.as_path())?;
        let name = format!("{}{id}", place.prefix);
        let sandbox = Sandbox {
            id,
            reference: SandboxRef {
                plan_id: plan.id,
                resource_id: resource.id,
                strategy: wanted.to_owned(),
                metadata: serde_json::Value::Null,
            },
            requested: wanted.to_owned(),
            state: SandboxState::Pending,
            area: Location::from(place.parent.join(&name)),
            message: String::new(),
            warnings: Vec::new(),
            reasons: Vec::new(),
            created_at: self.options.origin.now(),
        };
        // Recorded before it exists: whatever dies from here on, someone knows where to sweep.
        match self.store.put_sandbox(&sandbox) {
            Err(StoreError::Exists) => {
                return Err(Error::Busy {
                    plan: plan.name.clone(),
                    owner: None,
                });
            }
            answer => answer?,
        }
        // A cleanup elsewhere may have forgotten the resource between our finding it and this.
        match self.store.recall_resource(resource.id) {
            Err(StoreError::Exists) => {
                self.store.forget_sandbox(id)?;
                return Err(Error::Forgotten {
                    resource: resource.name.clone(),
                });
            }
            answer => answer?,
        }
        Ok(sandbox)
    }

    /// The area of a new sandbox.
    fn make_room(&self, sandbox: &Sandbox) -> Result<()> {
        let area = sandbox.area.as_path();
        let parent = Dir::open(area.parent().unwrap_or(area))?;
        let name = area.file_name().unwrap_or_default();
        let made = private::make_plain(&parent, name.as_encoded_bytes())?;
        private::keep_reserve(&made);
        Ok(parent.sync()?)
    }

    fn fill(
        &self,
        sandbox: &mut Sandbox,
        resource: &Resource,
        wanted: &str,
        observer: &dyn Observer,
    ) -> Result<()> {
        self.make_room(sandbox)?;
        let kind = self.kind(&resource.kind)?;
        let resources = self.store.resources()?;
        let carved = Graph::new(&resources).carved(resource)?;
        let begun = self.handler(kind)?.create_sandbox(&SandboxRequest {
            registry: self.registry(),
            wanted,
            kind,
            create: CreateRequest {
                plan_id: sandbox.reference.plan_id,
                resource_id: sandbox.reference.resource_id,
                original: resource.at.as_path(),
                area: sandbox.area.as_path(),
                carved: &carved,
                observer,
            },
        })?;
        let created = begun.created;
        sandbox.state = sandbox.state.go(SandboxState::Created)?;
        sandbox.reference = created.sandbox;
        sandbox.message = created.message;
        sandbox.warnings = created.warnings;
        sandbox.reasons = begun.reasons;
        Ok(self.store.put_sandbox(sandbox)?)
    }

    /// Removes everything the plan has on disk; legal in every state, and again. One that cannot
    /// be removed does not stop the others.
    ///
    /// An area that cannot be found is an error where its file system may be away; `forget` counts
    /// it as removed.
    pub fn cleanup(&self, plan: &Plan, forget: bool) -> Result<Vec<Cleaned>> {
        self.permit_plan(Action::Cleanup, plan)?;
        self.clean_up(plan, forget)
    }

    /// The same for what the engine itself takes back.
    pub(super) fn clean_up(&self, plan: &Plan, forget: bool) -> Result<Vec<Cleaned>> {
        self.make_room_to_clean()?;
        let lock = self.lock_unsettled(plan)?;
        self.check_quiet(plan)?;
        match self.settle(plan) {
            // What can never be brought to an end is let go of, if that is what is wanted.
            Err(Error::RecoveryNeeded { .. }) if forget => self.abandon_commit(plan)?,
            answer => answer?,
        }
        self.remove_plan(plan, lock, forget)
    }

    /// The same for a plan whose lock is held and whose commit is at an end.
    pub(super) fn remove_plan(
        &self,
        plan: &Plan,
        lock: Lock,
        forget: bool,
    ) -> Result<Vec<Cleaned>> {
        let cleaned = self.record("cleanup", Some(plan.id), &plan.name, || {
            let views = self.live_sandboxes(plan)?;
            let (mut cleaned, mut failed) = (Vec::new(), Vec::new());
            for view in &views {
                match self.clean_one(view, forget) {
                    Ok(()) => cleaned.push(Cleaned {
                        resource: view.resource.name.clone(),
                        area: view.sandbox.area.clone(),
                    }),
                    Err(error) => failed.push((view.resource.name.clone(), error)),
                }
            }
            if !failed.is_empty() {
                let done = cleaned.into_iter().map(|one| one.resource).collect();
                return Err(Error::partly(plan, "removed", done, failed));
            }
            for view in self.all_sandboxes(plan)? {
                self.store.forget_resource(view.resource.id, true)?;
            }
            self.forget_commits(plan, forget)?;
            self.drop_scratch(plan)?;
            self.store.forget_checkpoints(plan.id)?;
            self.store.set_plan_state(plan.id, PlanState::CleanedUp)?;
            Ok(cleaned)
        })?;
        self.forget_live(plan)?;
        lock.remove(&self.locks, plan.id.to_string().as_bytes())?;
        Ok(cleaned)
    }

    /// Removes a plan in which nothing was changed; says whether it did.
    pub fn take_away_unused(&self, plan: &Plan) -> Result<bool> {
        let lock = self.lock(plan, false)?;
        self.check_quiet(plan)?;
        for view in self.live_sandboxes(plan)? {
            let reference = &view.sandbox.reference;
            let strategy = self.registry().get(&reference.strategy)?;
            if !strategy.diff(reference)?.is_empty() {
                return Ok(false);
            }
        }
        self.remove_plan(plan, lock, false)?;
        Ok(true)
    }

    /// Whether a sandbox beside its original is out of reach together with it: then their file
    /// system is not mounted, or the directory they lie in was moved.
    pub(super) fn is_out_of_reach(&self, area: &Path, original: &Path) -> bool {
        let absent = |path: &Path| Dir::open(path).is_err_and(|error| error.is_absent());
        !area.starts_with(self.areas.path()) && absent(area) && absent(original)
    }

    /// Where the area of a sandbox of `original` goes: never into another resource.
    pub(super) fn place(&self, original: &Path) -> Result<Place> {
        let resources = self.store.resources()?;
        let others: Vec<&Path> = resources
            .iter()
            .map(|resource| resource.at.as_path())
            .filter(|at| *at != original)
            .collect();
        Ok(private::place(&self.areas, original, &others)?)
    }

    pub(super) fn clean_one(&self, view: &SandboxView, forget: bool) -> Result<()> {
        let sandbox = &view.sandbox;
        let (area, original) = (sandbox.area.as_path(), view.resource.root());
        if !forget && self.is_out_of_reach(area, original) {
            return Err(Error::Away {
                area: sandbox.area.clone(),
            });
        }
        // One that was never finished has no metadata: its strategy knows nothing of it.
        if !sandbox.reference.metadata.is_null() {
            let strategy = self.registry().get(&sandbox.reference.strategy)?;
            strategy.cleanup(&sandbox.reference)?;
        }
        // From here on it is not whole: whoever finds it half removed must know.
        let state = sandbox.state.go(SandboxState::Errored)?;
        self.store.set_sandbox_state(sandbox.id, state)?;
        let engine = self.engine(&Unobserved);
        let needs = lent::needs(&engine, sandbox)?;
        if !lent::is_needed(&engine, &sandbox.area, sandbox.id)? {
            remove_area(sandbox)?;
        }
        let state = state.go(SandboxState::CleanedUp)?;
        self.store.set_sandbox_state(sandbox.id, state)?;
        lent::take_in(&engine, &needs)
    }
}

/// A sandbox whose resource has no record.
pub(super) fn unknown(id: ResourceId) -> Error {
    Error::UnknownResource {
        name: id.to_string(),
        known: Vec::new(),
    }
}

/// Removes the area of a sandbox; done already if it is not there.
fn remove_area(sandbox: &Sandbox) -> Result<()> {
    let area = sandbox.area.as_path();
    let (Some(parent), Some(name)) = (area.parent(), area.file_name()) else {
        return Ok(());
    };
    match Dir::open(parent) {
        // The directory the area lay in is gone, and the area with it.
        Err(error) if error.is_absent() => Ok(()),
        parent => Ok(remove::remove(&parent?, name.as_encoded_bytes())?),
    }
}
