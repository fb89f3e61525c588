//! `escrow cleanup`: removes what a plan has on disk.

use clap::Args;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Ui, count};

/// Remove a plan's sandboxes, with everything in them
///
/// The originals are untouched. Can be run in any state, and again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow cleanup try")]
pub(crate) struct CleanupArgs {
    /// Name, id or prefix; the newest open plan of this directory if left out
    plan: Option<String>,
    /// Count what cannot be found as removed
    #[arg(long)]
    forget: bool,
}

impl CleanupArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let question = format!(
            "Delete the sandboxes of plan {} with all changes in them?",
            plan.name
        );
        if !ui.confirm(&question) {
            return Err(Failure::failed("nothing was removed"));
        }
        let cleaned = context.manager.cleanup(&plan, self.forget)?;
        if ui.is_json() {
            let removed: Vec<Value> = cleaned
                .iter()
                .map(|one| json!({"resource": one.resource, "area": show::location(&one.area)}))
                .collect();
            ui.document(&json!({"plan": plan.name, "state": "cleaned_up", "removed": removed}));
            return Ok(());
        }
        ui.news(&format!(
            "cleaned up plan {}: removed {}",
            plan.name,
            count(cleaned.len() as u64, "sandbox", "sandboxes"),
        ));
        for one in &cleaned {
            ui.verbose(&format!("  {}: {}", one.resource, one.area));
        }
        Ok(())
    }
}
