//! Applies the renames of a tree commit. Can be repeated with the same result.

use std::collections::{BTreeMap, HashMap, HashSet};

use rustix::io::Errno;

use super::intent::{IntentRecords, RenameStep};
use super::stage::staged_path;
use super::{DirMetadata, DirUpdate, KeptLink, TreeIntent, stat};
use crate::event::Observer;
use crate::failpoints;
use crate::fs::{Cause, Dir, EntryHandle, Fingerprint, Meta, xattr};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::Intent;
use crate::strategy::error::{Result, StrategyError};

/// Makes every step that is not made yet, and then makes them durable.
pub(in crate::strategy) fn apply(intent: &Intent, observer: &dyn Observer) -> Result<()> {
    apply_and(intent, observer, true)
}

/// Makes every step that is not made yet, and makes them durable if they are to be `synced` here.
pub(in crate::strategy) fn apply_and(
    intent: &Intent,
    observer: &dyn Observer,
    synced: bool,
) -> Result<()> {
    let intent = TreeIntent::read(intent)?;
    let records = &intent.records;
    if records.is_empty() {
        return Ok(());
    }
    let original = intent.original.open()?.keeping();
    let stage = intent.stage()?.keeping();
    let shared = shared(records);
    let links: HashMap<ResourcePath, KeptLink> = records
        .links()
        .map(|link| (link.path.clone(), link))
        .collect();
    let mut touched = Touched::default();
    for step in records.steps() {
        if observer.is_cancelled() {
            let cause = Cause::Cancelled;
            let path = step.top.path.as_bytes();
            return Err(original.error("commit", path, cause).into());
        }
        let making = RunningStep {
            step: &step,
            records,
            shared: &shared,
            original: &original,
            stage: &stage,
        };
        making.make(links.get(&step.top.path))?;
        if step.copy.is_some() {
            touched.0.remove(&step.top.path);
        }
        touched.add(&original, &step.top.path)?;
        observer.copied(1, 0);
    }
    for link in records.links() {
        make_link(&link, &original)?;
        touched.add(&original, &link.path)?;
    }
    for dressing in records.directories() {
        apply_metadata(&original, &dressing, &dressing.after)?;
        if !dressing.is_file() {
            touched.0.entry(dressing.path).or_default();
        }
    }
    if failpoints::bug("no-directory-sync") {
        return Ok(());
    }
    if synced {
        stage.sync()?;
    }
    touched.check(&original, |dir| match synced.then(|| dir.sync()) {
        Some(Err(_)) if failpoints::bug("sync-twice") => dir.sync(),
        answer => answer.unwrap_or(Ok(())),
    })
}

/// The directories in which names are changed, and what each was then. One is kept open while names in it are changed;
/// whether it is still in its place is looked at in the end.
#[derive(Default)]
pub(super) struct Touched(BTreeMap<ResourcePath, Option<Fingerprint>>);

impl Touched {
    /// Adds the directory of a path at which something was changed.
    pub(super) fn add(&mut self, original: &Dir, path: &ResourcePath) -> Result<()> {
        let Some((parent, _)) = path.split() else {
            return Ok(());
        };
        if self.0.get(&parent).is_none_or(Option::is_none) {
            let Some((dir, _)) = open_parent(original, path)? else {
                return Ok(());
            };
            self.0.insert(parent, Some(Fingerprint::from(&dir.meta()?)));
        }
        Ok(())
    }

    /// Refuses what another process put something else in the place of, and does something with each.
    pub(super) fn check(
        &self,
        original: &Dir,
        mut each: impl FnMut(&Dir) -> crate::fs::Result<()>,
    ) -> Result<()> {
        for (path, seen) in &self.0 {
            let dir = original.dir(path)?;
            if let Some(seen) = seen
                && !seen.is(&dir.meta()?)
            {
                return Err(moved(path, "another directory was put in its place"));
            }
            each(&dir)?;
        }
        Ok(())
    }
}

/// Files that go under more than one name: each name that is moved moves the ctime for the others.
fn shared(records: &IntentRecords) -> HashSet<u64> {
    let (mut once, mut twice) = (HashSet::new(), HashSet::new());
    let mut add = |seen: Option<Fingerprint>| {
        let file = seen.filter(|seen| seen.kind != EntryKind::Directory);
        if let Some(seen) = file
            && !once.insert(seen.ino)
        {
            twice.insert(seen.ino);
        }
    };
    for step in records.steps() {
        add(step.top.old);
        records.below(&step).for_each(|entry| add(entry.old));
    }
    twice
}

/// Whether an old version is what it was looked at as.
fn is_as_seen(old: &Fingerprint, now: &Meta, shared: &HashSet<u64>) -> bool {
    match shared.contains(&old.ino) {
        true => old.looks_the_same(now),
        false => old.is_untouched(now),
    }
}

fn moved(path: &ResourcePath, what: &'static str) -> StrategyError {
    StrategyError::Moved {
        path: path.clone(),
        what: what.to_owned(),
    }
}

/// The directory of a path, and the last name of that; `None` where it is gone.
pub(super) fn open_parent<'p>(
    original: &Dir,
    path: &'p ResourcePath,
) -> Result<Option<(Dir, &'p [u8])>> {
    match original.parent(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() || error.leaves() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// One step on its way.
struct RunningStep<'a> {
    step: &'a RenameStep,
    records: &'a IntentRecords,
    shared: &'a HashSet<u64>,
    original: &'a Dir,
    stage: &'a Dir,
}

impl RunningStep<'_> {
    fn make(&self, link: Option<&KeptLink>) -> Result<()> {
        let Self {
            step,
            original,
            stage,
            ..
        } = *self;
        let (path, slot) = (&step.top.path, step.slot());
        let Some((dir, name)) = open_parent(original, path)? else {
            return match step.top.new {
                Some(_) => Err(moved(path, "its directory is gone")),
                // With what lay in it.
                None => Ok(()),
            };
        };
        let mut there = dir.stat(name)?;
        let staged = stage.stat(&slot)?;
        let Some(new) = &step.top.new else {
            // Another name for a file of the original takes its place, or has taken it already.
            let there = there.filter(|there| !link.is_some_and(|link| link.file.is(there)));
            return self.take((&dir, name), there, &slot, staged);
        };
        if there.is_some_and(|there| new.is(&there))
            && !staged.is_some_and(|staged| new.is(&staged))
        {
            return retime(&dir, name, new);
        }
        if !staged.is_some_and(|staged| new.looks_the_same(&staged)) {
            return Err(moved(path, "its new version was changed or lost"));
        }
        let mut old = step.top.old.as_ref();
        if let (Some(_), Some(seen)) = (&step.copy, old) {
            if let Some(now) = there.filter(|now| seen.is(now)) {
                self.remove((&dir, name), seen, &now)?;
                there = None;
            }
            old = old.filter(|_| there.is_some());
        }
        match (old, there) {
            (None, None) => match stage.rename_new(&slot, &dir, name) {
                Err(error) if error.is(Errno::EXIST) => {
                    Err(moved(path, "another program put something there"))
                }
                answer => {
                    answer?;
                    retime(&dir, name, new)
                }
            },
            (None, Some(_)) => Err(moved(path, "another program put something there")),
            (Some(_), None) => Err(moved(path, "another program deleted it")),
            (Some(old), Some(there)) if !self.is_as_planned(old, &there)? => {
                Err(moved(path, "another program changed it"))
            }
            (Some(old), Some(_)) => {
                if failpoints::bug("no-exchange") {
                    let aside = [&slot[..], b"-old"].concat();
                    dir.rename(name, stage, &aside)?;
                    stage.rename(&slot, &dir, name)?;
                    return Ok(stage.rename(&aside, stage, &slot)?);
                }
                if failpoints::refuses(original.path(), name) {
                    return Err(dir.error("replace", name, Cause::Os(Errno::PERM)).into());
                }
                match stage.exchange(&slot, &dir, name) {
                    Err(_) if failpoints::bug("rename-error-dropped") => return Ok(()),
                    answer => answer?,
                }
                // What came out must be what was looked at: another process may have been quicker.
                if self.came_out(old)? {
                    return retime(&dir, name, new);
                }
                stage.exchange(&slot, &dir, name)?;
                Err(moved(path, "another program changed it"))
            }
        }
    }

    fn take(
        &self,
        (dir, name): (&Dir, &[u8]),
        there: Option<Meta>,
        slot: &[u8],
        staged: Option<Meta>,
    ) -> Result<()> {
        let (path, stage) = (&self.step.top.path, self.stage);
        let Some(old) = &self.step.top.old else {
            return Ok(());
        };
        match there {
            // Done, or another process deleted it too.
            None => Ok(()),
            Some(_) if staged.is_some_and(|staged| old.is(&staged)) => {
                Err(moved(path, "another program put something there"))
            }
            Some(there) if !self.is_as_planned(old, &there)? => {
                Err(moved(path, "another program changed it"))
            }
            Some(there) if self.step.copy.is_some() => self.remove((dir, name), old, &there),
            Some(_) => {
                dir.rename_new(name, stage, slot)?;
                if self.came_out(old)? {
                    return Ok(());
                }
                stage.rename_new(slot, dir, name)?;
                Err(moved(path, "another program changed it"))
            }
        }
    }

    /// Removes a directory of which a copy is kept, and which earlier steps emptied.
    fn remove(&self, (dir, name): (&Dir, &[u8]), old: &Fingerprint, there: &Meta) -> Result<()> {
        let path = &self.step.top.path;
        if !self.is_as_planned(old, there)? {
            return Err(moved(path, "another program changed it"));
        }
        match dir.remove_dir(name) {
            Err(error) if error.is(Errno::NOTEMPTY) => {
                Err(moved(path, "another program put something into it"))
            }
            answer => Ok(answer?),
        }
    }

    /// Whether the old version in its place, with everything in it, is what it was looked at as.
    fn is_as_planned(&self, old: &Fingerprint, there: &Meta) -> Result<bool> {
        Ok(is_as_seen(old, there, self.shared)
            && self.is_below(self.original, &ResourcePath::clone)?)
    }

    /// Whether what the step moved into the stage is what it was looked at as.
    fn came_out(&self, old: &Fingerprint) -> Result<bool> {
        let step = self.step;
        let out = self.stage.stat(&step.slot())?;
        let top = step.top.path.as_bytes().len();
        let shift = |path: &ResourcePath| staged_path(step.slot, &path.as_bytes()[top..]);
        Ok(out.is_some_and(|out| old.looks_the_same(&out)) && self.is_below(self.stage, &shift)?)
    }

    /// Whether everything in a directory that goes is what it was: nothing was put into it, and nothing
    /// in it was changed.
    fn is_below(&self, root: &Dir, shift: &dyn Fn(&ResourcePath) -> ResourcePath) -> Result<bool> {
        let step = self.step;
        let own = |path: &ResourcePath, seen: &Fingerprint, deep: bool| -> Result<bool> {
            let Some(now) = stat(root, &shift(path))? else {
                return Ok(false);
            };
            let names = seen.kind != EntryKind::Directory || seen.mtime == now.mtime;
            Ok(names && (!deep || is_as_seen(seen, &now, self.shared)))
        };
        if step.is_leaf() {
            return Ok(true);
        }
        let mut some = false;
        for entry in self.records.below(step) {
            let Some(seen) = &entry.old else { continue };
            some = true;
            if !own(&entry.path, seen, true)? {
                return Ok(false);
            }
        }
        // Some file systems give a directory a new time when it is moved, so out there its own tells
        // nothing.
        match &step.top.old {
            Some(old) if some && shift(&step.top.path) == step.top.path => {
                own(&step.top.path, old, false)
            }
            _ => Ok(true),
        }
    }
}

/// Gives a directory that was moved its time back: some file systems move it too.
pub(super) fn retime(dir: &Dir, name: &[u8], seen: &Fingerprint) -> Result<()> {
    if seen.kind != EntryKind::Directory {
        return Ok(());
    }
    let fail = |errno| dir.error("set the times of", name, Cause::Os(errno));
    let handle = dir.handle(name)?;
    let now = handle.meta().map_err(fail)?;
    if now.mtime == seen.mtime {
        return Ok(());
    }
    let model = Meta {
        mtime: seen.mtime,
        ..now
    };
    Ok(handle.reapply_metadata(&model).map_err(fail)?)
}

fn make_link(link: &KeptLink, original: &Dir) -> Result<()> {
    let Some(file) = stat(original, &link.to)?.filter(|now| link.file.is(now)) else {
        return Err(moved(&link.to, "another program replaced it"));
    };
    let Some((dir, name)) = open_parent(original, &link.path)? else {
        return Err(moved(&link.path, "its directory is gone"));
    };
    match dir.stat(name)? {
        Some(there) if there.ino == file.ino => Ok(()),
        Some(_) => Err(moved(&link.path, "another program put something there")),
        None => Ok(dir.hard_link(name, original, &link.to)?),
    }
}

/// Gives a directory one of its two looks; done already if it is not there. What another process gave
/// it meanwhile stays.
pub(super) fn apply_metadata(
    original: &Dir,
    dressing: &DirUpdate,
    looks: &DirMetadata,
) -> Result<()> {
    if dressing.is_file() {
        return set_time(original, dressing, looks);
    }
    let path = &dressing.path;
    let dir = match original.dir(path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(()),
        answer => answer?,
    };
    let handle = EntryHandle::of(&dir);
    let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
    let now = dir.meta()?;
    if let Some(wanted) = &looks.xattrs {
        let have = xattr::read(&handle).map_err(fail)?;
        let known = |name: &[u8]| {
            let lists = [&dressing.before.xattrs, &dressing.after.xattrs];
            let mut all = lists.into_iter().flatten().flatten();
            all.any(|(one, _)| one == name)
        };
        let is_kept = |name: &[u8]| wanted.iter().any(|(kept, _)| kept == name);
        let (gone, new): (Vec<_>, Vec<_>) = (
            have.iter()
                .filter(|(name, _)| known(name) && !is_kept(name))
                .collect(),
            wanted.iter().filter(|one| !have.contains(one)).collect(),
        );
        for (name, _) in gone {
            xattr::remove(&handle, name).map_err(fail)?;
        }
        for (name, value) in new {
            xattr::set(&handle, name, value).map_err(fail)?;
        }
    }
    let (before, after) = (&dressing.before, &dressing.after);
    let mode = match [before.mode, after.mode].contains(&now.mode) {
        true => looks.mode,
        false => now.mode,
    };
    let owner = match [before.owner, after.owner].contains(&(now.uid, now.gid)) {
        true => looks.owner,
        false => (now.uid, now.gid),
    };
    let model = Meta {
        mode,
        uid: owner.0,
        gid: owner.1,
        mtime: looks.mtime.unwrap_or(now.mtime),
        ..now
    };
    handle.reapply_metadata(&model).map_err(fail)?;
    Ok(())
}

/// Gives a file one of its two times, unless another process changed it meanwhile.
fn set_time(original: &Dir, update: &DirUpdate, looks: &DirMetadata) -> Result<()> {
    let (Some(seen), Some(mtime)) = (&update.seen, looks.mtime) else {
        return Ok(());
    };
    let Some((dir, name)) = open_parent(original, &update.path)? else {
        return Ok(());
    };
    let ours = [update.before.mtime, update.after.mtime];
    let same =
        |now: &Meta| seen.is(now) && now.size == seen.size && ours.contains(&Some(now.mtime));
    let Some(now) = dir.stat(name)?.filter(same) else {
        return Ok(());
    };
    let fail = |errno| dir.error("set the times of", name, Cause::Os(errno));
    let handle = dir.handle(name)?;
    Ok(handle
        .reapply_metadata(&Meta { mtime, ..now })
        .map_err(fail)?)
}

/// Whether a directory looks as it was left.
pub(super) fn is_as_left(original: &Dir, dressing: &DirUpdate, now: &Meta) -> Result<bool> {
    let after = &dressing.after;
    if (after.mode, after.owner) != (now.mode, (now.uid, now.gid)) {
        return Ok(false);
    }
    let Some(wanted) = &after.xattrs else {
        return Ok(true);
    };
    let dir = original.dir(&dressing.path)?;
    let have = xattr::read(&EntryHandle::of(&dir))
        .map_err(|errno| dir.error("read the attributes of", b"", Cause::Os(errno)))?;
    Ok(have == *wanted)
}
