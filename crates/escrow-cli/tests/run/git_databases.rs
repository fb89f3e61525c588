//! A checkout with a database in it: the history of the one and the rows of the other are released together, and git never takes the
//! link that stands in the place of the database for a file.

use crate::git::{assert_sound, cleaned, git, repository};
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
    cleaned(&cli);
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
            "commit try --on-conflict sandbox",
            "commit try --on-conflict original",
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

/// Of a database that git keeps versions of, `git add -A` committed the link that stands in its place, and the commit of the
/// plan was refused until somebody took it out by hand.
// rule G1, C1, Q5
#[test]
fn a_tracked_database_is_unchanged_to_git_inside() {
    as_user_too();
    for sparse in [false, true] {
        let (_world, cli, app) = shop();
        cli.ok("rollback try");
        cli.ok("cleanup try");
        sh(
            &app,
            "git add data; git commit -qm data data; git branch before HEAD~1",
        );
        if sparse {
            sh(&app, "git sparse-checkout set --no-cone '/*'");
        }
        cli.ok("plan create again -r app -r db");
        // In a sparse checkout git looks for itself at what it is told to skip; what it does not write is left alone all the same.
        let back = if sparse {
            "true"
        } else {
            "git stash -q; git reset -q --hard"
        };
        let work = "set -e; git status --short data; echo agent >> src/a; git add -A; git add .; git commit -qam work";
        let look = "git ls-files -s data | cut -d' ' -f1; git diff HEAD --stat -- data";
        let said = cli.ok(in_plan(
            "again",
            &format!("{INSERT}; {work}; {back}; {look}; {NAMES}"),
        ));
        assert_eq!(said, "100644\nsaw\naxe\n", "sparse: {sparse}");
        cli.ok("commit again");
        assert_eq!(sh(&app, NAMES), "saw\naxe\n");
        let brought = git(&app, "show --name-only --format=%s HEAD");
        has(&brought, ["work", "src/a"]);
        lacks(&brought, ["data"]);
        // Outside the database is the file that it always was, and git sees its rows change.
        assert_eq!(git(&app, "status --short data"), " M data/sh[o]p.db\n");
        let listed = git(&app, "ls-files -v data");
        assert!(listed.starts_with("H "), "{listed}");
    }
}

/// A tracked database that is taken out of git inside is taken out of it, and stays where it is.
// rule G1, Q5
#[test]
fn a_tracked_database_that_is_untracked_inside_stays_a_database() {
    let (_world, cli, app) = shop();
    cli.ok("rollback try");
    cli.ok("cleanup try");
    sh(&app, "git add data; git commit -qm data data");
    cli.ok("plan create again -r app -r db");
    let work = "set -e; git rm -q --cached --sparse 'data/sh\\[o\\]p.db'; git commit -qm without";
    cli.ok(in_plan("again", &format!("{INSERT}; {work}")));
    cli.ok("commit again");
    assert_eq!(sh(&app, NAMES), "saw\naxe\n");
    assert_eq!(git(&app, "ls-files data"), "");
    assert_eq!(git(&app, "log --format=%s -1"), "without\n");
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
