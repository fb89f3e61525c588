//! Undoes a tree commit, from wherever it stopped, and finds what would be lost by it.
//!
//! Which steps were made is found out once, by looking, and noted in the area before the first of
//! them is taken back. So the process that goes on after a crash knows what we moved, and does not take
//! another process's change for ours, nor ours for another process's.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::apply::{Touched, apply_metadata, is_as_left, open_parent, retime};
use super::intent::{IntentEntry, IntentRecords, RenameStep};
use super::stage::staged_path;
use super::undo_choices::{Recorded, taken_back};
use super::{DirUpdate, KeptLink, TreeIntent, plain_databases, sort, stat};
use crate::failpoints;
use crate::fs::atomic_file;
use crate::fs::walk::look_at_all;
use crate::fs::{Cause, Dir, Fingerprint, FsError, Meta, MovedEntries, MovedEntry};
use crate::model::text::Location;
use crate::model::{Choice, Conflict, EntryKind, ResourcePath, sqlite_files};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{Intent, PathSample, RollbackReport};

/// Where the steps that were made are noted, in the area.
pub(super) const MADE: &[u8] = b"made";

/// What is told of an entry that the commit did not put there.
pub(super) const ADDED: &str = "added there since";

/// What is told of an old version that is not in the area.
const GONE: &str = "its old version is gone";

/// And of one that is not what it was.
const ALTERED: &str = "its old version was changed since the commit, where it was kept for undo";

/// Where in a directory a path of the original is to be found.
pub(super) type PathShift<'a> = &'a dyn Fn(&ResourcePath) -> ResourcePath;

/// Where the original moved on since the commit, or where what undo needs is gone.
pub(in crate::strategy) fn check(intent: &Intent, moved: &MovedEntries) -> Result<Vec<Conflict>> {
    let gone = |area: &Location| {
        let what = format!("what was kept for undo is gone from '{area}'");
        Conflict::of(ResourcePath::root(), &what).choosing(Choice::Neither)
    };
    let tree = match TreeIntent::read(intent) {
        Err(StrategyError::Fs(error)) if error.is_absent() => {
            return Ok(vec![gone(&super::area_of(intent)?)]);
        }
        tree => tree?,
    };
    let records = &tree.records;
    if records.is_empty() {
        return Ok(Vec::new());
    }
    let original = tree.original.open()?.keeping();
    let stage = match tree.stage() {
        Err(StrategyError::Fs(error)) if error.is_absent() => None,
        stage => Some(stage?),
    };
    let linked: HashSet<ResourcePath> = records.links().map(|link| link.path).collect();
    let removed: HashSet<ResourcePath> = records
        .steps()
        .filter_map(|step| step.copy.map(|_| step.top.path))
        .collect();
    let look = |original: &mut Dir, step: RenameStep| -> Result<Vec<Conflict>> {
        let mut found = Vec::new();
        let only_theirs = |path: &ResourcePath, what: &str, theirs| {
            Conflict::with(path.clone(), what, theirs).choosing(Choice::Theirs)
        };
        let here: (&Dir, PathShift<'_>) = (original, &ResourcePath::clone);
        let exact = tree.finished.then_some(moved);
        let of = (records, &step);
        let is_new = step.top.old.is_none();
        foreign(of, here, &linked, exact, &mut |path, what, now| {
            // What others put into a directory that the commit made stays, and the directory with it; what the commit
            // added and others deleted is taken back already.
            let (made, own) = (now.is_none(), path == step.top.path);
            let facts = now.map(Meta::facts);
            if !is_new && !own && what == ADDED {
                // It can neither stay without the directory nor go back.
                let what = "added there since, in a directory that the commit put in the place of something else";
                found.push(Conflict::with(path, what, facts).choosing(Choice::Neither));
            } else if !is_new || (!made && (own || what != ADDED)) {
                found.push(Conflict::with(path, what, facts));
            }
        })?;
        for (path, what, now) in databases(original, records, &step)? {
            // In the place of what was found before: that could be overruled.
            found.retain(|one| one.path != path);
            found.push(only_theirs(&path, &what, now.as_ref().map(Meta::facts)));
        }
        let path = &step.top.path;
        let above = path.split().map(|(parent, _)| parent);
        let went = above.is_some_and(|parent| removed.contains(&parent));
        if let Err(error) = original.parent(path)
            && !went
        {
            match error.is_absent() || error.leaves() {
                true if is_new => {}
                true => found.push(only_theirs(
                    path,
                    "its directory was deleted there since",
                    None,
                )),
                false => return Err(error.into()),
            }
        }
        match &stage {
            Some(stage) => altered(&tree, &step, stage, moved, &mut |path, what| {
                found.push(only_theirs(&path, what, None));
            })?,
            None if step.top.old.is_some() => found.push(only_theirs(path, GONE, None)),
            None => {}
        }
        Ok(found)
    };
    let mut conflicts = Vec::new();
    let begin = || original.again().keeping();
    let done = match Dir::open(tree.area.as_path()) {
        Ok(area) => taken_back(&area)?,
        Err(_) => HashSet::new(),
    };
    let steps = records.steps().filter(|step| !done.contains(&step.slot));
    look_at_all(begin, steps, look, |found| {
        conflicts.extend(found);
        Ok(())
    })?;
    for link in records.links() {
        let now = stat(&original, &link.path)?;
        if !now.is_some_and(|now| link.file.is(&now)) {
            let theirs = now.as_ref().map(Meta::facts);
            let replaced = Conflict::with(link.path, "replaced there since", theirs);
            conflicts.push(replaced.choosing(Choice::Theirs));
        }
    }
    // The directory that holds a file is not part of it.
    let own = |update: &DirUpdate| tree.original.only().is_none() && !update.is_file();
    for dressing in records.directories().filter(own) {
        let Some(now) = stat(&original, &dressing.path)? else {
            continue;
        };
        if !is_as_left(&original, &dressing, &now)? {
            let what = "its mode, owner or attributes were changed there since";
            let changed = Conflict::with(dressing.path, what, Some(now.facts()));
            conflicts.push(changed.choosing(Choice::Theirs));
        }
    }
    if stage.is_none() {
        conflicts.push(gone(&tree.area));
    }
    sort(&mut conflicts);
    Ok(conflicts)
}

/// Tells which of the old versions that a step put into the area are not what they were: what was written there since is not
/// restored as if it had been the original's.
fn altered(
    tree: &TreeIntent,
    step: &RenameStep,
    stage: &Dir,
    moved: &MovedEntries,
    tell: &mut dyn FnMut(ResourcePath, &str),
) -> Result<()> {
    let top = step.top.path.as_bytes().len();
    let below = tree.records.below(step);
    let whole = IntentEntry {
        old: step.kept_version(),
        ..step.top.clone()
    };
    for entry in std::iter::once(whole).chain(below) {
        let Some(old) = entry.old else { continue };
        let at = match entry.path == step.top.path {
            true => ResourcePath::root().join(&step.kept()),
            false => staged_path(step.slot, &entry.path.as_bytes()[top..]),
        };
        let now = stat(stage, &at)?.filter(|now| old.is(now));
        // No program can set a ctime, and what we move ourselves is known. What came before the commit was over is the original's.
        let later = |now: &Meta| {
            let ctime = moved.settled(now.ino, now.ctime);
            tree.kept_until.is_some_and(|until| ctime > until)
        };
        match now {
            None => tell(entry.path, GONE),
            Some(now) if later(&now) => {
                let kept = stage.path().join(OsStr::from_bytes(at.as_bytes()));
                let kept = Location::from(kept);
                let next = "a program that kept it open may still write there (`fuser` names it); end it, and copy from there what you need";
                tell(entry.path, &format!("{ALTERED} ('{kept}'): {next}"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// What belongs to SQLite databases at the place of a step, and cannot be replaced.
fn databases(
    original: &Dir,
    records: &IntentRecords,
    step: &RenameStep,
) -> Result<Vec<(ResourcePath, String, Option<Meta>)>> {
    let mut found = Vec::new();
    for entry in std::iter::once(step.top.clone()).chain(records.below(step)) {
        let mut versions = [&entry.new, &entry.old].into_iter().flatten();
        let may_be = versions.any(|one| sqlite_files::may_be_database(one.size));
        if !may_be && sqlite_files::database_of(&entry.path).is_none() {
            continue;
        }
        let (dir, name) = match original.parent(&entry.path) {
            Err(error) if error.is_absent() || error.leaves() => continue,
            place => place?,
        };
        let now = dir.stat(name)?;
        let is_known = |path: &ResourcePath| {
            let is_it = |entry: IntentEntry| entry.path == *path;
            let mut steps = records.steps();
            steps.any(|step| records.below(&step).any(is_it) || is_it(step.top))
        };
        let database = sqlite_files::database_of(&entry.path);
        let forbids = plain_databases::forbids(
            &dir,
            &entry.path,
            (now.as_ref(), entry.old.is_some()),
            |_| Ok(false),
            |path, _, there| {
                let Some(there) = there.filter(|_| !is_known(path)) else {
                    return Ok(false);
                };
                // A log that was released without its database is newer than that, as long as nobody brought it in.
                let is_older = now.is_some_and(|log| there.mtime <= log.mtime);
                Ok(database.as_ref() != Some(path) || !is_older)
            },
        )?;
        if let Some(what) = forbids {
            found.push((entry.path, what, now));
        }
    }
    Ok(found)
}

/// Tells everything at the place of a step that the commit did not put there. `exact` compares to
/// the ctime, but for what we moved ourselves.
pub(super) fn foreign(
    (records, step): (&IntentRecords, &RenameStep),
    (root, shift): (&Dir, PathShift<'_>),
    linked: &HashSet<ResourcePath>,
    exact: Option<&MovedEntries>,
    tell: &mut dyn FnMut(ResourcePath, &'static str, Option<&Meta>),
) -> Result<()> {
    let top = &step.top;
    if top.new.is_none() {
        if linked.contains(&top.path) {
            return Ok(());
        }
        if let Some(now) = stat(root, &shift(&top.path))? {
            tell(top.path.clone(), ADDED, Some(&now));
        }
        return Ok(());
    }
    let below = || records.below(step).filter(|entry| entry.new.is_some());
    let known: HashSet<ResourcePath> = below().map(|entry| entry.path).collect();
    for entry in std::iter::once(top.clone()).chain(below()) {
        let (path, Some(seen)) = (&entry.path, &entry.new) else {
            continue;
        };
        let now = stat(root, &shift(path))?;
        let same = |now: &Meta| match exact {
            Some(moved) => {
                let same = moved.leads(now.ino, now.ctime, seen.ctime);
                let ctime = if same { seen.ctime } else { now.ctime };
                seen.is_untouched(&Meta { ctime, ..*now })
            }
            // While the commit is under way a directory may lack its metadata.
            None => seen.looks_the_same(now) || now.is_dir(),
        };
        let what = match &now {
            None => Some("deleted there since"),
            Some(now) if !seen.is(now) => Some("replaced there since"),
            Some(now) if !same(now) => Some("changed there since"),
            Some(_) => None,
        };
        if let Some(what) = what {
            tell(path.clone(), what, now.as_ref());
        }
        if !now.is_some_and(|now| now.is_dir() && seen.is(&now)) {
            continue;
        }
        for entry in root.dir(&shift(path))?.entries()? {
            let path = path.join(&entry.name);
            if !known.contains(&path) && !linked.contains(&path) {
                tell(path, ADDED, Some(&entry.meta));
            }
        }
    }
    Ok(())
}

/// Takes back every step that was made; also says what was moved back.
pub(in crate::strategy) fn undo(intent: &Intent) -> Result<(RollbackReport, Vec<MovedEntry>)> {
    let tree = TreeIntent::read(intent)?;
    let records = &tree.records;
    if records.is_empty() {
        return Ok(Default::default());
    }
    let mut undoing = UndoJob::begin(&tree)?;
    let left = |path: &ResourcePath| undoing.choices.leave.contains(path);
    let links: Vec<KeptLink> = records.links().filter(|link| !left(&link.path)).collect();
    for link in links.iter().rev() {
        let taken = undoing.unlink(link);
        undoing.note(taken);
    }
    let mut touched = Touched::default();
    let mut parents: HashSet<ResourcePath> = links
        .iter()
        .filter_map(|link| link.path.split().map(|(parent, _)| parent))
        .collect();
    let left = undoing.choices.leave.clone();
    let done = undoing.choices.done.clone();
    let choices = Recorded::read(&Dir::open(tree.area.as_path())?)?;
    let stays = |step: &RenameStep| choices.leaves(records, step) || done.contains(&step.slot);
    for step in records.steps().rev().filter(|step| !stays(step)) {
        // One that cannot be taken back does not stop the others (rule C4).
        let taken = undoing.take_back(&step);
        undoing.note(taken);
        if undoing.made.contains(&step.slot) {
            parents.extend(step.top.path.split().map(|(parent, _)| parent));
            let added = touched.add(&undoing.original, &step.top.path);
            undoing.note(added);
        }
    }
    for step in records.steps().rev().filter(|step| step.copy.is_some()) {
        let retimed = undoing.retime(&step, &parents);
        undoing.note(retimed);
    }
    let still = touched.check(&undoing.original, |_| Ok(()));
    undoing.note(still);
    for dressing in records.directories() {
        if !failpoints::bug("undo-forgets-directories") && !left.contains(&dressing.path) {
            let dressed = undoing.revert_metadata(&dressing, &parents);
            undoing.note(dressed);
        }
    }
    if let Some(error) = undoing.failure {
        return Err(error);
    }
    // Not the directories one by one: the sync of one of them may be what failed before.
    undoing.original.sync_file_system()?;
    undoing.settle()?;
    undoing.done.paths = paths(records);
    Ok((undoing.done, undoing.moved))
}

pub(super) struct UndoJob<'a> {
    pub(super) tree: &'a TreeIntent,
    pub(super) original: Dir,
    pub(super) stage: Dir,
    pub(super) linked: HashSet<ResourcePath>,
    pub(super) choices: Recorded,
    /// The slots of the steps that were made when the undo began.
    made: HashSet<u32>,
    /// Those of new directories that are taken back entry by entry, since something in them stays.
    apart: HashSet<u32>,
    /// Directories in which another process changed names since the commit.
    theirs: HashSet<ResourcePath>,
    pub(super) done: RollbackReport,
    /// What was moved away and back: others must not take it for a change.
    moved: Vec<MovedEntry>,
    failure: Option<StrategyError>,
}

impl<'a> UndoJob<'a> {
    fn begin(tree: &'a TreeIntent) -> Result<Self> {
        let area = Dir::open(tree.area.as_path())?;
        let (original, stage) = (tree.original.open()?.keeping(), tree.stage()?.keeping());
        let mut undoing = Self {
            tree,
            original,
            stage,
            linked: tree.records.links().map(|link| link.path).collect(),
            choices: Recorded::read(&area)?,
            made: HashSet::new(),
            apart: HashSet::new(),
            theirs: HashSet::new(),
            done: RollbackReport::default(),
            moved: Vec::new(),
            failure: None,
        };
        let found = match read_found(&area)? {
            Some(found) => found,
            None => {
                let made = undoing.look()?;
                let found = UndoScan {
                    apart: undoing.with_others(&made)?,
                    made,
                    theirs: undoing.moved_by_others()?,
                };
                write_found(&area, &found)?;
                found
            }
        };
        (undoing.made, undoing.theirs, undoing.apart) = (found.made, found.theirs, found.apart);
        Ok(undoing)
    }

    fn note(&mut self, answer: Result<()>) {
        if let Err(error) = answer {
            self.failure.get_or_insert(error);
        }
    }

    /// Both places of a step.
    fn places(&self, original: &Dir, step: &RenameStep) -> Result<(Option<Meta>, Option<Meta>)> {
        Ok((
            stat(original, &step.top.path)?,
            self.stage.stat(&step.kept())?,
        ))
    }

    /// Whether a step was made; what others put in the place of something new is taken where that was chosen.
    fn goes(&self, step: &RenameStep, there: &Option<Meta>, staged: &Option<Meta>) -> bool {
        let chosen = step.top.old.is_none() && self.choices.take.contains(&step.top.path);
        is_made(step, there, staged) || (chosen && there.is_some() && staged.is_none())
    }

    fn look(&self) -> Result<HashSet<u32>> {
        let begin = || self.original.again().keeping();
        let look = |original: &mut Dir, step: RenameStep| -> Result<_> {
            let (there, staged) = self.places(original, &step)?;
            Ok(self.goes(&step, &there, &staged).then_some(step.slot))
        };
        let mut made = HashSet::new();
        let stays = |step: &RenameStep| {
            let choices = &self.choices;
            choices.done.contains(&step.slot) || choices.leaves(&self.tree.records, step)
        };
        let steps = self.tree.records.steps();
        let steps = steps.filter(|step| !stays(step));
        look_at_all(begin, steps, look, |slot| {
            made.extend(slot);
            Ok(())
        })?;
        Ok(made)
    }

    /// The directories whose time is not the one that the commit left.
    fn moved_by_others(&self) -> Result<HashSet<ResourcePath>> {
        // A directory in which something stays as it is now keeps its time.
        let left = self.choices.leave.iter().filter_map(ResourcePath::split);
        let mut theirs: HashSet<ResourcePath> = left.map(|(parent, _)| parent).collect();
        if !self.tree.finished {
            return Ok(theirs);
        }
        for dressing in self.tree.records.directories() {
            let now = stat(&self.original, &dressing.path)?;
            if now.is_some_and(|now| dressing.after.mtime != Some(now.mtime)) {
                theirs.insert(dressing.path);
            }
        }
        Ok(theirs)
    }

    fn unlink(&self, link: &KeptLink) -> Result<()> {
        let Some((dir, name)) = open_parent(&self.original, &link.path)? else {
            return Ok(());
        };
        let ours = |now: &Meta| link.file.is(now) && now.nlink > 1;
        match dir.stat(name)? {
            Some(now) if ours(&now) => Ok(dir.unlink(name)?),
            _ => Ok(()),
        }
    }

    /// Takes one step back, if it was made, and names what is not ours in its slot. Another process may put
    /// or remove something there in between; then one looks again.
    fn take_back(&mut self, step: &RenameStep) -> Result<()> {
        if self.apart.contains(&step.slot) {
            return self.take_apart(step);
        }
        if self.choices.merged.contains_key(&step.slot) {
            return self.put_merged(step);
        }
        for _ in 0..8 {
            match self.try_back(step) {
                Err(StrategyError::Fs(error))
                    if error.is(Errno::EXIST) || error.is(Errno::NOENT) => {}
                answer => return answer,
            }
        }
        self.try_back(step)
    }

    fn try_back(&mut self, step: &RenameStep) -> Result<()> {
        let (path, slot) = (&step.top.path, step.slot());
        let (there, staged) = self.places(&self.original, step)?;
        if self.goes(step, &there, &staged) {
            let Some((dir, name)) = open_parent(&self.original, path)? else {
                return Err(gone(&self.original, path).into());
            };
            match (&there, has_old(step, &staged)) {
                _ if step.copy.is_some() => {
                    if there.is_some() {
                        dir.rename_new(name, &self.stage, &slot)?;
                    }
                    self.stage.rename_new(&step.kept(), &dir, name)?;
                }
                (Some(_), true) => self.stage.exchange(&slot, &dir, name)?,
                (None, true) => self.stage.rename_new(&slot, &dir, name)?,
                (Some(_), false) => dir.rename_new(name, &self.stage, &slot)?,
                (None, false) => {}
            }
        }
        if !self.made.contains(&step.slot) {
            return Ok(());
        }
        let is_dir = |old: &&Fingerprint| old.kind == EntryKind::Directory;
        if let Some(old) = step.top.old.as_ref().filter(is_dir)
            && stat(&self.original, path)?.is_some_and(|now| old.is(&now))
        {
            let (dir, name) = self.original.parent(path)?;
            retime(&dir, name, old)?;
        }
        self.kept(step)
    }

    /// Gives a directory that was made again, or emptied and filled again, the time that it had.
    fn retime(&self, step: &RenameStep, parents: &HashSet<ResourcePath>) -> Result<()> {
        let path = &step.top.path;
        let (Some((dir, name)), Some(copy)) = (open_parent(&self.original, path)?, &step.copy)
        else {
            return Ok(());
        };
        let emptied = |now: &Meta| {
            let old = step.top.old.filter(|_| parents.contains(path));
            old.is_some_and(|old| old.is(now))
        };
        match dir.stat(name)? {
            Some(now) if copy.is(&now) || emptied(&now) => retime(&dir, name, copy),
            _ => Ok(()),
        }
    }

    /// Names what lies in the slot of a step now and is not ours: another process wrote it into the
    /// original while the commit stood.
    fn kept(&mut self, step: &RenameStep) -> Result<()> {
        let top = step.top.path.as_bytes().len();
        let shift = |path: &ResourcePath| staged_path(step.slot, &path.as_bytes()[top..]);
        let (stage, kept) = (&self.stage, &mut self.done.kept);
        let taken = &self.choices.take;
        let root: (&Dir, PathShift<'_>) = (stage, &shift);
        let of = (&self.tree.records, step);
        foreign(of, root, &self.linked, None, &mut |path, _, now| {
            if now.is_some() && !taken.contains(&path) {
                let at = Location::from(stage.locate(&shift(&path)));
                kept.push((path, at));
            }
        })
    }

    /// Gives a directory its looks back, if it is still the one. In `parents` something was taken back.
    fn revert_metadata(&self, dressing: &DirUpdate, parents: &HashSet<ResourcePath>) -> Result<()> {
        // A directory that came with the commit is gone again.
        let Some(seen) = &dressing.seen else {
            return Ok(());
        };
        let path = &dressing.path;
        let Some(now) = stat(&self.original, path)?.filter(|now| seen.is(now)) else {
            return Ok(());
        };
        let moved = parents.contains(path) || dressing.after.mtime == Some(now.mtime);
        let mut looks = dressing.before.clone();
        let holder = self.tree.original.only().is_some();
        if !moved || holder || self.theirs.contains(path) {
            looks.mtime = None;
        }
        apply_metadata(&self.original, dressing, &looks)
    }

    /// Notes the new ctimes of what we moved: no process changed it.
    fn settle(&mut self) -> Result<()> {
        let records = &self.tree.records;
        let made = records
            .steps()
            .filter(|step| self.made.contains(&step.slot));
        let olds = made.filter_map(|step| Some((step.top.path, step.top.old?)));
        let links = records.links().map(|link| (link.to, link.file));
        let directories = records.directories().filter(|_| !self.made.is_empty());
        let directories = directories.filter_map(|update| Some((update.path, update.seen?)));
        let look = |original: &mut Dir, (path, seen): (ResourcePath, Fingerprint)| {
            let now = stat(original, &path)?;
            let same = |now: &Meta| seen.looks_the_same(now) && now.ctime != seen.ctime;
            Ok(now.filter(same).map(|now| MovedEntry {
                ino: now.ino,
                before: seen.ctime,
                after: now.ctime,
            }))
        };
        let (begin, moved) = (|| self.original.again().keeping(), &mut self.moved);
        look_at_all(begin, olds.chain(links).chain(directories), look, |one| {
            moved.extend(one);
            Ok(())
        })
    }
}

/// Every path that is changed, each once.
fn paths(records: &IntentRecords) -> PathSample {
    let mut paths = PathSample::default();
    let links: HashSet<ResourcePath> = records.links().map(|link| link.path).collect();
    for step in records.steps() {
        let below = records.below(&step);
        for entry in std::iter::once(step.top.clone()).chain(below) {
            if !links.contains(&entry.path) {
                paths.add(&entry.path);
            }
        }
    }
    links.iter().for_each(|path| paths.add(path));
    for dressing in records.directories() {
        let (before, after) = (&dressing.before, &dressing.after);
        let looks = (before.mode, before.owner) != (after.mode, after.owner);
        if looks || before.xattrs != after.xattrs {
            paths.add(&dressing.path);
        }
    }
    paths
}

/// Whether a step is made: the old version lies in the stage, or the new one in its place.
fn is_made(step: &RenameStep, there: &Option<Meta>, staged: &Option<Meta>) -> bool {
    let is = |seen: &Option<Fingerprint>, now: &Option<Meta>| match (seen, now) {
        (Some(seen), Some(now)) => seen.is(now),
        _ => false,
    };
    let (old, new) = (&step.top.old, &step.top.new);
    if step.copy.is_some() {
        // It waits there from the beginning.
        return is(&step.copy, staged) && !is(old, there);
    }
    has_old(step, staged) || (is(new, there) && !is(new, staged))
}

/// Whether the old version of a step lies in its slot. One without a number is what is not the new one.
fn has_old(step: &RenameStep, staged: &Option<Meta>) -> bool {
    let (Some(old), Some(staged)) = (&step.top.old, staged) else {
        return false;
    };
    match old.ino {
        0 => !step.top.new.is_some_and(|new| new.is(staged)),
        _ => old.is(staged),
    }
}

/// What was found when an undo began.
#[derive(Serialize, Deserialize)]
pub(super) struct UndoScan {
    /// The slots of the steps that the undo takes back, but for those that it leaves.
    pub(super) made: HashSet<u32>,
    theirs: HashSet<ResourcePath>,
    #[serde(default)]
    pub(super) apart: HashSet<u32>,
}

pub(super) fn read_found(area: &Dir) -> Result<Option<UndoScan>> {
    match area.read(MADE) {
        Err(error) if error.is_absent() => Ok(None),
        // One that cannot be understood tells nothing; looking tells what is still to be done.
        text => Ok(serde_json::from_slice(&text?).ok()),
    }
}

fn write_found(area: &Dir, found: &UndoScan) -> Result<()> {
    let text = serde_json::to_vec(found).expect("numbers and paths are JSON");
    Ok(atomic_file::create(area, MADE, &text)?)
}

fn gone(original: &Dir, path: &ResourcePath) -> FsError {
    let cause = Cause::Damaged("the directory it belongs in is gone");
    original.error("put back", path.as_bytes(), cause)
}
