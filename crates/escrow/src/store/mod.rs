//! The state store: plans, sandboxes, resources, the journal and the log.
//!
//! ```text
//! $ESCROW_HOME/
//!   state.db         everything in here; SQLite, WAL, synchronous=FULL
//!   locks/<plan id>  held while a process works on a plan
//!   sandboxes/<id>/  areas of sandboxes, private
//!   generation       how many areas the store recorded: one that counts less lost records
//!   ballast/         room that is given up when the disk is full
//! ```
//!
//! Several processes use one store at once: writers wait for each other for a bounded time. The
//! schema moves forward by the files in `schema/`, one transaction each; a store of a newer
//! version is refused.

mod checkpoints;
mod configs;
mod identity;
mod journal;
mod lifecycle;
mod log;
mod mapping;
mod portable;
mod records;
mod rows;
mod sqlite;

pub(crate) use configs::PlanConfig;
pub use configs::TrustedConfig;
pub use identity::LostRecords;
pub(crate) use lifecycle::BeginOutcome;
pub use rows::{
    Checkpoint, JournalEntry, JournalMember, LogCheck, LogFault, LoggedOperation, Operation,
    OperationEnd, OperationOutcome, Plan, Resource, SandboxRecord,
};
pub(crate) use rows::{CommitArea, RenewedSnapshot};
pub use sqlite::{Store, StoreError};
