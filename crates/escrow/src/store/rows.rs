//! The rows of the store, as values.
#![allow(
    missing_docs,
    reason = "most fields are named as what they hold; the others have a comment"
)]

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fs::process::ProcessIdentity;
use crate::model::autorun;
use crate::model::text::Location;
use crate::model::words::words;
use crate::model::{
    AutorunChange, CheckpointId, CommitId, DiffView, JournaledWork, OperationId, Phase, PlanId,
    PlanState, ResourceId, ResourcePath, SandboxId, SandboxRef, SandboxState, Shape,
};
use crate::model::{Target, TargetLocation};

/// A real thing that may be sandboxed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    pub id: ResourceId,
    pub name: String,
    pub kind: String,
    pub at: Location,
    /// The name of the resource it lies in, if it was reported.
    pub parent: Option<String>,
    /// The strategy it asks for; `auto` if none.
    pub strategy: String,
    pub created_at: Timestamp,
    /// The user named it; otherwise it is forgotten with the last plan that uses it.
    pub named: bool,
    /// A directory with everything in it, or one file.
    pub shape: Shape,
}

impl Resource {
    /// Its path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.shape.has_path().then(|| self.at.as_path())
    }

    /// The directory from which its paths count: itself, or the one that holds the file.
    pub fn root(&self) -> Option<&Path> {
        let at = self.path()?;
        Some(match self.shape {
            shape if shape.is_file() => at.parent().unwrap_or(at),
            _ => at,
        })
    }

    /// It as a strategy is given it, without carved paths.
    pub fn target(&self) -> Target {
        let text = || String::from_utf8_lossy(self.at.as_bytes()).into_owned();
        Target {
            resource_id: self.id,
            name: self.name.clone(),
            kind: self.kind.clone(),
            location: match self.shape {
                Shape::Tree | Shape::File | Shape::Database => {
                    TargetLocation::Path(self.at.clone())
                }
                Shape::Url => TargetLocation::Url(text()),
                Shape::Opaque => TargetLocation::Opaque(text()),
            },
            options: serde_json::Map::new(),
            carved: Vec::new(),
        }
    }

    /// The one path it has, if it is a file: its own name.
    pub fn only(&self) -> Option<ResourcePath> {
        let name = self.at.as_path().file_name();
        let name = name.filter(|_| self.shape == Shape::File)?;
        Some(ResourcePath::root().join(name.as_bytes()))
    }

    /// The changes of it that will run later.
    pub fn runs_later(&self, diff: &DiffView) -> Vec<AutorunChange> {
        match self.shape {
            Shape::Tree => autorun::runs_later(diff),
            Shape::File => autorun::autorun_at(diff, &self.at),
            Shape::Database | Shape::Url | Shape::Opaque => Vec::new(),
        }
    }

    /// A path as it counts from the root: of a file, `.` is its own name.
    pub fn inner(&self, path: &ResourcePath) -> ResourcePath {
        match self.only().filter(|_| path.is_root()) {
            Some(only) => only,
            None => path.clone(),
        }
    }
}

/// A named set of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub id: PlanId,
    pub name: String,
    pub state: PlanState,
    /// The directory it was made in.
    pub directory: Location,
    pub created_at: Timestamp,
    /// `run` made it by itself: a rollback ends it.
    pub implicit: bool,
}

/// One plan's private version of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    pub id: SandboxId,
    /// What refers to it; without metadata while it is pending.
    pub reference: SandboxRef,
    /// The strategy that was asked for.
    pub requested: String,
    pub state: SandboxState,
    /// Its private directory.
    pub area: Location,
    /// How it was made.
    pub message: String,
    /// What is not in it, or not as in the original.
    pub warnings: Vec<String>,
    /// Why this strategy was taken: what each that was asked said.
    pub reasons: Vec<String>,
    pub created_at: Timestamp,
}

words! {
    /// How an operation ended.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OperationOutcome {
        /// It has not ended; its owner may be dead.
        Running = "running",
        /// It did what it was asked.
        Done = "done",
        /// It failed.
        Failed = "failed",
        /// It was not permitted.
        Denied = "denied",
        /// Its process died in the middle.
        Interrupted = "interrupted",
    }
    else |word| format!("no operation is ever '{word}'")
}

/// Something that is being done or was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub id: OperationId,
    pub principal: String,
    pub action: String,
    /// On which plan.
    pub plan_id: Option<PlanId>,
    /// On what in it.
    pub target: String,
    /// By which process.
    pub owner: ProcessIdentity,
    pub started_at: Timestamp,
    /// What the user said about it.
    pub message: Option<String>,
    /// The resources it is about.
    pub resources: Vec<String>,
}

/// How an operation ended, and what it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationEnd {
    pub outcome: OperationOutcome,
    pub error: Option<String>,
    pub reason: Option<String>,
    /// The paths it changed, each with its resource; of very many, the first.
    pub paths: Vec<String>,
    pub path_count: u64,
    pub at: Timestamp,
}

impl OperationEnd {
    /// An end of which nothing else is known.
    pub fn plain(outcome: OperationOutcome, at: Timestamp) -> Self {
        Self {
            outcome,
            error: None,
            reason: None,
            paths: Vec::new(),
            path_count: 0,
            at,
        }
    }
}

/// The saved state of every sandbox of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub id: CheckpointId,
    pub plan_id: PlanId,
    /// What its user calls it.
    pub label: Option<String>,
    /// Why it was taken, if the user did not ask for it.
    pub reason: Option<String>,
    pub created_at: Timestamp,
    /// What each sandbox needs to return to it.
    pub snapshots: Vec<(SandboxId, String)>,
}

/// A snapshot of a checkpoint that its strategy rewrote.
#[derive(Debug)]
pub(crate) struct RenewedSnapshot {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The sandbox that it is of.
    pub sandbox: SandboxId,
    /// What the strategy wants back from now on.
    pub snapshot: String,
}

/// One commit of a plan, one return to a checkpoint, or one rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    pub id: CommitId,
    pub plan_id: PlanId,
    /// What is done.
    pub work: JournaledWork,
    pub phase: Phase,
    /// Why it was made, in the user's words.
    pub message: Option<String>,
    /// The checkpoint that is returned to.
    pub checkpoint: Option<CheckpointId>,
    /// Whether only a part of the plan is committed, and the rest stays in the sandboxes.
    pub part: bool,
    /// Its undo leaves a part of it, which can be undone later.
    pub stands: bool,
    pub created_at: Timestamp,
    /// Its members, in the order in which they are carried out.
    pub members: Vec<JournalMember>,
    /// Why what is stored of it cannot be relied on, if it cannot.
    pub damaged: Option<String>,
}

/// One sandbox of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalMember {
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
pub(crate) struct CommitArea {
    pub plan_id: PlanId,
    /// Where its commit stands.
    pub phase: Phase,
    pub created_at: Timestamp,
    /// The sandbox whose commit it is, and the place.
    pub area: Option<(SandboxId, Location)>,
    /// A rollback keeps what it discarded elsewhere.
    pub work: JournaledWork,
}

/// An operation and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedOperation {
    /// Its place in the log.
    pub seq: i64,
    pub operation: Operation,
    /// The paths it changed, each with its resource; of very many, the first.
    pub paths: Vec<String>,
    pub path_count: u64,
    /// How it ended: `running`, `done`, `failed`, `denied` or `interrupted`.
    pub outcome: String,
    pub error: Option<String>,
    pub reason: Option<String>,
    pub finished_at: Option<Timestamp>,
}

impl LoggedOperation {
    /// How long it took; a clock that was set back meanwhile counts as none.
    pub fn took(&self) -> Option<Duration> {
        let took = self.finished_at?.duration_since(self.operation.started_at);
        Some(Duration::try_from(took).unwrap_or_default())
    }
}

/// What became of the log since it was written.
#[must_use = "a log that was changed is no error of the check"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogCheck {
    /// How many entries are as they were recorded.
    pub entries: u64,
    /// The last hash of these. A process that keeps it elsewhere can tell a log that was made anew.
    pub head: String,
    /// The first entry that is not as it was recorded.
    pub fault: Option<LogFault>,
}

/// An entry of the log that is not as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFault {
    /// Which one, counted from 1.
    pub entry: u64,
    /// The operation, where it is known.
    pub operation: Option<String>,
    /// What is wrong with it.
    pub what: String,
}
