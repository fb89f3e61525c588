//! Attacks of group E: what is planted in a repository, by its author or by an agent. The numbers are those of
//! `docs/spec/attacks.md`.

use crate::git::{assert_sound, checkout, git, repository, signature, world};
use crate::*;

/// A checkout with a plan `t`, in which an agent has done this.
fn attacked(script: &str) -> (World, Cli, PathBuf) {
    let world = world();
    let cli = checkout(&world);
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", &format!("set -e; {script}")));
    let app = world.path().join("app");
    (world, cli, app)
}

/// The plan is refused with these words, nothing has moved, and it can be discarded.
#[track_caller]
fn refused<const N: usize>(cli: &Cli, app: &Path, before: &str, why: [&str; N]) {
    let said = cli.fails("commit t --yes", 1);
    has(&said, why);
    assert_eq!(signature(app), before);
    cli.ok("rollback t --yes");
    cli.ok(in_plan("t", "git status --short"));
    cli.ok("cleanup t --yes");
    assert_sound(app);
}

#[test]
fn e1_planted_hooks_are_never_run_by_the_engine() {
    as_user_too();
    let (world, cli, app) = repository();
    let mark = world.path().join("mark");
    let plant = format!(
        "mkdir -p .git/hooks; for hook in reference-transaction post-index-change post-checkout pre-commit post-commit; do
         printf '#!/bin/sh\\ntouch \"{}\"\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook; done",
        mark.display()
    );
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", &format!("echo x >> src/a; git commit -qm x src/a; git config core.hooksPath \"$PWD/.git/hooks\"; {plant}"),
    ));
    sh(&app, &plant);
    cli.ok("diff t");
    cli.ok("checkpoint create t");
    cli.ok("plan fork t f");
    cli.ok("commit t --yes");
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    cli.ok("cleanup f --yes");
    assert!(!mark.exists());
}

#[test]
fn e2_settings_that_start_programs_are_not_followed() {
    as_user_too();
    let (world, cli, app) = repository();
    let mark = world.path().join("mark");
    let run = format!("touch {}", mark.display());
    let keys = [
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "pager.log",
        "diff.external",
        "filter.x.clean",
        "filter.x.smudge",
        "filter.x.process",
        "credential.helper",
        "core.gitProxy",
        "core.askPass",
        "gpg.program",
        "diff.x.textconv",
        "merge.x.driver",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
        "gc.recentObjectsHook",
        "sequence.editor",
        "trailer.x.cmd",
    ];
    let mut plant = String::from("echo '* filter=x diff=x merge=x' > .git/info/attributes; ");
    for key in keys {
        plant += &format!("git config {key} '{run}'; ");
    }
    for alias in [
        "log",
        "update-ref",
        "rev-parse",
        "for-each-ref",
        "merge-tree",
        "pack-objects",
    ] {
        plant += &format!("git config alias.{alias} '!{run}'; ");
    }
    plant += &format!(
        "printf '[core]\\n\\tfsmonitor = {run}\\n\\thooksPath = /\\n' > .git/more; git config include.path more
         git config --file .git/config.worktree core.fsmonitor '{run}'"
    );
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        &format!("echo x >> src/a; git commit -qm x src/a; {plant}"),
    ));
    let settings = read(app.join(".git/config"));
    cli.ok("diff t --patch");
    cli.ok("commit t --yes");
    assert_eq!(
        read(app.join(".git/config")),
        settings,
        "they are not released"
    );
    assert_eq!(git(&app, "log -1 --format=%s"), "x\n");
    assert!(!mark.exists());
    cli.ok("undo t --yes");
    // Nor those that the author of the repository set.
    sh(&app, &plant);
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", "echo y >> src/a; git commit -qm y src/a"));
    sh(&app, "rm -f ../mark");
    cli.ok("diff u --patch");
    cli.ok("commit u --yes");
    cli.ok("undo u --yes");
    cli.ok("cleanup u --yes");
    assert!(!mark.exists());
}

#[test]
fn e4_a_bare_repository_among_the_files_is_only_files() {
    as_user_too();
    let (world, cli, app) = repository();
    let mark = world.path().join("mark");
    let plant = |dir: &str| {
        format!(
            "mkdir -p {dir}/objects {dir}/refs; echo 'ref: refs/heads/main' > {dir}/HEAD
             printf '[core]\\n\\tbare = true\\n\\tfsmonitor = touch {}\\n' > {dir}/config",
            mark.display()
        )
    };
    sh(&app, &plant("lib"));
    cli.ok("plan create t -r app");
    // One at the top too, in which git would be if it looked for a repository from there.
    let top = format!("{}; cd vendor && {}", plant("vendor"), plant("."));
    cli.ok(in_plan(
        "t",
        &format!("{top}; cd ..; git add -A; git commit -qm planted"),
    ));
    cli.clone().cwd(app.join("lib")).ok("diff t");
    cli.ok("commit t --yes");
    assert!(app.join("vendor/config").exists());
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    assert!(!mark.exists());
}

#[test]
fn e5_hostile_gitmodules_are_refused() {
    as_user_too();
    for text in [
        "[submodule \"../../.git/hooks\"]\\n\\tpath = x\\n\\turl = ./y\\n",
        "[submodule \"x\"]\\n\\tpath = x\\n\\turl = -u./payload\\n",
    ] {
        let (_world, cli, app) = attacked(&format!(
            "printf '{text}' > .gitmodules; git add .gitmodules; git commit -qm modules"
        ));
        let before = signature(&app);
        refused(&cli, &app, &before, ["gitmodules"]);
    }
    let (_world, cli, app) = attacked(
        "link=$(printf src/a | git hash-object -w --stdin)
         tree=$(printf \"120000 blob $link\\t.gitmodules\\n\" | git mktree)
         git update-ref refs/heads/main $(echo link | git commit-tree $tree -p HEAD)",
    );
    let before = signature(&app);
    refused(&cli, &app, &before, ["gitmodulesSymlink"]);
}

#[test]
fn e6_no_pair_of_names_writes_into_the_git_directory() {
    as_user_too();
    // On a file system that folds case, `A/modules/x` would be written through the link `a`.
    let (_world, cli, app) = attacked(
        "id=$(echo payload | git hash-object -w --stdin); link=$(printf .git | git hash-object -w --stdin)
         git update-index --add --cacheinfo 100755,$id,A/hooks/post-checkout --cacheinfo 120000,$link,a
         git commit -qm pair; ln -s .git a; mkdir -p A/hooks; echo payload > A/hooks/post-checkout; echo x > a/hooks/x",
    );
    let hooks = || sh(&app, "ls .git/hooks; cat .git/config");
    let before = hooks();
    has(
        &cli.fails("commit t --yes", 1),
        ["the link 'a' stands beside the directory 'A'"],
    );
    cli.ok("commit t --yes --exclude .git/**");
    assert_eq!(hooks(), before);
    assert_eq!(read(app.join("A/hooks/post-checkout")), "payload\n");
    assert!(
        fs::symlink_metadata(app.join("a"))
            .expect("it is there")
            .is_symlink()
    );
    cli.ok("undo t --yes");
    assert_eq!(hooks(), before);
    cli.ok("cleanup t --yes");
}

#[test]
fn e7_trees_that_no_git_would_write_are_refused() {
    as_user_too();
    let one = |mode: &str, name: &str| format!("{mode} {name}\\0");
    for (entries, why) in [
        (vec![one("100644", "..")], "hasDotdot"),
        (vec![one("100644", ".git")], "hasDotgit"),
        (vec![one("100644", ".GIT")], "hasDotgit"),
        (vec![one("100644", "a/b")], "fullPathname"),
        (
            vec![one("100644", "x"), one("100644", "x")],
            "duplicateEntries",
        ),
    ] {
        let mut tree = String::new();
        for entry in &entries {
            tree += &format!("printf '{entry}'; printf %s \"$id\" | xxd -r -p; ");
        }
        let (_world, cli, app) = attacked(&format!(
            "id=$(echo payload | git hash-object -w --stdin)
             tree=$( ({tree}) | git hash-object -t tree --literally -w --stdin)
             git update-ref refs/heads/main $(echo bad | git commit-tree $tree -p HEAD)"
        ));
        let before = signature(&app);
        refused(&cli, &app, &before, [why]);
    }
}

#[test]
fn e9_alternates_grafts_and_replacements_hide_nothing() {
    as_user_too();
    let hidden = "echo hidden > h; git add h; git commit -qm hidden h; echo shown > src/a; git commit -qm shown src/a";
    let (_world, cli, app) = attacked(&format!(
        "{hidden}; git replace -f HEAD $(git commit-tree -m innocent HEAD~2^{{tree}} -p HEAD~2)
         git rev-parse HEAD HEAD~2 | paste -sd ' ' > .git/info/grafts; git log --format=%s"
    ));
    let found = json(&cli, "diff t");
    let all = found.to_string();
    has(&all, ["hidden", "shown"]);
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "log --format=%s"), "shown\nhidden\nfirst\n");
    assert_eq!(git(&app, "for-each-ref refs/replace"), "");
    assert!(!app.join(".git/info/grafts").exists());
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");

    let (world, cli, app) = attacked(hidden);
    let before = signature(&app);
    let elsewhere = world.path().join("elsewhere/objects");
    fs::create_dir_all(&elsewhere).expect("a directory");
    let line = format!(
        "echo {} >> .git/objects/info/alternates",
        elsewhere.display()
    );
    cli.ok(in_plan("t", &line));
    refused(&cli, &app, &before, ["alternates"]);
}

// rule C14
#[test]
fn e10_a_branch_that_the_user_moves_during_the_commit_is_not_lost() {
    as_user_too();
    need!(require_stepper());
    let prepared = || attacked("echo agent >> src/a; git commit -qm agent src/a");
    let (_world, cli, _) = prepared();
    let calls = cli.stepper("commit t --yes").run().calls;
    let mut both = 0;
    for n in (1..=calls).step_by(41) {
        let (_world, cli, app) = prepared();
        let user = "git -c user.name=U -c user.email=u@e commit -q --allow-empty -m user --only";
        let mut committed = false;
        cli.stepper("commit t --yes").stop_at(n, |_| {
            // It may be locked just now: then git says so.
            let done = Command::new("sh")
                .args(["-c", user])
                .current_dir(&app)
                .status();
            committed = done.expect("there is a shell").success();
        });
        let recovered = cli.run("recover").status;
        let log = git(&app, "log --format=%s");
        assert_eq!(log.contains("user"), committed, "{n}: {log} ({recovered})");
        both += usize::from(committed && log.contains("agent"));
        let fsck = git(&app, "fsck --strict");
        assert!(!fsck.contains("error"), "{n}: {fsck}");
    }
    assert!(both > 0, "the user never committed beside the agent");
}

#[test]
fn e12_what_an_agent_destroys_is_its_own() {
    as_user_too();
    let (_world, cli, app) = repository();
    sh(
        &app,
        "echo lost > l; git add l; git stash -q; git branch keep; git commit -q --allow-empty -m gone; git reset -q --hard HEAD~1",
    );
    let before = signature(&app);
    let objects = || sh(&app, "find .git/objects -type f | sort");
    let stored = objects();
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "git stash clear; git branch -D keep; git update-ref -d refs/heads/main; git reflog expire --expire=now --all
         git gc -q --prune=now; git prune --expire=now; rm -rf .git/objects/* .git/refs .git/packed-refs .git/escrow
         rm -rf * .gitignore; find .git/escrow -type f | head -1 | xargs -r rm -f; true",
    ));
    assert_eq!(objects(), stored);
    cli.ok("rollback t --yes");
    assert_eq!(cli.ok(in_plan("t", "git log --format=%s")), "first\n");
    cli.ok("cleanup t --yes");
    assert_eq!(signature(&app), before);
    assert_eq!(objects(), stored);
}

#[test]
fn e16_links_and_pipes_in_place_of_objects_are_refused() {
    as_user_too();
    let object = "id=$(git rev-parse HEAD); file=.git/objects/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-)";
    for (plant, name) in [
        (format!("{object}; rm -f $file; mkfifo $file"), "objects/"),
        (
            format!(
                "{object}; mv $file ../moved 2>/dev/null || mv $file moved; ln -s $PWD/moved $file"
            ),
            "objects/",
        ),
        (
            "rm -rf .git/objects; ln -s / .git/objects".to_owned(),
            "objects",
        ),
        (
            "mkfifo .git/objects/pack/pack-0000000000000000000000000000000000000000.idx".to_owned(),
            "objects/pack",
        ),
        (
            "ln -s /dev/zero .git/objects/info/commit-graph".to_owned(),
            "objects/info",
        ),
    ] {
        let (_world, cli, app) =
            attacked(&format!("echo x >> src/a; git commit -qm x src/a; {plant}"));
        let before = signature(&app);
        refused(
            &cli,
            &app,
            &before,
            [name, "neither a file nor a directory"],
        );
    }
}

#[test]
fn what_takes_the_place_of_the_index_or_of_references_is_refused_or_no_reference() {
    as_user_too();
    let (_world, cli, app) = repository();
    let before = signature(&app);
    for (n, plant) in (0..).zip([
        "rm .git/index; mkfifo .git/index",
        "rm .git/index; ln -s /dev/zero .git/index",
        "echo garbage > .git/index",
        "rm -f .git/HEAD; mkfifo .git/HEAD",
        "ln -sf /etc/hostname .git/HEAD",
        "rm -rf .git/refs/heads; ln -s / .git/refs/heads",
        "mkfifo .git/refs/heads/pipe; ln -sf /dev/zero .git/refs/heads/zero",
        "rm .git/packed-refs; ln -s /dev/zero .git/packed-refs",
    ]) {
        cli.ok(format!("plan create t{n} -r app"));
        // The summary of the run may be what is refused.
        let ran = cli.run(inside(&format!("run --plan t{n}"), plant)).status;
        assert!(matches!(ran, 0 | 125), "{plant}: {ran}");
        let done = cli.run(format!("commit t{n} --yes"));
        assert!(matches!(done.status, 0 | 1), "{plant}: {done:?}");
        cli.ok(format!("cleanup t{n} --yes"));
        assert_eq!(signature(&app), before, "{plant}");
    }
    assert_sound(&app);
}
