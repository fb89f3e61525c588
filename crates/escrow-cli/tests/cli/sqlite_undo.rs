//! An undo where another program changed rows that have nothing but their content.

use crate::sqlite::{inner, planned, sql, talk, unplanned};
use crate::*;

/// Tables whose rows have no key, and one in which the key of a row is NULL.
const TABLES: [(&str, &str); 2] = [
    (
        "CREATE TABLE t (name, n); INSERT INTO t VALUES ('ann', 1), ('bob', 1), ('bob', 1);",
        "t/4",
    ),
    (
        "CREATE TABLE t (name, n, k TEXT PRIMARY KEY); INSERT INTO t (name, n) VALUES ('ann', 1), ('bob', 1), ('bob', 1);",
        "t/4",
    ),
];

#[track_caller]
fn refused(cli: &Cli, item: &str) {
    let said = cli.run("undo try");
    assert_eq!(said.status, 4, "{}", talk(&said));
    assert!(talk(&said).contains(item), "{}", talk(&said));
}

const ALL: &str = "SELECT group_concat(name || n) FROM (SELECT name, n FROM t ORDER BY name, n)";

// rule C11, Q2
#[test]
fn an_undo_put_an_old_row_without_a_key_beside_the_one_that_another_program_had_made_of_it() {
    for (table, item) in TABLES {
        for (theirs, left) in [
            ("UPDATE t SET n = 3 WHERE name = 'ann'", "ann3,bob1,bob1"),
            ("DELETE FROM t WHERE name = 'ann'", "bob1,bob1"),
        ] {
            let (_world, cli, at) = planned(table);
            sql(&inner(&cli), "UPDATE t SET n = 2 WHERE name = 'ann'");
            cli.ok("commit try");
            sql(&at, theirs);
            refused(&cli, item);
            assert_eq!(sql(&at, ALL), left);
            // Once it is as it was committed, the undo goes on; wherever the row is.
            sql(
                &at,
                "DELETE FROM t WHERE name = 'ann'; INSERT INTO t (name, n) VALUES ('ann', 2); VACUUM",
            );
            cli.ok("undo try");
            assert_eq!(sql(&at, ALL), "ann1,bob1,bob1");
        }
    }
}

/// Equal rows are counted: one that another program took is missed, one that it added is as good.
// rule C11, Q2
#[test]
fn an_undo_took_equal_rows_that_were_gone_for_undone() {
    for (table, _) in TABLES {
        let (_world, cli, at) = planned(table);
        sql(&inner(&cli), "UPDATE t SET n = 2 WHERE name = 'bob'");
        cli.ok("commit try");
        sql(
            &at,
            "UPDATE t SET n = 9 WHERE rowid = (SELECT min(rowid) FROM t WHERE name = 'bob')",
        );
        refused(&cli, "t/");
        assert_eq!(sql(&at, ALL), "ann1,bob2,bob9");
        sql(&at, "INSERT INTO t (name, n) VALUES ('bob', 2)");
        cli.ok("undo try");
        assert_eq!(sql(&at, ALL), "ann1,bob1,bob1,bob9");
    }
}

// rule C11, Q2
#[test]
fn an_undo_of_a_held_transaction_put_an_old_row_beside_a_new_one() {
    let (_world, cli, at) = unplanned(TABLES[0].0);
    cli.ok("plan create try --resource data/app.db --strategy transaction_rollback");
    let change = "UPDATE t SET n = 2 WHERE name = 'ann'";
    cli.ok(["sql", "try", "app.db", change]);
    cli.ok("commit try");
    sql(&at, "UPDATE t SET n = 3 WHERE name = 'ann'");
    refused(&cli, "t/4");
    assert_eq!(sql(&at, ALL), "ann3,bob1,bob1");
    sql(&at, change);
    cli.ok("undo try");
    assert_eq!(sql(&at, ALL), "ann1,bob1,bob1");
}
