//! What is permitted, as users ask for it. Without a policy everything is, and every answer says so.

use crate::*;

#[test]
fn without_a_policy_everything_is_permitted() {
    let (_world, cli) = world();
    let actions =
        "create read write diff run checkpoint restore commit rollback undo cleanup gc admin";
    for action in actions.split(' ') {
        let said = json(
            &cli,
            &format!("access check --principal agent --action {action} --scope app:a.txt"),
        );
        let fields = "action permitted principal reason rule scope";
        assert_eq!(keys(&said), fields);
        assert_eq!(said["permitted"], true);
        let expected = (&value!(action), &value!("app:a.txt"));
        assert_eq!((&said["action"], &said["scope"]), expected);
        assert_eq!(said["principal"], "agent");
        assert_eq!(said["reason"], "local mode: everything is permitted");
    }
    let said = cli.ok("access check --action commit --scope *");
    assert_eq!(said, "permitted: local mode: everything is permitted\n");
    let wanted = value!({"operations": []});
    assert_eq!(json(&cli, "log"), wanted, "a question is no operation");
}

// rule S6
#[test]
fn what_means_nothing_is_denied() {
    let (_world, cli) = world();
    for (line, reason) in [
        (
            "--action destroy --scope app",
            "there is no action 'destroy'",
        ),
        ("--action read --scope app:../x", "is not a valid scope"),
        ("--action read --scope :", "is not a valid scope"),
    ] {
        let outcome = cli.run(format!("access check {line}"));
        assert_eq!((outcome.status, outcome.stderr.len()), (3, 0), "{line}");
        let told = outcome.stdout_text();
        assert!(told.starts_with("denied: "), "{told}");
        assert!(told.contains(reason), "{told}");
        let outcome = cli.expect(format!("--json access check {line}"), 3);
        let said: Value = serde_json::from_str(&outcome.stdout_text()).expect("one document");
        assert_eq!(said["permitted"], false, "{line}");
    }
    let cli = cli.env("ESCROW_PRINCIPAL", "a\u{202e}b");
    let told = cli.fails("plan create try --resource ./app", 3);
    assert!(told.contains("cannot be a principal"), "{told}");
    assert!(!told.contains('\u{202e}'), "{told}");
    let log = json(&cli, "log");
    assert_eq!(log["operations"][0]["outcome"], "denied");
    let reason = log["operations"][0]["reason"].as_str().expect("a text");
    assert!(reason.contains("cannot be a principal"), "{reason}");
    let told = cli.ok("log");
    assert!(told.contains("denied") && told.contains(reason), "{told}");
    assert!(!told.contains('\u{202e}'), "{told}");
}
