//! The whole repository of the user, byte by byte: untouched by everything but a commit, and then changed only where that
//! was promised.

use crate::git::{assert_sound, git, world};
use crate::*;

/// A checkout with everything that a repository can hold.
const SET_UP: &str = "git init -q -b main . && git config user.name U && git config user.email u@example.org
    mkdir src && echo one > src/a && echo two > b && echo '*.o' > .gitignore && git add -A && git commit -qm first
    for n in 1 2 3; do echo $n >> src/a; git commit -qam c$n; done; git gc -q; git branch side; git tag -a v1 -m v1; git notes add -m n
    echo stashed >> b; git stash -q; printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
    git worktree add -q ../linked side; git update-ref refs/odd/name HEAD; git config core.logAllRefUpdates always
    git -c core.hooksPath=/dev/null commit -q --allow-empty -m lost; git reset -q --hard HEAD~1
    echo dirty >> b && echo staged > s && git add s && echo plain > u && echo object > x.o";

/// Every file of the git directory and of the checkout with its content, mode and kind. Reading an index may refresh
/// it, so nothing here runs git.
fn bytes(app: &Path) -> BTreeMap<String, String> {
    let listed = sh(
        app,
        "find . -type d -printf '%p %M dir\\n'; find . -type l -printf '%p %M %l\\n'
         find . -type f -printf '%M ' -exec sha256sum {} \\; | while read mode sum path; do echo \"$path $mode $sum\"; done",
    );
    let one = |line: &str| {
        let (path, what) = line.split_once(' ').expect("a path and what it is");
        (path.to_owned(), what.to_owned())
    };
    listed.lines().map(one).collect()
}

/// The paths that differ.
fn changed(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let paths = before.keys().chain(after.keys());
    let differ = paths.filter(|path| before.get(*path) != after.get(*path));
    differ.cloned().collect()
}

const WORK: &str = "set -e; echo agent >> src/a; git commit -q src/a -m agent; git stash list; echo t >> b; git stash -q; git stash pop -q
    git branch feature; git tag v2; git branch -D feature; git notes append -m more; git config user.name A; git gc -q; echo new > n
    git worktree add -q wt; git worktree remove wt; git update-ref -d refs/odd/name; git pack-refs --all";

// rule G1, G2
#[test]
fn no_byte_of_the_repository_changes_but_by_a_commit() {
    let world = world();
    let app = world.dir("app");
    sh(&app, SET_UP);
    let cli = Cli::new(&world, &binary()).cwd(&app);
    cli.ok("resource add app --type git-checkout --at .");
    let before = bytes(&app);
    cli.ok("plan create t -r app");
    let keep = changed(&before, &bytes(&app));
    let only_ours = keep.iter().all(|path| path.contains("refs/escrow"));
    assert!(only_ours, "a plan is one reference: {keep:?}");
    cli.ok(in_plan("t", WORK));
    cli.ok("diff t");
    cli.ok("checkpoint create t -m here");
    cli.ok(in_plan(
        "t",
        "git reset -q --hard; git clean -qfdx; git commit -q --allow-empty -m more",
    ));
    cli.ok("restore t here");
    cli.ok("plan fork t f");
    cli.ok("commit t --dry-run");
    assert_eq!(
        changed(&keep_of(&before, &app), &bytes(&app)),
        BTreeSet::new()
    );
    cli.ok("rollback t --yes");
    cli.ok("cleanup f --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(changed(&before, &bytes(&app)), BTreeSet::new());

    // A commit changes the branch, its reflog, the index, and files; it brings a pack.
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", WORK));
    cli.ok("commit u --yes");
    cli.ok("gc --older-than 0s");
    let after = bytes(&app);
    let promised = [
        "./.git/refs/heads/main",
        "./.git/logs/HEAD",
        "./.git/logs/refs/heads/main",
        "./.git/index",
        "./src/a",
        "./b",
        "./n",
    ];
    let moved = changed(&before, &after);
    let other: Vec<_> = moved
        .iter()
        .filter(|path| {
            !promised.contains(&path.as_str()) && !path.starts_with("./.git/objects/pack/pack-")
        })
        .collect();
    assert!(other.is_empty(), "{other:?}");
    assert_eq!(
        before
            .keys()
            .filter(|path| !after.contains_key(*path))
            .count(),
        0
    );
    assert_sound(&app);

    // An undo leaves the two lines in the reflogs, the pack that they name, and entries of the index that are the same.
    let world = Undone::new();
    let reflogs = [".git/logs/HEAD", ".git/logs/refs/heads/main"];
    let left = changed(&world.before, &bytes(&world.app));
    let other: Vec<_> = left
        .iter()
        .filter(|path| !path.starts_with("./.git/objects/pack/pack-") && *path != "./.git/index")
        .filter(|path| !reflogs.iter().any(|log| path.ends_with(log)))
        .collect();
    assert!(other.is_empty(), "{other:?}");
    assert_eq!(git(&world.app, "ls-files -s"), world.entries);
    let said = git(&world.app, "reflog -2 --format=%gs");
    assert_eq!(said, "escrow: undo\nescrow: released\n");
    assert_sound(&world.app);
}

/// A repository after a commit and its undo.
struct Undone {
    app: PathBuf,
    before: BTreeMap<String, String>,
    entries: String,
    _world: World,
}

impl Undone {
    fn new() -> Self {
        let world = world();
        let app = world.dir("app");
        sh(&app, SET_UP);
        let cli = Cli::new(&world, &binary()).cwd(&app);
        cli.ok("resource add app --type git-checkout --at .");
        let (before, entries) = (bytes(&app), git(&app, "ls-files -s"));
        cli.ok("plan create u -r app");
        cli.ok(in_plan("u", WORK));
        cli.ok("commit u --yes -m released");
        cli.ok("undo u --yes");
        cli.ok("cleanup u --yes");
        Self {
            app,
            before,
            entries,
            _world: world,
        }
    }
}

/// What was there before, with the references that keep bases alive.
fn keep_of(before: &BTreeMap<String, String>, app: &Path) -> BTreeMap<String, String> {
    let mut with = before.clone();
    let now = bytes(app);
    with.extend(
        now.into_iter()
            .filter(|(path, _)| path.contains("refs/escrow")),
    );
    with
}
