//! The merged configuration as plain values for the manager.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    CheckpointConfig, CleanupPolicy, ConfigError, ConfigOrigin, CustomStrategyConfig,
    RetentionPeriod, TimeoutConfig, check, include, load, parse,
};
use crate::agents::AgentPreset;
use crate::model::text::Location;
use crate::model::{CachePolicy, Limits, Network, Options, ResourceTypes};
use crate::strategy::Registry;
use crate::strategy::plugin::{ProgramLaunch, ProgramSpec, PythonClass};
use crate::strategy::registry::DeclaredStrategy;

/// What the configuration says, or would say if there were one.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The file it came from; none for the defaults.
    pub file: Option<Location>,
    /// The strategy of resources that ask for none.
    pub strategy: Option<String>,
    /// When sandboxes go.
    pub cleanup: CleanupPolicy,
    /// How long a commit can be taken back.
    pub undo_keep: Duration,
    /// When checkpoints are taken, and how many are kept.
    pub checkpoint: CheckpointConfig,
    /// Strategies that are programs of the user's own.
    pub custom_strategies: BTreeMap<String, CustomStrategyConfig>,
    /// Every type of resource.
    pub types: ResourceTypes,
    /// Resources that can be named; they become known when they are used.
    pub resources: Vec<ConfigResource>,
    /// Defaults of a command that is run inside.
    pub run: RunDefaults,
    /// The user's own presets of coding agents, and additions to known ones.
    pub agents: BTreeMap<String, AgentPreset>,
    /// Patterns of files that are neither shown nor released.
    pub ignore: Vec<String>,
    /// Commands that validate the changes.
    pub validate: Vec<Validation>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            file: None,
            strategy: None,
            cleanup: CleanupPolicy::default(),
            undo_keep: RetentionPeriod::default().0,
            checkpoint: CheckpointConfig::default(),
            custom_strategies: BTreeMap::new(),
            types: ResourceTypes::default(),
            resources: Vec::new(),
            run: RunDefaults::default(),
            agents: BTreeMap::new(),
            ignore: Vec::new(),
            validate: Vec::new(),
        }
    }
}

/// A resource that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigResource {
    /// Its name.
    pub name: String,
    /// Its type; that of what stands there if none.
    pub kind: Option<String>,
    /// The file that declares it.
    pub file: Location,
    /// Where it is.
    pub at: PathBuf,
    /// The resource it lies in.
    pub parent: Option<String>,
    /// The strategy it asks for.
    pub strategy: Option<String>,
    /// What its strategy is given.
    pub options: Options,
    /// Set where the file that declares it is not trusted.
    pub untrusted: Option<UntrustedResource>,
}

/// What a resource of a file that is not trusted may not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntrustedResource {
    /// The directory it must lie in: that of the file.
    pub within: PathBuf,
    /// The key that does not count, if one of it does not: it would have no isolation, or the
    /// permissions of another resource.
    pub ignored: Option<String>,
    /// Whether it may not have its name: a policy permits something by it.
    pub nameless: bool,
    /// Whether it is used under the name that its path gives it: a policy speaks of resources by name,
    /// and another name would escape its rules. Rules of the file itself still speak of it.
    pub unnamed: bool,
}

impl ConfigResource {
    /// Whether it may not have its name.
    pub fn is_nameless(&self) -> bool {
        self.untrusted.as_ref().is_some_and(|one| one.nameless)
    }

    /// Whether it is not used under its name.
    pub fn is_unnamed(&self) -> bool {
        self.untrusted.as_ref().is_some_and(|one| one.unnamed)
    }
}

/// A command that validates the changes before a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Which hosts it reaches.
    pub network: Network,
}

/// Defaults of a command that is run inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunDefaults {
    /// Paths that can be written for real.
    pub writable: Vec<PathBuf>,
    /// Which hosts can be reached.
    pub network: Option<Network>,
    /// Whether the home directory gets a layer that is thrown away.
    pub scratch: Option<bool>,
    /// Whether commands may make user namespaces of their own.
    pub userns: Option<bool>,
    /// Paths of which commands see nothing.
    pub hide: Vec<PathBuf>,
    /// Paths that commands see although they hold credentials.
    pub show: Vec<PathBuf>,
    /// Paths that belong to a plan which is made for a command.
    pub keep: Vec<PathBuf>,
    /// Whose the caches of tools are.
    pub caches: Option<CachePolicy>,
    /// What commands may use.
    pub limits: Limits,
    /// Names of the caller's variables that commands get; all that do not look like secrets if left out.
    pub pass: Option<Vec<String>>,
    /// Credentials that are added to requests.
    pub inject: Vec<Injection>,
    /// Variables that are set.
    pub env: BTreeMap<String, String>,
}

/// A credential that is added to the requests of commands for a host, and that they never hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// The host, a name.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The name of the header.
    pub header: String,
    /// Where the credential is.
    pub from: SecretSource,
    /// The value of the header, in which `{}` stands for the credential.
    pub format: String,
}

/// Where a credential is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In a variable of the caller.
    Variable(String),
    /// In a file.
    File(PathBuf),
}

/// What a command finds in the variable of a credential that is added outside.
const PLACEHOLDER: &str = "added-outside-by-escrow";

impl Injection {
    /// The variable of a command that stands for the credential, so that a tool takes it for one.
    pub(crate) fn placeholder(&self) -> Option<(OsString, OsString)> {
        match &self.from {
            SecretSource::Variable(name) => Some((name.into(), PLACEHOLDER.into())),
            SecretSource::File(_) => None,
        }
    }

    /// What is sent where, without the credential.
    pub(crate) fn described(&self) -> String {
        let from = match &self.from {
            SecretSource::Variable(name) => format!("the variable {name}"),
            SecretSource::File(path) => format!("the file '{}'", Location::from(path.as_path())),
        };
        format!("{from} as {} to {}:{}", self.header, self.host, self.port)
    }

    /// The file of the credential, which commands do not see.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        match &self.from {
            SecretSource::Variable(_) => None,
            SecretSource::File(path) => Some(path),
        }
    }
}

impl CustomStrategyConfig {
    /// The strategy that it declares; `None` where it only has options for one that there is.
    fn declared(&self, name: &str) -> Option<DeclaredStrategy> {
        if let Some(of) = &self.alias_of {
            return Some(DeclaredStrategy::Alias {
                name: name.to_owned(),
                of: of.clone(),
            });
        }
        let launch = match (&self.command, &self.module, &self.class) {
            (Some(words), ..) => ProgramLaunch::Command(words.clone()),
            (None, Some(module), class) => ProgramLaunch::Class(PythonClass {
                name: match class {
                    Some(class) => format!("{module}:{class}"),
                    None => module.clone(),
                },
                first: vec![self.directory.clone()],
                last: Vec::new(),
            }),
            (None, None, _) => return None,
        };
        let limits = match &self.timeout {
            None => BTreeMap::new(),
            Some(TimeoutConfig::Every(limit)) => [("*".to_owned(), limit.0)].into(),
            Some(TimeoutConfig::ByMethod(limits)) => {
                let one = |(method, limit): (&String, &RetentionPeriod)| (method.clone(), limit.0);
                limits.iter().map(one).collect()
            }
        };
        Some(DeclaredStrategy::Program(ProgramSpec {
            name: name.to_owned(),
            launch,
            directory: self.directory.clone(),
            options: self.options.clone(),
            env: self.env.clone(),
            limits,
        }))
    }
}

impl Settings {
    /// Reads the text of `file`. Paths in it count from the directory of the file; strategies must be known to the
    /// registry, or be declared in the text. The policy must make sense too: commands go on without, but are denied
    /// everything, and told why (rule S6).
    pub fn parse(bytes: &[u8], file: &Path, registry: &Registry) -> Result<Self, ConfigError> {
        let (main, files) = include::split(bytes);
        let (config, places) = parse::read(main, file)?;
        let types = parse::read_types(&files, file)?;
        let settings = check::settle(config, &types, &places, file, registry)?;
        parse::policy(main, &places).map(|_| settings)
    }

    /// The same for a file by its name, whatever counts here: a configuration with the files of types that belong to it, or such a
    /// file alone. Of that, strategies that no configuration declares yet are taken for ones that one will.
    pub fn check_file(file: &Path, registry: &Registry) -> Result<Self, ConfigError> {
        let text = load::text(file)?;
        if parse::is_type_file(&text) {
            let types = [parse::read_type_file(&text, file)?];
            return check::settle_types(&types, file, registry);
        }
        let whole = include::gather(text, file, ConfigOrigin::Named)?;
        Self::parse(&whole.text, file, registry)
    }

    /// The strategies that the configuration declares.
    pub fn declared_strategies(&self) -> Vec<DeclaredStrategy> {
        let declared = self.custom_strategies.iter();
        declared
            .filter_map(|(name, one)| one.declared(name))
            .collect()
    }

    /// The resource that the configuration calls so.
    pub fn resource(&self, name: &str) -> Option<&ConfigResource> {
        self.resources.iter().find(|one| one.name == name)
    }
}
