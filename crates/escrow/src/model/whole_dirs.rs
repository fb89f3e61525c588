//! Directories that came or went as a whole: a reader takes in one line for each of them, not one for every file.

use std::collections::{HashMap, HashSet};

use super::autorun::AutorunChange;
use super::change::{ChangeKind, DiffView, EntryKind};
use super::path::ResourcePath;
use super::path_index::PathIndex;

/// A directory with fewer changes in it than this is not worth a sum.
const FOLDED: usize = 12;

/// As many files that run later in one new directory are named one by one.
const NAMED: usize = 3;

/// The directories of a diff that were added or deleted, outermost ones only.
#[derive(Debug, Default)]
pub struct WholeDirs {
    tops: PathIndex<WholeDir>,
}

/// What came or went with a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WholeDir {
    /// Everything in it that is no directory.
    pub files: usize,
    /// The bytes in its files.
    pub bytes: u64,
    /// All changes below it.
    changes: usize,
}

/// Files that run later: one of them, or several in one new directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutorunGroup {
    /// The file, or the directory.
    pub path: ResourcePath,
    /// How many files.
    pub files: usize,
    /// What runs the one that weighs most.
    pub why: &'static str,
    /// Where it is, if the files do not show it.
    pub within: Option<String>,
}

impl WholeDirs {
    /// Those of a diff.
    pub fn of(diff: &DiffView) -> Self {
        let is_dir = |side: Option<&super::change::EntryInfo>| {
            side.is_some_and(|side| side.kind == EntryKind::Directory)
        };
        let whole = diff.changes.iter().filter(|change| match change.kind {
            ChangeKind::Added => is_dir(change.new.as_ref()),
            ChangeKind::Deleted => is_dir(change.old.as_ref()),
            _ => false,
        });
        let whole: PathIndex<()> = whole.map(|change| (change.path.clone(), ())).collect();
        let tops = whole.paths().filter(|path| whole.above(path).is_none());
        let mut dirs = Self {
            tops: tops.map(|top| (top.clone(), WholeDir::default())).collect(),
        };
        for change in &diff.changes {
            let top = dirs.top(&change.path);
            let Some(dir) = top.and_then(|top| dirs.tops.get_mut(&top)) else {
                continue;
            };
            dir.changes += 1;
            if let Some(side) = change.new.as_ref().or(change.old.as_ref())
                && side.kind != EntryKind::Directory
            {
                dir.files += 1;
                dir.bytes += side.size;
            }
        }
        dirs
    }

    /// The one that this lies in.
    fn top(&self, path: &ResourcePath) -> Option<ResourcePath> {
        self.tops.above(path).cloned()
    }

    /// The sum of a directory, if it stands for everything in it.
    pub fn folded(&self, path: &ResourcePath) -> Option<WholeDir> {
        let found = self.tops.get(path).copied();
        found.filter(|dir| dir.changes >= FOLDED)
    }

    /// Whether the sum of a directory stands for this.
    pub fn hides(&self, path: &ResourcePath) -> bool {
        let top = self.top(path);
        top.is_some_and(|top| self.folded(&top).is_some())
    }

    /// What runs later, what weighs most first, and many files of one new directory as one. What is in there weighs as much
    /// as the heaviest of it.
    pub fn group(&self, later: &[AutorunChange]) -> Vec<AutorunGroup> {
        let mut below: HashMap<ResourcePath, usize> = HashMap::new();
        for one in later.iter().filter(|one| one.within.is_none()) {
            if let Some(top) = self.top(&one.path) {
                *below.entry(top).or_default() += 1;
            }
        }
        let mut sorted: Vec<&AutorunChange> = later.iter().collect();
        sorted.sort_by_key(|one| one.weight);
        let mut shown = HashSet::new();
        let mut groups = Vec::new();
        for one in sorted {
            let top = self.top(&one.path);
            let top = top.filter(|_| one.within.is_none());
            let many = top.filter(|top| below.get(top).is_some_and(|count| *count > NAMED));
            let (path, files) = match many {
                Some(top) if !shown.insert(top.clone()) => continue,
                Some(top) => {
                    let files = below.get(&top).copied().unwrap_or_default();
                    (top, files)
                }
                None => (one.path.clone(), 1),
            };
            groups.push(AutorunGroup {
                path,
                files,
                why: one.why,
                within: one.within.clone(),
            });
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::super::change::{Change, EntryInfo};
    use super::*;

    fn path(text: &str) -> ResourcePath {
        ResourcePath::parse(text.as_bytes()).expect("a path")
    }

    fn added(text: &str) -> Change {
        let (kind, name) = match text.strip_suffix('/') {
            Some(name) => (EntryKind::Directory, name),
            None => (EntryKind::File, text),
        };
        let facts = EntryInfo {
            kind,
            size: 10,
            mode: 0o644,
            target: None,
        };
        Change::added(path(name), facts)
    }

    /// A package manager's directory, and what it leaves beside.
    fn installed() -> DiffView {
        let mut changes = vec![added("package.json"), added("node_modules/")];
        for n in 0..60 {
            changes.push(added(&format!("node_modules/p{n}/")));
            changes.push(added(&format!("node_modules/p{n}/package.json")));
        }
        changes.extend([added("node_modules-note"), added("ci/"), added("ci/x.mk")]);
        changes.push(added(".git/hooks/pre-push"));
        DiffView::new(changes)
    }

    #[test]
    fn a_directory_stands_for_what_is_in_it() {
        let dirs = WholeDirs::of(&installed());
        let sum = dirs.folded(&path("node_modules")).expect("it is large");
        assert_eq!((sum.files, sum.bytes), (60, 600));
        assert!(dirs.hides(&path("node_modules/p1/package.json")));
        assert!(!dirs.hides(&path("node_modules-note")));
        assert_eq!(dirs.folded(&path("ci")), None);
        assert!(!dirs.hides(&path("ci/x.mk")));
    }

    #[test]
    fn what_runs_next_comes_first_and_packages_are_counted() {
        let diff = installed();
        let later = super::super::autorun::runs_later(&diff);
        assert_eq!(later.len(), 63);
        let groups = WholeDirs::of(&diff).group(&later);
        let shown: Vec<_> = groups
            .iter()
            .map(|one| (one.path.to_string(), one.files))
            .collect();
        let wanted = [
            (".git/hooks/pre-push", 1),
            ("node_modules", 60),
            ("package.json", 1),
            ("ci/x.mk", 1),
        ];
        assert_eq!(shown, wanted.map(|(path, files)| (path.to_owned(), files)));
    }
}
