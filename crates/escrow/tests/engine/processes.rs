//! Several processes on one home, some of them killed; and stores that are not ours.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use escrow::error::{Error, Kind};
use escrow::event::Unobserved;
use escrow::internals::store::StoreError;
use escrow::manager::Manager;
use escrow::model::SandboxState;
use escrow_testkit::World;
use escrow_testkit::signature::signature;
use escrow_testkit::tree::build;
use escrow_testkit::user::rerun_test_as_user;

use crate::commit_support::{
    Must, all_succeed, child, halting, kill, start_child, start_halting, unfinished,
};
use crate::overlay::{BASE, original};
use crate::support::{Sandboxed, assert_swept, assert_untouched, at, open, options};

/// Does nothing by itself: the process that others start and kill.
#[test]
fn child_that_is_killed() {
    let Some((after, world)) = child() else {
        return;
    };
    let observer = halting(after.parse().expect("a number was handed over"), &world);
    let typed = [world.join("original").into_os_string()];
    let manager = open(&world.join("escrow-home"));
    let strategy = Some("filesystem_copy");
    let made = manager.create_plan(Some("killed"), &world, &typed, strategy, &observer);
    made.expect("it is killed before it ends");
}

// rule P3, P4, P6
#[test]
fn a_create_that_is_killed() {
    let world = World::new();
    let original = world.dir("original");
    for number in 0..300 {
        let file = format!("d{}/f{number} \"{number}\"", number % 20);
        build(&original, &file);
    }
    let before = signature(&original);
    for (turn, after) in ["1", "20", "150", "299"].into_iter().enumerate() {
        kill(start_halting(
            "processes::child_that_is_killed",
            world.path(),
            after,
        ));
        let manager = open(&world.home());
        let status = manager.status().expect("it can be shown");
        let interrupted = status.running.iter().map(|one| one.alive);
        assert_eq!(
            interrupted.collect::<Vec<_>>(),
            [false],
            "it is shown, and its process has ended"
        );
        assert!(status.plans.is_empty(), "it cannot be used");
        assert_eq!(unfinished(&manager), ["killed"]);
        let plan = manager.resolve_plan(Some("killed"), world.path());
        let plan = plan.must("it is recorded");
        let view = manager.view(plan.clone()).must("it is recorded");
        let view = &view.sandboxes[0];
        assert_eq!(view.sandbox.state, SandboxState::Pending);
        let error = manager.read(&plan, &view.resource, &at("d1/f1")).err();
        let error = error.expect("it was never finished");
        assert_eq!(error.kind(), Kind::RecoveryNeeded, "{error}");
        // What changes something removes it first.
        let made = |strategy| manager.create_sandbox(&plan, &view.resource, strategy, &Unobserved);
        match turn % 2 {
            0 => drop(made(Some("filesystem_copy")).expect_err("the plan is gone")),
            _ => drop(manager.recover().must("it can be removed")),
        }
        assert_swept(&world.home());
        assert_untouched(&before, &original);
        let status = manager.status().expect("it can be shown");
        assert!(status.running.is_empty() && status.unfinished.is_empty());
        let gone = manager.resolve_plan(Some("killed"), world.path());
        assert!(gone.is_err(), "as if it had never been");
    }
}

/// Does nothing by itself: one of many processes that use a home at once.
#[test]
fn child_that_makes_plans() {
    let Some((number, world)) = child() else {
        return;
    };
    for turn in 0..4 {
        let strategy = ["overlay", "filesystem_copy"][turn % 2];
        let home = world.join("escrow-home");
        let sandbox = Sandboxed::new(&home, &world.join("original"), strategy);
        let text = format!("by {number} in {turn}");
        sandbox
            .write("file", text.as_bytes())
            .must("it can be written");
        let read = sandbox.read("file").must("it was written");
        assert_eq!(read, text.as_bytes(), "no other process writes here");
        assert_eq!(sandbox.listing(), ["M file"]);
        if turn < 2 {
            sandbox.cleanup();
        }
    }
}

// rule P3, P4
#[test]
fn many_processes_at_once() {
    const PROCESSES: usize = 8;
    let world = World::new();
    let original = original(&world, "original", BASE);
    let before = signature(&original);
    let test = "processes::child_that_makes_plans";
    let start = |number: usize| start_child(test, world.path(), &number.to_string());
    all_succeed((0..PROCESSES).map(start).collect());
    let manager = open(&world.home());
    let plans = manager.plans().expect("they can be listed");
    assert_eq!(plans.len(), 4 * PROCESSES);
    let live = manager.status().expect("it can be shown");
    assert!(live.running.is_empty());
    let names: BTreeSet<&str> = live
        .plans
        .iter()
        .map(|view| view.plan.name.as_str())
        .collect();
    assert_eq!(live.plans.len(), 2 * PROCESSES);
    assert_eq!(
        names.len(),
        2 * PROCESSES,
        "open plans have names of their own"
    );
    let resources = manager.resources().expect("they can be listed");
    assert_eq!(resources.len(), 1, "it is one directory");
    let store = rusqlite::Connection::open(world.home().join("state.db")).expect("it is SQLite");
    let whole = store.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(whole.as_deref(), Ok("ok"));
    drop(store);
    for view in &live.plans {
        manager.cleanup(&view.plan, false).must("it can be removed");
    }
    assert_swept(&world.home());
    assert_untouched(&before, &original);
}

/// A store in a home, made by `make`; what a manager says to it, and whether it left it alone.
fn refused(make: impl FnOnce(&Path)) -> (StoreError, bool) {
    let world = World::new();
    let file = world.home().join("state.db");
    make(&file);
    let before = fs::read(&file).expect("it was made");
    let error = match Manager::open(options(&world.home())) {
        Ok(_) => panic!("a store that is not ours was taken"),
        Err(Error::Store(error)) => error,
        Err(other) => panic!("another error: {other}"),
    };
    (error, fs::read(&file).expect("it is there") == before)
}

fn sqlite(file: &Path, statements: &str) {
    let store = rusqlite::Connection::open(file).expect("a database can be made");
    store
        .execute_batch(statements)
        .expect("the statements are right");
    store.close().expect("it can be closed");
}

/// A store of ours, with another version in its header.
fn with_version(file: &Path, version: i32) {
    drop(open(file.parent().expect("it lies in a home")));
    let mut bytes = fs::read(file).expect("it was made");
    bytes[60..64].copy_from_slice(&version.to_be_bytes());
    fs::write(file, bytes).expect("the home is ours");
}

// rule P3
#[test]
fn a_newer_store_is_refused() {
    rerun_test_as_user("processes::a_newer_store_is_refused");
    let (error, untouched) = refused(|file| with_version(file, 99));
    let newer = matches!(error, StoreError::Newer { found: 99, .. });
    assert!(newer && untouched, "{error}");
    let error = Error::from(error);
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("newer"), "{error}");
    // Nor is one of no version taken.
    refused(|file| with_version(file, -7));
}

// rule P3
#[test]
fn a_foreign_store_is_refused() {
    let foreign = |make: &dyn Fn(&Path)| {
        let (error, untouched) = refused(make);
        let foreign = matches!(error, StoreError::Foreign { .. });
        assert!(foreign && untouched, "{error}");
    };
    let table = "CREATE TABLE mine (x); INSERT INTO mine VALUES (1);";
    for version in [0, 1] {
        foreign(&|file| sqlite(file, &format!("PRAGMA user_version={version}; {table}")));
    }
    let text = "no database at all, and longer than the header of one would be. ".repeat(2);
    foreign(&|file| fs::write(file, &text).expect("the home is ours"));
}

/// Its number says one thing and its tables another: what is wrong is reported, and where, instead of a statement.
// rule P3
#[test]
fn a_store_whose_tables_are_others_is_refused_in_words() {
    let header = "PRAGMA application_id=1702060914; PRAGMA user_version=6;";
    let (error, _) = refused(|file| sqlite(file, &format!("{header} CREATE TABLE mine (x);")));
    let StoreError::OtherTables { path, what } = &error else {
        panic!("{error}");
    };
    let said = error.to_string();
    assert!(
        said.contains(&path.to_string()) && said.contains(what),
        "{said}"
    );
    assert!(what.starts_with("no such table"), "{what}");
    let error = Error::from(error);
    assert!(error.hints()[0].contains("--home"), "{:?}", error.hints());
}
