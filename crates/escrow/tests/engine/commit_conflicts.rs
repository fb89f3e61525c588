//! Where both sides changed a path nothing is committed; where the user chose a side, the other is kept for undo.

use std::path::PathBuf;

use escrow::commit::CommitTerms;
use escrow::error::Error;
use escrow::event::{Observer, Unobserved};
use escrow::internals::store::Plan;
use escrow::model::PlanState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_rows::{APART, BASE, DIRECTORIES, FILES, Row};
use crate::commit_support::{
    OURS, PLAIN, STRICT, THEIRS, areas, assert_tree, conflict_paths, holds, stamps, told,
};
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, sh};

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
            for path in row.writes.iter().chain(&["rest"]) {
                let content: &[u8] = match *path {
                    "rest" => b"rest",
                    _ => b"ours",
                };
                let written = sandbox.write(path, content);
                written.unwrap_or_else(|error| panic!("{path}: {}", told(&error)));
            }
        }
    }
    sh(&original, row.there);
    sandbox
}

/// Commits on terms that let it pass, looks, and undoes it.
fn passes(sandbox: &Sandboxed, terms: CommitTerms, after: &str, when: &str) {
    let theirs = signature(&sandbox.original);
    let released = sandbox.commit_with(terms, &Unobserved);
    released.unwrap_or_else(|error| panic!("{when}: {}", told(&error)));
    let rest = "test \"$(cat rest)\" = rest";
    holds(&sandbox.original, &format!("{rest}; {after}"), when);
    let undone = sandbox.undo();
    undone.unwrap_or_else(|error| panic!("undo, {when}: {}", told(&error)));
    assert_tree(&theirs, &sandbox.original, &format!("undone, {when}"));
    sandbox.cleanup();
}

/// Whether these are the conflicts: no path is missing, and beside them at most the directories
/// they lie in, or what lies in them.
fn fits(found: &[String], paths: &[&str]) -> bool {
    let below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let near = |one: &String| {
        let related = |path: &&str| one == path || below(one, path) || below(path, one);
        paths.iter().any(related)
    };
    let named = |path: &&str| found.iter().any(|one| one == path);
    found.iter().all(near) && paths.iter().all(named)
}

/// Tries one row.
fn try_row(world: &World, strategy: &str, by: By, row: &Row, name: &str) {
    let when = format!("{strategy}: ({}) x ({})", row.here, row.there);
    let sandbox = set_up(world, strategy, by, row, name);
    let original = sandbox.original.clone();
    let (listing, before) = (sandbox.listing(), stamps(&original));
    let preview = sandbox.manager.preview(&sandbox.plan, PLAIN);
    let preview = preview.unwrap_or_else(|error| panic!("{when}: {}", told(&error)));
    let found: Vec<String> = preview.members[0]
        .conflicts
        .iter()
        .map(|conflict| conflict.path.to_string())
        .collect();
    let right = row.conflicts.iter().any(|paths| fits(&found, paths));
    assert!(
        right,
        "{when}: conflicts at {found:?}, not {:?}",
        row.conflicts
    );
    if found.is_empty() {
        return passes(&sandbox, PLAIN, row.ours, &when);
    }
    assert_eq!(conflict_paths(sandbox.commit()), found, "{when}");
    assert_eq!(stamps(&original), before, "{when}: something was touched");
    assert_eq!(sandbox.listing(), listing, "{when}");
    assert_eq!(areas(&world.home()).len(), 1, "{when}");
    passes(&sandbox, OURS, row.ours, &format!("ours, {when}"));
    let sandbox = set_up(world, strategy, by, row, &format!("{name}-theirs"));
    passes(&sandbox, THEIRS, row.theirs, &format!("theirs, {when}"));
}

/// Tries every row, also behind one that failed, and then tells all failures.
fn try_rows(strategy: &str, by: By, rows: &[Row]) {
    let mut failed = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        if matches!(by, By::Engine) && row.writes.is_empty() {
            continue;
        }
        let world = World::new();
        let name = format!("original-{number}");
        let tried = std::panic::catch_unwind(|| try_row(&world, strategy, by, row, &name));
        if let Err(panic) = tried {
            let said = panic.downcast_ref::<String>().cloned();
            failed.push(said.unwrap_or_else(|| "no message".to_owned()));
            continue;
        }
        assert_swept(&world.home());
    }
    assert!(
        failed.is_empty(),
        "{} rows failed:\n\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

// rule C15, F6
#[test]
fn files_in_a_copy() {
    try_rows("filesystem_copy", By::Native, FILES);
    try_rows("copy_on_write", By::Engine, FILES);
}

// rule C15, F6, T1
#[test]
fn files_in_an_overlay() {
    // A stated limit: a file that was replaced by another one leaves no trace in the layer of what
    // it was made from, so its deletion in the original is not seen.
    let told = |row: &&Row| (row.here, row.there) != ("printf ours > t; mv t file", "rm file");
    let rows: Vec<Row> = FILES.iter().filter(told).cloned().collect();
    assert_eq!(rows.len(), FILES.len() - 1);
    try_rows("overlay", By::Native, &rows);
}

// rule C15, F6
#[test]
fn files_in_an_overlay_of_the_engine() {
    try_rows("overlay", By::Engine, FILES);
}

// rule C15
#[test]
fn apart_in_a_copy() {
    try_rows("copy_on_write", By::Native, APART);
    try_rows("filesystem_copy", By::Engine, APART);
}

// rule C15, T1
#[test]
fn apart_in_an_overlay() {
    try_rows("overlay", By::Native, APART);
    try_rows("overlay", By::Engine, APART);
}

// rule C15, C16
#[test]
fn directories_in_a_copy() {
    try_rows("filesystem_copy", By::Native, DIRECTORIES);
    try_rows("copy_on_write", By::Engine, DIRECTORIES);
}

// rule C15, C16, T1
#[test]
fn directories_in_an_overlay() {
    // A stated limit: how a directory looked that the kernel copied up is not known, so a new mode
    // there is not told from new names in it.
    let told = |row: &&Row| {
        (row.here, row.there) != ("chmod 0700 b", "chmod 0750 b; printf theirs > b/new")
    };
    let rows: Vec<Row> = DIRECTORIES.iter().filter(told).cloned().collect();
    assert_eq!(rows.len(), DIRECTORIES.len() - 1);
    try_rows("overlay", By::Native, &rows);
}

// rule C15, C16
#[test]
fn directories_in_an_overlay_of_the_engine() {
    try_rows("overlay", By::Engine, DIRECTORIES);
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
    let mut failed = Vec::new();
    for strategy in ISOLATING {
        let world = World::new();
        for (number, there) in moves.iter().enumerate() {
            let original = original(&world, &format!("{strategy}-{number}"), BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.write("file", b"ours").expect("it can be written");
            sh(&original, there);
            let before = stamps(&original);
            let found = conflict_paths(sandbox.commit_with(STRICT, &Unobserved));
            if found.is_empty() || stamps(&original) != before {
                failed.push(format!("{strategy}: {there}"));
            } else {
                sandbox.committed();
            }
            sandbox.cleanup();
        }
        let still = original(&world, strategy, BASE);
        let sandbox = Sandboxed::new(&world.home(), &still, strategy);
        sandbox.native("printf ours > file; rm -r a; mkdir n; chmod 0700 b");
        sh(
            &still,
            "cat file other; ls -lR; find . | xargs -d '\\n' getfattr -d",
        );
        let released = sandbox.commit_with(STRICT, &Unobserved);
        released.unwrap_or_else(|error| panic!("{strategy}: nothing moved: {}", told(&error)));
        sandbox.cleanup();
        assert_swept(&world.home());
    }
    assert_eq!(failed, [""; 0], "not noticed");
}

/// Several plans on one directory.
fn plans<const N: usize>(
    world: &World,
    name: &str,
    strategy: &str,
    script: &str,
) -> (PathBuf, [Sandboxed; N]) {
    let original = original(world, name, BASE);
    let plans = std::array::from_fn(|_| {
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(script);
        sandbox
    });
    (original, plans)
}

/// Gives up when so many entries were moved.
struct GivesUp(std::sync::atomic::AtomicI64);

impl Observer for GivesUp {
    fn copied(&self, entries: u64, _bytes: u64) {
        let entries = i64::try_from(entries).expect("a few");
        self.0
            .fetch_sub(entries, std::sync::atomic::Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst) <= 0
    }
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
        let world = World::new();
        let (original, [failing, older]) = plans(&world, "original", strategy, EDITS);
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
                let preview = sandbox.manager.preview(&sandbox.plan, terms);
                let preview = preview.expect("it can be looked at");
                let found: Vec<&_> = preview.members[0].conflicts.iter().collect();
                assert!(
                    found.is_empty(),
                    "{strategy}, {which} (strict: {}): {found:?}",
                    terms.strict
                );
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
        let world = World::new();
        let (original, [failing, other]) = plans(&world, "original", strategy, EDITS);
        fail_late(&failing);
        sh(
            &original,
            "t=$(stat -c %y file); printf elif > file; touch -d \"$t\" file",
        );
        assert_eq!(conflict_paths(other.commit()), ["file"], "{strategy}");
        // The other one takes it by force, and gives it back.
        let theirs = signature(&original);
        let released = other.commit_with(OURS, &Unobserved);
        released.unwrap_or_else(|error| panic!("{}", told(&error)));
        other.undone();
        assert_tree(&theirs, &original, "undone");
        let third = Sandboxed::new(&world.home(), &original, strategy);
        third.write("file", b"third").expect("it can be written");
        third.committed();
    }
}

/// Of two names of one file, each plan changes one: they do not overlap.
// rule C14, C15
#[test]
fn names_of_one_file_are_apart() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", "h1 \"hard\"\nh2 = h1\nh3 = h1\nx \"x\"");
        let change = |name: &str| {
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(&format!("rm {name}; printf changed > {name}"));
            sandbox
        };
        let (first, second, third) = (change("h1"), change("h2"), change("h3"));
        first.committed();
        second.committed();
        third.committed();
        assert_eq!(
            sh(&original, "cat h1 h2 h3").stdout,
            b"changedchangedchanged"
        );
    }
}

/// What was committed by one plan is a change to the other, exactly where both touch it.
// rule C14, C15
#[test]
fn the_later_plan_finds_the_overlap() {
    for strategy in ISOLATING {
        let world = World::new();
        let (original, [first, second]) = plans(&world, "original", strategy, ":");
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
        let released = second.commit_with(THEIRS, &Unobserved);
        released.unwrap_or_else(|error| panic!("{}", told(&error)));
        holds(
            &original,
            "test \"$(cat file)\" = first -a ! -e a -a ! -e third -a -e b/first -a -e b/second",
            strategy,
        );
        // The earlier one cannot be undone as far as the later one went on; nothing collides here.
        second.undone();
        assert_tree(&before, &original, "undone");
        first.undone();
    }
}

/// The state of a plan after each of these.
#[test]
fn a_refused_plan_stays_open() {
    let world = World::new();
    let (original, [sandbox]) = plans(&world, "original", "filesystem_copy", "printf x > file");
    sh(&original, "printf theirs > file");
    let state = |plan: &Plan| {
        let plans = sandbox.manager.plans().expect("they can be listed");
        let found = plans.iter().find(|view| view.plan.id == plan.id);
        found.expect("it is known").plan.state
    };
    conflict_paths(sandbox.commit());
    assert_eq!(state(&sandbox.plan), PlanState::Open);
    sandbox.write("file", b"again").expect("it is open");
    let released = sandbox.commit_with(OURS, &Unobserved);
    released.expect("a side was chosen");
    assert_eq!(state(&sandbox.plan), PlanState::Committed);
    sandbox.undone();
    assert_eq!(state(&sandbox.plan), PlanState::RolledBack);
    assert_eq!(sh(&original, "cat file").stdout, b"theirs");
}
