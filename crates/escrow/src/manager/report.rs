//! Reports with stable fields for programs, and the handle of one resource of a plan.

use super::{Manager, RestoreOutcome, SandboxCreation};
use crate::error::{Error, Result};
use crate::event::Observer;
use crate::model::Decision;
use crate::model::text::Location;
use crate::resource::{CheckpointReport, RestoreReport, SandboxReport};
use crate::store::{Checkpoint, Plan, Resource};

/// One resource of a plan, of any type: four verbs whose answers have the same fields for all of them.
///
/// A checkpoint is the saved state of the whole plan (rule R4), so keeping and returning take the plan's other
/// sandboxes along.
pub struct ResourceHandle<'a> {
    manager: &'a Manager,
    plan: Plan,
    resource: Resource,
}

impl ResourceHandle<'_> {
    /// The plan's sandbox of it, made if it is not there.
    pub fn create_sandbox(
        &self,
        strategy: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<SandboxReport> {
        let (manager, plan) = (self.manager, &self.plan);
        let made = manager.create_sandbox(plan, &self.resource, strategy, observer)?;
        manager.sandbox_answer(&made)
    }

    /// Keeps the plan as it is now.
    pub fn create_checkpoint(
        &self,
        label: Option<&str>,
        observer: &dyn Observer,
    ) -> Result<CheckpointReport> {
        let kept = self
            .manager
            .create_checkpoint(&self.plan, label, observer)?;
        self.manager.checkpoint_answer(&kept)
    }

    /// Takes the plan back to a checkpoint, by its id, the beginning of it, or its label.
    pub fn rollback_to(&self, checkpoint: &str, observer: &dyn Observer) -> Result<RestoreReport> {
        let (manager, plan) = (self.manager, &self.plan);
        let checkpoint = manager.resolve_checkpoint(plan, checkpoint)?;
        let restored = manager.restore(plan, &checkpoint, observer)?;
        manager.restore_answer(plan, &restored)
    }

    /// Of every action, whether a principal may do it on all of it, and why.
    pub fn project_access(&self, principal: &str) -> Result<Vec<Decision>> {
        self.manager.project_access(principal, &self.resource)
    }
}

impl Manager {
    /// What deals with one resource for a plan. Refuses a type that nothing deals with.
    pub fn handle(&self, plan: &Plan, resource: &Resource) -> Result<ResourceHandle<'_>> {
        self.kind(&resource.kind)?;
        Ok(ResourceHandle {
            manager: self,
            plan: plan.clone(),
            resource: resource.clone(),
        })
    }

    /// What is answered to a wish for a sandbox.
    pub fn sandbox_answer(&self, made: &SandboxCreation) -> Result<SandboxReport> {
        let sandbox = &made.view.sandbox;
        Ok(SandboxReport {
            sandbox_id: sandbox.id,
            sandbox_path: self.path_of(&made.view)?.map(Location::from),
            strategy: sandbox.reference.strategy_name.clone(),
            created: made.created,
            message: sandbox.message.clone(),
        })
    }

    /// What is answered to a wish for a checkpoint.
    pub fn checkpoint_answer(&self, kept: &Checkpoint) -> Result<CheckpointReport> {
        let first = kept.snapshots.first();
        let first = first.map(|(id, _)| self.store.sandbox(*id)).transpose()?;
        let area = first.flatten().map(|one| one.area);
        let message = match kept.snapshots.len() {
            1 => "kept 1 sandbox".to_owned(),
            number => format!("kept {number} sandboxes"),
        };
        Ok(CheckpointReport {
            checkpoint_id: kept.id,
            plan_id: kept.plan_id,
            timestamp: kept.created_at.to_string(),
            snapshot_path: area,
            message,
            label: kept.label.clone(),
            reason: kept.reason.clone(),
        })
    }

    /// What is answered to a return to a checkpoint. The list of files is made here: only who asks for it
    /// pays for it.
    pub fn restore_answer(&self, plan: &Plan, restored: &RestoreOutcome) -> Result<RestoreReport> {
        let after = &restored.checkpoint;
        let mut restored_files = Vec::new();
        let mut message = restored.message();
        let since = restored.before.as_ref();
        let since = since.map(|before| self.since(plan, before, Some(after)));
        let found = match since {
            None => Vec::new(),
            // It is done, whether or not one may see of what.
            Some(Err(error @ Error::Denied { .. })) => {
                message = format!("{message}; what differs is not listed: {error}");
                Vec::new()
            }
            Some(found) => found?.resources,
        };
        for one in found {
            let name = &one.view.resource.name;
            let paths = one.diff.changes.iter().map(|change| &change.path);
            restored_files.extend(paths.map(|path| format!("{name}:{path}")));
        }
        Ok(RestoreReport {
            success: true,
            checkpoint_id: after.id,
            restored_files,
            message,
        })
    }
}

impl RestoreOutcome {
    /// What was done, in a few words.
    pub fn message(&self) -> String {
        match &self.before {
            Some(before) => format!(
                "restored {}; the state before it is saved as {}",
                self.checkpoint.id, before.id
            ),
            None => format!(
                "restored {}; the state before it and the checkpoints after it could not be kept",
                self.checkpoint.id
            ),
        }
    }
}
