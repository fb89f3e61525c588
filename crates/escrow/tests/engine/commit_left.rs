//! What a commit does not take along: power that no process granted, what is no file, and hands that still hold a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use escrow::error::Error;
use escrow::strategy::{PreviewNote, StrategyError};
use escrow_testkit::World;
use escrow_testkit::need;
use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::user::rerun_test_as_user;

use crate::attacks_c::socket;
use crate::commit_support::{PLAIN, assert_tree, holds, stamps, told};
use crate::commit_trees::assert_clean;
use crate::overlay::original;
use crate::support::{COPIES, ISOLATING, OnCopied, Sandboxed, each, names, sh};

fn noted(notes: &[PreviewNote]) -> Vec<String> {
    let line = |note: &PreviewNote| format!("{}: {}", note.path, note.what);
    notes.iter().map(line).collect()
}

/// Power that came from the sandbox stays there, and the report says so; what the original granted
/// stays granted.
// rule F7
#[test]
fn privileges_are_not_released() {
    rerun_test_as_user("commit_left::privileges_are_not_released");
    let text = "plain 0755 \"plain\"\nsetuid 04755 \"u\"\nsetgid 02755 \"g\"\nboth 06755 \"b\"\n\
                tool 04755 \"tool\"\nsticky/x \"x\"";
    for (strategy, _world, sandbox) in each(&ISOLATING, text) {
        sandbox.native(
            "chmod 04755 plain; chmod 04711 setuid; chmod 06755 setgid; chmod 06711 both; \
             printf x > new; chmod 06755 new; mkdir d; printf x > d/in; chmod 02644 d/in; ln d/in d/two; \
             printf evil > t; chmod 04755 t; mv t tool",
        );
        let notes = sandbox.committed().preview.members[0].notes.clone();
        // A file that was replaced keeps no power either: root's writes do not take it away.
        let modes = "mode plain 755; mode setuid 4711; mode setgid 2755; mode both 6711; mode new 755; \
                     mode d/in 644; mode d/two 644; mode tool 755; is tool evil";
        holds(&sandbox.original, modes, strategy);
        let wanted = [
            "d/in: setgid dropped",
            "d/two: setgid dropped",
            "new: setuid and setgid dropped",
            "plain: setuid dropped",
            "setgid: setuid dropped",
            "tool: setuid dropped",
        ];
        assert_eq!(noted(&notes), wanted, "{strategy}");
        sandbox.undone();
    }
}

/// The same with what root alone can give.
// rule F7
#[test]
fn capabilities_are_not_released() {
    need!(require_root("file capabilities"));
    let set = "setfattr -n security.capability -v 0x0100000200040000000000000000000000000000";
    let text = "had 0755 \"had\"\nnone 0755 \"none\"\nedited 0755 \"e\"";
    let world = World::new();
    for strategy in COPIES {
        let original = original(&world, strategy, text);
        sh(&original, &format!("{set} had; {set} edited"));
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(&format!(
            "chmod 0711 had; {set} none; printf x > new; chmod 0755 new; {set} new; \
             printf changed > edited; {set} edited"
        ));
        let notes = sandbox.committed().preview.members[0].notes.clone();
        let kept = "getfattr -n security.capability had; mode had 711; \
                    for one in none new edited; do ! getfattr -n security.capability $one 2> /dev/null; done";
        holds(&original, kept, strategy);
        let wanted = ["edited", "new", "none"].map(|name| format!("{name}: capabilities dropped"));
        assert_eq!(noted(&notes), wanted, "{strategy}");
        sandbox.cleanup();
    }
}

/// A socket is left out and noted; nothing else is.
// rule F4
#[test]
fn sockets_stay_out() {
    for (strategy, _world, sandbox) in each(&COPIES, "file \"file\"\nd/x \"x\"") {
        sandbox.native("mkdir d/n; printf new > file; mkfifo d/fifo; rm d/x");
        let (tree, original) = (sandbox.tree(), &sandbox.original);
        for (dir, name) in [("", "socket"), ("d/n", "socket"), ("d", "x")] {
            socket(&tree.join(dir), name);
        }
        let notes = sandbox.committed().preview.members[0].notes.clone();
        let wanted = ["d/n/socket", "d/x", "socket"];
        let wanted = wanted.map(|name| format!("{name}: a socket is not committed"));
        assert_eq!(noted(&notes), wanted, "{strategy}");
        assert_eq!(names(original), ["d", "file"], "{strategy}");
        let mut below = names(&original.join("d"));
        below.retain(|name| name != "x");
        assert_eq!(below, ["fifo", "n"], "{strategy}");
        assert_eq!(names(&original.join("d/n")), [""; 0]);
        sandbox.undone();
    }
}

/// A device node is refused, in a copy and in a layer, and then nothing is committed.
// rule F4, S3
#[test]
fn device_nodes_are_refused() {
    need!(require_root("device nodes"));
    for (strategy, _world, sandbox) in each(&ISOLATING, "file \"file\"\nd/x \"x\"") {
        let original = &sandbox.original;
        sandbox.write("file", b"new").expect("it can be written");
        sandbox.write("d/y", b"new").expect("it can be written");
        let inside = match strategy {
            "overlay" => sandbox.upper(),
            _ => sandbox.tree(),
        };
        sh(&inside, "mknod d/null c 1 3");
        let before = stamps(original);
        match sandbox.commit() {
            Err(Error::Strategy(StrategyError::Forbidden { path, .. })) => {
                assert_eq!(path.to_string(), "d/null");
            }
            other => panic!("{strategy}: {other:?}"),
        }
        assert_eq!(stamps(original), before, "{strategy}");
        sh(&inside, "rm d/null");
        sandbox.committed();
        assert_clean(original);
        sandbox.cleanup();
    }
}

/// A process that still has a file of the sandbox open does not write into the original.
#[test]
fn a_file_that_is_held_open() {
    for (strategy, _world, sandbox) in each(&COPIES, "file \"file\"\nd/x \"x\"") {
        let original = &sandbox.original;
        let tree = sandbox.tree();
        sh(
            &tree,
            "printf changed > file; printf new > d/new; ln d/new d/linked",
        );
        let open = |path: &str| {
            let file = OpenOptions::new().append(true).open(tree.join(path));
            file.expect("it is there")
        };
        let mut held = [open("file"), open("d/linked")];
        let promised = sandbox.promised();
        sandbox.committed();
        assert_tree(&promised, original, strategy);
        for file in &mut held {
            file.write_all(b" and later").expect("it is still open");
        }
        assert_tree(
            &promised,
            original,
            &format!("{strategy}, written to later"),
        );
        drop(held);
        sandbox.undone();
        sandbox.cleanup();
    }
}

/// The same where its owner closed the file after opening it.
#[test]
fn a_file_that_is_held_open_and_closed_to_its_owner() {
    if is_root() {
        return rerun_test_as_user("commit_left::a_file_that_is_held_open_and_closed_to_its_owner");
    }
    for (strategy, _world, sandbox) in each(&COPIES, "file \"file\"") {
        let original = &sandbox.original;
        let tree = sandbox.tree();
        sh(&tree, "printf new > new");
        let file = OpenOptions::new().append(true).open(tree.join("new"));
        let mut file = file.expect("it is there");
        sh(&tree, "chmod 0 new");
        match sandbox.commit() {
            // It may be refused: no process can copy it.
            Err(error) => assert!(told(&error).contains("new"), "{}", told(&error)),
            Ok(_) => {
                file.write_all(b" and later").expect("it is still open");
                sh(original, "chmod 0600 new");
                assert_eq!(sh(original, "cat new"), "new", "{strategy}");
            }
        }
    }
}

/// The same for one that is opened when it was staged already. Opened any earlier, it would wait for the lease by which
/// staging learns that no process writes it.
#[test]
fn a_file_that_is_opened_while_it_is_committed() {
    for (strategy, _world, sandbox) in each(&COPIES, "file \"file\"\nzz \"zz\"") {
        let original = &sandbox.original;
        let tree = sandbox.tree();
        sh(&tree, "printf changed > file; printf more >> zz");
        let (staged, opened) = (AtomicU64::new(0), OnceLock::new());
        let open = || {
            OpenOptions::new()
                .append(true)
                .open(tree.join("file"))
                .expect("it is there")
        };
        let opens = OnCopied(|entries| {
            if staged.fetch_add(entries, Ordering::Relaxed) > 0 {
                opened.get_or_init(open);
            }
        });
        let answer = sandbox.commit_with(PLAIN, &opens);
        let mut file = opened.get().expect("it was opened");
        file.write_all(b" and later").expect("it is still open");
        if answer.is_ok() {
            assert_eq!(sh(original, "cat file"), "changed", "{strategy}");
        }
    }
}
