//! The commands of the configuration that judge a plan before it is released.
//!
//! They run inside, where nobody else may be, and whatever they write is gone again afterwards: what is
//! released is what was there before them.

use std::ffi::OsString;

use escrow::store::Plan;

use super::run::RunArgs;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Runs them all; the first that fails stops the release.
pub(super) fn validate(context: &Context, plan: &Plan, ui: &Ui) -> Result<(), Failure> {
    let commands = &context.manager.settings().validate;
    if commands.is_empty() {
        return Ok(());
    }
    // What somebody did meanwhile would be gone with what they write.
    context.manager.check_quiet(plan)?;
    let progress = ui.progress("keeping");
    let label = Some("before validation");
    let before = context.manager.create_checkpoint(plan, label, &progress)?;
    drop(progress);
    let mut judged = Ok(());
    for command in commands {
        let line = command.join(" ");
        ui.say(&format!("validating: {line}"));
        let words: Vec<OsString> = command.iter().map(OsString::from).collect();
        judged = match RunArgs::judge(context, plan, words) {
            Ok(0) => Ok(()),
            Ok(status) => Err(Failure::failed(format!(
                "nothing was committed: the validation `{line}` ended with status {status}"
            ))
            .hint("its words are above; the sandboxes are as they were before it")),
            Err(failure) => Err(failure),
        };
        if judged.is_err() {
            break;
        }
    }
    let progress = ui.progress("restoring");
    let restored = context.manager.restore_alone(plan, &before, &progress);
    drop(progress);
    restored.map_err(|error| {
        Failure::from(error).hint(format!(
            "nothing was committed; the checkpoint {} has what was there before the validation",
            before.id
        ))
    })?;
    // What was there until now stays, among the automatic ones: somebody may have come in and gone.
    context.manager.delete_checkpoint(plan, &before)?;
    judged
}
