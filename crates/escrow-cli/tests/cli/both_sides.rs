//! A diff is against what the sandbox began from: what the user changed since is not said to be the agent's.

use crate::*;

const BASE: &str = "1\n2\n3\n4\n5\n";
const AGENT: &str = "1\n2\n3\n4\nfive\n";
const USER: &str = "one\n2\n3\n4\n5\n";

/// The lines of a patch that are taken away or added.
fn edits(patch: &str) -> Vec<&str> {
    let edit = |line: &&str| {
        line.starts_with(['+', '-']) && !line.starts_with("+++ ") && !line.starts_with("--- ")
    };
    patch.lines().filter(edit).collect()
}

// rule C15
#[test]
fn a_diff_does_not_say_that_the_agent_removed_what_the_user_wrote_since() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let app = world.at("app");
        for name in ["f", "mine", "own"] {
            write(app.join(name), BASE);
        }
        cli.plan("try", "./app", strategy);
        let script = "cd app; sed -i s/5/five/ f own";
        cli.ok(["run", "--plan", "try", "--", "sh", "-c", script]);
        lacks(&cli.ok("diff try"), ["both sides"]);
        lacks(&cli.ok("status"), ["both sides"]);
        write(app.join("f"), USER);
        write(app.join("mine"), USER);
        let listed = cli.ok("diff try");
        let line = |name: &str| {
            let line = listed
                .lines()
                .find(|line| line.contains(&format!("  {name}  ")));
            line.unwrap_or_else(|| panic!("{name} is not in: {listed}"))
                .to_owned()
        };
        has(
            &line("f"),
            ["modified", "+1 -1", "10 B → 13 B", "changed on both sides"],
        );
        lacks(&line("own"), ["both sides"]);
        let patch = cli.ok("diff try --patch app/f");
        has(&patch, ["# changed on both sides: f\n"]);
        assert_eq!(edits(&patch), ["-5", "+five"], "{strategy}");
        let patch = cli.ok("diff try --patch --original app/f");
        assert_eq!(edits(&patch), ["-one", "+1", "-5", "+five"], "{strategy}");
        let patch = cli.ok("diff try --patch --base");
        assert_eq!(edits(&patch), ["-1", "+one"], "{strategy}");
        let found = json(&cli, "diff try");
        let wanted = value!([{"path": "f", "base_known": true}]);
        assert_eq!(found["resources"][0]["both_sides"], wanted, "{strategy}");
        let listed = cli.run("diff try --name-status");
        assert_eq!(listed.stdout_text(), "M\tf\nM\town\n");
        has(
            &listed.stderr_text(),
            ["changed on both sides  app: f;", "`escrow diff try --base`"],
        );
        // A copy is compared at the cost of all its files, and a status costs the same for any size.
        if strategy == "overlay" {
            has(&cli.ok("status"), ["changed on both sides  app: f;"]);
        }
        let ran = cli.run("run --plan try -- true");
        has(&ran.stderr_text(), ["changed on both sides  app: f;"]);
        // What is released is the same whichever versions are compared.
        let digest = |line: &str| json(&cli, line)["digest"].clone();
        assert_eq!(digest("diff try"), digest("diff try --original"));
        assert_eq!(digest("diff try --base"), Value::Null);
        cli.ok("commit try --on-conflict merge");
        assert_eq!(read(app.join("f")), "one\n2\n3\n4\nfive\n", "{strategy}");
    }
}

/// The version that both began from is gone: no lines are counted, and a patch says what it compares with.
// rule C15
#[test]
fn where_the_version_before_is_not_known_a_diff_says_so() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let app = world.at("app");
        write(app.join("f"), BASE);
        write(app.join("gone"), BASE);
        cli.plan("try", "./app", strategy);
        write(app.join("f"), USER);
        put(&cli, "try app f", AGENT);
        put(&cli, "try app gone", AGENT);
        remove(app.join("gone"));
        let listed = cli.ok("diff try");
        let both = listed
            .lines()
            .filter(|line| line.ends_with("changed on both sides"));
        assert_eq!(both.count(), 2, "{strategy}: {listed}");
        has(
            &cli.ok("diff try --patch app/f"),
            ["# changed on both sides, compared with the original as it is now: f\n"],
        );
        let patch = cli.ok("diff try --patch --base");
        assert_eq!(
            edits(&patch),
            ["-1", "-2", "-3", "-4", "-5"],
            "{strategy}: {patch}"
        );
    }
}

#[test]
fn a_review_says_what_both_sides_changed() {
    as_user_too();
    let (world, cli) = world();
    let app = world.dir("app");
    write(app.join("f"), "alpha\n");
    cli.plan("try", "./app", "overlay");
    put(&cli, "try app f", "beta\n");
    write(app.join("f"), "gamma\n");
    let screen = review::Tmux::start(&world, &cli, "review try");
    screen.shows(["conflict, changed on both sides", "beta", "gamma"]);
    screen.last(&["q"]);
}
