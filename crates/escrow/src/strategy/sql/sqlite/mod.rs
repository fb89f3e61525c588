//! `snapshot` of a SQLite database: a consistent copy, compared and released row by row.
//!
//! ```text
//! <area>/
//!   base.db          the original as it was when the sandbox was made; never written
//!   db/NAME          the sandbox, with what SQLite keeps beside it (-wal, -shm, -journal)
//!   link             what stands at the original's path while a command runs: a link to where `db` is mounted
//!   checkpoints/N    copies of the sandbox
//!   taken            what an undone commit had released, while the sandbox takes it in again
//! ```
//!
//! The original is only ever reached through SQLite (rule Q5): it is copied by the backup API, which respects writers and
//! logs, and a commit is one transaction on it. A link stands at its path inside, because SQLite follows links before
//! it names the files beside a database: those lie with the copy, whatever the directory of the original permits.

mod apply;
mod connect;
mod constraints;
mod content;
mod diff;
mod full_text;
mod held;
mod interrupted;
mod loose;
mod merge;
mod pages;
mod plan;
mod rebase;
mod references;
mod schema;
mod session;
mod shadow;
mod vfs;
mod wording;
mod write;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::connect::is_database;
use self::connect::{Database, Use};
pub(in crate::strategy) use self::held::{SqliteTransaction, hold};
use self::plan::OpenPlan;
use self::schema::Schema;
use self::session::SqliteSession;
use crate::event::Observer;
use crate::fs::content::{Reflinks, Transfer, transfer};
use crate::fs::{Dir, Meta, remove};
use crate::model::sqlite_files::INSIDE;
use crate::model::text::Location;
use crate::model::{Conflict, SandboxRef};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::sql::env_name;
use crate::strategy::{
    Capabilities, CreateRequest, Created, Intent, Outcome, Probe, Remember, RollbackReport,
    Sandbox, Session, Strategy, Target, tree, unsupported,
};

const BASE: &[u8] = b"base.db";
const DB: &[u8] = b"db";
const NEW_DB: &[u8] = b"db.new";
const LINK: &[u8] = b"link";
const CHECKPOINTS: &[u8] = b"checkpoints";
const TAKEN: &[u8] = b"taken";

/// The strategy, under the name of how the copy is made.
pub(in crate::strategy) struct SqliteSnapshot {
    name: &'static str,
    strength: u8,
    reflinks: bool,
}

impl SqliteSnapshot {
    /// Copies share their pages where the file system can.
    pub(in crate::strategy) fn snapshot() -> Self {
        Self {
            name: "snapshot",
            strength: 6,
            reflinks: true,
        }
    }

    /// Copies share nothing.
    pub(in crate::strategy) fn full_copy() -> Self {
        Self {
            name: "filesystem_copy",
            strength: 4,
            reflinks: false,
        }
    }
}

/// Whether copies share their pages.
fn reflinks(shared: bool) -> Reflinks {
    match shared {
        true => Reflinks::wanted(),
        false => Reflinks::never(),
    }
}

/// What tells a file from another one in its place. Not its device: that number may be another after a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileIdentity {
    inode: u64,
    born: (i64, u32),
}

impl FileIdentity {
    fn of(meta: &Meta) -> Self {
        Self {
            inode: meta.ino,
            born: (meta.born.sec, meta.born.nsec),
        }
    }
}

/// What is written down about a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SqliteMetadata {
    original: Location,
    identity: FileIdentity,
    area: Location,
    reflinks: bool,
    /// The variable by which a command is told where the database is.
    #[serde(default)]
    env: Option<String>,
}

impl SqliteMetadata {
    fn area(&self) -> Result<Dir> {
        Ok(Dir::open(self.area.as_path())?)
    }

    fn file_name(&self) -> &[u8] {
        let name = self.original.as_path().file_name();
        name.unwrap_or_default().as_bytes()
    }

    fn base(&self) -> PathBuf {
        self.area.as_path().join("base.db")
    }

    /// The sandbox itself.
    fn work(&self) -> PathBuf {
        let name = self.original.as_path().file_name();
        let db = self.area.as_path().join("db");
        db.join(name.unwrap_or_default())
    }

    fn checkpoint(&self, number: u32) -> PathBuf {
        let all = self.area.as_path().join("checkpoints");
        all.join(number.to_string())
    }

    /// The variable for commands, as SQLAlchemy, Django and others write it: the path begins with a slash of its own.
    fn variables(&self) -> BTreeMap<String, String> {
        let path = self.original.as_path().as_os_str();
        let url = || format!("sqlite:///{}", connect::escaped(path.as_bytes()));
        self.env.iter().map(|name| (name.clone(), url())).collect()
    }

    /// Refuses where the original is gone, or another file stands there.
    fn check_original(&self) -> Result<()> {
        let original = || self.original.clone();
        match Dir::look(self.original.as_path()) {
            Ok(meta) if FileIdentity::of(&meta) == self.identity => Ok(()),
            Ok(_) => Err(StrategyError::Replaced {
                original: original(),
            }),
            Err(error) if error.is_absent() => Err(StrategyError::Gone {
                original: original(),
            }),
            Err(error) => Err(error.into()),
        }
    }
}

/// Refuses a database with further names: a program that opens it by another one keeps its log beside that one, where it is not seen,
/// and would bring that log in over what is committed here.
fn check_names(at: &Path) -> Result<()> {
    match Dir::look(at)?.nlink {
        0 | 1 => Ok(()),
        names => {
            let at = Location::from(at);
            let what = format!("work with '{at}', a database of {names} names (hard links)");
            let why = "a program that opens it by another name keeps its log beside that one, and what is committed here would be lost: remove \
                       the other names, or make them symbolic links (`find DIRECTORY -samefile FILE` finds them)";
            Err(unsupported("sqlite", &what, why))
        }
    }
}

/// A return to a snapshot: where the sandbox is, and copies of both states.
#[derive(Serialize, Deserialize)]
struct RestoreIntent {
    work: Location,
    from: Location,
    to: Location,
}

/// What an intent is about.
enum Work {
    Nothing,
    Commit(OpenPlan),
    Restore(RestoreIntent),
}

fn work(intent: &Intent) -> Result<Work> {
    if intent.0.get("work").is_some() {
        return Ok(Work::Restore(tree::parse(&intent.0, "the intent")?));
    }
    Ok(OpenPlan::read(intent)?.map_or(Work::Nothing, Work::Commit))
}

/// Brings the bytes of one file of ours into a new one; the caller syncs it.
fn copy_file(
    (from, from_name): (&Dir, &[u8]),
    (to, to_name): (&Dir, &[u8]),
    mode: u16,
    reflinks: &Reflinks,
) -> Result<Transfer> {
    let (source, meta) = from.file(from_name)?;
    let new = to.create(to_name, mode)?;
    let copied = transfer(&source, &new, &meta, reflinks);
    Ok(copied.map_err(|error| to.io_error("copy", to_name, &error))?)
}

/// The mode of the copy: the original's, and open to its user.
fn mode_of(meta: &Meta) -> u16 {
    meta.mode & 0o777 | 0o600
}

impl SqliteSnapshot {
    fn fill(&self, request: &CreateRequest<'_>, at: &Path, area: &Dir) -> Result<FileIdentity> {
        for remains in [
            BASE,
            b"base.db-journal",
            DB,
            NEW_DB,
            LINK,
            CHECKPOINTS,
            TAKEN,
        ] {
            remove::remove(area, remains)?;
        }
        area.make_dir(DB, 0o700)?;
        area.make_dir(CHECKPOINTS, 0o700)?;
        let (looks, db) = (Dir::look(at)?, area.subdir(DB)?);
        let name = at.file_name().unwrap_or_default().as_bytes();
        let identity = match request.from {
            None => {
                check_names(at)?;
                let original = Database::open(at, Use::Read)?;
                original.copy_to(area, "base.db", &reflinks(self.reflinks))?;
                copy_file(
                    (area, BASE),
                    (&db, name),
                    mode_of(&looks),
                    &reflinks(self.reflinks),
                )?;
                FileIdentity::of(&looks)
            }
            Some((other, snapshot)) => {
                let other: SqliteMetadata = tree::metadata(other)?;
                let there = other.area()?;
                copy_file(
                    (&there, BASE),
                    (area, BASE),
                    0o600,
                    &reflinks(self.reflinks),
                )?;
                let number = session::number_of(snapshot)?.to_string();
                let from = (&there.subdir(CHECKPOINTS)?, number.as_bytes());
                copy_file(from, (&db, name), mode_of(&looks), &reflinks(self.reflinks))?;
                other.identity
            }
        };
        let target = inside(area).join(at.file_name().unwrap_or_default());
        area.make_link(LINK, target.as_os_str().as_bytes())?;
        Ok(identity)
    }
}

/// Where a command sees the directory of a copy.
fn inside(area: &Dir) -> PathBuf {
    let name = area.path().file_name().unwrap_or_default();
    Path::new(INSIDE).join(name)
}

/// Whether a target is a database that can be worked with.
fn probe(target: &Target, area: Option<&Path>) -> Probe {
    let answer = match (target.path(), area) {
        (None, _) => Probe::no("the resource has no path"),
        (Some(_), None) => Probe::yes("a sandbox exists"),
        (Some(at), Some(_)) => {
            let opened = check_names(at).and_then(|()| Database::open(at, Use::Read));
            match opened.and_then(|database| Schema::read(&database)) {
                Ok(schema) => Probe::yes(match schema.tables.len() {
                    1 => "a SQLite database with 1 table".to_owned(),
                    count => format!("a SQLite database with {count} tables"),
                }),
                Err(StrategyError::Unsupported { what, why, .. }) => {
                    Probe::no(format!("it cannot {what}: {why}"))
                }
                // It is one: whether the lock is released in time is seen when it is copied.
                Err(StrategyError::Locked { .. }) => {
                    Probe::yes("a SQLite database that another process has locked")
                }
                Err(error) => Probe::no(error.to_string()),
            }
        }
    };
    Probe {
        remember: Remember::Never,
        ..answer
    }
}

impl Strategy for SqliteSnapshot {
    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            strength: self.strength,
            ..Capabilities::PRIVATE
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let (at, place) = tree::places(self.name, request)?;
        let area = Dir::open(place)?;
        let env = env_name(self.name, request.target)?;
        let identity = self.fill(request, at, &area)?;
        let metadata = SqliteMetadata {
            original: Location::from(at),
            identity,
            area: Location::from(area.path()),
            reflinks: self.reflinks,
            env,
        };
        let base = Database::open(&metadata.base(), Use::Read)?;
        let tables = Schema::read(&base)?.tables.len();
        let message = match (request.from, tables) {
            (Some(_), _) => "copied the other sandbox's database".to_owned(),
            (None, 1) => "copied the database: 1 table".to_owned(),
            (None, tables) => format!("copied the database: {tables} tables"),
        };
        Ok(tree::created(
            self.name,
            request,
            &metadata,
            message,
            Vec::new(),
        ))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let metadata: SqliteMetadata = tree::metadata(sandbox)?;
        metadata.area()?;
        if session == Session::Exclusive {
            metadata.check_original()?;
        }
        Ok(Box::new(SqliteSession::new(metadata)))
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        match work(intent)? {
            Work::Nothing => Ok(()),
            Work::Commit(plan) => apply::commit(&plan),
            Work::Restore(restore) => session::put(&restore.to, &restore.work),
        }
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        match work(intent)? {
            Work::Nothing => Ok(RollbackReport::default()),
            Work::Commit(plan) => apply::undo(&plan),
            Work::Restore(restore) => {
                session::put(&restore.from, &restore.work).map(|()| RollbackReport::default())
            }
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        // Whatever was done of it, it can be carried out again.
        work(intent).map(|_| Outcome::NotDone)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        match work(intent)? {
            Work::Commit(plan) => apply::check_undo(&plan),
            Work::Nothing | Work::Restore(_) => Ok(Vec::new()),
        }
    }

    fn cleanup(&self, _: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // Everything lies in the area.
        Ok(())
    }
}
