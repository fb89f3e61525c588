//! How an overlay differs from its original: one walk over the upper layer, whose size is that of
//! the changes.
//!
//! The kernel copies a file up for many reasons, a changed time or an open for writing among
//! them; so everything in the upper layer is compared with what it hides, and what does not
//! differ is no change (rules F6, F8).

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::layers::{self, Looks, Mark};
use crate::fs::beneath::Entry;
use crate::fs::walk::{Next, Visit, walk};
use crate::fs::{Dir, Meta, Stamp};
use crate::model::{Change, EntryKind, Field, ResourcePath};

/// What is known of a directory of the upper layer before it is listed.
#[derive(Clone, Copy)]
struct Beside {
    /// The original has a directory of this path.
    lower: bool,
    /// It does not show through.
    opaque: bool,
}

/// What a walk over the upper layer found.
#[derive(Default)]
pub(super) struct Looked {
    /// What differs.
    pub(super) changes: Vec<Change>,
    /// What is in the upper layer, but is no change and no directory.
    pub(super) kept: Vec<ResourcePath>,
    /// Size and time of the files that are deleted.
    pub(super) gone: HashSet<(u64, Stamp)>,
}

/// One walk over the upper layer.
pub(super) fn look(upper: &Dir, lower: &Dir) -> Result<Looked> {
    let all = Mutex::new(Looked::default());
    let report = |found: Looked| {
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.changes.extend(found.changes);
        all.kept.extend(found.kept);
        all.gone.extend(found.gone);
    };
    report(Looked {
        changes: root_change(upper, lower)?.into_iter().collect(),
        ..Looked::default()
    });
    let start = Beside {
        lower: true,
        opaque: false,
    };
    walk(upper, start, |visit| {
        let mut found = Looked::default();
        let next = directory(visit, lower, &mut found)?;
        report(found);
        Ok::<_, StrategyError>(next)
    })?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn root_change(upper: &Dir, lower: &Dir) -> Result<Option<Change>> {
    let fields = directory_fields(upper)?.unwrap_or_default();
    let (old, new) = (lower.meta()?.facts(), upper.meta()?.facts());
    Ok(Change::between(ResourcePath::root(), old, new, fields))
}

/// In what a directory that we made differs from how we made it; `None` for one of the kernel's.
fn directory_fields(dir: &Dir) -> Result<Option<Vec<Field>>> {
    let made = Looks::remembered(dir)?;
    made.map(|made| Ok(made.differences(&Looks::of(dir)?)))
        .transpose()
}

fn directory(visit: Visit<'_, Beside>, lower: &Dir, looked: &mut Looked) -> Result<Next<Beside>> {
    let found = &mut looked.changes;
    let lower_dir = match visit.state.lower {
        true => Some(lower.dir(visit.path)?),
        false => None,
    };
    let below = |name: &[u8]| -> Result<Option<Meta>> {
        let Some(dir) = &lower_dir else {
            return Ok(None);
        };
        layers::lower_stat(dir, name)
    };
    if visit.state.opaque
        && let Some(dir) = &lower_dir
    {
        let known = |entry: &Entry| {
            visit
                .entries
                .binary_search_by(|upper| upper.name.cmp(&entry.name))
                .is_ok()
        };
        for entry in dir.entries()?.into_iter().filter(|entry| !known(entry)) {
            if !layers::is_hidden(dir, &entry.name, &entry.meta)? {
                deleted(dir, visit.path, &entry.name, &entry.meta, found)?;
            }
        }
    }
    let mut next = Vec::new();
    for Entry { name, meta } in visit.entries {
        let path = visit.path.join(&name);
        let mark = layers::mark(visit.dir, &name, &meta, &path)?;
        let hidden = below(&name)?;
        let lower_at = lower_dir.as_ref();
        if mark == Mark::Whiteout {
            looked.gone.extend(hidden.map(|old| (old.size, old.mtime)));
            if let (Some(old), Some(dir)) = (hidden, lower_at) {
                deleted(dir, visit.path, &name, &old, found)?;
            }
            continue;
        }
        match (hidden, lower_at) {
            (Some(old), Some(dir)) => {
                let fields = match old.kind == meta.kind {
                    true => compare((visit.dir, &meta), (dir, &old), &name)?,
                    false => Vec::new(),
                };
                let facts = (dir.facts(&name, &old)?, visit.dir.facts(&name, &meta)?);
                let change = Change::between(path.clone(), facts.0, facts.1, fields);
                if change.is_none() && !meta.is_dir() {
                    looked.kept.push(path.clone());
                }
                found.extend(change);
                if old.is_dir() && !meta.is_dir() {
                    deleted_below(dir, &path, &name, &old, found)?;
                }
            }
            _ => found.push(Change::added(path, visit.dir.facts(&name, &meta)?)),
        }
        if meta.is_dir() {
            let beside = Beside {
                lower: hidden.is_some_and(|old| old.is_dir()),
                opaque: visit.state.opaque || mark == Mark::Opaque,
            };
            next.push((name, beside));
        }
    }
    Ok(next)
}

/// In what an entry of the upper layer differs from the one of the same kind that it hides.
fn compare(upper: (&Dir, &Meta), lower: (&Dir, &Meta), name: &[u8]) -> Result<Vec<Field>> {
    let ((upper, new), (lower, old)) = (upper, lower);
    if new.is_dir() {
        let dir = upper.subdir(name)?;
        if let Some(fields) = directory_fields(&dir)? {
            return Ok(fields);
        }
        // One that the sandbox made by itself is not compared with one that came since.
        if !layers::is_copied(&dir)? && !layers::is_opaque(&dir)? {
            return Ok(Vec::new());
        }
    }
    let mut fields = Vec::new();
    if new.mode != old.mode && new.kind != EntryKind::Symlink {
        fields.push(Field::Mode);
    }
    if (new.uid, new.gid) != (old.uid, old.gid) && can_own(old) {
        fields.push(Field::Owner);
    }
    let seen = |dir| Ok(tree::xattrs_if_open(dir, name)?.map(layers::visible));
    let (ours, theirs): (Result<_>, Result<_>) = (seen(upper), seen(lower));
    if let (Some(ours), Some(theirs)) = (ours?, theirs?)
        && ours != theirs
    {
        fields.push(Field::Xattrs);
    }
    match new.kind {
        EntryKind::Symlink if upper.read_link(name)? != lower.read_link(name)? => {
            fields.push(Field::Target);
        }
        EntryKind::File
            if new.size != old.size || !tree::same_content((upper, name), (lower, name))? =>
        {
            fields.push(Field::Content);
        }
        _ => {}
    }
    Ok(fields)
}

/// Whether this user could have made an entry with this owner. One who cannot gets copies of
/// their own, which is no change that anybody made.
fn can_own(meta: &Meta) -> bool {
    let user = rustix::process::geteuid();
    if user.is_root() || meta.uid != user.as_raw() {
        return user.is_root();
    }
    let groups = rustix::process::getgroups().unwrap_or_default();
    let own = rustix::process::getegid();
    groups
        .iter()
        .chain([&own])
        .any(|group| group.as_raw() == meta.gid)
}

fn deleted(
    dir: &Dir,
    parent: &ResourcePath,
    name: &[u8],
    meta: &Meta,
    found: &mut Vec<Change>,
) -> Result<()> {
    let path = parent.join(name);
    found.push(Change::deleted(path.clone(), dir.facts(name, meta)?));
    deleted_below(dir, &path, name, meta, found)
}

/// Lists everything below a directory of the original that is hidden. What is mounted there is
/// not part of the resource.
fn deleted_below(
    dir: &Dir,
    path: &ResourcePath,
    name: &[u8],
    meta: &Meta,
    found: &mut Vec<Change>,
) -> Result<()> {
    if !meta.is_dir() || dir.is_mount_point(meta) {
        return Ok(());
    }
    let root = dir.subdir(name)?;
    let list = Mutex::new(found);
    walk(&root, path.clone(), |visit: Visit<'_, ResourcePath>| {
        let mut next = Vec::new();
        for Entry { name, meta } in visit.entries {
            if layers::is_hidden(visit.dir, &name, &meta)? {
                continue;
            }
            let path = visit.state.join(&name);
            let facts = visit.dir.facts(&name, &meta)?;
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(Change::deleted(path.clone(), facts));
            if meta.is_dir() && !visit.dir.is_mount_point(&meta) {
                next.push((name, path));
            }
        }
        Ok::<_, StrategyError>(next)
    })?;
    Ok(())
}
