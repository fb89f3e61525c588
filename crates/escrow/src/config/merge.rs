//! Merges the configuration files of all levels, and ignores what an untrusted file may not say.
//!
//! Files are laid over each other, outermost first: system, user, project. A key counts from the
//! innermost file that has it; policies all count. A file that is not trusted only tightens, as the table in
//! `keys` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::keys::{AGENTS, KEYS, isolates, key};
use super::{ConfigLevel, ConfigOrigin, ConfigResource, Settings, UntrustedResource};
use crate::model::resource::AUTO;
use crate::model::text::{Location, escape};
use crate::model::{ResourceType, ResourceTypes};
use crate::policy::{Policies, Policy};
use crate::resource::INHERIT;
use crate::strategy::Registry;

/// The key that declares strategies.
const PROGRAMS: &str = "sandbox.custom_strategies";

/// A key that does not count, because its file is not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredKey {
    /// The file.
    pub file: Location,
    /// The key, as in `run.writable`.
    pub key: String,
    /// What it would do, on a line.
    pub what: String,
    /// Everything that it names, each escaped.
    pub all: Vec<String>,
}

/// What counts, of all files together.
#[derive(Debug, Clone, Default)]
pub(crate) struct EffectiveConfig {
    pub(crate) settings: Settings,
    /// Who may do what: each of these must permit.
    pub(crate) policies: Policies,
    pub(crate) ignored: Vec<IgnoredKey>,
    /// The directories of the files that are trusted, outermost first.
    pub(crate) trusted: Vec<PathBuf>,
}

impl EffectiveConfig {
    /// What the caller says by itself; no file can relax its policy.
    pub(crate) fn new(settings: Settings, policy: Policy) -> Self {
        Self {
            settings,
            policies: Policies::of(policy),
            ignored: Vec::new(),
            trusted: Vec::new(),
        }
    }

    /// The names of programs that a file declares that is not trusted.
    pub(crate) fn ignored_programs(&self) -> Vec<String> {
        let programs = self.ignored.iter().filter(|one| one.key == PROGRAMS);
        let named = programs.flat_map(|one| &one.all);
        let name = |one: &String| one.split_once(": ").map(|(name, _)| name.to_owned());
        named.filter_map(name).collect()
    }

    /// Lays a file over what counts so far; without trust only what tightens.
    pub(crate) fn lay(&mut self, level: &ConfigLevel, trusted: bool, registry: &Registry) {
        let mut laying = LevelMerge::new(level, trusted, registry);
        // A name means the innermost; rules speak of all of them.
        let own = laying.resources(&self.policies);
        self.settings.resources.splice(0..0, own);
        self.settings.file = Some(level.file.clone());
        laying.settings(&mut self.settings);
        laying.types(&mut self.settings);
        laying.policy(&mut self.policies);
        self.ignored.append(&mut laying.ignored);
        if trusted {
            self.trusted.push(directory_of(&level.file));
        }
    }

    /// Adds the policy of a file of another project, and the names of resources that its rules speak of.
    pub(crate) fn lay_rules(&mut self, level: &ConfigLevel, trusted: bool, registry: &Registry) {
        let mut laying = LevelMerge::new(level, trusted, registry);
        let own = laying.resources(&self.policies);
        self.settings.resources.extend(own);
        laying.policy(&mut self.policies);
    }
}

/// One file while it is laid over the others.
struct LevelMerge<'a> {
    level: &'a ConfigLevel,
    trusted: bool,
    registry: &'a Registry,
    ignored: Vec<IgnoredKey>,
}

impl<'a> LevelMerge<'a> {
    fn new(level: &'a ConfigLevel, trusted: bool, registry: &'a Registry) -> Self {
        Self {
            level,
            trusted,
            registry,
            ignored: Vec::new(),
        }
    }

    /// Whether a key that loosens counts; where it does not, that is noted, with what it names in short and in full.
    fn counts(&mut self, name: &str, loosens: &str, named: &[(String, String)]) -> bool {
        let counts = self.trusted && (name != AGENTS || self.level.origin != ConfigOrigin::Found);
        if !counts {
            let what = match named.is_empty() {
                true => loosens.to_owned(),
                false => format!("{loosens}: {}", shown(named)),
            };
            self.ignored.push(IgnoredKey {
                file: self.level.file.clone(),
                key: name.to_owned(),
                what,
                all: named
                    .iter()
                    .map(|(_, one)| escape(one.as_bytes()))
                    .collect(),
            });
        }
        counts
    }

    /// The same where a strategy does not isolate.
    fn counts_strategy(&mut self, name: &str, strategy: &str) -> bool {
        let named = [(strategy.to_owned(), strategy.to_owned())];
        self.counts(name, key("sandbox.strategy").loosens, &named)
    }

    fn settings(&mut self, settings: &mut Settings) {
        let own = &self.level.alone;
        for row in KEYS
            .iter()
            .filter(|row| self.level.says.contains(&row.name))
        {
            if let Some(merge) = &row.merge
                && ((merge.tightens)(own, settings, self.registry)
                    || self.counts(row.name, row.loosens, &(merge.named)(own)))
            {
                (merge.take)(own, settings);
            }
        }
    }

    fn types(&mut self, settings: &mut Settings) {
        let own = self.level.alone.types.all().iter();
        for kind in own.filter(|kind| kind.is_own()) {
            let taken = settings.types.named(&kind.name).is_some();
            let name = format!("resource_types.{}", kind.name);
            if taken && !self.counts(&name, key("resource_types").loosens, &[]) {
                continue;
            }
            let mut kind = kind.clone();
            let name = format!("{name}.sandbox_strategy");
            if !isolates(&kind.default, self.registry)
                && !self.counts_strategy(&name, &kind.default)
            {
                kind.default = AUTO.to_owned();
            }
            self.keep_isolating(&mut kind);
            settings.types.put(kind);
        }
    }

    /// Removes strategies from a type of a file that is not trusted: those that `auto` would take though they do not isolate, and
    /// those that the type may be given only because the file says so.
    fn keep_isolating(&mut self, kind: &mut ResourceType) {
        let builtin = ResourceTypes::default();
        let usual = builtin.named(&kind.base).map(|base| &base.allowed);
        let taken = |name: &String| isolates(name, self.registry);
        let permitted = |name: &String| taken(name) || usual.is_some_and(|all| all.contains(name));
        let loose = kind.auto.iter().filter(|name| !taken(name));
        let mut loose: BTreeSet<String> = loose.cloned().collect();
        let others = kind.allowed.iter().filter(|name| !permitted(name));
        loose.extend(others.cloned());
        let named: Vec<_> = loose.iter().map(|one| (one.clone(), one.clone())).collect();
        let auto = kind.auto.iter().filter(|name| taken(name)).cloned();
        let auto = auto.collect();
        let allowed = kind.allowed.iter().filter(|name| permitted(name)).cloned();
        let allowed = allowed.collect();
        let name = format!("resource_types.{}.strategies", kind.name);
        let loosens = key("resource_types.NAME.strategies").loosens;
        if !named.is_empty() && !self.counts(&name, loosens, &named) {
            (kind.auto, kind.allowed) = (auto, allowed);
        }
    }

    fn resources(&mut self, policies: &Policies) -> Vec<ConfigResource> {
        let mut own = self.level.alone.resources.clone();
        if self.trusted {
            return own;
        }
        for declared in &mut own {
            let name = format!("resources.{}", declared.name);
            let mut ignored = None;
            let mut options = std::mem::take(&mut declared.options);
            declared.options.extend(options.remove_entry("base"));
            if !options.is_empty() {
                let named: Vec<_> = options
                    .keys()
                    .map(|one| (one.clone(), one.clone()))
                    .collect();
                let loosens = key("resources.NAME.options").loosens;
                self.counts(&format!("{name}.options"), loosens, &named);
            }
            let within = directory_of(&self.level.file);
            if !declared.at.starts_with(&within) {
                let at = declared.at.to_string_lossy().into_owned();
                let loosens = key("resources.NAME.at").loosens;
                self.counts(&format!("{name}.at"), loosens, &[(at.clone(), at)]);
            }
            let nameless = policies.permits_by_name(&declared.name);
            let unnamed = nameless || policies.names_resources();
            if unnamed {
                self.counts(&name, key("resources.NAME").loosens, &[]);
                ignored = Some(name);
            } else if let Some(loose) = self.loose_of(declared) {
                let name = match declared.strategy {
                    Some(_) => format!("{name}.strategy"),
                    None => format!("{name}.type"),
                };
                self.counts_strategy(&name, &loose);
                ignored = Some(name);
                declared.strategy = None;
            }
            declared.untrusted = Some(UntrustedResource {
                within,
                ignored,
                nameless,
                unnamed,
            });
        }
        own
    }

    /// The strategy that a resource asks for, by itself or by its type, if it does not isolate.
    fn loose_of(&self, declared: &ConfigResource) -> Option<String> {
        let own = declared.strategy.as_deref();
        let types = &self.level.alone.types;
        let kind: Option<&ResourceType> = declared.kind.as_deref().and_then(|one| types.named(one));
        // Types that come with the engine have strategies of their own, which may be planned ones.
        let kind = kind.filter(|kind| kind.is_own());
        let asked = match own {
            Some(INHERIT) => return None,
            Some(own) if own != AUTO => own,
            _ => kind.map_or(AUTO, |kind| kind.default.as_str()),
        };
        (!isolates(asked, self.registry)).then(|| asked.to_owned())
    }

    fn policy(&mut self, policies: &mut Policies) {
        let Some(policy) = self.level.policy.clone() else {
            return;
        };
        if policy.permits_everything() && policies.restricts() {
            self.counts("policy.mode", key("policy").loosens, &[]);
        }
        policies.add(self.level.file.clone(), policy, self.trusted);
    }
}

fn directory_of(file: &Location) -> PathBuf {
    let file = file.as_path();
    file.parent().unwrap_or(Path::new("/")).to_owned()
}

/// A few names of a list, for a line.
fn shown(all: &[(String, String)]) -> String {
    let few = all.iter().take(5).map(|(one, _)| escape(one.as_bytes()));
    let mut line = few.collect::<Vec<_>>().join(", ");
    if all.len() > 5 {
        line.push_str(&format!(" and {} more", all.len() - 5));
    }
    line
}
