//! Chains of hashes over the log, by which a later change of it is seen.
//!
//! One has a seal for each operation that began, the other for each that ended. A seal covers the one before
//! it and what the log says of its operation at that moment. How many there are, and the last of them, is
//! kept apart from them, so that taking some off the end is seen as well.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::LogFault;

/// Everything the log says of an operation, in the order in which it is sealed.
pub(super) const ENTRY: &str = "operation.seq, operation.id, operation.principal, operation.action,
    operation.plan_id, operation.target, operation.owner_pid, operation.owner_start,
    operation.owner_boot, operation.started_at, operation.message, operation.resources,
    operation.paths, operation.path_count, operation.outcome, operation.error, operation.reason,
    operation.finished_at";

/// One of the chains.
pub(super) struct Chain {
    table: &'static str,
    head: &'static str,
    /// How many columns of an entry it covers: all, or those that are known at the beginning.
    columns: usize,
    /// What is hashed before the first.
    seed: &'static [u8],
    /// Which of the operations it covers.
    of: &'static str,
}

/// Over how operations ended.
pub(super) const ENDS: Chain = Chain {
    table: "seal",
    head: "seal_head",
    columns: 18,
    seed: b"escrow operation log 1",
    of: "outcome <> 'running'",
};

/// Over how they began.
pub(super) const BEGINNINGS: Chain = Chain {
    table: "beginning",
    head: "beginning_head",
    columns: 12,
    seed: b"escrow operation beginnings 1",
    of: "TRUE",
};

pub(super) type Hash = [u8; 32];

/// How far a chain is right: how many seals, the last of them, and what is wrong with the next.
pub(super) struct Followed {
    pub(super) count: u64,
    pub(super) last: Hash,
    pub(super) fault: Option<LogFault>,
}

impl Chain {
    fn first(&self) -> Hash {
        *blake3::hash(self.seed).as_bytes()
    }

    /// Seals what was there before the chain was. Does nothing where it is begun.
    pub(super) fn begin(&self, connection: &Connection) -> rusqlite::Result<()> {
        if self.head(connection)?.is_some() {
            return Ok(());
        }
        let (head, of) = (self.head, self.of);
        connection.execute(
            &format!("INSERT INTO {head} (one, count, hash) VALUES (1, 0, ?1)"),
            params![self.first()],
        )?;
        let mut query =
            connection.prepare(&format!("SELECT id FROM operation WHERE {of} ORDER BY seq"))?;
        let all: Vec<String> = query
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        all.iter().try_for_each(|id| self.seal(connection, id))
    }

    /// How many seals there are, and the last one.
    fn head(&self, connection: &Connection) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
        let query = format!("SELECT count, hash FROM {}", self.head);
        connection
            .query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
    }

    /// Puts the next seal on an operation. The caller is in a transaction that writes.
    pub(super) fn seal(&self, connection: &Connection, id: &str) -> rusqlite::Result<()> {
        let (table, head) = (self.table, self.head);
        // A seal that somebody took away, or put behind the end, is neither replaced nor used again.
        let query = format!("SELECT max(position), hash FROM {table}");
        let (top, above): (Option<i64>, Option<Vec<u8>>) =
            connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (count, before) = match self.head(connection)? {
            Some(head) => head,
            None => (0, above.unwrap_or_else(|| self.first().to_vec())),
        };
        let position = count.max(top.unwrap_or(0)) + 1;
        let query = format!("SELECT {ENTRY} FROM operation WHERE id = ?1");
        let hash =
            connection.query_row(&query, [id], |row| self.hash(&before, position, row, 0))?;
        connection.execute(
            &format!("INSERT INTO {table} (position, operation_id, hash) VALUES (?1, ?2, ?3)"),
            params![position, id, hash],
        )?;
        connection.execute(
            &format!("UPDATE {head} SET count = count + 1, hash = ?1"),
            params![hash],
        )?;
        Ok(())
    }

    /// The hash of an entry: what was before it, its place, and each column with its kind and length.
    fn hash(
        &self,
        before: &[u8],
        position: i64,
        row: &Row<'_>,
        first: usize,
    ) -> rusqlite::Result<Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(before).update(&position.to_le_bytes());
        let mut add = |kind: u8, bytes: &[u8]| {
            let length = bytes.len() as u64;
            hasher.update(&[kind]).update(&length.to_le_bytes());
            hasher.update(bytes);
        };
        for column in first..first + self.columns {
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

    /// Follows the chain to its end, and looks whether that is where it should be and nothing is beside it.
    pub(super) fn check(&self, connection: &Connection) -> rusqlite::Result<Followed> {
        let mut followed = self.follow(connection)?;
        if followed.fault.is_none() {
            followed.fault = self.check_end(connection, &followed)?;
        }
        Ok(followed)
    }

    fn follow(&self, connection: &Connection) -> rusqlite::Result<Followed> {
        let mut query = connection.prepare(&format!(
            "SELECT chain.position, chain.operation_id, chain.hash, {ENTRY}
             FROM {} AS chain LEFT JOIN operation ON operation.id = chain.operation_id
             ORDER BY chain.position",
            self.table
        ))?;
        let mut rows = query.query([])?;
        let (mut count, mut last) = (0, self.first());
        while let Some(row) = rows.next()? {
            let next: u64 = count + 1;
            let position: i64 = row.get(0)?;
            let wrong = |operation: Option<String>, what: &str| {
                Ok(Followed {
                    count,
                    last,
                    fault: Some(LogFault {
                        entry: next,
                        operation,
                        what: what.to_owned(),
                    }),
                })
            };
            let operation: Option<String> = row.get(1)?;
            if position != next.cast_signed() {
                return wrong(None, "it is missing");
            }
            if row.get_ref(3)? == ValueRef::Null {
                return wrong(operation, "it was removed");
            }
            let right = self.hash(&last, position, row, 3)?;
            if row.get_ref(2)?.as_blob().ok() != Some(&right) {
                let what =
                    "it is not what was recorded: it was changed, or another one is in its place";
                return wrong(operation, what);
            }
            (count, last) = (next, right);
        }
        Ok(Followed {
            count,
            last,
            fault: None,
        })
    }

    fn check_end(
        &self,
        connection: &Connection,
        followed: &Followed,
    ) -> rusqlite::Result<Option<LogFault>> {
        let found = followed.count.cast_signed();
        let fault = |later: bool, operation: Option<String>, what: String| {
            Ok(Some(LogFault {
                entry: followed.count + u64::from(later),
                operation,
                what,
            }))
        };
        let Some((count, hash)) = self.head(connection)? else {
            let what = "whether it is there is not known: the end of the log was removed";
            return fault(true, None, what.to_owned());
        };
        if count != found || hash != followed.last {
            let what = match count > found {
                true => format!("it is missing, and what followed it: there were {count}"),
                false => format!("it is more than was recorded: there were {count}"),
            };
            return fault(count > found, None, what);
        }
        let query = format!(
            "SELECT id FROM operation
             WHERE {} AND id NOT IN (SELECT operation_id FROM {}) ORDER BY seq LIMIT 1",
            self.of, self.table
        );
        let beside: Option<String> = connection
            .query_row(&query, [], |row| row.get(0))
            .optional()?;
        match beside {
            Some(id) => fault(true, Some(id), "it was put in, not recorded".to_owned()),
            None => Ok(None),
        }
    }
    /// Goes back to what was right before an operation was sealed, if it was.
    pub(super) fn stop_before(
        &self,
        connection: &Connection,
        operation: &str,
        followed: &mut Followed,
    ) -> rusqlite::Result<()> {
        let table = self.table;
        let query = format!("SELECT position FROM {table} WHERE operation_id = ?1");
        let found = connection.query_row(&query, [operation], |row| row.get::<_, i64>(0));
        let Some(position) = found.optional()? else {
            return Ok(());
        };
        followed.count = position.cast_unsigned() - 1;
        let query = format!("SELECT hash FROM {table} WHERE position = ?1 - 1");
        let before = connection.query_row(&query, [position], |row| row.get(0));
        followed.last = before.optional()?.unwrap_or_else(|| self.first());
        Ok(())
    }
}
