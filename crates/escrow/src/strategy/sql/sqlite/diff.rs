//! What differs between two versions of a database, row by row.
//!
//! Rows with a number are compared in one pass over both tables, in the order of the numbers, where their pages differ at all;
//! rows of other tables are looked up by their key. Only what differs is held in memory.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::fallible_streaming_iterator::FallibleStreamingIterator;
use rusqlite::{CachedStatement, Rows};

use super::connect::Database;
use super::pages::{ALL, RowRange, differing};
use super::schema::{CARRIED, Identity, Object, Schema, Table, row, setting, value};
use crate::model::{Change, Detail, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::differ::{Copies, RowCursor, compare, digest};
use crate::strategy::sql::record::encode;
use crate::strategy::sql::{
    Row, RowKey, Value, row_change, row_item, setting_item, table_item, text_change,
};

/// One row that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) key: RowKey,
    pub(super) old: Option<Row>,
    pub(super) new: Option<Row>,
    /// The number of the row in the older version, and in the newer.
    pub(super) rowids: (Option<i64>, Option<i64>),
}

/// An object of the schema in both versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectDelta {
    pub(super) old: Option<Object>,
    pub(super) new: Option<Object>,
    /// The digest of a table that is brought over as a whole: not all of its rows are listed.
    digest: Option<String>,
}

impl ObjectDelta {
    /// One of the versions: there is always one.
    pub(super) fn either(&self) -> &Object {
        let one = self.new.as_ref().or(self.old.as_ref());
        one.expect("an object that differs is in one of the versions")
    }
}

/// Everything in which two versions differ.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) objects: Vec<ObjectDelta>,
    /// Rows by table.
    pub(super) rows: BTreeMap<String, Vec<Delta>>,
    /// Settings that a commit carries over: name, old and new.
    pub(super) settings: Vec<(String, String, String)>,
    /// The columns of each table that has rows here.
    pub(super) columns: BTreeMap<String, Vec<String>>,
    /// Counters of `AUTOINCREMENT` that are ahead: table, old and new.
    pub(super) counters: Vec<(String, Option<i64>, i64)>,
}

impl Difference {
    /// The items of rows without a key in tables from which some went and to which some came. An update of such a row is both, and
    /// nothing says which two belong together.
    pub(super) fn halves(&self) -> HashSet<ResourcePath> {
        let mut halves = HashSet::new();
        for (name, rows) in &self.rows {
            let loose = rows.iter();
            let loose = loose.filter(|one| matches!(one.key, RowKey::Copy(..)));
            let loose: Vec<&Delta> = loose.collect();
            let is_update = loose.iter().any(|one| one.old.is_none())
                && loose.iter().any(|one| one.new.is_none());
            if is_update {
                halves.extend(loose.iter().map(|one| row_item(name, &one.key)));
            }
        }
        halves
    }

    /// The items of definitions.
    pub(super) fn definitions(&self) -> HashSet<ResourcePath> {
        let objects = self.objects.iter().map(|one| one.either().item());
        let tables = self.altered_tables();
        let tables = tables.map(|one| table_item(&one.either().name));
        objects.chain(tables).collect()
    }

    /// Compares two versions of a database.
    pub(super) fn between(old: &Database, new: &Database) -> Result<Self> {
        let (before, after) = (Schema::read(old)?, Schema::read(new)?);
        let mut found = Self::default();
        let both: std::collections::BTreeSet<_> =
            before.objects.keys().chain(after.objects.keys()).collect();
        for key in both {
            let (was, is) = (before.objects.get(key), after.objects.get(key));
            if was.map(|one| &one.sql) != is.map(|one| &one.sql) {
                let is_table = is.is_some_and(Object::is_table);
                let digest = match is_table {
                    true => table_digest(new, &after, &key.1)?,
                    false => None,
                };
                found.objects.push(ObjectDelta {
                    old: was.cloned(),
                    new: is.cloned(),
                    digest,
                });
            }
        }
        let names: std::collections::BTreeSet<_> =
            before.tables.keys().chain(after.tables.keys()).collect();
        let places = places(old, new, (&before, &after));
        for name in names {
            let (was, is) = (before.tables.get(name), after.tables.get(name));
            let places = places.get(name).map_or(&[ALL][..], Vec::as_slice);
            let rows = match (was, is) {
                (Some(was), Some(is)) if was == is => rows((old, was), (new, is), places)?,
                (Some(was), Some(is)) => altered(old, new, was, is, &mut found)?,
                (None, Some(is)) => whole(new, is, false)?,
                (Some(was), None) => whole(old, was, true)?,
                (None, None) => Vec::new(),
            };
            if !rows.is_empty() {
                let columns = is.or(was).map(|table| table.columns.clone());
                let columns = columns.unwrap_or_default();
                found.columns.entry(name.clone()).or_insert(columns);
                found.rows.insert(name.clone(), rows);
            }
        }
        for name in CARRIED {
            let (was, is) = (setting(old, name)?, setting(new, name)?);
            if was != is {
                found.settings.push((name.to_owned(), was, is));
            }
        }
        let was = counters(old)?;
        for (name, is) in counters(new)? {
            let was = was.get(&name).copied();
            if was.is_none_or(|was| is > was) {
                found.counters.push((name, was, is));
            }
        }
        Ok(found)
    }

    /// It as changes, for people.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for one in &self.objects {
            let sql = |side: &'_ Option<Object>| side.as_ref().map(|object| object.sql.clone());
            let (either, old, new) = (one.either(), sql(&one.old), sql(&one.new));
            let (old, new) = (old.as_deref(), new.as_deref());
            let mut change = text_change(either.item(), &either.kind, old, new);
            if let (Detail::Opaque { detail, .. }, Some(digest)) = (&mut change.detail, &one.digest)
            {
                detail["digest"] = digest.as_str().into();
            }
            changes.push(change);
        }
        for (name, rows) in &self.rows {
            let columns = self.columns.get(name).map(Vec::as_slice);
            let columns = columns.unwrap_or_default();
            let change = |one: &Delta| {
                row_change(name, columns, &one.key, one.old.as_ref(), one.new.as_ref())
            };
            changes.extend(rows.iter().map(change));
        }
        for (name, old, new) in &self.settings {
            changes.push(text_change(
                setting_item(name),
                "setting",
                Some(old),
                Some(new),
            ));
        }
        for (name, old, new) in &self.counters {
            let (old, new) = (old.map(|old| old.to_string()), new.to_string());
            let (item, new) = (counter_item(name), Some(new.as_str()));
            changes.push(text_change(item, "counter", old.as_deref(), new));
        }
        changes
    }

    /// The same, where nothing else is needed of it: no row is held twice.
    pub(super) fn into_changes(mut self) -> Vec<Change> {
        let rows = std::mem::take(&mut self.rows);
        let mut changes = self.changes();
        for (name, rows) in rows {
            let columns = self.columns.get(&name).map(Vec::as_slice);
            let columns = columns.unwrap_or_default();
            let change = |one: Delta| {
                row_change(&name, columns, &one.key, one.old.as_ref(), one.new.as_ref())
            };
            changes.extend(rows.into_iter().map(change));
        }
        changes
    }

    /// The tables and views whose own SQL differs: they are brought over as a whole.
    pub(super) fn altered_tables(&self) -> impl Iterator<Item = &ObjectDelta> {
        self.objects.iter().filter(|one| one.either().owns())
    }
}

/// The item of the counter of a table.
pub(super) fn counter_item(table: &str) -> ResourcePath {
    let name = Value::Text(table.as_bytes().to_vec());
    row_item("sqlite_sequence", &RowKey::Values(vec![name]))
}

/// The counters of `AUTOINCREMENT`, by table.
pub(super) fn counters(of: &Database) -> Result<BTreeMap<String, i64>> {
    let exists = of.sql.table_exists(None, "sqlite_sequence");
    if !exists.map_err(of.failed("read the counters"))? {
        return Ok(BTreeMap::new());
    }
    let read = || -> rusqlite::Result<BTreeMap<String, i64>> {
        let sql = "SELECT name, seq FROM sqlite_sequence WHERE typeof(name) = 'text' AND typeof(seq) = 'integer'";
        let mut all = of.sql.prepare(sql)?;
        let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    };
    read().map_err(of.failed("read the counters"))
}

/// The rows of a table that only one version has.
fn whole(of: &Database, table: &Table, gone: bool) -> Result<Vec<Delta>> {
    let mut found = Deltas::default();
    each(of, table, |rowid, row| {
        match gone {
            true => found.deleted(table, rowid, row),
            false => found.inserted(table, rowid, row),
        }
        Ok(())
    })?;
    Ok(found.list)
}

/// Calls with every row of a table.
pub(super) fn each(
    of: &Database,
    table: &Table,
    mut found: impl FnMut(Option<i64>, Row) -> Result<()>,
) -> Result<()> {
    let what = format!("read the table {}", table.sql_name());
    let select = of.sql.prepare(&table.select_all());
    let mut select = select.map_err(of.failed(&what))?;
    let mut rows = select.query([]).map_err(of.failed(&what))?;
    while let Some(next) = rows.next().map_err(of.failed(&what))? {
        let (rowid, values) = row(next, table).map_err(of.failed(&what))?;
        found(rowid, values)?;
    }
    Ok(())
}

/// Deltas of rows in the making.
#[derive(Default)]
struct Deltas {
    list: Vec<Delta>,
    // A row that goes and an equal one that comes are never both listed.
    copies: Copies,
}

impl Deltas {
    /// The key of a row, or the number of this copy of it.
    fn key(&mut self, table: &Table, rowid: Option<i64>, row: &Row) -> RowKey {
        let key = table.key(rowid, row).map(RowKey::Values);
        key.unwrap_or_else(|| self.copies.key(row))
    }

    fn deleted(&mut self, table: &Table, rowid: Option<i64>, row: Row) {
        let key = self.key(table, rowid, &row);
        self.list.push(Delta {
            key,
            old: Some(row),
            new: None,
            rowids: (rowid, None),
        });
    }

    fn inserted(&mut self, table: &Table, rowid: Option<i64>, row: Row) {
        let key = self.key(table, rowid, &row);
        self.list.push(Delta {
            key,
            old: None,
            new: Some(row),
            rowids: (None, rowid),
        });
    }

    fn updated(&mut self, key: Vec<Value>, old: (Option<i64>, Row), new: (Option<i64>, Row)) {
        self.list.push(Delta {
            key: RowKey::Values(key),
            rowids: (old.0, new.0),
            old: Some(old.1),
            new: Some(new.1),
        });
    }
}

/// One version of a table, and where it is.
pub(super) type Version<'a> = (&'a Database, &'a Table);

/// Where the rows of tables with the same SQL can differ, by table; a table that is not there can differ everywhere.
fn places(
    old: &Database,
    new: &Database,
    (before, after): (&Schema, &Schema),
) -> BTreeMap<String, Vec<RowRange>> {
    let (mut names, mut roots) = (Vec::new(), Vec::new());
    for (name, table) in &after.tables {
        let was = before.table_object(name);
        if let Some((was, is)) = was.zip(after.table_object(name))
            && was.sql == is.sql
            && table.rowid.is_some()
            && was.root > 0
            && is.root > 0
        {
            names.push(name.clone());
            roots.push((was.root, is.root));
        }
    }
    let ranges = differing(old, new, &roots).unwrap_or_default();
    names.into_iter().zip(ranges).collect()
}

/// The rows in which two versions of a table with the same columns and the same key differ, in some places.
pub(super) fn rows(old: Version<'_>, new: Version<'_>, places: &[RowRange]) -> Result<Vec<Delta>> {
    match new.1.rowid {
        Some(_) => numbered(old, new, places),
        None => by_key(old, new),
    }
}

/// A pass over the rows of one version in the order of their numbers, with the current one in place.
struct Cursor<'a> {
    of: Version<'a>,
    rows: Rows<'a>,
    at: Option<i64>,
}

impl RowCursor for Cursor<'_> {
    type Error = StrategyError;
    type Found = NumberedRow;

    fn step(&mut self) -> Result<()> {
        let failed = || self.of.0.failed("read a row");
        let next = Rows::next(&mut self.rows).map_err(failed())?;
        let rowid = next.map(|row| row.get(0)).transpose();
        self.at = rowid.map_err(failed())?;
        Ok(())
    }

    fn is_past(&self) -> bool {
        self.at.is_none()
    }

    fn order(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }

    fn is_same(&self, other: &Self) -> Result<bool> {
        let (database, table) = other.of;
        same(self, other, table.columns.len()).map_err(database.failed("compare rows"))
    }

    fn row(&self) -> Result<NumberedRow> {
        let (database, table) = self.of;
        match self.rows.get() {
            Some(here) => row(here, table).map_err(database.failed("read a row")),
            None => Ok((None, Row::new())),
        }
    }
}

/// Whether two rows that are in place are equal, without a copy of either.
fn same(a: &Cursor<'_>, b: &Cursor<'_>, columns: usize) -> rusqlite::Result<bool> {
    let (Some(a), Some(b)) = (a.rows.get(), b.rows.get()) else {
        return Ok(false);
    };
    use rusqlite::types::ValueRef;
    for number in 1..=columns {
        let equal = match (a.get_ref(number)?, b.get_ref(number)?) {
            // By their bits: 0.0 is not -0.0.
            (ValueRef::Real(a), ValueRef::Real(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        if !equal {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The rows of tables with numbers. Those that are told apart by something else are only collected, and paired at the end.
fn numbered(old: Version<'_>, new: Version<'_>, places: &[RowRange]) -> Result<Vec<Delta>> {
    let table = new.1;
    let mut found = Deltas::default();
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    let what = format!("read the table {}", table.sql_name());
    let select = |(_, table): Version<'_>| table.select_range().unwrap_or_default();
    let a = old.0.sql.prepare(&select(old));
    let mut a = a.map_err(old.0.failed(&what))?;
    let b = new.0.sql.prepare(&select(new));
    let mut b = b.map_err(new.0.failed(&what))?;
    for place in places {
        let mut a = Cursor {
            of: old,
            rows: a.query(*place).map_err(old.0.failed(&what))?,
            at: None,
        };
        let mut b = Cursor {
            of: new,
            rows: b.query(*place).map_err(new.0.failed(&what))?,
            at: None,
        };
        compare(&mut a, &mut b, |was, is| match (was, is) {
            (was, is) if table.identity != Identity::Rowid => {
                gone.extend(was);
                come.extend(is);
            }
            (Some(was), Some(is)) => {
                let key = is.0.map(Value::Integer).into_iter().collect();
                found.updated(key, was, is);
            }
            (Some((rowid, row)), None) => found.deleted(table, rowid, row),
            (None, Some((rowid, row))) => found.inserted(table, rowid, row),
            (None, None) => {}
        })?;
    }
    pair(table, gone, come, &mut found);
    Ok(found.list)
}

type NumberedRow = (Option<i64>, Row);

/// Pairs rows that are not where they were: by their key, and those without by their content.
fn pair(table: &Table, gone: Vec<NumberedRow>, come: Vec<NumberedRow>, found: &mut Deltas) {
    let mut keyed: HashMap<Vec<Value>, NumberedRow> = HashMap::new();
    let mut loose: HashMap<[u8; 32], Vec<NumberedRow>> = HashMap::new();
    for was in gone {
        match table.key(was.0, &was.1) {
            Some(key) => drop(keyed.insert(key, was)),
            None => loose.entry(digest(&was.1)).or_default().push(was),
        }
    }
    for is in come {
        match table.key(is.0, &is.1) {
            Some(key) => match keyed.remove(&key) {
                Some(was) if was.1 == is.1 => {}
                Some(was) => found.updated(key, was, is),
                None => found.inserted(table, is.0, is.1),
            },
            None => match loose.get_mut(&digest(&is.1)).and_then(Vec::pop) {
                Some(_) => {}
                None => found.inserted(table, is.0, is.1),
            },
        }
    }
    let left = loose.into_values().flatten();
    let mut left: Vec<NumberedRow> = keyed.into_values().chain(left).collect();
    left.sort_unstable();
    left.into_iter()
        .for_each(|(rowid, row)| found.deleted(table, rowid, row));
}

/// Finds rows of a table by their key.
pub(super) struct Lookup<'a> {
    of: &'a Database,
    table: &'a Table,
    by_key: Option<(CachedStatement<'a>, Vec<usize>)>,
    by_number: Option<CachedStatement<'a>>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(of: &'a Database, table: &'a Table) -> Result<Self> {
        let prepare = |sql: String| {
            let prepared = of.sql.prepare_cached(&sql);
            prepared.map_err(of.failed("look a row up"))
        };
        let by_key = match &table.identity {
            Identity::Key(key) => Some((prepare(table.select_where(key))?, key.clone())),
            _ => None,
        };
        Ok(Self {
            of,
            table,
            by_key,
            by_number: table.select_rowid().map(prepare).transpose()?,
        })
    }

    /// The row with a key.
    pub(super) fn key(&mut self, key: &[Value]) -> Result<Option<NumberedRow>> {
        let Some((select, columns)) = &mut self.by_key else {
            return match key.first() {
                Some(Value::Integer(rowid)) => self.number(*rowid),
                _ => Ok(None),
            };
        };
        let failed = || self.of.failed("look a row up");
        let mut rows = select
            .query(rusqlite::params_from_iter(key))
            .map_err(failed())?;
        while let Some(next) = rows.next().map_err(failed())? {
            let found = row(next, self.table).map_err(failed())?;
            // A collation may take another text for the same.
            if columns.iter().map(|one| &found.1[*one]).eq(key) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The row with a number.
    pub(super) fn number(&mut self, rowid: i64) -> Result<Option<NumberedRow>> {
        let failed = || self.of.failed("look a row up");
        let Some(select) = &mut self.by_number else {
            return Ok(None);
        };
        let mut rows = select.query([rowid]).map_err(failed())?;
        let next = rows.next().map_err(failed())?;
        let found = next.map(|next| row(next, self.table)).transpose();
        found.map_err(failed())
    }
}

fn by_key((old, was): Version<'_>, (new, table): Version<'_>) -> Result<Vec<Delta>> {
    let mut found = Deltas::default();
    let (mut before, mut after) = (Lookup::new(old, was)?, Lookup::new(new, table)?);
    each(new, table, |_, is| {
        let Some(key) = table.key(None, &is) else {
            return Ok(());
        };
        match before.key(&key)? {
            Some((_, was)) if was == is => {}
            Some(was) => found.updated(key, was, (None, is)),
            None => found.inserted(table, None, is),
        }
        Ok(())
    })?;
    each(old, was, |_, row| {
        let key = table.key(None, &row);
        if let Some(key) = key
            && after.key(&key)?.is_none()
        {
            found.deleted(table, None, row);
        }
        Ok(())
    })?;
    Ok(found.list)
}

/// The rows in which a table differs whose form is another one: over the columns of both, of which each is NULL where it is
/// not. Where the key is another one, rows are told apart by their content.
fn altered(
    old: &Database,
    new: &Database,
    was: &Table,
    is: &Table,
    found: &mut Difference,
) -> Result<Vec<Delta>> {
    let gone = was.columns.iter().filter(|name| !is.columns.contains(name));
    let columns: Vec<String> = is.columns.iter().chain(gone).cloned().collect();
    let key = |table: &Table| match &table.identity {
        Identity::Key(key) => {
            let place = |one: &usize| columns.iter().position(|name| *name == table.columns[*one]);
            Identity::Key(key.iter().filter_map(place).collect())
        }
        other => other.clone(),
    };
    let same_key = key(was) == key(is) && was.rowid.is_some() == is.rowid.is_some();
    let view = |table: &Table| Table {
        columns: columns.clone(),
        identity: match same_key {
            true => key(table),
            false => Identity::Content,
        },
        absent: (0..columns.len())
            .filter(|number| !table.columns.contains(&columns[*number]))
            .collect(),
        ..table.clone()
    };
    let (was, is) = (view(was), view(is));
    found.columns.insert(is.name.clone(), columns.clone());
    if same_key {
        return rows((old, &was), (new, &is), &[ALL]);
    }
    let all = |of: &Database, table: &Table| -> Result<Vec<NumberedRow>> {
        let mut all = Vec::new();
        each(of, table, |rowid, row| {
            all.push((rowid, row));
            Ok(())
        })?;
        Ok(all)
    };
    let mut deltas = Deltas::default();
    pair(&is, all(old, &was)?, all(new, &is)?, &mut deltas);
    Ok(deltas.list)
}

/// The digest of a table or view: its own SQL, that of what belongs to it, and its rows. Numbers of rows that are told apart by something
/// else are left out, with the order that they give: `VACUUM` gives others.
pub(super) fn table_digest(of: &Database, schema: &Schema, name: &str) -> Result<Option<String>> {
    let mut hash = blake3::Hasher::new();
    let mut is_there = false;
    for object in schema.of_table(name) {
        is_there |= object.owns();
        hash.update(&(object.sql.len() as u64).to_le_bytes());
        hash.update(object.sql.as_bytes());
    }
    let Some(table) = schema.tables.get(name) else {
        return Ok(is_there.then(|| hash.finalize().to_hex().to_string()));
    };
    let select = of.sql.prepare(&table.select_all());
    let mut select = select.map_err(of.failed("read a table"))?;
    let mut rows = select.query([]).map_err(of.failed("read a table"))?;
    let (mut bytes, mut unordered) = (Vec::new(), Vec::new());
    let numbered = table.identity == Identity::Rowid;
    while let Some(next) = rows.next().map_err(of.failed("read a table"))? {
        bytes.clear();
        for number in usize::from(!numbered)..=table.columns.len() {
            let one = next.get_ref(number).map_err(of.failed("read a table"))?;
            encode(&value(one), &mut bytes);
        }
        if numbered {
            hash.update(&bytes);
        } else {
            unordered.push(*blake3::hash(&bytes).as_bytes());
        }
    }
    unordered.sort_unstable();
    for row in &unordered {
        hash.update(row);
    }
    Ok(Some(hash.finalize().to_hex().to_string()))
}
