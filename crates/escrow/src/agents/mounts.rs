//! What a run shows of an agent home: directories of state as they are, links to single files, credentials, and merged files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::home::{AgentHome, KeptFile, flat};
use super::marks::RunMarks;
use super::paths::{AgentPaths, PresetEntry};
use super::{MergedFile, credentials, merged, wanted};
use crate::fs::{Dir, Result};
use crate::model::text::Location;
use crate::run::spec::{AgentMounts, BoundPath};

/// Where the files of an agent home appear inside.
const INSIDE: &str = "/dev/agents";

/// An agent home that is about to be shown.
pub(crate) struct ShownHome<'a> {
    pub(crate) agent: &'a AgentHome,
    pub(crate) paths: &'a AgentPaths,
    /// Whether new directories and files are taken over from the real ones.
    pub(crate) seeded: bool,
    /// The directory in which the command begins.
    pub(crate) here: &'a str,
    /// Whether nothing else is shown at a path, or in it.
    pub(crate) apart: &'a dyn Fn(&Path) -> bool,
    /// The layer over the home directory, with what earlier commands of the plan left.
    pub(crate) upper: Option<&'a Path>,
}

impl ShownHome<'_> {
    /// Everything that is shown, and how many bytes of older sessions were left out. The caller holds the lock of the agent home.
    pub(crate) fn mounts(&self, marks: &RunMarks) -> Result<(AgentMounts, u64)> {
        let place = Path::new(INSIDE).join(&self.paths.preset.name);
        let mut mounts = AgentMounts {
            files: Location::from(self.agent.files()?.path()),
            place: Location::from(place),
            ..AgentMounts::default()
        };
        let mut left_out = 0;
        for entry in self.paths.entries(&self.paths.preset.state) {
            if entry.is_dir && self.fits(&entry) {
                let (dir, left) = self.agent.state_dir(&entry, self.seeded)?;
                left_out += left;
                mounts.state.push(bound(&entry, dir.path()));
            }
        }
        for KeptFile { entry, name } in self.agent.kept_files(self.paths, self.seeded)? {
            let known = mounts
                .links
                .iter()
                .any(|(inner, _)| inner.as_path() == entry.inner);
            if self.fits(&entry) && !known {
                mounts.links.push(link(&mounts, &entry, &name));
            }
        }
        self.credentials(&mut mounts)?;
        self.merged(&mut mounts, marks)?;
        Ok((mounts, left_out))
    }

    /// Whether an entry can be shown at its place.
    fn fits(&self, entry: &PresetEntry) -> bool {
        (self.apart)(&entry.at) && self.paths.has_room(entry) && !self.is_taken(entry)
    }

    /// Whether a command put something else into the layer, at the place of an entry or on the way to it.
    fn is_taken(&self, entry: &PresetEntry) -> bool {
        let Some(upper) = self.upper else {
            return false;
        };
        let last = entry.inner.components().count();
        let above = entry
            .inner
            .ancestors()
            .filter(|one| !one.as_os_str().is_empty());
        above.into_iter().any(|inner| {
            let is_dir = inner.components().count() < last || entry.is_dir;
            match Dir::look(&upper.join(inner)) {
                Ok(meta) if is_dir => !meta.is_dir(),
                Ok(meta) => meta.is_dir(),
                Err(_) => false,
            }
        })
    }

    fn credentials(&self, mounts: &mut AgentMounts) -> Result<()> {
        let (files, preset) = (self.agent.files()?, &self.paths.preset);
        for entry in self.paths.entries(&preset.credentials) {
            let Some(name) = flat(&entry.name).filter(|_| self.fits(&entry)) else {
                continue;
            };
            let is_mounted = preset.mounted.contains(&entry.name);
            match (is_mounted, files.stat(&name)?.is_some()) {
                (false, _) => mounts.links.push(link(mounts, &entry, &name)),
                (true, true) => {
                    let from = files.path().join(OsStr::from_bytes(&name));
                    mounts.state.push(bound(&entry, &from));
                }
                // The agent makes it in the layer, from where it is taken afterwards.
                (true, false) => {}
            }
        }
        Ok(())
    }

    fn merged(&self, mounts: &mut AgentMounts, marks: &RunMarks) -> Result<()> {
        let given = marks.given()?;
        for (file, entry) in self.paths.merged() {
            let Some(name) = flat(&entry.name).filter(|_| self.fits(&entry)) else {
                continue;
            };
            if let Some(text) = self.inside(file, &entry, &name)? {
                credentials::private_file(&given, &name, text.as_bytes())?;
                let inner = Location::from(entry.inner.as_path());
                mounts.given.push((inner, text));
            }
        }
        Ok(())
    }

    /// What a merged file is inside; nothing where the real one does not parse: then that is shown as it is.
    fn inside(
        &self,
        file: &MergedFile,
        entry: &PresetEntry,
        name: &[u8],
    ) -> Result<Option<String>> {
        let real = credentials::read_real(&entry.at, wanted::MOST_MERGED)?;
        let real = match real.map(|(bytes, _)| merged::object(&bytes)) {
            Some(None) => return Ok(None),
            real => real.flatten(),
        };
        let kept = credentials::read_own(&self.agent.files()?, name, wanted::MOST_MERGED)?;
        let kept = kept.and_then(|(bytes, _)| merged::object(&bytes));
        let all = merged::inside(real.as_ref(), kept.as_ref(), file, self.here);
        let text = merged::text(&all);
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

fn bound(entry: &PresetEntry, from: &Path) -> BoundPath {
    BoundPath {
        at: Location::from(entry.at.as_path()),
        inner: Location::from(entry.inner.as_path()),
        from: Location::from(from),
        is_dir: entry.is_dir,
    }
}

/// A link in the home directory to a file of the agent home.
fn link(mounts: &AgentMounts, entry: &PresetEntry, name: &[u8]) -> (Location, Location) {
    let target = mounts.place.as_path().join(OsStr::from_bytes(name));
    let inner = Location::from(entry.inner.as_path());
    (inner, Location::from(target))
}
