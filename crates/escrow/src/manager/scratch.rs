//! The layer over the home directory: what commands write there stays with the plan, goes with it, and is never committed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Manager, SandboxView};
use crate::agents::AgentReport;
use crate::commit::scratch_name;
use crate::error::Result;
use crate::fs::workspace::{is_absent, is_there};
use crate::fs::{layering, state_dir};
use crate::model::autorun::runs_later;
use crate::model::text::Location;
use crate::model::view::Layers;
use crate::model::{Action, AutorunChange, DiffView};
use crate::store::Plan;
use crate::strategy::overlay;

/// Where the layer over a home directory is that cannot be written, in the area of the scratch layer.
const STILL: &[u8] = b"still";

impl Manager {
    /// The layer over the home directory: what tools write there stays with the plan, and goes
    /// with it. There is none where the home directory is missing, is the root, or is sandboxed.
    pub(super) fn scratch_layers(
        &self,
        plan: &Plan,
        home: &Path,
        views: &[SandboxView],
        (fork, writable): (Option<&Path>, bool),
    ) -> Result<Option<(Location, Layers)>> {
        let lower = match state_dir::canonical(home) {
            Ok(lower) if is_there(&lower) => lower,
            _ => return Ok(None),
        };
        let sandboxed = |view: &SandboxView| lower.starts_with(view.resource.at.as_path());
        if lower.parent().is_none() || views.iter().any(sandboxed) {
            return Ok(None);
        }
        let name = scratch_name(plan);
        let layers = match writable {
            true => layering::over_home(&self.areas, &name, &lower, fork)?,
            // What stands in a layer is a copy: a socket of the home directory leads nowhere.
            false => {
                let still = state_dir::room(&state_dir::room(&self.areas, &name)?, STILL)?;
                layering::over_home(&self.areas, &name, &lower, Some(still.path()))?
            }
        };
        Ok(Some((Location::from(lower), layers)))
    }

    /// Where it is.
    pub(super) fn scratch_path(&self, plan: &Plan) -> PathBuf {
        let name = scratch_name(plan);
        self.areas.path().join(OsStr::from_bytes(&name))
    }

    /// Removes what was written beside the sandboxes.
    pub(super) fn drop_scratch(&self, plan: &Plan) -> Result<()> {
        // After a crash sessions and logins of an agent may be left in it.
        self.tell_settled(&self.end_agents(plan, true));
        Ok(self.workspaces().remove_own(&scratch_name(plan))?)
    }

    /// What of that another program runs, or obeys, without being asked; nothing that belongs to an agent that `ran`, whose
    /// own configuration is named by itself.
    pub fn runs_later_at_home(
        &self,
        written: &DiffView,
        ran: &[AgentReport],
    ) -> Vec<AutorunChange> {
        let ran = ran.iter().filter_map(|one| self.agent_paths(&one.preset));
        let own: Vec<_> = ran.flat_map(|paths| paths.own()).collect();
        let mut found = runs_later(written);
        // By name only: caches of tools hold many programs.
        found.retain(|one| {
            let inner = Path::new(OsStr::from_bytes(one.path.as_bytes()));
            let first = inner.components().next();
            let hidden = first.is_some_and(|one| one.as_os_str().as_bytes().starts_with(b"."));
            let cache = inner.starts_with(".cache") || inner.starts_with(".npm");
            hidden && !cache && one.is_named && !own.iter().any(|own| inner.starts_with(own))
        });
        found
    }

    /// How a layer differs from the home directory that it lies over.
    pub(super) fn layer_changes(&self, upper: &Path, home: &Path) -> Result<DiffView> {
        Ok(overlay::compare(upper, home)?)
    }

    /// What commands wrote beside the sandboxes, into the home directory.
    pub fn scratch_diff(&self, plan: &Plan, home: &Path) -> Result<DiffView> {
        self.permit_within(Action::Diff, plan)?;
        let upper = self.scratch_path(plan).join("upper");
        match is_absent(&upper) {
            true => Ok(DiffView::default()),
            false => Ok(overlay::compare(&upper, &state_dir::canonical(home)?)?),
        }
    }
}
