//! What Escrow's tests stand on: private worlds, trees from text, a zoo of odd metadata, loop file systems, real
//! overlay mounts, system call counts, faults at a chosen call, power cuts, a hermetic command line, a reference model,
//! and a checker of trees.
//!
//! Promise: nothing here knows the engine. What this crate says about a tree was found out by its own means, so that a
//! fault of the engine cannot hide in the check. Every set-up that fails panics with what failed and on which path.
#![allow(
    clippy::disallowed_methods,
    reason = "std::fs is banned in the engine; this crate is the checker beside it"
)]

pub mod cli;
pub mod files;
pub mod loopfs;
pub mod model;
pub mod namespace;
pub mod pglink;
pub mod postgres;
pub mod powercut;
pub mod prelude;
mod process;
pub mod pty;
pub mod s3;
pub mod signature;
pub mod skip;
pub mod states;
pub mod stepper;
pub mod strace;
pub mod text;
pub mod tree;
pub mod user;
mod walk;
pub mod world;
pub mod zoo;

pub use cli::{Cli, Outcome};
pub use loopfs::{Fs, LoopFs};
pub use namespace::{Mounted, OverlayMount, XattrKind};
pub use powercut::Disk;
pub use pty::Terminal;
pub use rusqlite;
pub use stepper::{Fault, Stepper};
pub use world::World;
