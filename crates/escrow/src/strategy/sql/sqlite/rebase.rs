//! Rows that the original changed in a table whose own SQL the sandbox changed, such as by a new column.
//!
//! The table is brought over as a whole, so these rows are first brought into the sandbox's version of it, within a transaction that is
//! given up: row by row, and column by column where both changed one. That needs a table that only the sandbox altered, with a key that
//! is the same in both versions, and with every column that it had, stored as before. Values of new columns stay; new rows of the original
//! get their defaults.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params_from_iter};

use super::connect::Database;
use super::diff::{Delta, Lookup, rows};
use super::merge::{Outcome, Versions, outcome};
use super::pages::ALL;
use super::schema::{Identity, Schema, Table, literal, row};
use super::write::{insert, remove};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::sql::{Row, RowKey, Value, row_item};

/// What the original changed in one table.
pub(super) struct Rebase {
    forms: Forms,
    steps: Vec<Step>,
}

/// Both forms of a table.
struct Forms {
    /// As base and original have it.
    original: Table,
    /// As the sandbox has it.
    wide: Table,
    /// The sandbox's, with the columns of the original alone.
    narrow: Table,
    /// Where these are among the columns of the sandbox.
    places: Vec<usize>,
}

/// One row of it.
struct Step {
    gone: Option<(Option<i64>, Row)>,
    comes: Option<NewRow>,
}

enum NewRow {
    /// With all columns of the sandbox's version.
    Whole(Option<i64>, Row),
    /// With the columns of the original; the others get their defaults.
    Narrow(Row),
}

impl Rebase {
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Compares what both sides did to a table since the base. Of a row that both changed in two ways the sandbox's version counts, and
    /// the original's where `theirs` has it; none where the rows of the versions cannot be told to be the same.
    pub(super) fn of(
        name: &str,
        versions: &Versions<'_>,
        schemas: [&Schema; 3],
        theirs: &HashSet<ResourcePath>,
    ) -> Result<Option<(Self, Vec<Conflict>)>> {
        let Some(forms) = Forms::of(name, versions, schemas)? else {
            return Ok(None);
        };
        let (old, new) = (
            (versions.base, &forms.original),
            (versions.original, &forms.original),
        );
        let fresh = OnceCell::new();
        let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
        let mut here = Lookup::new(versions.work, &forms.wide)?;
        for Delta {
            key, old, new: now, ..
        } in rows(old, new, &[ALL])?
        {
            let RowKey::Values(values) = &key else {
                return Ok(None);
            };
            let item = row_item(name, &key);
            let there = here.key(values)?;
            let delta = Delta {
                key,
                old,
                new: there.as_ref().map(|(_, row)| forms.narrowed(row)),
                rowids: (None, None),
            };
            let is_as_made = |whole: &Row| {
                if forms.adds_nothing(whole) {
                    return true;
                }
                let fresh = fresh.get_or_init(|| FreshRows::new(&forms, schemas[1]).ok());
                fresh.as_ref().is_some_and(|all| all.has(&forms, whole))
            };
            // Where it is gone there, what new columns were given here is gone with it.
            let is_unchanged = delta.new == delta.old
                && (now.is_some() || there.as_ref().is_none_or(|(_, whole)| is_as_made(whole)));
            // What is left to the original has nothing of the sandbox, in new columns neither.
            if theirs.contains(&item) {
                let comes = now.map(NewRow::Narrow);
                steps.push(Step { gone: there, comes });
                continue;
            }
            let becomes = match () {
                () if is_unchanged => now,
                () => match outcome(&forms.original, &delta, now.as_ref()) {
                    Outcome::There => now,
                    Outcome::Becomes(row) => row,
                    Outcome::Conflict(what, row) => {
                        conflicts.push(Conflict::of(item, &what));
                        row
                    }
                },
            };
            if becomes != delta.new {
                let comes = becomes.map(|row| forms.widened(row, there.as_ref()));
                steps.push(Step { gone: there, comes });
            }
        }
        drop(here);
        Ok(Some((Self { forms, steps }, conflicts)))
    }

    /// Brings the rows into the sandbox's version of the table. All that go or change go first, since values that have to be unique may
    /// pass from one to another, and those that are there keep their numbers before new ones get any.
    pub(super) fn apply(&self, work: &Database) -> Result<()> {
        for (rowid, row) in self.steps.iter().filter_map(|step| step.gone.as_ref()) {
            remove(work, &self.forms.wide, *rowid, row)?;
        }
        let comes = self.steps.iter().filter_map(|step| step.comes.as_ref());
        for comes in comes.clone() {
            if let NewRow::Whole(rowid, row) = comes {
                insert(work, &self.forms.wide, *rowid, row)?;
            }
        }
        for comes in comes {
            if let NewRow::Narrow(row) = comes {
                let number = self.forms.narrow.alias.map(|one| &row[one]);
                let number = match number {
                    Some(Value::Integer(number)) => Some(*number),
                    _ => None,
                };
                insert(work, &self.forms.narrow, number, row)?;
            }
        }
        Ok(())
    }
}

impl Forms {
    /// Those of a table that only the sandbox altered, whose rows and values are those that they were; none for any other.
    fn of(
        name: &str,
        versions: &Versions<'_>,
        [base, work, original]: [&Schema; 3],
    ) -> Result<Option<Self>> {
        let table = |schema: &Schema| schema.tables.get(name).cloned();
        let (Some(was), Some(wide), Some(now)) = (table(base), table(work), table(original)) else {
            return Ok(None);
        };
        let sql = |schema: &Schema| -> Vec<String> {
            let all = schema.of_table(name);
            all.map(|one| one.sql.clone()).collect()
        };
        if was != now || sql(base) != sql(original) || !has_same_key(&was, &wide) {
            return Ok(None);
        }
        let kept = stored(versions.work, name)?;
        if !stored(versions.base, name)?.is_subset(&kept) {
            return Ok(None);
        }
        let place = |name: &String| wide.columns.iter().position(|one| one == name);
        let places: Option<Vec<usize>> = was.columns.iter().map(place).collect();
        Ok(places.map(|places| Self {
            narrow: Table {
                rowid: wide.rowid.clone(),
                ..now
            },
            original: was,
            wide,
            places,
        }))
    }

    fn narrowed(&self, row: &Row) -> Row {
        self.places.iter().map(|one| row[*one].clone()).collect()
    }

    /// Whether new columns of a row hold nothing: the diff does not show it then.
    fn adds_nothing(&self, whole: &Row) -> bool {
        let mut new = (0..whole.len()).filter(|one| !self.places.contains(one));
        new.all(|one| whole[one] == Value::Null)
    }

    /// A row of the original with what the sandbox has in the new columns, if it has the row.
    fn widened(&self, row: Row, there: Option<&(Option<i64>, Row)>) -> NewRow {
        let Some((rowid, whole)) = there else {
            return NewRow::Narrow(row);
        };
        let mut whole = whole.clone();
        for (place, value) in self.places.iter().zip(row) {
            whole[*place] = value;
        }
        NewRow::Whole(*rowid, whole)
    }
}

/// An altered table in memory, which tells what new columns hold of a row that says nothing of them.
struct FreshRows(Connection);

impl FreshRows {
    fn new(forms: &Forms, work: &Schema) -> rusqlite::Result<Self> {
        let memory = Connection::open_in_memory()?;
        memory.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        memory.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON")?;
        let mut all = work.of_table(&forms.wide.name);
        if let Some(made) = all.find(|one| one.is_table()) {
            memory.execute(&made.sql, [])?;
        }
        Ok(Self(memory))
    }

    /// Whether a row is as the table itself makes it of the old columns. Where that cannot be told, it is not.
    fn has(&self, forms: &Forms, whole: &Row) -> bool {
        let old = forms.narrowed(whole);
        let made = || -> rusqlite::Result<Row> {
            let values = std::iter::once(&Value::Null).chain(&old);
            let mut insert = self.0.prepare_cached(&forms.narrow.insert())?;
            insert.execute(params_from_iter(values))?;
            let mut select = self.0.prepare_cached(&forms.wide.select_also(&[]))?;
            select.query_row([], |next| Ok(row(next, &forms.wide)?.1))
        };
        let is_same = made().is_ok_and(|made| made == *whole);
        let emptied = format!("DELETE FROM {}", forms.wide.sql_name());
        self.0.execute(&emptied, []).is_ok() && is_same
    }
}

/// How a table stores values: each of its columns with its type, its collation and how it is computed, if it is.
fn stored(of: &Database, table: &str) -> Result<BTreeSet<[String; 4]>> {
    let read = || -> rusqlite::Result<BTreeSet<[String; 4]>> {
        let sql = format!(
            "SELECT one.name, upper(one.type) || iif(list.strict, ' STRICT', ''), one.hidden
             FROM pragma_table_xinfo({name}) AS one, pragma_table_list({name}) AS list WHERE list.schema = 'main'",
            name = literal(table)
        );
        let mut columns = of.sql.prepare(&sql)?;
        let columns = columns.query_map([], |row| {
            let (name, kind, computed) =
                (row.get::<_, String>(0)?, row.get(1)?, row.get::<_, i64>(2)?);
            let (_, collation, ..) = of.sql.column_metadata(Some("main"), table, name.as_str())?;
            let collation = collation.map(|one| one.to_string_lossy().to_ascii_uppercase());
            Ok([
                name,
                kind,
                computed.to_string(),
                collation.unwrap_or_default(),
            ])
        })?;
        columns.collect()
    };
    read().map_err(of.failed("read the columns"))
}

/// Whether both versions of a table tell its rows apart by the same columns.
fn has_same_key(a: &Table, b: &Table) -> bool {
    let names = |table: &Table, columns: &[usize]| -> Vec<String> {
        columns
            .iter()
            .map(|one| table.columns[*one].clone())
            .collect()
    };
    match (&a.identity, &b.identity) {
        // The diff, too, tells rows of tables with numbers from those of tables without.
        _ if a.rowid.is_some() != b.rowid.is_some() => false,
        (Identity::Key(ours), Identity::Key(theirs)) => names(a, ours) == names(b, theirs),
        // The number of a row is its key where a column is that number.
        (Identity::Rowid, Identity::Rowid) => match (a.alias, b.alias) {
            (Some(ours), Some(theirs)) => names(a, &[ours]) == names(b, &[theirs]),
            _ => false,
        },
        _ => false,
    }
}
