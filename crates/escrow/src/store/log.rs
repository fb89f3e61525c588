//! The operation log: one hash chain of events, which reveals a later change.
//!
//! An operation is two events: that it began, with everything known then, and how it ended. The hash of an event covers
//! the one before it. The number of events and the last hash are kept apart from them, so that a missing end is seen as
//! well. Who can write the store can also put a whole new chain in its place; to notice that, the last hash must be
//! known from elsewhere.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{LogCheck, LogFault, LoggedOperation, Operation, OperationEnd, OperationOutcome};
use super::sqlite::{Result, Store, StoreError, json};
use crate::model::text::Location;
use crate::model::{OperationId, PlanId};

/// How many operations are read at a time.
const PAGE: i64 = 500;

/// What is hashed before the first event.
const SEED: &[u8] = b"escrow event log 1";

/// An operation begins. The body is the operation.
const BEGIN: &str = "begin";

/// It ended. The body is how.
const END: &str = "end";

/// The log of an earlier version was brought over. The body has its length and its last hash.
const IMPORT: &str = "import";

type Hash = [u8; 32];

impl Store {
    /// Notes that an operation begins.
    pub fn begin(&self, operation: &Operation) -> Result<()> {
        self.transact(|connection| begin(connection, operation))
    }

    /// Notes how an operation ended; one that another process ended already stays as it is.
    pub(crate) fn end(&self, id: OperationId, ended: &OperationEnd) -> Result<()> {
        let found = self.transact(|connection| end(connection, id, ended))?;
        match found {
            true => Ok(()),
            false => Err(StoreError::Damaged {
                path: Location::from(self.path()),
                what: format!("the operation {id} is not in the log any more"),
            }),
        }
    }

    /// Notes an operation that ended before it began.
    pub fn note(&self, operation: &Operation, ended: &OperationEnd) -> Result<()> {
        self.transact(|connection| note(connection, operation, ended))
    }

    /// The operations that have not ended, oldest first. Their owners may be dead.
    pub(crate) fn running(&self) -> Result<Vec<Operation>> {
        // In this order of tables: the other way round all of the log would be read.
        self.all(
            "SELECT event.body FROM running
             CROSS JOIN event ON event.operation_id = running.operation_id AND event.kind = 'begin'
             ORDER BY event.position",
            &[],
            |row| json(row, 0),
        )
    }

    /// The operations that began after an event, or those of one plan, oldest first: some of them, and none where
    /// there are no more.
    pub(crate) fn log_page(
        &self,
        plan: Option<PlanId>,
        after: i64,
    ) -> Result<Vec<LoggedOperation>> {
        let of = match plan {
            Some(_) => "began.plan_id = ?1",
            None => "?1 IS NULL",
        };
        let query = format!(
            "SELECT began.position, began.body, ended.body FROM event AS began
             LEFT JOIN event AS ended
               ON ended.operation_id = began.operation_id AND ended.kind = 'end'
             WHERE {of} AND began.kind = 'begin' AND began.position > ?2
             ORDER BY began.position LIMIT ?3"
        );
        self.all(&query, params![plan, after, PAGE], logged)
    }

    /// Who made a plan.
    pub(crate) fn maker(&self, plan: PlanId) -> Result<Option<String>> {
        let query = "SELECT json_extract(body, '$.principal') FROM event
             WHERE plan_id = ?1 AND kind = 'begin' AND json_extract(body, '$.action') = 'plan create'
             ORDER BY position LIMIT 1";
        let found = self.all(query, params![plan], |row| row.get(0))?;
        Ok(found.into_iter().next())
    }

    /// Whether a command ran in a plan, as its last operations say; older ones are not read.
    pub(crate) fn ran_lately(&self, plan: PlanId) -> Result<bool> {
        let query = "SELECT EXISTS (SELECT 1 FROM (
                 SELECT body FROM event WHERE plan_id = ?1 AND kind = 'begin' ORDER BY position DESC LIMIT 64
             ) WHERE json_extract(body, '$.action') = 'run')";
        self.run(|connection| connection.query_row(query, params![plan], |row| row.get(0)))
    }

    /// The end of the chain, as [`Self::check_log`] takes it.
    pub(crate) fn log_head(&self) -> Result<String> {
        self.run(|connection| {
            let (count, hash) = head(connection)?.unwrap_or_else(|| (0, first().to_vec()));
            Ok(format!("{count}:{}", hex(&hash)))
        })
    }

    /// Follows the chain, and compares its end with what is known of it; and one entry with the hash that the caller kept.
    pub fn check_log(&self, expected: Option<&(u64, String)>) -> Result<LogCheck> {
        self.run(|connection| {
            // One state of the store: others go on writing.
            let state = connection.unchecked_transaction()?;
            let (entries, last, fault) = follow(&state)?;
            let fault = match fault {
                None => check_end(&state, entries, last)?,
                fault => fault,
            };
            let fault = match (fault, expected) {
                (None, Some((entry, hash))) => check_expected(&state, *entry, hash)?,
                (fault, _) => fault,
            };
            Ok(LogCheck {
                entries,
                head: hex(&last),
                fault,
            })
        })
    }
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn begin(connection: &Connection, operation: &Operation) -> rusqlite::Result<()> {
    let id = operation.id.to_string();
    append(connection, BEGIN, &id, operation.plan_id, &text(operation))?;
    let query = "INSERT INTO running (operation_id) VALUES (?1)";
    connection.execute(query, [id]).map(drop)
}

fn note(
    connection: &Connection,
    operation: &Operation,
    ended: &OperationEnd,
) -> rusqlite::Result<()> {
    begin(connection, operation)?;
    end(connection, operation.id, ended).map(drop)
}

/// Notes an operation that is one transaction, in that.
pub(super) fn done(
    transaction: &Connection,
    operation: &Operation,
    at: Timestamp,
) -> rusqlite::Result<()> {
    note(
        transaction,
        operation,
        &OperationEnd::plain(OperationOutcome::Done, at),
    )
}

/// Whether there is such an operation.
fn end(connection: &Connection, id: OperationId, ended: &OperationEnd) -> rusqlite::Result<bool> {
    let id = id.to_string();
    let query = "SELECT 1 FROM event WHERE operation_id = ?1 AND kind = ?2";
    let has = |kind| {
        connection
            .prepare_cached(query)?
            .exists([id.as_str(), kind])
    };
    if !has(BEGIN)? {
        return Ok(false);
    }
    if !has(END)? {
        append(connection, END, &id, None, &text(ended))?;
    }
    let query = "DELETE FROM running WHERE operation_id = ?1";
    connection.execute(query, [id]).map(|_| true)
}

fn text(body: &impl serde::Serialize) -> String {
    serde_json::to_string(body).expect("texts and numbers are JSON")
}

fn logged(row: &Row<'_>) -> rusqlite::Result<LoggedOperation> {
    let has_ended = row.get_ref(2)? != rusqlite::types::ValueRef::Null;
    let ended: Option<OperationEnd> = has_ended.then(|| json(row, 2)).transpose()?;
    let finished_at = ended.as_ref().map(|ended| ended.at);
    let running = || OperationEnd::plain(OperationOutcome::Running, Timestamp::UNIX_EPOCH);
    let ended = ended.unwrap_or_else(running);
    Ok(LoggedOperation {
        seq: row.get(0)?,
        operation: json(row, 1)?,
        paths: ended.paths,
        path_count: ended.path_count,
        outcome: ended.outcome.as_str().to_owned(),
        error: ended.error,
        reason: ended.reason,
        finished_at,
    })
}

/// Adds an event. The caller is in a transaction that writes.
fn append(
    connection: &Connection,
    kind: &str,
    operation: &str,
    plan: Option<PlanId>,
    body: &str,
) -> rusqlite::Result<()> {
    // An event that was taken away, or put behind the end, is neither replaced nor built upon.
    let query = "SELECT max(position) FROM event";
    let top: Option<i64> = connection.query_row(query, [], |row| row.get(0))?;
    let (count, before) = head(connection)?.unwrap_or_else(|| (0, first().to_vec()));
    let position = count.max(top.unwrap_or(0)) + 1;
    let plan = plan.map(|id| id.to_string());
    let hash = hash(
        &before,
        position,
        [Some(kind), Some(operation), plan.as_deref(), Some(body)],
    );
    connection.execute(
        "INSERT INTO event (position, kind, operation_id, plan_id, body, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![position, kind, operation, plan, body, hash],
    )?;
    let query = "UPDATE event_head SET count = count + 1, hash = ?1";
    connection.execute(query, params![hash]).map(drop)
}

fn first() -> Hash {
    *blake3::hash(SEED).as_bytes()
}

/// How many events there are, and the hash of the last.
fn head(connection: &Connection) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
    let query = "SELECT count, hash FROM event_head";
    connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// The hash of an event: what was before it, its place, and each column with its length.
fn hash(before: &[u8], position: i64, columns: [Option<&str>; 4]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&position.to_le_bytes());
    for column in columns {
        let length = column.map_or(u64::MAX, |text| text.len() as u64);
        hasher.update(&length.to_le_bytes());
        hasher.update(column.unwrap_or_default().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// How far the chain is right: how many events, the hash of the last of them, and what is wrong with the next.
fn follow(connection: &Connection) -> rusqlite::Result<(u64, Hash, Option<LogFault>)> {
    let mut query = connection.prepare(
        "SELECT position, hash, kind, operation_id, plan_id, body FROM event ORDER BY position",
    )?;
    let mut rows = query.query([])?;
    let (mut count, mut last) = (0, first());
    while let Some(row) = rows.next()? {
        let entry: u64 = count + 1;
        let column = |at: usize| {
            row.get_ref(at)
                .map(|value| value.as_str_or_null().ok().flatten())
        };
        let columns = [column(2)?, column(3)?, column(4)?, column(5)?];
        let right = hash(&last, entry.cast_signed(), columns);
        let what = if row.get::<_, i64>(0)? != entry.cast_signed() {
            "it is missing"
        } else if row.get_ref(1)?.as_blob().ok() != Some(&right) {
            "it is not what was recorded: it was changed, or another one is in its place"
        } else {
            (count, last) = (entry, right);
            continue;
        };
        let fault = LogFault {
            entry,
            operation: columns[1].filter(|id| !id.is_empty()).map(str::to_owned),
            what: what.to_owned(),
        };
        return Ok((count, last, Some(fault)));
    }
    Ok((count, last, None))
}

/// Compares an entry with the hash that it had once.
fn check_expected(
    connection: &Connection,
    entry: u64,
    expected: &str,
) -> rusqlite::Result<Option<LogFault>> {
    let query = "SELECT hash, operation_id FROM event WHERE position = ?1";
    let mut query = connection.prepare(query)?;
    let found = query.query_row([entry.cast_signed()], |row| {
        Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<String>>(1)?))
    });
    let (operation, what) = match found.optional()? {
        // Before the first entry there is nothing that could have been changed.
        None if entry == 0 => return Ok(None),
        None => (None, "it is missing: the end of the log was cut off"),
        Some((hash, _)) if hex(&hash).eq_ignore_ascii_case(expected) => return Ok(None),
        Some((_, operation)) => (
            operation,
            "it has another hash than it had: the log was made anew",
        ),
    };
    let what = what.to_owned();
    Ok(Some(LogFault {
        entry,
        operation,
        what,
    }))
}

fn check_end(
    connection: &Connection,
    found: u64,
    last: Hash,
) -> rusqlite::Result<Option<LogFault>> {
    let fault = |later: bool, what: String| {
        Some(LogFault {
            entry: found + u64::from(later),
            operation: None,
            what,
        })
    };
    let found = found.cast_signed();
    Ok(match head(connection)? {
        None => fault(
            true,
            "whether it is there is not known: the end of the log was removed".to_owned(),
        ),
        Some((count, hash)) if count == found && hash == last => None,
        Some((count, _)) if count > found => fault(
            true,
            format!("it is missing, and what followed it: there were {count}"),
        ),
        Some((count, _)) => fault(
            false,
            format!("it is more than was recorded: there were {count}"),
        ),
    })
}

/// Begins the chain of a store that has none, with what the log of an earlier version says: it is sealed as it was
/// found.
pub(super) fn begin_chain(connection: &Connection) -> rusqlite::Result<()> {
    if head(connection)?.is_some() {
        return Ok(());
    }
    let query = "INSERT INTO event_head (one, count, hash) VALUES (1, 0, ?1)";
    connection.execute(query, params![first()])?;
    let query = "SELECT count, hash FROM seal_head";
    let old: Option<(i64, Vec<u8>)> = connection
        .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((count, hash)) = old {
        let body = serde_json::json!({"entries": count, "head": hex(&hash)});
        append(connection, IMPORT, "", None, &body.to_string())?;
    }
    let mut query = connection.prepare(
        "SELECT id, plan_id,
                json_object('id', id, 'principal', principal, 'action', action, 'plan_id', plan_id,
                            'target', target, 'started_at', started_at, 'message', message,
                            'owner', json_object('pid', owner_pid, 'start', owner_start, 'boot', owner_boot),
                            'resources', CASE WHEN json_valid(resources) THEN json(resources) ELSE json('[]') END),
                CASE outcome WHEN 'running' THEN NULL ELSE
                json_object('outcome', outcome, 'error', error, 'reason', reason, 'at', finished_at,
                            'paths', CASE WHEN json_valid(paths) THEN json(paths) ELSE json('[]') END,
                            'path_count', path_count) END
         FROM operation ORDER BY seq",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let (id, plan): (String, Option<String>) = (row.get(0)?, row.get(1)?);
        let (began, ended): (String, Option<String>) = (row.get(2)?, row.get(3)?);
        // One whose plan cannot be read is still told of.
        let plan = plan.and_then(|plan| plan.parse().ok());
        append(connection, BEGIN, &id, plan, &began)?;
        match ended {
            Some(ended) => append(connection, END, &id, None, &ended)?,
            None => {
                connection.execute("INSERT INTO running VALUES (?1)", [id])?;
            }
        }
    }
    drop(rows);
    drop(query);
    connection.execute_batch(
        "DROP TABLE operation; DROP TABLE seal; DROP TABLE seal_head;
         DROP TABLE beginning; DROP TABLE beginning_head;",
    )
}
