//! Differences between two trees of a repository, and between a tree and an index, as git tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::command::GitCall;
use super::history::History;
use crate::model::text::escape;

/// What a tree or an index has at a path: mode and object.
pub(super) type TreeEntry = (String, String);

/// The mode of a submodule.
pub(super) const SUBMODULE: &str = "160000";

/// The mode of a symbolic link.
pub(super) const LINK: &str = "120000";

/// Commits of submodules, by their paths.
pub(super) type Pointers = BTreeMap<Vec<u8>, BTreeSet<String>>;

/// A path at which two trees differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreeChange {
    pub(super) path: Vec<u8>,
    pub(super) old: Option<TreeEntry>,
    pub(super) new: Option<TreeEntry>,
    /// The letter of git, with how much alike two names are.
    status: String,
    /// Where it was, if it was moved.
    from: Option<Vec<u8>>,
}

/// The tree without entries.
pub(super) fn empty_tree(format: &str) -> &'static str {
    match format {
        "sha256" => "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
        _ => "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    }
}

/// The same by the length of the names of objects.
fn empty_beside(id: &str) -> &'static str {
    empty_tree(if id.len() == 64 { "sha256" } else { "sha1" })
}

/// What differs between two commits, moved files as such.
pub(super) fn renames(
    history: &History,
    git: &Git,
    old: Option<&str>,
    new: &str,
) -> Result<Vec<TreeChange>> {
    let old = old.unwrap_or_else(|| empty_beside(new));
    let call = history.call(git);
    let call = call.line("diff-tree -r -M --raw -z --no-abbrev");
    read(&call.args([old, new]).run()?)
}

/// What differs between two trees, path by path.
pub(super) fn between(call: GitCall<'_>, old: &str, new: &str) -> Result<Vec<TreeChange>> {
    let call = call.line("diff-tree -r --no-renames --raw -z --no-abbrev");
    read(&call.args([old, new]).run()?)
}

/// The commits of submodules at these paths that commits name which their parents do not. `commits` has one per line.
pub(super) fn pointers<'p>(
    call: GitCall<'_>,
    commits: Vec<u8>,
    paths: impl Iterator<Item = &'p [u8]>,
) -> Result<Pointers> {
    let call = call.line("diff-tree --stdin --root --no-commit-id -c -r --no-renames");
    let call = call.line("--ignore-submodules=none --raw -z --no-abbrev --");
    let paths = paths.map(|path| [b":(literal)", path].concat());
    let paths: Vec<_> = paths
        .map(|path| super::repository::path_text(&path).to_owned())
        .collect();
    let said = call.args(paths).input(commits).run()?;
    let (mut all, mut found) = (parts(&said), Pointers::new());
    while let (Some(head), Some(path)) = (all.next(), all.next()) {
        // A colon, a mode and an object for each parent, then those of the commit, and the letters.
        let head = String::from_utf8_lossy(head).into_owned();
        let parents = head.bytes().take_while(|&byte| byte == b':').count();
        let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
        let (Some(mode), Some(id)) = (words.get(parents), words.get(2 * parents + 1)) else {
            return Err(unreadable());
        };
        if *mode == SUBMODULE {
            let ids = found.entry(path.to_vec()).or_default();
            ids.insert((*id).to_owned());
        }
    }
    Ok(found)
}

/// What many commits change, each against its first parent, and what pairs of trees differ in: in one call. `input` has a
/// commit, or two trees, on each line; by these words the answers are known.
pub(super) fn of_many(
    call: GitCall<'_>,
    input: Vec<u8>,
) -> Result<BTreeMap<String, Vec<TreeChange>>> {
    let call = call.line("diff-tree --stdin --root --diff-merges=first-parent -r --no-renames");
    let call = call.line("--ignore-submodules=none --raw -z --no-abbrev");
    let said = call.input(input).run()?;
    let (mut rest, mut found) = (&said[..], BTreeMap::<String, Vec<TreeChange>>::new());
    let mut of = String::new();
    while !rest.is_empty() {
        let end = |from: &[u8], stops: &[u8]| {
            let end = from.iter().position(|byte| stops.contains(byte));
            end.ok_or_else(unreadable)
        };
        if rest[0] != b':' {
            // A commit ends with a zero, two trees with a line.
            let head = end(rest, b"\0\n")?;
            of = String::from_utf8_lossy(&rest[..head]).into_owned();
            rest = &rest[head + 1..];
            continue;
        }
        let head = end(rest, b"\0")?;
        let path = head + 1 + end(&rest[head + 1..], b"\0")?;
        let changes = read(&rest[..path])?;
        found.entry(of.clone()).or_default().extend(changes);
        rest = &rest[path + 1..];
    }
    Ok(found)
}

/// What an index has that is not in a tree: what is staged.
pub(super) fn staged(
    call: GitCall<'_>,
    tree: &str,
    index: &Path,
) -> Result<BTreeMap<Vec<u8>, TreeChange>> {
    let call = call.line("diff-index --cached --no-renames --raw -z --no-abbrev");
    let call = call.args([tree]).env("GIT_INDEX_FILE", index);
    let said = call.run()?;
    let one = |change: TreeChange| (change.path.clone(), change);
    Ok(read(&said)?.into_iter().map(one).collect())
}

/// What a tree has at these paths.
pub(super) fn entries<'g>(
    call: impl Fn() -> GitCall<'g>,
    tree: &str,
    paths: &[Vec<u8>],
) -> Result<BTreeMap<Vec<u8>, TreeEntry>> {
    /// So many that the arguments of a program have room for them.
    const AT_ONCE: usize = 200;
    let mut found = BTreeMap::new();
    for paths in paths.chunks(AT_ONCE) {
        let paths = paths.iter().map(|path| super::repository::path_text(path));
        let call = call().args(["ls-tree", "-z", "--full-tree", tree, "--"]);
        for entry in parts(&call.args(paths).run()?) {
            let (words, path) = split_tab(entry)?;
            let mut words = words.split(' ');
            let (Some(mode), Some(_), Some(id)) = (words.next(), words.next(), words.next()) else {
                return Err(unreadable());
            };
            found.insert(path.to_vec(), (mode.to_owned(), id.to_owned()));
        }
    }
    Ok(found)
}

/// The parts of an answer, each ended by a zero.
pub(super) fn parts(said: &[u8]) -> impl Iterator<Item = &[u8]> {
    said.split(|&byte| byte == 0).filter(|one| !one.is_empty())
}

/// What stands before the first tab, and behind it.
pub(super) fn split_tab(entry: &[u8]) -> Result<(String, &[u8])> {
    let tab = entry.iter().position(|&byte| byte == b'\t');
    let tab = tab.ok_or_else(unreadable)?;
    let head = String::from_utf8_lossy(&entry[..tab]).into_owned();
    Ok((head, &entry[tab + 1..]))
}

fn unreadable() -> StrategyError {
    StrategyError::Damaged {
        what: "an answer of git cannot be read".to_owned(),
    }
}

/// Reads `:mode mode id id status`, and one or two paths.
fn read(said: &[u8]) -> Result<Vec<TreeChange>> {
    let mut all = parts(said);
    let mut changes = Vec::new();
    while let Some(head) = all.next() {
        let head = String::from_utf8_lossy(head).into_owned();
        let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
        let [old_mode, new_mode, old, new, status] = words[..] else {
            return Err(unreadable());
        };
        let first = all.next().ok_or_else(unreadable)?.to_vec();
        let (path, from) = match status.starts_with(['R', 'C']) {
            true => (all.next().ok_or_else(unreadable)?.to_vec(), Some(first)),
            false => (first, None),
        };
        let entry =
            |mode: &str, id: &str| (mode != "000000").then(|| (mode.to_owned(), id.to_owned()));
        changes.push(TreeChange {
            path,
            old: entry(old_mode, old),
            new: entry(new_mode, new),
            status: status.to_owned(),
            from,
        });
    }
    Ok(changes)
}

/// A path as it is where it is UTF-8, else escaped: two paths never look the same.
pub(super) fn shown(path: &[u8]) -> String {
    std::str::from_utf8(path).map_or_else(|_| escape(path), str::to_owned)
}

impl TreeChange {
    /// As a document.
    pub(super) fn json(&self) -> Value {
        let mode = |entry: &Option<TreeEntry>| entry.as_ref().map(|(mode, _)| mode.clone());
        let id = |entry: &Option<TreeEntry>| entry.as_ref().map(|(_, id)| id.clone());
        json!({
            "path": shown(&self.path),
            "from": self.from.as_deref().map(shown),
            "status": self.status,
            "old_mode": mode(&self.old), "new_mode": mode(&self.new),
            "old": id(&self.old), "new": id(&self.new),
        })
    }

    /// What a listing of files does not tell: a file that was moved, a submodule that points elsewhere.
    pub(super) fn line(&self) -> Option<String> {
        let path = shown(&self.path);
        if let Some(from) = &self.from {
            let word = if self.status.starts_with('R') {
                "moved"
            } else {
                "copied"
            };
            return Some(format!("{word} {} → {path}", shown(from)));
        }
        let submodule = |entry: &&TreeEntry| entry.0 == SUBMODULE;
        let (old, new) = (
            self.old.as_ref().filter(submodule),
            self.new.as_ref().filter(submodule),
        );
        let at = |entry: &TreeEntry| entry.1.get(..10).unwrap_or(&entry.1).to_owned();
        match (old, new) {
            (None, None) => None,
            (Some(old), Some(new)) => Some(format!("submodule {path}: {} → {}", at(old), at(new))),
            (None, Some(new)) => Some(format!("submodule {path}: new, at {}", at(new))),
            (Some(old), None) => Some(format!("submodule {path}: removed, was at {}", at(old))),
        }
    }
}
