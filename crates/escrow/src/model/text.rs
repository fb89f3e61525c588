//! Bytes as text that can be read safely and turned back exactly.
//!
//! Names are bytes: they may hold newlines, terminal codes, right-to-left marks or no UTF-8 at
//! all. [`escape`] gives one line of harmless text; [`unescape`] gives the same bytes back.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Characters that change what a terminal shows without being visible themselves.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Characters that a reader takes for a space, or does not see: two texts that differ in them look alike.
fn is_invisible(c: char) -> bool {
    (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{206a}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn is_plain(c: char) -> bool {
    !is_hostile(c) && !is_invisible(c)
}

/// The bytes as one line of text; what is not plain becomes `\xNN`, a backslash `\\`.
pub fn escape(bytes: &[u8]) -> String {
    written(bytes, is_hostile, "\\\\")
}

/// The same for contents that are compared by eye: names of files keep their no-break spaces.
pub fn escape_text(bytes: &[u8]) -> String {
    written(bytes, |c| !is_plain(c), "\\\\")
}

/// JSON on one line, which is the same document; what is not plain in a text of it becomes `\uNNNN`.
pub(crate) fn escape_json(json: &serde_json::Value) -> String {
    escape_units(&json.to_string(), is_plain)
}

/// The same text with `\uNNNN` for each character that is not plain.
fn escape_units(json: &str, is_plain: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match is_plain(c) {
            true => text.push(c),
            false => {
                let units = c.encode_utf16(&mut [0; 2]).to_vec();
                text.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

/// Text for a terminal: tabs and line ends stay, everything that could fool a reader becomes
/// `\\xNN`. For content that is shown, not for names: it does not come back.
pub fn harmless(bytes: &[u8]) -> String {
    let hostile = |c| is_deceptive(c) && !matches!(c, '\n' | '\t');
    written(bytes, hostile, "\\")
}

/// JSON that was written, for a terminal: the same document, in which what could fool a reader is `\uNNNN`. Line ends are between its
/// texts only.
pub fn escape_document(json: &str) -> String {
    escape_units(json, |c| c == '\n' || !is_deceptive(c))
}

/// What changes a line that is shown, or is not seen in it: a soft hyphen as well.
fn is_deceptive(c: char) -> bool {
    is_hostile(c) || c == '\u{ad}'
}

/// Words that another process chose, as a part of one line: no tab and no line end stays either, so that no
/// process's words look like another line. It does not come back.
pub fn one_line(text: &str) -> String {
    written(text.as_bytes(), |c| !is_plain(c), "\\")
}

/// Bytes as text: what is hostile, and what is no UTF-8, as `\xNN`.
fn written(bytes: &[u8], hostile: impl Fn(char) -> bool, backslash: &str) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str(backslash),
                c if hostile(c) => push_hex(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => text.push(c),
            }
        }
        push_hex(&mut text, chunk.invalid());
    }
    text
}

/// The bytes behind an escaped text; `None` where it was not made by [`escape`].
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'\\' {
            bytes.push(byte);
            rest = after;
        } else if let Some(after) = after.strip_prefix(b"\\") {
            bytes.push(b'\\');
            rest = after;
        } else {
            let digits = after.strip_prefix(b"x")?.get(..2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &after[3..];
        }
    }
    Some(bytes)
}

/// A path of the machine, shown escaped and stored so that it comes back byte for byte.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(PathBuf);

impl Location {
    /// The path itself.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// The path's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }

    /// A location from the bytes of its path.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(PathBuf::from(OsStr::from_bytes(bytes)))
    }
}

impl<P: Into<PathBuf>> From<P> for Location {
    fn from(path: P) -> Self {
        Self(path.into())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(self.as_bytes()))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = unescape(&text).ok_or_else(|| serde::de::Error::custom("a broken escape"))?;
        Ok(Self::from_bytes(&bytes))
    }
}

/// The known name that a mistyped one is nearest to, if any is near.
pub fn nearest(typed: &str, known: &[String]) -> Option<String> {
    // A user does not type so much by mistake, and comparing would take long.
    let short = |text: &str| text.to_lowercase().chars().take(200).collect::<String>();
    let wanted = short(typed);
    let near = known
        .iter()
        .map(|name| (strsim::osa_distance(&wanted, &short(name)), name));
    let (steps, name) = near.min()?;
    let close = steps <= 1 + typed.chars().count().min(name.chars().count()) / 4;
    close.then(|| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule F5
    #[test]
    fn any_bytes_come_back_and_none_can_fool_a_terminal() {
        let every: Vec<u8> = (0..=255).collect();
        let odd = "a\u{202e}b\\x41\n\u{1b}[2J ü\u{a0}\u{3000}\u{ad}\u{fe0f}".as_bytes();
        for bytes in [every.as_slice(), odd, b"", b"plain name"] {
            let text = escape(bytes);
            assert!(!text.chars().any(is_hostile), "{text}");
            assert_eq!(unescape(&text).as_deref(), Some(bytes));
            let text = escape_text(bytes);
            assert!(text.chars().all(is_plain), "{text}");
            assert_eq!(unescape(&text).as_deref(), Some(bytes));
        }
        assert_eq!(escape(b"plain name"), "plain name");
    }

    #[test]
    fn words_that_somebody_chose_are_one_line() {
        assert_eq!(
            one_line("a\n2026 done\tb\u{1b}[2J ü"),
            "a\\x0a2026 done\\x09b\\x1b[2J ü"
        );
        assert_eq!(harmless(b"a\n\tb\x1b"), "a\n\tb\\x1b");
    }

    #[test]
    fn json_with_escapes_is_the_same_document() {
        let json = serde_json::json!({"a\u{a0}": "\u{202e}\n\u{e0041} ü \\"});
        let text = escape_json(&json);
        assert!(text.chars().all(is_plain), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).ok(),
            Some(json)
        );
    }

    #[test]
    fn a_broken_escape_is_not_guessed_at() {
        for text in ["\\", "\\x", "\\x4", "\\q", "\\xzz"] {
            assert_eq!(unescape(text), None, "{text}");
        }
    }

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let known = ["strategy", "cleanup", "undo", "checkpoint"].map(str::to_owned);
        for (typed, meant) in [
            ("strateg", Some("strategy")),
            ("stratgey", Some("strategy")),
            ("Cleanup", Some("cleanup")),
            ("undoo", Some("undo")),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(typed, &known).as_deref(), meant, "{typed}");
        }
    }
}
