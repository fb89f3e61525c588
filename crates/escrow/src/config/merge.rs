//! What counts when several files say something, and what a file in a tree may not say.
//!
//! Files are laid over each other, outermost first: system, user, project. A key counts from the
//! innermost file that has it; policies all count. A file that is not trusted only tightens: each
//! key of it is asked whether the author of the tree could gain something by it.

use std::path::{Path, PathBuf};

use super::{Custom, Declared, Level, Settings, Untrusted};
use crate::model::ResourceType;
use crate::model::resource::AUTO;
use crate::model::text::{Location, escape};
use crate::policy::{Policies, Policy};
use crate::resource::INHERIT;
use crate::strategy::Registry;

/// How much of a file counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// All of it: the user wrote it, named it or trusts it.
    All,
    /// What tightens.
    Tightening,
    /// Its policy: it is the file of another project than the one that is worked on.
    Rules,
}

/// A key that does not count, because its file is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The file.
    pub file: Location,
    /// The key, as in `run.writable`.
    pub key: String,
    /// What it would do, on a line.
    pub what: String,
    /// Everything that it names, each escaped.
    pub all: Vec<String>,
}

/// What a key would do.
struct Effect {
    what: String,
    all: Vec<String>,
}

impl From<String> for Effect {
    fn from(what: String) -> Self {
        let all = Vec::new();
        Self { what, all }
    }
}

impl Effect {
    /// A line with a few of the names, and all that is named, as it is written.
    fn of(what: &str, names: &[String], all: &[String]) -> Self {
        Self {
            what: format!("{what}: {}", shown(names)),
            all: all.iter().map(|one| escape(one.as_bytes())).collect(),
        }
    }
}

/// What counts, of all files together.
#[derive(Debug, Clone, Default)]
pub struct Effective {
    /// What they say.
    pub settings: Settings,
    /// Who may do what: each of these must permit.
    pub policies: Policies,
    /// What does not count.
    pub ignored: Vec<Ignored>,
}

impl Effective {
    /// What the caller says by itself; no file can relax its policy.
    pub fn new(settings: Settings, policy: Policy) -> Self {
        Self {
            settings,
            policies: Policies::of(policy),
            ignored: Vec::new(),
        }
    }

    /// Lays a file over what counts so far.
    pub fn lay(&mut self, level: &Level, weight: Weight, registry: &Registry) {
        let mut laying = Laying {
            level,
            trusted: weight == Weight::All,
            registry,
            ignored: Vec::new(),
        };
        let own = laying.resources(&self.policies);
        let all = &mut self.settings.resources;
        if weight == Weight::Rules {
            // Its rules speak of resources by the names that it gives them; nothing else does.
            all.extend(own);
            laying.policy(&mut self.policies);
            return;
        }
        // A name means the innermost; rules speak of all of them.
        all.splice(0..0, own);
        self.settings.file = Some(level.file.clone());
        laying.sandbox(&mut self.settings);
        laying.run(&mut self.settings);
        laying.types(&mut self.settings);
        laying.policy(&mut self.policies);
        self.ignored.append(&mut laying.ignored);
    }
}

/// One file while it is laid over the others.
struct Laying<'a> {
    level: &'a Level,
    trusted: bool,
    registry: &'a Registry,
    ignored: Vec<Ignored>,
}

impl Laying<'_> {
    /// Whether a key that loosens counts; where it does not, that is noted.
    fn counts<E: Into<Effect>>(&mut self, key: &str, what: impl FnOnce() -> E) -> bool {
        if !self.trusted {
            let Effect { what, all } = what().into();
            self.ignored.push(Ignored {
                file: self.level.file.clone(),
                key: key.to_owned(),
                what,
                all,
            });
        }
        self.trusted
    }

    /// Whether a strategy keeps the original apart, and is no program that the file names.
    fn isolates(&self, strategy: &str) -> bool {
        let known = self.registry.get(strategy);
        strategy == AUTO || known.is_ok_and(|strategy| strategy.capabilities().isolates)
    }

    fn sandbox(&mut self, settings: &mut Settings) {
        let Level { alone, says, .. } = self.level;
        // `auto` asks the next one.
        if let Some(strategy) = alone.strategy.as_ref().filter(|one| *one != AUTO)
            && (self.isolates(strategy)
                || self.counts("sandbox.strategy", || loose_strategy(strategy)))
        {
            settings.strategy = Some(strategy.clone());
        }
        if says.cleanup {
            settings.cleanup = alone.cleanup;
        }
        if says.undo
            && (alone.undo_keep >= settings.undo_keep
                || self.counts("sandbox.undo.keep", || {
                    "a release could be taken back for a shorter time".to_owned()
                }))
        {
            settings.undo_keep = alone.undo_keep;
        }
        if says.auto {
            settings.checkpoint.auto.clone_from(&alone.checkpoint.auto);
        }
        if says.keep {
            settings.checkpoint.keep = alone.checkpoint.keep;
        }
        let programs = &alone.custom_strategies;
        let names = || {
            let names: Vec<String> = programs.keys().cloned().collect();
            let all: Vec<String> = programs.iter().map(program).collect();
            Effect::of("these programs would run", &names, &all)
        };
        if !programs.is_empty() && self.counts("sandbox.custom_strategies", names) {
            settings.custom_strategies.extend(programs.clone());
        }
        let fresh: Vec<Vec<String>> = alone
            .validate
            .iter()
            .filter(|one| !settings.validate.contains(one))
            .cloned()
            .collect();
        let lines = || {
            let lines: Vec<String> = fresh.iter().map(|words| words.join(" ")).collect();
            let all: Vec<String> = fresh.iter().map(|words| line(words)).collect();
            Effect::of("these commands would run", &lines, &all)
        };
        if !fresh.is_empty() && self.counts("validate", lines) {
            settings.validate.extend(fresh);
        }
    }

    fn run(&mut self, settings: &mut Settings) {
        let (own, run) = (&self.level.alone.run, &mut settings.run);
        let paths = || {
            let paths: Vec<String> = own
                .writable
                .iter()
                .map(|path| Location::from(path.as_path()).to_string())
                .collect();
            Effect::of("commands would write these for real", &paths, &paths)
        };
        if !own.writable.is_empty() && self.counts("run.writable", paths) {
            run.writable.clone_from(&own.writable);
        }
        let network = || "commands would reach the network".to_owned();
        let opens = |own: bool, usual: Option<bool>| own && !usual.unwrap_or(true);
        if let Some(own) = own.network
            && (!opens(own, run.network) || self.counts("run.network", network))
        {
            run.network = Some(own);
        }
        let scratch = || "the home directory would get a layer that can be written".to_owned();
        if let Some(own) = own.scratch
            && (!opens(own, run.scratch) || self.counts("run.scratch", scratch))
        {
            run.scratch = Some(own);
        }
        let names = || {
            let names: Vec<String> = own.env.keys().cloned().collect();
            let one = |(name, value): (&String, &String)| format!("{name}={value}");
            let all: Vec<String> = own.env.iter().map(one).collect();
            Effect::of("these variables would be set", &names, &all)
        };
        if !own.env.is_empty() && self.counts("run.env", names) {
            run.env.extend(own.env.clone());
        }
    }

    fn types(&mut self, settings: &mut Settings) {
        let own = self.level.alone.types.all().iter();
        for kind in own.filter(|kind| kind.extends.is_some()) {
            let taken = settings.types.named(&kind.name).is_some();
            let key = format!("resource_types.{}", kind.name);
            let other = || "it would stand for another type of this name".to_owned();
            if taken && !self.counts(&key, other) {
                continue;
            }
            let mut kind = kind.clone();
            let key = format!("{key}.sandbox_strategy");
            if !self.isolates(&kind.default) && !self.counts(&key, || loose_strategy(&kind.default))
            {
                kind.default = AUTO.to_owned();
            }
            settings.types.put(kind);
        }
    }

    fn resources(&mut self, policies: &Policies) -> Vec<Declared> {
        let mut own = self.level.alone.resources.clone();
        if self.trusted {
            return own;
        }
        for declared in &mut own {
            let key = format!("resources.{}", declared.name);
            let mut ignored = None;
            let nameless = policies.permits_by_name(&declared.name);
            let unnamed = nameless || policies.names_resources();
            if unnamed {
                let what = match nameless {
                    true => "a policy permits something on a resource of this name",
                    false => {
                        "a policy has rules for resources by name, and a new name could escape them"
                    }
                };
                self.counts(&key, || what.to_owned());
                ignored = Some(key);
            } else if let Some(loose) = self.loose_of(declared) {
                let key = match declared.strategy {
                    Some(_) => format!("{key}.strategy"),
                    None => format!("{key}.type"),
                };
                self.counts(&key, || loose_strategy(&loose));
                ignored = Some(key);
                declared.strategy = None;
            }
            declared.untrusted = Some(Untrusted {
                file: self.level.file.clone(),
                within: directory_of(&self.level.file),
                ignored,
                nameless,
                unnamed,
            });
        }
        own
    }

    /// The strategy that a resource asks for, by itself or by its type, if it does not isolate.
    fn loose_of(&self, declared: &Declared) -> Option<String> {
        let own = declared.strategy.as_deref();
        let types = &self.level.alone.types;
        let kind: Option<&ResourceType> = declared.kind.as_deref().and_then(|one| types.named(one));
        // Types that come with the engine have strategies of their own, which may be planned ones.
        let kind = kind.filter(|kind| kind.extends.is_some());
        let asked = match own {
            Some(INHERIT) => return None,
            Some(own) if own != AUTO => own,
            _ => kind.map_or(AUTO, |kind| kind.default.as_str()),
        };
        (!self.isolates(asked)).then(|| asked.to_owned())
    }

    fn policy(&mut self, policies: &mut Policies) {
        let Some(policy) = self.level.policy() else {
            return;
        };
        let written = self.level.config.policy.as_ref();
        let local = written.is_some_and(|policy| policy.get("mode") == Some(&"local".into()));
        if local && policies.restricts() {
            // It permits everything, and so relaxes nothing: every other policy still counts.
            self.counts("policy.mode", || {
                "it would permit what another policy denies, which nothing can".to_owned()
            });
        }
        policies.add(self.level.file.clone(), policy);
    }
}

fn directory_of(file: &Location) -> PathBuf {
    let file = file.as_path();
    file.parent().unwrap_or(Path::new("/")).to_owned()
}

fn loose_strategy(name: &str) -> String {
    let name = escape(name.as_bytes());
    format!("'{name}' does not keep the original apart, or runs a program")
}

/// What a program of the file is, in one line.
fn program((name, custom): (&String, &Custom)) -> String {
    match (&custom.command, &custom.module, &custom.class) {
        (Some(words), ..) => format!("{name}: {}", line(words)),
        (None, module, class) => {
            let words = [module, class].map(|one| one.as_deref().unwrap_or_default());
            format!("{name}: {}", words.join(":"))
        }
    }
}

/// The words of a command, so that it is seen where each of them ends.
fn line(words: &[String]) -> String {
    let plain = |word: &str| !word.is_empty() && !word.contains([' ', '\'', '"', '\t', '\n']);
    let words = words.iter().map(|word| match plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A few words of a list, for a line.
fn shown(all: &[String]) -> String {
    let mut line = all
        .iter()
        .take(5)
        .map(|one| escape(one.as_bytes()))
        .collect::<Vec<_>>()
        .join(", ");
    if all.len() > 5 {
        line.push_str(&format!(" and {} more", all.len() - 5));
    }
    line
}
