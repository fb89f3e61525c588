//! Who commits does so alone: others wait, are reported, or find a conflict where they overlap; the dead hold nothing.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Duration;

use escrow::error::{Error, Kind, Result};
use escrow::event::{Observer, Unobserved};
use escrow::manager::Manager;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::{Ignore, differences, signature};

use crate::commit_support::{
    PLAIN, areas, assert_tree, child, conflict_paths, request, start_child, told, wait_for,
};
use crate::overlay::{BASE, original};
use crate::support::{ISOLATING, Sandboxed, at, open, options, sh};

/// A manager that waits for no process.
fn impatient(home: &Path) -> Manager {
    let mut options = options(home);
    options.patience = Duration::from_millis(50);
    Manager::open(options).expect("it opens beside others")
}

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
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(EDITS);
        let promised = sandbox.promised();
        let barrier = Barrier::new(6);
        let answers: Vec<Result<_>> = std::thread::scope(|scope| {
            let one = |number| {
                let (barrier, world, plan) = (&barrier, &world, &sandbox.plan);
                scope.spawn(move || {
                    let manager = match number % 2 {
                        0 => open(&world.home()),
                        _ => impatient(&world.home()),
                    };
                    barrier.wait();
                    manager.commit(plan, &request(PLAIN), &Unobserved)
                })
            };
            let threads: Vec<_> = (0..6).map(one).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
            let joined = threads.into_iter().map(join);
            joined.map(|answer| answer.expect("no panic")).collect()
        });
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        let late = answers.iter().filter(|answer| is_late(answer)).count();
        assert_eq!((done, late), (1, 5), "{strategy}: {answers:?}");
        assert_tree(&promised, &original, strategy);
    }
}

/// Does nothing by itself: a process that commits a plan, at once or until it is killed.
#[test]
fn child_that_commits() {
    let Some((word, world)) = child() else {
        return;
    };
    let manager = open(&world.join("escrow-home"));
    let plan = manager
        .resolve_plan(Some("shared"), &world)
        .expect("it was made before");
    let answer = match word.strip_prefix("halt-") {
        None => {
            wait_for("the start", || world.join("go").exists());
            manager.commit(&plan, &request(PLAIN), &Unobserved)
        }
        Some(snapshot) => {
            let halting = Halting {
                snapshot: snapshot.parse().expect("a number was handed over"),
                seen: AtomicU64::new(0),
                marker: world.join("marker"),
            };
            manager.commit(&plan, &request(PLAIN), &halting)
        }
    };
    match answer {
        Ok(_) => std::fs::write(world.join(format!("done-{}", std::process::id())), "")
            .expect("the world is writable"),
        answer if is_late(&answer) => {}
        Err(error) => panic!("{}", told(&error)),
    }
}

/// Says when so many entries were moved, and then waits for its end.
struct Halting {
    snapshot: u64,
    seen: AtomicU64,
    marker: PathBuf,
}

impl Observer for Halting {
    fn copied(&self, entries: u64, _bytes: u64) {
        if self.seen.fetch_add(entries, Ordering::SeqCst) + entries >= self.snapshot {
            std::fs::write(&self.marker, "now").expect("the world is writable");
            loop {
                std::thread::park();
            }
        }
    }
}

fn shared_plan(world: &World, strategy: &str) -> Sandboxed {
    let original = original(world, "original", BASE);
    let manager = open(&world.home());
    let typed = [original.as_os_str().to_owned()];
    let view = manager
        .create_plan(
            Some("shared"),
            world.path(),
            &typed,
            Some(strategy),
            &Unobserved,
        )
        .expect("it is a directory");
    let sandbox = Sandboxed {
        manager,
        plan: view.plan,
        resource: view.sandboxes[0].resource.clone(),
        original,
    };
    sandbox.native(EDITS);
    sandbox
}

// rule C14
#[test]
fn many_processes_commit_one_plan() {
    for strategy in ["filesystem_copy", "overlay"] {
        let world = World::new();
        let sandbox = shared_plan(&world, strategy);
        let promised = sandbox.promised();
        let start = |_| start_child("commit_locks::child_that_commits", world.path(), "go");
        let children: Vec<Child> = (0..4).map(start).collect();
        std::fs::write(world.path().join("go"), "").expect("the world is writable");
        for child in children {
            let output = child.wait_with_output().expect("it is our child");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}");
        }
        let names = crate::support::names(world.path());
        let done = names.iter().filter(|name| name.starts_with("done-"));
        assert_eq!(done.count(), 1, "{names:?}");
        assert_tree(&promised, &sandbox.original, strategy);
    }
}

/// A process that is killed holds nothing: the next one goes on, and the plan ends on one side.
// rule C3, C14
#[test]
fn a_commit_that_is_killed_holds_no_lock() {
    for strategy in ["filesystem_copy", "overlay"] {
        for snapshot in [1, 3, 5, 6, 7] {
            let world = World::new();
            let sandbox = shared_plan(&world, strategy);
            let (before, promised) = (signature(&sandbox.original), sandbox.promised());
            let other = Sandboxed::new(&world.home(), &sandbox.original, strategy);
            other.write("b/other", b"other").expect("it can be written");
            let word = format!("halt-{snapshot}");
            let mut child = start_child("commit_locks::child_that_commits", world.path(), &word);
            let marker = world.path().join("marker");
            wait_for("the commit comes so far", || {
                marker.exists() || child.try_wait().expect("it is our child").is_some()
            });
            if !marker.exists() {
                let output = child.wait_with_output().expect("it is our child");
                let stderr = String::from_utf8_lossy(&output.stderr);
                panic!("{strategy} {snapshot} ended by itself: {stderr}");
            }
            let busy = impatient(&world.home()).commit(&other.plan, &request(PLAIN), &Unobserved);
            assert_eq!(busy.expect_err("somebody is at it").kind(), Kind::Busy);
            assert!(
                open(&world.home())
                    .recover()
                    .expect("it can be asked")
                    .is_empty()
            );
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
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
            let released = released.expect("it was tried");
            released.unwrap_or_else(|error| panic!("{strategy} {snapshot}: {}", told(&error)));
            assert!(
                notices.contains("'shared'"),
                "{strategy} {snapshot}: {notices}"
            );
            other.undone();
            let now = signature(&sandbox.original);
            let is = |sig| {
                differences(
                    sig,
                    &now,
                    &Ignore {
                        times: true,
                        ..Ignore::default()
                    },
                )
                .is_empty()
            };
            let view = sandbox.manager.plans().expect("they can be listed");
            let state = view
                .iter()
                .find(|view| view.plan.name == "shared")
                .expect("it is known")
                .plan
                .state;
            match state {
                PlanState::Open => {
                    assert!(is(&before), "{strategy} {snapshot}: neither old nor new");
                    assert!(notices.contains("before"), "{notices}");
                    sandbox.committed();
                }
                PlanState::Committed => {
                    assert!(is(&promised), "{strategy} {snapshot}: neither old nor new");
                    assert!(notices.contains("new"), "{notices}");
                }
                state => panic!("{strategy} {snapshot}: {state}"),
            }
            sandbox.undone();
            let now = signature(&sandbox.original);
            let found = differences(
                &before,
                &now,
                &Ignore {
                    times: true,
                    ..Ignore::default()
                },
            );
            assert!(
                found.is_empty(),
                "{strategy} {snapshot}: {}",
                found.join("\n")
            );
        }
    }
}

/// Waits at one entry until it is let go.
struct Waiting {
    left: Mutex<u64>,
    ends: Mutex<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

impl Observer for Waiting {
    fn copied(&self, entries: u64, _bytes: u64) {
        let mut left = self.left.lock().expect("nobody panics with it");
        let now = left.saturating_sub(entries);
        if *left > 0 && now == 0 {
            let ends = self.ends.lock().expect("nobody panics with it");
            ends.0.send(()).expect("the test waits for it");
            // Fails when the test is over.
            let _ = ends.1.recv();
        }
        *left = now;
    }
}

/// Runs `work` while a commit of `sandbox` is paused at one of its entries.
fn during(sandbox: &Sandboxed, snapshot: u64, work: impl FnOnce()) {
    let (began, has_begun) = mpsc::channel();
    let (go, gone_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let home = sandbox.manager.home().to_owned();
        let plan = &sandbox.plan;
        let committing = scope.spawn(move || {
            let observer = Waiting {
                left: Mutex::new(snapshot),
                ends: Mutex::new((began, gone_on)),
            };
            open(&home).commit(plan, &request(PLAIN), &observer)
        });
        let begun = has_begun.recv_timeout(Duration::from_secs(60));
        if begun.is_ok() {
            work();
        }
        drop(go);
        let answer = committing.join().expect("no panic");
        answer.unwrap_or_else(|error| panic!("{}", told(&error)));
        begun.expect("it came so far");
    });
}

/// While a commit is under way nothing else is done with its plan, nor with its original; looking
/// at the state is always possible.
// rule C14, S5
#[test]
fn operations_during_a_commit() {
    for strategy in ISOLATING {
        // Once while it stages, once while it applies.
        for snapshot in [1, 7] {
            let world = World::new();
            let original = original(&world, "original", BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(EDITS);
            let promised = sandbox.promised();
            let other = Sandboxed::new(&world.home(), &original, strategy);
            other.write("h1", b"other").expect("it can be written");
            let fresh = open(&world.home());
            let view = fresh.create_plan(Some("fresh"), world.path(), &[], None, &Unobserved);
            let empty = view.expect("a plan needs no resource").plan;
            during(&sandbox, snapshot, || {
                let manager = impatient(&world.home());
                let (plan, resource) = (&sandbox.plan, &sandbox.resource);
                let mut bytes = &b"x"[..];
                let refused = [
                    (
                        "commit",
                        manager.commit(plan, &request(PLAIN), &Unobserved).map(drop),
                    ),
                    ("preview", manager.preview(plan, PLAIN).map(drop)),
                    ("read", manager.read(plan, resource, &at("file")).map(drop)),
                    (
                        "write",
                        manager
                            .write(plan, resource, &at("x"), &mut bytes)
                            .map(drop),
                    ),
                    ("access", manager.access(plan, resource, None).map(drop)),
                    ("diff", manager.diff(plan, None).map(drop)),
                    ("rollback", manager.rollback(plan, &Unobserved).map(drop)),
                    ("cleanup", manager.cleanup(plan, false).map(drop)),
                    ("undo", manager.undo(plan, &Unobserved).map(drop)),
                    (
                        "create",
                        manager
                            .create_sandbox(plan, resource, None, &Unobserved)
                            .map(drop),
                    ),
                    (
                        "other's commit",
                        manager
                            .commit(&other.plan, &request(PLAIN), &Unobserved)
                            .map(drop),
                    ),
                    (
                        "other's preview",
                        manager.preview(&other.plan, PLAIN).map(drop),
                    ),
                    ("other's diff", manager.diff(&other.plan, None).map(drop)),
                    (
                        "other's rollback",
                        manager.rollback(&other.plan, &Unobserved).map(drop),
                    ),
                    (
                        "a new sandbox",
                        manager
                            .create_sandbox(&empty, resource, Some(strategy), &Unobserved)
                            .map(drop),
                    ),
                ];
                for (what, answer) in refused {
                    match answer {
                        Err(error) if error.kind() == Kind::Busy => {}
                        answer => panic!("{strategy} {snapshot}: {what}: {answer:?}"),
                    }
                }
                let status = manager.status().expect("looking is always possible");
                assert!(
                    status
                        .running
                        .iter()
                        .any(|one| one.alive && one.operation.action == "commit")
                );
                assert!(
                    manager.recover().expect("it can be asked").is_empty(),
                    "it is alive"
                );
                manager.plans().expect("looking is always possible");
                manager.log(None).expect("looking is always possible");
            });
            assert_tree(&promised, &original, &format!("{strategy} {snapshot}"));
            other.committed();
        }
    }
}

/// Who has patience waits, and then sees the original as the commit left it.
// rule C14
#[test]
fn the_patient_wait_for_a_commit() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(EDITS);
        let [apart, overlapping] = ["h1", "file"].map(|path| {
            let other = Sandboxed::new(&world.home(), &original, strategy);
            other.write(path, b"other").expect("it can be written");
            other
        });
        let (tell, told_of) = mpsc::channel();
        std::thread::scope(|scope| {
            type Work<'w> = Box<dyn FnOnce() -> Result<Vec<String>> + Send + 'w>;
            let (world, original) = (&world, &original);
            let works: [(&str, Work<'_>); 3] = [
                (
                    "apart",
                    Box::new(move || apart.commit().map(|_| Vec::new())),
                ),
                (
                    "overlapping",
                    Box::new(move || Ok(conflict_paths(overlapping.commit()))),
                ),
                (
                    "late",
                    Box::new(move || {
                        let late = Sandboxed::attempt(&world.home(), original, strategy)?;
                        Ok(late.listing())
                    }),
                ),
            ];
            during(&sandbox, 7, || {
                for (name, work) in works {
                    let tell = tell.clone();
                    scope.spawn(move || tell.send((name, work())).expect("the test waits"));
                }
                std::thread::sleep(Duration::from_millis(100));
                assert!(told_of.try_recv().is_err(), "{strategy}: nobody went on");
            });
        });
        drop(tell);
        let mut answers: Vec<(&str, Vec<String>)> = told_of
            .iter()
            .map(|(name, answer)| {
                (
                    name,
                    answer.unwrap_or_else(|error| panic!("{name}: {}", told(&error))),
                )
            })
            .collect();
        answers.sort();
        let none = Vec::new();
        assert_eq!(
            answers,
            [
                ("apart", none.clone()),
                ("late", none),
                ("overlapping", vec!["file".to_owned()])
            ],
            "{strategy}"
        );
        assert_eq!(sh(&original, "cat h1 file").stdout, b"othernew");
    }
}

/// Two homes know nothing of each other, and still take turns.
// rule C14
#[test]
fn two_homes_on_one_original() {
    let world = World::new();
    let original = original(&world, "original", BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, "filesystem_copy");
    sandbox.native(EDITS);
    let other = Sandboxed::new(&world.dir("other-home"), &original, "filesystem_copy");
    other.write("file", b"other").expect("it can be written");
    other.write("h1", b"other").expect("it can be written");
    during(&sandbox, 7, || {
        let manager = impatient(&world.dir("other-home"));
        let busy = manager.commit(&other.plan, &request(PLAIN), &Unobserved);
        let error = busy.expect_err("somebody is at it");
        assert!(
            matches!(error, Error::BusyOriginal { .. }),
            "{}",
            told(&error)
        );
    });
    assert_eq!(conflict_paths(other.commit()), ["file"]);
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
            let mut typed: Vec<_> = originals
                .iter()
                .map(|path| path.as_os_str().to_owned())
                .collect();
            typed.rotate_left(number % 3);
            if number > 2 {
                typed.reverse();
            }
            let manager = open(&world.home());
            let view = manager
                .create_plan(
                    None,
                    world.path(),
                    &typed,
                    Some("filesystem_copy"),
                    &Unobserved,
                )
                .expect("they are directories");
            for sandbox in &view.sandboxes {
                let path = at(format!("new-{number}"));
                manager
                    .write(&view.plan, &sandbox.resource, &path, &mut &b"new"[..])
                    .expect("it can be written");
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
                released.unwrap_or_else(|error| panic!("{}", told(&error)));
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
