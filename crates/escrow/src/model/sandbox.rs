//! The reference to a sandbox, and the one table of its states (rule P5).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::id::{PlanId, ResourceId};
use super::text::Location;

/// All another process needs to go on with a sandbox, also after a reboot (rule P3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRef {
    /// The plan it belongs to.
    pub plan_id: PlanId,
    /// What it is a sandbox of.
    pub resource_id: ResourceId,
    /// The strategy that made it and is the only one that understands `metadata`.
    pub strategy_name: String,
    /// What the strategy wrote down about it.
    pub metadata: serde_json::Value,
}

impl SandboxRef {
    /// The areas of other sandboxes that must stay for as long as this one, as `depends_on` of the metadata says.
    pub fn depends_on(&self) -> Vec<Location> {
        let said = self.metadata.get("depends_on");
        // As earlier versions called it.
        let said = said.or_else(|| self.metadata.get("lenders"));
        let read = said.map(|areas| serde_json::from_value(areas.clone()));
        read.and_then(Result::ok).unwrap_or_default()
    }
}

/// Where a sandbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Recorded; being made, or its maker died.
    Pending,
    /// Made, not worked in.
    Created,
    /// Being worked in.
    Active,
    /// Its changes were released.
    Committed,
    /// Its changes were discarded or taken back; it can be worked in again.
    RolledBack,
    /// Removed; only the record is left.
    CleanedUp,
    /// It is no longer whole: its removal has begun. Only its cleanup is left.
    Errored,
}

/// A move that the table does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {from} cannot become {to}")]
pub struct IllegalMove {
    /// The state it is in.
    pub from: SandboxState,
    /// The state that was asked for.
    pub to: SandboxState,
}

impl SandboxState {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Created,
        Self::Active,
        Self::Committed,
        Self::RolledBack,
        Self::CleanedUp,
        Self::Errored,
    ];

    /// The word in the store, in JSON and on the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Created => "created",
            Self::Active => "active",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::CleanedUp => "cleaned_up",
            Self::Errored => "errored",
        }
    }

    /// The states that may follow. Staying where one is needs no move.
    pub fn successors(self) -> &'static [Self] {
        use SandboxState::*;
        match self {
            Pending => &[Created, Errored, CleanedUp],
            Created => &[Active, RolledBack, Errored, CleanedUp],
            Active => &[Committed, RolledBack, Errored, CleanedUp],
            Committed => &[RolledBack, Errored, CleanedUp],
            RolledBack => &[Active, Errored, CleanedUp],
            Errored => &[CleanedUp],
            CleanedUp => &[],
        }
    }

    /// Moves to `next`, or says which move is illegal.
    pub fn go(self, next: Self) -> Result<Self, IllegalMove> {
        if self == next || self.successors().contains(&next) {
            return Ok(next);
        }
        Err(IllegalMove {
            from: self,
            to: next,
        })
    }

    /// Whether it can be read and compared.
    pub fn is_readable(self) -> bool {
        matches!(self, Self::Created | Self::Active | Self::RolledBack)
    }

    /// The table of legal moves as Markdown, for the documentation.
    pub fn table() -> String {
        let mut table = String::from("| from | to |\n|---|---|\n");
        for state in Self::ALL {
            let next: Vec<String> = state
                .successors()
                .iter()
                .map(|to| format!("`{to}`"))
                .collect();
            let next = if next.is_empty() {
                "–".to_owned()
            } else {
                next.join(", ")
            };
            table.push_str(&format!("| `{state}` | {next} |\n"));
        }
        table
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SandboxState {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == word)
            .ok_or_else(|| format!("no sandbox is ever '{word}'"))
    }
}

#[cfg(test)]
mod tests {
    use super::SandboxState::*;
    use super::*;

    // rule P5
    #[test]
    fn the_legal_moves_are_these_and_no_others() {
        let legal = [
            (Pending, Created),
            (Created, Active),
            (Created, RolledBack),
            (Active, Committed),
            (Active, RolledBack),
            (Committed, RolledBack),
            (RolledBack, Active),
            (Pending, Errored),
            (Created, Errored),
            (Active, Errored),
            (Committed, Errored),
            (RolledBack, Errored),
        ];
        for from in SandboxState::ALL {
            for to in SandboxState::ALL {
                let expected = from == to
                    || (to == CleanedUp && from != CleanedUp)
                    || legal.contains(&(from, to));
                assert_eq!(from.go(to).is_ok(), expected, "{from} -> {to}");
                if !expected {
                    let error = from.go(to).expect_err("the move is illegal").to_string();
                    assert!(error.contains(from.as_str()) && error.contains(to.as_str()));
                }
            }
        }
    }

    #[test]
    fn every_state_has_one_word() {
        for state in SandboxState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
    }
}
