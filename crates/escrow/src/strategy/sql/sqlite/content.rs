//! Tables and rows as JSON lines: `orders` is every row of a table, `orders/17` one row of it.

use std::collections::HashSet;
use std::io::{Cursor, Read};

use rusqlite::params_from_iter;
use serde_json::{Map, Value as Json};

use super::connect::Database;
use super::constraints::holding;
use super::diff::{Lookup, each};
use super::schema::{Identity, Schema, Table, value};
use super::write::remove;
use crate::model::{Change, ChangeKind, ResourcePath};
use crate::strategy::QueryResult;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::{GivenRow, Row, RowKey, Value, given_rows, row_item, table_item};

/// What a path names.
enum Item {
    Table(Table),
    /// A row by its key.
    Row(Table, RowKey),
}

fn not_there(path: &ResourcePath) -> StrategyError {
    StrategyError::NotThere { path: path.clone() }
}

/// The table that a path names, or lies in.
fn find(of: &Database, path: &ResourcePath) -> Result<Item> {
    let schema = Schema::read(of)?;
    let mut tables = schema.tables.into_values();
    let table = tables
        .find(|table| path.lies_in(&table_item(&table.name)))
        .ok_or_else(|| not_there(path))?;
    if *path == table_item(&table.name) {
        return Ok(Item::Table(table));
    }
    match key(of, &table, path)? {
        Some(key) => Ok(Item::Row(table, key)),
        None => Err(not_there(path)),
    }
}

/// The key that a path names: that of a row which is there, or else one that can be read from the path itself.
fn key(of: &Database, table: &Table, path: &ResourcePath) -> Result<Option<RowKey>> {
    if let Some(typed) = typed(table, path) {
        return Ok(Some(typed));
    }
    let mut found = None;
    each(of, table, |rowid, row| {
        let key = table.key(rowid, &row).map(RowKey::Values);
        found = found
            .take()
            .or(key.filter(|key| row_item(&table.name, key) == *path));
        Ok(())
    })?;
    Ok(found)
}

/// A key of whole numbers and plain words, as it is written in an item.
fn typed(table: &Table, path: &ResourcePath) -> Option<RowKey> {
    let (parent, name) = path.split()?;
    let text = std::str::from_utf8(name).ok()?;
    let value = |word: &str| match word.parse::<i64>() {
        Ok(number) => Value::Integer(number),
        Err(_) => Value::Text(word.as_bytes().to_vec()),
    };
    let key = RowKey::Values(text.split(',').map(value).collect());
    (parent == table_item(&table.name) && row_item(&table.name, &key) == *path).then_some(key)
}

/// Runs one statement.
pub(super) fn query(of: &Database, statement: &str) -> Result<QueryResult> {
    let failed = || move |error| refusal(of, error);
    let is_held = !of.sql.is_autocommit();
    let before = of.sql.total_changes();
    let mut prepared = of.sql.prepare(statement).map_err(failed())?;
    let columns: Vec<String> = prepared.column_names().map(str::to_owned).collect();
    let mut rows = prepared.query([]).map_err(failed())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(failed())? {
        let values = (0..columns.len()).map(|number| Ok(value(row.get_ref(number)?).json()));
        found.push(values.collect::<rusqlite::Result<_>>().map_err(failed())?);
    }
    drop(rows);
    if !is_held && !of.sql.is_autocommit() {
        return Err(StrategyError::Unsupported {
            strategy: "snapshot".to_owned(),
            what: "begin a transaction".to_owned(),
            why: "it would end with the command; each statement is one of its own".to_owned(),
        });
    }
    Ok(QueryResult {
        columns,
        rows: found,
        changed: of.sql.total_changes() - before,
    })
}

/// What SQLite refused, with what to do instead where it has no words for it: nothing can be attached here, which is also how
/// `VACUUM` works.
fn refusal(of: &Database, error: rusqlite::Error) -> StrategyError {
    match error.to_string().contains("too many attached databases") {
        true => StrategyError::Unsupported {
            strategy: "snapshot".to_owned(),
            what: "run VACUUM or ATTACH".to_owned(),
            why: "a statement here reaches one database only; a commit releases rows and not the layout of the file, so run VACUUM \
                  on the original, and with other databases use a client on the file that `escrow path` names"
                .to_owned(),
        },
        false => of.failed("run the statement")(error),
    }
}

/// A row as one line.
fn line(table: &Table, row: &Row) -> String {
    let values = table
        .columns
        .iter()
        .cloned()
        .zip(row.iter().map(Value::json));
    format!("{}\n", Json::Object(values.collect::<Map<_, _>>()))
}

/// Reads a table, or a row.
pub(super) fn read(of: &Database, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
    let mut text = String::new();
    of.transaction(false, || match find(of, path)? {
        Item::Table(table) => each(of, &table, |_, row| {
            text.push_str(&line(&table, &row));
            Ok(())
        }),
        Item::Row(table, RowKey::Values(key)) => {
            let found = Lookup::new(of, &table)?.key(&key)?;
            let (_, row) = found.ok_or_else(|| not_there(path))?;
            text.push_str(&line(&table, &row));
            Ok(())
        }
        Item::Row(_, RowKey::Copy(..)) => Err(not_there(path)),
    })?;
    Ok(Box::new(Cursor::new(text.into_bytes())))
}

/// Puts rows in the place of a table, or of a row. All of it is one transaction, as its application would make it.
pub(super) fn write(of: &Database, path: &ResourcePath, bytes: &mut dyn Read) -> Result<Change> {
    let rows = given_rows(path, bytes)?;
    let refuse = |why: String| StrategyError::Unreadable {
        path: path.clone(),
        why,
    };
    let kind = of.transaction(true, || {
        let (table, key) = match find(of, path)? {
            Item::Table(table) => (table, None),
            Item::Row(table, RowKey::Values(key)) => (table, Some(key)),
            Item::Row(..) => return Err(not_there(path)),
        };
        let Some(key) = key else {
            write_table(of, &table, &rows, path)?;
            return Ok(ChangeKind::Modified);
        };
        let [row] = &rows[..] else {
            return Err(refuse(format!(
                "it is one row, and {} were given",
                rows.len()
            )));
        };
        let was = Lookup::new(of, &table)?.key(&key)?;
        let kind = match was {
            Some(_) => ChangeKind::Updated,
            None => ChangeKind::Inserted,
        };
        match was {
            Some((rowid, old)) => update(of, &table, (rowid, &old), row, path)?,
            None => insert(of, &table, row, path)?,
        }
        match Lookup::new(of, &table)?.key(&key)? {
            Some(_) => Ok(kind),
            None => Err(refuse("the row has another key than the path".to_owned())),
        }
    })?;
    let detail = serde_json::json!({ "rows": rows.len() });
    Ok(Change::opaque(path.clone(), kind, detail))
}

/// Puts rows in the place of those of a table. Where they have keys, a row that stays is changed in place: what refers to it stays, too.
fn write_table(of: &Database, table: &Table, rows: &[GivenRow], path: &ResourcePath) -> Result<()> {
    let keys: Option<Vec<Vec<Value>>> = rows.iter().map(|row| given_key(table, row)).collect();
    let Some(keys) = keys else {
        let sql = format!("DELETE FROM {}", table.sql_name());
        of.run("empty a table", &sql)?;
        return rows.iter().try_for_each(|row| insert(of, table, row, path));
    };
    // What SQLite takes for the same key is the same row.
    let mut there = Vec::new();
    let mut stays = HashSet::new();
    for key in &keys {
        let found = holding(of, table, &key_columns(table), key)?
            .into_iter()
            .next();
        let key = match &found {
            Some((rowid, row)) => table.key(*rowid, row).unwrap_or_default(),
            None => key.clone(),
        };
        if !stays.insert(key) {
            return Err(StrategyError::Unreadable {
                path: path.clone(),
                why: "two rows have the same key".to_owned(),
            });
        }
        there.push(found);
    }
    let mut gone = Vec::new();
    each(of, table, |rowid, row| {
        let key = table.key(rowid, &row);
        if key.is_none_or(|key| !stays.contains(&key)) {
            gone.push((rowid, row));
        }
        Ok(())
    })?;
    let clear = || {
        gone.iter()
            .try_for_each(|(rowid, row)| remove(of, table, *rowid, row))
    };
    let fill = || {
        let mut all = rows.iter().zip(&there);
        all.try_for_each(|(row, found)| match found {
            Some((rowid, old)) => update(of, table, (*rowid, old), row, path),
            None => insert(of, table, row, path),
        })
    };
    let exact = || {
        rows.iter()
            .try_for_each(|row| as_given(of, table, row, path))
    };
    // What stays may have referred to a row that goes, or get a value that such a one has. What goes after it may change it again.
    let orders: [[&dyn Fn() -> Result<()>; 3]; 2] =
        [[&fill, &clear, &exact], [&clear, &fill, &|| Ok(())]];
    let mut refused = Ok(());
    for steps in orders {
        let written = of.transaction(true, || {
            steps.iter().try_for_each(|step| step())?;
            all_there(of, table, &keys, path)
        });
        match written {
            Ok(()) => return Ok(()),
            // Some errors end the whole transaction.
            Err(error) if of.sql.is_autocommit() => return Err(error),
            Err(error) => refused = Err(error),
        }
    }
    refused
}

/// Refuses where a row does not have what was given, as its columns take it.
fn as_given(of: &Database, table: &Table, row: &GivenRow, path: &ResourcePath) -> Result<()> {
    let values = given(table, row, path)?;
    let key: Vec<String> = key_columns(table)
        .into_iter()
        .map(|column| super::schema::quoted(&table.columns[column]))
        .collect();
    let is = |((name, _), number): (&(String, Value), usize)| match key.contains(name) {
        true => format!("{name} = ?{number}"),
        false => format!("{name} COLLATE BINARY IS ?{number}"),
    };
    let all: Vec<String> = values.iter().zip(1..).map(is).collect();
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {} WHERE {})",
        table.sql_name(),
        all.join(" AND ")
    );
    let values = params_from_iter(values.iter().map(|(_, value)| value));
    let found: rusqlite::Result<bool> = of.sql.query_row(&sql, values, |row| row.get(0));
    match found.map_err(of.failed("read the rows"))? {
        true => Ok(()),
        false => Err(StrategyError::Unreadable {
            path: path.clone(),
            why: "a row would have other values than were given".to_owned(),
        }),
    }
}

/// Refuses where a row that was given is gone again.
fn all_there(of: &Database, table: &Table, keys: &[Vec<Value>], path: &ResourcePath) -> Result<()> {
    for key in keys {
        if holding(of, table, &key_columns(table), key)?.is_empty() {
            return Err(StrategyError::Unreadable {
                path: path.clone(),
                why: format!(
                    "the row {} was given and is gone again: with one that goes (ON DELETE CASCADE), or by a trigger",
                    row_item(&table.name, &RowKey::Values(key.clone()))
                ),
            });
        }
    }
    Ok(())
}

/// The columns by which rows are told apart; none where they are not.
fn key_columns(table: &Table) -> Vec<usize> {
    match (&table.identity, table.alias) {
        (Identity::Key(columns), _) => columns.clone(),
        (Identity::Rowid, Some(alias)) => vec![alias],
        _ => Vec::new(),
    }
}

/// The key of a row that was given, if it has one.
fn given_key(table: &Table, row: &GivenRow) -> Option<Vec<Value>> {
    let columns = key_columns(table);
    let value = |one: usize| Value::parse(row.columns.get(&table.columns[one])?);
    let key: Option<Vec<Value>> = columns.into_iter().map(value).collect();
    key.filter(|key| !key.is_empty() && !key.contains(&Value::Null))
}

/// The columns and values of a row that was given.
fn given(table: &Table, row: &GivenRow, path: &ResourcePath) -> Result<Vec<(String, Value)>> {
    let refuse = |why: String| StrategyError::Unreadable {
        path: path.clone(),
        why,
    };
    let mut values = Vec::new();
    let texts = row.texts();
    for (name, json) in &row.columns {
        if !table.columns.contains(name) {
            return Err(refuse(format!(
                "the table has no column '{name}' that can be written"
            )));
        }
        // Read as JSON it would be rounded.
        let text = texts.get(name).map_or("", |text| text.get());
        let digits = text.strip_prefix('-').unwrap_or(text);
        let whole = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        if whole && text.parse::<i64>().is_err() {
            return Err(refuse(format!(
                "'{name}' is a whole number of more than 64 bits, which SQLite does not have: {text}; a column of type TEXT \
                 takes it as \"{text}\""
            )));
        }
        let value = Value::parse(json);
        let value =
            value.ok_or_else(|| refuse(format!("'{name}' has no value of a database: {json}")))?;
        values.push((super::schema::quoted(name), value));
    }
    match values.is_empty() {
        true => Err(refuse("a row without columns".to_owned())),
        false => Ok(values),
    }
}

fn insert(of: &Database, table: &Table, row: &GivenRow, path: &ResourcePath) -> Result<()> {
    let values = given(table, row, path)?;
    let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
    let marks: Vec<String> = (1..=values.len())
        .map(|number| format!("?{number}"))
        .collect();
    let sql = format!(
        "INSERT INTO {} ({}) VALUES ({})",
        table.sql_name(),
        names.join(", "),
        marks.join(", ")
    );
    let values = values.iter().map(|(_, value)| value);
    let done = of.sql.execute(&sql, params_from_iter(values));
    done.map(drop).map_err(of.failed("insert a row"))
}

fn update(
    of: &Database,
    table: &Table,
    (rowid, old): (Option<i64>, &Row),
    row: &GivenRow,
    path: &ResourcePath,
) -> Result<()> {
    let values = given(table, row, path)?;
    let sets: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(number, (name, _))| format!("{name} = ?{}", number + 1))
        .collect();
    let (terms, wanted): (String, Vec<Value>) = match (&table.rowid, rowid, &table.identity) {
        (Some(column), Some(rowid), _) => {
            let term = format!("{column} = ?{}", values.len() + 1);
            (term, vec![Value::Integer(rowid)])
        }
        (_, _, Identity::Key(key)) => {
            let term = |(number, column): (usize, &usize)| {
                let name = super::schema::quoted(&table.columns[*column]);
                format!("{name} IS ?{}", values.len() + number + 1)
            };
            let terms: Vec<String> = key.iter().enumerate().map(term).collect();
            let wanted = key.iter().map(|one| old[*one].clone()).collect();
            (terms.join(" AND "), wanted)
        }
        _ => return Err(not_there(path)),
    };
    let sql = format!(
        "UPDATE {} SET {} WHERE {terms}",
        table.sql_name(),
        sets.join(", ")
    );
    let values = values.iter().map(|(_, value)| value).chain(&wanted);
    let done = of.sql.execute(&sql, params_from_iter(values));
    done.map(drop).map_err(of.failed("change a row"))
}
