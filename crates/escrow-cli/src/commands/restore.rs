//! `escrow restore`: a plan returns to a checkpoint.

use clap::Args;
use serde_json::json;

use super::checkpoint;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Return every sandbox of a plan to a checkpoint
///
/// All of them, or none. Where they were is kept first, as another checkpoint, so that this can be
/// taken back.
#[derive(Args)]
#[command(after_help = "Example:\n  escrow restore try chk_01k9")]
pub(crate) struct RestoreArgs {
    /// The plan, which may be left out, and the checkpoint: its label, its id or the beginning of it
    #[arg(required = true, num_args = 1..=2, value_names = ["PLAN", "CHECKPOINT"])]
    words: Vec<String>,
}

impl RestoreArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, target) = checkpoint::typed(context, &self.words)?;
        let progress = ui.progress("restoring");
        let restored = context.manager.restore(&plan, &target, &progress)?;
        drop(progress);
        let message = format!(
            "returned to {}; where it was is kept as {}",
            restored.checkpoint.id, restored.before.id
        );
        if ui.is_json() {
            // Only who asks for the list pays for it.
            let (before, after) = (&restored.before, &restored.checkpoint);
            let changed = context.manager.since(&plan, before, Some(after))?;
            let files: Vec<String> = changed
                .iter()
                .flat_map(|one| {
                    let name = &one.view.resource.name;
                    let paths = one.diff.changes.iter().map(|change| &change.path);
                    paths.map(move |path| format!("{name}:{path}"))
                })
                .collect();
            ui.document(&json!({
                "success": true,
                "checkpoint_id": restored.checkpoint.id,
                "before": restored.before.id,
                "restored_files": files,
                "message": message,
            }));
            return Ok(());
        }
        ui.news(&message);
        ui.say(&format!(
            "next: `escrow diff {0}`, or `escrow restore {0} {1}` to take it back",
            plan.name, restored.before.id
        ));
        Ok(())
    }
}
