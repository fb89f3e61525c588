//! Overlay checkpoints: each one freezes the top layer and adds a new, empty one. A restore switches to another
//! stack of layers. Both have constant cost, and nothing is copied.
//!
//! A snapshot is the list of its layers. Nothing is removed but by [`retain`], which is given every snapshot that
//! counts; there, layers that no snapshot needs apart are [squashed](squash).

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::super::tree::{self, STAGE};
use super::super::tree_strategy::RestoreSwitch;
use super::super::{
    CreateRequest, Created, Intent, LiveView, RestoreRequest, Snapshot, unsupported,
};
use super::layers::{self, LayerDirMetadata, LayerEntry};
use super::stack::{self, LayerRef, LayerStack, LayerState};
use super::{NAME, OpenLayers, OverlayMetadata, area_of, base, diff, open};
use super::{clear, live_checkpoint, squash};
use crate::event::Observer;
use crate::failpoints;
use crate::fs::{Dir, exposure, remove, workspace};
use crate::model::text::Location;
use crate::model::{Change, DiffView, ResourcePath, SandboxRef};
use crate::strategy::live_restore::{self, PathVersion};
use crate::strategy::snapshot_diff;
use crate::strategy::tree_commit::{Released, forget_bases, hand_on_bases};

/// A stack of more layers is flattened: a kernel mounts 500, and forks and restores lay one more over a snapshot.
const MOST: usize = 400;
/// One of so many, and of twice as many, and so on, is flattened where it holds little: everything that is done in it asks
/// each of its layers.
const MANY: usize = 32;
/// So much is little, in bytes.
const LITTLE: u64 = 16 << 20;
/// Where that fails, the next checkpoint tries again, until there are so many.
const FULL: usize = 480;

/// The layers of a snapshot, topmost first.
#[derive(Serialize, Deserialize)]
struct SnapshotLayers {
    layers: Vec<LayerRef>,
}

fn snapshot(layers: Vec<LayerRef>) -> Snapshot {
    Snapshot(tree::stored(&SnapshotLayers { layers }))
}

fn read(snapshot: &Snapshot) -> Result<Vec<LayerRef>> {
    let read: SnapshotLayers = tree::parse(&snapshot.0, "the snapshot")?;
    Ok(read.layers)
}

/// One stack in the place of another: a return that is prepared.
#[derive(Serialize, Deserialize)]
pub(in crate::strategy) struct StackSwitch {
    /// The sandbox it is of.
    switch: SandboxRef,
    /// Where a command sees the sandbox that was inside when it was prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    live: Option<LiveView>,
    before: Vec<LayerRef>,
    after: Vec<LayerRef>,
}

impl RestoreSwitch for StackSwitch {
    /// Through the mount that a command uses while it is inside.
    fn go(self, back: bool) -> Result<()> {
        let to = if back { self.before } else { self.after };
        // Before anything changes: after a crash none may be left that does not belong to the layers.
        forget_bases(&area_of(&self.switch)?)?;
        match &self.live {
            Some(live) if live.process.is_alive()? => {
                let through = tree::view(live)?;
                let open = open(&self.switch)?;
                // The topmost one is empty.
                let target = LayerStack::open(&to[1..], &open.area)?;
                go_live(&open, &target, &through)
            }
            _ => switch(&self.switch, to),
        }
    }
}

/// Makes what is seen in `root`, a mount that commands use, what `target` shows.
fn go_live(open: &OpenLayers, target: &LayerStack, root: &Dir) -> Result<()> {
    let mut paths = BTreeSet::new();
    for stack in [&open.upper, target] {
        let looked = tree::steady(|| diff::look(stack, &open.lower, &Released::default()))?;
        paths.extend(looked.changes.into_iter().map(|change| change.path));
        paths.extend(looked.kept);
        paths.extend(looked.directories);
    }
    paths.retain(|path| !open.carved.iter().any(|carved| path.lies_in(carved)));
    let find = |stack: &LayerStack, path: &ResourcePath| -> Result<PathVersion> {
        match layers::find(stack, &open.lower, path) {
            // Below a link there is nothing.
            Ok(LayerEntry::Nothing) | Err(StrategyError::Leaves { .. }) => Ok(None),
            Ok(LayerEntry::Upper(dir, meta) | LayerEntry::Lower(dir, meta)) => {
                Ok(Some((dir, meta)))
            }
            Err(error) => Err(error),
        }
    };
    let is = |path: &ResourcePath| find(&open.upper, path);
    let to = |path: &ResourcePath| find(target, path);
    live_restore::go(root, paths, (&is, &to), layers::visible)
}

fn switch(sandbox: &SandboxRef, layers: Vec<LayerRef>) -> Result<()> {
    let area = area_of(sandbox)?;
    let Some((top, below)) = layers.split_first() else {
        return Ok(());
    };
    // It belongs to no snapshot, so it may have been removed since it was prepared.
    if LayerState::room(&area)?.stat(&top.name())?.is_none() {
        lay_over(&area, &LayerStack::open(below, &area)?, top.number)?;
    }
    let now = LayerState::read(&area)?;
    let prepared = None;
    LayerState {
        layers,
        prepared,
        ..now
    }
    .write(&area)?;
    // The layers of the other side stay: it may be taken back.
    clear(&area, &[super::WORK])
}

/// An empty layer over these, whose root looks like theirs.
pub(super) fn lay_over(area: &Dir, below: &LayerStack, number: u32) -> Result<()> {
    let room = LayerState::room(area)?;
    let name = number.to_string().into_bytes();
    remove::remove(&room, &name)?;
    room.make_dir(&name, 0o700)?;
    let (new, top) = (room.subdir(&name)?, below.top());
    let looks = below.root()?.remembered()?;
    let lost = layers::resemble(&new, top, tree::xattrs_of(top)?, looks.as_ref())?;
    tree::refuse_lost(top, b"", &lost)?;
    base::hand_on_stamp(top, &new)?;
    layers::set_mode(&new, top.meta()?.mode)?;
    new.sync()?;
    Ok(room.sync()?)
}

/// Whether the layers in use hold little, all in all.
fn holds_little(open: &OpenLayers) -> Result<bool> {
    let mut held = 0;
    for layer in &open.now.layers {
        held += workspace::measured(layer.open(&open.area)?.path()).private;
        if held > LITTLE {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether nothing was done in a layer since it was laid over this one.
fn is_unused(top: &Dir, below: &Dir) -> Result<bool> {
    Ok(top.entries()?.is_empty()
        && LayerDirMetadata::of(top)? == LayerDirMetadata::of(below)?
        && top.meta()?.mtime == below.meta()?.mtime)
}

pub(super) fn checkpoint(open: &OpenLayers) -> Result<Snapshot> {
    let mut now = open.now.clone();
    if let Some(below) = now.layers.get(1)
        && is_unused(open.upper.top(), &below.open(&open.area)?)?
    {
        return Ok(snapshot(now.layers[1..].to_vec()));
    }
    // What programs wrote inside may be in memory only; from here on it is kept.
    if !failpoints::bug("checkpoint-not-synced") {
        open.area.sync_file_system()?;
    }
    let mut flat = None;
    let many = now.layers.len().is_multiple_of(MANY) && holds_little(open)?;
    if many || now.layers.len() >= MOST {
        match squash::flatten(open, now.next, &|_| true) {
            Ok(()) => {
                now.layers = vec![LayerRef::own(now.next)];
                now.next += 1;
                flat = Some(now.open(&open.area)?);
            }
            Err(error) if now.layers.len() >= FULL => return Err(error),
            // Half of it is removed by `retain`.
            Err(_) => {}
        }
    }
    let kept = now.layers.clone();
    lay_over(&open.area, flat.as_ref().unwrap_or(&open.upper), now.next)?;
    now.layers.insert(0, LayerRef::own(now.next));
    now.next += 1;
    now.write(&open.area)?;
    // What the kernel left from an earlier mount belongs to the old layer.
    clear(&open.area, &[super::WORK])?;
    Ok(snapshot(kept))
}

/// The same while a process works in it, and is paused.
pub(super) fn checkpoint_live(
    open: &OpenLayers,
    last: Option<&Snapshot>,
    observer: &dyn Observer,
) -> Result<Snapshot> {
    let last = last.map(read).transpose()?;
    let layers = live_checkpoint::keep(open, last, observer)?;
    if layers.first() == Some(&LayerRef::own(open.now.next)) {
        open.now.reserve(1).write(&open.area)?;
    }
    Ok(snapshot(layers))
}

/// Prepares both ends of a return. While a command is inside, they serve when it is gone before the return is over.
pub(super) fn prepare_restore(
    open: &OpenLayers,
    sandbox: &SandboxRef,
    request: &RestoreRequest<'_>,
    live: Option<&LiveView>,
) -> Result<Intent> {
    let begin = |at: &Snapshot, number: u32| -> Result<Vec<LayerRef>> {
        let layers = read(at)?;
        lay_over(&open.area, &LayerStack::open(&layers, &open.area)?, number)?;
        Ok([vec![LayerRef::own(number)], layers].concat())
    };
    let next = open.now.next;
    let switch = StackSwitch {
        switch: sandbox.clone(),
        live: live.cloned(),
        after: begin(request.to, next)?,
        before: match live {
            Some(_) => begin(request.from, next + 1)?,
            None => open.now.layers.clone(),
        },
    };
    // The numbers are taken even if another process keeps something before they are used.
    open.now.reserve(2).write(&open.area)?;
    Ok(Intent(tree::stored(&switch)))
}

/// Prepares one layer that shows what is seen now, but for these paths, which are the original's again.
pub(super) fn prepare_discard(
    open: &OpenLayers,
    sandbox: &SandboxRef,
    paths: &BTreeSet<ResourcePath>,
    released: &Released,
) -> Result<Intent> {
    let look = |stack: &LayerStack| -> Result<Vec<Change>> {
        let mut changes = tree::steady(|| diff::look(stack, &open.lower, released))?.changes;
        tree::only_own(&mut changes, &open.carved);
        Ok(DiffView::new(changes).changes)
    };
    let mut stays = look(&open.upper)?;
    stays.retain(|change| !paths.contains(&change.path));
    // Directories that hold nothing but what is given back go with it: they may hide what is below.
    let led_to = |path: &ResourcePath| path.ancestors().chain([path.clone()]).collect::<Vec<_>>();
    let kept: HashSet<_> = stays
        .iter()
        .flat_map(|change| led_to(&change.path))
        .collect();
    let back: HashSet<_> = paths.iter().flat_map(led_to).collect();
    let number = open.now.next;
    squash::flatten(open, number, &|path| {
        kept.contains(path) || !back.contains(path)
    })?;
    let after = vec![LayerRef::own(number)];
    let shown = look(&LayerStack::open(&after, &open.area)?)?;
    let unlike = shown.iter().find(|change| !stays.contains(change));
    if let Some(unlike) = unlike.or_else(|| stays.iter().find(|change| !shown.contains(change))) {
        let what = format!("give something back without '{}'", unlike.path);
        let why = "the directory itself was replaced or changed: name the directory";
        return Err(unsupported(NAME, &what, why));
    }
    let now = LayerState {
        prepared: Some(number),
        ..open.now.reserve(1)
    };
    now.write(&open.area)?;
    Ok(Intent(tree::stored(&StackSwitch {
        switch: sandbox.clone(),
        live: None,
        before: open.now.layers.clone(),
        after,
    })))
}

/// Removes the layers that neither the sandbox nor one of these snapshots needs, and may squash others. Returns the
/// snapshots as they are from then on; the old ones stay valid until this is called with the new ones.
pub(super) fn retain(
    sandbox: &SandboxRef,
    keep: &[Snapshot],
    may_squash: bool,
) -> Result<Vec<Snapshot>> {
    let OverlayMetadata { area, .. } = tree::metadata(sandbox)?;
    let area = Dir::open(area.as_path())?;
    let mut now = LayerState::read(&area)?;
    let kept: Vec<Vec<LayerRef>> = keep.iter().map(read).collect::<Result<_>>()?;
    let renew = |now: &LayerState| -> Vec<Vec<LayerRef>> {
        kept.iter().map(|layers| now.renewed(layers)).collect()
    };
    let mut renewed = renew(&now);
    now.sweep(&area, kept.iter().chain(&renewed))?;
    if renewed == kept && may_squash {
        // No user asked for it: what cannot be squashed stays as it is.
        if let Ok(Some(squashed)) = open(sandbox).and_then(|open| squash::squash(&open, &kept)) {
            now = squashed;
            renewed = renew(&now);
        }
    }
    Ok(renewed.into_iter().map(snapshot).collect())
}

/// What changed between two states of a sandbox; none is the original, or the present.
pub(super) fn since(
    open: &OpenLayers,
    from: Option<&Snapshot>,
    until: Option<&Snapshot>,
) -> Result<DiffView> {
    let at = |snapshot: &Snapshot| LayerStack::open(&read(snapshot)?, &open.area);
    let then = from.map(at).transpose()?;
    let until = until.map(at).transpose()?;
    let later = until.as_ref().unwrap_or(&open.upper);
    let look = |stack: &LayerStack| -> Result<Vec<Change>> {
        let mut changes =
            tree::steady(|| diff::look(stack, &open.lower, &Released::default()))?.changes;
        tree::only_own(&mut changes, &open.carved);
        Ok(DiffView::new(changes).changes)
    };
    let changes = match &then {
        None => look(later)?,
        Some(then) => {
            let sides = (
                (&look(then)?[..], then as _),
                (&look(later)?[..], later as _),
            );
            snapshot_diff::between(sides.0, sides.1, layers::visible)?
        }
    };
    Ok(DiffView::new(changes))
}

/// A sandbox of its own that begins at a snapshot of this one, whose layers it shares.
pub(super) fn fork(
    open: &OpenLayers,
    at: &Snapshot,
    place: &Path,
    request: &CreateRequest<'_>,
) -> Result<Created> {
    let mut layers = read(at)?;
    // Before anything begins on them.
    let mut now = open.now.clone();
    now.shared.extend(stack::own(&layers));
    now.shared.sort_unstable();
    now.shared.dedup();
    now.write(&open.area)?;
    let area = Dir::open(place)?;
    clear(&area, &[super::WORK, STAGE])?;
    let below = LayerStack::open(&layers, &open.area)?;
    lay_over(&area, &below, 0)?;
    exposure::inherit(&open.area, &area)?;
    hand_on_bases(&open.area, &area, || {
        // What the snapshot did not change may be changed from a later version of the original.
        let looked = diff::look(&below, &open.lower, &Released::default())?;
        let version = base::identity(below.top())?.into_bytes();
        Ok(Some((version, looked.changes)))
    })?;
    for layer in &mut layers {
        layer
            .area
            .get_or_insert_with(|| Location::from(open.area.path()));
    }
    let mut depends_on: Vec<Location> = layers.iter().filter_map(|one| one.area.clone()).collect();
    depends_on.sort_unstable();
    depends_on.dedup();
    LayerState::new(layers).write(&area)?;
    area.sync()?;
    let metadata = OverlayMetadata {
        original: open.original.clone(),
        area: Location::from(place),
        carved: open.carved.clone(),
        depends_on,
        onto: open.onto.clone(),
    };
    let message = "an empty layer over those of another plan; nothing was copied";
    Ok(tree::created(NAME, request, &metadata, message, Vec::new()))
}
