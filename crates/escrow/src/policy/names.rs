//! Name folding: names that some file system treats as equal.
//!
//! What must not be touched must not be touched under another spelling either: a tree that is
//! released here may be checked out where case, trailing dots and invisible characters do not count,
//! and where `git~1` is the short name of `.git`. Only denials look at names this way.

use crate::model::ResourcePath;

/// A path as the most careless file system would read it.
pub(crate) fn fold(path: &ResourcePath) -> Vec<u8> {
    // There is one on which a backslash parts names.
    let parts = path
        .parts()
        .flat_map(|part| part.split(|byte| *byte == b'\\'));
    let parts: Vec<Vec<u8>> = parts
        .filter(|part| !part.is_empty())
        .map(fold_name)
        .collect();
    parts.join(&b'/')
}

/// A text without case. Some letters have one only on the way up.
pub(super) fn fold_case(text: &str) -> String {
    text.to_uppercase().to_lowercase()
}

fn fold_name(name: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let seen: String = chunk.valid().chars().filter(|c| !is_ignored(*c)).collect();
        folded.extend(fold_case(&seen).into_bytes());
        folded.extend(chunk.invalid());
    }
    // What follows a colon names a stream of the same file.
    if let Some(colon) = folded.iter().position(|byte| *byte == b':')
        && colon > 0
    {
        folded.truncate(colon);
    }
    let kept = folded
        .iter()
        .rposition(|byte| !matches!(byte, b'.' | b' '))
        .map_or(folded.len(), |last| last + 1);
    folded.truncate(kept);
    match folded.as_slice() {
        b"git~1" => b".git".to_vec(),
        _ => folded,
    }
}

/// Characters that some file systems leave out when they compare names.
fn is_ignored(c: char) -> bool {
    matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_are_one() {
        let same = [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git . .",
            "git~1",
            "GIT~1",
            ".g\u{200c}it",
            ".git::$INDEX_ALLOCATION",
            "git~1 .",
            "\u{feff}.git",
        ];
        for name in same {
            assert_eq!(fold_name(name.as_bytes()), b".git", "{name:?}");
        }
        for name in [
            &b".github"[..],
            b"git",
            b".gi",
            b"git~2",
            b".git\xff",
            b"x.git",
        ] {
            assert_ne!(fold_name(name), b".git");
            assert_eq!(fold_name(name), name, "it stays what it is");
        }
        assert_eq!(fold_name(b"..."), b"...");
        assert_eq!(fold_name("ST\u{17f}\u{212a}".as_bytes()), b"stsk");
        let path = ResourcePath::parse(b"A\\.GIT\\\\x/Y").expect("odd but plain");
        assert_eq!(fold(&path), b"a/.git/x/y");
        assert_eq!(fold_name(b"\xff\xfeA."), b"\xff\xfea");
    }
}
