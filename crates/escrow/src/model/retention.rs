//! Retention: when workspaces are removed, and how long a commit can be undone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// When the workspaces of a plan go by themselves.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CleanupPolicy {
    /// With its commit. A rollback leaves them, empty, to be worked in again.
    #[default]
    OnCommit,
    /// With whatever ends the work: its commit, and its rollback, which ends the plan.
    OnTerminal,
    /// Never: only when another process asks for it.
    Manual,
}

impl CleanupPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::OnCommit, Self::OnTerminal, Self::Manual];

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnCommit => "on_commit",
            Self::OnTerminal => "on_terminal",
            Self::Manual => "manual",
        }
    }
}

impl fmt::Display for CleanupPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CleanupPolicy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == word)
            .ok_or_else(|| format!("'{word}' is none of on_commit, on_terminal, manual"))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_one_word() {
        for policy in CleanupPolicy::ALL {
            assert_eq!(policy.as_str().parse(), Ok(policy));
        }
        assert!("always".parse::<CleanupPolicy>().is_err());
    }
}
