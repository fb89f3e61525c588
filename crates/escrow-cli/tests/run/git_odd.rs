//! Repositories that are not plain, and the traps that come with them.

use crate::git::{assert_sound, checkout, git, world};
use crate::*;

const COMMIT: &str = "set -e; echo x >> src/a; git commit -qm x src/a";

/// A world, a program in its `app`, and that.
fn furnished(script: &str) -> (World, Cli, PathBuf) {
    let world = world();
    let cli = checkout(&world);
    let app = world.path().join("app");
    sh(&app, script);
    (world, cli, app)
}

/// Commits inside, releases, takes back.
#[track_caller]
fn there_and_back(cli: &Cli, app: &Path) {
    let before = git(app, "status --porcelain=v2 --ignored");
    let head = git(app, "rev-parse HEAD");
    cli.ok("plan create t -r app");
    cli.ok(inside("run --plan t", COMMIT));
    cli.ok("commit t --yes");
    assert_eq!(git(app, "log -1 --format=%s"), "x\n");
    assert_eq!(read(app.join("src/a")), "one\nx\n");
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(git(app, "rev-parse HEAD"), head);
    assert_eq!(git(app, "status --porcelain=v2 --ignored"), before);
    assert_sound(app);
}

/// A plan that begins as a clean tree of HEAD; what it says when it is made.
fn clean(world: &World, app: &Path) -> (Cli, String) {
    let text = "resources:\n  clean: { type: git-checkout, at: app, options: { base: HEAD } }\n";
    write(world.path().join("escrow.yaml"), text);
    let home = world.dir("home-clean");
    let cli = Cli::new(world, &binary())
        .cwd(world.path())
        .env("ESCROW_HOME", home);
    cli.trust();
    let made = json(&cli, "plan create t -r clean");
    assert!(app.exists());
    (cli, made["sandboxes"][0]["warnings"].to_string())
}

// rule G5
#[test]
fn trap_03_untracked_files_are_there_or_told() {
    let (world, cli, app) = furnished("true");
    cli.ok("plan create t -r app");
    let seen = cli.ok(inside("run --plan t", "cat u x.o s; tail -1 b"));
    assert_eq!(seen, "plain\nobject\nstaged\ndirty\n");
    cli.ok("cleanup t --yes");
    // In a clean tree they are not, and the plan says so by name.
    let (cli, said) = clean(&world, &app);
    has(&said, ["'u'", "'x.o'", "'b'"]);
    cli.ok("cleanup t --yes");
}

// rule G5
#[test]
fn trap_04_ignored_files_come_along_as_named() {
    let (world, _cli, app) = furnished(
        "printf '.env*\\nnode_modules/\\n' > .gitignore; git commit -qm ignore .gitignore; echo secret > .env; echo other > .env.local
         mkdir -p node_modules/m; echo js > node_modules/m/i.js; ln -s /etc node_modules/etc; rm x.o
         printf '.env\\n/node_modules/\\nu\\nsrc/\\n!.env.local\\n*.[\\n' > .worktreeinclude",
    );
    let (cli, said) = clean(&world, &app);
    has(&said, ["line 6", "'.env.local'"]);
    let seen = cli.ok(inside(
        "run --plan t",
        "cd app; cat .env node_modules/m/i.js; readlink node_modules/etc; ls -A; git status --short",
    ));
    let all = ".env\n.git\n.gitignore\nb\nnode_modules\nsrc\n";
    assert_eq!(seen, format!("secret\njs\n/etc\n{all}"));
    cli.ok("cleanup t --yes");
}

/// A repository to be used as a submodule.
const LIBRARY: &str = "mkdir ../lib; cd ../lib; git init -q -b main .; git config user.name U; git config user.email u@e
    echo lib > l; git add l; git commit -qm lib; cd ../app
    git -c protocol.file.allow=always submodule --quiet add ../lib lib 2>/dev/null; git commit -qm lib .gitmodules lib";

// rule G6
#[test]
fn trap_09_submodules_absent_initialised_and_dirty() {
    for (state, script) in [
        (
            "absent",
            "git submodule --quiet deinit -f lib; rm -rf .git/modules/lib",
        ),
        ("initialised", "true"),
        ("dirty", "echo dirty >> lib/l; echo untracked > lib/u"),
    ] {
        let (_world, cli, app) = furnished(&format!("{LIBRARY}; {script}"));
        let before = git(&app, "status --porcelain=v2 --ignored");
        let work = sh(&app, "find lib -type f | sort | xargs -r sha256sum");
        let made = json(&cli, "plan create t -r app");
        let strategy = made["sandboxes"][0]["strategy"].as_str().expect("a name");
        if strategy != "git_worktree" {
            has(&cli.ok("plan show t"), ["submodule"]);
        }
        let seen = cli.ok(inside(
            "run --plan t",
            "find lib -type f | sort | xargs -r sha256sum",
        ));
        assert_eq!(seen, work, "{state}");
        cli.ok(inside("run --plan t", COMMIT));
        cli.ok("commit t --yes");
        assert_eq!(git(&app, "log -1 --format=%s"), "x\n", "{state}");
        assert_eq!(
            git(&app, "status --porcelain=v2 --ignored"),
            before,
            "{state}"
        );
        // Nothing needs to be forced.
        cli.ok("cleanup t --yes");
        assert_eq!(
            sh(&app, "find lib -type f | sort | xargs -r sha256sum"),
            work,
            "{state}"
        );
        assert_sound(&app);
    }
}

// rule G6
#[test]
fn trap_11_the_cone_of_this_checkout_is_the_one_inside() {
    let (_world, cli, app) = furnished(
        "for d in one two three; do mkdir $d; echo $d > $d/f; done; git add one two three; git commit -qm dirs one two three
         git sparse-checkout set --cone src one",
    );
    cli.ok("plan create t -r app");
    let said = cli.ok(inside(
        "run --plan t",
        "ls; git sparse-checkout list; git status --short; git ls-files -t two; echo n > one/n; git add one/n; git commit -qm n one/n",
    ));
    has(&said, ["one\ns\nsrc\nu\n", "one\nsrc\n", "S two/f"]);
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "ls-files -t two three"), "S three/f\nS two/f\n");
    assert!(!app.join("two").exists());
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "ls-files -t two three"), "S three/f\nS two/f\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&app);
}

// rule G6
#[test]
fn trap_11_a_partial_clone_fetches_nothing() {
    let world = world();
    sh(
        world.path(),
        "mkdir app source; cd source; git init -q -b main .; git config user.name U; git config user.email u@e
         git config uploadpack.allowFilter true; mkdir src; echo one > src/a; git add -A; git commit -qm first
         echo one > src/a; echo 2 > src/b; git add -A; git commit -qm second; git rm -q src/b; git commit -qm third
         cd ..; git clone -q --no-local --filter=blob:none file://$PWD/source app; cd app
         git config user.name U; git config user.email u@e; mv ../source ../gone",
    );
    let app = world.path().join("app");
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    let objects = || sh(&app, "find .git/objects -type f | sort");
    let before = objects();
    cli.ok("plan create t -r app");
    cli.ok(inside("run --plan t", COMMIT));
    assert_eq!(objects(), before);
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log -1 --format=%s"), "x\n");
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log -1 --format=%s"), "third\n");
    assert_eq!(git(&app, "status --short"), "");
}

// rule G6
#[test]
fn trap_13_a_branch_that_is_checked_out_elsewhere_is_not_pulled_away() {
    let (world, cli, app) = furnished("git worktree add -q ../other -b feature");
    let other = world.path().join("other");
    let before = git(&other, "status --porcelain=v2 --branch");
    cli.ok("plan create t -r app");
    // Inside, the other worktree's branch may be taken and moved.
    cli.ok(inside(
        "run --plan t",
        "git checkout -q --ignore-other-worktrees feature 2>/dev/null || git checkout -q feature; set -e; echo x >> src/a; git commit -qm x src/a",
    ));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log -1 --format=%s main"), "x\n");
    assert_eq!(git(&other, "status --porcelain=v2 --branch"), before);
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    // The user goes to another branch here and checks ours out there: nothing is moved behind that checkout.
    cli.ok("plan create u -r app");
    cli.ok(inside("run --plan u", COMMIT));
    sh(
        &app,
        "git stash -q; git checkout -q --detach; git worktree add -q ../third main",
    );
    let third = world.path().join("third");
    let before = git(&third, "status --porcelain=v2 --branch");
    cli.expect("commit u --yes", 4);
    assert_eq!(git(&third, "status --porcelain=v2 --branch"), before);
    cli.ok("cleanup u --yes");
    assert_sound(&app);
}

// rule G6
#[test]
fn hashes_shallow_histories_alternates_and_split_indexes() {
    let shapes = [
        ("sha256", "git init -q -b main --object-format=sha256 ."),
        ("plain", "git init -q -b main ."),
    ];
    for (name, init) in shapes {
        let world = world();
        let app = world.dir("app");
        sh(
            &app,
            &format!(
                "{init}; git config user.name U; git config user.email u@e; mkdir src; echo one > src/a; git add -A; git commit -qm first
                 git config core.splitIndex true; git update-index --split-index"
            ),
        );
        let cli = Cli::new(&world, &binary()).cwd(&app);
        cli.ok("resource add app --type git-checkout --at .");
        there_and_back(&cli, &app);
        assert!(!name.is_empty());
    }
    let world = world();
    sh(
        world.path(),
        "mkdir source; cd source; git init -q -b main .; git config user.name U; git config user.email u@e
         mkdir src; echo one > src/a; git add -A; git commit -qm first; for n in 1 2 3; do git commit -q --allow-empty -m c$n; done
         cd ..; git clone -q --depth 2 file://$PWD/source app; git clone -q --shared source shared",
    );
    for name in ["app", "shared"] {
        let app = world.path().join(name);
        sh(&app, "git config user.name U; git config user.email u@e");
        let cli = Cli::new(&world, &binary())
            .cwd(&app)
            .env("ESCROW_HOME", world.dir(format!("home-{name}")));
        cli.ok("resource add app --type git-checkout --at .");
        there_and_back(&cli, &app);
    }
}

// rule G4
#[test]
fn names_and_contents_that_are_odd_arrive_as_they_are() {
    let (_world, cli, app) = furnished("true");
    cli.ok("plan create t -r app");
    cli.ok(inside(
        "run --plan t",
        "set -e; head -c 3000000 /dev/urandom > binary; printf 'a\\0b' > nul; : > empty; printf 'no newline' > plain
         mkdir -p 'sp ace/-dash'; echo 1 > 'sp ace/-dash/:(glob)*'; echo 2 > \"$(printf 'new\\nline\\t')\"; echo 3 > \"$(printf '\\377\\376')\"
         echo A > Case; echo b > case; ln -s nowhere link; ln -s /etc/passwd abs; echo run > tool; chmod +x tool
         git add -A; git mv src/a src/renamed; git commit -qm odd; git ls-files -s -z | sha256sum > .git/list",
    ));
    let wanted = cli.ok(inside(
        "run --plan t",
        "git ls-files -s -z | sha256sum; git status --porcelain; git rev-parse HEAD^{tree}",
    ));
    cli.ok("commit t --yes");
    let now = sh(
        &app,
        "git ls-files -s -z | sha256sum; git status --porcelain; git rev-parse HEAD^{tree}",
    );
    assert_eq!(now, wanted);
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert!(!app.join("Case").exists());
    cli.ok("cleanup t --yes");
    assert_sound(&app);
}

#[test]
fn this_project_is_worked_on() {
    let world = world();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let app = world.path().join("app");
    // Its sources, as a repository of their own where they are not one.
    sh(
        world.path(),
        &format!(
            "git -c safe.directory='*' clone -q --no-hardlinks '{0}' app 2>/dev/null || {{
               mkdir app; cd '{0}'; tar -c --exclude=./target --exclude=./.git . | tar -x -C \"$OLDPWD/app\"
               cd \"$OLDPWD/app\"; git init -q; git add -A; git -c user.name=U -c user.email=u@e commit -qm all; }}
             cd \"$PWD\"; git -C app config user.name U; git -C app config user.email u@e",
            root.display()
        ),
    );
    let head = git(&app, "rev-parse HEAD");
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    cli.ok("plan create t -r app");
    let said = cli.ok(inside(
        "run --plan t",
        "set -e; git status --short; git log --oneline | wc -l; git mv README.md READ.md; sed -i 's/the/THE/' CHANGELOG.md
         git rm -q -r docs; git commit -qam changes; git log -1 --format=%s; git gc -q; git fsck",
    ));
    has(&said, ["changes"]);
    let tree = cli.ok(inside("run --plan t", "git rev-parse HEAD^{tree}"));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "rev-parse HEAD^{tree}"), tree);
    assert_eq!(git(&app, "status --short"), "");
    assert!(!app.join("docs").exists());
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "rev-parse HEAD"), head);
    assert_eq!(git(&app, "status --short"), "");
    cli.ok("cleanup t --yes");
    assert_sound(&app);
}
