//! What a caller is told of a sandbox, a checkpoint and a return to one, in the fields that programs read.

use super::{Made, Manager, Restored};
use crate::error::Result;
use crate::model::text::Location;
use crate::resource::{CheckpointAnswer, RestoreAnswer, SandboxAnswer};
use crate::store::{Checkpoint, Plan};

impl Manager {
    /// What is answered to a wish for a sandbox.
    pub fn sandbox_answer(&self, made: &Made) -> Result<SandboxAnswer> {
        let sandbox = &made.view.sandbox;
        Ok(SandboxAnswer {
            sandbox_id: sandbox.id,
            sandbox_path: self.path_of(&made.view)?.map(Location::from),
            strategy: sandbox.reference.strategy.clone(),
            created: made.created,
            message: sandbox.message.clone(),
        })
    }

    /// What is answered to a return to a checkpoint. The list of files is made here: only who asks for it
    /// pays for it.
    pub fn restore_answer(&self, plan: &Plan, restored: &Restored) -> Result<RestoreAnswer> {
        let (before, after) = (&restored.before, &restored.checkpoint);
        let mut restored_files = Vec::new();
        for one in self.since(plan, before, Some(after))? {
            let name = &one.view.resource.name;
            let paths = one.diff.changes.iter().map(|change| &change.path);
            restored_files.extend(paths.map(|path| format!("{name}:{path}")));
        }
        Ok(RestoreAnswer {
            success: true,
            checkpoint_id: after.id,
            restored_files,
            message: restored.message(),
        })
    }
}

impl Restored {
    /// What was done, in a few words.
    pub fn message(&self) -> String {
        format!(
            "returned to {}; where it was is kept as {}",
            self.checkpoint.id, self.before.id
        )
    }
}

impl From<&Checkpoint> for CheckpointAnswer {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self {
            checkpoint_id: checkpoint.id,
            plan_id: checkpoint.plan_id,
            timestamp: checkpoint.created_at.to_string(),
            label: checkpoint.label.clone(),
        }
    }
}
