//! Releases where both sides went on: merged by lines, by path, or told before anything moves.

use crate::git::{assert_sound, cleaned, git, repository, signature};
use crate::*;

const LINES: &str = "seq 1 9 > src/a; git commit -qm lines src/a";

// rule G3
#[test]
fn changes_of_both_sides_in_one_file_are_merged_by_lines() {
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    sh(
        &app,
        "seq 1 9 > run.sh; chmod 750 run.sh; git add run.sh; git commit -qm run run.sh",
    );
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "sed -i 1s/.*/agent/ src/a run.sh; git commit -qm agent src/a run.sh; echo n > n",
    ));
    sh(
        &app,
        "sed -i 9s/.*/user/ src/a run.sh; git commit -qm user src/a run.sh",
    );
    let digest = json(&cli, "diff t")["digest"].clone();
    let digest = digest.as_str().expect("a digest");
    cli.ok(format!("commit t --yes --expect {digest}"));
    let merged = "agent\n2\n3\n4\n5\n6\n7\n8\nuser\n";
    assert_eq!(read(app.join("src/a")), merged);
    assert_eq!(read(app.join("run.sh")), merged);
    sh(&app, "test $(stat -c %a run.sh) = 750");
    assert_eq!(git(&app, "show HEAD:src/a"), merged);
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? n\n?? u\n");
    assert!(!app.join(".git/MERGE_HEAD").exists());
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "log --format=%s -1"), "user\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert!(read(app.join("src/a")).starts_with("1\n"));
    cleaned(&cli);
    assert_sound(&app);
}

// rule G2
#[test]
fn what_the_user_did_not_commit_is_never_merged_over() {
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    cli.ok("plan create t -r app");
    let work = "sed -i 1s/.*/agent/ src/a; git commit -qm agent src/a";
    cli.ok(in_plan("t", work));
    sh(
        &app,
        "sed -i 9s/.*/user/ src/a; git commit -qm user src/a; sed -i 5s/.*/loose/ src/a",
    );
    let before = signature(&app);
    let found = json(&cli, "diff t");
    assert_eq!(fails_as(&cli, "commit t", 4), "conflict", "{found}");
    assert_eq!(signature(&app), before);
    // The same where it is staged, and where nothing of it was committed inside.
    sh(&app, "git add src/a");
    let before = signature(&app);
    assert_eq!(fails_as(&cli, "commit t", 4), "conflict");
    assert_eq!(signature(&app), before);
    cli.ok("cleanup t --yes");
    sh(&app, "git reset -q --hard");
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", "sed -i 2s/.*/agent/ src/a"));
    sh(&app, "sed -i 8s/.*/more/ src/a; git commit -qm more src/a");
    assert_eq!(fails_as(&cli, "commit u", 4), "conflict");
}

// rule G1
#[test]
fn a_file_with_a_merge_driver_is_a_conflict_that_names_it_and_the_driver_is_not_run() {
    let (world, cli, app) = repository();
    sh(&app, LINES);
    sh(
        &app,
        "git config merge.own.driver 'touch ../../ran; exit 1'; echo 'src/a merge=own' > .gitattributes
         git add .gitattributes; git commit -qm attributes .gitattributes",
    );
    cli.ok("plan create t -r app");
    let work = "sed -i 1s/.*/agent/ src/a; git commit -qm agent src/a";
    cli.ok(in_plan("t", work));
    sh(&app, "sed -i 9s/.*/user/ src/a; git commit -qm user src/a");
    let failed = cli.run("--json commit t");
    let said = failed.stdout_text();
    assert_eq!(failed.status, 4, "{said}");
    assert!(said.contains("src/a") && said.contains("'own'"), "{said}");
    cli.ok("commit t --yes --on-conflict sandbox");
    assert!(read(app.join("src/a")).starts_with("agent\n2\n"));
    assert!(git(&app, "show HEAD:src/a").ends_with("8\n9\n"));
    sh(world.path(), "test -z \"$(find . -name ran)\"");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&app);
}

// rule G3
#[test]
fn where_git_cannot_merge_both_sides_are_named_and_one_can_be_taken() {
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    for (taken, first, gone) in [("ours", "agent\n", false), ("theirs", "user\n", true)] {
        let clean = git(&app, "status --short");
        cli.ok(format!("plan create {taken} -r app"));
        let work = "set -e; sed -i '1s/.*/agent/;9s/.*/AGENT/' src/a; echo kept >> .gitignore
            echo only > only; git add only; git commit -qm agent src/a only .gitignore";
        cli.ok(inside(&format!("run --plan {taken}"), work));
        sh(
            &app,
            "sed -i 1s/.*/user/ src/a; git rm -q --cached .gitignore; rm .gitignore; git commit -qm user src/a .gitignore",
        );
        let before = signature(&app);
        let failed = cli.run(format!("--json commit {taken}"));
        assert_eq!(failed.status, 4);
        let said: serde_json::Value = serde_json::from_slice(&failed.stdout).expect("it is JSON");
        let said = said.to_string();
        has(&said, ["src/a", ".gitignore"]);
        assert_eq!(signature(&app), before);
        cli.ok(words(&format!(
            "commit {taken} --yes --on-conflict {taken}"
        )));
        assert!(read(app.join("src/a")).starts_with(first));
        assert!(git(&app, "show HEAD:src/a").starts_with(first));
        assert_eq!(app.join(".gitignore").exists(), !gone);
        assert_eq!(read(app.join("only")), "only\n");
        let status = git(&app, "status --short");
        let ignored = if gone { "?? x.o\n" } else { "" };
        assert_eq!(status, format!("{clean}{ignored}"), "{taken}");
        assert_sound(&app);
        cli.ok(format!("undo {taken} --yes"));
        assert_eq!(git(&app, "log --format=%s -1"), "user\n");
        cli.ok(format!("cleanup {taken} --yes"));
        sh(&app, "git reset -q --hard HEAD^; git status --short");
    }
}

#[test]
fn a_merge_inside_settles_what_could_not_be_merged() {
    let (_world, cli, app) = repository();
    sh(&app, LINES);
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "sed -i 1s/.*/agent/ src/a; git commit -qm agent src/a",
    ));
    sh(&app, "sed -i 1s/.*/user/ src/a; git commit -qm user src/a");
    assert_eq!(fails_as(&cli, "commit t", 4), "conflict");
    let id = git(&app, "rev-parse HEAD");
    let merge = format!(
        "git reset -q s; git merge {}; sed -i '/^[<=>]/d' src/a; git add src/a; git commit -qm both -i src/a",
        id.trim()
    );
    cli.ok(in_plan("t", &merge));
    cli.ok("commit t --yes");
    assert!(read(app.join("src/a")).starts_with("agent\nuser\n2\n"));
    assert_eq!(git(&app, "log --format=%s -1"), "both\n");
    assert_eq!(git(&app, "status --short"), " M b\n?? s\n?? u\n");
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert!(read(app.join("src/a")).starts_with("user\n2\n"));
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
}

// rule G2
#[test]
fn a_directory_deleted_inside_goes_with_files_that_the_user_has_as_committed_and_comes_back() {
    let (_world, cli, app) = repository();
    sh(
        &app,
        "mkdir d; seq 3 > d/f; seq 4 > d/g; git add d; git commit -qm d d
         git branch other; git worktree add -q ../side other; cd ../side; echo other > d/f; git commit -qam other
         cd ../app; git worktree remove ../side",
    );
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "git rm -qr d; git commit -qm gone"));
    // Another file of the same content.
    sh(
        &app,
        "git stash -q; git checkout -q other; git checkout -q main; git stash pop -q --index",
    );
    cli.ok("commit t --yes");
    assert!(!app.join("d").exists());
    assert_eq!(git(&app, "log --format=%s -1"), "gone\n");
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(read(app.join("d/f")), "1\n2\n3\n");
    assert_eq!(git(&app, "log --format=%s -1"), "d\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    cleaned(&cli);
    assert_sound(&app);
}
