//! Three-way merge of text files that both sides changed, and the versions that such a merge begins from.
//!
//! The original of a layer or a copy is live: once another process changed a file there, the version that the sandbox
//! began with is gone. So it is kept beside the sandbox as soon as a change of the file is known, while the original still
//! has it. A file starts with the digest of the rest, and counts only if that matches: nothing needs to be synced.
//!
//! ```text
//! <area>/bases/<digest of path and version>
//! ```

use std::io::{Read, Write};

use rustix::io::Errno;
use similar::{MergeResolution, TextMerge};

use super::{OriginalBase, VersionSource};
use crate::fs::atomic_file::AtomicFile;
use crate::fs::{Dir, Fingerprint, Meta, remove};
use crate::model::hunks::{LARGEST_TEXT, is_divisible};
use crate::model::{Change, ChangeKind, ChosenHunks, EntryKind, ResourcePath};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::unsupported;

const BASES: &[u8] = b"bases";
/// So many bytes are kept for a sandbox, each version counted as a block at least.
const MOST_KEPT: u64 = 64 << 20;
const BLOCK: u64 = 4096;

/// Where the version of the original is from which a change of the sandbox began.
pub(in crate::strategy) enum BaseText<'a> {
    /// It is not known.
    Unknown,
    /// In this area of the sandbox, if it was kept; the second tells the version from others.
    Kept(&'a Dir, Vec<u8>),
    /// In this tree.
    In(&'a Dir),
}

/// Keeps the versions from which these changes began, as far as the original still has them.
pub(in crate::strategy) fn keep_bases(
    original: &Dir,
    changes: &[Change],
    base: &dyn OriginalBase,
) -> Result<()> {
    let is_file = |one: Option<&crate::model::EntryInfo>| {
        one.is_some_and(|one| one.kind == EntryKind::File && one.size <= LARGEST_TEXT)
    };
    let mergeable = changes.iter().filter(|change| {
        change.kind == ChangeKind::Modified
            && is_file(change.old.as_ref())
            && is_file(change.new.as_ref())
    });
    let mut room = None;
    for change in mergeable {
        let BaseText::Kept(area, version) = began_from(&change.path, base) else {
            continue;
        };
        let name = name(&version, &change.path);
        let (room, used) = match &mut room {
            Some(room) => room,
            none => {
                let found = open_room(area)?;
                let used = found
                    .entries()?
                    .iter()
                    .fold(0, |used, one| used + one.meta.size.max(BLOCK));
                none.insert((found, used))
            }
        };
        let size = change.old.as_ref().map_or(0, |old| old.size).max(BLOCK);
        if *used + size > MOST_KEPT || room.stat(&name)?.is_some() {
            continue;
        }
        let Some(text) = current_text(original, &change.path, base)? else {
            continue;
        };
        let draft = AtomicFile {
            stage: room,
            to: room,
            name: &name,
            fresh: true,
            synced: false,
        };
        draft.write(
            |file| {
                file.write_all(blake3::hash(&text).as_bytes())?;
                file.write_all(&text)
            },
            |_| Ok(()),
        )?;
        *used += size;
    }
    Ok(())
}

/// Gives a fork the versions that the sandbox it began from has: all, or those from which these changes began.
pub(in crate::strategy) fn hand_on_bases(
    from: &Dir,
    to: &Dir,
    of: impl FnOnce() -> Result<Option<(Vec<u8>, Vec<Change>)>>,
) -> Result<()> {
    if from.stat(BASES)?.is_none() {
        return Ok(());
    }
    let (from, to) = (from.subdir(BASES)?, open_room(to)?);
    let names = match of()? {
        Some((version, changes)) => {
            let names = changes.iter().map(|one| name(&version, &one.path));
            names.map(Into::into).collect()
        }
        None => from.names()?,
    };
    for name in names {
        match to.link_to(&name, &from, &name) {
            // The fork does without one that cannot be had.
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Forgets the versions. Over the live original a file that is as before again may be changed from another one later.
pub(in crate::strategy) fn forget_bases(area: &Dir) -> Result<()> {
    Ok(remove::remove(area, BASES)?)
}

fn open_room(area: &Dir) -> Result<Dir> {
    match area.make_dir(BASES, 0o700) {
        Err(error) if error.is(Errno::EXIST) => {}
        made => made?,
    }
    Ok(area.subdir(BASES)?)
}

fn name(version: &[u8], path: &ResourcePath) -> Vec<u8> {
    let mut hash = blake3::Hasher::new();
    hash.update(&(version.len() as u64).to_le_bytes());
    hash.update(version).update(path.as_bytes());
    hash.finalize().to_hex().as_bytes().to_vec()
}

/// What the original has at a path, if that is what the sandbox began with.
fn current_text(
    original: &Dir,
    path: &ResourcePath,
    base: &dyn OriginalBase,
) -> Result<Option<Vec<u8>>> {
    let (dir, name) = match original.parent(path) {
        Err(error) if error.is_absent() || error.leaves() => return Ok(None),
        found => found?,
    };
    let Some(before) = dir.stat(name)?.filter(Meta::is_file) else {
        return Ok(None);
    };
    if !base.is_current(path, Some((&dir, name)), &before)? {
        return Ok(None);
    }
    let text = text((&dir, name))?;
    // Another process may have written meanwhile.
    let after = dir.stat(name)?.as_ref().map(Fingerprint::from);
    Ok(text.filter(|_| after == Some(Fingerprint::from(&before))))
}

/// The content of a file, if it is a text that can be merged, and this user may read it.
pub(super) fn text((dir, name): (&Dir, &[u8])) -> Result<Option<Vec<u8>>> {
    let (file, meta) = match dir.file(name) {
        Err(error) if error.is(Errno::ACCESS) || error.is_absent() || error.leaves() => {
            return Ok(None);
        }
        file => file?,
    };
    if meta.size > LARGEST_TEXT {
        return Ok(None);
    }
    let mut text = Vec::new();
    let read = file.take(LARGEST_TEXT + 1).read_to_end(&mut text);
    read.map_err(|error| dir.io_error("read", name, &error))?;
    Ok(Some(text).filter(|text| is_divisible(text)))
}

/// Where the version is from which a change began. Of what a partial commit released it is not known.
fn began_from<'a>(path: &ResourcePath, base: &'a dyn OriginalBase) -> BaseText<'a> {
    match base.releases() {
        Some(one) if one.released.has(path) => BaseText::Unknown,
        _ => base.base_text(path),
    }
}

/// The version from which a change began.
pub(super) fn base_text(path: &ResourcePath, base: &dyn OriginalBase) -> Result<Option<Vec<u8>>> {
    let (area, version) = match began_from(path, base) {
        BaseText::Unknown => return Ok(None),
        BaseText::In(tree) => {
            return match tree.parent(path) {
                Err(error) if error.is_absent() || error.leaves() => Ok(None),
                Err(error) => Err(error.into()),
                Ok((dir, name)) => text((&dir, name)),
            };
        }
        BaseText::Kept(area, version) => (area, version),
    };
    let name = name(&version, path);
    if area.stat(BASES)?.is_none() {
        return Ok(None);
    }
    let room = area.subdir(BASES)?;
    let mut file = match room.file(&name) {
        Err(error) if error.is_absent() => return Ok(None),
        file => file?.0,
    };
    let mut all = Vec::new();
    let read = file.read_to_end(&mut all);
    read.map_err(|error| room.io_error("read", &name, &error))?;
    let kept = all.split_first_chunk::<{ blake3::OUT_LEN }>();
    let kept = kept.filter(|(digest, text)| blake3::hash(text) == **digest);
    Ok(kept.map(|(_, text)| text.to_vec()))
}

/// Merges the version of the sandbox and that of the original, line by line; why that is not possible otherwise.
pub(super) fn merge(
    path: &ResourcePath,
    base: &dyn OriginalBase,
    ours: (&Dir, &[u8]),
    theirs: (&Dir, &[u8]),
) -> Result<std::result::Result<Vec<u8>, &'static str>> {
    let (Some(ours), Some(theirs)) = (text(ours)?, text(theirs)?) else {
        return Ok(Err("it is no text, or too large to be merged"));
    };
    let Some(base) = base_text(path, base)? else {
        return Ok(Err(
            "it cannot be merged: no version from before both changes was kept",
        ));
    };
    Ok(
        merge_lines(&base, &ours, &theirs)
            .ok_or("it cannot be merged: both changed the same lines"),
    )
}

/// The text that a release of some hunks leaves in the original: its version with them.
pub(super) fn with_hunks(
    original: &Dir,
    sandbox: &dyn VersionSource,
    change: &Change,
    chosen: &ChosenHunks,
) -> Result<Vec<u8>> {
    let path = &change.path;
    let one_name = |meta: Option<Meta>| meta.is_some_and(|meta| meta.is_file() && meta.nlink == 1);
    if !change.is_of_content()
        || !one_name(super::stat(original, path)?)
        || !one_name(sandbox.meta(path)?)
    {
        let what = format!("commit some hunks of '{path}'");
        let why = "only where nothing but the content of a file was changed, and it has one name; mark it as a whole";
        return Err(unsupported("a commit", &what, why));
    }
    let (theirs, theirs_name) = original.parent(path)?;
    let (ours, ours_name) = sandbox.parent(path)?;
    let both = text((&theirs, theirs_name))?.zip(text((&ours, ours_name))?);
    let chosen = both.and_then(|(old, new)| chosen.applied(&old, &new));
    chosen.ok_or_else(|| StrategyError::Moved {
        path: path.clone(),
        what: "it is not what the hunks were chosen from".to_owned(),
    })
}

/// What both made of the lines of `base`; `None` where they changed the same lines, or lines next to each other.
pub(super) fn merge_lines(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let merge = TextMerge::from_lines(base, ours, theirs);
    let sides = |one| matches!(one, MergeResolution::Ours | MergeResolution::Theirs);
    let touches = merge.regions().windows(2).any(|pair| {
        let (one, next) = (pair[0].resolution(), pair[1].resolution());
        sides(one) && sides(next) && one != next
    });
    if touches || merge.is_conflicted() {
        return None;
    }
    let mut merged = Vec::new();
    merge.to_writer(&mut merged).ok()?;
    Some(merged)
}
