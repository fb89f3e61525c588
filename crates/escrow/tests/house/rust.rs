//! Reads Rust as far as the checks need it: words, signs, comments, and what is test code.

#[derive(Debug, PartialEq)]
pub(crate) enum Kind<'a> {
    Word(&'a str),
    PathSep,
    Sign(char),
    Comment(&'a str),
}

pub(crate) struct Token<'a> {
    pub(crate) kind: Kind<'a>,
    /// Whether it stands in an item under `#[cfg(test)]` or `#[test]`.
    pub(crate) in_test: bool,
}

impl Token<'_> {
    pub(crate) fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::Comment(_))
    }
}

/// Words, signs and comments of a source text; the contents of strings and characters are dropped.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut kinds = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if rest.starts_with("//") {
            length = rest.find('\n').unwrap_or(rest.len());
            kinds.push(Kind::Comment(&rest[..length]));
        } else if rest.starts_with("/*") {
            length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            kinds.push(Kind::Comment(&rest[..length]));
        } else if is_word(first) {
            length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let after = &rest[length..];
            let hashes = after.len() - after.trim_start_matches('#').len();
            if matches!(&rest[..length], "r" | "br" | "cr") && after[hashes..].starts_with('"') {
                let body = &after[hashes + 1..];
                let close = format!("\"{}", "#".repeat(hashes));
                let end = body
                    .find(&close)
                    .map_or(body.len(), |end| end + close.len());
                length += hashes + 1 + end;
            } else {
                kinds.push(Kind::Word(&rest[..length]));
            }
        } else if first == '"' {
            length = quoted(rest, '"');
        } else if first == '\'' {
            // `'a'` and `'\n'` are characters, `'a` is a lifetime.
            let mut next = rest[1..].chars();
            if next.next() == Some('\\') || next.next() == Some('\'') {
                length = quoted(rest, '\'');
            }
        } else if rest.starts_with("::") {
            length = 2;
            kinds.push(Kind::PathSep);
        } else if !first.is_whitespace() {
            kinds.push(Kind::Sign(first));
        }
        rest = &rest[length..];
    }
    mark_tests(kinds)
}

/// The length of a quoted text with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn mark_tests(kinds: Vec<Kind<'_>>) -> Vec<Token<'_>> {
    let mut in_test = vec![false; kinds.len()];
    let mut at = 0;
    while at < kinds.len() {
        let inner = kinds.get(at + 1) == Some(&Kind::Sign('!'));
        let open = at + 1 + usize::from(inner);
        if kinds[at] != Kind::Sign('#') || kinds.get(open) != Some(&Kind::Sign('[')) {
            at += 1;
            continue;
        }
        let close = closing(&kinds, open);
        let word = |word| kinds[open..close].contains(&Kind::Word(word));
        if (word("cfg") || close == open + 3) && word("test") && !word("not") {
            let end = if inner {
                kinds.len()
            } else {
                item_end(&kinds, close)
            };
            in_test[at..end].fill(true);
            at = end;
        } else {
            at = close;
        }
    }
    let tokens = kinds.into_iter().zip(in_test);
    tokens
        .map(|(kind, in_test)| Token { kind, in_test })
        .collect()
}

/// The place after the bracket that closes the one at `open`.
fn closing(kinds: &[Kind], open: usize) -> usize {
    let mut depth = 0;
    for (at, kind) in kinds.iter().enumerate().skip(open) {
        match kind {
            Kind::Sign('(' | '[' | '{') => depth += 1,
            Kind::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    kinds.len()
}

/// The place after the item that begins at `at`: its block, or its semicolon.
fn item_end(kinds: &[Kind], mut at: usize) -> usize {
    while at < kinds.len() {
        match kinds[at] {
            Kind::Sign('{') => return closing(kinds, at),
            Kind::Sign(';') => return at + 1,
            Kind::Sign('(' | '[') => at = closing(kinds, at),
            Kind::Sign('}') => return at,
            _ => at += 1,
        }
    }
    at
}
