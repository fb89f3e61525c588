//! What stands between a plan and its release: the validation and the policy of the configuration.

use std::fs;

use escrow_testkit::user::rerun_test_as_user_with;
use escrow_testkit::{Cli, World};

use serde_json::json as value;

use crate::{binary, json, json_error, words, world};

fn configured(text: &str, strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let app = world.path().join("app");
    fs::write(world.path().join("escrow.yaml"), text).expect("there is room");
    let cli = cli.cwd(&app);
    cli.trust();
    let line = format!("plan create try --resource . --strategy {strategy}");
    cli.ok(words(&line));
    (world, cli)
}

#[test]
fn a_validation_that_fails_stops_the_commit_and_leaves_nothing() {
    let test = "judged::a_validation_that_fails_stops_the_commit_and_leaves_nothing";
    rerun_test_as_user_with(test, &[&binary()]);
    let text = "validate:\n  - 'echo looking; echo x > left-by-validation; rm -f a.txt'\n  - [test, '!', -e, bad]\n";
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = configured(text, strategy);
        let app = world.path().join("app");
        cli.clone().stdin("x\n").ok(words("write try app bad"));
        let outcome = cli.run(words("--json commit try"));
        assert_eq!(outcome.status, 1, "{strategy}: {}", outcome.stderr_text());
        let said = outcome.stdout_text();
        assert!(said.contains("the validation `test ! -e bad`"), "{said}");
        assert!(!said.contains("looking"), "{said}");
        assert!(outcome.stderr_text().contains("looking"));
        assert_eq!(cli.ok(words("diff try --name-status")), "A\tbad\n");
        assert!(!app.join("bad").exists() && app.join("a.txt").exists());
        let kept = json(&cli, "checkpoint list try");
        let named = kept.to_string().contains("before validation");
        assert!(!named, "{kept}");
        // What they do is not what is released.
        cli.ok(words("rollback try"));
        cli.clone().stdin("x\n").ok(words("write try app good"));
        cli.ok(words("commit try"));
        assert!(
            app.join("good").exists() && app.join("a.txt").exists(),
            "{strategy}"
        );
        assert!(!app.join("left-by-validation").exists(), "{strategy}");
    }
}

/// A commit that a validation stops is a commit that failed: in the log with what was said about it, and in the document.
// rules C5, P9, S7
#[test]
fn a_commit_that_is_stopped_is_told_like_any_that_failed() {
    let test = "judged::a_commit_that_is_stopped_is_told_like_any_that_failed";
    rerun_test_as_user_with(test, &[&binary()]);
    let (_world, cli) = configured("validate: [[test, '!', -e, bad]]\n", "overlay");
    cli.clone().stdin("x\n").ok(words("write try app bad"));
    let outcome = cli.run(words("--json commit try -m because"));
    assert_eq!(outcome.status, 1, "{}", outcome.stderr_text());
    let told: serde_json::Value = serde_json::from_str(&outcome.stdout_text()).expect("JSON");
    assert_eq!(told["committed"], false);
    let cause = told["cause"].as_str().expect("a cause");
    assert!(
        cause.contains("`test ! -e bad` ended with status 1"),
        "{cause}"
    );
    for list in [
        "resources",
        "conflicts",
        "undone",
        "not_undone",
        "kept",
        "left",
    ] {
        assert_eq!(told[list], serde_json::json!([]), "{list}: {told}");
    }
    cli.fails(words("run --plan try --commit -- true"), 125);
    let log = json(&cli, "log try");
    let commits = log["operations"].as_array().expect("a list").iter();
    let commits: Vec<_> = commits.filter(|one| one["action"] == "commit").collect();
    let messages: Vec<_> = commits.iter().map(|one| one["message"].as_str()).collect();
    assert_eq!(messages, [Some("because"), None]);
    for one in &commits {
        assert_eq!(one["outcome"], "failed", "{one}");
        let error = one["error"].as_str().expect("why");
        assert!(error.contains("`test ! -e bad` ended"), "{error}");
        assert_eq!(one["resources"], serde_json::json!(["app"]));
    }
    assert!(cli.ok(words("log try")).contains("    because\n"));
    cli.ok(words("log --verify"));
}

const POLICY: &str = "policy:
  mode: enforce
  rules:
    - { allow: [read, write, diff, run, checkpoint, restore, create], principal: 'agent*', scope: '*' }
    - { allow: [create, read, write, diff, run, checkpoint, restore, commit, rollback, undo, cleanup, gc, admin], principal: 'user:*', scope: '*' }
    - { deny: [write, commit], principal: '*', scope: 'app:.github/**' }
";

// rule S6, S7
#[test]
fn the_policy_of_the_configuration_is_enforced() {
    let (world, cli) = configured(POLICY, "overlay");
    cli.clone()
        .stdin("x\n")
        .ok(words("--principal agent:one write try app f"));
    let said = cli.fails(words("--principal agent:one commit try"), 3);
    assert!(said.contains("commit"), "{said}");
    // Whatever way it was written, it is not released.
    let line = words("run --plan try -- mkdir -p .github/workflows");
    cli.ok(line);
    let said = cli.fails(words("commit try"), 3);
    assert!(said.contains(".github"), "{said}");
    assert!(!world.path().join("app/f").exists());
    cli.ok(words("run --plan try -- rm -r .github"));
    cli.ok(words("commit try"));
    assert!(world.path().join("app/f").exists());
    let log = json(&cli, "log try").to_string();
    assert!(log.contains("denied"), "{log}");
    cli.ok(words("log --verify"));
    let said = cli.run(words(
        "--json access check --principal agent:one --action commit --scope app",
    ));
    assert!(
        said.stdout_text().contains("\"permitted\": false"),
        "{}",
        said.stdout_text()
    );
}

/// One that cannot be read permits nothing.
// rule S6
#[test]
fn a_policy_that_cannot_be_understood_denies() {
    let (world, cli) = configured("", "overlay");
    fs::write(
        world.path().join("escrow.yaml"),
        "policy: { mode: enforce, rules: [ { permit: [commit] } ] }\n",
    )
    .expect("there is room");
    let outcome = cli.run(words("commit try"));
    assert!(
        [2, 3].contains(&outcome.status),
        "{}",
        outcome.stderr_text()
    );
}

/// Who checks a configuration is reported what is wrong with its policy, and where; commands are denied.
// rule S6
#[test]
fn a_policy_that_makes_no_sense_is_told_with_its_place() {
    let (world, cli) = configured("", "overlay");
    let file = world.path().join("escrow.yaml");
    let cli = cli.cwd(world.path());
    let rules = |rule: &str| format!("policy:\n  mode: enforce\n  rules:\n    - {rule}\n");
    let whole = "principal: '*', scope: '*'";
    let rows = [
        (
            "policy:\n  mode: enfroce\n".to_owned(),
            (2, 9),
            "policy.mode",
            "did you mean 'enforce'?",
        ),
        (
            "policy:\n  mode: yes please\n".to_owned(),
            (2, 9),
            "policy.mode",
            "known here: local, enforce",
        ),
        ("policy:\n  mode:\n".to_owned(), (2, 7), "policy.mode", ""),
        (
            "policy:\n  rule: []\n".to_owned(),
            (2, 3),
            "policy.rule",
            "did you mean 'rules'?",
        ),
        ("policy: [enforce]\n".to_owned(), (1, 9), "policy", ""),
        (
            "policy:\n  rules: {}\n".to_owned(),
            (2, 10),
            "policy.rules",
            "",
        ),
        (rules("commit"), (4, 7), "policy.rules[0]", ""),
        (
            rules(&format!("{{ alow: [commit], {whole} }}")),
            (4, 9),
            "policy.rules[0].alow",
            "did you mean 'allow'?",
        ),
        (
            rules(&format!("{{ deny: [read, comit], {whole} }}")),
            (4, 22),
            "policy.rules[0].deny[1]",
            "did you mean 'commit'?",
        ),
        (
            rules(&format!("{{ {whole} }}")),
            (4, 7),
            "policy.rules[0]",
            "",
        ),
        (
            rules(&format!("{{ allow: [read], deny: [read], {whole} }}")),
            (4, 7),
            "policy.rules[0]",
            "",
        ),
        (
            rules(&format!("{{ deny: [], {whole} }}")),
            (4, 15),
            "policy.rules[0].deny",
            "",
        ),
        (
            rules(&format!("{{ deny: read, {whole} }}")),
            (4, 15),
            "policy.rules[0].deny",
            "",
        ),
        (
            rules("{ deny: [read], principal: '*' }"),
            (4, 7),
            "policy.rules[0]",
            "",
        ),
        (
            rules("{ deny: [read], principal: 7, scope: '*' }"),
            (4, 34),
            "policy.rules[0].principal",
            "",
        ),
        (
            rules("{ deny: [read], principal: '*', scope: 'app:a{b' }"),
            (4, 46),
            "policy.rules[0].scope",
            "",
        ),
    ];
    for (text, (line, column), key, hint) in rows {
        fs::write(&file, &text).expect("there is room");
        let error = json_error(&cli, "type validate escrow.yaml", 2);
        assert_eq!(error["kind"], "usage", "{text}");
        let place = value!({"file": "escrow.yaml", "line": line, "column": column, "key": key});
        assert_eq!(error["details"], place, "{text}{error}");
        let hints = error["hints"].to_string();
        assert!(hints.contains(hint), "{text}{hints}");
        let told = cli.fails(words("type validate escrow.yaml"), 2);
        let begins = format!("error: escrow.yaml:{line}:{column}: {key}: ");
        assert!(told.starts_with(&begins), "{told}");
        // No process needs to have checked it: nothing is permitted.
        let said = cli.fails(words("commit try --yes"), 3);
        assert!(said.contains("the policy cannot be read"), "{said}");
    }
    fs::write(&file, POLICY).expect("there is room");
    cli.ok(words("type validate escrow.yaml"));
}

/// What a diff may not show is not shown by way of a checkpoint either, and a restore that was done says so.
// rule S6, S7
#[test]
fn what_changed_since_a_checkpoint_is_judged_path_by_path() {
    let rules = "policy:
  mode: enforce
  rules:
    - { allow: [create, read, write, diff, run, checkpoint, restore, commit, rollback, undo, cleanup, gc, admin], principal: '*', scope: '*' }
    - { deny: [diff], principal: '*', scope: 'app:secret/**' }
    - { deny: [create], principal: 'nobody:*', scope: 'app' }
";
    for strategy in ["overlay", "filesystem_copy"] {
        let (_world, cli) = configured(rules, strategy);
        cli.ok(words("checkpoint create try -m first"));
        cli.clone().stdin("x\n").ok(words("write try app plain"));
        cli.ok(words("checkpoint create try -m plain"));
        cli.clone()
            .stdin("x\n")
            .ok(words("write try app secret/token"));
        for line in [
            "diff try",
            "diff try --since first",
            "diff try --since first --name-status",
            "--json diff try --since plain",
            "checkpoint show try first",
            "--principal nobody:new plan fork try other",
        ] {
            let outcome = cli.run(words(line));
            assert_eq!(outcome.status, 3, "{strategy}: {line}");
            assert_eq!(
                cli.ok(words("diff try --since first --until plain --name-status")),
                "A\tplain\n"
            );
        }
        let restored = json(&cli, "restore try first");
        assert_eq!(restored["success"], true);
        let said = restored["message"].as_str().expect("a text");
        assert!(said.contains("not listed"), "{said}");
        assert!(!restored["restored_files"].to_string().contains("token"));
    }
}
