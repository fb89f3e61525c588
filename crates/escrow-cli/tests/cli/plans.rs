//! Plans and their sandboxes: which plan is found from where, and what one is after an interruption.

use escrow_testkit::stepper::{Fault, require_stepper};

use crate::*;

#[test]
fn the_plan_of_a_directory_was_the_newest_above_instead_of_the_nearest() {
    let (world, cli) = world();
    let project = world.dir("project");
    world.dir("project/app");
    world.dir("sibling");
    let line = "plan create inner --resource ./app";
    json(&cli.clone().cwd(&project), line);
    json(&cli, "plan create outer");
    let inside = cli.clone().cwd(project.join("app"));
    assert_eq!(json(&inside, "plan show")["name"], "inner");
    let beside = cli.clone().cwd(world.at("sibling"));
    beside.fails("cleanup", 1);
    assert_eq!(json(&cli, "plan show outer")["state"], "open");
}

/// Starts them all, then waits for all; their exit codes and what they said.
fn at_once(cli: &Cli, lines: &[String]) -> Vec<(i32, String)> {
    let start = |line: &String| {
        let mut command = cli.command(line);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let children: Vec<_> = lines.iter().map(start).collect();
    let end = |child: Child| {
        let output = child.wait_with_output().expect("it ends");
        let code = output.status.code().unwrap_or(-1);
        (code, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    children.into_iter().map(end).collect()
}

#[test]
fn many_plans_of_one_new_directory_at_once_failed() {
    let (_world, cli) = world();
    let lines: Vec<String> = (0..8)
        .map(|n| format!("plan create p{n} --resource ./app"))
        .collect();
    for (code, said) in at_once(&cli, &lines) {
        assert_eq!(code, 0, "{said}");
    }
    let resources = json(&cli, "resource list");
    assert_eq!(list(&resources["resources"]).len(), 1, "{resources}");
}

#[test]
fn readers_of_a_plan_that_is_over_fell_over_its_lock() {
    let (world, cli) = planned_app("auto");
    cli.ok("cleanup try");
    let lines = vec!["read try app a.txt".to_owned(); 12];
    for (code, said) in at_once(&cli, &lines) {
        assert_eq!(code, 4, "{said}");
        assert!(said.contains("was cleaned up"), "{said}");
    }
    assert_eq!(entries(&world.home().join("locks")), 0);
}

#[test]
fn a_plan_that_could_not_begin_left_a_resource_behind() {
    let (_world, cli) = world();
    cli.fails("plan create x --resource ./app --strategy quantum", 2);
    cli.fails("plan create x --resource ./app --resource ./nowhere", 1);
    assert_eq!(json(&cli, "resource list"), value!({"resources": []}));
}

#[test]
fn one_file_that_cannot_be_shared_kept_all_from_being_shared() {
    let fs = need!(LoopFs::new(Fs::Btrfs, 160));
    let world = World::under(fs.path());
    let app = world.dir("app");
    sh(
        &app,
        "touch a; chattr +C a; head -c 9000 /dev/zero > a; for n in b c d; do echo $n > $n; done",
    );
    let cli = Cli::new(&world, &binary());
    let line = "plan create try --resource ./app --strategy copy_on_write";
    let plan = json(&cli, line);
    let message = plan["sandboxes"][0]["message"].as_str().expect("a text");
    assert_eq!(message, "4 files share their contents with the original");
}

#[test]
fn a_copy_could_not_be_read_without_its_original() {
    let (world, cli) = planned_app("filesystem_copy");
    fs::rename(world.at("app"), world.at("away")).expect("it can be moved");
    assert_eq!(cli.ok("read try app a.txt"), "one\ntwo\nthree\n");
    put(&cli, "try app b.txt", "x");
    let error = cli.fails("rollback try", 1);
    assert!(error.contains("is gone"), "{error}");
    fs::rename(world.at("away"), world.at("app")).expect("it can be moved");
    assert_eq!(cli.ok("diff try --name-status"), "A\tb.txt\n");
}

/// A killed cleanup leaves something that is not whole, and every command but cleanup says so.
#[test]
fn a_half_removed_sandbox_was_called_healthy() {
    need!(require_stepper());
    let (world, cli) = world();
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let removals = cli.stepper("cleanup try --yes").only(&["unlinkat"]);
    let killed = removals.about(|step| step.ends("/a.txt"));
    assert!(killed.fault(1, Fault::Kill).hit.is_some());
    let state = json(&cli, "plan list")["plans"][0]["sandboxes"][0]["state"].clone();
    assert_eq!(state, "errored");
    for line in ["diff try", "read try app a.txt"] {
        let error = cli.fails(line, 5);
        assert!(error.contains("is being removed"), "{line}: {error}");
    }
    // What changes something finishes the removal first.
    let error = cli.fails("sandbox create try app", 4);
    assert!(error.contains("was cleaned up"), "{error}");
    cli.ok("cleanup try");
    assert_eq!(world.areas(), [""; 0]);
}

#[test]
fn an_interrupted_create_left_its_plan() {
    let (world, cli) = world();
    let app = world.at("app");
    sh(
        &app,
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 200); do echo x > d$d/f$f; done; done",
    );
    let mut interrupted = false;
    for wait in 20..200 {
        let child = cli
            .command("plan create try --resource ./app --strategy filesystem_copy")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        thread::sleep(Duration::from_millis(wait));
        sh(&app, &format!("kill -INT {} 2>/dev/null || :", child.id()));
        let output = child.wait_with_output().expect("it ends");
        match output.status.code() {
            Some(130) => interrupted = true,
            // Too early to be caught, or too late.
            _ => {
                let plans = list(&json(&cli, "plan list")["plans"]).len();
                if plans > 0 {
                    cli.run("cleanup try");
                }
                continue;
            }
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        has(&said, ["interrupted; what was begun was removed"]);
        break;
    }
    assert!(interrupted, "it was never caught in the middle");
    let open: Vec<_> = json(&cli, "status")["plans"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(open, Vec::<Value>::new());
    assert_eq!(world.areas(), [""; 0]);
}

#[test]
fn an_unfinished_sandbox_was_made_anew_by_another_strategy() {
    let (world, cli) = world();
    let app = world.at("app");
    sh(
        &app,
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 100); do echo x > d$d/f$f; done; done",
    );
    cli.ok("plan create try");
    crate::verbs::interrupted(&cli, "try");
    let made = json(&cli, "sandbox create try app");
    assert_eq!(made["strategy"], "filesystem_copy", "{made}");
}

#[test]
fn another_directory_of_the_same_name_was_taken_for_the_plans_own() {
    let (world, cli) = world();
    world.dir("o");
    let there = world.dir("o/app");
    write(there.join("a.txt"), "the other\n");
    cli.ok("plan create first --resource ./app");
    let beside = cli.clone().cwd(world.at("o"));
    beside.ok("plan create second --resource ./app");
    assert_eq!(beside.ok("read second app a.txt"), "the other\n");
    assert_eq!(beside.ok("read second ./app a.txt"), "the other\n");
    // Directories that the user did not name are forgotten with their last plan.
    cli.ok("cleanup first");
    cli.ok("cleanup second");
    assert_eq!(json(&cli, "resource list"), value!({"resources": []}));
}

#[test]
fn inside_a_sandbox_its_plan_was_not_found() {
    let (_world, cli) = planned_app("filesystem_copy");
    let path = cli.ok("path try app");
    let inside = cli.clone().cwd(Path::new(path.trim_end()).join("src"));
    write(Path::new(path.trim_end()).join("new"), "x");
    assert_eq!(inside.ok("diff --name-status"), "A\tnew\n");
}

#[test]
fn from_a_directory_that_is_gone_nothing_worked() {
    let (world, cli) = planned_app("auto");
    let gone = world.dir("gone");
    let line = "cd gone && rmdir ../gone && \"$0\" status && \"$0\" diff try";
    let mut command = cli.behind(&["sh", "-euc", line], "");
    let output = command.output().expect("there is a shell");
    let holds = output.status.success();
    assert!(holds, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!gone.exists());
}

#[test]
fn cleanup_called_removed_what_was_out_of_reach() {
    let fs = need!(LoopFs::new(Fs::Ext4, 16));
    let there = World::under(fs.path());
    there.dir("room");
    there.dir("room/app");
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    cli.ok("plan create try --resource ./room/app --strategy filesystem_copy");
    sh(there.path(), "mv room away");
    let error = cli.fails("cleanup try", 1);
    assert!(error.contains("is its file system not mounted"), "{error}");
    sh(there.path(), "mv away room");
    cli.ok("cleanup try");
    assert_eq!(names(there.at("room")).len(), 1);
    cli.ok("plan create again --resource ./room/app");
    sh(there.path(), "mv room gone");
    cli.ok("cleanup again --forget");
}
