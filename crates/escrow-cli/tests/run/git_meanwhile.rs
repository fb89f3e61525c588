//! What the user does between the steps of a commit that was killed: it is kept, and the recovery comes to an end.

use std::path::Path;

use escrow_testkit::Cli;
use escrow_testkit::stepper::{Fault, require_stepper};

use crate::git::{assert_sound, checkout, git, world};
use crate::{inside, read, sh, words};

const RENAMES: &[&str] = &["rename", "renameat", "renameat2"];

/// Work of both sides: a line each in one file, and a file of the agent's.
const AGENT: &str =
    "sed -i 1s/.*/agent/ src/a; echo shared > f; git add f; git commit -qm agent src/a f";
const USER: &str = "sed -i 9s/.*/user/ src/a; git commit -qm user src/a";

/// How many renames a commit makes before references move: then objects and merged files are in place.
fn renames_before_references(cli: &Cli, app: &Path) -> u64 {
    both_work(cli, app, "first");
    let run = cli.stepper("commit first --yes").only(RENAMES).record();
    let run = run.run();
    let is_mark = |path: &Path| path.ends_with("moving");
    let at = run
        .steps
        .iter()
        .position(|step| step.to.as_deref().is_some_and(is_mark));
    cli.ok(words("undo first --yes"));
    cli.ok(words("cleanup first --yes"));
    sh(
        app,
        "git reset -q --hard HEAD^; git reflog expire --expire=all --all; git gc -q --prune=now",
    );
    at.expect("references are moved") as u64 + 1
}

fn both_work(cli: &Cli, app: &Path, plan: &str) {
    cli.ok(words(&format!("plan create {plan} -r app")));
    cli.ok(inside(&format!("run --plan {plan}"), AGENT));
    sh(app, USER);
}

fn recover(cli: &Cli) -> String {
    let done = cli.run(words("recover"));
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
    if !require_stepper() {
        return;
    }
    let world = world();
    let (cli, app) = (checkout(&world), world.path().join("app"));
    sh(
        &app,
        "git rm -qf s; git checkout -q b; rm u x.o; seq 1 9 > src/a; git commit -qm lines src/a",
    );
    let n = renames_before_references(&cli, &app);
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
        let line = format!("commit {plan} --yes");
        cli.stepper(line).only(RENAMES).fault(n, Fault::Kill);
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
        cli.ok(words(&format!("commit {plan} --yes")));
        assert_eq!(read(app.join("f")), "shared\n");
        cli.ok(words(&format!("undo {plan} --yes")));
        cli.ok(words(&format!("cleanup {plan} --yes")));
        assert_sound(&app);
        sh(
            &app,
            "git reset -q --hard HEAD^^; git reflog expire --expire=all --all; git gc -q --prune=now",
        );
    }
}
