//! `escrow restore`: returns a plan to a checkpoint.

use clap::Args;
use serde_json::json;

use super::answer::Asker;
use super::checkpoint;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Return every sandbox of a plan to a checkpoint
///
/// All of them, or none. Where they were is kept first, as another checkpoint, so that this can be
/// taken back. In a plan with a held transaction of a database it cannot: that drops what came after the checkpoint.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow restore try chk_01k9")]
pub(crate) struct RestoreArgs {
    /// The plan, which may be left out, and the checkpoint: its label, its id or the beginning of it
    #[arg(required = true, num_args = 1..=2, value_name = "[PLAN] CHECKPOINT")]
    words: Vec<String>,
}

impl RestoreArgs {
    /// The same from inside.
    pub(super) fn asked(self, asker: &Asker<'_>) -> Result<Self, String> {
        let Self { words } = self;
        let words = asker.own_words(&words)?;
        Ok(Self { words })
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, target) = checkpoint::typed(context, &self.words, ui)?;
        let progress = ui.progress("restoring");
        let restored = context.manager.restore(&plan, &target, &progress)?;
        drop(progress);
        if ui.is_json() {
            let answer = context.manager.restore_answer(&plan, &restored)?;
            let mut document = json!(answer);
            document["before"] = json!(restored.before.map(|before| before.id));
            ui.document(document);
            return Ok(());
        }
        ui.news(&restored.message());
        ui.say(&match &restored.before {
            Some(before) => format!(
                "next: `escrow diff {0}`, or `escrow restore {0} {1}` to take it back",
                plan.name, before.id
            ),
            None => format!("next: `escrow diff {}`", plan.name),
        });
        Ok(())
    }
}
