//! Commit and undo of files, killed and failing at every call that changes something: all of them are as before or
//! as after, together with a directory, and nothing is left in the directories that hold them.

use std::fs;

use escrow_testkit::skip::is_root;
use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use crate::{binary, json, words};

const OLD: [Option<&str>; 4] = [Some("old\n"), Some("goes\n"), Some("a\n"), Some("theirs\n")];
const NEW: [Option<&str>; 4] = [Some("new\n"), None, Some("b\n"), Some("theirs\n")];

/// A plan in which one file is changed, one is deleted, and a directory is changed.
fn scene() -> (World, Cli) {
    let world = World::new();
    let (docs, app) = (world.dir("docs"), world.dir("app"));
    fs::write(docs.join("notes"), "old\n").expect("written");
    fs::write(docs.join("doomed"), "goes\n").expect("written");
    fs::write(docs.join("neighbour"), "theirs\n").expect("written");
    fs::write(app.join("a.txt"), "a\n").expect("written");
    let cli = Cli::new(&world, &binary());
    cli.ok(words(
        "plan create try --resource docs/notes --resource docs/doomed --resource ./app",
    ));
    cli.clone().stdin("new\n").ok(words("write try notes ."));
    cli.clone().stdin("b\n").ok(words("write try app a.txt"));
    let doomed = cli.ok(words("path try doomed"));
    fs::remove_file(doomed.trim_end()).expect("removed");
    (world, cli)
}

fn hold(world: &World) -> [Option<String>; 4] {
    let names = ["docs/notes", "docs/doomed", "app/a.txt", "docs/neighbour"];
    names.map(|name| fs::read_to_string(world.path().join(name)).ok())
}

/// All old or all new, and everything can go on.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    cli.run(words("recover"));
    let found = hold(world);
    let is = |side: [Option<&str>; 4]| found.iter().map(Option::as_deref).eq(side);
    assert!(is(OLD) || is(NEW), "{how}: {found:?}");
    let unfinished = &json(cli, "status")["unfinished"];
    assert_eq!(*unfinished, serde_json::json!([]), "{how}");
    // What was not released is still there to be released.
    if json(cli, "plan show try")["state"] == "open" {
        cli.ok(words("commit try"));
        assert!(hold(world).iter().map(Option::as_deref).eq(NEW), "{how}");
    }
    cli.ok(words("cleanup try"));
    let left = |at: &str| {
        fs::read_dir(world.path().join(at))
            .expect("it is there")
            .count()
    };
    let names = hold(world).iter().flatten().count();
    assert_eq!(left("docs") + left("app"), names, "{how}");
    assert_eq!(left("escrow-home/sandboxes"), 0, "{how}");
}

/// Not every one of the many calls in the short form.
fn stride(calls: u64) -> usize {
    let long = std::env::var_os("ESCROW_TORTURE").is_some_and(|form| form == "long");
    match long {
        true => 1,
        false if is_root() => (calls / 16).max(1) as usize,
        false => (calls / 6).max(1) as usize,
    }
}

fn sweep(before: &[&str], line: &str, faults: &[Fault]) {
    if !require_stepper() {
        return;
    }
    let begin = || {
        let (world, cli) = scene();
        for line in before {
            cli.ok(words(line));
        }
        (world, cli)
    };
    let (_template, cli) = begin();
    let counted = cli.stepper(words(line)).run();
    let told = counted.outcome.stderr_text();
    assert_eq!(counted.outcome.status, 0, "{told}");
    for fault in faults {
        for n in (1..=counted.calls).step_by(stride(counted.calls)) {
            let (world, cli) = begin();
            let run = cli.stepper(words(line)).fault(n, *fault);
            let Some(hit) = run.hit else { break };
            let how = format!("{line}: {fault:?} at call {n}, {hit}");
            goes_on(&world, &cli, &how);
        }
    }
}

// rule C1, C3
#[test]
fn a_commit_of_files_is_killed() {
    rerun_test_as_user_with("files_faults::a_commit_of_files_is_killed", &[&binary()]);
    sweep(&[], "commit try", &[Fault::Kill, Fault::Tear]);
}

// rule C4, C6, C12
#[test]
fn a_commit_of_files_fails() {
    const EIO: i32 = 5;
    const NOSPC: i32 = 28;
    sweep(
        &[],
        "commit try",
        &[Fault::Once(EIO), Fault::Forever(NOSPC)],
    );
}

// rule C3, C10
#[test]
fn an_undo_of_files_is_killed() {
    sweep(&["commit try"], "undo try", &[Fault::Kill]);
}
