//! Rows that the original changed in a table whose own SQL the sandbox changed, such as by a new column.
//!
//! The table is brought over as a whole, so these rows are first brought into the sandbox's version of it, within a transaction that is
//! given up: row by row, and column by column where both changed one. That needs a table that only the sandbox altered, with a key that
//! is the same in both versions, and with every column that it had. Values of new columns stay; rows of the original get their defaults.

use std::collections::HashSet;

use super::connect::Database;
use super::diff::{Delta, Lookup, rows};
use super::merge::{Outcome, Versions, outcome};
use super::pages::ALL;
use super::schema::{Identity, Schema, Table};
use super::write::{insert, remove};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::sql::{Row, RowKey, row_item};

/// What the original changed in one table.
pub(super) struct Rebase {
    /// The table as the sandbox has it.
    table: Table,
    /// The same with the columns that the original has.
    narrow: Table,
    steps: Vec<Step>,
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
        [base, work, original]: [&Schema; 3],
        theirs: &HashSet<ResourcePath>,
    ) -> Result<Option<(Self, Vec<Conflict>)>> {
        let table = |schema: &Schema| schema.tables.get(name).cloned();
        let (Some(was), Some(table), Some(now)) = (table(base), table(work), table(original))
        else {
            return Ok(None);
        };
        let sql = |schema: &Schema| -> Vec<String> {
            let all = schema.of_table(name);
            all.map(|one| one.sql.clone()).collect()
        };
        if was != now || sql(base) != sql(original) || !has_same_key(&was, &table) {
            return Ok(None);
        }
        let place = |name: &String| table.columns.iter().position(|one| one == name);
        let places: Option<Vec<usize>> = was.columns.iter().map(place).collect();
        let Some(places) = places else {
            return Ok(None);
        };
        let (old, new) = ((versions.base, &was), (versions.original, &now));
        let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
        let mut here = Lookup::new(versions.work, &table)?;
        for Delta {
            key, old, new: now, ..
        } in rows(old, new, &[ALL])?
        {
            let RowKey::Values(values) = &key else {
                return Ok(None);
            };
            let item = row_item(name, &key);
            let there = here.key(values)?;
            let narrow =
                |row: &Row| -> Row { places.iter().map(|one| row[*one].clone()).collect() };
            let ours = there.as_ref().map(|(_, row)| narrow(row));
            let delta = Delta {
                key,
                old,
                new: ours,
                rowids: (None, None),
            };
            let becomes = match () {
                () if delta.new == delta.old => now,
                () => match outcome(&was, &delta, now.as_ref()) {
                    Outcome::There => now,
                    Outcome::Becomes(row) => row,
                    Outcome::Conflict(..) if theirs.contains(&item) => now,
                    Outcome::Conflict(what, row) => {
                        conflicts.push(Conflict::of(item, &what));
                        row
                    }
                },
            };
            if becomes == delta.new {
                continue;
            }
            let comes = match (becomes, &there) {
                (None, _) => None,
                (Some(row), None) => Some(NewRow::Narrow(row)),
                (Some(row), Some((rowid, whole))) => {
                    let mut whole = whole.clone();
                    for (place, value) in places.iter().zip(row) {
                        whole[*place] = value;
                    }
                    Some(NewRow::Whole(*rowid, whole))
                }
            };
            steps.push(Step { gone: there, comes });
        }
        drop(here);
        let rowid = table.rowid.clone();
        let narrow = Table { rowid, ..now };
        let rebase = Self {
            table,
            narrow,
            steps,
        };
        Ok(Some((rebase, conflicts)))
    }

    /// Brings the rows into the sandbox's version of the table. All that go or change go first, since values that have to be unique may
    /// pass from one to another.
    pub(super) fn apply(&self, work: &Database) -> Result<()> {
        for (rowid, row) in self.steps.iter().filter_map(|step| step.gone.as_ref()) {
            remove(work, &self.table, *rowid, row)?;
        }
        for comes in self.steps.iter().filter_map(|step| step.comes.as_ref()) {
            match comes {
                NewRow::Whole(rowid, row) => insert(work, &self.table, *rowid, row)?,
                NewRow::Narrow(row) => insert(work, &self.narrow, None, row)?,
            }
        }
        Ok(())
    }
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
        (Identity::Key(ours), Identity::Key(theirs)) => names(a, ours) == names(b, theirs),
        // The number of a row is its key where a column is that number.
        (Identity::Rowid, Identity::Rowid) => match (a.alias, b.alias) {
            (Some(ours), Some(theirs)) => names(a, &[ours]) == names(b, &[theirs]),
            _ => false,
        },
        _ => false,
    }
}
