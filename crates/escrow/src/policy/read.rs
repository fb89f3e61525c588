//! Parses the policy of a configuration into rules. Errors say where it is wrong.

use std::fmt;

use serde_json::{Map, Value};

use super::rules::{Rule, WrittenRule};

/// Why a policy is none, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// Where in it, as in `rules[0].deny[1]`; empty for all of it.
    pub key: String,
    /// Whether that key is wrong, and not what it is set to.
    pub is_key: bool,
    /// What is wrong.
    pub what: String,
    /// The name that leads nowhere; empty where none does.
    pub name: String,
    /// Everything that is known there.
    pub known: Vec<String>,
    /// The rule, counted from 1, if it is one.
    rule: Option<usize>,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Some(number) => write!(f, "rule {number}: ")?,
            None if self.key.is_empty() || self.is_key => {}
            None => write!(f, "{}: ", self.key)?,
        }
        f.write_str(&self.what)?;
        match self.known.is_empty() {
            true => Ok(()),
            false => write!(f, "; there are {}", self.known.join(", ")),
        }
    }
}

impl std::error::Error for PolicyError {}

impl PolicyError {
    /// A fault of the value of a key.
    pub(super) fn of(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            is_key: false,
            what: what.into(),
            name: String::new(),
            known: Vec::new(),
            rule: None,
        }
    }

    /// The same for a name that leads nowhere.
    pub(super) fn unknown(
        key: impl Into<String>,
        what: impl Into<String>,
        name: &str,
        known: &[&str],
    ) -> Self {
        Self {
            name: name.to_owned(),
            known: known.iter().map(|&one| one.to_owned()).collect(),
            ..Self::of(key, what)
        }
    }

    /// The same, in a rule.
    fn within(self, index: usize) -> Self {
        let rule = format!("rules[{index}]");
        let key = match self.key.as_str() {
            "" => rule,
            key => format!("{rule}.{key}"),
        };
        Self {
            key,
            rule: Some(index + 1),
            ..self
        }
    }
}

type PolicyResult<T> = Result<T, PolicyError>;

const MODES: [&str; 2] = ["local", "enforce"];

/// Reads a policy: its rules, and whether they are enforced.
pub(super) fn read(value: &Value) -> PolicyResult<(bool, Vec<Rule>)> {
    let keys = keys(value, &["mode", "rules"])?;
    let enforced = match keys.get("mode").map(|mode| text(mode, "mode")) {
        None => false,
        Some(mode) => match mode? {
            mode if MODES.contains(&mode) => mode == "enforce",
            mode => {
                let what = format!("it cannot be '{mode}'");
                return Err(PolicyError::unknown("mode", what, mode, &MODES));
            }
        },
    };
    let rules = match keys.get("rules") {
        None => &Vec::new(),
        Some(rules) => list(rules, "rules")?,
    };
    let rules = rules.iter().enumerate().map(|(index, value)| {
        let rule = rule(value).and_then(|written| Rule::new(index + 1, written));
        rule.map_err(|error| error.within(index))
    });
    Ok((enforced, rules.collect::<PolicyResult<_>>()?))
}

fn rule(value: &Value) -> PolicyResult<WrittenRule<'_>> {
    let keys = keys(value, &["allow", "deny", "principal", "scope"])?;
    let actions = |key: &str| match keys.get(key) {
        // As if it was left out.
        None | Some(Value::Null) => Ok(None),
        Some(words) => {
            let words = list(words, key)?.iter().enumerate();
            let words = words.map(|(at, word)| text(word, &format!("{key}[{at}]")));
            words.collect::<PolicyResult<Vec<&str>>>().map(Some)
        }
    };
    let needed = |key: &str| match keys.get(key) {
        Some(value) => text(value, key),
        None => Err(PolicyError::of("", format!("the key '{key}' is missing"))),
    };
    Ok(WrittenRule {
        allow: actions("allow")?,
        deny: actions("deny")?,
        principal: needed("principal")?,
        scope: needed("scope")?,
    })
}

fn keys<'v>(value: &'v Value, known: &[&str]) -> PolicyResult<&'v Map<String, Value>> {
    let Some(keys) = value.as_object() else {
        return Err(PolicyError::of("", "keys with values are expected here"));
    };
    match keys.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(keys),
        Some(key) => {
            let what = format!("there is no key '{key}'");
            Err(PolicyError {
                is_key: true,
                ..PolicyError::unknown(key, what, key, known)
            })
        }
    }
}

fn list<'v>(value: &'v Value, key: &str) -> PolicyResult<&'v Vec<Value>> {
    let list = value.as_array();
    list.ok_or_else(|| PolicyError::of(key, "a list is expected here"))
}

fn text<'v>(value: &'v Value, key: &str) -> PolicyResult<&'v str> {
    let what = match value {
        Value::Null => "the value is missing",
        _ => "a text is expected here",
    };
    let text = value.as_str();
    text.ok_or_else(|| PolicyError::of(key, what))
}
