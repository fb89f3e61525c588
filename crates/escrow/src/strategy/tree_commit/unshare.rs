//! Replaces files that the original still shares with a sandbox by copies of their own.
//!
//! New versions are the sandbox's files under another name. When the sandbox could not be removed, or a process has one
//! of them open for writing, a copy takes its place in the original before the commit is over: nothing that happens
//! to the sandbox later, not even its removal, reaches the original.
//!
//! ```text
//! <commit area>/
//!   apart-X_Y_S_N_0, …   before: the copy, inode Y, made at S.N; after: the file it stands for, inode X
//! ```
//!
//! The name of a copy says which file it stands for and which one it is. After a crash an entry that holds X tells
//! that the exchange was made, and that Y in the original is ours.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::apply::{apply_metadata, open_parent};
use super::intent::IntentEntry;
use super::{DirUpdate, TreeIntent, stat};
use crate::failpoints;
use crate::fs::content::Reflinks;
use crate::fs::place::{CopyOptions, copy_leaf};
use crate::fs::walk::look_at_all;
use crate::fs::{Cause, Dir, EntryHandle, Fingerprint, Meta, Stamp, remove};
use crate::model::text::Location;
use crate::model::{EntryKind, ResourcePath};
use crate::strategy::error::Result;
use crate::strategy::{PreviewNote, tree};

const APART: &str = "apart-";

/// The copies that stand for files of the sandbox: by the inode of the file, inode and birth of each copy.
#[derive(Debug, Default)]
pub(super) struct ReplacementCopies(HashMap<u64, Vec<(u64, Stamp)>>);

impl ReplacementCopies {
    /// Whether an entry of the original is a copy that stands for the file that was seen there.
    pub(super) fn stand_for(&self, seen: &Fingerprint, now: &Meta) -> bool {
        let copies = self.0.get(&seen.ino).into_iter().flatten();
        now.kind == seen.kind && copies.into_iter().any(|one| *one == (now.ino, now.born))
    }

    fn is_copied(&self, ino: u64) -> bool {
        self.0.contains_key(&ino)
    }

    /// What an earlier try exchanged; what it only made goes, since it may not be complete.
    fn found(area: &Dir) -> Result<Self> {
        let mut copies = Self::default();
        for entry in area.entries()? {
            let Some(rest) = entry.name.strip_prefix(APART.as_bytes()) else {
                continue;
            };
            match numbers(rest) {
                Some((file, copy)) if entry.meta.ino == file => copies.add(file, copy),
                _ => remove::remove(area, &entry.name)?,
            }
        }
        Ok(copies)
    }

    fn add(&mut self, file: u64, copy: (u64, Stamp)) {
        let copies = self.0.entry(file).or_default();
        if !copies.contains(&copy) {
            copies.push(copy);
        }
    }
}

/// The file and its copy, from what follows the prefix in a name.
fn numbers(name: &[u8]) -> Option<(u64, (u64, Stamp))> {
    let parts: Vec<&str> = std::str::from_utf8(name).ok()?.split('_').collect();
    let [file, ino, sec, nsec, _] = parts[..] else {
        return None;
    };
    let (sec, nsec) = (sec.parse().ok()?, nsec.parse().ok()?);
    Some((file.parse().ok()?, (ino.parse().ok()?, Stamp { sec, nsec })))
}

/// What the names of a copy begin with.
fn prefix(file: u64, copy: &Meta) -> String {
    let (ino, Stamp { sec, nsec }) = (copy.ino, copy.born);
    format!("{APART}{file}_{ino}_{sec}_{nsec}_")
}

/// One name in the original of a file that is the sandbox's.
struct SharedName {
    path: ResourcePath,
    now: Meta,
}

/// Puts copies in the place of whatever is shared; can be repeated.
pub(super) fn separate(
    tree: &TreeIntent,
    original: &Dir,
    area: &Dir,
    notes: &mut Vec<PreviewNote>,
) -> Result<ReplacementCopies> {
    let mut copies = ReplacementCopies::found(area)?;
    // Those that an earlier try exchanged have lower numbers.
    let taken = area.entries()?.len();
    let mut staged = Vec::new();
    let (mut touched, mut busy) = (BTreeSet::new(), HashSet::new());
    let (names, standing) = names(tree, original, &copies, &mut touched)?;
    for (file, names) in names {
        let (Some(first), count) = (names.first(), names.len()) else {
            continue;
        };
        let shared = first.now.nlink as usize > count && !failpoints::bug("shared-after-commit");
        let (dir, name) = original.parent(&first.path)?;
        let quiet = !first.now.is_file() || tree::is_quiet(&dir, name)?;
        if !shared && quiet && !copies.is_copied(file) {
            continue;
        }
        if !quiet {
            busy.insert(file);
        }
        let copy = standing.get(&file);
        if let Err(error) = stage(original, area, &names, copy, taken, &mut staged) {
            // They would take the room that is missing.
            for (name, _) in &staged {
                match remove::remove(area, name) {
                    // What stays goes when this is tried again.
                    Ok(()) | Err(_) => {}
                }
            }
            return Err(error);
        }
    }
    if !staged.is_empty() {
        area.sync_file_system()?;
    }
    for (name, path) in &staged {
        touched.extend(path.split().map(|(parent, _)| parent));
        let Some((file, copy)) = numbers(&name[APART.len()..]) else {
            continue;
        };
        let Some((dir, to)) = open_parent(original, path)? else {
            continue;
        };
        area.exchange(name, &dir, to)?;
        if area.stat(name)?.is_none_or(|out| out.ino != file) {
            // Another process put something else there meanwhile; that stays.
            area.exchange(name, &dir, to)?;
            remove::remove(area, name)?;
            continue;
        }
        copies.add(file, copy);
        if busy.contains(&file) {
            let at = Location::from(area.path().join(String::from_utf8_lossy(name).as_ref()));
            notes.push(PreviewNote {
                path: path.clone(),
                what: format!(
                    "a process still had it open for writing; what it writes goes to '{at}'"
                ),
            });
        }
    }
    reapply_metadata(tree, original, &touched)?;
    Ok(copies)
}

/// The names of each file of the sandbox in the original, and one name of each copy that an earlier try put there.
type SharedNames = (BTreeMap<u64, Vec<SharedName>>, HashMap<u64, ResourcePath>);

/// The names in the original of each file that was linked there, but for those that only the original has and nothing
/// writes to. The directories of those that were copied by an earlier try are `touched`.
fn names(
    tree: &TreeIntent,
    original: &Dir,
    copies: &ReplacementCopies,
    touched: &mut BTreeSet<ResourcePath>,
) -> Result<SharedNames> {
    let linked = |(_, entry): (_, IntentEntry)| entry.new.filter(|_| entry.linked);
    let files: HashSet<u64> = entries(tree)
        .filter_map(linked)
        .map(|seen| seen.ino)
        .collect();
    let put = entries(tree).filter_map(|(_, entry)| {
        let is_file = |seen: &Fingerprint| seen.kind != EntryKind::Directory;
        let seen = entry.new.filter(is_file)?;
        files.contains(&seen.ino).then_some((entry.path, seen))
    });
    let look = |original: &mut Dir, (path, seen): (ResourcePath, Fingerprint)| -> Result<_> {
        let Some(now) = stat(original, &path)? else {
            return Ok(None);
        };
        let stands = copies.stand_for(&seen, &now);
        let shared = stands || (seen.is(&now) && !is_own(original, copies, &path, &now)?);
        Ok(shared.then_some((seen.ino, stands, SharedName { path, now })))
    };
    let (mut names, mut standing): SharedNames = SharedNames::default();
    let begin = || original.again().keeping();
    look_at_all(begin, put, look, |found| {
        match found {
            Some((file, true, name)) => {
                touched.extend(name.path.split().map(|(parent, _)| parent));
                standing.insert(file, name.path);
            }
            Some((file, false, name)) => names.entry(file).or_default().push(name),
            None => {}
        }
        Ok(())
    })?;
    Ok((names, standing))
}

/// Whether a file has no name but this one, and nothing writes to it.
fn is_own(
    original: &Dir,
    copies: &ReplacementCopies,
    path: &ResourcePath,
    now: &Meta,
) -> Result<bool> {
    if now.nlink > 1 || copies.is_copied(now.ino) {
        return Ok(false);
    }
    let (dir, name) = original.parent(path)?;
    Ok(!now.is_file() || tree::is_quiet(&dir, name)?)
}

/// The slot of a step, and what stands for an old version that cannot be moved.
pub(super) type StepKey = (u32, Option<Fingerprint>);

/// Every path of the commit, those in the directory of a step before the step itself, whose key is told.
pub(super) fn entries(tree: &TreeIntent) -> impl Iterator<Item = (Option<StepKey>, IntentEntry)> {
    let records = &tree.records;
    records.steps().flat_map(|step| {
        let top = (Some((step.slot, step.copy)), step.top.clone());
        let below = records.below(&step).map(|entry| (None, entry));
        below.chain([top])
    })
}

/// Makes one copy of a file, under as many names as the file has in the original; the one that an earlier try put
/// there already is theirs too.
fn stage(
    original: &Dir,
    area: &Dir,
    names: &[SharedName],
    standing: Option<&ResourcePath>,
    from: usize,
    staged: &mut Vec<(Vec<u8>, ResourcePath)>,
) -> Result<()> {
    let mut first: Option<(Vec<u8>, String)> = None;
    for name in names {
        let number = from + staged.len();
        if let Some(path) = standing
            && let Some(copy) = stat(original, path)?
        {
            let next = format!("{}{number}", prefix(name.now.ino, &copy)).into_bytes();
            area.hard_link(&next, original, path)?;
            staged.push((next, name.path.clone()));
            continue;
        }
        if let Some((copied, begin)) = &first {
            let next = format!("{begin}{number}").into_bytes();
            area.link_to(&next, area, copied)?;
            staged.push((next, name.path.clone()));
            continue;
        }
        let (dir, at) = original.parent(&name.path)?;
        let file = name.now.ino;
        let unfinished = format!("{APART}{file}").into_bytes();
        staged.push((unfinished.clone(), name.path.clone()));
        let (kind, reflinks) = (name.now.kind, Reflinks::wanted());
        let to = (area, &*unfinished);
        let leaf = copy_leaf((&dir, at), to, kind, &reflinks, CopyOptions::QUIET)?;
        let begin = prefix(file, &leaf.copy);
        let copied = format!("{begin}{number}").into_bytes();
        area.rename(&unfinished, area, &copied)?;
        staged.pop();
        staged.push((copied.clone(), name.path.clone()));
        first = Some((copied, begin));
    }
    Ok(())
}

/// Gives directories in which something was exchanged the looks that the commit gave them.
fn reapply_metadata(
    tree: &TreeIntent,
    original: &Dir,
    touched: &BTreeSet<ResourcePath>,
) -> Result<()> {
    if touched.is_empty() {
        return Ok(());
    }
    let dressings: HashMap<ResourcePath, DirUpdate> = tree
        .records
        .directories()
        .filter(|one| touched.contains(&one.path))
        .map(|one| (one.path.clone(), one))
        .collect();
    let made: HashMap<ResourcePath, Fingerprint> = entries(tree)
        .filter_map(|(_, entry)| Some((entry.path, entry.new?)))
        .filter(|(path, seen)| seen.kind == EntryKind::Directory && touched.contains(path))
        .collect();
    // Deepest first: a directory that may not be searched hides what is in it.
    for path in touched.iter().rev() {
        if let Some(dressing) = dressings.get(path) {
            apply_metadata(original, dressing, &dressing.after)?;
        } else if let Some(seen) = made.get(path) {
            let dir = original.dir(path)?;
            let handle = EntryHandle::of(&dir);
            let fail = |errno| dir.error("set the metadata of", b"", Cause::Os(errno));
            let now = handle.meta().map_err(fail)?;
            let model = Meta {
                mtime: seen.mtime,
                ..now
            };
            handle.reapply_metadata(&model).map_err(fail)?;
        }
    }
    Ok(())
}
