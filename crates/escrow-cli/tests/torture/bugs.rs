//! The control: bugs that are put in on purpose, each of which the sweeps must find.
//!
//! Each bug is looked for by the sweep that should find it, then by the others. Only the command is used here, since
//! only it has the bug.

use std::panic::catch_unwind;

use crate::checkpoints::Act;
use crate::door::Door;
use crate::life::PlanVerb;
use crate::sweep::{say, spread};
use crate::*;
use crate::{checkpoints, damage, forward, full, next, power, sweep, unlinks};

const EIO: i32 = 5;

/// Looks for a bug: what was found, and after how many points.
type Find = fn(&'static str) -> Option<(String, usize)>;

/// The ways to look for a bug.
const WAYS: [(&str, Find); 19] = [
    ("commit killed", |bug| at_every_call(commit(bug))),
    ("commit meets errors", |bug| {
        at_every_call(fails(commit(bug)))
    }),
    ("undo killed", |bug| at_every_call(undo(bug))),
    ("syncs fail", |bug| at_every_call(syncs(bug))),
    ("recover killed", |bug| recovers(bug, Fault::Kill)),
    ("recover meets errors", |bug| {
        recovers(bug, Fault::Once(EIO))
    }),
    ("power cut", power::finds),
    ("restore killed", |bug| {
        checkpoints::finds(Act::Restore, bug)
    }),
    ("fork killed", |bug| checkpoints::finds(Act::Fork, bug)),
    ("gc killed", |bug| checkpoints::finds(Act::Gc, bug)),
    (CUT_CHECKPOINT, |bug| {
        checkpoints::finds_dark(Act::Checkpoint, bug)
    }),
    ("strategy check", check),
    (CREATE, |bug| next::finds(PlanVerb::Create, bug)),
    (CLEANUP, |bug| next::finds(PlanVerb::Cleanup, bug)),
    (ROLLBACK, |bug| next::finds(PlanVerb::Rollback, bug)),
    ("removals fail, then gc and undo", unlinks::finds),
    ("damaged store, then gc", damage::finds),
    ("full disk", full::finds),
    ("steps that cannot be taken back", forward::finds),
];
const CUT_CHECKPOINT: &str = "power cut in a checkpoint";
const CREATE: &str = "plan create interrupted, then commit";
const CLEANUP: &str = "cleanup interrupted, then commit";
const ROLLBACK: &str = "rollback interrupted, then commit";

/// Where each bug should show.
fn likely(bug: &str) -> &'static str {
    match bug {
        "no-stage-sync" | "no-directory-sync" => "power cut",
        "no-undo-on-failure" | "stage-removed-early" => "commit meets errors",
        "sandbox-removed-early" | "rename-error-dropped" => "commit meets errors",
        "undo-forgets-directories" | "undo-not-recorded" => "undo killed",
        "sync-twice" => "syncs fail",
        "restore-undecided" => "restore killed",
        "fork-one-by-one" => "fork killed",
        "gc-takes-shared-layers" => "gc killed",
        "checkpoint-not-synced" => CUT_CHECKPOINT,
        "part-forgets-a-path" => "strategy check",
        "create-one-by-one" => CREATE,
        "cleanup-one-by-one" => CLEANUP,
        "rollback-one-by-one" => ROLLBACK,
        "shared-after-commit" => "removals fail, then gc and undo",
        "gc-takes-unknown" => "damaged store, then gc",
        "ballast-kept" => "full disk",
        "forward-not-noted" | "outcome-guessed" => "steps that cannot be taken back",
        _ => "commit killed",
    }
}

/// A bug that was found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) bug: &'static str,
    pub(crate) way: Option<&'static str>,
    pub(crate) points: usize,
    pub(crate) what: String,
}

/// Two resources, so that one can be forgotten.
const SCENARIO: Scenario = Scenario::tiny(&[Copy, Overlay]);

fn kill(bug: &'static str, before: Before, verb: Verb) -> Point {
    Point {
        bug: Some(bug),
        door: Door::Command,
        undo: true,
        ..Point::kill(SCENARIO, before, verb, 1)
    }
}

fn commit(bug: &'static str) -> Point {
    kill(bug, Before::Nothing, Verb::Commit)
}

fn undo(bug: &'static str) -> Point {
    kill(bug, Before::Committed, Verb::Undo)
}

fn fails(plain: Point) -> Point {
    Point {
        fault: Fault::Once(EIO),
        ..plain
    }
}

fn syncs(bug: &'static str) -> Point {
    Point {
        only: Some(SYNCS),
        ..fails(commit(bug))
    }
}

fn every(plain: Point) -> impl Iterator<Item = Point> {
    let calls = plain.calls().len() as u64;
    (1..=calls).map(move |n| Point { n, ..plain })
}

/// Every few calls are enough to find out whether there is something, and then all of them.
fn at_every_call(plain: Point) -> Option<(String, usize)> {
    sweep::first_wrong(&spread(every(plain).collect()))
}

/// What the plain engine does shows where the commit that is recovered is killed.
fn recovers(bug: &'static str, fault: Fault) -> Option<(String, usize)> {
    let plain = Point::kill(SCENARIO, Before::Nothing, Verb::Commit, 1);
    let states = telling(&plain.calls()).into_iter();
    let points = states.flat_map(|n| {
        every(Point {
            fault,
            ..kill(bug, Before::CommitKilled(n), Verb::Recover)
        })
    });
    sweep::first_wrong(&spread(points.collect()))
}

/// Holds the strategies to their contract: the promise that is broken, and how many were asked for.
fn check(bug: &'static str) -> Option<(String, usize)> {
    let world = World::new();
    let cli = Cli::new(&world, &crate::binary()).env("ESCROW_SEEDED_BUG", bug);
    let mut asked = 0;
    for kind in SCENARIO.members {
        let outcome = cli.run(["--json", "strategy", "check", kind.strategy()]);
        let text = outcome.stdout_text();
        let report: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", outcome.stderr_text()));
        for promise in report["checks"].as_array().into_iter().flatten() {
            asked += 1;
            if promise["passed"] == false {
                return Some((format!("{}: {promise}", kind.short()), asked));
            }
        }
    }
    None
}

/// Looks for a bug in one way. A bug that lets even a plain run fail needs no fault.
fn look(find: Find, bug: &'static str) -> Option<(String, usize)> {
    catch_unwind(|| find(bug)).unwrap_or_else(|panic| Some((words(&*panic), 0)))
}

/// Looks for every bug.
pub(crate) fn all(_: Form) -> Vec<Found> {
    let mut found = Vec::new();
    // For the process that follows one of them.
    let only = std::env::var("ESCROW_TORTURE_BUG").ok();
    let wanted = |bug: &&&str| only.as_deref().is_none_or(|only| only == **bug);
    for bug in escrow::internals::seeded::ALL.iter().filter(wanted) {
        let (likely, others): (Vec<_>, Vec<_>) =
            WAYS.into_iter().partition(|way| way.0 == likely(bug));
        assert_eq!(likely.len(), 1, "{bug}");
        let mut answer = Found {
            bug,
            way: None,
            points: 0,
            what: String::new(),
        };
        for (way, find) in likely.into_iter().chain(others) {
            if let Some((what, points)) = look(find, bug) {
                answer.way = Some(way);
                answer.points += points;
                answer.what = what;
                break;
            }
        }
        let way = answer.way.unwrap_or("NOT FOUND");
        say(&format!(
            "torture: bug {bug}: {way}, {} points: {}",
            answer.points,
            answer.what.lines().next().unwrap_or_default()
        ));
        found.push(answer);
    }
    found
}

#[test]
fn every_seeded_bug_is_found() {
    if !cfg!(feature = "seeded-bugs") {
        skip("built without the feature seeded-bugs");
        return;
    }
    need!(require_stepper());
    let missed: Vec<&str> = all(Form::Bounded)
        .iter()
        .filter(|found| found.way.is_none())
        .map(|found| found.bug)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
