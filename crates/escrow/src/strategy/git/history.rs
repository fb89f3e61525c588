//! The private history, read from the sandbox of the git directory as data: no setting in it is followed.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::super::Sandbox;
use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::repository::{Head, Refs, is_id, line, read_refs};
use crate::fs::Dir;
use crate::model::text::Location;
use crate::model::view::View;
use crate::model::{Change, ChangeKind, Detail, DiffView, EntryKind, ResourcePath};

/// How many commits of one branch are named.
const NAMED: usize = 1000;

/// How many of them are shown to people.
const SHOWN: usize = 10;

/// Files larger than this hold no references.
const MOST: u64 = 256 << 20;

/// What the private git directory says.
pub(super) struct History {
    pub(super) head: Head,
    pub(super) refs: Refs,
    /// The references of the user when the sandbox was made.
    pub(super) base: Refs,
    /// Which of its files differ from those it began with.
    pub(super) files: DiffView,
    /// What is neither a file nor a directory where private objects are; then none of them is read.
    pub(super) odd: Option<ResourcePath>,
    /// Where its objects are: private ones first, the user's last.
    pub(super) objects: Vec<PathBuf>,
}

/// A path that git, or an agent, wrote. One that leads elsewhere is none.
pub(super) fn path_of(name: &[u8]) -> Result<ResourcePath> {
    ResourcePath::parse(name).map_err(|error| damaged(&error.to_string()))
}

/// A file of the private git directory; none if it is not there.
pub(super) fn read_file(sandbox: &dyn Sandbox, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let file = match sandbox.read(&path_of(name)?) {
        Err(StrategyError::NotThere { .. }) => return Ok(None),
        Err(error) => return Err(damaged(&format!("'.git/{}': {error}", show(name)))),
        Ok(file) => file,
    };
    let mut bytes = Vec::new();
    let read = file.take(MOST).read_to_end(&mut bytes);
    read.map_err(|error| damaged(&format!("'.git/{}' cannot be read ({error})", show(name))))?;
    Ok(Some(bytes))
}

fn show(name: &[u8]) -> String {
    crate::model::text::escape(name)
}

fn damaged(what: &str) -> StrategyError {
    StrategyError::Damaged {
        what: what.to_owned(),
    }
}

impl History {
    /// Reads it.
    pub(super) fn read(sandbox: &dyn Sandbox, seed: &Dir, user: PathBuf) -> Result<Self> {
        let files = sandbox.diff(None, None)?;
        let (mut file, _) = seed.file(b"packed-refs")?;
        let mut packed = Vec::new();
        file.read_to_end(&mut packed)
            .map_err(|error| damaged(&error.to_string()))?;
        let base = read_refs(&packed)?;
        let mut refs = match changed(&files, "packed-refs") {
            true => read_refs(&read_file(sandbox, b"packed-refs")?.unwrap_or_default())?,
            false => base.clone(),
        };
        for change in &files.changes {
            let name = change.path.as_bytes();
            let is_file = change
                .new
                .as_ref()
                .is_some_and(|new| new.kind == EntryKind::File);
            if !name.starts_with(b"refs/") || !is_file {
                continue;
            }
            let value = line(&read_file(sandbox, name)?.unwrap_or_default());
            // One that stands for another one moves with that.
            if is_id(&value) {
                refs.insert(String::from_utf8_lossy(name).into_owned(), value);
            }
        }
        let at = line(&read_file(sandbox, b"HEAD")?.unwrap_or_default());
        let branch = at.strip_prefix("ref: ").map(str::to_owned);
        let commit = match &branch {
            Some(branch) => refs.get(branch).cloned(),
            None => Some(at).filter(|id| is_id(id)),
        };
        // Git opens what it finds there: a pipe would never answer, a link leads elsewhere.
        let odd = files.changes.iter().find(|change| is_odd_object(change));
        let odd = odd.map(|change| change.path.clone());
        let mut objects = match odd {
            Some(_) => Vec::new(),
            None => object_dirs(sandbox)?,
        };
        objects.push(user);
        Ok(Self {
            head: Head { branch, commit },
            refs,
            base,
            files,
            odd,
            objects,
        })
    }

    /// A call that sees its objects, with settings that are ours.
    pub(super) fn call<'g>(&self, git: &'g Git, seed: &Path) -> GitCall<'g> {
        git.at(seed).objects(&self.objects)
    }

    /// What of the history is not what it was, each with the commits that are new: first the branch that was checked out,
    /// which a release moves to where HEAD is inside; then other branches and tags, which stay in the sandbox.
    pub(super) fn changes(&self, git: &Git, seed: &Path, head: &Head) -> Result<Vec<Change>> {
        let target = head.branch.as_deref().unwrap_or("HEAD");
        let moved = self.head.commit != head.commit;
        let mut rows = Vec::new();
        if let Some(new) = self.head.commit.as_ref().filter(|_| moved) {
            rows.push((target, head.commit.as_ref(), new, true));
        }
        let shown = |name: &str| name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
        for (name, new) in self.refs.iter().filter(|(name, _)| shown(name)) {
            let old = self.base.get(name);
            if old != Some(new) && !(moved && name == target) {
                rows.push((name, old, new, false));
            }
        }
        let mut changes = Vec::new();
        for (name, old, new, released) in rows {
            // To git, too, such a name is none.
            let Ok(path) = path_of(format!(".git/{name}").as_bytes()) else {
                continue;
            };
            let kind = match old {
                None => ChangeKind::Added,
                Some(_) => ChangeKind::Modified,
            };
            let mut detail = json!({ "ref": name, "old": old, "new": new, "released": released });
            match self.commits(git, seed, new) {
                Ok(commits) => {
                    detail["lines"] = json!(lines(&commits, released));
                    let one = |(id, subject)| json!({ "id": id, "subject": subject });
                    detail["commits"] = commits.into_iter().map(one).collect();
                }
                // What an agent left there is shown all the same.
                Err(error) => detail["lines"] = json!([error.to_string()]),
            }
            changes.push(Change::opaque(path, kind, detail));
        }
        Ok(changes)
    }

    /// The commits that the user's references did not have, newest first.
    fn commits(&self, git: &Git, seed: &Path, new: &str) -> Result<Vec<(String, String)>> {
        let most = format!("--max-count={NAMED}");
        let args = ["log", "-z", "--format=%H %s", &most, new, "--not", "--all"];
        let said = self.call(git, seed).args(args).run()?;
        let all = said.split(|&byte| byte == 0).filter(|one| !one.is_empty());
        let one = |text: &[u8]| {
            let text = String::from_utf8_lossy(text).into_owned();
            let (id, subject) = text.split_once(' ').unwrap_or((&text, ""));
            (id.to_owned(), subject.to_owned())
        };
        Ok(all.map(one).collect())
    }
}

/// What people read of a branch.
fn lines(commits: &[(String, String)], released: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if !released {
        lines.push("stays in the sandbox".to_owned());
    }
    let shown = commits.iter().take(SHOWN);
    lines.extend(shown.map(|(id, subject)| format!("{} {subject}", &id[..10])));
    if commits.len() > SHOWN {
        lines.push(format!("and {} more", commits.len() - SHOWN));
    }
    lines
}

/// Whether a change of the history is one that a release makes.
pub(super) fn is_released(change: &Change) -> bool {
    match &change.detail {
        Detail::Opaque { detail } => detail["released"] == json!(true),
        _ => false,
    }
}

/// Whether this is no file and no directory where objects are.
fn is_odd_object(change: &Change) -> bool {
    let path = change.path.as_bytes();
    let there = path == b"objects" || path.starts_with(b"objects/");
    let plain = [EntryKind::File, EntryKind::Directory];
    let new = change.new.as_ref();
    there && new.is_some_and(|new| !plain.contains(&new.kind))
}

/// Whether a file of the git directory differs from the one it began with.
pub(super) fn changed(files: &DiffView, name: &str) -> bool {
    let mut paths = files.changes.iter().map(|change| change.path.as_bytes());
    paths.any(|path| path == name.as_bytes())
}

/// The directories that hold the private objects.
fn object_dirs(sandbox: &dyn Sandbox) -> Result<Vec<PathBuf>> {
    let mounts = sandbox.access()?.mounts;
    let roots: Vec<Location> = mounts
        .into_iter()
        .flat_map(|mount| match mount.view {
            View::Directory(root) => vec![root],
            View::Layers(layers) => [layers.upper].into_iter().chain(layers.below).collect(),
            View::ReadOnly(_) => Vec::new(),
        })
        .collect();
    let objects = roots.iter().map(|root| root.as_path().join("objects"));
    Ok(objects.filter(|path| Dir::open(path).is_ok()).collect())
}
