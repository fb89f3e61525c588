//! The changed paths that the original changed too: found without a preview, at the cost of one look at each change.

use std::collections::HashSet;

use super::OriginalBase;
use super::merge::base_text;
use crate::fs::Dir;
use crate::model::{Change, ChangeKind, EntryKind};
use crate::strategy::BothSides;
use crate::strategy::error::Result;

/// Which of these changes are of paths that the original changed since, each with the text that both began from if it is known.
pub(in crate::strategy) fn both_sides(
    original: &Dir,
    changes: &[Change],
    base: &dyn OriginalBase,
) -> Result<BothSides> {
    let original = original.again().keeping();
    let is_dir = |change: &Change| {
        let facts = change.new.as_ref().or(change.old.as_ref());
        facts.is_some_and(|facts| facts.kind == EntryKind::Directory)
    };
    let (mut new_dirs, mut found) = (HashSet::new(), BothSides::new());
    for change in changes {
        let path = &change.path;
        let above = path.split().map(|(above, _)| above);
        if is_dir(change) {
            if change.kind == ChangeKind::Added {
                new_dirs.insert(path.clone());
            }
            continue;
        }
        // Nothing else can have been in a directory that is new.
        if above.is_none_or(|above| new_dirs.contains(&above)) {
            continue;
        }
        if is_moved(&original, change, base)? {
            found.insert(path.clone(), base_text(path, base)?);
        }
    }
    Ok(found)
}

fn is_moved(original: &Dir, change: &Change, base: &dyn OriginalBase) -> Result<bool> {
    let path = &change.path;
    match original.parent(path) {
        Err(error) if error.is_absent() || error.leaves() => {}
        Err(error) => return Err(error.into()),
        Ok((dir, name)) => {
            if let Some(now) = dir.stat(name)? {
                return Ok(!base.is_current(path, Some((&dir, name)), &now)?);
            }
        }
    }
    match (&change.old, &change.new) {
        (_, None) => Ok(false),
        (Some(_), _) => Ok(true),
        (None, Some(_)) => base.was_there(path),
    }
}
