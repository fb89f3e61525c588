//! Purge: everything that Escrow keeps is removed, for who goes on without it.
//!
//! Plans go first, each as a cleanup removes it, with what lies beside originals and on servers; then what belongs to nothing;
//! then the state itself, by the names that it consists of. What else lies in the home is another's, and stays.

use super::{GarbageRequest, KeptLeftover, Manager};
use crate::error::Result;
use crate::fs::state_dir;
use crate::model::text::Location;
use crate::model::{Action, PlanState, Scope};
use crate::store::Plan;

/// What a purge left, and why.
#[derive(Debug, Default)]
pub struct PurgeReport {
    /// Where the state was.
    pub home: Option<Location>,
    /// What stays because no record tells that it is ours.
    pub kept: Vec<KeptLeftover>,
    /// What stays in the home because it is none of ours.
    pub others: Vec<Location>,
}

impl Manager {
    /// The plans that a purge removes, newest first: those that are not over, and those of which something is kept.
    pub fn purgeable(&self) -> Result<Vec<Plan>> {
        let states = [
            PlanState::Creating,
            PlanState::Open,
            PlanState::Removing,
            PlanState::Committed,
            PlanState::RolledBack,
        ];
        Ok(self.store.plans_in(&states)?)
    }

    /// Removes every plan, with what was never committed, and then the state. Where a plan cannot be removed, such as one in
    /// which a command runs, the state stays.
    pub fn purge(self) -> Result<PurgeReport> {
        self.permit(Action::Admin, None, Scope::All)?;
        for plan in self.purgeable()? {
            self.cleanup(&plan, false)?;
        }
        let collected = self.collect_garbage(&GarbageRequest {
            max_size: Some(0),
            ..GarbageRequest::default()
        })?;
        let mut report = PurgeReport {
            home: Some(Location::from(self.home())),
            kept: collected.kept,
            others: Vec::new(),
        };
        report.kept.extend(collected.failed);
        // Sessions stay with any other clean-up.
        for (agent, _) in self.agent_homes()? {
            self.remove_agent_home(&agent.path)?;
        }
        self.remove_agents_place()?;
        let home = self.home().to_owned();
        // Nothing of what goes is open any more.
        drop(self);
        let others = state_dir::remove_home(&home)?;
        report.others = others.into_iter().map(Location::from).collect();
        Ok(report)
    }
}
