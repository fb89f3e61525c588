//! What is answered to whoever asks for a sandbox, a checkpoint or a return to one, whatever the type of
//! the resource. The fields are part of the outward contract: programs read them by these names. Whether
//! something is permitted is answered by [`Decision`](crate::model::Decision).

use serde::Serialize;

use crate::model::text::Location;
use crate::model::{CheckpointId, PlanId, SandboxId};

/// The answer to `create_sandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxAnswer {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Where native tools work: its directory, or its file; `None` where it gives no path.
    pub sandbox_path: Option<Location>,
    /// How it was made.
    pub strategy: String,
    /// Whether it was made now; otherwise it was there (rule P4).
    pub created: bool,
    /// How it went, in a few words.
    pub message: String,
}

/// The answer to `create_checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointAnswer {
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Its plan.
    pub plan_id: PlanId,
    /// When it was taken.
    pub timestamp: String,
    /// What the user called it.
    pub label: Option<String>,
}

/// The answer to `rollback_to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreAnswer {
    /// Every sandbox is as it was then.
    pub success: bool,
    /// The checkpoint that was returned to.
    pub checkpoint_id: CheckpointId,
    /// What differs from before, each path with its resource.
    pub restored_files: Vec<String>,
    /// What was done, in a few words.
    pub message: String,
}
