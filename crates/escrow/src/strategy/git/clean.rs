//! A clean tree of a commit as the base of a sandbox (`base: HEAD`, or any revision), with the ignored files that
//! `.worktreeinclude` names.
//!
//! git writes the tree, with the settings of the seed: line endings, encodings and the sparse patterns are those of the
//! checkout, and no filter, hook or other program runs. `.worktreeinclude` has the syntax of `.gitignore`, and selects among
//! the files that git ignores; git itself matches both. What of the checkout is not there is told.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::super::error::{Result, StrategyError};
use super::super::{Target, unsupported};
use super::command::{Git, GitCall};
use super::history::path_of;
use super::release::read_all;
use super::repository::{Head, Repository};
use super::seed;
use super::trees::parts;
use crate::fs::content::Reflinks;
use crate::fs::place::{CopyOptions, copy_leaf};
use crate::fs::walk::walk;
use crate::fs::{Cause, Dir, EntryHandle, Meta, remove};
use crate::model::text::escape;
use crate::model::{EntryKind, ResourcePath};

const INCLUDE: &str = ".worktreeinclude";

/// A longer file is no list that a person wrote.
const MOST: u64 = 1 << 20;

/// How many paths a warning names.
const NAMED: usize = 50;

/// The revision that a sandbox is to begin at; none for the files as they lie.
pub(super) fn wanted(target: &Target) -> Result<Option<&str>> {
    match target.options.get("base") {
        None => Ok(None),
        Some(Value::String(name)) if name == "checkout" => Ok(None),
        Some(Value::String(name)) if !name.is_empty() && !name.starts_with('-') => Ok(Some(name)),
        Some(other) => Err(unsupported(
            super::NAME,
            &format!("begin at {other}"),
            "`base` is `checkout`, or a revision such as `HEAD`",
        )),
    }
}

/// A clean tree in the making.
pub(super) struct CleanTree<'a> {
    pub(super) git: &'a Git,
    pub(super) repository: &'a Repository,
    pub(super) checkout: &'a Path,
    /// The seed, filled from the checkout as it is.
    pub(super) seed: &'a Dir,
    /// An empty directory.
    pub(super) tree: &'a Dir,
}

impl CleanTree<'_> {
    /// Fills the tree with that of a commit, and lets the seed begin there. Returns what is not there.
    pub(super) fn make(&self, head: &Head, commit: &str) -> Result<Vec<String>> {
        let checkout = Dir::open(self.checkout)?;
        let (chosen, mut warnings) = self.chosen(&checkout)?;
        warnings.extend(self.left_out(&chosen)?);
        self.begin_at(head, commit)?;
        let from = self.call(self.tree.path());
        from.args(["read-tree", "-m", "-u", commit]).run()?;
        for path in &chosen {
            if let Err(error) = self.bring(&checkout, &path_of(path)?) {
                let shown = escape(path);
                warnings.push(format!("'{shown}' cannot be brought along: {error}"));
            }
        }
        if self.dress(&checkout)? {
            // git compares the times of what it wrote.
            let args = ["update-index", "-q", "--refresh"];
            self.call(self.tree.path()).args(args).either()?;
        }
        Ok(warnings)
    }

    /// Gives everything the owner and mode that it has in the checkout, as far as git does not say otherwise: so a version
    /// that is released has them too. Whether anything changed.
    fn dress(&self, checkout: &Dir) -> Result<bool> {
        let (root, is_root) = (checkout.meta()?, rustix::process::geteuid().is_root());
        let changed = AtomicBool::new(false);
        let dress = |dir: &Dir, name: &[u8], handle: &EntryHandle<'_>, now: &Meta, model: &Meta| {
            let given = (now.uid, now.gid) != (model.uid, model.gid) && is_root;
            let plain = now.kind != EntryKind::Symlink && now.kind == model.kind;
            let mode = plain && now.mode != model.mode && (now.mode ^ model.mode) & 0o100 == 0;
            changed.fetch_or(given || mode, Ordering::Relaxed);
            let done = match given {
                true => handle.give_to(model),
                false => Ok(()),
            };
            let done = done.and_then(|()| match mode {
                true => handle.set_mode(model.mode & 0o777),
                false => Ok(()),
            });
            done.map_err(|errno| dir.error("set the metadata of", name, Cause::Os(errno)))
        };
        walk(self.tree, (), |visit| {
            let theirs = match checkout.dir(visit.path) {
                Err(error) if error.is_absent() || error.leaves() => None,
                found => Some(found?),
            };
            for entry in &visit.entries {
                let theirs = theirs
                    .as_ref()
                    .map(|dir| dir.stat(&entry.name))
                    .transpose()?;
                let model = theirs.flatten().unwrap_or(Meta {
                    kind: entry.meta.kind,
                    mode: entry.meta.mode,
                    ..root
                });
                let handle = visit.dir.handle(&entry.name)?;
                dress(visit.dir, &entry.name, &handle, &entry.meta, &model)?;
            }
            let dirs = visit
                .entries
                .into_iter()
                .filter(|entry| entry.meta.is_dir());
            Ok::<_, StrategyError>(dirs.map(|entry| (entry.name, ())).collect())
        })?;
        let own = EntryHandle::of(self.tree);
        dress(self.tree, b"", &own, &self.tree.meta()?, &root)?;
        Ok(changed.into_inner())
    }

    /// A call with the settings of the seed, about these working files.
    fn call(&self, files: &Path) -> GitCall<'_> {
        let own = self.seed.path().join("objects");
        let call = self.git.at(self.seed.path());
        call.objects(&[own, self.repository.objects()])
            .env("GIT_WORK_TREE", files)
    }

    /// The paths that git lists.
    fn listed(&self, how: &[OsString]) -> Result<BTreeSet<Vec<u8>>> {
        let args = ["ls-files", "-z", "--others", "--ignored"];
        let said = self.call(self.checkout).args(args).args(how).run()?;
        Ok(parts(&said).map(<[u8]>::to_vec).collect())
    }

    /// The ignored files that come along, and what is wrong with the list of them.
    fn chosen(&self, checkout: &Dir) -> Result<(BTreeSet<Vec<u8>>, Vec<String>)> {
        let none = |why: &str| (BTreeSet::new(), vec![format!("'{INCLUDE}' {why}")]);
        match checkout.stat(INCLUDE.as_bytes())? {
            None => return Ok((BTreeSet::new(), Vec::new())),
            Some(meta) if !meta.is_file() => return Ok(none("is no file, and is not read")),
            Some(meta) if meta.size > MOST => return Ok(none("is too long, and is not read")),
            Some(_) => {}
        }
        let mut text = Vec::new();
        let (file, _) = checkout.file(INCLUDE.as_bytes())?;
        if let Err(error) = file.take(MOST).read_to_end(&mut text) {
            return Ok(none(&format!("cannot be read: {error}")));
        }
        let mut from = OsString::from("--exclude-from=");
        from.push(self.checkout.join(INCLUDE));
        let ignored = self.listed(&["--exclude-standard".into()])?;
        let mut chosen = self.listed(&[from])?;
        // A repository among them is named as a directory, and stays where it is.
        chosen.retain(|path| ignored.contains(path) && !path.ends_with(b"/"));
        Ok((chosen, bad_patterns(&text)))
    }

    /// What of the checkout is not in the tree.
    fn left_out(&self, chosen: &BTreeSet<Vec<u8>>) -> Result<Vec<String>> {
        let call = self.call(self.checkout).line("status --porcelain -z");
        let call = call.line("--no-renames --ignored=traditional --untracked-files=normal");
        let said = call.line("--ignore-submodules=all").run()?;
        let ignored = match chosen.is_empty() {
            true => BTreeSet::new(),
            false => self.listed(&["--exclude-standard".into()])?,
        };
        // A directory of which everything comes along is there.
        let comes = |path: &[u8]| {
            if !path.ends_with(b"/") {
                return chosen.contains(path);
            }
            let after = ignored.range::<[u8], _>((Bound::Included(path), Bound::Unbounded));
            let mut within = after.take_while(|one| one.starts_with(path)).peekable();
            within.peek().is_some() && within.all(|one| chosen.contains(one))
        };
        let (mut changed, mut untracked, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for entry in said.split(|&byte| byte == 0).filter(|one| one.len() > 3) {
            let (state, path) = (&entry[..2], &entry[3..]);
            match state {
                b"??" => untracked.push(path),
                b"!!" if comes(path) => {}
                b"!!" => others.push(path),
                _ => changed.push(path),
            }
        }
        let told = [
            ("what is not committed", changed),
            ("what is not tracked", untracked),
            ("what git ignores", others),
        ];
        let told = told.into_iter().filter(|(_, paths)| !paths.is_empty());
        Ok(told.map(|(what, paths)| tell(what, &paths)).collect())
    }

    /// Lets the seed begin at a commit: the branch is there, and nothing is staged.
    fn begin_at(&self, head: &Head, commit: &str) -> Result<()> {
        for entry in self.seed.entries()? {
            if &*entry.name == b"index" || entry.name.starts_with(b"sharedindex.") {
                remove::remove(self.seed, &entry.name)?;
            }
        }
        let Some(branch) = &head.branch else {
            remove::remove(self.seed, b"HEAD")?;
            return seed::write(self.seed, "HEAD", format!("{commit}\n").as_bytes());
        };
        let packed = read_all(self.seed.file(b"packed-refs")?.0)?;
        let own = format!(" {branch}").into_bytes();
        let lines = packed.split_inclusive(|&byte| byte == b'\n').map(|line| {
            match line
                .strip_suffix(b"\n")
                .is_some_and(|line| line.ends_with(&own))
            {
                true => format!("{commit} {branch}\n").into_bytes(),
                false => line.to_vec(),
            }
        });
        let lines: Vec<Vec<u8>> = lines.collect();
        remove::remove(self.seed, b"packed-refs")?;
        seed::write(self.seed, "packed-refs", &lines.concat())
    }

    /// Brings a file of the checkout, or a link, with everything it has.
    fn bring(&self, checkout: &Dir, path: &ResourcePath) -> Result<()> {
        let (from, name) = checkout.parent(path)?;
        let Some(meta) = from.stat(name)? else {
            return Ok(());
        };
        let mut to = self.tree.again();
        if let Some((parent, _)) = path.split() {
            for part in parent.parts() {
                if to.stat(part)?.is_none() {
                    to.make_dir(part, 0o755)?;
                }
                to = to.subdir(part)?;
            }
        }
        let options = CopyOptions {
            lossy: true,
            ..CopyOptions::LIVE
        };
        copy_leaf(
            (&from, name),
            (&to, name),
            meta.kind,
            &Reflinks::wanted(),
            options,
        )?;
        Ok(())
    }
}

fn tell(what: &str, paths: &[&[u8]]) -> String {
    let named = paths.iter().take(NAMED);
    let mut names: Vec<String> = named.map(|path| format!("'{}'", escape(path))).collect();
    if paths.len() > NAMED {
        names.push(format!("and {} more", paths.len() - NAMED));
    }
    format!("{what} is not in the sandbox: {}", names.join(", "))
}

/// Lines that match nothing because git cannot read them.
fn bad_patterns(text: &[u8]) -> Vec<String> {
    let lines = text.split(|&byte| byte == b'\n').enumerate();
    let bad = lines.filter(|(_, line)| !line.starts_with(b"#") && is_bad(line));
    let tell = |(number, line): (usize, &[u8])| {
        let (number, line) = (number + 1, escape(line));
        format!("'{INCLUDE}', line {number}: '{line}' is no pattern, and selects nothing")
    };
    bad.map(tell).collect()
}

/// Whether a pattern ends within a bracket, or in a backslash.
fn is_bad(line: &[u8]) -> bool {
    let mut bytes = line.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            0 => return true,
            b'\\' if bytes.next().is_none() => return true,
            b'[' => {
                // A bracket that comes first in it stands for itself.
                bytes.next_if(|next| matches!(next, b'!' | b'^'));
                bytes.next_if(|next| **next == b']');
                if !bytes.by_ref().any(|byte| *byte == b']') {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}
