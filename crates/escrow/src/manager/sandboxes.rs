//! Sandboxes of a plan: lists them, and creates one more for a resource, once.

use super::Manager;
use super::audit::OperationSubject;
use super::content::check_readable;
use super::creation::NewSandbox;
use crate::error::Result;
use crate::event::Observer;
use crate::fs::workspace;
use crate::model::{Action, PlanId, SandboxState, Scope};
use crate::resource::{INHERIT, ResourceGraph};
use crate::store::{Plan, Resource, SandboxRecord};
use crate::strategy::registry::AUTO;

/// A sandbox and what it is a sandbox of.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// The sandbox.
    pub sandbox: SandboxRecord,
    /// Its resource.
    pub resource: Resource,
}

/// The answer to a wish for a sandbox.
#[derive(Debug)]
pub struct SandboxCreation {
    /// The sandbox.
    pub view: SandboxView,
    /// Whether it was made now; otherwise it was there (rule P4).
    pub created: bool,
}

impl Manager {
    /// Every sandbox of a plan, those that were cleaned up among them.
    pub(super) fn all_sandboxes(&self, plan: &Plan) -> Result<Vec<SandboxView>> {
        let members = self.store.plan_members(plan.id)?.into_iter();
        let view = |(sandbox, resource)| SandboxView { sandbox, resource };
        Ok(members.map(view).collect())
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
        plan: PlanId,
        resource: &Resource,
        typed: Option<&str>,
    ) -> Result<String> {
        let kind = self.kind(&resource.kind)?;
        let effective = self.effective(Some(plan))?;
        let usual = self.usual_strategy(&effective);
        let of = |table: &str, name: &str| format!("{table}.{name}.");
        let own = of("resources", &resource.name);
        let of_kind = of("resource_types", &resource.kind);
        self.warn_ignored(&effective, |key| match key {
            "sandbox.strategy" => typed.is_none(),
            key if key.starts_with("sandbox.") => true,
            key if key.ends_with(".options") => key.starts_with(&own),
            key => typed.is_none() && (key.starts_with(&own) || key.starts_with(&of_kind)),
        });
        let wanted = match (typed, resource.strategy.as_str(), kind.default.as_str()) {
            (Some(typed), _, _) => typed,
            // It is made as its boundary is.
            (None, INHERIT, _) => AUTO,
            (None, AUTO, AUTO) => usual.as_str(),
            // What comes with the engine has a default only where nothing else was said.
            (None, AUTO, _) if kind.extends.is_none() && kind.allowed.contains(&usual) => &usual,
            (None, AUTO, usual) => usual,
            (None, named, _) => named,
        };
        let registry = self.registry_of(plan)?;
        registry.check(wanted, kind)?;
        if typed.is_some() {
            return Ok(wanted.to_owned());
        }
        let shared = self.wanted_by_sharers(resource)?;
        let all = shared.iter().map(String::as_str).chain([wanted]);
        let strongest = registry.strongest(all, kind);
        Ok(strongest.unwrap_or(wanted).to_owned())
    }

    /// What the resources that live in the sandbox of `boundary` ask for: the strategies that their types name. The types
    /// that come with the engine name theirs for sandboxes of their own only.
    fn wanted_by_sharers(&self, boundary: &Resource) -> Result<Vec<String>> {
        let resources = self.store.resources()?;
        let graph = ResourceGraph::new(&resources);
        let mut wanted = Vec::new();
        for one in resources.iter().filter(|one| one.strategy == INHERIT) {
            let shares = graph.boundary(one).is_some_and(|of| of.id == boundary.id);
            let types = &self.settings().types;
            let kind = types.named(&one.kind).filter(|kind| kind.extends.is_some());
            wanted.extend(kind.filter(|_| shares).map(|kind| kind.default.clone()));
        }
        Ok(wanted)
    }

    /// The plan's sandbox of a resource, made if it is not there.
    pub fn create_sandbox(
        &self,
        plan: &Plan,
        resource: &Resource,
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<SandboxCreation> {
        // Resources of one boundary share one sandbox.
        let (boundary, _) = self.boundary(resource)?;
        let resource = &boundary;
        self.settle_with(plan.id, resource)?;
        let scope = Scope::Resource(resource.name.clone());
        self.permit(Action::Create, Some(plan), scope)?;
        self.check_strategy(plan.id, resource, strategy)?;
        let _lock = self.begin_call(plan, false)?;
        // No process commits into the original while it is looked at.
        let _original = self.lock_originals(&[resource], true)?;
        self.check_neighbours(plan, &[resource])?;
        let there = self.live_sandboxes(plan)?;
        let found = there
            .into_iter()
            .find(|view| view.resource.id == resource.id);
        let mut unfinished = None;
        if let Some(view) = found {
            if view.sandbox.state != SandboxState::Pending {
                check_readable(plan, [&view])?;
                return Ok(SandboxCreation {
                    view,
                    created: false,
                });
            }
            // Its maker died: we hold the lock that it held. What it left goes, and it begins anew.
            unfinished = Some(view.sandbox);
        }
        self.check_overlap(plan, resource)?;
        // Begun anew, it is made as it was to be made.
        let requested = unfinished.as_ref().map(|old| old.requested.clone());
        let strategy = strategy.or(requested.as_deref());
        let about = OperationSubject::one("create", plan, &resource.name, resource);
        self.record_about(about, |_| {
            if let Some(old) = unfinished {
                workspace::remove(old.area.as_path())?;
                self.store.forget_sandbox(old.id)?;
            }
            let new = NewSandbox {
                wanted: self.check_strategy(plan.id, resource, strategy)?,
                resource: resource.clone(),
                from: None,
            };
            let sandbox = self.add_sandbox(plan, &new, observer)?;
            let resource = new.resource;
            Ok(SandboxCreation {
                view: SandboxView { sandbox, resource },
                created: true,
            })
        })
    }
}
