//! `escrow rollback`: discards what a plan changed.

use clap::Args;
use serde_json::{Value, json};

use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Discard everything that a plan's sandboxes changed
///
/// The originals are untouched, and the sandboxes can be worked in again. One that cannot be
/// rolled back does not stop the others.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow rollback try")]
pub(crate) struct RollbackArgs {
    /// Name, id or prefix; the newest open plan of this directory if left out
    plan: Option<String>,
}

impl RollbackArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let question = format!("Discard everything changed in the plan {}?", plan.name);
        if !ui.confirm(&question) {
            return Err(Failure::failed("nothing was discarded"));
        }
        let progress = ui.progress("discarding");
        let discarded = context.manager.rollback(&plan, &progress)?;
        drop(progress);
        if ui.is_json() {
            let resources: Vec<Value> = discarded
                .iter()
                .map(|one| json!({"resource": one.resource, "message": one.message}))
                .collect();
            ui.document(&json!({"success": true, "plan": plan.name, "resources": resources}));
            return Ok(());
        }
        for one in &discarded {
            ui.news(&format!("{}: {}", one.resource, one.message));
        }
        Ok(())
    }
}
