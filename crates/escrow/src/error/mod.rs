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
use crate::strategy::StrategyError;
use crate::strategy::registry::RegistryError;

/// What the manager returns.
pub type Result<T> = std::result::Result<T, Error>;

/// A request that could not be fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A text that cannot be a name.
    #[error(
        "'{name}' cannot be a name: use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 64"
    )]
    InvalidName {
        /// The text, escaped.
        name: String,
    },
    /// The policy does not permit it.
    #[error("'{}' may not {} '{}'{}: {}", escape(.decision.principal.as_bytes()), .decision.action, .decision.scope, more(*.others), .decision.reason)]
    Denied {
        /// What the policy says.
        decision: Box<Decision>,
        /// How many other paths are denied as well.
        others: usize,
    },
    /// Neither the caller nor the environment says where the state is.
    #[error("cannot find the state directory: set ESCROW_HOME or HOME")]
    NoHome,
    /// A command of the configuration refused what was to be committed.
    #[error("nothing was committed: the validation `{command}` {why}")]
    Invalid {
        /// The command.
        command: String,
        /// How it ended, or why it could not be run.
        why: String,
    },
    /// A directory that must not be a resource.
    #[error("'{at}' cannot be a resource: {why}")]
    Forbidden {
        /// Where.
        at: Location,
        /// Why not.
        why: &'static str,
    },
    /// What stands at a location is not of the type, or of none.
    #[error(transparent)]
    Refused(HandlerError),
    /// No such type of resource.
    #[error("there is no resource type '{name}'")]
    UnknownType {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A type of resource that is planned.
    #[error("resources of type '{name}' are not supported yet")]
    UnsupportedType {
        /// The type.
        name: String,
    },
    /// A configuration that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A configuration that was found says something that only a trusted one may say.
    #[error("'{key}' of '{file}' is ignored: {why}")]
    Untrusted {
        /// The file.
        file: Location,
        /// The key.
        key: String,
        /// Why it does not count.
        why: &'static str,
    },
    /// A validation that the user trusted would not run.
    #[error(
        "nothing is committed: the configuration '{file}' {why}, and its `validate` would not run"
    )]
    Unvalidated {
        /// The file.
        file: Location,
        /// Why it does not count.
        why: String,
        /// The file that can be trusted to go on.
        trust: Option<Location>,
    },
    /// There is no configuration that could be trusted.
    #[error(
        "there is no '{}' here or above that could be trusted",
        crate::config::FILE_NAME
    )]
    NoConfig,
    /// The configuration says something else of a resource than what is known and in use.
    #[error("the configuration has a resource '{name}' at '{at}', but {what} is known already")]
    Contradicted {
        /// Its name.
        name: String,
        /// Where it is.
        at: Location,
        /// The name of the other.
        other: String,
        /// What is known.
        what: String,
    },
    /// No such resource.
    #[error("there is no resource '{name}'")]
    UnknownResource {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The name or the location is taken by another resource.
    #[error("a resource '{name}' exists already, at '{at}'")]
    ResourceExists {
        /// Its name.
        name: String,
        /// Where it is.
        at: Location,
    },
    /// A resource that is still in use.
    #[error("the resource '{name}' still has a sandbox in the plan '{plan}'")]
    ResourceInUse {
        /// The resource.
        name: String,
        /// One plan that uses it.
        plan: String,
    },
    /// No such plan.
    #[error("there is no plan '{name}'")]
    UnknownPlan {
        /// What was asked for.
        name: String,
    },
    /// More than one plan is meant.
    #[error("'{name}' could be any of {} plans", .matches.len())]
    AmbiguousPlan {
        /// What was asked for.
        name: String,
        /// The names and ids it could be.
        matches: Vec<String>,
    },
    /// No plan was named and none belongs to this directory.
    #[error("no open plan belongs to '{directory}'")]
    NoPlanHere {
        /// The current directory.
        directory: Location,
    },
    /// No plan was named and none of this directory has a commit to undo.
    #[error("no plan of '{directory}' has a commit to undo")]
    NoCommitHere {
        /// The current directory.
        directory: Location,
    },
    /// The name is taken by another open plan.
    #[error("an open plan '{name}' exists already")]
    PlanExists {
        /// The name.
        name: String,
    },
    /// The plan is over.
    #[error("the plan '{plan}' was {}", .state.as_str().replace('_', " "))]
    PlanOver {
        /// The plan.
        plan: String,
        /// Where it stands.
        state: PlanState,
    },
    /// The plan has no sandbox of this resource.
    #[error("the plan '{plan}' has no sandbox of '{resource}'")]
    NoSandbox {
        /// The plan.
        plan: String,
        /// The resource.
        resource: String,
        /// The resources it has sandboxes of.
        known: Vec<String>,
    },
    /// The sandbox was never finished: its maker died.
    #[error("the sandbox of '{resource}' in the plan '{plan}' was never finished")]
    Unfinished {
        /// The plan.
        plan: String,
        /// The resource.
        resource: String,
    },
    /// Not all sandboxes of the plan were made: the process that made them crashed.
    #[error(
        "the plan '{plan}' was never finished: the process that created it ended before all of it was there"
    )]
    HalfMade {
        /// The plan.
        plan: String,
    },
    /// The sandbox is not in a state for this.
    #[error("the sandbox of '{resource}' cannot be used: it is {state}")]
    NotUsable {
        /// The resource.
        resource: String,
        /// The state it is in.
        state: SandboxState,
    },
    /// Another process works on the plan.
    #[error("another process works on the plan '{plan}'{}", .owner.as_deref().map(|owner| format!(" ({owner})")).unwrap_or_default())]
    Busy {
        /// The plan.
        plan: String,
        /// What is known of the process.
        owner: Option<String>,
    },
    /// Another process forgot a resource that the user did not name, and a third one added it again, while a
    /// sandbox of it was begun.
    #[error("the resource '{resource}' was removed and added again meanwhile")]
    Forgotten {
        /// The resource.
        resource: String,
    },
    /// The plan is being removed, and that was interrupted or failed.
    #[error(
        "the plan '{plan}' is being removed, and nothing else can be done with it; its removal was not finished"
    )]
    HalfRemoved {
        /// The plan.
        plan: String,
    },
    /// A rollback, or a commit past its point of no return, is not finished: nothing is taken back, and the rest is still
    /// to be done.
    #[error("{}", forward(*.work, plan, failed, unknown))]
    Forward {
        /// What is still to be finished.
        work: JournaledWork,
        /// The plan.
        plan: String,
        /// The resources for which it is done, as far as this process did it.
        done: Vec<String>,
        /// Those for which it is still to be done, and why it is not.
        failed: Vec<(String, String)>,
        /// Those of which it is not known whether it is done: where they are, and why it is not known.
        unknown: Vec<(String, Location, String)>,
    },
    /// A person said what became of a step that does not wait for it.
    #[error("the outcome of '{resource}' is not asked for")]
    NotAsked {
        /// The resource.
        resource: String,
        /// Those whose outcome may be asked for.
        asked: Vec<String>,
    },
    /// What a sandbox, or its commit, keeps is out of reach.
    #[error("'{area}' is missing: is its file system not mounted, or was it moved?")]
    Away {
        /// The area.
        area: Location,
    },
    /// Discarding, or removing, worked for some sandboxes only.
    #[error("the plan '{plan}' could not be {what} as a whole: {}", .failed.iter().map(|(resource, why)| format!("{resource}: {why}")).collect::<Vec<_>>().join("; "))]
    Partly {
        /// The plan.
        plan: String,
        /// What should have been done to each, as a participle.
        what: &'static str,
        /// The resources for which it was done.
        done: Vec<String>,
        /// What failed: resource and reason.
        failed: Vec<(String, String)>,
        /// What sort of failure it is, if all failed alike.
        kind: Kind,
    },
    /// It failed, and then what it had begun could not be removed.
    #[error("{} (cleanup incomplete: {left})", crate::error::chain(.first))]
    LeftBehind {
        /// Why it failed.
        first: Box<Error>,
        /// Why it could not be removed.
        left: String,
    },
    /// The original contradicts what is to be committed, or undone.
    #[error("the plan '{plan}' conflicts with its originals at {}", count(.conflicts.len(), "path", "paths"))]
    Conflicts {
        /// Whether an undo was asked for, not a commit.
        undo: bool,
        /// The plan.
        plan: String,
        /// Each path, with the resource it lies in.
        conflicts: Vec<(String, Conflict)>,
    },
    /// What would be released is not what was expected, or shown.
    #[error("what the plan '{plan}' would release is not what was expected: {}", changed(.differs, .found.as_deref()))]
    Unexpected {
        /// The plan.
        plan: String,
        /// Its digest; `None` where that does not cover everything.
        found: Option<String>,
        /// Where it changed, if that is known.
        differs: Vec<(String, ResourcePath)>,
    },
    /// More members than one cannot be taken back.
    #[error("the plan '{plan}' has {} members that can be neither prepared nor undone: {}", .members.len(), .members.join(", "))]
    Irreversible {
        /// The plan.
        plan: String,
        /// The resources.
        members: Vec<String>,
    },
    /// There is no room for what is to be committed.
    #[error("there is no room at '{at}': {needed} bytes are needed, {free} are free")]
    NoSpace {
        /// Where.
        at: Location,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A member of a commit failed.
    #[error("'{resource}' could not be committed: {}", crate::error::chain(&**.cause))]
    Member {
        /// The resource.
        resource: String,
        /// Why.
        cause: Box<Error>,
    },
    /// A commit, or an undo, failed: the one report of it (rule C5).
    #[error("{}{}", begun(plan, cause, *work, *undo), failed_commit(undone, not_undone, kept, left))]
    CommitFailed {
        /// What failed.
        work: JournaledWork,
        /// The plan.
        plan: String,
        /// Why it failed.
        cause: Box<Error>,
        /// The resources that are as they were before.
        undone: Vec<String>,
        /// Those that are not, and why.
        not_undone: Vec<(String, String)>,
        /// What another process wrote meanwhile: resource, path, and where it is kept.
        kept: Vec<(String, ResourcePath, Location)>,
        /// What was staged and could not be removed; no original is concerned.
        left: Vec<String>,
        /// Whether recovery will try again.
        open: bool,
        /// Whether it was an undo that failed.
        undo: bool,
    },
    /// A commit or a restore failed, and it could not be taken back, or not be recorded that it is to be.
    #[error("the plan '{plan}' was interrupted half way: {}; rolling it back failed: {why}", crate::error::chain(&**.cause))]
    Undecided {
        /// The plan.
        plan: String,
        /// Why it failed.
        cause: Box<Error>,
        /// Why it could not be recorded.
        why: String,
    },
    /// It happened, but that could not be recorded.
    #[error("the plan '{plan}' is {}, but that could not be recorded", if *.work == JournaledWork::Restore { "back at the checkpoint" } else { "committed" })]
    Unrecorded {
        /// What happened.
        work: JournaledWork,
        /// The plan.
        plan: String,
        /// Why.
        #[source]
        cause: Box<Error>,
    },
    /// The originals hold the new state, but one of them still shares something with its sandbox.
    #[error(
        "the originals of the plan '{plan}' hold the new state, but the commit could not be finished in '{resource}'"
    )]
    NotFinished {
        /// The plan.
        plan: String,
        /// The resource.
        resource: String,
        /// Why.
        #[source]
        cause: Box<Error>,
    },
    /// A commit was interrupted, and what became of it could not be settled.
    #[error("{why}")]
    Interrupted {
        /// What happened.
        why: &'static str,
    },
    /// A commit could not be undone as a whole.
    #[error("it could not be undone completely")]
    Undoing,
    /// The user cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// A part of the engine, or of a strategy, broke down.
    #[error("internal error in the strategy for '{resource}': {what}")]
    Panicked {
        /// The resource.
        resource: String,
        /// What it said.
        what: String,
    },
    /// A commit, or a restore, of the plan must be brought to an end first.
    #[error("a {what} of the plan '{plan}' was interrupted (it is {phase}){}", .why.as_deref().map(|why| format!(", and cannot be recovered: {why}")).unwrap_or_default())]
    RecoveryNeeded {
        /// What was interrupted.
        what: JournaledWork,
        /// The plan.
        plan: String,
        /// Where it stands.
        phase: Phase,
        /// Why recovery failed, if it did.
        why: Option<String>,
    },
    /// What a commit, or a restore, needs cannot be relied on.
    #[error("the {of} of the plan '{plan}' cannot continue: {what}")]
    Damaged {
        /// What cannot be continued.
        of: JournaledWork,
        /// The plan.
        plan: String,
        /// What is wrong.
        what: String,
    },
    /// There is no commit to undo.
    #[error("the plan '{plan}' is {state}: there is no commit to undo")]
    NothingToUndo {
        /// The plan.
        plan: String,
        /// Where it stands.
        state: PlanState,
    },
    /// A command runs inside the plan.
    #[error("a command runs inside the plan '{plan}'")]
    Live {
        /// The plan.
        plan: String,
    },
    /// No such checkpoint.
    #[error("the plan '{plan}' has {} checkpoint '{typed}'", if *.ambiguous { "more than one" } else { "no" })]
    UnknownCheckpoint {
        /// The plan.
        plan: String,
        /// What was typed.
        typed: String,
        /// Several begin like that.
        ambiguous: bool,
    },
    /// One sandbox could not be kept, or go back.
    #[error("the sandbox of '{resource}' cannot {what}: {}", crate::error::chain(&**.cause))]
    Snapshot {
        /// The resource.
        resource: String,
        /// What it cannot do.
        what: &'static str,
        /// Why.
        cause: Box<Error>,
    },
    /// What was named for removal is not an orphan.
    #[error("'{path}' is not an orphan; nothing was removed")]
    NoOrphan {
        /// What was named.
        path: Location,
    },
    /// A pattern that is none.
    #[error("invalid pattern '{pattern}': {why}")]
    BadPattern {
        /// What was typed.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// A pattern that covers no change.
    #[error("the plan '{plan}' changes nothing that '{pattern}' covers")]
    Unmatched {
        /// The plan.
        plan: String,
        /// What was typed.
        pattern: String,
        /// What may have been meant.
        near: Option<String>,
    },
    /// Patterns that together leave nothing to release.
    #[error("of what the plan '{plan}' changes, the patterns leave nothing to release")]
    NothingSelected {
        /// The plan.
        plan: String,
    },
    /// A checkpoint of other originals than there are now.
    #[error(
        "since the checkpoint {checkpoint}, a part of the plan '{plan}' was committed, or such a commit was undone"
    )]
    StaleCheckpoint {
        /// The plan.
        plan: String,
        /// The checkpoint.
        checkpoint: String,
    },
    /// A sandbox that the checkpoint does not know.
    #[error("the sandbox of '{resource}' was made after the checkpoint, which does not know it")]
    LaterThanCheckpoint {
        /// The resource.
        resource: String,
    },
    /// A command runs inside the plan, with other options.
    #[error("a command already runs in the plan '{plan}' with other options: {what}")]
    OtherOptions {
        /// The plan.
        plan: String,
        /// In what it differs.
        what: &'static str,
    },
    /// A path that cannot be written for real.
    #[error("'{at}' cannot be made writable: {why}")]
    Unwritable {
        /// Where.
        at: Location,
        /// Why not.
        why: &'static str,
    },
    /// A command could not be run inside.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Another process commits into the same original.
    #[error("another process holds a lock on '{at}'; it may be committing into it")]
    BusyOriginal {
        /// The original.
        at: Location,
    },
    /// Two resources that would be changed through each other.
    #[error("'{at}' overlaps the resource '{other}' at '{other_at}'")]
    Overlap {
        /// The new one.
        at: Location,
        /// The other.
        other: String,
        /// Where the other is.
        other_at: Location,
    },
    /// A parent that cannot be one.
    #[error("'{parent}' cannot be the parent of '{name}': {why}")]
    BadParent {
        /// The resource.
        name: String,
        /// The parent it named.
        parent: String,
        /// Why not.
        why: &'static str,
    },
    /// A path that is not inside a resource.
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// A move the table of states does not have.
    #[error(transparent)]
    Move(#[from] IllegalMove),
    /// A name that leads to no strategy.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A strategy could not do it.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The state store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file system refused.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// What was to be shown could not be written.
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
        what: &'static str,
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
            what,
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
            HandlerError::Registry(error) => error.into(),
            HandlerError::Strategy(error) => error.into(),
            HandlerError::Fs(error) => error.into(),
            refused @ HandlerError::Refused { .. } => Self::Refused(refused),
        }
    }
}
