//! Principals, actions, scopes and decisions: the vocabulary of a policy.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::path::ResourcePath;
use super::plan::is_name;
use super::text::{escape, harmless};
use super::words::words;

words! {
    /// Something that a principal may be permitted to do.
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Action {
        /// Begin a plan, make a sandbox.
        Create = "create",
        /// Read a file of a sandbox.
        Read = "read",
        /// Write a file of a sandbox, or be given its path.
        Write = "write",
        /// See what a sandbox changed.
        Diff = "diff",
        /// Run a command inside.
        Run = "run",
        /// Take, or delete, a checkpoint.
        Checkpoint = "checkpoint",
        /// Go back to a checkpoint.
        Restore = "restore",
        /// Release the changes.
        Commit = "commit",
        /// Discard the changes.
        Rollback = "rollback",
        /// Take a commit back.
        Undo = "undo",
        /// Remove the sandboxes.
        Cleanup = "cleanup",
        /// Remove what is not needed any more.
        Gc = "gc",
        /// Change resources and types; recover.
        Admin = "admin",
    }
    else |word| {
        let known = Action::ALL.map(Action::as_str).join(", ");
        format!("there is no action '{}'; there are {known}", escape(word.as_bytes()))
    }
}

/// What an action is done on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Everything there is.
    All,
    /// Some part, not known yet, of a resource, or of anything.
    Within(Option<String>),
    /// A resource as a whole.
    Resource(String),
    /// A path of a resource.
    Path(String, ResourcePath),
}

impl Scope {
    /// A path of a resource, or the resource if it is its root.
    pub fn at(resource: &str, path: ResourcePath) -> Self {
        match path.is_root() {
            true => Self::Resource(resource.to_owned()),
            false => Self::Path(resource.to_owned(), path),
        }
    }

    /// Reads what was typed: `*`, a resource, or `resource:path`.
    pub fn parse(typed: &str) -> Result<Self, String> {
        let refuse =
            |why: &str| format!("'{}' is not a valid scope: {why}", escape(typed.as_bytes()));
        let (name, path) = match typed.split_once(':') {
            _ if typed == "*" => return Ok(Self::All),
            Some((name, path)) => (name, Some(path)),
            None => (typed, None),
        };
        if !is_name(name) {
            return Err(refuse("it is `*`, a resource, or `resource:path`"));
        }
        match path.map(|path| ResourcePath::parse(path.as_bytes())) {
            None => Ok(Self::Resource(name.to_owned())),
            Some(Ok(path)) => Ok(Self::at(name, path)),
            Some(Err(error)) => Err(refuse(error.why)),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All | Self::Within(None) => f.write_str("*"),
            Self::Within(Some(name)) | Self::Resource(name) => f.write_str(name),
            Self::Path(name, path) => write!(f, "{name}:{path}"),
        }
    }
}

/// What a policy says of one question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Whether it may be done.
    pub permitted: bool,
    /// Who.
    pub principal: String,
    /// What; a word that is no action is denied.
    pub action: String,
    /// On what.
    pub scope: String,
    /// Why.
    pub reason: String,
    /// The number of the rule that decided, counted from 1.
    pub rule: Option<usize>,
}

/// Why a text cannot name a principal; `None` where it can.
pub fn principal_fault(text: &str) -> Option<&'static str> {
    match text {
        "" => Some("it is empty"),
        _ if text.len() > 128 => Some("it is over 128 bytes long"),
        _ if text.trim() != text => Some("it begins or ends with a space"),
        _ if harmless(text.as_bytes()) != text || text.contains(['\n', '\t']) => {
            Some("it has invisible characters")
        }
        _ => None,
    }
}
