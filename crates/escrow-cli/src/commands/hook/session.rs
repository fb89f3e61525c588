//! The plan of a session: found by its name, which is made of the session's id, and made where there is none.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use escrow::error::Error;
use escrow::manager::{PlanView, Project, SandboxView};
use escrow::model::text::Location;
use escrow::model::{PlanState, SandboxState};
use escrow::{Observer, Plan, Resource};

use super::super::run_plan;
use super::Call;
use super::paths::{Root, Roots};
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// The strategy of a session's directories: file tools need a path, which an overlay does not have.
const STRATEGY: &str = "copy_on_write";

/// How many characters of a session's id stand in the name of its plan: the last group of a UUID, since those that
/// begin with the time have the same beginning for a minute.
const ID: usize = 12;

/// The name of every plan that is made for a worktree begins so.
pub(super) const WORKTREE: &str = "worktree-";

/// How long a plan of hooks without changes must have been unused before gc removes it.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A plan and where its sandboxes lie.
pub(super) struct Session {
    pub(super) plan: Plan,
    pub(super) roots: Roots,
}

impl Session {
    /// The plan of the session, made if there is none.
    pub(super) fn begin(call: &Call<'_>) -> Result<Self, Failure> {
        let cwd = call.input.cwd()?;
        let view = match find(call)? {
            Some(view) if is_made(&view) => {
                activate(call.context, &view)?;
                view
            }
            // In the sandbox of a plan that was committed or removed there is nothing to begin from.
            None if may_be_sandbox(&cwd) => {
                let cwd = Location::from(cwd);
                let over = format!("'{cwd}' belongs to a sandbox whose plan is over");
                return Err(Failure::failed(over).hint("start the agent in the project"));
            }
            _ => make(call.context, (&name(call)?, false), &cwd, call.ui)?,
        };
        Self::of(call.context, view)
    }

    /// The plan of the session, if there is one.
    pub(super) fn found(call: &Call<'_>) -> Result<Option<Self>, Failure> {
        let view = find(call)?;
        view.map(|view| Self::of(call.context, view)).transpose()
    }

    pub(super) fn of(context: &Context, view: PlanView) -> Result<Self, Failure> {
        let mut roots = Vec::new();
        for one in &view.sandboxes {
            let Some(original) = one.resource.path() else {
                continue;
            };
            roots.push(Root {
                name: one.resource.name.clone(),
                original: original.to_owned(),
                sandbox: context.manager.path_of(one)?,
            });
        }
        Ok(Self {
            plan: view.plan,
            roots: Roots::new(roots),
        })
    }
}

/// Returns whether every sandbox of a plan is finished: another hook may still be making them.
fn is_made(view: &PlanView) -> bool {
    let made = |one: &SandboxView| one.sandbox.state != SandboxState::Pending;
    !view.sandboxes.is_empty() && view.sandboxes.iter().all(made)
}

/// Makes the sandboxes of a plan count as used: file tools write without a command of Escrow's, also after a rollback.
fn activate(context: &Context, view: &PlanView) -> Result<(), Failure> {
    let idle = |one: &&SandboxView| one.sandbox.state != SandboxState::Active;
    for one in view.sandboxes.iter().filter(idle) {
        match until_free(|| context.manager.access(&view.plan, &one.resource, None)) {
            Ok(_) => {}
            // A sandbox without a path is used by commands alone, which mark it themselves.
            Err(error) if error.kind() == escrow::Kind::Unsupported => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The open plan in whose sandbox the agent works, as in a worktree, else the one that has the session's name.
fn find(call: &Call<'_>) -> Result<Option<PlanView>, Failure> {
    let cwd = call.input.cwd()?;
    if let Some(view) = around(call.context, &cwd)? {
        return Ok(Some(view));
    }
    let plan = open_plan(call.context, &name(call)?)?;
    Ok(plan
        .map(|plan| call.context.manager.view(plan))
        .transpose()?)
}

/// Returns whether a path looks like one of a sandbox: areas lie in the state, or beside the original in a hidden directory.
pub(super) fn may_be_sandbox(directory: &Path) -> bool {
    let begins = |part: &OsStr| {
        let name = part.as_encoded_bytes();
        let is_id = name.starts_with(b"sbx_") && name.len() == 30;
        is_id || name.starts_with(b".escrow-")
    };
    directory.iter().any(begins)
}

/// The open plan in whose sandbox a directory lies.
pub(super) fn around(context: &Context, directory: &Path) -> Result<Option<PlanView>, Failure> {
    if !may_be_sandbox(directory) {
        return Ok(None);
    }
    let holds = |one: &SandboxView| directory.starts_with(one.sandbox.area.as_path());
    let mut all = context.manager.plans()?.into_iter();
    Ok(all.find(|view| view.plan.state == PlanState::Open && view.sandboxes.iter().any(holds)))
}

/// The name of the session's first plan.
fn name(call: &Call<'_>) -> Result<String, Failure> {
    let id = tidy(call.input.session()?);
    if id.is_empty() {
        return Err(Failure::failed("the session_id holds no letter or digit"));
    }
    let from = id.len().saturating_sub(ID);
    Ok(format!("{}-{}", call.client.name(), &id[from..]))
}

/// The letters and digits of a text.
fn tidy(text: &str) -> String {
    let plain = text.chars().filter(char::is_ascii_alphanumeric);
    plain.collect::<String>().to_lowercase()
}

/// The open plan of a session: `NAME`, or `NAME-2` and so on where earlier ones were committed or rolled back.
fn open_plan(context: &Context, name: &str) -> Result<Option<Plan>, Failure> {
    match next_plan(context, name, None)? {
        (_, Some(plan)) => Ok(Some(plan)),
        (_, None) => Ok(None),
    }
}

/// The first of these names that no finished plan has, nor one of another project than `root`; and the open plan of that name.
fn next_plan(
    context: &Context,
    name: &str,
    root: Option<&Path>,
) -> Result<(String, Option<Plan>), Failure> {
    let is_here = |plan: &Plan| root.is_none_or(|root| plan.directory.as_path() == root);
    let mut number = 1;
    loop {
        let name = match number {
            1 => name.to_owned(),
            number => format!("{name}-{number}"),
        };
        match context
            .manager
            .resolve_plan(Some(&name), &context.directory)
        {
            Ok(plan) if plan.name == name => match plan.state {
                PlanState::Open if is_here(&plan) => return Ok((name, Some(plan))),
                // Another hook of the session is making it, or crashed meanwhile.
                PlanState::Creating => {
                    std::thread::sleep(Duration::from_millis(50));
                    context.manager.recover()?;
                }
                _ => number += 1,
            },
            Ok(_) | Err(Error::UnknownPlan { .. } | Error::AmbiguousPlan { .. }) => {
                return Ok((name, None));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes a plan of the project around a directory, or completes the one that another hook of the session has begun. The plan is
/// recorded before its sandboxes are made, and each of these is made once, under the plan's lock: so parallel calls get one plan.
/// With `of_project` a plan of that name of another project is another one.
pub(super) fn make(
    context: &Context,
    (name, of_project): (&str, bool),
    directory: &Path,
    ui: &Ui,
) -> Result<PlanView, Failure> {
    let manager = &context.manager;
    let project = manager.project(directory, false)?;
    let progress = ui.progress("copying");
    let plan = loop {
        let root = of_project.then_some(project.root.as_path());
        let (name, plan) = next_plan(context, name, root)?;
        if let Some(plan) = plan {
            break plan;
        }
        match manager.create_plan(Some(&name), &project.root, &[], None, &progress) {
            Ok(view) => break view.plan,
            Err(Error::PlanExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let made = make_sandboxes(context, &plan, &project, &progress);
    drop(progress);
    let view = manager.view(plan)?;
    let made = made.and_then(|()| activate(context, &view));
    match made {
        Ok(()) => Ok(view),
        Err(failure) => {
            // A plan of nothing would stay. Where it cannot go either, the first failure is the one to say.
            if view.sandboxes.is_empty()
                && let Err(error) = manager.take_away_unused(&view.plan)
            {
                ui.notice(&escrow::error::chain(&error));
            }
            Err(failure)
        }
    }
}

fn make_sandboxes(
    context: &Context,
    plan: &Plan,
    project: &Project,
    progress: &dyn Observer,
) -> Result<(), Failure> {
    let manager = &context.manager;
    for typed in &project.resources {
        let resource = manager
            .take_resource(typed, &project.root)
            .map_err(no_project)?;
        until_free(|| manager.create_sandbox(plan, &resource, strategy_of(&resource), progress))
            .map_err(no_project)?;
    }
    Ok(())
}

/// The reason for which a directory cannot be sandboxed, with what to do.
fn no_project(error: Error) -> Failure {
    match error {
        Error::Forbidden { at, why } => Failure::failed(format!("'{at}' is no project: {why}"))
            .hint("start the agent in a project"),
        error => error.into(),
    }
}

/// The strategy of a directory without one of its own; other kinds keep their default.
fn strategy_of(resource: &Resource) -> Option<&'static str> {
    let is_free = resource.strategy == "auto";
    let directory = resource.path().filter(|path| is_free && path.is_dir());
    directory.map(|_| STRATEGY)
}

/// Waits for a plan that another hook works on; the time limit of the answer ends this.
fn until_free<T>(mut work: impl FnMut() -> escrow::Result<T>) -> escrow::Result<T> {
    loop {
        match work() {
            Err(Error::Busy { .. }) => std::thread::sleep(Duration::from_millis(100)),
            done => return done,
        }
    }
}

/// Removes a plan in which nothing was changed and no checkpoint was taken on purpose; returns whether it did.
pub(super) fn drop_unused(context: &Context, plan: &Plan) -> Result<bool, Failure> {
    let kept = context.manager.checkpoints(plan)?;
    match kept.iter().any(|one| one.label.is_some()) {
        true => Ok(false),
        false => Ok(context.manager.take_away_unused(plan)?),
    }
}

/// Removes plans that hooks made and whose last hook never came: nothing was changed in them, no operation used them for `age`
/// (a day if left out), and no process works in them. Returns their names; with `dry_run` they stay.
pub(crate) fn collect_abandoned(
    context: &Context,
    age: Option<Duration>,
    dry_run: bool,
) -> Result<Vec<String>, Failure> {
    let mut removed = Vec::new();
    for view in context.manager.plans()? {
        let plan = &view.plan;
        let age = age.unwrap_or(ABANDONED);
        let is_candidate = plan.state == PlanState::Open && is_of_hooks(&plan.name);
        if !is_candidate || !is_abandoned(context, &view, age)? {
            continue;
        }
        let unchanged = match dry_run {
            true => run_plan::holds_changes(context, plan)? == Some(false),
            false => drop_unused(context, plan)?,
        };
        if unchanged {
            removed.push(plan.name.clone());
        }
    }
    Ok(removed)
}

/// Returns whether hooks give plans such a name: that of a worktree, or of a session's id.
fn is_of_hooks(name: &str) -> bool {
    let Some((_, rest)) = name
        .split_once('-')
        .filter(|(client, _)| ["claude", "codex"].contains(client))
    else {
        return false;
    };
    let id = rest.split('-').next().unwrap_or_default();
    rest.starts_with(WORKTREE)
        || (id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_abandoned(context: &Context, view: &PlanView, age: Duration) -> Result<bool, Failure> {
    let mut used = view.plan.created_at;
    context.manager.each_logged(Some(&view.plan), |one| {
        used = used.max(one.operation.started_at);
        Ok(())
    })?;
    let unused = jiff::Timestamp::now().duration_since(used);
    let areas: Vec<PathBuf> = view
        .sandboxes
        .iter()
        .map(|one| one.sandbox.area.as_path().to_owned())
        .collect();
    Ok(unused.unsigned_abs() >= age && !context::works_below(&areas))
}
