//! How a program opens the engine: what it does not say comes from the environment, as for the command line.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the one file of the engine that reads the environment, for what the caller left out"
)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Manager, ManagerOptions};
use crate::config::{ConfigSources, FILE_NAME, Settings};
use crate::error::{Error, Result};
use crate::fs::accounts;
use crate::model::{IdSource, Retention, SystemIdSource};
use crate::policy::Policy;
use crate::run::{Console, Detached};
use crate::strategy::Registry;
use crate::strategy::registry::AUTO;

/// How long a call waits for another process that works on the same plan.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program says before it opens the engine. Everything has a default:
///
/// | | |
/// |---|---|
/// | home | `ESCROW_HOME`, else `$XDG_DATA_HOME/escrow`, else `~/.local/share/escrow` |
/// | principal | `ESCROW_PRINCIPAL`, else `user:NAME` |
/// | configuration | the system's, the user's, and `ESCROW_CONFIG` or an `escrow.yaml` here or above |
/// | strategy | `ESCROW_SANDBOX_STRATEGY`, else as the configuration says |
/// | helper | `escrow`, on the search path |
/// | console | none: commands have no terminal and read nothing |
/// | clock and ids | those of the system |
#[must_use = "nothing is opened before `open`"]
pub struct Builder {
    home: Option<PathBuf>,
    principal: Option<String>,
    config: Option<PathBuf>,
    directory: Option<PathBuf>,
    lenient: bool,
    options: ManagerOptions,
}

impl Manager {
    /// Begins to open the engine.
    pub fn builder() -> Builder {
        let user_home = variable("HOME").map(PathBuf::from);
        let strategy = text("ESCROW_SANDBOX_STRATEGY").unwrap_or_else(|| AUTO.to_owned());
        Builder {
            home: None,
            principal: None,
            config: None,
            directory: None,
            lenient: false,
            options: ManagerOptions {
                strategy,
                user_home,
                environment: std::env::vars_os().collect(),
                ..ManagerOptions::new(PathBuf::new())
            },
        }
    }
}

impl Builder {
    /// Keeps the state in this directory.
    pub fn home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// Acts as this principal.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.principal = Some(principal.into());
        self
    }

    /// Takes the project's configuration from this file instead of searching for one.
    pub fn config(mut self, file: impl Into<PathBuf>) -> Self {
        self.config = Some(file.into());
        self
    }

    /// Searches the project's configuration from this directory upward instead of from the current one.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Goes on without a configuration that was found and cannot be used: for what frees space or repairs.
    pub fn lenient(mut self, lenient: bool) -> Self {
        self.lenient = lenient;
        self
    }

    /// Permits only what this policy permits as well.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Makes sandboxes by this strategy where a resource asks for none.
    pub fn strategy(mut self, name: impl Into<String>) -> Self {
        self.options.strategy = name.into();
        self
    }

    /// Has these strategies instead of the built-in ones.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.options.registry = registry;
        self
    }

    /// Takes the time and ids from here.
    pub fn origin(mut self, origin: Arc<dyn IdSource>) -> Self {
        self.options.origin = origin;
        self
    }

    /// Runs commands through this program, which is `escrow` or passes its words on to it.
    pub fn helper(mut self, program: impl Into<PathBuf>) -> Self {
        self.options.helper = program.into();
        self
    }

    /// Gives commands this environment instead of that of the process.
    pub fn environment(mut self, all: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.options.environment = all.into_iter().collect();
        self
    }

    /// Shares a terminal, standard input and signals with commands.
    pub fn console(mut self, console: Arc<dyn Console>) -> Self {
        self.options.console = console;
        self
    }

    /// Waits so long for another process that works on the same plan.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.options.patience = patience;
        self
    }

    /// Opens the engine.
    pub fn open(self) -> Result<Manager> {
        let user_home = &self.options.user_home;
        let below = |name: &str| user_home.as_ref().map(|home| home.join(name));
        let home = self
            .home
            .or_else(|| variable("ESCROW_HOME").map(PathBuf::from));
        let data = || variable("XDG_DATA_HOME").map(PathBuf::from);
        let data = || data().or_else(|| below(".local/share"));
        let home = home.or_else(|| data().map(|data| data.join("escrow")));
        let home = home.ok_or(Error::NoHome)?;
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        // What is not absolute is to be ignored, says the standard.
        let config = config.filter(|path| path.is_absolute());
        let config = config.or_else(|| below(".config"));
        let named = || variable("ESCROW_CONFIG").map(PathBuf::from);
        let principal = self.principal.or_else(|| text("ESCROW_PRINCIPAL"));
        Manager::open(ManagerOptions {
            home: std::path::absolute(&home).unwrap_or(home),
            principal: principal.unwrap_or_else(user),
            sources: ConfigSources {
                system: Some(PathBuf::from("/etc/escrow").join(FILE_NAME)),
                user: config.map(|config| config.join("escrow").join(FILE_NAME)),
                named: self.config.or_else(named),
                directory: self.directory.or_else(|| std::env::current_dir().ok()),
                lenient: self.lenient,
            },
            ..self.options
        })
    }
}

impl ManagerOptions {
    /// Nothing but what has to be there: no configuration, everything permitted to `user`, commands without a terminal.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            origin: Arc::new(SystemIdSource),
            registry: Registry::builtin(),
            principal: "user".to_owned(),
            policy: Policy::default(),
            strategy: AUTO.to_owned(),
            user_home: None,
            patience: PATIENCE,
            settings: Settings::default(),
            keep: Retention::default(),
            sources: ConfigSources::default(),
            helper: PathBuf::from("escrow"),
            environment: Vec::new(),
            console: Arc::new(Detached),
        }
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn text(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}

/// The user as a principal: by name where the machine knows one, else by number.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let name = accounts::user_name(uid).unwrap_or_else(|| uid.to_string());
    format!("user:{name}")
}
