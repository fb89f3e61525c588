//! What the words of a statement say, wherever they are in it: temporary objects, calls of functions, names that are written by numbers, settings.

use super::lexer::Word;

pub(super) fn sets_config(word: &Word) -> bool {
    word.name() == Some("set_config")
}

/// Whether what is created is temporary, told by the words after `CREATE`.
pub(super) fn is_temporary(first: &str, second: &str, third: &str) -> bool {
    let temporary = |word: &str| matches!(word, "temp" | "temporary");
    match first {
        "local" | "global" => temporary(second),
        "or" => temporary(third),
        _ => temporary(first),
    }
}

/// Whether these words begin with the name of something temporary, by its schema.
pub(super) fn is_in_temporary(words: &[Word]) -> bool {
    let after = match words {
        [name, after @ ..] if name.name() == Some("pg_temp") => after,
        _ => coded_name(words).unwrap_or_default(),
    };
    after.first() == Some(&Word::Sign(b'.'))
}

/// Whether rows of a query become a temporary table: `INTO TEMP t`, and not a table of that name.
pub(super) fn goes_into_temporary(words: &[Word]) -> bool {
    let temporary = |word: &Word| word.is("temp") || word.is("temporary");
    (1..words.len()).any(|at| {
        let (before, after) = (&words[at - 1], &words[at + 1..]);
        if !words[at].is("into") || before.is("insert") || before.is("merge") {
            return false;
        }
        let after = match after {
            [place, after @ ..] if place.is("local") || place.is("global") => after,
            after => after,
        };
        let named = matches!(after, [first, table, ..]
            if temporary(first) && table.name().is_some() && !table.is("from"));
        named || is_in_temporary(after)
    })
}

/// Whether a cursor is declared to outlive its transaction.
pub(super) fn holds(words: &[Word]) -> bool {
    let hold = ["cursor", "with", "hold"];
    let is = |three: &[Word]| three.iter().zip(hold).all(|(word, known)| word.is(known));
    words.windows(hold.len()).any(is)
}

/// Whether a function is called.
pub(super) fn calls(words: &[Word], function: &str) -> bool {
    words
        .windows(2)
        .any(|two| two[0].name() == Some(function) && two[1] == Word::Sign(b'('))
}

/// Whether a function is called by a name that is written by numbers: it may be any.
pub(super) fn calls_coded(words: &[Word]) -> bool {
    let call =
        |at| coded_name(&words[at..]).is_some_and(|after| after.first() == Some(&Word::Sign(b'(')));
    (0..words.len()).any(call)
}

/// The name of what `SET` sets or `RESET` resets, told by the words after that: `a.b`, or one that is said in words of its own.
pub(super) fn setting(words: &[Word]) -> String {
    let mut name = words.first().and_then(Word::name).unwrap_or("").to_owned();
    let mut rest = words.get(1..).unwrap_or_default();
    while let [Word::Sign(b'.'), part, after @ ..] = rest {
        name = [&name, ".", part.name().unwrap_or("")].concat();
        rest = after;
    }
    match name.as_str() {
        "time" => "timezone".to_owned(),
        "names" => "client_encoding".to_owned(),
        "schema" => "search_path".to_owned(),
        _ => name,
    }
}

/// Whether these words begin with a call of `set_config` for the transaction alone, as far as that is written there.
pub(super) fn sets_local(words: &[Word]) -> bool {
    if !words.first().is_some_and(sets_config) {
        return false;
    }
    let (mut depth, mut last) = (0_usize, Vec::new());
    for word in &words[1..] {
        match word {
            Word::Sign(b'(') => depth += 1,
            Word::Sign(b')') if depth <= 1 => break,
            Word::Sign(b')') => depth -= 1,
            Word::Sign(b',') if depth == 1 => last.clear(),
            word => last.push(word),
        }
    }
    let yes = ["t", "true", "y", "yes", "on", "1"];
    last.iter().any(|word| match word {
        Word::Text(text) => yes.iter().any(|one| text.eq_ignore_ascii_case(one)),
        word => word.is("true"),
    })
}

/// What follows a name that is written by numbers, `U&"…"`, so that it is not what it says, where these words begin with one.
fn coded_name(words: &[Word]) -> Option<&[Word]> {
    match words {
        [u, Word::Sign(b'&'), Word::Quoted(_), after @ ..] if u.is("u") => Some(match after {
            [escape, Word::Text(_), after @ ..] if escape.is("uescape") => after,
            after => after,
        }),
        _ => None,
    }
}

/// Whether a name is written by numbers.
pub(super) fn is_coded(words: &[Word]) -> bool {
    (0..words.len()).any(|at| coded_name(&words[at..]).is_some())
}

/// Locks that belong to the session, which all clients share.
pub(super) fn session_lock(word: &Word) -> bool {
    const LOCKS: [&str; 4] = [
        "pg_advisory_lock",
        "pg_advisory_lock_shared",
        "pg_try_advisory_lock",
        "pg_try_advisory_lock_shared",
    ];
    word.name().is_some_and(|name| LOCKS.contains(&name))
}

pub(super) fn chains(words: &[Word]) -> bool {
    let chain = words.iter().position(|word| word.is("chain"));
    chain.is_some_and(|at| at > 0 && words[at - 1].is("and"))
}
