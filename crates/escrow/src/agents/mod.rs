//! Coding agents: presets that say where an agent keeps its state, its credentials and its executing configuration, and the agent
//! home in which its state lives between runs.
//!
//! The presets come from one table (`agents.yaml`, compiled in), which the user's configuration extends and a file of a tree never
//! does. An agent keeps what it said and learned; nothing that it, or a later start of it, executes or obeys leaves the run (rule A1).
//!
//! | file | promise |
//! |---|---|
//! | `recognize` | which agent a command starts, also behind `env`, `sh -c`, `npx` and the like |
//! | `paths` | what a path of the home directory is to an agent: state, credential, configuration |
//! | `home` | the agent home on disk: seeded once, shared by all runs, bounded |
//! | `credentials` | a credential that changed inside reaches the real file, whole and under a lock |
//! | `merged` | files that are state and configuration at once, by key |
//! | `marks` | which agents ran in a plan, and with which homes, also after a crash |
//! | `mounts` | what a run shows of an agent home |
//! | `layer` | what an agent wrote over the home directory goes where it belongs |
//! | `executing` | what of a home directory programs execute or obey |
//! | `script` | what a shell would read of a script |
//! | `wanted` | what an agent wanted to change of its configuration, kept for `escrow agent diff` |

pub(crate) mod credentials;
pub(crate) mod executing;
pub(crate) mod home;
pub(crate) mod layer;
pub(crate) mod marks;
pub(crate) mod merged;
pub(crate) mod mounts;
pub(crate) mod paths;
mod recognize;
pub(crate) mod script;
pub(crate) mod wanted;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::text::Location;

pub use home::StoredAgentHome;
pub(crate) use recognize::Recognized;
pub use wanted::{FileVersions, WantedChange};

/// Stands in a flag for the directory of the project.
const HERE: &str = "{here}";

/// The compiled-in table.
const TABLE: &str = include_str!("agents.yaml");

/// A preset: everything that Escrow knows of one coding agent. Paths count from the home directory; a final `/` means a directory and
/// everything in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentPreset {
    /// Its name among the presets; that of its program, too.
    #[serde(skip)]
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// Further names of its program.
    pub programs: Vec<String>,
    /// Packages that `npx`, `uvx` and their like start it from.
    pub packages: Vec<String>,
    /// Variables that move one of its directories, and which.
    pub moved: BTreeMap<String, String>,
    /// Sessions and histories: kept in the agent home.
    pub state: Vec<String>,
    /// Files with a login: readable, and written through when they changed and still parse.
    pub credentials: Vec<String>,
    /// Those of them that are mounted as they are: of all others a link leads to the agent home.
    pub mounted: Vec<String>,
    /// Files with secrets that the user wrote: readable.
    pub secrets: Vec<String>,
    /// Files that are state and configuration at once.
    pub merged: Vec<MergedFile>,
    /// What the agent, or a later start of it, executes or obeys: never written through.
    pub executes: Vec<String>,
    /// Parts of that which it writes on its own: dropped without a word.
    pub drops: Vec<String>,
    /// Variables that it gets, whatever they look like; `*` at the end stands for anything.
    pub variables: Vec<String>,
    /// Files of its configuration that name further variables.
    pub variables_in: Vec<VariablesIn>,
    /// Variables that are set for it.
    pub set: BTreeMap<String, String>,
    /// Words behind its name that make it stop asking; those of the user's configuration take the place of all of these.
    pub flags: Option<Vec<AgentFlag>>,
    /// Hosts that `--network preset` permits.
    pub hosts: Vec<String>,
}

/// A JSON file that is state and configuration at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MergedFile {
    /// Where.
    pub file: String,
    /// Keys that are merged into the real file; `*` stands for any one key.
    pub keys: Vec<String>,
    /// Keys that execute, or permit to: kept out.
    pub executes: Vec<String>,
    /// Keys that are true inside, unless the file says otherwise.
    pub seeds: BTreeMap<String, bool>,
    /// A key of directories, and one that is true inside for the directory of the command.
    pub seeds_here: Option<[String; 2]>,
}

/// A file of configuration that names variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VariablesIn {
    /// Where.
    pub file: String,
    /// The word before each name.
    pub word: String,
}

/// Words that make an agent stop asking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentFlag {
    /// The words.
    pub words: Vec<String>,
    /// Words of the command with which they are left out; `*` stands for anything at either end.
    pub unless: Vec<String>,
    /// First words of the command with which they are left out.
    pub not_for: Vec<String>,
}

impl AgentPreset {
    /// Returns the words that make the agent stop asking, less those that contradict `words`.
    pub(crate) fn unasked(&self, words: &[OsString], here: &str) -> Vec<String> {
        let says = |patterns: &[String]| {
            let mut words = words.iter().map(|word| word.to_string_lossy());
            words.any(|word| patterns.iter().any(|pattern| fits(pattern, &word)))
        };
        let flags = self.flags.iter().flatten();
        let first = words.first().map(|word| word.to_string_lossy());
        let is_first = |one: &String| first.as_deref() == Some(one.as_str());
        let flags = flags.filter(|flag| !says(&flag.unless) && !flag.not_for.iter().any(is_first));
        // A path that cannot be quoted is left out with its flag.
        let plain = !here.contains(['"', '\\']) && !here.contains(char::is_control);
        let needs = |flag: &&AgentFlag| flag.words.iter().any(|word| word.contains(HERE));
        let flags = flags.filter(|flag| plain || !needs(flag));
        let words = flags.flat_map(|flag| flag.words.iter());
        words.map(|word| word.replace(HERE, here)).collect()
    }

    /// Every path of it.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &String> {
        let lists = [
            &self.state,
            &self.credentials,
            &self.secrets,
            &self.executes,
            &self.drops,
        ];
        let files = self.merged.iter().map(|one| &one.file);
        let files = files.chain(self.variables_in.iter().map(|one| &one.file));
        let all = lists.into_iter().flatten().chain(files);
        all.chain(self.moved.values())
    }

    /// Lays what the user's configuration says over this.
    fn extend(&mut self, own: &Self) {
        if !own.title.is_empty() {
            self.title.clone_from(&own.title);
        }
        let lists: [(&mut Vec<String>, &Vec<String>); 10] = [
            (&mut self.programs, &own.programs),
            (&mut self.packages, &own.packages),
            (&mut self.state, &own.state),
            (&mut self.credentials, &own.credentials),
            (&mut self.mounted, &own.mounted),
            (&mut self.secrets, &own.secrets),
            (&mut self.executes, &own.executes),
            (&mut self.drops, &own.drops),
            (&mut self.variables, &own.variables),
            (&mut self.hosts, &own.hosts),
        ];
        for (list, own) in lists {
            list.extend(own.iter().cloned());
        }
        self.moved.extend(own.moved.clone());
        self.merged.extend(own.merged.iter().cloned());
        self.variables_in.extend(own.variables_in.iter().cloned());
        self.set.extend(own.set.clone());
        if own.flags.is_some() {
            self.flags.clone_from(&own.flags);
        }
    }
}

/// What came of an agent in a run.
#[derive(Debug, Clone)]
pub struct AgentReport {
    /// Its preset.
    pub preset: Arc<AgentPreset>,
    /// What it wanted to change of its configuration and did not before.
    pub wanted: Vec<WantedChange>,
    /// Files with logins that were refreshed, for real.
    pub refreshed: Vec<Location>,
    /// Files with logins that it broke: the real ones stay.
    pub refused: Vec<Location>,
}

impl AgentReport {
    /// Nothing came of an agent.
    pub(crate) fn of(preset: &Arc<AgentPreset>) -> Self {
        Self {
            preset: preset.clone(),
            wanted: Vec::new(),
            refreshed: Vec::new(),
            refused: Vec::new(),
        }
    }
}

/// Whether a pattern with `*` at either end means a text.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => text.contains(rest.trim_end_matches('*')),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => text == pattern,
    }
}

/// The presets that count, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    all: BTreeMap<String, Arc<AgentPreset>>,
}

static BUILTIN: LazyLock<Agents> = LazyLock::new(|| {
    let read: BTreeMap<String, AgentPreset> =
        serde_saphyr::from_str(TABLE).expect("the compiled-in table is valid: a test reads it");
    let named = |(name, mut preset): (String, AgentPreset)| {
        preset.name.clone_from(&name);
        (name, Arc::new(preset))
    };
    Agents {
        all: read.into_iter().map(named).collect(),
    }
});

impl Default for Agents {
    fn default() -> Self {
        BUILTIN.clone()
    }
}

impl Agents {
    /// The compiled-in presets with those of the user's configuration laid over them.
    pub(crate) fn with(own: &BTreeMap<String, AgentPreset>) -> Self {
        let mut agents = Self::default();
        for (name, own) in own {
            let mut preset = match agents.all.get(name) {
                Some(known) => (**known).clone(),
                None => AgentPreset {
                    name: name.clone(),
                    title: name.clone(),
                    ..AgentPreset::default()
                },
            };
            preset.extend(own);
            agents.all.insert(name.clone(), Arc::new(preset));
        }
        agents
    }

    /// Every preset, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<AgentPreset>> {
        self.all.values()
    }

    /// The preset with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<AgentPreset>> {
        self.all.get(name)
    }

    /// The preset whose program has this name.
    fn of_program(&self, name: &str) -> Option<&Arc<AgentPreset>> {
        let other = |preset: &&Arc<AgentPreset>| preset.programs.iter().any(|one| one == name);
        self.named(name).or_else(|| self.all().find(other))
    }

    /// The preset that a package of this name brings.
    fn of_package(&self, name: &str) -> Option<&Arc<AgentPreset>> {
        let own = |preset: &&Arc<AgentPreset>| preset.packages.iter().any(|one| one == name);
        self.all().find(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_of_the_table_is_whole() {
        let agents = Agents::default();
        let names: Vec<&str> = agents.all().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names.join(" "),
            "aider claude cline codex copilot crush gemini goose opencode qwen"
        );
        for preset in agents.all() {
            assert!(!preset.title.is_empty(), "{}", preset.name);
            assert!(!preset.state.is_empty(), "{}", preset.name);
            assert!(!preset.executes.is_empty(), "{}", preset.name);
            assert!(!preset.hosts.is_empty(), "{}", preset.name);
            // Nothing that executes may be kept.
            for state in &preset.state {
                for executes in &preset.executes {
                    let apart = !state.starts_with(executes.as_str())
                        && !executes.starts_with(state.as_str());
                    assert!(apart, "{}: {state} and {executes}", preset.name);
                }
            }
        }
    }

    #[test]
    fn words_of_the_command_decide_whether_an_agent_asks() {
        let agents = Agents::default();
        let unasked = |name: &str, words: &str| {
            let words: Vec<OsString> = words.split_whitespace().map(Into::into).collect();
            let preset = agents.named(name).expect("it is in the table");
            preset.unasked(&words, "/p").join(" ")
        };
        let all = "--dangerously-skip-permissions";
        assert!(unasked("claude", "-p x").starts_with(all));
        assert_eq!(unasked("claude", "--settings x.json"), all);
        assert_eq!(unasked("claude", "--permission-mode=plan"), "");
        let off = "-c sandbox_mode=\"danger-full-access\"";
        assert_eq!(unasked("codex", "exec x"), off);
        assert_eq!(
            unasked("codex", ""),
            format!(
                "{off} -c approval_policy=\"never\" -c projects={{\"/p\"={{trust_level=\"trusted\"}}}}"
            )
        );
        assert_eq!(unasked("codex", "-s read-only"), "");
        assert_eq!(unasked("opencode", "run x"), "");
    }

    #[test]
    fn the_configuration_of_the_user_extends_the_table() {
        let own = AgentPreset {
            variables: vec!["MY_KEY".into()],
            flags: Some(Vec::new()),
            ..AgentPreset::default()
        };
        let fresh = AgentPreset {
            state: vec![".mine/".into()],
            ..AgentPreset::default()
        };
        let all = [("claude".to_owned(), own), ("mine".to_owned(), fresh)];
        let agents = Agents::with(&all.into());
        let claude = agents.named("claude").expect("it is in the table");
        assert!(claude.variables.iter().any(|one| one == "ANTHROPIC_*"));
        assert!(claude.variables.iter().any(|one| one == "MY_KEY"));
        assert!(claude.unasked(&[], "/p").is_empty());
        assert_eq!(
            agents.named("mine").map(|one| one.title.as_str()),
            Some("mine")
        );
    }
}
