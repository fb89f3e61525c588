//! A restore that is interrupted, a deletion that is killed or fails: each sandbox is wholly as before or wholly as after, all
//! of them alike, and the next command goes on.

use crate::faults::{EIO, sweep};
use crate::*;

/// What the two sandboxes hold, by marks in them.
fn hold(cli: &Cli, plan: &str) -> Result<[String; 2], String> {
    let read = |resource: &str| {
        let outcome = cli.run(format!("read {plan} {resource} f"));
        let listed = cli.run(format!("diff {plan} --resource {resource} --name-status"));
        match (outcome.status, listed.status) {
            (0, 0) => Ok(outcome.stdout_text() + &listed.stdout_text()),
            _ => Err(outcome.stderr_text() + &listed.stderr_text()),
        }
    };
    Ok([read("one")?, read("two")?])
}

const A: [&str; 2] = ["a\nA\td\nA\td/x\nA\tf\n", "a\nA\td\nA\td/x\nA\tf\n"];
const B: [&str; 2] = ["b\nA\tf\nA\tg\n", "b\nA\tf\nA\tg\n"];

/// Two resources, one in layers and one copied, that went from A to B, with a checkpoint at A.
fn scene() -> (World, Cli) {
    let (world, cli) = planned_both([("f", "a\n"), ("d/x", "x\n")]);
    cli.ok("checkpoint create try -m A");
    let script = "cd ../app && rm -r d; echo b > f; echo g > g; cd ../data && rm -r d; echo b > f; echo g > g";
    cli.clone()
        .cwd(world.at("app"))
        .ok(inside("-q run --plan try", script));
    assert_eq!(hold(&cli, "try"), Ok(B.map(str::to_owned)));
    (world, cli)
}

/// All of A or all of B, and everything can go on.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    // The first command that changes something finishes it or rolls it back.
    cli.run("recover");
    let found = hold(cli, "try").unwrap_or_else(|error| panic!("{how}: {error}"));
    let either = [A, B].iter().any(|side| found == *side);
    assert!(either, "{how}: {found:#?}");
    let status = json(cli, "status");
    assert_eq!(status["unfinished"], value!([]), "{how}");
    cli.ok("checkpoint create try -m after");
    cli.ok("restore try A");
    assert_eq!(hold(cli, "try"), Ok(A.map(str::to_owned)), "{how}");
    cli.ok("restore try after");
    assert_eq!(hold(cli, "try"), Ok(found), "{how}");
    for plan in list(&json(cli, "status")["plans"]) {
        let name = plan["name"].as_str().expect("a name");
        cli.ok(format!("cleanup {name}"));
    }
    assert_eq!(world.areas(), [""; 0], "{how}");
}

/// What was interrupted is called what it is.
#[test]
fn an_interrupted_restore_is_told_as_one() {
    need!(require_stepper());
    let mut met = 0;
    for n in 1.. {
        let (world, cli) = scene();
        let restore = cli.stepper("restore try A");
        let run = restore.only(&["renameat2", "renameat", "rename"]);
        if run.fault(n, Fault::Kill).hit.is_none() {
            break;
        }
        let unfinished = json(&cli, "status")["unfinished"].clone();
        if unfinished == value!([]) {
            continue;
        }
        met += 1;
        assert_eq!(unfinished[0]["what"], "restore", "{unfinished}");
        let said = cli.fails("diff try", 5);
        let begins = "error: a restore of the plan 'try' was interrupted";
        assert!(said.starts_with(begins), "{said}");
        let said = cli.ok("status");
        assert!(said.contains("half way: a restore of plan try"), "{said}");
        let said = cli.ok("recover");
        assert!(said.contains("every sandbox is as"), "{said}");
        goes_on(&world, &cli, &format!("killed at rename {n}"));
        if met == 2 {
            break;
        }
    }
    assert!(met > 0, "it was never caught in the middle");
}

#[test]
fn a_deletion_is_killed_or_fails() {
    let scene = || {
        let (world, cli) = scene();
        cli.ok("checkpoint create try -m gone");
        (world, cli)
    };
    let faults = [Fault::Kill, Fault::Once(EIO)];
    sweep(scene, "checkpoint delete try gone", &faults, goes_on);
}
