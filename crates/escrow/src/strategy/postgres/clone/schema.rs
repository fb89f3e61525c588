//! The definitions of a database, as `pg_dump` writes them: one entry for each thing that has a name, with the SQL that makes it. Where two
//! databases differ, the SQL of the second one is what changes the first; whether it did is seen by a dump of the result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::super::sql::{identifier, table_item, text_change};
use super::super::connect::{Connection, PgResult, literal};
use super::super::sql::first_end;
use crate::model::{Change, ResourcePath};

/// What has a definition: its kind, its schema and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Named {
    kind: String,
    schema: String,
    name: String,
}

impl Named {
    /// Its item in a diff.
    pub(super) fn item(&self) -> ResourcePath {
        let shown = match self.schema.as_str() {
            "public" | "-" => self.name.clone(),
            schema => format!("{schema}.{}", self.name),
        };
        match self.kind.as_str() {
            "TABLE" | "VIEW" | "MATERIALIZED VIEW" => table_item(&shown),
            kind => {
                let word = kind.to_lowercase().replace(' ', "_");
                let name = [word.as_bytes(), b":", table_item(&shown).as_bytes()].concat();
                ResourcePath::root().join(&name)
            }
        }
    }

    fn quoted(&self) -> String {
        match self.schema.as_str() {
            "-" => identifier(&self.name),
            schema => format!("{}.{}", identifier(schema), identifier(&self.name)),
        }
    }
}

/// The definitions of a database, with the place of each in the dump.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Schema(BTreeMap<Named, (usize, String)>);

impl Schema {
    /// Reads a dump. Entries are found at the beginning of statements alone: what is in the body of a function is none.
    pub(super) fn read(dump: &str) -> Self {
        let mut found = Self::default();
        let (mut rest, mut last): (&[u8], Option<Named>) = (dump.as_bytes(), None);
        while !rest.is_empty() {
            let (one, after) = rest.split_at(first_end(rest));
            rest = after;
            let text = String::from_utf8_lossy(one);
            let begins = text
                .find(|c: char| !c.is_whitespace() && c != '-')
                .unwrap_or(0);
            let (mut head, mut body) = (None, &text[..]);
            // The comments before a statement say what it is of.
            while let Some(line) = body.trim_start().strip_prefix("--") {
                let (line, after) = line.split_once('\n').unwrap_or((line, ""));
                head = head.or_else(|| header(line.trim()));
                body = after;
            }
            let body = body.trim();
            if begins == text.len() || !body.ends_with(';') {
                continue;
            }
            if head.is_some() {
                last = head;
            }
            let setting =
                body.starts_with("SET ") || body.starts_with("SELECT pg_catalog.set_config");
            let Some(named) = last.clone().filter(|_| !setting) else {
                continue;
            };
            let place = found.0.len();
            let (_, sql) = found.0.entry(named).or_insert((place, String::new()));
            if !sql.is_empty() {
                sql.push('\n');
            }
            sql.push_str(body);
        }
        found
    }

    pub(super) fn sql(&self, named: &Named) -> Option<&str> {
        self.0.get(named).map(|(_, sql)| sql.as_str())
    }

    /// What differs.
    pub(super) fn differing<'s>(&'s self, other: &'s Self) -> Vec<&'s Named> {
        let all = self
            .0
            .keys()
            .chain(other.0.keys().filter(|one| !self.0.contains_key(*one)));
        all.filter(|one| self.sql(one) != other.sql(one)).collect()
    }

    /// What the differences are called, for people.
    pub(super) fn changes(&self, other: &Self) -> Vec<Change> {
        let one = |named: &Named| {
            let what = named.kind.to_lowercase();
            text_change(named.item(), &what, self.sql(named), other.sql(named))
        };
        let mut by_path: BTreeMap<ResourcePath, Change> = BTreeMap::new();
        for named in self.differing(other) {
            by_path.entry(named.item()).or_insert_with(|| one(named));
        }
        by_path.into_values().collect()
    }

    /// Whether the default of a column is an entry of its own: it takes from a sequence.
    fn has_default(&self, table: &Named, column: &str) -> bool {
        let name = format!("{} {}", table.name, column.trim_matches('"'));
        let (kind, schema) = ("DEFAULT".to_owned(), table.schema.clone());
        self.0.contains_key(&Named { kind, schema, name })
    }
}

/// What a comment in a dump says of the statement after it.
fn header(line: &str) -> Option<Named> {
    let rest = line.strip_prefix("Name: ")?;
    let (rest, _owner) = rest.rsplit_once("; Owner: ")?;
    let (rest, schema) = rest.rsplit_once("; Schema: ")?;
    let (name, kind) = rest.rsplit_once("; Type: ")?;
    let [kind, schema, name] = [kind, schema, name].map(str::to_owned);
    Some(Named { kind, schema, name })
}

/// The SQL that makes one database what the other is: before its rows are changed, and afterwards.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ddl {
    pub(super) early: Vec<String>,
    pub(super) late: Vec<String>,
    /// The tables that are altered, or dropped, as SQL takes their names.
    pub(super) tables: Vec<String>,
    /// What the first one has of everything that differs: nothing else may be changed.
    pub(super) expected: Vec<(Named, Option<String>)>,
}

impl Ddl {
    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// What was changed in another database since, of what is changed here.
    pub(super) fn moved<'d>(&'d self, now: &'d Schema) -> impl Iterator<Item = &'d Named> {
        let all = self.expected.iter();
        let moved = all.filter(|(named, sql)| now.sql(named) != sql.as_deref());
        moved.map(|(named, _)| named)
    }
}

/// What is made once the rows are there: it concerns them as they are then.
const LATE: [&str; 12] = [
    "CONSTRAINT",
    "FK CONSTRAINT",
    "CHECK CONSTRAINT",
    "INDEX",
    "INDEX ATTACH",
    "TRIGGER",
    "EVENT TRIGGER",
    "RULE",
    "POLICY",
    "ROW SECURITY",
    "STATISTICS",
    "MATERIALIZED VIEW",
];

/// Finds that SQL; says what cannot be expressed. `alters` says how a table gets its new columns. Whether it is right is seen
/// by what it makes of an empty database.
pub(super) fn ddl(
    (from, to): (&Schema, &Schema),
    mut alters: impl FnMut(&Named) -> PgResult<Result<Alters, String>>,
) -> PgResult<Result<Ddl, String>> {
    let mut found = Ddl::default();
    let mut drops: Vec<(usize, String)> = Vec::new();
    let mut makes: Vec<(usize, bool, String)> = Vec::new();
    for named in from.differing(to) {
        let (old, new) = (from.0.get(named), to.0.get(named));
        let known = old.map(|(_, sql)| sql.clone());
        found.expected.push((named.clone(), known));
        if named.kind == "TABLE" && old.is_some() {
            found.tables.push(named.quoted());
        }
        if let (Some(_), Some((place, _)), "TABLE") = (old, new, named.kind.as_str()) {
            let altered = match alters(named)? {
                Ok(altered) => altered,
                Err(why) => return Ok(Err(why)),
            };
            makes.extend(altered.early.into_iter().map(|sql| (*place, false, sql)));
            makes.extend(altered.late.into_iter().map(|sql| (*place, true, sql)));
            continue;
        }
        let replaced = new.is_some_and(|(_, sql)| sql.starts_with("CREATE OR REPLACE"));
        if let Some((place, sql)) = old.filter(|_| !replaced) {
            match remove(named, sql) {
                Ok(sql) => drops.push((*place, sql)),
                Err(why) => return Ok(Err(why)),
            }
        }
        if let Some((place, sql)) = new {
            makes.push((*place, LATE.contains(&named.kind.as_str()), sql.clone()));
        }
    }
    drops.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    makes.sort_by_key(|(place, ..)| *place);
    found.early.extend(drops.into_iter().map(|(_, sql)| sql));
    for (_, late, sql) in makes {
        match late {
            true => found.late.push(sql),
            false => found.early.push(sql),
        }
    }
    found.early.retain(|sql| !sql.is_empty());
    Ok(Ok(found))
}

/// How a table gets its new columns: before its rows are changed, and afterwards.
pub(super) struct Alters {
    early: Vec<String>,
    late: Vec<String>,
}

/// A column, as SQL has it.
#[derive(PartialEq)]
struct Column {
    name: String,
    kind: String,
    default: Option<String>,
    required: bool,
    /// The server computes it, or counts it.
    special: bool,
}

fn columns(connection: &mut Connection, table: &str) -> PgResult<Vec<Column>> {
    let sql = format!(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation <> t.typcollation \
         THEN ' COLLATE ' || (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.collname) \
         FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation) \
         ELSE '' END, \
         pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attnotnull::text, (a.attgenerated <> '' OR a.attidentity <> '')::text \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE a.attrelid = {}::pg_catalog.regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        literal(table)
    );
    let column = |row: Vec<Option<String>>| {
        let mut row = row.into_iter();
        let mut next = || row.next().flatten();
        Column {
            name: identifier(&next().unwrap_or_default()),
            kind: next().unwrap_or_default(),
            default: next(),
            required: next().as_deref() == Some("true"),
            special: next().as_deref() == Some("true"),
        }
    };
    Ok(connection.query(&sql)?.into_iter().map(column).collect())
}

/// How a table gets its new columns, where they are added, dropped, or get another default; nothing else is derived.
pub(super) fn alters(
    (old, new): (&mut Connection, &mut Connection),
    named: &Named,
    to: &Schema,
) -> PgResult<Result<Alters, String>> {
    let quoted = named.quoted();
    let (before, after) = (columns(old, &quoted)?, columns(new, &quoted)?);
    let table = format!("ALTER TABLE {quoted}");
    let refuse = |column: &str, what: &str| {
        let shown = named.item();
        Ok(Err(format!("column {column} of {shown} {what}")))
    };
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let gone = |one: &&Column| !after.iter().any(|other| other.name == one.name);
    for column in before.iter().filter(gone) {
        early.push(format!("{table} DROP COLUMN {}", column.name));
    }
    for column in &after {
        let (name, known) = (
            &column.name,
            before.iter().find(|one| one.name == column.name),
        );
        let of = format!("{table} ALTER COLUMN {name}");
        match known {
            Some(known) if known == column => {}
            _ if column.special || known.is_some_and(|known| known.special) => {
                return refuse(name, "is computed by the server, and was changed");
            }
            None if to.has_default(named, name) => {
                return refuse(name, "has a default that takes from a sequence");
            }
            None => {
                let default = column
                    .default
                    .as_ref()
                    .map(|text| format!(" DEFAULT {text}"));
                let kind = &column.kind;
                early.push(format!(
                    "{table} ADD COLUMN {name} {kind}{}",
                    default.unwrap_or_default()
                ));
                if column.required {
                    late.push(format!("{of} SET NOT NULL"));
                }
            }
            Some(known) if known.kind != column.kind => {
                let (was, is) = (&known.kind, &column.kind);
                return refuse(name, &format!("has another type: {was} became {is}"));
            }
            Some(known) => {
                match &column.default {
                    default if *default == known.default => {}
                    Some(default) => early.push(format!("{of} SET DEFAULT {default}")),
                    None => early.push(format!("{of} DROP DEFAULT")),
                }
                match (known.required, column.required) {
                    (true, false) => early.push(format!("{of} DROP NOT NULL")),
                    (false, true) => late.push(format!("{of} SET NOT NULL")),
                    _ => {}
                }
            }
        }
    }
    Ok(Ok(Alters { early, late }))
}

/// What removes something.
fn remove(named: &Named, sql: &str) -> Result<String, String> {
    let cannot = || {
        let kind = named.kind.to_lowercase();
        format!("a change of {kind} {} cannot be released", named.name)
    };
    let until = |mark: &str| sql.split_once(mark).map(|(before, _)| before.to_owned());
    Ok(match named.kind.as_str() {
        "SEQUENCE" if sql.starts_with("ALTER TABLE") => {
            format!(
                "{} DROP IDENTITY",
                until(" ADD GENERATED").ok_or_else(cannot)?
            )
        }
        kind @ ("TABLE" | "VIEW" | "MATERIALIZED VIEW" | "SEQUENCE" | "INDEX" | "TYPE"
        | "DOMAIN" | "SCHEMA" | "EXTENSION" | "COLLATION" | "STATISTICS") => {
            format!("DROP {kind} {}", named.quoted())
        }
        kind @ ("FUNCTION" | "PROCEDURE" | "AGGREGATE") => {
            let (name, arguments) = named.name.split_once('(').ok_or_else(cannot)?;
            let (schema, name) = (identifier(&named.schema), identifier(name));
            format!("DROP {kind} {schema}.{name}({arguments}")
        }
        "CONSTRAINT" | "FK CONSTRAINT" | "CHECK CONSTRAINT" => {
            let (table, rest) = sql.split_once("ADD CONSTRAINT ").ok_or_else(cannot)?;
            let (name, _) = first_name(rest);
            format!("{} DROP CONSTRAINT {name}", table.trim_end())
        }
        "DEFAULT" => format!(
            "{} DROP DEFAULT",
            until(" SET DEFAULT ").ok_or_else(cannot)?
        ),
        kind @ ("TRIGGER" | "RULE" | "POLICY") => {
            let mut words = named.name.split(' ');
            let (Some(table), Some(name), None) = (words.next(), words.next(), words.next()) else {
                return Err(cannot());
            };
            let table = format!("{}.{}", identifier(&named.schema), identifier(table));
            format!("DROP {kind} {} ON {table}", identifier(name))
        }
        "COMMENT" => format!("{} IS NULL", until(" IS '").ok_or_else(cannot)?),
        // They go with what they belong to.
        "ACL" | "SEQUENCE OWNED BY" | "INDEX ATTACH" | "TABLE ATTACH" => String::new(),
        _ => return Err(cannot()),
    })
}

/// The name with which a text begins, as SQL has it, and what comes after it.
fn first_name(text: &str) -> (&str, &str) {
    let end = match text.strip_prefix('"') {
        Some(rest) => {
            let closing = rest.replace("\"\"", "__").find('"');
            closing.map_or(text.len(), |at| at + 2)
        }
        None => text.find([' ', ';']).unwrap_or(text.len()),
    };
    text.split_at(end)
}
