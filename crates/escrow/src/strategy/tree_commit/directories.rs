//! The directories in which a tree commit renames: whether that is permitted, and their metadata afterwards.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::stage::StageJob;
use super::steps::AffectedDirs;
use super::{DirMetadata, DirUpdate, check_loose, stat};
use crate::fs::{Cause, Dir, Fingerprint, Meta};
use crate::model::{ChangedField, EntryKind, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{tree, tree_digest};

impl StageJob<'_> {
    /// What can be known before: whether the step will be permitted.
    pub(super) fn check_writable(
        &mut self,
        path: &ResourcePath,
        old: Option<&Fingerprint>,
    ) -> Result<()> {
        let Some((parent, _)) = path.split() else {
            return Ok(());
        };
        let known = self.checked.as_ref().filter(|(known, _)| *known == parent);
        let meta = match known {
            Some((_, meta)) => *meta,
            None => {
                let dir = match self.original.dir(&parent) {
                    // Its directory is put there by another step.
                    Err(error) if error.is_absent() || error.leaves() => return Ok(()),
                    dir => dir?,
                };
                let meta = dir.meta()?;
                check_loose(&parent, meta.fixed)?;
                dir.check_writable(b".")?;
                self.checked = Some((parent, meta));
                meta
            }
        };
        if let Some(old) = old {
            check_loose(path, self.fixed.contains(path))?;
            // What names a directory lies in is written in it.
            if old.kind == EntryKind::Directory {
                let (dir, name) = self.original.parent(path)?;
                dir.check_writable(name)?;
            }
        }
        // Only within one file system, and one subvolume of it, can a version be put in its place.
        if meta.dev != self.device {
            return Err(StrategyError::Forbidden {
                path: path.clone(),
                why: "it lies on another file system or subvolume than the rest of the resource"
                    .to_owned(),
            });
        }
        let sticky = 0o1000;
        let theirs = |uid: u32| {
            let me = rustix::process::geteuid();
            !me.is_root() && uid != me.as_raw()
        };
        if let Some(old) = old
            && meta.mode & sticky != 0
            && theirs(old.owner.0)
            && theirs(meta.uid)
        {
            let cause = Cause::Os(Errno::PERM);
            return Err(self
                .original
                .error("replace", path.as_bytes(), cause)
                .into());
        }
        Ok(())
    }

    /// The directories that are dressed when everything else is done.
    pub(super) fn directories(&mut self, around: &AffectedDirs<'_>) -> Result<()> {
        let mut all: BTreeMap<ResourcePath, DirUpdate> = BTreeMap::new();
        for path in &around.parents {
            let Some(now) = stat(self.original, path)? else {
                continue;
            };
            all.insert(path.clone(), self.parent(path, &now)?);
        }
        for link in &self.links {
            let Some((parent, _)) = link.path.split() else {
                continue;
            };
            if all.contains_key(&parent) {
                continue;
            }
            let dressing = match stat(self.original, &parent)? {
                Some(now) => self.parent(&parent, &now)?,
                // One that the commit makes: the link moves its time.
                None => {
                    let dir = self.source.root.dir(&parent)?;
                    made(&parent, DirMetadata::of(&self.looks(&parent, &dir)?))
                }
            };
            all.insert(parent, dressing);
        }
        for (change, seen) in &around.looks {
            let path = &change.path;
            let dir = self.original.dir(path)?;
            check_owner(&dir, seen.owner.0)?;
            check_loose(path, self.fixed.contains(path))?;
            let new = self.source.root.dir(path)?;
            let mut dressing = match all.remove(path) {
                Some(known) => known,
                // As it was looked at, whatever became of it since.
                None => self.parent(path, &seen.meta(dir.meta()?))?,
            };
            let meta = self.looks(path, &new)?;
            let attributes = self.source.root.released(tree::xattrs_of(&new)?);
            self.digest(path, || Ok(tree_digest::directory(&meta, &attributes)))?;
            dressing.after.mode = meta.mode;
            dressing.after.owner = match change.fields.contains(&ChangedField::Owner) {
                true => (meta.uid, meta.gid),
                false => seen.owner,
            };
            if change.fields.contains(&ChangedField::Xattrs) {
                dressing.before.xattrs = Some(tree::xattrs_of(&dir)?);
                dressing.after.xattrs = Some(attributes);
            } else if self.part {
                // What it looks like from now on is the base of what the sandbox changes later.
                dressing.before.xattrs = Some(tree::xattrs_of(&dir)?);
                dressing.after.xattrs.clone_from(&dressing.before.xattrs);
            }
            all.insert(path.clone(), dressing);
        }
        for path in self.names {
            if let Some(update) = self.rewritten(path)? {
                all.insert(path.clone(), update);
            }
        }
        for link in &self.links {
            self.records.link(link).map_err(self.unwritten)?;
        }
        // What lies in a directory comes after it in the order of paths: backwards is deepest first.
        for dressing in all.values().rev() {
            self.records.directory(dressing).map_err(self.unwritten)?;
        }
        Ok(())
    }

    /// A directory in which something is done: its times become the sandbox's, if no other process
    /// moved them, and if everything in it is released.
    fn parent(&self, path: &ResourcePath, now: &Meta) -> Result<DirUpdate> {
        let mut after = DirMetadata::of(now);
        after.mtime = match !self.part && self.source.base.is_still(path, now) {
            true => self.source.root.meta(path)?.map(|meta| meta.mtime),
            false => None,
        };
        let known = self.part && {
            let parent = path.split().map(|(parent, name)| {
                let dir = self.original.dir(&parent);
                dir.map(|dir| (dir, name))
            });
            let parent = parent.transpose()?;
            let at = parent.as_ref().map(|(dir, name)| (dir, *name));
            self.source.base.is_current(path, at, now)?
        };
        Ok(DirUpdate {
            path: path.clone(),
            seen: Some(Fingerprint::from(now)),
            before: DirMetadata::of(now),
            after,
            known,
        })
    }

    /// A file that was written as it was before: it gets the time of that, so that what was built from it is still newer.
    /// Not if another process changed it, or if only a part is released.
    fn rewritten(&self, path: &ResourcePath) -> Result<Option<DirUpdate>> {
        let (now, new) = (stat(self.original, path)?, self.source.root.meta(path)?);
        let (Some(now), Some(new)) = (now, new) else {
            return Ok(None);
        };
        let me = rustix::process::geteuid();
        let may = (me.is_root() || now.uid == me.as_raw()) && !now.fixed;
        let files = [now.kind, new.kind] == [EntryKind::File; 2];
        if self.part || self.source.whole || !may || !files || now.mtime == new.mtime {
            return Ok(None);
        }
        let (dir, name) = self.original.parent(path)?;
        let at = Some((&dir, name));
        if now.size != new.size || !self.source.base.is_current(path, at, &now)? {
            return Ok(None);
        }
        let mut after = DirMetadata::of(&now);
        after.mtime = Some(new.mtime);
        Ok(Some(DirUpdate {
            path: path.clone(),
            seen: Some(Fingerprint::from(&now)),
            before: DirMetadata::of(&now),
            after,
            known: false,
        }))
    }
}

/// A directory that the commit makes.
fn made(path: &ResourcePath, looks: DirMetadata) -> DirUpdate {
    DirUpdate {
        path: path.clone(),
        seen: None,
        before: looks.clone(),
        after: looks,
        known: false,
    }
}

fn check_owner(dir: &Dir, owner: u32) -> Result<()> {
    let me = rustix::process::geteuid();
    match me.is_root() || owner == me.as_raw() {
        true => Ok(()),
        false => Err(dir.error("write in", b"", Cause::Os(Errno::ACCESS)).into()),
    }
}
