//! The control: bugs that are put in on purpose, each of which the sweeps must find.
//!
//! Each bug is looked for by the sweep that should find it, then by the others. Only the command is used here, since
//! only it has the bug.

use std::panic::catch_unwind;

use crate::door::Door;
use crate::life::PlanVerb;
use crate::moments::Act;
use crate::sweep::{say, spread};
use crate::*;
use crate::{damage, forward, full, moments, next, parts, power, sweep, unlinks};

const EIO: i32 = 5;

/// A way to look for a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    KillCommit,
    KillUndo,
    KillRecover,
    FailCommit,
    FailRecover,
    FailSync,
    CutPower,
    KillRestore,
    KillFork,
    KillGc,
    CutCheckpoint,
    KillPart,
    Check,
    CreateThenCommit,
    CleanupThenCommit,
    RollbackThenCommit,
    FailRemoval,
    LoseRecords,
    FillDisk,
    Forward,
}

impl Way {
    pub(crate) const ALL: [Self; 20] = [
        Self::KillCommit,
        Self::FailCommit,
        Self::KillUndo,
        Self::FailSync,
        Self::KillRecover,
        Self::FailRecover,
        Self::CutPower,
        Self::KillRestore,
        Self::KillFork,
        Self::KillGc,
        Self::CutCheckpoint,
        Self::KillPart,
        Self::Check,
        Self::CreateThenCommit,
        Self::CleanupThenCommit,
        Self::RollbackThenCommit,
        Self::FailRemoval,
        Self::LoseRecords,
        Self::FillDisk,
        Self::Forward,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KillCommit => "commit killed",
            Self::KillUndo => "undo killed",
            Self::KillRecover => "recover killed",
            Self::FailCommit => "commit meets errors",
            Self::FailRecover => "recover meets errors",
            Self::FailSync => "syncs fail",
            Self::CutPower => "power cut",
            Self::KillRestore => "restore killed",
            Self::KillFork => "fork killed",
            Self::KillGc => "gc killed",
            Self::CutCheckpoint => "power cut in a checkpoint",
            Self::KillPart => "part killed, or its undo",
            Self::Check => "strategy check",
            Self::CreateThenCommit => "plan create interrupted, then commit",
            Self::CleanupThenCommit => "cleanup interrupted, then commit",
            Self::RollbackThenCommit => "rollback interrupted, then commit",
            Self::FailRemoval => "removals fail, then gc and undo",
            Self::LoseRecords => "damaged store, then gc",
            Self::FillDisk => "full disk",
            Self::Forward => "steps that cannot be taken back",
        }
    }

    /// Where each bug should show.
    fn for_bug(bug: &str) -> Self {
        match bug {
            "no-stage-sync" | "no-directory-sync" => Self::CutPower,
            "no-undo-on-failure"
            | "stage-removed-early"
            | "sandbox-removed-early"
            | "rename-error-dropped" => Self::FailCommit,
            "undo-forgets-directories" | "undo-not-recorded" => Self::KillUndo,
            "sync-twice" => Self::FailSync,
            "restore-undecided" => Self::KillRestore,
            "fork-one-by-one" => Self::KillFork,
            "gc-takes-what-is-lent" => Self::KillGc,
            "checkpoint-not-synced" => Self::CutCheckpoint,
            "part-recorded-late" | "part-returned-late" => Self::KillPart,
            "part-forgets-a-path" => Self::Check,
            "create-one-by-one" => Self::CreateThenCommit,
            "cleanup-one-by-one" => Self::CleanupThenCommit,
            "rollback-one-by-one" => Self::RollbackThenCommit,
            "shared-after-commit" => Self::FailRemoval,
            "gc-takes-unknown" => Self::LoseRecords,
            "ballast-kept" => Self::FillDisk,
            "forward-not-noted" | "outcome-guessed" => Self::Forward,
            _ => Self::KillCommit,
        }
    }
}

/// A bug that was found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) bug: &'static str,
    pub(crate) way: Option<Way>,
    pub(crate) points: usize,
    pub(crate) what: String,
}

/// Two resources, so that one can be forgotten.
const SCENARIO: Scenario = Scenario::tiny(&[Copy, Overlay]);

fn points(way: Way, bug: &'static str) -> Vec<Point> {
    let kill = |before, verb, n| Point {
        bug: Some(bug),
        door: Door::Command,
        undo: true,
        ..Point::kill(SCENARIO, before, verb, n)
    };
    let every = |plain: Point| {
        let calls = plain.calls().len() as u64;
        (1..=calls).map(move |n| Point { n, ..plain })
    };
    let fails = |plain: Point| Point {
        fault: Fault::Once(EIO),
        ..plain
    };
    // What the plain engine does shows where to kill.
    let states = || -> Vec<u64> {
        let plain = Point::kill(SCENARIO, Before::Nothing, Verb::Commit, 1);
        telling(&plain.calls())
    };
    let mut points = Vec::new();
    match way {
        Way::KillCommit => points.extend(every(kill(Before::Nothing, Verb::Commit, 1))),
        Way::KillUndo => points.extend(every(kill(Before::Committed, Verb::Undo, 1))),
        Way::KillRecover | Way::FailRecover => {
            for n in states() {
                let plain = kill(Before::CommitKilled(n), Verb::Recover, 1);
                let plain = match way {
                    Way::KillRecover => plain,
                    _ => fails(plain),
                };
                points.extend(every(plain));
            }
        }
        Way::FailCommit => points.extend(every(fails(kill(Before::Nothing, Verb::Commit, 1)))),
        Way::FailSync => {
            let plain = fails(kill(Before::Nothing, Verb::Commit, 1));
            points.extend(every(Point {
                only: Some(SYNCS),
                ..plain
            }));
        }
        Way::CutPower
        | Way::KillRestore
        | Way::KillFork
        | Way::KillGc
        | Way::CutCheckpoint
        | Way::KillPart
        | Way::Check
        | Way::CreateThenCommit
        | Way::CleanupThenCommit
        | Way::RollbackThenCommit
        | Way::FailRemoval
        | Way::LoseRecords
        | Way::FillDisk
        | Way::Forward => {}
    }
    // Every few calls are enough to find out whether there is something, and then all of them.
    spread(points)
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

/// Looks for a bug in one way.
fn look(way: Way, bug: &'static str) -> Option<(String, usize)> {
    // A bug that lets even a plain run fail needs no fault.
    let found = catch_unwind(|| match way {
        Way::CutPower => power::finds(bug),
        Way::KillRestore => moments::finds(Act::Restore, bug),
        Way::KillFork => moments::finds(Act::Fork, bug),
        Way::KillGc => moments::finds(Act::Gc, bug),
        Way::CutCheckpoint => moments::finds_dark(Act::Checkpoint, bug),
        Way::KillPart => parts::finds(bug),
        Way::Check => check(bug),
        Way::CreateThenCommit => next::finds(PlanVerb::Create, bug),
        Way::CleanupThenCommit => next::finds(PlanVerb::Cleanup, bug),
        Way::RollbackThenCommit => next::finds(PlanVerb::Rollback, bug),
        Way::FailRemoval => unlinks::finds(bug),
        Way::LoseRecords => damage::finds(bug),
        Way::FillDisk => full::finds(bug),
        Way::Forward => forward::finds(bug),
        _ => sweep::first_wrong(&points(way, bug)),
    });
    found.unwrap_or_else(|panic| Some((words(&*panic), 0)))
}

/// Looks for every bug.
pub(crate) fn all(_: Form) -> Vec<Found> {
    let mut found = Vec::new();
    // For the process that follows one of them.
    let only = std::env::var("ESCROW_TORTURE_BUG").ok();
    let wanted = |bug: &&&str| only.as_deref().is_none_or(|only| only == **bug);
    for bug in escrow::internals::seeded::ALL.iter().filter(wanted) {
        let likely = Way::for_bug(bug);
        let others = Way::ALL.into_iter().filter(|way| *way != likely);
        let mut answer = Found {
            bug,
            way: None,
            points: 0,
            what: String::new(),
        };
        for way in std::iter::once(likely).chain(others) {
            if let Some((what, points)) = look(way, bug) {
                answer.way = Some(way);
                answer.points += points;
                answer.what = what;
                break;
            }
        }
        let way = answer.way.map_or("NOT FOUND", Way::name);
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
    if !require_stepper() {
        return;
    }
    let missed: Vec<&str> = all(Form::Bounded)
        .iter()
        .filter(|found| found.way.is_none())
        .map(|found| found.bug)
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
