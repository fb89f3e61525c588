//! `escrow recover`: finishes or rolls back interrupted work.

use clap::Args;
use escrow::commit::{RecoveredTo, Settled};
use escrow::error::{Kind, chain};
use escrow::strategy::Outcome;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::{Failure, details};
use crate::ui::Ui;

/// Finish or roll back interrupted commits, restores, rollbacks, creations and removals
///
/// Each plan is wholly old or wholly new afterwards; one that was being created or removed is gone.
/// Every command that changes something does this first by itself. Can be run again, and while
/// others work: one whose process is alive is left alone.
///
/// A commit past its point of no return only goes forward: what failed is tried again. Where it is not known whether a
/// step was carried out, it waits until `--outcome` says so; look at the resource first. If nothing was done for good yet,
/// `not_done` takes everything back.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow recover\n  escrow recover --outcome mail=done --outcome registry=not_done"
)]
pub(crate) struct RecoverArgs {
    /// What became of a step whose outcome is not known: carried out, or not (the rest is then taken back; what was prepared is tried again)
    #[arg(long, value_name = "RESOURCE=done|not_done", value_parser = outcome)]
    outcome: Vec<(String, Outcome)>,
}

fn outcome(typed: &str) -> Result<(String, Outcome), String> {
    let (resource, word) = typed.rsplit_once('=').unwrap_or((typed, ""));
    match word {
        "done" => Ok((resource.to_owned(), Outcome::Done)),
        "not_done" => Ok((resource.to_owned(), Outcome::NotDone)),
        _ => Err("it must be RESOURCE=done or RESOURCE=not_done".to_owned()),
    }
}

impl RecoverArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let settled: Settled = self.outcome.into_iter().collect();
        let answers = context.manager.recover_settled(&settled)?;
        let failed = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        let word = |side: &RecoveredTo| match side {
            RecoveredTo::Old => "old",
            RecoveredTo::New => "new",
        };
        if ui.is_json() {
            let plans: Vec<Value> = answers
                .iter()
                .map(|(plan, answer)| match answer {
                    Ok(done) => {
                        let mut document = json!({
                            "plan": plan,
                            "what": done.work.as_str(),
                            "found": done.found.as_str(),
                            "side": word(&done.side),
                            "because": done.because,
                            "kept": show::kept(&done.kept),
                            "left": done.left,
                        });
                        if !done.lost.is_empty() {
                            document["lost"] = json!(done.lost);
                        }
                        document
                    }
                    Err(error) => json!({
                        "plan": plan,
                        "error": chain(error),
                        "hints": error.hints(),
                        "details": details(error),
                    }),
                })
                .collect();
            ui.document(json!({"success": failed == 0, "recovered": plans}));
        } else {
            for (plan, answer) in &answers {
                match answer {
                    Ok(done) => {
                        let side = done.outcome();
                        let because = done.because.as_ref().map(|why| format!(" ({why})"));
                        let because = because.unwrap_or_default();
                        ui.line(&format!("plan {plan} was {}: {side}{because}", done.found));
                        show::kept_lines(&done.kept, &done.left, ui);
                        for what in &done.lost {
                            ui.warn(what);
                        }
                    }
                    Err(error) => {
                        ui.warn(&format!("cannot recover plan {plan}: {}", chain(error)));
                        for hint in error.hints() {
                            ui.say(&format!("hint: {hint}"));
                        }
                    }
                }
            }
            if answers.is_empty() {
                ui.say("nothing to recover");
            }
        }
        match failed {
            0 => Ok(()),
            _ => Err(Failure::reported(Kind::RecoveryNeeded)),
        }
    }
}
