//! Recovery of several plans, under the configuration of each, and what else goes on meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use escrow_testkit::skip::require_root;
use escrow_testkit::stepper::{Fault, require_stepper};
use escrow_testkit::{Cli, World};

use crate::{json, words, world};

/// Lets a file be removed, or not.
fn fix(file: &Path, flag: &str) {
    let done = Command::new("chattr").arg(flag).arg(file).status();
    assert!(done.is_ok_and(|status| status.success()), "{flag}");
}

/// A plan whose removal failed half way, and the file that keeps it from going on.
fn half_removed(world: &World, cli: &Cli, name: &str, commit: bool) -> PathBuf {
    fs::write(world.dir(name).join("f"), "old\n").expect("there is room");
    let line = format!("plan create {name} --resource ./{name} --strategy filesystem_copy");
    cli.ok(words(&line));
    let line = words(&format!("write {name} {name} f"));
    cli.clone().stdin("new\n").ok(line);
    let path = cli.ok(words(&format!("path {name} {name}")));
    let stuck = Path::new(path.trim()).join("stuck");
    if commit {
        cli.ok(words(&format!("commit {name}")));
    }
    fs::write(&stuck, "").expect("the sandbox is there");
    fix(&stuck, "+i");
    let cleaned = cli.run(words(&format!("cleanup {name} --yes")));
    assert_ne!(cleaned.status, 0, "{}", cleaned.stderr_text());
    stuck
}

/// One plan that could not be recovered stopped the recovery of all that came after it.
// rule C17
#[test]
fn one_plan_that_cannot_be_recovered_does_not_stop_the_others() {
    if !require_root("a file that nobody can remove") {
        return;
    }
    let (world, cli) = world();
    let stuck = half_removed(&world, &cli, "first", false);
    let freed = half_removed(&world, &cli, "second", false);
    fix(&freed, "-i");
    let outcome = cli.run(words("--json recover"));
    let told = outcome.stdout_text();
    fix(&stuck, "-i");
    assert_eq!(outcome.status, 5, "{told}");
    let answer: serde_json::Value = serde_json::from_str(&told).expect("a document");
    let answers = answer["recovered"].as_array().expect("a list");
    let of = |name: &str| answers.iter().find(|one| one["plan"] == name);
    assert!(
        of("first").is_some_and(|one| one["error"].is_string()),
        "{told}"
    );
    assert!(
        of("second").is_some_and(|one| one["side"] == "new"),
        "{told}"
    );
    assert_eq!(json(&cli, "recover")["recovered"][0]["plan"], "first");
}

/// `undo` without a name chose a plan that is half removed, and could do nothing with it.
#[test]
fn undo_without_a_name_passes_over_a_plan_that_is_half_removed() {
    if !require_root("a file that nobody can remove") {
        return;
    }
    let (world, cli) = world();
    let config = "sandbox: {cleanup: manual}\n";
    fs::write(world.path().join("escrow.yaml"), config).expect("there is room");
    cli.ok(words("plan create whole --resource ./app"));
    cli.clone()
        .stdin("new\n")
        .ok(words("write whole app a.txt"));
    cli.ok(words("commit whole"));
    let stuck = half_removed(&world, &cli, "half", true);
    let undone = cli.run(words("--json undo --yes"));
    fix(&stuck, "-i");
    let told = undone.stdout_text();
    assert_eq!(undone.status, 0, "{told}");
    assert!(told.contains("\"plan\": \"whole\""), "{told}");
}

/// A commit of a plan whose sandboxes stay was recovered from elsewhere as if they went.
#[test]
fn a_plan_is_recovered_under_its_own_configuration() {
    if !require_stepper() {
        return;
    }
    let scene = || -> (World, Cli) {
        let (world, cli) = world();
        let config = "sandbox: {cleanup: manual}\n";
        fs::write(world.path().join("escrow.yaml"), config).expect("there is room");
        cli.ok(words(
            "plan create try --resource ./app --strategy filesystem_copy",
        ));
        cli.clone().stdin("new\n").ok(words("write try app a.txt"));
        (world, cli)
    };
    let (_world, cli) = scene();
    let calls = cli.stepper(words("commit try")).run().calls;
    let mut recovered = 0;
    for n in (1..8).map(|part| calls * part / 8) {
        let (_world, cli) = scene();
        let path = cli.ok(words("path try app"));
        cli.stepper(words("commit try")).fault(n, Fault::Kill);
        let answer = json(&cli.clone().cwd("/"), "recover");
        if answer["recovered"][0]["side"] == "new" {
            recovered += 1;
            assert!(Path::new(path.trim()).exists(), "call {n}: {answer}");
        }
    }
    assert!(recovered > 0, "no commit was recovered of {calls} calls");
}
