//! Fixtures for SQLite: a table of notes, each a row that is read and written as one line of JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::fixture_dir::{FixtureDir, plain, text};
use super::{Case, Fixture};
use crate::fs::{Dir, remove};
use crate::model::resource::SQLITE;
use crate::model::{ResourceId, ResourcePath, SystemIdSource};
use crate::strategy::{Access, Target};

/// SQLite databases below a directory.
pub struct SqliteFixture {
    base: PathBuf,
    journal_mode: &'static str,
    is_locked: bool,
}

impl SqliteFixture {
    /// Databases with a rollback journal.
    pub fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            journal_mode: "DELETE",
            is_locked: false,
        }
    }

    /// Databases with a write-ahead log.
    pub fn with_log(base: &Path) -> Self {
        Self {
            journal_mode: "WAL",
            ..Self::new(base)
        }
    }

    /// The same for a strategy that works in the original itself, under a lock: what SQLite keeps beside an open database is
    /// there meanwhile.
    pub fn locked(self) -> Self {
        Self {
            is_locked: true,
            ..self
        }
    }
}

impl Fixture for SqliteFixture {
    fn fresh(&self) -> Result<Box<dyn Case>, String> {
        let room = FixtureDir::new(&self.base)?;
        let dir = room.open().map_err(text)?;
        dir.make_dir(b"holder", 0o755).map_err(text)?;
        let case = DatabaseCase {
            at: room.path().join("holder/notes.db"),
            room,
            is_locked: self.is_locked,
        };
        case.fill(&case.at, self.journal_mode, &[(1, b"one"), (3, b"three")])?;
        Ok(Box::new(case))
    }
}

struct DatabaseCase {
    room: FixtureDir,
    at: PathBuf,
    is_locked: bool,
}

fn said(error: rusqlite::Error) -> String {
    error.to_string()
}

fn put(at: &Path, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
    let database = Connection::open(at).map_err(said)?;
    database.busy_timeout(Duration::ZERO).map_err(said)?;
    let sql = "INSERT INTO notes VALUES (?1, ?2) ON CONFLICT DO UPDATE SET body = excluded.body";
    let done = database.execute(sql, params![number(path), content]);
    done.map(drop).map_err(said)
}

/// The key of a note, from its path.
fn number(path: &ResourcePath) -> i64 {
    let name = path.split().map(|(_, name)| name).unwrap_or_default();
    let name = std::str::from_utf8(name).unwrap_or_default();
    name.parse().unwrap_or_default()
}

impl DatabaseCase {
    fn fill(&self, at: &Path, mode: &str, notes: &[(i64, &[u8])]) -> Result<(), String> {
        let database = Connection::open(at).map_err(said)?;
        let set = database.pragma_update(None, "journal_mode", mode);
        set.map_err(said)?;
        let sql = "CREATE TABLE notes (id INTEGER PRIMARY KEY, body BLOB)";
        database.execute(sql, []).map_err(said)?;
        for (id, body) in notes {
            let sql = "INSERT INTO notes VALUES (?1, ?2)";
            database.execute(sql, params![id, body]).map_err(said)?;
        }
        Ok(())
    }
}

impl Case for DatabaseCase {
    fn target(&self) -> Target {
        Target::at(ResourceId::new(&SystemIdSource), SQLITE, &self.at)
    }

    fn room(&self) -> Option<&FixtureDir> {
        Some(&self.room)
    }

    fn known(&self) -> (ResourcePath, Vec<u8>) {
        (plain("notes/1"), b"one".to_vec())
    }

    fn absent(&self) -> Option<ResourcePath> {
        Some(plain("notes/2"))
    }

    fn obstacles(&self) -> Vec<ResourcePath> {
        vec![plain("nothing"), plain("nothing/1"), plain("notes/1/body")]
    }

    fn ways_out(&self) -> Vec<ResourcePath> {
        vec![plain("sqlite_schema"), plain("sqlite_schema/1")]
    }

    fn fingerprint(&self) -> Result<String, String> {
        let holder = self.room.open().and_then(|dir| dir.subdir(b"holder"));
        let holder = holder.map_err(text)?;
        let names: Vec<_> = holder.entries().map_err(text)?;
        let names = names.into_iter().map(|entry| entry.name);
        let own = |name: &[u8]| self.is_locked && name.starts_with(b"notes.db-");
        let names: Vec<_> = names.filter(|name| !own(name)).collect();
        let (mut file, meta) = holder.file(b"notes.db").map_err(text)?;
        let mut hash = blake3::Hasher::new();
        let read = hash.update_reader(&mut file);
        read.map_err(|error| error.to_string())?;
        Ok(format!(
            "{names:?} {:?} {} {}",
            meta.ino,
            meta.mode,
            hash.finalize()
        ))
    }

    fn state(&self) -> Result<BTreeMap<ResourcePath, String>, String> {
        let all = self.contents()?.into_iter();
        Ok(all
            .map(|(path, body)| (path, format!("{body:?}")))
            .collect())
    }

    fn contents(&self) -> Result<Vec<(ResourcePath, Vec<u8>)>, String> {
        let database = Connection::open(&self.at).map_err(said)?;
        let select = database.prepare("SELECT id, body FROM notes");
        let mut select = select.map_err(said)?;
        let rows = select.query_map([], |row| {
            Ok((
                plain(&format!("notes/{}", row.get::<_, i64>(0)?)),
                row.get(1)?,
            ))
        });
        rows.map_err(said)?.collect::<Result<_, _>>().map_err(said)
    }

    fn replace_original(&self) -> Result<bool, String> {
        let other = self.at.with_extension("other");
        self.fill(&other, "DELETE", &[(1, b"another")])?;
        let parent = self.at.parent().unwrap_or(&self.at);
        let dir = Dir::open(parent).map_err(text)?;
        remove::remove(&dir, b"notes.db").map_err(text)?;
        dir.rename(b"notes.other", &dir, b"notes.db")
            .map_err(text)?;
        Ok(true)
    }

    fn change_original(&self, path: &ResourcePath, content: &[u8]) -> Result<(), String> {
        put(&self.at, path, content)
    }

    fn is_locked(&self) -> bool {
        self.is_locked
    }

    fn work_through(
        &self,
        access: &Access,
        path: &ResourcePath,
        content: &[u8],
    ) -> Result<(), String> {
        let file = access.cwd.as_ref().ok_or("it gives no path")?;
        put(file.as_path(), path, content)
    }

    fn encode(&self, path: &ResourcePath, content: &[u8]) -> Vec<u8> {
        let hex: String = content.iter().map(|byte| format!("{byte:02x}")).collect();
        let row = json!({"id": number(path), "body": {"$blob": hex}});
        format!("{row}\n").into_bytes()
    }

    fn decode(&self, content: Vec<u8>) -> Result<Vec<u8>, String> {
        let row: Value = serde_json::from_slice(&content).map_err(|error| error.to_string())?;
        let hex = row["body"]["$blob"].as_str().ok_or("a note has no body")?;
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16);
        let bytes = (0..hex.len()).step_by(2).map(byte);
        bytes
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    }
}
