//! Rows without a key, which have nothing but their content: where they are, and how many there are.
//!
//! `VACUUM` gives rows new numbers, and a number that is free goes to the next row of anybody. So such rows are looked for by what they
//! hold.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::apply::{Holds, State};
use super::connect::Database;
use super::diff::each;
use super::plan::OpenPlan;
use super::references;
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

    pub(super) fn count(&self, content: &[u8; 32]) -> i64 {
        self.0.get(content).map_or(0, |same| same.len() as i64)
    }
}

/// The loose rows of the tables of a plan, each read once.
pub(super) struct AllLoose<'a> {
    plan: &'a OpenPlan,
    of: &'a Database,
    read: HashMap<u32, Loose>,
}

impl<'a> AllLoose<'a> {
    pub(super) fn new(plan: &'a OpenPlan, of: &'a Database) -> Self {
        let read = HashMap::new();
        Self { plan, of, read }
    }

    pub(super) fn table(&mut self, number: u32) -> Result<&mut Loose> {
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

pub(super) fn damaged(what: &str) -> StrategyError {
    StrategyError::Damaged {
        what: what.to_owned(),
    }
}

/// Loose rows that are to go, and are not under their numbers: equal ones are as good.
pub(super) struct Strays {
    /// What it says that there is none: such a row went already, or another process changed it.
    missing: Holds,
    /// Those that are where they were, by table and number.
    there: HashSet<(u32, i64)>,
    /// The others.
    sought: Vec<Sought>,
}

struct Sought {
    /// Its number in the plan.
    number: usize,
    table: u32,
    rowid: Option<i64>,
    row: Row,
}

impl Strays {
    pub(super) fn new(missing: Holds) -> Self {
        Self {
            missing,
            there: HashSet::new(),
            sought: Vec::new(),
        }
    }

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
                self.sought.push(Sought {
                    number,
                    table: swap.table,
                    rowid: swap.rowid,
                    row: row.clone(),
                });
                self.missing
            }
            // It comes, under another number if it has to.
            None => Holds::From,
        }
    }

    /// Looks for equal ones.
    pub(super) fn find(self, plan: &OpenPlan, of: &Database, state: &mut State) -> Result<()> {
        let mut all = AllLoose::new(plan, of);
        for one in &self.sought {
            let free = |rowid| !self.there.contains(&(one.table, rowid));
            if let Some(rowid) = all.table(one.table)?.take(&one.row, free) {
                state.rows[one.number] = Holds::From;
                state.elsewhere.insert(one.number, rowid);
            } else if self.missing == Holds::Other
                && let Some(table) = plan.plan.tables.get(one.table as usize)
            {
                state
                    .others
                    .push(references::item(table, one.rowid, &one.row));
            }
        }
        Ok(())
    }
}
