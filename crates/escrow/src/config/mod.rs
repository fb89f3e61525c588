//! `escrow.yaml`: the types of the configuration, from which its JSON Schema is made.
//!
//! The types here are the one definition: they read the text, and the JSON Schema is made from them.
//! Several files may count at once: that of the system, that of the user, and that of the project. A
//! file that was found in a tree may only tighten what the others say, unless the user trusts it.
//!
//! | file | promise |
//! |---|---|
//! | `parse` | text becomes a configuration, or an error that names file, line, column and key |
//! | `include` | files of types belong to the text of the configuration that names them |
//! | `options` | the options of a resource are what its type says |
//! | `check` | names lead somewhere: strategies, types, parents |
//! | `settings` | what the manager needs of it, as plain values |
//! | `load` | the files are found and read, each once; those that others can change do not count |
//! | `keys` | the table of what each key may say in a file that is not trusted |
//! | `merge` | what counts when several files say something |
//! | `schema` | the JSON Schema, from the same types and the same names (rule P8) |
//! | `duration` | how long something is kept |
//! | `begin` | a first configuration for a directory |

mod begin;
mod check;
mod duration;
mod error;
mod include;
mod keys;
mod load;
mod merge;
mod options;
mod parse;
mod schema;
mod settings;
mod user_file;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use begin::{FILE_NAME, InitialConfig, InitialResource, begin, write_new};
pub use duration::RetentionPeriod;
pub use error::ConfigError;
pub use keys::table;
pub use load::ConfigSources;
pub(crate) use load::{ConfigLevel, ConfigOrigin, LoadedConfigs, PassedOver, resolved};
pub(crate) use merge::EffectiveConfig;
pub use merge::IgnoredKey;
pub use parse::read_policy;
pub use schema::{schema, schema_with};
pub use settings::{
    ConfigResource, Injection, RunDefaults, SecretSource, Settings, UntrustedResource, Validation,
};
pub use user_file::{read_user_file, replace_user_file};

use crate::agents::AgentPreset;
use crate::model::resource::FS_DIRECTORY;
use crate::model::words::words;
use crate::model::{CachePolicy, CleanupPolicy, Options};

/// What `escrow.yaml` says. Every key may be left out.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How sandboxes are made and how long things are kept.
    pub sandbox: SandboxConfig,
    /// Kinds of resources of your own, or files that hold them, as in `types/*.yaml`.
    pub resource_types: Vec<TypeItem>,
    /// Resources by name, for `--resource NAME`.
    pub resources: BTreeMap<String, ResourceEntry>,
    /// Who may do what.
    pub policy: Option<serde_json::Value>,
    /// Defaults of `escrow run`; what is typed wins.
    pub run: RunConfig,
    /// What is shown and released of the changes.
    pub diff: DiffConfig,
    /// Coding agents by name: a preset of your own, or what you add to one that comes with Escrow. Counts in your own
    /// configuration only, never in a file of a tree.
    pub agents: BTreeMap<String, AgentPreset>,
    /// Commands that validate the changes: each a line for the shell, a list of words, or one of these with what it needs.
    pub validate: Vec<ValidateEntry>,
}

/// What is shown and released of the changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiffConfig {
    /// Files that are neither shown nor released, but counted: patterns as for `--exclude`, of which one without a slash means
    /// any directory.
    pub ignore: Vec<String>,
}

/// How sandboxes are made and how long things are kept.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// The strategy of resources that ask for none; `auto` if left out. ESCROW_SANDBOX_STRATEGY
    /// and the command line override it.
    pub strategy: Option<String>,
    /// When sandboxes go.
    pub cleanup: CleanupPolicy,
    /// What `escrow undo` needs.
    pub undo: UndoConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// Strategies that are programs of your own, by name.
    pub custom_strategies: BTreeMap<String, CustomStrategyConfig>,
}

/// What `escrow undo` needs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UndoConfig {
    /// How long a commit can be taken back.
    pub keep: RetentionPeriod,
}

/// Checkpoints.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// When one is taken without being asked for.
    pub auto: Vec<AutoCheckpoint>,
    /// How many of those that the user did not name are kept.
    pub keep: u32,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            auto: vec![
                AutoCheckpoint::BeforeRun,
                AutoCheckpoint::BeforeRestore,
                AutoCheckpoint::OnError,
            ],
            keep: 20,
        }
    }
}

words! {
    /// When a checkpoint is taken without being asked for.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum AutoCheckpoint {
        /// Before a command is run inside.
        BeforeRun = "before_run",
        /// Before a checkpoint is restored.
        BeforeRestore = "before_restore",
        /// When a command failed.
        OnError = "on_error",
        /// Before a commit.
        BeforeCommit = "before_commit",
    }
    else |word| format!("no checkpoint is taken '{word}'")
}

/// A strategy of your own: a program (`command`, or `module` and `class`), or another name of a strategy (`alias_of`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CustomStrategyConfig {
    /// The program and its arguments.
    pub command: Option<Vec<String>>,
    /// A module of Python.
    pub module: Option<String>,
    /// The class in it.
    pub class: Option<String>,
    /// The strategy of which it is another name.
    pub alias_of: Option<String>,
    /// Keys that it is given with every resource; a strategy that is no program of yours has only these.
    pub options: Options,
    /// Variables of the environment of the program; one without a value is that of the caller.
    pub env: BTreeMap<String, Option<String>>,
    /// How long a call may take, as in `30s`; or by method, `*` for the others. Five minutes if left out.
    pub timeout: Option<TimeoutConfig>,
    /// The directory of the file that declares it.
    #[serde(skip)]
    pub directory: PathBuf,
}

/// How long a call of a program may take.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a time such as `30s`, or one for each method, is expected here"
)]
pub enum TimeoutConfig {
    /// Every call.
    Every(RetentionPeriod),
    /// By method.
    ByMethod(BTreeMap<String, RetentionPeriod>),
}

/// A kind of resource of your own, or files that hold such.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum TypeItem {
    /// A file that holds one, or a list of them, from the directory of the configuration; its name may have wildcards.
    Files(String),
    /// The kind itself.
    Entry(TypeEntry),
}

/// A kind of resource of your own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TypeEntry {
    /// Its name.
    pub name: String,
    /// What it is, for people.
    pub description: Option<String>,
    /// The kind it is a special case of; `fs-directory` if it has no `location`.
    pub extends: Option<String>,
    /// What its resources are, where it is no special case of another kind.
    pub location: Option<LocationKind>,
    /// The strategy of its resources, unless they or a command say otherwise.
    pub sandbox_strategy: Option<String>,
    /// The strategies it allows; those of the kind it extends if left out.
    #[serde(default)]
    pub strategies: Vec<String>,
    /// The JSON Schema of the `options` of its resources; that of the kind it extends if left out.
    pub options: Option<Options>,
}

/// A real thing that may be changed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceEntry {
    /// What kind it is; if left out, what stands there decides.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Where it is, from the directory of the configuration.
    pub at: String,
    /// The resource it lies in.
    pub parent: Option<String>,
    /// How its sandboxes are made; `inherit` shares that of its parent.
    pub strategy: Option<String>,
    /// Of a git checkout, what a sandbox begins as: `checkout`, the files as they lie, or a clean tree of this revision.
    pub base: Option<String>,
    /// Of a git checkout, which branches and tags a commit releases; the one that was checked out if left out.
    pub refs: Option<ReleasedRefs>,
    /// Of a git checkout, whether its branch gets one commit instead of those that were made inside.
    pub squash: Option<bool>,
    /// Of a git checkout, whether work that was left uncommitted becomes a commit.
    pub commit: Option<bool>,
    /// Keys that its strategy is given.
    #[serde(default)]
    pub options: Options,
}

/// What resources of a type of your own are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LocationKind {
    /// A directory.
    Path,
    /// What is reached through a URL.
    Url,
    /// What only its strategy knows how to reach.
    Opaque,
}

impl TypeEntry {
    /// The kind it is a special case of; `None` where it is none.
    fn parent(&self) -> Option<&str> {
        match self.location {
            Some(_) => None,
            None => Some(self.extends.as_deref().unwrap_or(FS_DIRECTORY)),
        }
    }
}

/// Which branches and tags of a git checkout a commit releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReleasedRefs {
    /// The one that was checked out.
    CheckedOut,
    /// All that were created, moved or deleted inside.
    All,
}

impl ResourceEntry {
    /// Everything that its strategy is given.
    fn all_options(&self) -> Options {
        let named = [
            ("base", self.base.as_ref().map(|base| json!(base))),
            ("refs", self.refs.map(|refs| json!(refs))),
            ("squash", self.squash.map(|squash| json!(squash))),
            ("commit", self.commit.map(|commit| json!(commit))),
        ];
        let named = named.into_iter();
        let named = named.filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let mut options = self.options.clone();
        options.extend(named);
        options
    }
}

/// Defaults of `escrow run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Paths that commands write for real, from the directory of the configuration.
    pub writable: Vec<String>,
    /// Which hosts commands reach: `own` (all but this machine, as if left out), `none`, `host`, or a list.
    pub network: Option<NetworkConfig>,
    /// Whether the home directory gets a layer that is thrown away; it does if left out.
    pub scratch: Option<bool>,
    /// Whether commands may make user namespaces of their own; they may not if left out.
    pub allow_userns: Option<bool>,
    /// Paths of which commands see nothing, beside those that hold credentials; `~/` is the home directory.
    pub hide: Vec<String>,
    /// Paths that commands see although they hold credentials.
    pub show: Vec<String>,
    /// Paths beside the project that a new plan of `escrow run` has as resources too.
    pub keep: Vec<String>,
    /// Whose the caches of package managers are that commands use.
    pub caches: Option<CachePolicy>,
    /// What commands may use; as much as they like if left out.
    pub limits: LimitsConfig,
    /// Credentials that are added to the requests of commands for some hosts, and that commands never hold; with a network that is a list.
    pub inject: Vec<InjectConfig>,
    /// Variables that are set for commands, and which of the caller's they get.
    pub env: EnvConfig,
}

/// A credential that is added to requests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectConfig {
    /// The host, as in `api.anthropic.com`; with `:PORT` where that is not 443.
    pub host: String,
    /// The name of the header, as in `x-api-key`.
    pub header: String,
    /// Where the credential is: `env:NAME`, a variable of the caller, or `file:PATH`; `~/` is the home directory.
    pub from: String,
    /// The value of the header, in which `{}` stands for the credential, as in `Bearer {}`; the credential alone if left out.
    pub format: Option<String>,
}

/// What commands may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Memory of all processes of a command together, as in `2G`.
    pub memory: Option<String>,
    /// How many processes and threads a command may have.
    pub pids: Option<u64>,
    /// How many processors a command may use, as in `1.5`.
    pub cpu: Option<String>,
    /// What commands write may take so much on disk, and each directory in memory as much, as in `10G`.
    pub disk: Option<String>,
    /// How long a command may take, as in `30m`.
    pub timeout: Option<String>,
}

/// Variables of commands: names and values that are set, and under `pass` the names of those that they get of the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvConfig {
    /// Names of the caller's variables that commands get; everything but what looks like a secret if left out.
    pub pass: Option<Vec<String>>,
    /// Variables that are set.
    pub set: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for EnvConfig {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> serde::de::Visitor<'de> for Entries {
            type Value = EnvConfig;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("names and values")
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<EnvConfig, E> {
                Ok(EnvConfig::default())
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(
                self,
                mut from: M,
            ) -> Result<EnvConfig, M::Error> {
                let mut found = EnvConfig::default();
                while let Some(name) = from.next_key::<String>()? {
                    match name.as_str() {
                        "pass" => found.pass = Some(from.next_value()?),
                        _ => drop(found.set.insert(name, from.next_value()?)),
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_map(Entries)
    }
}

impl JsonSchema for EnvConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EnvConfig".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Names and values that are set; under `pass` the names of the caller's variables that commands get.",
            "type": "object",
            "properties": {"pass": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": {"type": "string"},
        })
    }
}

/// Which hosts commands reach.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "`none`, `own`, `host`, `{own: [localhost:PORT]}` or `{allow: [DOMAIN]}` is expected here"
)]
pub enum NetworkConfig {
    /// As `--network` takes it: `none`; `own`, or `own,allow:localhost:5432`; `host`; `allow:example.com`.
    Words(#[schemars(extend("pattern" = "^(none|own|host|own,allow:.+|allow:.+)$"))] String),
    /// A network of its own, with these addresses of this machine.
    Own(OwnNetworkConfig),
    /// A list of hosts.
    Allow(AllowedNetworkConfig),
}

/// A network of its own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnNetworkConfig {
    /// Addresses of this machine that are reached: `localhost:5432`, `192.168.1.5:8080`.
    pub own: Vec<String>,
}

/// A list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllowedNetworkConfig {
    /// These domains: `example.com`, `*.example.com`, `example.com:8443` or an address.
    pub allow: Vec<String>,
}

/// A command: a line for the shell, or a list of words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a line for the shell or a list of words is expected here"
)]
pub enum CommandLine {
    /// A line for the shell.
    Line(String),
    /// The program and its arguments.
    Words(Vec<String>),
}

/// A command that validates the changes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a line for the shell, a list of words, or a command with what it needs is expected here"
)]
pub enum ValidateEntry {
    /// With what every validation has.
    Plain(CommandLine),
    /// With more than that.
    Declared(DeclaredValidation),
}

/// A command that validates the changes, and what it needs beside them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeclaredValidation {
    /// A line for the shell, or a list of words.
    pub command: CommandLine,
    /// Which hosts it reaches; none if left out.
    #[serde(default)]
    pub network: Option<NetworkConfig>,
}
