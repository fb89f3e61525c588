//! Checks the names in a configuration: strategies, types and parents exist and fit each other.

use std::path::{Path, PathBuf};

use super::parse::KeyPositions;
use super::{
    CommandLine, Config, ConfigError, ConfigResource, CustomStrategyConfig, LocationKind, Network,
    ResourceEntry, RunDefaults, Settings, TimeoutConfig, TypeEntry, ValidateEntry, Validation,
};
use crate::model::resource::{AUTO, FS_DIRECTORY, OPAQUE, URL, is_url};
use crate::model::text::Location;
use crate::model::{ResourceType, ResourceTypes, plan};
use crate::resource::INHERIT;
use crate::strategy::Registry;
use crate::strategy::plugin::methods;
use crate::strategy::registry::is_class;

type Checked<T> = Result<T, ConfigError>;

/// Makes settings of a configuration whose names are all right.
pub(super) fn settle(
    config: Config,
    places: &KeyPositions,
    file: &Path,
    registry: &Registry,
) -> Checked<Settings> {
    let builtin = registry.registrations().filter(|one| one.is_builtin());
    let checker = Checker {
        places,
        strategies: registry.names(),
        builtin: builtin.map(|one| one.name().to_owned()).collect(),
        outer: registry
            .registrations()
            .filter(|one| !one.is_builtin())
            .map(|one| one.name().to_owned())
            .collect(),
        custom: config.sandbox.custom_strategies.keys().cloned().collect(),
    };
    let directory = file.parent().unwrap_or(Path::new(""));
    let mut config = config;
    for (name, custom) in &mut config.sandbox.custom_strategies {
        checker.check_custom(name, custom)?;
        directory.clone_into(&mut custom.directory);
    }
    let config = config;
    if let Some(strategy) = &config.sandbox.strategy {
        checker.check_strategy("sandbox.strategy", strategy, &[])?;
    }
    let types = checker.types(&config.resource_types)?;
    let mut resources = Vec::new();
    for (name, entry) in &config.resources {
        checker.check_resource(name, entry, &config, &types)?;
        let kind = entry.kind.as_deref().and_then(|kind| types.named(kind));
        let elsewhere = kind.is_some_and(|kind| [URL, OPAQUE].contains(&kind.base.as_str()));
        resources.push(ConfigResource {
            name: name.clone(),
            kind: entry.kind.clone(),
            file: Location::from(file),
            at: match elsewhere || is_url(entry.at.as_ref()) {
                true => PathBuf::from(&entry.at),
                false => directory.join(&entry.at),
            },
            parent: entry.parent.clone(),
            strategy: entry.strategy.clone(),
            options: entry.all_options(),
            untrusted: None,
        });
    }
    let run = checker.run(&config, directory)?;
    let mut validate = Vec::new();
    for (number, entry) in config.validate.iter().enumerate() {
        let (line, network) = match entry {
            ValidateEntry::Plain(line) => (line, None),
            ValidateEntry::Declared(entry) => (&entry.command, entry.network),
        };
        let words = match line {
            CommandLine::Line(line) if line.trim().is_empty() => Vec::new(),
            CommandLine::Line(line) => vec!["sh".to_owned(), "-c".to_owned(), line.clone()],
            CommandLine::Words(words) => words.clone(),
        };
        if words.first().is_none_or(String::is_empty) {
            return Err(places.fault(&format!("validate[{number}]"), "the command is empty"));
        }
        let network = network == Some(Network::Host);
        validate.push(Validation { words, network });
    }
    Ok(Settings {
        file: Some(Location::from(file)),
        strategy: config.sandbox.strategy,
        cleanup: config.sandbox.cleanup,
        undo_keep: config.sandbox.undo.keep.0,
        checkpoint: config.sandbox.checkpoint,
        custom_strategies: config.sandbox.custom_strategies,
        types,
        resources,
        run,
        validate,
    })
}

struct Checker<'a> {
    places: &'a KeyPositions,
    strategies: Vec<String>,
    /// Of those, the ones that come with the engine; and the ones that outer files declare.
    builtin: Vec<String>,
    outer: Vec<String>,
    custom: Vec<String>,
}

impl Checker<'_> {
    fn check_name(&self, path: &str, name: &str) -> Checked<()> {
        match plan::is_name(name) {
            true => Ok(()),
            false => Err(self.places.fault(
                path,
                format!(
                    "'{name}' cannot be a name: use letters, digits, '.', '_' and '-', beginning \
                     with a letter or digit, at most 64"
                ),
            )),
        }
    }

    fn check_custom(&self, name: &str, custom: &CustomStrategyConfig) -> Checked<()> {
        let path = format!("sandbox.custom_strategies.{name}");
        self.check_name(&path, name)?;
        let is_program =
            custom.command.is_some() || custom.module.is_some() || custom.class.is_some();
        let known = self.builtin.iter().any(|one| one == name);
        if known && !is_program && custom.alias_of.is_none() {
            return Ok(());
        }
        if known || [AUTO, INHERIT].contains(&name) {
            let what = format!("'{name}' is reserved; choose another name");
            return Err(self.places.fault(&path, what));
        }
        if let Some(of) = &custom.alias_of {
            let path = format!("{path}.alias_of");
            if is_program || !custom.env.is_empty() || custom.timeout.is_some() {
                let what = "another name of a strategy has 'options' only";
                return Err(self.places.fault(&path, what));
            }
            if !self.builtin.contains(of) {
                let what = format!("'{of}' is no strategy that comes with Escrow");
                return Err(self.places.unknown(&path, what, of, self.builtin.clone()));
            }
            return Ok(());
        }
        self.check_environment(&path, custom)?;
        let module = custom.module.as_deref();
        let whole = match (module, &custom.class) {
            (Some(module), Some(class)) => is_class(&format!("{module}:{class}")),
            (Some(module), None) => is_class(module),
            (None, _) => false,
        };
        match &custom.command {
            Some(words) if module.is_none() && custom.class.is_none() => {
                match words.first().is_none_or(String::is_empty) {
                    true => Err(self
                        .places
                        .fault(&format!("{path}.command"), "the command is empty")),
                    false => Ok(()),
                }
            }
            None if whole => Ok(()),
            _ => Err(self.places.fault(
                &path,
                "it needs either 'command', or 'module' and 'class' by their names in Python, or 'alias_of'",
            )),
        }
    }

    fn check_environment(&self, path: &str, custom: &CustomStrategyConfig) -> Checked<()> {
        for (name, value) in &custom.env {
            let value = value.as_deref().unwrap_or_default();
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let path = format!("{path}.env.{name}");
                return Err(self.places.fault(&path, "this cannot be a variable"));
            }
        }
        let Some(TimeoutConfig::ByMethod(limits)) = &custom.timeout else {
            return Ok(());
        };
        for method in limits.keys() {
            if method != "*" && !methods().any(|one| one == method) {
                let path = format!("{path}.timeout.{method}");
                let what = format!("there is no method '{method}'");
                let known = methods().map(str::to_owned).collect();
                return Err(self.places.unknown(&path, what, method, known));
            }
        }
        Ok(())
    }

    fn is_custom(&self, name: &str) -> bool {
        let declared = |all: &[String]| all.iter().any(|one| one == name);
        is_class(name) || declared(&self.custom) || declared(&self.outer)
    }

    /// Checks that a strategy is known; `also` has a meaning only here.
    fn check_strategy(&self, path: &str, name: &str, also: &[&str]) -> Checked<()> {
        let words = [&[AUTO], also].concat();
        if words.contains(&name)
            || self.strategies.iter().any(|one| one == name)
            || self.is_custom(name)
        {
            return Ok(());
        }
        let known = words
            .into_iter()
            .chain(self.strategies.iter().map(String::as_str));
        let mut known: Vec<String> = known.map(str::to_owned).collect();
        known.extend(self.custom.iter().cloned());
        let what = format!("there is no strategy '{name}'");
        Err(self.places.unknown(path, what, name, known))
    }

    /// Checks that a type takes a strategy that is known.
    fn check_allowed(&self, path: &str, name: &str, kind: &ResourceType) -> Checked<()> {
        let taken = kind.allowed.iter().any(|one| one == name);
        if name == AUTO || taken || self.is_custom(name) {
            return Ok(());
        }
        let what = format!("a resource of type {} cannot have '{name}'", kind.name);
        let known = kind.allowed.clone();
        Err(self.places.unknown(path, what, name, known))
    }

    /// All types: one may extend another in any order.
    fn types(&self, entries: &[TypeEntry]) -> Checked<ResourceTypes> {
        let mut types = ResourceTypes::default();
        let mut left: Vec<(usize, &TypeEntry)> = entries.iter().enumerate().collect();
        while !left.is_empty() {
            let before = left.len();
            let mut waiting = Vec::new();
            for (number, entry) in left {
                let parent = entry.parent().map(|parent| types.named(parent).cloned());
                match parent {
                    None => types.put(self.own_type(number, entry, &types)?),
                    Some(Some(base)) => types.put(self.special(number, entry, &base, &types)?),
                    Some(None) => waiting.push((number, entry)),
                }
            }
            if let Some((number, entry)) = waiting.first()
                && waiting.len() == before
            {
                let path = format!("resource_types[{number}].extends");
                let parent = entry.parent().unwrap_or_default();
                let what = match entries.iter().any(|one| one.name == parent) {
                    true => format!("'{parent}' extends itself"),
                    false => format!("there is no resource type '{parent}'"),
                };
                return Err(self.places.unknown(&path, what, parent, types.names()));
            }
            left = waiting;
        }
        Ok(types)
    }

    /// A type that is no special case of another: what it is, and which strategies it takes.
    fn own_type(
        &self,
        number: usize,
        entry: &TypeEntry,
        types: &ResourceTypes,
    ) -> Checked<ResourceType> {
        let path = |key: &str| format!("resource_types[{number}].{key}");
        self.check_name(&path("name"), &entry.name)?;
        if types.named(&entry.name).is_some() {
            let what = format!("there is a type '{}' already", entry.name);
            return Err(self.places.fault(&path("name"), what));
        }
        if entry.extends.is_some() {
            let what = "a type has either 'extends' or 'location'";
            return Err(self.places.fault(&path("location"), what));
        }
        let named = entry.sandbox_strategy.iter().chain(&entry.strategies);
        let mut strategies: Vec<&str> = Vec::new();
        for (number, name) in named.enumerate() {
            let key = match (number, &entry.sandbox_strategy) {
                (0, Some(_)) => path("sandbox_strategy"),
                _ => path("strategies"),
            };
            self.check_strategy(&key, name, &[])?;
            if name != AUTO && !strategies.contains(&name.as_str()) {
                strategies.push(name);
            }
        }
        if strategies.is_empty() {
            let what = "it needs a 'sandbox_strategy' that serves it";
            return Err(self.places.fault(&path("name"), what));
        }
        let base = match entry.location {
            Some(LocationKind::Url) => URL,
            Some(LocationKind::Opaque) => OPAQUE,
            Some(LocationKind::Path) | None => FS_DIRECTORY,
        };
        let mut kind = ResourceType::own(&entry.name, base, &strategies);
        if let Some(description) = &entry.description {
            kind.description.clone_from(description);
        }
        Ok(kind)
    }

    fn special(
        &self,
        number: usize,
        entry: &TypeEntry,
        base: &ResourceType,
        types: &ResourceTypes,
    ) -> Checked<ResourceType> {
        let path = |key: &str| format!("resource_types[{number}].{key}");
        self.check_name(&path("name"), &entry.name)?;
        if types.named(&entry.name).is_some() {
            let what = format!("there is a type '{}' already", entry.name);
            return Err(self.places.fault(&path("name"), what));
        }
        for (at, name) in entry.strategies.iter().enumerate() {
            let path = format!("{}[{at}]", path("strategies"));
            self.check_strategy(&path, name, &[])?;
            self.check_allowed(&path, name, base)?;
        }
        let default = entry.sandbox_strategy.as_deref();
        if let Some(name) = default {
            self.check_strategy(&path("sandbox_strategy"), name, &[])?;
            self.check_allowed(&path("sandbox_strategy"), name, base)?;
            let listed = entry.strategies.iter().any(|one| one == name);
            if name != AUTO && !entry.strategies.is_empty() && !listed {
                let what = format!("'{name}' is not among its 'strategies'");
                return Err(self.places.fault(&path("sandbox_strategy"), what));
            }
        }
        let description = entry.description.as_deref();
        Ok(base.special(&entry.name, description, default, &entry.strategies))
    }

    fn check_resource(
        &self,
        name: &str,
        entry: &ResourceEntry,
        config: &Config,
        types: &ResourceTypes,
    ) -> Checked<()> {
        let own = format!("resources.{name}");
        let path = |key: &str| format!("{own}.{key}");
        self.check_name(&own, name)?;
        let kind = entry.kind.as_deref().map(|name| {
            types.named(name).ok_or_else(|| {
                let what = format!("there is no resource type '{name}'");
                let known = types.names();
                self.places.unknown(&path("type"), what, name, known)
            })
        });
        let kind = kind.transpose()?;
        self.check_path(&path("at"), &entry.at)?;
        if let Some(parent) = &entry.parent {
            self.check_parent(name, parent, config)?;
        }
        match entry.strategy.as_deref() {
            None => Ok(()),
            Some(INHERIT) if entry.parent.is_some() => Ok(()),
            Some(INHERIT) => Err(self.places.fault(
                &path("strategy"),
                "to inherit a sandbox a resource needs a 'parent'",
            )),
            Some(strategy) => {
                self.check_strategy(&path("strategy"), strategy, &[INHERIT])?;
                // What stands there is asked when it is used.
                kind.map_or(Ok(()), |kind| {
                    self.check_allowed(&path("strategy"), strategy, kind)
                })
            }
        }
    }

    fn check_parent(&self, name: &str, parent: &str, config: &Config) -> Checked<()> {
        let path = format!("resources.{name}.parent");
        let mut above = Some(parent);
        for _ in 0..=config.resources.len() {
            let Some(next) = above else {
                return Ok(());
            };
            let Some(entry) = config.resources.get(next) else {
                let known = config.resources.keys().filter(|one| *one != name);
                let what = format!("there is no resource '{next}'");
                let known = known.cloned().collect();
                return Err(self.places.unknown(&path, what, next, known));
            };
            if next == name {
                break;
            }
            above = entry.parent.as_deref();
        }
        Err(self
            .places
            .fault(&path, format!("'{name}' would lie in itself")))
    }

    fn check_path(&self, path: &str, text: &str) -> Checked<()> {
        match text.is_empty() || text.contains('\0') {
            true => Err(self.places.fault(path, "this is not a path")),
            false => Ok(()),
        }
    }

    fn run(&self, config: &Config, directory: &Path) -> Checked<RunDefaults> {
        let run = &config.run;
        for (number, text) in run.writable.iter().enumerate() {
            self.check_path(&format!("run.writable[{number}]"), text)?;
        }
        for (name, value) in &run.env {
            let bad = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
            if bad {
                let path = format!("run.env.{name}");
                return Err(self.places.fault(&path, "this cannot be a variable"));
            }
        }
        Ok(RunDefaults {
            writable: run.writable.iter().map(|at| directory.join(at)).collect(),
            network: run.network.map(|network| network == Network::Host),
            scratch: run.scratch,
            userns: run.allow_userns,
            env: run.env.clone(),
        })
    }
}
