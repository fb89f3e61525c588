//! The configuration error: what is wrong, and where in the file.

use std::fmt;

use super::PassedOver;
use crate::model::text::{Location, escape};

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file it came from.
    pub file: Location,
    /// The line, from 1; 0 where no line is to blame.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
    /// The key, as in `sandbox.undo.keep`; empty where no key is to blame.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What could have been meant.
    pub near: Option<String>,
    /// Everything that is known there.
    pub known: Vec<String>,
    /// What else to do next.
    pub advice: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", escape(self.key.as_bytes()))?;
        }
        write!(f, ": {}", escape(self.what.as_bytes()))
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// What to do next.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        if let Some(near) = &self.near {
            hints.push(format!("did you mean '{near}'?"));
        }
        if !self.known.is_empty() {
            hints.push(format!("known here: {}", self.known.join(", ")));
        }
        hints.extend(self.advice.iter().cloned());
        hints
    }

    /// The file, and why it does not count, where one goes on without it.
    pub(crate) fn passed_over(&self) -> PassedOver {
        let why = format!("it cannot be used as it is ({self}); fix it");
        (self.file.clone(), why)
    }

    /// The same of a file that was found: one can go on without it.
    pub(super) fn of_found(mut self) -> Self {
        let way = "fix the file, or continue without it: `--config /dev/null`";
        self.advice.push(way.to_owned());
        self
    }

    /// A file that cannot be used as a whole.
    pub(super) fn of_file(file: Location, what: String, advice: Vec<String>) -> Self {
        Self {
            file,
            line: 0,
            column: 0,
            key: String::new(),
            what,
            near: None,
            known: Vec::new(),
            advice,
        }
    }
}
