//! Renames and copies among the changes of a plan: files that came, beside files that went or changed.
//!
//! First those with the same bytes, then those that share at least half of their lines. What is read is bounded.

use std::collections::{BTreeMap, HashMap};

use super::{VersionContents, read_side};
use crate::error::{Error, Result};
use crate::model::{
    Change, ChangeKind, ChangedField, DiffView, EntryInfo, EntryKind, ResourcePath,
};

/// Larger files are not looked at.
const LARGEST: u64 = 1 << 20;
/// With more files that came, or that went, none is looked at.
const MOST: usize = 200;
/// From how much on two files count as versions of one, of a hundred.
const SIMILAR: u64 = 50;

/// A file that came from another path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// Where it was.
    pub from: ResourcePath,
    /// What it was there.
    pub old: EntryInfo,
    /// How much of it is the same, of a hundred.
    pub similarity: u8,
    /// It still is there.
    pub copied: bool,
}

/// The lines of a file and how many bytes there are of each.
struct Lines {
    counts: HashMap<blake3::Hash, u64>,
    whole: blake3::Hash,
    size: u64,
}

/// Which of the files that came were elsewhere before, by the path that they have now.
pub fn renames(
    view: &DiffView,
    contents: &dyn VersionContents,
) -> Result<BTreeMap<ResourcePath, Rename>> {
    let file = |facts: &&EntryInfo| {
        facts.kind == EntryKind::File && facts.size > 0 && facts.size <= LARGEST
    };
    let came =
        |one: &&Change| one.kind == ChangeKind::Added && one.new.as_ref().filter(file).is_some();
    // What changed may have been copied before.
    let source = |one: &&Change| {
        let changed =
            one.kind == ChangeKind::Modified && one.fields.contains(&ChangedField::Content);
        (changed || one.kind == ChangeKind::Deleted) && one.old.as_ref().filter(file).is_some()
    };
    let came: Vec<&Change> = view.changes.iter().filter(came).collect();
    let sources: Vec<&Change> = view.changes.iter().filter(source).collect();
    let mut found = BTreeMap::new();
    if came.is_empty() || sources.is_empty() || came.len() > MOST || sources.len() > MOST {
        return Ok(found);
    }
    let new = read(&came, |path| contents.sandbox(path))?;
    let old = read(&sources, |path| contents.original(path))?;
    let mut pairs = Vec::new();
    for (to, new) in new.iter().enumerate() {
        for (from, old) in old.iter().enumerate() {
            if let (Some(new), Some(old)) = (new, old) {
                let similarity = similarity(old, new);
                if similarity >= SIMILAR {
                    pairs.push((similarity, to, from));
                }
            }
        }
    }
    // The most similar first; of the same, in the order of their paths.
    pairs.sort_by_key(|(similarity, to, from)| (std::cmp::Reverse(*similarity), *to, *from));
    let mut taken = vec![false; sources.len()];
    for (similarity, to, from) in pairs {
        let (change, to) = (sources[from], &came[to].path);
        let Some(old) = &change.old else { continue };
        if found.contains_key(to) {
            continue;
        }
        let stays = change.kind == ChangeKind::Modified;
        let copied = stays || std::mem::replace(&mut taken[from], true);
        let rename = Rename {
            from: change.path.clone(),
            old: old.clone(),
            similarity: u8::try_from(similarity).unwrap_or(100),
            copied,
        };
        found.insert(to.clone(), rename);
    }
    Ok(found)
}

/// The lines of each file; `None` of what is gone meanwhile, or closed to this user.
fn read(
    changes: &[&Change],
    open: impl Fn(&ResourcePath) -> Result<Box<dyn std::io::Read + Send>>,
) -> Result<Vec<Option<Lines>>> {
    let one = |change: &&Change| match read_side(LARGEST, &|| open(&change.path)) {
        Err(error @ Error::Denied { .. }) => Err(error),
        Err(_) | Ok(None) => Ok(None),
        Ok(Some(bytes)) => {
            let mut counts = HashMap::new();
            for line in super::lines(&bytes) {
                *counts.entry(blake3::hash(line)).or_default() += line.len() as u64;
            }
            let (whole, size) = (blake3::hash(&bytes), bytes.len() as u64);
            Ok(Some(Lines {
                counts,
                whole,
                size,
            }))
        }
    };
    changes.iter().map(one).collect()
}

/// How much two files have in common, of a hundred; a hundred only where they are the same.
fn similarity(old: &Lines, new: &Lines) -> u64 {
    if old.whole == new.whole {
        return 100;
    }
    let common = new.counts.iter().map(|(line, bytes)| {
        let there = old.counts.get(line).copied().unwrap_or(0);
        there.min(*bytes)
    });
    let common: u64 = common.sum();
    (common * 100 / old.size.max(new.size)).min(99)
}
