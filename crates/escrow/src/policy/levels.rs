//! Several policies at once: system, user, project, plan. Each must permit; none can relax another.

use super::{Policy, ResultingEntry};
use crate::model::policy::{Action, Decision, Scope};
use crate::model::text::Location;

/// Every policy that counts, outermost first.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    all: Vec<Sourced>,
}

/// A policy and where it comes from.
#[derive(Debug, Clone)]
struct Sourced {
    /// None for that of the caller.
    file: Option<Location>,
    policy: Policy,
    /// Whether it is not only that of a found file that the user does not trust.
    trusted: bool,
}

impl Policies {
    /// The caller's own policy, which no file can relax.
    pub fn of(policy: Policy) -> Self {
        Self {
            all: vec![Sourced {
                file: None,
                policy,
                trusted: true,
            }],
        }
    }

    /// Adds the policy of a file.
    pub fn add(&mut self, file: Location, policy: Policy, trusted: bool) {
        self.all.push(Sourced {
            file: Some(file),
            policy,
            trusted,
        });
    }

    /// The same without the policies of found files that the user does not trust.
    pub fn trusted(&self) -> Self {
        let all = self.all.iter().filter(|one| one.trusted);
        Self {
            all: all.cloned().collect(),
        }
    }

    /// Whether the answer depends on who asks for what.
    pub fn has_rules(&self) -> bool {
        self.all.iter().any(|one| one.policy.has_rules())
    }

    /// Whether anything may be denied.
    pub fn restricts(&self) -> bool {
        let mut all = self.all.iter();
        all.any(|one| !one.policy.permits_everything())
    }

    /// Whether any of them permits something on a resource by its name alone.
    pub fn permits_by_name(&self, resource: &str) -> bool {
        let mut all = self.all.iter();
        all.any(|one| one.policy.permits_by_name(resource))
    }

    /// Whether any of them has a rule about a resource by its name.
    pub fn names_resources(&self) -> bool {
        let mut all = self.all.iter();
        all.any(|one| one.policy.names_resources())
    }

    /// Whether `principal` may do `action`: whether every policy permits it. `names` are the names of
    /// one and the same thing, as in [`Policy::authorize`].
    pub fn authorize(
        &self,
        principal: &str,
        action: Action,
        names: &[Scope],
        form: ResultingEntry,
    ) -> Decision {
        let mut permitted = None;
        for one in self
            .all
            .iter()
            .filter(|one| !one.policy.permits_everything())
        {
            let mut decision = one.policy.authorize(principal, action, names, form);
            // A policy that cannot be read names its file itself.
            if let Some(file) = one.file.as_ref().filter(|_| one.policy.has_rules()) {
                decision.reason = format!("{} (in '{file}')", decision.reason);
            }
            if !decision.permitted {
                return decision;
            }
            permitted = Some(decision);
        }
        permitted.unwrap_or_else(|| Policy::default().authorize(principal, action, names, form))
    }

    /// The same for text that the user typed; those that mean nothing are denied. `names` gives
    /// every name of what is meant.
    pub fn check<E>(
        &self,
        principal: &str,
        action: &str,
        scope: &str,
        names: impl FnOnce(Scope) -> Result<Vec<Scope>, E>,
    ) -> Result<Decision, E> {
        let refuse = |reason| {
            Ok(Decision {
                permitted: false,
                principal: principal.to_owned(),
                action: action.to_owned(),
                scope: scope.to_owned(),
                reason,
                rule: None,
            })
        };
        let action = match action.parse::<Action>() {
            Ok(action) => action,
            Err(why) => return refuse(why),
        };
        match Scope::parse(scope) {
            Ok(scope) => {
                Ok(self.authorize(principal, action, &names(scope)?, ResultingEntry::Entry))
            }
            Err(why) => refuse(why),
        }
    }
}
