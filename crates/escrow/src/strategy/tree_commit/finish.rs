//! Finishes a tree commit once the sandbox is gone: removes its traces from the original, and records what undo
//! will compare with.

use rustix::io::Errno;

use super::intent::{self, FINISHED, IntentEntry, RenameStep};
use super::stage::staged_path;
use super::unshare::{ReplacementCopies, entries, separate};
use super::{CAPABILITY, DirUpdate, TreeIntent, reference, stat};
use crate::fs::walk::look_at_all;
use crate::fs::{Cause, Dir, Fingerprint, Meta, MovedEntry, Stamp, xattr};
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::{FinishedCommit, Intent};

/// Whether files of the sandbox became the original's, under another name.
fn shares(intent: &Intent) -> Result<bool> {
    Ok(reference(intent)?.linked > 0)
}

/// Takes marks and late privileges off, and remembers exactly what the commit left; also says what was moved and still has a
/// name in the original. Can be repeated.
pub(in crate::strategy) fn finish(intent: Intent) -> Result<(FinishedCommit, Vec<MovedEntry>)> {
    let tree = TreeIntent::read(&intent)?;
    let records = &tree.records;
    if records.is_empty() {
        let notes = Vec::new();
        return Ok((FinishedCommit { intent, notes }, Vec::new()));
    }
    let original = tree.original.open()?.keeping();
    let area = Dir::open(tree.area.as_path())?;
    let mut notes = Vec::new();
    let marked = entries(&tree).filter(|(_, entry)| !entry.marks.is_empty());
    let begin = || original.again().keeping();
    let unmark = |original: &mut Dir, (_, entry): (_, IntentEntry)| unmark(original, &entry);
    look_at_all(begin, marked, unmark, Ok)?;
    let copies = match shares(&intent)? {
        true => separate(&tree, &original, &area, &mut notes)?,
        false => ReplacementCopies::default(),
    };
    let mut writer = intent::create(&area, FINISHED)?;
    let unwritten = |error: std::io::Error| intent::failed(&area, FINISHED, "write", &error);
    let settled = |original: &mut Dir, (key, mut entry): (_, IntentEntry)| {
        settle(original, &copies, &mut entry)?;
        Ok((key, entry))
    };
    look_at_all(begin, entries(&tree), settled, |(key, entry)| {
        let written = match key {
            Some((slot, copy)) => writer.step(slot, &entry, copy.as_ref()),
            None => writer.entry(&entry),
        };
        written.map_err(unwritten)
    })?;
    for link in records.links() {
        writer.link(&link).map_err(unwritten)?;
    }
    for mut dressing in records.directories() {
        if !dressing.is_file()
            && let Some(now) = stat(&original, &dressing.path)?
        {
            dressing.after.mtime = Some(now.mtime);
        }
        writer.directory(&dressing).map_err(unwritten)?;
    }
    let written = intent::close(&area, FINISHED, writer)?;
    let (mut moved, last) = still_named(&tree, &original)?;
    // One that has another name is moved on by others.
    let apart = moved.is_empty() && !has_names_elsewhere(&tree)?;
    let kept_until = last.filter(|_| apart);
    moved.extend(retimed(&tree, &original)?);
    let intent = tree.store(FINISHED, written, kept_until);
    Ok((FinishedCommit { intent, notes }, moved))
}

/// Takes late privileges off what was put at a path, and remembers it as it is now.
fn settle(original: &Dir, copies: &ReplacementCopies, entry: &mut IntentEntry) -> Result<()> {
    let path = &entry.path;
    let Some(seen) = &mut entry.new else {
        return Ok(());
    };
    let now = stat(original, path)?;
    let ours = |now: &Meta| seen.is(now) || copies.stand_for(seen, now);
    let Some(mut now) = now.filter(ours) else {
        // What another process replaced meanwhile keeps its description, and so shows as replaced.
        return Ok(());
    };
    if seen.kind == EntryKind::File && entry.linked {
        now = part(original, path, seen, now)?;
    }
    if seen.ino != now.ino || seen.looks_the_same(&now) {
        *seen = Fingerprint::from(&now);
    }
    Ok(())
}

/// Old versions that have another name in the original, and files that got one: each is the same file as before,
/// although its ctime says that something happened to it. Also the last ctime of all old versions.
fn still_named(tree: &TreeIntent, original: &Dir) -> Result<(Vec<MovedEntry>, Option<Stamp>)> {
    let stage = tree.stage()?;
    // The stage itself was changed last when the last of them came.
    let (mut moved, mut last) = (Vec::new(), Some(stage.meta()?.ctime));
    let old = |step: RenameStep| Some((step.kept(), step.kept_version()?));
    let kept = |stage: &mut Dir, (slot, old): (Vec<u8>, Fingerprint)| {
        let now = stage.stat(&slot)?;
        let Some(now) = now.filter(|now| old.is(now)) else {
            return Ok::<_, StrategyError>(None);
        };
        let named = (!now.is_dir() && now.nlink > 1).then_some(MovedEntry {
            ino: now.ino,
            before: old.ctime,
            after: now.ctime,
        });
        Ok(Some((named, now.ctime)))
    };
    let olds = tree.records.steps().filter_map(old);
    look_at_all(
        || stage.again(),
        olds,
        kept,
        |one| {
            if let Some((named, ctime)) = one {
                moved.extend(named);
                last = last.max(Some(ctime));
            }
            Ok(())
        },
    )?;
    for link in tree.records.links() {
        let now = stat(original, &link.to)?;
        let same = now.filter(|now| link.file.looks_the_same(now) && now.ctime > link.file.ctime);
        moved.extend(same.map(|now| MovedEntry {
            ino: now.ino,
            before: link.file.ctime,
            after: now.ctime,
        }));
    }
    Ok((moved, last))
}

/// Files that got the time at which the sandbox wrote them as they were: only that was changed.
fn retimed(tree: &TreeIntent, original: &Dir) -> Result<Vec<MovedEntry>> {
    let mut moved = Vec::new();
    for update in tree.records.directories().filter(DirUpdate::is_file) {
        let (Some(seen), Some(now)) = (update.seen, stat(original, &update.path)?) else {
            continue;
        };
        let mtime = update.after.mtime.unwrap_or(seen.mtime);
        if (Fingerprint { mtime, ..seen }).looks_the_same(&now) {
            moved.push(MovedEntry {
                ino: now.ino,
                before: seen.ctime,
                after: now.ctime,
            });
        }
    }
    Ok(moved)
}

/// Whether a file in a directory that was kept as a whole has a name elsewhere.
fn has_names_elsewhere(tree: &TreeIntent) -> Result<bool> {
    let stage = tree.stage()?;
    for step in tree.records.steps() {
        let top = step.top.path.as_bytes().len();
        for entry in tree.records.below(&step) {
            if entry.old.is_none_or(|old| old.kind != EntryKind::File) {
                continue;
            }
            let at = staged_path(step.slot, &entry.path.as_bytes()[top..]);
            if stat(&stage, &at)?.is_some_and(|now| now.nlink > 1) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Removes the marks of a layer.
fn unmark(original: &Dir, entry: &IntentEntry) -> Result<()> {
    let (dir, name) = match original.parent(&entry.path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(()),
        found => found?,
    };
    let fail = |errno| dir.error("unmark", name, Cause::Os(errno));
    let mut marks = entry.marks.iter();
    match marks.try_for_each(|mark| xattr::remove_at(&dir, name, mark)) {
        Err(Errno::NOENT) => Ok(()),
        answer => Ok(answer.map_err(fail)?),
    }
}

/// A file that was the sandbox's own until now: privileges that it gained since it was looked at go.
fn part(original: &Dir, path: &ResourcePath, seen: &Fingerprint, now: Meta) -> Result<Meta> {
    let (raised, runs) = (now.mode & 0o6000 & !seen.mode != 0, now.mode & 0o111 != 0);
    if !raised && !runs {
        return Ok(now);
    }
    let (dir, name) = original.parent(path)?;
    let fail = |errno| dir.error("set the mode of", name, Cause::Os(errno));
    let handle = dir.handle(name)?;
    if raised {
        handle.set_mode(seen.mode).map_err(fail)?;
    }
    if runs && xattr::get(&handle, CAPABILITY).map_err(fail)?.is_some() {
        xattr::remove(&handle, CAPABILITY).map_err(fail)?;
    }
    Ok(dir.stat(name)?.unwrap_or(now))
}
