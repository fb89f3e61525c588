//! Users and groups of the machine, from `/etc/passwd`, `/etc/group` and `/etc/subgid`.
//!
//! A file that is missing or cannot be read grants nothing and names no user; a line that cannot be understood is
//! passed over, as the programs that own these files do.
#![expect(
    clippy::disallowed_methods,
    reason = "these files may be links to where the system keeps them, so they are opened by path"
)]

use std::io::Read;
use std::path::{Path, PathBuf};

/// No account file is read further than this.
const LONGEST: u64 = 4 << 20;

/// Ids that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first of them.
    pub first: u32,
    /// How many there are; never 0, and the last of them is an id.
    pub count: u32,
}

impl IdRange {
    /// Whether it holds an id.
    pub fn contains(&self, id: u32) -> bool {
        id >= self.first && id - self.first < self.count
    }
}

/// The name of a group, where the machine knows one.
pub fn group_name(gid: u32) -> Option<String> {
    named(&read("/etc/group"), gid).next().map(str::to_owned)
}

/// The name of a user, where the machine knows one.
pub fn user_name(uid: u32) -> Option<String> {
    named(&read("/etc/passwd"), uid).next().map(str::to_owned)
}

/// The home directory of a user, where the machine knows one.
pub fn home_dir(uid: u32) -> Option<PathBuf> {
    let known = read("/etc/passwd");
    let mut lines = known
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let own = lines.find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    own.get(5)
        .filter(|home| home.starts_with('/'))
        .map(PathBuf::from)
}

/// The groups that `/etc/subgid` grants to a user, as they are written there.
pub fn subordinate_groups(uid: u32) -> Vec<IdRange> {
    let granted = read("/etc/subgid");
    match granted.is_empty() {
        true => Vec::new(),
        false => ranges(&granted, &read("/etc/passwd"), uid),
    }
}

fn read(path: &str) -> String {
    let mut bytes = Vec::with_capacity(4096);
    let file = std::fs::File::open(Path::new(path));
    let read = file.and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The names that a file such as `/etc/passwd` gives to a number.
fn named(file: &str, id: u32) -> impl Iterator<Item = &str> {
    file.lines().filter_map(move |line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(id)).then_some(name)
    })
}

/// The lines of `/etc/subgid` that are for a user, by name or by number.
fn ranges(granted: &str, passwd: &str, uid: u32) -> Vec<IdRange> {
    let number = uid.to_string();
    let range = |line: &str| {
        let mut fields = line.trim().split(':');
        let (whom, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        if whom != number && !named(passwd, uid).any(|name| name == whom) {
            return None;
        }
        let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
        // The highest number is no id.
        let end = first.checked_add(count)?;
        (count > 0 && end > 0).then_some(IdRange { first, count })
    };
    granted.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";

    fn pairs(granted: &str) -> Vec<(u32, u32)> {
        let all = ranges(granted, PASSWD, 1000);
        all.iter().map(|one| (one.first, one.count)).collect()
    }

    #[test]
    fn a_grant_is_found_by_name_and_by_number() {
        let granted = "bob:100000:65536\nann:165536:65536\n1000:1005:1\nannabel:7:1\n";
        assert_eq!(pairs(granted), [(165_536, 65536), (1005, 1)]);
        assert!(ranges(granted, "", 999).is_empty());
    }

    #[test]
    fn lines_that_mean_nothing_grant_nothing() {
        let odd = "\n#\nann\nann:\nann:1\nann:x:1\nann:5:0\nann:4294967295:1\nann:4294967290:99\nann:-1:2\n:1:1\n";
        assert_eq!(pairs(odd), []);
        assert_eq!(pairs("ann:4294967294:1"), [(4_294_967_294, 1)]);
    }

    #[test]
    fn the_last_id_of_a_range_is_in_it_and_the_next_is_not() {
        let range = IdRange {
            first: 1005,
            count: 2,
        };
        let held = [1004, 1005, 1006, 1007].map(|id| range.contains(id));
        assert_eq!(held, [false, true, true, false]);
    }
}
