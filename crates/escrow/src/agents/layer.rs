//! The layer of a run over the home directory: what an agent wrote there, and where that goes.
//!
//! Every step can be repeated after a crash: a moved file is gone from the layer, and a change is noted once.

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
use crate::model::{DiffView, EntryKind, ResourcePath};

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
    /// Takes over what the agent left; `changes` are those of the layer, where it is one. A step that fails stops no other:
    /// the errors are returned beside the report.
    pub(crate) fn settle(
        &self,
        marks: &RunMarks,
        changes: Option<&DiffView>,
    ) -> (AgentReport, Vec<FsError>) {
        let mut failed = Vec::new();
        let mut done = AgentReport::of(&self.paths.preset);
        for step in [self.move_kept(), self.move_credentials()] {
            failed.extend(step.err());
        }
        match self.merge(marks) {
            Ok(wanted) => done.wanted = wanted,
            Err(error) => failed.push(error),
        }
        match sync(self.paths, self.agent) {
            Ok(synced) => (done.refreshed, done.refused) = (synced.refreshed, synced.refused),
            Err(error) => failed.push(error),
        }
        match changes.map(|changes| self.note_configuration(changes)) {
            Some(Ok(wanted)) => done.wanted.extend(wanted),
            Some(Err(error)) => failed.push(error),
            None => {}
        }
        (done, failed)
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

    /// The places of the layer that can hold an entry: its own, and where a link of the home directory leads from there.
    fn places(&self, entry: &PresetEntry) -> Result<Vec<(Dir, Vec<u8>)>> {
        let mut found = Vec::new();
        found.extend(self.place(&entry.own)?);
        if entry.own != entry.inner {
            found.extend(self.place(&entry.inner)?);
        }
        Ok(found)
    }

    /// Moves files of state into the agent home that replaced their link, or are new.
    fn move_kept(&self) -> Result<()> {
        let files = self.agent.files()?;
        for entry in self.paths.entries(&self.paths.preset.state) {
            if entry.is_dir {
                continue;
            }
            let above = entry.name.rsplit_once('/').map_or("", |(above, _)| above);
            for (dir, pattern) in self.places(&entry)? {
                let pattern = String::from_utf8_lossy(&pattern).into_owned();
                for found in dir.entries()? {
                    let Ok(name) = std::str::from_utf8(&found.name) else {
                        continue;
                    };
                    let own = match above {
                        "" => name.to_owned(),
                        above => format!("{above}/{name}"),
                    };
                    if found.meta.is_file()
                        && match_name(&pattern, name)
                        && let Some(flat) = home::flat(&own)
                    {
                        move_file((&dir, name.as_bytes()), (&files, &flat))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves logins into the agent home that were made in the layer, or replaced their mount's place.
    fn move_credentials(&self) -> Result<()> {
        let files = self.agent.files()?;
        for entry in self.paths.entries(&self.paths.preset.credentials) {
            let Some(flat) = home::flat(&entry.name) else {
                continue;
            };
            for (dir, name) in self.places(&entry)? {
                if let Some((bytes, _)) = credentials::read(&dir, &name, credentials::MOST)? {
                    credentials::write_shared(&files, &flat, &bytes)?;
                    dir.unlink(&name)?;
                }
            }
        }
        Ok(())
    }

    /// Brings each merged file to where its keys go; returns what executes.
    fn merge(&self, marks: &RunMarks) -> Result<Vec<WantedChange>> {
        let mut noted = Vec::new();
        let (files, given) = (self.agent.files()?, marks.given()?);
        for (file, entry) in self.paths.merged() {
            let Some(flat) = home::flat(&entry.name) else {
                continue;
            };
            let given = credentials::read(&given, &flat, wanted::MOST_MERGED)?;
            let given = given.and_then(|(bytes, _)| merged::object(&bytes));
            for (dir, name) in self.places(&entry)? {
                if !dir.stat(&name)?.is_some_and(|meta| meta.is_file()) {
                    continue;
                }
                let left = credentials::read(&dir, &name, wanted::MOST_MERGED)?;
                let left = left.and_then(|(bytes, _)| merged::object(&bytes));
                let (Some(given), Some(left)) = (&given, left) else {
                    // Nothing tells which keys are whose: the file stays in the layer.
                    let change =
                        FoundChange::Unkept("changed beyond what can be merged".to_owned());
                    noted.extend(self.note(&entry.inner, change)?);
                    continue;
                };
                let found = merged::changed(given, &left, file);
                self.apply_keys(&entry, &files, &flat, &found)?;
                if !found.wanted.is_empty() {
                    let change = FoundChange::Keys(found.wanted);
                    noted.extend(self.note(&entry.inner, change)?);
                }
                dir.unlink(&name)?;
            }
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
        let (executing, mut noted) = (self.paths.executing(), Vec::new());
        for change in &changes.changes {
            let inner = Path::new(OsStr::from_bytes(change.path.as_bytes()));
            if !executing.iter().any(|one| one.means(inner)) || self.paths.is_dropped(inner) {
                continue;
            }
            let kind = change.new.as_ref().or(change.old.as_ref());
            let kind = kind.map_or(EntryKind::File, |one| one.kind);
            let content = match &change.new {
                _ if kind == EntryKind::Directory => continue,
                None => FoundChange::Gone,
                Some(new) if kind == EntryKind::File => {
                    let (dir, name) = upper.parent(&change.path)?;
                    match credentials::read(&dir, name, wanted::MOST)? {
                        Some((bytes, _)) => FoundChange::File(bytes, new.mode),
                        None => FoundChange::Unkept("too large to be kept".to_owned()),
                    }
                }
                Some(_) => FoundChange::Unkept(format!("a {}", kind.word())),
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

/// Moves a file of state into the agent home. A database moves with its log or not at all, and never onto another one, which a run may
/// have open.
fn move_file((dir, name): (&Dir, &[u8]), (files, flat): (&Dir, &[u8])) -> Result<()> {
    let is_database = [&b".sqlite"[..], b".db"]
        .iter()
        .any(|end| name.ends_with(end));
    if files.stat(flat)?.is_some_and(|there| !there.is_file()) {
        remove::remove(files, flat)?;
    }
    if !is_database {
        return take((dir, name), (files, flat));
    }
    let sides = [&b"-wal"[..], b"-shm"];
    let there = |end: &[u8]| {
        files
            .stat(&[flat, end].concat())
            .map(|there| there.is_some())
    };
    if there(b"")? || there(sides[0])? || there(sides[1])? {
        return Ok(());
    }
    // The database last: without it its log means nothing, and is begun anew.
    for end in [sides[0], sides[1], b""] {
        let from = [name, end].concat();
        if dir.stat(&from)?.is_some_and(|meta| meta.is_file()) {
            take((dir, &from), (files, &[flat, end].concat()))?;
        }
    }
    Ok(())
}

/// Moves a file, by a copy where the agent home lies on another file system.
fn take((dir, name): (&Dir, &[u8]), (files, flat): (&Dir, &[u8])) -> Result<()> {
    match dir.rename(name, files, flat) {
        Err(error) if error.is(Errno::XDEV) => {
            home::copy_whole((dir, name), (files, flat))?;
            dir.unlink(name)
        }
        done => done,
    }
}

/// Whether an error means that the layer has nothing there.
fn is_nothing(error: &FsError) -> bool {
    error.is_absent() || error.is(Errno::LOOP) || error.leaves()
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
