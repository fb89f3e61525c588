//! A layer between a home directory and what commands write over it: in it stand links in the place of what is hidden, so that
//! nothing has to be mounted, and a hidden file is as absent as one that was never made.
//!
//! ```text
//! upper    what commands wrote: stays with the plan
//! hide     .aws -> /dev/hidden/.aws, .config/stripe -> /dev/hidden/.config%stripe: made anew for each namespace
//! home     the real one
//! ```
//!
//! The layer is in memory: the kernel takes no layer that lies in another one, and the state lies in the home directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::dir::Dir;
use super::handle::EntryHandle;
use super::state_dir::{make_plain, room};
use super::{Cause, Meta, Result};
use crate::model::ResourcePath;

/// Where the layer is mounted, in the area of the scratch layer.
const NAME: &[u8] = b"hide";

/// Makes a place for the layer beside another one, and says where it is.
pub fn make_place(upper: &Path) -> Result<PathBuf> {
    let area = Dir::open(upper.parent().unwrap_or(upper))?;
    Ok(room(&area, NAME)?.path().to_owned())
}

/// Where it is.
pub fn place_beside(upper: &Path) -> PathBuf {
    upper.with_file_name(OsStr::from_bytes(NAME))
}

/// A path that is hidden, and where the link in its place leads.
pub type HiddenEntry = (ResourcePath, Vec<u8>);

/// A file, and what of it is shown.
pub type CleanedFile<'a> = (ResourcePath, &'a [u8]);

/// What the home of a coding agent has in the layer, whether the home directory has it or not.
#[derive(Debug, Default)]
pub struct AgentLayout<'a> {
    /// Places for directories.
    pub dirs: Vec<ResourcePath>,
    /// Links, and where each leads.
    pub links: Vec<(ResourcePath, &'a [u8])>,
    /// Files and their contents.
    pub files: Vec<(ResourcePath, &'a [u8])>,
}

/// Puts a link into the empty layer for each of these paths of the home directory, and files with another content in the place of
/// others; and what an agent has. Returns those for which there can be none: the
/// directory that holds it belongs to another user, or is on another file system.
pub fn lay(
    layer: &Path,
    home: &Path,
    (hidden, cleaned): (&[HiddenEntry], &[CleanedFile<'_>]),
    agent: &AgentLayout<'_>,
) -> Result<Vec<ResourcePath>> {
    let mut laying = Laying {
        home: Dir::open(home)?,
        layer: Dir::open(layer)?,
        made: BTreeMap::new(),
        fresh: false,
    };
    let mut without = Vec::new();
    for (path, target) in hidden {
        let Some((parent, name)) = path.split_names() else {
            continue;
        };
        match laying.dir(parent)? {
            Some(dir) => dir.make_link(name, target)?,
            None => without.push(path.clone()),
        }
    }
    for (path, text) in cleaned {
        match laying.copy(path, text)? {
            true => {}
            false => without.push(path.clone()),
        }
    }
    laying.fresh = true;
    for path in &agent.dirs {
        laying.dir(path.as_bytes())?;
    }
    for (path, target) in &agent.links {
        if let Some((parent, name)) = path.split_names()
            && let Some(dir) = laying.dir(parent)?
        {
            dir.make_link(name, target)?;
        }
    }
    for (path, text) in &agent.files {
        if let Some((parent, name)) = path.split_names()
            && let Some(dir) = laying.dir(parent)?
        {
            let written = dir.create(name, 0o600)?.write_all(text);
            written.map_err(|error| dir.io_error("write", name, &error))?;
        }
    }
    laying.finish()?;
    Ok(without)
}

struct Laying {
    home: Dir,
    layer: Dir,
    /// The directories that were made, and what each is in the home directory; `None` where there can be none.
    made: BTreeMap<Vec<u8>, Option<(Dir, Option<Meta>)>>,
    /// Whether directories are made that the home directory does not have.
    fresh: bool,
}

impl Laying {
    /// The directory of the layer that stands for this one of the home directory.
    fn dir(&mut self, path: &[u8]) -> Result<Option<Dir>> {
        if path.is_empty() {
            return Ok(Some(self.layer.again()));
        }
        match self.made.get(path) {
            // What the home directory does not have may be made for an agent.
            None => {}
            Some(None) if self.fresh => {}
            Some(made) => return Ok(made.as_ref().map(|(dir, _)| dir.again())),
        }
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        let made = match self.dir(parent)? {
            Some(above) => self.make(&above, path, name)?,
            None => None,
        };
        let dir = made.as_ref().map(|(dir, _)| dir.again());
        self.made.insert(path.to_owned(), made);
        Ok(dir)
    }

    fn make(&self, above: &Dir, path: &[u8], name: &[u8]) -> Result<Option<(Dir, Option<Meta>)>> {
        let own = rustix::process::geteuid();
        let path = ResourcePath::parse(path).ok();
        let real = match path.map(|path| self.home.dir(&path)) {
            Some(Ok(real)) => real,
            Some(Err(error)) if error.is_absent() && self.fresh => {
                return Ok(Some((make_plain(above, name)?, None)));
            }
            _ => return Ok(None),
        };
        let meta = real.meta()?;
        // The layer shows its own directories, which must look like those below.
        if !own.is_root() && meta.uid != own.as_raw() {
            return Ok(None);
        }
        Ok(Some((make_plain(above, name)?, Some(meta))))
    }

    /// Puts a file with another content in the place of one; says whether it could.
    fn copy(&mut self, path: &ResourcePath, text: &[u8]) -> Result<bool> {
        let (Some((parent, name)), Some(real)) = (path.split_names(), self.home.stat_path(path)?)
        else {
            return Ok(true);
        };
        let Some(dir) = self.dir(parent)? else {
            return Ok(false);
        };
        let mut file = dir.create(name, 0o600)?;
        let written = file.write_all(text);
        written.map_err(|error| dir.io_error("write", name, &error))?;
        match EntryHandle::of(&file).reapply_metadata(&real) {
            Ok(()) | Err(Errno::PERM) => Ok(true),
            Err(errno) => Err(dir.error("set the metadata of", name, Cause::Os(errno))),
        }
    }

    /// Gives each directory the look of the one that it stands for, the deepest first.
    fn finish(self) -> Result<()> {
        let made = self.made.values().rev().flatten();
        for (dir, meta) in made.filter_map(|(dir, meta)| Some((dir, meta.as_ref()?))) {
            match EntryHandle::of(dir).reapply_metadata(meta) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(dir.error("set the metadata of", b"", Cause::Os(errno))),
            }
        }
        Ok(())
    }
}
