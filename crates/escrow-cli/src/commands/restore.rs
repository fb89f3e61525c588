//! `escrow restore`: returns a plan to a checkpoint.

use clap::Args;
use serde_json::json;

use super::answer::Asker;
use super::{checkpoint, hook};
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Return every sandbox of a plan to a checkpoint
///
/// All of them, or none. Where they were is kept first, as another checkpoint, so that this can be
/// taken back. One that keeps nothing, as without isolation, cannot return: `--resource` names those that do. In a plan with a held transaction of a database it cannot: that drops what came after the checkpoint.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow restore try chk_01k9")]
pub(crate) struct RestoreArgs {
    /// The plan, which may be left out, and the checkpoint: its label, its id or the beginning of it; without one the checkpoints
    /// are listed
    #[arg(num_args = 0..=2, value_name = "[PLAN] CHECKPOINT")]
    words: Vec<String>,
    /// Return only the sandbox of this resource; can be repeated
    #[arg(long, value_name = "RESOURCE")]
    resource: Vec<String>,
}

impl RestoreArgs {
    /// The same from inside.
    pub(super) fn asked(self, asker: &Asker<'_>) -> Result<Self, String> {
        let Self { words, resource } = self;
        let words = match words.is_empty() {
            true => vec![asker.own_plan(None)?],
            false => asker.own_words(&words)?,
        };
        for name in &resource {
            asker.own_resource(name.into())?;
        }
        Ok(Self { words, resource })
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let listed = match self.words.as_slice() {
            [] => Some(context.plan(None, ui)?),
            // A plan without a checkpoint, unless a checkpoint here is called so.
            [word] => {
                let plan = context.manager.resolve_plan(Some(word), &context.directory);
                let plan = plan
                    .ok()
                    .filter(|plan| plan.name == *word || plan.id.to_string() == *word);
                let here = context.manager.resolve_plan(None, &context.directory).ok();
                let named = here
                    .is_some_and(|here| context.manager.resolve_checkpoint(&here, word).is_ok());
                plan.filter(|_| !named)
            }
            _ => None,
        };
        if let Some(plan) = listed {
            if let Some(last) = checkpoint::list(context, &plan, ui)? {
                let last = checkpoint::typable(context, &plan, &last);
                ui.say(&format!(
                    "`escrow restore {} {last}` returns to the last",
                    plan.name
                ));
            }
            return Ok(());
        }
        let (plan, target) = checkpoint::typed(context, &self.words, ui)?;
        let progress = ui.progress("restoring");
        let restored = context
            .manager
            .restore_some(&plan, &target, &self.resource, &progress)?;
        drop(progress);
        if ui.is_json() {
            let answer = context.manager.restore_answer(&plan, &restored)?;
            let mut document = json!(answer);
            document["before"] = json!(restored.before.map(|before| before.id));
            ui.document(document);
            return Ok(());
        }
        ui.news(&restored.message());
        if let Some((session, turn)) = hook::conversation(&restored.checkpoint) {
            ui.say(&format!(
                "the conversation does not return by itself: rewind the session {session} to before turn {turn}"
            ));
        }
        ui.say(&match &restored.before {
            Some(before) => format!(
                "next: `escrow diff {0}`, or `escrow restore {0} {1}` to take it back",
                plan.name,
                checkpoint::typable(context, &plan, before)
            ),
            None => format!("next: `escrow diff {}`", plan.name),
        });
        Ok(())
    }
}
