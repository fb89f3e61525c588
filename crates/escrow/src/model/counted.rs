//! Changes that are counted and named in one line instead of being listed: those that git ignores, and those that
//! `diff.ignore` leaves out.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Detail, DiffView, EntryInfo, EntryKind};
use super::path::ResourcePath;
use super::path_index::PathIndex;
use super::text::escape;

/// How many names a line has.
const NAMED: usize = 4;

/// Changes that are counted.
#[derive(Debug, Clone, Default)]
pub struct CountedChanges {
    /// The outermost paths of which all changes are counted.
    tops: PathIndex<()>,
    /// How many of them are no directories.
    files: usize,
    /// Their names, those with most files first.
    names: Vec<String>,
}

/// Whether one side of a change is a directory, and the other one is nothing else.
pub(crate) fn is_dir(change: &Change) -> bool {
    let dir = |side: &EntryInfo| side.kind == EntryKind::Directory;
    let mut sides = change.old.iter().chain(&change.new);
    (change.old.is_some() || change.new.is_some()) && sides.all(dir)
}

/// The paths of a diff of files, for the question which of them are ignored: those of directories, with all that the changes
/// lie in, and those of everything else.
pub(crate) fn paths_of(diff: &DiffView) -> (BTreeSet<ResourcePath>, BTreeSet<ResourcePath>) {
    let (mut dirs, mut files) = (BTreeSet::new(), BTreeSet::new());
    let all = diff.changes.iter();
    for change in all.filter(|change| matches!(change.detail, Detail::File(_))) {
        // Of a directory that is known all that it lies in is known.
        for above in change.path.ancestors() {
            if !dirs.insert(above) {
                break;
            }
        }
        match is_dir(change) {
            true => dirs.insert(change.path.clone()),
            false => files.insert(change.path.clone()),
        };
    }
    // A file in the place of a directory is asked for as what lies in it says.
    files.retain(|path| !dirs.contains(path));
    (dirs, files)
}

impl CountedChanges {
    /// Those changes of a diff that are one of these paths, or lie in one.
    pub(crate) fn of(diff: &DiffView, paths: &BTreeSet<ResourcePath>) -> Self {
        let mut counted = Self::default();
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let mut tops = BTreeSet::new();
        let paths: PathIndex<()> = paths.iter().map(|path| (path.clone(), ())).collect();
        for change in &diff.changes {
            let own = || paths.get(&change.path).map(|()| &change.path);
            let Some(top) = paths.above(&change.path).or_else(own) else {
                continue;
            };
            let name = top.parts().next_back().map(escape).unwrap_or_default();
            let files = usize::from(!is_dir(change));
            *names.entry(name).or_default() += files;
            counted.files += files;
            tops.insert(top.clone());
        }
        counted.tops = tops.into_iter().map(|top| (top, ())).collect();
        let mut names: Vec<(String, usize)> = names.into_iter().collect();
        names.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
        counted.names = names.into_iter().map(|(name, _)| name).collect();
        counted
    }

    /// All changes of a diff.
    pub fn all(diff: &DiffView) -> Self {
        let paths = diff.changes.iter().map(|change| change.path.clone());
        Self::of(diff, &paths.collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tops.is_empty()
    }

    /// Whether a path is one of them.
    pub fn covers(&self, path: &ResourcePath) -> bool {
        !self.is_empty() && (self.tops.get(path).is_some() || self.tops.above(path).is_some())
    }

    /// How many files there are, and the names of what holds them: `248 ignored by git: .venv, __pycache__`.
    pub fn line(&self, why: &str) -> String {
        let more = if self.names.len() > NAMED {
            ", …"
        } else {
            ""
        };
        let names = self.names.iter().take(NAMED);
        let names = names.map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("{} {why}: {names}{more}", self.files)
    }
}

#[cfg(test)]
mod tests {
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
            size: 1,
            mode: 0o644,
            target: None,
        };
        Change::added(path(name), facts)
    }

    #[test]
    fn what_is_ignored_is_counted_by_what_holds_it() {
        let names =
            "a.py b.log v/ v/bin/ v/bin/x v/y src/__pycache__/ src/__pycache__/a lib/__pycache__/b";
        let diff = DiffView::new(names.split(' ').map(added).collect());
        let (dirs, files) = paths_of(&diff);
        let shown = |paths: &BTreeSet<ResourcePath>| {
            let paths = paths.iter().map(ToString::to_string);
            paths.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(&dirs),
            "lib lib/__pycache__ src src/__pycache__ v v/bin"
        );
        assert_eq!(
            shown(&files),
            "a.py b.log lib/__pycache__/b src/__pycache__/a v/bin/x v/y"
        );
        let ignored = "v v/bin v/bin/x v/y b.log src/__pycache__ lib/__pycache__";
        let ignored = ignored.split(' ').map(path).collect();
        let counted = CountedChanges::of(&diff, &ignored);
        let line = counted.line("ignored by git");
        assert_eq!(line, "5 ignored by git: __pycache__, v, b.log");
        assert!(counted.covers(&path("v/new")) && counted.covers(&path("src/__pycache__")));
        assert!(!counted.covers(&path("src")) && !counted.covers(&path("a.py")));
        let all = CountedChanges::all(&diff);
        assert_eq!(
            all.line("left out"),
            "6 left out: v, __pycache__, a.py, b, …"
        );
    }
}
