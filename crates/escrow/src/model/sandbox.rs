//! The reference to a sandbox, and the one table of its states (rule P5).

use serde::{Deserialize, Serialize};

use super::id::{PlanId, ResourceId};
use super::text::Location;
use super::words::words;

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
        let read = said.map(|areas| serde_json::from_value(areas.clone()));
        read.and_then(Result::ok).unwrap_or_default()
    }
}

words! {
    /// Where a sandbox stands.
    pub enum SandboxState {
        /// Recorded; being made, or its maker died.
        Pending = "pending",
        /// Made, not worked in.
        Created = "created",
        /// Being worked in.
        Active = "active",
        /// Its changes were released.
        Committed = "committed",
        /// Its changes were discarded or taken back; it can be worked in again.
        RolledBack = "rolled_back",
        /// Removed; only the record is left.
        CleanedUp = "cleaned_up",
        /// It is no longer whole: its removal has begun. Only its cleanup is left.
        Errored = "errored",
    }
    else |word| format!("no sandbox is ever '{word}'")
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
    /// The states that may follow. Staying where one is needs no move.
    pub fn successors(self) -> &'static [Self] {
        use SandboxState::*;
        match self {
            Pending => &[Created, Errored, CleanedUp],
            Created => &[Active, RolledBack, Errored, CleanedUp],
            Active => &[Committed, RolledBack, Errored, CleanedUp],
            Committed => &[Active, RolledBack, Errored, CleanedUp],
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
            let next = state.successors().iter().map(|to| format!("`{to}`"));
            let next = next.collect::<Vec<_>>().join(", ");
            let next = if next.is_empty() { "–" } else { &next };
            table.push_str(&format!("| `{state}` | {next} |\n"));
        }
        table
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
            (Committed, Active),
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
}
