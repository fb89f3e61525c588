//! Some points of the sweeps as an ordinary user, who has no namespace but what a user gets: a plan, a part of it and its
//! checkpoints are wholly as before or wholly as after, whatever is killed.

use escrow_testkit::user::rerun_as_user;

use crate::*;

// rule C1, C3, C10, C17, P4, P6, R3, R4
#[test]
fn verbs_are_killed_as_an_ordinary_user() {
    rerun_as_user(&[&binary()]);
    // Root sweeps more, by tests of their own.
    need!(!is_root() && require_stepper());
    let form = Form::Bounded;
    let parts = form.run(parts::turns(form), 18);
    parts.settle("a part, as an ordinary user", 16);
    let checkpoints = form.run(checkpoints::turns(form), 18);
    checkpoints.settle("checkpoints, as an ordinary user", 16);
    let pairs = form.run(next::killed_pairs(form), 24);
    pairs.settle("any verb killed, then any verb, as an ordinary user", 20);
}
