//! A git checkout is found by itself: what used to go wrong where it was taken for a directory.

use std::path::Path;

use escrow_testkit::{Cli, World};

use crate::git::{assert_sound, git, signature, world};
use crate::{as_user_too, binary, inside, json, read, sh, words};

/// A checkout with a commit, of which Escrow was told nothing.
pub(crate) fn untold(world: &World) -> Cli {
    let app = world.dir("app");
    sh(
        &app,
        "git init -q -b main . && git config user.name U && git config user.email u@example.org
         mkdir src && echo one > src/a && echo two > b && git add -A && git commit -qm first",
    );
    Cli::new(world, &binary()).cwd(&app)
}

#[track_caller]
pub(crate) fn strategy(cli: &Cli, plan: &str) -> String {
    let shown = json(cli, &format!("plan show {plan}"));
    let strategy = &shown["sandboxes"][0]["strategy"];
    strategy.as_str().expect("a name").to_owned()
}

// rule G1
#[test]
fn a_checkout_has_a_private_history_without_being_told() {
    as_user_too();
    let world = world();
    let (cli, app) = (untold(&world), world.path().join("app"));
    let before = signature(&app);
    cli.ok(inside(
        "run",
        "echo more >> src/a; git commit -qam agent; git stash list; git config x.y z",
    ));
    assert_eq!(strategy(&cli, "app"), "git_worktree");
    let kept = git(&app, "for-each-ref --format=%(refname) refs/escrow");
    git(&app, &format!("update-ref -d {}", kept.trim()));
    sh(&app, "rmdir .git/refs/escrow");
    assert_eq!(signature(&app), before);
    cli.ok(words("commit app --yes"));
    assert_eq!(git(&app, "log --format=%s"), "agent\nfirst\n");
    assert_eq!(git(&app, "status --short"), "");
    assert_sound(&app);
    // By a path, and by the file that `init` writes, too.
    let made = json(&cli, "plan create bare -r .");
    assert_eq!(made["sandboxes"][0]["strategy"], "git_worktree", "{made}");
    cli.ok(words("cleanup bare --yes"));
    let begun = json(&cli, "init");
    assert_eq!(begun["resources"][0]["type"], "git-checkout", "{begun}");
    assert_eq!(json(&cli, "doctor")["auto"], "git_worktree");
}

#[test]
fn what_was_said_of_strategies_counts_more_than_what_stands_there() {
    let world = world();
    let cli = untold(&world);
    let other = cli
        .clone()
        .env("ESCROW_SANDBOX_STRATEGY", "filesystem_copy");
    other.ok(words("plan create t -r ."));
    assert_eq!(strategy(&cli, "t"), "filesystem_copy");
    cli.ok(words("cleanup t --yes"));
    cli.ok(words("resource add app --type fs-directory --at ."));
    cli.ok(words("plan create u -r ."));
    assert_eq!(strategy(&cli, "u"), "overlay");
}

/// A status outside writes the index, which was a conflict at `.git/index`.
#[test]
fn an_editor_that_asks_for_the_status_outside_is_no_conflict() {
    let world = world();
    let (cli, app) = (untold(&world), world.path().join("app"));
    cli.ok(inside("run", "echo more >> src/a; git commit -qam agent"));
    sh(
        &app,
        "touch -d '2001-01-01' b; GIT_OPTIONAL_LOCKS=1 git status >&2; git add -N .",
    );
    cli.ok(words("commit app --yes"));
    assert_eq!(git(&app, "log --format=%s"), "agent\nfirst\n");
    assert_eq!(git(&app, "status --short"), "");
    assert_sound(&app);
}

#[test]
fn without_git_a_checkout_is_a_directory_and_says_so() {
    if !escrow_testkit::skip::require_root("the program is hidden by a mount") {
        return;
    }
    let world = world();
    let (cli, app) = (untold(&world), world.path().join("app"));
    let hidden = "mount -t tmpfs none /usr/local/bin; mount -t tmpfs none /usr/bin; exec \"$@\"";
    let outer = ["unshare", "-m", "sh", "-euc", hidden, "sh"];
    let made = |line: &str| {
        let output = cli.behind(&outer, line).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &said
    };
    let said = made("plan create t -r .");
    assert!(said.contains("git is not installed"), "{said}");
    assert_eq!(strategy(&cli, "t"), "overlay");
    made("write t app src/a --from b");
    made("commit t --yes");
    assert_eq!(read(app.join("src/a")), "two\n");
    assert_eq!(
        read(Path::new(&app).join(".git/HEAD")),
        "ref: refs/heads/main\n"
    );
}
