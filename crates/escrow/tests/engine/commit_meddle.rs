//! Another process writes into an original while it is being committed: nothing of his is lost, wherever it ends up.
//!
//! The observer stands in for him: it is reported every entry that is staged, and of every step that was made.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::error::Error;
use escrow::event::Observer;
use escrow_testkit::World;
use escrow_testkit::signature::signature;

use crate::commit_support::{PLAIN, conflict_paths, holds, told};
use crate::overlay::original;
use crate::support::{ISOLATING, Sandboxed, assert_swept, sh};

const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
b/one "one"
file 0640 "file"
gone "gone"
zz "zz"
zzz "zzz"
"#;

/// Acts once, as soon as `ripe` holds in the original; then gives the commit up, if he is to.
struct Meddler<'a> {
    original: &'a Path,
    ripe: &'static str,
    act: &'static str,
    gives_up: bool,
    done: AtomicBool,
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

struct Row {
    /// What the sandbox did; later steps follow, so that there is a snapshot between.
    here: &'static str,
    /// When he acts.
    ripe: &'static str,
    /// What he does: all of it says `theirs` somewhere.
    act: &'static str,
    /// Where that is then.
    at: &'static str,
}

/// He writes where a step was made.
const AFTER_A_STEP: &[Row] = &[
    Row {
        here: "rm gone",
        ripe: "test ! -e gone",
        act: "printf theirs > gone",
        at: "gone",
    },
    Row {
        here: "rm gone",
        ripe: "test ! -e gone",
        act: "mkdir gone; printf theirs > gone/in",
        at: "gone/in",
    },
    Row {
        here: "rm -r a",
        ripe: "test ! -e a",
        act: "mkdir a; printf theirs > a/new",
        at: "a/new",
    },
    Row {
        here: "printf ours > file",
        ripe: "test \"$(cat file)\" = ours",
        act: "printf theirs > t; mv t file",
        at: "file",
    },
    Row {
        here: "printf ours > file",
        ripe: "test \"$(cat file)\" = ours",
        act: "printf ' and theirs' >> file",
        at: "file",
    },
    Row {
        here: "mkdir n; printf x > n/x",
        ripe: "test -e n/x",
        act: "printf theirs > n/new",
        at: "n/new",
    },
    Row {
        here: "mkdir n; printf x > n/x",
        ripe: "test -e n/x",
        act: "printf theirs > n/x",
        at: "n/x",
    },
    Row {
        here: "mkdir n; printf x > n/x",
        ripe: "test -e n/x",
        act: "mkdir -p n/sub/er; printf theirs > n/sub/er/deep",
        at: "n/sub/er/deep",
    },
    Row {
        here: "mkdir n; printf x > n/x",
        ripe: "test -e n/x",
        act: "mv n away; mkdir n; printf theirs > n/x",
        at: "n/x",
    },
    Row {
        here: "rm file; mkdir file; printf x > file/x",
        ripe: "test -e file/x",
        act: "printf theirs > file/y",
        at: "file/y",
    },
    Row {
        here: "rm -r b; printf ours > b",
        ripe: "test -f b",
        act: "rm b; mkdir b; printf theirs > b/new",
        at: "b/new",
    },
];

/// He is quicker than the step.
const BEFORE_A_STEP: &[Row] = &[
    Row {
        here: "printf ours > file",
        ripe: "true",
        act: "printf theirs > file",
        at: "file",
    },
    Row {
        here: "printf ours > file",
        ripe: "true",
        act: "t=$(stat -c %y file); printf theirs > t; touch -d \"$t\" t; mv t file",
        at: "file",
    },
    Row {
        here: "rm gone",
        ripe: "true",
        act: "printf theirs > gone",
        at: "gone",
    },
    Row {
        here: "printf ours > n",
        ripe: "true",
        act: "printf theirs > n",
        at: "n",
    },
    Row {
        here: "mkdir n; printf ours > n/x",
        ripe: "true",
        act: "mkdir n; printf theirs > n/y",
        at: "n/y",
    },
    Row {
        here: "rm -r a",
        ripe: "true",
        act: "printf theirs > a/new",
        at: "a/new",
    },
    Row {
        here: "rm -r a",
        ripe: "true",
        act: "printf theirs > a/sub/deep",
        at: "a/sub/deep",
    },
    Row {
        here: "rm -r b; printf ours > b",
        ripe: "true",
        act: "printf theirs > b/new",
        at: "b/new",
    },
    Row {
        here: "printf ours > a/n",
        ripe: "true",
        act: "rm -r a; printf theirs > a",
        at: "a",
    },
    Row {
        here: "printf ours > a/n",
        ripe: "true",
        act: "mv a elsewhere; ln -s elsewhere a; printf theirs > elsewhere/t",
        at: "elsewhere/t",
    },
];

/// His text, wherever it is now: in its place, or kept where the error says.
fn theirs(original: &Path, row: &Row, error: &Error) -> Option<(PathBuf, String)> {
    let mut places = vec![original.join(row.at)];
    if let Error::CommitFailed { kept, .. } = error {
        let kept = kept.iter().map(|(_, path, at)| (path.to_string(), at));
        for (path, at) in kept {
            // Of a directory the top is named.
            let rest = row.at.strip_prefix(&path).unwrap_or_default();
            places.push(at.as_path().join(rest.trim_start_matches('/')));
            places.push(at.as_path().to_owned());
        }
    }
    let read = |place: PathBuf| {
        let text = std::fs::read_to_string(&place).ok()?;
        text.contains("theirs").then_some((place, text))
    };
    places.into_iter().find_map(read)
}

/// What must hold whichever way it ends.
fn meddle(world: &World, strategy: &str, row: &Row, gives_up: bool) {
    let when = format!(
        "{strategy}: ({}) x ({}) gives up: {gives_up}",
        row.here, row.act
    );
    let original = original(world, "original", BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(&format!("{}; printf more >> zz; rm zzz", row.here));
    let (before, listing) = (signature(&original), sandbox.listing());
    let meddler = Meddler {
        original: &original,
        ripe: row.ripe,
        act: row.act,
        gives_up,
        done: AtomicBool::new(false),
    };
    let answer = sandbox.commit_with(PLAIN, &meddler);
    assert!(
        meddler.done.into_inner(),
        "{when}: there was no moment for it"
    );
    let error = match answer {
        Ok(_) => {
            // It was written behind the commit, so it stands, and stands in the way of an undo.
            holds(&original, &format!("grep -q theirs {}", row.at), &when);
            assert_ne!(conflict_paths(sandbox.undo()), [""; 0], "{when}");
            return;
        }
        Err(error) => error,
    };
    let Some((place, text)) = theirs(&original, row, &error) else {
        panic!("{when}: it is lost: {}", told(&error));
    };
    let Error::CommitFailed {
        not_undone, open, ..
    } = &error
    else {
        panic!("{when}: {}", told(&error));
    };
    assert!(not_undone.is_empty() && !open, "{when}: {}", told(&error));
    // Everything that he did not touch is as it was.
    let now = signature(&original);
    for (path, old) in &before {
        let shown = String::from_utf8_lossy(path);
        let touched = row.act.contains(&*shown) || row.at.starts_with(&*shown);
        let looks = |one: &escrow_testkit::signature::Entry| {
            (one.kind, one.mode, one.content, one.target.clone())
        };
        if !touched && !shown.starts_with("a/") {
            assert_eq!(
                now.get(path).map(looks),
                Some(looks(old)),
                "{when}: {shown}"
            );
        }
    }
    // The sandbox has every change; what others changed may look like one more.
    let kept: Vec<String> = sandbox.listing();
    let missing = listing.iter().filter(|line| !kept.contains(line));
    let missing: Vec<&String> = missing
        .filter(|line| !row.act.contains(&line[2..]) && !line[2..].starts_with("a/"))
        .collect();
    assert!(missing.is_empty(), "{when}: {missing:?}");
    let again = std::fs::read_to_string(&place).expect("it stays");
    assert_eq!(again, text, "{when}");
    sandbox.cleanup();
    assert_swept(&world.home());
}

fn each(rows: &[Row], gives_up: bool) {
    let mut failed = Vec::new();
    for strategy in ISOLATING {
        for row in rows {
            let world = World::new();
            let tried = || meddle(&world, strategy, row, gives_up);
            if let Err(panic) = std::panic::catch_unwind(tried) {
                let said = panic.downcast_ref::<String>().cloned();
                failed.push(said.unwrap_or_else(|| "no message".to_owned()));
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

/// What he wrote into a commit that is then taken back is in its place, or kept and named.
// rule C4, C5, C15
#[test]
fn into_a_commit_that_is_taken_back() {
    each(AFTER_A_STEP, true);
}

/// What he wrote behind a commit that goes on stands.
// rule C15
#[test]
fn behind_a_commit_that_goes_on() {
    each(AFTER_A_STEP, false);
}

/// Who is quicker than a step makes the commit fail, and keeps what he wrote.
// rule C2, C4, C15
#[test]
fn before_a_step() {
    each(BEFORE_A_STEP, false);
}

/// The mode of a directory that another process closes while it is being committed into stays his.
// rule C15
#[test]
fn a_directory_that_is_closed_meanwhile() {
    let mut failed = Vec::new();
    for strategy in ISOLATING {
        for here in [
            "printf ours > b/new",
            "rm b/one",
            "chmod 0711 b",
            "setfattr -n user.x -v 1 b",
        ] {
            let world = World::new();
            let original = original(&world, "original", BASE);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            sandbox.native(&format!("{here}; printf rest > rest"));
            let meddler = Meddler {
                original: &original,
                ripe: "true",
                act: "chmod 0700 b",
                gives_up: false,
                done: AtomicBool::new(false),
            };
            let answer = sandbox.commit_with(PLAIN, &meddler);
            let mode = sh(&original, "stat -c %a b").stdout;
            if mode != b"700\n" {
                let mode = String::from_utf8_lossy(&mode).into_owned();
                failed.push(format!("{strategy}: {here}: {mode:?} ({})", answer.is_ok()));
            }
        }
    }
    assert_eq!(failed, [""; 0], "opened again");
}

/// A directory is kept open while names in it are changed. Moved away meanwhile, with another one in its place, it makes
/// the commit fail: the steps in it were not made in the original.
// rule C2, C4, C15
#[test]
fn a_directory_was_moved_away_between_two_steps_in_it() {
    for strategy in ISOLATING {
        let world = World::new();
        let original = original(&world, "original", BASE);
        let sandbox = Sandboxed::new(&world.home(), &original, strategy);
        sandbox.native("printf ours > b/one; printf ours > b/two; printf more >> zz; rm zzz");
        let meddler = Meddler {
            original: &original,
            ripe: "grep -q ours b/one",
            act: "mv b away; mkdir b; printf theirs > b/other",
            gives_up: false,
            done: AtomicBool::new(false),
        };
        let error = match sandbox.commit_with(PLAIN, &meddler) {
            Ok(_) => panic!("{strategy}: a step in a directory that is elsewhere was claimed"),
            Err(error) => told(&error),
        };
        assert!(meddler.done.into_inner(), "{strategy}: {error}");
        let stays = "test \"$(cat b/other b/one zz zzz)\" = theirsonezzzzz; test ! -e b/two";
        holds(&original, stays, &format!("{strategy}: {error}"));
    }
}
