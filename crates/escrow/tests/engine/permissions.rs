//! An ordinary user among modes and owners that get in the way. Root meets none of this.

use std::os::unix::fs::MetadataExt;

use escrow_testkit::World;
use escrow_testkit::need;
use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::tree::build;
use escrow_testkit::user::{UID, rerun_test_as_user};

use crate::overlay::original;
use crate::support::{
    COPIES, ISOLATING, Sandboxed, assert_swept, assert_untouched, given, run_as_user_with, sh,
};

/// A directory may be closed to writing while one below it is not.
// rule F1
#[test]
fn writing_below_a_read_only_directory() {
    if is_root() {
        return rerun_test_as_user("permissions::writing_below_a_read_only_directory");
    }
    let world = World::new();
    for strategy in ISOLATING {
        let text = "ro/sub/file \"old\"\nro/ 0555\nro/sub/deep/x \"x\"";
        let original = original(&world, &format!("original-{strategy}"), text);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox
            .write("ro/sub/file", b"new")
            .unwrap_or_else(|error| panic!("{strategy}: {error}"));
        sandbox
            .write("ro/sub/deep/new", b"new")
            .expect("it is open to writing");
        assert_eq!(
            sandbox.listing(),
            ["A ro/sub/deep/new", "M ro/sub/file"],
            "{strategy}"
        );
        let error = sandbox.write("ro/new", b"new");
        assert!(
            error.is_err(),
            "{strategy}: the directory is closed to writing"
        );
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        sandbox.cleanup();
    }
    assert_swept(&world.home());
}

/// Changes can be discarded from a sandbox that its user closed.
// rule P5, P6
#[test]
fn rolling_back_what_was_closed() {
    if is_root() {
        return rerun_test_as_user("permissions::rolling_back_what_was_closed");
    }
    let world = World::new();
    for strategy in ISOLATING {
        for (number, script) in [
            "chmod 000 file",
            "chmod 000 dir",
            "chmod 000 dir/deep dir; mkdir -m 0 new",
            "printf x > dir/deep/new; chmod 0500 dir/deep; chmod 0500 dir",
            "chmod 000 .",
        ]
        .iter()
        .enumerate()
        {
            let text = "file \"file\"\ndir/deep/x \"x\"";
            let original = original(&world, &format!("{strategy}-{number}"), text);
            let before = signature(&original);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(script);
            let answer = sandbox
                .manager
                .rollback(&sandbox.plan, &escrow::event::Unobserved);
            if let Err(error) = answer {
                panic!("{strategy}: {script}: {error} {:?}", error.hints());
            }
            assert_eq!(sandbox.listing(), [""; 0], "{strategy}: {script}");
            assert_eq!(sandbox.read("dir/deep/x").expect("it is open again"), b"x");
            if COPIES.contains(&strategy) {
                assert_same(&before, &signature(&sandbox.tree()), &Ignore::default());
            }
            sandbox.native(script);
            sandbox.cleanup();
        }
    }
    assert_swept(&world.home());
}

/// Who writes beside files of others changes what was written, and nothing else.
// rule F8
#[test]
fn writing_among_files_of_others() {
    if let Some(original) = given() {
        let world = World::new();
        for strategy in ISOLATING {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
            sandbox
                .write("open/new", b"new")
                .expect("all may write there");
            sandbox
                .write("open/sub/new", b"new")
                .expect("all may write there");
            assert_eq!(
                sandbox.listing(),
                ["A open/new", "A open/sub/new"],
                "{strategy}"
            );
            sandbox.rollback();
            assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
            sandbox.cleanup();
        }
        assert_swept(&world.home());
        return;
    }
    need!(require_root("files of another owner"));
    let world = World::new();
    let original = world.dir("foreign");
    build(
        &original,
        "open/file 0666 \"file\"\nopen/sub/ 0777\nopen/ 0777\nplain \"plain\"",
    );
    sh(
        &original,
        "chown -R 12345:23456 .; chmod 777 .; touch -d 2001-02-03 open .",
    );
    assert_ne!(
        std::fs::metadata(&original).expect("it is there").uid(),
        UID
    );
    let before = signature(&original);
    run_as_user_with("permissions::writing_among_files_of_others", &original);
    assert_untouched(&before, &original);
}
