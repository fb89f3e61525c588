//! What is said when a command has ended: what it did, what the plan holds, and what is only counted.

use crate::*;

/// A repository in `app` that ignores what tools leave.
const REPOSITORY: &str = "git init -q .; printf '__pycache__/\\n.venv/\\n*.log\\n' > .gitignore; git add .; \
    git -c user.name=U -c user.email=u@example.org commit -qm first";

/// What tools leave, beside one change.
const WORK: &str = "echo 'print()' >> a.txt; mkdir -p .venv/bin src/__pycache__ src/lib/__pycache__ data
    for n in $(seq 40); do echo x > .venv/bin/t$n; done; chmod +x .venv/bin/*
    echo 1 > src/__pycache__/m.pyc; echo 2 > src/lib/__pycache__/n.pyc; echo 3 > run.log; echo new > data/x";

/// The configuration of the user.
fn configure(world: &World, text: &str) {
    let own = world.dir("user-home/.config/escrow");
    write(own.join("escrow.yaml"), text);
}

#[test]
fn a_run_says_what_it_did_and_what_the_plan_holds() {
    as_user_too();
    for strategy in STRATEGIES {
        let (_world, cli) = world();
        let said = |line: Vec<OsString>| cli.expect(line, 0).stderr_text();
        let first = format!("run --strategy {strategy}");
        let script = "echo more >> a.txt; mkdir -p d/e/f; echo x > d/e/f/g";
        let made = said(inside(&first, script));
        has(&made, ["app: 1 added, 1 modified\n"]);
        // Directories are counted where nothing in them is.
        let own = said(inside("run", "echo y >> src/main.rs; mkdir empty"));
        has(
            &own,
            [
                "app: this run: 1 modified, 1 directory; the plan: 1 added, 2 modified, 1 directory\n",
            ],
        );
        let own = said(inside("run", "rm a.txt; rmdir empty"));
        has(
            &own,
            ["app: this run: 1 deleted, 1 directory; the plan: 1 added, 1 modified, 1 deleted\n"],
        );
        let own = said(inside("run", "true"));
        has(
            &own,
            ["app: this run: no changes; the plan: 1 added, 1 modified, 1 deleted\n"],
        );
        // In a plan in which nothing was before, the command did all of it.
        cli.ok("rollback --yes");
        cli.ok(format!(
            "plan create again --resource . --strategy {strategy}"
        ));
        let all = said(inside("run --plan again", "echo z > z"));
        has(&all, ["app: 1 added\n"]);
        let summary = &json(&cli, "diff again")["resources"][0]["summary"];
        assert_eq!(
            (&summary["added"], &summary["directories"]),
            (&value!(1), &value!(0))
        );
    }
}

#[test]
fn what_git_ignores_is_one_line() {
    as_user_too();
    let (world, cli) = world();
    sh(world.at("app"), REPOSITORY);
    let said = cli.expect(inside("run", WORK), 0).stderr_text();
    let counted = "43 ignored by git: .venv, __pycache__, run.log\n";
    has(
        &said,
        [
            "app: 1 added, 1 modified\n",
            &format!("  {counted}"),
            "runs later  app: 40 files that git ignores, the first: .venv/bin/t1  a new executable file\n",
        ],
    );
    assert_eq!(said.matches("runs later").count(), 1, "{said}");
    let shown = cli.ok("diff");
    has(
        &shown,
        ["app: 1 added, 1 modified\n", &format!("  {counted}")],
    );
    lacks(&shown, ["bin/t1", ".pyc", "added     .venv"]);
    has(&cli.ok("diff --all"), ["app: 44 added", ".venv/bin/t40"]);
    has(&cli.ok("diff --name-only"), [".venv/bin/t40"]);
    let dry = cli.ok("commit app --dry-run");
    has(
        &dry,
        [
            &format!("app: would commit: 1 added, 1 modified; {counted}"),
            "runs later  app: 40 files that git ignores",
        ],
    );
    // What is only ignored is no change to speak of, and is released all the same.
    cli.ok("commit app --yes");
    assert!(world.at("app/.venv/bin/t40").exists());
    let said = cli.expect(inside("run", "echo 4 >> run.log"), 0);
    has(&said.stderr_text(), ["app: 1 ignored by git: run.log\n"]);
    // Rules that the command makes hide nothing.
    let script = "printf '*\\n' > .gitignore; echo hidden > hidden";
    let said = cli.expect(inside("run", script), 0).stderr_text();
    has(
        &said,
        ["app: 1 added, 1 modified\n  1 ignored by git: run.log\n"],
    );
    has(&cli.ok("diff"), ["added     hidden"]);
}

#[test]
fn what_the_configuration_ignores_is_neither_shown_nor_released() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = world();
        configure(
            &world,
            "diff: {ignore: ['*.log', target/, 'app:src/main.rs']}\n",
        );
        let script = "echo x > a.log; mkdir -p target/deep src/target; echo y > target/deep/z; \
            echo w > src/target/v; echo no >> src/main.rs; echo yes > b.txt; rm a.txt";
        let line = format!("run --strategy {strategy}");
        let said = cli.expect(inside(&line, script), 0).stderr_text();
        let left = "4 left out by `diff.ignore`: target, a.log, main.rs\n";
        has(&said, ["app: 1 added, 1 deleted\n", &format!("  {left}")]);
        let shown = cli.ok("diff");
        has(&shown, [&format!("  {left}"), "added     b.txt"]);
        lacks(&shown, ["added     a.log", "main.rs  "]);
        assert_eq!(cli.ok("diff --name-only"), "a.txt\nb.txt\n");
        let document = json(&cli, "diff");
        let resource = &document["resources"][0];
        assert_eq!(list(&resource["changes"]).len(), 2, "{document}");
        assert_eq!(list(&resource["ignored"]).len(), 7, "{document}");
        let digest = document["digest"].as_str().expect("a digest");
        // What is ignored may change: it is no part of the digest.
        cli.ok(inside("run", "echo more >> a.log"));
        let dry = cli.ok("commit app --dry-run");
        has(&dry, [&format!("would commit: 1 added, 1 deleted; {left}")]);
        cli.ok(format!("commit app --yes --expect {digest}"));
        let app = world.at("app");
        assert_eq!(read(app.join("b.txt")), "yes\n");
        assert_eq!(read(app.join("src/main.rs")), "fn main() {}\n");
        for gone in ["a.txt", "a.log", "target", "src/target"] {
            assert!(!app.join(gone).exists(), "{gone}");
        }
        // Nothing is left to be released: the plan is over, and so is one in which nothing else happened.
        assert_eq!(json(&cli, "status")["plans"], value!([]));
        let said = cli.expect(inside("run", "echo x > a.log"), 0).stderr_text();
        has(&said, ["app: 1 left out by `diff.ignore`: a.log\n"]);
        lacks(&said, ["next:"]);
        assert_eq!(json(&cli, "status")["plans"], value!([]));
        // A directory in which something ignored stays, stays.
        sh(&app, "mkdir logs; touch logs/a.log logs/b");
        cli.ok(inside("run --commit", "rm -r logs"));
        assert!(app.join("logs/a.log").exists() && !app.join("logs/b").exists());
    }
}

#[test]
fn a_file_in_a_tree_ignores_nothing_without_trust() {
    as_user_too();
    let (world, cli) = world();
    write(world.at("app/escrow.yaml"), "diff: {ignore: ['*.log']}\n");
    let said = cli.expect(inside("run", "echo x > a.log"), 0).stderr_text();
    has(&said, ["app: 1 added\n"]);
    cli.ok("rollback --yes");
    cli.trust();
    let said = cli.expect(inside("run", "echo x > a.log"), 0).stderr_text();
    has(&said, ["app: 1 left out by `diff.ignore`: a.log\n"]);
    write(world.at("app/escrow.yaml"), "diff: {ignore: ['a/../b']}\n");
    let refused = cli.expect("type validate escrow.yaml", 2).stderr_text();
    has(&refused, ["diff.ignore[0]"]);
}
