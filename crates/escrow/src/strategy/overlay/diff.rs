//! The diff of an overlay against its original: one walk over its layers, at the cost of the changes.
//!
//! The kernel copies a file up for many reasons, a changed time or an open for writing among
//! them; so everything in the upper layer is compared with what it hides, and what does not
//! differ is no change (rules F6, F8).

use std::collections::HashSet;

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::base;
use super::layers::{self, LayerDirMetadata, LayerMark};
use super::stack::{LayerStack, StackedDir};
use crate::fs::dir::DirEntry;
use crate::fs::walk::{DirVisit, NextDirs, Shared, descend, walk};
use crate::fs::{Dir, Meta, Stamp};
use crate::model::{Change, ChangedField, ResourcePath};
use crate::strategy::tree_commit::Released;

/// What is known of a directory of the layers before it is listed.
#[derive(Clone)]
struct PendingDir {
    /// The layers that show it.
    numbers: Vec<usize>,
    /// The original has a directory of this path.
    lower: bool,
    /// It does not show through.
    opaque: bool,
    /// Because it was released while a command saw it: only what was released is deleted from it.
    released: bool,
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
pub(super) fn look(upper: &LayerStack, lower: &Dir, released: &Released) -> Result<OverlayScan> {
    let all = Shared::new(OverlayScan::default());
    let report = |found: OverlayScan| {
        let mut all = all.lock();
        all.changes.extend(found.changes);
        all.kept.extend(found.kept);
        all.directories.extend(found.directories);
        all.gone.extend(found.gone);
    };
    report(OverlayScan {
        gone: released.removed().collect(),
        ..OverlayScan::default()
    });
    let root = upper.root()?;
    report(OverlayScan {
        changes: root_change(&root, lower, released)?.into_iter().collect(),
        ..OverlayScan::default()
    });
    let start = PendingDir {
        numbers: root.numbers,
        lower: true,
        opaque: false,
        released: false,
    };
    descend(start, |path, beside| {
        let mut found = OverlayScan::default();
        let next = directory((upper, lower, released), path, &beside, &mut found)?;
        report(found);
        Ok::<_, StrategyError>(next)
    })?;
    Ok(all.into_inner())
}

fn root_change(upper: &StackedDir, lower: &Dir, released: &Released) -> Result<Option<Change>> {
    let root = ResourcePath::root();
    let (old, new) = (lower.meta()?, upper.dirs[0].meta()?);
    let fields = match released.has(&root) {
        true => compare((&upper.dirs[0], &new), (lower, &old), b".", None, true)?,
        false => directory_fields(upper)?.unwrap_or_default(),
    };
    Ok(Change::between(root, old.facts(), new.facts(), fields))
}

/// In what a directory that we made differs from how we made it; `None` for one of the kernel's.
fn directory_fields(level: &StackedDir) -> Result<Option<Vec<ChangedField>>> {
    let made = level.remembered()?;
    made.map(|made| Ok(made.differences(&LayerDirMetadata::of(&level.dirs[0])?)))
        .transpose()
}

fn directory(
    (upper, lower, released): (&LayerStack, &Dir, &Released),
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
        let theirs = |entry: &DirEntry| beside.released && !released.has(&here.join(&entry.name));
        for entry in dir.entries()?.into_iter().filter(|entry| !known(entry)) {
            if !theirs(&entry) && !layers::is_hidden(dir, &entry.name, &entry.meta)? {
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
            if let (Some(old), Some(dir)) = (hidden, lower_at) {
                deleted(dir, here, &name, &old, found)?;
            }
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
        match (hidden, lower_at) {
            (Some(old), Some(dir)) => {
                let at = ((dir_at, &meta), (dir, &old));
                let fields = match old.kind == meta.kind {
                    true => {
                        let known = released.has(&path);
                        compare(at.0, at.1, &name, inside.as_ref(), known)?
                    }
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
            let lowest = inside.as_ref().and_then(|level| level.dirs.last());
            let lowest = lowest.filter(|_| hides && released.has(&here.join(&name)));
            let hidden_so = lowest.map(base::hides_released).transpose()?;
            let beside = PendingDir {
                numbers,
                lower: hidden.is_some_and(|old| old.is_dir()),
                opaque: beside.opaque || hides,
                released: beside.released || hidden_so == Some(true),
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
    released: bool,
) -> Result<Vec<ChangedField>> {
    // What was released is in the original by the sandbox itself.
    let inside = inside.filter(|_| !released);
    if let Some(level) = inside.filter(|level| !level.dirs.is_empty()) {
        if let Some(fields) = directory_fields(level)? {
            return Ok(fields);
        }
        // One that the sandbox made by itself is not compared with one that came since. The lowest
        // layer that has it tells.
        let first = &level.dirs[level.dirs.len() - 1];
        if !layers::is_copied(first)? && !layers::is_opaque(first)? {
            return Ok(Vec::new());
        }
    }
    let (old, new) = ((lower, old), (upper, new));
    let same = || tree::same_content((upper, name), (lower, name));
    let fields = tree::differences(name, old, new, layers::visible, same)?;
    Ok(tree::ownable(fields, old.1))
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
