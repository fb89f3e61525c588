//! What `--on-conflict original` would tear apart: a change of a row without a key, and a migration.

use crate::sqlite::{conflicts, dump, inner, planned, sql, talk};
use crate::*;

/// `original` is refused, also with its old name, and says what to do; `sandbox` is what the last argument says.
#[track_caller]
fn refused(cli: &Cli, at: &Path, item: &str, why: &str) {
    let before = dump(at);
    let found = conflicts(cli);
    let one = found.iter().find(|(path, _)| path.starts_with(item));
    let (_, what) = one.unwrap_or_else(|| panic!("{found:?}"));
    assert!(what.contains(why), "{found:?}");
    for word in ["original", "theirs"] {
        let refused = cli.run(format!("commit try --on-conflict {word}"));
        assert_eq!(refused.status, 4, "{}", talk(&refused));
        has(
            &talk(&refused),
            [
                "change it in the sandbox or in the original",
                "nothing was changed",
            ],
        );
        assert_eq!(dump(at), before);
    }
}

/// The row that is changed has no key: its new version is a conflict, and its old one went all the same.
// rule C1, C15, Q2
#[test]
fn a_row_without_a_key_was_removed_though_the_original_was_to_be_kept() {
    as_user_too();
    let table = "CREATE TABLE t (u UNIQUE, v); INSERT INTO t VALUES ('x', 1), ('y', 2)";
    let (_world, cli, at) = planned(table);
    sql(&inner(&cli), "UPDATE t SET u = 'z' WHERE u = 'x'");
    sql(&at, "INSERT INTO t VALUES ('z', 9)");
    refused(&cli, &at, "t/", "the row has no key");
    // Once it is changed as the hint says, the commit goes on.
    sql(&at, "DELETE FROM t WHERE v = 9");
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT u, v FROM t ORDER BY v"), "z|1\ny|2");
    // Both changed one row: the sandbox's new row came beside that of the original.
    let (_world, cli, at) = planned("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 1), (2, 2)");
    sql(&inner(&cli), "UPDATE t SET b = 5 WHERE a = 1");
    sql(&at, "UPDATE t SET b = 7 WHERE a = 1");
    refused(&cli, &at, "t/", "the row has no key");
    // What was only removed is no half.
    let (_world, cli, at) = planned("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 1), (2, 2)");
    sql(&inner(&cli), "DELETE FROM t WHERE a = 1");
    sql(&at, "UPDATE t SET b = 7 WHERE a = 1");
    cli.ok("commit try --on-conflict original");
    assert_eq!(sql(&at, "SELECT * FROM t ORDER BY a"), "1|7\n2|2");
}

/// The table that a migration altered stayed as it was, and the row that says that the migration ran was committed.
// rule C1, C15, Q2
#[test]
fn a_migration_was_committed_without_the_table_that_it_altered() {
    as_user_too();
    let base =
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name); INSERT INTO users VALUES (1, 'ann');
        CREATE TABLE django_migrations (id INTEGER PRIMARY KEY, name)";
    let migrated = "ALTER TABLE users ADD COLUMN handle; INSERT INTO django_migrations VALUES (1, '0002_handle')";
    let (_world, cli, at) = planned(base);
    sql(&inner(&cli), migrated);
    sql(&at, "ALTER TABLE users ADD COLUMN other");
    refused(&cli, &at, "users", "the rest of a migration");
    cli.ok("commit try --on-conflict sandbox");
    assert_eq!(
        sql(&at, "SELECT name FROM django_migrations"),
        "0002_handle"
    );
    assert_eq!(sql(&at, "SELECT handle FROM users"), "");
    cli.ok("undo try");
    // Where nothing else would be committed, the original's can be kept.
    let (_world, cli, at) = planned(base);
    sql(&inner(&cli), "ALTER TABLE users ADD COLUMN handle");
    sql(&at, "ALTER TABLE users ADD COLUMN other");
    let before = dump(&at);
    cli.ok("commit try --on-conflict original");
    assert_eq!(dump(&at), before);
}
