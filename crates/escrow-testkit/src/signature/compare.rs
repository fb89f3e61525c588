//! What differs between two signatures, one readable line each.

use std::path::Path;

use super::{Entry, Kind, Sig};
use crate::text::{escape, show};

/// What does not count as a difference. The default ignores nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignore {
    /// Modification times.
    pub times: bool,
    /// Owner and group.
    pub owners: bool,
    /// Where files have holes.
    pub hole_map: bool,
    /// Sockets and devices of `a` that `b` does not have.
    pub special: bool,
}

/// One line for each difference: `path: what: in a, in b`.
pub fn differences(a: &Sig, b: &Sig, ignore: &Ignore) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, left) in a {
        match b.get(path) {
            Some(right) => compare(path, left, right, ignore, &mut lines),
            None if ignore.special && special(left.kind) => {}
            None => lines.push(format!("{}: missing in b ({:?})", show(path), left.kind)),
        }
    }
    for (path, right) in b.iter().filter(|(path, _)| !a.contains_key(*path)) {
        lines.push(format!("{}: only in b ({:?})", show(path), right.kind));
    }
    lines
}

/// Panics with every difference, unless there is none.
#[track_caller]
pub fn assert_same(a: &Sig, b: &Sig, ignore: &Ignore) {
    let found = differences(a, b, ignore);
    assert!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The tree at `path` is exactly what it was.
#[track_caller]
pub fn unchanged(before: &Sig, path: impl AsRef<Path>) {
    let now = super::signature(path.as_ref());
    assert_same(before, &now, &Ignore::default());
}

fn special(kind: Kind) -> bool {
    matches!(kind, Kind::Socket | Kind::CharDevice | Kind::BlockDevice)
}

fn compare(path: &[u8], a: &Entry, b: &Entry, ignore: &Ignore, lines: &mut Vec<String>) {
    let path = show(path);
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            lines.push(format!("{path}: {what}: {a}, {b}"));
        }
    };
    if a.kind != b.kind {
        return differ("kind", format!("{:?}", a.kind), format!("{:?}", b.kind));
    }
    differ("mode", format!("{:04o}", a.mode), format!("{:04o}", b.mode));
    if !ignore.owners {
        differ(
            "owner",
            format!("{}:{}", a.uid, a.gid),
            format!("{}:{}", b.uid, b.gid),
        );
    }
    differ(
        "flags",
        format!("{:#x}", a.flags),
        format!("{:#x}", b.flags),
    );
    differ("size", a.size.to_string(), b.size.to_string());
    if !ignore.times {
        differ("mtime", time(a.mtime), time(b.mtime));
    }
    differ("device", format!("{:?}", a.rdev), format!("{:?}", b.rdev));
    differ("target", optional(&a.target), optional(&b.target));
    differ(
        "content",
        format!("{:?}", a.content),
        format!("{:?}", b.content),
    );
    for (name, value) in &a.xattrs {
        differ(
            &format!("xattr {}", show(name)),
            attribute(Some(value)),
            attribute(b.xattrs.get(name)),
        );
    }
    for (name, value) in b
        .xattrs
        .iter()
        .filter(|(name, _)| !a.xattrs.contains_key(*name))
    {
        differ(
            &format!("xattr {}", show(name)),
            attribute(None),
            attribute(Some(value)),
        );
    }
    differ(
        "hard link of",
        optional(&a.link_group),
        optional(&b.link_group),
    );
    if !ignore.hole_map {
        differ(
            "data extents",
            format!("{:?}", a.data),
            format!("{:?}", b.data),
        );
    }
}

fn time((seconds, nanoseconds): (i64, u32)) -> String {
    format!("{seconds}.{nanoseconds:09}")
}

fn optional(bytes: &Option<Vec<u8>>) -> String {
    bytes.as_ref().map_or_else(
        || "none".to_owned(),
        |bytes| format!("\"{}\"", escape(bytes, false)),
    )
}

fn attribute(value: Option<&Vec<u8>>) -> String {
    value.map_or_else(
        || "none".to_owned(),
        |value| format!("\"{}\"", escape(value, false)),
    )
}
