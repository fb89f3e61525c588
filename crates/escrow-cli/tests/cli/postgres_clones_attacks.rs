//! Clones of PostgreSQL databases whose clients are hostile: what they prepare in a clone does not reach the original beyond the diff, and
//! keeps no sandbox from being removed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, changes, inside};
use crate::*;

/// The name of the clone in which one works.
fn work(shop: &Shop) -> String {
    let sql = "SELECT datname FROM pg_database WHERE datname LIKE 'escrow%work'";
    shop.server.sql("postgres", sql)
}

/// Functions of constraints run in the original while its rows are written.
// rule Q1, Q2
#[test]
fn a_function_of_a_check_constraint_wrote_other_rows_of_the_original() {
    let shop = Shop::with_clones(true);
    let tables = "CREATE TABLE acct (id int PRIMARY KEY, bal int); INSERT INTO acct VALUES (1, 100), (2, 7); \
         CREATE TABLE line (id int PRIMARY KEY, a int REFERENCES acct ON DELETE CASCADE); INSERT INTO line VALUES (1, 1); \
         CREATE TABLE pile (bal int); INSERT INTO pile VALUES (4), (5); \
         CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (9, 'old'); \
         CREATE FUNCTION fix(i int) RETURNS bool LANGUAGE sql AS 'SELECT true'; ALTER TABLE t ADD CHECK (fix(id))";
    shop.server.sql("shop", tables);
    let url = shop.clone_plan("try");
    let fix = |does: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION fix(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN \
             IF NOT current_database() LIKE 'escrow%' THEN {does}; END IF; RETURN true; END $$"
        )
    };
    inside(&url, &fix("NULL"));
    inside(
        &url,
        "INSERT INTO t VALUES (1, 'hello'); DELETE FROM acct WHERE id = 2; CREATE INDEX by_bal ON pile (bal)",
    );
    let all = "SELECT (SELECT sum(bal) FROM acct), (SELECT count(*) FROM line), (SELECT string_agg(v, ' ' ORDER BY id) FROM t), \
               (SELECT count(*) FROM loose), (SELECT count(*) FROM pile)";
    for (does, name) in [
        ("UPDATE public.items SET price = 0", "'items'"),
        ("TRUNCATE public.loose", "'loose'"),
        ("PERFORM nextval('public.orders_id_seq')", "'orders_id_seq'"),
        // Of tables that the commit writes too, or that follow one of them.
        ("UPDATE public.acct SET bal = 0", "'acct'"),
        ("DELETE FROM public.t WHERE id = 9", "'t'"),
        ("DELETE FROM public.line", "'line'"),
        ("TRUNCATE public.acct CASCADE", "'acct'"),
        ("TRUNCATE public.pile", "'pile'"),
    ] {
        inside(&url, &fix(does));
        let told = shop.cli.fails("commit try", 3);
        has(&told, [name, "more there than the diff shows"]);
        assert_eq!(shop.server.sql("shop", all), "107|1|old|3|2", "{does}");
        assert_eq!(shop.items(), "20|315.0");
    }
    inside(&url, &fix("PERFORM 1"));
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", all), "100|1|hello old|3|2");
    shop.assert_no_clone();
}

/// Rows that follow others may be updated by the server itself: that let an update of any other row of the table through.
// rule Q1, Q2
#[test]
fn a_function_wrote_a_row_of_another_client_in_a_table_that_follows_another_one() {
    let shop = Shop::with_clones(true);
    for counts in ["on", "off"] {
        let set = format!("ALTER DATABASE shop SET track_counts = {counts}");
        shop.server.sql("shop", &set);
        shop.server.sql(
            "shop",
            "DROP SCHEMA IF EXISTS f CASCADE; CREATE SCHEMA f; \
             CREATE FUNCTION f.chk(t text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN \
             IF t = 'x' THEN UPDATE f.sn SET d = 666 WHERE id = 99 AND d = 0; END IF; RETURN true; END $$; \
             CREATE TABLE f.p (id int PRIMARY KEY, v text CHECK (f.chk(v))); INSERT INTO f.p VALUES (1, 'a'), (2, 'b'); \
             CREATE TABLE f.sn (id int PRIMARY KEY, p int REFERENCES f.p ON DELETE SET NULL, d int); INSERT INTO f.sn VALUES (1, 1, 0), (99, 2, 1)",
        );
        let url = shop.clone_plan("try");
        shop.server
            .sql("shop", "UPDATE f.sn SET d = 0 WHERE id = 99");
        inside(
            &url,
            "UPDATE f.p SET v = 'x' WHERE id = 1; UPDATE f.sn SET d = 5 WHERE id = 1",
        );
        let told = shop.cli.fails("commit try", 3);
        has(&told, ["'f.sn'", "more there than the diff shows"]);
        let all = "SELECT string_agg(id || ' ' || d, ', ' ORDER BY id) FROM f.sn";
        assert_eq!(shop.server.sql("shop", all), "1 0, 99 0", "{counts}");
        // Where the function finds nothing to write, the same work is released.
        shop.server
            .sql("shop", "UPDATE f.sn SET d = 2 WHERE id = 99");
        shop.cli.ok("commit try");
        assert_eq!(shop.server.sql("shop", all), "1 5, 99 2", "{counts}");
        shop.cli.ok("undo try");
        assert_eq!(shop.server.sql("shop", all), "1 0, 99 2", "{counts}");
        shop.cli.ok("cleanup try --yes");
    }
    shop.assert_no_clone();
}

/// The domain of a new column calls a function before the first row is written, and the table is written anew for it.
// rule Q1, Q2
#[test]
fn a_function_of_a_domain_that_writes_while_a_column_is_added_is_refused() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'); \
         CREATE FUNCTION fix(i int) RETURNS bool LANGUAGE sql AS 'SELECT true'; CREATE DOMAIN small AS int CHECK (fix(VALUE))",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "ALTER TABLE items ADD COLUMN m small; UPDATE items SET m = 1 WHERE id = 1; \
         ALTER TABLE t ADD COLUMN m small; UPDATE t SET m = 1, v = 'c' WHERE id = 1",
    );
    let fix = |does: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION fix(i int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN \
             IF NOT current_database() LIKE 'escrow%' THEN {does}; END IF; RETURN true; END $$"
        )
    };
    let all = "SELECT string_agg(id || v, ' ' ORDER BY id) FROM t";
    for does in [
        "UPDATE public.t SET v = 'z' WHERE v = 'b' AND i IS NULL",
        "UPDATE public.t SET v = 'z' WHERE v = 'b' AND i = 1",
    ] {
        shop.server.sql("shop", &fix(does));
        let told = shop.cli.fails("commit try", 3);
        has(&told, ["'t'", "more there than the diff shows"]);
        assert_eq!(shop.server.sql("shop", all), "1a 2b", "{does}");
    }
    shop.server.sql("shop", &fix("NULL"));
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", all), "1c 2b");
    // A table of which only a definition changes is emptied on the way.
    let url = shop.clone_plan("again");
    inside(
        &url,
        "COMMENT ON TABLE t IS 'x'; ALTER TABLE items ADD COLUMN n small",
    );
    let empties = "IF i IS NULL THEN TRUNCATE public.t; END IF";
    shop.server.sql("shop", &fix(empties));
    let told = shop.cli.fails("commit again", 3);
    has(&told, ["'t'", "more there than the diff shows"]);
    assert_eq!(shop.server.sql("shop", all), "1c 2b");
    shop.server.sql("shop", &fix("NULL"));
    shop.cli.ok("commit again");
    assert_eq!(shop.server.sql("shop", all), "1c 2b");
    shop.assert_no_clone();
}

/// A dump names functions without quotes, and what drops one was cut out of that.
// rule S4, C1
#[test]
fn the_name_of_a_dropped_function_ran_as_statements_in_the_original() {
    let shop = Shop::with_clones(true);
    let name = "\"a();select public.x();delete from public.o;commit;begin;--\"()";
    let plain = "RETURNS int LANGUAGE sql AS 'SELECT 1'";
    shop.server.sql(
        "shop",
        &format!(
            "CREATE TABLE o (id int PRIMARY KEY, v text); INSERT INTO o VALUES (1, 'a'), (2, 'b'); \
             CREATE FUNCTION x() RETURNS int LANGUAGE plpgsql AS $$ BEGIN DROP FUNCTION public.{name}; \
             CREATE FUNCTION public.a() RETURNS int LANGUAGE sql AS 'SELECT 1'; RETURN 1; END $$; \
             CREATE FUNCTION a() {plain}; CREATE FUNCTION {name} {plain}; CREATE FUNCTION \"my fn (old)\"(int, text) {plain}; \
             CREATE TABLE \"n n\" (a int); CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
             CREATE TRIGGER \"t t\" BEFORE INSERT ON \"n n\" FOR EACH ROW EXECUTE FUNCTION no()"
        ),
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        &format!(
            "DROP FUNCTION {name}; DROP FUNCTION \"my fn (old)\"(int, text); DROP TRIGGER \"t t\" ON \"n n\""
        ),
    );
    shop.cli.ok("commit try");
    let all = "SELECT (SELECT count(*) FROM o), (SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'public'::regnamespace), \
               (SELECT count(*) FROM pg_trigger WHERE tgname = 't t')";
    assert_eq!(shop.server.sql("shop", all), "2|a no x|0");
    shop.assert_no_clone();
}

/// What constraints themselves do to rows that follow others is not taken for more than was planned, and neither is what an order did that
/// the original did not take.
// rule Q3
#[test]
fn rows_that_follow_others_are_written_as_planned() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE boss (id int PRIMARY KEY, code text UNIQUE); INSERT INTO boss VALUES (1, 'a'), (2, 'b'), (3, 'c'); \
         CREATE TABLE emp (id int PRIMARY KEY, boss int REFERENCES boss ON DELETE SET NULL, code text REFERENCES boss (code) ON UPDATE CASCADE, \
         u int UNIQUE); INSERT INTO emp VALUES (1, 1, 'b', 1), (2, 2, 'b', 2), (3, NULL, 'c', 3); \
         CREATE TABLE task (id int PRIMARY KEY, emp int REFERENCES emp ON DELETE CASCADE); INSERT INTO task VALUES (1, 1), (2, 3)",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "DELETE FROM boss WHERE id = 1; UPDATE boss SET code = 'bb' WHERE id = 2; DELETE FROM emp WHERE id = 3; \
         UPDATE emp SET u = 9 WHERE id = 2; UPDATE emp SET u = 2 WHERE id = 1",
    );
    let all = "SELECT string_agg(concat_ws(' ', id, boss, code, u), ', ' ORDER BY id), (SELECT count(*) FROM task), (SELECT count(*) FROM boss) FROM emp";
    let (before, wanted) = (shop.server.sql("shop", all), inside(&url, all));
    assert_eq!(wanted, "1 bb 2, 2 2 bb 9|1|2");
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", all), wanted);
    shop.cli.ok("undo try");
    assert_eq!(shop.server.sql("shop", all), before);
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Triggers for each statement of a table whose rows follow others ran again in the original, and what they wrote stopped the commit.
// rule Q2
#[test]
fn a_trigger_of_a_table_that_follows_ran_again() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE boss (id int PRIMARY KEY); INSERT INTO boss VALUES (1), (2); CREATE TABLE seen (t text); \
         CREATE TABLE emp (id int PRIMARY KEY, boss int REFERENCES boss ON DELETE CASCADE); INSERT INTO emp VALUES (1, 2); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (TG_OP); RETURN NULL; END'; \
         CREATE TRIGGER each_statement AFTER DELETE ON emp EXECUTE FUNCTION note()",
    );
    let url = shop.clone_plan("try");
    inside(&url, "DELETE FROM boss WHERE id = 1");
    shop.cli.ok("commit try");
    let all = "SELECT (SELECT count(*) FROM boss), (SELECT count(*) FROM emp), (SELECT count(*) FROM seen)";
    assert_eq!(shop.server.sql("shop", all), "1|1|1");
    shop.server.sql("shop", "DELETE FROM emp");
    assert_eq!(shop.server.sql("shop", all), "1|0|2");
    shop.assert_no_clone();
}

/// For a dump, what belongs to an extension is not there: a commit dropped it in the original.
// rule C15, Q2
#[test]
fn a_table_that_was_added_to_an_extension_was_dropped_in_the_original() {
    let shop = Shop::with_clones(true);
    shop.server.sql("shop", "CREATE EXTENSION citext");
    let url = shop.clone_plan("try");
    for (sql, name, back) in [
        (
            "ALTER EXTENSION citext ADD TABLE loose",
            "public.loose",
            "ALTER EXTENSION citext DROP TABLE loose",
        ),
        (
            "CREATE OR REPLACE FUNCTION citext_hash(citext) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
            "public.citext_hash",
            "SELECT",
        ),
    ] {
        inside(&url, sql);
        let told = shop.cli.fails("commit try", 3);
        has(&told, ["extension:citext", "its member", name]);
        inside(&url, back);
    }
    assert_eq!(shop.server.sql("shop", "SELECT count(*) FROM loose"), "3");
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
}

/// The second byte of a character and a real backslash are in one text.
// rule Q7
#[test]
fn a_character_that_ends_in_a_backslash_hid_a_prepared_transaction() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    for text in [
        b"BEGIN; INSERT INTO loose VALUES (77, ''); SELECT E'\\'', E'\x81\x5c'; PREPARE TRANSACTION 'bobs'; --'".as_slice(),
        b"BEGIN; INSERT INTO loose VALUES (77, ''); SELECT $\x81\x5b$ ' $\x81\x5b$; PREPARE TRANSACTION 'bobs'; --'",
    ] {
        let mut client = psql_command(&url);
        client
            .env("PGOPTIONS", "-c backslash_quote=on")
            .env("PGCLIENTENCODING", "SJIS")
            .arg("-c")
            .arg(OsStr::from_bytes(text));
        let output = client.output().expect("psql runs");
        has(
            &String::from_utf8_lossy(&output.stderr),
            ["reaches beyond the database"],
        );
        assert_eq!(shop.server.prepared(), "");
    }
    // What only looks like it is a text like any other.
    inside(&url, "INSERT INTO loose VALUES (78, 'é_; and more')");
    let told = shop.cli.run(["sql", "try", "shop", "SELECT 1; SELECT 2"]);
    has(&told.stderr_text(), ["snapshot cannot run it"]);
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
}

// rule P6, Q8, C10
#[test]
fn a_clone_whose_comment_a_client_changed_was_left_behind_and_forgotten() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "DO $$ BEGIN EXECUTE 'COMMENT ON DATABASE ' || current_database() || ' IS ''mine now'''; END $$",
    );
    let name = work(&shop);
    let drop = format!("DROP DATABASE \"{name}\"");
    for line in [
        "rollback try --yes",
        "cleanup try --yes",
        "cleanup try --yes",
    ] {
        let told = shop.cli.run(line);
        assert!(told.status != 0, "{line}: {told:?}");
        let told = told.stdout_text() + &told.stderr_text();
        has(&told, [name.as_str(), "mine now", &drop]);
    }
    let told = shop.cli.run("gc");
    has(&(told.stdout_text() + &told.stderr_text()), [&drop]);
    assert_eq!(work(&shop), name, "it is left alone");
    shop.server.sql("postgres", &drop);
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
}

// rule P6, Q8
#[test]
fn a_transaction_that_is_prepared_in_a_clone_kept_it_from_being_removed() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    let prepare = "BEGIN; INSERT INTO loose VALUES (5); PREPARE TRANSACTION 'it''s'";
    shop.server.sql(&work(&shop), prepare);
    shop.cli.ok("rollback try --yes");
    assert_eq!(inside(&url, "SELECT count(*) FROM loose"), "3");
    shop.server.sql(&work(&shop), prepare);
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
    // One of another role, which this one may not end.
    for sql in [
        "CREATE ROLE own LOGIN CREATEDB",
        "CREATE DATABASE owned OWNER own",
    ] {
        shop.server.sql("postgres", sql);
    }
    let own = shop.server.url("own", "owned");
    inside(&own, "CREATE TABLE loose (a int)");
    let line = [
        "plan",
        "create",
        "own",
        "--strategy",
        "snapshot",
        "-r",
        &own,
    ];
    shop.cli.ok(line);
    shop.server.sql(&work(&shop), prepare);
    let told = shop.cli.run("cleanup own --yes");
    assert!(told.status != 0, "{told:?}");
    let told = told.stdout_text() + &told.stderr_text();
    has(&told, ["ROLLBACK PREPARED 'it''s'", &work(&shop)]);
    shop.server.sql(&work(&shop), "ROLLBACK PREPARED 'it''s'");
    shop.cli.ok("cleanup own --yes");
    shop.assert_no_clone();
}

/// Removals come last, and changes backwards: in no other order the original takes them.
// rule Q3
#[test]
fn work_that_needs_removals_last_and_changes_backwards_was_refused() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE team (id int PRIMARY KEY); INSERT INTO team VALUES (1), (2); \
         CREATE TABLE usr (id int PRIMARY KEY, email text UNIQUE, team int REFERENCES team); \
         INSERT INTO usr VALUES (1, 'ann', 1), (2, 'bob', 1); \
         CREATE TABLE par (id int PRIMARY KEY); INSERT INTO par VALUES (1); \
         CREATE TABLE chi (id int PRIMARY KEY, p int REFERENCES par); INSERT INTO chi VALUES (1, 1); \
         CREATE TABLE ex (id int PRIMARY KEY, u int UNIQUE); INSERT INTO ex VALUES (1, 1), (2, 2)",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "UPDATE usr SET team = 2; DELETE FROM team WHERE id = 1; UPDATE usr SET email = 'bob2' WHERE id = 2; \
         UPDATE usr SET email = 'bob' WHERE id = 1",
    );
    shop.cli.ok("commit try");
    let users = "SELECT string_agg(email || team, ' ' ORDER BY id) FROM usr";
    assert_eq!(shop.server.sql("shop", users), "bob2 bob22");
    shop.cli.ok("undo try");
    assert_eq!(shop.server.sql("shop", users), "ann1 bob1");
    let url = shop.clone_plan("back");
    inside(
        &url,
        "INSERT INTO par VALUES (2); UPDATE chi SET p = 2; UPDATE ex SET u = 9 WHERE id = 1; UPDATE ex SET u = 1 WHERE id = 2",
    );
    shop.cli.ok("commit back");
    let all = "SELECT (SELECT max(id) FROM par), (SELECT p FROM chi), (SELECT string_agg(u::text, ' ' ORDER BY id) FROM ex)";
    assert_eq!(shop.server.sql("shop", all), "2|2|9 1");
    shop.cli.ok("undo back");
    assert_eq!(shop.server.sql("shop", all), "1|1|1 2");
    // Where no order does, since others refer to the rows, no client is said to have changed something.
    shop.server.sql(
        "shop",
        "CREATE TABLE of_ex (ex int REFERENCES ex); INSERT INTO of_ex VALUES (1)",
    );
    let url = shop.clone_plan("swap");
    inside(
        &url,
        "UPDATE ex SET u = 9 WHERE id = 1; UPDATE ex SET u = 1 WHERE id = 2; UPDATE ex SET u = 2 WHERE id = 1",
    );
    let told = shop.cli.fails("commit swap", 4);
    has(&told, ["takes these rows in no order", "unique"]);
    assert!(!told.contains("changed meanwhile"), "{told}");
    shop.cli.ok("cleanup swap --yes");
}

// rule Q4
#[test]
fn types_behind_two_domains_were_compared_as_what_they_are_not() {
    let shop = Shop::with_clones(true);
    for (make, unmake, name) in [
        (
            "CREATE DOMAIN d1 AS bpchar; CREATE DOMAIN d2 AS d1; CREATE TABLE wrong (a d2)",
            "DROP TABLE wrong; DROP DOMAIN d2; DROP DOMAIN d1",
            "bpchar without a length, public.wrong.a",
        ),
        (
            "CREATE TYPE duo AS (a int, b int); CREATE FUNCTION show(duo) RETURNS text LANGUAGE sql AS 'SELECT ''same'''; \
             CREATE CAST (duo AS text) WITH FUNCTION show(duo); CREATE DOMAIN d1 AS duo; CREATE DOMAIN d2 AS d1; CREATE TABLE wrong (a d2)",
            "DROP TABLE wrong; DROP DOMAIN d2; DROP DOMAIN d1; DROP CAST (duo AS text); DROP FUNCTION show(duo); DROP TYPE duo",
            "cast to text is a function, public.wrong.a",
        ),
    ] {
        shop.server.sql("shop", make);
        has(&shop.cli.fails("plan create no -r shop", 1), [name]);
        shop.server.sql("shop", unmake);
    }
    shop.server.sql(
        "shop",
        "CREATE DOMAIN d1 AS char(3); CREATE DOMAIN d2 AS d1; CREATE TABLE fine (a d2, b char(2))",
    );
    shop.cli.ok("plan create yes -r shop");
    shop.cli.ok("cleanup yes --yes");
    shop.assert_no_clone();
}

/// What belongs to a table lies under it, also where its name has blanks.
// rule S6
#[test]
fn a_policy_on_a_table_did_not_hold_for_its_triggers_and_rights() {
    let shop = Shop::new(true);
    let url = shop.server.url("postgres", "shop");
    shop.server.sql(
        "shop",
        "CREATE TABLE nn (id int PRIMARY KEY, up int); CREATE TABLE \"n n\" (id int PRIMARY KEY, a int)",
    );
    let text = format!(
        "resources: {{app: {{at: app}}, shop: {{type: postgres, at: '{url}', strategy: snapshot}}}}\npolicy:\n  mode: enforce\n  rules:\n    \
         - {{ allow: [create, read, write, diff, commit, cleanup, rollback, admin], principal: '*', scope: '*' }}\n    \
         - {{ deny: [commit], principal: '*', scope: 'shop:nn/**' }}\n    - {{ deny: [commit], principal: '*', scope: 'shop:n n/**' }}\n"
    );
    write(shop.world.at("escrow.yaml"), text);
    shop.cli.ok("trust escrow.yaml --yes");
    let url = shop.clone_plan("try");
    inside(
        &url,
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    );
    for (sql, item, back) in [
        (
            "CREATE TRIGGER tt BEFORE INSERT ON nn FOR EACH ROW EXECUTE FUNCTION no()",
            "nn/trigger:tt",
            "DROP TRIGGER tt ON nn",
        ),
        (
            "CREATE TRIGGER \"t t\" BEFORE INSERT ON \"n n\" FOR EACH ROW EXECUTE FUNCTION no()",
            "n n/trigger:t t",
            "DROP TRIGGER \"t t\" ON \"n n\"",
        ),
        (
            "GRANT ALL ON nn TO PUBLIC",
            "nn/acl:TABLE",
            "REVOKE ALL ON nn FROM PUBLIC; UPDATE pg_class SET relacl = NULL WHERE relname = 'nn'",
        ),
        (
            "CREATE INDEX by_up ON nn (up)",
            "nn/index:by_up",
            "DROP INDEX by_up",
        ),
        (
            "ALTER TABLE nn ADD CONSTRAINT c FOREIGN KEY (up) REFERENCES items",
            "nn/constraint:c",
            "ALTER TABLE nn DROP CONSTRAINT c",
        ),
        (
            "COMMENT ON COLUMN nn.up IS 'x'",
            "nn/comment:up",
            "COMMENT ON COLUMN nn.up IS NULL",
        ),
        (
            "ALTER TABLE nn ENABLE ROW LEVEL SECURITY",
            "nn/row_security:TABLE",
            "ALTER TABLE nn DISABLE ROW LEVEL SECURITY",
        ),
    ] {
        inside(&url, sql);
        let found = changes(&shop.cli, "try");
        assert!(found.contains(&format!("added {item}")), "{found:?}");
        let told = shop.cli.fails("commit try", 3);
        has(&told, ["shop:n"]);
        inside(&url, back);
    }
    assert_eq!(changes(&shop.cli, "try"), ["added function:no()"]);
    shop.cli.ok("commit try");
    shop.assert_no_clone();
}
