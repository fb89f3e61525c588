//! Undo of a git commit: references move back by compare-and-swap, files by the tree commit, and what the user did since
//! is kept, or the undo refuses with the reason.

use escrow_testkit::Cli;

use crate::git::{assert_sound, checkout, git, signature, world};
use crate::{fails_as, inside, read, sh, words};

/// It fails, and names this.
#[track_caller]
fn assert_refused(cli: &Cli, line: &str, named: &str) {
    let failed = cli.run(words(line));
    let said = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status, 1, "{said}");
    assert!(said.contains(named), "{said}");
}

const WORK: &str = "echo agent >> src/a; git commit -qm agent src/a; echo n > n";

// rule G2
#[test]
fn an_undo_refuses_what_would_lose_work_of_the_user() {
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    cli.ok(words("plan create t -r app"));
    cli.ok(inside("run --plan t", WORK));
    cli.ok(words("commit t --yes"));
    for (change, back) in [
        (
            "echo more > more; git add more; git commit -qm more more",
            "git reset -q --soft HEAD^; git reset -q more; rm more",
        ),
        (
            "git checkout -q -b elsewhere",
            "git checkout -q main; git branch -q -d elsewhere",
        ),
    ] {
        sh(&app, change);
        let before = signature(&app);
        assert_eq!(fails_as(&cli, "undo t", 4), "conflict", "{change}");
        assert_eq!(signature(&app), before, "{change}");
        sh(&app, back);
    }
    // A branch that was deleted is not made again.
    sh(&app, "git checkout -q --detach; git branch -q -D main");
    assert_eq!(fails_as(&cli, "undo t", 4), "conflict");
    assert_eq!(git(&app, "for-each-ref refs/heads"), "");
    sh(&app, "git checkout -q -b main");
    cli.ok(words("undo t --yes"));
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    // Nor is a file taken back that the user went on with.
    cli.ok(words("plan create u -r app"));
    cli.ok(inside("run --plan u", WORK));
    cli.ok(words("commit u --yes"));
    sh(&app, "echo mine >> src/a");
    let before = signature(&app);
    assert_eq!(fails_as(&cli, "undo u", 4), "conflict");
    assert_eq!(signature(&app), before);
    assert_sound(&app);
}

// rule G2
#[test]
fn an_undo_keeps_what_it_does_not_touch() {
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    cli.ok(words("plan create t -r app"));
    cli.ok(inside("run --plan t", WORK));
    cli.ok(words("commit t --yes"));
    sh(
        &app,
        "echo z > z; git add z b; echo own > own; git tag mine; git stash list; git branch side",
    );
    cli.ok(words("undo t --yes"));
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(
        git(&app, "status --short"),
        "M  b\nA  s\nA  z\n?? own\n?? u\n"
    );
    assert_eq!(git(&app, "log --format=%s mine"), "agent\nfirst\n");
    assert_eq!(read(app.join("src/a")), "one\n");
    assert_sound(&app);
}

#[test]
fn two_plans_of_one_repository_are_undone_in_one_order_and_refused_in_the_other() {
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    let before = git(&app, "status --short");
    for plan in ["p", "q"] {
        cli.ok(words(&format!("plan create {plan} -r app")));
        let work = format!("echo {plan} > {plan}; git add {plan}; git commit -qm {plan} {plan}");
        cli.ok(inside(&format!("run --plan {plan}"), &work));
    }
    for plan in ["p", "q"] {
        cli.ok(words(&format!("commit {plan} --yes")));
    }
    assert_eq!(git(&app, "log --format=%s -1 HEAD^2"), "q\n");
    assert_eq!(git(&app, "status --short"), before);
    let both = signature(&app);
    assert_eq!(fails_as(&cli, "undo p", 4), "conflict");
    assert_eq!(signature(&app), both);
    cli.ok(words("undo q --yes"));
    assert_eq!(git(&app, "log --format=%s"), "p\nfirst\n");
    cli.ok(words("undo p --yes"));
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), before);
    assert_sound(&app);
}

// rule S5
#[test]
fn a_lock_of_a_running_git_is_waited_for_and_then_told() {
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    cli.ok(words("plan create t -r app"));
    cli.ok(inside("run --plan t", WORK));
    let before = signature(&app);
    // Held for a while.
    sh(
        &app,
        ": > .git/index.lock; (sleep 2; rm .git/index.lock) & :",
    );
    cli.ok(words("commit t --yes"));
    cli.ok(words("undo t --yes"));
    // Held for ever: nothing is done, and it says what to look for.
    cli.ok(words("cleanup t --yes"));
    cli.ok(words("plan create u -r app"));
    cli.ok(inside("run --plan u", WORK));
    sh(&app, ": > .git/index.lock");
    assert_refused(&cli, "commit u --yes", "index.lock");
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    sh(&app, "rm .git/index.lock; : > .git/refs/heads/main.lock");
    assert_refused(&cli, "commit u --yes", "main.lock");
    sh(&app, "rm .git/refs/heads/main.lock");
    assert_eq!(read(app.join("src/a")), "one\n");
    cli.ok(words("commit u --yes"));
    assert_eq!(git(&app, "log --format=%s"), "agent\nfirst\n");
    cli.ok(words("undo u --yes"));
    cli.ok(words("cleanup u --yes"));
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert!(before.contains("first"));
    assert_sound(&app);
}
