//! A client of a held transaction that wants out of it, or wants that something is released which no diff shows. Each test is named after
//! what once worked.

use std::os::unix::ffi::OsStrExt;

use crate::postgres::{Shop, changes, inside, refused};
use crate::postgres_exchanges::{FRAMES, python};
use crate::*;

impl Shop {
    /// Says this in frames; `shop` is the URL of the sandbox.
    fn say(&self, url: &str, script: &str) {
        python(&format!("{FRAMES}\nshop = sys.argv[1]\n{script}"), &[url]);
    }

    /// The original has nothing of the sandbox, which still holds what it did.
    #[track_caller]
    fn assert_held(&self, url: &str, what: &str) {
        let price = "SELECT price FROM items WHERE id = 1";
        assert_eq!(self.server.sql("shop", price), "1.5", "{what}");
        assert_eq!(inside(url, price), "77", "{what}");
    }
}

const WORK: &str = "UPDATE items SET price = 77 WHERE id = 1";

/// What was read as a text, a comment or a body was a `COMMIT` for the server: it ended the held transaction, and the original had
/// what the sandbox did.
// rule Q1, Q3
#[test]
fn a_commit_hid_from_the_holder() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let hidden: [(&str, &[u8]); 7] = [
        (
            "standard_conforming_strings = off",
            b"SELECT 'x\\''; COMMIT; --'",
        ),
        (
            "standard_conforming_strings = on",
            b"SELECT E'a'\n'\\''; COMMIT; --'",
        ),
        (
            "client_encoding = 'SJIS'",
            b"SELECT E'\x83\x5c'; COMMIT; --'",
        ),
        ("search_path = public", b"SELECT 1 --\r; COMMIT"),
        ("search_path = public", b"--\rCOMMIT"),
        ("search_path = public", b"SELECT 1; --\rCOMMIT"),
        (
            "search_path = public",
            b"CREATE TABLE made AS SELECT begin atomic FROM (SELECT 1 AS begin) x; COMMIT; --",
        ),
    ];
    for (setting, sql) in hidden {
        inside(&url, "UPDATE items SET price = 77 WHERE id = 1");
        let mut psql = Command::new("psql");
        psql.args([url.as_str(), "-Xqc", &format!("SET {setting}"), "-c"]);
        psql.arg(std::ffi::OsStr::from_bytes(sql));
        let said = psql.output().expect("psql runs");
        let said = (String::from_utf8_lossy(sql), said);
        let price = "SELECT price FROM items WHERE id = 1";
        assert_eq!(shop.server.sql("shop", price), "1.5", "{said:?}");
        // What it hid in is carried out, or refused; the transaction is held as before.
        assert_eq!(inside(&url, price), "77", "{said:?}");
    }
    // With its backslash read as the server reads it, each statement is what it is.
    let backslash =
        "SET standard_conforming_strings = off; UPDATE items SET price = 78 WHERE id = 1";
    inside(&url, backslash);
    let several =
        "BEGIN; UPDATE items SET name = E'it\\'s; COMMIT' WHERE id = 1; COMMIT; SELECT 'C:\\'";
    inside(&url, several);
    let sql = "SELECT name, price FROM items WHERE id = 1";
    assert_eq!(inside(&url, sql), "it's; COMMIT|78");
    let body = "CREATE FUNCTION two() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT 1; SELECT 2; END; SELECT two()";
    assert_eq!(inside(&url, body), "2");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

// rule Q1, Q3
#[test]
fn a_name_or_a_setting_was_a_commit() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let attempts = [
        // A quote in a name.
        r#"
one = Raw(shop)
for sql in ['PREPARE x AS SELECT 1', 'PREPARE "x""; COMMIT; --" AS SELECT 1', 'DEALLOCATE "x""; COMMIT; --"']:
    one.say(Q(sql))
"#,
        // The end of the text in which the holder says an error.
        r#"
one = Raw(shop)
one.say(Q('DEALLOCATE "escrow_$escrow$; COMMIT; --"'))
one.say(Q('SAVEPOINT "escrow_$escrow$; COMMIT; --"'))
"#,
        // In a transaction that failed, a return to a savepoint lets the rest go on.
        r#"
one = Raw(shop)
for sql in [b"SET client_encoding = 'SJIS'", b"BEGIN", b'SAVEPOINT "a\x83\x5c$$"', b"SELECT 1 / 0", b"ROLLBACK TO a\x83\x5c$$; COMMIT; --$$"]:
    one.say(Q(sql))
one.say(Q("INSERT INTO loose VALUES (9, 'straight in')"))
"#,
        // A byte of a longer character, which is none that ends a name.
        r#"
one = Raw(shop)
one.say(Q("SET client_encoding = 'SJIS'"))
one.say(Q(b"SELECT 1 AS a\x83\x5b$$; COMMIT; --$$"))
"#,
        // What the engine says while the session reads another encoding.
        r#"
one = Raw(shop)
one.say(Q("SET backslash_quote = on"))
one.say(Q("SET client_encoding = 'SJIS'"))
try: Raw(shop, "application_name", b"\xc3\x81\x5c", "||version(), false); COMMIT; --", "x")
except AssertionError: pass
"#,
        // One Sync too many in a copy: every later answer was that to another question.
        r#"
one = Raw(shop)
one.link.sendall(P("COPY loose FROM STDIN") + B() + E() + S)
one.copies()
one.link.sendall(frame("f", b"no\0") + S + S)
one.answers(2)
one.say(Q("CREATE TABLE made AS SELECT begin atomic FROM (SELECT 1 AS begin) b; COMMIT; SELECT 1 AS end"))
"#,
        // A client that goes after its copy, before its Sync.
        r#"
one = Raw(shop)
one.link.sendall(P("COPY loose FROM STDIN") + B() + E() + H)
one.copies()
one.link.sendall(frame("c") + H)
one.link.close()
"#,
        // A copy that fails before its Sync is read, which the server then does not pass over.
        r#"
one = Raw(shop)
one.say(Q("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'"))
one.say(Q("CREATE TRIGGER slow BEFORE INSERT ON loose FOR EACH ROW EXECUTE FUNCTION slow()"))
for sql in [b"SET client_encoding = 'SJIS'", b"BEGIN", b'SAVEPOINT "a\x83\x5b$$"']: one.say(Q(sql))
copy = P("COPY loose FROM STDIN") + B() + E()
good, bad, end = frame("d", b"5\tcopied\n"), frame("d", b"bad\n"), frame("c")
one.say(copy + good + bad + S + end + S)
one.say(Q(b"ROLLBACK TO a\x83\x5b$$; COMMIT; --$$"))
one.say(Q("ROLLBACK"))
for batch in [copy + good + end + copy + good + end + S, copy + good + end + copy + S + good + end + S, copy + bad + S + end + S, copy + X("SELECT 1") + S]:
    one.say(batch)
    assert one.say(Q("SELECT 1"))[-2:] == [("C", b"SELECT 1\0"), ("Z", b"I")], batch
one.say(Q("DROP TRIGGER slow ON loose"))
one.say(Q("DROP FUNCTION slow()"))
one.say(Q("DELETE FROM loose WHERE b = 'copied'"))
"#,
        // A cancel while the server reads, which is not its word that it read one statement.
        r#"
one = Raw(shop)
for sql in ["SET client_min_messages = debug2", "SET client_encoding = 'SJIS'"]: one.say(Q(sql))
text = b"SELECT 1 AS a\x83\x5b$$; COMMIT; --$$ --" + b"x" * 20000000
for delay in [0.25, 0.4, 0.55, 0.7]:
    import time
    timer = threading.Timer(delay, one.cancel)
    timer.start()
    one.say(Q(text))
    timer.join()
"#,
        // One statement for the server that is two where backslashes are read otherwise.
        r#"
one = Raw(shop)
one.say(Q("SET standard_conforming_strings = off"))
for sql in ["PREPARE TRANSACTION 'a\\'; b'", "COMMIT; SELECT 1", "SELECT 1; COMMIT"]:
    assert [kind for kind, _ in one.say(P(sql) + B() + E() + S)][-2:] == ["E", "Z"], sql
one.link.sendall(P("COPY loose FROM STDIN (NULL 'a\\'; b')") + B() + E() + frame("d", b"bad\n") + S + frame("c") + S)
one.answers()
one.say(Q("CREATE TABLE set_config (a int)"))
one.say(P("COPY set_config FROM STDIN") + B() + E() + frame("d", b"bad\n") + S + frame("c") + S)
assert one.say(Q("SELECT 1"))[-2:] == [("C", b"SELECT 1\0"), ("Z", b"I")]
one.say(Q("DROP TABLE set_config"))
"#,
        // A statement that was passed over after an error, and a copy of its name.
        r#"
one = Raw(shop)
one.link.sendall(X("SELECT 1 / 0") + H)
while b"22012" not in one.rest: one.rest += one.link.recv(65536)
one.rest = b""
one.say(P("SELECT 1", "x") + S)
for sql in ["SELECT 1", "COPY loose FROM STDIN"]: one.say(P(sql, "x") + S)
one.say(C("x") + P("COPY loose FROM STDIN", "x") + S)
one.link.sendall(B("x") + E() + frame("d", b"bad\n") + S)
one.link.close()
assert Raw(shop).say(Q("SELECT 1"))[-2:] == [("C", b"SELECT 1\0"), ("Z", b"I")]
"#,
        // A client that goes before its copy begins: the server waited for a Sync that had come in the copy.
        r#"
for batch in [Q("SELECT 'é'; COPY loose FROM STDIN /*é*/"), Q("SELECT pg_sleep(0.2); COPY loose FROM STDIN /*é*/"),
              Q("BEGIN") + X("SELECT pg_sleep(0.2), repeat('x', 100000)") + X("COPY loose FROM STDIN") + S]:
    one = Raw(shop)
    one.link.sendall(batch)
    one.link.close()
    assert Raw(shop).say(Q("SELECT 1"))[-2:] == [("C", b"SELECT 1\0"), ("Z", b"I")], batch
"#,
        // Copies that come before they are asked for, or end twice.
        r#"
one = Raw(shop)
data = frame("d", b"5\tcopied\n")
one.say(P("COPY loose FROM STDIN") + B() + E() + data + frame("c") + S)
one.say(P("COPY loose FROM STDIN") + B() + E() + H + data + frame("c") + frame("c") + S)
one.say(frame("c") + P("SELECT 1") + B() + E() + S)
one.link.sendall(P("COPY loose FROM STDIN") + B() + E() + S)
one.copies()
assert one.say(data + frame("c") + S)[-1][0] == "Z"
assert one.say(Q("SELECT count(*) FROM loose WHERE b = 'copied'"))[1][1][-1:] == b"3"
one.say(Q("DELETE FROM loose WHERE b = 'copied'"))
"#,
    ];
    for attempt in attempts {
        inside(&url, WORK);
        shop.say(&url, attempt);
        shop.assert_held(&url, attempt);
        assert!(
            changes(&shop.cli, "try").contains(&"updated items/1".to_owned()),
            "{attempt}"
        );
    }
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

// rule C11
#[test]
fn something_was_released_that_no_diff_showed() {
    let shop = Shop::new(true);
    shop.server.sql(
        "shop",
        "CREATE ROLE low; GRANT ALL ON items TO low; CREATE TABLE audit (a int, m text); GRANT ALL ON audit TO low; \
         ALTER TABLE audit ENABLE ROW LEVEL SECURITY; CREATE POLICY i ON audit FOR INSERT WITH CHECK (true); \
         CREATE POLICY s ON audit FOR SELECT USING (m <> 'secret'); CREATE TABLE d (a int); CREATE TABLE log (a int); \
         CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (NEW.a); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late(); \
         CREATE FUNCTION ins() RETURNS void LANGUAGE sql AS 'INSERT INTO d VALUES (1)'",
    );
    let url = shop.plan("try");
    // The path on which the engine looks for operators and functions.
    let own = r#""search_path", "", "DateStyle", "ISO", "IntervalStyle", "postgres", "TimeZone", "UTC", "extra_float_digits", "3", "bytea_output", "hex""#;
    shop.say(
        &url,
        &format!(
            r#"
one = Raw(shop, {own})
for sql in ["CREATE SCHEMA evil", "CREATE FUNCTION evil.le(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false'",
            "CREATE OPERATOR evil.<= (FUNCTION = evil.le, LEFTARG = int, RIGHTARG = int)",
            "CREATE FUNCTION evil.set_config(text, text, bool) RETURNS text LANGUAGE sql AS 'INSERT INTO public.loose VALUES (8, $1); SELECT $1'",
            "INSERT INTO public.items VALUES (31, 'seen', 1)", '''SELECT "set_config"('search_path', 'evil,pg_catalog', false)''']:
    one.say(Q(sql))
"#
        ),
    );
    let shown = changes(&shop.cli, "try");
    assert!(shown.contains(&"inserted items/31".to_owned()), "{shown:?}");
    // Who connects writes nothing.
    shop.say(
        &url,
        r#"Raw(shop, "search_path", "evil,pg_catalog", "z.z", "1")"#,
    );
    assert_eq!(inside(&url, "SELECT count(*) FROM loose WHERE a = 8"), "0");
    // Rows that a policy hides, and another role that a session would keep.
    inside(&url, "SET ROLE low; INSERT INTO audit VALUES (1, 'secret')");
    let said = refused(&url, "SET session_authorization TO low");
    has(&said, ["SET SESSION AUTHORIZATION is not possible"]);
    let said = refused(
        &url,
        "SELECT \"set_config\"('session_authorization', 'low', false)",
    );
    has(&said, ["SET SESSION AUTHORIZATION is not possible"]);
    // Triggers that wait for the end, and tables that no program writes.
    inside(&url, "SELECT ins()");
    inside(
        &url,
        "UPDATE information_schema.sql_features SET comments = 'x' WHERE feature_id = 'B011'",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["audit", "inserted log", "sql_features"]);
    shop.cli.ok("commit try");
    shop.cli.ok("cleanup --yes try");
}

/// To its own user of the database, a policy hides rows also from the diff: the table is named, and counts as changed.
// rule C11, Q3
#[test]
fn rows_that_a_policy_hides_were_released_unseen() {
    let shop = Shop::new(true);
    shop.server.sql(
        "shop",
        "CREATE ROLE low LOGIN; GRANT ALL ON items TO low; CREATE TABLE audit (a int, m text); GRANT ALL ON audit TO low; \
         ALTER TABLE audit ENABLE ROW LEVEL SECURITY; CREATE POLICY i ON audit FOR INSERT WITH CHECK (true); \
         CREATE POLICY s ON audit FOR SELECT USING (m <> 'secret')",
    );
    let server = shop.server.url("low", "shop");
    shop.cli
        .ok(["plan", "create", "try", "--resource", &server]);
    let url = shop.url("try");
    inside(&url, "INSERT INTO audit VALUES (1, 'secret')");
    let shown = shop.cli.ok("diff try");
    has(&shown, ["audit", "this role may not read all of it"]);
    shop.cli.ok("cleanup --yes try");
}

/// A function carried out the prepared statements by which the holder made and released savepoints: a rollback of one client took back what
/// another had committed. No statement of the holder has a name any more.
// rule Q3
#[test]
fn a_function_made_savepoints_of_the_holder() {
    let shop = Shop::new(true);
    let no_late = "ALTER TABLE orders ALTER CONSTRAINT orders_item_fkey NOT DEFERRABLE";
    shop.server.sql("shop", no_late);
    let url = shop.plan("try");
    let script = r#"
a, b, c = Raw(shop), Raw(shop), Raw(shop)
a.say(Q("SELECT 1")); a.say(Q("SELECT 1"))
for one, name in [(a, "savepoint"), (b, "release")]:
    for sql in ["BEGIN", "SELECT 1", "DO 'BEGIN EXECUTE ''EXECUTE escrow_%s''; END'" % name, "COMMIT"]: found = one.say(Q(sql))
    c.say(Q("INSERT INTO loose VALUES (7, 'kept')"))
assert ("D", b"\0\x01\0\0\0\x010") in a.say(Q("SELECT count(*) FROM pg_prepared_statements"))
"#;
    shop.say(&url, script);
    let kept = "SELECT count(*) FROM loose WHERE a = 7";
    assert_eq!(inside(&url, kept), "2");
    assert_eq!(shop.server.sql("shop", kept), "0");
    shop.cli.ok("cleanup --yes try");
}

/// Messages that are longer than the server takes, and settings that cannot be set again, took everybody's work with them.
// rule Q3
#[test]
fn a_client_that_is_refused_took_all_others_with_it() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let attempts = [
        r#"
big = b"n" * 10000
for batch in [frame("E", big + b"\0\0\0\0\0"), frame("D", b"P" + big + b"\0"), frame("C", b"P" + big + b"\0"), frame("H", big), frame("S", big),
              Q("COPY loose FROM STDIN") + frame("f", big + b"\0"), Q("COPY loose FROM STDIN") + frame("c", big), P("SELECT 1") + frame("c", big)]:
    try: Raw(shop).say(batch + S)
    except (AssertionError, OSError): pass
"#,
        r#"
one = Raw(shop)
for sql in ["CREATE ROLE gone", "SET ROLE gone", "BEGIN", "SET LOCAL ROLE NONE", "DROP ROLE gone", "COMMIT", "SELECT 1"]:
    try: one.say(Q(sql))
    except (AssertionError, OSError): break
"#,
        r#"
import time
one = Raw(shop)
for sql in ["UPDATE pg_settings SET setting = '200' WHERE name = 'idle_in_transaction_session_timeout'",
            '''SELECT pg_catalog.U&"set!005fconfig" UESCAPE '!' ('idle_in_transaction_session_timeout', '200', false)''']: one.say(Q(sql))
time.sleep(0.6)
"#,
        r#"
one = Raw(shop)
for sql in ["SET exit_on_error = on", "SELECT 1 / 0"]: one.say(Q(sql))
"#,
        r#"
one, two = Raw(shop), Raw(shop)
one.say(Q("CREATE SCHEMA evil")); one.say(Q("CREATE TABLE evil.items (a int)"))
one.say(Q("UPDATE pg_settings SET setting = 'evil' WHERE name = 'search_path'"))
assert one.say(Q("SET SESSION SESSION AUTHORIZATION DEFAULT"))[0][0] == "E"
assert two.say(Q("SELECT id FROM items"))[0][0] == "T"
two.say(Q("DROP SCHEMA evil CASCADE"))
"#,
    ];
    for attempt in attempts {
        inside(&url, WORK);
        shop.say(&url, attempt);
        shop.assert_held(&url, attempt);
    }
    let held = "DO $$ BEGIN EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1'; END $$";
    inside(&url, held);
    shop.cli.ok("commit try --dry-run");
    shop.cli.ok("commit try");
    shop.assert_nothing_left();
}

/// Triggers that only the end of the transaction would run do not write behind the diff, however they were made.
// rule C11
#[test]
fn the_end_of_the_transaction_wrote_more_than_was_shown() {
    let shop = Shop::new(true);
    let no_late = "ALTER TABLE orders ALTER CONSTRAINT orders_item_fkey NOT DEFERRABLE";
    shop.server.sql("shop", no_late);
    shop.server
        .sql("shop", "CREATE TABLE d (a int); CREATE TABLE log (a int)");
    let url = shop.plan("try");
    inside(
        &url,
        "DO $$ BEGIN CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN INSERT INTO public.log VALUES (NEW.a); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late(); \
         INSERT INTO d VALUES (1); END $$",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    assert!(!shown.contains("inserted log"), "{shown}");
    let said = shop.cli.run("commit try");
    assert!(said.status != 0, "{said:?}");
    has(&said.stderr_text(), ["changed more than was shown"]);
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["inserted log"]);
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", "SELECT count(*) FROM log"), "1");
    shop.cli.ok("cleanup --yes try");
}

/// A trigger that lets itself wait again when it is run before the end wrote at the very end, where no diff shows it.
// rule C11
#[test]
fn a_trigger_that_waited_again_wrote_at_the_very_end() {
    let shop = Shop::new(true);
    shop.server
        .sql("shop", "CREATE TABLE d (a int); CREATE TABLE log (a int)");
    let url = shop.plan("try");
    inside(
        &url,
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_query() ~ '^PREPARE' THEN INSERT INTO public.log VALUES (NEW.a); RETURN NULL; END IF; \
         SET CONSTRAINTS public.late DEFERRED; UPDATE public.d SET a = a WHERE a = NEW.a; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late(); \
         INSERT INTO d VALUES (1)",
    );
    let shown = changes(&shop.cli, "try");
    has(
        &shop.cli.fails("commit try", 1),
        ["waits for the end of the transaction again", "\"d\""],
    );
    assert_eq!(changes(&shop.cli, "try"), shown, "nothing is lost");
    inside(
        &url,
        "CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    );
    shop.cli.ok("commit try");
    let rows = "SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM log)";
    assert_eq!(shop.server.sql("shop", rows), "1|0");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// The holder's own statements met a limit that a client had set for its own, outside of every savepoint.
// rule Q3
#[test]
fn a_short_limit_of_time_ended_the_sandbox() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, WORK);
    let script = r#"
for limit in ["1", "'1ms'", "'50us'", "'0.001s'", "'0x1'"]:
    one = Raw(shop)
    for sql in ["SET statement_timeout = " + limit, "BEGIN", "SELECT 1", "COMMIT", "SELECT set_config('statement_timeout', '1', false)"]:
        for _ in range(3): one.say(Q(sql))
for value in ["1", "1ms"]:
    one = Raw(shop, "statement_timeout", value)
    for _ in range(10): one.say(Q("SELECT 1"))
one = Raw(shop)
for sql in ["BEGIN", "SET statement_timeout = 1", "SELECT pg_sleep(1)", "ROLLBACK", "BEGIN", "SET LOCAL statement_timeout = 1", "COMMIT"]:
    for _ in range(2): one.say(Q(sql))
"#;
    shop.say(&url, script);
    shop.assert_held(&url, "statement_timeout");
    let slow = "SET statement_timeout = 1; SELECT pg_sleep(30)";
    has(&refused(&url, slow), ["57014"]);
    let least = "SET statement_timeout = 1";
    let mut psql = Command::new("psql");
    psql.args([&url, "-XqAtc", least, "-c", "SHOW statement_timeout"]);
    let said = psql.output().expect("psql runs").stdout;
    let said = String::from_utf8_lossy(&said);
    // Where the machine is busy, the statement that sets it fails by it.
    assert!(["200ms", "0"].contains(&said.trim_end()), "{said}");
    shop.assert_held(&url, "statement_timeout");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// A client that limits how long nothing may happen in a transaction would end what is held.
// rule Q3
#[test]
fn timeouts_of_a_client_ended_the_sandbox() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, WORK);
    let limit = "idle_in_transaction_session_timeout";
    inside(&url, &format!("SET {limit} = 200"));
    inside(&url, &format!("SELECT set_config('{limit}', '200', false)"));
    shop.say(
        &url,
        &format!(r#"Raw(shop, "options", "-c {limit}=200").say(Q("SELECT 1"))"#),
    );
    std::thread::sleep(std::time::Duration::from_millis(600));
    shop.assert_held(&url, limit);
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}
