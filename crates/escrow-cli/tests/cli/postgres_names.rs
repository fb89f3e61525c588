//! Clients of a held transaction and what belongs to them: names of prepared statements, cursors, settings, and their end. Each was once
//! reached by another client, or took the sandbox with it.

use std::time::{Duration, Instant};

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, inside, refused};
use crate::postgres_exchanges::{FRAMES, python};
use crate::*;

/// Runs a script with two clients, `a` and `b`, of a sandbox that has work in it; afterwards the work is there, and nothing in the original.
#[track_caller]
fn two_clients(script: &str) -> (Shop, String) {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "INSERT INTO items VALUES (900, 'work', 1)");
    let begin = "shop = sys.argv[1]\na, b = Raw(shop), Raw(shop)\nrows = lambda found: [body for kind, body in found if kind == \"D\"]\n\
                 failed = lambda found: [body for kind, body in found if kind == \"E\"]\n";
    python(&[FRAMES, begin, script].concat(), &[&url]);
    assert_eq!(
        inside(&url, "SELECT name FROM items WHERE id = 900"),
        "work"
    );
    assert_eq!(shop.items(), "20|315.0");
    (shop, url)
}

/// The name was put into the text at a place that the client chose: behind an empty statement, it kept a comment open.
#[test]
fn a_name_that_was_put_into_a_comment_let_a_commit_out() {
    let (shop, url) = two_clients(
        r#"
hide = lambda sql: P("/*aaaaa*/;EXECUTE x */ " + sql) + B() + E()
for ends in ["COMMIT", "COMMIT AND CHAIN", "PREPARE TRANSACTION 'x'"]:
    for place in range(2, 9):
        text = "/*" + "a" * place + "*/;EXECUTE x */ " + ends
        assert failed(a.say(P(text) + B() + E() + S)), text
a.say(hide("COMMIT AND CHAIN") + hide("SAVEPOINT escrow_work") + S)
assert not failed(a.say(P(";PREPARE p AS SELECT 1") + B() + E() + S))
assert not failed(a.say(Q("EXECUTE p")))
"#,
    );
    shop.cli.ok("rollback try");
    assert_eq!(shop.items(), "20|315.0");
    inside(&url, "SELECT 1");
}

#[test]
fn a_name_behind_a_comment_was_that_of_another_client() {
    two_clients(
        r#"
n = struct.unpack(">i", a.key[:4])[0]
a.say(P("SELECT 'mine'", "x") + S)
pad = "/*" + "-" * 60 + "*/;"
for text in ["EXECUTE escrow_%d_x", "DEALLOCATE escrow_%d_x", "EXPLAIN EXECUTE escrow_%d_x", 'EXECUTE "escrow_%d_x"']:
    for text in [pad + text, text]:
        assert failed(b.say(X(text % n) + S)), text
assert rows(a.say(B("x") + E() + S)), "it is still there"
# The statement without a name has none in SQL.
a.say(Q("BEGIN"))
a.say(P("SAVEPOINT a") + S)
assert failed(a.say(Q('EXECUTE ""')))
a.say(Q("ROLLBACK"))
"#,
    );
}

#[test]
fn cursors_of_a_client_were_met_by_others_and_outlived_it() {
    two_clients(
        r#"
a.say(Q("SELECT 1; SELECT 'é'"))
a.say(P("DECLARE c CURSOR FOR SELECT * FROM loose", "d") + S)
assert failed(a.say(B("d") + E() + S)), "there is no transaction"
a.say(Q("DO $$ DECLARE c refcursor; BEGIN OPEN c FOR SELECT 'secret', * FROM loose; END $$"))
assert failed(b.say(Q('FETCH "<unnamed portal 1>"')))
a.link.close()
assert not failed(b.say(Q("BEGIN; ALTER TABLE loose ADD COLUMN z int; ROLLBACK")))
"#,
    );
}

/// All clients have one session, whose last value of a sequence is the one that any of them took.
#[test]
fn the_last_value_of_a_sequence_was_one_that_another_client_took() {
    two_clients(
        r#"
insert = Q("INSERT INTO orders (item) VALUES (1) RETURNING id")
last = [Q("SELECT currval('orders_id_seq')"), Q("SELECT lastval()"), X("SELECT lastval()") + S]
id = rows(a.say(insert))[0]
assert all(rows(a.say(one)) == [id] for one in last)
none = lambda client: all(b"C55000" in failed(client.say(one))[0] for one in last)
assert none(b) and none(a)
# Through its own transaction a client keeps its turn, and so its values.
a.say(insert)
for begin in ["BEGIN", "BEGIN READ WRITE", "BEGIN; SELECT 1"]:
    b.say(Q(begin))
    id = rows(b.say(insert))[0]
    assert all(rows(b.say(one)) == [id] for one in last)
    b.say(Q("SAVEPOINT s"))
    assert failed(b.say(Q("SELECT 1 / 0")))
    b.say(Q("ROLLBACK TO s"))
    assert all(rows(b.say(one)) == [id] for one in last)
    b.say(Q("COMMIT AND CHAIN"))
    assert all(rows(b.say(one)) == [id] for one in last)
    b.say(Q("COMMIT"))
    assert all(rows(b.say(one)) == [id] for one in last)
    # Where the server hears nothing of a turn, and where it hears of a mode first.
    for other in ["BEGIN; COMMIT", "BEGIN READ ONLY"]:
        a.say(insert)
        b.say(Q("BEGIN"))
        b.say(Q("COMMIT"))
        b.say(Q(other))
        assert b"C55000" in failed(b.say(last[0]))[0], other
        b.say(Q("ROLLBACK"))
        assert none(b), other
"#,
    );
}

/// In the encoding of another client a name could not be closed, outside of every savepoint.
#[test]
fn names_and_settings_that_are_no_ascii_took_the_sandbox_with_them() {
    two_clients(
        r#"
latin = Raw(shop, "client_encoding", "LATIN1")
latin.say(frame("P", b"\xfc\0SELECT 1\0\0\0") + S)
latin.say(Q('SET search_path = "ü", public'.encode("latin1")))
b.say(Q("SELECT 1"))
assert b"\xfc" in rows(latin.say(Q("SHOW search_path")))[0]
b.say(Q("SELECT 1"))
latin.link.close()
assert rows(b.say(Q("SELECT 1")))
sjis = Raw(shop, "client_encoding", "SJIS")
sjis.say(Q(b"PREPARE \x82\xa0 AS SELECT 1"))
assert rows(sjis.say(Q(b"EXECUTE \x82\xa0")))
sjis.link.close()
assert rows(b.say(Q("SELECT 1")))
assert not rows(b.say(Q("SELECT name FROM pg_prepared_statements")))
"#,
    );
}

/// What it asked for took its time, and others waited.
#[test]
fn a_client_that_is_killed_takes_its_statement_with_it() {
    let (shop, url) = two_clients(
        r#"
a.link.sendall(Q("SELECT pg_sleep(1000)"))
a.link.close()
assert rows(b.say(Q("SELECT 1")))
"#,
    );
    // A sandbox that goes does too, also where a client is still there.
    let mut psql = psql_command(&url);
    let psql = psql.args(["-c", "SELECT pg_sleep(1000)"]);
    let mut psql = psql.spawn().expect("psql runs");
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1000)%' AND pid <> pg_backend_pid() AND state = 'active'";
    let until = |count: &str| {
        let limit = Instant::now() + Duration::from_secs(120);
        while shop.sql(asleep) != count {
            assert!(Instant::now() < limit, "not {count} of them");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    until("1");
    shop.cli.ok("cleanup --yes try");
    until("0");
    psql.wait().expect("psql ends");
    shop.assert_nothing_left();
}

/// A cancel met what the holder does first for another client, outside of every savepoint.
#[test]
fn a_cancel_at_the_beginning_of_a_turn_meets_nothing_of_ours() {
    two_clients(
        r#"
import time
a.say(Q("SET extra_float_digits = 0"))
for n in range(40):
    b.say(Q("SELECT 1"))
    time.sleep(0.21)
    a.link.sendall(Q("SELECT 1"))
    time.sleep(n % 8 / 5000)
    a.cancel()
    assert not [one for one in failed(a.answers()) if b"C57014" not in one], n
"#,
    );
}

#[test]
fn triggers_with_a_condition_can_be_made() {
    let (shop, url) = two_clients("");
    inside(
        &url,
        "CREATE FUNCTION tf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
         CREATE TRIGGER w BEFORE INSERT ON items FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION tf(); \
         CREATE SCHEMA sd CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)",
    );
    // A constraint that came with a schema is checked at the end of a statement too.
    has(
        &refused(&url, "INSERT INTO sd.late VALUES (1), (1)"),
        ["23505"],
    );
    shop.cli.ok("cleanup --yes try");
}
