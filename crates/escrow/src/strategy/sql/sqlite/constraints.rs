//! What a merge could break though no row was changed twice: unique values, and rows that refer to others.
//!
//! Both are looked up for the rows of the merge only. What the sandbox itself holds counts as intended: where it has a
//! reference that leads nowhere, so may the original.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::connect::Database;
use super::merge::{Merged, Versions, values};
use super::plan::MergePlan;
use super::references::{self, End, Reference};
use super::schema::{Schema, Table, literal, row};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::sql::{Row, Value, table_item};

/// The schemas of the versions.
pub(super) struct Schemas<'a> {
    pub(super) original: &'a Schema,
    pub(super) work: &'a Schema,
}

/// What tells a row from others: its number, or the values of its key.
fn identity(table: &Table, rowid: Option<i64>, row: &Row) -> Vec<Value> {
    match rowid.filter(|_| table.rowid.is_some()) {
        Some(rowid) => vec![Value::Integer(rowid)],
        None => table.key(None, row).unwrap_or_default(),
    }
}

/// Rows of the merge by table: those that the original holds before, and those that it will hold.
struct Touched<'m> {
    before: HashSet<(u32, Vec<Value>)>,
    merged: &'m Merged,
}

impl<'m> Touched<'m> {
    fn new(merged: &'m Merged) -> Self {
        let before = merged.rows.iter().filter_map(|swap| {
            let table = &merged.plan.tables[swap.table as usize];
            let before = swap.before.as_ref()?;
            Some((swap.table, identity(table, swap.rowid, before)))
        });
        Self {
            before: before.collect(),
            merged,
        }
    }

    fn number(&self, table: &str) -> Option<u32> {
        let mut all = self.merged.plan.tables.iter();
        let found = all.position(|one| one.name == table);
        found.map(|number| number as u32)
    }

    fn has(&self, table: &Table, rowid: Option<i64>, row: &Row) -> bool {
        let number = self.number(&table.name);
        number.is_some_and(|number| self.before.contains(&(number, identity(table, rowid, row))))
    }
}

/// Everything that a merge would break, and the marks of the references that lead nowhere all the same.
pub(super) fn check(
    versions: &Versions<'_>,
    schemas: &Schemas<'_>,
    merged: &Merged,
) -> Result<(Vec<Conflict>, BTreeSet<String>)> {
    let touched = Touched::new(merged);
    let mut leading = Leading {
        versions,
        schemas,
        touched: &touched,
        conflicts: unique(versions.original, &touched)?,
        marks: BTreeSet::new(),
        before: HashSet::new(),
    };
    let mut before = BTreeSet::new();
    let is_whole = |name: &str| merged.plan.is_whole(name);
    let (sandbox, work, original) = (
        (versions.sandbox, schemas.work),
        (versions.work, schemas.work),
        (versions.original, schemas.original),
    );
    let theirs = Reference::all(original.0, original.1, |_| true)?;
    let followed: HashSet<String> = theirs.iter().map(|one| one.mark(&[])).collect();
    for reference in Reference::all(work.0, work.1, |_| true)? {
        if is_whole(&reference.child) {
            let followed = followed.contains(&reference.mark(&[]));
            leading.check(&reference, followed)?;
        } else if is_whole(&reference.parent) && !followed.contains(&reference.mark(&[])) {
            // The original cannot follow it: what leads nowhere in the sandbox did so before.
            let known = reference.broken(sandbox.0, sandbox.1)?;
            leading.marks.extend(known.into_iter().map(|one| one.0));
        }
    }
    for reference in theirs {
        match is_whole(&reference.child) {
            // An undo makes these again.
            true => {
                let known = reference.broken(original.0, original.1)?;
                before.extend(known.into_iter().map(|one| one.0));
            }
            false => leading.check(&reference, true)?,
        }
    }
    before.extend(leading.before.into_iter().map(|one| one.0));
    before.extend(leading.marks);
    Ok((leading.conflicts, before))
}

/// The rows of a table that have these values in some columns.
pub(super) fn holding(
    of: &Database,
    table: &Table,
    columns: &[usize],
    wanted: &[Value],
) -> Result<Vec<(Option<i64>, Row)>> {
    let what = "look for values";
    let select = of.sql.prepare_cached(&table.select_where(columns));
    let mut select = select.map_err(of.failed(what))?;
    let mut rows = select
        .query(rusqlite::params_from_iter(wanted))
        .map_err(of.failed(what))?;
    let mut found = Vec::new();
    while let Some(next) = rows.next().map_err(of.failed(what))? {
        found.push(row(next, table).map_err(of.failed(what))?);
    }
    Ok(found)
}

/// The columns of each unique index of a table that stays; those over expressions or over some rows only are left to SQLite.
fn unique_indexes(of: &Database, table: &Table, plan: &MergePlan) -> Result<Vec<Vec<usize>>> {
    let goes = |name: &str| {
        let mut gone = plan.objects.iter().filter_map(|swap| swap.before.as_ref());
        gone.any(|one| one.kind == "index" && one.name == name)
    };
    let read = || -> rusqlite::Result<Vec<Vec<usize>>> {
        let sql = format!(
            "SELECT name FROM pragma_index_list({}) WHERE \"unique\" = 1 AND partial = 0",
            literal(&table.name)
        );
        let mut indexes = of.sql.prepare(&sql)?;
        let names = indexes.query_map([], |row| row.get::<_, String>(0))?;
        let mut all = Vec::new();
        for name in names {
            let name = name?;
            if goes(&name) {
                continue;
            }
            let sql = format!("SELECT name FROM pragma_index_info({})", literal(&name));
            let mut info = of.sql.prepare(&sql)?;
            let names = info.query_map([], |row| row.get::<_, Option<String>>(0))?;
            let mut columns = Some(Vec::new());
            for name in names {
                let name = name?;
                let place = name.and_then(|name| table.columns.iter().position(|one| *one == name));
                columns = columns.zip(place).map(|(mut columns, place)| {
                    columns.push(place);
                    columns
                });
            }
            all.extend(columns.filter(|columns| !columns.is_empty()));
        }
        Ok(all)
    };
    read().map_err(of.failed("read the indexes"))
}

/// Rows of the merge whose unique values another row of the original holds, which the sandbox did not touch.
fn unique(original: &Database, touched: &Touched<'_>) -> Result<Vec<Conflict>> {
    let merged = touched.merged;
    let mut indexes: HashMap<u32, Vec<Vec<usize>>> = HashMap::new();
    let mut conflicts = Vec::new();
    for (swap, item) in merged.rows.iter().zip(&merged.items) {
        let table = &merged.plan.tables[swap.table as usize];
        let Some(after) = &swap.after else {
            continue;
        };
        let indexes = match indexes.entry(swap.table) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(unique_indexes(original, table, &merged.plan)?)
            }
        };
        for columns in indexes.iter() {
            let Some(wanted) = values(after, columns) else {
                continue;
            };
            let is_same = swap.before.as_ref().and_then(|row| values(row, columns));
            if is_same.as_ref() == Some(&wanted) {
                continue;
            }
            let other = holding(original, table, columns, &wanted)?;
            let foreign = |(rowid, row): &(Option<i64>, Row)| !touched.has(table, *rowid, row);
            if other.iter().any(foreign) {
                let names: Vec<&str> = columns
                    .iter()
                    .map(|one| table.columns[*one].as_str())
                    .collect();
                let what = format!(
                    "the original has another row with the same {}, which must be unique",
                    names.join(", ")
                );
                conflicts.push(Conflict::of(item.clone(), &what));
                break;
            }
        }
    }
    Ok(conflicts)
}

/// References that the merge would leave without what they refer to.
struct Leading<'m> {
    versions: &'m Versions<'m>,
    schemas: &'m Schemas<'m>,
    touched: &'m Touched<'m>,
    conflicts: Vec<Conflict>,
    /// Of what leads nowhere and may: it is kept with the plan.
    marks: BTreeSet<String>,
    /// Rows of the original that led nowhere before, with their marks.
    before: HashSet<(String, ResourcePath)>,
}

impl Leading<'_> {
    fn conflict(&mut self, item: ResourcePath, what: &str) {
        self.conflicts.push(Conflict::of(item, what));
    }

    /// Looks at a reference, which the original has too or not.
    fn check(&mut self, reference: &Reference, is_theirs: bool) -> Result<()> {
        let (touched, versions, schemas) = (self.touched, self.versions, self.schemas);
        let plan = &touched.merged.plan;
        let tables = [&reference.child, &reference.parent];
        let whole = tables.iter().any(|name| plan.is_whole(name));
        if !whole && tables.iter().all(|name| touched.number(name).is_none()) {
            return Ok(());
        }
        let (work, original) = (
            (versions.work, schemas.work),
            (versions.original, schemas.original),
        );
        // What the sandbox holds so is intended, and the same rows of the original were so before. The transaction that writes looks at all
        // rows of these, too.
        if whole || !reference.alike {
            let meant = reference.broken(versions.sandbox, schemas.work)?;
            self.marks.extend(meant.into_iter().map(|one| one.0));
            if is_theirs {
                let before = reference.broken(original.0, original.1)?;
                self.before.extend(before);
            }
        }
        let side = match plan.is_whole(&reference.child) {
            true => work,
            false => original,
        };
        match (reference.has_ends(side.0, side.1), whole) {
            (false, _) => Ok(()),
            (true, true) => self.whole(reference),
            (true, false) => self.by_row(reference),
        }
    }

    /// Where a table is brought over as a whole, every row of the child is looked at.
    fn whole(&mut self, reference: &Reference) -> Result<()> {
        let (versions, schemas) = (self.versions, self.schemas);
        let (work, original) = (versions.work, versions.original);
        let merged = self.touched.merged;
        let whole = |name: &str| merged.plan.is_whole(name);
        let child = match whole(&reference.child) {
            true => reference.child(work, schemas.work),
            false => reference.child(original, schemas.original),
        };
        let Some(child) = child else {
            return Ok(());
        };
        if whole(&reference.child) && whole(&reference.parent) {
            // As the sandbox left them they belong together.
            let broken = match std::ptr::eq(work, versions.sandbox) {
                true => Vec::new(),
                false => reference.broken(work, schemas.work)?,
            };
            let new = |one: &(String, ResourcePath)| {
                !self.marks.contains(&one.0) && !self.before.contains(one)
            };
            if let Some((_, row)) = broken.into_iter().find(new) {
                let parent = &reference.parent;
                let what =
                    format!("{row} refers to a row of {parent} that only the other side has left");
                self.conflict(table_item(&reference.child), &what);
            }
            return Ok(());
        }
        let parents = Parents::new(self, reference);
        let is_broken = |rowid: Option<i64>, row: &Row| -> Result<bool> {
            let Some(held) = values(row, &child.columns) else {
                return Ok(false);
            };
            let mark = reference.mark(&held);
            if self.marks.contains(&mark) || parents.have(&held)? {
                return Ok(false);
            }
            let item = references::item(child.table, rowid, row);
            Ok(!self.before.contains(&(mark, item)))
        };
        let named = |(rowid, row): (Option<i64>, Row)| references::item(child.table, rowid, &row);
        if whole(&reference.child) {
            if let Some((rowid, row)) = child.first(&is_broken)? {
                let parent = &reference.parent;
                let held = values(&row, &child.columns).unwrap_or_default();
                let there = reference.parent(original, schemas.original);
                let who = match there.map_or(Ok(false), |end| end.has(&held))? {
                    true => "was deleted here",
                    false => "the original deleted",
                };
                let row = named((rowid, row));
                let what = format!("its row {row} refers to a row of {parent} that {who}");
                self.conflict(table_item(&reference.child), &what);
            }
            return Ok(());
        }
        let broken = child.first(|rowid, row| {
            Ok(!self.touched.has(child.table, rowid, row) && is_broken(rowid, row)?)
        })?;
        let number = self.touched.number(&reference.child);
        let mut unled = Vec::new();
        for (swap, item) in merged.rows.iter().zip(&merged.items) {
            if let Some(after) = &swap.after
                && Some(swap.table) == number
                && is_broken(swap.rowid, after)?
            {
                unled.push(item);
            }
        }
        if let Some(row) = broken.map(named) {
            let what = format!("{row} of the original refers to a row of it that is gone here");
            self.conflict(table_item(&reference.parent), &what);
        }
        for item in unled {
            let parent = &reference.parent;
            let what = format!("it refers to a row of {parent} that the original deleted");
            self.conflict(item.clone(), &what);
        }
        Ok(())
    }

    /// Where rows are changed in both tables, only these are looked at, and what refers to them.
    fn by_row(&mut self, reference: &Reference) -> Result<()> {
        let (versions, schemas, touched) = (self.versions, self.schemas, self.touched);
        let (work, original) = (versions.work, versions.original);
        let (Some(child), parent) = (
            reference.child(original, schemas.original),
            reference.parent(original, schemas.original),
        ) else {
            return Ok(());
        };
        let ours = (
            reference.child(work, schemas.work),
            reference.parent(work, schemas.work),
        );
        let found_here =
            |wanted: &[Value]| ours.1.as_ref().map_or(Ok(false), |end| end.has(wanted));
        // Those that the sandbox holds too, and that lead nowhere there: it is intended.
        let meant = |wanted: HashSet<Vec<Value>>| -> Result<HashSet<Vec<Value>>> {
            let mut without = HashSet::new();
            for one in wanted {
                if !found_here(&one)? {
                    without.insert(one);
                }
            }
            ours.0
                .as_ref()
                .map_or(Ok(HashSet::new()), |end| end.held(&without))
        };
        let parents = Parents::new(self, reference);
        let merged = touched.merged;
        let number = touched.number(&reference.child);
        let mut unled = Vec::new();
        for (swap, item) in merged.rows.iter().zip(&merged.items) {
            if Some(swap.table) != number {
                continue;
            }
            let wanted =
                |row: &Option<Row>| row.as_ref().and_then(|row| values(row, &child.columns));
            let (was, is) = (wanted(&swap.before), wanted(&swap.after));
            // What the original does not hold comes from the sandbox.
            let comes = was != is;
            if let Some(was) = was
                && !parent.as_ref().map_or(Ok(false), |end| end.has(&was))?
            {
                self.marks.insert(reference.mark(&was));
            }
            if let Some(is) = is
                && !parents.have(&is)?
            {
                unled.push((is, comes, item));
            }
        }
        let stays = unled.iter().filter(|(_, comes, _)| !comes);
        let held = meant(stays.map(|(is, ..)| is.clone()).collect())?;
        for (is, comes, item) in unled {
            if held.contains(&is) || comes && !found_here(&is)? {
                self.marks.insert(reference.mark(&is));
            } else {
                let parent = &reference.parent;
                let what = format!("it refers to a row of {parent} that the original deleted");
                self.conflict(item.clone(), &what);
            }
        }
        let number = touched.number(&reference.parent);
        let Some(parent) = parent.filter(|_| number.is_some()) else {
            return Ok(());
        };
        let (mut comes, mut goes) = (Vec::new(), HashMap::new());
        for (swap, item) in merged.rows.iter().zip(&merged.items) {
            if Some(swap.table) != number {
                continue;
            }
            let side =
                |row: &Option<Row>| row.as_ref().and_then(|row| values(row, &parent.columns));
            let (was, is) = (side(&swap.before), side(&swap.after));
            if let Some(is) = is.filter(|is| Some(is) != was.as_ref())
                && !parent.has(&is)?
            {
                comes.push(is);
            }
            if let Some(was) = was
                && !parents.have(&was)?
            {
                goes.insert(was, item);
            }
        }
        // Rows of the original that wait for one that comes: an undo leaves them as they were.
        let comes: HashSet<&[Value]> = comes.iter().map(Vec::as_slice).collect();
        let waiting = reference.referring(&child, ours.1.as_ref(), &comes, |_, _| true)?;
        let waiting = waiting
            .iter()
            .filter_map(|(_, row)| values(row, &child.columns));
        self.marks.extend(waiting.map(|held| reference.mark(&held)));
        let gone: HashSet<&[Value]> = goes.keys().map(Vec::as_slice).collect();
        let foreign = |rowid: Option<i64>, row: &Row| !touched.has(child.table, rowid, row);
        let mut left = Vec::new();
        for (gone, row) in reference.referring(&child, Some(&parent), &gone, foreign)? {
            // Another one may come that is as good.
            if let Some(held) = values(&row, &child.columns)
                && !parents.have(&held)?
            {
                left.push((gone, held));
            }
        }
        let known = meant(left.iter().map(|(_, held)| held.clone()).collect())?;
        for (gone, held) in left {
            if known.contains(&held) {
                self.marks.insert(reference.mark(&held));
            } else if let Some(item) = goes.get(&gone) {
                let child = &reference.child;
                let what = format!("the original added a row of {child} that refers to it");
                self.conflict((*item).clone(), &what);
            }
        }
        Ok(())
    }
}

/// The rows that a reference finds once everything is merged.
struct Parents<'m> {
    end: Option<End<'m>>,
    /// What rows of the merge bring, and how rows that stay are told; nothing where the table is brought over as a whole.
    brought: HashSet<Vec<Value>>,
    touched: Option<&'m Touched<'m>>,
    /// The version that has what is brought, where only SQLite can tell what refers to it.
    brings: Option<End<'m>>,
}

impl<'m> Parents<'m> {
    fn new(of: &Leading<'m>, reference: &Reference) -> Self {
        let (merged, touched) = (of.touched.merged, of.touched);
        let ours = reference.parent(of.versions.work, of.schemas.work);
        if merged.plan.is_whole(&reference.parent) {
            return Self {
                end: ours,
                brought: HashSet::new(),
                touched: None,
                brings: None,
            };
        }
        let end = reference.parent(of.versions.original, of.schemas.original);
        let number = touched.number(&reference.parent);
        let rows = merged.rows.iter().filter(|one| Some(one.table) == number);
        let bring = rows.filter_map(|swap| values(swap.after.as_ref()?, &end.as_ref()?.columns));
        Self {
            brought: bring.collect(),
            end,
            touched: Some(touched),
            brings: ours.filter(|_| !reference.alike),
        }
    }

    fn have(&self, wanted: &[Value]) -> Result<bool> {
        let Some(end) = &self.end else {
            return Ok(false);
        };
        let brought = |row: &Row, end: &End<'_>| {
            let held = values(row, &end.columns);
            held.is_some_and(|held| self.brought.contains(&held))
        };
        let stays = |rowid: Option<i64>, row: &Row| match self.touched {
            Some(touched) => !touched.has(end.table, rowid, row) || brought(row, end),
            None => true,
        };
        if self.brought.contains(wanted) || end.find(&[wanted], stays)?.is_some() {
            return Ok(true);
        }
        let comes = |one: &End<'_>| one.find(&[wanted], |_, row| brought(row, one));
        let comes = self.brings.as_ref().map_or(Ok(None), comes);
        Ok(comes?.is_some())
    }
}
