//! The strategies that count: those of the engine and of the configuration, in general and for each plan.
//!
//! Two plans may mean different programs by one name. Where they mean the same, they share it: one process for each strategy and
//! command.

use std::path::{Path, PathBuf};

use super::{Manager, ManagerOptions};
use crate::config::EffectiveConfig;
use crate::error::Result;
use crate::model::{PlanId, SandboxRef};
use crate::strategy::registry::{ClassPlace, DeclaredStrategy};
use crate::strategy::{ProgramContext, Registry};

/// What distinguishes the strategies of two plans.
#[derive(PartialEq)]
struct RegistryKey {
    declared: Vec<DeclaredStrategy>,
    untrusted: Vec<String>,
    place: Option<ClassPlace>,
}

/// Strategies, and for which configuration they count.
pub(super) struct EffectiveRegistry {
    key: RegistryKey,
    pub(super) registry: Registry,
}

impl EffectiveRegistry {
    /// The strategies of a configuration, with classes of Python started in `directory`.
    pub(super) fn new(
        effective: &EffectiveConfig,
        directory: Option<&Path>,
        options: &ManagerOptions,
        areas: &Path,
    ) -> Self {
        let key = RegistryKey::new(effective, directory);
        Self::of(key, options, areas)
    }

    fn of(key: RegistryKey, options: &ManagerOptions, areas: &Path) -> Self {
        let context = ProgramContext {
            scratch: areas.to_owned(),
            environment: options.environment.clone(),
        };
        let (declared, untrusted) = (&key.declared, key.untrusted.clone());
        let place = key.place.clone();
        let registry = options.registry.with(declared, untrusted, place, &context);
        Self { key, registry }
    }
}

impl RegistryKey {
    fn new(effective: &EffectiveConfig, directory: Option<&Path>) -> Self {
        // A class that the user's own file names is not one of the tree in which a command is typed.
        let searched = |directory: &Path| {
            let trusted = effective.trusted.iter().map(PathBuf::as_path);
            trusted.chain([directory]).map(Path::to_owned).collect()
        };
        Self {
            declared: effective.settings.declared_strategies(),
            untrusted: effective.ignored_programs(),
            place: directory.map(|directory| ClassPlace {
                directory: directory.to_owned(),
                searched: searched(directory),
            }),
        }
    }
}

impl Manager {
    /// The strategies there are where no plan is concerned.
    pub fn registry(&self) -> &Registry {
        &self.general.registry
    }

    /// The strategies among which is the one that made a sandbox. Those that come with the engine are the same for every
    /// plan: no configuration is looked for to list them.
    pub(super) fn registry_for(&self, sandbox: &SandboxRef) -> Result<&Registry> {
        let mut all = self.registry().registrations();
        let name = &sandbox.strategy_name;
        match all.any(|one| one.is_builtin() && one.name() == name) {
            true => Ok(self.registry()),
            false => self.registry_of(sandbox.plan_id),
        }
    }

    /// The strategies that count for a plan, as the configuration that it was made under declares them.
    pub(super) fn registry_of(&self, plan: PlanId) -> Result<&Registry> {
        let effective = self.effective(Some(plan))?;
        let stored = self.directory_of(plan)?;
        // One that is being made is that of the current directory.
        let here = self.options.sources.directory.as_deref();
        let directory = stored.as_ref().map(|stored| stored.as_path()).or(here);
        let key = RegistryKey::new(&effective, directory);
        if key == self.general.key {
            return Ok(&self.general.registry);
        }
        let known = self.of_plans.iter().find(|one| one.key == key);
        let found = match known {
            Some(known) => known,
            None => {
                let new = EffectiveRegistry::of(key, &self.options, self.areas.path());
                self.of_plans.push(new)
            }
        };
        Ok(&found.registry)
    }
}
