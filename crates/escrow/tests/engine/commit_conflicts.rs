//! Where both sides changed a path nothing is committed; where the user chose a side, the other is kept for undo.

use std::path::PathBuf;

use escrow::commit::CommitTerms;
use escrow::error::Error;
use escrow::event::Unobserved;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::user::rerun_test_as_user;

use crate::commit_rows::{APART, BASE, DIRECTORIES, FILES, Row};
use crate::commit_support::{
    GivesUp, Must, OURS, PLAIN, STRICT, THEIRS, areas, assert_tree, conflict_paths, holds, stamps,
    told,
};
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, each, sh, try_all};

/// How the sandbox is worked in.
#[derive(Clone, Copy)]
enum By {
    Native,
    Engine,
}

/// Both sides did what the row says.
fn set_up(world: &World, strategy: &str, by: By, row: &Row, name: &str) -> Sandboxed {
    let original = original(world, name, BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    match by {
        By::Native => sandbox.native(&format!("{}; printf rest > rest", row.here)),
        By::Engine => {
            for path in row.writes().expect("only such rows are tried") {
                sandbox.write(path, b"ours").must(path);
            }
            sandbox.write("rest", b"rest").must("rest");
        }
    }
    sh(&original, &row.there);
    sandbox
}

/// Commits on terms that let it pass, looks, and undoes it.
fn passes(sandbox: &Sandboxed, terms: CommitTerms, after: &str, when: &str) {
    let theirs = signature(&sandbox.original);
    sandbox.commit_with(terms, &Unobserved).must(when);
    holds(&sandbox.original, &format!("is rest rest; {after}"), when);
    sandbox.undo().must(&format!("undo, {when}"));
    assert_tree(&theirs, &sandbox.original, &format!("undone, {when}"));
    sandbox.cleanup();
}

/// Whether these are the conflicts: no path is missing, and beside them at most the directories
/// they lie in, or what lies in them.
fn fits(found: &[String], paths: &[String]) -> bool {
    let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let near = |one: &String| {
        let related = |path: &String| one == path || below(one, path) || below(path, one);
        paths.iter().any(related)
    };
    let named = |path: &String| found.contains(path);
    found.iter().all(near) && paths.iter().all(named)
}

/// Tries one row.
fn try_row(strategy: &str, by: By, row: &Row) {
    let (world, when) = (World::new(), format!("{strategy}: {row:?}"));
    let sandbox = set_up(&world, strategy, by, row, "original");
    let original = sandbox.original.clone();
    let (listing, before) = (sandbox.listing(), stamps(&original));
    let preview = sandbox.manager.preview(&sandbox.plan, PLAIN).must(&when);
    let conflicts = preview.members[0].conflicts.iter();
    let found: Vec<String> = conflicts.map(|one| one.path.to_string()).collect();
    let right = row.conflicts.iter().any(|paths| fits(&found, paths));
    assert!(right, "conflicts at {found:?}, not {:?}", row.conflicts);
    if found.is_empty() {
        passes(&sandbox, PLAIN, &row.ours, &when);
    } else {
        assert_eq!(conflict_paths(sandbox.commit()), found, "{when}");
        assert_eq!(stamps(&original), before, "{when}: something was touched");
        assert_eq!(sandbox.listing(), listing, "{when}");
        assert_eq!(areas(&world.home()).len(), 1, "{when}");
        passes(&sandbox, OURS, &row.ours, &format!("ours, {when}"));
        let sandbox = set_up(&world, strategy, by, row, "original-theirs");
        passes(&sandbox, THEIRS, &row.theirs, &format!("theirs, {when}"));
    }
    assert_swept(&world.home());
}

/// Tries every row of a table, but for one of which a limit is stated.
fn try_rows(strategy: &'static str, by: By, table: &str, limit: Option<(&str, &str)>) {
    let mut rows = Row::all(table);
    let all = rows.len();
    rows.retain(|row| limit != Some((&row.here, &row.there)));
    assert_eq!(rows.len() + limit.iter().len(), all, "{limit:?}");
    if let By::Engine = by {
        rows.retain(|row| row.writes().is_some());
    }
    try_all(&[strategy], &rows, |strategy, row| {
        try_row(strategy, by, row)
    });
}

// rule C15, F6
#[test]
fn files_in_a_copy() {
    try_rows("filesystem_copy", By::Native, FILES, None);
    try_rows("copy_on_write", By::Engine, FILES, None);
}

// rule C15, F6, T1
#[test]
fn files_in_an_overlay() {
    // A file that was replaced by another one leaves no trace in the layer of what it was made from, so its deletion in
    // the original is not seen.
    let limit = ("printf ours > t; mv t file", "rm file");
    try_rows("overlay", By::Native, FILES, Some(limit));
}

// rule C15, F6
#[test]
fn files_in_an_overlay_of_the_engine() {
    try_rows("overlay", By::Engine, FILES, None);
}

// rule C15
#[test]
fn apart_in_a_copy() {
    try_rows("copy_on_write", By::Native, APART, None);
    try_rows("filesystem_copy", By::Engine, APART, None);
}

// rule C15, T1
#[test]
fn apart_in_an_overlay() {
    try_rows("overlay", By::Native, APART, None);
    try_rows("overlay", By::Engine, APART, None);
}

// rule C15, C16
#[test]
fn directories_in_a_copy() {
    try_rows("filesystem_copy", By::Native, DIRECTORIES, None);
    try_rows("copy_on_write", By::Engine, DIRECTORIES, None);
}

// rule C15, C16, T1
#[test]
fn directories_in_an_overlay() {
    // How a directory looked that the kernel copied up is not known, so a new mode there is not told from new names in it.
    let limit = ("chmod 0700 b", "chmod 0750 b; printf theirs > b/new");
    try_rows("overlay", By::Native, DIRECTORIES, Some(limit));
}

// rule C15, C16
#[test]
fn directories_in_an_overlay_of_the_engine() {
    try_rows("overlay", By::Engine, DIRECTORIES, None);
}

/// A strict base takes no move at all, however far from what the sandbox changed, and none for none.
// rule C15
#[test]
fn a_strict_base() {
    let moves = [
        "printf x > other",
        "t=$(stat -c %y other); printf rehto > other; touch -d \"$t\" other",
        "printf x > b/new",
        "mkdir b/new",
        "rm a/sub/deep",
        "rmdir empty",
        "chmod 0600 b/two",
        "chmod 0700 a/sub",
        "setfattr -n user.x -v 1 a/sub",
        "chmod 0700 .",
        "setfattr -n user.x -v 1 .",
        "ln -sfn elsewhere link",
        "mv a/sub b/sub",
        "rm -r d; printf x > d",
    ];
    try_all(&ISOLATING, &moves, |strategy, there| {
        let (world, _, [sandbox]) = plans(strategy, "printf ours > file");
        sh(&sandbox.original, there);
        let before = stamps(&sandbox.original);
        let found = conflict_paths(sandbox.commit_with(STRICT, &Unobserved));
        assert_ne!(found, [""; 0], "not noticed");
        assert_eq!(stamps(&sandbox.original), before, "something was touched");
        sandbox.committed();
        sandbox.cleanup();
        assert_swept(&world.home());
    });
    for (strategy, _world, sandbox) in each(&ISOLATING, BASE) {
        sandbox.native("printf ours > file; rm -r a; mkdir n; chmod 0700 b");
        let look = "cat file other; ls -lR; find . | xargs -d '\\n' getfattr -d";
        sh(&sandbox.original, look);
        sandbox.commit_with(STRICT, &Unobserved).must(strategy);
    }
}

/// Several plans on one directory.
fn plans<const N: usize>(strategy: &str, script: &str) -> (World, PathBuf, [Sandboxed; N]) {
    let world = World::new();
    let original = original(&world, "original", BASE);
    let plans = std::array::from_fn(|_| {
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(script);
        sandbox
    });
    (world, original, plans)
}

const EDITS: &str = "printf ours > file; rm other; rm -r a; chmod 0600 third; chmod 0700 b; \
                     printf x > b/new; rm d0; mkdir d0; ln -sfn ours link";

/// Gives up a commit of this plan as late as possible: when all but one step is made.
fn fail_late(sandbox: &Sandboxed) {
    let before = signature(&sandbox.original);
    let mut late = None;
    for after in 1..100 {
        let observer = GivesUp(after.into());
        match sandbox.commit_with(PLAIN, &observer) {
            Err(error @ Error::CommitFailed { .. }) => late = Some((after, error)),
            Err(_) if late.is_none() => {}
            Err(error) => panic!("{}", told(&error)),
            Ok(_) => {
                assert!(late.is_some_and(|(after, _)| after > 8), "it failed late");
                sandbox.undone();
                assert_tree(&before, &sandbox.original, "undone");
                return;
            }
        }
        assert_tree(&before, &sandbox.original, "given up");
    }
    panic!("it never succeeded");
}

/// What was moved away and put back is no change: not to a plan made before, not to one made
/// between two attempts, and not to one made after.
// rule C6, C15
#[test]
fn no_conflict_with_what_was_put_back() {
    for strategy in ISOLATING {
        let (world, original, [failing, older]) = plans(strategy, EDITS);
        let before = signature(&original);
        failing
            .commit_with(PLAIN, &GivesUp(10.into()))
            .expect_err("it is given up when most is done");
        assert_tree(&before, &original, "given up");
        let between = Sandboxed::new(&world.home(), &original, strategy);
        between.native(EDITS);
        fail_late(&failing);
        let newer = Sandboxed::new(&world.home(), &original, strategy);
        newer.native(EDITS);
        for (sandbox, which) in [(&older, "older"), (&between, "between"), (&newer, "newer")] {
            for terms in [PLAIN, STRICT] {
                let when = format!("{strategy}, {which} (strict: {})", terms.strict);
                let preview = sandbox.manager.preview(&sandbox.plan, terms).must(&when);
                assert_eq!(preview.members[0].conflicts, [], "{when}");
            }
            sandbox.committed();
            sandbox.undone();
            assert_tree(&before, &original, which);
        }
    }
}

/// A real change is still one after a commit was given up, or undone, around it.
// rule C15
#[test]
fn a_real_change_is_not_hidden_by_what_was_put_back() {
    for strategy in ISOLATING {
        let (world, original, [failing, other]) = plans(strategy, EDITS);
        fail_late(&failing);
        let same_time = "t=$(stat -c %y file); printf elif > file; touch -d \"$t\" file";
        sh(&original, same_time);
        assert_eq!(conflict_paths(other.commit()), ["file"], "{strategy}");
        // The other one takes it by force, and gives it back.
        let theirs = signature(&original);
        other.commit_with(OURS, &Unobserved).must(strategy);
        other.undone();
        assert_tree(&theirs, &original, "undone");
        let third = Sandboxed::new(&world.home(), &original, strategy);
        third.write("file", b"third").expect("it can be written");
        third.committed();
    }
}

/// Of several names of one file, each plan changes one: they do not overlap.
// rule C14, C15
#[test]
fn names_of_one_file_are_apart() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", "h1 \"hard\"\nh2 = h1\nh3 = h1\nx \"x\"");
        let plans = ["h1", "h2", "h3"].map(|name| {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(&format!("rm {name}; printf changed > {name}"));
            sandbox
        });
        plans.iter().for_each(|plan| drop(plan.committed()));
        holds(&original, "is 'h1 h2 h3' changedchangedchanged", strategy);
    }
}

/// What was committed by one plan is a change to the other, exactly where both touch it.
// rule C14, C15
#[test]
fn the_later_plan_finds_the_overlap() {
    rerun_test_as_user("commit_conflicts::the_later_plan_finds_the_overlap");
    for strategy in ISOLATING {
        let (_world, original, [first, second]) = plans(strategy, ":");
        first.native(
            "printf 1 > both; printf first > file; rm -r a; printf x > b/first; chmod 0700 d",
        );
        second.native("printf 2 > both; printf second > file; printf x > a/second; printf x > b/second; rm third");
        first.committed();
        let before = signature(&original);
        let found = conflict_paths(second.commit());
        let wanted = ["a/second", "both", "file"].map(str::to_owned);
        let overlay = ["a", "both", "file"].map(str::to_owned);
        assert!(found == wanted || found == overlay, "{strategy}: {found:?}");
        assert_tree(&before, &original, "refused");
        second.commit_with(THEIRS, &Unobserved).must(strategy);
        let kept = "is file first; no a; no third; test -e b/first -a -e b/second";
        holds(&original, kept, strategy);
        // The earlier one cannot be undone as far as the later one went on; nothing collides here.
        second.undone();
        assert_tree(&before, &original, "undone");
        first.undone();
    }
}

/// The state of a plan after each of these.
#[test]
fn a_refused_plan_stays_open() {
    let (_world, original, [sandbox]) = plans("filesystem_copy", "printf x > file");
    sh(&original, "printf theirs > file");
    assert_eq!(conflict_paths(sandbox.commit()), ["file"]);
    assert_eq!(sandbox.state_of_plan(), PlanState::Open);
    sandbox.write("file", b"again").expect("it is open");
    sandbox
        .commit_with(OURS, &Unobserved)
        .must("a side was chosen");
    assert_eq!(sandbox.state_of_plan(), PlanState::Committed);
    sandbox.undone();
    assert_eq!(sandbox.state_of_plan(), PlanState::Open);
    holds(&original, "is file theirs", "undone");
}
