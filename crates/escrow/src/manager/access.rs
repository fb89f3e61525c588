//! Authorization: every operation is checked against the policies before anything is done, and every denial is
//! logged.

use super::audit::OperationSubject;
use super::{Manager, SandboxView};
use crate::error::{Error, Result};
use crate::model::{
    Action, Change, ChangeKind, Decision, DiffView, EntryKind, PlanId, ResourcePath, Scope, Shape,
};
use crate::policy::{Policies, ResultingEntry};
use crate::resource::ResourceGraph;
use crate::store::{Plan, Resource};

/// A resource and those that lie in it, or that it lies in: its files have names in all of them.
struct ResourceNames {
    own: String,
    /// The one path it has, if it is a file.
    only: Option<ResourcePath>,
    /// Resources it lies in, and where in them its paths begin.
    outer: Vec<(String, ResourcePath)>,
    /// Resources that lie in it.
    inner: Vec<InnerResource>,
    /// Rules speak of its tables: what is in one has the name of the table.
    tables: bool,
}

/// A resource that lies in another one.
struct InnerResource {
    name: String,
    /// Where.
    at: ResourcePath,
    /// Where its paths begin: of a file, in the directory that holds it.
    root: ResourcePath,
}

impl ResourceNames {
    /// Every name of a path.
    fn of(&self, path: &ResourcePath) -> Vec<Scope> {
        let table = path.parts().next().filter(|_| self.tables);
        let table = table.map(|name| ResourcePath::root().join(name));
        let path = table.as_ref().unwrap_or(path);
        let mut names = vec![Scope::at(&self.own, path.clone())];
        let all = self.only.as_ref().filter(|_| path.is_root());
        for (name, at) in &self.outer {
            let whole = all
                .unwrap_or(path)
                .parts()
                .fold(at.clone(), |whole, part| whole.join(part));
            names.push(Scope::at(name, whole));
        }
        for one in self.inner.iter().filter(|one| path.lies_in(&one.at)) {
            let rest = path.parts().skip(one.root.parts().count());
            let rest = rest.fold(ResourcePath::root(), |whole, part| whole.join(part));
            names.push(Scope::at(&one.name, rest));
        }
        names
    }

    /// The resources in it that are another thing once a path becomes a link.
    fn beyond(&self, path: &ResourcePath) -> impl Iterator<Item = Scope> {
        let below = |one: &&InnerResource| one.at != *path && one.at.lies_in(path);
        let inner = self.inner.iter().filter(below);
        inner.map(|one| Scope::Resource(one.name.clone()))
    }
}

impl Manager {
    /// Who asks.
    pub fn principal(&self) -> &str {
        &self.options.principal
    }

    /// What the policy says of text that the user typed. Nothing is done, and nothing is logged.
    pub fn check_access(&self, principal: &str, action: &str, scope: &str) -> Result<Decision> {
        let policies = &self.configured.general.policies;
        policies.check(principal, action, scope, |scope| self.names_of(None, scope))
    }

    /// Of every action, whether a principal may do it on all of a resource, and why.
    pub fn project_access(&self, principal: &str, resource: &Resource) -> Result<Vec<Decision>> {
        let names = self.names(None, resource)?.of(&ResourcePath::root());
        let policies = &self.configured.general.policies;
        let authorize_one =
            |action| policies.authorize(principal, action, &names, ResultingEntry::Entry);
        Ok(Action::ALL.into_iter().map(authorize_one).collect())
    }

    /// Every name of what a scope means, for a plan if it is about one.
    fn names_of(&self, plan: Option<PlanId>, scope: Scope) -> Result<Vec<Scope>> {
        let name = match &scope {
            Scope::Resource(name) | Scope::Path(name, _) | Scope::Within(Some(name)) => name,
            Scope::All | Scope::Within(None) => return Ok(vec![scope]),
        };
        // Without rules names do not matter.
        if !self.effective(plan)?.policies.has_rules() {
            return Ok(vec![scope]);
        }
        let resources = self.named_resources(plan)?;
        match resources.iter().find(|one| one.name == *name) {
            Some(resource) => self.names_in(plan, resource, scope),
            None => Ok(vec![scope]),
        }
    }

    /// The same, of a resource that was found; it may be forgotten meanwhile.
    fn names_in(
        &self,
        plan: Option<PlanId>,
        resource: &Resource,
        scope: Scope,
    ) -> Result<Vec<Scope>> {
        let names = self.names(plan, resource)?;
        Ok(match scope {
            Scope::Path(_, path) => names.of(&path),
            Scope::Within(_) => {
                let outer = names.outer.into_iter().map(|(name, _)| name);
                let all = [names.own].into_iter().chain(outer);
                all.map(|name| Scope::Within(Some(name))).collect()
            }
            Scope::All | Scope::Resource(_) => names.of(&ResourcePath::root()),
        })
    }

    fn names(&self, plan: Option<PlanId>, resource: &Resource) -> Result<ResourceNames> {
        let mut names = ResourceNames {
            own: resource.name.clone(),
            only: resource.only(),
            outer: Vec::new(),
            inner: Vec::new(),
            tables: resource.shape == Shape::Database,
        };
        // Without rules names do not matter.
        if !self.effective(plan)?.policies.has_rules() {
            return Ok(names);
        }
        let resources = self.named_resources(plan)?;
        let graph = ResourceGraph::new(&resources);
        for other in resources.iter().filter(|one| one.id != resource.id) {
            let name = other.name.clone();
            if let Some((_, root)) = graph.named_in(resource, other)? {
                names.outer.push((name, root));
            } else if let Some((at, root)) = graph.named_in(other, resource)? {
                names.inner.push(InnerResource { name, at, root });
            }
        }
        Ok(names)
    }

    fn authorize(
        &self,
        plan: Option<PlanId>,
        action: Action,
        names: &[Scope],
        form: ResultingEntry,
    ) -> Result<()> {
        let policies = &self.effective(plan)?.policies;
        let principal = &self.options.principal;
        let mut decision = policies.authorize(principal, action, names, form);
        let discards = matches!(action, Action::Rollback | Action::Cleanup);
        if let Some(plan) = plan.filter(|_| discards && !decision.permitted)
            && self.is_maker(plan)?
        {
            decision = policies.trusted().authorize(principal, action, names, form);
        }
        permitted(decision)
    }

    /// Whether a plan is the caller's own: then a file that the caller does not trust cannot keep it from being
    /// discarded and removed.
    pub(super) fn is_maker(&self, plan: PlanId) -> Result<bool> {
        Ok(self.store.maker(plan)?.as_ref() == Some(&self.options.principal))
    }

    /// Whether only what is the caller's own may be collected as garbage, because a file that the caller does not
    /// trust denies it. Refuses where another policy denies it.
    pub(super) fn permit_gc(&self) -> Result<bool> {
        let (all, principal) = ([Scope::All], &self.options.principal);
        let policies = &self.configured.general.policies;
        let may = |policies: &Policies| {
            let decision = policies.authorize(principal, Action::Gc, &all, ResultingEntry::Entry);
            decision.permitted
        };
        if !may(policies) && may(&policies.trusted()) {
            return Ok(true);
        }
        self.permit(Action::Gc, None, Scope::All)?;
        Ok(false)
    }

    /// Refuses what the policy does not permit; the denial is logged.
    pub(super) fn permit(&self, action: Action, plan: Option<&Plan>, scope: Scope) -> Result<()> {
        self.permit_as(action, plan, scope, ResultingEntry::Entry)
    }

    /// The same of a plan that is known by its id alone.
    pub(super) fn permit_in(&self, action: Action, plan: PlanId, scope: Scope) -> Result<()> {
        let names = self.names_of(Some(plan), scope)?;
        let authorized = self.authorize(Some(plan), action, &names, ResultingEntry::Entry);
        self.denied(action, None, authorized)
    }

    fn permit_as(
        &self,
        action: Action,
        plan: Option<&Plan>,
        scope: Scope,
        form: ResultingEntry,
    ) -> Result<()> {
        let id = plan.map(|plan| plan.id);
        let authorized = self
            .names_of(id, scope)
            .and_then(|names| self.authorize(id, action, &names, form));
        self.denied(action, plan, authorized)
    }

    /// Where a sandbox does not isolate, to work in it is to release, and it is not reviewed later.
    /// A process that may change any path of it there must not be denied one.
    pub(super) fn permit_release(
        &self,
        plan: &Plan,
        view: &SandboxView,
        path: Option<&ResourcePath>,
    ) -> Result<()> {
        let strategy = self.registry_of(plan.id)?.of(&view.sandbox.reference)?;
        if strategy.capabilities().isolates {
            return Ok(());
        }
        let name = &view.resource.name;
        if let Some(path) = path {
            let scope = Scope::at(name, path.clone());
            return self.permit(Action::Commit, Some(plan), scope);
        }
        let inner = self.names(Some(plan.id), &view.resource)?.inner;
        let inner = inner.into_iter().map(|one| one.name);
        for name in [name.clone()].into_iter().chain(inner) {
            let scope = Scope::Resource(name);
            self.permit_as(Action::Commit, Some(plan), scope, ResultingEntry::Whole)?;
        }
        Ok(())
    }

    /// The same for every resource of a plan as a whole.
    pub(super) fn permit_plan(&self, action: Action, plan: &Plan) -> Result<()> {
        self.permit_each(action, plan, |view| {
            Scope::Resource(view.resource.name.clone())
        })
    }

    /// The same where it depends on the paths that are concerned, which are not known yet: refuses
    /// who may not do it on any.
    pub(super) fn permit_within(&self, action: Action, plan: &Plan) -> Result<()> {
        self.permit_each(action, plan, |view| {
            Scope::Within(Some(view.resource.name.clone()))
        })
    }

    fn permit_each(
        &self,
        action: Action,
        plan: &Plan,
        scope: impl Fn(&SandboxView) -> Scope,
    ) -> Result<()> {
        self.denied(action, Some(plan), self.authorize_each(action, plan, scope))
    }

    /// What [`Manager::permit_within`] says, without a word in the log.
    pub(super) fn authorize_plan(&self, action: Action, plan: &Plan) -> Result<()> {
        self.authorize_each(action, plan, |view| {
            Scope::Within(Some(view.resource.name.clone()))
        })
    }

    /// Whether something may be done, without a word in the log.
    pub(super) fn may(&self, action: Action, plan: &Plan, scope: Scope) -> Result<bool> {
        let names = self.names_of(Some(plan.id), scope)?;
        match self.authorize(Some(plan.id), action, &names, ResultingEntry::Entry) {
            Ok(()) => Ok(true),
            Err(Error::Denied { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether anything may be done on anything in a resource, without a word in the log.
    pub(super) fn authorize_resource(
        &self,
        action: Action,
        plan: &Plan,
        resource: &Resource,
    ) -> Result<()> {
        let within = Scope::Within(Some(resource.name.clone()));
        let names = self.names_of(Some(plan.id), within)?;
        self.authorize(Some(plan.id), action, &names, ResultingEntry::Entry)
    }

    fn authorize_each(
        &self,
        action: Action,
        plan: &Plan,
        scope: impl Fn(&SandboxView) -> Scope,
    ) -> Result<()> {
        let id = Some(plan.id);
        let views = match self.effective(id)?.policies.has_rules() {
            true => self.view(plan.clone())?.sandboxes,
            false => Vec::new(),
        };
        if views.is_empty() {
            let names = self.names_of(id, Scope::Within(None))?;
            return self.authorize(id, action, &names, ResultingEntry::Entry);
        }
        views.iter().try_for_each(|view| {
            // By the plan's record of it: the resource may be forgotten since.
            let names = self.names_in(id, &view.resource, scope(view))?;
            self.authorize(id, action, &names, ResultingEntry::Entry)
        })
    }

    /// Refuses changes that the policy does not permit, path by path; one that changes nothing is
    /// authorized as a whole.
    pub(super) fn authorize_changes(
        &self,
        action: Action,
        view: &SandboxView,
        diff: &DiffView,
    ) -> Result<()> {
        let (plan, resource) = (Some(view.sandbox.reference.plan_id), &view.resource);
        let names = self.names(plan, resource)?;
        if diff.is_empty() {
            let within = Scope::Within(Some(resource.name.clone()));
            return self.authorize(plan, action, &[within], ResultingEntry::Entry);
        }
        let mut first = None;
        // What a history brings along counts like a file, whatever the files show.
        let carried = diff.changes.iter().flat_map(Change::carried);
        let carried = carried.map(|one| (&one.change, Some(&one.within)));
        let all = diff.changes.iter().map(|change| (change, None));
        for (change, within) in all.chain(carried) {
            let kind = change.new.as_ref().map(|new| new.kind);
            let form = match (kind, change.kind) {
                (Some(EntryKind::Symlink), _)
                | (Some(EntryKind::Directory), ChangeKind::ModeChanged) => ResultingEntry::Rerouted,
                (Some(EntryKind::Directory), ChangeKind::Added) => ResultingEntry::Directory,
                _ => ResultingEntry::Entry,
            };
            let mut authorized = self.authorize(plan, action, &names.of(&change.path), form);
            if form == ResultingEntry::Rerouted {
                let mut beyond = names.beyond(&change.path);
                let authorize_one = |_, scope| self.authorize(plan, action, &[scope], form);
                authorized = authorized.and_then(|()| beyond.try_fold((), authorize_one));
            }
            match (authorized, &mut first) {
                (Ok(()), _) => {}
                (Err(mut error), None) => {
                    if let (Error::Denied { decision, .. }, Some(within)) = (&mut error, within) {
                        decision.reason = format!("{} (in {within})", decision.reason);
                    }
                    first = Some(error);
                }
                (Err(_), Some(Error::Denied { others, .. })) => *others += 1,
                (Err(error), Some(_)) => return Err(error),
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Logs a denial.
    pub(super) fn denied<T>(
        &self,
        action: Action,
        plan: Option<&Plan>,
        authorized: Result<T>,
    ) -> Result<T> {
        if let Err(Error::Denied { decision, .. }) = &authorized {
            let resource = decision.scope.split(':').next().unwrap_or_default();
            let about = OperationSubject {
                action: action.as_str(),
                plan: plan.map(|plan| plan.id),
                target: &decision.scope,
                resources: match resource {
                    "*" => Vec::new(),
                    name => vec![name.to_owned()],
                },
                message: None,
            };
            self.note_denial(Ok(about), &decision.reason);
        }
        authorized
    }
}

/// What a decision means for who asked.
pub(super) fn permitted(decision: Decision) -> Result<()> {
    match decision.permitted {
        true => Ok(()),
        false => Err(Error::Denied {
            decision: Box::new(decision),
            others: 0,
        }),
    }
}
