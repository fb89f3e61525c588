//! Databases that cannot be used, or not now: each is refused with the reason, and the original stays as it was.

use crate::sqlite::{ORDERS, Waiting, dump, inner, planned, python, sql, talk, unplanned};
use crate::*;

// rule S4, S5
#[test]
fn what_is_no_usable_database_is_refused_with_the_reason() {
    let (world, cli, at) = unplanned(ORDERS);
    let refused = |cli: &Cli, what: &str, status: i32, part: &str| {
        let said = cli.run(format!("plan create no --resource data/{what}"));
        assert_eq!(said.status, status, "{what}: {}", talk(&said));
        assert!(talk(&said).contains(part), "{what}: {}", talk(&said));
        assert!(
            names(world.at("escrow-home/sandboxes")).is_empty(),
            "{what}"
        );
    };
    // An encrypted one begins as no database does; a cut one is damaged.
    write(world.at("data/secret.db"), vec![0xa5; 8192]);
    let said = cli.run("resource add secret --type sqlite --at data/secret.db");
    assert!(
        said.status == 2 && talk(&said).contains("encrypted"),
        "{}",
        talk(&said)
    );
    let whole = fs::read(&at).expect("it is there");
    write(world.at("data/cut.db"), &whole[..4096]);
    refused(&cli, "cut.db", 1, "damaged");
    write(
        world.at("data/head.db"),
        [&b"SQLite format 3\0"[..], &[0xa5; 4096]].concat(),
    );
    refused(&cli, "head.db", 1, "not a SQLite database");
    sql(
        &world.at("data/dir.db"),
        "CREATE TABLE t (rowid, oid, _rowid_)",
    );
    refused(&cli, "dir.db", 1, "hide the number of a row");
    // What the application alone can order.
    let made = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1]); c.create_collation('own', lambda a, b: 0); c.execute('CREATE TABLE t (a TEXT COLLATE own PRIMARY KEY) WITHOUT ROWID'); c.commit()";
    python(made, &world.at("data/own.db"));
    refused(&cli, "own.db", 1, "only its application can");
    assert_eq!(fs::read(&at).ok(), Some(whole));
}

// rule S5
#[test]
fn a_lock_that_is_never_released_is_not_waited_for_for_ever() {
    let (_world, cli, at) = planned(ORDERS);
    sql(&inner(&cli), "UPDATE orders SET total = 0");
    let script = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()";
    let holder = Waiting::new(script, &at);
    let refused = cli.run("commit try --json");
    let document: Value = serde_json::from_slice(&refused.stdout).expect("one document");
    assert_eq!(document["error"]["kind"], "busy", "{document}");
    holder.end();
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT sum(total) FROM orders"), "0.0");
}

// rule S5
#[test]
fn an_original_that_cannot_be_written_is_not_committed_to() {
    need!(as_ordinary_user());
    let (world, cli, at) = planned(ORDERS);
    sql(&inner(&cli), "UPDATE orders SET total = 0");
    let modes = |file: u32, dir: u32| {
        for (path, mode) in [(at.clone(), file), (world.at("data"), dir)] {
            let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
            set.expect("they are ours");
        }
    };
    let before = fs::read(&at).expect("it is there");
    modes(0o444, 0o555);
    let refused = cli.run("commit try");
    assert!(
        refused.status == 1 && talk(&refused).contains("cannot be written"),
        "{}",
        talk(&refused)
    );
    assert_eq!(fs::read(&at).ok(), Some(before));
    cli.ok("diff try");
    modes(0o644, 0o755);
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT sum(total) FROM orders"), "0.0");
}

// rule S5, Q2
#[test]
fn a_raising_trigger_and_a_value_that_is_too_long_are_told() {
    let (_world, cli, at) = planned(&format!(
        "{ORDERS} CREATE TRIGGER never BEFORE UPDATE ON orders BEGIN SELECT raise(ABORT, 'orders are final'); END;"
    ));
    let typed = cli.clone().stdin("{\"id\":1,\"status\":\"paid\"}");
    let refused = typed.run("write try app.db orders/1");
    assert!(
        refused.status == 1 && talk(&refused).contains("orders are final"),
        "{}",
        talk(&refused)
    );
    assert_eq!(
        json(&cli, "diff try")["resources"][0]["changes"],
        value!([])
    );
    let before = dump(&at);
    let long = 257 << 20;
    sql(
        &inner(&cli),
        &format!(
            "PRAGMA synchronous = OFF; CREATE TABLE t (v); INSERT INTO t VALUES (zeroblob({long}))"
        ),
    );
    for verb in ["diff try", "commit try"] {
        let refused = cli.run(verb);
        assert!(
            refused.status == 1 && talk(&refused).contains("a value of more than 256 MiB"),
            "{verb}: {}",
            talk(&refused)
        );
    }
    assert_eq!(dump(&at), before);
    sql(&inner(&cli), "DROP TABLE t");
    cli.ok("commit try");
}

/// A journal that a crashed process left, and that names another file.
fn forged(victim: &Path) -> Vec<u8> {
    let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let name = victim.as_os_str().as_bytes();
    let mut journal = magic.to_vec();
    for number in [0u32, 0, 2, 512, 4096] {
        journal.extend(number.to_be_bytes());
    }
    journal.resize(512, 0);
    let page: u32 = 0x4000_0000 / 4096 + 1;
    journal.extend(page.to_be_bytes());
    journal.extend(name);
    journal.extend((name.len() as u32).to_be_bytes());
    let sum: u32 = name.iter().map(|byte| u32::from(*byte)).sum();
    journal.extend(sum.to_be_bytes());
    journal.extend(magic);
    journal
}

// rule S1, S2
#[test]
fn a_forged_journal_or_link_in_the_sandbox_reaches_nothing_outside() {
    let (world, cli, at) = planned(ORDERS);
    let before = dump(&at);
    let victim = world.at("precious");
    write(&victim, "precious\n");
    let copy = inner(&cli);
    let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", copy.display()));
    // `sqlite3` itself would delete what the journal names.
    let (other, decoy) = (world.at("other.db"), world.at("decoy"));
    sql(&other, ORDERS);
    write(&decoy, "decoy\n");
    write(world.at("other.db-journal"), forged(&decoy));
    sql(&other, "SELECT * FROM orders");
    assert!(!decoy.exists(), "the forgery works");
    // Whatever is answered, nothing outside is touched; a rollback brings the sandbox back.
    for verb in [
        "diff try",
        "checkpoint create try",
        "read try app.db orders",
        "commit try --dry-run",
    ] {
        write(beside("-journal"), forged(&victim));
        cli.run(verb);
        assert_eq!(read(&victim), "precious\n", "{verb}");
        if beside("-journal").exists() {
            remove(beside("-journal"));
        }
        // A log without a valid sum holds nothing.
        write(beside("-wal"), [0x37; 9000]);
        let said = cli.run(verb);
        assert_eq!(said.status, 0, "{verb}: {}", talk(&said));
    }
    assert_eq!(dump(&at), before);
    cli.ok("rollback try");
    assert_eq!(
        json(&cli, "diff try")["resources"][0]["changes"],
        value!([])
    );
    // Links in the place of the database, and of what lies beside it.
    let secret = world.at("secret.db");
    sql(
        &secret,
        "CREATE TABLE secret (x); INSERT INTO secret VALUES ('s3cret')",
    );
    let bytes = fs::read(&secret).expect("it is there");
    for suffix in ["", "-wal", "-journal"] {
        let place = beside(suffix);
        if suffix.is_empty() {
            remove(&place);
        }
        std::os::unix::fs::symlink(&secret, &place).expect("a link");
        for verb in [
            "diff try --json",
            "read try app.db secret",
            "commit try --dry-run",
        ] {
            let said = talk(&cli.run(verb));
            assert!(!said.contains("s3cret"), "{suffix} {verb}: {said}");
        }
        assert_eq!(fs::read(&secret).ok().as_ref(), Some(&bytes), "{suffix}");
        cli.ok("rollback try");
    }
    assert_eq!(dump(&at), before);
}

/// A program that has a database open by this name keeps its log beside it; rows of a commit by another name were lost with that log.
// rule Q5, C1
#[test]
fn a_database_with_a_second_hard_link_is_refused_by_name() {
    for strategy in ["snapshot", "filesystem_copy", "transaction_rollback"] {
        let (world, cli, at) = unplanned(ORDERS);
        sql(&at, "PRAGMA journal_mode = wal");
        let other = world.at("data/other.db");
        fs::hard_link(&at, &other).expect("it has another name");
        let line = format!("plan create try --resource data/app.db --strategy {strategy}");
        let refused = cli.run(&line);
        let said = talk(&refused);
        assert_ne!(refused.status, 0, "{said}");
        has(
            &said,
            [
                "2 names (hard links)",
                "remove the other names",
                "-samefile",
            ],
        );
        remove(&other);
        cli.ok(&line);
        cli.ok([
            "sql",
            "try",
            "app.db",
            "INSERT INTO orders (status) VALUES ('ours')",
        ]
        .as_slice());

        // One that got its second name later.
        fs::hard_link(&at, &other).expect("it has another name");
        let refused = cli.run("commit try");
        let said = talk(&refused);
        assert_ne!(refused.status, 0, "{said}");
        has(&said, ["2 names (hard links)", "remove the other names"]);
        assert_eq!(
            sql(&at, "SELECT count(*) FROM orders WHERE status = 'ours'"),
            "0"
        );
        remove(&other);
        cli.ok("commit try");
        assert_eq!(
            sql(&at, "SELECT count(*) FROM orders WHERE status = 'ours'"),
            "1"
        );
        fs::hard_link(&at, &other).expect("it has another name");
        has(&talk(&cli.run("undo try")), ["2 names (hard links)"]);
        remove(&other);
        cli.ok("undo try");
        assert_eq!(
            sql(&at, "SELECT count(*) FROM orders WHERE status = 'ours'"),
            "0"
        );
    }
}
