//! The identity of a store: whether it made the areas beside it, and knows all of them.
//!
//! Each record of an area raises the store's generation in the same transaction; then the number is written into
//! `$ESCROW_HOME/generation`, and only then the area is made. A store that counts less than that file, has another
//! identity, or is empty beside areas, has lost records: it is refused, and nothing is changed.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use super::sqlite::{Result, Store, StoreError, list};
use crate::failpoints;
use crate::fs::Dir;
use crate::fs::areas;
use crate::fs::generation::Generation;
use crate::model::text::Location;
use crate::model::{CommitId, PlanId};

/// How a store differs from the one that made the areas.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostRecords {
    /// There is no store, or an empty one.
    #[error("it is empty or missing, but areas were recorded in it")]
    Empty,
    /// It is an earlier state of the same store.
    #[error(
        "it is older than the areas beside it: it knows of {found} records of areas, and {written} were made; an older copy was put back, or its write-ahead log (`state.db-wal`) is gone"
    )]
    Older {
        /// Its own generation.
        found: u64,
        /// The one beside the areas.
        written: u64,
    },
    /// It is another store.
    #[error("it is not the state that made the areas beside it, which was begun at {created}")]
    Other {
        /// When the right one was made.
        created: String,
    },
}

/// What a store says of itself; `None` where a version made it that did not count.
pub(super) fn identity(connection: &Connection) -> rusqlite::Result<Option<Generation>> {
    let there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'identity')";
    if !connection.query_row(there, [], |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    let query = "SELECT id, created_at, generation FROM identity";
    connection
        .query_row(query, [], |row| {
            Ok(Generation {
                store: row.get(0)?,
                created: row.get(1)?,
                number: row.get::<_, i64>(2)?.cast_unsigned(),
            })
        })
        .optional()
}

/// What is wrong with a store that says this of itself, beside a file that says that.
pub(super) fn compare(
    own: Option<&Generation>,
    written: Option<&Generation>,
) -> Option<LostRecords> {
    let written = written?;
    match own {
        Some(own) if own.store != written.store => Some(LostRecords::Other {
            created: written.created.clone(),
        }),
        Some(own) if own.number >= written.number => None,
        own => Some(LostRecords::Older {
            found: own.map_or(0, |own| own.number),
            written: written.number,
        }),
    }
}

/// Whether areas lie in a home, of which at least one store must have known.
pub(super) fn has_areas(home: &Dir) -> Result<bool> {
    let dir = match home.subdir(b"sandboxes") {
        Err(error) if error.is_absent() => return Ok(false),
        dir => dir?,
    };
    Ok(areas::any(&dir)?)
}

impl Store {
    /// Records new areas: `record` says whether there are any. Where they cannot be counted beside the areas as
    /// well, `withdraw` takes the record back, since nothing was made yet.
    pub(super) fn record_areas(
        &self,
        record: impl Fn(&Connection) -> rusqlite::Result<bool>,
        withdraw: impl Fn(&Connection) -> rusqlite::Result<usize>,
    ) -> Result<()> {
        let counted = self.transact(|connection| {
            if !record(connection)? {
                return Ok(None);
            }
            connection.execute("UPDATE identity SET generation = generation + 1", [])?;
            identity(connection)
        })?;
        let Some(generation) = counted else {
            return Ok(());
        };
        let written = self.with_room(|| Ok(generation.raise(self.home_dir())?));
        if written.is_err() {
            // The first failure is the one to report; a record that stays is one of an area that was never made.
            match self.run(withdraw) {
                Ok(_) | Err(_) => {}
            }
        }
        written
    }

    /// Names of areas, and ids, whose record was removed.
    pub(crate) fn over(&self) -> Result<HashSet<String>> {
        let names = self.all("SELECT name FROM over", &[], |row| row.get(0))?;
        Ok(names.into_iter().collect())
    }

    /// Those of these names whose record was removed.
    pub(crate) fn over_among(&self, names: &[String]) -> Result<HashSet<String>> {
        let query = "SELECT name FROM over WHERE name IN (SELECT value FROM json_each(?1))";
        let names = self.all(query, params![list(names)], |row| row.get(0))?;
        Ok(names.into_iter().collect())
    }
}

/// Notes that whatever bears this id, or this name, is over.
pub(super) fn end(connection: &Connection, name: &str) -> rusqlite::Result<()> {
    let query = "INSERT OR IGNORE INTO over (name) VALUES (?1)";
    connection.execute(query, [name]).map(drop)
}

/// The same for every sandbox of a plan.
pub(super) fn end_sandboxes(connection: &Connection, plan: PlanId) -> rusqlite::Result<()> {
    let query = "INSERT OR IGNORE INTO over (name) SELECT id FROM sandbox WHERE plan_id = ?1";
    connection.execute(query, [plan]).map(drop)
}

/// The same for the areas of a commit that is about to be forgotten, while its plan is open: of one that is over,
/// the plan says it.
pub(super) fn end_commit(connection: &Connection, id: CommitId) -> rusqlite::Result<()> {
    let mut query = connection.prepare_cached(
        "SELECT area FROM journal_member
         JOIN journal ON journal.id = journal_id JOIN plan ON plan.id = journal.plan_id
         WHERE journal_id = ?1 AND plan.state = 'open' AND length(area) > 0",
    )?;
    let areas = query.query_map(params![id], |row| row.get(0))?;
    for area in areas.collect::<rusqlite::Result<Vec<Location>>>()? {
        let name = area.as_path().file_name().unwrap_or_default();
        if let Some(name) = areas::plain_name(name.as_encoded_bytes()) {
            end(connection, name)?;
        }
    }
    Ok(())
}

/// The error of a store that lost records; the seeded bug is what was the case before stores were compared.
pub(super) fn refuse(path: &Path, lost: Option<LostRecords>) -> Result<()> {
    match lost {
        Some(lost) if !failpoints::bug("gc-takes-unknown") => Err(StoreError::Lost {
            path: Location::from(path),
            lost,
        }),
        _ => Ok(()),
    }
}
