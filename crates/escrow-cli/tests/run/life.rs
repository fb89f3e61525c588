//! If the process dies takes the rest with it, at every stage, and the next process finds a plan that can be used.

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::running::mark;
use crate::*;

/// The number of process 1 of the run that is inside the only plan.
pub(crate) fn live(world: &World) -> Option<i32> {
    let path = live_lock(world)?;
    let note: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    i32::try_from(note["inside"]["pid"].as_u64()?).ok()
}

/// The lock that says that any command is inside the only plan.
fn live_lock(world: &World) -> Option<PathBuf> {
    let entries = fs::read_dir(world.home().join("locks")).ok()?;
    let mut paths = entries.map(|entry| entry.expect("it can be listed").path());
    paths.find(|path| path.extension().is_some_and(|end| end == "live"))
}

/// After a run that died: nothing is left of it, the original is as it was, and every plan can be looked at, used,
/// committed and cleaned up.
#[track_caller]
fn goes_on(world: &World, cli: &Cli, how: &str) {
    assert_soon_quiet(world);
    let app = world.at("app");
    assert_eq!(read(app.join("a.txt")), "one\ntwo\n", "{how}");
    assert!(!app.join("f").exists(), "{how}: the original");
    let ok = |line: Vec<OsString>| {
        let outcome = cli.run(&line);
        let said = [outcome.stdout_text(), outcome.stderr_text()];
        assert_eq!(outcome.status, 0, "{how}: {line:?}: {said:?}");
        outcome.stdout_text()
    };
    let json = |line: &str| -> Value {
        let text = ok([words("--json"), words(line)].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{how}: {error}: {text}"))
    };
    let mut status = json("status");
    if status["unfinished"] != value!([]) {
        // A plan that was never wholly made is removed as if it had never been.
        assert_eq!(status["unfinished"][0]["what"], "creation", "{how}");
        ok(words("recover"));
        status = json("status");
        assert_eq!(status["plans"], value!([]), "{how}");
    }
    assert_eq!(status["unfinished"], value!([]), "{how}");
    for operation in list(&status["operations"]) {
        assert_ne!(operation["state"], "running", "{how}: {operation}");
    }
    for plan in list(&status["plans"]) {
        let plan = plan["name"].as_str().expect("a name");
        let state = &json(&format!("plan show {plan}"))["sandboxes"][0]["state"];
        // One that was not finished can only be cleaned up.
        let usable = ["created", "active", "rolled_back"].map(Value::from);
        if usable.contains(state) {
            let diff = words(&format!("diff {plan} --name-status"));
            let listed = ok(diff.clone());
            assert!(["", "A\tf\n"].contains(&&*listed), "{how}: {listed}");
            let script = "test ! -e f || rm f; echo again > g";
            ok(inside(&format!("run --plan {plan}"), script));
            assert_eq!(ok(diff), "A\tg\n", "{how}: {plan}");
            ok(words(&format!("commit {plan}")));
            assert_eq!(read(app.join("g")), "again\n", "{how}");
            remove(app.join("g"));
        }
        ok(words(&format!("cleanup {plan}")));
    }
    assert_clean(world);
}

/// Every second call as root, every sixth as an ordinary user; every one as both in the long form.
fn stride() -> usize {
    let long = std::env::var_os("ESCROW_TORTURE").is_some_and(|form| form == "long");
    match (long, is_root()) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 9,
    }
}

// rule P6
#[test]
fn a_run_is_killed_at_every_call_that_changes_something() {
    as_user_too();
    need!(require_stepper());
    let script = "echo x > f; echo y > ~/home";
    let (template, cli) = world();
    cli.ok("plan create try --resource .");
    let calls = cli.stepper(in_try(script)).run();
    assert_eq!(calls.outcome.status, 0, "{}", calls.outcome.stderr_text());
    drop(template);
    for n in (1..=calls.calls).step_by(stride()) {
        let (world, cli) = planned("auto");
        let run = cli.stepper(in_try(script)).fault(n, Fault::Kill);
        let Some(hit) = run.hit else { break };
        goes_on(&world, &cli, &format!("call {n}, {hit}"));
    }
}

// rule P6
#[test]
fn a_run_without_a_plan_is_killed_here_and_there() {
    as_user_too();
    need!(require_stepper());
    let (template, cli) = world();
    let calls = cli.stepper(inside("run", "echo x > f")).run().calls;
    drop(template);
    let step = (calls / 25).max(1) as usize;
    for n in (1..=calls).step_by(step) {
        let (world, cli) = world();
        let run = cli
            .stepper(inside("run", "echo x > f"))
            .fault(n, Fault::Kill);
        let Some(hit) = run.hit else { break };
        goes_on(&world, &cli, &format!("call {n}, {hit}"));
    }
}

/// Only the supervisor is killed; the rest must notice by itself.
#[test]
fn the_supervisor_is_killed_while_the_command_works() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let script = "trap '' HUP INT TERM; (setsid sh -c 'while :; do sleep 0.01; done' &); echo x > f; echo ready
            while :; do sleep 0.01; done";
        let running = Running::ready(cli.command(in_try(script)));
        let status = json(&cli, "status");
        assert_eq!(status["operations"][0]["state"], "running");
        assert_eq!(status["operations"][0]["action"], "run");
        running.signal(Signal::KILL);
        assert_eq!(running.end().status, -9);
        assert_soon_quiet(&world);
        let status = json(&cli, "status");
        assert_eq!(status["operations"][0]["state"], "interrupted");
        goes_on(&world, &cli, strategy);
    }
}

/// At any snapshot, also between the steps of the way in.
#[test]
fn the_supervisor_is_killed_at_any_time() {
    as_user_too();
    let (world, cli) = planned("auto");
    let before = signature(&world.at("app"));
    let start = Instant::now();
    cli.ok(in_try("true"));
    let whole = start.elapsed();
    for n in 0..40u32 {
        let line = in_try("while :; do sleep 0.01; done");
        let running = Running::start(cli.command(line));
        thread::sleep(whole * n / 30);
        running.signal(Signal::KILL);
        running.end();
        assert_soon_quiet(&world);
    }
    unchanged(&before, world.at("app"));
    goes_on(&world, &cli, "killed at any time");
}

/// Between the death of the supervisor and that of the last one inside, no process may look away: the process
/// that commits then would commit a sandbox that is still written.
#[test]
fn the_plan_is_free_only_when_the_last_one_inside_has_ended() {
    as_user_too();
    let (world, cli) = planned("auto");
    // Much memory and many processes take long to end.
    let script = "head -c 200M /dev/zero | tail -c 200M | sleep 1000 &
        n=0; while [ $n -lt 40 ]; do (while :; do echo x >> f$n; done) & n=$((n+1)); done; sleep 0.5; echo ready; wait";
    for _ in 0..3 {
        let mut running = Running::ready(cli.command(in_try(script)));
        let lock = fs::File::options()
            .read(true)
            .write(true)
            .open(live_lock(&world).expect("somebody is inside"))
            .expect("it is ours");
        running.signal(Signal::KILL);
        running.gone();
        let until = Instant::now() + PATIENCE;
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            assert!(Instant::now() < until, "the plan is never free");
            thread::yield_now();
        }
        let left = processes(&world);
        drop(lock);
        assert_soon_quiet(&world);
        assert!(left.is_empty(), "free, but there are {left:?}");
    }
}

/// The processes between supervisor and command are killed, one at a time.
#[test]
fn the_launcher_or_process_1_is_killed() {
    as_user_too();
    for init in [true, false] {
        let (world, cli) = planned("auto");
        let running = Running::ready(cli.command(in_try(WAIT)));
        let one = live(&world).expect("somebody is inside");
        let stat = read(format!("/proc/{one}/stat"));
        let parent = stat.rsplit(')').next().expect("a name in brackets");
        let parent = parent.split_whitespace().nth(1).expect("a parent");
        let victim = match init {
            true => one,
            false => parent.parse().expect("a number"),
        };
        let victim = Pid::from_raw(victim).expect("a process");
        kill_process(victim, Signal::KILL).expect("it is ours");
        let ended = running.end();
        assert!(ended.status > 0, "init {init}: {}", ended.status);
        assert!(ended.stderr.contains("error"), "{}", ended.stderr);
        assert_soon_quiet(&world);
        goes_on(&world, &cli, "a middle one was killed");
    }
}

#[test]
fn a_stopped_run_is_killed() {
    as_user_too();
    let (world, cli) = planned("auto");
    let terminal = Terminal::new(24, 80);
    let mut child = terminal.start(cli.command("run --plan try -- sleep 1000.25"));
    await_process(&world, ": sleep 1000.25");
    terminal.send(escrow_testkit::pty::CTRL_Z);
    let until = Instant::now() + PATIENCE;
    let stopped = || read(format!("/proc/{}/stat", child.id())).contains(") T ");
    while !stopped() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    goes_on(&world, &cli, "stopped and killed");
}

/// A test that looks for leftovers finds them.
#[test]
fn what_is_left_would_be_found() {
    let (world, cli) = planned("auto");
    let running = Running::ready(cli.command(in_try(WAIT)));
    assert!(!mark(&world).is_empty());
    // Supervisor, launcher, process 1 and the command.
    assert!(processes(&world).len() >= 4, "{:?}", processes(&world));
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| assert_quiet(&world)));
    assert!(found.is_err());
    assert_eq!(running.finish().status, 0);
    assert_quiet(&world);
}
