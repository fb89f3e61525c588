//! The three-way merge: what the sandbox changed since the base is brought over to the original as it is now.
//!
//! A row that only the sandbox changed becomes its version. A row that both changed becomes both, column by column, unless
//! the same column has two new values: that is a conflict (rule Q2). A table whose own SQL the sandbox changed is brought
//! over as a whole; rows that the original changed in it are brought into the sandbox's version first (`rebase`), or are a conflict.

use std::collections::HashSet;

use super::connect::Database;
use super::constraints;
use super::diff::{Delta, Difference, Lookup, ObjectDelta, rows, table_digest};
use super::loose::Loose;
use super::pages::ALL;
use super::plan::{MergePlan, ObjectSwap, SettingSwap, TableSwap, WholeTable};
use super::rebase::Rebase;
use super::schema::{Object, Schema, Table, setting};
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::sql::record::RowSwap;
use crate::strategy::sql::{Row, RowKey, Value, row_item, setting_item, table_item};
use crate::strategy::{PreviewNote, unsupported};

/// The versions that are merged.
pub(super) struct Versions<'a> {
    pub(super) base: &'a Database,
    pub(super) work: &'a Database,
    /// The sandbox itself, also where `work` has changes of the original too: what leads nowhere in it is intended.
    pub(super) sandbox: &'a Database,
    pub(super) original: &'a Database,
}

/// What a commit would do, and what contradicts it.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) plan: MergePlan,
    pub(super) rows: Vec<RowSwap>,
    /// The items of the rows, in their order.
    pub(super) items: Vec<ResourcePath>,
    pub(super) conflicts: Vec<Conflict>,
    /// What the original would refuse, or what would be left without what it refers to: the sandbox's version is no way out.
    pub(super) broken: Vec<Conflict>,
    /// What cannot be used afterwards.
    pub(super) notes: Vec<PreviewNote>,
    /// What the original changed in tables that are brought over as a whole: it is to be brought into the sandbox's version, and that
    /// merged again. Until then it is not known what the merge breaks.
    pub(super) rebases: Vec<Rebase>,
}

/// Merges a difference into the original. Items that `left_out` names stay as they are there. Where both sides changed
/// something the plan holds the sandbox's version, for the caller who wants it all the same.
pub(super) fn merge(
    versions: &Versions<'_>,
    found: &Difference,
    left_out: &HashSet<ResourcePath>,
) -> Result<Merged> {
    let mut merge = Merge {
        versions,
        base: Schema::read(versions.base)?,
        work: Schema::read(versions.work)?,
        original: Schema::read(versions.original)?,
        left_out,
        merged: Merged::default(),
    };
    let mut whole: HashSet<&str> = HashSet::new();
    for one in found.altered_tables() {
        // A view may take the name of a table.
        if whole.insert(&one.either().name) {
            merge.whole_table(&one.either().name, None)?;
        }
    }
    for (name, rows) in &found.rows {
        if let Some(what) = merge.reshaped(name)
            && whole.insert(name)
            && !left_out.contains(&table_item(name))
        {
            let is_out = |one: &Delta| left_out.contains(&row_item(name, &one.key));
            if rows.iter().all(is_out) {
                continue;
            }
            if rows.iter().any(is_out) {
                let asked = format!("commit some rows of the table '{name}'");
                return Err(unsupported("snapshot", &asked, what));
            }
            merge.whole_table(name, Some(what))?;
        }
    }
    for one in &found.objects {
        let mut sides = [&one.old, &one.new].into_iter().flatten();
        if !sides.all(|side| whole.contains(side.table.as_str())) {
            merge.object(one);
        }
    }
    for (name, rows) in &found.rows {
        if !whole.contains(name.as_str()) {
            merge.rows(name, rows)?;
        }
    }
    for (name, old, new) in &found.settings {
        merge.setting(name, old, new)?;
    }
    for (name, _, new) in &found.counters {
        if !left_out.contains(&super::diff::counter_item(name)) {
            merge.merged.plan.counters.push((name.clone(), *new));
        }
    }
    if merge.merged.rebases.is_empty() {
        let schemas = constraints::Schemas {
            original: &merge.original,
            work: &merge.work,
        };
        let (broken, dangling) = constraints::check(versions, &schemas, &merge.merged)?;
        merge.merged.broken.extend(broken);
        merge.merged.plan.dangling = dangling;
    }
    merge.check_names();
    Ok(merge.merged)
}

struct Merge<'a> {
    versions: &'a Versions<'a>,
    base: Schema,
    work: Schema,
    original: Schema,
    left_out: &'a HashSet<ResourcePath>,
    merged: Merged,
}

/// What becomes of a row.
pub(super) enum Outcome {
    /// The original holds it already.
    There,
    /// It becomes this.
    Becomes(Option<Row>),
    /// Both changed it; the sandbox's version would be this.
    Conflict(String, Option<Row>),
}

impl Merge<'_> {
    fn conflict(&mut self, item: ResourcePath, what: &str) {
        self.merged.conflicts.push(Conflict::of(item, what));
    }

    /// A table as the original has it.
    fn table(&self, name: &str) -> Option<Table> {
        self.original.tables.get(name).cloned()
    }

    /// The number of a table in the plan, to which it belongs from now on.
    fn number(&mut self, table: &Table) -> u32 {
        let all = &mut self.merged.plan.tables;
        let found = all.iter().position(|one| one.name == table.name);
        let number = found.unwrap_or_else(|| {
            all.push(table.clone());
            all.len() - 1
        });
        number as u32
    }

    /// Why rows of a table cannot be brought over one by one, if they cannot: the original has it in another form.
    fn reshaped(&self, name: &str) -> Option<&'static str> {
        match (self.work.tables.get(name), self.original.tables.get(name)) {
            (ours, theirs) if ours == theirs => None,
            (_, None) => Some("its rows were changed here, and the original dropped it"),
            _ => Some(
                "its rows were changed here, and the original has other columns or another key",
            ),
        }
    }

    /// Brings a table or view over as a whole. What changed in the original too is brought into it where that can be done by row, else it is
    /// a conflict, as is a reason that is given.
    fn whole_table(&mut self, name: &str, why: Option<&str>) -> Result<()> {
        let item = table_item(name);
        if self.left_out.contains(&item) {
            return Ok(());
        }
        let version = |of: &Database, schema: &Schema| -> Result<Option<WholeTable>> {
            let digest = table_digest(of, schema, name)?;
            let counter = super::diff::counters(of)?.get(name).copied();
            Ok(digest.map(|digest| WholeTable {
                digest,
                table: schema.tables.get(name).cloned(),
                objects: schema.of_table(name).cloned().collect(),
                counter,
            }))
        };
        let before = version(self.versions.original, &self.original)?;
        let after = version(self.versions.work, &self.work)?;
        let base = table_digest(self.versions.base, &self.base, name)?;
        let digest = |version: &Option<WholeTable>| version.as_ref().map(|one| one.digest.clone());
        if digest(&before) == digest(&after) {
            return Ok(());
        }
        if let Some(why) = why {
            self.conflict(item, why);
        } else if digest(&before) != base {
            let schemas = [&self.base, &self.work, &self.original];
            match Rebase::of(name, self.versions, schemas, self.left_out)? {
                Some((rebase, conflicts)) => {
                    self.merged.conflicts.extend(conflicts);
                    self.merged
                        .rebases
                        .extend(Some(rebase).filter(|one| !one.is_empty()));
                }
                None => {
                    let there = || self.changed_there(name);
                    let what = match (&before, &after) {
                        (None, _) => {
                            "its schema was changed here, and the original dropped it".to_owned()
                        }
                        (_, None) => {
                            format!("it was dropped here, and the original changed {}", there()?)
                        }
                        (_, Some(_)) if base.is_none() => {
                            "both created one of this name".to_owned()
                        }
                        _ => format!(
                            "its schema was changed here, and the original changed {}",
                            there()?
                        ),
                    };
                    self.conflict(item, &what);
                }
            }
        }
        self.merged.plan.whole.push(TableSwap {
            name: name.to_owned(),
            before,
            after,
        });
        Ok(())
    }

    /// What the original changed in a table or view, in words: it goes where the sandbox's version is taken.
    fn changed_there(&self, name: &str) -> Result<String> {
        let (was, now) = (self.base.tables.get(name), self.original.tables.get(name));
        let Some((was, now)) = was.zip(now).filter(|(was, now)| was == now) else {
            return Ok("its schema".to_owned());
        };
        let (was, now) = ((self.versions.base, was), (self.versions.original, now));
        let mut counts = [0, 0, 0];
        for delta in rows(was, now, &[ALL])? {
            let kind = match (&delta.old, &delta.new) {
                (None, _) => 0,
                (_, Some(_)) => 1,
                (_, None) => 2,
            };
            counts[kind] += 1;
        }
        let [added, changed, deleted] = counts;
        Ok(match counts {
            [0, 0, 0] => "its schema".to_owned(),
            _ => format!("its rows ({added} added, {changed} changed, {deleted} deleted)"),
        })
    }

    fn object(&mut self, one: &ObjectDelta) {
        let (object, item) = (one.either(), one.either().item());
        if self.left_out.contains(&item) {
            return;
        }
        let key = (object.kind.clone(), object.name.clone());
        let now = self.original.objects.get(&key).cloned();
        let sql = |object: &Option<_>| {
            let object: &Option<super::schema::Object> = object;
            object.as_ref().map(|one| one.sql.clone())
        };
        if sql(&now) == sql(&one.new) {
            return;
        }
        let is_whole = self.merged.plan.is_whole(&object.table);
        let needs = one.new.is_some() && !object.owns() && !is_whole;
        if sql(&now) != sql(&one.old) {
            self.conflict(item, "its SQL was changed here and in the original");
        } else if needs && !self.has_owner(object) {
            let what =
                "the original changed the columns of its table, or dropped what it belongs to";
            self.merged.broken.push(Conflict::of(item, what));
        }
        // An undo makes it again, for which the table must have the form that it has now.
        for side in [&one.old, &one.new].into_iter().flatten() {
            if let Some(theirs) = self.table(&side.table)
                && !self.merged.plan.is_whole(&side.table)
            {
                self.number(&theirs);
            }
        }
        self.merged.plan.objects.push(ObjectSwap {
            before: now,
            after: one.new.clone(),
        });
    }

    /// Whether the original has what an index or a trigger belongs to, as the sandbox has it.
    fn has_owner(&self, object: &Object) -> bool {
        let kind = |schema: &Schema| {
            let mut all = schema.of_table(&object.table);
            all.find(|one| one.owns()).map(|one| one.kind.clone())
        };
        let (ours, theirs) = (
            self.work.tables.get(&object.table),
            self.original.tables.get(&object.table),
        );
        let fits = match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                let mut columns = ours.columns.iter();
                columns.all(|column| theirs.columns.contains(column))
            }
            (Some(_), None) => false,
            (None, _) => true,
        };
        fits && kind(&self.work) == kind(&self.original)
    }

    /// Names that come, and that something else has in the original which stays: SQLite would refuse them.
    fn check_names(&mut self) {
        // Tables, views and indexes have their names in common. Letters are the same in either case.
        let key = |one: &Object| (one.kind == "trigger", one.name.to_ascii_lowercase());
        let plan = &self.merged.plan;
        let sides = |side: fn(&TableSwap) -> &Option<WholeTable>| {
            let whole = plan
                .whole
                .iter()
                .filter_map(move |swap| side(swap).as_ref());
            whole.flat_map(|one| &one.objects)
        };
        let single = plan.objects.iter();
        let goes =
            sides(|swap| &swap.before).chain(single.clone().filter_map(|one| one.before.as_ref()));
        let goes: HashSet<(&str, &str)> = goes.map(|one| (&one.kind[..], &one.name[..])).collect();
        let stays = self.original.objects.values();
        let stays = stays.filter(|one| !goes.contains(&(&one.kind[..], &one.name[..])));
        let stays: HashSet<(bool, String)> = stays.map(key).collect();
        let comes = sides(|swap| &swap.after).chain(single.filter_map(|one| one.after.as_ref()));
        let taken = comes.filter(|one| stays.contains(&key(one)));
        let what = "something else in the original has its name";
        let taken: Vec<Conflict> = taken.map(|one| Conflict::of(one.item(), what)).collect();
        self.merged.broken.extend(taken);
    }

    fn setting(&mut self, name: &str, old: &str, new: &str) -> Result<()> {
        let (item, now) = (setting_item(name), setting(self.versions.original, name)?);
        if self.left_out.contains(&item) || now == new {
            return Ok(());
        }
        if now != old {
            self.conflict(
                item,
                &format!("it became {new} here and {now} in the original"),
            );
        }
        self.merged.plan.settings.push(SettingSwap {
            name: name.to_owned(),
            before: now,
            after: new.to_owned(),
        });
        Ok(())
    }

    fn rows(&mut self, name: &str, rows: &[Delta]) -> Result<()> {
        let Some(table) = self.table(name) else {
            return Ok(());
        };
        let number = self.number(&table);
        let mut places = Places::new(self.versions.original, &table)?;
        for delta in rows {
            let item = row_item(name, &delta.key);
            if self.left_out.contains(&item) {
                continue;
            }
            let (rowid, now) = places.find(delta)?;
            let after = match outcome(&table, delta, now.as_ref()) {
                Outcome::There => continue,
                Outcome::Becomes(after) => after,
                Outcome::Conflict(what, after) => {
                    self.conflict(item.clone(), &what);
                    after
                }
            };
            if now == after {
                continue;
            }
            self.merged.rows.push(RowSwap {
                table: number,
                rowid,
                before: now,
                after,
            });
            self.merged.items.push(item);
        }
        Ok(())
    }
}

/// What becomes of a row of which the original holds `now`.
pub(super) fn outcome(table: &Table, delta: &Delta, now: Option<&Row>) -> Outcome {
    let named = |numbers: &[usize]| {
        let names: Vec<&str> = numbers
            .iter()
            .map(|number| table.columns[*number].as_str())
            .collect();
        match names[..] {
            [one] => format!("column {one}"),
            _ => format!("columns {}", names.join(", ")),
        }
    };
    let differing = |a: &Row, b: &Row| -> Vec<usize> {
        (0..table.columns.len())
            .filter(|number| a[*number] != b[*number])
            .collect()
    };
    match (&delta.old, &delta.new, now) {
        (None, Some(new), Some(now)) if new == now => Outcome::There,
        (None, Some(new), Some(now)) => {
            let columns = named(&differing(new, now));
            let what = format!("a row with this key was added here and in the original: {columns}");
            Outcome::Conflict(what, Some(new.clone()))
        }
        (None, new, None) => Outcome::Becomes(new.clone()),
        (Some(_), None, None) if matches!(delta.key, RowKey::Copy(..)) => {
            let what = "it was removed here, and the original no longer has it as it was";
            Outcome::Conflict(what.to_owned(), None)
        }
        (Some(_), None, None) => Outcome::There,
        (Some(old), None, Some(now)) if old == now => Outcome::Becomes(None),
        (Some(old), None, Some(now)) => {
            let columns = named(&differing(old, now));
            let what = format!("it was deleted here, and changed in the original: {columns}");
            Outcome::Conflict(what, None)
        }
        (Some(_), Some(new), None) => {
            let what = "it was changed here, and deleted in the original";
            Outcome::Conflict(what.to_owned(), Some(new.clone()))
        }
        (Some(old), Some(new), Some(now)) => {
            let ours = differing(old, new);
            let mut merged = now.clone();
            for number in &ours {
                merged[*number] = new[*number].clone();
            }
            let twice =
                |number: &usize| now[*number] != old[*number] && now[*number] != new[*number];
            let twice: Vec<usize> = ours.into_iter().filter(twice).collect();
            match twice.is_empty() {
                true => Outcome::Becomes(Some(merged)),
                false => {
                    let what = format!("changed here and in the original: {}", named(&twice));
                    Outcome::Conflict(what, Some(merged))
                }
            }
        }
        (None, None, _) => Outcome::There,
    }
}

/// Where rows are in the original, and where new ones go.
struct Places<'a> {
    of: &'a Database,
    table: &'a Table,
    lookup: Lookup<'a>,
    /// Numbers that rows of this commit have in the original, or will have.
    taken: HashSet<i64>,
    next: Option<i64>,
    /// Rows without a key: read once, where one is not where it was.
    loose: Option<Loose>,
}

impl<'a> Places<'a> {
    fn new(of: &'a Database, table: &'a Table) -> Result<Self> {
        Ok(Self {
            of,
            table,
            lookup: Lookup::new(of, table)?,
            taken: HashSet::new(),
            next: None,
            loose: None,
        })
    }

    /// The row of the original that a delta is about, and its number there; of a new row the number it will have.
    fn find(&mut self, delta: &Delta) -> Result<(Option<i64>, Option<Row>)> {
        let found = match &delta.key {
            RowKey::Values(key) => self.lookup.key(key)?,
            RowKey::Copy(..) => match &delta.old {
                Some(old) => self.copy(old, delta.rowids.0)?,
                None => None,
            },
        };
        if let Some((rowid, row)) = found {
            self.taken.extend(rowid);
            return Ok((rowid, Some(row)));
        }
        Ok((self.free(delta.rowids.1)?, None))
    }

    /// A row with this content that no other delta is about, where it was or anywhere.
    fn copy(&mut self, content: &Row, rowid: Option<i64>) -> Result<Option<(Option<i64>, Row)>> {
        if let Some(rowid) = rowid.filter(|rowid| !self.taken.contains(rowid))
            && let Some(found) = self.lookup.number(rowid)?
            && found.1 == *content
        {
            return Ok(Some(found));
        }
        let loose = match &mut self.loose {
            Some(loose) => loose,
            none => none.insert(Loose::read(self.of, self.table)?),
        };
        let free = loose.take(content, |rowid| !self.taken.contains(&rowid));
        Ok(free.map(|rowid| (Some(rowid), content.clone())))
    }

    /// A number for a new row: the one it has in the sandbox, if that is free.
    fn free(&mut self, wanted: Option<i64>) -> Result<Option<i64>> {
        let (Some(wanted), Some(name)) = (wanted, &self.table.rowid) else {
            return Ok(None);
        };
        if !self.taken.contains(&wanted) && self.lookup.number(wanted)?.is_none() {
            self.taken.insert(wanted);
            return Ok(Some(wanted));
        }
        if self.table.alias.is_some() {
            return Ok(Some(wanted));
        }
        let next = match self.next {
            Some(next) => next,
            None => {
                let sql = format!("SELECT max({name}) FROM {}", self.table.sql_name());
                let last = self.of.sql.query_row(&sql, [], |row| row.get(0));
                let last: Option<i64> = last.map_err(self.of.failed("look a number up"))?;
                last.unwrap_or(0).saturating_add(1)
            }
        };
        let mut next = next;
        while self.taken.contains(&next) {
            next = next.saturating_add(1);
        }
        self.taken.insert(next);
        self.next = Some(next.saturating_add(1));
        Ok(Some(next))
    }
}

/// Everything that moved in the original since the base, which counts where the original is to be as it was.
pub(super) fn moved(versions: &Versions<'_>) -> Result<Vec<Conflict>> {
    let found = Difference::between(versions.base, versions.original)?;
    let conflict = |path| Conflict::of(path, "the original changed it");
    let changes = found.changes();
    Ok(changes.into_iter().map(|one| conflict(one.path)).collect())
}

/// The values of some columns of a row; none where one is NULL.
pub(super) fn values(row: &Row, columns: &[usize]) -> Option<Vec<Value>> {
    let values: Vec<Value> = columns.iter().map(|one| row[*one].clone()).collect();
    (!values.contains(&Value::Null)).then_some(values)
}
