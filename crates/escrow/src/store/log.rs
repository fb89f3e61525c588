//! The log: what was done or denied, in chains that show a later change.
//!
//! The beginning of an operation is sealed, and so is its end. Whoever can write the store can also put whole
//! new chains in their place; to notice that, somebody must know the last hash from elsewhere.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{Ended, LogCheck, LogFault, Logged, Operation, Outcome};
use super::seals::{BEGINNINGS, ENDS, ENTRY, Followed};
use super::sqlite::{Result, Store, StoreError, json, parsed};
use crate::fs::process::Owner;
use crate::model::text::Location;
use crate::model::{OperationId, PlanId};

/// How many entries are read at a time.
const PAGE: i64 = 500;

impl Store {
    /// Notes that an operation begins, and seals that.
    pub fn begin(&self, operation: &Operation) -> Result<()> {
        self.transact(|connection| insert(connection, operation))
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

    /// Who made a plan.
    pub fn maker(&self, plan: PlanId) -> Result<Option<String>> {
        self.run(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT principal FROM operation INDEXED BY operation_plan
                 WHERE plan_id = ?1 AND action = 'plan create' ORDER BY seq LIMIT 1",
            )?;
            let found = query.query_row([plan.to_string()], |row| row.get(0));
            found.optional()
        })
    }

    /// Compares every entry with its seal, and the last seal with what is known of it.
    pub fn check_log(&self) -> Result<LogCheck> {
        self.run(|connection| {
            // At one moment: others go on writing.
            let moment = connection.unchecked_transaction()?;
            let mut checked = ENDS.check(&moment)?;
            if checked.fault.is_none() {
                check_beginnings(&moment, &mut checked)?;
            }
            Ok(LogCheck {
                entries: checked.count,
                head: checked
                    .last
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect(),
                fault: checked.fault,
            })
        })
    }
}

/// Seals what was there before there were seals.
pub(super) fn begin_chains(connection: &Connection) -> rusqlite::Result<()> {
    BEGINNINGS.begin(connection)?;
    ENDS.begin(connection)
}

/// Whether every operation began as it was recorded. Where one has ended, its end is the entry that is wrong.
fn check_beginnings(connection: &Connection, ends: &mut Followed) -> rusqlite::Result<()> {
    let Some(fault) = BEGINNINGS.check(connection)?.fault else {
        return Ok(());
    };
    let operation = fault.operation;
    if let Some(operation) = &operation {
        ENDS.stop_before(connection, operation, ends)?;
    }
    ends.fault = Some(LogFault {
        entry: ends.count + 1,
        what: match operation {
            Some(_) => fault.what,
            None => format!("of the beginnings, number {}: {}", fault.entry, fault.what),
        },
        operation,
    });
    Ok(())
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
    BEGINNINGS.seal(connection, &operation.id.to_string())
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
        ENDS.seal(connection, &id)?;
        return Ok(true);
    }
    let query = "SELECT 1 FROM operation WHERE id = ?1";
    // Ended by another process already, which is right too.
    connection.prepare(query)?.exists([id])
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
