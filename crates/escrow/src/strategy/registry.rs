//! The only way to a strategy: by its name, resolved in one place (rules P1, P7).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Base, Probe, Strategy};
use super::{copy_on_write, filesystem_copy, none, overlay};
use crate::model::ResourceType;
pub use crate::model::resource::AUTO;

/// What stands in where a strategy that was asked for by name does not work and has no way to
/// help itself: it works everywhere.
const FALLBACK: &str = "filesystem_copy";

/// How many entries of an original are looked at for what would not work in its sandbox. Few enough that a sandbox of
/// any size costs the same to make.
const LOOKED_AT: usize = 256;

/// Why a name leads to no strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Nobody registered it.
    #[error("there is no strategy '{name}'")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// The type of the resource does not take it.
    #[error("a resource of type {kind} cannot have the strategy '{name}'")]
    NotAllowed {
        /// The name that was asked for.
        name: String,
        /// The type of the resource.
        kind: String,
        /// What it takes.
        allowed: Vec<String>,
    },
    /// It is a program of the user's own.
    #[error("the strategy '{name}' is a program of your own, which cannot be started yet")]
    Custom {
        /// The name that was asked for.
        name: String,
    },
    /// Of what the type of the resource takes, nothing works here.
    #[error("nothing that a resource of type {kind} takes works here: {reason}")]
    NothingWorks {
        /// The type of the resource.
        kind: String,
        /// What the last one answered.
        reason: String,
    },
    /// The name is taken.
    #[error("a strategy '{name}' is registered already")]
    Taken {
        /// The name.
        name: &'static str,
    },
}

/// A strategy that was chosen, and why.
pub struct Choice {
    /// It.
    pub strategy: Arc<dyn Strategy>,
    /// What every candidate answered, in the order they were asked.
    pub probes: Vec<(&'static str, Probe)>,
    /// Set where it is not the one that was asked for by name.
    pub instead: Option<String>,
    /// What will not work in the sandbox, or why `auto` did not take one in which it would not.
    pub warning: Option<String>,
}

/// Answers of strategies that were asked already: by name, and where original and area lie.
type Asked = HashMap<(&'static str, u64, u64), Probe>;

/// All strategies there are.
pub struct Registry {
    strategies: Vec<Arc<dyn Strategy>>,
    custom: Vec<String>,
    asked: Mutex<Asked>,
}

impl Registry {
    /// The strategies that come with the engine, strongest first.
    pub fn builtin() -> Self {
        Self {
            strategies: vec![
                Arc::new(copy_on_write::CopyOnWrite::new()),
                Arc::new(filesystem_copy::FilesystemCopy::new()),
                Arc::new(overlay::Overlay),
                Arc::new(none::NoIsolation),
            ],
            custom: Vec::new(),
            asked: Mutex::default(),
        }
    }

    /// Adds one of the caller's own.
    pub fn register(&mut self, strategy: Arc<dyn Strategy>) -> Result<(), RegistryError> {
        let name = strategy.name();
        if name == AUTO || self.names().contains(&name) {
            return Err(RegistryError::Taken { name });
        }
        self.strategies.push(strategy);
        Ok(())
    }

    /// Notes the names of programs of the user's own, so that they are not taken for mistakes.
    pub fn announce(&mut self, names: impl IntoIterator<Item = String>) {
        self.custom.extend(names);
    }

    /// Every name.
    pub fn names(&self) -> Vec<&'static str> {
        self.strategies
            .iter()
            .map(|strategy| strategy.name())
            .collect()
    }

    /// Every strategy.
    pub fn all(&self) -> &[Arc<dyn Strategy>] {
        &self.strategies
    }

    /// The strategy of this name.
    pub fn get(&self, name: &str) -> Result<&Arc<dyn Strategy>, RegistryError> {
        let found = self
            .strategies
            .iter()
            .find(|strategy| strategy.name() == name);
        found.ok_or_else(
            || match is_class(name) || self.custom.iter().any(|one| one == name) {
                true => RegistryError::Custom {
                    name: name.to_owned(),
                },
                false => RegistryError::Unknown {
                    name: name.to_owned(),
                    known: self.names(),
                },
            },
        )
    }

    /// Checks that `name` is known; `auto` always is.
    pub fn check_name(&self, name: &str) -> Result<(), RegistryError> {
        match name {
            AUTO => Ok(()),
            name => self.get(name).map(drop),
        }
    }

    /// Checks that `name` is known, and that `kind` takes it; `auto` always is.
    pub fn check(&self, name: &str, kind: &ResourceType) -> Result<(), RegistryError> {
        if name == AUTO {
            return Ok(());
        }
        let name = self.get(name)?.name();
        if kind.allowed.iter().any(|one| one == name) {
            return Ok(());
        }
        Err(RegistryError::NotAllowed {
            name: name.to_owned(),
            kind: kind.name.clone(),
            allowed: kind.allowed.clone(),
        })
    }

    /// Whether a strategy works here, and what would not work for this original. Whether it works is asked once for one
    /// pair of file systems (rule S8); a limit is one of this original and is looked for each time.
    pub fn probe(&self, strategy: &Arc<dyn Strategy>, original: &Path, area: &Path) -> Probe {
        let mut answer = self.works(strategy, original, area);
        if answer.works {
            answer.limit = strategy.limit(original, LOOKED_AT);
        }
        answer
    }

    fn works(&self, strategy: &Arc<dyn Strategy>, original: &Path, area: &Path) -> Probe {
        let device = crate::fs::Dir::look;
        let key = match (device(original), device(area)) {
            (Ok(original), Ok(area)) => (strategy.name(), original.dev, area.dev),
            (Err(error), _) | (_, Err(error)) => {
                return Probe::no(format!("{error}: {}", error.cause));
            }
        };
        let asked = || self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = asked().get(&key) {
            return known.clone();
        }
        let answer = strategy.probe(original, area);
        asked().insert(key, answer.clone());
        answer
    }

    /// The strategy for a new sandbox: the one asked for, or for `auto` the first that works.
    pub fn choose(
        &self,
        requested: &str,
        kind: &ResourceType,
        original: &Path,
        area: &Path,
    ) -> Result<Choice, RegistryError> {
        self.check(requested, kind)?;
        let candidates = match requested {
            AUTO => kind.auto.iter().map(String::as_str).collect(),
            name => vec![name],
        };
        let mut probes = Vec::new();
        // What `auto` passes by because something would not work in it.
        let mut limited: Option<(Arc<dyn Strategy>, String)> = None;
        for name in candidates {
            let strategy = Arc::clone(self.get(name)?);
            let name = strategy.name();
            let probe = self.probe(&strategy, original, area);
            // What freezes the original copies it; asked for by name it does so wherever it is.
            let copies = strategy.capabilities().base == Base::Frozen;
            let serves = probe.works || (requested != AUTO && copies);
            let limit = probe.limit.clone();
            probes.push((name, probe));
            match limit {
                Some(limit) if serves && requested == AUTO => {
                    limited.get_or_insert((strategy, limit));
                }
                limit if serves => {
                    let passed_by = |(other, why): (Arc<dyn Strategy>, String)| {
                        format!("{name} was taken instead of {}: {why}", other.name())
                    };
                    return Ok(Choice {
                        strategy,
                        probes,
                        instead: None,
                        warning: limit.or(limited.map(passed_by)),
                    });
                }
                _ => {}
            }
        }
        if let Some((strategy, limit)) = limited {
            return Ok(Choice {
                strategy,
                probes,
                instead: None,
                warning: Some(limit),
            });
        }
        let reason = probes
            .last()
            .map_or("auto takes none of them; name one", |(_, probe)| {
                probe.reason.as_str()
            })
            .to_owned();
        if !kind.allowed.iter().any(|one| one == FALLBACK) {
            return Err(RegistryError::NothingWorks {
                kind: kind.name.clone(),
                reason,
            });
        }
        Ok(Choice {
            strategy: Arc::clone(self.get(FALLBACK)?),
            probes,
            instead: Some(format!("{requested} cannot be had here ({reason})")),
            warning: None,
        })
    }
}

/// Whether a name is that of a class in a module, `module:ClassName`.
pub fn is_class(name: &str) -> bool {
    let word = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && part.chars().all(plain)
    };
    name.split_once(':')
        .is_some_and(|(module, class)| module.split('.').all(word) && word(class))
}
