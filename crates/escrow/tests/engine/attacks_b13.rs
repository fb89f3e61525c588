//! Attack B13: another directory where the original was.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use escrow::error::Error;
use escrow::event::Unobserved;
use escrow::strategy::StrategyError;
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::skip::require_root;
use escrow_testkit::tree::build;
use escrow_testkit::user::{GID, UID, rerun_test_as_user};
use escrow_testkit::{Fs, LoopFs, World};

use crate::attacks_a::bind;
use crate::support::{
    ALL, COPIES, ISOLATING, Sandboxed, ask_root, assert_swept, assert_untouched, given,
    run_as_user_asking, sh,
};

/// Every use fails for a reason that is right. A copy can be worked in whatever became of its original: it may be all that
/// is left of it.
#[track_caller]
fn every_use_fails(sandbox: &Sandboxed, strategy: &str, right: impl Fn(&Error) -> bool) {
    let access = sandbox
        .manager
        .access(&sandbox.plan, &sandbox.resource, None);
    for (what, answer) in [
        ("read", sandbox.read("file").map(drop)),
        ("write", sandbox.write("file", b"new").map(drop)),
        ("diff", sandbox.try_diff().map(drop)),
        ("access", access.map(drop)),
    ] {
        let goes_on = COPIES.contains(&strategy) && what != "diff";
        let as_it_must = match &answer {
            Ok(()) => goes_on,
            Err(error) => !goes_on && right(error),
        };
        assert!(as_it_must, "{strategy}, {what}: {answer:?}");
    }
}

fn is_replaced(error: &Error) -> bool {
    matches!(error, Error::Strategy(StrategyError::Replaced { .. }))
}

/// The original was moved away and another directory put in its place.
// rule S1
#[test]
fn b13_the_original_is_replaced() {
    rerun_test_as_user("attacks_b13::b13_the_original_is_replaced");
    let world = World::new();
    for strategy in ALL {
        let original = world.dir(format!("original-{strategy}"));
        build(&original, "file \"right\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let away = world.path().join(format!("away-{strategy}"));
        fs::rename(&original, &away).expect("it can be moved");
        let names_it = |error: &Error| error.to_string().contains(&format!("original-{strategy}"));
        every_use_fails(&sandbox, strategy, names_it);
        fs::create_dir(&original).expect("the place is free");
        build(&original, "file \"wrong\"");
        let wrong = signature(&original);
        every_use_fails(&sandbox, strategy, is_replaced);
        let back = sandbox.manager.rollback(&sandbox.plan, &Unobserved);
        assert!(back.is_err(), "{strategy}");
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
    if let Some(place) = given() {
        return over_and_over(&World::new(), &place.join("original"), |which| {
            ask_root(&place, which);
        });
    }
    need!(require_root("mounts"));
    let (Some(one), Some(two)) = (LoopFs::new(Fs::Ext4, 16), LoopFs::new(Fs::Ext4, 16)) else {
        return;
    };
    build(one.path(), "file \"right\"");
    build(two.path(), "file \"wrong\"");
    let world = World::new();
    let place = world.dir("place");
    let (original, mounted) = (world.dir("place/original"), RefCell::new(None));
    let mount = |which: &str| {
        drop(mounted.take());
        let fs = match which {
            "one" => &one,
            "two" => &two,
            _ => return,
        };
        mounted.replace(Some(bind(fs.path(), &original)));
    };
    let wrong = signature(two.path());
    over_and_over(&world, &original, mount);
    assert_same(&wrong, &signature(two.path()), &Ignore::default());
    for fs in [&one, &two] {
        sh(
            fs.path(),
            &format!("rmdir lost+found; chown -R {UID}:{GID} ."),
        );
    }
    let wrong = signature(two.path());
    let test = "attacks_b13::b13_the_original_is_mounted_over";
    run_as_user_asking(test, &place, mount);
    assert_same(&wrong, &signature(two.path()), &Ignore::default());
}

/// A sandbox of one file system, and then another one there; `mount` puts the named one there, or none.
fn over_and_over(world: &World, original: &Path, mount: impl Fn(&str)) {
    for strategy in ISOLATING {
        mount("one");
        let sandbox = Sandboxed::new(&world.home(), original, strategy);
        mount("two");
        every_use_fails(&sandbox, strategy, is_replaced);
        mount("none");
        sandbox.cleanup();
    }
}
