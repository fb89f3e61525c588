//! The reference model of property tests: a tree in memory, edits on it, and what must be reported as changed.
//!
//! Promise: an edit that [`Model::apply`] accepts and the shell line of [`Edit::to_shell`] do the same, so a model and
//! a directory that went through the same edits are equal.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use crate::signature::{open_file, xattrs};
use crate::walk::{self, Step};

mod edit;
mod rng;
pub use edit::Edit;
pub use rng::Rng;

/// One entry of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A regular file.
    File {
        /// Its bytes.
        content: Vec<u8>,
        /// Its permissions.
        mode: u32,
        /// Its `user.*` attributes, by full name.
        xattr: BTreeMap<Vec<u8>, Vec<u8>>,
    },
    /// A directory.
    Dir {
        /// Its permissions.
        mode: u32,
    },
    /// A symlink.
    Link {
        /// Where it points.
        target: Vec<u8>,
    },
}

/// What a path must be reported as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpectedKind {
    /// Only in the new tree.
    Added,
    /// A file with other content, or a link with another target, whatever else differs.
    Modified,
    /// Only in the old tree.
    Deleted,
    /// Another kind of thing than before.
    TypeChanged,
    /// The same content, but other permissions or attributes.
    ModeChanged,
}

/// A tree in memory: relative paths, without the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    /// Its entries; the parent of each is there too.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

impl Model {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `path` is a directory; the empty path is the root.
    pub fn is_dir(&self, path: &[u8]) -> bool {
        path.is_empty() || matches!(self.nodes.get(path), Some(Node::Dir { .. }))
    }

    /// Reads a real tree.
    ///
    /// # Panics
    /// On what a model cannot hold (FIFOs, sockets, devices) and on what cannot be read.
    pub fn read_from(root: &Path) -> Self {
        let mut nodes = BTreeMap::new();
        walk::visit_all(root, |step| {
            if !step.path.is_empty() {
                nodes.insert(step.path.to_vec(), node(step));
            }
        });
        Self { nodes }
    }

    /// Every path that differs from `old` to `new`, the content of added and deleted directories included. A path that
    /// changes between a directory and something else is `TypeChanged` itself; what was below it is `Deleted`, what is
    /// below it is `Added`.
    pub fn diff(old: &Self, new: &Self) -> BTreeMap<Vec<u8>, ExpectedKind> {
        let mut found = BTreeMap::new();
        for (path, before) in &old.nodes {
            let kind = match new.nodes.get(path) {
                None => Some(ExpectedKind::Deleted),
                Some(after) => change(before, after),
            };
            found.extend(kind.map(|kind| (path.clone(), kind)));
        }
        let added = new
            .nodes
            .keys()
            .filter(|path| !old.nodes.contains_key(*path));
        found.extend(added.map(|path| (path.clone(), ExpectedKind::Added)));
        found
    }
}

fn change(before: &Node, after: &Node) -> Option<ExpectedKind> {
    if before == after {
        return None;
    }
    Some(match (before, after) {
        (Node::File { content: old, .. }, Node::File { content: new, .. }) if old == new => {
            ExpectedKind::ModeChanged
        }
        (Node::File { .. }, Node::File { .. }) | (Node::Link { .. }, Node::Link { .. }) => {
            ExpectedKind::Modified
        }
        (Node::Dir { .. }, Node::Dir { .. }) => ExpectedKind::ModeChanged,
        _ => ExpectedKind::TypeChanged,
    })
}

fn node(step: &Step<'_>) -> Node {
    let mode = step.stat.st_mode & 0o7777;
    match step.kind() {
        FileType::Directory => Node::Dir { mode },
        FileType::Symlink => Node::Link {
            target: rustix::fs::readlinkat(step.dir, step.name, Vec::new())
                .unwrap_or_else(|error| step.fail("read the link", error))
                .into_bytes(),
        },
        FileType::RegularFile => {
            let fd = open_file(step).unwrap_or_else(|error| step.fail("open", error));
            let mut content = Vec::new();
            std::fs::File::from(fd)
                .read_to_end(&mut content)
                .unwrap_or_else(|error| {
                    panic!("cannot read {}: {error}", crate::text::show(step.path))
                });
            Node::File {
                content,
                mode,
                xattr: user_xattrs(step),
            }
        }
        other => panic!(
            "a model has no place for {}, a {other:?}",
            crate::text::show(step.path)
        ),
    }
}

fn user_xattrs(step: &Step<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut found = rustix::fs::openat(step.dir, step.name, flags, Mode::empty())
        .and_then(|fd| xattrs(std::os::fd::AsFd::as_fd(&fd)))
        .unwrap_or_else(|error| step.fail("read the attributes of", error));
    found.retain(|name, _| name.starts_with(b"user."));
    found
}
