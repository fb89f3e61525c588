//! The kinds of resources, and which strategies each of them takes. The one definition: the
//! registry, the schema of the configuration, the command line and the documentation read it from
//! here (rule P8).

use std::ffi::OsStr;

use super::target::Options;
use super::words::words;

/// The word that leaves the choice to the machine.
pub const AUTO: &str = "auto";

/// A directory and everything in it.
pub const FS_DIRECTORY: &str = "fs-directory";

/// A directory at which a file system, or a part of one, is mounted.
pub const FS_MOUNT: &str = "fs-mount";

/// One regular file.
pub const FS_FILE: &str = "fs-file";

/// A checkout of a git repository.
pub const GIT_CHECKOUT: &str = "git-checkout";

/// A SQLite database: one file, with what SQLite keeps beside it.
pub const SQLITE: &str = "sqlite";

/// A database of a PostgreSQL server.
pub const POSTGRES: &str = "postgres";

/// The base of a type of the user's own whose resources have no path: the name of one is all that is known of it.
pub const OPAQUE: &str = "opaque";

/// The same for what is reached through a URL.
pub const URL: &str = "url";

/// Whether a location is a URL of a database, and no path.
pub fn is_url(location: &OsStr) -> bool {
    let bytes = location.as_encoded_bytes();
    let schemes = ["postgres://", "postgresql://"];
    schemes
        .iter()
        .any(|scheme| bytes.starts_with(scheme.as_bytes()))
}

words! {
    /// What of the machine a resource is.
    pub enum Shape {
        /// A directory with everything in it.
        Tree = "tree",
        /// One file: a tree of one entry, in the directory that holds it.
        File = "file",
        /// A database in one file, which is reached through its engine alone: its paths are tables and rows.
        Database = "database",
        /// What is reached through a URL.
        Url = "url",
        /// What only its strategy knows how to reach.
        Opaque = "opaque",
    }
    else |word| format!("no resource has the shape '{word}'")
}

impl Shape {
    /// Whether it is at a path of the file system.
    pub fn has_path(self) -> bool {
        matches!(self, Self::Tree | Self::File | Self::Database)
    }

    /// Whether it is one file at its path.
    pub fn is_file(self) -> bool {
        matches!(self, Self::File | Self::Database)
    }
}

/// A kind of resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceType {
    /// Its name, as typed after `--type`.
    pub name: String,
    /// What it is.
    pub description: String,
    /// The kind it is a special case of; `None` for those that come with the engine.
    pub extends: Option<String>,
    /// The strategy of resources that ask for none.
    pub default: String,
    /// What `auto` tries, in this order.
    pub auto: Vec<String>,
    /// Every strategy that may be asked for by name.
    pub allowed: Vec<String>,
    /// The kind that comes with the engine and is at the bottom of it: whose handler serves it.
    pub base: String,
    /// Whether this version can work with it.
    pub supported: bool,
    /// The JSON Schema of the options of its resources, if it has one.
    pub options: Option<Options>,
}

/// What comes with the engine: name, what it is, the default, what `auto` tries, and what else may be asked for. What is
/// not supported yet says what it will take.
const BUILTIN: [(&str, &str, &str, &str, &str, bool); 6] = [
    (
        FS_DIRECTORY,
        "a directory and everything in it",
        AUTO,
        DIRECTORY,
        "none",
        true,
    ),
    (
        FS_MOUNT,
        "a directory where a file system is mounted",
        AUTO,
        DIRECTORY,
        "none",
        true,
    ),
    (
        FS_FILE,
        "one file",
        "copy_on_write",
        "copy_on_write filesystem_copy",
        "none",
        true,
    ),
    (
        GIT_CHECKOUT,
        "a checkout of a git repository",
        "git_worktree",
        "git_worktree overlay copy_on_write filesystem_copy",
        "snapshot none",
        true,
    ),
    (
        SQLITE,
        "a SQLite database",
        "snapshot",
        "snapshot filesystem_copy",
        "transaction_rollback none",
        true,
    ),
    (
        POSTGRES,
        "a PostgreSQL database",
        "transaction_rollback",
        "transaction_rollback",
        "snapshot none",
        true,
    ),
];

const DIRECTORY: &str = "snapshot overlay copy_on_write filesystem_copy";

/// Every kind there is: what comes with the engine, then the user's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceTypes(Vec<ResourceType>);

impl Default for ResourceTypes {
    fn default() -> Self {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let one = |(name, description, default, auto, more, supported): (
            &str,
            &str,
            &str,
            &str,
            &str,
            bool,
        )| {
            ResourceType {
                name: name.to_owned(),
                description: description.to_owned(),
                extends: None,
                default: default.to_owned(),
                auto: words(auto),
                allowed: [words(auto), words(more)].concat(),
                base: name.to_owned(),
                supported,
                options: None,
            }
        };
        Self(BUILTIN.map(one).into())
    }
}

impl ResourceTypes {
    /// Every kind.
    pub fn all(&self) -> &[ResourceType] {
        &self.0
    }

    /// The kind of this name.
    pub fn named(&self, name: &str) -> Option<&ResourceType> {
        self.0.iter().find(|kind| kind.name == name)
    }

    /// Every name.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|kind| kind.name.clone()).collect()
    }

    /// The kinds as a table, for the documentation.
    pub fn table(&self) -> String {
        let mut table = "| type | what it is | default | allowed |\n|---|---|---|---|\n".to_owned();
        for kind in &self.0 {
            let later = if kind.supported {
                ""
            } else {
                " (not supported yet)"
            };
            let (name, what, default) = (&kind.name, &kind.description, &kind.default);
            let allowed = kind.allowed.join("`, `");
            table.push_str(&format!(
                "| `{name}` | {what}{later} | `{default}` | `{allowed}` |\n"
            ));
        }
        table
    }

    /// Adds a kind of the user's own, or puts it in the place of the one of the same name.
    pub fn put(&mut self, kind: ResourceType) {
        self.0.retain(|other| other.name != kind.name);
        self.0.push(kind);
    }
}

impl ResourceType {
    /// A kind of the user's own that is no special case of another: [`OPAQUE`] or [`URL`], and served by the strategies that are
    /// named, the first by default.
    pub fn own(name: &str, base: &str, strategies: &[&str]) -> Self {
        let names: Vec<String> = strategies.iter().map(|&one| one.to_owned()).collect();
        Self {
            name: name.to_owned(),
            description: format!("a resource of type {name}"),
            extends: None,
            default: names.first().cloned().unwrap_or_else(|| AUTO.to_owned()),
            auto: names.clone(),
            allowed: names,
            base: base.to_owned(),
            supported: true,
            options: None,
        }
    }

    /// Whether it is the user's own, and does not come with the engine.
    pub fn is_own(&self) -> bool {
        BUILTIN.iter().all(|(name, ..)| *name != self.name)
    }

    /// A special case of this kind: with another default, and with fewer strategies, if any are
    /// named.
    pub fn special(
        &self,
        name: &str,
        description: Option<&str>,
        default: Option<&str>,
        strategies: &[String],
    ) -> Self {
        let mut kind = self.clone();
        name.clone_into(&mut kind.name);
        kind.extends = Some(self.name.clone());
        kind.description = description.map_or_else(|| self.description.clone(), str::to_owned);
        if !strategies.is_empty() {
            kind.allowed = strategies.to_vec();
            kind.auto.retain(|name| strategies.contains(name));
        }
        if let Some(default) = default {
            default.clone_into(&mut kind.default);
            // What is named as the default is allowed, also where it is a program of the user's.
            if default != AUTO && !kind.allowed.iter().any(|name| name == default) {
                kind.allowed.push(default.to_owned());
            }
        }
        kind
    }
}
