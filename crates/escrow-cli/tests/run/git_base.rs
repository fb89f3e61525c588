//! A sandbox that begins as a clean tree of a revision, not as the files lie.

use crate::git::{assert_sound, cleaned, git, signature, world};
use crate::*;

/// A checkout with two commits and with files that are changed, untracked and ignored; its resource `app` begins at `base`.
pub(crate) fn based(world: &World, base: &str) -> (Cli, PathBuf) {
    let app = world.dir("app");
    sh(
        &app,
        "git init -q -b main . && git config user.name U && git config user.email u@example.org
         mkdir src && echo one > src/a && echo two > b && echo keep > c && printf '*.o\\n.env\\nvendor/\\nout/\\n' > .gitignore
         git add -A && git commit -qm first && echo three > b && git commit -qam second
         echo dirty >> c && echo plain > u && echo o > x.o && echo secret > .env
         mkdir -p vendor/deep out && echo v > vendor/deep/v && ln -s /etc vendor/link && echo w > out/w",
    );
    std::fs::write(
        world.path().join("escrow.yaml"),
        format!("resources:\n  app: {{ type: git-checkout, at: app, base: '{base}' }}\n"),
    )
    .expect("there is room");
    // It shows less than what is there, and so needs no trust.
    (Cli::new(world, &binary()).cwd(world.path()), app)
}

// rule G2, G5
#[test]
fn trap_03_and_04_a_clean_tree_has_what_worktreeinclude_names_and_tells_what_is_not_there() {
    as_user_too();
    let world = world();
    let (cli, app) = based(&world, "HEAD");
    // Only what git ignores comes along, by git's own patterns; a bad one is told.
    std::fs::write(
        app.join(".worktreeinclude"),
        "# a comment\n.env\nvendor/\n!vendor/none\nu\nsrc/a\n*.[\n",
    )
    .expect("there is room");
    let before = signature(&app);
    let made = json(&cli, "plan create t -r app");
    let said = made["sandboxes"][0]["warnings"].to_string();
    for part in [
        "what is not committed is not in the sandbox: 'c'",
        "what is not tracked is not in the sandbox: '.worktreeinclude', 'u'",
        "what git ignores is not in the sandbox: 'out/', 'x.o'",
        "line 7: '*.['",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let seen = cli.ok(in_plan(
        "t",
        "cd app; git status --short; cat b c .env vendor/deep/v; readlink vendor/link; ls -A",
    ));
    let all = ".env\n.git\n.gitignore\nb\nc\nsrc\nvendor\n";
    assert_eq!(seen, format!("three\nkeep\nsecret\nv\n/etc\n{all}"));
    assert_eq!(
        json(&cli, "diff t")["resources"][0]["changes"],
        serde_json::json!([])
    );
    cli.ok("rollback t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(signature(&app), before);

    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "set -e; cd app; echo agent >> src/a; git rm -q b; mkdir new; echo n > new/n; git add new; git commit -qam agent
         echo more >> .env; chmod +x src/a; echo loose > loose",
    ));
    cli.ok("checkpoint create t");
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s"), "agent\nsecond\nfirst\n");
    assert_eq!(
        git(&app, "status --short"),
        " M c\n M src/a\n?? .worktreeinclude\n?? loose\n?? u\n"
    );
    assert_eq!(read(app.join("c")), "keep\ndirty\n");
    assert_eq!(read(app.join(".env")), "secret\nmore\n");
    assert_eq!(read(app.join("out/w")), "w\n");
    assert!(!app.join("b").exists());
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log --format=%s"), "second\nfirst\n");
    assert_eq!(
        git(&app, "status --short"),
        " M c\n?? .worktreeinclude\n?? u\n"
    );
    assert_eq!(read(app.join("src/a")), "one\n");
    assert_eq!(read(app.join(".env")), "secret\n");
    cleaned(&cli);
    assert_sound(&app);
}

// rule C15
#[test]
fn what_is_not_committed_in_the_checkout_is_never_overwritten() {
    let world = world();
    let (cli, app) = based(&world, "HEAD");
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "cd app; echo agent >> c; echo mine > u; rm -r src; echo four > b",
    ));
    sh(&app, "echo note > src/note");
    let before = signature(&app);
    let found = cli.expect("--json commit t", 4).stdout_text();
    for path in ["\"c\"", "\"u\"", "\"src/note\""] {
        assert!(found.contains(path), "{path}: {found}");
    }
    assert_eq!(signature(&app), before);
    cli.ok("commit t --yes --on-conflict original");
    assert_eq!(read(app.join("c")), "keep\ndirty\n");
    assert_eq!(read(app.join("u")), "plain\n");
    assert_eq!(read(app.join("src/note")), "note\n");
    assert_eq!(read(app.join("b")), "four\n");
}

/// What was released is compared with what is there, not with the clean tree.
#[test]
fn a_part_of_a_clean_tree_that_was_released_is_listed_no_more() {
    as_user_too();
    let world = world();
    let (cli, app) = based(&world, "HEAD");
    cli.ok("plan create t -r app");
    let work = "cd app; echo agent > src/a; echo four > b; echo new > n";
    cli.ok(in_plan("t", work));
    cli.ok("commit t --yes --only b --only n");
    cli.says("diff t --name-status", "M\tsrc/a\n");
    cli.ok(in_plan("t", "cd app; echo three > b; rm n"));
    cli.says("diff t --name-status", "M\tb\nD\tn\nM\tsrc/a\n");
    cli.ok("commit t --yes");
    assert_eq!(
        read(app.join("b")) + &read(app.join("src/a")),
        "three\nagent\n"
    );
    assert!(!app.join("n").exists());
    assert_sound(&app);
}

#[test]
fn an_older_revision_is_a_base_whose_work_is_merged() {
    let world = world();
    let (cli, app) = based(&world, "HEAD~1");
    cli.ok("plan create t -r app");
    let seen = cli.ok(in_plan("t", "cd app; git log --format=%s; cat b; echo agent >> src/a; git commit -qam agent; git status --short",
    ));
    assert_eq!(seen, "first\ntwo\n");
    cli.ok("plan fork t f");
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s -2 HEAD^1"), "second\nfirst\n");
    assert_eq!(git(&app, "log --format=%s -1 HEAD^2"), "agent\n");
    assert_eq!(read(app.join("b")), "three\n");
    assert_eq!(git(&app, "status --short"), " M c\n?? u\n");
    assert_eq!(cli.ok(in_plan("f", "cat app/src/a")), "one\nagent\n");
    cli.ok("cleanup f --yes");
    assert_sound(&app);
}

// rule G6
#[test]
fn a_base_that_is_none_is_refused() {
    for base in ["nothing", "-x", "HEAD:b"] {
        let world = world();
        let (cli, app) = based(&world, base);
        let before = signature(&app);
        assert_eq!(fails_as(&cli, "plan create t -r app", 1), "unsupported");
        assert_eq!(signature(&app), before);
    }
}

#[test]
fn root_gives_a_clean_tree_to_the_owner_of_the_checkout() {
    need!(escrow_testkit::skip::require_root("files of another user"));
    let world = world();
    let (cli, app) = based(&world, "HEAD");
    sh(&app, "chown -R 1234:1234 . && chmod -R a+rwX .");
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "cd app; git config --global safe.directory '*'; echo x >> src/a; git commit -qam x",
    ));
    cli.ok("commit t --yes");
    assert_eq!(read(app.join("src/a")), "one\nx\n");
    sh(
        &app,
        "test \"$(stat -c %a src/a)\" = 666; test -z \"$(find . -not -user 1234)\"",
    );
}
