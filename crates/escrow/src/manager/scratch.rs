//! The layer over the home directory: what commands write there stays with the plan, goes with it, and is never committed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Manager, SandboxView};
use crate::commit::scratch_name;
use crate::error::Result;
use crate::fs::workspace::{is_absent, is_there};
use crate::fs::{layering, state_dir};
use crate::model::text::Location;
use crate::model::view::Layers;
use crate::model::{Action, DiffView};
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
        Ok(self.workspaces().remove_own(&scratch_name(plan))?)
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
