//! What a held transaction changed, found without anything of ours in the database (rule Q1).
//!
//! The tables it may have changed are those it holds a writing lock on. A row version is new where the transaction made it,
//! which its `xmin` says; an old one is gone where the connection that sees the beginning has it and the transaction has
//! not. Both are scans on the server: what comes over the link is what changed. A table that the transaction altered or emptied
//! is locked for all others, so its old rows cannot be seen: it is named as a whole.

use std::collections::BTreeMap;

use super::super::super::sql::{RowKey, Value, row_change, table_item, text_change};
use super::super::connect::{Connection, PgError, PgResult, identifier, literal};
use super::super::control::Changes;
use super::backend::Backend;
use super::redo::{Redo, RowWriter};
use super::requests::xid;
use crate::model::ResourcePath;

/// How many rows are looked up at once.
const BATCH: usize = 500;

/// A table that the transaction may have changed.
struct Table {
    oid: String,
    schema: String,
    name: String,
    kind: String,
    /// No other connection can look into it.
    closed: bool,
    /// How many others it refers to, one through the other.
    rank: usize,
}

impl Table {
    /// The name that people use: without the schema where it is the usual one.
    fn shown(&self) -> String {
        shown(&self.schema, &self.name)
    }

    fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.name))
    }

    fn has_rows(&self) -> bool {
        matches!(self.kind.as_str(), "r" | "m")
    }

    fn word(&self) -> &'static str {
        match self.kind.as_str() {
            "m" => "materialized view",
            _ => "table",
        }
    }
}

fn shown(schema: &str, name: &str) -> String {
    match schema {
        "public" => name.to_owned(),
        schema => format!("{schema}.{name}"),
    }
}

fn texts(row: Vec<Option<String>>) -> Vec<String> {
    row.into_iter().map(Option::unwrap_or_default).collect()
}

/// Everything that the transaction changed, and how the rows of it are written again.
pub(super) fn changes(backend: &mut Backend) -> PgResult<Redo> {
    let mut redo = Redo::default();
    let mut found = Changes::default();
    let tables = locked(&mut backend.connection)?;
    for table in tables.iter().filter(|table| table.kind == "S") {
        let note =
            "the sequence was moved, for everyone: neither a rollback nor an undo takes that back";
        found.notes.push((table.shown(), note.to_owned()));
    }
    let Some(xid) = xid(backend)? else {
        redo.changes = found;
        return Ok(redo);
    };
    // The server counts to 2³² in its rows.
    let number: u64 = xid
        .parse()
        .map_err(|_| PgError::link("the server gave no number for its transaction"))?;
    let own = format!(
        "pg_catalog.age(xmin) <= pg_catalog.age('{}'::pg_catalog.xid)",
        number & 0xffff_ffff
    );
    let objects = objects(backend, &own, &tables, &mut found)?;
    // A definition cannot be made again from what is known of it.
    if !found.changes.is_empty() {
        redo.give_up();
    }
    for table in tables.iter().filter(|table| table.has_rows()) {
        let is_new = objects.contains(&table.oid);
        // The rows of a materialized view are made by its query alone.
        if table.closed || table.kind == "m" {
            redo.give_up();
        }
        match table.closed && !is_new {
            true => unread(table, &mut found),
            false => rows(backend, table, &own, is_new, (&mut found, &mut redo))?,
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

/// Names a table whose old rows no other connection can see: it counts as changed, so that nothing of it is dropped (rule Q3).
fn unread(table: &Table, found: &mut Changes) {
    let path = table_item(&table.shown());
    if found.changes.iter().any(|change| change.path == path) {
        return;
    }
    let (kind, name) = (table.word(), table.shown());
    let before = format!("{kind} {name}");
    let after = format!("{kind} {name}: its rows could not be read: it is locked");
    let change = text_change(path, kind, Some(&before), Some(&after));
    found.changes.push(change);
}

/// What the transaction has a writing lock on.
fn locked(connection: &mut Connection) -> PgResult<Vec<Table>> {
    let sql = "SELECT c.oid::text, n.nspname, c.relname, c.relkind, bool_or(l.mode = 'AccessExclusiveLock')::text \
               FROM pg_catalog.pg_locks l \
               JOIN pg_catalog.pg_class c ON c.oid = l.relation \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted \
               AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') \
               AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' \
               GROUP BY 1, 2, 3, 4 ORDER BY 2, 3";
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
            rank: 0,
        }
    };
    let mut tables: Vec<Table> = rows.into_iter().map(table).collect();
    rank(connection, &mut tables)?;
    Ok(tables)
}

/// Puts each table after those it refers to; in a circle some order has to do.
fn rank(connection: &mut Connection, tables: &mut [Table]) -> PgResult<()> {
    let sql = "SELECT conrelid::text, confrelid::text FROM pg_catalog.pg_constraint \
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

/// The catalogs of what has a definition: the word for it, and how its number, schema, name and table are found. Rows of the
/// first column are compared by the last, which changes with the definition.
const OBJECTS: &str = "\
    SELECT 'relation', c.oid::text, n.nspname, c.relname, c.relkind::text, ({own_c})::text, c.relfilenode::text \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' \
    UNION ALL SELECT 'function', p.oid::text, n.nspname, p.proname || '(' || pg_catalog.pg_get_function_identity_arguments(p.oid) || ')', \
    '', ({own_p})::text, '' FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
    WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' \
    UNION ALL SELECT 'type', t.oid::text, n.nspname, t.typname, '', ({own_t})::text, '' \
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace \
    WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND t.typtype IN ('d', 'e', 'r') \
    UNION ALL SELECT 'schema', n.oid::text, '', n.nspname, '', ({own_n})::text, '' \
    FROM pg_catalog.pg_namespace n WHERE n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' \
    UNION ALL SELECT 'extension', e.oid::text, '', e.extname, '', ({own_e})::text, '' FROM pg_catalog.pg_extension e \
    UNION ALL SELECT 'trigger', g.oid::text, n.nspname, c.relname || '/' || g.tgname, '', ({own_g})::text, '' \
    FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE NOT g.tgisinternal \
    UNION ALL SELECT 'policy', y.oid::text, n.nspname, c.relname || '/' || y.polname, '', ({own_y})::text, '' \
    FROM pg_catalog.pg_policy y JOIN pg_catalog.pg_class c ON c.oid = y.polrelid \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";

/// What has a definition: name, kind of relation, whether the transaction wrote it, and where its rows are.
struct Object {
    schema: String,
    name: String,
    kind: &'static str,
    own: bool,
    file: String,
}

type Objects = BTreeMap<(String, String), Object>;

fn all_objects(connection: &mut Connection, own: &str) -> PgResult<Objects> {
    let mut sql = OBJECTS.to_owned();
    for alias in ["c", "p", "t", "n", "e", "g", "y"] {
        let condition = own.replace("(xmin)", &format!("({alias}.xmin)"));
        sql = sql.replace(&format!("{{own_{alias}}}"), &condition);
    }
    let rows = connection.query(&sql)?;
    let one = |row: Vec<Option<String>>| {
        let row: [String; 7] = texts(row).try_into().unwrap_or_default();
        let [what, oid, schema, name, kind, own, file] = row;
        let kind = match (what.as_str(), kind.as_str()) {
            ("relation", "r" | "p") => "table",
            ("relation", "v") => "view",
            ("relation", "m") => "materialized view",
            ("relation", "S") => "sequence",
            ("relation", "i" | "I") => "index",
            ("relation", "f") => "foreign table",
            ("relation", _) => "composite type",
            ("function", _) => "function",
            ("schema", _) => "schema",
            ("extension", _) => "extension",
            ("trigger", _) => "trigger",
            ("policy", _) => "policy",
            _ => "type",
        };
        let own = own == "true";
        (
            (what, oid),
            Object {
                schema,
                name,
                kind,
                own,
                file,
            },
        )
    };
    Ok(rows.into_iter().map(one).collect())
}

/// Names every definition that differs; returns the numbers of relations that are new.
fn objects(
    backend: &mut Backend,
    own: &str,
    tables: &[Table],
    found: &mut Changes,
) -> PgResult<Vec<String>> {
    let now = all_objects(&mut backend.connection, own)?;
    // There nothing of the transaction is seen, so nothing is its own.
    let before = all_objects(&mut backend.base, "pg_catalog.age(xmin) < -2147483648")?;
    let digests = definitions(backend, tables)?;
    let mut new = Vec::new();
    for (key, object) in &now {
        let old = before.get(key);
        let altered = digests.get(&key.1).filter(|_| key.0 == "relation");
        let what = match old {
            None => {
                if key.0 == "relation" {
                    new.push(key.1.clone());
                }
                Some("created")
            }
            Some(old) if old.name != object.name || old.schema != object.schema => Some("renamed"),
            Some(old)
                if old.file != object.file
                    && matches!(object.kind, "table" | "materialized view") =>
            {
                Some("emptied or written anew; its rows are not compared")
            }
            Some(_) if altered == Some(&true) => Some("altered"),
            // Other catalogs are written only where something was said about the thing.
            Some(_) if object.own && key.0 != "relation" => Some("replaced"),
            Some(_) if object.own && matches!(object.kind, "view") => Some("replaced"),
            Some(_) => None,
        };
        if let Some(what) = what {
            let before = old.map(|old| format!("{} {}", old.kind, shown(&old.schema, &old.name)));
            found
                .changes
                .push(definition(object, before.as_deref(), Some(what)));
        }
    }
    for (_, object) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
        let before = format!("{} {}", object.kind, shown(&object.schema, &object.name));
        found.changes.push(definition(object, Some(&before), None));
    }
    Ok(new)
}

fn definition(object: &Object, before: Option<&str>, what: Option<&str>) -> crate::model::Change {
    let name = shown(&object.schema, &object.name);
    let after = what.map(|what| format!("{} {name}: {what}", object.kind));
    let path = match object.kind {
        "table" | "view" | "materialized view" | "foreign table" => table_item(&name),
        kind => {
            let word = kind.replace(' ', "_");
            let name = [word.as_bytes(), b":", table_item(&name).as_bytes()].concat();
            ResourcePath::root().join(&name)
        }
    };
    text_change(path, object.kind, before, after.as_deref())
}

/// Of the tables that are locked as by a change of their definition, whether it differs.
fn definitions(backend: &mut Backend, tables: &[Table]) -> PgResult<BTreeMap<String, bool>> {
    let oids: Vec<&str> = tables.iter().map(|table| table.oid.as_str()).collect();
    if oids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let list = oids.join(",");
    let part = |what: &str, from: &str, of: &str, order: &str| {
        format!(
            "coalesce((SELECT pg_catalog.string_agg({what}, ',' ORDER BY {order}) FROM pg_catalog.{from} x WHERE x.{of} = c.oid), '')"
        )
    };
    let parts = [
        part(
            "pg_catalog.concat_ws(' ', x.attname, x.atttypid, x.atttypmod, x.attnotnull, x.atthasdef, x.attisdropped, x.attidentity, x.attgenerated, x.attcollation, x.attacl)",
            "pg_attribute",
            "attrelid",
            "x.attnum",
        ),
        part("x.adnum || ' ' || x.adbin::text", "pg_attrdef", "adrelid", "x.adnum"),
        part(
            "pg_catalog.concat_ws(' ', x.conname, x.contype, x.condeferrable, x.condeferred, x.convalidated, x.conkey, x.confrelid, x.confkey, x.conbin)",
            "pg_constraint",
            "conrelid",
            "x.oid",
        ),
        part("x.rulename || x.ev_action::text", "pg_rewrite", "ev_class", "x.oid"),
        "pg_catalog.concat_ws(' ', c.relowner, c.relacl, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relpersistence, c.reltablespace)".to_owned(),
    ]
    .join(" || ';' || ");
    let sql = format!(
        "SELECT c.oid::text, pg_catalog.md5({parts}) FROM pg_catalog.pg_class c WHERE c.oid IN ({list})"
    );
    let pairs = |rows: Vec<Vec<Option<String>>>| -> BTreeMap<String, String> {
        let pair = |row| {
            let mut row = texts(row).into_iter();
            Some((row.next()?, row.next()?))
        };
        rows.into_iter().filter_map(pair).collect()
    };
    let now = pairs(backend.connection.query(&sql)?);
    let before = pairs(backend.base.query(&sql)?);
    let differs = now.into_iter().map(|(oid, digest)| {
        let old = before.get(&oid);
        let differs = old.is_some_and(|old| *old != digest);
        (oid, differs)
    });
    Ok(differs.collect())
}

/// The columns of a table.
struct Columns {
    names: Vec<String>,
    /// How each value is read: `i` a whole number, `b` yes or no, else a text.
    reads: Vec<u8>,
    /// Which of them tell rows apart.
    key: Vec<usize>,
    /// Which of them the server computes.
    generated: Vec<bool>,
}

fn columns(connection: &mut Connection, table: &Table) -> PgResult<Columns> {
    let sql = format!(
        "SELECT a.attname, CASE WHEN a.atttypid IN (20, 21, 23) THEN 'i' WHEN a.atttypid = 16 THEN 'b' ELSE 't' END, \
         coalesce(pg_catalog.array_position(k.indkey::int2[], a.attnum), -1), (a.attgenerated <> '')::text \
         FROM pg_catalog.pg_attribute a LEFT JOIN LATERAL (SELECT i.indkey FROM pg_catalog.pg_index i \
         WHERE i.indrelid = a.attrelid AND i.indisprimary) k ON true \
         WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        table.oid
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

fn value(read: u8, text: Option<&[u8]>) -> Value {
    let Some(text) = text else {
        return Value::Null;
    };
    let number = || std::str::from_utf8(text).ok()?.parse().ok();
    match read {
        b'i' => number().map_or_else(|| Value::Text(text.to_vec()), Value::Integer),
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

/// Compares the rows of a table.
fn rows(
    backend: &mut Backend,
    table: &Table,
    own: &str,
    is_new: bool,
    (found, redo): (&mut Changes, &mut Redo),
) -> PgResult<()> {
    let columns = columns(&mut backend.connection, table)?;
    let list: Vec<String> = columns
        .names
        .iter()
        .map(|name| format!(", {}::pg_catalog.text", identifier(name)))
        .collect();
    let select = format!(
        "SELECT ctid::pg_catalog.text{} FROM ONLY {}",
        list.concat(),
        table.quoted()
    );
    let new = versions(
        &mut backend.connection,
        &format!("{select} WHERE {own}"),
        &columns,
    )?;
    let mut old = Vec::new();
    if !is_new {
        let candidates = format!("{select} WHERE xmax <> '0'::pg_catalog.xid");
        old = versions(&mut backend.base, &candidates, &columns)?;
        drop_present(&mut backend.connection, table, &mut old)?;
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

/// Drops the versions that the transaction still sees.
fn drop_present(connection: &mut Connection, table: &Table, old: &mut Versions) -> PgResult<()> {
    let mut present = std::collections::HashSet::new();
    for batch in old.chunks(BATCH) {
        let places: Vec<String> = batch
            .iter()
            .map(|(place, _)| format!("\"{place}\""))
            .collect();
        let list = literal(&format!("{{{}}}", places.join(",")));
        let sql = format!(
            "SELECT ctid::pg_catalog.text FROM ONLY {} WHERE ctid = ANY ({list}::pg_catalog.tid[])",
            table.quoted()
        );
        let rows = connection.query(&sql)?;
        present.extend(rows.into_iter().flat_map(|row| row.into_iter().flatten()));
    }
    old.retain(|(place, _)| !present.contains(place));
    Ok(())
}

/// Rows by what tells them apart: their key, or without one all of them and how often they are there.
fn keyed(versions: Versions, columns: &Columns) -> BTreeMap<RowKey, Vec<Value>> {
    let mut found = BTreeMap::new();
    let mut copies: BTreeMap<String, u32> = BTreeMap::new();
    for (_, row) in versions {
        let key = match columns.key.is_empty() {
            false => RowKey::Values(
                columns
                    .key
                    .iter()
                    .map(|column| row[*column].clone())
                    .collect(),
            ),
            true => {
                let digest = blake3::hash(format!("{row:?}").as_bytes()).to_hex()[..16].to_owned();
                let number = copies.entry(digest.clone()).or_default();
                *number += 1;
                RowKey::Copy(digest, *number)
            }
        };
        found.insert(key, row);
    }
    found
}
