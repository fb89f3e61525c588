//! Sandboxes that hold nothing to keep: one that is its original, and one of which nothing is left, such as a held transaction
//! whose process ended. Checkpoints, forks, rollbacks and commits of the others go on without them.

use super::{Manager, SandboxView};
use crate::error::{Error, Result};
use crate::policy::select::ReleaseSelection;
use crate::store::{Checkpoint, Plan};

/// Why nothing of a sandbox is kept that is its original.
const NOT_ISOLATED: &str = "nothing is isolated, so there is nothing to save";

impl Manager {
    /// Why nothing of a sandbox can be kept; `None` where it can.
    pub(super) fn keeps_nothing(&self, view: &SandboxView) -> Option<String> {
        let reference = &view.sandbox.reference;
        let strategy = self.registry_for(reference).ok()?.of(reference).ok()?;
        match strategy.capabilities().isolates {
            true => strategy.gone(reference),
            false => Some(NOT_ISOLATED.to_owned()),
        }
    }

    /// The sandboxes of which something can be kept, and the others with the reason. Where there is none of the first kind, all
    /// are returned as such, so that the first of them refuses.
    pub(super) fn split_kept(
        &self,
        views: Vec<SandboxView>,
    ) -> (Vec<SandboxView>, Vec<(SandboxView, String)>) {
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for view in views {
            match self.keeps_nothing(&view) {
                None => kept.push(view),
                Some(why) => others.push((view, why)),
            }
        }
        match kept.is_empty() {
            true => (
                others.into_iter().map(|(view, _)| view).collect(),
                Vec::new(),
            ),
            false => (kept, others),
        }
    }

    /// The sandboxes that a return to a checkpoint takes along: those of the resources that were named, or all, which must be able
    /// to return.
    pub(super) fn returning(
        &self,
        plan: &Plan,
        checkpoint: &Checkpoint,
        named: &[String],
    ) -> Result<Vec<SandboxView>> {
        let mut views = self.live_sandboxes(plan)?;
        let names = |views: &[SandboxView]| -> Vec<String> {
            let names = views.iter().map(|view| view.resource.name.clone());
            names.collect()
        };
        let known = names(&views);
        if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
            return Err(Error::NoSandbox {
                plan: plan.name.clone(),
                resource: unknown.clone(),
                known,
            });
        }
        views.retain(|view| named.is_empty() || named.contains(&view.resource.name));
        let (kept, others) = self.split_kept(views);
        match others.into_iter().next() {
            None => Ok(kept),
            Some((view, why)) => Err(Error::CannotReturn {
                plan: plan.name.clone(),
                checkpoint: checkpoint.id.to_string(),
                resource: view.resource.name,
                why,
                others: names(&kept),
            }),
        }
    }

    /// Takes those sandboxes out of which nothing is left, where the selection leaves them out as a whole; returns them, and the
    /// selection among the others.
    pub(super) fn take_gone(
        &self,
        views: &mut Vec<SandboxView>,
        selection: &ReleaseSelection,
    ) -> (Vec<SandboxView>, ReleaseSelection) {
        let (mut gone, mut among) = (Vec::new(), selection.clone());
        if selection.is_everything() {
            return (gone, among);
        }
        views.retain(|view| {
            let name = &view.resource.name;
            let leaves = selection.leaves_out(name) && self.keeps_nothing(view).is_some();
            if leaves {
                among.exclude.retain(|pattern| !pattern.is_all_of(name));
                gone.push(view.clone());
            }
            !leaves
        });
        (gone, among)
    }
}
