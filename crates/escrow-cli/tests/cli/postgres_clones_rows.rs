//! Clones of PostgreSQL databases, by what was once wrong: rows that both sides changed, columns and rights of a clone, commits that
//! cannot be undone, and prepared transactions that another hand took back.

use escrow_testkit::pglink::{Break, PgLink};

use crate::postgres::{Shop, changes, inside, refused};
use crate::*;

/// Columns that only one side changed are all kept, also where another one is contested.
// rule Q2
#[test]
fn ours_wrote_old_values_into_columns_that_it_had_not_changed() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(&url, "UPDATE items SET price = 99 WHERE id IN (1, 2)");
    shop.sql("UPDATE items SET name = 'theirs' WHERE id = 1");
    shop.sql("UPDATE items SET name = 'theirs', price = 7 WHERE id = 2");
    let told = shop.cli.run("commit try");
    assert_eq!(told.status, 4, "{told:?}");
    let told = told.stdout_text();
    has(&told, ["items/2"]);
    assert!(!told.contains("items/1"), "{told}");
    shop.cli.ok("commit try --on-conflict sandbox");
    let rows = "SELECT name, price FROM items WHERE id IN (1, 2) ORDER BY id";
    assert_eq!(shop.sql(rows), "theirs|99\ntheirs|99");
    shop.cli.ok("undo try");
    assert_eq!(shop.sql(rows), "theirs|1.5\ntheirs|7");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// What was decided is made again, since the clone and the area still have it.
// rule C18, C19, Q8
#[test]
fn a_prepared_transaction_that_was_taken_back_by_hand_left_no_way_out() {
    let shop = Shop::new(true);
    let link = PgLink::new(&shop.server);
    shop.declare_clones(&link.url("postgres", "shop"));
    let url = shop.clone_plan("try");
    put(&shop.cli, "try app a.txt", "released\n");
    inside(&url, "UPDATE items SET price = 99 WHERE id = 1");
    link.arm("COMMIT PREPARED", Break::StopBefore, &shop.server);
    shop.cli.fails("commit try", 5);
    assert!(link.disarm(), "it was stopped before it was committed");
    let mut shop = shop;
    shop.server.stop();
    shop.server.run();
    let gid = shop.server.prepared();
    assert!(gid.starts_with("escrow_"), "{gid}");
    shop.sql(&format!("ROLLBACK PREPARED '{gid}'"));
    shop.cli.ok("recover");
    assert_eq!(shop.sql("SELECT price FROM items WHERE id = 1"), "99");
    assert_eq!(read(shop.world.at("app/a.txt")), "released\n");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

// rule C10, C17
#[test]
fn an_undo_without_prepared_transactions_left_everything_interrupted() {
    let shop = Shop::with_clones(false);
    let url = shop.clone_plan("try");
    put(&shop.cli, "try app a.txt", "released\n");
    inside(&url, "UPDATE items SET price = 99 WHERE id = 1");
    shop.cli.ok("commit try");
    // As with every member that can be neither prepared nor undone: the others are, and it is named.
    has(
        &shop.cli.fails("undo try", 1),
        ["shop", "prepares no transactions"],
    );
    assert_eq!(read(shop.world.at("app/a.txt")), "one\ntwo\nthree\n");
    assert_eq!(shop.sql("SELECT price FROM items WHERE id = 1"), "99");
    shop.cli.ok("recover");
    shop.clone_plan("next");
    shop.cli.ok("cleanup next --yes");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Columns of a key, of a new type, with a default that is computed, and with blanks at their end.
// rule Q2, Q4
#[test]
fn columns_of_a_clone_are_what_they_are() {
    let shop = Shop::with_clones(true);
    shop.sql(
        "CREATE TABLE wide (id int, v int, PRIMARY KEY (id) INCLUDE (v)); INSERT INTO wide VALUES (1, 1); \
         CREATE TABLE refers (a int REFERENCES wide)",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "UPDATE wide SET v = 5; CREATE TYPE state AS ENUM ('a', 'b'); ALTER TABLE items ADD s state DEFAULT 'b'",
    );
    let found = changes(&shop.cli, "try");
    assert!(found.contains(&"updated wide/1".to_owned()), "{found:?}");
    shop.sql("INSERT INTO items VALUES (21, 'theirs', 1)");
    shop.cli.ok("commit try");
    let rows =
        "SELECT (SELECT v FROM wide), (SELECT s FROM items WHERE id = 21), count(s) FROM items";
    assert_eq!(shop.sql(rows), "5|b|21");
    let url = shop.clone_plan("next");
    inside(&url, "ALTER TABLE items ADD u float DEFAULT random()");
    has(
        &shop.cli.fails("commit next", 3),
        ["items", "cannot commit"],
    );
    shop.cli.ok("cleanup next --yes");
    shop.sql("CREATE TABLE blanks (b bpchar)");
    let told = shop.cli.fails("plan create last -r shop", 1);
    has(&told, ["bpchar without a length, public.blanks.b"]);
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// A clone is as closed as its original, has its role's settings, and nothing in it acts on the server.
// rule S3
#[test]
fn a_clone_was_open_to_roles_that_the_original_is_closed_to() {
    let shop = Shop::with_clones(true);
    shop.sql(
        "CREATE ROLE low LOGIN; CREATE SCHEMA own; ALTER ROLE postgres IN DATABASE shop SET search_path = own, public",
    );
    let url = shop.clone_plan("try");
    let shared = "SELECT count(*) FROM pg_database WHERE datname LIKE 'escrow%' \
                  AND has_database_privilege('low', oid, 'CONNECT')";
    assert_eq!(shop.server.sql("postgres", shared), "0");
    assert_eq!(inside(&url, "SELECT current_schema()"), "own");
    for sql in [
        "REASSIGN OWNED BY low TO postgres",
        "DROP OWNED BY low",
        "GRANT SET ON PARAMETER work_mem TO low",
    ] {
        has(&refused(&url, sql), ["reaches beyond the database"]);
    }
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// A value that has to be unique passes from one row to another, and rows that refer to each other come together, however many.
// rule Q3
#[test]
fn ordinary_work_with_unique_values_was_refused() {
    let shop = Shop::with_clones(true);
    shop.sql(
        "CREATE TABLE addr (id int PRIMARY KEY, d bool); CREATE UNIQUE INDEX ON addr ((true)) WHERE d; \
         INSERT INTO addr VALUES (1, false), (2, true); CREATE TABLE pos (id int PRIMARY KEY, p int UNIQUE); \
         INSERT INTO pos SELECT g, g FROM generate_series(3, 5) g; \
         CREATE TABLE node (id int PRIMARY KEY, p int REFERENCES node, t text)",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "UPDATE addr SET d = false WHERE id = 2; UPDATE addr SET d = true WHERE id = 1",
    );
    inside(
        &url,
        "UPDATE pos SET p = 6 WHERE id = 5; UPDATE pos SET p = 5 WHERE id = 4; UPDATE pos SET p = 4 WHERE id = 3; \
         INSERT INTO node SELECT g, CASE WHEN g < 1000 THEN g + 1 END, repeat('x', 400) FROM generate_series(1, 1000) g",
    );
    shop.cli.ok("commit try");
    let sql = "SELECT (SELECT id FROM addr WHERE d), (SELECT string_agg(p::text, ' ' ORDER BY id) FROM pos), count(p) FROM node";
    assert_eq!(shop.sql(sql), "1|4 5 6|999");
    shop.cli.ok("undo try");
    assert_eq!(shop.sql(sql), "2|3 4 5|0");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Two versions of a table are read side by side, a row of each at a time: memory holds what differs, not the table.
#[test]
fn a_diff_held_a_thousand_rows_of_both_sides_however_large() {
    const PEAK: &str = "import resource, subprocess, sys\n\
                        done = subprocess.run(sys.argv[1:])\n\
                        print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n\
                        sys.exit(done.returncode)";
    let shop = Shop::with_clones(true);
    shop.sql(
        "CREATE TABLE page (id int PRIMARY KEY, body text); \
         INSERT INTO page SELECT g, repeat(g::text, 2 * 1024 * 1024) FROM generate_series(10, 29) g",
    );
    let url = shop.clone_plan("try");
    inside(&url, "UPDATE page SET body = 'short' WHERE id = 20");
    let mut diff = shop.cli.behind(&["python3", "-c", PEAK], "diff try");
    let told = diff.output().expect("python3 is there");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    has(&told, ["page/20", "short"]);
    assert!(!told.contains("page/21"), "{told}");
    let peak = told.rsplit_once("peak ").map(|(_, kib)| kib.trim());
    let peak: u64 = peak
        .and_then(|kib| kib.parse().ok())
        .expect("it tells the peak");
    // All rows of one side are 80 MiB.
    assert!(peak < 70 * 1024, "{} MiB", peak / 1024);
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Whatever tables and columns are called, they are what they are.
// rule S4, Q4
#[test]
fn hostile_names_of_tables_and_columns_pass_through_a_clone() {
    let names = [
        "a\nb",
        "a;b",
        "it's",
        "-- Name: x; Type: TABLE; Schema: public; Owner: -",
        "a\n--\n-- Name: y; Type: TABLE",
        "%s \\ $$ é",
        "..",
        "a/b",
    ];
    let quoted = |name: &str| format!("\"{name}\"");
    let make = |prefix: &str| {
        let table = |name: &&str| {
            let (table, column) = (quoted(&format!("{prefix}{name}")), quoted(name));
            format!(
                "CREATE TABLE {table} (id int PRIMARY KEY, {column} text); INSERT INTO {table} VALUES (1, 'one');"
            )
        };
        names.iter().map(table).collect::<String>()
    };
    let shop = Shop::with_clones(true);
    shop.sql(&make(""));
    let url = shop.clone_plan("try");
    inside(&url, &make("new "));
    for name in names {
        inside(
            &url,
            &format!("UPDATE {} SET {} = 'two'", quoted(name), quoted(name)),
        );
    }
    shop.cli.ok("commit try");
    for name in names {
        for (prefix, value) in [("", "two"), ("new ", "one")] {
            let table = quoted(&format!("{prefix}{name}"));
            let found = shop.sql(&format!("SELECT {} FROM {table}", quoted(name)));
            assert_eq!(found, value, "{table}");
        }
    }
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// A column may give rows another value than its default is now, and no definition says so.
// rule C11
#[test]
fn what_rows_get_in_a_new_column_was_neither_shown_nor_bound() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    let digest = || {
        let diff = json(&shop.cli, "diff try");
        diff["digest"].as_str().expect("it has one").to_owned()
    };
    inside(&url, "ALTER TABLE items ADD admin bool DEFAULT false");
    let shown = digest();
    inside(
        &url,
        "ALTER TABLE items DROP admin; ALTER TABLE items ADD admin bool DEFAULT true; ALTER TABLE items ALTER admin SET DEFAULT false",
    );
    has(
        &shop.cli.ok("diff try --patch"),
        ["+ -- rows that were there: \"admin\" = 'true'"],
    );
    shop.cli.fails(format!("commit try --expect {shown}"), 4);
    shop.cli.ok(format!("commit try --expect {}", digest()));
    let given = "SELECT DISTINCT admin FROM items";
    assert_eq!(shop.sql(given), "t");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Values of a type whose arrays have another delimiter, and checks: of a new column, of one that is there, and one that goes.
#[test]
fn new_columns_and_checks_of_migrations_are_released() {
    let shop = Shop::with_clones(true);
    shop.sql("ALTER TABLE items ADD CONSTRAINT old CHECK (price < 1000)");
    let url = shop.clone_plan("try");
    inside(
        &url,
        "ALTER TABLE items ADD place box DEFAULT '((1,2),(3,4))', ADD places box[] DEFAULT '{(2,2),(1,1);(4,4),(3,3)}', ADD stock int NOT NULL DEFAULT 1 CHECK (stock >= 0), \
         ADD CHECK (price > 0), DROP CONSTRAINT old",
    );
    shop.cli.ok("commit try");
    let checks = "SELECT string_agg(conname || ' ' || pg_get_constraintdef(oid), ', ' ORDER BY conname) FROM pg_constraint \
                  WHERE conrelid = 'items'::regclass AND contype = 'c'";
    assert_eq!(
        shop.sql(checks),
        "items_price_check CHECK ((price > (0)::numeric)), items_stock_check CHECK ((stock >= 0))"
    );
    let given = "SELECT DISTINCT place::text, places::text, stock FROM items";
    assert_eq!(shop.sql(given), "(3,4),(1,2)|{(2,2),(1,1);(4,4),(3,3)}|1");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// Two sides change different columns of a row, and one of them added a column to its table.
// rule Q2
#[test]
fn a_row_of_a_table_with_a_new_column_was_contested_and_could_not_be_settled() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "ALTER TABLE items ADD stock int DEFAULT 1; UPDATE items SET stock = 5 WHERE id = 3; UPDATE items SET name = 'ours' WHERE id = 4",
    );
    shop.sql("UPDATE items SET name = 'theirs' WHERE id IN (3, 4)");
    let told = shop.cli.run("commit try");
    assert_eq!(told.status, 4, "{told:?}");
    let told = told.stdout_text();
    has(&told, ["items/4"]);
    assert!(!told.contains("items/3"), "{told}");
    shop.cli.ok("commit try --on-conflict sandbox");
    let rows = "SELECT name, stock FROM items WHERE id IN (3, 4) ORDER BY id";
    assert_eq!(shop.sql(rows), "theirs|5\nours|1");
    shop.cli.ok("cleanup try");
    shop.assert_no_clone();
}

/// `pg_dump` wrote another encoding than it was read in, and so two texts were one.
// rule Q4
#[test]
fn definitions_of_a_database_that_is_not_utf8_were_lost() {
    let shop = Shop::with_clones(true);
    let make =
        "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'";
    shop.server.sql("postgres", make);
    shop.declare_clones(&shop.server.url("postgres", "latin"));
    let view = "CREATE OR REPLACE VIEW w AS SELECT 'é'::text AS a";
    shop.server.sql("latin", view);
    let url = shop.clone_plan("try");
    inside(&url, &view.replace('é', "ü"));
    assert_eq!(changes(&shop.cli, "try"), ["modified w"]);
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("latin", "SELECT a FROM w"), "ü");
    shop.assert_no_clone();
}

/// Two lines of a dump are for `psql`, which is not asked; whatever else looks like them is kept.
// rule Q4
#[test]
fn lines_of_a_function_that_look_like_those_of_a_dump_were_cut_out() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    let body = "one\n\\restrict two\n\\unrestrict two\nthree";
    inside(
        &url,
        &format!(
            "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT '{body}'::text $$; COMMENT ON FUNCTION f() IS '{body}'"
        ),
    );
    shop.cli.ok("commit try");
    let all = "SELECT f(), obj_description('f()'::regprocedure)";
    assert_eq!(shop.server.sql("shop", all), format!("{body}|{body}"));
    shop.assert_no_clone();
}

/// The value of a new sequence is released with it.
// rule C11
#[test]
fn the_value_of_a_new_sequence_was_neither_shown_nor_bound() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(&url, "CREATE SEQUENCE s START 7");
    assert_eq!(changes(&shop.cli, "try"), ["added sequence:s"]);
    let digest = || {
        let diff = json(&shop.cli, "diff try");
        diff["digest"].as_str().expect("it has one").to_owned()
    };
    let before = digest();
    inside(&url, "SELECT setval('s', 424242)");
    assert_eq!(
        changes(&shop.cli, "try"),
        ["added sequence:s", "added sequence_value:s"]
    );
    shop.cli.fails(format!("commit try --expect {before}"), 4);
    shop.cli.ok(format!("commit try --expect {}", digest()));
    assert_eq!(shop.server.sql("shop", "SELECT nextval('s')"), "424243");
    shop.assert_no_clone();
}

/// A column that the server computes from two others was changed by both sides, in two ways.
// rule Q2
#[test]
fn rows_with_a_generated_column_did_not_merge() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE g (id int PRIMARY KEY, a int, b int, g int GENERATED ALWAYS AS (a + b) STORED); \
         INSERT INTO g (id, a, b) VALUES (1, 1, 1), (2, 1, 1), (3, 1, 1); \
         CREATE TABLE h (id int PRIMARY KEY, a int, b int, g int GENERATED ALWAYS AS (a * 0 + id) STORED UNIQUE); INSERT INTO h VALUES (1, 1, 1); \
         CREATE TABLE of_h (g int REFERENCES h (g) ON DELETE CASCADE); INSERT INTO of_h VALUES (1)",
    );
    let url = shop.clone_plan("try");
    inside(&url, "UPDATE g SET a = 10; UPDATE h SET a = 10");
    shop.server.sql(
        "shop",
        "UPDATE g SET b = 100 WHERE id = 1; UPDATE g SET a = 10 WHERE id = 2; UPDATE h SET b = 2",
    );
    let all = "SELECT string_agg(concat_ws(' ', a, b, g), ', ' ORDER BY id) FROM g";
    let before = shop.server.sql("shop", all);
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", all), "10 100 110, 10 1 11, 10 1 11");
    shop.cli.ok("undo try");
    assert_eq!(shop.server.sql("shop", all), before);
    shop.cli.ok("cleanup try --yes");
    // What is contested is settled by what each side wrote.
    let url = shop.clone_plan("ours");
    inside(&url, "UPDATE g SET a = 20 WHERE id = 1");
    shop.server
        .sql("shop", "UPDATE g SET a = 30, b = 3 WHERE id = 1");
    shop.cli.fails("commit ours", 4);
    shop.cli.ok("commit ours --on-conflict sandbox");
    assert_eq!(shop.server.sql("shop", all), "20 3 23, 10 1 11, 1 1 2");
    shop.assert_no_clone();
}

/// Of a row without a key the one was found that has nothing where it has an empty text.
// rule Q4
#[test]
fn an_empty_text_in_a_table_without_a_key_was_taken_for_null() {
    let shop = Shop::with_clones(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE k (a text, b int); INSERT INTO k VALUES (NULL, 1), ('', 1), (NULL, 2), ('', 2)",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "DELETE FROM k WHERE a = '' AND b = 1; UPDATE k SET b = 3 WHERE a = '' AND b = 2",
    );
    let all = "SELECT string_agg(concat_ws(' ', quote_nullable(a), b), ', ' ORDER BY b, a) FROM k";
    let before = shop.server.sql("shop", all);
    shop.cli.ok("commit try");
    assert_eq!(shop.server.sql("shop", all), "NULL 1, NULL 2, '' 3");
    shop.cli.ok("undo try");
    assert_eq!(shop.server.sql("shop", all), before);
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
}

/// With `theirs`, one row in conflict took along everything else of a table to which the sandbox gave a column.
// rule Q2, C15
#[test]
fn a_row_in_conflict_took_its_altered_table_along() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "ALTER TABLE items ADD COLUMN note text; UPDATE items SET note = 'seen' WHERE id <= 3; UPDATE items SET name = 'ours' WHERE id = 1",
    );
    shop.sql("UPDATE items SET name = 'theirs' WHERE id IN (1, 4)");
    let run = shop.cli.run("commit try");
    assert_eq!(run.status, 4, "{}", run.stdout_text());
    has(&run.stdout_text(), ["items/1 "]);
    shop.cli.ok("commit try --on-conflict original");
    let rows = "SELECT id, name, note FROM items WHERE id <= 4 ORDER BY 1";
    let now = "1|theirs|\n2|item 2|seen\n3|item 3|seen\n4|theirs|";
    assert_eq!(shop.sql(rows), now);
    shop.assert_nothing_left();
}

/// Where nothing can be prepared a commit of nothing could not be undone.
// rule C13
#[test]
fn a_commit_of_nothing_could_not_be_undone() {
    let shop = Shop::with_clones(false);
    shop.clone_plan("try");
    shop.cli.ok("commit try");
    shop.cli.ok("undo try");
    shop.cli.ok("cleanup try");
    shop.assert_nothing_left();
}

/// A row that both sides added was offered, where the sandbox gave the table a column, as one that `ours` settles.
// rule C15, C10
#[test]
fn a_row_that_both_added_to_an_altered_table_is_left_to_the_original_or_refused() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "INSERT INTO items (id, name, price) VALUES (900, 'ours', 1); ALTER TABLE items ADD COLUMN note text; UPDATE items SET note = 'x' WHERE id = 2",
    );
    shop.sql("INSERT INTO items (id, name, price) VALUES (900, 'theirs', 1)");
    for line in [
        "commit try --on-conflict sandbox --dry-run",
        "commit try --on-conflict sandbox",
    ] {
        let run = shop.cli.run(line);
        assert_eq!(run.status, 4, "{}", run.stdout_text());
    }
    shop.cli.ok("commit try --on-conflict original --dry-run");
    shop.cli.ok("commit try --on-conflict original");
    let rows = "SELECT id, name, note FROM items WHERE id IN (2, 900) ORDER BY 1";
    assert_eq!(shop.sql(rows), "2|item 2|x\n900|theirs|");
    shop.assert_nothing_left();
}
