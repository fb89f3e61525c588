//! What the engine asks of the process that holds a transaction, and what it answers.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::NAME;
use crate::model::text::Location;
use crate::model::{Change, ResourcePath};
use crate::strategy::error::StrategyError;
use crate::strategy::{Intent, Preview, QueryResult, RollbackReport, unsupported};

/// What a holder is told when it is started.
#[derive(Serialize, Deserialize)]
pub(super) struct HeldSpec {
    pub(super) database: Location,
    pub(super) area: Location,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// How it stands.
    Status,
    Query {
        statement: String,
        read_only: bool,
    },
    Read(ResourcePath),
    Write(ResourcePath, String),
    /// What was changed.
    Preview,
    /// Stage a commit in this area.
    Prepare(Location),
    /// Carry it out, if nothing was done in the transaction since this state of it.
    Commit {
        plan: Intent,
        state: String,
    },
    /// Take it back, and hold its changes again.
    Undo(Intent),
    /// Discard the changes.
    Rollback,
    /// Keep it as it is now.
    Checkpoint,
    /// Whether there is a checkpoint of this name.
    Knows(String),
    /// Return to it.
    Restore(String),
    /// Forget every checkpoint that is newer than the newest of these.
    Retain(Vec<String>),
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Status {
        /// Seconds since the transaction began.
        age: u64,
        checkpoints: usize,
    },
    Rows(QueryResult),
    Text(String),
    Written(Change),
    Preview(Box<Preview>),
    Prepared {
        plan: Intent,
        changes: Vec<Change>,
        state: String,
    },
    Undone(RollbackReport),
    /// The name of a checkpoint.
    Kept(String),
    Done,
    /// There is no such checkpoint.
    Unknown,
    /// Something was done in the transaction since.
    Moved,
    /// No transaction is held, for this reason.
    NotHeld(String),
    Refused(Refusal),
}

/// An error, by what the caller can do about it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Refusal {
    NotThere(ResourcePath),
    Unreadable(ResourcePath, String),
    Moved(ResourcePath, String),
    Locked,
    Unsupported { what: String, why: String },
    TakenBack(String),
    Database { what: String, said: String },
}

impl From<StrategyError> for Refusal {
    fn from(error: StrategyError) -> Self {
        match error {
            StrategyError::NotThere { path } => Self::NotThere(path),
            StrategyError::Unreadable { path, why } => Self::Unreadable(path, why),
            StrategyError::Moved { path, what } | StrategyError::Contradicted { path, what } => {
                Self::Moved(path, what)
            }
            StrategyError::Locked { .. } => Self::Locked,
            StrategyError::Unsupported { what, why, .. } => Self::Unsupported { what, why },
            StrategyError::TakenBack { said, .. } => Self::TakenBack(said),
            StrategyError::Database { what, said, .. } => Self::Database { what, said },
            other => Self::Database {
                what: "work in the transaction".to_owned(),
                said: other.to_string(),
            },
        }
    }
}

impl Refusal {
    pub(super) fn about(self, database: &Location) -> StrategyError {
        let at = database.clone();
        match self {
            Self::NotThere(path) => StrategyError::NotThere { path },
            Self::Unreadable(path, why) => StrategyError::Unreadable { path, why },
            Self::Moved(path, what) => StrategyError::Moved { path, what },
            Self::Locked => StrategyError::Locked { at },
            Self::Unsupported { what, why } => unsupported(NAME, &what, &why),
            Self::TakenBack(said) => StrategyError::TakenBack { code: None, said },
            Self::Database { what, said } => StrategyError::Database { at, what, said },
        }
    }
}

/// The whole of what is to be written.
pub(super) fn all_of(
    path: &ResourcePath,
    from: &mut dyn Read,
) -> crate::strategy::error::Result<String> {
    let mut text = String::new();
    let read = from.read_to_string(&mut text);
    read.map_err(|source| StrategyError::Input {
        path: path.clone(),
        source,
    })?;
    Ok(text)
}
