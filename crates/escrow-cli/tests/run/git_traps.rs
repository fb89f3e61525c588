//! The traps that tools fall into which give agents a git checkout: one test each, by its number.

use std::os::unix::fs::PermissionsExt;

use crate::git::{assert_sound, change, checkout, cleaned, git, signature, world};
use crate::*;

/// A checkout, and everything that a plan of it can go through.
struct Trap {
    world: World,
    cli: Cli,
    app: PathBuf,
}

impl Trap {
    fn new() -> Self {
        let world = world();
        let cli = checkout(&world);
        let app = world.path().join("app");
        Self { world, cli, app }
    }

    /// The same after a script that sets the trap.
    fn set(script: &str) -> Self {
        let trap = Self::new();
        sh(&trap.app, script);
        trap
    }

    fn git(&self, line: &str) -> String {
        git(&self.app, line)
    }

    fn inside(&self, plan: &str, script: &str) -> String {
        self.cli.ok(inside(
            &format!("run --plan {plan}"),
            &format!("set -e; {script}"),
        ))
    }

    /// A plan from its creation to its cleanup, in which both sides commit, so that everything that git does for us is
    /// done: references are moved, an index is written, a merge is made, all is taken back.
    fn whole_life(&self) {
        self.cli.ok("plan create t -r app");
        self.inside(
            "t",
            "echo agent >> src/a; git commit -q src/a -m agent; git tag v1; echo n > n",
        );
        sh(
            &self.app,
            "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false \
            commit -q --allow-empty -m user --only",
        );
        self.cli.ok("diff t");
        self.cli.ok("checkpoint create t -m here");
        self.inside("t", "git reset -q --hard HEAD~1");
        self.cli.ok("restore t here");
        self.cli.ok("commit t --yes -m released");
        assert_eq!(self.git("log --format=%s -1"), "released\n");
        assert_eq!(self.git("log --format=%s -1 HEAD^2"), "agent\n");
        self.cli.ok("undo t --yes");
        assert_eq!(self.git("log --format=%s -1"), "user\n");
        self.cli.ok("cleanup t --yes");
        cleaned(&self.cli);
        assert_sound(&self.app);
    }

    /// A program that leaves a mark when it is started.
    fn program(&self, name: &str) -> PathBuf {
        let path = self.world.path().join(name);
        let mark = self.world.path().join("started");
        write(
            &path,
            format!(
                "#!/bin/sh\necho \"$0 $*\" >> '{}'\nexit 1\n",
                mark.display()
            ),
        );
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("its mode");
        path
    }

    #[track_caller]
    fn nothing_was_started(&self) {
        let mark = self.world.path().join("started");
        assert!(!mark.exists(), "{}", read(&mark));
    }
}

// rule G1
#[test]
fn trap_01_stash_branches_tags_notes_settings_and_gc_are_those_of_the_sandbox() {
    let trap = Trap::set(
        "echo mine >> src/a; git stash push -q -- src/a; git notes add -m mine; git tag mine; git branch mine",
    );
    let before = signature(&trap.app);
    trap.cli.ok("plan create t -r app");
    let said = trap.inside(
        "t",
        "test -z \"$(git stash list)\"; echo agent >> src/a; git stash push -q -- src/a; git stash list; git stash pop -q
         git notes append -m agent; git notes show; git tag -d mine; git branch -D mine; git branch theirs
         git config user.name Agent; git commit -qm work src/a; git log -1 --format=%an
         git reflog expire --expire=now --all; git gc -q --prune=now; git fsck; git status --short",
    );
    has(
        &said,
        [
            "WIP on main",
            "mine\n\nagent",
            "Agent\n",
            " M b\nA  s\n?? u\n",
        ],
    );
    trap.cli.ok("rollback t --yes");
    trap.cli.ok("cleanup t --yes");
    assert_eq!(signature(&trap.app), before);
    assert_sound(&trap.app);
}

#[test]
fn trap_02_cleanup_asks_before_it_removes_commits_that_were_not_released() {
    let trap = Trap::new();
    trap.cli.ok("plan create t -r app");
    trap.inside(
        "t",
        "echo work > only-here; git add -A; git commit -qm unreleased",
    );
    let terminal = Terminal::new(24, 200);
    let mut asked = terminal.start(trap.cli.command("cleanup t"));
    terminal.expect("?");
    terminal.send("n\n");
    asked.wait().expect("a child");
    let said = trap.inside("t", "git log -1 --format=%s; cat only-here");
    assert_eq!(said, "unreleased\nwork\n");
    // What goes on in the user's repository takes nothing of it away.
    sh(
        &trap.app,
        "git reflog expire --expire=now --all; git gc -q --prune=now",
    );
    assert_eq!(
        trap.inside("t", "git log --format=%s"),
        "unreleased\nfirst\n"
    );
    trap.cli.ok("commit t --yes");
    assert_eq!(trap.git("log --format=%s"), "unreleased\nfirst\n");
    assert_sound(&trap.app);
}

// rule G1
#[test]
fn trap_05_shared_settings_keep_every_byte() {
    let trap = Trap::set(
        "git config core.hooksPath .husky; git config core.fsmonitor false; git config feature.manyFiles true
         printf '# a comment\\n[odd]\\tkey=\"v\" ; kept\\n' >> .git/config; git worktree add -q ../other",
    );
    let files = [
        ".git/config",
        ".git/worktrees/other/gitdir",
        ".git/worktrees/other/HEAD",
    ];
    let all = || files.map(|file| read(trap.app.join(file)));
    let before = all();
    trap.whole_life();
    assert_eq!(all(), before);
    assert!(!trap.app.join(".git/config.worktree").exists());
}

// rule G1
#[test]
fn trap_06_no_hook_of_the_repository_runs() {
    as_user_too();
    let trap = Trap::new();
    let hooks = trap.app.join(".git/hooks");
    let program = trap.program("hook");
    for name in [
        "post-checkout",
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "pre-merge-commit",
        "post-merge",
        "post-rewrite",
        "pre-auto-gc",
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
    ] {
        symlink(&program, hooks.join(name));
    }
    trap.whole_life();
    trap.nothing_was_started();
    // Nor where they are elsewhere.
    sh(
        &trap.app,
        "mv .git/hooks .husky; git config core.hooksPath .husky",
    );
    trap.whole_life();
    trap.nothing_was_started();
}

// rule G1
#[test]
fn trap_07_no_file_monitor_is_started() {
    let trap = Trap::new();
    let program = trap.program("monitor");
    trap.git(&format!("config core.fsmonitor {}", program.display()));
    trap.git("config core.untrackedCache true");
    trap.whole_life();
    trap.nothing_was_started();
    // The one that git has is not started by an agent's calls either.
    trap.git("config core.fsmonitor true");
    trap.cli.ok("plan create u -r app");
    let said = trap.inside(
        "u",
        "git status -s; git config core.fsmonitor; git fsmonitor--daemon status || echo none",
    );
    has(&said, ["false\n", "none\n"]);
    trap.cli.ok("cleanup u --yes");
}

// rule G1, G3
#[test]
fn trap_08_nothing_is_signed_and_nobody_is_asked() {
    let trap = Trap::new();
    let program = trap.program("gpg");
    for key in [
        "gpg.program",
        "gpg.ssh.program",
        "core.askPass",
        "core.editor",
    ] {
        trap.git(&format!("config {key} {}", program.display()));
    }
    for key in [
        "commit.gpgSign",
        "tag.gpgSign",
        "push.gpgSign",
        "log.showSignature",
    ] {
        trap.git(&format!("config {key} true"));
    }
    trap.whole_life();
    trap.nothing_was_started();
}

// rule G6
#[test]
fn trap_10_files_of_lfs_stay_what_they_are_and_its_filter_does_not_run() {
    as_user_too();
    let pointer = "version https://git-lfs.github.com/spec/v1\\noid sha256:00\\nsize 3\\n";
    let trap = Trap::set(&format!(
        "echo '*.bin filter=lfs diff=lfs merge=lfs -text' > .gitattributes
         printf '{pointer}' > pointer.bin; printf '{pointer}' > content.bin
         git add .gitattributes pointer.bin content.bin; git commit -qm lfs .gitattributes pointer.bin content.bin
         printf 'abc' > content.bin"
    ));
    let program = trap.program("git-lfs");
    for (key, word) in [
        ("clean", "clean"),
        ("smudge", "smudge"),
        ("process", "filter-process"),
    ] {
        trap.git_words(&[
            "config",
            &format!("filter.lfs.{key}"),
            &format!("{} {word}", program.display()),
        ]);
    }
    trap.git("config filter.lfs.required true");
    let bytes = |name: &str| read(trap.app.join(name));
    let (before, content) = (bytes("pointer.bin"), bytes("content.bin"));
    trap.cli.ok("plan create t -r app");
    let said = trap.inside(
        "t",
        "cat pointer.bin content.bin; echo x >> src/a; git commit -qm x src/a",
    );
    assert_eq!(said, format!("{before}{content}"));
    trap.cli.ok("commit t --yes");
    assert_eq!(
        (bytes("pointer.bin"), bytes("content.bin")),
        (before, content)
    );
    assert_eq!(trap.git("log -1 --format=%s"), "x\n");
    trap.cli.ok("undo t --yes");
    trap.cli.ok("cleanup t --yes");
    trap.nothing_was_started();
}

// rule G6
#[test]
fn trap_12_git_works_inside_at_its_path_and_outside_after_all() {
    let trap = Trap::new();
    trap.cli.ok("plan create t -r app");
    let said = trap.inside(
        "t",
        "git rev-parse --show-toplevel --absolute-git-dir --is-inside-work-tree; cd src; git rev-parse --show-prefix",
    );
    let app = trap.app.display();
    assert_eq!(said, format!("{app}\n{app}/.git\ntrue\nsrc/\n"));
    // A worktree that is made inside lies inside, and is not left behind.
    let said = trap.inside(
        "t",
        "git worktree add -q wt; cd wt; echo w > w; git add w; git commit -qm w; git worktree list",
    );
    has(&said, [&*format!("{app}/wt")]);
    trap.cli.ok("rollback t --yes");
    trap.cli.ok("cleanup t --yes");
    assert_eq!(
        trap.git("worktree list --porcelain")
            .matches("worktree ")
            .count(),
        1
    );
    // The whole checkout moves, and is one.
    let moved = trap.world.path().join("moved");
    fs::rename(&trap.app, &moved).expect("a new name");
    assert_eq!(git(&moved, "status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&moved);
}

// rule G6
#[test]
fn trap_13_a_branch_that_is_checked_out_elsewhere_is_not_pulled_away() {
    let trap = Trap::set("git worktree add -q ../other -b feature");
    let (world, cli, app) = (&trap.world, &trap.cli, &trap.app);
    let other = world.path().join("other");
    let before = git(&other, "status --porcelain=v2 --branch");
    cli.ok("plan create t -r app");
    // Inside, the other worktree's branch may be taken and moved.
    cli.ok(in_plan("t", "git checkout -q --ignore-other-worktrees feature 2>/dev/null || git checkout -q feature; set -e; echo x >> src/a; git commit -qm x src/a",
    ));
    cli.ok("commit t --yes");
    assert_eq!(git(app, "log -1 --format=%s main"), "x\n");
    assert_eq!(git(&other, "status --porcelain=v2 --branch"), before);
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    // The user goes to another branch here and checks ours out there: nothing is moved behind that checkout.
    cli.ok("plan create u -r app");
    cli.ok(in_plan(
        "u",
        "set -e; echo x >> src/a; git commit -qm x src/a",
    ));
    sh(
        app,
        "git stash -q; git checkout -q --detach; git worktree add -q ../third main",
    );
    let third = world.path().join("third");
    let before = git(&third, "status --porcelain=v2 --branch");
    cli.expect("commit u --yes", 4);
    assert_eq!(git(&third, "status --porcelain=v2 --branch"), before);
    cli.ok("cleanup u --yes");
    cleaned(cli);
    assert_sound(app);
}

// rule S5
#[test]
fn trap_14_a_lock_of_another_process_is_waited_for_and_never_removed() {
    let trap = Trap::new();
    trap.cli.ok("plan create t -r app");
    trap.inside("t", "echo x >> src/a; git commit -qm x src/a");
    let before = signature(&trap.app);
    for name in [".git/refs/heads/main.lock", ".git/HEAD.lock"] {
        write(trap.app.join(name), "");
        let said = trap.cli.fails("commit t --yes", 1);
        has(&said, [&name[".git/".len()..]]);
        assert!(trap.app.join(name).exists(), "{name}");
        fs::remove_file(trap.app.join(name)).expect("it is there");
        assert_eq!(signature(&trap.app), before, "{name}");
    }
    let lock = trap.app.join(".git/index.lock");
    write(&lock, "");
    has(&trap.cli.fails("commit t --yes", 1), ["index.lock"]);
    assert!(lock.exists());
    assert_eq!(trap.git("log --format=%s"), "first\n");
    assert_eq!(read(trap.app.join("src/a")), "one\n");
    // The user's git is done soon: then it goes on.
    let mut commit = trap.cli.start("commit t --yes");
    thread::sleep(Duration::from_millis(700));
    assert!(commit.try_wait().expect("a child").is_none(), "it waits");
    fs::remove_file(&lock).expect("it is there");
    assert!(commit.wait().expect("a child").success());
    assert_eq!(trap.git("log -1 --format=%s"), "x\n");
    // An undo that cannot finish keeps what it needs, and `recover` goes on with it.
    write(&lock, "");
    has(&trap.cli.fails("undo t --yes", 5), ["index.lock"]);
    fs::remove_file(&lock).expect("it is there");
    trap.cli.ok("recover");
    assert_eq!(trap.git("log -1 --format=%s"), "first\n");
    assert_eq!(read(trap.app.join("src/a")), "one\n");
    assert_eq!(trap.git("status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&trap.app);
}

#[test]
fn trap_15_what_a_killed_process_had_locked_is_free() {
    let trap = Trap::new();
    trap.cli.ok("plan create t -r app");
    let mut command = trap.cli.start(in_plan("t", "echo in; sleep 1000"));
    await_process(&trap.world, "sleep 1000");
    command.kill().expect("a child");
    command.wait().expect("a child");
    trap.inside("t", "echo x >> src/a; git commit -qm x src/a");
    trap.cli.ok("commit t --yes");
    assert_eq!(trap.git("log -1 --format=%s"), "x\n");
}

#[test]
fn trap_16_line_endings_and_encodings_keep_every_byte() {
    let trap = Trap::set(
        "printf '*.txt text\\n*.crlf text eol=crlf\\n*.u16 text working-tree-encoding=UTF-16LE\\n' > .gitattributes
         printf 'a\\r\\nb\\r\\n' > dos.txt; printf 'a\\nb\\r\\nc\\n' > mixed.dat; printf 'a\\r\\n' > e.crlf
         printf 'h\\0i\\0\\n\\0' > wide.u16; git config core.autocrlf true
         git add .gitattributes dos.txt mixed.dat e.crlf wide.u16 2>&1
         git commit -qm eol .gitattributes dos.txt mixed.dat e.crlf wide.u16",
    );
    let names = ["dos.txt", "mixed.dat", "e.crlf", "wide.u16"];
    let bytes = || names.map(|name| fs::read(trap.app.join(name)).expect("a file"));
    let before = bytes();
    trap.cli.ok("plan create t -r app");
    trap.inside(
        "t",
        "git status --short -uno; touch dos.txt mixed.dat; git checkout -q -b x; git checkout -q main
         printf 'c\\r\\n' >> dos.txt; printf '!\\0' >> wide.u16; git commit -qam more 2>/dev/null; git status --short -uno",
    );
    let found = json(&trap.cli, "diff t");
    let changed: Vec<_> = list(&found["resources"][0]["changes"])
        .iter()
        .filter_map(|one| one["path"].as_str())
        .filter(|path| !path.starts_with(".git/"))
        .collect();
    assert_eq!(changed, ["dos.txt", "wide.u16"], "no other file differs");
    trap.cli.ok("commit t --yes");
    let after = bytes();
    assert_eq!(after[0], b"a\r\nb\r\nc\r\n");
    assert_eq!((&after[1], &after[2]), (&before[1], &before[2]));
    assert_eq!(after[3], b"h\0i\0\n\0!\0");
    assert_eq!(trap.git("show HEAD:dos.txt"), "a\nb\nc\n");
    assert_eq!(trap.git("status --short"), "?? u\n");
    trap.cli.ok("undo t --yes");
    assert_eq!(bytes(), before);
    assert_eq!(trap.git("status --short"), " M b\nA  s\n?? u\n");
    cleaned(&trap.cli);
    assert_sound(&trap.app);
}

// rule G1
#[test]
fn trap_17_filters_and_drivers_of_the_repository_are_not_executed() {
    let trap = Trap::set(
        "echo '*.f filter=f diff=f merge=f' > .gitattributes; echo kept > x.f
         git add .gitattributes x.f; git commit -qm f .gitattributes x.f",
    );
    let program = trap.program("filter");
    let program = program.display().to_string();
    for key in [
        "filter.f.clean",
        "filter.f.smudge",
        "filter.f.process",
        "diff.f.command",
        "diff.f.textconv",
        "merge.f.driver",
        "diff.external",
        "core.pager",
        "core.alternateRefsCommand",
        "alias.log",
        "alias.update-ref",
    ] {
        trap.git_words(&["config", key, &program]);
    }
    trap.git("config filter.f.required true");
    trap.cli.ok("plan create t -r app");
    trap.inside("t", "echo more >> x.f; git commit -qm more x.f");
    trap.cli.ok("diff t --patch");
    trap.cli.ok("commit t --yes");
    assert_eq!(read(trap.app.join("x.f")), "kept\nmore\n");
    assert_eq!(trap.git("cat-file -p HEAD:x.f"), "kept\nmore\n");
    trap.cli.ok("undo t --yes");
    assert_eq!(read(trap.app.join("x.f")), "kept\n");
    trap.cli.ok("cleanup t --yes");
    trap.nothing_was_started();
}

// rule G4
#[test]
fn trap_18_no_language_colour_or_format_confuses() {
    let mut trap = Trap::set(
        "git config color.ui always; git config color.branch always; git config core.quotePath false
         git config log.abbrevCommit true; git config format.pretty '%s only'; git config log.decorate full
         git config status.short true; git config i18n.logOutputEncoding latin1; git config core.abbrev 4
         git config log.date human; git config column.ui always; git config core.commentChar auto
         git config diff.noprefix true; git config log.follow true; git config log.mailmap true",
    );
    trap.cli = trap
        .cli
        .clone()
        .env("LC_ALL", "de_DE.UTF-8")
        .env("LANGUAGE", "de")
        .env("GIT_TRACE", "1");
    trap.cli.ok("plan create t -r app");
    trap.inside(
        "t",
        "git checkout -q -b größe; echo x > 'ü\n\t\"x'; git add -A; git commit -qm 'Grüße\n\nmore'",
    );
    let main = change(&trap.cli, "diff t", ".git/refs/heads/main");
    assert_eq!(main["detail"]["commits"][0]["subject"], "Grüße", "{main}");
    assert_eq!(
        main["detail"]["commits"][0]["id"].as_str().map(str::len),
        Some(40)
    );
    trap.cli.ok("commit t --yes");
    assert_eq!(
        sh(
            &trap.app,
            "git -c color.ui=never log -1 --format=%s --encoding=utf-8"
        ),
        "Grüße\n"
    );
    assert!(trap.app.join("ü\n\t\"x").exists());
    trap.cli.ok("undo t --yes");
    cleaned(&trap.cli);
    assert_sound(&trap.app);
}

// rule G3
#[test]
fn trap_19_no_merge_is_left_half_way() {
    let trap = Trap::new();
    trap.cli.ok("plan create t -r app");
    trap.inside("t", "echo agent > src/a; git commit -qm agent src/a");
    sh(&trap.app, "echo user > src/a; git commit -qm user src/a");
    let before = signature(&trap.app);
    let error = conflict(&trap.cli, "t");
    has(&error, ["src/a"]);
    assert_eq!(signature(&trap.app), before);
    for name in [
        "MERGE_HEAD",
        "MERGE_MSG",
        "AUTO_MERGE",
        "ORIG_HEAD",
        "REBASE_HEAD",
    ] {
        assert!(!trap.app.join(".git").join(name).exists(), "{name}");
    }
    trap.cli.ok("cleanup t --yes");
    assert_sound(&trap.app);
}

// rule G6
#[test]
fn trap_20_heads_that_are_elsewhere_on_either_side() {
    let commit = "echo x >> src/a; git commit -qm x src/a";
    // Detached.
    let trap = Trap::set("git checkout -q --detach");
    trap.cli.ok("plan create t -r app");
    trap.inside("t", commit);
    trap.cli.ok("commit t --yes");
    assert_eq!(trap.git("log --format=%s"), "x\nfirst\n");
    assert_eq!(trap.git("log --format=%s main"), "first\n");
    trap.cli.ok("undo t --yes");
    assert_eq!(trap.git("rev-parse HEAD"), trap.git("rev-parse main"));
    trap.cli.ok("cleanup t --yes");

    // The agent detaches, or is on a branch of its own: its commit goes where the user was.
    sh(&trap.app, "git checkout -q main");
    trap.cli.ok("plan create u -r app");
    trap.inside("u", &format!("git checkout -q --detach; {commit}"));
    trap.cli.ok("commit u --yes");
    assert_eq!(trap.git("symbolic-ref HEAD"), "refs/heads/main\n");
    assert_eq!(trap.git("log --format=%s"), "x\nfirst\n");
    trap.cli.ok("undo u --yes");
    trap.cli.ok("cleanup u --yes");

    // The user switches, or renames the branch: nothing is guessed.
    for (name, away) in [
        ("v", "git checkout -q -b away"),
        ("w", "git branch -m renamed"),
    ] {
        trap.cli.ok(format!("plan create {name} -r app"));
        trap.inside(name, commit);
        sh(&trap.app, away);
        let before = signature(&trap.app);
        let error = conflict(&trap.cli, name);
        has(&error, [".git/HEAD"]);
        assert_eq!(signature(&trap.app), before);
        trap.cli.ok(format!("cleanup {name} --yes"));
    }
    cleaned(&trap.cli);
    assert_sound(&trap.app);
}

// rule G6
#[test]
fn trap_20_a_branch_without_a_commit() {
    let world = world();
    let app = world.dir("app");
    sh(
        &app,
        "git init -q -b trunk .; echo staged > s; git add s; echo u > u",
    );
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    let before = sh(&app, "cat .git/HEAD; git ls-files -s; git status --short");
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "git -c user.name=A -c user.email=a@b commit -qm root && git add u && git status --short",
    ));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s trunk"), "root\n");
    assert_eq!(git(&app, "status --short"), "A  u\n");
    cli.ok("undo t --yes");
    let after = sh(&app, "cat .git/HEAD; git ls-files -s; git status --short");
    assert_eq!(after, before);
    cli.ok("cleanup t --yes");
    cleaned(&cli);
    assert_sound(&app);
}

// rule C14
#[test]
fn trap_20_two_plans_of_one_repository() {
    let trap = Trap::new();
    for plan in ["one", "two", "three"] {
        trap.cli.ok(format!("plan create {plan} -r app"));
    }
    trap.inside("one", "echo 1 > one; git add one; git commit -qm one one");
    trap.inside("two", "echo 2 > two; git add two; git commit -qm two two");
    trap.inside(
        "three",
        "echo 3 > one; git add one; git commit -qm three one",
    );
    trap.cli.ok("commit one --yes");
    trap.cli.ok("commit two --yes");
    let error = conflict(&trap.cli, "three");
    has(&error, ["one"]);
    let log = trap.git("log --format=%s");
    for subject in ["one", "two", "first"] {
        assert!(log.lines().any(|line| line == subject), "{log}");
    }
    assert_eq!(read(trap.app.join("one")), "1\n");
    trap.cli.ok("cleanup three --yes");
    let both = signature(&trap.app);
    assert_eq!(fails_as(&trap.cli, "undo one", 4), "conflict");
    assert_eq!(signature(&trap.app), both);
    trap.cli.ok("undo two --yes");
    assert_eq!(trap.git("log --format=%s"), "one\nfirst\n");
    trap.cli.ok("undo one --yes");
    assert_eq!(trap.git("log --format=%s"), "first\n");
    assert_eq!(trap.git("status --short"), " M b\nA  s\n?? u\n");
    cleaned(&trap.cli);
    assert_sound(&trap.app);
}

/// The paths at which a commit is refused, each with its reason.
#[track_caller]
fn conflict(cli: &Cli, plan: &str) -> Value {
    let outcome = cli.expect(format!("--json commit {plan} --yes"), 4);
    let document: Value = serde_json::from_slice(&outcome.stdout).expect("one document");
    assert_eq!(document["error"]["kind"], "conflict", "{document}");
    document["conflicts"].clone()
}

impl Trap {
    #[track_caller]
    fn git_words(&self, args: &[&str]) {
        let done = Command::new("git")
            .args(args)
            .current_dir(&self.app)
            .status();
        assert!(done.expect("there is a git").success(), "{args:?}");
    }
}
