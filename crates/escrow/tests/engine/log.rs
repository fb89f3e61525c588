//! The log: complete, and such that a later change of it is seen.

use std::path::Path;

use escrow::internals::store::{LogCheck, LoggedOperation};
use escrow::manager::Manager;
use escrow_testkit::{World, tree};

use crate::commit_support::Must;
use crate::support::{Sandboxed, open, rows};

/// A home in which a few things were done, one of them in vain.
fn history(world: &World) -> Sandboxed {
    let app = world.dir("app");
    tree::build(&app, "a.txt \"one\\n\"\n");
    let sandbox = Sandboxed::new(&world.home(), &app, "filesystem_copy");
    let access = sandbox
        .manager
        .access(&sandbox.plan, &sandbox.resource, None);
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
    manager.check_log(None).expect("the log can be read")
}

/// Tries statements on a log of six operations, which are twelve events, and looks whether the right one is named: rows of
/// the statements, the number of the event, and what is said of it.
#[track_caller]
fn found(table: &str) {
    for [statements, entry, what] in rows(table) {
        let world = World::new();
        let sandbox = history(&world);
        let before = check(&sandbox.manager);
        assert_eq!((before.entries, &before.fault), (12, &None));
        meddle(&world.home(), &statements);
        let fault = check(&sandbox.manager).fault;
        let fault = fault.unwrap_or_else(|| panic!("not seen: {statements}"));
        assert_eq!(fault.entry.to_string(), entry, "{statements}: {fault:?}");
        assert!(fault.what.contains(&what), "{statements}: {fault:?}");
        // What is done afterwards does not hide it.
        sandbox.rollback();
        assert!(check(&sandbox.manager).fault.is_some(), "{statements}");
    }
}

fn entries(manager: &Manager) -> Vec<(String, String)> {
    let log = manager.log(None).expect("the log can be read");
    let one = |one: LoggedOperation| (one.operation.action, one.outcome);
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
    let log = sandbox.manager.log(Some(&sandbox.plan)).must("it is there");
    let write = log.iter().find(|one| one.operation.action == "write");
    let write = write.expect("it is there");
    assert_eq!(write.operation.principal, "engine-tests");
    assert_eq!(write.operation.plan_id, Some(sandbox.plan.id));
    assert_eq!(write.operation.resources, ["app"]);
    assert_eq!(write.paths, ["app:b.txt"]);
    assert_eq!(write.path_count, 1);
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
    sandbox.committed();
    let log = sandbox.manager.log(Some(&sandbox.plan)).must("it is there");
    let commit = log.last().expect("it is there");
    assert_eq!((commit.paths.len(), commit.path_count), (100, 130));
    assert!(check(&sandbox.manager).fault.is_none());
}

// rule S7
#[test]
fn an_event_that_was_changed_is_named() {
    found(
        r#"
UPDATE event SET body = replace(body, 'engine-tests', 'somebody') WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET body = replace(body, '"write"', '"read"') WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET body = replace(body, 'a.txt', 'b.txt') WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET body = replace(body, '"pid":', '"pid":1') WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET body = body || ' ' WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET plan_id = NULL WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET operation_id = 'op_00000000000000000000000009' WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET kind = 'import' WHERE position = 9 | 9 | it is not what was recorded
UPDATE event SET body = replace(body, 'failed', 'done') WHERE position = 10 | 10 | it is not what was recorded
UPDATE event SET body = replace(body, '"reason":null', '"reason":"none"') WHERE position = 10 | 10 | it is not what was recorded
UPDATE event SET body = replace(body, '"path_count":1', '"path_count":7') WHERE position = 10 | 10 | it is not what was recorded
UPDATE event SET body = replace(body, '"at":"2', '"at":"1') WHERE position = 10 | 10 | it is not what was recorded
UPDATE event SET kind = 'import' WHERE position = 10 | 10 | it is not what was recorded
UPDATE event SET hash = zeroblob(32) WHERE position = 10 | 10 | it is not what was recorded
"#,
    );
}

// rule S7
#[test]
fn an_event_that_was_removed_or_moved_is_named() {
    found(
        "
DELETE FROM event WHERE position = 1 | 1 | it is missing
DELETE FROM event WHERE position = 6 | 6 | it is missing
DELETE FROM event WHERE position = 7; UPDATE event SET position = position - 1 WHERE position > 7
    | 7 | it is not what was recorded
DELETE FROM event WHERE position > 8 | 9 | it is missing, and what followed it: there were 12
DELETE FROM event | 1 | there were 12
DELETE FROM event_head | 13 | the end of the log was removed
UPDATE event_head SET count = 11 | 12 | more than was recorded
UPDATE event SET position = 100 WHERE position = 4; UPDATE event SET position = 4 WHERE position = 5; \
UPDATE event SET position = 5 WHERE position = 100 | 4 | another one is in its place
",
    );
}

/// An operation that says of itself that it has not ended, by a process that is dead.
const UNFINISHED: &str = "INSERT INTO event \
    SELECT 13, kind, 'op_00000000000000000000000009', plan_id, \
        replace(replace(body, operation_id, 'op_00000000000000000000000009'), '\"start\":', '\"start\":1'), \
        hash FROM event WHERE position = 7; \
    INSERT INTO running VALUES ('op_00000000000000000000000009');";

// rule S7
#[test]
fn an_event_that_was_put_in_is_named() {
    found(&format!("{UNFINISHED} | 13 | it is not what was recorded"));
    // The next who comes by ends it as interrupted.
    let world = World::new();
    let sandbox = history(&world);
    meddle(&world.home(), UNFINISHED);
    sandbox.rollback();
    let forged = ("write".to_owned(), "interrupted".to_owned());
    assert!(entries(&sandbox.manager).contains(&forged));
    let seen = check(&sandbox.manager);
    let fault = seen.fault.expect("it is seen");
    assert_eq!((seen.entries, fault.entry), (12, 13));
    let forged = fault.operation.as_deref();
    assert_eq!(forged, Some("op_00000000000000000000000009"));
}

// rule S7
#[test]
fn an_operation_that_was_changed_before_it_ended_is_named() {
    // One that has begun and not ended.
    let interrupt = "INSERT INTO running SELECT operation_id FROM event WHERE position = 12; \
                     DELETE FROM event WHERE position = 12; \
                     UPDATE event_head SET count = 11, hash = (SELECT hash FROM event WHERE position = 11);";
    let world = World::new();
    let sandbox = history(&world);
    meddle(&world.home(), interrupt);
    let seen = check(&sandbox.manager);
    assert_eq!((seen.entries, seen.fault), (11, None));
    let change = "UPDATE event SET body = replace(body, 'engine-tests', 'x') WHERE position = 11";
    found(&format!(
        "{interrupt} {change} | 11 | not what was recorded"
    ));
    let remove = "DELETE FROM event WHERE position = 11";
    found(&format!("{interrupt} {remove} | 11 | there were 11"));
}

/// The tables of the versions before, with three operations of which one has not ended.
fn old_store(home: &Path, schemas: &[&str], version: u8, more: &str) {
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
    let header = format!("PRAGMA application_id = 1702060914; PRAGMA user_version = {version};");
    meddle(
        home,
        &format!("{} {rows} {more} {header}", schemas.concat()),
    );
}

// rule S7, P3
#[test]
fn what_earlier_versions_logged_is_brought_over_and_sealed() {
    let all = [
        include_str!("../../src/store/schema/0001.sql"),
        include_str!("../../src/store/schema/0002.sql"),
        include_str!("../../src/store/schema/0003.sql"),
        include_str!("../../src/store/schema/0004.sql"),
        include_str!("../../src/store/schema/0005.sql"),
        include_str!("../../src/store/schema/0006.sql"),
        include_str!("../../src/store/schema/0007.sql"),
        include_str!("../../src/store/schema/0008.sql"),
    ];
    let sealed = "INSERT INTO seal_head VALUES (1, 2, x'abcd');";
    for (schemas, version, more, first) in [(&all[..2], 2, "", 0), (&all[..], 8, sealed, 1)] {
        let world = World::new();
        let home = world.home();
        old_store(&home, schemas, version, more);
        let manager = open(&home);
        let seen = check(&manager);
        assert_eq!((seen.entries, seen.fault), (5 + first, None));
        let outcomes: Vec<String> = entries(&manager).into_iter().map(|(_, how)| how).collect();
        assert_eq!(outcomes, ["done", "failed", "running"]);
        let log = manager.log(None).expect("it can be read");
        assert_eq!(log[0].operation.principal, "old");
        assert_eq!(
            log[1].finished_at.map(|at| at.as_second()),
            Some(981_173_107)
        );
        let change = format!(
            "UPDATE event SET body = replace(body, '\"x\"', '\"y\"') WHERE position = {}",
            3 + first
        );
        meddle(&home, &change);
        let fault = check(&manager).fault.expect("it is seen");
        assert_eq!(fault.entry, 3 + first);
    }
}

// rule S7
#[test]
fn the_last_hash_follows_every_entry() {
    let world = World::new();
    let sandbox = history(&world);
    let before = check(&sandbox.manager);
    assert_eq!(before.head.len(), 64);
    let again = check(&open(&world.home()));
    assert_eq!(again, before, "looking changes nothing");
    sandbox.rollback();
    let after = check(&sandbox.manager);
    assert_eq!(after.entries, before.entries + 2);
    assert_ne!(after.head, before.head);
}
