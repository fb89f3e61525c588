//! Finishes or rolls back what a crashed process left. Can be killed and repeated; two that run at once wait
//! for each other's locks, and the second finds nothing left to do.

use super::execute::Stopped;
use super::{Execution, Settled};
use crate::error::{Error, Result, chain};
use crate::failpoints;
use crate::model::text::Location;
use crate::model::{JournaledWork, Phase, ResourcePath};
use crate::store::Plan;

/// On which side a plan came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveredTo {
    /// Every original is as it was before.
    Old,
    /// Every original holds the new state.
    New,
}

/// A plan that was finished or rolled back.
#[derive(Debug)]
pub struct RecoveredPlan {
    /// The plan.
    pub plan: String,
    /// In which phase it was found.
    pub found: Phase,
    /// Where it came out.
    pub side: RecoveredTo,
    /// Why the decision could not be carried out, if it could not.
    pub because: Option<String>,
    /// What another process wrote meanwhile: resource, path, and where it is kept now.
    pub kept: Vec<(String, ResourcePath, Location)>,
    /// What was staged and could not be removed, and why.
    pub left: Vec<String>,
    /// Work of sandboxes that went with what was taken back.
    pub lost: Vec<String>,
    /// What was interrupted.
    pub work: JournaledWork,
}

impl RecoveredPlan {
    /// A plain end, with nothing more to say.
    pub fn plain(plan: &Plan, work: JournaledWork, found: Phase, side: RecoveredTo) -> Self {
        Self {
            plan: plan.name.clone(),
            found,
            side,
            because: None,
            kept: Vec::new(),
            left: Vec::new(),
            lost: Vec::new(),
            work,
        }
    }

    /// What holds now, for people.
    pub fn outcome(&self) -> &'static str {
        match (self.work, self.side) {
            (JournaledWork::Commit, RecoveredTo::Old) => {
                "rolled back: every original is as it was before"
            }
            (JournaledWork::Commit, RecoveredTo::New) => {
                "finished: every original holds the new state"
            }
            (JournaledWork::Restore, RecoveredTo::Old) => {
                "rolled back: every sandbox is as it was before"
            }
            (JournaledWork::Restore, RecoveredTo::New) => {
                "finished: every sandbox is at the checkpoint"
            }
            (JournaledWork::Rollback, _) => "finished: the changes of every sandbox are discarded",
            (JournaledWork::Creation, _) => "removed: it can be created again",
            (JournaledWork::Removal, _) => "removed",
        }
    }
}

impl Execution<'_> {
    /// Goes on with what a crashed process left. `settled` is what a person says of steps whose outcome is not known.
    pub(crate) fn recover(mut self, settled: &Settled) -> Result<RecoveredPlan> {
        let (work, found) = (self.journal.work, self.journal.phase);
        let commit = work == JournaledWork::Commit;
        let mut recovered = RecoveredPlan::plain(&self.plan, work, found, RecoveredTo::Old);
        if commit && found == Phase::Decided && failpoints::bug("recover-drops-decided") {
            self.engine.store.forget_commit(self.journal.id)?;
            return Ok(recovered);
        }
        if commit && failpoints::bug("recover-first-member-only") {
            self.members.truncate(1);
        }
        let reverted = match found {
            Phase::Preparing => {
                let dropped = self.drop_prepared()?;
                (recovered.left, recovered.lost) = (dropped.left, dropped.lost);
                return Ok(recovered);
            }
            Phase::Decided | Phase::Forward => match self.carry_out(settled) {
                Ok(_) => None,
                Err(Stopped::Unfinished(error)) => return Err(error),
                Err(Stopped::Reverted(reverted, cause)) => Some((*reverted, cause)),
            },
            Phase::Aborting => {
                let why = "it had failed".to_owned();
                Some((self.go_back()?, Error::Interrupted { why }))
            }
            Phase::Undoing => Some((self.go_back()?, Error::Undoing)),
            Phase::Applied => None,
            Phase::Committed | Phase::TakenBack | Phase::Undone => {
                recovered.side = RecoveredTo::New;
                return Ok(recovered);
            }
        };
        let Some((reverted, cause)) = reverted else {
            let left = self.finish()?.into_iter();
            recovered.left = left.map(|(of, why)| format!("{of}: {why}")).collect();
            recovered.side = RecoveredTo::New;
            return Ok(recovered);
        };
        if !reverted.not_undone.is_empty() {
            return Err(reverted.into_error(&self.plan, work, cause));
        }
        // Impossible, but taken back everywhere: that is a valid end too.
        let decided = matches!(found, Phase::Decided | Phase::Forward);
        recovered.because = decided.then(|| chain(&cause));
        recovered.kept = reverted.kept;
        (recovered.left, recovered.lost) = (reverted.left, reverted.lost);
        Ok(recovered)
    }
}
