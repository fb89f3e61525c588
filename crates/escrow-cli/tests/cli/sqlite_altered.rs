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
    sql(&inner(&cli), "UPDATE users SET mail = 'A@y' WHERE id = 1");
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
        // What the sandbox deleted comes back without what it had in the new column.
        (
            "theirs",
            "1|ann|z@x|@ann\n2|bob|b@x|@bob\n3|CID|C|@cid\n4|dan|D|",
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
    for (altered, theirs) in [
        (
            "ALTER TABLE users ADD COLUMN other; CREATE UNIQUE INDEX one_mail ON users (mail)",
            "INSERT INTO users VALUES (8, 'x', 'a@x')",
        ),
        (
            "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT NOT NULL, mail TEXT); INSERT INTO n SELECT * FROM users;
             DROP TABLE users; ALTER TABLE n RENAME TO users",
            "UPDATE users SET name = NULL WHERE id = 2",
        ),
        (
            "CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, mail TEXT, more CHECK (mail LIKE '%x')); \
             INSERT INTO n SELECT *, NULL FROM users; DROP TABLE users; ALTER TABLE n RENAME TO users",
            "UPDATE users SET mail = 'nothing' WHERE id = 2",
        ),
    ] {
        let (_world, cli, at) = planned(USERS);
        sql(&inner(&cli), altered);
        sql(&at, theirs);
        let before = dump(&at);
        for how in ["commit try --dry-run", "commit try"] {
            let said = cli.run(how);
            assert_eq!(said.status, 4, "{altered}: {}", talk(&said));
            assert!(talk(&said).contains("users"), "{}", talk(&said));
        }
        assert_eq!(dump(&at), before);
        assert_eq!(sql(&inner(&cli), "PRAGMA integrity_check"), "ok");
        assert_eq!(cli.run("commit try --on-conflict ours").status, 4);
        // Without the table nothing is left to release.
        cli.ok("commit try --on-conflict theirs");
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
    ];
    for altered in inside {
        let (_world, cli, at) = planned(USERS);
        sql(&inner(&cli), altered);
        sql(&at, "UPDATE users SET name = 'bobby' WHERE id = 2");
        let before = dump(&at);
        let found = conflicts(&cli);
        assert_eq!(found[0].0, "users", "{altered}: {found:?}");
        assert_eq!(dump(&at), before);
        cli.ok("commit try --on-conflict ours");
        cli.ok("undo try");
        assert_eq!(sorted(&dump(&at)), sorted(&before));
    }
    // Both altered it.
    let (_world, cli, at) = planned(USERS);
    sql(&inner(&cli), MIGRATED);
    sql(&at, "ALTER TABLE users ADD COLUMN theirs");
    assert_eq!(conflicts(&cli)[0].0, "users");
}
