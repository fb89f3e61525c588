//! The commands of the configuration that judge a plan before it is released.
//!
//! They run inside, where nobody else may be, and whatever they write is gone again afterwards: what is
//! released is what was there before them.

use std::ffi::OsString;

use escrow::manager::Validation;
use escrow::store::Plan;

use super::run::RunArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Runs them all; the first that fails stops the release, which the log is told with its message. The plan belongs to
/// the release until what is returned goes.
pub(super) fn validate<'a>(
    context: &'a Context,
    plan: &'a Plan,
    message: Option<&'a str>,
    ui: &Ui,
) -> Result<Option<Validation<'a>>, Failure> {
    let commands = context.manager.validations(plan)?;
    context.tell_notices(ui);
    if commands.is_empty() {
        return Ok(None);
    }
    let progress = ui.progress("keeping");
    let validation = context.manager.begin_validation(plan, message, &progress);
    let validation = validation.map_err(|error| Failure::from(error).about("committed"))?;
    drop(progress);
    let judge = |command: &Vec<String>| judge(context, plan, command, ui);
    let judged = commands.iter().try_for_each(judge);
    let progress = ui.progress("restoring");
    let back = validation.take_back(&progress);
    drop(progress);
    let judged = match back {
        Ok(()) => judged,
        Err(error) => {
            let what = "what the validation wrote was not taken back: the next command on the plan tries again";
            let failure = Failure::from(error).hint(what).about("committed");
            Err(match judged {
                Ok(()) => failure,
                Err(judged) => judged.hint(failure.line()),
            })
        }
    };
    if let Err(failure) = &judged {
        validation.stopped(failure.line());
    }
    judged.map(|()| Some(validation))
}

fn judge(context: &Context, plan: &Plan, command: &[String], ui: &Ui) -> Result<(), Failure> {
    let line = command.join(" ");
    ui.say(&format!("validating: {line}"));
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    let why = match RunArgs::judge(context, plan, words) {
        Ok(0) => return Ok(()),
        Ok(status) => format!("ended with status {status}"),
        Err(failure) if failure.is_interrupted() => return Err(failure.about("committed")),
        Err(failure) => format!("could not be run: {}", failure.line()),
    };
    let what = format!("nothing was committed: the validation `{line}` {why}");
    Err(Failure::failed(what)
        .hint("its words are above; the sandboxes are as they were before it")
        .about("committed"))
}
