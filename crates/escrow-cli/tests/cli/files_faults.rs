//! Commit and undo of files, killed and failing: all of them are as before or
//! as after, together with a directory, and nothing is left in the directories that hold them.

use crate::faults::{EIO, NOSPC, sweep};
use crate::*;

const OLD: [Option<&str>; 4] = [Some("old\n"), Some("goes\n"), Some("a\n"), Some("theirs\n")];
const NEW: [Option<&str>; 4] = [Some("new\n"), None, Some("b\n"), Some("theirs\n")];

/// A plan in which one file is changed, one is deleted, and a directory is changed.
fn scene() -> (World, Cli) {
    let world = World::new();
    let (docs, app) = (world.dir("docs"), world.dir("app"));
    write(docs.join("notes"), "old\n");
    write(docs.join("doomed"), "goes\n");
    write(docs.join("neighbour"), "theirs\n");
    write(app.join("a.txt"), "a\n");
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource docs/notes --resource docs/doomed --resource ./app");
    put(&cli, "try notes .", "new\n");
    put(&cli, "try app a.txt", "b\n");
    let doomed = cli.ok("path try doomed");
    remove(doomed.trim_end());
    (world, cli)
}

fn hold(world: &World) -> [Option<String>; 4] {
    let names = ["docs/notes", "docs/doomed", "app/a.txt", "docs/neighbour"];
    names.map(|name| fs::read_to_string(world.at(name)).ok())
}

/// All old or all new, and everything can go on.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    cli.run("recover");
    let found = hold(world);
    let is = |side: [Option<&str>; 4]| found.iter().map(Option::as_deref).eq(side);
    assert!(is(OLD) || is(NEW), "{how}: {found:?}");
    let unfinished = &json(cli, "status")["unfinished"];
    assert_eq!(*unfinished, value!([]), "{how}");
    // What was not released is still there to be released.
    if json(cli, "plan show try")["state"] == "open" {
        cli.ok("commit try");
        assert!(hold(world).iter().map(Option::as_deref).eq(NEW), "{how}");
    }
    cli.ok("cleanup try");
    let left = |at: &str| names(world.at(at)).len();
    let there = hold(world).iter().flatten().count();
    assert_eq!(left("docs") + left("app"), there, "{how}");
    assert_eq!(left("escrow-home/sandboxes"), 0, "{how}");
}

// rule C1, C3
#[test]
fn a_commit_of_files_is_killed() {
    as_user_too();
    sweep(scene, "commit try", &[Fault::Kill, Fault::Tear], goes_on);
}

// rule C4, C6, C12
#[test]
fn a_commit_of_files_fails() {
    let faults = [Fault::Once(EIO), Fault::Forever(NOSPC)];
    sweep(scene, "commit try", &faults, goes_on);
}

// rule C3, C10
#[test]
fn an_undo_of_files_is_killed() {
    let committed = || {
        let (world, cli) = scene();
        cli.ok("commit try");
        (world, cli)
    };
    sweep(committed, "undo try", &[Fault::Kill], goes_on);
}
