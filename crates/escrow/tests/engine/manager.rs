//! Plans and sandboxes over their whole life: made once, resumed by anyone, removed for good.

use escrow::error::{Error, Kind};
use escrow::event::{Observer, Unobserved};
use escrow::model::{SandboxRef, SandboxState};
use escrow::strategy::{Registry, Session, StrategyError};
use escrow_testkit::signature::signature;
use escrow_testkit::user::rerun_test_as_user;
use escrow_testkit::{Fs, LoopFs, World};

use crate::commit_support::{Must, during};
use crate::overlay::{BASE, original};
use crate::support::{
    ALL, ISOLATING, Sandboxed, assert_swept, assert_untouched, at, each, empty_plan, impatient,
    names, open,
};

impl Sandboxed {
    /// The same sandbox, as another process finds it.
    fn again(&self) -> Self {
        Self {
            manager: open(self.manager.home()),
            plan: self.plan.clone(),
            resource: self.resource.clone(),
            original: self.original.clone(),
        }
    }
}

/// A server holds one manager and calls it from every thread.
#[test]
fn threads_share_one_manager() {
    fn shared<T: Send + Sync>(_: &T) {}
    let world = World::new();
    let original = original(&world, "original", BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, "filesystem_copy");
    shared(&sandbox.manager);
    let (manager, plan, resource) = (&sandbox.manager, &sandbox.plan, &sandbox.resource);
    let before = manager.diff(plan, None).expect("it can be compared");
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let path = at(format!("thread-{number}"));
                let wrote = manager.write(plan, resource, &path, &mut &b"x"[..]);
                // No process waits for the diff, which is still there.
                wrote.expect("threads take turns");
                let found = manager.diff(plan, None).expect("it can be compared");
                let mut changes = found.resources[0].diff.changes.iter();
                assert!(changes.any(|one| one.path == path));
            });
        }
    });
    assert!(before.resources[0].diff.is_empty());
    let checked = manager.check_log(None).expect("it can be read");
    assert_eq!(checked.fault, None);
}

// rule P3
#[test]
fn another_process_goes_on() {
    rerun_test_as_user("manager::another_process_goes_on");
    let world = World::odd();
    for strategy in ISOLATING {
        let original = original(&world, &format!("original-{strategy}"), BASE);
        let first = Sandboxed::new(&world.home(), &original, strategy);
        first.write("a/new", b"new").expect("it can be written");
        let second = first.again();
        drop(first);
        assert_eq!(second.state(), SandboxState::Active);
        assert_eq!(second.read("a/new").expect("it was written"), b"new");
        second.write("file", b"changed").expect("it can be written");
        let third = second.again();
        drop(second);
        assert_eq!(third.listing(), ["A a/new", "M file"], "{strategy}");
        third.rollback();
        let fourth = third.again();
        drop(third);
        assert_eq!(fourth.listing(), [""; 0]);
        assert_eq!(fourth.read("file").expect("it is there"), b"file");
        // What is stored is all a strategy needs.
        let stored = fourth.sandbox().reference;
        let text = serde_json::to_string(&stored).expect("it is JSON");
        let back: SandboxRef = serde_json::from_str(&text).expect("it is what was written");
        assert_eq!(back, stored);
        let registry = Registry::builtin();
        let alone = registry.get(&back.strategy_name).expect("it is built in");
        let alone = alone.open(&back, Session::Exclusive, &[]);
        let alone = alone.expect("the reference is enough");
        let found = alone.diff(None, None).expect("the reference is enough");
        assert!(found.is_empty());
        let mut content = &b"by reference"[..];
        alone
            .write(&at("b/one"), &mut content)
            .expect("the reference is enough");
        assert_eq!(fourth.listing(), ["M b/one"]);
        fourth.cleanup();
    }
    assert_swept(&world.home());
}

// rule P4
#[test]
fn a_sandbox_is_made_once() {
    for strategy in ALL {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let manager = open(&world.home());
        let plan = empty_plan(&manager, "once");
        let resource = manager.take_resource(original.as_os_str(), world.path());
        let resource = resource.must("it is a directory");
        let made: Vec<(bool, String)> = std::thread::scope(|scope| {
            let one = || {
                let manager = open(&world.home());
                let made = manager.create_sandbox(&plan, &resource, Some(strategy), &Unobserved);
                let made = made.must(strategy);
                (made.created, made.view.sandbox.id.to_string())
            };
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|answer| answer.expect("no panic")).collect()
        });
        let created = made.iter().filter(|(created, _)| *created).count();
        assert_eq!(created, 1, "{made:?}");
        assert!(made.iter().all(|(_, id)| *id == made[0].1), "{made:?}");
        let again = manager.create_sandbox(&plan, &resource, Some("filesystem_copy"), &Unobserved);
        let again = again.must("it is there");
        assert!(!again.created && again.view.sandbox.reference.strategy_name == strategy);
        assert_eq!(names(&world.home().join("sandboxes")).len(), 1);
        manager.cleanup(&plan, false).must("it can be removed");
        assert_swept(&world.home());
    }
}

fn is_over(answer: Result<(), Error>) -> bool {
    let over = |error: &Error| matches!(error.kind(), Kind::NotFound | Kind::Conflict);
    answer.as_ref().err().is_some_and(over)
}

/// After the end nothing can be done, and trying leaves nothing behind.
// rule P5, P6
#[test]
fn nothing_comes_after_the_end() {
    for (strategy, world, sandbox) in each(&ALL, BASE) {
        sandbox.cleanup();
        assert_swept(&world.home());
        // With the plan as it was known before, as a slower process would.
        let (manager, plan, resource) = (&sandbox.manager, &sandbox.plan, &sandbox.resource);
        let create = |plan| manager.create_sandbox(plan, resource, Some(strategy), &Unobserved);
        for (what, answer) in [
            ("read", sandbox.read("file").map(drop)),
            ("write", sandbox.write("file", b"x").map(drop)),
            ("diff", sandbox.try_diff().map(drop)),
            ("access", manager.access(plan, resource, None).map(drop)),
            ("create", create(plan).map(drop)),
        ] {
            assert!(is_over(answer), "{strategy}: {what}");
            assert_swept(&world.home());
        }
        let gone = manager.resolve_plan(Some(&plan.name), world.path());
        let error = create(&gone.must("it is recorded"));
        assert!(matches!(error, Err(Error::PlanOver { .. })), "{error:?}");
        sandbox.cleanup();
        assert_swept(&world.home());
    }
}

// rule P5
#[test]
fn states_move_as_the_table_says() {
    use SandboxState::{Active, Created, RolledBack};
    for (_, world, sandbox) in each(&ISOLATING, BASE) {
        assert_eq!(sandbox.state(), Created);
        sandbox.read("file").expect("it is there");
        sandbox.listing();
        assert_eq!(sandbox.state(), Created, "reading changes nothing");
        sandbox.rollback();
        assert_eq!(sandbox.state(), RolledBack);
        sandbox.read("file").expect("it is there");
        sandbox.listing();
        assert_eq!(sandbox.state(), RolledBack, "reading does not revive it");
        sandbox.write("file", b"x").expect("it can be used again");
        assert_eq!(sandbox.state(), Active);
        // A rollback that cannot even begin leaves the sandbox as it is, with its changes.
        let away = world.path().join("away");
        std::fs::rename(&sandbox.original, &away).expect("it can be moved");
        let error = sandbox.manager.rollback(&sandbox.plan, &Unobserved);
        let gone = matches!(error, Err(Error::Strategy(StrategyError::Gone { .. })));
        assert!(gone, "{error:?}");
        assert_eq!(sandbox.state(), Active);
        std::fs::rename(&away, &sandbox.original).expect("it can be moved back");
        sandbox.write("file", b"y").expect("work goes on");
        assert_eq!(sandbox.listing(), ["M file"], "it can still be looked at");
        sandbox.rollback();
        assert_eq!(sandbox.state(), RolledBack);
        assert_eq!(sandbox.listing(), [""; 0]);
        sandbox.cleanup();
        assert_swept(&world.home());
    }
}

// rule P6
#[test]
fn cleanup_from_every_state() {
    rerun_test_as_user("manager::cleanup_from_every_state");
    let world = World::new();
    for strategy in ISOLATING {
        let original = original(&world, &format!("original-{strategy}"), BASE);
        let before = signature(&original);
        for state in ["created", "active", "rolled_back", "gone", "lost"] {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            if state != "created" {
                sandbox.write("b/one", b"x").expect("it can be written");
                sandbox.native("mkdir -m 0 closed; rm -r a");
            }
            match state {
                "rolled_back" => sandbox.rollback(),
                "gone" => {
                    let away = world.path().join("away");
                    std::fs::rename(&original, &away).expect("it can be moved");
                    sandbox.cleanup();
                    std::fs::rename(&away, &original).expect("it can be moved back");
                }
                // Another process was there before us.
                "lost" => escrow_testkit::world::remove_tree(&sandbox.area()),
                _ => {}
            }
            sandbox.cleanup();
            sandbox.cleanup();
            assert_swept(&world.home());
            assert_untouched(&before, &original);
        }
    }
}

/// A process that waits for a plan in vain learns which process works on it.
// rule S5
#[test]
fn a_busy_plan_names_its_owner() {
    let world = World::new();
    let original = original(&world, "original", BASE);
    let manager = open(&world.home());
    let plan = empty_plan(&manager, "busy");
    let resource = manager.take_resource(original.as_os_str(), world.path());
    let resource = resource.must("it is a directory");
    let other = open(&world.home());
    let create = |observer: &dyn Observer| {
        other.create_sandbox(&plan, &resource, Some("filesystem_copy"), observer)
    };
    let made = during(1, create, || {
        let impatient = impatient(&world.home());
        let error = impatient.cleanup(&plan, false);
        let error = error.expect_err("another process works on it");
        assert_eq!(error.kind(), Kind::Busy);
        let (text, pid) = (error.to_string(), std::process::id().to_string());
        for word in ["busy", &pid, "create"] {
            assert!(text.contains(word), "{text}");
        }
        let running = impatient
            .status()
            .must("looking is always possible")
            .running;
        let mut running = running.iter();
        assert!(running.any(|one| one.alive && one.operation.action == "create"));
    });
    made.must("it can be made");
    manager
        .cleanup(&plan, false)
        .must("no process works on it now");
    assert!(manager.status().must("it can be shown").running.is_empty());
    assert_swept(&world.home());
}

/// One resource in the hands of a program: the same four verbs and the same fields, whatever its type.
// rule R1, R2, P4, P8
#[test]
fn one_resource_is_handled_alike_whatever_its_type() {
    let world = World::new();
    let tree = original(&world, "tree", BASE);
    let file = world.dir("beside").join("file");
    std::fs::write(&file, "one\n").expect("there is room");
    let mounted = LoopFs::new(Fs::Ext4, 16);
    let mount = mounted
        .as_ref()
        .map(|fs| ("fs-mount", fs.path().to_owned()));
    let all = [("fs-directory", tree), ("fs-file", file)];
    for (kind, path) in all.into_iter().chain(mount) {
        let held = Sandboxed::new(&world.home(), &path, "filesystem_copy");
        assert_eq!(held.resource.kind, kind);
        let handle = held.manager.handle(&held.plan, &held.resource);
        let handle = handle.must("something deals with it");
        let again = handle.create_sandbox(None, &Unobserved).must("it is there");
        assert_eq!(again.sandbox_id, held.sandbox().id);
        assert_eq!(
            (again.created, &*again.strategy),
            (false, "filesystem_copy")
        );
        assert!(again.sandbox_path.is_some(), "{again:?}");
        let name = if kind == "fs-file" { "file" } else { "new" };
        held.write(name, b"first").expect("it can be written");
        let kept = handle.create_checkpoint(Some("first"), &Unobserved);
        let kept = kept.must("it can be kept");
        assert_eq!(
            (kept.plan_id, kept.label.as_deref()),
            (held.plan.id, Some("first"))
        );
        held.write(name, b"second").expect("it can be written");
        let back = handle.rollback_to("first", &Unobserved).must("it is kept");
        assert_eq!(
            (back.success, back.checkpoint_id),
            (true, kept.checkpoint_id)
        );
        let restored = [format!("{}:{name}", held.resource.name)];
        assert_eq!(back.restored_files, restored);
        assert_eq!(held.read(name).expect("it is there"), b"first");
        let nowhere = handle.rollback_to("nowhere", &Unobserved);
        assert_eq!(
            nowhere.map_err(|error| error.kind()).err(),
            Some(Kind::NotFound)
        );
        let may = handle.project_access("agent:one").must("a policy answers");
        assert!(may.iter().all(|decision| decision.permitted), "{may:?}");
        held.cleanup();
    }
}
