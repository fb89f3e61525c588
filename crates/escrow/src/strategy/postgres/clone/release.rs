//! How what a clone changed comes into the original, and back out of it: in one transaction, on one state of the original. It finds
//! every row as the plan has it, or nothing is written. What it writes is locked for others from then on, also while it is
//! prepared, so that no other client comes between (rules C15, Q2).
//!
//! No trigger of the original runs: each has run in the clone, and what it did is among the rows. Constraints are checked.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::{Row, RowKey, Value, identifier, table_item};
use super::super::connect::{Connection, PgError, PgResult};
use super::super::failed;
use super::super::holder::changes::shown;
use super::super::holder::redo::{ORDERS, Redo, sql_value};
use super::super::session::keep_number;
use super::super::triggers::Triggers;
use super::databases::Original;
use super::plan::{NUMBER, OpenPlan, UNDO_NUMBER};
use super::programs::Programs;
use super::refused;
use super::rows::{self, Changed, Compared, copies, fit, present};
use super::schema::{Schema, define};
use super::unplanned::Watch;
use crate::model::{Conflict, ResourcePath};

/// How the rows that are changed are written: a value may pass from a table to one that refers to it or the other way round, and from a row
/// of a table to the next or the one before.
#[derive(Clone, Copy)]
struct Way {
    tables_backwards: bool,
    rows_backwards: bool,
    /// All of them go, and come anew: two may exchange a value then. What refers to one forbids it, or follows it, which is seen.
    anew: bool,
}

const AS_FOUND: Way = Way {
    tables_backwards: false,
    rows_backwards: false,
    anew: false,
};

/// Each of them is tried with removals first and last, until the original takes one.
const WAYS: [Way; 5] = [
    AS_FOUND,
    Way {
        tables_backwards: true,
        rows_backwards: true,
        ..AS_FOUND
    },
    Way {
        rows_backwards: true,
        ..AS_FOUND
    },
    Way {
        tables_backwards: true,
        ..AS_FOUND
    },
    Way {
        anew: true,
        ..AS_FOUND
    },
];

/// With which names rows are written: functions of constraints, indexes and so on find what they find for any client of the database.
const AS_CLIENTS: &str = "SELECT pg_catalog.set_config('search_path', pg_catalog.concat_ws(', ', 'pg_catalog', nullif(reset_val, '')), true) \
    FROM pg_catalog.pg_settings WHERE name = 'search_path'";

/// With which names they are read and things are defined: the same ones on every connection. What a dump names without a schema is of the
/// catalog, and no other one may fit better.
const AS_OURSELVES: &str = "SET LOCAL search_path TO ''";

/// What the original refuses because of what others did is a conflict; the rest is a failure.
fn refused(error: PgError) -> StrategyError {
    let code = error.code.as_deref().unwrap_or_default();
    match code {
        _ if code.starts_with("23") => StrategyError::NotTaken {
            said: error.to_string(),
        },
        _ if code.starts_with("40") || code == "55P03" => StrategyError::Moved {
            path: ResourcePath::root(),
            what: format!("another client works on it: {error}"),
        },
        _ => failed("be written as the sandbox is", &error),
    }
}

fn elsewhere(path: ResourcePath, what: &str) -> StrategyError {
    let what = what.to_owned();
    StrategyError::Moved { path, what }
}

/// Which versions of definitions the original has, of those that cannot be locked. Temporary ones of other clients come and go.
fn stamp(original: &Original) -> Result<String> {
    let one = |(catalog, table): (&str, &str)| {
        format!(
            "SELECT '{catalog}' || oid || ' ' || xmin AS x FROM pg_catalog.pg_{catalog} d WHERE oid >= 16384 \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_class t WHERE t.oid = {table} AND t.relpersistence = 't')"
        )
    };
    let catalogs = [
        ("class", "d.oid"),
        ("attrdef", "d.adrelid"),
        ("proc", "0"),
        ("rewrite", "d.ev_class"),
        ("enum", "0"),
        ("constraint", "d.conrelid"),
        ("trigger", "d.tgrelid"),
        ("policy", "d.polrelid"),
    ];
    let catalogs = catalogs.map(one);
    let all = catalogs.join(" UNION ALL ");
    let sql =
        format!("SELECT pg_catalog.md5(pg_catalog.string_agg(x, ',' ORDER BY x)) FROM ({all}) a");
    let found = original.open()?.value(&sql);
    Ok(found.map_err(refused)?.unwrap_or_default())
}

/// What a database holds of rows that are looked for, in the order of those.
pub(super) fn theirs<'r>(
    connection: &mut Connection,
    of: &Compared,
    wanted: &[(&'r RowKey, Option<&'r Row>)],
) -> PgResult<Vec<Option<Row>>> {
    if !of.columns.key.is_empty() {
        let keys = wanted.iter().map(|(key, _)| *key);
        let mut found = present(connection, of, keys, false)?;
        return Ok(wanted.iter().map(|(key, _)| found.remove(*key)).collect());
    }
    // Of a row without a key there are enough, or it is missing.
    let mut counts: BTreeMap<&Row, u64> = BTreeMap::new();
    let mut all = Vec::new();
    for (_, row) in wanted {
        let Some(row) = row else {
            all.push(None);
            continue;
        };
        let left = match counts.get(row) {
            Some(left) => *left,
            None => copies(connection, of, row, false)?,
        };
        counts.insert(row, left.saturating_sub(1));
        all.push((left > 0).then(|| (*row).clone()));
    }
    Ok(all)
}

/// Why the rows of a table cannot be looked for in the original, if they cannot.
pub(super) fn misfit(connection: &mut Connection, of: &Compared) -> PgResult<Option<&'static str>> {
    let Some(there) = rows::found(connection, &of.table)? else {
        return Ok((!of.is_new()).then_some("the table is gone in the original"));
    };
    if of.is_new() {
        return Ok(Some("the original has such a table too"));
    }
    let differs = match of.old {
        Some(old) if !of.is_same() => there.names[..] != of.columns.names[..old],
        _ => there != of.columns,
    };
    Ok(differs.then_some("its columns were changed in the original"))
}

/// The way a plan is carried out, or taken back.
pub(super) struct Release<'p> {
    pub(super) plan: &'p OpenPlan,
    pub(super) original: &'p Original,
    pub(super) back: bool,
}

impl Release<'_> {
    fn ends_of<'c>(&self, changed: &'c Changed) -> (Option<&'c Row>, Option<&'c Row>) {
        let (before, after) = (changed.swap.before.as_ref(), changed.swap.after.as_ref());
        match self.back {
            true => (after, before),
            false => (before, after),
        }
    }

    /// The connection on which it is written.
    fn connect(&self) -> Result<Connection> {
        let mut connection = self.original.open_to_write()?;
        let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {AS_OURSELVES}");
        let begun = connection.query(&begin);
        begun.map_err(|error| failed("be reached", &error))?;
        Ok(connection)
    }

    /// Does everything in one transaction, which ends with `end`. What is not as it was is an error, or, on the way back, left alone;
    /// then it is named.
    pub(super) fn carry_out(&self, end: &str) -> Result<Vec<ResourcePath>> {
        let mut connection = self.connect()?;
        self.lock(&mut connection)?;
        refused::check(&mut connection, "the original")?;
        let stamp = self.check_definitions(&mut connection)?;
        let moved = self.moved(&mut connection)?;
        let skipped: Vec<ResourcePath> = moved.values().cloned().collect();
        if let (false, Some(path)) = (self.back, skipped.first()) {
            let what = "another client changed it in the original";
            return Err(elsewhere(path.clone(), what));
        }
        let rows = self.plan.rows.iter().enumerate();
        let rows: Vec<&Changed> = rows
            .filter(|(number, _)| !moved.contains_key(number))
            .map(|(_, changed)| changed)
            .collect();
        self.write(&mut connection, &rows, stamp)?;
        // Its number is known, to us and durably to the server, before it counts (rule C19).
        let number = connection.value("SELECT pg_catalog.txid_current()");
        let number = number.map_err(refused)?.unwrap_or_default();
        keep_number(&self.original.server, self.original.password.as_deref())?;
        let of = if self.back { UNDO_NUMBER } else { NUMBER };
        self.plan.keep_number(of, &number)?;
        connection.query(end).map_err(refused)?;
        match connection.status {
            b'I' => Ok(skipped),
            _ => Err(failed(
                "end the transaction",
                &PgError::link("it did not end"),
            )),
        }
    }

    /// Locks what is written before the first look at it: its form stays as it is seen then, and what is altered or dropped is written
    /// by no other client.
    fn lock(&self, connection: &mut Connection) -> Result<()> {
        let (plan, rows) = (&self.plan.plan, &self.plan.rows);
        let written: BTreeSet<u32> = rows.iter().map(|one| one.swap.table).collect();
        let written = written
            .into_iter()
            .map(|number| &plan.tables[number as usize]);
        let written = written
            .filter(|of| !of.is_new())
            .map(|of| of.table.quoted());
        let all = written.map(|table| (table, "ROW EXCLUSIVE"));
        let altered = plan.ddl.tables.iter().cloned();
        for (table, mode) in all.chain(altered.map(|table| (table, "SHARE ROW EXCLUSIVE"))) {
            let locked = connection.query(&format!("LOCK TABLE ONLY {table} IN {mode} MODE"));
            locked.map_err(|error| match error.is("42P01") {
                true => elsewhere(ResourcePath::root(), &format!("the table {table} is gone")),
                false => refused(error),
            })?;
        }
        Ok(())
    }

    /// What is altered or dropped is found as it was. Says when definitions were last changed.
    fn check_definitions(&self, connection: &mut Connection) -> Result<Option<String>> {
        let ddl = &self.plan.plan.ddl;
        if ddl.is_empty() {
            return Ok(None);
        }
        let original = self.original;
        let stamp = stamp(original)?;
        let version = self.plan.intent.version;
        let programs = Programs { original, version };
        let now = Schema::read(&programs.definitions_for_commit(&original.server)?);
        if let Some(path) = ddl.moved(None, &now).into_iter().next() {
            return Err(elsewhere(
                path,
                "its definition was changed in the original",
            ));
        }
        for one in &self.plan.plan.frozen {
            if !one.is_there(connection).map_err(refused)? {
                let path = table_item(&one.table.shown());
                return Err(elsewhere(path, "its rows were changed in the original"));
            }
        }
        Ok(Some(stamp))
    }

    /// The rows that the original does not have as they should be found, by their numbers in the plan.
    pub(super) fn moved(
        &self,
        connection: &mut Connection,
    ) -> Result<BTreeMap<usize, ResourcePath>> {
        let mut moved = BTreeMap::new();
        for (table, of) in self.plan.plan.tables.iter().enumerate() {
            let rows = self.plan.rows.iter().enumerate();
            let rows: Vec<(usize, &Changed)> = rows
                .filter(|(_, changed)| changed.swap.table as usize == table)
                .collect();
            if let Some(what) = misfit(connection, of).map_err(refused)? {
                let path = table_item(&of.table.shown());
                match self.back {
                    true => moved.extend(rows.iter().map(|(number, _)| (*number, path.clone()))),
                    false => return Err(elsewhere(path, what)),
                }
                continue;
            }
            if of.is_new() {
                continue;
            }
            let wanted: Vec<(&RowKey, Option<&Row>)> = rows
                .iter()
                .map(|(_, changed)| (&changed.key, self.ends_of(changed).0))
                .collect();
            let found = theirs(connection, of, &wanted).map_err(refused)?;
            for ((number, changed), found) in rows.into_iter().zip(found) {
                if !of.agree(found.as_ref(), self.ends_of(changed).0) {
                    moved.insert(number, self.plan.path(changed));
                }
            }
        }
        Ok(moved)
    }

    /// A row that goes may take others with it (`ON DELETE CASCADE` and the like): all of them have to be among these, as they are
    /// in the clone. One that another client wrote since is a conflict.
    fn check_references(&self, connection: &mut Connection, rows: &[&Changed]) -> Result<()> {
        let sql = "SELECT f.nspname, p.relname, n.nspname, c.relname, \
                   (SELECT pg_catalog.json_agg(a.attname ORDER BY k.o) FROM pg_catalog.unnest(o.confkey) WITH ORDINALITY k(n, o) \
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = o.confrelid AND a.attnum = k.n), \
                   (SELECT pg_catalog.json_agg(a.attname ORDER BY k.o) FROM pg_catalog.unnest(o.conkey) WITH ORDINALITY k(n, o) \
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = o.conrelid AND a.attnum = k.n) \
                   FROM pg_catalog.pg_constraint o JOIN pg_catalog.pg_class p ON p.oid = o.confrelid \
                   JOIN pg_catalog.pg_namespace f ON f.oid = p.relnamespace JOIN pg_catalog.pg_class c ON c.oid = o.conrelid \
                   JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                   WHERE o.contype = 'f' AND c.relkind = 'r' AND (o.confdeltype IN ('c', 'n', 'd') OR o.confupdtype IN ('c', 'n', 'd'))";
        for row in connection.query(sql).map_err(refused)? {
            let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
            let list =
                |at: usize| serde_json::from_str::<Vec<String>>(&text(at)).unwrap_or_default();
            let gone = self.values(rows, (&text(0), &text(1)), &list(4), true);
            let going: BTreeSet<&Vec<Value>> = gone.iter().collect();
            if going.is_empty() {
                continue;
            }
            let own = self.values(rows, (&text(2), &text(3)), &list(5), false);
            let own = own.iter().filter(|row| going.contains(row)).count();
            let names: Vec<String> = list(5).iter().map(|name| identifier(name)).collect();
            let table = format!("{}.{}", identifier(&text(2)), identifier(&text(3)));
            let mut there = 0;
            for batch in Vec::from_iter(going).chunks(500) {
                let tuple = |row: &&Vec<Value>| {
                    let values: Vec<String> = row.iter().map(sql_value).collect();
                    format!("({})", values.join(", "))
                };
                let tuples: Vec<String> = batch.iter().map(tuple).collect();
                let (names, tuples) = (names.join(", "), tuples.join(", "));
                let sql =
                    format!("SELECT count(*) FROM ONLY {table} WHERE ({names}) IN ({tuples})");
                let count = connection.value(&sql).map_err(refused)?;
                there += count.and_then(|count| count.parse().ok()).unwrap_or(0);
            }
            if there != own {
                return Err(StrategyError::Moved {
                    path: table_item(&shown(&text(2), &text(3))),
                    what: format!(
                        "rows of it in the original refer to rows of {} that go",
                        text(1)
                    ),
                });
            }
        }
        Ok(())
    }

    /// What rows of a table have in these columns; only where it goes, or of all of them.
    fn values(
        &self,
        rows: &[&Changed],
        (schema, name): (&str, &str),
        columns: &[String],
        goes: bool,
    ) -> Vec<Vec<Value>> {
        let mut found = Vec::new();
        for changed in rows {
            let of = self.plan.of(changed);
            let places = columns.iter().map(|name| {
                let mut names = of.columns.names.iter();
                names.position(|one| one == name)
            });
            let places: Option<Vec<usize>> = places.collect();
            let own = of.table.schema == schema && of.table.name == name;
            let (Some(places), (Some(from), to), true) = (places, self.ends_of(changed), own)
            else {
                continue;
            };
            let pick =
                |row: &Row| -> Vec<Value> { places.iter().map(|at| row[*at].clone()).collect() };
            let value = pick(from);
            // What is computed is known once it is written; where it goes then and others followed it, more is written than planned.
            let stays = to.is_some_and(|to| fit(Some(&value), Some(&pick(to)), usize::MAX));
            if !(value.contains(&Value::Null) || goes && stays) {
                found.push(value);
            }
        }
        found
    }

    /// Writes everything, in the order that the constraints of the original take.
    fn write<'r>(
        &'r self,
        connection: &mut Connection,
        rows: &[&'r Changed],
        known: Option<String>,
    ) -> Result<()> {
        let (ddl, tables) = (&self.plan.plan.ddl, &self.plan.plan.tables);
        let none = Vec::new();
        let (early, late) = match self.back {
            true => (&none, &none),
            false => (&ddl.early, &ddl.late),
        };
        let ends = rows.iter().map(|changed| {
            let (from, to) = self.ends_of(changed);
            (*changed, from, to)
        });
        let mut watch = Watch::new(connection, self.plan, ends.collect())?;
        for sql in early {
            define(connection, sql).map_err(refused)?;
        }
        // From here on nothing of what was altered or dropped can be changed by another client; in between something was.
        if known.is_some() && Some(stamp(self.original)?) != known {
            let what = "definitions were changed in the original meanwhile";
            return Err(elsewhere(ResourcePath::root(), what));
        }
        // What refers to others by a constraint that goes follows them no more.
        self.check_references(connection, rows)?;
        let quoted: Vec<String> = tables.iter().map(|of| of.table.quoted()).collect();
        let touched: BTreeSet<String> = rows
            .iter()
            .map(|changed| quoted[changed.swap.table as usize].clone())
            .collect();
        let (following, followed) = watch.following(connection)?;
        let triggers = Triggers::of(connection, &touched, &following).map_err(refused)?;
        triggers.turn_off(connection).map_err(refused)?;
        watch.begin(connection, self.original)?;
        let begin = "SET CONSTRAINTS ALL DEFERRED; SAVEPOINT escrow_rows";
        connection.query(begin).map_err(refused)?;
        let counts = self.loose(connection, rows).map_err(refused)?;
        let mut written: Option<PgResult<bool>> = None;
        let [removals_first, removals_last, ..] = ORDERS;
        'tried: for way in WAYS {
            let redo = self.redo(rows, (&quoted, &followed), way);
            for order in [removals_first, removals_last] {
                let tried = (|| {
                    connection.query(AS_CLIENTS)?;
                    redo.write(connection, order)?;
                    connection.query("SET CONSTRAINTS ALL IMMEDIATE")?;
                    connection.query(AS_OURSELVES)?;
                    self.shows(connection, rows, &counts)
                })();
                // Without words of the server the link is lost.
                let over = match &tried {
                    Ok(done) => *done,
                    Err(error) => error.code.is_none(),
                };
                if over {
                    written = Some(tried);
                    break 'tried;
                }
                // What the plainest way met says most.
                written.get_or_insert(tried);
                let again = "ROLLBACK TO SAVEPOINT escrow_rows";
                connection.query(again).map_err(refused)?;
            }
        }
        if !written.unwrap_or(Ok(false)).map_err(refused)? {
            let why = "the original shows something else than the sandbox once it is written there";
            return Err(StrategyError::Forbidden {
                path: ResourcePath::root(),
                why: why.to_owned(),
            });
        }
        triggers.turn_on(connection).map_err(refused)?;
        for sql in late {
            define(connection, sql).map_err(refused)?;
        }
        if !self.back {
            for sequence in self.plan.plan.sequences.iter().filter(|one| one.is_new()) {
                sequence.move_on(connection).map_err(refused)?;
            }
        }
        watch.check(connection, self.original)
    }

    /// The statements for these rows, of which those that are changed are written in this way. What follows a row would go with it: those of
    /// tables that are `followed` do not come anew.
    fn redo(
        &self,
        rows: &[&Changed],
        (quoted, followed): (&[String], &BTreeSet<String>),
        way: Way,
    ) -> Redo {
        let mut redo = Redo::whole();
        let mut add = |changed: &Changed| {
            let number = changed.swap.table as usize;
            let (from, to) = self.ends_of(changed);
            let mut writer = self.plan.plan.tables[number].writer(&quoted[number]);
            let (from, to) = (from.map(Vec::as_slice), to.map(Vec::as_slice));
            let changed = from.is_some() && to.is_some();
            if way.tables_backwards && changed {
                writer.rank = usize::MAX - writer.rank;
            }
            match way.anew && changed && !followed.contains(&quoted[number]) {
                true => {
                    redo.row(&writer, from, None);
                    redo.row(&writer, None, to);
                }
                false => redo.row(&writer, from, to),
            }
        };
        match way.rows_backwards {
            false => rows.iter().for_each(|changed| add(changed)),
            true => rows.iter().rev().for_each(|changed| add(changed)),
        }
        redo
    }

    /// How often each row of a table without a key should be there: as often as it is, and what comes or goes.
    fn loose<'r>(
        &self,
        connection: &mut Connection,
        rows: &[&'r Changed],
    ) -> PgResult<BTreeMap<(u32, &'r Row), i64>> {
        let mut counts = BTreeMap::new();
        for changed in rows {
            let (number, of) = (changed.swap.table, self.plan.of(changed));
            let (from, to) = self.ends_of(changed);
            for (row, more) in [(from, -1), (to, 1)] {
                let Some(row) = row.filter(|_| of.columns.key.is_empty()) else {
                    continue;
                };
                let count = match counts.get(&(number, row)) {
                    Some(count) => *count,
                    None => copies(connection, of, row, true)? as i64,
                };
                counts.insert((number, row), count + more);
            }
        }
        Ok(counts)
    }

    /// Whether the original has the rows as they were wanted.
    fn shows(
        &self,
        connection: &mut Connection,
        rows: &[&Changed],
        counts: &BTreeMap<(u32, &Row), i64>,
    ) -> PgResult<bool> {
        for ((number, row), count) in counts {
            let of = &self.plan.plan.tables[*number as usize];
            if copies(connection, of, row, true)? as i64 != *count {
                return Ok(false);
            }
        }
        for (number, of) in self.plan.plan.tables.iter().enumerate() {
            if of.columns.key.is_empty() {
                continue;
            }
            let own = rows
                .iter()
                .filter(|changed| changed.swap.table as usize == number);
            let own: Vec<&&Changed> = own.collect();
            let keys = own.iter().map(|changed| &changed.key);
            let there = present(connection, of, keys, true)?;
            let same = |changed: &&&Changed| {
                let (found, wanted) = (there.get(&changed.key), self.ends_of(changed).1);
                fit(found, wanted, usize::MAX)
            };
            if !own.iter().all(same) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the sequences on that the original has, for every client at once: once it is decided. Says whether all of them are; one that
    /// another client holds can be moved later.
    pub(super) fn move_on(&self) -> Result<std::result::Result<(), PgError>> {
        let mut sequences = self.plan.plan.sequences.iter().filter(|one| !one.is_new());
        let Some(first) = sequences.next() else {
            return Ok(Ok(()));
        };
        let mut connection = self.original.open()?;
        connection
            .query("SET lock_timeout = 1000")
            .map_err(refused)?;
        for sequence in std::iter::once(first).chain(sequences) {
            match sequence.move_on(&mut connection) {
                // What others made of the sequence holds: it is gone, or ends before.
                Err(error)
                    if ["42P01", "22003", "22023"]
                        .iter()
                        .any(|code| error.is(code)) => {}
                Err(error) if error.code.is_some() => return Ok(Err(error)),
                moved => moved.map_err(refused)?,
            }
        }
        Ok(Ok(()))
    }

    /// What moved on since it was carried out, so that taking it back would lose something.
    pub(super) fn conflicts(&self) -> Result<Vec<Conflict>> {
        if !self.plan.plan.ddl.is_empty() {
            let what = "the commit changed definitions, and those are not taken back; change them in another plan";
            return Ok(vec![Conflict::of(ResourcePath::root(), what)]);
        }
        let mut connection = self.connect()?;
        self.lock(&mut connection)?;
        let moved = self.moved(&mut connection)?;
        let what = "another client changed it since";
        if !moved.is_empty() {
            let moved = moved.into_values().map(|path| Conflict::of(path, what));
            return Ok(moved.collect());
        }
        // Whether the rest takes it is tried out; the transaction is given up with its connection.
        let rows: Vec<&Changed> = self.plan.rows.iter().collect();
        match self.write(&mut connection, &rows, None) {
            Ok(()) => Ok(Vec::new()),
            Err(StrategyError::Moved { path, what }) => Ok(vec![Conflict::of(path, &what)]),
            Err(error @ StrategyError::NotTaken { .. }) => {
                Ok(vec![Conflict::of(ResourcePath::root(), &error.to_string())])
            }
            Err(error) => Err(error),
        }
    }
}
