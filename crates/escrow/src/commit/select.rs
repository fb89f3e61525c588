//! Selects the changes that must go together when only a part is committed.
//!
//! What is chosen must be possible: a new file needs the new directories it lies in, a directory
//! can only go when everything in it goes, and a SQLite database is nothing without the files beside it.

use std::collections::{BTreeSet, HashSet};

use crate::model::sqlite_files::together;
use crate::model::{Change, ChangeKind, Detail, EntryInfo, EntryKind, ResourcePath};
use crate::policy::select::{ReleasePattern, ReleaseSelection};

/// Says of each change whether it is released.
pub(super) fn choose(
    selection: &ReleaseSelection,
    resource: &str,
    changes: &[Change],
) -> Vec<bool> {
    possible(changes, wanted(selection, resource, changes))
}

/// Says of each change whether it is released although these patterns leave files out.
pub(crate) fn is_released(
    ignore: &[ReleasePattern],
    resource: &str,
    changes: &[Change],
) -> Vec<bool> {
    let selection = ReleaseSelection {
        exclude: ignore.to_vec(),
        ..ReleaseSelection::default()
    };
    let mut released = choose(&selection, resource, changes);
    for (change, released) in changes.iter().zip(&mut released) {
        // Rows, definitions and what a history has are no files.
        *released |= !matches!(change.detail, Detail::File(_));
    }
    released
}

/// The paths of changes that are discarded: without them the others are possible.
pub(crate) fn discarded(
    selection: &ReleaseSelection,
    resource: &str,
    changes: &[Change],
) -> BTreeSet<ResourcePath> {
    let wanted = wanted(selection, resource, changes);
    let stays = possible(changes, wanted.into_iter().map(|one| !one).collect());
    let all = changes.iter().zip(stays);
    let gone = all.filter(|(_, stays)| !stays);
    gone.map(|(change, _)| change.path.clone()).collect()
}

/// Says of each change whether it is asked for.
fn wanted(selection: &ReleaseSelection, resource: &str, changes: &[Change]) -> Vec<bool> {
    let takes = |change: &Change| selection.takes(resource, &change.path);
    let mut wanted: Vec<bool> = changes.iter().map(takes).collect();
    for group in together(changes) {
        let paths = group.iter().map(|one| &changes[*one].path);
        let takes = selection.takes_together(resource, paths);
        for one in group {
            wanted[one] = takes;
        }
    }
    wanted
}

/// Says of each change whether it is chosen, so that all that are can stand without the others.
fn possible(changes: &[Change], mut chosen: Vec<bool>) -> Vec<bool> {
    // A directory in which something stays, stays.
    let mut standing: HashSet<ResourcePath> = HashSet::new();
    // A directory in which something new is put comes along.
    let mut needed: HashSet<ResourcePath> = HashSet::new();
    for (change, chosen) in changes.iter().zip(&chosen) {
        if !chosen && change.old.is_some() {
            add_above(&mut standing, &change.path);
        }
        if *chosen && change.new.is_some() {
            add_above(&mut needed, &change.path);
        }
    }
    for (change, chosen) in changes.iter().zip(&mut chosen) {
        let appears = matches!(change.kind, ChangeKind::Added | ChangeKind::TypeChanged);
        let goes = is_dir(&change.old) && !is_dir(&change.new);
        if goes && standing.contains(&change.path) {
            *chosen = false;
        } else if appears && is_dir(&change.new) && needed.contains(&change.path) {
            *chosen = true;
        }
    }
    chosen
}

/// Adds the directories that a path lies in. Of one that is known all that it lies in are known.
fn add_above(known: &mut HashSet<ResourcePath>, path: &ResourcePath) {
    for above in path.ancestors() {
        if !known.insert(above) {
            break;
        }
    }
}

fn is_dir(facts: &Option<EntryInfo>) -> bool {
    facts
        .as_ref()
        .is_some_and(|facts| facts.kind == EntryKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: EntryKind) -> EntryInfo {
        EntryInfo {
            kind,
            size: 4096,
            mode: 0o644,
            target: None,
        }
    }

    /// `+ - ~` a file, `+/ -/` a directory, `>` a file that became a directory, `<` the opposite.
    fn changes(text: &str) -> Vec<Change> {
        let (file, dir) = (facts(EntryKind::File), facts(EntryKind::Directory));
        let one = |word: &str| {
            let (mark, rest) = word.split_at(1);
            let (is_dir, name) = match rest.strip_suffix('/') {
                Some(name) => (true, name),
                None => (false, rest),
            };
            let path = ResourcePath::parse(name.as_bytes()).expect("a path");
            let what = if is_dir { dir.clone() } else { file.clone() };
            let between = |old: &EntryInfo, new: &EntryInfo| {
                let fields = vec![crate::model::ChangedField::Content];
                Change::between(path.clone(), old.clone(), new.clone(), fields)
            };
            match mark {
                "+" => Change::added(path, what),
                "-" => Change::deleted(path, what),
                ">" => between(&file, &dir).expect("they differ"),
                "<" => between(&dir, &file).expect("they differ"),
                _ => between(&file, &file).expect("they differ"),
            }
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn what_is_chosen_can_be_done() {
        let rows = [
            // A new file brings the new directories it lies in, and nothing beside it.
            ("+n/ +n/m/ +n/m/f +n/g", "n/m/f", "", "n n/m n/m/f"),
            // A directory goes only with everything that is in it.
            ("-d/ -d/a -d/b", "d/a", "", "d/a"),
            ("-d/ -d/a -d/b", "d", "", "d d/a d/b"),
            ("-d/ -d/a -d/b", "d", "d/b", "d/a"),
            ("-d/ -d/e/ -d/e/a -d/b", "d", "d/e/a", "d/b"),
            // Nor does it become a file while something stays in it.
            ("<d -d/a -d/b", "d", "d/b", "d/a"),
            ("<d -d/a -d/b", "d", "", "d d/a d/b"),
            // What lies in a file that became a directory needs that.
            (">f +f/x +f/y", "f/x", "", "f f/x"),
            // A directory that was moved is two things.
            ("-old/ -old/a +new/ +new/a", "new", "", "new new/a"),
            ("~a ~b ~c", "", "b", "a c"),
            // A database and what SQLite keeps beside it are one thing.
            ("~a ~d/x.db +d/x.db-wal", "d/x.db", "", "d/x.db d/x.db-wal"),
            ("~a ~d/x.db +d/x.db-wal", "", "**/*-wal", "a"),
            ("~a-wal +b -c/ -c/x -c/x-wal", "", "c/x", "a-wal b"),
        ];
        for (text, only, exclude, expected) in rows {
            let parse = |text: &str| match text {
                "" => Vec::new(),
                text => vec![ReleasePattern::parse(text).expect("a pattern")],
            };
            let selection = ReleaseSelection {
                only: parse(only),
                exclude: parse(exclude),
                ..ReleaseSelection::default()
            };
            let changes = changes(text);
            let chosen = choose(&selection, "app", &changes);
            let paths = changes.iter().zip(chosen).filter(|(_, chosen)| *chosen);
            let paths: Vec<String> = paths.map(|(one, _)| one.path.to_string()).collect();
            assert_eq!(
                paths.join(" "),
                expected,
                "{text} only {only} not {exclude}"
            );
        }
    }
}
