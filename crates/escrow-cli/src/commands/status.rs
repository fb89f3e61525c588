//! `escrow status`: open plans and what is being done.

use clap::Args;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Show the open plans and what is being done
#[derive(Args)]
pub(crate) struct StatusArgs {}

impl StatusArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let status = context.manager.status()?;
        let home = escrow::model::text::Location::from(context.manager.home());
        if ui.is_json() {
            let plans: Result<Vec<Value>, Failure> = status
                .plans
                .iter()
                .map(|view| show::plan(context, view))
                .collect();
            let running: Vec<Value> = status
                .running
                .iter()
                .map(|one| {
                    json!({
                        "action": one.operation.action,
                        "plan_id": one.operation.plan_id,
                        "target": one.operation.target,
                        "principal": one.operation.principal,
                        "pid": one.operation.owner.pid,
                        "since": one.operation.started_at.to_string(),
                        "state": if one.alive { "running" } else { "interrupted" },
                    })
                })
                .collect();
            let unfinished: Vec<Value> = status
                .unfinished
                .iter()
                .map(|(plan, phase)| json!({"plan": plan, "phase": phase.as_str()}))
                .collect();
            ui.document(&json!({
                "home": show::location(&home),
                "plans": plans?,
                "operations": running,
                "unfinished": unfinished,
            }));
            return Ok(());
        }
        ui.whisper(&format!("state is in {home}"));
        if status.plans.is_empty() {
            ui.say("there are no open plans; `escrow plan create --resource .` begins one");
        }
        for view in &status.plans {
            ui.line(&format!(
                "plan {}  made {} in {}",
                paint(Tone::Strong, &view.plan.name),
                show::moment(view.plan.created_at),
                view.plan.directory,
            ));
            show::sandbox_lines(context, view, ui)?;
        }
        for one in &status.running {
            let operation = &one.operation;
            let what = format!(
                "{} of {} by process {}",
                operation.action, operation.target, operation.owner.pid
            );
            match one.alive {
                true => ui.line(&format!("running: {what}")),
                false => {
                    ui.line(&format!("{} {what}", paint(Tone::Careful, "interrupted:")));
                    if status.unfinished.is_empty() {
                        ui.say("  run it again to finish it, or `escrow cleanup` the plan");
                    }
                }
            }
        }
        for (plan, phase) in &status.unfinished {
            let word = paint(Tone::Careful, "half way:");
            ui.line(&format!("{word} a commit of plan {plan} is {phase}"));
            ui.say("  if its process is dead, `escrow recover` brings it to one side");
        }
        Ok(())
    }
}
