//! Validation: runs commands in a plan before its commit, and discards what they wrote.
//!
//! They run in a throw-away fork: each sandbox under a layer of its own that takes whatever they write, at the path of its
//! original. The plan is locked from before the first of them until the commit is over, so what is released is what
//! they saw of its sandboxes, and the plan itself is never written. What a sandbox with a live base shows of the original
//! may change until the originals are locked; conflicts are found on changed paths only. The layers lie beside the plan's scratch layer and go when the
//! commands have ended; those of a crashed process go when the plan is locked next, with `recover`, or with the plan.

use super::sessions::SessionState;
use super::{Manager, RunRequest, SandboxView};
use crate::commit::scratch_name;
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::{Dir, remove, state_dir};
use crate::model::Action;
use crate::run::{CommandExit, Output};
use crate::store::Plan;

/// Where the layers are, in the area of the scratch layer.
const FORK: &[u8] = b"validation";

impl Manager {
    /// Runs the validations of a plan that is locked and in which no command runs. The first that fails stops the
    /// commit.
    pub(super) fn validate(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        observer: &dyn Observer,
    ) -> Result<()> {
        let commands = self.validations(plan)?;
        if commands.is_empty() {
            return Ok(());
        }
        self.drop_fork(plan)?;
        // A later command finds what an earlier one wrote.
        let passed = commands.iter().try_for_each(|command| {
            let line = command.join(" ");
            observer.validating(&line);
            let why = match self.validate_by(plan, views, command) {
                Ok(ended) if ended.status() == 0 => return Ok(()),
                Ok(ended) => format!("ended with status {}", ended.status()),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => format!("could not be run: {}", chain(&error)),
            };
            Err(Error::Invalid { command: line, why })
        });
        if let Err(error) = self.drop_fork(plan) {
            let why = chain(&error);
            self.notice(format!(
                "what the validation wrote could not be removed: {why}"
            ));
        }
        passed
    }

    fn validate_by(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        command: &[String],
    ) -> Result<CommandExit> {
        self.permit_plan(Action::Run, plan)?;
        let area = state_dir::room(&self.areas, &scratch_name(plan))?;
        let fork = state_dir::room(&area, FORK)?;
        let entry = self.enter_namespace(plan)?;
        if entry.there.is_some() {
            return Err(self.live_error(plan));
        }
        let request = RunRequest {
            output: Output::Error,
            // Where the plan was made, wherever the commit was asked for.
            ..RunRequest::new(command, plan.directory.as_path())
        };
        let attached = self.attach()?;
        let spec = self.spec(plan, views, &request, &entry, &attached, Some(&fork))?;
        let target = command.join(" ");
        self.record("validate", Some(plan.id), &target, || {
            let ended = self.supervise(&spec, attached, request.output, &entry, None, || {});
            self.leave_namespace(plan, entry)?;
            ended
        })
    }

    /// Removes the layers of a validation.
    pub(super) fn drop_fork(&self, plan: &Plan) -> Result<()> {
        match Dir::open(&self.scratch_path(plan)) {
            Err(error) if error.is_absent() => Ok(()),
            area => Ok(remove::remove(&area?, FORK)?),
        }
    }

    /// The same for those that a crashed process left, once nothing of it runs any more; whether none are left. The
    /// plan is locked.
    pub(super) fn drop_dead_fork(&self, plan: &Plan) -> Result<bool> {
        let area = match Dir::open(&self.scratch_path(plan)) {
            Err(error) if error.is_absent() => return Ok(true),
            area => area?,
        };
        if area.stat(FORK)?.is_none() {
            return Ok(true);
        }
        match self.live(plan)? {
            SessionState::Idle => self.drop_fork(plan).map(|()| true),
            SessionState::Passing | SessionState::Inside(_) => Ok(false),
        }
    }
}
