//! `escrow plan`: creates, forks, lists, shows, renames, stops and deletes plans.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use escrow::Plan;
use escrow::manager::PlanView;
use escrow::model::{PlanState, units};
use serde_json::{Value, json};

use super::cleanup::CleanupArgs;
use super::show;
use super::status::{disk_fields, disk_words};
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, count, paint};

/// Begin, list and end plans
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    verb: PlanVerb,
}

#[derive(Debug, Subcommand)]
enum PlanVerb {
    Create(PlanCreateArgs),
    /// List the plans that are open or over; with -v also those of which nothing is left
    List,
    Show(PlanShowArgs),
    Fork(PlanForkArgs),
    Rename(PlanRenameArgs),
    Stop(PlanStopArgs),
    /// Delete a plan's sandboxes with everything in them; the same as `escrow cleanup`
    Delete(CleanupArgs),
}

/// Begin a plan, with a sandbox of each resource
///
/// If one of the sandboxes cannot be made, nothing of the plan remains.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow plan create try --resource ./app --resource ./data")]
struct PlanCreateArgs {
    /// A name; made from the current directory if left out
    name: Option<String>,
    /// A resource: its name, the path of a directory, file or SQLite database, or the URL of a PostgreSQL database (postgres://…); may be
    /// given several times
    #[arg(long, short, value_name = "RESOURCE")]
    resource: Vec<OsString>,
    /// How the sandboxes are made; see `escrow doctor`
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
}

/// Show a plan and its sandboxes
#[derive(Debug, Args)]
struct PlanShowArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// Measure what it takes on disk; this looks at every file of it
    #[arg(long)]
    disk: bool,
}

/// Fork a plan: begin a new one at the state of another
///
/// Several attempts can then go on side by side, and the best be committed; the others will conflict
/// where they changed the same. Overlays share their layers, whatever their size; copies are copied.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow plan fork try second --at chk_01k9")]
struct PlanForkArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// The name of the new plan; made from the current directory if left out
    name: Option<String>,
    /// Begin at this checkpoint instead of where the plan is now
    #[arg(long, value_name = "CHECKPOINT")]
    at: Option<String>,
}

/// Give a plan another name
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow plan rename app login-form")]
struct PlanRenameArgs {
    /// Name, id or prefix
    plan: String,
    /// The new name
    name: String,
}

/// End the commands that run inside a plan
///
/// Each process is asked to end (SIGTERM); what is left after the time is killed. The sandboxes stay as they are.
#[derive(Debug, Args)]
struct PlanStopArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// How long they have to end, as in 30s
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "10s")]
    grace: Duration,
}

impl PlanArgs {
    /// `plan show` of one plan.
    pub(super) fn show(plan: String, disk: bool) -> Self {
        let plan = Some(plan);
        let verb = PlanVerb::Show(PlanShowArgs { plan, disk });
        Self { verb }
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            PlanVerb::Create(args) => args.run(context, ui),
            PlanVerb::List => list(context, ui),
            PlanVerb::Show(args) => args.run(context, ui),
            PlanVerb::Fork(args) => args.run(context, ui),
            PlanVerb::Rename(args) => args.run(context, ui),
            PlanVerb::Stop(args) => args.run(context, ui),
            PlanVerb::Delete(args) => args.run(context, ui),
        }
    }
}

impl PlanCreateArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let progress = ui.progress("copying");
        let view = context.manager.create_plan(
            self.name.as_deref(),
            &context.directory,
            &self.resource,
            self.strategy.as_deref(),
            &progress,
        )?;
        drop(progress);
        opened(context, &view, ui)
    }
}

impl PlanForkArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let at = self.at.as_deref();
        let at = at.map(|at| context.manager.resolve_checkpoint(&plan, at));
        let at = at.transpose()?;
        let (name, directory) = (self.name.as_deref(), &context.directory);
        let progress = ui.progress("copying");
        let manager = &context.manager;
        let view = manager.fork(&plan, at.as_ref(), name, directory, &progress)?;
        drop(progress);
        opened(context, &view, ui)
    }
}

impl PlanRenameArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let mut plan = context.plan(Some(&self.plan), ui)?;
        context.manager.rename_plan(&plan, &self.name)?;
        let before = std::mem::replace(&mut plan.name, self.name);
        if ui.is_json() {
            let mut document = show::plan(context, &context.manager.view(plan)?)?;
            document["before"] = json!(before);
            ui.document(document);
            return Ok(());
        }
        ui.news(&format!("plan {before} is now plan {}", plan.name));
        Ok(())
    }
}

impl PlanStopArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let progress = ui.progress("waiting for the commands inside");
        let stopped = context.manager.stop(&plan, self.grace, &progress)?;
        drop(progress);
        if ui.is_json() {
            ui.document(json!({"plan": plan.name, "stopped": stopped}));
            return Ok(());
        }
        match stopped {
            true => ui.news(&format!("plan {}: nothing runs inside any more", plan.name)),
            false => ui.news(&format!("plan {}: nothing ran inside", plan.name)),
        }
        Ok(())
    }
}

/// Describes a plan that was begun.
fn opened(context: &Context, view: &PlanView, ui: &Ui) -> Result<(), Failure> {
    if ui.is_json() {
        ui.document(show::plan(context, view)?);
        return Ok(());
    }
    ui.news(&format!(
        "plan {} is open",
        paint(Tone::Strong, &view.plan.name)
    ));
    show::sandbox_lines(context, view, ui)?;
    for one in &view.sandboxes {
        show::warnings(one, ui);
    }
    let name = &view.plan.name;
    match view.sandboxes.first() {
        None => ui.say(&format!("next: `escrow sandbox create {name} RESOURCE`")),
        Some(_) => ui.say(&format!("next: work in it, then `escrow diff {name}`")),
    }
    Ok(())
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let views = context.manager.plans()?;
    if ui.is_json() {
        let plans: Result<Vec<Value>, Failure> =
            views.iter().map(|view| show::plan(context, view)).collect();
        ui.document(json!({"plans": plans?}));
        return Ok(());
    }
    if views.is_empty() {
        ui.say("there are no plans; `escrow plan create --resource .` begins one");
        return Ok(());
    }
    let undoable = context.manager.undoable_plans()?;
    let undoable = |plan: &Plan| undoable.iter().any(|one| one.id == plan.id);
    let is_shown = |view: &&PlanView| ui.is_verbose() || view.plan.state != PlanState::CleanedUp;
    let rows: Vec<_> = views.iter().filter(is_shown).collect();
    let gone = views.len() - rows.len();
    let rows = rows.into_iter().map(|view| {
        let resources = view.sandboxes.iter().map(|one| one.resource.name.as_str());
        [
            view.plan.name.clone(),
            show::state(&view.plan, undoable(&view.plan)),
            resources.collect::<Vec<_>>().join(" "),
            show::timestamp(view.plan.created_at),
            view.plan.id.to_string(),
        ]
    });
    if gone < views.len() {
        ui.table(["NAME", "STATE", "RESOURCES", "CREATED", "ID"], rows);
    }
    if gone > 0 {
        let plans = count(gone as u64, "plan that was", "plans that were");
        ui.say(&format!(
            "{plans} cleaned up: `escrow plan list -v` lists them too"
        ));
    }
    Ok(())
}

impl PlanShowArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let view = context.manager.view(plan)?;
        let disk = match self.disk {
            true => context.manager.disks(vec![view.plan.clone()])?.pop(),
            false => None,
        };
        let disk = disk.map(|(_, disk)| disk);
        if ui.is_json() {
            let mut document = show::plan(context, &view)?;
            if disk.is_some() {
                document["disk"] = disk_fields(disk);
            }
            ui.document(document);
            return Ok(());
        }
        let plan = &view.plan;
        let undoable = context.manager.undoable_plans()?;
        ui.line(&format!(
            "plan {} is {}",
            paint(Tone::Strong, &plan.name),
            show::state(plan, undoable.iter().any(|one| one.id == plan.id))
        ));
        ui.line(&format!(
            "  {}  made {} in {}",
            plan.id,
            show::timestamp(plan.created_at),
            plan.directory
        ));
        show::sandbox_lines(context, &view, ui)?;
        if let Some(disk) = disk {
            ui.line(&format!("  on disk: {}", disk_words(disk)));
        }
        for one in &view.sandboxes {
            show::warnings(one, ui);
        }
        Ok(())
    }
}
