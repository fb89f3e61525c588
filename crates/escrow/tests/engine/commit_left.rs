//! What a commit does not take along: power that no process granted, what is no file, and hands that still hold a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use escrow::error::Error;
use escrow::strategy::{PreviewNote, StrategyError};
use escrow_testkit::World;
use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::user::rerun_test_as_user;

use crate::commit_support::{assert_tree, holds, stamps, told};
use crate::commit_trees::assert_clean;
use crate::overlay::original;
use crate::support::{COPIES, ISOLATING, Sandboxed, names, sh};

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
    let world = World::new();
    for strategy in ISOLATING {
        let text = "plain 0755 \"plain\"\nsetuid 04755 \"u\"\nsetgid 02755 \"g\"\nboth 06755 \"b\"\n\
                    sticky/x \"x\"";
        let original = original(&world, strategy, text);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(
            "chmod 04755 plain; chmod 04711 setuid; chmod 06755 setgid; chmod 06711 both; \
             printf x > new; chmod 06755 new; mkdir d; printf x > d/in; chmod 02644 d/in; ln d/in d/two",
        );
        let notes = sandbox.committed().preview.members[0].notes.clone();
        let modes = sh(
            &original,
            "stat -c '%n %a' plain setuid setgid both new d/in d/two",
        );
        assert_eq!(
            String::from_utf8_lossy(&modes.stdout),
            "plain 755\nsetuid 4711\nsetgid 2755\nboth 6711\nnew 755\nd/in 644\nd/two 644\n",
            "{strategy}"
        );
        let wanted = [
            "d/in: setgid dropped",
            "d/two: setgid dropped",
            "new: setuid and setgid dropped",
            "plain: setuid dropped",
            "setgid: setuid dropped",
        ];
        assert_eq!(noted(&notes), wanted, "{strategy}");
        sandbox.undone();
        sandbox.cleanup();
    }
}

/// The same with what root alone can give.
// rule F7
#[test]
fn capabilities_are_not_released() {
    if !require_root("file capabilities") {
        return;
    }
    let set = "setfattr -n security.capability -v 0x0100000200040000000000000000000000000000";
    let world = World::new();
    for strategy in COPIES {
        let original = original(
            &world,
            strategy,
            "had 0755 \"had\"\nnone 0755 \"none\"\nedited 0755 \"e\"",
        );
        sh(&original, &format!("{set} had; {set} edited"));
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(&format!(
            "chmod 0711 had; {set} none; printf x > new; chmod 0755 new; {set} new; \
             printf changed > edited; {set} edited"
        ));
        let notes = sandbox.committed().preview.members[0].notes.clone();
        holds(
            &original,
            "getfattr -n security.capability had; test \"$(stat -c %a had)\" = 711; \
             for one in none new edited; do ! getfattr -n security.capability $one 2> /dev/null; done",
            strategy,
        );
        let wanted = ["edited", "new", "none"].map(|name| format!("{name}: capabilities dropped"));
        assert_eq!(noted(&notes), wanted, "{strategy}");
        sandbox.cleanup();
    }
}

/// A file written over keeps no power, the process that wrote it: root's writes do not take it away.
// rule F7
#[test]
fn an_edited_file_loses_its_privileges() {
    let world = World::new();
    for strategy in ISOLATING {
        let original = original(&world, strategy, "tool 04755 \"tool\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native("printf evil > t; chmod 04755 t; mv t tool");
        let notes = sandbox.committed().preview.members[0].notes.clone();
        assert_eq!(noted(&notes), ["tool: setuid dropped"], "{strategy}");
        holds(
            &original,
            "test \"$(stat -c %a tool)\" = 755 -a \"$(cat tool)\" = evil",
            strategy,
        );
        sandbox.cleanup();
    }
}

/// A socket is left out and noted; nothing else is.
// rule F4
#[test]
fn sockets_stay_out() {
    let world = World::new();
    for strategy in COPIES {
        let original = original(&world, strategy, "file \"file\"\nd/x \"x\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let tree = sandbox.tree();
        sh(&tree, "mkdir d/n; printf new > file; mkfifo d/fifo");
        let bind = |at: &Path| {
            let dir = std::fs::File::open(at.parent().expect("it has one")).expect("it is there");
            let name = at.file_name().expect("it has one").to_string_lossy();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
            drop(
                std::os::unix::net::UnixListener::bind(format!("/proc/self/fd/{fd}/{name}"))
                    .expect("it can be bound"),
            );
        };
        bind(&tree.join("socket"));
        bind(&tree.join("d/n/socket"));
        std::fs::remove_file(tree.join("d/x")).expect("it is there");
        bind(&tree.join("d/x"));
        let notes = sandbox.committed().preview.members[0].notes.clone();
        let wanted = ["d/n/socket", "d/x", "socket"]
            .map(|name| format!("{name}: a socket is not committed"));
        assert_eq!(noted(&notes), wanted, "{strategy}");
        assert_eq!(names(&original), ["d", "file"], "{strategy}");
        let below = names(&original.join("d"));
        assert!(
            below == ["fifo", "n", "x"] || below == ["fifo", "n"],
            "{below:?}"
        );
        assert_eq!(names(&original.join("d/n")), [""; 0]);
        sandbox.undone();
        sandbox.cleanup();
    }
}

/// A device node is refused, in a copy and in a layer, and then nothing is committed.
// rule F4, S3
#[test]
fn device_nodes_are_refused() {
    if !require_root("device nodes") {
        return;
    }
    let world = World::new();
    for strategy in ISOLATING {
        let original = original(&world, strategy, "file \"file\"\nd/x \"x\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.write("file", b"new").expect("it can be written");
        sandbox.write("d/y", b"new").expect("it can be written");
        let inside = match strategy {
            "overlay" => sandbox.upper(),
            _ => sandbox.tree(),
        };
        sh(&inside, "mknod d/null c 1 3");
        let before = stamps(&original);
        match sandbox.commit() {
            Err(Error::Strategy(StrategyError::Forbidden { path, .. })) => {
                assert_eq!(path.to_string(), "d/null");
            }
            other => panic!("{strategy}: {other:?}"),
        }
        assert_eq!(stamps(&original), before, "{strategy}");
        sh(&inside, "rm d/null");
        sandbox.committed();
        assert_clean(&original);
        sandbox.cleanup();
    }
}

/// A process that still has a file of the sandbox open does not write into the original.
#[test]
fn a_file_that_is_held_open() {
    let world = World::new();
    for strategy in COPIES {
        let original = original(&world, strategy, "file \"file\"\nd/x \"x\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
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
        assert_tree(&promised, &original, strategy);
        for file in &mut held {
            file.write_all(b" and later").expect("it is still open");
        }
        assert_tree(
            &promised,
            &original,
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
    let world = World::new();
    for strategy in COPIES {
        let original = original(&world, strategy, "file \"file\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
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
                sh(&original, "chmod 0600 new");
                assert_eq!(sh(&original, "cat new").stdout, b"new", "{strategy}");
            }
        }
    }
}

/// Who works in a file while it is being committed finds himself outside.
struct Opens<'a> {
    path: &'a Path,
    file: std::sync::Mutex<Option<std::fs::File>>,
}

impl escrow::event::Observer for Opens<'_> {
    fn copied(&self, _entries: u64, _bytes: u64) {
        let mut file = self.file.lock().expect("nobody panics with it");
        if file.is_none() {
            *file = OpenOptions::new().append(true).open(self.path).ok();
        }
    }
}

/// The same for one that is opened when it was staged already.
#[test]
fn a_file_that_is_opened_while_it_is_committed() {
    let world = World::new();
    for strategy in COPIES {
        let original = original(&world, strategy, "file \"file\"\nzz \"zz\"");
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        let tree = sandbox.tree();
        sh(&tree, "printf changed > file; printf more >> zz");
        let opens = Opens {
            path: &tree.join("file"),
            file: std::sync::Mutex::default(),
        };
        let answer = sandbox.commit_with(crate::commit_support::PLAIN, &opens);
        let mut file = opens.file.into_inner().expect("nobody panicked");
        let file = file.as_mut().expect("it was opened");
        file.write_all(b" and later").expect("it is still open");
        if answer.is_ok() {
            assert_eq!(sh(&original, "cat file").stdout, b"changed", "{strategy}");
        }
    }
}
