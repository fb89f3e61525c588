//! Tables whose own SQL the sandbox changed, while the original's rows were changed: they are merged by row and column, too.

use crate::sqlite::{conflicts, dump, inner, planned, sorted, sql, talk};

const USERS: &str = "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, mail TEXT);
    INSERT INTO users VALUES (1, 'ann', 'a@x'), (2, 'bob', 'b@x'), (3, 'cid', 'c@x'), (4, 'dan', 'd@x');
    CREATE TABLE orders (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users);
    INSERT INTO orders VALUES (1, 1);";

/// What a migration does: a new column that is filled, and an index.
const MIGRATED: &str =
    "ALTER TABLE users ADD COLUMN handle TEXT; UPDATE users SET handle = '@' || name;
    CREATE INDEX by_handle ON users (handle)";

/// A table that the sandbox altered was one conflict with any row of it that the original changed.
// rule Q2, C15
#[test]
fn a_migration_was_in_conflict_with_every_row_of_the_original() {
    let (_world, cli, at) = planned(USERS);
    sql(&inner(&cli), MIGRATED);
    sql(
        &inner(&cli),
        "UPDATE users SET mail = 'A@y' WHERE id = 1; UPDATE users SET handle = NULL WHERE id = 3",
    );
    sql(
        &at,
        "UPDATE users SET name = 'anna' WHERE id = 1; UPDATE users SET mail = 'B@x' WHERE id = 2; DELETE FROM users WHERE id = 3; \
         INSERT INTO users VALUES (9, 'eve', 'e@x'); INSERT INTO orders VALUES (2, 9)",
    );
    let before = dump(&at);
    cli.ok("commit try --dry-run");
    assert_eq!(dump(&at), before);
    cli.ok("commit try");
    let wanted = "1|anna|A@y|@ann\n2|bob|B@x|@bob\n4|dan|d@x|@dan\n9|eve|e@x|";
    assert_eq!(sql(&at, "SELECT * FROM users"), wanted);
    assert_eq!(sql(&at, "SELECT * FROM orders"), "1|1\n2|9");
    let checked = sql(&at, "PRAGMA integrity_check; PRAGMA foreign_key_check");
    assert_eq!(checked, "ok");
    // What the original had is back, with what came there meanwhile.
    cli.ok("undo try");
    assert_eq!(sorted(&dump(&at)), sorted(&before));
}

/// Where both changed one column of a row, the row is named, and either side can be taken.
// rule Q2, C15
#[test]
fn a_row_that_both_changed_is_a_conflict_in_an_altered_table_too() {
    for (side, wanted) in [
        ("ours", "1|ann|A@x|@ann\n2|bob|b@x|@bob\n3|CID|C|@cid"),
        // Nothing of the sandbox is in what is left to the original.
        (
            "theirs",
            "1|ann|z@x|\n2|bob|b@x|@bob\n3|CID|C|@cid\n4|dan|D|",
        ),
    ] {
        let (_world, cli, at) = planned(USERS);
        sql(&inner(&cli), MIGRATED);
        sql(
            &inner(&cli),
            "UPDATE users SET mail = 'A@x' WHERE id = 1; UPDATE users SET mail = 'C', name = 'cid' WHERE id = 3; DELETE FROM users WHERE id = 4",
        );
        sql(
            &at,
            "UPDATE users SET mail = 'z@x' WHERE id = 1; UPDATE users SET mail = 'D' WHERE id = 4; \
             UPDATE users SET name = 'CID', mail = 'c@x' WHERE id = 3",
        );
        let before = dump(&at);
        let found = conflicts(&cli);
        let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["users/1", "users/4"], "{found:?}");
        assert!(found[0].1.contains("mail"), "{found:?}");
        assert_eq!(dump(&at), before);
        cli.ok(format!("commit try --on-conflict {side}"));
        assert_eq!(sql(&at, "SELECT * FROM users"), wanted, "{side}");
        assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
        cli.ok("undo try");
        assert_eq!(sorted(&dump(&at)), sorted(&before));
    }
}

/// What the new definition does not allow is named by its row, before anything is written.
// rule Q2, C1
#[test]
fn a_row_of_the_original_that_the_new_table_does_not_take_is_named() {
    for (altered, theirs, row) in [
        (
            "ALTER TABLE users ADD COLUMN other; CREATE UNIQUE INDEX one_mail ON users (mail)",
            "INSERT INTO users VALUES (8, 'x', 'a@x')",
            "users/8",
        ),
        (
            "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT NOT NULL, mail TEXT); INSERT INTO n SELECT * FROM users;
             DROP TABLE users; ALTER TABLE n RENAME TO users",
            "UPDATE users SET name = NULL WHERE id = 2",
            "users/2",
        ),
        (
            "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, mail TEXT, more CHECK (mail LIKE '%x')); \
             INSERT INTO n SELECT *, NULL FROM users; DROP TABLE users; ALTER TABLE n RENAME TO users",
            "UPDATE users SET mail = 'nothing' WHERE id = 2",
            "users/2",
        ),
    ] {
        let (_world, cli, at) = planned(USERS);
        sql(&inner(&cli), altered);
        sql(&at, theirs);
        let before = dump(&at);
        for how in ["commit try --dry-run", "commit try"] {
            let said = cli.run(how);
            assert_eq!(said.status, 4, "{altered}: {}", talk(&said));
            assert!(talk(&said).contains(row), "{}", talk(&said));
        }
        assert_eq!(dump(&at), before);
        assert_eq!(sql(&inner(&cli), "PRAGMA integrity_check"), "ok");
        assert_eq!(cli.run("commit try --on-conflict sandbox").status, 4);
        // Without the table nothing is left to release.
        cli.ok("commit try --on-conflict original");
        assert_eq!(dump(&at), before);
    }
}

/// Where the rows of the two versions cannot be told to be the same, the table stays one conflict.
// rule Q2
#[test]
fn what_cannot_be_matched_by_row_is_a_conflict_of_the_table() {
    let inside = [
        "ALTER TABLE users DROP COLUMN mail",
        "ALTER TABLE users RENAME COLUMN mail TO email",
        "CREATE TABLE n (name TEXT PRIMARY KEY, id, mail TEXT); INSERT INTO n SELECT name, id, mail FROM users; DROP TABLE users;
         ALTER TABLE n RENAME TO users",
        // What is stored in another way is another value.
        "CREATE TABLE n (id INTEGER PRIMARY KEY, name INTEGER, mail TEXT); INSERT INTO n SELECT * FROM users; DROP TABLE users;
         ALTER TABLE n RENAME TO users",
        "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, mail TEXT); INSERT INTO n SELECT * FROM users; \
         DROP TABLE users; ALTER TABLE n RENAME TO users",
        "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, mail TEXT) WITHOUT ROWID; INSERT INTO n SELECT * FROM users; \
         DROP TABLE users; ALTER TABLE n RENAME TO users",
    ];
    for altered in inside {
        let (_world, cli, at) = planned(USERS);
        sql(&inner(&cli), altered);
        sql(&at, "UPDATE users SET name = 'bobby' WHERE id = 2");
        let before = dump(&at);
        let found = conflicts(&cli);
        assert_eq!(found[0].0, "users", "{altered}: {found:?}");
        assert!(
            found[0]
                .1
                .ends_with("its rows (0 added, 1 changed, 0 deleted)"),
            "{found:?}"
        );
        assert_eq!(dump(&at), before);
        cli.ok("commit try --on-conflict sandbox");
        cli.ok("undo try");
        assert_eq!(sorted(&dump(&at)), sorted(&before));
    }
    // Both altered it.
    let (_world, cli, at) = planned(USERS);
    sql(&inner(&cli), MIGRATED);
    sql(&at, "ALTER TABLE users ADD COLUMN theirs");
    assert_eq!(conflicts(&cli)[0].0, "users");
}

/// Keys and values that the new form turns into others, or that it no longer computes, are no case for it.
// rule Q2, Q4
#[test]
fn values_of_the_original_were_stored_as_the_sandbox_stores_them() {
    for (base, inside, outside) in [
        (
            "CREATE TABLE t (k TEXT PRIMARY KEY, a); INSERT INTO t VALUES ('1', 'x'), ('2', 'y')",
            "CREATE TABLE n (k INT PRIMARY KEY, a, c); INSERT INTO n SELECT k, a, 0 FROM t; DROP TABLE t; ALTER TABLE n RENAME TO t",
            "DELETE FROM t WHERE k = '1'",
        ),
        (
            "CREATE TABLE t (k INTEGER PRIMARY KEY, q, p, total AS (q * p) STORED); INSERT INTO t (q, p) VALUES (2, 3)",
            "CREATE TABLE n (k INTEGER PRIMARY KEY, q, p, total); INSERT INTO n SELECT * FROM t; DROP TABLE t; ALTER TABLE n RENAME TO t",
            "INSERT INTO t (q, p) VALUES (5, 6); UPDATE t SET q = 10 WHERE k = 1",
        ),
    ] {
        let (_world, cli, at) = planned(base);
        sql(&inner(&cli), inside);
        sql(&at, outside);
        let before = dump(&at);
        assert_eq!(conflicts(&cli)[0].0, "t", "{inside}");
        assert_eq!(dump(&at), before);
    }
}

/// What a sandbox wrote into a new column is not dropped with a row that the original deleted; a default is.
// rule Q2, C15
#[test]
fn a_value_of_a_new_column_went_with_a_row_that_the_original_deleted() {
    let (_world, cli, at) = planned(USERS);
    sql(
        &inner(&cli),
        "ALTER TABLE users ADD COLUMN role TEXT NOT NULL DEFAULT 7; UPDATE users SET role = 'chief' WHERE id = 2",
    );
    sql(&at, "DELETE FROM users WHERE id IN (2, 3)");
    let found = conflicts(&cli);
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["users/2"], "{found:?}");
    cli.ok("commit try --on-conflict sandbox");
    let wanted = "1|7\n2|chief\n4|7";
    assert_eq!(sql(&at, "SELECT id, role FROM users"), wanted);
}

/// What refers to rows that the other side deleted is found, whichever of the tables were altered.
// rule Q2, C15
#[test]
fn rows_that_refer_to_nothing_were_released_with_an_altered_table() {
    let base = "CREATE TABLE p (id INTEGER PRIMARY KEY, a); CREATE TABLE ch (id INTEGER PRIMARY KEY, p REFERENCES p (id));
        CREATE TABLE t (id INTEGER PRIMARY KEY, up REFERENCES t (id));
        INSERT INTO p VALUES (1, 'x'), (2, 'y'); INSERT INTO t VALUES (1, NULL), (2, 1)";
    let (alter_p, alter_ch, alter_t) = (
        "ALTER TABLE p ADD COLUMN c;",
        "ALTER TABLE ch ADD COLUMN c;",
        "ALTER TABLE t ADD COLUMN c;",
    );
    let (child, gone) = (
        "INSERT INTO ch (id, p) VALUES (1, 2)",
        "DELETE FROM p WHERE id = 2",
    );
    let (own, root) = (
        "INSERT INTO t (id, up) VALUES (3, 2)",
        "DELETE FROM t WHERE id = 2",
    );
    for (inside, outside) in [
        (format!("{alter_p} {child}"), gone),
        (format!("{alter_ch} {child}"), gone),
        (format!("{alter_ch} {gone}"), child),
        (format!("{alter_p} {gone}"), child),
        (format!("{alter_p} {alter_ch} {child}"), gone),
        (format!("{alter_p} {alter_ch} {gone}"), child),
        (format!("{alter_t} {own}"), root),
        (format!("{alter_t} {root}"), own),
    ] {
        let (_world, cli, at) = planned(base);
        sql(&inner(&cli), &inside);
        sql(&at, outside);
        let before = dump(&at);
        let found = conflicts(&cli);
        assert!(
            found.iter().any(|(_, what)| what.contains("refers to")),
            "{inside}: {found:?}"
        );
        assert_eq!(
            cli.run("commit try --on-conflict sandbox").status,
            4,
            "{inside}"
        );
        assert_eq!(dump(&at), before);
    }
    // A reference that the migration adds is none that the original had.
    for outside in [gone, "INSERT INTO more VALUES (3, 99)"] {
        let (_world, cli, at) = planned(&format!(
            "{base}; CREATE TABLE more (id INTEGER PRIMARY KEY, p); INSERT INTO more VALUES (1, 1), (2, 2)"
        ));
        sql(
            &inner(&cli),
            "CREATE TABLE n (id INTEGER PRIMARY KEY, p REFERENCES p (id)); INSERT INTO n SELECT * FROM more; DROP TABLE more; \
             ALTER TABLE n RENAME TO more",
        );
        sql(&at, outside);
        assert_eq!(conflicts(&cli)[0].0, "more", "{outside}");
    }
    // The original has a row that refers to nothing; the sandbox added another one.
    let (_world, cli, at) = planned(&format!("{base}; INSERT INTO ch VALUES (2, 2)"));
    sql(
        &inner(&cli),
        &format!("{alter_ch} INSERT INTO ch VALUES (9, 2, 0)"),
    );
    sql(&at, gone);
    assert_eq!(conflicts(&cli)[0].0, "ch");
    sql(&inner(&cli), "DELETE FROM ch WHERE id = 9");
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT id, p FROM ch"), "2|2");
    // What the sandbox itself left so is intended.
    let (_world, cli, at) = planned(base);
    sql(
        &inner(&cli),
        &format!("{alter_p} {gone}; INSERT INTO ch VALUES (4, 2)"),
    );
    sql(&at, "UPDATE p SET a = 'z' WHERE id = 1");
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT * FROM p; SELECT * FROM ch"), "1|z|\n4|2");
}

/// A row that is there keeps its number; a new one took it first.
// rule Q2
#[test]
fn a_new_row_of_the_original_took_the_number_of_another() {
    let (_world, cli, at) =
        planned("CREATE TABLE t (k TEXT PRIMARY KEY, a); INSERT INTO t VALUES ('a', 1), ('c', 2)");
    sql(&inner(&cli), "ALTER TABLE t ADD COLUMN c DEFAULT 0");
    sql(
        &at,
        "INSERT INTO t VALUES ('b', 3); UPDATE t SET a = 9 WHERE k = 'c'",
    );
    cli.ok("commit try");
    assert_eq!(
        sql(&at, "SELECT * FROM t ORDER BY k"),
        "a|1|0\nb|3|0\nc|9|0"
    );
}

/// More than fits into the memory of a connection waited for the lock of the commit's own reader, page by page.
// rule S5
#[test]
fn a_large_table_that_both_sides_changed_made_a_commit_wait_for_itself() {
    let (_world, cli, at) = planned(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b); WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000)
         INSERT INTO t SELECT i, hex(randomblob(500)), 0 FROM n",
    );
    sql(&inner(&cli), "ALTER TABLE t ADD COLUMN c DEFAULT 3");
    sql(&at, "UPDATE t SET b = 1");
    let begun = std::time::Instant::now();
    cli.ok("commit try");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
    assert_eq!(sql(&at, "SELECT sum(b), sum(c) FROM t"), "4000|12000");
}

/// With `theirs` a row of which the diff says nothing took the whole migration of its table along, unnamed.
// rule Q2, C10
#[test]
fn a_row_that_is_left_to_the_original_leaves_the_migration() {
    let (_world, cli, at) =
        planned("CREATE TABLE d (id INTEGER PRIMARY KEY, x); INSERT INTO d VALUES (5, 1), (6, 1)");
    sql(
        &inner(&cli),
        "ALTER TABLE d ADD COLUMN n DEFAULT 5; UPDATE d SET n = NULL WHERE id = 5; UPDATE d SET x = 9 WHERE id = 6",
    );
    sql(&at, "DELETE FROM d WHERE id = 5");
    cli.ok("commit try --on-conflict original");
    assert_eq!(sql(&at, "SELECT * FROM d"), "6|9|5");
}

/// The row of the sandbox lent its new columns to the original's row of the same key.
// rule Q2, C10
#[test]
fn a_row_that_is_left_to_the_original_has_nothing_of_the_sandbox() {
    let (_world, cli, at) =
        planned("CREATE TABLE c (id INTEGER PRIMARY KEY, name); INSERT INTO c VALUES (1, 'a')");
    sql(
        &inner(&cli),
        "ALTER TABLE c ADD COLUMN iban TEXT DEFAULT 'none'; INSERT INTO c VALUES (2, 'mine', 'DE-MINE')",
    );
    sql(&at, "INSERT INTO c VALUES (2, 'theirs')");
    assert_eq!(conflicts(&cli)[0].0, "c/2");
    cli.ok("commit try --on-conflict original");
    assert_eq!(sql(&at, "SELECT * FROM c"), "1|a|none\n2|theirs|none");
}

/// The row that lost what it refers to is named, not the altered table, and can be left out.
// rule Q2, C15
#[test]
fn a_row_of_the_sandbox_was_taken_for_one_of_the_original() {
    let (_world, cli, at) = planned(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, a); CREATE TABLE ch (id INTEGER PRIMARY KEY, p REFERENCES p (id)); \
         INSERT INTO p VALUES (1, 'x'), (2, 'y')",
    );
    sql(
        &inner(&cli),
        "ALTER TABLE p ADD COLUMN c; INSERT INTO ch VALUES (9, 2)",
    );
    sql(&at, "DELETE FROM p WHERE id = 2");
    let found = conflicts(&cli);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "ch/9");
    cli.ok("commit try --on-conflict original --dry-run");
    cli.ok("commit try --on-conflict original");
    assert_eq!(sql(&at, "SELECT * FROM p; SELECT * FROM ch"), "1|x|");
}
