//! A commit works alone: others wait, are refused, or find a conflict where they overlap; a killed process holds nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Barrier, mpsc};
use std::time::Duration;

use escrow::error::{Error, Kind, Result};
use escrow::event::{Observer, Unobserved};
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, differences, signature};
use escrow_testkit::user::rerun_test_as_user;

use crate::commit_support::{
    Must, PLAIN, all_succeed, areas, assert_tree, child, conflict_paths, during, halting, holds,
    kill, request, start_child, start_halting, wait_for,
};
use crate::overlay::{BASE, original};
use crate::support::{ISOLATING, Sandboxed, at, each, empty_plan, impatient, names, open, plan_of};

/// Whether another process was quicker.
fn is_late<T>(answer: &Result<T>) -> bool {
    matches!(
        answer,
        Err(Error::PlanOver {
            state: PlanState::Committed,
            ..
        } | Error::Busy { .. })
    )
}

const EDITS: &str = "printf new > file; rm -r a; mkdir -p n/d; printf x > n/d/x; chmod 0700 b";

/// One of many commits a plan; the others are reported.
// rule C14
#[test]
fn many_threads_commit_one_plan() {
    for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
        sandbox.native(EDITS);
        let promised = sandbox.promised();
        let (barrier, home) = (Barrier::new(6), world.home());
        let answers: Vec<Result<_>> = std::thread::scope(|scope| {
            let one = |number| {
                let (barrier, home, plan) = (&barrier, &home, &sandbox.plan);
                scope.spawn(move || {
                    let manager = if number % 2 == 0 {
                        open(home)
                    } else {
                        impatient(home)
                    };
                    barrier.wait();
                    manager.commit(plan, &request(PLAIN), &Unobserved)
                })
            };
            let threads: Vec<_> = (0..6).map(one).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|answer| answer.expect("no panic")).collect()
        });
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        let late = answers.iter().filter(|answer| is_late(answer)).count();
        assert_eq!((done, late), (1, 5), "{strategy}: {answers:?}");
        assert_tree(&promised, &sandbox.original, strategy);
    }
}

/// Does nothing by itself: a process that commits a plan, at once or until it is killed.
#[test]
fn child_that_commits() {
    let Some((word, world)) = child() else {
        return;
    };
    let manager = open(&world.join("escrow-home"));
    let plan = manager.resolve_plan(Some("shared"), &world);
    let plan = plan.must("it was made before");
    let answer = match word.parse() {
        Ok(after) => manager.commit(&plan, &request(PLAIN), &halting(after, &world)),
        Err(_) => {
            wait_for("the start", || world.join(&word).exists());
            manager.commit(&plan, &request(PLAIN), &Unobserved)
        }
    };
    if !is_late(&answer) {
        answer.must("it is committed");
        let done = world.join(format!("done-{}", std::process::id()));
        std::fs::write(done, "").expect("the world is writable");
    }
}

const CHILD_THAT_COMMITS: &str = "commit_locks::child_that_commits";

fn shared_plan(world: &World, strategy: &str) -> Sandboxed {
    let original = original(world, "original", BASE);
    let sandbox = Sandboxed::named(&world.home(), "shared", &original, strategy);
    sandbox.native(EDITS);
    sandbox
}

// rule C14
#[test]
fn many_processes_commit_one_plan() {
    rerun_test_as_user("commit_locks::many_processes_commit_one_plan");
    for strategy in ["filesystem_copy", "overlay"] {
        let world = World::new();
        let sandbox = shared_plan(&world, strategy);
        let promised = sandbox.promised();
        let start = |_| start_child(CHILD_THAT_COMMITS, world.path(), "go");
        let children: Vec<Child> = (0..4).map(start).collect();
        std::fs::write(world.path().join("go"), "").expect("the world is writable");
        all_succeed(children);
        let names = names(world.path());
        let done = names.iter().filter(|name| name.starts_with("done-"));
        assert_eq!(done.count(), 1, "{names:?}");
        assert_tree(&promised, &sandbox.original, strategy);
    }
}

/// A process that is killed holds nothing: the next one goes on, and the plan ends on one side.
// rule C3, C14
#[test]
fn a_commit_that_is_killed_holds_no_lock() {
    rerun_test_as_user("commit_locks::a_commit_that_is_killed_holds_no_lock");
    for strategy in ["filesystem_copy", "overlay"] {
        for after in [1, 3, 5, 6, 7] {
            let (world, when) = (World::new(), format!("{strategy} {after}"));
            let sandbox = shared_plan(&world, strategy);
            let (before, promised) = (signature(&sandbox.original), sandbox.promised());
            let other = Sandboxed::new(&world.home(), &sandbox.original, strategy);
            other.write("b/other", b"other").expect("it can be written");
            let child = start_halting(CHILD_THAT_COMMITS, world.path(), &after.to_string());
            let busy = impatient(&world.home()).commit(&other.plan, &request(PLAIN), &Unobserved);
            assert_eq!(
                busy.expect_err("another process is at it").kind(),
                Kind::Busy
            );
            let recovered = open(&world.home()).recover().must(&when);
            assert!(recovered.is_empty(), "it is alive: {when}");
            kill(child);
            // Another plan on the same original recovers it, by the way, and is not kept waiting.
            let manager = impatient(&world.home());
            let (mut released, mut notices) = (None, String::new());
            wait_for("every lock is free", || {
                let answer = manager.commit(&other.plan, &request(PLAIN), &Unobserved);
                notices.push_str(&manager.notices().join("; "));
                let again =
                    |error: &Error| matches!(error.kind(), Kind::RecoveryNeeded | Kind::Busy);
                let tried = !answer.as_ref().err().is_some_and(again);
                released = Some(answer);
                tried
            });
            released.expect("it was tried").must(&when);
            assert!(notices.contains("'shared'"), "{when}: {notices}");
            other.undone();
            let times = Ignore {
                times: true,
                ..Ignore::default()
            };
            let is = |sig| {
                let found = differences(sig, &signature(&sandbox.original), &times);
                assert!(found.is_empty(), "{when}: neither old nor new: {found:?}");
            };
            match sandbox.state_of_plan() {
                PlanState::Open => {
                    is(&before);
                    assert!(notices.contains("before"), "{notices}");
                    sandbox.committed();
                }
                PlanState::Committed => {
                    is(&promised);
                    assert!(notices.contains("new"), "{notices}");
                }
                state => panic!("{when}: {state}"),
            }
            sandbox.undone();
            is(&before);
        }
    }
}

/// Runs `work` while a commit of `sandbox` is paused at one of its entries.
fn during_commit(sandbox: &Sandboxed, after: u64, work: impl FnOnce()) {
    let manager = open(sandbox.manager.home());
    let commit = |observer: &dyn Observer| manager.commit(&sandbox.plan, &request(PLAIN), observer);
    during(after, commit, work).must("it goes on");
}

/// While a commit is under way nothing else is done with its plan, nor with its original; looking
/// at the state is always possible.
// rule C14, S5
#[test]
fn operations_during_a_commit() {
    // Once while it stages, once while it applies.
    for after in [1, 7] {
        for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
            sandbox.native(EDITS);
            let promised = sandbox.promised();
            let other = Sandboxed::new(&world.home(), &sandbox.original, strategy);
            other.write("h1", b"other").expect("it can be written");
            let empty = empty_plan(&other.manager, "fresh");
            during_commit(&sandbox, after, || {
                let m = impatient(&world.home());
                let (plan, resource, terms) = (&sandbox.plan, &sandbox.resource, request(PLAIN));
                let mut bytes = &b"x"[..];
                let new = |plan| m.create_sandbox(plan, resource, Some(strategy), &Unobserved);
                let refused = [
                    ("commit", m.commit(plan, &terms, &Unobserved).map(drop)),
                    ("preview", m.preview(plan, PLAIN).map(drop)),
                    ("read", m.read(plan, resource, &at("file")).map(drop)),
                    (
                        "write",
                        m.write(plan, resource, &at("x"), &mut bytes).map(drop),
                    ),
                    ("access", m.access(plan, resource, None).map(drop)),
                    ("diff", m.diff(plan, None).map(drop)),
                    ("rollback", m.rollback(plan, &Unobserved).map(drop)),
                    ("cleanup", m.cleanup(plan, false).map(drop)),
                    ("undo", m.undo(plan, &Unobserved).map(drop)),
                    ("create", new(plan).map(drop)),
                    (
                        "other commit",
                        m.commit(&other.plan, &terms, &Unobserved).map(drop),
                    ),
                    ("other preview", m.preview(&other.plan, PLAIN).map(drop)),
                    ("other diff", m.diff(&other.plan, None).map(drop)),
                    (
                        "other rollback",
                        m.rollback(&other.plan, &Unobserved).map(drop),
                    ),
                    ("a new sandbox", new(&empty).map(drop)),
                ];
                for (what, answer) in refused {
                    let kind = answer.as_ref().map_err(Error::kind);
                    assert_eq!(kind, Err(Kind::Busy), "{strategy} {after}: {what}");
                }
                let status = m.status().expect("looking is always possible");
                let mut running = status.running.iter();
                assert!(running.any(|one| one.alive && one.operation.action == "commit"));
                assert!(
                    m.recover().expect("it can be asked").is_empty(),
                    "it is alive"
                );
                m.plans().expect("looking is always possible");
                m.log(None).expect("looking is always possible");
            });
            assert_tree(&promised, &sandbox.original, &format!("{strategy} {after}"));
            other.committed();
        }
    }
}

/// Who has patience waits, and then sees the original as the commit left it.
// rule C14
#[test]
fn the_patient_wait_for_a_commit() {
    for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
        let original = &sandbox.original;
        sandbox.native(EDITS);
        let [apart, overlapping] = ["h1", "file"].map(|path| {
            let other = Sandboxed::new(&world.home(), original, strategy);
            other.write(path, b"other").expect("it can be written");
            other
        });
        let (tell, told_of) = mpsc::channel();
        std::thread::scope(|scope| {
            type Work<'w> = Box<dyn FnOnce() -> Result<Vec<String>> + Send + 'w>;
            let late = || Sandboxed::attempt(&world.home(), original, strategy);
            let works: [(&str, Work<'_>); 3] = [
                (
                    "apart",
                    Box::new(move || apart.commit().map(|_| Vec::new())),
                ),
                (
                    "overlapping",
                    Box::new(move || Ok(conflict_paths(overlapping.commit()))),
                ),
                ("late", Box::new(move || Ok(late()?.listing()))),
            ];
            during_commit(&sandbox, 7, || {
                for (name, work) in works {
                    let tell = tell.clone();
                    scope.spawn(move || tell.send((name, work())).expect("the test waits"));
                }
                std::thread::sleep(Duration::from_millis(100));
                assert!(told_of.try_recv().is_err(), "{strategy}: none went on");
            });
        });
        drop(tell);
        let answers = told_of
            .iter()
            .map(|(name, answer)| (name, answer.must(name)));
        let answers: BTreeMap<&str, Vec<String>> = answers.collect();
        assert_eq!(answers["apart"], [""; 0], "{strategy}");
        assert_eq!(answers["late"], [""; 0], "{strategy}");
        assert_eq!(answers["overlapping"], ["file"], "{strategy}");
        holds(original, "is 'h1 file' othernew", strategy);
    }
}

/// Two homes know nothing of each other, and still take turns.
// rule C14
#[test]
fn two_homes_on_one_original() {
    for (_, world, sandbox) in each(&["filesystem_copy"], BASE) {
        sandbox.native(EDITS);
        let home = world.dir("other-home");
        let other = Sandboxed::new(&home, &sandbox.original, "filesystem_copy");
        other.native("printf other > file; printf other > h1");
        during_commit(&sandbox, 7, || {
            let busy = impatient(&home).commit(&other.plan, &request(PLAIN), &Unobserved);
            assert!(matches!(busy, Err(Error::BusyOriginal { .. })), "{busy:?}");
        });
        assert_eq!(conflict_paths(other.commit()), ["file"]);
    }
}

/// Plans that share several originals in another order do not wait for each other in a circle.
// rule C14, S5
#[test]
fn several_originals_in_any_order() {
    let world = World::new();
    let originals: Vec<PathBuf> = (0..3)
        .map(|number| original(&world, &format!("original-{number}"), BASE))
        .collect();
    let plans: Vec<_> = (0..6)
        .map(|number| {
            let mut paths: Vec<&Path> = originals.iter().map(PathBuf::as_path).collect();
            paths.rotate_left(number % 3);
            if number > 2 {
                paths.reverse();
            }
            let manager = open(&world.home());
            let view = plan_of(&manager, None, &paths, "filesystem_copy");
            for sandbox in &view.sandboxes {
                let (path, mut text) = (at(format!("new-{number}")), &b"new"[..]);
                let written = manager.write(&view.plan, &sandbox.resource, &path, &mut text);
                written.must("it can be written");
            }
            (manager, view.plan)
        })
        .collect();
    let barrier = Barrier::new(plans.len());
    std::thread::scope(|scope| {
        for (manager, plan) in plans {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let released = manager.commit(&plan, &request(PLAIN), &Unobserved);
                released.must("they do not overlap");
            });
        }
    });
    for original in &originals {
        for number in 0..6 {
            assert!(original.join(format!("new-{number}")).exists(), "{number}");
        }
    }
    assert_eq!(areas(&world.home()).len(), 18, "each keeps what undo needs");
}
