//! Marks of an agent in the area of a plan's scratch layer: which home it had, and what its merged files were at first.
//!
//! ```text
//! <scratch area>/agents/<name>/home    the path of the agent home; a run that is killed leaves it
//!                             /given/  what each merged file was
//!                             /fresh/  an agent home that goes with the plan
//! ```

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::credentials::private_file;
use super::home::AgentHome;
use crate::fs::state_dir::room;
use crate::fs::{Dir, Result};

const PLACE: &[u8] = b"agents";
const HOME: &[u8] = b"home";

/// The marks of one agent in one plan.
#[derive(Debug)]
pub(crate) struct RunMarks {
    dir: Dir,
}

impl RunMarks {
    /// Those of an agent in the area called `name`; made where they are missing.
    pub(crate) fn make(areas: &Dir, name: &[u8], agent: &str) -> Result<Self> {
        let place = room(&room(areas, name)?, PLACE)?;
        let dir = room(&place, agent.as_bytes())?;
        Ok(Self { dir })
    }

    /// Those of every agent in an area, by name.
    pub(crate) fn all(area: &Path) -> Result<Vec<(String, Self)>> {
        let place = match Dir::open(area).and_then(|area| area.subdir(PLACE)) {
            Err(error) if error.is_absent() => return Ok(Vec::new()),
            place => place?,
        };
        let names = place.names()?.into_iter();
        let one = |name: Box<[u8]>| {
            let dir = place.subdir(&name)?;
            Ok((String::from_utf8_lossy(&name).into_owned(), Self { dir }))
        };
        names.map(one).collect()
    }

    /// Notes which home the agent has.
    pub(crate) fn note_home(&self, home: &AgentHome) -> Result<()> {
        let path = home.dir.path().as_os_str();
        private_file(&self.dir, HOME, path.as_bytes())
    }

    /// The home that was noted, if it is still there.
    pub(crate) fn home(&self) -> Result<Option<AgentHome>> {
        let noted = match self.dir.read(HOME) {
            Err(error) if error.is_absent() => return Ok(None),
            noted => PathBuf::from(OsStr::from_bytes(&noted?)),
        };
        match Dir::open(&noted) {
            Ok(dir) => Ok(Some(AgentHome { dir })),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where merged files lie as the agent was given them.
    pub(crate) fn given(&self) -> Result<Dir> {
        room(&self.dir, b"given")
    }

    /// A home that begins empty, and goes with the plan.
    pub(crate) fn fresh(&self) -> Result<AgentHome> {
        let dir = room(&self.dir, b"fresh")?;
        Ok(AgentHome { dir })
    }
}
