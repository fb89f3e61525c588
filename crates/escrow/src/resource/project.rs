//! The project that a directory lies in, found by the files that projects have at their top.

use std::path::{Path, PathBuf};

use crate::fs::Dir;

/// What a checkout or a configured project has at its top.
const TOPS: [&str; 4] = [".git", ".jj", ".hg", "escrow.yaml"];

/// What a package has at its top, where no version control says where the project begins.
const PACKAGES: [&str; 6] = [
    "Cargo.toml",
    "package.json",
    "pyproject.toml",
    "go.mod",
    "pom.xml",
    "build.gradle",
];

/// The top of the project that `directory`, a canonical path, lies in: the nearest checkout or configured directory, else
/// the nearest package, else `directory` itself. Never the user's home directory or one above it, the root directory,
/// or a directory of another user than `directory` is of.
pub(crate) fn project_root(directory: &Path, user_home: Option<&Path>) -> PathBuf {
    let owner = |path: &Path| Dir::look(path).ok().map(|meta| meta.uid);
    let own = owner(directory);
    let within = |path: &&Path| {
        let is_above = user_home.is_some_and(|home| home.starts_with(path));
        !is_above && path.parent().is_some() && owner(path) == own
    };
    let candidates: Vec<&Path> = directory.ancestors().take_while(within).collect();
    let has = |path: &Path, names: &[&str]| names.iter().any(|name| there(path, name));
    let nearest = |names: &[&str]| candidates.iter().find(|path| has(path, names));
    let root = nearest(&TOPS).or_else(|| nearest(&PACKAGES));
    root.map_or(directory, |root| root).to_owned()
}

fn there(path: &Path, name: &str) -> bool {
    Dir::look(&path.join(name)).is_ok()
}
