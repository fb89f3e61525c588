//! Statements that reach beyond the database they are sent to: roles, other databases, other servers, prepared transactions.
//!
//! A text is refused if it may be one in any way in which a server could read it.

use super::lexer::{Backslashes, Reading, Word, first_statement};

/// A statement of a text that reaches beyond the database that it is sent to, however the text is read.
pub(super) fn reaches_out(sql: &[u8]) -> Option<String> {
    use Backslashes::{Everywhere, Marked, Nowhere};
    let reading = |backslashes| Reading {
        backslashes,
        bodies: false,
    };
    let ways = [Marked, Everywhere, Nowhere];
    let read = ways
        .into_iter()
        .find_map(|way| reaches_out_as_read(sql, reading(way)));
    // Where the encoding of the client decides what is quoted, a statement may begin behind every semicolon.
    let mut ends = sql.iter().enumerate().filter(|(_, byte)| **byte == b';');
    read.or_else(|| match depends_on_encoding(sql) {
        true => ends.find_map(|(at, _)| {
            let rest = &sql[at + 1..];
            let window = &rest[..rest.len().min(WINDOW)];
            let (length, words, _) = first_statement(window, reading(Marked));
            let hidden = words.is_empty() && length == WINDOW;
            reaches(&words).or_else(|| hidden.then(|| "A LONG COMMENT".to_owned()))
        }),
        false => None,
    })
}

/// How much of a statement is read that may begin somewhere: what it is, its first words say.
const WINDOW: usize = 4096;

/// Whether what is quoted in a text depends on the encoding of the client: a sign behind a byte beyond ASCII may be the end of a longer
/// character, and so no backslash, and no end of a name behind which a dollar would begin a text. Older servers read a number and the
/// name behind it as two, which may have dollars too.
fn depends_on_encoding(sql: &[u8]) -> bool {
    let joined = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let numbered = |at: usize| {
        let length = sql[..at]
            .iter()
            .rev()
            .take_while(|byte| joined(byte))
            .count();
        let word = &sql[at - length..at];
        word.first().is_some_and(u8::is_ascii_digit) && !word.iter().all(u8::is_ascii_digit)
    };
    let mut pairs = sql.windows(2).enumerate();
    pairs.any(|(at, two)| match two {
        [0x80..=0xff, b'@' | b'['..=b'`' | b'{'..=b'~'] => true,
        [_, b'$'] => numbered(at + 1),
        _ => false,
    })
}

/// The first one.
fn reaches_out_as_read(mut sql: &[u8], reading: Reading) -> Option<String> {
    while !sql.is_empty() {
        let (length, words, _) = first_statement(sql, reading);
        if let Some(found) = reaches(&words) {
            return Some(found);
        }
        sql = &sql[length..];
    }
    None
}

/// What a statement is called that reaches out, by its first words.
fn reaches(words: &[Word]) -> Option<String> {
    const SHARED: [&str; 7] = [
        "database",
        "group",
        "parameter",
        "role",
        "system",
        "tablespace",
        "user",
    ];
    // What a role owns, and its rights, are also of the server.
    const OUTSIDE: [&str; 4] = ["foreign", "owned", "server", "subscription"];
    let at = |number: usize| match words.get(number) {
        Some(Word::Bare(word)) => word.as_str(),
        _ => "",
    };
    let found = match at(0) {
        "create" | "drop" | "alter" => SHARED.contains(&at(1)) || OUTSIDE.contains(&at(1)),
        "import" | "reassign" => true,
        // Rights on what is in the database are `ON` something.
        "grant" | "revoke" => {
            let on = words.iter().position(|word| word.is("on"));
            on.is_none_or(|on| SHARED.contains(&at(on + 1)))
        }
        "comment" => SHARED.contains(&at(2)),
        "security" => words
            .iter()
            .any(|word| word.name().is_some_and(|name| SHARED.contains(&name))),
        "prepare" => at(1) == "transaction",
        "commit" | "rollback" => at(1) == "prepared",
        _ => false,
    };
    found.then(|| [at(0), at(1)].join(" ").trim_end().to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule Q7
    #[test]
    fn nothing_hides_a_statement_that_reaches_out() {
        for text in [
            "select 'x\\''; prepare transaction 'x'; --'",
            "select E'\u{83}\\'; prepare transaction 'x'; --'",
            "create table t as select begin atomic from b; prepare transaction 'x'",
            "select 1a$$; prepare transaction 'x'; --$$",
        ] {
            let found = reaches_out(text.as_bytes());
            assert_eq!(found.as_deref(), Some("PREPARE TRANSACTION"), "{text}");
        }
        // The second byte of a character is a sign, beside real ones.
        for text in [
            b"select E'\\'', E'\x81\x5c'; prepare transaction 'x'; --'".as_slice(),
            b"select $\x81[$ ' $\x81[$; prepare transaction 'x'; --'",
        ] {
            let found = reaches_out(text);
            assert_eq!(found.as_deref(), Some("PREPARE TRANSACTION"), "{text:?}");
        }
    }

    // rule Q7
    #[test]
    fn what_reaches_beyond_the_database_is_known() {
        for text in [
            "DROP DATABASE shop",
            "select 1; alter system set work_mem = '1GB'",
            "/* x */ create role r",
            "alter user u superuser",
            "grant admin to app",
            "revoke connect on database shop from public",
            "comment on database x is ''",
            "prepare transaction 'x'",
            "rollback prepared 'x'",
            "create foreign table t (a int) server s",
            "import foreign schema x from server s into public",
            "create user mapping for app server s",
            "create subscription s connection '' publication p",
        ] {
            assert!(reaches_out(text.as_bytes()).is_some(), "{text}");
        }
        for text in [
            "create table role (database int)",
            "grant select on orders to app",
            "select 'drop database shop'",
            "comment on table t is 'x'",
            "prepare p as select 1",
            "rollback",
            "insert into t values ('\u{e9}; drop database shop')",
            "do $b1$ begin; end; $b1$; select '; drop database shop'",
        ] {
            assert_eq!(reaches_out(text.as_bytes()), None, "{text}");
        }
    }
}
