//! Tables and rows as JSON lines, and single statements: all of it as a client of the holder, so that it means the same as
//! what any other client does.

use std::io::{Cursor, Read};

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::super::error::{Result, StrategyError};
use super::super::sql::{GivenRow, RowKey, Value, given_rows, identifier, row_item, table_item};
use super::super::{QueryResult, unsupported};
use super::connect::{Connection, PgError, PgResult, literal};
use super::control::CLIENTS_DIR;
use super::holder::changes::shown;
use super::lexer::Reading;
use super::location::{Server, SslMode};
use super::sql::{Statement, statements};
use super::{HeldMetadata, failed};
use crate::model::{Change, ChangeKind, ResourcePath};

/// How long, in seconds, the holder may take to give a client its turn.
const PATIENCE: u64 = 90;

/// How much is sent at once.
const BATCH: usize = 256 * 1024;

/// With what a statement begins that only looks.
const LOOKS: [&str; 6] = ["select", "with", "values", "table", "show", "explain"];

/// A client of a sandbox.
pub(super) fn client(of: &HeldMetadata) -> Result<Connection> {
    let directory = of.area.as_path().join(CLIENTS_DIR);
    let server = Server {
        host: directory.to_string_lossy().into_owned(),
        port: 5432,
        sslmode: SslMode::Disable,
        options: None,
        connect_timeout: PATIENCE,
        service: None,
        ..of.server.clone()
    };
    Connection::open(&server, None, "").map_err(|error| match error.code.as_deref() {
        None => StrategyError::HolderGone {
            why: "the process that kept it ended".to_owned(),
        },
        Some("57P01") => StrategyError::HolderGone { why: error.message },
        Some("55P03") => StrategyError::ClientBusy,
        Some(_) => failed("be reached", &error),
    })
}

/// Runs one statement, in a sandbox of this strategy.
pub(super) fn query(
    of: &HeldMetadata,
    strategy: &str,
    statement: &str,
    read_only: bool,
) -> Result<QueryResult> {
    let refuse = |what: &str, why: &str| Err(unsupported(strategy, what, why));
    let parts = statements(statement.as_bytes(), Reading::USUAL);
    let [(text, kind)] = &parts[..] else {
        return refuse(
            "run it",
            "one statement at a time; `escrow path` gives a URL for any client",
        );
    };
    if matches!(
        kind,
        Statement::Begin(_) | Statement::Commit { .. } | Statement::Rollback { .. }
    ) {
        return refuse(
            "begin or end a transaction",
            "it would end with the command; each statement is one of its own",
        );
    }
    let text = String::from_utf8_lossy(text);
    let first = text.split_whitespace().next().unwrap_or_default();
    if read_only && !LOOKS.contains(&first.to_ascii_lowercase().as_str()) {
        return refuse("run it", "only what reads is permitted");
    }
    let mut client = client(of)?;
    let mut run = || {
        if read_only {
            client.query("BEGIN READ ONLY")?;
        }
        client.run(&text)
    };
    let found = run().map_err(|error| failed("run the statement", &error))?;
    let rows = found.rows.into_iter().map(|row| {
        let values = row.into_iter().zip(&found.columns);
        let values = values.map(|(text, (_, kind))| json_value(*kind, text.as_deref()));
        values.collect()
    });
    Ok(QueryResult {
        rows: rows.collect(),
        columns: found.columns.into_iter().map(|(name, _)| name).collect(),
        changed: changed(&found.tag),
    })
}

/// How many rows a statement changed, as its tag says.
fn changed(tag: &str) -> u64 {
    let mut words = tag.split(' ');
    match words.next() {
        Some("INSERT" | "UPDATE" | "DELETE" | "MERGE") => {
            let last = words.next_back();
            last.and_then(|count| count.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    }
}

/// A value by the number of its type, as JSON; what JSON would round is a text.
fn json_value(kind: u32, text: Option<&[u8]>) -> Json {
    let Some(text) = text else {
        return Json::Null;
    };
    let text = String::from_utf8_lossy(text).into_owned();
    let exact = |json: &Json| {
        let written = json.to_string();
        written == text
    };
    match kind {
        16 => Json::Bool(text == "t"),
        114 | 3802 => match serde_json::from_str::<Json>(&text) {
            Ok(json) if bare(&json.to_string()) == bare(&text) => json,
            _ => Json::String(text),
        },
        // Whole numbers, floating-point numbers, numeric.
        20 | 21 | 23 | 26 | 700 | 701 | 1700 => serde_json::from_str::<Json>(&text)
            .ok()
            .filter(exact)
            .unwrap_or(Json::String(text)),
        17 => match text.strip_prefix("\\x") {
            Some(hex) => serde_json::json!({ "$blob": hex }),
            None => Json::String(text),
        },
        _ => Json::String(text),
    }
}

/// The numbers and words of a JSON document without its texts, and a colon for each name, in some order: where the document changed when it
/// was read, since a number was rounded or a name is there twice, they differ.
fn bare(document: &str) -> Vec<String> {
    let (mut found, mut quoted, mut escaped) = (String::new(), false, false);
    for one in document.chars() {
        match one {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            ':' => found.push_str(" : "),
            '[' | ']' | '{' | '}' | ',' => found.push(' '),
            one => found.push(one),
        }
    }
    let mut words: Vec<String> = found.split_whitespace().map(str::to_owned).collect();
    words.sort_unstable();
    words
}

/// What is done with the rows of a table that others take the place of.
#[derive(Clone, Copy)]
enum Step {
    Change,
    Remove,
    Add,
}

/// Each is tried until the constraints of the table take one: a value that has to be unique may pass from one row to another, and a row may
/// refer to one that comes.
const ORDERS: [[Step; 3]; 3] = [
    [Step::Change, Step::Remove, Step::Add],
    [Step::Add, Step::Change, Step::Remove],
    [Step::Remove, Step::Change, Step::Add],
];

/// Whether rows may be taken in another order.
fn may_pass(error: &StrategyError) -> bool {
    match error {
        StrategyError::Server { code, .. } => {
            code.as_ref().is_some_and(|code| code.starts_with("23"))
        }
        error => matches!(error, StrategyError::Unreadable { .. }),
    }
}

/// A table that a path names or lies in.
struct Found {
    shown: String,
    /// Its name, as SQL takes it.
    quoted: String,
    /// The columns that can be written, with their types.
    columns: Vec<(String, String)>,
    generated: Vec<String>,
    /// The columns of its key, and whether they are whole numbers.
    key: Vec<(String, bool)>,
    /// Whether rows can be changed by their keys: not where a key is computed, or the server takes no new value of another column
    /// (`GENERATED ALWAYS AS IDENTITY`).
    by_key: bool,
}

fn not_there(path: &ResourcePath) -> StrategyError {
    StrategyError::NotThere { path: path.clone() }
}

fn find(client: &mut Connection, path: &ResourcePath) -> Result<Found> {
    let fail = |error: PgError| failed("find the table", &error);
    let sql = "SELECT c.oid::pg_catalog.text, n.nspname, c.relname FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') \
               AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'";
    for row in client.query(sql).map_err(fail)? {
        let [oid, schema, name] = row.map_texts();
        let shown = shown(&schema, &name);
        if !path.lies_in(&table_item(&shown)) {
            continue;
        }
        let mut found = Found {
            quoted: format!("{}.{}", identifier(&schema), identifier(&name)),
            shown,
            columns: Vec::new(),
            generated: Vec::new(),
            key: Vec::new(),
            by_key: true,
        };
        columns(client, &oid, &mut found).map_err(fail)?;
        return Ok(found);
    }
    Err(not_there(path))
}

fn columns(client: &mut Connection, oid: &str, found: &mut Found) -> PgResult<()> {
    let sql = format!(
        "SELECT a.attname, (a.atttypid IN (20, 21, 23))::pg_catalog.text, (a.attgenerated <> '')::pg_catalog.text, \
         (coalesce(pg_catalog.array_position((pg_catalog.string_to_array(k.indkey::pg_catalog.text, ' ')::pg_catalog.int2[])[1:k.indnkeyatts], \
         a.attnum), 0) - 1)::pg_catalog.text, (a.attidentity = 'a')::pg_catalog.text, pg_catalog.format_type(a.atttypid, a.atttypmod) \
         FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_index k ON k.indrelid = a.attrelid AND k.indisprimary \
         WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 4, a.attnum"
    );
    for row in client.query(&sql)? {
        let [name, whole, generated, place, identity, kind] = row.map_texts();
        let fixed = match place.as_str() {
            "-1" => identity,
            _ => {
                found.key.push((name.clone(), whole == "true"));
                generated.clone()
            }
        };
        found.by_key &= fixed != "true";
        match generated == "true" {
            true => found.generated.push(name),
            false => found.columns.push((name, kind)),
        }
    }
    found.by_key &= !found.key.is_empty();
    Ok(())
}

pub(super) trait Texts {
    /// The values of a row, of which there are so many.
    fn map_texts<const N: usize>(self) -> [String; N];
}

impl Texts for Vec<Option<String>> {
    fn map_texts<const N: usize>(self) -> [String; N] {
        let mut values = self.into_iter().map(Option::unwrap_or_default);
        std::array::from_fn(|_| values.next().unwrap_or_default())
    }
}

impl Found {
    /// Which row a path names, as a condition; nothing where it names the table.
    fn row(&self, client: &mut Connection, path: &ResourcePath) -> Result<Option<String>> {
        if *path == table_item(&self.shown) {
            return Ok(None);
        }
        if self.key.is_empty() {
            return Err(not_there(path));
        }
        if let Some(typed) = self.typed(path) {
            return Ok(Some(typed));
        }
        let names = self.key.iter().map(|(name, _)| identifier(name));
        let names: Vec<String> = names
            .map(|name| format!("{name}::pg_catalog.text"))
            .collect();
        let sql = format!("SELECT {} FROM {}", names.join(", "), self.quoted);
        let rows = client.query(&sql);
        for row in rows.map_err(|error| failed("find the row", &error))? {
            let words: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
            if self.item(&words) == *path {
                return Ok(Some(self.condition(&words)));
            }
        }
        Err(not_there(path))
    }

    /// A name for a row that no column has.
    fn alias(&self) -> String {
        let all = || {
            self.columns
                .iter()
                .map(|(name, _)| name)
                .chain(&self.generated)
        };
        let mut alias = "r".to_owned();
        while all().any(|column| *column == alias) {
            alias.push('r');
        }
        alias
    }

    /// A key of plain words, as it is written in an item.
    fn typed(&self, path: &ResourcePath) -> Option<String> {
        let (_, name) = path.split()?;
        let words: Vec<String> = std::str::from_utf8(name)
            .ok()?
            .split(',')
            .map(str::to_owned)
            .collect();
        (words.len() == self.key.len() && self.item(&words) == *path)
            .then(|| self.condition(&words))
    }

    fn item(&self, words: &[String]) -> ResourcePath {
        let value = |(word, (_, whole)): (&String, &(String, bool))| match word.parse() {
            Ok(number) if *whole => Value::Integer(number),
            _ => Value::Text(word.as_bytes().to_vec()),
        };
        let values = words.iter().zip(&self.key).map(value).collect();
        row_item(&self.shown, &RowKey::Values(values))
    }

    fn condition(&self, words: &[String]) -> String {
        let is = |(word, (name, _)): (&String, &(String, bool))| {
            format!("{} = {}", identifier(name), literal(word))
        };
        let parts: Vec<String> = words.iter().zip(&self.key).map(is).collect();
        parts.join(" AND ")
    }

    /// The columns that a row names, and the row (`n`) as the server reads it. The others are not read: a domain may not let them be empty.
    fn given(&self, given: &GivenRow, path: &ResourcePath) -> Result<(Vec<String>, String)> {
        let texts = given.texts();
        let mut row = given.columns.clone();
        let refuse = |why: String| StrategyError::Unreadable {
            path: path.clone(),
            why,
        };
        row.retain(|name, _| !self.generated.contains(name));
        let (mut parts, mut typed) = (Vec::new(), Vec::new());
        for (name, value) in &row {
            let Some((_, kind)) = self.columns.iter().find(|(one, _)| one == name) else {
                return Err(refuse(format!(
                    "the table has no column '{name}' that can be written"
                )));
            };
            let text = texts.get(name).copied();
            let value = match kind.as_str() {
                // It is what it is.
                "json" | "jsonb" => text.map_or("null", RawValue::get).to_owned(),
                _ => text_of(value, text),
            };
            parts.push(format!("{}: {value}", Json::String(name.clone())));
            typed.push(format!("{} {kind}", identifier(name)));
        }
        if row.is_empty() {
            return Err(refuse("a row without columns".to_owned()));
        }
        let names = row.keys().map(|name| identifier(name)).collect();
        let text = literal(&format!("{{{}}}", parts.join(", ")));
        let typed = typed.join(", ");
        let read = format!("pg_catalog.json_to_record({text}) AS n({typed})");
        Ok((names, read))
    }

    /// The key of a row, as the server reads it; none where a part of it is not given.
    fn given_key(&self, given: &GivenRow) -> Option<String> {
        let texts = given.texts();
        let part = |(name, _): &(String, bool)| {
            let value = given.columns.get(name).filter(|value| !value.is_null())?;
            let value = text_of(value, texts.get(name).copied());
            Some(format!("{}: {value}", Json::String(name.clone())))
        };
        let parts: Option<Vec<String>> = self.key.iter().map(part).collect();
        Some(format!("{{{}}}", parts?.join(", ")))
    }

    /// What tells two rows of these names to have the same key.
    fn same_key(&self, one: &str, other: &str) -> String {
        let names = self.key.iter().map(|(name, _)| identifier(name));
        let parts: Vec<String> = names
            .map(|name| format!("{one}.{name} = {other}.{name}"))
            .collect();
        parts.join(" AND ")
    }

    /// Changes the row with the key of this one, unless it is the same. Columns that are not given get their defaults.
    fn change(&self, row: &GivenRow, path: &ResourcePath) -> Result<String> {
        let (names, read) = self.given(row, path)?;
        let own = |name: &String| self.key.iter().any(|(key, _)| identifier(key) == *name);
        let others = self.columns.iter().map(|(name, _)| identifier(name));
        let (given, left): (Vec<String>, Vec<String>) = others
            .filter(|name| !own(name))
            .partition(|name| names.contains(name));
        let set = given.iter().map(|name| format!("{name} = n.{name}"));
        let set = set.chain(left.iter().map(|name| format!("{name} = DEFAULT")));
        let set: Vec<String> = set.collect();
        if set.is_empty() {
            return Ok(String::new());
        }
        let of = |row: &str| {
            let all: Vec<String> = given.iter().map(|name| format!("{row}.{name}")).collect();
            format!("ROW({})", all.join(", "))
        };
        let differs = match left.is_empty() {
            true => format!("pg_catalog.record_image_ne({}, {})", of("o"), of("n")),
            false => "true".to_owned(),
        };
        Ok(format!(
            "UPDATE {table} o SET {} FROM {read} WHERE {} AND {differs};",
            set.join(", "),
            self.same_key("o", "n"),
            table = self.quoted
        ))
    }

    /// Adds a row, where a condition on it (`n`) holds.
    fn insert(&self, row: &GivenRow, path: &ResourcePath, condition: &str) -> Result<String> {
        let (names, read) = self.given(row, path)?;
        let names = names.join(", ");
        Ok(format!(
            "INSERT INTO {} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {read} WHERE {condition};",
            self.quoted
        ))
    }

    /// Puts rows in the place of all that the table has, each in the place of the one with its key: what refers to one that stays does not
    /// go with it (`ON DELETE CASCADE`). Without keys the table is emptied first.
    fn replace(
        &self,
        client: &mut Connection,
        rows: &[GivenRow],
        path: &ResourcePath,
    ) -> Result<()> {
        let table = &self.quoted;
        let keys: Option<Vec<String>> = rows.iter().map(|row| self.given_key(row)).collect();
        let Some(keys) = keys.filter(|_| self.by_key) else {
            let all = rows.iter().map(|row| self.insert(row, path, "true"));
            let empty = format!("DELETE FROM {table};");
            return send(client, std::iter::once(Ok(empty)).chain(all));
        };
        let list = literal(&format!("[{}]", keys.join(", ")));
        let key = |name: &String| self.key.iter().any(|(key, _)| key == name);
        let typed = self.columns.iter().filter(|(name, _)| key(name));
        let typed = typed.map(|(name, kind)| format!("{} {kind}", identifier(name)));
        let typed: Vec<String> = typed.collect();
        let typed = typed.join(", ");
        let given = format!("pg_catalog.json_to_recordset({list}) AS n({typed})");
        let different = format!("SELECT DISTINCT * FROM {given}");
        if client.query(&different).map_err(unwritten)?.len() != rows.len() {
            return Err(StrategyError::Unreadable {
                path: path.clone(),
                why: "two rows have the same key".to_owned(),
            });
        }
        let same = self.same_key("o", "n");
        let left =
            format!("DELETE FROM {table} o WHERE NOT EXISTS (SELECT FROM {given} WHERE {same});");
        let absent = format!("NOT EXISTS (SELECT FROM {table} o WHERE {same})");
        let stay = format!(
            "SELECT count(*) FROM {table} o WHERE EXISTS (SELECT FROM {given} WHERE {same})"
        );
        let stay = |client: &mut Connection| client.value(&stay).map_err(unwritten);
        let write = |client: &mut Connection, step: &Step| match step {
            Step::Change => send(client, rows.iter().map(|row| self.change(row, path))),
            Step::Add => {
                let added = rows.iter().map(|row| self.insert(row, path, &absent));
                send(client, added)
            }
            Step::Remove => {
                let before = stay(client)?;
                send(client, std::iter::once(Ok(left.clone())))?;
                match stay(client)? == before {
                    true => Ok(()),
                    false => Err(StrategyError::Unreadable {
                        path: path.clone(),
                        why: "rows that stay refer to rows that go".to_owned(),
                    }),
                }
            }
        };
        let run = |client: &mut Connection, sql: &str| client.query(sql).map_err(unwritten);
        run(client, "SAVEPOINT rows")?;
        // A row that follows others of its table was changed with them: it gets once more what was given.
        let oid = format!("{}::pg_catalog.regclass", literal(table));
        let follows = format!(
            "SELECT 1 FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conrelid = {oid} AND confrelid = {oid} \
             AND (confdeltype NOT IN ('a', 'r') OR confupdtype NOT IN ('a', 'r'))"
        );
        let follows = !run(client, &follows)?.is_empty();
        let last = follows.then_some(&Step::Change);
        let mut refused = Ok(());
        for order in &ORDERS {
            let mut steps = order.iter().chain(last);
            match steps.try_for_each(|step| write(client, step)) {
                Ok(()) => return Ok(()),
                Err(error) if !may_pass(&error) => return Err(error),
                Err(error) => refused = refused.and(Err(error)),
            }
            run(client, "ROLLBACK TO SAVEPOINT rows")?;
        }
        refused
    }

    fn update(&self, row: &GivenRow, which: &str, path: &ResourcePath) -> Result<String> {
        let (names, read) = self.given(row, path)?;
        let left = names.join(", ");
        let right: Vec<String> = names.iter().map(|name| format!("n.{name}")).collect();
        let right = right.join(", ");
        let table = &self.quoted;
        Ok(format!(
            "UPDATE {table} SET ({left}) = (SELECT {right} FROM {read}) WHERE {which};"
        ))
    }
}

/// A value as it was given: a number such as 1.50 is not what it becomes when it is read.
fn text_of(value: &Json, text: Option<&RawValue>) -> String {
    match value.get("$blob").and_then(Json::as_str) {
        Some(hex) => Json::String(format!("\\x{hex}")).to_string(),
        None => text.map_or("null", RawValue::get).to_owned(),
    }
}

/// Reads a table, or a row.
pub(super) fn read(of: &HeldMetadata, path: &ResourcePath) -> Result<Box<dyn Read + Send>> {
    let mut client = client(of)?;
    let found = find(&mut client, path)?;
    let which = found.row(&mut client, path)?;
    let alias = found.alias();
    let mut sql = format!(
        "SELECT pg_catalog.row_to_json({alias})::pg_catalog.text FROM {} {alias}",
        found.quoted
    );
    if let Some(which) = &which {
        sql.push_str(&format!(" WHERE {which}"));
    } else if !found.key.is_empty() {
        let key: Vec<String> = found.key.iter().map(|(name, _)| identifier(name)).collect();
        sql.push_str(&format!(" ORDER BY {}", key.join(", ")));
    }
    let mut lines = Vec::new();
    let read = client.each_row(&sql, |row| {
        lines.extend_from_slice(row.first().copied().flatten().unwrap_or_default());
        lines.push(b'\n');
        Ok(())
    });
    match read {
        // The path names no value of the key's type.
        Err(error) if error.is("22P02") || error.is("22003") => return Err(not_there(path)),
        read => read.map_err(|error| failed("read the table", &error))?,
    }
    match which.is_some() && lines.is_empty() {
        true => Err(not_there(path)),
        false => Ok(Box::new(Cursor::new(lines))),
    }
}

fn unwritten(error: PgError) -> StrategyError {
    failed("write the rows", &error)
}

/// Carries out statements, as many at once as fit.
fn send(client: &mut Connection, all: impl Iterator<Item = Result<String>>) -> Result<()> {
    let mut sql = String::new();
    for one in all {
        sql.push_str(&one?);
        if sql.len() > BATCH {
            client.query(&sql).map_err(unwritten)?;
            sql.clear();
        }
    }
    client.query(&sql).map(drop).map_err(unwritten)
}

/// Puts rows in the place of a table, or of a row. All of it is one transaction, as its application would make it.
pub(super) fn write(
    of: &HeldMetadata,
    path: &ResourcePath,
    bytes: &mut dyn Read,
) -> Result<Change> {
    let rows = given_rows(path, bytes)?;
    let count = rows.len();
    let mut client = client(of)?;
    let run = |client: &mut Connection, sql: &str| client.query(sql).map_err(unwritten);
    run(&mut client, "BEGIN")?;
    let found = find(&mut client, path)?;
    let there = |client: &mut Connection, which: &str| {
        let sql = format!("SELECT 1 FROM {} WHERE {which}", found.quoted);
        run(client, &sql).map(|rows| !rows.is_empty())
    };
    let kind = match found.row(&mut client, path)? {
        None => {
            found.replace(&mut client, &rows, path)?;
            ChangeKind::Modified
        }
        Some(which) => {
            let refuse = |why: String| StrategyError::Unreadable {
                path: path.clone(),
                why,
            };
            let Ok([row]) = <[_; 1]>::try_from(rows) else {
                return Err(refuse(format!("it is one row, and {count} were given")));
            };
            let (sql, kind) = match there(&mut client, &which)? {
                true => (found.update(&row, &which, path)?, ChangeKind::Updated),
                false => (found.insert(&row, path, "true")?, ChangeKind::Inserted),
            };
            run(&mut client, &sql)?;
            if !there(&mut client, &which)? {
                return Err(refuse("the row has another key than the path".to_owned()));
            }
            kind
        }
    };
    // Without this word the holder takes everything back when the client goes.
    run(&mut client, "COMMIT")?;
    let detail = serde_json::json!({ "rows": count });
    Ok(Change::opaque(path.clone(), kind, detail))
}
