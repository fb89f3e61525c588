//! What a held transaction changed, found without anything of ours in the database (rule Q1).
//!
//! The tables it may have changed are those it holds a writing lock on. A row version is new where the transaction made it,
//! which its `xmin` says; an old one is gone where the connection that sees the beginning has it and the transaction has
//! not. Both are scans on the server: what comes over the link is what changed. A table that the transaction altered or emptied
//! is locked for all others, so its old rows cannot be seen: it is named as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::super::sql::differ::Copies;
use super::super::super::sql::{
    RowKey, UNREAD, Value, identifier, row_change, table_item, text_change,
};
use super::super::connect::{Connection, PgError, PgResult, literal};
use super::super::control::Changes;
use super::backend::Backend;
use super::definitions::definitions;
use super::redo::{Redo, RowWriter};
use super::requests::xid;
use crate::model::Detail;

/// How many rows are looked up at once.
const BATCH: usize = 500;

/// A table that may have changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::strategy::postgres) struct Table {
    pub(in crate::strategy::postgres) oid: String,
    pub(in crate::strategy::postgres) schema: String,
    pub(in crate::strategy::postgres) name: String,
    pub(in crate::strategy::postgres) kind: String,
    /// No other connection can look into it.
    closed: bool,
    /// This role may read it, and it has rows that can be read.
    pub(in crate::strategy::postgres) readable: bool,
    /// How many others it refers to, one through the other.
    pub(in crate::strategy::postgres) rank: usize,
}

impl Table {
    /// The name that people use: without the schema where it is the usual one.
    pub(in crate::strategy::postgres) fn shown(&self) -> String {
        shown(&self.schema, &self.name)
    }

    pub(in crate::strategy::postgres) fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.name))
    }

    pub(in crate::strategy::postgres) fn has_rows(&self) -> bool {
        matches!(self.kind.as_str(), "r" | "m")
    }

    fn word(&self) -> &'static str {
        match self.kind.as_str() {
            "m" => "materialized view",
            _ => "table",
        }
    }
}

/// The name that people use. A part with a dot is quoted, so that `s.n` and `public."s.n"` are two; what has no schema is named by
/// the server as a whole.
pub(in crate::strategy::postgres) fn shown(schema: &str, name: &str) -> String {
    let part = |text: &str| match text.contains('.') || text.starts_with('"') {
        true => identifier(text),
        false => text.to_owned(),
    };
    match schema {
        "" => name.to_owned(),
        "public" => part(name),
        schema => format!("{}.{}", part(schema), part(name)),
    }
}

pub(super) fn texts(row: Vec<Option<String>>) -> Vec<String> {
    row.into_iter().map(Option::unwrap_or_default).collect()
}

/// Everything that the transaction changed, and how the rows of it are written again.
pub(super) fn changes(backend: &mut Backend) -> PgResult<Redo> {
    let mut redo = Redo::default();
    let mut found = Changes::default();
    let mut tables = locked(&mut backend.connection)?;
    close(&mut backend.base, &mut tables)?;
    let numbers: Vec<&str> = tables.iter().map(|table| table.oid.as_str()).collect();
    let before = readable(&mut backend.base, &numbers)?;
    let now = readable(&mut backend.connection, &numbers)?;
    for table in &mut tables {
        table.readable = now.contains_key(&table.oid);
    }
    for table in tables.iter().filter(|table| table.kind == "S") {
        let note =
            "the sequence was moved, for everyone: neither a rollback nor an undo takes that back";
        found.notes.push((table.shown(), note.to_owned()));
    }
    let Some(xid) = xid(backend)? else {
        redo.changes = found;
        return Ok(redo);
    };
    let own = written_here(backend, &xid)?;
    let definitions = definitions(backend, &own)?;
    found.changes.extend(definitions.changes);
    let is_new = |table: &Table| definitions.new.contains(&table.oid);
    // Nobody else sees a sequence that is new.
    for table in tables.iter().filter(|table| is_new(table)) {
        found.notes.retain(|(name, _)| *name != table.shown());
    }
    // A definition cannot be made again from what is known of it.
    if !found.changes.is_empty() {
        redo.give_up();
    }
    for table in tables.iter().filter(|table| table.has_rows()) {
        let is_new = is_new(table);
        let renamed = !found.changes.is_empty()
            && has_names(&mut backend.connection, &table.oid, &definitions.types)?;
        let old = before.get(&table.oid).filter(|_| !is_new);
        let closed = table.closed || renamed;
        let why = match table.readable {
            false => Some("this role may not read all of it, or it was never filled"),
            true if is_new => None,
            true if closed => Some("it is locked, or has names in it that may have changed"),
            true if old.is_none() => {
                Some("this role could not read all of it before the work in the sandbox")
            }
            true => None,
        };
        // The rows of a materialized view are made by its query alone.
        if closed || table.kind == "m" || why.is_some() {
            redo.give_up();
        }
        let name = now.get(&table.oid).map_or("", String::as_str);
        match why {
            Some(why) => unread(&mut backend.connection, table, (name, why), &mut found)?,
            None => {
                let names = (name, old.map(String::as_str));
                rows(backend, table, &own, names, (&mut found, &mut redo))?;
            }
        }
    }
    for table in tables.iter().filter(|table| table.kind == "f") {
        let note = "rows of a foreign table are changed elsewhere, and not shown";
        found.notes.push((table.shown(), note.to_owned()));
        redo.give_up();
    }
    found.changes.sort_by(|a, b| a.path.cmp(&b.path));
    redo.changes = found;
    Ok(redo)
}

/// The condition of a row that the transaction wrote.
fn written_here(backend: &mut Backend, xid: &str) -> PgResult<String> {
    let number: u64 = xid
        .parse()
        .map_err(|_| PgError::link("the server gave no number for its transaction"))?;
    // The server counts to 2³² in its rows, in a circle.
    let low = number & 0xffff_ffff;
    let own = format!("pg_catalog.age(xmin) <= pg_catalog.age('{low}'::pg_catalog.xid)");
    if number < 1 << 31 {
        return Ok(own);
    }
    // Rows that are frozen keep their numbers for ever, and those of half a circle ago count as newer. So the newest number bounds
    // them: that of a subtransaction, which a message gives it.
    let since = |number: &str| {
        format!(
            "((({number})::pg_catalog.text::pg_catalog.int8 OPERATOR(pg_catalog.-) {low}) OPERATOR(pg_catalog.&) 4294967295)"
        )
    };
    let (connection, newest) = (&mut backend.connection, "escrow_newest");
    connection.query(&format!(
        "SAVEPOINT {newest}; SELECT pg_catalog.pg_logical_emit_message(true, 'escrow', '')"
    ))?;
    let bound = connection.value(&format!(
        "SELECT pg_catalog.max({}) FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'transactionid' \
         AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()",
        since("transactionid")
    ))?;
    connection.take_back(newest)?;
    let bound = bound.ok_or_else(|| PgError::link("the server does not say its newest number"))?;
    let within = since("xmin");
    Ok(format!(
        "({own} AND {within} OPERATOR(pg_catalog.<=) {bound})"
    ))
}

/// Names a table whose old rows no other connection can see: it counts as changed, so that nothing of it is dropped (rule Q3),
/// and its change covers the rows it has now, so that nothing else is committed than what was shown (rule C11). Where those cannot
/// be read either, the diff has no digest.
fn unread(
    connection: &mut Connection,
    table: &Table,
    (quoted, why): (&str, &str),
    found: &mut Changes,
) -> PgResult<()> {
    let path = table_item(&table.shown());
    let place = found.changes.iter().position(|change| change.path == path);
    let place = place.unwrap_or_else(|| {
        let (kind, name) = (table.word(), table.shown());
        let before = format!("{kind} {name}");
        let after = format!("{kind} {name}: its rows could not be read: {why}");
        let change = text_change(path, kind, Some(&before), Some(&after));
        found.changes.push(change);
        found.changes.len() - 1
    });
    let Detail::Opaque { detail, .. } = &mut found.changes[place].detail else {
        return Ok(());
    };
    if !table.readable {
        detail[UNREAD] = true.into();
        return Ok(());
    }
    let mut hash = blake3::Hasher::new();
    // The whole row, also of a table with a column of this name.
    let sql = format!(
        "SELECT {} FROM ONLY {quoted} x ORDER BY 1",
        digest_of("x.*"),
    );
    connection.each_row(&sql, |row| {
        hash.update(row.first().copied().flatten().unwrap_or_default());
        Ok(())
    })?;
    detail["rows"] = hash.finalize().to_hex().as_str().into();
    Ok(())
}

/// Whether a table has values that are written as names, of which one may be another thing's now: of enumerated types that were changed, also in
/// ranges (older servers have none of several), or of the catalogs (`regclass`, `aclitem`).
fn has_names(connection: &mut Connection, table: &str, types: &[String]) -> PgResult<bool> {
    let changed: String = types.iter().map(|number| format!(", {number}")).collect();
    let sql = format!(
        "WITH RECURSIVE r(oid) AS (SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped UNION \
         SELECT v.x FROM r JOIN pg_catalog.pg_type t ON t.oid = r.oid, LATERAL (SELECT t.typbasetype UNION ALL SELECT t.typelem UNION ALL \
         SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 UNION ALL \
         SELECT g.rngsubtype FROM pg_catalog.pg_range g WHERE g.rngtypid = t.oid \
         OR (pg_catalog.to_jsonb(g) ->> 'rngmultitypid')::pg_catalog.oid = t.oid) v(x) WHERE v.x <> 0) \
         SELECT EXISTS (SELECT FROM r WHERE oid IN (1033, 2202, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191{changed}))",
        literal(table)
    );
    Ok(connection.value(&sql)?.as_deref() == Some("t"))
}

/// The digest of values as the server computes it. They are what it sends: a cast to text may be a function of a client.
pub(super) fn digest_of(values: &str) -> String {
    format!(
        "pg_catalog.encode(pg_catalog.sha256(pg_catalog.textsend(pg_catalog.concat_ws(' ', {values}))), 'hex')"
    )
}

/// What the transaction has a writing lock on.
fn locked(connection: &mut Connection) -> PgResult<Vec<Table>> {
    let sql = "SELECT c.oid, n.nspname, c.relname, c.relkind, bool_or(l.mode = 'AccessExclusiveLock')::text, \
               'false' FROM pg_catalog.pg_locks l \
               JOIN pg_catalog.pg_class c ON c.oid = l.relation \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted \
               AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') \
               AND n.nspname <> 'pg_catalog' \
               GROUP BY 1, 2, 3, 4 ORDER BY 2, 3";
    listed(connection, sql)
}

/// Of these relations those that a connection can read all of, each with the name that it has there: schemas that were renamed or exchanged
/// give it another one on the other connection.
pub(super) fn readable(
    connection: &mut Connection,
    numbers: &[&str],
) -> PgResult<BTreeMap<String, String>> {
    if numbers.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT c.oid, pg_catalog.format('%s', c.oid::pg_catalog.regclass) FROM pg_catalog.pg_class c WHERE c.oid IN ({}) AND c.relispopulated \
         AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') \
         AND NOT pg_catalog.row_security_active(c.oid)",
        numbers.join(", ")
    );
    let rows = connection.query(&sql)?.into_iter();
    let named = |row| {
        let [number, name] = texts(row).try_into().unwrap_or_default();
        (number, name)
    };
    Ok(rows.map(named).collect())
}

/// Marks the tables of which an index was made anew: for the other connection they are locked with it.
fn close(base: &mut Connection, tables: &mut [Table]) -> PgResult<()> {
    let indexes = tables
        .iter()
        .filter(|table| table.closed && table.kind == "i");
    let indexes: Vec<&str> = indexes.map(|table| table.oid.as_str()).collect();
    if indexes.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT indrelid FROM pg_catalog.pg_index WHERE indexrelid IN ({})",
        indexes.join(", ")
    );
    let closed: Vec<String> = base.query(&sql)?.into_iter().flat_map(texts).collect();
    for table in tables.iter_mut() {
        table.closed |= closed.contains(&table.oid);
    }
    Ok(())
}

/// Every table of a database, also those that only others hold.
pub(in crate::strategy::postgres) fn all(connection: &mut Connection) -> PgResult<Vec<Table>> {
    let sql = "SELECT c.oid, n.nspname, c.relname, c.relkind, 'false', \
               (c.relispopulated AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))::text \
               FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.relkind IN ('r', 'm') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' ORDER BY 2, 3";
    listed(connection, sql)
}

fn listed(connection: &mut Connection, sql: &str) -> PgResult<Vec<Table>> {
    let rows = connection.query(sql)?;
    let table = |row: Vec<Option<String>>| {
        let mut row = texts(row).into_iter();
        let mut next = || row.next().unwrap_or_default();
        Table {
            oid: next(),
            schema: next(),
            name: next(),
            kind: next(),
            closed: next() == "true",
            readable: next() == "true",
            rank: 0,
        }
    };
    let mut tables: Vec<Table> = rows.into_iter().map(table).collect();
    rank(connection, &mut tables)?;
    Ok(tables)
}

/// Puts each table after those it refers to; in a circle some order has to do.
fn rank(connection: &mut Connection, tables: &mut [Table]) -> PgResult<()> {
    let sql = "SELECT conrelid, confrelid FROM pg_catalog.pg_constraint \
               WHERE contype = 'f' AND conrelid <> confrelid";
    let edges: Vec<Vec<String>> = connection.query(sql)?.into_iter().map(texts).collect();
    let places: BTreeMap<String, usize> = tables
        .iter()
        .enumerate()
        .map(|(at, table)| (table.oid.clone(), at))
        .collect();
    let edges: Vec<(usize, usize)> = edges
        .iter()
        .filter_map(|edge| Some((*places.get(&edge[0])?, *places.get(&edge[1])?)))
        .collect();
    for _ in 0..tables.len() {
        for (from, to) in &edges {
            tables[*from].rank = tables[*from].rank.max(tables[*to].rank + 1);
        }
    }
    Ok(())
}

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::strategy::postgres) struct Columns {
    pub(in crate::strategy::postgres) names: Vec<String>,
    /// How each value is read: `i` a whole number, `b` yes or no, `x` XML with its declaration, `o` a name that several things have by its
    /// number, else a text.
    pub(in crate::strategy::postgres) reads: Vec<u8>,
    /// Which of them tell rows apart.
    pub(in crate::strategy::postgres) key: Vec<usize>,
    /// Which of them the server computes.
    pub(in crate::strategy::postgres) generated: Vec<bool>,
}

pub(in crate::strategy::postgres) fn columns(
    connection: &mut Connection,
    oid: &str,
) -> PgResult<Columns> {
    let sql = format!(
        "SELECT a.attname, CASE WHEN b.oid IN (20, 21, 23) THEN 'i' WHEN b.oid = 16 THEN 'b' \
         WHEN b.oid = 142 THEN 'x' WHEN b.oid IN (24, 2203) THEN 'o' ELSE 't' END, \
         coalesce(pg_catalog.array_position(k.keys, a.attnum), 0) - 1, (a.attgenerated <> '')::text \
         FROM pg_catalog.pg_attribute a JOIN LATERAL (WITH RECURSIVE d AS (SELECT t.oid, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid \
         UNION ALL SELECT t.oid, t.typbasetype FROM d JOIN pg_catalog.pg_type t ON t.oid = d.typbasetype) \
         SELECT d.oid FROM d WHERE d.typbasetype = 0) b ON true LEFT JOIN LATERAL (SELECT (pg_catalog.string_to_array(pg_catalog.format('%s', i.indkey), ' ')::int2[])[1:i.indnkeyatts] AS keys FROM pg_catalog.pg_index i \
         WHERE i.indrelid = a.attrelid AND i.indisprimary) k ON true \
         WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        literal(oid)
    );
    let (mut names, mut reads, mut key) = (Vec::new(), Vec::new(), Vec::new());
    let mut generated = Vec::new();
    for row in connection.query(&sql)? {
        let mut row = texts(row).into_iter();
        let mut next = || row.next().unwrap_or_default();
        names.push(next());
        reads.push(next().as_bytes().first().copied().unwrap_or(b't'));
        if let Ok(place) = next().parse::<u32>() {
            key.push((place, names.len() - 1));
        }
        generated.push(next() == "true");
    }
    key.sort_unstable();
    let key = key.into_iter().map(|(_, column)| column).collect();
    Ok(Columns {
        names,
        reads,
        key,
        generated,
    })
}

pub(in crate::strategy::postgres) fn value(read: u8, text: Option<&[u8]>) -> Value {
    let Some(text) = text else {
        return Value::Null;
    };
    let number = || std::str::from_utf8(text).ok()?.parse().ok();
    match (read, text) {
        (b'i', _) => number().map_or_else(|| Value::Text(text.to_vec()), Value::Integer),
        (b'b', b"t") => Value::Text(b"true".to_vec()),
        (b'b', b"f") => Value::Text(b"false".to_vec()),
        _ => Value::Text(text.to_vec()),
    }
}

type Versions = Vec<(String, Vec<Value>)>;

/// Versions of rows, each with its place.
fn versions(connection: &mut Connection, sql: &str, columns: &Columns) -> PgResult<Versions> {
    let mut found = Vec::new();
    connection.each_row(sql, |row| {
        let place = row.first().copied().flatten().unwrap_or_default();
        let values = row.iter().skip(1).zip(&columns.reads);
        let values = values.map(|(text, read)| value(*read, *text)).collect();
        found.push((String::from_utf8_lossy(place).into_owned(), values));
        Ok(())
    })?;
    Ok(found)
}

/// Compares the rows of a table, which has this name now, and had that one before, unless it is new.
fn rows(
    backend: &mut Backend,
    table: &Table,
    own: &str,
    (now, before): (&str, Option<&str>),
    (found, redo): (&mut Changes, &mut Redo),
) -> PgResult<()> {
    let columns = columns(&mut backend.connection, &table.oid)?;
    // As the server sends them: a cast to text may be a function of a client. Of some types it does not send all of the value.
    let column = |(name, read): (&String, &u8)| match read {
        b'x' => format!(", {}::pg_catalog.text", identifier(name)),
        b'o' => format!(", {}::pg_catalog.oid", identifier(name)),
        _ => format!(", {}", identifier(name)),
    };
    let list: Vec<String> = columns
        .names
        .iter()
        .zip(&columns.reads)
        .map(column)
        .collect();
    let select = format!("SELECT ctid{} FROM ONLY", list.concat());
    let new = versions(
        &mut backend.connection,
        &format!("{select} {now} WHERE {own}"),
        &columns,
    )?;
    let mut old = Vec::new();
    if let Some(before) = before {
        let candidates = format!("{select} {before} WHERE xmax <> '0'::pg_catalog.xid");
        old = versions(&mut backend.base, &candidates, &columns)?;
        drop_present(&mut backend.connection, now, &mut old)?;
    }
    let (shown, quoted) = (table.shown(), table.quoted());
    let writer = RowWriter {
        rank: table.rank,
        table: &quoted,
        columns: &columns.names,
        key: &columns.key,
        generated: &columns.generated,
    };
    let mut before = keyed(old, &columns);
    for (key, row) in keyed(new, &columns) {
        let old = before.remove(&key);
        if old.as_ref() != Some(&row) {
            let change = row_change(&shown, &columns.names, &key, old.as_ref(), Some(&row));
            found.changes.push(change);
            redo.row(&writer, old.as_deref(), Some(&row));
        }
    }
    for (key, row) in before {
        let change = row_change(&shown, &columns.names, &key, Some(&row), None);
        found.changes.push(change);
        redo.row(&writer, Some(&row), None);
    }
    Ok(())
}

/// Drops what the transaction still sees of a table, each by its place.
pub(super) fn drop_present<T>(
    connection: &mut Connection,
    table: &str,
    old: &mut Vec<(String, T)>,
) -> PgResult<()> {
    let mut present = std::collections::HashSet::new();
    for batch in old.chunks(BATCH) {
        let places: Vec<String> = batch
            .iter()
            .map(|(place, _)| format!("\"{place}\""))
            .collect();
        let list = literal(&format!("{{{}}}", places.join(",")));
        let sql =
            format!("SELECT ctid FROM ONLY {table} WHERE ctid = ANY ({list}::pg_catalog.tid[])");
        let rows = connection.query(&sql)?;
        present.extend(rows.into_iter().flat_map(|row| row.into_iter().flatten()));
    }
    old.retain(|(place, _)| !present.contains(place));
    Ok(())
}

/// Rows by what tells them apart: their key, or without one all of them and how often they are there.
fn keyed(versions: Versions, columns: &Columns) -> BTreeMap<RowKey, Vec<Value>> {
    let mut copies = Copies::default();
    let key = |(_, row): (String, Vec<Value>)| (key_of(&row, columns, &mut copies), row);
    versions.into_iter().map(key).collect()
}

/// What tells a row apart; `copies` counts those that are equal.
pub(in crate::strategy::postgres) fn key_of(
    row: &[Value],
    columns: &Columns,
    copies: &mut Copies,
) -> RowKey {
    if columns.key.is_empty() {
        return copies.key(row);
    }
    let values = columns.key.iter().map(|column| row[*column].clone());
    RowKey::Values(values.collect())
}
