//! What is true of every commit: it can be given up at any point, it keeps its message, and one of nothing does nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use escrow::error::Error;
use escrow::event::{Observer, Unobserved};
use escrow::manager::CommitRequest;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_support::{
    PLAIN, areas, assert_shares_nothing, assert_tree, conflict_paths, request, stamps, told,
};
use crate::overlay::{BASE, original};
use crate::support::{ISOLATING, Sandboxed, assert_swept};

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
    let world = World::new();
    for strategy in ISOLATING {
        for counts_entries in [false, true] {
            let original = original(&world, &format!("{strategy}-{counts_entries}"), BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(EDITS);
            let before = signature(&original);
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
                assert_tree(&before, &original, &when);
                assert_eq!(sandbox.listing(), listing, "{when}");
                assert_eq!(areas(&world.home()), here, "{when}");
                assert!(after < 100, "it never ends");
            }
            assert!(given_up > 5, "there are many points: {given_up}");
            assert_tree(&promised, &original, "committed");
            assert_shares_nothing(&original);
            sandbox.undone();
            assert_tree(&before, &original, "undone");
            sandbox.cleanup();
        }
    }
    assert_swept(&world.home());
}

/// What the user said about a commit is kept, also of one that failed.
// rule P9
#[test]
fn the_message_of_a_commit() {
    let world = World::new();
    let words = "fix \"quotes\" & 'more',\nsecond line \u{1F980} %s \\n";
    for strategy in ISOLATING {
        let original = original(&world, strategy, BASE);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.write("file", b"new").expect("it can be written");
        let say = |message| CommitRequest {
            message: Some(message),
            terms: PLAIN,
            expected: None,
        };
        let observer = Impatient::new(0, false);
        let manager = &sandbox.manager;
        manager
            .commit(&sandbox.plan, &say("first, given up"), &observer)
            .expect_err("it is given up");
        manager
            .commit(&sandbox.plan, &say(words), &Unobserved)
            .expect("it can be committed");
        sandbox.undone();
        let log = crate::support::open(&world.home())
            .log(Some(&sandbox.plan))
            .expect("it can be shown");
        let said: Vec<(&str, Option<&str>, &str)> = log
            .iter()
            .filter(|one| ["commit", "undo"].contains(&one.operation.action.as_str()))
            .map(|one| {
                let operation = &one.operation;
                let message = operation.message.as_deref();
                (operation.action.as_str(), message, one.outcome.as_str())
            })
            .collect();
        assert_eq!(
            said,
            [
                ("commit", Some("first, given up"), "failed"),
                ("commit", Some(words), "done"),
                ("undo", None, "done"),
            ],
            "{strategy}"
        );
        sandbox.cleanup();
    }
}

/// Where nothing changed nothing is written: no area is made, and not even a ctime moves.
// rule C13
#[test]
fn a_commit_of_nothing() {
    let world = World::new();
    for strategy in ISOLATING {
        for (number, script) in [":", "touch file a; printf new > n; rm n; mv a x; mv x a"]
            .iter()
            .enumerate()
        {
            let original = original(&world, &format!("{strategy}-{number}"), BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            if number > 0 {
                sandbox.native(script);
            }
            let (before, moments) = (signature(&original), stamps(&original));
            let released = sandbox.committed();
            assert_eq!(released.preview.members.len(), 1);
            assert!(released.preview.members[0].diff.is_empty(), "{strategy}");
            assert_eq!(areas(&world.home()), [""; 0], "{strategy}: {script}");
            assert_eq!(stamps(&original), moments, "{strategy}: {script}");
            sandbox.undone();
            assert_eq!(stamps(&original), moments, "{strategy}: {script}");
            assert_tree(&before, &original, strategy);
            sandbox.undo().expect_err("there is nothing left to undo");
            sandbox.cleanup();
        }
    }
    assert_swept(&world.home());
}

/// A member without changes takes nothing, and needs nothing, beside one that has some.
// rule C13
#[test]
fn a_member_without_changes() {
    let world = World::new();
    let still = original(&world, "still", BASE);
    let moving = original(&world, "moving", BASE);
    let manager = crate::support::open(&world.home());
    let typed = [still.as_os_str().to_owned(), moving.as_os_str().to_owned()];
    let view = manager
        .create_plan(
            None,
            world.path(),
            &typed,
            Some("filesystem_copy"),
            &Unobserved,
        )
        .expect("both are directories");
    let (plan, resource) = (view.plan, &view.sandboxes[1].resource);
    let path = crate::support::at("file");
    manager
        .write(&plan, resource, &path, &mut &b"new"[..])
        .expect("it can be written");
    let (moments, before) = (stamps(&still), signature(&moving));
    manager
        .commit(&plan, &request(PLAIN), &Unobserved)
        .expect("it can be committed");
    assert_eq!(stamps(&still), moments);
    assert_eq!(
        areas(&world.home()).len(),
        1,
        "only the other one keeps undo data"
    );
    // A process that changes what was not committed does not stand in the way of the undo.
    std::fs::write(still.join("file"), "somebody's").expect("it is ours");
    let moments = stamps(&still);
    manager.undo(&plan, &Unobserved).expect("it can be undone");
    assert_eq!(stamps(&still), moments);
    assert_tree(&before, &moving, "undone");
    manager.cleanup(&plan, false).expect("it can be removed");
    assert_swept(&world.home());
}

/// A plan without sandboxes, and a plan that is over.
// rule C13, P5
#[test]
fn plans_without_anything_to_commit() {
    let world = World::new();
    let manager = crate::support::open(&world.home());
    let view = manager.create_plan(Some("empty"), world.path(), &[], None, &Unobserved);
    let plan = view.expect("a plan needs no resource").plan;
    manager
        .commit(&plan, &request(PLAIN), &Unobserved)
        .expect("there is nothing that could fail");
    let again = manager.commit(&plan, &request(PLAIN), &Unobserved);
    let Err(Error::PlanOver { state, .. }) = again else {
        panic!("{again:?}");
    };
    assert_eq!(state, PlanState::Committed);
    manager.undo(&plan, &Unobserved).expect("of nothing");
    manager.cleanup(&plan, false).expect("it can be removed");
    assert_swept(&world.home());
    assert_eq!(conflict_paths(Ok(())), [""; 0]);
}
