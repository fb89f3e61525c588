//! The traps of one session of a PostgreSQL server that many clients share.

use escrow_testkit::postgres::psql_command;

use crate::postgres::{CLERK, Shop, inside, refused};
use crate::*;

/// Each trap of a session that clients share.
#[test]
fn traps_of_one_session_for_many_clients() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    trap_2_listen_and_notify_fail_at_once(&url);
    trap_3_temporary_objects_fail_at_once(&url);
    trap_4_advisory_locks_of_the_session_are_refused(&url);
    trap_5_what_needs_no_transaction_fails_with_the_server_s_code(&url);
    trap_6_an_error_aborts_only_its_own_statement(&url);
    trap_7_no_subtransaction_stays_open(&url);
    trap_9_copies_pipelines_and_large_rows(&shop, &url);
    trap_10_cursors_with_hold_fail_at_once(&url);
    trap_11_settings_of_one_client_are_not_another_s(&url);
    a_reset_returns_to_what_the_client_began_with(&url);
    transactions_have_the_tags_and_the_status_of_a_server(&url);
    deferred_constraints_are_checked_when_a_client_commits(&url);
    // After all that it can be committed.
    shop.cli.ok("commit try");
    assert_eq!(shop.sql("SELECT count(*) FROM items WHERE id = 600"), "1");
    shop.assert_nothing_left();
}

/// Each trap of a transaction that stays open.
#[test]
fn traps_of_a_transaction_that_stays_open() {
    let shop = Shop::new(true);
    shop.sql("ALTER DATABASE shop SET idle_in_transaction_session_timeout = '200ms'");
    let url = shop.server.url("postgres", "shop");
    let set = |options: &str| {
        let file = format!(
            "resources:\n  shop: {{type: postgres, at: '{url}', options: {{{options}}}}}\n"
        );
        write(shop.world.at("escrow.yaml"), file);
        shop.cli.trust();
    };
    for wrong in ["max_age: soon", "env: 'A=B'"] {
        set(wrong);
        let said = shop.cli.fails("plan create try --resource shop", 1);
        assert!(said.contains("option `"), "{wrong}: {said}");
    }
    set("max_age: 0");
    shop.cli.ok("plan create try --resource shop");
    let url = shop.url("try");
    inside(&url, "INSERT INTO orders (item) VALUES (1)");
    trap_12_the_time_of_the_transaction_stands_still(&url);
    // Longer than the database lets a transaction be idle.
    thread::sleep(Duration::from_secs(1));
    trap_13_the_server_does_not_end_it_because_nothing_happens(&url);
    trap_14_its_age_and_its_locks_are_shown_and_warned_of(&shop);
    trap_1_a_sequence_is_moved_for_all(&shop, &url);
    trap_15_a_conflict_at_the_end_is_a_conflict(&shop);
    shop.assert_nothing_left();
}

fn trap_12_the_time_of_the_transaction_stands_still(url: &str) {
    assert_eq!(inside(url, "SELECT now()"), inside(url, "SELECT now()"));
    let clock = "SELECT clock_timestamp()";
    assert_ne!(inside(url, clock), inside(url, clock));
}

fn trap_13_the_server_does_not_end_it_because_nothing_happens(url: &str) {
    assert_eq!(inside(url, "SELECT count(*) FROM orders"), "1");
}

fn trap_14_its_age_and_its_locks_are_shown_and_warned_of(shop: &Shop) {
    let wanted = ["its transaction is open", "holds locks on", "that is long"];
    let until = Instant::now() + Duration::from_secs(60);
    while !shop.cli.ok("status").contains(wanted[2]) && Instant::now() < until {
        thread::sleep(Duration::from_millis(100));
    }
    has(&shop.cli.ok("status"), wanted);
    has(&shop.cli.ok("--json status"), ["remarks", wanted[2]]);
}

// rule Q2
fn trap_1_a_sequence_is_moved_for_all(shop: &Shop, url: &str) {
    let said = shop.cli.ok("--json commit try --dry-run");
    has(&said, ["orders_id_seq", "the sequence was moved"]);
    shop.cli.ok("rollback try");
    let next = "INSERT INTO orders (item) VALUES (2) RETURNING id";
    assert_eq!(inside(url, next), "2", "a rollback does not rewind it");
    shop.cli.ok("commit try");
    assert_eq!(shop.sql("SELECT id FROM orders"), "2");
    assert_eq!(shop.sql(next), "3", "none is given twice");
}

// rule Q2
fn trap_15_a_conflict_at_the_end_is_a_conflict(shop: &Shop) {
    shop.sql("CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_query() ~ '^PREPARE' THEN RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'not now'; END IF; \
         SET CONSTRAINTS public.late DEFERRED; UPDATE public.loose SET a = a WHERE a = NEW.a; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON loose DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION late()",
    );
    // Run before, it waits for the end again.
    shop.server.sql("shop", CLERK);
    let url = shop.server.url("clerk", "shop");
    shop.cli.ok(["plan", "create", "again", "--resource", &url]);
    let url = shop.cli.ok("path again shop-2");
    let url = url.trim_end();
    inside(url, "INSERT INTO loose VALUES (7)");
    has(&shop.cli.fails("commit again", 4), ["40001", "not now"]);
    assert_eq!(shop.sql("SELECT count(*) FROM loose"), "3");
    assert_eq!(
        inside(url, "SELECT count(*) FROM loose"),
        "4",
        "nothing is lost"
    );
    shop.cli.ok("cleanup again --yes");
}

// rule Q7
fn trap_2_listen_and_notify_fail_at_once(url: &str) {
    for sql in [
        "LISTEN news",
        "NOTIFY news",
        "SELECT pg_notify('news', 'x')",
    ] {
        has(&refused(url, sql), ["0A000", "HINT"]);
    }
}

// rule Q7
fn trap_3_temporary_objects_fail_at_once(url: &str) {
    has(
        &refused(url, "CREATE TEMP TABLE t (a int)"),
        ["0A000", "HINT", "temporary"],
    );
    has(&refused(url, "SELECT 1 AS a INTO TEMP t"), ["0A000"]);
}

// rule Q7
fn trap_4_advisory_locks_of_the_session_are_refused(url: &str) {
    has(
        &refused(url, "SELECT pg_advisory_lock(7)"),
        ["0A000", "pg_advisory_xact_lock"],
    );
    inside(url, "SELECT pg_advisory_xact_lock(7)");
}

// rule Q7
fn trap_5_what_needs_no_transaction_fails_with_the_server_s_code(url: &str) {
    for sql in [
        "VACUUM items",
        "CREATE INDEX CONCURRENTLY i ON items (name)",
        "CREATE DATABASE other",
        "REINDEX TABLE CONCURRENTLY items",
        "ALTER SYSTEM SET work_mem = '1MB'",
    ] {
        has(&refused(url, sql), ["25001", "HINT"]);
    }
}

fn trap_6_an_error_aborts_only_its_own_statement(url: &str) {
    inside(url, "INSERT INTO items VALUES (600, 'kept', 0)");
    has(
        &refused(
            url,
            "INSERT INTO items VALUES (601, 'gone', 0); SELECT 1 / 0",
        ),
        ["22012"],
    );
    let rows = "SELECT count(*) FROM items WHERE id IN (600, 601)";
    assert_eq!(inside(url, rows), "1", "what one text does is one thing");
    // A client that dies in its transaction takes only that back.
    let mut command = psql_command(url);
    command.args([
        "-c",
        "BEGIN",
        "-c",
        "INSERT INTO items VALUES (602, 'gone', 0)",
        "-c",
        "\\! kill -9 $PPID",
    ]);
    assert!(!command.status().expect("psql runs").success());
    assert_eq!(
        inside(url, "SELECT count(*) FROM items WHERE id = 602"),
        "0"
    );
}

fn trap_7_no_subtransaction_stays_open(url: &str) {
    let many: String = (0..200)
        .map(|n| format!("UPDATE items SET price = {n} WHERE id = 5;\n"))
        .collect();
    let mut command = psql_command(url);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("psql runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), many.as_bytes())
        .expect("written");
    assert!(child.wait().expect("it ends").success());
    let open =
        "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'transactionid'";
    let open: u32 = inside(url, open).parse().expect("a number");
    assert!(open <= 2, "{open} transactions of it are open");
}

fn trap_9_copies_pipelines_and_large_rows(shop: &Shop, url: &str) {
    let file = shop.world.at("rows.csv");
    let rows: String = (1000..4000).map(|n| format!("{n},row {n},1\n")).collect();
    write(&file, &rows);
    inside(url, &format!("\\copy items FROM '{}' CSV", file.display()));
    let out = shop.world.at("out.csv");
    inside(
        url,
        &format!(
            "\\copy (SELECT * FROM items WHERE id >= 1000 ORDER BY id) TO '{}' CSV",
            out.display()
        ),
    );
    assert_eq!(read(&out), rows);
    has(
        &refused(url, &format!("\\copy items FROM '{}' CSV", file.display())),
        ["23505"],
    );
    assert_eq!(
        inside(url, "SELECT count(*) FROM items WHERE id >= 1000"),
        "3000"
    );
    let large = "INSERT INTO loose SELECT 9, repeat('x', 20000000)";
    inside(url, large);
    assert_eq!(
        inside(url, "SELECT b FROM loose WHERE a = 9").len(),
        20_000_000
    );
    inside(
        url,
        "DELETE FROM loose WHERE a = 9; DELETE FROM items WHERE id >= 1000",
    );
    // A query is cancelled by the client's own key.
    let mut command = psql_command(url);
    command.args(["-c", "SELECT pg_sleep(600)"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("psql runs");
    let runs = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'";
    assert!(shop.server.becomes("postgres", runs, "1"));
    sh("/", &format!("kill -INT {}", child.id()));
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    has(&said, ["canceling statement due to user request"]);
    assert_eq!(inside(url, "SELECT 1"), "1");
}

// rule Q7
fn trap_10_cursors_with_hold_fail_at_once(url: &str) {
    has(
        &refused(url, "DECLARE c CURSOR WITH HOLD FOR SELECT 1"),
        ["0A000"],
    );
    has(&refused(url, "DECLARE c CURSOR FOR SELECT 1"), ["25P01"]);
    let cursor =
        "BEGIN; DECLARE c CURSOR FOR SELECT id FROM items ORDER BY id; FETCH 2 FROM c; COMMIT";
    assert_eq!(inside(url, cursor), "1\n2");
    assert_eq!(inside(url, cursor), "1\n2", "it ended with the transaction");
}

fn trap_11_settings_of_one_client_are_not_another_s(url: &str) {
    let mut command = psql_command(url);
    command.args([
        "-c",
        "SET search_path = pg_catalog",
        "-c",
        "SET app.who = 'me'",
        "-c",
        "BEGIN; SET LOCAL work_mem = '77MB'; COMMIT",
    ]);
    command.args([
        "-c",
        "SHOW search_path",
        "-c",
        "SHOW app.who",
        "-c",
        "SHOW work_mem",
    ]);
    let output = command.output().expect("psql runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "pg_catalog\nme\n4MB\n",
        "{output:?}"
    );
    assert_eq!(inside(url, "SHOW search_path"), "\"$user\", public");
    assert_eq!(
        inside(url, "SELECT coalesce(current_setting('app.who', true), '')"),
        ""
    );
    let with = format!("{url}&options=-c%20search_path%3Dother");
    assert_eq!(inside(&with, "SHOW search_path"), "other");
}

/// A client's own settings are those that its `RESET` returns to, as on a server.
fn a_reset_returns_to_what_the_client_began_with(url: &str) {
    let mut command = psql_command(url);
    let shown = "SELECT current_setting('DateStyle'), current_setting('work_mem')";
    command
        .env("PGDATESTYLE", "German")
        .env("PGOPTIONS", "-c work_mem=77kB");
    command.args(["-c", "SET DateStyle = ISO; SET work_mem = '99kB'"]);
    command
        .args(["-c", "RESET DateStyle"])
        .args(["-c", "SET work_mem TO DEFAULT"]);
    command
        .args(["-c", shown])
        .args(["-c", "SET DateStyle = ISO"]);
    command.args(["-c", "RESET ALL"]).args(["-c", shown]);
    let output = command.output().expect("psql runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = "German, DMY|77kB\n";
    assert_eq!(said, [wanted, wanted].concat(), "{output:?}");
}

fn transactions_have_the_tags_and_the_status_of_a_server(url: &str) {
    let mut command = psql_command(url);
    command.args(["-e", "-v", "ON_ERROR_STOP=0"]);
    let script = "\\set QUIET off\nBEGIN;\nSAVEPOINT a;\nINSERT INTO items VALUES (1, 'twice', 0);\nSELECT 1;\n\
                  ROLLBACK TO a;\nRELEASE a;\nCOMMIT;\nCOMMIT;\nBEGIN;\nSELECT 1/0;\nCOMMIT;\nSAVEPOINT b;\n\
                  BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;\nDELETE FROM items;\nROLLBACK;\nSTART TRANSACTION; \
                  INSERT INTO loose VALUES (50); COMMIT AND CHAIN;\nABORT;\nSELECT count(*) FROM loose WHERE a = 50;\n";
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("psql runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), script.as_bytes())
        .expect("written");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    has(
        &said,
        [
            "duplicate key",
            "current transaction is aborted",
            "there is no transaction in progress",
            "division by zero",
            "SAVEPOINT can only be used in transaction blocks",
            "cannot execute DELETE in a read-only transaction",
        ],
    );
    let tags = String::from_utf8_lossy(&output.stdout).into_owned();
    let tags: Vec<&str> = tags.lines().filter(|line| !line.ends_with(';')).collect();
    assert_eq!(
        tags,
        [
            "BEGIN",
            "SAVEPOINT",
            "ROLLBACK",
            "RELEASE",
            "COMMIT",
            "COMMIT",
            "BEGIN",
            "ROLLBACK",
            "BEGIN",
            "ROLLBACK",
            "START TRANSACTION",
            "INSERT 0 1",
            "COMMIT",
            "ROLLBACK",
            "1"
        ],
        "{said}"
    );
}

fn deferred_constraints_are_checked_when_a_client_commits(url: &str) {
    has(
        &refused(url, "INSERT INTO orders (item) VALUES (-1)"),
        ["23503"],
    );
    assert_eq!(
        inside(
            url,
            "BEGIN; INSERT INTO orders (item) VALUES (700); INSERT INTO items VALUES (700, 'late', 0); COMMIT; SELECT count(*) FROM orders"
        ),
        "1"
    );
    // What was checked is not pending: its tables can be altered, as after any commit. Each constraint is as it began.
    inside(
        url,
        "CREATE TABLE early (a int UNIQUE DEFERRABLE); CREATE TABLE later (a int REFERENCES items DEFERRABLE INITIALLY DEFERRED)",
    );
    inside(
        url,
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO later VALUES (1); INSERT INTO early VALUES (1), (1); DELETE FROM early; \
         INSERT INTO early VALUES (1); COMMIT",
    );
    inside(
        url,
        "ALTER TABLE orders ADD x int; ALTER TABLE orders DROP x; ALTER TABLE early ADD x int; DROP TABLE later",
    );
    let twice = "BEGIN; INSERT INTO early VALUES (2), (2); DELETE FROM early; COMMIT";
    has(&refused(url, twice), ["23505"]);
    inside(url, "DROP TABLE early");
}
