//! The digest of what a commit would release: equal digests, equal releases.
//!
//! Each changed path has the digest of what it becomes. That of a plan is one over all of them, in the order of resources
//! and paths. Neither the caller, the strategy, the clock nor an inode number is part of it.

use std::collections::BTreeMap;

use super::change::{Change, EntryKind};
use super::path::ResourcePath;

/// What a digest of one version is made of.
#[derive(Debug)]
pub struct Version<'a> {
    /// What it is.
    pub kind: EntryKind,
    /// The twelve permission bits.
    pub mode: u16,
    /// User and group.
    pub owner: (u32, u32),
    /// A digest of its extended attributes.
    pub attributes: &'a [u8],
    /// Where a symbolic link points.
    pub target: &'a [u8],
    /// The digest of a file's bytes; `None` where its own user may not read them.
    pub content: Option<[u8; 32]>,
}

/// What one path becomes, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionDigest {
    hash: [u8; 32],
    /// Everything is covered, also the bytes of a file.
    whole: bool,
}

impl Version<'_> {
    /// Its digest.
    pub fn digest(&self) -> VersionDigest {
        let mut hash = blake3::Hasher::new();
        let content = self.content.unwrap_or_default();
        part(&mut hash, self.kind.word().as_bytes());
        part(&mut hash, &self.mode.to_le_bytes());
        part(&mut hash, &self.owner.0.to_le_bytes());
        part(&mut hash, &self.owner.1.to_le_bytes());
        for bytes in [self.attributes, self.target, &content] {
            part(&mut hash, bytes);
        }
        VersionDigest {
            hash: *hash.finalize().as_bytes(),
            whole: self.kind != EntryKind::File || self.content.is_some(),
        }
    }
}

/// One part after the other, none of which can be taken for another.
fn part(hash: &mut blake3::Hasher, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// The digest of everything that a commit of a plan would release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanDigest(BTreeMap<(String, ResourcePath), Option<VersionDigest>>);

impl PlanDigest {
    /// Adds the changes of a resource: what is removed, and the new versions of the others.
    pub fn add(&mut self, resource: &str, changes: &[Change], new: VersionDigests) {
        let gone = changes.iter().filter(|change| change.new.is_none());
        let gone = gone.map(|change| (change.path.clone(), None));
        let new = new.into_iter().map(|(path, version)| (path, Some(version)));
        let all = gone.chain(new);
        self.0
            .extend(all.map(|(path, version)| ((resource.to_owned(), path), version)));
    }

    /// The digest in words; `None` where it does not cover everything, since a file may not be read by its own user.
    pub fn text(&self) -> Option<String> {
        let mut hash = blake3::Hasher::new();
        for ((resource, path), version) in &self.0 {
            part(&mut hash, resource.as_bytes());
            part(&mut hash, path.as_bytes());
            part(&mut hash, version.as_ref().map_or(&[], |one| &one.hash));
        }
        let covers = |version: &Option<VersionDigest>| version.is_none_or(|one| one.whole);
        let whole = self.0.values().all(covers);
        whole.then(|| hash.finalize().to_hex().to_string())
    }

    /// The paths at which the two differ.
    pub fn differences(&self, other: &Self) -> Vec<(String, ResourcePath)> {
        let in_both = self
            .0
            .iter()
            .filter(|(at, one)| other.0.get(at) != Some(one));
        let only_there = other.0.iter().filter(|(at, _)| !self.0.contains_key(at));
        let mut all: Vec<_> = in_both
            .chain(only_there)
            .map(|(at, _)| at.clone())
            .collect();
        all.sort();
        all
    }
}

/// New versions of paths.
pub type VersionDigests = Vec<(ResourcePath, VersionDigest)>;

/// What a commit is to release, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// What has this digest.
    Digest(String),
    /// What was shown to the person who was asked.
    Shown(PlanDigest),
}

impl Expected {
    /// Whether this is it.
    pub fn is(&self, found: &PlanDigest) -> bool {
        match self {
            Self::Digest(text) => found.text().as_ref() == Some(text),
            Self::Shown(shown) => shown == found,
        }
    }
}
