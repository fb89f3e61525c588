//! `escrow log`: what was done.

use clap::Args;
use escrow::store::Logged;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Show what was done, by whom, and how it ended
///
/// Oldest first. What was said about a commit is shown with it.
#[derive(Args)]
#[command(after_help = "Examples:\n  escrow log\n  escrow log try")]
pub(crate) struct LogArgs {
    /// Name, id or prefix of a plan; everything if left out
    plan: Option<String>,
}

impl LogArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = match &self.plan {
            Some(typed) => Some(context.plan(Some(typed))?),
            None => None,
        };
        let entries = context.manager.log(plan.as_ref())?;
        if ui.is_json() {
            let entries: Vec<Value> = entries.iter().map(entry).collect();
            ui.document(&json!({"operations": entries}));
            return Ok(());
        }
        if entries.is_empty() {
            ui.say("nothing was done yet");
        }
        for one in &entries {
            let tone = match one.outcome.as_str() {
                "done" => Tone::Good,
                "failed" => Tone::Bad,
                _ => Tone::Careful,
            };
            ui.line(&format!(
                "{}  {}  {} {}  {}",
                show::moment(one.operation.started_at),
                paint(tone, &format!("{:<11}", one.outcome)),
                one.operation.action,
                one.operation.target,
                paint(Tone::Faint, &one.operation.principal),
            ));
            if let Some(message) = &one.operation.message {
                ui.line(&format!(
                    "    {}",
                    escrow::model::text::harmless(message.as_bytes())
                ));
            }
            if let Some(error) = &one.error {
                ui.line(&format!("    {}", paint(Tone::Bad, error)));
            }
        }
        Ok(())
    }
}

fn entry(one: &Logged) -> Value {
    let operation = &one.operation;
    json!({
        "id": operation.id,
        "principal": operation.principal,
        "action": operation.action,
        "plan_id": operation.plan_id,
        "target": operation.target,
        "message": operation.message,
        "outcome": one.outcome,
        "error": one.error,
        "started_at": operation.started_at.to_string(),
        "finished_at": one.finished_at.map(|at| at.to_string()),
    })
}
