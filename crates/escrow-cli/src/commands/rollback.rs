//! `escrow rollback`: discards what a plan changed.

use clap::Args;
use escrow::policy::select::ReleaseSelection;
use serde_json::{Value, json};

use super::commit::patterns;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Discard what a plan's sandboxes changed
///
/// The originals are untouched, and the sandboxes can be worked in again. One without
/// isolation has nothing to discard, and does not stop the others.
///
/// With `--only` what it covers is as in the originals again, in all sandboxes or in none, and the rest stays. A pattern is
/// as for `escrow commit --only`. Where the plan was is kept as a checkpoint.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow rollback try\n  escrow rollback try --only 'docs/**' --only app:Cargo.lock"
)]
pub(crate) struct RollbackArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// Discard only what this covers; can be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
}

impl RollbackArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let selection = ReleaseSelection {
            only: patterns(&self.only)?,
            ..ReleaseSelection::default()
        };
        let what = match selection.is_everything() {
            true => "everything".to_owned(),
            false => format!("what {} covers that was", self.only.join(", ")),
        };
        let question = format!("Discard {what} changed in the plan {}?", plan.name);
        if !ui.confirm(&question) {
            return Err(Failure::failed("nothing was discarded"));
        }
        let progress = ui.progress("discarding");
        let discarded = match selection.is_everything() {
            true => context.manager.rollback(&plan, &progress)?,
            false => {
                let manager = &context.manager;
                manager.rollback_part(&plan, &selection, &progress)?
            }
        };
        drop(progress);
        if ui.is_json() {
            let resources: Vec<Value> = discarded
                .iter()
                .map(|one| json!({"resource": one.resource, "message": one.message}))
                .collect();
            ui.document(json!({"success": true, "plan": plan.name, "resources": resources}));
            return Ok(());
        }
        for one in &discarded {
            ui.news(&format!("{}: {}", one.resource, one.message));
        }
        if selection.is_everything() && context.manager.keeps_discarded(&plan)? {
            ui.say(&format!("`escrow undo {}` brings it back", plan.name));
        }
        Ok(())
    }
}
