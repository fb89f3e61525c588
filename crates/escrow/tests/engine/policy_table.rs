//! What a policy says, row by row.

use std::convert::Infallible;

use escrow::model::{Action, Decision};
use escrow::policy::{Policies, Policy};
use serde_json::{Value, json};

use crate::support::{read_policy, rows};

fn check(policy: &Policy, principal: &str, action: &str, scope: &str) -> Decision {
    let answer: Result<Decision, Infallible> =
        Policies::of(policy.clone()).check(principal, action, scope, |scope| Ok(vec![scope]));
    let Ok(decision) = answer;
    decision
}

fn read(value: Value) -> Policy {
    read_policy(&value).expect("it is a policy")
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

/// Who does what where, whether that is permitted, and the reason. What is odd stands in quotes, as JSON.
const ROWS: &str = r#"
# What an agent may, and may not.
agent | read | app | yes | rule 1 says
agent | read | app:a/b | yes | rule 1 says: allow read, write
agent | write | app:src/main.rs | yes | rule 1
agent | write | db | yes | rule 1
agent | diff | * | yes | rule 1
agent | run | app | yes | rule 1
agent | checkpoint | app | yes | rule 1
agent | restore | app | yes | rule 1
agent:left | run | app | yes | to 'agent*'
agent/7 | run | app | yes | rule 1
agent | commit | app | no | rule 2 says: deny commit to 'agent*' on '*'
agent | commit | app:src/x | no | rule 2
agent | commit | * | no | rule 2
agent:left | commit | db | no | rule 2
agent | rollback | app | no | no rule permits it
agent | undo | app | no | no rule permits it
agent | cleanup | app | no | no rule permits it
agent | create | app | no | no rule permits it
agent | gc | * | no | no rule permits it
agent | admin | * | no | no rule permits it
Agent | read | app | no | no rule permits it
an agent | read | app | no | no rule permits it
# Protected paths; a denial wins wherever it stands.
agent | write | app:.github/ci.yml | no | rule 3 says
agent | write | app:.github/a/b/c | no | rule 3
agent | write | app:.github | no | rule 3
agent | write | app:.githubx/ci.yml | yes | rule 1
agent | write | app:x/.github/ci.yml | yes | rule 1
agent | write | db:.github/ci.yml | yes | rule 1
agent | read | app:.github/ci.yml | yes | rule 1
agent | write | app | yes | but not all of it: rule 3
user:eve | commit | app:.github/ci.yml | no | rule 3
user:eve | commit | app:src/x | yes | rule 4
user:eve | commit | app | yes | rule 4 says: allow diff, commit
user:eve | commit | * | no | no rule permits it
user:eve | commit | db | no | no rule permits it
user:eve | commit | application | no | no rule permits it
user:eve | write | app:.GitHub/ci.yml | no | rule 3
user:eve | write | app:.github./ci.yml | no | rule 3
user:eve | write | app:.github /ci.yml | no | rule 3
user:eve | write | "app:.g\u200cithub/ci.yml" | no | rule 3
# What must not be written is not released either.
user:eve | commit | app:.git/config | no | rule 11
user:eve | commit | app:.GIT/config | no | rule 11
user:eve | commit | app:git~1/config | no | rule 11
user:eve | commit | app:.git /config | no | rule 11
user:eve | commit | app:.git./config | no | rule 11
user:eve | commit | app:.git::$INDEX_ALLOCATION/config | no | rule 11
user:eve | commit | app:.git | no | rule 11
user:eve | commit | app:.gitignore | yes | rule 4
user:eve | write | other:.git/hooks/x | no | rule 11
# Permitted by path only.
bot | commit | app:src/main.rs | yes | rule 6
bot | commit | app:src | yes | rule 6
bot | commit | app:SRC/main.rs | no | no rule permits it
bot | commit | app:docs/x | no | no rule permits it
bot | commit | app | no | no rule permits it
bot | commit | * | no | no rule permits it
bot | read | app:src/a.md | yes | rule 7
bot | read | app:docs/a.md | yes | rule 7
bot | read | app:docs/deep/a.md | no | no rule permits it
bot | admin | app | yes | rule 9
bot | admin | db | no | rule 8
bot | admin | * | yes | but not all of it: rule 8
bot | gc | * | yes | rule 9
x | read | app | no | rule 10
ü | read | app | no | no rule permits it
# What means nothing is denied.
agent | destroy | app | no | there is no action 'destroy'
agent | Read | app | no | there is no action 'Read'
agent | "" | app | no | there is no action ''
agent | * | app | no | there is no action '*'
"" | read | app | no | cannot be a principal: it is empty
" agent" | read | app | no | cannot be a principal
"agent\n" | read | app | no | cannot be a principal
"ag\u202eent" | read | app | no | cannot be a principal
"agent\u001b[2J" | read | app | no | cannot be a principal
agent | read | "" | no | is not a valid scope
agent | read | app: | no | is not a valid scope: it is empty
agent | read | app:../x | no | is not a valid scope: it contains '..'
agent | read | app:/etc/passwd | no | is not a valid scope: it is absolute
agent | read | :x | no | is not a valid scope
agent | read | a b | no | is not a valid scope
agent | read | *:x | no | is not a valid scope
"#;

// rule S6
#[test]
fn every_row_of_the_table() {
    let policy = documented();
    let plain = |cell: &str| serde_json::from_str(cell).unwrap_or(cell.to_owned());
    for [principal, action, scope, permitted, reason] in rows(ROWS) {
        let [principal, action, scope] = [principal, action, scope].map(|cell| plain(&cell));
        let said = check(&policy, &principal, &action, &scope);
        let row = format!("{principal:?} {action} {scope}: {said:?}");
        assert_eq!(said.permitted, permitted == "yes", "{row}");
        assert!(said.reason.contains(&reason), "{row}");
        assert_eq!(
            (&said.principal, &said.action),
            (&principal, &action),
            "{row}"
        );
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

/// What is no policy, and why; `rule` stands for a policy of this one rule.
const UNREADABLE: &str = r#"
"local" | keys with values
{"mode": "open"} | mode: it cannot be 'open'
{"mode": "Enforce"} | it cannot be 'Enforce'
{"mode": "local", "rule": []} | there is no key 'rule'
{"rules": {}} | rules: a list
rule {"allow": ["read"], "principal": "*"} | scope
rule {"allow": ["read"], "scope": "*"} | principal
rule {"principal": "*", "scope": "*"} | rules[0]: it needs either
rule {"allow": ["read"], "deny": ["read"], "principal": "*", "scope": "*"} | rules[0]: it needs either
rule {"allow": [], "principal": "*", "scope": "*"} | names no action
rule {"allow": ["eat"], "principal": "*", "scope": "*"} | rules[0].allow[0]: it cannot be 'eat'
rule {"allow": ["*"], "principal": "*", "scope": "*"} | it cannot be '*'
rule {"allow": ["read"], "principal": "", "scope": "*"} | principal is empty
rule {"allow": ["read"], "principal": "a[", "scope": "*"} | pattern is wrong
rule {"allow": ["read"], "principal": "*", "scope": ""} | its scope ''
rule {"allow": ["read"], "principal": "*", "scope": "a*"} | its scope 'a*'
rule {"allow": ["read"], "principal": "*", "scope": "app:"} | no path is like
rule {"deny": ["read"], "principal": "*", "scope": "app:/x"} | no path is like
rule {"deny": ["read"], "principal": "*", "scope": "app:a/../b"} | no path is
rule {"deny": ["read"], "principal": "*", "scope": "app:a{b"} | pattern is wrong
rule {"deny": ["read"], "principal": "*", "scope": "app:{a/b,c}"} | two rules
rule {"deny": ["read"], "principal": "*", "scope": "*", "why": ""} | rules[0].why: there is no key 'why'
"#;

// rule S6
#[test]
fn what_cannot_be_read_is_refused_with_a_reason_and_denies_everything() {
    for [text, why] in rows(UNREADABLE) {
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("it is JSON");
        let value = match text.strip_prefix("rule ") {
            Some(rule) => json!({"mode": "enforce", "rules": [read(rule)]}),
            None => read(&text),
        };
        let error = read_policy(&value).expect_err("it is no policy");
        assert!(error.to_string().contains(&why), "{value}: {error}");
        let policy = Policy::unreadable(&error);
        for action in Action::ALL {
            let said = check(&policy, "user:root", action.as_str(), "*");
            let because = said.reason.starts_with("the policy cannot be read: ");
            assert!(!said.permitted && because, "{value}: {said:?}");
        }
    }
    // Also where it would not be enforced: a mistake is reported when it is made.
    let local = json!({"rules": [{"deny": ["eat"], "principal": "*", "scope": "*"}]});
    assert!(read_policy(&local).is_err());
}
