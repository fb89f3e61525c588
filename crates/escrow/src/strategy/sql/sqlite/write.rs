//! Writes the other version of a plan into the original, within a transaction that is open.
//!
//! Definitions go before the rows and come after them, so that no trigger runs and no index is in the way.

use std::collections::BTreeMap;

use rusqlite::ffi::Error as Failure;
use rusqlite::{ErrorCode, params_from_iter};

use super::apply::{Direction, Holds, State, each_row, find, item};
use super::connect::{Database, Use};
use super::diff::{each, table_digest};
use super::loose::is_loose;
use super::plan::{OpenPlan, SettingSwap, TableSwap, WholeTable};
use super::references;
use super::schema::{Identity, Object, Schema, Table, literal, quoted};
use crate::model::ResourcePath;
use crate::model::text::Location;
use crate::strategy::PathSample;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::{Row, Value, setting_item, table_item};

/// What SQLite refused; a constraint is the original's, and the same rows would break it again.
fn refused(
    original: &Database,
    item: ResourcePath,
    what: &str,
) -> impl FnOnce(rusqlite::Error) -> StrategyError {
    let failed = original.failed(what);
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) => StrategyError::Contradicted {
            path: item,
            what: error.to_string(),
        },
        _ => failed(error),
    }
}

/// Runs the SQL of an object, which SQLite took before: where it does not now, the original has something else of its name, or no longer
/// what it belongs to.
fn create(original: &Database, object: &Object) -> Result<()> {
    let what = format!("create {}", object.name);
    let refused = |error: rusqlite::Error| match error {
        rusqlite::Error::SqlInputError { msg: what, .. }
        | rusqlite::Error::SqliteFailure(
            Failure {
                code: ErrorCode::Unknown,
                ..
            },
            Some(what),
        ) => StrategyError::Contradicted {
            path: object.item(),
            what,
        },
        error => refused(original, object.item(), &what)(error),
    };
    let done = original.sql.execute(&object.sql, []);
    done.map(drop).map_err(refused)
}

/// Makes the other version of everything that holds the one that is looked for. Everything goes before anything comes: a name may pass
/// from one to another.
pub(super) fn make(
    plan: &OpenPlan,
    original: &Database,
    state: &State,
    direction: Direction,
) -> Result<PathSample> {
    let mut done = PathSample::default();
    let mut counted = super::diff::counters(original)?;
    let objects = plan.plan.objects.iter().zip(&state.objects);
    let objects: Vec<_> = objects
        .filter(|(_, held)| **held == Holds::From)
        .map(|(swap, _)| direction.of(&swap.before, &swap.after))
        .collect();
    let whole = plan.plan.whole.iter().zip(&state.whole);
    let whole: Vec<&TableSwap> = whole
        .filter(|(_, held)| **held == Holds::From)
        .map(|(swap, _)| swap)
        .collect();
    let gone = objects.iter().filter_map(|(from, _)| from.as_ref());
    for object in in_order(gone).into_iter().rev() {
        drop_object(original, object)?;
        done.add(&object.item());
    }
    // A full-text table is dropped while there is what it takes its text from, and made once that is there again.
    let mut drops = whole.clone();
    drops.sort_by_key(|swap| !is_index(direction.of(&swap.before, &swap.after).0));
    for swap in drops {
        let (from, _) = direction.of(&swap.before, &swap.after);
        let owner = from.as_ref().and_then(WholeTable::owner);
        owner.map_or(Ok(()), |owner| drop_object(original, owner))?;
        done.add(&table_item(&swap.name));
    }
    let staged = match plan.plan.stages_rows() {
        true => Some(Database::open(
            &plan.version(direction.version()),
            Use::Read,
        )?),
        false => None,
    };
    // What is of a whole table, and by itself too, comes once.
    let mut comes: BTreeMap<(&str, &str), &Object> = BTreeMap::new();
    let mut fills = whole.clone();
    fills.sort_by_key(|swap| is_index(direction.of(&swap.before, &swap.after).1));
    for swap in fills {
        if let (_, Some(to)) = direction.of(&swap.before, &swap.after) {
            fill(original, staged.as_ref(), to)?;
            ahead(&mut counted, &swap.name, to.counter);
            let rest = to.objects.iter().filter(|one| !one.is_table());
            comes.extend(rest.map(|one| ((one.kind.as_str(), one.name.as_str()), one)));
        }
    }
    swap_rows(plan, original, state, direction, &mut done)?;
    for object in objects.iter().filter_map(|(_, to)| to.as_ref()) {
        comes.insert((&object.kind, &object.name), object);
        done.add(&object.item());
    }
    for object in in_order(comes.into_values()) {
        create(original, object)?;
    }
    // Of a table nothing is read but itself, so one look at the definitions is enough for all of them.
    let made = match whole.is_empty() {
        true => Schema::default(),
        false => Schema::read(original)?,
    };
    for swap in &whole {
        check_made((plan, direction), (original, &made), swap)?;
    }
    for (swap, held) in plan.plan.settings.iter().zip(&state.settings) {
        if *held == Holds::From {
            set(original, swap, direction)?;
            done.add(&setting_item(&swap.name));
        }
    }
    if direction == Direction::Forward {
        for (name, wanted) in &plan.plan.counters {
            ahead(&mut counted, name, Some(*wanted));
        }
    }
    set_counters(original, &counted)?;
    let schema = Schema::read(original)?;
    for one in plan.full_text(original, &schema)? {
        one.rebuild(original)?;
    }
    Ok(done)
}

/// Whether a version is a table without rows of its own.
fn is_index(side: &Option<WholeTable>) -> bool {
    let index = side.as_ref().filter(|one| one.table.is_none());
    index
        .and_then(WholeTable::owner)
        .is_some_and(Object::is_table)
}

/// Indexes first, then views, then triggers, which may refer to both.
fn in_order<'o>(objects: impl Iterator<Item = &'o Object>) -> Vec<&'o Object> {
    let mut objects: Vec<&Object> = objects.collect();
    objects.sort_by_key(|one| match one.kind.as_str() {
        "table" => 0,
        "index" => 1,
        "view" => 2,
        _ => 3,
    });
    objects
}

fn drop_object(original: &Database, object: &Object) -> Result<()> {
    let kind = match object.kind.as_str() {
        "index" => "INDEX",
        "view" => "VIEW",
        "trigger" => "TRIGGER",
        _ => "TABLE",
    };
    let sql = format!("DROP {kind} main.{}", quoted(&object.name));
    original.run(&format!("drop {}", object.name), &sql)
}

/// Makes a table with the rows that were staged. They are read through a connection of their own: what is attached to one that holds a
/// transaction would stay there until its end.
fn fill(original: &Database, staged: Option<&Database>, to: &WholeTable) -> Result<()> {
    for object in to.objects.iter().filter(|one| one.is_table()) {
        create(original, object)?;
    }
    match (&to.table, staged) {
        (Some(table), Some(staged)) => each(staged, table, |rowid, row| {
            insert(original, table, rowid, &row)
        }),
        _ => Ok(()),
    }
}

/// What was staged is only now read, so it is only now that it can be told from something else in its place.
fn check_made(
    (plan, direction): (&OpenPlan, Direction),
    (original, schema): (&Database, &Schema),
    swap: &TableSwap,
) -> Result<()> {
    let (_, to) = direction.of(&swap.before, &swap.after);
    let made = table_digest(original, schema, &swap.name)?;
    match made == to.as_ref().map(|to| to.digest.clone()) {
        true => Ok(()),
        false => Err(StrategyError::Altered {
            path: Location::from(plan.version(direction.version())),
        }),
    }
}

/// Removes every row that goes or changes, then puts in every row that comes or changed: so values that must be unique
/// can be exchanged between rows. Then each is read back.
fn swap_rows(
    plan: &OpenPlan,
    original: &Database,
    state: &State,
    direction: Direction,
    done: &mut PathSample,
) -> Result<()> {
    let wanted = |number: usize| state.rows.get(number) == Some(&Holds::From);
    let reshaped = &state.reshaped;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        if wanted(number) {
            let (from, _) = direction.of(&swap.before, &swap.after);
            let (rowid, now) = match state.elsewhere.get(&number) {
                Some(rowid) => (Some(*rowid), lookup.number(*rowid)?.map(|(_, row)| row)),
                None => find(lookup, table, swap)?,
            };
            // Where nothing was, another row may have the number now.
            if let Some(now) = now.filter(|_| from.is_some()) {
                remove(original, table, rowid, &now)?;
            }
            done.add(&item(table, swap));
        }
        Ok(())
    })?;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        let (_, to) = direction.of(&swap.before, &swap.after);
        if let Some(row) = to.as_ref().filter(|_| wanted(number)) {
            let free = match swap.rowid {
                Some(rowid) => lookup.number(rowid)?.is_none(),
                None => false,
            };
            let rowid = swap.rowid.filter(|_| free || table.alias.is_some());
            insert(original, table, rowid, row)?;
        }
        Ok(())
    })?;
    each_row(plan, original, reshaped, |number, swap, table, lookup| {
        let (_, to) = direction.of(&swap.before, &swap.after);
        let keyed = !is_loose(table, swap);
        match wanted(number) && keyed && find(lookup, table, swap)?.1 != *to {
            true => Err(StrategyError::Database {
                at: original.at().clone(),
                what: format!("bring '{}' over", item(table, swap)),
                said: "the original stores it in another way".to_owned(),
            }),
            false => Ok(()),
        }
    })
}

pub(super) fn remove(
    original: &Database,
    table: &Table,
    rowid: Option<i64>,
    row: &Row,
) -> Result<()> {
    let (name, what) = (table.sql_name(), "delete a row");
    let done = match (&table.rowid, rowid, &table.identity) {
        (Some(column), Some(rowid), _) => {
            let sql = format!("DELETE FROM {name} WHERE {column} = ?1");
            let delete = original.sql.prepare_cached(&sql);
            delete.and_then(|mut delete| delete.execute([rowid]))
        }
        (_, _, Identity::Key(key)) => {
            let terms: Vec<String> = key
                .iter()
                .enumerate()
                .map(|(number, one)| format!("{} IS ?{}", quoted(&table.columns[*one]), number + 1))
                .collect();
            let sql = format!("DELETE FROM {name} WHERE {}", terms.join(" AND "));
            let values = key.iter().map(|one| &row[*one]);
            let delete = original.sql.prepare_cached(&sql);
            delete.and_then(|mut delete| delete.execute(params_from_iter(values)))
        }
        _ => Ok(0),
    };
    done.map(drop).map_err(original.failed(what))
}

pub(super) fn insert(
    original: &Database,
    table: &Table,
    rowid: Option<i64>,
    row: &Row,
) -> Result<()> {
    let number = rowid.map_or(Value::Null, Value::Integer);
    let done = original
        .sql
        .prepare_cached(&table.insert())
        .and_then(|mut insert| insert.execute(params_from_iter([&number].into_iter().chain(row))));
    done.map(drop).map_err(|error| {
        let what = format!("insert a row into {}", table.name);
        refused(original, references::item(table, rowid, row), &what)(error)
    })
}

fn set(original: &Database, swap: &SettingSwap, direction: Direction) -> Result<()> {
    let (_, to) = direction.of(&swap.before, &swap.after);
    let sql = format!("PRAGMA main.{} = {}", swap.name, literal(to));
    original.run(&format!("set {}", swap.name), &sql)
}

/// Moves a counter forward, unless it is further already.
fn ahead(counted: &mut BTreeMap<String, i64>, name: &str, wanted: Option<i64>) {
    if let Some(wanted) = wanted {
        let now = counted.entry(name.to_owned()).or_insert(wanted);
        *now = wanted.max(*now);
    }
}

/// Brings counters to at least these values. They never go back, also where a table was made anew: a number that was given
/// out once is not given out again.
fn set_counters(original: &Database, wanted: &BTreeMap<String, i64>) -> Result<()> {
    let there = super::diff::counters(original)?;
    let schema = Schema::read(original)?;
    for (name, wanted) in wanted {
        let done = match there.get(name) {
            Some(now) if now >= wanted => Ok(0),
            Some(_) => original.sql.execute(
                "UPDATE sqlite_sequence SET seq = ?2 WHERE name = ?1",
                (name, wanted),
            ),
            None if schema.counts(name) => original.sql.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)",
                (name, wanted),
            ),
            None => Ok(0),
        };
        done.map_err(original.failed("bring a counter forward"))?;
    }
    Ok(())
}
