//! Files that their own user may not read, or not write: kept, restored, forked and released like others, as an ordinary
//! user too, and never left open.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use escrow_testkit::skip::is_root;
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::checkpoints::{STRATEGIES, run};
use crate::{binary, json, words, world};

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
    let ways: [(&str, &str, &[&str]); 7] = [
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
        ("forked", "", &["plan fork try other", "commit try"]),
        ("fork", "", &["plan fork try other", "commit other"]),
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
                    let left = cli.ok("diff try --name-status");
                    assert_eq!(left, "A\tlate\nA\tnone\nM\tro\n", "{strategy}");
                }
            }
            match way {
                "undone" => assert!(!world.path().join("app/dark").exists(), "{strategy}"),
                _ => assert_released(&world, &format!("{strategy}: {way}")),
            }
        }
    }
}

/// Where no user namespace can be made, what is closed is named and refused, with the reason, and nothing is left out.
// rule F1
#[test]
fn what_is_closed_is_refused_where_namespaces_are_forbidden() {
    let test = "closed::what_is_closed_is_refused_where_namespaces_are_forbidden";
    rerun_test_as_user_with(test, &[&binary()]);
    if is_root() {
        return;
    }
    let (world, cli) = world();
    let app = world.path().join("app");
    set_mode(&app.join("a.txt"), 0);
    let line = "plan create try --resource app --strategy filesystem_copy";
    let inner = cli.command(words(line));
    let mut outer = Command::new("unshare");
    outer.args(["--user", "--map-current-user", "--keep-caps", "sh", "-c"]);
    outer.arg(
        "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --ambient-caps -all \"$@\"",
    );
    outer
        .arg("sh")
        .arg(inner.get_program())
        .args(inner.get_args());
    let envs = inner
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    outer.envs(envs).current_dir(world.path());
    let refused = outer.output().expect("unshare is there");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    for part in ["a.txt", "user namespace", "chmod u+rwx"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(json(&cli, "plan list")["plans"], serde_json::json!([]));
    cli.ok(words(line));
    assert_eq!(
        fs::metadata(app.join("a.txt")).expect("there").mode() & 0o777,
        0
    );
}
