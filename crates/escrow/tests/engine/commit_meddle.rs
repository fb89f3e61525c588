//! Another process writes into an original while it is being committed: nothing it wrote is lost, wherever it ends up.
//!
//! The observer stands in for that process: it is reported every entry that is staged, and of every step that was made.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::error::Error;
use escrow::event::Observer;
use escrow_testkit::World;
use escrow_testkit::signature::{Entry, signature};

use crate::commit_support::{PLAIN, conflict_paths, holds, told};
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, each, rows, sh, try_all};

const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
b/one "one"
file 0640 "file"
gone "gone"
zz "zz"
zzz "zzz"
"#;

/// Acts once, as soon as `ripe` holds in the original; then gives the commit up, if it is to.
struct Meddler<'a> {
    original: &'a Path,
    ripe: &'a str,
    act: &'a str,
    gives_up: bool,
    done: AtomicBool,
}

impl<'a> Meddler<'a> {
    fn new(original: &'a Path, ripe: &'a str, act: &'a str, gives_up: bool) -> Self {
        let done = AtomicBool::new(false);
        Self {
            original,
            ripe,
            act,
            gives_up,
            done,
        }
    }
}

impl Observer for Meddler<'_> {
    fn copied(&self, _entries: u64, _bytes: u64) {
        if self.done.load(Ordering::SeqCst) {
            return;
        }
        let ripe = std::process::Command::new("sh")
            .args(["-eu", "-c", self.ripe])
            .current_dir(self.original)
            .status();
        if ripe.expect("sh starts").success() {
            sh(self.original, self.act);
            self.done.store(true, Ordering::SeqCst);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.gives_up && self.done.load(Ordering::SeqCst)
    }
}

/// What the sandbox did; when the other process acts; what it does (all of it says `theirs` somewhere); where that is then.
type Row = [String; 4];

/// It writes where a step was made.
const AFTER_A_STEP: &str = r#"
rm gone | test ! -e gone | printf theirs > gone | gone
rm gone | test ! -e gone | mkdir gone; printf theirs > gone/in | gone/in
rm -r a | test ! -e a | mkdir a; printf theirs > a/new | a/new
printf ours > file | test "$(cat file)" = ours | printf theirs > t; mv t file | file
printf ours > file | test "$(cat file)" = ours | printf ' and theirs' >> file | file
mkdir n; printf x > n/x | test -e n/x | printf theirs > n/new | n/new
mkdir n; printf x > n/x | test -e n/x | printf theirs > n/x | n/x
mkdir n; printf x > n/x | test -e n/x | mkdir -p n/sub/er; printf theirs > n/sub/er/deep | n/sub/er/deep
mkdir n; printf x > n/x | test -e n/x | mv n away; mkdir n; printf theirs > n/x | n/x
rm file; mkdir file; printf x > file/x | test -e file/x | printf theirs > file/y | file/y
rm -r b; printf ours > b | test -f b | rm b; mkdir b; printf theirs > b/new | b/new
"#;

/// It is quicker than the step.
const BEFORE_A_STEP: &str = r#"
printf ours > file | true | printf theirs > file | file
printf ours > file | true | t=$(stat -c %y file); printf theirs > t; touch -d "$t" t; mv t file | file
rm gone | true | printf theirs > gone | gone
printf ours > n | true | printf theirs > n | n
mkdir n; printf ours > n/x | true | mkdir n; printf theirs > n/y | n/y
rm -r a | true | printf theirs > a/new | a/new
rm -r a | true | printf theirs > a/sub/deep | a/sub/deep
rm -r b; printf ours > b | true | printf theirs > b/new | b/new
printf ours > a/n | true | rm -r a; printf theirs > a | a
printf ours > a/n | true | mv a elsewhere; ln -s elsewhere a; printf theirs > elsewhere/t | elsewhere/t
"#;

/// Its text, wherever it is now: in its place, or kept where the error says.
fn theirs(original: &Path, at: &str, error: &Error) -> Option<(PathBuf, String)> {
    let mut places = vec![original.join(at)];
    if let Error::CommitFailed { kept, .. } = error {
        for (_, path, kept) in kept {
            // Of a directory the top is named.
            let rest = at.strip_prefix(&path.to_string()).unwrap_or_default();
            places.push(kept.as_path().join(rest.trim_start_matches('/')));
            places.push(kept.as_path().to_owned());
        }
    }
    let read = |place: PathBuf| {
        let text = std::fs::read_to_string(&place).ok()?;
        text.contains("theirs").then_some((place, text))
    };
    places.into_iter().find_map(read)
}

/// What must hold whichever way it ends.
fn meddle(strategy: &str, [here, ripe, act, at]: &Row, gives_up: bool) {
    let (world, when) = (World::new(), format!("gives up: {gives_up}"));
    let original = original(&world, "original", BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(&format!("{here}; printf more >> zz; rm zzz"));
    let (before, listing) = (signature(&original), sandbox.listing());
    let meddler = Meddler::new(&original, ripe, act, gives_up);
    let answer = sandbox.commit_with(PLAIN, &meddler);
    assert!(meddler.done.into_inner(), "{when}: it never acted");
    let Err(error) = answer else {
        // It was written behind the commit, so it stands, and stands in the way of an undo.
        holds(&original, &format!("grep -q theirs {at}"), &when);
        // What lies in a directory that the commit made stays there.
        match sandbox.undo() {
            Ok(undone) => assert!(!undone.stays.is_empty(), "{when}"),
            refused => assert_ne!(conflict_paths(refused), [""; 0], "{when}"),
        }
        return;
    };
    let said = told(&error);
    let Some((place, text)) = theirs(&original, at, &error) else {
        panic!("{when}: it is lost: {said}");
    };
    let clean = matches!(&error, Error::CommitFailed { not_undone, open: false, .. } if not_undone.is_empty());
    assert!(clean, "{when}: {said}");
    // Everything that the other process did not touch is as it was.
    let now = signature(&original);
    for (path, old) in &before {
        let shown = String::from_utf8_lossy(path);
        let touched = act.contains(&*shown) || at.starts_with(&*shown);
        let looks = |one: &Entry| (one.kind, one.mode, one.content, one.target.clone());
        if !touched && !shown.starts_with("a/") {
            let found = now.get(path).map(looks);
            assert_eq!(found, Some(looks(old)), "{when}: {shown}");
        }
    }
    // The sandbox has every change; what others changed may look like one more.
    let kept: Vec<String> = sandbox.listing();
    let missing = listing.iter().filter(|line| !kept.contains(line));
    let missing: Vec<&String> = missing
        .filter(|line| !act.contains(&line[2..]) && !line[2..].starts_with("a/"))
        .collect();
    assert!(missing.is_empty(), "{when}: {missing:?}");
    let again = std::fs::read_to_string(&place).expect("it stays");
    assert_eq!(again, text, "{when}");
    sandbox.cleanup();
    assert_swept(&world.home());
}

fn each_row(table: &str, gives_up: bool) {
    let rows: Vec<Row> = rows(table);
    try_all(&ISOLATING, &rows, |strategy, row| {
        meddle(strategy, row, gives_up)
    });
}

/// What it wrote into a commit that is then taken back is in its place, or kept and named.
// rule C4, C5, C15
#[test]
fn into_a_commit_that_is_taken_back() {
    each_row(AFTER_A_STEP, true);
}

/// What it wrote behind a commit that goes on stands.
// rule C15
#[test]
fn behind_a_commit_that_goes_on() {
    each_row(AFTER_A_STEP, false);
}

/// A process that is quicker than a step makes the commit fail, and keeps what it wrote.
// rule C2, C4, C15
#[test]
fn before_a_step() {
    each_row(BEFORE_A_STEP, false);
}

/// The mode of a directory that another process closes while it is being committed into stays its own.
// rule C15
#[test]
fn a_directory_that_is_closed_meanwhile() {
    let edits = [
        "printf ours > b/new",
        "rm b/one",
        "chmod 0711 b",
        "setfattr -n user.x -v 1 b",
    ];
    try_all(&ISOLATING, &edits, |strategy, here| {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native(&format!("{here}; printf rest > rest"));
        let meddler = Meddler::new(&original, "true", "chmod 0700 b", false);
        let answer = sandbox.commit_with(PLAIN, &meddler);
        holds(
            &original,
            "mode b 700",
            &format!("opened again ({})", answer.is_ok()),
        );
    });
}

/// A directory is kept open while names in it are changed. Moved away meanwhile, with another one in its place, it makes
/// the commit fail: the steps in it were not made in the original.
// rule C2, C4, C15
#[test]
fn a_directory_was_moved_away_between_two_steps_in_it() {
    for (strategy, _world, sandbox) in each(&ISOLATING, BASE) {
        sandbox.native("printf ours > b/one; printf ours > b/two; printf more >> zz; rm zzz");
        let act = "mv b away; mkdir b; printf theirs > b/other";
        let meddler = Meddler::new(&sandbox.original, "grep -q ours b/one", act, false);
        let error = match sandbox.commit_with(PLAIN, &meddler) {
            Ok(_) => panic!("{strategy}: a step in a directory that is elsewhere was claimed"),
            Err(error) => told(&error),
        };
        assert!(meddler.done.into_inner(), "{strategy}: {error}");
        let stays = "is 'b/other b/one zz zzz' theirsonezzzzz; no b/two";
        holds(&sandbox.original, stays, &format!("{strategy}: {error}"));
    }
}
