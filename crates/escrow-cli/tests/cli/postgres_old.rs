//! PostgreSQL servers that have counted transactions further than half of the circle, as busy ones have after years; and variables
//! that lead clients elsewhere.

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, changes, inside};
use crate::*;

/// Every row that was frozen more than 2^31 transactions ago was taken for one that the sandbox wrote, those of catalogs too.
// rule F8, C11, Q2
#[test]
fn rows_of_long_ago_were_shown_as_changed() {
    let mut shop = Shop::new(true);
    shop.server.count_to(1_500_000_256);
    // A transaction of now, which the sandbox did not make either.
    shop.sql("INSERT INTO items VALUES (21, 'recent', 0)");
    let url = shop.plan("p");
    for sql in [
        "UPDATE items SET name = 'new' WHERE id = 1",
        "BEGIN; SAVEPOINT a; DELETE FROM items WHERE id = 2; RELEASE a; INSERT INTO items VALUES (30, 'x', 1); COMMIT",
        "COMMENT ON TABLE loose IS 'seen'",
    ] {
        inside(&url, sql);
        // Others go on counting.
        shop.sql("UPDATE orders SET item = 1 WHERE false; SELECT txid_current()");
    }
    let wanted = ["updated items/1", "deleted items/2", "inserted items/30"];
    let found = changes(&shop.cli, "p");
    for one in wanted {
        assert!(found.iter().any(|line| line == one), "{found:?}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(
        found.iter().any(|line| line.ends_with(" loose")),
        "{found:?}"
    );
    shop.cli.ok("commit p");
    assert_eq!(
        shop.sql("SELECT name FROM items WHERE id IN (1, 2, 30)"),
        "new\nx"
    );
    shop.assert_nothing_left();
}

/// The URL had no port, so that a client took that of its variables, which is where the server of the original is.
#[test]
fn a_variable_led_a_client_past_the_socket_of_the_sandbox() {
    let shop = Shop::new(true);
    let url = shop.plan("p");
    let mut psql = psql_command(&url);
    psql.env("PGPORT", "6001")
        .args(["-c", "SELECT count(*) FROM items"]);
    assert_eq!(output_of(&mut psql).trim_end(), "20");
}

/// A file that was not trusted yet left the database out with a warning, and the command changed the real one.
// rule S6
#[test]
fn a_command_ran_beside_a_database_that_was_left_out() {
    let shop = Shop::new(true);
    let app = shop.world.at("app");
    let url = shop.server.url("postgres", "shop");
    let text = format!("resources:\n  app: {{at: .}}\n  db: {{type: postgres, at: \"{url}\"}}\n");
    fs::write(app.join("escrow.yaml"), text).expect("there is room");
    let cli = shop.cli.clone().cwd(&app);
    let refused = cli.run("run -- touch ran");
    assert_eq!(refused.status, 125, "{}", refused.stderr_text());
    let said = refused.stderr_text();
    assert!(
        said.contains("resources.db") && said.contains("escrow trust"),
        "{said}"
    );
    assert_eq!(json(&cli, "plan list")["plans"], value!([]));
    cli.ok("run -r app -- touch ran");
    cli.ok("trust --yes");
    let run = [
        "run",
        "--new",
        "--",
        "sh",
        "-c",
        "psql -qAtXc 'DELETE FROM items WHERE id = 1'",
    ];
    cli.ok(run);
    assert_eq!(shop.sql("SELECT count(*) FROM items"), "20");
}

/// A person learned only from the undo that a commit cannot be undone.
// rule C10
#[test]
fn that_a_commit_cannot_be_undone_is_said_before_it() {
    let shop = Shop::new(true);
    let url = shop.plan_both("p");
    inside(&url, "DELETE FROM items WHERE id = 1");
    let dry = shop.cli.run("commit p --dry-run").stderr_text();
    assert!(
        dry.contains("shop: its changes cannot be undone once they are committed"),
        "{dry}"
    );
    let done = shop.cli.run("commit p").stderr_text();
    assert!(
        done.contains("`escrow undo p` cannot take back what was committed in shop"),
        "{done}"
    );
}

/// `doctor` knew directories alone; that a server cannot prepare was said only when a plan was made.
// rule Q8
#[test]
fn doctor_says_what_a_server_lacks_and_what_waits_there() {
    let shop = Shop::new(true);
    let url = shop.server.url("postgres", "shop");
    shop.sql("BEGIN; INSERT INTO loose VALUES (9, 'x'); PREPARE TRANSACTION 'somebody''s'");
    let said = shop.cli.ok(["doctor", &url]);
    assert!(said.contains("auto takes transaction_rollback"), "{said}");
    assert!(
        said.contains("'somebody's' of postgres in shop since 20"),
        "{said}"
    );
    // It is left alone.
    assert_eq!(shop.server.prepared(), "somebody's");
    shop.sql("ROLLBACK PREPARED 'somebody''s'");

    let shop = Shop::new(false);
    let url = shop.server.url("postgres", "shop");
    let said = shop.cli.ok(["doctor", &url]);
    assert!(said.contains("max_prepared_transactions = 0"), "{said}");
    shop.sql("CREATE ROLE plain LOGIN");
    let said = shop.cli.ok(["doctor", &shop.server.url("plain", "shop")]);
    assert!(said.contains("may not create databases"), "{said}");
    let said = shop
        .cli
        .ok(["doctor", "postgres://nobody@127.0.0.1:1/shop"]);
    assert!(said.contains("auto takes none of them"), "{said}");
    let said = shop.cli.ok("doctor app/a.txt");
    assert!(said.contains("auto takes copy_on_write"), "{said}");
}
