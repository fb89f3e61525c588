//! Retention: when workspaces are removed, and how long a commit can be undone.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::words::words;

words! {
    /// When the workspaces of a plan go by themselves.
    #[derive(Default, Serialize, Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum CleanupPolicy {
        /// With its commit. A rollback leaves them, empty, to be worked in again.
        #[default]
        OnCommit = "on_commit",
        /// With whatever ends the work: its commit, and its rollback, which ends the plan.
        OnTerminal = "on_terminal",
        /// Never: only when another process asks for it.
        Manual = "manual",
    }
    else |word| format!("'{word}' is none of on_commit, on_terminal, manual")
}

words! {
    /// Whose the caches of tools are that commands use.
    #[derive(Default, Serialize, Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum CachePolicy {
        /// Each project has its own.
        #[default]
        Project = "project",
        /// All projects share those of tools that compare what they take out with a hash.
        Shared = "shared",
        /// There are none: what is downloaded goes with the plan.
        None = "none",
    }
    else |word| format!("'{word}' is none of project, shared, none")
}

/// How long what is finished stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// When workspaces go.
    pub cleanup: CleanupPolicy,
    /// For how long a commit can be undone; afterwards garbage collection takes what is kept for it.
    pub undo: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            cleanup: CleanupPolicy::default(),
            undo: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}
