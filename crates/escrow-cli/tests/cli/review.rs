//! Before a release: what will run later is shown apart.

use crate::*;

#[test]
fn what_will_run_later_is_listed_apart_with_its_reason() {
    let (_world, cli) = planned_app("filesystem_copy");
    for path in [".git/hooks/pre-commit", ".github/workflows/ci.yml", "notes"] {
        put(&cli, &format!("try app {path}"), "echo gotcha\n");
    }
    let copy = cli.ok("path try app");
    let copy = Path::new(copy.trim_end());
    let script = copy.join("start");
    write(&script, "#!/bin/sh\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("it is ours");
    let expected = value!([
        {"resource": "app", "path": ".git/hooks/pre-commit", "why": "a git hook"},
        {"resource": "app", "path": ".github/workflows/ci.yml", "why": "a CI service runs it"},
        {"resource": "app", "path": "start", "why": "a new executable file"},
    ]);
    assert_eq!(json(&cli, "commit try --dry-run")["runs_later"], expected);
    let text = "runs later  app:.git/hooks/pre-commit  a git hook\n\
                runs later  app:.github/workflows/ci.yml  a CI service runs it\n\
                runs later  app:start  a new executable file\n";
    let shown = cli.ok("commit try --dry-run");
    assert!(shown.ends_with(text), "{shown}");
    assert_eq!(json(&cli, "commit try")["runs_later"], expected);
}

#[test]
fn a_commit_of_plain_files_lists_nothing_that_runs() {
    let (_world, cli) = planned_app("auto");
    put(&cli, "try app a.txt", "uno\n");
    assert_eq!(json(&cli, "commit try --dry-run")["runs_later"], value!([]));
    let done = cli.ok("commit try");
    assert!(!done.contains("runs later"), "{done}");
}
