//! A commit taken back, from wherever it stopped, and what would be lost by it.

use std::collections::HashSet;

use super::apply::{dress, is_as_left, open_parent, unlock_moving};
use super::stage::staged_path;
use super::{Link, Looks, Step, TreeIntent, sort, stat};
use crate::fs::seen::settled;
use crate::fs::{Cause, Dir, FsError, Handle, Meta, Moved, Seen};
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath};
use crate::seeded;
use crate::strategy::error::Result;
use crate::strategy::{Intent, RolledBack};

/// Remembers exactly what the commit left, once nothing else of ours will touch it.
pub(in crate::strategy) fn finish(intent: Intent) -> Result<Intent> {
    let mut tree = TreeIntent::read(&intent)?;
    let original = tree.original.open()?;
    let again = |path: &ResourcePath, seen: &mut Seen| -> Result<()> {
        // What somebody replaced meanwhile keeps its description, and so shows as replaced.
        if let Some(now) = stat(&original, path)?.filter(|now| seen.looks_the_same(now)) {
            *seen = Seen::from(&now);
        }
        Ok(())
    };
    for step in &mut tree.steps {
        if let Some(new) = &mut step.new {
            // One that was opened to be moved has its own mode by now.
            if let Some(now) = stat(&original, &step.path)?.filter(|now| new.is(now)) {
                new.mode = match new.kind {
                    crate::model::EntryKind::Directory => now.mode,
                    _ => new.mode,
                };
            }
            again(&step.path, new)?;
        }
        for (path, seen) in &mut step.below {
            again(path, seen)?;
        }
    }
    for dressing in &mut tree.directories {
        if let Some(now) = stat(&original, &dressing.path)? {
            dressing.after.mtime = Some(now.mtime);
        }
    }
    tree.finished = true;
    Ok(tree.store())
}

/// Where the original moved on since the commit.
pub(in crate::strategy) fn check(intent: &Intent, moved: &[Moved]) -> Result<Vec<Conflict>> {
    let tree = TreeIntent::read(intent)?;
    if tree.steps.is_empty() && tree.links.is_empty() && tree.directories.is_empty() {
        return Ok(Vec::new());
    }
    let original = tree.original.open()?;
    let mut conflicts = Vec::new();
    let linked: HashSet<&ResourcePath> = tree.links.iter().map(|link| &link.path).collect();
    for step in &tree.steps {
        let here = (
            &original,
            &ResourcePath::clone as &dyn Fn(&ResourcePath) -> ResourcePath,
        );
        let moved = tree.finished.then_some(moved);
        foreign(step, here, &linked, moved, &mut |path, what, now| {
            conflicts.push(Conflict {
                path,
                what: what.to_owned(),
                ours: None,
                theirs: now.map(Meta::facts),
            });
        })?;
    }
    for link in &tree.links {
        let now = stat(&original, &link.path)?;
        if !now.is_some_and(|now| link.file.is(&now)) {
            conflicts.push(Conflict {
                path: link.path.clone(),
                what: "replaced there since".to_owned(),
                ours: None,
                theirs: now.as_ref().map(Meta::facts),
            });
        }
    }
    for dressing in &tree.directories {
        let now = stat(&original, &dressing.path)?;
        if let Some(now) = now.filter(|now| !is_as_left(dressing, now)) {
            conflicts.push(Conflict {
                path: dressing.path.clone(),
                what: "its mode or owner was changed there since".to_owned(),
                ours: None,
                theirs: Some(now.facts()),
            });
        }
    }
    sort(&mut conflicts);
    Ok(conflicts)
}

/// Tells everything at the place of a step that the commit did not put there. `shift` says where
/// in `root` a path of the original is to be found. `exact` compares to the ctime, but for what we
/// moved ourselves.
fn foreign(
    step: &Step,
    (root, shift): (&Dir, &dyn Fn(&ResourcePath) -> ResourcePath),
    linked: &HashSet<&ResourcePath>,
    exact: Option<&[Moved]>,
    tell: &mut dyn FnMut(ResourcePath, &'static str, Option<&Meta>),
) -> Result<()> {
    let Some(new) = &step.new else {
        if let Some(now) = stat(root, &shift(&step.path))? {
            tell(step.path.clone(), "added there since", Some(&now));
        }
        return Ok(());
    };
    let mut known: HashSet<&ResourcePath> = step.below.iter().map(|(path, _)| path).collect();
    known.extend(linked);
    let top = (&step.path, new);
    let below = step.below.iter().map(|(path, seen)| (path, seen));
    for (path, seen) in std::iter::once(top).chain(below) {
        let now = stat(root, &shift(path))?;
        let same = |now: &Meta| match exact {
            Some(moved) => {
                let ctime = settled(now.ino, now.ctime, moved);
                seen.is_untouched(&Meta { ctime, ..*now })
            }
            None => is_ours(seen, now),
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
            Err(error) if error.is(rustix::io::Errno::ACCESS) => continue,
            answer => answer?,
        };
        for entry in dir.entries()? {
            let path = path.join(&entry.name);
            if !known.contains(&path) {
                tell(path, "added there since", Some(&entry.meta));
            }
        }
    }
    Ok(())
}

/// The same while the commit is under way, when a directory may be open for a moment.
fn is_ours(seen: &Seen, now: &Meta) -> bool {
    seen.looks_the_same(now) || (now.is_dir() && seen.is(now))
}

/// Takes back every step that was made.
pub(in crate::strategy) fn undo(intent: &Intent) -> Result<RolledBack> {
    let tree = TreeIntent::read(intent)?;
    let mut done = RolledBack {
        message: "the original is as it was before".to_owned(),
        ..RolledBack::default()
    };
    if tree.steps.is_empty() && tree.links.is_empty() && tree.directories.is_empty() {
        return Ok(done);
    }
    let original = tree.original.open()?;
    let stage = tree.stage()?;
    let linked: HashSet<&ResourcePath> = tree.links.iter().map(|link| &link.path).collect();
    let theirs = moved_by_others(&tree, &original, &stage)?;
    let mut failure = None;
    for link in tree.links.iter().rev() {
        if let Err(error) = unlink(link, &original) {
            failure.get_or_insert(error);
        }
    }
    for step in tree.steps.iter().rev() {
        // One that cannot be taken back does not stop the others (rule C4).
        let taken = take_back(step, &original, &stage);
        if let Err(error) = taken.and_then(|()| kept(step, &stage, &linked, &mut done)) {
            failure.get_or_insert(error);
        }
    }
    for dressing in &tree.directories {
        // A directory that came with the commit is gone again.
        let Some(seen) = &dressing.seen else { continue };
        if seeded::bug("undo-forgets-directories") {
            continue;
        }
        let mut looks = dressing.before.clone();
        if theirs.contains(&dressing.path) {
            looks.mtime = None;
        }
        if let Err(error) = dress_back(&original, &dressing.path, seen, &looks) {
            failure.get_or_insert(error);
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    // Not the directories one by one: the sync of one of them may be what failed before.
    original.sync_file_system()?;
    let mut settled = |path: &ResourcePath, seen: &Seen| -> Result<()> {
        let now = stat(&original, path)?;
        if let Some(now) = now.filter(|now| seen.looks_the_same(now) && now.ctime != seen.ctime) {
            done.moved.push(Moved {
                ino: seen.ino,
                before: seen.ctime,
                after: now.ctime,
            });
        }
        Ok(())
    };
    for step in &tree.steps {
        if let Some(old) = &step.old {
            settled(&step.path, old)?;
        }
    }
    for link in &tree.links {
        settled(&link.to, &link.file)?;
    }
    for dressing in &tree.directories {
        if let Some(seen) = &dressing.seen {
            settled(&dressing.path, seen)?;
        }
    }
    Ok(done)
}

fn unlink(link: &Link, original: &Dir) -> Result<()> {
    let Some((dir, name)) = open_parent(original, &link.path)? else {
        return Ok(());
    };
    let ours = |now: &Meta| link.file.is(now) && now.nlink > 1;
    match dir.stat(name)? {
        Some(now) if ours(&now) => Ok(dir.unlink(name)?),
        _ => Ok(()),
    }
}

/// Whether a step was made: the old version lies in the stage, or the new one in its place.
fn was_made(step: &Step, there: &Option<Meta>, staged: &Option<Meta>) -> bool {
    let is = |seen: &Option<Seen>, now: &Option<Meta>| match (seen, now) {
        (Some(seen), Some(now)) => seen.is(now),
        _ => false,
    };
    is(&step.old, staged) || (is(&step.new, there) && !is(&step.new, staged))
}

/// The directories in which somebody else changed names since the commit. While all our steps in
/// one of them stand, its time is as we left it, or somebody else's.
fn moved_by_others(
    tree: &TreeIntent,
    original: &Dir,
    stage: &Dir,
) -> Result<HashSet<ResourcePath>> {
    let mut theirs = HashSet::new();
    if !tree.finished {
        return Ok(theirs);
    }
    for dressing in &tree.directories {
        let now = stat(original, &dressing.path)?;
        if now.is_some_and(|now| dressing.after.mtime != Some(now.mtime)) {
            theirs.insert(dressing.path.clone());
        }
    }
    for step in &tree.steps {
        let Some((parent, _)) = step.path.split() else {
            continue;
        };
        let (there, staged) = (stat(original, &step.path)?, stage.stat(&step.slot())?);
        if !was_made(step, &there, &staged) {
            theirs.remove(&parent);
        }
    }
    Ok(theirs)
}

/// Takes one step back, if it was made.
fn take_back(step: &Step, original: &Dir, stage: &Dir) -> Result<()> {
    let (path, slot) = (&step.path, step.slot());
    let (there, staged) = (stat(original, path)?, stage.stat(&slot)?);
    if !was_made(step, &there, &staged) {
        if let (Some(old), Some(there)) = (&step.old, &there) {
            close_again(original, path, old, there)?;
        }
        return Ok(());
    }
    let Some((dir, name)) = open_parent(original, path)? else {
        return Err(gone(original, path).into());
    };
    if let Some(there) = &there {
        unlock_moving(&dir, name, there)?;
    }
    if let Some(staged) = &staged {
        unlock_moving(stage, &slot, staged)?;
    }
    let has_old = match (&step.old, &staged) {
        (Some(old), Some(staged)) => old.is(staged),
        _ => false,
    };
    match (&there, has_old) {
        (Some(_), true) => stage.exchange(&slot, &dir, name)?,
        (None, true) => stage.rename_new(&slot, &dir, name)?,
        (Some(_), false) => dir.rename_new(name, stage, &slot)?,
        (None, false) => {}
    }
    if let (Some(old), Some(now)) = (&step.old, stat(original, path)?) {
        close_again(original, path, old, &now)?;
    }
    Ok(())
}

/// Names what lies in the stage now and is not ours: somebody wrote it into the original while the
/// commit stood.
fn kept(
    step: &Step,
    stage: &Dir,
    linked: &HashSet<&ResourcePath>,
    done: &mut RolledBack,
) -> Result<()> {
    let top = step.path.as_bytes().len();
    let shift = |path: &ResourcePath| staged_path(step.slot, &path.as_bytes()[top..]);
    if step.new.is_none() {
        return Ok(());
    }
    foreign(step, (stage, &shift), linked, None, &mut |path, _, now| {
        if now.is_some() {
            let at = Location::from(stage.locate(&shift(&path)));
            done.kept.push((path, at));
        }
    })
}

/// Gives a directory that was opened to be moved its own mode again.
fn close_again(original: &Dir, path: &ResourcePath, old: &Seen, now: &Meta) -> Result<()> {
    if !now.is_dir() || !old.is(now) || now.mode == old.mode {
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

/// Gives a directory its looks back, if it is still the one.
fn dress_back(original: &Dir, path: &ResourcePath, seen: &Seen, looks: &Looks) -> Result<()> {
    match stat(original, path)?.filter(|now| seen.is(now)) {
        Some(_) => dress(original, path, looks),
        None => Ok(()),
    }
}
