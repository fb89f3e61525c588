//! Originals on an overlay file system, as the root of a container is.
//!
//! The kernel moves and exchanges files there as anywhere: the first change to one of a lower layer copies it into the upper
//! one, where it keeps its number and gets a new birth (`fs::stat` leaves those out). A file of several names may get a new
//! number too, and is recognized without it. What the kernel does not move is a directory that a lower layer has. Such a
//! directory is emptied entry by entry and removed, and a copy of it waits in the stage for an undo.

use rustix::io::Errno;

use super::intent::{INTENT, copy_name};
use super::stage::StageJob;
use super::stat;
use super::steps::PlannedStep;
use crate::fs::place::{DirLook, refuse_lost};
use crate::fs::{Dir, Fingerprint, FsError, Meta};
use crate::model::ResourcePath;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree::STAGE;

/// Fills the stage, so that nothing is renamed over it.
const FULL: &[u8] = b"full";

/// Prepares the stage for [`is_stuck`]. Refuses layers on several file systems: directories have other numbers whenever the
/// kernel forgets them, and two files may have one number.
pub(super) fn check(area: &Dir, stage: &Dir) -> Result<()> {
    stage.make_dir(FULL, 0o700)?;
    let of_file = area.stat(INTENT.as_bytes())?.map(|meta| meta.dev);
    match of_file == Some(stage.meta()?.dev) {
        true => Ok(()),
        false => Err(StrategyError::Unsupported {
            strategy: "a directory".to_owned(),
            what: "be committed here".to_owned(),
            why: "it lies on an overlay file system whose layers lie on different file systems, where files have no lasting \
                numbers; mount that with xino=on, or keep the directory on a volume"
                .to_owned(),
        }),
    }
}

/// Whether a directory cannot be moved. The kernel is asked by a rename that fails in either case.
pub(super) fn is_stuck(original: &Dir, path: &ResourcePath, area: &Dir) -> Result<bool> {
    let (dir, name) = original.parent(path)?;
    let is = |error: &FsError, wanted: [Errno; 2]| wanted.iter().any(|errno| error.is(*errno));
    match dir.rename(name, area, STAGE) {
        Err(error) if error.is(Errno::XDEV) => Ok(true),
        Err(error) if is(&error, [Errno::NOTEMPTY, Errno::EXIST]) => Ok(false),
        answer => Ok(answer.map(|()| false)?),
    }
}

/// What was seen at a path, to be recognized after a step has moved it. A file of several names may get another number by that.
pub(super) fn lasting(
    original: &Dir,
    path: &ResourcePath,
    seen: Fingerprint,
) -> Result<Fingerprint> {
    let several = |now: &Meta| !now.is_dir() && now.nlink > 1;
    match stat(original, path)?.is_some_and(|now| several(&now)) {
        true => Ok(seen.without_number()),
        false => Ok(seen),
    }
}

impl StageJob<'_> {
    /// Stages the copy of a directory that a step removes.
    pub(super) fn copy_dir(&self, slot: u32, planned: &PlannedStep<'_>) -> Result<Fingerprint> {
        let (path, name) = (&planned.path, copy_name(slot));
        self.stage.make_dir(&name, 0o700)?;
        let (model, copy) = (self.original.dir(path)?, self.stage.subdir(&name)?);
        let look = DirLook::of(&model)?;
        refuse_lost((&model, b""), &look.apply(&copy)?)?;
        self.flags.give_dir(path, &copy)?;
        let meta = copy.meta()?;
        match (meta.uid, meta.gid) == (look.meta.uid, look.meta.gid) {
            true => Ok(Fingerprint::from(&meta)),
            false => Err(StrategyError::Forbidden {
                path: path.clone(),
                why: "it belongs to another user or group, and lies in a lower layer of an overlay file system: an undo could \
                    not make it again"
                    .to_owned(),
            }),
        }
    }
}
