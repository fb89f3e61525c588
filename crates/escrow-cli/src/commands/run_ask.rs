//! What becomes of the changes when a command has ended: `escrow run` asks on a terminal, and says elsewhere what to type.

use escrow::Plan;
use escrow::diff::{self, PatchOptions};
use escrow::error::Error;
use escrow::model::{PlanDigest, PlanState};

use super::review::ReviewArgs;
use super::summary::summarize;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{PromptAnswer, Ui};

/// What is asked. Each letter is explained by `?`.
const QUESTION: &str = "[d]iff [v]review [c]ommit [k]eep [x]discard [?]";

/// What becomes of the changes.
pub(super) enum AfterRun {
    Commit,
    Keep,
    Discard,
    /// Keep, and say that there was no choice.
    Leave,
    /// The review committed everything.
    Done,
}

/// Says what to type next.
pub(super) fn next(ui: &Ui, plan: &Plan) {
    let name = &plan.name;
    ui.say(&format!(
        "next: `escrow diff {name}`, then `escrow commit {name}` or `escrow rollback {name}`"
    ));
}

/// What the letters of the question do.
fn explain(ui: &Ui, plan: &Plan) {
    let name = &plan.name;
    for line in [
        "d  diff: show every change, line by line".to_owned(),
        "v  review: walk through them on the whole screen, and commit what you mark".to_owned(),
        "c  commit: put all changes of the plan into the originals".to_owned(),
        format!(
            "k  keep: leave them in the plan, for `escrow commit {name}` or `escrow rollback {name}`; so does Return"
        ),
        format!(
            "x  discard: the originals stay as they are; `escrow undo {name}` brings the changes back"
        ),
    ] {
        ui.say(&line);
    }
}

/// Asks on a terminal; elsewhere everything is kept. What was shown last is what may be committed.
pub(super) fn ask(
    context: &Context,
    ui: &Ui,
    plan: &Plan,
    shown: &mut Option<PlanDigest>,
) -> Result<AfterRun, Failure> {
    while let Some(answer) = ui.ask(QUESTION) {
        let word = match answer {
            PromptAnswer::Word(word) => word,
            PromptAnswer::Interrupted => return Ok(AfterRun::Leave),
        };
        match word.as_str() {
            "d" | "diff" => {
                let found = context.manager.diff(plan, None)?;
                *shown = Some(context.manager.digest(&found)?);
                // Standard output is the command's.
                let aside = ui.aside();
                for one in &found.resources {
                    let mut out = aside.patch();
                    let contents = context.manager.contents(&found, &one.view)?;
                    diff::patch(&one.diff, &contents, &PatchOptions::default(), &mut out)?;
                    out.flush().map_err(Error::Output)?;
                }
            }
            "v" | "review" if !ui.is_terminal() => {
                ui.say("a review needs the terminal as its standard output");
            }
            "v" | "review" => {
                if let Err(failure) = ReviewArgs::of(&plan.name).run(context, ui) {
                    ui.say(failure.message());
                }
                let id = plan.id.to_string();
                let now = context
                    .manager
                    .resolve_plan(Some(&id), &context.directory)?;
                if now.state != PlanState::Open {
                    return Ok(AfterRun::Done);
                }
                let found = context.manager.diff(plan, None)?;
                summarize(context, &found, None, ui);
                *shown = Some(context.manager.digest(&found)?);
            }
            // The word of before.
            "c" | "commit" | "r" | "release" | "y" | "yes" => return Ok(AfterRun::Commit),
            "x" | "discard" => return Ok(AfterRun::Discard),
            "k" | "keep" | "" => return Ok(AfterRun::Keep),
            "?" => explain(ui, plan),
            _ => {}
        }
    }
    Ok(AfterRun::Keep)
}
