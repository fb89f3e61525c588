//! Attack B13: another directory where the original was.

use std::fs;

use escrow::error::Error;
use escrow::event::Unobserved;
use escrow::strategy::StrategyError;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::skip::require_root;
use escrow_testkit::tree::build;
use escrow_testkit::{Fs, LoopFs, World};

use crate::attacks_a::bind;
use crate::support::{ALL, COPIES, ISOLATING, Sandboxed, assert_swept, assert_untouched};

fn every_use(sandbox: &Sandboxed) -> Vec<(&'static str, Result<(), Error>)> {
    let Sandboxed {
        manager,
        plan,
        resource,
        ..
    } = sandbox;
    vec![
        ("read", sandbox.read("file").map(drop)),
        ("write", sandbox.write("file", b"new").map(drop)),
        ("diff", sandbox.try_diff().map(drop)),
        ("access", manager.access(plan, resource, None).map(drop)),
    ]
}

/// A copy can be worked in whatever became of its original: it may be all that is left of it.
fn needs_no_original(strategy: &str, what: &str) -> bool {
    COPIES.contains(&strategy) && what != "diff"
}

/// The original was moved away and another directory put in its place.
// rule S1
#[test]
fn b13_the_original_is_replaced() {
    let world = World::new();
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "file \"right\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let away = world.path().join(format!("away-{strategy}"));
        fs::rename(&original, &away).expect("it can be moved");
        for (what, answer) in every_use(&sandbox) {
            if needs_no_original(strategy, what) {
                answer.unwrap_or_else(|error| panic!("{strategy}, {what}: {error}"));
                continue;
            }
            let error = answer.expect_err("the original is gone");
            assert!(
                error.to_string().contains(&format!("original-{strategy}")),
                "{what}: {error}"
            );
        }
        fs::create_dir(&original).expect("the place is free");
        build(&original, "file \"wrong\"");
        let wrong = signature(&original);
        for (what, answer) in every_use(&sandbox) {
            if needs_no_original(strategy, what) {
                answer.unwrap_or_else(|error| panic!("{strategy}, {what}: {error}"));
                continue;
            }
            let error = answer.expect_err("another directory is there");
            assert!(
                matches!(error, Error::Strategy(StrategyError::Replaced { .. })),
                "{strategy}, {what}: {error}"
            );
        }
        assert!(
            sandbox
                .manager
                .rollback(&sandbox.plan, &Unobserved)
                .is_err()
        );
        assert_untouched(&wrong, &original);
        if strategy != "none" {
            fs::rename(&original, away.with_extension("wrong")).expect("it can be moved");
            fs::rename(&away, &original).expect("it can be moved back");
            sandbox.rollback();
            assert_eq!(sandbox.read("file").expect("it is back"), b"right");
        }
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

/// The same by mounting another file system there, whose root has the same number.
// rule S1
#[test]
fn b13_the_original_is_mounted_over() {
    if !require_root("mounts") {
        return;
    }
    let (Some(one), Some(two)) = (LoopFs::new(Fs::Ext4, 16), LoopFs::new(Fs::Ext4, 16)) else {
        return;
    };
    build(one.path(), "file \"right\"");
    build(two.path(), "file \"wrong\"");
    let world = World::new();
    let original = world.dir("original");
    let wrong = signature(two.path());
    for strategy in ISOLATING {
        let mount = bind(one.path(), &original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        drop(mount);
        let mount = bind(two.path(), &original);
        for (what, answer) in every_use(&sandbox) {
            if needs_no_original(strategy, what) {
                answer.unwrap_or_else(|error| panic!("{strategy}, {what}: {error}"));
                continue;
            }
            assert!(
                matches!(answer, Err(Error::Strategy(StrategyError::Replaced { .. }))),
                "{strategy}, {what}: {answer:?}"
            );
        }
        drop(mount);
        sandbox.cleanup();
        assert_same(&wrong, &signature(two.path()), &Ignore::default());
    }
}
