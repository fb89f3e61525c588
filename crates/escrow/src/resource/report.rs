//! Reports on a sandbox, a checkpoint or a restore, the same for every resource type. The fields are part of
//! the outward contract: programs read them by these names. Permissions are reported by
//! [`Decision`](crate::model::Decision).

use serde::Serialize;

use crate::model::text::Location;
use crate::model::{CheckpointId, PlanId, SandboxId};

/// The answer to `create_sandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxReport {
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
pub struct CheckpointReport {
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// Its plan.
    pub plan_id: PlanId,
    /// When it was taken.
    pub timestamp: String,
    /// The directory that holds what was kept of the plan's first sandbox; each keeps its own. `None` where it has none.
    pub snapshot_path: Option<Location>,
    /// What was kept, in a few words.
    pub message: String,
    /// What the user called it.
    pub label: Option<String>,
    /// Why it was taken, if the user did not ask for it.
    pub reason: Option<String>,
}

/// The answer to `rollback_to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// Every sandbox is as it was then.
    pub success: bool,
    /// The checkpoint that was returned to.
    pub checkpoint_id: CheckpointId,
    /// What differs from before, each path with its resource.
    pub restored_files: Vec<String>,
    /// What was done, in a few words.
    pub message: String,
}
