//! Where two versions of a table can differ at all, told from their pages: what is equal byte by byte holds the same rows.
//!
//! The trees of both files are followed side by side. Pages are compared, rows are not read; what comes out are the ranges of
//! row numbers that must be. Whatever is not as expected gives no answer, and then every row is compared.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::connect::{Database, has_log};
use crate::fs::Dir;
use crate::fs::own_files::with_own_files;

/// Numbers of rows, the last one included.
pub(super) type RowRange = (i64, i64);

/// Every row.
pub(super) const ALL: RowRange = (i64::MIN, i64::MAX);

/// The first pages of a table in both versions.
pub(super) type Roots = (u32, u32);

const INTERIOR: u8 = 5;
const LEAF: u8 = 13;

/// For each table the ranges in which its rows can differ. Both versions must be kept from changing by the caller, through
/// transactions that have begun to read.
pub(super) fn differing(
    old: &Database,
    new: &Database,
    tables: &[Roots],
) -> Option<Vec<Vec<RowRange>>> {
    let (old, new) = (old.at().as_path(), new.at().as_path());
    // What a transaction holds is not in the file.
    if old == new || has_log(old) || has_log(new) {
        return None;
    }
    with_own_files(|| {
        let (old, new) = (Pages::open(old)?, Pages::open(new)?);
        if old.form != new.form {
            return None;
        }
        let ranges = |(a, b): &Roots| {
            let mut found = Comparison {
                old: &old,
                new: &new,
                left: 2 * (u64::from(old.count) + u64::from(new.count)),
                ranges: Vec::new(),
            };
            found.trees(*a, *b, ALL)?;
            Some(found.ranges)
        };
        tables.iter().map(ranges).collect()
    })?
}

/// The pages of a file.
struct Pages {
    file: File,
    count: u32,
    /// The size of a page, the bytes at its end that hold nothing of SQLite's, and the encoding of text.
    form: (usize, usize, [u8; 4]),
}

impl Pages {
    fn open(at: &Path) -> Option<Self> {
        let (parent, name) = (at.parent()?, at.file_name()?);
        let (file, meta) = Dir::open(parent).ok()?.file(name.as_bytes()).ok()?;
        let mut head = [0; 100];
        file.read_exact_at(&mut head, 0).ok()?;
        let size = match u16::from_be_bytes([head[16], head[17]]) {
            1 => 65536,
            size => usize::from(size),
        };
        let known = size.is_power_of_two() && size >= 512 && head.starts_with(b"SQLite format 3\0");
        let count = u32::try_from(meta.size / size.max(1) as u64).ok()?;
        known.then_some(Self {
            file,
            count,
            form: (
                size,
                usize::from(head[20]),
                [head[56], head[57], head[58], head[59]],
            ),
        })
    }

    fn usable(&self) -> usize {
        self.form.0 - self.form.1
    }

    fn page(&self, number: u32) -> Option<Vec<u8>> {
        // The first page is the schema's, and begins otherwise.
        if !(2..=self.count).contains(&number) {
            return None;
        }
        let mut bytes = vec![0; self.form.0];
        let place = u64::from(number - 1) * self.form.0 as u64;
        self.file.read_exact_at(&mut bytes, place).ok()?;
        Some(bytes)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    four.try_into().ok().map(u32::from_be_bytes)
}

fn short(bytes: &[u8], at: usize) -> Option<usize> {
    let two = bytes.get(at..at + 2)?;
    two.try_into()
        .ok()
        .map(|two| usize::from(u16::from_be_bytes(two)))
}

/// A number of variable length, and where it ends.
fn varint(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for place in 0..9 {
        let byte = u64::from(*bytes.get(at)?);
        at += 1;
        if place == 8 {
            return Some((value << 8 | byte, at));
        }
        value = value << 7 | byte & 0x7f;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((value, at))
}

/// Where the cells of a page begin.
fn cells(page: &[u8]) -> Option<Vec<usize>> {
    let first = if page[0] == INTERIOR { 12 } else { 8 };
    let count = short(page, 3)?;
    (0..count)
        .map(|cell| short(page, first + 2 * cell))
        .collect()
}

/// The pages below, each with the last number that can be in it.
fn children(page: &[u8], last: i64) -> Option<Vec<(u32, i64)>> {
    let mut all = Vec::new();
    for cell in cells(page)? {
        let (key, _) = varint(page, cell + 4)?;
        all.push((number(page, cell)?, key as i64));
    }
    all.push((number(page, 8)?, last));
    all.is_sorted_by_key(|(_, key)| *key).then_some(all)
}

struct Comparison<'p> {
    old: &'p Pages,
    new: &'p Pages,
    /// How many pages may still be looked at: a damaged file could lead in circles.
    left: u64,
    ranges: Vec<RowRange>,
}

impl Comparison<'_> {
    fn differs(&mut self, (first, last): RowRange) {
        match self.ranges.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
            _ => self.ranges.push((first, last)),
        }
    }

    fn look(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }

    /// Compares two trees, which hold the rows of one range.
    fn trees(&mut self, a: u32, b: u32, range: RowRange) -> Option<()> {
        self.look()?;
        let (was, is) = (self.old.page(a)?, self.new.page(b)?);
        match (was[0], is[0]) {
            (INTERIOR, INTERIOR) => {
                self.below(children(&was, range.1)?, children(&is, range.1)?, range)
            }
            (LEAF, LEAF) if was == is && self.overflows_equal(&was)? => Some(()),
            (INTERIOR | LEAF, INTERIOR | LEAF) => {
                self.differs(range);
                Some(())
            }
            _ => None,
        }
    }

    /// Compares the pages below two: those that hold the same range with each other; what is divided otherwise differs.
    fn below(&mut self, was: Vec<(u32, i64)>, is: Vec<(u32, i64)>, range: RowRange) -> Option<()> {
        let (mut i, mut j, mut first) = (0, 0, range.0);
        let mut aligned = true;
        while let (Some(a), Some(b)) = (was.get(i), is.get(j)) {
            if a.1 == b.1 {
                match aligned {
                    true => self.trees(a.0, b.0, (first, a.1))?,
                    false => self.differs((first, a.1)),
                }
                (i, j, aligned) = (i + 1, j + 1, true);
                first = a.1.saturating_add(1);
                continue;
            }
            aligned = false;
            match a.1 < b.1 {
                true => i += 1,
                false => j += 1,
            }
        }
        Some(())
    }

    /// Whether what does not fit on two equal pages is equal too: it lies on the same further pages.
    fn overflows_equal(&mut self, leaf: &[u8]) -> Option<bool> {
        let usable = self.old.usable();
        let (most, least) = (usable - 35, (usable - 12) * 32 / 255 - 23);
        for cell in cells(leaf)? {
            let (length, at) = varint(leaf, cell)?;
            let (_, at) = varint(leaf, at)?;
            let length = usize::try_from(length).ok()?;
            if length <= most {
                continue;
            }
            let fits = least + (length - least) % (usable - 4);
            let local = if fits <= most { fits } else { least };
            let mut next = number(leaf, at + local)?;
            while next != 0 {
                self.look()?;
                let (was, is) = (self.old.page(next)?, self.new.page(next)?);
                if was != is {
                    return Some(false);
                }
                next = number(&was, 0)?;
            }
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use escrow_testkit::model::Rng;

    use super::super::connect::Use;
    use super::super::copy_file;
    use super::super::diff::rows;
    use super::super::schema::Schema;
    use super::*;

    fn run(at: &Path, statements: &str) {
        let database = rusqlite::Connection::open(at).expect("it opens");
        let done = database.execute_batch(statements);
        done.expect("the statements are right");
    }

    /// The new version begins as the old one.
    fn copy(world: &Path) {
        let dir = Dir::open(world).expect("it is there");
        let shared = super::super::reflinks(true);
        let copied = copy_file((&dir, b"old.db"), (&dir, b"new.db"), 0o600, &shared);
        copied.expect("it is at rest");
    }

    /// How many rows differ, and how many numbers the ranges have; the rows must be those of a full comparison.
    fn compared(old: &Path, new: &Path, seed: u64) -> (usize, i128) {
        let open = |at: &Path| Database::open(at, Use::Read).expect("it opens");
        let (old, new) = (open(old), open(new));
        let schemas = [&old, &new].map(|one| Schema::read(one).expect("it has one"));
        let root = |schema: &Schema| schema.table_object("t").expect("it is there").root;
        let roots = [(root(&schemas[0]), root(&schemas[1]))];
        let ranges = differing(&old, &new, &roots).expect("both are at rest");
        let table = &schemas[1].tables["t"];
        let all = rows((&old, table), (&new, table), &[ALL]).expect("they read");
        let some = rows((&old, table), (&new, table), &ranges[0]).expect("they read");
        assert_eq!(some, all, "seed {seed}");
        let wide = ranges[0].iter();
        let wide = wide.map(|(first, last)| i128::from(*last) - i128::from(*first) + 1);
        (all.len(), wide.sum())
    }

    // rule F8
    #[test]
    fn what_the_pages_leave_out_is_equal() {
        for seed in 1..=40u64 {
            let world = escrow_testkit::World::new();
            let [old, new] = ["old.db", "new.db"].map(|name| world.at(name));
            let mut rng = Rng::new(seed);
            let page = rng.pick(&[512, 1024, 4096]);
            let key = rng.pick(&["INTEGER PRIMARY KEY", "TEXT PRIMARY KEY", ""]);
            let count = rng.below(1500);
            let fill = format!(
                "PRAGMA page_size = {page}; CREATE TABLE t (k {key}, v);
                 WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
                 INSERT INTO t (rowid, k, v) SELECT 2 * i, 2 * i, randomblob(abs(random()) % 40 + (i % 50 = 0) * 9000) FROM n;"
            );
            run(&old, &fill);
            copy(world.path());
            for _ in 0..rng.below(6) {
                let at = rng.below(3000);
                let change = match rng.below(7) {
                    0 => format!("DELETE FROM t WHERE rowid BETWEEN {at} AND {}", at + rng.below(200)),
                    1 => format!("INSERT OR REPLACE INTO t (rowid, k, v) VALUES ({0}, {0}, 1)", 2 * at + 1),
                    // A value that does not fit on a page, in place: its last bytes only.
                    2 => "UPDATE t SET v = CAST(substr(v, 1, length(v) - 1) || x'07' AS BLOB) WHERE length(v) > 9000".to_owned(),
                    3 => format!("UPDATE t SET v = v || v WHERE rowid BETWEEN {at} AND {}", at + 20),
                    4 if at < 600 => "VACUUM".to_owned(),
                    _ => format!("UPDATE t SET v = CAST(zeroblob(length(v)) AS BLOB) WHERE rowid = {at}"),
                };
                run(&new, &change);
            }
            compared(&old, &new, seed);
        }
    }

    #[test]
    fn one_row_of_many_is_found_in_few() {
        let world = escrow_testkit::World::new();
        let [old, new] = ["old.db", "new.db"].map(|name| world.at(name));
        let fill = "CREATE TABLE t (k INTEGER PRIMARY KEY, v);
            WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) INSERT INTO t SELECT i, 'value ' || i FROM n";
        run(&old, fill);
        copy(world.path());
        assert_eq!(compared(&old, &new, 0), (0, 0));
        run(&new, "UPDATE t SET v = 'other' WHERE k = 25000");
        let (rows, wide) = compared(&old, &new, 0);
        assert!(rows == 1 && wide < 1000, "{rows} in {wide}");
    }
}
