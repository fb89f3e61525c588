//! Disk usage of plans. Walks every tree, so it runs only on request.

use super::{Manager, PlanView};
use crate::error::Result;
use crate::fs::usage::Usage;
use crate::fs::workspace::measured;
use crate::model::{PlanId, PlanState, SandboxState};
use crate::store::{CommitArea, Plan};

/// Bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    /// Workspaces and scratch: what only they hold.
    pub private: u64,
    /// What has another name outside: it stays when they go.
    pub shared: u64,
    /// What is kept for undo, and only for that.
    pub undo: u64,
    /// Directories that could not be looked into; what is in them is not counted.
    pub unread: u64,
}

impl DiskUsage {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.private + self.shared + self.undo
    }
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: Self) {
        self.private += other.private;
        self.shared += other.shared;
        self.undo += other.undo;
        self.unread += other.unread;
    }
}

impl Manager {
    /// How much of the disk each of these plans takes: its workspaces, its scratch, what it keeps for
    /// undo.
    pub fn disks(&self, plans: Vec<Plan>) -> Result<Vec<(PlanId, DiskUsage)>> {
        let commits = self.store.commit_areas()?;
        let views = self.views(plans)?;
        let of = |view: &PlanView| (view.plan.id, self.disk(view, &commits));
        Ok(views.iter().map(of).collect())
    }

    fn disk(&self, view: &PlanView, commits: &[CommitArea]) -> DiskUsage {
        let mut work = measured(&self.scratch_path(&view.plan));
        let sandboxes = view.sandboxes.iter().map(|one| &one.sandbox);
        for sandbox in sandboxes.filter(|one| one.state != SandboxState::CleanedUp) {
            work += measured(sandbox.area.as_path());
        }
        let mut undo = Usage::default();
        let commits = commits.iter().filter(|one| one.plan_id == view.plan.id);
        for (_, area) in commits.filter_map(|one| one.area.as_ref()) {
            undo += measured(area.as_path());
        }
        DiskUsage {
            private: work.private,
            shared: work.shared + undo.shared,
            undo: undo.private,
            unread: work.unread + undo.unread,
        }
    }

    /// The plans that are over and may still have something on disk, newest first.
    pub(super) fn over(&self) -> Result<Vec<Plan>> {
        let over = [PlanState::Committed, PlanState::RolledBack];
        Ok(self.store.plans_in(&over)?)
    }
}
