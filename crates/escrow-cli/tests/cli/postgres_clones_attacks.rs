//! Clones of PostgreSQL databases whose clients are hostile: what they prepare in a clone does not reach the original beyond the diff, and
//! keeps no sandbox from being removed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, inside};
use crate::*;

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
