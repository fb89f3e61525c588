//! The release of a private history: objects as a pack, references by compare-and-swap, entries of the index.
//!
//! Files are the business of the strategy below. Everything here can be repeated, and taken back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::history::{History, changed, path_of, read_file};
use super::repository::{Head, RefMove, Repository, line, path_text, subdir};
use super::{GitMetadata, seed};
use crate::fs::{Cause, Dir, Meta, remove};
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath};
use crate::strategy::{OnConflict, Sandbox};

/// How long one waits for a git process that has the index locked.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The git directory with the settings, in the area of a commit.
pub(super) const SETTINGS: &str = "settings";

/// Says in the area of a commit that its objects may be in use.
const USED: &[u8] = b"used";

/// Where a new index is made, until it is in its place.
const WORK: &[u8] = b"work";
const LOCK: &[u8] = b"index.lock";

/// One path of an index, by its stages: mode and object.
type Stages = BTreeMap<u8, (String, String)>;

/// An index.
type Index = BTreeMap<Vec<u8>, Stages>;

/// A path of the index that changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexChange {
    path: ResourcePath,
    old: Stages,
    new: Stages,
}

/// What a release does to the repository.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Release {
    pub(super) moves: Vec<RefMove>,
    /// The commit that the branch has by now, into which the private one is merged.
    #[serde(default)]
    pub(super) merges: Option<String>,
    pub(super) index: Vec<IndexChange>,
    /// What is said in the reflog.
    #[serde(default)]
    pub(super) message: String,
}

/// A release as it was found, and what contradicts it.
pub(super) struct Found {
    pub(super) release: Release,
    /// Where the histories contradict each other: no side can be taken, they have to be merged.
    pub(super) diverged: Vec<Conflict>,
    /// Paths that both sides staged, and not alike.
    pub(super) staged: Vec<Conflict>,
}

impl Found {
    /// The release, with what is to be done about its conflicts.
    pub(super) fn settled(mut self, on_conflict: OnConflict) -> Result<Release> {
        if !self.diverged.is_empty() {
            return Err(super::refused(
                "take one side of two histories",
                "merge them inside the sandbox (`escrow run -- git merge`), and commit again",
            ));
        }
        if on_conflict == OnConflict::Theirs {
            let theirs = |one: &IndexChange| self.staged.iter().any(|other| other.path == one.path);
            self.release.index.retain(|one| !theirs(one));
        }
        Ok(self.release)
    }
}

/// What of a repository a commit changes, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GitIntent {
    pub(super) repository: Repository,
    pub(super) checkout: Location,
    /// Where the pack, and an index in the making, lie.
    pub(super) area: Location,
    /// A git directory with the settings that git is called with, which stays as long as the commit can be undone.
    pub(super) settings: Location,
    pub(super) release: Release,
    /// The files of the pack; the index of it last, which is what makes it one.
    pub(super) packs: Vec<String>,
}

/// The files of the pack in an area.
pub(super) fn packs(area: &Dir) -> Result<Vec<String>> {
    let names = area.entries()?.into_iter();
    let names = names.map(|one| String::from_utf8_lossy(&one.name).into_owned());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("pack-")).collect();
    names.sort_by_key(|name| name.ends_with(".idx"));
    Ok(names)
}

fn conflict(path: &str, what: &str) -> Result<Conflict> {
    Ok(Conflict::of(path_of(path.as_bytes())?, what))
}

/// Looks at what a release would do. Objects that a merge makes are written into `scratch`.
pub(super) fn look(
    git: &Git,
    sandbox: &GitMetadata,
    history: &History,
    private: &dyn Sandbox,
    scratch: &Dir,
) -> Result<Found> {
    let (base, repository) = (&sandbox.head, &sandbox.repository);
    let mut found = Found {
        release: Release::default(),
        diverged: Vec::new(),
        staged: Vec::new(),
    };
    if let Some(odd) = &history.odd {
        let why = format!("'.git/{odd}' is neither a file nor a directory");
        return Err(super::refused("release this history", &why));
    }
    // With these an agent would have git read objects from elsewhere, or take missing ones for granted.
    for name in ["objects/info/alternates", "shallow"] {
        if changed(&history.files, name) {
            let why = format!("'.git/{name}' was changed inside");
            return Err(super::refused("release this history", &why));
        }
    }
    let user = repository.head(git)?;
    if history.head.commit != base.commit {
        found.look_at_branch(git, sandbox, history, &user, scratch)?;
    }
    if changed(&history.files, "index") {
        found.look_at_index(git, sandbox, private, scratch)?;
    }
    Ok(found)
}

impl Found {
    fn look_at_branch(
        &mut self,
        git: &Git,
        sandbox: &GitMetadata,
        history: &History,
        user: &Head,
        scratch: &Dir,
    ) -> Result<()> {
        let (base, new) = (&sandbox.head, &history.head.commit);
        if user.branch != base.branch {
            let now = user.branch.as_deref().unwrap_or("no branch");
            let what = format!(
                "the checkout is on {now} by now, so the private history has no place to go"
            );
            self.diverged.push(conflict(".git/HEAD", &what)?);
            return Ok(());
        }
        let name = base.branch.clone().unwrap_or_else(|| "HEAD".to_owned());
        let mut goes = |old: Option<String>, new: Option<String>| {
            self.release.moves.push(RefMove {
                name: name.clone(),
                old,
                new,
            });
        };
        if user.commit == base.commit {
            goes(user.commit.clone(), new.clone());
            return Ok(());
        }
        let (Some(theirs), Some(ours)) = (&user.commit, new) else {
            let what = "the branch has no commit any more on one side";
            self.diverged.push(conflict(".git/HEAD", what)?);
            return Ok(());
        };
        let seed = sandbox.seed();
        let within = |a: &str, b: &str| -> Result<bool> {
            let args = ["merge-base", "--is-ancestor", a, b];
            Ok(history.call(git, &seed).args(args).ask()?.is_some())
        };
        if within(ours, theirs)? {
            return Ok(());
        }
        if within(theirs, ours)? {
            goes(Some(theirs.clone()), Some(ours.clone()));
            return Ok(());
        }
        let (clean, said) = merge_tree(git, &seed, history, scratch, theirs, ours)?;
        if clean {
            goes(Some(theirs.clone()), None);
            self.release.merges = Some(theirs.clone());
            return Ok(());
        }
        let mut parts = said.split(|&byte| byte == 0).skip(1);
        let mut paths: Vec<&[u8]> = parts.by_ref().take_while(|part| !part.is_empty()).collect();
        paths.dedup();
        for path in paths {
            let what = "both histories changed it, and git cannot merge the two versions";
            let path = path_of(path)?;
            self.diverged.push(Conflict::of(path, what));
        }
        Ok(())
    }

    fn look_at_index(
        &mut self,
        git: &Git,
        sandbox: &GitMetadata,
        private: &dyn Sandbox,
        scratch: &Dir,
    ) -> Result<()> {
        let seed = Dir::open(&sandbox.seed())?;
        let before = read_index(git, &sandbox.seed(), &seed, b"index")?;
        remove::remove(scratch, b"index")?;
        let bytes = read_file(private, b"index")?.unwrap_or_default();
        let after = match bytes.is_empty() {
            true => Index::new(),
            false => {
                seed::write(scratch, "index", &bytes)?;
                read_index(git, &sandbox.seed(), scratch, b"index")?
            }
        };
        let theirs = read_index(git, &sandbox.seed(), &sandbox.repository.dir()?, b"index")?;
        let empty = Stages::new();
        let of = |index: &Index, path: &[u8]| index.get(path).unwrap_or(&empty).clone();
        let mut paths: Vec<&Vec<u8>> = before.keys().chain(after.keys()).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let (old, new, now) = (of(&before, path), of(&after, path), of(&theirs, path));
            if old == new || now == new {
                continue;
            }
            let at = path_of(path)?;
            if now != old {
                let what = "it is staged on both sides, and not alike";
                self.staged.push(Conflict::of(at.clone(), what));
            }
            self.release.index.push(IndexChange {
                path: at,
                old: now,
                new,
            });
        }
        Ok(())
    }
}

fn merge_tree(
    git: &Git,
    seed: &Path,
    history: &History,
    scratch: &Dir,
    theirs: &str,
    ours: &str,
) -> Result<(bool, Vec<u8>)> {
    let mut objects = vec![scratch.path().to_owned()];
    objects.extend(history.objects.iter().cloned());
    let args = [
        "merge-tree",
        "--write-tree",
        "-z",
        "--name-only",
        theirs,
        ours,
    ];
    git.at(seed).objects(&objects).args(args).either()
}

/// The entries of an index.
fn read_index(git: &Git, seed: &Path, dir: &Dir, name: &[u8]) -> Result<Index> {
    if dir.stat(name)?.is_none() {
        return Ok(Index::new());
    }
    let file = dir.path().join(path_text(name));
    let call = git.at(seed).args(["ls-files", "-s", "-z"]);
    let said = call.env("GIT_INDEX_FILE", file).run()?;
    let mut index = Index::new();
    for entry in said.split(|&byte| byte == 0).filter(|one| !one.is_empty()) {
        let unreadable = || StrategyError::Damaged {
            what: "an index of git cannot be read".to_owned(),
        };
        let tab = entry
            .iter()
            .position(|&byte| byte == b'\t')
            .ok_or_else(unreadable)?;
        let head = String::from_utf8_lossy(&entry[..tab]).into_owned();
        let mut words = head.split(' ');
        let (Some(mode), Some(id), Some(stage)) = (words.next(), words.next(), words.next()) else {
            return Err(unreadable());
        };
        let stage = stage.parse().map_err(|_| unreadable())?;
        let stages = index.entry(entry[tab + 1..].to_vec()).or_default();
        stages.insert(stage, (mode.to_owned(), id.to_owned()));
    }
    Ok(index)
}

/// Writes everything that the release needs into its area: a merge, and the objects as a pack.
pub(super) fn prepare(
    git: &Git,
    sandbox: &GitMetadata,
    history: &History,
    mut release: Release,
    message: Option<&str>,
    area: &Dir,
) -> Result<Release> {
    let seed = sandbox.seed();
    area.make_dir(b"objects", 0o700)?;
    let made = area.subdir(b"objects")?;
    let mut objects = vec![made.path().to_owned()];
    objects.extend(history.objects.iter().cloned());
    let branch = sandbox
        .head
        .branch
        .clone()
        .unwrap_or_else(|| "HEAD".to_owned());
    let short = branch.strip_prefix("refs/heads/").unwrap_or(&branch);
    release.message = match message {
        Some(message) => format!("escrow: {}", message.lines().next().unwrap_or_default()),
        None => "escrow: commit".to_owned(),
    };
    if let (Some(theirs), Some(ours)) = (&release.merges, &history.head.commit) {
        let (clean, said) = merge_tree(git, &seed, history, &made, theirs, ours)?;
        let tree = line(said.split(|&byte| byte == 0).next().unwrap_or_default());
        if !clean {
            return Err(StrategyError::Moved {
                path: path_of(b".git/HEAD")?,
                what: "the merge that was clean is not any more".to_owned(),
            });
        }
        let who = git.at(&seed).objects(&objects);
        let who = who.args(["log", "-1", "--format=%cn%x00%ce", ours]).run()?;
        let who = line(&who);
        let (name, mail) = who
            .split_once('\0')
            .unwrap_or(("Escrow", "escrow@localhost"));
        let text = match message {
            Some(message) => message.to_owned(),
            None => format!("Merge the work of an Escrow plan into {short}"),
        };
        let call = git.at(&seed).objects(&objects);
        let call = call
            .env("GIT_AUTHOR_NAME", name)
            .env("GIT_AUTHOR_EMAIL", mail)
            .env("GIT_COMMITTER_NAME", name)
            .env("GIT_COMMITTER_EMAIL", mail);
        let args = ["commit-tree", &tree, "-p", theirs, "-p", ours, "-F", "-"];
        let merged = line(&call.args(args).input(text.into_bytes()).run()?);
        for one in &mut release.moves {
            one.new = Some(merged.clone());
        }
    }
    let mut wanted = String::new();
    for one in &release.moves {
        wanted.extend(one.new.iter().flat_map(|id| [id.as_str(), "\n"]));
    }
    for one in &release.index {
        let files = one.new.values().filter(|(mode, _)| mode != "160000");
        wanted.extend(files.flat_map(|(_, id)| [id.as_str(), "\n"]));
    }
    if !wanted.is_empty() {
        wanted.push_str("--not\n");
        let known = sandbox
            .repository
            .call(git)
            .args(["for-each-ref", "--format=%(objectname)"]);
        wanted.push_str(&String::from_utf8_lossy(&known.run()?));
        wanted.extend(
            sandbox
                .head
                .commit
                .iter()
                .flat_map(|id| [id.as_str(), "\n"]),
        );
        let base = area.path().join("pack");
        let call = git.at(&seed).objects(&objects);
        let call = call.args(["pack-objects", "--revs", "-q"]).args([base]);
        call.input(wanted.into_bytes()).run()?;
        validate_packs(git, &seed, &objects, area)?;
    }
    remove::remove(area, b"objects")?;
    seed::settings_only(&Dir::open(&seed)?, area, SETTINGS)?;
    Ok(release)
}

/// Refuses objects that no git would have made: names that lead elsewhere or into a git directory, hostile `.gitmodules`.
fn validate_packs(git: &Git, seed: &Path, objects: &[PathBuf], area: &Dir) -> Result<()> {
    let Some(made) = objects.first() else {
        return Ok(());
    };
    for name in packs(area)?.iter().filter(|name| name.ends_with(".pack")) {
        let (index, pack) = (made.join("validated.idx"), area.path().join(name));
        let call = git.at(seed).objects(objects);
        let call = call.args(["index-pack", "--fsck-objects", "-o"]);
        match call.args([index, pack]).run() {
            Err(StrategyError::Git { said, .. }) => {
                let why = format!("git finds its objects malformed: {said}");
                return Err(super::refused("release this history", &why));
            }
            validated => validated.map(drop)?,
        }
    }
    Ok(())
}

impl GitIntent {
    /// Carries it out, after the files are in place.
    pub(super) fn apply(&self, git: &Git) -> Result<()> {
        self.install_packs()?;
        self.move_refs(git, false)?;
        self.mark_used()?;
        self.set_index(git, false)
    }

    /// Notes that a reflog, or the index, may name the objects from now on: then they stay, whatever is taken back.
    fn mark_used(&self) -> Result<()> {
        let area = self.area()?;
        if area.stat(USED)?.is_none() {
            area.create(USED, 0o600)?;
            area.sync()?;
        }
        Ok(())
    }

    /// Takes it back, before the files are. What may refuse comes first.
    pub(super) fn undo(&self, git: &Git) -> Result<()> {
        self.move_refs(git, true)?;
        self.set_index(git, true)?;
        match self.area()?.stat(USED)? {
            Some(_) => Ok(()),
            None => self.remove_packs(),
        }
    }

    /// Where the repository moved on since.
    pub(super) fn check_undo(&self, git: &Git) -> Result<Vec<Conflict>> {
        let mut conflicts = Vec::new();
        for one in &self.release.moves {
            let now = self.repository.value(git, &one.name)?;
            if now != one.new && now != one.old {
                let what = "it has other commits by now: an undo would lose them";
                conflicts.push(conflict(&format!(".git/{}", one.name), what)?);
            }
        }
        if let (Some(one), head) = (self.release.moves.first(), self.repository.head(git)?)
            && one.name != "HEAD"
            && head.branch.as_ref() != Some(&one.name)
        {
            let what = "the checkout is on another branch by now";
            conflicts.push(conflict(".git/HEAD", what)?);
        }
        Ok(conflicts)
    }

    fn area(&self) -> Result<Dir> {
        Ok(Dir::open(self.area.as_path())?)
    }

    fn install_packs(&self) -> Result<()> {
        let area = self.area()?;
        let packs = self.packs()?;
        let owner = packs.meta()?;
        for name in self.packs.iter().map(String::as_bytes) {
            // It was brought by a process that died, or the same objects were brought before.
            if area.stat(name)?.is_none() || packs.stat(name)?.is_some() {
                continue;
            }
            let handle = area.handle(name)?;
            let given = handle.give_to(&owner);
            given.map_err(|errno| area.error("give away", name, Cause::Os(errno)))?;
            area.rename(name, &packs, name)?;
        }
        // Also what a process brought that died before it was durable.
        Ok(packs.sync()?)
    }

    fn packs(&self) -> Result<Dir> {
        Ok(Dir::open(&self.repository.objects().join("pack"))?)
    }

    /// Removes what was brought and never used: what is not in the area any more.
    fn remove_packs(&self) -> Result<()> {
        let (area, packs) = (self.area()?, self.packs()?);
        for name in self.packs.iter().rev().map(String::as_bytes) {
            if area.stat(name)?.is_none() {
                remove::remove(&packs, name)?;
            }
        }
        Ok(packs.sync()?)
    }

    fn move_refs(&self, git: &Git, back: bool) -> Result<()> {
        let mut moves = Vec::new();
        for one in &self.release.moves {
            let (from, to) = match back {
                true => (&one.new, &one.old),
                false => (&one.old, &one.new),
            };
            let now = self.repository.value(git, &one.name)?;
            if now == *to {
                continue;
            }
            if now != *from {
                return Err(StrategyError::Moved {
                    path: path_of(format!(".git/{}", one.name).as_bytes())?,
                    what: "it has another commit by now".to_owned(),
                });
            }
            moves.push(RefMove {
                name: one.name.clone(),
                old: from.clone(),
                new: to.clone(),
            });
        }
        // The process that moved it may have died before it could say so.
        if back && !moves.is_empty() {
            self.mark_used()?;
        }
        let message = match back {
            true => "escrow: undo",
            false => &self.release.message,
        };
        self.repository
            .move_refs(git, &moves, message, Some(&self.area()?))?;
        // Git syncs neither reflogs nor directories. Also what a process moved that died before this.
        match self.release.moves.is_empty() {
            true => Ok(()),
            false => Ok(self.repository.dir()?.sync_file_system()?),
        }
    }

    /// Puts the entries of the index in place, or the former ones back.
    fn set_index(&self, git: &Git, back: bool) -> Result<()> {
        if self.release.index.is_empty() {
            return Ok(());
        }
        let (area, user) = (self.area()?, self.repository.dir()?);
        // A lock that a process of ours left is this very file.
        if let (Some(lock), Some(work)) = (user.stat(LOCK)?, subdir(&area, WORK)?)
            && let Some(new) = work.stat(b"index")?
            && (lock.dev, lock.ino) == (new.dev, new.ino)
        {
            user.unlink(LOCK)?;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            remove::remove(&area, WORK)?;
            area.make_dir(WORK, 0o700)?;
            let work = area.subdir(WORK)?;
            let before = user.stat(b"index")?;
            self.write_index(git, &work, &user, back)?;
            match user.link_to(LOCK, &work, b"index") {
                Err(error) if error.is(Errno::EXIST) && Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(error) if error.is(Errno::EXIST) => {
                    return Err(super::refused(
                        "write the index",
                        "another git process has it locked; should none be running, remove '.git/index.lock'",
                    ));
                }
                linked => linked?,
            }
            let known = |meta: &Meta| (meta.ino, meta.ctime, meta.size);
            if user.stat(b"index")?.as_ref().map(known) != before.as_ref().map(known) {
                user.unlink(LOCK)?;
                continue;
            }
            user.rename(LOCK, &user, b"index")?;
            user.sync()?;
            return Ok(remove::remove(&area, WORK)?);
        }
    }

    /// Writes the index of the user, with the entries in place, into a directory of ours.
    fn write_index(&self, git: &Git, work: &Dir, user: &Dir, back: bool) -> Result<()> {
        seed::copy(user, work, b"index")?;
        let now = read_index(git, self.settings.as_path(), work, b"index")?;
        let zero = self.repository.zero();
        let (mut input, mut paths) = (Vec::new(), Vec::new());
        for one in &self.release.index {
            let path = one.path.as_bytes();
            let (from, to) = match back {
                true => (&one.new, &one.old),
                false => (&one.old, &one.new),
            };
            // What the user staged since stays.
            if now.get(path).cloned().unwrap_or_default() != *from {
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
            if to.contains_key(&0) {
                paths.extend([b":(literal)", path, b"\0"].concat());
            }
        }
        let call = |args: &[&str], input: Vec<u8>| {
            git.at(self.settings.as_path())
                .args(args)
                .objects(&[self.repository.objects()])
                .env("GIT_WORK_TREE", self.checkout.as_path())
                .env("GIT_INDEX_FILE", work.path().join("index"))
                .input(input)
                .either()
        };
        call(&["update-index", "-z", "--index-info"], input)?;
        // Sizes and times of the files as they are now, so that nothing need be read to know that it is unchanged.
        if !paths.is_empty() {
            let from = ["--pathspec-from-file=-", "--pathspec-file-nul"];
            call(&["add", "--refresh", from[0], from[1]], paths)?;
        }
        if let Some(old) = user.stat(b"index")? {
            let new = work.handle(b"index")?;
            let set = new.set_mode(old.mode).and_then(|()| new.give_to(&old));
            set.map_err(|errno| work.error("set the metadata of", b"index", Cause::Os(errno)))?;
        }
        let synced = work.file(b"index")?.0.sync_all();
        synced.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            work.error("sync", b"index", Cause::Os(errno)).into()
        })
    }
}
