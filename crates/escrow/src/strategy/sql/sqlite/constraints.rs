//! What a merge could break though no row was changed twice: unique values, and rows that refer to others.
//!
//! Both are looked up for the rows of the merge only. What the sandbox itself holds counts as intended: where it has a
//! reference that leads nowhere, so may the original.

use std::collections::{HashMap, HashSet};

use super::connect::Database;
use super::merge::{Merged, Versions, values};
use super::schema::{Schema, Table, literal, row};
use crate::model::Conflict;
use crate::strategy::error::Result;
use crate::strategy::sql::{Row, Value};

/// The schemas of the versions.
pub(super) struct Schemas<'a> {
    pub(super) original: &'a Schema,
    pub(super) work: &'a Schema,
}

/// The columns of a table by which one row refers to another.
struct Reference {
    child: String,
    from: Vec<usize>,
    parent: String,
    to: Vec<usize>,
}

/// One column of a reference: its number, the parent, and the columns of both.
type ReferencePart = (i64, String, String, Option<String>);

/// What tells a row from others: its number, or the values of its key.
fn identity(table: &Table, rowid: Option<i64>, row: &Row) -> Vec<Value> {
    match rowid.filter(|_| table.rowid.is_some()) {
        Some(rowid) => vec![Value::Integer(rowid)],
        None => table.key(None, row).unwrap_or_default(),
    }
}

/// Rows of the merge by table: those that the original holds before, and those that it will hold.
struct Touched<'m> {
    before: HashSet<(u32, Vec<Value>)>,
    merged: &'m Merged,
}

impl<'m> Touched<'m> {
    fn new(merged: &'m Merged) -> Self {
        let before = merged.rows.iter().filter_map(|swap| {
            let table = &merged.plan.tables[swap.table as usize];
            let before = swap.before.as_ref()?;
            Some((swap.table, identity(table, swap.rowid, before)))
        });
        Self {
            before: before.collect(),
            merged,
        }
    }

    fn number(&self, table: &str) -> Option<u32> {
        let mut all = self.merged.plan.tables.iter();
        let found = all.position(|one| one.name == table);
        found.map(|number| number as u32)
    }

    fn has(&self, table: &Table, rowid: Option<i64>, row: &Row) -> bool {
        let number = self.number(&table.name);
        number.is_some_and(|number| self.before.contains(&(number, identity(table, rowid, row))))
    }
}

/// Everything that a merge would break.
pub(super) fn check(
    versions: &Versions<'_>,
    schemas: &Schemas<'_>,
    merged: &Merged,
) -> Result<Vec<Conflict>> {
    let touched = Touched::new(merged);
    let mut conflicts = unique(versions.original, &touched)?;
    let references = references(versions.work, schemas.work)?;
    if !references.is_empty() {
        conflicts.extend(dangling(versions, schemas, &touched, &references)?);
    }
    Ok(conflicts)
}

/// Rows that the original holds in some columns, where these values are.
fn holding(
    of: &Database,
    table: &Table,
    columns: &[usize],
    wanted: &[Value],
) -> Result<Vec<(Option<i64>, Row)>> {
    let what = "look for values";
    let select = of.sql.prepare_cached(&table.select_where(columns));
    let mut select = select.map_err(of.failed(what))?;
    let mut rows = select
        .query(rusqlite::params_from_iter(wanted))
        .map_err(of.failed(what))?;
    let mut found = Vec::new();
    while let Some(next) = rows.next().map_err(of.failed(what))? {
        found.push(row(next, table).map_err(of.failed(what))?);
    }
    Ok(found)
}

/// The columns of each unique index of a table; those over expressions or over some rows only are left to SQLite.
fn unique_indexes(of: &Database, table: &Table) -> Result<Vec<Vec<usize>>> {
    let read = || -> rusqlite::Result<Vec<Vec<usize>>> {
        let sql = format!(
            "SELECT name FROM pragma_index_list({}) WHERE \"unique\" = 1 AND partial = 0",
            literal(&table.name)
        );
        let mut indexes = of.sql.prepare(&sql)?;
        let names = indexes.query_map([], |row| row.get::<_, String>(0))?;
        let mut all = Vec::new();
        for name in names {
            let sql = format!("SELECT name FROM pragma_index_info({})", literal(&name?));
            let mut info = of.sql.prepare(&sql)?;
            let names = info.query_map([], |row| row.get::<_, Option<String>>(0))?;
            let mut columns = Some(Vec::new());
            for name in names {
                let name = name?;
                let place = name.and_then(|name| table.columns.iter().position(|one| *one == name));
                columns = columns.zip(place).map(|(mut columns, place)| {
                    columns.push(place);
                    columns
                });
            }
            all.extend(columns.filter(|columns| !columns.is_empty()));
        }
        Ok(all)
    };
    read().map_err(of.failed("read the indexes"))
}

/// Rows of the merge whose unique values another row of the original holds, which the sandbox did not touch.
fn unique(original: &Database, touched: &Touched<'_>) -> Result<Vec<Conflict>> {
    let merged = touched.merged;
    let mut indexes: HashMap<u32, Vec<Vec<usize>>> = HashMap::new();
    let mut conflicts = Vec::new();
    for (swap, item) in merged.rows.iter().zip(&merged.items) {
        let table = &merged.plan.tables[swap.table as usize];
        let Some(after) = &swap.after else {
            continue;
        };
        let indexes = match indexes.entry(swap.table) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(unique_indexes(original, table)?)
            }
        };
        for columns in indexes.iter() {
            let Some(wanted) = values(after, columns) else {
                continue;
            };
            let is_same = swap.before.as_ref().and_then(|row| values(row, columns));
            if is_same.as_ref() == Some(&wanted) {
                continue;
            }
            let other = holding(original, table, columns, &wanted)?;
            let foreign = |(rowid, row): &(Option<i64>, Row)| !touched.has(table, *rowid, row);
            if other.iter().any(foreign) {
                let names: Vec<&str> = columns
                    .iter()
                    .map(|one| table.columns[*one].as_str())
                    .collect();
                let what = format!(
                    "the original has another row with the same {}, which must be unique",
                    names.join(", ")
                );
                conflicts.push(Conflict::of(item.clone(), &what));
                break;
            }
        }
    }
    Ok(conflicts)
}

/// Every reference between tables.
fn references(of: &Database, schema: &Schema) -> Result<Vec<Reference>> {
    let mut all = Vec::new();
    for table in schema.tables.values() {
        let read = || -> rusqlite::Result<Vec<ReferencePart>> {
            let sql = format!(
                "SELECT id, \"table\", \"from\", \"to\" FROM pragma_foreign_key_list({}) ORDER BY id, seq",
                literal(&table.name)
            );
            let mut list = of.sql.prepare(&sql)?;
            let rows = list.query_map([], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
            rows.collect()
        };
        let mut found: Vec<(i64, String, Vec<String>, Vec<String>)> = Vec::new();
        for (id, parent, from, to) in read().map_err(of.failed("read the references"))? {
            if found.last().is_none_or(|last| last.0 != id) {
                found.push((id, parent, Vec::new(), Vec::new()));
            }
            if let Some(last) = found.last_mut() {
                last.2.push(from);
                last.3.extend(to);
            }
        }
        for (_, parent, from, to) in found {
            let parents = schema.tables.values();
            let parent = parents
                .into_iter()
                .find(|one| one.name.eq_ignore_ascii_case(&parent));
            let Some(parent) = parent else {
                continue;
            };
            let to = match to.is_empty() {
                true => primary_key(parent),
                false => places(parent, &to),
            };
            if let (Some(from), Some(to)) = (places(table, &from), to) {
                all.push(Reference {
                    child: table.name.clone(),
                    from,
                    parent: parent.name.clone(),
                    to,
                });
            }
        }
    }
    Ok(all)
}

fn primary_key(table: &Table) -> Option<Vec<usize>> {
    match &table.identity {
        super::schema::Identity::Key(key) => Some(key.clone()),
        // The column that is the number of the row is the only one of the key.
        super::schema::Identity::Rowid => table.alias.map(|one| vec![one]),
        super::schema::Identity::Content => None,
    }
}

fn places(table: &Table, names: &[String]) -> Option<Vec<usize>> {
    let place = |name: &String| {
        let mut all = table.columns.iter();
        all.position(|one| one.eq_ignore_ascii_case(name))
    };
    names.iter().map(place).collect()
}

/// References that the merge would leave without what they refer to.
fn dangling(
    versions: &Versions<'_>,
    schemas: &Schemas<'_>,
    touched: &Touched<'_>,
    references: &[Reference],
) -> Result<Vec<Conflict>> {
    let merged = touched.merged;
    // The values that rows of the merge bring to the parents, by reference.
    let mut brought: HashSet<(usize, Vec<Value>)> = HashSet::new();
    for swap in &merged.rows {
        let table = &merged.plan.tables[swap.table as usize];
        for (number, one) in references.iter().enumerate() {
            if one.parent == table.name {
                let after = swap.after.as_ref().and_then(|row| values(row, &one.to));
                brought.extend(after.map(|values| (number, values)));
            }
        }
    }
    let whole = |name: &str| merged.plan.whole.iter().any(|one| one.name == name);
    let mut conflicts = Vec::new();
    for (swap, item) in merged.rows.iter().zip(&merged.items) {
        let table = &merged.plan.tables[swap.table as usize];
        for (number, one) in references.iter().enumerate() {
            let tables = |name: &str| {
                let (theirs, ours) = (
                    schemas.original.tables.get(name),
                    schemas.work.tables.get(name),
                );
                theirs.zip(ours).filter(|_| !whole(name))
            };
            if one.child == table.name
                && let Some((theirs, ours)) = tables(&one.parent)
                && let Some(wanted) = swap.after.as_ref().and_then(|row| values(row, &one.from))
                && !brought.contains(&(number, wanted.clone()))
            {
                let there = holding(versions.original, theirs, &one.to, &wanted)?;
                let stays = there
                    .iter()
                    .any(|(rowid, row)| !touched.has(theirs, *rowid, row));
                let meant = || holding(versions.work, ours, &one.to, &wanted);
                if !stays && !meant()?.is_empty() {
                    let what = format!(
                        "it refers to a row of {} that the original deleted",
                        one.parent
                    );
                    conflicts.push(Conflict::of(item.clone(), &what));
                }
            }
            if one.parent == table.name
                && let Some((theirs, ours)) = tables(&one.child)
                && let Some(gone) = swap.before.as_ref().and_then(|row| values(row, &one.to))
                && !brought.contains(&(number, gone.clone()))
            {
                for (rowid, row) in holding(versions.original, theirs, &one.from, &gone)? {
                    let known = || holding(versions.work, ours, &one.from, &gone);
                    if !touched.has(theirs, rowid, &row) && known()?.is_empty() {
                        let what = format!(
                            "the original added a row of {} that refers to it",
                            one.child
                        );
                        conflicts.push(Conflict::of(item.clone(), &what));
                        break;
                    }
                }
            }
        }
    }
    Ok(conflicts)
}
