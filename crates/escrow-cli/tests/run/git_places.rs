//! Checkouts whose git directory lies elsewhere: linked worktrees and submodules.

use crate::git::{assert_sound, checkout, cleaned, git, signature, world};
use crate::git_default::strategy;
use crate::*;

/// A repository below the home directory, and a linked worktree of it on the branch `topic`.
fn linked(world: &World) -> (Cli, PathBuf, PathBuf) {
    let home = world.dir("user-home");
    sh(
        &home,
        "git init -q -b main main && cd main && git config user.name U && git config user.email u@example.org
         echo one > a && echo two > b && git add -A && git commit -qm first
         git worktree add -q -b topic ../topic && cd ../topic && echo dirty >> b",
    );
    let (main, topic) = (home.join("main"), home.join("topic"));
    (Cli::new(world, &binary()).cwd(&topic), main, topic)
}

/// The commit went to the throw-away layer over the home directory, and was lost.
#[test]
fn a_commit_in_a_linked_worktree_below_the_home_directory_is_released() {
    as_user_too();
    let world = world();
    let (cli, main, topic) = linked(&world);
    let before = signature(&main);
    let link = read(topic.join(".git"));
    cli.ok(inside(
        "run --commit",
        "echo x >> a; git commit -qm x a; git stash list; git log -1 --format=%s >&2",
    ));
    assert_eq!(strategy(&cli, "topic"), "git_worktree");
    assert_eq!(git(&topic, "log --format=%s"), "x\nfirst\n");
    assert_eq!(git(&topic, "status --short"), " M b\n");
    assert_eq!(git(&main, "rev-parse topic"), git(&topic, "rev-parse HEAD"));
    assert_eq!(git(&main, "log --format=%s"), "first\n");
    assert_eq!(git(&main, "status --short"), "");
    assert_eq!(read(topic.join(".git")), link);
    assert_sound(&main);
    cli.ok("undo topic --yes");
    assert_eq!(git(&topic, "log --format=%s"), "first\n");
    assert_eq!(read(topic.join("a")), "one\n");
    cleaned(&cli);
    assert_sound(&main);
    // Without a release nothing moves, wherever the git directory lies.
    cli.ok("cleanup topic --yes");
    let now = signature(&main);
    let told = |all: &str| {
        let kept = all.lines().filter(|line| !line.contains("topic"));
        kept.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(told(&now), told(&before));
    cli.ok("plan create t -r .");
    cli.ok(in_plan("t", "git stash -q; git checkout -q -b other; echo y > y; git add y; git commit -qm y; git gc -q",
    ));
    cli.ok("checkpoint create t");
    cli.ok("rollback t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(signature(&main), now);
}

#[test]
fn the_main_checkout_and_one_of_a_bare_repository_work_beside_linked_worktrees() {
    let world = world();
    let (cli, main, topic) = linked(&world);
    let before = git(&topic, "ls-files -s");
    let cli = cli.cwd(&main);
    cli.ok(inside("run --commit", "echo x >> a; git commit -qam x"));
    assert_eq!(git(&main, "log --format=%s"), "x\nfirst\n");
    assert_eq!(git(&topic, "status --short"), " M b\n");
    assert_eq!(git(&topic, "ls-files -s"), before);
    sh(
        world.path(),
        "git clone -q --bare user-home/main bare.git && cd bare.git && git worktree add -q ../work main
         git config user.name U && git config user.email u@example.org",
    );
    let work = world.path().join("work");
    let cli = cli.cwd(&work);
    cli.ok(inside("run --commit", "echo y >> a; git commit -qam y"));
    assert_eq!(strategy(&cli, "work"), "git_worktree");
    assert_eq!(git(&work, "log --format=%s"), "y\nx\nfirst\n");
    assert_eq!(git(&work, "status --short"), "");
    // A bare repository is no checkout at all.
    let bare = cli.cwd(world.path().join("bare.git"));
    let made = json(&bare, "plan create bare -r .");
    assert_eq!(made["sandboxes"][0]["strategy"], "overlay", "{made}");
}

#[test]
fn a_git_directory_of_another_checkout_is_left_alone() {
    let world = world();
    let (cli, main, topic) = linked(&world);
    let home = topic.parent().expect("it has one").to_owned();
    sh(
        &home,
        "cp -r topic copy; mkdir evil; echo 'gitdir: ../main/.git' > evil/.git",
    );
    let before = signature(&main);
    for (name, why) in [("copy", "another checkout"), ("evil", "does not name this")] {
        let cli = cli.clone().cwd(home.join(name));
        let said = cli.ok(format!("plan create {name} -r ."));
        let said = said + &cli.ok(format!("plan show {name}"));
        assert!(said.contains(why), "{said}");
        assert_eq!(strategy(&cli, name), "overlay");
    }
    assert_eq!(signature(&main), before);
    // A worktree that is removed meanwhile leaves no reference of ours in the repository.
    cli.ok("plan create t -r .");
    sh(&main, "git worktree remove --force ../topic");
    cli.cwd(&main).ok("cleanup t --yes");
    assert_eq!(git(&main, "for-each-ref refs/escrow"), "");
}

// rule G6
#[test]
fn a_submodule_is_a_checkout_of_its_own() {
    let world = world();
    sh(
        world.path(),
        "git init -q -b main lib && git init -q -b main app
         for d in lib app; do git -C $d config user.name U; git -C $d config user.email u@example.org; done
         cd lib && echo one > a && git add a && git commit -qm first && cd ../app
         git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -qm app
         git -C lib config user.name U; git -C lib config user.email u@example.org",
    );
    let app = world.path().join("app");
    let cli = Cli::new(&world, &binary()).cwd(app.join("lib"));
    cli.ok(inside("run --commit", "echo x >> a; git commit -qam x"));
    assert_eq!(strategy(&cli, "lib"), "git_worktree");
    assert_eq!(git(&app.join("lib"), "log --format=%s"), "x\nfirst\n");
    assert_eq!(git(&app, "status --short"), " M lib\n");
    cli.ok("undo lib --yes");
    assert_eq!(git(&app, "status --short"), "");
}

// rule G6
#[test]
fn a_git_directory_that_was_put_elsewhere_works() {
    let world = world();
    let cli = checkout(&world);
    let app = world.path().join("app");
    sh(
        &app,
        "git init -q --separate-git-dir ../app.git .; test -f .git",
    );
    let before = git(&app, "status --short");
    cli.ok("plan create t -r app");
    assert_eq!(strategy(&cli, "t"), "git_worktree");
    let said = cli.ok(in_plan(
        "t",
        "git status --short; echo x >> src/a; git commit -qm x src/a",
    ));
    assert_eq!(said, before);
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    // The user goes on, and a rollback says where the history begins.
    sh(&app, "git commit -q --allow-empty --only -m user");
    let said = cli.ok("rollback t --yes");
    assert!(said.contains("by now"), "{said}");
    cli.ok(in_plan("t", "echo y >> src/a; git commit -qm y src/a"));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s -1 HEAD^2"), "y\n");
    assert_eq!(git(&app, "status --short"), before);
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(git(&app, "log --format=%s -1"), "user\n");
    assert_eq!(git(&app, "status --short"), before);
    assert_eq!(git(&app, "for-each-ref refs/escrow"), "");
}
