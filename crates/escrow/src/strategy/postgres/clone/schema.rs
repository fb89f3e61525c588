//! The definitions of a database, as `pg_dump` writes them: one entry for each thing that has a name, with the SQL that makes it. Where two
//! databases differ, the SQL of the second one is what changes the first; whether it did is seen by a dump of the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::super::super::sql::{identifier, part_item, table_item, text_change};
use super::super::connect::{Connection, PgError, PgResult, literal, unexpected};
use super::super::holder::changes::shown;
use super::super::lexer::{Reading, Word, first_statement};
use super::super::sql::first_end;
use super::super::wire;
use super::rows::missing;
use super::unplanned::Relation;
use crate::model::{Change, ResourcePath};

/// What has a definition: its kind, its schema and its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Named {
    kind: String,
    schema: String,
    name: String,
    /// The table that it belongs to, if it does.
    #[serde(default)]
    table: Option<Relation>,
}

impl Named {
    /// Its item in a diff: what belongs to a table lies under it, so that a policy on the table holds for it too.
    pub(super) fn item(&self) -> ResourcePath {
        match (self.kind.as_str(), &self.table) {
            ("TABLE" | "VIEW" | "MATERIALIZED VIEW", _) => table_item(&self.shown()),
            (_, Some(table)) => self.item_under(table),
            _ => self.item_of_kind(),
        }
    }

    /// A dump names it by its table and itself: `t trigger`, `TABLE t`, `COLUMN t.c`, `TRIGGER x ON t`.
    fn item_under(&self, (schema, table): &Relation) -> ResourcePath {
        let kind = match self.kind.as_str() {
            "FK CONSTRAINT" | "CHECK CONSTRAINT" => "constraint".to_owned(),
            kind => kind.to_lowercase().replace(' ', "_"),
        };
        let (name, shown) = (self.name.as_str(), shown(schema, table));
        // A colon tells it from a row: the key of one that has a colon is quoted.
        let whole = name == table || name == format!("TABLE {table}");
        let own = whole.then_some("TABLE");
        let own = own.or_else(|| name.strip_prefix(&format!("{table} ")));
        let own = own.or_else(|| name.strip_prefix(&format!("COLUMN {table}.")));
        let own = own.or_else(|| name.strip_suffix(&format!(" ON {table}")));
        part_item(&shown, &kind, own.unwrap_or(name))
    }

    fn item_of_kind(&self) -> ResourcePath {
        let word = self.kind.to_lowercase().replace(' ', "_");
        let item = table_item(&self.shown());
        ResourcePath::root().join(&[word.as_bytes(), b":", item.as_bytes()].concat())
    }

    fn shown(&self) -> String {
        shown(
            if self.schema == "-" { "" } else { &self.schema },
            &self.name,
        )
    }

    /// For people.
    fn described(&self) -> String {
        format!("{} {}", self.kind.to_lowercase(), self.shown())
    }

    /// Whether it is made once the rows are there, and so is a comment on such a thing.
    fn is_late(&self) -> bool {
        let of_late = ["INDEX ", "CONSTRAINT ", "TRIGGER ", "POLICY "];
        let comments = self.kind == "COMMENT" && of_late.iter().any(|of| self.name.starts_with(of));
        is_late(&self.kind) || comments
    }

    /// What has to stay as it is, or to grow, for a view or a function to be replaced by another one.
    fn form(&self, connection: &mut Connection, sql: &str) -> PgResult<Vec<Option<String>>> {
        let asked = match self.kind.as_str() {
            "VIEW" => format!(
                "SELECT attname || ' ' || pg_catalog.format_type(atttypid, atttypmod) || ' ' || attcollation FROM pg_catalog.pg_attribute \
                 WHERE attrelid = {}::pg_catalog.regclass AND attnum > 0 ORDER BY attnum",
                literal(&self.quoted())
            ),
            kind @ ("FUNCTION" | "PROCEDURE") => {
                let gone = remove(self, sql).unwrap_or_default();
                let name = gone.strip_prefix(&format!("DROP {kind} "));
                format!(
                    "WITH p AS (SELECT * FROM pg_catalog.pg_proc WHERE oid = {}::pg_catalog.regprocedure) \
                     SELECT pg_catalog.concat_ws(' of ', pg_catalog.pg_get_function_result(oid), prokind, proargnames, proargmodes) FROM p \
                     UNION ALL SELECT 'default' FROM p, pg_catalog.generate_series(1, pronargdefaults)",
                    literal(name.unwrap_or_default())
                )
            }
            _ => return Ok(Vec::new()),
        };
        let rows = connection.query(&asked)?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Whether it is of a view or a function, or of one of the same name: what says its rights, a comment, a trigger.
    fn belongs_to(&self, other: &Self) -> bool {
        let name = other.name.split('(').next().unwrap_or_default();
        let function = format!("{} {name}(", other.kind);
        let of_function = self.name.starts_with(&function) && self.schema == other.schema;
        let table = self.table.as_ref();
        let of_table = |(schema, table): &Relation| (schema, table) == (&other.schema, &other.name);
        matches!(self.kind.as_str(), "ACL" | "COMMENT") && of_function
            || table.is_some_and(of_table)
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
            if let Some(mut named) = head {
                named.table = owner(&named.kind, body);
                last = Some(named);
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

    /// What the differences are called, for people. `given` is what the rows of a table get in new columns, which no definition says.
    pub(super) fn changes(&self, other: &Self, given: &[(Relation, String)]) -> Vec<Change> {
        let one = |named: &Named| {
            let what = named.kind.to_lowercase();
            let of = |((schema, name), _): &&(Relation, String)| {
                named.kind == "TABLE" && (schema, name) == (&named.schema, &named.name)
            };
            let given = given.iter().filter(of);
            let given = given.map(|(_, value)| format!("\n-- rows that were there: {value}"));
            let after = other
                .sql(named)
                .map(|sql| [sql.to_owned()].into_iter().chain(given));
            let after: Option<String> = after.map(Iterator::collect);
            text_change(named.item(), &what, self.sql(named), after.as_deref())
        };
        let mut found: BTreeMap<ResourcePath, Change> = BTreeMap::new();
        for named in self.differing(other) {
            let mut change = one(named);
            // A view in the place of a table has its name.
            if found.contains_key(&change.path) {
                change.path = named.item_of_kind();
            }
            found.insert(change.path.clone(), change);
        }
        found.into_values().collect()
    }

    /// What tells two databases with the same definitions.
    pub(super) fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (named, (_, sql)) in &self.0 {
            for text in [&named.kind, &named.schema, &named.name, sql] {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// What a comment in a dump says of the statement after it.
fn header(line: &str) -> Option<Named> {
    let rest = line.strip_prefix("Name: ")?;
    let (rest, _owner) = rest.rsplit_once("; Owner: ")?;
    let (rest, schema) = rest.rsplit_once("; Schema: ")?;
    let (name, kind) = rest.rsplit_once("; Type: ")?;
    let [kind, schema, name] = [kind, schema, name].map(str::to_owned);
    Some(Named {
        kind,
        schema,
        name,
        table: None,
    })
}

/// The table that a definition belongs to.
fn owner(kind: &str, sql: &str) -> Option<Relation> {
    let belongs = match kind {
        "DEFAULT" | "ACL" | "COMMENT" => true,
        // That of a column (`GENERATED … AS IDENTITY`).
        "SEQUENCE" => sql.starts_with("ALTER TABLE"),
        kind => is_late(kind),
    };
    tables_of(sql).into_iter().next().filter(|_| belongs)
}

/// The SQL that makes one database what the other is: before its rows are changed, and afterwards.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ddl {
    pub(super) early: Vec<String>,
    pub(super) late: Vec<String>,
    /// The tables that are altered, or dropped, as SQL takes their names.
    pub(super) tables: Vec<String>,
    /// What the original had of everything that differs.
    expected: Vec<(Named, Option<String>)>,
    /// The digest of all that the original had, where something goes: what belongs to it goes too, whoever made it.
    all: Option<String>,
}

impl Ddl {
    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// The relations that it alters or that its statements name, and so lock.
    pub(super) fn relations(&self) -> BTreeSet<Relation> {
        let mut found = BTreeSet::new();
        for (named, old) in &self.expected {
            found.insert((named.schema.clone(), named.name.clone()));
            found.extend(old.iter().flat_map(|sql| tables_of(sql)));
        }
        let made = self.early.iter().chain(&self.late);
        found.extend(made.flat_map(|sql| tables_of(sql)));
        found
    }

    /// Remembers how the original has it.
    pub(super) fn expect(&mut self, original: &Schema) {
        for (named, sql) in &mut self.expected {
            *sql = original.sql(named).map(str::to_owned);
        }
        self.all = self.all.take().map(|_| original.digest());
    }

    /// The items that were changed in the original since, of what concerns this.
    pub(super) fn moved(&self, known: Option<&Schema>, now: &Schema) -> Vec<ResourcePath> {
        let own = self.expected.iter();
        let own = own.filter(|(named, sql)| now.sql(named) != sql.as_deref());
        let mut items: BTreeSet<ResourcePath> = own.map(|(named, _)| named.item()).collect();
        if self.all.as_ref().is_some_and(|all| *all != now.digest()) {
            match known {
                Some(known) => items.extend(known.differing(now).iter().map(|one| one.item())),
                None => drop(items.insert(ResourcePath::root())),
            }
        }
        items.into_iter().collect()
    }
}

/// Finds that SQL; or says what cannot be expressed, and why. The two databases say more of a table, a view or a function than their dumps.
/// Whether it is right is seen by what it makes of an empty database.
pub(super) fn ddl(
    (from, to): (&Schema, &Schema),
    (old_side, new_side): (&mut Connection, &mut Connection),
) -> PgResult<Result<Ddl, (ResourcePath, String)>> {
    let mut found = Ddl::default();
    let mut drops: Vec<(usize, String)> = Vec::new();
    let mut makes: Vec<(usize, bool, String)> = Vec::new();
    let mut anew: Vec<&Named> = Vec::new();
    for named in from.differing(to) {
        let cannot = |why: String| Ok(Err((named.item(), why)));
        found.expected.push((named.clone(), None));
        let (old, new) = (from.0.get(named), to.0.get(named));
        if named.kind == "TABLE" && old.is_some() {
            found.tables.push(named.quoted());
        }
        let late = named.is_late();
        match (old, new) {
            (Some(_), Some((place, _))) if named.kind == "TABLE" => {
                let Some((early, late)) = alters((old_side, new_side), named)? else {
                    return cannot("more than new columns was altered".to_owned());
                };
                makes.extend(early.into_iter().map(|sql| (*place, false, sql)));
                makes.extend(late.into_iter().map(|sql| (*place, true, sql)));
            }
            (Some((was, old)), Some((place, sql))) => match change(named, old, sql) {
                Some((mut first, mut then)) => {
                    let (was_form, form) = (named.form(old_side, old)?, named.form(new_side, sql)?);
                    // What cannot become the new one goes, and that is made in its place.
                    if !form.starts_with(&was_form) {
                        found.all = Some(String::new());
                        (first, then) = (remove(named, old).unwrap_or_default(), sql.clone());
                        anew.push(named);
                    }
                    drops.push((*was, first));
                    makes.push((*place, late, then));
                }
                None => return cannot(format!("{} was altered", named.described())),
            },
            (Some((place, sql)), None) => match remove(named, sql) {
                Some(sql) => {
                    found.all = Some(String::new());
                    drops.push((*place, sql));
                }
                None => return cannot(format!("{} was dropped", named.described())),
            },
            (None, Some((place, sql))) if is_made(&named.kind) => {
                makes.push((*place, late, sql.clone()));
            }
            (None, _) => return cannot(format!("{} is new", named.described())),
        }
    }
    // What belongs to something that is made anew went with it, though it is as it was.
    for (named, (place, sql)) in &to.0 {
        let belongs = |one: &&Named| named.belongs_to(one) && from.sql(named) == Some(sql);
        if anew.iter().any(belongs) {
            makes.push((*place, named.is_late(), sql.clone()));
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

/// Carries out SQL of definitions, one statement after the other: the server takes no text with two, however it reads a name in it. None
/// of them may end the transaction.
pub(super) fn define(connection: &mut Connection, sql: &str) -> PgResult<()> {
    let (begun, mut rest) = (connection.status, sql);
    while !rest.trim().is_empty() {
        let (one, after) = rest
            .split_at_checked(first_end(rest.as_bytes()))
            .ok_or_else(unexpected)?;
        rest = after;
        let mut message = Vec::new();
        wire::put_statement(&mut message, one);
        wire::put(&mut message, b'S', &[]);
        connection.link.write_all(&message)?;
        while connection.next_row()?.is_some() {}
        if connection.status != begun {
            return Err(PgError::link("a definition ended the transaction"));
        }
    }
    Ok(())
}

/// Whether it can be made as a dump has it. A new materialized view would be empty, and filling it runs what its query says.
fn is_made(kind: &str) -> bool {
    let plain = matches!(
        kind,
        "SCHEMA"
            | "TABLE"
            | "VIEW"
            | "SEQUENCE"
            | "SEQUENCE OWNED BY"
            | "DEFAULT"
            | "FUNCTION"
            | "PROCEDURE"
            | "TYPE"
            | "DOMAIN"
            | "COMMENT"
            | "ACL"
    );
    plain || is_late(kind)
}

/// Whether it is made once the rows are there: it concerns them as they are then.
fn is_late(kind: &str) -> bool {
    matches!(
        kind,
        "CONSTRAINT"
            | "FK CONSTRAINT"
            | "CHECK CONSTRAINT"
            | "INDEX"
            | "TRIGGER"
            | "POLICY"
            | "ROW SECURITY"
    )
}

/// What makes something another one: first this, and in its place then that. What holds a value of its own, or has others that depend on
/// its form, is not made anew.
fn change(named: &Named, old: &str, new: &str) -> Option<(String, String)> {
    match named.kind.as_str() {
        kind @ ("VIEW" | "FUNCTION" | "PROCEDURE") => {
            let rest = new.strip_prefix(&format!("CREATE {kind}"))?;
            Some((String::new(), format!("CREATE OR REPLACE {kind}{rest}")))
        }
        "DEFAULT" | "COMMENT" | "ACL" => Some((String::new(), new.to_owned())),
        "INDEX" | "CONSTRAINT" | "FK CONSTRAINT" | "CHECK CONSTRAINT" | "TRIGGER" | "POLICY" => {
            Some((remove(named, old)?, new.to_owned()))
        }
        _ => None,
    }
}

/// How a table gets its new columns: before its rows are changed, and afterwards.
pub(super) type Alters = (Vec<String>, Vec<String>);

/// How a table gets its new columns, where they were added at its end, and other checks; nothing else is derived, and then there is no answer. Rows that are
/// there get what those of the second database had then; only new ones follow the default.
pub(super) fn alters(
    (old, new): (&mut Connection, &mut Connection),
    named: &Named,
) -> PgResult<Option<Alters>> {
    let quoted = named.quoted();
    let sql = format!(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation <> t.typcollation \
         THEN ' COLLATE ' || (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.collname) \
         FROM pg_catalog.pg_collation c JOIN pg_catalog.pg_namespace n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation) \
         ELSE '' END, \
         pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attnotnull::text, (a.attgenerated <> '' OR a.attidentity <> '')::text, \
         (t.typnotnull OR t.typdefault IS NOT NULL)::text \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE a.attrelid = {}::pg_catalog.regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        literal(&quoted)
    );
    let (before, after) = (old.query(&sql)?, new.query(&sql)?);
    let oid = format!("SELECT {}::pg_catalog.regclass::oid", literal(&quoted));
    let oid = new.value(&oid)?.unwrap_or_default();
    let values = missing(new, &oid)?;
    // Both are copies, with the same files.
    let file = format!(
        "SELECT pg_catalog.pg_relation_filenode({}::pg_catalog.regclass)",
        literal(&quoted)
    );
    let anew = old.value(&file)? != new.value(&file)?;
    let Some(added) = after.strip_prefix(&before[..]) else {
        return Ok(None);
    };
    let (mut early, mut late) = (Vec::new(), Vec::new());
    let checks = format!(
        "SELECT conname, pg_catalog.pg_get_constraintdef(oid) FROM pg_catalog.pg_constraint \
         WHERE conrelid = {}::pg_catalog.regclass AND contype = 'c' AND convalidated ORDER BY conname",
        literal(&quoted)
    );
    let (checked, checks) = (old.query(&checks)?, new.query(&checks)?);
    let own = |one: &[Option<String>]| match one {
        [Some(name), Some(sql)] => Some((identifier(name), sql.clone())),
        _ => None,
    };
    let gone = checked.iter().filter(|one| !checks.contains(one));
    for (name, _) in gone.filter_map(|one| own(one)) {
        early.push(format!("ALTER TABLE {quoted} DROP CONSTRAINT {name}"));
    }
    let made = checks.iter().filter(|one| !checked.contains(one));
    for (name, sql) in made.filter_map(|one| own(one)) {
        late.push(format!("ALTER TABLE {quoted} ADD CONSTRAINT {name} {sql}"));
    }
    for (column, value) in added.iter().zip(&values[before.len()..]) {
        let [
            Some(name),
            Some(kind),
            default,
            required,
            special,
            of_domain,
        ] = &column[..]
        else {
            return Ok(None);
        };
        // Where the table was written anew, as for a default that is computed for each row, nothing says what the rows of others get.
        let has_default = default.is_some() || of_domain.as_deref() == Some("true");
        let computed = anew && has_default && value.starts_with("NULL::");
        if special.as_deref() == Some("true") || computed {
            return Ok(None);
        }
        let name = identifier(name);
        let (add, of) = (
            format!("ALTER TABLE {quoted} ADD COLUMN {name} {kind} DEFAULT {value}"),
            format!("ALTER TABLE {quoted} ALTER COLUMN {name}"),
        );
        early.push(add);
        late.push(match default {
            Some(default) => format!("{of} SET DEFAULT {default}"),
            None => format!("{of} DROP DEFAULT"),
        });
        if required.as_deref() == Some("true") {
            late.push(format!("{of} SET NOT NULL"));
        }
    }
    Ok(Some((early, late)))
}

/// What removes something, and nothing that depends on it.
fn remove(named: &Named, sql: &str) -> Option<String> {
    let until = |mark: &str| sql.split_once(mark).map(|(before, _)| before);
    Some(match named.kind.as_str() {
        "SEQUENCE" if sql.starts_with("ALTER TABLE") => {
            format!("{} DROP IDENTITY", until(" ADD GENERATED")?)
        }
        kind @ ("TABLE" | "VIEW" | "MATERIALIZED VIEW" | "SEQUENCE" | "INDEX" | "TYPE"
        | "DOMAIN" | "SCHEMA") => format!("DROP {kind} {}", named.quoted()),
        kind @ ("FUNCTION" | "PROCEDURE") => {
            // The dump names it without quotes: where its name ends, the statement says.
            let (_, words, _) = first_statement(sql.as_bytes(), Reading::USUAL);
            let [_, _, _, Word::Sign(b'.'), name, ..] = &words[..] else {
                return None;
            };
            let arguments = named.name.strip_prefix(name.name()?)?;
            let (schema, name) = (identifier(&named.schema), identifier(name.name()?));
            format!("DROP {kind} {schema}.{name}{arguments}")
        }
        "CONSTRAINT" | "FK CONSTRAINT" | "CHECK CONSTRAINT" => {
            let (table, rest) = sql.split_once("ADD CONSTRAINT ")?;
            format!("{} DROP CONSTRAINT {}", table.trim_end(), first_name(rest))
        }
        "DEFAULT" => format!("{} DROP DEFAULT", until(" SET DEFAULT ")?),
        kind @ ("TRIGGER" | "POLICY") => {
            let (schema, table) = named.table.as_ref()?;
            let name = named.name.strip_prefix(table)?.strip_prefix(' ')?;
            let table = format!("{}.{}", identifier(schema), identifier(table));
            format!("DROP {kind} {} ON {table}", identifier(name))
        }
        "COMMENT" => format!("{} IS NULL", until(" IS '")?),
        // They go with what they belong to.
        "ACL" | "SEQUENCE OWNED BY" => String::new(),
        _ => return None,
    })
}

/// The tables that a definition belongs to or refers to, in the order in which it names them: none where it is a function or a view, since
/// what those name they do not lock.
fn tables_of(sql: &str) -> Vec<Relation> {
    let mut found = Vec::new();
    let mut rest = sql.as_bytes();
    while !rest.is_empty() {
        let (length, words, _) = first_statement(rest, Reading::USUAL);
        rest = &rest[length.max(1)..];
        let is = |at: usize, known: &[&str]| {
            let word = words.get(at);
            word.is_some_and(|word| known.iter().any(|one| word.is(one)))
        };
        let made = ["index", "unique", "trigger", "constraint", "policy"];
        if !(is(0, &["alter", "comment", "drop", "grant", "revoke"]) || is(1, &made)) {
            continue;
        }
        for (at, four) in words.windows(4).enumerate() {
            let before = [
                "on",
                "only",
                "table",
                "references",
                "column",
                "sequence",
                "view",
            ];
            if let ([_, schema, Word::Sign(b'.'), name], true) = (four, is(at, &before)) {
                let pair = schema.name().zip(name.name());
                found.extend(pair.map(|(schema, name)| (schema.to_owned(), name.to_owned())));
            }
        }
    }
    found
}

/// The name with which a text begins, as SQL has it.
fn first_name(text: &str) -> &str {
    let end = match text.strip_prefix('"') {
        Some(rest) => {
            let closing = rest.replace("\"\"", "__").find('"');
            closing.map_or(text.len(), |at| at + 2)
        }
        None => text.find([' ', ';']).unwrap_or(text.len()),
    };
    &text[..end]
}
