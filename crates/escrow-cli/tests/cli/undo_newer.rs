//! Going back where somebody went on: what was written since a commit is chosen about, set aside and named, or in the plan, and
//! never gone.

use crate::sqlite::{inner, planned, sql};
use crate::support::*;
use crate::*;

/// A directory `app` with a plan `p` of it.
fn begun(strategy: &str) -> (World, Cli) {
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let app = world.dir("app");
    for (name, text) in [("f1", "o1\n"), ("f2", "o2\n")] {
        write(app.join(name), text);
    }
    cli.ok(format!(
        "plan create p --resource ./app --strategy {strategy}"
    ));
    (world, cli)
}

/// Runs a script in the sandbox.
fn work(world: &World, cli: &Cli, script: &str) {
    cli.clone()
        .cwd(world.at("app"))
        .ok(inside("-q run --plan p", script));
}

fn names_of(cli: &Cli, plan: &str) -> String {
    cli.ok(format!("diff {plan} --name-status"))
}

/// The text is in a file that was set aside and is named.
#[track_caller]
fn set_aside(undone: &Value, text: &str) {
    let kept = column(&undone["kept"], "kept");
    let found = kept
        .iter()
        .any(|at| fs::read_to_string(at).is_ok_and(|now| now == text));
    assert!(found, "{undone}");
}

const STRATEGIES: [&str; 2] = ["overlay", "filesystem_copy"];

// rule C20
#[test]
fn what_replaced_a_part_that_is_undone_is_set_aside() {
    for strategy in STRATEGIES {
        let (world, cli) = begun(strategy);
        work(&world, &cli, "echo v1 > f1; echo v2 > f2; echo n > n");
        cli.ok("commit p --only f1 --only n");
        write(world.at("app/f1"), "mine\n");
        cli.fails("undo p", 4);
        let undone = json(&cli, "undo p --on-conflict sandbox");
        set_aside(&undone, "mine\n");
        assert_eq!(read(world.at("app/f1")), "o1\n");
        assert_eq!(names_of(&cli, "p"), "M\tf1\nM\tf2\nA\tn\n", "{strategy}");
    }
}

// rule C20
#[test]
fn what_was_put_where_a_commit_had_deleted_goes_into_the_plan() {
    for strategy in STRATEGIES {
        let (world, cli) = begun(strategy);
        work(
            &world,
            &cli,
            "rm f1; echo n > n; mkdir d; echo 1 > d/1; echo 2 > d/2",
        );
        cli.ok("commit p");
        write(world.at("app/f1"), "mine\n");
        fs::remove_file(world.at("app/n")).expect("it is there");
        write(world.at("app/n"), "other\n");
        cli.ok("undo p --on-conflict sandbox");
        assert_eq!(read(world.at("app/f1")), "o1\n");
        assert!(!world.at("app/n").exists() && !world.at("app/d").exists());
        assert_eq!(cli.ok("read p app f1"), "mine\n", "{strategy}");
        assert_eq!(cli.ok("read p app n"), "other\n", "{strategy}");
        assert_eq!(cli.ok("read p app d/1"), "1\n", "{strategy}");
    }
}

// rule C20
#[test]
fn a_file_in_a_directory_that_replaced_another_thing_does_not_stay_in_words_only() {
    for strategy in STRATEGIES {
        let (world, cli) = begun(strategy);
        work(&world, &cli, "rm f1; mkdir f1; echo q > f1/q");
        cli.ok("commit p");
        write(world.at("app/f1/mine"), "mine\n");
        for choice in ["original", "sandbox", "merge"] {
            cli.fails(format!("undo p --on-conflict {choice}"), 4);
        }
        assert_eq!(read(world.at("app/f1/mine")), "mine\n", "{strategy}");
        fs::remove_file(world.at("app/f1/mine")).expect("it is there");
        cli.ok("undo p");
        assert_eq!(read(world.at("app/f1")), "o1\n");
        assert_eq!(cli.ok("read p app f1/q"), "q\n", "{strategy}");
    }
}

// rule C20
#[test]
fn a_part_of_a_new_directory_is_undone() {
    for strategy in STRATEGIES {
        let (world, cli) = begun(strategy);
        work(
            &world,
            &cli,
            "mkdir d; echo 1 > d/1; echo 2 > d/2; echo v > f1",
        );
        cli.ok("commit p");
        cli.ok("undo p --only d/1");
        assert!(!world.at("app/d/1").exists() && world.at("app/d/2").exists());
        assert_eq!(cli.ok("read p app d/1"), "1\n", "{strategy}");
        cli.ok("undo p");
        assert!(!world.at("app/d").exists());
        assert_eq!(read(world.at("app/f1")), "o1\n");
        // Whatever plan it is in, all of it can be released again.
        let plans = json(&cli, "status")["plans"].clone();
        for plan in column(&plans, "name") {
            cli.ok(format!("commit {plan}"));
        }
        for (name, text) in [("d/1", "1\n"), ("d/2", "2\n"), ("f1", "v\n")] {
            assert_eq!(read(world.at("app").join(name)), text, "{strategy}");
        }
    }
}

// rule C20
#[test]
fn parts_are_undone_one_after_the_other_and_nothing_is_missing() {
    for strategy in STRATEGIES {
        let (world, cli) = begun(strategy);
        work(&world, &cli, "mkdir d; echo 1 > d/1; rm f2; echo v > f1");
        cli.ok("commit p --only d --only f2");
        cli.ok("commit p");
        cli.ok("undo p");
        cli.ok("undo p");
        assert!(!world.at("app/d").exists() && world.at("app/f2").exists());
        let plans = json(&cli, "status")["plans"].clone();
        for plan in column(&plans, "name") {
            cli.ok(format!("commit {plan}"));
        }
        assert!(!world.at("app/f2").exists(), "{strategy}");
        assert_eq!(read(world.at("app/d/1")), "1\n", "{strategy}");
        assert_eq!(read(world.at("app/f1")), "v\n", "{strategy}");
    }
}

// rule C3, C20
#[test]
fn an_undo_that_is_killed_while_the_plan_takes_its_changes_in_loses_none() {
    for strategy in STRATEGIES {
        for n in (1..400).step_by(29) {
            let (world, cli) = begun(strategy);
            let script = "rm f1; mkdir f1; for i in $(seq 40); do echo $i > f1/$i; done; rm f2";
            work(&world, &cli, script);
            cli.ok("commit p");
            let calls: &[&str] = &[
                "mkdirat",
                "linkat",
                "copy_file_range",
                "unlinkat",
                "renameat2",
            ];
            let run = cli.stepper("undo p").only(calls).fault(n, Fault::Kill);
            if run.hit.is_none() {
                break;
            }
            cli.ok("recover");
            if json(&cli, "plan show p")["state"] != "open" {
                cli.ok("undo p");
            }
            assert_eq!(names_of(&cli, "p").lines().count(), 42, "{strategy}: {n}");
        }
    }
}

// rule C15
#[test]
fn a_row_that_was_changed_since_is_no_choice_of_an_undo() {
    let table =
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'one'), (2, 'two')";
    let (_world, cli, at) = planned(table);
    sql(
        &inner(&cli),
        "UPDATE t SET v = 'uno' WHERE id = 1; INSERT INTO t VALUES (3, 'tre')",
    );
    cli.ok("commit try");
    sql(&at, "UPDATE t SET v = 'mine' WHERE id = 1");
    for choice in ["sandbox", "original", "merge"] {
        cli.fails(format!("undo try --on-conflict {choice}"), 4);
        assert_eq!(sql(&at, "SELECT count(*) FROM t"), "3");
    }
    sql(&at, "UPDATE t SET v = 'uno' WHERE id = 1");
    cli.ok("undo try");
    assert_eq!(sql(&inner(&cli), "SELECT v FROM t WHERE id = 3"), "tre");
}

// rule C20
#[test]
fn what_was_done_since_a_rollback_is_named_when_that_is_undone() {
    let (world, cli) = begun("overlay");
    work(&world, &cli, "echo v > f1");
    cli.ok("rollback p");
    work(&world, &cli, "echo w > f2");
    cli.fails("undo p --only f1", 1);
    let undone = cli.expect("undo p", 0);
    let said = undone.stderr_text();
    assert_eq!(names_of(&cli, "p"), "M\tf1\n");
    let hint = said
        .split('`')
        .find(|one| one.starts_with("escrow restore p "));
    let hint = hint.unwrap_or_else(|| panic!("{said}"));
    cli.ok(hint.trim_start_matches("escrow "));
    assert_eq!(names_of(&cli, "p"), "M\tf2\n");
}
