//! The entry point of the engine: plans, sandboxes and all operations on them, for the command line and for
//! programs.
//!
//! Every call can come from another process than the one before, also after a crash or a reboot:
//! whatever is needed is in the state store and in the sandboxes' areas (rule P3). One process at
//! a time changes a plan; its lock ends with it, however it ends. Everything that changes
//! something is recorded as an operation with its owner.
//!
//! | file | promise |
//! |---|---|
//! | `builder` | what the caller says, and defaults for the rest |
//! | `resources` | which real things there are, and which must not be touched |
//! | `configuration` | which configuration counts, in general and for each plan, and which files are trusted |
//! | `config_resources` | resources of the configuration become known when they are used |
//! | `plans` | plans by name, id or prefix, or the one of a directory |
//! | `project` | what a command works on that names no plan |
//! | `creation` | a plan is made with all its sandboxes, or not at all |
//! | `sandboxes` | which there are in a plan, and one more made once for a resource |
//! | `removal` | a plan goes as a whole, and from its first step on nothing else can be done with it |
//! | `content` | read, write, diff |
//! | `against` | two plans compared |
//! | `discard` | the changes of all sandboxes of a plan are discarded, or none |
//! | `strategies` | which strategies count, in general and for each plan |
//! | `runs` | a command inside the sandboxes of a plan |
//! | `injection` | which credentials are added to the requests of a command |
//! | `copied` | the same where no namespaces can be had |
//! | `opened` | a sandbox as a directory for programs that nothing confines |
//! | `commits` | commit, undo: all sandboxes of a plan or none |
//! | `recovery` | what a crashed process left is brought to an end, once for each call, before anything else |
//! | `validation` | commands of the configuration that a plan must pass before it is committed |
//! | `access` | every way in is authorized by the policy |
//! | `report` | one resource of a plan, and what is reported to a caller, in the fields that programs read |
//! | `agents` | a coding agent finds its login and its sessions, and plants nothing |
//! | `audit` | whatever is done or denied is in the log |
//! | `purge` | nothing of Escrow is left, where that is asked for |
//! | `garbage` | what finished work left goes, what is not finished never does |
//! | `disk` | how much of the disk plans take |
//! | `status` | what there is and what works here, without changing anything |

mod access;
mod against;
mod agents;
mod apart;
mod asked;
mod audit;
mod both_sides;
mod builder;
mod caches;
mod checkpoints;
mod commits;
mod concealment;
mod config_resources;
mod configuration;
mod content;
mod copied;
mod creation;
mod discard;
mod disk;
mod garbage;
mod injection;
mod namespace_options;
mod network;
mod opened;
mod plans;
mod project;
mod prompts;
mod purge;
mod recovery;
mod removal;
mod report;
mod resources;
mod runs;
mod sandboxes;
mod scratch;
mod sessions;
mod status;
mod strategies;
mod undoing;
mod validation;
mod variables;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use against::PlanComparison;
pub use agents::{AgentChoice, AgentHomeChoice, InstalledAgent};
pub use both_sides::ComparedSides;
pub use builder::Builder;
pub use checkpoints::RestoreOutcome;
pub use commits::{CommitReport, CommitRequest};
pub use configuration::ExaminedConfig;
pub use content::{PlanDiff, ResourceDiff};
pub use discard::DiscardedSandbox;
pub use disk::DiskUsage;
pub use garbage::{GarbageReport, GarbageRequest, KeptLeftover, Leftover, LeftoverKind, Orphan};
pub use plans::PlanView;
pub use project::Project;
pub use purge::PurgeReport;
pub use removal::CleanupReport;
pub use report::ResourceHandle;
pub use resources::NewResource;
pub use runs::RunRequest;
pub use sandboxes::{SandboxCreation, SandboxView};
pub use status::{DoctorReport, RunningOperation, StatusReport, StrategyVerdict, UnfinishedWork};

pub use crate::fs::Resolver;

use super::failpoints;
use super::fs::state_dir::{self, Lock, ScratchDir};
use crate::config::{ConfigSources, LoadedConfigs, Settings};
use crate::error::{Error, Result};
use crate::fs::Dir;
use crate::fs::workspace::{GivenUp, Workspaces, keep_ballast};
use crate::model::growing::Growing;
use crate::model::text::Location;
use crate::model::{IdSource, PlanId, PlanState, Retention, SandboxId};
use crate::policy::Policy;
use crate::run::Console;
use crate::store::{Plan, Store};
use crate::strategy::Registry;
use crate::strategy::registry::RegistryError;
use configuration::ConfigState;
use strategies::EffectiveRegistry;

/// What a manager is given; it asks the environment for nothing.
pub struct ManagerOptions {
    /// The directory of all state; made where it is missing.
    pub home: PathBuf,
    /// The time and fresh ids.
    pub origin: Arc<dyn IdSource>,
    /// The strategies there are.
    pub registry: Registry,
    /// Who asks.
    pub principal: String,
    /// What is permitted to whom, whatever the configuration says: it can only permit less.
    pub policy: Policy,
    /// The strategy of resources that ask for none; `auto` leaves it to the configuration.
    pub strategy: String,
    /// The user's own home directory, which must not be a resource as a whole.
    pub user_home: Option<PathBuf>,
    /// How long to wait for another process that works on the same plan.
    pub patience: Duration,
    /// What counts where no configuration says anything else.
    pub settings: Settings,
    /// How long what is finished stays, unless a configuration says something else.
    pub keep: Retention,
    /// Where configurations may be.
    pub sources: ConfigSources,
    /// The program that becomes the way into the sandboxes, and answers commands inside: `escrow`, or one that passes its
    /// words on to it.
    pub helper: PathBuf,
    /// The environment of commands, of which those inside get what does not lead out.
    pub environment: Vec<(OsString, OsString)>,
    /// What commands share with this process.
    pub console: Arc<dyn Console>,
}

/// The file of the state store in a home.
const STATE: &str = "state.db";

/// The engine, opened on one home.
pub struct Manager {
    options: ManagerOptions,
    home: Dir,
    areas: Dir,
    locks: Dir,
    store: Store,
    configured: ConfigState,
    /// The strategies there are where no plan is concerned.
    general: EffectiveRegistry,
    /// Those of plans for which others count.
    of_plans: Growing<EffectiveRegistry>,
    notices: Mutex<Vec<String>>,
    /// Whether something was done that is in the log.
    changed: AtomicBool,
    // Last: what the store takes while it is open is free then.
    given_up: GivenUp,
}

impl Manager {
    /// Opens the state in `options.home`, which is made and brought to the present version. A
    /// configuration that cannot be used is an error before that.
    pub fn open(mut options: ManagerOptions) -> Result<Self> {
        let loaded = LoadedConfigs::read(&options.sources, &options.home, &options.registry)?;
        let home = state_dir::make_all(&options.home)?;
        let areas = state_dir::room(&home, b"sandboxes")?;
        let locks = state_dir::room(&home, b"locks")?;
        let store = Store::open(&home.path().join(STATE))?;
        keep_ballast(&home);
        options.registry.remember_in(&home.path().join("memory"));
        let (helper, environment) = (&options.helper, &options.environment);
        options.registry.host_by(helper, environment);
        options.registry = loaded.outer_strategies(&options.registry);
        let configured = ConfigState::settle(loaded, &options, &store)?;
        let here = options.sources.directory.as_deref();
        let general = EffectiveRegistry::new(&configured.general, here, &options, areas.path());
        let manager = Self {
            options,
            home,
            areas,
            locks,
            store,
            configured,
            general,
            of_plans: Growing::default(),
            notices: Mutex::default(),
            changed: AtomicBool::new(false),
            given_up: GivenUp::default(),
        };
        manager.tell_files();
        let strategy = manager.usual_strategy(&manager.configured.general);
        match manager.registry().check_name(&strategy) {
            // Who uses it is reported; the rest goes on.
            Ok(()) | Err(RegistryError::Untrusted { .. }) => Ok(manager),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory of all state.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Why others could put another directory in the place of that one; `None` where they cannot.
    pub fn state_risk(&self) -> Option<String> {
        let open = state_dir::open_above(self.home())?;
        let (home, open) = (Location::from(self.home()), Location::from(open));
        Some(format!(
            "everybody may exchange what lies in '{open}', also the state of Escrow in '{home}': `chmod o-w` it, or let `ESCROW_HOME` name a \
             directory elsewhere"
        ))
    }

    fn workspaces(&self) -> Workspaces<'_> {
        Workspaces {
            home: &self.home,
            own: &self.areas,
        }
    }

    /// Makes room for what frees space, such as a cleanup: where the file system of the home is nearly full, the
    /// ballast is given up before anything fails for want of a few blocks, or of a file. It is put by again when this
    /// manager goes.
    fn make_room_to_clean(&self) -> Result<()> {
        match failpoints::bug("ballast-kept") {
            true => Ok(()),
            false => Ok(self.given_up.ballast(&self.home)?),
        }
    }

    /// The same on the file systems of the areas of a plan that lie beside their originals.
    fn make_room_for(&self, plan: PlanId) -> Result<()> {
        let sandboxes = self.store.sandboxes(Some(plan))?.into_iter();
        let commits = self.store.commit_areas_of(plan)?.into_iter();
        let areas = sandboxes.map(|one| one.area);
        for area in areas.chain(commits.filter_map(|one| Some(one.area?.1))) {
            match self.given_up.reserve(area.as_path()) {
                // What is out of reach is reported by what needs it, and stops nothing else (rule C17).
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// A temporary directory, among the engine's own.
    pub fn scratch(&self) -> Result<ScratchDir> {
        let unique = SandboxId::new(&*self.options.origin).to_string();
        Ok(ScratchDir::make(self.areas.again(), "scratch-", &unique)?)
    }

    /// Whether something was done so far that is in the log, whatever else failed.
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// What happened beside what was asked for, since this was last asked.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notices)
    }

    fn notice(&self, text: String) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if !notices.contains(&text) {
            notices.push(text);
        }
    }

    /// Takes the lock of a plan, and does nothing else: shared to look, alone to change.
    fn lock(&self, plan: &Plan, shared: bool) -> Result<Lock> {
        let name = plan.id.to_string();
        match Lock::take(&self.locks, name.as_bytes(), shared, self.options.patience)? {
            Some(lock) => Ok(lock),
            None => Err(Error::Busy {
                plan: plan.name.clone(),
                owner: self.owner_of(plan.id)?,
            }),
        }
    }

    /// The same for a plan that must be open, with nothing left to be brought to an end. Recovery is the business of
    /// [`begin_call`](Self::begin_call).
    fn lock_open(&self, plan: &Plan, shared: bool) -> Result<Lock> {
        if plan.state != PlanState::Open {
            return Err(self.not_open(plan, Some(plan.state))?);
        }
        let lock = self.lock(plan, shared)?;
        self.check_open(plan, lock)
    }

    /// Refuses a plan that is not open, looked at under its lock: it may have been cleaned up meanwhile.
    fn check_open(&self, plan: &Plan, lock: Lock) -> Result<Lock> {
        let state = self.store.plan(plan.id)?.map(|now| now.state);
        if state == Some(PlanState::Open) {
            self.check_unfinished(plan)?;
            return Ok(lock);
        }
        // The lock that we made in its absence goes again; only who is alone may remove one.
        drop(lock);
        let name = plan.id.to_string();
        if let Some(lock) = Lock::take(&self.locks, name.as_bytes(), false, Duration::ZERO)? {
            lock.remove(&self.locks, name.as_bytes())?;
        }
        Err(self.not_open(plan, state)?)
    }

    /// Why nothing can be done with a plan in this state; `None`: it is there no more.
    fn not_open(&self, plan: &Plan, state: Option<PlanState>) -> Result<Error> {
        let over = |state| Error::PlanOver {
            plan: plan.name.clone(),
            state,
        };
        match state {
            None if plan.state == PlanState::Creating => Ok(Error::UnknownPlan {
                name: plan.name.clone(),
            }),
            None => Ok(over(PlanState::CleanedUp)),
            Some(state) if state.is_half() => {
                let name = plan.id.to_string();
                let limit = Duration::ZERO;
                match Lock::take(&self.locks, name.as_bytes(), true, limit)? {
                    None => Ok(Error::Busy {
                        plan: plan.name.clone(),
                        owner: self.owner_of(plan.id)?,
                    }),
                    Some(_) => Ok(half(&Plan {
                        state,
                        ..plan.clone()
                    })),
                }
            }
            Some(state) => Ok(over(state)),
        }
    }

    fn owner_of(&self, plan: PlanId) -> Result<Option<String>> {
        let running = self.store.running()?;
        let found = running
            .iter()
            .find(|operation| operation.plan_id == Some(plan));
        Ok(found.map(|operation| {
            format!(
                "process {} does '{}'",
                operation.owner.pid, operation.action
            )
        }))
    }

    fn is_open(&self, plan: PlanId) -> Result<bool> {
        let plan = self.store.plan(plan)?;
        Ok(plan.is_some_and(|plan| plan.state == PlanState::Open))
    }
}

/// Why nothing can be done with a plan that is half made or half removed.
fn half(plan: &Plan) -> Error {
    let name = plan.name.clone();
    match plan.state {
        PlanState::Creating => Error::HalfMade { plan: name },
        _ => Error::HalfRemoved { plan: name },
    }
}
