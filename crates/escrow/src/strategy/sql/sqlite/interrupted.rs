//! Whether a transaction that was interrupted at its end was committed.
//!
//! Its mark was made before SQLite's own commit, and no other one after it. One transaction does all of it or nothing, so there is one
//! answer for all of it: the original holds everything as it was before, or as it is after. Rows without a key are counted: the mark says
//! how many there were before and would be after. Where one thing says that it happened and another that it did not, another process wrote
//! in between, and which of them it was is not known: nothing is assumed (rule C19).

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::apply::{Direction, Holds, State, each_row, holds, item, state};
use super::connect::Database;
use super::loose::{AllLoose, damaged, is_loose};
use super::plan::OpenPlan;
use crate::model::ResourcePath;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::differ::digest;
use crate::strategy::sql::{setting_item, table_item};

/// How many rows of one content a table has, before a transaction and after it.
#[derive(Serialize, Deserialize)]
struct Count {
    table: u32,
    content: [u8; 32],
    before: i64,
    after: i64,
}

/// What the mark of a transaction says.
#[derive(Default, Serialize, Deserialize)]
struct Mark {
    /// Of the rows without a key that it writes.
    counts: Vec<Count>,
    /// What it leaves as it is, by its place in [`State::all`].
    left: HashSet<usize>,
}

/// What the mark of a transaction has to say, now that everything is written.
pub(super) fn mark_text(
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
    let (mut all, mut mark) = (AllLoose::new(plan, of), Mark::default());
    for ((table, content), more) in more {
        let after = all.table(table)?.count(&content);
        mark.counts.push(Count {
            table,
            content,
            before: after - more,
            after,
        });
    }
    let left = state.all().enumerate();
    let left = left.filter(|(_, held)| *held != Holds::From);
    mark.left = left.map(|(place, _)| place).collect();
    serde_json::to_vec(&mark).map_err(|error| damaged(&error.to_string()))
}

impl Mark {
    fn read(plan: &OpenPlan, direction: Direction) -> Result<Self> {
        let text = plan.mark_text(direction.marks().0)?.unwrap_or_default();
        if text.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))
    }
}

/// An item of each version that the original holds.
#[derive(Default)]
struct Evidence {
    from: Option<ResourcePath>,
    to: Option<ResourcePath>,
    other: Option<ResourcePath>,
}

impl Evidence {
    fn add(&mut self, held: Holds, item: impl FnOnce() -> ResourcePath) {
        let place = match held {
            Holds::From => &mut self.from,
            Holds::To => &mut self.to,
            Holds::Other => &mut self.other,
        };
        place.get_or_insert_with(item);
    }
}

/// Whether a transaction was committed that has its first mark, and not the second.
pub(super) fn happened(plan: &OpenPlan, of: &Database, direction: Direction) -> Result<bool> {
    let mark = Mark::read(plan, direction)?;
    let now = state(plan, of, direction, false)?;
    let settings = plan.plan.settings.iter();
    let settings = settings.map(|one| setting_item(&one.name));
    let objects = plan.plan.objects.iter().map(|one| one.item());
    let whole = plan.plan.whole.iter().map(|one| table_item(&one.name));
    let fixed: Vec<_> = settings.chain(objects).chain(whole).collect();
    let mut told = Evidence::default();
    for (place, (item, held)) in fixed.iter().zip(now.all()).enumerate() {
        if !mark.left.contains(&place) {
            told.add(held, || item.clone());
        }
    }
    let counts = mark.counts.iter();
    let counts: HashMap<_, _> = counts
        .map(|one| ((one.table, one.content), (one.before, one.after)))
        .collect();
    let mut all = AllLoose::new(plan, of);
    each_row(plan, of, &now.reshaped, |number, swap, table, _| {
        let item = || item(table, swap);
        match (&swap.before, &swap.after) {
            _ if mark.left.contains(&(fixed.len() + number)) => {}
            (Some(row), None) | (None, Some(row)) if is_loose(table, swap) => {
                let content = digest(row);
                if let Some((before, after)) = counts.get(&(swap.table, content)) {
                    let count = all.table(swap.table)?.count(&content);
                    told.add(holds(&count, before, after), item);
                }
            }
            _ => told.add(now.rows[number], item),
        }
        Ok(())
    })?;
    let paths = match (told.from, told.to) {
        (Some(from), Some(to)) => vec![from, to],
        (None, None) => match told.other.or(now.reshaped.first().cloned()) {
            Some(other) => vec![other],
            None => return Ok(false),
        },
        (_, to) => return Ok(to.is_some()),
    };
    Err(StrategyError::Untold { paths })
}
