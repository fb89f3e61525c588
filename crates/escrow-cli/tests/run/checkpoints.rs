//! Checkpoints, restores and forks while commands are inside: they are paused meanwhile, find the files as
//! they are to be, and go on.

use escrow::event::Unobserved;
use escrow::manager::{Manager, ManagerOptions};
use escrow_testkit::states::{AFTER, BEFORE, LATER, SIGNATURE, same};

use crate::*;

fn run(cli: &Cli, script: &str) -> String {
    cli.ok(inside("-q run --plan try", script))
}

fn look(cli: &Cli) -> String {
    run(cli, SIGNATURE)
}

/// A world with a plan of each strategy that can be had here; the last on a btrfs, where that can be made.
fn each_planned(mut work: impl FnMut(&str, &dyn Fn() -> (World, Cli))) {
    for strategy in STRATEGIES {
        work(strategy, &|| planned(strategy));
    }
    if is_root()
        && let Some(fs) = LoopFs::new(Fs::Btrfs, 256)
    {
        let scene = || {
            let (world, cli) = furnish(World::under(fs.path()));
            cli.plan("try", ".", "snapshot");
            (world, cli)
        };
        work("snapshot", &scene);
    }
}

// rule R1, R2, R3, R4
#[test]
fn a_plan_goes_back_and_forth_under_a_command() {
    as_user_too();
    each_planned(|strategy, scene| {
        let (world, cli) = scene();
        run(&cli, "echo first > first; echo early > a.txt; mkdir early");
        let command = Running::ready(cli.command(in_try(WAIT)));
        let mut moments = Vec::new();
        for (label, script) in [("one", BEFORE), ("two", AFTER), ("three", LATER)] {
            run(&cli, script);
            let before = look(&cli);
            cli.ok(format!("checkpoint create try -m {label}"));
            same(
                &before,
                &look(&cli),
                &format!("{strategy}: keeping {label}"),
            );
            moments.push((label, before));
        }
        for to in [0, 2, 1, 1, 0, 1, 2, 0] {
            let (label, wanted) = &moments[to];
            cli.ok(format!("restore try {label}"));
            same(
                wanted,
                &look(&cli),
                &format!("{strategy}: to {label}, inside"),
            );
        }
        // What was kept meanwhile serves as well when no command is inside any more.
        command.finish();
        assert_quiet(&world);
        for to in [0, 2, 1] {
            let (label, wanted) = &moments[to];
            cli.ok(format!("restore try {label}"));
            same(wanted, &look(&cli), &format!("{strategy}: to {label}"));
        }
        // And what is seen is what is committed.
        let wanted = look(&cli);
        cli.ok("commit try");
        cli.ok("plan create try --resource . --strategy overlay");
        let times = |text: &str| -> Vec<String> {
            // The root itself keeps its times apart.
            let kept = text.lines().filter(|line| !line.starts_with(". d "));
            kept.map(str::to_owned).collect()
        };
        assert_eq!(times(&wanted), times(&look(&cli)), "{strategy}");
    });
}

/// A writer never sees the snapshot, and is never caught in the middle of a step.
// rule R4
#[test]
fn a_running_command_is_captured_at_one_instant_and_continues() {
    as_user_too();
    const WORK: &str = "echo ready; n=0; while [ ! -e stop ]; do n=$((n+1)); echo $n > new; mv new first; \
        /bin/true; echo $n > new; mv new second; done; echo $n";
    each_planned(|strategy, scene| {
        let (_world, cli) = scene();
        let worker = Running::ready(cli.command(in_try(WORK)));
        while cli.run("read try app second").status != 0 {}
        let number = |name: &str| -> u64 {
            let text = cli.ok(format!("read other app {name}"));
            text.trim().parse().unwrap_or_else(|_| panic!("{text:?}"))
        };
        let mut last = 0;
        for round in 0..6 {
            cli.ok(format!("checkpoint create try -m {round}"));
            if strategy != "filesystem_copy" {
                // A fork shows what was kept without a restore.
                cli.ok(format!("plan fork try other --at {round}"));
                let (first, second) = (number("first"), number("second"));
                cli.ok("cleanup other");
                assert!(
                    first == second || first == second + 1,
                    "round {round}: {first} and {second}"
                );
                assert!(first >= last, "round {round}: {first} after {last}");
                last = first;
            }
        }
        run(&cli, "echo > stop");
        let counted: u64 = worker.line().parse().expect("a number");
        assert!(counted >= last, "{counted} after {last}");
        assert_eq!(worker.finish().status, 0);
    });
}

/// Those who were stopped stay so, those who wait for children go on, and no shell sees a job that stopped.
#[test]
fn processes_inside_do_not_notice_the_pause() {
    as_user_too();
    let (_world, cli) = planned("overlay");
    const WORK: &str = "set -m; sleep 1000 & sleep 1000 & kill -STOP %2; sleep 0.1; echo ready; \
        read line; jobs; kill -KILL %1 %2; unshare -Ur true 2>/dev/null; echo over";
    let mut line = words("run --plan try --allow-userns -- bash -c");
    line.push(WORK.into());
    let mut shell = Running::ready(cli.clone().env("LC_ALL", "C").command(line));
    for _ in 0..5 {
        cli.ok("checkpoint create try");
    }
    shell.type_line("go");
    let jobs = [shell.line(), shell.line()];
    assert!(jobs[0].contains("Running"), "{jobs:?}");
    assert!(jobs[1].contains("Stopped"), "{jobs:?}");
    assert_eq!(shell.line(), "over");
    assert_eq!(shell.finish().status, 0);
}

// rule R2
#[test]
fn those_inside_keep_and_return_by_themselves() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let program = cli.command("status").get_program().to_owned();
        let copy = world.dir("bin").join("escrow");
        fs::copy(program, &copy).expect("there is room");
        let cli = cli.env("ESCROW_E", &copy);
        let said = run(
            &cli,
            "echo 1 > f; $ESCROW_E checkpoint create -m 'first try' 2>&1 | grep -c kept; rm -r src; echo 2 > f; echo 3 > g
             $ESCROW_E diff --since 'first try' --name-status; $ESCROW_E restore 'first try' >/dev/null 2>&1; cat f; ls
             $ESCROW_E checkpoint list --json",
        );
        let (seen, listed) = said.split_once('{').expect("two parts");
        let wanted = "1\nM\tf\nA\tg\nD\tsrc\nD\tsrc/main.rs\n1\na.txt\nf\nlink\nsrc\n";
        assert_eq!(seen, wanted, "{strategy}");
        let listed: Value = serde_json::from_str(&format!("{{{listed}")).expect("JSON");
        let all = list(&listed["checkpoints"]);
        assert_eq!(all[0]["label"], "first try", "{strategy}: {all:?}");
        assert_eq!(all[1]["reason"], "before_restore", "{strategy}: {all:?}");
        let log = json(&cli, "log try");
        let who = |action: &str| {
            let all = list(&log["operations"]);
            let found = all.iter().find(|one| one["action"] == action);
            found.unwrap_or_else(|| panic!("{action}: {log}"))["principal"].clone()
        };
        let expected = ("agent".into(), "agent".into());
        assert_eq!((who("checkpoint"), who("restore")), expected);
    }
}

/// A file is shown to the command as it is, and cannot be exchanged under it: kept it can be.
#[test]
fn a_file_is_kept_under_a_command_and_restored_after_it() {
    as_user_too();
    let (_world, cli) = world();
    cli.ok("plan create try --resource a.txt --resource src --strategy filesystem_copy");
    let command = Running::ready(cli.command(in_try(WAIT)));
    run(&cli, "echo kept > a.txt");
    cli.ok("checkpoint create try -m kept");
    run(&cli, "echo later > a.txt; echo later > src/later");
    let said = cli.fails("restore try kept", 1);
    assert!(said.contains("a command runs inside"), "{said}");
    assert_eq!(run(&cli, "cat a.txt src/later"), "later\nlater\n");
    command.finish();
    cli.ok("restore try kept");
    assert_eq!(run(&cli, "cat a.txt; ls src"), "kept\nmain.rs\n");
}

/// Killed anywhere while a command is inside, a checkpoint or a restore comes out on one side, with the command
/// and without.
// rule R3
#[test]
fn a_checkpoint_or_restore_under_a_command_is_killed() {
    as_user_too();
    need!(require_stepper());
    let busy = |scene: &dyn Fn() -> (World, Cli)| {
        let (world, cli) = scene();
        let command = Running::ready(cli.command(in_try(WAIT)));
        run(&cli, BEFORE);
        let old = look(&cli);
        cli.ok("checkpoint create try -m old");
        run(&cli, AFTER);
        (world, cli, command, old)
    };
    let long = std::env::var_os("ESCROW_TORTURE").is_some_and(|form| form == "long");
    // Fewer as an ordinary user.
    let (restores, kept): (u64, u64) = if is_root() { (4, 2) } else { (2, 1) };
    let lines = [
        ("restore try old", restores),
        ("checkpoint create try", kept),
    ];
    each_planned(|strategy, scene| {
        for (line, points) in lines {
            let (_world, cli, _command, _) = busy(scene);
            let calls = cli.stepper(line).run().calls;
            // On a file system of its own, which takes longer, fewer.
            let points = points.div_ceil(if strategy == "snapshot" { 3 } else { 1 });
            let stride = if long { 1 } else { (calls / points).max(1) };
            for n in (1..=calls).step_by(stride as usize) {
                let (_world, cli, command, old) = busy(scene);
                let new = look(&cli);
                let run = cli.stepper(line).fault(n, Fault::Kill);
                let Some(hit) = run.hit else { break };
                let how = format!("{strategy}: {line}: killed at call {n}, {hit}");
                // Every second time no command is inside any more when it is found.
                let _command = match (n / stride).is_multiple_of(2) {
                    true => Some(command),
                    false => {
                        command.finish();
                        None
                    }
                };
                let answer = json(&cli, "recover");
                let found = look(&cli);
                match found == old && line.starts_with("restore") {
                    true => {}
                    false => same(&new, &found, &format!("{how}: {answer}")),
                }
                cli.ok("checkpoint create try -m new");
                cli.ok("restore try old");
                same(&old, &look(&cli), &how);
                cli.ok("restore try new");
                same(&found, &look(&cli), &how);
            }
        }
    });
}

/// A directory of the original that was taken away and made anew is empty, also where the file system gives it the
/// number of the old one.
// rule R1
#[test]
fn a_directory_that_was_made_anew_stays_empty() {
    let (_world, cli) = planned("overlay");
    let _command = Running::ready(cli.command(in_try(WAIT)));
    for round in 0..4 {
        run(&cli, "echo x > src/x");
        cli.ok(format!("checkpoint create try -m one-{round}"));
        run(&cli, "rm -r src; mkdir src; echo y > y");
        cli.ok(format!("checkpoint create try -m two-{round}"));
        run(&cli, "echo z > src/z; rm y");
        cli.ok(format!("restore try two-{round}"));
        assert_eq!(run(&cli, "ls src; cat y"), "y\n", "round {round}");
        cli.ok(format!("restore try one-{round}"));
        let there = run(&cli, "ls src");
        assert!(there.contains("x\n"), "round {round}: {there}");
    }
}

/// A process that went on working under a restore that was killed finds it again.
// rule R2
#[test]
fn what_was_done_after_a_restore_was_killed_is_kept() {
    need!(require_stepper());
    const SHELL: &str = "echo ready; while read line; do eval \"$line\"; echo done; done";
    for strategy in STRATEGIES {
        let scene = || {
            let (world, cli) = planned(strategy);
            let shell = Running::ready(cli.command(in_try(SHELL)));
            run(&cli, BEFORE);
            cli.ok("checkpoint create try -m old");
            run(&cli, AFTER);
            (world, cli, shell)
        };
        let (_world, cli, _shell) = scene();
        let calls = cli.stepper("restore try old").run().calls;
        for n in (1..=calls).rev().step_by((calls / 8).max(1) as usize) {
            let (_world, cli, mut shell) = scene();
            let run_killed = cli.stepper("restore try old").fault(n, Fault::Kill);
            let Some(hit) = run_killed.hit else { continue };
            shell.type_line("echo work > worked");
            assert_eq!(shell.line(), "done");
            cli.ok("recover");
            let how = format!("{strategy}: killed at call {n}, {hit}");
            if cli.run("read try app worked").status == 0 {
                continue;
            }
            let listed = json(&cli, "checkpoint list try");
            let all = list(&listed["checkpoints"]);
            let kept = all.iter().rfind(|one| one["reason"] == "before_recovery");
            let kept = kept.unwrap_or_else(|| panic!("{how}: {listed}"));
            let id = kept["checkpoint_id"].as_str().expect("an id");
            cli.ok(format!("restore try {id}"));
            assert_eq!(cli.ok("read try app worked"), "work\n", "{how}");
        }
    }
}

/// Not every program that uses the engine does so in its first thread.
// rule R4
#[test]
fn any_thread_can_take_a_checkpoint_under_a_command() {
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let command = Running::ready(cli.command(in_try(WAIT)));
        run(&cli, "echo one > f");
        let options = ManagerOptions {
            patience: PATIENCE,
            ..ManagerOptions::new(world.home())
        };
        let app = world.at("app");
        let kept = thread::spawn(move || {
            let manager = Manager::open(options).expect("the home is there");
            let plan = manager
                .resolve_plan(Some("try"), &app)
                .expect("it was made");
            manager
                .create_checkpoint(&plan, Some("here"), &Unobserved)
                .map(|checkpoint| checkpoint.id)
        });
        kept.join().expect("it ends").expect("it is kept");
        run(&cli, "echo two > f");
        cli.ok("restore try here");
        assert_eq!(run(&cli, "cat f"), "one\n", "{strategy}");
        command.finish();
    }
}

/// What lies in the original is read, also where its own user closed it, and stays as it is.
// rule C2, R3
#[test]
fn a_restore_under_a_command_leaves_closed_originals_alone() {
    as_user_too();
    let (world, cli) = world();
    let dark = world.at("app/dark");
    write(&dark, "dark\n");
    chmod(&dark, 0o200);
    let seen = || {
        let meta = fs::metadata(&dark).expect("it is there");
        (meta.mode(), meta.ctime(), meta.ctime_nsec())
    };
    let before = seen();
    cli.ok("plan create try --resource . --strategy overlay");
    let command = Running::ready(cli.command(in_try(WAIT)));
    cli.ok("checkpoint create try -m one");
    run(&cli, "echo more >> dark; echo other > other");
    cli.ok("restore try one");
    let expected = "200 5\na.txt\ndark\nlink\nsrc\n";
    assert_eq!(run(&cli, "stat -c '%a %s' dark; ls"), expected);
    command.finish();
    assert_eq!(seen(), before);
}
