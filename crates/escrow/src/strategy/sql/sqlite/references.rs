//! References between tables, and the values that lead nowhere.
//!
//! A value that leads nowhere is known by a mark, whatever row holds it. What the sandbox or the original held so when the commit was
//! prepared is intended, or was there before; the marks of it are kept with the plan. Anything else is a conflict, found by the merge,
//! and again within the transaction that writes.

use std::collections::HashMap;

use rusqlite::params_from_iter;

use super::connect::Database;
use super::merge::values;
use super::schema::{Identity, Schema, Table, literal, quoted, row};
use crate::model::ResourcePath;
use crate::strategy::error::Result;
use crate::strategy::sql::{Row, RowKey, Value, row_item};

/// How many values are looked for at once.
const AT_ONCE: usize = 500;

/// The columns of a table by which one row refers to another.
pub(super) struct Reference {
    pub(super) child: String,
    from: Vec<String>,
    /// The table as the schema names it, or, where there is none, as the reference does.
    pub(super) parent: String,
    /// None for the primary key.
    to: Vec<String>,
}

/// One column of a reference: its number, the parent, and the columns of both.
type ReferencePart = (i64, String, String, Option<String>);

/// One end of a reference in one version: a table, and its columns.
pub(super) struct End<'a> {
    of: &'a Database,
    pub(super) table: &'a Table,
    pub(super) columns: Vec<usize>,
}

/// The item of a row that a table holds.
pub(super) fn item(table: &Table, rowid: Option<i64>, row: &Row) -> ResourcePath {
    let key = table.key(rowid, row);
    let key = key.unwrap_or_else(|| rowid.map(Value::Integer).into_iter().collect());
    row_item(&table.name, &RowKey::Values(key))
}

fn places(table: &Table, names: &[String]) -> Option<Vec<usize>> {
    let place = |name: &String| {
        let mut all = table.columns.iter();
        all.position(|one| one.eq_ignore_ascii_case(name))
    };
    names.iter().map(place).collect()
}

fn primary_key(table: &Table) -> Option<Vec<usize>> {
    match &table.identity {
        Identity::Key(key) => Some(key.clone()),
        // The column that is the number of the row is the only one of the key.
        Identity::Rowid => table.alias.map(|one| vec![one]),
        Identity::Content => None,
    }
}

impl Reference {
    /// Every reference of tables of a version.
    pub(super) fn all(
        of: &Database,
        schema: &Schema,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for table in schema.tables.values().filter(|one| wanted(&one.name)) {
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
            let mut found: Vec<(i64, Self)> = Vec::new();
            for (id, parent, from, to) in read().map_err(of.failed("read the references"))? {
                if found.last().is_none_or(|last| last.0 != id) {
                    let named = |one: &&String| one.eq_ignore_ascii_case(&parent);
                    let known = schema.tables.keys().find(named).cloned();
                    let new = Self {
                        child: table.name.clone(),
                        from: Vec::new(),
                        parent: known.unwrap_or(parent),
                        to: Vec::new(),
                    };
                    found.push((id, new));
                }
                if let Some((_, last)) = found.last_mut() {
                    last.from.push(from);
                    last.to.extend(to);
                }
            }
            all.extend(found.into_iter().map(|(_, one)| one));
        }
        // One that SQLite itself cannot follow (to a view, to columns that are not there) says nothing.
        let exists = |name: &str| {
            let mut names = schema
                .objects
                .keys()
                .filter(|(kind, _)| kind != "index" && kind != "trigger");
            names.any(|(_, one)| one.eq_ignore_ascii_case(name))
        };
        all.retain(|one| {
            one.child(of, schema).is_some()
                && (one.parent(of, schema).is_some() || !exists(&one.parent))
        });
        Ok(all)
    }

    /// The end that refers, in a version.
    pub(super) fn child<'a>(&self, of: &'a Database, schema: &'a Schema) -> Option<End<'a>> {
        let table = schema.tables.get(&self.child)?;
        let columns = places(table, &self.from)?;
        Some(End { of, table, columns })
    }

    /// The end that is referred to; none where there is no such table.
    pub(super) fn parent<'a>(&self, of: &'a Database, schema: &'a Schema) -> Option<End<'a>> {
        let mut tables = schema.tables.values();
        let table = tables.find(|one| one.name.eq_ignore_ascii_case(&self.parent))?;
        let columns = match self.to.is_empty() {
            true => primary_key(table),
            false => places(table, &self.to),
        };
        columns.map(|columns| End { of, table, columns })
    }

    /// What says that values lead nowhere.
    pub(super) fn mark(&self, values: &[Value]) -> String {
        let values: Vec<_> = values.iter().map(Value::json).collect();
        let all = serde_json::json!([
            self.child,
            self.from,
            self.parent.to_ascii_lowercase(),
            values
        ]);
        blake3::hash(all.to_string().as_bytes())
            .to_hex()
            .to_string()
    }

    /// The rows of a version that refer to nothing, by their marks: one of each. Every row of the child is looked at.
    pub(super) fn broken(
        &self,
        of: &Database,
        schema: &Schema,
    ) -> Result<HashMap<String, ResourcePath>> {
        let mut found = HashMap::new();
        let Some(child) = self.child(of, schema) else {
            return Ok(found);
        };
        let name = |table: &Table, one: usize| quoted(&table.columns[one]);
        let own = |one: &usize| format!("{}.{}", child.table.sql_name(), name(child.table, *one));
        let set = child
            .columns
            .iter()
            .map(|one| format!("{} IS NOT NULL", own(one)));
        let mut terms: Vec<String> = set.collect();
        if let Some(parent) = self.parent(of, schema) {
            // A table may refer to itself: the parent has a name that is surely not the child's.
            let other = quoted(&format!("{} ", self.child));
            let pairs = parent.columns.iter().zip(&child.columns);
            let same = pairs
                .map(|(to, from)| format!("{other}.{} = {}", name(parent.table, *to), own(from)));
            let (same, table) = (
                same.collect::<Vec<_>>().join(" AND "),
                parent.table.sql_name(),
            );
            terms.push(format!(
                "NOT EXISTS (SELECT 1 FROM {table} AS {other} WHERE {same})"
            ));
        }
        let sql = format!("{} WHERE {}", child.table.select(), terms.join(" AND "));
        child.rows(&sql, &[], |rowid, row| {
            if let Some(values) = values(row, &child.columns) {
                let item = || item(child.table, rowid, row);
                found.entry(self.mark(&values)).or_insert_with(item);
            }
            Ok(false)
        })?;
        Ok(found)
    }
}

impl End<'_> {
    /// Hands rows on until one is found.
    fn rows(
        &self,
        sql: &str,
        wanted: &[Value],
        mut is: impl FnMut(Option<i64>, &Row) -> Result<bool>,
    ) -> Result<Option<(Option<i64>, Row)>> {
        let what = "look for values";
        let select = self.of.sql.prepare_cached(sql);
        let mut select = select.map_err(self.of.failed(what))?;
        let rows = select.query(params_from_iter(wanted));
        let mut rows = rows.map_err(self.of.failed(what))?;
        while let Some(next) = rows.next().map_err(self.of.failed(what))? {
            let (rowid, row) = row(next, self.table).map_err(self.of.failed(what))?;
            if is(rowid, &row)? {
                return Ok(Some((rowid, row)));
            }
        }
        Ok(None)
    }

    /// The first row with one of these values that is wanted.
    pub(super) fn find(
        &self,
        among: &[&[Value]],
        is: impl Fn(Option<i64>, &Row) -> bool,
    ) -> Result<Option<(Option<i64>, Row)>> {
        for some in among.chunks(AT_ONCE) {
            let sql = match some.len() {
                1 => self.table.select_where(&self.columns),
                count => {
                    let names = self
                        .columns
                        .iter()
                        .map(|one| quoted(&self.table.columns[*one]));
                    let names = names.collect::<Vec<_>>().join(", ");
                    let marks = format!("({})", vec!["?"; self.columns.len()].join(", "));
                    let (select, marks) = (self.table.select(), vec![marks; count].join(", "));
                    format!("{select} WHERE ({names}) IN (VALUES {marks})")
                }
            };
            let found = self.rows(&sql, &some.concat(), |rowid, row| Ok(is(rowid, row)))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Those of some values that a wanted row holds, each with such a row. Where there is no index, a look for one costs as much as
    /// for many: they are looked for one by one only where there is something to find.
    pub(super) fn held<'w>(
        &self,
        among: &[&'w [Value]],
        is: impl Fn(Option<i64>, &Row) -> bool,
    ) -> Result<Vec<(&'w [Value], Row)>> {
        let mut all = Vec::new();
        for some in among.chunks(AT_ONCE) {
            if self.find(some, &is)?.is_none() {
                continue;
            }
            for one in some {
                let found = self.find(&[one], &is)?;
                all.extend(found.map(|(_, row)| (*one, row)));
            }
        }
        Ok(all)
    }

    /// Whether a row holds these values.
    pub(super) fn has(&self, wanted: &[Value]) -> Result<bool> {
        Ok(self.find(&[wanted], |_, _| true)?.is_some())
    }

    /// The first of all rows that is wanted.
    pub(super) fn first(
        &self,
        is: impl FnMut(Option<i64>, &Row) -> Result<bool>,
    ) -> Result<Option<(Option<i64>, Row)>> {
        self.rows(&self.table.select_all(), &[], is)
    }
}
