//! The kinds of resources, and which strategies each of them takes. The one definition: the
//! registry, the schema of the configuration, the command line and the documentation read it from
//! here (rule P8).

/// The word that leaves the choice to the machine.
pub const AUTO: &str = "auto";

/// A directory and everything in it.
pub const FS_DIRECTORY: &str = "fs-directory";

/// A directory at which a file system, or a part of one, is mounted.
pub const FS_MOUNT: &str = "fs-mount";

/// One regular file.
pub const FS_FILE: &str = "fs-file";

/// The base of a type of the user's own whose resources have no path: the name of one is all that is known of it.
pub const OPAQUE: &str = "opaque";

/// The same for what is reached through a URL.
pub const URL: &str = "url";

/// What of the machine a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A directory with everything in it.
    Tree,
    /// One file: a tree of one entry, in the directory that holds it.
    File,
    /// What is reached through a URL.
    Url,
    /// What only its strategy knows how to reach.
    Opaque,
}

impl Shape {
    /// The word in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::File => "file",
            Self::Url => "url",
            Self::Opaque => "opaque",
        }
    }

    /// Whether it is at a path of the file system.
    pub fn has_path(self) -> bool {
        matches!(self, Self::Tree | Self::File)
    }
}

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = [Self::Tree, Self::File, Self::Url, Self::Opaque];
        let found = known.into_iter().find(|shape| shape.as_str() == word);
        found.ok_or_else(|| format!("no resource has the shape '{word}'"))
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
    pub base: &'static str,
    /// Whether this version can work with it.
    pub supported: bool,
}

/// One line of the table of what comes with the engine.
struct BuiltinType {
    name: &'static str,
    description: &'static str,
    default: &'static str,
    auto: &'static [&'static str],
    allowed: &'static [&'static str],
    supported: bool,
}

const DIRECTORY: &[&str] = &["overlay", "copy_on_write", "filesystem_copy"];

/// What comes with the engine. What is not supported yet says what it will take.
const BUILTIN: &[BuiltinType] = &[
    BuiltinType {
        name: FS_DIRECTORY,
        description: "a directory and everything in it",
        default: AUTO,
        auto: DIRECTORY,
        allowed: &["overlay", "copy_on_write", "filesystem_copy", "none"],
        supported: true,
    },
    BuiltinType {
        name: FS_MOUNT,
        description: "a directory where a file system is mounted",
        default: AUTO,
        auto: DIRECTORY,
        allowed: &["overlay", "copy_on_write", "filesystem_copy", "none"],
        supported: true,
    },
    BuiltinType {
        name: FS_FILE,
        description: "one file",
        default: "copy_on_write",
        auto: &["copy_on_write", "filesystem_copy"],
        allowed: &["copy_on_write", "filesystem_copy", "none"],
        supported: true,
    },
    BuiltinType {
        name: "git-checkout",
        description: "a checkout of a git repository",
        default: "git_worktree",
        auto: &["git_worktree"],
        allowed: &[
            "git_worktree",
            "overlay",
            "copy_on_write",
            "filesystem_copy",
            "none",
        ],
        supported: false,
    },
    BuiltinType {
        name: "sqlite",
        description: "a SQLite database",
        default: "snapshot",
        auto: &["snapshot"],
        allowed: &[
            "snapshot",
            "transaction_rollback",
            "filesystem_copy",
            "none",
        ],
        supported: false,
    },
    BuiltinType {
        name: "postgres",
        description: "a PostgreSQL database",
        default: "transaction_rollback",
        auto: &["transaction_rollback"],
        allowed: &["transaction_rollback", "snapshot", "none"],
        supported: false,
    },
];

impl BuiltinType {
    fn to_type(&self) -> ResourceType {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        ResourceType {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            extends: None,
            default: self.default.to_owned(),
            auto: owned(self.auto),
            allowed: owned(self.allowed),
            base: self.name,
            supported: self.supported,
        }
    }
}

/// Every kind there is: what comes with the engine, then the user's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceTypes(Vec<ResourceType>);

impl Default for ResourceTypes {
    fn default() -> Self {
        Self(BUILTIN.iter().map(BuiltinType::to_type).collect())
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
            table.push_str(&format!(
                "| `{}` | {}{later} | `{}` | `{}` |\n",
                kind.name,
                kind.description,
                kind.default,
                kind.allowed.join("`, `")
            ));
        }
        table
    }

    /// Adds a kind of the user's own, or puts it in the place of the one of the same name.
    pub fn put(&mut self, kind: ResourceType) {
        self.0.retain(|other| other.name != kind.name);
        self.0.push(kind);
    }

    /// Adds a kind of the user's own; its name is free.
    pub fn add(&mut self, kind: ResourceType) {
        self.0.push(kind);
    }
}

impl ResourceType {
    /// A kind of the user's own that is no special case of another: [`OPAQUE`] or [`URL`], and served by the strategies that are
    /// named, the first by default.
    pub fn own(name: &str, base: &'static str, strategies: &[&str]) -> Self {
        let names: Vec<String> = strategies.iter().map(|&one| one.to_owned()).collect();
        Self {
            name: name.to_owned(),
            description: format!("a resource of type {name}"),
            extends: None,
            default: names.first().cloned().unwrap_or_else(|| AUTO.to_owned()),
            auto: names.clone(),
            allowed: names,
            base,
            supported: true,
        }
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
