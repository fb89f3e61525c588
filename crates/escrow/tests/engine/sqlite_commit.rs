//! Commits of a SQLite database, step by step through the contract: what another process does between the steps stays.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use escrow::event::Unobserved;
use escrow::manager::Manager;
use escrow::model::resource::SQLITE;
use escrow::model::{Change, Detail, PlanId, ResourceId, SandboxRef, SystemIdSource};
use escrow::strategy::{
    CreateRequest, Intent, OnConflict, PrepareRequest, PreviewOptions, Registry, RestoreRequest,
    Sandbox, Session, Strategy, StrategyError, Target,
};
use escrow_testkit::need;
use escrow_testkit::{Fs, LoopFs, World};
use rusqlite::Connection;

use crate::support::{options, sh};

/// A database with a sandbox of it, and room for a commit.
pub(crate) struct Staging {
    pub(crate) world: World,
    pub(crate) strategy: Arc<dyn Strategy>,
    pub(crate) at: PathBuf,
    sandbox: SandboxRef,
}

fn run(at: &PathBuf, statements: &str) {
    let database = Connection::open(at).expect("it opens");
    database
        .execute_batch(statements)
        .expect("the statements are right");
}

impl Staging {
    pub(crate) fn new(statements: &str) -> Self {
        Self::in_world(World::new(), statements)
    }

    fn in_world(world: World, statements: &str) -> Self {
        let registry = Registry::builtin();
        let mut all = registry.registrations();
        let one = all.find(|one| one.name() == "snapshot" && one.types() == [SQLITE]);
        let strategy = Arc::clone(one.expect("it is registered").strategy());
        let at = world.dir("data").join("app.db");
        run(&at, statements);
        let (area, _) = (world.dir("area"), world.dir("commit"));
        let created = strategy.create(&CreateRequest {
            plan_id: PlanId::new(&SystemIdSource),
            target: &Target::at(ResourceId::new(&SystemIdSource), SQLITE, &at),
            area: Some(&area),
            from: None,
            observer: &Unobserved,
        });
        let sandbox = created.expect("it is copied").sandbox;
        Self {
            world,
            strategy,
            at,
            sandbox,
        }
    }

    fn copy(&self) -> PathBuf {
        self.world.at("area/db/app.db")
    }

    /// Works in the sandbox, and stages a commit of it.
    pub(crate) fn staged(&self, statements: &str) -> Intent {
        run(&self.copy(), statements);
        let opened = self.opened();
        let preview = opened.preview(&PreviewOptions::default());
        let preview = preview.expect("it is compared");
        assert_eq!(preview.conflicts, []);
        let staged = opened.prepare(&PrepareRequest {
            preview: &preview,
            on_conflict: OnConflict::Abort,
            message: None,
            area: Some(&self.world.at("commit")),
            keeps: false,
            digests: false,
            promised: &[],
            observer: &Unobserved,
        });
        staged.expect("it is staged").intent
    }

    fn opened(&self) -> Box<dyn Sandbox> {
        let opened = self.strategy.open(&self.sandbox, Session::Exclusive, &[]);
        opened.expect("it opens")
    }

    pub(crate) fn commit(&self, intent: &Intent) -> Result<(), StrategyError> {
        self.strategy.commit(intent, &Unobserved)
    }

    #[track_caller]
    pub(crate) fn undo(&self, intent: &Intent) {
        let undone = self.strategy.undo(intent, &Unobserved);
        assert_eq!(undone.expect("it is taken back").kept, []);
    }

    /// Another process, or a person who asks.
    pub(crate) fn other(&self, statements: &str) {
        run(&self.at, statements);
    }

    pub(crate) fn ask(&self, question: &str) -> String {
        let database = Connection::open(&self.at).expect("it opens");
        let answer = database.query_row(question, [], |row| row.get::<_, Option<String>>(0));
        answer
            .expect("the question is right")
            .unwrap_or_else(|| "NULL".to_owned())
    }

    pub(crate) fn rows(&self) -> String {
        self.ask("SELECT group_concat(id || v, ' ') FROM (SELECT * FROM t ORDER BY id)")
    }
}

pub(crate) const TWO: &str =
    "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'old'), (2, 'old')";
pub(crate) const NEW: &str = "UPDATE t SET v = 'new'";

// rule C3, Q2
#[test]
fn what_was_never_carried_out_takes_back_nothing_that_another_process_wrote() {
    let it = Staging::new(TWO);
    let intent = it.staged(NEW);
    // By chance the same values.
    it.other(NEW);
    it.undo(&intent);
    assert_eq!(it.rows(), "1new 2new");
    // Nor is it taken for a commit, which a later undo would take back.
    let refused = it.commit(&intent);
    assert!(
        matches!(refused, Err(StrategyError::Moved { .. })),
        "{refused:?}"
    );
    it.undo(&intent);
    assert_eq!(it.rows(), "1new 2new");
}

// rule C3, Q2
#[test]
fn what_is_repeated_leaves_what_another_process_did_since() {
    let it = Staging::new(TWO);
    let intent = it.staged(NEW);
    it.commit(&intent).expect("nothing contradicts");
    it.other("UPDATE t SET v = 'old' WHERE id = 1");
    it.commit(&intent).expect("it was carried out");
    assert_eq!(it.rows(), "1old 2new");
    it.undo(&intent);
    assert_eq!(it.rows(), "1old 2old");
    it.other("UPDATE t SET v = 'new' WHERE id = 2");
    it.undo(&intent);
    assert_eq!(it.rows(), "1old 2new");
}

/// A reader keeps SQLite from committing, after everything was done but that.
// rule C3, Q2
#[test]
fn an_undo_that_sqlite_refuses_to_commit_is_not_taken_for_done() {
    let it = Staging::new(TWO);
    let intent = it.staged(NEW);
    it.commit(&intent).expect("nothing contradicts");
    it.other("UPDATE t SET v = 'old' WHERE id = 1");
    let reader = Connection::open(&it.at).expect("it opens");
    let begin = "BEGIN; SELECT * FROM t";
    reader.execute_batch(begin).expect("it reads");
    let refused = it.strategy.undo(&intent, &Unobserved);
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(it.rows(), "1old 2new");
    drop(reader);
    it.undo(&intent);
    assert_eq!(it.rows(), "1old 2old");
}

// rule C4, C6, Q2
#[test]
fn a_table_whose_form_changed_meanwhile_keeps_no_undo_from_its_end() {
    let also = "CREATE TABLE u (id INTEGER PRIMARY KEY, v); INSERT INTO u VALUES (1, 'old')";
    let it = Staging::new(&format!("{TWO}; {also}"));
    let intent = it.staged(&format!("{NEW}; UPDATE u SET v = 'new'"));
    it.commit(&intent).expect("nothing contradicts");
    it.other("ALTER TABLE t RENAME COLUMN v TO w");
    it.commit(&intent).expect("the other table says it was");
    let path = |text: &str| escrow::model::ResourcePath::parse(text.as_bytes()).expect("a path");
    let conflicts = it.strategy.check_undo(&intent).expect("it is looked at");
    let paths: Vec<_> = conflicts.into_iter().map(|one| one.path).collect();
    assert_eq!(paths, [path("t")]);
    let undone = it.strategy.undo(&intent, &Unobserved).expect("it ends");
    let kept: Vec<_> = undone.kept.into_iter().map(|(item, _)| item).collect();
    assert_eq!(kept, [path("t")]);
    assert_eq!(it.ask("SELECT v FROM u"), "old");
    assert_eq!(it.ask("SELECT group_concat(w) FROM t"), "new,new");
    // Also where nothing else is left that was committed.
    it.other("DROP TABLE u");
    let undone = it.strategy.undo(&intent, &Unobserved).expect("it ends");
    assert_eq!(undone.kept.len(), 2, "{undone:?}");
}

// rule C4, Q2
#[test]
fn an_index_or_trigger_whose_table_changed_meanwhile_is_named_and_keeps_no_undo_from_its_end() {
    let also = "CREATE INDEX by_v ON t (v); CREATE TABLE u (id INTEGER PRIMARY KEY, v); INSERT INTO u VALUES (1, 'old');
                CREATE VIEW w AS SELECT * FROM u; CREATE TRIGGER g INSTEAD OF INSERT ON w BEGIN SELECT 1; END";
    let it = Staging::new(&format!("{TWO}; {also}"));
    let intent = it.staged("DROP INDEX by_v; DROP TRIGGER g; UPDATE u SET v = 'new'");
    it.commit(&intent).expect("nothing contradicts");
    it.other("ALTER TABLE t DROP COLUMN v; DROP VIEW w");
    let conflicts = it.strategy.check_undo(&intent).expect("it is looked at");
    let paths: Vec<String> = conflicts.iter().map(|one| one.path.to_string()).collect();
    assert_eq!(paths, ["t", "t/index:by_v", "w/trigger:g"]);
    let undone = it.strategy.undo(&intent, &Unobserved).expect("it ends");
    let kept: Vec<String> = undone.kept.iter().map(|one| one.0.to_string()).collect();
    assert_eq!(kept, paths);
    assert_eq!(it.ask("SELECT v FROM u"), "old");
}

/// Of a table that is brought over as a whole, what is released is what was compared.
// rule C2
#[test]
fn a_row_that_comes_into_an_altered_table_after_it_was_compared_is_not_released() {
    let it = Staging::new(TWO);
    run(&it.copy(), "ALTER TABLE t ADD COLUMN y");
    let opened = it.opened();
    let preview = opened.preview(&PreviewOptions::default());
    let preview = preview.expect("it is compared");
    run(&it.copy(), "INSERT INTO t VALUES (666, 'unseen', 0)");
    let staged = opened.prepare(&PrepareRequest {
        preview: &preview,
        on_conflict: OnConflict::Abort,
        message: None,
        area: Some(&it.world.at("commit")),
        keeps: false,
        digests: false,
        promised: &[],
        observer: &Unobserved,
    });
    assert!(
        matches!(staged, Err(StrategyError::Moved { .. })),
        "it was staged"
    );
}

/// What another process does after everything was looked at, and before the lock is taken.
// rule C3, C4, Q2
#[test]
fn a_reference_that_is_broken_at_the_last_moment_is_found_in_the_transaction() {
    let also =
        "CREATE TABLE c (id INTEGER PRIMARY KEY, t REFERENCES t); INSERT INTO c VALUES (1, 1)";
    let path = |done: Result<(), StrategyError>| match done {
        Err(StrategyError::Contradicted { path, .. }) => path.to_string(),
        other => panic!("{other:?}"),
    };
    for (inside, meanwhile, since) in [
        (
            "INSERT INTO c VALUES (7, 2)",
            "DELETE FROM t WHERE id = 2",
            None,
        ),
        (
            "DELETE FROM t WHERE id = 2",
            "INSERT INTO c VALUES (7, 2)",
            None,
        ),
        (
            "CREATE TABLE d (id INTEGER PRIMARY KEY, t REFERENCES t); INSERT INTO d VALUES (7, 2)",
            "DELETE FROM t WHERE id = 2",
            None,
        ),
        (
            "INSERT INTO t VALUES (3, 'new')",
            "DELETE FROM c",
            Some("INSERT INTO c VALUES (7, 3)"),
        ),
    ] {
        let it = Staging::new(&format!("{TWO}; {also}"));
        let intent = it.staged(inside);
        it.other(meanwhile);
        let Some(since) = since else {
            let found = path(it.commit(&intent));
            assert!(["c/7", "d/7"].contains(&&found[..]), "{inside}: {found}");
            // Nothing was done, so nothing is taken back.
            it.undo(&intent);
            continue;
        };
        it.commit(&intent).expect("nothing contradicts");
        it.other(since);
        let undone = it.strategy.undo(&intent, &Unobserved);
        assert_eq!(path(undone.map(drop)), "c/7");
        assert_eq!(it.rows(), "1old 2old 3new");
        it.other("DELETE FROM c");
        it.undo(&intent);
        assert_eq!(it.rows(), "1old 2old");
    }
}

// rule Q2
#[test]
fn an_index_on_a_column_that_the_original_dropped_is_a_conflict() {
    let it = Staging::new(TWO);
    run(&it.copy(), "CREATE INDEX by_v ON t (v)");
    it.other("ALTER TABLE t ADD COLUMN more");
    let opened = it.opened();
    let found = |text: &str| {
        let preview = opened.preview(&PreviewOptions::default()).expect(text);
        let paths = preview.conflicts.iter().map(|one| one.path.to_string());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(found("a column more"), Vec::<String>::new());
    it.other("ALTER TABLE t DROP COLUMN v");
    assert_eq!(found("a column less"), ["t/index:by_v"]);
}

// rule Q2
#[test]
fn a_number_that_was_given_out_is_not_given_out_again_by_a_table_that_is_brought_over() {
    let it = Staging::new(
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v); INSERT INTO t (v) VALUES ('a'), ('b'), ('c');
         DELETE FROM t WHERE id > 1;
         CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT, v); INSERT INTO gone VALUES (7, 'x'); DELETE FROM gone",
    );
    let counter = |name: &str| {
        let sql =
            format!("SELECT CAST(max(seq) AS TEXT) FROM sqlite_sequence WHERE name = '{name}'");
        it.ask(&sql)
    };
    let intent = it.staged("ALTER TABLE t ADD COLUMN w; DROP TABLE gone");
    it.commit(&intent).expect("nothing contradicts");
    assert_eq!((counter("t"), counter("gone")), ("3".into(), "NULL".into()));
    it.other("INSERT INTO t (v) VALUES ('d'); DELETE FROM t WHERE id = 4");
    it.undo(&intent);
    assert_eq!((counter("t"), counter("gone")), ("4".into(), "7".into()));
    assert_eq!(it.rows(), "1a");
}

// rule C5, S1
#[test]
fn a_staged_version_that_was_altered_is_not_brought_over() {
    let it = Staging::new(TWO);
    let before = it.rows();
    let intent = it.staged("ALTER TABLE t ADD COLUMN w; UPDATE t SET v = 'new'");
    let (new, old) = (it.world.at("commit/new.db"), it.world.at("commit/old.db"));
    run(&new, "UPDATE t SET v = 'forged' WHERE id = 2");
    let refused = it.commit(&intent);
    assert!(
        matches!(refused, Err(StrategyError::Altered { .. })),
        "{refused:?}"
    );
    assert_eq!(it.rows(), before);
    run(&new, NEW);
    it.commit(&intent).expect("it is what was staged");
    run(&old, "DELETE FROM t WHERE id = 2");
    let refused = it.strategy.undo(&intent, &Unobserved);
    assert!(
        matches!(refused, Err(StrategyError::Altered { .. })),
        "{refused:?}"
    );
    assert_eq!(it.rows(), "1new 2new");
}

// rule Q5, R2
#[test]
fn a_restore_that_fails_takes_no_log_from_a_program_that_works_in_the_sandbox() {
    let it = Staging::new(TWO);
    let opened = it.opened();
    let keep = || opened.checkpoint(None, &Unobserved).expect("it is kept");
    let first = keep();
    run(
        &it.copy(),
        "PRAGMA page_size = 8192; VACUUM; PRAGMA journal_mode = WAL; UPDATE t SET v = 'new'",
    );
    let second = keep();
    let intent = opened
        .prepare_restore(&RestoreRequest {
            from: &second,
            to: &first,
            area: Some(&it.world.at("commit")),
            observer: &Unobserved,
        })
        .expect("it is staged");
    // Pages of another size do not pass through the log that the program reads.
    let program = Connection::open(it.copy()).expect("it opens");
    let ask = "SELECT group_concat(v) FROM t";
    let look = || program.query_row(ask, [], |row| row.get::<_, String>(0));
    assert_eq!(look().as_deref(), Ok("new,new"));
    let log = || it.world.at("area/db/app.db-wal").exists();
    assert!(log());
    let refused = it.commit(&intent);
    assert!(
        matches!(refused, Err(StrategyError::Locked { .. })),
        "{refused:?}"
    );
    assert!(log(), "it is the program's");
    assert_eq!(look().as_deref(), Ok("new,new"));
    drop(program);
    it.commit(&intent).expect("nothing else has it open");
    let program = Connection::open(it.copy()).expect("it opens");
    let now = program.query_row(ask, [], |row| row.get::<_, String>(0));
    assert_eq!(now.as_deref(), Ok("old,old"));
}

// rule Q5
#[test]
fn the_locks_of_a_program_that_uses_the_engine_outlive_a_look_at_its_database() {
    let world = World::new();
    let at = world.dir("data").join("app.db");
    run(&at, TWO);
    let own = Connection::open(&at).expect("it opens");
    own.execute_batch("BEGIN; SELECT * FROM t")
        .expect("it is read");
    let write = || {
        let sql = "PRAGMA busy_timeout = 0; UPDATE t SET v = 'new'";
        let other = Command::new("sqlite3").arg(&at).arg(sql).output();
        String::from_utf8_lossy(&other.expect("it starts").stderr).into_owned()
    };
    let is_locked = |said: String| said.contains("locked");
    assert!(is_locked(write()), "a reader keeps writers off");
    let manager = Manager::open(options(&world.path().join("state"))).expect("it opens");
    let typed = [at.clone().into_os_string()];
    let made = manager.create_plan(Some("try"), world.path(), &typed, None, &Unobserved);
    let plan = made.expect("it can be read").plan;
    assert!(is_locked(write()), "it still does");
    let found = manager.diff(&plan, None).expect("it is compared");
    assert!(found.resources.iter().all(|one| one.diff.is_empty()));
    assert!(is_locked(write()), "it still does");
}

// rule F8
#[test]
fn every_row_of_a_table_with_another_form_is_in_the_diff() {
    let changes = |before: &str, statements: &str| -> Vec<String> {
        let it = Staging::new(before);
        run(&it.copy(), statements);
        let found = it.opened().diff(None, None).expect("it is compared");
        let text = |one: &Change| match &one.detail {
            Detail::Row(row) => {
                format!(
                    "{} {} {}",
                    one.path,
                    row.before.as_str(),
                    row.after.as_str()
                )
            }
            _ => one.path.to_string(),
        };
        found.changes.iter().map(text).collect()
    };
    // A column that is filled, and one whose name hides the number of a row.
    assert_eq!(
        changes(
            "CREATE TABLE t (k TEXT PRIMARY KEY, v); INSERT INTO t VALUES ('a', 1), ('b', 2)",
            "DROP TABLE t; CREATE TABLE t (k TEXT PRIMARY KEY, v, rowid); INSERT INTO t VALUES ('a', 1, 5), ('b', 3, NULL)"
        ),
        [
            "t",
            r#"t/a {"rowid":null} {"rowid":5}"#,
            r#"t/b {"v":2} {"v":3}"#
        ]
    );
    assert_eq!(
        changes(
            "CREATE TABLE t (k TEXT PRIMARY KEY, v); INSERT INTO t VALUES ('a', 1), ('b', NULL)",
            "ALTER TABLE t DROP COLUMN v"
        ),
        ["t", r#"t/a {"v":1} {"v":null}"#]
    );
    // Another key: rows that are equal are no change, the others are told by what they hold.
    let found = changes(
        TWO,
        "ALTER TABLE t RENAME TO was; CREATE TABLE t (id PRIMARY KEY, v) WITHOUT ROWID;
         INSERT INTO t SELECT * FROM was WHERE id = 1; INSERT INTO t VALUES (3, 'new'); DROP TABLE was",
    );
    let ends: Vec<&str> = found
        .iter()
        .filter_map(|one| one.split_once(' '))
        .map(|one| one.1)
        .collect();
    assert_eq!(
        ends,
        [r#"{"id":2,"v":"old"} null"#, r#"null {"id":3,"v":"new"}"#],
        "{found:?}"
    );
}

// rule R1
#[test]
fn sandboxes_and_checkpoints_share_their_pages_where_the_file_system_can() {
    for mode in ["DELETE", "WAL"] {
        let disk = need!(LoopFs::new(Fs::Btrfs, 320));
        let fill = format!(
            "PRAGMA journal_mode = {mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, v);
             WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             INSERT INTO t SELECT i, randomblob(8000) FROM n"
        );
        let it = Staging::in_world(World::under(disk.path()), &fill);
        let opened = it.opened();
        for round in 0..3 {
            run(
                &it.copy(),
                &format!("UPDATE t SET v = {round} WHERE id = 7"),
            );
            opened.checkpoint(None, &Unobserved).expect("it is kept");
        }
        let df = "sync; df --output=used -B1 . | tail -1";
        let used: u64 = sh(disk.path(), df).trim().parse().expect("a number");
        // The original alone takes 16 MiB; a copy, a base and three checkpoints are there too.
        assert!(used < 40 << 20, "{mode}: {used}");
        let asked = Connection::open(it.world.at("area/checkpoints/1")).and_then(|kept| {
            let sql = "SELECT v FROM t WHERE id = 7";
            kept.query_row(sql, [], |row| row.get::<_, i64>(0))
        });
        assert_eq!(asked, Ok(1), "{mode}");
    }
}
