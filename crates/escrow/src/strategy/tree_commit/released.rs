//! Partial commits as their sandbox sees them: what each left in the original is the base of what is changed since.
//!
//! Nothing is recorded for it. At a path that was released, a sandbox that has what the original has changed nothing. What a
//! partial commit left in the original, to the ctime, stands in its intent, which lives as long as the commit can be
//! undone. The caller knows which of them stand, so an undo has nothing to strike.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::TreeIntent;
use crate::failpoints;
use crate::fs::xattr::Xattrs;
use crate::fs::{Dir, Fingerprint, Meta, MovedEntries, Stamp};
use crate::model::{Change, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{Intent, tree};

/// What the partial commits of one sandbox left in the original.
#[derive(Debug, Default)]
pub(in crate::strategy) struct Released {
    /// Each path that was released; `None` where it was released that nothing is there.
    paths: BTreeMap<ResourcePath, Option<LeftEntry>>,
    /// The directories in which names were changed: their time since, if no other process had changed them before.
    dirs: HashMap<ResourcePath, Option<Stamp>>,
    /// Size and time of the files that were removed: one that the sandbox moved has the same.
    removed: HashSet<(u64, Stamp)>,
}

/// What a commit left at a path, and the attributes of a directory that was there before.
type LeftEntry = (Fingerprint, Option<Xattrs>);

/// A version and the directory it lies in; `None` where nothing is.
type FoundVersion = Option<(Dir, Meta)>;

impl Released {
    /// What these commits left, oldest first, as far as they are of the sandbox that is there now: after a rollback
    /// it is another one. A commit whose area was removed tells nothing, and its paths are changes again.
    pub(in crate::strategy) fn read(parts: &[Intent], of: &str) -> Result<Self> {
        let mut released = Self::default();
        for intent in parts {
            let tree = match TreeIntent::read(intent) {
                Err(StrategyError::Fs(error)) if error.is_absent() => continue,
                tree => tree?,
            };
            if tree.part.as_deref() == Some(of) {
                released.add(&tree);
            }
        }
        if failpoints::bug("part-forgets-a-path") {
            released.paths.pop_last();
        }
        Ok(released)
    }

    fn add(&mut self, tree: &TreeIntent) {
        let records = &tree.records;
        for step in records.steps() {
            for entry in records.below(&step).chain([step.top.clone()]) {
                if let (Some(old), None) = (&entry.old, &entry.new) {
                    self.removed.insert((old.size, old.mtime));
                }
                self.paths
                    .insert(entry.path, entry.new.map(|left| (left, None)));
            }
        }
        for link in records.links() {
            self.paths.insert(link.path, Some((link.file, None)));
        }
        for update in records.directories() {
            // One that the commit made is among the steps.
            let Some(seen) = update.seen else { continue };
            let (looks, mut known) = (update.after, update.known);
            if let Some(xattrs) = &looks.xattrs {
                let left = Fingerprint {
                    mode: looks.mode,
                    owner: looks.owner,
                    ctime: Stamp::default(),
                    ..seen
                };
                let left = (left, Some(xattrs.clone()));
                self.paths.insert(update.path.clone(), Some(left));
                known = true;
            }
            self.dirs.insert(update.path, looks.mtime.filter(|_| known));
        }
    }

    /// Whether something was released at a path.
    pub(in crate::strategy) fn has(&self, path: &ResourcePath) -> bool {
        self.paths.contains_key(path)
    }

    /// Puts what is released in the place of the changes of a plain tree at these paths: in what it differs from the original.
    /// Returns the files that are the same in both.
    pub(in crate::strategy) fn compare(
        &self,
        tree: &Dir,
        original: &Dir,
        changes: &mut Vec<Change>,
    ) -> Result<Vec<ResourcePath>> {
        let find = |path: &ResourcePath| tree::entry_at(tree, path);
        self.compare_with(&find, |all| all, original, changes)
    }

    /// The same for a sandbox whose versions `find` finds, with the directories they lie in.
    pub(in crate::strategy) fn compare_with(
        &self,
        find: &dyn Fn(&ResourcePath) -> Result<FoundVersion>,
        visible: fn(Xattrs) -> Xattrs,
        original: &Dir,
        changes: &mut Vec<Change>,
    ) -> Result<Vec<ResourcePath>> {
        changes.retain(|one| !self.has(&one.path));
        let mut same = Vec::new();
        for path in self.paths.keys() {
            let name = path.split().map_or(&b"."[..], |(_, name)| name);
            let (own, theirs) = (find(path)?, tree::entry_at(original, path)?);
            let added = |(dir, new): (Dir, Meta)| -> Result<_> {
                Ok(Change::added(path.clone(), dir.facts(name, &new)?))
            };
            let deleted = |(dir, old): (Dir, Meta)| -> Result<_> {
                Ok(Change::deleted(path.clone(), dir.facts(name, &old)?))
            };
            let change = match (own, theirs) {
                (None, None) => None,
                (Some(new), None) => Some(added(new)?),
                (None, Some(old)) => Some(deleted(old)?),
                (Some((own, new)), Some((theirs, old))) => {
                    let (old, new) = ((&theirs, &old), (&own, &new));
                    let narrow = |fields| tree::ownable(fields, old.1);
                    let change = tree::change(path, old, new, visible, narrow)?;
                    if change.is_none() && !new.1.is_dir() {
                        same.push(path.clone());
                    }
                    change
                }
            };
            changes.extend(change);
        }
        Ok(same)
    }

    /// The size and time of each file whose removal was released.
    pub(in crate::strategy) fn removed(&self) -> impl Iterator<Item = (u64, Stamp)> {
        self.removed.iter().copied()
    }

    /// Whether an entry of the original is the base of what is in the sandbox; `None` where no partial commit tells.
    pub(in crate::strategy) fn is_current(
        &self,
        path: &ResourcePath,
        at: (&Dir, &[u8]),
        now: &Meta,
        moved: &MovedEntries,
    ) -> Result<Option<bool>> {
        match (self.paths.get(path), self.dirs.get(path)) {
            (Some(None), _) => Ok(Some(false)),
            (Some(Some((left, xattrs))), _) => {
                if left.is(now) && moved.leads(now.ino, now.ctime, left.ctime) {
                    return Ok(Some(true));
                }
                // Of a directory its own looks count: a ctime that came with a name tells nothing.
                let same = match xattrs {
                    Some(xattrs) => {
                        tree::xattrs_if_open(at.0, at.1)?.is_none_or(|now| now == *xattrs)
                    }
                    None => moved.settled(now.ino, now.ctime) == now.mtime,
                };
                Ok(Some(now.is_dir() && left.looks_the_same(now) && same))
            }
            (None, Some(None)) => Ok(Some(false)),
            (None, _) => Ok(None),
        }
    }

    /// Whether names came or went in a directory of the original by partial commits alone.
    pub(in crate::strategy) fn is_still(&self, path: &ResourcePath, now: &Meta) -> bool {
        self.dirs.get(path) == Some(&Some(now.mtime))
    }

    /// Whether the original has something at a path by a partial commit; `None` where none tells.
    pub(in crate::strategy) fn was_there(&self, path: &ResourcePath) -> Option<bool> {
        self.paths.get(path).map(Option::is_some)
    }
}
