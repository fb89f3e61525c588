//! Real work with git inside: what comes out is what the same work gives without Escrow, to the names of the commits.

use crate::git::{assert_sound, cleaned, git, repository, world};
use crate::*;

const DATES: [(&str, &str); 2] = [
    ("GIT_AUTHOR_DATE", "1500000000 +0000"),
    ("GIT_COMMITTER_DATE", "1500000000 +0000"),
];

/// Ten commits, a branch, and a file that is changed and not committed.
const SET_UP: &str = "git init -q -b main . && git config user.name U && git config user.email u@example.org
    mkdir dir; for n in 1 2 3 4 5 6 7 8 9 10; do echo $n >> list; echo $n > dir/f$n; git add -A; git commit -qm c$n; done
    git checkout -q -b side HEAD~5; echo side > side; git add side; git commit -qm side; git checkout -q main
    seq 1 2000 > large; git add large; git commit -qm large; echo dirty >> dir/f1; echo plain > untracked";

/// Everything that comes of it: the branch, the index, the files.
const LOOK: &str = "git log --format='%H %P %s'; git ls-files -s; git status --porcelain=v2
    find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";

fn shell(dir: &Path, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(dir).envs(DATES);
    output_of(command.env("GIT_CONFIG_GLOBAL", "/dev/null"))
}

/// Does the work inside and releases it, does it with git alone elsewhere, and compares what is said and what came out.
#[track_caller]
fn same_as_native(work: &str) {
    let world = world();
    let (app, plain) = (world.dir("app"), world.dir("plain/app"));
    shell(&app, SET_UP);
    shell(&plain, SET_UP);
    let mut cli = Cli::new(&world, &binary()).cwd(&app);
    for (name, value) in DATES {
        cli = cli.env(name, value);
    }
    let before = shell(&app, LOOK);
    cli.ok("resource add app --type git-checkout --at .");
    cli.ok("plan create t -r app");
    let said = cli.ok(in_plan("t", &format!("set -eu; {work}")));
    assert_eq!(shell(&app, LOOK), before, "nothing moves before the commit");
    cli.ok("commit t --yes");
    assert_eq!(said, shell(&plain, work));
    assert_eq!(shell(&app, LOOK), shell(&plain, LOOK));
    cli.ok("undo t --yes");
    assert_eq!(shell(&app, LOOK), before);
    cli.ok("cleanup t --yes");
    cleaned(&cli);
    assert_sound(&app);
}

#[test]
fn an_interactive_rebase_by_script() {
    same_as_native(
        "git stash -q; export GIT_EDITOR=true
         GIT_SEQUENCE_EDITOR='sed -i -e 2s/pick/fixup/ -e 3s/pick/squash/ -e 4d' git rebase -q -i --empty=drop -X theirs HEAD~6
         git stash pop -q; git log --format=%s",
    );
}

#[test]
fn stashes_moves_and_removals() {
    same_as_native(
        "git stash push -q -u; git mv dir/f2 moved; mkdir sub; git mv dir/f3 dir/f4 sub; git rm -q list; git commit -qm moves
         git stash pop -q || git checkout -q --theirs . ; git stash list; git status --short | head -3; git log --follow --format=%s moved",
    );
}

#[test]
fn a_bisection_by_script() {
    same_as_native(
        "git stash -q; git bisect start HEAD HEAD~9 >/dev/null; git bisect run sh -c '! grep -q ^7$ list' | grep 'first bad'
         git bisect reset >/dev/null 2>&1; git stash pop -q; echo found > found; git add found; git commit -qm found found",
    );
}

#[test]
fn merges_and_picks() {
    same_as_native(
        "git stash -q; git checkout -q side; git cherry-pick main >/dev/null; git checkout -q main; git merge -q -m merged side
         git revert --no-edit HEAD~1 >/dev/null; git tag -f x; git stash pop -q; git log --format=%s -4",
    );
}

#[test]
fn worktrees_clones_and_collections() {
    same_as_native(
        "git worktree add -q ../app/wt side; echo wt > wt/wt; git -C wt add wt; git -C wt commit -qm wt; git worktree remove wt
         git merge -q -m m side; git worktree prune; git gc -q --prune=now; git repack -qadf; git pack-refs --all
         git clone -q . clone; git -C clone log --format=%s -3; git -C clone fsck; rm -rf clone
         git clone -q --shared . clone; git -C clone rev-parse HEAD; rm -rf clone; git fsck; git count-objects -v | grep garbage",
    );
}

#[test]
fn patches_notes_and_plumbing() {
    same_as_native(
        "git stash -q; git format-patch -q -3 -o ../app/p; git reset -q --hard HEAD~3; git am -q p/*; rm -r p
         git notes add -m note; tree=$(git write-tree); git commit-tree -p HEAD -m plumbed $tree > id; git update-ref HEAD $(cat id)
         git archive HEAD dir | tar -t | wc -l; git filter-branch -f --msg-filter 'sed s/c1/C1/' HEAD~2..HEAD >/dev/null 2>&1
         git stash pop -q; git log --format=%s -3",
    );
}

#[test]
fn a_library_that_is_not_git_works_inside() {
    let Some(python) = python_with("pygit2") else {
        return;
    };
    same_as_native(&format!(
        r#"{} - <<'PY'
import pygit2
repo = pygit2.Repository('.')
open('by-library', 'w').write('libgit2\n')
repo.index.add('by-library')
repo.index.write()
who = pygit2.Signature('L', 'l@example.org', 1500000000, 0)
parent = repo.head.target
made = repo.create_commit('HEAD', who, who, 'by a library', repo.index.write_tree(), [parent])
print([c.message for c in repo.walk(made)][:3])
print(sorted(k for k, v in repo.status().items()))
repo.create_branch('lib', repo[made])
PY
git log --format=%s -2; git fsck"#,
        python.display()
    ));
}

#[test]
fn a_library_in_rust_sees_the_private_history() {
    let Some(python) = python_with("gitoxide") else {
        return;
    };
    same_as_native(&format!(
        r#"echo by git > new; git add new; git commit -qm new; git branch own HEAD~1; git pack-refs --all; git gc -q; git tag late
{} - <<'PY'
import gitoxide
repo = gitoxide.open('.')
print(repo.head_name, repo.head_id, sorted(repo.branches()), sorted(repo.tags()))
print(repo.rev_parse('main~3'), repo.read_blob('HEAD:new'), repo.read_blob('own:large')[:9])
print([one.id for one in repo.commits('main')])
PY"#,
        python.display()
    ));
}

/// GitPython reads the alternates of a repository as paths from its current directory, and each of them by itself. So does
/// this: whatever the directory is, each object of the user is in one of them.
#[test]
fn alternates_hold_in_whatever_directory_they_are_read() {
    as_user_too();
    let (_world, cli, app) = repository();
    let id = git(&app, "rev-parse HEAD");
    let (dir, name) = id.trim().split_at(2);
    cli.ok("plan create t -r app");
    let look = format!(
        "cd {{}}; while read dir; do test ! -e $dir/{dir}/{name} || echo found; done < {}/.git/objects/info/alternates",
        app.display()
    );
    for from in [app.join("src"), app.clone(), PathBuf::from("/")] {
        let look = look.replace("{}", &from.display().to_string());
        let said = cli.ok(in_plan("t", &look));
        assert!(said.starts_with("found\n"), "{}: {said}", from.display());
    }
}

/// The interpreter that has a module of Python: that of the system, or that of `scripts/install-deps.sh`.
fn python_with(module: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [
        PathBuf::from("/usr/bin/python3"),
        root.join("target/s3-python/bin/python3"),
    ];
    let has = |python: &PathBuf| {
        let mut asked = Command::new(python);
        let asked = asked.args(["-c", &format!("import {module}")]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    let found = places.into_iter().find(has);
    if found.is_none() {
        skip(&format!("the module {module} is not installed"));
    }
    found
}

/// aider works with GitPython.
#[test]
fn gitpython_works_inside() {
    let Some(python) = python_with("git") else {
        return;
    };
    same_as_native(&format!(
        r#"mkdir -p below; cd below; {} - <<'PY'
import git
repo = git.Repo('..', odbt=git.GitDB)
print(repo.head.commit.hexsha, [c.message for c in repo.iter_commits('main')][:3])
print(sorted(blob.path for blob in repo.head.commit.tree.traverse())[:5], repo.is_dirty())
open('../by-library', 'w').write('gitpython\n')
repo.index.add(['by-library'])
print(repo.index.commit('by a library').message, repo.commit('HEAD~1').tree.hexsha)
print(sorted(d.a_path for d in repo.head.commit.diff('HEAD~1')), repo.untracked_files)
PY
cd ..; git log --format=%s -2; git fsck"#,
        python.display()
    ));
}

#[test]
fn dulwich_works_inside() {
    let Some(python) = python_with("dulwich") else {
        return;
    };
    same_as_native(&format!(
        r#"mkdir -p below; cd below; {} - <<'PY'
import os
from dulwich import porcelain
from dulwich.repo import Repo
repo = Repo('..')
print(repo.head(), repo[repo.head()].message, [e.commit.message for e in repo.get_walker(max_entries=3)])
open('../by-library', 'w').write('dulwich\n')
porcelain.add(repo, [os.path.abspath('../by-library')])
print(len(porcelain.commit(repo, message=b'by a library', author=b'L <l@example.org>', committer=b'L <l@example.org>', commit_timestamp=1500000000, author_timestamp=1500000000, commit_timezone=0, author_timezone=0)))
PY
cd ..; git log --format=%s -2; git fsck"#,
        python.display()
    ));
}

// rule G4
#[test]
fn names_and_contents_that_are_odd_arrive_as_they_are() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "set -e; head -c 3000000 /dev/urandom > binary; printf 'a\\0b' > nul; : > empty; printf 'no newline' > plain
         mkdir -p 'sp ace/-dash'; echo 1 > 'sp ace/-dash/:(glob)*'; echo 2 > \"$(printf 'new\\nline\\t')\"; echo 3 > \"$(printf '\\377\\376')\"
         echo A > Case; echo b > case; ln -s nowhere link; ln -s /etc/passwd abs; echo run > tool; chmod +x tool
         git add -A; git mv src/a src/renamed; git commit -qm odd; git ls-files -s -z | sha256sum > .git/list",
    ));
    let wanted = cli.ok(in_plan(
        "t",
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
    cleaned(&cli);
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
    let said = cli.ok(in_plan("t", "set -e; git status --short; git log --oneline | wc -l; git mv README.md READ.md; sed -i 's/the/THE/' CHANGELOG.md
         git rm -q -r docs; git commit -qam changes; git log -1 --format=%s; git gc -q; git fsck",
    ));
    has(&said, ["changes"]);
    let tree = cli.ok(in_plan("t", "git rev-parse HEAD^{tree}"));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "rev-parse HEAD^{tree}"), tree);
    assert_eq!(git(&app, "status --short"), "");
    assert!(!app.join("docs").exists());
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "rev-parse HEAD"), head);
    assert_eq!(git(&app, "status --short"), "");
    cli.ok("cleanup t --yes");
    cleaned(&cli);
    assert_sound(&app);
}
