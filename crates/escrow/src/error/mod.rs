//! The error of the engine: what happened, where, why, and what to do next.
//!
//! Each error has a stable [`Kind`], which scripts can rely on, and hints. The cause is in the
//! chain of sources, not repeated in the text. Only the command line knows exit codes.

mod hints;
mod kind;
mod texts;

pub use kind::Kind;

pub use crate::fs::{Cause, FsError};
pub use crate::store::{LostRecords, StoreError};
use texts::{begun, failed_commit, forward};

use crate::config::ConfigError;
use crate::model::text::{Location, escape};
use crate::model::{
    Conflict, Decision, IllegalMove, InvalidPath, JournaledWork, Phase, PlanState, ResourcePath,
    SandboxState,
};
use crate::resource::HandlerError;
use crate::run::RunError;
use crate::store::Plan;
use crate::strategy::StrategyError;
use crate::strategy::registry::RegistryError;

/// What the manager returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that could not be fulfilled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "what each one says is its description")]
pub enum Error {
    #[error(
        "'{name}' cannot be a name: use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 64"
    )]
    InvalidName { name: String },
    #[error("'{}' may not {} '{}'{}: {}", escape(.decision.principal.as_bytes()), .decision.action, .decision.scope, more(*.others), .decision.reason)]
    Denied {
        decision: Box<Decision>,
        others: usize,
    },
    #[error("cannot find the state directory: set ESCROW_HOME or HOME")]
    NoHome,
    #[error("nothing was committed: the validation `{command}` {why}")]
    Invalid { command: String, why: String },
    #[error("'{at}' cannot be a resource: {why}")]
    Forbidden { at: Location, why: String },
    #[error(transparent)]
    Refused(HandlerError),
    #[error("there is no resource type '{name}'")]
    UnknownType { name: String, known: Vec<String> },
    #[error("resources of type '{name}' are not supported yet")]
    UnsupportedType { name: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("'{key}' of '{file}' is ignored: {why}")]
    Untrusted {
        file: Location,
        key: String,
        why: String,
    },
    #[error(
        "nothing is committed: the configuration '{file}' {why}, and its `validate` would not run"
    )]
    Unvalidated {
        file: Location,
        why: String,
        trust: Option<Location>,
    },
    #[error(
        "there is no '{}' here or above that could be trusted",
        crate::config::FILE_NAME
    )]
    NoConfig,
    #[error("the configuration has a resource '{name}' at '{at}', but {what} is known already")]
    Contradicted {
        name: String,
        at: Location,
        other: String,
        what: String,
    },
    #[error("there is no resource '{name}'")]
    UnknownResource { name: String, known: Vec<String> },
    #[error("a resource '{name}' exists already, at '{at}'")]
    ResourceExists { name: String, at: Location },
    #[error("the resource '{name}' still has a sandbox in the plan '{plan}'")]
    ResourceInUse { name: String, plan: String },
    #[error("there is no plan '{name}'")]
    UnknownPlan { name: String },
    #[error("'{name}' could be any of {} plans", .matches.len())]
    AmbiguousPlan { name: String, matches: Vec<String> },
    #[error("{} plans are open in '{directory}': name one", .plans.len())]
    SeveralPlans {
        directory: Location,
        /// The newest first.
        plans: Vec<Plan>,
    },
    #[error("no open plan belongs to '{directory}'")]
    NoPlanHere { directory: Location },
    #[error("no plan of '{directory}' has a commit to undo")]
    NoCommitHere { directory: Location },
    #[error("a plan '{name}' exists already")]
    PlanExists { name: String },
    #[error("the plan '{plan}' was {}", .state.as_str().replace('_', " "))]
    PlanOver { plan: String, state: PlanState },
    #[error("the plan '{plan}' has no sandbox of '{resource}'")]
    NoSandbox {
        plan: String,
        resource: String,
        known: Vec<String>,
    },
    #[error("the sandbox of '{resource}' in the plan '{plan}' was never finished")]
    Unfinished { plan: String, resource: String },
    #[error(
        "the plan '{plan}' was never finished: the process that created it ended before all of it was there"
    )]
    HalfMade { plan: String },
    #[error("the sandbox of '{resource}' cannot be used: it is {state}")]
    NotUsable {
        resource: String,
        state: SandboxState,
    },
    #[error("another process works on the plan '{plan}'{}", .owner.as_deref().map(|owner| format!(" ({owner})")).unwrap_or_default())]
    Busy { plan: String, owner: Option<String> },
    /// Another process forgot a resource that the user did not name, and a third one added it again, while a
    /// sandbox of it was begun.
    #[error("the resource '{resource}' was removed and added again meanwhile")]
    Forgotten { resource: String },
    #[error(
        "the plan '{plan}' is being removed, and nothing else can be done with it; its removal was not finished"
    )]
    HalfRemoved { plan: String },
    /// A rollback, or a commit past its point of no return, is not finished: nothing is taken back, and the rest is still
    /// to be done.
    #[error("{}", forward(*.work, plan, failed, unknown))]
    Forward {
        work: JournaledWork,
        plan: String,
        done: Vec<String>,
        failed: Vec<(String, String)>,
        unknown: Vec<(String, Location, String)>,
    },
    #[error("the outcome of '{resource}' is not asked for")]
    NotAsked {
        resource: String,
        asked: Vec<String>,
    },
    #[error("'{area}' is missing: is its file system not mounted, or was it moved?")]
    Away { area: Location },
    #[error("the plan '{plan}' could not be {what} as a whole: {}", .failed.iter().map(|(resource, why)| format!("{resource}: {why}")).collect::<Vec<_>>().join("; "))]
    Partly {
        plan: String,
        what: String,
        done: Vec<String>,
        failed: Vec<(String, String)>,
        kind: Kind,
    },
    #[error("{} (cleanup incomplete: {left})", crate::error::chain(.first))]
    LeftBehind { first: Box<Error>, left: String },
    /// It failed, and work of a sandbox went with what had been prepared.
    #[error("{}; {}", crate::error::chain(.first), .lost.join("; "))]
    WorkLost {
        first: Box<Error>,
        lost: Vec<String>,
    },
    #[error("the plan '{plan}' conflicts with its originals at {}", count(.conflicts.len(), "path", "paths"))]
    Conflicts {
        undo: bool,
        /// Text files were to be merged.
        merge: bool,
        plan: String,
        conflicts: Vec<(String, Conflict)>,
    },
    #[error("what the plan '{plan}' would commit is not what was expected: {}", changed(.differs, .found.as_deref()))]
    Unexpected {
        plan: String,
        found: Option<String>,
        differs: Vec<(String, ResourcePath)>,
    },
    #[error("the plan '{plan}' has {} members that can be neither prepared nor undone: {}", .members.len(), .members.join(", "))]
    Irreversible { plan: String, members: Vec<String> },
    #[error("there is no room at '{at}': {needed} bytes are needed, {free} are free")]
    NoSpace {
        at: Location,
        needed: u64,
        free: u64,
    },
    #[error("'{resource}' could not be committed: {}", crate::error::chain(&**.cause))]
    Member { resource: String, cause: Box<Error> },
    #[error("{}{}", begun(plan, cause, *work, *undo), failed_commit(undone, not_undone, kept, left, lost))]
    CommitFailed {
        work: JournaledWork,
        plan: String,
        cause: Box<Error>,
        undone: Vec<String>,
        not_undone: Vec<(String, String)>,
        kept: Vec<(String, ResourcePath, Location)>,
        left: Vec<String>,
        lost: Vec<String>,
        open: bool,
        undo: bool,
    },
    #[error("the plan '{plan}' was interrupted half way: {}; rolling it back failed: {why}", crate::error::chain(&**.cause))]
    Undecided {
        plan: String,
        cause: Box<Error>,
        why: String,
    },
    #[error("the plan '{plan}' is {}, but that could not be recorded", if *.work == JournaledWork::Restore { "back at the checkpoint" } else { "committed" })]
    Unrecorded {
        work: JournaledWork,
        plan: String,
        #[source]
        cause: Box<Error>,
    },
    /// The originals hold the new state, but one of them still shares something with its sandbox.
    #[error(
        "the originals of the plan '{plan}' hold the new state, but the commit could not be finished in '{resource}'"
    )]
    NotFinished {
        plan: String,
        resource: String,
        #[source]
        cause: Box<Error>,
    },
    #[error("{why}")]
    Interrupted { why: String },
    #[error("it could not be undone completely")]
    Undoing,
    #[error("cancelled")]
    Cancelled,
    #[error("internal error in the strategy for '{resource}': {what}")]
    Panicked { resource: String, what: String },
    #[error("a {what} of the plan '{plan}' was interrupted (it is {phase}){}", .why.as_deref().map(|why| format!(", and cannot be recovered: {why}")).unwrap_or_default())]
    RecoveryNeeded {
        what: JournaledWork,
        plan: String,
        phase: Phase,
        why: Option<String>,
    },
    #[error("the {of} of the plan '{plan}' cannot continue: {what}")]
    Damaged {
        of: JournaledWork,
        plan: String,
        what: String,
    },
    #[error("the plan '{plan}' is {state}: there is no commit to undo")]
    NothingToUndo { plan: String, state: PlanState },
    #[error("a command runs inside the plan '{plan}'")]
    Live { plan: String },
    #[error("the plan '{plan}' has {} checkpoint '{typed}'", if *.ambiguous { "more than one" } else { "no" })]
    UnknownCheckpoint {
        plan: String,
        typed: String,
        ambiguous: bool,
    },
    #[error("the sandbox of '{resource}' cannot {what}: {}", crate::error::chain(&**.cause))]
    Snapshot {
        resource: String,
        what: String,
        cause: Box<Error>,
    },
    #[error("'{path}' is not an orphan; nothing was removed")]
    NoOrphan { path: Location },
    #[error("invalid pattern '{pattern}': {why}")]
    BadPattern { pattern: String, why: String },
    #[error("the plan '{plan}' changes nothing that '{pattern}' covers")]
    Unmatched {
        plan: String,
        pattern: String,
        near: Option<String>,
    },
    #[error("of what the plan '{plan}' changes, the patterns leave nothing to commit")]
    NothingSelected { plan: String },
    #[error(
        "since the checkpoint {checkpoint}, a part of the plan '{plan}' was committed, or such a commit was undone"
    )]
    StaleCheckpoint { plan: String, checkpoint: String },
    #[error("a command inside gets no further checkpoint of the plan '{plan}': {why}")]
    ManyCheckpoints { plan: String, why: String },
    #[error("the sandbox of '{resource}' was made after the checkpoint, which does not know it")]
    LaterThanCheckpoint { resource: String },
    #[error("the sandbox of '{resource}' cannot return to a checkpoint: {why}")]
    CannotReturn {
        plan: String,
        checkpoint: String,
        resource: String,
        why: String,
        others: Vec<String>,
    },
    #[error("a command already runs in the plan '{plan}' with other options: {what}")]
    OtherOptions { plan: String, what: String },
    #[error("the directory '{at}' is not empty")]
    NotEmpty { at: Location },
    #[error("'{at}' cannot be made writable: {why}")]
    Unwritable { at: Location, why: String },
    #[error(
        "'{at}' cannot be made writable: {what} '{own}', which would run outside of every sandbox"
    )]
    WritableExecutes {
        at: Location,
        own: Location,
        what: String,
    },
    #[error("there is no preset for an agent '{name}'")]
    UnknownAgent { name: String, known: Vec<String> },
    #[error(
        "the network of a preset needs an agent that has one, and the command starts none that is known"
    )]
    NoPresetNetwork,
    #[error(
        "'{at}' cannot be the home of an agent: it holds something else, or is the project's or Escrow's"
    )]
    BadAgentHome { at: Location },
    #[error("what the agent made of '{at}' is not kept")]
    AgentFileUnkept { at: Location },
    #[error("'{at}' was changed since the agent wrote its version")]
    AgentFileMoved { at: Location },
    #[error("'{at}' cannot be hidden: {why}")]
    Unhidable { at: Location, why: String },
    #[error(transparent)]
    Run(#[from] RunError),

    /// A port of a command cannot be shown on this machine.
    #[error("cannot publish port {port}: {why}")]
    NotPublished { port: u16, why: String },
    #[error("another process holds a lock on '{at}'; it may be committing into it")]
    BusyOriginal { at: Location },
    #[error("'{at}' overlaps the resource '{other}' at '{other_at}'")]
    Overlap {
        at: Location,
        other: String,
        other_at: Location,
    },
    #[error("'{parent}' cannot be the parent of '{name}': {why}")]
    BadParent {
        name: String,
        parent: String,
        why: String,
    },
    #[error(transparent)]
    Path(#[from] InvalidPath),
    #[error(transparent)]
    Move(#[from] IllegalMove),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("cannot write the output")]
    Output(#[source] std::io::Error),
}

fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    }
}

/// What is wrong with what would be released: where it changed, if that is known, else its digest.
fn changed(differs: &[(String, ResourcePath)], found: Option<&str>) -> String {
    let named = differs.iter().take(5);
    let named: Vec<String> = named.map(|(name, path)| format!("{name}:{path}")).collect();
    let others = more(differs.len() - named.len());
    match (named.is_empty(), found) {
        (false, _) => format!("{}{others} changed", named.join(", ")),
        (true, Some(found)) => format!("its digest is {found}"),
        (true, None) => "it has no digest, since its own user may not read all of it".to_owned(),
    }
}

fn more(others: usize) -> String {
    match others {
        0 => String::new(),
        others => format!(" and {} more", count(others, "path", "paths")),
    }
}

/// An error and all its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // A transparent wrapper says the same as what it wraps.
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

impl Error {
    /// Of several sandboxes some failed. One that fails alone speaks for itself.
    pub(crate) fn partly(
        plan: &crate::store::Plan,
        what: &str,
        done: Vec<String>,
        mut failed: Vec<(String, Self)>,
    ) -> Self {
        if done.is_empty()
            && failed.len() == 1
            && let Some((_, only)) = failed.pop()
        {
            return only;
        }
        let kinds: Vec<Kind> = failed.iter().map(|(_, error)| error.kind()).collect();
        let alike = kinds.windows(2).all(|pair| pair[0] == pair[1]);
        let texts = failed
            .iter()
            .map(|(resource, error)| (resource.clone(), chain(error)));
        Self::Partly {
            plan: plan.name.clone(),
            what: what.to_owned(),
            done,
            failed: texts.collect(),
            kind: kinds
                .first()
                .copied()
                .filter(|_| alike)
                .unwrap_or(Kind::Failed),
        }
    }

    /// This error, and that what had been begun could not be removed either.
    pub(crate) fn and_left(self, removed: Result<()>) -> Self {
        match removed {
            Ok(()) => self,
            Err(left) => Self::LeftBehind {
                first: Box::new(self),
                left: chain(&left),
            },
        }
    }
}

impl From<HandlerError> for Error {
    fn from(error: HandlerError) -> Self {
        match error {
            HandlerError::Fs(error) => error.into(),
            refused @ HandlerError::Refused { .. } => Self::Refused(refused),
        }
    }
}
