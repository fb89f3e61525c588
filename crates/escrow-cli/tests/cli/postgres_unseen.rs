//! What a held transaction releases is what its diff shows, also where a client tries to make the diff show something else. Each test is named
//! after what once worked.

use escrow_testkit::postgres::psql_command;

use crate::postgres::{CLERK, Shop, changes, inside};
use crate::*;

impl Shop {
    /// A plan of the database alone, as a user who owns what he made and nothing else.
    fn plan_of_clerk(&self) -> String {
        let url = self.server.url("clerk", "shop");
        self.cli.ok(["plan", "create", "try", "--resource", &url]);
        self.url("try")
    }

    fn digest(&self) -> Option<String> {
        let diff = json(&self.cli, "diff try");
        diff["digest"].as_str().map(str::to_owned)
    }
}

/// The names of catalogs were pasted into statements of the engine: a diff committed.
// rule Q1, S4
#[test]
fn the_name_of_a_catalog_was_a_statement() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "SET allow_system_table_mods = on; CREATE TABLE pg_catalog.\"';COMMIT;--\" (a int); CREATE TABLE pg_catalog.\"a b\" (oid text); \
         INSERT INTO pg_catalog.\"a b\" VALUES ('0); COMMIT; --'); INSERT INTO loose VALUES (666, 'released by a diff')",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["inserted loose", "COMMIT", "a b"]);
    let released = "SELECT count(*) FROM loose WHERE a = 666";
    assert_eq!(shop.sql(released), "0");
    assert_eq!(inside(&url, released), "1");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// Rows were compared by a cast to text, which the owner of a type can make.
// rule C11, Q4
#[test]
fn a_cast_said_that_a_row_is_as_it_was() {
    let shop = Shop::new(true);
    shop.sql(CLERK);
    shop.sql("SET ROLE clerk; CREATE TYPE color AS ENUM ('red', 'blue'); CREATE TABLE paint (id int PRIMARY KEY, c color); \
         INSERT INTO paint VALUES (1, 'red'); CREATE TABLE kept (id int PRIMARY KEY, v text); INSERT INTO kept VALUES (1, 'a'); \
         CREATE TABLE blanks (id int PRIMARY KEY, v bpchar, flag bool); INSERT INTO blanks VALUES (1, 'a', false)",
    );
    let url = shop.plan_of_clerk();
    inside(
        &url,
        "CREATE FUNCTION lie(color) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''red''::text'; \
         CREATE CAST (color AS text) WITH FUNCTION lie(color); UPDATE paint SET c = 'blue'; \
         CREATE FUNCTION lie(kept) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN ''the same''; END'; \
         CREATE CAST (kept AS text) WITH FUNCTION lie(kept); UPDATE blanks SET v = 'a   ', flag = true; \
         LOCK TABLE kept IN ACCESS EXCLUSIVE MODE",
    );
    let shown = shop.cli.ok("diff try");
    let wanted = ["paint/1", "'red' → 'blue'", "'a' → 'a   '", "'true'"];
    has(&shown, wanted);
    let before = shop.digest().expect("everything was read");
    inside(&url, "UPDATE kept SET v = 'other'");
    assert_ne!(shop.digest(), Some(before.clone()));
    let said = shop.cli.run(["commit", "try", "--expect", &before]);
    assert_eq!(said.status, 4, "{said:?}");
    shop.cli.ok("commit try");
    let released = "SELECT c, octet_length(v) FROM paint, blanks";
    assert_eq!(shop.sql(released), "blue|4");
}

/// Of some values the server does not send everything, and several functions have one name.
// rule C11, Q4
#[test]
fn values_that_are_written_alike_were_taken_for_the_same() {
    let shop = Shop::new(true);
    shop.sql(
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION f(text) RETURNS int LANGUAGE sql AS 'SELECT 2'; \
         CREATE TABLE alike (id int PRIMARY KEY, x xml, p regproc); INSERT INTO alike SELECT 1, '<a/>', oid FROM pg_proc WHERE oid = 'f(int)'::regprocedure; \
         CREATE FUNCTION af(anyelement, anyelement) RETURNS anyelement LANGUAGE sql AS 'SELECT $1'; CREATE AGGREGATE ag(int) (sfunc = af, stype = int)",
    );
    let url = shop.plan("try");
    inside(
        &url,
        "UPDATE alike SET x = '<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><a/>'; UPDATE alike SET p = 'f(text)'::regprocedure::oid; \
         CREATE FUNCTION af(int, int) RETURNS int LANGUAGE sql AS 'SELECT 5'; CREATE OR REPLACE AGGREGATE ag(int) (sfunc = af, stype = int)",
    );
    let shown = shop.cli.ok("diff try");
    has(&shown, ["alike/1", "ISO-8859-1", "p '", "ag("]);
    shop.cli.ok("cleanup --yes try");
}

/// A superuser's cast of numbers to text ran inside the comparison, where what it did was taken back.
// rule C11
#[test]
fn a_cast_of_numbers_hid_a_row_while_it_was_looked_for() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "CREATE FUNCTION evil(oid) RETURNS text LANGUAGE plpgsql AS $$ BEGIN DELETE FROM public.loose WHERE a = 666; RETURN '1'; END $$; \
         CREATE CAST (oid AS text) WITH FUNCTION evil(oid); INSERT INTO loose VALUES (666)",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["inserted loose", "function:evil", "cast:"]);
    shop.cli.ok("cleanup --yes try");
}

/// What only the dependencies of a thing say, or the table in which its long values are, was shown only where nothing else was changed.
// rule C11
#[test]
fn a_changed_dependency_was_hidden_by_another_change() {
    let shop = Shop::new(true);
    shop.sql("CREATE SEQUENCE alone; CREATE TABLE long (t text); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    );
    let url = shop.plan("try");
    inside(
        &url,
        "CREATE TABLE beside (a serial PRIMARY KEY, b text); CREATE VIEW shown AS SELECT * FROM beside; ALTER SEQUENCE alone OWNED BY items.id; \
         ALTER TABLE long SET (toast.autovacuum_enabled = false); ALTER FUNCTION f() DEPENDS ON EXTENSION plpgsql",
    );
    has(
        &shop.cli.ok("diff try"),
        [
            "sequence alone: altered",
            "table long: altered",
            "function f(): altered",
        ],
    );
    let paths = changes(&shop.cli, "try");
    assert_eq!(paths.len(), 7, "and nothing twice: {paths:?}");
    shop.cli.ok("commit try");
    let options = "SELECT o.reloptions FROM pg_class c JOIN pg_class o ON o.oid = c.reltoastrelid WHERE c.relname = 'long'";
    assert_eq!(shop.sql(options), "{autovacuum_enabled=false}");
}

/// A policy for what lies under a table did not hold for its triggers, indexes and policies, which had paths of their own.
// rule S6
#[test]
fn a_policy_on_a_table_did_not_hold_for_its_triggers() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE INDEX more ON loose (a); \
         CREATE TRIGGER t BEFORE INSERT ON loose FOR EACH ROW EXECUTE FUNCTION f(); CREATE POLICY p ON loose USING (true)",
    );
    let under: Vec<String> = changes(&shop.cli, "try")
        .into_iter()
        .filter(|path| path.contains("loose/"))
        .collect();
    assert_eq!(
        under,
        [
            "added loose/index:more",
            "added loose/policy:p",
            "added loose/trigger:t"
        ]
    );
    shop.cli.ok("cleanup --yes try");
}

/// What this role may not read was not bound by the digest.
// rule C11
#[test]
fn what_may_not_be_read_was_released_as_expected() {
    let shop = Shop::new(true);
    shop.sql(CLERK);
    let url = shop.plan_of_clerk();
    inside(
        &url,
        "SELECT lo_from_bytea(4711, 'good'); ALTER ROLE clerk PASSWORD 'one'",
    );
    assert_eq!(shop.digest(), None);
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["pg_largeobject", "pg_authid"]);
    shop.cli.ok("cleanup --yes try");
}

/// An index that is made anew is locked for the connection that sees the beginning: nothing could be compared or committed.
// rule Q3
#[test]
fn an_index_that_was_made_anew_stopped_every_commit() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "UPDATE items SET price = 5 WHERE id = 1; REINDEX TABLE items; CREATE INDEX more ON loose (a); INSERT INTO loose VALUES (9)",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["items", "inserted loose"]);
    shop.cli.ok("commit try");
    let price = "SELECT price FROM items WHERE id = 1";
    assert_eq!(shop.sql(price), "5");
    shop.assert_nothing_left();
}

#[test]
fn definitions_were_named_without_what_they_say() {
    let shop = Shop::new(true);
    shop.sql(
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE mood AS ENUM ('a'); \
         CREATE VIEW v AS SELECT id FROM items; ALTER TABLE items ADD CONSTRAINT old CHECK (price > 0)",
    );
    let url = shop.plan("try");
    inside(
        &url,
        "ALTER TABLE items ADD stock int NOT NULL DEFAULT 5 CHECK (stock >= 0), DROP CONSTRAINT old; \
         CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 2'; ALTER TYPE mood ADD VALUE 'b'; \
         CREATE OR REPLACE VIEW v AS SELECT id, name FROM items; CREATE INDEX by_stock ON items (stock); \
         CREATE TABLE fresh (a int PRIMARY KEY, b int REFERENCES items); CREATE POLICY p ON fresh FOR DELETE USING (a > 1); \
         CREATE TRIGGER t BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    );
    has(
        &shop.cli.ok("diff try"),
        [
            "+ stock integer DEFAULT 5 NOT NULL",
            "+ CONSTRAINT items_stock_check CHECK ((stock >= 0))",
            "- CONSTRAINT old",
            "- SELECT 1",
            "+ RETURNS integer LANGUAGE sql SECURITY DEFINER AS",
            "+ SELECT 2",
            "- 'a'",
            "+ 'a', 'b'",
            "+     items.name",
            "+ CREATE INDEX by_stock ON public.items USING btree (stock)",
            "+ CONSTRAINT fresh_b_fkey FOREIGN KEY (b) REFERENCES public.items(id)",
            "+ PERMISSIVE FOR DELETE TO PUBLIC USING ((a > 1))",
            "+ CREATE TRIGGER t BEFORE UPDATE ON public.orders",
        ],
    );
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// `escrow status` asked with the names that the last client wanted to be looked up, and what an operator of its own wrote was in no diff.
#[test]
fn a_look_at_the_state_ran_what_a_client_had_made() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "CREATE SCHEMA evil; CREATE FUNCTION evil.eq(text, text) RETURNS bool LANGUAGE plpgsql AS \
         'BEGIN INSERT INTO public.items VALUES (666, ''hidden'', 0) ON CONFLICT DO NOTHING; RETURN $1 OPERATOR(pg_catalog.=) $2; END'; \
         CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = text, RIGHTARG = text)",
    );
    let digest = |name: &str| json(&shop.cli, &format!("diff {name}"))["digest"].clone();
    let shown = digest("try");
    let mut psql = psql_command(&url);
    psql.env("PGOPTIONS", "-c search_path=evil,pg_catalog");
    output_of(psql.args(["-f", "/dev/null"]));
    shop.cli.ok("status");
    assert_eq!(
        inside(&url, "SELECT count(*) FROM items WHERE id = 666"),
        "0"
    );
    assert_eq!(digest("try"), shown);
    shop.cli.ok("cleanup --yes try");
}

/// Values that are written as names say the same of different things, where the names were exchanged.
#[test]
fn values_that_are_names_hid_what_was_written() {
    let shop = Shop::new(true);
    shop.sql(
        "CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE TABLE moods (id int PRIMARY KEY, m mood); INSERT INTO moods VALUES (1, 'ok'); \
         CREATE TABLE tab_x (); CREATE TABLE tab_y (); CREATE TABLE refs (id int PRIMARY KEY, c regclass); INSERT INTO refs VALUES (1, 'tab_x'); \
         CREATE FUNCTION ov(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION ov(text) RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         CREATE DOMAIN proc AS regproc; CREATE TABLE jobs (id int PRIMARY KEY, f proc); \
         INSERT INTO jobs VALUES (1, 'ov(int)'::regprocedure::oid::regproc)",
    );
    let url = shop.plan("try");
    inside(
        &url,
        "UPDATE jobs SET f = 'ov(text)'::regprocedure::oid::regproc",
    );
    assert_eq!(changes(&shop.cli, "try"), ["updated jobs/1"]);
    for (names, value) in [
        (
            "ALTER TYPE mood RENAME VALUE 'ok' TO 'tmp'; ALTER TYPE mood RENAME VALUE 'bad' TO 'ok'; ALTER TYPE mood RENAME VALUE 'tmp' TO 'bad'",
            "UPDATE moods SET m = 'ok'",
        ),
        (
            "ALTER TABLE tab_x RENAME TO tab_z; ALTER TABLE tab_y RENAME TO tab_x",
            "UPDATE refs SET c = 'tab_x'",
        ),
    ] {
        let digest = || json(&shop.cli, "diff try")["digest"].clone();
        inside(&url, names);
        let before = digest();
        inside(&url, value);
        assert_ne!(digest(), before, "{value}");
    }
    shop.cli.ok("cleanup --yes try");
}

/// The connection that sees the beginning was asked for tables by the names that they have now: rows that were deleted in exchanged schemas were
/// in no diff, and those of a renamed one could not be compared.
// rule C11, Q3
#[test]
fn rows_were_looked_for_under_the_names_of_now() {
    let shop = Shop::new(true);
    for schema in ["blue", "green", "red"] {
        shop.sql(&format!(
            "CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id int PRIMARY KEY, v text); INSERT INTO {schema}.t VALUES (1, '{schema}'), (2, 'b')"
        ));
    }
    let url = shop.plan("try");
    inside(
        &url,
        "ALTER SCHEMA blue RENAME TO x; ALTER SCHEMA green RENAME TO blue; ALTER SCHEMA x RENAME TO green; ALTER SCHEMA red RENAME TO pink",
    );
    let before = shop.digest().expect("everything was read");
    inside(
        &url,
        "DELETE FROM blue.t WHERE id = 1; UPDATE pink.t SET v = 'c' WHERE id = 2",
    );
    let shown = changes(&shop.cli, "try").join("\n");
    has(&shown, ["deleted blue.t/1", "updated pink.t/2"]);
    assert!(!shown.contains("green.t"), "{shown}");
    let said = shop.cli.run(["commit", "try", "--expect", &before]);
    assert_eq!(said.status, 4, "{said:?}");
    shop.cli.ok("commit try");
    assert_eq!(shop.sql("SELECT v FROM blue.t"), "b");
    assert_eq!(shop.sql("SELECT v FROM pink.t ORDER BY id"), "red\nc");
}

/// A table that was renamed or moved is closed for the comparison as every other that was altered, and only that was not said of it.
// rule C11
#[test]
fn a_renamed_table_was_shown_as_if_its_rows_were_compared() {
    let shop = Shop::new(true);
    shop.sql("CREATE SCHEMA side; CREATE TABLE moved (a int); CREATE TABLE anew (a int); INSERT INTO anew VALUES (1)");
    shop.sql("CREATE VIEW seen AS SELECT 1 AS one");
    let url = shop.plan("try");
    inside(
        &url,
        "ALTER TABLE loose RENAME TO other; DELETE FROM other; ALTER TABLE moved SET SCHEMA side; ALTER TABLE anew RENAME TO emptied; TRUNCATE emptied; \
         ALTER VIEW seen RENAME TO sight",
    );
    let shown = shop.cli.ok("diff try");
    has(
        &shown,
        [
            "table other: renamed; its rows are not compared",
            "table side.moved: renamed; its rows are not compared",
            "table emptied: renamed, and emptied or written anew; its rows are not compared",
            "view sight: renamed\n",
        ],
    );
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// Whether a table can be read was asked of the transaction alone; what only the one side may read was unseen, or stopped every diff and commit.
// rule C11, Q3
#[test]
fn what_one_side_may_not_read_was_unseen_or_stopped_every_commit() {
    let shop = Shop::new(true);
    shop.sql(CLERK);
    shop.sql(
        "ALTER ROLE clerk CREATEROLE; CREATE ROLE boss; CREATE TABLE hidden (id int PRIMARY KEY, v text); INSERT INTO hidden VALUES (1, 'secret'), (2, 'b'); \
         ALTER TABLE hidden OWNER TO boss; ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; GRANT ALL ON hidden TO clerk; \
         CREATE TABLE own (id int PRIMARY KEY, v text); INSERT INTO own VALUES (1, 'a'); ALTER TABLE own OWNER TO clerk; REVOKE ALL ON own FROM clerk; \
         CREATE SCHEMA audit; CREATE TABLE audit.log (v text); GRANT SELECT ON audit.log TO clerk; \
         CREATE FUNCTION logged() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN INSERT INTO audit.log VALUES ('x'); RETURN NEW; END $$; \
         CREATE TRIGGER logged AFTER UPDATE ON items FOR EACH ROW EXECUTE FUNCTION logged()",
    );
    let url = shop.plan_of_clerk();
    inside(
        &url,
        "GRANT boss TO clerk; GRANT SELECT, UPDATE ON own TO clerk",
    );
    let before = shop.digest();
    inside(&url, "DELETE FROM hidden WHERE id = 1");
    let deleted = shop.digest();
    assert_ne!(deleted, before);
    inside(&url, "UPDATE own SET v = 'b'");
    assert_ne!(shop.digest(), deleted);
    let before = "before the work in the sandbox";
    has(&shop.cli.ok("diff try"), ["hidden", "own", before]);
    assert!(shop.digest().is_some(), "everything can be read now");
    inside(&url, "UPDATE items SET price = 5 WHERE id = 1");
    has(&shop.cli.ok("diff try"), ["audit.log", "items/1"]);
    assert_eq!(shop.digest(), None);
    shop.cli.ok("commit try");
    let released = "SELECT (SELECT v FROM own), (SELECT count(*) FROM hidden), (SELECT count(*) FROM audit.log)";
    assert_eq!(shop.sql(released), "b|1|1");
}

/// Ranges over an enumerated type are names too, and the value of a sequence that is new, or was begun anew, is released with it.
// rule C11
#[test]
fn ranges_of_names_and_values_of_new_sequences_were_not_bound() {
    let shop = Shop::new(true);
    shop.sql(
        "CREATE TYPE mood AS ENUM ('a', 'b', 'c'); CREATE TYPE moods AS RANGE (subtype = mood); CREATE SEQUENCE old; CREATE SEQUENCE counted; \
         CREATE TABLE r (id int PRIMARY KEY, m moods); INSERT INTO r VALUES (1, '[a,a]'); \
         CREATE TABLE m (id int PRIMARY KEY, m moods_multirange); INSERT INTO m VALUES (1, '{[a,a]}'); \
         CREATE TABLE acl (id int PRIMARY KEY, a aclitem); INSERT INTO acl VALUES (1, 'app=r/postgres')",
    );
    let url = shop.plan("try");
    for (first, second) in [
        (
            "ALTER TYPE mood RENAME VALUE 'a' TO 'x'; ALTER TYPE mood RENAME VALUE 'b' TO 'a'; ALTER TYPE mood RENAME VALUE 'x' TO 'b'",
            "UPDATE r SET m = '[a,a]'",
        ),
        ("SELECT 1", "UPDATE m SET m = '{[a,a]}'"),
        (
            "CREATE ROLE other; ALTER ROLE app RENAME TO x; ALTER ROLE other RENAME TO app",
            "UPDATE acl SET a = 'app=r/postgres'",
        ),
        ("ALTER SEQUENCE old RESTART 100", "SELECT setval('old', 5)"),
        ("CREATE SEQUENCE made", "SELECT setval('made', 7)"),
        ("SELECT 1", "SELECT setval('made', 7, false)"),
    ] {
        inside(&url, first);
        let before = shop.digest().expect("everything was read");
        inside(&url, second);
        assert_ne!(shop.digest(), Some(before), "{second}");
    }
    inside(&url, "SELECT nextval('counted')");
    let said = shop.cli.ok("--json commit try --dry-run");
    let notes = json(&shop.cli, "commit try --dry-run")["resources"].to_string();
    has(&said, ["counted", "the sequence was moved"]);
    assert!(!notes.contains("\"made\""), "{notes}");
    shop.cli.ok("cleanup --yes try");
}
