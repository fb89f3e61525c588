//! What a history and an index hold and the files do not show: it is said, listed and judged like a file, before anything moves.

use crate::git::{assert_sound, change, checkout, git, signature, world};
use crate::*;

const POLICY: &str = "policy:
  mode: enforce
  rules:
    - { allow: [create, read, write, diff, run, commit, rollback, cleanup, undo, admin], principal: '*', scope: '*' }
    - { deny: [write, commit], principal: '*', scope: '*:.github/**' }
";

const CI: &str = ".github/workflows/ci.yml";
const MAIN: &str = ".git/refs/heads/main";

/// The files are those of before, whatever was committed.
const FILES_BACK: &str = "git read-tree HEAD~1; git checkout-index -fa";

/// A checkout with a workflow, with options of the resource, and with nothing that is not committed but an ignored file.
fn set_up(options: &str) -> (World, Cli, PathBuf) {
    let world = world();
    let cli = checkout(&world);
    let app = world.path().join("app");
    let ci = format!("mkdir -p .github/workflows; echo safe > {CI}; git add -A; git commit -qm ci");
    sh(&app, &ci);
    let at = world.path().join("escrow.yaml");
    if !options.is_empty() {
        cli.ok("resource remove app");
        write(
            at,
            format!("resources:\n  app: {{type: git-checkout, at: app, {options}}}\n"),
        );
        cli.trust();
    }
    (world, cli, app)
}

/// The same with a plan `t`.
fn planned(options: &str) -> (World, Cli, PathBuf) {
    let (world, cli, app) = set_up(options);
    cli.ok("plan create t -r app");
    (world, cli, app)
}

/// The same with a plan `d` under the policy.
fn denied(options: &str) -> (World, Cli, PathBuf) {
    let (world, cli, app) = set_up(options);
    let at = world.path().join("escrow.yaml");
    let before = fs::read_to_string(&at).unwrap_or_default();
    write(at, before + POLICY);
    cli.trust();
    cli.ok("plan create d -r app");
    (world, cli, app)
}

/// Of each way in which a history or an index holds what the files do not show: a policy denies it, and nothing moves.
// rules S6, G1
#[test]
fn what_only_a_history_holds_is_denied_like_a_file() {
    as_user_too();
    let evil = format!("echo evil > {CI}");
    let staged = format!(
        "id=$(echo evil | git hash-object -w --stdin); git update-index --cacheinfo 100644,$id,{CI}"
    );
    for (script, within) in [
        (format!("{evil}; git commit -qm 'fix typo' {CI}; {FILES_BACK}"), "\"fix typo\""),
        (staged, "the index"),
        (
            format!("{evil}; git commit -qm 'fix typo' {CI}; git revert --no-edit HEAD"),
            "\"fix typo\"",
        ),
        (
            format!(
                "git switch -qc side; {evil}; git commit -qm side {CI}; git switch -q main; echo m > m; git add m; git commit -qm m m
                 git merge -q --no-ff -m merged side; {FILES_BACK}"
            ),
            "\"side\"",
        ),
        // In nothing but the merge itself.
        (
            format!(
                "git switch -qc side; echo x > x; git add x; git commit -qm side x; git switch -q main; echo m > m; git add m; git commit -qm m m
                 git merge -q --no-ff --no-commit side; {evil}; git add {CI}; git commit -qm merged; {FILES_BACK}"
            ),
            "\"merged\"",
        ),
        // No commit is new.
        (
            "git update-ref refs/heads/main $(git commit-tree -m root HEAD~1^{tree})".to_owned(),
            "refs/heads/main at ",
        ),
        ("git update-ref refs/heads/main HEAD~1".to_owned(), "refs/heads/main at "),
    ] {
        let (_world, cli, app) = denied("");
        cli.ok(in_plan("d", &format!("set -e; {script}")));
        let before = signature(&app);
        for line in [
            "commit d --yes",
            "commit d --dry-run",
            "commit d --yes --only .git/**",
        ] {
            let said = cli.fails(words(line), 3);
            has(&said, [CI, "deny write, commit", &format!("(in {}", first(within))]);
            has(&said, [within]);
        }
        assert_eq!(signature(&app), before, "{script}");
        cli.ok("cleanup d --yes");
        assert_sound(&app);
    }
}

/// The word with which a place is named.
fn first(within: &str) -> &str {
    if within.starts_with('"') {
        "commit"
    } else {
        within
    }
}

/// The same rules let everything else go, whatever was committed in which order.
// rule S6
#[test]
fn honest_commits_pass_such_a_policy_and_say_nothing() {
    as_user_too();
    let (_world, cli, app) = denied("");
    let script = "set -e; echo 1 >> src/a; git commit -qm one src/a; echo 2 >> src/a; git commit -qm two src/a; git mv src/a src/c; git commit -qm three -- src
         git switch -qc side; echo x > x; ln -s x y; git add x y; git commit -qm side -- x y; git switch -q main; echo m > m; git add m
         git commit -qm m m; git merge -q --no-ff -m merged side; chmod +x m; git commit -qm runs m; echo staged > n; git add n; echo left >> m";
    let run = cli.expect(in_plan("d", script), 0);
    let run = run.stderr_text();
    assert_eq!(run.matches("attention").count(), 1, "{run}");
    let shown = cli.ok("diff d");
    has(&shown, ["another version of m than the files"]);
    has(&shown, ["earlier versions of "]);
    lacks(
        &shown,
        ["do not show", "not you", "of src/a", "of x", "of n"],
    );
    let patch = cli.ok("diff d --patch");
    has(&patch, ["\"one\": M src/a\n", "# +1\n", "#     three\n"]);
    cli.ok("commit d --yes");
    assert_eq!(git(&app, "log --format=%s -1"), "runs\n");
    assert_sound(&app);
}

/// Nothing forbids it: then everybody reads it, at the end of the run, in `diff` in every form, and before the commit.
// rule G1
#[test]
fn what_only_a_history_holds_is_shown_in_every_form() {
    as_user_too();
    let (_world, cli, app) = planned("");
    let script = format!(
        "set -e; printf 'key\\n' > secret; git add secret; git commit -qm 'add \"it\"' -m 'hidden words'
         git rm -q secret; git commit -qm clean; echo evil > {CI}; git commit -qam 'fix typo'; {FILES_BACK}; git add -f x.o"
    );
    let run = cli.expect(in_plan("t", &script), 0).stderr_text();
    let lines = [
        "\"fix typo\" changes .github/workflows/ci.yml, which the files do not show",
        "\"add 'it'\" adds secret, which the files do not show, and which stays in the history",
        "the index adds x.o, which the files do not show",
    ];
    has(&run, lines);
    has(
        &run,
        [
            "attention  app: commit ",
            "runs later  app:.github/workflows/ci.yml  a CI service runs it, in commit ",
        ],
    );
    has(&cli.ok("diff t"), lines);
    let dry = cli.ok("commit t --dry-run");
    has(&dry, lines);
    has(&dry, ["runs later  app:.github/workflows/ci.yml"]);
    let patch = cli.ok("diff t --patch");
    has(
        &patch,
        [
            "# -safe\n# +evil\n",
            "# +key\n",
            "#     hidden words\n",
            "# the index: A x.o\n# --- a/x.o\n# +++ b/x.o\n# @@ -0,0 +1 @@\n# +object\n",
        ],
    );
    assert!(patch.lines().all(|line| line.starts_with('#')), "{patch}");
    let main = change(&cli, "diff t", MAIN);
    let carried = list(&main["carried"]);
    let evil = carried
        .iter()
        .find(|one| one["path"] == CI)
        .expect("it is listed");
    assert_eq!(
        (&evil["files"], &evil["kind"]),
        (&value!("other"), &value!("modified"))
    );
    has(&evil["within"], ["fix typo"]);
    assert_eq!(main["detail"]["warnings"].as_array().map(Vec::len), Some(2));
    let later = json(&cli, "commit t --dry-run");
    has(&later["runs_later"][0]["within"], ["fix typo"]);
    // What is staged is a part of the digest, also where the files are the same.
    let digest = |cli: &Cli| json(cli, "diff t")["digest"].clone();
    let before = digest(&cli);
    cli.ok(in_plan("t", "git update-index --chmod=+x x.o"));
    assert_ne!(digest(&cli), before);
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "show HEAD:.github/workflows/ci.yml"), "evil\n");
    has(
        &json(&cli, "log"),
        ["\"app:.github/workflows/ci.yml\"", "\"app:secret\""],
    );
}

// rule G1
#[test]
fn a_commit_of_somebody_else_says_so() {
    as_user_too();
    let (_world, cli, app) = planned("refs: all");
    cli.ok(in_plan(
        "t",
        "set -e; echo 1 >> src/a; git commit -qm mine src/a; for one in 2 3; do echo $one >> src/a; git commit -qm $one --author 'Evil <evil@x>' src/a; done
         git tag fine -m fine; git -c user.email=else@x tag odd -m odd; git notes add -m 'a note'",
    ));
    let shown = cli.ok("diff t");
    has(
        &shown,
        [
            "author Evil <evil@x> of commit ",
            " \"3\" and 1 more is not you (U <u@example.org>)",
            "tagger U <else@x> of refs/tags/odd is not you",
        ],
    );
    lacks(
        &shown,
        ["\"mine\" is not you", "refs/tags/fine is not", "notes"],
    );
    has(
        &cli.ok("diff t --patch"),
        ["# author Evil <evil@x>\n", "# tagger U <else@x> "],
    );
    cli.ok("commit t --yes");
    // Notes are released with nothing.
    assert_eq!(git(&app, "for-each-ref refs/notes"), "");
}

/// Other branches and tags are in no files at all.
// rules S6, G1
#[test]
fn other_branches_and_tags_are_judged_too() {
    as_user_too();
    let evil = format!("echo evil > {CI}; git commit -qm evil {CI}");
    for script in [
        format!("git switch -qc side; {evil}; git switch -q main"),
        format!("git switch -q --detach; {evil}; git tag -m t v1; git switch -q main"),
    ] {
        let (_world, cli, _app) = planned("refs: all");
        cli.ok(in_plan("t", &format!("set -e; {script}")));
        has(
            &cli.ok("diff t"),
            ["\"evil\" changes .github/workflows/ci.yml, which the files do not show"],
        );
        let (_world, cli, app) = denied("refs: all");
        cli.ok(in_plan("d", &format!("set -e; {script}")));
        let before = signature(&app);
        has(&cli.fails("commit d --yes", 3), [CI, "\"evil\""]);
        assert_eq!(signature(&app), before);
    }
    // What stands for no commit holds what nothing shows.
    let (_world, cli, app) = planned("refs: all");
    cli.ok(in_plan("t", "set -e; git tag blob $(echo key | git hash-object -w --stdin); git tag -m x tree HEAD^{tree}; git tag -m x first; git tag -f -m y twice first"));
    let before = signature(&app);
    has(
        &cli.ok("diff t"),
        [
            ".git/refs/tags/blob",
            ".git/refs/tags/tree",
            ".git/refs/tags/twice",
        ],
    );
    assert_eq!(cli.ok("diff t").matches("stands for no commit").count(), 3);
    has(&cli.fails("commit t --yes", 1), ["it stands for no commit"]);
    assert_eq!(signature(&app), before);
    cli.ok(in_plan("t", "git tag -d blob tree twice"));
    cli.ok("commit t --yes");
    assert_eq!(git(&app, "tag"), "first\n");
}

/// On a system that takes two names for one, what is written through a link lands elsewhere.
// rule S6
#[test]
fn trees_that_are_dangerous_elsewhere_are_refused() {
    as_user_too();
    let pair = "id=$(echo payload | git hash-object -w --stdin); link=$(printf .git/hooks | git hash-object -w --stdin)
         git update-index --add --cacheinfo 100755,$id,a/post-checkout --cacheinfo 120000,$link,A";
    let hidden = "git -c core.protectNTFS=false -c core.protectHFS=false update-index --add --cacheinfo 100755,$(echo x | git hash-object -w --stdin),";
    for (script, why) in [
        (
            format!(
                "{pair}; git commit -qm pair; git reset -q --hard HEAD~1; git update-ref refs/heads/main ORIG_HEAD"
            ),
            "the link 'A' stands beside the directory 'a'",
        ),
        (
            pair.to_owned(),
            "the link 'A' stands beside the directory 'a'",
        ),
        (
            format!("{hidden}\"$(printf '.g\\342\\200\\214it')/hooks/x\""),
            "lies in the git directory",
        ),
        (
            format!("{hidden}git~1/hooks/x"),
            "lies in the git directory",
        ),
    ] {
        let (_world, cli, app) = planned("");
        cli.ok(in_plan("t", &format!("set -e; {script}")));
        let before = signature(&app);
        has(&cli.ok("diff t"), ["cannot be committed: ", why]);
        has(
            &cli.ok("commit t --dry-run"),
            ["cannot be committed: ", why],
        );
        has(&cli.fails("commit t --yes", 1), [why]);
        assert_eq!(signature(&app), before);
        cli.ok("rollback t --yes");
        cli.ok("cleanup t --yes");
    }
}

/// A validation sees files; what it cannot have seen is said before it runs.
// rule R3
#[test]
fn what_no_validation_sees_is_said() {
    as_user_too();
    let (world, cli, _app) = set_up("");
    write(world.path().join("escrow.yaml"), "validate:\n  - 'true'\n");
    cli.trust();
    for (script, said) in [
        (
            format!("echo evil > {CI}; git commit -qm 'fix typo' {CI}; {FILES_BACK}"),
            true,
        ),
        (
            "echo 1 >> src/a; git commit -qm one src/a".to_owned(),
            false,
        ),
    ] {
        cli.ok("plan create v -r app");
        cli.ok(in_plan("v", &format!("set -e; {script}")));
        let told = cli.expect("commit v --yes", 0).stderr_text();
        let words = "which are not all that is committed: commit ";
        assert_eq!(told.contains(words), said, "{script}: {told}");
        cli.ok("cleanup v --yes");
    }
}

/// Where commits are made by the release itself: what is judged is what they hold.
// rule S6
#[test]
fn what_is_squashed_or_left_is_judged_as_it_is_released() {
    as_user_too();
    let evil = format!("echo evil > {CI}; git commit -qm 'fix typo' {CI}");
    let staged = format!(
        "id=$(echo evil | git hash-object -w --stdin); git update-index --cacheinfo 100644,$id,{CI}"
    );
    let (_world, cli, app) = denied("squash: true");
    cli.ok(in_plan("d", &format!("set -e; {evil}; {FILES_BACK}")));
    has(&cli.fails("commit d --yes", 3), [CI]);
    // What goes in between is no part of the one commit.
    cli.ok(in_plan("d", &format!("set -e; git reset -q --hard; git checkout -q HEAD~1 -- {CI}; git commit -qm back; echo 1 >> src/a; git commit -qm one src/a")));
    cli.ok("commit d --yes");
    assert_eq!(
        git(&app, "log -p --format=%s -- .github")
            .matches("evil")
            .count(),
        0
    );

    let (_world, cli, _app) = denied("commit: true");
    let digest = || json(&cli, "diff d")["digest"].clone();
    cli.ok(in_plan("d", "echo 1 >> src/a"));
    let before = digest();
    cli.ok(in_plan("d", &staged));
    assert_ne!(
        digest(),
        before,
        "what is staged is in the commit that is made"
    );
    has(
        &cli.fails("commit d --yes", 3),
        [CI, "the commit of what was left"],
    );
}

/// Git does not compare what it reads with the name that it is stored under.
// rules S6, G1
#[test]
fn an_object_under_a_false_name_hides_nothing() {
    as_user_too();
    let as_other = "as() { at=.git/objects/$(echo $2 | cut -c1-2)/$(echo $2 | cut -c3-); mkdir -p $(dirname $at); chmod -f u+w $at || true
         cp .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-) $at; }";
    let evil = format!("echo evil > {CI}; git commit -qm 'fix typo' {CI}");
    for script in [
        // The text of one file under the name of another.
        "good=$(echo good | git hash-object -w --stdin); bad=$(echo evil | git hash-object -w --stdin); as $bad $good
         git update-index --cacheinfo 100644,$good,src/a; git commit -qm a"
            .to_owned(),
        // The tree that was there looks as if the workflow had been in it; what is staged brings the text of that along.
        format!(
            "{evil}; {FILES_BACK}; git update-index --add --cacheinfo 100644,$(git rev-parse HEAD:{CI}),docs
             as $(git rev-parse HEAD:.github) $(git rev-parse HEAD~1:.github)"
        ),
    ] {
        let (_world, cli, app) = denied("");
        cli.ok(in_plan("d", &format!("set -e; {as_other}; {script}")));
        let before = signature(&app);
        let said = cli.fails("commit d --yes", 1);
        has(&said, ["objects in the private git directory are not what their names say"]);
        assert_eq!(signature(&app), before);
        cli.ok("cleanup d --yes");
        assert_sound(&app);
    }
}

/// What `diff.ignore` leaves out of the files is in the history all the same.
// rule G1
#[test]
fn what_is_left_out_of_the_files_and_committed_is_said() {
    as_user_too();
    let (world, cli, app) = set_up("");
    write(
        world.path().join("escrow.yaml"),
        "diff: {ignore: ['*.log']}\n",
    );
    cli.trust();
    cli.ok("plan create t -r app");
    let script = "set -e; echo key > out.log; git add out.log; git commit -qm kept; echo 1 >> src/a; git commit -qam one";
    let run = cli.expect(in_plan("t", script), 0).stderr_text();
    let said = "\"kept\" has out.log, which is left out of the files";
    has(&run, [said]);
    has(&cli.ok("diff t"), [said]);
    has(&cli.ok("diff t --patch"), ["# +key\n"]);
    has(&cli.ok("commit t --yes"), [said]);
    assert_eq!(git(&app, "show HEAD:out.log"), "key\n");
}
