//! Records a partial commit: each released path as the sandbox had it and as the original has it now.

use std::collections::HashMap;

use super::intent::IntentEntry;
use super::stage::StageSource;
use super::{SandboxVersion, StageRequest, TreeIntent, inline, reference, stat};
use crate::failpoints;
use crate::fs::copy::{clock, settle};
use crate::fs::xattr::{self, Xattrs};
use crate::fs::{Fingerprint, Stamp};
use crate::model::text::Location;
use crate::model::{Change, ChangeKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::partial_commits::{PartialCommit, ReleasedPath, ReleasedVersion};
use crate::strategy::{Intent, tree};

/// Tells every path that is released, as the sandbox has it.
pub(super) fn ours(
    source: &StageSource<'_>,
    request: &StageRequest<'_>,
    mut tell: impl FnMut(&SandboxVersion) -> Result<()>,
) -> Result<()> {
    // Whatever is written from here on gets a later ctime; where it might not, none is believed.
    let settled = settle(clock());
    let skipped = request.preview.preview.left_out(request.on_conflict);
    let found = request.preview;
    let changes = found.preview.diff.changes.iter();
    let changes = changes.zip(&found.seen).enumerate();
    for (_, (change, old)) in changes.filter(|(number, _)| !skipped.contains(number)) {
        let mut one = our(source, change)?;
        let gone = old.filter(|_| one.seen.is_none());
        one.gone = gone.map(|old| (old.size, old.mtime));
        if let Some(seen) = &mut one.seen
            && (!settled || seen.ctime.nsec == 0)
        {
            seen.ctime = Stamp::default();
        }
        tell(&one)?;
    }
    Ok(())
}

fn our(source: &StageSource<'_>, change: &Change) -> Result<SandboxVersion> {
    let path = &change.path;
    let meta = match change.new {
        Some(_) => source.root.meta(path)?,
        None => None,
    };
    let attributes: Xattrs = match meta {
        None => Vec::new(),
        Some(meta) if meta.is_dir() => tree::xattrs_of(&source.root.dir(path)?)?,
        Some(_) => {
            let (dir, name) = source.root.parent(path)?;
            tree::xattrs(&dir, name)?
        }
    };
    let target = change
        .new
        .as_ref()
        .and_then(|new| new.target.as_deref().cloned());
    Ok(SandboxVersion {
        path: path.clone(),
        kind: change.kind,
        gone: None,
        seen: meta.as_ref().map(Fingerprint::from),
        xattrs: xattr::digest(&(source.visible)(attributes)),
        target,
    })
}

/// Where a commit keeps what it replaced.
pub(in crate::strategy) fn area_of(intent: &Intent) -> Result<Location> {
    match inline::is_inline(intent) {
        true => Ok(inline::read(intent)?.area),
        false => Ok(reference(intent)?.area),
    }
}

/// The area of the sandbox that counts a commit as released, where it stays.
pub(in crate::strategy) fn part_of(intent: &Intent) -> Result<Option<Location>> {
    match inline::is_inline(intent) {
        true => Ok(None),
        false => Ok(reference(intent)?.part_of),
    }
}

/// What a commit that is over released.
pub(in crate::strategy) fn released(intent: &Intent) -> Result<PartialCommit> {
    let tree = TreeIntent::read(intent)?;
    let original = tree.original.open()?;
    let mut left: HashMap<ResourcePath, Fingerprint> = HashMap::new();
    for step in tree.records.steps() {
        let new = |entry: IntentEntry| Some((entry.path, entry.new?));
        left.extend(tree.records.below(&step).filter_map(new));
        left.extend(new(step.top));
    }
    let mut versions = Vec::new();
    for one in tree.records.parts() {
        let both = match one.seen {
            None => None,
            Some(ours) => {
                let theirs = match left.get(&one.path) {
                    Some(seen) => Some(*seen),
                    // A directory that was there, or another name for a file that was.
                    None => {
                        let now = stat(&original, &one.path)?;
                        now.as_ref().map(Fingerprint::from)
                    }
                };
                Some(ReleasedVersion {
                    ours,
                    theirs: theirs.unwrap_or(ours),
                    xattrs: one.xattrs,
                    target: one.target,
                    made: matches!(one.kind, ChangeKind::Added | ChangeKind::TypeChanged),
                })
            }
        };
        versions.push(ReleasedPath {
            path: one.path,
            both,
            added: one.kind == ChangeKind::Added,
            gone: one.gone,
        });
    }
    if failpoints::bug("part-forgets-a-path") {
        versions.pop();
    }
    let mut directories = Vec::new();
    for dressing in tree.records.directories() {
        let now = stat(&original, &dressing.path)?;
        let same = now.filter(|now| dressing.seen.is_some_and(|seen| seen.is(now)));
        directories.extend(same.map(|now| (now.ino, now.ctime, dressing.known)));
    }
    Ok(PartialCommit {
        area: tree.area,
        versions,
        directories,
    })
}
