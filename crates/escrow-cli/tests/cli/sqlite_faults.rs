//! Commit and undo of a database together with a directory, killed and failing: both are as before or as after, by the
//! word of an independent client.

use crate::faults::{EIO, NOSPC, sweep};
use crate::sqlite::sql;
use crate::*;

const OLD: (&str, &str) = ("1|old\n2|goes\nok", "a\n");
const NEW: (&str, &str) = ("1|new\n3|comes\nok", "b\n");

fn scene() -> (World, Cli) {
    let world = World::new();
    let at = world.dir("data").join("app.db");
    let app = world.dir("app");
    write(app.join("a.txt"), "a\n");
    sql(
        &at,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'old'), (2, 'goes')",
    );
    let cli = Cli::new(&world, &binary());
    cli.ok("plan create try --resource data/app.db --resource ./app");
    put(&cli, "try app a.txt", "b\n");
    let copy = cli.ok("path try app.db");
    sql(
        Path::new(copy.trim_end()),
        "UPDATE t SET v = 'new' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (3, 'comes')",
    );
    (world, cli)
}

fn hold(world: &World) -> (String, String) {
    let rows = sql(
        &world.at("data/app.db"),
        "SELECT * FROM t; PRAGMA integrity_check",
    );
    (rows, read(world.at("app/a.txt")))
}

#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    cli.run("recover");
    let found = hold(world);
    let is = |side: (&str, &str)| (found.0.as_str(), found.1.as_str()) == side;
    assert!(is(OLD) || is(NEW), "{how}: {found:?}");
    let unfinished = &json(cli, "status")["unfinished"];
    assert_eq!(*unfinished, value!([]), "{how}");
    if json(cli, "plan show try")["state"] == "open" {
        cli.ok("commit try");
        let found = hold(world);
        assert_eq!((found.0.as_str(), found.1.as_str()), NEW, "{how}");
    }
    cli.ok("cleanup try");
    // SQLite itself left nothing either, once it was opened again.
    assert_eq!(names(world.at("data")), ["app.db"], "{how}");
    assert!(names(world.at("escrow-home/sandboxes")).is_empty(), "{how}");
}

// rule C1, C3, Q8
#[test]
fn a_commit_of_a_database_is_killed() {
    sweep(scene, "commit try", &[Fault::Kill, Fault::Tear], goes_on);
}

// rule C4, C6, C12, Q3
#[test]
fn a_commit_of_a_database_fails() {
    let faults = [Fault::Once(EIO), Fault::Forever(NOSPC)];
    sweep(scene, "commit try", &faults, goes_on);
}

// rule C3, C10
#[test]
fn an_undo_of_a_database_is_killed() {
    let committed = || {
        let (world, cli) = scene();
        cli.ok("commit try");
        (world, cli)
    };
    sweep(committed, "undo try", &[Fault::Kill], goes_on);
}
