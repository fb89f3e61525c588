//! The log: what was done or denied, in a chain that shows a later change.
//!
//! An operation that has ended is sealed: its hash covers the hash before it and everything the log
//! says of it. How many seals there are, and the last of them, is kept apart from them, so that
//! taking entries off the end is seen as well. Whoever can write the store can also put a whole new
//! chain in its place; to notice that, somebody must know the last hash from elsewhere.

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{Ended, LogCheck, LogFault, Logged, Operation, Outcome};
use super::sqlite::{Result, Store, StoreError, json, parsed};
use crate::fs::process::Owner;
use crate::model::text::Location;
use crate::model::{OperationId, PlanId};

/// How many entries are read at a time.
const PAGE: i64 = 500;

/// Everything the log says of an operation, in the order in which it is sealed.
const ENTRY: &str = "operation.seq, operation.id, operation.principal, operation.action,
    operation.plan_id, operation.target, operation.owner_pid, operation.owner_start,
    operation.owner_boot, operation.started_at, operation.message, operation.resources,
    operation.paths, operation.path_count, operation.outcome, operation.error, operation.reason,
    operation.finished_at";

/// How many columns that is.
const COLUMNS: usize = 18;

type Hash = [u8; 32];

/// The hash before the first entry.
fn beginning() -> Hash {
    *blake3::hash(b"escrow operation log 1").as_bytes()
}

impl Store {
    /// Notes that an operation begins.
    pub fn begin(&self, operation: &Operation) -> Result<()> {
        self.run(|connection| insert(connection, operation))
    }

    /// Notes how an operation ended, and seals it.
    pub fn end(&self, id: OperationId, ended: &Ended) -> Result<()> {
        let found = self.transact(|connection| finish(connection, id, ended))?;
        match found {
            true => Ok(()),
            false => Err(StoreError::Damaged {
                path: Location::from(self.path()),
                what: format!("the operation {id} is not in the log any more"),
            }),
        }
    }

    /// Notes an operation that ended before it began.
    pub fn note(&self, operation: &Operation, ended: &Ended) -> Result<()> {
        self.transact(|connection| {
            insert(connection, operation)?;
            finish(connection, operation.id, ended)?;
            Ok(())
        })
    }

    /// The operations that have not ended, oldest first. Their owners may be dead.
    pub fn running(&self) -> Result<Vec<Operation>> {
        self.run(|connection| {
            // Named, because SQLite would rather read the whole log than sort a few entries.
            let mut query = connection.prepare(&format!(
                "SELECT {ENTRY} FROM operation INDEXED BY operation_running
                 WHERE outcome = 'running' ORDER BY seq"
            ))?;
            let rows = query.query_map([], |row| Ok(logged_row(row)?.operation))?;
            rows.collect()
        })
    }

    /// The entries of the log after one, or those of one plan, oldest first: some of them, and none
    /// where there are no more.
    pub fn log_page(&self, plan: Option<PlanId>, after: i64) -> Result<Vec<Logged>> {
        self.run(|connection| {
            // Of one plan by its index: the log of the others is not read.
            let of = match plan {
                Some(_) => "INDEXED BY operation_plan WHERE plan_id = ?1 AND",
                None => "WHERE ?1 IS NULL AND",
            };
            let mut query = connection.prepare(&format!(
                "SELECT {ENTRY} FROM operation {of} seq > ?2 ORDER BY seq LIMIT ?3"
            ))?;
            let plan = plan.map(|id| id.to_string());
            query
                .query_map(params![plan, after, PAGE], logged_row)?
                .collect()
        })
    }

    /// Compares every entry with its seal, and the last seal with what is known of it.
    pub fn check_log(&self) -> Result<LogCheck> {
        self.run(|connection| {
            // At one moment: others go on writing.
            let moment = connection.unchecked_transaction()?;
            let (entries, last, fault) = check_seals(&moment)?;
            let fault = match fault {
                None => check_end(&moment, entries, last)?,
                found => found,
            };
            Ok(LogCheck {
                entries,
                head: last.iter().map(|byte| format!("{byte:02x}")).collect(),
                fault,
            })
        })
    }
}

/// Seals what ended before there were seals. Does nothing where there are some.
pub(super) fn begin_chain(connection: &Connection) -> rusqlite::Result<()> {
    if head(connection)?.is_some() {
        return Ok(());
    }
    connection.execute(
        "INSERT INTO seal_head (one, count, hash) VALUES (1, 0, ?1)",
        params![beginning()],
    )?;
    let mut query =
        connection.prepare("SELECT id FROM operation WHERE outcome <> 'running' ORDER BY seq")?;
    let ended: Vec<String> = query
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for id in &ended {
        seal(connection, id)?;
    }
    Ok(())
}

/// How many seals there are, and the last one.
fn head(connection: &Connection) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
    let query = "SELECT count, hash FROM seal_head";
    connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

fn insert(connection: &Connection, operation: &Operation) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO operation (id, principal, action, plan_id, target, outcome, owner_pid,
                                owner_start, owner_boot, started_at, message, resources)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            operation.id.to_string(),
            operation.principal,
            operation.action,
            operation.plan_id.map(|id| id.to_string()),
            operation.target,
            Outcome::Running.as_str(),
            operation.owner.pid,
            operation.owner.start.cast_signed(),
            operation.owner.boot,
            operation.started_at.to_string(),
            operation.message,
            texts(&operation.resources),
        ],
    )?;
    Ok(())
}

/// Ends an operation and seals it; says whether there is such a one.
fn finish(connection: &Connection, id: OperationId, ended: &Ended) -> rusqlite::Result<bool> {
    let id = id.to_string();
    let found = connection.execute(
        "UPDATE operation SET outcome = ?2, error = ?3, reason = ?4, paths = ?5, path_count = ?6,
                              finished_at = ?7
         WHERE id = ?1 AND outcome = 'running'",
        params![
            id,
            ended.outcome.as_str(),
            ended.error,
            ended.reason,
            texts(&ended.paths),
            ended.path_count.cast_signed(),
            ended.at.to_string(),
        ],
    )?;
    if found == 1 {
        seal(connection, &id)?;
        return Ok(true);
    }
    let query = "SELECT 1 FROM operation WHERE id = ?1";
    // Ended by another process already, which is right too.
    connection.prepare(query)?.exists([id])
}

/// Puts the next seal on an operation. The caller is in a transaction that writes.
fn seal(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    // A seal that somebody took away, or put behind the end, is neither replaced nor used again.
    let query = "SELECT max(position), hash FROM seal";
    let (top, above): (Option<i64>, Option<Vec<u8>>) =
        connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (count, before) = match head(connection)? {
        Some(head) => head,
        None => (0, above.unwrap_or_else(|| beginning().to_vec())),
    };
    let position = count.max(top.unwrap_or(0)) + 1;
    let query = format!("SELECT {ENTRY} FROM operation WHERE id = ?1");
    let hash = connection.query_row(&query, [id], |row| hash(&before, position, row, 0))?;
    connection.execute(
        "INSERT INTO seal (position, operation_id, hash) VALUES (?1, ?2, ?3)",
        params![position, id, hash],
    )?;
    connection.execute(
        "UPDATE seal_head SET count = count + 1, hash = ?1",
        params![hash],
    )?;
    Ok(())
}

/// The hash of an entry: what was before it, its place, and each column with its kind and length.
fn hash(before: &[u8], position: i64, row: &Row<'_>, first: usize) -> rusqlite::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&position.to_le_bytes());
    let mut add = |kind: u8, bytes: &[u8]| {
        let length = bytes.len() as u64;
        hasher.update(&[kind]).update(&length.to_le_bytes());
        hasher.update(bytes);
    };
    for column in first..first + COLUMNS {
        match row.get_ref(column)? {
            ValueRef::Null => add(0, &[]),
            ValueRef::Integer(number) => add(1, &number.to_le_bytes()),
            ValueRef::Real(number) => add(2, &number.to_le_bytes()),
            ValueRef::Text(text) => add(3, text),
            ValueRef::Blob(bytes) => add(4, bytes),
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Follows the chain: how many entries are right, the last hash, and the first that is not.
fn check_seals(connection: &Connection) -> rusqlite::Result<(u64, Hash, Option<LogFault>)> {
    let mut query = connection.prepare(&format!(
        "SELECT seal.position, seal.operation_id, seal.hash, {ENTRY}
         FROM seal LEFT JOIN operation ON operation.id = seal.operation_id
         ORDER BY seal.position"
    ))?;
    let mut rows = query.query([])?;
    let (mut count, mut before) = (0, beginning());
    while let Some(row) = rows.next()? {
        let next: u64 = count + 1;
        let position: i64 = row.get(0)?;
        let fault = |operation: Option<String>, what: &str| {
            Some(LogFault {
                entry: next,
                operation,
                what: what.to_owned(),
            })
        };
        let operation: Option<String> = row.get(1)?;
        if position != next.cast_signed() {
            return Ok((count, before, fault(None, "it is missing")));
        }
        if row.get_ref(3)? == ValueRef::Null {
            return Ok((count, before, fault(operation, "it was removed")));
        }
        let right = hash(&before, position, row, 3)?;
        if row.get_ref(2)?.as_blob().ok() != Some(&right) {
            let what =
                "it is not what was recorded: it was changed, or another one is in its place";
            return Ok((count, before, fault(operation, what)));
        }
        (count, before) = (next, right);
    }
    Ok((count, before, None))
}

/// Whether the chain ends where it should, and whether anything is beside it.
fn check_end(
    connection: &Connection,
    entries: u64,
    last: Hash,
) -> rusqlite::Result<Option<LogFault>> {
    let fault = |entry: u64, operation: Option<String>, what: String| {
        Ok(Some(LogFault {
            entry,
            operation,
            what,
        }))
    };
    let Some((count, hash)) = head(connection)? else {
        let what = "whether it is there is not known: the end of the log was removed".to_owned();
        return fault(entries + 1, None, what);
    };
    if count != entries.cast_signed() || hash != last {
        let what = match count > entries.cast_signed() {
            true => format!("it is missing, and what followed it: there were {count}"),
            false => format!("it is more than was recorded: there were {count}"),
        };
        return fault(
            entries + u64::from(count > entries.cast_signed()),
            None,
            what,
        );
    }
    let query = "SELECT id FROM operation
                 WHERE outcome <> 'running' AND id NOT IN (SELECT operation_id FROM seal)
                 ORDER BY seq LIMIT 1";
    let beside: Option<String> = connection
        .query_row(query, [], |row| row.get(0))
        .optional()?;
    match beside {
        Some(id) => fault(
            entries + 1,
            Some(id),
            "it was put in, not recorded".to_owned(),
        ),
        None => Ok(None),
    }
}

fn texts(texts: &[String]) -> String {
    serde_json::to_string(texts).expect("texts are JSON")
}

fn logged_row(row: &Row<'_>) -> rusqlite::Result<Logged> {
    let plan: Option<String> = row.get(4)?;
    let finished: Option<String> = row.get(17)?;
    Ok(Logged {
        seq: row.get(0)?,
        operation: Operation {
            id: parsed(row, 1)?,
            principal: row.get(2)?,
            action: row.get(3)?,
            plan_id: plan.map(|_| parsed(row, 4)).transpose()?,
            target: row.get(5)?,
            owner: Owner {
                pid: row.get(6)?,
                start: row.get::<_, i64>(7)?.cast_unsigned(),
                boot: row.get(8)?,
            },
            started_at: parsed::<Timestamp>(row, 9)?,
            message: row.get(10)?,
            resources: json(row, 11)?,
        },
        paths: json(row, 12)?,
        path_count: row.get::<_, i64>(13)?.cast_unsigned(),
        outcome: row.get(14)?,
        error: row.get(15)?,
        reason: row.get(16)?,
        finished_at: finished.map(|_| parsed::<Timestamp>(row, 17)).transpose()?,
    })
}
