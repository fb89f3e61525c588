//! Squashes layers that no checkpoint separates any more, so that the number of checkpoints is not limited.
//! What the stack shows, and what it knows of the original, stays the same.
//!
//! The new layer is built beside the old ones, out of other names for their files; then `now` is
//! exchanged, and the old ones are swept. Killed in between, there are layers that are not needed. Only
//! layers of about the same weight are folded, so each file gets a new name as often as the number of
//! checkpoints has digits. Layers of other sandboxes, and those that others began on, stay as they are.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree;
use super::base;
use super::layers::{self, LayerEntry, LayerMark};
use super::stack::{LayerRef, LayerStack, LayerState, StackedDir};
use crate::fs::content::Reflinks;
use crate::fs::dir::DirEntry;
use crate::fs::place::{CopyOptions, copy_leaf};
use crate::fs::state_dir;
use crate::fs::walk::{NextDirs, descend};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Cause, Dir, EntryHandle, Meta, remove};
use crate::model::ResourcePath;

/// Deeper stacks are folded.
const DEEP: usize = 32;

/// A layer that took the place of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SquashedLayer {
    number: u32,
    /// How many layers it was once.
    weight: u32,
    /// Their numbers, as far as checkpoints name them.
    was: Vec<u32>,
}

impl LayerState {
    /// The layers of a checkpoint as they are now.
    pub(super) fn current(&self, layers: Vec<LayerRef>) -> Vec<LayerRef> {
        let now = |layer: LayerRef| {
            let taken =
                |fold: &&SquashedLayer| layer.area.is_none() && fold.was.contains(&layer.number);
            let fold = self.folds.iter().find(taken);
            fold.map_or(layer, |fold| LayerRef::own(fold.number))
        };
        let mut layers: Vec<LayerRef> = layers.into_iter().map(now).collect();
        layers.dedup();
        layers
    }

    /// Learns which checkpoints there are, each by the layers it names: which layers must stay apart from
    /// what lies on them, and which numbers no process names any more.
    pub(super) fn learn(&mut self, kept: &[Vec<LayerRef>]) {
        let own = kept.iter().flatten().filter(|one| one.area.is_none());
        let named: HashSet<u32> = own.map(|one| one.number).collect();
        for fold in &mut self.folds {
            fold.was.retain(|number| named.contains(number));
        }
        let kept: Vec<Vec<LayerRef>> = kept.iter().map(|one| self.current(one.clone())).collect();
        let is_needed = |fold: &SquashedLayer| {
            let all = self.layers.iter().chain(kept.iter().flatten());
            all.into_iter()
                .any(|one| *one == LayerRef::own(fold.number))
        };
        let folds = std::mem::take(&mut self.folds);
        self.folds = folds.into_iter().filter(is_needed).collect();
        self.apart = Some(Vec::new());
        for snapshot in &kept {
            self.separates(snapshot);
        }
    }

    /// Notes which layers of the stack a checkpoint of these layers distinguishes from what lies on them;
    /// says whether that is new.
    pub(super) fn separates(&mut self, snapshot: &[LayerRef]) -> bool {
        let divided = self.layers.windows(2).filter(|pair| {
            let below = snapshot.iter().position(|one| *one == pair[1]);
            below.is_some_and(|below| below == 0 || snapshot[below - 1] != pair[0])
        });
        // What is laid on the uppermost later is not of this checkpoint either.
        let divided = divided.map(|pair| &pair[1]).chain(snapshot.first());
        let divided: Vec<u32> = divided.map(|layer| layer.number).collect();
        let Some(apart) = &mut self.apart else {
            return false;
        };
        let before = apart.len();
        for number in divided {
            if !apart.contains(&number) {
                apart.push(number);
            }
        }
        apart.len() > before
    }

    fn weight(&self, layer: &LayerRef) -> u32 {
        let fold = self.folds.iter().find(|fold| fold.number == layer.number);
        fold.map_or(1, |fold| fold.weight)
    }

    /// Layers that may become one, as positions in the stack: the uppermost of some that nothing distinguishes,
    /// each no heavier than those above it together.
    fn can_squash(&self, apart: &[u32]) -> Option<std::ops::Range<usize>> {
        let is_ours = |layer: &LayerRef| layer.area.is_none() && !self.lent.contains(&layer.number);
        let mut first = 1;
        while first < self.layers.len() {
            let mut weight = self.weight(&self.layers[first]);
            let mut end = first + 1;
            let joins = |at: usize| {
                let layer = &self.layers[at];
                is_ours(&self.layers[at - 1]) && is_ours(layer) && !apart.contains(&layer.number)
            };
            while end < self.layers.len() && joins(end) {
                let next = self.weight(&self.layers[end]);
                if next > weight {
                    break;
                }
                weight += next;
                end += 1;
            }
            if end - first > 1 {
                return Some(first..end);
            }
            // Those below it that it could join are heavier.
            while end < self.layers.len() && joins(end) {
                end += 1;
            }
            first = end;
        }
        None
    }

    /// Puts one layer in the place of those at `range`.
    fn replace(&mut self, range: std::ops::Range<usize>) {
        let number = self.next;
        let parts: Vec<LayerRef> = self.layers.splice(range, [LayerRef::own(number)]).collect();
        let is_part = |number: u32| parts.contains(&LayerRef::own(number));
        let mut fold = SquashedLayer {
            number,
            weight: parts.iter().map(|part| self.weight(part)).sum(),
            was: parts.iter().map(|part| part.number).collect(),
        };
        for old in self.folds.iter().filter(|old| is_part(old.number)) {
            fold.was.extend(&old.was);
        }
        self.folds.retain(|old| !is_part(old.number));
        self.folds.push(fold);
        // What a checkpoint needs of some it needs of all.
        let pins = self.pinned.len();
        self.pinned.retain(|pinned| !is_part(*pinned));
        if self.pinned.len() < pins {
            self.pinned.push(number);
        }
        if let Some(apart) = &mut self.apart {
            // It stays apart from what lies on it if the uppermost of them did.
            let first = parts.first().map(|part| part.number);
            if first.is_some_and(|first| apart.contains(&first)) {
                apart.push(number);
            }
            apart.retain(|number| !is_part(*number));
        }
        self.next += 1;
    }
}

/// Folds what it can of a stack that is deep, after a checkpoint has laid a new layer on it and before
/// `now` is written. The user did not ask for it, so what cannot be folded stays as it is.
pub(super) fn after_checkpoint(area: &Dir, original: &Dir, now: &mut LayerState) {
    // What a killed process left has names for files that are recognized by how many they have.
    if now.layers.len() <= DEEP || now.sweep(area).is_err() {
        return;
    }
    while let Some(range) = now.apart.as_ref().and_then(|apart| now.can_squash(apart)) {
        let (parts, below) = (&now.layers[range.clone()], &now.layers[range.end..]);
        if build(area, (parts, below, original), now.next).is_err() {
            // Half of it goes with the next sweep.
            return;
        }
        now.replace(range);
    }
}

/// How a directory of the new layer is to look in the end.
struct PendingMetadata {
    path: ResourcePath,
    meta: Meta,
    attributes: Xattrs,
}

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
    dresses: Mutex<Vec<PendingMetadata>>,
}

/// One layer, durable, that shows what these parts show together on what is below them.
fn build(
    area: &Dir,
    (parts, below, original): (&[LayerRef], &[LayerRef], &Dir),
    number: u32,
) -> Result<()> {
    let room = LayerState::room(area)?;
    let name = number.to_string().into_bytes();
    remove::remove(&room, &name)?;
    let to = state_dir::make_plain(&room, &name)?;
    let (stack, below) = (
        LayerStack::open(parts, area)?,
        LayerStack::open(below, area)?,
    );
    let folding = LayerSquash {
        stack: &stack,
        below: (&below, original),
        to: &to,
        dresses: Mutex::default(),
    };
    let root = SquashedDir {
        numbers: (0..parts.len()).collect(),
        opaque: false,
        merges: true,
        lowest: None,
    };
    descend(root, |path, beside| folding.directory(path, &beside))?;
    let dresses = folding.dresses.into_inner();
    let mut dresses = dresses.unwrap_or_else(PoisonError::into_inner);
    // Times and restrictive modes last, deepest first.
    dresses.sort_by(|a, b| b.path.cmp(&a.path));
    for PendingMetadata {
        path,
        meta,
        attributes,
    } in dresses
    {
        let dir = to.dir(&path)?;
        let lost = EntryHandle::of(&dir).apply_metadata(&meta, &attributes);
        let lost = lost.map_err(|errno| dir.error("set the metadata of", b"", Cause::Os(errno)))?;
        tree::refuse_lost(&dir, b"", &lost)?;
    }
    Ok(area.sync_file_system()?)
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

/// The attributes of what is shown, with what the lowest layer knows: `merged` where that shows through.
fn taught(mut attributes: Xattrs, lowest: &LowestVersion, is_dir: bool, merged: bool) -> Xattrs {
    let has = |attributes: &Xattrs, name: &[u8]| attributes.iter().any(|(one, _)| one == name);
    let alike = is_dir == lowest.is_dir && (merged || !is_dir);
    // What the kernel noted on it may mean one of the layers that are folded.
    let origin = lowest.origin.as_ref().filter(|_| alike);
    match (has(&attributes, base::ORIGIN), origin) {
        (true, None) => attributes.retain(|(name, _)| name != base::ORIGIN),
        (false, Some(value)) => attributes.push((base::ORIGIN.to_vec(), value.clone())),
        _ => {}
    }
    let derived = lowest.derived || (!alike && lowest.came());
    let (name, value) = base::derived();
    match (has(&attributes, &name), derived) {
        (true, false) => attributes.retain(|(one, _)| *one != name),
        (false, true) => attributes.push((name, value)),
        _ => {}
    }
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
                link((dir, &name), &to, &meta, lowest.as_ref())?;
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
        let missing = |attributes: &Xattrs, name: &[u8]| {
            let found = attributes.iter().any(|(one, _)| one == name);
            !found
        };
        if missing(&attributes, layers::LOOKS)
            && let Some(looks) = level.remembered()?
        {
            attributes.push((layers::LOOKS.to_vec(), looks.text()));
        }
        let opaque = layers::OPAQUE.as_bytes();
        if beside.opaque {
            attributes.retain(|(name, _)| name != opaque);
            attributes.push((opaque.to_vec(), b"y".to_vec()));
        } else if missing(&attributes, opaque) {
            // That its whiteouts are attributes is said on the directory.
            for dir in &level.dirs[1..] {
                let theirs = tree::xattrs_of(dir)?;
                let mark = theirs.into_iter().find(|(name, _)| name == opaque);
                if let Some(mark) = mark {
                    attributes.push(mark);
                    break;
                }
            }
        }
        let dress = PendingMetadata {
            path: path.clone(),
            meta: shown.meta()?,
            attributes,
        };
        let mut dresses = self.dresses.lock().unwrap_or_else(PoisonError::into_inner);
        dresses.push(dress);
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

/// Another name for an entry, with what the lowest layer knows of it.
fn link(
    (dir, name): (&Dir, &[u8]),
    to: &Dir,
    meta: &Meta,
    lowest: Option<&LowestVersion>,
) -> Result<()> {
    let attributes = match lowest {
        // One of several names must not learn what is true of another.
        Some(_) if meta.is_file() && meta.nlink == 1 => tree::xattrs_if_open(dir, name)?,
        _ => None,
    };
    let (Some(lowest), Some(attributes)) = (lowest, attributes) else {
        return Ok(to.link_to(name, dir, name)?);
    };
    let wanted = taught(attributes.clone(), lowest, false, false);
    if wanted == attributes {
        return Ok(to.link_to(name, dir, name)?);
    }
    // In the old layers it is not the lowest, so no process there asks it.
    match teach(&dir.handle(name)?, &attributes, &wanted) {
        Ok(()) => Ok(to.link_to(name, dir, name)?),
        Err(Errno::ACCESS) => {
            let (from, to_it, reflinks) = ((dir, name), (to, name), Reflinks::wanted());
            copy_leaf(from, to_it, meta.kind, &reflinks, CopyOptions::QUIET)?;
            let copy = to.handle(name)?;
            copy.set_mode(meta.mode | 0o600)
                .and_then(|()| teach(&copy, &attributes, &wanted))
                .and_then(|()| copy.set_mode(meta.mode))
                .map_err(|errno| to.error("mark", name, Cause::Os(errno)).into())
        }
        Err(errno) => Err(dir.error("mark", name, Cause::Os(errno)).into()),
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
