//! What once lost the work in a held transaction, or let it be done as another role. Each test is named after what was wrong.

use crate::postgres::{CLERK, Shop, inside, refused};
use crate::*;

impl Shop {
    /// A commit that is refused before anything is prepared: the work is still there.
    #[track_caller]
    fn assert_refused(&self, url: &str, why: &str) {
        let said = self.cli.fails("commit try", 1);
        has(&said, [why]);
        assert_eq!(inside(url, "SELECT count(*) FROM made"), "0", "{said}");
    }
}

/// The server refuses to prepare a transaction that looked into another database, and what was held was gone.
// rule Q3
#[test]
fn a_look_into_a_foreign_table_lost_everything() {
    let shop = Shop::new(true);
    let host = shop.server.socket();
    shop.sql(&format!(
        "CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{}', dbname 'postgres'); \
         CREATE USER MAPPING FOR postgres SERVER far OPTIONS (user 'postgres'); CREATE FOREIGN TABLE far (datname name) SERVER far \
         OPTIONS (schema_name 'pg_catalog', table_name 'pg_database'); CREATE EXTENSION file_fdw; \
         CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE near (a text) SERVER files OPTIONS (filename '/dev/null')",
        host.display()
    ));
    let url = shop.plan("try");
    inside(&url, "CREATE TABLE made (a int); SELECT count(*) FROM far");
    shop.assert_refused(&url, "foreign table");
    shop.cli.ok("rollback try");
    shop.cli.ok("cleanup --yes try");
    let url = shop.plan("again");
    // A view on one connects to nothing.
    inside(
        &url,
        "CREATE TABLE made (a int); SELECT count(*) FROM near; CREATE VIEW over AS SELECT * FROM far",
    );
    shop.cli.ok("commit again");
    assert_eq!(shop.sql("SELECT count(*) FROM made"), "0");
    shop.assert_nothing_left();
}

/// Where others have prepared as many transactions as the server takes, the prepare failed, and a changed definition was gone.
// rule Q3
#[test]
fn transactions_that_others_prepared_lost_a_definition() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "CREATE TABLE made (a int)");
    let each = |what: &str| {
        for number in 0..10 {
            shop.sql(&what.replace('#', &number.to_string()));
        }
    };
    each("BEGIN; PREPARE TRANSACTION 'other_#'");
    shop.assert_refused(&url, "max_prepared_transactions");
    each("ROLLBACK PREPARED 'other_#'");
    shop.cli.ok("commit try");
    shop.assert_nothing_left();
}

/// Two databases of one plan found room for one prepared transaction each, and there was room for one: a changed definition was gone.
// rule Q3
#[test]
fn two_databases_shared_the_last_room_for_a_prepared_transaction() {
    let shop = Shop::new(true);
    shop.server.sql("postgres", "CREATE DATABASE other");
    let [one, other] = ["shop", "other"].map(|name| shop.server.url("postgres", name));
    // A clone is prepared, too.
    for strategy in ["transaction_rollback", "snapshot"] {
        let text = format!(
            "resources: {{shop: {{type: postgres, at: '{one}'}}, other: {{type: postgres, at: '{other}', strategy: {strategy}}}}}\n"
        );
        write(shop.world.at("escrow.yaml"), text);
        shop.cli.ok("trust escrow.yaml --yes");
        commit_with_little_room(&shop);
    }
    shop.assert_nothing_left();
}

fn commit_with_little_room(shop: &Shop) {
    shop.cli.ok("plan create try -r shop -r other");
    let url = shop.url("try");
    let beside = shop.cli.ok("path try other");
    inside(&url, "CREATE TABLE made (a int)");
    inside(beside.trim(), "CREATE TABLE made (a int)");
    let each = |what: &str| {
        for number in 0..9 {
            shop.sql(&what.replace('#', &number.to_string()));
        }
    };
    each("BEGIN; PREPARE TRANSACTION 'other_#'");
    shop.assert_refused(&url, "max_prepared_transactions");
    assert_eq!(inside(beside.trim(), "SELECT count(*) FROM made"), "0");
    shop.sql("ROLLBACK PREPARED 'other_0'");
    shop.cli.ok("commit try");
    for database in ["shop", "other"] {
        shop.server.sql(database, "DROP TABLE made");
    }
    for number in 1..9 {
        shop.sql(&format!("ROLLBACK PREPARED 'other_{number}'"));
    }
    shop.cli.ok("cleanup try --yes");
}

/// A limit of time of the role held for what the engine does too.
// rule Q3
#[test]
fn a_limit_of_time_of_the_role_stopped_every_commit() {
    let shop = Shop::new(true);
    shop.sql(CLERK);
    shop.sql("INSERT INTO loose SELECT g, repeat('x', 100) FROM generate_series(1, 300000) g");
    for limit in ["1ms", "40ms"] {
        shop.sql(&format!(
            "ALTER ROLE clerk IN DATABASE shop SET statement_timeout = '{limit}'"
        ));
        let server = shop.server.url("clerk", "shop");
        shop.cli
            .ok(["plan", "create", limit, "--resource", &server]);
        let url = shop.url(limit);
        assert_eq!(inside(&url, "SHOW statement_timeout"), "200ms");
        assert_eq!(inside(&url, "RESET ALL; SHOW statement_timeout"), "200ms");
        has(&refused(&url, "SELECT pg_sleep(30)"), ["57014"]);
        inside(
            &url,
            "SET statement_timeout = 0; UPDATE loose SET b = 'y' WHERE a < 100000; DELETE FROM loose WHERE a = 200000",
        );
        shop.cli.ok(format!("rollback {limit}"));
        inside(
            &url,
            "SET statement_timeout = 0; UPDATE loose SET a = a WHERE a > 5; UPDATE items SET price = price + 1 WHERE id = 1",
        );
        shop.cli.ok(format!("diff {limit}"));
        shop.cli.ok(format!("commit {limit}"));
    }
    let price = "SELECT price FROM items WHERE id = 1";
    assert_eq!(shop.sql(price), "3.5");
    shop.assert_nothing_left();
}

/// The role that a session begins with was another one in the sandbox.
#[test]
fn the_role_that_a_session_begins_with_was_not_kept() {
    let shop = Shop::new(true);
    shop.sql(CLERK);
    shop.sql(
        "CREATE ROLE team; GRANT team TO clerk; GRANT ALL ON SCHEMA public TO team; GRANT ALL ON items TO team; ALTER ROLE clerk SET role = 'team'",
    );
    let server = shop.server.url("clerk", "shop");
    shop.cli
        .ok(["plan", "create", "try", "--resource", &server]);
    let url = shop.url("try");
    let role = "SELECT current_user";
    assert_eq!(inside(&url, role), "team");
    let chosen = |set: &str| inside(&url, &format!("SET work_mem = '8MB'; {set}; {role}"));
    assert_eq!(chosen("SET ROLE NONE"), "clerk");
    assert_eq!(chosen("SET ROLE NONE; RESET ROLE"), "team");
    assert_eq!(inside(&url, role), "team");
    inside(
        &url,
        "CREATE TABLE made (a int); UPDATE items SET price = 2 WHERE id = 1",
    );
    shop.cli.ok("diff try");
    shop.cli.ok("commit try");
    let owner = "SELECT tableowner FROM pg_tables WHERE tablename = 'made'";
    assert_eq!(shop.sql(owner), "team");
    shop.assert_nothing_left();
}

/// Temporary objects and notifications that were refused only when everything else was done.
// rule Q7
#[test]
fn what_cannot_be_prepared_passed_until_the_commit() {
    let shop = Shop::new(true);
    shop.sql("CREATE MATERIALIZED VIEW mv AS SELECT id FROM items; CREATE UNIQUE INDEX ON mv (id)");
    let url = shop.plan("try");
    for sql in [
        "WITH x AS (SELECT 1 a) SELECT * INTO TEMP tt FROM x",
        "(SELECT 1 AS a INTO TEMP tt)",
        "SELECT 1 a INTO pg_temp.tt",
        "CREATE TABLE \"pg_temp\".tt AS SELECT 1",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY mv",
        "SELECT \"pg_notify\"('a', 'b')",
        "SELECT U&\"pg!005fnotify\" UESCAPE '!' ('a', 'b')",
    ] {
        has(&refused(&url, sql), ["0A000", "HINT"]);
    }
    for sql in [
        "SELECT name AS temp INTO wy FROM items; SELECT temp INTO wz FROM wy",
        "BEGIN; DECLARE c CURSOR FOR SELECT 1 AS hold; FETCH c; COMMIT",
        "GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO app",
        "CREATE FUNCTION tell() RETURNS void RETURN pg_notify('a', 'b')",
        "CREATE FUNCTION safe() RETURNS int LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT 1'",
        "REFRESH MATERIALIZED VIEW mv",
    ] {
        inside(&url, sql);
    }
    inside(
        &url,
        "CREATE TABLE made (a int); SET search_path = pg_temp, public; CREATE TABLE tt (a int)",
    );
    shop.assert_refused(&url, "search_path");
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}

/// Errors of checks that wait, and settings, that were not as on a server.
#[test]
fn what_a_client_was_told_or_had_set_was_less_than_on_a_server() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let said = refused(&url, "INSERT INTO orders (item) VALUES (999)");
    let wanted = ["23503", "DETAIL:  Key (item)=(999)", "TABLE NAME:  orders"];
    has(&said, wanted);
    has(&said, ["CONSTRAINT NAME:  orders_item_fkey"]);
    assert!(!said.contains("SET CONSTRAINTS"), "{said}");
    has(&refused(&url, "LOCK TABLE items"), ["25P01"]);
    inside(&url, "LOCK TABLE items; SELECT 1");
    for (set, show, wanted) in [
        ("SET TIME ZONE 'Asia/Tokyo'", "TimeZone", "Asia/Tokyo"),
        ("SET NAMES 'LATIN1'", "client_encoding", "LATIN1"),
        ("SET SCHEMA 'pg_catalog'", "search_path", "pg_catalog"),
        ("SET ROLE app", "role", "app"),
        (
            "SELECT set_config('DateStyle', 'German', 't')",
            "DateStyle",
            "ISO, MDY",
        ),
    ] {
        let mut psql = Command::new("psql");
        psql.args([url.as_str(), "-XqAt", "-c", "BEGIN", "-c", set]);
        psql.args(["-c", "SET LOCAL work_mem = '8MB'", "-c", "COMMIT"]);
        let said = output_of(psql.args(["-c", &format!("SHOW {show}")]));
        assert_eq!(said.lines().last(), Some(wanted), "{set}");
    }
    shop.cli.ok("cleanup --yes try");
    shop.assert_nothing_left();
}
