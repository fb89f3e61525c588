//! The configuration that counts, in general and for each plan, and the files that the user trusts.
//!
//! A plan is bound to one project's configuration, or to none: the one that the user named, else the nearest
//! upward from its first resource, else the nearest upward from where it is made. The content is kept in the state
//! store, and counts for the plan wherever a command is typed. Where the file says something else by now, both
//! count: of what it says now only what tightens, unless the user trusts it; then it counts instead. The same holds of a
//! file that appears where there was none. Every other project that a command touches, by a resource of the plan or by the
//! current directory, adds its policy.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::permitted;
use super::audit::OperationSubject;
use super::{Manager, ManagerOptions};
use crate::config::{
    ConfigError, ConfigLevel, ConfigOrigin, EffectiveConfig, IgnoredKey, LoadedConfigs, PassedOver,
    RunDefaults, Settings, Validation, resolved,
};
use crate::error::{Error, Result, chain};
use crate::model::text::Location;
use crate::model::{Action, PlanId, Scope};
use crate::policy::{Policy, ResultingEntry};
use crate::store::{Plan, PlanConfig, Resource, Store, TrustedConfig};
use crate::strategy::registry::AUTO;

/// What was read when the manager was opened, and what it comes to.
pub(super) struct ConfigState {
    loaded: LoadedConfigs,
    /// What counts where no plan is concerned.
    pub(super) general: Arc<EffectiveConfig>,
    plans: Mutex<HashMap<PlanId, Arc<EffectiveConfig>>>,
    /// Where plans were made, which stays.
    directories: Mutex<HashMap<PlanId, Location>>,
    /// Which keys of which files were reported to the caller; of a file as a whole, with an empty key.
    told: Mutex<HashSet<(Location, String)>>,
}

/// A configuration that may be trusted, as it was read.
#[derive(Debug)]
pub struct ExaminedConfig {
    /// Where it is.
    pub file: Location,
    /// The digest of its content.
    pub digest: String,
    /// Its content.
    pub content: Vec<u8>,
    /// What it would loosen.
    pub loosens: Vec<IgnoredKey>,
    /// What was trusted of this file last, if anything was.
    pub before: Option<TrustedConfig>,
}

impl ExaminedConfig {
    /// Whether this very content is trusted already.
    pub fn is_trusted(&self) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| before.digest == self.digest)
    }
}

impl ConfigState {
    /// Decides what counts of the files that were read.
    pub(super) fn settle(
        loaded: LoadedConfigs,
        options: &ManagerOptions,
        store: &Store,
    ) -> Result<Self> {
        let mut general = outermost(&loaded, options);
        if let Some(level) = &loaded.project {
            general.lay(level, is_trusted(level, store)?, &options.registry);
        }
        Ok(Self {
            loaded,
            general: Arc::new(general),
            plans: Mutex::default(),
            directories: Mutex::default(),
            told: Mutex::default(),
        })
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<PlanId, Arc<EffectiveConfig>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller is to be told of a key now, because that was not done yet.
    fn is_news(&self, file: &Location, key: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert((file.clone(), key.to_owned()))
    }
}

/// What the caller, the system and the user say: nothing below can relax their policies.
fn outermost(loaded: &LoadedConfigs, options: &ManagerOptions) -> EffectiveConfig {
    let settings = Settings {
        cleanup: options.keep.cleanup,
        undo_keep: options.keep.undo,
        ..options.settings.clone()
    };
    let mut outermost = EffectiveConfig::new(settings, options.policy.clone());
    for level in [&loaded.system, &loaded.user].into_iter().flatten() {
        outermost.lay(level, true, &options.registry);
    }
    outermost
}

/// Whether all of a project's file counts: the user named it, or trusts its content and no other process can change it.
fn is_trusted(level: &ConfigLevel, store: &Store) -> Result<bool> {
    Ok(level.origin != ConfigOrigin::Found
        || (level.shared.is_none() && store.is_trusted_config(&level.file, &level.digest)?))
}

impl Manager {
    /// What the configuration says where no plan is concerned.
    pub fn settings(&self) -> &Settings {
        &self.configured.general.settings
    }

    /// What the configuration says for a plan: the one it was made under counts, wherever this is asked.
    pub fn settings_of(&self, plan: &Plan) -> Result<Settings> {
        Ok(self.effective(Some(plan.id))?.settings.clone())
    }

    /// What counts, for a plan if one is concerned.
    pub(super) fn effective(&self, plan: Option<PlanId>) -> Result<Arc<EffectiveConfig>> {
        let Some(plan) = plan else {
            return Ok(Arc::clone(&self.configured.general));
        };
        if let Some(effective) = self.configured.plans().get(&plan) {
            return Ok(Arc::clone(effective));
        }
        let resources = self.resources_of(plan)?;
        self.settle_plan(plan, &self.own_levels(plan, &resources)?, &resources)
    }

    /// Where a plan was made; none while it is being made.
    pub(super) fn directory_of(&self, plan: PlanId) -> Result<Option<Location>> {
        let known = self.configured.directories.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = known.get(&plan) {
            return Ok(Some(directory.clone()));
        }
        let stored = self.store.plan(plan)?.map(|plan| plan.directory);
        known.extend(stored.clone().map(|directory| (plan, directory)));
        Ok(stored)
    }

    fn resources_of(&self, plan: PlanId) -> Result<Vec<Resource>> {
        let members = self.store.plan_members(plan)?.into_iter();
        Ok(members.map(|(_, resource)| resource).collect())
    }

    /// Decides what counts for a plan with these resources, for as long as this manager lives.
    pub(super) fn settle_plan(
        &self,
        plan: PlanId,
        own: &[(ConfigLevel, bool)],
        resources: &[Resource],
    ) -> Result<Arc<EffectiveConfig>> {
        let registry = &self.options.registry;
        let mut effective = outermost(&self.configured.loaded, &self.options);
        let mut known = Vec::new();
        for (level, trusted) in own {
            effective.lay(level, *trusted, registry);
            known.push(level.file.clone());
        }
        let here = self.configured.loaded.project.as_ref();
        let here = here.filter(|level| !known.contains(&level.file));
        let mut others: Vec<ConfigLevel> = here.into_iter().cloned().collect();
        for resource in resources {
            known.extend(others.last().map(|level| level.file.clone()));
            let Some(root) = resource.root() else {
                continue;
            };
            match self.search(root, &known) {
                Ok(found) => others.extend(found),
                Err(error) if self.options.sources.lenient => self.pass_over(&error.passed_over()),
                // It may hold a policy, so it denies everything.
                Err(error) => {
                    let policy = Policy::unreadable(&error);
                    effective.policies.add(error.file, policy, false);
                }
            }
        }
        for other in others {
            let trusted = is_trusted(&other, &self.store)?;
            match other.origin {
                ConfigOrigin::Found => effective.lay_rules(&other, trusted, registry),
                _ => effective.lay(&other, trusted, registry),
            }
        }
        let effective = Arc::new(effective);
        self.configured.plans().insert(plan, Arc::clone(&effective));
        Ok(effective)
    }

    /// Counts the project of one more resource of a plan.
    pub(super) fn settle_with(&self, plan: PlanId, resource: &Resource) -> Result<()> {
        let mut resources = self.resources_of(plan)?;
        let own = self.own_levels(plan, &resources)?;
        resources.push(resource.clone());
        self.settle_plan(plan, &own, &resources)?;
        Ok(())
    }

    /// What a plan is bound to as it was then and as it is now, each with whether all of it counts.
    fn own_levels(&self, plan: PlanId, resources: &[Resource]) -> Result<Vec<(ConfigLevel, bool)>> {
        if let Some(bound) = self.store.plan_config(plan)? {
            return self.bound_levels(&bound);
        }
        let first = resources.first().and_then(Resource::root);
        let made = self.directory_of(plan)?;
        let made = made.as_ref().map(|made| made.as_path());
        for place in first.into_iter().chain(made.filter(|_| made != first)) {
            match self.search(place, &[]) {
                Ok(None) => {}
                Ok(Some(level)) => {
                    let trusted = is_trusted(&level, &self.store)?;
                    return Ok(vec![(level, trusted)]);
                }
                Err(error) => self.pass_over(&error.passed_over()),
            }
        }
        Ok(Vec::new())
    }

    pub(super) fn bound_levels(&self, bound: &PlanConfig) -> Result<Vec<(ConfigLevel, bool)>> {
        let origin = match bound.named {
            true => ConfigOrigin::Named,
            false => ConfigOrigin::Found,
        };
        let (path, content) = (bound.path.as_path(), bound.content.clone());
        let mut kept = ConfigLevel::parse(origin, path, content, &self.options.registry)?;
        let now = match &self.configured.loaded.project {
            Some(level) if level.file == kept.file => Some(level.clone()),
            _ => self.again(&kept),
        };
        kept.shared = now.as_ref().and_then(|level| level.shared.clone());
        let trusted = is_trusted(&kept, &self.store)?;
        let Some(now) = now.filter(|level| level.digest != kept.digest) else {
            return Ok(vec![(kept, trusted)]);
        };
        Ok(match is_trusted(&now, &self.store)? {
            // The user saw what it says now, and wants that.
            true => vec![(now, true)],
            false => vec![(kept, trusted), (now, false)],
        })
    }

    /// What the file of a plan says now; nothing where it makes no sense: the plan must still be undone
    /// or removed, and what is kept with it counts.
    fn again(&self, kept: &ConfigLevel) -> Option<ConfigLevel> {
        match kept.again(&self.options.registry) {
            Ok(level) => {
                level.iter().for_each(|level| self.tell_shared(level));
                level
            }
            Err(error) => {
                if self.configured.is_news(&kept.file, "") {
                    self.notice(format!(
                        "the configuration of the plan cannot be used as it is now ({error}), so its content at the creation of the plan counts; fix the file"
                    ));
                }
                None
            }
        }
    }

    /// The nearest project's file that counts, upward from a directory; none where it is known.
    fn search(
        &self,
        directory: &Path,
        known: &[Location],
    ) -> std::result::Result<Option<ConfigLevel>, ConfigError> {
        let (loaded, home) = (&self.configured.loaded, self.home());
        let (level, passed_over) = loaded.search(directory, known, home, &self.options.registry)?;
        passed_over.iter().for_each(|one| self.pass_over(one));
        level.iter().for_each(|level| self.tell_shared(level));
        Ok(level)
    }

    /// Says, once, that a file does not count.
    fn pass_over(&self, (file, why): &PassedOver) {
        if self.configured.is_news(file, "") {
            self.notice(format!(
                "the configuration '{file}' does not count: {why}; \
                 `--config FILE` names one that does, if you trust who wrote it"
            ));
        }
    }

    /// Says, once, that others may have changed a file.
    fn tell_shared(&self, level: &ConfigLevel) {
        let (file, shared) = (&level.file, level.shared.as_ref());
        if let Some(why) = shared.filter(|_| self.configured.is_news(file, "")) {
            self.notice(format!(
                "of the configuration '{file}' only what tightens counts, and it cannot be trusted: {why}"
            ));
        }
    }

    /// Says what does not count of the files that were read when this manager was opened.
    pub(super) fn tell_files(&self) {
        let loaded = &self.configured.loaded;
        let (files, project) = (&loaded.passed_over, &loaded.project);
        files.iter().for_each(|one| self.pass_over(one));
        project.iter().for_each(|level| self.tell_shared(level));
    }

    /// What a new plan is bound to: the configuration that the user named, else the one found from its first
    /// resource, else the one found here.
    pub(super) fn binding(&self, first: Option<&Resource>) -> Result<Option<PlanConfig>> {
        let here = self.configured.loaded.project.as_ref();
        let named = here.is_some_and(|level| level.origin == ConfigOrigin::Named);
        let first = first.filter(|_| !named).and_then(Resource::root);
        let found = match first {
            Some(root) => self.search(root, &[])?,
            None => None,
        };
        Ok(found.as_ref().or(here).map(|level| PlanConfig {
            path: level.file.clone(),
            content: level.text.clone(),
            named,
        }))
    }

    /// The strategy of resources that ask for none: the caller's, else that of the configuration.
    pub(super) fn usual_strategy(&self, effective: &EffectiveConfig) -> String {
        let caller = Some(&self.options.strategy).filter(|name| *name != AUTO);
        let usual = caller.or(effective.settings.strategy.as_ref());
        usual.map_or_else(|| AUTO.to_owned(), String::clone)
    }

    /// Says, once, which keys do not count that would have been used now.
    pub(super) fn warn_ignored(
        &self,
        effective: &EffectiveConfig,
        concerns: impl Fn(&str) -> bool,
    ) {
        let mut files: Vec<(&Location, Vec<String>)> = Vec::new();
        for one in effective.ignored.iter().filter(|one| concerns(&one.key)) {
            if !self.configured.is_news(&one.file, &one.key) {
                continue;
            }
            let said = format!("{} ({})", one.key, one.what);
            match files.iter_mut().find(|(file, _)| *file == &one.file) {
                Some((_, keys)) => keys.push(said),
                None => files.push((&one.file, vec![said])),
            }
        }
        for (file, keys) in files {
            self.notice(format!(
                "'{file}' is not trusted, so this does not count: {}; `escrow trust '{file}'` makes it count",
                keys.join("; ")
            ));
        }
    }

    /// The defaults of a command that is run in a plan. Which keys of it do not count is in the notices.
    pub fn run_defaults(&self, plan: &Plan) -> Result<RunDefaults> {
        let effective = self.effective(Some(plan.id))?;
        self.warn_ignored(&effective, |key| key.starts_with("run."));
        Ok(effective.settings.run.clone())
    }

    /// The commands of the configuration that a plan must pass before it is committed. Refuses where the user trusted
    /// some that would not run. Those of a file that was never trusted do not run, and are in the notices.
    pub fn validations(&self, plan: &Plan) -> Result<Vec<Validation>> {
        self.permit_unvalidated(plan)?;
        let effective = self.effective(Some(plan.id))?;
        self.warn_ignored(&effective, |key| key == "validate");
        Ok(effective.settings.validate.clone())
    }

    /// Refuses a commit where what the user trusted does not count any more, and it or what stands there now has
    /// `validate`: no process switches a validation off by changing, removing or covering the file.
    fn check_validations(&self, plan: &Plan) -> Result<()> {
        let resources = self.resources_of(plan.id)?;
        let own = self.own_levels(plan.id, &resources)?;
        if !own.is_empty() && own.iter().all(|(_, trusted)| *trusted) {
            return Ok(());
        }
        let first = resources.first().and_then(Resource::root);
        let current = own.last().map(|(level, _)| &level.file);
        let near = current.unwrap_or(&plan.directory);
        let places: Vec<&Path> = first.into_iter().chain([near.as_path()]).collect();
        for one in self.store.trusted_configs()? {
            let same = current == Some(&one.path);
            let directory = one.path.as_path().parent();
            let above =
                directory.is_some_and(|above| places.iter().any(|at| at.starts_with(above)));
            if !(same || above && one.trusted_at <= plan.created_at) {
                continue;
            }
            let (file, registry) = (one.path, &self.options.registry);
            let trusted =
                ConfigLevel::parse(ConfigOrigin::Found, file.as_path(), one.content, registry)?;
            let present = same && own.iter().any(|(level, _)| level.validates());
            if trusted.validates() || present {
                let shared = own.last().and_then(|(level, _)| level.shared.as_deref());
                let (why, trust) = match (same, shared, current) {
                    (true, Some(why), _) => (format!("was trusted, but {why}"), None),
                    (true, None, _) => ("changed since it was trusted".to_owned(), current),
                    (_, _, Some(nearer)) => {
                        let why = format!("is trusted, but '{nearer}', which lies nearer, is not");
                        (why, current)
                    }
                    (_, _, None) => ("is trusted, but is not there".to_owned(), None),
                };
                let trust = trust.cloned();
                return Err(Error::Unvalidated { file, why, trust });
            }
        }
        Ok(())
    }

    /// Refuses to release a plan where no path of it may be, or where a validation was switched off.
    pub(super) fn permit_commit(&self, plan: &Plan) -> Result<()> {
        self.permit_within(Action::Commit, plan)?;
        self.permit_unvalidated(plan)
    }

    /// The same of validations alone; a refusal is logged.
    fn permit_unvalidated(&self, plan: &Plan) -> Result<()> {
        self.check_validations(plan).inspect_err(|error| {
            let about = self.about("commit", Some(plan.id), &plan.name);
            self.note_denial(about, &chain(error));
        })
    }

    /// Reads a configuration that may be trusted: the one that is named, else the one that is found.
    pub fn examine_config(&self, file: Option<&Path>) -> Result<ExaminedConfig> {
        let file = match file {
            Some(file) => file,
            None => self.found_config()?.file.as_path(),
        };
        // What others may have changed is refused there.
        let level = ConfigLevel::examine(file, self.home(), &self.options.registry)?;
        let mut outermost = outermost(&self.configured.loaded, &self.options);
        outermost.lay(&level, false, &self.options.registry);
        let all = self.store.trusted_configs()?;
        let ours = || all.iter().filter(|one| one.path == level.file);
        let same = ours().find(|one| one.digest == level.digest);
        Ok(ExaminedConfig {
            before: same.or_else(|| ours().next()).cloned(),
            file: level.file,
            digest: level.digest,
            content: level.text,
            loosens: outermost.ignored,
        })
    }

    /// The configuration that was found.
    fn found_config(&self) -> Result<&ConfigLevel> {
        let found = self.configured.loaded.project.as_ref();
        let found = found.filter(|level| level.origin == ConfigOrigin::Found);
        found.ok_or(Error::NoConfig)
    }

    /// Lets a configuration count as a whole, as long as its content is the one that was read.
    pub fn trust_config(&self, examined: &ExaminedConfig) -> Result<()> {
        self.permit_trust()?;
        let target = examined.file.to_string();
        self.record_about(about("trust", &target), |_| {
            Ok(self.store.trust_config(&TrustedConfig {
                path: examined.file.clone(),
                digest: examined.digest.clone(),
                content: examined.content.clone(),
                trusted_at: self.options.origin.now(),
            })?)
        })
    }

    /// Trusts a file no more, whatever its content; whether it was trusted.
    pub fn distrust_config(&self, file: Option<&Path>) -> Result<(Location, bool)> {
        self.permit_trust()?;
        let path = match file {
            Some(file) => Location::from(resolved(file)),
            None => self.found_config()?.file.clone(),
        };
        let target = path.to_string();
        let removed = self.record_about(about("distrust", &target), |_| {
            Ok(self.store.distrust_config(&path)?)
        })?;
        Ok((path, removed > 0))
    }

    /// Every content that is trusted, the newest first.
    pub fn trusted_configs(&self) -> Result<Vec<TrustedConfig>> {
        Ok(self.store.trusted_configs()?)
    }

    /// Who may do anything may trust, by the policies that no project has a part in.
    fn permit_trust(&self) -> Result<()> {
        let outermost = outermost(&self.configured.loaded, &self.options);
        let (principal, all) = (&self.options.principal, [Scope::All]);
        let policies = &outermost.policies;
        let decision = policies.authorize(principal, Action::Admin, &all, ResultingEntry::Entry);
        self.denied(Action::Admin, None, permitted(decision))
    }
}

fn about<'a>(action: &'a str, target: &'a str) -> OperationSubject<'a> {
    OperationSubject {
        action,
        plan: None,
        target,
        resources: Vec::new(),
        message: None,
    }
}
