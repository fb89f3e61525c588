//! A commit taken back, from wherever it stopped, and what would be lost by it.
//!
//! Which steps were made is found out once, by looking, and noted in the area before the first of
//! them is taken back. So whoever goes on after a crash knows what we moved, and does not take
//! somebody else's change for ours, nor ours for somebody else's.

use std::collections::HashSet;
use std::io::{Read, Write};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::apply::{dress, is_as_left, open_parent, retime, unlock_moving};
use super::stage::staged_path;
use super::{Dressing, Link, Looked, Step, TreeIntent, sort, stat, stat_if_open};
use crate::fs::durable::Draft;
use crate::fs::{Cause, Dir, FsError, Handle, Meta, Moved, Moves, Seen};
use crate::model::text::Location;
use crate::model::{Conflict, Facts, ResourcePath};
use crate::seeded;
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{Intent, RolledBack};

/// Where the steps that were made are noted, in the area.
const MADE: &[u8] = b"made";

/// Where in a directory a path of the original is to be found.
type Shift<'a> = &'a dyn Fn(&ResourcePath) -> ResourcePath;

/// Where the original moved on since the commit, or where what undo needs is gone.
pub(in crate::strategy) fn check(intent: &Intent, moved: &Moves) -> Result<Vec<Conflict>> {
    let tree = TreeIntent::read(intent)?;
    if tree.is_empty() {
        return Ok(Vec::new());
    }
    let original = tree.root()?;
    let stage = match tree.stage() {
        Err(StrategyError::Fs(error)) if error.is_absent() => None,
        stage => Some(stage?),
    };
    let mut conflicts = Vec::new();
    let mut tell = |path: ResourcePath, what: &str, theirs: Option<Facts>| {
        conflicts.push(Conflict {
            path,
            what: what.to_owned(),
            ours: None,
            theirs,
        });
    };
    let linked: HashSet<&ResourcePath> = tree.links.iter().map(|link| &link.path).collect();
    for step in &tree.steps {
        let here: (&Dir, Shift<'_>) = (&original, &ResourcePath::clone);
        let exact = tree.finished.then_some(moved);
        foreign(step, here, &linked, exact, &mut |path, what, now| {
            tell(path, what, now.map(Meta::facts));
        })?;
        if let Err(error) = original.parent(&step.path)
            && !error.is(Errno::ACCESS)
        {
            match error.is_absent() || error.leaves() {
                true => tell(
                    step.path.clone(),
                    "its directory was deleted there since",
                    None,
                ),
                false => return Err(error.into()),
            }
        }
        let kept = match &stage {
            Some(stage) => stage.stat(&step.slot())?,
            None => None,
        };
        if step
            .old
            .is_some_and(|old| !kept.is_some_and(|kept| old.is(&kept)))
        {
            tell(step.path.clone(), "its old version is gone", None);
        }
    }
    for link in &tree.links {
        let now = match stat_if_open(&original, &link.path)? {
            Looked::Is(now) => Some(now),
            Looked::Nothing => None,
            Looked::Hidden => continue,
        };
        if !now.is_some_and(|now| link.file.is(&now)) {
            let theirs = now.as_ref().map(Meta::facts);
            tell(link.path.clone(), "replaced there since", theirs);
        }
    }
    // The directory that holds a file is not part of it.
    let own = |_: &&Dressing| tree.original.only().is_none();
    for dressing in tree.directories.iter().filter(own) {
        let Looked::Is(now) = stat_if_open(&original, &dressing.path)? else {
            continue;
        };
        if !is_as_left(&original, dressing, &now)? {
            let what = "its mode, owner or attributes were changed there since";
            tell(dressing.path.clone(), what, Some(now.facts()));
        }
    }
    if stage.is_none() {
        tell(ResourcePath::root(), "what was kept for undo is gone", None);
    }
    sort(&mut conflicts);
    Ok(conflicts)
}

/// Tells everything at the place of a step that the commit did not put there. `exact` compares to
/// the ctime, but for what we moved ourselves.
fn foreign(
    step: &Step,
    (root, shift): (&Dir, Shift<'_>),
    linked: &HashSet<&ResourcePath>,
    exact: Option<&Moves>,
    tell: &mut dyn FnMut(ResourcePath, &'static str, Option<&Meta>),
) -> Result<()> {
    let Some(new) = &step.new else {
        if linked.contains(&step.path) {
            return Ok(());
        }
        if let Looked::Is(now) = stat_if_open(root, &shift(&step.path))? {
            tell(step.path.clone(), "added there since", Some(&now));
        }
        return Ok(());
    };
    let known: HashSet<&ResourcePath> = step.below.iter().map(|(path, _)| path).collect();
    let below = step.below.iter().map(|(path, seen)| (path, seen));
    for (path, seen) in std::iter::once((&step.path, new)).chain(below) {
        let now = match stat_if_open(root, &shift(path))? {
            Looked::Is(now) => Some(now),
            Looked::Nothing => None,
            Looked::Hidden => continue,
        };
        let same = |now: &Meta| match exact {
            Some(moved) => {
                let same = moved.leads(now.ino, now.ctime, seen.ctime);
                let ctime = if same { seen.ctime } else { now.ctime };
                seen.is_untouched(&Meta { ctime, ..*now })
            }
            // While the commit is under way a directory may be open for a moment.
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
        let dir = match root.dir(&shift(path)) {
            // Nobody can have put anything into what nobody may open.
            Err(error) if error.is(Errno::ACCESS) => continue,
            answer => answer?,
        };
        let entries = match dir.entries() {
            Err(error) if error.is(Errno::ACCESS) => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = path.join(&entry.name);
            if !known.contains(&path) && !linked.contains(&path) {
                tell(path, "added there since", Some(&entry.meta));
            }
        }
    }
    Ok(())
}

/// Takes back every step that was made.
pub(in crate::strategy) fn undo(intent: &Intent) -> Result<RolledBack> {
    let tree = TreeIntent::read(intent)?;
    if tree.is_empty() {
        return Ok(said());
    }
    let mut undoing = Undoing::begin(&tree)?;
    for link in tree.links.iter().rev() {
        let taken = undoing.unlink(link);
        undoing.note(taken);
    }
    for step in tree.steps.iter().rev() {
        // One that cannot be taken back does not stop the others (rule C4).
        let taken = undoing.take_back(step);
        undoing.note(taken);
    }
    for dressing in &tree.directories {
        if !seeded::bug("undo-forgets-directories") {
            let dressed = undoing.dress_back(dressing);
            undoing.note(dressed);
        }
    }
    if let Some(error) = undoing.failure {
        return Err(error);
    }
    // Not the directories one by one: the sync of one of them may be what failed before.
    undoing.original.sync_file_system()?;
    undoing.settle()?;
    undoing.done.paths = tree.paths();
    Ok(undoing.done)
}

fn said() -> RolledBack {
    RolledBack {
        message: "the original is as it was before".to_owned(),
        ..RolledBack::default()
    }
}

struct Undoing<'a> {
    tree: &'a TreeIntent,
    original: Dir,
    stage: Dir,
    linked: HashSet<&'a ResourcePath>,
    /// The slots of the steps that were made when the undo began.
    made: HashSet<u32>,
    /// Directories in which somebody else changed names since the commit.
    theirs: HashSet<ResourcePath>,
    done: RolledBack,
    failure: Option<StrategyError>,
}

impl<'a> Undoing<'a> {
    fn begin(tree: &'a TreeIntent) -> Result<Self> {
        let area = Dir::open(tree.area.as_path())?;
        let (original, stage) = (tree.root()?, tree.stage()?);
        tree.open_closed(&original)?;
        let mut undoing = Self {
            tree,
            original,
            stage,
            linked: tree.links.iter().map(|link| &link.path).collect(),
            made: HashSet::new(),
            theirs: HashSet::new(),
            done: said(),
            failure: None,
        };
        let found = match read_found(&area)? {
            Some(found) => found,
            None => {
                let found = Found {
                    made: undoing.look()?,
                    theirs: undoing.moved_by_others()?,
                };
                write_found(&area, &found)?;
                found
            }
        };
        (undoing.made, undoing.theirs) = (found.made, found.theirs);
        Ok(undoing)
    }

    fn note(&mut self, answer: Result<()>) {
        if let Err(error) = answer {
            self.failure.get_or_insert(error);
        }
    }

    /// Both places of a step.
    fn places(&self, step: &Step) -> Result<(Option<Meta>, Option<Meta>)> {
        Ok((
            stat(&self.original, &step.path)?,
            self.stage.stat(&step.slot())?,
        ))
    }

    fn look(&self) -> Result<HashSet<u32>> {
        let mut made = HashSet::new();
        for step in &self.tree.steps {
            let (there, staged) = self.places(step)?;
            if is_made(step, &there, &staged) {
                made.insert(step.slot);
            }
        }
        Ok(made)
    }

    /// The directories whose time is not the one that the commit left.
    fn moved_by_others(&self) -> Result<HashSet<ResourcePath>> {
        let mut theirs = HashSet::new();
        for dressing in self.tree.directories.iter().filter(|_| self.tree.finished) {
            let now = stat(&self.original, &dressing.path)?;
            if now.is_some_and(|now| dressing.after.mtime != Some(now.mtime)) {
                theirs.insert(dressing.path.clone());
            }
        }
        Ok(theirs)
    }

    fn unlink(&self, link: &Link) -> Result<()> {
        let Some((dir, name)) = open_parent(&self.original, &link.path)? else {
            return Ok(());
        };
        let ours = |now: &Meta| link.file.is(now) && now.nlink > 1;
        match dir.stat(name)? {
            Some(now) if ours(&now) => Ok(dir.unlink(name)?),
            _ => Ok(()),
        }
    }

    /// Takes one step back, if it was made, and names what is not ours in its slot. Somebody may put
    /// or remove something there in between; then one looks again.
    fn take_back(&mut self, step: &Step) -> Result<()> {
        for _ in 0..8 {
            match self.try_back(step) {
                Err(StrategyError::Fs(error))
                    if error.is(Errno::EXIST) || error.is(Errno::NOENT) => {}
                answer => return answer,
            }
        }
        self.try_back(step)
    }

    fn try_back(&mut self, step: &Step) -> Result<()> {
        let (path, slot) = (&step.path, step.slot());
        let (there, staged) = self.places(step)?;
        if is_made(step, &there, &staged) {
            let Some((dir, name)) = open_parent(&self.original, path)? else {
                return Err(gone(&self.original, path).into());
            };
            if let Some(there) = &there {
                unlock_moving(&dir, name, there)?;
            }
            if let Some(staged) = &staged {
                unlock_moving(&self.stage, &slot, staged)?;
            }
            let has_old = match (&step.old, &staged) {
                (Some(old), Some(staged)) => old.is(staged),
                _ => false,
            };
            match (&there, has_old) {
                (Some(_), true) => self.stage.exchange(&slot, &dir, name)?,
                (None, true) => self.stage.rename_new(&slot, &dir, name)?,
                (Some(_), false) => dir.rename_new(name, &self.stage, &slot)?,
                (None, false) => {}
            }
        }
        if let (Some(old), Some(now)) = (&step.old, stat(&self.original, path)?) {
            if self.made.contains(&step.slot) && old.is(&now) {
                let (dir, name) = self.original.parent(path)?;
                retime(&dir, name, old)?;
            }
            close_again(&self.original, path, old, &now)?;
        }
        match self.made.contains(&step.slot) {
            true => self.kept(step),
            false => Ok(()),
        }
    }

    /// Names what lies in the slot of a step now and is not ours: somebody wrote it into the
    /// original while the commit stood.
    fn kept(&mut self, step: &Step) -> Result<()> {
        let top = step.path.as_bytes().len();
        let shift = |path: &ResourcePath| staged_path(step.slot, &path.as_bytes()[top..]);
        let (stage, kept) = (&self.stage, &mut self.done.kept);
        let root: (&Dir, Shift<'_>) = (stage, &shift);
        foreign(step, root, &self.linked, None, &mut |path, _, now| {
            if now.is_some() {
                let at = Location::from(stage.locate(&shift(&path)));
                kept.push((path, at));
            }
        })
    }

    /// Gives a directory its looks back, if it is still the one.
    fn dress_back(&self, dressing: &Dressing) -> Result<()> {
        // A directory that came with the commit is gone again.
        let Some(seen) = &dressing.seen else {
            return Ok(());
        };
        let path = &dressing.path;
        let Some(now) = stat(&self.original, path)?.filter(|now| seen.is(now)) else {
            return Ok(());
        };
        let in_it = |one: &ResourcePath| one.split().is_some_and(|(parent, _)| parent == *path);
        let mut steps = self.tree.steps.iter();
        let moved = steps.any(|step| in_it(&step.path) && self.made.contains(&step.slot))
            || self.tree.links.iter().any(|link| in_it(&link.path))
            || dressing.after.mtime == Some(now.mtime);
        let mut looks = dressing.before.clone();
        let holder = self.tree.original.only().is_some();
        if !moved || holder || self.theirs.contains(path) {
            looks.mtime = None;
        }
        dress(&self.original, dressing, &looks)
    }

    /// Notes the new ctimes of what we moved: nobody changed it.
    fn settle(&mut self) -> Result<()> {
        let mut all: Vec<(&ResourcePath, &Seen)> = Vec::new();
        for step in &self.tree.steps {
            if let Some(old) = step.old.as_ref().filter(|_| self.made.contains(&step.slot)) {
                all.push((&step.path, old));
            }
        }
        all.extend(self.tree.links.iter().map(|link| (&link.to, &link.file)));
        if !self.made.is_empty() {
            for dressing in &self.tree.directories {
                all.extend(dressing.seen.as_ref().map(|seen| (&dressing.path, seen)));
            }
        }
        for (path, seen) in all {
            let now = stat(&self.original, path)?;
            let same = |now: &Meta| seen.looks_the_same(now) && now.ctime != seen.ctime;
            if let Some(now) = now.filter(same) {
                self.done.moved.push(Moved {
                    ino: seen.ino,
                    before: seen.ctime,
                    after: now.ctime,
                });
            }
        }
        Ok(())
    }
}

/// Whether a step is made: the old version lies in the stage, or the new one in its place.
fn is_made(step: &Step, there: &Option<Meta>, staged: &Option<Meta>) -> bool {
    let is = |seen: &Option<Seen>, now: &Option<Meta>| match (seen, now) {
        (Some(seen), Some(now)) => seen.is(now),
        _ => false,
    };
    is(&step.old, staged) || (is(&step.new, there) && !is(&step.new, staged))
}

/// What was found when an undo began.
#[derive(Serialize, Deserialize)]
struct Found {
    made: HashSet<u32>,
    theirs: HashSet<ResourcePath>,
}

fn read_found(area: &Dir) -> Result<Option<Found>> {
    let mut file = match area.file(MADE) {
        Err(error) if error.is_absent() => return Ok(None),
        file => file?.0,
    };
    let mut text = Vec::new();
    let read = file.read_to_end(&mut text);
    // One that cannot be understood tells nothing; looking tells what is still to be done.
    Ok(read.ok().and_then(|_| serde_json::from_slice(&text).ok()))
}

fn write_found(area: &Dir, found: &Found) -> Result<()> {
    let text = serde_json::to_vec(found).expect("numbers and paths are JSON");
    let draft = Draft {
        stage: area,
        to: area,
        name: MADE,
        fresh: true,
        synced: true,
    };
    Ok(draft.write(|file| file.write_all(&text), |_| Ok(()))?)
}

/// Gives a directory that was opened to be moved its own mode again.
fn close_again(original: &Dir, path: &ResourcePath, old: &Seen, now: &Meta) -> Result<()> {
    let opened = now.is_dir() && old.is(now) && now.mode == old.mode | 0o700;
    if !opened || now.mode == old.mode {
        return Ok(());
    }
    let (dir, name) = original.parent(path)?;
    let handle: Handle<'_> = dir.handle(name)?;
    handle
        .set_mode(old.mode)
        .map_err(|errno| dir.error("close", name, Cause::Os(errno)).into())
}

fn gone(original: &Dir, path: &ResourcePath) -> FsError {
    let cause = Cause::Damaged("the directory it belongs in is gone");
    original.error("put back", path.as_bytes(), cause)
}
