//! What was left uncommitted inside, as a tree: what `git add --all` would take, of the paths that the sandbox changed.
//!
//! Only what changed is copied, beside the files that say what git ignores and how it stores files. Line endings and
//! encodings are those of the repository; a file that a filter program would rewrite is refused, since none is run.

use std::collections::BTreeSet;
use std::io::Write;

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::history::{History, path_of};
use super::index::PrivateIndex;
use super::release::read_all;
use super::repository::{line, zero};
use super::seed;
use super::trees::{self, SUBMODULE, parts};
use crate::fs::{Dir, remove};
use crate::model::text::escape;
use crate::model::{Change, DiffView, EntryKind, ResourcePath};

/// Files that say what git ignores, and how it stores files.
const RULES: [&[u8]; 2] = [b".gitignore", b".gitattributes"];

/// What is looked at.
pub(super) struct Work<'a> {
    pub(super) git: &'a Git,
    pub(super) history: &'a History,
    pub(super) files: &'a dyn Sandbox,
    pub(super) index: &'a PrivateIndex,
    /// `sha1` or `sha256`.
    pub(super) format: &'a str,
    /// Where files and an index lie that are only looked at.
    pub(super) scratch: &'a Dir,
    /// Where objects are written.
    pub(super) made: &'a Dir,
}

impl Work<'_> {
    /// The tree, if it is another one than that of the last private commit.
    pub(super) fn tree(&self, changes: &DiffView) -> Result<Option<String>> {
        for name in [&b"tree"[..], b"work-index"] {
            remove::remove(self.scratch, name)?;
        }
        self.scratch.make_dir(b"tree", 0o700)?;
        let tree = self.scratch.subdir(b"tree")?;
        // The index that the commit begins with is the last commit: what is staged is a part of what is left.
        let head = self.history.head.commit.clone();
        let head = head.unwrap_or_else(|| trees::empty_tree(self.format).to_owned());
        self.call().args(["read-tree", &head]).run()?;
        self.add_staged()?;
        let left = self.left(&tree, changes)?;
        if !left.is_empty() {
            self.refuse_filters(&left)?;
            for change in &left {
                self.copy(&tree, change)?;
            }
            let call = self
                .call()
                .args(["update-index", "--add", "--remove", "-z", "--stdin"]);
            call.input(names(&left)).run()?;
        }
        let made = line(&self.call().args(["write-tree"]).run()?);
        let last = self
            .call()
            .args(["rev-parse", "--verify", &format!("{head}^{{tree}}")]);
        remove::remove(self.scratch, b"tree")?;
        Ok((made != line(&last.run()?)).then_some(made))
    }

    fn call(&self) -> GitCall<'_> {
        self.history
            .making(self.git, self.made.path())
            .env("GIT_WORK_TREE", self.scratch.path().join("tree"))
            .env("GIT_INDEX_FILE", self.scratch.path().join("work-index"))
    }

    /// Adds what was staged inside to the index; what the user had staged before is none of it.
    fn add_staged(&self) -> Result<()> {
        let mut input = Vec::new();
        for path in self.index.staged() {
            let (_, after) = self.index.of(path);
            if after.keys().any(|stage| *stage != 0) {
                let what = format!("commit '{}' as it was left", escape(path));
                return Err(super::refused(
                    &what,
                    "it is not merged; settle that inside",
                ));
            }
            let zero = ("0".to_owned(), zero(self.format));
            let (mode, id) = after.get(&0).unwrap_or(&zero);
            input.extend(format!("{mode} {id}\t").into_bytes());
            input.extend(path);
            input.push(0);
        }
        let call = self.call().args(["update-index", "-z", "--index-info"]);
        call.input(input).run().map(drop)
    }

    /// The changed files that git tracks, or would.
    fn left<'c>(&self, tree: &Dir, changes: &'c DiffView) -> Result<Vec<&'c Change>> {
        self.copy_rules(tree, changes)?;
        // A repository of its own in the checkout is none of its files.
        let inner = changes.changes.iter().filter_map(|change| {
            let (above, name) = change.path.split()?;
            (name == b".git" && !above.is_root()).then_some(above)
        });
        let mut inner: BTreeSet<ResourcePath> = inner.collect();
        for (path, stages) in &self.index.after.entries {
            if stages.values().any(|(mode, _)| mode == SUBMODULE) {
                inner.insert(path_of(path)?);
            }
        }
        let file = |change: &&Change| {
            let new = change.new.as_ref().or(change.old.as_ref());
            let kind = new.map(|entry| entry.kind);
            matches!(kind, Some(EntryKind::File | EntryKind::Symlink))
                && !change.path.ancestors().any(|above| inner.contains(&above))
        };
        let left: Vec<&Change> = changes.changes.iter().filter(file).collect();
        let call = self.call().args(["check-ignore", "-z", "--stdin"]);
        let said = call.input(names(&left)).ask()?.unwrap_or_default();
        let ignored: BTreeSet<&[u8]> = parts(&said).collect();
        let taken = left.into_iter();
        let taken = taken.filter(|change| !ignored.contains(change.path.as_bytes()));
        Ok(taken.collect())
    }

    /// Copies the files that say what git ignores: those that are tracked, and those that changed.
    fn copy_rules(&self, tree: &Dir, changes: &DiffView) -> Result<()> {
        let is_rule = |path: &[u8]| {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
            RULES.contains(&name)
        };
        let changed = changes.changes.iter().filter(|one| one.new.is_some());
        let changed = changed.map(|one| one.path.as_bytes().to_vec());
        let all = self.index.after.entries.keys().cloned().chain(changed);
        let all: BTreeSet<Vec<u8>> = all.filter(|path| is_rule(path)).collect();
        for path in all {
            let path = path_of(&path)?;
            match self.files.read(&path) {
                Err(StrategyError::NotThere { .. } | StrategyError::NotAFile { .. }) => {}
                file => put(tree, &path, &read_all(file?)?, 0o644)?,
            }
        }
        Ok(())
    }

    /// Refuses files that a program would rewrite.
    fn refuse_filters(&self, left: &[&Change]) -> Result<()> {
        let call = self.call().args(["check-attr", "-z", "--stdin", "filter"]);
        let said = call.input(names(left)).run()?;
        let said: Vec<&[u8]> = said.split(|&byte| byte == 0).collect();
        for one in said.chunks_exact(3) {
            if let [path, _, value] = one
                && !matches!(*value, b"unspecified" | b"unset")
            {
                let what = format!("commit '{}' as it was left", escape(path));
                let why = "a filter program would have to rewrite it, and none is run; commit it inside the sandbox";
                return Err(super::refused(&what, why));
            }
        }
        Ok(())
    }

    fn copy(&self, tree: &Dir, change: &Change) -> Result<()> {
        let Some(new) = &change.new else {
            return Ok(());
        };
        if let (EntryKind::Symlink, Some(target)) = (new.kind, &new.target) {
            let (dir, name) = place(tree, &change.path)?;
            return Ok(dir.make_link(&name, target.as_bytes())?);
        }
        let mode = if new.mode & 0o100 != 0 { 0o755 } else { 0o644 };
        let mut from = self.files.read(&change.path)?;
        let (dir, name) = place(tree, &change.path)?;
        let mut to = dir.create(&name, mode)?;
        let copied = std::io::copy(&mut from, &mut to);
        let copied = copied.map(drop);
        copied.map_err(|error| seed::io_error(&dir, "write", &name, &error))
    }
}

fn names(of: &[&Change]) -> Vec<u8> {
    let all = of.iter().flat_map(|one| [one.path.as_bytes(), b"\0"]);
    all.collect::<Vec<_>>().concat()
}

/// The directory for a new file, and its name; nothing is there.
fn place(tree: &Dir, path: &ResourcePath) -> Result<(Dir, Vec<u8>)> {
    let mut above: Vec<ResourcePath> = path.ancestors().collect();
    above.reverse();
    for dir in above {
        if tree.stat_path(&dir)?.is_none() {
            let (parent, name) = tree.parent(&dir)?;
            parent.make_dir(name, 0o700)?;
        }
    }
    let (dir, name) = tree.parent(path)?;
    remove::remove(&dir, name)?;
    Ok((dir, name.to_vec()))
}

fn put(tree: &Dir, path: &ResourcePath, bytes: &[u8], mode: u16) -> Result<()> {
    let (dir, name) = place(tree, path)?;
    let mut file = dir.create(&name, mode)?;
    let written = file.write_all(bytes);
    written.map_err(|error| seed::io_error(&dir, "write", &name, &error))
}
