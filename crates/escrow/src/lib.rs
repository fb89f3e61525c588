//! Escrow's engine: an agent works on the real thing without touching it.
//!
//! A *plan* gives each of its *resources* a *sandbox*, made by a *strategy*. Inside, one reads, writes and runs commands;
//! one diff shows everything that would change; one commit releases all of it or nothing.
//!
//! ```
//! use escrow::{CommitRequest, Escrow, ResourcePath, Unobserved};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let world = std::env::temp_dir().join(format!("escrow-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(world.join("app"))?;
//! let escrow = Escrow::builder().home(world.join("state")).directory(&world).open()?;
//! let made = escrow.create_plan(None, &world, &["app".into()], None, &Unobserved)?;
//! let (plan, app) = (&made.plan, &made.sandboxes[0].resource);
//! escrow.write(plan, app, &ResourcePath::parse(b"notes.txt")?, &mut &b"hello\n"[..])?;
//! let found = escrow.diff(plan, None)?;
//! assert_eq!(found.resources[0].diff.changes.len(), 1);
//! escrow.commit(plan, &CommitRequest::default(), &Unobserved)?;
//! assert_eq!(std::fs::read(world.join("app/notes.txt"))?, b"hello\n");
//! # std::fs::remove_dir_all(&world)?;
//! # Ok(())
//! # }
//! ```
//!
//! Begin with [`Escrow`]. `examples/library.rs` has the whole story: a command inside, checkpoints, a policy and a
//! validation that stop a commit, undo. Every gate is here and not in the command line.
//!
//! No part of the engine prints or ends the process, and only [`Builder`] reads the environment, for what its caller
//! leaves out. `docs/architecture.md` shows the rooms.

pub mod agents;
pub mod commit;
pub mod config;
pub mod diff;
pub mod error;
pub mod event;
mod failpoints;
mod fs;
#[doc(hidden)]
pub mod internals;
pub mod manager;
pub mod model;
pub mod policy;
pub mod resource;
pub mod run;
mod store;
pub mod strategy;

pub use commit::CommitTerms;
pub use error::{Error, Kind, Result};
pub use event::{Observer, Unobserved};
pub use manager::{Builder, CommitRequest, Manager, Manager as Escrow, PlanDiff, RunRequest};
pub use model::ResourcePath;
pub use store::{
    Checkpoint, LogCheck, LogFault, LoggedOperation, Operation, Plan, Resource, SandboxRecord,
    TrustedConfig,
};
