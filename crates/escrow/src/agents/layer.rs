//! The layer of a run over the home directory: what an agent wrote there, and where that goes.
//!
//! All of it can be done again after a crash: what is moved is gone from the layer, and what is noted is noted once.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

use super::home::{self, AgentHome};
use super::marks::RunMarks;
use super::paths::{AgentPaths, PresetEntry, match_name};
use super::wanted::{self, FoundChange, WantedChange};
use super::{AgentReport, credentials, merged};
use crate::fs::{Dir, FsError, Result, remove};
use crate::model::text::Location;
use crate::model::{ChangeKind, DiffView, EntryKind, ResourcePath};

/// What an agent wrote into the layer over the home directory.
pub(crate) struct AgentLayer<'a> {
    pub(crate) upper: &'a Path,
    pub(crate) paths: &'a AgentPaths,
    pub(crate) agent: &'a AgentHome,
    /// The home in which changes of configuration are noted.
    pub(crate) noted: &'a AgentHome,
    /// The plan: its name, and its id.
    pub(crate) plan: (&'a str, &'a str),
}

impl AgentLayer<'_> {
    /// Takes over what the agent left; `changes` are those of the layer, where it is one.
    pub(crate) fn settle(
        &self,
        marks: &RunMarks,
        changes: Option<&DiffView>,
    ) -> Result<AgentReport> {
        self.move_kept()?;
        self.move_credentials()?;
        let mut wanted = self.merge(marks)?;
        let done = sync(self.paths, self.agent)?;
        if let Some(changes) = changes {
            wanted.extend(self.note_configuration(changes)?);
        }
        Ok(AgentReport { wanted, ..done })
    }

    /// The directory of the layer that holds an entry, and the name of that; nothing where the layer has none.
    fn place(&self, inner: &Path) -> Result<Option<(Dir, Vec<u8>)>> {
        let Ok(path) = ResourcePath::parse(inner.as_os_str().as_bytes()) else {
            return Ok(None);
        };
        match Dir::open(self.upper)?.parent(&path) {
            Ok((dir, name)) => Ok(Some((dir, name.to_owned()))),
            Err(error) if is_nothing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves files of state into the agent home that replaced their link, or are new.
    fn move_kept(&self) -> Result<()> {
        let files = self.agent.files()?;
        for entry in self.paths.entries(&self.paths.preset.state) {
            if entry.is_dir {
                continue;
            }
            let Some((dir, pattern)) = self.place(&entry.inner)? else {
                continue;
            };
            let above = entry.name.rsplit_once('/').map_or("", |(above, _)| above);
            let pattern = String::from_utf8_lossy(&pattern).into_owned();
            for found in dir.entries()? {
                let Ok(name) = std::str::from_utf8(&found.name) else {
                    continue;
                };
                let main = name.strip_suffix("-wal").or(name.strip_suffix("-shm"));
                let means = |name: &str| match_name(&pattern, name);
                let fits = means(name) || main.is_some_and(means);
                let own = match above {
                    "" => name.to_owned(),
                    above => format!("{above}/{name}"),
                };
                let Some(flat) = home::flat(&own).filter(|_| fits && found.meta.is_file()) else {
                    continue;
                };
                // Of a database another run may have the one that is there.
                let is_database = [".sqlite", ".db", "-wal", "-shm"]
                    .iter()
                    .any(|end| name.ends_with(end));
                let there = files.stat(&flat)?;
                if there.is_some_and(|there| !there.is_file()) {
                    remove::remove(&files, &flat)?;
                }
                if !is_database || there.is_none() {
                    dir.rename(name.as_bytes(), &files, &flat)?;
                }
            }
        }
        Ok(())
    }

    /// Moves logins into the agent home that were made in the layer, or replaced their mount's place.
    fn move_credentials(&self) -> Result<()> {
        let files = self.agent.files()?;
        for entry in self.paths.entries(&self.paths.preset.credentials) {
            let (Some((dir, name)), Some(flat)) =
                (self.place(&entry.inner)?, home::flat(&entry.name))
            else {
                continue;
            };
            if let Some((bytes, _)) = credentials::read(&dir, &name, credentials::MOST)? {
                credentials::write_shared(&files, &flat, &bytes)?;
                dir.unlink(&name)?;
            }
        }
        Ok(())
    }

    /// Brings each merged file to where its keys go; returns what executes.
    fn merge(&self, marks: &RunMarks) -> Result<Vec<WantedChange>> {
        let mut noted = Vec::new();
        let (files, given) = (self.agent.files()?, marks.given()?);
        for (file, entry) in self.paths.merged() {
            let (Some((dir, name)), Some(flat)) =
                (self.place(&entry.inner)?, home::flat(&entry.name))
            else {
                continue;
            };
            let Some((left, _)) = credentials::read(&dir, &name, wanted::MOST_MERGED)? else {
                continue;
            };
            let given = credentials::read(&given, &flat, wanted::MOST_MERGED)?;
            let given = given.and_then(|(bytes, _)| merged::object(&bytes));
            if let (Some(given), Some(left)) = (given, merged::object(&left)) {
                let found = merged::changed(&given, &left, file);
                self.apply_keys(&entry, &files, &flat, &found)?;
                if !found.wanted.is_empty() {
                    let change = FoundChange::Keys(found.wanted);
                    noted.extend(self.note(&entry.inner, change)?);
                }
            }
            dir.unlink(&name)?;
        }
        Ok(noted)
    }

    fn apply_keys(
        &self,
        entry: &PresetEntry,
        files: &Dir,
        flat: &[u8],
        found: &merged::ChangedKeys,
    ) -> Result<()> {
        if !found.merged.is_empty() {
            let real = credentials::read_real(&entry.at, wanted::MOST_MERGED)?;
            let (bytes, meta) =
                real.map_or((None, None), |(bytes, meta)| (Some(bytes), Some(meta)));
            let object = match &bytes {
                Some(bytes) => merged::object(bytes),
                None => Some(serde_json::Map::new()),
            };
            // A real file that does not parse is the user's to mend.
            if let Some(mut object) = object {
                for (path, value) in &found.merged {
                    merged::set(&mut object, path, value.clone());
                }
                let text = merged::text(&object);
                credentials::write_real(&entry.at, &text, meta.as_ref(), 0o600)?;
            }
        }
        if !found.kept.is_empty() {
            let kept = credentials::read_own(files, flat, wanted::MOST_MERGED)?;
            let kept = kept.and_then(|(bytes, _)| merged::object(&bytes));
            let mut kept = kept.unwrap_or_default();
            for (path, value) in &found.kept {
                merged::set(&mut kept, path, value.clone());
            }
            credentials::private_file(files, flat, &merged::text(&kept))?;
        }
        Ok(())
    }

    /// Notes what the layer has of the agent's configuration.
    fn note_configuration(&self, changes: &DiffView) -> Result<Vec<WantedChange>> {
        let upper = Dir::open(self.upper)?;
        let mut noted = Vec::new();
        for change in &changes.changes {
            let inner = Path::new(OsStr::from_bytes(change.path.as_bytes()));
            if !self.paths.executes(inner) || self.paths.is_dropped(inner) {
                continue;
            }
            let is_file = |kind: EntryKind| kind == EntryKind::File;
            let content = match (&change.new, &change.old) {
                (None, Some(old)) if change.kind == ChangeKind::Deleted && is_file(old.kind) => {
                    FoundChange::Gone
                }
                (Some(new), _) if is_file(new.kind) => {
                    let (dir, name) = upper.parent(&change.path)?;
                    match credentials::read(&dir, name, wanted::MOST)? {
                        Some((bytes, _)) => FoundChange::File(bytes, new.mode),
                        None => continue,
                    }
                }
                _ => continue,
            };
            noted.extend(self.note(inner, content)?);
        }
        Ok(noted)
    }

    fn note(&self, inner: &Path, found: FoundChange) -> Result<Option<WantedChange>> {
        let at = (self.paths.home.as_path(), inner);
        wanted::note(self.noted, at, found, self.plan)
    }
}

/// Whether an error means that the layer has nothing there.
fn is_nothing(error: &FsError) -> bool {
    error.is_absent() || error.is(Errno::NOTDIR) || error.is(Errno::LOOP)
}

/// Syncs the credentials of an agent, and says what came of it.
pub(crate) fn sync(paths: &AgentPaths, agent: &AgentHome) -> Result<AgentReport> {
    let synced = credentials::sync(agent, paths)?;
    let (refused, refreshed): (Vec<_>, Vec<_>) = synced.into_iter().partition(|one| one.is_refused);
    let at = |all: Vec<credentials::SyncedCredential>| {
        let at = all.into_iter().map(|one| Location::from(one.entry.at));
        at.collect()
    };
    Ok(AgentReport {
        preset: paths.preset.clone(),
        wanted: Vec::new(),
        refreshed: at(refreshed),
        refused: at(refused),
    })
}
