//! A checkout with a database in it: the history of the one and the rows of the other are released together, and git never takes the
//! link that stands in the place of the database for a file.

use crate::git::{assert_sound, git, repository};
use crate::*;

/// A checkout in which a database lies, as two resources.
fn shop() -> (World, Cli, PathBuf) {
    let (world, cli, app) = repository();
    let made = "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO goods VALUES (1, 'saw')";
    sh(
        &app,
        &format!("mkdir data; sqlite3 'data/sh[o]p.db' \"{made}\""),
    );
    cli.ok([
        "resource",
        "add",
        "db",
        "--type",
        "sqlite",
        "--at",
        "data/sh[o]p.db",
        "--parent",
        "app",
    ]);
    cli.ok("plan create try -r app -r db");
    (world, cli, app)
}

const NAMES: &str = "sqlite3 'data/sh[o]p.db' 'SELECT name FROM goods ORDER BY id'";

const INSERT: &str = "sqlite3 'data/sh[o]p.db' \"INSERT INTO goods (name) VALUES ('axe')\"";

/// `git add -A` inside committed the link that leads to the sandbox's copy, and the commit of the plan brought it into the history.
// rule G1, C1, Q5
#[test]
fn a_commit_inside_brought_a_link_in_the_place_of_a_database() {
    as_user_too();
    let (_world, cli, app) = shop();
    let exclude = read(app.join(".git/info/exclude"));
    let work = "set -e; echo agent >> src/a; git add -A; git commit -qm 'agent work'; git status --short --ignored -uall";
    let said = cli.ok(in_try(&format!("{INSERT}; {work}")));
    has(&said, ["!! data/sh[o]p.db", "!! x.o"]);
    assert_eq!(sh(&app, NAMES), "saw\n");
    let shown = cli.ok("diff try");
    lacks(&shown, ["exclude", "modified  data"]);
    has(&shown, ["inserted", "goods/2", "agent work"]);
    cli.ok("commit try");
    assert_eq!(sh(&app, NAMES), "saw\naxe\n");
    let brought = git(&app, "show --name-only --format=%s HEAD");
    has(&brought, ["agent work", "src/a"]);
    lacks(&brought, ["data"]);
    assert_eq!(git(&app, "status --short"), "?? data/\n");
    assert_eq!(read(app.join(".git/info/exclude")), exclude);
    cli.ok("undo try");
    assert_eq!(sh(&app, NAMES), "saw\n");
    assert_sound(&app);
}

// rule G1, G4, C6
#[test]
fn a_link_that_was_committed_by_force_is_never_released() {
    for (work, back) in [
        (
            "git add -f data && git commit -qm link",
            "git rm -q --cached 'data/sh\\[o\\]p.db' && git commit -q --amend --allow-empty -m none",
        ),
        ("git add -f data", "git rm -q --cached 'data/sh\\[o\\]p.db'"),
        // In the history alone it was released, since only the index was looked at.
        (
            "git add -f data && git commit -qm link && git rm -q --cached 'data/sh\\[o\\]p.db'",
            "git commit -q --amend --allow-empty -m none",
        ),
    ] {
        let (_world, cli, app) = shop();
        let before = git(&app, "log --format=%H");
        cli.ok(in_try(&format!("{INSERT}; {work}")));
        for line in [
            "commit try",
            "commit try --on-conflict ours",
            "commit try --on-conflict theirs",
        ] {
            let refused = cli.run(line);
            let said = format!("{}{}", refused.stdout_text(), refused.stderr_text());
            assert_eq!(refused.status, 4, "{line}: {said}");
            has(&said, ["a link stands in the place of this database"]);
        }
        assert_eq!(git(&app, "log --format=%H"), before);
        assert_eq!(sh(&app, NAMES), "saw\n");
        cli.ok(in_try(back));
        cli.ok("commit try");
        assert_eq!(sh(&app, NAMES), "saw\naxe\n");
        assert_eq!(git(&app, "ls-files data"), "");
    }
}

/// What an agent leaves out of git by itself is released by name, without the lines that belong to the sandbox.
// rule G1
#[test]
fn what_is_excluded_inside_is_released_without_the_database() {
    let (_world, cli, app) = shop();
    let before = read(app.join(".git/info/exclude"));
    cli.ok(in_try("echo '*.tmp' >> .git/info/exclude"));
    has(&cli.ok("diff try"), [".git/info/exclude", "*.tmp"]);
    cli.ok("commit try --yes --only .git/info/exclude");
    assert_eq!(
        read(app.join(".git/info/exclude")),
        format!("{before}*.tmp\n")
    );
}

/// A copy of the link was released, and led nowhere.
// rule F2, Q5
#[test]
fn a_copy_of_the_link_to_a_database_was_released() {
    as_user_too();
    let (_world, cli, app) = shop();
    for work in [
        "cp -a data backup",
        "rm -r backup; ln -s \"$(readlink data/sh*)\" other; git add -A; git commit -qm other",
    ] {
        cli.ok(in_try(work));
        let refused = cli.run("commit try");
        assert_eq!(refused.status, 4, "{}", refused.stderr_text());
        has(
            &refused.stdout_text(),
            ["stands in the place of a database"],
        );
        assert!(!app.join("backup").exists() && !app.join("other").is_symlink());
    }
    cli.ok(in_try("rm other; git add -A; git commit -q --amend --allow-empty -m none; cp -L 'data/sh[o]p.db' copy.db"));
    cli.ok("commit try");
    assert_eq!(
        sh(&app, "sqlite3 copy.db 'SELECT name FROM goods'"),
        "saw\n"
    );
}
