//! The user's repository: where it is, where its HEAD is, and whether a private history can be kept beside it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::command::{Git, GitCall};
use super::locks::MOVING;
use super::place::Place;
use super::trees::parts;
use crate::fs::Dir;
use crate::model::text::{Location, escape};

/// References by their names.
pub(super) type Refs = BTreeMap<String, String>;

/// Says in an area that references, or the index, were changed, so that the objects of the release may be named.
pub(super) const USED: &[u8] = b"used";

/// What ends a transaction.
const COMMIT: &[u8] = b"commit\0";

/// How long git waits for the locks of another git process, in milliseconds.
const LOCK_PATIENCE: [&str; 2] = [
    "core.filesRefLockTimeout=5000",
    "core.packedRefsTimeout=5000",
];

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
    /// Its git directory: of a linked worktree, what is not shared, HEAD and index among it.
    pub(super) git_dir: Location,
    /// Where references, objects and settings are that a linked worktree shares.
    #[serde(default)]
    common: Option<Location>,
    /// `sha1` or `sha256`.
    pub(super) format: String,
}

impl Repository {
    /// The repository of a checkout; refuses, with the reason, one beside which no private history can be kept.
    pub(super) fn of(git: &Git, checkout: &Path) -> Result<Self> {
        let place = Place::of(checkout)?;
        place.check(
            checkout,
            &read_settings(git, &place.git_dir, place.shared())?,
        )?;
        Self::open(git, place)
    }

    /// The one whose git directory this is, whatever it is of.
    pub(super) fn in_dir(git: &Git, git_dir: &Path) -> Result<Self> {
        let (git_dir, common) = (git_dir.to_owned(), None);
        Self::open(
            git,
            Place {
                git_dir,
                common,
                inside: false,
            },
        )
    }

    fn open(git: &Git, place: Place) -> Result<Self> {
        let args = ["rev-parse", "--show-object-format"];
        let format = git.at(&place.git_dir).args(args).run()?;
        Ok(Self {
            git_dir: Location::from(place.git_dir),
            common: place.common.map(Location::from),
            format: line(&format),
        })
    }

    /// The repository of a checkout, whatever is under way in it; none where git knows none there.
    pub(super) fn there(git: &Git, checkout: &Path) -> Result<Option<Self>> {
        let place = match Place::of(checkout) {
            Err(StrategyError::Unsupported { .. }) => return Ok(None),
            Err(StrategyError::Fs(error)) if error.is_absent() => return Ok(None),
            place => place?,
        };
        // What git takes for a repository.
        let shared = Dir::open(place.shared())?;
        for (dir, name) in [
            (&Dir::open(&place.git_dir)?, "HEAD"),
            (&shared, "objects"),
            (&shared, "refs"),
        ] {
            if dir.stat(name.as_bytes())?.is_none() {
                return Ok(None);
            }
        }
        Self::open(git, place).map(Some)
    }

    /// Where references, objects and settings are.
    pub(super) fn common(&self) -> &Path {
        self.common.as_ref().unwrap_or(&self.git_dir).as_path()
    }

    /// What a linked worktree shares, which is there also when that is gone.
    pub(super) fn shared(&self) -> Self {
        Self {
            git_dir: Location::from(self.common()),
            common: None,
            format: self.format.clone(),
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
        self.common().join("objects")
    }

    /// The settings of its own, without those of files that it includes.
    pub(super) fn settings(&self, git: &Git) -> Result<Vec<(String, String)>> {
        read_settings(git, self.git_dir.as_path(), self.common())
    }

    /// Where its HEAD is now.
    pub(super) fn head(&self, git: &Git) -> Result<Head> {
        let branch = self.call(git).args(["symbolic-ref", "-q", "HEAD"]).ask()?;
        let args = ["rev-parse", "-q", "--verify", "HEAD^{commit}"];
        let commit = self.call(git).args(args).ask()?;
        let branch = branch.map(|name| {
            let name = name.trim_ascii_end();
            ref_name(name).ok_or_else(|| {
                let why = format!("the name of its branch is not UTF-8 ('{}')", escape(name));
                super::refused("keep a private history here", &why)
            })
        });
        Ok(Head {
            branch: branch.transpose()?,
            commit: commit.map(|id| line(&id)),
        })
    }

    /// The commit of a revision.
    pub(super) fn commit(&self, git: &Git, name: &str) -> Result<String> {
        let wanted = format!("{name}^{{commit}}");
        let args = ["rev-parse", "-q", "--verify", &wanted];
        let found = match self.call(git).args(args).ask() {
            Err(StrategyError::Git { .. }) => None,
            found => found?,
        };
        let none = || {
            let what = format!("begin at '{}'", escape(name.as_bytes()));
            super::refused(&what, "git knows no such commit here")
        };
        found.map(|id| line(&id)).ok_or_else(none)
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

    /// Changes references as one, each only if it is what it was; a value of none is a reference that does not exist.
    ///
    /// In an `area`, [`MOVING`] says that it is under way, the locks are written down as soon as git has them, and [`USED`]
    /// says that a reference was moved.
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
        let args = ["update-ref", "--no-deref", "-m", message, "--stdin", "-z"];
        let owner = Dir::open(self.common())?.meta()?;
        let call = self.call(git).owned_by(&owner);
        let call = LOCK_PATIENCE.iter().fold(call, |call, one| call.set(one));
        let call = call.args(args);
        let mut input = self.transaction(moves);
        let Some(area) = area else {
            input.extend(COMMIT);
            return call.input(input).run().map(drop);
        };
        self.begin_moving(area)?;
        let names = || moves.iter().map(|one| one.name.as_str());
        let done = call.input(input).answer_when("prepare: ok", || {
            self.note_locks(names(), area)?;
            Ok(COMMIT)
        })?;
        // A git that cannot remove a lock says nothing of it.
        self.remove_noted_locks(area)?;
        let moved = match &done {
            Ok(_) => true,
            // It may have failed half way.
            Err(_) => {
                let now = self.values(git, names())?;
                moves
                    .iter()
                    .any(|one| now.get(&one.name) == one.new.as_ref())
            }
        };
        match moved {
            true => area.rename(MOVING, area, USED)?,
            false => area.unlink(MOVING)?,
        }
        done.map(drop)
    }

    fn transaction(&self, moves: &[RefMove]) -> Vec<u8> {
        let zero = zero(&self.format);
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
        input.extend(b"prepare\0");
        input
    }

    /// What references are now, asked in one call; those that do not exist are left out.
    pub(super) fn values<'a>(
        &self,
        git: &Git,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Refs> {
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            return Ok(Refs::new());
        }
        let asked: String = names.iter().flat_map(|name| [*name, "\n"]).collect();
        let call = self.call(git);
        let call = call.args(["cat-file", "--batch-check=%(objectname)"]);
        let said = call.input(asked).run()?;
        let said = String::from_utf8_lossy(&said).into_owned();
        if said.lines().count() != names.len() {
            return Err(StrategyError::Damaged {
                what: "the answer of git about references cannot be read".to_owned(),
            });
        }
        let named = names.iter().zip(said.lines());
        let value = |(name, value): (&&str, &str)| {
            is_id(value).then(|| ((*name).to_owned(), value.to_owned()))
        };
        Ok(named.filter_map(value).collect())
    }
}

/// A reference that moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefMove {
    pub(super) name: String,
    pub(super) old: Option<String>,
    pub(super) new: Option<String>,
}

/// The name of no object, in a repository of this format.
pub(super) fn zero(format: &str) -> String {
    "0".repeat(if format == "sha256" { 64 } else { 40 })
}

/// The settings in the shared git directory, then those that this worktree has for itself.
pub(super) fn read_settings(
    git: &Git,
    git_dir: &Path,
    shared: &Path,
) -> Result<Vec<(String, String)>> {
    let mut settings = match Dir::open(shared)?.stat(b"config")? {
        Some(_) => settings_in(git, &shared.join("config"))?,
        None => Vec::new(),
    };
    let own =
        |(key, value): &(String, String)| key == "extensions.worktreeconfig" && value == "true";
    if settings.iter().any(own) && Dir::open(git_dir)?.stat(b"config.worktree")?.is_some() {
        settings.extend(settings_in(git, &git_dir.join("config.worktree"))?);
    }
    Ok(settings)
}

/// The settings in one file, in their order, without those of files that it includes.
pub(super) fn settings_in(git: &Git, file: &Path) -> Result<Vec<(String, String)>> {
    let args = ["config", "--no-includes", "-z", "--list", "--file"];
    let said = git.anywhere().args(args).args([file]).run()?;
    let one = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let (key, value) = text.split_once('\n').unwrap_or((&text, "true"));
        (key.to_owned(), value.to_owned())
    };
    Ok(parts(&said).map(one).collect())
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

/// What `packed-refs` holds. What has no name that git would take is no reference.
pub(super) fn read_refs(packed: &[u8]) -> Result<Refs> {
    let mut refs = Refs::new();
    for one in packed.split(|&byte| byte == b'\n') {
        if one.is_empty() || one.starts_with(b"#") || one.starts_with(b"^") {
            continue;
        }
        let mut parts = one.splitn(2, |&byte| byte == b' ');
        let (id, name) = (parts.next().unwrap_or_default(), parts.next());
        match (std::str::from_utf8(id), name) {
            (Ok(id), Some(name)) if is_id(id) => {
                refs.extend(ref_name(name).map(|name| (name, id.to_owned())));
            }
            _ => {
                return Err(StrategyError::Damaged {
                    what: "its packed-refs cannot be read".to_owned(),
                });
            }
        }
    }
    Ok(refs)
}

/// The name of a reference, if git would take it (`git check-ref-format`) and it can be written as text. An agent may write any
/// other, and so may a lock have one.
pub(super) fn ref_name(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    let odd = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with('.')
            && !part.ends_with(".lock")
    };
    let good = !text.contains(odd) && !text.contains("..") && !text.contains("@{");
    (good && text.split('/').all(part)).then(|| text.to_owned())
}

/// Whether this is the whole name of an object.
pub(super) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A path as git writes it.
pub(super) fn path_text(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}
