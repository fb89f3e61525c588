//! Runs a command inside the sandboxes of a plan.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::agents::{AgentChoice, AgentHomeChoice, RunCall, project_of};
use super::concealment::link_in_home;
use super::content::check_readable;
use super::network::{Servers, Supervision, held_databases};
use super::sessions::NamespaceEntry;
use super::variables::{Variables, not_passed, passed};
use super::{Manager, SandboxView};
use crate::config::{AutoCheckpoint, Injection};
use crate::error::{Error, Result, chain};
use crate::event::Unobserved;
use crate::fs::state_dir::{self, Lock};
use crate::fs::{exposure, layering};
use crate::model::ResourcePath;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Action, Limits, Network, SandboxId, Scope, Shape};
use crate::run::limits::{ControlGroups, PREFIX};
use crate::run::spec::SOCKETS;
use crate::run::{
    Attached, DiskWatch, Helper, MountedSandbox, Output, Proxy, PublishedPort, RunError,
    RunOutcome, RunSpec, SupervisorOptions, at_io, connect, output, program, supervise, unconfined,
};
use crate::store::{Plan, Resource};
use crate::strategy::{Exposes, LiveView, Mount, Session, unsupported};

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub struct RunRequest<'a> {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Variables that are set for it, beside those of the configuration and of [`super::ManagerOptions::environment`].
    pub environment: Vec<(OsString, OsString)>,
    /// Where it begins.
    pub directory: &'a Path,
    /// Whether the home directory gets a layer that is thrown away, or is read-only; left out, what
    /// those who are inside have, else what the configuration says, else the layer.
    pub scratch: Option<bool>,
    /// Paths that can be written for real; none, and no command inside: what the configuration says.
    pub writable: Vec<PathBuf>,
    /// Which hosts can be reached; left out, what those who are inside have, else what the
    /// configuration says, else all but this machine, where that can be had.
    pub network: Option<Network>,
    /// Ports of the command's own network that are shown on this machine.
    pub publish: Vec<PublishedPort>,
    /// Whether it may make user namespaces of its own; left out, what those who are inside may, else what the
    /// configuration says, else no.
    pub userns: Option<bool>,
    /// Paths of which it sees nothing, beside those of the configuration.
    pub hide: Vec<PathBuf>,
    /// Paths that it sees although they hold credentials, beside those of the configuration.
    pub show: Vec<PathBuf>,
    /// Paths that can be written for real although programs outside execute or obey what lies there.
    pub writable_anyway: Vec<PathBuf>,
    /// The agent whose preset counts.
    pub agent: AgentChoice,
    /// Where its state lives.
    pub agent_home: AgentHomeChoice,
    /// Whether the network is the hosts of its preset.
    pub preset_network: bool,
    /// What it may use; where it says nothing, what the configuration says.
    pub limits: Limits,
    /// Where its standard output goes.
    pub output: Output,
}

impl<'a> RunRequest<'a> {
    /// A command that begins in a directory, with everything else as the configuration says.
    pub fn new(
        command: impl IntoIterator<Item = impl Into<OsString>>,
        directory: &'a Path,
    ) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory,
            scratch: None,
            writable: Vec::new(),
            network: None,
            publish: Vec::new(),
            userns: None,
            hide: Vec::new(),
            show: Vec::new(),
            writable_anyway: Vec::new(),
            agent: AgentChoice::default(),
            agent_home: AgentHomeChoice::default(),
            preset_network: false,
            limits: Limits::default(),
            output: Output::Own,
        }
    }
}

impl Manager {
    /// Runs a command inside the sandboxes of a plan, together with those that are there already. [`Manager::diff_after_run`] shows
    /// what it did.
    pub fn run(&self, plan: &Plan, request: &RunRequest<'_>) -> Result<RunOutcome> {
        self.permit_plan(Action::Run, plan)?;
        if !request.writable.is_empty() || !request.writable_anyway.is_empty() {
            // No resource has it as its own: only who may do anything may do this.
            self.permit(Action::Admin, Some(plan), Scope::All)?;
        }
        let mut lock = Some(self.begin_call(plan, false)?);
        let views = self.live_sandboxes(plan)?;
        for view in &views {
            check_readable(plan, [view])?;
            self.permit_release(plan, view, None)?;
        }
        let resources: Vec<&Resource> = views.iter().map(|view| &view.resource).collect();
        self.check_neighbours(plan, &resources)?;
        let mut entry = self.enter_namespace(plan)?;
        let before = match entry.there.is_none() {
            true => {
                let _originals = self.lock_originals(&resources, true)?;
                self.checkpoint_before(plan, AutoCheckpoint::BeforeRun, "command", &Unobserved)?
            }
            false => None,
        };
        self.activate(&views)?;
        let attached = self.attach()?;
        let request = &self.run_call(plan, &views, request)?;
        let mut spec = self.spec(plan, &views, request, &entry, &attached, None)?;
        self.take_caches(plan, &views, &mut spec, &mut entry)?;
        self.take_agent_home(plan, &views, request, &mut spec, &mut entry)?;
        self.inject(plan, &mut spec)?;
        let (_, mut not_passed) = self.variables(plan, request)?;
        let is_set = |name: &String| {
            let mut set = spec.environment.iter().map(|(name, _)| name.as_bytes());
            set.any(|one| one == name.as_bytes())
        };
        not_passed.retain(|name| !is_set(name));
        let limits = request.limits.or(self.settings_of(plan)?.run.limits);
        let published = self.publish(&request.publish, &spec.look.network)?;
        self.record("run", Some(plan.id), &line(&request.command), || {
            let how = Supervision {
                published: Some(&published),
                ..Supervision::new(request.output, limits)
            };
            // While the command runs others may look, and write through its namespace. A process that
            // pauses those inside must not miss one that is about to begin.
            let mut started = || drop(lock.take());
            let with = (request, &mut started);
            let mut ended = self.supervise_in_network(plan, &mut spec, attached, how, &entry, with);
            if let Err(Error::Run(why)) = &ended
                && entry.there.is_none()
                && why.forbids_namespaces()
            {
                let all = (plan, &views[..]);
                ended = self.run_copied(all, request, &spec, how, &entry, &mut started);
            }
            drop(lock.take());
            let last = self.leave_namespace(plan, entry)?;
            if last {
                self.notice_open(&spec)?;
            }
            let agents = self.end_agents(plan, last);
            let ended = ended?;
            if last && ended.exit.status() != 0 {
                self.checkpoint_failed(plan);
                self.explain_limits(&views);
            }
            Ok(RunOutcome {
                not_passed,
                before,
                agents,
                ..ended
            })
        })
    }

    pub(super) fn attach(&self) -> Result<Attached> {
        let attached = self.options.console.attach();
        Ok(attached.map_err(at_io("share the terminal and signals"))?)
    }

    /// Carries out what a description says. Where others may join, commands that come later find the namespace, and those
    /// inside can ask.
    pub(super) fn supervise(
        &self,
        spec: &RunSpec,
        attached: Attached,
        how: Supervision<'_>,
        entry: &NamespaceEntry,
        (plan, joinable): (&Plan, bool),
        started: impl FnOnce(),
    ) -> Result<RunOutcome> {
        let Supervision {
            output,
            limits,
            published,
        } = how;
        let console = &*self.options.console;
        let mut launcher = self.helper();
        let relays = connect(&mut launcher, console, output)?;
        let name = spec.socket.as_path().file_name().unwrap_or_default();
        let name = format!("{PREFIX}{}", name.to_string_lossy());
        let groups = ControlGroups::make(limits, &name)?;
        let mut spec = spec.clone();
        spec.groups = groups.procs().iter().map(AsRawFd::as_raw_fd).collect();
        spec.supervised = groups.supervised;
        spec.disk = limits.disk;
        let disk = limits.disk.map(|limit| DiskWatch::start(&spec, limit));
        let disk = disk.transpose()?;
        let spec = &spec;
        let held = entry.held().into_iter().chain(groups.procs()).collect();
        let mut helper = Some(Helper {
            program: self.options.helper.clone(),
            home: self.home().to_owned(),
            config: self.options.sources.named.clone(),
            plan: joinable.then_some(plan.id),
            groups: groups.own_procs()?,
        });
        let (mut noted, mut started, mut proxy) = (Ok(()), Some(started), None);
        let mut servers = Servers::default();
        let mut questions = None;
        let mut hidden = Vec::new();
        let Attached {
            terminal,
            signals,
            guard,
            ..
        } = attached;
        let ended = supervise(
            spec,
            SupervisorOptions {
                launcher: &mut launcher,
                signals: &signals,
                terminal,
                held,
                built: &mut |inside| {
                    if joinable {
                        noted = entry.note(inside, &spec.look);
                    }
                    noted.as_ref().map(drop).map_err(|_| RunError::Silent)
                },
                started: &mut || {
                    if let Some(started) = started.take() {
                        started();
                    }
                },
                asked: &mut |socket| {
                    if let Some(helper) = helper.take() {
                        questions = Some(helper.listen(UnixListener::from(socket)));
                    }
                },
                proxied: &mut |socket| {
                    let injector = spec.injector.clone();
                    proxy = Some(Proxy::start(socket, &spec.look.network, injector));
                },
                handed: &mut |what, socket| servers.take(spec, &what, socket),
                published,
                notice: &mut |text| self.notice(text),
                hidden: &mut |paths| hidden = paths,
                timeout: limits.timeout,
                disk: disk.as_ref(),
            },
        );
        drop(guard);
        // A process that answers holds the lock of the plan, and is in the groups.
        drop(questions);
        let written = relays.finish();
        let exit = ended.as_ref().ok();
        let large = exit.and_then(|exit| disk.as_ref()?.text_of(*exit));
        let reached = groups.reached().into_iter().chain(large);
        reached.for_each(|text| self.notice(text));
        drop(groups);
        servers.proxy = proxy;
        let denied = servers.denied();
        for one in &denied {
            let target = format!("{}:{}", one.host, one.port);
            self.note_denial(self.about("connect", Some(plan.id), &target), &one.reason);
        }
        noted?;
        let exit = ended?;
        written?;
        Ok(RunOutcome {
            exit,
            denied,
            not_passed: Vec::new(),
            hidden,
            before: None,
            agents: Vec::new(),
            without: None,
        })
    }

    /// The helper program, as the way in.
    fn helper(&self) -> Command {
        let mut helper = program(self.options.helper.as_os_str());
        helper.arg("inside");
        helper
    }

    /// Why commands cannot be run inside on this machine; `None` if they can.
    pub fn why_no_run(&self) -> Option<String> {
        match output(self.helper(), b"") {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let first = said
                    .lines()
                    .next()
                    .unwrap_or("it ended without an error message");
                Some(first.trim_start_matches("error: ").to_owned())
            }
            Err(error) => Some(error.to_string()),
        }
    }

    /// The environment of a command: what it gets of the caller's, what the configuration sets, and what was asked for. Sandboxes `set`
    /// others: of these the caller's are not missed.
    fn environment(&self, plan: &Plan, request: &RunCall<'_>, set: &[&[u8]]) -> Result<Variables> {
        let (mut environment, mut withheld) = self.variables(plan, request)?;
        withheld.retain(|name| !set.contains(&name.as_bytes()));
        // Said once a plan; the document of a run has it each time.
        if !withheld.is_empty() && !self.store.ran_lately(plan.id)? {
            self.notice(not_passed(&withheld));
        }
        environment.push(("ESCROW_PLAN".into(), plan.name.clone().into()));
        Ok(environment)
    }

    /// The variables of a command, and the names of those of the caller that it does not get.
    fn variables(&self, plan: &Plan, request: &RunCall<'_>) -> Result<(Variables, Vec<String>)> {
        let usual = self.settings_of(plan)?.run;
        let pass = usual.pass.unwrap_or_default();
        let preset = request.preset();
        let agent = preset.map(|preset| self.agent_variables(preset));
        let agent = agent.unwrap_or_default();
        let (mut kept, mut withheld) = passed(&self.options.environment, &pass, &agent);
        let own = |(name, value): (&String, &String)| (name.into(), value.into());
        let preset = preset.iter().flat_map(|preset| preset.set.iter().map(own));
        // What the user set goes before what a preset sets.
        let has = |name: &OsString| kept.iter().any(|(known, _)| known == name);
        let preset: Variables = preset.filter(|(name, _)| !has(name)).collect();
        let set = usual.env.into_iter();
        let set = set.map(|(name, value)| (name.into(), value.into()));
        let added = usual.inject.iter().filter_map(Injection::placeholder);
        let set = added.chain(preset).chain(set);
        for (name, value) in set.chain(request.environment.iter().cloned()) {
            kept.retain(|(known, _)| *known != name);
            withheld.retain(|known| name != known.as_str());
            kept.push((name, value));
        }
        Ok((kept, withheld))
    }

    /// Says which sandboxes a process outside can still write, since a command handed it a descriptor.
    pub(super) fn notice_open(&self, spec: &RunSpec) -> Result<()> {
        for MountedSandbox { at, view, area, .. } in &spec.views {
            let layers = matches!(view, View::Layers(_));
            let Some(area) = area.as_ref().filter(|_| layers) else {
                continue;
            };
            if exposure::is_exposed_at(area.as_path())? {
                self.notice(format!(
                    "a process outside may still write into the sandbox of '{at}': a commit copies what it releases; \
                    `escrow commit --expect` with the digest of a diff refuses what changed since"
                ));
            }
        }
        Ok(())
    }

    /// Keeps what a command left that failed. That it cannot be kept is no failure of the command.
    fn checkpoint_failed(&self, plan: &Plan) {
        let kept = self.lock_open(plan, false).and_then(|_lock| {
            self.check_quiet(plan)?;
            let _originals = self.steady_originals(plan)?;
            self.checkpoint_automatically(plan, AutoCheckpoint::OnError, &Unobserved)
                .map(drop)
        });
        if let Err(error) = kept {
            let why = chain(&error);
            self.notice(format!(
                "no checkpoint was taken of what the command left: {why}"
            ));
        }
    }

    /// Says after a command that failed what it could not have done. More is looked at than when a sandbox is made, but
    /// still not everything.
    fn explain_limits(&self, views: &[SandboxView]) {
        for view in views {
            let reference = &view.sandbox.reference;
            let registry = self.registry_of(reference.plan_id).ok();
            let strategy = registry.and_then(|registry| registry.of(reference).ok());
            let target = self.target(reference.plan_id, &view.resource, &reference.strategy_name);
            let limit = strategy
                .zip(target.ok())
                .and_then(|(one, target)| one.probe(&target, None).limit);
            if let Some(limit) = limit {
                let name = &view.resource.name;
                self.notice(format!(
                    "the command failed, perhaps because of a limit of the sandbox of {name}: {limit}; a plan made with \
                     `--strategy copy_on_write` does not have it"
                ));
            }
        }
    }

    /// Runs a command in the directory of the first sandbox of a plan, where nothing confines it. It may do anything to
    /// the machine, so only who may do anything may begin it.
    pub fn run_unconfined(&self, plan: &Plan, request: &RunRequest<'_>) -> Result<RunOutcome> {
        self.permit_plan(Action::Run, plan)?;
        self.permit(Action::Admin, Some(plan), Scope::All)?;
        let views = self.live_sandboxes(plan)?;
        let first = views.first().ok_or_else(|| Error::NoSandbox {
            plan: plan.name.clone(),
            resource: "*".to_owned(),
            known: Vec::new(),
        })?;
        let resource = &first.resource;
        let access = self.access(plan, resource, None)?;
        let cwd = access.cwd.map(|cwd| cwd.as_path().to_owned());
        let mut directory = cwd.unwrap_or_default();
        if resource.shape.is_file() {
            directory.pop();
        }
        let mut command = program(&request.command[0]);
        command.args(&request.command[1..]).env_clear();
        let call = &self.run_call(plan, &views, request)?;
        command.envs(self.environment(plan, call, &[])?);
        let (_, not_passed) = self.variables(plan, call)?;
        self.record("run", Some(plan.id), &line(&request.command), || {
            let exit = unconfined(command, &directory, request.output, &*self.options.console)?;
            Ok(RunOutcome {
                exit,
                denied: Vec::new(),
                not_passed,
                hidden: Vec::new(),
                before: None,
                agents: Vec::new(),
                without: None,
            })
        })
    }

    pub(super) fn spec(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        request: &RunCall<'_>,
        entry: &NamespaceEntry,
        attached: &Attached,
        fork: Option<&Path>,
    ) -> Result<RunSpec> {
        let there = entry.there.as_ref();
        let mut look = self.namespace_options(plan, views, request, there.map(|(_, look)| look))?;
        if fork.is_some() {
            // What validates a release sees all of it: what is hidden from commands may be what it looks for.
            let in_plan = |path: &Location| {
                let mut all = views.iter().map(|view| view.resource.at.as_path());
                all.any(|at| path.as_path().starts_with(at))
            };
            look.hidden.retain(|path| !in_plan(path));
        }
        let (mut shown, mut variables) = (Vec::new(), Vec::new());
        for view in views {
            let reference = &view.sandbox.reference;
            let promises = self.registry_of(plan.id)?.of(reference)?.capabilities();
            let isolates = promises.isolates && fork.is_none();
            let access = self.open_sandbox(view, Session::Shared)?.access()?;
            if access.mounts.is_empty()
                && access.env.is_empty()
                && promises.exposes == Exposes::Path
            {
                let only = view.resource.inner(&ResourcePath::root());
                let why = format!("`escrow write` '{only}' first, or roll the plan back");
                let what = "show a command a file that was deleted";
                return Err(unsupported(&reference.strategy_name, what, &why).into());
            }
            let of_the_sandbox = |(name, value): (&String, &String)| {
                let text = |text: &String| Location::from_bytes(text.as_bytes());
                (text(name), text(value))
            };
            variables.extend(access.env.iter().map(of_the_sandbox));
            for Mount {
                at,
                view: seen,
                area,
            } in access.mounts
            {
                let seen = match fork {
                    Some(fork) => {
                        let is_file = view.resource.shape == Shape::File;
                        layering::forked(fork, shown.len(), seen, is_file)?
                    }
                    None => seen,
                };
                shown.push(MountedSandbox {
                    at,
                    view: seen,
                    area: area.filter(|_| isolates),
                    throw_away: fork.is_some(),
                });
            }
        }
        let mut hidden = vec![Location::from(self.home())];
        for view in views {
            let area = view.sandbox.area.as_path();
            let parent = area.parent().map(Path::to_owned);
            if !area.starts_with(self.home()) && parent.is_some() {
                hidden.push(view.sandbox.area.clone());
            }
        }
        let unique = SandboxId::new(&*self.options.origin).to_string();
        let socket = Location::from(Path::new(SOCKETS).join(unique.trim_start_matches("sbx_")));
        let set: Vec<&[u8]> = variables.iter().map(|(name, _)| name.as_bytes()).collect();
        let mut environment = self.environment(plan, request, &set)?;
        if variables
            .iter()
            .any(|(name, _)| name.as_bytes() == b"PGHOST")
        {
            // What leads to the original's server, and its password, stay outside.
            environment.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"PG"));
        }
        // Where one works, and where programs are, one sees.
        let directory = state_dir::canonical(request.directory)?;
        let mut used = vec![directory.clone()];
        let directory = Location::from(directory);
        let path = environment.iter().find(|(name, _)| name == "PATH");
        used.extend(
            path.iter()
                .flat_map(|(_, path)| std::env::split_paths(path)),
        );
        let environment = environment
            .iter()
            .map(|(name, value)| (text(name), text(value)));
        let mut environment: Vec<(Location, Location)> = environment.collect();
        environment.extend(variables);
        environment.push((Location::from_bytes(b"ESCROW_SOCKET"), socket.clone()));
        let home = self.options.user_home.as_deref();
        let scratch = match home.filter(|_| there.is_none()) {
            Some(home) => self.scratch_layers(plan, home, views, (fork, look.scratch))?,
            None => None,
        };
        let mut covered = self.covered(views, &look, &used)?;
        let own_home = home.and_then(|home| state_dir::canonical(home).ok());
        match (&scratch, &own_home) {
            (Some((home, layers)), _) => {
                link_in_home(&mut covered, (home, layers), (views, &look))?
            }
            // Who joins finds it hidden; whatever stands there lies in what can be written.
            (None, Some(home)) if there.is_some() && look.scratch => {
                covered
                    .paths
                    .retain(|path| !path.as_path().starts_with(home));
            }
            (None, _) => {}
        }
        Ok(RunSpec {
            views: shown,
            scratch,
            caches: Vec::new(),
            agent: None,
            hidden,
            home: own_home.map(Location::from),
            covered,
            command: request.started(&look, &project_of(views, directory.as_path())),
            look,
            directory,
            environment,
            held: held_databases(views),
            socket,
            files: self.options.console.files(),
            terminal: attached.terminal.is_some(),
            front: attached.front,
            inside: there.map(|(inside, _)| inside.clone()),
            build: entry.build(),
            share: entry.share(),
            groups: Vec::new(),
            disk: None,
            supervised: Limits::default(),
            authority: None,
            injector: None,
            copied: None,
            is_root: false,
        })
    }

    /// How a sandbox is opened to be changed: as the command sees it that is inside, if there is one.
    pub(super) fn session(&self, plan: &Plan, view: &SandboxView) -> Result<Session> {
        let live = self.live_session(plan, view)?;
        Ok(live.map_or(Session::Exclusive, |(session, _)| session))
    }

    /// The same, with a share in the namespace, which does not end before that is given back; `None` where no command is inside.
    pub(super) fn live_session(
        &self,
        plan: &Plan,
        view: &SandboxView,
    ) -> Result<Option<(Session, Lock)>> {
        let Some((inside, share)) = self.share_namespace(plan)? else {
            return Ok(None);
        };
        // There the sandboxes are at other paths, and those of the originals lead to the originals.
        if self.noted(plan)?.is_none_or(|(_, look)| look.open) {
            return Err(self.live_error(plan));
        }
        // A file is shown as it is: another one in its place would not be seen, and what is written to
        // the old one from then on would be lost.
        if view.resource.shape == Shape::File {
            return Err(Error::Live {
                plan: plan.name.clone(),
            });
        }
        let session = Session::Live(LiveView {
            root: Location::from(PathBuf::from(format!("/proc/{}/root", inside.pid))),
            path: view.resource.at.clone(),
            process: inside,
        });
        Ok(Some((session, share)))
    }
}

/// A command as people read it.
pub(super) fn line(command: &[OsString]) -> String {
    let words = command.iter().map(|word| word.to_string_lossy());
    words.collect::<Vec<_>>().join(" ")
}

pub(super) fn text(word: &OsString) -> Location {
    Location::from_bytes(word.as_bytes())
}
