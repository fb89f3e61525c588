//! Handlers by resource type: what a location must be, and how a sandbox of it is created.
//!
//! One handler for each type that comes with the engine; a type of the user's own is served by that of
//! the type it extends. What is the same for all of them is written here once.

use std::io::Read;
use std::path::Path;

use crate::fs::{self, Dir, FsError};
use crate::model::resource::{FS_DIRECTORY, FS_FILE, FS_MOUNT, OPAQUE, URL};
use crate::model::text::Location;
use crate::model::{EntryKind, ResourceType, Shape};
use crate::strategy::registry::RegistryError;
use crate::strategy::{CreateRequest, Created, Probe, Registry, StrategyError};

/// Why a handler could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// What stands at the location is not of the type.
    #[error("'{at}' cannot be a resource{}: {why}", .kind.map(|kind| format!(" of type {kind}")).unwrap_or_default())]
    Refused {
        /// Where.
        at: Location,
        /// The type that was asked for, if one was.
        kind: Option<&'static str>,
        /// What is wrong.
        why: &'static str,
    },
    /// No strategy could be chosen.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The strategy failed.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The file system refused.
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// What stands at a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocationInfo {
    kind: EntryKind,
    mounted: bool,
    sqlite: bool,
}

impl LocationInfo {
    /// Looks at a canonical path.
    pub fn look(at: &Path) -> fs::Result<Self> {
        let meta = Dir::look(at)?;
        let above = at.parent().map(Dir::look).transpose()?;
        Ok(Self {
            kind: meta.kind,
            mounted: above.is_none_or(|above| above.mount != meta.mount),
            sqlite: meta.is_file() && is_sqlite(at),
        })
    }
}

/// Whether a file begins as SQLite databases do; what cannot be read is none that is known.
fn is_sqlite(at: &Path) -> bool {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return false;
    };
    let mut head = [0; 16];
    let opened = Dir::open(parent).and_then(|dir| dir.file(name.as_encoded_bytes()));
    opened.is_ok_and(|(mut file, _)| file.read_exact(&mut head).is_ok())
        && &head == b"SQLite format 3\0"
}

/// What a sandbox is made from and where.
pub struct SandboxRequest<'a> {
    /// The strategies there are.
    pub registry: &'a Registry,
    /// The strategy that is asked for.
    pub wanted: &'a str,
    /// The type of the resource.
    pub kind: &'a ResourceType,
    /// The real thing, and where its sandbox is to lie.
    pub create: CreateRequest<'a>,
}

/// A sandbox that was just made, and why by this strategy.
#[derive(Debug)]
pub struct CreatedSandbox {
    /// What the strategy made.
    pub created: Created,
    /// What each strategy that was asked said.
    pub reasons: Vec<String>,
}

/// How resources of one type are dealt with.
pub trait Handler: Send + Sync {
    /// The type.
    fn kind(&self) -> &'static str;

    /// What of the machine its resources are.
    fn shape(&self) -> Shape;

    /// Refuses what is not of the type, with the reason.
    fn check(&self, there: &LocationInfo) -> Result<(), &'static str>;

    /// Refuses a location at which something else stands.
    fn accept(&self, at: &Path) -> Result<(), HandlerError> {
        self.check(&LocationInfo::look(at)?)
            .map_err(|why| HandlerError::Refused {
                at: Location::from(at),
                kind: Some(self.kind()),
                why,
            })
    }

    /// Makes a sandbox by the strategy that is asked for, or the first that works. What stands at the
    /// location is looked at again: it may be another thing than when the resource was named.
    fn create_sandbox(&self, request: &SandboxRequest<'_>) -> Result<CreatedSandbox, HandlerError> {
        let CreateRequest { target, area, .. } = request.create;
        if let Some(path) = target.path() {
            self.accept(path)?;
        }
        let registry = request.registry;
        let choice = registry.choose(request.wanted, request.kind, target, area)?;
        let create = CreateRequest {
            area: area.filter(|_| choice.strategy.capabilities().area),
            ..request.create
        };
        let mut created = choice.strategy.create(&create)?;
        if let Some(instead) = choice.instead {
            created.message = format!("{instead}; instead: {}", created.message);
        }
        created.warnings.extend(choice.warning);
        let reason = |(name, probe): &(String, Probe)| probe.summary(name);
        let reasons = choice.probes.iter().map(reason).collect();
        Ok(CreatedSandbox { created, reasons })
    }
}

/// `fs-directory`: a directory and everything in it, but not what is mounted in it.
struct FsDirectory;

impl Handler for FsDirectory {
    fn kind(&self) -> &'static str {
        FS_DIRECTORY
    }

    fn shape(&self) -> Shape {
        Shape::Tree
    }

    fn check(&self, there: &LocationInfo) -> Result<(), &'static str> {
        match there.kind {
            EntryKind::Directory => Ok(()),
            EntryKind::File => Err("it is a file; use the type fs-file"),
            other => Err(special(other)),
        }
    }
}

/// `fs-mount`: a directory at which something is mounted. It is never taken for the empty directory that
/// is there while nothing is.
struct FsMount;

impl Handler for FsMount {
    fn kind(&self) -> &'static str {
        FS_MOUNT
    }

    fn shape(&self) -> Shape {
        Shape::Tree
    }

    fn check(&self, there: &LocationInfo) -> Result<(), &'static str> {
        FsDirectory.check(there)?;
        match there.mounted {
            true => Ok(()),
            false => Err("nothing is mounted there; mount it first, or use the type fs-directory"),
        }
    }
}

/// `fs-file`: one regular file, and nothing of the directory that holds it.
struct FsFile;

impl Handler for FsFile {
    fn kind(&self) -> &'static str {
        FS_FILE
    }

    fn shape(&self) -> Shape {
        Shape::File
    }

    fn check(&self, there: &LocationInfo) -> Result<(), &'static str> {
        match there.kind {
            EntryKind::File if there.mounted => {
                Err("something is mounted on it, so no new version can be put in its place")
            }
            EntryKind::File => Ok(()),
            EntryKind::Directory => Err("it is a directory; use the type fs-directory"),
            other => Err(special(other)),
        }
    }
}

/// What has no path: nothing can be looked at here, and only its strategy knows whether it is there.
struct Elsewhere {
    kind: &'static str,
    shape: Shape,
}

impl Handler for Elsewhere {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn check(&self, _there: &LocationInfo) -> Result<(), &'static str> {
        Err("it is named by its type, not by what stands at a path")
    }

    fn accept(&self, _at: &Path) -> Result<(), HandlerError> {
        Ok(())
    }
}

const OPAQUE_RESOURCES: Elsewhere = Elsewhere {
    kind: OPAQUE,
    shape: Shape::Opaque,
};

const URL_RESOURCES: Elsewhere = Elsewhere {
    kind: URL,
    shape: Shape::Url,
};

fn special(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Fifo => "it is a named pipe, which holds nothing that could be sandboxed",
        EntryKind::Socket => "it is a socket, which holds nothing that could be sandboxed",
        EntryKind::Device => "it is a device, which cannot be sandboxed",
        EntryKind::Symlink => "it is a symbolic link; name what it leads to",
        EntryKind::File | EntryKind::Directory => "it is of another type",
    }
}

/// Those of every type that is supported; of those that take a thing, the first is meant.
const HANDLERS: &[&dyn Handler] = &[
    &FsMount,
    &FsDirectory,
    &FsFile,
    &OPAQUE_RESOURCES,
    &URL_RESOURCES,
];

/// The handler of a type.
pub fn handler(kind: &ResourceType) -> Option<&'static dyn Handler> {
    let found = HANDLERS.iter().find(|one| one.kind() == kind.base);
    found.copied()
}

/// The handler for what stands at a canonical path whose type the user did not name.
pub fn detect(at: &Path) -> Result<&'static dyn Handler, HandlerError> {
    let there = LocationInfo::look(at)?;
    let refused = |why| HandlerError::Refused {
        at: Location::from(at),
        kind: None,
        why,
    };
    if there.sqlite {
        return Err(refused(
            "it is a SQLite database, a type that is not supported yet; once nothing has it open, \
             `escrow resource add NAME --type fs-file --at PATH` takes it as a plain file",
        ));
    }
    let found = HANDLERS.iter().find(|one| one.check(&there).is_ok());
    let why = || {
        FsFile
            .check(&there)
            .err()
            .unwrap_or("no resource type accepts it")
    };
    found.copied().ok_or_else(|| refused(why()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ResourceTypes;

    // rule P8
    #[test]
    fn every_supported_type_has_a_handler_and_no_other() {
        for kind in ResourceTypes::default().all() {
            let served = handler(kind).map(Handler::kind);
            let expected = kind.supported.then_some(kind.base);
            assert_eq!(served, expected, "{}", kind.name);
        }
    }

    #[test]
    fn what_stands_there_decides() {
        let there = |kind, mounted| LocationInfo {
            kind,
            mounted,
            sqlite: false,
        };
        let takers = |there: LocationInfo| -> Vec<&str> {
            let takes = |one: &&&dyn Handler| one.check(&there).is_ok();
            HANDLERS
                .iter()
                .filter(takes)
                .map(|one| one.kind())
                .collect()
        };
        let plain = there(EntryKind::Directory, false);
        assert_eq!(takers(plain), [FS_DIRECTORY]);
        let mounted = there(EntryKind::Directory, true);
        assert_eq!(takers(mounted), [FS_MOUNT, FS_DIRECTORY]);
        assert_eq!(takers(there(EntryKind::File, false)), [FS_FILE]);
        for kind in [
            EntryKind::Fifo,
            EntryKind::Socket,
            EntryKind::Device,
            EntryKind::Symlink,
        ] {
            assert!(takers(there(kind, false)).is_empty(), "{kind:?}");
        }
        assert!(takers(there(EntryKind::File, true)).is_empty());
    }
}
