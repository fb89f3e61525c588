//! Walking a tree by directory handles: any depth, any length of path, no symlink followed, two handles held.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, Result};

use crate::text::show;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Below PATH_MAX with room to spare; no single name is longer than 255.
const CHUNK: usize = 3500;

/// One entry as met on the walk; `dir` and `name` reach it, with `.` as the name of the root.
pub(crate) struct Step<'a> {
    pub(crate) dir: BorrowedFd<'a>,
    pub(crate) name: &'a OsStr,
    pub(crate) path: &'a [u8],
    pub(crate) stat: Stat,
}

impl Step<'_> {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Panics in the name of the entry.
    pub(crate) fn fail(&self, doing: &str, error: Errno) -> ! {
        panic!("cannot {doing} {}: {error}", show(self.path))
    }
}

/// Opens the top of a tree.
pub(crate) fn open_root(root: &Path) -> OwnedFd {
    rustix::fs::open(root, DIRECTORY - OFlags::NOFOLLOW, Mode::empty())
        .unwrap_or_else(|error| panic!("cannot open the directory {}: {error}", root.display()))
}

/// Opens the directory `path` (bytes relative to `root`, of any length) without following a symlink anywhere.
pub(crate) fn open_dir(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut at = reopen(root, b".")?;
    let mut rest = path;
    while !rest.is_empty() {
        let (chunk, after) = if rest.len() <= CHUNK {
            (rest, &rest[rest.len()..])
        } else {
            let slash = rest[..CHUNK]
                .iter()
                .rposition(|b| *b == b'/')
                .ok_or(Errno::NAMETOOLONG)?;
            (&rest[..slash], &rest[slash + 1..])
        };
        at = reopen(at.as_fd(), chunk)?;
        rest = after;
    }
    Ok(at)
}

fn reopen(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(dir, path, DIRECTORY, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The sorted names in a directory.
pub(crate) fn names(dir: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Joins a relative directory and a name.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

/// Calls `on_entry` for the root and everything below, a directory before its content, and `on_unreadable` for a
/// directory that was met but cannot be listed. `on_entry` may remove the entry, or make a directory readable.
pub(crate) fn visit(
    root: &Path,
    mut on_entry: impl FnMut(&Step<'_>),
    mut on_unreadable: impl FnMut(&[u8], Errno),
) {
    let top = open_root(root);
    let stat = rustix::fs::fstat(&top)
        .unwrap_or_else(|error| panic!("cannot stat {}: {error}", root.display()));
    on_entry(&Step {
        dir: top.as_fd(),
        name: OsStr::new("."),
        path: b"",
        stat,
    });
    let mut pending: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(path) = pending.pop() {
        let listed = open_dir(top.as_fd(), &path)
            .and_then(|dir| names(dir.as_fd()).map(|names| (dir, names)));
        let (dir, names) = match listed {
            Ok(found) => found,
            Err(error) => {
                on_unreadable(&path, error);
                continue;
            }
        };
        for name in names {
            let path = join(&path, &name);
            let stat = match rustix::fs::statat(&dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(error) => {
                    on_unreadable(&path, error);
                    continue;
                }
            };
            let step = Step {
                dir: dir.as_fd(),
                name: OsStr::from_bytes(&name),
                path: &path,
                stat,
            };
            on_entry(&step);
            if step.kind() == FileType::Directory {
                pending.push(path);
            }
        }
    }
}

/// For trees that must be readable throughout.
pub(crate) fn visit_all(root: &Path, on_entry: impl FnMut(&Step<'_>)) {
    visit(root, on_entry, |path, error| {
        panic!("cannot list {} in {}: {error}", show(path), root.display())
    });
}
