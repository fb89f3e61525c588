//! Commits and undos of a SQLite database that were interrupted at their end, with what another process did since.

use escrow::event::Unobserved;
use escrow::strategy::StrategyError;

use crate::sqlite_commit::{NEW, Staging, TWO};

/// Killed before SQLite's own commit, or after it and before the mark that says so.
fn interrupted(it: &Staging, mark: &str, happened: bool, work: &dyn Fn()) {
    let before = std::fs::read(&it.at).expect("it is there");
    work();
    if !happened {
        std::fs::write(&it.at, before).expect("as before");
    }
    std::fs::remove_file(it.world.at(format!("commit/{mark}"))).expect("it was made");
}

/// Killed when its mark was made, a commit may have been carried out or not: where rows say both, nothing is assumed.
// rule C3, C19
#[test]
fn a_commit_of_which_rows_tell_two_things_waits_for_a_person() {
    let begun = |it: &Staging| std::fs::write(it.world.at("commit/begun"), b"").expect("a mark");
    for (meanwhile, settled, wanted) in [
        (
            "UPDATE t SET v = 'new' WHERE id = 1",
            "UPDATE t SET v = 'old'",
            "1new 2new",
        ),
        (
            "UPDATE t SET v = 'new' WHERE id = 1",
            "UPDATE t SET v = 'new'",
            "1new 2new",
        ),
    ] {
        let it = Staging::new(TWO);
        let intent = it.staged(NEW);
        begun(&it);
        it.other(meanwhile);
        let before = it.rows();
        let untold = it.commit(&intent);
        assert!(
            matches!(untold, Err(StrategyError::Untold { .. })),
            "{untold:?}"
        );
        let untold = it.strategy.undo(&intent, &Unobserved);
        assert!(
            matches!(untold, Err(StrategyError::Untold { .. })),
            "{untold:?}"
        );
        assert_eq!(it.rows(), before);
        it.other(settled);
        it.commit(&intent).expect("it is told");
        assert_eq!(it.rows(), wanted);
        // It is known to be done now, whatever others make of it.
        it.other("UPDATE t SET v = 'old' WHERE id = 1");
        it.commit(&intent).expect("it is done");
        assert_eq!(it.rows(), "1old 2new");
        it.undo(&intent);
        assert_eq!(it.rows(), "1old 2old");
    }
}

/// Rows without a key are told by how many there are, whatever numbers they have by now: an interrupted commit or undo goes on, once.
// rule C3, C19
#[test]
fn rows_without_a_key_tell_whether_an_interrupted_transaction_happened() {
    const THREE: &str =
        "CREATE TABLE l (x); INSERT INTO l VALUES ('a'), ('b'), ('c'); DELETE FROM l WHERE x = 'a'";
    let rows = |it: &Staging| it.ask("SELECT group_concat(x) FROM (SELECT x FROM l ORDER BY x)");
    for happened in [false, true] {
        for (inside, meanwhile, new, old) in [
            ("DELETE FROM l WHERE x = 'c'", "VACUUM", "b", "b,c"),
            (
                "INSERT INTO l VALUES ('ours'), ('b')",
                "VACUUM",
                "b,b,c,ours",
                "b,c",
            ),
            (
                "DELETE FROM l WHERE x = 'c'",
                "INSERT INTO l VALUES ('theirs')",
                "b,theirs",
                "b,c,theirs",
            ),
            (
                "INSERT INTO l VALUES ('ours')",
                "INSERT INTO l VALUES ('theirs')",
                "b,c,ours,theirs",
                "b,c,theirs",
            ),
        ] {
            let it = Staging::new(THREE);
            let intent = it.staged(inside);
            interrupted(&it, "done", happened, &|| {
                it.commit(&intent).expect("nothing contradicts");
            });
            it.other(meanwhile);
            it.commit(&intent).expect("it goes on");
            assert_eq!(rows(&it), new, "{inside}, {meanwhile}, {happened}");
            it.undo(&intent);
            assert_eq!(rows(&it), old, "{inside}, {meanwhile}, {happened}");
            // The same in its undo.
            let it = Staging::new(THREE);
            let intent = it.staged(inside);
            it.commit(&intent).expect("nothing contradicts");
            it.other(meanwhile);
            interrupted(&it, "undone", happened, &|| it.undo(&intent));
            it.undo(&intent);
            assert_eq!(rows(&it), old, "{inside}, {meanwhile}, {happened}");
            it.undo(&intent);
            assert_eq!(rows(&it), old, "{inside}, {meanwhile}, {happened}");
        }
    }
    // An equal row of another client is another one.
    let it = Staging::new("CREATE TABLE l (x); INSERT INTO l VALUES ('x'), ('x'), ('x')");
    let intent = it.staged("DELETE FROM l WHERE rowid = 3");
    it.commit(&intent).expect("nothing contradicts");
    it.other("INSERT INTO l VALUES ('x')");
    it.undo(&intent);
    assert_eq!(rows(&it), "x,x,x,x");
}

const BOTH: &str =
    "CREATE TABLE t (id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, 'old'), (3, 'gone');
    CREATE TABLE l (x); INSERT INTO l VALUES ('x')";
const INSIDE: &str = "UPDATE t SET v = 'new' WHERE id = 1; INSERT INTO t VALUES (2, 'come'); DELETE FROM t WHERE id = 3;
    DELETE FROM l; INSERT INTO l VALUES ('y'); CREATE INDEX i ON t (v)";
const ALL: &str = "SELECT (SELECT group_concat(id || v) FROM (SELECT * FROM t ORDER BY id)) || ' '
    || (SELECT group_concat(x) FROM (SELECT x FROM l ORDER BY x)) || (SELECT ' ' || count(*) FROM sqlite_schema WHERE name = 'i')";

/// One transaction takes back all or nothing: where another process did a part of it, or the opposite, a person decides.
// rule C3, C19, Q2
#[test]
fn an_interrupted_undo_was_decided_row_by_row() {
    for (happened, meanwhile) in [
        (true, "INSERT INTO t VALUES (2, 'come')"),
        (true, "INSERT INTO l VALUES ('y')"),
        (
            true,
            "DELETE FROM t WHERE id = 3; DELETE FROM l; CREATE INDEX i ON t (v)",
        ),
        (true, "UPDATE t SET v = 'new' WHERE id = 1"),
        (false, "INSERT INTO l VALUES ('x')"),
        (
            false,
            "INSERT INTO t VALUES (3, 'gone'); DROP INDEX i; VACUUM",
        ),
        (false, "UPDATE t SET v = 'old' WHERE id = 1"),
    ] {
        let it = Staging::new(BOTH);
        let intent = it.staged(INSIDE);
        it.commit(&intent).expect("nothing contradicts");
        interrupted(&it, "undone", happened, &|| it.undo(&intent));
        it.other(meanwhile);
        let ask = ALL.replace(
            "(SELECT group_concat(x)",
            "(SELECT coalesce(group_concat(x), '')",
        );
        let before = it.ask(&ask);
        let untold = it.strategy.undo(&intent, &Unobserved);
        assert!(
            matches!(untold, Err(StrategyError::Untold { .. })),
            "{meanwhile}: {untold:?}"
        );
        assert_eq!(it.ask(&ask), before, "{happened}: {meanwhile}");
    }
    // What is neither says nothing.
    let it = Staging::new(BOTH);
    let intent = it.staged(INSIDE);
    it.commit(&intent).expect("nothing contradicts");
    interrupted(&it, "undone", false, &|| it.undo(&intent));
    it.other("INSERT INTO l VALUES ('y')");
    it.undo(&intent);
    assert_eq!(it.ask(ALL), "1old,3gone x,y 0");
}

/// A program that migrates its database by itself does not say that a commit happened which has more than that.
// rule C3, C19
#[test]
fn an_interrupted_commit_was_taken_for_done_by_what_another_process_set() {
    let it = Staging::new(&format!("{TWO}; PRAGMA user_version = 1"));
    let intent = it.staged(
        "CREATE INDEX i ON t (v); PRAGMA user_version = 2; INSERT INTO t VALUES (3, 'work')",
    );
    interrupted(&it, "done", false, &|| {
        it.commit(&intent).expect("nothing contradicts");
    });
    it.other("CREATE INDEX i ON t (v); PRAGMA user_version = 2");
    let untold = it.strategy.commit(&intent, &Unobserved);
    assert!(
        matches!(untold, Err(StrategyError::Untold { .. })),
        "{untold:?}"
    );
    assert_eq!(it.rows(), "1old 2old");
}

/// Where rows say both, or nothing, a person decides.
// rule C3, C19
#[test]
fn an_interrupted_undo_that_cannot_be_told_changes_nothing() {
    let come = "INSERT INTO t VALUES (3, 'come'), (4, 'come')";
    for (inside, happened, meanwhile) in [
        (NEW, true, "UPDATE t SET v = 'new' WHERE id = 1"),
        (NEW, false, "UPDATE t SET v = 'old' WHERE id = 1"),
        (NEW, true, "UPDATE t SET v = 'other'"),
        (come, true, "INSERT INTO t VALUES (3, 'come')"),
        (come, false, "DELETE FROM t WHERE id = 3"),
    ] {
        let it = Staging::new(TWO);
        let intent = it.staged(inside);
        it.commit(&intent).expect("nothing contradicts");
        interrupted(&it, "undone", happened, &|| it.undo(&intent));
        it.other(meanwhile);
        let before = it.rows();
        let untold = it.strategy.undo(&intent, &Unobserved);
        assert!(
            matches!(untold, Err(StrategyError::Untold { .. })),
            "{meanwhile}: {untold:?}"
        );
        assert_eq!(it.rows(), before, "{meanwhile}");
        it.other("DELETE FROM t WHERE id > 2; UPDATE t SET v = 'old'");
        it.undo(&intent);
        assert_eq!(it.rows(), "1old 2old", "{meanwhile}");
    }
}

/// What another process had set back before is no sign of an undo.
// rule C3, C19
#[test]
fn what_an_undo_left_as_it_was_does_not_say_that_it_happened() {
    for happened in [false, true] {
        let it = Staging::new(TWO);
        let intent =
            it.staged("UPDATE t SET v = 'new' WHERE id = 1; INSERT INTO t VALUES (3, 'come')");
        it.commit(&intent).expect("nothing contradicts");
        it.other("UPDATE t SET v = 'old' WHERE id = 1");
        interrupted(&it, "undone", happened, &|| it.undo(&intent));
        it.undo(&intent);
        assert_eq!(it.rows(), "1old 2old", "{happened}");
    }
}

// rule C3, C6
#[test]
fn a_table_without_a_key_that_another_process_dropped_kept_an_interrupted_commit_from_its_end() {
    for happened in [false, true] {
        let it = Staging::new(&format!("{TWO}; CREATE TABLE l (x)"));
        let intent = it.staged(&format!("{NEW}; INSERT INTO l VALUES ('y')"));
        interrupted(&it, "done", happened, &|| {
            it.commit(&intent).expect("nothing contradicts");
        });
        it.other("DROP TABLE l");
        assert_eq!(it.commit(&intent).is_ok(), happened);
        let undone = it.strategy.undo(&intent, &Unobserved).expect("it ends");
        assert_eq!(undone.kept[0].0.to_string(), "l");
        assert_eq!(it.rows(), "1old 2old");
    }
}
