//! `escrow undo`: takes a commit or a rollback back; the plan is open again.

use clap::Args;
use escrow::Plan;
use escrow::commit::{UndoReport, UndoRequest};
use escrow::policy::select::ReleaseSelection;
use serde_json::{Value, json};

use super::commit::{OnConflictArg, patterns};
use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Undo a plan's last commit, or its rollback; the plan is open again with its changes
///
/// Every original is as before the commit, all or none; `escrow commit` commits the changes again, `escrow rollback` discards
/// them. What was changed since in files that git ignores, and what others put into directories that the commit made, stays and
/// is named. Where anything else that the commit brought was changed since, nothing is undone, and the paths are named:
/// `--on-conflict` says what becomes of them. What was committed in a PostgreSQL transaction cannot be undone:
/// `escrow commit` says so before it asks, and with `--dry-run`.
///
/// Of several commits and rollbacks of one plan the newest is taken back; again, the one before it. With `--only` and
/// `--exclude` a part of a commit is taken back, and the rest can be undone later.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow undo try\n  escrow undo try --on-conflict merge\n  escrow undo try --only 'src/**' --dry-run"
)]
pub(crate) struct UndoArgs {
    /// Name, id or beginning of the id; the plan of this directory that was committed or rolled back last if left out
    plan: Option<String>,
    /// Which version counts where the original was changed since the commit: `sandbox` the one from before the commit,
    /// `original` the one that is there now, `merge` both, in text files of which they changed different lines
    #[arg(long, value_enum, value_name = "WHICH", default_value = "abort")]
    on_conflict: OnConflictArg,
    /// Undo only what this covers; can be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// But nothing that this covers; can be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl UndoArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.committed_plan(self.plan.as_deref(), ui)?;
        let terms = self.on_conflict.terms();
        let request = UndoRequest {
            on_conflict: terms.on_conflict,
            merge: terms.merge,
            selection: ReleaseSelection {
                only: patterns(&self.only)?,
                exclude: patterns(&self.exclude)?,
                ..ReleaseSelection::default()
            },
            dry_run: self.dry_run,
        };
        for name in context.manager.not_kept(&plan)? {
            ui.notice(&format!(
                "the plan will not hold the changes of {name} again: its strategy keeps none beside the sandbox"
            ));
        }
        let question = format!("Undo the last commit or rollback of plan {}?", plan.name);
        if !self.dry_run && !ui.confirm(&question) {
            return Err(Failure::failed("nothing was undone"));
        }
        let progress = ui.progress("undoing");
        let undone = context.manager.undo_as(&plan, &request, &progress);
        let undone = undone.map_err(|error| Failure::from(error).about("success"))?;
        drop(progress);
        if ui.is_json() {
            ui.document(document(&plan, &undone, self.dry_run));
            return Ok(());
        }
        show::kept_lines(&undone.kept, &undone.left, ui);
        for (resource, path, why) in &undone.stays {
            ui.say(&format!("stays: {resource}:{path} ({why})"));
        }
        if self.dry_run {
            let resources = undone.resources.join(", ");
            ui.news(&format!("plan {}: would undo: {resources}", plan.name));
            ui.say("nothing was changed");
            return Ok(());
        }
        say(&plan, &undone, ui);
        Ok(())
    }
}

fn document(plan: &Plan, undone: &UndoReport, dry_run: bool) -> Value {
    let stays: Vec<Value> = undone
        .stays
        .iter()
        .map(|(resource, path, why)| json!({"resource": resource, "path": path, "why": why}))
        .collect();
    json!({
        "success": true,
        "plan": plan.name,
        "dry_run": dry_run,
        "resources": undone.resources,
        "kept": show::kept(&undone.kept),
        "stays": stays,
        "left": undone.left,
        "standing": undone.standing,
        "open": matches!(undone.reopened, Some(Ok(()))),
        "apart": undone.apart,
        "lost": undone.lost,
    })
}

fn say(plan: &Plan, undone: &UndoReport, ui: &Ui) {
    let name = &plan.name;
    let what = match undone.part {
        true => "the last partial commit",
        false => "the commit",
    };
    let resources = undone.resources.join(", ");
    ui.news(&match (undone.rollback, undone.resources.is_empty()) {
        _ if undone.again => format!("{what} of plan {name} was taken back before"),
        (true, _) => {
            format!("undid the rollback of plan {name}; its changes are back: {resources}")
        }
        (false, true) => {
            format!("plan {name}: its commit changed nothing, so there was nothing to undo")
        }
        (false, false) => format!("undid {what} of plan {name}; restored: {resources}"),
    });
    match &undone.reopened {
        Some(Ok(())) if undone.apart.is_some() => {
            let apart = undone.apart.as_deref().unwrap_or_default();
            ui.say(&format!(
                "the sandboxes of plan {name} were made after it, so what it had committed is in the plan {apart}: `escrow commit {apart}` or `escrow rollback {apart}`"
            ));
        }
        Some(Ok(())) => ui.say(&format!(
            "the plan is open again with its changes: `escrow commit {name}` or `escrow rollback {name}`"
        )),
        Some(Err(why)) => ui.notice(&format!(
            "the plan could not be opened again: {why}; its changes are kept, and `escrow undo {name}` tries again"
        )),
        None => {}
    }
    for resource in &undone.lost {
        ui.say(&format!("its changes in {resource} are not in it"));
    }
    if undone.standing > 0 {
        let earlier = "an earlier partial commit is still in place";
        ui.say(&format!("{earlier}; `escrow undo {name}` undoes that too"));
    }
}
