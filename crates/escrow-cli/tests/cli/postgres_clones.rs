//! PostgreSQL databases whose sandbox is a clone: rows and definitions are released into the original, and no clone stays.

use escrow_testkit::postgres::psql_command;

use crate::postgres::{Shop, changes, inside, refused};
use crate::*;

impl Shop {
    pub(crate) fn with_clones(two_phase: bool) -> Self {
        let shop = Self::new(two_phase);
        shop.declare_clones(&shop.server.url("postgres", "shop"));
        shop
    }

    /// Declares the directory, and the database at this URL, of which clones are made.
    pub(crate) fn declare_clones(&self, url: &str) {
        let text = format!(
            "resources: {{app: {{at: app}}, shop: {{type: postgres, at: '{url}', strategy: snapshot}}}}\n"
        );
        write(self.world.at("escrow.yaml"), text);
        self.cli.ok("trust escrow.yaml --yes");
    }

    /// A plan of the directory and of a clone of the database.
    pub(crate) fn clone_plan(&self, name: &str) -> String {
        self.cli
            .ok(["plan", "create", name, "-r", "app", "-r", "shop"]);
        self.url(name)
    }

    #[track_caller]
    pub(crate) fn assert_no_clone(&self) {
        assert_eq!(self.clones(), "0");
        self.assert_nothing_left();
    }

    fn clones(&self) -> String {
        let sql = "SELECT count(*) FROM pg_database WHERE datname LIKE 'escrow%'";
        self.server.sql("postgres", sql)
    }
}

#[test]
fn a_patch_hid_a_changed_function_that_the_digest_covers() {
    let shop = Shop::with_clones(true);
    let function = |body: &str| {
        let text = "CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE plpgsql AS";
        format!("{text} $$\nBEGIN\n  -- one\n  {body}\nEND\n$$")
    };
    shop.server.sql("shop", &function("RETURN 1;"));
    let url = shop.clone_plan("try");
    inside(&url, &function("RETURN 2;"));
    inside(&url, "CREATE INDEX by_name ON items (name)");
    for form in ["--patch", "--word-diff", "-r shop --patch"] {
        let patch = shop.cli.ok(format!("diff try {form}"));
        has(
            &patch,
            [
                "\n# -   RETURN 1;\n# +   RETURN 2;\n",
                "\n# + CREATE INDEX by_name ON ",
            ],
        );
    }
}

// rule C1, Q1, Q4, Q8
#[test]
fn rows_and_definitions_of_a_clone_are_released_with_the_files() {
    let shop = Shop::with_clones(true);
    let url = shop.clone_plan("try");
    put(&shop.cli, "try app a.txt", "uno\n");
    inside(
        &url,
        "UPDATE items SET price = 99 WHERE id = 3; DELETE FROM items WHERE id = 20; INSERT INTO loose VALUES (1, 'x'); \
         DELETE FROM loose WHERE a = 2; INSERT INTO orders (item) VALUES (3); CREATE TEMP TABLE own (a int)",
    );
    for sql in [
        "DROP DATABASE shop",
        "CREATE ROLE r",
        "SELECT 1; ALTER SYSTEM SET work_mem = 64",
    ] {
        has(&refused(&url, sql), ["reaches beyond the database"]);
    }
    assert_eq!(shop.items(), "20|315.0", "the original is as it was");
    let found = changes(&shop.cli, "try");
    assert_eq!(
        found[..2],
        ["deleted items/20", "updated items/3"],
        "{found:?}"
    );
    assert_eq!(found.len(), 6, "{found:?}");
    shop.cli.ok("commit try");
    assert_eq!(read(shop.world.at("app/a.txt")), "uno\n");
    assert_eq!(shop.items(), "19|379.5");
    let loose = shop.sql("SELECT * FROM loose ORDER BY 1");
    assert_eq!(loose, "1|x\n1|x\n1|x");
    // Trap 1: what the clone took from the sequence is not given again.
    let next = "INSERT INTO orders (item) VALUES (4) RETURNING id";
    assert_eq!(shop.sql(next), "2");
    assert_eq!(shop.clones(), "0");
    shop.assert_nothing_left();
    // A migration: new shapes, rows that go with them, and what is only possible once they are there.
    let url = shop.clone_plan("more");
    inside(
        &url,
        "ALTER TABLE items ADD stock int; UPDATE items SET stock = id * 2; ALTER TABLE items ALTER stock SET NOT NULL; \
         ALTER TABLE items ADD flag bool NOT NULL DEFAULT true, ADD note text DEFAULT 'it''s'; UPDATE items SET note = NULL WHERE id = 4; \
         ALTER TABLE items ALTER flag DROP DEFAULT; CREATE INDEX by_stock ON items (stock); DROP TABLE loose; \
         CREATE TABLE news (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item int REFERENCES items, t text UNIQUE); \
         INSERT INTO news (item, t) VALUES (1, 'it''s; -- new'); CREATE VIEW cheap AS SELECT id FROM items WHERE stock < 3; \
         CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT ';' $$; COMMENT ON TABLE orders IS 'it''s'",
    );
    let dump = |url: &str| {
        let mut dump = process_of("pg_dump");
        let text = output_of(dump.args(["--inserts", "-d", url]));
        let kept = |line: &&str| !line.starts_with("\\") && !line.contains("setval");
        // The rows of a table come in no order.
        let mut lines: Vec<String> = text.lines().filter(kept).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let wanted = dump(&url);
    let done = json(&shop.cli, "commit more");
    assert_eq!(done["resources"][1]["undoable"], false, "{done}");
    assert_eq!(dump(&shop.server.url("postgres", "shop")), wanted);
    let refused = shop.cli.run("undo more");
    has(&refused.stdout_text(), ["changed definitions"]);
    assert_eq!(refused.status, 4);
    assert_eq!(shop.clones(), "0");
    // Rows come back, where no other client changed them since.
    let url = shop.clone_plan("back");
    let all = "SELECT * FROM items ORDER BY id";
    let before = shop.sql(all);
    inside(
        &url,
        "DELETE FROM orders; DELETE FROM items WHERE id IN (4, 5); UPDATE items SET name = 'ours' WHERE id = 6; \
         INSERT INTO items (id, name, stock, flag) VALUES (40, 'new', 1, false)",
    );
    shop.cli.ok("commit back");
    shop.sql("UPDATE items SET name = 'theirs' WHERE id = 40");
    has(&shop.cli.run("undo back").stdout_text(), ["items/40"]);
    shop.sql("UPDATE items SET name = 'new' WHERE id = 40");
    shop.cli.ok("undo back");
    assert_eq!(shop.sql(all), before);
    assert_eq!(shop.sql("SELECT count(*) FROM orders"), "2");
    // The plan has a clone again, with these changes.
    assert_eq!(
        inside(&shop.url("back"), "SELECT name FROM items WHERE id = 40"),
        "new"
    );
    assert_eq!(
        inside(&shop.url("back"), "SELECT count(*) FROM orders"),
        "0"
    );
    shop.cli.ok("commit back");
    assert_eq!(shop.sql("SELECT name FROM items WHERE id = 6"), "ours");
    shop.cli.ok("undo back");
    assert_eq!(shop.sql(all), before);
    shop.cli.ok("cleanup back");
    shop.assert_nothing_left();
}

fn process_of(name: &str) -> std::process::Command {
    std::process::Command::new(escrow_testkit::postgres::program(name))
}

/// Triggers did in the clone what they do, and do it once; what one of them refuses is refused.
const AUDITED: &str = "CREATE TABLE audit (id serial PRIMARY KEY, what text); \
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    INSERT INTO audit (what) VALUES (TG_OP || coalesce(new.id, old.id)); RETURN NULL; END $$; \
    CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION note()";

// rule C15, Q2, Q3, Q8
#[test]
fn trap_17_and_18_a_clone_meets_what_others_did_meanwhile() {
    let shop = Shop::with_clones(true);
    // Trap 17: while a client is connected, the server clones nothing; it goes on undisturbed.
    let mut other = psql_command(&shop.server.url("postgres", "shop"));
    other
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut other = other.spawn().expect("psql starts");
    assert!(shop.server.becomes(
        "postgres",
        "SELECT count(*) FROM pg_stat_activity WHERE datname = 'shop' AND application_name = 'psql'",
        "1"
    ));
    shop.sql(AUDITED);
    let url = shop.clone_plan("try");
    assert!(
        other.try_wait().is_ok_and(|ended| ended.is_none()),
        "nobody was thrown out"
    );
    inside(
        &url,
        "UPDATE items SET name = 'ours' WHERE id IN (1, 2); UPDATE items SET price = 7 WHERE id = 5; DELETE FROM items WHERE id = 6",
    );
    shop.sql("ALTER TABLE items DISABLE TRIGGER noted; UPDATE items SET name = 'theirs' WHERE id IN (1, 3); \
         UPDATE items SET price = 7 WHERE id = 5; ALTER TABLE items ENABLE TRIGGER noted",
    );
    // Which rows, and no others: one that both made the same is none.
    let run = shop.cli.run("commit try");
    let said = run.stdout_text();
    assert_eq!(run.status, 4, "{said}");
    has(&said, ["items/1 "]);
    lacks(&said, ["items/2", "items/5"]);
    shop.cli.ok("commit try --on-conflict original");
    let rows = "SELECT id, name, price FROM items WHERE id IN (1, 2, 3, 5, 6) ORDER BY 1";
    let now = "1|theirs|1.5\n2|ours|3.0\n3|theirs|4.5\n5|item 5|7";
    assert_eq!(shop.sql(rows), now);
    // Trap 18: the triggers of the clone noted it, and those of the original did not do so again.
    let noted = "SELECT string_agg(what, ' ' ORDER BY id) FROM audit";
    assert_eq!(shop.sql(noted), "UPDATE1 UPDATE2 UPDATE5 DELETE6");
    let on = "SELECT tgenabled FROM pg_trigger WHERE tgname = 'noted'";
    assert_eq!(shop.sql(on), "O");
    drop(other.stdin.take());
    assert!(other.wait().is_ok());
    // What the original refuses is a conflict, and the work is still in the clone.
    let url = shop.clone_plan("late");
    inside(&url, "INSERT INTO orders (id, item) VALUES (100, 7)");
    shop.sql("DELETE FROM items WHERE id = 7");
    shop.cli.fails("commit late", 4);
    assert_eq!(changes(&shop.cli, "late"), ["inserted orders/100"]);
    inside(&url, "UPDATE orders SET item = 8 WHERE id = 100");
    shop.cli.ok("commit late");
    assert_eq!(shop.clones(), "0");
    shop.assert_nothing_left();
}

// rule R1, R2, Q8
#[test]
fn checkpoints_and_forks_are_further_clones_and_all_of_them_go() {
    let shop = Shop::with_clones(false);
    let made = shop
        .cli
        .run(["plan", "create", "try", "-r", "app", "-r", "shop"]);
    has(&made.stderr_text(), ["max_prepared_transactions"]);
    let url = shop.url("try");
    let name = "SELECT name FROM items WHERE id = 5";
    inside(&url, "UPDATE items SET name = 'one' WHERE id = 5");
    shop.cli.ok("checkpoint create try -m one");
    inside(
        &url,
        "UPDATE items SET name = 'two' WHERE id = 5; CREATE TABLE more (a int)",
    );
    let since = json(&shop.cli, "diff try --since one");
    assert_eq!(list(&since["resources"][1]["changes"]).len(), 2, "{since}");
    shop.cli.ok("plan fork try other --at one");
    shop.cli.ok("restore try one");
    assert_eq!(inside(&url, name), "one");
    assert_eq!(inside(&url, "SELECT to_regclass('more')"), "");
    assert_eq!(inside(&shop.url("other"), name), "one");
    // A command inside reaches the clone, by several connections, and nothing else.
    let work = format!(
        "'{0}' -XAtqc \"UPDATE items SET name = 'three' WHERE id = 5\" & '{0}' -XAtqd \"$DATABASE_URL\" -c 'SELECT 1' & wait; \
         '{0}' -XAtqd postgres -c 'SELECT 1'",
        escrow_testkit::postgres::program("psql").display()
    );
    let run = shop
        .cli
        .run(["run", "--plan", "other", "--", "sh", "-c", &work]);
    has(&run.stderr_text(), ["is not in this sandbox"]);
    assert_eq!(inside(&shop.url("other"), name), "three");
    // The process that passes clients on keeps nothing: it is started again.
    sh(shop.world.path(), "rm -rf home/sandboxes/*/control");
    assert_eq!(
        shop.cli
            .ok(["sql", "other", "shop", name])
            .matches("three")
            .count(),
        1
    );
    // One of another owner with such a name is not ours.
    let own =
        "SELECT datname FROM pg_database WHERE datname LIKE 'escrow%base' ORDER BY oid LIMIT 1";
    let own = shop.server.sql("postgres", own);
    let foreign = own.replace("_base", "_c9");
    shop.server
        .sql("postgres", &format!("CREATE DATABASE {foreign}"));
    let comment = format!("COMMENT ON DATABASE {foreign} IS 'mine'");
    shop.server.sql("postgres", &comment);
    shop.cli.ok("rollback try --yes");
    assert_eq!(inside(&url, name), "item 5");
    shop.cli.ok("commit other");
    assert_eq!(shop.sql(name), "three");
    shop.cli.ok("cleanup try --yes");
    assert_eq!(shop.clones(), "1");
    shop.server
        .sql("postgres", &format!("DROP DATABASE {foreign}"));
    shop.assert_nothing_left();
    // All of it as an ordinary user.
    shop.world.chown_to_user();
    let user = shop.cli.clone().user();
    user.ok(["plan", "create", "own", "-r", "app", "-r", "shop"]);
    user.ok([
        "sql",
        "own",
        "shop",
        "UPDATE items SET name = 'mine' WHERE id = 5",
    ]);
    user.ok("commit own");
    assert_eq!(shop.sql(name), "mine");
    assert_eq!(shop.clones(), "0");
    // A role that may create none is told so at once.
    shop.server.sql("postgres", "CREATE ROLE poor LOGIN");
    let poor = shop.server.url("poor", "shop");
    let line = [
        "plan",
        "create",
        "no",
        "--strategy",
        "snapshot",
        "-r",
        &poor,
    ];
    has(&user.run(line).stderr_text(), ["CREATEDB"]);
}
