//! Finds files of an original that a command in an overlay could not use as outside: it could not see them, or not change
//! them although its user may (unmapped owners and groups).
//!
//! Empty files that are marked as whiteouts, as in a layer, count as deleted for the kernel.
//!
//! Before the kernel changes an entry of the lower layer it copies it up, with every directory above it; it refuses
//! (`EOVERFLOW`) where the owner or the group of one of them is not mapped in the namespace of the mount. An ordinary
//! user's namespace maps the own user, the own group and the groups that `run::idmap` can map.
//!
//! A bounded number of entries is looked at, nearest to the root first: making an overlay must cost the same for any size.
//! The root itself is never copied up, since every layer has one.

use std::collections::VecDeque;
use std::path::Path;

use rustix::fs::{Access, AtFlags, accessat};
use rustix::process::{getegid, geteuid};

use super::layers;
use crate::fs::accounts::{self, IdRange};
use crate::fs::{Dir, Meta};
use crate::model::ResourcePath;
use crate::run::idmap;

/// An owner or a group that is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnmappedOwner {
    /// The owner.
    User(u32),
    /// The group, to which nothing entitles.
    Group(u32),
    /// The group, which is granted to the user.
    Granted(u32),
}

/// What a command could not change.
struct UnchangeableEntry {
    /// It.
    path: ResourcePath,
    /// It, or the directory above it, that belongs to a user whose id is not mapped.
    because: (ResourcePath, UnmappedOwner),
}

/// What a command could not use.
enum UnusableEntry {
    /// It could not see this one.
    Hidden(ResourcePath),
    /// It could not change this one.
    Unchangeable(UnchangeableEntry),
}

/// The ids of the user.
struct UserIds {
    user: u32,
    group: u32,
    granted: Vec<IdRange>,
}

impl UserIds {
    fn foreign(&self, meta: &Meta) -> Option<UnmappedOwner> {
        if meta.uid != self.user {
            return Some(UnmappedOwner::User(meta.uid));
        }
        let granted = self.granted.iter().any(|range| range.contains(meta.gid));
        match (meta.gid == self.group, granted) {
            (true, _) => None,
            (false, true) => Some(UnmappedOwner::Granted(meta.gid)),
            (false, false) => Some(UnmappedOwner::Group(meta.gid)),
        }
    }
}

/// What a command of this user could not do in an overlay of `original`, in words for people; `None` if nothing was found
/// in the first `most` entries. Root mounts without a user namespace, so it can change everything that it sees.
pub(super) fn limit(original: &Path, most: usize) -> Option<String> {
    let ids = (!geteuid().is_root()).then(|| UserIds {
        user: geteuid().as_raw(),
        group: getegid().as_raw(),
        granted: idmap::granted(),
    });
    // What cannot be opened is reported by who makes the sandbox.
    let found = match look(&Dir::open(original).ok()?, ids.as_ref(), most)? {
        UnusableEntry::Hidden(path) => return Some(hidden(&path)),
        UnusableEntry::Unchangeable(found) => found,
    };
    let ids = ids?;
    let why = match found.because.1 {
        UnmappedOwner::Granted(_) => Some(idmap::namespace(&ids.granted).err()?),
        UnmappedOwner::User(_) | UnmappedOwner::Group(_) => None,
    };
    Some(said(&found, why.as_deref(), ids.user))
}

/// The first entry that is hidden or stuck; one that needs a granted group only if there is no other.
fn look(root: &Dir, ids: Option<&UserIds>, most: usize) -> Option<UnusableEntry> {
    let mut granted = None;
    let mut looked_at = 0;
    let mut waiting = VecDeque::from([(ResourcePath::root(), None)]);
    while let Some((path, above)) = waiting.pop_front() {
        let left = most.saturating_sub(looked_at);
        if left == 0 {
            break;
        }
        // What this user may not list, or what vanished, holds nothing that can be told.
        let Ok((dir, entries)) = root.dir(&path).and_then(|dir| {
            let entries = dir.first_entries(left)?;
            Ok((dir, entries))
        }) else {
            continue;
        };
        looked_at += entries.len();
        for entry in entries {
            let (name, meta) = (entry.name, entry.meta);
            if dir.is_mount_point(&meta) || !(meta.is_dir() || meta.is_file()) {
                continue;
            }
            let here = path.join(&name);
            // What vanished hides nothing.
            if meta.is_file() && layers::is_hidden(&dir, &name, &meta).unwrap_or(false) {
                return Some(UnusableEntry::Hidden(here));
            }
            let because = match &above {
                // Another process's directory cannot be copied up, whosever its entries are.
                Some((_, UnmappedOwner::User(_) | UnmappedOwner::Group(_))) => above.clone(),
                above => match ids.and_then(|ids| ids.foreign(&meta)) {
                    Some(foreign) => Some((here.clone(), foreign)),
                    None => above.clone(),
                },
            };
            if let (Some(because), Some(ids)) = (&because, ids)
                && may_change(&dir, &name, &meta, ids.user)
            {
                let stuck = UnchangeableEntry {
                    path: here.clone(),
                    because: because.clone(),
                };
                match because.1 {
                    UnmappedOwner::Granted(_) => granted = granted.or(Some(stuck)),
                    UnmappedOwner::User(_) | UnmappedOwner::Group(_) => {
                        return Some(UnusableEntry::Unchangeable(stuck));
                    }
                }
            }
            if meta.is_dir() {
                waiting.push_back((here, because));
            }
        }
    }
    granted.map(UnusableEntry::Unchangeable)
}

/// Whether this user may change an entry where it lies: its mode as its owner, or what it holds.
fn may_change(dir: &Dir, name: &[u8], meta: &Meta, user: u32) -> bool {
    let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
    meta.uid == user || accessat(dir, name, Access::WRITE_OK, flags).is_ok()
}

fn hidden(path: &ResourcePath) -> String {
    format!(
        "commands inside cannot see '{path}': its attribute user.overlay.whiteout marks it as deleted for an overlay; \
        `setfattr -x user.overlay.whiteout` takes it off"
    )
}

fn said(stuck: &UnchangeableEntry, why: Option<&str>, user: u32) -> String {
    let UnchangeableEntry { path, because } = stuck;
    let whose = match because.0 == *path {
        true => "it".to_owned(),
        false => format!("'{}'", because.0),
    };
    let group = |gid: u32| match accounts::group_name(gid) {
        Some(name) => format!("group {name} ({gid})"),
        None => format!("group {gid}"),
    };
    let (belongs, next) = match because.1 {
        UnmappedOwner::User(uid) => (
            format!("user {uid}"),
            "and only your own user is mapped inside".to_owned(),
        ),
        UnmappedOwner::Group(gid) => (
            group(gid),
            format!(
                "which is not mapped inside; the line {user}:{gid}:1 in /etc/subgid would have it mapped"
            ),
        ),
        UnmappedOwner::Granted(gid) => (
            group(gid),
            format!(
                "which /etc/subgid grants you but which cannot be mapped: {}",
                why.unwrap_or("the reason is not known")
            ),
        ),
    };
    format!(
        "commands inside cannot change '{path}' (EOVERFLOW), although you may: {whose} belongs to {belongs}, {next}"
    )
}
