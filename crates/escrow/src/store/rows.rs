//! What the store holds, as values.

use jiff::Timestamp;

use crate::fs::process::Owner;
use crate::model::text::Location;
use crate::model::{
    CommitId, OperationId, Phase, PlanId, PlanState, ResourceId, SandboxId, SandboxRef,
    SandboxState,
};

/// A real thing that may be sandboxed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its id.
    pub id: ResourceId,
    /// Its name.
    pub name: String,
    /// Its type's name.
    pub kind: String,
    /// Where it is.
    pub at: Location,
    /// The name of the resource it lies in, if it was told.
    pub parent: Option<String>,
    /// The strategy it asks for; `auto` if none.
    pub strategy: String,
    /// When it was added.
    pub created_at: Timestamp,
    /// Somebody gave it its name; otherwise it is forgotten with the last plan that uses it.
    pub named: bool,
}

/// A named set of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its id.
    pub id: PlanId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: PlanState,
    /// The directory it was made in.
    pub directory: Location,
    /// When it was made.
    pub created_at: Timestamp,
}

/// One plan's private version of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// What refers to it; without metadata while it is pending.
    pub reference: SandboxRef,
    /// The strategy that was asked for.
    pub requested: String,
    /// Where it stands.
    pub state: SandboxState,
    /// Its private directory.
    pub area: Location,
    /// How it was made.
    pub message: String,
    /// What is not in it, or not as in the original.
    pub warnings: Vec<String>,
    /// Why this strategy was taken: what each that was asked said.
    pub reasons: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It has not ended; its owner may be dead.
    Running,
    /// It did what it was asked.
    Done,
    /// It failed.
    Failed,
    /// Its process died in the middle.
    Interrupted,
}

impl Outcome {
    /// The word in the store, in JSON and on the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Something that is being done or was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Who.
    pub principal: String,
    /// What.
    pub action: String,
    /// On which plan.
    pub plan_id: Option<PlanId>,
    /// On what in it.
    pub target: String,
    /// By which process.
    pub owner: Owner,
    /// Since when.
    pub started_at: Timestamp,
    /// What the user said about it.
    pub message: Option<String>,
}

/// One commit of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Its id.
    pub id: CommitId,
    /// The plan.
    pub plan_id: PlanId,
    /// Where it stands.
    pub phase: Phase,
    /// Why it was made, in the user's words.
    pub message: Option<String>,
    /// When it began.
    pub created_at: Timestamp,
    /// Its members, in the order in which they are carried out.
    pub members: Vec<JournalMember>,
    /// Why what is stored of it cannot be relied on, if it cannot.
    pub damaged: Option<String>,
}

/// One sandbox of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalMember {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// Where it is staged, and where old versions are kept.
    pub area: Location,
    /// What its strategy needs; `None` until it is prepared.
    pub intent: Option<String>,
    /// Whether it was carried out; only kept of what cannot be undone.
    pub carried: bool,
}

/// Where a commit keeps what it staged or replaced; one for each member, or one without a place where
/// there is nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitArea {
    /// The plan.
    pub plan_id: PlanId,
    /// Where its commit stands.
    pub phase: Phase,
    /// When it began.
    pub created_at: Timestamp,
    /// The sandbox whose commit it is, and the place.
    pub area: Option<(SandboxId, Location)>,
}

/// An operation and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// What was done.
    pub operation: Operation,
    /// How it ended: `running`, `done`, `failed` or `interrupted`.
    pub outcome: String,
    /// Why it failed.
    pub error: Option<String>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
}
