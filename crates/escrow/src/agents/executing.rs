//! Paths of the home directory that programs execute or obey: a file written there for real runs later, outside of every sandbox.

use std::path::{Path, PathBuf};

use super::paths::{AgentPaths, without_links};

/// What of a home directory programs execute or obey that are no agents.
const EXECUTING: &[(&str, &str)] = &[
    (".bashrc", "a shell executes"),
    (".bash_profile", "a shell executes"),
    (".bash_login", "a shell executes"),
    (".bash_logout", "a shell executes"),
    (".bash_aliases", "a shell executes"),
    (".profile", "a shell executes"),
    (".zshrc", "a shell executes"),
    (".zshenv", "a shell executes"),
    (".zprofile", "a shell executes"),
    (".zlogin", "a shell executes"),
    (".kshrc", "a shell executes"),
    (".config/fish", "a shell executes"),
    (".xprofile", "the session executes"),
    (".xsession", "the session executes"),
    (".ssh", "ssh obeys"),
    (".gitconfig", "git executes or obeys"),
    (".config/git", "git executes or obeys"),
    (".config/autostart", "the session executes"),
    (".config/systemd/user", "systemd executes"),
    (".local/share/systemd/user", "systemd executes"),
];

/// Every such path of a home directory, and what executes it: agents among others.
pub(crate) fn executing<'a>(
    home: &Path,
    agents: impl Iterator<Item = &'a AgentPaths>,
) -> Vec<(PathBuf, String)> {
    let mut all: Vec<(PathBuf, String)> = Vec::new();
    for paths in agents {
        let preset = &paths.preset;
        let merged = preset.merged.iter().map(|one| &one.file);
        for text in preset.executes.iter().chain(merged) {
            // A pattern of names means files of that directory.
            let text = match text.split_once('*') {
                Some((start, _)) => start.rsplit_once('/').map_or("", |(above, _)| above),
                None => text,
            };
            if let Some(entry) = paths.entry(text) {
                all.push((entry.at, format!("{} executes or obeys", preset.title)));
            }
        }
    }
    let own = EXECUTING.iter().map(|(path, what)| {
        let at = home.join(path);
        (without_links(&at), (*what).to_owned())
    });
    all.extend(own);
    all
}
