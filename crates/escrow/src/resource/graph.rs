//! The resource graph: which resource contains which, which share a sandbox, and which must not overlap.
//!
//! A resource names its parent. From that follows the order of a commit (children before parents)
//! and of a discard (parents before children), and which sandbox a resource lives in: its own,
//! unless it asks to share its parent's. A child with a sandbox of its own is carved out of the
//! sandbox of whatever it lies in. Two resources that overlap without being parent and child would
//! be changed through each other, and are refused; bind mounts do not hide it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::fs::Result;
use crate::fs::mounts::MountLocation;
use crate::model::{ResourcePath, Shape};
use crate::store::Resource;

/// The strategy of a resource that lives in its parent's sandbox.
pub(crate) const INHERIT: &str = "inherit";

/// All resources there are.
pub(crate) struct ResourceGraph<'a> {
    resources: &'a [Resource],
}

impl<'a> ResourceGraph<'a> {
    /// The graph of these.
    pub(crate) fn new(resources: &'a [Resource]) -> Self {
        Self { resources }
    }

    /// The resources that a resource lies in by what it and they say, nearest first.
    pub(crate) fn ancestors(&self, resource: &Resource) -> Vec<&'a Resource> {
        let mut found: Vec<&Resource> = Vec::new();
        let mut parent = resource.parent.as_deref();
        while let Some(name) = parent {
            let Some(next) = self.resources.iter().find(|one| one.name == name) else {
                break;
            };
            // A process that is its own ancestor was made so by hand.
            if next.id == resource.id || found.iter().any(|one| one.id == next.id) {
                break;
            }
            found.push(next);
            parent = next.parent.as_deref();
        }
        found
    }

    /// How many resources it lies in.
    pub(crate) fn depth(&self, resource: &Resource) -> usize {
        self.ancestors(resource).len()
    }

    /// The resource in whose sandbox it lives: itself, unless it asks to share its parent's.
    pub(crate) fn boundary(&self, resource: &Resource) -> Option<Resource> {
        if resource.strategy != INHERIT {
            return Some(resource.clone());
        }
        let mut above = self.ancestors(resource).into_iter();
        above.find(|one| one.strategy != INHERIT).cloned()
    }

    /// Whether one of the two was declared to lie in the other.
    pub(crate) fn are_related(&self, a: &Resource, b: &Resource) -> bool {
        let above = |one: &Resource, other: &Resource| {
            self.ancestors(one).iter().any(|above| above.id == other.id)
        };
        above(a, b) || above(b, a)
    }

    /// What belongs to others in a resource: children with a sandbox of their own.
    pub(crate) fn carved(&self, resource: &Resource) -> Result<Vec<ResourcePath>> {
        let mut carved = Vec::new();
        for one in self.resources {
            let own = one.strategy != INHERIT && one.id != resource.id;
            let below = |above: &&Resource| above.id == resource.id;
            if own && self.ancestors(one).iter().any(below) {
                let at = self.path_in(one, resource)?.filter(|path| !path.is_root());
                // What an engine keeps beside a database belongs to it.
                let beside = at.iter().filter(|_| one.shape == Shape::Database);
                let beside: Vec<ResourcePath> = beside.flat_map(beside_database).collect();
                carved.extend(at.into_iter().chain(beside));
            }
        }
        carved.sort_unstable();
        Ok(carved)
    }

    /// Where a resource lies in another; `None` where it does not.
    pub(crate) fn path_in(
        &self,
        resource: &Resource,
        outer: &Resource,
    ) -> Result<Option<ResourcePath>> {
        let (Some(inner), Some(outer)) = (place(resource)?, place(outer)?) else {
            return Ok(None);
        };
        Ok(path_within(&inner, &outer))
    }

    /// Where the paths of a resource begin in another: of a file, in the directory that holds it.
    pub(crate) fn root_in(
        &self,
        resource: &Resource,
        outer: &Resource,
    ) -> Result<Option<ResourcePath>> {
        let path = self.path_in(resource, outer)?;
        Ok(path.and_then(|path| root_at(resource, path)))
    }

    /// Where a resource lies in another and where its paths begin there, also while one of them is gone:
    /// a name counts before there is anything that has it.
    pub(crate) fn named_in(
        &self,
        resource: &Resource,
        outer: &Resource,
    ) -> Result<Option<(ResourcePath, ResourcePath)>> {
        let expected = |one| place_by(one, MountLocation::expected);
        let (Some(inner), Some(outer)) = (expected(resource)?, expected(outer)?) else {
            return Ok(None);
        };
        let at = path_within(&inner, &outer);
        Ok(at.map(|at| (at.clone(), root_at(resource, at).unwrap_or_default())))
    }

    /// The first of `others` that overlaps a resource without being related to it.
    pub(crate) fn overlap<'o>(
        &self,
        resource: &Resource,
        others: &[&'o Resource],
    ) -> Result<Option<&'o Resource>> {
        let Some(own) = place(resource)? else {
            return Ok(None);
        };
        for other in others {
            if other.id == resource.id || self.are_related(resource, other) {
                continue;
            }
            if place(other)?.is_some_and(|other| own.overlaps(&other)) {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }
}

/// The files that SQLite keeps beside a database.
fn beside_database(at: &ResourcePath) -> impl Iterator<Item = ResourcePath> {
    let named = |suffix: &str| {
        let (parent, name) = at.split()?;
        Some(parent.join(&[name, suffix.as_bytes()].concat()))
    };
    ["-wal", "-shm", "-journal"].into_iter().filter_map(named)
}

/// Where the paths of a resource begin that lies at `at`: of a file, in the directory that holds it.
fn root_at(resource: &Resource, at: ResourcePath) -> Option<ResourcePath> {
    match resource.shape {
        Shape::Tree | Shape::Database | Shape::Url | Shape::Opaque => Some(at),
        Shape::File => at.split().map(|(parent, _)| parent),
    }
}

fn path_within(inner: &MountLocation, outer: &MountLocation) -> Option<ResourcePath> {
    let path = inner.within(outer)?;
    match path.as_os_str().is_empty() {
        true => Some(ResourcePath::root()),
        false => ResourcePath::parse(path.as_os_str().as_bytes()).ok(),
    }
}

/// Where a resource really lies; `None` where it has no path, or is gone. A file has its place also while it is deleted:
/// a commit may be about to put it there again.
fn place(resource: &Resource) -> Result<Option<MountLocation>> {
    match place_by(resource, MountLocation::of) {
        Err(error) if error.is_absent() => Ok(None),
        place => place,
    }
}

/// The same, found by `find` from the root of the resource.
fn place_by(
    resource: &Resource,
    find: impl Fn(&Path) -> Result<MountLocation>,
) -> Result<Option<MountLocation>> {
    let Some(root) = resource.root() else {
        return Ok(None);
    };
    let place = find(root)?;
    let name = resource.at.as_path().file_name();
    Ok(Some(match (resource.shape, name) {
        (shape, Some(name)) if shape.is_file() => place.entry(name),
        _ => place,
    }))
}
