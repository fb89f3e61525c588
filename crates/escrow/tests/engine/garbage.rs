//! Garbage as a program sees it: ages, workspaces that stayed, others at work meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use escrow::error::Error;
use escrow::internals::fs::Dir;
use escrow::internals::fs::usage::{Usage, measure};
use escrow::manager::{GarbageReport, GarbageRequest, LeftoverKind, Manager, ManagerOptions};
use escrow::model::{CleanupPolicy, IdSource, PlanState, Retention, SystemIdSource};
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::{Fs, LoopFs, World, tree};

use crate::commit_support::areas;
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, each, options, sh};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A clock that goes ahead.
struct Ahead(Duration);

impl IdSource for Ahead {
    fn now(&self) -> jiff::Timestamp {
        SystemIdSource.now() + self.0
    }

    fn uuid(&self) -> uuid::Uuid {
        SystemIdSource.uuid()
    }
}

fn manager(home: &Path, cleanup: CleanupPolicy, ahead: Duration) -> Manager {
    let keep = Retention {
        cleanup,
        undo: 48 * HOUR,
    };
    let options = ManagerOptions {
        keep,
        origin: Arc::new(Ahead(ahead)),
        ..options(home)
    };
    Manager::open(options).expect("it opens on a used home")
}

const APP: &str = "a \"old\\n\"\nb \"stays\\n\"\n";

/// A plan over `app` that was committed.
fn committed(world: &World, strategy: &str, cleanup: CleanupPolicy) -> Sandboxed {
    let app = original(world, "app", APP);
    let mut sandboxed = Sandboxed::new(&world.home(), &app, strategy);
    sandboxed.manager = manager(&world.home(), cleanup, Duration::ZERO);
    sandboxed.native("echo new > a; echo more > c");
    sandboxed.committed();
    sandboxed
}

#[track_caller]
fn collect(manager: &Manager, older_than: Option<Duration>) -> Vec<LeftoverKind> {
    let request = GarbageRequest {
        older_than,
        ..GarbageRequest::default()
    };
    let GarbageReport {
        removed, failed, ..
    } = manager.collect_garbage(&request).expect("it can look");
    assert_eq!(failed, []);
    removed.into_iter().map(|one| one.kind).collect()
}

#[test]
fn undo_data_goes_when_its_time_is_over_and_not_before() {
    let world = World::new();
    let sandboxed = committed(&world, "overlay", CleanupPolicy::OnCommit);
    for (ahead, older_than) in [(47, None), (72, Some(96 * HOUR))] {
        let later = manager(&world.home(), CleanupPolicy::OnCommit, ahead * HOUR);
        assert_eq!(collect(&later, older_than), []);
        assert_eq!(sandboxed.state_of_plan(), PlanState::Committed);
    }
    let later = manager(&world.home(), CleanupPolicy::OnCommit, 49 * HOUR);
    assert_eq!(collect(&later, Some(24 * HOUR)), [LeftoverKind::Undo]);
    assert_eq!(sandboxed.state_of_plan(), PlanState::CleanedUp);
    sandboxed.undo().expect_err("there is nothing left for it");
    assert_eq!(areas(&world.home()), [""; 0]);
}

#[test]
fn a_workspace_that_stayed_goes_and_the_plan_can_still_be_undone() {
    for (strategy, world, mut sandboxed) in each(&ISOLATING, APP) {
        let before = signature(&sandboxed.original);
        sandboxed.manager = manager(&world.home(), CleanupPolicy::Manual, Duration::ZERO);
        sandboxed.native("echo new > a; echo more > c");
        let area = sandboxed.area();
        sandboxed.committed();
        assert!(area.exists(), "{strategy}");
        let disks = sandboxed.manager.disks(vec![sandboxed.plan.clone()]);
        let (_, disk) = disks.expect("it is there")[0];
        assert!(disk.private > 0 && disk.undo > 0, "{strategy}: {disk:?}");
        let kinds = collect(&sandboxed.manager, None);
        assert_eq!(kinds, [LeftoverKind::Workspace], "{strategy}");
        assert!(!area.exists(), "{strategy}");
        assert_eq!(
            sandboxed.state_of_plan(),
            PlanState::Committed,
            "{strategy}"
        );
        sandboxed.undone();
        let now = signature(&sandboxed.original);
        assert_same(&before, &now, &Ignore::default());
        assert_eq!(collect(&sandboxed.manager, None), [], "{strategy}");
        assert_eq!(sandboxed.state_of_plan(), PlanState::Open, "{strategy}");
    }
}

#[test]
fn a_commit_without_changes_ends_with_its_time_too() {
    let world = World::new();
    let app = world.dir("app");
    let sandboxed = Sandboxed::new(&world.home(), &app, "overlay");
    sandboxed.committed();
    for (hours, state) in [(47, PlanState::Committed), (49, PlanState::CleanedUp)] {
        let later = manager(&world.home(), CleanupPolicy::OnCommit, hours * HOUR);
        assert_eq!(collect(&later, None), []);
        assert_eq!(sandboxed.state_of_plan(), state, "{hours}");
    }
}

// rule C14
#[test]
fn a_plan_that_another_process_works_on_is_left_alone() {
    let world = World::new();
    let sandboxed = committed(&world, "overlay", CleanupPolicy::OnCommit);
    let lock = world
        .home()
        .join("locks")
        .join(sandboxed.plan.id.to_string());
    let lock = std::fs::File::open(lock).expect("the plan has one");
    lock.lock().expect("nobody has it");
    let request = GarbageRequest {
        max_size: Some(0),
        ..GarbageRequest::default()
    };
    let done = sandboxed.manager.collect_garbage(&request);
    let done = done.expect("it can look");
    assert_eq!((done.removed, done.failed), (Vec::new(), Vec::new()));
    assert_eq!(done.kept[0].1, "another process works on its plan");
    drop(lock);
    sandboxed.undone();
}

// rule C14
#[test]
fn many_collect_while_others_work() {
    let world = World::new();
    let app = world.dir("app");
    tree::build(&app, "a \"old\\n\"\n");
    let (home, stop) = (world.home(), AtomicBool::new(false));
    let request = GarbageRequest {
        max_size: Some(0),
        ..GarbageRequest::default()
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let manager = manager(&home, CleanupPolicy::OnCommit, Duration::ZERO);
                    let done = manager.collect_garbage(&request).expect("it can look");
                    assert_eq!(done.failed, []);
                }
            });
        }
        let work = || {
            for n in 0..12 {
                let sandboxed = Sandboxed::new(&home, &app, "filesystem_copy");
                let text = format!("{n}\n");
                sandboxed.write("a", text.as_bytes()).expect("it is usable");
                assert_eq!(sandboxed.read("a").expect("it is there"), text.as_bytes());
                sandboxed.committed();
                let now = std::fs::read_to_string(app.join("a")).expect("it is there");
                assert_eq!(now, text);
                // A process that was quicker took what it needs.
                let undone = sandboxed.undo();
                assert!(
                    matches!(undone, Ok(_) | Err(Error::NothingToUndo { .. })),
                    "{undone:?}"
                );
                sandboxed.cleanup();
            }
        };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::SeqCst);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let manager = manager(&home, CleanupPolicy::OnCommit, Duration::ZERO);
    manager.collect_garbage(&request).expect("it can look");
    assert_swept(&home);
}

/// What a tree takes: private, shared, unread.
fn usage(world: &World) -> (u64, u64, u64) {
    let dir = Dir::open(world.path()).expect("it is there");
    let usage = measure(&dir, b"tree").expect("it can be looked at");
    (usage.private, usage.shared, usage.unread)
}

#[test]
fn a_file_counts_once_and_as_shared_where_it_has_a_name_elsewhere() {
    let world = World::new();
    let dir = Dir::open(world.path()).expect("it is there");
    assert_eq!(measure(&dir, b"tree").expect("nothing"), Usage::default());
    sh(
        world.path(),
        "mkdir -p tree/sub out; head -c 65536 /dev/urandom > tree/a; sync tree/a",
    );
    let (alone, shared, _) = usage(&world);
    assert!(alone >= 65536 && shared == 0, "{alone} {shared}");
    // A second name in the tree adds nothing, a name outside makes it shared.
    sh(world.path(), "ln tree/a tree/sub/b");
    assert_eq!(usage(&world), (alone, 0, 0));
    sh(world.path(), "ln tree/a out/c");
    let (private, shared, _) = usage(&world);
    assert!(shared >= 65536, "{shared}");
    assert_eq!(private + shared, alone);
    // Holes take nothing.
    sh(world.path(), "truncate -s 1G tree/hole");
    assert!(usage(&world).0 < alone);
}

#[test]
fn blocks_of_a_reflink_are_shared_until_they_are_written() {
    for kind in [Fs::Xfs, Fs::Btrfs] {
        let disk = need!(LoopFs::new(kind, 320));
        let world = World::under(disk.path());
        sh(
            world.path(),
            "mkdir tree; head -c 1048576 /dev/urandom > a; cp --reflink=always a tree/a; sync",
        );
        let (private, shared, _) = usage(&world);
        assert_eq!(shared, 1048576, "{kind:?}");
        assert!(private < 65536, "{kind:?}: {private}");
        sh(
            world.path(),
            "dd if=/dev/urandom of=tree/a bs=65536 count=8 conv=notrunc status=none; sync",
        );
        assert_eq!(usage(&world).1, 524288, "{kind:?}");
    }
}
