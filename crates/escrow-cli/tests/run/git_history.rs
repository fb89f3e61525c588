//! What a diff says of a private history, and what of it is released: references, what is staged, hooks and settings,
//! and the options that a checkout can have.

use crate::git::{assert_sound, change, checkout, cleaned, git, repository, signature, world};
use crate::*;

fn strings(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    list.map(|one| one[key].as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn a_diff_tells_commits_branches_tags_moved_files_and_submodules() {
    let (_world, cli, app) = repository();
    sh(&app, "git branch old; git branch stays; git tag t0");
    cli.ok("plan create t -r app");
    let work = "set -e; git mv src/a src/moved; chmod +x src/moved; git commit -qm 'moved it' src
        printf '\\0\\1' > bin; git add bin
        git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib; git reset -q s; git commit -qm 'a submodule'; git add s
        git checkout -q -b new; git tag -a -m note t1; git branch -q -D old; git branch -f stays";
    cli.ok(in_plan("t", work));
    let main = change(&cli, "diff t", ".git/refs/heads/main");
    assert_eq!(
        strings(&main["detail"]["commits"], "subject"),
        ["a submodule", "moved it"]
    );
    let files = main["detail"]["files"].as_array().expect("a list");
    let moved = files.iter().find(|one| one["path"] == "src/moved");
    let moved = moved.expect("it was moved");
    assert_eq!(
        (&moved["from"], &moved["new_mode"]),
        (&value!("src/a"), &value!("100755"))
    );
    let lib = files.iter().find(|one| one["path"] == "lib");
    assert_eq!(lib.expect("it is there")["new_mode"], "160000");
    for (name, kind) in [
        (".git/refs/heads/new", "added"),
        (".git/refs/tags/t1", "added"),
        (".git/refs/heads/old", "deleted"),
        (".git/refs/heads/stays", "modified"),
    ] {
        let other = change(&cli, "diff t", name);
        assert_eq!(other["kind"], kind, "{other}");
        assert_eq!(other["detail"]["released"], false);
    }
    let tag = change(&cli, "diff t", ".git/refs/tags/t1");
    assert_eq!(strings(&tag["detail"]["commits"], "subject").len(), 2);
    let said = cli.ok("diff t");
    for line in [
        "HEAD is on refs/heads/new inside",
        "moved src/a → src/moved",
        "submodule lib: new, at",
    ] {
        assert!(said.contains(line), "{said}");
    }
    // By default only the branch that was checked out moves.
    let digest = json(&cli, "diff t")["digest"].clone();
    let digest = digest.as_str().expect("a digest");
    cli.ok(format!("commit t --yes --expect {digest}"));
    assert_eq!(
        git(&app, "branch --format=%(refname:short)"),
        "main\nold\nstays\n"
    );
    assert_eq!(git(&app, "tag"), "t0\n");
    assert_eq!(git(&app, "status --short"), " M b\n D lib\nA  s\n?? u\n");
    assert_sound(&app);
}

#[test]
fn a_diff_since_a_checkpoint_has_the_history_since() {
    let world = world();
    let cli = checkout(&world);
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "echo 1 > f; git add f; git commit -qm one f"));
    cli.ok("checkpoint create t -m first");
    cli.ok(in_plan(
        "t",
        "echo 2 > f; git commit -qm two f; git branch side",
    ));
    cli.ok("checkpoint create t -m second");
    cli.ok(in_plan(
        "t",
        "echo 3 > f; git commit -qm three f; git branch -D side",
    ));
    let since = |line: &str, path: &str| {
        let main = change(&cli, line, path);
        strings(&main["detail"]["commits"], "subject")
    };
    let main = ".git/refs/heads/main";
    assert_eq!(since("diff t --since first", main), ["three", "two"]);
    assert_eq!(since("diff t --since second", main), ["three"]);
    assert_eq!(since("diff t --since first --until second", main), ["two"]);
    let side = change(
        &cli,
        "diff t --since first --until second",
        ".git/refs/heads/side",
    );
    assert_eq!(side["kind"], "added");
    let side = change(&cli, "diff t --since second", ".git/refs/heads/side");
    assert_eq!(side["kind"], "deleted");
}

#[test]
fn what_is_only_staged_is_shown_and_arrives_staged() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    // A file of the user is staged, one is not any more, one has a version in the index alone.
    let work = "git add b; git reset -q s; git update-index --add --cacheinfo 100755,$(git rev-parse :src/a),only";
    cli.ok(in_plan("t", work));
    let staged = change(&cli, "diff t", ".git/index");
    let staged = &staged["detail"]["staged"];
    assert_eq!(strings(staged, "path"), ["b", "only", "s"]);
    assert_eq!(strings(staged, "what"), ["modified", "added", "unstaged"]);
    assert!(cli.ok("diff t").contains("staged: only (added)"));
    let digest = json(&cli, "diff t")["digest"].clone();
    let digest = digest.as_str().expect("a digest");
    cli.ok(format!("commit t --yes --expect {digest}"));
    assert_eq!(git(&app, "status --short"), "M  b\nAD only\n?? s\n?? u\n");
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    // To look, and to stage and unstage, is no change.
    cli.ok("plan create n -r app");
    cli.ok(in_plan("n", "git status; git add u; git reset -q u"));
    assert_eq!(json(&cli, "diff n")["resources"][0]["changes"], value!([]));
    cli.ok("cleanup n --yes");
    cleaned(&cli);
    assert_sound(&app);
}

// rule G1
#[test]
fn hooks_and_settings_are_shown_as_running_later_and_released_only_by_name() {
    let (_world, cli, app) = repository();
    sh(
        &app,
        "echo mine > .git/hooks/pre-push; git config alias.mine log; git config credential.helper kept",
    );
    let before = signature(&app);
    cli.ok("plan create t -r app");
    let work = "printf '#!/bin/sh\\ntouch /tmp/pwned\\n' > .git/hooks/pre-commit; echo theirs > .git/hooks/pre-push
        git config core.pager evil; git config --add alias.mine other; echo new > n";
    let said = cli.ok(in_plan("t", work));
    assert!(!said.contains("error"), "{said}");
    let hook = change(&cli, "diff t", ".git/hooks/pre-commit");
    assert_eq!(
        (&hook["kind"], &hook["detail"]["released"]),
        (&value!("added"), &value!(false))
    );
    assert_eq!(
        change(&cli, "diff t", ".git/hooks/pre-push")["kind"],
        "modified"
    );
    let said = cli.ok("diff t");
    for line in [
        "touch /tmp/pwned",
        "+ core.pager = evil",
        "escrow commit --only .git/config",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let shown = json(&cli, "commit t --dry-run");
    let later = strings(&shown["runs_later"], "path");
    assert_eq!(
        later,
        [
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/hooks/pre-push"
        ]
    );
    // Not by default, and not with everything.
    for line in ["commit t --yes", "commit t --yes --only **"] {
        cli.ok(words(line));
        assert_eq!(read(app.join(".git/hooks/pre-push")), "mine\n", "{line}");
        assert!(!app.join(".git/hooks/pre-commit").exists(), "{line}");
        assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? n\n?? u\n");
        cli.ok("undo t --yes");
        cli.ok("cleanup t --yes");
        assert_eq!(signature(&app), before);
        cli.ok("plan create t -r app");
        cli.ok(in_plan("t", work));
    }
    cli.ok(words(
        "commit t --yes --only .git/hooks/pre-commit --only .git/config",
    ));
    assert!(read(app.join(".git/hooks/pre-commit")).contains("pwned"));
    sh(&app, "test -x .git/hooks/pre-commit");
    assert_eq!(read(app.join(".git/hooks/pre-push")), "mine\n");
    // Settings are changed one by one: what the sandbox never had stays.
    for (key, expected) in [
        ("core.pager", "evil\n"),
        ("credential.helper", "kept\n"),
        ("user.name", "U\n"),
        ("alias.mine", "log\nother\n"),
    ] {
        assert_eq!(git(&app, &format!("config --get-all {key}")), expected);
    }
    assert!(!app.join("n").exists());
    cli.ok("undo t --yes");
    cli.ok("cleanup t --yes");
    assert_eq!(signature(&app), before);
    // What the user changed too since then is a conflict.
    let work =
        "git config core.pager evil; git config user.name Agent; echo agent >> .git/info/exclude";
    for (user, back, path) in [
        (
            "config user.name Other",
            "config user.name U",
            ".git/config",
        ),
        (
            "config core.pager less",
            "config --unset core.pager",
            ".git/config",
        ),
    ] {
        cli.ok("plan create u -r app");
        cli.ok(in_plan("u", work));
        git(&app, user);
        let line = format!("commit u --yes --only {path}");
        assert_eq!(fails_as(&cli, &line, 4), "conflict", "{user}");
        git(&app, back);
        sh(&app, "echo mine >> .git/info/exclude");
        let line = "commit u --yes --only .git/info/exclude";
        assert_eq!(fails_as(&cli, line, 4), "conflict");
        sh(&app, "sed -i '/^mine$/d' .git/info/exclude");
        cli.ok("cleanup u --yes");
    }
}

#[test]
fn a_part_never_moves_a_branch_without_its_files() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    cli.ok(in_plan(
        "t",
        "echo agent >> src/a; echo c > c; git add c; git commit -qm work c src/a; echo plain > p",
    ));
    let before = signature(&app);
    for line in [
        "commit t --only .git/refs/heads/main",
        "commit t --exclude src/a",
        "commit t --only .git --only c",
    ] {
        assert_eq!(fails_as(&cli, line, 1), "unsupported", "{line}");
        assert_eq!(signature(&app), before, "{line}");
    }
    // Files alone arrive uncommitted, and the branch stays.
    cli.ok("commit t --yes --only src/a");
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n M src/a\n?? u\n");
    // What was never committed may stay behind.
    cli.ok("commit t --yes --exclude p");
    assert_eq!(git(&app, "log --format=%s"), "work\nfirst\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    cli.ok("commit t --yes");
    assert_eq!(read(app.join("p")), "plain\n");
    for _ in 0..3 {
        cli.ok("undo t --yes");
    }
    assert_eq!(git(&app, "log --format=%s"), "first\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    cleaned(&cli);
    assert_sound(&app);
}

/// A checkout whose resource has these options.
fn with_options(world: &World, options: &str) -> Cli {
    let app = world.dir("app");
    sh(
        &app,
        "git init -q -b main . && git config user.name U && git config user.email u@example.org
         mkdir src && echo one > src/a && echo two > b && echo '*.o' > .gitignore
         git add -A && git commit -qm first && git branch side && git branch gone && git tag t0
         echo dirty >> b && echo staged > s && git add s && echo plain > u",
    );
    let text = format!("resources:\n  app: {{type: git-checkout, at: app, {options}}}\n");
    std::fs::write(world.path().join("escrow.yaml"), text).expect("it can be written");
    let cli = Cli::new(world, &binary()).cwd(&app);
    cli.trust();
    cli
}

const BRANCHES: &str = "set -e; echo agent >> src/a; git commit -qm work src/a; git branch -f side; git branch -q -D gone
    git tag -a -m note t1; git branch deep/er";

#[test]
fn refs_all_releases_every_branch_and_tag_in_one_transaction() {
    let world = world();
    let (cli, app) = (with_options(&world, "refs: all"), world.path().join("app"));
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", BRANCHES));
    let before = git(
        &app,
        "for-each-ref --format=%(refname)%(objectname) refs/heads refs/tags",
    );
    // A lock, and names that git would not take, are no references; one that cannot be written as text is not left out in silence.
    let odd = "cd .git/refs/heads; cp side side.lock; cp side 'a b'; cp side \"$(printf 'c\\nd')\"; cp side \"$(printf 'e\\377')\"";
    cli.ok(in_plan("t", odd));
    assert_eq!(fails_as(&cli, "commit t --yes", 1), "unsupported");
    cli.ok(in_plan("t", "cd .git/refs/heads; rm e*"));
    cli.ok("commit t --yes");
    assert_eq!(
        git(
            &app,
            "for-each-ref --format=%(refname:short):%(contents:subject)"
        ),
        "deep/er:work\nmain:work\nside:work\nt0:first\nt1:note\n"
    );
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(
        git(
            &app,
            "for-each-ref --format=%(refname)%(objectname) refs/heads refs/tags"
        ),
        before
    );
    // One that both sides moved is a conflict, and nothing moves.
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", BRANCHES));
    sh(
        &app,
        "git branch -f side $(git commit-tree -m user HEAD^{tree})",
    );
    let held = signature(&app);
    assert_eq!(fails_as(&cli, "commit u", 4), "conflict");
    assert_eq!(signature(&app), held);
    // So is one that is checked out elsewhere.
    sh(
        &app,
        "git branch -f side main; git worktree add -q ../linked side",
    );
    assert_eq!(fails_as(&cli, "commit u", 4), "conflict");
}

#[test]
fn squash_and_commit_make_one_commit_in_the_users_name() {
    as_user_too();
    let world = world();
    let (cli, app) = (
        with_options(&world, "squash: true, commit: true"),
        world.path().join("app"),
    );
    // Neither a hook nor a signature is asked for.
    sh(
        &app,
        "printf '#!/bin/sh\\nexit 1\\n' | tee .git/hooks/pre-commit > .git/hooks/commit-msg; chmod +x .git/hooks/*
         git config commit.gpgsign true; git config gpg.program /bin/false",
    );
    cli.ok("plan create t -r app");
    let work = "set -e; export GIT_AUTHOR_NAME=Agent GIT_AUTHOR_EMAIL=a@example.org
        echo 1 >> src/a; git commit -qm one src/a; echo 2 >> src/a; git commit -qm two src/a
        echo 3 >> src/a; mkdir new; echo new > new/f; ln -s f new/link; echo object > x.o; echo 'y.*' >> .gitignore; echo y > y.y";
    cli.ok(in_plan("t", work));
    let main = change(&cli, "diff t", ".git/refs/heads/main");
    let lines = main["detail"]["lines"].to_string();
    has(&lines, ["one commit", "uncommitted"]);
    cli.ok(["commit", "t", "--yes", "-m", "all of it"]);
    assert_eq!(
        git(&app, "log --format=%s|%an|%ce"),
        "all of it|U|u@example.org\nfirst|U|u@example.org\n"
    );
    assert_eq!(
        git(&app, "show --format= --name-only HEAD"),
        ".gitignore\nnew/f\nnew/link\nsrc/a\n"
    );
    // What the user had left is as it was: changed, staged, untracked.
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_eq!(read(app.join("x.o")), "object\n");
    assert_sound(&app);
    cli.ok("undo t --yes");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_eq!(git(&app, "log --format=%s"), "first\n");

    // Without a message it is made of those of the commits.
    cli.ok("plan create u -r app");
    cli.ok(in_plan("u", work));
    cli.ok("commit u --yes");
    let said = git(&app, "log -1 --format=%B");
    assert!(said.contains("* one\n* two\n"), "{said}");
}

#[test]
fn uncommitted_work_becomes_a_commit_only_where_that_is_asked_for() {
    let world = world();
    let (cli, app) = (
        with_options(&world, "commit: true"),
        world.path().join("app"),
    );
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "echo work > w; rm src/a; git add -f w"));
    sh(&app, "echo user > x; git add x; git commit -qm user x");
    cli.ok("commit t --yes -m kept");
    assert_eq!(git(&app, "log --format=%s -1"), "kept\n");
    assert_eq!(git(&app, "log --format=%s -1 HEAD^2"), "kept\n");
    assert_eq!(git(&app, "log --format=%s -1 HEAD^1"), "user\n");
    assert_eq!(git(&app, "status --short"), " M b\nA  s\n?? u\n");
    assert_sound(&app);
    // What a filter program would rewrite is refused, since none is run.
    cli.ok("plan create f -r app");
    cli.ok(in_plan(
        "f",
        "echo '*.bin filter=lfs' > .gitattributes; echo x > x.bin",
    ));
    assert_eq!(fails_as(&cli, "commit f", 1), "unsupported");
    cli.ok("cleanup f --yes");
    // A value that means nothing is refused, with those that do: by the configuration, and where the keys are free.
    let text = read(world.path().join("escrow.yaml"));
    for (written, status) in [("refs: some", 2), ("options: {refs: some}", 1)] {
        let text = text.replace("commit: true", written);
        std::fs::write(world.path().join("escrow.yaml"), text).expect("it can be written");
        if status == 1 {
            cli.trust();
        }
        let said = cli.run("plan create g -r app");
        assert_eq!(said.status, status, "{written}");
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        has(&said, ["checked_out", "all"]);
    }
    assert_eq!(git(&app, "for-each-ref refs/escrow"), "");
}

#[test]
fn a_stash_that_stays_behind_is_told() {
    let (_world, cli, app) = repository();
    cli.ok("plan create t -r app");
    // What the user had not committed is in it.
    cli.ok(in_plan("t", "git stash -q"));
    let stash = change(&cli, "diff t", ".git/refs/stash");
    assert_eq!(stash["detail"]["released"], false);
    let said = json(&cli, "commit t --dry-run");
    let notes = said["resources"][0]["notes"].to_string();
    assert!(notes.contains("git stash pop"), "{said}");
    cli.ok(in_plan("t", "git stash pop -q --index"));
    let found = json(&cli, "diff t");
    assert_eq!(found["resources"][0]["changes"], value!([]), "{found:#}");
    assert_eq!(git(&app, "stash list"), "");
}

/// How many programs a line starts.
fn programs(cli: &Cli, line: &str) -> usize {
    let counts = cli.trace(words(line));
    assert!(
        counts.output.status.success(),
        "{line}: {:?}",
        counts.output
    );
    counts.by_name["execve"]
}

// rule C11
#[test]
fn the_number_of_git_processes_does_not_follow_the_change() {
    let count = |files: usize| {
        let world = world();
        let cli = with_options(&world, "refs: all");
        cli.ok("plan create t -r app");
        let work = format!(
            "for i in $(seq {files}); do echo $i > f$i; git add f$i; git commit -qm $i f$i; git tag t$i; git branch b$i; done"
        );
        cli.ok(in_plan("t", &work));
        ["diff t", "commit t --yes", "undo t --yes"].map(|line| programs(&cli, line))
    };
    assert_eq!(count(1), count(12));
}

#[test]
fn a_git_that_is_too_old_is_told_and_the_checkout_is_a_directory() {
    need!(escrow_testkit::skip::require_root(
        "the program is hidden by a mount"
    ));
    let world = world();
    let cli = checkout(&world);
    let old = world.path().join("old");
    std::fs::write(&old, "#!/bin/sh\necho git version 2.37.9\n").expect("it can be written");
    sh(world.path(), "chmod +x old");
    let lay = "for at in /usr/bin/git /usr/local/bin/git; do test ! -e $at || mount --bind \"$OLD\" $at; done; exec \"$@\"";
    let mut command = cli.behind(
        &["unshare", "-m", "sh", "-euc", lay, "sh"],
        "--json plan create o -r app",
    );
    let said = output_of(command.env("OLD", &old));
    assert!(said.contains("too old: version 2.38"), "{said}");
    assert!(said.contains("\"overlay\""), "{said}");
}

/// A program that signs like gpg, and one that fails.
const SIGNS: &str = "#!/bin/sh\ncat > /dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; echo '-----BEGIN PGP SIGNATURE-----'\n";

#[test]
fn trap_08_what_the_release_commits_is_signed_only_where_that_is_asked_for() {
    let world = world();
    let options = "options: {sign: inherit}, squash: true";
    let (cli, app) = (with_options(&world, options), world.path().join("app"));
    let gpg = world.path().join("gpg");
    std::fs::write(&gpg, SIGNS).expect("it can be written");
    sh(
        &app,
        "chmod +x ../gpg; git config gpg.program \"$PWD/../gpg\"",
    );
    let signed = || git(&app, "cat-file commit HEAD").contains("gpgsig");
    for (sign, wanted) in [("false", false), ("true", true)] {
        git(&app, &format!("config commit.gpgSign {sign}"));
        cli.ok("plan create t -r app");
        cli.ok(in_plan("t", "echo x >> src/a; git commit -qm x src/a"));
        cli.ok("commit t --yes");
        assert_eq!(signed(), wanted, "{sign}");
        cli.ok("undo t --yes");
        cli.ok("cleanup t --yes");
    }
    sh(&app, "echo 'exit 1' > ../gpg");
    cli.ok("plan create t -r app");
    cli.ok(in_plan("t", "echo x >> src/a; git commit -qm x src/a"));
    let before = signature(&app);
    assert_eq!(fails_as(&cli, "commit t --yes", 1), "failed");
    assert_eq!(signature(&app), before);
}
