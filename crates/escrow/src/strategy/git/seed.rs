//! The private git directory of a new sandbox: own references, index and settings; the objects are the user's.
//!
//! It is written once and never changed: the sandbox of the git directory lies over it. So it is also what git is
//! asked with from outside, and no setting that an agent made is ever followed there.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::super::error::{Result, StrategyError};
use super::command::Git;
use super::repository::{Head, Repository, subdir};
use crate::fs::content::{self, Reflinks};
use crate::fs::{Cause, Dir};
use rustix::io::Errno;

/// Where the user's objects are seen, in the git directory.
pub(super) const BORROWED: &str = "escrow/objects";

/// Sections and keys that say how files are stored and shown, and start no program.
const KEPT: [&str; 25] = [
    "core.filemode",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.symlinks",
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.quotepath",
    "core.abbrev",
    "core.bigfilethreshold",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.protecthfs",
    "core.protectntfs",
    "core.commentchar",
    "core.whitespace",
    "index.version",
    "index.sparse",
    "user.name",
    "user.email",
    "merge.conflictstyle",
    "diff.algorithm",
    "diff.renames",
    "extensions.objectformat",
    "extensions.partialclone",
];

/// The same of each branch, remote and submodule.
const KEPT_OF_EACH: [(&str, &[&str]); 3] = [
    ("submodule.", &["url", "active", "branch"]),
    ("branch.", &["remote", "merge", "rebase", "description"]),
    (
        "remote.",
        &["url", "pushurl", "fetch", "promisor", "partialclonefilter"],
    ),
];

/// What is set in it, whatever the user's settings say.
const SET: &str = "\
[core]
\tbare = false
\tlogAllRefUpdates = true
\tfsmonitor = false
\tuntrackedCache = false
[commit]
\tgpgSign = false
[tag]
\tgpgSign = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
";

/// Files of `info` that say which files git looks at.
const INFO: &[&str] = &["exclude", "attributes"];

/// The same of each worktree.
const OWN_INFO: &[&str] = &["sparse-checkout"];

/// Fills an empty directory.
pub(super) fn fill(git: &Git, repository: &Repository, head: &Head, to: &Dir) -> Result<()> {
    let (from, shared) = (repository.dir()?, Dir::open(repository.common())?);
    for name in ["hooks", "info", "objects", "refs", "escrow"] {
        to.make_dir(name.as_bytes(), 0o755)?;
    }
    let (objects, refs) = (to.subdir(b"objects")?, to.subdir(b"refs")?);
    for (dir, name) in [
        (&objects, "info"),
        (&objects, "pack"),
        (&refs, "heads"),
        (&refs, "tags"),
    ] {
        dir.make_dir(name.as_bytes(), 0o755)?;
    }
    to.subdir(b"escrow")?.make_dir(b"objects", 0o755)?;
    let borrowed = alternates(repository.git_dir.as_path());
    write(&objects.subdir(b"info")?, "alternates", &borrowed)?;
    let at = match (&head.branch, &head.commit) {
        (Some(branch), _) => format!("ref: {branch}\n"),
        (None, Some(commit)) => format!("{commit}\n"),
        (None, None) => {
            return Err(super::refused(
                "keep a private history here",
                "its HEAD is nowhere",
            ));
        }
    };
    write(to, "HEAD", at.as_bytes())?;
    write(to, "packed-refs", &repository.packed_refs(git)?)?;
    write(to, "config", &settings(&repository.settings(git)?))?;
    let kept = to.subdir(b"info")?;
    for (dir, names) in [(&from, OWN_INFO), (&shared, INFO)] {
        if let Some(info) = subdir(dir, b"info")? {
            for name in names {
                copy(&info, &kept, name.as_bytes())?;
            }
        }
    }
    copy(&from, to, b"index")?;
    copy(&shared, to, b"shallow")?;
    // A `git gc` in the main checkout, where that is seen too, removes a linked worktree that names no checkout.
    copy(&from, to, b"gitdir")?;
    for entry in from.entries()? {
        if entry.name.starts_with(b"sharedindex.") {
            copy(&from, to, &entry.name)?;
        }
    }
    Ok(())
}

/// Where the objects of a git directory at `git_dir` are too. The absolute path is for libraries that read the file as if it
/// counted from their current directory (GitPython); the other one holds wherever the directory is seen.
fn alternates(git_dir: &Path) -> Vec<u8> {
    let relative = format!("../{BORROWED}\n").into_bytes();
    let absolute = git_dir.join(BORROWED);
    let absolute = absolute.as_os_str().as_bytes();
    match absolute.contains(&b'\n') {
        true => relative,
        false => [absolute, b"\n", &relative].concat(),
    }
}

/// A git directory that holds the settings of another one, and nothing else.
pub(super) fn settings_only(from: &Dir, area: &Dir, name: &str) -> Result<()> {
    area.make_dir(name.as_bytes(), 0o700)?;
    let to = area.subdir(name.as_bytes())?;
    for name in ["objects", "refs"] {
        to.make_dir(name.as_bytes(), 0o700)?;
    }
    write(&to, "HEAD", b"ref: refs/heads/none\n")?;
    copy(from, &to, b"config").map(drop)
}

/// The settings file.
fn settings(user: &[(String, String)]) -> Vec<u8> {
    // Extensions count in a repository that says so.
    let extended = |(key, _): &(String, String)| key.starts_with("extensions.") && is_kept(key);
    let mut text = format!(
        "[core]\n\trepositoryFormatVersion = {}\n{SET}",
        u8::from(user.iter().any(extended))
    );
    for (key, value) in user.iter().filter(|(key, _)| is_kept(key)) {
        let (Some((section, _)), Some((rest, name))) = (key.split_once('.'), key.rsplit_once('.'))
        else {
            continue;
        };
        match rest
            .strip_prefix(section)
            .and_then(|rest| rest.strip_prefix('.'))
        {
            Some(of) => text.push_str(&format!("[{section} {}]\n", quoted(of))),
            None => text.push_str(&format!("[{section}]\n")),
        }
        text.push_str(&format!("\t{name} = {}\n", quoted(value)));
    }
    text.into_bytes()
}

/// What of the settings would change what git makes of files, and is not there inside.
pub(super) fn left_out(user: &[(String, String)]) -> Vec<String> {
    let filter = |(key, _): &(String, String)| {
        let rest = key.strip_prefix("filter.")?;
        rest.rsplit_once('.').map(|(name, _)| name.to_owned())
    };
    let names: BTreeSet<String> = user.iter().filter_map(filter).collect();
    let one = |name| {
        format!(
            "the filter '{name}' of the repository is a program, which git does not run inside: files that it would change are \
             kept as they lie, and staged as they are"
        )
    };
    names.into_iter().map(one).collect()
}

fn is_kept(key: &str) -> bool {
    let of_each = |(section, names): &(&str, &[&str])| {
        key.starts_with(section)
            && key
                .rsplit('.')
                .next()
                .is_some_and(|name| names.contains(&name))
    };
    KEPT.contains(&key) || KEPT_OF_EACH.iter().any(of_each)
}

fn quoted(value: &str) -> String {
    let mut quoted = String::from('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

pub(super) fn write(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    let mut file = dir.create(name.as_bytes(), 0o644)?;
    let written = file.write_all(bytes);
    written.map_err(|error| io_error(dir, "write", name.as_bytes(), &error))
}

/// What the standard library says of a file, as an error of it.
pub(super) fn io_error(
    dir: &Dir,
    action: &'static str,
    name: &[u8],
    error: &std::io::Error,
) -> StrategyError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    dir.error(action, name, Cause::Os(errno)).into()
}

/// Copies a file, if it is there.
pub(super) fn copy(from: &Dir, to: &Dir, name: &[u8]) -> Result<bool> {
    let (file, meta) = match from.file(name) {
        Err(error) if error.is_absent() => return Ok(false),
        found => found?,
    };
    let new = to.create(name, 0o644)?;
    let copied = content::transfer(&file, &new, &meta, &Reflinks::wanted());
    copied.map_err(|error| io_error(to, "write", name, &error))?;
    Ok(true)
}
