//! A sandbox as a directory for programs that nothing confines, such as the user's own editor. Where a strategy gives a path,
//! that is it. Layers become one directory in a mount namespace of the program, and for as long as it runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::content::check_readable;
use super::network::Supervision;
use super::runs::{RunRequest, line, text};
use super::{Manager, SandboxView};
use crate::config::AutoCheckpoint;
use crate::error::{Error, Result};
use crate::event::Unobserved;
use crate::fs::state_dir::{self, ScratchDir};
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Action, Limits, Network, SandboxId, Scope, Shape};
use crate::run::{MountedSandbox, NamespaceOptions, RunOutcome, RunSpec, program, unconfined};
use crate::store::{Plan, Resource};
use crate::strategy::{Mount, Session, unsupported};

impl Manager {
    /// Runs a command that finds the sandbox of a resource at `dir`, an empty directory, and everything else as it is. What
    /// it changes in `dir` is part of the sandbox; nothing keeps it from changing anything else, so only who may do
    /// anything may begin it. No other command may be inside.
    pub fn run_mounted(
        &self,
        plan: &Plan,
        resource: &Resource,
        dir: &Path,
        request: &RunRequest<'_>,
    ) -> Result<RunOutcome> {
        self.permit_plan(Action::Run, plan)?;
        self.permit(Action::Admin, Some(plan), Scope::All)?;
        let mut lock = Some(self.begin_call(plan, false)?);
        let views = self.live_sandboxes(plan)?;
        check_readable(plan, &views)?;
        let views = self.seen_at(plan, resource, views)?;
        for view in &views {
            self.permit_release(plan, view, None)?;
        }
        let (dir, empty) = state_dir::canonical_empty(dir)?;
        if !empty {
            return Err(Error::NotEmpty {
                at: Location::from(dir),
            });
        }
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        self.check_neighbours(plan, &resources)?;
        let entry = self.enter_namespace(plan)?;
        if entry.there.is_some() {
            return Err(self.live_error(plan));
        }
        {
            let _originals = self.lock_originals(&resources, true)?;
            self.checkpoint_before(plan, AutoCheckpoint::BeforeRun, "command", &Unobserved)?;
        }
        self.activate(&views)?;
        let attached = self.attach()?;
        let mut environment = self.options.environment.clone();
        environment.extend(request.environment.iter().cloned());
        environment.push(("ESCROW_PLAN".into(), plan.name.clone().into()));
        let spec = RunSpec {
            views: self.mounted_at(&dir, &views)?,
            look: NamespaceOptions {
                network: Network::Host,
                open: true,
                ..NamespaceOptions::default()
            },
            directory: Location::from(state_dir::canonical(request.directory)?),
            command: request.command.iter().map(text).collect(),
            environment: environment
                .iter()
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            // Nothing listens there; a name of its own is all that is needed.
            socket: Location::from(PathBuf::from(self.unique())),
            files: self.options.console.files(),
            terminal: attached.terminal.is_some(),
            front: attached.front,
            build: entry.build(),
            share: entry.share(),
            ..RunSpec::default()
        };
        self.record("run", Some(plan.id), &line(&request.command), || {
            let how = Supervision::new(request.output, Limits::default());
            let ended = self.supervise(&spec, attached, how, &entry, (plan, true), || {
                drop(lock.take());
            });
            drop(lock.take());
            if self.leave_namespace(plan, entry)? {
                self.notice_open(&spec)?;
            }
            ended
        })
    }

    /// Runs a command on the path of a sandbox, which is added to its words: that which the strategy gives, or a directory in
    /// which [`Manager::run_mounted`] shows it.
    pub fn run_on(
        &self,
        plan: &Plan,
        resource: &Resource,
        request: &RunRequest<'_>,
    ) -> Result<RunOutcome> {
        self.permit_plan(Action::Run, plan)?;
        self.permit(Action::Admin, Some(plan), Scope::All)?;
        let mut views = self.live_sandboxes(plan)?.into_iter();
        let view = views.find(|view| view.resource.id == resource.id);
        let mut request = request.clone();
        if let Some(path) = view.map(|view| self.path_of(&view)).transpose()?.flatten() {
            // As for `escrow path`, it becomes active.
            self.access(plan, resource, None)?;
            let above = path.parent().filter(|_| resource.shape.is_file());
            let directory = above.unwrap_or(&path).to_owned();
            request.command.push(path.into_os_string());
            let mut command = program(&request.command[0]);
            command.args(&request.command[1..]);
            return self.record("run", Some(plan.id), &line(&request.command), || {
                let exit = unconfined(command, &directory, request.output, &*self.options.console)?;
                let denied = Vec::new();
                Ok(RunOutcome {
                    exit,
                    denied,
                    not_passed: Vec::new(),
                    hidden: Vec::new(),
                    before: None,
                    agents: Vec::new(),
                    without: None,
                })
            });
        }
        let made = ScratchDir::make(self.areas.again(), "scratch-open-", &self.unique())?;
        let name = resource.at.as_path().file_name();
        // A program outside, to which an editor may hand the path, finds nothing there and leaves nothing.
        let dir = made.closed_dir(name.unwrap_or_else(|| OsStr::new("root")))?;
        request.command.push(dir.clone().into_os_string());
        self.run_mounted(plan, resource, &dir, &request)
    }

    fn unique(&self) -> String {
        let id = SandboxId::new(&*self.options.origin).to_string();
        id.trim_start_matches("sbx_").to_owned()
    }

    /// The sandbox of a directory, and those that lie in it.
    fn seen_at(
        &self,
        plan: &Plan,
        resource: &Resource,
        views: Vec<SandboxView>,
    ) -> Result<Vec<SandboxView>> {
        let refuse = |view: &SandboxView, why: &str| {
            let name = &view.sandbox.reference.strategy_name;
            Err(unsupported(name, "be mounted at a directory", why).into())
        };
        let top = resource.at.as_path();
        let inside = |view: &SandboxView| view.resource.at.as_path().starts_with(top);
        let known = || {
            views
                .iter()
                .map(|view| view.resource.name.clone())
                .collect()
        };
        match views.iter().find(|view| view.resource.id == resource.id) {
            None => Err(Error::NoSandbox {
                plan: plan.name.clone(),
                resource: resource.name.clone(),
                known: known(),
            }),
            Some(view) if view.resource.shape == Shape::Database => refuse(
                view,
                "it is a database; `escrow path` says how it is reached",
            ),
            Some(view) if view.resource.shape.is_file() => refuse(
                view,
                "it is one file; `escrow path` says where it is, and `escrow open` opens it",
            ),
            Some(_) => Ok(views.into_iter().filter(inside).collect()),
        }
    }

    /// What appears in a directory in which the first of these sandboxes, and what lies in it, are seen.
    fn mounted_at(&self, dir: &Path, views: &[SandboxView]) -> Result<Vec<MountedSandbox>> {
        let top = views.iter().map(|view| view.resource.at.as_path());
        let top = top.min_by_key(|at| at.components().count());
        let top = top.unwrap_or(Path::new("/"));
        // What lies elsewhere, such as the git directory of a linked worktree, is found there.
        let moved = |at: &Path| match at.strip_prefix(top) {
            Ok(rest) => Location::from(dir.join(rest)),
            Err(_) => Location::from(at),
        };
        let mut shown = Vec::new();
        for view in views {
            let access = self.open_sandbox(view, Session::Shared)?.access()?;
            if view.resource.shape == Shape::Database {
                // Its clients keep files beside it, which would be lost here.
                shown.extend(access.cwd.map(|copy| MountedSandbox {
                    at: moved(view.resource.at.as_path()),
                    view: View::ReadOnly(copy),
                    area: None,
                    throw_away: false,
                }));
                continue;
            }
            let isolates = self.registry_of(view.sandbox.reference.plan_id)?;
            let isolates = isolates
                .of(&view.sandbox.reference)?
                .capabilities()
                .isolates;
            for Mount { at, view, area } in access.mounts {
                shown.push(MountedSandbox {
                    at: moved(at.as_path()),
                    view,
                    area: area.filter(|_| isolates),
                    throw_away: false,
                });
            }
        }
        Ok(shown)
    }
}
