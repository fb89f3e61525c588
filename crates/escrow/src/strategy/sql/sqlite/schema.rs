//! The schema of a database: tables, how their rows are told apart, and the other objects with their SQL.

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use serde::{Deserialize, Serialize};

use super::connect::Database;
use super::full_text::{FullText, has_languages, has_locales};
use super::shadow;
use crate::model::ResourcePath;
use crate::strategy::error::{Result, StrategyError};
pub(super) use crate::strategy::sql::identifier as quoted;
use crate::strategy::sql::{Row, Value, part_item, table_item};
use crate::strategy::unsupported;

/// Settings in the header of the file that a commit carries over.
pub(super) const CARRIED: [&str; 2] = ["user_version", "application_id"];

/// Settings of the file that stay as they are in the original: to change them the whole file is written anew.
pub(super) const KEPT: [&str; 4] = ["journal_mode", "page_size", "auto_vacuum", "encoding"];

/// How a row is told from the others of its table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Identity {
    /// By its number, which is a column of it (`INTEGER PRIMARY KEY`) or of a virtual table.
    Rowid,
    /// By these columns. Rows with a NULL among them have no key.
    Key(Vec<usize>),
    /// By nothing but its values.
    Content,
}

/// A table with rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) name: String,
    /// The columns that are stored; what is computed from others is left to SQLite.
    pub(super) columns: Vec<String>,
    pub(super) identity: Identity,
    /// The name of the number of a row; none for tables without.
    pub(super) rowid: Option<String>,
    /// The column that is that number.
    pub(super) alias: Option<usize>,
    /// Columns that only another version of the table has: they are read as NULL.
    #[serde(default, skip)]
    pub(super) absent: Vec<usize>,
}

/// Anything that has SQL in the schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Object {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) table: String,
    pub(super) sql: String,
    /// The first page of a table.
    #[serde(default, skip)]
    pub(super) root: u32,
}

impl Object {
    /// The item that a diff names it by.
    pub(super) fn item(&self) -> ResourcePath {
        match self.kind.as_str() {
            "table" | "view" => table_item(&self.name),
            kind => part_item(&self.table, kind, &self.name),
        }
    }

    pub(super) fn is_table(&self) -> bool {
        self.kind == "table"
    }

    /// Whether indexes or triggers may belong to it, which go with it.
    pub(super) fn owns(&self) -> bool {
        self.is_table() || self.kind == "view"
    }
}

/// The objects of a database by kind and name, and its tables.
#[derive(Debug, Default)]
pub(super) struct Schema {
    pub(super) objects: BTreeMap<(String, String), Object>,
    pub(super) tables: BTreeMap<String, Table>,
    /// Full-text tables whose rows lie elsewhere: they are rebuilt after a merge that concerns these.
    pub(super) full_text: Vec<FullText>,
}

impl Table {
    pub(super) fn sql_name(&self) -> String {
        quoted(&self.name)
    }

    /// `"a", "b"`
    pub(super) fn column_list(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|name| quoted(name)).collect();
        names.join(", ")
    }

    /// Every row, in the order of their numbers or of their key. The first value is the number, or NULL.
    pub(super) fn select_all(&self) -> String {
        match &self.rowid {
            Some(rowid) => format!("{} ORDER BY {rowid}", self.select()),
            // Without it SQLite may follow any index that has all columns.
            None => {
                let name = |one: &usize| format!("{} COLLATE BINARY", quoted(&self.columns[*one]));
                let key: Vec<String> = match &self.identity {
                    Identity::Key(key) => key.iter().map(name).collect(),
                    Identity::Rowid | Identity::Content => {
                        (0..self.columns.len()).map(|one| name(&one)).collect()
                    }
                };
                format!("{} ORDER BY {}", self.select(), key.join(", "))
            }
        }
    }

    /// The rows whose numbers lie between two.
    pub(super) fn select_range(&self) -> Option<String> {
        let rowid = self.rowid.as_ref()?;
        let (select, between) = (self.select(), "BETWEEN ?1 AND ?2");
        Some(format!("{select} WHERE {rowid} {between} ORDER BY {rowid}"))
    }

    fn select(&self) -> String {
        self.select_also(&[])
    }

    /// Rows with more columns behind them, such as computed ones.
    pub(super) fn select_also(&self, more: &[String]) -> String {
        let rowid = self.rowid.as_deref().unwrap_or("NULL");
        let column = |(number, name): (usize, &String)| match self.absent.contains(&number) {
            true => "NULL".to_owned(),
            false => quoted(name),
        };
        let columns = self.columns.iter().enumerate().map(column);
        let columns: Vec<String> = columns
            .chain(more.iter().map(|name| quoted(name)))
            .collect();
        let (columns, table) = (columns.join(", "), self.sql_name());
        format!("SELECT {rowid}, {columns} FROM {table}")
    }

    /// The row with a number.
    pub(super) fn select_rowid(&self) -> Option<String> {
        let rowid = self.rowid.as_ref()?;
        Some(format!("{} WHERE {rowid} = ?1", self.select()))
    }

    /// The rows with these values in columns.
    pub(super) fn select_where(&self, columns: &[usize]) -> String {
        let terms: Vec<String> = columns
            .iter()
            .enumerate()
            .map(|(number, column)| {
                format!("{} IS ?{}", quoted(&self.columns[*column]), number + 1)
            })
            .collect();
        format!("{} WHERE {}", self.select(), terms.join(" AND "))
    }

    /// What a row is put in with: its number, unless a column is that, and its columns.
    pub(super) fn insert(&self) -> String {
        let count = self.columns.len();
        let marks: Vec<String> = (2..count + 2).map(|number| format!("?{number}")).collect();
        let (table, columns, marks) = (self.sql_name(), self.column_list(), marks.join(", "));
        match self.numbers() {
            Some(rowid) => {
                format!("INSERT OR ABORT INTO {table} ({rowid}, {columns}) VALUES (?1, {marks})")
            }
            None => format!("INSERT OR ABORT INTO {table} ({columns}) VALUES ({marks})"),
        }
    }

    /// The name of the number of a row, where it is not a column.
    pub(super) fn numbers(&self) -> Option<&str> {
        self.rowid.as_deref().filter(|_| self.alias.is_none())
    }

    /// The key of a row; none where it has none.
    pub(super) fn key(&self, rowid: Option<i64>, row: &Row) -> Option<Vec<Value>> {
        match &self.identity {
            Identity::Rowid => rowid.map(|rowid| vec![Value::Integer(rowid)]),
            Identity::Key(columns) => {
                let key: Vec<Value> = columns.iter().map(|one| row[*one].clone()).collect();
                (!key.contains(&Value::Null)).then_some(key)
            }
            Identity::Content => None,
        }
    }
}

/// A value as SQLite gives it.
pub(super) fn value(from: ValueRef<'_>) -> Value {
    match from {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number.to_bits()),
        ValueRef::Text(text) => Value::Text(text.to_vec()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(bits) => ValueRef::Real(f64::from_bits(*bits)),
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// The number and the values of a row that [`Table::select_all`] and its like gave.
pub(super) fn row(of: &rusqlite::Row<'_>, table: &Table) -> rusqlite::Result<(Option<i64>, Row)> {
    let rowid = of.get(0)?;
    let values = (1..=table.columns.len()).map(|number| Ok(value(of.get_ref(number)?)));
    Ok((rowid, values.collect::<rusqlite::Result<_>>()?))
}

impl Schema {
    /// Reads the schema. A table whose rows cannot be told apart or read here is refused with the reason.
    pub(super) fn read(of: &Database) -> Result<Self> {
        let mut schema = Self::default();
        let (objects, kinds) = (read_objects(of)?, read_kinds(of)?);
        let named = kinds.iter().filter(|(_, (kind, _))| kind == "shadow");
        let named: Vec<String> = named.map(|(name, _)| name.clone()).collect();
        let parts = shadow::owned(of, &objects, &named)?;
        for object in objects {
            let internal = object.name.to_ascii_lowercase().starts_with("sqlite_");
            if internal || parts.contains(&object.name) || parts.contains(&object.table) {
                continue;
            }
            if object.is_table() {
                let (kind, without_rowid) = kinds.get(&object.name).cloned().unwrap_or_default();
                schema.add_table(of, &object, &kind, without_rowid)?;
            }
            let key = (object.kind.clone(), object.name.clone());
            schema.objects.insert(key, object);
        }
        schema.name_owners();
        Ok(schema)
    }

    /// Names what indexes and triggers belong to as it calls itself: SQLite keeps the name that their SQL gives, in any case.
    fn name_owners(&mut self) {
        let owners = self.objects.values().filter(|one| one.owns());
        let owners: BTreeMap<String, String> = owners
            .map(|one| (one.name.to_ascii_lowercase(), one.name.clone()))
            .collect();
        for object in self.objects.values_mut() {
            if let Some(owner) = owners.get(&object.table.to_ascii_lowercase()) {
                object.table.clone_from(owner);
            }
        }
    }

    fn add_table(
        &mut self,
        of: &Database,
        object: &Object,
        kind: &str,
        without_rowid: bool,
    ) -> Result<()> {
        if let Some(found) = FullText::read(of, object)?.filter(|_| kind == "virtual") {
            self.full_text.push(found);
            return Ok(());
        }
        if kind == "virtual" && has_locales(of, &object.name)? {
            let what = format!("work with the table '{}'", object.name);
            let why = "its rows have locales, which no column of it shows";
            return Err(unsupported("snapshot", &what, why));
        }
        let table = read_table(of, &object.name, kind == "virtual", without_rowid)?;
        // What SQLite cannot read or order here fails now, not in the middle of a commit.
        for sql in [Some(table.select_all()), table.select_rowid()] {
            let prepared = sql.map(|sql| of.sql.prepare(&sql).map(drop));
            prepared.transpose().map_err(|error| StrategyError::Unsupported {
                strategy: "snapshot".to_owned(),
                what: format!("work with the table '{}'", object.name),
                why: format!(
                    "{error}: only its application can; while nothing has the database open, the type fs-file takes \
                     it as a plain file"
                ),
            })?;
        }
        // What only shows other tables (`fts5vocab`) has no rows of its own, and its module takes none.
        let writes = || of.sql.prepare(&table.insert()).map(drop);
        let shows = |error: &rusqlite::Error| error.to_string().contains("may not be modified");
        if kind != "virtual" || !writes().is_err_and(|error| shows(&error)) {
            self.tables.insert(object.name.clone(), table);
        }
        Ok(())
    }

    /// The object of a table.
    pub(super) fn table_object(&self, table: &str) -> Option<&Object> {
        self.objects.get(&("table".to_owned(), table.to_owned()))
    }

    /// Whether a table gives out numbers that never come again.
    pub(super) fn counts(&self, table: &str) -> bool {
        let sql = self.table_object(table);
        let sql = sql.map(|one| one.sql.to_ascii_lowercase());
        sql.is_some_and(|sql| sql.contains("autoincrement"))
    }

    /// The objects of a table or view, itself among them.
    pub(super) fn of_table<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Object> {
        self.objects.values().filter(move |one| one.table == name)
    }
}

/// What SQLite takes each table for, and whether it has no row numbers.
fn read_kinds(of: &Database) -> Result<BTreeMap<String, (String, bool)>> {
    let read = || -> rusqlite::Result<BTreeMap<String, (String, bool)>> {
        let mut list = of.sql.prepare("PRAGMA main.table_list")?;
        let rows = list.query_map([], |row| Ok((row.get(1)?, (row.get(2)?, row.get(4)?))))?;
        rows.collect()
    };
    read().map_err(of.failed("read the schema"))
}

/// Everything that has SQL in the schema.
fn read_objects(of: &Database) -> Result<Vec<Object>> {
    let read = || -> rusqlite::Result<Vec<Object>> {
        let all = "SELECT type, name, tbl_name, sql, rootpage FROM main.sqlite_schema WHERE sql IS NOT NULL";
        let mut all = of.sql.prepare(all)?;
        let rows = all.query_map([], |row| {
            Ok(Object {
                kind: row.get(0)?,
                name: row.get(1)?,
                table: row.get(2)?,
                sql: row.get(3)?,
                root: row.get::<_, Option<u32>>(4)?.unwrap_or_default(),
            })
        })?;
        rows.collect()
    };
    read().map_err(of.failed("read the schema"))
}

fn read_table(of: &Database, name: &str, is_virtual: bool, without_rowid: bool) -> Result<Table> {
    let what = "read the schema";
    let (mut columns, mut all, mut key) = (Vec::new(), Vec::new(), Vec::new());
    let mut last_hidden = None;
    let mut is_integer = false;
    let info = format!("PRAGMA main.table_xinfo({})", quoted(name));
    let mut info = of.sql.prepare(&info).map_err(of.failed(what))?;
    let mut rows = info.query([]).map_err(of.failed(what))?;
    while let Some(row) = rows.next().map_err(of.failed(what))? {
        let read = || -> rusqlite::Result<(String, String, i64, i64)> {
            Ok((row.get(1)?, row.get(2)?, row.get(5)?, row.get(6)?))
        };
        let (column, kind, place, hidden) = read().map_err(of.failed(what))?;
        all.push(column.to_ascii_lowercase());
        if hidden != 0 {
            last_hidden = Some(column);
            continue;
        }
        if place > 0 {
            is_integer = kind.eq_ignore_ascii_case("integer");
            key.push((place, columns.len()));
        }
        columns.push(column);
    }
    if is_virtual && has_languages(of, name)? {
        columns.extend(last_hidden);
    }
    key.sort_unstable();
    let key: Vec<usize> = key.into_iter().map(|(_, column)| column).collect();
    // `INTEGER PRIMARY KEY DESC` is no number of the row: it has an index of its own.
    let indexed = format!(
        "SELECT count(*) FROM pragma_index_list({}) WHERE origin = 'pk'",
        literal(name)
    );
    let indexed: i64 = of
        .sql
        .query_row(&indexed, [], |row| row.get(0))
        .map_err(of.failed(what))?;
    let free = ["rowid", "_rowid_", "oid"]
        .into_iter()
        .find(|name| !all.iter().any(|column| column == name));
    let is_alias = key.len() == 1 && is_integer && indexed == 0 && !without_rowid;
    let rowid = match (without_rowid, is_alias, free) {
        (true, _, _) => None,
        (false, _, Some(free)) => Some(free.to_owned()),
        (false, true, None) => Some(quoted(&columns[key[0]])),
        (false, false, None) => {
            return Err(StrategyError::Unsupported {
                strategy: "snapshot".to_owned(),
                what: format!("work with the table '{name}'"),
                why: "its columns hide the number of a row (rowid, oid and _rowid_ are columns)"
                    .to_owned(),
            });
        }
    };
    let key_column = key.first().copied();
    Ok(Table {
        name: name.to_owned(),
        columns,
        identity: match key.is_empty() {
            _ if is_virtual || is_alias => Identity::Rowid,
            true => Identity::Content,
            false => Identity::Key(key),
        },
        rowid,
        alias: key_column.filter(|_| is_alias),
        absent: Vec::new(),
    })
}

/// A text as SQL takes it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A setting of the database.
pub(super) fn setting(of: &Database, name: &str) -> Result<String> {
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<String> {
        Ok(match value(row.get_ref(0)?) {
            Value::Integer(number) => number.to_string(),
            Value::Text(text) => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        })
    };
    let asked = of.sql.query_row(&format!("PRAGMA main.{name}"), [], read);
    asked.map_err(of.failed(&format!("read {name}")))
}

/// The settings that a full-text table was given; none of other tables.
pub(super) fn full_text_settings(of: &Database, table: &str) -> Option<String> {
    let config = quoted(&format!("{table}_config"));
    let sql = format!(
        "SELECT group_concat(quote(k) || '=' || quote(v)) FROM (SELECT k, v FROM main.{config} WHERE k <> 'version' ORDER BY k) \
         WHERE (SELECT count(*) FROM pragma_table_list WHERE name = {} AND type = 'virtual')",
        literal(table)
    );
    of.sql.query_row(&sql, [], |row| row.get(0)).ok().flatten()
}
