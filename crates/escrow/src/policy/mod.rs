//! Who may do what on what. A denial wins over a permission; what nothing permits is denied.
//!
//! In local mode, the default, everything is permitted, and every answer says so. A policy that
//! cannot be read denies everything: in doubt nothing is done, and the reason is told (rule S6).
//!
//! | file | promise |
//! |---|---|
//! | `read` | what is written becomes rules, or an error that says where it is wrong |
//! | `rules` | what a rule says, and what it covers |
//! | `names` | names that some file system takes for the same |
//! | `select` | the same patterns, to choose what is released |

mod names;
mod read;
mod rules;
pub mod select;

use serde_json::Value;

use crate::model::policy::{Action, Decision, Scope, principal_fault};
pub use read::PolicyError;
use rules::Rule;

/// What becomes of a path, as far as that matters to a rule about paths below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It is used, or changes.
    Entry,
    /// It becomes a link: whatever lies below it is another thing from then on.
    Link,
    /// It becomes a directory: the way to what lies below it.
    Directory,
    /// Anything below it may change, and nobody will look at what did.
    Whole,
}

/// What is permitted to whom.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    stance: Stance,
}

#[derive(Debug, Clone, Default)]
enum Stance {
    /// Everything is permitted.
    #[default]
    Local,
    /// What the rules say.
    Enforce(Vec<Rule>),
    /// Nothing is permitted, because nobody knows what should be.
    Unreadable(String),
}

impl Policy {
    /// Reads a policy: `{mode: local | enforce, rules: [{allow | deny: […], principal, scope}]}`.
    pub fn from_value(value: &Value) -> Result<Self, PolicyError> {
        // Rules that make no sense are told of in every mode.
        let (enforced, rules) = read::read(value)?;
        let stance = match enforced {
            true => Stance::Enforce(rules),
            false => Stance::Local,
        };
        Ok(Self { stance })
    }

    /// What stands for a policy that is there but cannot be read: it denies everything.
    pub fn unreadable(why: impl std::fmt::Display) -> Self {
        Self {
            stance: Stance::Unreadable(why.to_string()),
        }
    }

    /// Whether the answer depends on who asks for what.
    pub fn has_rules(&self) -> bool {
        matches!(self.stance, Stance::Enforce(_))
    }

    /// Whether `principal` may do `action`. `names` are the names of one and the same thing: what
    /// is denied by any of them is denied. The first is the one that is told.
    pub fn judge(&self, principal: &str, action: Action, names: &[Scope], form: Form) -> Decision {
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
            Stance::Unreadable(why) => {
                let reason = format!("the policy cannot be read: {why}");
                return decide(false, reason, None);
            }
            Stance::Local => {
                let reason = "local mode: everything is permitted".to_owned();
                return decide(true, reason, None);
            }
            Stance::Enforce(rules) => rules,
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

    /// The same for words that somebody typed; those that mean nothing are denied. `names` gives
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
            Ok(scope) => Ok(self.judge(principal, action, &names(scope)?, Form::Entry)),
            Err(why) => refuse(why),
        }
    }
}
