//! What a checkout ignores.

use std::collections::BTreeSet;
use std::path::Path;

use super::command::Git;
use super::repository::Repository;
use crate::model::ResourcePath;

/// Which of these directories and files the checkout at `root` ignores, by the rules in it; none where git cannot tell.
pub(crate) fn ignored_paths(
    root: &Path,
    dirs: &BTreeSet<ResourcePath>,
    files: &BTreeSet<ResourcePath>,
) -> BTreeSet<ResourcePath> {
    // That they are directories is said by the slash: in the original they may be missing.
    let dirs = dirs.iter().map(|dir| [dir.as_bytes(), b"/\0"].concat());
    let files = files.iter().map(|file| [file.as_bytes(), b"\0"].concat());
    ignored(root, dirs.chain(files).collect())
        .into_iter()
        .collect()
}

/// The same for files alone.
pub(crate) fn ignored_files(root: &Path, files: &[&ResourcePath]) -> BTreeSet<ResourcePath> {
    let names = files.iter().map(|file| [file.as_bytes(), b"\0"].concat());
    ignored(root, names.collect()).into_iter().collect()
}

fn ignored(root: &Path, names: Vec<Vec<u8>>) -> Vec<ResourcePath> {
    let ask = || {
        let git = Git::find().ok()?;
        let repository = Repository::there(&git, root).ok()??;
        let call = repository.call(&git).args([Path::new("-C"), root]);
        let call = call.args(["--work-tree=.", "check-ignore", "-z", "--stdin"]);
        call.input(names.concat()).ask().ok()?
    };
    let said = ask().unwrap_or_default();
    let names = said
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let paths = names.map(|name| name.strip_suffix(b"/").unwrap_or(name));
    paths
        .filter_map(|name| ResourcePath::parse(name).ok())
        .collect()
}
