//! Journaled operations on a plan and their phases: the one table of phases.

use super::words::words;

words! {
    /// What is done with all sandboxes of a plan as one.
    pub enum JournaledWork {
        /// Their changes go into the originals.
        Commit = "commit",
        /// They return to a checkpoint.
        Restore = "restore",
        /// Their changes are discarded.
        Rollback = "rollback",
        /// They are made, with their plan. Its state is the record of it.
        Creation = "creation",
        /// They are removed, with their plan. Its state is the record of it.
        Removal = "cleanup",
    }
    else |word| format!("nothing that is journaled is called '{word}'")
}

words! {
    /// A phase of a commit, as the journal knows it.
    pub enum Phase {
        /// Nothing is decided; no original was touched.
        Preparing = "preparing",
        /// It will be carried out, by the process that finds it.
        Decided = "decided",
        /// A step that cannot be taken back may have been made: it will be carried out, and nothing is taken back.
        Forward = "forward",
        /// It will be taken back, by the process that finds it.
        Aborting = "aborting",
        /// Every original holds the new state; the sandboxes may go.
        Applied = "applied",
        /// It is over, and can be undone.
        Committed = "committed",
        /// It is being undone, by the process that finds it.
        Undoing = "undoing",
        /// Every original is as before; its plan is still to be opened again with what it had released.
        TakenBack = "taken_back",
        /// It was undone.
        Undone = "undone",
    }
    else |word| format!("no commit is ever '{word}'")
}

impl Phase {
    /// Where it can go from here. A commit that was aborted has no record any more. From `forward` one goes back only
    /// while no step is recorded as carried out that cannot be taken back (rule C18).
    pub(crate) fn successors(self) -> &'static [Self] {
        match self {
            Self::Preparing => &[Self::Decided, Self::Aborting],
            Self::Decided => &[Self::Forward, Self::Applied, Self::Aborting],
            Self::Forward => &[Self::Applied, Self::Aborting],
            Self::Aborting | Self::Undone => &[],
            Self::Applied => &[Self::Committed],
            Self::Committed => &[Self::Undoing],
            Self::Undoing => &[Self::TakenBack, Self::Undone],
            // Of a commit of which only a part was taken back the rest still stands.
            Self::TakenBack => &[Self::Committed, Self::Undone],
        }
    }

    /// Whether another process must bring it to an end.
    pub fn is_unfinished(self) -> bool {
        !matches!(self, Self::Committed | Self::TakenBack | Self::Undone)
    }
}
