//! The files that SQLite keeps beside a database, by their names: what is in them belongs to that database as it was, so they are
//! released together.

use std::collections::HashMap;

use super::change::{Change, EntryInfo, EntryKind};
use super::path::ResourcePath;

/// With what the names of the files end that hold content of the database: written and not yet in it, or to be rolled back.
pub const JOURNALS: [&str; 2] = ["-wal", "-journal"];

/// And of the one that does not: it is made again where it is missing or older.
const INDEX: &str = "-shm";

/// The size of every database is a multiple of this.
const PAGE: u64 = 512;

/// The directory in which a command finds the sandboxes of databases. In the place of each of them it finds a link there.
pub const INSIDE: &str = "/dev/escrow/databases";

/// Whether an entry is such a link, or a copy of one: outside it leads nowhere.
pub fn is_stand_in(entry: &EntryInfo) -> bool {
    let mut target = entry.target.iter();
    target.any(|target| target.as_path().starts_with(INSIDE))
}

/// The database that a file would belong to by its name.
pub fn database_of(path: &ResourcePath) -> Option<ResourcePath> {
    let (parent, name) = path.split()?;
    let mut ends = JOURNALS.into_iter().chain([INDEX]);
    let database = ends.find_map(|end| name.strip_suffix(end.as_bytes()))?;
    (!matches!(database, b"" | b"." | b"..")).then(|| parent.join(database))
}

/// Whether a file of this size may be a database.
pub fn may_be_database(size: u64) -> bool {
    size > 0 && size.is_multiple_of(PAGE)
}

/// The numbers of the changes that are released together: of a database, and of the files beside it.
pub fn together(changes: &[Change]) -> Vec<Vec<usize>> {
    let mut groups: HashMap<ResourcePath, Vec<usize>> = HashMap::new();
    for (number, change) in changes.iter().enumerate() {
        if let Some(database) = database_of(&change.path) {
            groups.entry(database).or_default().push(number);
        }
    }
    if groups.is_empty() {
        return Vec::new();
    }
    for (number, change) in changes.iter().enumerate() {
        let Some(group) = groups.get_mut(&change.path) else {
            continue;
        };
        let mut versions = [&change.old, &change.new].into_iter().flatten();
        let may_be = versions.any(|one| one.kind == EntryKind::File && may_be_database(one.size));
        match may_be {
            true => group.push(number),
            // A file that only has such a name.
            false => drop(groups.remove(&change.path)),
        }
    }
    groups.into_values().filter(|one| one.len() > 1).collect()
}
