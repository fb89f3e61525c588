//! SQLite databases: compared, merged and released row by row, by an independent client's word (`sqlite3`).

use std::io::{BufRead, BufReader, Read};
use std::process::ChildStdout;

use crate::*;

/// What `sqlite3` says to statements; it must succeed.
#[track_caller]
pub(crate) fn sql(at: &Path, statements: &str) -> String {
    let mut client = Command::new("sqlite3");
    client.arg("-batch").arg("-bail").arg(at).arg(statements);
    let out = client.output().expect("sqlite3 starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success() && said.is_empty(),
        "{statements}: {said}"
    );
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

/// Runs a script in Python that is told a path; it must succeed.
#[track_caller]
pub(crate) fn python(script: &str, at: &Path) {
    output_of(Command::new("python3").args(["-c", script]).arg(at));
}

/// A script in Python that was told a path, said its first line, and goes on until its input ends.
pub(crate) struct Waiting {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Waiting {
    #[track_caller]
    pub(crate) fn new(script: &str, at: &Path) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(at).stdin(Stdio::piped());
        let mut child = python.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
        let first = said.read_line(&mut String::new());
        assert!(first.is_ok_and(|count| count > 0), "it works");
        Self { child, said }
    }

    /// Ends its input; what it said since.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it says it");
        assert!(self.child.wait().is_ok_and(|status| status.success()));
        rest
    }
}

/// Everything that a command said.
pub(crate) fn talk(outcome: &Outcome) -> String {
    format!("{}{}", outcome.stdout_text(), outcome.stderr_text())
}

/// A world with a database in a directory, and a plan of it.
pub(crate) fn planned(statements: &str) -> (World, Cli, PathBuf) {
    let (world, cli, at) = unplanned(statements);
    cli.ok("plan create try --resource data/app.db");
    (world, cli, at)
}

/// The same without a plan.
pub(crate) fn unplanned(statements: &str) -> (World, Cli, PathBuf) {
    let world = World::new();
    let at = world.dir("data").join("app.db");
    let cli = Cli::new(&world, &binary());
    sql(&at, statements);
    (world, cli, at)
}

/// The database of the sandbox.
pub(crate) fn inner(cli: &Cli) -> PathBuf {
    PathBuf::from(cli.ok("path try app.db").trim_end())
}

/// Everything in a database, as text.
pub(crate) fn dump(at: &Path) -> String {
    let settings = "PRAGMA user_version; PRAGMA application_id;";
    format!("{}\n{}", sql(at, ".dump"), sql(at, settings))
}

/// The lines of a dump, in an order that does not depend on when a thing was made.
pub(crate) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

pub(crate) fn conflicts(cli: &Cli) -> Vec<(String, String)> {
    let found = cli.run("commit try --json");
    assert_eq!(found.status, 4, "{}", talk(&found));
    let document: Value = serde_json::from_slice(&found.stdout).expect("one document");
    let all = document["conflicts"].as_array();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let one = |one: &Value| (text(&one["path"]), text(&one["what"]));
    all.expect("conflicts").iter().map(one).collect()
}

pub(crate) const ORDERS: &str =
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, total REAL);
    INSERT INTO orders VALUES (1, 'new', 1.5), (2, 'new', 2), (3, 'paid', 3);";

/// Definitions that are dropped inside and made again.
const DROPPED: &str =
    "CREATE TABLE empty (a); CREATE VIEW paid AS SELECT id FROM orders WHERE status = 'paid';";

// rule C1, C11, C13, F8, P4, P6, Q1, R1, R2
#[test]
fn a_database_goes_through_every_verb() {
    as_user_too();
    for mode in ["delete", "wal"] {
        let (world, cli, at) =
            unplanned(&format!("PRAGMA journal_mode={mode}; {ORDERS} {DROPPED}"));
        let before = dump(&at);
        let plan = json(&cli, "plan create try --resource data/app.db");
        let sandbox = &plan["sandboxes"][0];
        assert_eq!(sandbox["type"], "sqlite", "what stands there decides");
        assert_eq!(sandbox["strategy"], "snapshot");
        assert_eq!(json(&cli, "sandbox create try app.db")["created"], false);
        assert_eq!(
            json(&cli, "diff try")["resources"][0]["changes"],
            value!([])
        );

        let row = cli.ok("read try app.db orders/1");
        assert_eq!(row, "{\"id\":1,\"status\":\"new\",\"total\":1.5}\n");
        let write = |path: &str, line: &str| {
            let typed = format!("write try app.db {path} --json");
            let said = cli.clone().stdin(line).ok(typed);
            serde_json::from_str::<Value>(&said).expect("a document")["kind"].clone()
        };
        assert_eq!(
            write("orders/1", "{\"id\":1,\"status\":\"paid\"}"),
            "updated"
        );
        let kept = json(&cli, "checkpoint create try -m paid");
        assert_eq!(write("orders/9", "{\"id\":9,\"total\":0.5}"), "inserted");
        sql(
            &inner(&cli),
            "DELETE FROM orders WHERE id = 2; PRAGMA user_version = 7",
        );
        let found = json(&cli, "diff try");
        let changes = &found["resources"][0]["changes"];
        let wanted = value!([
            {"path": "orders/1", "kind": "updated", "table": "orders", "key": [1],
                "before": {"status": "new"}, "after": {"status": "paid"}},
            {"path": "orders/2", "kind": "deleted", "table": "orders", "key": [2],
                "before": {"id": 2, "status": "new", "total": 2.0}, "after": null},
            {"path": "orders/9", "kind": "inserted", "table": "orders", "key": [9],
                "before": null, "after": {"id": 9, "status": null, "total": 0.5}},
        ]);
        assert_eq!(
            changes.as_array().expect("changes")[..3],
            *wanted.as_array().expect("three")
        );
        assert_eq!(changes[3]["path"], "pragma:user_version");
        let shown = cli.ok("diff try");
        for part in [
            "orders/1  status 'new' → 'paid'",
            "orders/2  id 2, status 'new', total 2.0",
        ] {
            assert!(shown.contains(part), "{shown}");
        }

        let id = kept["checkpoint_id"].as_str().expect("an id");
        cli.ok(format!("restore try {id}"));
        assert_eq!(
            sql(&inner(&cli), "SELECT group_concat(status) FROM orders"),
            "paid,new,paid"
        );
        cli.ok("rollback try");
        assert_eq!(
            json(&cli, "diff try")["resources"][0]["changes"],
            value!([])
        );
        assert_eq!(dump(&at), before, "nothing touched the original");

        sql(
            &inner(&cli),
            "UPDATE orders SET total = total + 1; PRAGMA user_version = 8",
        );
        let digest = json(&cli, "diff try")["digest"].clone();
        let digest = digest.as_str().expect("a digest");
        for gone in ["VIEW paid", "TABLE empty"] {
            sql(&inner(&cli), &format!("DROP {gone}"));
            cli.fails(format!("commit try --expect {digest}"), 4);
        }
        sql(&inner(&cli), DROPPED);
        cli.ok(format!("commit try --expect {digest} -m more"));
        assert_eq!(
            sql(
                &at,
                "SELECT sum(total), (SELECT user_version FROM pragma_user_version) FROM orders"
            ),
            "9.5|8"
        );
        assert_eq!(
            sql(&at, "PRAGMA journal_mode; PRAGMA integrity_check"),
            format!("{mode}\nok")
        );
        cli.ok("undo try");
        assert_eq!(dump(&at), before);
        cli.ok("cleanup try");
        assert_eq!(names(world.at("data")), ["app.db"], "{mode}");
        assert!(names(world.at("escrow-home/sandboxes")).is_empty());
    }
}

// rule C15, Q2
#[test]
fn rows_are_merged_by_column_and_what_contradicts_is_named() {
    let (_world, cli, at) = planned(ORDERS);
    sql(
        &inner(&cli),
        "UPDATE orders SET status = 'sent' WHERE id = 1; DELETE FROM orders WHERE id = 2;
        INSERT INTO orders VALUES (9, 'ours', 9)",
    );
    // Another column of the same row, and other rows.
    sql(
        &at,
        "UPDATE orders SET total = 77 WHERE id = 1; UPDATE orders SET total = 33 WHERE id = 3;
        INSERT INTO orders VALUES (8, 'theirs', 8)",
    );
    cli.ok("commit try");
    let wanted = "1|sent|77.0\n3|paid|33.0\n8|theirs|8.0\n9|ours|9.0";
    assert_eq!(sql(&at, "SELECT * FROM orders"), wanted);
    // An undo takes back what was released, and leaves what others did.
    cli.ok("undo try");
    let wanted = "1|new|77.0\n2|new|2.0\n3|paid|33.0\n8|theirs|8.0";
    assert_eq!(sql(&at, "SELECT * FROM orders"), wanted);

    let (_world, cli, at) = planned(ORDERS);
    sql(&inner(&cli), "UPDATE orders SET status = 'sent', total = 5 WHERE id = 1; DELETE FROM orders WHERE id = 2;
        UPDATE orders SET total = 6 WHERE id = 3; INSERT INTO orders VALUES (9, 'ours', 9)");
    sql(
        &at,
        "UPDATE orders SET status = 'void' WHERE id < 3; DELETE FROM orders WHERE id = 3;
        INSERT INTO orders VALUES (9, 'theirs', 9)",
    );
    let before = dump(&at);
    let found = conflicts(&cli);
    let wanted = [
        ("orders/1", "column status"),
        (
            "orders/2",
            "deleted here, and changed in the original: column status",
        ),
        ("orders/3", "deleted in the original"),
        ("orders/9", "added here and in the original: column status"),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for ((path, what), (wanted, part)) in found.iter().zip(wanted) {
        assert!(path == wanted && what.contains(part), "{path}: {what}");
    }
    assert_eq!(dump(&at), before, "nothing was committed");
    cli.ok("commit try --on-conflict original");
    assert_eq!(dump(&at), before, "every change was contested");
}

// rule C15
#[test]
fn the_sandboxes_version_counts_where_that_is_wanted() {
    let (_world, cli, at) = planned(ORDERS);
    sql(
        &inner(&cli),
        "UPDATE orders SET status = 'ours' WHERE id = 1; DELETE FROM orders WHERE id = 2",
    );
    sql(
        &at,
        "UPDATE orders SET status = 'theirs', total = 4 WHERE id = 1; UPDATE orders SET total = 9 WHERE id = 2",
    );
    cli.ok("commit try --on-conflict sandbox");
    assert_eq!(sql(&at, "SELECT * FROM orders"), "1|ours|4.0\n3|paid|3.0");
    cli.ok("undo try");
    let wanted = "1|theirs|4.0\n2|new|9.0\n3|paid|3.0";
    assert_eq!(sql(&at, "SELECT * FROM orders"), wanted);
}

// rule C10, C15, Q2
#[test]
fn an_undo_is_refused_by_row_where_the_original_moved_on() {
    let (_world, cli, at) = planned(ORDERS);
    sql(
        &inner(&cli),
        "UPDATE orders SET status = 'sent' WHERE id < 3",
    );
    cli.ok("commit try");
    sql(&at, "UPDATE orders SET status = 'back' WHERE id = 2");
    let before = dump(&at);
    let refused = cli.run("undo try");
    assert_eq!(refused.status, 4, "{}", talk(&refused));
    assert!(talk(&refused).contains("orders/2"), "{}", talk(&refused));
    assert!(!talk(&refused).contains("orders/1"), "{}", talk(&refused));
    assert_eq!(dump(&at), before);
}

// rule Q2, Q4
#[test]
fn trap_18_triggers_references_computed_columns_and_exchanged_unique_values() {
    let schema = "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
        CREATE TABLE child (id INTEGER PRIMARY KEY, parent REFERENCES parent ON DELETE CASCADE,
            twice AS (parent * 2), thrice AS (parent * 3) STORED);
        CREATE TABLE log (what);
        CREATE TRIGGER noted AFTER UPDATE ON parent BEGIN INSERT INTO log VALUES (new.name); END;
        CREATE TRIGGER raising BEFORE DELETE ON child BEGIN SELECT raise(ABORT, 'never'); END;
        INSERT INTO parent VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd');
        INSERT INTO child (id, parent) VALUES (1, 1), (2, 2);";
    let (_world, cli, at) = planned(schema);
    // Two unique names change places; a child goes that the trigger would keep.
    sql(&inner(&cli), "UPDATE parent SET name = 'x' WHERE id = 1; UPDATE parent SET name = 'a' WHERE id = 2;
        UPDATE parent SET name = 'b' WHERE id = 1; DROP TRIGGER raising; DELETE FROM child WHERE id = 2;
        CREATE TRIGGER raising BEFORE DELETE ON child BEGIN SELECT raise(ABORT, 'never'); END;
        INSERT INTO child (id, parent) VALUES (7, 3)");
    cli.ok("commit try");
    assert_eq!(
        sql(
            &at,
            "SELECT * FROM parent; SELECT * FROM child; SELECT * FROM log"
        ),
        "1|b\n2|a\n3|c\n4|d\n1|1|2|3\n7|3|6|9\nx\na\nb",
        "each trigger ran once, in the sandbox"
    );
    assert_eq!(
        sql(&at, "PRAGMA integrity_check; PRAGMA foreign_key_check"),
        "ok"
    );

    // What the merge would break is told before, though no row was changed twice.
    let (_world, cli, at) = planned(schema);
    sql(
        &inner(&cli),
        "INSERT INTO child (id, parent) VALUES (8, 3); DELETE FROM parent WHERE id = 4;
        INSERT INTO parent VALUES (10, 'same')",
    );
    sql(
        &at,
        "DELETE FROM parent WHERE id = 3; INSERT INTO child (id, parent) VALUES (9, 4);
        INSERT INTO parent VALUES (11, 'same')",
    );
    let before = dump(&at);
    let found = conflicts(&cli);
    let wanted = [
        (
            "child/8",
            "refers to a row of parent that the original deleted",
        ),
        ("parent/10", "the same name, which must be unique"),
        (
            "parent/4",
            "the original added a row of child that refers to it",
        ),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for ((path, what), (wanted, part)) in found.iter().zip(wanted) {
        assert!(path == wanted && what.contains(part), "{path}: {what}");
    }
    assert_eq!(dump(&at), before);
}

// rule Q5
#[test]
fn trap_19_logs_hot_journals_and_the_settings_of_the_file() {
    // A log that a crashed process left: its rows are seen, and reading leaves it where it is.
    let (world, cli, at) = unplanned(&format!("PRAGMA journal_mode = wal; {ORDERS}"));
    let script = "import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1]); c.execute(\"UPDATE orders SET status = 'logged'\"); c.commit(); os._exit(0)";
    python(script, &at);
    let log = fs::read(world.at("data/app.db-wal")).expect("a log is left");
    let file = fs::read(&at).expect("it is there");
    cli.ok("plan create try --resource data/app.db");
    assert_eq!(
        sql(&inner(&cli), "SELECT DISTINCT status FROM orders"),
        "logged"
    );
    assert!(
        fs::read(&at).is_ok_and(|now| now == file)
            && fs::read(world.at("data/app.db-wal")).is_ok_and(|now| now == log)
    );
    // While another process has it open, with rows in the log.
    sql(&inner(&cli), "UPDATE orders SET total = 0 WHERE id = 1");
    cli.ok("commit try");
    assert_eq!(
        sql(&at, "SELECT * FROM orders WHERE id = 1"),
        "1|logged|0.0"
    );

    // A journal that a crashed process left, with pages of its transaction in the file: it is rolled back, not copied.
    let (world, cli, at) = unplanned(
        "CREATE TABLE wide (id INTEGER PRIMARY KEY, v);
         WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO wide SELECT i, 'whole' FROM n",
    );
    let script = "import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('PRAGMA cache_size = 1'); c.execute('BEGIN')
c.execute(\"UPDATE wide SET v = 'torn!'\"); os._exit(0)";
    python(script, &at);
    let torn = fs::read(&at).expect("it is there");
    assert!(
        torn.windows(5).any(|bytes| bytes == b"torn!") && world.at("data/app.db-journal").exists(),
        "a hot journal is left"
    );
    cli.ok("plan create try --resource data/app.db");
    for place in [&inner(&cli), &at] {
        let found = sql(place, "SELECT DISTINCT v FROM wide; PRAGMA integrity_check");
        assert_eq!(found, "whole\nok");
    }

    // The settings of the file are told; what a merge cannot carry stays.
    let (_world, cli, at) = planned(ORDERS);
    sql(
        &inner(&cli),
        "PRAGMA application_id = 42; PRAGMA auto_vacuum = 1; PRAGMA page_size = 8192; VACUUM;
        PRAGMA journal_mode = wal",
    );
    let found = json(&cli, "commit try");
    assert_eq!(
        sql(
            &at,
            "PRAGMA application_id; PRAGMA auto_vacuum; PRAGMA page_size; PRAGMA journal_mode"
        ),
        "42\n0\n4096\ndelete"
    );
    for name in ["auto_vacuum", "page_size", "journal_mode"] {
        assert!(
            found.to_string().contains(&format!("pragma:{name}")),
            "{found}"
        );
    }
}

// rule Q2
#[test]
fn a_table_that_the_original_dropped_or_reshaped_is_whole_where_ours_wins() {
    for other in ["DROP TABLE t", "ALTER TABLE t ADD COLUMN more"] {
        let (_world, cli, at) = planned(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        );
        sql(
            &inner(&cli),
            "UPDATE t SET v = 'x' WHERE id = 1; INSERT INTO t VALUES (3, 'c')",
        );
        sql(&at, other);
        let before = sql(&at, "SELECT sql FROM sqlite_schema");
        let refused = cli.fails("commit try", 4);
        assert!(refused.contains("the original"), "{other}: {refused}");
        cli.ok("commit try --on-conflict sandbox");
        assert_eq!(sql(&at, "SELECT * FROM t"), "1|x\n2|b\n3|c", "{other}");
        cli.ok("undo try");
        assert_eq!(sql(&at, "SELECT sql FROM sqlite_schema"), before, "{other}");
    }
}

// rule Q4
#[test]
fn a_full_text_index_over_another_table_is_released() {
    let (_world, cli, at) = planned(
        "CREATE TABLE posts (id INTEGER PRIMARY KEY, body); INSERT INTO posts VALUES (1, 'alpha')",
    );
    let before = sql(&at, "SELECT name FROM sqlite_schema");
    sql(
        &inner(&cli),
        "INSERT INTO posts VALUES (2, 'beta'); CREATE VIRTUAL TABLE found USING fts5(body, content='posts', content_rowid='id');
         CREATE TRIGGER fed AFTER INSERT ON posts BEGIN INSERT INTO found(rowid, body) VALUES (new.id, new.body); END;
         INSERT INTO found(found) VALUES ('rebuild')",
    );
    cli.ok("commit try");
    sql(&at, "INSERT INTO posts VALUES (3, 'beta too')");
    let matching = "SELECT rowid FROM found WHERE found MATCH 'beta'";
    assert_eq!(sql(&at, matching), "2\n3");
    sql(&at, "DELETE FROM posts WHERE id = 3");
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT name FROM sqlite_schema"), before);
    assert_eq!(sql(&at, "SELECT body FROM posts"), "alpha");
}

// rule Q4
#[test]
fn trap_20_rows_without_keys_classes_of_values_counters_and_full_text() {
    let schema = "CREATE TABLE plain (v); CREATE TABLE nulls (a TEXT, b INT, v, PRIMARY KEY (a, b));
        CREATE TABLE packed (a TEXT COLLATE NOCASE, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
        CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
        CREATE TABLE \"odd \"\"; DROP TABLE plain; --\" (\"a'b\" PRIMARY KEY, \"se\"\"lect\");
        CREATE VIRTUAL TABLE texts USING fts5(body);
        CREATE TABLE posts (id INTEGER PRIMARY KEY, body); CREATE VIRTUAL TABLE found USING fts5(body, content='posts', content_rowid='id');
        INSERT INTO plain VALUES (1), (1), (1), (1.0), ('1'), (x'31'), (NULL);
        INSERT INTO nulls VALUES (NULL, 1, 'x'), (NULL, 1, 'x'), ('k', NULL, 'y'), ('k', 1, 'z');
        INSERT INTO packed VALUES ('A', 1, 'x'), ('b', 1, 'y');
        INSERT INTO counted (v) VALUES ('a'); INSERT INTO \"odd \"\"; DROP TABLE plain; --\" VALUES ('''', 1);
        INSERT INTO texts VALUES ('one two'); INSERT INTO posts VALUES (1, 'alpha'); INSERT INTO found(found) VALUES ('rebuild');";
    let (_world, cli, at) = planned(schema);
    sql(&inner(&cli), "DELETE FROM plain WHERE rowid = 2; UPDATE plain SET v = 1 WHERE rowid = 4; INSERT INTO plain VALUES (1.0);
        DELETE FROM nulls WHERE rowid = 1; UPDATE nulls SET v = 'w' WHERE b = 1 AND a = 'k';
        UPDATE packed SET a = 'a', v = 'xx' WHERE a = 'A'; INSERT INTO counted (v) VALUES ('b'), ('c'); DELETE FROM counted WHERE id = 3;
        UPDATE \"odd \"\"; DROP TABLE plain; --\" SET \"se\"\"lect\" = 2; INSERT INTO texts VALUES ('three four');
        INSERT INTO posts VALUES (2, 'beta'); INSERT INTO found(found) VALUES ('rebuild'); VACUUM");
    sql(
        &at,
        "INSERT INTO counted (v) VALUES ('theirs'); DELETE FROM counted WHERE v = 'theirs'; INSERT INTO plain VALUES ('theirs'); VACUUM",
    );
    cli.ok("commit try");
    let classes = "SELECT typeof(v), count(*) FROM plain GROUP BY 1";
    let wanted = "blob|1\ninteger|3\nnull|1\nreal|1\ntext|2";
    assert_eq!(sql(&at, classes), wanted);
    assert_eq!(
        sql(&at, "SELECT quote(a), quote(b), v FROM nulls ORDER BY v"),
        "'k'|1|w\nNULL|1|x\n'k'|NULL|y"
    );
    assert_eq!(sql(&at, "SELECT * FROM packed"), "a|1|xx\nb|1|y");
    assert_eq!(
        sql(
            &at,
            "SELECT * FROM counted; SELECT seq FROM sqlite_sequence"
        ),
        "1|a\n2|b\n3",
        "no number is given out twice"
    );
    assert_eq!(
        sql(&at, "SELECT * FROM \"odd \"\"; DROP TABLE plain; --\""),
        "'|2"
    );
    assert_eq!(
        sql(
            &at,
            "SELECT rowid FROM texts WHERE texts MATCH 'three'; SELECT rowid FROM found WHERE found MATCH 'beta'"
        ),
        "2\n2"
    );
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");

    // The schema of one table changed on both sides is named, on one side it is carried over with its rows.
    let altered = "CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 2); CREATE TABLE u (x);";
    let (_world, cli, at) = planned(altered);
    sql(&inner(&cli), "ALTER TABLE t ADD COLUMN c DEFAULT 5; UPDATE t SET c = 6; CREATE TABLE w (y UNIQUE); INSERT INTO w VALUES (1);
        DROP TABLE u; CREATE INDEX by_b ON t (b); CREATE VIEW v AS SELECT c FROM t");
    let before = dump(&at);
    cli.ok("commit try");
    assert_eq!(
        sql(
            &at,
            "SELECT * FROM t; SELECT * FROM w; SELECT * FROM v; SELECT name FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY 1"
        ),
        "1|2|6\n1\n6\nby_b\nt\nv\nw"
    );
    cli.ok("undo try");
    assert_eq!(dump(&at), before);
    let (_world, cli, at) = planned(altered);
    sql(
        &inner(&cli),
        "ALTER TABLE t ADD COLUMN c; INSERT INTO u VALUES (1)",
    );
    sql(
        &at,
        "INSERT INTO t VALUES (2, 3); ALTER TABLE u ADD COLUMN z",
    );
    let found: Vec<String> = conflicts(&cli).into_iter().map(|(path, _)| path).collect();
    assert_eq!(found, ["u"]);
}

#[test]
fn statements_are_run_in_the_sandbox_and_tables_are_written_whole() {
    let (_world, cli, at) = planned(ORDERS);
    let before = dump(&at);
    let run = |statement: &str| {
        let said = cli.run(["sql", "app.db", statement]);
        assert_eq!(said.status, 0, "{}", talk(&said));
        serde_json::from_slice::<Value>(&said.stdout).expect("a document")
    };
    assert_eq!(
        run("UPDATE orders SET status = 'sent' WHERE id < 3")["changed"],
        2
    );
    let found = run("SELECT id, status, x'00ff' AS b FROM orders WHERE id = 1");
    let wanted = value!([{"id": 1, "status": "sent", "b": {"$blob": "00ff"}}]);
    assert_eq!(found["rows"], wanted);
    let bad = cli.run(["sql", "app.db", "SELEC 1"]);
    assert!(
        bad.status == 1 && talk(&bad).contains("syntax error"),
        "{}",
        talk(&bad)
    );
    cli.clone()
        .stdin("{\"id\":5,\"status\":\"only\"}\n")
        .ok("write try app.db orders");
    assert_eq!(
        cli.ok("read try app.db orders"),
        "{\"id\":5,\"status\":\"only\",\"total\":null}\n"
    );
    for bad in ["not json", "{\"nothing\":1}", "{\"id\":[1]}"] {
        let said = cli.clone().stdin(bad).run("write try app.db orders");
        assert_eq!(said.status, 2, "{bad}: {}", talk(&said));
    }
    assert_eq!(
        run("SELECT count(*) AS n FROM orders")["rows"][0]["n"],
        1,
        "all of it or nothing"
    );
    assert_eq!(dump(&at), before);
}

#[test]
fn a_command_is_told_the_database_by_the_variable_that_the_resource_names() {
    let (world, cli, at) = unplanned(ORDERS);
    write(
        world.at("escrow.yaml"),
        "resources: { db: { at: data/app.db, options: { env: SHOP_URL } } }",
    );
    cli.trust();
    cli.ok("plan create try --resource db");
    let script = "import os, sqlite3
url = os.environ['SHOP_URL']; assert url.startswith('sqlite:////'), url
c = sqlite3.connect(url.removeprefix('sqlite:///')); c.execute(\"UPDATE orders SET status = 'sent'\"); c.commit(); print(url)";
    let said = cli.ok(["run", "--plan", "try", "--", "python3", "-c", script]);
    assert!(said.contains(at.to_str().expect("plain text")), "{said}");
    assert_eq!(
        sql(&at, "SELECT count(*) FROM orders WHERE status = 'sent'"),
        "0"
    );
    // A part of a database cannot be released: that is said, and what to do instead.
    let refused = cli.run("commit try --only db:orders/1");
    assert_eq!(refused.status, 1, "{}", talk(&refused));
    assert!(talk(&refused).contains("as a whole"), "{}", talk(&refused));
    cli.ok("commit try");
    assert_eq!(
        sql(&at, "SELECT count(*) FROM orders WHERE status = 'sent'"),
        "3"
    );
    for (how, option, said) in [
        ("snapshot", "env: 'A=B'", "A=B"),
        ("transaction_rollback", "max_age: soon", "seconds"),
    ] {
        let file = format!("resources: {{ db: {{ at: data/app.db, options: {{ {option} }} }} }}");
        write(world.at("escrow.yaml"), file);
        cli.trust();
        let refused = cli.run(format!("plan create bad --resource db --strategy {how}"));
        let text = talk(&refused);
        assert!(refused.status == 1 && text.contains(said), "{text}");
    }
}

// rule S6
#[test]
fn a_policy_speaks_of_tables() {
    let (world, cli, at) = unplanned(&format!(
        "{ORDERS} CREATE TABLE secrets (id INTEGER PRIMARY KEY, v)"
    ));
    write(
        world.at("escrow.yaml"),
        "resources: { db: { at: data/app.db } }\npolicy:\n  mode: enforce\n  rules:\n    - { allow: [create, read, write, diff, run, commit, admin], principal: '*', scope: '*' }\n    \
         - { deny: [commit], principal: 'agent*', scope: 'db:secrets' }\n",
    );
    let agent = cli.clone();
    cli.ok("plan create try --resource db");
    let copy = PathBuf::from(cli.ok("path try db").trim_end());
    sql(&copy, "UPDATE orders SET total = 1");
    let decided =
        agent.run("access check --principal agent:x --action commit --scope db:secrets/1 --json");
    assert!(
        talk(&decided).contains("\"permitted\": false"),
        "{}",
        talk(&decided)
    );
    sql(&copy, "INSERT INTO secrets VALUES (1, 'leak')");
    let denied = agent.run("commit try --principal agent:x");
    assert_eq!(denied.status, 3, "{}", talk(&denied));
    assert!(talk(&denied).contains("secrets"), "{}", talk(&denied));
    sql(&copy, "DELETE FROM secrets");
    agent.ok("commit try --principal agent:x");
    assert_eq!(sql(&at, "SELECT sum(total) FROM orders"), "3.0");
}
