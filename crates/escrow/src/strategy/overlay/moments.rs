//! Checkpoints of an overlay: the layer in use is left as it is, and a new, empty one is laid over it.
//! Going back is another stack of layers. Neither costs more for many changes than for few, and nothing
//! is copied.

use serde::{Deserialize, Serialize};

use super::super::closed_dirs;
use super::super::error::{Result, StrategyError};
use super::super::moments;
use super::super::tree::{self, STAGE};
use super::super::{CreateRequest, Created, Intent, Moment, Occasion, Way};
use super::fold;
use super::layers::{self, Looks};
use super::stack::{Now, Number, Stack};
use super::{Metadata, NAME, Sandbox, WORK, alone, base, diff, in_use, look, through};
use crate::event::Observer;
use crate::fs::{Dir, exposure, remove};
use crate::model::text::Location;
use crate::model::{Change, DiffView, SandboxRef};
use crate::seeded;

/// So many layers at most have checkpoints that could be done without, those that forks begin with, and those that
/// restores begin with. A kernel mounts 500; each kind leaves some to the next, so that whoever takes checkpoints,
/// an agent among them, cannot keep a user from going back.
const MOST: usize = 400;
const MOST_BEGUN: usize = 430;
const MOST_RETURNING: usize = 460;

/// The layers of a moment, topmost first.
#[derive(Serialize, Deserialize)]
struct Layers {
    layers: Vec<Number>,
}

/// One stack in the place of another.
#[derive(Serialize, Deserialize)]
struct Switch {
    before: Now,
    after: Now,
}

fn read(moment: &Moment) -> Result<Layers> {
    serde_json::from_value(moment.0.clone()).map_err(|error| StrategyError::Damaged {
        what: format!("what a checkpoint needs cannot be read back ({error})"),
    })
}

/// An empty layer over these, whose root looks like theirs.
pub(super) fn lay_over(area: &Dir, below: &Stack, number: u32) -> Result<()> {
    let room = Now::room(area)?;
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
fn is_unused(stack: &Stack, below: &Stack) -> Result<bool> {
    let (top, below) = (stack.top(), below.top());
    let same = |a: &Dir, b: &Dir| -> Result<bool> {
        Ok(Looks::of(a)? == Looks::of(b)? && a.meta()?.mtime == b.meta()?.mtime)
    };
    Ok(top.entries()?.is_empty() && same(top, below)?)
}

/// Refuses a checkpoint that would need one layer too many.
pub(super) fn has_room(sandbox: &SandboxRef, occasion: Occasion) -> Result<()> {
    let most = match occasion {
        Occasion::Kept => MOST,
        Occasion::Begun => MOST_BEGUN,
    };
    alone(sandbox, |open, _| has_room_for(open, most))
}

fn has_room_for(open: &Sandbox, most: usize) -> Result<()> {
    let (mut now, layers) = (open.now.clone(), &open.upper);
    let unused = now.layers.len() >= most && {
        let below = Stack::open(&now.layers[1..], &open.area)?;
        is_unused(layers, &below)?
    };
    match unused {
        true => Ok(()),
        false => make_room(&open.area, &open.lower, &mut now, most),
    }
}

/// Makes fewer layers of as many as there may be, if some can become one.
fn make_room(area: &Dir, lower: &Dir, now: &mut Now, most: usize) -> Result<()> {
    if now.layers.len() < most {
        return Ok(());
    }
    // Where checkpoints were let go of, some of them can become one.
    fold::after_checkpoint(area, lower, now);
    now.write(area, &area.subdir(STAGE)?)?;
    if now.layers.len() < most {
        return Ok(());
    }
    Err(StrategyError::Unsupported {
        strategy: NAME,
        what: "take another checkpoint",
        why: format!(
            "it has {} layers, and such a checkpoint leaves it at most {most}; let go of checkpoints that nobody needs, or commit",
            now.layers.len()
        ),
    })
}

pub(super) fn checkpoint(sandbox: &SandboxRef) -> Result<Moment> {
    alone(sandbox, |open, _| checkpoint_of(open))
}

fn checkpoint_of(open: &Sandbox) -> Result<Moment> {
    let stage = open.area.subdir(STAGE)?;
    let mut now = open.now.clone();
    let moment = |layers: &[Number]| {
        Moment(tree::stored(&Layers {
            layers: layers.to_vec(),
        }))
    };
    let layers = now.layers.clone();
    if layers.len() > 1 && is_unused(&open.upper, &Stack::open(&layers[1..], &open.area)?)? {
        // The checkpoint that laid the unused one there may be gone, and its pins with it.
        if pin(&mut now, &layers[1..]) {
            now.write(&open.area, &stage)?;
        }
        return Ok(moment(&layers[1..]));
    }
    make_room(&open.area, &open.lower, &mut now, MOST_RETURNING)?;
    let layers = now.layers.clone();
    // What programs wrote inside may be in memory only; from here on it is kept.
    if !seeded::bug("checkpoint-not-synced") {
        open.area.sync_file_system()?;
    }
    lay_over(&open.area, &open.upper, now.next)?;
    pin(&mut now, &layers);
    now.layers.insert(0, Number::own(now.next));
    now.next += 1;
    fold::after_checkpoint(&open.area, &open.lower, &mut now);
    now.write(&open.area, &stage)?;
    // What the kernel left from an earlier mount belongs to the old layer.
    clear_work(&open.area)?;
    now.sweep(&open.area)?;
    Ok(moment(&layers))
}

/// The same while somebody works in it, and stands still.
pub(super) fn checkpoint_in_use(
    sandbox: &SandboxRef,
    last: Option<&Moment>,
    observer: &dyn Observer,
) -> Result<Moment> {
    alone(sandbox, |open, _| keep_in_use(open, last, observer))
}

fn keep_in_use(open: &Sandbox, last: Option<&Moment>, observer: &dyn Observer) -> Result<Moment> {
    let last = last.map(read).transpose()?;
    let last = last.map(|last| open.now.current(last.layers));
    let layers = in_use::keep(open, last, observer)?;
    let mut now = open.now.clone();
    if pin(&mut now, &layers) {
        now.next += 1;
        now.write(&open.area, &open.area.subdir(STAGE)?)?;
    }
    Ok(Moment(tree::stored(&Layers { layers })))
}

/// Notes that a checkpoint needs these; says whether that is new.
fn pin(now: &mut Now, layers: &[Number]) -> bool {
    let before = now.pinned.len();
    for number in own(layers) {
        if !now.pinned.contains(&number) {
            now.pinned.push(number);
        }
    }
    now.tell_apart(layers) || now.pinned.len() > before
}

fn own(layers: &[Number]) -> impl Iterator<Item = u32> {
    let own = layers.iter().filter(|layer| layer.area.is_none());
    own.map(|layer| layer.number)
}

fn clear_work(area: &Dir) -> Result<()> {
    remove::remove(area, WORK)?;
    Ok(area.make_dir(WORK, 0o700)?)
}

pub(super) fn prepare_restore(sandbox: &SandboxRef, moment: &Moment) -> Result<Intent> {
    alone(sandbox, |open, _| prepare_switch(open, moment))
}

fn prepare_switch(open: &Sandbox, moment: &Moment) -> Result<Intent> {
    let layers = open.now.current(read(moment)?.layers);
    let next = open.now.next;
    open.now.sweep(&open.area)?;
    lay_over(&open.area, &Stack::open(&layers, &open.area)?, next)?;
    let after = Now {
        layers: [vec![Number::own(next)], layers].concat(),
        next: next + 1,
        apart: None,
        ..open.now.clone()
    };
    let before = Now {
        next: next + 1,
        ..open.now.clone()
    };
    // The number is taken, whoever keeps something before it is used.
    before.write(&open.area, &open.area.subdir(STAGE)?)?;
    Ok(Intent(tree::stored(&Switch { before, after })))
}

/// The same while somebody works in it: what is prepared serves when nobody does any more.
pub(super) fn prepare_restore_in_use(sandbox: &SandboxRef, way: &Way) -> Result<Intent> {
    alone(sandbox, |open, _| prepare_switch_in_use(open, way))
}

fn prepare_switch_in_use(open: &Sandbox, way: &Way) -> Result<Intent> {
    open.now.sweep(&open.area)?;
    let next = open.now.next;
    let beginning = |moment: &Moment, number: u32| -> Result<Now> {
        let layers = open.now.current(read(moment)?.layers);
        lay_over(&open.area, &Stack::open(&layers, &open.area)?, number)?;
        Ok(Now {
            layers: [vec![Number::own(number)], layers].concat(),
            next: next + 2,
            apart: None,
            ..open.now.clone()
        })
    };
    let (before, after) = (beginning(&way.from, next)?, beginning(&way.to, next + 1)?);
    // The numbers are taken, whoever keeps something before they are used.
    let taken = Now {
        next: next + 2,
        ..open.now.clone()
    };
    taken.write(&open.area, &open.area.subdir(STAGE)?)?;
    Ok(Intent(tree::stored(&Switch { before, after })))
}

/// Goes there, or back, through the mount that somebody uses.
pub(super) fn switch_in_use(
    sandbox: &SandboxRef,
    intent: &Intent,
    through: &Dir,
    back: bool,
) -> Result<()> {
    let Switch { before, after } = way(intent)?;
    let to = if back { before } else { after };
    alone(sandbox, |open, _| {
        // The topmost one is empty.
        let layers = open.now.current(to.layers[1..].to_vec());
        let target = Stack::open(&layers, &open.area)?;
        through::go(open, &target, through)
    })
}

fn way(intent: &Intent) -> Result<Switch> {
    serde_json::from_value(intent.0.clone()).map_err(|error| StrategyError::Damaged {
        what: format!("what a restore needs cannot be read back ({error})"),
    })
}

pub(super) fn switch(sandbox: &SandboxRef, intent: &Intent, back: bool) -> Result<()> {
    let Metadata { area, .. } = tree::metadata(sandbox)?;
    let area = closed_dirs::enter(Dir::open(area.as_path())?)?;
    let Switch { before, after } = way(intent)?;
    let (now, to) = (Now::read(&area)?, if back { before } else { after });
    let Some((top, below)) = to.layers.split_first() else {
        return Ok(());
    };
    // What was kept since it was prepared stays kept.
    let below = now.current(below.to_vec());
    if Now::room(&area)?.stat(&top.name())?.is_none() {
        lay_over(&area, &Stack::open(&below, &area)?, top.number)?;
    }
    let to = Now {
        layers: [vec![top.clone()], below].concat(),
        next: now.next.max(to.next),
        apart: None,
        ..now
    };
    to.write(&area, &area.subdir(STAGE)?)?;
    // The layers of the other side stay: it may be taken back. They go with the next step.
    clear_work(&area)
}

pub(super) fn keep_only(sandbox: &SandboxRef, kept: &[Moment]) -> Result<()> {
    let Metadata { area, .. } = tree::metadata(sandbox)?;
    let area = Dir::open(area.as_path())?;
    let before = Now::read(&area)?;
    let mut now = before.clone();
    let kept = kept.iter().map(|moment| Ok(read(moment)?.layers));
    let kept: Vec<Vec<Number>> = kept.collect::<Result<_>>()?;
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

/// What changed between a moment and another, or now.
pub(super) fn since(
    sandbox: &SandboxRef,
    moment: &Moment,
    until: Option<&Moment>,
) -> Result<DiffView> {
    look(sandbox, |open| since_of(open, moment, until))
}

fn since_of(open: &Sandbox, moment: &Moment, until: Option<&Moment>) -> Result<DiffView> {
    let at = |moment: &Moment| Stack::open(&open.now.current(read(moment)?.layers), &open.area);
    let then = at(moment)?;
    let until = until.map(at).transpose()?;
    let later = until.as_ref().unwrap_or(&open.upper);
    let look = |stack: &Stack| -> Result<Vec<Change>> {
        let mut changes = tree::steady(|| diff::look(stack, &open.lower))?.changes;
        tree::only_own(&mut changes, &open.carved);
        Ok(DiffView::new(changes).changes)
    };
    let changes = moments::between(
        (&look(&then)?, &then),
        (&look(later)?, later),
        layers::visible,
    )?;
    Ok(DiffView::new(changes))
}

/// A sandbox of its own that begins at a moment of this one, whose layers it shares.
pub(super) fn fork(
    sandbox: &SandboxRef,
    moment: &Moment,
    request: &CreateRequest<'_>,
) -> Result<Created> {
    alone(sandbox, |open, _| fork_of(open, moment, request))
}

fn fork_of(open: &Sandbox, moment: &Moment, request: &CreateRequest<'_>) -> Result<Created> {
    let mut layers = open.now.current(read(moment)?.layers);
    // Before anything begins on them.
    let mut lender = open.now.clone();
    lender.lent.extend(
        own(&layers)
            .filter(|number| !lender.lent.contains(number))
            .collect::<Vec<_>>(),
    );
    lender.write(&open.area, &open.area.subdir(STAGE)?)?;
    let area = Dir::open(request.area)?;
    for remains in [WORK, STAGE] {
        remove::remove(&area, remains)?;
        area.make_dir(remains, 0o700)?;
    }
    let below = Stack::open(&layers, &open.area)?;
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
    let now = Now::new([vec![Number::own(0)], layers].concat(), 1);
    now.write(&area, &area.subdir(STAGE)?)?;
    area.sync()?;
    let metadata = Metadata {
        original: open.original.clone(),
        area: Location::from(request.area),
        carved: open.carved.clone(),
        lenders,
    };
    Ok(Created {
        sandbox: SandboxRef {
            plan_id: request.plan_id,
            resource_id: request.resource_id,
            strategy: NAME.to_owned(),
            metadata: tree::stored(&metadata),
        },
        message: "an empty layer over those of another plan; nothing was copied".to_owned(),
        warnings: Vec::new(),
    })
}
