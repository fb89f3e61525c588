//! Databases under attack: what a schema could do, and a writer that never rests.

use crate::sqlite::{Waiting, inner, sql, unplanned};

// rule Q1, S4
#[test]
fn f2_a_schema_runs_nothing() {
    let (world, cli, at) =
        unplanned("CREATE TABLE t (a INTEGER PRIMARY KEY, b); INSERT INTO t VALUES (1, 'old')");
    cli.ok("plan create try --resource data/app.db");
    let copy = inner(&cli);
    let target = world.at("pwned");
    // A trigger and a view that would leave the database, were they run.
    let hostile = format!(
        "CREATE TRIGGER leave AFTER INSERT ON t BEGIN SELECT load_extension('{0}'); INSERT INTO t VALUES (new.a + 100, 'by a trigger'); END;
         CREATE VIEW outside AS SELECT load_extension('{0}') AS x;",
        target.display()
    );
    sql(&copy, &hostile);
    sql(
        &copy,
        "PRAGMA recursive_triggers = OFF; UPDATE t SET b = 'new'",
    );
    for statement in [
        "SELECT load_extension('/tmp/x')".to_owned(),
        "SELECT * FROM outside".to_owned(),
        format!("ATTACH '{}' AS other", target.display()),
        format!("VACUUM INTO '{}'", target.display()),
        "SELECT writefile('/tmp/x', 'y')".to_owned(),
    ] {
        let said = cli.run(["sql", "try", "app.db", &statement]);
        assert_eq!(said.status, 1, "{statement}: {}", said.stdout_text());
        assert!(!target.exists(), "{statement}");
    }
    // What is released is rows and SQL; nothing of it runs.
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT * FROM t"), "1|new");
    assert_eq!(
        sql(
            &at,
            "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema ORDER BY 1)"
        ),
        "leave,outside,t"
    );
    assert!(!target.exists());
    cli.ok("undo try");
    assert_eq!(
        sql(&at, "SELECT group_concat(name) FROM sqlite_schema"),
        "t"
    );
}

// rule Q2, Q5
#[test]
fn f3_a_writer_that_never_rests() {
    for mode in ["delete", "wal"] {
        let (_world, cli, at) = unplanned(&format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t (a INTEGER PRIMARY KEY, b); CREATE TABLE ours (a INTEGER PRIMARY KEY, b);
             WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) INSERT INTO t SELECT i, 0 FROM n"
        ));
        // Each transaction leaves the same number everywhere.
        let script = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None); n = 0
print('on', flush=True)
import select, time
while not select.select([sys.stdin], [], [], 0)[0]:
    n += 1
    c.execute('BEGIN IMMEDIATE'); c.execute('UPDATE t SET b = ?', (n,)); c.execute('COMMIT'); time.sleep(0.002)
print(n)";
        let writer = Waiting::new(script, &at);
        for round in 0..4 {
            cli.ok("plan create try --resource data/app.db");
            let copy = inner(&cli);
            assert_eq!(
                sql(
                    &copy,
                    "SELECT count(DISTINCT b) FROM t; PRAGMA integrity_check"
                ),
                "1\nok",
                "{mode}: torn"
            );
            sql(
                &copy,
                &format!("INSERT INTO ours VALUES ({round}, {round})"),
            );
            cli.ok("commit try");
            cli.ok("cleanup try");
        }
        // The writer met no error, and says how often it wrote.
        let said = writer.end();
        let last = said.trim();
        assert_eq!(
            sql(
                &at,
                "SELECT DISTINCT b FROM t; SELECT count(*) FROM ours; PRAGMA integrity_check"
            ),
            format!("{last}\n4\nok"),
            "{mode}"
        );
    }
}
