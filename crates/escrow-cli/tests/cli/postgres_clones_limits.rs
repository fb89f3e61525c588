//! Clones of PostgreSQL databases where something could go silently: what is not released exactly is refused by name, and what other
//! clients write meanwhile stays.

use escrow_testkit::model::Rng;
use escrow_testkit::pglink::{BREAKS, Break, PgLink};
use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, changes, inside, refused};
use crate::*;

/// What is refused: how it is made, how it goes again, and its name.
const REFUSED: [(&str, &str, &str); 9] = [
    (
        "CREATE TABLE parts (a int) PARTITION BY LIST (a)",
        "DROP TABLE parts",
        "public.parts",
    ),
    (
        "CREATE TABLE child () INHERITS (items)",
        "DROP TABLE child",
        "public.child",
    ),
    (
        "CREATE RULE twice AS ON INSERT TO items DO ALSO INSERT INTO loose VALUES (7)",
        "DROP RULE twice ON items",
        "twice of public.items",
    ),
    (
        "CREATE UNLOGGED TABLE cache (a int)",
        "DROP TABLE cache",
        "public.cache",
    ),
    ("SELECT lo_create(4711)", "SELECT lo_unlink(4711)", "4711"),
    (
        "CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; \
         CREATE EVENT TRIGGER watched ON ddl_command_start EXECUTE FUNCTION watch()",
        "DROP EVENT TRIGGER watched; DROP FUNCTION watch()",
        "watched",
    ),
    (
        "CREATE ACCESS METHOD pile TYPE TABLE HANDLER heap_tableam_handler; CREATE TABLE piled (a int) USING pile",
        "DROP TABLE piled; DROP ACCESS METHOD pile",
        "public.piled",
    ),
    (
        "CREATE TYPE duo AS (a int, b int); CREATE FUNCTION show(duo) RETURNS text LANGUAGE sql AS 'SELECT ''same'''; \
         CREATE CAST (duo AS text) WITH FUNCTION show(duo); CREATE TABLE duos (d duo)",
        "DROP TABLE duos; DROP CAST (duo AS text); DROP FUNCTION show(duo); DROP TYPE duo",
        "public.duos.d",
    ),
    (
        "CREATE FOREIGN DATA WRAPPER far; CREATE SERVER away FOREIGN DATA WRAPPER far",
        "DROP SERVER away; DROP FOREIGN DATA WRAPPER far",
        "away",
    ),
];

/// What is altered in a clone and cannot be derived: refused with its name; and what takes it back.
const UNDERIVED: [(&str, &str, &str); 11] = [
    (
        "CREATE MATERIALIZED VIEW filled AS SELECT count(*) FROM items",
        "filled",
        "DROP MATERIALIZED VIEW filled",
    ),
    (
        "ALTER SEQUENCE orders_id_seq INCREMENT 5",
        "orders_id_seq",
        "ALTER SEQUENCE orders_id_seq INCREMENT 1",
    ),
    (
        "ALTER TABLE items ALTER name TYPE varchar(50)",
        "items",
        "ALTER TABLE items ALTER name TYPE text",
    ),
    (
        "ALTER TABLE items ALTER name SET DEFAULT ''",
        "items",
        "ALTER TABLE items ALTER name DROP DEFAULT",
    ),
    (
        "ALTER DOMAIN short ADD CONSTRAINT c CHECK (length(value) < 9)",
        "short",
        "ALTER DOMAIN short DROP CONSTRAINT c",
    ),
    (
        "ALTER TABLE loose ADD n int GENERATED ALWAYS AS (a + 1) STORED",
        "loose",
        "ALTER TABLE loose DROP n",
    ),
    (
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        "orders",
        "ALTER TABLE orders ADD CONSTRAINT orders_pkey PRIMARY KEY (id)",
    ),
    (
        "CREATE STATISTICS counts ON name, price FROM items",
        "counts",
        "DROP STATISTICS counts",
    ),
    (
        "REVOKE ALL ON items FROM app",
        "items",
        "GRANT SELECT ON items TO app",
    ),
    (
        "CREATE OPERATOR === (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)",
        "===",
        "DROP OPERATOR === (int, int)",
    ),
    ("ALTER TYPE mood ADD VALUE 'sad'", "mood", "SELECT"),
];

// rule C15, Q2, Q7
#[test]
fn what_a_clone_cannot_release_is_refused_by_name() {
    let shop = Shop::with_clones(true);
    let create = ["plan", "create", "no", "-r", "app", "-r", "shop"];
    for (make, unmake, name) in REFUSED {
        shop.sql(make);
        let said = shop.cli.run(create);
        assert!(said.status != 0, "{make}: {said:?}");
        has(&said.stderr_text(), [name, "transaction_rollback"]);
        shop.sql(unmake);
    }
    let bytes =
        "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    shop.server.sql("postgres", bytes);
    let url = shop.server.url("postgres", "bytes");
    let create_bytes = ["plan", "create", "no", "--strategy", "snapshot", "-r", &url];
    has(
        &shop.cli.fails(create_bytes, 1),
        ["SQL_ASCII, database bytes"],
    );
    shop.sql("CREATE TYPE mood AS ENUM ('glad'); CREATE DOMAIN short AS text; GRANT SELECT ON items TO app",
    );
    // Either side may have got it since.
    let url = shop.clone_plan("try");
    inside(&url, "UPDATE items SET price = 1 WHERE id = 1");
    for (make, unmake, name) in REFUSED.into_iter().step_by(3) {
        shop.sql(make);
        has(&shop.cli.fails("commit try", 3), [name, "the original has"]);
        shop.sql(unmake);
        inside(&url, make);
        has(&shop.cli.fails("commit try", 3), [name, "the sandbox has"]);
        inside(&url, unmake);
    }
    let away = REFUSED[REFUSED.len() - 1].0;
    has(&refused(&url, away), ["reaches beyond the database"]);
    for (sql, name, back) in UNDERIVED {
        inside(&url, sql);
        let said = shop.cli.fails("commit try", 3);
        has(&said, [name, "transaction_rollback"]);
        inside(&url, back);
    }
    assert_eq!(shop.items(), "20|315.0");
    shop.cli.ok("cleanup try --yes");
    shop.assert_no_clone();
}

/// What a commit says that meets a conflict.
#[track_caller]
fn conflict(shop: &Shop, line: &str) -> String {
    let run = shop.cli.expect(line, 4);
    run.stdout_text() + &run.stderr_text()
}

/// A client that has a transaction open.
fn other(shop: &Shop, sql: &str) -> Child {
    other_at(&shop.server.url("postgres", "shop"), sql)
}

fn other_at(url: &str, sql: &str) -> Child {
    let mut client = psql_command(url);
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("psql starts");
    let mut to = client.stdin.take().expect("it is piped");
    use std::io::{BufRead, BufReader, Write};
    writeln!(to, "BEGIN; {sql}; SELECT 'begun';").expect("psql reads");
    client.stdin = Some(to);
    let mut from = BufReader::new(client.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("begun") {
        line.clear();
        assert!(from.read_line(&mut line).is_ok_and(|read| read > 0));
    }
    client
}

fn end(mut client: Child) {
    drop(client.stdin.take());
    assert!(client.wait().is_ok());
}

// rule C18, Q3
#[test]
fn a_sequence_that_another_client_holds_keeps_no_commit_waiting() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    inside(
        &url,
        "INSERT INTO orders (item) VALUES (1), (2), (3); CREATE SEQUENCE own; SELECT nextval('own'), nextval('own'); \
         CREATE TABLE more (id serial, t text); INSERT INTO more (t) VALUES ('x')",
    );
    let client = other(&shop, "ALTER SEQUENCE orders_id_seq CACHE 2");
    let run = shop.cli.run("commit try");
    assert_eq!(run.status, 5, "{run:?}");
    assert_eq!(
        shop.server.prepared(),
        "",
        "nothing of the original is locked"
    );
    assert_eq!(shop.sql("SELECT count(*) FROM orders"), "3");
    end(client);
    shop.cli.ok("recover");
    let next = "SELECT nextval('orders_id_seq'), nextval('own'), nextval('more_id_seq')";
    assert_eq!(shop.sql(next), "4|3|2");
    // One that was set, and one that is behind that of the original.
    let url = shop.clone_plan("more");
    inside(
        &url,
        "ALTER SEQUENCE orders_id_seq RESTART WITH 100; SELECT setval('own', 1)",
    );
    shop.cli.ok("commit more");
    assert_eq!(shop.sql(next), "100|4|3");
    shop.assert_no_clone();
}

// rule C15, Q2, Q4
#[test]
fn what_other_clients_wrote_is_not_taken_along() {
    let shop = Shop::with_clones(true);
    shop.sql("CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree); INSERT INTO tree VALUES (1, NULL), (2, 1), (30, 2), (4, 30); \
         CREATE TABLE lines (id int PRIMARY KEY, item int REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE); \
         CREATE TABLE gone (id serial PRIMARY KEY, j int GENERATED ALWAYS AS IDENTITY); CREATE SCHEMA s; CREATE TABLE s.n (id int PRIMARY KEY, t text); CREATE TABLE \"s.n\" (id int PRIMARY KEY, t text); \
         CREATE TABLE \"a\"\"b; --\" (\"x.y/z\" int PRIMARY KEY, \"it's\" text, u int UNIQUE); \
         INSERT INTO \"a\"\"b; --\" VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         CREATE TABLE odd (id int GENERATED ALWAYS AS IDENTITY, k text CHECK (k IN ('a', 'b')), v varchar(3) CHECK (v IN ('a', 'b')), \
         d int GENERATED ALWAYS AS (length(k)) STORED, w int UNIQUE DEFERRABLE, PRIMARY KEY (k, v)); \
         INSERT INTO odd (k, v, w) VALUES ('a', 'a', 1), ('a', 'b', 2), ('b', 'a', 3); CREATE VIEW seen AS SELECT * FROM odd WHERE v IN ('a', 'b')",
    );
    let url = shop.clone_plan("try");
    inside(
        &url,
        "DELETE FROM tree WHERE id > 1; INSERT INTO tree VALUES (9, 1), (10, 9), (100, 10), (11, 100); DELETE FROM items WHERE id = 4; INSERT INTO s.n VALUES (1, 'in s'); INSERT INTO \"s.n\" VALUES (1, 'in public'); \
         UPDATE \"a\"\"b; --\" SET \"it's\" = E'\\\\ '' \"' WHERE u = 3; UPDATE odd SET w = CASE w WHEN 1 THEN 2 ELSE 1 END WHERE w < 3; \
         UPDATE odd SET v = 'b' WHERE k = 'b'; CREATE TABLE filled AS SELECT count(*) AS n FROM items",
    );
    // A row that would be taken along by the one that goes.
    shop.sql("INSERT INTO lines VALUES (1, 4)");
    let found = changes(&shop.cli, "try");
    for path in ["inserted s.n/1", "inserted \"s.n\"/1"] {
        assert!(found.iter().any(|one| one == path), "{found:?}");
    }
    has(&conflict(&shop, "commit try"), ["lines"]);
    let both = "SELECT (SELECT count(*) FROM lines), (SELECT count(*) FROM items)";
    assert_eq!(shop.sql(both), "1|20");
    shop.sql("DELETE FROM lines");
    shop.cli.ok("commit try");
    assert_eq!(
        shop.sql("SELECT (SELECT t FROM s.n), (SELECT t FROM \"s.n\"), (SELECT n FROM filled), (SELECT \"it's\" FROM \"a\"\"b; --\" WHERE u = 3), \
             (SELECT string_agg(k || v || w || d, ' ' ORDER BY w) FROM odd), (SELECT string_agg(id || '<' || up, ' ' ORDER BY id) FROM tree)"
        ),
        "in s|in public|19|\\ ' \"|ab11 aa21 bb31|9<1 10<9 11<100 100<10"
    );
    // Trap 18: two rows exchange what has to be unique at every moment, unless others refer to them; nothing is lost by trying.
    let url = shop.clone_plan("drops");
    let swap = |url: &str, table: &str| {
        let set = |from: u32, to: u32| format!("UPDATE {table} SET u = {to} WHERE u = {from}");
        inside(url, &[set(1, 9), set(2, 1), set(9, 2)].join("; "));
    };
    swap(&url, "\"a\"\"b; --\"");
    // Whatever is done to a table that others follow.
    inside(&url, "UPDATE items SET name = 'other' WHERE id = 7");
    shop.cli.ok("commit drops");
    let url = shop.clone_plan("identity");
    inside(
        &url,
        "UPDATE odd SET id = DEFAULT WHERE w = 1; SELECT setval('odd_id_seq', 40); UPDATE odd SET id = DEFAULT WHERE w = 2",
    );
    let ids = "SELECT string_agg(id::text, ' ' ORDER BY w) FROM odd";
    let wanted = inside(&url, ids);
    shop.cli.ok("commit identity");
    assert_eq!(shop.sql(ids), wanted);
    let exchanged = "SELECT string_agg(u::text, ' ' ORDER BY \"x.y/z\") FROM \"a\"\"b; --\"";
    assert_eq!(shop.sql(exchanged), "2 1 3");
    shop.cli.ok("undo drops");
    assert_eq!(shop.sql(exchanged), "1 2 3");
    shop.cli.ok("cleanup drops --yes");
    for follows in ["", "ON DELETE CASCADE"] {
        shop.sql(&format!(
            "DROP TABLE IF EXISTS of_e, e; CREATE TABLE e (id int PRIMARY KEY, u int UNIQUE); INSERT INTO e VALUES (1, 1), (2, 2); \
             CREATE TABLE of_e (e int REFERENCES e {follows}); INSERT INTO of_e VALUES (1)"
        ));
        let url = shop.clone_plan("swap");
        swap(&url, "e");
        has(&conflict(&shop, "commit swap"), ["unique"]);
        assert_eq!(changes(&shop.cli, "swap").len(), 2);
        assert_eq!(shop.sql("SELECT u, e FROM e, of_e WHERE id = 1"), "1|1");
        shop.cli.ok("cleanup swap --yes");
    }
    let url = shop.clone_plan("drops");
    // What goes with a table may be of another client, as may a function that is replaced.
    inside(
        &url,
        "DROP TABLE s.n, gone; CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 2'",
    );
    shop.sql("CREATE INDEX theirs ON s.n (t)");
    has(&conflict(&shop, "commit drops"), ["theirs"]);
    shop.cli.fails("commit drops --on-conflict sandbox", 4);
    shop.sql("DROP INDEX s.theirs; UPDATE s.n SET t = 'more'");
    has(&conflict(&shop, "commit drops"), ["s.n"]);
    shop.sql("UPDATE s.n SET t = 'in s'; CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 3'");
    has(&conflict(&shop, "commit drops"), ["f()"]);
    shop.sql("CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'");
    shop.cli.ok("commit drops");
    assert_eq!(shop.sql("SELECT f(), to_regclass('s.n')"), "2|");
    shop.assert_no_clone();
}

// rule Q6, Q7
#[test]
fn other_roles_clone_what_is_theirs_and_are_told_what_is_not() {
    let shop = Shop::with_clones(true);
    for sql in [
        "CREATE ROLE own LOGIN CREATEDB",
        "CREATE DATABASE owned OWNER own",
        "CREATE ROLE guest LOGIN CREATEDB",
    ] {
        shop.server.sql("postgres", sql);
    }
    let own = shop.server.url("own", "owned");
    let sql = |text: &str| inside(&own, text);
    sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2); CREATE TABLE p (id int)",
    );
    let create = |name: &str, url: &str| {
        let line = ["plan", "create", name, "--strategy", "snapshot", "-r", url];
        shop.cli.run(line)
    };
    assert_eq!(create("try", &own).status, 0);
    let url = shop.cli.ok("path try owned").trim_end().to_owned();
    inside(&url, "UPDATE t SET n = 7 WHERE id = 1");
    // Rows that a policy hides are not taken for deleted.
    sql("ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY");
    has(
        &shop.cli.fails("commit try", 3),
        ["row security", "public.t"],
    );
    has(&create("more", &own).stderr_text(), ["row security"]);
    sql("ALTER TABLE t DISABLE ROW LEVEL SECURITY");
    // A table of another owner, with a trigger that only its owner turns off.
    shop.server.sql(
        "owned",
        "ALTER TABLE t OWNER TO postgres; GRANT ALL ON t TO own; CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'; \
         CREATE TRIGGER no BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION no()",
    );
    has(
        &shop.cli.run("commit try").stderr_text(),
        ["owner of table t"],
    );
    assert_eq!(sql("SELECT n FROM t WHERE id = 1"), "1");
    shop.server
        .sql("owned", "DROP TRIGGER no ON t; DROP FUNCTION no()");
    shop.cli.ok("commit try");
    assert_eq!(sql("SELECT n FROM t WHERE id = 1"), "7");
    // One that may connect, and not read.
    let guest = shop.server.url("guest", "owned");
    let said = create("guest", &guest);
    assert!(said.status != 0, "{said:?}");
    has(&said.stderr_text(), ["permission denied"]);
    shop.assert_no_clone();
}

// rule C3, C18, C19, Q8
#[test]
fn a_commit_of_a_clone_whose_link_or_server_fails_is_one_thing() {
    let mut shop = Shop::new(true);
    let link = PgLink::new(&shop.server);
    shop.declare_clones(&link.url("postgres", "shop"));
    let mut price = 100;
    let all = std::env::var_os("ESCROW_HISTORIES").is_some();
    for text in ["PREPARE TRANSACTION", "COMMIT PREPARED"] {
        for how in BREAKS {
            if !all && how != Break::StopAfter {
                continue;
            }
            price += 1;
            let when = format!("{how:?} at {text}");
            let url = shop.clone_plan("t");
            put(&shop.cli, "t app a.txt", format!("{price}\n"));
            inside(
                &url,
                &format!("UPDATE items SET price = {price} WHERE id = 1"),
            );
            link.arm(text, how, &shop.server);
            let first = shop.cli.run("commit t");
            assert!(link.disarm(), "{when}: {first:?}");
            if matches!(how, Break::StopBefore | Break::StopAfter) {
                shop.server.stop();
                shop.server.run();
            }
            shop.cli.ok("recover");
            assert_eq!(shop.server.prepared(), "", "{when}");
            let file = read(shop.world.at("app/a.txt")) == format!("{price}\n");
            let now = "SELECT price FROM items WHERE id = 1";
            let now = shop.sql(now) == price.to_string();
            assert_eq!(now, file, "{when}: {first:?}");
            assert_eq!(file, text == "COMMIT PREPARED", "{when}: {first:?}");
            if !file {
                // The work is in the clone still.
                shop.cli.ok("commit t");
                let now = shop.sql("SELECT price FROM items WHERE id = 1");
                assert_eq!(now, price.to_string(), "{when}");
            }
            shop.cli.ok("cleanup t --yes");
        }
    }
    shop.assert_no_clone();
}

/// How many histories there are in one database.
const HISTORIES: usize = 24;

/// What a random client does to a row, or to a table without a key; the number makes what it writes its own.
fn step(rng: &mut Rng, who: &str, history: usize, number: usize) -> String {
    let (id, n, other) = (rng.below(30), rng.below(5), 30 + number % 9);
    let (h, l) = (format!("h{history}"), format!("l{history}"));
    match rng.below(7) {
        0 => format!("DELETE FROM {h} WHERE id = {id}"),
        1 => format!("INSERT INTO {h} VALUES ({id}, '{who}{number}') ON CONFLICT DO NOTHING"),
        2 => format!("INSERT INTO {l} VALUES ({n})"),
        3 => format!("DELETE FROM {l} WHERE ctid = (SELECT ctid FROM {l} WHERE n = {n} LIMIT 1)"),
        4 => format!(
            "UPDATE {h} SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT FROM {h} WHERE id = {other})"
        ),
        _ => format!("UPDATE {h} SET v = '{who}{number}' WHERE id = {id}"),
    }
}

/// The rows by their items, and of tables without a key how often each is there.
type State = (BTreeMap<String, String>, BTreeMap<String, i64>);

fn state(sql: impl Fn(&str) -> String) -> State {
    let each = |of: &dyn Fn(usize) -> String| -> String {
        let all: Vec<String> = (0..HISTORIES).map(of).collect();
        sql(&all.join(" UNION ALL "))
    };
    let rows = each(&|one| format!("SELECT 'h{one}/' || id || '=' || v FROM h{one}"));
    let loose =
        each(&|one| format!("SELECT 'l{one} ' || n || '=' || count(*) FROM l{one} GROUP BY n"));
    let split = |line: &str| {
        line.split_once('=')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    let loose = loose.lines().filter_map(split);
    let loose = loose.map(|(key, count)| (key, count.parse().expect("a number")));
    (rows.lines().filter_map(split).collect(), loose.collect())
}

/// What two clients made of a state together, where the second one keeps what both changed; and the rows of a key that both changed.
fn merged(base: &State, ours: &State, theirs: &State) -> (State, BTreeSet<String>) {
    let (mut wanted, mut conflicts) = (theirs.clone(), BTreeSet::new());
    for key in base.0.keys().chain(ours.0.keys()) {
        let [old, own, other] = [base, ours, theirs].map(|one| one.0.get(key));
        match own {
            _ if own == old || own == other => {}
            _ if other != old => drop(conflicts.insert(key.clone())),
            Some(value) => drop(wanted.0.insert(key.clone(), value.clone())),
            None => drop(wanted.0.remove(key)),
        }
    }
    for key in base.1.keys().chain(ours.1.keys()).collect::<BTreeSet<_>>() {
        let count = |one: &State| one.1.get(key).copied().unwrap_or(0);
        let count = count(theirs) + count(ours) - count(base);
        wanted.1.insert(key.clone(), count);
    }
    // Where both removed the last of them, it is gone.
    wanted.1.retain(|_, count| *count > 0);
    (wanted, conflicts)
}

/// Two clients change a database at random, one of them in a clone, and a third one goes on while it is committed: conflicts are exactly
/// the rows that two made something else of, and what each of them did is there afterwards. `ESCROW_HISTORIES` has more rounds.
// rule C15, Q2, Q4
#[test]
fn random_histories_of_two_clients_lose_nothing() {
    let shop = Shop::with_clones(true);
    let rounds = std::env::var("ESCROW_HISTORIES").ok();
    let rounds = rounds.and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 0..rounds {
        let mut rng = Rng::new(seed);
        let tables: Vec<String> = (0..HISTORIES)
            .map(|one| {
                format!(
                    "DROP TABLE IF EXISTS h{one}, l{one}; CREATE TABLE h{one} (id int PRIMARY KEY, v text); CREATE TABLE l{one} (n int); \
                     INSERT INTO h{one} SELECT g, 'base' FROM generate_series(0, 19) g; INSERT INTO l{one} SELECT g % 5 FROM generate_series(1, 9) g"
                )
            })
            .collect();
        let original = |sql: &str| shop.sql(sql);
        original(&tables.join("; "));
        original(
            "DROP TABLE IF EXISTS counter; CREATE TABLE counter (n int PRIMARY KEY, c int); INSERT INTO counter VALUES (1, 0), (2, 0)",
        );
        let url = shop.clone_plan("t");
        let clone = |sql: &str| inside(&url, sql);
        let base = state(original);
        let mut work = |who: &str, most: usize| {
            let mut all = Vec::new();
            for history in 0..HISTORIES {
                let count = rng.below(most) + 1;
                all.extend((0..count).map(|number| step(&mut rng, who, history, number)));
            }
            all.join("; ")
        };
        clone(&work("ours", 25));
        clone("UPDATE counter SET c = 1000 WHERE n = 2");
        original(&work("theirs", 4));
        let (wanted, conflicts) = merged(&base, &state(clone), &state(original));
        let said = shop.cli.run("--json commit t --dry-run").stdout_text();
        let said: serde_json::Value = serde_json::from_str(&said).expect("a document");
        let found = list(&said["conflicts"]).iter();
        let found = found.map(|one| one["path"].as_str().unwrap_or_default().to_owned());
        let found: BTreeSet<String> = found.filter(|path| path.starts_with('h')).collect();
        assert_eq!(found, conflicts, "round {seed}: {said}");
        // Another client counts meanwhile, in a row that is not changed here, and the next.
        let counted = std::thread::scope(|scope| {
            let counter = scope.spawn(|| {
                let count = "UPDATE counter SET c = c + 1 WHERE n = 1";
                let counted = |_: &i32| shop.server.try_sql("shop", count).is_ok();
                (0..15).filter(counted).count()
            });
            shop.cli.ok("commit t --on-conflict original");
            counter.join().expect("it ends")
        });
        assert_eq!(state(original), wanted, "round {seed}");
        let counters = original("SELECT c FROM counter ORDER BY n");
        assert_eq!(counters, format!("{counted}\n1000"), "round {seed}");
    }
    shop.assert_no_clone();
}

/// Settings of a database that a superuser made, and one that changes what is read.
// rule Q4
#[test]
fn settings_of_a_database_kept_it_from_being_cloned_or_its_rows_from_being_read() {
    let shop = Shop::with_clones(true);
    for sql in [
        "CREATE ROLE own LOGIN CREATEDB",
        "CREATE DATABASE owned OWNER own",
        "ALTER DATABASE owned SET log_min_duration_statement = 100000",
        "ALTER DATABASE owned SET array_nulls = off",
        "ALTER DATABASE owned SET work_mem = '3MB'",
    ] {
        shop.server.sql("postgres", sql);
    }
    let own = shop.server.url("own", "owned");
    inside(
        &own,
        "CREATE TABLE t (id int PRIMARY KEY, a text[], b int[]); INSERT INTO t VALUES (1, ARRAY['x', NULL, 'NULL'], ARRAY[1, NULL])",
    );
    shop.declare_clones(&own);
    // With a client it is dumped, without one it is copied.
    for clients in [1, 0] {
        let client = (clients == 1).then(|| other_at(&own, "SELECT 1"));
        let url = shop.clone_plan("try");
        client.into_iter().for_each(end);
        let set = "SELECT current_setting('work_mem'), (SELECT cardinality(array_remove(a, NULL)) FROM t)";
        assert_eq!(inside(&url, set), "3MB|2", "{clients}");
        inside(&url, "INSERT INTO t SELECT 2, a, b FROM t");
        shop.cli.ok("commit try");
        let same = "SELECT count(*), count(DISTINCT (a, b)) FROM t";
        assert_eq!(shop.server.sql("owned", same), "2|1", "{clients}");
        shop.cli.ok("undo try");
        shop.cli.ok("cleanup try --yes");
    }
    // Without it triggers would run in the clone that do not run in the original.
    let replica = "ALTER DATABASE owned SET session_replication_role = replica";
    shop.server.sql("postgres", replica);
    let said = shop.cli.run("plan create no -r shop");
    assert!(said.status != 0, "{said:?}");
    has(&said.stderr_text(), ["session_replication_role"]);
    shop.assert_no_clone();
}
