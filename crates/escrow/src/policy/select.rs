//! Release patterns: select changes by path, in the syntax of policy scopes.

use std::collections::BTreeMap;

use super::rules::{PathGlob, paths};
use crate::model::plan::is_name;
use crate::model::text::{escape, nearest};
use crate::model::{Change, ChosenHunks, ResourcePath};

/// One pattern: `[resource:]path-glob`. What it names it takes with everything below.
#[derive(Debug, Clone)]
pub struct ReleasePattern {
    typed: String,
    resource: Option<String>,
    /// `None`: the whole resource.
    paths: Option<Box<PathGlob>>,
    /// This path, instead.
    exact: Option<ResourcePath>,
}

impl ReleasePattern {
    /// Reads what was typed, or says what is wrong with it.
    pub fn parse(typed: &str) -> Result<Self, String> {
        let (resource, pattern) = match typed.split_once(':') {
            Some(("*", pattern)) => (None, pattern),
            Some((name, pattern)) if is_name(name) => (Some(name.to_owned()), pattern),
            _ => (None, typed),
        };
        let trimmed = pattern.strip_suffix('/').unwrap_or(pattern);
        let paths = match trimmed {
            "" => return Err("it names no path".to_owned()),
            "." | "**" => None,
            trimmed => Some(Box::new(paths(trimmed, false)?)),
        };
        Ok(Self {
            typed: typed.to_owned(),
            resource,
            paths,
            exact: None,
        })
    }

    /// The same as in a list of what is ignored: one that names no directory that it lies in means any.
    pub fn anywhere(typed: &str) -> Result<Self, String> {
        let at = match typed.split_once(':') {
            Some((name, _)) if name == "*" || is_name(name) => name.len() + 1,
            _ => 0,
        };
        let (resource, pattern) = typed.split_at(at);
        match pattern.strip_suffix('/').unwrap_or(pattern) {
            bare if bare.contains('/') || matches!(bare, "" | "." | "**") => Self::parse(typed),
            bare => Self::parse(&format!("{resource}**/{bare}")),
        }
    }

    /// One path of a resource, whatever is in its name, with everything below.
    pub fn exact(resource: &str, path: &ResourcePath) -> Self {
        Self {
            typed: format!("{resource}:{path}"),
            resource: Some(resource.to_owned()),
            paths: None,
            exact: Some(path.clone()),
        }
    }

    /// What was typed.
    pub fn text(&self) -> &str {
        &self.typed
    }

    /// Whether it names this resource, and all of it.
    pub fn is_all_of(&self, resource: &str) -> bool {
        let whole = self.paths.is_none() && self.exact.is_none();
        whole && self.resource.as_deref() == Some(resource)
    }

    fn covers(&self, resource: &str, path: &ResourcePath) -> bool {
        if self.resource.as_deref().is_some_and(|one| one != resource) {
            return false;
        }
        if let Some(exact) = &self.exact {
            return path.lies_in(exact);
        }
        let Some(paths) = &self.paths else {
            return true;
        };
        paths.names(path) || path.ancestors().any(|above| paths.names(&above))
    }

    /// Whether it covers a path whose first name is written out in it.
    fn names(&self, resource: &str, path: &ResourcePath) -> bool {
        if self.exact.is_some() {
            return self.covers(resource, path);
        }
        let typed = self.typed.rsplit(':').next().unwrap_or_default();
        let first = typed.split('/').next().unwrap_or_default();
        path.parts().next() == Some(first.as_bytes()) && self.covers(resource, path)
    }

    /// A pattern that is like this one and takes something of these, for a user who mistyped.
    fn nearest(&self, members: &[(&str, &[Change])]) -> Option<String> {
        let bare = self.typed.rsplit(':').next().unwrap_or_default();
        let anywhere = Self::parse(&format!("**/{bare}")).ok()?;
        let all = members.iter().flat_map(|(resource, changes)| {
            let paths = changes.iter().map(|change| &change.path);
            paths.map(|path| (*resource, path))
        });
        let mut known = BTreeMap::new();
        for (resource, path) in all.take(MOST) {
            if anywhere.covers(resource, path) {
                return Some(anywhere.typed);
            }
            let above = path.ancestors().chain([path.clone()]);
            for one in above.filter(|one| !one.is_root()) {
                known.entry(one.to_string()).or_insert(resource);
            }
        }
        let texts: Vec<String> = known.keys().cloned().collect();
        let near = nearest(bare, &texts)?;
        known
            .get(&near)
            .map(|resource| format!("{resource}:{near}"))
    }
}

/// Among how many changes the one that was meant is looked for.
const MOST: usize = 2000;

/// What of a plan is released.
#[derive(Debug, Clone, Default)]
pub struct ReleaseSelection {
    /// Only what one of these covers; everything if there is none.
    pub only: Vec<ReleasePattern>,
    /// But nothing that one of these covers.
    pub exclude: Vec<ReleasePattern>,
    /// Of these files of resources, which are among it, only some hunks.
    pub hunks: BTreeMap<String, BTreeMap<ResourcePath, ChosenHunks>>,
}

/// A pattern that covers no change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmatchedPattern {
    /// What was typed, fit to be shown.
    pub pattern: String,
    /// What may have been meant.
    pub near: Option<String>,
}

impl ReleaseSelection {
    /// Whether everything is released.
    pub fn is_everything(&self) -> bool {
        self.only.is_empty() && self.exclude.is_empty() && self.hunks.is_empty()
    }

    /// Whether nothing of a resource can be wanted, whatever its changes are.
    pub fn leaves_out(&self, resource: &str) -> bool {
        let other = |one: &ReleasePattern| one.resource.as_ref().is_some_and(|of| of != resource);
        let excluded = self.exclude.iter().any(|one| one.is_all_of(resource));
        excluded || !self.only.is_empty() && self.only.iter().all(other)
    }

    /// Whether a path is wanted.
    pub fn takes(&self, resource: &str, path: &ResourcePath) -> bool {
        let any =
            |patterns: &[ReleasePattern]| patterns.iter().any(|one| one.covers(resource, path));
        (self.only.is_empty() || any(&self.only)) && !any(&self.exclude)
    }

    /// Whether paths that are released only together are wanted: one of them is, and none is excluded.
    pub fn takes_together<'a>(
        &self,
        resource: &str,
        paths: impl Iterator<Item = &'a ResourcePath> + Clone,
    ) -> bool {
        let excluded = |path: &ResourcePath| {
            let mut all = self.exclude.iter();
            all.any(|one| one.covers(resource, path))
        };
        let mut all = paths.clone();
        all.any(|path| self.takes(resource, path)) && !paths.clone().any(excluded)
    }

    /// Whether a path is asked for by its name, not only by a pattern that takes everything.
    pub fn names(&self, resource: &str, path: &ResourcePath) -> bool {
        self.only.iter().any(|one| one.names(resource, path)) && self.takes(resource, path)
    }

    /// The first pattern that covers none of these changes.
    pub fn unmatched(&self, members: &[(&str, &[Change])]) -> Option<UnmatchedPattern> {
        let covered = |pattern: &&ReleasePattern| {
            let member = |(resource, changes): &(&str, &[Change])| {
                let mut paths = changes.iter().map(|change| &change.path);
                paths.any(|path| pattern.covers(resource, path))
            };
            !members.iter().any(member)
        };
        let found = self.only.iter().chain(&self.exclude).find(covered)?;
        Some(UnmatchedPattern {
            pattern: escape(found.typed.as_bytes()),
            near: found.nearest(members),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EntryInfo, EntryKind};

    fn path(text: &str) -> ResourcePath {
        ResourcePath::parse(text.as_bytes()).expect("a plain path")
    }

    #[test]
    fn a_pattern_takes_what_it_names_and_what_lies_below() {
        let rows = [
            ("src", "app", "src/a/b.rs", true),
            ("src/", "app", "src", true),
            ("src/**", "app", "src", true),
            ("src/*.rs", "app", "src/a.rs", true),
            ("src/*.rs", "app", "src/a/b.rs", false),
            ("src/*", "app", "src/a/b.rs", true),
            ("**/*.log", "app", "x.log", true),
            ("**/*.log", "app", "a/b/x.log", true),
            ("app:docs", "app", "docs/x", true),
            ("app:docs", "lib", "docs/x", false),
            ("*:docs", "lib", "docs/x", true),
            ("*:a:b", "app", "a:b", true),
            ("app:.", "app", "anything", true),
            ("src", "app", "srcs", false),
            ("-x", "app", "-x", true),
        ];
        for (typed, resource, at, expected) in rows {
            let pattern = ReleasePattern::parse(typed).expect("a pattern");
            assert_eq!(
                pattern.covers(resource, &path(at)),
                expected,
                "{typed} {at}"
            );
        }
        let rows = [
            ("*.log", "a/x.log", true),
            ("app:target/", "a/target/x", true),
            ("build/x", "a/build/x", false),
            ("build/x", "build/x/y", true),
            ("lib:*.log", "x.log", false),
        ];
        for (typed, at, expected) in rows {
            let pattern = ReleasePattern::anywhere(typed).expect("a pattern");
            assert_eq!(pattern.covers("app", &path(at)), expected, "{typed} {at}");
        }
        for typed in ["", "app:", "a/../b", "/etc", "a//b", "a[", "app:/x"] {
            assert!(ReleasePattern::parse(typed).is_err(), "{typed}");
        }
    }

    #[test]
    fn who_mistypes_is_told_what_is_near() {
        let facts = EntryInfo {
            kind: EntryKind::File,
            size: 0,
            mode: 0,
            target: None,
        };
        let changes =
            ["src/main.rs", "docs/guide.md"].map(|text| Change::added(path(text), facts.clone()));
        let near = |typed: &str| {
            let selection = ReleaseSelection {
                only: vec![ReleasePattern::parse(typed).expect("a pattern")],
                ..ReleaseSelection::default()
            };
            let found = selection.unmatched(&[("app", &changes)]);
            found.map(|one| one.near)
        };
        assert_eq!(near("src"), None);
        assert_eq!(near("main.rs"), Some(Some("**/main.rs".to_owned())));
        assert_eq!(
            near("scr/main.rs"),
            Some(Some("app:src/main.rs".to_owned()))
        );
        assert_eq!(near("nothing-like-it"), Some(None));
    }
}
