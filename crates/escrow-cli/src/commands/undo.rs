//! `escrow undo`: takes a commit back.

use clap::Args;
use serde_json::json;

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Undo a plan's commit: every original is as it was before
///
/// Where what the commit put there was changed since, nothing is undone, and the paths are named. What was
/// committed in a PostgreSQL transaction cannot be undone: `escrow commit` says so before it asks, and with `--dry-run`.
///
/// Of several commits of one plan, as with `escrow commit --only`, the newest is taken back; again, the one
/// before it. What a commit of a part had released is its plan's again, if that is still open.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow undo try")]
pub(crate) struct UndoArgs {
    /// Name, id or prefix; the plan of this directory that was committed last if left out
    plan: Option<String>,
}

impl UndoArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.committed_plan(self.plan.as_deref(), ui)?;
        let question = format!("Undo the commit of plan {}?", plan.name);
        if !ui.confirm(&question) {
            return Err(Failure::failed("nothing was undone"));
        }
        let progress = ui.progress("undoing");
        let undone = context.manager.undo(&plan, &progress);
        let undone = undone.map_err(|error| Failure::from(error).about("success"))?;
        drop(progress);
        if ui.is_json() {
            ui.document(json!({
                "success": true,
                "plan": plan.name,
                "resources": undone.resources,
                "kept": show::kept(&undone.kept),
                "left": undone.left,
                "standing": undone.standing,
            }));
            return Ok(());
        }
        show::kept_lines(&undone.kept, &undone.left, ui);
        match undone.resources.is_empty() {
            true => ui.news(&format!(
                "plan {}: its commit changed nothing, so there was nothing to undo",
                plan.name
            )),
            false => {
                let what = match undone.part {
                    true => "the last partial commit",
                    false => "the commit",
                };

                ui.news(&format!(
                    "undid {what} of plan {}; restored: {}",
                    plan.name,
                    undone.resources.join(", ")
                ));
            }
        }
        if undone.standing > 0 {
            let earlier = "an earlier partial commit is still in place";
            ui.say(&format!(
                "{earlier}; `escrow undo {}` undoes that too",
                plan.name
            ));
        }
        Ok(())
    }
}
