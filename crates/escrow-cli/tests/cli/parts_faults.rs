//! A part is released, or taken back, killed and failing at every call that changes something: it is released in all
//! originals or in none, the sandboxes count it accordingly, and whoever comes next goes on.

use escrow_testkit::skip::is_root;
use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::{binary, json, words, world};

/// Two resources, one in layers and one copied, with a part to be released and a rest.
fn scene() -> (World, Cli) {
    let (world, cli) = world();
    let data = world.dir("data");
    for dir in [world.path().join("app"), data] {
        std::fs::write(dir.join("gone"), "gone\n").expect("there is room");
        std::fs::write(dir.join("f"), "old\n").expect("there is room");
    }
    cli.ok(words(
        "resource add one --type fs-directory --at ./app --strategy overlay",
    ));
    cli.ok(words(
        "resource add two --type fs-directory --at ./data --strategy filesystem_copy",
    ));
    cli.ok(words("plan create try --resource one --resource two"));
    let edits = "rm gone; echo new > f; mkdir -p d/e; echo x > d/e/x; echo r > d/rest; echo g > g";
    let script = format!("cd ../app; {edits}; cd ../data; {edits}");
    let mut line = words("-q run --plan try -- sh -c");
    line.push(script.into());
    cli.clone().cwd(world.path().join("app")).ok(line);
    (world, cli)
}

const PART: &str = "commit try --only f --only gone --only d/e";

/// What is in the originals and what the plan still changes.
const OLD: (&str, &str) = (
    "old gone",
    "A\td\nA\td/e\nA\td/e/x\nA\td/rest\nM\tf\nA\tg\nD\tgone\n",
);
const NEW: (&str, &str) = ("new d d/e d/e/x", "A\td/rest\nA\tg\n");

fn found(world: &World, cli: &Cli) -> Vec<(String, String)> {
    let one = |(dir, resource): (&str, &str)| {
        let dir = world.path().join(dir);
        let content = std::fs::read_to_string(dir.join("f")).unwrap_or_default();
        let names = ["gone", "d", "d/e", "d/e/x", "d/rest", "g"];
        let there = names.into_iter().filter(|name| dir.join(name).exists());
        let mut seen = vec![content.trim().to_owned()];
        seen.extend(there.map(str::to_owned));
        let line = format!("diff try --resource {resource} --name-status");
        (seen.join(" "), cli.ok(words(&line)))
    };
    [("app", "one"), ("data", "two")]
        .into_iter()
        .map(one)
        .collect()
}

fn is(found: &[(String, String)], side: (&str, &str)) -> bool {
    let same = |(seen, diff): &(String, String)| (seen.as_str(), diff.as_str()) == side;
    found.iter().all(same)
}

/// One side for both, and everything can go on.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    // The first command that changes something brings it to one side.
    cli.run(words("recover"));
    let sides = found(world, cli);
    assert!(is(&sides, OLD) || is(&sides, NEW), "{how}: {sides:#?}");
    assert_eq!(
        json(cli, "status")["unfinished"],
        serde_json::json!([]),
        "{how}"
    );
    if is(&sides, OLD) {
        cli.ok(words(PART));
        assert!(
            is(&found(world, cli), NEW),
            "{how}: {:#?}",
            found(world, cli)
        );
    }
    cli.ok(words("undo try"));
    assert!(
        is(&found(world, cli), OLD),
        "{how}: {:#?}",
        found(world, cli)
    );
    cli.ok(words(PART));
    cli.ok(words("commit try"));
    for dir in ["app", "data"] {
        let dir = world.path().join(dir);
        let names = ["d/e/x", "d/rest", "g", "f"];
        assert!(names.iter().all(|name| dir.join(name).exists()), "{how}");
        assert!(!dir.join("gone").exists(), "{how}");
    }
    cli.ok(words("cleanup try"));
    let left = std::fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    assert_eq!(left.count(), 0, "{how}");
}

/// Not every one of the many calls in the short form; another part of them each time a line is changed.
fn stride(calls: u64) -> usize {
    let long = std::env::var_os("ESCROW_TORTURE").is_some_and(|form| form == "long");
    match long {
        true if is_root() => 1,
        true => (calls / 30).max(1) as usize,
        false if is_root() => (calls / 14).max(1) as usize,
        false => (calls / 5).max(1) as usize,
    }
}

fn sweep(before: &[&str], line: &str, faults: &[Fault]) {
    if !require_stepper() {
        return;
    }
    let scene = || {
        let (world, cli) = scene();
        before.iter().for_each(|line| drop(cli.ok(words(line))));
        (world, cli)
    };
    let (_template, cli) = scene();
    let counted = cli.stepper(words(line)).run();
    let said = counted.outcome.stderr_text();
    assert_eq!(counted.outcome.status, 0, "{said}");
    for fault in faults {
        for n in (1..=counted.calls).step_by(stride(counted.calls)) {
            let (world, cli) = scene();
            let run = cli.stepper(words(line)).fault(n, *fault);
            let Some(hit) = run.hit else { break };
            let how = format!("{line}: {fault:?} at call {n}, {hit}");
            goes_on(&world, &cli, &how);
        }
    }
}

const NOSPC: i32 = 28;
const EIO: i32 = 5;

// rule C1, C3
#[test]
fn a_part_is_killed() {
    rerun_test_as_user_with("parts_faults::a_part_is_killed", &[&binary()]);
    sweep(&[], PART, &[Fault::Kill, Fault::Tear]);
}

// rule C4, C6
#[test]
fn a_part_fails() {
    sweep(&[], PART, &[Fault::Once(EIO), Fault::Forever(NOSPC)]);
}

// rule C3
#[test]
fn the_undo_of_a_part_is_killed_or_fails() {
    sweep(&[PART], "undo try", &[Fault::Kill, Fault::Once(EIO)]);
}
