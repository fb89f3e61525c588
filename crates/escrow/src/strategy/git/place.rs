//! Where the git directory of a checkout is, and whether it is that of this checkout alone.
//!
//! It is the directory `.git`, or the one that the file `.git` names: that of a linked worktree, which shares references,
//! objects and settings with the others of its repository, that of a submodule, or one that was put elsewhere
//! (`--separate-git-dir`). The first two name their checkout in turn; one that names another is that checkout's, and its
//! history is left alone.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::error::Result;
use super::release::read_all;
use super::repository::path_text;
use crate::fs::{Dir, state_dir};
use crate::model::text::Location;

/// Files that name a path are shorter.
const MOST: u64 = 64 << 10;

/// Files of a git directory that say that something is under way in it.
const UNDER_WAY: [(&str, &str); 6] = [
    ("MERGE_HEAD", "a merge"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
    ("BISECT_LOG", "a bisection"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
];

/// Where a git directory is, and where that is which it shares with others, if it does.
pub(super) struct Place {
    pub(super) git_dir: PathBuf,
    pub(super) common: Option<PathBuf>,
    /// Whether it lies in the checkout.
    pub(super) inside: bool,
}

fn refused(why: impl AsRef<str>) -> super::StrategyError {
    super::refused("keep a private history here", why.as_ref())
}

/// The path in a file of a directory, seen from that directory; none if there is no such file.
fn named(dir: &Dir, name: &[u8], prefix: &[u8]) -> Result<Option<PathBuf>> {
    let mut file = match dir.file(name) {
        Err(error) if error.is_absent() => return Ok(None),
        found => found?.0.take(MOST),
    };
    let mut text = Vec::new();
    let read = file.read_to_end(&mut text);
    read.map_err(|error| refused(format!("'{}' cannot be read ({error})", shown(dir, name))))?;
    while matches!(text.last(), Some(b'\n' | b'\r')) {
        text.pop();
    }
    match text.strip_prefix(prefix) {
        Some(path) if !path.is_empty() => Ok(Some(dir.path().join(path_text(path)))),
        _ => Err(refused(format!(
            "'{}' names no directory",
            shown(dir, name)
        ))),
    }
}

fn shown(dir: &Dir, name: &[u8]) -> Location {
    Location::from(dir.path().join(path_text(name)))
}

impl Place {
    /// Of a checkout.
    pub(super) fn of(checkout: &Path) -> Result<Self> {
        let dir = Dir::open(checkout)?;
        let git_dir = match dir.stat(b".git")? {
            Some(meta) if meta.is_dir() => checkout.join(".git"),
            Some(meta) if meta.is_file() => match named(&dir, b".git", b"gitdir: ")? {
                Some(path) => found(&path)?,
                None => return Err(refused("there is no '.git' in it")),
            },
            Some(_) => return Err(refused("its '.git' is neither a directory nor a file")),
            None => return Err(refused("there is no '.git' in it")),
        };
        let common = named(&Dir::open(&git_dir)?, b"commondir", b"")?;
        Ok(Self {
            common: common.as_deref().map(found).transpose()?,
            inside: git_dir == checkout.join(".git"),
            git_dir,
        })
    }

    /// Where the settings, references and objects are.
    pub(super) fn shared(&self) -> &Path {
        self.common.as_deref().unwrap_or(&self.git_dir)
    }

    /// Refuses one of which no private history can be kept; `settings` are its own.
    pub(super) fn check(&self, checkout: &Path, settings: &[(String, String)]) -> Result<()> {
        let there = Dir::open(&self.git_dir)?;
        for (name, what) in UNDER_WAY {
            if there.stat(name.as_bytes())?.is_some() {
                return Err(refused(format!("{what} is under way in it")));
            }
        }
        // The private git directory is written as text. What cannot be read is git's to tell.
        if let Ok((head, _)) = there.file(b"HEAD")
            && std::str::from_utf8(&read_all(head)?).is_err()
        {
            return Err(refused("the name of its branch is not UTF-8"));
        }
        self.check_own(checkout, &there, settings)?;
        // What is released is renamed into both.
        let here = Dir::open(checkout)?.meta()?;
        for one in [&self.git_dir, &self.shared().join("objects")] {
            if Dir::open(&found(one)?)?.meta()?.mount != here.mount {
                return Err(refused(format!(
                    "'{}' is on another file system",
                    Location::from(one.as_path())
                )));
            }
        }
        Ok(())
    }

    /// Refuses the git directory of another checkout, and one without any.
    fn check_own(&self, checkout: &Path, there: &Dir, settings: &[(String, String)]) -> Result<()> {
        let of = |wanted: &str| {
            let mut values = settings.iter().rev().filter(|(key, _)| key == wanted);
            values.next().map(|(_, value)| value.as_str())
        };
        if self.common.is_none() && of("core.bare") == Some("true") {
            return Err(refused("its repository is bare"));
        }
        // A linked worktree is named by a file, a submodule by a setting.
        let back = match (&self.common, of("core.worktree")) {
            (Some(_), _) => named(there, b"gitdir", b"")?,
            (None, Some(path)) => Some(self.git_dir.join(path).join(".git")),
            (None, None) if self.inside => return Ok(()),
            // `git init --separate-git-dir`: nothing names the checkout. A directory `.git` is that of the one it lies in.
            (None, None) if self.git_dir.file_name() != Some(OsStr::new(".git")) => return Ok(()),
            (None, None) => None,
        };
        let own = Dir::look(&checkout.join(".git"))?;
        let same = |path: &PathBuf| {
            let named = state_dir::canonical_any(path).and_then(|path| Dir::look(&path));
            named.is_ok_and(|named| (named.dev, named.ino) == (own.dev, own.ino))
        };
        match back {
            Some(back) if same(&back) => Ok(()),
            Some(back) => Err(refused(format!(
                "its git directory is that of another checkout ('{}')",
                Location::from(back.as_path())
            ))),
            None => Err(refused(
                "its git directory lies elsewhere and does not name this checkout",
            )),
        }
    }
}

/// The path of a directory that is there, without links.
fn found(path: &Path) -> Result<PathBuf> {
    state_dir::canonical(path).map_err(|error| {
        refused(format!(
            "its git directory is not there: {error}: {}",
            error.cause
        ))
    })
}
