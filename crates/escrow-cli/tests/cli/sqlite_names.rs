//! Tables of SQLite that only look like a part of a virtual table, and columns of virtual tables that do not show: what they hold goes
//! through a commit and an undo as everything else does, or the database is refused.

use crate::sqlite::{dump, inner, planned, sorted, sql, talk, unplanned};
use crate::*;

const NOTES: &str = "CREATE TABLE notes_content (id INTEGER PRIMARY KEY, body); CREATE INDEX notes_i ON notes_content (body);
    INSERT INTO notes_content VALUES (1, 'one apple'), (2, 'two');";
const FTS5: &str =
    "CREATE VIRTUAL TABLE notes USING fts5(body, content='notes_content', content_rowid='id');
    INSERT INTO notes(notes) VALUES ('rebuild');";
/// It takes its columns from there as well.
const FTS4: &str = "CREATE VIRTUAL TABLE notes USING fts4(content='notes_content');
    INSERT INTO notes(notes) VALUES ('rebuild');";
const FOUND: &str = "SELECT count(*) FROM notes WHERE notes MATCH 'apple'";

/// Everything in a database but the index of a full-text table, which is made anew.
fn content(at: &Path) -> String {
    let all = dump(at);
    let made = [
        "notes_data",
        "notes_idx",
        "notes_segments",
        "notes_segdir",
        "notes_stat",
        "notes_docsize",
    ];
    let is_kept = |line: &&str| !made.iter().any(|one| line.contains(one));
    let kept: Vec<&str> = all.lines().filter(is_kept).collect();
    sorted(&kept.join("\n")).join("\n")
}

#[track_caller]
fn there_and_back(base: &str, inside: &str) {
    let (_world, cli, at) = planned(base);
    let before = content(&at);
    sql(&inner(&cli), inside);
    let wanted = content(&inner(&cli));
    assert_ne!(wanted, before, "{inside}");
    let done = cli.run("commit try");
    assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
    assert_eq!(content(&at), wanted, "{inside}");
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
    let done = cli.run("undo try");
    assert_eq!(done.status, 0, "{inside}: {}", talk(&done));
    assert_eq!(content(&at), before, "{inside}");
    assert_eq!(sql(&at, "PRAGMA integrity_check"), "ok");
}

// rule C1, Q2
#[test]
fn a_commit_dropped_the_table_that_a_new_full_text_table_takes_its_text_from() {
    for module in [FTS5, FTS4] {
        there_and_back(NOTES, module);
        let (_world, cli, at) = planned(NOTES);
        sql(&inner(&cli), module);
        cli.ok("commit try");
        assert_eq!(sql(&at, "SELECT count(*) FROM notes_content"), "2");
        assert_eq!(sql(&at, FOUND), "1");
    }
}

// rule C1, Q2
#[test]
fn rows_of_a_table_with_the_name_of_a_part_of_a_full_text_table_were_lost() {
    for module in [FTS5, FTS4] {
        let base = format!("{NOTES} {module}");
        let inside = "INSERT INTO notes_content VALUES (3, 'another apple'); DELETE FROM notes_content WHERE id = 2;
            INSERT INTO notes(notes) VALUES ('rebuild')";
        there_and_back(&base, inside);
        let reshaped = format!("{inside}; ALTER TABLE notes_content ADD COLUMN more");
        there_and_back(&base, &reshaped);
        there_and_back(&base, "DROP TABLE notes; DROP TABLE notes_content");
        let (_world, cli, at) = planned(&base);
        sql(&inner(&cli), inside);
        let changes = json(&cli, "diff try")["resources"][0]["changes"].clone();
        let paths: Vec<&Value> = list(&changes).iter().map(|one| &one["path"]).collect();
        assert_eq!(paths, ["notes_content/2", "notes_content/3"]);
        cli.ok("commit try");
        assert_eq!(sql(&at, FOUND), "2");
    }
}

/// Both come in one commit: a name that a module would keep for itself is free for the table that it takes its text from.
// rule C1
#[test]
fn a_full_text_table_comes_with_the_table_that_it_takes_its_text_from() {
    there_and_back("CREATE TABLE other (a)", &format!("{NOTES} {FTS5}"));
}

// rule C1, Q2
#[test]
fn rows_beside_a_full_text_table_without_sizes_were_lost() {
    let base =
        "CREATE VIRTUAL TABLE d USING fts5(body, columnsize=0); INSERT INTO d VALUES ('text');
        CREATE TABLE d_docsize (id INTEGER PRIMARY KEY, v); INSERT INTO d_docsize VALUES (1, 'a')";
    let (_world, cli, at) = planned(base);
    sql(
        &inner(&cli),
        "UPDATE d_docsize SET v = 'b'; INSERT INTO d VALUES ('more text')",
    );
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT v FROM d_docsize"), "b");
    assert_eq!(sql(&at, "SELECT count(*) FROM d WHERE d MATCH 'text'"), "2");
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT v FROM d_docsize"), "a");
    assert_eq!(sql(&at, "SELECT count(*) FROM d WHERE d MATCH 'text'"), "1");
}

/// What a module made is a part of its table, and no table of the user's.
// rule Q4
#[test]
fn what_virtual_tables_keep_for_themselves_is_in_no_diff() {
    let (_world, cli, at) = planned(
        "CREATE VIRTUAL TABLE a USING fts5(x); CREATE VIRTUAL TABLE b USING fts4(x); CREATE VIRTUAL TABLE c USING fts3(x);
        INSERT INTO c(c) VALUES ('automerge=2'); CREATE VIRTUAL TABLE d USING rtree(id, x, y); CREATE VIRTUAL TABLE \"E e\" USING fts4(x, matchinfo=fts3);
        CREATE TABLE plain (x); CREATE VIRTUAL TABLE f USING fts5(x, content=plain); CREATE VIRTUAL TABLE g USING fts4(content='plain')",
    );
    sql(
        &inner(&cli),
        "INSERT INTO a VALUES ('t'); INSERT INTO b VALUES ('t'); INSERT INTO c VALUES ('t'); INSERT INTO d VALUES (1, 2, 3);
        INSERT INTO \"E e\" VALUES ('t')",
    );
    let changes = json(&cli, "diff try")["resources"][0]["changes"].clone();
    let tables: Vec<&Value> = list(&changes).iter().map(|one| &one["table"]).collect();
    assert_eq!(tables, ["E e", "a", "b", "c", "d"]);
    cli.ok("commit try");
    assert_eq!(sql(&at, "SELECT count(*) FROM c WHERE c MATCH 't'"), "1");
    cli.ok("undo try");
    assert_eq!(sql(&at, "SELECT count(*) FROM c WHERE c MATCH 't'"), "0");
}

/// FTS4 keeps no sizes here, but drops what has the name of them with its own table.
// rule Q2
#[test]
fn a_table_that_goes_with_a_full_text_table_is_refused_by_name() {
    let (_world, cli, _at) = unplanned(
        "CREATE VIRTUAL TABLE t USING fts4(x, matchinfo=fts3); CREATE TABLE t_docsize (id INTEGER PRIMARY KEY, v)",
    );
    let said = cli.run("plan create try --resource data/app.db --strategy snapshot");
    assert_ne!(said.status, 0);
    assert!(talk(&said).contains("'t_docsize'"), "{}", talk(&said));
}

// rule C1, Q2
#[test]
fn the_language_of_the_rows_of_a_full_text_table_was_lost() {
    for name in ["lid", "__langid", "l \"\"d"] {
        let base = format!(
            "CREATE VIRTUAL TABLE t USING fts4(x, languageid=\"{name}\");
            INSERT INTO t(rowid, x, \"{name}\") VALUES (1, 'word', 5), (2, 'word', 6), (3, 'word', 7)"
        );
        let all = format!(
            "SELECT group_concat(rowid || x || \"{name}\") FROM t;
            SELECT group_concat(rowid) FROM t WHERE t MATCH 'word' AND \"{name}\" = 8"
        );
        let (_world, cli, at) = planned(&base);
        let before = sql(&at, &all);
        sql(
            &inner(&cli),
            &format!(
                "UPDATE t SET \"{name}\" = 8 WHERE rowid = 1; UPDATE t SET x = 'new word' WHERE rowid = 2;
                INSERT INTO t(rowid, x, \"{name}\") VALUES (4, 'word', 8)"
            ),
        );
        assert_eq!(
            list(&json(&cli, "diff try")["resources"][0]["changes"]).len(),
            3,
            "{name}"
        );
        cli.ok("commit try");
        assert_eq!(
            sql(&at, &all),
            "1word8,2new word6,3word7,4word8\n1,4",
            "{name}"
        );
        cli.ok("undo try");
        assert_eq!(sql(&at, &all), before, "{name}");
        // As a whole, too.
        cli.ok("plan create again --resource data/app.db");
        let at_inside = PathBuf::from(cli.ok("path again app.db").trim_end());
        sql(&at_inside, "ALTER TABLE t RENAME TO t2");
        cli.ok("commit again");
        let renamed = all
            .replace(" t WHERE t ", " t2 WHERE t2 ")
            .replace("FROM t;", "FROM t2;");
        assert_eq!(sql(&at, &renamed), before, "{name}");
        cli.ok("undo again");
        assert_eq!(sql(&at, &all), before, "{name}");
    }
}

/// Its rows have locales that no column shows.
// rule Q2
#[test]
fn a_full_text_table_with_locales_is_refused_by_name() {
    let (_world, cli, at) = planned("CREATE TABLE t (x)");
    let before = dump(&at);
    for statement in [
        "CREATE VIRTUAL TABLE places USING fts5(kept UNINDEXED, x, locale=1)",
        "INSERT INTO places VALUES (1, fts5_locale('tr', 'text'))",
    ] {
        cli.ok(["sql", "try", "app.db", statement]);
    }
    for verb in ["diff", "commit"] {
        let said = cli.run(format!("{verb} try"));
        assert_ne!(said.status, 0, "{verb}");
        assert!(talk(&said).contains("'places'"), "{}", talk(&said));
    }
    assert_eq!(dump(&at), before);
    // A table of the user's may have such columns.
    let boxes = "CREATE VIRTUAL TABLE r USING rtree(id, a, b); CREATE TABLE r_content (l0, langid)";
    let (_world, cli, _at) = planned(boxes);
    cli.ok("diff try");
}
