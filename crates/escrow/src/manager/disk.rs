//! How much of the disk plans take. This walks every tree, so it is done only when asked for.

use std::path::Path;

use super::Manager;
use crate::error::Result;
use crate::fs::Dir;
use crate::fs::usage::{self, Usage};
use crate::model::PlanState;
use crate::store::Plan;

/// Bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disk {
    /// Workspaces and scratch: what only they hold.
    pub private: u64,
    /// What has another name outside: it stays when they go.
    pub shared: u64,
    /// What is kept for undo, and only for that.
    pub undo: u64,
    /// Directories that could not be looked into; what is in them is not counted.
    pub unread: u64,
}

impl Disk {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.private + self.shared + self.undo
    }
}

impl std::ops::AddAssign for Disk {
    fn add_assign(&mut self, other: Self) {
        self.private += other.private;
        self.shared += other.shared;
        self.undo += other.undo;
        self.unread += other.unread;
    }
}

/// Measures something; what cannot be looked at is counted as unread.
pub(super) fn measured(path: &Path) -> Usage {
    let unread = Usage {
        unread: 1,
        ..Usage::default()
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return unread;
    };
    match Dir::open(parent) {
        Err(error) if error.is_absent() => Usage::default(),
        Err(_) => unread,
        Ok(parent) => usage::measure(&parent, name.as_encoded_bytes()).unwrap_or(unread),
    }
}

impl Manager {
    /// How much of the disk a plan takes: its workspaces, its scratch, what it keeps for undo.
    pub fn disk(&self, plan: &Plan) -> Result<Disk> {
        let mut work = measured(&self.scratch_path(plan));
        for view in self.live_sandboxes(plan)? {
            work += measured(view.sandbox.area.as_path());
        }
        let mut undo = Usage::default();
        for commit in self.store.commit_areas()? {
            if let Some((_, area)) = commit.area.filter(|_| commit.plan_id == plan.id) {
                undo += measured(area.as_path());
            }
        }
        Ok(Disk {
            private: work.private,
            shared: work.shared + undo.shared,
            undo: undo.private,
            unread: work.unread + undo.unread,
        })
    }

    /// The plans that are over and may still have something on disk, newest first.
    pub(super) fn over(&self) -> Result<Vec<Plan>> {
        let mut plans = self.store.plans()?;
        plans.retain(|plan| matches!(plan.state, PlanState::Committed | PlanState::RolledBack));
        Ok(plans)
    }
}
