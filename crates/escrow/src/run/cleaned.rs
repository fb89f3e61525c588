//! Files of the home directory that commands need and that hold a secret now and then: start files of shells, and git's
//! configuration. Commands see them without those lines, since a variable that was withheld would come back by them.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::looks;
use crate::fs::{Dir, state_dir};
use crate::model::text::Location;

/// Where such files are, in the home directory.
const FILES: &[&str] = &[
    ".bash_aliases",
    ".bash_login",
    ".bash_profile",
    ".bashrc",
    ".config/fish/config.fish",
    ".config/git/config",
    ".gitconfig",
    ".gitconfig.local",
    ".kshrc",
    ".profile",
    ".zlogin",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// Bytes of the largest file that is read.
const MOST: u64 = 256 << 10;

/// Words before a variable that a shell sets.
const SETS: [&str; 8] = [
    "export ",
    "declare -x ",
    "typeset -x ",
    "set -gx ",
    "set -Ux ",
    "set -x ",
    "setenv ",
    "local ",
];

/// How names end of variables that say where something is.
const PLACES: [&str; 6] = ["SOCK", "DIR", "FILE", "PATH", "HOME", "ASKPASS"];

/// Those of a home directory that are there and seen, by their paths in it, and what of each can be shown.
pub(crate) fn in_home(home: &Path, seen: impl Fn(&str) -> bool) -> Vec<(Location, String)> {
    let names = Dir::open(home).and_then(|home| home.names());
    let names: HashSet<Box<[u8]>> = names.unwrap_or_default().into_iter().collect();
    let there = |inner: &str| {
        let first = inner.split('/').next().unwrap_or_default();
        names.contains(first.as_bytes())
    };
    let files = FILES.iter().filter(|inner| there(inner) && seen(inner));
    files.filter_map(|inner| clean(home, inner)).collect()
}

/// What of a file of the home directory can be shown, and where the file is; `None` where that is all of it.
fn clean(home: &Path, inner: &str) -> Option<(Location, String)> {
    let open = |at: &Path| {
        let name = at.file_name()?.as_bytes();
        Dir::open(at.parent()?).ok()?.file(name).ok()
    };
    let mut at = home.join(inner);
    let (file, meta) = open(&at).or_else(|| {
        // As people have it who keep such files elsewhere.
        at = state_dir::canonical_any(&at).ok()?;
        open(&at)
    })?;
    let mut text = String::new();
    let read = file.take(MOST).read_to_string(&mut text);
    let whole = read.is_ok() && meta.size <= MOST;
    let text = cleaned(inner, &text).filter(|_| whole)?;
    Some((Location::from(at.strip_prefix(home).ok()?), text))
}

/// What of a file can be shown; `None` where that is all of it.
fn cleaned(path: &str, text: &str) -> Option<String> {
    let git = path.contains("git");
    let (mut clean, mut dropped, mut section) = (String::new(), false, false);
    for line in text.split_inclusive('\n') {
        let secret = match git {
            true => {
                let head = line.trim_start().starts_with('[');
                // A section whose name is a URL with a secret goes as a whole.
                section = (section && !head) || (head && looks::holds_secret(line));
                section || looks::holds_secret(line)
            }
            false => sets_secret(line.trim()),
        };
        dropped |= secret;
        match (secret, git) {
            (false, _) => clean.push_str(line),
            (true, true) => {}
            // What holds only this line would be no command without it.
            (true, false) => clean.push_str(": # not shown\n"),
        }
    }
    dropped.then_some(clean)
}

/// Whether a line of a shell sets one variable to a secret, and does nothing else.
fn sets_secret(line: &str) -> bool {
    let rest = SETS
        .iter()
        .find_map(|word| line.strip_prefix(word))
        .unwrap_or(line)
        .trim_start();
    let name = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let Some((name, value)) = name
        .map(|end| rest.split_at(end))
        .filter(|(name, _)| !name.is_empty())
    else {
        return false;
    };
    let set = value
        .strip_prefix('=')
        .or_else(|| value.strip_prefix(' ').filter(|_| rest.len() < line.len()));
    let Some(value) = set.map(|value| value.trim_matches(['"', '\'', ' '])) else {
        return false;
    };
    let reference = value.starts_with(['$', '`', '(', '<']) || value.is_empty();
    let place = PLACES.iter().any(|end| name.to_uppercase().ends_with(end));
    let goes_on = line.ends_with('\\') || line.contains("<<");
    !reference
        && !goes_on
        && match place {
            true => looks::holds_secret(value),
            false => looks::is_secret(name.as_bytes(), value.as_bytes()),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_set_a_secret_go_and_the_file_still_parses() {
        let text = "# mine\nexport GITHUB_TOKEN=hunter2\nif true; then\n  export DB_URL=\"postgres://ann:hunter2@db/x\"\nfi\n\
            export EDITOR=vi\nexport KEY_FROM=$(pass show token)\nexport SSH_AUTH_SOCK=/run/agent\nAPI_KEY='hunter2'\n\
            alias ll='ls -l'\nPATH=$PATH:~/bin\n";
        let clean = cleaned(".bashrc", text).expect("something goes");
        assert!(!clean.contains("hunter2"), "{clean}");
        assert_eq!(clean.lines().count(), text.lines().count());
        for kept in [
            "# mine",
            "export EDITOR=vi",
            "SSH_AUTH_SOCK",
            "$(pass",
            "alias ll",
            "PATH=$PATH",
        ] {
            assert!(clean.contains(kept), "{kept}: {clean}");
        }
        assert_eq!(cleaned(".profile", "export A=b\n. ~/.bashrc\n"), None);
        let fish = cleaned(
            ".config/fish/config.fish",
            "set -gx NPM_TOKEN hunter2\nset -gx EDITOR vi\n",
        );
        assert_eq!(fish.as_deref(), Some(": # not shown\nset -gx EDITOR vi\n"));
    }

    #[test]
    fn gits_configuration_goes_without_what_logs_in() {
        let text = "[user]\n\tname = Ann\n\temail = ann@example.org\n\tsigningkey = ABCD\n[credential]\n\thelper = store\n\
            [url \"https://ann:hunter2@example.org/\"]\n\tinsteadOf = https://example.org/\n[http]\n\
            \textraheader = AUTHORIZATION: basic aHVudGVyMjpodW50ZXIy\n\tproxy = http://proxy:3128\n[github]\n\ttoken = hunter2\n";
        let clean = cleaned(".gitconfig", text).expect("something goes");
        let expected = "[user]\n\tname = Ann\n\temail = ann@example.org\n\tsigningkey = ABCD\n[credential]\n\thelper = store\n\
            [http]\n\tproxy = http://proxy:3128\n[github]\n";
        assert_eq!(clean, expected);
    }
}
