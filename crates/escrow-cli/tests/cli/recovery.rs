//! Recovery of several plans, under the configuration of each, and what else goes on meanwhile.

use crate::*;

// What is on its way into the memory of the strategies goes with the next that writes there.
#[test]
fn a_killed_commit_left_a_file_in_the_memory_for_ever() {
    need!(require_stepper());
    let (world, cli) = world();
    cli.plan("other", "./app", "overlay");
    cli.plan("one", "./app", "filesystem_copy");
    put(&cli, "one app a.txt", "one\n");
    for turn in 0..3 {
        cli.ok("commit one");
        let undo = cli.stepper("undo one").only(&["renameat"]);
        let undo = undo.about(|step| format!("{:?}", step.path).contains("/memory/"));
        let undone = match turn {
            1 => undo.fault(1, Fault::Kill),
            _ => undo.run(),
        };
        assert_eq!(undone.hit.is_some(), turn == 1, "it writes there");
        cli.ok("recover");
        // Where it was killed the plan is not open yet.
        cli.run("undo one");
    }
    let memory = world.home().join("memory");
    let at = |name: &String| memory.join(name);
    let left = names(&memory).into_iter().filter(|name| at(name).is_dir());
    let left: Vec<String> = left.flat_map(|name| names(at(&name))).collect();
    assert_eq!(left, [""; 0]);
    let named = names(&memory)
        .into_iter()
        .filter(|name| name.starts_with('.'));
    assert_eq!(named.count(), 0);
}

/// Lets a file be removed, or not.
fn fix(file: &Path, flag: &str) {
    let done = Command::new("chattr").arg(flag).arg(file).status();
    assert!(done.is_ok_and(|status| status.success()), "{flag}");
}

/// A plan whose removal failed half way, and the file that keeps it from going on.
fn half_removed(world: &World, cli: &Cli, name: &str, commit: bool) -> PathBuf {
    write(world.dir(name).join("f"), "old\n");
    cli.ok(format!(
        "plan create {name} --resource ./{name} --strategy filesystem_copy"
    ));
    let line = words(&format!("write {name} {name} f"));
    cli.clone().stdin("new\n").ok(line);
    let path = cli.ok(format!("path {name} {name}"));
    let stuck = Path::new(path.trim()).join("stuck");
    if commit {
        cli.ok(format!("commit {name}"));
    }
    write(&stuck, "");
    fix(&stuck, "+i");
    let cleaned = cli.run(format!("cleanup {name} --yes"));
    assert_ne!(cleaned.status, 0, "{}", cleaned.stderr_text());
    stuck
}

/// One plan that could not be recovered stopped the recovery of all that came after it.
// rule C17
#[test]
fn one_plan_that_cannot_be_recovered_does_not_stop_the_others() {
    need!(require_root("a file that nobody can remove"));
    let (world, cli) = world();
    let stuck = half_removed(&world, &cli, "first", false);
    let freed = half_removed(&world, &cli, "second", false);
    fix(&freed, "-i");
    let outcome = cli.run("--json recover");
    let told = outcome.stdout_text();
    fix(&stuck, "-i");
    assert_eq!(outcome.status, 5, "{told}");
    let answer: Value = serde_json::from_str(&told).expect("a document");
    let answers = list(&answer["recovered"]);
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
    need!(require_root("a file that nobody can remove"));
    let (world, cli) = world();
    let config = "sandbox: {cleanup: manual}\n";
    write(world.at("escrow.yaml"), config);
    cli.ok("plan create whole --resource ./app");
    put(&cli, "whole app a.txt", "new\n");
    cli.ok("commit whole");
    let stuck = half_removed(&world, &cli, "half", true);
    let undone = cli.run("--json undo --yes");
    fix(&stuck, "-i");
    let told = undone.stdout_text();
    assert_eq!(undone.status, 0, "{told}");
    assert!(told.contains("\"plan\": \"whole\""), "{told}");
}

/// A commit of a plan whose sandboxes stay was recovered from elsewhere as if they went.
#[test]
fn a_plan_is_recovered_under_its_own_configuration() {
    need!(require_stepper());
    let scene = || -> (World, Cli) {
        let (world, cli) = world();
        let config = "sandbox: {cleanup: manual}\n";
        write(world.at("escrow.yaml"), config);
        cli.ok("plan create try --resource ./app --strategy filesystem_copy");
        put(&cli, "try app a.txt", "new\n");
        (world, cli)
    };
    let (_world, cli) = scene();
    let calls = cli.stepper("commit try").run().calls;
    let mut recovered = 0;
    for n in (1..8).map(|part| calls * part / 8) {
        let (_world, cli) = scene();
        let path = cli.ok("path try app");
        cli.stepper("commit try").fault(n, Fault::Kill);
        let answer = json(&cli.clone().cwd("/"), "recover");
        if answer["recovered"][0]["side"] == "new" {
            recovered += 1;
            assert!(Path::new(path.trim()).exists(), "call {n}: {answer}");
        }
    }
    assert!(recovered > 0, "no commit was recovered of {calls} calls");
}
