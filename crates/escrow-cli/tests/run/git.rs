//! A git checkout: a private history inside, and a repository of the user that moves only by a commit.

use crate::*;

/// What git says, with the settings of nobody, and without starting anything.
#[track_caller]
pub(crate) fn git(dir: &Path, line: &str) -> String {
    let mut git = Command::new("git");
    git.args(words("-c core.fsmonitor=false -c core.hooksPath=/dev/null"));
    git.args(line.split_whitespace()).current_dir(dir);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null");
    output_of(git.env("GIT_OPTIONAL_LOCKS", "0"))
}

/// A checkout with a commit, and with files that are changed, staged, untracked and ignored.
pub(crate) fn checkout(world: &World) -> Cli {
    let app = world.dir("app");
    sh(
        &app,
        "git init -q -b main . && git config user.name U && git config user.email u@example.org
         mkdir src && echo one > src/a && echo two > b && echo '*.o' > .gitignore
         git add -A && git commit -qm first
         echo dirty >> b && echo staged > s && git add s && echo plain > u && echo object > x.o",
    );
    let cli = Cli::new(world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    cli
}

/// A world with such a checkout, and where that is.
pub(crate) fn repository() -> (World, Cli, PathBuf) {
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    (world, cli, app)
}

/// The change of a plan at a path.
#[track_caller]
pub(crate) fn change(cli: &Cli, line: &str, path: &str) -> Value {
    let found = json(cli, line);
    let changes = found["resources"][0]["changes"].as_array().expect("a list");
    let one = changes.iter().find(|one| one["path"] == path);
    one.unwrap_or_else(|| panic!("{line} has no {path}: {found:#}"))
        .clone()
}

pub(crate) fn world() -> World {
    World::under(Path::new("/var/tmp"))
}

/// Everything of a repository that a user could miss: references, reflogs, settings, stash, hooks, entries of the index,
/// objects that are reached, files.
pub(crate) fn signature(app: &Path) -> String {
    let mut all = String::new();
    for line in [
        "for-each-ref",
        "symbolic-ref -q HEAD",
        "reflog --all",
        "stash list",
        "ls-files -s",
        "status --porcelain=v2 --ignored",
        "worktree list --porcelain",
        "rev-list --all --objects",
    ] {
        all += &format!("== {line}\n{}", git(app, line));
    }
    for file in [".git/config", ".git/HEAD"] {
        all += &format!("== {file}\n{}", read(app.join(file)));
    }
    let listed = "find .git -not -path '*/objects/*' | sort; find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
    all + &sh(app, listed)
}

#[track_caller]
pub(crate) fn assert_sound(app: &Path) {
    let said = git(app, "fsck --strict");
    lacks(&said, ["error", "missing"]);
    let left = "find .git -name '*.lock' -o -name 'tmp_*' -o -path '*refs/escrow*'";
    assert_eq!(sh(app, left), "");
}

/// Removes what is open, such as plans that an undo opened again: as long as they are, git keeps what they began from.
pub(crate) fn cleaned(cli: &Cli) {
    for plan in list(&json(cli, "status")["plans"]) {
        let id = plan["id"].as_str().expect("an id");
        cli.ok(format!("cleanup {id} --yes"));
    }
}

const WORK: &str = "set -e; echo agent >> src/a; git commit -q src/a -m 'agent work'; git stash -q; git stash pop -q;
    git branch feature; git tag v1; echo new > n; git gc -q; git status --short";

// rule G1, G2
#[test]
fn the_repository_does_not_move_until_the_commit_and_moves_back_by_undo() {
    as_user_too();
    let (_world, cli, app) = repository();
    let before = signature(&app);
    cli.ok("plan create t -r app --strategy git_worktree");
    let said = cli.ok(in_plan("t", WORK));
    has(&said, ["A  s", " M b", "?? n"]);
    let keep = git(&app, "for-each-ref --format=%(refname) refs/escrow");
    assert_eq!(keep.lines().count(), 1);
    let main = change(&cli, "diff t", ".git/refs/heads/main");
    assert_eq!(main["detail"]["commits"][0]["subject"], "agent work");
    cli.ok("rollback t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(signature(&app), before);

    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", WORK));
    let done = json(&cli, "commit u -m released");
    assert_eq!(done["committed"], value!(true), "{done}");
    assert_eq!(git(&app, "log --format=%s"), "agent work\nfirst\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? n\n?? u\n");
    assert_eq!(read(app.join("src/a")), "one\nagent\n");
    assert_eq!(git(&app, "branch --format=%(refname:short)"), "main\n");
    assert_sound(&app);
    cli.ok("undo u --yes");
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    cleaned(&cli);
    assert_sound(&app);
}

// rule G2
#[test]
fn both_sides_may_commit_and_are_merged_or_told() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "echo agent >> src/a; git commit -q src/a -m agent",
    ));
    sh(&app, "echo user > w; git add w; git commit -qm user w");
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s -2 HEAD^1"), "user\nfirst\n");
    assert_eq!(git(&app, "log --format=%s -1 HEAD^2"), "agent\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log --format=%s"), "user\nfirst\n");
}

#[test]
fn checkpoints_and_forks_hold_files_index_references_and_stash() {
    let (_world, cli, app) = repository();
    let state = "git log --format=%s; git stash list; git status --short; git reflog; cat f";
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "echo 1 > f; git add f; git commit -qm c1 f; echo 2 > f; git stash -q",
    ));
    let first = cli.ok(in_plan("t", state));
    cli.ok("checkpoint create t -m one");
    cli.ok(in_plan(
        "t",
        "git stash drop -q; echo 3 > f; git commit -qam c2; git checkout -q -b other",
    ));
    let second = cli.ok(in_plan("t", state));
    assert_ne!(first, second);
    cli.ok("plan fork t f");
    cli.ok("restore t one");
    assert_eq!(cli.ok(in_plan("t", state)), first);
    assert_eq!(cli.ok(in_plan("f", state)), second);
    cli.ok(in_plan("f", "echo 4 > f; git commit -qam c3"));
    assert_eq!(cli.ok(in_plan("t", state)), first);
    // HEAD is on another branch inside: what moves is the one that was checked out, and the diff says so.
    let found = json(&cli, "diff f");
    let changes = found["resources"][0]["changes"].as_array().expect("a list");
    let main = changes
        .iter()
        .find(|one| one["path"] == ".git/refs/heads/main");
    let main = main.expect("the branch that moves");
    assert_eq!(main["detail"]["commits"][0]["subject"], "c3", "{found}");
    // What is shown beside and stays is no part of the digest.
    let digest = found["digest"].as_str().expect("a digest");
    cli.ok(format!("commit f --yes --expect {digest}"));
    assert!(git(&app, "log --format=%s").starts_with("c3\nc2\nc1\n"));
    assert_eq!(git(&app, "symbolic-ref HEAD"), "refs/heads/main\n");
    // What goes with the sandbox and was never released is named.
    let said = cli.run("cleanup t --yes").stderr_text();
    let named = "removed with the sandbox: app: ";
    assert!(said.contains(named), "{said}");
    assert!(said.contains("main: 1 commit, the last 'c1'"), "{said}");
    assert_sound(&app);
}

#[test]
fn what_an_agent_writes_into_its_git_directory_is_data() {
    let (_world, cli, app) = repository();
    let before = signature(&app);
    cli.ok("plan create t -r app");
    let hostile = "cd .git && id=$(cat refs/heads/main packed-refs 2>/dev/null | grep -o '^[0-9a-f]*' | head -1)
        echo \"$id refs/heads/../../../../etc/x\" >> packed-refs
        mkdir -p hooks && printf '#!/bin/sh\\ntouch ../pwned\\n' > hooks/reference-transaction && chmod +x hooks/*
        git config core.fsmonitor 'touch ../pwned' && git config core.hooksPath \"$PWD/hooks\"
        git config filter.x.clean 'touch ../pwned' && echo '* filter=x' > ../.gitattributes";
    cli.ok(in_plan("t", hostile));
    let found = json(&cli, "diff t");
    let paths: Vec<&str> = found["resources"][0]["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["path"].as_str())
        .collect();
    // Shown, since git would run what they name, and not released.
    let hostile = [".git/config", ".git/hooks/reference-transaction"];
    assert_eq!(paths, [hostile[0], hostile[1], ".gitattributes"]);
    cli.ok("commit t --yes");
    assert!(!app.join("pwned").exists());
    cli.ok("undo t --yes");
    cleaned(&cli);
    assert_eq!(signature(&app), before);

    cleaned(&cli);
    assert_sound(&app);
}

// rule G1
#[test]
fn root_leaves_nothing_of_root_in_the_repository_of_another_user() {
    need!(escrow_testkit::skip::require_root("files of another user"));
    let (_world, cli, app) = repository();
    sh(&app, "chown -R 1234:1234 . && chmod -R a+rwX .");
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "git config --global safe.directory '*'; echo x >> src/a; git commit -qm x src/a",
    ));
    cli.ok("commit t --yes");
    sh(&app, "test -z \"$(find . -not -user 1234)\"");
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    sh(&app, "test -z \"$(find . -not -user 1234)\"");
}

#[test]
fn a_checkout_without_private_history_is_a_directory_and_says_so() {
    let (_world, cli, app) = repository();
    sh(
        &app,
        "git checkout -q -b side && git commit -qam side && git checkout -q main && echo z > b && git commit -qam main",
    );
    sh(&app, "git merge -q side || true");
    let made = json(&cli, "plan create l -r app");
    assert_eq!(made["sandboxes"][0]["strategy"], "overlay", "{made}");
    let said = cli.ok("plan show l");
    assert!(said.contains("a merge is under way"), "{said}");
}
