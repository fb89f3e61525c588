//! Databases of a project: SQLite files that lie in it, and URLs that its `.env` names. Nothing is connected to.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::handler::check_database_url;
use crate::fs::{self, Dir};
use crate::model::EntryKind;
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
                    found.files.push(path);
                }
                _ => {}
            }
        }
    }
    found.files.sort_unstable();
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

/// The variables that the `.env` of a project sets, with their values.
pub(crate) fn variables(root: &Dir) -> Vec<(String, String)> {
    let mut text = String::new();
    let read = root.file(b".env").is_ok_and(|(file, _)| {
        let mut file = file.take(LONGEST);
        file.read_to_string(&mut text).is_ok()
    });
    let line = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        let name = name.trim();
        let name = name.strip_prefix("export ").unwrap_or(name).trim();
        let value = value.trim();
        let quoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
        (name.starts_with(begins) && name.chars().all(plain))
            .then(|| (name.to_owned(), value.to_owned()))
    };
    match read {
        true => text.lines().filter_map(line).collect(),
        false => Vec::new(),
    }
}

/// The URL of a PostgreSQL database without its password, which is never written down; why it cannot be used. `None` for any
/// other text.
pub(crate) fn postgres_url(value: &str) -> Option<Result<String, String>> {
    let schemes = ["postgres://", "postgresql://"];
    let scheme = schemes
        .into_iter()
        .find(|scheme| value.starts_with(scheme))?;
    let rest = &value[scheme.len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, after) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{user}@{host}")
        }
        None => authority.to_owned(),
    };
    let url = format!("{scheme}{authority}{after}");
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
        ] {
            assert_eq!(postgres_url(value), Some(Ok(url.to_owned())), "{value}");
        }
        let named = postgres_url("postgres:///shop?password=s3cret").expect("it is one");
        assert!(named.is_err_and(|why| !why.contains("s3cret")));
        assert_eq!(postgres_url("mysql://ann@db/shop"), None);
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
