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
    /// Taking the sandbox's version does not settle it: that would break what is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_theirs: bool,
}

impl Conflict {
    /// A conflict of which no version of a file is known.
    pub fn of(path: ResourcePath, what: &str) -> Self {
        Self {
            path,
            what: what.to_owned(),
            ours: None,
            theirs: None,
            only_theirs: false,
        }
    }

    /// The same where only leaving the sandbox's version out settles it.
    pub(crate) fn only_theirs(self) -> Self {
        Self {
            only_theirs: true,
            ..self
        }
    }

    /// The same; this is in the original.
    pub(crate) fn with(path: ResourcePath, what: &str, theirs: Option<EntryInfo>) -> Self {
        Self {
            theirs,
            ..Self::of(path, what)
        }
    }
}
