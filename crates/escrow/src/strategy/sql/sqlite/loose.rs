//! Rows without a key, which have nothing but their content: where they are, and how many there are.
//!
//! `VACUUM` gives rows new numbers, and a number that is free goes to the next row of anybody. So an undo looks for such rows by what they
//! hold, and a transaction that was interrupted at its end is told by how many there are: its mark says how many there were before and
//! would be after it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::apply::{Direction, Holds, State, each_row, holds};
use super::connect::Database;
use super::diff::each;
use super::plan::{BEGUN, DONE, OpenPlan, UNDOING, UNDONE};
use super::schema::Table;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::Row;
use crate::strategy::sql::differ::digest;
use crate::strategy::sql::record::RowSwap;

/// Whether a row has no key.
pub(super) fn is_loose(table: &Table, swap: &RowSwap) -> bool {
    let row = swap.before.as_ref().or(swap.after.as_ref());
    row.is_some_and(|row| table.key(swap.rowid, row).is_none())
}

/// The rows of a table without a key, by their content.
pub(super) struct Loose(HashMap<[u8; 32], Vec<i64>>);

impl Loose {
    pub(super) fn read(of: &Database, table: &Table) -> Result<Self> {
        let mut all: HashMap<[u8; 32], Vec<i64>> = HashMap::new();
        each(of, table, |rowid, row| {
            if table.key(rowid, &row).is_none() {
                all.entry(digest(&row)).or_default().extend(rowid);
            }
            Ok(())
        })?;
        // The first of equal rows is taken first.
        all.values_mut().for_each(|same| same.reverse());
        Ok(Self(all))
    }

    /// The number of a row with this content, which is given out once.
    pub(super) fn take(&mut self, content: &Row, is: impl Fn(i64) -> bool) -> Option<i64> {
        let same = self.0.get_mut(&digest(content))?;
        while let Some(rowid) = same.pop() {
            if is(rowid) {
                return Some(rowid);
            }
        }
        None
    }

    fn count(&self, content: &[u8; 32]) -> i64 {
        self.0.get(content).map_or(0, |same| same.len() as i64)
    }
}

/// The loose rows of the tables of a plan, each read once.
struct AllLoose<'a> {
    plan: &'a OpenPlan,
    of: &'a Database,
    read: HashMap<u32, Loose>,
}

impl AllLoose<'_> {
    fn table(&mut self, number: u32) -> Result<&mut Loose> {
        Ok(match self.read.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let found = self.plan.plan.tables.get(number as usize);
                let table = found.ok_or_else(|| damaged("a row belongs to no table"))?;
                new.insert(Loose::read(self.of, table)?)
            }
        })
    }
}

fn damaged(what: &str) -> StrategyError {
    StrategyError::Damaged {
        what: what.to_owned(),
    }
}

/// Loose rows that are to go, and are not under their numbers: equal ones are as good.
#[derive(Default)]
pub(super) struct Strays {
    /// Those that are where they were, by table and number.
    there: HashSet<(u32, i64)>,
    /// The others: their number in the plan, their table, and the row.
    sought: Vec<(usize, u32, Row)>,
}

impl Strays {
    /// What there is of a loose row, as far as its number says.
    pub(super) fn holds(
        &mut self,
        number: usize,
        swap: &RowSwap,
        from: Option<&Row>,
        now: Option<&Row>,
    ) -> Holds {
        match from {
            Some(row) if now == Some(row) => {
                let rowid = swap.rowid.map(|rowid| (swap.table, rowid));
                self.there.extend(rowid);
                Holds::From
            }
            Some(row) => {
                self.sought.push((number, swap.table, row.clone()));
                Holds::To
            }
            // It comes, under another number if it has to.
            None => Holds::From,
        }
    }

    /// Looks for equal ones.
    pub(super) fn find(self, plan: &OpenPlan, of: &Database, state: &mut State) -> Result<()> {
        let read = HashMap::new();
        let mut all = AllLoose { plan, of, read };
        for (number, table, row) in self.sought {
            let free = |rowid| !self.there.contains(&(table, rowid));
            if let Some(rowid) = all.table(table)?.take(&row, free) {
                state.rows[number] = Holds::From;
                state.elsewhere.insert(number, rowid);
            }
        }
        Ok(())
    }
}

/// How many rows of one content a table has, before a transaction and after it.
#[derive(Serialize, Deserialize)]
struct Count {
    table: u32,
    content: [u8; 32],
    before: i64,
    after: i64,
}

/// What the mark of a transaction says: how many loose rows there were, and are now that they are written.
pub(super) fn counts(
    plan: &OpenPlan,
    of: &Database,
    state: &State,
    direction: Direction,
) -> Result<Vec<u8>> {
    let mut more: HashMap<(u32, [u8; 32]), i64> = HashMap::new();
    each_row(plan, of, &state.reshaped, |number, swap, table, _| {
        if state.rows.get(number) == Some(&Holds::From) && is_loose(table, swap) {
            let (from, to) = direction.of(&swap.before, &swap.after);
            for (row, one) in [(from, -1), (to, 1)] {
                if let Some(row) = row {
                    *more.entry((swap.table, digest(row))).or_default() += one;
                }
            }
        }
        Ok(())
    })?;
    if more.is_empty() {
        return Ok(Vec::new());
    }
    let read = HashMap::new();
    let mut all = AllLoose { plan, of, read };
    let mut found = Vec::new();
    for ((table, content), more) in more {
        let after = all.table(table)?.count(&content);
        found.push(Count {
            table,
            content,
            before: after - more,
            after,
        });
    }
    serde_json::to_vec(&found).map_err(|error| damaged(&error.to_string()))
}

/// What an interrupted transaction did to loose rows.
pub(super) struct Told(HashMap<(u32, [u8; 32]), Holds>);

impl Told {
    /// None where nothing was interrupted.
    pub(super) fn read(
        plan: &OpenPlan,
        of: &Database,
        direction: Direction,
    ) -> Result<Option<Self>> {
        let (mark, back) = match direction {
            _ if !plan.is_marked(DONE)? => (BEGUN, direction == Direction::Back),
            Direction::Back if !plan.is_marked(UNDONE)? => (UNDOING, false),
            _ => return Ok(None),
        };
        let text = plan.mark_text(mark)?.unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        let counts: Vec<Count> =
            serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))?;
        let read = HashMap::new();
        let (mut all, mut found) = (AllLoose { plan, of, read }, HashMap::new());
        for one in counts {
            let now = all.table(one.table)?.count(&one.content);
            let (from, to) = match back {
                true => (one.after, one.before),
                false => (one.before, one.after),
            };
            found.insert((one.table, one.content), holds(&now, &from, &to));
        }
        Ok(Some(Self(found)))
    }

    /// Of a row of the plan.
    pub(super) fn holds(&self, swap: &RowSwap) -> Option<Holds> {
        let row = swap.before.as_ref().or(swap.after.as_ref())?;
        self.0.get(&(swap.table, digest(row))).copied()
    }
}
