//! Options of a git checkout: what its release does beside moving the branch that was checked out.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::error::Result;
use crate::model::Options;

/// Every key there is; `base` says what the sandbox begins with.
const KNOWN: &str = "base, commit, refs, sign, squash";

/// What was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GitOptions {
    /// `refs: all`: every branch and tag that moved inside is released.
    pub(super) all_refs: bool,
    /// `squash: true`: what is released is one commit.
    pub(super) squash: bool,
    /// `commit: true`: work that was left uncommitted becomes a commit.
    pub(super) commit: bool,
    /// `sign: inherit`: commits that the release makes are signed where the user's settings say so.
    pub(super) sign: bool,
}

impl GitOptions {
    /// Reads them. A key or a value that means nothing is refused, with those that do.
    pub(super) fn read(given: &Options) -> Result<Self> {
        let mut options = Self::default();
        for (key, value) in given {
            match (key.as_str(), value) {
                ("base", _) => {}
                ("refs", Value::String(which)) if which == "all" => options.all_refs = true,
                ("refs", Value::String(which)) if which == "checked_out" => {}
                ("refs", value) => return Err(bad(key, value, "checked_out, all")),
                ("squash", Value::Bool(wanted)) => options.squash = *wanted,
                ("commit", Value::Bool(wanted)) => options.commit = *wanted,
                ("sign", Value::String(how)) if how == "inherit" => options.sign = true,
                ("sign", Value::String(how)) if how == "never" => {}
                ("sign", value) => return Err(bad(key, value, "never, inherit")),
                ("squash" | "commit", value) => return Err(bad(key, value, "true, false")),
                _ => {
                    let what = format!("take the option '{key}'");
                    return Err(super::refused(&what, &format!("there are {KNOWN}")));
                }
            }
        }
        Ok(options)
    }
}

fn bad(key: &str, value: &Value, known: &str) -> super::StrategyError {
    let what = format!("take '{key}: {value}'");
    super::refused(&what, &format!("it can be {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_nothing_is_refused_with_what_does() {
        let read = |text: &str| {
            let given = serde_json::from_str(text).expect("it is JSON");
            GitOptions::read(&given).map_err(|error| error.to_string())
        };
        let all = GitOptions {
            all_refs: true,
            squash: true,
            commit: true,
            sign: true,
        };
        let given =
            r#"{"refs": "all", "squash": true, "commit": true, "sign": "inherit", "base": "HEAD"}"#;
        assert_eq!(read(given), Ok(all));
        assert_eq!(read("{}"), Ok(GitOptions::default()));
        assert_eq!(
            read(r#"{"refs": "checked_out", "squash": false}"#),
            Ok(GitOptions::default())
        );
        for (given, known) in [
            (r#"{"refs": "some"}"#, "checked_out, all"),
            (r#"{"squash": "yes"}"#, "true, false"),
            (r#"{"sign": true}"#, "never, inherit"),
            (r#"{"reffs": "all"}"#, "base, commit, refs, sign, squash"),
        ] {
            let said = read(given).expect_err("it means nothing");
            assert!(said.contains(known), "{said}");
        }
    }
}
