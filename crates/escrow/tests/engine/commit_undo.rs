//! A commit is undone as a whole, or, where the original moved on, not at all.

use std::path::Path;

use escrow::error::{Error, Kind};
use escrow::event::Unobserved;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_support::{
    PLAIN, areas, assert_tree, conflict_paths, holds, request, stamps, told, unfinished,
};
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, open, sh};

const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
a/stays "stays"
b/one "one"
file 0640 "file"
gone "gone"
other "other"
third "third"
link -> file
"#;

/// Changes of every kind.
const EDITS: &str = "printf ours > file; rm gone; rm a/f; mkdir -p n/deep; printf x > n/deep/x; \
                     printf y > n/y; chmod 0750 b; setfattr -n user.mark -v ours b; \
                     printf z > b/two; ln -sfn ours link; rm -r a/sub; \
                     rm third; mkdir third";

fn committed(world: &World, strategy: &str, name: &str) -> Sandboxed {
    let original = original(world, name, BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(EDITS);
    sandbox.committed();
    sandbox
}

/// Tries every move, also behind one that failed, and then tells all failures.
fn each<T>(moves: &[T], name: impl Fn(&T) -> &'static str, try_one: impl Fn(&World, &str, &T)) {
    let mut failed = Vec::new();
    for strategy in ISOLATING {
        for one in moves {
            let world = World::new();
            let tried = std::panic::AssertUnwindSafe(|| try_one(&world, strategy, one));
            if let Err(panic) = std::panic::catch_unwind(tried) {
                let said = panic.downcast_ref::<String>().cloned();
                let said = said.unwrap_or_default();
                failed.push(format!("{strategy}: {}: {said}", name(one)));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed:\n\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

/// Where the original moved on, an undo would lose what another process did: nothing is undone.
// rule C15, C17
#[test]
fn the_original_moved_on() {
    let moves: [(&str, &[&str]); 21] = [
        ("printf theirs > file", &["file"]),
        (
            "t=$(stat -c %y file); printf sruo > file; touch -d \"$t\" file",
            &["file"],
        ),
        (
            "printf ours > t; chmod 0640 t; touch -r file t; mv t file",
            &["file"],
        ),
        ("chmod 0600 file", &["file"]),
        ("setfattr -n user.x -v 1 file", &["file"]),
        ("rm file", &["file"]),
        ("rm file; mkdir file", &["file"]),
        ("ln -sfn theirs link", &["link"]),
        ("printf theirs > n/new", &["n/new"]),
        ("printf theirs > n/deep/x", &["n/deep/x"]),
        ("mkdir n/deep/er", &["n/deep/er"]),
        ("rm -r n", &["n", "n/deep", "n/deep/x", "n/y"]),
        ("rm n/y", &["n/y"]),
        ("printf theirs > gone", &["gone"]),
        ("mkdir gone", &["gone"]),
        ("printf theirs > a/sub", &["a/sub"]),
        ("chmod 0700 b", &["b"]),
        ("setfattr -n user.mark -v theirs b", &["b"]),
        ("setfattr -n user.more -v theirs b", &["b"]),
        ("chmod 0700 n", &["n"]),
        ("printf theirs > third/in", &["third/in"]),
    ];
    each(
        &moves,
        |(there, _)| there,
        |world, strategy, (there, paths)| {
            let sandbox = committed(world, strategy, "original");
            let original = sandbox.original.clone();
            sh(&original, there);
            let (before, moments) = (signature(&original), stamps(&original));
            for _ in 0..2 {
                let answer = sandbox.undo();
                if let Err(error) = &answer {
                    assert_eq!(error.kind(), Kind::Conflict, "{}", told(error));
                }
                assert_eq!(conflict_paths(answer), *paths);
                assert_eq!(stamps(&original), moments, "something was touched");
            }
            assert_tree(&before, &original, "nothing was undone");
            let plans = sandbox.manager.plans().expect("they can be listed");
            assert_eq!(plans[0].plan.state, PlanState::Committed);
            assert_eq!(unfinished(&sandbox.manager), [""; 0]);
            sandbox.cleanup();
            assert_tree(&before, &original, "cleaned up");
            assert_swept(&world.home());
        },
    );
}

/// Another name for an old file is taken away again, unless another process put another file there.
// rule C15, F3
#[test]
fn a_name_that_the_commit_added() {
    let world = World::new();
    for strategy in ISOLATING {
        for (number, there) in ["", "rm linked; printf theirs > linked", "rm linked"]
            .iter()
            .enumerate()
        {
            let original = original(&world, &format!("{strategy}-{number}"), BASE);
            let before = signature(&original);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native("ln other linked; printf ours > file");
            sandbox.committed();
            holds(&original, "test linked -ef other", strategy);
            sh(&original, there);
            let now = signature(&original);
            if there.is_empty() {
                sandbox.undone();
                assert_tree(&before, &original, strategy);
            } else {
                assert_eq!(conflict_paths(sandbox.undo()), ["linked"], "{there}");
                assert_tree(&now, &original, there);
            }
        }
    }
}

/// The directory is gone in which the commit deleted something: there is nowhere to put it back.
// rule C15
#[test]
fn a_directory_of_the_commit_is_gone() {
    let moves = ["rm -r a", "mv a elsewhere", "rm -r a; printf x > a"];
    each(
        &moves,
        |there| there,
        |world, strategy, there| {
            let original = original(world, "original", BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native("rm a/f; printf ours > file");
            sandbox.committed();
            sh(&original, there);
            let before = signature(&original);
            let found = conflict_paths(sandbox.undo());
            assert!(!found.is_empty(), "it was undone");
            assert_tree(&before, &original, "nothing was undone");
            assert_eq!(unfinished(&sandbox.manager), [""; 0]);
            sandbox.cleanup();
        },
    );
}

/// What another process did elsewhere does not matter, and is kept.
// rule C15
#[test]
fn what_is_elsewhere_is_kept() {
    let moves = [
        ("printf theirs > other2", "test \"$(cat other2)\" = theirs"),
        (
            "printf theirs > a/stays",
            "test \"$(cat a/stays)\" = theirs",
        ),
        ("rm a/stays", "test ! -e a/stays -a -e a/f"),
        ("printf theirs > a/new", "test \"$(cat a/new)\" = theirs"),
        ("mkdir -p q/r; printf x > q/r/s", "test -e q/r/s"),
        ("printf theirs > b/one", "test \"$(cat b/one)\" = theirs"),
        ("rm -r b/one; printf theirs > b/three", "test -e b/three"),
        ("chmod 0711 a", "test \"$(stat -c %a a)\" = 711"),
        ("setfattr -n user.x -v theirs a", "getfattr -n user.x a"),
        ("chmod 0711 .", "test \"$(stat -c %a .)\" = 711"),
    ];
    each(
        &moves,
        |(there, _)| there,
        |world, strategy, (there, after)| {
            let original = original(world, "original", BASE);
            let mut before = signature(&original);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(EDITS);
            sandbox.committed();
            sh(&original, there);
            match sandbox.undo() {
                Ok(_) => {}
                // A directory in which the commit did something counts as its own.
                Err(Error::Conflicts { conflicts, .. })
                    if there.starts_with("chmod") || there.starts_with("setfattr") =>
                {
                    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
                    return;
                }
                Err(error) => panic!("{}", told(&error)),
            }
            holds(&original, after, there);
            // Everything but what they did, and the times of what they did it in, is as it was.
            let now = signature(&original);
            before.retain(|path, _| now.contains_key(path) || path.starts_with(b"a/sub"));
            let differs = |path: &&Vec<u8>| {
                let (old, new) = (&before[*path], now.get(*path));
                let looks = |one: &escrow_testkit::signature::Entry| {
                    (one.kind, one.content, one.target.clone(), one.size)
                };
                new.map(looks) != Some(looks(old))
            };
            let different: Vec<String> = before
                .keys()
                .filter(differs)
                .map(|path| String::from_utf8_lossy(path).into_owned())
                .filter(|path| !there.contains(path.as_str()))
                .collect();
            assert_eq!(different, [""; 0]);
            sandbox.cleanup();
            holds(&original, after, "cleaned up");
        },
    );
}

/// An undo can be made once, by any process, and not before there is something to undo.
// rule P5, C13
#[test]
fn undo_is_made_once() {
    let world = World::new();
    for strategy in ISOLATING {
        let original = original(&world, strategy, BASE);
        let before = signature(&original);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(EDITS);
        let refused = |state: PlanState| match sandbox.undo() {
            Err(Error::NothingToUndo { state: found, .. }) => assert_eq!(found, state),
            other => panic!("{strategy}: {other:?}"),
        };
        refused(PlanState::Open);
        sandbox.committed();
        assert!(!areas(&world.home()).is_empty(), "what it replaced is kept");
        // By another process.
        open(&world.home())
            .undo(&sandbox.plan, &Unobserved)
            .unwrap_or_else(|error| panic!("{}", told(&error)));
        assert_tree(&before, &original, strategy);
        assert_eq!(areas(&world.home()), [""; 0], "nothing is kept any more");
        refused(PlanState::RolledBack);
        let over = sandbox.commit().expect_err("it is over");
        assert!(matches!(over, Error::PlanOver { .. }), "{}", told(&over));
        sandbox.cleanup();
        refused(PlanState::CleanedUp);
        assert_tree(&before, &original, strategy);
    }
    assert_swept(&world.home());
}

/// Cleaning up removes what was kept for undo, and nothing of the original.
// rule P6
#[test]
fn cleanup_removes_what_was_kept() {
    let world = World::new();
    for strategy in ISOLATING {
        let sandbox = committed(&world, strategy, strategy);
        let after = signature(&sandbox.original);
        assert!(!areas(&world.home()).is_empty());
        sandbox.cleanup();
        assert_swept(&world.home());
        assert_tree(&after, &sandbox.original, strategy);
        let error = sandbox.undo().expect_err("nothing is left for it");
        assert!(
            matches!(
                error,
                Error::NothingToUndo {
                    state: PlanState::CleanedUp,
                    ..
                }
            ),
            "{}",
            told(&error)
        );
        sandbox.cleanup();
    }
}

/// Commits on top of each other are undone in any order that loses nothing.
// rule C15
#[test]
fn commits_on_top_of_each_other() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let change = |script: &str| {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(script);
            sandbox.committed();
            sandbox
        };
        let base = signature(&original);
        let first = change("printf first > file; printf 1 > other; mkdir n; printf x > n/x");
        let one = signature(&original);
        let second = change("printf second > file; printf 2 > third; printf y > n/y");
        let found = conflict_paths(first.undo());
        assert_eq!(found, ["file", "n/y"], "{strategy}");
        second.undone();
        assert_tree(&one, &original, strategy);
        first.undone();
        assert_tree(&base, &original, strategy);
    }
}

/// A plan of several directories is undone in all of them, or in none.
// rule C1
#[test]
fn undo_of_several_directories() {
    let world = World::new();
    let originals = ["one", "two", "three"].map(|name| original(&world, name, BASE));
    let typed = originals.clone().map(|path| path.into_os_string());
    let manager = open(&world.home());
    let view = manager
        .create_plan(
            Some("all"),
            world.path(),
            &typed,
            Some("overlay"),
            &Unobserved,
        )
        .expect("they are directories");
    let path = crate::support::at("file");
    for sandbox in &view.sandboxes {
        manager
            .write(&view.plan, &sandbox.resource, &path, &mut &b"new"[..])
            .expect("it can be written");
    }
    manager
        .commit(&view.plan, &request(PLAIN), &Unobserved)
        .expect("nobody else is here");
    let undo = || manager.undo(&view.plan, &Unobserved);
    let edit = |path: &Path, text: &str| sh(path, &format!("printf {text} > file"));
    edit(&originals[2], "theirs");
    let now = originals.clone().map(|path| signature(&path));
    assert_eq!(conflict_paths(undo()), ["file"]);
    for (original, now) in originals.iter().zip(&now) {
        assert_tree(now, original, "nothing was undone");
    }
    // As it was is not enough: another process wrote it. Nothing but the commit's own file will do.
    edit(&originals[2], "new");
    assert_eq!(conflict_paths(undo()), ["file"]);
    manager
        .cleanup(&view.plan, false)
        .expect("it can be removed");
}
