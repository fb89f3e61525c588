//! Message exchanges of clients with a holder, frame by frame beside those with a server. A savepoint is made and released together with
//! a statement where no constraint is checked late, and by itself where one is: a client sees no difference.

use crate::postgres::{Shop, TWO_CLIENTS, inside, refused};
use crate::*;

/// Makes every check immediate, for ever.
const NEVER_LATE: &str = "ALTER TABLE orders ALTER CONSTRAINT orders_item_fkey NOT DEFERRABLE";

/// A client that speaks in frames.
pub(crate) const FRAMES: &str = r#"
import socket, struct, sys, threading, urllib.parse
class Raw:
    def __init__(self, url, *more):
        url = urllib.parse.urlparse(url)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.path, self.rest = query["host"] + "/.s.PGSQL.5432", b""
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(120)
        self.link.connect(self.path)
        body = struct.pack(">i", 196608)
        for text in ["user", query["user"], "database", url.path[1:], *more]:
            body += (text if type(text) is bytes else text.encode()) + b"\0"
        self.link.sendall(struct.pack(">i", len(body) + 5) + body + b"\0")
        for kind, body in self.answers():
            if kind == "K": self.key = body
    def answers(self, ends=1):
        found = []
        while ends:
            while len(self.rest) < 5 or len(self.rest) < 1 + struct.unpack(">i", self.rest[1:5])[0]:
                more = self.link.recv(65536)
                assert more, ("closed", found)
                self.rest += more
            length = 1 + struct.unpack(">i", self.rest[1:5])[0]
            kind, body, self.rest = chr(self.rest[0]), self.rest[5:length], self.rest[length:]
            if kind in "EN":
                body = [f for f in body.split(b"\0") if f[:1] in (b"S", b"C", b"M", b"P")]
            if kind != "S" or b"application_name" in body:
                found.append((kind, body))
            ends -= kind == "Z"
        return found
    def say(self, batch, ends=1):
        self.link.sendall(batch)
        return self.answers(ends)
    def copies(self):
        while b"G\0\0" not in self.rest:
            more = self.link.recv(65536)
            assert more, ("closed", self.rest)
            self.rest += more
        self.rest = b""
    def cancel(self):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(self.path)
            link.sendall(struct.pack(">ii", 16, 80877102) + self.key)
            link.recv(1)
def frame(kind, body=b""):
    return kind.encode() + struct.pack(">i", len(body) + 4) + body
def Q(text): return frame("Q", (text if type(text) is bytes else text.encode()) + b"\0")
def P(text, name=""): return frame("P", name.encode() + b"\0" + text.encode() + b"\0\0\0")
def B(name="", portal=""): return frame("B", portal.encode() + b"\0" + name.encode() + b"\0" + b"\0" * 6)
def D(portal=""): return frame("D", b"P" + portal.encode() + b"\0")
def C(name): return frame("C", b"S" + name.encode() + b"\0")
def E(portal="", rows=0): return frame("E", portal.encode() + b"\0" + struct.pack(">i", rows))
S, H = frame("S"), frame("H")
def X(text): return P(text) + B() + D() + E()
"#;

/// What is sent to a server and to a holder, one after the other.
const BESIDE: &str = r#"
direct, held = Raw(sys.argv[1]), Raw(sys.argv[2])
data = frame("d", b"70\tcopied\t1\n") + frame("c")
batches = [
    Q("SELECT 1"), Q("SELECT 1; SELECT 2"), Q(""), Q(";"), Q("-- nothing"), Q("SELECT 1 / 0"), Q("SELECT count(*) FROM items"),
    Q("INSERT INTO items VALUES (50, 'a', 1)"), Q("INSERT INTO items VALUES (50, 'twice', 1)"), Q("SELEC"),
    Q("INSERT INTO items VALUES (51, 'gone', 1); SELECT 1 / 0"), Q("SELECT max(id) FROM items"), Q("TABLE loose"), Q("VALUES (1), (2)"),
    Q("WITH x AS (DELETE FROM items WHERE id = 50 RETURNING id) SELECT * FROM x"), Q("SELECT 1 AS \"copy\", 'copy t from stdin;'"),
    Q("BEGIN"), Q("COMMIT"), Q("BEGIN"), Q("ROLLBACK"), Q("BEGIN"), Q("BEGIN"), Q("COMMIT AND CHAIN"), Q("SELECT 1"), Q("END"), Q("COMMIT"),
    Q("BEGIN"), Q("UPDATE items SET price = 0 WHERE id = 1"), Q("SELECT 1 / 0"), Q("SELECT 1"), Q("COMMIT"),
    Q("SELECT price FROM items WHERE id = 1"), Q("BEGIN; UPDATE items SET price = 9 WHERE id = 2; COMMIT"), Q("BEGIN READ ONLY"),
    Q("DELETE FROM items"), Q("ROLLBACK"), Q("SELECT price FROM items WHERE id = 2"), Q("BEGIN; SELECT 1 / 0"), Q("ROLLBACK"), Q("SAVEPOINT s"),
    Q("SET standard_conforming_strings = off"), Q("SELECT 'a\\''; SELECT ';'"), Q("SELECT 'a\\''; SELECT 1 / 0"), Q("RESET standard_conforming_strings"),
    Q("INSERT INTO items VALUES (52, E'\\n', 1, 2)"), Q("SELEC E'\\n'"), Q("SELECT E'\\n' FROM nowhere"), Q("SELECT E'\\n'; SELECT E'\\t'"),
    Q("-- größe"), Q("SELECT 'ü'"), Q("/* für */ SELECT $$;$$; SELECT $x$b$x$"), Q("EXPLAIN (COSTS off) SELECT 'ü'"), Q("SHOW DateStyle -- ü"),
    Q("DO $$ BEGIN RAISE NOTICE 'ü'; END $$"), Q("UPDATE items SET name = 'ü' WHERE id = 5 RETURNING id, name"), Q("SELECT 'ü' FROM nowhere"),
    Q("BEGIN"), Q("DECLARE c CURSOR FOR SELECT 'ü' UNION ALL SELECT 'ö'"), Q("FETCH c -- ü"), Q("SELECT 'ü' / 0"), Q("SAVEPOINT ü"), Q("ROLLBACK -- ü"),
    Q("BEGIN; SAVEPOINT ü; SELECT 1 / 0"), Q("ROLLBACK TO ü"), Q("SELECT 'ü'"), Q("COMMIT"), Q("COPY (SELECT 'ü') TO STDOUT"), Q("ü"),
    Q("PREPARE ü AS SELECT 'ü'"), Q("EXECUTE ü"), Q("DEALLOCATE ü"), Q("EXECUTE ü"), Q("VALUES ('ü'); COPY nowhere FROM STDIN (NULL '\\N')"),
    Q("SELECT 1"), Q("SELECT 1"), X("SELECT 2") + S, X("UPDATE items SET price = 1 WHERE id = 9") + S, Q("SELECT 1"), X("SELECT 2") + S,
    S, X("SELECT 1") + S, X("SELECT 1 / 0") + S, X("INSERT INTO items VALUES (60, 'x', 1)") + X("SELECT 1 / 0") + X("SELECT 2") + S,
    X("SELECT count(*) FROM items") + X("SELECT 2") + S, P("SELECT 3", "three") + S, B("three") + E() + S, B("three") + D() + E() + S,
    X("SELECT 1 / 0") + C("three") + P("SELECT 5", "five") + S, B("five") + E() + S, B("three") + E() + S, C("three") + C("three") + P("SELECT 3", "three") + S,
    P("SELECT 4", "three") + S, B("three") + E() + S, B("four") + E() + S, E("nowhere") + S, X("") + S, X("SELECT 1") + H + X("SELECT 2") + S,
    P("SELECT g FROM generate_series(1, 5) g") + B() + E("", 2) + E("", 2) + S, P("SELECT 1") + B("", "mine") + E("mine") + S, E("mine") + S,
    P("BEGIN", "b") + P("END", "e") + P("ROLLBACK", "r") + S, B("b") + D() + E() + S, B("three") + E() + S, B("e") + D() + E() + S,
    P("COMMIT", "b") + S, B("b") + E() + S, Q("ROLLBACK"), P("COMMIT", "three") + S, B("three") + E() + S,
    B("b") + E() + B("three") + E() + B("e") + E() + S, B("b") + E() + X("SELECT 1 / 0") + B("e") + E() + S, B("three") + E() + S,
    B("e") + E() + S, B("b") + E() + X("UPDATE items SET price = 8 WHERE id = 3") + S, B("r") + E() + S, B("e") + E() + B("three") + E() + S,
    B("b") + E() + X("UPDATE items SET price = 7 WHERE id = 4") + B("e") + E() + X("SELECT 1 / 0") + S, Q("SELECT price FROM items WHERE id < 5"),
    X("CREATE TABLE made (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)") + S, X("INSERT INTO made VALUES (1)") + S, Q("SELECT a + 0 FROM made"),
    Q("INSERT INTO made VALUES (1)"), X("INSERT INTO made VALUES (1)") + S, Q("SELECT 'ü'; INSERT INTO made VALUES (1)"), Q("BEGIN"), Q("INSERT INTO made VALUES (1)"),
    Q("COMMIT"), Q("BEGIN; INSERT INTO made VALUES (1); COMMIT; SELECT 1"), Q("SELECT count(*) FROM made"),
    X("SET application_name = 'x'") + S, Q("SHOW application_name"), Q("SELECT set_config('application_name', 'y', false)"),
    Q("DEALLOCATE escrow_savepoint"), Q("EXECUTE escrow_release"), Q("SELECT 1"), X("SELECT 1") + S,
    X("DEALLOCATE ALL") + S, B("three") + E() + S, X("DROP TABLE made") + S, Q("SELECT count(*), sum(id), sum(price) FROM items"),
]
for batch in batches:
    wanted, found = direct.say(batch), held.say(batch)
    assert wanted == found, (batch, wanted, found)
# What is copied comes after the answer.
batches = ["COPY items FROM STDIN", "COPY items FROM STDIN (NULL '\\N')", "SELECT 'ü'; COPY items FROM STDIN; SELECT 'ü'"]
for batch in [*map(Q, batches), P("COPY items FROM STDIN") + B() + E() + S]:
    # The second time there is such a row already.
    for end in [data, frame("d", b"bad\n") + frame("c"), frame("f", b"no\0")]:
        for one in (direct, held):
            one.link.sendall(batch)
        extended = batch[:1] == b"P"
        wanted, found = (one.say(end + S * extended) for one in (direct, held))
        assert wanted == found, (batch, wanted, found)
    for one in (direct, held):
        one.say(Q("DELETE FROM items WHERE id = 70"))
"#;

#[test]
fn a_client_sees_the_frames_of_a_server() {
    for late in [true, false] {
        let shop = Shop::new(true);
        if !late {
            shop.sql(NEVER_LATE);
        }
        shop.server
            .sql("postgres", "CREATE DATABASE beside TEMPLATE shop");
        let url = shop.plan("try");
        python(
            &[FRAMES, BESIDE].concat(),
            &[&shop.server.url("postgres", "beside"), &url],
        );
        python(TWO_CLIENTS, &[&url]);
        shop.cli.ok("cleanup --yes try");
        shop.assert_nothing_left();
    }
}

/// A client that went, or said what no client says, before its exchange had its end.
#[test]
fn a_client_that_goes_in_the_middle_of_an_exchange_takes_nothing_with_it() {
    let shop = Shop::new(true);
    shop.sql(NEVER_LATE);
    let url = shop.plan("try");
    inside(&url, "UPDATE items SET price = 3");
    let script = r#"
for last in [frame("X"), frame("~"), b"", frame("X") + S]:
    one = Raw(sys.argv[1])
    one.link.sendall(X("UPDATE items SET price = 4") + last)
    one.link.close()
"#;
    python(&[FRAMES, script].concat(), &[&url]);
    assert_eq!(
        inside(&url, "SELECT min(price), max(price) FROM items"),
        "3|3"
    );
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|60");
    shop.assert_nothing_left();
}

/// A client that went before it heard that the server takes its copy in left a server that waited for the copy, and others for the server.
// rule Q3
#[test]
fn a_client_that_went_before_its_copy_began_left_a_sandbox_that_waits() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "UPDATE items SET price = 3");
    let script = r#"
for sql in ["COPY loose FROM STDIN", "COPY loose FROM STDIN (NULL 'ü')"]:
    for _ in range(5):
        one = Raw(sys.argv[1])
        one.link.sendall(Q(sql))
        one.link.close()
        other = Raw(sys.argv[1])
        other.link.settimeout(30)
        assert other.say(Q("SELECT 1"))[-1] == ("Z", b"I")
"#;
    python(&[FRAMES, script].concat(), &[&url]);
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|60");
    shop.assert_nothing_left();
}

/// After a `Bind` that failed the portal without a name was the one that the server had left of a failed query: to carry that out ends the
/// server (PostgreSQL 15: its text is freed), with every client of it. A client of the server itself can do that; one of a sandbox cannot.
// rule Q3
#[test]
fn a_portal_that_could_not_be_made_was_one_that_ends_the_server() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "UPDATE items SET price = 3");
    let script = r#"
one = Raw(sys.argv[1])
one.say(P("SELECT 1", "sel") + S)
for failing in [B("none"), B("none") + B("sel"), P("SELEC") + B("sel")]:
    for message in [E(), E(rows=2), D(), frame("C", b"P\0") + E()]:
        one.say(Q("BEGIN"))
        one.say(Q("RELEASE s"))
        one.say(Q("SELECT 1; SELECT 1/0"))
        assert one.say(failing + S)[-1] == ("Z", b"E")
        found = one.say(message + S)
        assert b"C34000" in str(found).encode() and found[-1] == ("Z", b"E"), found
        one.say(Q("ROLLBACK"))
# One that was made is the client's own, also after an error.
one.say(Q("BEGIN"))
one.say(B("sel") + E() + P("SELEC") + S)
found = one.say(E() + S)
assert b"C25P02" in str(found).encode(), found
one.say(Q("ROLLBACK"))
"#;
    python(&[FRAMES, script].concat(), &[&url]);
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|60");
    shop.assert_nothing_left();
}

/// What a portal is was forgotten when another one was to have its name, which the server refuses: that it copies came as a surprise.
// rule Q3
#[test]
fn a_portal_whose_name_was_to_be_another_s_took_the_sandbox_with_it() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "UPDATE items SET price = 3");
    let script = r#"
one = Raw(sys.argv[1])
one.say(Q("BEGIN"))
one.say(P("COPY loose FROM STDIN", "c") + P("SELECT 1", "sel") + B("c", "p") + S)
one.say(Q("SAVEPOINT s"))
assert b"C42P03" in str(one.say(B("sel", "p") + S)).encode()
one.say(Q("ROLLBACK TO s"))
one.link.sendall(E("p") + S)
one.copies()
found = one.say(frame("d", b"9\t9\n") + frame("c") + S)
assert found[-1] == ("Z", b"T"), found
one.say(Q("COMMIT"))
# A close, or another one in the place of that without a name, that the server passed over or refused.
for portal, failing in [("p", P("SELEC") + frame("C", b"Pp\0")), ("p", P("SELEC") + frame("C", b"Pp\0") + B("sel", "p")), ("", B("none"))]:
    one.say(Q("BEGIN"))
    one.say(P("SAVEPOINT s", "save") + P("ROLLBACK TO s", "back") + S)
    one.say(B("c", portal) + S)
    one.say(B("save", "x") + E("x") + S)
    assert one.say(failing + S)[-1] == ("Z", b"E")
    one.say(B("back", "y") + E("y") + S)
    one.link.sendall(E(portal) + S)
    one.copies()
    found = one.say(frame("c") + S)
    assert found[-1] == ("Z", b"T"), found
    one.say(Q("COMMIT"))
    one.say(frame("C", b"Ssave\0") + frame("C", b"Sback\0") + S)
"#;
    python(&[FRAMES, script].concat(), &[&url]);
    assert_eq!(inside(&url, "SELECT count(*) FROM loose"), "4");
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|60");
    shop.assert_nothing_left();
}

#[test]
fn a_setting_of_a_statement_that_was_prepared_before_is_the_clients_own() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let script = r#"
a, b = Raw(sys.argv[1]), Raw(sys.argv[1])
a.say(P("SET extra_float_digits = 3", "set") + S)
a.say(B("set") + E() + S)
shown = lambda one: [body for kind, body in one.say(Q("SHOW extra_float_digits")) if kind == "D"]
assert shown(b) == [b"\0\x01\0\0\0\x011"], shown(b)
assert shown(a) == [b"\0\x01\0\0\0\x013"], shown(a)
"#;
    python(&[FRAMES, script].concat(), &[&url]);
}

/// Sends batches to a server and to a holder, one after the other: the answers are the same.
#[track_caller]
fn answered_alike(batches: &str) {
    let shop = Shop::new(true);
    shop.server
        .sql("postgres", "CREATE DATABASE beside TEMPLATE shop");
    let url = shop.plan("try");
    inside(&url, "UPDATE items SET price = 3");
    let compare = r#"
direct, held = Raw(sys.argv[1]), Raw(sys.argv[2])
for batch in batches:
    wanted, found = direct.say(batch), held.say(batch)
    assert wanted == found, (batch, wanted, found)
"#;
    python(
        &[FRAMES, batches, compare].concat(),
        &[&shop.server.url("postgres", "beside"), &url],
    );
    assert_eq!(inside(&url, "SELECT sum(price) FROM items"), "60");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// A server reads the whole of a query before it does any of it. It was carried out part by part: what stood before the mistake was done, and
/// stayed where a `COMMIT` did too. The place of the mistake was that in its part.
// rule Q3
#[test]
fn a_query_that_cannot_be_read_was_carried_out_up_to_the_mistake() {
    answered_alike(
        r#"
count = Q("SELECT count(*) FROM loose")
batches = [
    Q("BEGIN; INSERT INTO loose VALUES (9); COMMIT; SELEC 1"), count,
    Q("BEGIN"), Q("INSERT INTO loose VALUES (9)"), Q("COMMIT; SELEC 1"), Q("SELECT 1; SELEC 1"), Q("SELECT 1; COMMIT; SELEC 1"), Q("ROLLBACK"), count,
    Q("BEGIN"), Q("COMMIT; SELEC 1"), Q("SELECT 1; ROLLBACK"), Q("ROLLBACK; SELECT 1"), Q("ROLLBACK"),
    Q("BEGIN"), Q("SAVEPOINT a; INSERT INTO loose VALUES (9)"), Q("SAVEPOINT b; SELEC"), Q("ROLLBACK TO b"), Q("ROLLBACK TO a; SELECT 1"), Q("COMMIT"), count,
    Q("PREPARE x AS SELECT 1; SELEC 1"), Q("EXECUTE x"), Q("BEGIN; SELECT 'unterminated"), Q("BEGIN; SELECT 1;;; /* c */ COMMIT; COMMIT"),
    Q("BEGIN; SELECT 'ü'; SELECT ö FROM items; COMMIT"), Q("ROLLBACK"), Q(";; SELECT 'ü'; SELECT $$ü$$, nothing FROM items"),
    Q("COMMIT; SELECT U&'\\+11zzzz'; BEGIN"), Q("BEGIN; SELECT 'a\\''; COMMIT"), Q("SET standard_conforming_strings = off; SET escape_string_warning = off"),
    Q("BEGIN; SELECT 'a\\''; COMMIT; SELECT '"), Q("BEGIN; SELECT E'a\\'b', 'a\\'b'; COMMIT"), Q("RESET standard_conforming_strings"),
    Q("BEGIN; INSERT INTO nowhere VALUES (1); COMMIT"), Q("ROLLBACK"), Q("BEGIN; CREATE TABLE made (a int); INSERT INTO made VALUES (1); COMMIT; SELECT a + 0 FROM made"),
    Q("BEGIN READ ONLY; DELETE FROM loose; COMMIT"), Q("ROLLBACK"), Q("BEGIN; DECLARE c CURSOR FOR SELECT 1; FETCH c; CLOSE c; COMMIT"), Q("SELECT 1; COMMIT AND CHAIN; SELECT 2"),
    Q("SET client_encoding = 'LATIN1'"), Q(b"BEGIN; SELECT '\xfc'; SELEC '\xfc'"), Q(b"BEGIN; SELECT '\xfc'; SELECT \xfc; COMMIT"), Q("ROLLBACK"), count,
]
"#,
    );
}

/// The server passes over a close after an error, so what was prepared in the same batch is there. It was forgotten: it could neither be used nor
/// closed, nor could its name have another one.
#[test]
fn a_statement_that_was_to_be_closed_after_an_error_was_forgotten() {
    answered_alike(
        r#"
one, fails, uses = P("SELECT 1", "s"), X("SELECT 1 / 0"), B("s") + E() + S
batches = [
    one + fails + C("s") + S, uses, one + S, C("s") + one + S, uses, C("s") + S,
    fails + one + C("s") + S, uses, one + C("s") + P("SELECT 2", "s") + fails + C("s") + S, uses, C("s") + S,
    one + fails + C("s") + P("SELECT 2", "s") + C("s") + S, uses, C("s") + P("SELECT 3", "s") + fails + C("s") + S, uses, C("s") + S,
    P("BEGIN", "s") + fails + C("s") + S, uses, Q("ROLLBACK"), C("s") + S, uses,
]
"#,
    );
}

/// Names that the holder gives, and what it does to say an error.
#[test]
fn errors_said_names_and_places_of_the_holder() {
    answered_alike(
        r#"
batches = [
    P("SELECT $1::int, $2::int", "two") + S, B("two") + S, P("SELECT $1::int") + B() + S, E() + S, E("p") + S, D() + S,
    Q("BEGIN"), P("BEGIN") + B() + E() + E() + S, Q("ROLLBACK"), P("BEGIN", "b") + B("b", "p") + E("p") + E("p") + S, Q("ROLLBACK"), E("p") + S,
    Q("SET CONSTRAINTS ALL DEFERRED"), Q("SET CONSTRAINTS ALL DEFERRED; SELECT 1"), Q("BEGIN; SET CONSTRAINTS ALL IMMEDIATE; COMMIT"),
    Q("SET CONSTRAINTS nowhere DEFERRED"), Q("BEGIN"), Q("SET CONSTRAINTS ALL IMMEDIATE"), Q("COMMIT"), Q("SAVEPOINT s"),
]
"#,
    );
    let shop = Shop::new(true);
    let url = shop.plan("try");
    for sql in ["SAVEPOINT s", "LISTEN n", "COMMIT AND CHAIN"] {
        let said = refused(&url, sql);
        assert!(
            !said.contains("CONTEXT") && !said.contains("SCHEMA"),
            "{said}"
        );
    }
    let own = "DO $$ BEGIN RAISE 'own' USING SCHEMA = 'mine'; END $$";
    has(
        &refused(&url, own),
        ["CONTEXT:  PL/pgSQL", "SCHEMA NAME:  mine"],
    );
    shop.cli.ok("cleanup --yes try");
}

/// The server is asked on a connection of its own, and may do it when the statement is over.
#[test]
fn a_cancel_that_comes_late_meets_no_other_client() {
    let shop = Shop::new(true);
    shop.sql(NEVER_LATE);
    let url = shop.plan("try");
    let script = r#"
a, b = Raw(sys.argv[1]), Raw(sys.argv[1])
over, wrong = False, []
def others():
    while not over:
        found = b.say(Q("SELECT count(*) FROM generate_series(1, 100)"))
        wrong.extend(one for one in found if one[0] == "E")
thread = threading.Thread(target=others)
thread.start()
for n in range(70):
    a.link.sendall(Q("SELECT pg_sleep(0.0%d)" % (17 + n % 7)))
    a.cancel()
    a.answers()
over = True
thread.join()
assert not wrong, wrong
assert a.say(Q("SELECT 1"))[-1] == ("Z", b"I")
"#;
    python(&[FRAMES, script].concat(), &[&url]);
    assert_eq!(inside(&url, "SELECT count(*) FROM items"), "20");
}

#[track_caller]
pub(crate) fn python(script: &str, args: &[&str]) {
    let mut python = Command::new("/usr/bin/python3");
    output_of(python.args(["-c", script]).args(args));
}
