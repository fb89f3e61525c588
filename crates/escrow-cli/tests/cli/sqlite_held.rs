//! A transaction of a SQLite database that is held between commands: others read the rows as they were, and cannot write.

use escrow::event::Unobserved;
use escrow::model::resource::SQLITE;
use escrow::model::{PlanId, ResourceId, SandboxRef, SystemIdSource};
use escrow::strategy::{
    CreateRequest, Intent, OnConflict, PrepareRequest, PreviewOptions, Registry, Sandbox, Session,
    Strategy, Target,
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
            "PRAGMA query_only = ON",
            "CREATE TEMP TABLE orders (id)",
            // A commit lost it, and everything else: SQLite cannot make it again after the transaction was taken back.
            "CREATE VIRTUAL TABLE words USING fts5 (text)",
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

/// A strategy that holds transactions of this database, and a place for each commit.
struct Holding {
    world: World,
    registry: Registry,
    target: Target,
    at: PathBuf,
}

/// A sandbox with work in it that is staged for a commit.
struct Staged {
    sandbox: SandboxRef,
    opened: Box<dyn Sandbox>,
    changes: Vec<String>,
    intent: Intent,
}

impl Holding {
    fn new(fill: &str) -> Self {
        let world = World::new();
        let at = world.dir("data").join("app.db");
        sql(&at, fill);
        let registry = Registry::builtin();
        registry.host_by(&binary(), &[]);
        let target = Target::at(ResourceId::new(&SystemIdSource), SQLITE, &at);
        Self {
            world,
            registry,
            target,
            at,
        }
    }

    fn strategy(&self) -> &dyn Strategy {
        let mut all = self.registry.registrations();
        let one = all.find(|one| one.name() == "transaction_rollback" && one.types() == [SQLITE]);
        &**one.expect("it is registered").strategy()
    }

    fn place(&self, of: &str, name: &str) -> PathBuf {
        let place = self.world.dir(of).join(name);
        fs::create_dir(&place).expect("it is ours");
        place
    }

    /// The changes of a sandbox, staged.
    fn stage(&self, opened: &dyn Sandbox, name: &str) -> (Vec<String>, Intent) {
        let preview = opened.preview(&PreviewOptions::default());
        let preview = preview.expect("it is compared");
        let staged = opened.prepare(&PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            message: None,
            area: Some(&self.place("commits", name)),
            keeps: false,
            digests: false,
            promised: &[],
            observer: &Unobserved,
        });
        let intent = staged.expect("it is staged").intent;
        let changes = preview.diff.changes.iter();
        (changes.map(|one| one.path.to_string()).collect(), intent)
    }

    fn work(&self, name: &str, statements: &[&str]) -> Staged {
        let created = self.strategy().create(&CreateRequest {
            plan_id: PlanId::new(&SystemIdSource),
            target: &self.target,
            area: Some(&self.place("areas", name)),
            from: None,
            observer: &Unobserved,
        });
        let sandbox = created.expect("a transaction begins").sandbox;
        let opened = self.strategy().open(&sandbox, Session::Exclusive, &[]);
        let opened = opened.expect("it opens");
        for statement in statements {
            opened.query(statement, false).expect("it is done");
        }
        let (changes, intent) = self.stage(&*opened, name);
        Staged {
            sandbox,
            opened,
            changes,
            intent,
        }
    }

    fn commit(&self, intent: &Intent) {
        let done = self.strategy().commit(intent, &Unobserved);
        done.expect("nothing contradicts");
    }

    fn undo(&self, intent: &Intent) -> Vec<String> {
        let undone = self.strategy().undo(intent, &Unobserved);
        undone.expect("it is taken back").lost
    }

    fn end(&self, sandbox: &SandboxRef) {
        let done = self.strategy().cleanup(sandbox, &self.target, None);
        done.expect("it ends");
    }
}

// rule C3, C19
#[test]
fn a_holder_that_is_killed_in_its_commit_leaves_all_or_nothing_and_the_commit_can_be_finished() {
    let fill = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); CREATE TABLE k (a);
        WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) INSERT INTO t SELECT i, 'old' FROM n;
        INSERT INTO k VALUES ('old'), ('stays')";
    let work = [
        "UPDATE t SET v = 'new'",
        "DELETE FROM k WHERE a = 'old'",
        "INSERT INTO k VALUES ('new')",
    ];
    let holding = Holding::new(fill);
    let old = dump(&holding.at);
    for round in 1..8u64 {
        let name = round.to_string();
        let staged = holding.work(&name, &work);
        let pid = holder(&holding.world.at("areas").join(&name));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(round * 5));
            kill(pid);
        });
        // It, or what it left, is carried out to the end.
        let done = holding.strategy().commit(&staged.intent, &Unobserved);
        killer.join().expect("it is killed");
        if done.is_err() {
            holding.commit(&staged.intent);
        }
        let counts = "SELECT count(DISTINCT v), min(v), (SELECT group_concat(a) FROM k) FROM t; PRAGMA integrity_check";
        assert!(
            ["1|new|stays,new\nok", "1|new|new,stays\nok"].contains(&&*sql(&holding.at, counts)),
            "{round}"
        );
        let conflicts = holding.strategy().check_undo(&staged.intent);
        assert_eq!(conflicts.expect("it is looked at"), []);
        holding.undo(&staged.intent);
        assert_eq!(dump(&holding.at), old, "{round}");
        holding.end(&staged.sandbox);
    }
    assert_eq!(names(holding.world.at("data")), ["app.db"]);
}

/// Where another member of the plan fails, the commit is taken back and its changes are held again. Where a table had another form, all of
/// them were lost.
// rule C6, Q3
#[test]
fn definitions_of_a_held_transaction_were_lost_with_a_commit_that_failed() {
    for mode in ["delete", "wal"] {
        let fill = format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE); CREATE TABLE k (a);
             CREATE TABLE goes (x); CREATE VIEW seen AS SELECT v FROM t; CREATE INDEX of_k ON k (a);
             CREATE TRIGGER told AFTER INSERT ON t BEGIN INSERT INTO k VALUES (new.v); END;
             INSERT INTO t (v) VALUES ('one'), ('two'); INSERT INTO goes VALUES (1)"
        );
        let rows = [
            "UPDATE t SET v = 'new' WHERE id = 1",
            "DELETE FROM k WHERE a = 'one'",
        ];
        let definitions = [
            "ALTER TABLE t ADD COLUMN w DEFAULT 'w'",
            "INSERT INTO t (v) VALUES ('three')",
            "CREATE TABLE made (id INTEGER PRIMARY KEY, t REFERENCES t (id))",
            "INSERT INTO made VALUES (7, 3)",
            "DROP TABLE goes",
            "DROP INDEX of_k",
            "CREATE INDEX other ON k (a DESC)",
            "PRAGMA user_version = 5",
        ];
        for (name, work) in [
            ("rows", rows.to_vec()),
            ("both", [&rows[..], &definitions].concat()),
        ] {
            let holding = Holding::new(&fill);
            let at = &holding.at;
            let look = "SELECT * FROM t ORDER BY id";
            // Numbers that were given out once are not given out again.
            let all = || sorted(&dump(at).replace("VALUES('t',3)", "VALUES('t',2)")).join("\n");
            let old = all();
            let staged = holding.work(name, &work);
            let mut expected = staged.changes;
            expected.retain(|path| !path.contains("sqlite_sequence"));
            // More than once: nothing of one commit is in the way of the next.
            let mut intent = staged.intent;
            for round in 0..3 {
                holding.commit(&intent);
                assert_ne!(all(), old);
                assert_eq!(holding.undo(&intent), [""; 0], "{name} in {mode}");
                assert_eq!(all(), old, "{name} in {mode}");
                assert!(refused(at, "DELETE FROM t").contains("locked"));
                // What was staged is not needed any more.
                fs::remove_dir_all(holding.world.at("commits")).expect("it is ours");
                let (changes, again) = holding.stage(&*staged.opened, &format!("{name}-{round}"));
                assert_eq!(changes, expected, "{name} in {mode}");
                intent = again;
                // Nothing of ours is to be seen in it.
                let bad = staged.opened.query("SELECT * FROM staged.t", true);
                assert!(bad.is_err());
            }
            holding.commit(&intent);
            holding.end(&staged.sandbox);
            let new = sql(at, &format!("{look}; PRAGMA integrity_check"));
            match name {
                "rows" => assert_eq!(new, "1|new\n2|two\nok"),
                _ => {
                    assert_eq!(new, "1|new|w\n2|two|w\n3|three|w\nok");
                    let more = "SELECT * FROM made; SELECT name FROM sqlite_schema ORDER BY 1; PRAGMA user_version";
                    let more = sql(at, more);
                    assert!(more.starts_with("7|3\n") && more.ends_with("\n5"), "{more}");
                    assert!(
                        more.contains("\nother\n") && !more.contains("goes"),
                        "{more}"
                    );
                }
            }
            assert_eq!(names(holding.world.at("data")), ["app.db"]);
        }
    }
}

/// The statement of one who may not write left the connection read-only: the commit failed then, and the work was lost.
// rule C6, Q3
#[test]
fn after_a_look_by_a_reader_a_held_transaction_could_not_be_committed() {
    let (world, cli, at) = unplanned(ORDERS);
    write(
        world.at("escrow.yaml"),
        "policy:\n  mode: enforce\n  rules:\n    - { allow: [create, read, write, diff, commit, admin], principal: '*', scope: '*' }\n    \
         - { deny: [write], principal: reader, scope: '*' }\n",
    );
    cli.ok(PLAN);
    do_sql(&cli, "UPDATE orders SET total = 0");
    for (statement, status) in [
        ("SELECT sum(total) FROM orders", 0),
        ("DELETE FROM orders", 1),
    ] {
        let looked = cli.run(["--principal", "reader", "sql", "try", "app.db", statement]);
        assert_eq!(looked.status, status, "{}", talk(&looked));
        do_sql(&cli, "UPDATE orders SET total = total + 1");
    }
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT count(*), sum(total) FROM orders"), "3|6.0");
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
