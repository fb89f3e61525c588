//! PostgreSQL databases in a plan when something fails: the holder, the server, the link, this program.

use escrow_testkit::pglink::{BREAKS, Break, PgLink};
use escrow_testkit::postgres::{psql, psql_command};

use crate::postgres::{CLERK, Shop, changes, inside};
use crate::*;

// rule P5, Q8
#[test]
fn a_holder_or_a_server_that_dies_is_said_and_nothing_is_pretended() {
    let mut shop = Shop::new(true);
    let url = shop.plan("try");
    inside(&url, "DELETE FROM orders; UPDATE items SET price = 0");
    has(
        &shop.cli.ok("plan show try"),
        ["its transaction is open for", "holds locks on"],
    );
    let backend = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop' AND application_name = 'escrow'";
    shop.server.sql("postgres", backend);
    let said = shop.cli.fails("diff try", 1);
    has(
        &shop.cli.ok("plan show try"),
        ["the transaction of the sandbox is gone"],
    );
    has(
        &said,
        ["the transaction of the sandbox is gone", "escrow rollback"],
    );
    assert!(psql(&url, "SELECT 1").is_err());
    shop.cli.fails("commit try", 1);
    shop.cli.ok("rollback try");
    assert_eq!(inside(&url, "SELECT sum(price) FROM items"), "315.0");
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    inside(&url, "UPDATE items SET price = 0");
    // What was compared once is shown again for as long as nobody works on, and no longer than the transaction is there.
    assert_ne!(changes(&shop.cli, "try"), [""; 0]);
    shop.server.stop();
    has(&shop.cli.fails("diff try", 1), ["is gone"]);
    shop.cli.fails("rollback try", 5);
    shop.server.run();
    shop.cli.ok("recover");
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    shop.cli.ok("cleanup try --yes");
    shop.assert_nothing_left();
}

/// As after a reboot: what was done in the transaction is lost, and nothing else is.
// rule P5, C1, R4
#[test]
fn a_member_whose_holder_is_gone_is_left_out_and_only_it_is_lost() {
    let shop = Shop::new(true);
    let backend = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop' AND application_name = 'escrow'";
    let url = shop.plan_both("try");
    put(&shop.cli, "try app a.txt", "first\n");
    inside(&url, "UPDATE items SET price = 0");
    shop.server.sql("postgres", backend);
    has(&shop.cli.fails("diff try", 1), ["is gone"]);
    let made = shop.cli.expect("checkpoint create try -m kept", 0);
    let gone = ["'shop' is not in the checkpoint", "is gone"];
    has(&made.stderr_text(), gone);
    put(&shop.cli, "try app a.txt", "second\n");
    let said = shop.cli.fails("restore try kept", 1);
    has(&said, ["'shop' cannot return", "--resource app`"]);
    shop.cli.ok("restore try kept --resource app");
    assert_eq!(shop.cli.ok("read try app a.txt"), "first\n");
    let forked = shop.cli.expect("plan fork try other", 0);
    has(&forked.stderr_text(), ["'shop' is not in the fork"]);
    assert_eq!(shop.cli.ok("read other app a.txt"), "first\n");
    shop.cli.ok("cleanup other --yes");
    let said = shop.cli.fails("commit try", 1);
    has(&said, ["is gone", "--exclude shop:.`"]);
    let before = shop.items();
    shop.cli.ok("commit try --exclude shop:. --dry-run");
    shop.cli.ok("commit try --exclude shop:.");
    assert_eq!(read(shop.world.at("app/a.txt")), "first\n");
    assert_eq!(shop.items(), before);
    assert_eq!(json(&shop.cli, "plan show try")["state"], "committed");
    shop.cli.ok("undo try");
    assert_eq!(shop.cli.ok("read try app a.txt"), "first\n");
    shop.cli.ok("cleanup try --yes");
    shop.assert_nothing_left();
}

// rule C9, C18, C19
#[test]
fn trap_16_without_prepared_transactions_it_is_the_one_irreversible_member() {
    let shop = Shop::new(false);
    let url = shop.server.url("postgres", "shop");
    let made = shop.plan_of("try", &url);
    has(&made.stderr_text(), ["max_prepared_transactions"]);
    let url = shop.url("try");
    put(&shop.cli, "try app a.txt", "uno\n");
    inside(&url, "UPDATE items SET price = 1");
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|20");
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
    shop.assert_nothing_left();
    // Where it fails, everything is as before.
    let url = shop.plan_both("more");
    put(&shop.cli, "more app a.txt", "due\n");
    inside(&url, "UPDATE items SET price = 2");
    let backend = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop' AND application_name = 'escrow'";
    shop.server.sql("postgres", backend);
    shop.cli.fails("commit more", 1);
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
    assert_eq!(shop.items(), "20|20");
    // A server that refuses the end of a transaction took everything back; it is said what of it could be made again.
    shop.cli.ok("cleanup more --yes");
    shop.sql(CLERK);
    shop.sql(REFUSES);
    let url = shop.plan_both_as("clerk", "more");
    put(&shop.cli, "more app a.txt", "tre\n");
    inside(&url, "INSERT INTO loose VALUES (77)");
    has(&shop.cli.fails("commit more", 1), ["not today"]);
    assert_eq!(changes(&shop.cli, "more").len(), 1, "it is there again");
    inside(&url, "CREATE TABLE lost (a int)");
    has(
        &shop.cli.fails("commit more", 1),
        ["not today", "could not be made again", "done again"],
    );
    assert_eq!(changes(&shop.cli, "more"), [""; 0]);
    shop.cli.ok("rollback more");
    inside(&url, "UPDATE items SET price = 2");
    put(&shop.cli, "more app a.txt", "tre\n");
    shop.cli.ok("commit more");
    assert_eq!(shop.items(), "20|40");
    assert_eq!(read(shop.world.at("app/a.txt")), "tre\n");
    shop.assert_nothing_left();
}

/// A trigger that lets no transaction with rows of `loose` end, whatever was promised. Run before, it waits for the end again.
const REFUSES: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    IF current_query() ~ '^(COMMIT|PREPARE)' THEN RAISE EXCEPTION 'not today'; END IF; \
    SET CONSTRAINTS public.refuse DEFERRED; UPDATE public.loose SET a = a WHERE a = NEW.a; RETURN NULL; END $$; \
    CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON loose DEFERRABLE INITIALLY DEFERRED \
    FOR EACH ROW EXECUTE FUNCTION refuse()";

/// The link is cut, or the server stopped, at every statement of a commit that matters: all old or all new.
// rule C3, C18, C19, Q8
#[test]
fn a_commit_whose_link_or_server_fails_is_one_thing() {
    let mut shop = Shop::new(true);
    let link = PgLink::new(&shop.server);
    let mut price = 2000;
    for text in [
        "SET CONSTRAINTS ALL IMMEDIATE",
        "PREPARE TRANSACTION",
        "COMMIT PREPARED",
    ] {
        for how in BREAKS {
            price += 1;
            let (plan, when) = (format!("plan{price}"), format!("{how:?} at {text}"));
            shop.plan_of(&plan, &link.url("postgres", "shop"));
            let url = shop.url(&plan);
            let content = format!("{price}\n");
            put(&shop.cli, &format!("{plan} app a.txt"), &content);
            inside(
                &url,
                &format!("UPDATE items SET price = {price} WHERE id = 1"),
            );
            link.arm(text, how, &shop.server);
            let first = shop.cli.run(format!("commit {plan}"));
            assert!(link.disarm(), "{when}: {first:?}");
            if (text, how) == ("PREPARE TRANSACTION", Break::StopAfter) {
                assert_eq!(
                    first.status, 5,
                    "it is prepared, and the journal knows it: {first:?}"
                );
            }
            if matches!(how, Break::StopBefore | Break::StopAfter) {
                shop.server.stop();
                shop.server.run();
            }
            shop.cli.ok("recover");
            assert_eq!(shop.server.prepared(), "", "{when}");
            let file = read(shop.world.at("app/a.txt")) == content;
            let now = shop.sql("SELECT price FROM items WHERE id = 1");
            assert_eq!(now == price.to_string(), file, "{when}: {now}: {first:?}");
            assert_eq!(file, text == "COMMIT PREPARED", "{when}: {first:?}");
            shop.cli.ok(format!("cleanup {plan} --yes"));
        }
    }
    shop.assert_nothing_left();
}

/// A member that cannot be applied after the database was prepared takes everything back. The rows that the transaction had
/// changed are changed again in the next one; where a definition had changed too they are lost, which the strategy says before.
// rule C4, Q3, Q8
#[test]
fn a_commit_that_fails_takes_the_prepared_transaction_back() {
    need!(require_stepper());
    let shop = Shop::new(true);
    let url = shop.plan_both("try");
    put(&shop.cli, "try app a.txt", "uno\n");
    inside(
        &url,
        "UPDATE items SET price = 1; DELETE FROM items WHERE id = 9; INSERT INTO items VALUES (30, 'a', 1), (31, 'b', 1)",
    );
    inside(
        &url,
        "DELETE FROM loose WHERE ctid = (SELECT min(ctid) FROM loose); INSERT INTO loose VALUES (3, 'it''s')",
    );
    inside(&url, "INSERT INTO orders (item) VALUES (30), (31)");
    let run = shop
        .cli
        .stepper("commit try")
        .only(MOVES)
        .fault(1, Fault::Once(5));
    assert!(run.hit.is_some(), "it makes such calls");
    assert_eq!(run.outcome.status, 1, "{}", run.outcome.stderr_text());
    assert_eq!(shop.items(), "20|315.0");
    assert_eq!(shop.server.prepared(), "");
    assert_eq!(read(shop.world.at("app/a.txt")), "one\ntwo\nthree\n");
    let strategies = json(&shop.cli, "strategy list");
    let all = list(&strategies["strategies"]);
    let held = all.iter().find(|one| one["name"] == "transaction_rollback");
    let held = held.expect("it is listed");
    assert_eq!(held["capabilities"]["retryable"], false, "{held}");
    assert_eq!(changes(&shop.cli, "try").len(), 26);
    // The whole can be committed at once.
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "21|21");
    assert_eq!(
        shop.sql("SELECT * FROM loose ORDER BY 1"),
        "1|x\n2|\n3|it's"
    );
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
    shop.assert_nothing_left();
    let url = shop.plan_both("more");
    put(&shop.cli, "more app a.txt", "due\n");
    inside(&url, "ALTER TABLE items ADD COLUMN x int");
    let run = shop
        .cli
        .stepper("commit more")
        .only(MOVES)
        .fault(1, Fault::Once(5));
    assert_eq!(run.outcome.status, 1, "{}", run.outcome.stderr_text());
    let said = run.outcome.stderr_text();
    has(&said, ["they are lost", "done again"]);
    lacks(&said, ["still hold every change"]);
    assert_eq!(changes(&shop.cli, "more"), [""; 0]);
    // One that cannot even be prepared.
    shop.cli.ok("cleanup more --yes");
    shop.sql(CLERK);
    shop.sql(REFUSES);
    let url = shop.plan_both_as("clerk", "more");
    inside(&url, "INSERT INTO loose VALUES (77)");
    let said = shop.cli.fails("commit more", 1);
    has(&said, ["not today"]);
    lacks(&said, ["could not be made again", "lost"]);
    assert_eq!(changes(&shop.cli, "more").len(), 1, "it is there again");
    assert_eq!(inside(&url, "SHOW lock_timeout"), "0");
    // Another process gets the lock in between, and keeps it: it is not waited for.
    let mut command = psql_command(&shop.server.url("postgres", "shop"));
    let locks = "BEGIN; LOCK TABLE loose IN EXCLUSIVE MODE; SELECT pg_sleep(600)";
    let other = command.args(["-c", locks]).stderr(Stdio::null()).spawn();
    let mut other = other.expect("psql runs");
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    assert!(shop.server.becomes("postgres", waits, "1"));
    has(
        &shop.cli.fails("commit more", 1),
        ["not today", "could not be made again", "done again"],
    );
    let ended =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^BEGIN; LOCK'";
    assert_eq!(shop.server.sql("postgres", ended), "t", "it still ran");
    other.wait().expect("it ends");
    assert_eq!(changes(&shop.cli, "more"), [""; 0]);
    assert_eq!(inside(&url, "SHOW lock_timeout"), "0");
    inside(&url, "INSERT INTO loose VALUES (77)");
    inside(&url, "CREATE TABLE lost (a int)");
    has(
        &shop.cli.fails("commit more", 1),
        ["not today", "could not be made again", "done again"],
    );
    assert_eq!(changes(&shop.cli, "more"), [""; 0]);
    shop.cli.ok("cleanup more --yes");
    shop.assert_nothing_left();
}

/// What triggers wrote is made again as it was: they do not run once more, where they would write something else.
// rule Q3
#[test]
fn rows_of_tables_with_triggers_are_made_again() {
    need!(require_stepper());
    let shop = Shop::new(true);
    shop.sql(
        "ALTER TABLE items ADD at timestamptz; CREATE TABLE journal (n serial PRIMARY KEY, what text); \
         CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.at := clock_timestamp(); RETURN NEW; END'; \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO journal (what) VALUES (TG_OP); RETURN NULL; END'; \
         CREATE TRIGGER touch BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION touch(); \
         CREATE TRIGGER note AFTER UPDATE ON items EXECUTE FUNCTION note(); ALTER TABLE items ENABLE ALWAYS TRIGGER note; \
         CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let url = shop.plan_both("try");
    put(&shop.cli, "try app a.txt", "uno\n");
    inside(
        &url,
        "UPDATE items SET price = 1 WHERE id < 3; INSERT INTO orders (item) VALUES (1)",
    );
    let all = "SELECT (SELECT string_agg(concat_ws(' ', price, at), ', ' ORDER BY id) FROM items WHERE id < 3), (SELECT count(*) FROM journal)";
    let (wanted, shown) = (inside(&url, all), changes(&shop.cli, "try"));
    let run = shop
        .cli
        .stepper("commit try")
        .only(MOVES)
        .fault(1, Fault::Once(5));
    assert_eq!(run.outcome.status, 1, "{}", run.outcome.stderr_text());
    lacks(&run.outcome.stderr_text(), ["lost"]);
    assert_eq!(inside(&url, all), wanted);
    assert_eq!(changes(&shop.cli, "try"), shown);
    shop.cli.ok("commit try");
    assert_eq!(shop.sql(all), wanted);
    shop.sql("UPDATE items SET price = 2 WHERE id = 1");
    let enabled = "SELECT (SELECT count(*) FROM journal), string_agg(tgenabled::text, '' ORDER BY tgname) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = 'items'::regclass";
    assert_eq!(shop.sql(enabled), "3|AO");
    shop.assert_nothing_left();
}
