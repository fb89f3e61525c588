//! The log: complete, and such that a later change of it is seen.

use std::path::Path;

use escrow::event::Unobserved;
use escrow::manager::Manager;
use escrow::store::{LogCheck, Logged};
use escrow_testkit::{World, tree};

use crate::support::{Sandboxed, open};

/// A home in which a few things were done, one of them in vain.
fn history(world: &World) -> Sandboxed {
    let app = world.dir("app");
    tree::build(&app, "a.txt \"one\\n\"\n");
    let sandbox = Sandboxed::new(&world.home(), &app, "filesystem_copy");
    let access = sandbox.manager.access(&sandbox.plan, &sandbox.resource);
    access.expect("it has a path");
    sandbox.write("b.txt", b"two\n").expect("it can be written");
    let failed = sandbox.write("a.txt/below", b"no\n");
    assert!(failed.is_err(), "a file is no directory");
    sandbox.rollback();
    sandbox
}

/// Changes the store behind the engine's back.
fn meddle(home: &Path, statements: &str) {
    let store = rusqlite::Connection::open(home.join("state.db")).expect("it is SQLite");
    store
        .execute_batch(statements)
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

fn check(manager: &Manager) -> LogCheck {
    manager.check_log().expect("the log can be read")
}

/// Tries `statements` on a log of six entries, and looks whether the right one is named.
#[track_caller]
fn found(statements: &str, entry: u64, what: &str) {
    let world = World::new();
    let sandbox = history(&world);
    let before = check(&sandbox.manager);
    assert_eq!((before.entries, &before.fault), (6, &None));
    meddle(&world.home(), statements);
    let fault = check(&sandbox.manager).fault;
    let fault = fault.unwrap_or_else(|| panic!("not seen: {statements}"));
    assert_eq!(fault.entry, entry, "{statements}: {fault:?}");
    assert!(fault.what.contains(what), "{statements}: {fault:?}");
    // What is done afterwards does not hide it.
    sandbox.rollback();
    assert!(check(&sandbox.manager).fault.is_some(), "{statements}");
}

fn entries(manager: &Manager) -> Vec<(String, String)> {
    let log = manager.log(None).expect("the log can be read");
    let one = |one: Logged| (one.operation.action, one.outcome);
    log.into_iter().map(one).collect()
}

// rule S7
#[test]
fn everything_that_was_done_is_there() {
    let world = World::new();
    let sandbox = history(&world);
    let expected = [
        ("resource add", "done"),
        ("plan create", "done"),
        ("path", "done"),
        ("write", "done"),
        ("write", "failed"),
        ("rollback", "done"),
    ];
    let expected = expected.map(|(action, outcome)| (action.to_owned(), outcome.to_owned()));
    assert_eq!(entries(&sandbox.manager), expected);
    let log = sandbox
        .manager
        .log(Some(&sandbox.plan))
        .expect("it is there");
    let write = log
        .iter()
        .find(|one| one.operation.action == "write")
        .expect("it is there");
    assert_eq!(write.operation.principal, "engine-tests");
    assert_eq!(write.operation.plan_id, Some(sandbox.plan.id));
    assert_eq!(write.operation.resources, ["app"]);
    assert_eq!(
        (write.paths.as_slice(), write.path_count),
        (&["app:b.txt".to_owned()][..], 1)
    );
    assert!(write.took().is_some());
    let rollback = log.last().expect("it is there");
    assert_eq!(rollback.operation.resources, ["app"]);
}

// rule S7
#[test]
fn a_commit_tells_what_it_changed_however_much() {
    let world = World::new();
    let app = world.dir("app");
    let sandbox = Sandboxed::new(&world.home(), &app, "filesystem_copy");
    sandbox.native("i=0; while [ $i -lt 130 ]; do i=$((i+1)); : > \"f$i\"; done");
    let request = escrow::manager::CommitRequest {
        message: Some("all of it"),
        terms: escrow::commit::Terms {
            on_conflict: escrow::strategy::OnConflict::Abort,
            strict: false,
            allow_partial: false,
        },
        expected: None,
    };
    let released = sandbox.manager.commit(&sandbox.plan, &request, &Unobserved);
    released.expect("it can be committed");
    let log = sandbox
        .manager
        .log(Some(&sandbox.plan))
        .expect("it is there");
    let commit = log.last().expect("it is there");
    assert_eq!(commit.operation.message.as_deref(), Some("all of it"));
    assert_eq!((commit.paths.len(), commit.path_count), (100, 130));
    assert!(check(&sandbox.manager).fault.is_none());
}

// rule S7
#[test]
fn an_entry_that_was_changed_is_named() {
    for column in [
        "principal = 'somebody'",
        "action = 'read'",
        "target = 'other'",
        "plan_id = NULL",
        "outcome = 'done'",
        "error = NULL",
        "reason = 'none'",
        "resources = '[]'",
        "paths = '[]'",
        "path_count = 7",
        "message = ''",
        "started_at = '1999-12-31T23:59:59Z'",
        "finished_at = '1999-12-31T23:59:59Z'",
        "owner_pid = 1",
        "id = 'op_' || id",
    ] {
        let what = match column.starts_with("id") {
            true => "it was removed",
            false => "it is not what was recorded",
        };
        found(
            &format!("UPDATE operation SET {column} WHERE seq = 5"),
            5,
            what,
        );
    }
    found(
        "UPDATE operation SET outcome = 'running' WHERE seq = 2",
        2,
        "not what was recorded",
    );
}

// rule S7
#[test]
fn an_entry_that_was_removed_is_named() {
    found("DELETE FROM operation WHERE seq = 3", 3, "it was removed");
    found(
        "DELETE FROM seal WHERE position = 1; DELETE FROM operation WHERE seq = 1",
        1,
        "it is missing",
    );
    found(
        "DELETE FROM seal WHERE position = 4; DELETE FROM operation WHERE seq = 4;
         UPDATE seal SET position = position - 1 WHERE position > 4",
        4,
        "it is not what was recorded",
    );
}

// rule S7
#[test]
fn a_missing_end_is_named() {
    found(
        "DELETE FROM seal WHERE position > 4; DELETE FROM operation WHERE seq > 4",
        5,
        "it is missing, and what followed it: there were 6",
    );
    found("DELETE FROM seal; DELETE FROM operation", 1, "there were 6");
    found("DELETE FROM seal_head", 7, "the end of the log was removed");
    found(
        "UPDATE seal_head SET count = 5",
        6,
        "more than was recorded",
    );
}

// rule S7
#[test]
fn an_entry_that_was_put_in_is_named() {
    let copy = "INSERT INTO operation (id, principal, action, target, outcome, owner_pid,
                    owner_start, owner_boot, started_at, finished_at)
                SELECT 'op_forged', principal, action, target, outcome, owner_pid, owner_start,
                    owner_boot, started_at, finished_at FROM operation WHERE seq = 4;";
    found(copy, 7, "it was put in");
    found(
        &format!("{copy} INSERT INTO seal VALUES (7, 'op_forged', zeroblob(32))"),
        7,
        "it is not what was recorded",
    );
}

/// A row that says of itself that it has not ended, by a process that is dead.
const UNFINISHED: &str = "INSERT INTO operation (id, principal, action, target, outcome, owner_pid,
        owner_start, owner_boot, started_at, resources)
    SELECT 'op_00000000000000000000000009', 'mallory', 'write', 'x', 'running', owner_pid, 1,
        owner_boot, started_at, '[]' FROM operation WHERE seq = 4;";

// rule S7
#[test]
fn an_entry_that_was_put_in_as_unfinished_is_named() {
    found(UNFINISHED, 7, "it was put in");
    // The next who comes by ends it as interrupted, and seals it.
    let world = World::new();
    let sandbox = history(&world);
    meddle(&world.home(), UNFINISHED);
    sandbox.rollback();
    let forged = ("write".to_owned(), "interrupted".to_owned());
    assert!(entries(&sandbox.manager).contains(&forged));
    let seen = check(&sandbox.manager);
    let fault = seen.fault.expect("it is seen");
    assert_eq!((seen.entries, fault.entry), (6, 7));
    assert_eq!(
        fault.operation.as_deref(),
        Some("op_00000000000000000000000009")
    );
    assert!(fault.what.contains("it was put in"), "{fault:?}");
}

// rule S7
#[test]
fn an_entry_that_was_changed_or_removed_before_it_ended_is_named() {
    // One that has begun and not ended.
    let interrupt = "UPDATE operation SET outcome = 'running', finished_at = NULL WHERE seq = 6;
                     DELETE FROM seal WHERE position = 6;
                     UPDATE seal_head SET count = 5, hash = (SELECT hash FROM seal WHERE position = 5);";
    let world = World::new();
    let sandbox = history(&world);
    meddle(&world.home(), interrupt);
    let seen = check(&sandbox.manager);
    assert_eq!((seen.entries, seen.fault), (5, None));
    for (statements, what) in [
        (
            "UPDATE operation SET principal = 'mallory' WHERE seq = 6",
            "not what was recorded",
        ),
        (
            "UPDATE operation SET target = 'y' WHERE seq = 6",
            "not what was recorded",
        ),
        ("DELETE FROM operation WHERE seq = 6", "it was removed"),
        ("DELETE FROM beginning WHERE position = 6", "it is missing"),
        ("DELETE FROM beginning WHERE position = 3", "it is missing"),
        ("DELETE FROM beginning_head", "was removed"),
    ] {
        found(&format!("{interrupt} {statements}"), 6, what);
    }
}

// rule S7
#[test]
fn entries_that_changed_places_are_named() {
    found(
        "UPDATE seal SET operation_id = operation_id || '-' WHERE position IN (2, 3);
         UPDATE seal SET operation_id = (SELECT id FROM operation WHERE seq = 3) WHERE position = 2;
         UPDATE seal SET operation_id = (SELECT id FROM operation WHERE seq = 2) WHERE position = 3",
        2,
        "another one is in its place",
    );
    found(
        "UPDATE operation SET seq = 100 WHERE seq = 4; UPDATE operation SET seq = 4 WHERE seq = 5;
         UPDATE operation SET seq = 5 WHERE seq = 100",
        4,
        "another one is in its place",
    );
}

// rule S7, P3
#[test]
fn what_was_logged_before_there_were_seals_is_sealed() {
    let world = World::new();
    let home = world.home();
    let old = [
        include_str!("../../src/store/schema/0001.sql"),
        include_str!("../../src/store/schema/0002.sql"),
    ];
    let operation = |number: u8, outcome: &str| {
        let id = format!("op_0000000000000000000000000{number}");
        format!(
            "INSERT INTO operation (id, principal, action, target, outcome, owner_pid, owner_start,
                                    owner_boot, started_at, finished_at)
             VALUES ('{id}', 'old', 'write', 'x', '{outcome}', 1, 1, 'b',
                     '2001-02-03T04:05:06Z', '2001-02-03T04:05:07Z');"
        )
    };
    let rows = operation(1, "done") + &operation(2, "failed") + &operation(3, "running");
    let header = "PRAGMA application_id = 1702060914; PRAGMA user_version = 2;";
    meddle(&home, &format!("{} {} {rows} {header}", old[0], old[1]));
    let manager = open(&home);
    let seen = check(&manager);
    assert_eq!((seen.entries, seen.fault), (2, None), "one has not ended");
    assert_eq!(manager.log(None).expect("it can be read").len(), 3);
    meddle(&home, "UPDATE operation SET target = 'y' WHERE seq = 2");
    assert_eq!(check(&manager).fault.map(|fault| fault.entry), Some(2));
    meddle(&home, "UPDATE operation SET target = 'x' WHERE seq = 2");
    assert_eq!(check(&manager).fault, None);
    meddle(&home, "UPDATE operation SET target = 'y' WHERE seq = 3");
    let fault = check(&manager).fault.expect("how it began is sealed too");
    assert_eq!(fault.entry, 3);
}

// rule S7, P3
#[test]
fn what_was_logged_before_beginnings_were_sealed_stays_valid() {
    let world = World::new();
    let sandbox = history(&world);
    let before = check(&sandbox.manager);
    drop(sandbox);
    let old = "DROP TABLE beginning; DROP TABLE beginning_head;
               DROP TABLE trusted_config; DROP TABLE plan_config;
               ALTER TABLE journal DROP COLUMN kind; PRAGMA user_version = 7;
               DROP TABLE identity; DROP TABLE over;";
    meddle(&world.home(), old);
    std::fs::remove_file(world.home().join("generation")).expect("it counts areas");
    let manager = open(&world.home());
    assert_eq!(check(&manager), before);
    meddle(&world.home(), UNFINISHED);
    assert_eq!(check(&manager).fault.map(|fault| fault.entry), Some(7));
}

// rule S7
#[test]
fn several_writers_keep_one_chain() {
    let world = World::new();
    let sandbox = history(&world);
    let (home, plan) = (world.home(), &sandbox.plan);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (home, resource) = (home.clone(), &sandbox.resource);
            scope.spawn(move || {
                let manager = open(&home);
                for turn in 0..8 {
                    let path = crate::support::at(format!("w{number}-{turn}"));
                    let wrote = manager.write(plan, resource, &path, &mut &b"x"[..]);
                    wrote.expect("writers take turns");
                }
            });
        }
    });
    let seen = check(&sandbox.manager);
    assert_eq!((seen.entries, seen.fault), (6 + 32, None));
}

// rule S7
#[test]
fn the_last_hash_follows_every_entry() {
    let world = World::new();
    let sandbox = history(&world);
    let before = check(&sandbox.manager);
    assert_eq!(before.head.len(), 64);
    assert_eq!(
        check(&open(&world.home())),
        before,
        "looking changes nothing"
    );
    sandbox.rollback();
    let after = check(&sandbox.manager);
    assert_eq!(after.entries, before.entries + 1);
    assert_ne!(after.head, before.head);
}
