//! The subvolumes of a sandbox, in its area.
//!
//! ```text
//! <area>/
//!   volumes/              exchanged as one
//!     base/               the original's subvolume as it was, read-only
//!     work/               the same, to work in
//!   volumes.new/          some in the making, or on their way out
//!   checkpoints/0, 1, …   `work` as it was, read-only
//! ```
//!
//! Every one of them is there wholly or not at all: the kernel makes a snapshot in one transaction. A return to a checkpoint
//! exchanges `work` for a snapshot of the checkpoint, which was made in the restore's own area; whether that was done is told
//! by the number of the subvolume.

use serde::{Deserialize, Serialize};

use super::compare::compare;
use super::{NAME, OpenVolumes, SubvolumeMetadata, open};
use crate::fs::copy::{clock, settle};
use crate::fs::dir::DirEntry;
use crate::fs::walk::walk;
use crate::fs::{Dir, btrfs, mounts, remove};
use crate::model::text::Location;
use crate::model::{ResourcePath, SandboxRef};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree_strategy::RestoreSwitch;
use crate::strategy::{
    Intent, LiveView, RestoreRequest, Snapshot, live_restore, tree, unsupported,
};

pub(super) const VOLUMES: &[u8] = b"volumes";
const NEW: &[u8] = b"volumes.new";
const BASE: &[u8] = b"base";
const WORK: &[u8] = b"work";
/// Where a live restore began, in its area.
const BACK: &[u8] = b"back";
const CHECKPOINTS: &[u8] = b"checkpoints";

/// The base of the volumes.
pub(super) fn base(area: &Dir) -> Result<Dir> {
    Ok(area.subdir(VOLUMES)?.subdir(BASE)?)
}

/// The directory of the sandbox in it.
pub(super) fn base_tree(area: &Dir, inside: &ResourcePath) -> Result<Dir> {
    Ok(base(area)?.dir(inside)?)
}

/// The directory of the sandbox to work in.
pub(super) fn work_tree(area: &Dir, inside: &ResourcePath) -> Result<Dir> {
    Ok(area.subdir(VOLUMES)?.subdir(WORK)?.dir(inside)?)
}

/// What tells volumes from others that were made anew in their place.
pub(super) fn identity(area: &Dir) -> Result<u64> {
    Ok(btrfs::id(&base(area)?)?)
}

/// Removes what an earlier sandbox left in an area.
pub(super) fn clear(area: &Dir) -> Result<()> {
    for name in [VOLUMES, NEW, CHECKPOINTS] {
        remove::remove(area, name)?;
    }
    Ok(())
}

/// Makes new volumes of these subvolumes; without one for the work it is as the base.
pub(super) fn make(area: &Dir, base: &Dir, work: Option<&Dir>) -> Result<()> {
    let new = empty(area)?;
    btrfs::snapshot(base, &new, BASE, true)?;
    let own = new.subdir(BASE)?;
    btrfs::snapshot(work.unwrap_or(&own), &new, WORK, false)?;
    wait()
}

fn empty(area: &Dir) -> Result<Dir> {
    remove::remove(area, NEW)?;
    area.make_dir(NEW, 0o700)?;
    Ok(area.subdir(NEW)?)
}

/// Puts the new volumes in their place, where none are.
pub(super) fn settle_in(area: &Dir) -> Result<()> {
    Ok(area.rename(NEW, area, VOLUMES)?)
}

/// Puts new volumes, of the subvolume `of`, in the place of those that are there.
pub(super) fn replace(area: &Dir, of: &Dir) -> Result<()> {
    let made = make(area, of, None).and_then(|()| Ok(area.exchange(NEW, area, VOLUMES)?));
    finish(area, made)
}

/// Makes the work what the base is.
pub(super) fn reset(area: &Dir) -> Result<()> {
    let volumes = area.subdir(VOLUMES)?;
    let made = empty(area).and_then(|new| {
        btrfs::snapshot(&volumes.subdir(BASE)?, &new, WORK, false)?;
        wait()?;
        Ok(volumes.exchange(WORK, &new, WORK)?)
    });
    finish(area, made)
}

/// Makes an exchange durable, and removes what it left. What a failed one left only takes room; should it stay, the next
/// attempt removes it.
fn finish(area: &Dir, made: Result<()>) -> Result<()> {
    match made {
        Ok(()) => {
            area.sync_file_system()?;
            Ok(remove::remove(area, NEW)?)
        }
        Err(error) => match remove::remove(area, NEW) {
            Ok(()) | Err(_) => Err(error),
        },
    }
}

/// Waits until every later change gets a later ctime than anything in a snapshot that was just taken.
fn wait() -> Result<()> {
    // One that falls on a whole second is not relied on; the next one does not.
    match settle(clock()) || settle(clock()) {
        true => Ok(()),
        false => Err(StrategyError::Damaged {
            what: "the clock of this machine stands still, so what is changed from now on could not be told".to_owned(),
        }),
    }
}

/// What is stored of a checkpoint by the caller.
#[derive(Serialize, Deserialize)]
struct CheckpointNumber {
    number: u32,
    /// The volumes that it is of.
    base: u64,
}

fn name_of(snapshot: &Snapshot) -> Result<Vec<u8>> {
    let CheckpointNumber { number, .. } = tree::parse(&snapshot.0, "the checkpoint")?;
    Ok(number.to_string().into_bytes())
}

/// The subvolume of a checkpoint.
pub(super) fn checkpoint_volume(area: &Dir, snapshot: &Snapshot) -> Result<Dir> {
    let CheckpointNumber { base, .. } = tree::parse(&snapshot.0, "the checkpoint")?;
    if base != identity(area)? {
        return Err(StrategyError::Lost {
            path: ResourcePath::root(),
            what: "the sandbox was made anew since that checkpoint".to_owned(),
        });
    }
    Ok(area.subdir(CHECKPOINTS)?.subdir(&name_of(snapshot)?)?)
}

/// Keeps the work as it is.
pub(super) fn checkpoint(open: &OpenVolumes) -> Result<Snapshot> {
    let area = &open.area;
    let work = area.subdir(VOLUMES)?.subdir(WORK)?;
    if let Some(path) = btrfs::nested(&work, &open.inside)?.first() {
        let why = format!(
            "'{path}' was made a subvolume of its own, which no snapshot keeps; make it a plain directory"
        );
        return Err(unsupported(NAME, "keep a checkpoint", &why));
    }
    if area.stat(CHECKPOINTS)?.is_none() {
        area.make_dir(CHECKPOINTS, 0o700)?;
    }
    let all = area.subdir(CHECKPOINTS)?;
    let number = |entry: &DirEntry| std::str::from_utf8(&entry.name).ok()?.parse::<u32>().ok();
    let last = all.entries()?.iter().filter_map(number).max();
    let number = last.map_or(0, |last| last + 1);
    btrfs::snapshot(&work, &all, number.to_string().as_bytes(), true)?;
    wait()?;
    Ok(Snapshot(tree::stored(&CheckpointNumber {
        number,
        base: identity(area)?,
    })))
}

/// Removes every checkpoint but these.
pub(super) fn retain(area: &Dir, keep: &[Snapshot]) -> Result<()> {
    if area.stat(CHECKPOINTS)?.is_none() {
        return Ok(());
    }
    let all = area.subdir(CHECKPOINTS)?;
    let keep: Vec<Vec<u8>> = keep.iter().map(name_of).collect::<Result<_>>()?;
    for entry in all.entries()? {
        if !keep.iter().any(|name| name[..] == *entry.name) {
            remove::remove(&all, &entry.name)?;
        }
    }
    Ok(())
}

/// One subvolume in the place of another: a return to a checkpoint that is prepared.
#[derive(Serialize, Deserialize)]
pub(in crate::strategy) struct VolumeSwitch {
    /// The sandbox it is of.
    switch: SandboxRef,
    /// Where a command sees the sandbox that was inside when it was prepared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    live: Option<LiveView>,
    /// What was prepared.
    area: Location,
    /// The checkpoint it begins at, and the subvolume that is worked in until then.
    from: (Snapshot, u64),
    /// The same of its end.
    to: (Snapshot, u64),
}

impl VolumeSwitch {
    /// Prepares both ends. While a command is inside, they serve when it is gone before the return is over.
    pub(super) fn prepare(
        open: &OpenVolumes,
        sandbox: &SandboxRef,
        request: &RestoreRequest<'_>,
        live: Option<&LiveView>,
    ) -> Result<Intent> {
        let place = tree::commit_area(NAME, request.area)?;
        let room = Dir::open(place)?;
        let begin = |at: &Snapshot, name: &[u8]| -> Result<u64> {
            btrfs::snapshot(&checkpoint_volume(&open.area, at)?, &room, name, false)?;
            Ok(btrfs::id(&room.subdir(name)?)?)
        };
        let before = match live {
            Some(_) => begin(request.from, BACK)?,
            None => btrfs::id(&open.tree)?,
        };
        let switch = Self {
            switch: sandbox.clone(),
            live: live.cloned(),
            area: Location::from(place),
            from: (request.from.clone(), before),
            to: (request.to.clone(), begin(request.to, WORK)?),
        };
        Ok(Intent(tree::stored(&switch)))
    }

    fn switch(&self, wanted: u64) -> Result<()> {
        let SubvolumeMetadata { area, .. } = tree::metadata(&self.switch)?;
        let area = Dir::open(area.as_path())?;
        let volumes = area.subdir(VOLUMES)?;
        if btrfs::id(&volumes.subdir(WORK)?)? != wanted {
            let room = Dir::open(self.area.as_path())?;
            let mut prepared = Vec::new();
            for name in [WORK, BACK] {
                if room.stat(name)?.is_some() && btrfs::id(&room.subdir(name)?)? == wanted {
                    prepared.push(name);
                }
            }
            let name = prepared.first().ok_or_else(|| StrategyError::Damaged {
                what: "the subvolume that was prepared for the restore is gone".to_owned(),
            })?;
            volumes.exchange(WORK, &room, name)?;
        }
        Ok(area.sync_file_system()?)
    }
}

impl RestoreSwitch for VolumeSwitch {
    /// Through what a command sees while it is inside.
    fn go(self, back: bool) -> Result<()> {
        let (checkpoint, volume) = if back { &self.from } else { &self.to };
        match &self.live {
            Some(live) if live.process.is_alive()? => {
                let open = open(&self.switch)?;
                let target = checkpoint_volume(&open.area, checkpoint)?.dir(&open.inside)?;
                go_live(&open, &target, &tree::view(live)?)
            }
            _ => self.switch(*volume),
        }
    }
}

/// Makes what is seen in `root`, which commands use, what `target` is.
fn go_live(open: &OpenVolumes, target: &Dir, root: &Dir) -> Result<()> {
    let found = compare(&open.tree, target)?;
    let changes = found.changes.into_iter().map(|change| change.path);
    let paths = changes.chain(found.alike.into_iter().map(|(path, _)| path));
    let carved = |path: &ResourcePath| open.carved.iter().any(|one| path.lies_in(one));
    let paths = paths.filter(|path| !carved(path)).collect();
    let is = |path: &ResourcePath| tree::entry_at(&open.tree, path);
    let to = |path: &ResourcePath| tree::entry_at(target, path);
    live_restore::go(root, paths, (&is, &to), |attributes| attributes)
}

/// Whether this user may delete subvolumes on the mount of a directory; otherwise they are emptied first.
pub(super) fn may_delete(dir: &Dir) -> Result<bool> {
    let root = rustix::process::geteuid().is_root();
    Ok(root || mounts::has_option(dir.meta()?.mount, "user_subvol_rm_allowed")?)
}

/// Refuses a subvolume of which this user could not empty a snapshot again.
pub(super) fn check_removable(root: &Dir) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    walk(root, (), |visit| {
        let holds = visit
            .entries
            .first()
            .map(|first| visit.path.join(&first.name));
        let foreign = holds.filter(|_| visit.dir.meta().is_ok_and(|meta| meta.uid != me));
        let fixed = visit.entries.iter().find(|entry| entry.meta.fixed);
        let fixed = fixed.map(|entry| visit.path.join(&entry.name));
        if let Some(path) = foreign.or(fixed) {
            let why = format!(
                "its subvolume holds '{path}', which this user cannot remove, so the snapshot could never be removed either; \
                 mount it with user_subvol_rm_allowed, or use another strategy"
            );
            return Err(unsupported(NAME, "take a snapshot", &why));
        }
        let dirs = visit
            .entries
            .into_iter()
            .filter(|entry| entry.meta.is_dir());
        let own = dirs.filter(|entry| !btrfs::is_subvolume(visit.dir, &entry.meta));
        Ok(own.map(|entry| (entry.name, ())).collect())
    })
}
