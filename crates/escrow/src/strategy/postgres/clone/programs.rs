//! `pg_dump` and `psql`: absolute programs with a clean environment, which is also where they are told the password.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::super::error::{Result, StrategyError};
use super::super::connect::PgError;
use super::super::failed;
use super::super::location::Server;
use super::databases::Original;
use crate::fs::Dir;
use crate::run::program::{LIMIT, die_with_this_thread, output_in_time, program};

/// Where distributions have them; of several versions the newest.
const PLACES: [&str; 3] = ["/usr/lib/postgresql", "/usr/bin", "/usr/local/bin"];

/// How long `pg_dump` may take in a commit. Where it waits for a table it ends earlier (`--lock-wait-timeout`).
const COMMIT_LIMIT: Duration = Duration::from_secs(60);

/// The program of this name for servers of this version, or newer.
pub(super) fn find(name: &str, version: u32) -> std::result::Result<PathBuf, String> {
    let mut found: Option<(u32, PathBuf)> = None;
    let debian = Dir::open(Path::new(PLACES[0])).and_then(|dir| dir.entries());
    for entry in debian.unwrap_or_default() {
        let text = String::from_utf8_lossy(&entry.name).into_owned();
        let number: u32 = text.parse().unwrap_or(0);
        let at = Path::new(PLACES[0]).join(&text).join("bin").join(name);
        let newer = found.as_ref().is_none_or(|(known, _)| *known < number);
        if number >= version && newer && Dir::look(&at).is_ok() {
            found = Some((number, at));
        }
    }
    let plain = PLACES[1..].iter().map(|place| Path::new(place).join(name));
    let plain = plain.into_iter().find(|at| Dir::look(at).is_ok());
    found.map(|(_, at)| at).or(plain).ok_or_else(|| {
        format!(
            "`{name}` {version} or newer, which comes with PostgreSQL's client, is not installed"
        )
    })
}

/// The programs for the server of a sandbox.
pub(super) struct Programs<'o> {
    pub(super) original: &'o Original,
    /// The version of the server.
    pub(super) version: u32,
}

fn said(what: &str, text: impl AsRef<[u8]>) -> StrategyError {
    let text = String::from_utf8_lossy(text.as_ref()).trim().to_owned();
    failed(what, &PgError::link(text))
}

/// A dump without the two lines of it that only `psql` takes, before its first statement and after its last one: what a sandbox has is
/// never run by that, since names may hold commands for it.
fn unrestricted(dump: &str) -> String {
    let mut lines: Vec<&str> = dump.split_inclusive('\n').collect();
    let says = |line: &&str| !line.trim().is_empty() && !line.starts_with("--");
    let (first, last) = (lines.iter().position(says), lines.iter().rposition(says));
    if let (Some(first), Some(last)) = (first, last)
        && let Some(word) = lines[first].strip_prefix("\\restrict ")
        && lines[last].strip_prefix("\\unrestrict ") == Some(word)
    {
        lines.remove(last);
        lines.remove(first);
    }
    lines.concat()
}

impl Programs<'_> {
    /// A program that works on a database.
    fn on(&self, name: &str, server: &Server) -> Result<Command> {
        let path = find(name, self.version).map_err(|why| said("be cloned", why))?;
        let mut command = program(path.as_os_str());
        let mode = serde_json::to_value(server.sslmode).unwrap_or_default();
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("HOME", "/nonexistent")
            .env("PGHOST", &server.host)
            .env("PGPORT", server.port.to_string())
            .env("PGUSER", &server.user)
            .env("PGDATABASE", &server.database)
            .env("PGSSLMODE", mode.as_str().unwrap_or("prefer"))
            .env("PGGSSENCMODE", "disable")
            .env("PGCONNECT_TIMEOUT", server.connect_timeout.to_string())
            .current_dir("/");
        let files = &server.tls;
        for (name, file) in [
            ("PGSSLROOTCERT", &files.root),
            ("PGSSLCERT", &files.cert),
            ("PGSSLKEY", &files.key),
        ] {
            file.as_ref().map(|file| command.env(name, file));
        }
        // Whatever the database has set: a dump says NULL in arrays, and means it.
        let options = server.options.as_deref().unwrap_or_default();
        command.env("PGOPTIONS", format!("{options} -c array_nulls=on"));
        let password = &self.original.password;
        password
            .as_ref()
            .map(|password| command.env("PGPASSWORD", password));
        die_with_this_thread(&mut command);
        Ok(command)
    }

    /// The definitions in a database.
    pub(super) fn definitions(&self, of: &Server) -> Result<String> {
        self.definitions_in_time(of, LIMIT)
    }

    /// The same for a commit, which holds locks on the original meanwhile.
    pub(super) fn definitions_for_commit(&self, of: &Server) -> Result<String> {
        self.definitions_in_time(of, COMMIT_LIMIT)
    }

    fn definitions_in_time(&self, of: &Server, limit: Duration) -> Result<String> {
        let what = "list its definitions";
        let mut command = self.on("pg_dump", of)?;
        command.args([
            "--schema-only",
            "--lock-wait-timeout=10s",
            "--encoding=UTF8",
        ]);
        let run = output_in_time(command, b"", limit);
        let run = run.map_err(|error| said(what, format!("pg_dump: {error}")))?;
        if !run.status.success() {
            return Err(said(what, run.stderr));
        }
        let text = String::from_utf8(run.stdout).map_err(|error| said(what, error.to_string()))?;
        Ok(unrestricted(&text))
    }

    /// Brings one state of everything that a database holds into an empty one.
    pub(super) fn bring_over(&self, from: &Server, to: &Server) -> Result<()> {
        let what = "be dumped and restored";
        let broken = |error: std::io::Error| said(what, error.to_string());
        let mut dump = self.on("pg_dump", from)?;
        let mut dump = dump
            .arg("--lock-wait-timeout=60s")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(broken)?;
        let mut restore = self.on("psql", to)?;
        restore.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-1", "-f", "-"]);
        if let Some(out) = dump.stdout.take() {
            restore.stdin(out);
        }
        let restored = restore
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(|child| child.wait_with_output());
        drop(restore);
        let dumped = dump.wait_with_output().map_err(broken)?;
        let restored = restored.map_err(broken)?;
        match (restored.status.success(), dumped.status.success()) {
            (true, true) => Ok(()),
            (false, _) if !restored.stderr.is_empty() => Err(said(what, restored.stderr)),
            _ => Err(said(what, dumped.stderr)),
        }
    }
}
