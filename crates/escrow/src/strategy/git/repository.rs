//! The user's repository: where it is, where its HEAD is, and whether a private history can be kept beside it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use crate::fs::{Dir, Meta, remove};
use crate::model::text::Location;

/// References by their names.
pub(super) type Refs = BTreeMap<String, String>;

/// Files of a git directory that say that something is under way in it.
const UNDER_WAY: [(&str, &str); 6] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("BISECT_LOG", "a bisection"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
];

/// Says in an area that references are being moved.
const MOVING: &[u8] = b"moving";

/// How long a lock of a reference may be held by the user's git.
const PATIENCE: Duration = Duration::from_millis(1500);
const PAUSE: Duration = Duration::from_millis(20);

/// Where HEAD is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The branch; none where HEAD is detached.
    pub(super) branch: Option<String>,
    /// The commit; none where the branch has none yet.
    pub(super) commit: Option<String>,
}

/// A repository of the user.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Repository {
    /// Its git directory.
    pub(super) git_dir: Location,
    /// `sha1` or `sha256`.
    pub(super) format: String,
}

impl Repository {
    /// The repository of a checkout; refuses, with the reason, one beside which no private history can be kept.
    pub(super) fn of(git: &Git, checkout: &Path) -> Result<Self> {
        let refused = |why: &str| super::refused("keep a private history here", why);
        let dir = Dir::open(checkout)?;
        match dir.stat(b".git")? {
            Some(meta) if meta.is_dir() => {}
            Some(_) => {
                return Err(refused(
                    "its git directory lies elsewhere (a linked worktree or a submodule)",
                ));
            }
            None => return Err(refused("there is no '.git' in it")),
        }
        let git_dir = checkout.join(".git");
        let there = Dir::open(&git_dir)?;
        if there.stat(b"commondir")?.is_some() {
            return Err(refused("its git directory is that of a linked worktree"));
        }
        if let Some(modules) = subdir(&there, b"modules")?
            && !modules.entries()?.is_empty()
        {
            return Err(refused("it has submodules that are checked out"));
        }
        for (name, what) in UNDER_WAY {
            if there.stat(name.as_bytes())?.is_some() {
                return Err(refused(&format!("{what} is under way in it")));
            }
        }
        let settings = read_settings(git, &git_dir)?;
        for (key, value) in &settings {
            let why = match key.as_str() {
                "core.bare" if value == "true" => "it is bare",
                "core.worktree" => "its working files lie elsewhere (core.worktree)",
                "extensions.partialclone" => {
                    "it is a partial clone, whose objects are fetched when they are needed"
                }
                "extensions.worktreeconfig" => "it has settings of its own for each worktree",
                _ => continue,
            };
            return Err(refused(why));
        }
        Self::open(git, git_dir)
    }

    fn open(git: &Git, git_dir: PathBuf) -> Result<Self> {
        let args = ["rev-parse", "--show-object-format"];
        let format = git.at(&git_dir).args(args).run()?;
        Ok(Self {
            git_dir: Location::from(git_dir),
            format: line(&format),
        })
    }

    /// The repository of a checkout, whatever is under way in it; none where git knows none there.
    pub(super) fn there(git: &Git, checkout: &Path) -> Result<Option<Self>> {
        match Self::open(git, checkout.join(".git")) {
            Err(StrategyError::Git { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// A call about it.
    pub(super) fn call<'g>(&self, git: &'g Git) -> GitCall<'g> {
        git.at(self.git_dir.as_path())
    }

    /// Its directory.
    pub(super) fn dir(&self) -> Result<Dir> {
        Ok(Dir::open(self.git_dir.as_path())?)
    }

    /// Where its objects are.
    pub(super) fn objects(&self) -> PathBuf {
        self.git_dir.as_path().join("objects")
    }

    /// The settings of its own, without those of files that it includes.
    pub(super) fn settings(&self, git: &Git) -> Result<Vec<(String, String)>> {
        read_settings(git, self.git_dir.as_path())
    }

    /// Where its HEAD is now.
    pub(super) fn head(&self, git: &Git) -> Result<Head> {
        let branch = self.call(git).args(["symbolic-ref", "-q", "HEAD"]).ask()?;
        let args = ["rev-parse", "-q", "--verify", "HEAD^{commit}"];
        let commit = self.call(git).args(args).ask()?;
        Ok(Head {
            branch: branch.map(|name| line(&name)),
            commit: commit.map(|id| line(&id)),
        })
    }

    /// What a reference is now.
    pub(super) fn value(&self, git: &Git, name: &str) -> Result<Option<String>> {
        let args = ["rev-parse", "-q", "--verify", name];
        let value = self.call(git).args(args).ask()?;
        Ok(value.map(|id| line(&id)))
    }

    /// Its branches, tags and the like, and what the tags among them stand for.
    pub(super) fn packed_refs(&self, git: &Git) -> Result<Vec<u8>> {
        let format = "--format=%(objectname) %(refname)%00%(*objectname)";
        let said = self.call(git).args(["for-each-ref", format]).run()?;
        let mut packed = b"# pack-refs with: peeled fully-peeled sorted \n".to_vec();
        for found in said
            .split(|&byte| byte == b'\n')
            .filter(|one| !one.is_empty())
        {
            let mut parts = found.split(|&byte| byte == 0);
            let (Some(named), peeled) = (parts.next(), parts.next().unwrap_or_default()) else {
                continue;
            };
            let name = named
                .splitn(2, |&byte| byte == b' ')
                .nth(1)
                .unwrap_or_default();
            // The user's stash, and what keeps objects alive for sandboxes, are no history of the checkout.
            let private = [
                &b"refs/stash"[..],
                b"refs/escrow/",
                b"refs/bisect/",
                b"refs/worktree/",
            ];
            if private.iter().any(|one| name.starts_with(one)) {
                continue;
            }
            packed.extend(named);
            packed.push(b'\n');
            if !peeled.is_empty() {
                packed.push(b'^');
                packed.extend(peeled);
                packed.push(b'\n');
            }
        }
        Ok(packed)
    }

    /// The name of no object.
    pub(super) fn zero(&self) -> String {
        "0".repeat(if self.format == "sha256" { 64 } else { 40 })
    }

    /// Changes references as one, each only if it is what it was; a value of none is a reference that does not exist.
    /// While it is under way an `area` says so: locks that a process left which was killed meanwhile are removed.
    pub(super) fn move_refs(
        &self,
        git: &Git,
        moves: &[RefMove],
        message: &str,
        area: Option<&Dir>,
    ) -> Result<()> {
        if moves.is_empty() {
            return Ok(());
        }
        if let Some(area) = area {
            if let Some(begun) = area.stat(MOVING)? {
                self.remove_locks(moves, &begun)?;
            }
            remove::remove(area, MOVING)?;
            area.create(MOVING, 0o600)?;
            area.sync()?;
        }
        let zero = self.zero();
        let mut input = Vec::from(&b"start\0"[..]);
        for one in moves {
            let value = |of: &Option<String>| of.clone().unwrap_or_else(|| zero.clone());
            let (old, new) = (value(&one.old), value(&one.new));
            let text = match one.new {
                Some(_) => format!("update {}\0{new}\0{old}\0", one.name),
                None => format!("delete {}\0{old}\0", one.name),
            };
            input.extend(text.into_bytes());
        }
        input.extend(b"prepare\0commit\0");
        let args = ["update-ref", "--no-deref", "-m", message, "--stdin", "-z"];
        let call = self.call(git).owned_by(&self.dir()?.meta()?);
        call.args(args).input(input).run()?;
        match area {
            Some(area) => Ok(area.unlink(MOVING)?),
            None => Ok(()),
        }
    }

    /// Removes the locks of references that a process of ours left. One of the user's git is held for a short time only.
    fn remove_locks(&self, moves: &[RefMove], begun: &Meta) -> Result<()> {
        let dir = self.dir()?;
        let names = moves.iter().map(|one| one.name.as_str());
        for name in names.chain(["HEAD", "packed-refs"]) {
            let lock = format!("{name}.lock");
            let path = super::history::path_of(lock.as_bytes())?;
            let until = Instant::now() + PATIENCE;
            while let Some(there) = dir.stat_path(&path)? {
                if Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                if there.ctime >= begun.ctime {
                    let (parent, name) = dir.parent(&path)?;
                    parent.unlink(name)?;
                }
                break;
            }
        }
        Ok(())
    }
}

/// A reference that moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefMove {
    pub(super) name: String,
    pub(super) old: Option<String>,
    pub(super) new: Option<String>,
}

fn read_settings(git: &Git, git_dir: &Path) -> Result<Vec<(String, String)>> {
    let args = ["config", "--local", "--no-includes", "-z", "--list"];
    let said = git.at(git_dir).args(args).run()?;
    let one = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let (key, value) = text.split_once('\n').unwrap_or((&text, "true"));
        (key.to_owned(), value.to_owned())
    };
    let all = said.split(|&byte| byte == 0).filter(|one| !one.is_empty());
    Ok(all.map(one).collect())
}

/// A directory in another one, if it is there.
pub(super) fn subdir(dir: &Dir, name: &[u8]) -> Result<Option<Dir>> {
    match dir.subdir(name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The one line that a call answered.
pub(super) fn line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).trim_end().to_owned()
}

/// What `packed-refs` holds.
pub(super) fn read_refs(packed: &[u8]) -> Result<Refs> {
    let mut refs = Refs::new();
    for one in packed.split(|&byte| byte == b'\n') {
        if one.is_empty() || one.starts_with(b"#") || one.starts_with(b"^") {
            continue;
        }
        let text = String::from_utf8_lossy(one);
        match text.split_once(' ') {
            Some((id, name)) if is_id(id) => refs.insert(name.to_owned(), id.to_owned()),
            _ => {
                return Err(StrategyError::Damaged {
                    what: "its packed-refs cannot be read".to_owned(),
                });
            }
        };
    }
    Ok(refs)
}

/// Whether this is the whole name of an object.
pub(super) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A path as git writes it.
pub(super) fn path_text(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}
