//! Random histories of a SQLite database and its sandbox: against a model that shares no code with the merge, against
//! SQLite's own `sqldiff`, and with another process that writes without a rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use escrow::commit::CommitTerms;
use escrow::error::Error;
use escrow::event::Unobserved;
use escrow::internals::store::Plan;
use escrow::manager::{CommitRequest, Manager};
use escrow::model::{Change, Detail};
use escrow::strategy::OnConflict;
use escrow_testkit::World;
use escrow_testkit::model::Rng;
use escrow_testkit::rusqlite::Connection;
use escrow_testkit::rusqlite::types::Value;
use serde_json::Value as Json;

use crate::support::options;

/// Nothing is resolved, nothing is let pass.
const PLAIN: CommitTerms = CommitTerms {
    on_conflict: OnConflict::Abort,
    merge: false,
    strict: false,
    allow_partial: false,
};

fn request() -> CommitRequest<'static> {
    CommitRequest {
        terms: PLAIN,
        ..CommitRequest::default()
    }
}

/// What happens in a history: the same for the same seed.
pub(crate) struct Dice(Rng);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0.next_u64() % sides
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
    /// Rows to which a migration gave more in its new column than that column's default.
    given: BTreeSet<(String, String)>,
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
            let sql =
                format!("SELECT dflt_value FROM pragma_table_info('{name}') WHERE name = 'c'");
            let default = database.query_row(&sql, [], |row| row.get::<_, Option<String>>(0));
            let Ok(default) = default else {
                continue;
            };
            let default = default.unwrap_or("NULL".to_owned());
            let sql = format!("SELECT CAST(k AS TEXT) FROM {name} WHERE c IS NOT {default}");
            let mut select = database.prepare(&sql).expect("the column is there");
            let keys = select.query_map([], |row| Ok((name.to_owned(), row.get(0)?)));
            let keys = keys.expect("it reads").map(|key| key.expect("it reads"));
            model.given.extend(keys);
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
                        &format!("INSERT OR REPLACE INTO {name} (k, a, b) VALUES (?1, ?2, ?3)"),
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

/// Gives some tables another form: a new column, or the columns in another order as well, as migrations do that make a table anew.
fn migrate(at: &Path, dice: &mut Dice) {
    let database = Connection::open(at).expect("it opens");
    for (name, made) in TABLES {
        let sql = match dice.roll(4) {
            0 => continue,
            1 => format!("ALTER TABLE {name} ADD COLUMN c"),
            2 => format!("ALTER TABLE {name} ADD COLUMN c NOT NULL DEFAULT 7"),
            _ => {
                let columns = made.replace(
                    &format!("TABLE {name} (k"),
                    "TABLE new (c DEFAULT 'x', b, k",
                );
                let columns = columns.replace(", a, b)", ", a)");
                format!(
                    "{columns}; INSERT INTO new (k, a, b, c) SELECT k, a, b, 8 FROM {name}; DROP TABLE {name}; \
                     ALTER TABLE new RENAME TO {name}"
                )
            }
        };
        database.execute_batch(&sql).expect("it is right");
    }
}

/// What a commit must make of three versions, and which rows contradict it.
fn merged(base: &Model, ours: &Model, theirs: &Model) -> (Model, BTreeSet<String>) {
    let (mut result, mut conflicts) = (theirs.clone(), BTreeSet::new());
    let keys: BTreeSet<_> = base.rows.keys().chain(ours.rows.keys()).collect();
    for key in keys {
        let (was, is, there) = (base.rows.get(key), ours.rows.get(key), theirs.rows.get(key));
        let item = || format!("{}/{}", key.0, key.1);
        if was == is && there.is_none() && ours.given.contains(key) {
            conflicts.insert(item());
        }
        if was == is || is == there {
            continue;
        }
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
    let given = ours.given.iter();
    let given = given.filter(|key| result.rows.contains_key(*key)).cloned();
    result.given = given.collect();
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

/// A plan of a database, and where its copy is.
fn planned(manager: &Manager, world: &World, at: &Path) -> (Plan, PathBuf) {
    let typed = [at.as_os_str().to_owned()];
    let made = manager.create_plan(Some("try"), world.path(), &typed, None, &Unobserved);
    let view = made.expect("it can be sandboxed");
    let access = manager.access(&view.plan, &view.sandboxes[0].resource, None);
    let copy = access.expect("it has a path").cwd.expect("it has a path");
    (view.plan, copy.as_path().to_owned())
}

/// What `sqldiff` says to do to make one database of the other, for tables with a key.
fn sqldiff(from: &Path, to: &Path) -> Vec<String> {
    let mut program = Command::new("sqldiff");
    let out = program.arg("--primarykey").arg(from).arg(to).output();
    let out = out.expect("sqldiff starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.is_empty(), "{said}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.contains(" loose"));
    lines.map(str::to_owned).collect()
}

/// What a statement of `sqldiff` is about: `+`, `-` or `~`, table and key.
fn subject(statement: &str) -> String {
    let words: Vec<&str> = statement.split(' ').collect();
    let (sign, table) = match words[0] {
        "INSERT" => ("+", words[2].split('(').next().unwrap_or_default()),
        "DELETE" => ("-", words[2]),
        _ => ("~", words[1]),
    };
    let key = match words[0] {
        "INSERT" => statement
            .split_once("VALUES(")
            .map(|(_, rest)| rest.split(',').next()),
        _ => statement
            .split_once("WHERE k=")
            .map(|(_, rest)| rest.split(';').next()),
    };
    let key = key.flatten().unwrap_or_default().replace('\'', "");
    format!("{sign} {table}/{key}")
}

/// The same of a change of ours; none for rows without a key, and where only the class of a number differs, which
/// `sqldiff` does not see.
fn subject_of(change: &Change) -> Option<String> {
    let Detail::Row(row) = &change.detail else {
        return None;
    };
    let value = |side: &Json, name: &str| match &side[name] {
        Json::Number(number) => number.as_f64().map_or(Json::Null, Json::from),
        other => other.clone(),
    };
    let (before, after) = (row.before.value(), row.after.value());
    let same = |name: &str| value(&before, name) == value(&after, name);
    let sign = match (before.is_null(), after.is_null()) {
        (true, _) => "+",
        (_, true) => "-",
        _ if ["a", "b"].into_iter().all(same) => return None,
        _ => "~",
    };
    (row.table != "loose").then(|| format!("{sign} {}", change.path))
}

/// Without the class of numbers, which a database that was made from the output of `sqldiff` does not keep.
fn without_classes(model: &Model) -> BTreeMap<(String, String), [Exact; 2]> {
    let plain = |value: &Exact| match value.strip_prefix("Real ") {
        Some(bits) => {
            let bits = u64::from_str_radix(bits, 16).expect("bits of a number");
            format!("Integer({})", f64::from_bits(bits))
        }
        None => value.clone(),
    };
    let rows = model.rows.iter();
    rows.map(|(key, [a, b])| (key.clone(), [plain(a), plain(b)]))
        .collect()
}

/// Commits and takes back what two sides did, and compares every step.
pub(crate) fn history(seed: u64) {
    let world = World::new();
    let at: PathBuf = world.path().join("app.db");
    let mut dice = Dice(Rng::new(seed));
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
    let was = world.path().join("was.db");
    std::fs::copy(&at, &was).expect("it is at rest");
    let (plan, copy) = planned(&manager, &world, &at);
    let base = Model::read(&at);
    assert_eq!(Model::read(&copy), base, "seed {seed}");
    // `sqldiff` compares tables of one form only.
    let migrated = dice.roll(3) == 0;
    if migrated {
        migrate(&copy, &mut dice);
    }
    let changes = dice.roll(6);
    work(&copy, &mut dice, changes);
    let changes = dice.roll(4);
    work(&at, &mut dice, changes);
    let (ours, theirs) = (Model::read(&copy), Model::read(&at));
    let (wanted, conflicts) = merged(&base, &ours, &theirs);

    let statements = match migrated {
        true => Vec::new(),
        false => sqldiff(&was, &copy),
    };
    let said: BTreeSet<String> = statements.iter().map(|one| subject(one)).collect();
    let listed = manager.diff(&plan, None).expect("it is compared");
    let changes = &listed.resources[0].diff.changes;
    let listed: BTreeSet<String> = changes.iter().filter_map(subject_of).collect();
    if !migrated {
        assert_eq!(listed, said, "seed {seed}: sqldiff");
    }
    // What is merged is what comes out where the statements of `sqldiff` are run on the original.
    let by_hand = world.path().join("by-hand.db");
    std::fs::copy(&at, &by_hand).expect("it is at rest");

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
    let committed = manager.commit(&plan, &request(), &Unobserved);
    match conflicts.is_empty() {
        false => {
            committed.expect_err("it contradicts");
            assert_eq!(Model::read(&at), theirs, "seed {seed}: nothing moved");
        }
        true => {
            committed.expect("nothing contradicts");
            assert_eq!(Model::read(&at), wanted, "seed {seed}");
            if !migrated {
                let hand = Connection::open(&by_hand).expect("it opens");
                for statement in &statements {
                    // A row that both added is there.
                    let statement = statement.replace("INSERT INTO", "INSERT OR REPLACE INTO");
                    hand.execute_batch(&statement).expect("sqldiff is right");
                }
                drop(hand);
                let (ours, hand) = (Model::read(&at), Model::read(&by_hand));
                assert_eq!(
                    without_classes(&ours),
                    without_classes(&hand),
                    "seed {seed}: sqldiff"
                );
            }
            manager.undo(&plan, &Unobserved).expect("nothing moved on");
            assert_eq!(Model::read(&at), theirs, "seed {seed}: taken back");
        }
    }
}

/// How many rows another process writes.
const ROWS: i64 = 6;

/// One transaction of another process: in `row` it found the value `saw`, and wrote `wrote`.
struct Written {
    row: i64,
    saw: String,
    wrote: String,
}

/// Writes to random rows without a rest: a number into the column that is its own, and every third time something into
/// the one that the sandbox changes too.
fn write_on(at: &Path, dice: &mut Dice, stop: &AtomicBool) -> (BTreeMap<i64, i64>, Vec<Written>) {
    let own = Connection::open(at).expect("it opens");
    let patience = std::time::Duration::from_secs(60);
    own.busy_timeout(patience).expect("a time");
    let (mut theirs, mut shared) = (BTreeMap::new(), Vec::new());
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let row = dice.roll(ROWS as u64) as i64;
        own.execute_batch("BEGIN IMMEDIATE")
            .expect("its turn comes");
        if dice.roll(3) == 0 && row % 2 == 0 {
            let saw = "SELECT shared FROM t WHERE id = ?1";
            let saw = own.query_row(saw, [row], |row| row.get(0)).expect("a row");
            let wrote = format!("theirs {number}");
            own.execute("UPDATE t SET shared = ?2 WHERE id = ?1", (row, &wrote))
                .expect("a row");
            shared.push(Written { row, saw, wrote });
        } else {
            own.execute("UPDATE t SET theirs = ?2 WHERE id = ?1", (row, number))
                .expect("a row");
            theirs.insert(row, number);
        }
        own.execute_batch("COMMIT").expect("it is committed");
        std::thread::sleep(std::time::Duration::from_micros(dice.roll(3000)));
    }
    (theirs, shared)
}

/// A commit while another process writes the same rows: what it writes stays, and a conflict names what both changed.
pub(crate) fn raced(seed: u64) {
    let world = World::new();
    let at = world.path().join("app.db");
    let mut dice = Dice(Rng::new(seed));
    let made = Connection::open(&at).expect("it is made");
    let mode = ["DELETE", "WAL"][dice.roll(2) as usize];
    made.pragma_update(None, "journal_mode", mode)
        .expect("a mode of SQLite");
    made.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, shared, theirs, ours)")
        .expect("a table");
    for row in 0..ROWS {
        made.execute("INSERT INTO t VALUES (?1, 'first', 0, 0)", [row])
            .expect("a row");
    }
    drop(made);
    let manager = Manager::open(options(&world.path().join("state"))).expect("it opens");
    let stop = AtomicBool::new(false);
    let mut others = Dice(Rng::new(dice.roll(u64::MAX)));
    let contested = dice.roll(2) == 0;
    let (outcome, base, (theirs, shared)) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&at, &mut others, &stop));
        let (plan, copy) = planned(&manager, &world, &at);
        let own = Connection::open(&copy).expect("it opens");
        let mut base: BTreeMap<i64, String> = BTreeMap::new();
        for row in 0..ROWS {
            let was = "SELECT shared FROM t WHERE id = ?1";
            let was = own.query_row(was, [row], |row| row.get(0)).expect("a row");
            base.insert(row, was);
        }
        own.execute_batch(match contested {
            true => "UPDATE t SET ours = 1, shared = 'ours' WHERE id < 3",
            false => "UPDATE t SET ours = 1, shared = 'ours' WHERE id % 2 = 1",
        })
        .expect("rows");
        drop(own);
        std::thread::sleep(std::time::Duration::from_micros(dice.roll(20_000)));
        let mut outcome = manager.commit(&plan, &request(), &Unobserved);
        // A writer that comes between the last look and the transaction is no conflict yet: nothing was done.
        while matches!(&outcome, Err(error) if chain(error).contains("changed meanwhile")) {
            outcome = manager.commit(&plan, &request(), &Unobserved);
        }
        std::thread::sleep(std::time::Duration::from_micros(dice.roll(10_000)));
        stop.store(true, Ordering::Relaxed);
        (outcome, base, writer.join().expect("it met no error"))
    });
    let named: Option<BTreeSet<String>> = match &outcome {
        Ok(_) => None,
        Err(Error::Conflicts { conflicts, .. }) => {
            let all = conflicts.iter().map(|(_, one)| one.path.to_string());
            Some(all.collect())
        }
        Err(error) => panic!("seed {seed}: {}", chain(error)),
    };
    let database = Connection::open(&at).expect("it opens");
    for row in 0..ROWS {
        let sql = "SELECT shared, theirs, ours FROM t WHERE id = ?1";
        let now: (String, i64, i64) = database
            .query_row(sql, [row], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .expect("a row");
        let their = theirs.get(&row).copied().unwrap_or_default();
        assert_eq!(
            now.1, their,
            "seed {seed}: row {row} lost what others wrote"
        );
        let changed = match contested {
            true => row < 3,
            false => row % 2 == 1,
        };
        let released = named.is_none() && changed;
        assert_eq!(now.2, i64::from(released), "seed {seed}: row {row}");
        // What the other process wrote since the sandbox was made, and what it found.
        let of_row: Vec<&Written> = shared.iter().filter(|one| one.row == row).collect();
        let first = of_row.iter().position(|one| one.wrote == base[&row]);
        let since = &of_row[first.map_or(0, |first| first + 1)..];
        let (mut expected, mut seen) = (base[&row].clone(), false);
        for one in since {
            if one.saw == "ours" && !seen {
                // Ours came in between: nothing that was written since the base may have been there.
                assert!(
                    released && expected == base[&row],
                    "seed {seed}: row {row} was overwritten"
                );
                seen = true;
            } else {
                assert_eq!(one.saw, expected, "seed {seed}: row {row}");
            }
            expected.clone_from(&one.wrote);
        }
        if released && !seen {
            assert!(since.is_empty(), "seed {seed}: row {row} was overwritten");
            expected = "ours".to_owned();
        }
        assert_eq!(now.0, expected, "seed {seed}: row {row}");
        if let Some(named) = &named {
            let is_named = named.contains(&format!("t/{row}"));
            assert!(
                !is_named || (changed && !since.is_empty()),
                "seed {seed}: row {row}"
            );
        }
    }
    assert!(named.is_none_or(|named| !named.is_empty()), "seed {seed}");
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
