//! Checkpoints before the prompts of a coding agent: labelled by the caller, kept apart from other automatic ones.

use super::Manager;
use crate::error::Result;
use crate::event::Observer;
use crate::store::{Checkpoint, Plan};

/// Why such a checkpoint is taken. No command inside can take one, so its label is what the agent's hook wrote.
pub(super) const PROMPT: &str = "before_prompt";

/// How many of them a plan keeps. Commands cause checkpoints too, which do not count here and displace none.
const MOST: usize = 50;

impl Manager {
    /// Saves every sandbox of a plan as it is before a prompt; deletes the oldest checkpoints of this kind.
    pub fn checkpoint_before_prompt(
        &self,
        plan: &Plan,
        label: &str,
        observer: &dyn Observer,
    ) -> Result<Checkpoint> {
        let taken = self.create_checkpoint_for(plan, Some(label), Some(PROMPT), observer)?;
        let all = self.store.checkpoints_for(plan.id, Some(PROMPT))?;
        for old in &all[..all.len().saturating_sub(MOST)] {
            self.delete_checkpoint(plan, old)?;
        }
        Ok(taken)
    }
}
