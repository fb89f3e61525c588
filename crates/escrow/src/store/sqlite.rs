//! The SQLite database: opens it, migrates it, and runs transactions.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, Type, ValueRef};
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, ffi,
    params,
};
use rustix::io::Errno;

use super::identity::{self, LostRecords};
use super::rows::{Operation, Resource, SandboxRecord};
use super::{log, mapping};
use crate::failpoints;
use crate::fs::ballast::with_ballast;
use crate::fs::generation::Generation;
use crate::fs::state_dir;
use crate::fs::{Cause, Dir, FsError};
use crate::model::text::Location;
use crate::model::{
    CheckpointId, CommitId, JournaledWork, Phase, PlanId, PlanState, ResourceId, SandboxId,
    SandboxState, Shape,
};

/// The steps from an empty store to the present one; step n makes version n + 1.
const MIGRATIONS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
    include_str!("schema/0006.sql"),
    include_str!("schema/0007.sql"),
    include_str!("schema/0008.sql"),
    include_str!("schema/0009.sql"),
    include_str!("schema/0010.sql"),
    include_str!("schema/0011.sql"),
    include_str!("schema/0012.sql"),
    include_str!("schema/0014.sql"),
    include_str!("schema/0016.sql"),
    include_str!("schema/0017.sql"),
    include_str!("schema/0018.sql"),
    include_str!("schema/0019.sql"),
];

/// The newest version.
const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Tells our files from anyone else's SQLite databases ("escr").
const APPLICATION_ID: i32 = 0x6573_6372;

/// Free pages that the store may keep for what comes next.
const SPARE_PAGES: i64 = 16;

/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(20);

/// Why the store did not answer.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "what each one says is its description")]
pub enum StoreError {
    #[error(
        "the state in '{path}' was written by a newer version of Escrow ({found}; this one knows {known})"
    )]
    Newer {
        path: Location,
        found: i64,
        known: i64,
    },
    #[error("'{path}' is not a state store of Escrow")]
    Foreign { path: Location },
    #[error(
        "the state in '{path}' is not what its version says ({what}); an unreleased build of Escrow may have made it"
    )]
    OtherTables { path: Location, what: String },
    #[error("the state in '{path}' is in use by another process")]
    Busy { path: Location },
    #[error("it exists already")]
    Exists,
    #[error("the state in '{path}' is damaged: {what}")]
    Damaged { path: Location, what: String },
    #[error("the state in '{path}' lost records: {lost}")]
    Lost { path: Location, lost: LostRecords },
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the state in '{path}' cannot be read or written")]
    Sqlite {
        path: Location,
        source: rusqlite::Error,
    },
}

pub(super) type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    /// Whether it may be that the disk is full, of bytes or of files. A failed sync is none of these: what it left
    /// is unknown, and is never tried again.
    pub(crate) fn wants_room(&self) -> bool {
        match self {
            Self::Sqlite { source, .. } => {
                let code = source.sqlite_error().map(|error| error.extended_code);
                matches!(
                    code,
                    Some(
                        ffi::SQLITE_FULL
                            | ffi::SQLITE_CANTOPEN
                            | ffi::SQLITE_IOERR_WRITE
                            | ffi::SQLITE_IOERR_SHMOPEN
                            | ffi::SQLITE_IOERR_SHMSIZE
                            | ffi::SQLITE_IOERR_SHMMAP
                    )
                )
            }
            Self::Fs(error) => error.is(Errno::NOSPC) || error.is(Errno::DQUOT),
            _ => false,
        }
    }
}

/// An open state store.
pub struct Store {
    connection: Mutex<Connection>,
    path: PathBuf,
    home: Dir,
    _steps: failpoints::Steps,
}

impl Store {
    /// Opens the store at `path`, which is made where it is missing, and brings it to the present version. One that
    /// lost records of areas is refused, and left as it is.
    pub fn open(path: &Path) -> Result<Self> {
        mapping::allocate_before_use();
        let home = Dir::open(path.parent().unwrap_or(path))?;
        // Read before the store: whatever it counts was recorded before.
        let written = Generation::read(&home)?;
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let absent = || Ok::<_, StoreError>(home.stat(name)?.is_none());
        if absent()? {
            let lost = (written.is_some() || identity::has_areas(&home)?) && absent()?;
            identity::refuse(path, lost.then_some(LostRecords::Empty))?;
            with_room(&home, || Ok(state_dir::make_file(&home, name)?))?;
        }
        // A link would lead to a store that another process chose.
        if home.stat(name)?.is_some_and(|meta| !meta.is_file()) {
            let cause = Cause::Damaged("it is not a regular file");
            return Err(home.error("open the store", name, cause).into());
        }
        let mut connection = with_room(&home, || {
            let opened = Connection::open(path);
            opened.map_err(|source| failed(path, source))
        })?;
        let waits = connection.busy_timeout(BUSY);
        waits.map_err(|source| failed(path, source))?;
        let steps =
            failpoints::Steps::of(&mut connection).map_err(|source| failed(path, source))?;
        let store = Self {
            connection: Mutex::new(connection),
            path: path.to_owned(),
            home,
            _steps: steps,
        };
        // Looked at before anything is written: what is not ours stays as it is.
        store.recognise(written.as_ref())?;
        store.configure()?;
        store.migrate()?;
        Ok(store)
    }

    /// Checks that the file is a store that this version knows and that lost nothing, or empty and the first one here.
    fn recognise(&self, written: Option<&Generation>) -> Result<()> {
        let fresh = |own: &Option<Option<Generation>>| own.is_none();
        let mut own = self.look()?;
        // Looked at again: another process may have made the store, and its first area, meanwhile.
        if fresh(&own) && (written.is_some() || identity::has_areas(&self.home)?) {
            own = self.look()?;
        }
        let lost = match &own {
            None if written.is_some() || identity::has_areas(&self.home)? => {
                Some(LostRecords::Empty)
            }
            None => None,
            Some(own) => identity::compare(own.as_ref(), written),
        };
        identity::refuse(&self.path, lost)
    }

    /// What a store of a known version says of itself; `None` where the file is empty.
    fn look(&self) -> Result<Option<Option<Generation>>> {
        let path = || Location::from(self.path.as_path());
        // In one transaction: another process may be making the store now.
        let (found, application, entries, own) = self.run(|connection| {
            let looked = connection.unchecked_transaction()?;
            let number = |query: &str| looked.query_row(query, [], |row| row.get::<_, i64>(0));
            Ok((
                number("PRAGMA user_version")?,
                number("PRAGMA application_id")?,
                number("SELECT count(*) FROM sqlite_schema")?,
                identity::identity(&looked)?,
            ))
        })?;
        let (ours, empty) = (application == i64::from(APPLICATION_ID), entries == 0);
        match (ours, empty) {
            (true, _) if found > KNOWN => Err(StoreError::Newer {
                path: path(),
                found,
                known: KNOWN,
            }),
            (true, false) if found >= 0 => Ok(Some(own)),
            (_, true) if found == 0 => Ok(None),
            _ => Err(StoreError::Foreign { path: path() }),
        }
    }

    fn configure(&self) -> Result<()> {
        let start = Instant::now();
        // The change to WAL does not wait for others by itself.
        loop {
            let wal =
                |connection: &Connection| connection.pragma_update(None, "journal_mode", "WAL");
            match self.run(wal) {
                Err(StoreError::Busy { .. }) if start.elapsed() < BUSY => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                answer => break answer?,
            }
        }
        self.run(|connection| {
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "foreign_keys", true)?;
            connection.pragma_update(None, "trusted_schema", false)
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn home_dir(&self) -> &Dir {
        &self.home
    }

    /// Gives back the room of what was removed from the store, if it is worth it. It needs room itself, for as long as it
    /// takes, and the ballast is not for that.
    pub(crate) fn shrink(&self) -> Result<()> {
        let shrink = |connection: &Connection| {
            let number = |name| connection.query_row(name, [], |row| row.get::<_, i64>(0));
            let free = number("PRAGMA freelist_count")?;
            if free < SPARE_PAGES || free * 4 < number("PRAGMA page_count")? {
                return Ok(());
            }
            connection.execute_batch("VACUUM")?;
            // What is in the write-ahead log reaches the file, which is cut only then.
            let moved = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            moved.optional().map(drop)
        };
        shrink(&self.connection()).map_err(|source| failed(&self.path, source))
    }

    /// One thread at a time; a panic in the middle of a transaction rolled it back.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        let connection = self.connection.lock();
        connection.unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`, which may be done again: where the disk is full, with the room of the ballast.
    pub(super) fn run<T>(&self, work: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        self.with_room(|| work(&self.connection()).map_err(|source| failed(&self.path, source)))
    }

    pub(super) fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        with_room(&self.home, || match work() {
            Err(error) if error.wants_room() => {
                self.move_log()?;
                work()
            }
            done => done,
        })
    }

    /// Moves what is in the write-ahead log into the file, where its pages have their place: the next transaction begins the
    /// log anew instead of making it longer. Where others read, it stays.
    fn move_log(&self) -> Result<()> {
        let moved = self
            .connection()
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        moved
            .optional()
            .map(drop)
            .map_err(|source| failed(&self.path, source))
    }

    fn migrate(&self) -> Result<()> {
        let version = |connection: &Connection| {
            connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))
        };
        if self.run(version)? == KNOWN {
            return Ok(());
        }
        let newer = self.transact(|transaction| {
            // Looked at again inside: another process may have just done it.
            let found = version(transaction)?;
            if found > KNOWN {
                return Ok(Some(found));
            }
            let missing = usize::try_from(found)
                .ok()
                .and_then(|found| MIGRATIONS.get(found..));
            for step in missing.unwrap_or_default() {
                transaction.execute_batch(step)?;
            }
            log::begin_chain(transaction)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", KNOWN)?;
            Ok(None)
        })?;
        match newer {
            None => Ok(()),
            Some(found) => Err(StoreError::Newer {
                path: Location::from(self.path.as_path()),
                found,
                known: KNOWN,
            }),
        }
    }

    /// The rows that a query finds.
    pub(super) fn all<T>(
        &self,
        query: &str,
        params: &[&dyn ToSql],
        row: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        self.run(|connection| {
            let mut query = connection.prepare_cached(query)?;
            query.query_map(params, &row)?.collect()
        })
    }

    /// The one value that a query finds.
    pub(super) fn one<T: FromSql>(&self, query: &str, params: &[&dyn ToSql]) -> Result<T> {
        self.run(|connection| connection.query_row(query, params, |row| row.get(0)))
    }

    /// Changes rows in a transaction of its own.
    pub(super) fn execute(&self, query: &str, params: &[&dyn ToSql]) -> Result<()> {
        self.run(|connection| connection.execute(query, params).map(drop))
    }

    /// Does `work` in one transaction that writes.
    pub(super) fn transact<T>(
        &self,
        work: impl Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        self.run(|connection| {
            let transaction =
                Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        })
    }

    /// Adds a resource; its name and its location are free.
    pub(crate) fn add_resource(&self, resource: &Resource, by: &Operation) -> Result<()> {
        let Resource {
            id,
            name,
            kind,
            at,
            parent,
            strategy,
            created_at,
            named,
            shape,
        } = resource;
        let created = created_at.to_string();
        self.transact(|transaction| {
            transaction.execute(
                "INSERT INTO resource (id, name, type, location, parent, strategy, created_at, named, shape)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![id, name, kind, at, parent, strategy, created, named, shape],
            )?;
            log::done(transaction, by, *created_at)
        })
    }

    /// Forgets a resource that no live sandbox uses; with `unnamed_only`, only one that the user did not name.
    /// Says whether it did. Sandboxes that were made of it keep their record.
    pub(crate) fn forget_resource(&self, id: ResourceId, unnamed_only: bool) -> Result<bool> {
        self.run(|connection| forget_resource(connection, id, unnamed_only))
    }

    pub(super) fn insert_sandbox(
        &self,
        connection: &Connection,
        sandbox: &SandboxRecord,
    ) -> rusqlite::Result<()> {
        let json = |texts: &Vec<String>| serde_json::to_string(texts).expect("texts are JSON");
        let reference = &sandbox.reference;
        let changed = connection.execute(
            "INSERT INTO sandbox (id, plan_id, resource_id, requested, strategy, state, area,
                                  metadata, message, warnings, created_at, reasons)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
             ON CONFLICT (id) DO UPDATE SET requested = ?4, strategy = ?5, state = ?6, area = ?7,
                                            metadata = ?8, message = ?9, warnings = ?10,
                                            reasons = ?12",
            params![
                sandbox.id,
                reference.plan_id,
                reference.resource_id,
                sandbox.requested,
                reference.strategy_name,
                sandbox.state,
                self.stored_location(&sandbox.area),
                self.stored_json(reference.metadata.clone()),
                sandbox.message,
                json(&sandbox.warnings),
                sandbox.created_at.to_string(),
                json(&sandbox.reasons),
            ],
        );
        changed.map(drop)
    }
}

/// Does `work`, and once more with the room of the ballast where the disk is full.
fn with_room<T>(home: &Dir, work: impl Fn() -> Result<T>) -> Result<T> {
    let is_full = |error: &StoreError| error.wants_room() && !failpoints::bug("ballast-kept");
    with_ballast(home, is_full, work)
}

/// A list of texts for a query, which takes it apart with `json_each`.
pub(super) fn list<T: ToString>(all: &[T]) -> String {
    let texts: Vec<String> = all.iter().map(T::to_string).collect();
    serde_json::to_string(&texts).expect("texts are JSON")
}

/// Types that are stored as the text they are shown by.
macro_rules! text_columns {
    ($($of:ty),+) => {$(
        impl ToSql for $of {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(self.to_string().into())
            }
        }

        impl FromSql for $of {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let parsed = value.as_str()?.parse::<Self>();
                parsed.map_err(|error| FromSqlError::Other(error.into()))
            }
        }
    )+};
}

text_columns!(
    PlanId,
    ResourceId,
    SandboxId,
    CheckpointId,
    CommitId,
    PlanState,
    SandboxState,
    Phase,
    JournaledWork,
    Shape
);

impl ToSql for Location {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_bytes().into())
    }
}

impl FromSql for Location {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self::from_bytes(value.as_blob()?))
    }
}

fn conversion(
    column: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    let text: String = row.get(column)?;
    text.parse()
        .map_err(|error: jiff::Error| conversion(column, error))
}

pub(super) fn json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| conversion(column, error))
}

fn failed(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = Location::from(path);
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { path },
        Some(ErrorCode::NotADatabase) => StoreError::Foreign { path },
        Some(ErrorCode::ConstraintViolation) => StoreError::Exists,
        Some(ErrorCode::Unknown) | None if is_of_tables(&source) => StoreError::OtherTables {
            path,
            what: said(&source),
        },
        _ => StoreError::Sqlite { path, source },
    }
}

/// What SQLite says of a failure, without the statement.
fn said(source: &rusqlite::Error) -> String {
    match source {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}

/// Whether a statement of ours does not fit the tables there are.
fn is_of_tables(source: &rusqlite::Error) -> bool {
    let said = said(source);
    let misfits = [
        "no such column",
        "no such table",
        "has no column named",
        "duplicate column",
        "already exists",
    ];
    misfits.iter().any(|misfit| said.contains(misfit))
}

pub(super) fn forget_resource(
    connection: &Connection,
    id: ResourceId,
    unnamed_only: bool,
) -> rusqlite::Result<bool> {
    let forgotten = connection.execute(
        "UPDATE resource SET removed = 1
         WHERE id = ?1 AND removed = 0 AND (named = 0 OR NOT ?2)
           AND NOT EXISTS (SELECT 1 FROM sandbox
                           WHERE resource_id = ?1 AND state <> 'cleaned_up')",
        params![id, unnamed_only],
    )?;
    Ok(forgotten > 0)
}
