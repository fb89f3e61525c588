//! What a release of the private history would do: how the branch moves, what is merged, what becomes of the index; and
//! where the user's repository contradicts it. Nothing is written but objects, into a directory that is thrown away.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use super::super::error::Result;
use super::GitMetadata;
use super::command::{Git, GitCall};
use super::databases;
use super::history::{History, path_of, read_file};
use super::index::{IndexChange, PrivateIndex, read_index, stages};
use super::intent::conflict;
use super::named::file;
use super::repository::{Head, RefMove, is_id, line, path_text};
use super::trees::{self, TreeChange, TreeEntry, parts};
use crate::fs::{Dir, Meta, remove, state_dir};
use crate::model::text::{Location, escape};
use crate::model::{Choice, Conflict, ResourcePath};
use crate::strategy::{OnConflict, Sandbox};

/// Larger files are not merged.
const MOST: u64 = 64 << 20;

/// How the branch that was checked out moves.
#[derive(Debug, Clone)]
pub(super) struct BranchMove {
    /// Its name; `HEAD` where that is detached.
    pub(super) name: String,
    /// Where the user has it.
    pub(super) theirs: Option<String>,
    /// Where it is inside, with what was left uncommitted if that becomes a commit.
    pub(super) ours: String,
    /// Both moved: the tree of the merge, and the paths that git could not merge.
    pub(super) merge: Option<Merge>,
}

/// A merge of two commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) tree: String,
    /// What git could not merge, and what either side has there.
    pub(super) contested: BTreeMap<Vec<u8>, Sides>,
}

/// What both sides have at a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) ours: Option<TreeEntry>,
    pub(super) theirs: Option<TreeEntry>,
    /// How `.gitattributes` want it to be merged, if not by lines.
    pub(super) driver: Option<String>,
}

/// A file of the checkout that becomes what the histories make of it.
#[derive(Debug, Clone)]
pub(super) struct MergedFile {
    /// What the user has there, which is what was committed.
    pub(super) seen: Option<Meta>,
    /// What it becomes; none where it goes.
    pub(super) new: Option<TreeEntry>,
    /// The user has it already.
    pub(super) stays: bool,
}

/// A release as it was found, and what contradicts it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) branch: Option<BranchMove>,
    /// Other branches and tags.
    pub(super) others: Vec<RefMove>,
    pub(super) index: Vec<IndexChange>,
    /// Where the histories contradict each other, and no side can be taken.
    pub(super) diverged: Vec<Conflict>,
    /// Paths of commits that git cannot merge: one side can be taken.
    pub(super) contested: Vec<Conflict>,
    /// Paths that both sides staged, and not alike.
    pub(super) staged: Vec<Conflict>,
    /// Paths at which the histories settle what the files contradict.
    pub(super) merged: BTreeMap<ResourcePath, MergedFile>,
    /// Paths that the private commits changed.
    pub(super) committed: BTreeSet<Vec<u8>>,
}

/// What is looked at.
pub(super) struct Look<'a> {
    pub(super) git: &'a Git,
    pub(super) sandbox: &'a GitMetadata,
    pub(super) history: &'a History,
    pub(super) private: &'a dyn Sandbox,
    /// A commit of what was left uncommitted, if there is to be one.
    pub(super) work: Option<String>,
    /// Where objects and an index lie that are only looked at.
    pub(super) scratch: &'a Dir,
}

impl Found {
    /// Whether the histories say what becomes of a file that both sides changed.
    pub(super) fn settles(&self, path: &ResourcePath) -> bool {
        let contested = self.contested.iter().any(|one| one.path == *path);
        contested || self.merged.contains_key(path)
    }

    /// Everything that contradicts it.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        let diverged = self.diverged.iter().cloned();
        let diverged = diverged.map(|one| one.choosing(Choice::Neither));
        diverged.chain(self.contested.iter().chain(&self.staged).cloned())
    }

    /// The release, with what is to be done about its conflicts.
    pub(super) fn settled(mut self, on_conflict: OnConflict) -> Result<Self> {
        if let Some(first) = self.diverged.first() {
            let why = format!("{}: {}", first.path, first.what);
            return Err(super::refused("take one side of two histories", &why));
        }
        if on_conflict == OnConflict::Theirs {
            let theirs = |one: &IndexChange| self.staged.iter().any(|other| other.path == one.path);
            self.index.retain(|one| !theirs(one));
        }
        let contested = self
            .branch
            .iter()
            .filter_map(|branch| branch.merge.as_ref());
        for (path, sides) in contested.flat_map(|merge| &merge.contested) {
            if on_conflict == OnConflict::Ours {
                self.index.push(IndexChange {
                    path: path_of(path)?,
                    old: stages(sides.theirs.as_ref()),
                    new: stages(sides.ours.as_ref()),
                    skip: false,
                });
            }
        }
        Ok(self)
    }
}

impl Look<'_> {
    /// Finds everything but what becomes of files that contradict each other.
    pub(super) fn find(&self) -> Result<Found> {
        // With these an agent would have git read objects from elsewhere, or take missing ones for granted.
        for name in ["objects/info/alternates", "shallow"] {
            if self.is_changed(name)? {
                let why = format!("'.git/{name}' was changed inside");
                return Err(super::refused("commit this history", &why));
            }
        }
        let all = self.sandbox.options.all_refs;
        let odd = self.history.odd_refs.iter().filter(|_| all);
        if let Some(name) = self.history.odd_head.iter().chain(odd).next() {
            let why = format!(
                "'{name}' is no name of a reference that can be committed; rename it inside"
            );
            return Err(super::refused("commit this history", &why));
        }
        let (base, user) = (&self.sandbox.head, self.sandbox.repository.head(self.git)?);
        let mut found = Found::default();
        let ours = self.work.as_ref().or(self.history.head.commit.as_ref());
        if let Some(ours) = ours.filter(|ours| Some(*ours) != base.commit.as_ref()) {
            self.look_at_branch(&mut found, ours, &user)?;
        }
        if self.sandbox.options.all_refs {
            self.look_at_others(&mut found)?;
        }
        self.look_elsewhere(&mut found)?;
        if found.diverged.is_empty() && (found.branch.is_some() || self.is_changed("index")?) {
            self.look_at_index(&mut found, &user)?;
            let staged = databases::staged(&self.sandbox.databases, &found.index);
            found.diverged.extend(staged);
        }
        Ok(found)
    }

    /// Whether a file of the git directory differs from the one it began with.
    fn is_changed(&self, name: &str) -> Result<bool> {
        let now = read_file(self.private, name.as_bytes())?;
        Ok(now != file(&Dir::open(&self.history.seed)?, name)?)
    }

    fn tree(&self, commit: Option<&String>) -> String {
        let empty = trees::empty_tree(&self.sandbox.repository.format);
        commit.map_or_else(|| empty.to_owned(), |id| format!("{id}^{{tree}}"))
    }

    fn look_at_branch(&self, found: &mut Found, ours: &str, user: &Head) -> Result<()> {
        let base = &self.sandbox.head;
        let call = || self.history.making(self.git, self.scratch.path());
        let changed = trees::between(call(), &self.tree(base.commit.as_ref()), ours)?;
        found
            .diverged
            .extend(databases::committed(&self.sandbox.databases, &changed));
        found.committed = changed.into_iter().map(|one| one.path).collect();
        if user.branch != base.branch {
            let now = user.branch.as_deref().unwrap_or("no branch");
            let what = format!(
                "the checkout is on {now} by now, so the private history has no place to go; switch back"
            );
            found.diverged.push(conflict("HEAD", &what)?);
            return Ok(());
        }
        let mut branch = BranchMove {
            name: base.branch.clone().unwrap_or_else(|| "HEAD".to_owned()),
            theirs: user.commit.clone(),
            ours: ours.to_owned(),
            merge: None,
        };
        if user.commit == base.commit {
            found.branch = Some(branch);
            return Ok(());
        }
        let Some(theirs) = &user.commit else {
            let what = "the branch has no commit any more";
            found.diverged.push(conflict("HEAD", what)?);
            return Ok(());
        };
        let within = |a: &str, b: &str| -> Result<bool> {
            let args = ["merge-base", "--is-ancestor", a, b];
            Ok(call().args(args).ask()?.is_some())
        };
        if within(ours, theirs)? {
            return Ok(());
        }
        if !within(theirs, ours)? {
            let merge = merge(call, theirs, ours, self.scratch)?;
            self.note_contested(found, &merge, (theirs, ours))?;
            branch.merge = Some(merge);
        }
        found.branch = Some(branch);
        Ok(())
    }

    /// Says what git could not merge.
    fn note_contested(
        &self,
        found: &mut Found,
        merge: &Merge,
        (theirs, ours): (&str, &str),
    ) -> Result<()> {
        let inside = format!(
            "or merge inside, where `git merge {}` has the user's version",
            theirs.get(..10).unwrap_or(theirs)
        );
        let paths: Vec<Vec<u8>> = merge.contested.keys().cloned().collect();
        let call = || self.history.making(self.git, self.scratch.path());
        let there = trees::entries(call, theirs, &paths)?;
        let here = trees::entries(call, ours, &paths)?;
        for (path, sides) in &merge.contested {
            // A file beside a directory of the same name gets another name in a merge.
            let known = (sides.theirs.as_ref(), sides.ours.as_ref());
            let is_path = known == (there.get(path), here.get(path));
            let path = path_of(path)?;
            if !is_path {
                let what = format!(
                    "both histories changed it, and git cannot merge files and directories; {inside}"
                );
                found.diverged.push(Conflict::of(path, &what));
                continue;
            }
            let what = match (&sides.ours, &sides.theirs, &sides.driver) {
                (None, ..) => "its deletion was committed here, another version there".to_owned(),
                (_, None, _) => "another version was committed here, its deletion there".to_owned(),
                (.., Some(driver)) => format!(
                    "both sides committed changes, and '.gitattributes' wants it merged with '{driver}', which is not run; take a \
                     side with --on-conflict, {inside}"
                ),
                _ => format!(
                    "both sides committed changes to the same lines; take a side with --on-conflict, {inside}"
                ),
            };
            found.contested.push(Conflict::of(path, &what));
        }
        Ok(())
    }

    fn look_at_others(&self, found: &mut Found) -> Result<()> {
        let branch = self.sandbox.head.branch.as_deref();
        let moved: Vec<_> = self.history.others(branch).collect();
        let names = moved.iter().map(|(name, ..)| name.as_str());
        let now = self.sandbox.repository.values(self.git, names)?;
        for (name, old, new) in moved {
            let user = now.get(name);
            if user == new {
                continue;
            }
            if user != old {
                let what = "it was moved on both sides";
                found.diverged.push(conflict(name, what)?);
                continue;
            }
            found.others.push(RefMove {
                name: name.clone(),
                old: old.cloned(),
                new: new.cloned(),
            });
        }
        Ok(())
    }

    /// A branch that is checked out in another worktree is not moved: its index and files would be left behind.
    fn look_elsewhere(&self, found: &mut Found) -> Result<()> {
        let main = found.branch.iter().map(|branch| branch.name.as_str());
        let moved = main.chain(found.others.iter().map(|one| one.name.as_str()));
        let moved: BTreeSet<String> = moved.map(str::to_owned).collect();
        if moved.is_empty() {
            return Ok(());
        }
        for (name, at) in self.elsewhere()? {
            if moved.contains(&name) {
                let what = format!(
                    "it is checked out in '{at}' too; switch that one to another branch first"
                );
                found.diverged.push(conflict(&name, &what)?);
            }
        }
        Ok(())
    }

    /// The branches that are checked out in other worktrees than this one, and where.
    fn elsewhere(&self) -> Result<Vec<(String, Location)>> {
        let call = self.sandbox.repository.call(self.git);
        let said = call.args(["worktree", "list", "--porcelain", "-z"]).run()?;
        // Where it is no linked worktree, it is the one that is listed first, by whichever name.
        let repository = &self.sandbox.repository;
        let is_first = repository.common() == repository.git_dir.as_path();
        let own = Some(self.sandbox.checkout.as_path());
        let (mut all, mut at, mut count) = (Vec::new(), None, 0);
        for one in parts(&said) {
            if let Some(path) = one.strip_prefix(b"worktree ") {
                let path = state_dir::canonical(Path::new(path_text(path))).ok();
                let here = match count {
                    0 => is_first,
                    _ => path.as_deref() == own,
                };
                at = path.filter(|_| !here);
                count += 1;
            } else if let Some(branch) = one.strip_prefix(b"branch ") {
                let branch = String::from_utf8_lossy(branch).into_owned();
                all.extend(at.take().map(|at| (branch, Location::from(at))));
            }
        }
        Ok(all)
    }

    fn look_at_index(&self, found: &mut Found, user: &Head) -> Result<()> {
        let format = self.sandbox.repository.format.as_str();
        let base = (&self.sandbox.head, format);
        let private = PrivateIndex::read(self.git, self.history, self.private, base, self.scratch)?;
        let user_dir = self.sandbox.repository.dir()?;
        let theirs = read_index(self.history.call(self.git), &user_dir)?;
        let mut wanted = BTreeMap::new();
        for change in self.delta(found, user)? {
            wanted.insert(
                change.path,
                (stages(change.old.as_ref()), stages(change.new.as_ref())),
            );
        }
        // What is staged inside counts, also over a commit; unless it becomes a part of one.
        if self.work.is_none() {
            for path in private.staged() {
                let (before, after) = private.of(path);
                wanted.insert(path.clone(), (before, after));
            }
        }
        for (path, (old, new)) in wanted {
            let now = theirs.of(&path);
            let (before, _) = private.of(&path);
            if now == new {
                continue;
            }
            let at = path_of(&path)?;
            if now != old && now != before {
                let what = "it is staged on both sides, and not alike";
                found.staged.push(Conflict::of(at.clone(), what));
            }
            // Of a database that is only a mark of ours.
            let skip = private.skips(&path) && !self.sandbox.databases.contains(&at);
            found.index.push(IndexChange {
                path: at,
                old: now,
                new,
                skip,
            });
        }
        Ok(())
    }

    /// In what the commit that is released differs from the user's, but for what git could not merge.
    fn delta(&self, found: &Found, user: &Head) -> Result<Vec<TreeChange>> {
        let Some(branch) = &found.branch else {
            return Ok(Vec::new());
        };
        let (tree, contested) = match &branch.merge {
            Some(merge) => (merge.tree.clone(), Some(&merge.contested)),
            None => (self.tree(Some(&branch.ours)), None),
        };
        let call = self.history.making(self.git, self.scratch.path());
        let mut changes = trees::between(call, &self.tree(user.commit.as_ref()), &tree)?;
        changes.retain(|one| !contested.is_some_and(|all| all.contains_key(&one.path)));
        Ok(changes)
    }

    /// Settles conflicts of files by the histories: where both sides have a file exactly as they committed it, it becomes
    /// what the histories make of it. Nothing that was not committed is touched.
    pub(super) fn settle_files(
        &self,
        found: &mut Found,
        files: &dyn Sandbox,
        conflicts: &[Conflict],
    ) -> Result<()> {
        let Some(branch) = &found.branch else {
            return Ok(());
        };
        let contested = |path: &[u8]| {
            let merge = branch.merge.as_ref();
            merge.is_some_and(|merge| merge.contested.contains_key(path))
        };
        let modes = conflicts.iter().map(|one| {
            let runs = one.ours.as_ref().is_some_and(|ours| ours.mode & 0o100 != 0);
            (one.path.as_bytes().to_vec(), runs)
        });
        let modes: BTreeMap<Vec<u8>, bool> = modes.filter(|(path, _)| !contested(path)).collect();
        let paths: Vec<Vec<u8>> = modes.keys().cloned().collect();
        if paths.is_empty() {
            return Ok(());
        }
        let call = || self.history.making(self.git, self.scratch.path());
        let of = |tree: &str| trees::entries(call, tree, &paths);
        let ours = of(&branch.ours)?;
        let theirs = of(&self.tree(branch.theirs.as_ref()))?;
        let new = match &branch.merge {
            Some(merge) => of(&merge.tree)?,
            None => ours.clone(),
        };
        let ids = ours
            .values()
            .chain(theirs.values())
            .map(|(_, id)| id.as_str());
        let blobs = read_blobs(call(), ids.collect())?;
        let checkout = Dir::open(self.sandbox.checkout.as_path())?;
        for path in paths {
            let at = path_of(&path)?;
            let seen = checkout.stat_path(&at)?;
            let user = match &seen {
                None => None,
                Some(meta) if meta.is_file() && meta.size <= MOST => Some((
                    read_all(checkout.file_path(&at)?.0)?,
                    meta.mode & 0o100 != 0,
                )),
                Some(_) => continue,
            };
            let own = match files.read(&at) {
                Err(super::StrategyError::NotThere { .. }) => None,
                Err(super::StrategyError::NotAFile { .. }) => continue,
                file => Some(read_all(file?)?),
            };
            let is = |entry: Option<&TreeEntry>, bytes: Option<&Vec<u8>>| match (entry, bytes) {
                (None, None) => true,
                (Some((mode, id)), Some(bytes)) => {
                    mode.starts_with("100") && blobs.get(id) == Some(bytes)
                }
                _ => false,
            };
            let starts =
                |entry: Option<&TreeEntry>| entry.is_some_and(|(mode, _)| mode == "100755");
            let (theirs, ours) = (theirs.get(&path), ours.get(&path));
            let as_committed = is(theirs, user.as_ref().map(|(bytes, _)| bytes))
                && user
                    .as_ref()
                    .is_none_or(|(_, runs)| *runs == starts(theirs));
            let own_committed = is(ours, own.as_ref()) && modes.get(&path) == Some(&starts(ours));
            let new = new.get(&path);
            let file = new.is_none_or(|(mode, _)| mode.starts_with("100"));
            if as_committed && own_committed && file {
                let merged = MergedFile {
                    seen,
                    new: new.cloned(),
                    stays: new == theirs,
                };
                found.merged.insert(at, merged);
            }
        }
        Ok(())
    }
}

/// Everything that can be read, up to a size that no file has that is looked at here.
pub(super) fn read_all(from: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = from.take(256 << 20).read_to_end(&mut bytes);
    read.map_err(|error| super::StrategyError::Damaged {
        what: format!("a file cannot be read ({error})"),
    })?;
    Ok(bytes)
}

/// The contents of objects, in one call.
pub(super) fn read_blobs(
    call: GitCall<'_>,
    ids: BTreeSet<&str>,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let asked: String = ids.iter().flat_map(|id| [*id, "\n"]).collect();
    let said = call.args(["cat-file", "--batch"]).input(asked).run()?;
    let (mut rest, mut found) = (&said[..], BTreeMap::new());
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let head = line(&rest[..end]);
        rest = &rest[end + 1..];
        let words: Vec<&str> = head.split(' ').collect();
        // What is missing is said in one line.
        let [id, _, size] = words[..] else { continue };
        let size = size.parse::<usize>().unwrap_or_default().min(rest.len());
        found.insert(id.to_owned(), rest[..size].to_vec());
        rest = rest.get(size + 1..).unwrap_or_default();
    }
    Ok(found)
}

/// Merges two commits, without touching anything. Moved files count as deleted and new ones: the files of the checkout
/// are released where they lie in the sandbox. A file that both sides changed and for which `.gitattributes` wants another
/// merge than by lines is contested: no driver is run. `scratch` is for an index.
pub(super) fn merge<'g>(
    call: impl Fn() -> GitCall<'g>,
    theirs: &str,
    ours: &str,
    scratch: &Dir,
) -> Result<Merge> {
    let merging = call().set("merge.renames=false");
    let merging = merging.line("merge-tree --write-tree -z --no-messages");
    let (clean, said) = merging.args([theirs, ours]).either()?;
    let mut all = parts(&said);
    let tree = line(all.next().unwrap_or_default());
    let mut contested: BTreeMap<Vec<u8>, Sides> = BTreeMap::new();
    for entry in all {
        let (words, path) = trees::split_tab(entry)?;
        let words: Vec<&str> = words.split(' ').collect();
        let [mode, id, stage] = words[..] else {
            continue;
        };
        let sides = contested.entry(path.to_vec()).or_default();
        let entry = Some((mode.to_owned(), id.to_owned()));
        match stage {
            "2" => sides.theirs = entry,
            "3" => sides.ours = entry,
            _ => {}
        }
    }
    if !is_id(&tree) || clean != contested.is_empty() {
        return Err(super::StrategyError::Git {
            what: "merge the histories".to_owned(),
            said: "its answer cannot be read".to_owned(),
        });
    }
    let mut merge = Merge { tree, contested };
    let changed = |side: &str| -> Result<BTreeSet<Vec<u8>>> {
        let all = trees::between(call(), side, &merge.tree)?.into_iter();
        Ok(all.map(|one| one.path).collect())
    };
    let (there, here) = (changed(theirs)?, changed(ours)?);
    let both = there.intersection(&here).chain(merge.contested.keys());
    let both: Vec<Vec<u8>> = both.cloned().collect();
    let drivers = drivers(&call, theirs, &both, scratch)?;
    let paths: Vec<Vec<u8>> = drivers.keys().cloned().collect();
    let (there, here) = (
        trees::entries(&call, theirs, &paths)?,
        trees::entries(&call, ours, &paths)?,
    );
    for (path, driver) in drivers {
        let sides = merge.contested.entry(path.clone()).or_insert(Sides {
            ours: here.get(&path).cloned(),
            theirs: there.get(&path).cloned(),
            driver: None,
        });
        sides.driver = Some(driver);
    }
    Ok(merge)
}

/// The files among these which `.gitattributes` of a commit want to be merged otherwise than by lines, and how.
fn drivers<'g>(
    call: impl Fn() -> GitCall<'g>,
    commit: &str,
    paths: &[Vec<u8>],
    scratch: &Dir,
) -> Result<BTreeMap<Vec<u8>, String>> {
    const INDEX: &str = "attributes-index";
    if paths.is_empty() {
        return Ok(BTreeMap::new());
    }
    remove::remove(scratch, INDEX.as_bytes())?;
    let with = |args: &[&str]| {
        let file = scratch.path().join(INDEX);
        call().env("GIT_INDEX_FILE", file).args(args)
    };
    with(&["read-tree", commit]).run()?;
    let asked: Vec<&[u8]> = paths.iter().flat_map(|path| [&path[..], b"\0"]).collect();
    let asked = with(&["check-attr", "--cached", "-z", "--stdin", "merge"]).input(asked.concat());
    let said = asked.run()?;
    remove::remove(scratch, INDEX.as_bytes())?;
    let said: Vec<&[u8]> = said.split(|&byte| byte == 0).collect();
    let mut found = BTreeMap::new();
    for one in said.chunks_exact(3) {
        if let [path, _, value] = one
            && !matches!(*value, b"unspecified" | b"set" | b"text")
        {
            found.insert(path.to_vec(), escape(value));
        }
    }
    Ok(found)
}
