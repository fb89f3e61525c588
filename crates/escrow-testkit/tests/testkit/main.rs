//! The testkit's own tests: a checker that notices nothing would make every other test worthless.
#![allow(
    clippy::disallowed_methods,
    reason = "std::fs is banned in the engine; this is the checker beside it"
)]

mod checker;
mod model;
mod powercut;
mod running;
mod stepper;
mod zoos;

use escrow_testkit::prelude::*;
use escrow_testkit::user::rerun_as_user;
