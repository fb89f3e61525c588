//! Overlay checkpoints: each one freezes the top layer and adds a new, empty one. A restore switches to another
//! stack of layers. Both have constant cost, and nothing is copied.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::error::Result;
use super::super::tree::{self, STAGE};
use super::super::{
    CreateRequest, Created, Intent, LiveView, Purpose, RestoreRequest, Snapshot, unsupported,
};
use super::layers::{self, LayerDirMetadata};
use super::squash;
use super::stack::{LayerRef, LayerStack, LayerState};
use super::{NAME, OpenLayers, OverlayMetadata, WORK, alone, base, diff};
use super::{live_checkpoint, live_restore};
use crate::event::Observer;
use crate::failpoints;
use crate::fs::{Dir, exposure, remove};
use crate::model::text::Location;
use crate::model::{Change, DiffView, SandboxRef};
use crate::strategy::snapshot_diff;
use crate::strategy::unreadable_dirs;

/// So many layers at most have checkpoints that could be done without, those that forks begin with, and those
/// that restores begin with. A kernel mounts 500; each kind leaves some to the next, so that a process that
/// takes checkpoints, an agent among them, cannot keep a user from going back.
const MOST: usize = 400;
const MOST_BEGUN: usize = 430;
const MOST_RETURNING: usize = 460;

/// The layers of a snapshot, topmost first.
#[derive(Serialize, Deserialize)]
struct SnapshotLayers {
    layers: Vec<LayerRef>,
}

/// One stack in the place of another: a return that is prepared.
#[derive(Serialize, Deserialize)]
pub(super) struct StackSwitch {
    /// The sandbox it is of.
    switch: SandboxRef,
    /// Where a command sees the sandbox that was inside when it was prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    live: Option<LiveView>,
    before: LayerState,
    after: LayerState,
}

impl StackSwitch {
    /// What an intent is, if it is one.
    pub(super) fn read(intent: &Intent) -> Result<Option<Self>> {
        if intent.0.get("switch").is_none() {
            return Ok(None);
        }
        tree::parse(&intent.0, "the restore intent").map(Some)
    }

    /// Goes there, or back: through the mount that a command uses while it is inside.
    pub(super) fn go(self, back: bool) -> Result<()> {
        let to = if back { self.before } else { self.after };
        match &self.live {
            Some(live) if live.process.is_alive()? => {
                switch_live(&self.switch, to, &tree::view(live)?)
            }
            _ => switch(&self.switch, to),
        }
    }
}

fn read(snapshot: &Snapshot) -> Result<SnapshotLayers> {
    tree::parse(&snapshot.0, "the snapshot")
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

/// Whether nothing was done in the topmost layer since it was laid there.
fn is_unused(stack: &LayerStack, below: &LayerStack) -> Result<bool> {
    let (top, below) = (stack.top(), below.top());
    let same = |a: &Dir, b: &Dir| -> Result<bool> {
        Ok(LayerDirMetadata::of(a)? == LayerDirMetadata::of(b)?
            && a.meta()?.mtime == b.meta()?.mtime)
    };
    Ok(top.entries()?.is_empty() && same(top, below)?)
}

/// Makes fewer layers of as many as there may be, if some can become one.
fn make_room(area: &Dir, lower: &Dir, now: &mut LayerState, most: usize) -> Result<()> {
    if now.layers.len() < most {
        return Ok(());
    }
    // Where checkpoints were released, some of them can become one.
    squash::after_checkpoint(area, lower, now);
    now.write(area, &area.subdir(STAGE)?)?;
    if now.layers.len() < most {
        return Ok(());
    }
    let why = format!(
        "it has {} layers, and such a checkpoint may leave at most {most}; delete checkpoints, or commit",
        now.layers.len()
    );
    Err(unsupported(NAME, "take another checkpoint", &why))
}

pub(super) fn checkpoint(sandbox: &SandboxRef, purpose: Purpose) -> Result<Snapshot> {
    let most = match purpose {
        Purpose::Keep => MOST,
        Purpose::Begin => MOST_BEGUN,
        Purpose::Return => MOST_RETURNING,
    };
    alone(sandbox, |open, _| checkpoint_of(open, most))
}

fn checkpoint_of(open: &OpenLayers, most: usize) -> Result<Snapshot> {
    let stage = open.area.subdir(STAGE)?;
    let mut now = open.now.clone();
    let snapshot = |layers: &[LayerRef]| {
        Snapshot(tree::stored(&SnapshotLayers {
            layers: layers.to_vec(),
        }))
    };
    let layers = now.layers.clone();
    if layers.len() > 1 && is_unused(&open.upper, &LayerStack::open(&layers[1..], &open.area)?)? {
        // The checkpoint that laid the unused one there may be gone, and its pins with it.
        if pin(&mut now, &layers[1..]) {
            now.write(&open.area, &stage)?;
        }
        return Ok(snapshot(&layers[1..]));
    }
    make_room(&open.area, &open.lower, &mut now, most)?;
    let layers = now.layers.clone();
    // What programs wrote inside may be in memory only; from here on it is kept.
    if !failpoints::bug("checkpoint-not-synced") {
        open.area.sync_file_system()?;
    }
    lay_over(&open.area, &open.upper, now.next)?;
    pin(&mut now, &layers);
    now.layers.insert(0, LayerRef::own(now.next));
    now.next += 1;
    squash::after_checkpoint(&open.area, &open.lower, &mut now);
    now.write(&open.area, &stage)?;
    // What the kernel left from an earlier mount belongs to the old layer.
    clear_work(&open.area)?;
    now.sweep(&open.area)?;
    Ok(snapshot(&layers))
}

/// The same while a process works in it, and is paused.
pub(super) fn checkpoint_live(
    sandbox: &SandboxRef,
    last: Option<&Snapshot>,
    observer: &dyn Observer,
) -> Result<Snapshot> {
    alone(sandbox, |open, _| snapshot_live(open, last, observer))
}

fn snapshot_live(
    open: &OpenLayers,
    last: Option<&Snapshot>,
    observer: &dyn Observer,
) -> Result<Snapshot> {
    let last = last.map(read).transpose()?;
    let last = last.map(|last| open.now.current(last.layers));
    let layers = live_checkpoint::keep(open, last, observer)?;
    let mut now = open.now.clone();
    if pin(&mut now, &layers) {
        now.next += 1;
        now.write(&open.area, &open.area.subdir(STAGE)?)?;
    }
    Ok(Snapshot(tree::stored(&SnapshotLayers { layers })))
}

/// Notes that a checkpoint needs these; says whether that is new.
fn pin(now: &mut LayerState, layers: &[LayerRef]) -> bool {
    let before = now.pinned.len();
    for number in own(layers) {
        if !now.pinned.contains(&number) {
            now.pinned.push(number);
        }
    }
    now.separates(layers) || now.pinned.len() > before
}

fn own(layers: &[LayerRef]) -> impl Iterator<Item = u32> {
    let own = layers.iter().filter(|layer| layer.area.is_none());
    own.map(|layer| layer.number)
}

fn clear_work(area: &Dir) -> Result<()> {
    remove::remove(area, WORK)?;
    Ok(area.make_dir(WORK, 0o700)?)
}

pub(super) fn prepare_restore(
    sandbox: &SandboxRef,
    request: &RestoreRequest<'_>,
) -> Result<Intent> {
    alone(sandbox, |open, _| prepare_switch(open, sandbox, request))
}

fn prepare_switch(
    open: &OpenLayers,
    sandbox: &SandboxRef,
    request: &RestoreRequest<'_>,
) -> Result<Intent> {
    let layers = open.now.current(read(request.to)?.layers);
    let next = open.now.next;
    open.now.sweep(&open.area)?;
    lay_over(&open.area, &LayerStack::open(&layers, &open.area)?, next)?;
    let after = LayerState {
        layers: [vec![LayerRef::own(next)], layers].concat(),
        next: next + 1,
        apart: None,
        ..open.now.clone()
    };
    let before = LayerState {
        next: next + 1,
        ..open.now.clone()
    };
    // The number is taken even if another process keeps something before it is used.
    before.write(&open.area, &open.area.subdir(STAGE)?)?;
    Ok(Intent(tree::stored(&StackSwitch {
        switch: sandbox.clone(),
        live: None,
        before,
        after,
    })))
}

/// The same while a process works in it: what is prepared serves when no process does any more.
pub(super) fn prepare_restore_live(
    sandbox: &SandboxRef,
    request: &RestoreRequest<'_>,
    live: &LiveView,
) -> Result<Intent> {
    alone(sandbox, |open, _| {
        let (before, after) = prepare_switch_live(open, request)?;
        Ok(Intent(tree::stored(&StackSwitch {
            switch: sandbox.clone(),
            live: Some(live.clone()),
            before,
            after,
        })))
    })
}

fn prepare_switch_live(
    open: &OpenLayers,
    request: &RestoreRequest<'_>,
) -> Result<(LayerState, LayerState)> {
    open.now.sweep(&open.area)?;
    let next = open.now.next;
    let beginning = |snapshot: &Snapshot, number: u32| -> Result<LayerState> {
        let layers = open.now.current(read(snapshot)?.layers);
        lay_over(&open.area, &LayerStack::open(&layers, &open.area)?, number)?;
        Ok(LayerState {
            layers: [vec![LayerRef::own(number)], layers].concat(),
            next: next + 2,
            apart: None,
            ..open.now.clone()
        })
    };
    let (from, to) = (request.from, request.to);
    let (before, after) = (beginning(from, next)?, beginning(to, next + 1)?);
    // The numbers are taken even if another process keeps something before they are used.
    let taken = LayerState {
        next: next + 2,
        ..open.now.clone()
    };
    taken.write(&open.area, &open.area.subdir(STAGE)?)?;
    Ok((before, after))
}

/// Applies the restore, or takes it back, through the mount that commands use.
fn switch_live(sandbox: &SandboxRef, to: LayerState, through: &Dir) -> Result<()> {
    alone(sandbox, |open, _| {
        // The topmost one is empty.
        let layers = open.now.current(to.layers[1..].to_vec());
        let target = LayerStack::open(&layers, &open.area)?;
        live_restore::go(open, &target, through)
    })
}

fn switch(sandbox: &SandboxRef, to: LayerState) -> Result<()> {
    let OverlayMetadata { area, .. } = tree::metadata(sandbox)?;
    let area = unreadable_dirs::enter(Dir::open(area.as_path())?)?;
    let now = LayerState::read(&area)?;
    let Some((top, below)) = to.layers.split_first() else {
        return Ok(());
    };
    // What was kept since it was prepared stays kept.
    let below = now.current(below.to_vec());
    if LayerState::room(&area)?.stat(&top.name())?.is_none() {
        lay_over(&area, &LayerStack::open(&below, &area)?, top.number)?;
    }
    let to = LayerState {
        layers: [vec![top.clone()], below].concat(),
        next: now.next.max(to.next),
        apart: None,
        ..now
    };
    to.write(&area, &area.subdir(STAGE)?)?;
    // The layers of the other side stay: it may be taken back. They go with the next step.
    clear_work(&area)
}

pub(super) fn keep_only(sandbox: &SandboxRef, kept: &[Snapshot]) -> Result<()> {
    let OverlayMetadata { area, .. } = tree::metadata(sandbox)?;
    let area = Dir::open(area.as_path())?;
    let before = LayerState::read(&area)?;
    let mut now = before.clone();
    let kept = kept.iter().map(|snapshot| Ok(read(snapshot)?.layers));
    let kept: Vec<Vec<LayerRef>> = kept.collect::<Result<_>>()?;
    // Where nothing was ever kept there is nothing to learn.
    if !(kept.is_empty() && before.apart.is_none()) {
        now.learn(&kept);
    }
    now.pinned.clear();
    for layers in kept {
        let layers = now.current(layers);
        now.pinned.extend(own(&layers));
    }
    now.pinned.sort_unstable();
    now.pinned.dedup();
    // What is so already needs no room on a full disk.
    if now != before {
        now.write(&area, &area.subdir(STAGE)?)?;
    }
    now.sweep(&area)
}

/// What changed between two states of a sandbox; none is the original, or the present.
pub(super) fn since(
    open: &OpenLayers,
    from: Option<&Snapshot>,
    until: Option<&Snapshot>,
) -> Result<DiffView> {
    let at = |snapshot: &Snapshot| {
        LayerStack::open(&open.now.current(read(snapshot)?.layers), &open.area)
    };
    let then = from.map(at).transpose()?;
    let until = until.map(at).transpose()?;
    let later = until.as_ref().unwrap_or(&open.upper);
    let look = |stack: &LayerStack| -> Result<Vec<Change>> {
        let mut changes = tree::steady(|| diff::look(stack, &open.lower))?.changes;
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
    sandbox: &SandboxRef,
    snapshot: &Snapshot,
    place: &Path,
    request: &CreateRequest<'_>,
) -> Result<Created> {
    alone(sandbox, |open, _| fork_of(open, snapshot, place, request))
}

fn fork_of(
    open: &OpenLayers,
    snapshot: &Snapshot,
    place: &Path,
    request: &CreateRequest<'_>,
) -> Result<Created> {
    let mut layers = open.now.current(read(snapshot)?.layers);
    // Before anything begins on them.
    let mut lender = open.now.clone();
    lender.lent.extend(
        own(&layers)
            .filter(|number| !lender.lent.contains(number))
            .collect::<Vec<_>>(),
    );
    lender.write(&open.area, &open.area.subdir(STAGE)?)?;
    let area = Dir::open(place)?;
    for remains in [WORK, STAGE] {
        remove::remove(&area, remains)?;
        area.make_dir(remains, 0o700)?;
    }
    let below = LayerStack::open(&layers, &open.area)?;
    lay_over(&area, &below, 0)?;
    exposure::inherit(&open.area, &area)?;
    for layer in &mut layers {
        layer
            .area
            .get_or_insert_with(|| Location::from(open.area.path()));
    }
    let mut lenders: Vec<Location> = layers.iter().filter_map(|one| one.area.clone()).collect();
    lenders.sort_unstable();
    lenders.dedup();
    let now = LayerState::new([vec![LayerRef::own(0)], layers].concat(), 1);
    now.write(&area, &area.subdir(STAGE)?)?;
    area.sync()?;
    let metadata = OverlayMetadata {
        original: open.original.clone(),
        area: Location::from(place),
        carved: open.carved.clone(),
        depends_on: lenders,
    };
    let message = "an empty layer over those of another plan; nothing was copied";
    Ok(tree::created(NAME, request, &metadata, message, Vec::new()))
}
