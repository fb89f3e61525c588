//! A part of a plan is released: exactly that, as one, and the rest stays in the sandbox as if the plan had begun
//! after it.

use std::collections::BTreeMap;
use std::path::Path;

use escrow::error::{Error, Result};
use escrow::event::Unobserved;
use escrow::manager::CommitReport;
use escrow::model::{ChangeKind, PlanState, SandboxState};
use escrow::policy::select::{ReleasePattern, ReleaseSelection};
use escrow_testkit::World;
use escrow_testkit::model::{Model, Rng};
use escrow_testkit::signature::{Ignore, Kind as Entry, Sig, differences, signature};

use crate::commit_support::{
    PLAIN, STRICT, assert_shares_nothing, assert_tree, conflict_paths, holds, request, stamps, told,
};
use crate::overlay::original;
use crate::property::{build, edits, expected};
use crate::support::{COPIES, ISOLATING, Sandboxed, assert_swept, sh};

const BASE: &str = r#"
a/f "a file"
a/sub/deep "deep"
a/stays "stays"
b/one "one"
dir/x "x"
dir/y "y"
file 0640 "file"
gone "gone"
old/in/moved "moved"
other "other"
third "third"
tofile/one "one"
tofile/two "two"
link -> file
"#;

/// Changes of every kind.
const EDITS: &str = "printf ours > file; rm gone; rm a/f; mkdir -p n/deep; printf x > n/deep/x; \
                     printf y > n/y; chmod 0750 b; setfattr -n user.mark -v ours b; \
                     printf z > b/two; ln -sfn ours link; rm -r a/sub; rm -r dir; \
                     rm third; mkdir third; printf t > third/t; mv old new; \
                     rm -r tofile; printf f > tofile; printf h > h1; ln h1 h2";

fn selection(words: &str) -> ReleaseSelection {
    let mut selection = ReleaseSelection::default();
    for word in words.split_whitespace() {
        let parse = |text: &str| ReleasePattern::parse(text).expect("a pattern");
        match word.strip_prefix('!') {
            Some(word) => selection.exclude.push(parse(word)),
            None => selection.only.push(parse(word)),
        }
    }
    selection
}

impl Sandboxed {
    fn part(&self, words: &str) -> Result<CommitReport> {
        let selection = selection(words);
        let request = request(PLAIN);
        self.manager
            .commit_part(&self.plan, &request, &selection, &Unobserved)
    }

    #[track_caller]
    fn parted(&self, words: &str) -> Vec<String> {
        match self.part(words) {
            Ok(released) => {
                assert_eq!(released.left, [], "nothing is left behind");
                let members = released.preview.members.iter();
                let changes = members.flat_map(|member| &member.diff.changes);
                changes.map(|change| change.path.to_string()).collect()
            }
            Err(error) => panic!("cannot commit {words}: {}", told(&error)),
        }
    }

    fn plan_state(&self) -> PlanState {
        let plans = self.manager.plans().expect("they can be listed");
        let ours = plans.iter().find(|view| view.plan.id == self.plan.id);
        ours.expect("it is there").plan.state
    }
}

/// Without the times of directories, which come as they do while only a part is there.
fn timeless(mut sig: Sig) -> Sig {
    for entry in sig.values_mut().filter(|entry| entry.kind == Entry::Dir) {
        entry.mtime = Default::default();
    }
    sig
}

#[track_caller]
fn assert_like(expected: Sig, found: Sig, when: &str) {
    let found = differences(&timeless(expected), &timeless(found), &Ignore::default());
    assert!(
        found.is_empty(),
        "{when} (expected, found):\n{}",
        found.join("\n")
    );
}

fn begun(world: &World, strategy: &str, edits: &str) -> Sandboxed {
    let original = original(world, "o", BASE);
    let sandbox = Sandboxed::new(&world.home(), &original, strategy);
    sandbox.native(edits);
    sandbox
}

fn without(
    mut all: BTreeMap<Vec<u8>, ChangeKind>,
    gone: &[String],
) -> BTreeMap<Vec<u8>, ChangeKind> {
    all.retain(|path, _| !gone.iter().any(|one| one.as_bytes() == path));
    all
}

const SELECTIONS: [(&str, &str); 16] = [
    ("file", "file"),
    ("gone link", "gone link"),
    ("n/deep/x", "n n/deep n/deep/x"),
    ("n", "n n/deep n/deep/x n/y"),
    ("dir/x", "dir/x"),
    ("dir", "dir dir/x dir/y"),
    ("dir !dir/y", "dir/x"),
    ("a", "a/f a/sub a/sub/deep"),
    ("b", "b b/two"),
    ("b/*", "b/two"),
    ("third", "third third/t"),
    ("third/t", "third third/t"),
    ("tofile/one", "tofile/one"),
    ("tofile", "tofile tofile/one tofile/two"),
    ("new", "new new/in new/in/moved"),
    ("h1", "h1"),
];

// rule C1, C6, F8
#[test]
fn what_is_left_is_exactly_the_rest() {
    for strategy in ["filesystem_copy", "overlay"] {
        for (words, expected) in SELECTIONS {
            let world = World::new();
            let sandbox = begun(&world, strategy, EDITS);
            let when = format!("{strategy}: {words}");
            let (before, all) = (signature(&sandbox.original), sandbox.diff());
            let view = sandbox.view();
            let released = sandbox.parted(words);
            assert_eq!(released.join(" "), expected, "{when}");
            assert_eq!(sandbox.diff(), without(all.clone(), &released), "{when}");
            assert_like(view.clone(), sandbox.view(), &when);
            assert_shares_nothing(&sandbox.original);
            assert_eq!(sandbox.plan_state(), PlanState::Open, "{when}");
            assert_eq!(sandbox.state(), SandboxState::Active, "{when}");
            // Exactly what was released is there, and nothing else.
            let now = signature(&sandbox.original);
            for (path, entry) in &now {
                let text = String::from_utf8_lossy(path).into_owned();
                let side = match released.contains(&text) {
                    true => view.get(path),
                    false => before.get(path),
                };
                let side = side.unwrap_or_else(|| panic!("{when}: {text} is there"));
                assert_eq!(
                    (entry.kind, entry.mode),
                    (side.kind, side.mode),
                    "{when}: {text}"
                );
            }
            // And back: everything is as before, and the plan's again.
            sandbox.undone();
            assert_like(before.clone(), signature(&sandbox.original), &when);
            assert_eq!(sandbox.diff(), all, "{when}: undone");
            assert_like(view.clone(), sandbox.view(), &when);
            // The other way: again, and then the rest.
            sandbox.parted(words);
            let promised = sandbox.view();
            sandbox.committed();
            assert_like(promised, signature(&sandbox.original), &when);
            assert_shares_nothing(&sandbox.original);
            assert_eq!(sandbox.plan_state(), PlanState::Committed, "{when}");
            // The newest first: the rest, then the part.
            sandbox.undone();
            assert_eq!(sandbox.plan_state(), PlanState::Open, "{when}");
            assert_like(now, signature(&sandbox.original), &when);
            sandbox.undone();
            assert_like(before, signature(&sandbox.original), &when);
            let again = sandbox.undo();
            assert!(
                matches!(again, Err(Error::NothingToUndo { .. })),
                "{when}: {again:?}"
            );
            // A copy that was made while the part stood cannot hold it: another plan does.
            for one in sandbox.manager.plans().expect("they can be listed") {
                sandbox.manager.cleanup(&one.plan, false).expect("it goes");
            }
            assert_swept(&world.home());
        }
    }
}

/// A directory that was made anew hides what was in the old one, whatever of it is released.
#[test]
fn a_directory_made_anew() {
    for strategy in ISOLATING {
        let world = World::new();
        let edits = "rm -r dir; mkdir dir; chmod 0700 dir; printf z > dir/z";
        let sandbox = begun(&world, strategy, edits);
        let (all, before) = (sandbox.diff(), signature(&sandbox.original));
        let released = sandbox.parted("dir !dir/y");
        assert_eq!(released.join(" "), "dir dir/x dir/z", "{strategy}");
        assert_eq!(sandbox.listing(), ["D dir/y"], "{strategy}");
        sandbox.undone();
        assert_like(before, signature(&sandbox.original), strategy);
        assert_eq!(sandbox.diff(), all, "{strategy}");
        sandbox.parted("dir/y");
        let view = sandbox.view();
        sandbox.committed();
        assert_like(view, signature(&sandbox.original), strategy);
    }
}

/// Random edits, random parts of them, undone at random, while the work goes on: what is left is always what differs from
/// the original, and what is seen in the sandbox is always what its users made of it.
// rule C1, C6, F8
#[test]
fn parts_at_random() {
    for strategy in ["filesystem_copy", "overlay"] {
        for case in 0..10 {
            let mut rng = Rng::new(7_000 + case);
            let world = World::on_disk();
            let mut base = Model::new();
            edits(&mut rng, &mut base, 30);
            let original = world.dir("o");
            build(&original, &base);
            let sandbox = Sandboxed::new(&world.home(), &original, strategy);
            let mut work = base.clone();
            // What stands in the original, and what stood there before each release that stands.
            let mut earlier = Vec::new();
            for round in 0..5 {
                let when = format!("{strategy}: case {case}, round {round}");
                let script = edits(&mut rng, &mut work, 8);
                sandbox.native(&script);
                let stands = Model::read_from(&original);
                assert_eq!(sandbox.diff(), expected(&stands, &work), "{when}");
                if rng.one_in(4)
                    && let Some(before) = earlier.pop()
                {
                    sandbox.undone();
                    assert_eq!(Model::read_from(&original), before, "{when}: undone");
                    assert_eq!(sandbox.diff(), expected(&before, &work), "{when}: undone");
                    continue;
                }
                let paths: Vec<Vec<u8>> = sandbox.diff().into_keys().collect();
                let mut selection = ReleaseSelection::default();
                for path in paths.iter().filter(|_| rng.one_in(3)) {
                    let text = String::from_utf8_lossy(path);
                    let text: String = text.chars().flat_map(|c| ['\\', c]).collect();
                    let text = text.replace("\\/", "/");
                    selection
                        .only
                        .extend(ReleasePattern::parse(&format!("*:{text}")));
                }
                if selection.only.is_empty() {
                    continue;
                }
                let request = request(PLAIN);
                let done =
                    sandbox
                        .manager
                        .commit_part(&sandbox.plan, &request, &selection, &Unobserved);
                match done {
                    Err(Error::Unmatched { .. } | Error::NothingSelected { .. }) => continue,
                    Err(error) => panic!("{when}: {}", told(&error)),
                    Ok(_) => earlier.push(stands),
                }
                if sandbox.plan_state() != PlanState::Open {
                    break;
                }
                let stands = Model::read_from(&original);
                assert_eq!(sandbox.diff(), expected(&stands, &work), "{when}: released");
            }
            if sandbox.plan_state() == PlanState::Open {
                sandbox.committed();
            }
            assert_eq!(Model::read_from(&original), work, "{strategy}: case {case}");
        }
    }
}

/// Each change for itself, one after the other, until nothing is left.
#[test]
fn one_after_the_other() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandbox = begun(&world, strategy, EDITS);
        let view = sandbox.view();
        while let Some(path) = sandbox.diff().into_keys().next_back() {
            let path = String::from_utf8(path).expect("plain names");
            sandbox.parted(&path);
            assert_like(
                view.clone(),
                match sandbox.plan_state() {
                    PlanState::Open => sandbox.view(),
                    _ => break,
                },
                &path,
            );
        }
        assert_eq!(sandbox.plan_state(), PlanState::Committed, "{strategy}");
        assert_like(view, signature(&sandbox.original), strategy);
        // Two names of one file are that again, although they were released one by one.
        holds(&sandbox.original, "test h1 -ef h2", strategy);
        sandbox.cleanup();
        assert_swept(&world.home());
    }
}

/// What was released is worked on further, and compared with what was released.
#[test]
fn work_goes_on_from_what_was_released() {
    let steps = [
        ("printf more > file", "M file"),
        ("rm file", "D file"),
        ("rm file; mkdir file; printf x > file/x", "T file A file/x"),
        ("chmod 0600 file", "P file"),
        ("printf again > gone", "A gone"),
        ("rm n/y", "D n/y"),
        ("rm -r n", "D n D n/deep D n/deep/x D n/y"),
        ("chmod 0700 n", "P n"),
        ("printf z > n/z", "A n/z"),
        ("rm third/t; printf u > third/u", "D third/t A third/u"),
        ("rm -r third; printf f > third", "T third D third/t"),
        ("chmod 0700 b", "P b"),
        ("mkdir dir", "A dir"),
        ("ln -sfn else link", "M link"),
        ("chmod 0640 file; cat n/y > /dev/null", ""),
        ("mv n/y n/w", "A n/w D n/y"),
    ];
    for strategy in ISOLATING {
        for (script, expected) in steps {
            let world = World::new();
            let sandbox = begun(&world, strategy, EDITS);
            sandbox.parted("file gone n third b dir link !h1 !h2");
            let rest = sandbox.listing();
            sandbox.native(script);
            let when = format!("{strategy}: {script}");
            let mut now = sandbox.listing();
            now.retain(|line| !rest.contains(line));
            assert_eq!(now.join(" "), expected, "{when}");
            // And it can be released, without a conflict with ourselves.
            let view = sandbox.view();
            let strict = sandbox.manager.preview(&sandbox.plan, STRICT);
            let strict = strict.expect("it can be looked at");
            let conflicts = strict.members.iter().map(|one| one.conflicts.len());
            assert_eq!(conflicts.sum::<usize>(), 0, "{when}: {strict:?}");
            sandbox.committed();
            assert_like(view, signature(&sandbox.original), &when);
        }
    }
}

/// What others make of what was released is never overwritten: where the sandbox has something else there, it is a
/// conflict.
// rule C15
#[test]
fn others_change_what_was_released() {
    for strategy in ISOLATING {
        let contested = [
            ("printf theirs > file", "true", "file"),
            ("rm file", "true", "file"),
            ("printf new > gone", "true", "gone"),
            ("chmod 0700 n", "true", "n"),
            ("printf theirs > file", "printf more > file", "file"),
            ("rm file", "printf more > file", "file"),
            ("printf theirs > file", "rm file", "file"),
            ("printf new > gone", "printf more > gone", "gone"),
            ("chmod 0700 n", "chmod 0711 n", "n"),
            ("printf w > n/w", "rm -r n", "n/w"),
            ("rm -r n", "printf v > n/v", "n"),
            ("chmod 0700 a", "chmod 0711 a", "a"),
        ];
        for (theirs, ours, path) in contested {
            let world = World::new();
            let sandbox = begun(&world, strategy, EDITS);
            sandbox.parted("file gone n third dir a/f");
            sh(&sandbox.original, theirs);
            sandbox.native(ours);
            let found = conflict_paths(sandbox.commit());
            let when = format!("{strategy}: {theirs}, {ours}: {found:?}");
            assert!(found.iter().any(|one| one == path), "{when}");
        }
    }
}

/// What others changed before is found before and after, and only where it concerns what is released.
// rule C15
#[test]
fn conflicts_are_those_of_what_is_released() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandbox = begun(&world, strategy, EDITS);
        sh(
            &sandbox.original,
            "printf theirs > file; chmod 0700 b; printf w > dir/w",
        );
        let before = stamps(&sandbox.original);
        for (words, expected) in [("file", "file"), ("b", "b"), ("dir", "dir/w")] {
            let found = conflict_paths(sandbox.part(words));
            assert_eq!(found.join(" "), expected, "{strategy}");
            assert_eq!(stamps(&sandbox.original), before, "{strategy}");
        }
        sandbox.parted("gone n b/two a/f");
        let found = conflict_paths(sandbox.commit());
        assert_eq!(found.join(" "), "b dir/w file", "{strategy}");
        sandbox.parted("!file !b !dir");
        let found = conflict_paths(sandbox.commit());
        assert_eq!(found.join(" "), "b dir/w file", "{strategy}");
    }
}

/// Another plan sees what was released as any process's change.
// rule C14
#[test]
fn another_plan_sees_it() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandbox = begun(&world, strategy, EDITS);
        let other = Sandboxed::new(&world.home(), &sandbox.original, strategy);
        other.native("printf other > file; printf apart > other");
        sandbox.parted("file");
        assert_eq!(conflict_paths(other.commit()), ["file"], "{strategy}");
        other.parted("other");
        sandbox.undone();
        other.committed();
        holds(&sandbox.original, "test $(cat file) = other", strategy);
        assert_eq!(conflict_paths(sandbox.commit()), ["file"], "{strategy}");
    }
}

/// A checkpoint is of the originals as they were: after a part was released it waits until that is undone.
// rule R1
#[test]
fn a_checkpoint_from_before_waits() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandbox = begun(&world, strategy, "printf v1 > file; printf o > other");
        let keep = || {
            let kept = sandbox
                .manager
                .create_checkpoint(&sandbox.plan, None, &Unobserved);
            kept.expect("it can be kept")
        };
        let restore = |at| sandbox.manager.restore(&sandbox.plan, at, &Unobserved);
        let before = keep();
        sandbox.write("file", b"v2").expect("it can be written");
        sandbox.parted("file");
        let refused = restore(&before).expect_err("it is of another time");
        assert!(
            matches!(refused, Error::StaleCheckpoint { .. }),
            "{strategy}"
        );
        let since = sandbox.manager.since(&sandbox.plan, &before, None);
        assert!(
            matches!(since, Err(Error::StaleCheckpoint { .. })),
            "{strategy}"
        );
        let fork = |at| {
            let here = Path::new(&sandbox.original);
            sandbox
                .manager
                .fork(&sandbox.plan, Some(at), None, here, &Unobserved)
        };
        assert!(
            matches!(fork(&before), Err(Error::StaleCheckpoint { .. })),
            "{strategy}"
        );
        // One that is taken now is of now.
        let after = keep();
        sandbox.write("file", b"v3").expect("it can be written");
        sandbox.write("other", b"p").expect("it can be written");
        restore(&after).unwrap_or_else(|error| panic!("{strategy}: {}", told(&error)));
        assert_eq!(
            sandbox.read("file").expect("it is there"),
            b"v2",
            "{strategy}"
        );
        assert_eq!(sandbox.listing(), ["M other"], "{strategy}");
        // Undone, each is of use again where it was taken.
        sandbox.undone();
        assert_eq!(sandbox.listing(), ["M file", "M other"], "{strategy}");
        assert!(
            matches!(restore(&after), Err(Error::StaleCheckpoint { .. })),
            "{strategy}"
        );
        restore(&before).unwrap_or_else(|error| panic!("{strategy}: {}", told(&error)));
        assert_eq!(
            sandbox.read("file").expect("it is there"),
            b"v1",
            "{strategy}"
        );
        sandbox.committed();
        holds(&sandbox.original, "test $(cat file other) = v1o", strategy);
    }
}

/// What was discarded is gone; what was released stays, and can still be taken back.
#[test]
fn a_rollback_after_a_part() {
    for strategy in ISOLATING {
        let world = World::new();
        let sandbox = begun(&world, strategy, EDITS);
        let before = signature(&sandbox.original);
        sandbox.parted("file gone n dir");
        let released = signature(&sandbox.original);
        sandbox.native("printf again > file; printf new > gone");
        sandbox.rollback();
        assert_eq!(sandbox.listing(), [""; 0], "{strategy}");
        assert_like(released.clone(), sandbox.view(), strategy);
        assert_tree(&released, &sandbox.original, strategy);
        // Whatever is done from here on counts as it would in any sandbox.
        sh(&sandbox.original, "printf back > gone");
        sandbox.native("rm -f gone; rm other");
        let expected: &[&str] = match COPIES.contains(&strategy) {
            true => &["D other"],
            false => &["D gone", "D other"],
        };
        assert_eq!(sandbox.listing(), expected, "{strategy}");
        sh(&sandbox.original, "rm gone");
        // The newest first: the rollback.
        sandbox.undone();
        sandbox.undone();
        assert_like(before, signature(&sandbox.original), strategy);
        sandbox.cleanup();
        assert_swept(&world.home());
    }
}
