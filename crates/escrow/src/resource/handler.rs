//! What the types that come with the engine take, told from what stands at a location. A type of the user's own takes
//! what the type it extends takes.

use std::path::Path;

use crate::fs::{self, Dir, FsError};
use crate::model::resource::{
    FS_DIRECTORY, FS_FILE, FS_MOUNT, GIT_CHECKOUT, OPAQUE, POSTGRES, SQLITE, URL,
};
use crate::model::text::Location;
use crate::model::{EntryKind, ResourceType, Shape};
use crate::strategy::postgres::location::{check_url, name_of};
use crate::strategy::sql::is_database;

/// Why a location cannot be a resource.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// What stands there is not of the type that was asked for, or of none.
    #[error("'{at}' cannot be a resource{}: {why}", .kind.as_ref().map(|kind| format!(" of type {kind}")).unwrap_or_default())]
    Refused {
        /// Where.
        at: Location,
        /// The type that was asked for, if one was.
        kind: Option<String>,
        /// What is wrong.
        why: String,
    },
    /// The file system refused.
    #[error(transparent)]
    Fs(#[from] FsError),
}

/// What of the machine resources of a type are; `None` where it is not supported.
pub(crate) fn shape(kind: &ResourceType) -> Option<Shape> {
    match kind.base.as_str() {
        FS_DIRECTORY | FS_MOUNT | GIT_CHECKOUT => Some(Shape::Tree),
        FS_FILE => Some(Shape::File),
        SQLITE => Some(Shape::Database),
        OPAQUE => Some(Shape::Opaque),
        URL | POSTGRES => Some(Shape::Url),
        _ => None,
    }
}

/// What a resource may be of which only the path is known.
pub(crate) fn shapes_at(at: Option<&Path>) -> &'static [Shape] {
    match at.and_then(|at| Dir::look(at).ok()) {
        Some(there) if there.is_dir() => &[Shape::Tree],
        Some(_) => &[Shape::File, Shape::Database],
        None => &[Shape::Tree, Shape::File, Shape::Database],
    }
}

/// Refuses a canonical path at which something else stands than the type takes. Of what has no path, only its strategy
/// knows whether it is there.
pub(crate) fn accept(kind: &ResourceType, at: &Path) -> Result<(), HandlerError> {
    let refuse = |why: String| HandlerError::Refused {
        // Nothing of a URL that is refused is repeated: it may hold a password (rule Q6).
        at: Location::from(Path::new("the URL")),
        kind: Some(kind.base.clone()),
        why,
    };
    if kind.base == POSTGRES {
        let url = at
            .to_str()
            .ok_or_else(|| refuse("it is no text".to_owned()))?;
        return check_url(url).map_err(refuse);
    }
    if !shape(kind).is_some_and(Shape::has_path) {
        return Ok(());
    }
    refusal(&kind.base, &LocationInfo::look(at)?).map_or(Ok(()), |why| {
        Err(HandlerError::Refused {
            at: Location::from(at),
            kind: Some(kind.base.clone()),
            why: why.to_owned(),
        })
    })
}

/// Whether a URL of a PostgreSQL database can be used; else why not.
pub(crate) fn check_database_url(url: &str) -> Result<(), String> {
    check_url(url)
}

/// By what a database is called that a URL leads to; `None` where the URL does not say.
pub(crate) fn name_of_url(url: &str) -> Option<String> {
    name_of(url)
}

/// The type of what stands at a canonical path, if the user named none.
pub(crate) fn detect(at: &Path) -> Result<&'static str, HandlerError> {
    let there = LocationInfo::look(at)?;
    let kinds = [GIT_CHECKOUT, FS_MOUNT, FS_DIRECTORY, SQLITE, FS_FILE];
    let mut fitting = kinds.into_iter();
    // An empty file may become a database, but is none that is known.
    let is_one = |kind: &&str| *kind != SQLITE || there.sqlite;
    let why = match fitting.find(|kind| is_one(kind) && refusal(kind, &there).is_none()) {
        Some(kind) => return Ok(kind),
        None => refusal(FS_FILE, &there).unwrap_or_default(),
    };
    Err(HandlerError::Refused {
        at: Location::from(at),
        kind: None,
        why: why.to_owned(),
    })
}

/// What stands at a location.
#[derive(Clone, Copy)]
struct LocationInfo {
    kind: EntryKind,
    mounted: bool,
    sqlite: bool,
    empty: bool,
    git: bool,
}

impl LocationInfo {
    fn look(at: &Path) -> fs::Result<Self> {
        let meta = Dir::look(at)?;
        let above = at.parent().map(Dir::look).transpose()?;
        Ok(Self {
            kind: meta.kind,
            mounted: above.is_none_or(|above| above.mount != meta.mount),
            sqlite: meta.is_file() && meta.size > 0 && is_database(at),
            empty: meta.size == 0,
            git: meta.is_dir() && Dir::look(&at.join(".git")).is_ok(),
        })
    }
}

/// Why what stands somewhere is not of a type; `None` where it is. A mount is never taken for the empty directory that
/// is there while nothing is mounted.
fn refusal(kind: &str, there: &LocationInfo) -> Option<&'static str> {
    match (there.kind, kind) {
        (EntryKind::Directory, FS_MOUNT) if !there.mounted => {
            Some("nothing is mounted there; mount it first, or use the type fs-directory")
        }
        (EntryKind::Directory, GIT_CHECKOUT) if !there.git => {
            Some("there is no '.git' in it; use the type fs-directory")
        }
        (EntryKind::Directory, FS_FILE | SQLITE) => {
            Some("it is a directory; use the type fs-directory")
        }
        (EntryKind::File, SQLITE) if !there.sqlite && !there.empty => Some(
            "it does not begin as a SQLite database does: it is none, or it is encrypted; use the type fs-file",
        ),
        (EntryKind::File, SQLITE) => None,
        (EntryKind::File, FS_FILE) if there.mounted => {
            Some("something is mounted on it, so no new version can be put in its place")
        }
        (EntryKind::Directory, _) | (EntryKind::File, FS_FILE) => None,
        (EntryKind::File, _) => Some("it is a file; use the type fs-file"),
        (EntryKind::Fifo, _) => {
            Some("it is a named pipe, which holds nothing that could be sandboxed")
        }
        (EntryKind::Socket, _) => {
            Some("it is a socket, which holds nothing that could be sandboxed")
        }
        (EntryKind::Device, _) => Some("it is a device, which cannot be sandboxed"),
        (EntryKind::Symlink, _) => Some("it is a symbolic link; name what it leads to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ResourceTypes;

    // rule P8
    #[test]
    fn every_supported_type_is_served_and_no_other() {
        for kind in ResourceTypes::default().all() {
            assert_eq!(shape(kind).is_some(), kind.supported, "{}", kind.name);
        }
    }

    #[test]
    fn what_stands_there_decides() {
        let takers = |kind, mounted, git| -> Vec<&str> {
            let (sqlite, empty) = (false, false);
            let there = LocationInfo {
                kind,
                mounted,
                sqlite,
                empty,
                git,
            };
            let types = [GIT_CHECKOUT, FS_MOUNT, FS_DIRECTORY, FS_FILE].into_iter();
            types
                .filter(|kind| refusal(kind, &there).is_none())
                .collect()
        };
        let directory = EntryKind::Directory;
        assert_eq!(takers(directory, false, false), [FS_DIRECTORY]);
        assert_eq!(takers(directory, true, false), [FS_MOUNT, FS_DIRECTORY]);
        // A checkout that is mounted, as in a container, is a checkout first.
        assert_eq!(takers(directory, true, true)[0], GIT_CHECKOUT);
        assert_eq!(takers(EntryKind::File, false, false), [FS_FILE]);
        for kind in [
            EntryKind::Fifo,
            EntryKind::Socket,
            EntryKind::Device,
            EntryKind::Symlink,
        ] {
            assert!(takers(kind, false, false).is_empty(), "{kind:?}");
        }
        assert!(takers(EntryKind::File, true, false).is_empty());
    }
}
