//! Full-text tables of SQLite that take their text from elsewhere: they find the same afterwards, or nothing is written.

use crate::sqlite::{Waiting, conflicts, inner, planned, sql, talk};
use crate::*;

const SOME: &str = "CREATE TABLE d (id INTEGER PRIMARY KEY, shown, t); CREATE TABLE o (x);
    CREATE VIRTUAL TABLE f USING fts5(t, content = d, content_rowid = id);
    CREATE TRIGGER come AFTER INSERT ON d WHEN new.shown BEGIN INSERT INTO f(rowid, t) VALUES (new.id, new.t); END;";
const FOUND: &str = "SELECT group_concat(rowid) FROM f WHERE f MATCH 'hello'";
const REBUILD: &str = "INSERT INTO f(f) VALUES ('rebuild')";

#[track_caller]
fn refused(cli: &Cli, verb: &str, place: &str) {
    let said = cli.run(format!("{verb} --json"));
    assert_eq!(said.status, 4, "{}", talk(&said));
    let text = talk(&said);
    assert!(
        text.contains(&format!("in {place} this full-text table")),
        "{text}"
    );
}

// rule C1, C11, Q2
#[test]
fn a_commit_filled_a_full_text_index_with_rows_that_were_kept_out_of_it() {
    let (_world, cli, at) = planned(&format!(
        "{SOME} INSERT INTO d VALUES (1, 1, 'hello'), (2, 0, 'hello secret')"
    ));
    let work = inner(&cli);
    sql(&work, "INSERT INTO d VALUES (3, 1, 'hello again')");
    let before = fs::read(&work).expect("it is there");
    assert_eq!(conflicts(&cli)[0].0, "f");
    assert_eq!(fs::read(&work).ok(), Some(before), "it is only looked at");
    for how in ["abort", "ours", "theirs"] {
        refused(
            &cli,
            &format!("commit try --on-conflict {how}"),
            "the sandbox",
        );
    }
    assert_eq!(sql(&at, "SELECT count(*) FROM d"), "2");
    assert_eq!(sql(&at, FOUND), "1");
    // The index of the original is looked at as well.
    sql(&work, REBUILD);
    refused(&cli, "commit try", "the original");
    assert_eq!(sql(&at, "SELECT count(*) FROM d"), "2");
    assert_eq!(sql(&at, FOUND), "1");
    sql(&at, REBUILD);
    cli.ok("commit try");
    assert_eq!(sql(&at, FOUND), "1,2,3");
    // Also by an undo.
    sql(&at, "INSERT INTO d VALUES (4, 0, 'hello other')");
    refused(&cli, "undo try", "the original");
    assert_eq!(sql(&at, FOUND), "1,2,3");
    sql(&at, REBUILD);
    cli.ok("undo try");
    assert_eq!(sql(&at, FOUND), "1,2,4");
}

/// Whatever does not concern its text does not ask for the index, however it is kept.
// rule C6, C11
#[test]
fn a_full_text_table_with_some_of_its_text_keeps_nothing_else_from_being_released() {
    let view = "CREATE VIEW v AS SELECT id, t FROM d; CREATE VIRTUAL TABLE g USING fts5(t, content = v, content_rowid = id)";
    let (_world, cli, at) = planned(&format!(
        "{SOME} {view}; INSERT INTO d VALUES (1, 1, 'hello'), (2, 0, 'hello')"
    ));
    sql(
        &inner(&cli),
        "INSERT INTO o VALUES (7); CREATE INDEX i ON d (shown)",
    );
    cli.ok("commit try");
    assert_eq!(sql(&at, FOUND), "1");
    assert_eq!(
        sql(&at, &FOUND.replace('f', "g").replace("grom", "from")),
        ""
    );
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT count(*) FROM o"), "0");
}

// rule C1, Q4
#[test]
fn a_full_text_table_over_a_name_with_a_quote_was_never_rebuilt() {
    for (module, rowid) in [
        ("fts5", ", content_rowid = id"),
        ("/* one */ \"FTS5\"", ", content_rowid = id"),
        ("fts4", ""),
    ] {
        let (_world, cli, at) = planned(&format!(
            "CREATE TABLE \"q't\" (id INTEGER PRIMARY KEY, t); CREATE VIRTUAL TABLE f USING {module}(t, content='q''t'{rowid})"
        ));
        sql(
            &inner(&cli),
            &format!("INSERT INTO \"q't\" VALUES (1, 'hello'); {REBUILD}"),
        );
        cli.ok("commit try");
        assert_eq!(sql(&at, FOUND), "1", "{module}");
        // What its own index does not hold would be found.
        cli.ok("undo try");
        assert_eq!(sql(&at, FOUND), "", "{module}");
        cli.ok("plan create again --resource data/app.db");
        cli.ok([
            "sql",
            "again",
            "app.db",
            "INSERT INTO \"q't\" VALUES (2, 'hello')",
        ]);
        refused(&cli, "commit again", "the sandbox");
    }
}

/// It is looked at by a connection of its own, whatever else reads the sandbox and is copied of it.
// rule C6, Q5
#[test]
fn a_full_text_table_is_released_beside_a_table_with_another_form() {
    for mode in ["wal", "delete"] {
        let (_world, cli, at) = planned(&format!(
            "PRAGMA journal_mode = {mode}; {SOME} INSERT INTO d VALUES (1, 1, 'hello')"
        ));
        let script = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('ALTER TABLE o ADD COLUMN y'); c.execute(\"INSERT INTO d VALUES (2, 1, 'hello')\")
print('held', flush=True); sys.stdin.read()";
        let reader = Waiting::new(script, &inner(&cli));
        cli.ok("commit try");
        reader.end();
        assert_eq!(sql(&at, FOUND), "1,2", "{mode}");
        cli.ok("undo try");
        assert_eq!(sql(&at, FOUND), "1", "{mode}");
    }
}

// rule C1, Q2
#[test]
fn a_view_that_changed_left_the_index_over_it_as_it_was() {
    let (_world, cli, at) = planned(
        "CREATE TABLE d (id INTEGER PRIMARY KEY, shown, t); INSERT INTO d VALUES (1, 1, 'hello'), (2, 0, 'hello');
         CREATE VIEW v AS SELECT id, t FROM d WHERE shown; CREATE VIRTUAL TABLE f USING fts5(t, content = v, content_rowid = id);
         INSERT INTO f(f) VALUES ('rebuild')",
    );
    sql(
        &inner(&cli),
        &format!("DROP VIEW v; CREATE VIEW v AS SELECT id, t FROM d; {REBUILD}"),
    );
    cli.ok("commit try");
    assert_eq!(sql(&at, FOUND), "1,2");
    cli.ok("undo try");
    assert_eq!(sql(&at, FOUND), "1");
}

// rule C1
#[test]
fn a_full_text_index_that_could_not_be_rebuilt_was_emptied() {
    let (_world, cli, at) = planned(
        "CREATE TABLE d (id INTEGER PRIMARY KEY, t); INSERT INTO d VALUES (1, 'hello'); CREATE VIRTUAL TABLE f USING fts5(t, content = d, content_rowid = id);
         INSERT INTO f(f) VALUES ('rebuild')",
    );
    sql(&inner(&cli), "ALTER TABLE d RENAME COLUMN t TO text");
    cli.ok("commit try");
    sql(&at, "ALTER TABLE d RENAME COLUMN text TO t");
    assert_eq!(sql(&at, FOUND), "1");
}

// rule C6
#[test]
fn a_writer_in_the_sandbox_kept_a_full_text_table_from_being_shown() {
    let (_world, cli, _at) = planned(SOME);
    let work = inner(&cli);
    sql(&work, "INSERT INTO d VALUES (1, 1, 'hello')");
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE'); print(1, flush=True); sys.stdin.read()";
    let writer = Waiting::new(script, &work);
    cli.ok("commit try --dry-run");
    writer.end();
}
