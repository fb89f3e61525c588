//! Paths, and which directories above another path are among them.
//!
//! A question costs as much as the path that is asked about is long, also where directories lie in each other thousands deep: each of
//! its beginnings has a hash that goes on from the one before.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::path::ResourcePath;

/// Paths with a value each.
#[derive(Debug, Clone)]
pub(crate) struct PathIndex<T> {
    members: HashMap<u64, Vec<(ResourcePath, T)>>,
    /// Secret, so that no names can be chosen that have one hash.
    keys: RandomState,
}

impl<T> Default for PathIndex<T> {
    fn default() -> Self {
        Self {
            members: HashMap::new(),
            keys: RandomState::new(),
        }
    }
}

impl<T> FromIterator<(ResourcePath, T)> for PathIndex<T> {
    fn from_iter<I: IntoIterator<Item = (ResourcePath, T)>>(all: I) -> Self {
        let mut index = Self::default();
        for (path, value) in all {
            if index.get(&path).is_none() {
                let (hash, _) = index.hashes(&path).pop().unwrap_or_default();
                index.members.entry(hash).or_default().push((path, value));
            }
        }
        index
    }
}

impl<T> PathIndex<T> {
    /// The hash of each directory that a path lies in, outermost first, and at last its own; each with its length.
    fn hashes(&self, path: &ResourcePath) -> Vec<(u64, usize)> {
        let (mut hasher, mut end) = (self.keys.build_hasher(), 0);
        let mut all = Vec::new();
        for part in path.parts() {
            hasher.write(part);
            hasher.write_u8(b'/');
            end += part.len() + usize::from(end > 0);
            all.push((hasher.finish(), end));
        }
        if all.is_empty() {
            all.push((hasher.finish(), 0));
        }
        all
    }

    fn found(&self, (hash, end): (u64, usize), path: &ResourcePath) -> Option<&(ResourcePath, T)> {
        let same = |one: &&(ResourcePath, T)| one.0.as_bytes() == &path.as_bytes()[..end];
        self.members.get(&hash)?.iter().find(same)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &ResourcePath> {
        self.members.values().flatten().map(|(path, _)| path)
    }

    /// The value of a path.
    pub(crate) fn get(&self, path: &ResourcePath) -> Option<&T> {
        let own = self.hashes(path).pop()?;
        self.found(own, path).map(|(_, value)| value)
    }

    /// The value of a path, to be changed.
    pub(crate) fn get_mut(&mut self, path: &ResourcePath) -> Option<&mut T> {
        let (hash, _) = self.hashes(path).pop()?;
        let mut all = self.members.get_mut(&hash)?.iter_mut();
        all.find(|one| one.0 == *path).map(|(_, value)| value)
    }

    /// The outermost directory above a path that is one of them.
    pub(crate) fn above(&self, path: &ResourcePath) -> Option<&ResourcePath> {
        let mut all = self.hashes(path);
        all.pop();
        let mut all = all.into_iter();
        all.find_map(|one| self.found(one, path))
            .map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_directory_is_found_and_nothing_that_only_begins_alike() {
        let path = |text: &str| ResourcePath::parse(text.as_bytes()).expect("a path");
        let all = ["a/b", "a/b/c", "x", "n-1"].map(|text| (path(text), text.len()));
        let index: PathIndex<usize> = all.into_iter().collect();
        let above = |text: &str| index.above(&path(text)).map(ToString::to_string);
        assert_eq!(above("a/b/c/d").as_deref(), Some("a/b"));
        assert_eq!(above("a/b/c").as_deref(), Some("a/b"));
        for none in ["a/b", "a/bb/c", "xx/y", "n/1", "n", "."] {
            assert_eq!(above(none), None, "{none}");
        }
        assert_eq!(above("x/y").as_deref(), Some("x"));
        assert_eq!(index.get(&path("a/b/c")), Some(&5));
        assert_eq!(index.get(&path("a")), None);
    }

    /// A diff of 3,000 directories, each in the one before, took a minute and a half.
    #[test]
    fn paths_that_lie_deep_in_each_other_are_looked_up_at_once() {
        let mut path = ResourcePath::root();
        let all = (0..3000).map(|_| {
            path = path.join(b"d");
            (path.clone(), ())
        });
        let index: PathIndex<()> = all.collect();
        let paths: Vec<ResourcePath> = index.paths().cloned().collect();
        let inside = paths.iter().filter(|path| index.above(path).is_some());
        assert_eq!(inside.count(), 2999);
    }
}
