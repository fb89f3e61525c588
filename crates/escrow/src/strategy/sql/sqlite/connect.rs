//! Connections to databases: with a time limit, without the means by which a schema could harm, and with errors that
//! say which file is meant.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{copy_file, vfs};
use crate::fs::content::Reflinks;
use crate::fs::own_files::with_own_files;
use crate::fs::{Dir, remove};
use crate::model::text::Location;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::unsupported;

/// How long a lock of another process is waited for (rule S5).
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest value that is compared and carried over.
const LONGEST: i32 = 256 << 20;

/// Waits for a lock. Asked often: a writer that works without a rest leaves only short gaps.
fn wait(tries: i32) -> bool {
    std::thread::sleep(PAUSE);
    u128::try_from(tries).is_ok_and(|tries| tries * PAUSE.as_millis() < PATIENCE.as_millis())
}

/// How long one waits before asking for a lock again.
const PAUSE: Duration = Duration::from_millis(2);

/// For what a database is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// To read it. What another process left half done is rolled back by SQLite first, as for every reader.
    Read,
    /// To change rows as they were changed elsewhere: no trigger runs, since each has run there.
    Merge,
    /// To be worked with as its application does.
    Work,
}

/// A database, and where it is.
pub(super) struct Database {
    pub(super) sql: Connection,
    at: Location,
}

impl Database {
    /// Opens a database that exists.
    pub(super) fn open(at: &Path, purpose: Use) -> Result<Self> {
        let place = Location::from(at);
        let failed = |error| explain(&place, "open it", error);
        let Some(vfs) = vfs::name() else {
            return Err(StrategyError::Database {
                at: place,
                what: "open it".to_owned(),
                said: "SQLite does not take the file access of Escrow".to_owned(),
            });
        };
        let flags = OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let write = flags | OpenFlags::SQLITE_OPEN_READ_WRITE;
        // Where it can be written, the last reader removes what SQLite puts beside the file.
        let mut opened = Connection::open_with_flags_and_vfs(at, write, vfs);
        if purpose == Use::Read && opened.is_err() {
            let read = flags | OpenFlags::SQLITE_OPEN_READ_ONLY;
            opened = Connection::open_with_flags_and_vfs(at, read, vfs);
        }
        let mut this = Self {
            sql: opened.map_err(failed)?,
            at: place.clone(),
        };
        this.harden(purpose).map_err(failed)?;
        Ok(this)
    }

    fn harden(&mut self, purpose: Use) -> rusqlite::Result<()> {
        self.sql.busy_handler(Some(wait))?;
        let sql = &self.sql;
        // It refuses to write every table that has the name of a part of a virtual table. A merge writes those that are the user's.
        sql.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, purpose != Use::Merge)?;
        sql.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        sql.set_db_config(
            DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER,
            purpose == Use::Work,
        )?;
        // What others left in a log stays there: reading brings nothing into the file.
        if purpose == Use::Read && has_log(self.at.as_path()) {
            sql.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        }
        sql.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
        // No other file is opened, whatever the SQL says.
        sql.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
        sql.pragma_update(None, "foreign_keys", purpose == Use::Work)?;
        sql.pragma_update(None, "cell_size_check", true)
    }

    /// Where it is.
    pub(super) fn at(&self) -> &Location {
        &self.at
    }

    /// An error of SQLite, with what was tried.
    pub(super) fn failed(&self, what: &str) -> impl FnOnce(rusqlite::Error) -> StrategyError {
        let (at, what) = (self.at.clone(), what.to_owned());
        move |error| explain(&at, &what, error)
    }

    /// Whether every statement that would write fails from now on.
    pub(super) fn refuse_writes(&self, refuse: bool) -> Result<()> {
        let set = self.sql.pragma_update(None, "query_only", refuse);
        set.map_err(self.failed("set the connection up"))
    }

    /// Runs one statement.
    pub(super) fn run(&self, what: &str, statement: &str) -> Result<()> {
        let mut prepared = self.sql.prepare(statement).map_err(self.failed(what))?;
        let mut rows = prepared.query([]).map_err(self.failed(what))?;
        while rows.next().map_err(self.failed(what))?.is_some() {}
        Ok(())
    }

    /// Does something in one transaction: all of it, or nothing. `write` takes the lock of a writer first. Within a transaction
    /// that is held it is a savepoint.
    pub(super) fn transaction<T>(
        &self,
        write: bool,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let (begin, end, back) = match (self.sql.is_autocommit(), write) {
            (true, true) => ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"),
            (true, false) => ("BEGIN", "COMMIT", "ROLLBACK"),
            (false, _) => ("SAVEPOINT step", "RELEASE step", "ROLLBACK TO step"),
        };
        self.run("begin a transaction", begin)?;
        let done = work().and_then(|done| self.run("commit", end).map(|()| done));
        match done {
            Ok(done) => Ok(done),
            Err(error) => {
                // Some errors end the transaction by themselves.
                if !self.sql.is_autocommit() {
                    self.run("roll back", back)?;
                }
                if !self.sql.is_autocommit() {
                    self.run("roll back", end)?;
                }
                Err(error)
            }
        }
    }

    /// Tries something out, under the lock of a writer, and gives it up. `alone` takes the lock that a commit of it would need: there is no
    /// reader either.
    pub(super) fn trial<T>(&self, alone: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = match alone {
            true => "BEGIN EXCLUSIVE",
            false => "BEGIN IMMEDIATE",
        };
        // Changed pages stay in memory: each that is written early waits for readers, of which the caller itself may be one.
        self.run("begin a transaction", "PRAGMA cache_spill = OFF")?;
        self.run("begin a transaction", begin)?;
        let done = work();
        // Some errors end the transaction by themselves.
        if !self.sql.is_autocommit() {
            self.run("roll back", "ROLLBACK")?;
        }
        self.run("roll back", "PRAGMA cache_spill = ON")?;
        done
    }

    /// The same under the lock of a writer, which is not waited for.
    pub(super) fn trial_at_once<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let at_once = self.sql.busy_timeout(Duration::ZERO);
        at_once.map_err(self.failed("begin a transaction"))?;
        self.trial(false, work)
    }

    /// Makes a copy of it in a place of ours: of the file where that can be done, else page by page. The caller syncs it.
    pub(super) fn copy_to(&self, dir: &Dir, name: &str, reflinks: &Reflinks) -> Result<()> {
        if self.transaction(false, || self.copy_locked(dir, name, reflinks))? {
            return Ok(());
        }
        remove::remove(dir, name.as_bytes())?;
        self.back_up(&mut empty(&dir.path().join(name))?)
    }

    /// Copies the file while SQLite's own lock keeps every other process from writing it; says whether that can be done. In
    /// a log there must be nothing: then the lock of a reader also keeps its pages from being brought into the file.
    fn copy_locked(&self, dir: &Dir, name: &str, reflinks: &Reflinks) -> Result<bool> {
        let (at, to) = (self.at.as_path(), name.as_bytes());
        let (Some(parent), Some(file)) = (at.parent(), at.file_name()) else {
            return Ok(false);
        };
        // The lock is taken by the first statement that reads.
        self.run("read it", "SELECT count(*) FROM main.sqlite_schema")?;
        if has_log(at) {
            return Ok(false);
        }
        let copied = with_own_files(|| {
            let parent = Dir::open(parent)?;
            copy_file((&parent, file.as_bytes()), (dir, to), 0o600, reflinks)
        });
        copied.transpose().map(|copied| copied.is_some())
    }

    /// Copies every page into another database, as one transaction of it. Pages are taken as of one point in time, whoever
    /// writes meanwhile.
    pub(super) fn back_up(&self, to: &mut Self) -> Result<()> {
        let place = to.at.clone();
        let into = |error| explain(&place, "copy the database", error);
        let backup = Backup::new(&self.sql, &mut to.sql).map_err(into)?;
        let start = Instant::now();
        loop {
            match backup.step(-1).map_err(self.failed("copy it"))? {
                StepResult::Done => return Ok(()),
                _ if start.elapsed() > PATIENCE => {
                    return Err(StrategyError::Locked {
                        at: self.at.clone(),
                    });
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// The name of a file that SQLite keeps beside a database.
pub(super) fn beside(at: &Path, suffix: &str) -> PathBuf {
    let mut name = at.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether a write-ahead log with something in it lies beside a database.
pub(super) fn has_log(at: &Path) -> bool {
    Dir::look(&beside(at, "-wal")).is_ok_and(|meta| meta.size > 0)
}

/// Whether a file begins as SQLite databases do; what cannot be read is none that is known. A file that is a database is only
/// opened by SQLite: another one that this process closes would take every lock of the process on the database with it.
pub(crate) fn is_database(at: &Path) -> bool {
    let mut uri = format!("file:{}", escaped(at.as_os_str().as_bytes()));
    // Nothing is locked, recovered or written beside it.
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let asked = Connection::open_with_flags(&uri, flags);
    let asked = asked.and_then(|sql| sql.query_row("PRAGMA schema_version", [], |_| Ok(())));
    // What SQLite does not take for a database, it holds no lock on.
    asked.is_ok() || has_head(at)
}

/// Bytes as the path of a URL.
pub(super) fn escaped(path: &[u8]) -> String {
    let known = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    let text = |byte: &u8| match known(byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.iter().map(text).collect()
}

fn has_head(at: &Path) -> bool {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return false;
    };
    let mut head = [0; 16];
    let opened = Dir::open(parent).and_then(|dir| dir.file(name.as_encoded_bytes()));
    opened.is_ok_and(|(mut file, _)| std::io::Read::read_exact(&mut file, &mut head).is_ok())
        && &head == b"SQLite format 3\0"
}

/// Whether SQLite can make nothing of what stands at the place of a database, not even to overwrite it.
pub(super) fn is_beyond_use(at: &Path) -> Result<bool> {
    match Dir::look(at) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Ok(true),
        Err(error) if error.is_absent() => return Ok(true),
        Err(error) => return Err(error.into()),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let Some(vfs) = vfs::name() else {
        return Ok(false);
    };
    let asked = Connection::open_with_flags_and_vfs(at, flags, vfs);
    let asked = asked.and_then(|sql| sql.query_row("PRAGMA schema_version", [], |_| Ok(())));
    let code = asked.err().and_then(|error| error.sqlite_error_code());
    Ok(match code {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => true,
        // It is there: a journal or a log beside it leads somewhere else.
        Some(ErrorCode::CannotOpen) => ["-journal", "-wal"]
            .iter()
            .any(|suffix| Dir::look(&beside(at, suffix)).is_ok()),
        _ => false,
    })
}

/// A new database in a place of ours, for nothing but a copy.
pub(super) fn empty(at: &Path) -> Result<Database> {
    let place = Location::from(at);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let failed = |error| explain(&place, "make a copy", error);
    let sql = Connection::open_with_flags(at, flags).map_err(failed)?;
    // The caller syncs it; a copy that was not finished is made anew.
    sql.pragma_update(None, "synchronous", "OFF")
        .map_err(failed)?;
    Ok(Database {
        sql,
        at: place.clone(),
    })
}

/// What SQLite refused, by what can be done about it.
fn explain(at: &Location, what: &str, error: rusqlite::Error) -> StrategyError {
    let database = |said: String| StrategyError::Database {
        at: at.clone(),
        what: what.to_owned(),
        said,
    };
    let rusqlite::Error::SqliteFailure(failure, said) = &error else {
        return database(error.to_string());
    };
    let said = said.clone().unwrap_or_else(|| failure.to_string());
    match failure.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            StrategyError::Locked { at: at.clone() }
        }
        ErrorCode::NotADatabase => database(
            "it is not a SQLite database, it is encrypted, or its first page is damaged".to_owned(),
        ),
        ErrorCode::DatabaseCorrupt => database(format!(
            "it is damaged ({said}); `PRAGMA integrity_check` says where"
        )),
        ErrorCode::TooBig => unsupported(
            "snapshot",
            "compare the database",
            &format!("'{at}' has a value of more than {} MiB", LONGEST >> 20),
        ),
        ErrorCode::CannotOpen => database(format!(
            "{said}; it is gone, cannot be read, a link stands there, or a journal beside it names another file"
        )),
        ErrorCode::ReadOnly => database(format!("it cannot be written ({said})")),
        ErrorCode::DiskFull => database(format!("the disk is full ({said})")),
        _ => database(said),
    }
}
