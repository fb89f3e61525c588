//! PostgreSQL databases in a plan, as users meet them: real servers, unchanged clients, and every answer checked by an
//! independent client of the original.

use escrow_testkit::postgres::{PASSWORD, Postgres, program, psql, psql_command};

use crate::postgres_exchanges::python;
use crate::*;

/// A server with a table, and a plan of it and of a directory.
pub(crate) struct Shop {
    pub(crate) server: Postgres,
    pub(crate) world: World,
    pub(crate) cli: Cli,
}

const TABLES: &str = "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric); \
    INSERT INTO items SELECT g, 'item ' || g, g * 1.5 FROM generate_series(1, 20) g; \
    CREATE TABLE loose (a int, b text); INSERT INTO loose VALUES (1, 'x'), (1, 'x'), (2, NULL); \
    CREATE TABLE orders (id serial PRIMARY KEY, item int REFERENCES items DEFERRABLE INITIALLY DEFERRED)";

impl Shop {
    pub(crate) fn new(two_phase: bool) -> Self {
        let server = Postgres::start(two_phase);
        server.sql("shop", TABLES);
        let (world, cli) = world();
        Self { server, world, cli }
    }

    /// A plan of the database alone.
    pub(crate) fn plan(&self, name: &str) -> String {
        let url = self.server.url("postgres", "shop");
        self.cli
            .ok(["plan", "create", name, "--resource", url.as_str()]);
        self.url(name)
    }

    /// A plan of the directory and the database.
    pub(crate) fn plan_both(&self, name: &str) -> String {
        self.plan_both_as("postgres", name)
    }

    /// The same, as another user of the database.
    pub(crate) fn plan_both_as(&self, user: &str, name: &str) -> String {
        self.plan_of(name, &self.server.url(user, "shop"));
        self.url(name)
    }

    /// The same of a database that is reached by another URL; what was said.
    pub(crate) fn plan_of(&self, name: &str, url: &str) -> Outcome {
        let line = format!("plan create {name} --resource ./app --resource {url}");
        self.cli.expect(line, 0)
    }

    /// What the original says.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.server.sql("shop", sql)
    }

    pub(crate) fn url(&self, plan: &str) -> String {
        self.cli.ok(["path", plan, "shop"]).trim_end().to_owned()
    }

    pub(crate) fn items(&self) -> String {
        self.sql("SELECT count(*), sum(price) FROM items")
    }

    /// Nothing of ours is left on the server, and no holder.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.server.prepared(), "");
        assert!(self.server.is_left_alone("shop"), "{}", self.server.log());
        // What an undo of the files needs stays.
        let areas = self.world.areas();
        assert!(
            areas.iter().all(|area| area.ends_with(".undo")),
            "{areas:?}"
        );
    }
}

/// A user who owns no table, and may do everything else: what waits for the end of a transaction on tables of others cannot be asked about.
pub(crate) const CLERK: &str = "CREATE ROLE clerk LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk; \
    GRANT ALL ON SCHEMA public TO clerk";

/// Runs SQL in a sandbox.
#[track_caller]
pub(crate) fn inside(url: &str, sql: &str) -> String {
    psql(url, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Runs SQL that fails in a sandbox, and returns what psql says.
#[track_caller]
pub(crate) fn refused(url: &str, sql: &str) -> String {
    let mut command = psql_command(url);
    command.args(["-v", "VERBOSITY=verbose", "-c", sql]);
    let output = command.output().expect("psql runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{sql}: {said}");
    said
}

/// The changes of the database in a plan, as `kind path`.
pub(crate) fn changes(cli: &Cli, plan: &str) -> Vec<String> {
    let diff = json(cli, &format!("diff {plan}"));
    let resources = list(&diff["resources"]);
    let shop = resources
        .iter()
        .find(|one| one["resource"] == "shop")
        .expect("it is in the plan");
    let line = |one: &Value| {
        format!(
            "{} {}",
            one["kind"].as_str().unwrap_or(""),
            one["path"].as_str().unwrap_or("")
        )
    };
    list(&shop["changes"]).iter().map(line).collect()
}

// rule C1, Q1, Q8
#[test]
fn files_and_a_database_are_released_as_one() {
    let shop = Shop::new(true);
    let before = shop.sql("SELECT count(*) FROM pg_class");
    let url = shop.plan_both("try");
    assert!(url.starts_with("postgresql:///shop?host=/"), "{url}");
    put(&shop.cli, "try app a.txt", "uno\n");
    inside(
        &url,
        "UPDATE items SET price = 99 WHERE id = 3; DELETE FROM items WHERE id = 20; INSERT INTO items VALUES (21, 'new', 1)",
    );
    inside(
        &url,
        "INSERT INTO loose VALUES (1, 'x'); DELETE FROM loose WHERE a = 2",
    );
    assert_eq!(
        inside(&url, "SELECT price FROM items WHERE id = 3"),
        "99",
        "other clients of the sandbox see it"
    );
    assert_eq!(shop.items(), "20|315.0", "the original is as it was");
    let found = changes(&shop.cli, "try");
    assert_eq!(
        found[..3],
        ["deleted items/20", "inserted items/21", "updated items/3"],
        "{found:?}"
    );
    assert_eq!(found.len(), 5, "{found:?}");
    let done = json(&shop.cli, "commit try -m both");
    assert_eq!(done["committed"], true, "{done}");
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
    assert_eq!(shop.items(), "20|380.5");
    assert_eq!(shop.sql("SELECT * FROM loose ORDER BY 1"), "1|x\n1|x\n1|x");
    assert_eq!(shop.sql("SELECT count(*) FROM pg_class"), before);
    shop.assert_nothing_left();
    // What is committed stays committed, and an undo says so before it touches the files.
    shop.cli.fails("undo try", 4);
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
}

// rule Q2, C15
#[test]
fn rollback_and_cleanup_leave_the_database_as_it_was() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    inside(
        &url,
        "DELETE FROM orders; DELETE FROM items; CREATE TABLE more (a int); INSERT INTO more VALUES (1)",
    );
    let found = changes(&shop.cli, "try");
    assert!(found.contains(&"added more".to_owned()), "{found:?}");
    assert!(
        found.iter().any(|one| one.starts_with("inserted more/")),
        "{found:?}"
    );
    shop.cli.ok("rollback try");
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    assert_eq!(inside(&url, "SELECT count(*) FROM items"), "20");
    // A statement that would overwrite what another process changed since fails, and only that.
    shop.sql("UPDATE items SET name = 'theirs' WHERE id = 1");
    inside(&url, "UPDATE items SET name = 'ours' WHERE id = 2");
    has(
        &refused(&url, "UPDATE items SET name = 'ours' WHERE id = 1"),
        ["40001"],
    );
    assert_eq!(changes(&shop.cli, "try"), ["updated items/2"]);
    shop.cli.ok("commit try");
    let names = "SELECT name FROM items WHERE id < 3 ORDER BY id";
    assert_eq!(shop.sql(names), "theirs\nours");
    shop.plan("again");
    shop.cli.ok("cleanup again --yes");
    shop.assert_nothing_left();
}

/// Whatever a catalog of the server holds is compared, what belongs together is named once, and the digest covers it.
// rule C11, Q3
#[test]
fn every_change_of_a_definition_is_named() {
    let shop = Shop::new(true);
    shop.sql("CREATE TYPE mood AS ENUM ('good'); CREATE VIEW cheap AS SELECT * FROM items WHERE price < 3; \
         CREATE FUNCTION f(a int) RETURNS int LANGUAGE sql AS 'SELECT a'; CREATE TABLE locked AS SELECT 1 AS x, 1 AS y",
    );
    let url = shop.plan("try");
    inside(
        &url,
        "ANALYZE items; COMMENT ON TABLE items IS 'x'; COMMENT ON TABLE items IS NULL; CREATE TABLE t (a int); DROP TABLE t",
    );
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    let mut known: Vec<String> = Vec::new();
    let mut digests: Vec<Value> = Vec::new();
    let cases: [(&str, &[&str]); 25] = [
        ("ALTER TYPE mood ADD VALUE 'bad'", &["modified type:mood"]),
        ("COMMENT ON COLUMN loose.a IS 'x'", &["modified loose"]),
        (
            "COMMENT ON FUNCTION f(int) IS 'x'",
            &["modified function:f(a integer)"],
        ),
        ("GRANT SELECT ON orders TO app", &["modified orders"]),
        (
            "ALTER SEQUENCE orders_id_seq RESTART WITH 7",
            &["modified sequence:orders_id_seq"],
        ),
        ("CREATE ROLE other", &["added role:other"]),
        ("GRANT other TO app", &["modified catalog:pg_auth_members"]),
        (
            "ALTER ROLE app SET work_mem = '1MB'",
            &["modified catalog:pg_db_role_setting"],
        ),
        (
            "SELECT lo_from_bytea(4711, 'x')",
            &["added large_object:4711"],
        ),
        ("CREATE SCHEMA s", &["added schema:s"]),
        (
            "CREATE TABLE s.a (id int PRIMARY KEY)",
            &["added s.a", "added s.a/index:a_pkey"],
        ),
        (
            "CREATE TABLE s.b (a int REFERENCES s.a, m mood[])",
            &["added s.b"],
        ),
        (
            "CREATE TRIGGER t BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            &["added items/trigger:t"],
        ),
        (
            "CREATE RULE r AS ON DELETE TO items DO ALSO NOTHING",
            &["modified items", "added rule:r on public.items"],
        ),
        (
            "CREATE STATISTICS st ON name, price FROM items",
            &["added statistics_object:public.st"],
        ),
        (
            "CREATE PUBLICATION p FOR TABLE items",
            &["added publication:p"],
        ),
        (
            "CREATE DOMAIN d AS int CHECK (VALUE > 0)",
            &["added type:d"],
        ),
        (
            "CREATE OR REPLACE VIEW cheap AS SELECT * FROM items WHERE price < 4",
            &["modified cheap"],
        ),
        ("DROP VIEW cheap", &["deleted cheap"]),
        (
            "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO app",
            &["added default_acl:for role postgres on tables"],
        ),
        ("DROP TYPE d", &[]),
        ("COMMENT ON COLUMN loose.a IS 'y'", &[]),
        ("DROP TABLE s.b", &[]),
        (
            "ALTER TABLE locked ALTER y SET NOT NULL",
            &["modified locked"],
        ),
        ("UPDATE locked SET y = 2", &[]),
    ];
    for (sql, wanted) in cases {
        inside(&url, sql);
        let now = changes(&shop.cli, "try");
        let more: Vec<&String> = now.iter().filter(|one| !known.contains(one)).collect();
        assert_eq!(more, wanted, "{sql}");
        known = now;
        let digest = json(&shop.cli, "diff try")["digest"].clone();
        assert!(!digests.contains(&digest), "{sql}");
        digests.push(digest);
    }
    assert!(!known.contains(&"added type:d".to_owned()), "{known:?}");
    inside(&url, "DROP FUNCTION f");
    let expect = |digest: &Value| {
        let digest = digest.as_str().expect("a digest");
        format!("commit try --expect {digest}")
    };
    shop.cli.fails(expect(&digests[digests.len() - 1]), 4);
    shop.cli.ok(expect(&json(&shop.cli, "diff try")["digest"]));
    // A role that may not read everything is told that it was not read.
    shop.sql("ALTER ROLE app CREATEROLE; GRANT TRUNCATE ON loose TO app");
    let pass = shop.world.at("pass");
    write(&pass, format!("*:*:shop:app:{PASSWORD}\n"));
    chmod(&pass, 0o600);
    let cli = shop.cli.clone().env("PGPASSFILE", &pass);
    let own = shop.server.url("app", "shop");
    cli.ok(["plan", "create", "mine", "--resource", own.as_str()]);
    inside(&shop.url("mine"), "CREATE ROLE mine; TRUNCATE loose");
    assert_eq!(
        changes(&cli, "mine"),
        ["modified catalog:pg_authid", "modified loose"]
    );
    cli.ok("commit mine");
    let role = "SELECT count(*) FROM pg_roles WHERE rolname = 'mine'";
    assert_eq!(shop.sql(role), "1");
    shop.assert_nothing_left();
}

/// What no other connection can read counts as changed, is covered by the digest, and is released.
// rule C11, Q3
#[test]
fn rows_of_a_locked_table_are_not_taken_for_unchanged() {
    let shop = Shop::new(true);
    let seen = "CREATE MATERIALIZED VIEW seen AS SELECT id, price FROM items; CREATE UNIQUE INDEX ON seen (id); \
                CREATE MATERIALIZED VIEW unfilled AS SELECT 1 AS a";
    shop.sql(seen);
    let url = shop.plan("try");
    inside(
        &url,
        "BEGIN; LOCK TABLE items; DELETE FROM items WHERE id > 1; COMMIT",
    );
    assert_eq!(changes(&shop.cli, "try"), ["modified items"]);
    has(
        &shop.cli.ok("diff try"),
        ["could not be read: it is locked"],
    );
    // Also of a table that is altered, and of one that was dropped and made again, which shows both.
    inside(
        &url,
        "ALTER TABLE orders ADD note text; DROP TABLE loose; CREATE TABLE loose (a int)",
    );
    has(
        &shop.cli.ok("diff try"),
        ["- table loose", "+ table loose: created"],
    );
    for sql in [
        "UPDATE items SET name = 'z'",
        "INSERT INTO orders (item) VALUES (1)",
    ] {
        let digest = json(&shop.cli, "diff try")["digest"].clone();
        inside(&url, sql);
        let digest = digest.as_str().expect("a digest").to_owned();
        shop.cli.fails(format!("commit try --expect {digest}"), 4);
    }
    // Without rows that can be read there is no digest; a commit that expects none goes on.
    inside(&url, "REFRESH MATERIALIZED VIEW unfilled WITH NO DATA");
    assert_eq!(json(&shop.cli, "diff try")["digest"], Value::Null);
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "1|1.5");
    let url = shop.plan("view");
    let refresh = "REFRESH MATERIALIZED VIEW CONCURRENTLY seen";
    has(&refused(&url, refresh), ["0A000", "without CONCURRENTLY"]);
    // What a function does is known when it is done.
    inside(&url, &format!("DO $$ BEGIN {refresh}; END $$"));
    let gone = || {
        let found = changes(&shop.cli, "view");
        let gone = found.iter().filter(|one| one.starts_with("deleted seen/"));
        gone.count()
    };
    assert_eq!(gone(), 19);
    // The server makes a temporary table for that.
    has(&shop.cli.fails("commit view", 1), ["temporary objects"]);
    assert_eq!(gone(), 19);
    shop.cli.ok("cleanup view --yes");
    shop.assert_nothing_left();
}

// rule Q6
#[test]
fn passwords_are_found_as_libpq_finds_them_and_shown_nowhere() {
    let shop = Shop::new(true);
    shop.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO app");
    let url = shop.server.url("app", "shop");
    let create = ["plan", "create", "try", "--resource", url.as_str()];
    has(&shop.cli.fails(create, 1), ["password", ".pgpass"]);
    let wrong = shop.cli.clone().env("PGPASSWORD", "wr0ng");
    let said = wrong.fails(create, 1);
    has(&said, ["password authentication failed"]);
    lacks(&said, ["wr0ng"]);
    let secret = url
        .replace("postgresql:///", "postgresql://app:hunter2@/")
        .replace("&user=app", "");
    let said = shop
        .cli
        .fails(["plan", "create", "try", "--resource", secret.as_str()], 2);
    has(&said, [".pgpass"]);
    lacks(&said, ["hunter2"]);
    let pass = shop.world.at("pass");
    write(&pass, format!("*:*:shop:app:{PASSWORD}\n"));
    chmod(&pass, 0o600);
    let cli = shop.cli.clone().env("PGPASSFILE", &pass);
    cli.ok(create);
    let inner = cli.ok("path try shop").trim_end().to_owned();
    assert_eq!(inside(&inner, "SELECT current_user"), "app");
    inside(&inner, "UPDATE items SET price = 5");
    let shown = [
        cli.ok("--json plan show try"),
        cli.ok("--json log"),
        cli.ok("-v status"),
        cli.ok("--json resource list"),
    ]
    .concat();
    lacks(&shown, [PASSWORD]);
    for at in paths(shop.world.home()) {
        let at = shop.world.home().join(at);
        let bytes = fs::read(&at).unwrap_or_default();
        let held = bytes
            .windows(PASSWORD.len())
            .any(|window| window == PASSWORD.as_bytes());
        assert!(!held, "{} holds the password", at.display());
    }
    lacks(&sh("/", "ps -eo args"), [PASSWORD]);
    cli.ok("commit try");
    assert_eq!(shop.items(), "20|100");
    // A service that a URL names.
    let services = shop.world.at("services");
    let host = shop.server.socket();
    write(
        &services,
        format!(
            "[second]\nhost={}\nuser=app\ndbname=shop\npassword={PASSWORD}\n",
            host.display()
        ),
    );
    let cli = shop.cli.clone().env("PGSERVICEFILE", &services);
    cli.ok("plan create named --resource postgresql:///?service=second");
    cli.ok("cleanup named --yes");
    shop.assert_nothing_left();
}

// rule S4
#[test]
fn hostile_names_are_just_names() {
    let shop = Shop::new(true);
    let names = [
        "a\"b",
        "x'); DROP TABLE items; --",
        "..",
        "a/b",
        "öäü",
        "select",
        "it%20em",
    ];
    let mut all = String::new();
    for (number, name) in names.iter().enumerate() {
        let quoted = name.replace('"', "\"\"");
        all.push_str(&format!("CREATE TABLE \"{quoted}\" (\"{quoted}\" text PRIMARY KEY, n int); INSERT INTO \"{quoted}\" VALUES ('k', {number});"));
    }
    shop.sql(&all);
    let url = shop.plan("try");
    for name in names {
        let quoted = name.replace('"', "\"\"");
        let key = "../../x\n'\"\\";
        let literal = key.replace('\'', "''");
        inside(
            &url,
            &format!(
                "UPDATE \"{quoted}\" SET n = 100; INSERT INTO \"{quoted}\" VALUES ('{literal}', 1)"
            ),
        );
    }
    let found = changes(&shop.cli, "try");
    assert_eq!(found.len(), 2 * names.len(), "{found:?}");
    shop.cli.ok("diff try");
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|315.0");
    assert_eq!(shop.sql("SELECT sum(n) FROM \"..\""), "101");
    shop.assert_nothing_left();
}

#[test]
fn unchanged_clients_work_through_the_holder() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let script = shop.world.at("migrate.sql");
    write(
        &script,
        "BEGIN;\nCREATE TABLE later (id int PRIMARY KEY, at timestamptz DEFAULT now());\nALTER TABLE items ADD COLUMN stock int DEFAULT 0;\n\
         CREATE FUNCTION f(a int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN a + 1; END $$;\nCOMMIT;\nINSERT INTO later VALUES (1);\n",
    );
    let mut command = psql_command(&url);
    command.arg("-f").arg(&script);
    assert!(command.status().expect("psql runs").success());
    let dump = |url: &str| {
        let mut dump = Command::new(program("pg_dump"));
        output_of(dump.args(["-d", url]))
    };
    let held = dump(&url);
    has(
        &held,
        [
            "CREATE TABLE public.later",
            "stock integer DEFAULT 0",
            "CREATE FUNCTION public.f",
        ],
    );
    let found = changes(&shop.cli, "try");
    for one in [
        "added later",
        "modified items",
        "added function:f(a integer)",
    ] {
        assert!(found.contains(&one.to_owned()), "{one}: {found:?}");
    }
    let mut bench = Command::new(program("pgbench"));
    bench.args(["-i", "-q", "-s", "1", "--no-vacuum"]).arg(&url);
    output_of(&mut bench);
    for mode in ["simple", "extended", "prepared"] {
        let mut bench = Command::new(program("pgbench"));
        bench
            .args(["-n", "-c", "3", "-j", "3", "-t", "20", "-M", mode])
            .arg(&url);
        has(&output_of(&mut bench), ["number of failed transactions: 0"]);
    }
    shop.cli.ok("commit try");
    assert_eq!(shop.sql("SELECT count(*) FROM pgbench_history"), "180");
    assert_eq!(
        dump(&shop.server.url("postgres", "shop"))
            .matches("CREATE TABLE public.later")
            .count(),
        1
    );
    shop.assert_nothing_left();
}

/// Inside `escrow run` the sandbox is where the usual variables lead, and no password of the original.
// rule Q6
#[test]
fn a_command_inside_finds_the_sandbox_and_not_the_original() {
    let shop = Shop::new(true);
    let url = shop.server.url("postgres", "shop");
    write(
        shop.world.at("escrow.yaml"),
        format!(
            "resources:\n  db: {{type: postgres, at: '{url}', options: {{env: SHOP_URL}}}}\n  app: {{type: fs-directory, at: app}}\n"
        ),
    );
    shop.cli.trust();
    let cli = shop
        .cli
        .clone()
        .env("PGPASSWORD", "of-the-original")
        .env("PGSERVICE", "of-the-original");
    let cli = cli.cwd(shop.world.path());
    shop.cli.ok("plan create try --resource db --resource app");
    let script = format!(
        "set -e; test -z \"$PGPASSWORD$PGSERVICE\"; {psql} -XAtqc 'UPDATE items SET price = 7'; \
         {psql} -XAtq \"$SHOP_URL\" -c 'SELECT sum(price) FROM items' > app/sum; test ! -e {home}/state.db",
        psql = program("psql").display(),
        home = shop.world.home().display()
    );
    // Without the machine's network too: the socket of the sandbox is its own.
    for network in ["host", "none"] {
        let options = ["run", "--plan", "try", "--network", network];
        cli.ok([&options[..], &["--", "sh", "-c", &script]].concat());
    }
    assert_eq!(shop.items(), "20|315.0");
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|140");
    assert_eq!(read(shop.world.at("app/sum")), "140\n");
    shop.assert_nothing_left();
}

/// psycopg 3 with its pipelines, its prepared statements of the server and its copies, from two connections at once.
pub(crate) const TWO_CLIENTS: &str = r#"
import sys, psycopg
a = psycopg.connect(sys.argv[1], autocommit=True)
b = psycopg.connect(sys.argv[1], autocommit=True)
for n in range(3):
    assert a.execute("SELECT %s + 1", (n,), prepare=True).fetchone() == (n + 1,)
    assert b.execute("SELECT %s || 'b'", (str(n),), prepare=True).fetchone() == (f"{n}b",)
with a.transaction():
    a.execute("INSERT INTO items VALUES (%s, %s, %s)", (800, "a", 1))
    try:
        with a.transaction():
            a.execute("INSERT INTO items VALUES (%s, %s, %s)", (800, "twice", 1))
    except psycopg.errors.UniqueViolation:
        pass
assert b.execute("SELECT count(*) FROM items WHERE id = 800").fetchone() == (1,)
with a.pipeline():
    cursors = [a.execute("SELECT %s::int", (n,)) for n in range(50)]
assert [c.fetchone()[0] for c in cursors] == list(range(50))
try:
    with a.pipeline():
        a.execute("INSERT INTO items VALUES (%s, %s, %s)", (801, "gone", 1))
        a.execute("SELECT 1 / %s", (0,))
except psycopg.errors.DivisionByZero:
    pass
assert a.execute("SELECT count(*) FROM items WHERE id = 801").fetchone() == (0,)
with b.cursor().copy("COPY items FROM STDIN") as copy:
    for n in range(900, 1000):
        copy.write_row((n, "copied", 1))
with a.cursor().copy("COPY (SELECT id FROM items WHERE id >= 900) TO STDOUT") as copy:
    assert len(list(copy.rows())) == 100
c = psycopg.connect(sys.argv[1])
c.execute("UPDATE items SET price = 3 WHERE id = 800")
c.commit()
c.execute("UPDATE items SET price = 4 WHERE id = 800")
c.rollback()
with c.cursor(name="named") as cursor:
    cursor.execute("SELECT id FROM items ORDER BY id")
    assert cursor.fetchmany(2) == [(1,), (2,)]
c.execute("PREPARE mine AS SELECT 2")
c.commit()
c.close()
d = psycopg.connect(sys.argv[1], autocommit=True)
d.execute("PREPARE mine AS SELECT 3")
assert d.execute("EXECUTE mine").fetchone() == (3,)
assert a.execute("SELECT price FROM items WHERE id = 800").fetchone()[0] == 3
b.close()
a.execute("DEALLOCATE ALL")
assert a.execute("SELECT 1", prepare=True).fetchone() == (1,)
"#;

#[test]
fn trap_8_prepared_statements_of_two_clients_do_not_meet() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    python(TWO_CLIENTS, &[&url]);
    assert_eq!(
        inside(&url, "SELECT count(*) FROM pg_prepared_statements"),
        "0",
        "none of a client that is gone"
    );
    shop.cli.ok("commit try");
    assert_eq!(
        shop.sql("SELECT count(*), max(price) FROM items WHERE id >= 800"),
        "101|3"
    );
    shop.assert_nothing_left();
}
