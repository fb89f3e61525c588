//! The strategy error, by what the caller can do about it.

use crate::fs::FsError;
use crate::model::ResourcePath;
use crate::model::text::Location;

/// What a strategy returns.
pub type Result<T> = std::result::Result<T, StrategyError>;

/// Why a held transaction is gone that nobody ended from outside.
pub(super) const ENDED_INSIDE: &str =
    "a statement inside ended it, and what was done in it may be in the original: look there";

/// Why no answer of its server can be trusted any more.
pub(super) const OUT_OF_STEP: &str = "the server answered something that was not asked, and what was done in it may be in the original: look there";

/// What became of the changes of a held transaction that is gone.
fn taken_back(why: &str) -> &'static str {
    match why {
        ENDED_INSIDE | OUT_OF_STEP => "",
        _ => ", and the database took its changes back",
    }
}

/// A request that a strategy could not fulfil.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "what each one says names its fields")]
pub enum StrategyError {
    /// There is nothing at the path.
    #[error("there is no '{path}' in the sandbox")]
    NotThere { path: ResourcePath },
    /// Something stands at the path that cannot be read or written as a file.
    #[error("'{path}' is a {kind}, not a file")]
    NotAFile { path: ResourcePath, kind: String },
    /// Something stands where a directory is needed.
    #[error("'{path}' is a {kind}, where a directory is needed")]
    InTheWay { path: ResourcePath, kind: String },
    /// A link or a mount point on the path would lead out of the resource.
    #[error("'{path}' cannot be reached")]
    Leaves { path: ResourcePath, source: FsError },
    /// The path belongs to another resource, with a sandbox of its own.
    #[error("'{path}' belongs to another resource")]
    Carved { path: ResourcePath },
    /// The resource is one file, and the path is another one.
    #[error("'{path}' is not part of the resource, which is the one file '{only}'")]
    Outside {
        path: ResourcePath,
        only: ResourcePath,
    },
    /// A change that is never committed.
    #[error("'{path}' cannot be committed: {why}")]
    Forbidden { path: ResourcePath, why: String },
    /// What a snapshot had at a path is nowhere any more.
    #[error("'{path}' cannot be restored: {what}")]
    Lost { path: ResourcePath, what: String },
    /// The original, or the sandbox, changed while a commit or a restore was under way.
    #[error("'{path}' changed meanwhile: {what}")]
    Moved { path: ResourcePath, what: String },
    /// The rows of a commit, or of an undo, break a constraint of the original in every order in which they can be written.
    #[error("the original takes these rows in no order that was tried: {said}")]
    NotTaken { said: String },
    /// The original, as it is now, does not permit it, whoever's version is wanted.
    #[error("'{path}' contradicts the original as it is now: {what}")]
    Contradicted { path: ResourcePath, what: String },
    /// A commit or undo was interrupted at its end, and what the original holds does not tell whether it happened.
    #[error(
        "it cannot be told whether the interrupted commit or undo was carried out, since another program changed what it is about ({}): set that in \
         the original to what it was before, or to what it became",
        .paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Untold { paths: Vec<ResourcePath> },
    /// Something else stands where the original was.
    #[error("'{original}' is not what this sandbox was made from")]
    Replaced { original: Location },
    /// Nothing stands where the original was.
    #[error("the original '{original}' is gone")]
    Gone { original: Location },
    /// A command inside put something else where it sees the sandbox.
    #[error("the command inside put something else in the place of '{at}'")]
    Displaced { at: Location },
    /// The program that is the strategy failed.
    #[error(transparent)]
    Plugin(Box<super::plugin::PluginError>),
    /// git failed.
    #[error("git cannot {what}: {said}")]
    Git { what: String, said: String },
    /// What is to be written is no content of the item.
    #[error("cannot write '{path}': {why}")]
    Unreadable { path: ResourcePath, why: String },
    /// A database refused.
    #[error("cannot {what} ('{at}'): {said}")]
    Database {
        at: Location,
        what: String,
        said: String,
    },
    /// Another process holds a lock on a database for longer than it was waited for.
    #[error("the database '{at}' is locked by another process")]
    Locked { at: Location },
    /// The server of a database refused, or could not be reached.
    #[error("the database cannot {what}: {said}")]
    Server {
        what: String,
        code: Option<String>,
        said: String,
    },
    /// What kept the transaction of a sandbox is gone, and with it everything that was done in it.
    #[error("the transaction of the sandbox is gone{}: {why}", taken_back(.why))]
    HolderGone { why: String },
    /// The server refused the end of the transaction, which takes it back.
    #[error("the database took the changes back, and they could not be made again: {said}")]
    TakenBack { code: Option<String>, said: String },
    /// A client of the sandbox is in a transaction of its own.
    #[error("a client of the sandbox is in a transaction, and did not end it in time")]
    ClientBusy,
    /// The strategy cannot do this at all.
    #[error("{strategy} cannot {what}: {why}")]
    Unsupported {
        strategy: String,
        what: String,
        why: String,
    },
    /// A layer holds marks that OverlayFS itself would refuse to follow.
    #[error("'{path}' has the overlay mark '{mark}', which Escrow neither makes nor follows")]
    ForgedMark { path: ResourcePath, mark: String },
    /// What the strategy once wrote down cannot be read back.
    #[error("the sandbox is damaged: {what}")]
    Damaged { what: String },
    /// What a commit wrote down before it was decided is not what is there now.
    #[error("the intent in '{path}' is damaged")]
    Altered { path: Location },
    /// The bytes to write could not be read from where they come.
    #[error("cannot read what is to be written to '{path}'")]
    Input {
        path: ResourcePath,
        source: std::io::Error,
    },
    /// The file system refused.
    #[error(transparent)]
    Fs(#[from] FsError),
}
