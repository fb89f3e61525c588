//! Names of areas: classifies an entry of an area directory by its name alone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, FlockOperation};

use super::dir::Dir;
use super::state_dir::{BESIDE, UNDO};
use super::{Meta, Result, Stamp};
use crate::model::{CommitId, PlanId, SandboxId};

/// What the engine puts among areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// The area of a sandbox.
    Sandbox(SandboxId),
    /// What its commit stages, or keeps for undo.
    Commit(SandboxId),
    /// The same of a commit after which the sandbox stays, so that there may be several.
    Part(SandboxId, CommitId),
    /// What others wrote into its original, set aside by an undo.
    Aside(SandboxId),
    /// The layer of a plan over the home directory.
    Scratch(PlanId),
    /// A temporary directory, which its maker holds locked.
    Temporary,
}

impl Area {
    /// What a name means; beside originals only a hidden one means anything.
    pub fn named(name: &[u8], beside: bool) -> Option<Self> {
        let text = std::str::from_utf8(name).ok()?;
        let text = match beside {
            true => text.strip_prefix(BESIDE)?,
            false => text,
        };
        if text.starts_with("scratch-") || text.starts_with("probe-") {
            return Some(Self::Temporary);
        }
        let (id, end) = text.split_at(text.find('.').unwrap_or(text.len()));
        if let Ok(plan) = id.parse() {
            return (end == ".scratch").then_some(Self::Scratch(plan));
        }
        let id = id.parse().ok()?;
        match end.strip_prefix(UNDO) {
            None => end.is_empty().then_some(Self::Sandbox(id)),
            Some("") => Some(Self::Commit(id)),
            Some(more) if more.contains(".kept-") => Some(Self::Aside(id)),
            Some(more) => {
                let commit = more.strip_prefix('-')?.parse().ok()?;
                Some(Self::Part(id, commit))
            }
        }
    }
}

/// What the name of the area of a restore begins with, which lies in that of its sandbox.
pub const RESTORE: &str = "restore-";

/// What the name of a directory of a sandbox begins with into which another one is being moved, so that it can be renamed.
pub const HALF_MOVED: &[u8] = b".escrow-rename-";

/// Whether a path is, by its name, an area of a sandbox, or of one of its commits and restores. What a store says is no reason to
/// remove anything else.
pub fn is_of(path: &Path, sandbox: Option<SandboxId>) -> bool {
    let mut name = path.file_name().unwrap_or_default().as_bytes();
    if let Some(parent) = path
        .parent()
        .filter(|_| name.starts_with(RESTORE.as_bytes()))
    {
        name = parent.file_name().unwrap_or_default().as_bytes();
    }
    let area = Area::named(name, false).or_else(|| Area::named(name, true));
    match area {
        Some(Area::Sandbox(id) | Area::Commit(id) | Area::Part(id, _) | Area::Aside(id)) => {
            sandbox.is_none_or(|sandbox| sandbox == id)
        }
        Some(Area::Scratch(_) | Area::Temporary) => sandbox.is_none(),
        None => false,
    }
}

/// Whether a path lies in an area of any home, recognized by its name alone.
pub fn is_inside(path: &Path) -> bool {
    path.components().any(|part| {
        let name = part.as_os_str().as_bytes();
        let among = Area::named(name, false).filter(|area| *area != Area::Temporary);
        among.is_some() || Area::named(name, true).is_some()
    })
}

/// An entry among areas.
#[derive(Debug)]
pub struct AreaEntry {
    /// Its name.
    pub name: Box<[u8]>,
    /// What is known of it.
    pub meta: Meta,
    /// What it is; `None` where its name says nothing.
    pub area: Option<Area>,
}

/// Everything in the engine's own directory; in any other, only what is ours by name and by owner.
pub fn list(dir: &Path, beside: bool) -> Result<Vec<AreaEntry>> {
    let dir = Dir::open(dir)?;
    let me = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for name in dir.names()? {
        let area = Area::named(&name, beside);
        if beside && area.is_none() {
            continue;
        }
        let Some(meta) = dir.stat(&name)? else {
            continue;
        };
        if !beside || (meta.is_dir() && meta.uid == me) {
            found.push(AreaEntry { name, meta, area });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// When an entry among areas last changed, if it can be looked at.
pub fn changed(at: &Path) -> Option<Stamp> {
    Dir::look(at).ok().map(|meta| meta.ctime)
}

/// Whether there is an area, of which a store must have known, among the engine's own.
pub fn any(dir: &Dir) -> Result<bool> {
    let of_a_store =
        |name: &[u8]| !matches!(Area::named(name, false), None | Some(Area::Temporary));
    Ok(dir.names()?.iter().any(|name| of_a_store(name)))
}

/// The name of an area without what hides it beside an original; `None` where it is no text.
pub fn plain_name(name: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(name).ok()?;
    Some(text.strip_prefix(BESIDE).unwrap_or(text))
}

/// Whether the process that made a temporary directory still has it.
pub fn is_held(at: &Path) -> Result<bool> {
    let dir = match Dir::open(at) {
        Err(error) if error.is_absent() => return Ok(false),
        dir => dir?,
    };
    Ok(fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SystemIdSource;

    #[test]
    fn names_say_whose_they_are() {
        let (id, plan) = (
            SandboxId::new(&SystemIdSource),
            PlanId::new(&SystemIdSource),
        );
        let commit = CommitId::new(&SystemIdSource);
        let rows = [
            (format!("{id}"), Some(Area::Sandbox(id))),
            (format!("{id}.undo"), Some(Area::Commit(id))),
            (format!("{id}.undo.kept-com_1"), Some(Area::Aside(id))),
            (format!("{id}.undo-{commit}"), Some(Area::Part(id, commit))),
            (
                format!("{id}.undo-{commit}.kept-{commit}"),
                Some(Area::Aside(id)),
            ),
            (format!("{id}.undo-x"), None),
            (format!("{plan}.scratch"), Some(Area::Scratch(plan))),
            ("scratch-x-0".to_owned(), Some(Area::Temporary)),
            ("probe-x-0".to_owned(), Some(Area::Temporary)),
            (format!("{id}.new"), None),
            (format!("{id}.undone"), None),
            (format!("{plan}"), None),
            ("sbx_1".to_owned(), None),
            ("notes".to_owned(), None),
        ];
        for (name, expected) in rows {
            assert_eq!(Area::named(name.as_bytes(), false), expected, "{name}");
            assert_eq!(Area::named(name.as_bytes(), true), None, "{name}");
            let hidden = format!(".escrow-{name}");
            assert_eq!(Area::named(hidden.as_bytes(), true), expected, "{hidden}");
        }
    }
}
