//! A transaction of a SQLite database that is held between commands: others read the rows as they were, and cannot write.

use escrow::event::Unobserved;
use escrow::model::resource::SQLITE;
use escrow::model::{PlanId, ResourceId, SystemIdSource};
use escrow::strategy::{
    CreateRequest, OnConflict, PrepareRequest, PreviewOptions, Registry, Session, Target,
};

use crate::sqlite::{ORDERS, dump, sorted, sql, talk, unplanned};
use crate::*;

const PLAN: &str = "plan create try --resource data/app.db --strategy transaction_rollback";

/// What `sqlite3` says to a statement that it may not carry out.
fn refused(at: &Path, statement: &str) -> String {
    let mut client = Command::new("sqlite3");
    let out = client.arg("-batch").arg(at).arg(statement).output();
    let out = out.expect("sqlite3 starts");
    assert!(!out.status.success(), "{statement} was carried out");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn run_sql(cli: &Cli, statement: &str) -> Outcome {
    cli.run(["sql", "try", "app.db", statement])
}

#[track_caller]
fn do_sql(cli: &Cli, statement: &str) -> String {
    cli.ok(["sql", "try", "app.db", statement])
}

/// The one area there is.
fn only(areas: &Path) -> PathBuf {
    let found = names(areas);
    assert_eq!(found.len(), 1, "{found:?}");
    areas.join(&found[0])
}

/// The process that holds the transaction of a sandbox with this area.
fn holder(area: &Path) -> u32 {
    let dir = fs::File::open(area).expect("an area");
    let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
    let short = format!("/proc/self/fd/{number}/control");
    let stream = std::os::unix::net::UnixStream::connect(short);
    let peer = rustix::net::sockopt::socket_peercred(stream.expect("it listens"));
    let pid = peer.expect("a process").pid.as_raw_nonzero().get();
    u32::try_from(pid).expect("a number")
}

fn kill(pid: u32) {
    let done = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(done.expect("kill starts").success());
}

// rule P1, P2
#[test]
fn a_held_transaction_keeps_the_contract() {
    as_user_too();
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    let report = json(&cli, "strategy check transaction_rollback");
    assert!(list(&report["checks"]).len() > 58, "{report}");
    assert_eq!(report["conforms"], true, "{report}");
}

// rule C1, C11, P4, Q1, Q5, Q7
#[test]
fn a_held_transaction_goes_through_every_verb() {
    as_user_too();
    for mode in ["delete", "wal"] {
        let more = "CREATE TABLE k (a, b); INSERT INTO k VALUES (1, 1), (2, 2);
            CREATE TABLE part (of INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED);";
        let (world, cli, at) = unplanned(&format!("PRAGMA journal_mode={mode}; {ORDERS} {more}"));
        let before = dump(&at);
        let plan = cli.run(PLAN);
        assert_eq!(plan.status, 0, "{}", talk(&plan));
        assert!(talk(&plan).contains("no other process can write"));
        // Others read, and wait in vain.
        let rows = "SELECT count(*), sum(total) FROM orders";
        do_sql(&cli, "UPDATE orders SET total = total + 1");
        assert_eq!(sql(&at, rows), "3|6.5");
        assert!(refused(&at, "UPDATE orders SET total = 0").contains("locked"));
        // What would end the transaction, or reach beyond it, does not run.
        for statement in [
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT s",
            "ATTACH 'other.db' AS o",
            "PRAGMA synchronous = OFF",
            "CREATE TEMP TABLE orders (id)",
        ] {
            let said = run_sql(&cli, statement);
            assert!(
                talk(&said).contains("belong to the connection"),
                "{statement}: {}",
                talk(&said)
            );
        }
        let line = "{\"id\":9,\"status\":\"w\"}";
        cli.clone().stdin(line).ok("write try app.db orders/9");
        assert!(cli.ok("read try app.db orders/9").contains("\"w\""));
        // A row of a table without a key takes the number of one that goes.
        for statement in [
            "DELETE FROM k WHERE a = 2",
            "INSERT INTO k VALUES (9, 9)",
            "ALTER TABLE part ADD COLUMN note",
            "INSERT INTO part VALUES (1, 'whole')",
            "CREATE TABLE made (id INTEGER PRIMARY KEY, v)",
            "INSERT INTO made VALUES (4, 'four')",
            "PRAGMA user_version = 7",
        ] {
            do_sql(&cli, statement);
        }
        let digest = json(&cli, "diff try")["digest"].clone();
        let digest = digest.as_str().expect("a digest");
        do_sql(&cli, "INSERT INTO part VALUES (77, 'nowhere')");
        assert!(talk(&cli.run("commit try")).contains("refers to no row of orders"));
        do_sql(&cli, "DELETE FROM part WHERE of = 77");
        assert!(
            cli.ok("status")
                .contains("no other process can write the database")
        );
        // Inside, the file shows what is true for everyone.
        let inside = "sqlite3 data/app.db 'SELECT sum(total) FROM orders'; ! sqlite3 data/app.db 'DELETE FROM orders'";
        let ran = cli.run(["run", "--plan", "try", "--", "sh", "-c", inside]);
        assert_eq!(ran.status, 0, "{mode}: {}", talk(&ran));
        assert!(ran.stdout_text().contains("6.5"), "{}", talk(&ran));
        assert_eq!(dump(&at), before, "nothing touched the original");
        cli.ok(format!("commit try --expect {digest}"));
        let look = "SELECT * FROM k; SELECT * FROM part; SELECT * FROM made; PRAGMA user_version; PRAGMA journal_mode; PRAGMA integrity_check";
        assert_eq!(
            sql(&at, look),
            format!("1|1\n9|9\n1|whole\n4|four\n7\n{mode}\nok")
        );
        assert_eq!(sql(&at, rows), "4|9.5");
        sql(
            &at,
            "UPDATE orders SET status = 'free' WHERE id = 2; UPDATE orders SET status = 'new' WHERE id = 2",
        );
        cli.ok("undo try");
        assert_eq!(dump(&at), before);
        cli.ok("cleanup try");
        assert_eq!(names(world.at("data")), ["app.db"], "{mode}");

        // Another plan returns to a checkpoint, and is discarded.
        cli.ok(PLAN);
        do_sql(&cli, "DELETE FROM orders WHERE id = 1");
        cli.ok("checkpoint create try -m here");
        do_sql(&cli, "DELETE FROM orders");
        cli.ok("restore try here --yes");
        assert!(do_sql(&cli, "SELECT count(*) AS n FROM orders").contains("\"n\": 2"));
        cli.ok("rollback try --yes");
        assert_eq!(
            json(&cli, "diff try")["resources"][0]["changes"],
            value!([])
        );
        cli.ok("cleanup try");
        sql(&at, "UPDATE orders SET total = 0");
    }
}

// rule P3, Q3, Q8
#[test]
fn a_sandbox_whose_holder_died_says_so_and_the_database_is_as_it_was() {
    let (world, cli, at) = unplanned(ORDERS);
    let before = dump(&at);
    cli.ok(PLAN);
    do_sql(&cli, "DELETE FROM orders");
    kill(holder(&only(&world.at("escrow-home/sandboxes"))));
    for line in ["diff try", "commit try --yes", "checkpoint create try"] {
        let said = cli.run(line);
        assert_ne!(said.status, 0, "{line}");
        assert!(
            talk(&said).contains("took its changes back"),
            "{line}: {}",
            talk(&said)
        );
    }
    assert!(cli.ok("status").contains("took its changes back"));
    assert_eq!(dump(&at), before);
    sql(&at, "UPDATE orders SET status = 'free'");
    cli.ok("rollback try --yes");
    assert!(refused(&at, "DELETE FROM orders").contains("locked"));
    // A statement that takes the whole transaction back is no quiet loss either.
    do_sql(&cli, "DELETE FROM orders WHERE id = 1");
    let said = run_sql(&cli, "INSERT OR ROLLBACK INTO orders (id) VALUES (2)");
    assert!(talk(&said).contains("rolled it back"), "{}", talk(&said));
    assert_ne!(cli.run("diff try").status, 0);
    cli.ok("rollback try --yes");
    // The lock ends with the sandbox.
    cli.ok("cleanup try");
    sql(&at, "UPDATE orders SET status = 'free again'");
}

// rule C3, C6, C19, Q3
#[test]
fn a_holder_that_is_killed_in_its_commit_leaves_all_or_nothing_and_the_commit_can_be_finished() {
    let world = World::new();
    let at = world.dir("data").join("app.db");
    let fill = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); CREATE TABLE k (a);
        WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO t SELECT i, 'old' FROM n;
        INSERT INTO k VALUES ('old'), ('stays')";
    sql(&at, fill);
    let old = dump(&at);
    let registry = Registry::builtin();
    registry.host_by(&binary(), &[]);
    let mut all = registry.registrations();
    let one = all.find(|one| one.name() == "transaction_rollback" && one.types() == [SQLITE]);
    let strategy = one.expect("it is registered").strategy();
    let target = Target::at(ResourceId::new(&SystemIdSource), SQLITE, &at);
    for round in 0..8u64 {
        let area = world.dir("areas").join(round.to_string());
        let commit = world.dir("commits").join(round.to_string());
        fs::create_dir(&area)
            .and_then(|()| fs::create_dir(&commit))
            .expect("they are ours");
        let created = strategy.create(&CreateRequest {
            plan_id: PlanId::new(&SystemIdSource),
            target: &target,
            area: Some(&area),
            from: None,
            observer: &Unobserved,
        });
        let sandbox = created.expect("a transaction begins").sandbox;
        let opened = strategy.open(&sandbox, Session::Exclusive, &[]);
        let opened = opened.expect("it opens");
        for work in [
            "UPDATE t SET v = 'new'",
            "DELETE FROM k WHERE a = 'old'",
            "INSERT INTO k VALUES ('new')",
        ] {
            opened.query(work, false).expect("it is done");
        }
        let preview = opened.preview(&PreviewOptions::default());
        let preview = preview.expect("it is compared");
        let staged = opened.prepare(&PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            message: None,
            area: Some(&commit),
            keeps: false,
            digests: false,
            promised: &[],
            observer: &Unobserved,
        });
        let intent = staged.expect("it is staged").intent;
        if round == 0 {
            // Where another member fails, its changes are held again once they were taken back.
            strategy
                .commit(&intent, &Unobserved)
                .expect("nothing contradicts");
            let undone = strategy
                .undo(&intent, &Unobserved)
                .expect("it is taken back");
            assert_eq!(undone.lost, [""; 0]);
            assert_eq!(dump(&at), old);
            let again = opened.diff(None, None).expect("it is compared");
            assert_eq!(again.changes.len(), preview.diff.changes.len());
            assert!(refused(&at, "DELETE FROM t").contains("locked"));
            strategy.cleanup(&sandbox, &target, None).expect("it ends");
            continue;
        }
        let pid = holder(&area);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(round * 5));
            kill(pid);
        });
        // It, or what it left, is carried out to the end.
        let done = strategy.commit(&intent, &Unobserved);
        killer.join().expect("it is killed");
        if done.is_err() {
            strategy
                .commit(&intent, &Unobserved)
                .expect("it can be finished");
        }
        let counts = "SELECT count(DISTINCT v), min(v), (SELECT group_concat(a) FROM k) FROM t; PRAGMA integrity_check";
        assert!(
            ["1|new|stays,new\nok", "1|new|new,stays\nok"].contains(&&*sql(&at, counts)),
            "{round}"
        );
        let conflicts = strategy.check_undo(&intent).expect("it is looked at");
        assert_eq!(conflicts, []);
        strategy
            .undo(&intent, &Unobserved)
            .expect("it is taken back");
        assert_eq!(dump(&at), old, "{round}");
        strategy.cleanup(&sandbox, &target, None).expect("it ends");
    }
    assert_eq!(names(world.at("data")), ["app.db"]);
}

/// What refers to nothing since long is no matter; what does so since now is what SQLite refuses.
// rule C1, Q1, Q7
#[test]
fn references_of_a_held_transaction_were_compared_by_the_numbers_of_rows() {
    const PARENT: &str = "CREATE TABLE p (id INTEGER PRIMARY KEY, u)";
    const LATE: &str = "REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED";
    for (child, inside, is_new) in [
        (
            format!(
                "CREATE TABLE c (id INT PRIMARY KEY, p {LATE}) WITHOUT ROWID; INSERT INTO c VALUES (1, 77)"
            ),
            "INSERT INTO c VALUES (2, 88)",
            true,
        ),
        (
            format!(
                "CREATE TABLE c (id INT PRIMARY KEY, p {LATE}) WITHOUT ROWID; INSERT INTO c VALUES (1, 77)"
            ),
            "UPDATE p SET u = 2",
            false,
        ),
        (
            format!(
                "CREATE TABLE c (id INTEGER PRIMARY KEY, p {LATE}, q {LATE}); INSERT INTO c VALUES (1, 77, NULL)"
            ),
            "UPDATE c SET q = 88",
            true,
        ),
        (
            "CREATE TABLE c (id INTEGER PRIMARY KEY, q REFERENCES p (u)); CREATE TABLE o (x)"
                .to_owned(),
            "INSERT INTO o VALUES (1)",
            false,
        ),
        (
            format!(
                "CREATE TABLE c (id INTEGER PRIMARY KEY, p {LATE}); INSERT INTO c VALUES (1, 77)"
            ),
            "ALTER TABLE c RENAME TO d",
            false,
        ),
        (
            format!(
                "CREATE TABLE c (id INTEGER PRIMARY KEY, p {LATE}); INSERT INTO c VALUES (1, 77)"
            ),
            "ALTER TABLE p RENAME TO d",
            false,
        ),
        (
            format!(
                "CREATE TABLE c (id INTEGER PRIMARY KEY, p {LATE}); INSERT INTO c VALUES (1, 77)"
            ),
            "DELETE FROM c; INSERT INTO c VALUES (2, 88); ALTER TABLE c RENAME TO d",
            true,
        ),
        (
            format!(
                "CREATE TABLE c (id INTEGER PRIMARY KEY, p {LATE}); INSERT INTO c VALUES (1, 77)"
            ),
            "ALTER TABLE c ADD COLUMN q REFERENCES p (id)",
            false,
        ),
    ] {
        let (_world, cli, at) =
            unplanned(&format!("{PARENT}; {child}; INSERT INTO p VALUES (1, 1)"));
        cli.ok(PLAN);
        for statement in inside.split("; ") {
            do_sql(&cli, statement);
        }
        let before = dump(&at);
        let done = cli.run("commit try");
        assert_eq!(done.status, i32::from(is_new), "{inside}: {}", talk(&done));
        assert_eq!(dump(&at) == before, is_new, "{inside}");
        assert_eq!(talk(&done).contains("refers to no row of p"), is_new);
        if !is_new {
            cli.ok("undo try");
            assert_eq!(sorted(&dump(&at)), sorted(&before), "{inside}");
        }
    }
}
