//! Full-text tables that take their text from another table or a view, and are rebuilt where that was written.
//!
//! A rebuild puts all of the text into the index. Where the index does not hold exactly that, such as where triggers keep it for some
//! rows only, it would find other rows afterwards, which no diff shows: then nothing is written.

use std::collections::HashSet;

use rusqlite::ErrorCode;

use super::connect::Database;
use super::merge::Merged;
use super::plan::MergePlan;
use super::schema::{Object, Schema, literal, quoted};
use crate::model::Conflict;
use crate::strategy::PreviewNote;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::table_item;

/// A full-text table whose rows lie elsewhere.
#[derive(Debug)]
pub(super) struct FullText {
    pub(super) name: String,
    /// Where they lie, as its SQL says it, squeezed.
    source: String,
    is_fts5: bool,
}

/// What SQLite answers where a source has no longer the columns that are needed; which are missing it says only the first time.
const UNREADABLE: ErrorCode = ErrorCode::Unknown;

/// What a full-text table is good for.
#[derive(PartialEq, Eq)]
pub(super) enum Index {
    /// It holds exactly what its source holds.
    Whole,
    /// It holds something else.
    Other,
    /// Its source has no longer what it needs: it cannot be searched.
    Unusable,
}

/// A name without white space, in small letters.
pub(super) fn squeezed(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// The module of a virtual table, in small letters: the name behind `USING`, which may be quoted and have comments before it.
fn module(sql: &str) -> String {
    let mut rest = sql;
    // Its own name may have the word in it; the last place at which a module may be named is where it is.
    let mut found = String::new();
    while let Some(at) = rest.to_ascii_lowercase().find("using") {
        rest = &rest[at + 5..];
        let name = without_comments(rest).trim_start_matches(['"', '\'', '[', '`']);
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
        let name = name[..end.unwrap_or(name.len())].to_ascii_lowercase();
        if name.starts_with("fts") {
            found = name;
        }
    }
    found
}

/// What comes behind white space and comments.
fn without_comments(text: &str) -> &str {
    let text = text.trim_start();
    let after = match (text.strip_prefix("/*"), text.strip_prefix("--")) {
        (Some(comment), _) => comment.split_once("*/"),
        (_, Some(comment)) => comment.split_once('\n'),
        _ => return text,
    };
    after.map_or("", |(_, after)| without_comments(after))
}

/// Whether the table in which a full-text table keeps its text has such columns.
fn keeps(of: &Database, name: &str, columns: &str) -> Result<bool> {
    let content = literal(&format!("{name}_content"));
    // Beside a table of another module, one with that name is the user's.
    let sql = format!(
        "SELECT count(*) FROM pragma_table_xinfo({content}) AS one, pragma_table_list({content}) AS list \
         WHERE one.name GLOB '{columns}' AND list.schema = 'main' AND list.type = 'shadow'"
    );
    let asked = of.sql.query_row(&sql, [], |row| row.get::<_, i64>(0));
    Ok(asked.map_err(of.failed("read the schema"))? > 0)
}

/// Whether the last hidden column of a full-text table of FTS4 holds a value of each row (`languageid`). Without that option it is there
/// as well, and holds none.
pub(super) fn has_languages(of: &Database, name: &str) -> Result<bool> {
    keeps(of, name, "langid")
}

/// Whether the values of a full-text table of FTS5 have locales beside them (`locale`).
pub(super) fn has_locales(of: &Database, name: &str) -> Result<bool> {
    keeps(of, name, "l[0-9]*")
}

impl FullText {
    /// A full-text table that takes its text from elsewhere. One that keeps none at all cannot be compared.
    pub(super) fn read(of: &Database, object: &Object) -> Result<Option<Self>> {
        let plain = squeezed(&object.sql);
        let Some((_, source)) = plain.split_once("content=") else {
            return Ok(None);
        };
        let module = module(&object.sql);
        if !module.starts_with("fts") {
            return Ok(None);
        }
        let up_to = |end: char| {
            // A quote that is doubled is a part of the name.
            let doubled = source[1..].replace(&format!("{end}{end}"), "\0");
            let name = doubled.split(end).next().unwrap_or_default();
            name.replace('\0', &end.to_string())
        };
        let source = match source.chars().next() {
            Some(quote @ ('\'' | '"' | '`')) => up_to(quote),
            Some('[') => up_to(']'),
            _ => source.split([',', ')']).next().unwrap_or_default().into(),
        };
        if source.is_empty() {
            return Err(StrategyError::Unsupported {
                strategy: "snapshot".to_owned(),
                what: format!("work with the table '{}'", object.name),
                why: format!(
                    "in '{}' it keeps an index of text, but not the text",
                    of.at()
                ),
            });
        }
        Ok(Some(Self {
            name: object.name.clone(),
            source,
            is_fts5: module == "fts5",
        }))
    }

    /// Whether this is where its text lies.
    pub(super) fn is_of(&self, object: &Object) -> bool {
        object.owns() && squeezed(&object.name) == self.source
    }

    /// Asks for something that is done with the index.
    fn ask(&self, of: &Database, command: &str) -> rusqlite::Result<usize> {
        let name = quoted(&self.name);
        // With a rank FTS5 looks at the source too.
        let sql = match self.is_fts5 {
            true => format!("INSERT INTO {name}({name}, rank) VALUES ('{command}', 1)"),
            false => format!("INSERT INTO {name}({name}) VALUES ('{command}')"),
        };
        of.sql.execute(&sql, [])
    }

    /// Compares the index with its source. Nothing is written, but SQLite takes the lock of a writer.
    pub(super) fn index(&self, of: &Database) -> Result<Index> {
        match self.ask(of, "integrity-check") {
            Ok(_) => Ok(Index::Whole),
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt) => Ok(Index::Other),
                Some(UNREADABLE) => Ok(Index::Unusable),
                _ => Err(of.failed("check a full-text index")(error)),
            },
        }
    }

    /// Makes the index of all of the text; where that cannot be read it stays as it is.
    pub(super) fn rebuild(&self, of: &Database) -> Result<()> {
        let mut unreadable = false;
        // One that fails has emptied the index before.
        let rebuilt = of.transaction(true, || {
            let done = self.ask(of, "rebuild");
            let code = done
                .as_ref()
                .err()
                .and_then(|error| error.sqlite_error_code());
            unreadable = code == Some(UNREADABLE);
            let done = done.map_err(of.failed("rebuild a full-text index"));
            done.map(drop)
        });
        match unreadable {
            true => Ok(()),
            false => rebuilt,
        }
    }

    /// Why nothing is written where its index is another one.
    pub(super) fn refusal(&self, place: &str) -> String {
        format!(
            "in {place} this full-text table does not hold exactly the text that it is about; it would be rebuilt, and find other rows: \
             rebuild it there first, or make the change in the original itself"
        )
    }
}

/// The tables of which a plan writes rows, or which it brings over as a whole.
pub(super) struct Written<'p> {
    plan: &'p MergePlan,
    rows: HashSet<u32>,
}

impl<'p> Written<'p> {
    /// `rows` are the tables of its rows, by their numbers.
    pub(super) fn new(plan: &'p MergePlan, rows: HashSet<u32>) -> Self {
        Self { plan, rows }
    }

    fn has(&self, name: &str) -> bool {
        let mut tables = self.plan.tables.iter().zip(0..);
        let is = |one: &str| one.eq_ignore_ascii_case(name);
        tables.any(|(one, number)| is(&one.name) && self.rows.contains(&number))
            || self.plan.is_whole(name)
    }

    fn has_views(&self) -> bool {
        let mut whole = self.plan.whole.iter();
        whole.any(|swap| {
            let mut sides = [&swap.before, &swap.after].into_iter().flatten();
            sides.any(|side| side.owner().is_some_and(|one| !one.is_table()))
        })
    }

    /// The full-text tables of a version that have to be rebuilt. One that takes its text from nothing that is there has nothing to be
    /// rebuilt from.
    pub(super) fn full_text<'s>(&self, of: &Database, schema: &'s Schema) -> Vec<&'s FullText> {
        let mut found = Vec::new();
        for one in &schema.full_text {
            let source = schema.objects.values().find(|object| one.is_of(object));
            let concerned = match source {
                Some(_) if self.has(&one.name) => true,
                // A view that changed may be read by that one.
                Some(view) if !view.is_table() && self.has_views() => true,
                Some(table) if table.is_table() => self.has(&table.name),
                Some(view) => match read_by(of, &view.name) {
                    Ok(Some(read)) => read.iter().any(|name| self.has(name)),
                    // A rebuild says what is wrong with it.
                    Ok(None) | Err(_) => true,
                },
                None => false,
            };
            if concerned {
                found.push(one);
            }
        }
        found
    }
}

/// Looks for full-text tables that a merge would rebuild, and that are not in the sandbox what that makes of them.
pub(super) fn check(work: &Database, merged: &mut Merged) -> Result<()> {
    let rows = merged.rows.iter().map(|swap| swap.table).collect();
    let written = Written::new(&merged.plan, rows);
    for one in written.full_text(work, &Schema::read(work)?) {
        let path = table_item(&one.name);
        match one.index(work)? {
            Index::Whole => {}
            Index::Other => {
                let what = one.refusal("the sandbox");
                merged.broken.push(Conflict::of(path, &what));
            }
            Index::Unusable => merged.notes.push(PreviewNote {
                path,
                what: "what this full-text table takes its text from no longer has the columns that it needs: it cannot be searched, in the \
                       sandbox as in the original afterwards"
                    .to_owned(),
            }),
        }
    }
    Ok(())
}

/// The tables that a view reads, as SQLite explains it; none where that does not say.
fn read_by(of: &Database, view: &str) -> rusqlite::Result<Option<HashSet<String>>> {
    let sql = format!("EXPLAIN SELECT * FROM {}", quoted(view));
    let mut explained = of.sql.prepare(&sql)?;
    let mut steps = explained.query([])?;
    let mut read = HashSet::new();
    while let Some(step) = steps.next()? {
        match step.get::<_, String>("opcode")?.as_str() {
            "OpenRead" | "ReopenIdx" => {
                let sql = "SELECT tbl_name FROM main.sqlite_schema WHERE rootpage = ?1";
                let root: i64 = step.get("p2")?;
                read.insert(of.sql.query_row(sql, [root], |row| row.get(0))?);
            }
            "VOpen" => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(read))
}
