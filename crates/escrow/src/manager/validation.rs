//! Validation: runs commands in a plan before its commit, and discards what they wrote.
//!
//! They run in a throw-away fork: each sandbox under a layer of its own that takes whatever they write, at the path of its
//! original. The plan is locked from before the first of them until the commit is over, so what is released is what
//! they saw of its sandboxes, and the plan itself is never written. What a sandbox with a live base shows of the original
//! may change until the originals are locked; conflicts are found on changed paths only. The layers lie beside the plan's scratch layer and go when the
//! commands have ended; those of a crashed process go when the plan is locked next, with `recover`, or with the plan.

use std::path::Path;

use super::sessions::SessionState;
use super::{Manager, RunRequest, SandboxView};
use crate::commit::scratch_name;
use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::content::Reflinks;
use crate::fs::place::{CopyOptions, DirAndName, copy_leaf};
use crate::fs::state_dir;
use crate::fs::{Cause, Dir, EntryHandle, remove};
use crate::manager::runs::layer_over;
use crate::model::text::Location;
use crate::model::view::{Layers, View};
use crate::model::{Action, EntryKind, Shape};
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

/// A sandbox as a validation sees it: under a layer that takes its writes. A file is copied.
pub(super) fn forked(fork: &Dir, number: usize, seen: View, shape: Shape) -> Result<View> {
    let name = number.to_string();
    let is_new = fork.stat(name.as_bytes())?.is_none();
    let area = state_dir::room(fork, name.as_bytes())?;
    let below = match seen {
        View::Directory(from) if shape == Shape::File => {
            if is_new {
                let path = from.as_path();
                let dir = Dir::open(path.parent().unwrap_or(Path::new("/")))?;
                let name = path.file_name().unwrap_or_default().as_encoded_bytes();
                let to: DirAndName<'_> = (&area, b"file");
                let (kind, reflinks) = (EntryKind::File, Reflinks::wanted());
                // What cannot be kept, a validation does without.
                let options = CopyOptions {
                    lossy: true,
                    ..CopyOptions::QUIET
                };
                copy_leaf((&dir, name), to, kind, &reflinks, options)?;
            }
            return Ok(View::Directory(Location::from(area.path().join("file"))));
        }
        View::Directory(from) => vec![from],
        View::Layers(Layers { below, upper, .. }) => [vec![upper], below].concat(),
    };
    let mut look = Dir::open(below[0].as_path())?.meta()?;
    look.mode |= 0o700;
    let layers = layer_over(&area, below)?;
    let upper = Dir::open(layers.upper.as_path())?;
    if is_new {
        let set = EntryHandle::of(&upper).reapply_metadata(&look);
        set.map_err(|errno| upper.error("set the metadata of", b"", Cause::Os(errno)))?;
    }
    Ok(View::Layers(layers))
}
