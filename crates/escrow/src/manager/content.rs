//! Content of sandboxes: read, write and diff.

use std::ffi::OsStr;
use std::io::{Cursor, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice;

use super::audit::OperationSubject;
use super::both_sides::ComparedSides;
use super::{Manager, SandboxView};
use crate::commit::{is_released, standing_parts};
use crate::diff::VersionContents;
use crate::error::{Error, Result, chain};
use crate::fs::Dir;
use crate::fs::content::spool;
use crate::fs::state_dir::{self, Lock};
use crate::model::counted;
use crate::model::text::Location;
use crate::model::{
    Action, CarriedContents, Change, CountedChanges, DiffView, EntryInfo, PlanDigest, PlanState,
    ResourcePath, SandboxState, Scope,
};
use crate::policy::select::ReleasePattern;
use crate::store::{Plan, Resource};
use crate::strategy::registry::Registration;
use crate::strategy::{
    Access, BothSides, Exposes, QueryResult, Sandbox, Session, StrategyError, ignored_paths,
    unsupported,
};

/// What one sandbox changed.
#[derive(Debug)]
pub struct ResourceDiff {
    /// The sandbox.
    pub view: SandboxView,
    /// The changes.
    pub diff: DiffView,
    /// The changed paths that the original changed too since the sandbox was made.
    pub both_sides: BothSides,
    /// What `diff.ignore` leaves out: it is not released either.
    pub ignored: DiffView,
}

/// What a plan changed, when it was looked at.
#[must_use]
#[derive(Debug)]
pub struct PlanDiff {
    /// One entry for each sandbox.
    pub resources: Vec<ResourceDiff>,
    plan: Plan,
    pub(super) sides: ComparedSides,
}

impl PlanDiff {
    pub(super) fn new(resources: Vec<ResourceDiff>, plan: &Plan) -> Self {
        Self {
            resources,
            plan: plan.clone(),
            sides: ComparedSides::default(),
        }
    }

    /// The name of the plan.
    pub fn plan_name(&self) -> &str {
        &self.plan.name
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }
}

impl Manager {
    /// The plan's sandbox of a resource, if it can be read.
    fn sandbox_of(&self, plan: &Plan, resource: &Resource) -> Result<(SandboxView, ResourcePath)> {
        let (resource, prefix) = self.boundary(resource)?;
        let views = self.live_sandboxes(plan)?;
        let known = views
            .iter()
            .map(|view| view.resource.name.clone())
            .collect();
        let Some(view) = views
            .into_iter()
            .find(|view| view.resource.id == resource.id)
        else {
            return Err(Error::NoSandbox {
                plan: plan.name.clone(),
                resource: resource.name.clone(),
                known,
            });
        };
        check_readable(plan, [&view])?;
        Ok((view, prefix))
    }

    /// The resource of the plan that a person means: by its name, its path, or the last part of
    /// its path, if only one has it. What the plan does not have is looked for among all.
    pub fn resource_in(&self, plan: &Plan, typed: &OsStr, directory: &Path) -> Result<Resource> {
        if plan.state != PlanState::Open {
            return Err(self.not_open(plan, Some(plan.state))?);
        }
        let resources: Vec<Resource> = self
            .live_sandboxes(plan)?
            .into_iter()
            .map(|view| view.resource)
            .collect();
        let path = state_dir::known_as(&directory.join(typed));
        let named = |one: &&Resource| typed == one.name.as_str();
        let located = |one: &&Resource| path.as_deref() == Some(one.at.as_path());
        let mut called = resources
            .iter()
            .filter(|one| one.at.as_path().file_name() == Some(typed));
        let only = match (called.next(), called.next()) {
            (Some(one), None) => Some(one),
            _ => None,
        };
        let found = resources
            .iter()
            .find(named)
            .or_else(|| resources.iter().find(located));
        match found.or(only) {
            Some(resource) => Ok(resource.clone()),
            None => match (
                self.find_resource(typed, directory),
                self.declared(typed, directory),
            ) {
                // The configuration knows it, and no process used it yet.
                (Err(Error::UnknownResource { .. }), Some(declared)) => Err(Error::NoSandbox {
                    plan: plan.name.clone(),
                    resource: declared.name.clone(),
                    known: resources.into_iter().map(|one| one.name).collect(),
                }),
                (answer, _) => answer,
            },
        }
    }

    /// The names of the resources that live in the sandboxes of a plan, those that share one included.
    pub fn resource_names(&self, plan: &Plan) -> Result<Vec<String>> {
        let views = self.live_sandboxes(plan)?;
        let mut names = Vec::new();
        for resource in self.store.resources()? {
            // One whose parent is gone lives nowhere.
            let Ok((boundary, _)) = self.boundary(&resource) else {
                continue;
            };
            let lives = |view: &SandboxView| view.resource.id == boundary.id;
            if views.iter().any(lives) {
                names.push(resource.name);
            }
        }
        Ok(names)
    }

    /// Moves sandboxes to `active`, because something may be written in them from now on: all of them, or none.
    pub(super) fn activate<'a>(
        &self,
        views: impl IntoIterator<Item = &'a SandboxView>,
    ) -> Result<()> {
        let mut states = Vec::new();
        for view in views {
            let next = view.sandbox.state.go(SandboxState::Active);
            let next = next.map_err(|_| Error::NotUsable {
                resource: view.resource.name.clone(),
                state: view.sandbox.state,
            })?;
            if next != view.sandbox.state {
                states.push((view.sandbox.id, next));
            }
        }
        Ok(self.store.set_sandbox_states(&states)?)
    }

    /// Opens a file of a sandbox. Reading changes nothing, not even the sandbox's state.
    pub fn read(
        &self,
        plan: &Plan,
        resource: &Resource,
        path: &ResourcePath,
    ) -> Result<Box<dyn Read + Send>> {
        let path = &resource.inner(path);
        let scope = Scope::at(&resource.name, path.clone());
        self.permit(Action::Read, Some(plan), scope)?;
        check_part(resource, path)?;
        let _lock = self.begin_call(plan, true)?;
        let (view, prefix) = self.sandbox_of(plan, resource)?;
        let sandbox = self.open_sandbox(&view, Session::Shared)?;
        Ok(sandbox.read(&below(&prefix, path))?)
    }

    /// Puts a file into a sandbox.
    ///
    /// The content is taken in before the plan is locked: its source may be slow, may never end,
    /// or may itself be waiting for the plan.
    pub fn write(
        &self,
        plan: &Plan,
        resource: &Resource,
        path: &ResourcePath,
        content: &mut dyn Read,
    ) -> Result<Change> {
        let path = &resource.inner(path);
        let scope = Scope::at(&resource.name, path.clone());
        self.permit(Action::Write, Some(plan), scope)?;
        check_part(resource, path)?;
        let unreadable = |source| StrategyError::Input {
            path: path.clone(),
            source,
        };
        let mut content = spool(content, &self.home)?.map_err(unreadable)?;
        let _lock = self.begin_call(plan, false)?;
        let (view, prefix) = self.sandbox_of(plan, resource)?;
        let path = &below(&prefix, path);
        let target = format!("{}:{path}", resource.name);
        self.permit_release(plan, &view, Some(path))?;
        let about = OperationSubject::one("write", plan, &target, resource);
        self.record_about(about, |touched| {
            touched.path(&resource.name, path);
            self.activate([&view])?;
            let (session, _share) = self.live_session(plan, &view)?.unzip();
            let sandbox = self.open_sandbox(&view, session.unwrap_or(Session::Shared))?;
            let change = sandbox.write(path, &mut content)?;
            // What is written stands: that a merge has nothing to begin from later is said then.
            if let Err(error) = sandbox.keep_bases(slice::from_ref(&change)) {
                self.notice_no_bases(&error.into());
            }
            Ok(change)
        })
    }

    fn notice_no_bases(&self, error: &Error) {
        let why = chain(error);
        self.notice(format!(
            "what `--on-conflict merge` begins from could not be kept: {why}"
        ));
    }

    /// Runs one statement in a sandbox that is a database. Who may write in it may change it, who may read all of it may
    /// only look.
    pub fn query(&self, plan: &Plan, resource: &Resource, statement: &str) -> Result<QueryResult> {
        let all = || Scope::Resource(resource.name.clone());
        if !self.may(Action::Write, plan, all())? {
            self.permit(Action::Read, Some(plan), all())?;
            let _lock = self.begin_call(plan, true)?;
            let (view, _) = self.sandbox_of(plan, resource)?;
            let sandbox = self.open_sandbox(&view, Session::Shared)?;
            return Ok(sandbox.query(statement, true)?);
        }
        let _lock = self.begin_call(plan, false)?;
        let (view, _) = self.sandbox_of(plan, resource)?;
        self.permit_release(plan, &view, None)?;
        let about = OperationSubject::one("sql", plan, &resource.name, resource);
        self.record_about(about, |_| {
            self.activate([&view])?;
            let (session, _share) = self.live_session(plan, &view)?.unzip();
            let sandbox = self.open_sandbox(&view, session.unwrap_or(Session::Shared))?;
            Ok(sandbox.query(statement, false)?)
        })
    }

    /// How native tools reach a sandbox: the path of its directory, or of its file, or of what is at `path` in it. They may
    /// write, so it becomes active.
    pub fn access(
        &self,
        plan: &Plan,
        resource: &Resource,
        path: Option<&ResourcePath>,
    ) -> Result<Access> {
        if let Some(path) = path {
            check_part(resource, &resource.inner(path))?;
        }
        let scope = Scope::Resource(resource.name.clone());
        self.permit(Action::Write, Some(plan), scope)?;
        let _lock = self.begin_call(plan, false)?;
        let (view, prefix) = self.sandbox_of(plan, resource)?;
        let strategy = self.registry_of(plan.id)?.of(&view.sandbox.reference)?;
        self.permit_release(plan, &view, None)?;
        let about = OperationSubject::one("path", plan, &resource.name, resource);
        self.record_about(about, |_| {
            let (session, _share) = self.live_session(plan, &view)?.unzip();
            let sandbox = self.open_sandbox(&view, session.unwrap_or(Session::Shared))?;
            let mut access = sandbox.access()?;
            if access.cwd.is_none() && access.url.is_none() {
                let why = "its layers become one directory only inside a private mount";
                return Err(unsupported(strategy.name(), "give native tools a path", why).into());
            }
            self.activate([&view])?;
            if let Some(cwd) = &mut access.cwd {
                let within = match path {
                    Some(path) => below(&prefix, &resource.inner(path)),
                    None => whole(&prefix, resource),
                };
                *cwd = Location::from(native(cwd, &within));
            }
            Ok(access)
        })
    }

    /// Where native tools would work in a sandbox; `None` where it gives no path, or not now.
    pub fn path_of(&self, view: &SandboxView) -> Result<Option<PathBuf>> {
        let reference = &view.sandbox.reference;
        // One that was not finished may not even have a strategy; one that stayed after its commit can
        // be looked at.
        let stayed = view.sandbox.state == SandboxState::Committed;
        if !view.sandbox.state.is_readable() && !stayed {
            return Ok(None);
        }
        let registry = self.registry_for(reference)?;
        // No program is started only to show where it keeps something.
        let named = registry.named(&reference.strategy_name)?;
        if !named.is_started() {
            return Ok(None);
        }
        let strategy = registry.of(reference)?;
        if strategy.capabilities().exposes != Exposes::Path {
            return Ok(None);
        }
        // One whose original or area is gone has no path either; using it will say why.
        let only = whole(&ResourcePath::root(), &view.resource);
        let opened = strategy.open(reference, Session::Shared, &[]);
        let access = opened.and_then(|sandbox| sandbox.access()).ok();
        let cwd = access.and_then(|access| access.cwd);
        Ok(cwd.map(|cwd| native(&cwd, &only)))
    }

    /// What a person should know of a sandbox now.
    pub fn remarks(&self, view: &SandboxView) -> Vec<String> {
        let reference = &view.sandbox.reference;
        let Ok(registry) = self.registry_for(reference) else {
            return Vec::new();
        };
        // No program is started only to ask it that (rule X3).
        let started = registry.named(&reference.strategy_name);
        match started.is_ok_and(Registration::is_started) && view.sandbox.state.is_readable() {
            true => {
                (registry.of(reference)).map_or_else(|_| Vec::new(), |one| one.remarks(reference))
            }
            false => Vec::new(),
        }
    }

    /// What every sandbox of the plan changed, or that of one resource.
    pub fn diff(&self, plan: &Plan, only: Option<&Resource>) -> Result<PlanDiff> {
        self.denied(Action::Diff, Some(plan), self.compare(plan, only, false))
    }

    /// The changes that git ignores by the rules of the original at `at`; none where that is no checkout.
    pub fn ignored_by_git(&self, at: &Location, diff: &DiffView) -> CountedChanges {
        let (dirs, files) = counted::paths_of(diff);
        match dirs.is_empty() && files.is_empty() {
            true => CountedChanges::default(),
            false => CountedChanges::of(diff, &ignored_paths(at.as_path(), &dirs, &files)),
        }
    }

    /// Takes what `diff.ignore` of the configuration names out of the changes of a sandbox, which can release a part.
    pub(super) fn leave_ignored(
        &self,
        plan: &Plan,
        view: &SandboxView,
        diff: &mut DiffView,
    ) -> Result<DiffView> {
        let ignore = self.ignore_patterns(plan)?;
        let reference = &view.sandbox.reference;
        let strategy = self.registry_of(plan.id)?.of(reference)?;
        if ignore.is_empty() || !strategy.capabilities_of(reference).partial {
            return Ok(DiffView::default());
        }
        let mut stays = is_released(&ignore, &view.resource.name, &diff.changes).into_iter();
        let all = std::mem::take(&mut diff.changes).into_iter();
        let (released, ignored) = all.partition(|_| stays.next().unwrap_or(true));
        diff.changes = released;
        let ignored = DiffView { changes: ignored };
        diff.leave_out(&ignored);
        Ok(ignored)
    }

    /// What `diff.ignore` names, as counts for a plan.
    pub(super) fn ignore_patterns(&self, plan: &Plan) -> Result<Vec<ReleasePattern>> {
        let ignore = self.settings_of(plan)?.ignore;
        // They were looked at when the configuration was read.
        let patterns = ignore.iter().map(|one| ReleasePattern::anywhere(one).ok());
        Ok(patterns.flatten().collect())
    }

    /// The same as a courtesy, which the user did not ask for: where it is denied, nothing is logged.
    pub fn quick_diff(&self, plan: &Plan) -> Result<PlanDiff> {
        self.compare(plan, None, false)
    }

    /// The same after a command: what a merge would begin from is kept with it. That it cannot be kept is no failure of the command.
    pub fn diff_after_run(&self, plan: &Plan) -> Result<PlanDiff> {
        self.compare(plan, None, true)
    }

    fn compare(&self, plan: &Plan, only: Option<&Resource>, keep: bool) -> Result<PlanDiff> {
        match only {
            Some(resource) => self.authorize_resource(Action::Diff, plan, resource)?,
            None => self.authorize_plan(Action::Diff, plan)?,
        }
        let _lock = self.begin_call(plan, true)?;
        let (views, prefix) = match only {
            Some(resource) => {
                let (view, prefix) = self.sandbox_of(plan, resource)?;
                (vec![view], whole(&prefix, resource))
            }
            None => (self.live_sandboxes(plan)?, ResourcePath::root()),
        };
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        let _originals = self.lock_originals(&resources, true)?;
        check_readable(plan, &views)?;
        let mut diffs = Vec::new();
        for view in views.clone() {
            let sandbox = self.open_sandbox(&view, Session::Shared)?;
            let mut diff = sandbox.diff(None, None)?;
            if keep && let Err(error) = sandbox.keep_bases(&diff.changes) {
                self.notice_no_bases(&error.into());
            }
            let mut ignored = self.leave_ignored(plan, &view, &mut diff)?;
            diff.changes.retain(|change| change.path.lies_in(&prefix));
            ignored
                .changes
                .retain(|change| change.path.lies_in(&prefix));
            self.authorize_changes(Action::Diff, &view, &diff)?;
            let both_sides = match diff.is_empty() {
                true => BothSides::new(),
                false => sandbox.both_sides(&diff.changes)?,
            };
            let one = ResourceDiff {
                view,
                diff,
                ignored,
                both_sides,
            };
            diffs.push(one.with_bases());
        }
        Ok(PlanDiff::new(diffs, plan))
    }

    /// The digest of what was found, for which contents are read.
    pub fn digest(&self, found: &PlanDiff) -> Result<PlanDigest> {
        let _lock = self.begin_call(&found.plan, true)?;
        let mut all = PlanDigest::default();
        for ResourceDiff { view, diff, .. } in &found.resources {
            check_readable(&found.plan, [view])?;
            let sandbox = self.open_sandbox(view, Session::Shared)?;
            all.add(
                &view.resource.name,
                &diff.changes,
                sandbox.digests(&diff.changes)?,
            );
        }
        Ok(all)
    }

    /// Opens a sandbox.
    pub(super) fn open_sandbox(
        &self,
        view: &SandboxView,
        session: Session,
    ) -> Result<Box<dyn Sandbox>> {
        let reference = &view.sandbox.reference;
        let strategy = self.registry_of(reference.plan_id)?.of(reference)?;
        let parts = standing_parts(&self.store, &view.sandbox)?;
        Ok(strategy.open(reference, session, &parts)?)
    }

    /// The same as [`Self::contents`], in a box.
    pub fn contents_of<'a>(
        &'a self,
        of: &'a PlanDiff,
        view: &'a SandboxView,
    ) -> Result<Box<dyn VersionContents + 'a>> {
        Ok(Box::new(self.contents(of, view)?))
    }

    /// Where the bytes of one sandbox of a diff come from. No other process changes the plan while this lives.
    pub fn contents<'a>(
        &'a self,
        of: &'a PlanDiff,
        view: &'a SandboxView,
    ) -> Result<impl VersionContents + 'a> {
        let lock = self.begin_call(&of.plan, true)?;
        check_readable(&of.plan, [view])?;
        Ok(BothVersions {
            manager: self,
            view,
            original: view.resource.root().map(Dir::open).transpose()?,
            both_sides: of
                .resources
                .iter()
                .find(|one| one.view.sandbox.id == view.sandbox.id)
                .map(|one| &one.both_sides),
            sides: of.sides,
            sandbox: self.open_sandbox(view, Session::Shared)?,
            _lock: lock,
        })
    }
}

/// Refuses another path of a resource that is one file.
fn check_part(resource: &Resource, path: &ResourcePath) -> Result<()> {
    match resource.only() {
        Some(only) if only != *path => Err(Error::from(StrategyError::Outside {
            path: path.clone(),
            only,
        })),
        _ => Ok(()),
    }
}

/// All of a resource, in the sandbox where its paths begin at `prefix`.
fn whole(prefix: &ResourcePath, resource: &Resource) -> ResourcePath {
    below(prefix, &resource.inner(&ResourcePath::root()))
}

/// A path of a resource in the sandbox that it shares.
fn below(prefix: &ResourcePath, path: &ResourcePath) -> ResourcePath {
    path.parts()
        .fold(prefix.clone(), |whole, part| whole.join(part))
}

/// What the original of a resource has at a path now.
pub(super) fn facts(resource: &Resource, path: &ResourcePath) -> Result<Option<EntryInfo>> {
    let Some(root) = resource.root() else {
        return Ok(None);
    };
    let original = Dir::open(root)?;
    let (dir, name) = match original.parent(path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(None),
        found => found?,
    };
    let now = dir.stat(name)?;
    Ok(now.map(|now| dir.facts(name, &now)).transpose()?)
}

/// Refuses sandboxes that cannot be read and compared.
pub(super) fn check_readable<'a>(
    plan: &Plan,
    views: impl IntoIterator<Item = &'a SandboxView>,
) -> Result<()> {
    let one = |view: &SandboxView| match view.sandbox.state {
        SandboxState::Errored => Err(Error::HalfRemoved {
            plan: plan.name.clone(),
        }),
        SandboxState::Pending => Err(Error::Unfinished {
            plan: plan.name.clone(),
            resource: view.resource.name.clone(),
        }),
        state if state.is_readable() => Ok(()),
        state => Err(Error::NotUsable {
            resource: view.resource.name.clone(),
            state,
        }),
    };
    views.into_iter().try_for_each(one)
}

/// A path of a sandbox, from the directory where native tools work.
fn native(cwd: &Location, within: &ResourcePath) -> PathBuf {
    let mut path = cwd.as_path().to_owned();
    path.extend(within.parts().map(OsStr::from_bytes));
    path
}

struct BothVersions<'a> {
    manager: &'a Manager,
    view: &'a SandboxView,
    /// Where the original's files are; `None` where it has none.
    original: Option<Dir>,
    both_sides: Option<&'a BothSides>,
    sides: ComparedSides,
    sandbox: Box<dyn Sandbox>,
    _lock: Lock,
}

impl BothVersions<'_> {
    fn permit(&self, path: &ResourcePath) -> Result<()> {
        let scope = Scope::at(&self.view.resource.name, path.clone());
        self.manager
            .permit_in(Action::Diff, self.view.sandbox.reference.plan_id, scope)
    }

    fn now(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        let Some(original) = &self.original else {
            return Err(StrategyError::NotThere { path: path.clone() }.into());
        };
        let (file, _) = original.file_path(path)?;
        Ok(Box::new(file))
    }
}

impl VersionContents for BothVersions<'_> {
    fn original(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.permit(path)?;
        let base = self.both_sides.and_then(|all| all.get(path)?.clone());
        match base.filter(|_| self.sides != ComparedSides::OriginalToSandbox) {
            Some(base) => Ok(Box::new(Cursor::new(base))),
            None => self.now(path),
        }
    }

    fn sandbox(&self, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
        self.permit(path)?;
        match self.sides {
            ComparedSides::BaseToOriginal => self.now(path),
            _ => Ok(self.sandbox.read(path)?),
        }
    }

    fn carried(&self, change: &Change) -> Result<CarriedContents> {
        let mut paths = change.carried().iter().map(|one| &one.change.path);
        paths.try_for_each(|path| self.permit(path))?;
        Ok(self.sandbox.carried(change)?)
    }
}
