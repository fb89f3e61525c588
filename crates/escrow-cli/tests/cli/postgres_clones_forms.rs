//! Databases of which a clone once could not be compared, released or restored, though every client can work on them so. Each test is
//! named after what was in the way.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, inside};
use crate::*;

/// Waits until something is so.
fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not become so");
}

impl Shop {
    /// Commits what this does in a clone, and checks that the original then says what the clone said.
    #[track_caller]
    fn assert_released(&self, sql: &str, asked: &str) {
        let url = self.clone_plan("try");
        inside(&url, sql);
        let wanted = inside(&url, asked);
        self.cli.ok("diff try");
        self.cli.ok("commit try");
        assert_eq!(self.server.sql("shop", asked), wanted, "{sql}");
        self.cli.ok("cleanup try --yes");
        self.assert_no_clone();
    }
}

// rule Q2
#[test]
fn a_materialized_view_that_was_never_filled() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE MATERIALIZED VIEW empty AS SELECT * FROM loose WITH NO DATA; CREATE MATERIALIZED VIEW filled AS SELECT * FROM loose",
    );
    shop.assert_released(
        "UPDATE loose SET b = 'new' WHERE a = 1",
        "SELECT count(*) FROM loose WHERE b = 'new'",
    );
    let url = shop.clone_plan("notes");
    inside(
        &url,
        "REFRESH MATERIALIZED VIEW empty; REFRESH MATERIALIZED VIEW filled WITH NO DATA; DELETE FROM loose WHERE a = 1",
    );
    let said = shop.cli.expect("commit notes", 0);
    has(
        &(said.stdout_text() + &said.stderr_text()),
        ["empty", "filled", "REFRESH"],
    );
    shop.assert_no_clone();
}

// rule C15, Q2
#[test]
fn a_reference_that_goes_with_what_it_refers_to() {
    let shop = Shop::with_clones(true);
    let tables = "DROP TABLE IF EXISTS child, parent; CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent VALUES (1), (2); \
         CREATE TABLE child (id int PRIMARY KEY, p int CONSTRAINT refers REFERENCES parent ON DELETE CASCADE); INSERT INTO child VALUES (1, 1), (2, 2)";
    for sql in [
        "DROP TABLE child; DELETE FROM parent WHERE id = 1",
        "ALTER TABLE child DROP CONSTRAINT refers; DELETE FROM parent WHERE id = 1",
        "ALTER TABLE child DROP CONSTRAINT refers; UPDATE child SET p = 2; \
         ALTER TABLE child ADD CONSTRAINT refers FOREIGN KEY (p) REFERENCES parent; DELETE FROM parent WHERE id = 1",
    ] {
        shop.server.sql("shop", tables);
        let all = "SELECT (SELECT count(*) FROM parent), to_regclass('child'), (SELECT count(*) FROM pg_constraint WHERE conname = 'refers')";
        shop.assert_released(sql, all);
    }
}

// rule Q2
#[test]
fn functions_of_constraints_that_name_tables_without_their_schema() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE FUNCTION known(i int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN EXISTS (SELECT FROM loose WHERE a = i); END'; \
         CREATE FUNCTION once(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i'; \
         CREATE FUNCTION twice(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN once(i) * 2; END'; \
         CREATE TABLE checked (id int PRIMARY KEY CHECK (known(id))); CREATE INDEX doubled ON checked (twice(id))",
    );
    shop.assert_released(
        "INSERT INTO checked VALUES (1), (2)",
        "SELECT count(*) FROM checked",
    );
}

/// A dump names what is of the catalog without a schema, and means it.
// rule C11
#[test]
fn names_of_the_catalog_that_another_schema_has_too() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''x''::text'; CREATE DOMAIN public.date AS text; \
         CREATE FUNCTION public.array_append(int[], int) RETURNS int[] LANGUAGE sql IMMUTABLE AS 'SELECT NULL::int[]'; \
         ALTER DATABASE shop SET search_path = public, pg_catalog",
    );
    shop.assert_released(
        "CREATE VIEW seen AS SELECT pg_catalog.lower(b) AS l, pg_catalog.array_append(ARRAY[a], 5) FROM loose; CREATE INDEX lowered ON loose (pg_catalog.lower(b)); \
         CREATE TABLE dated (id int PRIMARY KEY, d pg_catalog.date)",
        "SELECT pg_get_viewdef('seen'), pg_get_indexdef('lowered'::regclass), (SELECT atttypid::regtype FROM pg_attribute \
         WHERE attrelid = 'dated'::regclass AND attname = 'd')",
    );
}

// rule Q2
#[test]
fn a_column_that_got_its_default_after_its_rows() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (1), (2); CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (1)",
    );
    shop.assert_released(
        "ALTER TABLE old ADD c int; ALTER TABLE old ALTER c SET DEFAULT 5; UPDATE old SET c = id; ALTER TABLE old ALTER c SET NOT NULL; \
         ALTER TABLE more ADD at timestamptz; ALTER TABLE more ALTER at SET DEFAULT now()",
        "SELECT (SELECT string_agg(c::text, ' ' ORDER BY id) FROM old), (SELECT count(*) FROM more WHERE at IS NULL), \
         (SELECT string_agg(pg_get_expr(adbin, adrelid), ' ' ORDER BY adrelid) FROM pg_attrdef WHERE adrelid::regclass::text IN ('old', 'more'))",
    );
    // Of one that is computed for each row nothing says what the rows of others get.
    shop.server
        .sql("shop", "CREATE DOMAIN above AS int CHECK (VALUE > 0); CREATE DOMAIN filled AS text NOT NULL DEFAULT 'x'");
    for column in [
        "u uuid DEFAULT gen_random_uuid()",
        "u above DEFAULT 7",
        "u filled",
        "u float8 DEFAULT random(); ALTER TABLE old ALTER u SET DEFAULT 5",
    ] {
        let url = shop.clone_plan("each");
        inside(&url, &format!("ALTER TABLE old ADD {column}"));
        has(&shop.cli.fails("commit each", 3), ["new columns"]);
        shop.cli.ok("cleanup each --yes");
    }
    shop.assert_no_clone();
}

// rule C11, Q2
#[test]
fn views_and_functions_of_another_form() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE VIEW shown AS SELECT a, b FROM loose; CREATE VIEW turned AS SELECT a FROM loose; \
         CREATE FUNCTION f(i int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION \"g h\"(i int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    );
    shop.assert_released(
        "DROP VIEW shown; CREATE VIEW shown AS SELECT b FROM loose; DROP VIEW turned; CREATE TABLE turned (id int PRIMARY KEY); \
         INSERT INTO turned VALUES (7); DROP FUNCTION f; CREATE FUNCTION f(i int) RETURNS text LANGUAGE sql AS 'SELECT ''x'''; \
         DROP FUNCTION \"g h\"; CREATE FUNCTION \"g h\"(j int) RETURNS int LANGUAGE sql AS 'SELECT 2'",
        "SELECT (SELECT count(*) FROM turned), f(1), \"g h\"(j => 1), (SELECT string_agg(attname, ' ') FROM pg_attribute WHERE attrelid = 'shown'::regclass)",
    );
    // What belongs to one, and is as it was, comes with it.
    shop.server.sql(
        "shop",
        "CREATE ROLE reader; GRANT SELECT ON shown TO reader; COMMENT ON VIEW shown IS 'seen'; COMMENT ON FUNCTION f(int) IS 'of one'; \
         GRANT EXECUTE ON FUNCTION f(int) TO reader; CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER instead INSTEAD OF INSERT ON shown FOR EACH ROW EXECUTE FUNCTION nothing(); CREATE PROCEDURE p(i int, j int DEFAULT 1) LANGUAGE sql AS ''",
    );
    shop.assert_released(
        "DROP VIEW shown; CREATE VIEW shown AS SELECT a FROM loose; GRANT SELECT ON shown TO reader; COMMENT ON VIEW shown IS 'seen'; \
         CREATE TRIGGER instead INSTEAD OF INSERT ON shown FOR EACH ROW EXECUTE FUNCTION nothing(); DROP FUNCTION f; \
         CREATE FUNCTION f(k int) RETURNS int LANGUAGE sql AS 'SELECT 3'; COMMENT ON FUNCTION f(int) IS 'of one'; GRANT EXECUTE ON FUNCTION f(int) TO reader; \
         DROP PROCEDURE p; CREATE PROCEDURE p(k int, l int) LANGUAGE sql AS ''; CREATE INDEX late ON loose (a); COMMENT ON INDEX late IS 'of late'; \
         COMMENT ON TRIGGER instead ON shown IS 'of late'; ALTER TABLE loose ADD CONSTRAINT sure CHECK (a > 0); COMMENT ON CONSTRAINT sure ON loose IS 'of late'",
        "SELECT obj_description('shown'::regclass), obj_description('f(int)'::regprocedure), has_table_privilege('reader', 'shown', 'SELECT'), \
         (SELECT proacl::text FROM pg_proc WHERE proname = 'f'), (SELECT proargnames || pronargdefaults::text FROM pg_proc WHERE proname = 'p'), \
         (SELECT count(*) FROM pg_trigger WHERE tgname = 'instead'), f(k => 1), (SELECT count(*) FROM pg_description WHERE description = 'of late')",
    );
    // What others made of it since is not lost.
    let url = shop.clone_plan("late");
    inside(
        &url,
        "DROP VIEW shown; CREATE VIEW shown AS SELECT b FROM loose",
    );
    shop.server
        .sql("shop", "CREATE VIEW upon AS SELECT * FROM shown");
    shop.cli.fails("commit late", 4);
    shop.cli.ok("cleanup late --yes");
    shop.assert_no_clone();
}

// rule Q6
#[test]
fn what_belongs_to_another_role() {
    let shop = Shop::with_clones(true);
    for sql in [
        "CREATE ROLE own LOGIN CREATEDB",
        "CREATE DATABASE owned OWNER own",
    ] {
        shop.server.sql("postgres", sql);
    }
    shop.server.sql(
        "owned",
        "CREATE EXTENSION pg_buffercache; CREATE TABLE theirs (id int PRIMARY KEY); GRANT SELECT ON theirs TO own; GRANT CREATE ON SCHEMA public TO own; \
         SET ROLE own; CREATE TABLE mine (id int PRIMARY KEY, v text); INSERT INTO mine VALUES (1, 'a'), (2, 'a')",
    );
    shop.declare_clones(&shop.server.url("own", "owned"));
    let url = shop.clone_plan("try");
    inside(
        &url,
        "CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1); DELETE FROM mine WHERE id = 2; ALTER TABLE mine ADD UNIQUE (v), ADD c int; \
         UPDATE mine SET c = id; ALTER TABLE mine ALTER c SET NOT NULL",
    );
    shop.cli.ok("commit try");
    let both = "SELECT (SELECT count(*) FROM made), c FROM mine";
    assert_eq!(shop.server.sql("owned", both), "1|1");
    // Nothing is done to a table whose rows follow others where none goes.
    shop.server.sql(
        "owned",
        "CREATE TABLE child (id int REFERENCES mine ON DELETE CASCADE); CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER each_statement AFTER DELETE ON child EXECUTE FUNCTION nothing(); GRANT SELECT ON child TO own",
    );
    shop.cli.ok("cleanup try --yes");
    let url = shop.clone_plan("try");
    inside(&url, "UPDATE mine SET v = 'b'");
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("owned", "SELECT v FROM mine"), "b");
    shop.assert_no_clone();
}

// rule Q2
#[test]
fn a_short_limit_for_idle_transactions() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "ALTER DATABASE shop SET idle_in_transaction_session_timeout = '10ms'; ALTER ROLE postgres SET idle_session_timeout = '60ms'",
    );
    shop.assert_released(
        "CREATE TABLE made (a int PRIMARY KEY); INSERT INTO made VALUES (1); DELETE FROM loose",
        "SELECT (SELECT count(*) FROM made), (SELECT count(*) FROM loose)",
    );
}

// rule C15
#[test]
fn temporary_tables_of_other_clients() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "CREATE TABLE made (a int PRIMARY KEY); DROP TABLE loose",
    );
    let mut client = psql_command(&shop.server.url("postgres", "shop"));
    let made = "SELECT format('CREATE TEMP TABLE t%s (a serial PRIMARY KEY, b int CHECK (b > 0))', n) FROM generate_series(1, 100000) n \\gexec";
    let client = client.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut client = client.spawn().expect("psql starts");
    let mut to = client.stdin.take().expect("it is piped");
    writeln!(to, "{made}").expect("psql reads");
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE TEMP%'";
    wait_until(|| shop.server.sql("postgres", busy) == "1");
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("postgres", busy), "1", "it still works");
    client.kill().expect("it runs");
    client.wait().expect("it ended");
    shop.assert_no_clone();
}

// rule Q7
#[test]
fn a_key_whose_equality_an_extension_brings() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE EXTENSION ltree; CREATE EXTENSION citext; CREATE TABLE mail (at citext PRIMARY KEY, n int); INSERT INTO mail VALUES ('a@B', 1)",
    );
    shop.assert_released("UPDATE mail SET n = 2", "SELECT n FROM mail");
    shop.server
        .sql("shop", "CREATE TABLE tree (at ltree PRIMARY KEY)");
    let told = shop
        .cli
        .run(["plan", "create", "tree", "-r", "app", "-r", "shop"]);
    assert_ne!(told.status, 0);
    has(&told.stderr_text(), ["tree.at", "equality"]);
    shop.assert_no_clone();
}

/// A return to a checkpoint that is killed once the clone is gone is finished.
// rule C17
#[test]
fn a_restore_that_was_killed_without_its_clone() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(&url, "DELETE FROM loose WHERE a = 1");
    shop.cli.ok("checkpoint create try -m one");
    let wanted = inside(&url, "SELECT count(*) FROM loose");
    inside(&url, "DELETE FROM loose");
    let count = |what: &str| {
        let sql = format!("SELECT count(*) FROM {what}");
        shop.server.sql("postgres", &sql)
    };
    let work = r"pg_database WHERE datname LIKE 'escrow%\_work'";
    let kept = shop.server.sql(
        "postgres",
        r"SELECT datname FROM pg_database WHERE datname LIKE 'escrow%\_c1'",
    );
    // Who is connected to what is to be copied lets the server wait.
    let mut client = psql_command(&shop.server.url("postgres", &kept));
    client.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut client = client.spawn().expect("psql starts");
    let connected = format!("pg_stat_activity WHERE datname = '{kept}'");
    wait_until(|| count(&connected) == "1");
    let mut restore = shop.cli.command("restore try one");
    let mut restore = restore.spawn().expect("it starts");
    wait_until(|| count(work) == "0");
    restore.kill().expect("it runs");
    restore.wait().expect("it ended");
    wait_until(|| count("pg_stat_activity WHERE query LIKE 'CREATE DATABASE%'") == "0");
    assert_eq!(count(work), "0");
    drop(client.stdin.take());
    client.wait().expect("it ended");
    shop.cli.ok("recover");
    let left = "SELECT count(*) FROM loose";
    assert_eq!(inside(&shop.url("try"), left), wanted);
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", left), wanted);
    shop.assert_no_clone();
}
