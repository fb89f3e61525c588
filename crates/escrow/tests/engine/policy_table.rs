//! What a policy says, row by row.

use std::convert::Infallible;

use escrow::model::{Action, Decision};
use escrow::policy::{Policies, Policy};
use serde_json::{Value, json};

fn check(policy: &Policy, principal: &str, action: &str, scope: &str) -> Decision {
    let answer: Result<Decision, Infallible> =
        Policies::of(policy.clone()).check(principal, action, scope, |scope| Ok(vec![scope]));
    let Ok(decision) = answer;
    decision
}

fn read(value: Value) -> Policy {
    Policy::from_value(&value).expect("it is a policy")
}

/// The policy of the documentation, and a little more.
fn documented() -> Policy {
    read(json!({"mode": "enforce", "rules": [
        {"allow": ["read", "write", "diff", "checkpoint", "restore", "run"],
         "principal": "agent*", "scope": "*"},
        {"deny": ["commit"], "principal": "agent*", "scope": "*"},
        {"deny": ["write", "commit"], "principal": "*", "scope": "app:.github/**"},
        {"allow": ["diff", "commit", "rollback", "undo"], "principal": "user:*", "scope": "app"},
        {"allow": ["write"], "principal": "user:*", "scope": "app"},
        {"allow": ["commit", "write"], "principal": "bot", "scope": "app:src/**"},
        {"allow": ["read"], "principal": "bot", "scope": "app:{src,docs}/*.md"},
        {"deny": ["admin"], "principal": "bot", "scope": "db"},
        {"allow": ["admin", "gc"], "principal": "bot", "scope": "*"},
        {"deny": ["read"], "principal": "?", "scope": "*"},
        {"deny": ["write"], "principal": "*", "scope": "*:.git/**"},
    ]}))
}

const YES: bool = true;
const NO: bool = false;

// rule S6
#[test]
fn every_row_of_the_table() {
    let rows = [
        // What an agent may, and may not.
        ("agent", "read", "app", YES, "rule 1 says"),
        (
            "agent",
            "read",
            "app:a/b",
            YES,
            "rule 1 says: allow read, write",
        ),
        ("agent", "write", "app:src/main.rs", YES, "rule 1"),
        ("agent", "write", "db", YES, "rule 1"),
        ("agent", "diff", "*", YES, "rule 1"),
        ("agent", "run", "app", YES, "rule 1"),
        ("agent", "checkpoint", "app", YES, "rule 1"),
        ("agent", "restore", "app", YES, "rule 1"),
        ("agent:left", "run", "app", YES, "to 'agent*'"),
        ("agent/7", "run", "app", YES, "rule 1"),
        (
            "agent",
            "commit",
            "app",
            NO,
            "rule 2 says: deny commit to 'agent*' on '*'",
        ),
        ("agent", "commit", "app:src/x", NO, "rule 2"),
        ("agent", "commit", "*", NO, "rule 2"),
        ("agent:left", "commit", "db", NO, "rule 2"),
        ("agent", "rollback", "app", NO, "no rule permits it"),
        ("agent", "undo", "app", NO, "no rule permits it"),
        ("agent", "cleanup", "app", NO, "no rule permits it"),
        ("agent", "create", "app", NO, "no rule permits it"),
        ("agent", "gc", "*", NO, "no rule permits it"),
        ("agent", "admin", "*", NO, "no rule permits it"),
        ("Agent", "read", "app", NO, "no rule permits it"),
        ("an agent", "read", "app", NO, "no rule permits it"),
        // Protected paths; a denial wins wherever it stands.
        ("agent", "write", "app:.github/ci.yml", NO, "rule 3 says"),
        ("agent", "write", "app:.github/a/b/c", NO, "rule 3"),
        ("agent", "write", "app:.github", NO, "rule 3"),
        ("agent", "write", "app:.githubx/ci.yml", YES, "rule 1"),
        ("agent", "write", "app:x/.github/ci.yml", YES, "rule 1"),
        ("agent", "write", "db:.github/ci.yml", YES, "rule 1"),
        ("agent", "read", "app:.github/ci.yml", YES, "rule 1"),
        ("agent", "write", "app", YES, "but not all of it: rule 3"),
        ("user:eve", "commit", "app:.github/ci.yml", NO, "rule 3"),
        ("user:eve", "commit", "app:src/x", YES, "rule 4"),
        (
            "user:eve",
            "commit",
            "app",
            YES,
            "rule 4 says: allow diff, commit",
        ),
        ("user:eve", "commit", "*", NO, "no rule permits it"),
        ("user:eve", "commit", "db", NO, "no rule permits it"),
        (
            "user:eve",
            "commit",
            "application",
            NO,
            "no rule permits it",
        ),
        ("user:eve", "write", "app:.GitHub/ci.yml", NO, "rule 3"),
        ("user:eve", "write", "app:.github./ci.yml", NO, "rule 3"),
        ("user:eve", "write", "app:.github /ci.yml", NO, "rule 3"),
        (
            "user:eve",
            "write",
            "app:.g\u{200c}ithub/ci.yml",
            NO,
            "rule 3",
        ),
        // What must not be written is not released either.
        ("user:eve", "commit", "app:.git/config", NO, "rule 11"),
        ("user:eve", "commit", "app:.GIT/config", NO, "rule 11"),
        ("user:eve", "commit", "app:git~1/config", NO, "rule 11"),
        ("user:eve", "commit", "app:.git /config", NO, "rule 11"),
        ("user:eve", "commit", "app:.git./config", NO, "rule 11"),
        (
            "user:eve",
            "commit",
            "app:.git::$INDEX_ALLOCATION/config",
            NO,
            "rule 11",
        ),
        ("user:eve", "commit", "app:.git", NO, "rule 11"),
        ("user:eve", "commit", "app:.gitignore", YES, "rule 4"),
        ("user:eve", "write", "other:.git/hooks/x", NO, "rule 11"),
        // Permitted by path only.
        ("bot", "commit", "app:src/main.rs", YES, "rule 6"),
        ("bot", "commit", "app:src", YES, "rule 6"),
        ("bot", "commit", "app:SRC/main.rs", NO, "no rule permits it"),
        ("bot", "commit", "app:docs/x", NO, "no rule permits it"),
        ("bot", "commit", "app", NO, "no rule permits it"),
        ("bot", "commit", "*", NO, "no rule permits it"),
        ("bot", "read", "app:src/a.md", YES, "rule 7"),
        ("bot", "read", "app:docs/a.md", YES, "rule 7"),
        (
            "bot",
            "read",
            "app:docs/deep/a.md",
            NO,
            "no rule permits it",
        ),
        ("bot", "admin", "app", YES, "rule 9"),
        ("bot", "admin", "db", NO, "rule 8"),
        ("bot", "admin", "*", YES, "but not all of it: rule 8"),
        ("bot", "gc", "*", YES, "rule 9"),
        ("x", "read", "app", NO, "rule 10"),
        ("ü", "read", "app", NO, "no rule permits it"),
        // What means nothing is denied.
        (
            "agent",
            "destroy",
            "app",
            NO,
            "there is no action 'destroy'",
        ),
        ("agent", "Read", "app", NO, "there is no action 'Read'"),
        ("agent", "", "app", NO, "there is no action ''"),
        ("agent", "*", "app", NO, "there is no action '*'"),
        ("", "read", "app", NO, "cannot be a principal: it is empty"),
        (" agent", "read", "app", NO, "cannot be a principal"),
        ("agent\n", "read", "app", NO, "cannot be a principal"),
        ("ag\u{202e}ent", "read", "app", NO, "cannot be a principal"),
        ("agent\u{1b}[2J", "read", "app", NO, "cannot be a principal"),
        ("agent", "read", "", NO, "is not a valid scope"),
        (
            "agent",
            "read",
            "app:",
            NO,
            "is not a valid scope: it is empty",
        ),
        (
            "agent",
            "read",
            "app:../x",
            NO,
            "is not a valid scope: it contains '..'",
        ),
        (
            "agent",
            "read",
            "app:/etc/passwd",
            NO,
            "is not a valid scope: it is absolute",
        ),
        ("agent", "read", ":x", NO, "is not a valid scope"),
        ("agent", "read", "a b", NO, "is not a valid scope"),
        ("agent", "read", "*:x", NO, "is not a valid scope"),
    ];
    let policy = documented();
    for (principal, action, scope, permitted, reason) in rows {
        let said = check(&policy, principal, action, scope);
        let row = format!("{principal:?} {action} {scope}: {said:?}");
        assert_eq!(said.permitted, permitted, "{row}");
        assert!(said.reason.contains(reason), "{row}");
        let asked = (said.principal.as_str(), said.action.as_str());
        assert_eq!(asked, (principal, action), "{row}");
        let number = reason.strip_prefix("rule ").and_then(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse::<usize>().ok())
        });
        assert!(number.is_none() || said.rule == number, "{row}");
    }
    let long = "a".repeat(129);
    assert!(!check(&policy, &long, "read", "app").permitted);
    assert!(check(&policy, &format!("agent{}", &long[..100]), "read", "app").permitted);
}

// rule S6
#[test]
fn local_mode_permits_everything_and_says_so() {
    let rules = json!([{"deny": ["commit"], "principal": "*", "scope": "*"}]);
    for policy in [
        Policy::default(),
        read(json!({})),
        read(json!({"rules": rules})),
    ] {
        for action in Action::ALL {
            for scope in ["*", "app", "app:.git/config"] {
                let said = check(&policy, "whoever", action.as_str(), scope);
                assert!(said.permitted && said.rule.is_none(), "{said:?}");
                assert_eq!(said.reason, "local mode: everything is permitted");
            }
        }
        assert!(!check(&policy, "whoever", "burn", "*").permitted);
        assert!(!check(&policy, "", "read", "*").permitted);
    }
}

// rule S6
#[test]
fn a_policy_that_enforces_nothing_denies_everything() {
    let policy = read(json!({"mode": "enforce"}));
    for action in Action::ALL {
        let said = check(&policy, "user:root", action.as_str(), "*");
        assert!(!said.permitted, "{said:?}");
        assert_eq!(said.reason, "no rule permits it");
    }
}

// rule S6
#[test]
fn contradictions_are_denials() {
    let all = |word: &str| json!({word: ["commit"], "principal": "*", "scope": "*"});
    for rules in [
        json!([all("allow"), all("deny")]),
        json!([all("deny"), all("allow")]),
        json!([all("allow"), {"deny": ["commit", "read"], "principal": "a", "scope": "app:**"}]),
    ] {
        let policy = read(json!({"mode": "enforce", "rules": rules}));
        let said = check(&policy, "a", "commit", "app:x");
        assert!(!said.permitted && said.reason.contains("deny"), "{said:?}");
    }
}

// rule S6
#[test]
fn what_cannot_be_read_is_refused_with_a_reason_and_denies_everything() {
    let rule = |rule: Value| json!({"mode": "enforce", "rules": [rule]});
    let unreadable = [
        (json!(null), "keys with values"),
        (json!("local"), "keys with values"),
        (
            json!({"mode": "open"}),
            "mode: it cannot be 'open'; there are local, enforce",
        ),
        (json!({"mode": "Enforce"}), "it cannot be 'Enforce'"),
        (
            json!({"mode": "local", "rule": []}),
            "there is no key 'rule'",
        ),
        (json!({"rules": {}}), "rules: a list"),
        (rule(json!({"allow": ["read"], "principal": "*"})), "scope"),
        (rule(json!({"allow": ["read"], "scope": "*"})), "principal"),
        (
            rule(json!({"principal": "*", "scope": "*"})),
            "rule 1: it needs either",
        ),
        (
            rule(json!({"allow": ["read"], "deny": ["read"], "principal": "*", "scope": "*"})),
            "rule 1: it needs either",
        ),
        (
            rule(json!({"allow": [], "principal": "*", "scope": "*"})),
            "names no action",
        ),
        (
            rule(json!({"allow": ["eat"], "principal": "*", "scope": "*"})),
            "no action 'eat'",
        ),
        (
            rule(json!({"allow": ["*"], "principal": "*", "scope": "*"})),
            "no action '*'",
        ),
        (
            rule(json!({"allow": ["read"], "principal": "", "scope": "*"})),
            "principal is empty",
        ),
        (
            rule(json!({"allow": ["read"], "principal": "a[", "scope": "*"})),
            "pattern is wrong",
        ),
        (
            rule(json!({"allow": ["read"], "principal": "*", "scope": ""})),
            "its scope ''",
        ),
        (
            rule(json!({"allow": ["read"], "principal": "*", "scope": "a*"})),
            "its scope 'a*'",
        ),
        (
            rule(json!({"allow": ["read"], "principal": "*", "scope": "app:"})),
            "no path is like",
        ),
        (
            rule(json!({"deny": ["read"], "principal": "*", "scope": "app:/x"})),
            "no path is like",
        ),
        (
            rule(json!({"deny": ["read"], "principal": "*", "scope": "app:a/../b"})),
            "no path is",
        ),
        (
            rule(json!({"deny": ["read"], "principal": "*", "scope": "app:a{b"})),
            "pattern is wrong",
        ),
        (
            rule(json!({"deny": ["read"], "principal": "*", "scope": "app:{a/b,c}"})),
            "two rules",
        ),
        (
            rule(json!({"deny": ["read"], "principal": "*", "scope": "*", "why": ""})),
            "rule 1: there is no key 'why'",
        ),
    ];
    for (value, why) in unreadable {
        let error = Policy::from_value(&value).expect_err("it is no policy");
        assert!(error.to_string().contains(why), "{value}: {error}");
        let policy = Policy::unreadable(&error);
        for action in Action::ALL {
            let said = check(&policy, "user:root", action.as_str(), "*");
            assert!(!said.permitted, "{value}: {said:?}");
            assert!(
                said.reason.starts_with("the policy cannot be read: "),
                "{said:?}"
            );
        }
    }
    // Also where it would not be enforced: a mistake is reported when it is made.
    let local = json!({"rules": [{"deny": ["eat"], "principal": "*", "scope": "*"}]});
    assert!(Policy::from_value(&local).is_err());
}
