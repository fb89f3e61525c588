//! Hooks and settings of the private git directory: shown, since git runs what they name, and released only by name.
//!
//! A hook is released as the file that it is. Of the settings only what was changed inside is released, into what the
//! user has: the private settings are not the user's, and values that were never seen inside stay. What the user changed too
//! since the sandbox was made is a conflict.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::databases;
use super::history::{History, in_git_dir, path_of, read_file, roots};
use super::release::read_all;
use super::replace::{self, NewFile, Replacement};
use super::repository::{Repository, settings_in, subdir};
use super::seed;
use crate::fs::{Dir, remove};
use crate::model::digest::VersionDigest;
use crate::model::text::escape;
use crate::model::{Change, ChangeKind, EntryKind, ResourcePath};

const CONFIG: &str = "config";

/// Files beside the settings that say which files git looks at, and how.
const INFO: [&str; 2] = [databases::EXCLUDE, "info/attributes"];

/// The user's settings when the sandbox was made, beside the seed: no command inside sees them.
const USERS_CONFIG: &str = "user-config";

/// How many lines of a file are shown to people.
const SHOWN: usize = 20;

/// The values of each setting, in their order.
type Settings = BTreeMap<String, Vec<String>>;

/// What is looked at.
pub(super) struct Named<'a> {
    pub(super) git: &'a Git,
    pub(super) history: &'a History,
    pub(super) private: &'a dyn Sandbox,
    pub(super) repository: &'a Repository,
    /// A directory for a file that is only looked at.
    pub(super) scratch: &'a Dir,
}

/// Settings by their keys, each with the values before and those now.
type ChangedSettings = BTreeMap<String, (Vec<String>, Vec<String>)>;

/// Keeps the user's settings as they are when a sandbox is made.
pub(super) fn keep_settings(repository: &Repository, area: &Dir) -> Result<()> {
    remove::remove(area, USERS_CONFIG.as_bytes())?;
    let user = Dir::open(repository.common())?;
    seed::write(
        area,
        USERS_CONFIG,
        &file(&user, CONFIG)?.unwrap_or_default(),
    )
}

/// The user has another version than the one that the change was made from.
fn moved(path: &ResourcePath, what: String) -> StrategyError {
    StrategyError::Moved {
        path: path.clone(),
        what,
    }
}

impl Named<'_> {
    /// Everything of that kind that is not as the user has it.
    pub(super) fn changes(&self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut names = self.hooks()?;
        names.extend(INFO.map(str::to_owned));
        for name in names {
            let new = self.inside(&name)?;
            if new == self.seeded(&name)? {
                continue;
            }
            let old = self.users(&name)?;
            let kind = match (&old, &new) {
                (old, new) if old == new => continue,
                (None, _) => ChangeKind::Added,
                (_, None) => ChangeKind::Deleted,
                _ => ChangeKind::Modified,
            };
            let bytes = new.unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let mut lines: Vec<String> = text.lines().take(SHOWN).map(str::to_owned).collect();
            let more = text.lines().count().saturating_sub(SHOWN);
            if more > 0 {
                lines.push(format!("and {more} more lines"));
            }
            let digest = VersionDigest::new(&[b"git", &bytes], true);
            changes.push(change(&name, kind, lines, &digest)?);
        }
        if let Some(changed) = self.settings()? {
            let mut lines = Vec::new();
            for (key, (old, new)) in &changed {
                lines.extend(old.iter().map(|value| format!("- {key} = {value}")));
                lines.extend(new.iter().map(|value| format!("+ {key} = {value}")));
            }
            let digest = VersionDigest::new(&[b"git", lines.join("\n").as_bytes()], true);
            changes.push(change(CONFIG, ChangeKind::Modified, lines, &digest)?);
        }
        Ok(changes)
    }

    /// Stages what was named.
    pub(super) fn stage(
        &self,
        named: &[&Change],
        area: &Dir,
        all: &mut Vec<Replacement>,
    ) -> Result<()> {
        let root = self.repository.common();
        let user = Dir::open(root)?;
        for change in named {
            let inner = change.path.parts().skip(1);
            let path = inner.fold(ResourcePath::root(), |path, part| path.join(part));
            let is_config = path.as_bytes() == CONFIG.as_bytes();
            let content = match is_config {
                true => Some(self.merged_settings(&user, &change.path)?),
                false => self.content(&path, &change.path)?,
            };
            let file = NewFile {
                root,
                old: user.stat_path(&path)?,
                content: content.as_deref(),
                executable: path.as_bytes().starts_with(b"hooks/"),
                shown: change.path.clone(),
                path,
            };
            if file.old.as_ref().is_some_and(|old| !old.is_file()) {
                let what = format!("commit '{}'", change.path);
                return Err(super::refused(
                    &what,
                    "the user has something there that is no file",
                ));
            }
            replace::stage(area, all, &file)?;
        }
        Ok(())
    }

    /// The names of the hooks.
    fn hooks(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for root in roots(self.private)? {
            let Ok(root) = Dir::open(root.as_path()) else {
                continue;
            };
            for entry in match subdir(&root, b"hooks")? {
                Some(hooks) => hooks.entries()?,
                None => Vec::new(),
            } {
                if entry.meta.kind == EntryKind::File {
                    names.push(format!("hooks/{}", String::from_utf8_lossy(&entry.name)));
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn inside(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(as_users(name, read_file(self.private, name.as_bytes())?))
    }

    fn seeded(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(as_users(name, file(&Dir::open(&self.history.seed)?, name)?))
    }

    fn users(&self, name: &str) -> Result<Option<Vec<u8>>> {
        file(&Dir::open(self.repository.common())?, name)
    }

    /// The settings that were changed inside, with their values before and after.
    fn settings(&self) -> Result<Option<ChangedSettings>> {
        let (old, new) = (
            self.seeded(CONFIG)?,
            read_file(self.private, CONFIG.as_bytes())?,
        );
        if old == new {
            return Ok(None);
        }
        let (old, new) = (
            self.read_settings(&old.unwrap_or_default())?,
            self.read_settings(&new.unwrap_or_default())?,
        );
        let keys = old.keys().chain(new.keys()).cloned();
        let both = keys.map(|key| {
            let values = (of(&old, &key), of(&new, &key));
            (key, values)
        });
        let changed: BTreeMap<_, _> = both.filter(|(_, (old, new))| old != new).collect();
        Ok((!changed.is_empty()).then_some(changed))
    }

    fn config(&self, file: &str) -> GitCall<'_> {
        let path = self.scratch.path().join(file);
        let call = self.git.at(&self.history.seed);
        call.args(["config", "--file"]).args([path])
    }

    fn read_settings(&self, bytes: &[u8]) -> Result<Settings> {
        remove::remove(self.scratch, b"settings")?;
        seed::write(self.scratch, "settings", bytes)?;
        let mut settings = Settings::new();
        for (key, value) in settings_in(self.git, &self.scratch.path().join("settings"))? {
            settings.entry(key).or_default().push(value);
        }
        Ok(settings)
    }

    /// What a file becomes. Of one that the sandbox began with, the user's version must still be that.
    fn content(&self, path: &ResourcePath, shown: &ResourcePath) -> Result<Option<Vec<u8>>> {
        let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
        let new = self.inside(&name)?;
        let user = self.users(&name)?;
        let began_with = INFO.contains(&name.as_str());
        if began_with && user != self.seeded(&name)? && user != new {
            return Err(moved(shown, "the user changed it too".to_owned()));
        }
        Ok(new)
    }

    /// The settings of the user with those that were changed inside.
    fn merged_settings(&self, user: &Dir, shown: &ResourcePath) -> Result<Vec<u8>> {
        let now = file(user, CONFIG)?.unwrap_or_default();
        let area = self.history.seed.parent().map(Dir::open).transpose()?;
        let base = match &area {
            Some(area) => file(area, USERS_CONFIG)?,
            None => None,
        };
        let base = self.read_settings(base.as_ref().unwrap_or(&now))?;
        let values = self.read_settings(&now)?;
        remove::remove(self.scratch, b"merged")?;
        seed::write(self.scratch, "merged", &now)?;
        for (key, (old, new)) in self.settings()?.unwrap_or_default() {
            let (base, now) = (of(&base, &key), of(&values, &key));
            if now == new {
                continue;
            }
            if now != base {
                let key = escape(key.as_bytes());
                return Err(moved(shown, format!("the user changed '{key}' too")));
            }
            // What was not seen inside cannot have been meant: it stays, and the new values come after it.
            let added = match old == base {
                true => {
                    self.unset(&key)?;
                    new
                }
                false => {
                    let is_new = |value: &String| !old.contains(value);
                    new.into_iter().filter(is_new).collect()
                }
            };
            for value in added {
                self.config("merged").args(["--add", &key, &value]).run()?;
            }
        }
        Ok(file(self.scratch, "merged")?.unwrap_or_default())
    }

    fn unset(&self, key: &str) -> Result<()> {
        // It answers 5 where the user has no such setting.
        let said = self.config("merged").args(["--unset-all", key]).status()?;
        if matches!(said, 0 | 5) {
            return Ok(());
        }
        let what = format!("change the setting '{}'", escape(key.as_bytes()));
        Err(super::refused(&what, "git cannot write it"))
    }
}

/// A file of the private git directory as it is to be in the user's.
fn as_users(name: &str, text: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match name == databases::EXCLUDE {
        true => databases::without(text),
        false => text,
    }
}

fn of(all: &Settings, key: &str) -> Vec<String> {
    all.get(key).cloned().unwrap_or_default()
}

/// A file of a git directory; none if it is not there.
pub(super) fn file(dir: &Dir, name: &str) -> Result<Option<Vec<u8>>> {
    match dir.file_path(&path_of(name.as_bytes())?) {
        Err(error) if error.is_absent() || error.leaves() => Ok(None),
        file => Ok(Some(read_all(file?.0)?)),
    }
}

fn change(
    name: &str,
    kind: ChangeKind,
    mut lines: Vec<String>,
    digest: &VersionDigest,
) -> Result<Change> {
    let path = in_git_dir(name)?;
    lines.insert(
        0,
        format!("stays in the sandbox; `escrow commit --only {path}` commits it"),
    );
    let detail = json!({"by_name": true, "runs_later": true, "released": false, "lines": lines,
        "digest": digest});
    Ok(Change::opaque(path, kind, detail))
}
