//! One namespace for a plan, however many commands there are; and the plan from outside while one is inside.

use rustix::process::Signal;

use crate::*;

/// A copy of a home knows of the same area, where that lies beside its original: the second command is refused, and not shown a layer that
/// is mounted already.
// attack D37
#[test]
fn d37_two_homes_had_commands_on_one_layer() {
    as_user_too();
    let world = World::under(Path::new("/dev/shm"));
    let original = world.dir("app");
    write(original.join("a.txt"), "one\n");
    let other = World::under(Path::new("/var/tmp"));
    let cli = Cli::new(&world, &binary()).cwd(&original);
    let cli = cli.env("ESCROW_HOME", other.at("first"));
    cli.plan("try", ".", "overlay");
    sh(other.path(), "cp -a first second");
    let running = Running::ready(cli.command(in_try(WAIT)));
    let second = cli.clone().env("ESCROW_HOME", other.at("second"));
    let refused = second.fails(in_try("echo x > f"), 125);
    has(&refused, ["a command of another home runs"]);
    assert_eq!(running.finish().status, 0);
    second.ok(in_try("echo x > f"));
}

const NAMESPACES: &str =
    "for n in mnt pid ipc user net; do readlink /proc/self/ns/$n; done | tr '\\n' ' '; echo";

#[test]
fn a_second_command_joins_the_first() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let first = Running::start(cli.command(in_try(&format!(
            "echo one > from-first; echo t > /tmp/t; {NAMESPACES}; {WAIT}"
        ))));
        let namespaces = first.line();
        assert_eq!(first.line(), "ready");
        let second = cli.run(in_try(&format!(
            "{NAMESPACES}; cat from-first /tmp/t; echo two > from-second; kill -0 2 && echo sees it; exit 4"
        )));
        assert_eq!(
            second.stdout_text(),
            format!("{namespaces}\none\nt\nsees it\n"),
            "{strategy}: {}",
            second.stderr_text()
        );
        assert_eq!(second.status, 4);
        let expected = "A\tfrom-first\nA\tfrom-second\n";
        assert_eq!(cli.ok("diff try --name-status"), expected);
        assert_eq!(first.finish().status, 0);
        assert_quiet(&world);
        // When no command is inside any more, a new one is made.
        let third = cli.ok(in_try(&format!("{NAMESPACES}; test ! -e /tmp/t")));
        assert_ne!(third.trim_end(), namespaces);
    }
}

/// Whatever a second one is refused in, it is not told that it had it.
#[test]
fn a_second_command_that_asks_for_less_is_not_given_more() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let first = Running::ready(cli.command(in_try(WAIT)));
    let script = "grep -v '|\\| lo:' /proc/net/dev";
    let line = inside("run --plan try --network none", script);
    let outcome = cli.run(line);
    let found = outcome.stdout_text();
    assert_eq!(found, "", "it has a network although it asked for none");
    let script = "echo x > ~/file && echo wrote";
    let line = inside("run --plan try --no-scratch", script);
    assert_eq!(cli.run(line).stdout_text(), "");
    let out = world.dir("out");
    let line = inside("run --plan try --writable ../out", "echo x > ../out/f");
    let outcome = cli.run(line);
    assert_eq!(outcome.status == 0, out.join("f").exists());
    if outcome.status != 0 {
        assert_eq!(outcome.status, 125, "{}", outcome.stderr_text());
    }
    first.finish();
}

/// What the configuration says is about those who make the namespace.
#[test]
fn a_second_command_takes_the_inside_as_it_is_whatever_the_configuration_says() {
    as_user_too();
    let (world, cli) = planned("overlay");
    world.dir("out");
    let usual = "run: {network: none, scratch: false, writable: [out]}\n";
    write(world.at("escrow.yaml"), usual);
    cli.trust();
    let line = "run --plan try --network host --scratch --writable ../other";
    world.dir("other");
    let first = Running::ready(cli.command(inside(line, WAIT)));
    cli.expect(in_try("echo x > ~/file"), 0);
    let refused = cli.run(inside("run --plan try --network none", "true"));
    assert_eq!(refused.status, 125, "what is typed is held against it");
    first.finish();
}

#[test]
fn the_plan_can_be_used_from_outside_meanwhile() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let before = signature(&world.at("app"));
        let script = "echo inside > made-inside; rm link; mkdir late; echo ready
            while ! [ -e made-outside ]; do sleep 0.02; done; cat made-outside a.txt; ls -ln made-outside | cut -c1-10; read x";
        let running = Running::ready(cli.command(in_try(script)));
        assert_eq!(cli.ok("read try app made-inside"), "inside\n");
        let expected = "A\tlate\nD\tlink\nA\tmade-inside\n";
        assert_eq!(cli.ok("diff try --name-status"), expected, "{strategy}");
        put(&cli, "try app a.txt", "rewritten\n");
        put(&cli, "try app late/new/file", "deep\n");
        put(&cli, "try app made-outside", "outside\n");
        assert_eq!(running.line(), "outside");
        assert_eq!(running.line(), "rewritten");
        let path = cli.ok("path try app");
        let path = Path::new(path.trim_end());
        assert_eq!(read(path.join("a.txt")), "rewritten\n");
        assert_eq!(read(path.join("late/new/file")), "deep\n");
        write(path.join("by-path"), "by path\n");
        assert_eq!(cli.ok("read try app by-path"), "by path\n");
        assert_eq!(
            cli.ok("diff try --name-status"),
            "M\ta.txt\nA\tby-path\nA\tlate\nA\tlate/new\nA\tlate/new/file\nD\tlink\nA\tmade-inside\nA\tmade-outside\n",
            "{strategy}"
        );
        assert_eq!(running.finish().status, 1);
        assert_quiet(&world);
        unchanged(&before, world.at("app"));
        cli.ok("commit try");
        assert_eq!(read(world.at("app/late/new/file")), "deep\n");
    }
}

// rule C14
#[test]
fn what_would_pull_the_rug_away_is_refused() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        let running =
            Running::ready(cli.command(in_try(&format!("echo x > f; {WAIT}; echo end >> f"))));
        for line in ["commit try", "rollback try", "cleanup try"] {
            assert_eq!(fails_as(&cli, line, 1), "busy", "{strategy}: {line}");
        }
        cli.ok("commit try --dry-run");
        let line = inside("run --plan try --commit", "true");
        cli.expect(line, 125);
        assert!(!world.at("app/f").exists());
        let start = Instant::now();
        let waits = Running::start(cli.command("commit try --wait"));
        thread::sleep(Duration::from_millis(300));
        assert!(!world.at("app/f").exists());
        assert_eq!(running.finish().status, 0);
        let waited = waits.end();
        assert_eq!(waited.status, 0, "{}", waited.stderr);
        assert!(start.elapsed() >= Duration::from_millis(300));
        assert_eq!(read(world.at("app/f")), "x\nend\n");
        assert_quiet(&world);
    }
}

#[test]
fn a_commit_that_waits_can_be_interrupted() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let running = Running::ready(cli.command(in_try(&format!("echo x > f; {WAIT}"))));
    let waits = Running::start(cli.command("commit try --wait"));
    await_process(&world, "commit try --wait");
    thread::sleep(Duration::from_millis(300));
    waits.signal(Signal::INT);
    assert_eq!(waits.end().status, 130);
    assert_eq!(running.finish().status, 0);
    assert!(!world.at("app/f").exists());
    cli.ok("commit try");
}

/// Two mounts of one layer would be undefined: all that are inside at one time share one.
#[test]
fn many_that_start_at_once_share_one_namespace() {
    as_user_too();
    for _ in 0..3 {
        let (world, cli) = planned("overlay");
        let script = "readlink /proc/self/ns/mnt; echo x > f$$; read nothing || :";
        let start = |_| Running::start(cli.command(in_try(script)));
        let all: Vec<Running> = (0..8).map(start).collect();
        // Meanwhile others look whether any command is inside.
        for _ in 0..3 {
            cli.run("path try app");
        }
        let seen: BTreeSet<String> = all.iter().map(Running::line).collect();
        assert_eq!(seen.len(), 1, "at one time: {seen:?}");
        for running in all {
            running.finish();
        }
        assert_quiet(&world);
    }
}

/// Commands of one plan that come and go all do their work.
#[test]
fn many_short_commands_at_once_all_do_their_work() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let failed: Vec<String> = thread::scope(|scope| {
        let cli = &cli;
        let one = |worker: usize| {
            scope.spawn(move || {
                let mut failed = Vec::new();
                for n in 0..5 {
                    let outcome = cli.run(in_try(&format!("echo {worker} > f{worker}.{n}")));
                    if outcome.status != 0 {
                        failed.push(format!("{}: {}", outcome.status, outcome.stderr_text()));
                    }
                }
                failed
            })
        };
        let running: Vec<_> = (0..4).map(one).collect();
        let ended = running.into_iter().map(|one| one.join());
        ended.flat_map(|said| said.expect("it ends")).collect()
    });
    assert!(failed.is_empty(), "{failed:#?}");
    let listed = cli.ok("diff try --name-status");
    assert_eq!(listed.lines().count(), 20, "{listed}");
    assert_quiet(&world);
}

#[test]
fn a_second_command_that_is_killed_leaves_nothing() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let first = Running::ready(cli.command(in_try(WAIT)));
    let script = "echo ready; exec sleep 1000.75";
    let second = Running::ready(cli.command(in_try(script)));
    await_process(&world, ": sleep 1000.75");
    second.signal(Signal::KILL);
    second.end();
    let until = Instant::now() + PATIENCE;
    let there = || {
        let mut all = processes(&world).into_iter();
        all.any(|line| line.contains("sleep 1000.75"))
    };
    while there() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    let left = there();
    assert_eq!(first.finish().status, 0);
    assert!(!left, "its command goes on without it");
    assert_quiet(&world);
}

/// What a second command left running would write on after its user was reported that it has ended.
#[test]
fn a_second_command_leaves_nothing_running() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let first = Running::ready(cli.command(in_try(WAIT)));
    let script = "(setsid sleep 1000.125 </dev/null >/dev/null 2>&1 &); sleep 0.3";
    cli.ok(in_try(script));
    let mut left = processes(&world);
    left.retain(|line| line.contains("sleep 1000.125"));
    assert_eq!(first.finish().status, 0);
    assert_eq!(left, Vec::<String>::new());
    assert_quiet(&world);
}

/// The first one is the one whose namespace it is: with it ends everything, and the process that is reported is
/// reported so.
#[test]
fn when_the_first_ends_the_second_is_not_lost_silently() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let first = Running::ready(cli.command(in_try(WAIT)));
    let second = Running::ready(cli.command(in_try(&format!("{WAIT}; echo whole > second"))));
    assert_eq!(first.finish().status, 0);
    thread::sleep(Duration::from_millis(300));
    let second = second.finish();
    match second.status {
        0 => assert_eq!(cli.ok("read try app second"), "whole\n"),
        status => {
            assert_eq!(status, 137);
            assert!(second.stderr.contains("ended"), "{}", second.stderr);
        }
    }
    assert_quiet(&world);
}

#[test]
fn two_plans_of_one_original_do_not_meet() {
    as_user_too();
    let (world, cli) = planned("overlay");
    cli.ok("plan create other --resource .");
    let running = Running::ready(cli.command(in_try(&format!(
        "echo try > mine; echo try > /tmp/f; echo try > ~/h; {WAIT}"
    ))));
    let script = "ls /tmp; ls ~; echo other > mine; echo $ESCROW_PLAN";
    assert_eq!(cli.ok(in_plan("other", script)), "other\n");
    let said = cli.ok(in_plan("other", "cat mine; ls /tmp; ls ~"));
    assert_eq!(said, "other\n");
    running.finish();
    assert_eq!(cli.ok("read try app mine"), "try\n");
    assert_eq!(cli.ok("read other app mine"), "other\n");
    cli.ok("commit try");
    // The later one finds what overlaps.
    assert_eq!(cli.run("commit other").status, 4);
    sh(world.at("app"), "grep -q try mine");
    assert_quiet(&world);
}
