//! Journaled operations on a plan and their phases: the one table of phases.

use std::fmt;
use std::str::FromStr;

/// What is done with all sandboxes of a plan as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JournaledWork {
    /// Their changes go into the originals.
    Commit,
    /// They return to a checkpoint.
    Restore,
    /// Their changes are discarded.
    Rollback,
    /// They are made, with their plan. Its state is the record of it.
    Creation,
    /// They are removed, with their plan. Its state is the record of it.
    Removal,
}

impl JournaledWork {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Commit,
        Self::Restore,
        Self::Rollback,
        Self::Creation,
        Self::Removal,
    ];

    /// The word in the store, in JSON and on the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Restore => "restore",
            Self::Rollback => "rollback",
            Self::Creation => "creation",
            Self::Removal => "cleanup",
        }
    }
}

impl fmt::Display for JournaledWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for JournaledWork {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|work| work.as_str() == word)
            .ok_or_else(|| format!("nothing that is journaled is called '{word}'"))
    }
}

/// A phase of a commit, as the journal knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing is decided; no original was touched.
    Preparing,
    /// It will be carried out, by the process that finds it.
    Decided,
    /// A step that cannot be taken back may have been made: it will be carried out, and nothing is taken back.
    Forward,
    /// It will be taken back, by the process that finds it.
    Aborting,
    /// Every original holds the new state; the sandboxes may go.
    Applied,
    /// It is over, and can be undone.
    Committed,
    /// It is being undone, by the process that finds it.
    Undoing,
    /// It was undone.
    Undone,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 8] = [
        Self::Preparing,
        Self::Decided,
        Self::Forward,
        Self::Aborting,
        Self::Applied,
        Self::Committed,
        Self::Undoing,
        Self::Undone,
    ];

    /// The word that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Decided => "decided",
            Self::Forward => "forward",
            Self::Aborting => "aborting",
            Self::Applied => "applied",
            Self::Committed => "committed",
            Self::Undoing => "undoing",
            Self::Undone => "undone",
        }
    }

    /// Where it can go from here. A commit that was aborted has no record any more. From `forward` one goes back only
    /// while no step is recorded as carried out that cannot be taken back (rule C18).
    pub fn successors(self) -> &'static [Self] {
        match self {
            Self::Preparing => &[Self::Decided, Self::Aborting],
            Self::Decided => &[Self::Forward, Self::Applied, Self::Aborting],
            Self::Forward => &[Self::Applied, Self::Aborting],
            Self::Aborting => &[],
            Self::Applied => &[Self::Committed],
            Self::Committed => &[Self::Undoing],
            Self::Undoing => &[Self::Undone],
            Self::Undone => &[],
        }
    }

    /// Whether another process must bring it to an end.
    pub fn is_unfinished(self) -> bool {
        !matches!(self, Self::Committed | Self::Undone)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|phase| phase.as_str() == word)
            .ok_or_else(|| format!("no commit is ever '{word}'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_one_word_and_leads_to_an_end() {
        for phase in Phase::ALL {
            assert_eq!(phase.as_str().parse(), Ok(phase));
            let ends = phase.successors().is_empty() || !phase.is_unfinished();
            assert!(ends || phase.successors().iter().any(|next| *next != phase));
        }
    }
}
