//! What scripts rely on: the fields of every document, the kinds of errors, the exit codes.
//! A new field is added here deliberately.

use crate::*;

const SANDBOX: &str = "created_at message original reasons requested resource sandbox_id sandbox_path state strategy \
    type warnings";

#[test]
fn documents_have_these_fields() {
    let (_world, cli) = world();
    let plan = json(&cli, "plan create try --resource ./app");
    assert_eq!(keys(&plan), "created_at directory id name sandboxes state");
    assert_eq!(keys(&plan["sandboxes"][0]), SANDBOX);
    assert_eq!(json(&cli, "plan show try"), plan);
    let list = json(&cli, "plan list");
    assert_eq!(list["plans"][0], plan);

    let made = json(&cli, "sandbox create try app");
    let more = SANDBOX.replacen("created_at", "created created_at", 1);
    assert_eq!(keys(&made), more.replacen("reasons", "plan reasons", 1));
    assert_eq!(made["created"], false);
    let listed = json(&cli, "sandbox list");
    assert_eq!(keys(&listed), "sandboxes");

    let written = json(&cli.clone().stdin("new"), "write try app new/file");
    assert_eq!(written, value!({"path": "new/file", "kind": "added"}));
    let read = json(&cli, "read try app new/file");
    let expected = value!({"path": "new/file", "size": 3, "content": "new"});
    assert_eq!(read, expected);

    let status = json(&cli, "status");
    let fields = "agents caches disk finished home operations orphans plans unfinished";
    assert_eq!(keys(&status), fields);
    assert_eq!(status["disk"], Value::Null);
    let fields = "private shared total undo unread";
    let said = cli.run("status").stderr_text();
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("`escrow status --disk`"), "{said}");
    assert!(!cli.run("status --disk").stderr_text().contains("--disk"));
    let status = json(&cli, "status --disk");
    assert_eq!(keys(&status["disk"]), fields);
    assert_eq!(keys(&status["plans"][0]["disk"]), fields);
    let doctor = json(&cli, "doctor app");
    let fields = "area area_reason at auto paths_confined run strategies";
    assert_eq!(keys(&doctor), fields);
    assert_eq!(
        keys(&doctor["run"]),
        "mode reason scopes_abstract_sockets walls works"
    );
    assert_eq!(
        keys(&doctor["run"]["walls"][0]),
        "hint name protects reason there"
    );
    let fields = "capabilities limit name reason works";
    assert_eq!(keys(&doctor["strategies"][0]), fields);
    let list = json(&cli, "strategy list");
    assert_eq!(
        keys(&list["strategies"][0]["capabilities"]),
        "area base checkpoints exposes isolates live partial prepares reopens retryable strength survives undoes"
    );
    let resource = json(&cli, "resource show app");
    let fields = "at created_at id name parent strategy type";
    assert_eq!(keys(&resource), fields);
    assert_eq!(json(&cli, "resource list")["resources"][0], resource);

    let rolled = json(&cli, "rollback try");
    assert_eq!(keys(&rolled), "plan resources success");
    assert_eq!(keys(&rolled["resources"][0]), "message resource");
    let cleaned = json(&cli, "cleanup try");
    assert_eq!(keys(&cleaned), "plan removed state unreleased");
    assert_eq!(keys(&json(&cli, "completions bash")), "script shell");
    assert_eq!(keys(&json(&cli, "man diff")), "name page");
}

#[test]
fn a_diff_names_every_change_with_both_sides() {
    let (_world, cli) = planned_app("filesystem_copy");
    let sandbox = copy_of(&cli, "try", "app");
    write(sandbox.join("a.txt"), "changed\n");
    remove(sandbox.join("src/main.rs"));
    remove(sandbox.join("link"));
    fs::create_dir(sandbox.join("link")).expect("nothing is there");
    let document = json(&cli, "diff try");
    assert_eq!(keys(&document), "digest plan resources");
    let one = &document["resources"][0];
    assert_eq!(keys(one), "changes resource strategy summary");
    let changes = list(&one["changes"]);
    let kinds = changes
        .iter()
        .map(|c| format!("{} {}; ", c["kind"], c["path"]));
    let expected = "modified a.txt; type_changed link; deleted src/main.rs; ";
    assert_eq!(kinds.collect::<String>().replace('"', ""), expected);
    assert_eq!(keys(&changes[0]), "fields kind new old path");
    let wanted = value!({"type": "file", "size": 14, "mode": 0o640});
    assert_eq!(changes[0]["old"], wanted);
    assert_eq!(changes[1]["old"]["target"], "a.txt");
    assert_eq!(one["summary"]["deleted"], 1);
}

// rule S1, P7
#[test]
fn every_kind_of_failure_has_its_exit_code() {
    as_user_too();
    let (_world, cli) = planned_app("auto");
    let table = [
        ("read try app ../x", 2, "usage"),
        ("read try app /etc/passwd", 2, "usage"),
        ("read try app src", 2, "usage"),
        ("frobnicate", 2, "usage"),
        ("diff --stat --patch", 2, "usage"),
        ("plan create bad/name", 2, "usage"),
        (
            "plan create x --resource ./app --strategy quantum",
            2,
            "usage",
        ),
        ("resource add x --type teapot --at app", 2, "usage"),
        ("resource add x --at /", 2, "usage"),
        ("read nowhere app x", 1, "not_found"),
        ("read try other x", 1, "not_found"),
        ("read try app nope", 1, "not_found"),
        ("plan create x --resource ./nope", 1, "not_found"),
        ("path try app", 1, "unsupported"),
        ("write try app link/x", 3, "denied"),
        ("plan create try", 4, "conflict"),
        ("resource remove app", 4, "conflict"),
    ];
    for (line, code, kind) in table {
        let error = json_error(&cli, line, code);
        assert_eq!(error["kind"], kind, "{line}");
        assert_ne!(error["message"], "", "{line}");
        // The same without --json: on stderr, with the same code, and nothing on stdout.
        let outcome = cli.run(line);
        assert_eq!((outcome.status, outcome.stdout.len()), (code, 0), "{line}");
        let holds = outcome.stderr_text().starts_with("error: ");
        assert!(holds, "{line}: {}", outcome.stderr_text());
    }
    let hints = json_error(&cli, "plan create x --resource ./app --strategy quantum", 2)["hints"]
        .to_string();
    for known in "auto; overlay; copy_on_write; filesystem_copy; none".split("; ") {
        assert!(hints.contains(known), "{hints}");
    }
    // None of it changed anything.
    let plans = json(&cli, "plan list");
    assert_eq!(list(&plans["plans"]).len(), 1);
}
