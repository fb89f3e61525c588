//! The strategy registry: the only way to a strategy, by its name (rules P1, P7).
//!
//! Several strategies may share one name where they serve different types of resources: `snapshot` is one thing for a
//! directory and another for a database. The type of the resource chooses ([`Registry::serving`]), and the reference to a sandbox
//! says which one made it ([`Registry::of`]).
//!
//! Strategies of the configuration are laid over those that there are ([`Registry::with`]): programs, which are started when they
//! are first asked for and not before (rule X3), and other names of strategies. A class of Python, `module:ClassName`, is a program
//! without being declared.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::moves::MoveLog;
use super::overlay::Overlay;
use super::plugin::{PluginError, ProgramContext, ProgramLaunch, ProgramSpec, PythonClass};
pub use super::registration::{DeclaredStrategy, Fallback, Registration};
use super::subvolume::Subvolume;
use super::tree_strategy::TreeStrategy;
use super::{Probe, Remember, Strategy, Target, TargetLocation};
use super::{copy_on_write, filesystem_copy, git, none, postgres, sql};
use crate::model::growing::Growing;
pub use crate::model::resource::AUTO;
use crate::model::resource::{FS_DIRECTORY, FS_FILE, FS_MOUNT, GIT_CHECKOUT, POSTGRES, SQLITE};
use crate::model::{ResourceType, SandboxRef};

/// The verbs that every strategy serves (rule P2).
pub const VERBS: [&str; 9] = [
    "create",
    "read",
    "write",
    "diff",
    "commit",
    "rollback",
    "checkpoint",
    "restore_checkpoint",
    "cleanup",
];

/// The key of a sandbox's metadata that says which of several strategies of one name made it: the first type it serves.
const SERVES: &str = "serves";

/// Why a name leads to no strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It is not registered.
    #[error("there is no strategy '{name}'")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
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
    /// A file that is not trusted declares it.
    #[error(
        "the strategy '{name}' is declared in a file that you do not trust, so it does not count"
    )]
    Untrusted {
        /// The name that was asked for.
        name: String,
    },
    /// It is a program, and that cannot be used.
    #[error(transparent)]
    Program(Box<PluginError>),
    /// Of what the type of the resource takes, nothing works here.
    #[error("cannot make a sandbox of {kind} '{name}': {reason}")]
    NothingWorks {
        /// The resource.
        name: String,
        /// The type of the resource.
        kind: String,
        /// What the last one answered.
        reason: String,
    },
    /// The name is taken.
    #[error("a strategy '{name}' is registered already")]
    Taken {
        /// The name.
        name: String,
    },
    /// It lacks verbs that every strategy serves.
    #[error("the strategy '{name}' cannot be registered: it lacks {}", missing.join(", "))]
    Incomplete {
        /// The name.
        name: String,
        /// The verbs.
        missing: Vec<String>,
    },
}

/// A strategy that was chosen, and why.
pub struct StrategyChoice {
    /// It.
    pub strategy: Arc<dyn Strategy>,
    /// What every candidate answered, in the order they were asked.
    pub probes: Vec<(String, Probe)>,
    /// Set where it is not the one that was asked for by name.
    pub instead: Option<String>,
    /// What will not work in the sandbox, or why `auto` did not take one in which it would not.
    pub warning: Option<String>,
}

/// A question that was asked already: of which strategy and of those of its name which one, about which resource, with its
/// area in which directory.
type ProbeCache = (String, Option<String>, TargetLocation, Option<PathBuf>);

/// All strategies there are.
pub struct Registry {
    strategies: Vec<Registration>,
    /// Names that a file declares that is not trusted.
    untrusted: Vec<String>,
    /// Where classes of Python are started, and those that were asked for. Without a place there are none.
    place: Option<(ClassPlace, ProgramContext)>,
    classes: Growing<Registration>,
    moves: Arc<MoveLog>,
    host: postgres::SharedHost,
    asked: Mutex<HashMap<ProbeCache, Probe>>,
}

/// Where classes of Python are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassPlace {
    /// The directory in which they are started.
    pub directory: PathBuf,
    /// The directories in which their modules are searched, after what is installed.
    pub searched: Vec<PathBuf>,
}

impl Registry {
    /// The strategies that come with the engine, strongest first.
    pub fn builtin() -> Self {
        let copying = |strategy| Registration::new(strategy).or(Fallback::Anyway);
        let copy = Fallback::Use("filesystem_copy".to_owned());
        let moves = Arc::default();
        let reflinks: Arc<dyn Strategy> = Arc::new(copy_on_write::CopyOnWrite::new(&moves));
        let full: Arc<dyn Strategy> = Arc::new(filesystem_copy::FilesystemCopy::new(&moves));
        let layers: Arc<dyn Strategy> = Arc::new(TreeStrategy::<Overlay>::new(&moves));
        let below = [&layers, &reflinks, &full].map(Arc::clone);
        let checkout = git::GitWorktree::new(below.to_vec());
        let snapshots = TreeStrategy::<Subvolume>::new(&moves);
        let host = postgres::SharedHost::default();
        let held = postgres::HeldTransaction::new(Arc::clone(&host));
        let locked = sql::SqliteTransaction::new(Arc::clone(&host));
        let clones = postgres::Clones::new(Arc::clone(&host));
        let direct = postgres::Direct::new(Arc::clone(&host));
        Self {
            strategies: vec![
                Registration::new(Arc::new(checkout)).or(Fallback::Auto),
                Registration::new(Arc::new(snapshots)).only_for(&[
                    FS_DIRECTORY,
                    FS_MOUNT,
                    GIT_CHECKOUT,
                ]),
                copying(reflinks),
                Registration::new(Arc::new(sql::SqliteSnapshot::snapshot())).only_for(&[SQLITE]),
                copying(full).only_for(&[FS_DIRECTORY, FS_MOUNT, FS_FILE, GIT_CHECKOUT]),
                Registration::new(Arc::new(sql::SqliteSnapshot::full_copy())).only_for(&[SQLITE]),
                Registration::new(layers).or(copy),
                Registration::new(Arc::new(held)).only_for(&[POSTGRES]),
                Registration::new(Arc::new(locked)).only_for(&[SQLITE]),
                Registration::new(Arc::new(clones)).only_for(&[POSTGRES]),
                Registration::new(Arc::new(none::NoIsolation)).only_for(&[
                    FS_DIRECTORY,
                    FS_MOUNT,
                    FS_FILE,
                    GIT_CHECKOUT,
                    SQLITE,
                ]),
                Registration::new(Arc::new(direct)).only_for(&[POSTGRES]),
            ],
            moves,
            host,
            untrusted: Vec::new(),
            place: None,
            classes: Growing::default(),
            asked: Mutex::default(),
        }
    }

    /// The same with the strategies of a configuration. `untrusted` are names that do not count.
    pub fn with(
        &self,
        declared: &[DeclaredStrategy],
        untrusted: Vec<String>,
        place: Option<ClassPlace>,
        context: &ProgramContext,
    ) -> Self {
        let mut strategies = self.strategies.clone();
        for one in declared {
            // What an inner file says takes the place of what an outer one says.
            let name = one.name();
            strategies.retain(|known| known.is_builtin() || known.name() != name);
            match one {
                DeclaredStrategy::Program(spec) => {
                    strategies.push(Registration::program(spec.clone(), context));
                }
                DeclaredStrategy::Alias { name, of } => {
                    let meant = strategies.iter().filter(|one| one.name() == of);
                    let renamed: Vec<_> = meant.map(|meant| meant.alias(name)).collect();
                    strategies.extend(renamed);
                }
            }
        }
        let classes = Growing::default();
        // Those that are meant by a name that is stored are found when they are asked for.
        let place = place.map(|place| (place, context.clone()));
        Self {
            strategies,
            untrusted,
            place,
            classes,
            moves: Arc::clone(&self.moves),
            host: Arc::clone(&self.host),
            asked: Mutex::default(),
        }
    }

    /// Where the strategies that come with the engine keep what they remember between processes, for as long as any sandbox
    /// or any commit that can be undone exists.
    pub fn remember_in(&self, directory: &Path) {
        self.moves.keep_in(directory);
    }

    /// Makes durable what they remember; before a commit, or what took one back, is over.
    pub fn remember(&self) -> super::Result<()> {
        self.moves.store()
    }

    /// What strategies that start processes, and connect to servers, take from the caller: the program that becomes a process
    /// of theirs, and the environment with addresses and passwords of servers.
    pub fn host_by(&self, helper: &Path, environment: &[(OsString, OsString)]) {
        let mut host = self.host.write().unwrap_or_else(PoisonError::into_inner);
        *host = postgres::Host::new(helper, environment);
    }

    /// Forgets that: there is no sandbox, and no commit that can be undone.
    pub fn forget(&self) -> super::Result<()> {
        self.moves.forget()
    }

    /// Adds one of the caller's own, if it serves every verb (rule P2).
    pub fn register(&mut self, new: Registration) -> Result<(), RegistryError> {
        let name = new.strategy.name().to_owned();
        let lacks = |verb: &&str| !new.verbs.iter().any(|served| served == verb);
        let missing: Vec<String> = VERBS.into_iter().filter(lacks).map(str::to_owned).collect();
        if !missing.is_empty() {
            return Err(RegistryError::Incomplete { name, missing });
        }
        if name == AUTO || self.strategies.iter().any(|one| one.collides(&new)) {
            return Err(RegistryError::Taken { name });
        }
        self.strategies.push(new);
        Ok(())
    }

    /// Every name, once.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for one in &self.strategies {
            if !names.iter().any(|name| name == one.name()) {
                names.push(one.name().to_owned());
            }
        }
        names
    }

    /// Every strategy as it is registered.
    pub fn registrations(&self) -> impl Iterator<Item = &Registration> {
        self.strategies.iter()
    }

    /// The first strategy of this name: for questions that those of one name answer alike, such as whether it isolates.
    pub fn get(&self, name: &str) -> Result<&Arc<dyn Strategy>, RegistryError> {
        self.named(name)?.ready()
    }

    /// What is registered under a name; nothing is started. A class of Python is a program without being declared.
    pub fn named(&self, name: &str) -> Result<&Registration, RegistryError> {
        let known = self.strategies.iter().chain(self.classes.iter());
        let mut known = known.filter(|one| one.name() == name);
        if let Some(found) = known.next() {
            return Ok(found);
        }
        match &self.place {
            Some((place, context)) if is_class(name) => {
                let spec = ProgramSpec {
                    name: name.to_owned(),
                    launch: ProgramLaunch::Class(PythonClass {
                        name: name.to_owned(),
                        first: Vec::new(),
                        last: place.searched.clone(),
                    }),
                    directory: place.directory.clone(),
                    options: serde_json::Map::new(),
                    env: std::collections::BTreeMap::new(),
                    limits: std::collections::BTreeMap::new(),
                };
                Ok(self.classes.push(Registration::program(spec, context)))
            }
            _ if self.untrusted.iter().any(|one| one == name) => Err(RegistryError::Untrusted {
                name: name.to_owned(),
            }),
            _ => Err(RegistryError::Unknown {
                name: name.to_owned(),
                known: self.names(),
            }),
        }
    }

    /// What may have begun to make a sandbox for which `wanted` was asked for: everything that is no program, and the program of
    /// that name, or, where the choice was left to the machine, those among which it chooses.
    pub fn may_have_begun(&self, wanted: &str, kind: Option<&ResourceType>) -> Vec<&Registration> {
        let auto = |name: &str| {
            let mut among = kind.into_iter().flat_map(|kind| &kind.auto);
            wanted == AUTO && among.any(|one| one == name)
        };
        let asked =
            |one: &&Registration| !one.is_program() || one.name() == wanted || auto(one.name());
        let classes = self.named(wanted).ok().filter(|_| is_class(wanted));
        self.strategies
            .iter()
            .filter(asked)
            .chain(classes)
            .collect()
    }

    /// The strategy of this name for resources of type `kind`.
    pub fn serving(
        &self,
        name: &str,
        kind: &ResourceType,
    ) -> Result<&Arc<dyn Strategy>, RegistryError> {
        self.registered(name, kind)?.ready()
    }

    /// The strategy that made a sandbox.
    pub fn of(&self, sandbox: &SandboxRef) -> Result<&Arc<dyn Strategy>, RegistryError> {
        let name = &sandbox.strategy_name;
        let served = sandbox.metadata.get(SERVES).and_then(|said| said.as_str());
        let mut all = self.strategies.iter();
        let found =
            all.find(|one| one.name() == name && one.types.first().map(String::as_str) == served);
        found.map_or_else(|| self.named(name), Ok)?.ready()
    }

    /// Notes in the reference to a sandbox which of the strategies of its name made it.
    pub fn mark(&self, made_by: &Arc<dyn Strategy>, sandbox: &mut SandboxRef) {
        let first = self.first_type(made_by);
        if let (Some(first), Some(metadata)) = (first, sandbox.metadata.as_object_mut()) {
            metadata.insert(SERVES.to_owned(), first.into());
        }
    }

    fn first_type(&self, strategy: &Arc<dyn Strategy>) -> Option<String> {
        let mut all = self.strategies.iter();
        let found = all.find(|one| Arc::ptr_eq(&one.strategy, strategy));
        found.and_then(|one| one.types.first().cloned())
    }

    fn registered(&self, name: &str, kind: &ResourceType) -> Result<&Registration, RegistryError> {
        let first = self.named(name)?;
        let mut all = self.strategies.iter().chain([first]);
        let found = all.find(|one| one.name() == name && one.serves(&kind.base));
        found.ok_or_else(|| not_allowed(name, kind))
    }

    /// Checks that `name` is known; `auto` always is.
    pub fn check_name(&self, name: &str) -> Result<(), RegistryError> {
        match name {
            AUTO => Ok(()),
            name => self.named(name).map(drop),
        }
    }

    /// Checks that `name` is known, and that `kind` takes it; `auto` always is.
    pub fn check(&self, name: &str, kind: &ResourceType) -> Result<(), RegistryError> {
        if name == AUTO {
            return Ok(());
        }
        let one = self.registered(name, kind)?;
        one.ready()?;
        match one.is_taken_by(kind) {
            true => Ok(()),
            false => Err(not_allowed(name, kind)),
        }
    }

    /// Whether a strategy works for a resource, with its area in `area`. An answer is given again where it says that
    /// it may be (rule S8).
    pub fn probe(
        &self,
        strategy: &Arc<dyn Strategy>,
        target: &Target,
        area: Option<&Path>,
    ) -> Probe {
        let beside = area.and_then(Path::parent).map(Path::to_owned);
        let (name, first) = (strategy.name().to_owned(), self.first_type(strategy));
        let key = (name, first, target.location.clone(), beside);
        let asked = || self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = asked().get(&key) {
            return known.clone();
        }
        let answer = strategy.probe(target, area);
        if answer.remember == Remember::ForTarget {
            asked().insert(key, answer.clone());
        }
        answer
    }

    /// The strategy for a new sandbox: the one asked for, or for `auto` the first that works.
    pub fn choose(
        &self,
        requested: &str,
        kind: &ResourceType,
        target: &Target,
        area: Option<&Path>,
    ) -> Result<StrategyChoice, RegistryError> {
        self.check(requested, kind)?;
        let candidates: Vec<&str> = match requested {
            AUTO => kind.auto.iter().map(String::as_str).collect(),
            name => vec![name],
        };
        let mut probes = Vec::new();
        // What `auto` passes by because something would not work in it.
        let mut limited: Option<(Arc<dyn Strategy>, String)> = None;
        for name in &candidates {
            let strategy = Arc::clone(self.serving(name, kind)?);
            let probe = self.probe(&strategy, target, area);
            let (works, limit) = (probe.works, probe.limit.clone());
            probes.push(((*name).to_owned(), probe));
            match limit {
                _ if !works => {}
                Some(limit) if requested == AUTO => {
                    limited.get_or_insert((strategy, limit));
                }
                limit => {
                    let passed_by = |(other, why): (Arc<dyn Strategy>, String)| {
                        format!("{name} was taken instead of {}: {why}", other.name())
                    };
                    return Ok(StrategyChoice {
                        strategy,
                        probes,
                        instead: None,
                        warning: limit.or(limited.map(passed_by)),
                    });
                }
            }
        }
        if let Some((strategy, limit)) = limited {
            return Ok(StrategyChoice {
                strategy,
                probes,
                instead: None,
                warning: Some(limit),
            });
        }
        self.fall_back(
            requested,
            kind,
            (target, area),
            candidates.last().copied(),
            probes,
        )
    }

    /// What is used where no probe said yes, as the last one that was asked declares.
    fn fall_back(
        &self,
        requested: &str,
        kind: &ResourceType,
        (target, area): (&Target, Option<&Path>),
        last: Option<&str>,
        mut probes: Vec<(String, Probe)>,
    ) -> Result<StrategyChoice, RegistryError> {
        let reason = probes.last().map(|(_, probe)| probe.reason.clone());
        let reason = reason.unwrap_or_else(|| "auto takes none of them; name one".to_owned());
        let nothing = |reason| RegistryError::NothingWorks {
            name: target.name.clone(),
            kind: kind.name.clone(),
            reason,
        };
        let Some(last) = last else {
            return Err(nothing(reason));
        };
        let name = match &self.registered(last, kind)?.fallback {
            Fallback::Auto => {
                let mut without = kind.clone();
                without.auto.retain(|name| name != last);
                let mut choice = self.choose(AUTO, &without, target, area)?;
                choice.instead = Some(format!("{requested} does not work here ({reason})"));
                probes.append(&mut choice.probes);
                return Ok(StrategyChoice { probes, ..choice });
            }
            Fallback::Anyway => last,
            Fallback::Use(other) if kind.allowed.contains(other) => other,
            _ => return Err(nothing(reason)),
        };
        let (strategy, other) = (Arc::clone(self.serving(name, kind)?), name != requested);
        // What is used instead may have to be replaced itself.
        if name != last && matches!(self.registered(name, kind)?.fallback, Fallback::Use(_)) {
            let probe = self.probe(&strategy, target, area);
            let works = probe.works;
            probes.push((name.to_owned(), probe));
            if !works {
                return self.fall_back(requested, kind, (target, area), Some(name), probes);
            }
        }
        Ok(StrategyChoice {
            strategy,
            probes,
            instead: other.then(|| format!("{requested} does not work here ({reason})")),
            warning: None,
        })
    }

    /// The strongest of the strategies that several resources ask for, where they share one sandbox of type `kind`;
    /// those that it does not allow, and `auto`, ask for nothing.
    pub fn strongest<'n>(
        &self,
        wanted: impl IntoIterator<Item = &'n str>,
        kind: &ResourceType,
    ) -> Option<&'n str> {
        let allowed = wanted
            .into_iter()
            .filter(|name| *name != AUTO && self.check(name, kind).is_ok());
        let strength = |name: &&str| {
            let served = self.serving(name, kind);
            served.map_or(0, |one| one.capabilities().strength)
        };
        allowed.max_by_key(strength)
    }
}

fn not_allowed(name: &str, kind: &ResourceType) -> RegistryError {
    RegistryError::NotAllowed {
        name: name.to_owned(),
        kind: kind.name.clone(),
        allowed: kind.allowed.clone(),
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
