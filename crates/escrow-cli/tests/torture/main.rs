//! Commit, undo and recovery under faults: a kill at every call, torn writes, errors, failing syncs, power cuts. After
//! each of them every resource of the plan is old or every one is new, and what the program said is true.
//!
//! `make test` runs the bounded form; `ESCROW_TORTURE=long` (`make torture`) the long one, which also writes
//! `docs/reliability.md`.
//!
//! | file | promise |
//! |---|---|
//! | `scenario` | what the originals hold, what is changed in their sandboxes, and what must come out |
//! | `subject` | a world with one plan, ready to be committed, made in milliseconds |
//! | `checker` | says on which side a world came out, by its own means |
//! | `point` | one fault, what was found after it, and everything that must hold then |
//! | `sweep` | many points at once, and the figures |
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod checker;
mod kills;
mod point;
mod scenario;
mod subject;
mod sweep;

use std::path::PathBuf;

/// The program under test.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_escrow"))
}
