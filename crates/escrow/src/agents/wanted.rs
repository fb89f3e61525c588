//! What an agent wanted to change of its executing configuration: kept out, named at the end of the run, and kept here, so that the user
//! can look at it and take it over.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::credentials::{private_file, read, read_real, write_real};
use super::home::{AgentHome, flat};
use super::merged::{self, KeyPath};
use super::paths::without_links;
use crate::fs::state_dir::room;
use crate::fs::{Dir, Result};

const WANTED: &[u8] = b"wanted";
const INDEX: &[u8] = b"index.json";

/// The largest file that is kept for a look.
pub(crate) const MOST: u64 = 4 << 20;

/// The largest merged file.
pub(crate) const MOST_MERGED: u64 = 64 << 20;

/// How deep values are that are kept.
const DEEPEST: usize = 64;

/// How many changes are kept.
const CHANGES: usize = 1_000;

/// A change that was kept out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WantedChange {
    /// The path, below the home directory.
    pub path: String,
    /// The change in a few words, as in `+1 hook SessionStart`.
    pub summary: String,
    /// The plan in which it was made, by name.
    pub plan: String,
    /// The same by its id: in another plan it is said again.
    #[serde(default)]
    plan_id: String,
    /// What is to be there.
    what: WantedContent,
    /// A digest of the real file as it was; empty where there was none.
    was: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WantedContent {
    /// A file with this name among those that are kept, and its mode.
    File(String, u16),
    /// Nothing.
    Gone,
    /// Other values of keys.
    Keys(Vec<(KeyPath, Option<Value>)>),
    /// Something that is named, but not kept.
    Unkept,
}

/// A change as it was found inside.
pub(crate) enum FoundChange {
    File(Vec<u8>, u16),
    Gone,
    Keys(Vec<(KeyPath, Option<Value>)>),
    /// Something that cannot be kept for a look, in words.
    Unkept(String),
}

/// Notes a change of the file at `inner`, below `home`; returns it where it is another one than was noted before.
pub(crate) fn note(
    agent: &AgentHome,
    (home, inner): (&Path, &Path),
    found: FoundChange,
    (plan, plan_id): (&str, &str),
) -> Result<Option<WantedChange>> {
    let path = inner.to_string_lossy().into_owned();
    let said = match &found {
        FoundChange::Unkept(words) => Some(words.clone()),
        _ => None,
    };
    let real = match read_real(&without_links(&home.join(inner)), MOST_MERGED) {
        Ok(real) => real.map(|(bytes, _)| bytes),
        // Something else than a file: nothing to compare with.
        Err(_) => None,
    };
    let dir = room(&agent.dir, WANTED)?;
    let mut all = list(agent)?;
    let name = flat(&path).filter(|_| inner.to_str().is_some());
    let (what, new) = match (found, name) {
        (FoundChange::Gone, Some(_)) => (WantedContent::Gone, None),
        (FoundChange::Keys(keys), Some(_)) if is_shallow(&keys) => {
            let mut object = real.as_deref().and_then(merged::object).unwrap_or_default();
            for (path, value) in &keys {
                merged::set(&mut object, path, value.clone());
            }
            (WantedContent::Keys(keys), Some(merged::text(&object)))
        }
        (FoundChange::File(bytes, mode), Some(name)) => {
            let known = read(&dir, &name, MOST)?;
            if known.is_none_or(|(known, _)| known != bytes) {
                private_file(&dir, &name, &bytes)?;
            }
            let name = String::from_utf8_lossy(&name).into_owned();
            (WantedContent::File(name, mode & 0o755), Some(bytes))
        }
        _ => (WantedContent::Unkept, None),
    };
    let words = match (&what, said) {
        (WantedContent::Unkept, Some(words)) => {
            format!("{words}; look at it with `escrow diff --scratch`")
        }
        (WantedContent::Unkept, None) => {
            "changed; look at it with `escrow diff --scratch`".to_owned()
        }
        _ => summary(real.as_deref(), new.as_deref()),
    };
    let change = WantedChange {
        path,
        summary: words,
        plan: plan.to_owned(),
        plan_id: plan_id.to_owned(),
        was: real.map_or_else(String::new, |bytes| digest(&bytes)),
        what,
    };
    let alike = |one: &WantedChange| {
        let known = (&one.path, &one.plan_id, &one.summary, &one.what, &one.was);
        let new = (&change.path, &change.plan_id, &change.summary);
        known == (new.0, new.1, new.2, &change.what, &change.was)
    };
    if all.iter().any(alike) {
        return Ok(None);
    }
    all.retain(|one| one.path != change.path);
    all.push(change.clone());
    // The oldest make room.
    for old in all.drain(..all.len().saturating_sub(CHANGES)) {
        remove_content(&dir, &old)?;
    }
    write_index(&dir, &all)?;
    Ok(Some(change))
}

/// Whether values can be written and read again: a parser takes documents up to a depth.
fn is_shallow(keys: &[(KeyPath, Option<Value>)]) -> bool {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
            Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    keys.iter()
        .all(|(_, value)| value.as_ref().is_none_or(|value| depth(value) < DEEPEST))
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

fn write_index(dir: &Dir, all: &[WantedChange]) -> Result<()> {
    let text = serde_json::to_vec(all).expect("the index is JSON");
    private_file(dir, INDEX, &text)
}

/// Every change that was kept out and is neither taken over nor dropped.
pub(crate) fn list(agent: &AgentHome) -> Result<Vec<WantedChange>> {
    let read = room(&agent.dir, WANTED).and_then(|dir| dir.read(INDEX));
    match read {
        Err(error) if error.is_absent() => Ok(Vec::new()),
        read => Ok(serde_json::from_slice(&read?).unwrap_or_default()),
    }
}

/// The content of the real file and the wanted one; `None` where there is no file.
pub type FileVersions = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Both versions of a file: the real one, and the one that was wanted.
pub(crate) fn versions(
    agent: &AgentHome,
    home: &Path,
    change: &WantedChange,
) -> Result<FileVersions> {
    let at = without_links(&home.join(&change.path));
    let real = read_real(&at, MOST_MERGED)?.map(|(bytes, _)| bytes);
    let new = match &change.what {
        WantedContent::Gone | WantedContent::Unkept => None,
        WantedContent::File(name, _) => {
            let dir = room(&agent.dir, WANTED)?;
            read(&dir, name.as_bytes(), MOST)?.map(|(bytes, _)| bytes)
        }
        WantedContent::Keys(keys) => {
            let mut object = real.as_deref().and_then(merged::object).unwrap_or_default();
            for (path, value) in keys {
                merged::set(&mut object, path, value.clone());
            }
            Some(merged::text(&object))
        }
    };
    Ok((real, new))
}

/// Whether the real file is another one than the agent saw. Of keys, the others may have changed.
pub(crate) fn is_stale(change: &WantedChange, real: Option<&[u8]>) -> bool {
    !matches!(change.what, WantedContent::Keys(_))
        && change.was != real.map_or_else(String::new, digest)
}

/// Whether the wanted version is kept, so that it can be taken over.
pub(crate) fn is_kept(change: &WantedChange) -> bool {
    change.what != WantedContent::Unkept
}

/// Puts the wanted version in the place of the real file.
pub(crate) fn accept(agent: &AgentHome, home: &Path, change: &WantedChange) -> Result<()> {
    let at = without_links(&home.join(&change.path));
    let (_, new) = versions(agent, home, change)?;
    let meta = read_real(&at, MOST_MERGED)?.map(|(_, meta)| meta);
    match new {
        Some(bytes) => {
            let mode = match change.what {
                WantedContent::File(_, mode) => mode & 0o755,
                _ => meta.map_or(0o600, |meta| meta.mode & 0o777),
            };
            let was = meta.map(|meta| crate::fs::Meta { mode, ..meta });
            write_real(&at, &bytes, was.as_ref(), mode)?;
        }
        None if meta.is_some() => {
            let parent = Dir::open(at.parent().unwrap_or(Path::new("/")))?;
            let name = at.file_name().unwrap_or_default();
            parent.unlink(std::os::unix::ffi::OsStrExt::as_bytes(name))?;
        }
        None => {}
    }
    drop_change(agent, &change.path)
}

/// Forgets a change.
pub(crate) fn drop_change(agent: &AgentHome, path: &str) -> Result<()> {
    let dir = room(&agent.dir, WANTED)?;
    let mut all = list(agent)?;
    let gone: Vec<WantedChange> = all.extract_if(.., |one| one.path == path).collect();
    write_index(&dir, &all)?;
    gone.iter().try_for_each(|one| remove_content(&dir, one))
}

fn remove_content(dir: &Dir, change: &WantedChange) -> Result<()> {
    let WantedContent::File(name, _) = &change.what else {
        return Ok(());
    };
    match dir.unlink(name.as_bytes()) {
        Err(error) if error.is_absent() => Ok(()),
        answer => answer,
    }
}

/// A change in a few words.
fn summary(old: Option<&[u8]>, new: Option<&[u8]>) -> String {
    let objects = old
        .map_or_else(|| Some(serde_json::Map::new()), merged::object)
        .zip(new.and_then(merged::object));
    match (old, new, objects) {
        (_, None, _) => "deleted".to_owned(),
        (_, _, Some((old, new))) => {
            let said = keys(&old, &new);
            match said.is_empty() {
                true => "changed".to_owned(),
                false => said.join(", "),
            }
        }
        (None, Some(_), _) => "added".to_owned(),
        (Some(_), Some(_), _) => "changed".to_owned(),
    }
}

/// How many keys are named of one file.
const NAMED: usize = 4;

/// Which keys of a configuration differ, in words.
fn keys(old: &serde_json::Map<String, Value>, new: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut said = Vec::new();
    let mut all: Vec<&String> = old.keys().chain(new.keys()).collect();
    all.sort();
    all.dedup();
    for key in all {
        let (old, new) = (old.get(key), new.get(key));
        if old == new {
            continue;
        }
        let none = serde_json::Map::new();
        let inner = |value: Option<&Value>| match value {
            None => Some(none.clone()),
            Some(value) => value.as_object().cloned(),
        };
        match (key.as_str(), inner(old), inner(new)) {
            ("hooks", Some(old), Some(new)) => said.extend(numbers("hook", &old, &new)),
            ("mcpServers" | "mcp" | "mcp_servers", Some(old), Some(new)) => {
                let names = new
                    .iter()
                    .filter(|(name, value)| old.get(*name) != Some(value));
                said.extend(names.map(|(name, _)| format!("MCP server {name}")));
                let gone = old.keys().filter(|name| !new.contains_key(*name));
                said.extend(gone.map(|name| format!("-MCP server {name}")));
            }
            ("permissions", Some(old), Some(new)) => said.extend(numbers("permission", &old, &new)),
            _ => said.push(match (old, new) {
                (None, _) => format!("+{key}"),
                (_, None) => format!("-{key}"),
                _ => key.clone(),
            }),
        }
    }
    let more = said.len().saturating_sub(NAMED);
    said.truncate(NAMED);
    if more > 0 {
        said.push(format!("{more} more"));
    }
    said
}

/// How many entries of each list came or went.
fn numbers(
    what: &str,
    old: &serde_json::Map<String, Value>,
    new: &serde_json::Map<String, Value>,
) -> Vec<String> {
    let length = |value: Option<&Value>| match value {
        Some(Value::Array(all)) => all.len(),
        Some(_) => 1,
        None => 0,
    };
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let changed = names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name));
    let said = changed.map(|name| {
        let (had, has) = (length(old.get(name)), length(new.get(name)));
        match has.cmp(&had) {
            std::cmp::Ordering::Greater => format!("+{} {what} {name}", has - had),
            std::cmp::Ordering::Less => format!("-{} {what} {name}", had - has),
            std::cmp::Ordering::Equal => format!("other {what} {name}"),
        }
    });
    said.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_a_few_words() {
        let of = |old: Option<&str>, new: Option<&str>| {
            summary(old.map(str::as_bytes), new.map(str::as_bytes))
        };
        let hook = r#"{"hooks":{"SessionStart":[{"x":1}]},"theme":"dark"}"#;
        assert_eq!(
            of(Some(r#"{"theme":"dark"}"#), Some(hook)),
            "+1 hook SessionStart"
        );
        assert_eq!(
            of(None, Some(r#"{"mcpServers":{"evil":{}}}"#)),
            "MCP server evil"
        );
        assert_eq!(
            of(Some("{}"), Some(r#"{"permissions":{"allow":["a","b"]}}"#)),
            "+2 permission allow"
        );
        assert_eq!(of(Some("{}"), Some(r#"{"env":1}"#)), "+env");
        assert_eq!(of(None, Some("# a skill")), "added");
        assert_eq!(of(Some("a"), Some("b")), "changed");
        assert_eq!(of(Some("a"), None), "deleted");
    }
}
