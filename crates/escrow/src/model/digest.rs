//! The digest of what a commit would release: equal digests, equal releases.
//!
//! Each changed path has the digest of what it becomes. That of a plan is one over all of them, in the order of resources
//! and paths. Neither the caller, the strategy, the clock nor an inode number is part of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::change::{Change, ChangeKind, Detail};
use super::path::ResourcePath;

/// What one path becomes, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionDigest {
    hash: [u8; 32],
    /// Everything is covered, also the bytes of a file.
    whole: bool,
}

/// New versions of paths.
pub type VersionDigests = Vec<(ResourcePath, VersionDigest)>;

impl VersionDigest {
    /// The digest of a version that consists of these parts.
    pub fn new(parts: &[&[u8]], whole: bool) -> Self {
        let mut hash = blake3::Hasher::new();
        parts.iter().for_each(|part| add(&mut hash, part));
        Self {
            hash: *hash.finalize().as_bytes(),
            whole,
        }
    }
}

/// Adds a part that cannot be taken for the end of the one before.
fn add(hash: &mut blake3::Hasher, part: &[u8]) {
    hash.update(&(part.len() as u64).to_le_bytes());
    hash.update(part);
}

/// The digest of everything that a commit of a plan would release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDigest(BTreeMap<(String, ResourcePath), Option<VersionDigest>>);

impl PlanDigest {
    /// Adds the changes of a resource: what is removed, and the new versions of the others.
    pub fn add(&mut self, resource: &str, changes: &[Change], new: VersionDigests) {
        let mut new: BTreeMap<ResourcePath, VersionDigest> = new.into_iter().collect();
        for change in changes {
            let version = new.remove(&change.path);
            // Of what is no file's its strategy says whether it goes.
            let goes = change.kind == ChangeKind::Deleted
                && !matches!(change.detail, Detail::Opaque { .. });
            if version.is_some() || goes {
                let at = (resource.to_owned(), change.path.clone());
                self.0.insert(at, version);
            }
        }
    }

    /// The digest as text; `None` where it does not cover everything, since a file may not be read by its own user.
    pub fn text(&self) -> Option<String> {
        let mut hash = blake3::Hasher::new();
        for ((resource, path), version) in &self.0 {
            add(&mut hash, resource.as_bytes());
            add(&mut hash, path.as_bytes());
            add(&mut hash, version.as_ref().map_or(&[], |one| &one.hash));
        }
        let whole = self.0.values().flatten().all(|version| version.whole);
        whole.then(|| hash.finalize().to_hex().to_string())
    }

    /// The paths at which the two differ.
    pub fn differences(&self, other: &Self) -> Vec<(String, ResourcePath)> {
        let all: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let differs = |at: &&(String, ResourcePath)| self.0.get(*at) != other.0.get(*at);
        all.into_iter().filter(differs).cloned().collect()
    }
}

/// What a commit is to release, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What has this digest.
    Digest(String),
    /// What was shown to the person who was asked.
    Shown(PlanDigest),
}
