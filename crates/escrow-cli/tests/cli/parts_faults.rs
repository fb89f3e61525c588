//! A part is released, or taken back, and the process is killed: it is released in all originals or in none, the
//! sandboxes count it accordingly, and the next command goes on.

use crate::faults::sweep;
use crate::*;

/// Two resources, one in layers and one copied, with a part to be released and a rest.
fn scene() -> (World, Cli) {
    let (world, cli) = world();
    let data = world.dir("data");
    for dir in [world.path().join("app"), data] {
        std::fs::write(dir.join("gone"), "gone\n").expect("there is room");
        std::fs::write(dir.join("f"), "old\n").expect("there is room");
    }
    cli.ok("resource add one --type fs-directory --at ./app --strategy overlay");
    cli.ok("resource add two --type fs-directory --at ./data --strategy filesystem_copy");
    cli.ok("plan create try --resource one --resource two");
    let edits = "rm gone; echo new > f; mkdir -p d/e; echo x > d/e/x; echo r > d/rest; echo g > g";
    let script = format!("cd ../app; {edits}; cd ../data; {edits}");
    let line = inside("-q run --plan try", &script);
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
        (seen.join(" "), cli.ok(&line))
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
    // The first command that changes something finishes it or rolls it back.
    cli.run("recover");
    let sides = found(world, cli);
    assert!(is(&sides, OLD) || is(&sides, NEW), "{how}: {sides:#?}");
    assert_eq!(
        json(cli, "status")["unfinished"],
        serde_json::json!([]),
        "{how}"
    );
    if is(&sides, OLD) {
        cli.ok(PART);
        assert!(
            is(&found(world, cli), NEW),
            "{how}: {:#?}",
            found(world, cli)
        );
    }
    cli.ok("undo try");
    assert!(
        is(&found(world, cli), OLD),
        "{how}: {:#?}",
        found(world, cli)
    );
    cli.ok(PART);
    cli.ok("commit try");
    for dir in ["app", "data"] {
        let dir = world.path().join(dir);
        let names = ["d/e/x", "d/rest", "g", "f"];
        assert!(names.iter().all(|name| dir.join(name).exists()), "{how}");
        assert!(!dir.join("gone").exists(), "{how}");
    }
    cli.ok("cleanup try");
    let left = std::fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    assert_eq!(left.count(), 0, "{how}");
}

// rule C1, C3
#[test]
fn a_part_is_killed() {
    if as_ordinary_user() {
        sweep(scene, PART, &[Fault::Kill, Fault::Tear], goes_on);
    }
}

// rule C3
#[test]
fn the_undo_of_a_part_is_killed() {
    if as_ordinary_user() {
        let scene = || {
            let (world, cli) = scene();
            cli.ok(PART);
            (world, cli)
        };
        sweep(scene, "undo try", &[Fault::Kill], goes_on);
    }
}
