//! Databases of a project: SQLite files that lie in it, and URLs that its `.env` names. Nothing is connected to.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::handler::check_database_url;
use crate::fs::{self, Dir};
use crate::model::EntryKind;
use crate::model::sqlite_files::may_be_database;
use crate::strategy::git_tracked;
use crate::strategy::sql::is_database;

/// What the names of SQLite databases end with.
const ENDS: [&[u8]; 5] = [b".db", b".db3", b".sqlite", b".sqlite3", b".sdb"];

/// Directories that hold what is installed or built, beside those whose names begin with a dot.
const PASSED_OVER: [&[u8]; 4] = [b"node_modules", b"target", b"vendor", b"venv"];

/// How many entries are looked at, at most.
const MOST: usize = 20_000;

/// How much of a `.env` is read.
const LONGEST: u64 = 64 * 1024;

/// The databases that were found below a directory.
#[derive(Debug, Default)]
pub(crate) struct FoundDatabases {
    /// SQLite databases, by their paths from there, in order.
    pub(crate) files: Vec<PathBuf>,
    /// Those that git keeps versions of: they stay files.
    pub(crate) tracked: Vec<PathBuf>,
    /// Those that end in the middle of a page.
    pub(crate) damaged: Vec<PathBuf>,
    /// Not everything was looked at: there is too much, or it cannot be read.
    pub(crate) cut: bool,
}

/// Looks for SQLite databases below `root`: not in hidden directories, what is installed or built, other checkouts, and other file systems.
pub(crate) fn below(root: &Dir) -> fs::Result<FoundDatabases> {
    let (mut found, mut seen) = (FoundDatabases::default(), 0);
    let mut waiting = vec![(root.again(), PathBuf::new())];
    while let Some((dir, at)) = waiting.pop() {
        let is_root = at.as_os_str().is_empty();
        let entries = match dir.entries() {
            Err(error) if is_root => return Err(error),
            Err(_) => {
                found.cut = true;
                continue;
            }
            Ok(entries) => entries,
        };
        // Another checkout is a project of its own.
        if !is_root && entries.iter().any(|entry| *entry.name == *b".git") {
            continue;
        }
        seen += entries.len();
        if seen > MOST {
            found.cut = true;
            break;
        }
        for entry in entries {
            let path = at.join(as_path(&entry.name));
            match entry.meta.kind {
                EntryKind::Directory
                    if is_looked_into(&entry.name) && !dir.is_mount_point(&entry.meta) =>
                {
                    match dir.subdir(&entry.name) {
                        Ok(below) => waiting.push((below, path)),
                        Err(_) => found.cut = true,
                    }
                }
                EntryKind::File
                    if ENDS.iter().any(|end| entry.name.ends_with(end))
                        && is_database(&root.path().join(&path)) =>
                {
                    match may_be_database(entry.meta.size) {
                        true => found.files.push(path),
                        false => found.damaged.push(path),
                    }
                }
                _ => {}
            }
        }
    }
    found.files.sort_unstable();
    found.damaged.sort_unstable();
    let tracked = git_tracked(root.path(), &found.files);
    (found.tracked, found.files) = found
        .files
        .into_iter()
        .partition(|path| tracked.contains(path));
    Ok(found)
}

fn as_path(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

fn is_looked_into(name: &[u8]) -> bool {
    !name.starts_with(b".") && !PASSED_OVER.contains(&name)
}

/// The variables that the `.env` of a project sets, with their values; why it cannot be read, where it is there.
pub(crate) fn variables(root: &Dir) -> Result<Vec<(String, String)>, String> {
    let mut bytes = Vec::new();
    match root.file(b".env") {
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        Err(error) => return Err(error.cause.to_string()),
        Ok((file, _)) => {
            let read = file.take(LONGEST).read_to_end(&mut bytes);
            read.map_err(|error| error.to_string())?;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.trim_start_matches('\u{feff}').lines();
    Ok(lines.filter_map(variable).collect())
}

/// A variable that a line of a `.env` sets: its value may be quoted, and a comment may follow.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim().split_once('=')?;
    let name = name.trim();
    let name = name.strip_prefix("export ").unwrap_or(name).trim();
    let value = value.trim();
    let quoted = |quote| value.strip_prefix(quote)?.split_once(quote);
    let value = match quoted('"').or_else(|| quoted('\'')) {
        Some((value, _)) => value,
        None => value.split(" #").next().unwrap_or_default().trim(),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    (name.starts_with(begins) && name.chars().all(plain))
        .then(|| (name.to_owned(), value.to_owned()))
}

/// The URL of a PostgreSQL database as libpq takes it, so without the driver that some libraries name, and without its password, which is
/// never written down; why it cannot be used. `None` for any other text.
pub(crate) fn postgres_url(value: &str) -> Option<Result<String, String>> {
    let (scheme, rest) = value.split_once("://")?;
    let scheme = scheme.split('+').next().unwrap_or_default();
    if !["postgres", "postgresql"].contains(&scheme) {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    if after.contains('@') {
        return Some(Err(
            "it has an '@' behind its host, which may be a part of a password".to_owned(),
        ));
    }
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{user}@{host}")
        }
        None => authority.to_owned(),
    };
    let url = format!("{scheme}://{authority}{after}");
    Some(check_database_url(&url).map(|()| url))
}

/// The path of the database that a URL of SQLite leads to, from the directory of the project.
pub(crate) fn sqlite_path<'u>(value: &'u str, root: &Path) -> Option<&'u Path> {
    let path = Path::new(value.strip_prefix("sqlite:///")?);
    match path.strip_prefix(root) {
        Ok(below) => Some(below),
        Err(_) if path.is_relative() => Some(path.strip_prefix(".").unwrap_or(path)),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_written_down() {
        for (value, url) in [
            (
                "postgres://ann:s3cret@db:5433/shop",
                "postgres://ann@db:5433/shop",
            ),
            (
                "postgresql://ann:a@b@db/shop?sslmode=require",
                "postgresql://ann@db/shop?sslmode=require",
            ),
            ("postgres:///shop", "postgres:///shop"),
            (
                "postgresql+psycopg2://ann:s3cret@db/shop",
                "postgresql://ann@db/shop",
            ),
        ] {
            assert_eq!(postgres_url(value), Some(Ok(url.to_owned())), "{value}");
        }
        for value in [
            "postgres:///shop?password=s3cret",
            "postgres://u:s3cret/x@db.example.com/shop",
            "postgres://u:12/s3cret@db.example.com/shop",
            "postgres://u:abc?s3cret@h/shop",
            "postgres://u:12?s3cret@h/shop",
            "postgres://u:s3cret",
            "postgres://h/shop?s3crEt",
        ] {
            let named = postgres_url(value).expect("it is one");
            let why = named.expect_err(value);
            assert!(!why.to_lowercase().contains("s3cret"), "{value}: {why}");
            let typed = check_database_url(value).expect_err(value);
            assert!(!typed.to_lowercase().contains("s3cret"), "{value}: {typed}");
        }
        assert_eq!(postgres_url("mysql://ann@db/shop"), None);
    }

    #[test]
    fn lines_of_a_file_of_variables() {
        for (line, value) in [
            ("A=b", "b"),
            ("export A = \"b # c\" # d", "b # c"),
            ("A='b' # c", "b"),
            ("A=b#c # d", "b#c"),
        ] {
            assert_eq!(
                variable(line),
                Some(("A".to_owned(), value.to_owned())),
                "{line}"
            );
        }
        assert_eq!(variable("# A=b"), None);
    }

    #[test]
    fn urls_of_sqlite_lead_into_the_project() {
        let root = Path::new("/srv/app");
        for value in [
            "sqlite:///data/a.db",
            "sqlite:///./data/a.db",
            "sqlite:////srv/app/data/a.db",
        ] {
            assert_eq!(
                sqlite_path(value, root),
                Some(Path::new("data/a.db")),
                "{value}"
            );
        }
        assert_eq!(sqlite_path("sqlite:////srv/a.db", root), None);
        assert_eq!(sqlite_path("sqlite://", root), None);
    }
}
