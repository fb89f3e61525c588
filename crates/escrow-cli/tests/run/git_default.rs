//! A git checkout is found by itself: what used to go wrong where it was taken for a directory.

use escrow_testkit::{Cli, Mounted, World};

use crate::git::{assert_sound, git, signature, world};
use crate::*;

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
    cli.ok("commit app --yes");
    assert_eq!(git(&app, "log --format=%s"), "agent\nfirst\n");
    assert_eq!(git(&app, "status --short"), "");
    assert_sound(&app);
    // By a path, and by the file that `init` writes, too.
    let made = json(&cli, "plan create bare -r .");
    assert_eq!(made["sandboxes"][0]["strategy"], "git_worktree", "{made}");
    cli.ok("cleanup bare --yes");
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
    other.ok("plan create t -r .");
    assert_eq!(strategy(&cli, "t"), "filesystem_copy");
    cli.ok("cleanup t --yes");
    cli.ok("resource add app --type fs-directory --at .");
    cli.ok("plan create u -r .");
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
    cli.ok("commit app --yes");
    assert_eq!(git(&app, "log --format=%s"), "agent\nfirst\n");
    assert_eq!(git(&app, "status --short"), "");
    assert_sound(&app);
}

#[test]
fn without_git_a_checkout_is_a_directory_and_says_so() {
    need!(escrow_testkit::skip::require_root(
        "the program is hidden by a mount"
    ));
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

/// A file system without extended attributes holds no layers.
// rule G1, R1
#[test]
fn where_no_layer_can_be_had_the_private_history_lies_over_a_copy() {
    need!(escrow_testkit::skip::require_root("a mount"));
    for user in [false, true] {
        let outer = world();
        let ram = Mounted::new(["-t", "ramfs", "ramfs"], &outer.dir("ram"));
        sh(outer.path(), "chmod 777 ram");
        let world = World::under(&outer.path().join("ram"));
        let (mut cli, app) = (untold(&world), world.path().join("app"));
        if user {
            world.chown_to_user();
            cli = cli.user();
        }
        let git = |line: &str| sh(&app, &format!("git -c safe.directory='*' {line}"));
        let made = json(&cli, "plan create t -r .");
        assert_eq!(made["sandboxes"][0]["strategy"], "git_worktree", "{made}");
        assert!(made.to_string().contains("it is copied"), "{made}");
        let inside = |plan: &str, script: &str| {
            cli.ok(inside(
                &format!("run --plan {plan}"),
                &format!("set -e; {script}"),
            ))
        };
        let state = "git log --format=%s; git status --short; git branch --format='%(refname)'";
        inside(
            "t",
            "echo x >> src/a; git commit -qam one; echo loose > loose; git gc -q",
        );
        let here = inside("t", state);
        cli.ok("checkpoint create t -m here");
        inside("t", "git reset -q --hard HEAD~1; git checkout -q -b side");
        let side = inside("t", state);
        cli.ok("plan fork t f");
        cli.ok("restore t here");
        assert_eq!(inside("t", state), here);
        assert_eq!(inside("f", state), side);
        // Both sides commit, and are merged.
        sh(
            &app,
            "git -c safe.directory='*' commit -q --allow-empty -m user; chown -R --reference=. .",
        );
        cli.ok("commit t --yes -m merged");
        assert_eq!(
            git("log --format=%s --first-parent"),
            "merged\nuser\nfirst\n"
        );
        assert_eq!(git("status --short"), "?? loose\n");
        cli.ok("undo t --yes");
        assert_eq!(git("log --format=%s"), "user\nfirst\n");
        assert_eq!(git("status --short"), "");
        cli.ok("rollback f --yes");
        assert_eq!(inside("f", state), "first\nrefs/heads/main\n");
        for plan in ["t", "f"] {
            cli.ok(format!("cleanup {plan} --yes"));
        }
        assert_eq!(
            git("for-each-ref --format='%(refname)'"),
            "refs/heads/main\n"
        );
        assert_eq!(git("fsck --strict"), "");
        assert_eq!(sh(&app, "find .git -name '*.lock' -o -name 'tmp_*'"), "");
        drop(ram);
    }
}

/// The file `.git` of a linked worktree is there, and changes of a clean tree are released into the checkout.
// rule G6, R1
#[test]
fn linked_worktrees_and_clean_trees_are_copied_where_no_layer_can_be_had() {
    need!(escrow_testkit::skip::require_root("a mount"));
    for user in [false, true] {
        let outer = world();
        let ram = Mounted::new(["-t", "ramfs", "ramfs"], &outer.dir("ram"));
        sh(outer.path(), "chmod 777 ram");
        let world = World::under(&outer.path().join("ram"));
        let mut cli = untold(&world).cwd(world.path());
        sh(
            world.path(),
            "git -C app worktree add -q -b side ../linked; echo dirty >> app/b; echo mine > app/u
             printf 'resources:\n  linked: {type: git-checkout, at: linked}\n  app: {type: git-checkout, at: app, base: HEAD}\n' > escrow.yaml",
        );
        if user {
            world.chown_to_user();
            cli = cli.user();
        }
        let look = "for one in linked app; do git -c safe.directory='*' -C $one log --format=%s
            git -c safe.directory='*' -C $one status --short; cat $one/src/a; done";
        let inside = |plan: &str, script: &str| {
            let script = format!("set -e; cd '{}'; {script}", world.path().display());
            cli.ok(inside(&format!("run --plan {plan}"), &script))
        };
        let before = sh(world.path(), look);
        let made = json(&cli, "plan create t -r linked -r app");
        for one in made["sandboxes"].as_array().expect("a list") {
            assert_eq!(one["strategy"], "git_worktree", "{made}");
            assert!(
                one["warnings"].to_string().contains("it is copied"),
                "{made}"
            );
        }
        let fresh = "first\none\nfirst\none\n";
        assert_eq!(inside("t", look), fresh);
        inside(
            "t",
            "test -f linked/.git; for one in linked app; do cd $one; echo x >> src/a; git commit -qam $one; git gc -q; cd ..; done",
        );
        let worked = "linked\nfirst\none\nx\napp\nfirst\none\nx\n";
        assert_eq!(inside("t", look), worked);
        cli.ok("checkpoint create t -m here");
        inside(
            "t",
            "cd linked; rm -r src; git commit -qam gone; cd ../app; rm b; git stash -q",
        );
        cli.ok("plan fork t f");
        cli.ok("restore t here");
        assert_eq!(inside("t", look), worked);
        cli.ok("rollback f --yes");
        assert_eq!(inside("f", look), fresh);
        cli.ok("commit t --yes");
        assert_eq!(
            sh(world.path(), look),
            "linked\nfirst\none\nx\napp\nfirst\n M b\n?? u\none\nx\n"
        );
        cli.ok("undo t --yes");
        assert_eq!(sh(world.path(), look), before);
        // What is not committed is not overwritten.
        inside("f", "echo theirs > app/b; echo theirs > app/u");
        let found = cli.expect("--json commit f", 4).stdout_text();
        has(&found, ["\"b\"", "\"u\""]);
        for plan in ["t", "f"] {
            cli.ok(format!("cleanup {plan} --yes"));
        }
        assert_eq!(sh(world.path(), look), before);
        let left = "cd app; git -c safe.directory='*' for-each-ref refs/escrow; git -c safe.directory='*' fsck --strict
            find .git -name '*.lock' -o -name 'tmp_*'";
        assert_eq!(sh(world.path(), left), "");
        drop(ram);
    }
}
