//! `escrow status`: shows open plans and running operations.

use clap::Args;
use escrow::Plan;
use escrow::agents::StoredAgentHome;
use escrow::manager::{DiskUsage, LeftoverKind, PlanView, StatusReport};
use escrow::model::text::Location;
use escrow::model::{PlanId, ResourcePath};
use serde_json::{Value, json};

use super::answer::Asker;
use super::plan::PlanArgs;
use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, count, paint, size};

/// Show the open plans of this directory, what is being done, and what belongs to nothing
///
/// What plans take on disk, of their own, shared with originals and for undo, is shown with `--disk` only:
/// measuring looks at every file of them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow status --disk")]
pub(crate) struct StatusArgs {
    /// Measure what plans take on disk; this looks at every file of them
    #[arg(long)]
    disk: bool,
    /// Show the open plans of all directories
    #[arg(long)]
    all: bool,
}

impl StatusArgs {
    /// The same from inside, where one plan is all there is.
    pub(super) fn asked(self, asker: &Asker<'_>) -> Result<PlanArgs, String> {
        let Self { disk, all: _ } = self;
        Ok(PlanArgs::show(asker.own_plan(None)?, disk))
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let mut status = context.manager.status()?;
        // In a directory that is gone everything is shown.
        let near = context.manager.open_plans_near(&context.directory).ok();
        let is_here = |view: &PlanView| {
            near.as_ref()
                .is_none_or(|near| near.contains(&view.plan.id))
        };
        status.plans.sort_by_key(|view| !is_here(view));
        let disks = match self.disk {
            true => Some(PlanDiskUsage::measure(context, &status)?),
            false => None,
        };
        let home = Location::from(context.manager.home());
        if ui.is_json() {
            let mut plans = Vec::new();
            for view in &status.plans {
                let mut plan = show::plan(context, view)?;
                plan["disk"] = disk_of(disks.as_ref(), &view.plan);
                plan["here"] = json!(is_here(view));
                plans.push(plan);
            }
            ui.document(document(&status, &home, plans, disks.as_ref()));
            return Ok(());
        }
        ui.verbose(&format!("state is in {home}"));
        let shown = |view: &&PlanView| self.all || is_here(view);
        match status.plans.iter().any(|view| shown(&view)) {
            true => {}
            false if status.plans.is_empty() => {
                ui.say("there are no open plans; `escrow plan create --resource .` begins one");
            }
            false => ui.say("no plan is open here"),
        }
        let mut looked_at = 0;
        for view in status.plans.iter().filter(shown) {
            ui.line(&format!(
                "plan {}  made {} in {}",
                paint(Tone::Strong, &view.plan.name),
                show::timestamp(view.plan.created_at),
                view.plan.directory,
            ));
            show::sandbox_lines(context, view, ui)?;
            // Many plans are listed at the cost of few: the newest are looked at.
            if is_here(view) && looked_at < LOOKED_AT {
                looked_at += 1;
                for (resource, paths) in moved(context, &status, &view.plan) {
                    let paths: Vec<_> = paths.iter().collect();
                    let line = show::both_sides_line(&resource, &paths, &view.plan.name);
                    line.iter().for_each(|line| ui.line(&format!("  {line}")));
                }
            }
            if let Some(disks) = &disks {
                ui.line(&format!("  on disk: {}", disk_words(disks.of(&view.plan))));
            }
        }
        show_undoable(context, ui)?;
        let elsewhere = status.plans.iter().filter(|view| !shown(view)).count();
        if elsewhere > 0 {
            let plans = count(elsewhere as u64, "open plan", "open plans");
            ui.say(&format!(
                "{plans} elsewhere: `escrow status --all` shows them"
            ));
        }
        show_running(&status, ui);
        for one in &status.unfinished {
            let word = paint(Tone::Careful, "half way:");
            let (what, plan, phase) = (one.what, &one.plan, one.phase);
            ui.line(&format!("{word} a {what} of plan {plan} is {phase}"));
            ui.say("  if its process has ended, `escrow recover` finishes it or rolls it back");
        }
        show_rest(&status, disks.as_ref(), ui);
        Ok(())
    }
}

/// Of so many plans the files are named that both sides changed.
const LOOKED_AT: usize = 3;

/// The files of a plan that both sides changed; none where that cannot be looked at now.
fn moved(
    context: &Context,
    status: &StatusReport,
    plan: &Plan,
) -> Vec<(String, Vec<ResourcePath>)> {
    // What a commit moves just now would be waited for.
    let is_busy = status.running.iter().any(|one| {
        one.alive && one.operation.action != "run" && one.operation.plan_id == Some(plan.id)
    });
    match is_busy {
        true => Vec::new(),
        false => context.manager.both_sides(plan).unwrap_or_default(),
    }
}

/// The plans of this directory that are over and can be undone, in the words of `escrow plan list`.
fn show_undoable(context: &Context, ui: &Ui) -> Result<(), Failure> {
    /// The newest; the others are in the list.
    const MOST: usize = 5;
    // In a directory that is gone there are none.
    let all = context.manager.undoable_plans_near(&context.directory);
    let all = all.unwrap_or_default();
    for plan in all.iter().take(MOST) {
        let name = paint(Tone::Strong, &plan.name);
        ui.line(&format!("plan {name}  {}", show::state(plan, true)));
    }
    if all.len() > MOST {
        let more = all.len() - MOST;
        ui.say(&format!(
            "{more} more can be undone: `escrow plan list` shows them"
        ));
    }
    Ok(())
}

/// Everything for programs, with the open plans as they are given.
fn document(
    status: &StatusReport,
    home: &Location,
    plans: Vec<Value>,
    disks: Option<&PlanDiskUsage>,
) -> Value {
    let finished = status.over.iter().map(|plan| {
        json!({
            "id": plan.id,
            "name": plan.name,
            "state": plan.state.as_str(),
            "disk": disk_of(disks, plan),
        })
    });
    let orphans = status.orphans.iter().map(|one| {
        let path = show::location(&one.path);
        json!({"kind": one.kind.as_str(), "plan": one.plan, "path": path})
    });
    let running = status.running.iter().map(|one| {
        json!({
            "action": one.operation.action,
            "plan_id": one.operation.plan_id,
            "plan": one.plan,
            "target": one.operation.target,
            "principal": one.operation.principal,
            "pid": one.operation.owner.pid,
            "since": one.operation.started_at.to_string(),
            "state": if one.alive { "running" } else { "interrupted" },
        })
    });
    let unfinished = status.unfinished.iter().map(
        |one| json!({"plan": one.plan, "what": one.what.as_str(), "phase": one.phase.as_str()}),
    );
    json!({
        "home": show::location(home),
        "plans": plans,
        "operations": running.collect::<Value>(),
        "unfinished": unfinished.collect::<Value>(),
        "finished": finished.collect::<Value>(),
        "orphans": orphans.collect::<Value>(),
        "caches": disks.map(|disks| disks.caches).map(|(count, bytes)| json!({"count": count, "bytes": bytes})),
        "agents": disks.map(|disks| disks.agents.iter().map(|(one, bytes)| json!({
            "name": one.name,
            "path": show::location(&Location::from(one.path.as_path())),
            "bytes": bytes,
            "used": one.used_at().map(|used| used.to_string()),
        })).collect::<Vec<_>>()),
        "disk": disk_fields(disks.map(|disks| disks.total)),
    })
}

/// What is being done, and what was interrupted.
fn show_running(status: &StatusReport, ui: &Ui) {
    for one in &status.running {
        let operation = &one.operation;
        let (action, target) = (&operation.action, &operation.target);
        let plan = one.plan.as_ref().filter(|plan| *plan != target);
        let plan = plan.map_or_else(String::new, |plan| format!(" in plan {plan}"));
        let what = format!(
            "{action} of {target}{plan} by process {}",
            operation.owner.pid
        );
        match one.alive {
            true => ui.line(&format!("running: {what}")),
            false => {
                ui.line(&format!("{} {what}", paint(Tone::Careful, "interrupted:")));
                match &one.plan {
                    Some(_) if !status.unfinished.is_empty() => {}
                    Some(plan) => ui.say(&format!(
                        "  run it again to finish it; `escrow cleanup {plan}` deletes the plan"
                    )),
                    None => ui.say("  it belongs to no open plan; the next command that changes something marks it as interrupted"),
                }
            }
        }
    }
}

/// What is left of plans that are over, and what belongs to nothing.
fn show_rest(status: &StatusReport, disks: Option<&PlanDiskUsage>, ui: &Ui) {
    for plan in &status.over {
        let name = paint(Tone::Strong, &plan.name);
        match disks {
            Some(disks) => ui.line(&format!(
                "plan {name}  {}, on disk: {}",
                show::state(plan, false),
                disk_words(disks.of(plan))
            )),
            None => ui.verbose(&format!("plan {name}  {}", show::state(plan, false))),
        }
    }
    if let Some(disks) = disks {
        ui.line(&format!("on disk in all: {}", disk_words(disks.total)));
        let (number, bytes) = disks.caches;
        if number > 0 {
            let caches = count(number as u64, "cache of a tool", "caches of tools");
            ui.line(&format!("{caches}: {}", size(bytes)));
        }
        for (one, bytes) in &disks.agents {
            let used = one.used_at().map_or_else(String::new, |used| {
                format!(", last used {}", used.strftime("%Y-%m-%d"))
            });
            ui.line(&format!("sessions of {}: {}{used}", one.name, size(*bytes)));
        }
    }
    for one in &status.orphans {
        let word = match one.kind {
            LeftoverKind::Aside => "set aside:",
            LeftoverKind::Unknown => "unknown:",
            _ => "orphan:",
        };
        ui.line(&format!("{} {}", paint(Tone::Careful, word), one.path));
    }
    if !status.orphans.is_empty() {
        ui.say("  `escrow gc --dry-run` says what of this would go");
    }
    match (disks, status.over.len() as u64) {
        (Some(_), _) => {}
        (None, 0) if status.plans.is_empty() => {}
        (None, 0) => ui.say("`escrow status --disk` measures what plans take on disk"),
        (None, over) => {
            let plans = count(over, "plan that is", "plans that are");
            ui.say(&format!(
                "{plans} over may keep something on disk: `escrow status --disk` measures it, `escrow gc` removes what can no longer be undone"
            ));
        }
    }
}

/// What each plan takes on disk.
struct PlanDiskUsage {
    plans: Vec<(PlanId, DiskUsage)>,
    total: DiskUsage,
    /// How many caches of tools there are, and the bytes that they take.
    caches: (usize, u64),
    /// The agent homes, and the bytes that each takes.
    agents: Vec<(StoredAgentHome, u64)>,
}

impl PlanDiskUsage {
    fn measure(context: &Context, status: &StatusReport) -> Result<Self, Failure> {
        let open = status.plans.iter().map(|view| &view.plan);
        let all = open.chain(&status.over).cloned().collect();
        let plans = context.manager.disks(all)?;
        let mut total = DiskUsage::default();
        for (_, disk) in &plans {
            total += *disk;
        }
        Ok(Self {
            plans,
            total,
            caches: context.manager.caches_disk()?,
            agents: context.manager.agent_homes()?,
        })
    }

    fn of(&self, plan: &Plan) -> DiskUsage {
        let found = self.plans.iter().find(|(id, _)| *id == plan.id);
        found.map_or_else(DiskUsage::default, |(_, disk)| *disk)
    }
}

/// What a plan takes on disk, if that was measured.
fn disk_of(disks: Option<&PlanDiskUsage>, plan: &Plan) -> Value {
    disk_fields(disks.map(|disks| disks.of(plan)))
}

pub(super) fn disk_fields(disk: Option<DiskUsage>) -> Value {
    let fields = |disk: DiskUsage| {
        json!({
            "private": disk.private,
            "shared": disk.shared,
            "undo": disk.undo,
            "total": disk.total(),
            "unread": disk.unread,
        })
    };
    disk.map_or(Value::Null, fields)
}

pub(super) fn disk_words(disk: DiskUsage) -> String {
    let mut words = format!(
        "{} of its own, {} shared, {} for undo",
        size(disk.private),
        size(disk.shared),
        size(disk.undo)
    );
    if disk.unread > 0 {
        let unread = count(disk.unread, "directory", "directories");
        words.push_str(&format!("; {unread} could not be read"));
    }
    words
}
