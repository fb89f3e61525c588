//! The policy: which principal may do what on what. A denial wins over a permission; what no rule permits is
//! denied.
//!
//! In local mode, the default, everything is permitted, and every answer says so. A policy that
//! cannot be read denies everything: in doubt nothing is done, and the reason is reported (rule S6).
//!
//! | file | promise |
//! |---|---|
//! | `rules` | what a rule says, and what it covers |
//! | `levels` | several policies at once: each of them must permit |
//! | `names` | names that some file system takes for the same |
//! | `select` | the same patterns, to choose what is released |

mod levels;
mod names;
mod rules;
pub mod select;

use serde::Deserialize;

use crate::model::policy::{Action, Decision, Scope, principal_fault};
pub use levels::Policies;
pub(crate) use names::fold;
use rules::{Fault, Rule, WrittenRule};

/// What becomes of a path, as far as that matters to a rule about paths below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultingEntry {
    /// It is used, or changes.
    Entry,
    /// It becomes a link, or a directory with another mode or owner: what lies below it is another thing from then on, or closed.
    Rerouted,
    /// It becomes a directory: the way to what lies below it.
    Directory,
    /// Anything below it may change, and no process will look at what did.
    Whole,
}

/// A policy as it is written: `{mode: local | enforce, rules: [{allow | deny: […], principal, scope}]}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WrittenPolicy {
    mode: WrittenMode,
    rules: Vec<WrittenRule>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenMode {
    #[default]
    Local,
    Enforce,
}

/// What is permitted to whom.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    stance: PolicyMode,
}

#[derive(Debug, Clone, Default)]
enum PolicyMode {
    /// Everything is permitted.
    #[default]
    Local,
    /// What the rules say.
    Enforce(Vec<Rule>),
    /// Nothing is permitted, because it is not known what should be.
    Unreadable(String),
}

impl Policy {
    /// The policy that is written, or what of it makes no sense.
    pub(crate) fn new(written: &WrittenPolicy) -> Result<Self, Fault> {
        let rules = written.rules.iter().enumerate().map(|(index, rule)| {
            Rule::new(index + 1, rule).map_err(|(key, why)| (format!("rules[{index}]{key}"), why))
        });
        // Rules that make no sense are reported in every mode.
        let rules = rules.collect::<Result<_, _>>()?;
        let stance = match written.mode {
            WrittenMode::Enforce => PolicyMode::Enforce(rules),
            WrittenMode::Local => PolicyMode::Local,
        };
        Ok(Self { stance })
    }

    /// What stands for a policy that is there but cannot be read: it denies everything.
    pub fn unreadable(why: impl std::fmt::Display) -> Self {
        Self {
            stance: PolicyMode::Unreadable(why.to_string()),
        }
    }

    /// Whether the answer depends on who asks for what.
    pub fn has_rules(&self) -> bool {
        matches!(self.stance, PolicyMode::Enforce(_))
    }

    /// Whether the answer is always yes.
    pub fn permits_everything(&self) -> bool {
        matches!(self.stance, PolicyMode::Local)
    }

    /// Whether a rule permits something on a resource by its name alone: the process that gives that name to
    /// something else gives it the permission.
    pub fn permits_by_name(&self, resource: &str) -> bool {
        let mut permits = self.rules().iter().filter(|rule| !rule.denies);
        permits.any(|rule| rule.names(resource))
    }

    /// Whether a rule is about a resource by its name: another name for the same thing escapes it.
    pub fn names_resources(&self) -> bool {
        self.rules().iter().any(Rule::names_one)
    }

    fn rules(&self) -> &[Rule] {
        match &self.stance {
            PolicyMode::Enforce(rules) => rules,
            PolicyMode::Local | PolicyMode::Unreadable(_) => &[],
        }
    }

    /// Whether `principal` may do `action`. `names` are the names of one and the same thing: what
    /// is denied by any of them is denied. The first is the one that is reported.
    pub fn authorize(
        &self,
        principal: &str,
        action: Action,
        names: &[Scope],
        form: ResultingEntry,
    ) -> Decision {
        let scope = names.first().map(Scope::to_string).unwrap_or_default();
        let decide = |permitted, reason, rule| Decision {
            permitted,
            principal: principal.to_owned(),
            action: action.as_str().to_owned(),
            scope: scope.clone(),
            reason,
            rule,
        };
        if let Some(why) = principal_fault(principal) {
            let reason = format!("this cannot be a principal: {why}");
            return decide(false, reason, None);
        }
        let rules = match &self.stance {
            PolicyMode::Unreadable(why) => {
                let reason = format!("the policy cannot be read: {why}");
                return decide(false, reason, None);
            }
            PolicyMode::Local => {
                let reason = "local mode: everything is permitted".to_owned();
                return decide(true, reason, None);
            }
            PolicyMode::Enforce(rules) => rules,
        };
        let mine = || rules.iter().filter(|rule| rule.is_about(principal, action));
        let covers = |rule: &&Rule| names.iter().any(|name| rule.covers(name, form));
        let said = |rule: &Rule| format!("rule {} says: {}", rule.number, rule.text);
        if let Some(rule) = mine().filter(|rule| rule.denies).find(covers) {
            return decide(false, said(rule), Some(rule.number));
        }
        let Some(rule) = mine().filter(|rule| !rule.denies).find(covers) else {
            return decide(false, "no rule permits it".to_owned(), None);
        };
        let part = |other: &&Rule| names.iter().any(|name| other.covers_part(name));
        let reason = match mine().filter(|rule| rule.denies).find(part) {
            Some(other) => format!("{}; but not all of it: {}", said(rule), said(other)),
            None => said(rule),
        };
        decide(true, reason, Some(rule.number))
    }
}
