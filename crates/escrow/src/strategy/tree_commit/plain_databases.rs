//! SQLite databases that lie in a tree as plain files: one that a program has open is never replaced (rule Q5), since the program would go
//! on with the file that it has. And a database is released with its `-wal` and `-journal` or not at all: with those of another version
//! SQLite makes of it what neither side wrote.

use std::fs::File;
use std::io::Read;

use rustix::io::Errno;

use super::VersionSource;
use crate::fs::{Dir, Meta, lease};
use crate::model::ResourcePath;
use crate::model::sqlite_files::{JOURNALS, database_of, may_be_database};
use crate::strategy::error::Result;

/// What is said of one that a program has open, where it is to be replaced.
const OPEN: &str = "a program has this SQLite database open, and would go on with the old file: end the program, or make the \
                               database a resource of its own (type sqlite)";

/// What is said of one that has further names, where it is to be replaced.
const NAMES: &str = "this SQLite database has further names (hard links) in the original: a program that opens it by another one would not see \
                     the new version. Remove the other names (`find DIRECTORY -samefile FILE` finds them)";

/// The first bytes of a database.
const HEAD: &[u8; 16] = b"SQLite format 3\0";

/// The first bytes of a journal, and of a log in either order of bytes.
const BEGINNINGS: [[u8; 4]; 3] = [
    [0xd9, 0xd5, 0x05, 0xf9],
    [0x37, 0x7f, 0x06, 0x82],
    [0x37, 0x7f, 0x06, 0x83],
];

/// Why nothing may be put in the place of an entry of the original, where `now` stands, whichever side is to count; `comes`: another version takes its place. `is_elsewhere` tells
/// whether the other version of a database is one; `is_moved` whether what stands at a path beside it is neither what was there nor
/// released with it.
pub(super) fn forbids(
    dir: &Dir,
    path: &ResourcePath,
    (now, comes): (Option<&Meta>, bool),
    is_elsewhere: impl FnOnce(&ResourcePath) -> Result<bool>,
    is_moved: impl Fn(&ResourcePath, &[u8], Option<&Meta>) -> Result<bool>,
) -> Result<Option<String>> {
    let database = database_of(path).unwrap_or_else(|| path.clone());
    let Some((parent, name)) = database.split() else {
        return Ok(None);
    };
    let database_now = match database == *path {
        true => now.copied(),
        false => dir.stat(name)?,
    };
    match open_one(dir, name, database_now.as_ref())? {
        Some(_) if comes && now.is_some_and(|now| now.nlink > 1) => {
            return Ok(Some(NAMES.to_owned()));
        }
        Some(file) if lease::is_written(&file) => return Ok(Some(OPEN.to_owned())),
        None if !is_elsewhere(&database)? => return Ok(None),
        Some(_) | None => {}
    }
    if database != *path && is_moved(&database, name, database_now.as_ref())? {
        let what =
            "the SQLite database that it belongs to was changed there, and would be damaged by it";
        return Ok(Some(what.to_owned()));
    }
    for end in JOURNALS {
        let journal = [name, end.as_bytes()].concat();
        let beside = parent.join(&journal);
        if beside == *path {
            continue;
        }
        let now = dir.stat(&journal)?;
        if !holds_content(dir, &journal, now.as_ref())? {
            continue;
        }
        if is_moved(&beside, &journal, now.as_ref())? {
            return Ok(Some(format!(
                "a program left changes of this SQLite database in its '{end}' there: open it there once (`sqlite3 FILE .tables`), which \
                 brings them in or takes them back"
            )));
        }
    }
    Ok(None)
}

/// Whether a log or a journal has something in it that SQLite would use: one that is kept for the next transaction begins with zeros.
fn holds_content(dir: &Dir, name: &[u8], now: Option<&Meta>) -> Result<bool> {
    let Some(now) = now.filter(|now| now.size > 0) else {
        return Ok(false);
    };
    // What cannot be read may be one.
    if !now.is_file() {
        return Ok(true);
    }
    let mut file = match dir.file(name) {
        Err(error) if error.is_absent() => return Ok(false),
        Err(error) if error.is(Errno::ACCESS) => return Ok(true),
        found => found?.0,
    };
    let mut head = [0; 4];
    Ok(file.read_exact(&mut head).is_ok() && BEGINNINGS.contains(&head))
}

/// The file of an entry that is a database. Nothing is opened that cannot be one by its size.
fn open_one(dir: &Dir, name: &[u8], now: Option<&Meta>) -> Result<Option<File>> {
    if !now.is_some_and(|now| now.is_file() && may_be_database(now.size)) {
        return Ok(None);
    }
    let mut file = match dir.file(name) {
        // What this user cannot read is no database that can be told.
        Err(error) if error.is_absent() || error.is(Errno::ACCESS) => return Ok(None),
        found => found?.0,
    };
    let mut head = [0; 16];
    // One that ends earlier by now is none.
    let is_one = file.read_exact(&mut head).is_ok() && head == *HEAD;
    Ok(is_one.then_some(file))
}

/// Whether the sandbox has a database at a path.
pub(super) fn is_one_in(sandbox: &impl VersionSource, path: &ResourcePath) -> Result<bool> {
    let Some(meta) = sandbox.meta(path)? else {
        return Ok(false);
    };
    let (dir, name) = sandbox.parent(path)?;
    Ok(open_one(&dir, name, Some(&meta))?.is_some())
}
