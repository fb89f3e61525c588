//! The environment, read once and handed on as values.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the one file that reads the environment"
)]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use escrow::manager::{Manager, Options};
use escrow::model::SystemOrigin;
use escrow::store::{Plan, Resource};
use escrow::strategy::Registry;
use escrow::strategy::registry::AUTO;

use crate::commands::Global;
use crate::error::Failure;

/// How long a command waits for another one that works on the same plan.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was typed.
pub(crate) fn arguments() -> Vec<OsString> {
    std::env::args_os().collect()
}

/// Whether `--json` was typed, also on a line that cannot be understood.
pub(crate) fn wants_json(typed: &[OsString]) -> bool {
    typed
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json")
}

/// The engine and where the user stands.
pub(crate) struct Context {
    pub(crate) manager: Manager,
    pub(crate) directory: PathBuf,
}

impl Context {
    /// Opens the engine as the options and the environment say.
    pub(crate) fn open(global: &Global) -> Result<Self, Failure> {
        let directory = std::env::current_dir().map_err(|error| {
            Failure::failed(format!("cannot find the current directory: {error}"))
        })?;
        let user_home = variable("HOME").map(PathBuf::from);
        let data = variable("XDG_DATA_HOME").map(PathBuf::from);
        let data = data.or_else(|| user_home.as_ref().map(|home| home.join(".local/share")));
        let named = global
            .home
            .clone()
            .or_else(|| variable("ESCROW_HOME").map(PathBuf::from));
        let Some(home) = named.or_else(|| data.map(|data| data.join("escrow"))) else {
            return Err(Failure::usage(
                "cannot tell where the state is: set ESCROW_HOME or HOME",
            ));
        };
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
        let principal = global
            .principal
            .clone()
            .or_else(|| text("ESCROW_PRINCIPAL"));
        let registry = Registry::builtin();
        let strategy = text("ESCROW_SANDBOX_STRATEGY").unwrap_or_else(|| AUTO.to_owned());
        if strategy != AUTO {
            registry
                .get(&strategy)
                .map_err(escrow::error::Error::from)?;
        }
        let manager = Manager::open(Options {
            home: directory.join(home),
            origin: Arc::new(SystemOrigin),
            registry,
            principal: principal.unwrap_or_else(user),
            strategy,
            user_home,
            patience: PATIENCE,
        })?;
        Ok(Self { manager, directory })
    }

    /// The plan that was typed, or the newest open one of this directory.
    pub(crate) fn plan(&self, typed: Option<&str>) -> Result<Plan, Failure> {
        Ok(self.manager.resolve_plan(typed, &self.directory)?)
    }

    /// The resource that was typed, by name or path.
    pub(crate) fn resource(&self, typed: &OsStr) -> Result<Resource, Failure> {
        Ok(self.manager.find_resource(typed, &self.directory)?)
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The user as a principal: by name where the machine knows one, else by number.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    });
    format!(
        "user:{}",
        name.map_or_else(|| uid.to_string(), str::to_owned)
    )
}
