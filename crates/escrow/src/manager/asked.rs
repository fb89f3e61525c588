//! What a command inside may ask for, and how often.

use super::Manager;
use crate::error::{Error, Result};
use crate::run::AGENT;
use crate::store::Plan;

/// From so many checkpoints on that were asked for, a command inside gets no further one.
const MOST: usize = 200;

/// So many are taken for it in a minute.
const IN_A_MINUTE: usize = 30;

impl Manager {
    /// Refuses a checkpoint for a command inside that has had many: each pauses what works in the plan, and takes room that nobody agreed to.
    pub(super) fn check_asked_checkpoint(&self, plan: &Plan) -> Result<()> {
        if self.options.principal != AGENT {
            return Ok(());
        }
        let mut asked = self.checkpoints(plan)?;
        asked.retain(|one| one.reason.is_none());
        let now = self.options.origin.now();
        let lately = asked.iter().filter(|one| {
            let age = now.duration_since(one.created_at);
            age.as_secs() < 60
        });
        let why = match (asked.len() >= MOST, lately.count() >= IN_A_MINUTE) {
            (true, _) => format!(
                "there are {MOST} already; `escrow checkpoint delete` removes some, outside of the run"
            ),
            (_, true) => format!("{IN_A_MINUTE} were taken within a minute; try again later"),
            (false, false) => return Ok(()),
        };
        let plan = plan.name.clone();
        Err(Error::ManyCheckpoints { plan, why })
    }
}
