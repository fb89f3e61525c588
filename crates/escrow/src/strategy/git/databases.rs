//! SQLite databases that lie in a checkout and are resources of their own: inside, a link stands in the place of each. Git is kept
//! from taking it for a file (`info/exclude` of the private git directory, and marks in its index where the database is tracked). A link that would come into the branch that is released, or into
//! the index, is refused.

use std::path::{Path, PathBuf};
use std::slice;

use super::super::error::Result;
use super::super::sql::is_database;
use super::command::Git;
use super::index::{IndexChange, read_index};
use super::named::file;
use super::repository::{Repository, path_text};
use super::seed;
use super::trees::{TreeChange, parts};
use crate::fs::{Dir, remove};
use crate::model::{Conflict, ResourcePath};

/// The file of the git directory that says which files git leaves out.
pub(super) const EXCLUDE: &str = "info/exclude";

/// What stands around the lines of ours in it, which are no change of the user's file.
const FIRST: &[u8] =
    b"# Databases that are resources of their own; links stand in their places here.\n";
const LAST: &[u8] = b"# The end of these.\n";

/// What the names of the files of a database end with.
const ENDS: [&str; 4] = ["", "-journal", "-shm", "-wal"];

/// The mode of a link.
const LINK: &str = "120000";

/// Those among the paths of other resources.
pub(super) fn among(checkout: &Path, carved: &[ResourcePath]) -> Vec<ResourcePath> {
    let is_one = |path: &&ResourcePath| is_database(&checkout.join(path_text(path.as_bytes())));
    carved.iter().filter(is_one).cloned().collect()
}

/// Those of these paths in a checkout that git keeps versions of; none where git cannot tell.
pub(crate) fn tracked(checkout: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
    if paths.is_empty() {
        return Vec::new();
    }
    let ask = || {
        let git = Git::find().ok()?;
        let repository = Repository::there(&git, checkout).ok()??;
        let call = repository.call(&git).args([Path::new("-C"), checkout]);
        let call = call.line("--work-tree=. --literal-pathspecs ls-files -z --");
        call.args(paths).ask().ok()?
    };
    let said = ask().unwrap_or_default();
    parts(&said)
        .map(|name| PathBuf::from(path_text(name)))
        .collect()
}

/// Adds them to what git leaves out, in a private git directory that is being made.
pub(super) fn leave_out(databases: &[ResourcePath], seed: &Dir) -> Result<()> {
    if databases.is_empty() {
        return Ok(());
    }
    let mut text = FIRST.to_vec();
    for path in databases {
        for end in ENDS {
            text.push(b'/');
            path.as_bytes().iter().for_each(|byte| match byte {
                // A pattern is a line.
                b'\n' => text.push(b'?'),
                b'\\' | b'*' | b'?' | b'[' | b' ' => text.extend([b'\\', *byte]),
                _ => text.push(*byte),
            });
            text.extend_from_slice(end.as_bytes());
            text.push(b'\n');
        }
    }
    text.extend_from_slice(LAST);
    text.extend(file(seed, EXCLUDE)?.unwrap_or_default());
    let info = seed.subdir(b"info")?;
    remove::remove(&info, b"exclude")?;
    seed::write(&info, "exclude", &text)
}

/// Lets git inside take those that it keeps versions of for unchanged, in the index of a private git directory that is being
/// made: it compares no file with the links that stand in their places, and adds and checks out none.
pub(super) fn hold(
    git: &Git,
    databases: &[ResourcePath],
    (checkout, objects): (&Path, PathBuf),
    seed: &Dir,
) -> Result<()> {
    if databases.is_empty() {
        return Ok(());
    }
    let call = || git.at(seed.path()).objects(slice::from_ref(&objects));
    let index = read_index(call(), seed)?;
    let tracked = databases.iter().map(ResourcePath::as_bytes);
    let tracked = tracked.filter(|path| index.of(path).contains_key(&0));
    let names: Vec<u8> = tracked.flat_map(|path| [path, b"\0"].concat()).collect();
    if names.is_empty() {
        return Ok(());
    }
    // In a sparse checkout git forgets the first of what is there; for `git reset --hard` the second does not count.
    for mark in ["--skip-worktree", "--assume-unchanged"] {
        let call = call().env("GIT_WORK_TREE", checkout);
        let call = call.args(["update-index", mark, "-z", "--stdin"]);
        call.input(names.clone()).run()?;
    }
    Ok(())
}

/// The same file without these lines; none where nothing else is in it.
pub(super) fn without(text: Option<Vec<u8>>) -> Option<Vec<u8>> {
    let text = text?;
    let find = |what: &[u8]| text.windows(what.len()).position(|part| part == what);
    let (Some(first), Some(last)) = (find(FIRST), find(LAST)) else {
        return Some(text);
    };
    if last < first {
        return Some(text);
    }
    let rest = [&text[..first], &text[last + LAST.len()..]].concat();
    (!rest.is_empty()).then_some(rest)
}

/// Which of them the commits that are released made links of.
pub(super) fn committed(databases: &[ResourcePath], changed: &[TreeChange]) -> Vec<Conflict> {
    let is_link = |path: &ResourcePath| {
        let mut all = changed.iter().filter(|one| one.path == path.as_bytes());
        all.any(|one| one.new.as_ref().is_some_and(|(mode, _)| mode == LINK))
    };
    linked(databases, is_link)
}

/// Which of them would be staged as links.
pub(super) fn staged(databases: &[ResourcePath], index: &[IndexChange]) -> Vec<Conflict> {
    let is_link = |path: &ResourcePath| {
        let mut index = index.iter().filter(|one| one.path == *path);
        index.any(|one| one.new.values().any(|(mode, _)| mode == LINK))
    };
    linked(databases, is_link)
}

fn linked(databases: &[ResourcePath], is_link: impl Fn(&ResourcePath) -> bool) -> Vec<Conflict> {
    let linked = databases.iter().filter(|path| is_link(path));
    // The path is no part of a command to type: its name may hold anything (rule S4).
    let what = "a link stands in the place of this database inside, and was committed or staged there: take it out with \
                `git rm --cached`, then `git commit --amend --allow-empty`; the database is released by its own resource";
    linked
        .map(|path| Conflict::of(path.clone(), what))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ours_are_no_change() {
        let ours = [FIRST, b"/a\n", LAST].concat();
        assert_eq!(without(Some(ours.clone())), None);
        let users = [&ours[..], b"*.log"].concat();
        assert_eq!(without(Some(users)), Some(b"*.log".to_vec()));
        let moved = [b"*.log\n", &ours[..], b"*.tmp\n"].concat();
        assert_eq!(without(Some(moved)), Some(b"*.log\n*.tmp\n".to_vec()));
        assert_eq!(
            without(Some(b"*.log\n".to_vec())),
            Some(b"*.log\n".to_vec())
        );
        assert_eq!(without(None), None);
    }
}
