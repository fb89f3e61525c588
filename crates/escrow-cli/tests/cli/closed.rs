//! Files that their own user may not read, or not write: kept, restored, forked and released like others, as an ordinary
//! user too, and never left open.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::checkpoints::{STRATEGIES, run};
use crate::{binary, words, world};

const CHMODS: &[&str] = &["chmod", "fchmod", "fchmodat", "fchmodat2"];

/// Closed to reading, to writing, and to both; and one of the original that got a line.
const WORK: &str = "echo dark > dark; chmod 0200 dark; echo none > none; chmod 0 none
    echo new > late; chmod 0444 late; chmod u+w ro; echo more >> ro; chmod u-w ro";

fn planned(strategy: &str, rules: &str) -> (World, Cli) {
    let (world, cli) = world();
    let app = world.path().join("app");
    fs::write(app.join("ro"), "first\n").expect("there is room");
    set_mode(&app.join("ro"), 0o444);
    fs::write(world.path().join("escrow.yaml"), rules).expect("there is room");
    let cli = cli.cwd(&app);
    let line = format!("plan create try --resource . --strategy {strategy}");
    cli.ok(words(&line));
    (world, cli)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

/// Contents and modes are as they were made, and no mark of a layer is on anything.
#[track_caller]
fn assert_released(world: &World, how: &str) {
    let app = world.path().join("app");
    for (name, mode, text) in [
        ("dark", 0o200, "dark\n"),
        ("none", 0, "none\n"),
        ("late", 0o444, "new\n"),
        ("ro", 0o444, "first\nmore\n"),
    ] {
        let path = app.join(name);
        let meta = fs::metadata(&path).unwrap_or_else(|error| panic!("{how}: {name}: {error}"));
        assert_eq!(meta.mode() & 0o7777, mode, "{how}: {name}");
        set_mode(&path, 0o600);
        let found = fs::read_to_string(&path).expect("it is open now");
        assert_eq!(found, text, "{how}: {name}");
    }
    let mut marks = Command::new("getfattr");
    marks.args(["-R", "-h", "-d", "-m", "overlay|escrow", "."]);
    let marks = marks.current_dir(&app).output().expect("getfattr is there");
    let marks = String::from_utf8_lossy(&marks.stdout).into_owned();
    assert!(
        !marks.contains("overlay") && !marks.contains("escrow"),
        "{how}: {marks}"
    );
}

// rule C1, C13, F1
#[test]
fn closed_files_are_released_in_every_way() {
    let test = "closed::closed_files_are_released_in_every_way";
    rerun_test_as_user_with(test, &[&binary()]);
    let manual = "sandbox: { cleanup: manual }\n";
    let ways: [(&str, &str, &[&str]); 6] = [
        ("whole", "", &["commit try"]),
        (
            "parts",
            "",
            &[
                "commit try --only dark",
                "commit try --only ro --only none",
                "commit try",
            ],
        ),
        ("manual", manual, &["commit try"]),
        ("fork", "", &["plan fork try other", "commit try"]),
        (
            "of a checkpoint",
            "",
            &[
                "checkpoint create try -m here",
                "rollback try",
                "restore try here",
                "commit try",
            ],
        ),
        (
            "undone",
            "",
            &["commit try", "undo try", "plan create again --resource ."],
        ),
    ];
    for strategy in STRATEGIES {
        for (way, rules, lines) in ways {
            let (world, cli) = planned(strategy, rules);
            run(&cli, "try", WORK);
            for line in lines {
                cli.ok(words(line));
                if *line == "commit try --only dark" {
                    let left = cli.ok(words("diff try --name-status"));
                    assert_eq!(left, "A\tlate\nA\tnone\nM\tro\n", "{strategy}");
                }
            }
            match way {
                "undone" => assert!(!world.path().join("app/dark").exists(), "{strategy}"),
                _ => assert_released(&world, &format!("{strategy}: {way}")),
            }
        }
    }
    // A copy that is forked has all of it.
    for strategy in ["filesystem_copy", "copy_on_write"] {
        let (world, cli) = planned(strategy, "");
        run(&cli, "try", WORK);
        cli.ok(words("plan fork try other"));
        cli.ok(words("commit other"));
        assert_released(&world, &format!("{strategy}: the fork"));
    }
}

/// Killed at any snapshot, what was open temporarily is closed again before any process looks.
// rule R1, R3, F1
#[test]
fn what_was_open_for_a_moment_never_stays_so() {
    let test = "closed::what_was_open_for_a_moment_never_stays_so";
    rerun_test_as_user_with(test, &[&binary()]);
    if !require_stepper() {
        return;
    }
    for strategy in ["overlay", "filesystem_copy"] {
        for line in [
            "checkpoint create try",
            "commit try --only dark",
            "plan fork try other",
        ] {
            for n in 1.. {
                let (_world, cli) = planned(strategy, "");
                run(&cli, "try", WORK);
                let stepper = cli.stepper(words(line)).only(CHMODS);
                let killed = stepper.fault(n, Fault::Kill);
                let Some(hit) = killed.hit else { break };
                let how = format!("{strategy}: {line}: killed at {n}, {hit}");
                cli.ok(words("checkpoint create try"));
                let modes = run(&cli, "try", "stat -c %a dark none late ro");
                assert_eq!(modes, "200\n0\n444\n444\n", "{how}");
            }
        }
    }
}
