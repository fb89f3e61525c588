//! Finds and reads the configuration files that count, once each, in the order of their levels.
//!
//! The caller says where to look; what is found decides nothing before it is merged. What is hashed
//! is what is used: the bytes are read once and kept.

use std::path::{Path, PathBuf};

use super::keys::KEYS;
use super::{ConfigError, FILE_NAME, Settings, check, include, parse};
use crate::fs::FsError;
use crate::fs::areas;
use crate::fs::owned::{self, AllowedWriters, ConfigFileState};
use crate::fs::state_dir;
use crate::model::text::Location;
use crate::policy::Policy;
use crate::strategy::Registry;
use crate::strategy::plugin::ProgramContext;

/// More than anyone writes by hand.
pub(super) const MOST: u64 = 1024 * 1024;

/// Where configurations may be.
#[derive(Debug, Clone, Default)]
pub struct ConfigSources {
    /// The file of the system; root alone may have written it.
    pub system: Option<PathBuf>,
    /// The file of the user.
    pub user: Option<PathBuf>,
    /// The file that the user named, instead of one that is found.
    pub named: Option<PathBuf>,
    /// The directory from which a file is searched upward.
    pub directory: Option<PathBuf>,
    /// Whether to go on without a found file that cannot be used, as what frees space or repairs does.
    pub lenient: bool,
}

/// How a configuration came to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigOrigin {
    System,
    User,
    /// The user named it.
    Named,
    /// It was found in the tree.
    Found,
}

/// One configuration file, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct ConfigLevel {
    pub(crate) origin: ConfigOrigin,
    pub(crate) file: Location,
    pub(crate) text: Vec<u8>,
    pub(crate) digest: String,
    /// Why others may have changed it, and how to fix that: then it only tightens, and is never trusted.
    pub(crate) shared: Option<String>,
    /// The policy in it; one that makes no sense denies everything.
    pub(crate) policy: Option<Policy>,
    /// What it says, with defaults for what it does not say.
    pub(super) alone: Settings,
    /// The keys of the table that it has.
    pub(super) says: Vec<&'static str>,
}

/// Everything that was read.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedConfigs {
    pub(crate) system: Option<ConfigLevel>,
    pub(crate) user: Option<ConfigLevel>,
    /// The file that was named, or the nearest that was found.
    pub(crate) project: Option<ConfigLevel>,
    /// Files that do not count, and why.
    pub(crate) passed_over: Vec<PassedOver>,
}

/// A file that does not count, and why.
pub(crate) type PassedOver = (Location, String);

/// The text of a file that was named.
pub(super) fn text(file: &Path) -> Result<Vec<u8>, ConfigError> {
    owned::read_named(file, MOST).map_err(unreadable)
}

impl ConfigLevel {
    /// Reads the text of `file`, and the files of types that belong to it.
    fn load(
        origin: ConfigOrigin,
        file: &Path,
        text: Vec<u8>,
        registry: &Registry,
    ) -> Result<Self, ConfigError> {
        let whole = include::gather(text, file, origin)?;
        let level = Self::parse(origin, file, whole.text, registry)?;
        Ok(Self {
            shared: whole.shared,
            ..level
        })
    }

    /// Reads the whole text of `file`, with the files of types that belong to it.
    pub(crate) fn parse(
        origin: ConfigOrigin,
        file: &Path,
        text: Vec<u8>,
        registry: &Registry,
    ) -> Result<Self, ConfigError> {
        let (main, files) = include::split(&text);
        let (config, places) = parse::read(main, file)?;
        let types = parse::read_types(&files, file)?;
        let names = KEYS.iter().map(|key| key.name);
        let says = names.filter(|name| places.says(name)).collect();
        let policy = parse::policy(main, &places);
        let alone = check::settle(config, &types, &places, file, registry)?;
        Ok(Self {
            policy: policy.unwrap_or_else(|error| Some(Policy::unreadable(error))),
            origin,
            file: Location::from(file),
            digest: blake3::hash(&text).to_hex().to_string(),
            shared: None,
            text,
            alone,
            says,
        })
    }

    /// Whether it has commands that validate a commit.
    pub(crate) fn validates(&self) -> bool {
        !self.alone.validate.is_empty()
    }

    /// Reads the one file that `path` means, as it would be found: what others can change is refused.
    pub(crate) fn examine(
        path: &Path,
        home: &Path,
        registry: &Registry,
    ) -> Result<Self, ConfigError> {
        let path = resolved(path);
        let refuse = |why: String| {
            let what = format!("it cannot be trusted: {why}");
            Err(ConfigError::of_file(
                Location::from(path.as_path()),
                what,
                Vec::new(),
            ))
        };
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return refuse("it is not a file".to_owned());
        };
        let Some(name) = name.to_str() else {
            return refuse("its name is not text".to_owned());
        };
        if is_inside(directory, home) {
            return refuse(INSIDE.to_owned());
        }
        match owned::find(directory, name, MOST).map_err(unreadable)? {
            ConfigFileState::Text(text) => {
                let level = Self::load(ConfigOrigin::Found, &path, text, registry)?;
                match level.shared {
                    Some(why) => refuse(why),
                    None => Ok(level),
                }
            }
            ConfigFileState::PassedOver(why) | ConfigFileState::Shared(_, why) => refuse(why),
            ConfigFileState::Absent => refuse("there is no such file".to_owned()),
        }
    }

    /// What stands in the same place now; nothing where it is gone or does not count any more.
    pub(crate) fn again(&self, registry: &Registry) -> Result<Option<Self>, ConfigError> {
        let path = self.file.as_path();
        let (text, shared) = match (self.origin, path.parent(), path.file_name()) {
            (ConfigOrigin::Found, Some(directory), Some(name)) => {
                let name = name.to_string_lossy();
                match owned::find(directory, &name, MOST).map_err(unreadable)? {
                    ConfigFileState::Text(text) => (text, None),
                    ConfigFileState::Shared(text, why) => (text, Some(why)),
                    ConfigFileState::Absent | ConfigFileState::PassedOver(_) => return Ok(None),
                }
            }
            _ => match owned::read_again(path, MOST).map_err(unreadable)? {
                Some(text) => (text, None),
                None => return Ok(None),
            },
        };
        let origin = match self.origin {
            ConfigOrigin::Found => ConfigOrigin::Found,
            _ => ConfigOrigin::Named,
        };
        let level = Self::load(origin, path, text, registry)?;
        Ok(Some(Self {
            origin: ConfigOrigin::Found,
            shared: shared.or(level.shared),
            ..level
        }))
    }
}

impl LoadedConfigs {
    /// Reads every file that counts. `home` is the engine's own: nothing in it counts, nor in any
    /// sandbox elsewhere, because those who work in a sandbox write it.
    pub(crate) fn read(
        sources: &ConfigSources,
        home: &Path,
        registry: &Registry,
    ) -> Result<Self, ConfigError> {
        let mut loaded = Self::default();
        if let Some(file) = &sources.system {
            loaded.system = loaded.fixed(ConfigOrigin::System, file, registry)?;
        }
        if let Some(file) = &sources.user {
            let outer = loaded.outer_strategies(registry);
            loaded.user = loaded.fixed(ConfigOrigin::User, file, &outer)?;
        }
        let registry = &loaded.outer_strategies(registry);
        loaded.project = match (&sources.named, &sources.directory) {
            (Some(file), here) => {
                let file = here.as_deref().unwrap_or(Path::new("")).join(file);
                let level = ConfigLevel::load(
                    ConfigOrigin::Named,
                    &resolved(&file),
                    text(&file)?,
                    registry,
                )?;
                Some(level).filter(|level| !loaded.is_fixed(&level.file))
            }
            (None, Some(here)) => match loaded.search(here, &[], home, registry) {
                Ok((level, passed_over)) => {
                    loaded.passed_over.extend(passed_over);
                    level
                }
                Err(error) if sources.lenient => {
                    loaded.passed_over.push(error.passed_over());
                    None
                }
                Err(error) => return Err(error),
            },
            (None, None) => None,
        };
        Ok(loaded)
    }

    /// Those strategies, and the ones that the files of the system and of the user declare.
    pub(crate) fn outer_strategies(&self, registry: &Registry) -> Registry {
        let outer = [&self.system, &self.user].into_iter().flatten();
        let declared = outer.flat_map(|level| level.alone.declared_strategies());
        let declared: Vec<_> = declared.collect();
        // Only their names are asked for here: nothing is started.
        registry.with(&declared, Vec::new(), None, &ProgramContext::default())
    }

    fn fixed(
        &mut self,
        origin: ConfigOrigin,
        file: &Path,
        registry: &Registry,
    ) -> Result<Option<ConfigLevel>, ConfigError> {
        let writers = match origin {
            ConfigOrigin::System => AllowedWriters::Root,
            _ => AllowedWriters::User,
        };
        match owned::read(file, writers, MOST).map_err(unreadable)? {
            ConfigFileState::Text(text) => {
                ConfigLevel::load(origin, &resolved(file), text, registry).map(Some)
            }
            ConfigFileState::PassedOver(why) | ConfigFileState::Shared(_, why) => {
                self.passed_over.push((Location::from(file), why));
                Ok(None)
            }
            ConfigFileState::Absent => Ok(None),
        }
    }

    /// Whether a file is that of the system or of the user.
    fn is_fixed(&self, file: &Location) -> bool {
        let mut fixed = [&self.system, &self.user].into_iter().flatten();
        fixed.any(|level| level.file == *file)
    }

    /// The nearest file that counts, from `here` upward, and those that were passed over on the way. A file of the
    /// user or the system is no project's, also where it lies above; nothing is read above one of `known`.
    pub(crate) fn search(
        &self,
        here: &Path,
        known: &[Location],
        home: &Path,
        registry: &Registry,
    ) -> Result<(Option<ConfigLevel>, Vec<PassedOver>), ConfigError> {
        let mut passed_over = Vec::new();
        for directory in here.ancestors() {
            let file = directory.join(FILE_NAME);
            if known.iter().any(|known| known.as_path() == file) {
                break;
            }
            let (text, shared) = match owned::find(directory, FILE_NAME, MOST) {
                Ok(ConfigFileState::Absent) => continue,
                _ if is_inside(directory, home) => {
                    passed_over.push((Location::from(file), INSIDE.to_owned()));
                    continue;
                }
                Ok(ConfigFileState::PassedOver(why)) => {
                    passed_over.push((Location::from(file), why));
                    continue;
                }
                Ok(ConfigFileState::Text(text)) => (text, None),
                Ok(ConfigFileState::Shared(text, why)) => (text, Some(why)),
                Err(error) => return Err(unreadable(error).of_found()),
            };
            if self.is_fixed(&Location::from(file.as_path())) {
                break;
            }
            let level = ConfigLevel::load(ConfigOrigin::Found, &file, text, registry);
            let level = level.map_err(ConfigError::of_found)?;
            let shared = shared.or(level.shared);
            return Ok((Some(ConfigLevel { shared, ..level }), passed_over));
        }
        Ok((None, passed_over))
    }
}

const INSIDE: &str = "it is inside a sandbox, where commands can write it";

/// Whether a directory is the engine's own, or a sandbox.
fn is_inside(directory: &Path, home: &Path) -> bool {
    let home = state_dir::known_as(home);
    home.is_some_and(|home| directory.starts_with(home)) || areas::is_inside(directory)
}

/// The path of a file with the links on the way to it resolved; not one that is the file.
pub(crate) fn resolved(file: &Path) -> PathBuf {
    let parent = match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return file.to_owned(),
    };
    match (state_dir::canonical(parent), file.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => file.to_owned(),
    }
}

pub(super) fn unreadable(error: FsError) -> ConfigError {
    let link = owned::dangling(error.path.as_path()).map(|link| {
        let link = Location::from(link);
        format!("'{link}' is a broken link; remove it, or fix it")
    });
    let what = format!("cannot read the configuration: {}", error.cause);
    ConfigError::of_file(error.path, what, link.into_iter().collect())
}
