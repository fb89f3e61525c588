//! Squashes layers that no snapshot needs apart, so that the number of checkpoints is not limited. What the stack
//! shows, and what it knows of the original, stays the same.
//!
//! The new layer is built beside the old ones, out of further names for their files. Then `now` is exchanged, which
//! also says what took the place of what, and the snapshots are rewritten by the caller; the old layers are removed
//! when that is done. Killed in between, the old ones are there for those that name them, and the next
//! [`retain`](super::checkpoints::retain) rewrites the snapshots. Layers of other sandboxes, and those that forks began
//! on, stay as they are.

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::layers::{self, LayerEntry, LayerMark};
use super::stack::{LayerRef, LayerStack, LayerState, SquashedLayer, StackedDir};
use super::{OpenLayers, base};
use crate::event::Unobserved;
use crate::fs::dir::DirEntry;
use crate::fs::place::{CopyOptions, DirLook, Placer};
use crate::fs::state_dir;
use crate::fs::walk::{NextDirs, descend};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta, remove};
use crate::model::{EntryKind, ResourcePath};

/// So many layers must be saved by it: each file gets another name once in as many checkpoints.
const WORTH: usize = 16;

/// Neighbours that every stack has together, each with those that it lies on.
fn runs(now: &LayerState, kept: &[Vec<LayerRef>]) -> Vec<(Vec<LayerRef>, Vec<LayerRef>)> {
    let is_ours = |layer: &LayerRef| layer.area.is_none() && !now.shared.contains(&layer.number);
    // The topmost layer in use takes the changes.
    let stacks = || kept.iter().map(|one| &one[..]).chain([&now.layers[1..]]);
    // Which layer lies on one in every stack; none where they differ.
    let mut above: HashMap<u32, Option<u32>> = HashMap::new();
    for stack in stacks() {
        let mut last = None;
        for layer in stack {
            let on_it = above.entry(layer.number).or_insert(last);
            if *on_it != last || !is_ours(layer) {
                *on_it = None;
            }
            last = is_ours(layer).then_some(layer.number);
        }
    }
    let mut runs = BTreeMap::new();
    for stack in stacks() {
        let mut start = 0;
        for end in 1..=stack.len() {
            let last = &stack[end - 1];
            let joins = |next: &LayerRef| is_ours(next) && above[&next.number] == Some(last.number);
            if stack.get(end).is_some_and(joins) {
                continue;
            }
            if end - start > 1 {
                let run = (stack[start..end].to_vec(), stack[end..].to_vec());
                runs.insert(stack[start].number, run);
            }
            start = end;
        }
    }
    runs.into_values().collect()
}

/// Squashes what these snapshots do not need apart, if that saves enough layers; which are in use from then on.
pub(super) fn squash(open: &OpenLayers, kept: &[Vec<LayerRef>]) -> Result<Option<LayerState>> {
    let runs = runs(&open.now, kept);
    let saved: usize = runs.iter().map(|(parts, _)| parts.len() - 1).sum();
    if saved < WORTH {
        return Ok(None);
    }
    let mut now = open.now.clone();
    // What was squashed before is named by every snapshot.
    now.squashed.clear();
    for (parts, below) in runs {
        let stack = LayerStack::open(&parts, &open.area)?;
        build(open, (&stack, &below), now.next, (true, &|_| true))?;
        now.squashed.push(SquashedLayer {
            number: now.next,
            was: parts.iter().map(|part| part.number).collect(),
        });
        now.next += 1;
    }
    now.layers = now.renewed(&now.layers);
    open.area.sync_file_system()?;
    now.write(&open.area)?;
    Ok(Some(now))
}

/// Makes layer `number` what all layers in use show together, durably. Snapshots keep those layers, so the files are
/// copied: how many names a file has can be seen.
pub(super) fn flatten(open: &OpenLayers, number: u32, takes: Takes<'_>) -> Result<()> {
    build(open, (&open.upper, &[]), number, (false, takes))?;
    Ok(open.area.sync_file_system()?)
}

/// Whether a path of the layers is in the new one.
pub(super) type Takes<'a> = &'a (dyn Fn(&ResourcePath) -> bool + Sync);

/// A directory that is to be made.
struct SquashedDir {
    /// The layers that show it.
    numbers: Vec<usize>,
    /// They hide what is below.
    opaque: bool,
    /// There is, or was, a directory below, with which it merges.
    merges: bool,
    /// What the lowest layer that has it knows, if that is another one than the one that shows it.
    lowest: Option<LowestVersion>,
}

/// What the lowest layer that has a path knows of it: whether it came from the original.
struct LowestVersion {
    /// Which layer that is.
    number: usize,
    origin: Option<Vec<u8>>,
    derived: bool,
    looks: bool,
    is_dir: bool,
}

impl LowestVersion {
    /// Whether it came from the original, or from a layer below.
    fn came(&self) -> bool {
        self.origin.is_some() || self.derived || self.looks
    }
}

struct LayerSquash<'a> {
    stack: &'a LayerStack,
    /// What it will lie on.
    below: (&'a LayerStack, &'a Dir),
    to: &'a Dir,
    /// Files are not copied but get another name: the old layers go.
    links: bool,
    takes: Takes<'a>,
    placer: Placer<'a>,
}

/// One layer that shows what this stack shows on what is below it. The caller syncs it.
fn build(
    open: &OpenLayers,
    (stack, below): (&LayerStack, &[LayerRef]),
    number: u32,
    (links, takes): (bool, Takes<'_>),
) -> Result<()> {
    let room = LayerState::room(&open.area)?;
    let name = number.to_string().into_bytes();
    remove::remove(&room, &name)?;
    let to = state_dir::make_plain(&room, &name)?;
    let below = LayerStack::open(below, &open.area)?;
    let squashing = LayerSquash {
        stack,
        below: (&below, &open.lower),
        to: &to,
        links,
        takes,
        placer: Placer::new(&to, &Unobserved),
    };
    let root = SquashedDir {
        numbers: stack.root()?.numbers,
        opaque: false,
        merges: true,
        lowest: None,
    };
    descend(root, |path, beside| squashing.directory(path, &beside))?;
    squashing.placer.finish()?;
    Ok(())
}

/// What an entry of a layer knows of where it came from.
fn known((dir, name): (&Dir, &[u8]), number: usize, is_dir: bool) -> Result<LowestVersion> {
    let attributes = tree::xattrs_if_open(dir, name)?.unwrap_or_default();
    let value = |name: &[u8]| attributes.iter().find(|(one, _)| one == name);
    Ok(LowestVersion {
        number,
        origin: value(base::ORIGIN).map(|(_, value)| value.clone()),
        derived: base::is_derived(&attributes),
        looks: value(layers::LOOKS).is_some(),
        is_dir,
    })
}

/// Adds an attribute that is to be there, or removes one that is not.
fn want(attributes: &mut Xattrs, name: &[u8], value: Option<Vec<u8>>) {
    let has = attributes.iter().any(|(one, _)| one == name);
    match value {
        None => attributes.retain(|(one, _)| one != name),
        Some(value) if !has => attributes.push((name.to_vec(), value)),
        Some(_) => {}
    }
}

/// The attributes of what is shown, with what the lowest layer knows: `merged` where that shows through.
fn taught(mut attributes: Xattrs, lowest: &LowestVersion, is_dir: bool, merged: bool) -> Xattrs {
    let alike = is_dir == lowest.is_dir && (merged || !is_dir);
    // What the kernel noted on it may mean one of the layers that are squashed.
    let origin = lowest.origin.clone().filter(|_| alike);
    want(&mut attributes, base::ORIGIN, origin);
    let (name, value) = base::derived();
    let derived = lowest.derived || (!alike && lowest.came());
    want(&mut attributes, &name, derived.then_some(value));
    attributes
}

impl LayerSquash<'_> {
    fn directory(
        &self,
        path: &ResourcePath,
        beside: &SquashedDir,
    ) -> Result<NextDirs<SquashedDir>> {
        let level = self.stack.level(path, beside.numbers.clone())?;
        if level.dirs.is_empty() {
            return Err(StrategyError::Damaged {
                what: format!("the directory '{path}' of a layer is gone"),
            });
        }
        self.queue_metadata(path, &level, beside)?;
        let to = self.to.dir(path)?;
        let holders = self.stack.holders(path)?;
        let mut next = Vec::new();
        for (at, DirEntry { name, meta }) in level.entries()? {
            let (dir, below) = (&level.dirs[at], path.join(&name));
            if !(self.takes)(&below) {
                continue;
            }
            let mark = layers::mark(dir, &name, &meta, &below)?;
            if mark == LayerMark::Whiteout {
                // Where there is nothing to hide, the kernel would list it.
                if beside.merges {
                    link_whiteout((dir, &name), &to, &meta)?;
                }
                continue;
            }
            let lowest = lowest(&holders, &name, level.numbers[at])?;
            if !meta.is_dir() {
                self.place((dir, &name), (&below, &to), &meta, lowest.as_ref())?;
                continue;
            }
            state_dir::make_plain(&to, &name)?;
            let (numbers, opaque) = level.below(&name, &below, (at, mark))?;
            let came = match &lowest {
                Some(lowest) => lowest.came(),
                None => known((dir, &name), level.numbers[at], true)?.came(),
            };
            // One of the original's that is gone just now may come back.
            let merges = beside.merges && !opaque && (came || self.is_below(&below)?);
            let beside = SquashedDir {
                numbers,
                opaque,
                merges,
                lowest,
            };
            next.push((name, beside));
        }
        Ok(next)
    }

    /// Whether what it will lie on shows a directory at `path`.
    fn is_below(&self, path: &ResourcePath) -> Result<bool> {
        let (stack, original) = self.below;
        Ok(match layers::find(stack, original, path) {
            Ok(LayerEntry::Upper(_, meta) | LayerEntry::Lower(_, meta)) => meta.is_dir(),
            Ok(LayerEntry::Nothing) | Err(StrategyError::Leaves { .. }) => false,
            Err(error) => return Err(error),
        })
    }

    fn queue_metadata(
        &self,
        path: &ResourcePath,
        level: &StackedDir,
        beside: &SquashedDir,
    ) -> Result<()> {
        let shown = &level.dirs[0];
        let mut attributes = tree::xattrs_of(shown)?;
        if let Some(lowest) = &beside.lowest {
            // Or it lies below something that hides it.
            let merged = level.numbers.contains(&lowest.number);
            attributes = taught(attributes, lowest, true, merged);
        }
        if let Some(looks) = level.remembered()? {
            want(&mut attributes, layers::LOOKS, Some(looks.text()));
        }
        let opaque = layers::OPAQUE.as_bytes();
        if beside.opaque {
            want(&mut attributes, opaque, None);
            want(&mut attributes, opaque, Some(b"y".to_vec()));
        }
        // That its whiteouts are attributes is said on the directory.
        for dir in &level.dirs[1..] {
            let theirs = tree::xattrs_of(dir)?;
            if let Some((name, value)) = theirs.into_iter().find(|(name, _)| name == opaque) {
                want(&mut attributes, &name, Some(value));
            }
        }
        let look = DirLook::new(shown.meta()?, attributes);
        self.placer.dir(path.clone(), look);
        Ok(())
    }

    /// Puts a file, or what else is no directory, into the new layer, with what the lowest layer knows of it.
    fn place(
        &self,
        from: (&Dir, &[u8]),
        (path, to): (&ResourcePath, &Dir),
        meta: &Meta,
        lowest: Option<&LowestVersion>,
    ) -> Result<()> {
        let (dir, name) = from;
        let put = || match self.links {
            true => Ok(to.link_to(name, dir, name)?),
            false => self.copy(from, path, to, meta),
        };
        let there = match lowest {
            // One of several names must not learn what is true of another.
            Some(_) if meta.is_file() && meta.nlink == 1 => tree::xattrs_if_open(dir, name)?,
            _ => None,
        };
        let (Some(lowest), Some(there)) = (lowest, there) else {
            return put();
        };
        let wanted = taught(there.clone(), lowest, false, false);
        if wanted == there {
            return put();
        }
        if self.links {
            // In the old layers it is not the lowest, so no process there asks it.
            match teach(&dir.handle(name)?, &there, &wanted) {
                Ok(()) => return put(),
                Err(Errno::ACCESS) => {}
                Err(errno) => return Err(dir.error("mark", name, Cause::Os(errno)).into()),
            }
        }
        self.copy(from, path, to, meta)?;
        let copy = to.handle(name)?;
        copy.set_mode(meta.mode | 0o600)
            .and_then(|()| teach(&copy, &there, &wanted))
            .and_then(|()| copy.set_mode(meta.mode))
            .map_err(|errno| to.error("mark", name, Cause::Os(errno)).into())
    }

    fn copy(&self, from: (&Dir, &[u8]), path: &ResourcePath, to: &Dir, meta: &Meta) -> Result<()> {
        let to = (to, from.1);
        let key = (meta.nlink > 1).then_some((meta.dev, meta.ino));
        self.placer.entry(key, path, to, || -> Result<_> {
            match meta.kind {
                EntryKind::Device | EntryKind::Socket => to.0.link_to(to.1, from.0, from.1)?,
                _ => {
                    self.placer.copy(from, to, meta.kind, CopyOptions::QUIET)?;
                }
            }
            Ok(((), true))
        })?;
        Ok(())
    }
}

/// What the lowest layer that has `name` knows of it; `None` if it is the one that shows it.
fn lowest(holders: &[(usize, Dir)], name: &[u8], shown: usize) -> Result<Option<LowestVersion>> {
    for (number, dir) in holders.iter().rev() {
        if *number == shown {
            return Ok(None);
        }
        match dir.stat(name)? {
            Some(meta) if !layers::is_hidden(dir, name, &meta)? => {
                return Ok(Some(known((dir, name), *number, meta.is_dir())?));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Another name for a whiteout; where it has too many, a new one.
fn link_whiteout((dir, name): (&Dir, &[u8]), to: &Dir, meta: &Meta) -> Result<()> {
    match to.link_to(name, dir, name) {
        Err(error) if error.is(Errno::MLINK) && meta.is_whiteout() => Ok(to.make_whiteout(name)?),
        linked => Ok(linked?),
    }
}

/// Makes the attributes `wanted` of those that are there.
fn teach(
    handle: &EntryHandle<'_>,
    there: &Xattrs,
    wanted: &Xattrs,
) -> std::result::Result<(), Errno> {
    for (name, value) in wanted.iter().filter(|one| !there.contains(one)) {
        xattr::set(handle, name, value)?;
    }
    for (name, _) in there.iter().filter(|one| !wanted.contains(one)) {
        xattr::remove(handle, name)?;
    }
    Ok(())
}
