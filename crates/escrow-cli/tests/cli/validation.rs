//! What stands between a plan and its release: the validation and the policy of the configuration.

use crate::*;

fn configured(text: &str, strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    let app = world.at("app");
    write(world.at("escrow.yaml"), text);
    let cli = cli.cwd(&app);
    cli.trust();
    cli.plan("try", ".", strategy);
    (world, cli)
}

#[test]
fn a_validation_that_fails_stops_the_commit_and_leaves_nothing() {
    as_user_too();
    let text = "validate:\n  - 'echo looking; echo x > left-by-validation; rm -f a.txt'\n  - [test, '!', -e, bad]\n";
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = configured(text, strategy);
        let app = world.at("app");
        put(&cli, "try app bad", "x\n");
        let outcome = cli.run("--json commit try");
        assert_eq!(outcome.status, 1, "{strategy}: {}", outcome.stderr_text());
        let said = outcome.stdout_text();
        assert!(said.contains("the validation `test ! -e bad`"), "{said}");
        assert!(!said.contains("looking"), "{said}");
        assert!(outcome.stderr_text().contains("looking"));
        assert_eq!(cli.ok("diff try --name-status"), "A\tbad\n");
        assert!(!app.join("bad").exists() && app.join("a.txt").exists());
        let kept = json(&cli, "checkpoint list try");
        let named = kept.to_string().contains("before validation");
        assert!(!named, "{kept}");
        // What they do is not what is released.
        cli.ok("rollback try");
        put(&cli, "try app good", "x\n");
        cli.ok("commit try");
        assert!(app.join("good").exists(), "{strategy}");
        assert!(app.join("a.txt").exists(), "{strategy}");
        assert!(!app.join("left-by-validation").exists(), "{strategy}");
    }
}

/// A commit that a validation stops is a commit that failed: in the log with what was said about it, and in the document.
// rules C5, P9, S7
#[test]
fn a_commit_that_is_stopped_is_told_like_any_that_failed() {
    as_user_too();
    let (_world, cli) = configured("validate: [[test, '!', -e, bad]]\n", "overlay");
    put(&cli, "try app bad", "x\n");
    let outcome = cli.expect("--json commit try -m because", 1);
    let told: Value = serde_json::from_str(&outcome.stdout_text()).expect("JSON");
    assert_eq!(told["committed"], false);
    let cause = told["cause"].as_str().expect("a cause");
    has(&cause, ["`test ! -e bad` ended with status 1"]);
    for list in "resources; conflicts; undone; not_undone; kept; left".split("; ") {
        assert_eq!(told[list], value!([]), "{list}: {told}");
    }
    cli.fails("run --plan try --commit -- true", 125);
    let log = json(&cli, "log try");
    let commits = list(&log["operations"]).iter();
    let commits: Vec<_> = commits.filter(|one| one["action"] == "commit").collect();
    let messages: Vec<_> = commits.iter().map(|one| one["message"].as_str()).collect();
    assert_eq!(messages, [Some("because"), None]);
    for one in &commits {
        assert_eq!(one["outcome"], "failed", "{one}");
        let error = one["error"].as_str().expect("why");
        assert!(error.contains("`test ! -e bad` ended"), "{error}");
        assert_eq!(one["resources"], value!(["app"]));
    }
    assert!(cli.ok("log try").contains("    because\n"));
    cli.ok("log --verify");
}

/// What was validated is what is released: a text that is only merged by the commit is refused, with the reason. That, and
/// every other conflict, is said before anything is validated.
// rules C5, C15
#[test]
fn a_text_that_was_not_validated_is_not_merged() {
    let deny = format!("allow {ALL} * *; deny [commit] * app:kept/**");
    let rules = format!("{}validate: ['echo looking']\n", enforce("", &deny));
    let (world, cli) = configured(&rules, "overlay");
    let f = world.at("app/f");
    put(&cli, "try app f", "1\n2\n3\n4\nfive\n");
    cli.ok("commit try");
    cli.plan("try2", ".", "overlay");
    put(&cli, "try2 app f", "1\n2\n3\n4\n5\n");
    write(&f, "one\n2\n3\n4\nfive\n");
    let refused = |line: &str, status: i32, why: &str| {
        let told = cli.expect(format!("--json {line}"), status);
        has(&told.stdout_text(), [why]);
        lacks(&told.stderr_text(), ["looking"]);
        assert_eq!(read(&f), "one\n2\n3\n4\nfive\n");
    };
    let why = "without having been validated";
    refused("commit try2 --on-conflict merge", 4, why);
    refused("commit try2", 4, "changed there and here");
    let line = "commit try2 --on-conflict sandbox";
    refused(
        &format!("{line} --expect {}", "0".repeat(64)),
        4,
        "expected",
    );
    put(&cli, "try2 app kept/x", "x\n");
    refused(line, 3, "kept");
    has(
        &cli.expect("--json commit try2 --on-conflict sandbox --exclude kept", 0)
            .stderr_text(),
        ["looking"],
    );
}

fn policy() -> String {
    let agents = "allow [read, write, diff, run, checkpoint, restore, create] agent* *";
    enforce(
        "",
        &format!("{agents}; allow {ALL} user:* *; deny [write, commit] * app:.github/**"),
    )
}

// rule S6, S7
#[test]
fn the_policy_of_the_configuration_is_enforced() {
    let (world, cli) = configured(&policy(), "overlay");
    cli.clone()
        .stdin("x\n")
        .ok("--principal agent:one write try app f");
    let said = cli.fails("--principal agent:one commit try", 3);
    assert!(said.contains("commit"), "{said}");
    // Whatever way it was written, it is not released.
    let line = words("run --plan try -- mkdir -p .github/workflows");
    cli.ok(line);
    let said = cli.fails("commit try", 3);
    assert!(said.contains(".github"), "{said}");
    assert!(!world.at("app/f").exists());
    cli.ok("run --plan try -- rm -r .github");
    cli.ok("commit try");
    assert!(world.at("app/f").exists());
    let log = json(&cli, "log try").to_string();
    assert!(log.contains("denied"), "{log}");
    cli.ok("log --verify");
    let said = cli.run("--json access check --principal agent:one --action commit --scope app");
    has(&said.stdout_text(), ["\"permitted\": false"]);
}

/// One that cannot be read permits nothing.
// rule S6
#[test]
fn a_policy_that_cannot_be_understood_denies() {
    let (world, cli) = configured("", "overlay");
    let text = "policy: { mode: enforce, rules: [ { permit: [commit] } ] }\n";
    write(world.at("escrow.yaml"), text);
    let outcome = cli.run("commit try");
    let holds = [2, 3].contains(&outcome.status);
    assert!(holds, "{}", outcome.stderr_text());
}

/// Who checks a configuration is reported what is wrong with its policy, and where; commands are denied.
// rule S6
#[test]
fn a_policy_that_makes_no_sense_is_told_with_its_place() {
    let (world, cli) = configured("", "overlay");
    let file = world.at("escrow.yaml");
    let cli = cli.cwd(world.path());
    // A whole policy, or one rule of it; the place; the key; the hint. `WHOLE` stands for everything and everyone.
    let rows = r"policy:/  mode: enfroce | 2:9 policy.mode | did you mean 'enforce'?
policy:/  mode: yes please | 2:9 policy.mode | known here: local, enforce
policy:/  mode: | 2:7 policy.mode |
policy:/  rule: [] | 2:3 policy.rule | did you mean 'rules'?
policy: [enforce] | 1:9 policy |
policy:/  rules: {} | 2:10 policy.rules |
commit | 4:7 policy.rules[0] |
{ alow: [commit], WHOLE } | 4:9 policy.rules[0].alow | did you mean 'allow'?
{ deny: [read, comit], WHOLE } | 4:22 policy.rules[0].deny[1] | did you mean 'commit'?
{ WHOLE } | 4:7 policy.rules[0] |
{ allow: [read], deny: [read], WHOLE } | 4:7 policy.rules[0] |
{ deny: [], WHOLE } | 4:15 policy.rules[0].deny |
{ deny: read, WHOLE } | 4:15 policy.rules[0].deny |
{ deny: [read], principal: '*' } | 4:7 policy.rules[0] |
{ deny: [read], principal: [a], scope: '*' } | 4:34 policy.rules[0].principal |
{ deny: [read], principal: '*', scope: 'app:a{b' } | 4:46 policy.rules[0].scope |";
    for row in rows.lines() {
        let columns: Vec<&str> = row.split('|').map(str::trim).collect();
        let text = columns[0].replace("WHOLE", "principal: '*', scope: '*'");
        let text = match text.starts_with("policy:") {
            true => text.replace('/', "\n") + "\n",
            false => format!("policy:\n  mode: enforce\n  rules:\n    - {text}\n"),
        };
        let (at, key) = columns[1].split_once(' ').expect("a place and a key");
        let (line, column) = at.split_once(':').expect("a line and a column");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let (line, column, hint) = (number(line), number(column), columns[2]);
        write(&file, &text);
        let error = json_error(&cli, "type validate escrow.yaml", 2);
        assert_eq!(error["kind"], "usage", "{text}");
        let place = value!({"file": "escrow.yaml", "line": line, "column": column, "key": key});
        assert_eq!(error["details"], place, "{text}{error}");
        let hints = error["hints"].to_string();
        assert!(hints.contains(hint), "{text}{hints}");
        let told = cli.fails("type validate escrow.yaml", 2);
        let holds = told.starts_with(&format!("error: escrow.yaml:{line}:{column}: {key}: "));
        assert!(holds, "{told}");
        // No process needs to have checked it: nothing is permitted.
        let said = cli.fails("commit try --yes", 3);
        assert!(said.contains("the policy cannot be read"), "{said}");
    }
    write(&file, policy());
    cli.ok("type validate escrow.yaml");
}

/// What a diff may not show is not shown by way of a checkpoint either, and a restore that was done says so.
// rule S6, S7
#[test]
fn what_changed_since_a_checkpoint_is_authorized_path_by_path() {
    let rules = format!("allow {ALL} * *; deny [diff] * app:secret/**; deny [create] nobody:* app");
    let rules = &enforce("", &rules);
    for strategy in ["overlay", "filesystem_copy"] {
        let (_world, cli) = configured(rules, strategy);
        cli.ok("checkpoint create try -m first");
        put(&cli, "try app plain", "x\n");
        cli.ok("checkpoint create try -m plain");
        put(&cli, "try app secret/token", "x\n");
        let lines = "diff try; diff try --since first; diff try --since first --name-status; \
            --json diff try --since plain; checkpoint show try first; \
            --principal nobody:new plan fork try other";
        for line in lines.split("; ") {
            let outcome = cli.run(line);
            assert_eq!(outcome.status, 3, "{strategy}: {line}");
            let found = cli.ok("diff try --since first --until plain --name-status");
            assert_eq!(found, "A\tplain\n");
        }
        let restored = json(&cli, "restore try first");
        assert_eq!(restored["success"], true);
        let said = restored["message"].as_str().expect("a text");
        assert!(said.contains("not listed"), "{said}");
        assert!(!restored["restored_files"].to_string().contains("token"));
    }
}
