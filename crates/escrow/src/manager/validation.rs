//! Validation: runs commands in a plan before its commit, and discards what they wrote.
//!
//! They run in a throw-away fork: each sandbox under a layer of its own that takes whatever they write, at the path of its
//! original. The plan is locked from before the first of them until the commit is over, so what is released is what
//! they saw of its sandboxes, and the plan itself is never written. What a sandbox with a live base shows of the original
//! may change until the originals are locked; conflicts are found on changed paths only. The layers lie beside the plan's scratch layer and go when the
//! commands have ended; those of a crashed process go when the plan is locked next, with `recover`, or with the plan.
//!
//! Nothing that a command of the plan left decides what runs: the home directory is that of the user without the plan's scratch
//! layer, the search path has no directory of a sandbox or of a path that commands may write, and there is no network unless
//! the configuration declares it. What a validation names by its path, it declares.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::agents::RunCall;
use super::network::Supervision;
use super::sessions::SessionState;
use super::{Manager, RunRequest, SandboxView};
use crate::commit::{CommitPreview, scratch_name};
use crate::config::Validation;
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::{state_dir, workspace};
use crate::model::{Action, Change, DeniedConnection};
use crate::run::{CommandExit, Output};
use crate::store::Plan;

/// Where the layers are, in the area of the scratch layer.
const FORK: &str = "validation";

/// Where programs are searched if the caller has no directory for them that is outside.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
            let line = command.words.join(" ");
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

    /// Says what is released that no validation sees: they see the files.
    pub(super) fn say_unvalidated(&self, preview: &CommitPreview) {
        for member in &preview.members {
            let unseen = member.diff.changes.iter().flat_map(Change::unseen);
            let unseen: BTreeSet<_> = unseen.map(|one| (&one.change.path, &one.within)).collect();
            let Some((path, within)) = unseen.first() else {
                continue;
            };
            let more = match unseen.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more like it"),
            };
            self.notice(format!(
                "the validation sees the files of {}, which are not all that is committed: {within} has another version of {path}{more}",
                member.resource
            ));
        }
    }

    fn validate_by(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        validation: &Validation,
    ) -> Result<CommandExit> {
        let command = &validation.words;
        self.permit_plan(Action::Run, plan)?;
        let area = state_dir::room(&self.areas, &scratch_name(plan))?;
        let fork = state_dir::room(&area, FORK.as_bytes())?;
        let entry = self.enter_namespace(plan)?;
        if entry.there.is_some() {
            return Err(self.live_error(plan));
        }
        let request = RunRequest {
            output: Output::Error,
            network: Some(validation.network.clone()),
            environment: self.outer_path(plan, views)?,
            // Where the plan was made, wherever the commit was asked for.
            ..RunRequest::new(command, plan.directory.as_path())
        };
        let attached = self.attach()?;
        let call = RunCall::plain(&request);
        let spec = self.spec(plan, views, &call, &entry, &attached, Some(fork.path()))?;
        let limits = self.settings_of(plan)?.run.limits;
        let target = command.join(" ");
        self.record("validate", Some(plan.id), &target, || {
            let how = Supervision::new(request.output, limits);
            let ended = self.supervise(&spec, attached, how, &entry, (plan, false), || {});
            self.leave_namespace(plan, entry)?;
            let ended = ended?;
            for one in &ended.denied {
                let DeniedConnection {
                    host, port, reason, ..
                } = one;
                self.notice(format!("the validation was denied {host}:{port}: {reason}"));
            }
            Ok(ended.exit)
        })
    }

    /// The search path of a validation: that of the caller, less what commands of the plan could have written. What the
    /// configuration sets is declared, and stays.
    fn outer_path(&self, plan: &Plan, views: &[SandboxView]) -> Result<Vec<(OsString, OsString)>> {
        let run = self.settings_of(plan)?.run;
        if run.env.contains_key("PATH") {
            return Ok(Vec::new());
        }
        let resources = views.iter().map(|view| view.resource.at.as_path());
        let written: Vec<&Path> = resources
            .chain(run.writable.iter().map(PathBuf::as_path))
            .collect();
        let outside = |dir: &PathBuf| {
            // What leads into a sandbox lies in it.
            let real = state_dir::canonical_any(dir);
            let mut ways = state_dir::ways_to(dir).into_iter().chain(real.ok());
            dir.is_absolute() && ways.all(|way| !written.iter().any(|tree| way.starts_with(tree)))
        };
        let variables = self.options.environment.iter();
        let callers = variables.rev().find(|(name, _)| name == "PATH");
        let callers = callers
            .map(|(_, path)| path.as_os_str())
            .unwrap_or_default();
        let kept: Vec<PathBuf> = std::env::split_paths(callers).filter(outside).collect();
        let path = match kept.is_empty() {
            true => OsString::from(SYSTEM_PATH),
            false => std::env::join_paths(kept).unwrap_or_else(|_| SYSTEM_PATH.into()),
        };
        Ok(vec![("PATH".into(), path)])
    }

    /// Removes the layers of a validation.
    pub(super) fn drop_fork(&self, plan: &Plan) -> Result<()> {
        Ok(workspace::remove_within(
            &self.scratch_path(plan),
            FORK.as_bytes(),
        )?)
    }

    /// The same for those that a crashed process left, once nothing of it runs any more; whether none are left. The
    /// plan is locked.
    pub(super) fn drop_dead_fork(&self, plan: &Plan) -> Result<bool> {
        if workspace::is_absent(&self.scratch_path(plan).join(FORK)) {
            return Ok(true);
        }
        match self.live(plan)? {
            SessionState::Idle => self.drop_fork(plan).map(|()| true),
            SessionState::Passing | SessionState::Inside(_) => Ok(false),
        }
    }
}
