//! A part of a plan is released: `commit --only` and `--exclude` as their users meet them.

use std::fs;
use std::path::PathBuf;

use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};
use serde_json::{Value, json};

use crate::{binary, json, words, world};

/// Two resources, one in layers and one copied, each with the same changes.
fn scene() -> (World, Cli) {
    let (world, cli) = world();
    for name in ["app", "data"] {
        let dir = world.dir(name);
        fs::create_dir_all(dir.join("docs")).expect("there is room");
        fs::write(dir.join("docs/old.md"), "old\n").expect("there is room");
        fs::write(dir.join("keep"), "keep\n").expect("there is room");
    }
    cli.ok(words(
        "resource add one --type fs-directory --at ./app --strategy overlay",
    ));
    cli.ok(words(
        "resource add two --type fs-directory --at ./data --strategy filesystem_copy",
    ));
    cli.ok("plan create try --resource one --resource two");
    let edits = "mkdir -p src/new && echo n > src/new/n.rs && echo log > src/new/n.log && \
                 rm docs/old.md && echo md > docs/new.md && echo changed > keep";
    run(
        &world,
        &cli,
        &format!("cd ../app && {edits} && cd ../data && {edits}"),
    );
    (world, cli)
}

fn run(world: &World, cli: &Cli, script: &str) {
    let mut line = words("-q run --plan try -- sh -euc");
    line.push(script.into());
    cli.clone().cwd(world.path().join("app")).ok(line);
}

fn at(world: &World, path: &str) -> PathBuf {
    world.path().join(path)
}

fn paths(list: &Value) -> Vec<String> {
    let one = |change: &Value| change["path"].as_str().expect("a path").to_owned();
    list.as_array().expect("a list").iter().map(one).collect()
}

// rule C1, C6
#[test]
fn what_is_asked_for_is_released_and_the_rest_stays() {
    let test = "parts::what_is_asked_for_is_released_and_the_rest_stays";
    rerun_test_as_user_with(test, &[&binary()]);
    let (world, cli) = scene();
    let line = "commit try --only src/** --only two:docs/*.md --exclude **/*.log -m part";
    // Looking changes nothing, and says what comes and what stays.
    let shown = json(&cli, &format!("{line} --dry-run"));
    assert_eq!(shown["committed"], json!(false));
    assert!(!at(&world, "app/src/new").exists());
    let done = json(&cli, line);
    assert_eq!(done["committed"], json!(true), "{done}");
    assert_eq!(done["conflicts"], json!([]));
    assert_eq!(done["left"], json!([]), "nothing went wrong");
    assert_eq!(done["resources"], shown["resources"]);
    for (resource, changes, left) in [
        (
            "one",
            vec!["src/new", "src/new/n.rs"],
            vec!["docs/new.md", "docs/old.md", "keep", "src/new/n.log"],
        ),
        (
            "two",
            vec![
                "docs/new.md",
                "docs/old.md",
                "src",
                "src/new",
                "src/new/n.rs",
            ],
            vec!["keep", "src/new/n.log"],
        ),
    ] {
        let members = done["resources"].as_array().expect("a list");
        let member = members.iter().find(|one| one["resource"] == resource);
        let member = member.expect("it is told");
        assert_eq!(paths(&member["changes"]), changes, "{resource}");
        assert_eq!(paths(&member["left"]), left, "{resource}");
    }
    assert_eq!(done["left_changes"], json!(6));
    assert!(at(&world, "app/src/new/n.rs").exists() && at(&world, "app/docs/old.md").exists());
    assert!(!at(&world, "app/src/new/n.log").exists());
    assert!(at(&world, "data/docs/new.md").exists() && !at(&world, "data/docs/old.md").exists());
    // The plan is open, shows exactly the rest, and inside everything is as it was.
    let plan = json(&cli, "plan show try");
    assert_eq!(plan["state"], json!("open"));
    let diff = cli.ok("diff try --name-status --resource two");
    assert_eq!(diff, "M\tkeep\nA\tsrc/new/n.log\n");
    run(
        &world,
        &cli,
        "cat src/new/n.log docs/new.md; test ! -e docs/old.md; cd ../data; cat src/new/n.rs; \
         echo more >> src/new/n.rs; cd ../app; rm src/new/n.rs",
    );
    let diff = cli.ok("diff try --name-status --resource two");
    assert_eq!(diff, "M\tkeep\nA\tsrc/new/n.log\nM\tsrc/new/n.rs\n");
    let said = cli.ok("commit try --only two:src/new/n.rs --yes");
    assert!(said.contains("two: committed: 1 modified"), "{said}");
    assert!(said.contains("one: stays in the sandbox: "), "{said}");
    // Without a name it is the plan here that was committed last; the newest part first.
    let here = cli.clone().cwd(at(&world, "data"));
    here.ok("undo");
    let read = |path: &str| fs::read_to_string(at(&world, path)).expect("it is there");
    assert_eq!(read("data/src/new/n.rs"), "n\n");
    let diff = cli.ok("diff try --name-status --resource two");
    assert_eq!(diff, "M\tkeep\nA\tsrc/new/n.log\nM\tsrc/new/n.rs\n");
    // And then the rest.
    let rest = json(&cli, "commit try");
    assert_eq!(rest["left_changes"], json!(0));
    assert_eq!(read("data/src/new/n.rs"), "n\nmore\n");
    assert!(!at(&world, "app/src/new/n.rs").exists() && at(&world, "app/src/new/n.log").exists());
    cli.ok("undo try");
    cli.ok("undo try");
    assert!(!at(&world, "app/src/new").exists() && !at(&world, "data/src").exists());
    assert_eq!(read("data/docs/old.md"), "old\n");
    cli.fails("undo try", 4);
    // The copy was made while the first part stood, so another plan holds that.
    cli.ok("cleanup try");
    cli.ok("cleanup try-2");
    let left = fs::read_dir(world.home().join("sandboxes")).expect("it is there");
    assert_eq!(left.count(), 0);
}

#[test]
fn a_wrong_pattern_changes_nothing() {
    let (world, cli) = scene();
    for (line, hint) in [
        ("--only new.md", "did you mean '**/new.md'?"),
        ("--only one:kep", "did you mean 'one:keep'?"),
        ("--only three:keep", "did you mean '**/keep'?"),
        (
            "--only keep --exclude nothing-like-that",
            "escrow diff try --name-status",
        ),
        ("--only keep --exclude keep", "nothing was changed"),
        ("--only /etc", "from the top of the resource"),
        ("--only a/../b", "from the top of the resource"),
        ("--only a[", "from the top of the resource"),
    ] {
        for dry in ["", " --dry-run"] {
            let outcome = cli.run(format!("--json commit try {line}{dry}"));
            let said = outcome.stdout_text();
            assert_eq!(outcome.status, 2, "{line}: {said}");
            let document: Value = serde_json::from_str(&said).expect("one document");
            assert_eq!(document["error"]["kind"], json!("usage"), "{said}");
            assert!(
                document["error"]["hints"].to_string().contains(hint),
                "{said}"
            );
        }
    }
    assert_eq!(
        fs::read_to_string(at(&world, "app/keep")).expect("it is there"),
        "keep\n"
    );
    let logged = cli.ok("log --verify");
    assert!(!logged.is_empty());
}

/// What is protected stays so; what is not asked for is not checked.
// rule S6
#[test]
fn the_policy_judges_what_is_released() {
    let (world, cli) = scene();
    let rules = "policy:\n  mode: enforce\n  rules:\n    - { allow: [create, read, write, diff, run, checkpoint, restore, commit, undo, cleanup], principal: '*', scope: '*' }\n    - { deny: [commit], principal: '*', scope: '*:docs/**' }\n";
    fs::write(world.path().join("escrow.yaml"), rules).expect("there is room");
    cli.fails("commit try", 3);
    cli.fails("commit try --only docs/new.md", 3);
    cli.ok("commit try --exclude docs");
    assert!(at(&world, "app/src/new/n.rs").exists() && at(&world, "app/docs/old.md").exists());
    assert_eq!(
        cli.ok("diff try --name-status --resource one"),
        "A\tdocs/new.md\nD\tdocs/old.md\n"
    );
}

/// What parts keep for undo is the plan's for as long as it is open, and goes with it.
#[test]
fn garbage_is_not_what_a_part_keeps() {
    let (world, cli) = scene();
    cli.ok("commit try --only src");
    cli.ok("commit try --only docs");
    cli.ok("gc --older-than 0s");
    cli.ok("undo try");
    cli.ok("gc --older-than 0s");
    cli.ok("undo try");
    assert!(!at(&world, "app/src/new").exists() && at(&world, "app/docs/old.md").exists());
    let count = || {
        let all = fs::read_dir(world.home().join("sandboxes")).expect("it is there");
        let names = all.map(|entry| entry.expect("it can be listed").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| !name.ends_with(".scratch")).count()
    };
    assert_eq!(count(), 2, "only the sandboxes are left");
    cli.ok("commit try --only src");
    cli.ok("commit try");
    // Of a plan that is over, all of it goes with its time.
    cli.ok("gc --max-size 0");
    assert_eq!(count(), 0);
    cli.fails("undo try", 4);
}

/// A fork begins with what was left; what was released is no change of it.
#[test]
fn a_fork_after_a_part() {
    let (world, cli) = world();
    cli.ok("plan create try --resource ./app --strategy overlay");
    run(
        &world,
        &cli,
        "rm link; echo new > a.txt; mkdir d; echo x > d/x; echo l > left",
    );
    cli.ok("commit try --exclude left");
    cli.ok("plan fork try other");
    assert_eq!(cli.ok("diff other --name-status"), "A\tleft\n");
    cli.ok("commit other");
    assert!(at(&world, "app/left").exists() && !at(&world, "app/link").exists());
    assert_eq!(
        fs::read_to_string(at(&world, "app/d/x")).expect("it is there"),
        "x\n"
    );
}

/// All that was asked for is all there is: then the plan is committed as ever.
#[test]
fn everything_is_no_part() {
    let (world, cli) = scene();
    let done = json(&cli, "commit try --only **");
    assert_eq!(done["left_changes"], json!(0));
    assert_eq!(json(&cli, "plan show try")["state"], json!("committed"));
    assert!(at(&world, "data/src/new/n.log").exists());
}

/// A part is validated as the whole would be, and nothing that a validation writes is released.
#[test]
fn what_is_released_was_validated() {
    let (world, cli) = scene();
    let rules = "validate:\n  - 'test -e src/new/n.rs; echo spoilt > keep'\n";
    fs::write(world.path().join("escrow.yaml"), rules).expect("there is room");
    cli.trust();
    cli.ok("commit try --only keep");
    let read = |path: &str| fs::read_to_string(at(&world, path)).expect("it is there");
    assert_eq!(
        (read("app/keep"), read("data/keep")),
        ("changed\n".into(), "changed\n".into())
    );
    let failing = "validate:\n  - 'false'\n";
    fs::write(world.path().join("escrow.yaml"), failing).expect("there is room");
    cli.trust();
    cli.fails("commit try --only src", 1);
    assert!(!at(&world, "app/src/new").exists());
    // The automatic ones and those by name are refused from then on, with what to do.
    fs::remove_file(world.path().join("escrow.yaml")).expect("it is there");
    cli.ok("checkpoint create try -m before");
    cli.ok("commit try --only docs");
    let said = cli.fails("restore try before", 4);
    assert!(said.contains("escrow undo try"), "{said}");
    cli.ok("undo try");
    cli.ok("restore try before");
    assert_eq!(read("app/docs/old.md"), "old\n");
}

/// Whatever sandbox stood there when a part was taken back: it is a change again where its sandbox comes back, and
/// none where that was discarded.
#[test]
fn a_part_that_was_taken_back_is_forgotten_by_every_sandbox() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        world.dir("app");
        let line = format!("plan create try --resource ./app --strategy {strategy}");
        cli.ok(words(&line));
        for name in ["f", "g"] {
            let line = format!("write try app {name}");
            cli.clone().stdin(name).ok(words(&line));
        }
        cli.ok("checkpoint create try -m both");
        cli.ok("commit try --only f");
        cli.ok("rollback try");
        cli.ok("undo try");
        let diff = || cli.ok("diff try --name-status");
        // The rollback was the newest.
        assert_eq!(diff(), "A\tg\n", "{strategy}");
        cli.ok("undo try");
        assert_eq!(diff(), "A\tf\nA\tg\n", "{strategy}");
        cli.ok("restore try both");
        assert_eq!(diff(), "A\tf\nA\tg\n", "{strategy}");
        cli.ok("commit try");
        assert_eq!(fs::read(at(&world, "app/f")).expect("it came"), b"f");
    }
}

/// A copy that is partly released cannot be forked: after the undo the fork would have lost what was released.
#[test]
fn a_copy_of_which_a_part_is_released_is_not_forked() {
    let (world, cli) = world();
    world.dir("app");
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    for name in ["f", "g"] {
        let line = format!("write try app {name}");
        cli.clone().stdin(name).ok(words(&line));
    }
    cli.ok("commit try --only f");
    let said = cli.fails("plan fork try other", 1);
    assert!(said.contains("a part of its plan is committed"), "{said}");
    cli.ok("undo try");
    cli.ok("plan fork try other");
    assert_eq!(cli.ok("diff other --name-status"), "A\tf\nA\tg\n");
}

/// What was released in parts can be taken back also after the rest was discarded, however early workspaces go.
// rule C7
#[test]
fn a_part_can_be_undone_after_the_rest_was_rolled_back() {
    let (world, cli) = world();
    let rules = "sandbox: { cleanup: on_terminal }\n";
    fs::write(at(&world, "escrow.yaml"), rules).expect("there is room");
    cli.trust();
    for strategy in ["overlay", "filesystem_copy"] {
        let line = format!("plan create try --resource ./app --strategy {strategy}");
        cli.ok(words(&line));
        run(&world, &cli, "echo new > a.txt; echo l > left");
        cli.ok("commit try --only a.txt");
        cli.ok("rollback try");
        let text = || fs::read_to_string(at(&world, "app/a.txt")).expect("it is there");
        assert_eq!(text(), "new\n", "{strategy}");
        cli.ok("undo try");
        assert_ne!(text(), "new\n", "{strategy}");
        cli.ok("cleanup try");
    }
}
