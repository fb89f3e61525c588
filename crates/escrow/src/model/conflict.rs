//! Conflicts between a sandbox and its original.

use serde::{Deserialize, Serialize};

use super::change::EntryInfo;
use super::path::ResourcePath;

/// A path that both sides changed. Nothing is committed over it by accident (rule C15).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// Where.
    pub path: ResourcePath,
    /// What happened there and here, in words.
    pub what: String,
    /// The sandbox's version; `None` where it has none.
    pub ours: Option<EntryInfo>,
    /// The original's version; `None` where it has none.
    pub theirs: Option<EntryInfo>,
    /// Which versions can be taken.
    #[serde(default, skip_serializing_if = "Choice::is_free")]
    pub choice: Choice,
}

/// Which version can be taken of what both sides changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// Either.
    #[default]
    Either,
    /// The sandbox's: to keep the original's would release half of what belongs together.
    Ours,
    /// The original's: the sandbox's would break what is there.
    Theirs,
    /// Neither can be taken without the rest: something has to be changed.
    Neither,
}

impl Choice {
    /// Whether either version can be taken.
    pub fn is_free(&self) -> bool {
        *self == Self::Either
    }

    /// Which version both permit.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (one, Self::Either) | (Self::Either, one) => one,
            (one, other) if one == other => one,
            _ => Self::Neither,
        }
    }
}

impl Conflict {
    /// A conflict of which no version of a file is known.
    pub fn of(path: ResourcePath, what: &str) -> Self {
        Self {
            path,
            what: what.to_owned(),
            ours: None,
            theirs: None,
            choice: Choice::Either,
        }
    }

    /// The same where not every version can be taken.
    pub(crate) fn choosing(self, choice: Choice) -> Self {
        Self { choice, ..self }
    }

    /// The same; this is in the original.
    pub(crate) fn with(path: ResourcePath, what: &str, theirs: Option<EntryInfo>) -> Self {
        Self {
            theirs,
            ..Self::of(path, what)
        }
    }
}
