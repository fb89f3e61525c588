//! What is wrong with a configuration, and where.

use std::fmt;

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
        hints
    }
}

/// The known name that a mistyped one is nearest to, if any is near.
pub(super) fn nearest(typed: &str, known: &[String]) -> Option<String> {
    let near = known.iter().map(|name| (distance(typed, name), name));
    let (steps, name) = near.min()?;
    let close = steps <= 1 + typed.chars().count().min(name.chars().count()) / 4;
    close.then(|| name.clone())
}

/// How many letters must be added, dropped, changed or swapped.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().take(64).collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let change = rows[i][j] + usize::from(from != to);
            let mut least = change.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && b[j - 1] == *from {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["strategy", "cleanup", "undo", "checkpoint"].map(str::to_owned);
        for (typed, meant) in [
            ("strateg", Some("strategy")),
            ("stratgey", Some("strategy")),
            ("Cleanup", Some("cleanup")),
            ("undoo", Some("undo")),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(typed, &known).as_deref(), meant, "{typed}");
        }
    }
}
