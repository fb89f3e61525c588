//! Indexes: what is staged in one, and the entries of the user's that a release changes.
//!
//! Entries are changed, not the file: what the user staged meanwhile stays. The new index becomes the user's by
//! `index.lock`, as any git process does it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::history::{History, in_git_dir, read_file, roots};
use super::intent::GitIntent;
use super::repository::{Head, path_text, subdir, zero};
use super::seed;
use super::trees::{self, TreeChange, TreeEntry, parts, split_tab};
use crate::fs::{Cause, Dir, Meta, remove};
use crate::model::digest::VersionDigest;
use crate::model::{Change, ChangeKind, Detail, ResourcePath};

/// How long one waits for a git process that has the index locked.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Where a new index is made, until it is in its place.
const WORK: &[u8] = b"work";
const LOCK: &[u8] = b"index.lock";
const INDEX: &[u8] = b"index";

/// How many staged paths are shown to people, and named to programs.
const SHOWN: usize = 10;
const NAMED: usize = 1000;

/// One path of an index, by its stages.
pub(super) type Stages = BTreeMap<u8, TreeEntry>;

/// An index.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) entries: BTreeMap<Vec<u8>, Stages>,
    /// Paths outside of a sparse checkout.
    skipped: BTreeSet<Vec<u8>>,
}

impl Index {
    /// The symbolic links in it.
    pub(super) fn links(&self) -> impl Iterator<Item = &[u8]> {
        let is_link = |stages: &Stages| stages.values().any(|(mode, _)| mode == trees::LINK);
        let links = self
            .entries
            .iter()
            .filter(move |(_, stages)| is_link(stages));
        links.map(|(path, _)| path.as_slice())
    }

    /// What it has at a path.
    pub(super) fn of(&self, path: &[u8]) -> Stages {
        self.entries.get(path).cloned().unwrap_or_default()
    }
}

/// A path of the index that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexChange {
    pub(super) path: ResourcePath,
    pub(super) old: Stages,
    pub(super) new: Stages,
    /// It lies outside of a sparse checkout.
    #[serde(default)]
    pub(super) skip: bool,
}

/// What a tree has, as an index has it.
pub(super) fn stages(entry: Option<&TreeEntry>) -> Stages {
    entry.map(|entry| (0, entry.clone())).into_iter().collect()
}

/// The entries of an index; none where there is no file.
pub(super) fn read_index(call: GitCall<'_>, dir: &Dir) -> Result<Index> {
    let mut index = Index::default();
    if dir.stat(INDEX)?.is_none() {
        return Ok(index);
    }
    let file = dir.path().join(path_text(INDEX));
    let call = call.args(["ls-files", "-s", "-t", "-z"]);
    let said = call.env("GIT_INDEX_FILE", file).run()?;
    let unreadable = || StrategyError::Damaged {
        what: "an index of git cannot be read".to_owned(),
    };
    for entry in parts(&said) {
        let (head, path) = split_tab(entry)?;
        let words: Vec<&str> = head.split(' ').collect();
        let [tag, mode, id, stage] = words[..] else {
            return Err(unreadable());
        };
        let stage = stage.parse().map_err(|_| unreadable())?;
        if tag == "S" {
            index.skipped.insert(path.to_vec());
        }
        let stages = index.entries.entry(path.to_vec()).or_default();
        stages.insert(stage, (mode.to_owned(), id.to_owned()));
    }
    Ok(index)
}

/// The index of the sandbox beside the one it began with, and what is staged in each.
pub(super) struct PrivateIndex {
    pub(super) before: Index,
    pub(super) after: Index,
    staged_before: BTreeMap<Vec<u8>, TreeChange>,
    staged: BTreeMap<Vec<u8>, TreeChange>,
}

impl PrivateIndex {
    /// Reads both. `scratch` gets a copy of the private one.
    pub(super) fn read(
        git: &Git,
        history: &History,
        private: &dyn Sandbox,
        (base, format): (&Head, &str),
        scratch: &Dir,
    ) -> Result<Self> {
        let seed = Dir::open(&history.seed)?;
        remove::remove(scratch, INDEX)?;
        let bytes = read_file(private, INDEX)?.unwrap_or_default();
        if !bytes.is_empty() {
            seed::write(scratch, "index", &bytes)?;
            copy_shared(private, scratch)?;
        }
        let staged = |head: &Option<String>, dir: &Dir| {
            let tree = head.as_deref().unwrap_or(trees::empty_tree(format));
            match dir.stat(INDEX)? {
                None => Ok(BTreeMap::new()),
                Some(_) => trees::staged(history.call(git), tree, &dir.path().join("index")),
            }
        };
        Ok(Self {
            before: read_index(history.call(git), &seed)?,
            after: read_index(history.call(git), scratch)?,
            staged_before: staged(&base.commit, &seed)?,
            staged: staged(&history.head.commit, scratch)?,
        })
    }

    /// The entries of a path, before and after.
    pub(super) fn of(&self, path: &[u8]) -> (Stages, Stages) {
        (self.before.of(path), self.after.of(path))
    }

    /// Whether a path lies outside of the sparse checkout inside.
    pub(super) fn skips(&self, path: &[u8]) -> bool {
        self.after.skipped.contains(path)
    }

    fn is_changed(&self, path: &[u8]) -> bool {
        self.before.entries.get(path) != self.after.entries.get(path)
    }

    /// The paths that were staged, or that are not any more.
    pub(super) fn staged(&self) -> impl Iterator<Item = &Vec<u8>> {
        let now = self.staged.iter().filter(|(path, change)| {
            let before = self.staged_before.get(*path);
            before.is_none_or(|before| (&before.old, &before.new) != (&change.old, &change.new))
                || self.is_changed(path)
        });
        let gone = self.staged_before.keys();
        let gone = gone.filter(|path| !self.staged.contains_key(*path) && self.is_changed(path));
        now.map(|(path, _)| path).chain(gone)
    }

    /// What a release would stage, as a change of the resource.
    pub(super) fn change(&self) -> Result<Option<Change>> {
        let mut paths: Vec<&Vec<u8>> = self.staged().collect();
        paths.sort_unstable();
        if paths.is_empty() {
            return Ok(None);
        }
        let (mut named, mut lines, mut hash) = (Vec::new(), Vec::new(), Vec::new());
        for path in &paths {
            let (_, after) = self.of(path);
            let shown = trees::shown(path);
            let what = match self.staged.get(*path) {
                Some(change) if change.new.is_none() && after.is_empty() => "deleted",
                Some(change) if change.old.is_none() => "added",
                Some(_) if !after.contains_key(&0) => "unmerged",
                Some(_) => "modified",
                None => "unstaged",
            };
            lines.push(match what {
                "unstaged" => format!("not staged any more: {shown}"),
                what => format!("staged: {shown} ({what})"),
            });
            let entries: Vec<_> = after.iter().collect();
            hash.extend(json!([shown, entries]).to_string().into_bytes());
            named.push(json!({"path": shown, "what": what, "entries": entries}));
        }
        let more = lines.len().saturating_sub(SHOWN);
        lines.truncate(SHOWN);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        named.truncate(NAMED);
        let digest = VersionDigest::new(&[b"index", &hash], true);
        let detail = json!({"released": true, "staged": named, "lines": lines, "digest": digest});
        let path = in_git_dir("index")?;
        Ok(Some(Change::opaque(path, ChangeKind::Modified, detail)))
    }
}

/// Copies the files that hold a part of the entries of an index, wherever in the layers they are.
fn copy_shared(private: &dyn Sandbox, scratch: &Dir) -> Result<()> {
    for root in roots(private)? {
        let Ok(root) = Dir::open(root.as_path()) else {
            continue;
        };
        for entry in root.entries()? {
            let shared = entry.name.starts_with(b"sharedindex.") && entry.meta.is_file();
            if shared && scratch.stat(&entry.name)?.is_none() {
                seed::copy(&root, scratch, &entry.name)?;
            }
        }
    }
    Ok(())
}

/// The digest of what is staged, if the change is that of an index.
pub(super) fn digest(change: &Change) -> Option<VersionDigest> {
    let Detail::Opaque { detail, .. } = &change.detail else {
        return None;
    };
    serde_json::from_value(detail.get("digest")?.clone()).ok()
}

fn locked() -> StrategyError {
    StrategyError::Git {
        what: "write the index".to_owned(),
        said: "another git process has it locked; should none be running, remove '.git/index.lock'"
            .to_owned(),
    }
}

/// Waits for a git process that has the index locked, before anything is moved.
pub(super) fn wait_unlocked(user: &Dir) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while user.stat(LOCK)?.is_some() {
        if Instant::now() >= until {
            return Err(locked());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

impl GitIntent {
    /// Puts the entries of the index in place, or the former ones back.
    pub(super) fn set_index(&self, git: &Git, back: bool) -> Result<()> {
        if self.release.index.is_empty() {
            return Ok(());
        }
        let (area, user) = (self.area()?, self.repository.dir()?);
        // A lock that a process of ours left is this very file.
        if let (Some(lock), Some(work)) = (user.stat(LOCK)?, subdir(&area, WORK)?)
            && let Some(new) = work.stat(INDEX)?
            && (lock.dev, lock.ino) == (new.dev, new.ino)
        {
            user.unlink(LOCK)?;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            remove::remove(&area, WORK)?;
            area.make_dir(WORK, 0o700)?;
            let work = area.subdir(WORK)?;
            let before = user.stat(INDEX)?;
            // What is as it is to be needs no lock.
            if !self.write_index(git, &work, &user, back)? {
                return Ok(remove::remove(&area, WORK)?);
            }
            match user.link_to(LOCK, &work, INDEX) {
                Err(error) if error.is(Errno::EXIST) && Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) if error.is(Errno::EXIST) => return Err(locked()),
                linked => linked?,
            }
            let known = |meta: &Meta| (meta.ino, meta.ctime, meta.size);
            if user.stat(INDEX)?.as_ref().map(known) != before.as_ref().map(known) {
                user.unlink(LOCK)?;
                continue;
            }
            user.rename(LOCK, &user, INDEX)?;
            user.sync()?;
            return Ok(remove::remove(&area, WORK)?);
        }
    }

    /// Writes the index of the user, with the entries in place, into a directory of ours; `false` where that changes
    /// nothing.
    pub(super) fn write_index(
        &self,
        git: &Git,
        work: &Dir,
        user: &Dir,
        back: bool,
    ) -> Result<bool> {
        seed::copy(user, work, INDEX)?;
        for entry in user.entries()? {
            if entry.name.starts_with(b"sharedindex.") {
                seed::copy(user, work, &entry.name)?;
            }
        }
        let objects = [self.repository.objects()];
        let now = read_index(git.at(self.settings.as_path()).objects(&objects), work)?;
        let zero = zero(&self.repository.format);
        let (mut input, mut paths, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        for one in &self.release.index {
            let path = one.path.as_bytes();
            let (from, to) = match back {
                true => (&one.new, &one.old),
                false => (&one.old, &one.new),
            };
            // What the user staged since stays.
            if now.of(path) != *from {
                continue;
            }
            let mut line = |text: String| {
                input.extend(text.into_bytes());
                input.push(b'\t');
                input.extend(path);
                input.push(0);
            };
            line(format!("0 {zero}"));
            for (stage, (mode, id)) in to {
                line(format!("{mode} {id} {stage}"));
            }
            match to.contains_key(&0) {
                true if one.skip || now.skipped.contains(path) => {
                    skipped.extend([path, b"\0"].concat());
                }
                true => paths.extend([b":(literal)", path, b"\0"].concat()),
                false => {}
            }
        }
        if input.is_empty() {
            return Ok(false);
        }
        let call = |args: &[&str], input: Vec<u8>| {
            git.at(self.settings.as_path())
                .args(args)
                .objects(&objects)
                .env("GIT_WORK_TREE", self.checkout.as_path())
                .env("GIT_INDEX_FILE", work.path().join("index"))
                .input(input)
        };
        call(&["update-index", "-z", "--index-info"], input).run()?;
        if !skipped.is_empty() {
            let args = ["update-index", "--skip-worktree", "-z", "--stdin"];
            call(&args, skipped).run()?;
        }
        // Sizes and times of the files as they are now, so that nothing need be read to know that it is unchanged. One that
        // is not there any more is no failure.
        if !paths.is_empty() {
            let from = ["--pathspec-from-file=-", "--pathspec-file-nul"];
            call(&["add", "--refresh", from[0], from[1]], paths).either()?;
        }
        if let Some(old) = user.stat(INDEX)? {
            let new = work.handle(INDEX)?;
            let set = new.set_mode(old.mode).and_then(|()| new.give_to(&old));
            set.map_err(|errno| work.error("set the metadata of", INDEX, Cause::Os(errno)))?;
        }
        let synced = work.file(INDEX)?.0.sync_all();
        synced.map_err(|error| seed::io_error(work, "sync", INDEX, &error))?;
        Ok(true)
    }
}
