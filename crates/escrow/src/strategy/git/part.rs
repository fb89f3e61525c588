//! What of a history belongs together, and what it becomes in short.

use std::collections::HashSet;

use super::super::error::Result;
use super::history::is_released;
use super::session::LastLook;
use super::{index, refused};
use crate::model::digest::VersionDigest;
use crate::model::{Change, Detail, ResourcePath};

/// Refuses a part in which a branch would move without files of its commits: references, the index and those files go
/// together.
pub(super) fn check_part<'a>(
    last: &LastLook,
    history: &[&Change],
    own: impl Iterator<Item = &'a &'a Change>,
) -> Result<()> {
    let apart = |path: &ResourcePath, why: &str| {
        let why = format!(
            "{why}; `--exclude '.git/**'` leaves the history in the sandbox, and the files arrive uncommitted"
        );
        Err(refused(
            &format!("commit the history without '{path}'"),
            &why,
        ))
    };
    let chosen: HashSet<&ResourcePath> = history.iter().map(|one| &one.path).collect();
    if let Some(left) = last.rows.iter().find(|path| !chosen.contains(path)) {
        return apart(left, "references and what is staged go together");
    }
    let chosen: HashSet<&ResourcePath> = own.map(|one| &one.path).collect();
    let index = last.found.index.iter().map(|one| one.path.as_bytes());
    let committed = last.found.committed.iter().map(Vec::as_slice);
    let tracked: HashSet<&[u8]> = index.chain(committed).collect();
    let mut left = last.files.iter().filter(|path| !chosen.contains(path));
    match left.find(|path| tracked.contains(path.as_bytes())) {
        Some(path) => apart(path, "it was committed or staged inside"),
        None => Ok(()),
    }
}

/// What a reference, the index or a named file becomes, in short.
pub(super) fn digest(change: &Change) -> Option<(ResourcePath, VersionDigest)> {
    let Detail::Opaque { detail, .. } = &change.detail else {
        return None;
    };
    if !is_released(change) {
        return None;
    }
    let version = match index::digest(change) {
        Some(digest) => digest,
        None => {
            let new = detail.get("new")?.as_str().unwrap_or("deleted");
            match detail["work"].as_str() {
                // What is staged, and not among the files, is in it too.
                Some(tree) => VersionDigest::new(&[b"ref", new.as_bytes(), tree.as_bytes()], true),
                None => VersionDigest::new(&[b"ref", new.as_bytes()], true),
            }
        }
    };
    Some((change.path.clone(), version))
}
