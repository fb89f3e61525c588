//! Writes a first configuration for a directory, from what is found there.

use std::path::Path;

use crate::fs::atomic_file::AtomicFile;
use crate::fs::state_dir;
use crate::fs::{self, Dir};
use crate::model::plan;
use crate::resource::{HandlerError, detect};

/// What a configuration is called.
pub const FILE_NAME: &str = "escrow.yaml";

/// A configuration that is not written yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialConfig {
    /// Its text.
    pub text: String,
    /// The resource it names.
    pub name: String,
    /// The type of the resource.
    pub kind: &'static str,
    /// Where it is, from the directory of the configuration.
    pub at: &'static str,
}

/// A configuration for `directory`, with the directory itself as a resource.
pub fn begin(directory: &Path) -> Result<InitialConfig, HandlerError> {
    let directory = Dir::open(&state_dir::canonical(directory)?)?;
    let kind = detect(directory.path())?;
    let name = plan::name_from(directory.path().file_name().unwrap_or_default());
    let key = match is_plain(&name) {
        true => name.clone(),
        false => format!("\"{name}\""),
    };
    let text = format!(
        "# What Escrow may work on here, and how. `escrow type validate {FILE_NAME}` checks it.\n\
         sandbox:\n  strategy: auto  # how sandboxes are made; `escrow doctor` says what works here\n\
         resources:\n  {key}:\n    type: {kind}\n    at: .\n"
    );
    Ok(InitialConfig {
        text,
        name,
        kind,
        at: ".",
    })
}

/// Writes the configuration of `directory`; whether it did, or something stands there already.
pub fn write_new(directory: &Path, text: &str, force: bool) -> fs::Result<bool> {
    let directory = Dir::open(&state_dir::canonical(directory)?)?;
    let name = FILE_NAME.as_bytes();
    let there = directory.stat(name)?.is_some();
    if there && !force {
        return Ok(false);
    }
    let draft = AtomicFile {
        stage: &directory,
        to: &directory,
        name,
        fresh: !there,
        synced: true,
    };
    draft.write(
        |file| std::io::Write::write_all(file, text.as_bytes()),
        |_| Ok(()),
    )?;
    Ok(true)
}

/// Whether YAML takes a name for a text without quotes.
fn is_plain(name: &str) -> bool {
    let word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let lower = name.to_ascii_lowercase();
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.contains(&lower.as_str())
}
