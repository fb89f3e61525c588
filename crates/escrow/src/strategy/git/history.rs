//! The private history, read from the sandbox of the git directory as data: no setting in it is followed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::release::read_all;
use super::repository::{Head, Refs, is_id, line, read_refs, ref_name, subdir};
use super::trees::{self, TreeChange};
use crate::fs::Dir;
use crate::fs::dir::DirEntry;
use crate::model::text::{Location, escape};
use crate::model::view::View;
use crate::model::{Change, ChangeKind, Detail, EntryKind, ResourcePath};

/// How many commits are looked at, one less than git is asked for, and how many of one branch are named.
const LOOKED_AT: usize = 20_000;
const ASKED_FOR: &str = "--max-count=20001";
pub(super) const NAMED: usize = 1000;

/// How many of them, and of the files that need a word, are shown to people.
pub(super) const SHOWN: usize = 10;

/// How much of a subject is shown where something is said of a commit.
const SUBJECT: usize = 50;

/// What was put aside inside.
pub(super) const STASH: &str = "refs/stash";

/// Files larger than this hold no references.
const MOST: u64 = 256 << 20;

/// Where HEAD and the references are. Stored with each checkpoint: references as far as they differ from those that the
/// sandbox began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefState {
    head: Head,
    moved: BTreeMap<String, Option<String>>,
}

impl RefState {
    /// Where a sandbox begins.
    pub(super) fn new(head: &Head) -> Self {
        Self {
            head: head.clone(),
            moved: BTreeMap::new(),
        }
    }
}

/// What the private git directory says.
#[derive(Clone)]
pub(super) struct History {
    pub(super) head: Head,
    pub(super) refs: Refs,
    /// The references of the user when the sandbox was made.
    pub(super) base: Refs,
    /// Where its objects are: private ones first, the user's last.
    pub(super) objects: Vec<PathBuf>,
    /// The git directory whose settings are followed.
    pub(super) seed: PathBuf,
    /// The directories that it lies in.
    roots: Vec<Location>,
    /// Where HEAD is, if that is no name of a branch that can be written as text.
    pub(super) odd_head: Option<String>,
    /// References whose names cannot be written as text.
    pub(super) odd_refs: Vec<String>,
}

/// The changes, and the commits that they are made of: none where nothing changed.
pub(super) type HistoryChanges = (Vec<Change>, Option<Result<Graph>>);

/// Two states of a history that are compared.
pub(super) struct Compared<'a> {
    /// HEAD before.
    pub(super) head: &'a Head,
    /// The references before.
    pub(super) refs: &'a Refs,
    /// The branch that was checked out when the sandbox was made; none where HEAD was detached.
    pub(super) branch: Option<&'a str>,
    /// Whether every branch and tag is released.
    pub(super) all: bool,
}

/// A reference that is not what it was.
struct Row<'a> {
    name: &'a str,
    old: Option<&'a String>,
    new: Option<&'a String>,
    released: bool,
    /// It is the one that was checked out.
    main: bool,
}

/// A path that git, or an agent, wrote. One that leads elsewhere is none.
pub(super) fn path_of(name: &[u8]) -> Result<ResourcePath> {
    ResourcePath::parse(name).map_err(|error| damaged(&error.to_string()))
}

/// A path in the git directory, as the resource names it.
pub(super) fn in_git_dir(name: &str) -> Result<ResourcePath> {
    path_of(format!(".git/{name}").as_bytes())
}

/// A file of the private git directory; none if it is not there.
pub(super) fn read_file(sandbox: &dyn Sandbox, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let file = match sandbox.read(&path_of(name)?) {
        Err(StrategyError::NotThere { .. }) => return Ok(None),
        Err(error) => return Err(damaged(&format!("'.git/{}': {error}", escape(name)))),
        Ok(file) => file,
    };
    let mut bytes = Vec::new();
    let read = file.take(MOST).read_to_end(&mut bytes);
    read.map_err(|error| damaged(&format!("'.git/{}' cannot be read ({error})", escape(name))))?;
    Ok(Some(bytes))
}

fn damaged(what: &str) -> StrategyError {
    StrategyError::Damaged {
        what: what.to_owned(),
    }
}

impl History {
    /// Reads it.
    pub(super) fn read(sandbox: &dyn Sandbox, seed: PathBuf, user: PathBuf) -> Result<Self> {
        let base = read_refs(&read_all(Dir::open(&seed)?.file(b"packed-refs")?.0)?)?;
        let mut refs = read_refs(&read_file(sandbox, b"packed-refs")?.unwrap_or_default())?;
        let roots = roots(sandbox)?;
        let (names, odd) = loose_refs(&roots)?;
        let mut odd_refs = Vec::new();
        for name in odd {
            odd_refs.extend(read_file(sandbox, &name)?.map(|_| escape(&name)));
        }
        for name in names {
            let value = line(&read_file(sandbox, name.as_bytes())?.unwrap_or_default());
            // One that stands for another one moves with that.
            if is_id(&value) {
                refs.insert(name, value);
            }
        }
        let at = read_file(sandbox, b"HEAD")?.unwrap_or_default();
        let at = at.trim_ascii_end();
        let named = at.strip_prefix(b"ref: ").map(<[u8]>::trim_ascii_start);
        let branch = named.and_then(ref_name);
        let odd_head = named.filter(|_| branch.is_none()).map(escape);
        let at = line(at);
        let commit = match &branch {
            Some(branch) => refs.get(branch).cloned(),
            None => Some(at).filter(|id| is_id(id)),
        };
        let objects = roots.iter().map(|root| root.as_path().join("objects"));
        let mut objects: Vec<PathBuf> = objects.filter(|path| Dir::open(path).is_ok()).collect();
        objects.push(user);
        Ok(Self {
            head: Head { branch, commit },
            refs,
            base,
            objects,
            seed,
            roots,
            odd_head,
            odd_refs,
        })
    }

    /// Refuses what is neither a file nor a directory where objects are, before git opens it: a pipe would never answer, a
    /// link leads elsewhere.
    pub(super) fn check_objects(&self) -> Result<()> {
        for root in &self.roots {
            let Ok(root) = Dir::open(root.as_path()) else {
                continue;
            };
            let objects = |one: &DirEntry| *one.name == b"objects"[..];
            for entry in root.entries()?.iter().filter(|one| objects(one)) {
                check_plain(&root, entry, "objects")?;
            }
        }
        Ok(())
    }

    /// The same history without private objects.
    pub(super) fn without_objects(mut self) -> Self {
        let private = self.objects.len().saturating_sub(1);
        self.objects.drain(..private);
        self
    }

    /// The same history, read from these objects alone.
    pub(super) fn with_objects(self, objects: Vec<PathBuf>) -> Self {
        Self { objects, ..self }
    }

    /// Where it is, to be stored.
    pub(super) fn state(&self) -> RefState {
        let names: BTreeSet<&String> = self.base.keys().chain(self.refs.keys()).collect();
        let moved = names.into_iter().filter_map(|name| {
            let now = self.refs.get(name);
            (self.base.get(name) != now).then(|| (name.clone(), now.cloned()))
        });
        RefState {
            head: self.head.clone(),
            moved: moved.collect(),
        }
    }

    /// The same history where it was in another state.
    pub(super) fn at(self, state: RefState) -> Self {
        let mut refs = self.base.clone();
        for (name, value) in state.moved {
            match value {
                Some(value) => refs.insert(name, value),
                None => refs.remove(&name),
            };
        }
        Self {
            head: state.head,
            refs,
            ..self
        }
    }

    /// A call that sees its objects, with settings that are ours.
    pub(super) fn call<'g>(&self, git: &'g Git) -> GitCall<'g> {
        git.at(&self.seed).objects(&self.objects)
    }

    /// The same; new objects are written into `made`.
    pub(super) fn making<'g>(&self, git: &'g Git, made: &Path) -> GitCall<'g> {
        let mut objects = vec![made.to_owned()];
        objects.extend(self.objects.iter().cloned());
        git.at(&self.seed).objects(&objects)
    }

    /// What of the history is not what it was, each with the commits that are new: first the branch that was checked out,
    /// which a release moves to where HEAD is inside; then other branches and tags.
    pub(super) fn changes(&self, git: &Git, before: &Compared<'_>) -> Result<HistoryChanges> {
        let rows = self.rows(before);
        if rows.is_empty() {
            return Ok((Vec::new(), None));
        }
        let tips: Vec<&str> = rows
            .iter()
            .filter_map(|row| row.new.map(String::as_str))
            .collect();
        let known = before.refs.values().chain(&before.head.commit);
        let graph = Graph::read(self, git, &tips, known);
        let mut changes = Vec::new();
        for row in rows {
            // To git, too, such a name is none.
            let Ok(path) = in_git_dir(row.name) else {
                continue;
            };
            let kind = match (row.old, row.new) {
                (None, _) => ChangeKind::Added,
                (_, None) => ChangeKind::Deleted,
                _ => ChangeKind::Modified,
            };
            let mut lines = Vec::new();
            if row.main && self.head.branch.as_deref() != before.branch {
                let now = self.head.branch.as_deref().unwrap_or("no branch");
                lines.push(format!("HEAD is on {now} inside"));
            }
            lines.push(match (row.old, row.new) {
                (Some(old), Some(new)) => format!("{} → {}", short(old), short(new)),
                (None, Some(new)) => format!("new, at {}", short(new)),
                (Some(old), None) => format!("deleted, was at {}", short(old)),
                (None, None) => String::new(),
            });
            if row.name == STASH {
                lines.push(
                    "stays in the sandbox, with what it holds: `git stash pop` inside".to_owned(),
                );
            } else if !row.released {
                lines.push("stays in the sandbox".to_owned());
            }
            let mut detail = json!({ "ref": row.name, "old": row.old, "new": row.new,
                "released": row.released, "commits": [] });
            match (&graph, row.new) {
                (Ok(graph), Some(new)) => {
                    let commits = graph.of(new, NAMED);
                    lines.extend(commit_lines(&commits));
                    detail["commits"] = commits.into_iter().map(Commit::json).collect();
                }
                // What an agent left there is shown all the same.
                (Err(error), Some(_)) => lines.push(error.to_string()),
                (_, None) => {}
            }
            if row.main
                && let Some(new) = row.new
                && let Ok(files) = trees::renames(self, git, row.old.map(String::as_str), new)
            {
                lines.extend(file_lines(&files));
                let named = files.iter().take(NAMED).map(TreeChange::json);
                detail["files"] = named.collect();
            }
            detail["lines"] = json!(lines);
            changes.push(Change::opaque(path, kind, detail));
        }
        Ok((changes, Some(graph)))
    }

    /// Says that what was left uncommitted becomes a commit of the branch.
    pub(super) fn note_work(
        &self,
        changes: &mut Vec<Change>,
        before: &Compared<'_>,
        line: &str,
        tree: Option<&str>,
    ) -> Result<()> {
        let name = before.branch.unwrap_or("HEAD");
        let path = in_git_dir(name)?;
        if let Some(change) = changes.iter_mut().find(|one| one.path == path) {
            add_line(change, line);
            if let Detail::Opaque { detail, .. } = &mut change.detail {
                detail["work"] = json!(tree);
            }
            return Ok(());
        }
        let at = before.head.commit.as_ref();
        let detail = json!({ "ref": name, "old": at, "new": at, "released": true, "commits": [],
            "lines": [line], "work": tree });
        let kind = match at {
            Some(_) => ChangeKind::Modified,
            None => ChangeKind::Added,
        };
        changes.push(Change::opaque(path, kind, detail));
        Ok(())
    }

    fn rows<'a>(&'a self, before: &Compared<'a>) -> Vec<Row<'a>> {
        let target = before.branch.unwrap_or("HEAD");
        let moved = self.head.commit.is_some() && self.head.commit != before.head.commit;
        let mut rows = Vec::new();
        if moved {
            rows.push(Row {
                name: target,
                old: before.head.commit.as_ref(),
                new: self.head.commit.as_ref(),
                released: true,
                main: true,
            });
        }
        let names: BTreeSet<&String> = before.refs.keys().chain(self.refs.keys()).collect();
        for name in names.into_iter().filter(|name| is_shown(name)) {
            let (old, new) = (before.refs.get(name), self.refs.get(name));
            if old != new && name != target {
                rows.push(Row {
                    name,
                    old,
                    new,
                    released: before.all && name != STASH,
                    main: false,
                });
            }
        }
        rows
    }

    /// The other branches and tags that are not what they were when the sandbox was made.
    pub(super) fn others<'a>(
        &'a self,
        branch: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a String, Option<&'a String>, Option<&'a String>)> {
        let names: BTreeSet<&String> = self.base.keys().chain(self.refs.keys()).collect();
        names.into_iter().filter_map(move |name| {
            let (old, new) = (self.base.get(name), self.refs.get(name));
            let moved = old != new && is_shown(name) && name != STASH;
            let moved = moved && Some(name.as_str()) != branch;
            moved.then_some((name, old, new))
        })
    }
}

/// Says of the branch that moves that its commits become one.
pub(super) fn note_squash(changes: &mut [Change]) {
    for change in changes {
        if matches!(&change.detail, Detail::Opaque { detail, .. } if detail.get("files").is_some())
        {
            add_line(change, "becomes one commit");
        }
    }
}

pub(super) fn add_line(change: &mut Change, line: &str) {
    if let Detail::Opaque { detail, .. } = &mut change.detail
        && let Some(lines) = detail["lines"].as_array_mut()
    {
        lines.push(json!(line));
    }
}

/// Whether it is a branch, a tag, or the stash: that may hold what the user had not committed.
fn is_shown(name: &str) -> bool {
    name.starts_with("refs/heads/") || name.starts_with("refs/tags/") || name == STASH
}

pub(super) fn short(id: &str) -> &str {
    id.get(..10).unwrap_or(id)
}

/// A commit that is new.
pub(super) struct Commit {
    parents: Vec<String>,
    pub(super) author: String,
    pub(super) committer: String,
    subject: String,
    pub(super) message: String,
}

/// The commits that are new, and what tags stand for.
pub(super) struct Graph {
    commits: HashMap<String, Commit>,
    tips: HashMap<String, String>,
    /// There are more than are looked at.
    pub(super) more: bool,
}

impl Graph {
    /// Reads the commits that `tips` have and neither the references of the beginning nor `known` ones: in two calls,
    /// however many there are.
    pub(super) fn read<'a>(
        history: &'a History,
        git: &Git,
        tips: &[&str],
        known: impl Iterator<Item = &'a String>,
    ) -> Result<Self> {
        let asked: String = tips.iter().map(|id| format!("{id}^{{commit}}\n")).collect();
        let format = "--batch-check=%(objectname) %(objecttype)";
        let said = history.call(git).args(["cat-file", format]).input(asked);
        let said = said.run()?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let peeled = said.lines().map(|line| line.strip_suffix(" commit"));
        let tips: HashMap<String, String> = tips
            .iter()
            .zip(peeled)
            .filter_map(|(tip, commit)| Some(((*tip).to_owned(), commit?.to_owned())))
            .collect();
        let mut asked: String = tips.values().map(|id| format!("{id}\n")).collect();
        let known = history.base.values().chain(known);
        asked.extend(known.flat_map(|id| ["^", id.as_str(), "\n"]));
        let format = "--format=%H %P%n%an <%ae>%n%cn <%ce>%n%s%n%B";
        let args = ["log", "-z", "--encoding=UTF-8", format, ASKED_FOR];
        let said = match tips.is_empty() {
            true => Vec::new(),
            false => {
                let call = history.call(git).args(args);
                call.line("--ignore-missing --stdin").input(asked).run()?
            }
        };
        let all = said.split(|&byte| byte == 0).filter(|one| !one.is_empty());
        let one = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            let mut parts = text.splitn(5, '\n');
            let mut ids = parts.next()?.split(' ').map(str::to_owned);
            let id = ids.next()?;
            let mut next = || parts.next().unwrap_or_default().to_owned();
            let commit = Commit {
                parents: ids.filter(|id| !id.is_empty()).collect(),
                author: next(),
                committer: next(),
                subject: next(),
                message: next(),
            };
            Some((id, commit))
        };
        let commits: HashMap<String, Commit> = all.filter_map(one).collect();
        Ok(Self {
            more: commits.len() > LOOKED_AT,
            commits,
            tips,
        })
    }

    /// Whether this stands for a commit.
    pub(super) fn stands_for(&self, tip: &str) -> bool {
        self.tips.contains_key(tip)
    }

    /// The new commits of one tip, newest first as far as parents say; so many at most.
    pub(super) fn of(&self, tip: &str, most: usize) -> Vec<(&str, &Commit)> {
        let (mut met, mut found) = (BTreeSet::new(), Vec::new());
        let mut next = std::collections::VecDeque::from_iter(self.tips.get(tip));
        while let Some(id) = next.pop_front().filter(|_| found.len() < most) {
            let Some(commit) = self.commits.get(id).filter(|_| met.insert(id)) else {
                continue;
            };
            found.push((id.as_str(), commit));
            next.extend(&commit.parents);
        }
        found
    }
}

impl Commit {
    fn json((id, commit): (&str, &Self)) -> Value {
        json!({ "id": id, "subject": commit.subject, "author": commit.author,
            "committer": commit.committer })
    }

    /// All that it says, line by line.
    pub(super) fn text(&self, id: &str) -> Vec<String> {
        let mut lines = vec![format!("commit {id}"), format!("author {}", self.author)];
        if self.committer != self.author {
            lines.push(format!("committer {}", self.committer));
        }
        let message = self.message.trim_end().lines();
        lines.extend(message.map(|line| format!("    {line}")));
        lines
    }

    /// What it is called where something is said of it.
    pub(super) fn called(&self, id: &str) -> String {
        let subject: String = self.subject.chars().take(SUBJECT).collect();
        let more = if subject.len() < self.subject.len() {
            "…"
        } else {
            ""
        };
        // The subject ends where it seems to.
        let subject = subject.replace('"', "'");
        let subject = escape(subject.as_bytes());
        format!("commit {} \"{subject}{more}\"", short(id))
    }
}

/// What people read of the commits of a branch.
fn commit_lines(commits: &[(&str, &Commit)]) -> Vec<String> {
    let shown = commits.iter().take(SHOWN);
    let mut lines: Vec<String> = shown
        .map(|(id, commit)| format!("{} {}", short(id), commit.subject))
        .collect();
    if commits.len() > SHOWN {
        lines.push(format!("and {} more", commits.len() - SHOWN));
    }
    lines
}

/// What people read of files whose change the listing of files does not tell.
fn file_lines(files: &[TreeChange]) -> Vec<String> {
    let told: Vec<String> = files.iter().filter_map(TreeChange::line).collect();
    let more = told.len().saturating_sub(SHOWN);
    let mut lines: Vec<String> = told.into_iter().take(SHOWN).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Whether a change of the history is one that a release makes.
pub(super) fn is_released(change: &Change) -> bool {
    match &change.detail {
        Detail::Opaque { detail, .. } => detail["released"] == json!(true),
        _ => false,
    }
}

/// The directories that together are the private git directory, as far as it is not the seed.
pub(super) fn roots(sandbox: &dyn Sandbox) -> Result<Vec<Location>> {
    let mounts = sandbox.access()?.mounts;
    Ok(mounts
        .into_iter()
        .flat_map(|mount| match mount.view {
            View::Directory(root) => vec![root],
            View::Layers(layers) => [layers.upper].into_iter().chain(layers.below).collect(),
            View::ReadOnly(_) => Vec::new(),
        })
        .collect())
}

/// The names that a reference with a file of its own may have: some may be gone by now; and those that are no text.
fn loose_refs(roots: &[Location]) -> Result<(BTreeSet<String>, BTreeSet<Vec<u8>>)> {
    let (mut names, mut odd) = (BTreeSet::new(), BTreeSet::new());
    for root in roots {
        let Ok(root) = Dir::open(root.as_path()) else {
            continue;
        };
        if let Some(refs) = subdir(&root, b"refs")? {
            add_names(&refs, b"refs", &mut names, &mut odd)?;
        }
    }
    Ok((names, odd))
}

fn check_plain(dir: &Dir, entry: &DirEntry, name: &str) -> Result<()> {
    match entry.meta.kind {
        EntryKind::File => Ok(()),
        EntryKind::Directory => {
            let dir = dir.subdir(&entry.name)?;
            let below = dir.entries()?;
            let mut below = below.iter();
            below.try_for_each(|one| {
                check_plain(&dir, one, &format!("{name}/{}", escape(&one.name)))
            })
        }
        // The mark of a layer that something is gone.
        _ if entry.meta.is_whiteout() => Ok(()),
        _ => {
            let why = format!("'.git/{name}' is neither a file nor a directory");
            Err(super::refused("commit this history", &why))
        }
    }
}

fn add_names(
    dir: &Dir,
    prefix: &[u8],
    names: &mut BTreeSet<String>,
    odd: &mut BTreeSet<Vec<u8>>,
) -> Result<()> {
    for entry in dir.entries()? {
        let name = [prefix, b"/", &entry.name].concat();
        match entry.meta.kind {
            EntryKind::Directory => add_names(&dir.subdir(&entry.name)?, &name, names, odd)?,
            EntryKind::File if std::str::from_utf8(&name).is_err() => drop(odd.insert(name)),
            EntryKind::File => names.extend(ref_name(&name)),
            _ => {}
        }
    }
    Ok(())
}
