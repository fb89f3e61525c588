//! What there is and what works here: told without changing anything; and what is refused by name.

use escrow::error::Error;
use escrow::event::Unobserved;
use escrow::manager::NewResource;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::user::rerun_test_as_user;

use crate::overlay::{BASE, original};
use crate::support::{
    ALL, ISOLATING, Sandboxed, assert_swept, assert_untouched, directory, each, names, open,
    plan_of,
};

// rule P7
#[test]
fn an_unknown_strategy_lists_the_known() {
    let world = World::new();
    let original = original(&world, "original", BASE);
    let error = Sandboxed::attempt(&world.home(), &original, "overlai")
        .err()
        .expect("unknown");
    assert!(error.to_string().contains("overlai"), "{error}");
    let hints = error.hints().join(" ");
    for name in ALL.iter().chain(&["auto"]) {
        assert!(hints.contains(name), "{hints}");
    }
    let manager = open(&world.home());
    assert!(manager.plans().expect("they can be listed").is_empty());
    assert_swept(&world.home());
    let new = NewResource {
        strategy: Some("Overlay"),
        ..directory("thing", &original)
    };
    let error = manager.add_resource(&new).expect_err("names are exact");
    assert!(matches!(error, Error::Registry(_)), "{error}");
}

/// Strategies are tried for real, and nothing of that stays.
// rule S8
#[test]
fn a_probe_leaves_nothing() {
    rerun_test_as_user("status::a_probe_leaves_nothing");
    let world = World::odd();
    let original = original(&world, "original", BASE);
    let before = signature(&original);
    let manager = open(&world.home());
    let doctor = manager.doctor(&original).expect("it can be looked at");
    for verdict in &doctor.verdicts {
        assert!(!verdict.probe.reason.is_empty(), "{}", verdict.name);
    }
    let mut verdicts = doctor.verdicts.iter();
    let overlay = verdicts.find(|verdict| verdict.name == "overlay");
    let overlay = &overlay.expect("it is built in").probe;
    assert!(overlay.works, "{}", overlay.reason);
    assert_eq!(names(&world.home().join("sandboxes")), [""; 0]);
    assert_eq!(names(world.path()), ["escrow-home", "original"]);
    assert_untouched(&before, &original);
    let mounts = std::fs::read("/proc/self/mounts").expect("the kernel knows its mounts");
    assert!(!String::from_utf8_lossy(&mounts).contains("escrow-home"));
}

/// Looking is not touching: neither the original nor the sandbox.
// rule F8
#[test]
fn looking_changes_nothing() {
    for (_, _world, sandbox) in each(&ISOLATING, BASE) {
        sandbox.native("rm -r a; printf x > file; mkdir new; chmod 0700 b; touch h1");
        let (before, area) = (signature(&sandbox.original), signature(&sandbox.area()));
        for _ in 0..2 {
            assert_ne!(sandbox.listing(), [""; 0]);
            sandbox.read("file").expect("it is there");
            assert!(sandbox.read("a/f").is_err());
        }
        assert_untouched(&before, &sandbox.original);
        assert_untouched(&area, &sandbox.area());
    }
}

/// Many resources in one plan: each its own sandbox; a plan that cannot have all has none.
// rule P4, P6
#[test]
fn all_sandboxes_of_a_plan_or_none() {
    let world = World::new();
    let good = original(&world, "good", BASE);
    let missing = world.path().join("missing");
    let manager = open(&world.home());
    let typed = [&good, &missing].map(|path| path.as_os_str().to_owned());
    let error = manager.create_plan(None, world.path(), &typed, None, &Unobserved);
    let text = error.expect_err("one is missing").to_string();
    assert!(text.contains("missing"), "{text}");
    assert_swept(&world.home());
    assert!(manager.plans().expect("they can be listed").is_empty());
    let other = original(&world, "other", "x \"x\"");
    let view = plan_of(&manager, Some("both"), &[&good, &other], "filesystem_copy");
    assert_eq!(view.sandboxes.len(), 2);
    assert_eq!(names(&world.home().join("sandboxes")).len(), 2);
    manager
        .cleanup(&view.plan, false)
        .expect("both can be removed");
    assert_swept(&world.home());
}
