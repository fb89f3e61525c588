//! Pure words and rules: nothing here touches a file, a clock or a database.

pub mod amount;
pub mod change;
pub mod conflict;
pub mod digest;
pub mod id;
pub mod keep;
pub mod later;
pub mod path;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod resource;
pub mod sandbox;
pub mod target;
pub mod text;
pub mod view;

pub use change::{
    Change, ChangeKind, Detail, DiffView, EntryKind, Facts, Field, Fields, FileDetail, RowDetail,
};
pub use conflict::Conflict;
pub use digest::{Expected, PlanDigest};
pub use id::{
    CheckpointId, CommitId, OperationId, Origin, PlanId, ResourceId, SandboxId, SystemOrigin,
};
pub use keep::{Cleanup, Keep};
pub use later::RunsLater;
pub use path::{InvalidPath, ResourcePath};
pub use phase::{Phase, Work};
pub use plan::PlanState;
pub use policy::{Action, Decision, Scope};
pub use resource::{ResourceType, Shape, Types};
pub use sandbox::{IllegalMove, SandboxRef, SandboxState};
pub use target::{Target, TargetLocation};
