//! Files of resource types that belong to a configuration: `resource_types: [types/*.yaml]`.
//!
//! Their contents are put behind the text of the configuration when it is read, each after a line that names the file. So one text is
//! hashed, shown, trusted and kept with a plan, and nothing has to be read again to understand it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;

use super::load::{MOST, unreadable};
use super::parse::KeyPositions;
use super::{ConfigError, ConfigOrigin, TypeItem, parse};
use crate::fs::Dir;
use crate::fs::owned::{self, AllowedWriters, ConfigFileState};
use crate::model::text::escape;

/// How the line begins that names a file. No configuration may have such a line of its own.
const MARK: &str = "#@types ";

/// How many files a configuration may have.
const FILES: usize = 200;

/// The text of a configuration with the files that belong to it, and why others may have changed one of these.
pub(super) struct WholeText {
    pub(super) text: Vec<u8>,
    pub(super) shared: Option<String>,
}

/// Reads the files that the text of `file` names.
pub(super) fn gather(
    text: Vec<u8>,
    file: &Path,
    origin: ConfigOrigin,
) -> Result<WholeText, ConfigError> {
    let mut whole = WholeText { text, shared: None };
    if let Some(line) = marked(&whole.text) {
        let (_, places) = parse::read(&whole.text[..line], file)?;
        let what = format!("a line cannot begin with '{MARK}'");
        return Err(places.fault("", what));
    }
    // What makes no sense is reported when it is parsed.
    let Ok((config, places)) = parse::read(&whole.text, file) else {
        return Ok(whole);
    };
    let directory = file.parent().unwrap_or(Path::new(""));
    let mut known: Vec<PathBuf> = Vec::new();
    for (number, item) in config.resource_types.iter().enumerate() {
        let TypeItem::Files(pattern) = item else {
            continue;
        };
        let fault = |what: String| places.fault(&format!("resource_types[{number}]"), what);
        for name in matching(directory, pattern).map_err(fault)? {
            if known.contains(&name) {
                continue;
            }
            if known.len() == FILES {
                return Err(fault(format!("there are more than {FILES} files of types")));
            }
            let content = whole.read(&directory.join(&name), origin, &places, number)?;
            let shown = name.to_str().ok_or_else(|| {
                let name = escape(name.as_os_str().as_encoded_bytes());
                fault(format!("the name '{name}' is not text"))
            })?;
            let line = format!("{MARK}{} {shown}\n", content.len());
            if whole.text.last().is_some_and(|last| *last != b'\n') {
                whole.text.push(b'\n');
            }
            whole.text.extend(line.as_bytes());
            whole.text.extend(content);
            known.push(name);
        }
    }
    Ok(whole)
}

impl WholeText {
    fn read(
        &mut self,
        path: &Path,
        origin: ConfigOrigin,
        places: &KeyPositions,
        number: usize,
    ) -> Result<Vec<u8>, ConfigError> {
        let fault = |what: String| {
            let file = escape(path.as_os_str().as_encoded_bytes());
            let at = format!("resource_types[{number}]");
            Err(places.fault(&at, format!("'{file}' cannot be used: {what}")))
        };
        let state = match (origin, path.parent(), path.file_name()) {
            (ConfigOrigin::Found, Some(directory), Some(name)) => {
                owned::find(directory, &name.to_string_lossy(), MOST)
            }
            (ConfigOrigin::System, ..) => owned::read(path, AllowedWriters::Root, MOST),
            (ConfigOrigin::User, ..) => owned::read(path, AllowedWriters::User, MOST),
            _ => owned::read_named(path, MOST).map(ConfigFileState::Text),
        };
        match state.map_err(unreadable)? {
            ConfigFileState::Text(text) => Ok(text),
            ConfigFileState::Shared(text, why) => {
                self.shared.get_or_insert(why);
                Ok(text)
            }
            ConfigFileState::PassedOver(why) => fault(why),
            ConfigFileState::Absent => fault("there is no such file".to_owned()),
        }
    }
}

/// The files that a pattern means, in the order of their names.
fn matching(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let path = Path::new(pattern);
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let (parent, last) = match (
        path.parent(),
        path.file_name().and_then(|last| last.to_str()),
    ) {
        (Some(parent), Some(last)) if path.components().all(inside) => (parent, last),
        _ => {
            return Err(format!(
                "'{pattern}' is no path in the directory of the file"
            ));
        }
    };
    let is_plain = |text: &str| !text.contains(['*', '?', '[', '{']);
    if !parent.to_str().is_some_and(is_plain) {
        return Err("only the last part of a path may have wildcards".to_owned());
    }
    if is_plain(last) {
        return Ok(vec![path.to_owned()]);
    }
    let glob = GlobBuilder::new(last).literal_separator(true).build();
    let glob = glob.map_err(|error| error.to_string())?.compile_matcher();
    let names = Dir::open(&directory.join(parent)).and_then(|dir| dir.entries());
    let names = names.map_err(|error| format!("{error}: {}", error.cause))?;
    let mut found: Vec<PathBuf> = (names.into_iter())
        .map(|entry| parent.join(OsStr::from_bytes(&entry.name)))
        .filter(|path| path.file_name().is_some_and(|name| glob.is_match(name)))
        .collect();
    found.sort();
    match found.is_empty() {
        true => Err(format!("no file is named '{pattern}'")),
        false => Ok(found),
    }
}

/// Where the first line that names a file begins.
fn marked(text: &[u8]) -> Option<usize> {
    let mark = MARK.as_bytes();
    let mut starts = std::iter::once(0).chain(
        (text.iter().enumerate())
            .filter(|(_, byte)| **byte == b'\n')
            .map(|(at, _)| at + 1),
    );
    starts.find(|at| text[*at..].starts_with(mark))
}

/// The text of a configuration itself, and the files behind it by their names.
pub(super) fn split(text: &[u8]) -> (&[u8], Vec<(&str, &[u8])>) {
    let Some(end) = marked(text) else {
        return (text, Vec::new());
    };
    let mut files = Vec::new();
    let mut rest = &text[end..];
    while let Some(line) = rest.strip_prefix(MARK.as_bytes()) {
        let end = line.iter().position(|byte| *byte == b'\n');
        let end = end.unwrap_or(line.len());
        let said = std::str::from_utf8(&line[..end]).unwrap_or_default();
        let (length, name) = said.split_once(' ').unwrap_or(("", said));
        let content = line.get(end + 1..).unwrap_or_default();
        let length = length.parse().unwrap_or(0).min(content.len());
        files.push((name, &content[..length]));
        rest = &content[length..];
        rest = rest.strip_prefix(b"\n").unwrap_or(rest);
    }
    (&text[..end], files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_as_it_was_put_together_whatever_it_says() {
        let text = b"a: b\n#@types 9 t/x\n#@types 1\n#@types 2 y\n{}";
        let (main, files) = split(text);
        assert_eq!(main, b"a: b\n");
        assert_eq!(files, [("t/x", &b"#@types 1"[..]), ("y", b"{}")]);
        for broken in [
            "#@types",
            "#@types \n",
            "#@types 99 x\n{}",
            "#@types x\n#@types -1 y",
        ] {
            split(broken.as_bytes());
        }
    }
}
