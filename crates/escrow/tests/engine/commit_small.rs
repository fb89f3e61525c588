//! What is true of every commit: it can be given up at any point, it keeps its message, and one of nothing does nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use escrow::error::Error;
use escrow::event::{Observer, Unobserved};
use escrow::manager::CommitRequest;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_support::{
    Must, PLAIN, areas, assert_shares_nothing, assert_tree, request, stamps, told,
};
use crate::overlay::{BASE, original};
use crate::support::{ISOLATING, assert_swept, at, each, empty_plan, open, plan_of};

/// Gives up when it was asked, or told, so many times.
struct Impatient {
    after: u64,
    seen: AtomicU64,
    counts_entries: bool,
}

impl Impatient {
    fn new(after: u64, counts_entries: bool) -> Self {
        Self {
            after,
            seen: AtomicU64::new(0),
            counts_entries,
        }
    }
}

impl Observer for Impatient {
    fn copied(&self, entries: u64, _bytes: u64) {
        if self.counts_entries {
            self.seen.fetch_add(entries, Ordering::SeqCst);
        }
    }

    fn is_cancelled(&self) -> bool {
        let seen = match self.counts_entries {
            true => self.seen.load(Ordering::SeqCst),
            false => self.seen.fetch_add(1, Ordering::SeqCst),
        };
        seen >= self.after
    }
}

const EDITS: &str = "rm -r a; printf new > file; mkdir -p n/d; printf x > n/d/f; chmod 0700 b; \
                     rmdir empty; ln -sfn elsewhere link; printf more >> b/one";

/// Wherever a commit is given up, nothing of it is left; and it can be tried again.
// rule C4, C6
#[test]
fn given_up_at_every_point() {
    for counts_entries in [false, true] {
        for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
            let original = &sandbox.original;
            sandbox.native(EDITS);
            let before = signature(original);
            let (listing, promised) = (sandbox.listing(), sandbox.promised());
            let here = areas(&world.home());
            let mut given_up = 0;
            for after in 0.. {
                let observer = Impatient::new(after, counts_entries);
                let Err(error) = sandbox.commit_with(PLAIN, &observer) else {
                    break;
                };
                given_up += 1;
                let when = format!("{strategy} given up after {after}: {}", told(&error));
                assert!(when.contains("given up"), "{when}");
                if let Error::CommitFailed {
                    not_undone, kept, ..
                } = &error
                {
                    assert!(not_undone.is_empty() && kept.is_empty(), "{when}");
                }
                assert_tree(&before, original, &when);
                assert_eq!(sandbox.listing(), listing, "{when}");
                assert_eq!(areas(&world.home()), here, "{when}");
                assert!(after < 100, "it never ends");
            }
            assert!(given_up > 5, "there are many points: {given_up}");
            assert_tree(&promised, original, "committed");
            assert_shares_nothing(original);
            sandbox.undone();
            assert_tree(&before, original, "undone");
            sandbox.cleanup();
            assert_swept(&world.home());
        }
    }
}

/// What the user said about a commit is kept, also of one that failed.
// rule P9
#[test]
fn the_message_of_a_commit() {
    let words = "fix \"quotes\" & 'more',\nsecond line \u{1F980} %s \\n";
    for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
        sandbox.write("file", b"new").expect("it can be written");
        let commit = |message, observer: &dyn Observer| {
            let request = CommitRequest {
                message: Some(message),
                ..request(PLAIN)
            };
            sandbox.manager.commit(&sandbox.plan, &request, observer)
        };
        let given_up = commit("first, given up", &Impatient::new(0, false));
        given_up.expect_err("it is given up");
        commit(words, &Unobserved).must(strategy);
        sandbox.undone();
        let log = open(&world.home())
            .log(Some(&sandbox.plan))
            .must("it can be shown");
        let said = log.iter().map(|one| {
            let operation = &one.operation;
            (
                operation.action.as_str(),
                operation.message.as_deref(),
                one.outcome.as_str(),
            )
        });
        let said: Vec<_> = said
            .filter(|one| ["commit", "undo"].contains(&one.0))
            .collect();
        let expected = [
            ("commit", Some("first, given up"), "failed"),
            ("commit", Some(words), "done"),
            ("undo", None, "done"),
        ];
        assert_eq!(said, expected, "{strategy}");
    }
}

/// Where nothing changed nothing is written: no area is made, and not even a ctime moves.
// rule C13
#[test]
fn a_commit_of_nothing() {
    for script in ["", "touch file a; printf new > n; rm n; mv a x; mv x a"] {
        for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
            if !script.is_empty() {
                sandbox.native(script);
            }
            let (original, when) = (&sandbox.original, format!("{strategy}: {script}"));
            let (before, stamped) = (signature(original), stamps(original));
            let released = sandbox.committed();
            assert_eq!(released.preview.members.len(), 1);
            assert!(released.preview.members[0].diff.is_empty(), "{when}");
            assert_eq!(areas(&world.home()), [""; 0], "{when}");
            assert_eq!(stamps(original), stamped, "{when}");
            sandbox.undone();
            assert_eq!(stamps(original), stamped, "{when}");
            assert_tree(&before, original, &when);
            sandbox.undo().expect_err("there is nothing left to undo");
            sandbox.cleanup();
            assert_swept(&world.home());
        }
    }
}

/// A member without changes takes nothing, and needs nothing, beside one that has some.
// rule C13
#[test]
fn a_member_without_changes() {
    let world = World::new();
    let (still, moving) = (
        original(&world, "still", BASE),
        original(&world, "moving", BASE),
    );
    let manager = open(&world.home());
    let view = plan_of(&manager, None, &[&still, &moving], "filesystem_copy");
    let (plan, resource) = (view.plan, &view.sandboxes[1].resource);
    let written = manager.write(&plan, resource, &at("file"), &mut &b"new"[..]);
    written.must("it can be written");
    let (stamped, before) = (stamps(&still), signature(&moving));
    let committed = manager.commit(&plan, &request(PLAIN), &Unobserved);
    committed.must("it can be committed");
    assert_eq!(stamps(&still), stamped);
    assert_eq!(
        areas(&world.home()).len(),
        1,
        "only the other one keeps undo data"
    );
    // A process that changes what was not committed does not stand in the way of the undo.
    std::fs::write(still.join("file"), "another's").expect("it is ours");
    let stamped = stamps(&still);
    manager.undo(&plan, &Unobserved).must("it can be undone");
    assert_eq!(stamps(&still), stamped);
    assert_tree(&before, &moving, "undone");
    manager.cleanup(&plan, false).must("it can be removed");
    assert_swept(&world.home());
}

/// A plan without sandboxes, and a plan that is over.
// rule C13, P5
#[test]
fn plans_without_anything_to_commit() {
    let world = World::new();
    let manager = open(&world.home());
    let plan = empty_plan(&manager, "empty");
    let commit = || manager.commit(&plan, &request(PLAIN), &Unobserved);
    commit().must("there is nothing that could fail");
    let again = commit();
    let over = matches!(
        again,
        Err(Error::PlanOver {
            state: PlanState::Committed,
            ..
        })
    );
    assert!(over, "{again:?}");
    manager.undo(&plan, &Unobserved).must("of nothing");
    manager.cleanup(&plan, false).must("it can be removed");
    assert_swept(&world.home());
}
