//! An old modification time of its own for every entry of the zoo, and three named ones at the edges of time.

use std::fs::File;
use std::path::Path;

use rustix::fs::{AtFlags, Timespec, Timestamps};

use crate::walk;

/// Before the epoch, at it, and after 2038: seconds and nanoseconds.
const EDGES: [(&str, i64, i64); 3] = [
    ("time-1960", -315_619_200, 123_456_789),
    ("time-1970", 0, 0),
    ("time-2100", 4_102_444_800, 987_654_321),
];

/// Sets all times; nothing may be made in the tree after this.
pub(super) fn set(root: &Path) {
    for (name, ..) in EDGES {
        let path = root.join(name);
        File::create_new(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
    }
    let mut count = 0;
    // A change of an entry's times does not touch its parent's, so the order does not matter.
    walk::visit_all(root, |step| {
        count += 1;
        let edge = EDGES.iter().find(|(name, ..)| step.path == name.as_bytes());
        let modified = match edge {
            Some((_, seconds, nanoseconds)) => Timespec {
                tv_sec: *seconds,
                tv_nsec: *nanoseconds,
            },
            // From September 2001 on, a day and 13 seconds apart.
            None => Timespec {
                tv_sec: 1_000_000_000 + count * 86_413,
                tv_nsec: 1 + count * 1_000_003 % 999_999_937,
            },
        };
        let accessed = Timespec {
            tv_sec: 1_500_000_000,
            tv_nsec: 5,
        };
        let times = Timestamps {
            last_access: accessed,
            last_modification: modified,
        };
        rustix::fs::utimensat(step.dir, step.name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .unwrap_or_else(|error| step.fail("set the times of", error));
    });
}
