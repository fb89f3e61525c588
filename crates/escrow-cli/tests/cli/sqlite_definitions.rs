//! Definitions that a commit or an undo has to bring over together: what belongs to a table or a view, and names that pass from one to
//! another.

use crate::sqlite::{conflicts, dump, inner, planned, sorted, sql, talk};
use crate::*;

/// Released, the original holds what the sandbox held; undone, what it held before.
#[track_caller]
fn there_and_back(base: &str, inside: &str) {
    let (_world, cli, at) = planned(base);
    let before = dump(&at);
    sql(&inner(&cli), inside);
    let wanted = dump(&inner(&cli));
    let done = cli.run("commit try");
    assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
    assert_eq!(sorted(&dump(&at)), sorted(&wanted), "{inside}");
    let done = cli.run("undo try");
    assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
    assert_eq!(sorted(&dump(&at)), sorted(&before), "{inside}");
}

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, x); INSERT INTO t VALUES (1, 2);";

// rule C1, Q2
#[test]
fn a_name_passes_from_a_table_to_a_view_and_back() {
    for (base, inside) in [
        (
            TABLE.to_owned(),
            "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u",
        ),
        (
            format!("{TABLE} CREATE VIEW v AS SELECT * FROM t"),
            "DROP VIEW v; CREATE TABLE v (a); INSERT INTO v VALUES ('row')",
        ),
        (
            format!("{TABLE} CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END"),
            "ALTER TABLE t RENAME TO u; DROP TRIGGER g; CREATE VIEW t AS SELECT * FROM u;
             CREATE TRIGGER g INSTEAD OF INSERT ON t BEGIN SELECT 2; END",
        ),
    ] {
        there_and_back(&base, inside);
    }
    // A full-text table that keeps its own text becomes one that takes it from another table.
    let (_world, cli, at) = planned(
        "CREATE TABLE d (id INTEGER PRIMARY KEY, t); INSERT INTO d VALUES (1, 'hello');
         CREATE VIRTUAL TABLE f USING fts5(t); INSERT INTO f (rowid, t) SELECT * FROM d",
    );
    sql(
        &inner(&cli),
        "DROP TABLE f; CREATE VIRTUAL TABLE f USING fts5(t, content='d', content_rowid='id'); INSERT INTO f(f) VALUES ('rebuild')",
    );
    let found = "SELECT rowid FROM f WHERE f MATCH 'hello'";
    cli.ok("commit try");
    assert_eq!(sql(&at, found), "1");
    cli.ok("undo try");
    assert_eq!(sql(&at, found), "1");
}

// rule C1, Q2
#[test]
fn indexes_and_triggers_pass_from_one_table_to_another() {
    let index = "CREATE INDEX i ON t (x);";
    let trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END;";
    for (base, inside) in [
        (format!("{TABLE} {index} {trigger}"), "ALTER TABLE t RENAME TO a"),
        (format!("{TABLE} {index} {trigger}"), "ALTER TABLE t RENAME TO z"),
        (TABLE.to_owned(), "ALTER TABLE t RENAME TO p; ALTER TABLE p RENAME TO T"),
        (
            format!("{TABLE} {index} CREATE TABLE a (x)"),
            "DROP INDEX i; ALTER TABLE a ADD COLUMN y; CREATE INDEX i ON a (y)",
        ),
        (
            format!("{TABLE} {index} CREATE TABLE a (x)"),
            "ALTER TABLE t ADD COLUMN y; DROP INDEX i; CREATE INDEX i ON a (x)",
        ),
        (
            format!("{TABLE} {index} CREATE TABLE a (x)"),
            "DROP TABLE t; CREATE INDEX i ON a (x)",
        ),
        // Each of these indexes has all columns.
        (
            "CREATE TABLE w (a TEXT PRIMARY KEY, b, c) WITHOUT ROWID; CREATE INDEX i2 ON w (b, c); CREATE INDEX i1 ON w (c, b);
             INSERT INTO w VALUES ('1', 'z', 'k'), ('2', 'y', 'l'), ('3', 'x', 'j')"
                .to_owned(),
            "ALTER TABLE w RENAME COLUMN c TO d",
        ),
        (
            "CREATE TABLE w (a TEXT COLLATE NOCASE, b, PRIMARY KEY (a COLLATE BINARY)) WITHOUT ROWID; CREATE INDEX i ON w (b, a);
             INSERT INTO w VALUES ('b', 1), ('B', 3), ('a', 2)"
                .to_owned(),
            "DROP TABLE w",
        ),
    ] {
        there_and_back(&base, inside);
    }
}

/// What belongs to a view goes and comes with it, and is the original's where the sandbox did not change it.
// rule C1, C15, Q2
#[test]
fn triggers_of_views_and_of_tables_in_other_letters_are_kept() {
    let view = format!(
        "{TABLE} CREATE VIEW v AS SELECT x AS k FROM t; CREATE TRIGGER g INSTEAD OF DELETE ON V BEGIN DELETE FROM t; END;
         CREATE TRIGGER audit AFTER INSERT ON T BEGIN SELECT 1; END"
    );
    there_and_back(&view, "ALTER TABLE t RENAME COLUMN x TO y");
    there_and_back(&view, "DROP VIEW v");
    there_and_back(&view, "ALTER TABLE t ADD COLUMN y");
    // Another client's are no less there.
    for (base, inside, outside, item) in [
        (
            format!("{TABLE} CREATE VIEW v AS SELECT x FROM t"),
            "DROP VIEW v; CREATE VIEW v AS SELECT x, id FROM t",
            "CREATE TRIGGER theirs INSTEAD OF DELETE ON v BEGIN SELECT 1; END",
            "v",
        ),
        (
            TABLE.to_owned(),
            "ALTER TABLE t ADD COLUMN y",
            "CREATE TRIGGER theirs AFTER INSERT ON T BEGIN SELECT 1; END",
            "t",
        ),
    ] {
        let (_world, cli, at) = planned(&base);
        sql(&inner(&cli), inside);
        sql(&at, outside);
        let before = dump(&at);
        let found = conflicts(&cli);
        assert_eq!(found[0].0, item, "{found:?}");
        assert_eq!(dump(&at), before);
    }
    // Also one that came after the commit.
    let (_world, cli, at) = planned(TABLE);
    sql(&inner(&cli), "CREATE VIEW v AS SELECT x FROM t");
    cli.ok("commit try");
    sql(
        &at,
        "CREATE TRIGGER theirs INSTEAD OF DELETE ON v BEGIN SELECT 1; END",
    );
    let before = dump(&at);
    let refused = cli.run("undo try");
    assert_eq!(refused.status, 4, "{}", talk(&refused));
    assert_eq!(dump(&at), before);
}

/// A member that is taken back because another one failed is taken back wholly.
// rule C1, C4
#[test]
fn a_renamed_table_is_taken_back_when_another_database_fails() {
    let (world, cli, at) = crate::sqlite::unplanned(&format!("{TABLE} CREATE INDEX i ON t (x)"));
    let other = world.at("data/z.db");
    let unique = "CREATE TABLE u (id INTEGER PRIMARY KEY, s, v); CREATE UNIQUE INDEX one ON u (v) WHERE s = 1";
    sql(&other, unique);
    cli.ok("plan create try --resource data/app.db --resource data/z.db");
    let before = dump(&at);
    sql(&inner(&cli), "ALTER TABLE t RENAME TO a");
    let inside = cli.ok("path try z.db");
    sql(Path::new(inside.trim()), "INSERT INTO u VALUES (1, 1, 'k')");
    sql(&other, "INSERT INTO u VALUES (2, 1, 'k')");
    let refused = cli.run("commit try");
    assert_eq!(refused.status, 4, "{}", talk(&refused));
    assert_eq!(dump(&at), before);
    sql(&other, "DELETE FROM u");
    cli.ok("commit try");
    assert_eq!(
        sql(&at, "SELECT tbl_name FROM sqlite_schema WHERE name = 'i'"),
        "a"
    );
}

/// Rows without a key are found again, also under other numbers.
// rule C13, Q4
#[test]
fn an_undo_finds_rows_without_a_key_wherever_they_are() {
    let base = "CREATE TABLE l (x); INSERT INTO l VALUES (1), (2), (3); DELETE FROM l WHERE x = 1;
                CREATE TABLE n (k TEXT PRIMARY KEY, x); INSERT INTO n VALUES (NULL, 'a'), ('b', 'b'), (NULL, 'c'); DELETE FROM n WHERE k = 'b'";
    let (_world, cli, at) = planned(base);
    sql(
        &inner(&cli),
        "INSERT INTO l VALUES ('ours'), ('ours'), (2); INSERT INTO n VALUES (NULL, 'ours'), (NULL, 'a')",
    );
    cli.ok("commit try");
    sql(&at, "VACUUM");
    cli.ok("undo try");
    let rows = "SELECT group_concat(x) FROM (SELECT x FROM l ORDER BY x); SELECT group_concat(x) FROM (SELECT x FROM n ORDER BY x)";
    assert_eq!(sql(&at, rows), "2,3\na,c");
    // Its number is another row's now.
    let (_world, cli, at) = planned(base);
    sql(&inner(&cli), "DELETE FROM l WHERE x = 3");
    cli.ok("commit try");
    sql(&at, "INSERT INTO l VALUES ('theirs')");
    cli.ok("undo try");
    assert_eq!(sql(&at, rows), "2,3,theirs\na,c");
}

// rule F8, Q2
#[test]
fn rows_that_are_written_as_they_were_read_take_nothing_else_along() {
    let (_world, cli, at) = planned(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, n); INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, 'c');
         CREATE TABLE c (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p ON DELETE CASCADE); INSERT INTO c VALUES (1, 1), (3, 3);
         CREATE TABLE k (a, b, PRIMARY KEY (a, b)) WITHOUT ROWID; INSERT INTO k VALUES (1, 'x'); CREATE TABLE f (id INTEGER PRIMARY KEY, x REAL);
         INSERT INTO f (x) VALUES (-1.141760727353511e-17), (3.992427929185919e+242), (-8.672338670701148e-305), (0.1), (2.913227602652484e-85)",
    );
    for table in ["p", "k", "f"] {
        let rows = cli.ok(format!("read try app.db {table}"));
        cli.clone()
            .stdin(&rows)
            .ok(format!("write try app.db {table}"));
    }
    assert_eq!(cli.ok("diff try --name-only"), "");
    let rows =
        "{\"id\": 1, \"n\": \"z\"}\n{\"id\": 2, \"n\": \"b\"}\n{\"id\": 9, \"n\": \"new\"}\n";
    cli.clone().stdin(rows).ok("write try app.db p");
    assert_eq!(cli.ok("diff try --name-only"), "c/3\np/1\np/3\np/9\n");
    // A key is what SQLite takes for it.
    let rows =
        "{\"id\": \"1\", \"n\": \"z\"}\n{\"id\": 2, \"n\": \"b\"}\n{\"id\": 9, \"n\": \"new\"}\n";
    cli.clone().stdin(rows).ok("write try app.db p");
    assert_eq!(cli.ok("diff try --name-only"), "c/3\np/1\np/3\np/9\n");
    // A row that stays does not go with one that goes, and may have what that had.
    sql(
        &inner(&cli),
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u UNIQUE, up REFERENCES t ON DELETE CASCADE); INSERT INTO t VALUES (1, 1, NULL), (2, 2, 1), (3, 3, 2);
         CREATE TRIGGER never AFTER INSERT ON t WHEN new.u = 'never' BEGIN DELETE FROM t WHERE id = new.id; END",
    );
    let written = |rows: &str| cli.clone().stdin(rows).run("write try app.db t");
    assert_eq!(
        written("{\"id\": 2, \"u\": 2, \"up\": null}\n{\"id\": 3, \"u\": 3, \"up\": 2}").status,
        0
    );
    assert_eq!(written("{\"id\": 2, \"u\": 3, \"up\": null}").status, 0);
    // What is given is there, or nothing is written.
    sql(
        &inner(&cli),
        "CREATE TABLE s (id INTEGER PRIMARY KEY, up REFERENCES s ON DELETE SET NULL); INSERT INTO s VALUES (1, NULL), (2, 1);
         CREATE TABLE g (id INTEGER PRIMARY KEY, n TEXT UNIQUE ON CONFLICT IGNORE, at); INSERT INTO g VALUES (1, 'a', 0), (2, 'b', 0);
         CREATE TRIGGER touched AFTER UPDATE ON g BEGIN UPDATE g SET at = 7 WHERE id = new.id; END",
    );
    let refused = cli
        .clone()
        .stdin("{\"id\": 2, \"up\": 1}")
        .run("write try app.db s");
    has(&talk(&refused), ["FOREIGN KEY"]);
    cli.clone()
        .stdin("{\"id\": 1, \"n\": \"b\", \"at\": 1}")
        .ok("write try app.db g");
    assert_eq!(sql(&inner(&cli), "SELECT * FROM g"), "1|b|7");
    sql(&inner(&cli), "DROP TABLE s; DROP TABLE g");
    let never = written("{\"id\": 2, \"u\": 3}\n{\"id\": 9, \"u\": \"never\"}");
    has(&talk(&never), ["t/9", "is gone again"]);
    assert_eq!(sql(&inner(&cli), "SELECT * FROM t"), "2|3|");
    sql(&inner(&cli), "DROP TABLE t");
    let twice = "{\"id\": 1, \"n\": \"z\"}\n{\"id\": 1, \"n\": \"b\"}\n";
    let empty = cli.run(["sql", "try", "app.db", " ; "]);
    assert_eq!(empty.status, 2, "{}", talk(&empty));
    let refused = cli.clone().stdin(twice).run("write try app.db p");
    assert_ne!(refused.status, 0);
    assert!(
        talk(&refused).contains("the same key"),
        "{}",
        talk(&refused)
    );
    cli.ok("commit try");
    assert_eq!(
        sql(
            &at,
            "SELECT group_concat(id) FROM p; SELECT group_concat(id) FROM c"
        ),
        "1,2,9\n1"
    );
}

/// A name that both sides gave to something is a conflict, and named, whatever the letters and whatever it is.
// rule C15, Q2
#[test]
fn a_name_that_something_else_has_in_the_original_is_named_before_the_commit() {
    let base = format!("{TABLE} CREATE TABLE b (x); CREATE VIEW v AS SELECT x FROM t");
    for (inside, outside, item) in [
        ("CREATE TABLE Foo (x)", "CREATE TABLE foo (y)", "Foo"),
        (
            "CREATE INDEX foo ON t (x)",
            "CREATE TABLE foo (y)",
            "t/index:foo",
        ),
        (
            "CREATE TABLE a (x); CREATE INDEX i ON a (x)",
            "CREATE INDEX i ON b (x)",
            "a/index:i",
        ),
        (
            "CREATE TRIGGER g INSTEAD OF DELETE ON v BEGIN SELECT 1; END",
            "DROP VIEW v",
            "v/trigger:g",
        ),
        (
            "CREATE INDEX i ON b (x)",
            "DROP TABLE b; CREATE VIEW b AS SELECT x FROM t",
            "b/index:i",
        ),
    ] {
        let (_world, cli, at) = planned(&base);
        sql(&inner(&cli), inside);
        sql(&at, outside);
        let before = dump(&at);
        let found = conflicts(&cli);
        assert_eq!(found[0].0, item, "{inside}: {found:?}");
        let ours = cli.run("commit try --on-conflict sandbox");
        assert_eq!(ours.status, 4, "{inside}: {}", talk(&ours));
        assert_eq!(dump(&at), before, "{inside}");
        cli.ok("commit try --on-conflict original");
        assert_eq!(dump(&at), before, "{inside}");
    }
}

// rule C13, C15, Q2
#[test]
fn a_name_that_something_else_has_by_now_was_an_error_of_an_undo_and_no_conflict() {
    let base = format!(
        "{TABLE} CREATE TABLE B (x); CREATE INDEX i ON t (x); CREATE VIEW v AS SELECT x FROM t"
    );
    for (inside, since, item) in [
        ("DROP TABLE B", "CREATE TABLE b (y)", "B"),
        ("DROP INDEX i", "CREATE TABLE i (y)", "t/index:i"),
        ("DROP VIEW v", "CREATE INDEX v ON t (x)", "v"),
    ] {
        let (_world, cli, at) = planned(&base);
        sql(&inner(&cli), inside);
        cli.ok("commit try");
        sql(&at, since);
        let before = dump(&at);
        let refused = cli.run("undo try --json");
        assert_eq!(refused.status, 4, "{inside}: {}", talk(&refused));
        let document: Value = serde_json::from_slice(&refused.stdout).expect("one document");
        assert_eq!(document["conflicts"][0]["path"], item, "{document}");
        assert_eq!(dump(&at), before, "{inside}");
    }
}

/// `VACUUM` gives rows other numbers, and changes nothing.
// rule C13, Q2
#[test]
fn a_vacuum_of_the_original_was_a_change_of_tables_that_are_brought_over_as_a_whole() {
    for columns in ["a, b", "a TEXT PRIMARY KEY, b"] {
        let (_world, cli, at) = planned(&format!(
            "CREATE TABLE t ({columns}); INSERT INTO t VALUES ('x', 1), ('y', 2), ('z', 3); DELETE FROM t WHERE a = 'x'"
        ));
        sql(
            &inner(&cli),
            "ALTER TABLE t ADD COLUMN c DEFAULT 5; DELETE FROM t WHERE a = 'y'",
        );
        sql(&at, "VACUUM");
        cli.ok("commit try");
        assert_eq!(sql(&at, "SELECT * FROM t"), "z|3|5", "{columns}");
        sql(&at, "VACUUM");
        cli.ok("undo try");
        assert_eq!(
            sql(&at, "SELECT * FROM t ORDER BY a"),
            "y|2\nz|3",
            "{columns}"
        );
    }
}

// rule C6, C15
#[test]
fn what_is_released_does_not_wait_for_a_table_that_the_original_altered() {
    for outside in ["ALTER TABLE t ADD COLUMN y", "DROP TABLE t"] {
        let (_world, cli, at) = planned(&format!("{TABLE} CREATE TABLE o (x)"));
        sql(&inner(&cli), "UPDATE t SET x = 3; INSERT INTO o VALUES (5)");
        sql(&at, outside);
        assert_eq!(cli.run("commit try").status, 4);
        cli.ok("commit try --on-conflict original");
        assert_eq!(sql(&at, "SELECT x FROM o"), "5");
    }
}

/// A full-text table is rebuilt where what it is about was changed, and keeps nothing else from being released.
// rule C11, Q2
#[test]
fn a_full_text_table_without_its_source_keeps_nothing_from_being_released() {
    let text = "CREATE TABLE d (id INTEGER PRIMARY KEY, t); CREATE VIRTUAL TABLE f USING fts5(t, content = 'd', content_rowid='id');";
    let (_world, cli, at) = planned(&format!("{text} DROP TABLE d; CREATE TABLE o (x)"));
    sql(&inner(&cli), "INSERT INTO o VALUES (1)");
    cli.ok("commit try");
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT count(*) FROM o"), "0");
    // The source has no longer what it needs.
    let (_world, cli, at) = planned(&format!(
        "{text} INSERT INTO d VALUES (1, 'hello'); INSERT INTO f(f) VALUES ('rebuild')"
    ));
    sql(&inner(&cli), "ALTER TABLE d RENAME COLUMN t TO u");
    let shown = json(&cli, "commit try --dry-run");
    let notes = &shown["resources"][0]["notes"];
    assert_eq!(notes[0]["path"], "f", "{shown}");
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT u FROM d"), "hello");
    cli.ok("undo try");
    let (_world, cli, at) = planned(&format!("{text} CREATE TABLE o (x)"));
    let work = inner(&cli);
    sql(
        &work,
        "INSERT INTO d VALUES (1, 'hello'); INSERT INTO f(f) VALUES ('rebuild'); INSERT INTO o VALUES (1)",
    );
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT rowid FROM f WHERE f MATCH 'hello'"), "1");
}

/// A dropped index is no rule of the original any more.
// rule Q2
#[test]
fn rows_that_share_a_value_came_never_with_the_drop_of_the_index_that_kept_it_unique() {
    let base = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); CREATE UNIQUE INDEX u ON t (v); CREATE UNIQUE INDEX other ON t (v, id);
        INSERT INTO t VALUES (1, 'a')";
    for made in ["", "CREATE INDEX u ON t (v);"] {
        let (_world, cli, at) = planned(base);
        let inside = format!("DROP INDEX u; {made} INSERT INTO t VALUES (2, 'a')");
        sql(&inner(&cli), &inside);
        cli.ok("commit try");
        assert_eq!(sql(&at, "SELECT count(*) FROM t WHERE v = 'a'"), "2");
        cli.ok("undo try");
        let unique =
            "SELECT count(*) || \"unique\" FROM t, pragma_index_list('t') WHERE name = 'u'";
        assert_eq!(sql(&at, unique), "11");
    }
    // One that stays is.
    let (_world, cli, at) = planned(&base.replace("(v, id)", "(v)"));
    sql(&inner(&cli), "DROP INDEX u; INSERT INTO t VALUES (2, 'b')");
    sql(&at, "INSERT INTO t VALUES (3, 'b')");
    assert_eq!(conflicts(&cli)[0].0, "t/2");
}
