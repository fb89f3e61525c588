//! The diff of an overlay against its original: one walk over its layers, at the cost of the changes.
//!
//! The kernel copies a file up for many reasons, a changed time or an open for writing among
//! them; so everything in the upper layer is compared with what it hides, and what does not
//! differ is no change (rules F6, F8).

use std::collections::HashSet;

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::layers::{self, LayerDirMetadata, LayerMark};
use super::stack::{LayerStack, StackedDir};
use crate::fs::dir::DirEntry;
use crate::fs::walk::{DirVisit, NextDirs, Shared, descend, walk};
use crate::fs::{Dir, Meta, MovedEntries, Stamp};
use crate::model::{Change, ChangedField, EntryKind, ResourcePath};
use crate::strategy::partial_commits::{PartialCommits, ReleasedVersion};

/// What is known of a directory of the layers before it is listed.
#[derive(Clone)]
struct PendingDir {
    /// The layers that show it.
    numbers: Vec<usize>,
    /// The original has a directory of this path.
    lower: bool,
    /// It does not show through.
    opaque: bool,
}

/// What a walk over the upper layer found.
#[derive(Default)]
pub(super) struct OverlayScan {
    /// What differs.
    pub(super) changes: Vec<Change>,
    /// What is in the upper layer, but is no change and no directory.
    pub(super) kept: Vec<ResourcePath>,
    /// The directories of the upper layer.
    pub(super) directories: Vec<ResourcePath>,
    /// Size and time of the files that are deleted.
    pub(super) gone: HashSet<(u64, Stamp)>,
}

/// One walk over the layers.
pub(super) fn look(upper: &LayerStack, lower: &Dir) -> Result<OverlayScan> {
    look_beside(upper, lower, &PartialCommits::default())
}

/// The same, where some of it was released.
pub(super) fn look_beside(
    upper: &LayerStack,
    lower: &Dir,
    released: &PartialCommits,
) -> Result<OverlayScan> {
    let all = Shared::new(OverlayScan::default());
    let report = |found: OverlayScan| {
        let mut all = all.lock();
        all.changes.extend(found.changes);
        all.kept.extend(found.kept);
        all.directories.extend(found.directories);
        all.gone.extend(found.gone);
    };
    let root = upper.root()?;
    report(OverlayScan {
        changes: root_change(&root, lower, released)?.into_iter().collect(),
        ..OverlayScan::default()
    });
    let start = PendingDir {
        numbers: root.numbers,
        lower: true,
        opaque: false,
    };
    descend(start, |path, beside| {
        let mut found = OverlayScan::default();
        let next = directory((upper, lower, released), path, &beside, &mut found)?;
        report(found);
        Ok::<_, StrategyError>(next)
    })?;
    Ok(all.into_inner())
}

fn root_change(
    upper: &StackedDir,
    lower: &Dir,
    released: &PartialCommits,
) -> Result<Option<Change>> {
    let root = ResourcePath::root();
    let fields = directory_fields(upper, released.version(&root))?.unwrap_or_default();
    let (old, new) = (lower.meta()?.facts(), upper.dirs[0].meta()?.facts());
    Ok(Change::between(root, old, new, fields))
}

/// In what a directory that we made differs from how we made it, or from how it was released; `None` for
/// one of the kernel's.
fn directory_fields(
    level: &StackedDir,
    released: Option<&ReleasedVersion>,
) -> Result<Option<Vec<ChangedField>>> {
    let made = match released {
        Some(both) => Some(LayerDirMetadata::released(both)),
        None => level.remembered()?,
    };
    made.map(|made| Ok(made.differences(&LayerDirMetadata::of(&level.dirs[0])?)))
        .transpose()
}

fn directory(
    (upper, lower, released): (&LayerStack, &Dir, &PartialCommits),
    path: &ResourcePath,
    beside: &PendingDir,
    looked: &mut OverlayScan,
) -> Result<NextDirs<PendingDir>> {
    let found = &mut looked.changes;
    let level = upper.level(path, beside.numbers.clone())?;
    if level.dirs.is_empty() {
        return Ok(Vec::new());
    }
    let here = path;
    looked.directories.push(here.clone());
    let entries = level.entries()?;
    let lower_dir = match beside.lower {
        true => Some(lower.dir(here)?),
        false => None,
    };
    let below = |name: &[u8]| -> Result<Option<Meta>> {
        let Some(dir) = &lower_dir else {
            return Ok(None);
        };
        layers::lower_stat(dir, name)
    };
    if beside.opaque
        && let Some(dir) = &lower_dir
    {
        let known = |entry: &DirEntry| {
            entries
                .binary_search_by(|(_, upper)| upper.name.cmp(&entry.name))
                .is_ok()
        };
        // What lies in a directory that a release made, and was not released with it, was never hidden.
        let put = released.version(here).is_some_and(|both| both.made);
        let theirs = |entry: &DirEntry| {
            let path = here.join(&entry.name);
            released.is_gone(&path) || (put && released.version(&path).is_none())
        };
        let entries = dir.entries()?.into_iter();
        for entry in entries.filter(|entry| !known(entry) && !theirs(entry)) {
            if !layers::is_hidden(dir, &entry.name, &entry.meta)? {
                deleted(dir, here, &entry.name, &entry.meta, found)?;
            }
        }
    }
    let mut next = Vec::new();
    for (at, DirEntry { name, meta }) in entries {
        let dir_at = &level.dirs[at];
        let path = here.join(&name);
        let mark = layers::mark(dir_at, &name, &meta, &path)?;
        let hidden = below(&name)?;
        let lower_at = lower_dir.as_ref();
        if mark == LayerMark::Whiteout {
            looked.gone.extend(hidden.map(|old| (old.size, old.mtime)));
            if released.is_gone(&path) {
                continue;
            }
            if let (Some(old), Some(dir)) = (hidden, lower_at) {
                deleted(dir, here, &name, &old, found)?;
            }
            continue;
        }
        if !meta.is_dir() && released.is_untouched(&path, &meta) {
            let same = hidden.filter(|old| released.knows(old, &MovedEntries::default()));
            looked.kept.extend(same.map(|_| path));
            continue;
        }
        let below = match meta.is_dir() {
            true => Some(level.below(&name, &path, (at, mark))?),
            false => None,
        };
        let inside = below.as_ref().map(|(numbers, _)| {
            let numbers = numbers.clone();
            upper.level(&path, numbers)
        });
        let inside = inside.transpose()?;
        let both = released.version(&path);
        let same_looks = match (&inside, both) {
            (Some(level), Some(both)) if !level.dirs.is_empty() => {
                both.ours.kind == EntryKind::Directory
                    && directory_fields(level, Some(both))?.is_some_and(|fields| fields.is_empty())
            }
            _ => false,
        };
        match (hidden, lower_at) {
            // Released as it is, whatever became of it there.
            _ if same_looks => {}
            (Some(old), Some(dir)) => {
                let at = ((dir_at, &meta), (dir, &old));
                let fields = match old.kind == meta.kind {
                    true => compare(at.0, at.1, &name, inside.as_ref(), both)?,
                    false => Vec::new(),
                };
                let facts = (dir.facts(&name, &old)?, dir_at.facts(&name, &meta)?);
                let change = Change::between(path.clone(), facts.0, facts.1, fields);
                if change.is_none() && !meta.is_dir() {
                    looked.kept.push(path.clone());
                }
                found.extend(change);
                if old.is_dir() && !meta.is_dir() {
                    deleted_below(dir, &path, &name, &old, found)?;
                }
            }
            _ => found.push(Change::added(path, dir_at.facts(&name, &meta)?)),
        }
        if let Some((numbers, hides)) = below {
            let beside = PendingDir {
                numbers,
                lower: hidden.is_some_and(|old| old.is_dir()),
                opaque: beside.opaque || hides,
            };
            next.push((name, beside));
        }
    }
    Ok(next)
}

/// In what an entry of the upper layer differs from the one of the same kind that it hides.
fn compare(
    (upper, new): (&Dir, &Meta),
    (lower, old): (&Dir, &Meta),
    name: &[u8],
    inside: Option<&StackedDir>,
    released: Option<&ReleasedVersion>,
) -> Result<Vec<ChangedField>> {
    if let Some(level) = inside.filter(|level| !level.dirs.is_empty()) {
        if let Some(fields) = directory_fields(level, released)? {
            return Ok(fields);
        }
        // One that the sandbox made by itself is not compared with one that came since. The lowest
        // layer that has it tells.
        let first = &level.dirs[level.dirs.len() - 1];
        if !layers::is_copied(first)? && !layers::is_opaque(first)? {
            return Ok(Vec::new());
        }
    }
    let same = || tree::same_content((upper, name), (lower, name));
    let (old, new) = ((lower, old), (upper, new));
    let mut fields = tree::differences(name, old, new, layers::visible, same)?;
    fields.retain(|field| *field != ChangedField::Owner || can_own(old.1));
    Ok(fields)
}

/// Whether this user could have made an entry with this owner. One who cannot gets copies of
/// their own, which is no change that any process made.
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
    let list = Shared::new(found);
    walk(&root, path.clone(), |visit: DirVisit<'_, ResourcePath>| {
        let mut next = Vec::new();
        for DirEntry { name, meta } in visit.entries {
            if layers::is_hidden(visit.dir, &name, &meta)? {
                continue;
            }
            let path = visit.state.join(&name);
            let facts = visit.dir.facts(&name, &meta)?;
            let mut list = list.lock();
            list.push(Change::deleted(path.clone(), facts));
            if meta.is_dir() && !visit.dir.is_mount_point(&meta) {
                next.push((name, path));
            }
        }
        Ok::<_, StrategyError>(next)
    })?;
    Ok(())
}
