//! The house keeps itself: what a reviewer would otherwise have to look for.
//!
//! Each check is a function from text to a list of faults. One test runs it over the repository,
//! another feeds it a bad sample and sees that it complains.
#![allow(
    clippy::disallowed_methods,
    reason = "it reads the repository's own files, not a resource"
)]

mod files;
mod imports;
mod rules;
mod rust;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Every text file of the repository by its path from the root, without what is built or git's.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(root().join(&directory))
            .unwrap_or_else(|error| panic!("{directory}: {error}"));
        for entry in entries {
            let entry = entry.unwrap_or_else(|error| panic!("{directory}: {error}"));
            let name = entry
                .file_name()
                .into_string()
                .expect("names in the repository are plain");
            let path = format!("{directory}{name}");
            let kind = entry
                .file_type()
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            if matches!(path.as_str(), ".git" | "target") {
                continue;
            } else if kind.is_dir() {
                directories.push(format!("{path}/"));
            } else if kind.is_file() {
                let bytes =
                    fs::read(root().join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
                if let Ok(text) = String::from_utf8(bytes)
                    && !text.contains('\0')
                {
                    found.push((path, text));
                }
            }
        }
    }
    found.sort();
    found
}

/// The Rust files below `under`, by their path from there.
fn sources(under: &str) -> Vec<(String, String)> {
    let rust = files()
        .into_iter()
        .filter(|(file, _)| file.ends_with(".rs"));
    rust.filter_map(|(file, text)| Some((file.strip_prefix(under)?.to_owned(), text)))
        .collect()
}

fn none(faults: Vec<String>) {
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
