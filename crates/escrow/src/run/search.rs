//! Finds what a command does not get to see: what [`secrets`](super::secrets) lists, what the lists of
//! [`home_entries`](super::home_entries) do not know, what variables name, and what has a name as keys have in directories that
//! lie beside the project or in the home directory.
//!
//! Each directory is listed once, and no tree is walked: a home without any of it costs its listings.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType, access};

use super::home_entries::{Listed, is_private};
use super::secrets::{HOMES, IN_HOME, MOVED, Names, OF_THE_MACHINE, PLACES, SYSTEM};
use crate::fs::dir::EntryKinds;
use crate::fs::{Dir, state_dir};
use crate::model::EntryKind;
use crate::model::text::Location;

/// How many directories beside a project, or in the home directory, are looked into.
const MOST: usize = 40;

/// Variables that name certificates, which are no keys.
const CERTIFICATES: [&str; 8] = [
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Something that is hidden.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Where it is.
    pub(crate) at: Location,
    /// Whether it is a directory, where the listing said so.
    pub(crate) is_dir: Option<bool>,
    /// Whether it is hidden only because no list knows it.
    pub(crate) unlisted: bool,
}

/// What decides what is hidden.
pub(crate) struct Search<'a> {
    /// The home directories of the user, without links.
    pub(crate) homes: &'a [PathBuf],
    /// What one works on.
    pub(crate) resources: &'a [&'a Path],
    /// The caller's variables.
    pub(crate) environment: &'a [(OsString, OsString)],
    found: Vec<Found>,
    seen: HashSet<PathBuf>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        homes: &'a [PathBuf],
        resources: &'a [&'a Path],
        environment: &'a [(OsString, OsString)],
    ) -> Self {
        Self {
            homes,
            resources,
            environment,
            found: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Everything that is there and is hidden.
    pub(crate) fn all(mut self) -> Vec<Found> {
        for home in self.homes {
            // Who works on a home directory works on what lies in it: there the list of credentials alone counts.
            let lists = !self.resources.iter().any(|at| home.starts_with(at));
            for (place, listed) in PLACES {
                self.look_into(place, &home.join(place), lists.then_some(listed));
            }
        }
        self.moved();
        for parent in self.resources.iter().filter_map(|at| at.parent()) {
            let homes = HOMES.iter().map(Path::new);
            let mut apart = homes
                .chain(SYSTEM.map(Path::new))
                .chain([Path::new("/tmp")]);
            let known = self.homes.iter().any(|home| home == parent);
            let looks = parent.parent().is_some() && !known && !apart.any(|one| parent == one);
            if looks
                && let Ok(dir) = Dir::open(parent)
                && let Ok(names) = dir.kinds()
            {
                self.beside(&dir, &names);
            }
        }
        self.of_the_machine();
        self.found
    }

    fn hide(&mut self, at: PathBuf, kind: Option<EntryKind>, unlisted: bool) {
        if self.seen.insert(at.clone()) {
            let kind = kind.filter(|kind| *kind != EntryKind::Symlink);
            self.found.push(Found {
                at: Location::from(at),
                is_dir: kind.map(|kind| kind == EntryKind::Directory),
                unlisted,
            });
        }
    }

    /// Hides an entry, and if it is a link where that leads: there, nothing that it was is left to be read.
    fn hide_entry(&mut self, at: PathBuf, kind: Option<EntryKind>, unlisted: bool) {
        if kind.is_none_or(|kind| kind == EntryKind::Symlink)
            && let Ok(real) = state_dir::canonical_any(&at)
            && real != at
            && self.may_hide(&real)
        {
            self.hide(real, None, unlisted);
        }
        self.hide(at, kind, unlisted);
    }

    /// Whether a place that was not listed by its own path may be hidden: not what holds what is needed, nor the system.
    fn may_hide(&self, at: &Path) -> bool {
        let homes = self.homes.iter().map(PathBuf::as_path);
        let mut needed = homes.chain(self.resources.iter().copied());
        let holds = needed.any(|one| one.starts_with(at));
        let system = SYSTEM.iter().any(|one| at.starts_with(one));
        !holds && !system && at.components().count() > 2
    }

    /// Hides what a directory has that stands for this place of a home directory.
    fn look_into(&mut self, place: &str, at: &Path, listed: Option<Listed>) {
        // Of a directory that is not there nothing is.
        let (dir, names) = match open(at).and_then(|dir| dir.kinds().ok().map(|names| (dir, names)))
        {
            Some((dir, names)) => (dir, names),
            None => return,
        };
        let at = dir.path().to_owned();
        for (name, kind) in &names {
            if listed.is_some_and(|listed| !listed.shows(name)) {
                self.hide_entry(at.join(OsStr::from_bytes(name)), *kind, true);
            }
        }
        if listed == Some(Listed::Home) {
            self.beside(&dir, &names);
        }
        let known: HashMap<&[u8], Option<EntryKind>> =
            names.iter().map(|(name, kind)| (&**name, *kind)).collect();
        for item in IN_HOME {
            let own = PLACES[1..]
                .iter()
                .any(|(other, _)| below(other, item).is_some());
            // The places that are listed by themselves have their own.
            let Some(rest) = below(place, item).filter(|_| !place.is_empty() || !own) else {
                continue;
            };
            let first = rest.split('/').next().unwrap_or_default();
            let hidden = listed.is_some_and(|listed| !listed.shows(first.as_bytes()));
            let Some(kind) = known.get(first.as_bytes()).filter(|_| !hidden) else {
                continue;
            };
            let path = at.join(rest);
            match first == rest {
                true => self.hide_entry(path, *kind, false),
                false if !is_there(&path) => {}
                false => {
                    let real = state_dir::canonical_any(&path);
                    self.hide(real.unwrap_or(path), None, false);
                }
            }
        }
    }

    /// Hides what variables name.
    fn moved(&mut self) {
        for (name, value) in self.environment {
            let Some((_, names)) = MOVED.iter().find(|(moved, _)| name == moved) else {
                continue;
            };
            for path in std::env::split_paths(value) {
                let Ok(real) = state_dir::canonical_any(&path) else {
                    continue;
                };
                // What lies in a resource is what one works on.
                let given = self.resources.iter().any(|at| real.starts_with(at));
                if !path.is_absolute() || given || !self.may_hide(&real) {
                    continue;
                }
                match names {
                    Names::Secret => self.hide(real, None, false),
                    // Where it is anyway.
                    Names::Place(place)
                        if self.homes.iter().any(|home| home.join(place) == real) => {}
                    Names::Place(place) => {
                        let listed = PLACES.iter().find(|(known, _)| known == place);
                        self.look_into(place, &real, listed.map(|(_, listed)| *listed));
                    }
                }
            }
        }
    }

    /// Hides what has a name as keys have: in a directory, and in each of its directories that is no hidden one.
    fn beside(&mut self, dir: &Dir, names: &EntryKinds) {
        self.by_name(dir, names);
        let is_dir = |kind: &Option<EntryKind>| *kind == Some(EntryKind::Directory);
        let plain = names
            .iter()
            .filter(|(name, kind)| is_dir(kind) && !name.starts_with(b"."));
        for (name, _) in plain.take(MOST) {
            let at = dir.path().join(OsStr::from_bytes(name));
            if self.resources.contains(&at.as_path()) || self.homes.contains(&at) {
                continue;
            }
            // What is mounted there may not answer, and is not waited for.
            let Ok((below, names)) = dir
                .subdir(name)
                .and_then(|dir| Ok((dir.again(), dir.kinds()?)))
            else {
                continue;
            };
            self.by_name(&below, &names);
            let key = at.join("config/master.key");
            if names.iter().any(|(name, _)| **name == *b"config") && is_there(&key) {
                self.hide(key, None, false);
            }
        }
    }

    fn by_name(&mut self, dir: &Dir, names: &EntryKinds) {
        for (name, kind) in names {
            let at = dir.path().join(OsStr::from_bytes(name));
            let leaf = !matches!(kind, Some(EntryKind::Directory));
            let given = || self.resources.iter().any(|one| at.starts_with(one));
            if leaf && is_private(name) && !given() && !self.is_certificate(&at) {
                self.hide_entry(at, *kind, false);
            }
        }
    }

    fn is_certificate(&self, at: &Path) -> bool {
        let mut all = self.environment.iter();
        all.any(|(name, value)| {
            Path::new(value) == at && CERTIFICATES.iter().any(|one| name == one)
        })
    }

    /// Hides what of the machine this user could read.
    fn of_the_machine(&mut self) {
        let mut listed: HashMap<&str, HashSet<Box<[u8]>>> = HashMap::new();
        for (dir, names) in OF_THE_MACHINE {
            let (parent, own) = dir.rsplit_once('/').unwrap_or_default();
            let known = listed.get(parent);
            if known.is_some_and(|names| !names.contains(own.as_bytes())) {
                continue;
            }
            let at = Path::new(dir);
            let names: Vec<&str> = names.split_whitespace().collect();
            let found: Vec<PathBuf> =
                match names.len() > 3 || names.iter().any(|one| one.contains('*')) {
                    false => names.iter().map(|name| at.join(name)).collect(),
                    true => {
                        let all = Dir::open(at)
                            .and_then(|dir| dir.names())
                            .unwrap_or_default();
                        let found = all
                            .iter()
                            .filter(|name| names.iter().any(|one| globs(one, name)));
                        let found = found.map(|name| at.join(OsStr::from_bytes(name))).collect();
                        listed.insert(dir, all.into_iter().collect());
                        found
                    }
                };
            for path in found {
                if access(&path, Access::READ_OK).is_ok() {
                    self.hide(path, None, false);
                }
            }
        }
    }
}

/// A directory, also by way of a link.
fn open(at: &Path) -> Option<Dir> {
    match Dir::open(at) {
        Ok(dir) => Some(dir),
        Err(error) if error.is_absent() => None,
        Err(_) => Dir::open(&state_dir::canonical(at).ok()?).ok(),
    }
}

/// What of a path lies below a place of the home directory.
fn below<'p>(place: &str, path: &'p str) -> Option<&'p str> {
    match place {
        "" => Some(path),
        place => path.strip_prefix(place)?.strip_prefix('/'),
    }
}

/// Whether a name matches a pattern, in which one `*` stands for anything.
fn globs(pattern: &str, name: &[u8]) -> bool {
    match pattern.split_once('*') {
        None => name == pattern.as_bytes(),
        Some((start, end)) => {
            name.len() >= start.len() + end.len()
                && name.starts_with(start.as_bytes())
                && name.ends_with(end.as_bytes())
        }
    }
}

/// Whether a path leads to a directory; `None` where it leads to nothing.
pub(crate) fn is_dir(path: &Path) -> Option<bool> {
    let stat = rustix::fs::stat(path).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Whether anything is at a path.
pub(crate) fn is_there(path: &Path) -> bool {
    access(path, Access::EXISTS).is_ok()
}

/// The Unix sockets of this machine that have a name, but for those in directories of which every namespace has its own.
pub(crate) fn sockets() -> Vec<Location> {
    let all = super::limits::text(Path::new("/proc/net/unix"));
    let paths = all
        .lines()
        .filter_map(|line| line.find(" /").map(|at| &line[at + 1..]));
    // A name behind a descriptor means something to the process that chose it only.
    let named = paths.filter(|path| !path.starts_with("/proc/"));
    let mut found: Vec<PathBuf> = named
        .filter_map(|path| state_dir::canonical_any(Path::new(path)).ok())
        .filter(|path| is_there(path))
        .collect();
    let own = ["/dev", "/run", "/tmp"];
    found.retain(|path| !own.iter().any(|own| path.starts_with(own)));
    found.into_iter().map(Location::from).collect()
}
