//! Checkpoints of an overlay that is mounted: its top layer cannot be replaced, so its changes are copied while
//! the commands inside are paused.
//!
//! The first time, all of the layer; after that a further layer with what was touched since, by inode
//! and ctime, laid over the one before. What was seen at the last time stands in the file `seen`.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::super::error::Result;
use super::super::tree::STAGE;
use super::OpenLayers;
use super::checkpoints::lay_over;
use super::layers;
use super::stack::{LayerRef, LayerState};
use crate::event::Observer;
use crate::fs::atomic_file;
use crate::fs::copy::{clock, settle};
use crate::fs::dir::DirEntry;
use crate::fs::place::{CopyOptions, DirLook, Placer};
use crate::fs::{Dir, Meta, Stamp, remove};
use crate::model::{EntryKind, ResourcePath};

const SEEN: &[u8] = b"seen";

/// How an entry of the layer was when it was last kept.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct EntryTrace {
    ino: u64,
    ctime: Stamp,
    dir: bool,
    /// When it was made: a number is given again.
    born: Stamp,
    /// A directory that hides what is below it.
    opaque: bool,
}

impl EntryTrace {
    fn of(meta: &Meta) -> Self {
        // A whiteout is one inode for many names, whose times move with each of them; one is as good as
        // another. What has no content of its own is linked, which moves its ctime.
        let bare = matches!(meta.kind, EntryKind::Device | EntryKind::Socket);
        Self {
            ino: if meta.is_whiteout() { 0 } else { meta.ino },
            ctime: if bare { Stamp::default() } else { meta.ctime },
            dir: meta.is_dir(),
            born: if bare { Stamp::default() } else { meta.born },
            opaque: false,
        }
    }

    /// Whether another directory took the place of one, or it was taken away altogether.
    fn is_other(&self, now: &Self) -> bool {
        let same = |one: &Self| (one.ino, one.born, one.opaque);
        self.dir != now.dir || (now.dir && same(self) != same(now))
    }
}

/// What was seen of a layer, and the number under which it was kept.
#[derive(Serialize, Deserialize)]
struct LayerTrace {
    of: u32,
    kept: u32,
    entries: Vec<(ResourcePath, EntryTrace)>,
}

/// Over more layers than this no further one is laid: a whole copy begins anew.
const DEEP: usize = 64;

/// What was kept last, to lay the next one over.
struct PreviousLayer {
    layers: Vec<LayerRef>,
    seen: HashMap<ResourcePath, EntryTrace>,
}

/// Keeps the layer in use as a layer of its own, number `next`; the layers of the snapshot, topmost
/// first.
pub(super) fn keep(
    open: &OpenLayers,
    last: Option<Vec<LayerRef>>,
    observer: &dyn Observer,
) -> Result<Vec<LayerRef>> {
    let next = open.now.next;
    if let Some(earlier) = earlier(open, last)? {
        let copied = copy(open, Some(&earlier.seen), observer)?;
        match copied {
            Some((_, false)) => {
                remove::remove(&LayerState::room(&open.area)?, next.to_string().as_bytes())?;
                return Ok(earlier.layers);
            }
            Some((seen, true)) => {
                finish(open, seen)?;
                return Ok([vec![LayerRef::own(next)], earlier.layers].concat());
            }
            None => {}
        }
    }
    let (seen, _) = copy(open, None, observer)?.unwrap_or_default();
    finish(open, seen)?;
    let below = &open.now.layers[1..];
    Ok([&[LayerRef::own(next)], below].concat())
}

/// What was kept last, if it was kept of the layer that is still in use.
fn earlier(open: &OpenLayers, last: Option<Vec<LayerRef>>) -> Result<Option<PreviousLayer>> {
    let Some(layers) = last.filter(|layers| layers.len() < DEEP) else {
        return Ok(None);
    };
    let text = match open.area.read(SEEN) {
        Err(error) if error.is_absent() => return Ok(None),
        text => text?,
    };
    // One that cannot be understood only costs a whole copy.
    let seen: Option<LayerTrace> = serde_json::from_slice(&text).ok();
    let top = open.now.layers.first();
    Ok(seen
        .filter(|seen| top == Some(&LayerRef::own(seen.of)))
        .filter(|seen| layers.first() == Some(&LayerRef::own(seen.kept)))
        .map(|seen| PreviousLayer {
            layers,
            seen: seen.entries.into_iter().collect(),
        }))
}

/// Makes what was copied durable, and notes what was seen.
fn finish(open: &OpenLayers, entries: Vec<(ResourcePath, EntryTrace)>) -> Result<()> {
    // This also has the kernel notice the next write to a page that another process has mapped.
    open.area.sync_file_system()?;
    let Some(of) = open.now.layers.first().filter(|top| top.area.is_none()) else {
        return Ok(());
    };
    if !settle(clock()) {
        return Ok(remove::remove(&open.area, SEEN)?);
    }
    let seen = LayerTrace {
        of: of.number,
        kept: open.now.next,
        entries,
    };
    let text = serde_json::to_vec(&seen).expect("paths and numbers are JSON");
    let stage = open.area.subdir(STAGE)?;
    Ok(atomic_file::replace(&stage, &open.area, SEEN, &text)?)
}

/// What was seen, and whether anything was touched; `None` where a directory was exchanged for another,
/// which a layer over the earlier one could not show.
type LayerCopy = Option<(Vec<(ResourcePath, EntryTrace)>, bool)>;

fn copy(
    open: &OpenLayers,
    earlier: Option<&HashMap<ResourcePath, EntryTrace>>,
    observer: &dyn Observer,
) -> Result<LayerCopy> {
    let from = open.upper.top();
    lay_over(&open.area, &open.upper, open.now.next)?;
    let to = LayerRef::own(open.now.next).open(&open.area)?;
    layers::set_mode(&to, to.meta()?.mode | 0o700)?;
    let root = ResourcePath::root();
    let trace = EntryTrace::of(&from.meta()?);
    let mut copying = LayerCopier {
        touched: earlier.and_then(|all| all.get(&root)) != Some(&trace),
        earlier,
        placer: Placer::new(&to, observer),
        seen: vec![(root.clone(), trace)],
    };
    // It was given its attributes when it was made; what is put in it moves its times.
    let look = DirLook::new(from.meta()?, Vec::new());
    copying.placer.dir(root.clone(), look);
    let mut directories = vec![root];
    while let Some(path) = directories.pop() {
        let (from, to) = (from.dir(&path)?, to.dir(&path)?);
        for entry in from.entries()? {
            let is_dir = entry.meta.is_dir();
            let path = path.join(&entry.name);
            if !copying.entry((&from, &to), &path, entry)? {
                return Ok(None);
            }
            if is_dir {
                directories.push(path);
            }
        }
    }
    copying.hide_gone(&to)?;
    copying.placer.finish()?;
    Ok(Some((copying.seen, copying.touched)))
}

struct LayerCopier<'a> {
    earlier: Option<&'a HashMap<ResourcePath, EntryTrace>>,
    placer: Placer<'a>,
    seen: Vec<(ResourcePath, EntryTrace)>,
    touched: bool,
}

impl LayerCopier<'_> {
    /// Copies one entry, of a directory the shell; `false` where it cannot be shown over the earlier
    /// one.
    fn entry(
        &mut self,
        (from, to): (&Dir, &Dir),
        path: &ResourcePath,
        DirEntry { name, meta }: DirEntry,
    ) -> Result<bool> {
        let mut trace = EntryTrace::of(&meta);
        let model = meta.is_dir().then(|| from.subdir(&name)).transpose()?;
        if let Some(model) = &model {
            trace.opaque = layers::is_opaque(model)?;
        }
        let before = self.earlier.and_then(|all| all.get(path));
        if before.is_some_and(|before| before.is_other(&trace)) {
            return Ok(false);
        }
        self.seen.push((path.clone(), trace));
        self.touched |= before != Some(&trace);
        if let Some(model) = model {
            to.make_dir(&name, 0o700)?;
            let mut look = DirLook::of(&model)?;
            // One that is to merge with its like below hides nothing.
            let hides = |name: &[u8]| before.is_some() && name == layers::OPAQUE.as_bytes();
            look.attributes.retain(|(name, _)| !hides(name));
            self.placer.dir(path.clone(), look);
        } else if before != Some(&trace) {
            let (from, to) = ((from, &*name), (to, &*name));
            let several = meta.nlink > 1 && !meta.is_whiteout();
            let key = several.then_some((0, meta.ino));
            self.placer.entry(key, path, to, || -> Result<_> {
                match meta.kind {
                    EntryKind::Device if meta.is_whiteout() => to.0.make_whiteout(to.1)?,
                    EntryKind::Device | EntryKind::Socket => to.0.link_to(to.1, from.0, from.1)?,
                    kind => {
                        self.placer.copy(from, to, kind, CopyOptions::QUIET)?;
                    }
                }
                Ok(((), true))
            })?;
        }
        Ok(true)
    }

    /// Hides what the earlier layer has and this one no longer.
    fn hide_gone(&mut self, to: &Dir) -> Result<()> {
        let Some(earlier) = self.earlier else {
            return Ok(());
        };
        let here: HashSet<&ResourcePath> = self.seen.iter().map(|(path, _)| path).collect();
        for path in earlier.keys().filter(|path| !here.contains(path)) {
            self.touched = true;
            // With a directory goes everything in it.
            if let Some((parent, name)) = path.split()
                && here.contains(&parent)
            {
                to.dir(&parent)?.make_whiteout(name)?;
            }
        }
        Ok(())
    }
}
