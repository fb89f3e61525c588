//! What the transaction of a commit wrote beyond its plan. Functions of the database run in it, those of `CHECK` constraints, domains,
//! expression indexes and generated columns, and they may write. The locks of the transaction name the tables that were
//! written, and the rows of these say which transaction wrote them: both have to be what the plan says, or the commit is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::differ::Copies;
use super::super::super::sql::{Row, identifier, table_item};
use super::super::connect::{Connection, PgError, PgResult, unexpected};
use super::super::content::Texts;
use super::super::failed;
use super::super::holder::changes::{self, Table, key_of, shown};
use super::databases::Original;
use super::plan::OpenPlan;
use super::rows::{Changed, Compared, Frozen, fit, frozen, list, row_of};

/// A schema and a name.
pub(super) type Relation = (String, String);

/// The locks of a transaction on what holds data: whether one is that which writing rows takes, whether one is stronger, and whether one
/// keeps all others out.
const LOCKS: &str = "SELECT n.nspname, c.relname, pg_catalog.bool_or(l.mode = 'RowExclusiveLock')::text, \
    pg_catalog.bool_or(l.mode <> 'RowExclusiveLock')::text, pg_catalog.bool_or(l.mode IN ('ExclusiveLock', 'AccessExclusiveLock'))::text \
    FROM pg_catalog.pg_locks l \
    JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database() \
    JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE l.locktype = 'relation' AND l.granted AND c.oid >= 16384 AND c.relkind IN ('r', 'p', 'S', 'm', 'f') \
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') AND l.pid = ";

/// The tables whose rows follow those of another one, where one goes or where one changes in these columns: that locks them, also where
/// no row follows.
const FOLLOWING: &str = "SELECT f.nspname, p.relname, n.nspname, c.relname, (o.confdeltype IN ('c', 'n', 'd'))::text, \
    (o.confupdtype IN ('c', 'n', 'd'))::text, (SELECT pg_catalog.json_agg(a.attname) FROM pg_catalog.pg_attribute a \
    WHERE a.attrelid = o.confrelid AND a.attnum = ANY (o.confkey)) FROM pg_catalog.pg_constraint o \
    JOIN pg_catalog.pg_class p ON p.oid = o.confrelid JOIN pg_catalog.pg_namespace f ON f.oid = p.relnamespace \
    JOIN pg_catalog.pg_class c ON c.oid = o.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE o.contype = 'f' AND (o.confdeltype IN ('c', 'n', 'd') OR o.confupdtype IN ('c', 'n', 'd'))";

/// Which files relations have: a table that is emptied as a whole, or written anew, gets another one.
const FILES: &str = "SELECT n.nspname, c.relname, pg_catalog.pg_relation_filenode(c.oid) FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid >= 16384 AND c.relkind IN ('r', 'S', 'm')";

/// What the transaction of a commit is expected to write.
pub(super) struct Watch<'p> {
    plan: &'p OpenPlan,
    /// The rows of the plan that are written, with what they are before and afterwards.
    rows: Vec<PlannedRow<'p>>,
    /// The tables of the plan.
    planned: BTreeMap<Relation, &'p Compared>,
    /// The rows of these, of those that follow them and of what is altered, before definitions were changed: what that ran may not have written them.
    before: Vec<Frozen>,
    /// How many rows these and those that follow them should have in the end.
    wanted: BTreeMap<Relation, i64>,
    /// What the definitions of the plan alter, and so lock.
    altered: BTreeSet<Relation>,
    /// The files of that once it is altered.
    files: BTreeMap<Relation, String>,
    /// The number of a transaction that is older than the first row of this one.
    since: u64,
}

/// A table whose rows follow those of a table of the plan.
struct Follower {
    table: Relation,
    of: Relation,
    /// They follow what the plan does.
    acts: bool,
}

/// A row of a plan, as it is before and afterwards.
pub(super) type PlannedRow<'p> = (&'p Changed, Option<&'p Row>, Option<&'p Row>);

impl<'p> Watch<'p> {
    /// Begins before the first statement.
    pub(super) fn new(
        connection: &mut Connection,
        plan: &'p OpenPlan,
        rows: Vec<PlannedRow<'p>>,
    ) -> Result<Self> {
        // What another client changed since is not written on the way back; its table is locked all the same.
        let planned = plan.rows.iter().map(|changed| plan.of(changed));
        let planned = planned.map(|of| (name_of(&of.table), of)).collect();
        let mut watch = Self {
            plan,
            rows,
            planned,
            before: Vec::new(),
            wanted: BTreeMap::new(),
            altered: plan.plan.ddl.relations(),
            files: BTreeMap::new(),
            since: 0,
        };
        if !plan.plan.ddl.is_empty() {
            watch.before = watch.frozen(connection).map_err(looked)?;
        }
        Ok(watch)
    }

    fn frozen(&self, connection: &mut Connection) -> PgResult<Vec<Frozen>> {
        let (watched, mut found) = (self.watched(connection)?, Vec::new());
        let all = changes::all(connection)?.into_iter();
        for table in all.filter(Table::has_rows) {
            let name = name_of(&table);
            if watched.contains(&name) || self.altered.contains(&name) {
                let columns = changes::columns(connection, &table.oid)?;
                found.push(frozen(connection, table, columns)?);
            }
        }
        Ok(found)
    }

    /// The tables of the plan, and those that follow what it does.
    fn watched(&self, connection: &mut Connection) -> PgResult<BTreeSet<Relation>> {
        let acting = self.followers(connection)?.into_iter();
        let acting = acting.filter(|one| one.acts).map(|one| one.table);
        Ok(acting.chain(self.planned.keys().cloned()).collect())
    }

    /// The tables whose rows follow those of the plan's.
    fn followers(&self, connection: &mut Connection) -> PgResult<Vec<Follower>> {
        let mut found = Vec::new();
        for row in connection.query(FOLLOWING)? {
            let [
                schema,
                name,
                follower_schema,
                follower,
                deletes,
                updates,
                columns,
            ] = row.map_texts();
            let one = (schema, name);
            let Some(of) = self.planned.get(&one) else {
                continue;
            };
            let columns: Vec<String> = serde_json::from_str(&columns).unwrap_or_default();
            let names = of.columns.names.iter();
            let concerned: Vec<bool> = names.map(|name| columns.contains(name)).collect();
            let acts = |(changed, from, to): &PlannedRow<'_>| match (from, to) {
                _ if name_of(&self.plan.of(changed).table) != one => false,
                (Some(_), None) => deletes == "true",
                (Some(from), Some(to)) => {
                    let mut all = from.iter().zip(*to).zip(&concerned);
                    updates == "true" && all.any(|((from, to), of)| *of && from != to)
                }
                _ => false,
            };
            let acts = self.rows.iter().any(acts);
            found.push(Follower {
                table: (follower_schema, follower),
                acts,
                of: one,
            });
        }
        Ok(found)
    }

    /// The tables whose rows follow what the plan does, as SQL takes their names; and the tables of the plan that some follow at all.
    pub(super) fn following(
        &self,
        connection: &mut Connection,
    ) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let found = self.followers(connection).map_err(looked)?;
        let acting = found.iter().filter(|one| one.acts);
        Ok((
            acting.map(|one| quoted(&one.table)).collect(),
            found.iter().map(|one| quoted(&one.of)).collect(),
        ))
    }

    /// Rows are written from here on, in savepoints; definitions that come first are changed.
    pub(super) fn begin(&mut self, connection: &mut Connection, original: &Original) -> Result<()> {
        self.files = files(connection, &self.altered).map_err(looked)?;
        for one in self.watched(connection).map_err(looked)? {
            let mut count = counted(connection, &one).map_err(looked)?;
            for (changed, from, to) in &self.rows {
                if name_of(&self.plan.of(changed).table) == one {
                    count += i64::from(to.is_some()) - i64::from(from.is_some());
                }
            }
            self.wanted.insert(one, count);
        }
        // What is not there any more was dropped by the plan.
        let there = changes::all(connection).map_err(looked)?;
        let there: BTreeSet<&String> = there.iter().map(|table| &table.oid).collect();
        for one in self
            .before
            .iter()
            .filter(|one| there.contains(&one.table.oid))
        {
            if !one.is_there(connection).map_err(looked)? {
                return Err(beyond(&name_of(&one.table)));
            }
        }
        self.since = newest(&mut original.open()?).map_err(looked)?;
        Ok(())
    }

    /// Refuses where more was written than the plan says. A function may have changed the settings of the connection; the locks are
    /// looked at by another one.
    pub(super) fn check(&self, connection: &mut Connection, original: &Original) -> Result<()> {
        let own_settings = "RESET ROLE; RESET ALL; SET search_path TO ''";
        connection.query(own_settings).map_err(looked)?;
        let own = connection.value("SELECT pg_catalog.pg_backend_pid()");
        let own = own.map_err(looked)?.unwrap_or_default();
        let mut other = original.open()?;
        let locks = other.query(&format!("{LOCKS}{own} GROUP BY 1, 2 ORDER BY 1, 2"));
        for row in locks.map_err(looked)? {
            let [schema, name, rows, more, alone] = row.map_texts();
            let one = (schema, name);
            // Those that follow are locked too, while their triggers are off.
            let (watched, altered) = (self.wanted.contains_key(&one), self.altered.contains(&one));
            let rows = rows == "true" && !watched;
            let more = more == "true" && !watched && !altered;
            if rows || more || alone == "true" && !altered {
                return Err(beyond(&one));
            }
        }
        let files = files(connection, &self.altered).map_err(looked)?;
        let anew = self
            .files
            .iter()
            .find(|(one, file)| files.get(*one) != Some(*file));
        if let Some((one, _)) = anew {
            return Err(beyond(one));
        }
        let until = newest(&mut other).map_err(looked)?;
        for (one, wanted) in &self.wanted {
            let planned = self.has_planned(connection, one, until).map_err(looked)?;
            if !planned || counted(connection, one).map_err(looked)? != *wanted {
                return Err(beyond(one));
            }
        }
        Ok(())
    }

    /// Whether every row of a table that the transaction wrote is one of the plan. Nothing newer than the transaction is visible to it but
    /// what it wrote itself, in whichever savepoint.
    fn has_planned(
        &self,
        connection: &mut Connection,
        one: &Relation,
        until: u64,
    ) -> PgResult<bool> {
        let (planned, mut copies) = (self.planned.get(one), Copies::default());
        let (mut rows, list) = (BTreeMap::new(), planned.map(|of| list(&of.columns)));
        for (changed, _, to) in &self.rows {
            let of = self.plan.of(changed);
            if let (Some(to), true) = (to, name_of(&of.table) == *one) {
                rows.insert(key_of(to, &of.columns, &mut copies), *to);
            }
        }
        // A row has the last 32 bits of the number.
        let sql = format!(
            "SELECT {} FROM ONLY {} WHERE pg_catalog.mod(xmin::pg_catalog.text::pg_catalog.int8 - {} + 4294967296, 4294967296) < {}",
            list.unwrap_or_default(),
            quoted(one),
            self.since & 0xffff_ffff,
            until.saturating_sub(self.since)
        );
        let (mut all, mut copies) = (true, Copies::default());
        connection.each_row(&sql, |texts| {
            all &= planned.is_some_and(|of| {
                let row = row_of(texts, &of.columns);
                let key = key_of(&row, &of.columns, &mut copies);
                fit(Some(&row), rows.get(&key).copied(), usize::MAX)
            });
            Ok(())
        })?;
        Ok(all)
    }
}

fn looked(error: PgError) -> StrategyError {
    failed("be looked at", &error)
}

fn name_of(table: &Table) -> Relation {
    (table.schema.clone(), table.name.clone())
}

pub(super) fn quoted((schema, name): &Relation) -> String {
    format!("{}.{}", identifier(schema), identifier(name))
}

/// How many rows a table has.
fn counted(connection: &mut Connection, one: &Relation) -> PgResult<i64> {
    let sql = format!("SELECT pg_catalog.count(*) FROM ONLY {}", quoted(one));
    number(connection, &sql)
}

/// The number of a new transaction of its own.
fn newest(connection: &mut Connection) -> PgResult<u64> {
    number(connection, "SELECT pg_catalog.txid_current()")
}

fn number<N: FromStr>(connection: &mut Connection, sql: &str) -> PgResult<N> {
    let text = connection.value(sql)?.unwrap_or_default();
    text.parse().map_err(|_| unexpected())
}

/// The files of these relations.
fn files(
    connection: &mut Connection,
    of: &BTreeSet<Relation>,
) -> PgResult<BTreeMap<Relation, String>> {
    if of.is_empty() {
        return Ok(BTreeMap::new());
    }
    let rows = connection.query(FILES)?.into_iter();
    let rows = rows.map(|row| {
        let [schema, name, file] = row.map_texts();
        ((schema, name), file)
    });
    Ok(rows.filter(|(one, _)| of.contains(one)).collect())
}

fn beyond((schema, name): &Relation) -> StrategyError {
    StrategyError::Forbidden {
        path: table_item(&shown(schema, name)),
        why: "writing the rows of the sandbox wrote more there than the diff shows, by a function that a constraint, a domain, an index \
              or a generated column calls, or by a new function that holds statements (BEGIN ATOMIC); nothing was committed"
            .to_owned(),
    }
}
