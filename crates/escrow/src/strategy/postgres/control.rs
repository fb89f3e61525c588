//! What the engine asks of a holder, over a socket that only its own user reaches: one line of JSON there, one back.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::holder::{self, NoAnswer, PATIENCE};
use super::connect::PgError;
use super::location::Server;
use crate::model::Change;

/// Where clients connect, below the area of a sandbox; named as libpq looks for it.
pub(super) const CLIENTS: &str = "pg/.s.PGSQL.5432";

/// The port in its name. It is said wherever the socket is, since a client would take that of its variables otherwise.
pub(super) const PORT: u16 = 5432;

/// The directory of that.
pub(super) const CLIENTS_DIR: &str = "pg";

/// The longest path of a Unix socket.
pub(super) const LONGEST_PATH: usize = 107;

/// What is said where the server lets nothing be prepared.
pub(super) const NOT_PREPARED: &str = "the server has max_prepared_transactions = 0, so the commit of this database cannot be prepared: it is the one \
     member of its plan that can be neither promised nor taken back; set max_prepared_transactions to 10 or more and restart the server";

/// What a holder is told when it is started.
#[derive(Serialize, Deserialize)]
pub(super) struct HolderSpec {
    pub(super) server: Server,
    /// Handed over through a pipe, kept in memory alone.
    pub(super) password: Option<String>,
    pub(super) area: PathBuf,
    /// It keeps no transaction: it passes clients on to the server, which is reached for them under this name of a database.
    pub(super) passes: Option<String>,
}

/// What is asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// How it stands.
    Status,
    /// What was changed.
    Changes,
    /// Whether it could be committed, as one of so many.
    Check { of: u64 },
    /// Prepare the transaction under this name, if no client worked in it since the comparison of this number.
    Prepare { gid: String, turns: u64 },
    /// Commit what was prepared under this name, or take it back and begin anew.
    Finish { gid: String, commit: bool },
    /// Commit what is held, where nothing can be prepared, under the same condition.
    Commit { turns: u64 },
    /// Take everything back and begin anew.
    Rollback,
    /// Keep it as it is now.
    Checkpoint,
    /// Whether there is a checkpoint of this name.
    Knows(String),
    /// Return to it.
    Restore(String),
    /// Forget every checkpoint that is newer than the newest of these.
    Retain(Vec<String>),
    /// What the server says of the transaction of this number.
    Outcome(String),
    /// End.
    End,
}

/// How a holder stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Status {
    /// Seconds since the transaction began.
    pub(super) age: u64,
    /// The number of the transaction on the server, once it changed anything.
    pub(super) xid: Option<String>,
    /// How many locks it holds.
    pub(super) locks: u64,
    /// How many checkpoints it has.
    pub(super) checkpoints: usize,
    /// How many transactions the server lets be prepared.
    pub(super) max_prepared: u64,
    /// What will not work, or not as outside.
    pub(super) warnings: Vec<String>,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changes {
    pub(super) changes: Vec<Change>,
    /// What is changed and cannot be taken back, or cannot be shown.
    pub(super) notes: Vec<(String, String)>,
    /// How often clients had worked in it.
    pub(super) turns: u64,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Status(Status),
    Changes(Changes),
    /// It can be committed: the number of the transaction on the server, if it changed anything, and how often clients had
    /// worked in it.
    Fit {
        xid: Option<String>,
        turns: u64,
    },
    Rows(Vec<super::connect::Row>),
    /// The name of a checkpoint.
    Kept(String),
    /// There are as many checkpoints as there may be.
    Full,
    /// There is no such checkpoint.
    Unknown,
    Done,
    /// It was taken back, and the changes could not be made again.
    Dropped,
    /// It was not done.
    Failed(PgError),
    /// It was not done, the server took everything back, and that could not be made again.
    TakenBack(PgError),
    /// Another client has a transaction open.
    Busy,
    /// A client worked in it since.
    Moved,
    /// The connection is gone, and everything that was done on it.
    Lost(String),
}

/// Asks a holder.
pub(super) fn ask(area: &Path, request: &Request) -> Result<Answer, NoAnswer> {
    holder::ask(area, request, PATIENCE)
}
