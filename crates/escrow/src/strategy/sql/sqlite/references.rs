//! References between tables, and the values that lead nowhere.
//!
//! A value that leads nowhere is known by a mark, whatever row holds it. What the sandbox or the original held so when the commit was
//! prepared is intended, or was there before; the marks of it are kept with the plan. Anything else is a conflict, found by the merge,
//! and again within the transaction that writes.

use std::collections::{HashMap, HashSet};

use rusqlite::params_from_iter;

use super::connect::Database;
use super::merge::values;
use super::schema::{Identity, Schema, Table, literal, quoted, row, value};
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
    /// Whether a row refers to another exactly where both have equal values: none is computed, and neither type nor collation makes
    /// values of one column equal to others of the other.
    pub(super) alike: bool,
    /// Whether SQLite itself can follow it. One to a view, or to another number of columns, leads nowhere, whatever a row holds.
    pub(super) is_followed: bool,
}

/// What SQLite makes of values that are put into a column.
#[derive(PartialEq, Eq)]
enum Affinity {
    Number,
    Text,
    Other,
}

/// The affinity of a declared type, as SQLite reads it.
fn affinity(kind: &str) -> Affinity {
    let kind = kind.to_ascii_uppercase();
    let has = |part: &&str| kind.contains(*part);
    match () {
        () if has(&"INT") => Affinity::Number,
        () if ["CHAR", "CLOB", "TEXT"].iter().any(has) => Affinity::Text,
        () if kind.is_empty() || ["BLOB", "REAL", "FLOA", "DOUB"].iter().any(has) => {
            Affinity::Other
        }
        () => Affinity::Number,
    }
}

/// Whether a table takes only values of the types that its columns have.
fn is_strict(of: &Database, table: &str) -> Result<bool> {
    let sql = format!(
        "SELECT count(*) FROM pragma_table_list({}) WHERE schema = 'main' AND strict",
        literal(table)
    );
    let asked = of.sql.query_row(&sql, [], |row| row.get::<_, i64>(0));
    let count = asked.map_err(of.failed("read a column"))?;
    Ok(count > 0)
}

/// The affinity of a column, if its values are compared by their bytes.
fn plain_affinity(of: &Database, table: &str, column: &str) -> Result<Option<Affinity>> {
    let read = of.sql.column_metadata(Some("main"), table, column);
    let (kind, collation, ..) = read.map_err(of.failed("read a column"))?;
    let kind = match kind {
        // There it takes values as they are.
        Some(kind) if kind.to_bytes().eq_ignore_ascii_case(b"ANY") && is_strict(of, table)? => {
            Some(Affinity::Other)
        }
        kind => kind.map(|kind| affinity(&kind.to_string_lossy())),
    };
    let plain = collation.is_none_or(|one| one.to_bytes().eq_ignore_ascii_case(b"BINARY"));
    Ok(kind.filter(|kind| plain && *kind != Affinity::Other))
}

/// The names of all columns of a table, also of computed ones.
pub(super) fn column_names(of: &Database, table: &str) -> Result<Vec<String>> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let sql = format!("SELECT name FROM pragma_table_xinfo({})", literal(table));
        let mut list = of.sql.prepare(&sql)?;
        let names = list.query_map([], |row| row.get(0))?;
        names.collect()
    };
    read().map_err(of.failed("read the columns"))
}

/// One column of a reference: its number, the parent, and the columns of both.
type ReferencePart = (i64, String, String, Option<String>);

/// One end of a reference in one version: a table, and its columns.
pub(super) struct End<'a> {
    of: &'a Database,
    pub(super) table: &'a Table,
    pub(super) columns: Vec<usize>,
}

fn has_all(all: &[String], wanted: &[String]) -> bool {
    let has = |name: &String| all.iter().any(|one| one.eq_ignore_ascii_case(name));
    wanted.iter().all(has)
}

/// What a row of a table is known by: its key, or its number where it has none.
fn known_by(table: &Table, rowid: Option<i64>, row: &Row) -> Vec<Value> {
    let key = table.key(rowid, row);
    key.unwrap_or_else(|| rowid.map(Value::Integer).into_iter().collect())
}

/// The item of a row that a table holds.
pub(super) fn item(table: &Table, rowid: Option<i64>, row: &Row) -> ResourcePath {
    row_item(&table.name, &RowKey::Values(known_by(table, rowid, row)))
}

/// What a row that leads nowhere refers to, and what it is known by.
type BrokenRow = (Vec<Value>, Vec<Value>);

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
    /// Every reference of tables of a version that SQLite can follow: another one says nothing.
    pub(super) fn all(
        of: &Database,
        schema: &Schema,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<Self>> {
        let mut all = Self::declared(of, schema, wanted)?;
        all.retain(|one| one.is_followed);
        Ok(all)
    }

    /// Every reference of tables of a version.
    pub(super) fn declared(
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
                        alike: false,
                        is_followed: false,
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
        let exists = |name: &str| {
            let mut owners = schema.objects.values().filter(|one| one.owns());
            owners.any(|one| one.name.eq_ignore_ascii_case(name))
        };
        for one in &mut all {
            (one.is_followed, one.alike) = match one.parent_columns(of, schema)? {
                Some(to) if to.len() == one.from.len() => (true, one.is_alike(of, schema, &to)?),
                None if !exists(&one.parent) => (true, one.child(of, schema).is_some()),
                _ => (false, false),
            };
        }
        Ok(all)
    }

    fn is_alike(&self, of: &Database, schema: &Schema, to: &[String]) -> Result<bool> {
        if self.child(of, schema).is_none() || self.parent(of, schema).is_none() {
            return Ok(false);
        }
        for (from, to) in self.from.iter().zip(to) {
            let child = plain_affinity(of, &self.child, from)?;
            if child.is_none() || child != plain_affinity(of, &self.parent, to)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The table that is referred to.
    fn parent_table<'a>(&self, schema: &'a Schema) -> Option<&'a Table> {
        let mut tables = schema.tables.values();
        tables.find(|one| one.name.eq_ignore_ascii_case(&self.parent))
    }

    /// The names of the columns that are referred to; none where they are not there.
    fn parent_columns(&self, of: &Database, schema: &Schema) -> Result<Option<Vec<String>>> {
        let Some(table) = self.parent_table(schema) else {
            return Ok(None);
        };
        if self.to.is_empty() {
            let key = primary_key(table);
            let name = |one: usize| table.columns[one].clone();
            return Ok(key.map(|key| key.into_iter().map(name).collect()));
        }
        let has = has_all(&column_names(of, &table.name)?, &self.to);
        Ok(has.then(|| self.to.clone()))
    }

    /// The end that refers, in a version.
    pub(super) fn child<'a>(&self, of: &'a Database, schema: &'a Schema) -> Option<End<'a>> {
        let table = schema.tables.get(&self.child)?;
        let columns = places(table, &self.from)?;
        Some(End { of, table, columns })
    }

    /// The end that is referred to; none where there is no such table.
    pub(super) fn parent<'a>(&self, of: &'a Database, schema: &'a Schema) -> Option<End<'a>> {
        let table = self.parent_table(schema)?;
        let columns = match self.to.is_empty() {
            true => primary_key(table),
            false => places(table, &self.to),
        };
        columns.map(|columns| End { of, table, columns })
    }

    /// Whether both ends can be looked at by their rows: what is computed is not among these.
    pub(super) fn has_ends(&self, of: &Database, schema: &Schema) -> bool {
        let parent = self.parent(of, schema).is_some() || self.parent_table(schema).is_none();
        self.child(of, schema).is_some() && parent
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

    /// The rows of a version that refer to nothing, with their marks.
    pub(super) fn broken(
        &self,
        of: &Database,
        schema: &Schema,
    ) -> Result<Vec<(String, ResourcePath)>> {
        let rows = self.broken_rows(of, schema)?.into_iter();
        let named = |(values, key): BrokenRow| {
            let item = row_item(&self.child, &RowKey::Values(key));
            (self.mark(&values), item)
        };
        Ok(rows.map(named).collect())
    }

    /// The same rows, with what they refer to. Every row of the child is looked at, as SQLite does it: with the type and the collation of
    /// the parent.
    fn broken_rows(&self, of: &Database, schema: &Schema) -> Result<Vec<BrokenRow>> {
        let mut found = Vec::new();
        let Some(child) = schema.tables.get(&self.child) else {
            return Ok(found);
        };
        // Another version may not have the columns yet, or any more.
        if !has_all(&column_names(of, &child.name)?, &self.from) {
            return Ok(found);
        }
        let own = |name: &String| format!("{}.{}", child.sql_name(), quoted(name));
        let set = self.from.iter();
        let set = set.map(|one| format!("{} IS NOT NULL", own(one)));
        let mut terms: Vec<String> = set.collect();
        let to = self.parent_columns(of, schema)?;
        if let Some(to) = to.filter(|to| to.len() == self.from.len()) {
            // A table may refer to itself: the parent has a name that is surely not the child's.
            let other = quoted(&format!("{} ", self.child));
            let pairs = to.iter().zip(&self.from);
            let same = pairs.map(|(to, from)| format!("{other}.{} = +{}", quoted(to), own(from)));
            let (same, table) = (same.collect::<Vec<_>>().join(" AND "), quoted(&self.parent));
            terms.push(format!(
                "NOT EXISTS (SELECT 1 FROM {table} AS {other} WHERE {same})"
            ));
        }
        let (select, what) = (child.select_also(&self.from), "look for references");
        let sql = format!("{select} WHERE {}", terms.join(" AND "));
        let mut select = of.sql.prepare(&sql).map_err(of.failed(what))?;
        let mut rows = select.query([]).map_err(of.failed(what))?;
        while let Some(next) = rows.next().map_err(of.failed(what))? {
            let (rowid, row) = row(next, child).map_err(of.failed(what))?;
            let behind = |number: usize| next.get_ref(child.columns.len() + 1 + number);
            let values = (0..self.from.len()).map(|number| behind(number).map(value));
            let values: rusqlite::Result<Vec<Value>> = values.collect();
            let values = values.map_err(of.failed(what))?;
            found.push((values, known_by(child, rowid, &row)));
        }
        Ok(found)
    }

    /// The rows of a version that refer to one of these, each with what it refers to. `parent` is a version that has them.
    pub(super) fn referring(
        &self,
        child: &End<'_>,
        parent: Option<&End<'_>>,
        among: &HashSet<&[Value]>,
        is: impl Fn(Option<i64>, &Row) -> bool,
    ) -> Result<Vec<(Vec<Value>, Row)>> {
        let mut all = HashMap::new();
        if among.is_empty() {
            return Ok(Vec::new());
        }
        if self.alike {
            let among: Vec<&[Value]> = among.iter().copied().collect();
            child.each_of(&among, |rowid, row| {
                if is(rowid, row)
                    && let Some(held) = values(row, &child.columns)
                {
                    let pair = (held.clone(), held);
                    all.entry(pair).or_insert_with(|| row.clone());
                }
                Ok(false)
            })?;
            return Ok(all.into_iter().map(|((to, _), row)| (to, row)).collect());
        }
        let Some(parent) = parent else {
            return Ok(Vec::new());
        };
        child.first(|rowid, row| {
            if is(rowid, row)
                && let Some(held) = values(row, &child.columns)
            {
                let to = |row: &Row| values(row, &parent.columns);
                let known = |row: &Row| to(row).is_some_and(|to| among.contains(to.as_slice()));
                let found = parent.find(&[&held], |_, row| known(row))?;
                if let Some(to) = found.and_then(|(_, row)| to(&row)) {
                    all.entry((to, held)).or_insert_with(|| row.clone());
                }
            }
            Ok(false)
        })?;
        Ok(all.into_iter().map(|((to, _), row)| (to, row)).collect())
    }
}

/// The child and the parent of a row that refers to nothing in a version, and did not in the one before it.
pub(super) fn newly_broken(
    (base, before): (&Database, &Schema),
    (work, after): (&Database, &Schema),
) -> Result<Option<(String, String)>> {
    // A reference is known by its mark without values.
    let mut was: HashMap<String, HashSet<BrokenRow>> = HashMap::new();
    for one in Reference::declared(base, before, |_| true)? {
        let rows = one.broken_rows(base, before)?;
        was.entry(one.mark(&[])).or_default().extend(rows);
    }
    let mut all = Reference::declared(work, after, |_| true)?;
    let there: HashSet<String> = all.iter().map(|one| one.mark(&[])).collect();
    all.retain(|one| one.is_followed);
    // A table or column that got another name has the rows that it had.
    let renamed = was.iter().filter(|(one, _)| !there.contains(*one));
    let renamed: HashSet<&BrokenRow> = renamed.flat_map(|(_, rows)| rows).collect();
    for one in &all {
        let known = was.get(&one.mark(&[]));
        let is_old = |row: &BrokenRow| match known {
            Some(rows) => rows.contains(row),
            None => renamed.contains(row),
        };
        if !one.broken_rows(work, after)?.iter().all(is_old) {
            return Ok(Some((one.child.clone(), one.parent.clone())));
        }
    }
    Ok(None)
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

    /// Hands on the rows that have one of these values, until one is found.
    fn each_of(
        &self,
        among: &[&[Value]],
        mut is: impl FnMut(Option<i64>, &Row) -> Result<bool>,
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
                    let (select, marks) =
                        (self.table.select_also(&[]), vec![marks; count].join(", "));
                    format!("{select} WHERE ({names}) IN (VALUES {marks})")
                }
            };
            let found = self.rows(&sql, &some.concat(), &mut is)?;
            if found.is_some() {
                return Ok(found);
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
        self.each_of(among, |rowid, row| Ok(is(rowid, row)))
    }

    /// Those of some values that rows hold.
    pub(super) fn held(&self, among: &HashSet<Vec<Value>>) -> Result<HashSet<Vec<Value>>> {
        let wanted: Vec<&[Value]> = among.iter().map(Vec::as_slice).collect();
        let mut all = HashSet::new();
        self.each_of(&wanted, |_, row| {
            all.extend(values(row, &self.columns));
            Ok(false)
        })?;
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
