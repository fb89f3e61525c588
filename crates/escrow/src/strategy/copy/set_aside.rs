//! Copies that a rollback replaced. Each stays beside the one that took its place for as long as a checkpoint is of it, so that
//! what was discarded can be returned to: the two change places, in one step.
//!
//! ```text
//! <area>/
//!   before/0, 1, …   each with tree and manifest
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoints::{self, SNAPSHOT, SNAPSHOTS, StoredSnapshot};
use super::diff::CopiedTree;
use super::{COPY, NEW, TREE, area_of, read_manifest};
use crate::fs::{Dir, Fingerprint, remove};
use crate::model::{ResourcePath, SandboxRef};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::tree_strategy::RestoreSwitch;
use crate::strategy::{Intent, RestoreRequest, Snapshot, tree, tree_commit};

pub(super) const BEFORE: &[u8] = b"before";

/// One copy in the place of another: a return that is prepared.
#[derive(Serialize, Deserialize)]
pub(in crate::strategy) struct CopySwitch {
    /// The sandbox it is of.
    switch: SandboxRef,
    before: Fingerprint,
    after: Fingerprint,
}

impl RestoreSwitch for CopySwitch {
    fn go(self, back: bool) -> Result<()> {
        let to = if back { self.before } else { self.after };
        let area = area_of(&self.switch)?;
        if !is_of(&area, COPY, &to)? {
            let (room, name) = find(&area, &to)?.ok_or_else(lost)?;
            room.exchange(&name, &area, COPY)?;
        }
        Ok(area.sync_file_system()?)
    }
}

pub(super) fn lost() -> StrategyError {
    StrategyError::Lost {
        path: ResourcePath::root(),
        what: "the sandbox was copied anew since that checkpoint".to_owned(),
    }
}

/// What is stored of a snapshot, of whichever copy it is, and where.
pub(super) fn stored(area: &Dir, number: &[u8]) -> Result<(Dir, StoredSnapshot)> {
    let dir = area.subdir(SNAPSHOTS)?.subdir(number)?;
    let (file, _) = dir.file(SNAPSHOT)?;
    let kept = serde_json::from_reader(std::io::BufReader::new(file));
    let kept = kept.map_err(|error| StrategyError::Damaged {
        what: format!("the snapshot cannot be read ({error})"),
    })?;
    Ok((dir, kept))
}

/// Whether the copy of this name is that one.
fn is_of(room: &Dir, name: &[u8], copy: &Fingerprint) -> Result<bool> {
    let tree = room.subdir(name)?.stat(TREE)?;
    Ok(tree.is_some_and(|tree| copy.is(&tree)))
}

/// Where a copy was set aside.
fn find(area: &Dir, copy: &Fingerprint) -> Result<Option<(Dir, Box<[u8]>)>> {
    if area.stat(BEFORE)?.is_none() {
        return Ok(None);
    }
    let room = area.subdir(BEFORE)?;
    for name in room.names()? {
        if is_of(&room, &name, copy)? {
            return Ok(Some((room, name)));
        }
    }
    Ok(None)
}

/// Every copy that a stored snapshot is of; `None` for a snapshot that cannot be read.
fn needed(area: &Dir) -> Result<Vec<Option<Fingerprint>>> {
    if area.stat(SNAPSHOTS)?.is_none() {
        return Ok(Vec::new());
    }
    let numbers = checkpoints::numbers(&area.subdir(SNAPSHOTS)?)?.into_iter();
    let kept = numbers.map(|number| stored(area, number.to_string().as_bytes()));
    Ok(kept.map(|kept| Some(kept.ok()?.1.copy)).collect())
}

/// Makes the directory for what is set aside, while what that takes can still be given up for it.
pub(super) fn make_room(area: &Dir) -> Result<()> {
    match area.stat(BEFORE)? {
        None => Ok(area.make_dir(BEFORE, 0o700)?),
        Some(_) => Ok(()),
    }
}

/// Puts the new copy in the place of one that a snapshot is of, which is set aside; `false`, with nothing done, where none is.
pub(super) fn replace(area: &Dir) -> Result<bool> {
    let tree = match area.subdir(COPY) {
        Err(error) if error.is_absent() => None,
        copy => copy?.stat(TREE)?,
    };
    let mut needed = needed(area)?.into_iter().flatten();
    if !tree.is_some_and(|tree| needed.any(|copy| copy.is(&tree))) {
        return Ok(false);
    }
    make_room(area)?;
    let room = area.subdir(BEFORE)?;
    let last = checkpoints::numbers(&room)?.into_iter().max();
    let name = last.map_or(0, |last| last + 1).to_string().into_bytes();
    // Killed in between, the rollback makes another, and the caller of `keep_needed` gets rid of this one.
    area.rename(NEW, &room, &name)?;
    room.exchange(&name, area, COPY)?;
    Ok(true)
}

/// Removes the copies that no stored snapshot is of; while one cannot be read, none.
pub(super) fn keep_needed(area: &Dir) -> Result<()> {
    if area.stat(BEFORE)?.is_none() {
        return Ok(());
    }
    let Some(needed) = needed(area)?.into_iter().collect::<Option<Vec<_>>>() else {
        return Ok(());
    };
    let room = area.subdir(BEFORE)?;
    for name in room.names()? {
        let tree = room.subdir(&name)?.stat(TREE)?;
        if !tree.is_some_and(|tree| needed.iter().any(|copy| copy.is(&tree))) {
            remove::remove(&room, &name)?;
        }
    }
    Ok(())
}

/// A snapshot that can be returned to, and the copy that it is of, if that was set aside.
pub(super) fn find_snapshot(
    copied: &CopiedTree<'_>,
    area: &Dir,
    snapshot: &Snapshot,
) -> Result<(StoredSnapshot, Option<Dir>)> {
    let (_, kept) = stored(area, &checkpoints::number_of(snapshot)?)?;
    if kept.copy.is(&copied.tree.meta()?) {
        return Ok((kept, None));
    }
    let (room, name) = find(area, &kept.copy)?.ok_or_else(lost)?;
    Ok((kept, Some(room.subdir(&name)?)))
}

/// Prepares the return to a snapshot of a copy that was set aside, where it becomes what it was at the snapshot: no process
/// works there, and what it was is another snapshot or was not kept.
pub(super) fn prepare_restore(
    sandbox: &SandboxRef,
    (now, area): (&CopiedTree<'_>, &Dir),
    copy: &Dir,
    request: &RestoreRequest<'_>,
    to: &Path,
) -> Result<Intent> {
    let (tree, manifest) = (copy.subdir(TREE)?, read_manifest(copy)?);
    let aside = CopiedTree {
        tree: &tree,
        manifest: &manifest,
        ..*now
    };
    let snapshot = checkpoints::open(&aside, area, request.to)?;
    let found = aside.look()?;
    let changed = found.changes.into_iter().map(|change| change.path);
    let touched = found.touched.into_iter().map(|(path, _)| path);
    let paths: BTreeSet<ResourcePath> = changed
        .chain(touched)
        .chain(checkpoints::differs(&snapshot.kept))
        .collect();
    let staged = checkpoints::stage_restore(&aside, area, &snapshot, paths, request.observer, to)?;
    area.sync_file_system()?;
    tree_commit::apply_and(&staged, request.observer, false)?;
    area.sync_file_system()?;
    Ok(Intent(tree::stored(&CopySwitch {
        switch: sandbox.clone(),
        before: Fingerprint::from(&now.tree.meta()?),
        after: Fingerprint::from(&tree.meta()?),
    })))
}
