//! What a diff of a database shows is what a commit of it releases, and no two changes look alike.

use crate::sqlite::{ORDERS, dump, inner, planned, sql, talk, unplanned};
use crate::*;

const ACCT: &str = "CREATE TABLE acct (id INTEGER PRIMARY KEY, owner TEXT, bal INT);
    INSERT INTO acct VALUES (1, 'ann', 5), (2, 'ann', 5);
    CREATE VIEW rich AS SELECT 1;";

/// What a form of the diff shows, without the digest.
fn shown(cli: &Cli, form: &str) -> String {
    cli.ok(format!("diff try -q {form}"))
}

#[test]
fn a_patch_hid_changed_definitions_that_the_digest_covers() {
    let (world, cli, _) = planned(ACCT);
    sql(
        &inner(&cli),
        "CREATE TRIGGER tg AFTER INSERT ON acct BEGIN\n  UPDATE acct SET bal = 0;\nEND; CREATE INDEX by_owner ON acct (owner);
         DROP VIEW rich; PRAGMA user_version = 4; UPDATE acct SET bal = 6 WHERE id = 1;",
    );
    let wanted = "# acct/index:by_owner: index added\n\
        # + CREATE INDEX by_owner ON acct (owner)\n\
        # acct/trigger:tg: trigger added\n\
        # + CREATE TRIGGER tg AFTER INSERT ON acct BEGIN\n\
        # +   UPDATE acct SET bal = 0;\n\
        # + END\n";
    for form in ["--patch", "--word-diff", "--binary", "--patch -U0"] {
        let patch = shown(&cli, form);
        assert!(patch.contains(wanted), "{form}: {patch}");
        let setting = "# pragma:user_version: setting changed\n# - 0\n# + 4\n";
        let view = "# rich: view deleted\n# - CREATE VIEW rich AS SELECT 1\n";
        let row = "# acct/1: {\"bal\":5} -> {\"bal\":6}\n";
        for part in [setting, view, row] {
            assert!(patch.contains(part), "{form}: {patch}");
        }
        let every = cli.ok("diff try --name-only");
        for path in every.lines() {
            assert!(patch.contains(&format!("# {path}: ")), "{path}: {patch}");
        }
    }
    // Tools that take a patch skip what is no file.
    let patch = shown(&cli, "--patch");
    let file =
        "diff --git a/f b/f\nnew file mode 100644\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n";
    write(world.at("p"), format!("{patch}{file}{patch}"));
    let dir = world.dir("plain");
    let mut git = Command::new("git");
    git.current_dir(&dir).args(["apply", "../p"]);
    let out = git.output().expect("git starts");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(read(dir.join("f")), "x\n");
    let list = cli.ok("diff try");
    assert!(
        list.contains("            +   UPDATE acct SET bal = 0;\n"),
        "{list}"
    );
}

#[test]
fn two_changes_that_differ_looked_the_same_in_a_diff() {
    let (_world, cli, _) = planned(ACCT);
    let view = |body: &str| {
        format!("DROP VIEW rich; CREATE VIEW rich AS {body}; UPDATE acct SET owner = 'x'")
    };
    let owner = |text: &str| format!("UPDATE acct SET owner = {text} WHERE id = 1");
    let changes = [
        view("select 2 -- as\n y from acct"),
        view("select 2\n -- as y\n from acct"),
        view("select '2 3'"),
        view("select '2\u{a0}3'"),
        view("select '2\t3'"),
        view("select '2\n3'"),
        view("select '2\r\n3'"),
        view("select '2  3'"),
        view("select '2\u{202e}3'"),
        owner("'ann'' → ''bob'"),
        owner("'ann'"),
        owner("'bob'"),
        owner("'a b'"),
        owner("'a\u{a0}b'"),
        owner("'a\u{200b}b'"),
        owner("'a\nb'"),
        owner("'a\\nb'"),
        owner("'a\\x0ab'"),
        owner("'bob'', bal 5 → ''7'"),
        owner("x'61'"),
        owner("'x''61'"),
        owner("NULL"),
        owner("'NULL'"),
        "ALTER TABLE acct RENAME owner TO \"owner 'ann' → 'bob', bal\"".to_owned(),
        "ALTER TABLE acct RENAME TO \"acct/1  owner\"".to_owned(),
    ];
    for form in ["", "--patch", "--word-diff"] {
        let mut all = Vec::new();
        for change in &changes {
            cli.ok("rollback try");
            sql(&inner(&cli), change);
            let text = shown(&cli, form);
            let plain = |c: char| c == '\n' || !(c.is_control() || c.is_whitespace() && c != ' ');
            assert!(text.chars().all(plain), "{text:?}");
            all.push(text);
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count, "{all:#?}");
    }
    cli.ok("rollback try");
    sql(&inner(&cli), &owner("'ann'' → ''bob'"));
    let list = shown(&cli, "");
    assert!(
        list.contains("owner 'ann' → 'ann'' → ''bob'\n"),
        "a quote in a value is doubled: {list}"
    );
}

#[test]
fn a_whole_number_beyond_64_bits_was_rounded() {
    let (_world, cli, _) = planned(ORDERS);
    for number in [
        "9223372036854775808",
        "-9223372036854775809",
        "123456789012345678901234567890",
    ] {
        let row = format!("{{\"id\":1,\"status\":{number}}}");
        let said = cli.clone().stdin(row).run("write try app.db orders/1");
        let text = talk(&said);
        assert!(said.status != 0 && text.contains("64 bits"), "{text}");
        assert!(text.contains(number), "{text}");
    }
    let write = |value: &str| {
        let row = format!("{{\"id\":1,\"total\":{value}}}");
        cli.clone().stdin(row).ok("write try app.db orders/1");
        sql(
            &inner(&cli),
            "SELECT typeof(total), total FROM orders WHERE id = 1",
        )
    };
    assert_eq!(write("9.5e18"), "real|9.5e+18");
    assert_eq!(write("-0"), "real|0.0");
    let row = "{\"id\":1,\"status\":\"9223372036854775808\"}";
    cli.clone().stdin(row).ok("write try app.db orders/1");
    let row = "{\"id\":9223372036854775807,\"status\":-9223372036854775808}";
    let at = "write try app.db orders/9223372036854775807";
    cli.clone().stdin(row).ok(at);
}

#[test]
fn a_column_with_the_name_of_another_one_lost_its_value() {
    let (_world, cli, _) = planned(ORDERS);
    let said = cli.ok(["sql", "app.db", "SELECT 1 AS a, 2 AS a, 3 AS a_2"]);
    let found: Value = serde_json::from_str(&said).expect("a document");
    assert_eq!(found["rows"], value!([{"a": 1, "a_3": 2, "a_2": 3}]));
    assert_eq!(found["columns"], value!(["a", "a_3", "a_2"]));
}

#[test]
fn a_vacuum_said_that_too_many_databases_are_attached() {
    let (_world, cli, _) = planned(ORDERS);
    for statement in ["VACUUM", "ATTACH ':memory:' AS other"] {
        let said = cli.fails(["sql", "app.db", statement], 1);
        has(
            &said,
            ["VACUUM", "ATTACH", "on the original", "escrow path"],
        );
    }
}

// rule C2, C6
#[test]
fn a_table_whose_sql_was_edited_in_the_schema_left_a_commit_that_never_ended() {
    let edit = |sql: &str| {
        format!(
            "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = '{sql}' WHERE name = 't';"
        )
    };
    let remake = |columns: &str| {
        format!(
            "CREATE TABLE n (id INTEGER PRIMARY KEY, {columns}); INSERT INTO n (id, v) SELECT id, v FROM t; DROP TABLE t;
             ALTER TABLE n RENAME TO t"
        )
    };
    let edits = [
        "create table t (id INTEGER PRIMARY KEY, v)",
        "CREATE  TABLE t (id INTEGER PRIMARY KEY, v)",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v) -- kept",
    ];
    for edited in edits {
        for side in ["sandbox", "original"] {
            let table = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 2);";
            let (_world, cli, at) = unplanned(table);
            if side == "original" {
                sql(&at, &edit(edited));
            }
            let before = dump(&at);
            cli.ok("plan create try --resource data/app.db");
            let inner = inner(&cli);
            if side == "original" {
                sql(&inner, &remake("v, w"));
            } else {
                sql(&inner, "ALTER TABLE t ADD COLUMN w");
                sql(&inner, &edit(&edited.replace("v)", "v, w)")));
            }
            let changed = dump(&inner);
            let text = cli.fails("commit try", 1);
            let wanted = format!("in the {side} its SQL");
            has(&text, ["table 't'", "writable_schema", &wanted]);
            assert_eq!(dump(&at), before);
            assert_eq!(dump(&inner), changed);
            // What the message says helps.
            if side == "original" {
                sql(&at, &remake("v"));
                cli.ok("commit try --on-conflict sandbox");
            } else {
                sql(&inner, &remake("v, w"));
                cli.ok("commit try");
            }
            assert_eq!(sql(&at, "SELECT * FROM t"), "1|2|");
            cli.ok("undo try");
            assert_eq!(sql(&at, "SELECT * FROM t"), "1|2");
        }
    }
}

#[test]
fn settings_of_a_full_text_table_were_left_out_in_silence() {
    let (_world, cli, at) =
        planned("CREATE VIRTUAL TABLE ft USING fts5(a); INSERT INTO ft VALUES ('x');");
    sql(
        &inner(&cli),
        "INSERT INTO ft(ft, rank) VALUES ('rank', 'bm25(10.0)'); INSERT INTO ft VALUES ('y');",
    );
    let said = talk(&cli.run("commit try"));
    has(&said, ["ft", "settings of the full-text table"]);
    assert_eq!(sql(&at, "SELECT count(*) FROM ft_config"), "1");
    assert_eq!(sql(&at, "SELECT group_concat(a) FROM ft"), "x,y");
}
