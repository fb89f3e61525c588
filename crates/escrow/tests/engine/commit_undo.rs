//! A commit is undone as a whole, or, where the original moved on, not at all.

use std::path::{Path, PathBuf};

use escrow::error::{Error, Kind};
use escrow::event::Unobserved;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::{Entry, signature};

use crate::commit_support::{
    Must, PLAIN, areas, assert_tree, conflict_paths, holds, request, stamps, told, unfinished,
};
use crate::overlay::original;
use crate::support::{
    ISOLATING, Sandboxed, assert_swept, at, each, open, plan_of, rows, sh, try_all,
};

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

/// What was done to the original after the commit, and where that stands in the way of an undo.
const MOVES: &str = r#"
printf theirs > file | file
t=$(stat -c %y file); printf sruo > file; touch -d "$t" file | file
printf ours > t; chmod 0640 t; touch -r file t; mv t file | file
chmod 0600 file | file
setfattr -n user.x -v 1 file | file
rm file | file
rm file; mkdir file | file
ln -sfn theirs link | link
printf theirs > n/deep/x | n/deep/x
printf theirs > gone | gone
mkdir gone | gone
printf theirs > a/sub | a/sub
chmod 0700 b | b
setfattr -n user.mark -v theirs b | b
setfattr -n user.more -v theirs b | b
chmod 0700 n | n
printf theirs > third/in | third/in
"#;

/// Where the original moved on, an undo would lose what another process did: nothing is undone.
// rule C15, C17
#[test]
fn the_original_moved_on() {
    try_all(&ISOLATING, &rows(MOVES), |strategy, [there, paths]| {
        let world = World::new();
        let sandbox = committed(&world, strategy, "original");
        let original = sandbox.original.clone();
        sh(&original, there);
        let (before, stamped) = (signature(&original), stamps(&original));
        for _ in 0..2 {
            let answer = sandbox.undo();
            if let Err(error) = &answer {
                assert_eq!(error.kind(), Kind::Conflict, "{}", told(error));
            }
            assert_eq!(conflict_paths(answer).join(" "), *paths);
            assert_eq!(stamps(&original), stamped, "something was touched");
        }
        assert_tree(&before, &original, "nothing was undone");
        assert_eq!(sandbox.state_of_plan(), PlanState::Committed);
        assert_eq!(unfinished(&sandbox.manager), [""; 0]);
        sandbox.cleanup();
        assert_tree(&before, &original, "cleaned up");
        assert_swept(&world.home());
    });
}

/// Another name for an old file is taken away again, unless another process put another file there.
// rule C15, F3
#[test]
fn a_name_that_the_commit_added() {
    for there in ["", "rm linked; printf theirs > linked", "rm linked"] {
        for (strategy, _world, sandbox) in each(&ISOLATING, BASE) {
            let before = signature(&sandbox.original);
            sandbox.native("ln other linked; printf ours > file");
            sandbox.committed();
            holds(&sandbox.original, "test linked -ef other", strategy);
            sh(&sandbox.original, there);
            let now = signature(&sandbox.original);
            if there.is_empty() {
                sandbox.undone();
                assert_tree(&before, &sandbox.original, strategy);
            } else {
                assert_eq!(conflict_paths(sandbox.undo()), ["linked"], "{there}");
                assert_tree(&now, &sandbox.original, there);
            }
        }
    }
}

/// The directory is gone in which the commit deleted something: there is nowhere to put it back.
// rule C15
#[test]
fn a_directory_of_the_commit_is_gone() {
    for there in ["rm -r a", "mv a elsewhere", "rm -r a; printf x > a"] {
        for (strategy, _world, sandbox) in each(&ISOLATING, BASE) {
            let when = format!("{strategy}: {there}");
            sandbox.native("rm a/f; printf ours > file");
            sandbox.committed();
            sh(&sandbox.original, there);
            let before = signature(&sandbox.original);
            assert_ne!(conflict_paths(sandbox.undo()), [""; 0], "{when}");
            assert_tree(&before, &sandbox.original, &when);
            assert_eq!(unfinished(&sandbox.manager), [""; 0], "{when}");
            sandbox.cleanup();
        }
    }
}

/// What was done to the original elsewhere, and what must still hold after the undo.
const ELSEWHERE: &str = r#"
printf theirs > other2 | is other2 theirs
printf theirs > a/stays | is a/stays theirs
rm a/stays | no a/stays; test -e a/f
printf theirs > a/new | is a/new theirs
mkdir -p q/r; printf x > q/r/s | test -e q/r/s
printf theirs > b/one | is b/one theirs
rm -r b/one; printf theirs > b/three | test -e b/three
chmod 0711 a | mode a 711
setfattr -n user.x -v theirs a | getfattr -n user.x a
chmod 0711 . | mode . 711
"#;

/// What another process did elsewhere does not matter, and is kept.
// rule C15
#[test]
fn what_is_elsewhere_is_kept() {
    try_all(&ISOLATING, &rows(ELSEWHERE), |strategy, [there, after]| {
        let world = World::new();
        let original = original(&world, "original", BASE);
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
        let looks = |one: &Entry| (one.kind, one.content, one.target.clone(), one.size);
        let differs = |path: &&Vec<u8>| now.get(*path).map(looks) != Some(looks(&before[*path]));
        let different: Vec<String> = before
            .keys()
            .filter(differs)
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .filter(|path| !there.contains(path.as_str()))
            .collect();
        assert_eq!(different, [""; 0]);
        sandbox.cleanup();
        holds(&original, after, "cleaned up");
    });
}

/// An undo can be made once, by any process, and not before there is something to undo.
// rule P5, C13
#[test]
fn undo_is_made_once() {
    for (strategy, world, sandbox) in each(&ISOLATING, BASE) {
        let before = signature(&sandbox.original);
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
            .must(strategy);
        assert_tree(&before, &sandbox.original, strategy);
        let left = areas(&world.home());
        assert_eq!(left.len(), 1, "nothing is kept any more: {left:?}");
        refused(PlanState::Open);
        sandbox.cleanup();
        refused(PlanState::CleanedUp);
        assert_tree(&before, &sandbox.original, strategy);
        assert_swept(&world.home());
    }
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
        let state = PlanState::CleanedUp;
        let answer = sandbox.undo();
        let over =
            matches!(answer, Err(Error::NothingToUndo { state: found, .. }) if found == state);
        assert!(over, "{strategy}: {answer:?}");
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
        assert_eq!(found, ["file"], "{strategy}");
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
    let manager = open(&world.home());
    let paths = originals.each_ref().map(PathBuf::as_path);
    let view = plan_of(&manager, Some("all"), &paths, "overlay");
    for sandbox in &view.sandboxes {
        let path = at("file");
        let written = manager.write(&view.plan, &sandbox.resource, &path, &mut &b"new"[..]);
        written.must("it can be written");
    }
    let committed = manager.commit(&view.plan, &request(PLAIN), &Unobserved);
    committed.must("all of them");
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
    manager.cleanup(&view.plan, false).must("it can be removed");
}
