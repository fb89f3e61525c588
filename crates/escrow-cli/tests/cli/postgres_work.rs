//! Work in a sandbox of a PostgreSQL database from the command line: checkpoints, statements, tables and rows.

use escrow_testkit::postgres::PASSWORD;

use crate::postgres::{Shop, changes, inside};
use crate::postgres_exchanges::python;
use crate::sqlite_clients::{AFTER, CHECK, Django, MIGRATE};
use crate::*;

/// Checkpoints are savepoints, one inside the other: a return drops what came after it, which is said before, and goes last, when nothing
/// else can fail.
// rule R1, R3
#[test]
fn a_return_to_a_checkpoint_drops_the_later_ones_and_says_so() {
    need!(require_stepper());
    let shop = Shop::new(true);
    let url = shop.plan_both("try");
    let work = |number: u32| {
        put(&shop.cli, "try app a.txt", format!("{number}\n"));
        inside(&url, &format!("UPDATE items SET price = {number}"));
    };
    work(1);
    let said = shop.cli.run("checkpoint create try -m one");
    assert_eq!(said.status, 0, "{}", said.stderr_text());
    has(
        &said.stderr_text(),
        ["cannot be taken back", "drops those after it", "shop"],
    );
    work(2);
    inside(&url, "CREATE TABLE t (a int); INSERT INTO t VALUES (1)");
    shop.cli.ok("checkpoint create try -m two");
    work(3);
    has(&shop.cli.ok("status"), ["with 2 checkpoints"]);
    let done = json(&shop.cli, "restore try two");
    assert_eq!(done["before"], Value::Null, "{done}");
    assert_eq!(
        inside(&url, "SELECT sum(price), count(*) FROM items, t"),
        "40|20"
    );
    assert_eq!(shop.cli.ok("read try app a.txt"), "2\n");
    shop.cli.ok("restore try one");
    assert_eq!(inside(&url, "SELECT sum(price) FROM items"), "20");
    assert_eq!(shop.cli.ok("read try app a.txt"), "1\n");
    let list = json(&shop.cli, "checkpoint list try");
    assert_eq!(list_of(&list["checkpoints"]), ["one"], "{list}");
    shop.cli.fails("restore try two", 1);
    // Killed anywhere, all members are at the checkpoint, or none.
    let mut at = 1;
    loop {
        work(4);
        let run = shop.cli.stepper("restore try one").fault(at, Fault::Kill);
        shop.cli.ok("recover");
        let file = shop.cli.ok("read try app a.txt");
        let price = inside(&url, "SELECT max(price) FROM items");
        assert_eq!(file.trim_end(), price, "killed at call {at}");
        // No checkpoint is left to which only one of them could return.
        let left = json(&shop.cli, "checkpoint list try");
        let reason = |one: &Value| one["reason"].as_str().unwrap_or("").to_owned();
        let left = left["checkpoints"].as_array().expect("a list");
        let mut reasons: Vec<String> = left.iter().map(reason).collect();
        if price == "4" {
            reasons.retain(|reason| reason != "before_recovery");
        }
        assert_eq!(reasons, [""], "killed at call {at}");
        if run.hit.is_none() {
            assert!(at > 40, "only {at} calls were reached");
            break;
        }
        at += 17;
    }
    assert_eq!(inside(&url, "SELECT max(price) FROM items"), "1");
    has(&shop.cli.fails("plan fork try", 1), ["cannot be forked"]);
    // Deleting the newest releases its savepoint, and there are never many: more than 64 slow the whole server down.
    for number in 2..=32 {
        inside(&url, "SELECT 1");
        shop.cli.ok(format!("checkpoint create try -m c{number}"));
    }
    inside(&url, "SELECT 1");
    has(
        &shop.cli.fails("checkpoint create try", 1),
        ["32 already", "slow"],
    );
    shop.cli.ok("checkpoint delete try c32");
    shop.cli.ok("checkpoint create try -m last");
    assert_eq!(changes(&shop.cli, "try").len(), 20);
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "20|20");
    assert_eq!(read(shop.world.at("app/a.txt")), "1\n");
    shop.assert_nothing_left();
    // With the transaction the checkpoints are gone.
    let url = shop.plan("more");
    inside(&url, "UPDATE items SET price = 5");
    shop.cli.ok("checkpoint create more -m five");
    shop.cli.ok("rollback more");
    has(&shop.cli.fails("restore more five", 4), ["savepoint"]);
    assert_eq!(inside(&url, "SELECT sum(price) FROM items"), "20");
}

fn list_of(checkpoints: &Value) -> Vec<String> {
    let label = |one: &Value| one["label"].as_str().unwrap_or("").to_owned();
    list(checkpoints).iter().map(label).collect()
}

#[test]
fn statements_tables_and_rows_from_the_command_line() {
    let shop = Shop::new(true);
    shop.sql("CREATE TABLE kinds (a text, b int, j jsonb, n numeric, y bytea, t timestamptz, l int[], g int GENERATED ALWAYS AS (b * 2) STORED, \
         PRIMARY KEY (a, b)); \
         INSERT INTO kinds VALUES ('it''s', 1, '{\"k\": [1]}', 1.50, '\\x00ff', '2020-01-02 03:04:05Z', '{1,2}')",
    );
    let url = shop.plan("try");
    let sql = |statement: &str| {
        let said = shop.cli.run(["sql", "try", "shop", statement]);
        assert_eq!(said.status, 0, "{}", said.stderr_text());
        serde_json::from_slice::<Value>(&said.stdout).expect("a document")
    };
    assert_eq!(sql("UPDATE items SET price = 2 WHERE id < 3")["changed"], 2);
    let found = sql(
        "SELECT id, price, name, price > 1 AS dear, y, j, NULL AS no FROM items, kinds WHERE id = 1;",
    );
    let wanted = serde_json::json!([{"id": 1, "price": 2, "name": "item 1", "dear": true, "y": {"$blob": "00ff"}, "j": {"k": [1]}, "no": null}]);
    assert_eq!(found["rows"], wanted, "{found}");
    let fails = |statement: &str, wanted: &str| {
        has(
            &shop.cli.fails(["sql", "try", "shop", statement], 1),
            [wanted],
        );
    };
    fails("SELEC 1", "syntax error");
    fails("SELECT 1; DELETE FROM items", "one statement at a time");
    fails("BEGIN", "it would end with the command");
    fails("VACUUM", "25001");
    fails("COPY items TO STDOUT", "a copy is for a client");
    assert_eq!(inside(&url, "SELECT count(*) FROM items"), "20");
    // What is read can be written.
    let read = |path: &str| shop.cli.ok(["read", "try", "shop", path]);
    let kinds = read("kinds");
    put(&shop.cli, "try shop kinds", &kinds);
    assert_eq!(read("kinds"), kinds);
    assert_eq!(read("kinds/'it''s',1"), kinds);
    assert!(
        !changes(&shop.cli, "try")
            .iter()
            .any(|one| one.contains("kinds"))
    );
    let five = "{\"id\": 5, \"name\": \"five\"}";
    put(&shop.cli, "try shop items/5", five);
    assert_eq!(
        read("items/5"),
        "{\"id\":5,\"name\":\"five\",\"price\":7.5}\n"
    );
    let fifty = "{\"id\": 50, \"price\": 1}";
    put(&shop.cli, "try shop items/50", fifty);
    for (path, line) in [
        ("items", "not json"),
        ("items", "{\"nothing\": 1}"),
        ("items/5", "{\"id\": 6}"),
        ("items/5", "{\"id\": 7, \"name\": \"x\"}\n{\"id\": 8}"),
        ("items", "{\"id\": 1}\n{\"id\": 1}"),
        ("nothing", "{\"id\": 1}"),
    ] {
        let said = shop
            .cli
            .clone()
            .stdin(line)
            .run(["write", "try", "shop", path]);
        assert_ne!(said.status, 0, "{path} {line}");
    }
    shop.cli.fails(["read", "try", "shop", "items/x"], 1);
    shop.cli.fails(["read", "try", "shop", "items/99"], 1);
    let found = changes(&shop.cli, "try");
    let wanted = [
        "updated items/1",
        "updated items/2",
        "updated items/5",
        "inserted items/50",
    ];
    assert_eq!(found, wanted);
    shop.cli.ok("commit try");
    assert_eq!(shop.items(), "21|315.5");
    shop.assert_nothing_left();
}

#[test]
fn exact_numbers_beside_bytes_were_rounded_when_a_row_was_written() {
    let shop = Shop::new(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE exact (id int PRIMARY KEY, n numeric, b bytea, j json)",
    );
    let url = shop.plan("try");
    let row = |id: u32, number: &str| {
        format!(
            "{{\"id\":{id},\"n\":{number},\"b\":{{\"$blob\":\"00\"}},\"j\":{{\"x\":1.50,\"x\":2}}}}\n"
        )
    };
    let numbers = [
        "123456789012345678901234567890.12",
        "0.1000000000000000055511151231257827",
    ];
    let write = |path: &str, text: &str| {
        let cli = shop.cli.clone().stdin(text);
        cli.ok(["write", "try", "shop", path]);
    };
    write("exact", &(row(1, numbers[0]) + &row(2, "1")));
    write("exact/2", &row(2, numbers[1]));
    write("exact/3", &row(3, numbers[1]));
    for (id, number) in [(1, numbers[0]), (2, numbers[1]), (3, numbers[1])] {
        let sql = format!("SELECT n, b, j FROM exact WHERE id = {id}");
        let wanted = format!("{number}|\\x00|{{\"x\":1.50,\"x\":2}}");
        assert_eq!(inside(&url, &sql), wanted);
    }
    let statement = "SELECT 1 AS a, 2 AS a";
    let said = shop.cli.ok(["sql", "try", "shop", statement]);
    let found: Value = serde_json::from_str(&said).expect("a document");
    assert_eq!(found["rows"], serde_json::json!([{"a": 1, "a_2": 2}]));
}

/// A table was emptied and filled again, so that what refers to its rows went with them.
// rule Q2
#[test]
fn a_table_that_was_written_took_rows_of_other_tables_along() {
    let shop = Shop::new(true);
    shop.server.sql(
        "shop",
        "CREATE TABLE p (a int, b text, id int, v json, n numeric DEFAULT 7, d int GENERATED ALWAYS AS (a * 2) STORED, \
         \"o\" text UNIQUE, PRIMARY KEY (b, a)); INSERT INTO p (a, b, v, n, \"o\") VALUES (1, 'x', '{\"k\": 1}', 1.50, 'one'), (2, 'y', NULL, 2, 'two'), \
         (3, 'z', NULL, 3, 'three'); \
         CREATE TABLE c (id int, a int, b text, FOREIGN KEY (b, a) REFERENCES p ON DELETE CASCADE); \
         INSERT INTO c VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z'); \
         CREATE TABLE tree (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE); \
         INSERT INTO tree (up) VALUES (NULL), (1); CREATE TABLE leaf (t int REFERENCES tree ON DELETE CASCADE); INSERT INTO leaf VALUES (2); \
         CREATE TABLE beside (a int PRIMARY KEY, id int GENERATED ALWAYS AS IDENTITY); INSERT INTO beside VALUES (1)",
    );
    let url = shop.plan("try");
    let read = |path: &str| shop.cli.ok(["read", "try", "shop", path]);
    for table in ["p", "tree", "beside"] {
        put(&shop.cli, &format!("try shop {table}"), read(table));
    }
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    // One is changed, one goes, one comes and has what that had; what is not given is the default.
    put(
        &shop.cli,
        "try shop p",
        "{\"a\": 4, \"b\": \"y\", \"o\": \"two\"}\n{\"a\": 1, \"b\": \"x\", \"id\": 1, \"v\": null, \"n\": 1.5, \"o\": \"one\"}\n\
         {\"a\": 3, \"b\": \"z\", \"o\": \"three\", \"id\": 3, \"v\": null}\n",
    );
    let all = "SELECT string_agg(concat_ws(' ', a, b, n, d, o), ', ' ORDER BY a) FROM p";
    assert_eq!(
        inside(&url, all),
        "1 x 1.5 2 one, 3 z 7 6 three, 4 y 7 8 two"
    );
    let left = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM c";
    assert_eq!(inside(&url, left), "1 3");
    put(&shop.cli, "try shop tree", "{\"id\": 2}");
    assert_eq!(inside(&url, "SELECT id, up, t FROM tree, leaf"), "2||2");
    let twice = "{\"id\": 2}\n{\"id\": \"2\"}";
    let cli = shop.cli.clone().stdin(twice);
    let said = cli.fails(["write", "try", "shop", "tree"], 2);
    has(&said, ["the same key"]);
    put(&shop.cli, "try shop tree", "");
    assert_eq!(inside(&url, "SELECT count(*) FROM tree"), "0");
    shop.cli.ok("cleanup try --yes");
}

/// What a row takes from one that goes, or refers to in one that comes, and a domain that may not be empty, kept a table from being written.
// rule Q4
#[test]
fn a_table_was_written_in_one_order_only() {
    let shop = Shop::new(true);
    shop.server.sql(
        "shop",
        "CREATE DOMAIN \"full\" AS text NOT NULL; CREATE TABLE o (id int PRIMARY KEY, u int UNIQUE, up int REFERENCES o ON DELETE CASCADE, t \"full\"); \
         INSERT INTO o VALUES (1, 1, NULL, 'a'), (2, 2, NULL, 'b'), (3, 3, NULL, 'c'); \
         CREATE TABLE of_o (o int REFERENCES o ON DELETE CASCADE); INSERT INTO of_o VALUES (2), (3)",
    );
    let url = shop.plan("try");
    let all = "SELECT string_agg(concat_ws(' ', id, u, up, t), ', ' ORDER BY id), (SELECT count(*) FROM of_o) FROM o";
    put(
        &shop.cli,
        "try shop o",
        "{\"id\": 2, \"u\": 1, \"t\": \"b\"}\n{\"id\": 3, \"u\": 3, \"up\": 2, \"t\": \"c\"}",
    );
    // What stays went with no other.
    assert_eq!(inside(&url, all), "2 1 b, 3 3 2 c|2");
    put(
        &shop.cli,
        "try shop o",
        "{\"id\": 2, \"u\": 1, \"up\": 9, \"t\": \"b\"}\n{\"id\": 3, \"u\": 3, \"t\": \"c\"}\n{\"id\": 9, \"u\": 9, \"t\": \"i\"}",
    );
    assert_eq!(inside(&url, all), "2 1 9 b, 3 3 c, 9 9 i|2");
    let exchanged = "{\"id\": 2, \"u\": 3, \"t\": \"b\"}\n{\"id\": 3, \"u\": 1, \"t\": \"c\"}";
    let cli = shop.cli.clone().stdin(exchanged);
    has(&cli.fails("write try shop o", 1), ["unique"]);
    let cli = shop.cli.clone().stdin("{\"id\": 2, \"t\": null}");
    has(&cli.fails("write try shop o", 1), ["null values"]);
    assert_eq!(inside(&url, all), "2 1 9 b, 3 3 c, 9 9 i|2");
    // What is given is there, or nothing is written.
    inside(
        &url,
        "CREATE TABLE s (id int PRIMARY KEY, up int REFERENCES s ON DELETE SET NULL, j jsonb); INSERT INTO s VALUES (1, NULL), (2, 1)",
    );
    put(
        &shop.cli,
        "try shop s",
        "{\"id\": 1}\n{\"id\": 2, \"up\": 1, \"j\": {\"$blob\": \"ff\"}}",
    );
    let cli = shop.cli.clone().stdin("{\"id\": 2, \"up\": 1}");
    has(&cli.fails("write try shop s", 1), ["foreign key"]);
    let there = "SELECT up, j FROM s WHERE id = 2";
    assert_eq!(inside(&url, there), "1|{\"$blob\": \"ff\"}");
    shop.cli.ok("cleanup try --yes");
}

/// JSON that changes when it is read is given as a text.
// rule Q4
#[test]
fn json_of_a_statement_lost_digits_and_names() {
    let shop = Shop::new(true);
    shop.plan("try");
    let statement = "SELECT '{\"a\": [12345678901234567890.123, 1.50], \"b:\\\"\": 1}'::json AS big, '{\"x\": 1, \"x\": 2}'::json AS twice, \
         '{\"k,\": [1, -2.5, {\"n\": null}], \"a\": \"é: 1.50 \\\" [\"}'::jsonb AS fine";
    let said = shop.cli.ok(["sql", "try", "shop", statement]);
    let found: Value = serde_json::from_str(&said).expect("a document");
    let wanted = serde_json::json!([{
        "big": "{\"a\": [12345678901234567890.123, 1.50], \"b:\\\"\": 1}",
        "twice": "{\"x\": 1, \"x\": 2}",
        "fine": {"k,": [1, -2.5, {"n": null}], "a": "é: 1.50 \" ["},
    }]);
    assert_eq!(found["rows"], wanted);
    shop.cli.ok("cleanup try --yes");
}

/// asyncpg, which prepares everything on the server and reads types from the catalogs, and SQLAlchemy over it with its ORM, its pool and
/// its savepoints.
#[test]
fn asyncpg_and_sqlalchemy_work_unchanged() {
    let shop = Shop::new(true);
    let url = shop.plan("try");
    let script = r#"
import asyncio, sys, urllib.parse
import asyncpg
from sqlalchemy import Column, ForeignKey, Integer, String, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import declarative_base, relationship, selectinload

query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(sys.argv[1]).query))
where = dict(host=query["host"], user=query["user"], database="shop")
Base = declarative_base()

class Author(Base):
    __tablename__ = "author"
    id = Column(Integer, primary_key=True)
    name = Column(String, unique=True)
    books = relationship("Book")

class Book(Base):
    __tablename__ = "book"
    id = Column(Integer, primary_key=True)
    author_id = Column(ForeignKey("author.id"))

async def plain():
    a, b = await asyncpg.connect(**where), await asyncpg.connect(**where)
    assert await a.fetchval("SELECT $1::int + 1", 1) == 2
    assert await b.fetchval("SELECT $1::text || 'b'", "x") == "xb"
    async with a.transaction():
        await a.execute("INSERT INTO items VALUES ($1, $2, $3)", 800, "a", 1)
        try:
            async with a.transaction():
                await a.execute("INSERT INTO items VALUES ($1, $2, $3)", 800, "twice", 1)
        except asyncpg.UniqueViolationError:
            pass
        rows = [row["id"] async for row in a.cursor("SELECT id FROM items ORDER BY id LIMIT 3")]
        assert rows == [1, 2, 3]
    assert await b.fetchval("SELECT count(*) FROM items WHERE id = 800") == 1
    await b.executemany("INSERT INTO items VALUES ($1, 'many', 1)", [(n,) for n in range(801, 810)])
    await b.copy_records_to_table("items", records=[(n, "copied", 1) for n in range(810, 820)])
    pool = await asyncpg.create_pool(min_size=2, max_size=4, **where)
    sums = await asyncio.gather(*(pool.fetchval("SELECT count(*) FROM items WHERE id >= 800") for _ in range(8)))
    assert sums == [20] * 8, sums
    await pool.close()
    await a.close()
    await b.close()

async def orm():
    engine = create_async_engine("postgresql+asyncpg:///shop", connect_args=where)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        session.add_all([Author(name=f"author {n}", books=[Book(), Book()]) for n in range(5)])
        await session.commit()
        try:
            async with session.begin_nested():
                session.add(Author(name="author 1"))
        except IntegrityError:
            pass
        session.add(Author(name="one more"))
        await session.commit()
        found = (await session.execute(select(Author).options(selectinload(Author.books)).order_by(Author.id))).scalars().all()
        assert [len(one.books) for one in found] == [2] * 5 + [0]
        assert (await session.execute(select(func.count()).select_from(Book))).scalar() == 10
    await engine.dispose()

asyncio.run(plain())
asyncio.run(orm())
"#;
    python(script, &[&url]);
    shop.cli.ok("commit try");
    let count = "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM author), (SELECT count(*) FROM book)";
    assert_eq!(shop.sql(count), "40|6|10");
    shop.assert_nothing_left();
}

/// Django's migrations and its ORM, in a command of the plan that holds the application's files too.
// rule C1, Q2
#[test]
fn django_migrates_in_the_transaction_and_its_files_are_released_with_it() {
    let shop = Shop::new(true);
    let app = shop.world.at("app");
    let engine = "'ENGINE': 'django.db.backends.postgresql', 'NAME': 'shop', 'USER': 'postgres'";
    let django = Django::new(&app, engine, shop.server.socket());
    let url = shop.plan_both("try");
    put(&shop.cli, "try app shop/models.py", AFTER);
    let work = format!(
        "from django.db import IntegrityError, connection, transaction
{MIGRATE}; models.Item.objects.filter(name='a').update(price=7); models.Item.objects.get(name='b').delete()
i = models.Item.objects.create(name='d'); models.Order.objects.create(item=i)
# No check of what was committed is pending, which would keep the next migration from its tables.
connection.cursor().execute('ALTER TABLE shop_order ALTER item_id SET NOT NULL')
with transaction.atomic():
    try:
        with transaction.atomic(): models.Item.objects.create(name='d')
    except IntegrityError: models.Item.objects.create(name='e', price=1)"
    );
    django.run_inside(&shop.cli, &work);
    // A table that a migration altered is locked for all others until the commit.
    let known = "SELECT count(*) FROM django_migrations";
    assert_eq!(shop.sql(known), "1", "nothing reached the original");
    // `\watch` repeats a statement until it is interrupted.
    let mut watch = Command::new("timeout");
    watch.args(["--signal=INT", "2", "psql", "-XAtq", "-d", &url]);
    let watch = watch.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut watch = watch.spawn().expect("psql runs");
    let said = b"SELECT 'seen ' || count(*) FROM shop_item \\watch 0.2\n";
    let mut to = watch.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut to, said).expect("psql reads");
    drop(to);
    let seen = watch.wait_with_output().expect("it ends");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen.matches("seen 4").count() > 1, "{seen}");
    shop.cli.ok("commit try");
    assert_eq!(django.run(CHECK), "a c d e\n");
    let sums = "SELECT (SELECT sum(price) FROM shop_item), (SELECT count(*) FROM shop_order)";
    assert_eq!(shop.sql(sums), "18|1");
    shop.assert_nothing_left();
}

/// As libpq means it: which links are encrypted, which certificates are believed, and what is said where they are not.
// rule Q6
#[test]
fn the_link_to_a_server_is_encrypted_as_sslmode_says() {
    let mut shop = Shop::new(true);
    let port = shop.server.encrypt();
    let dir = shop.server.socket();
    let file = |name: &str| dir.join(name).display().to_string();
    shop.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO app");
    let pass = shop.world.at("pass");
    write(&pass, format!("*:*:shop:app:{PASSWORD}\n"));
    chmod(&pass, 0o600);
    let cli = shop.cli.clone().env("PGPASSFILE", &pass);
    let url = |user: &str, host: &str, rest: &str| {
        format!("postgresql://{user}@{host}:{port}/shop?{rest}")
    };
    let own = format!("sslrootcert={}", file("server.crt"));
    let other = format!("sslrootcert={}", file("client.crt"));
    for (host, rest, said) in [
        (
            "localhost",
            "sslmode=disable".to_owned(),
            "no pg_hba.conf entry",
        ),
        (
            "localhost",
            "sslmode=verify-ca".to_owned(),
            "set sslrootcert",
        ),
        (
            "localhost",
            format!("sslmode=verify-ca&{other}"),
            "signed the server's",
        ),
        (
            "localhost",
            format!("sslmode=require&{other}"),
            "signed the server's",
        ),
        (
            "127.0.0.1",
            format!("sslmode=verify-full&{own}"),
            "of another host",
        ),
        (
            "localhost",
            "channel_binding=require".to_owned(),
            "not supported",
        ),
        (
            "localhost",
            "sslmode=require&sslrootcert=near".to_owned(),
            "absolute",
        ),
    ] {
        let url = url("app", host, &rest);
        let create = ["plan", "create", "no", "--resource", url.as_str()];
        has(&cli.fails(create, 1), [said]);
    }
    let key = format!(
        "sslcert={}&sslkey={}",
        file("client.crt"),
        file("client.key")
    );
    for (user, host, rest) in [
        ("app", "localhost", String::new()),
        ("app", "localhost", "sslmode=allow".to_owned()),
        ("app", "127.0.0.1", format!("sslmode=verify-ca&{own}")),
        ("postgres", "localhost", format!("sslmode=require&{key}")),
        ("app", "localhost", format!("sslmode=verify-full&{own}")),
    ] {
        let url = url(user, host, &rest);
        cli.ok(["plan", "create", "try", "--resource", url.as_str()]);
        let inner = cli.ok("path try shop").trim_end().to_owned();
        let ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(inside(&inner, ssl), "t", "{rest}");
        // More than any buffer on the way, both ways.
        if user == "app" && rest.is_empty() {
            let much = "SELECT sum(length(line)) FROM (SELECT repeat('x', 100) || g AS line FROM generate_series(1, 100000) g) s";
            let lines: String = (1..=100_000)
                .map(|g| format!("1\t{}{g}\n", "x".repeat(100)))
                .collect();
            write(shop.world.at("lines"), lines);
            let copy = format!("\\copy loose from '{}'", shop.world.at("lines").display());
            inside(&inner, &copy);
            let sum = "SELECT sum(length(b)) FROM loose WHERE length(b) > 100";
            assert_eq!(inside(&inner, sum), inside(&inner, much));
            let all = inside(
                &inner,
                "COPY (SELECT b FROM loose WHERE length(b) > 100) TO STDOUT",
            );
            assert_eq!(all.lines().count(), 100_000);
            cli.ok("rollback try");
        }
        inside(&inner, "UPDATE items SET price = price + 1 WHERE id = 1");
        cli.ok("commit try");
    }
    assert_eq!(shop.items(), "20|320.0");
    chmod(file("client.key"), 0o644);
    let url = url("postgres", "localhost", &format!("sslmode=require&{key}"));
    let create = ["plan", "create", "no", "--resource", url.as_str()];
    has(&cli.fails(create, 1), ["chmod 600"]);
    shop.assert_nothing_left();
}

/// Without isolation clients reach the database itself, through the same variables; nothing is claimed, and nothing of ours stays.
// rule C10, Q1, Q6, Q8
#[test]
fn a_database_that_nothing_isolates_is_the_database_itself() {
    let shop = Shop::new(false);
    let url = shop.server.url("postgres", "shop");
    let text = format!(
        "resources: {{app: {{at: app}}, shop: {{type: postgres, at: '{url}', strategy: none}}}}\n"
    );
    write(shop.world.at("escrow.yaml"), text);
    shop.cli.ok("trust escrow.yaml --yes");
    let made = shop.cli.ok("--json plan create try -r app -r shop");
    has(&made, ["every statement changes the original at once"]);
    let url = shop.url("try");
    inside(&url, "UPDATE items SET price = 99 WHERE id = 3");
    inside(&url, "CREATE DATABASE other");
    let statement = "DELETE FROM items WHERE id = 20";
    shop.cli.ok(["sql", "try", "shop", statement]);
    let script = "psql -XAtqc 'DELETE FROM items WHERE id = 19' \"$DATABASE_URL\"";
    let line = ["run", "--plan", "try", "--", "sh", "-c", script];
    shop.cli.ok(line);
    let there = || {
        let sql = "SELECT count(*), max(price) FROM items WHERE id IN (3, 19, 20)";
        shop.sql(sql)
    };
    assert_eq!(there(), "1|99");
    assert_eq!(shop.server.sql("other", "SELECT 1"), "1");
    assert_eq!(changes(&shop.cli, "try"), [""; 0]);
    // What is isolated beside it goes back, and is kept; of the database that is said.
    for line in ["checkpoint create try", "rollback try"] {
        let said = shop.cli.expect(line, 0);
        has(&(said.stdout_text() + &said.stderr_text()), ["shop"]);
    }
    assert_eq!(there(), "1|99");
    shop.cli.ok("commit try");
    has(&shop.cli.fails("undo try", 1), ["already in the original"]);
    assert_eq!(there(), "1|99");
    shop.cli.ok("cleanup try");
    shop.assert_nothing_left();
}
