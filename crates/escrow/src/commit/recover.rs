//! Brings what a dead process left to one side. Can be killed and repeated; two that run at once
//! wait for each other's locks and find nothing left to do.

use super::apply::{Applied, Committed, Decided};
use super::{Engine, Member, abort, undo};
use crate::error::{Error, Result};
use crate::model::text::Location;
use crate::model::{Phase, ResourcePath, Work};
use crate::seeded;
use crate::store::{Journal, Plan};

/// On which side a plan came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Every original is as it was before.
    Old,
    /// Every original holds the new state.
    New,
}

/// A plan that was brought to one side.
#[derive(Debug)]
pub struct Recovered {
    /// The plan.
    pub plan: String,
    /// In which phase it was found.
    pub found: Phase,
    /// Where it came out.
    pub side: Side,
    /// Why the decision could not be carried out, if it could not.
    pub because: Option<String>,
    /// What somebody else wrote meanwhile: resource, path, and where it is kept now.
    pub kept: Vec<(String, ResourcePath, Location)>,
    /// What was staged and could not be removed, and why.
    pub left: Vec<String>,
    /// What was interrupted.
    pub work: Work,
}

impl Recovered {
    /// Something that came out on a side without more to say.
    pub fn plain(plan: &Plan, work: Work, found: Phase, side: Side) -> Self {
        Self {
            plan: plan.name.clone(),
            found,
            side,
            because: None,
            kept: Vec::new(),
            left: Vec::new(),
            work,
        }
    }

    /// What holds now, for people.
    pub fn outcome(&self) -> &'static str {
        match (self.work, self.side) {
            (Work::Commit, Side::Old) => "every original is as it was before",
            (Work::Commit, Side::New) => "every original holds the new state",
            (Work::Restore, Side::Old) => "every sandbox is as it was before",
            (Work::Restore, Side::New) => "every sandbox is as at the checkpoint",
            (Work::Rollback, _) => "the changes of every sandbox are discarded",
            (Work::Creation, _) => "nothing of it is left, and it can be created again",
            (Work::Removal, _) => "it is removed",
        }
    }
}

/// Goes on with a commit whose owner is dead; the caller holds the locks. `members` are those of
/// the journal, in its order.
pub fn recover(
    engine: Engine<'_>,
    plan: Plan,
    journal: Journal,
    members: Vec<Member>,
) -> Result<Recovered> {
    let (of, found) = (plan.clone(), journal.phase);
    let at = |side| Recovered::plain(&of, Work::Commit, found, side);
    if journal.phase == Phase::Decided && seeded::bug("recover-drops-decided") {
        engine.store.forget_commit(journal.id)?;
        return Ok(at(Side::Old));
    }
    let mut members = members;
    if seeded::bug("recover-first-member-only") {
        members.truncate(1);
    }
    match journal.phase {
        Phase::Preparing => {
            let left = abort::drop_prepared(&engine, &journal, &members)?;
            Ok(Recovered {
                left,
                ..at(Side::Old)
            })
        }
        Phase::Aborting => {
            let outcome = abort::finish_abort(&engine, &journal, &members)?;
            settled(&plan, outcome, at(Side::Old))
        }
        Phase::Decided => {
            let decided = Decided {
                engine,
                plan,
                journal,
                members,
            };
            match decided.apply() {
                Ok(applied) => Ok(finished(applied.finish()?, at(Side::New))),
                // Impossible, but undone everywhere: that is one side too.
                Err(Error::CommitFailed {
                    cause,
                    not_undone,
                    kept,
                    left,
                    ..
                }) if not_undone.is_empty() => Ok(Recovered {
                    because: Some(crate::error::chain(&*cause)),
                    kept,
                    left,
                    ..at(Side::Old)
                }),
                Err(error) => Err(error),
            }
        }
        Phase::Applied => {
            let applied = Applied {
                engine,
                plan,
                journal,
                members,
            };
            Ok(finished(applied.finish()?, at(Side::New)))
        }
        Phase::Undoing => {
            let undone = undo::go_on(&engine, &plan, &journal, &members)?;
            Ok(Recovered {
                kept: undone.kept,
                left: undone.left,
                ..at(Side::Old)
            })
        }
        Phase::Committed | Phase::Undone => Ok(at(Side::New)),
    }
}

/// A commit that is over, with what could not be removed.
fn finished(done: Committed, at: Recovered) -> Recovered {
    let left = done.left.into_iter();
    Recovered {
        left: left.map(|(of, why)| format!("{of}: {why}")).collect(),
        ..at
    }
}

/// What was taken back, if nothing is left to be taken back.
fn settled(plan: &Plan, outcome: abort::Outcome, at: Recovered) -> Result<Recovered> {
    match outcome.not_undone.is_empty() {
        true => Ok(Recovered {
            kept: outcome.kept,
            left: outcome.left,
            ..at
        }),
        false => {
            let why = "its commit had failed";
            Err(outcome.into_error(plan, Error::Interrupted { why }))
        }
    }
}
