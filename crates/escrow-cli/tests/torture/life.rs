//! The life of a plan as a model: what each verb makes of a plan when it succeeds, and what may be there after it was
//! interrupted.
//!
//! Guarantees: the engine has no part in it. A sweep follows a set of states; what it observes narrows the set, and an
//! empty set is a violation.

/// What the sandboxes of a plan, or the originals, hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// What the originals held in the beginning.
    Base,
    /// The first round of changes, which the checkpoint keeps.
    First,
    /// The second round, made on top of the first.
    Second,
}

/// Where a plan is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanLife {
    Absent,
    /// Its creation was interrupted: it can be removed, and nothing else.
    Unusable,
    Open(Content),
    /// What was discarded of it can be brought back.
    Emptied(Content),
    Committed(Content),
    /// Its originals are as before its commit, and it was not opened again yet with what it had released.
    Undone(Content),
    /// Cleaned up; the originals keep what was committed before.
    Removed(Content),
}

impl PlanLife {
    /// What the originals hold meanwhile.
    pub(crate) fn originals(self) -> Content {
        match self {
            Self::Committed(content) | Self::Removed(content) => content,
            Self::Absent | Self::Unusable | Self::Open(_) | Self::Emptied(_) | Self::Undone(_) => {
                Content::Base
            }
        }
    }

    /// What the sandboxes show, while there are any.
    pub(crate) fn sandboxes(self) -> Option<Content> {
        match self {
            Self::Open(content) => Some(content),
            Self::Emptied(_) => Some(Content::Base),
            _ => None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_) | Self::Emptied(_))
    }
}

/// A command that is interrupted, or that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanVerb {
    Create,
    Sandbox,
    Write,
    Run,
    Checkpoint,
    Restore,
    Fork,
    Commit,
    Undo,
    Rollback,
    Cleanup,
    Gc,
    Recover,
}

impl PlanVerb {
    /// Every verb that is interrupted.
    pub(crate) const FIRST: [Self; 13] = [
        Self::Create,
        Self::Cleanup,
        Self::Rollback,
        Self::Commit,
        Self::Undo,
        Self::Recover,
        Self::Restore,
        Self::Fork,
        Self::Sandbox,
        Self::Write,
        Self::Run,
        Self::Checkpoint,
        Self::Gc,
    ];

    /// Every verb that is tried next.
    pub(crate) const NEXT: [Self; 10] = [
        Self::Commit,
        Self::Rollback,
        Self::Cleanup,
        Self::Undo,
        Self::Gc,
        Self::Run,
        Self::Fork,
        Self::Checkpoint,
        Self::Restore,
        Self::Recover,
    ];

    /// What its success makes of a plan; none where it cannot succeed.
    pub(crate) fn done(self, plan: PlanLife) -> Option<PlanLife> {
        use PlanLife::{Absent, Committed, Emptied, Open, Removed, Undone};
        match (self, plan) {
            (Self::Gc | Self::Recover, plan) => Some(plan),
            (Self::Create, Absent) => Some(Open(Content::Base)),
            (
                Self::Sandbox | Self::Write | Self::Run | Self::Checkpoint | Self::Fork,
                Open(_) | Emptied(_),
            ) => Some(plan),
            (Self::Restore, Open(_) | Emptied(_)) => Some(Open(Content::First)),
            (Self::Rollback, Open(content) | Emptied(content)) => Some(Emptied(content)),
            (Self::Commit, Open(content)) => Some(Committed(content)),
            (Self::Commit, Emptied(_)) => Some(Committed(Content::Base)),
            (Self::Undo, Committed(content) | Undone(content) | Emptied(content)) => {
                Some(Open(content))
            }
            (Self::Cleanup, Absent) => None,
            (Self::Cleanup, _) => Some(Removed(plan.originals())),
            _ => None,
        }
    }

    /// Where a plan may be after this verb ended with `status` on its way from `before`.
    pub(crate) fn ended(self, before: PlanLife, status: i32) -> Vec<PlanLife> {
        let done = self.done(before);
        // A plain failure changed nothing. Removing and discarding many may fail in the middle, and say so.
        let plain = (1..5).contains(&status);
        let exact = matches!(self, Self::Commit | Self::Undo | Self::Restore);
        match (status, done) {
            // The originals are as before; that the plan is not open yet is said, and that nothing was kept.
            (0, Some(done)) if self == Self::Undo => match before {
                PlanLife::Committed(content) => vec![done, PlanLife::Undone(content)],
                _ => vec![done],
            },
            (0, Some(done)) if self == Self::Rollback => {
                vec![done, PlanLife::Open(Content::Base)]
            }
            (0, Some(done)) => vec![done],
            (_, None) => vec![before],
            (_, Some(_)) if plain && exact => vec![before],
            (_, Some(done)) if self == Self::Create => vec![before, done, PlanLife::Unusable],
            (_, Some(done)) if self == Self::Undo => {
                let between = match before {
                    PlanLife::Committed(content) => vec![PlanLife::Undone(content)],
                    _ => Vec::new(),
                };
                [vec![before, done], between].concat()
            }
            (_, Some(done)) => vec![before, done],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "plan create",
            Self::Sandbox => "sandbox create",
            Self::Write => "write",
            Self::Run => "run",
            Self::Checkpoint => "checkpoint create",
            Self::Restore => "restore",
            Self::Fork => "plan fork",
            Self::Commit => "commit",
            Self::Undo => "undo",
            Self::Rollback => "rollback",
            Self::Cleanup => "cleanup",
            Self::Gc => "gc",
            Self::Recover => "recover",
        }
    }
}
