//! What the transaction of a commit wrote beyond its plan. Functions of the database run in it, those of `CHECK` constraints, domains,
//! expression indexes and generated columns, and they may write. The locks of the transaction name the tables that were
//! written, and the server counts the rows: both have to be what the plan says, or the commit is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::error::{Result, StrategyError};
use super::super::super::sql::{Row, table_item};
use super::super::connect::{Connection, PgResult, literal};
use super::super::content::Texts;
use super::super::failed;
use super::super::holder::changes::shown;
use super::databases::Original;
use super::plan::OpenPlan;
use super::rows::Changed;

/// A schema and a name.
pub(super) type Relation = (String, String);

/// How many rows of a table were inserted, updated and deleted.
type Counts = [i64; 3];

/// The locks of a transaction on what holds data: whether one is that which writing rows takes, whether one is stronger, and whether one
/// keeps all others out.
const LOCKS: &str = "SELECT n.nspname, c.relname, pg_catalog.bool_or(l.mode = 'RowExclusiveLock')::text, \
    pg_catalog.bool_or(l.mode <> 'RowExclusiveLock')::text, pg_catalog.bool_or(l.mode IN ('ExclusiveLock', 'AccessExclusiveLock'))::text \
    FROM pg_catalog.pg_locks l \
    JOIN pg_catalog.pg_database d ON d.oid = l.database AND d.datname = pg_catalog.current_database() \
    JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE l.locktype = 'relation' AND l.granted AND c.oid >= 16384 AND c.relkind IN ('r', 'p', 'S', 'm', 'f') \
    AND l.mode NOT IN ('AccessShareLock', 'RowShareLock') AND l.pid = ";

/// The tables whose rows follow those of another one: a change there locks them, also where no row follows.
const FOLLOWING: &str = "SELECT f.nspname, p.relname, n.nspname, c.relname FROM pg_catalog.pg_constraint o \
    JOIN pg_catalog.pg_class p ON p.oid = o.confrelid JOIN pg_catalog.pg_namespace f ON f.oid = p.relnamespace \
    JOIN pg_catalog.pg_class c ON c.oid = o.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE o.contype = 'f' AND (o.confdeltype IN ('c', 'n', 'd') OR o.confupdtype IN ('c', 'n', 'd'))";

/// Which files relations have: a table that is emptied as a whole, or written anew, gets another one.
const FILES: &str = "SELECT n.nspname, c.relname, pg_catalog.pg_relation_filenode(c.oid) FROM pg_catalog.pg_class c \
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid >= 16384 AND c.relkind IN ('r', 'S', 'm')";

/// What the transaction of a commit is expected to write.
pub(super) struct Watch {
    /// The rows of each table.
    planned: BTreeMap<Relation, Counts>,
    /// What the definitions of the plan alter, and so lock.
    altered: BTreeSet<Relation>,
    /// The files of that once it is altered.
    files: BTreeMap<Relation, String>,
    /// The tables whose rows follow those of a table that is written, and in how many ways.
    following: BTreeMap<Relation, i64>,
    /// What was counted when the rows were begun, and what of it counts no more, since it was taken back; none where the server does not
    /// count.
    counts: Option<[BTreeMap<Relation, Counts>; 2]>,
}

impl Watch {
    /// Begins before the first row is written.
    pub(super) fn new<'r>(
        connection: &mut Connection,
        plan: &OpenPlan,
        rows: impl Iterator<Item = (&'r Changed, Option<&'r Row>, Option<&'r Row>)>,
    ) -> PgResult<Self> {
        let name = |changed: &Changed| {
            let table = &plan.of(changed).table;
            (table.schema.clone(), table.name.clone())
        };
        // What another client changed since is not written on the way back; its table is locked all the same.
        let locked = plan.rows.iter().map(|changed| (name(changed), [0; 3]));
        let mut planned: BTreeMap<Relation, Counts> = locked.collect();
        for (changed, from, to) in rows {
            let of = plan.of(changed);
            let counts = planned.entry(name(changed)).or_default();
            match (from, to) {
                (None, Some(_)) => counts[0] += 1,
                (Some(_), None) => counts[2] += 1,
                (Some(from), Some(to)) => {
                    let written = from.iter().zip(to).zip(&of.columns.generated);
                    let mut written = written.filter(|(_, generated)| !**generated);
                    counts[1] += i64::from(written.any(|((from, to), _)| from != to));
                }
                (None, None) => {}
            }
        }
        let mut following = BTreeMap::new();
        for row in connection.query(FOLLOWING)? {
            let [schema, name, follower_schema, follower] = row.map_texts();
            if planned.contains_key(&(schema, name)) {
                *following.entry((follower_schema, follower)).or_default() += 1;
            }
        }
        let altered = plan.plan.ddl.relations();
        let files = files(connection, &altered)?;
        let counts = connection.value("SHOW track_counts")?.as_deref() == Some("on");
        Ok(Self {
            planned,
            altered,
            files,
            following,
            counts: counts.then(Default::default),
        })
    }

    /// Rows are written from here on.
    pub(super) fn begin(&mut self, connection: &mut Connection) -> PgResult<()> {
        let now = self.counted(connection)?;
        if let Some([begun, _]) = &mut self.counts {
            *begun = now;
        }
        Ok(())
    }

    /// What was written since then was taken back: the server counts it all the same.
    pub(super) fn taken_back(&mut self, connection: &mut Connection) -> PgResult<()> {
        let now = self.counted(connection)?;
        if let Some([begun, gone]) = &mut self.counts {
            for (one, counts) in now {
                let begun = begun.get(&one).copied().unwrap_or_default();
                let gone = gone.entry(one).or_default();
                (0..3).for_each(|at| gone[at] += counts[at] - begun[at]);
            }
        }
        Ok(())
    }

    fn counted(&self, connection: &mut Connection) -> PgResult<BTreeMap<Relation, Counts>> {
        let mut found = BTreeMap::new();
        if self.counts.is_none() {
            return Ok(found);
        }
        let all = self.planned.keys().chain(self.following.keys());
        for (schema, name) in all {
            let sql = format!(
                "SELECT pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid), pg_catalog.pg_stat_get_xact_tuples_updated(c.oid), \
                 pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid) FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = {} AND c.relname = {}",
                literal(schema),
                literal(name)
            );
            let row = connection.query(&sql)?.into_iter().next();
            let texts: [String; 3] = row.unwrap_or_default().map_texts();
            let counts = texts.map(|text| text.parse().unwrap_or(0));
            found.insert((schema.clone(), name.clone()), counts);
        }
        Ok(found)
    }

    /// Refuses where more was written than the plan says. The locks are looked at by another connection: a function may have changed the
    /// settings of this one.
    pub(super) fn check(&self, connection: &mut Connection, original: &Original) -> Result<()> {
        let looked = |error| failed("be looked at", &error);
        connection.query("SET search_path TO ''").map_err(looked)?;
        let own = connection.value("SELECT pg_catalog.pg_backend_pid()");
        let own = own.map_err(looked)?.unwrap_or_default();
        let locks = original
            .open()?
            .query(&format!("{LOCKS}{own} GROUP BY 1, 2 ORDER BY 1, 2"));
        for row in locks.map_err(looked)? {
            let [schema, name, rows, more, alone] = row.map_texts();
            let one = (schema, name);
            let (written, altered) = (self.planned.contains_key(&one), self.altered.contains(&one));
            let rows = rows == "true" && !written && !self.following.contains_key(&one);
            let more = more == "true" && !written && !altered;
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
        for (one, counts) in self.counted(connection).map_err(looked)? {
            let gone = self.counts.as_ref().and_then(|[_, gone]| gone.get(&one));
            let gone = gone.copied().unwrap_or_default();
            let planned = self.planned.get(&one).copied().unwrap_or_default();
            // A row of the plan that follows another one may be updated before its own turn.
            let ways = self.following.get(&one).copied().unwrap_or(0);
            let more = [0, ways * (planned[1] + planned[2]), 0];
            let fits = |at: usize| {
                (planned[at]..=planned[at] + more[at]).contains(&(counts[at] - gone[at]))
            };
            if !(0..3).all(fits) {
                return Err(beyond(&one));
            }
        }
        Ok(())
    }
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
