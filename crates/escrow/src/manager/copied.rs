//! A run where no namespaces can be had: the command works in the copies themselves, confined by Landlock and a filter of
//! system calls alone.
//!
//! Only after namespaces were tried and this machine forbids them. What the caller or the configuration demands and this cannot give
//! is refused by name.

use std::path::{Path, PathBuf};

use super::agents::RunCall;
use super::network::Supervision;
use super::sessions::NamespaceEntry;
use super::{Manager, SandboxView};
use crate::error::Result;
use crate::fs::state_dir::{self, ScratchDir};
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Network, SandboxId, Shape};
use crate::run::search::is_there;
use crate::run::spec::{CopiedRun, LinkInCopy};
use crate::run::{RunError, RunOutcome, RunSpec, lacks, not_protected};
use crate::store::Plan;
use crate::strategy::unsupported;

/// What of the machine is read.
const SYSTEM: &[&str] = &[
    "/bin",
    "/etc",
    "/gnu",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix",
    "/opt",
    "/proc",
    "/run/current-system",
    "/run/systemd/resolve",
    "/sbin",
    "/snap",
    "/sys",
    "/usr",
    "/var/cache",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/snapd",
];

/// What of the home directory is read, and found in the private one too: tools, and settings that hold no credentials.
const TOOLS: &[&str] = &[
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".cargo/config.toml",
    ".cargo/env",
    ".config/git/config",
    ".config/git/ignore",
    ".deno/bin",
    ".dotnet",
    ".fnm",
    ".gitconfig",
    ".goenv",
    ".jenv",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv",
    ".npm-global",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".tool-versions",
    ".vimrc",
    ".volta",
    "go/bin",
    "miniconda3",
];

/// Variables that name a directory of tools.
const PLACES: &str = "CONDA_PREFIX DENO_INSTALL FNM_DIR GOROOT JAVA_HOME NVM_DIR PNPM_HOME PYENV_ROOT RBENV_ROOT RUSTUP_HOME SDKMAN_DIR \
    VIRTUAL_ENV VOLTA_HOME";

/// Variables that lead to what is private here, or out of reach.
const LEFT_OUT: &str = "ESCROW_SOCKET OLDPWD XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME";

fn refused(what: impl Into<String>) -> RunError {
    let (what, bare) = (what.into(), false);
    RunError::NoNamespaces { what, bare }
}

impl Manager {
    /// Carries a command out without namespaces, after those were tried as `spec` describes.
    pub(super) fn run_copied(
        &self,
        (plan, views): (&Plan, &[SandboxView]),
        request: &RunCall<'_>,
        spec: &RunSpec,
        how: Supervision<'_>,
        entry: &NamespaceEntry,
        started: impl FnOnce(),
    ) -> Result<RunOutcome> {
        let network = self.possible(plan, request, spec)?;
        let unique = SandboxId::new(&*self.options.origin).to_string();
        let unique = unique.trim_start_matches("sbx_");
        let private = ScratchDir::make(self.areas.again(), "scratch-copied-", unique)?;
        let attached = self.attach()?;
        let mut spec = self.copied_spec(views, spec, request, private.path())?;
        spec.look.network = network;
        (spec.terminal, spec.front) = (attached.terminal.is_some(), attached.front);
        self.options.console.begins(&said(&spec));
        let ended = self.supervise(&spec, attached, how, entry, (plan, false), started);
        self.end_copied_agents(plan, &private.path().join("home"));
        let ended = ended?;
        Ok(RunOutcome {
            without: Some(said(&spec)),
            ..ended
        })
    }

    /// Refuses what cannot be had; the network that can.
    fn possible(&self, plan: &Plan, request: &RunCall<'_>, spec: &RunSpec) -> Result<Network> {
        if let Some(lacks) = lacks() {
            let (what, bare) = (lacks.to_owned(), true);
            return Err(RunError::NoNamespaces { what, bare }.into());
        }
        let refuse = |what: &str| Err(refused(what).into());
        if !spec.look.hidden.is_empty() {
            return refuse("no path can be hidden (`--hide`, `run.hide`)");
        }
        if !request.publish.is_empty() {
            return refuse("ports need a network of the plan's own (`--publish`)");
        }
        let resources = || spec.views.iter().map(|one| one.at.as_path());
        let mut covered = spec.covered.paths.iter();
        let within = |path: &&Location| resources().any(|at| path.as_path().starts_with(at));
        if let Some(path) = covered.find(within) {
            return refuse(&format!(
                "'{path}' cannot be hidden, which holds credentials and lies in a resource (`--show` lets the command see it)"
            ));
        }
        if spec.look.userns {
            return refuse("commands can have none (`--allow-userns`, `run.allow_userns`)");
        }
        let usual = self.run_defaults(plan)?.network;
        match request.network.clone().or(usual) {
            None | Some(Network::Host) => Ok(Network::Host),
            Some(Network::None) => Ok(Network::None),
            Some(other) => refuse(&format!(
                "the network cannot be `{other}` (`--network`, `run.network`): `none` and `host` can"
            )),
        }
    }

    fn copied_spec(
        &self,
        views: &[SandboxView],
        spec: &RunSpec,
        request: &RunCall<'_>,
        private: &Path,
    ) -> Result<RunSpec> {
        let copies = self.copies(views, spec)?;
        let mut copied = CopiedRun {
            private: Location::from(private),
            ..CopiedRun::default()
        };
        for (view, shown) in spec.views.iter().map(|one| (&one.view, one)) {
            let (View::Directory(real) | View::ReadOnly(real)) = view else {
                continue;
            };
            let holder = copies
                .iter()
                .find(|(at, _)| shown.at.as_path() != *at && shown.at.as_path().starts_with(at));
            match holder {
                None => copied.writable.push(real.clone()),
                Some((at, copy)) => {
                    // In a chain, the nearer one holds the place.
                    let inner = copied
                        .links
                        .iter()
                        .rev()
                        .find(|link| shown.at.as_path().starts_with(link.at.as_path()));
                    let (at, copy) = match inner {
                        Some(link) => (link.at.as_path(), link.target.as_path()),
                        None => (at.as_path(), copy.as_path()),
                    };
                    let place = shown.at.as_path().strip_prefix(at).unwrap_or(Path::new(""));
                    let link = LinkInCopy {
                        copy: Location::from(copy),
                        place: Location::from(place),
                        target: real.clone(),
                        at: shown.at.clone(),
                    };
                    copied.links.push(link);
                    if matches!(view, View::Directory(_)) {
                        copied.writable.push(real.clone());
                    }
                }
            }
        }
        // An editor puts a new file in the place of the old one.
        let files = views.iter().filter(|view| view.resource.shape.is_file());
        let files: Vec<&Path> = files.map(|view| view.resource.at.as_path()).collect();
        let holding = copies
            .iter()
            .filter(|(at, _)| files.contains(&at.as_path()));
        let holding = holding.filter_map(|(_, copy)| copy.parent().map(Location::from));
        copied.writable.extend(holding.collect::<Vec<_>>());
        copied.writable.extend(spec.look.writable.iter().cloned());
        if let Some((agent, paths)) = spec
            .agent
            .as_ref()
            .zip(request.preset().and_then(|preset| self.agent_paths(preset)))
        {
            // Links take the place of mounts; a file that replaces one is taken from the private directory.
            for one in &agent.state {
                copied.tools.push((one.inner.clone(), one.from.clone()));
                copied.writable.push(one.from.clone());
            }
            let preset = &paths.preset;
            let read = paths
                .entries(&preset.executes)
                .chain(paths.entries(&preset.secrets));
            for entry in read.filter(|entry| is_there(&entry.at)) {
                let at = Location::from(entry.at);
                copied.tools.push((Location::from(entry.inner), at.clone()));
                copied.shown.push(at);
            }
            copied.given = agent.given.clone();
        }
        self.readable(views, spec, &mut copied);
        let directory = spec.directory.as_path();
        let directory = copies.iter().find_map(|(at, copy)| {
            let rest = directory.strip_prefix(at).ok()?;
            // An empty rest would add a slash.
            Some(
                copy.components()
                    .chain(rest.components())
                    .collect::<PathBuf>(),
            )
        });
        let directory = directory.unwrap_or_else(|| spec.directory.as_path().to_owned());
        let mut environment = spec.environment.clone();
        let set = [
            ("HOME", private.join("home")),
            ("TMPDIR", private.join("tmp")),
            ("PWD", directory.clone()),
        ];
        let left_out = |name: &[u8]| {
            let mut names = LEFT_OUT.split(' ').chain(set.iter().map(|(name, _)| *name));
            names.any(|one| one.as_bytes() == name)
        };
        environment.retain(|(name, _)| !left_out(name.as_bytes()));
        environment.extend(
            set.map(|(name, value)| (Location::from_bytes(name.as_bytes()), Location::from(value))),
        );
        Ok(RunSpec {
            copied: Some(copied),
            directory: Location::from(directory),
            environment,
            scratch: None,
            caches: Vec::new(),
            agent: None,
            ..spec.clone()
        })
    }

    /// Where the copy of each resource is.
    fn copies(&self, views: &[SandboxView], spec: &RunSpec) -> Result<Vec<(PathBuf, PathBuf)>> {
        let mut copies = Vec::new();
        for view in views {
            let (at, name) = (&view.resource.at, &view.resource.name);
            let strategy = &view.sandbox.reference.strategy_name;
            let refuse = |why: &str| {
                let what = "show a command a sandbox without namespaces";
                unsupported(strategy, what, why)
            };
            if view.resource.shape == Shape::Database {
                let why = format!(
                    "{name} is a database, which is shown by a mount or through a Unix socket"
                );
                return Err(refuse(&why).into());
            }
            let others = views
                .iter()
                .filter(|other| other.resource.id != view.resource.id);
            if others
                .map(|other| other.resource.at.as_path())
                .any(|other| at.as_path().starts_with(other))
            {
                let why = format!(
                    "{name} lies in another resource of the plan, and is shown there by a mount"
                );
                return Err(refuse(&why).into());
            }
            let mounts = spec.views.iter();
            let own = mounts.filter(|one| one.at.as_path().starts_with(at.as_path()));
            for shown in own {
                match &shown.view {
                    View::Layers(_) => {
                        let why = format!(
                            "{name} is made of layers, which a mount shows as one directory; a new plan (`--new`) is made of copies here"
                        );
                        return Err(refuse(&why).into());
                    }
                    View::Directory(copy) if copy == at => {
                        let why = format!("{name} is the original itself, and no copy");
                        return Err(refuse(&why).into());
                    }
                    View::Directory(copy) if shown.at == *at => {
                        copies.push((at.as_path().to_owned(), copy.as_path().to_owned()));
                    }
                    View::Directory(_) | View::ReadOnly(_) => {}
                }
            }
        }
        let ours = |one: &Location| copies.iter().any(|(at, _)| one.as_path().starts_with(at));
        match spec.views.iter().find(|one| !ours(&one.at)) {
            None => Ok(copies),
            Some(other) => Err(refused(format!(
                "'{}' cannot be shown, which lies outside of the resource that it belongs to (a linked worktree, or a separate git directory)",
                other.at
            ))
            .into()),
        }
    }

    /// What the command reads beside the copies, and what is kept from it there.
    fn readable(&self, views: &[SandboxView], spec: &RunSpec, copied: &mut CopiedRun) {
        let mut readable: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        readable.extend(
            views
                .iter()
                .map(|view| view.resource.at.as_path().to_owned()),
        );
        readable.extend(copied.shown.drain(..).map(|one| one.as_path().to_owned()));
        readable.extend(spec.look.shown.iter().map(|one| one.as_path().to_owned()));
        let variable = |name: &str| {
            let mut all = spec.environment.iter();
            let found = all.find(|(known, _)| known.as_bytes() == name.as_bytes());
            found.map(|(_, value)| value.as_path().as_os_str().to_owned())
        };
        let mut named: Vec<PathBuf> = PLACES
            .split_whitespace()
            .filter_map(|name| variable(name).map(PathBuf::from))
            .collect();
        let path = variable("PATH").unwrap_or_default();
        named.extend(std::env::split_paths(&path));
        let homes = self.own_homes();
        // No directory that holds a home directory, or is one, is a place of tools.
        named.retain(|path| {
            let real = state_dir::canonical(path).unwrap_or_default();
            path.is_absolute() && !homes.iter().any(|home| home.starts_with(&real))
        });
        readable.extend(named);
        if let Some(home) = spec.home.as_ref().map(|home| home.as_path()) {
            let of_home = spec
                .look
                .shown
                .iter()
                .filter_map(|one| one.as_path().strip_prefix(home).ok());
            let shown = of_home.filter_map(Path::to_str).map(str::to_owned);
            let tools = TOOLS.iter().map(|name| (*name).to_owned());
            for name in tools.chain(shown.filter(|name| !name.is_empty())) {
                let path = home.join(&name);
                let holds = |known: &(Location, Location)| {
                    let known = known.0.as_path();
                    Path::new(&name).starts_with(known) || known.starts_with(&name)
                };
                if is_there(&path) && !copied.tools.iter().any(holds) {
                    copied.tools.push((
                        Location::from(Path::new(&name)),
                        Location::from(path.as_path()),
                    ));
                    readable.push(path);
                }
            }
        }
        let real = readable
            .iter()
            .filter_map(|path| state_dir::canonical_any(path).ok());
        copied.readable = real.map(Location::from).collect();
        copied.hidden = spec
            .covered
            .paths
            .iter()
            .chain(&spec.hidden)
            .cloned()
            .collect();
    }
}

/// What a command that runs this way is told of it, before it begins.
fn said(spec: &RunSpec) -> String {
    let network = &spec.look.network;
    let at = &spec.directory;
    format!(
        "user namespaces are not available here: running in a copy at {at}, confined by Landlock and a system call filter; \
        not protected: {}; network: {network}; no Unix sockets, HOME and TMPDIR are private and thrown away; \
        `escrow doctor --fix` says how to get all walls",
        not_protected()
    )
}
