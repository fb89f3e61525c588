//! Where the paths of a preset lie in a home directory, and what a path there is to an agent.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{AgentPreset, MergedFile, fits};
use crate::fs::{Dir, state_dir};
use crate::model::EntryKind;

/// Directories of the home directory that many programs share: below these an agent has one of its own.
const SHARED: [&str; 4] = [".config", ".local/share", ".local/state", ".local/bin"];

/// The paths of a preset in one home directory.
#[derive(Debug, Clone)]
pub(crate) struct AgentPaths {
    pub(crate) preset: Arc<AgentPreset>,
    /// The home directory, without links.
    pub(crate) home: PathBuf,
    /// Directories of the preset that variables of the caller moved, and where to.
    moved: Vec<(String, PathBuf)>,
}

/// An entry of a preset: where it lies, and which name stands for it in the agent home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PresetEntry {
    /// Its path, without links.
    pub(crate) at: PathBuf,
    /// The same from the home directory.
    pub(crate) inner: PathBuf,
    /// The place of the entry itself from the home directory, which may be a link to `inner`.
    pub(crate) own: PathBuf,
    /// The path of the preset, without a final `/`: it names the entry in the agent home, wherever that is moved to.
    pub(crate) name: String,
    /// Whether it means a directory.
    pub(crate) is_dir: bool,
}

/// A path of the home directory, or the names in a directory, that an agent executes or obeys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecutingPath {
    dir: PathBuf,
    /// The names in the directory; everything below it where there are none.
    name: Option<String>,
}

impl ExecutingPath {
    pub(crate) fn means(&self, inner: &Path) -> bool {
        let Some(pattern) = &self.name else {
            return inner.starts_with(&self.dir);
        };
        let name = inner.file_name().and_then(OsStr::to_str);
        inner.parent() == Some(&self.dir) && name.is_some_and(|name| match_name(pattern, name))
    }
}

impl AgentPaths {
    pub(crate) fn new(
        preset: Arc<AgentPreset>,
        home: &Path,
        environment: &[(OsString, OsString)],
    ) -> Self {
        let moved = preset.moved.iter().filter_map(|(variable, place)| {
            let mut variables = environment.iter();
            let (_, value) = variables.find(|(name, _)| name == variable.as_str())?;
            let at = Path::new(value);
            let real = without_links(at);
            (at.is_absolute() && real != home.join(place)).then(|| (place.clone(), real))
        });
        Self {
            moved: moved.collect(),
            home: home.to_owned(),
            preset,
        }
    }

    /// Where an entry of the preset lies; `None` where that is outside of the home directory.
    pub(crate) fn entry(&self, text: &str) -> Option<PresetEntry> {
        let name = text.trim_end_matches('/');
        let below = |place: &str| {
            name.strip_prefix(place)
                .filter(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mut moved = self.moved.iter();
        let at = moved.find_map(|(place, to)| Some(to.join(below(place)?.trim_start_matches('/'))));
        // A file beside the directory that is moved lies in it then, as `.claude.json` does.
        let beside = || {
            let (place, to) = self.moved.first()?;
            name.strip_prefix(place.as_str())?;
            (!name.contains('/')).then(|| to.join(name))
        };
        let at = at.or_else(beside).unwrap_or_else(|| self.home.join(name));
        let own = match (at.parent(), at.file_name()) {
            (Some(above), Some(last)) => without_links(above).join(last),
            _ => at.clone(),
        };
        let at = without_links(&at);
        let inner = at.strip_prefix(&self.home).ok()?.to_owned();
        let own = own.strip_prefix(&self.home).unwrap_or(&inner).to_owned();
        (!inner.as_os_str().is_empty()).then(|| PresetEntry {
            own,
            inner,
            name: name.to_owned(),
            is_dir: text.ends_with('/'),
            at,
        })
    }

    /// Whether an entry can stand at its place: nothing of another kind is there, nor on the way, and this user can write there.
    pub(crate) fn has_room(&self, entry: &PresetEntry) -> bool {
        let own = rustix::process::geteuid();
        let above = entry.at.ancestors().skip(1);
        let mut above = above.take_while(|at| at.starts_with(&self.home));
        let is_own = |at: &Path| match Dir::look(at) {
            Ok(meta) => meta.is_dir() && (own.is_root() || meta.uid == own.as_raw()),
            Err(error) => error.is_absent(),
        };
        let there = Dir::look(&entry.at);
        above.all(is_own) && there.map_or(true, |meta| meta.is_dir() == entry.is_dir)
    }

    /// The entries of a list that lie in the home directory.
    pub(crate) fn entries<'a>(
        &'a self,
        list: &'a [String],
    ) -> impl Iterator<Item = PresetEntry> + 'a {
        list.iter().filter_map(|text| self.entry(text))
    }

    /// The merged files that lie in the home directory.
    pub(crate) fn merged(&self) -> impl Iterator<Item = (&MergedFile, PresetEntry)> {
        let all = self.preset.merged.iter();
        all.filter_map(|file| Some((file, self.entry(&file.file)?)))
    }

    /// The path that the preset has for one of the home directory, where a directory of it was moved.
    fn usual(&self, inner: &Path) -> PathBuf {
        let at = self.home.join(inner);
        let mut moved = self.moved.iter();
        let usual =
            moved.find_map(|(place, to)| Some(Path::new(place).join(at.strip_prefix(to).ok()?)));
        usual.unwrap_or_else(|| inner.to_owned())
    }

    /// Where the links in a directory lead: a file written through one lands there.
    fn linked(&self, one: &ExecutingPath) -> Vec<ExecutingPath> {
        let at = self.home.join(&one.dir);
        let names = Dir::open(&at).and_then(|dir| dir.kinds());
        let names = names.unwrap_or_default().into_iter();
        let links = names.filter(|(_, kind)| *kind == Some(EntryKind::Symlink));
        let links = links.filter_map(|(name, _)| {
            let path = Path::new(OsStr::from_bytes(&name));
            let meant = one.means(&one.dir.join(path));
            let real = meant.then(|| without_links(&at.join(path)))?;
            Some(ExecutingPath {
                dir: real.strip_prefix(&self.home).ok()?.to_owned(),
                name: None,
            })
        });
        links.collect()
    }

    /// The paths of the home directory that the agent, or a later start of it, executes or obeys: also where links lead there.
    pub(crate) fn executing(&self) -> Vec<ExecutingPath> {
        let mut all = Vec::new();
        for text in &self.preset.executes {
            let (above, name) = match text.strip_suffix('/') {
                Some(dir) => (dir, None),
                None => {
                    let (above, name) = text.rsplit_once('/').unwrap_or(("", text));
                    (above, Some(name.to_owned()))
                }
            };
            let dirs = match above {
                "" => vec![PathBuf::new()],
                above => {
                    let entry = self.entry(above);
                    entry.map_or_else(Vec::new, |entry| vec![entry.own, entry.inner])
                }
            };
            all.extend(dirs.into_iter().map(|dir| ExecutingPath {
                dir,
                name: name.clone(),
            }));
        }
        let links: Vec<ExecutingPath> = all.iter().flat_map(|one| self.linked(one)).collect();
        all.extend(links);
        all
    }

    /// Whether the agent writes a path on its own, at any start: that is dropped without a word.
    pub(crate) fn is_dropped(&self, inner: &Path) -> bool {
        let usual = self.usual(inner);
        self.preset
            .drops
            .iter()
            .any(|pattern| means(pattern, &usual))
    }

    /// The paths of everything that commands see of this agent: its own directories and files.
    pub(crate) fn shown(&self) -> Vec<PathBuf> {
        let both = self
            .parts()
            .flat_map(|entry| [self.home.join(&entry.own), entry.at]);
        let mut all: Vec<PathBuf> = both.collect();
        all.dedup();
        all
    }

    /// The same below the home directory.
    pub(crate) fn own(&self) -> Vec<PathBuf> {
        let dropped = self.entries(&self.preset.drops);
        self.parts()
            .chain(dropped)
            .map(|entry| entry.inner)
            .collect()
    }

    fn parts(&self) -> impl Iterator<Item = PresetEntry> {
        let preset = &self.preset;
        let lists = [
            &preset.state,
            &preset.credentials,
            &preset.secrets,
            &preset.executes,
        ];
        let texts = lists.into_iter().flatten();
        let texts = texts.chain(preset.merged.iter().map(|one| &one.file));
        let own = texts.filter_map(|text| self.entry(&own_part(text)));
        let mut all: Vec<PresetEntry> = own.collect();
        all.sort_by(|one, other| one.at.cmp(&other.at));
        all.dedup_by(|one, other| one.at == other.at);
        all.into_iter()
    }
}

/// A path without links, as far as it is there.
pub(crate) fn without_links(path: &Path) -> PathBuf {
    let resolved = path.ancestors().find_map(|above| {
        let real = state_dir::canonical_any(above).ok()?;
        Some(real.join(path.strip_prefix(above).ok()?))
    });
    let resolved = resolved.unwrap_or_else(|| path.to_owned());
    // Joining nothing adds a slash.
    resolved.components().collect()
}

/// The part of a path of a preset that belongs to the agent alone.
fn own_part(text: &str) -> String {
    let shared = SHARED.iter().find(|shared| {
        let rest = text.strip_prefix(**shared);
        rest.is_some_and(|rest| rest.starts_with('/'))
    });
    let names = 1 + shared.map_or(0, |shared| shared.split('/').count());
    let parts: Vec<&str> = text.split('/').take(names).collect();
    parts.join("/")
}

/// Whether a pattern of a preset means a path.
pub(crate) fn means(pattern: &str, path: &Path) -> bool {
    let Some(bare) = pattern.strip_suffix('/') else {
        let (pattern, name) = (Path::new(pattern), path.file_name().and_then(OsStr::to_str));
        let wanted = pattern.file_name().and_then(OsStr::to_str);
        return pattern.parent() == path.parent()
            && wanted
                .zip(name)
                .is_some_and(|(wanted, name)| match_name(wanted, name));
    };
    path.starts_with(bare)
}

/// Whether a name of a preset, which may have a `*` anywhere, means a name.
pub(crate) fn match_name(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) if !start.is_empty() && !end.is_empty() => {
            let rest = name.strip_prefix(start);
            rest.is_some_and(|rest| rest.ends_with(end))
        }
        _ => fits(pattern, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Agents;

    #[test]
    fn a_pattern_means_a_file_or_everything_in_a_directory() {
        let path = |text: &str| PathBuf::from(text);
        for (pattern, at, expected) in [
            (".claude/settings*.json", ".claude/settings.json", true),
            (
                ".claude/settings*.json",
                ".claude/settings.local.json",
                true,
            ),
            (".claude/settings*.json", ".claude/x/settings.json", false),
            (".claude/hooks/", ".claude/hooks/a/b", true),
            (".claude/hooks/", ".claude/hooks", true),
            (".claude/hooks/", ".claude/hooksmith", false),
            (".codex/*.sqlite", ".codex/state_5.sqlite", true),
            (".codex/*.sqlite", ".codex/state_5.sqlite-wal", false),
        ] {
            assert_eq!(means(pattern, &path(at)), expected, "{pattern} {at}");
        }
    }

    #[test]
    fn a_moved_directory_is_followed_within_the_home_directory() {
        let claude = Agents::default()
            .named("claude")
            .cloned()
            .expect("a preset");
        let of = |to: &str| {
            let variables = [("CLAUDE_CONFIG_DIR".into(), to.into())];
            AgentPaths::new(claude.clone(), Path::new("/h/ann"), &variables)
        };
        let inner = |paths: &AgentPaths, text: &str| paths.entry(text).map(|one| one.inner);
        let moved = of("/h/ann/.config/claude");
        let at = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            inner(&moved, ".claude/projects/"),
            at(".config/claude/projects")
        );
        assert_eq!(
            inner(&moved, ".claude.json"),
            at(".config/claude/.claude.json")
        );
        let executes = |paths: &AgentPaths, inner: &str| {
            let all = paths.executing();
            all.iter().any(|one| one.means(Path::new(inner)))
        };
        assert!(executes(&moved, ".config/claude/settings.json"));
        assert_eq!(inner(&of("/opt/claude"), ".claude/projects/"), None);
        let usual = AgentPaths::new(claude, Path::new("/h/ann"), &[]);
        assert_eq!(inner(&usual, ".claude.json"), at(".claude.json"));
        assert!(executes(&usual, ".claude/hooks/x.sh"));
        assert!(executes(&usual, ".claude/settings.local.json"));
        assert!(!executes(&usual, ".claude/projects/x.jsonl"));
    }

    #[test]
    fn an_agent_sees_what_belongs_to_it_alone() {
        for (text, own) in [
            (".claude/projects/", ".claude"),
            (".claude.json", ".claude.json"),
            (".local/share/opencode/log/", ".local/share/opencode"),
            (".config/goose/", ".config/goose"),
            (".local/bin/claude", ".local/bin/claude"),
        ] {
            assert_eq!(own_part(text), own);
        }
    }
}
