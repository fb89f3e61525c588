//! Plans of two members of different kinds, interrupted at one call after the other: both originals end on one side.

use std::path::Path;
use std::process::Command;

use escrow::error::Result;
use escrow::event::Unobserved;
use escrow::internals::store::Plan;
use escrow::manager::Manager;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::need;
use escrow_testkit::stepper::{Fault, Stepper, require_stepper};

use crate::commit_support::{Must, PLAIN, request};

/// Where the process that is stepped finds the plan, and what it does there.
const PLACE: &str = "ESCROW_TEST_PLACE";
const VERB: &str = "ESCROW_TEST_VERB";

/// A plan that holds "new" of two members whose originals are "old".
pub(crate) trait TwoMembers: Sized {
    /// Makes it below a directory.
    fn new(place: &Path) -> Self;
    /// What another process finds there.
    fn again(place: &Path) -> Self;
    /// The engine and the plan.
    fn parts(&self) -> (&Manager, &Plan);
    /// What the originals hold.
    fn originals(&self) -> [String; 2];

    fn commit(&self) -> Result<()> {
        let (manager, plan) = self.parts();
        manager.commit(plan, &request(PLAIN), &Unobserved).map(drop)
    }
}

/// What the process does that is stepped; nothing in any other.
pub(crate) fn stepped<M: TwoMembers>() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let members = M::again(Path::new(&place));
    let (manager, plan) = members.parts();
    match std::env::var(VERB).as_deref() {
        Ok("undo") => drop(manager.undo(plan, &Unobserved)),
        _ => drop(members.commit()),
    }
}

/// A member fails, or every process is killed, at one call after the other; then both originals are on one side, and the
/// plan can be brought to the other. `test` is the name of the test that calls [`stepped`].
pub(crate) fn sweep<M: TwoMembers>(test: &str, verb: &str, fault: Fault, stride: u64) {
    need!(require_stepper());
    let mut call = 1;
    loop {
        let world = World::new();
        let members = M::new(world.path());
        if verb == "undo" {
            members.commit().expect("nothing is in the way");
        }
        drop(members);
        let mut command = Command::new(std::env::current_exe().expect("it is this one"));
        command.args(["--exact", test, "--test-threads", "1"]);
        command.env(PLACE, world.path()).env(VERB, verb);
        let run = Stepper::new(command).fault(call, fault);
        let Some(hit) = run.hit else {
            assert!(call > 20, "{verb}: only {call} calls");
            break;
        };
        let when = format!("{verb}, {fault:?} at call {call}: {hit}");
        M::again(world.path()).parts().0.recover().must(&when);
        let members = M::again(world.path());
        let found = members.originals();
        let one_side = found == ["old"; 2] || found == ["new"; 2];
        assert!(one_side, "{when}: {found:?}");
        let (manager, plan) = members.parts();
        if found[0] == "new" {
            manager.undo(plan, &Unobserved).must(&when);
            assert_eq!(members.originals(), ["old", "old"], "{when}");
        } else if plan.state == PlanState::Open {
            members.commit().must(&when);
            // Of an undone plan only a strategy that can gives the changes back.
            let second = match verb {
                "undo" => "old",
                _ => "new",
            };
            assert_eq!(members.originals(), ["new", second], "{when}");
        }
        call += stride;
    }
}
