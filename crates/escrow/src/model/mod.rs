//! Pure types and rules: nothing here touches a file, a clock or a database.

pub mod autorun;
pub mod change;
pub mod conflict;
pub(crate) mod counted;
pub mod digest;
pub(crate) mod growing;
pub mod hunks;
pub mod id;
pub mod limits;
pub mod lookalike;
pub mod network;
pub mod path;
pub(crate) mod path_index;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod resource;
pub mod retention;
pub mod sandbox;
pub mod sqlite_files;
pub mod target;
pub mod text;
pub mod units;
pub mod view;
pub mod whole_dirs;
pub(crate) mod words;

pub use autorun::AutorunChange;
pub use change::{
    Carried, CarriedContents, CarriedFiles, Change, ChangeKind, ChangedField, ChangedFields,
    Detail, DiffView, EntryInfo, EntryKind, FileDetail, JsonText, RowDetail,
};
pub use conflict::{Choice, Conflict};
pub use counted::CountedChanges;
pub use digest::{Expected, PlanDigest};
pub use hunks::ChosenHunks;
pub use id::{
    CheckpointId, CommitId, IdSource, OperationId, PlanId, ResourceId, SandboxId, SystemIdSource,
};
pub use limits::Limits;
pub use network::{AllowedHost, DeniedConnection, Network};
pub use path::{InvalidPath, ResourcePath};
pub use phase::{JournaledWork, Phase};
pub use plan::PlanState;
pub use policy::{Action, Decision, Scope};
pub use resource::{ResourceType, ResourceTypes, Shape};
pub use retention::{CachePolicy, CleanupPolicy, Retention};
pub use sandbox::{IllegalMove, SandboxRef, SandboxState};
pub use target::{Options, Target, TargetLocation};
pub use whole_dirs::{AutorunGroup, WholeDirs};
