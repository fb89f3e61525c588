//! Clones of PostgreSQL databases whose clients are hostile: what they prepare in a clone does not reach the original beyond the diff, and
//! keeps no sandbox from being removed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, inside};
use crate::*;

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
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
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
