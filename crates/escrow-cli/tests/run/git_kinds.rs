//! Every kind of repository works, or is refused with the reason (rule G6).

use escrow_testkit::user::rerun_test_as_user_with;

use crate::git::{assert_sound, cleaned, git, world};
use crate::git_default::strategy;
use crate::*;

/// A checkout `app` that a script makes in the world.
fn made(world: &World, script: &str) -> (Cli, PathBuf) {
    let set = "export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.name GIT_CONFIG_VALUE_0=U GIT_CONFIG_KEY_1=user.email \
        GIT_CONFIG_VALUE_1=u@example.org GIT_CONFIG_KEY_2=protocol.file.allow GIT_CONFIG_VALUE_2=always";
    let own = "git -C app config user.name U; git -C app config user.email u@example.org";
    sh(world.path(), &format!("{set}\n{script}\n{own}"));
    let app = world.path().join("app");
    (Cli::new(world, &binary()).cwd(&app), app)
}

const UPSTREAM: &str = "git init -q -b main up; cd up; git config uploadpack.allowFilter true
    mkdir in out; echo one > a; echo two > in/x; echo three > out/y; git add -A; git commit -qm first
    echo more >> out/y; git commit -qam second; cd ..";

/// What a user would miss, of any kind of repository.
fn state(app: &Path) -> String {
    let lines = [
        "for-each-ref",
        "reflog --all",
        "ls-files -s -t",
        "status --porcelain=v2 --ignored",
        "stash list",
    ];
    let said = lines.map(|line| git(app, line)).concat();
    said + &read(
        app.join(git(app, "rev-parse --git-common-dir").trim())
            .join("config"),
    )
}

/// A commit inside arrives, nothing else changes, and an undo takes it back.
fn lives(cli: &Cli, app: &Path, what: &str) {
    let (log, status) = (git(app, "log --format=%s"), git(app, "status --short"));
    let before = state(app);
    cli.ok(inside(
        "run",
        "echo agent >> a; git commit -qam agent; git gc -q",
    ));
    assert_eq!(strategy(cli, "app"), "git_worktree", "{what}");
    cli.ok("rollback app --yes");
    cli.ok("cleanup app --yes");
    assert_eq!(state(app), before, "{what}");
    cli.ok(inside(
        "run --commit",
        "set -e; echo agent >> a; git commit -qam agent; test -z \"$(git status --short)\"",
    ));
    assert_eq!(
        git(app, "log --format=%s"),
        format!("agent\n{log}"),
        "{what}"
    );
    assert_eq!(git(app, "status --short"), status, "{what}");
    assert_sound(app);
    cli.ok("undo --yes");
    assert_eq!(git(app, "log --format=%s"), log, "{what}");
    assert_eq!(git(app, "status --short"), status, "{what}");
    assert_eq!(read(app.join("a")), "one\n", "{what}");
    cleaned(cli);
    assert_sound(app);
}

// rule G6
#[test]
fn sha256_reftable_and_shallow_repositories_work() {
    let commit = "cd app; echo one > a; git add a; git commit -qm first; cd ..";
    for (what, script) in [
        (
            "sha256",
            format!("git init -q -b main --object-format=sha256 app; {commit}"),
        ),
        (
            "reftable",
            format!("git init -q -b main --ref-format=reftable app; {commit}"),
        ),
        (
            "shallow",
            format!("{UPSTREAM}; git clone -q --depth 1 \"file://$PWD/up\" app"),
        ),
    ] {
        let world = world();
        if what == "reftable" && !require_reftable(&world) {
            continue;
        }
        let (cli, app) = made(&world, &script);
        lives(&cli, &app, what);
    }
}

/// Whether this git can store references as tables; a skip where it cannot.
fn require_reftable(world: &World) -> bool {
    let tried = Command::new("git")
        .args(["init", "-q", "--ref-format=reftable", "probe"])
        .current_dir(world.path())
        .output();
    let can = tried.expect("there is a git").status.success();
    if !can {
        escrow_testkit::skip::skip("this git knows no reftable");
    }
    can
}

/// The cone is that of this checkout, and nothing is fetched: what it would be fetched from is gone.
#[test]
fn trap_11_sparse_checkouts_and_partial_clones_work_without_a_fetch() {
    for (what, clone) in [
        (
            "sparse index",
            "git clone -q --no-checkout up app; cd app; git sparse-checkout set --sparse-index in; git checkout -q main; cd ..",
        ),
        (
            "both",
            "git clone -q --filter=blob:none --sparse \"file://$PWD/up\" app; rm -rf up",
        ),
        (
            "a cone of a linked worktree",
            "git clone -q up main; git -C main worktree add -q -b topic ../app; git -C app sparse-checkout set in",
        ),
    ] {
        let world = world();
        let (cli, app) = made(&world, &format!("{UPSTREAM}; {clone}"));
        assert!(!app.join("out").exists(), "{what}");
        let seen = cli.ok(inside(
            "run",
            "ls -d out; git sparse-checkout list 2>/dev/null; true",
        ));
        assert!(!seen.starts_with("out\n"), "{what}: {seen}");
        cli.ok("cleanup app --yes");
        lives(&cli, &app, what);
        assert!(!app.join("out").exists(), "{what}");
    }
}

const SUBMODULE: &str = "git init -q -b main lib; cd lib; echo l > l; git add l; git commit -qm lib; cd ..
    git init -q -b main up; cd up; echo one > a; git add a; git submodule --quiet add ../lib lib; git commit -qm first; cd ..";

#[test]
fn trap_09_submodules_absent_initialised_and_dirty() {
    let world = world();
    let (cli, app) = made(&world, &format!("{SUBMODULE}; git clone -q up app"));
    lives(&cli, &app, "absent");
    // One that is initialised inside has its history in the private git directory.
    cli.ok("plan create t -r .");
    let init = "git -c protocol.file.allow=always submodule --quiet update --init; echo more > n";
    cli.ok(in_plan("t", init));
    assert_eq!(fails_as(&cli, "commit t --yes", 1), "unsupported");
    cli.ok("commit t --yes --exclude lib/** --exclude lib");
    assert_eq!(git(&app, "status --short"), "?? n\n");
    cli.ok("cleanup t --yes");
    for more in ["", "echo dirty >> app/lib/l"] {
        let world = world_of_submodules(more);
        let (cli, app) = (
            Cli::new(&world, &binary()).cwd(world.path().join("app")),
            world.path().join("app"),
        );
        let (lib, status) = (app.join("lib"), git(&app, "status --short"));
        let before = state(&lib);
        let made = json(&cli, "plan create t -r .");
        assert_eq!(made["sandboxes"][0]["strategy"], "git_worktree", "{made}");
        let said = cli.ok(in_plan("t", "git status --short; cd lib; echo more >> l; git log --format=%s; git status --short; git fsck; git stash list
             git branch own; cd ..; echo two >> a; git commit -qm work a; git submodule status",
        ));
        assert!(said.starts_with(&status), "{said}");
        assert!(said.contains("lib\n M l\n"), "{said}");
        cli.ok("commit t --yes");
        assert!(read(lib.join("l")).ends_with("more\n"));
        assert_eq!(git(&lib, "for-each-ref refs/escrow"), "");
        assert_eq!(git(&lib, "branch --list own"), "");
        assert_eq!(git(&app, "log --format=%s -1"), "work\n");
        assert_eq!(git(&app, "status --short"), " m lib\n");
        cli.ok("undo t --yes");
        assert_eq!(git(&app, "status --short"), status);
        cli.ok("cleanup t --yes");
        // Commits of the submodule are not released, and that is said.
        cli.ok("plan create u -r .");
        cli.ok(in_plan("u", "echo x >> lib/l; git -C lib -c user.name=U -c user.email=u@e commit -qam x; echo y > y"));
        assert_eq!(fails_as(&cli, "commit u --yes", 1), "unsupported");
        cli.ok(in_plan("u", "git -C lib reset -q --soft HEAD^"));
        // Nor is what names one, in the history or the index, though its HEAD is back where it was; nor where it has none.
        for (work, said) in [
            (
                "set -e; cd lib; git checkout -q -b fix; git -c user.name=U -c user.email=u@e commit -qm fix; cd ..
                 git add lib; git commit -qm names; git -C lib checkout -q -; echo z > z; git add z; git commit -qm later",
                "does not have",
            ),
            (
                "git reset -q --hard HEAD~2 && git update-index --cacheinfo 160000,$(git -C lib rev-parse fix),lib",
                "does not have",
            ),
            (
                "git reset -q && git -C lib checkout -q --orphan none",
                "HEAD",
            ),
        ] {
            cli.ok(in_plan("u", work));
            let failed = cli.fails("commit u --yes", 1);
            assert!(failed.contains("the submodule 'lib'"), "{failed}");
            assert!(failed.contains(said), "{failed}");
        }
        cli.ok("rollback u --yes");
        // One that is removed inside, with its private git directory, is removed as git removes it: the user's git directory stays.
        cli.ok(in_plan(
            "u",
            "git rm -qf lib; rm -rf .git/modules/lib; git commit -qm without",
        ));
        cli.ok("commit u --yes");
        assert_eq!(git(&app, "log --format=%s -1"), "without\n");
        assert!(!lib.exists() && app.join(".git/modules/lib/HEAD").exists());
        cli.ok("undo u --yes");
        cli.ok("cleanup u --yes");
        assert_eq!(state(&lib), before);
        assert_eq!(git(&app, "status --short"), status);
        cleaned(&cli);
        assert_sound(&app);
    }
    // A clean tree has none, and says so; one in which something is under way is refused with that.
    let world = world_of_submodules("");
    let app = world.path().join("app");
    let text = "resources:\n  app: {type: git-checkout, at: app, base: HEAD}\n";
    std::fs::write(world.path().join("escrow.yaml"), text).expect("it can be written");
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.trust();
    let made = json(&cli, "plan create b -r app").to_string();
    has(&made, ["submodules are not in the sandbox: 'lib'"]);
    let work = "set -e; test -z \"$(ls -A lib)\"; echo two >> a; git commit -qm b a";
    cli.ok(in_plan("b", work));
    cli.ok("commit b --yes");
    assert_eq!(git(&app, "log --format=%s -1"), "b\n");
    assert_eq!(git(&app, "status --short"), "");
    sh(
        &app,
        "cp .git/modules/lib/HEAD .git/modules/lib/MERGE_HEAD; rm ../escrow.yaml",
    );
    let made = json(&cli, "plan create m -r .");
    assert_eq!(made["sandboxes"][0]["strategy"], "overlay", "{made}");
    assert!(made.to_string().contains("a merge is under way"), "{made}");
}

/// A commit inside a submodule was found only by the commit that it kept from being made.
// rule G6
#[test]
fn a_commit_inside_a_submodule_is_said_by_diff_and_run_with_what_goes_on() {
    as_user_too();
    let world = world_of_submodules("");
    let app = world.path().join("app");
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("plan create t -r .");
    let commit = "git -C lib -c user.name=U -c user.email=u@e commit -qam inside";
    let ran = cli.run(in_plan(
        "t",
        &format!("echo x >> lib/l; {commit}; echo y > y"),
    ));
    let said = ran.stderr_text();
    has(
        &said,
        ["cannot be committed  app: commits were made in the submodule 'lib'"],
    );
    let typed = |said: &str| {
        let line = said
            .lines()
            .find(|line| line.starts_with("cannot be committed"));
        let line = line
            .unwrap_or_else(|| panic!("no obstacle is in: {said}"))
            .to_owned();
        let typed = line.split('`').nth(1).expect("a command to type");
        typed
            .strip_prefix("escrow ")
            .expect("one of ours")
            .replace('\'', "")
    };
    let diff = cli.run("diff t");
    has(
        &diff.stdout_text(),
        ["keeps this checkout from being committed"],
    );
    let next = typed(&diff.stderr_text());
    assert_eq!(next, typed(&said));
    assert_eq!(fails_as(&cli, "commit t --yes", 1), "unsupported");
    cli.ok(next);
    lacks(&cli.run("diff t").stderr_text(), ["cannot be committed"]);
    cli.ok("commit t --yes");
    assert!(read(app.join("lib/l")).ends_with("x\n"));
    assert_eq!(read(app.join("y")), "y\n");
    assert_eq!(git(&app, "status --short"), " m lib\n?? y\n");
    // Where the checkout itself names such a commit, its history stays inside too.
    sh(&app, "git -C lib checkout -q l");
    cli.ok("plan create u -r .");
    let names = "git add lib; git commit -qm names; echo z > z";
    let ran = cli.run(in_plan("u", &format!("echo w >> lib/l; {commit}; {names}")));
    let next = typed(&ran.stderr_text());
    has(&next, ["commit u --exclude .git/** --exclude lib/**"]);
    assert_eq!(fails_as(&cli, "commit u --yes", 1), "unsupported");
    cli.ok(format!("{next} --yes"));
    assert_eq!(read(app.join("z")), "z\n");
    assert_eq!(git(&app, "status --short"), "?? y\n?? z\n");
    has(&cli.run("diff u").stderr_text(), ["cannot be committed"]);
}

fn world_of_submodules(more: &str) -> World {
    let world = world();
    made(
        &world,
        &format!("{SUBMODULE}; git clone -q --recurse-submodules up app; {more}"),
    );
    world
}

// rule G6
#[test]
fn a_repository_that_is_collected_moved_or_deleted_loses_no_work() {
    let world = world();
    let (cli, app) = made(&world, &format!("{UPSTREAM}; git clone -q up app"));
    cli.ok(inside("run", "echo agent >> a; git commit -qam agent"));
    // The base is on no branch any more; what keeps it alive is ours.
    sh(
        &app,
        "git reset -q --hard HEAD~1; git remote remove origin; git reflog expire --expire=now --all; git gc -q --prune=now",
    );
    let log = cli.ok(in_plan("app", "git fsck >/dev/null && git log --format=%s"));
    assert_eq!(log, "agent\nsecond\nfirst\n");
    cli.ok("commit app --yes");
    assert_eq!(git(&app, "log --format=%s"), "agent\nsecond\nfirst\n");
    assert_sound(&app);

    cli.ok(inside(
        "run --new",
        "echo again >> a; git commit -qam again",
    ));
    let cli = cli.cwd(world.path());
    let plan = json(&cli, "plan list")["plans"][0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    for (away, back) in [
        ("mv app elsewhere", "mv elsewhere app"),
        ("mv app/.git git", "mv git app/.git"),
    ] {
        sh(world.path(), away);
        let said = cli.fails(format!("commit {plan} --yes"), 1);
        assert!(said.contains("app"), "{said}");
        sh(world.path(), back);
        assert_eq!(git(&app, "log -1 --format=%s"), "agent\n");
    }
    sh(world.path(), "rm -rf app/.git");
    cli.ok(format!("cleanup {plan} --yes"));
    assert_eq!(read(app.join("a")), "one\nagent\n");
    cli.ok("gc --max-size 0");
    assert_eq!(world.areas(), Vec::<String>::new());
}

// rules G5, G6
#[test]
fn submodules_lfs_pointers_and_a_sparse_checkout_in_one_repository() {
    rerun_test_as_user_with(
        "git_kinds::submodules_lfs_pointers_and_a_sparse_checkout_in_one_repository",
        &[&binary()],
    );
    let world = world();
    let script = format!(
        "{SUBMODULE}
         cd up; echo '*.bin filter=lfs diff=lfs merge=lfs -text' > .gitattributes; mkdir in out
         printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:00\\nsize 3\\n' > in/p.bin; cp in/p.bin out/q.bin
         echo x > out/x; git add -A; git commit -qm all; cd ..
         git clone -q --recurse-submodules up app; cd app
         git sparse-checkout set --cone in; git -C lib sparse-checkout set --cone; cd .."
    );
    let (cli, app) = made(&world, &script);
    assert!(!app.join("out").exists());
    let pointer = read(app.join("in/p.bin"));
    lives(&cli, &app, "all in one");
    cli.ok("plan create t -r .");
    cli.ok(in_plan("t", "set -e; test ! -e out; git submodule status; git -C lib log --format=%s
         echo new > in/n; git add in/n; git commit -qm new; echo more >> lib/l; git mv in/p.bin in/r.bin; git commit -qm moved",
    ));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s -2"), "moved\nnew\n");
    assert_eq!(read(app.join("in/r.bin")), pointer);
    assert_eq!(read(app.join("lib/l")), "l\nmore\n");
    assert!(!app.join("out").exists());
    assert_eq!(git(&app, "status --short"), " m lib\n");
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(git(&app, "status --short"), "");
    assert_eq!(read(app.join("in/p.bin")), pointer);
    cleaned(&cli);
    assert_sound(&app);
}
