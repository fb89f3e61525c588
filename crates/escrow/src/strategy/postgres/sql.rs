//! What a statement is about, as far as a held transaction cares.

use std::ops::Range;

use super::lexer::{Reading, Word, first_statement};
use super::words::{
    calls, calls_coded, chains, goes_into_temporary, holds, is_coded, is_in_temporary,
    is_temporary, session_lock, sets_config, sets_local, setting,
};

/// What a statement does to transactions, sessions and the things that cannot be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// Begins a transaction, with these modes.
    Begin(Modes),
    /// Ends one; `chain`: and begins the next.
    Commit { chain: bool },
    /// Takes one back.
    Rollback { chain: bool },
    /// Works on a savepoint, declares a cursor or locks a table: only in a transaction.
    InTransaction(&'static str),
    /// Prepares a statement under a name.
    Prepare(Named),
    /// Carries out a prepared statement.
    Execute(Named),
    /// Forgets one prepared statement, or all.
    Deallocate(Option<Named>),
    /// Cannot work here: the code and the message of the server, and what to do.
    Refused(&'static str, String, &'static str),
    /// Changes a setting of the session, or may: its name, as far as that is written there.
    Setting { local: bool, name: Option<String> },
    /// Says which isolation a transaction shall have.
    SetTransaction(Modes),
    /// Copies rows in or out.
    Copy,
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

/// The name of a prepared statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// Where it is in the text of the statement, with its quotes.
    pub(super) place: Range<usize>,
    /// Other things are before it than the word of its statement, and comments.
    pub(super) deep: bool,
}

/// What declares a cursor, as the server calls it.
pub(super) const CURSOR: &str = "DECLARE CURSOR";

/// What locks tables, as the server calls it.
pub(super) const LOCK: &str = "LOCK TABLE";

/// What says when constraints are checked, as the server calls it: outside of a transaction it only warns.
pub(super) const CONSTRAINTS: &str = "SET CONSTRAINTS";

/// Names of savepoints and prepared transactions that are ours.
pub(super) const OWN: &str = "escrow_";

/// Settings by which a server ends what is held, because nothing happens in it or at the first error. No client sets them.
pub(super) const TIMEOUTS: [&str; 4] = [
    "exit_on_error",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
];

/// The setting that says which role a session has.
pub(super) const SESSION_USER: &str = "session_authorization";

const CLONE: &str =
    "in a held transaction it cannot be kept for a commit; do it outside of the sandbox";

/// The statements of a text, without the ends; with what each is.
pub(super) fn statements(sql: &[u8], reading: Reading) -> Vec<(&[u8], Statement)> {
    let mut found = Vec::new();
    let mut rest = sql;
    while !rest.is_empty() {
        let (length, words, places) = first_statement(rest, reading);
        let (one, after) = rest.split_at(length);
        if !words.is_empty() {
            let one = one.strip_suffix(b";").unwrap_or(one);
            found.push((one, classify(&words, &places)));
        }
        rest = after;
    }
    found
}

/// How many bytes the first statement of a text has, with its semicolon.
pub(super) fn first_end(sql: &[u8]) -> usize {
    first_statement(sql, Reading::USUAL).0.max(1)
}

impl Statement {
    /// Whether it goes to the server as it is, and does nothing there to transactions.
    pub(super) fn is_plain(&self) -> bool {
        let plain = matches!(
            self,
            Self::Copy | Self::Other | Self::Rows | Self::Setting { .. }
        );
        plain && !self.is_timeout()
    }

    /// Whether the server may take a copy in for it.
    pub(super) fn may_copy(&self) -> bool {
        matches!(self, Self::Copy | Self::Execute(_))
    }

    /// Whether it sets a limit by which the server would end what is held.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Setting { name: Some(name), .. }
            if TIMEOUTS.iter().any(|known| name.eq_ignore_ascii_case(known)))
    }

    /// Whether it begins or ends a transaction, or forgets everything that was prepared, which the holder does itself.
    pub(super) fn is_control(&self) -> bool {
        matches!(
            self,
            Self::Begin(_) | Self::Commit { .. } | Self::Rollback { .. } | Self::Deallocate(None)
        )
    }
}

fn becomes_another() -> Statement {
    refused("SET SESSION AUTHORIZATION", "use SET ROLE")
}

fn refused(what: &str, hint: &'static str) -> Statement {
    Statement::Refused(
        "0A000",
        format!("{what} is not possible in a sandbox"),
        hint,
    )
}

fn classify(words: &[Word], places: &[Range<usize>]) -> Statement {
    let at = |number: usize| match words.get(number) {
        Some(Word::Bare(word)) => word.as_str(),
        _ => "",
    };
    let has = |word: &str| words.iter().any(|one| one.is(word));
    let own_name = || {
        let mut names = words.iter().skip(1).filter_map(Word::name);
        names.any(|name| name.to_ascii_lowercase().starts_with(OWN)) || is_coded(words)
    };
    let named = |number: usize| {
        Some(Named {
            name: words.get(number)?.name()?.to_owned(),
            place: places[number].clone(),
            deep: !matches!(at(0), "prepare" | "execute" | "deallocate"),
        })
    };
    // What `EXPLAIN` explains, with `ANALYZE`, is done.
    let explained = || {
        let before = match words.get(1) {
            Some(Word::Sign(b'(')) => words.iter().position(|word| *word == Word::Sign(b')'))? + 1,
            _ => {
                let option = |word: &&Word| word.is("analyze") || word.is("verbose");
                1 + words[1..].iter().take_while(option).count()
            }
        };
        match classify(words.get(before..)?, &places[before..]) {
            Statement::Execute(named) => Some(Statement::Execute(Named {
                deep: true,
                ..named
            })),
            inner @ (Statement::Refused(..) | Statement::Setting { .. }) => Some(inner),
            _ => None,
        }
    };
    let filled_by = || {
        let before = words.iter().position(|word| word.is("as"))? + 1;
        named(before + 1).filter(|_| at(before) == "execute")
    };
    // What only names a function does not call it.
    let names_function = || {
        let what = match (at(1), at(2)) {
            ("or", "replace") => at(3),
            (first, _) => first,
        };
        let defined = matches!(what, "function" | "procedure" | "view" | "rule");
        let defines = matches!(at(0), "create" | "alter") && defined;
        defines || matches!(at(0), "grant" | "revoke" | "comment" | "drop")
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
        "prepare" | "execute" | "deallocate" if is_coded(words) => {
            let text = "names that are written by numbers are not known here".to_owned();
            Statement::Refused("26000", text, "write the name itself")
        }
        "prepare" => {
            let before = words.iter().take_while(|word| !word.is("as")).count() + 1;
            let inner = words
                .get(before..)
                .map(|words| classify(words, &places[before..]));
            match inner.filter(|inner| matches!(inner, Statement::Refused(..))) {
                Some(refused) => refused,
                None => named(1).map_or(Statement::Other, Statement::Prepare),
            }
        }
        "listen" => refused(
            "LISTEN",
            "listen on a connection of your own to the original",
        ),
        "notify" => refused("NOTIFY", CLONE),
        "declare" if holds(words) => refused(
            "a cursor WITH HOLD",
            "declare it without HOLD, in a transaction",
        ),
        "declare" => Statement::InTransaction(CURSOR),
        "lock" => Statement::InTransaction(LOCK),
        "refresh" if has("concurrently") => refused(
            "REFRESH MATERIALIZED VIEW CONCURRENTLY",
            "it makes a temporary table; refresh it without CONCURRENTLY",
        ),
        "create" if is_temporary(at(1), at(2), at(3)) => refused(
            "a temporary object",
            "use an ordinary table in the sandbox, or a temporary one outside of it",
        ),
        "create" if (0..words.len()).any(|at| is_in_temporary(&words[at..])) => {
            refused("a temporary object", CLONE)
        }
        "deallocate" => {
            let skip = usize::from(at(1) == "prepare" && words.len() > 2) + 1;
            match at(skip) == "all" {
                true => Statement::Deallocate(None),
                false => {
                    named(skip).map_or(Statement::Other, |name| Statement::Deallocate(Some(name)))
                }
            }
        }
        "set" if at(1) == "transaction" => Statement::SetTransaction(modes(words)),
        "set" if at(1) == "session" && at(2) == "authorization" => becomes_another(),
        "set" if matches!(at(1), "session" | "local") && at(2) == "session" => becomes_another(),
        "set" if at(1) == "constraints" => Statement::InTransaction(CONSTRAINTS),
        "set" | "reset" => {
            let skip = usize::from(matches!(at(1), "local" | "session"));
            let name = setting(words.get(1 + skip..).unwrap_or_default());
            match name.eq_ignore_ascii_case(SESSION_USER) || is_coded(words) {
                true => becomes_another(),
                false => Statement::Setting {
                    local: at(1) == "local",
                    name: Some(name),
                },
            }
        }
        _ if goes_into_temporary(words) => {
            refused("a temporary table", "use an ordinary table in the sandbox")
        }
        _ if words.iter().any(session_lock) && !names_function() => refused(
            "an advisory lock of the session",
            "all clients of the sandbox share one session; use pg_advisory_xact_lock",
        ),
        _ if calls(words, "pg_notify") && !names_function() => refused("pg_notify", CLONE),
        _ if calls_coded(words) => refused(
            "a function whose name is written by numbers",
            "write the name itself",
        ),
        "execute" => named(1).map_or(Statement::Other, Statement::Execute),
        "explain" => explained().unwrap_or(Statement::Other),
        "create" if matches!(at(1), "table" | "unlogged") && filled_by().is_some() => {
            filled_by().map_or(Statement::Other, Statement::Execute)
        }
        // Whatever else it names: the holder has to know that the server may take a copy in.
        "copy" => Statement::Copy,
        _ if words.iter().any(sets_config) => {
            let called = words.iter().position(sets_config);
            match called.and_then(|at| words.get(at + 2)) {
                Some(Word::Text(name)) if name.eq_ignore_ascii_case(SESSION_USER) => {
                    becomes_another()
                }
                first => Statement::Setting {
                    local: (0..words.len()).any(|at| sets_local(&words[at..])),
                    name: match first {
                        Some(Word::Text(name)) => Some(name.clone()),
                        _ => None,
                    },
                },
            }
        }
        // The view of settings can be written to, and a name that is coded can be that of the function.
        _ if is_coded(words) || words.iter().any(|word| word.name() == Some("pg_settings")) => {
            Statement::Setting {
                local: false,
                name: None,
            }
        }
        "select" | "insert" | "update" | "delete" | "merge" | "with" | "values" | "table" => {
            Statement::Rows
        }
        _ => Statement::Other,
    }
}

fn no_savepoint() -> Statement {
    let text = format!("names of savepoints that begin with {OWN} are not yours");
    Statement::Refused("3B001", text, "take another name")
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

/// Whether statements of this kind may have made a constraint that is checked late.
pub(super) fn may_defer(tag: &[u8]) -> bool {
    [
        b"CREATE TABLE".as_slice(),
        b"ALTER TABLE",
        b"CREATE TRIGGER",
        b"CREATE CONSTRAINT",
        // With tables in it.
        b"CREATE SCHEMA",
    ]
    .iter()
    .any(|known| tag.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::super::lexer::{Backslashes, is_certain};
    use super::*;

    fn kinds(sql: &str) -> Vec<Statement> {
        let all = statements(sql.as_bytes(), Reading::USUAL);
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
            let found = statements(text.as_bytes(), Reading::USUAL);
            assert_eq!(found.len(), 2, "{one}: {found:?}");
            assert_eq!(found[0].0, one.as_bytes());
        }
        assert!(statements(b" ; -- nothing\n;", Reading::USUAL).is_empty());
    }

    #[test]
    fn a_copy_is_one_whatever_its_table_is_called() {
        for text in [
            "copy set_config from stdin",
            "COPY \"set_config\" FROM STDIN",
        ] {
            assert_eq!(kinds(text), [Statement::Copy], "{text}");
        }
    }

    /// What the server reads as `COMMIT` is found, or the text is not certain.
    // rule Q1
    #[test]
    fn nothing_hides_a_commit() {
        let commit = Statement::Commit { chain: false };
        for text in [
            "-- x\rCOMMIT",
            "select 1 -- x\r; COMMIT",
            "\x0bCOMMIT",
            "; /* /* */ ; */ COMMIT",
            "select E'a'\n'\\''; COMMIT; --'",
            "select e'a' -- x\n \n'\\''; COMMIT; --'",
        ] {
            assert_eq!(kinds(text).last(), Some(&commit), "{text}");
        }
        let hidden = b"select 'x\\''; COMMIT; --'";
        let off = Reading {
            backslashes: Backslashes::Everywhere,
            ..Reading::USUAL
        };
        assert_eq!(statements(hidden, off).len(), 2);
        assert!(!is_certain(hidden));
        assert!(!is_certain(
            b"create table t as select begin Atomic from b; commit"
        ));
        for text in [
            "select 1 as a\u{8b}[$$; commit; --$$",
            "select 1a$$; commit; --$$",
            "select $$;$$",
        ] {
            assert!(!is_certain(text.as_bytes()), "{text}");
        }
        assert!(is_certain(b"select ';' , \"x;\" /* ; */ -- x"));
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
        for text in ["\"begin\"", "do $$begin commit; end$$"] {
            assert_eq!(kinds(text), [Statement::Other], "{text}");
        }
        for text in ["select 'begin'", "update t set commit = 1"] {
            assert_eq!(kinds(text), [Statement::Rows], "{text}");
        }
    }

    #[test]
    fn the_name_of_a_setting_is_found() {
        for (text, wanted, is_local) in [
            ("set local time zone local", "timezone", true),
            ("SET NAMES 'x'", "client_encoding", false),
            ("set schema 'x'", "search_path", false),
            ("set session a.b.c to x", "a.b.c", false),
            ("set role x", "role", false),
            ("reset all", "all", false),
            ("select set_config('a', 'on', false)", "a", false),
            ("select set_config('a', f('x', true), 'F')", "a", false),
            ("select set_config('a', 'x', is_local => true)", "a", true),
            ("select set_config('a', 'x', 'T'::bool)", "a", true),
        ] {
            let wanted = Statement::Setting {
                local: is_local,
                name: Some(wanted.to_owned()),
            };
            assert_eq!(kinds(text), [wanted], "{text}");
        }
    }

    #[test]
    fn the_name_of_a_prepared_statement_is_found() {
        for (text, name) in [
            ("execute P", "p"),
            ("/* x */ EXECUTE \"P\"\"1\" (1)", "P\"1"),
            ("explain (analyze, costs off) execute p", "p"),
            ("explain analyze verbose execute p(1)", "p"),
            ("create table t (a) as execute p", "p"),
            ("explain (analyze) create table t as execute p", "p"),
            ("explain verbose create unlogged table t as execute p", "p"),
            ("deallocate prepare prepare", "prepare"),
            ("prepare p (int) as select 1", "p"),
        ] {
            let found = match &kinds(text)[..] {
                [Statement::Execute(one)]
                | [Statement::Prepare(one)]
                | [Statement::Deallocate(Some(one))] => one.clone(),
                other => panic!("{text}: {other:?}"),
            };
            assert_eq!(found.name, name, "{text}");
            let token = text[found.place].trim_matches('"').replace("\"\"", "\"");
            assert!(token.eq_ignore_ascii_case(name), "{text}: {token}");
        }
        for text in [
            "create trigger w before insert on t for each row when (new.a > 1) execute function f()",
            "explain select 1 as execute from t",
            "create table t as select 1 as execute from u",
        ] {
            assert!(
                !matches!(kinds(text)[..], [Statement::Execute(_)]),
                "{text}"
            );
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
            "with x as (select 1 a) select * into temp tt from x",
            "(select 1 as a into local temporary table tt)",
            "select 1 a into \"pg_temp\".tt",
            "create table U&\"pg!005ftemp\" UESCAPE '!' .tt (a int)",
            "select \"pg_notify\"('a', 'b')",
            "select U&\"pg\\005fnotify\"('a', 'b')",
            "create table t as select pg_notify('a', 'b')",
            "refresh materialized view concurrently mv",
            "select pg_advisory_lock(1)",
            "execute p(pg_advisory_lock(1))",
            "create unlogged table function as select pg_notify('a', 'b')::text",
            "create materialized view procedure as select pg_notify('a', 'b')::text",
            "prepare p as select pg_advisory_lock(1)",
            "create temp table t as execute p",
            "explain analyze create temp table t as select 1",
            "select pg_catalog.pg_try_advisory_lock(1)",
            "prepare transaction 'x'",
            "savepoint escrow_1",
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
            "create or replace view v as select pg_notify('a', 'b')",
            "grant execute on function pg_advisory_lock(bigint) to other",
            "select 'create temp table'",
            "create table temp (a int)",
            "insert into temp (a) values (1)",
            "with x as (select 1) insert into temp select 1 from x",
            "select temp into wy from wx",
            "select 1 into temp from wx",
            "create function f() returns int language sql set search_path = public, pg_temp as 'select 1'",
            "create or replace function f() returns void return pg_notify('a', 'b')",
            "grant execute on function pg_notify(text, text) to app",
            "declare c cursor for select 1 as hold",
            "select U&\"d\\0061ta\" from t",
        ] {
            assert!(
                !matches!(kinds(text)[..], [Statement::Refused(..)]),
                "{text}"
            );
        }
    }
}
