//! What a commit or an undo would break in the original as it is now: rows that refer to nothing, and constraints of SQLite. All of it is a
//! conflict, and nothing is changed.

use crate::sqlite::{Waiting, conflicts, dump, inner, planned, sorted, sql, talk, unplanned};
use crate::*;

const PARENTS: &str =
    "CREATE TABLE p (id INTEGER PRIMARY KEY, n); INSERT INTO p VALUES (1, 'a'), (2, 'b');";
const CHILDREN: &str = "CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p(id));";

/// Commits are refused as conflicts, also where the sandbox's version is wanted, and leave the original as it is.
#[track_caller]
fn refused(cli: &Cli, at: &Path, wanted: &[(&str, &str)]) {
    let before = dump(at);
    let found = conflicts(cli);
    let found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    assert_eq!(found, wanted);
    let ours = cli.run("commit try --on-conflict sandbox");
    let said = talk(&ours);
    assert_eq!(ours.status, 4, "{said}");
    assert!(said.contains(wanted[0].0), "{said}");
    assert!(!said.contains("can be run again"), "{said}");
    assert_eq!(dump(at), before);
    assert_eq!(sql(at, "PRAGMA foreign_key_check"), "");
}

// rule Q2
#[test]
fn a_new_table_does_not_refer_to_a_row_that_the_original_deleted() {
    let (_world, cli, at) = planned(PARENTS);
    sql(
        &inner(&cli),
        &format!("{CHILDREN} INSERT INTO c VALUES (1, 2)"),
    );
    sql(&at, "DELETE FROM p WHERE id = 2");
    let what = "its row c/1 refers to a row of p that the original deleted";
    refused(&cli, &at, &[("c", what)]);
    let theirs = cli.run("commit try --on-conflict original");
    assert_eq!(theirs.status, 0, "{}", talk(&theirs));
    assert_eq!(sql(&at, "SELECT name FROM sqlite_schema"), "p");
}

// rule Q2
#[test]
fn an_altered_table_does_not_refer_to_a_row_that_the_original_deleted() {
    let (_world, cli, at) = planned(&format!("{PARENTS} {CHILDREN}"));
    sql(
        &inner(&cli),
        "ALTER TABLE c ADD COLUMN z; INSERT INTO c VALUES (1, 2, 0)",
    );
    sql(&at, "DELETE FROM p WHERE id = 2");
    let what = "its row c/1 refers to a row of p that the original deleted";
    refused(&cli, &at, &[("c", what)]);
    // The reference itself is new.
    let (_world, cli, at) = planned(&format!(
        "{PARENTS} CREATE TABLE c (id INTEGER PRIMARY KEY)"
    ));
    sql(
        &inner(&cli),
        "ALTER TABLE c ADD COLUMN p INTEGER REFERENCES p(id); INSERT INTO c VALUES (1, 2)",
    );
    sql(&at, "DELETE FROM p WHERE id = 2");
    refused(&cli, &at, &[("c", what)]);
}

// rule Q2
#[test]
fn an_altered_or_dropped_table_leaves_no_row_that_refers_to_what_was_in_it() {
    for inside in [
        "ALTER TABLE p ADD COLUMN z; DELETE FROM p WHERE id = 2",
        "DROP TABLE p",
    ] {
        let (_world, cli, at) = planned(&format!("{PARENTS} {CHILDREN}"));
        sql(&inner(&cli), inside);
        sql(&at, "INSERT INTO c VALUES (1, 2)");
        let what = "c/1 of the original refers to a row of it that is gone here";
        refused(&cli, &at, &[("p", what)]);
    }
}

// rule Q2
#[test]
fn the_sandboxs_version_of_a_row_is_no_way_to_break_a_reference_or_a_unique_value() {
    let (_world, cli, at) = planned(&format!("{PARENTS} {CHILDREN}"));
    sql(&inner(&cli), "DELETE FROM p WHERE id = 2");
    sql(&at, "INSERT INTO c VALUES (1, 2)");
    let what = "the original added a row of c that refers to it";
    refused(&cli, &at, &[("p/2", what)]);
    let (_world, cli, at) = planned(&format!("{PARENTS} {CHILDREN}"));
    sql(&inner(&cli), "INSERT INTO c VALUES (1, 2)");
    sql(&at, "DELETE FROM p WHERE id = 2");
    let what = "it refers to a row of p that the original deleted";
    refused(&cli, &at, &[("c/1", what)]);
    let (_world, cli, at) = planned("CREATE TABLE u (id INTEGER PRIMARY KEY, n UNIQUE)");
    sql(&inner(&cli), "INSERT INTO u VALUES (1, 'x')");
    sql(&at, "INSERT INTO u VALUES (2, 'x')");
    let what = "the original has another row with the same n, which must be unique";
    refused(&cli, &at, &[("u/1", what)]);
    // A table that only the original has, and a column that it moved to the row that goes.
    let (_world, cli, at) = planned(&format!("{PARENTS} {CHILDREN} INSERT INTO c VALUES (1, 1)"));
    sql(&inner(&cli), "DELETE FROM p WHERE id = 2");
    sql(
        &at,
        "CREATE TABLE d (id INTEGER PRIMARY KEY, p REFERENCES p); INSERT INTO d VALUES (1, 2)",
    );
    let what = "the original added a row of d that refers to it";
    refused(&cli, &at, &[("p/2", what)]);
}

// rule Q2
#[test]
fn a_column_of_the_original_that_is_merged_into_a_row_leads_somewhere() {
    let columns = "CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p(id), n);";
    let (_world, cli, at) = planned(&format!(
        "{PARENTS} {columns} INSERT INTO c VALUES (1, 1, 'x')"
    ));
    sql(
        &inner(&cli),
        "UPDATE c SET n = 'y'; DELETE FROM p WHERE id = 2",
    );
    sql(&at, "UPDATE c SET p = 2");
    let what = "it refers to a row of p that the original deleted";
    refused(&cli, &at, &[("c/1", what)]);
}

/// Also among many, without an index, and with a key of several columns.
// rule Q2
#[test]
fn a_row_that_refers_to_one_of_many_that_go_is_found() {
    let many = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)";
    let (_world, cli, at) = planned(&format!(
        "CREATE TABLE p (a, b, PRIMARY KEY (a, b)) WITHOUT ROWID; {many} INSERT INTO p SELECT i, 'x' FROM n;
         CREATE TABLE c (id INTEGER PRIMARY KEY, a, b, FOREIGN KEY (a, b) REFERENCES p)"
    ));
    sql(&inner(&cli), "DELETE FROM p; INSERT INTO p VALUES (5, 'x')");
    sql(
        &at,
        "INSERT INTO c VALUES (1, 5, 'x'), (2, 1100, 'x'), (3, 7, NULL)",
    );
    let what = "the original added a row of c that refers to it";
    refused(&cli, &at, &[("p/1100,x", what)]);
    sql(&at, "DELETE FROM c WHERE id = 2");
    cli.ok("commit try");
    cli.ok("undo try");
    assert_eq!(
        sql(&at, "SELECT count(*) FROM p; SELECT count(*) FROM c"),
        "1200\n2"
    );
}

/// What refers to what is SQLite's to say: by the type and the collation of the parent, also for computed columns.
// rule Q2
#[test]
fn references_follow_the_type_and_the_collation_of_what_they_refer_to() {
    let text = "CREATE TABLE p (n TEXT COLLATE NOCASE PRIMARY KEY); CREATE TABLE c (id INTEGER PRIMARY KEY, p TEXT REFERENCES p);";
    let number = "CREATE TABLE p (n INTEGER PRIMARY KEY); CREATE TABLE c (id INTEGER PRIMARY KEY, p TEXT REFERENCES p);";
    let computed = "CREATE TABLE p (n INTEGER PRIMARY KEY); CREATE TABLE c (id INTEGER PRIMARY KEY, j, p INTEGER AS (j) STORED REFERENCES p);";
    let on = "PRAGMA foreign_keys = ON;";
    // Together they are released and undone.
    for (base, inside) in [
        (
            text,
            "INSERT INTO p VALUES ('Bob'); INSERT INTO c VALUES (1, 'bob')",
        ),
        (
            number,
            "INSERT INTO p VALUES (1); INSERT INTO c VALUES (1, '1'), (2, '1.0')",
        ),
        (
            computed,
            "INSERT INTO p VALUES (1); INSERT INTO c (id, j) VALUES (1, 1)",
        ),
        (
            "CREATE TABLE p (n INTEGER PRIMARY KEY, up TEXT REFERENCES p)",
            "INSERT INTO p VALUES (1, NULL), (2, '1')",
        ),
        (
            "CREATE TABLE p (n INTEGER PRIMARY KEY); CREATE TABLE c (a, b, FOREIGN KEY (a, b) REFERENCES p)",
            "PRAGMA foreign_keys = OFF; INSERT INTO p VALUES (1)",
        ),
    ] {
        let (_world, cli, at) = planned(base);
        sql(&inner(&cli), &format!("{on} {inside}"));
        let done = cli.run("commit try");
        assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
        cli.ok("undo try");
        assert_eq!(sql(&at, "SELECT count(*) FROM p"), "0", "{inside}");
    }
    let (_world, cli, _) = planned(&format!(
        "{text} INSERT INTO p VALUES ('Bob'); INSERT INTO c VALUES (1, 'bob')"
    ));
    sql(&inner(&cli), "UPDATE p SET n = 'BOB'");
    cli.ok("commit try");
    cli.ok("undo try");
    // What another client made refer to it is found, in a commit and in an undo.
    for (base, row, theirs) in [
        (text, "('Bob')", "INSERT INTO c VALUES (1, 'bob')"),
        (number, "(7)", "INSERT INTO c VALUES (1, '7.0')"),
        (computed, "(1)", "INSERT INTO c (id, j) VALUES (1, 1)"),
    ] {
        let (_world, cli, at) = planned(&format!("{base} INSERT INTO p VALUES {row}"));
        sql(&inner(&cli), "DELETE FROM p");
        sql(&at, &format!("{on} {theirs}"));
        let before = dump(&at);
        for command in ["commit try", "commit try --on-conflict sandbox"] {
            let refused = cli.run(command);
            assert_eq!(refused.status, 4, "{theirs}: {}", talk(&refused));
            assert_eq!(dump(&at), before);
        }
        let (_world, cli, at) = planned(base);
        sql(&inner(&cli), &format!("INSERT INTO p VALUES {row}"));
        cli.ok("commit try");
        sql(&at, &format!("{on} {theirs}"));
        let before = dump(&at);
        let refused = cli.run("undo try");
        assert_eq!(refused.status, 4, "{theirs}: {}", talk(&refused));
        assert_eq!(dump(&at), before);
    }
}

// rule Q2
#[test]
fn what_needs_something_that_is_left_out_says_so() {
    let (_world, cli, at) = planned(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, u UNIQUE); CREATE TABLE c (id INTEGER PRIMARY KEY, a INTEGER REFERENCES p); INSERT INTO c VALUES (1, NULL)",
    );
    sql(
        &inner(&cli),
        "INSERT INTO p VALUES (10, 'x'); UPDATE c SET a = 10",
    );
    sql(&at, "INSERT INTO p VALUES (5, 'x')");
    let refused = cli.run("commit try --on-conflict original");
    let said = talk(&refused);
    assert_eq!(refused.status, 4, "{said}");
    assert!(said.contains("c/1") && said.contains("left out"), "{said}");
    assert!(!said.contains("meanwhile"), "{said}");
}

/// References that lead nowhere before, or that the sandbox leaves so, are no conflict, neither forward nor back.
// rule C13, Q2
#[test]
fn references_that_led_nowhere_before_are_released_and_undone() {
    let legacy = format!(
        "{PARENTS} {CHILDREN} CREATE TABLE o (a); CREATE TABLE e (x REFERENCES Later); INSERT INTO e VALUES (1), (2); INSERT INTO c VALUES (1, 1), (7, 77), (8, 88)"
    );
    for inside in [
        "INSERT INTO c VALUES (9, 99)",
        "DELETE FROM c WHERE id = 7; UPDATE c SET p = 2 WHERE id = 8",
        "INSERT INTO p VALUES (77, 'late')",
        "DELETE FROM p WHERE id = 1",
        "UPDATE p SET id = 3 WHERE id = 1",
        "ALTER TABLE c ADD COLUMN z; INSERT INTO c VALUES (9, 99, 0)",
        "ALTER TABLE c ADD COLUMN z; DELETE FROM c WHERE id = 7",
        "ALTER TABLE p ADD COLUMN z; INSERT INTO p VALUES (77, 'late', 0)",
        "ALTER TABLE p ADD COLUMN z; DELETE FROM p WHERE id = 1; UPDATE c SET p = 66 WHERE id = 8",
        "CREATE TABLE later (id INTEGER PRIMARY KEY); INSERT INTO later VALUES (2)",
        "INSERT INTO p VALUES (77, 'late'), (78, 'late'); INSERT INTO c VALUES (9, 99), (10, 78)",
        "DROP TABLE p",
        "DROP TABLE c",
        "CREATE TABLE d (id INTEGER PRIMARY KEY, p REFERENCES nowhere); INSERT INTO d VALUES (1, 1)",
        "ALTER TABLE p RENAME TO q; ALTER TABLE c ADD COLUMN z",
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, up REFERENCES parent); INSERT INTO parent VALUES (1, NULL), (2, 1), (3, 9)",
    ] {
        let (_world, cli, at) = planned(&legacy);
        let before = dump(&at);
        sql(&inner(&cli), inside);
        // The original goes on meanwhile.
        sql(&at, "INSERT INTO o VALUES (1)");
        let done = cli.run("commit try");
        assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
        let done = cli.run("undo try");
        assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
        sql(&at, "DELETE FROM o");
        assert_eq!(sorted(&dump(&at)), sorted(&before), "{inside}");
    }
}

/// A plan with a directory and a database, committed: the database, and a file that became "new".
fn committed(base: &str, inside: &str) -> (World, Cli, PathBuf, PathBuf) {
    let (world, cli, at) = unplanned(base);
    let file = world.dir("files").join("f");
    write(&file, "old");
    cli.ok("plan create try --resource files --resource data/app.db");
    cli.clone().stdin("new").ok("write try files f");
    sql(&inner(&cli), inside);
    cli.ok("commit try");
    (world, cli, at, file)
}

/// The undo of a plan with a directory is refused before any of it is undone.
#[track_caller]
fn kept(base: &str, inside: &str, since: &str, wanted: (&str, &str)) {
    let (_world, cli, at, file) = committed(base, inside);
    sql(&at, since);
    let before = dump(&at);
    let found = cli.run("undo try --json");
    assert_eq!(found.status, 4, "{inside}: {}", talk(&found));
    let document: Value = serde_json::from_slice(&found.stdout).expect("one document");
    let found = &document["conflicts"];
    assert_eq!(found[0]["path"], wanted.0, "{document}");
    assert_eq!(found[0]["what"], wanted.1, "{document}");
    assert_eq!(dump(&at), before, "{inside}");
    assert_eq!(read(&file), "new", "{inside}");
}

// rule C4, C13, Q2
#[test]
fn an_undo_leaves_no_row_of_another_client_without_what_it_refers_to() {
    let base = format!("{PARENTS} {CHILDREN} INSERT INTO c VALUES (1, 2)");
    let nowhere = "it would refer to a row of p that is not there";
    for (inside, since, item) in [
        (
            "INSERT INTO p VALUES (3, 'c')",
            "INSERT INTO c VALUES (9, 3)",
            "c/9",
        ),
        (
            "DELETE FROM c WHERE id = 1",
            "DELETE FROM p WHERE id = 2",
            "c/1",
        ),
        ("UPDATE c SET p = 1", "DELETE FROM p WHERE id = 2", "c/1"),
        (
            "ALTER TABLE p ADD COLUMN z; INSERT INTO p VALUES (3, 'c', 0)",
            "INSERT INTO c VALUES (9, 3)",
            "c/9",
        ),
        (
            "DELETE FROM c; ALTER TABLE c ADD COLUMN z",
            "DELETE FROM p WHERE id = 2",
            "c/1",
        ),
    ] {
        kept(&base, inside, since, (item, nowhere));
    }
    let made = "CREATE TABLE q (id INTEGER PRIMARY KEY); INSERT INTO q VALUES (1)";
    let since =
        "CREATE TABLE r (id INTEGER PRIMARY KEY, q REFERENCES q); INSERT INTO r VALUES (5, 1)";
    kept(
        &base,
        made,
        since,
        ("r/5", "it would refer to a row of q that is not there"),
    );
}

// rule C4, C13, Q2
#[test]
fn an_undo_that_a_constraint_refuses_takes_no_member_back() {
    let base = "CREATE TABLE p (id INTEGER PRIMARY KEY, n UNIQUE); INSERT INTO p VALUES (1, 'a'), (2, 'b')";
    let said = "UNIQUE constraint failed: p.n";
    kept(
        base,
        "DELETE FROM p WHERE id = 2",
        "INSERT INTO p VALUES (9, 'b')",
        ("p/2", said),
    );
}

// rule C4, S5
#[test]
fn an_undo_of_a_locked_database_takes_no_member_back() {
    let (_world, cli, at, file) = committed(PARENTS, "DELETE FROM p WHERE id = 2");
    let before = dump(&at);
    for lock in ["BEGIN IMMEDIATE", "BEGIN; SELECT * FROM p"] {
        let script = format!(
            "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
             [c.execute(one).fetchall() for one in '{lock}'.split(';')]\nprint('on', flush=True)\nsys.stdin.read()"
        );
        let client = Waiting::new(&script, &at);
        let refused = cli.run("undo try");
        let said = talk(&refused);
        assert_eq!(refused.status, 1, "{said}");
        assert!(said.contains("locked by another process"), "{said}");
        assert_eq!(read(&file), "new");
        client.end();
        assert_eq!(dump(&at), before);
    }
    cli.ok("undo try");
    assert_eq!(read(&file), "old");
    assert_eq!(sql(&at, "SELECT count(*) FROM p"), "2");
}

// rule Q2
#[test]
fn what_only_sqlite_can_refuse_is_a_conflict_that_names_the_constraint() {
    let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a);";
    let index = |sql: &str| format!("{table} CREATE UNIQUE INDEX low ON t {sql}");
    let taken = (
        "INSERT INTO t VALUES (2, 'x')",
        "DELETE FROM t WHERE id = 2",
    );
    let strict = table.replace("a)", "a NOT NULL)");
    let strict = (
        format!("DROP TABLE t; {strict}"),
        format!("DROP TABLE t; {table}"),
    );
    let check = "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, CHECK (a <= b)); INSERT INTO t VALUES (1, 1, 5)";
    let insert = "INSERT INTO t VALUES (1, 'X')";
    for (base, inside, (outside, then), item, said) in [
        (
            check,
            "UPDATE t SET a = 4",
            ("UPDATE t SET b = 2", "UPDATE t SET b = 9"),
            "t/1",
            "CHECK constraint failed: a <= b",
        ),
        (
            &index("(lower(a))"),
            insert,
            taken,
            "t/1",
            "UNIQUE constraint failed: index 'low'",
        ),
        (
            &index("(a COLLATE NOCASE)"),
            insert,
            taken,
            "t/1",
            "UNIQUE constraint failed: t.a",
        ),
        (
            &index("(a) WHERE id < 9"),
            "INSERT INTO t VALUES (1, 'x')",
            taken,
            "t/1",
            "UNIQUE constraint failed: t.a",
        ),
        (
            &format!("{table} {}", insert.replace('X', "x")),
            "CREATE UNIQUE INDEX one ON t (a)",
            taken,
            "t/index:one",
            "UNIQUE constraint failed: t.a",
        ),
        (
            table,
            "INSERT INTO t (id) VALUES (1)",
            (&strict.0, &strict.1),
            "t/1",
            "NOT NULL constraint failed: t.a",
        ),
    ] {
        let (_world, cli, at) = planned(base);
        sql(&inner(&cli), inside);
        sql(&at, outside);
        let before = dump(&at);
        let refused = cli.run("commit try");
        let text = talk(&refused);
        assert_eq!(refused.status, 4, "{inside}: {text}");
        assert!(text.contains(item) && text.contains(said), "{text}");
        assert!(!text.contains("can be run again"), "{text}");
        assert_eq!(dump(&at), before);
        // Once the original permits it, it is released.
        sql(&at, then);
        cli.ok("commit try");
    }
}

// rule F8, Q2
#[test]
fn a_table_that_only_shows_another_has_no_rows_of_its_own() {
    let (_world, cli, at) = planned(
        "CREATE VIRTUAL TABLE ft USING fts5(body); INSERT INTO ft VALUES ('one two');
         CREATE VIRTUAL TABLE fv USING fts5vocab('ft', 'row')",
    );
    sql(
        &inner(&cli),
        "INSERT INTO ft VALUES ('three'); CREATE VIRTUAL TABLE fi USING fts5vocab('ft', 'instance')",
    );
    assert_eq!(cli.ok("diff try --name-only"), "fi\nft/2\n");
    cli.ok("commit try");
    assert_eq!(
        sql(
            &at,
            "SELECT group_concat(term) FROM fv; SELECT count(*) FROM fi"
        ),
        "one,three,two\n3"
    );
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT group_concat(term) FROM fv"), "one,two");
    assert_eq!(
        sql(&at, "SELECT count(*) FROM sqlite_schema WHERE name = 'fi'"),
        "0"
    );
}

// rule S1
#[test]
fn another_file_in_the_place_of_the_original_is_not_called_a_directory() {
    let (_world, cli, at) = planned(PARENTS);
    std::fs::remove_file(&at).expect("it goes");
    sql(&at, PARENTS);
    let refused = cli.run("diff try");
    let said = talk(&refused);
    assert_eq!(refused.status, 4, "{said}");
    assert!(
        said.contains("is not what this sandbox was made from"),
        "{said}"
    );
    assert!(!said.contains("directory"), "{said}");
}

/// A column of a STRICT table that takes anything takes it as it is: '1' is no 1 there, and none of an INTEGER column refers to it.
// rule Q2
#[test]
fn a_column_of_a_strict_table_that_takes_anything_was_compared_as_a_number() {
    let tables = "CREATE TABLE p (id INTEGER PRIMARY KEY, n ANY UNIQUE) STRICT;
        CREATE TABLE a (id INTEGER PRIMARY KEY, p ANY REFERENCES p(id)) STRICT;
        CREATE TABLE i (id INTEGER PRIMARY KEY, n INTEGER REFERENCES p(n));
        INSERT INTO p VALUES (1, 'a'), (2, 'b');";
    // The text of a number refers to it: the parent's type decides.
    let (_world, cli, at) = planned(tables);
    sql(&inner(&cli), "INSERT INTO a VALUES (1, '2')");
    sql(&at, "UPDATE p SET n = 'c' WHERE id = 1");
    cli.ok("commit try");
    assert_eq!(sql(&at, "PRAGMA foreign_key_check"), "");
    cli.ok("undo try");
    let (_world, cli, at) = planned(tables);
    sql(&inner(&cli), "DELETE FROM p WHERE id = 2");
    sql(&at, "INSERT INTO a VALUES (1, '2')");
    let what = "the original added a row of a that refers to it";
    refused(&cli, &at, &[("p/2", what)]);
    // A number does not refer to its text.
    let (_world, cli, at) = planned(&format!("{tables} INSERT INTO p VALUES (3, 7), (4, '7')"));
    sql(&inner(&cli), "DELETE FROM p WHERE id = 3");
    sql(&at, "INSERT INTO i VALUES (1, 7)");
    let what = "the original added a row of i that refers to it";
    refused(&cli, &at, &[("p/3", what)]);
}

/// The parent has a key of two columns, so nothing ever followed the reference.
const ASTRAY: &str = "CREATE TABLE p (a, b, PRIMARY KEY (a, b)); CREATE TABLE c (id INTEGER PRIMARY KEY, p REFERENCES p);
    CREATE TABLE v_c (id INTEGER PRIMARY KEY, v REFERENCES v); CREATE VIEW v AS SELECT 1 AS a;
    INSERT INTO c VALUES (1, 1), (2, 2); INSERT INTO v_c VALUES (1, 1)";

// rule Q2
#[test]
fn the_parent_of_a_reference_that_led_nowhere_could_not_be_dropped() {
    let (_world, cli, at) = planned(ASTRAY);
    let before = dump(&at);
    sql(
        &inner(&cli),
        "DROP TABLE p; DROP VIEW v; INSERT INTO c VALUES (3, 3); UPDATE c SET p = 4 WHERE id = 2",
    );
    // Another program adds more of the kind.
    sql(&at, "INSERT INTO c VALUES (7, 7)");
    cli.ok("commit try --dry-run");
    cli.ok("commit try");
    assert_eq!(
        sql(&at, "SELECT group_concat(id || p) FROM c"),
        "11,24,33,77"
    );
    sql(&at, "DELETE FROM c WHERE id = 7");
    cli.ok("undo try");
    assert_eq!(sorted(&dump(&at)), sorted(&before));

    let (_world, cli, at) = unplanned(ASTRAY);
    cli.ok("plan create try --resource data/app.db --strategy transaction_rollback");
    for statement in ["DROP TABLE p", "DROP VIEW v"] {
        cli.ok(["sql", "try", "app.db", statement]);
    }
    cli.ok("commit try");
    assert_eq!(
        sql(
            &at,
            "SELECT name FROM sqlite_schema WHERE name IN ('p', 'v')"
        ),
        ""
    );
    cli.ok("undo try");
    assert_eq!(sorted(&dump(&at)), sorted(&before));
}
