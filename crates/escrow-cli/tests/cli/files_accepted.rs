//! Which files can be a resource, and what is said of them: their type, their names in a policy, what will run later.

use crate::files::{put, text, tool, world};
use crate::*;

// rule F4
#[test]
fn what_is_neither_file_nor_directory_is_refused() {
    let (world, cli, docs) = world();
    tool("mkfifo", &[], &world.at("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(world.at("sock")).expect("bound");
    let database = [b"SQLite format 3\0".as_slice(), &[0; 84]].concat();
    write(world.at("app.db"), database);
    for (path, why) in [
        ("./pipe", "named pipe"),
        ("./sock", "socket"),
        ("/dev/null", "device"),
    ] {
        for line in [
            format!("plan create try --resource {path}"),
            format!("resource add it --at {path}"),
        ] {
            let error = json_error(&cli, &line, 2);
            let told = error["message"].as_str().expect("a text");
            assert!(told.contains(why), "{line}: {told}");
        }
    }
    for (kind, at, why) in [
        ("fs-directory", "docs/notes.txt", "it is a file"),
        ("fs-file", "./docs", "it is a directory"),
        ("fs-mount", "./docs", "nothing is mounted there"),
        ("fs-file", "./pipe", "named pipe"),
    ] {
        let error = json_error(&cli, &format!("resource add it --type {kind} --at {at}"), 2);
        let told = error["message"].as_str().expect("a text");
        assert!(told.contains(why), "{kind} {at}: {told}");
    }
    // Asked for by name a database is a file like any other.
    cli.ok("resource add db --type fs-file --at ./app.db");
    // What became another thing since it was named is not taken for it.
    cli.ok("resource add notes --at docs/notes.txt");
    remove(docs.join("notes.txt"));
    fs::create_dir(docs.join("notes.txt")).expect("made");
    let error = json_error(&cli, "plan create try --resource notes", 2);
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|told| told.contains("directory"))
    );
    let holds = json(&cli, "plan list")["plans"] == value!([]);
    assert!(holds, "nothing is left");
}

/// A file has a name in every resource it lies in, and a denial of any of them counts.
// rule S6
#[test]
fn a_denial_counts_under_every_name_of_a_file() {
    let (world, cli, docs) = world();
    let rules = |scope: &str| {
        let text = format!(
            "resources:\n  docs: {{at: docs}}\n  notes: {{type: fs-file, at: docs/notes.txt, parent: docs, strategy: inherit}}\n\
             policy:\n  mode: enforce\n  rules:\n    - {{allow: [create, read, diff, write, cleanup, admin], principal: \"*\", scope: \"*\"}}\n    \
             - {{deny: [write], principal: \"*\", scope: \"{scope}\"}}\n"
        );
        write(world.at("escrow.yaml"), text);
    };
    for scope in ["notes", "notes:notes.txt", "docs:notes.txt", "docs:*.txt"] {
        rules(scope);
        cli.ok("plan create try --resource docs --strategy filesystem_copy");
        for line in [
            "write try notes .",
            "write try notes notes.txt",
            "write try docs notes.txt",
        ] {
            let wanted = "denied";
            assert_eq!(json_error(&cli, line, 3)["kind"], wanted, "{scope}: {line}");
        }
        crate::put(&cli, "try docs neighbour", "x");
        cli.ok("cleanup try");
    }
    assert_eq!(text(&docs.join("notes.txt")), "one\n");
}

/// Alone, the name of a hook says nothing; where it lies does.
#[test]
fn a_file_that_will_run_later_is_told_by_where_it_lies() {
    let (world, cli, _docs) = world();
    let hooks = world.dir("app/.git/hooks");
    write(hooks.join("post-commit"), "#!/bin/sh\n");
    cli.ok("plan create try --resource app/.git/hooks/post-commit");
    put(&cli, "post-commit", "#!/bin/sh\ntrue\n");
    let told = json(&cli, "commit try --dry-run");
    let later = &told["runs_later"][0];
    assert_eq!(later["path"], "post-commit", "{told}");
    assert_eq!(later["why"], "a git hook", "{told}");
}
