//! SQLite databases: the contract, and random histories of both sides against a model that shares no code with the merge.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use escrow::event::Unobserved;
use escrow::manager::Manager;
use escrow::model::resource::SQLITE;
use escrow::strategy::Registry;
use escrow::strategy::conformance::{SqliteFixture, run};
use escrow_testkit::World;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::commit_support::{PLAIN, request};
use crate::support::options;

// rule P1
#[test]
fn the_strategies_of_databases_keep_the_contract() {
    let world = World::new();
    let registry = Registry::builtin();
    let ours = registry.registrations();
    let ours: Vec<_> = ours.filter(|one| one.types() == [SQLITE]).collect();
    let names: Vec<&str> = ours.iter().map(|one| one.name()).collect();
    assert_eq!(names, ["snapshot", "filesystem_copy"]);
    for one in ours {
        for fixture in [
            SqliteFixture::new(world.path()),
            SqliteFixture::with_log(world.path()),
        ] {
            let report = run(&**one.strategy(), &fixture);
            assert!(report.checks.len() > 20, "the promises are asked");
            assert_eq!(report.problems(), Vec::<String>::new());
        }
    }
}

/// A small generator: the same seed, the same history.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn value(&mut self) -> Value {
        match self.roll(6) {
            0 => Value::Null,
            1 => Value::Real(self.roll(3) as f64),
            2 => Value::Text(format!("t{}", self.roll(3))),
            3 => Value::Blob(vec![b't', b'0' + self.roll(3) as u8]),
            _ => Value::Integer(self.roll(3) as i64),
        }
    }
}

/// The tables of a history: each has two columns besides its key.
const TABLES: [(&str, &str); 3] = [
    (
        "numbered",
        "CREATE TABLE numbered (k INTEGER PRIMARY KEY, a, b)",
    ),
    ("named", "CREATE TABLE named (k TEXT PRIMARY KEY, a, b)"),
    (
        "packed",
        "CREATE TABLE packed (k TEXT PRIMARY KEY, a, b) WITHOUT ROWID",
    ),
];

/// A value with its class, as the model compares it.
type Exact = String;

fn exact(value: &Value) -> Exact {
    match value {
        Value::Real(number) => format!("Real {:x}", number.to_bits()),
        other => format!("{other:?}"),
    }
}

/// What a database holds: rows by table and key, and rows without a key by how often they are there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Model {
    rows: BTreeMap<(String, String), [Exact; 2]>,
    loose: BTreeMap<[Exact; 2], i64>,
}

impl Model {
    fn read(at: &Path) -> Self {
        let database = Connection::open(at).expect("it opens");
        let mut model = Self::default();
        for (name, _) in TABLES {
            let sql = format!("SELECT CAST(k AS TEXT), a, b FROM {name}");
            let mut select = database.prepare(&sql).expect("the table is there");
            let rows = select.query_map([], |row| {
                let values = [exact(&row.get(1)?), exact(&row.get(2)?)];
                Ok(((name.to_owned(), row.get(0)?), values))
            });
            let rows = rows.expect("it reads").map(|row| row.expect("it reads"));
            model.rows.extend(rows);
        }
        let mut select = database.prepare("SELECT a, b FROM loose").expect("a table");
        let rows = select.query_map([], |row| Ok([exact(&row.get(0)?), exact(&row.get(1)?)]));
        for row in rows.expect("it reads") {
            *model.loose.entry(row.expect("it reads")).or_default() += 1;
        }
        model
    }
}

/// Makes some random changes, as an application would.
fn work(at: &Path, dice: &mut Dice, count: u64) {
    let database = Connection::open(at).expect("it opens");
    for _ in 0..count {
        let (a, b, key) = (dice.value(), dice.value(), dice.roll(6));
        let done = match dice.roll(4) {
            3 => {
                let sql = match dice.roll(2) {
                    0 => "INSERT INTO loose VALUES (?1, ?2)",
                    _ => {
                        "DELETE FROM loose WHERE rowid = (SELECT rowid FROM loose ORDER BY a IS ?1, b IS ?2 LIMIT 1)"
                    }
                };
                database.execute(sql, (a, b))
            }
            table => {
                let name = TABLES[table as usize].0;
                let key = match table {
                    0 => Value::Integer(key as i64),
                    _ => Value::Text(format!("k{key}")),
                };
                match dice.roll(5) {
                    0 => database.execute(&format!("DELETE FROM {name} WHERE k = ?1"), (key,)),
                    1 => database
                        .execute(&format!("UPDATE {name} SET a = ?2 WHERE k = ?1"), (key, a)),
                    2 => database
                        .execute(&format!("UPDATE {name} SET b = ?2 WHERE k = ?1"), (key, b)),
                    _ => database.execute(
                        &format!("INSERT OR REPLACE INTO {name} VALUES (?1, ?2, ?3)"),
                        (key, a, b),
                    ),
                }
            }
        };
        done.expect("the statement is right");
    }
    if dice.roll(4) == 0 {
        database
            .execute_batch("VACUUM")
            .expect("it can be written anew");
    }
}

/// What a commit must make of three versions, and which rows contradict it.
fn merged(base: &Model, ours: &Model, theirs: &Model) -> (Model, BTreeSet<String>) {
    let (mut result, mut conflicts) = (theirs.clone(), BTreeSet::new());
    let keys: BTreeSet<_> = base.rows.keys().chain(ours.rows.keys()).collect();
    for key in keys {
        let (was, is, there) = (base.rows.get(key), ours.rows.get(key), theirs.rows.get(key));
        if was == is || is == there {
            continue;
        }
        let item = || format!("{}/{}", key.0, key.1);
        match (was, is, there) {
            (_, None, _) if was == there => drop(result.rows.remove(key)),
            (_, Some(is), _) if was == there => drop(result.rows.insert(key.clone(), is.clone())),
            (Some(was), Some(is), Some(there)) => {
                let mut row = there.clone();
                for column in 0..2 {
                    if is[column] == was[column] || is[column] == there[column] {
                        continue;
                    }
                    if there[column] != was[column] {
                        conflicts.insert(item());
                    }
                    row[column] = is[column].clone();
                }
                result.rows.insert(key.clone(), row);
            }
            _ => drop(conflicts.insert(item())),
        }
    }
    let rows: BTreeSet<_> = base.loose.keys().chain(ours.loose.keys()).collect();
    for row in rows {
        let count = |model: &Model| model.loose.get(row).copied().unwrap_or_default();
        let change = count(ours) - count(base);
        if count(theirs) + change < 0 {
            conflicts.insert("loose".to_owned());
        }
        match count(theirs) + change {
            0 => drop(result.loose.remove(row)),
            left => drop(result.loose.insert(row.clone(), left)),
        }
    }
    (result, conflicts)
}

fn history(seed: u64) {
    let world = World::new();
    let at: PathBuf = world.path().join("app.db");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    {
        let database = Connection::open(&at).expect("it is made");
        let mode = ["DELETE", "WAL", "TRUNCATE"][dice.roll(3) as usize];
        let set = database.pragma_update(None, "journal_mode", mode);
        set.expect("a mode of SQLite");
        for sql in TABLES.map(|(_, sql)| sql) {
            database.execute_batch(sql).expect("a table");
        }
        database
            .execute_batch("CREATE TABLE loose (a, b)")
            .expect("a table");
    }
    work(&at, &mut dice, 20);
    let manager = Manager::open(options(&world.path().join("state"))).expect("it opens");
    let typed = [at.clone().into_os_string()];
    let made = manager.create_plan(Some("try"), world.path(), &typed, None, &Unobserved);
    let view = made.expect("it can be sandboxed");
    let (plan, resource) = (view.plan, &view.sandboxes[0].resource);
    let base = Model::read(&at);
    let access = manager
        .access(&plan, resource, None)
        .expect("it has a path");
    let copy = access.cwd.expect("it has a path").as_path().to_owned();
    assert_eq!(Model::read(&copy), base, "seed {seed}");
    let changes = dice.roll(6);
    work(&copy, &mut dice, changes);
    let changes = dice.roll(4);
    work(&at, &mut dice, changes);
    let (ours, theirs) = (Model::read(&copy), Model::read(&at));
    let (wanted, conflicts) = merged(&base, &ours, &theirs);

    let previewed = manager.preview(&plan, PLAIN);
    let found: BTreeSet<String> = match &previewed {
        Ok(previewed) => previewed
            .members
            .iter()
            .flat_map(|one| &one.conflicts)
            .map(|one| match one.path.to_string().split_once('/') {
                Some(("loose", _)) => "loose".to_owned(),
                _ => one.path.to_string(),
            })
            .collect(),
        Err(error) => panic!("seed {seed}: {error}"),
    };
    assert_eq!(found, conflicts, "seed {seed}");
    let committed = manager.commit(&plan, &request(PLAIN), &Unobserved);
    match conflicts.is_empty() {
        false => {
            committed.expect_err("it contradicts");
            assert_eq!(Model::read(&at), theirs, "seed {seed}: nothing moved");
        }
        true => {
            committed.expect("nothing contradicts");
            assert_eq!(Model::read(&at), wanted, "seed {seed}");
            manager.undo(&plan, &Unobserved).expect("nothing moved on");
            assert_eq!(Model::read(&at), theirs, "seed {seed}: taken back");
        }
    }
}

// rule Q2, Q4
#[test]
fn random_histories_of_both_sides_are_merged_as_the_model_says() {
    let set = |name: &str, usual: u64| {
        let set = std::env::var(name).ok();
        set.map_or(usual, |text| text.parse().expect("a number"))
    };
    let first = set("ESCROW_SEED", 1);
    for seed in first..first + set("ESCROW_HISTORIES", 120) {
        history(seed);
    }
}
