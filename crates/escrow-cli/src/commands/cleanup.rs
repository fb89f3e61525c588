//! `escrow cleanup`: removes what a plan has on disk.

use clap::Args;
use escrow::model::Detail;
use escrow::{Error, Plan};
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
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// Count what cannot be found as removed
    #[arg(long)]
    forget: bool,
}

impl CleanupArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let unreleased = unreleased(context, &plan, ui);
        for one in &unreleased {
            ui.say(&format!(
                "not committed, and removed with the sandbox: {one}"
            ));
        }
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
            ui.document(
                json!({"plan": plan.name, "state": "cleaned_up", "removed": removed,
                "unreleased": unreleased}),
            );
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

/// What the sandboxes hold that was never committed, a line for each. What cannot be looked at, or may not be, is removed
/// all the same, and that is said.
fn unreleased(context: &Context, plan: &Plan, ui: &Ui) -> Vec<String> {
    let found = match context.manager.quick_diff(plan) {
        Ok(found) => found.resources,
        // Nothing is left in it.
        Err(Error::PlanOver { .. }) => Vec::new(),
        Err(error) => {
            let why = Failure::from(error);
            ui.notice(&format!(
                "what the sandboxes hold could not be looked at: {}",
                why.message()
            ));
            Vec::new()
        }
    };
    let mut lines = Vec::new();
    for one in found.iter().filter(|one| !one.diff.is_empty()) {
        let mut line = format!("{}: {}", one.view.resource.name, show::sum(&one.diff));
        for change in &one.diff.changes {
            if let Detail::Opaque { detail, .. } = &change.detail
                && let Some(commits @ [last, ..]) = detail["commits"].as_array().map(Vec::as_slice)
            {
                let commits = count(commits.len() as u64, "commit", "commits");
                let subject = last["subject"].as_str().unwrap_or_default();
                line.push_str(&format!(
                    "; {}: {commits}, the last '{subject}'",
                    change.path
                ));
            }
        }
        lines.push(line);
    }
    lines
}
