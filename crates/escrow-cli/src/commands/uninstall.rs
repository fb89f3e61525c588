//! `escrow uninstall`: says what Escrow keeps and where, and removes it.

use clap::Args;
use escrow::model::PlanState;
use serde_json::{Value, json};

use super::agent::setup;
use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{Ui, count};

/// Say what Escrow keeps on this machine, or remove all of it
///
/// Without `--purge` nothing is removed: it lists the plans, what of them was never committed, and where the state lies. With
/// it the hooks of coding agents are taken out, every plan is cleaned up, with what lies beside originals, then the state goes. The originals are untouched. What
/// only you can decide about is named: the program itself, and each `escrow.yaml`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  escrow uninstall\n  escrow uninstall --purge")]
pub(crate) struct UninstallArgs {
    /// Remove every plan and the state
    #[arg(long)]
    purge: bool,
}

impl UninstallArgs {
    pub(crate) fn run(&self, context: Context, ui: &Ui) -> Result<(), Failure> {
        let manager = &context.manager;
        let home = escrow::model::text::Location::from(manager.home());
        let plans = manager.purgeable()?;
        let open = plans.iter().filter(|plan| plan.state == PlanState::Open);
        let open: Vec<&str> = open.map(|plan| plan.name.as_str()).collect();
        ui.say(&format!("the state of Escrow lies in '{home}'"));
        for plan in &plans {
            ui.say(&format!("  plan {}: {}", plan.name, plan.state));
        }
        for (agent, file) in setup::installed() {
            let name = agent.name();
            match file {
                Ok(file) => ui.say(&format!(
                    "  hooks of {name}: '{}'",
                    escrow::model::text::Location::from(file)
                )),
                Err(failure) => ui.warn(&format!("hooks of {name}: {}", failure.message())),
            }
        }
        if !self.purge {
            return explain(&home, &plans, ui);
        }
        if !ui.says_yes() && (ui.is_json() || !ui.asks()) {
            let what =
                "nothing was removed: this needs an answer, and there is no terminal to ask on";
            return Err(Failure::usage(what).hint(
                "`escrow uninstall` shows what would go; then `escrow uninstall --purge --yes`",
            ));
        }
        let lost = match open.is_empty() {
            true => String::new(),
            false => format!(
                ", with what was never committed in {}",
                count(open.len() as u64, "open plan", "open plans")
            ),
        };
        if !ui.confirm(&format!("Remove all of it{lost}?")) {
            return Err(Failure::failed("nothing was removed"));
        }
        // Before the rest: with the hooks and without Escrow an agent can do nothing.
        for (agent, file) in setup::installed() {
            if let Err(failure) = file.and_then(|_| setup::take_out(agent)) {
                ui.warn(&format!("the hooks stay: {}", failure.message()));
            }
        }
        let (count_of_plans, report) = (plans.len(), context.manager.purge()?);
        for (one, why) in &report.kept {
            ui.warn(&format!("'{}' stays: {why}", one.path));
        }
        for other in &report.others {
            ui.warn(&format!("'{other}' stays: it is none of Escrow's"));
        }
        ui.done.set(true);
        let program = context::program();
        if ui.is_json() {
            let kept = report
                .kept
                .iter()
                .map(|(one, why)| json!({"path": show::location(&one.path), "why": why}));
            let others = report.others.iter().map(show::location);
            ui.document(json!({
                "purged": true,
                "home": show::location(&home),
                "plans": count_of_plans,
                "kept": kept.collect::<Vec<Value>>(),
                "others": others.collect::<Vec<Value>>(),
                "program": show::location(&program),
            }));
            return Ok(());
        }
        ui.news(&format!(
            "removed '{home}' and what {} had; the originals are as they were",
            count(count_of_plans as u64, "plan", "plans")
        ));
        ui.news(&format!("the program is yours to remove: '{program}'"));
        Ok(())
    }
}

/// What a purge would do.
fn explain(
    home: &escrow::model::text::Location,
    plans: &[escrow::Plan],
    ui: &Ui,
) -> Result<(), Failure> {
    let program = context::program();
    if ui.is_json() {
        let plans = plans.iter();
        let plans = plans.map(|plan| json!({"plan": plan.name, "state": plan.state.as_str()}));
        ui.document(json!({
            "purged": false,
            "home": show::location(home),
            "plans": plans.collect::<Vec<Value>>(),
            "program": show::location(&program),
        }));
        return Ok(());
    }
    ui.line(&format!(
        "`escrow uninstall --purge` cleans up {} and removes '{home}'; what was never committed is gone then",
        count(plans.len() as u64, "plan", "plans")
    ));
    ui.line(&format!(
        "it leaves the originals as they are, each escrow.yaml, and the program: '{program}'"
    ));
    Ok(())
}
