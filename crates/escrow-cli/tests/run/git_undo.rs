//! Undo of a git commit: references move back by compare-and-swap, files by the tree commit, and what the user did since
//! is kept, or the undo refuses with the reason.

use crate::git::{assert_sound, cleaned, git, repository, signature};
use crate::*;

const WORK: &str = "echo agent >> src/a; git commit -qm agent src/a; echo n > n";

// rule G2
#[test]
fn an_undo_refuses_what_would_lose_work_of_the_user() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", WORK));
    cli.ok("commit t --yes");
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
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    // Nor is a file taken back that the user went on with.
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", WORK));
    cli.ok("commit u --yes");
    sh(&app, "echo mine >> src/a");
    let before = signature(&app);
    assert_eq!(fails_as(&cli, "undo u", 4), "conflict");
    assert_eq!(signature(&app), before);
    cleaned(&cli);
    assert_sound(&app);
}

// rule G2
#[test]
fn an_undo_keeps_what_it_does_not_touch() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", WORK));
    cli.ok("commit t --yes");
    sh(
        &app,
        "echo z > z; git add z b; echo own > own; git tag mine; git stash list; git branch side",
    );
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(
        git(&app, "status --short"),
        "M  b\nA  s\nA  z\n?? own\n?? u\n"
    );
    assert_eq!(git(&app, "log --format=%s mine"), "agent\nfirst\n");
    assert_eq!(read(app.join("src/a")), "one\n");
    cleaned(&cli);
    assert_sound(&app);
}
