//! SQLite databases that lie in directories and checkouts: as plain files, and as resources of their own.

use crate::sqlite::{ORDERS, Waiting, conflicts, dump, sql, talk};
use crate::*;

/// A program that has a database open, and writes a row when it is told to end.
const OPENS: &str = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM orders').fetchall(); print('open', flush=True)
sys.stdin.read(); c.execute(\"INSERT INTO orders (status) VALUES ('late')\"); c.commit(); c.close()";

/// A program that writes rows with the statement that it is given, and is ended at once: they are in what lies beside the database.
const KILLED: &str = "import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA cache_spill = 1'); c.execute(sys.argv[2])
{}; os._exit(0)";

/// Has rows written by a program that is killed: after its commit in WAL mode, else in the middle of it.
#[track_caller]
fn killed(at: &Path, statement: &str) {
    let wal = sql(at, "PRAGMA journal_mode") == "wal";
    let script = match wal {
        true => "c.commit()",
        false => {
            "c.execute('PRAGMA cache_size = 1'); c.execute('WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT 5000) INSERT INTO orders (status) SELECT hex(zeroblob(50)) FROM n')"
        }
    };
    let mut python = Command::new("python3");
    python.args(["-c", &KILLED.replace("{}", script)]);
    output_of(python.arg(at).arg(statement));
    let left = if wal { "-wal" } else { "-journal" };
    let mut beside = at.as_os_str().to_owned();
    beside.push(left);
    assert!(fs::metadata(beside).expect("it is left").len() > 0);
}

/// A world with a directory `app` in which a database lies, and no plan.
fn world() -> (World, Cli, PathBuf) {
    let world = World::new();
    let at = world.dir("app/data").join("shop.db");
    let cli = Cli::new(&world, &binary());
    sql(&at, ORDERS);
    (world, cli, at)
}

/// The program went on with the file that a commit had replaced, and every row that it wrote was lost.
// rule Q5, C15
#[test]
fn a_database_that_a_program_had_open_was_replaced_as_a_file() {
    for mode in ["delete", "wal"] {
        let (world, cli, at) = world();
        sql(&at, &format!("PRAGMA journal_mode = {mode}"));
        cli.ok("plan create try --resource app --strategy filesystem_copy");
        let inside = PathBuf::from(cli.ok("path try app data/shop.db").trim_end());
        sql(&inside, "UPDATE orders SET status = 'ours' WHERE id = 1");
        let before = dump(&at);
        let program = Waiting::new(OPENS, &at);
        let found = conflicts(&cli);
        assert_eq!(found.len(), 1, "{found:?}");
        let (path, what) = &found[0];
        assert!(path == "data/shop.db" && what.contains("has this SQLite database open"));
        assert_eq!(cli.run("commit try --on-conflict sandbox").status, 4);
        assert_eq!(dump(&at), before);
        program.end();
        assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "4");
        // What it wrote is a change as any other.
        assert_eq!(conflicts(&cli).len(), 1);
        cli.ok("rollback try");
        sql(&inside, "DELETE FROM orders WHERE id < 4");
        cli.ok("commit try");
        assert_eq!(sql(&at, "SELECT status FROM orders"), "late");

        // An undo replaces it too.
        let program = Waiting::new(OPENS, &at);
        let refused = cli.run("undo try");
        let said = talk(&refused);
        assert_eq!(refused.status, 4, "{said}");
        assert!(said.contains("has this SQLite database open"), "{said}");
        assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "1");
        program.end();
        drop(world);
    }
}

/// A journal that comes beside a database in use would be rolled back into it.
// rule Q5
#[test]
fn a_journal_came_beside_a_database_that_a_program_had_open() {
    for name in ["shop.db-journal", "shop.db-wal"] {
        let (_world, cli, at) = world();
        cli.ok("plan create try --resource app --strategy filesystem_copy");
        let inside = PathBuf::from(cli.ok("path try app data").trim_end());
        fs::write(inside.join(name), [7; 4096]).expect("there is room");
        let program = Waiting::new(OPENS, &at);
        let found = conflicts(&cli);
        assert_eq!(found[0].0, format!("data/{name}"));
        assert!(!at.with_file_name(name).exists());
        program.end();
        assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
    }
}

/// What a killed program left beside a database was mixed with the one that came in its place, by a commit and by an undo.
// rule Q5, C1, C15
#[test]
fn what_a_killed_program_left_was_mixed_with_another_version() {
    let more = "UPDATE orders SET status = 'theirs'";
    for mode in ["wal", "delete"] {
        for strategy in ["filesystem_copy", "overlay"] {
            let (_world, cli, at) = world();
            sql(&at, &format!("PRAGMA journal_mode = {mode}"));
            cli.ok(format!(
                "plan create try --resource app --strategy {strategy}"
            ));
            let statement = "DELETE FROM orders WHERE id = 1";
            let path = at.to_str().expect("a plain path");
            cli.ok(["run", "--plan", "try", "--", "sqlite3", path, statement].as_slice());
            killed(&at, more);
            let seen = |at: &Path| {
                let file = |end: &str| {
                    let mut file = at.as_os_str().to_owned();
                    file.push(end);
                    fs::read(file).ok()
                };
                ["", "-wal", "-journal"].map(file)
            };
            let before = seen(&at);
            assert_eq!(conflicts(&cli)[0].0, "data/shop.db");
            // No side can be taken before it is known what the original holds.
            let refused = cli.run("commit try --on-conflict sandbox");
            let said = talk(&refused);
            assert_eq!(refused.status, 4, "{said}");
            assert!(
                said.contains(".tables`") && said.contains("`sandbox` does not settle"),
                "{said}"
            );
            assert_eq!(
                cli.run("commit try --on-conflict sandbox --dry-run").status,
                4
            );
            assert_eq!(seen(&at), before);
            // Once it is opened, it is a change as any other.
            let theirs = dump(&at);
            assert_eq!(conflicts(&cli).len(), 1);
            cli.ok("commit try --on-conflict sandbox");
            assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "2");
            killed(&at, more);
            let refused = cli.run("undo try");
            assert_eq!(refused.status, 4, "{}", talk(&refused));
            sql(&at, "DELETE FROM orders");
            assert_eq!(cli.run("undo try").status, 4);
            assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
            assert!(theirs.contains("theirs") == (mode == "wal"));
        }
    }
}

/// A log of the sandbox came beside a database that had been changed meanwhile.
// rule Q5, C15
#[test]
fn a_log_came_beside_another_version_of_its_database() {
    let (_world, cli, at) = world();
    sql(&at, "PRAGMA journal_mode = wal");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app data/shop.db").trim_end());
    killed(&inside, "UPDATE orders SET status = 'ours'");
    let shown = json(&cli, "diff try");
    let changed = shown["resources"][0]["changes"].to_string();
    assert!(changed.contains("shop.db-wal"), "{changed}");
    sql(
        &at,
        "CREATE TABLE more (x); INSERT INTO more VALUES (1); DROP TABLE orders",
    );
    let before = dump(&at);
    let found = conflicts(&cli);
    assert!(found.iter().any(|(path, _)| path == "data/shop.db-wal"));
    assert_eq!(cli.run("commit try --on-conflict sandbox").status, 4);
    // What the sandbox has of it is left out as a whole.
    cli.ok("commit try --on-conflict original");
    assert_eq!(dump(&at), before);
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
}

/// A database and the log beside it are released together, and stay together.
#[test]
fn a_part_of_a_database_is_not_released() {
    let (_world, cli, at) = world();
    sql(&at, "PRAGMA journal_mode = wal");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app data/shop.db").trim_end());
    sql(&inside, "DELETE FROM orders WHERE id = 1");
    killed(&inside, "DELETE FROM orders WHERE id = 2");
    fs::write(inside.with_file_name("notes"), "x").expect("there is room");
    cli.ok("commit try --only data/notes --only **/*.db --exclude **/*-wal");
    assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "3");
    cli.ok("commit try --only data/shop.db");
    assert_eq!(sql(&at, "SELECT id FROM orders"), "3");
}

/// A program that only reads does not stand in the way, and neither does one that has another file of that size open.
#[test]
fn a_database_that_nobody_writes_is_a_file_as_any_other() {
    let (world, cli, at) = world();
    fs::write(world.at("app/page"), [b'x'; 512]).expect("there is room");
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app data/shop.db").trim_end());
    sql(&inside, "DELETE FROM orders WHERE id = 1");
    let page = PathBuf::from(cli.ok("path try app page").trim_end());
    fs::write(page, [b'y'; 512]).expect("there is room");
    let reads = "import sys
c = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()";
    let reader = Waiting::new(reads, &at);
    let writes =
        "import sys\nc = open(sys.argv[1], 'r+b'); print('open', flush=True); sys.stdin.read()";
    let writer = Waiting::new(writes, &world.at("app/page"));
    cli.ok("commit try");
    reader.end();
    writer.end();
    assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "2");
    assert_eq!(read(world.at("app/page"))[..1], *"y");
}

/// `escrow init` named the directory alone: the database in it was released as a file.
// rule Q6
#[test]
fn init_finds_the_databases_of_a_project() {
    let (world, cli, at) = world();
    let app = world.at("app");
    let cli = cli
        .cwd(&app)
        .env("DATABASE_URL", "postgres://ann:s3cret@db/other");
    fs::write(app.join("not.db"), "no database").expect("there is room");
    sql(&world.dir("app/node_modules").join("x.db"), ORDERS);
    let odd = world.dir("app/odd \"dir\"").join("it's.sqlite");
    sql(&odd, ORDERS);
    sql(&app.join("fixture.db"), ORDERS);
    let git = "git init -q . && git add fixture.db && git -c user.name=U -c user.email=u@e commit -qm fixture";
    output_of(Command::new("sh").args(["-c", git]).current_dir(&app));
    let env = "# settings\nexport SHOP_URL='postgresql://bob:s3cret@localhost:5433/shop'\nAPP_DB=sqlite:///data/shop.db\nOTHER=1\n";
    fs::write(app.join(".env"), env).expect("there is room");

    let said = cli.run("init");
    assert_eq!(said.status, 0, "{}", talk(&said));
    let talked = talk(&said);
    assert!(
        talked.contains("left out: fixture.db: git keeps versions of it"),
        "{talked}"
    );
    assert!(
        talked.contains("`escrow trust`") && !talked.contains("s3cret"),
        "{talked}"
    );
    let text = read(app.join("escrow.yaml"));
    assert!(!text.contains("s3cret"), "{text}");
    cli.ok("type validate escrow.yaml");
    cli.ok("trust --yes");
    let shown = json(&cli, "resource list");
    let one = |one: &Value| {
        let of = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
        (of("name"), of("type"))
    };
    let found: Vec<_> = list(&shown["resources"]).iter().map(one).collect();
    let wanted = [
        ("app", "git-checkout"),
        ("it-s.sqlite", "sqlite"),
        ("other", "postgres"),
        ("shop", "postgres"),
        ("shop.db", "sqlite"),
    ];
    let wanted = wanted.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    assert_eq!(found, wanted);
    let one = json(&cli, "resource show shop");
    assert_eq!(one["at"], "postgresql://bob@localhost:5433/shop");
    assert!(text.contains("options: {env: SHOP_URL}"), "{text}");

    // Programs are told what was left out, too; what is set counts more than what a file says.
    fs::write(
        app.join(".env"),
        format!("{env}DATABASE_URL=postgres:///never\n"),
    )
    .expect("there is room");
    let document = json(&cli, "init --force");
    assert!(
        document["notices"].to_string().contains("fixture.db"),
        "{document}"
    );
    assert!(
        !document["resources"].to_string().contains("never"),
        "{document}"
    );

    // What it wrote is enough to release files and rows together.
    let script = "sqlite3 data/shop.db \"UPDATE orders SET status = 'sold' WHERE id = 1\"; echo \"$APP_DB\" > said";
    let run = [
        "-r", "app", "-r", "shop.db", "--commit", "--", "sh", "-c", script,
    ];
    cli.ok([&["run"][..], &run].concat());
    assert_eq!(sql(&at, "SELECT status FROM orders WHERE id = 1"), "sold");
    assert_eq!(
        read(app.join("said")),
        format!("sqlite:///{}\n", at.display())
    );
}

/// An option that was typed wrong was passed over, and so the command reached the real database.
#[test]
fn an_option_that_means_nothing_is_refused() {
    let (world, cli, _at) = world();
    let text =
        "resources:\n  db: {type: sqlite, at: app/data/shop.db, options: {evn: DATABASE_URL}}\n";
    fs::write(world.at("escrow.yaml"), text).expect("there is room");
    cli.ok("trust --yes");
    let said = cli.fails("plan create try -r db", 1);
    assert!(
        said.contains("'evn'") && said.contains("env, max_age"),
        "{said}"
    );
}

/// A journal that SQLite keeps for the next transaction holds nothing, and stood in the way for good.
#[test]
fn a_journal_that_is_kept_was_taken_for_one_that_a_program_left() {
    let (_world, cli, at) = world();
    cli.ok("plan create try --resource app --strategy filesystem_copy");
    let inside = PathBuf::from(cli.ok("path try app data/shop.db").trim_end());
    sql(&inside, "DELETE FROM orders WHERE id = 1");
    sql(
        &at,
        "PRAGMA journal_mode = persist; BEGIN; DELETE FROM orders; ROLLBACK",
    );
    assert!(at.with_file_name("shop.db-journal").exists());
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "2");
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT count(*) FROM orders"), "3");
}

/// What `init` did not understand of a `.env` it passed over, or wrote down with the password in it.
// rule Q6
#[test]
fn init_says_what_it_makes_of_each_line_of_variables() {
    let (world, cli, at) = world();
    let app = world.at("app");
    let cli = cli.cwd(&app);
    let data = fs::read(&at).expect("it is there");
    fs::write(app.join("cut.db"), &data[..100]).expect("there is room");
    let env = b"\xef\xbb\xbfDRIVER_URL=postgresql+psycopg2://ann:s3cret@db/one\nTWO=postgres://ann:s3cret@db/two # the second\n\
        AGAIN='postgres://ann@db/two' # the same\nSLASH=postgres://ann:s3cret/x@db/three\nQUERY=postgres://ann:1?s3cret@db/four\nODD=\xff\n";
    fs::write(app.join(".env"), env).expect("there is room");
    let said = cli.run("init");
    let (talked, text) = (talk(&said), read(app.join("escrow.yaml")));
    assert!(
        !format!("{talked}{text}").contains("s3cret"),
        "{talked}{text}"
    );
    for left in [
        "cut.db: it is damaged",
        "AGAIN: it leads to the same database as TWO",
        "SLASH: ",
        "QUERY: ",
    ] {
        assert!(
            talked.contains(&format!("left out: {left}")),
            "{left}: {talked}"
        );
    }
    for (at, env) in [
        ("postgresql://ann@db/one", "DRIVER_URL"),
        ("postgres://ann@db/two", "TWO"),
    ] {
        let lines = format!("at: \"{at}\"\n    options: {{env: {env}}}");
        assert!(text.contains(&lines), "{text}");
    }
    // It may lead anywhere.
    fs::rename(app.join(".env"), world.at("env")).expect("there is room");
    std::os::unix::fs::symlink("../env", app.join(".env")).expect("there is room");
    assert!(talk(&cli.run("init --force")).contains("left out: .env: a symbolic link"));
}

/// `escrow trust` said that nothing in a file needs it, for which `escrow run` refused to begin.
#[test]
fn a_database_on_a_server_was_said_to_need_no_trust() {
    let (world, cli, _at) = world();
    let text = "resources:\n  db: {type: postgres, at: 'postgres://nobody@127.0.0.1:1/shop'}\n";
    fs::write(world.at("escrow.yaml"), text).expect("there is room");
    assert!(talk(&cli.run("run -- true")).contains("is not trusted"));
    let said = talk(&cli.run("trust --yes"));
    assert!(said.contains("resources.db.at"), "{said}");
}

/// Where a sandbox holds no database any more, no way on was named.
// rule C17
#[test]
fn junk_in_the_place_of_a_sandbox_names_the_ways_on() {
    let (_world, cli, at) = world();
    cli.ok([
        "plan",
        "create",
        "try",
        "-r",
        at.to_str().expect("a plain path"),
    ]
    .as_slice());
    fs::write(cli.ok("path try shop.db").trim_end(), "junk").expect("there is room");
    let said = cli.fails("diff try", 1);
    assert!(said.contains("`escrow rollback"), "{said}");
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try"), "shop.db: no changes\n");
}

/// A log that was released alone could never be taken back.
// rule P5
#[test]
fn a_log_without_its_database_could_not_be_taken_back() {
    for strategy in ["filesystem_copy", "overlay"] {
        let (_world, cli, at) = world();
        sql(&at, "PRAGMA journal_mode = wal");
        cli.ok(format!(
            "plan create try --resource app --strategy {strategy}"
        ));
        let script = KILLED.replace("{}", "c.commit()");
        let statement = "UPDATE orders SET status = 'ours'";
        let python = ["run", "--plan", "try", "--", "python3", "-c", &script];
        let path = at.to_str().expect("a plain path");
        cli.ok([&python[..], &[path, statement]].concat());
        cli.ok("commit try");
        cli.ok("undo try");
        let status = sql(&at, "SELECT DISTINCT status FROM orders");
        assert!(!status.contains("ours"), "{status}");
        assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
    }
}

/// The program that has it open by the other name went on with the old file.
// rule Q5, C15
#[test]
fn a_plain_database_with_a_second_hard_link_was_replaced_under_one_name() {
    for strategy in ["filesystem_copy", "overlay"] {
        let (world, cli, at) = world();
        let other = world.at("other.db");
        fs::hard_link(&at, &other).expect("it has another name");
        let path = at.to_str().expect("a plain path").to_owned();
        cli.ok(format!(
            "plan create try --resource app --strategy {strategy}"
        ));
        let change = "UPDATE orders SET status = 'ours'";
        cli.ok(["run", "--plan", "try", "--", "sqlite3", &path, change].as_slice());
        let before = dump(&at);
        let found = conflicts(&cli);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found[0].1, ["further names (hard links)", "-samefile"]);
        assert_eq!(cli.run("commit try --on-conflict sandbox").status, 4);
        assert_eq!(dump(&at), before);
        remove(&other);
        // Its ctime moved.
        cli.ok("commit try --on-conflict sandbox");
        assert_eq!(sql(&at, "SELECT DISTINCT status FROM orders"), "ours");
        fs::hard_link(&at, &other).expect("it has another name");
        let undo = "undo try --on-conflict sandbox";
        has(&talk(&cli.run(undo)), ["further names (hard links)"]);
        assert_eq!(sql(&at, "SELECT DISTINCT status FROM orders"), "ours");
        remove(&other);
        cli.ok(undo);
        // A name that is taken away leaves the other one as it is.
        cli.ok("rollback try");
        fs::hard_link(&at, &other).expect("it has another name");
        cli.ok(["run", "--plan", "try", "--", "rm", &path].as_slice());
        cli.ok("commit try --on-conflict sandbox");
        assert_eq!(dump(&other), before);
    }
}
