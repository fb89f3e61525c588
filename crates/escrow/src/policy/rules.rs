//! One rule of a policy, and what it covers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;

use super::ResultingEntry;
use super::names::{fold, fold_case};
use crate::model::ResourcePath;
use crate::model::plan::is_name;
use crate::model::policy::{Action, Scope};
use crate::model::text::escape;

/// Where a policy makes no sense, and why.
pub(crate) type Fault = (String, String);

/// A rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRule {
    allow: Option<Vec<Action>>,
    deny: Option<Vec<Action>>,
    principal: String,
    scope: String,
}

/// One rule, ready to be asked.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// Its place in the policy, counted from 1.
    pub(super) number: usize,
    /// Whether it denies; otherwise it permits.
    pub(super) denies: bool,
    /// What it says, on one line.
    pub(super) text: String,
    actions: Vec<Action>,
    principal: GlobMatcher,
    covered: RuleCoverage,
}

/// What a rule covers.
#[derive(Debug, Clone)]
enum RuleCoverage {
    All,
    Resource(String),
    /// Paths of one resource, or of any.
    Paths(Option<String>, Box<PathGlob>),
}

/// A pattern of paths.
#[derive(Debug, Clone)]
pub(super) struct PathGlob {
    /// The paths themselves.
    exact: Vec<GlobMatcher>,
    /// The directories on the way to them.
    above: Vec<GlobMatcher>,
    /// The same among names that a careless file system takes for the same; of a denial only.
    like: Vec<GlobMatcher>,
    like_above: Vec<GlobMatcher>,
}

impl Rule {
    pub(super) fn new(number: usize, written: &WrittenRule) -> Result<Self, Fault> {
        let fault = |key: &str, why: &str| (key.to_owned(), why.to_owned());
        let (key, actions) = match (&written.allow, &written.deny) {
            (Some(actions), None) => ("allow", actions),
            (None, Some(actions)) => ("deny", actions),
            _ => return Err(fault("", "it needs either `allow` or `deny`")),
        };
        if actions.is_empty() {
            return Err((format!(".{key}"), "it names no action".to_owned()));
        }
        let (principal, scope) = (&written.principal, &written.scope);
        if principal.is_empty() {
            return Err(fault(".principal", "its principal is empty"));
        }
        let denies = key == "deny";
        let words: Vec<&str> = actions.iter().map(|action| action.as_str()).collect();
        let text = format!(
            "{key} {} to '{}' on '{}'",
            words.join(", "),
            escape(principal.as_bytes()),
            escape(scope.as_bytes()),
        );
        Ok(Self {
            number,
            denies,
            text,
            actions: actions.clone(),
            principal: glob(principal, false).map_err(|why| fault(".principal", &why))?,
            covered: covered(scope, denies).map_err(|why| fault(".scope", &why))?,
        })
    }

    /// Whether it says anything of this principal and this action.
    pub(super) fn is_about(&self, principal: &str, action: Action) -> bool {
        // Who commits writes into the original: a path that must not be written is not released.
        let protects = self.denies
            && action == Action::Commit
            && self.actions.contains(&Action::Write)
            && matches!(self.covered, RuleCoverage::Paths(..));
        (self.actions.contains(&action) || protects) && self.principal.is_match(principal)
    }

    /// Whether it is about this resource by name.
    pub(super) fn names(&self, resource: &str) -> bool {
        match &self.covered {
            RuleCoverage::Resource(name) | RuleCoverage::Paths(Some(name), _) => name == resource,
            RuleCoverage::All | RuleCoverage::Paths(None, _) => false,
        }
    }

    /// Whether it is about one resource, whichever.
    pub(super) fn names_one(&self) -> bool {
        matches!(
            self.covered,
            RuleCoverage::Resource(_) | RuleCoverage::Paths(Some(_), _)
        )
    }

    /// Whether it decides about all of `scope`; a rule that permits, whether about the part that is
    /// not known yet.
    pub(super) fn covers(&self, scope: &Scope, form: ResultingEntry) -> bool {
        let named = |rule: &String, name: &String| rule == name;
        match (&self.covered, scope) {
            (RuleCoverage::All, _) => true,
            (_, Scope::All) => false,
            (_, Scope::Within(None)) => !self.denies,
            (
                RuleCoverage::Resource(rule),
                Scope::Resource(name) | Scope::Path(name, _) | Scope::Within(Some(name)),
            ) => named(rule, name),
            (RuleCoverage::Paths(rule, _), Scope::Within(Some(name))) => {
                !self.denies && rule.as_ref().is_none_or(|rule| named(rule, name))
            }
            // Every path of the resource is concerned.
            (RuleCoverage::Paths(rule, _), Scope::Resource(name)) => {
                let all =
                    self.denies && matches!(form, ResultingEntry::Rerouted | ResultingEntry::Whole);
                all && rule.as_ref().is_none_or(|rule| named(rule, name))
            }
            (RuleCoverage::Paths(rule, paths), Scope::Path(name, path)) => {
                let ours = rule.as_ref().is_none_or(|rule| named(rule, name));
                // What lies below a path is not compared with a pattern: it may be anything.
                let below = self.denies && form == ResultingEntry::Whole;
                ours && (below || paths.cover(path, form, self.denies))
            }
        }
    }

    /// Whether it decides about a part of `scope` only.
    pub(super) fn covers_part(&self, scope: &Scope) -> bool {
        match (&self.covered, scope) {
            (
                RuleCoverage::Resource(_) | RuleCoverage::Paths(..),
                Scope::All | Scope::Within(None),
            ) => true,
            (RuleCoverage::Paths(rule, _), Scope::Resource(name) | Scope::Within(Some(name))) => {
                rule.as_ref().is_none_or(|rule| rule == name)
            }
            _ => false,
        }
    }
}

impl PathGlob {
    /// Whether it is like this very path.
    pub(super) fn names(&self, path: &ResourcePath) -> bool {
        let path = Path::new(OsStr::from_bytes(path.as_bytes()));
        self.exact.iter().any(|glob| glob.is_match(path))
    }

    fn cover(&self, path: &ResourcePath, form: ResultingEntry, denies: bool) -> bool {
        let any = |globs: &[GlobMatcher], path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            globs.iter().any(|glob| glob.is_match(path))
        };
        // To be permitted, the way must be a directory; to be denied, it must lead elsewhere, or be closed.
        let way = match denies {
            true => form == ResultingEntry::Rerouted,
            false => form == ResultingEntry::Directory,
        };
        let bytes = path.as_bytes();
        let above = || any(&self.above, bytes) || denies && path.is_root();
        if any(&self.exact, bytes) || way && above() {
            return true;
        }
        let folded = fold(path);
        denies && (any(&self.like, &folded) || way && any(&self.like_above, &folded))
    }
}

fn covered(scope: &str, denies: bool) -> Result<RuleCoverage, String> {
    let bad = || {
        let scope = escape(scope.as_bytes());
        format!("its scope '{scope}' is neither `*`, a resource nor `resource:path-glob`")
    };
    let resource = |name: &str| match name {
        "*" => Ok(None),
        name if is_name(name) => Ok(Some(name.to_owned())),
        _ => Err(bad()),
    };
    match scope.split_once(':') {
        Some((name, pattern)) => {
            let paths = paths(pattern, denies)?;
            Ok(RuleCoverage::Paths(resource(name)?, Box::new(paths)))
        }
        None => Ok(match resource(scope)? {
            Some(name) => RuleCoverage::Resource(name),
            None => RuleCoverage::All,
        }),
    }
}

pub(super) fn paths(pattern: &str, denies: bool) -> Result<PathGlob, String> {
    let parts = parts(pattern)?;
    let plain = |part: &String| !matches!(part.as_str(), "" | "." | "..");
    if !parts.iter().all(plain) {
        let pattern = escape(pattern.as_bytes());
        return Err(format!(
            "no path is like '{pattern}': paths begin in the resource, without '.' and '..'"
        ));
    }
    let mut exact = vec![pattern.to_owned()];
    // What covers everything in a directory covers the directory.
    if let [before @ .., last] = parts.as_slice()
        && last == "**"
        && !before.is_empty()
    {
        exact.push(before.join("/"));
    }
    let known = parts.iter().take_while(|part| *part != "**").count();
    let above: Vec<String> = (1..=known.min(parts.len() - 1))
        .map(|length| parts[..length].join("/"))
        .collect();
    let globs = |patterns: &[String]| -> Result<Vec<GlobMatcher>, String> {
        patterns.iter().map(|one| glob(one, true)).collect()
    };
    let lower = |patterns: &[String]| -> Result<Vec<GlobMatcher>, String> {
        let lower = patterns.iter().map(|one| fold_case(one));
        globs(&lower.collect::<Vec<_>>())
    };
    Ok(PathGlob {
        like: if denies { lower(&exact)? } else { Vec::new() },
        like_above: if denies { lower(&above)? } else { Vec::new() },
        exact: globs(&exact)?,
        above: globs(&above)?,
    })
}

/// The parts of a pattern between its slashes.
fn parts(pattern: &str) -> Result<Vec<String>, String> {
    let (mut parts, mut depth, mut escaped) = (vec![String::new()], 0, false);
    for c in pattern.chars() {
        match c {
            '/' if depth > 0 => {
                return Err(
                    "a slash cannot stand in braces or brackets; write two rules".to_owned(),
                );
            }
            '/' => {
                parts.push(String::new());
                continue;
            }
            '{' | '[' if !escaped => depth += 1,
            '}' | ']' if !escaped && depth > 0 => depth -= 1,
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    Ok(parts)
}

fn glob(pattern: &str, of_paths: bool) -> Result<GlobMatcher, String> {
    let built = GlobBuilder::new(pattern)
        .literal_separator(of_paths)
        .build();
    match built {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => Err(format!("a pattern is wrong: {error}")),
    }
}
