//! Which configuration counts, in general and for each plan, and which files the user trusts.
//!
//! A plan is bound to the project's configuration that it was made under: its content is kept in the
//! state store, and counts for the plan wherever a command is typed. Where the file says something
//! else by now, both count: of what it says now only what tightens, unless the user trusts it; then it
//! counts instead.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::records::About;
use super::{Manager, Options};
use crate::config::{Effective, Ignored, Level, Loaded, Origin, Settings, Weight, resolved};
use crate::error::{Error, Result};
use crate::model::text::Location;
use crate::model::{Action, PlanId, Scope};
use crate::policy::Form;
use crate::store::{Plan, PlanConfig, Store, TrustedConfig};
use crate::strategy::registry::AUTO;

/// What was read when the manager was opened, and what it comes to.
pub(super) struct Configured {
    loaded: Loaded,
    /// What counts where no plan is concerned.
    pub(super) general: Arc<Effective>,
    plans: Mutex<HashMap<PlanId, Arc<Effective>>>,
    told: Mutex<HashSet<(Location, String)>>,
}

/// A configuration that may be trusted, as it was read.
#[derive(Debug)]
pub struct Examined {
    /// Where it is.
    pub file: Location,
    /// The digest of its content.
    pub digest: String,
    /// Its content.
    pub content: Vec<u8>,
    /// What it would loosen.
    pub loosens: Vec<Ignored>,
    /// What was trusted of this file last, if anything was.
    pub before: Option<TrustedConfig>,
}

impl Examined {
    /// Whether this very content is trusted already.
    pub fn is_trusted(&self) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| before.digest == self.digest)
    }
}

impl Configured {
    /// Decides what counts of the files that were read.
    pub(super) fn settle(loaded: Loaded, options: &Options, store: &Store) -> Result<Self> {
        let mut general = outermost(&loaded, options);
        if let Some(level) = &loaded.project {
            let weight = weight(level, store)?;
            general.lay(level, weight, &options.registry);
        }
        Ok(Self {
            loaded,
            general: Arc::new(general),
            plans: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// A line for each file that does not count.
    pub(super) fn passed_over(&self) -> Vec<String> {
        let line = |(file, why): &(Location, String)| {
            format!(
                "the configuration '{file}' does not count: {why}; \
                 `--config FILE` names one that does, if you trust who wrote it"
            )
        };
        let mut lines: Vec<String> = self.loaded.passed_over.iter().map(line).collect();
        lines.extend(self.loaded.project.as_ref().and_then(only_tightens));
        lines
    }
}

/// What is said of a file that others may have changed.
fn only_tightens(level: &Level) -> Option<String> {
    let (file, why) = (&level.file, level.shared.as_ref()?);
    Some(format!(
        "of the configuration '{file}' only what tightens counts, and it cannot be trusted: {why}"
    ))
}

/// What the caller, the system and the user say: nothing below can relax their policies.
fn outermost(loaded: &Loaded, options: &Options) -> Effective {
    let settings = Settings {
        cleanup: options.keep.cleanup,
        undo_keep: options.keep.undo,
        ..options.settings.clone()
    };
    let mut outermost = Effective::new(settings, options.policy.clone());
    for level in [&loaded.system, &loaded.user].into_iter().flatten() {
        outermost.lay(level, Weight::All, &options.registry);
    }
    outermost
}

/// How much of a project's file counts.
fn weight(level: &Level, store: &Store) -> Result<Weight> {
    let trusted = level.origin != Origin::Found
        || (level.shared.is_none() && store.is_trusted_config(&level.file, &level.digest)?);
    Ok(match trusted {
        true => Weight::All,
        false => Weight::Tightening,
    })
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
    pub(super) fn effective(&self, plan: Option<PlanId>) -> Result<Arc<Effective>> {
        let Some(plan) = plan else {
            return Ok(Arc::clone(&self.configured.general));
        };
        let known = || {
            let plans = self.configured.plans.lock();
            plans.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(effective) = known().get(&plan) {
            return Ok(Arc::clone(effective));
        }
        let effective = match self.store.plan_config(plan)? {
            None => Arc::clone(&self.configured.general),
            Some(bound) => Arc::new(self.bound(bound)?),
        };
        known().insert(plan, Arc::clone(&effective));
        Ok(effective)
    }

    /// What counts for a plan that was made under a configuration.
    fn bound(&self, bound: PlanConfig) -> Result<Effective> {
        let registry = self.registry();
        let origin = match bound.named {
            true => Origin::Named,
            false => Origin::Found,
        };
        let mut bound = Level::parse(origin, bound.path.as_path(), bound.content, registry)?;
        let loaded = &self.configured.loaded;
        let (same, other) = match &loaded.project {
            Some(level) if level.file == bound.file => (Some(level.clone()), None),
            other => (self.again(&bound), other.as_ref()),
        };
        bound.shared = same.as_ref().and_then(|level| level.shared.clone());
        let mut effective = outermost(loaded, &self.options);
        let changed = same.filter(|level| level.digest != bound.digest);
        let mut both = vec![(&bound, weight(&bound, &self.store)?)];
        if let Some(changed) = &changed {
            match weight(changed, &self.store)? {
                // The user saw what it says now, and wants that.
                Weight::All => both = vec![(changed, Weight::All)],
                weight => both.push((changed, weight)),
            }
        }
        if let Some(level) = other {
            both.push(match level.origin {
                Origin::Found => (level, Weight::Rules),
                _ => (level, Weight::All),
            });
        }
        for (level, weight) in both {
            effective.lay(level, weight, registry);
        }
        Ok(effective)
    }

    /// What the file of a plan says now; nothing where it makes no sense: the plan must still be undone
    /// or removed, and what is kept with it counts.
    fn again(&self, bound: &Level) -> Option<Level> {
        match bound.again(self.registry()) {
            Ok(level) => {
                let said = level.as_ref().and_then(only_tightens);
                said.into_iter().for_each(|said| self.notice(said));
                level
            }
            Err(error) => {
                self.notice(format!(
                    "the configuration of the plan cannot be used as it is now ({error}), so what it said when \
                     the plan was made counts; mend the file"
                ));
                None
            }
        }
    }

    /// What a new plan is bound to: what counts here, or what another plan is bound to.
    pub(super) fn binding(&self, from: Option<&Plan>) -> Result<Option<PlanConfig>> {
        if let Some(from) = from {
            return Ok(self.store.plan_config(from.id)?);
        }
        let project = self.configured.loaded.project.as_ref();
        Ok(project.map(|level| PlanConfig {
            path: level.file.clone(),
            content: level.text.clone(),
            named: level.origin == Origin::Named,
        }))
    }

    /// The strategy of resources that ask for none: the caller's, else that of the configuration.
    pub(super) fn usual_strategy(&self, effective: &Effective) -> String {
        let caller = Some(&self.options.strategy).filter(|name| *name != AUTO);
        let usual = caller.or(effective.settings.strategy.as_ref());
        usual.map_or_else(|| AUTO.to_owned(), String::clone)
    }

    /// Says, once, which keys do not count that would have been used now.
    pub(super) fn tell_ignored(&self, effective: &Effective, concerns: impl Fn(&str) -> bool) {
        let told = self.configured.told.lock();
        let mut told = told.unwrap_or_else(PoisonError::into_inner);
        let mut files: Vec<(&Location, Vec<String>)> = Vec::new();
        for one in effective.ignored.iter().filter(|one| concerns(&one.key)) {
            if !told.insert((one.file.clone(), one.key.clone())) {
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

    /// The commands of the configuration that a plan must pass before it is committed.
    pub fn validations(&self, plan: &Plan) -> Result<Vec<Vec<String>>> {
        let effective = self.effective(Some(plan.id))?;
        self.tell_ignored(&effective, |key| key == "validate");
        Ok(effective.settings.validate.clone())
    }

    /// Reads a configuration that may be trusted: the one that is named, else the one that is found.
    pub fn examine_config(&self, file: Option<&Path>) -> Result<Examined> {
        let level = match file {
            Some(file) => Level::examine(file, self.home(), self.registry())?,
            None => {
                let found = self.found_config()?;
                // What others may have changed is refused there.
                Level::examine(found.file.as_path(), self.home(), self.registry())?
            }
        };
        let mut outermost = outermost(&self.configured.loaded, &self.options);
        outermost.lay(&level, Weight::Tightening, self.registry());
        let all = self.store.trusted_configs()?;
        let ours = || all.iter().filter(|one| one.path == level.file);
        let same = ours().find(|one| one.digest == level.digest);
        Ok(Examined {
            before: same.or_else(|| ours().next()).cloned(),
            file: level.file,
            digest: level.digest,
            content: level.text,
            loosens: outermost.ignored,
        })
    }

    /// The configuration that was found.
    fn found_config(&self) -> Result<&Level> {
        let found = self.configured.loaded.project.as_ref();
        let found = found.filter(|level| level.origin == Origin::Found);
        found.ok_or(Error::NoConfig)
    }

    /// Lets a configuration count as a whole, as long as its content is the one that was read.
    pub fn trust_config(&self, examined: &Examined) -> Result<()> {
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
        let principal = &self.options.principal;
        let policies = &outermost.policies;
        let decision = policies.judge(principal, Action::Admin, &[Scope::All], Form::Entry);
        let judged = match decision.permitted {
            true => Ok(()),
            false => Err(Error::Denied {
                decision: Box::new(decision),
                others: 0,
            }),
        };
        self.denied(Action::Admin, None, judged)
    }
}

fn about<'a>(action: &'a str, target: &'a str) -> About<'a> {
    About {
        action,
        plan: None,
        target,
        resources: Vec::new(),
        message: None,
    }
}
