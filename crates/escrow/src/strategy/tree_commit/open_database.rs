//! SQLite databases that lie in a tree as plain files: one that a program has open is never replaced (rule Q5). The program
//! would go on with the file that it has, and what it writes there would be lost.

use std::io::Read;

use rustix::io::Errno;

use crate::fs::{Dir, Fingerprint, Meta, lease};
use crate::model::ResourcePath;
use crate::strategy::error::Result;

/// What is said of one where it is to be replaced.
pub(super) const WHY: &str = "a program has this SQLite database open, and would go on with the old file: end the program, or make the \
                              database a resource of its own (type sqlite)";

/// The first bytes of a database.
const HEAD: &[u8; 16] = b"SQLite format 3\0";

/// The size of every database is a multiple of this.
const PAGE: u64 = 512;

/// What the names of files end with that SQLite keeps beside a database.
const BESIDE: [&[u8]; 3] = [b"-wal", b"-shm", b"-journal"];

/// Whether an entry is a database that a process has open for writing, or a file that SQLite keeps beside such a one. Nothing is
/// opened that cannot be one by its size.
pub(super) fn is_open(dir: &Dir, name: &[u8], now: Option<&Meta>) -> Result<bool> {
    match BESIDE.iter().find_map(|end| name.strip_suffix(*end)) {
        Some(database) if !database.is_empty() => {
            let database_meta = dir.stat(database)?;
            has_writers(dir, database, database_meta.as_ref())
        }
        _ => has_writers(dir, name, now),
    }
}

fn has_writers(dir: &Dir, name: &[u8], now: Option<&Meta>) -> Result<bool> {
    if !now.is_some_and(|now| now.is_file() && may_be_one(now.size)) {
        return Ok(false);
    }
    let mut file = match dir.file(name) {
        // What this user cannot read is no database that can be told.
        Err(error) if error.is_absent() || error.is(Errno::ACCESS) => return Ok(false),
        found => found?.0,
    };
    let mut head = [0; 16];
    // One that ends earlier by now is none.
    let is_one = file.read_exact(&mut head).is_ok() && head == *HEAD;
    Ok(is_one && lease::is_written(&file))
}

/// Whether what was seen at a path may be a database, or a file beside one: what is known without a look.
pub(super) fn may_be(path: &ResourcePath, seen: &Fingerprint) -> bool {
    may_be_one(seen.size) || BESIDE.iter().any(|end| path.as_bytes().ends_with(end))
}

fn may_be_one(size: u64) -> bool {
    size > 0 && size.is_multiple_of(PAGE)
}
