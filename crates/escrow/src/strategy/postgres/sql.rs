//! Just enough of SQL: where a statement ends, and what it is about as far as a held transaction cares.

/// What a statement does to transactions, sessions and the things that cannot be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// Begins a transaction, with these modes.
    Begin(Modes),
    /// Ends one; `chain`: and begins the next.
    Commit { chain: bool },
    /// Takes one back.
    Rollback { chain: bool },
    /// Works on a savepoint, or declares a cursor: only in a transaction.
    InTransaction(&'static str),
    /// Prepares a statement under a name.
    Prepare(String),
    /// Forgets one prepared statement, or all.
    Deallocate(Option<String>),
    /// Cannot work here: the code and the message of the server, and what to do.
    Refused(&'static str, String, &'static str),
    /// Changes a setting of the session, or may: its name, as far as that is written there.
    Setting { local: bool, name: Option<String> },
    /// Says which isolation a transaction shall have.
    SetTransaction(Modes),
    /// Reads or writes rows.
    Rows,
    /// Anything else.
    Other,
}

/// The modes of a transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Modes {
    pub(super) serializable: bool,
    pub(super) read_only: Option<bool>,
    /// It was said as `START TRANSACTION`, and is answered so.
    pub(super) started: bool,
}

/// Names of savepoints and prepared transactions that are ours.
pub(super) const OWN: &str = "escrow_";

const CLONE: &str =
    "in a held transaction it cannot be kept for a commit; do it outside of the sandbox";

/// The statements of a text, without the ends; with what each is.
pub(super) fn statements(sql: &[u8]) -> Vec<(&[u8], Statement)> {
    let mut found = Vec::new();
    let mut rest = sql;
    while !rest.is_empty() {
        let (length, words) = first_statement(rest);
        let (one, after) = rest.split_at(length);
        if !words.is_empty() {
            let one = one.strip_suffix(b";").unwrap_or(one);
            found.push((one, classify(&words)));
        }
        rest = after;
    }
    found
}

/// How many bytes the first statement of a text has, with its semicolon.
pub(super) fn first_end(sql: &[u8]) -> usize {
    first_statement(sql).0.max(1)
}

/// A word of a statement: a bare one in lower case, a quoted name, or a sign.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Bare(String),
    Quoted(String),
    Text(String),
    Sign(u8),
}

impl Statement {
    /// Whether it begins or ends a transaction, or forgets everything that was prepared, which the holder does itself.
    pub(super) fn is_control(&self) -> bool {
        matches!(
            self,
            Self::Begin(_) | Self::Commit { .. } | Self::Rollback { .. } | Self::Deallocate(None)
        )
    }
}

impl Word {
    fn is(&self, word: &str) -> bool {
        matches!(self, Self::Bare(bare) if bare == word)
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Bare(name) | Self::Quoted(name) => Some(name),
            _ => None,
        }
    }
}

/// How many bytes the first statement has with its semicolon, and its words.
fn first_statement(sql: &[u8]) -> (usize, Vec<Word>) {
    let (mut at, mut words, mut parens) = (0, Vec::new(), 0_usize);
    // The body of a function in standard SQL has semicolons of its own.
    let mut atomic = 0_usize;
    while at < sql.len() {
        let rest = &sql[at..];
        let taken = match rest {
            [b';', ..] if parens == 0 && atomic == 0 => return (at + 1, words),
            [b'-', b'-', ..] => until(rest, 2, b"\n"),
            [b'/', b'*', ..] => comment(rest),
            [b'\'', ..] => {
                let escapes = words.last().is_some_and(|word: &Word| word.is("e"))
                    && at > 0
                    && sql[at - 1].eq_ignore_ascii_case(&b'e');
                let length = quoted(rest, b'\'', escapes);
                words.push(Word::Text(inner(&rest[..length])));
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
                    "atomic" if routine && words.last().is_some_and(|one| one.is("begin")) => {
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
                if !sign.is_ascii_whitespace() && !sign.is_ascii_digit() {
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
        at += taken.max(1);
    }
    (sql.len(), words)
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

fn refused(what: &str, hint: &'static str) -> Statement {
    Statement::Refused(
        "0A000",
        format!("{what} is not possible in a sandbox"),
        hint,
    )
}

fn classify(words: &[Word]) -> Statement {
    let at = |number: usize| match words.get(number) {
        Some(Word::Bare(word)) => word.as_str(),
        _ => "",
    };
    let has = |word: &str| words.iter().any(|one| one.is(word));
    let own_name = || {
        let mut names = words.iter().skip(1).filter_map(Word::name);
        names.any(|name| name.to_ascii_lowercase().starts_with(OWN))
    };
    match at(0) {
        "begin" => Statement::Begin(modes(words)),
        "start" if at(1) == "transaction" => Statement::Begin(modes(words)),
        "commit" | "rollback" if at(1) == "prepared" => Statement::Refused(
            "25001",
            format!(
                "{} PREPARED cannot run inside a transaction block",
                at(0).to_uppercase()
            ),
            "it concerns another transaction: do it outside of the sandbox",
        ),
        "commit" | "end" => Statement::Commit {
            chain: chains(words),
        },
        "rollback" | "abort" if has("to") => match own_name() {
            true => no_savepoint(),
            false => Statement::InTransaction("ROLLBACK TO SAVEPOINT"),
        },
        "rollback" | "abort" => Statement::Rollback {
            chain: chains(words),
        },
        "savepoint" | "release" => match own_name() {
            true => no_savepoint(),
            false if at(0) == "savepoint" => Statement::InTransaction("SAVEPOINT"),
            false => Statement::InTransaction("RELEASE SAVEPOINT"),
        },
        "prepare" if at(1) == "transaction" => refused(
            "PREPARE TRANSACTION",
            "`escrow commit` prepares and commits what the sandbox holds",
        ),
        "prepare" | "execute" if starts_own(words.get(1)) => {
            let text = format!("names of prepared statements that begin with {OWN} are not yours");
            Statement::Refused("26000", text, "take another name")
        }
        "prepare" => match words.get(1).and_then(Word::name) {
            Some(name) => Statement::Prepare(name.to_owned()),
            None => Statement::Other,
        },
        "listen" => refused(
            "LISTEN",
            "listen on a connection of your own to the original",
        ),
        "notify" => refused("NOTIFY", CLONE),
        "declare" if has("hold") && !has("without") => refused(
            "a cursor WITH HOLD",
            "declare it without HOLD, in a transaction",
        ),
        "declare" => Statement::InTransaction("DECLARE CURSOR"),
        "create" if is_temporary(at(1), at(2), at(3)) => refused(
            "a temporary object",
            "use an ordinary table in the sandbox, or a temporary one outside of it",
        ),
        "create" if has("pg_temp") => refused("a temporary object", CLONE),
        "deallocate" => {
            let skip = usize::from(at(1) == "prepare") + 1;
            match words.get(skip).and_then(Word::name) {
                Some("all") if at(skip) == "all" => Statement::Deallocate(None),
                name => Statement::Deallocate(name.map(str::to_owned)),
            }
        }
        "set" if at(1) == "transaction" => Statement::SetTransaction(modes(words)),
        "set" if at(1) == "session" && at(2) == "authorization" => {
            refused("SET SESSION AUTHORIZATION", "use SET ROLE")
        }
        "set" if at(1) == "constraints" => Statement::Other,
        "set" | "reset" => {
            let skip = usize::from(matches!(at(1), "local" | "session"));
            let dotted = words.iter().skip(1 + skip);
            let dotted =
                dotted.take_while(|word| word.name().is_some() || **word == Word::Sign(b'.'));
            let parts: Vec<&str> = dotted.filter_map(Word::name).collect();
            // `SET a.b TO x` and `SET a TO x`: what is set is before the sign or the word.
            let name = parts.iter().take_while(|part| **part != "to").copied();
            Statement::Setting {
                local: at(1) == "local",
                name: Some(name.collect::<Vec<_>>().join(".")),
            }
        }
        "select" if has("into") && (has("temp") || has("temporary")) => {
            refused("a temporary table", "use an ordinary table in the sandbox")
        }
        _ if words.iter().any(session_lock) => refused(
            "an advisory lock of the session",
            "all clients of the sandbox share one session; use pg_advisory_xact_lock",
        ),
        _ if has("pg_notify") => refused("pg_notify", CLONE),
        _ if has("set_config") => {
            let called = words.iter().position(|word| word.is("set_config"));
            let first = called.and_then(|at| words.get(at + 2));
            Statement::Setting {
                local: has("true"),
                name: match first {
                    Some(Word::Text(name)) => Some(name.clone()),
                    _ => None,
                },
            }
        }
        "select" | "insert" | "update" | "delete" | "merge" | "with" | "values" | "table" => {
            Statement::Rows
        }
        _ => Statement::Other,
    }
}

/// Whether what is created is temporary, told by the words after `CREATE`.
fn is_temporary(first: &str, second: &str, third: &str) -> bool {
    let temporary = |word: &str| matches!(word, "temp" | "temporary");
    match first {
        "local" | "global" => temporary(second),
        "or" => temporary(third),
        _ => temporary(first),
    }
}

fn starts_own(word: Option<&Word>) -> bool {
    let name = word.and_then(Word::name).unwrap_or_default();
    name.to_ascii_lowercase().starts_with(OWN)
}

fn no_savepoint() -> Statement {
    let text = format!("names of savepoints that begin with {OWN} are not yours");
    Statement::Refused("3B001", text, "take another name")
}

/// Locks that belong to the session, which all clients share.
fn session_lock(word: &Word) -> bool {
    const LOCKS: [&str; 4] = [
        "pg_advisory_lock",
        "pg_advisory_lock_shared",
        "pg_try_advisory_lock",
        "pg_try_advisory_lock_shared",
    ];
    word.name().is_some_and(|name| LOCKS.contains(&name))
}

fn chains(words: &[Word]) -> bool {
    let chain = words.iter().position(|word| word.is("chain"));
    chain.is_some_and(|at| at > 0 && words[at - 1].is("and"))
}

fn modes(words: &[Word]) -> Modes {
    let has = |word: &str| words.iter().any(|one| one.is(word));
    let pair = |first: &str, second: &str| {
        words
            .windows(2)
            .any(|two| two[0].is(first) && two[1].is(second))
    };
    Modes {
        serializable: has("serializable"),
        read_only: match (pair("read", "only"), pair("read", "write")) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        },
        started: pair("start", "transaction"),
    }
}

/// The first statement of a text that reaches beyond the database that it is sent to, by its first words.
pub(super) fn reaches_out(mut sql: &[u8]) -> Option<String> {
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
    while !sql.is_empty() {
        let (length, words) = first_statement(sql);
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
        if found {
            return Some([at(0), at(1)].join(" ").trim_end().to_uppercase());
        }
        sql = &sql[length..];
    }
    None
}

/// Whether statements of this kind only look, or set something.
pub(super) fn only_looked(tag: &[u8]) -> bool {
    [b"SELECT".as_slice(), b"SHOW", b"SET", b"RESET", b"FETCH"]
        .iter()
        .any(|known| tag.starts_with(known))
}

/// Whether statements of this kind may have made a constraint that is checked late.
pub(super) fn may_defer(tag: &[u8]) -> bool {
    [
        b"CREATE TABLE".as_slice(),
        b"ALTER TABLE",
        b"CREATE TRIGGER",
        b"CREATE CONSTRAINT",
    ]
    .iter()
    .any(|known| tag.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(sql: &str) -> Vec<Statement> {
        let all = statements(sql.as_bytes());
        all.into_iter().map(|(_, kind)| kind).collect()
    }

    #[test]
    fn semicolons_in_texts_comments_and_bodies_end_nothing() {
        for one in [
            "select ';' , \";\" , $$;$$, $a$ ; $$ ; $a$, E'\\';' -- ; no\n",
            "select 1 /* ; /* ; */ ; */",
            "create rule r as on insert to t do (select 1; select 2)",
            "create function f() returns int begin atomic select case when true then 1 end; select 2; end",
            "select 'a''b;' , U&'d;' , 1.5e3, $1",
        ] {
            let text = format!("{one};select 2");
            let found = statements(text.as_bytes());
            assert_eq!(found.len(), 2, "{one}: {found:?}");
            assert_eq!(found[0].0, one.as_bytes());
        }
        assert!(statements(b" ; -- nothing\n;").is_empty());
    }

    #[test]
    fn transaction_control_is_known_in_every_dress() {
        let plain = Statement::Begin(Modes::default());
        for text in [
            "BEGIN",
            "begin work",
            "Begin Transaction",
            "/* x */ BEGIN -- y",
        ] {
            assert_eq!(kinds(text), std::slice::from_ref(&plain), "{text}");
        }
        assert_eq!(
            kinds("END TRANSACTION"),
            [Statement::Commit { chain: false }]
        );
        assert_eq!(
            kinds("COMMIT AND CHAIN"),
            [Statement::Commit { chain: true }]
        );
        assert_eq!(
            kinds("COMMIT AND NO CHAIN"),
            [Statement::Commit { chain: false }]
        );
        assert_eq!(kinds("abort"), [Statement::Rollback { chain: false }]);
        assert_eq!(
            kinds("rollback to x"),
            [Statement::InTransaction("ROLLBACK TO SAVEPOINT")]
        );
        let modes = Modes {
            read_only: Some(true),
            ..Modes::default()
        };
        assert_eq!(
            kinds("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"),
            [Statement::Begin(modes)]
        );
        // What only looks like it.
        for text in ["\"begin\"", "do $$begin commit; end$$", "copy t from stdin"] {
            assert_eq!(kinds(text), [Statement::Other], "{text}");
        }
        for text in ["select 'begin'", "update t set commit = 1"] {
            assert_eq!(kinds(text), [Statement::Rows], "{text}");
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
        ] {
            assert_eq!(reaches_out(text.as_bytes()), None, "{text}");
        }
    }

    // rule Q7
    #[test]
    fn what_cannot_be_held_is_known() {
        for text in [
            "LISTEN x",
            "notify x, 'y'",
            "select pg_notify('a', 'b')",
            "create temp table t (a int)",
            "CREATE TEMPORARY VIEW v AS SELECT 1",
            "create or replace temp view v as select 1",
            "create local temp table t (a int)",
            "select 1 into temp t",
            "create table pg_temp.t (a int)",
            "declare c cursor with hold for select 1",
            "select pg_advisory_lock(1)",
            "select pg_catalog.pg_try_advisory_lock(1)",
            "prepare transaction 'x'",
            "savepoint escrow_1",
            "prepare escrow_release as select 1",
            "execute \"escrow_release\"",
            "rollback to \"escrow_1\"",
        ] {
            assert!(
                matches!(kinds(text)[..], [Statement::Refused(..)]),
                "{text}: {:?}",
                kinds(text)
            );
        }
        for text in [
            "select pg_advisory_xact_lock(1)",
            "select 'create temp table'",
            "create table temp (a int)",
        ] {
            assert!(
                !matches!(kinds(text)[..], [Statement::Refused(..)]),
                "{text}"
            );
        }
    }
}
