//! `escrow recover`: finishes or takes back what was interrupted.

use clap::Args;
use escrow::commit::Side;
use escrow::error::chain;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Finish or take back what was interrupted: commits, restores, rollbacks, plans half created or half removed
///
/// Each plan is wholly old or wholly new afterwards; one that was being created or removed is gone.
/// Every command that changes something does this first by itself. Can be run again, and while
/// others work: one whose process is alive is left alone.
#[derive(Args)]
#[command(after_help = "Example:\n  escrow recover")]
pub(crate) struct RecoverArgs {}

impl RecoverArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let answers = context.manager.recover()?;
        let failed = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        let word = |side: &Side| match side {
            Side::Old => "old",
            Side::New => "new",
        };
        if ui.is_json() {
            let plans: Vec<Value> = answers
                .iter()
                .map(|(plan, answer)| match answer {
                    Ok(done) => json!({
                        "plan": plan,
                        "what": done.work.as_str(),
                        "found": done.found.as_str(),
                        "side": word(&done.side),
                        "because": done.because,
                        "kept": show::kept(&done.kept),
                        "left": done.left,
                    }),
                    Err(error) => json!({"plan": plan, "error": chain(error)}),
                })
                .collect();
            ui.document(&json!({"success": failed == 0, "recovered": plans}));
        } else {
            for (plan, answer) in &answers {
                match answer {
                    Ok(done) => {
                        let side = done.outcome();
                        let because = done.because.as_ref().map(|why| format!(" ({why})"));
                        let because = because.unwrap_or_default();
                        ui.line(&format!("plan {plan} was {}: {side}{because}", done.found));
                        show::kept_lines(&done.kept, &done.left, ui);
                    }
                    Err(error) => {
                        ui.warn(&format!(
                            "plan {plan} cannot be recovered: {}",
                            chain(error)
                        ));
                    }
                }
            }
            if answers.is_empty() {
                ui.say("nothing was interrupted; there is nothing to recover");
            }
        }
        match failed {
            0 => Ok(()),
            _ => Err(Failure::told_recovery()),
        }
    }
}
