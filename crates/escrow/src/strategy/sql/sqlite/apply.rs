//! Carries a plan out, or takes it back, in one transaction of SQLite on the live original (rule Q5).
//!
//! No table of ours says whether the transaction was committed (rule Q1). A mark in the area is made before the transaction
//! ends, and another one after it: without the first nothing was done, with the second all of it was. Between them what the original
//! holds tells which ([`happened`]).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::check_names;
use super::connect::{Database, Use};
use super::diff::{Lookup, each, table_digest};
use super::full_text::Index;
use super::interrupted::{happened, mark_text};
use super::loose::{Strays, is_loose};
use super::merge::values;
use super::plan::{BEGUN, DONE, NEW, OLD, OpenPlan, UNDOING, UNDONE, WholeTable};
use super::references::{self, Reference};
use super::schema::{Object, Schema, Table, literal, setting};
use super::write::{insert, make};
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::record::RowSwap;
use crate::strategy::sql::{Row, Value, setting_item, table_item};
use crate::strategy::{PathSample, RollbackReport};

/// Which version is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The one after.
    Forward,
    /// The one before.
    Back,
}

impl Direction {
    /// The file that holds the version that is made.
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::Forward => NEW,
            Self::Back => OLD,
        }
    }

    /// The marks that it may be made, and that it is.
    pub(super) fn marks(self) -> (&'static [u8], &'static [u8]) {
        match self {
            Self::Forward => (BEGUN, DONE),
            Self::Back => (UNDOING, UNDONE),
        }
    }

    /// The version that is looked for, and the one that is made.
    pub(super) fn of<'v, T>(self, before: &'v T, after: &'v T) -> (&'v T, &'v T) {
        match self {
            Self::Forward => (before, after),
            Self::Back => (after, before),
        }
    }
}

/// Which version the original holds of something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The one that is to become another.
    From,
    /// The one that it is to become.
    To,
    /// Neither.
    Other,
}

pub(super) fn holds<T: PartialEq>(now: &T, from: &T, to: &T) -> Holds {
    match () {
        () if now == from => Holds::From,
        () if now == to => Holds::To,
        () => Holds::Other,
    }
}

/// What the original holds of everything in a plan.
pub(super) struct State {
    pub(super) rows: Vec<Holds>,
    pub(super) whole: Vec<Holds>,
    pub(super) objects: Vec<Holds>,
    pub(super) settings: Vec<Holds>,
    /// What is neither version.
    pub(super) others: Vec<ResourcePath>,
    /// The tables that have another form than in the plan: none of their rows is looked for.
    pub(super) reshaped: Vec<ResourcePath>,
    /// Rows without a key that have another number now, by their number in the plan.
    pub(super) elsewhere: HashMap<usize, i64>,
}

impl State {
    /// Of all of it, in one order. Rows are last, since those of the last table may be missing.
    pub(super) fn all(&self) -> impl Iterator<Item = Holds> + '_ {
        let lists = [&self.settings, &self.objects, &self.whole, &self.rows];
        lists.into_iter().flatten().copied()
    }

    fn any(&self, one: Holds) -> bool {
        self.all().any(|holds| holds == one)
    }

    /// Everything that another process changed.
    fn moved(&self) -> impl Iterator<Item = &ResourcePath> {
        self.reshaped.iter().chain(&self.others)
    }
}

/// The item of a row of a plan.
pub(super) fn item(table: &Table, swap: &RowSwap) -> ResourcePath {
    let row = swap.after.as_ref().or(swap.before.as_ref());
    row.map_or_else(
        || table_item(&table.name),
        |row| references::item(table, swap.rowid, row),
    )
}

/// The row that a swap is about, as the original holds it, with its number.
pub(super) fn find(
    lookup: &mut Lookup<'_>,
    table: &Table,
    swap: &RowSwap,
) -> Result<(Option<i64>, Option<Row>)> {
    let either = swap.before.as_ref().or(swap.after.as_ref());
    let found = match either.and_then(|row| table.key(swap.rowid, row)) {
        Some(key) => lookup.key(&key)?,
        None => match swap.rowid {
            Some(rowid) => lookup.number(rowid)?,
            None => None,
        },
    };
    Ok(found.map_or((swap.rowid, None), |(rowid, row)| (rowid, Some(row))))
}

/// Does something with each row of a plan, in their order, where its table has the form that it has in the plan.
pub(super) fn each_row(
    plan: &OpenPlan,
    original: &Database,
    reshaped: &[ResourcePath],
    mut work: impl FnMut(usize, &RowSwap, &Table, &mut Lookup<'_>) -> Result<()>,
) -> Result<()> {
    let lookups = plan.plan.tables.iter().map(|table| {
        let same = !reshaped.contains(&table_item(&table.name));
        same.then(|| Lookup::new(original, table)).transpose()
    });
    let mut lookups: Vec<Option<Lookup<'_>>> = lookups.collect::<Result<_>>()?;
    for (number, swap) in plan.rows()?.enumerate() {
        let swap = swap?;
        let table = plan.table(&swap)?;
        if let Some(lookup) = &mut lookups[swap.table as usize] {
            work(number, &swap, table, lookup)?;
        }
    }
    Ok(())
}

/// Looks everything of a plan up. `is_there` says that the version which is looked for is known to be there: then another process changed
/// what is not found of rows without a key. Otherwise that may have been done already.
pub(super) fn state(
    plan: &OpenPlan,
    original: &Database,
    direction: Direction,
    is_there: bool,
) -> Result<State> {
    let schema = Schema::read(original)?;
    let mut state = State {
        rows: Vec::new(),
        whole: Vec::new(),
        objects: Vec::new(),
        settings: Vec::new(),
        others: Vec::new(),
        reshaped: Vec::new(),
        elsewhere: HashMap::new(),
    };
    let mut strays = Strays::new(match is_there {
        true => Holds::Other,
        false => Holds::To,
    });
    let tables = plan.plan.tables.iter();
    let reshaped = tables.filter(|table| schema.tables.get(&table.name) != Some(table));
    state.reshaped = reshaped.map(|table| table_item(&table.name)).collect();
    each_row(
        plan,
        original,
        &state.reshaped,
        |number, swap, table, lookup| {
            let (_, now) = find(lookup, table, swap)?;
            let (from, to) = direction.of(&swap.before, &swap.after);
            let held = match is_loose(table, swap) {
                true => strays.holds(number, swap, from.as_ref(), now.as_ref()),
                false => holds(&now, from, to),
            };
            if held == Holds::Other && !is_loose(table, swap) {
                state.others.push(item(table, swap));
            }
            state.rows.resize(number, Holds::Other);
            state.rows.push(held);
            Ok(())
        },
    )?;
    strays.find(plan, original, &mut state)?;
    for swap in &plan.plan.whole {
        let digest = |side: &Option<WholeTable>| side.as_ref().map(|one| one.digest.clone());
        let (before, after) = (digest(&swap.before), digest(&swap.after));
        let now = table_digest(original, &schema, &swap.name)?;
        let (from, to) = direction.of(&before, &after);
        state.whole.push(holds(&now, from, to));
        if state.whole.last() == Some(&Holds::Other) {
            state.others.push(table_item(&swap.name));
        }
    }
    for swap in &plan.plan.objects {
        let Some(object) = swap.after.as_ref().or(swap.before.as_ref()) else {
            continue;
        };
        let sql = |side: &Option<Object>| side.as_ref().map(|one| one.sql.clone());
        let (before, after) = (sql(&swap.before), sql(&swap.after));
        let key = (object.kind.clone(), object.name.clone());
        let now = schema.objects.get(&key).map(|one| one.sql.clone());
        let (from, to) = direction.of(&before, &after);
        let held = holds(&now, from, to);
        let misfit = held == Holds::From && to.is_some() && !fits(plan, &schema, &state, object);
        state.objects.push(if misfit { Holds::Other } else { held });
        if state.objects.last() == Some(&Holds::Other) {
            state.others.push(object.item());
        }
    }
    for swap in &plan.plan.settings {
        let now = setting(original, &swap.name)?;
        let (from, to) = direction.of(&swap.before, &swap.after);
        state.settings.push(holds(&now, from, to));
        if state.settings.last() == Some(&Holds::Other) {
            state.others.push(setting_item(&swap.name));
        }
    }
    Ok(state)
}

/// Whether what an index or a trigger belongs to is there, or is made with it, and has the form that it needs.
fn fits(plan: &OpenPlan, schema: &Schema, state: &State, object: &Object) -> bool {
    let mut all = schema.objects.values();
    let owned = all.any(|one| one.name == object.table) || plan.plan.is_whole(&object.table);
    owned && !state.reshaped.contains(&table_item(&object.table))
}

fn moved(path: &ResourcePath) -> StrategyError {
    StrategyError::Moved {
        path: path.clone(),
        what: "another program changed it in the original".to_owned(),
    }
}

/// Does something in one transaction that ends with a mark, and makes another one when it is committed. Where SQLite refuses to commit
/// it, such as while another process reads or when the disk is full, the mark goes again.
fn in_transaction(
    plan: &OpenPlan,
    original: &Database,
    direction: Direction,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (mark, end) = direction.marks();
    let was_marked = plan.is_marked(mark)?;
    let done = original.transaction(true, work);
    if done.is_err() && !was_marked && plan.is_marked(mark)? {
        // The transaction leaves nothing as it was; an error after its last step may come too late to stop it.
        let now = original.transaction(false, || happened(plan, original, direction));
        if now.is_ok_and(|happened| !happened) {
            plan.unmark(mark)?;
        }
    }
    done.and_then(|()| plan.mark(end, b""))
}

/// Carries a commit out, or finds that it was.
pub(super) fn commit(plan: &OpenPlan) -> Result<()> {
    if plan.is_marked(DONE)? {
        return Ok(());
    }
    let original = open(plan)?;
    in_transaction(plan, &original, Direction::Forward, || {
        if plan.is_marked(BEGUN)? && happened(plan, &original, Direction::Forward)? {
            // What others did since is theirs.
            return Ok(());
        }
        let state = state(plan, &original, Direction::Forward, true)?;
        if let Some(other) = state.moved().next() {
            return Err(moved(other));
        }
        if let Some(other) = plan.item_of(&state, Holds::To)? {
            return Err(moved(&other));
        }
        make_checked(plan, &original, &state, Direction::Forward)?;
        plan.mark(
            BEGUN,
            &mark_text(plan, &original, &state, Direction::Forward)?,
        )
    })
}

/// Makes what a plan says in a transaction that is open, on rows that are as they were; says what its mark has to say.
pub(super) fn remake(plan: &OpenPlan, original: &Database) -> Result<Vec<u8>> {
    let state = state(plan, original, Direction::Forward, true)?;
    if let Some(other) = state.moved().next() {
        return Err(moved(other));
    }
    make(plan, original, &state, Direction::Forward)?;
    mark_text(plan, original, &state, Direction::Forward)
}

/// Stages tables that are brought over as a whole in a new database.
pub(super) fn stage_tables<'t>(
    from: &Database,
    at: &Path,
    tables: impl Iterator<Item = &'t WholeTable>,
) -> Result<()> {
    let to = super::connect::empty(at)?;
    let encoding = literal(&setting(from, "encoding")?);
    for pragma in [
        format!("encoding = {encoding}"),
        "foreign_keys = OFF".to_owned(),
    ] {
        to.run("stage a table", &format!("PRAGMA {pragma}"))?;
    }
    to.transaction(true, || {
        for WholeTable { table, objects, .. } in tables {
            let Some(table) = table else {
                continue;
            };
            for object in objects.iter().filter(|one| one.is_table()) {
                to.run("stage a table", &object.sql)?;
            }
            each(from, table, |rowid, row| insert(&to, table, rowid, &row))?;
        }
        Ok(())
    })
}

impl OpenPlan {
    /// Something of which the original holds such a version.
    fn item_of(&self, state: &State, wanted: Holds) -> Result<Option<ResourcePath>> {
        let place = |all: &[Holds]| all.iter().position(|one| *one == wanted);
        if let Some(number) = place(&state.rows)
            && let Some(swap) = self.rows()?.nth(number).transpose()?
        {
            return Ok(Some(item(self.table(&swap)?, &swap)));
        }
        let whole = place(&state.whole).map(|number| table_item(&self.plan.whole[number].name));
        let object = || Some(self.plan.objects[place(&state.objects)?].item());
        let setting = || {
            Some(setting_item(
                &self.plan.settings[place(&state.settings)?].name,
            ))
        };
        Ok(whole.or_else(object).or_else(setting))
    }
}

/// Whether a commit was carried out, and not taken back yet.
fn is_there(plan: &OpenPlan, original: &Database) -> Result<bool> {
    match () {
        () if !plan.is_marked(BEGUN)? || plan.is_marked(UNDONE)? => Ok(false),
        // It was found to be carried out before that mark was made.
        () if plan.is_marked(UNDOING)? => Ok(!happened(plan, original, Direction::Back)?),
        () => Ok(plan.is_marked(DONE)? || happened(plan, original, Direction::Forward)?),
    }
}

/// Takes a commit back, as far as no other process changed what it wrote.
pub(super) fn undo(plan: &OpenPlan) -> Result<RollbackReport> {
    let mut report = RollbackReport::default();
    if !plan.is_marked(BEGUN)? {
        return Ok(report);
    }
    let original = open(plan)?;
    in_transaction(plan, &original, Direction::Back, || {
        let is_there = is_there(plan, &original)?;
        let state = state(plan, &original, Direction::Back, is_there)?;
        let there = Location::from(plan.original.as_path());
        let kept = state.moved().map(|item| (item.clone(), there.clone()));
        report.kept = kept.collect();
        // What others made of it since it was undone is theirs.
        if !is_there || !state.any(Holds::From) {
            return Ok(());
        }
        report.paths = make_checked(plan, &original, &state, Direction::Back)?;
        plan.mark(
            UNDOING,
            &mark_text(plan, &original, &state, Direction::Back)?,
        )
    })?;
    Ok(report)
}

/// Where the original moved on since the commit, or would refuse what it was. An undo is tried out and given up, so that neither a lock nor
/// a constraint stops it when other members are taken back already.
pub(super) fn check_undo(plan: &OpenPlan) -> Result<Vec<Conflict>> {
    check_names(plan.original.as_path())?;
    let original = open(plan)?;
    original.trial(true, || {
        if !is_there(plan, &original)? {
            return Ok(Vec::new());
        }
        let state = state(plan, &original, Direction::Back, true)?;
        let reshaped = "the original's table has other columns than when the commit was made";
        let changed = "it was changed in the original since the commit";
        let moved = state.reshaped.iter().map(|item| (item, reshaped));
        let moved = moved.chain(state.others.iter().map(|item| (item, changed)));
        let moved: Vec<Conflict> = moved
            .map(|(item, what)| Conflict::of(item.clone(), what))
            .collect();
        if !moved.is_empty() || !state.any(Holds::From) {
            return Ok(moved);
        }
        match make_checked(plan, &original, &state, Direction::Back) {
            Ok(_) => Ok(Vec::new()),
            Err(StrategyError::Contradicted { path, what }) => Ok(vec![Conflict::of(path, &what)]),
            Err(error) => Err(error),
        }
    })
}

fn open(plan: &OpenPlan) -> Result<Database> {
    let original = Database::open(&plan.original, Use::Merge)?;
    // What is decided survives a power cut, whatever the application prefers: EXTRA also syncs that the journal is gone.
    original.run("make commits durable", "PRAGMA synchronous = EXTRA")?;
    Ok(original)
}

/// Makes the other version, unless that leaves a reference without what it refers to that was not so before, and is not so in the
/// sandbox.
fn make_checked(
    plan: &OpenPlan,
    original: &Database,
    state: &State,
    direction: Direction,
) -> Result<PathSample> {
    check_full_text(plan, original)?;
    // What nothing could follow led nowhere as well.
    let before = broken(plan, original, |one| {
        one.is_followed || is_remade(plan, one)
    })?;
    let done = make(plan, original, state, direction)?;
    let is_new = |mark: &String| !before.contains_key(mark) && !plan.plan.dangling.contains(mark);
    let after = broken(plan, original, |one| one.is_followed)?;
    if let Some((_, (path, parent))) = after.into_iter().find(|(mark, _)| is_new(mark)) {
        return Err(leads_nowhere(path, &parent));
    }
    let schema = Schema::read(original)?;
    let references = Reference::all(original, &schema, |_| true)?;
    let ends: Vec<_> = references
        .iter()
        .filter(|one| is_touched(plan, one) && !is_scanned(plan, one))
        .filter_map(|one| {
            let child = one.child(original, &schema)?;
            Some((one, child, one.parent(original, &schema)))
        })
        .collect();
    let mut gone: Vec<Vec<Vec<Value>>> = vec![Vec::new(); ends.len()];
    each_row(plan, original, &state.reshaped, |number, swap, table, _| {
        if state.rows.get(number) != Some(&Holds::From) {
            return Ok(());
        }
        let (from, to) = direction.of(&swap.before, &swap.after);
        for ((reference, child, parent), gone) in ends.iter().zip(&mut gone) {
            let leads = |held: &[Value]| parent.as_ref().map_or(Ok(false), |end| end.has(held));
            // What a row has in these columns, and had not or has no more.
            let only = |one: &Option<Row>, other: &Option<Row>, columns: &[usize]| {
                let held = |row: &Option<Row>| values(row.as_ref()?, columns);
                held(one).filter(|value| held(other).as_ref() != Some(value))
            };
            if reference.child == table.name
                && let Some(new) = only(to, from, &child.columns)
                && is_new(&reference.mark(&new))
                && !leads(&new)?
            {
                return Err(leads_nowhere(item(table, swap), &reference.parent));
            }
            if let Some(end) = parent.as_ref().filter(|_| reference.parent == table.name)
                && let Some(value) = only(from, to, &end.columns)
                && !leads(&value)?
            {
                gone.push(value);
            }
        }
        Ok(())
    })?;
    for ((reference, child, _), gone) in ends.iter().zip(&gone) {
        let gone: Vec<&[Value]> = gone.iter().map(Vec::as_slice).collect();
        let stays = |_, row: &Row| {
            let held = values(row, &child.columns);
            held.is_some_and(|held| is_new(&reference.mark(&held)))
        };
        if let Some((rowid, row)) = child.find(&gone, stays)? {
            let path = references::item(child.table, rowid, &row);
            return Err(leads_nowhere(path, &reference.parent));
        }
    }
    Ok(done)
}

/// Refuses to rebuild a full-text table that would find other rows then. One that goes or comes is another one.
fn check_full_text(plan: &OpenPlan, original: &Database) -> Result<()> {
    let schema = Schema::read(original)?;
    for one in plan.full_text(original, &schema)? {
        if !plan.plan.is_whole(&one.name) && one.index(original)? == Index::Other {
            return Err(StrategyError::Contradicted {
                path: table_item(&one.name),
                what: one.refusal("the original"),
            });
        }
    }
    Ok(())
}

/// Whether a commit changes rows at an end of a reference, or brings a whole table over there.
fn is_touched(plan: &OpenPlan, reference: &Reference) -> bool {
    let has_rows = |name: &str| plan.plan.tables.iter().any(|one| one.name == name);
    let ends = [&reference.child, &reference.parent];
    ends.iter()
        .any(|name| has_rows(name) || plan.plan.is_whole(name))
}

/// Whether all rows at the ends of a reference are looked at, not only those that change: a whole table is brought over, or only SQLite can
/// tell which values of the one are those of the other.
fn is_scanned(plan: &OpenPlan, reference: &Reference) -> bool {
    !reference.alike || is_remade(plan, reference)
}

/// Whether an end of a reference is brought over as a whole.
fn is_remade(plan: &OpenPlan, reference: &Reference) -> bool {
    let ends = [&reference.child, &reference.parent];
    ends.iter().any(|name| plan.plan.is_whole(name))
}

/// The references of which all rows are looked at that lead nowhere, by their marks: a row of each, and the table that it refers to.
fn broken(
    plan: &OpenPlan,
    original: &Database,
    wanted: impl Fn(&Reference) -> bool,
) -> Result<BTreeMap<String, (ResourcePath, String)>> {
    let mut all = BTreeMap::new();
    let schema = Schema::read(original)?;
    let references = Reference::declared(original, &schema, |_| true)?;
    let scanned = |one: &&Reference| wanted(one) && is_touched(plan, one) && is_scanned(plan, one);
    for one in references.iter().filter(scanned) {
        for (mark, item) in one.broken(original, &schema)? {
            all.entry(mark).or_insert((item, one.parent.clone()));
        }
    }
    Ok(all)
}

fn leads_nowhere(path: ResourcePath, parent: &str) -> StrategyError {
    StrategyError::Contradicted {
        path,
        what: format!("it would refer to a row of {parent} that is not there"),
    }
}
