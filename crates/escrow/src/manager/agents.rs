//! Coding agents in a run: which one a command starts, the agent home that its namespace shows, and what becomes of the files that it
//! wrote there.
//!
//! ```text
//! before   credentials are synced, state is seeded; directories are mounted, single files are links, merged files are given
//! after    files that replaced a link move into the agent home, credentials reach the real files, merged files go by key;
//!          changed configuration is noted and stays in the plan's layer, where it was written
//! ```
//!
//! Every step can be repeated after a crash: a moved file is gone from the layer, and a change is noted once.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::sessions::NamespaceEntry;
use super::{Manager, RunRequest, SandboxView};
use crate::agents::executing::executing;
use crate::agents::home::{self, AgentHome, StoredAgentHome};
use crate::agents::layer::{AgentLayer, sync};
use crate::agents::marks::RunMarks;
use crate::agents::mounts::ShownHome;
use crate::agents::paths::{AgentPaths, without_links};
use crate::agents::wanted::{self, WantedChange};
use crate::agents::{
    AgentPreset, AgentReport, Agents, FileVersions, Recognized, credentials, script,
};
use crate::commit::scratch_name;
use crate::error::{Error, Result, chain};
use crate::fs::state_dir::{self, Lock};
use crate::fs::workspace::is_absent;
use crate::model::text::{Location, escape};
use crate::model::{Action, AllowedHost, Network, Scope};
use crate::run::RunSpec;
use crate::run::program::{output_in_time, program};
use crate::run::spec::AgentMounts;
use crate::store::Plan;

/// Which agent a command is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AgentChoice {
    /// The one that it starts, if it starts one.
    #[default]
    Recognized,
    /// This one.
    Named(String),
    /// None, whatever it starts.
    None,
}

/// Where the state of an agent lives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AgentHomeChoice {
    /// In the agent home that all runs share.
    #[default]
    Shared,
    /// In one that begins empty and goes with the plan.
    Fresh,
    /// In this directory of the user's.
    Dir(PathBuf),
}

/// A known agent that is installed.
#[derive(Debug, Clone)]
pub struct InstalledAgent {
    /// Its name.
    pub name: String,
    /// Its program.
    pub path: Location,
    /// What it says of its version.
    pub version: Option<String>,
}

/// How long an agent may take to say its version.
const VERSION: Duration = Duration::from_secs(10);

/// The version that a program says it has.
fn version(path: &Path) -> Option<String> {
    let mut asked = program(path.as_os_str());
    asked.arg("--version");
    let said = output_in_time(asked, b"", VERSION).ok()?.stdout;
    let said = String::from_utf8_lossy(&said);
    let words = said.split_whitespace().map(str::to_owned);
    let mut words = words.map(|word| {
        word.trim_start_matches('v')
            .trim_end_matches([',', '.'])
            .to_owned()
    });
    words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

/// A request, and the agent that it starts.
pub(super) struct RunCall<'a> {
    request: RunRequest<'a>,
    /// The agent that it starts.
    pub(super) starts: Option<Recognized>,
}

impl<'a> Deref for RunCall<'a> {
    type Target = RunRequest<'a>;

    fn deref(&self) -> &RunRequest<'a> {
        &self.request
    }
}

/// Where an agent home is shown.
struct Place<'a> {
    /// The project of the command.
    here: &'a str,
    /// Whether nothing else is shown at a path, or in it.
    apart: &'a dyn Fn(&Path) -> bool,
    /// The layer over the home directory.
    upper: Option<Location>,
}

/// The project that a command begins in: the resource that holds its directory, else that directory.
pub(super) fn project_of(views: &[SandboxView], directory: &Path) -> String {
    let mut roots = views.iter().map(|view| view.resource.at.as_path());
    let root = roots.find(|root| directory.starts_with(root));
    root.unwrap_or(directory).to_string_lossy().into_owned()
}

impl<'a> RunCall<'a> {
    /// A command that is no agent.
    pub(super) fn plain(request: &RunRequest<'a>) -> Self {
        Self {
            request: request.clone(),
            starts: None,
        }
    }

    pub(super) fn preset(&self) -> Option<&Arc<AgentPreset>> {
        self.starts.as_ref().map(|found| &found.preset)
    }
}

impl Manager {
    /// The presets that count for a plan.
    pub(super) fn agents_of(&self, plan: &Plan) -> Result<Agents> {
        Ok(Agents::with(&self.settings_of(plan)?.agents))
    }

    /// The presets that count where no plan is concerned.
    pub fn agents(&self) -> Agents {
        Agents::with(&self.configured.general.settings.agents)
    }

    /// A request with the agent that it starts, and with the network of its preset where that was asked for.
    pub(super) fn run_call<'a>(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        request: &RunRequest<'a>,
    ) -> Result<RunCall<'a>> {
        let agents = self.agents_of(plan)?;
        let unknown = |name: &String| Error::UnknownAgent {
            name: name.clone(),
            known: agents.all().map(|one| one.name.clone()).collect(),
        };
        let found = agents.recognize(&request.command, &|word| {
            self.script(word, views, request.directory)
        });
        // A program of a tree could have any name, to be shown the login of an agent.
        let found = found.filter(|found| {
            let word = found.word.and_then(|word| request.command.get(word));
            word.is_none_or(|word| !self.lies_in_tree(word, views, request.directory))
        });
        let starts = match &request.agent {
            AgentChoice::Recognized => found,
            AgentChoice::None => None,
            AgentChoice::Named(name) => {
                let preset = agents.named(name).ok_or_else(|| unknown(name))?;
                let same = found.filter(|found| found.preset.name == *name);
                Some(same.unwrap_or_else(|| Recognized {
                    preset: preset.clone(),
                    word: None,
                }))
            }
        };
        let mut request = request.clone();
        if request.preset_network {
            let preset = starts.as_ref().map(|found| &found.preset);
            let hosts = preset
                .map(|preset| &preset.hosts)
                .filter(|hosts| !hosts.is_empty());
            let hosts = hosts.ok_or(Error::NoPresetNetwork)?;
            let read: std::result::Result<Vec<AllowedHost>, String> =
                hosts.iter().map(|host| host.parse()).collect();
            request.network = Some(Network::Allow(read.map_err(|_| Error::NoPresetNetwork)?));
        }
        Ok(RunCall { request, starts })
    }

    /// Where a word leads that names a program.
    fn program_of(&self, word: &OsStr, directory: &Path) -> Option<PathBuf> {
        let named = Path::new(word);
        let mut variables = self.options.environment.iter();
        let path = variables.find(|(name, _)| name == "PATH");
        let at = match named.components().count() > 1 {
            true => directory.join(named),
            false => std::env::split_paths(&path?.1)
                .map(|dir| directory.join(dir).join(named))
                .find(|at| script::is_file(at))?,
        };
        state_dir::canonical_any(&at).ok()
    }

    fn lies_in_tree(&self, word: &OsStr, views: &[SandboxView], directory: &Path) -> bool {
        let real = self.program_of(word, directory);
        let mut trees = views.iter().map(|view| view.resource.at.as_path());
        real.is_some_and(|real| trees.any(|tree| real.starts_with(tree)))
    }

    /// The text of a script that a command names, unless it lies in a resource: a tree could name an agent to be shown its
    /// credentials.
    fn script(&self, word: &OsStr, views: &[SandboxView], directory: &Path) -> Option<String> {
        let real = self.program_of(word, directory)?;
        let mut trees = views.iter().map(|view| view.resource.at.as_path());
        let in_tree = trees.any(|tree| real.starts_with(tree));
        (!in_tree).then(|| script::body(&real)).flatten()
    }

    /// The paths of a preset in the home directory that is in use.
    pub(super) fn agent_paths(&self, preset: &Arc<AgentPreset>) -> Option<AgentPaths> {
        let home = state_dir::canonical(self.options.user_home.as_deref()?).ok()?;
        let environment = &self.options.environment;
        Some(AgentPaths::new(preset.clone(), &home, environment))
    }

    /// Gives the namespace that is about to be built the home of the agent that the command starts.
    pub(super) fn take_agent_home(
        &self,
        plan: &Plan,
        views: &[SandboxView],
        call: &RunCall<'_>,
        spec: &mut RunSpec,
        entry: &mut NamespaceEntry,
    ) -> Result<()> {
        let Some(preset) = call.preset() else {
            return Ok(());
        };
        if entry.build().is_none() {
            let shown = self.agent_paths(preset).map(|paths| paths.shown());
            let mut shown = shown.into_iter().flatten().map(Location::from);
            if shown.any(|at| !spec.look.shown.contains(&at)) {
                self.notice(format!(
                    "{}: a command that runs in this plan already was begun without it, so its login and sessions are not there; \
                    `--new` begins a plan of its own",
                    preset.title
                ));
            }
            return Ok(());
        }
        let home = spec.scratch.as_ref().map(|(home, _)| home.clone());
        let Some(paths) = self.agent_paths(preset).filter(|paths| {
            spec.look.scratch && home.is_some_and(|home| home.as_path() == paths.home)
        }) else {
            return Ok(());
        };
        let apart = |at: &Path| {
            let others = views.iter().map(|view| view.resource.at.as_path());
            let mut others = others.chain(spec.look.writable.iter().map(Location::as_path));
            others.all(|other| !other.starts_with(at) && !at.starts_with(other))
        };
        if let AgentHomeChoice::Dir(at) = &call.agent_home {
            let real = without_links(at);
            let mut others = views.iter().map(|view| view.resource.at.as_path());
            let holds = |other: &Path| other.starts_with(&real) || real.starts_with(other);
            let is_own = AgentHome::may_be(&real)?;
            let holds_home = paths.home.starts_with(&real);
            if others.any(holds) || holds(self.home()) || holds_home || !is_own {
                return Err(Error::BadAgentHome {
                    at: Location::from(real),
                });
            }
        }
        let here = project_of(views, spec.directory.as_path());
        let upper = spec
            .scratch
            .as_ref()
            .map(|(_, layers)| layers.upper.clone());
        let shown = self.show_agent_home(
            plan,
            &paths,
            &call.agent_home,
            Place {
                here: &here,
                apart: &apart,
                upper,
            },
        );
        let mounts = shown.and_then(|(mounts, share)| {
            if let Some((_, layers)) = &spec.scratch {
                crate::run::hidden::make_room(layers)?;
            }
            Ok((mounts, share))
        });
        match mounts {
            Ok((mounts, share)) => {
                let lock = entry.hold(share);
                spec.agent = Some(AgentMounts { lock, ..mounts });
            }
            // The agent can do without, as at its first start.
            Err(error) => {
                let (title, why) = (&preset.title, chain(&error));
                self.notice(format!(
                    "{title}: its agent home cannot be used, so nothing of its sessions stays: {why}"
                ));
            }
        }
        Ok(())
    }

    /// Prepares the home of an agent for a run. Returns the mounts, and the share that keeps the home from being removed.
    fn show_agent_home(
        &self,
        plan: &Plan,
        paths: &AgentPaths,
        choice: &AgentHomeChoice,
        place: Place<'_>,
    ) -> Result<(AgentMounts, Lock)> {
        // What a crash left comes first: a login may be among it.
        self.tell_settled(&self.settle_agents(plan)?);
        let (agent, seeded) = self.agent_home(plan, paths, choice)?;
        let lock = agent.lock()?;
        let now = self.options.origin.now().as_second();
        let title = &paths.preset.title;
        if seeded {
            let gone = agent.trim(&lock, now)? >> 20;
            if gone > 0 {
                self.notice(format!(
                    "{title}: {gone} MiB of its oldest sessions were removed"
                ));
            }
        }
        let noted = credentials::sync(&agent, paths)?;
        for one in noted.iter().filter(|one| !one.is_refused) {
            let at = self.under_home(&Location::from(one.entry.at.as_path()));
            self.notice(format!("{title}: {at} has the login of an earlier run now"));
        }
        let marks = self.run_marks(plan, &paths.preset.name)?;
        let home = ShownHome {
            agent: &agent,
            paths,
            seeded,
            here: place.here,
            apart: place.apart,
            upper: place.upper.as_ref().map(Location::as_path),
        };
        let (mounts, left_out) = home.mounts(&marks)?;
        if left_out > 0 {
            self.notice(format!(
                "{title}: the newest {} MiB of its sessions were taken over; {} MiB of older ones stay outside",
                home::SEEDED >> 20,
                left_out >> 20
            ));
        }
        if mounts.state.is_empty() {
            self.notice(format!(
                "{title}: something else stands where its sessions are, so nothing of them is shown; in a plan whose commands put it there, \
                `--new` begins another one"
            ));
        }
        marks.note_home(&agent)?;
        Ok((mounts, agent.share(now)?))
    }

    /// The home of an agent in this run, and whether it is seeded.
    fn agent_home(
        &self,
        plan: &Plan,
        paths: &AgentPaths,
        choice: &AgentHomeChoice,
    ) -> Result<(AgentHome, bool)> {
        let name = &paths.preset.name;
        match choice {
            AgentHomeChoice::Shared => Ok((AgentHome::open(&self.home, name)?, true)),
            AgentHomeChoice::Fresh => Ok((self.run_marks(plan, name)?.fresh()?, false)),
            AgentHomeChoice::Dir(at) => Ok((AgentHome::in_dir(at)?, false)),
        }
    }

    /// Where a run of an agent leaves its marks.
    fn run_marks(&self, plan: &Plan, agent: &str) -> Result<RunMarks> {
        Ok(RunMarks::make(&self.areas, &scratch_name(plan), agent)?)
    }

    /// Takes over what agents left in a plan; nothing where a command is still inside, but for credentials. A failure is
    /// said: the command has ended.
    pub(super) fn end_agents(&self, plan: &Plan, last: bool) -> Vec<AgentReport> {
        let settled = match last {
            true => self.settle_agents(plan),
            false => self.sync_agents(plan),
        };
        settled.unwrap_or_else(|error| {
            let why = chain(&error);
            self.notice(format!(
                "what an agent keeps could not be taken over: {why}"
            ));
            Vec::new()
        })
    }

    /// The agents that have run in a plan, with their homes and the marks that they left.
    fn agents_in(&self, plan: &Plan) -> Result<Vec<(AgentPaths, AgentHome, RunMarks)>> {
        let marks = RunMarks::all(&self.scratch_path(plan))?;
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        let agents = self.agents_of(plan)?;
        let mut found = Vec::new();
        for (name, marks) in marks {
            let paths = agents.named(&name).and_then(|one| self.agent_paths(one));
            if let Some((paths, home)) = paths.zip(marks.home()?) {
                found.push((paths, home, marks));
            }
        }
        Ok(found)
    }

    fn sync_agents(&self, plan: &Plan) -> Result<Vec<AgentReport>> {
        let mut reports = Vec::new();
        for (paths, agent, _) in self.agents_in(plan)? {
            let _lock = agent.lock()?;
            reports.push(sync(&paths, &agent)?);
        }
        Ok(reports)
    }

    /// Says what came of agents where no summary of a run does: after a crash, or at the end of a plan.
    pub(super) fn tell_settled(&self, reports: &[AgentReport]) {
        for report in reports {
            let (title, name) = (&report.preset.title, &report.preset.name);
            for at in &report.refreshed {
                let at = self.under_home(at);
                self.notice(format!("{title}: {at} has the login of an earlier run now"));
            }
            for one in &report.wanted {
                let (path, summary) = (escape(one.path.as_bytes()), escape(one.summary.as_bytes()));
                self.notice(format!(
                    "{title} wanted to change ~/{path} in an earlier run: {summary}; kept out (`escrow agent diff {name}`)"
                ));
            }
        }
    }

    /// The same after a command that had a home directory of its own, without namespaces.
    pub(super) fn end_copied_agents(&self, plan: &Plan, home: &Path) {
        match self.settle_layer(plan, home, false) {
            Ok(reports) => self.tell_settled(&reports),
            Err(error) => {
                let why = chain(&error);
                self.notice(format!(
                    "what an agent keeps could not be taken over: {why}"
                ));
            }
        }
    }

    /// Takes over what agents left in the layer of a plan in which no command is.
    pub(super) fn settle_agents(&self, plan: &Plan) -> Result<Vec<AgentReport>> {
        let upper = self.scratch_path(plan).join("upper");
        match is_absent(&upper) {
            true => Ok(Vec::new()),
            false => self.settle_layer(plan, &upper, true),
        }
    }

    fn settle_layer(
        &self,
        plan: &Plan,
        upper: &Path,
        is_overlay: bool,
    ) -> Result<Vec<AgentReport>> {
        let (mut reports, id) = (Vec::new(), plan.id.to_string());
        for (paths, agent, marks) in self.agents_in(plan)? {
            let _lock = agent.lock()?;
            // Where the user looks for it, whatever home this run had.
            let noted = AgentHome::open(&self.home, &paths.preset.name)?;
            let layer = AgentLayer {
                upper,
                paths: &paths,
                agent: &agent,
                noted: &noted,
                plan: (&plan.name, &id),
            };
            let changes = match is_overlay {
                true => Some(self.layer_changes(upper, &paths.home)?),
                false => None,
            };
            let (report, failed) = layer.settle(&marks, changes.as_ref());
            for error in failed {
                let (title, why) = (&paths.preset.title, chain(&error));
                self.notice(format!("{title}: not all of it could be taken over: {why}"));
            }
            reports.push(report);
        }
        Ok(reports)
    }

    /// What an agent wanted to change of its configuration, in all runs.
    pub fn agent_changes(&self, preset: &AgentPreset) -> Result<Vec<WantedChange>> {
        match AgentHome::find(&self.home, &preset.name)? {
            Some(agent) => Ok(wanted::list(&agent)?),
            None => Ok(Vec::new()),
        }
    }

    /// Both versions of a file that an agent wanted to change: the real one, and its own.
    pub fn agent_versions(
        &self,
        preset: &Arc<AgentPreset>,
        change: &WantedChange,
    ) -> Result<FileVersions> {
        match (
            AgentHome::find(&self.home, &preset.name)?,
            self.agent_paths(preset),
        ) {
            (Some(agent), Some(paths)) => Ok(wanted::versions(&agent, &paths.home, change)?),
            _ => Ok((None, None)),
        }
    }

    /// Takes a change of an agent's configuration over into the real file.
    pub fn accept_agent_change(
        &self,
        preset: &Arc<AgentPreset>,
        change: &WantedChange,
    ) -> Result<()> {
        self.permit(Action::Admin, None, Scope::All)?;
        let (Some(agent), Some(paths)) = (
            AgentHome::find(&self.home, &preset.name)?,
            self.agent_paths(preset),
        ) else {
            return Ok(());
        };
        let at = Location::from(paths.home.join(&change.path));
        self.record("agent", None, &at.to_string(), || {
            let _lock = agent.lock()?;
            let (real, _) = wanted::versions(&agent, &paths.home, change)?;
            if !wanted::is_kept(change) {
                return Err(Error::AgentFileUnkept { at: at.clone() });
            }
            if wanted::is_stale(change, real.as_deref()) {
                return Err(Error::AgentFileMoved { at: at.clone() });
            }
            Ok(wanted::accept(&agent, &paths.home, change)?)
        })
    }

    /// Forgets a change of an agent's configuration.
    pub fn drop_agent_change(&self, preset: &AgentPreset, change: &WantedChange) -> Result<()> {
        self.permit(Action::Admin, None, Scope::All)?;
        let Some(agent) = AgentHome::find(&self.home, &preset.name)? else {
            return Ok(());
        };
        let _lock = agent.lock()?;
        Ok(wanted::drop_change(&agent, &change.path)?)
    }

    /// A path as it was typed, below the home directory: with `~/`, absolute, or from there.
    pub fn below_home(&self, typed: &str) -> String {
        let bare = typed.strip_prefix("~/").unwrap_or(typed);
        let named = self.options.user_home.as_deref().unwrap_or(Path::new("/"));
        let real_home = state_dir::canonical(named).unwrap_or_default();
        // What an agent wanted to make need not be there. An absolute path stays one.
        let path = named.join(bare);
        let real = without_links(&path);
        let inner = real.strip_prefix(&real_home);
        let inner = inner.or_else(|_| path.strip_prefix(named)).ok();
        let inner = inner.and_then(Path::to_str).unwrap_or(bare);
        inner.trim_end_matches('/').to_owned()
    }

    /// The known agents that are installed, with their versions.
    pub fn installed_agents(&self) -> Vec<InstalledAgent> {
        let mut variables = self.options.environment.iter();
        let path = variables.find(|(name, _)| name == "PATH");
        let dirs: Vec<PathBuf> = path
            .map(|(_, path)| std::env::split_paths(path).collect())
            .unwrap_or_default();
        let agents = self.agents();
        let found = agents.all().filter_map(|preset| {
            let names = std::iter::once(&preset.name).chain(&preset.programs);
            let mut places = names.flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
            let at = places.find(|at| script::is_program(at))?;
            Some((preset.name.clone(), at))
        });
        let asked: Vec<_> = found
            .map(|(name, at)| {
                let path = at.clone();
                let thread = std::thread::spawn(move || version(&path));
                (name, at, thread)
            })
            .collect();
        let answered = asked.into_iter().map(|(name, at, thread)| InstalledAgent {
            name,
            path: Location::from(at),
            version: thread.join().unwrap_or_default(),
        });
        answered.collect()
    }

    /// Every agent home, and the bytes that it takes on disk.
    pub fn agent_homes(&self) -> Result<Vec<(StoredAgentHome, u64)>> {
        let all = home::stored(&self.home)?.into_iter();
        let measured = all.map(|one| {
            let bytes = home::measured(&one.path);
            (one, bytes)
        });
        Ok(measured.collect())
    }

    /// Paths of the home directory that a known agent, or another program, executes or obeys: a file written there
    /// for real runs later, outside.
    pub(super) fn executing_paths(&self, agents: &Agents) -> Vec<(PathBuf, String)> {
        let home = self.options.user_home.as_deref().map(state_dir::canonical);
        let Some(home) = home.and_then(|home| home.ok()) else {
            return Vec::new();
        };
        let paths: Vec<AgentPaths> = agents
            .all()
            .filter_map(|preset| self.agent_paths(preset))
            .collect();
        executing(&home, paths.iter())
    }

    /// Removes the home of an agent; says whether it could: not while a run shows it.
    pub(super) fn remove_agent_home(&self, path: &Path) -> Result<bool> {
        Ok(home::remove_home(path)?)
    }

    /// Removes the place of all agent homes.
    pub(super) fn remove_agents_place(&self) -> Result<()> {
        Ok(home::remove_place(&self.home)?)
    }
}
