//! Reads SQL as the server does, as far as it must be known where a statement ends and which words it has.

use std::ops::Range;

/// How a text is read: the server reads it by its settings, in the encoding of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// In which texts a backslash hides the sign behind it.
    pub(super) backslashes: Backslashes,
    /// The body of a function in standard SQL has semicolons of its own.
    pub(super) bodies: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backslashes {
    /// It may be a part of a longer character everywhere.
    Nowhere,
    /// In those that say so, `E'…'`.
    Marked,
    /// In all of them: `standard_conforming_strings` is off.
    Everywhere,
}

impl Reading {
    pub(super) const USUAL: Self = Self {
        backslashes: Backslashes::Marked,
        bodies: true,
    };
}

/// Whether there is only one way to read a text. What a backslash is depends on settings, what a byte beyond ASCII is on encodings, what
/// a dollar is on the signs around it, and a body is told by two words that can also be names: of other texts the server has to say
/// whether they are one statement.
pub(super) fn is_certain(sql: &[u8]) -> bool {
    let body = b"atomic";
    let has_body = || {
        let mut parts = sql.windows(body.len());
        parts.any(|part| part.eq_ignore_ascii_case(body))
    };
    let plain = |byte: &u8| matches!(byte, b'\t' | b'\n' | b' '..=b'~') && !b"\\$".contains(byte);
    sql.iter().all(plain) && !has_body()
}

/// A word of a statement: a bare one in lower case, a quoted name, or a sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    Bare(String),
    Quoted(String),
    Text(String),
    Sign(u8),
}

impl Word {
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, Self::Bare(bare) if bare == word)
    }

    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Bare(name) | Self::Quoted(name) => Some(name),
            _ => None,
        }
    }
}

/// How many bytes the first statement has with its semicolon, its words, and where each of them is.
pub(super) fn first_statement(
    sql: &[u8],
    reading: Reading,
) -> (usize, Vec<Word>, Vec<Range<usize>>) {
    let (mut at, mut words, mut parens) = (0, Vec::new(), 0_usize);
    let mut places = Vec::new();
    let mut atomic = 0_usize;
    // How many words there were after a text in which backslashes hide: one that goes on in the next line is of the same kind.
    let mut hidden = None;
    while at < sql.len() {
        let rest = &sql[at..];
        let taken = match rest {
            [b';', ..] if parens == 0 && atomic == 0 => return (at + 1, words, places),
            [b'-', b'-', ..] => {
                let ends = |byte: &u8| matches!(byte, b'\n' | b'\r');
                rest.iter().position(ends).unwrap_or(rest.len())
            }
            [b'/', b'*', ..] => comment(rest),
            [b'\'', ..] => {
                let marked = |mark: &str| {
                    let last = at.checked_sub(1).map(|at| sql[at].to_ascii_lowercase());
                    last == mark.bytes().next()
                        && words.last().is_some_and(|word: &Word| word.is(mark))
                };
                let escapes = match reading.backslashes {
                    Backslashes::Nowhere => false,
                    _ if marked("e") || hidden == Some(words.len()) => true,
                    Backslashes::Marked => false,
                    Backslashes::Everywhere => !marked("b") && !marked("x"),
                };
                let length = quoted(rest, b'\'', escapes);
                words.push(Word::Text(inner(&rest[..length])));
                hidden = escapes.then_some(words.len());
                length
            }
            [b'"', ..] => {
                let length = quoted(rest, b'"', false);
                words.push(Word::Quoted(inner(&rest[..length]).replace("\"\"", "\"")));
                length
            }
            [b'$', ..] => match dollar_tag(rest) {
                Some(tag) => {
                    words.push(Word::Text(String::new()));
                    until(rest, tag, &rest[..tag])
                }
                None => 1,
            },
            [first, ..] if first.is_ascii_alphabetic() || *first == b'_' || *first >= 0x80 => {
                let part = |byte: &u8| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || *byte >= 0x80
                };
                let length = rest.iter().take_while(|byte| part(byte)).count();
                let word = String::from_utf8_lossy(&rest[..length]).to_ascii_lowercase();
                let routine = words.first().is_some_and(|one| one.is("create"));
                match word.as_str() {
                    "atomic"
                        if routine
                            && reading.bodies
                            && words.last().is_some_and(|one| one.is("begin")) =>
                    {
                        atomic += 1
                    }
                    "case" if atomic > 0 => atomic += 1,
                    "end" if atomic > 0 => atomic -= 1,
                    _ => {}
                }
                words.push(Word::Bare(word));
                length
            }
            [sign, ..] => {
                match sign {
                    b'(' => parens += 1,
                    b')' => parens = parens.saturating_sub(1),
                    _ => {}
                }
                // Newer servers also skip a vertical tab.
                let skipped = sign.is_ascii_whitespace() || *sign == 0x0b;
                if !skipped && !sign.is_ascii_digit() {
                    words.push(Word::Sign(*sign));
                }
                // A number and the letters in it are one thing.
                let digits = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric());
                if sign.is_ascii_digit() {
                    digits.count()
                } else {
                    1
                }
            }
            [] => break,
        };
        places.resize(words.len(), at..at + taken.max(1));
        at += taken.max(1);
    }
    (sql.len(), words, places)
}

/// How far it is to the end of `end`, sought behind the first `from` bytes.
fn until(text: &[u8], from: usize, end: &[u8]) -> usize {
    let found = text[from..]
        .windows(end.len())
        .position(|window| window == end);
    found.map_or(text.len(), |at| from + at + end.len())
}

/// The length of a comment, which may hold others.
fn comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a quoted text; a doubled quote is one of its characters.
fn quoted(text: &[u8], quote: u8, escapes: bool) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' if escapes => at += 2,
            byte if byte == quote && text.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// What stands between two quotes.
fn inner(quoted: &[u8]) -> String {
    let end = quoted.len().saturating_sub(1).max(1);
    String::from_utf8_lossy(&quoted[1..end]).into_owned()
}

/// The length of the tag with which a text in dollars begins.
fn dollar_tag(text: &[u8]) -> Option<usize> {
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    let length = text[1..].iter().take_while(|byte| inner(byte)).count();
    let begins = text.get(1).is_some_and(|byte| !byte.is_ascii_digit());
    (begins && text.get(1 + length) == Some(&b'$')).then_some(length + 2)
}
