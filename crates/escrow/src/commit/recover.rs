//! Brings what a dead process left to one side. Can be killed and repeated; two that run at once
//! wait for each other's locks and find nothing left to do.

use super::execute::Stopped;
use super::{Execution, Settled};
use crate::error::{Error, Result, chain};
use crate::model::text::Location;
use crate::model::{Phase, ResourcePath, Work};
use crate::seeded;
use crate::store::Plan;

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

impl Execution<'_> {
    /// Goes on with what a crashed process left. `settled` is what a person says of steps whose outcome is not known.
    pub fn recover(mut self, settled: &Settled) -> Result<Recovered> {
        let (work, found) = (self.journal.work, self.journal.phase);
        let commit = work == Work::Commit;
        let mut recovered = Recovered::plain(&self.plan, work, found, Side::Old);
        if commit && found == Phase::Decided && seeded::bug("recover-drops-decided") {
            self.engine.store.forget_commit(self.journal.id)?;
            return Ok(recovered);
        }
        if commit && seeded::bug("recover-first-member-only") {
            self.members.truncate(1);
        }
        let reverted = match found {
            Phase::Preparing => {
                recovered.left = self.drop_prepared()?;
                return Ok(recovered);
            }
            Phase::Decided | Phase::Forward => match self.carry_out(settled) {
                Ok(_) => None,
                Err(Stopped::Unfinished(error)) => return Err(error),
                Err(Stopped::Reverted(reverted, cause)) => Some((*reverted, cause)),
            },
            Phase::Aborting => {
                let why = "it had failed";
                Some((self.go_back()?, Error::Interrupted { why }))
            }
            Phase::Undoing => Some((self.go_back()?, Error::Undoing)),
            Phase::Applied => None,
            Phase::Committed | Phase::Undone => {
                recovered.side = Side::New;
                return Ok(recovered);
            }
        };
        let Some((reverted, cause)) = reverted else {
            let left = self.finish()?.into_iter();
            recovered.left = left.map(|(of, why)| format!("{of}: {why}")).collect();
            recovered.side = Side::New;
            return Ok(recovered);
        };
        if !reverted.not_undone.is_empty() {
            return Err(reverted.into_error(&self.plan, work, cause));
        }
        // Impossible, but taken back everywhere: that is one side too.
        let decided = matches!(found, Phase::Decided | Phase::Forward);
        recovered.because = decided.then(|| chain(&cause));
        recovered.kept = reverted.kept;
        recovered.left = reverted.left;
        Ok(recovered)
    }
}
