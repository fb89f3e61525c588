//! The answer whether a strategy works here.

use serde::{Deserialize, Serialize};

/// Whether a strategy works here, and why or why not, in words for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// It works.
    pub works: bool,
    /// Why, or why not.
    pub reason: String,
    /// What would not work in a sandbox of this original, though the strategy works.
    pub limit: Option<String>,
    /// For what the answer may be given again without asking.
    pub remember: Remember,
}

/// For what an answer may be given again, for as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remember {
    /// For nothing: it is asked each time.
    Never,
    /// For the same resource with its area in the same directory.
    ForTarget,
}

impl Probe {
    /// It works, and this is why.
    pub fn yes(reason: impl Into<String>) -> Self {
        Self {
            works: true,
            reason: reason.into(),
            limit: None,
            remember: Remember::ForTarget,
        }
    }

    /// It does not work, and this is why.
    pub fn no(reason: impl Into<String>) -> Self {
        Self {
            works: false,
            reason: reason.into(),
            limit: None,
            remember: Remember::ForTarget,
        }
    }

    /// The answer in one line, as it is stored with a sandbox.
    pub fn summary(&self, name: &str) -> String {
        match (self.works, &self.limit) {
            (true, None) => format!("{name} works: {}", self.reason),
            (true, Some(limit)) => format!("{name} works with a limit: {limit}"),
            (false, _) => format!("{name} does not: {}", self.reason),
        }
    }
}
