//! What the user does between the steps of a commit that was killed: it is kept, and the recovery comes to an end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use escrow_testkit::stepper::{Fault, Step, require_stepper};

use crate::git::{assert_sound, cleaned, git, repository};
use crate::*;

const RENAMES: &[&str] = &["rename", "renameat", "renameat2"];

/// Work of both sides: a line each in one file, and a file of the agent's.
const AGENT: &str =
    "sed -i 1s/.*/agent/ src/a; echo shared > f; git add f; git commit -qm agent src/a f";
const USER: &str = "sed -i 9s/.*/user/ src/a; git commit -qm user src/a";

/// Kills a command before the first of these calls that is about this.
#[track_caller]
fn kill_at(cli: &Cli, line: &str, calls: &'static [&'static str], about: fn(&Step) -> bool) {
    let stepper = cli.stepper(line).only(calls).about(about);
    assert!(stepper.fault(1, Fault::Kill).hit.is_some(), "{line}");
}

fn both_work(cli: &Cli, app: &Path, plan: &str) {
    cli.ok(format!("plan create {plan} -r app"));
    cli.ok(inside(&format!("run --plan {plan}"), AGENT));
    sh(app, USER);
}

fn recover(cli: &Cli) -> String {
    let done = cli.run("recover");
    done.stdout_text() + &done.stderr_text()
}

fn packs(app: &Path) -> usize {
    let all = std::fs::read_dir(app.join(".git/objects/pack")).expect("a directory");
    let names = all.map(|one| one.expect("an entry").file_name());
    let pack = |name: &std::ffi::OsString| name.to_string_lossy().ends_with(".pack");
    names.filter(pack).count()
}

// rules C3, G2
#[test]
fn a_branch_that_moved_before_a_killed_commit_moved_it_stays_and_so_does_what_it_needs() {
    need!(require_stepper());
    let (_world, cli, app) = repository();
    sh(
        &app,
        "git rm -qf s; git checkout -q b; rm u x.o; seq 1 9 > src/a; git commit -qm lines src/a; git gc -q --prune=now",
    );
    let own = packs(&app);
    // The user commits the very file that the agent made, whose object came with the pack.
    let uses = "echo shared > mine; git add mine; git commit -qm mine mine";
    let plain = "git commit -q --allow-empty -m mine";
    // What a repository needs in which an object cannot be read is not known: the pack stays, and the rest is taken back.
    let odd = "set -e; git commit -q --allow-empty -m mine
         tree=$(printf '100644 blob %s\todd\n' $(git rev-parse HEAD:src/a) | git mktree)
         git update-ref refs/odd $(git commit-tree -m odd $tree); file=.git/objects/$(echo $tree | sed 's|^..|&/|')
         chmod u+w $file; echo odd > $file; echo $file > ../odd; ! git rev-list --objects --all 2>/dev/null >&2";
    let readable = "test ! -e ../odd || { git update-ref -d refs/odd && rm $(cat ../odd) ../odd; }";
    for (plan, user, left) in [("p", uses, own + 1), ("q", plain, own), ("r", odd, own + 1)] {
        both_work(&cli, &app, plan);
        // Before references move: then objects and merged files are in place.
        let line = format!("commit {plan} --yes");
        kill_at(&cli, &line, RENAMES, |step| step.ends("/moving"));
        assert_eq!(
            packs(&app),
            own + 1,
            "{plan}: it was not killed where it should"
        );
        sh(&app, user);
        sh(&app, "echo later >> src/a");
        let said = recover(&cli);
        assert!(said.contains("src/a"), "the later version is named: {said}");
        let said = recover(&cli);
        assert!(said.contains("nothing to recover"), "{said}");
        // The file is what it was before the commit; what was written into it since is kept.
        assert_eq!(read(app.join("src/a")), "1\n2\n3\n4\n5\n6\n7\n8\nuser\n");
        assert!(!app.join("f").exists());
        assert_eq!(git(&app, "log --format=%s -2"), "mine\nuser\n");
        assert_eq!(git(&app, "status --short"), "");
        assert_eq!(packs(&app), left, "{plan}");
        sh(&app, readable);
        cli.ok(format!("commit {plan} --yes"));
        assert_eq!(read(app.join("f")), "shared\n");
        cli.ok(format!("undo {plan} --yes"));
        cli.ok(format!("cleanup {plan} --yes"));
        assert_sound(&app);
        sh(
            &app,
            "git reset -q --hard HEAD^^; git reflog expire --expire=all --all; git gc -q --prune=now",
        );
    }
}

// rules S5, G1
#[test]
fn a_lock_of_a_living_git_is_not_taken_for_one_that_a_killed_commit_left() {
    need!(require_stepper());
    let (_world, cli, app) = repository();
    let work = || {
        cli.ok("plan create t -r app");
        cli.ok(in_plan("t", "echo x >> src/a; git commit -qm x src/a"));
        kill_at(&cli, "commit t --yes", RENAMES, |step| {
            step.ends("/refs/heads/main.lock")
        });
    };
    work();
    // The user removed the locks of the dead process; now another one has them, which works elsewhere, and takes its time.
    sh(&app, "rm .git/refs/heads/main.lock .git/HEAD.lock");
    let mut living = Command::new("git")
        .arg("--git-dir")
        .arg(app.join(".git"))
        .args(["update-ref", "--stdin"])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is a git");
    let mut to = living.stdin.take().expect("a pipe");
    let head = git(&app, "rev-parse HEAD");
    let asked = format!(
        "start\nupdate refs/heads/main {0} {0}\nprepare\n",
        head.trim()
    );
    to.write_all(asked.as_bytes()).expect("git reads");
    let mut said = BufReader::new(living.stdout.take().expect("a pipe")).lines();
    while said.next().expect("it answers").expect("text") != "prepare: ok" {}
    let said = cli.ok("recover");
    has(&said, ["rolled back", ".lock"]);
    for lock in [".git/refs/heads/main.lock", ".git/HEAD.lock"] {
        assert!(
            app.join(lock).exists(),
            "{lock} was taken from a living git"
        );
    }
    drop(to);
    living.wait().expect("a child");
    assert_eq!(git(&app, "log --format=%s -1"), "first\n");
    // Locks that the dead process left itself are removed.
    cli.ok("cleanup t --yes");
    work();
    assert!(app.join(".git/refs/heads/main.lock").exists());
    cli.ok("recover");
    assert_eq!(git(&app, "log --format=%s -1"), "x\n");
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    cleaned(&cli);
    assert_sound(&app);
}

// rule P6
#[test]
fn a_creation_that_was_killed_and_its_removal_killed_too_leave_no_lock() {
    need!(require_stepper());
    const UNLINKS: &[&str] = &["unlink", "unlinkat"];
    let (_world, cli, app) = repository();
    kill_at(&cli, "plan create t -r app", RENAMES, |step| {
        step.ends("/used")
    });
    kill_at(&cli, "recover", UNLINKS, |step| {
        step.ends("/packed-refs.lock")
    });
    assert!(app.join(".git/packed-refs.lock").exists());
    cli.ok("recover");
    assert_sound(&app);
    // One that git itself cannot remove, of which it says nothing.
    cli.ok("plan create t -r app");
    let cleanup = cli.stepper("cleanup t --yes").only(UNLINKS);
    let cleanup = cleanup.about(|step| step.ends("/packed-refs.lock"));
    let run = cleanup.fault(1, Fault::Once(5));
    assert!(run.hit.is_some() && run.outcome.status == 0, "{run:?}");
    assert_sound(&app);
}
