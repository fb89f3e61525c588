//! Every verb under faults: a kill at every call, torn writes, errors, failing syncs, power cuts, full disks, a damaged store. After
//! each of them every resource of the plan is old or every one is new, and what the program said is true.
//!
//! `make test` runs the bounded form; `ESCROW_TORTURE=long` (`make torture`) the long one, which also writes
//! `docs/reliability.md`.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at real files and their own environment"
)]

mod bucket;
mod bugs;
mod checker;
mod checkpoints;
mod checkpoints_world;
mod clones;
#[expect(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../../../escrow/tests/engine/commit_faulty.rs"]
mod commit_faulty;
mod container;
mod damage;
mod door;
mod errors;
mod form;
mod forward;
mod four;
mod full;
mod git;
mod git_large;
mod image;
mod kills;
mod later;
mod layer;
mod life;
mod next;
mod next_world;
mod parts;
mod point;
mod power;
mod report;
mod scenario;
mod snapshots;
mod soak;
mod sqlite;
#[path = "../../../escrow/tests/engine/sqlite_histories.rs"]
mod sqlite_histories;
mod subject;
mod support;
mod sweep;
mod tool;
mod two_homes;
mod unlinks;
mod user;

use checker::{Side, nothing_left, side};
use escrow_testkit::prelude::*;
use form::Form;
use kills::{WRITES, telling};
use point::{Before, Point, Verb, Verdict, no_sync_again, stepper, words};
use scenario::Kind::{self, Container, Copy, Cow, None as Nothing, Overlay, Snapshot};
use scenario::{NEW_TIMES, REFUSED, Scenario, Sides, Size, Where, set_attribute, set_time};
use subject::{EDIT, LABELS, PLAN, Subject, manager, options};
use sweep::{Figures, Trial};

/// The program under test.
fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_escrow"))
}
