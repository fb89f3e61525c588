//! A home with many plans, many checkpoints and a long log answers as one with a single plan does.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use escrow::internals::fs::process::ProcessIdentity;
use escrow::internals::store::{Operation, OperationEnd, OperationOutcome, Store};
use escrow::model::{IdSource, OperationId, SystemIdSource};

use crate::bench::{Bench, Escrow, time};
use crate::measure::{Arm, Times, in_turns};
use crate::report::{Goal, Row, Section};
use crate::tree::{fill, git, thousands};

const PLANS: usize = 100;
const CHECKPOINTS: usize = 1000;
const ENTRIES: usize = 5000;

/// A command, and how much longer it may take than in the home with one plan: those that show all there is have to
/// write it all.
const COMMANDS: [(&[&str], Goal); 7] = [
    (&["status"], Some(2.0)),
    (&["plan", "list"], Some(2.0)),
    (&["checkpoint", "list", "p0"], Some(1.5)),
    (&["diff", "p0"], Some(1.5)),
    (&["log", "p0"], Some(1.5)),
    (&["log"], None),
    (&["log", "--verify"], None),
];

pub(crate) fn figures(bench: &Bench) -> Section {
    let (many, one) = (bench.escrow("many"), bench.escrow("one"));
    make(bench, &many, "many", PLANS, CHECKPOINTS);
    make(bench, &one, "one", 1, CHECKPOINTS / PLANS);
    lengthen(&many, ENTRIES);
    bench.settle();
    let home = format!(
        "{PLANS} plans, {} checkpoints, {} entries",
        thousands(CHECKPOINTS),
        thousands(ENTRIES)
    );
    let rounds = bench.rounds(false);
    let mut rows: Vec<Row> = COMMANDS
        .iter()
        .map(|(words, goal)| {
            let line = format!("`{}`", words.join(" "));
            let (all, single) = (format!("{line}, {home}"), format!("{line}, one plan"));
            let arms = vec![
                Arm::new(&all, |_| many.time(words)),
                Arm::new(&single, |_| one.time(words)),
            ];
            let times = in_turns(rounds, arms);
            Row::times(line.clone(), &times[0], &times[1], *goal)
        })
        .collect();
    rows.extend(beside_others(bench, &many, rounds));
    Section {
        title: "Many plans",
        note: format!(
            "A home with {home} in the log, beside one with a single plan and {} checkpoints. Sandboxes are overlays of \
             directories of their own. `log` and `log --verify` read all of the log; the others are to take no longer for \
             what they do not show. `git log` tells of a repository with as many commits as the log has entries.\n",
            CHECKPOINTS / PLANS
        ),
        rows,
    }
}

/// The same beside what people use, and beside a program that does nothing.
fn beside_others(bench: &Bench, many: &Escrow, rounds: usize) -> Vec<Row> {
    let repository = repository(bench, ENTRIES);
    let arms = vec![
        Arm::new("`log`", |_| many.time(&["log"])),
        Arm::new("`git log`", |_| time(&mut git(&repository, &["log"]), &[0])),
        Arm::new("`plan list`", |_| many.time(&["plan", "list"])),
        Arm::new("`status --disk`", |_| many.time(&["status", "--disk"])),
        Arm::new("`true`", |_| time(&mut Command::new("true"), &[0])),
    ];
    let times: Vec<Times> = in_turns(rounds, arms);
    let row = |ours: usize, other: usize| {
        Row::times(times[ours].name.clone(), &times[ours], &times[other], None)
    };
    vec![row(0, 1), row(2, 4), row(3, 4)]
}

/// Plans over small directories of their own, and checkpoints with a change before each, by several at a time.
fn make(bench: &Bench, escrow: &Escrow, name: &str, plans: usize, checkpoints: usize) {
    let originals: Vec<PathBuf> = (0..plans)
        .map(|plan| {
            let original = bench.fresh(&format!("{name}-{plan}"));
            fill(&original, 3, |_| 100);
            original
        })
        .collect();
    const HANDS: usize = 4;
    std::thread::scope(|scope| {
        for hand in 0..HANDS.min(plans) {
            let originals = &originals;
            scope.spawn(move || {
                for plan in (hand..plans).step_by(HANDS) {
                    work(escrow, plan, &originals[plan], checkpoints / plans);
                }
            });
        }
    });
}

fn work(escrow: &Escrow, plan: usize, original: &Path, checkpoints: usize) -> Duration {
    let name = format!("p{plan}");
    let mut took = escrow.create(&name, original, "overlay");
    let resource = original.file_name().unwrap_or_default().to_string_lossy();
    for checkpoint in 0..checkpoints {
        let path = format!("new-{checkpoint}");
        took += escrow.time(&["write", &name, &resource, &path]);
        took += escrow.time(&["checkpoint", "create", &name]);
    }
    took
}

/// Makes the log so long.
fn lengthen(escrow: &Escrow, entries: usize) {
    let store = Store::open(&escrow.state()).expect("the program made it");
    let there = store.check_log(None).expect("it can be read").entries as usize;
    let owner = ProcessIdentity::me().expect("this process runs");
    for entry in there..entries {
        let now = SystemIdSource.now();
        let operation = Operation {
            id: OperationId::new(&SystemIdSource),
            principal: "user:bench".to_owned(),
            action: "write".to_owned(),
            plan_id: None,
            target: format!("some/path-{entry}"),
            owner: owner.clone(),
            started_at: now,
            message: None,
            resources: vec!["app".to_owned()],
        };
        let ended = OperationEnd::plain(OperationOutcome::Done, now);
        store.note(&operation, &ended).expect("it can be written");
    }
}

/// A repository of so many commits.
fn repository(bench: &Bench, commits: usize) -> PathBuf {
    let at = bench.fresh("many-git");
    std::fs::create_dir(&at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    time(&mut git(&at, &["init", "-q", "-b", "main"]), &[0]);
    let one = |commit: usize| {
        let message = format!("commit {commit}");
        format!(
            "commit refs/heads/main\ncommitter b <b@localhost> {} +0000\ndata {}\n{message}\n",
            1_000_000_000 + commit,
            message.len()
        )
    };
    let script: String = (0..commits).map(one).collect();
    let mut import = git(&at, &["fast-import", "--quiet"]);
    let mut import = import
        .stdin(Stdio::piped())
        .spawn()
        .expect("git starts here");
    let mut stdin = import.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut stdin, script.as_bytes()).expect("git reads it");
    drop(stdin);
    let status = import.wait().expect("git ends");
    assert!(status.success(), "git fast-import: {status}");
    at
}
