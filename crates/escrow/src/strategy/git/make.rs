//! Stages a release: the commits that it makes, and all new objects as one pack in the area of the commit.
//!
//! Commits are made without hooks, in the name that git would take, and signed only where that is asked for.

use std::collections::BTreeSet;

use super::super::error::{Result, StrategyError};
use super::GitMetadata;
use super::checked::FALSE_NAMES;
use super::command::{Git, GitCall};
use super::history::{History, in_git_dir};
use super::identity;
use super::intent::{Release, SETTINGS};
use super::modules;
use super::release::{BranchMove, Found, Merge, merge, read_all, read_blobs};
use super::replace::{self, NewFile};
use super::repository::{RefMove, line, zero};
use super::seed;
use super::trees::{self, SUBMODULE, TreeEntry};
use crate::fs::{Dir, remove};
use crate::strategy::OnConflict;

/// What is staged, and where.
pub(super) struct Making<'a> {
    pub(super) git: &'a Git,
    pub(super) sandbox: &'a GitMetadata,
    pub(super) history: &'a History,
    /// What was said about the commit.
    pub(super) message: Option<&'a str>,
    pub(super) on_conflict: OnConflict,
    /// The tree of what was left uncommitted, if it becomes a commit.
    pub(super) work: Option<String>,
    pub(super) area: &'a Dir,
    /// Where new objects are written.
    pub(super) made: &'a Dir,
}

impl Making<'_> {
    /// Makes everything that the release needs.
    pub(super) fn prepare(&self, found: Found) -> Result<Release> {
        let mut release = Release {
            index: found.index.clone(),
            message: match self.message {
                Some(message) => format!("escrow: {}", message.lines().next().unwrap_or_default()),
                None => "escrow: commit".to_owned(),
            },
            ..Release::default()
        };
        if let Some(branch) = &found.branch {
            release.moves.push(RefMove {
                name: branch.name.clone(),
                old: branch.theirs.clone(),
                new: Some(self.branch(branch)?),
            });
        }
        release.moves.extend(found.others.iter().cloned());
        self.check_modules(&release)?;
        self.stage_files(&found, &mut release)?;
        self.pack(&release)?;
        remove::remove(self.area, b"objects")?;
        seed::settings_only(&Dir::open(&self.history.seed)?, self.area, SETTINGS)?;
        Ok(release)
    }

    fn call(&self) -> GitCall<'_> {
        self.history.making(self.git, self.made.path())
    }

    /// The commit that the branch gets.
    fn branch(&self, branch: &BranchMove) -> Result<String> {
        let ours = match &self.work {
            Some(tree) => {
                let text = "Work of an Escrow plan";
                let parents = self.history.head.commit.as_deref();
                self.commit(tree, parents, self.message.unwrap_or(text))?
            }
            None => branch.ours.clone(),
        };
        let tree = match (&branch.merge, &branch.theirs) {
            (Some(found), Some(theirs)) => Some(self.merge(found, theirs, &ours)?),
            _ => None,
        };
        if self.sandbox.options.squash {
            let tree = tree.unwrap_or_else(|| format!("{ours}^{{tree}}"));
            let text = self.squash_message(branch, &ours)?;
            return self.commit(&tree, branch.theirs.as_deref(), &text);
        }
        let Some(tree) = tree else {
            return Ok(ours);
        };
        let name = branch.name.as_str();
        let short = name.strip_prefix("refs/heads/").unwrap_or(name);
        let text = match self.message {
            Some(message) => message.to_owned(),
            None => format!("Merge the work of an Escrow plan into {short}"),
        };
        let parents = branch.theirs.as_deref().into_iter().chain([ours.as_str()]);
        self.commit(&tree, parents, &text)
    }

    /// The tree of a merge, with one side where git could not merge.
    fn merge(&self, found: &Merge, theirs: &str, ours: &str) -> Result<String> {
        let merged = merge(|| self.call(), theirs, ours, self.area)?;
        if merged != *found {
            return Err(StrategyError::Moved {
                path: in_git_dir("HEAD")?,
                what: "the merge is not the one that was looked at".to_owned(),
            });
        }
        if merged.contested.is_empty() {
            return Ok(merged.tree);
        }
        let index = self.area.path().join("merge-index");
        let with = |args: &[&str], input: Vec<u8>| {
            let call = self.call().env("GIT_INDEX_FILE", &index);
            call.args(args).input(input).run()
        };
        with(&["read-tree", &merged.tree], Vec::new())?;
        let mut input = Vec::new();
        for (path, sides) in &merged.contested {
            let taken: &Option<TreeEntry> = match self.on_conflict {
                OnConflict::Theirs => &sides.theirs,
                _ => &sides.ours,
            };
            let zero = ("0".to_owned(), zero(&self.sandbox.repository.format));
            let (mode, id) = taken.as_ref().unwrap_or(&zero);
            input.extend(format!("{mode} {id}\t").into_bytes());
            input.extend(path);
            input.push(0);
        }
        with(&["update-index", "-z", "--index-info"], input)?;
        let tree = line(&with(&["write-tree"], Vec::new())?);
        remove::remove(self.area, b"merge-index")?;
        Ok(tree)
    }

    fn squash_message(&self, branch: &BranchMove, ours: &str) -> Result<String> {
        if let Some(message) = self.message {
            return Ok(message.to_owned());
        }
        let mut asked = format!("{ours}\n");
        asked.extend(branch.theirs.iter().map(|id| format!("^{id}\n")));
        asked.extend(self.sandbox.head.commit.iter().map(|id| format!("^{id}\n")));
        let args = ["log", "-z", "--reverse", "--format=%B", "--stdin"];
        let said = self.call().args(args).input(asked).run()?;
        let all: Vec<String> = trees::parts(&said).map(line).collect();
        if let [only] = &all[..] {
            return Ok(only.clone());
        }
        let subjects = all.iter().filter_map(|text| text.lines().next());
        let subjects: String = subjects.map(|subject| format!("* {subject}\n")).collect();
        Ok(format!(
            "{} commits of an Escrow plan\n\n{subjects}",
            all.len()
        ))
    }

    /// Makes a commit.
    fn commit<'p>(
        &self,
        tree: &str,
        parents: impl IntoIterator<Item = &'p str>,
        text: &str,
    ) -> Result<String> {
        let (name, mail) = self.identity()?;
        let (call, sign) = match self.signing()? {
            Some(call) => (call, &["-S"][..]),
            None => (self.call(), &[][..]),
        };
        let mut call = call
            .env("GIT_AUTHOR_NAME", &name)
            .env("GIT_AUTHOR_EMAIL", &mail)
            .env("GIT_COMMITTER_NAME", &name)
            .env("GIT_COMMITTER_EMAIL", &mail)
            .args(["commit-tree", tree])
            .args(sign);
        for parent in parents {
            call = call.args(["-p", parent]);
        }
        let text = format!("{}\n", text.trim_end());
        Ok(line(&call.args(["-F", "-"]).input(text).run()?))
    }

    fn users_call(&self) -> Result<Option<GitCall<'_>>> {
        identity::users_call(self.git, &self.sandbox.repository)
    }

    /// The call that signs a commit: where that is asked for, and the user's settings say that commits are signed.
    fn signing(&self) -> Result<Option<GitCall<'_>>> {
        let Some(asked) = self.users_call()?.filter(|_| self.sandbox.options.sign) else {
            return Ok(None);
        };
        let args = ["config", "--type=bool", "--get", "commit.gpgSign"];
        let wanted = asked.args(args).ask()?;
        if wanted.as_deref().map(line).as_deref() != Some("true") {
            return Ok(None);
        }
        let owner = self.sandbox.repository.dir()?.meta()?.uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(super::refused(
                "sign a commit",
                "the repository belongs to another user; commit as that user, or without `sign: inherit`",
            ));
        }
        Ok(self.users_call()?.map(|call| {
            let made = self.made.path().to_owned();
            let objects = self.history.objects.iter().cloned();
            call.objects(&[made].into_iter().chain(objects).collect::<Vec<_>>())
        }))
    }

    /// Name and address as git would take them from the user's settings; else those of the last private commit.
    fn identity(&self) -> Result<(String, String)> {
        if let Some(found) = identity::of(self.users_call()?, "GIT_COMMITTER_IDENT") {
            return Ok(found);
        }
        let Some(last) = &self.history.head.commit else {
            return Ok(("Escrow".to_owned(), "escrow@localhost".to_owned()));
        };
        let args = ["log", "-1", "--format=%cn%x00%ce", last];
        let said = line(&self.call().args(args).run()?);
        let (name, mail) = said
            .split_once('\0')
            .unwrap_or(("Escrow", "escrow@localhost"));
        Ok((name.to_owned(), mail.to_owned()))
    }

    /// Stages the files that become what the histories make of them; those that go are gone with the files of the sandbox.
    fn stage_files(&self, found: &Found, release: &mut Release) -> Result<()> {
        let changed = || {
            let all = found.merged.iter().filter(|(_, file)| !file.stays);
            all.filter_map(|(path, file)| Some((path, file, file.new.as_ref()?)))
        };
        let ids: BTreeSet<&str> = changed().map(|(_, _, (_, id))| id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let blobs = read_blobs(self.call(), ids)?;
        for (path, file, (mode, id)) in changed() {
            let content = blobs.get(id).ok_or_else(|| StrategyError::Damaged {
                what: format!("the merged version of '{path}' is missing"),
            })?;
            let new = NewFile {
                root: self.sandbox.checkout.as_path(),
                path: path.clone(),
                shown: path.clone(),
                old: file.seen,
                content: Some(content),
                executable: mode == "100755",
            };
            replace::stage(self.area, &mut release.files, &new)?;
        }
        Ok(())
    }

    /// Refuses what names commits of a submodule that the user does not have.
    fn check_modules(&self, release: &Release) -> Result<()> {
        let modules = &self.sandbox.modules;
        if modules.is_empty() {
            return Ok(());
        }
        let mut asked = String::new();
        for id in release.moves.iter().filter_map(|one| one.new.as_ref()) {
            asked.extend([id, "\n"]);
        }
        for id in self.known()?.lines() {
            asked.extend(["^", id, "\n"]);
        }
        let commits = self.call().args(["rev-list", "--stdin"]);
        let commits = commits.input(asked).run()?;
        let paths = modules.iter().map(|one| one.files().as_bytes());
        let mut pointers = trees::pointers(self.call(), commits, paths)?;
        for one in &release.index {
            let staged = one.new.values().filter(|(mode, _)| mode == SUBMODULE);
            let ids = pointers.entry(one.path.as_bytes().to_vec()).or_default();
            ids.extend(staged.map(|(_, id)| id.clone()));
        }
        modules::check_pointers(self.git, modules, &pointers)
    }

    /// What the user has, one per line.
    fn known(&self) -> Result<String> {
        let call = self.sandbox.repository.call(self.git);
        let said = call
            .args(["for-each-ref", "--format=%(objectname)"])
            .run()?;
        let mut known = String::from_utf8_lossy(&said).into_owned();
        let base = self.sandbox.head.commit.iter();
        known.extend(base.flat_map(|id| [id.as_str(), "\n"]));
        Ok(known)
    }

    /// Writes the objects that the user does not have as a pack, and checks them: an agent may have made them.
    fn pack(&self, release: &Release) -> Result<()> {
        let mut wanted = String::new();
        for one in &release.moves {
            wanted.extend(one.new.iter().flat_map(|id| [id.as_str(), "\n"]));
        }
        for one in &release.index {
            let files = one.new.values().filter(|(mode, _)| mode != SUBMODULE);
            wanted.extend(files.flat_map(|(_, id)| [id.as_str(), "\n"]));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.push_str("--not\n");
        wanted.push_str(&self.known()?);
        let base = self.area.path().join("pack");
        let call = self
            .call()
            .args(["pack-objects", "--revs", "--non-empty", "-q"]);
        let said = call.args([&base]).input(wanted).run()?;
        if said.is_empty() {
            return Ok(());
        }
        let pack = self.area.path().join(format!("pack-{}.pack", line(&said)));
        let check = self.area.path().join("check.idx");
        let call = self.call().args(["index-pack", "--fsck-objects", "-o"]);
        match call.args([&check, &pack]).run() {
            Err(StrategyError::Git { said, .. }) => {
                let why = format!("git finds its objects malformed: {said}");
                return Err(super::refused("commit this history", &why));
            }
            checked => checked.map(drop)?,
        }
        // Git takes an object by the name that it is stored under.
        let name = format!("pack-{}.idx", line(&said));
        let index = |name: &[u8]| read_all(self.area.file(name)?.0);
        if index(name.as_bytes())? != index(b"check.idx")? {
            return Err(super::refused("commit this history", FALSE_NAMES));
        }
        Ok(remove::remove(self.area, b"check.idx")?)
    }
}
