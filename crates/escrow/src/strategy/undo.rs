//! The words of an undo: what it is to leave and to merge, what it would do, what it did.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::PathSample;
use crate::model::ResourcePath;
use crate::model::text::Location;

/// Which changes of a commit an undo leaves in the original, and which it merges with what changed there since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoChoices {
    /// These stay as they are in the original now.
    pub leave: BTreeSet<ResourcePath>,
    /// These become the version from before the commit with what was changed since.
    pub merge: BTreeSet<ResourcePath>,
    /// These go back although they were changed since: their newer versions are the plan's.
    #[serde(default)]
    pub take: BTreeSet<ResourcePath>,
}

impl UndoChoices {
    /// Whether everything is taken back as it was.
    pub fn is_everything(&self) -> bool {
        self.leave.is_empty() && self.merge.is_empty() && self.take.is_empty()
    }
}

/// What an undo would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoPlan {
    /// Every path that the commit changed, and that an undo can leave.
    pub paths: Vec<ResourcePath>,
    /// Paths that cannot be merged, and why.
    pub unmerged: Vec<(ResourcePath, String)>,
}

/// What an undo did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackReport {
    /// Versions that another process wrote into the original meanwhile, and where they are now.
    pub kept: Vec<(ResourcePath, Location)>,
    /// The paths of the original that are as before again, where a commit was taken back and they are known.
    pub paths: PathSample,
    /// Work of the sandbox that went with what was taken back, in words.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Entries of others in directories that the commit had made: they stay where they are.
    #[serde(default)]
    pub stays: Vec<ResourcePath>,
}
