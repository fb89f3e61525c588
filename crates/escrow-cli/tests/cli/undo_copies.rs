//! A rollback of a copy whose original moved on copies anew, and what it discarded can be brought back all the same.

use crate::support::*;
use crate::*;

const LOST: &str = "bring back";

/// A plan `p` of a copy in which `f1` and `f2` are changed and `n` is new.
fn worked() -> (World, Cli) {
    let world = World::new();
    let app = world.dir("app");
    let cli = Cli::new(&world, &binary());
    for name in ["f1", "f2", "f3"] {
        write(app.join(name), "old\n");
    }
    cli.ok("plan create p --resource ./app --strategy filesystem_copy");
    for name in ["f1", "f2", "n"] {
        put(&cli, &format!("p app {name}"), "inside\n");
    }
    (world, cli)
}

fn diff(cli: &Cli) -> String {
    cli.ok("diff p --name-status")
}

/// Rolls back, which copies anew and says nothing of a loss.
#[track_caller]
fn rolled_back(cli: &Cli) {
    let outcome = cli.run("rollback p");
    let said = outcome.stdout_text() + &outcome.stderr_text();
    assert_eq!(outcome.status, 0, "{said}");
    assert!(said.contains("copied anew"), "{said}");
    assert!(!said.contains(LOST), "{said}");
    assert_eq!(diff(cli), "");
}

const ALL: &str = "M\tf1\nM\tf2\nA\tn\n";

// rule C20
#[test]
fn what_a_copy_discarded_comes_back_after_its_original_moved_on() {
    as_user_too();
    let (world, cli) = worked();
    write(world.at("app/f1"), "outside\n");
    rolled_back(&cli);
    assert_eq!(cli.ok("read p app f1"), "outside\n");
    cli.ok("undo p");
    assert_eq!(diff(&cli), ALL);
    assert_eq!(cli.ok("read p app f1"), "inside\n");
    let read = |name: &str| fs::read_to_string(world.at(name)).expect("it is there");
    assert_eq!(read("app/f1"), "outside\n");
    assert!(!world.at("app/n").exists());
    let refused = failed(&cli, "commit p", 4);
    assert_eq!(column(&refused["conflicts"], "path"), ["f1"]);
    cli.ok("commit p --on-conflict sandbox");
    assert_eq!(read("app/f1"), "inside\n");
    assert_eq!(read("app/n"), "inside\n");
    cli.ok("cleanup p");
    assert_eq!(world.areas(), [""; 0]);
}

// rule C20
#[test]
fn what_a_copy_discarded_comes_back_after_a_part_was_committed() {
    as_user_too();
    let (world, cli) = worked();
    cli.ok("commit p --only f2");
    rolled_back(&cli);
    cli.ok("undo p");
    assert_eq!(diff(&cli), "M\tf1\nA\tn\n");
    // The part is the newest now, and goes back into the sandbox that it came from.
    cli.ok("undo p");
    assert_eq!(diff(&cli), ALL);
    let f2 = || fs::read_to_string(world.at("app/f2")).expect("it is there");
    assert_eq!(f2(), "old\n");
    cli.ok("commit p");
    assert_eq!(f2(), "inside\n");
    cli.ok("cleanup p");
    assert_eq!(world.areas(), [""; 0]);
}

// rule C20, R1
#[test]
fn several_rollbacks_of_a_copy_are_undone_one_by_one() {
    let (world, cli) = worked();
    write(world.at("app/f1"), "outside\n");
    rolled_back(&cli);
    put(&cli, "p app f3", "again\n");
    write(world.at("app/f3"), "outside\n");
    rolled_back(&cli);
    put(&cli, "p app third", "3\n");
    cli.ok("undo p");
    assert_eq!(diff(&cli), "M\tf3\n");
    assert_eq!(cli.ok("read p app f1"), "outside\n");
    cli.ok("undo p");
    assert_eq!(diff(&cli), ALL);
    // Where each undo came from is a checkpoint, of a copy of its own.
    let listed = json(&cli, "checkpoint list p");
    let before = list(&listed["checkpoints"]).iter();
    let before = before.filter(|one| one["reason"] == "before_restore");
    let before: Vec<&str> = before
        .filter_map(|one| one["checkpoint_id"].as_str())
        .collect();
    assert_eq!(before.len(), 2, "{listed}");
    for _ in 0..2 {
        cli.ok(["restore", "p", before[0]]);
        assert_eq!(diff(&cli), "A\tthird\n");
        cli.ok(["restore", "p", before[1]]);
        assert_eq!(diff(&cli), "M\tf3\n");
    }
    // What no checkpoint is of any more goes.
    let room = area(&world, &cli, "p").join("before");
    assert_eq!(entries(&room), 2);
    for one in list(&json(&cli, "checkpoint list p")["checkpoints"]) {
        cli.ok([
            "checkpoint",
            "delete",
            "p",
            one["checkpoint_id"].as_str().expect("an id"),
        ]);
    }
    assert_eq!(entries(&room), 0);
    assert_eq!(diff(&cli), "M\tf3\n");
    // So does what is undo data only, once that is given up.
    rolled_back(&cli);
    assert_eq!(entries(&room), 1);
    cli.ok("gc --older-than 0s");
    assert_eq!(entries(&room), 0);
    cli.ok("cleanup p");
    assert_eq!(world.areas(), [""; 0]);
}

// rule R1
#[test]
fn an_older_checkpoint_of_a_copy_that_was_replaced_can_be_returned_to() {
    let (world, cli) = worked();
    cli.ok("checkpoint create p -m first");
    put(&cli, "p app n", "later\n");
    put(&cli, "p app more", "later\n");
    write(world.at("app/f1"), "outside\n");
    rolled_back(&cli);
    cli.ok("restore p first");
    assert_eq!(diff(&cli), ALL);
    assert_eq!(cli.ok("read p app n"), "inside\n");
    // The copy was brought there; what it held after that is another checkpoint.
    cli.ok("undo p");
    assert_eq!(diff(&cli), "M\tf1\nM\tf2\nA\tmore\nA\tn\n");
    assert_eq!(cli.ok("read p app n"), "later\n");
}

// rule C3, R1
#[test]
fn a_return_to_an_older_checkpoint_of_a_replaced_copy_is_killed_anywhere() {
    for n in 1.. {
        let (world, cli) = worked();
        cli.ok("checkpoint create p -m first");
        for name in ["n", "more"] {
            put(&cli, &format!("p app {name}"), "later\n");
        }
        write(world.at("app/f1"), "outside\n");
        rolled_back(&cli);
        let run = cli
            .stepper("restore p first")
            .only(&["renameat2", "unlinkat", "syncfs"])
            .fault(n, Fault::Kill);
        if run.hit.is_none() {
            assert!(n > 5, "it is killed");
            break;
        }
        cli.ok("recover");
        let found = diff(&cli);
        assert!(found.is_empty() || found == ALL, "killed at {n}: {found}");
        // What was discarded last is there all the same, and so is the older one.
        cli.ok("undo p");
        assert_eq!(diff(&cli), "M\tf1\nM\tf2\nA\tmore\nA\tn\n", "{n}");
        assert_eq!(cli.ok("read p app n"), "later\n", "{n}");
        cli.ok("restore p first");
        assert_eq!(diff(&cli), ALL, "killed at {n}");
        assert_eq!(cli.ok("read p app n"), "inside\n", "{n}");
    }
}

/// Nothing takes the place of the sandbox below a command.
#[test]
fn a_copy_that_was_replaced_waits_for_the_command_inside() {
    let (world, cli) = worked();
    cli.ok("checkpoint create p -m first");
    write(world.at("app/f1"), "outside\n");
    rolled_back(&cli);
    let script = format!("{} restore p first; echo \"status $?\"", binary().display());
    let said = cli.run(inside("-q run --plan p", &script));
    let said = said.stdout_text() + &said.stderr_text();
    assert!(said.contains("status 1"), "{said}");
    assert!(said.contains("while a command is inside"), "{said}");
    cli.ok("restore p first");
    assert_eq!(diff(&cli), ALL);
}

// rule C3, C20
#[test]
fn a_copy_that_is_replaced_or_brought_back_is_killed_anywhere() {
    for line in ["rollback p", "undo p"] {
        for n in 1.. {
            let (world, cli) = worked();
            write(world.at("app/f1"), "outside\n");
            if line == "undo p" {
                rolled_back(&cli);
            }
            let run = cli
                .stepper(line)
                .only(&["renameat2", "fsync", "syncfs"])
                .fault(n, Fault::Kill);
            if run.hit.is_none() {
                assert!(n > 3, "{line} is killed");
                break;
            }
            cli.ok("recover");
            if diff(&cli) != ALL {
                cli.ok("undo p");
            }
            assert_eq!(diff(&cli), ALL, "{line} killed at {n}");
            cli.ok("cleanup p");
            assert_eq!(world.areas(), [""; 0]);
        }
    }
}
