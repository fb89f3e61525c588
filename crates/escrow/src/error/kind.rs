//! Error kinds: stable words that scripts can rely on.

use serde::Serialize;

use super::Error;
use crate::run::RunError;
use crate::store::StoreError;
use crate::strategy::StrategyError;
use crate::strategy::registry::RegistryError;

/// What sort of failure it is. These words are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What was asked for makes no sense.
    Usage,
    /// What was named does not exist.
    NotFound,
    /// It is not permitted.
    Denied,
    /// It contradicts what is there.
    Conflict,
    /// Another process is at it.
    Busy,
    /// Something died half way and must be brought to an end first.
    RecoveryNeeded,
    /// It cannot be done here or by this strategy.
    Unsupported,
    /// It went wrong.
    Failed,
}

impl Error {
    /// What sort of failure it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Denied { .. }
            | Self::Untrusted { .. }
            | Self::Unvalidated { .. }
            | Self::Registry(RegistryError::Untrusted { .. }) => Kind::Denied,
            Self::Registry(RegistryError::Program(_)) => Kind::Failed,
            Self::InvalidName { .. } | Self::Forbidden { .. } | Self::Path(_) => Kind::Usage,
            Self::Refused(_) => Kind::Usage,
            Self::NotEmpty { .. }
            | Self::Unwritable { .. }
            | Self::WritableExecutes { .. }
            | Self::UnknownAgent { .. }
            | Self::NoPresetNetwork
            | Self::BadAgentHome { .. }
            | Self::Unhidable { .. } => Kind::Usage,
            Self::AgentFileMoved { .. } => Kind::Conflict,
            Self::AgentFileUnkept { .. } => Kind::Unsupported,
            Self::UnsupportedType { .. } | Self::Registry(RegistryError::NothingWorks { .. }) => {
                Kind::Unsupported
            }
            Self::UnknownType { .. } | Self::Registry(_) | Self::Config(_) => Kind::Usage,
            Self::AmbiguousPlan { .. }
            | Self::SeveralPlans { .. }
            | Self::BadPattern { .. }
            | Self::Unmatched { .. }
            | Self::NothingSelected { .. } => Kind::Usage,
            Self::NoConfig
            | Self::UnknownResource { .. }
            | Self::UnknownPlan { .. }
            | Self::NoPlanHere { .. }
            | Self::NoCommitHere { .. }
            | Self::NoSandbox { .. }
            | Self::UnknownCheckpoint { .. }
            | Self::LaterThanCheckpoint { .. }
            | Self::NoOrphan { .. }
            | Self::Away { .. } => Kind::NotFound,
            Self::ResourceExists { .. }
            | Self::ResourceInUse { .. }
            | Self::PlanExists { .. }
            | Self::PlanOver { .. }
            | Self::NotUsable { .. }
            | Self::Conflicts { .. }
            | Self::Unexpected { .. }
            | Self::NothingToUndo { .. }
            | Self::StaleCheckpoint { .. }
            | Self::Overlap { .. }
            | Self::Contradicted { .. }
            | Self::Move(_) => Kind::Conflict,
            Self::Busy { .. }
            | Self::ManyCheckpoints { .. }
            | Self::Forgotten { .. }
            | Self::Live { .. }
            | Self::OtherOptions { .. }
            | Self::BusyOriginal { .. }
            | Self::Store(StoreError::Busy { .. }) => Kind::Busy,
            Self::Unfinished { .. }
            | Self::HalfMade { .. }
            | Self::HalfRemoved { .. }
            | Self::Forward { .. }
            | Self::RecoveryNeeded { .. }
            | Self::Damaged { .. }
            | Self::Undecided { .. }
            | Self::Unrecorded { .. }
            | Self::NotFinished { .. } => Kind::RecoveryNeeded,
            Self::CommitFailed { open: true, .. } => Kind::RecoveryNeeded,
            Self::CommitFailed { cause, .. }
            | Self::Member { cause, .. }
            | Self::Snapshot { cause, .. } => cause.kind(),
            Self::Irreversible { .. } | Self::CannotReturn { .. } => Kind::Unsupported,
            Self::BadParent { .. } | Self::NotAsked { .. } | Self::NoHome => Kind::Usage,
            Self::Run(
                RunError::Step { .. } | RunError::NoNetwork { .. } | RunError::NoNamespaces { .. },
            ) => Kind::Unsupported,
            Self::NotPublished { .. } => Kind::Usage,
            Self::Run(RunError::Injection { .. }) => Kind::Usage,
            Self::Run(RunError::Restless { .. }) => Kind::Busy,
            Self::Run(_) => Kind::Failed,
            Self::NoSpace { .. }
            | Self::Interrupted { .. }
            | Self::Invalid { .. }
            | Self::Undoing
            | Self::Cancelled
            | Self::Panicked { .. } => Kind::Failed,
            Self::Partly { kind, .. } => *kind,
            Self::LeftBehind { first, .. } | Self::WorkLost { first, .. } => first.kind(),
            Self::Strategy(error) => strategy_kind(error),
            Self::Store(StoreError::Newer { .. }) => Kind::Unsupported,
            Self::Store(StoreError::Lost { .. }) => Kind::RecoveryNeeded,
            Self::Fs(error) if error.is_absent() => Kind::NotFound,
            Self::Store(_) | Self::Fs(_) | Self::Output(_) => Kind::Failed,
        }
    }
}

fn strategy_kind(error: &StrategyError) -> Kind {
    match error {
        StrategyError::NotThere { .. } => Kind::NotFound,
        StrategyError::NotAFile { .. }
        | StrategyError::InTheWay { .. }
        | StrategyError::Outside { .. }
        | StrategyError::Unreadable { .. }
        | StrategyError::Carved { .. } => Kind::Usage,
        StrategyError::Leaves { .. }
        | StrategyError::ForgedMark { .. }
        | StrategyError::Displaced { .. }
        | StrategyError::Forbidden { .. } => Kind::Denied,
        StrategyError::Replaced { .. }
        | StrategyError::Moved { .. }
        | StrategyError::NotTaken { .. }
        | StrategyError::Contradicted { .. }
        | StrategyError::Untold { .. }
        | StrategyError::Lost { .. } => Kind::Conflict,
        StrategyError::Gone { .. } => Kind::NotFound,
        StrategyError::Unsupported { .. } => Kind::Unsupported,
        StrategyError::Altered { .. } => Kind::RecoveryNeeded,
        StrategyError::Locked { .. } | StrategyError::ClientBusy => Kind::Busy,
        StrategyError::Server {
            code: Some(code), ..
        }
        | StrategyError::TakenBack {
            code: Some(code), ..
        } if code.starts_with("40") => Kind::Conflict,
        StrategyError::Git { .. }
        | StrategyError::Database { .. }
        | StrategyError::Server { .. }
        | StrategyError::HolderGone { .. }
        | StrategyError::TakenBack { .. }
        | StrategyError::Plugin(_)
        | StrategyError::Damaged { .. }
        | StrategyError::Input { .. }
        | StrategyError::Fs(_) => Kind::Failed,
    }
}
