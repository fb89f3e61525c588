//! Directories that their own user may not list or enter: kept, restored, compared, forked and released like others, as an
//! ordinary user too, and never left open.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::states::same;
use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::{Cli, World};

use crate::checkpoints::{STRATEGIES, create, run};
use crate::{as_ordinary_user, as_user_too, has, json, words, world};

const RENAMES: &[&str] = &["rename", "renameat", "renameat2"];

/// A file; a directory with a change in it, with nothing, new within a new one, to listing only, and to entering only.
const CLOSE: &str =
    "chmod 0 a.txt; echo changed > closed/c; echo new > closed/new; chmod 0 closed; chmod 0200 src
    mkdir -p new/er/est; echo deep > new/er/est/file; chmod 0 new/er/est; chmod 0100 new/er
    mkdir listed; echo in > listed/in; chmod 0400 listed";

const CHANGES: &str = "P\ta.txt\nP\tclosed\nM\tclosed/c\nA\tclosed/new\nA\tlisted\nA\tlisted/in\nA\tnew\nA\tnew/er\nA\tnew/er/est\n\
    A\tnew/er/est/file\nP\tsrc\n";

/// Other changes in the same places, closed again.
const AFTER: &str = "chmod 0700 closed new/er new/er/est src listed; rm -r closed; mkdir closed; chmod 0 closed
    echo other > new/er/est/file; rm listed/in; mkdir listed/in; chmod 0 listed/in; chmod 0 new/er/est new/er
    echo more >> src/main.rs; chmod 0700 src; rm -r a.txt; echo z > z";

/// The modes of all of them, and what is in them, which they are opened for and closed again.
const STATE: &str = r#"
    look() { for one in "$1"/*; do [ -e "$one" ] || continue; stat -c '%n %a %F' "$one"
        if [ -d "$one" ]; then mode=$(stat -c %a "$one"); chmod 0700 "$one"; (look "$one"); chmod "$mode" "$one"
        else cat "$one"; fi; done; }
    look ."#;

fn planned(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let app = world.path().join("app");
    fs::create_dir(app.join("closed")).expect("it is new");
    fs::write(app.join("closed/c"), "first\n").expect("there is room");
    let cli = cli.cwd(&app);
    let line = format!("plan create try --resource . --strategy {strategy}");
    cli.ok(words(&line));
    (world, cli)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

// rule R1, R3, F1, F8, C1
#[test]
fn closed_directories_are_no_obstacle() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let app = world.path().join("app");
        let original = signature(&app);
        let listed = |line: &str| cli.ok(format!("diff {line} --name-status"));
        create(&cli, "nothing");
        let fresh = run(&cli, "try", STATE);
        run(&cli, "try", CLOSE);
        assert_eq!(listed("try"), CHANGES, "{strategy}");
        let patch = cli.ok("diff try --patch");
        has(&patch, ["+changed", "+deep"]);
        let planned = json(&cli, "commit try --dry-run");
        assert_eq!(planned["conflicts"], serde_json::json!([]), "{strategy}");
        create(&cli, "here");
        let here = run(&cli, "try", STATE);
        has(&here, ["./closed 0 ", "./new/er 100 "]);
        run(&cli, "try", AFTER);
        let after = run(&cli, "try", STATE);
        create(&cli, "after");
        let since = listed("try --since here");
        assert!(
            since.contains("M\tnew/er/est/file\n"),
            "{strategy}: {since}"
        );
        for (to, state) in [
            ("here", &here),
            ("after", &after),
            ("nothing", &fresh),
            ("after", &after),
            ("here", &here),
        ] {
            cli.ok(format!("restore try {to}"));
            same(
                state,
                &run(&cli, "try", STATE),
                &format!("{strategy}: {to}"),
            );
        }
        assert_eq!(listed("try"), CHANGES, "{strategy}");
        assert_same(&original, &signature(&app), &Ignore::default());
        cli.ok("restore try after");
        cli.ok("plan fork try then --at here");
        assert_eq!(listed("then"), CHANGES, "{strategy}: the fork");
        same(
            &here,
            &run(&cli, "then", STATE),
            &format!("{strategy}: the fork"),
        );
        cli.ok("commit then");
        for (name, expected) in [
            ("a.txt", 0),
            ("closed", 0),
            ("src", 0o200),
            ("new/er", 0o100),
            ("listed", 0o400),
        ] {
            assert_eq!(mode(&app.join(name)), expected, "{strategy}: {name}");
        }
        cli.ok("undo then");
        assert_same(&original, &signature(&app), &Ignore::default());
        for plan in ["try", "then"] {
            cli.ok(format!("cleanup {plan}"));
        }
    }
}

/// A change in one that is closed, and one in another.
const SMALL: &str = "echo changed > closed/c; mkdir closed/in; echo in > closed/in/in; chmod 0 closed/in; chmod 0100 closed";

/// Other changes there.
const OTHER: &str = "chmod 0700 closed; chmod 0700 closed/in; echo more > closed/in/in; rm closed/c; chmod 0 closed/in closed";

/// Nothing is opened for it: wherever a command is killed, every mode is what it was, before any process looks. To root
/// nothing is closed.
// rule R1, R3, F1
#[test]
fn closed_entries_never_stay_open() {
    if !as_ordinary_user() || !require_stepper() {
        return;
    }
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = planned(strategy);
        run(
            &cli,
            "try",
            &format!("{SMALL}; echo dark > dark; chmod 0200 dark"),
        );
        create(&cli, "here");
        let state = run(&cli, "try", STATE);
        let modes = || {
            let mut find = Command::new("find");
            find.arg(world.home()).args(["-printf", "%p %m\n"]);
            let found = find.output().expect("find is there").stdout;
            String::from_utf8(found).expect("names are plain")
        };
        for line in [
            "diff try",
            "checkpoint create try",
            "plan fork try --at here",
        ] {
            let calls = cli.stepper(words(line)).run().calls;
            for n in (1..=calls).step_by((calls as usize / 9).max(1)) {
                let before = modes();
                let killed = cli.stepper(words(line)).fault(n, Fault::Kill);
                let Some(hit) = killed.hit else { break };
                let (how, now) = (format!("{strategy}: {line}: killed at {n}, {hit}"), modes());
                let other = before.lines().find(|line| {
                    let (path, _) = line.rsplit_once(' ').expect("a path and a mode");
                    Path::new(path).symlink_metadata().is_ok() && !now.contains(line)
                });
                assert_eq!(other, None, "{how}: {now}");
                same(&state, &run(&cli, "try", STATE), &how);
            }
        }
        let listed = cli.ok("diff try --name-status");
        assert!(
            listed.contains("A\tclosed/in/in\nA\tdark\n"),
            "{strategy}: {listed}"
        );
    }
}

/// And what was under way is on one side.
// rule R3, C3, F1
#[test]
fn returns_and_commits_of_closed_directories_end_on_one_side() {
    if !as_ordinary_user() || !require_stepper() {
        return;
    }
    for (strategy, line) in [
        ("filesystem_copy", "restore try here"),
        ("filesystem_copy", "commit try"),
        ("overlay", "commit try"),
    ] {
        for n in 1.. {
            let (world, cli) = planned(strategy);
            let closed = world.path().join("app/closed");
            run(&cli, "try", SMALL);
            create(&cli, "here");
            let here = run(&cli, "try", STATE);
            run(&cli, "try", OTHER);
            let after = run(&cli, "try", STATE);
            let stepper = cli.stepper(words(line)).only(RENAMES);
            let killed = stepper.fault(n, Fault::Kill);
            let Some(hit) = killed.hit else { break };
            let how = format!("{strategy}: {line}: killed at {n}, {hit}");
            cli.ok("recover");
            if json(&cli, "plan show try")["state"] == "committed" {
                assert_eq!(mode(&closed), 0, "{how}");
                cli.ok("undo try");
                assert_eq!(mode(&closed), 0o755, "{how}");
                let text = fs::read_to_string(closed.join("c")).expect("it is back");
                assert_eq!(text, "first\n", "{how}");
                continue;
            }
            let now = run(&cli, "try", STATE);
            if line == "commit try" || now != here {
                same(&after, &now, &how);
            }
        }
    }
}
