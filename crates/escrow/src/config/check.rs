//! Checks the names in a configuration: strategies, types and parents exist and fit each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::options;
use super::parse::{KeyPositions, TypeFile};
use super::{
    CommandLine, Config, ConfigError, ConfigResource, CustomStrategyConfig, InjectConfig,
    Injection, LimitsConfig, LocationKind, NetworkConfig, ResourceEntry, RunDefaults, SecretSource,
    Settings, TimeoutConfig, TypeEntry, TypeItem, ValidateEntry, Validation,
};
use crate::agents::AgentPreset;
use crate::model::network::host_and_port;
use crate::model::resource::{AUTO, FS_DIRECTORY, OPAQUE, URL, is_url};
use crate::model::text::Location;
use crate::model::{AllowedHost, Limits, Network, ResourceType, ResourceTypes, plan, units};
use crate::policy::select::ReleasePattern;
use crate::resource::INHERIT;
use crate::strategy::Registry;
use crate::strategy::plugin::methods;
use crate::strategy::registry::{Registration, is_class};

type Checked<T> = Result<T, ConfigError>;

/// Makes settings of a configuration whose names are all right.
pub(super) fn settle(
    config: Config,
    files: &[TypeFile],
    places: &KeyPositions,
    file: &Path,
    registry: &Registry,
) -> Checked<Settings> {
    let custom = config.sandbox.custom_strategies.keys().cloned().collect();
    let checker = Checker::new(places, registry, custom);
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
    let types = checker.types(&TypeSource::all(&config.resource_types, places, files))?;
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
                // `at: .` is the directory itself, not a path that ends in a dot.
                false => directory.join(&entry.at).components().collect(),
            },
            parent: entry.parent.clone(),
            strategy: entry.strategy.clone(),
            options: entry.all_options(),
            untrusted: None,
        });
    }
    let run = checker.run(&config, directory)?;
    for (number, pattern) in config.diff.ignore.iter().enumerate() {
        ReleasePattern::anywhere(pattern)
            .map_err(|why| places.fault(&format!("diff.ignore[{number}]"), why))?;
    }
    let mut validate = Vec::new();
    for (number, entry) in config.validate.iter().enumerate() {
        let (line, network) = match entry {
            ValidateEntry::Plain(line) => (line, None),
            ValidateEntry::Declared(entry) => (&entry.command, entry.network.as_ref()),
        };
        let words = match line {
            CommandLine::Line(line) if line.trim().is_empty() => Vec::new(),
            CommandLine::Line(line) => vec!["sh".to_owned(), "-c".to_owned(), line.clone()],
            CommandLine::Words(words) => words.clone(),
        };
        if words.first().is_none_or(String::is_empty) {
            return Err(places.fault(&format!("validate[{number}]"), "the command is empty"));
        }
        let network = checker.network(&format!("validate[{number}].network"), network)?;
        let network = network.unwrap_or_default();
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
        agents: agents(config.agents, places)?,
        ignore: config.diff.ignore,
        validate,
    })
}

/// The presets of agents, whose names and paths lead nowhere else.
fn agents(
    all: BTreeMap<String, AgentPreset>,
    places: &KeyPositions,
) -> Checked<BTreeMap<String, AgentPreset>> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    for (name, preset) in &all {
        let key = format!("agents.{name}");
        if name.is_empty() || name == "none" || !name.chars().all(plain) {
            let what = "a name of an agent has small letters, digits and `-`, and is not `none`";
            return Err(places.fault(&key, what));
        }
        if let Some(path) = preset.paths().find(|path| !is_below_home(path)) {
            let what = format!("'{path}' is not a path below the home directory");
            return Err(places.fault(&key, what.as_str()));
        }
        for host in &preset.hosts {
            if let Err(why) = host.parse::<AllowedHost>() {
                return Err(places.fault(&format!("{key}.hosts"), why.as_str()));
            }
        }
    }
    Ok(all)
}

fn is_below_home(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    !text.is_empty()
        && !text.contains(['%', '\0'])
        && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// The settings of types that stand in files of their own: strategies may be declared elsewhere.
pub(super) fn settle_types(
    files: &[TypeFile],
    file: &Path,
    registry: &Registry,
) -> Checked<Settings> {
    let entries = files.iter().flat_map(|one| &one.entries);
    let named = entries.flat_map(|one| one.sandbox_strategy.iter().chain(&one.strategies));
    let elsewhere = named.filter(|name| plan::is_name(name)).cloned().collect();
    let nothing = KeyPositions::none(file);
    let checker = Checker::new(&nothing, registry, elsewhere);
    Ok(Settings {
        file: Some(Location::from(file)),
        types: checker.types(&TypeSource::all(&[], &nothing, files))?,
        ..Settings::default()
    })
}

/// A type, and where it stands.
struct TypeSource<'a> {
    entry: &'a TypeEntry,
    places: &'a KeyPositions,
    /// Its path in that file; empty where it is the whole file.
    path: String,
}

impl<'a> TypeSource<'a> {
    fn all(items: &'a [TypeItem], places: &'a KeyPositions, files: &'a [TypeFile]) -> Vec<Self> {
        let own = items.iter().enumerate();
        let own = own.filter_map(|(number, item)| match item {
            TypeItem::Entry(entry) => Some(Self {
                entry,
                places,
                path: format!("resource_types[{number}]"),
            }),
            TypeItem::Files(_) => None,
        });
        let of_file = |file: &'a TypeFile| {
            let entries = file.entries.iter().enumerate();
            entries.map(|(number, entry)| Self {
                entry,
                places: &file.places,
                path: match file.is_list {
                    true => format!("[{number}]"),
                    false => String::new(),
                },
            })
        };
        own.chain(files.iter().flat_map(of_file)).collect()
    }

    fn at(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    fn fault(&self, key: &str, what: impl Into<String>) -> ConfigError {
        self.places.fault(&self.at(key), what)
    }
}

#[derive(Clone)]
struct Checker<'a> {
    places: &'a KeyPositions,
    strategies: Vec<String>,
    /// Of those, the ones that come with the engine; and the ones that outer files declare.
    builtin: Vec<String>,
    outer: Vec<String>,
    custom: Vec<String>,
}

impl<'a> Checker<'a> {
    fn new(places: &'a KeyPositions, registry: &Registry, custom: Vec<String>) -> Self {
        let all = registry.registrations();
        let (builtin, outer): (Vec<_>, Vec<_>) = all.partition(|one| one.is_builtin());
        let names = |all: Vec<&Registration>| all.iter().map(|one| one.name().to_owned()).collect();
        Self {
            places,
            strategies: registry.names(),
            builtin: names(builtin),
            outer: names(outer),
            custom,
        }
    }

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
    fn types(&self, sources: &[TypeSource<'_>]) -> Checked<ResourceTypes> {
        let mut types = ResourceTypes::default();
        let mut left: Vec<&TypeSource<'_>> = sources.iter().collect();
        while !left.is_empty() {
            let before = left.len();
            let mut waiting = Vec::new();
            for source in left {
                let parent = source.entry.parent();
                let parent = parent.map(|parent| types.named(parent).cloned());
                let checker = Checker {
                    places: source.places,
                    ..self.clone()
                };
                match parent {
                    None => types.put(checker.own_type(source, &types)?),
                    Some(Some(base)) => types.put(checker.special(source, &base, &types)?),
                    Some(None) => waiting.push(source),
                }
            }
            if let Some(source) = waiting.first()
                && waiting.len() == before
            {
                let parent = source.entry.parent().unwrap_or_default();
                let what = match sources.iter().any(|one| one.entry.name == parent) {
                    true => format!("'{parent}' extends itself"),
                    false => format!("there is no resource type '{parent}'"),
                };
                let path = source.at("extends");
                return Err(source.places.unknown(&path, what, parent, types.names()));
            }
            left = waiting;
        }
        Ok(types)
    }

    /// Checks what every type has: a name of its own, and a schema of options that can be one.
    fn check_type(&self, source: &TypeSource<'_>, types: &ResourceTypes) -> Checked<()> {
        let entry = source.entry;
        self.check_name(&source.at("name"), &entry.name)?;
        if types.named(&entry.name).is_some() {
            let what = format!("there is a type '{}' already", entry.name);
            return Err(source.fault("name", what));
        }
        let Some(schema) = &entry.options else {
            return Ok(());
        };
        options::check_schema(schema).map_err(|(at, what)| {
            let path = source.at("options");
            self.places.fault(&format!("{path}{at}"), what)
        })
    }

    /// A type that is no special case of another: what it is, and which strategies it takes.
    fn own_type(&self, source: &TypeSource<'_>, types: &ResourceTypes) -> Checked<ResourceType> {
        self.check_type(source, types)?;
        let entry = source.entry;
        if entry.extends.is_some() {
            let what = "a type has either 'extends' or 'location'";
            return Err(source.fault("location", what));
        }
        let named = entry.sandbox_strategy.iter().chain(&entry.strategies);
        let mut strategies: Vec<&str> = Vec::new();
        for (number, name) in named.enumerate() {
            let key = match (number, &entry.sandbox_strategy) {
                (0, Some(_)) => "sandbox_strategy",
                _ => "strategies",
            };
            self.check_strategy(&source.at(key), name, &[])?;
            if name != AUTO && !strategies.contains(&name.as_str()) {
                strategies.push(name);
            }
        }
        if strategies.is_empty() {
            let what = "it needs a 'sandbox_strategy' that serves it";
            return Err(source.fault("name", what));
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
        kind.options.clone_from(&entry.options);
        Ok(kind)
    }

    fn special(
        &self,
        source: &TypeSource<'_>,
        base: &ResourceType,
        types: &ResourceTypes,
    ) -> Checked<ResourceType> {
        self.check_type(source, types)?;
        let entry = source.entry;
        for (at, name) in entry.strategies.iter().enumerate() {
            let path = format!("{}[{at}]", source.at("strategies"));
            self.check_strategy(&path, name, &[])?;
            self.check_allowed(&path, name, base)?;
        }
        let default = entry.sandbox_strategy.as_deref();
        if let Some(name) = default {
            let path = source.at("sandbox_strategy");
            self.check_strategy(&path, name, &[])?;
            self.check_allowed(&path, name, base)?;
            let listed = entry.strategies.iter().any(|one| one == name);
            if name != AUTO && !entry.strategies.is_empty() && !listed {
                let what = format!("'{name}' is not among its 'strategies'");
                return Err(source.fault("sandbox_strategy", what));
            }
        }
        let description = entry.description.as_deref();
        let mut kind = base.special(&entry.name, description, default, &entry.strategies);
        if entry.options.is_some() {
            kind.options.clone_from(&entry.options);
        }
        Ok(kind)
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
        if let Some(schema) = kind.and_then(|kind| kind.options.as_ref()) {
            options::check(schema, &entry.options).map_err(|(at, what)| {
                let path = path("options");
                self.places.fault(&format!("{path}{at}"), what)
            })?;
        }
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
        for (key, all) in [
            ("hide", &run.hide),
            ("show", &run.show),
            ("keep", &run.keep),
        ] {
            for (number, text) in all.iter().enumerate() {
                self.check_path(&format!("run.{key}[{number}]"), text)?;
            }
        }
        for (name, value) in &run.env.set {
            let bad = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
            if bad {
                let path = format!("run.env.{name}");
                return Err(self.places.fault(&path, "this cannot be a variable"));
            }
        }
        // What begins in the home directory is completed there, when it is known whose it is.
        let paths = |all: &[String]| {
            let full = |text: &String| match text.starts_with("~/") {
                true => PathBuf::from(text),
                false => directory.join(text),
            };
            all.iter().map(full).collect()
        };
        let limits = self.limits(&run.limits)?;
        Ok(RunDefaults {
            limits,
            writable: run.writable.iter().map(|at| directory.join(at)).collect(),
            network: self.network("run.network", run.network.as_ref())?,
            scratch: run.scratch,
            userns: run.allow_userns,
            caches: run.caches,
            hide: paths(&run.hide),
            show: paths(&run.show),
            keep: paths(&run.keep),
            inject: self.injections(&run.inject, directory)?,
            pass: run.env.pass.clone(),
            env: run.env.set.clone(),
        })
    }

    fn injections(&self, all: &[InjectConfig], directory: &Path) -> Checked<Vec<Injection>> {
        let one = |(number, one): (usize, &InjectConfig)| {
            let fault = |key: &str, what: &str| {
                self.places
                    .fault(&format!("run.inject[{number}].{key}"), what)
            };
            let is_name = |host: &String| host.parse::<std::net::IpAddr>().is_err();
            let host = host_and_port(&one.host).filter(|(host, _)| is_name(host));
            let (host, port) = host.ok_or_else(|| {
                fault("host", "this is not the name of a host: write api.example.com, or api.example.com:8443")
            })?;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            let own = ["connection", "content-length", "host", "transfer-encoding"];
            let is_own = own.iter().any(|own| own.eq_ignore_ascii_case(&one.header));
            if one.header.is_empty() || !one.header.bytes().all(plain) || is_own {
                return Err(fault("header", "this cannot be the name of such a header"));
            }
            let format = one.format.clone().unwrap_or_else(|| "{}".to_owned());
            let is_plain = format.bytes().all(|byte| (b' '..0x7f).contains(&byte));
            if !is_plain || format.matches("{}").count() != 1 {
                return Err(fault(
                    "format",
                    "write `{}` once, where the credential stands",
                ));
            }
            let from = match (
                one.from.strip_prefix("env:"),
                one.from.strip_prefix("file:"),
            ) {
                (Some(name), _) if !name.is_empty() && !name.contains(['=', '\0']) => {
                    SecretSource::Variable(name.to_owned())
                }
                (_, Some(path)) if !path.is_empty() && !path.contains('\0') => {
                    SecretSource::File(match path.starts_with("~/") {
                        true => PathBuf::from(path),
                        false => directory.join(path),
                    })
                }
                // It may be the credential itself.
                _ => return Err(fault("from", "write `env:NAME` or `file:PATH`")),
            };
            Ok(Injection {
                host,
                port: port.unwrap_or(443),
                header: one.header.clone(),
                from,
                format,
            })
        };
        all.iter().enumerate().map(one).collect()
    }

    fn network(&self, key: &str, declared: Option<&NetworkConfig>) -> Checked<Option<Network>> {
        let list = |name: &str, hosts: &[String]| -> Checked<Vec<AllowedHost>> {
            let hosts = hosts.iter().enumerate();
            let read = hosts.map(|(number, host)| {
                let key = format!("{key}.{name}[{number}]");
                host.parse()
                    .map_err(|why: String| self.places.fault(&key, why.as_str()))
            });
            read.collect()
        };
        let fault = |why: String| self.places.fault(key, why.as_str());
        Ok(match declared {
            None => None,
            Some(NetworkConfig::Words(words)) => Some(words.parse().map_err(fault)?),
            Some(NetworkConfig::Own(own)) => {
                let own = list("own", &own.own)?;
                Some(Network::own_with(own).map_err(fault)?)
            }
            Some(NetworkConfig::Allow(hosts)) => Some(Network::Allow(list("allow", &hosts.allow)?)),
        })
    }

    fn limits(&self, limits: &LimitsConfig) -> Checked<Limits> {
        let read = |key: &str, text: &Option<String>, how: fn(&str) -> Result<u64, String>| {
            let number = text.as_deref().map(how).transpose();
            number.map_err(|why| {
                self.places
                    .fault(&format!("run.limits.{key}"), why.as_str())
            })
        };
        let seconds = |text: &str| units::duration(text).map(|found| found.as_secs());
        Ok(Limits {
            memory: read("memory", &limits.memory, units::size)?,
            pids: limits.pids,
            cpu: read("cpu", &limits.cpu, units::processors)?,
            disk: read("disk", &limits.disk, units::size)?,
            timeout: read("timeout", &limits.timeout, seconds)?.map(Duration::from_secs),
        })
    }
}
