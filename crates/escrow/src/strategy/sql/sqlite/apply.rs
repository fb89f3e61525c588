//! Carries a plan out, or takes it back, in one transaction of SQLite on the live original (rule Q5).
//!
//! No table of ours says whether the transaction was committed (rule Q1). A mark in the area is made before the transaction
//! ends: without it, nothing was done, and what looks like it was written by another process. With it the rows tell: one
//! transaction changes all of them or none, so that one version of ours says that all of them were there, and what is
//! otherwise now was changed by another process since.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::params_from_iter;

use super::connect::{Database, Use};
use super::diff::{Lookup, each, table_digest};
use super::plan::{BEGUN, NEW, OLD, OpenPlan, SettingSwap, TableSwap, UNDOING, WholeTable};
use super::schema::{Object, Schema, Table, literal, quoted, setting};
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::record::RowSwap;
use crate::strategy::sql::{Row, RowKey, Value, row_item, setting_item, table_item};
use crate::strategy::{PathSample, RollbackReport};

/// Which version is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The one after.
    Forward,
    /// The one before.
    Back,
}

impl Direction {
    /// The file that holds the version that is made.
    fn version(self) -> &'static str {
        match self {
            Self::Forward => NEW,
            Self::Back => OLD,
        }
    }

    /// The mark that it is made.
    fn mark(self) -> &'static [u8] {
        match self {
            Self::Forward => BEGUN,
            Self::Back => UNDOING,
        }
    }

    /// The version that is looked for, and the one that is made.
    fn of<'v, T>(self, before: &'v T, after: &'v T) -> (&'v T, &'v T) {
        match self {
            Self::Forward => (before, after),
            Self::Back => (after, before),
        }
    }
}

/// Which version the original holds of something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// The one that is to become another.
    From,
    /// The one that it is to become.
    To,
    /// Neither.
    Other,
}

fn holds<T: PartialEq>(now: &T, from: &T, to: &T) -> Holds {
    match () {
        () if now == from => Holds::From,
        () if now == to => Holds::To,
        () => Holds::Other,
    }
}

/// What the original holds of everything in a plan.
struct State {
    rows: Vec<Holds>,
    whole: Vec<Holds>,
    objects: Vec<Holds>,
    settings: Vec<Holds>,
    /// What is neither version.
    others: Vec<ResourcePath>,
    /// The tables that have another form than in the plan: none of their rows is looked for.
    reshaped: Vec<ResourcePath>,
}

impl State {
    fn all(&self) -> impl Iterator<Item = Holds> + '_ {
        let lists = [&self.rows, &self.whole, &self.objects, &self.settings];
        lists.into_iter().flatten().copied()
    }

    fn any(&self, one: Holds) -> bool {
        self.all().any(|holds| holds == one)
    }

    /// Everything that another process changed.
    fn moved(&self) -> impl Iterator<Item = &ResourcePath> {
        self.reshaped.iter().chain(&self.others)
    }
}

/// The item of a row of a plan.
fn item(table: &Table, swap: &RowSwap) -> ResourcePath {
    let row = swap.after.as_ref().or(swap.before.as_ref());
    let key = row.and_then(|row| table.key(swap.rowid, row));
    let key = key.unwrap_or_else(|| swap.rowid.map(Value::Integer).into_iter().collect());
    row_item(&table.name, &RowKey::Values(key))
}

/// The row that a swap is about, as the original holds it, with its number.
fn find(
    lookup: &mut Lookup<'_>,
    table: &Table,
    swap: &RowSwap,
) -> Result<(Option<i64>, Option<Row>)> {
    let either = swap.before.as_ref().or(swap.after.as_ref());
    let found = match either.and_then(|row| table.key(swap.rowid, row)) {
        Some(key) => lookup.key(&key)?,
        None => match swap.rowid {
            Some(rowid) => lookup.number(rowid)?,
            None => None,
        },
    };
    Ok(found.map_or((swap.rowid, None), |(rowid, row)| (rowid, Some(row))))
}

/// Does something with each row of a plan, in their order, where its table has the form that it has in the plan.
fn each_row(
    plan: &OpenPlan,
    original: &Database,
    reshaped: &[ResourcePath],
    mut work: impl FnMut(usize, &RowSwap, &Table, &mut Lookup<'_>) -> Result<()>,
) -> Result<()> {
    let lookups = plan.plan.tables.iter().map(|table| {
        let same = !reshaped.contains(&table_item(&table.name));
        same.then(|| Lookup::new(original, table)).transpose()
    });
    let mut lookups: Vec<Option<Lookup<'_>>> = lookups.collect::<Result<_>>()?;
    for (number, swap) in plan.rows()?.enumerate() {
        let swap = swap?;
        let table = plan.table(&swap)?;
        if let Some(lookup) = &mut lookups[swap.table as usize] {
            work(number, &swap, table, lookup)?;
        }
    }
    Ok(())
}

fn state(plan: &OpenPlan, original: &Database, direction: Direction) -> Result<State> {
    let schema = Schema::read(original)?;
    let mut state = State {
        rows: Vec::new(),
        whole: Vec::new(),
        objects: Vec::new(),
        settings: Vec::new(),
        others: Vec::new(),
        reshaped: Vec::new(),
    };
    let tables = plan.plan.tables.iter();
    let reshaped = tables.filter(|table| schema.tables.get(&table.name) != Some(table));
    state.reshaped = reshaped.map(|table| table_item(&table.name)).collect();
    each_row(
        plan,
        original,
        &state.reshaped,
        |number, swap, table, lookup| {
            let (_, now) = find(lookup, table, swap)?;
            let (from, to) = direction.of(&swap.before, &swap.after);
            let held = holds(&now, from, to);
            if held == Holds::Other {
                state.others.push(item(table, swap));
            }
            state.rows.resize(number, Holds::Other);
            state.rows.push(held);
            Ok(())
        },
    )?;
    for swap in &plan.plan.whole {
        let digest = |side: &Option<WholeTable>| side.as_ref().map(|one| one.digest.clone());
        let (before, after) = (digest(&swap.before), digest(&swap.after));
        let now = table_digest(original, &schema, &swap.name)?;
        let (from, to) = direction.of(&before, &after);
        state.whole.push(holds(&now, from, to));
        if state.whole.last() == Some(&Holds::Other) {
            state.others.push(table_item(&swap.name));
        }
    }
    for swap in &plan.plan.objects {
        let Some(object) = swap.after.as_ref().or(swap.before.as_ref()) else {
            continue;
        };
        let sql = |side: &Option<Object>| side.as_ref().map(|one| one.sql.clone());
        let (before, after) = (sql(&swap.before), sql(&swap.after));
        let key = (object.kind.clone(), object.name.clone());
        let now = schema.objects.get(&key).map(|one| one.sql.clone());
        let (from, to) = direction.of(&before, &after);
        let held = holds(&now, from, to);
        let misfit = held == Holds::From && to.is_some() && !fits(plan, &schema, &state, object);
        state.objects.push(if misfit { Holds::Other } else { held });
        if state.objects.last() == Some(&Holds::Other) {
            state.others.push(object.item());
        }
    }
    for swap in &plan.plan.settings {
        let now = setting(original, &swap.name)?;
        let (from, to) = direction.of(&swap.before, &swap.after);
        state.settings.push(holds(&now, from, to));
        if state.settings.last() == Some(&Holds::Other) {
            state.others.push(setting_item(&swap.name));
        }
    }
    Ok(state)
}

/// Whether what an index or a trigger belongs to is there, or is made with it, and has the form that it needs.
fn fits(plan: &OpenPlan, schema: &Schema, state: &State, object: &Object) -> bool {
    let swaps = plan.plan.objects.iter();
    let made = swaps.flat_map(|swap| [&swap.before, &swap.after]).flatten();
    let mut all = schema.objects.values().chain(made);
    all.any(|one| one.name == object.table) && !state.reshaped.contains(&table_item(&object.table))
}

fn moved(path: &ResourcePath) -> StrategyError {
    StrategyError::Moved {
        path: path.clone(),
        what: "another program changed it in the original".to_owned(),
    }
}

/// Does something in one transaction that ends with a mark. Where SQLite refuses to commit it, such as while another process
/// reads or when the disk is full, the mark goes again: the next attempt would take the work for done.
fn in_transaction(
    plan: &OpenPlan,
    original: &Database,
    direction: Direction,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mark = direction.mark();
    let was_marked = plan.is_marked(mark)?;
    let done = original.transaction(true, work);
    if done.is_err() && !was_marked && plan.is_marked(mark)? {
        // The transaction leaves nothing as it was; an error after its last step may come too late to stop it.
        let now = original.transaction(false, || state(plan, original, direction));
        if now.is_ok_and(|now| now.any(Holds::From)) {
            plan.unmark(mark)?;
        }
    }
    done
}

/// Carries a commit out, or finds that it was.
pub(super) fn commit(plan: &OpenPlan) -> Result<()> {
    let original = open(plan)?;
    let _versions = Attached::new(&original, plan, Direction::Forward)?;
    in_transaction(plan, &original, Direction::Forward, || {
        let state = state(plan, &original, Direction::Forward)?;
        if plan.is_marked(BEGUN)? && state.any(Holds::To) {
            // It was carried out before; what others did since is theirs.
            return Ok(());
        }
        if let Some(other) = state.moved().next() {
            return Err(moved(other));
        }
        if state.any(Holds::To) {
            return Err(moved(&item_of_state(plan, &state)));
        }
        make(plan, &original, &state, Direction::Forward)?;
        plan.mark(BEGUN)
    })
}

/// Makes what a plan says in a transaction that is open, on rows that are as they were.
pub(super) fn remake(plan: &OpenPlan, original: &Database) -> Result<()> {
    let _versions = Attached::new(original, plan, Direction::Forward)?;
    let state = state(plan, original, Direction::Forward)?;
    match state.moved().next() {
        Some(other) => Err(moved(other)),
        None => make(plan, original, &state, Direction::Forward).map(drop),
    }
}

/// Stages tables that are brought over as a whole in a new database.
pub(super) fn stage_tables<'t>(
    from: &Database,
    at: &Path,
    tables: impl Iterator<Item = &'t WholeTable>,
) -> Result<()> {
    let to = super::connect::empty(at)?;
    let encoding = literal(&setting(from, "encoding")?);
    for pragma in [
        format!("encoding = {encoding}"),
        "foreign_keys = OFF".to_owned(),
    ] {
        to.run("stage a table", &format!("PRAGMA {pragma}"))?;
    }
    to.transaction(true, || {
        for WholeTable { table, objects, .. } in tables {
            for object in objects.iter().filter(|one| one.is_table()) {
                to.run("stage a table", &object.sql)?;
            }
            each(from, table, |rowid, row| insert(&to, table, rowid, &row))?;
        }
        Ok(())
    })
}

/// Something that is as it should become.
fn item_of_state(plan: &OpenPlan, state: &State) -> ResourcePath {
    let number = state.rows.iter().position(|one| *one == Holds::To);
    let row = number.and_then(|number| plan.rows().ok()?.nth(number)?.ok());
    let named = row.and_then(|swap| Some(item(plan.table(&swap).ok()?, &swap)));
    named.unwrap_or_else(ResourcePath::root)
}

/// Takes a commit back, as far as no other process changed what it wrote.
pub(super) fn undo(plan: &OpenPlan) -> Result<RollbackReport> {
    let mut report = RollbackReport::default();
    if !plan.is_marked(BEGUN)? {
        return Ok(report);
    }
    let original = open(plan)?;
    let _versions = Attached::new(&original, plan, Direction::Back)?;
    in_transaction(plan, &original, Direction::Back, || {
        let state = state(plan, &original, Direction::Back)?;
        if plan.is_marked(UNDOING)? && state.any(Holds::To) {
            return Ok(());
        }
        let there = Location::from(plan.original.as_path());
        let kept = state.moved().map(|item| (item.clone(), there.clone()));
        report.kept = kept.collect();
        if !state.any(Holds::From) {
            return Ok(());
        }
        report.paths = make(plan, &original, &state, Direction::Back)?;
        plan.mark(UNDOING)
    })?;
    Ok(report)
}

/// Where the original moved on since the commit.
pub(super) fn check_undo(plan: &OpenPlan) -> Result<Vec<Conflict>> {
    let original = Database::open(&plan.original, Use::Read)?;
    let state = original.transaction(false, || state(plan, &original, Direction::Back))?;
    let reshaped = "the original's table has other columns than when the commit was made";
    let changed = "it was changed in the original since the commit";
    let reshaped = state.reshaped.into_iter().map(|item| (item, reshaped));
    let others = state.others.into_iter().map(|item| (item, changed));
    let conflict = |(item, what)| Conflict::of(item, what);
    Ok(reshaped.chain(others).map(conflict).collect())
}

fn open(plan: &OpenPlan) -> Result<Database> {
    let original = Database::open(&plan.original, Use::Merge)?;
    // What is decided survives a power cut, whatever the application prefers: EXTRA also syncs that the journal is gone.
    original.run("make commits durable", "PRAGMA synchronous = EXTRA")?;
    Ok(original)
}

/// A staged version, from which whole tables are taken, beside the original.
struct Attached<'a>(Option<&'a Database>);

impl<'a> Attached<'a> {
    fn new(to: &'a Database, plan: &OpenPlan, direction: Direction) -> Result<Self> {
        if plan.plan.whole.is_empty() {
            return Ok(Self(None));
        }
        let at = plan.version(direction.version());
        let at = std::os::unix::ffi::OsStrExt::as_bytes(Path::as_os_str(&at));
        let text = Value::Text(at.to_vec());
        let done = to.sql.execute("ATTACH ?1 AS staged", [text]);
        done.map_err(to.failed("open what was staged"))?;
        let attached = Self(Some(to));
        // It is only read: the transaction stays one of the original alone, without a super-journal.
        if to.sql.is_autocommit() {
            to.run("open what was staged", "PRAGMA staged.synchronous = OFF")?;
        }
        Ok(attached)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.0 {
            // It ends with the connection at the latest.
            match of.run("close what was staged", "DETACH staged") {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// Makes the other version of everything that holds the one that is looked for.
fn make(
    plan: &OpenPlan,
    original: &Database,
    state: &State,
    direction: Direction,
) -> Result<PathSample> {
    let mut done = PathSample::default();
    let mut counted = super::diff::counters(original)?;
    let objects = plan.plan.objects.iter().zip(&state.objects);
    let objects: Vec<_> = objects
        .filter(|(_, held)| **held == Holds::From)
        .map(|(swap, _)| direction.of(&swap.before, &swap.after))
        .collect();
    for object in objects.iter().filter_map(|(from, _)| from.as_ref()) {
        drop_object(original, object)?;
        done.add(&object.item());
    }
    let whole = plan.plan.whole.iter().zip(&state.whole);
    for (swap, held) in whole {
        if *held == Holds::From {
            swap_table(plan, original, swap, direction)?;
            let (_, to) = direction.of(&swap.before, &swap.after);
            let counter = to.as_ref().and_then(|table| table.counter);
            ahead(&mut counted, &swap.name, counter);
            done.add(&table_item(&swap.name));
        }
    }
    swap_rows(plan, original, state, direction, &mut done)?;
    let created = objects.iter().filter_map(|(_, to)| to.as_ref());
    for object in in_order(created) {
        original.run(&format!("create {}", object.name), &object.sql)?;
        done.add(&object.item());
    }
    for (swap, held) in plan.plan.settings.iter().zip(&state.settings) {
        if *held == Holds::From {
            set(original, swap, direction)?;
            done.add(&setting_item(&swap.name));
        }
    }
    if direction == Direction::Forward {
        for (name, wanted) in &plan.plan.counters {
            ahead(&mut counted, name, Some(*wanted));
        }
    }
    set_counters(original, &counted)?;
    for name in &Schema::read(original)?.rebuilt {
        let name = quoted(name);
        let sql = format!("INSERT INTO {name}({name}) VALUES ('rebuild')");
        original.run("rebuild a full-text index", &sql)?;
    }
    Ok(done)
}

/// Indexes first, then views, then triggers, which may refer to both.
fn in_order<'o>(objects: impl Iterator<Item = &'o Object>) -> Vec<&'o Object> {
    let mut objects: Vec<&Object> = objects.collect();
    objects.sort_by_key(|one| match one.kind.as_str() {
        "table" => 0,
        "index" => 1,
        "view" => 2,
        _ => 3,
    });
    objects
}

fn drop_object(original: &Database, object: &Object) -> Result<()> {
    let kind = match object.kind.as_str() {
        "index" => "INDEX",
        "view" => "VIEW",
        "trigger" => "TRIGGER",
        _ => "TABLE",
    };
    let sql = format!("DROP {kind} main.{}", quoted(&object.name));
    original.run(&format!("drop {}", object.name), &sql)
}

fn swap_table(
    plan: &OpenPlan,
    original: &Database,
    swap: &TableSwap,
    direction: Direction,
) -> Result<()> {
    let (from, to) = direction.of(&swap.before, &swap.after);
    if let Some(from) = from {
        let table = from.objects.iter().find(|one| one.is_table());
        table.map_or(Ok(()), |table| drop_object(original, table))?;
    }
    let Some(to) = to else {
        return Ok(());
    };
    let WholeTable { table, objects, .. } = to;
    for object in in_order(objects.iter()) {
        original.run(&format!("create {}", object.name), &object.sql)?;
        if object.is_table() {
            let (name, columns) = (table.sql_name(), table.column_list());
            let columns = match table.numbers() {
                Some(rowid) => format!("{rowid}, {columns}"),
                None => columns,
            };
            let sql = format!(
                "INSERT OR ABORT INTO main.{name} ({columns}) SELECT {columns} FROM staged.{name}"
            );
            original.run(&format!("fill {}", table.name), &sql)?;
        }
    }
    // What was staged is only now read, so it is only now that it can be told from something else in its place.
    let made = table_digest(original, &Schema::read(original)?, &swap.name)?;
    match made.as_ref() == Some(&to.digest) {
        true => Ok(()),
        false => Err(StrategyError::Altered {
            path: Location::from(plan.version(direction.version())),
        }),
    }
}

/// Removes every row that goes or changes, then puts in every row that comes or changed: so values that must be unique
/// can be exchanged between rows. Then each is read back.
fn swap_rows(
    plan: &OpenPlan,
    original: &Database,
    state: &State,
    direction: Direction,
    done: &mut PathSample,
) -> Result<()> {
    let wanted = |number: usize| state.rows.get(number) == Some(&Holds::From);
    let reshaped = &state.reshaped;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        if wanted(number) {
            let (rowid, now) = find(lookup, table, swap)?;
            if let Some(now) = now {
                remove(original, table, rowid, &now)?;
            }
            done.add(&item(table, swap));
        }
        Ok(())
    })?;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        let (_, to) = direction.of(&swap.before, &swap.after);
        if let Some(row) = to.as_ref().filter(|_| wanted(number)) {
            let free = match swap.rowid {
                Some(rowid) => lookup.number(rowid)?.is_none(),
                None => false,
            };
            let rowid = swap.rowid.filter(|_| free || table.alias.is_some());
            insert(original, table, rowid, row)?;
        }
        Ok(())
    })?;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        let (_, to) = direction.of(&swap.before, &swap.after);
        let keyed = to
            .as_ref()
            .is_none_or(|row| table.key(swap.rowid, row).is_some());
        match wanted(number) && keyed && find(lookup, table, swap)?.1 != *to {
            true => Err(StrategyError::Database {
                at: original.at().clone(),
                what: format!("bring '{}' over", item(table, swap)),
                said: "the original stores it in another way".to_owned(),
            }),
            false => Ok(()),
        }
    })
}

fn remove(original: &Database, table: &Table, rowid: Option<i64>, row: &Row) -> Result<()> {
    let (name, what) = (table.sql_name(), "delete a row");
    let done = match (&table.rowid, rowid, &table.identity) {
        (Some(column), Some(rowid), _) => {
            let sql = format!("DELETE FROM {name} WHERE {column} = ?1");
            let delete = original.sql.prepare_cached(&sql);
            delete.and_then(|mut delete| delete.execute([rowid]))
        }
        (_, _, super::schema::Identity::Key(key)) => {
            let terms: Vec<String> = key
                .iter()
                .enumerate()
                .map(|(number, one)| format!("{} IS ?{}", quoted(&table.columns[*one]), number + 1))
                .collect();
            let sql = format!("DELETE FROM {name} WHERE {}", terms.join(" AND "));
            let values = key.iter().map(|one| &row[*one]);
            let delete = original.sql.prepare_cached(&sql);
            delete.and_then(|mut delete| delete.execute(params_from_iter(values)))
        }
        _ => Ok(0),
    };
    done.map(drop).map_err(original.failed(what))
}

fn insert(original: &Database, table: &Table, rowid: Option<i64>, row: &Row) -> Result<()> {
    let number = rowid.map_or(Value::Null, Value::Integer);
    let done = original
        .sql
        .prepare_cached(&table.insert())
        .and_then(|mut insert| insert.execute(params_from_iter([&number].into_iter().chain(row))));
    done.map(drop)
        .map_err(original.failed(&format!("insert a row into {}", table.name)))
}

fn set(original: &Database, swap: &SettingSwap, direction: Direction) -> Result<()> {
    let (_, to) = direction.of(&swap.before, &swap.after);
    let sql = format!("PRAGMA main.{} = {}", swap.name, literal(to));
    original.run(&format!("set {}", swap.name), &sql)
}

/// Moves a counter forward, unless it is further already.
fn ahead(counted: &mut BTreeMap<String, i64>, name: &str, wanted: Option<i64>) {
    if let Some(wanted) = wanted {
        let now = counted.entry(name.to_owned()).or_insert(wanted);
        *now = wanted.max(*now);
    }
}

/// Brings counters to at least these values. They never go back, also where a table was made anew: a number that was given
/// out once is not given out again.
fn set_counters(original: &Database, wanted: &BTreeMap<String, i64>) -> Result<()> {
    let there = super::diff::counters(original)?;
    let schema = Schema::read(original)?;
    for (name, wanted) in wanted {
        let done = match there.get(name) {
            Some(now) if now >= wanted => Ok(0),
            Some(_) => original.sql.execute(
                "UPDATE sqlite_sequence SET seq = ?2 WHERE name = ?1",
                (name, wanted),
            ),
            None if schema.counts(name) => original.sql.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)",
                (name, wanted),
            ),
            None => Ok(0),
        };
        done.map_err(original.failed("bring a counter forward"))?;
    }
    Ok(())
}
