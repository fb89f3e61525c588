//! Validations of the configuration while others work, and when they are killed: what is released is what was checked,
//! and no other work goes with what they wrote. And what a policy says of the process that runs a command.

use rustix::process::Signal;

use crate::*;

/// A validation that writes, and goes on when it may.
const PATIENT: &str =
    "validate:\n  - 'echo x > left-by-validation; while [ ! -e ../go ]; do sleep 0.02; done'\n";

fn planned(strategy: &str, rules: &str) -> (World, Cli) {
    let (world, cli) = world();
    write(world.at("escrow.yaml"), rules);
    cli.trust();
    cli.plan("try", ".", strategy);
    (world, cli)
}

/// What a validation wrote, as long as it is there.
fn fork(world: &World) -> Option<PathBuf> {
    let areas = fs::read_dir(world.home().join("sandboxes")).expect("there are areas");
    let areas = areas.map(|area| area.expect("it can be listed").path().join("validation"));
    areas.into_iter().find(|fork| fork.exists())
}

/// A commit whose validation has begun.
fn committing(world: &World, cli: &Cli, line: &str) -> Running {
    let commit = Running::start(cli.command(line));
    let written = |fork: PathBuf| fork.join("0/upper/left-by-validation").exists();
    while !fork(world).is_some_and(written) {
        thread::sleep(Duration::from_millis(5));
    }
    commit
}

/// Tries until it works: what a killed process left may take a while to end.
fn at_last(cli: &Cli, line: &str) -> String {
    let wait = Instant::now();
    loop {
        let outcome = cli.run(line);
        if outcome.status == 0 {
            return outcome.stdout_text();
        }
        let holds = wait.elapsed().as_secs() < 60;
        assert!(holds, "{line}: {}", outcome.stderr_text());
    }
}

fn go_on(world: &World) {
    write(world.at("go"), "");
}

/// What a validation writes is taken back, and with it would go what a command inside did meanwhile.
// rule R3
#[test]
fn nothing_is_validated_under_a_command() {
    for strategy in STRATEGIES {
        let rules = "validate:\n  - 'echo x > left-by-validation'\n";
        let (world, cli) = planned(strategy, rules);
        let command = Running::ready(cli.command(in_try(&format!(
            "echo early > early; {WAIT}; echo late > late"
        ))));
        for line in ["commit try", "commit try --only early"] {
            let said = cli.fails(line, 1);
            assert!(said.contains("a command runs inside"), "{strategy}: {said}");
        }
        command.finish();
        let listed = cli.ok("diff try --name-status");
        assert_eq!(listed, "A\tearly\nA\tlate\n", "{strategy}");
        let kept = json(&cli, "checkpoint list try").to_string();
        assert!(!kept.contains("validation"), "{kept}");
        cli.ok("commit try");
        let app = world.at("app");
        let released = |name: &str| app.join(name).exists();
        assert!(released("late"), "{strategy}");
        assert!(!released("left-by-validation"), "{strategy}");
    }
}

/// A process that comes meanwhile waits: what he does is neither released unjudged nor lost.
// rule R3, C1
#[test]
fn other_commands_wait_for_the_release() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy, PATIENT);
        cli.ok(inside(
            "-q run --plan try",
            "echo early > early; echo more > more",
        ));
        let commit = committing(&world, &cli, "commit try --only early");
        let mut writer = Running::start(cli.command("write try app precious"));
        writer.type_line("precious");
        let runner = Running::start(cli.command(in_try("echo run > run")));
        thread::sleep(Duration::from_millis(200));
        go_on(&world);
        let done = commit.finish();
        assert_eq!(done.status, 0, "{strategy}: {}", done.stderr);
        for done in [writer.finish(), runner.finish()] {
            assert_eq!(done.status, 0, "{strategy}: {}", done.stderr);
        }
        let app = world.at("app");
        let there = |name: &str| app.join(name).exists();
        assert!(there("early") && !there("more"), "{strategy}");
        let listed = cli.ok("diff try --name-status");
        assert_eq!(listed, "A\tmore\nA\tprecious\nA\trun\n", "{strategy}");
        cli.ok("commit try");
        assert!(there("precious") && there("run"), "{strategy}");
        assert!(!there("left-by-validation"), "{strategy}");
        assert_eq!(fork(&world), None, "{strategy}");
    }
}

/// What a validation wrote whose process was killed is no other work.
// rule R3, C1
#[test]
fn a_validation_that_was_killed_leaves_nothing() {
    as_user_too();
    for strategy in STRATEGIES {
        for next in ["diff try --name-status", "commit try", "recover"] {
            let (world, cli) = planned(strategy, PATIENT);
            cli.ok(inside("-q run --plan try", "echo early > early"));
            let mut commit = committing(&world, &cli, "commit try");
            commit.signal(Signal::KILL);
            commit.gone();
            go_on(&world);
            let said = at_last(&cli, next);
            if next == "recover" {
                while fork(&world).is_some() {
                    at_last(&cli, next);
                }
            }
            if next != "commit try" {
                let listed = cli.ok("diff try --name-status");
                assert_eq!(listed, "A\tearly\n", "{strategy}: {next}: {said}");
                at_last(&cli, "commit try");
            }
            let app = world.at("app");
            assert!(app.join("early").exists(), "{strategy}");
            assert!(!app.join("left-by-validation").exists(), "{strategy}");
            assert_eq!(fork(&world), None, "{strategy}: {next}");
        }
    }
}

/// A validation sees what is to be released at its usual paths, files too, and what earlier commands left in the home
/// directory; it changes none of them, and can ask nothing.
// rule R3
#[test]
fn a_validation_changes_nothing_of_the_plan() {
    as_user_too();
    let rules = "validate:\n  - 'grep -q new ../one.txt && ! test -e ~/.tool && grep -q early early'\n  \
        - 'echo x > ../one.txt; echo y > ~/.tool; chmod 0700 .; rm early; mkdir early; touch early/late'\n  \
        - 'test -e early/late && grep -q x ../one.txt && grep -q y ~/.tool && ! \"$ESCROW_E\" diff > /dev/null 2>&1'\n";
    let (world, cli) = world();
    write(world.at("one.txt"), "old\n");
    write(world.at("escrow.yaml"), rules);
    cli.trust();
    let program = cli.command("status").get_program().to_owned();
    let cli = cli.env("ESCROW_E", program);
    cli.ok("plan create try --resource . --resource ../one.txt");
    let work = "echo early > early; echo new > ../one.txt; echo tool > ~/.tool";
    cli.ok(inside("-q run --plan try", work));
    let before = (cli.ok("diff try --patch"), cli.ok("diff try --scratch"));
    cli.expect("commit try --exclude early", 0);
    assert_eq!(read(world.at("one.txt")), "new\n");
    let app = world.at("app");
    assert!(!app.join("early").exists());
    let after = (cli.ok("diff try --patch"), cli.ok("diff try --scratch"));
    assert!(before.0.contains("+early") && after.0.contains("+early"));
    assert_eq!(before.1, after.1);
    cli.ok("commit try");
    assert_eq!(read(app.join("early")), "early\n");
}

/// That a validation cannot even begin is a validation that failed.
#[test]
fn a_validation_that_cannot_be_run_stops_the_commit() {
    let (world, cli) = planned("overlay", "validate:\n  - [no-such-program-at-all]\n");
    cli.ok(inside("-q run --plan try", "echo early > early"));
    // What goes wrong with `run` itself has a status that commands seldom have.
    let lines = [
        ("--json commit try", 1),
        ("--json run --plan try --commit -- true", 125),
    ];
    for (line, status) in lines {
        let outcome = cli.run(line);
        assert_eq!(outcome.status, status, "{line}: {}", outcome.stderr_text());
        let said = outcome.stdout_text();
        has(&said, ["nothing was committed", "\"committed\": false"]);
    }
    assert!(!world.at("app/early").exists());
    assert_eq!(cli.ok("diff try --name-status"), "A\tearly\n");
}

/// What a command changed is reported as a courtesy: who may not see it is reported so, everything else goes
/// on, and nothing is in the log that the user did not ask for.
// rules S6, S7
#[test]
fn a_principal_without_diff_may_still_run() {
    as_user_too();
    let (world, cli) = world();
    let rule = "{ allow: [create, run, commit, rollback], principal: blind, scope: '*' }";
    let text = format!("policy:\n  mode: enforce\n  rules:\n    - {rule}\n");
    write(world.at("escrow.yaml"), &text);
    let cli = cli.env("ESCROW_PRINCIPAL", "blind");
    let plans = || list(&json(&cli, "status")["plans"]).len();
    let not_shown = "cannot show the changes: 'blind' may not diff 'app'";
    for (line, script, status, stay) in [
        ("run", "echo x > f; exit 7", 7, 1),
        ("run", "exit 8", 8, 1),
        ("run --new --rollback", "echo x > g; exit 9", 9, 1),
        ("run --new --commit", "echo x > h", 0, 1),
        ("run --new --commit", "echo x > i; exit 3", 3, 2),
    ] {
        let outcome = cli.run(inside(line, script));
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, status, "{line} {script}: {said}");
        let told = said.lines().filter(|one| one.contains("may not")).count();
        assert!(told == 1, "{line} {script}: {said}");
        assert!(said.contains(not_shown), "{line} {script}: {said}");
        assert_eq!(plans(), stay, "{line} {script}: {said}");
    }
    let app = world.at("app");
    let there = ["f", "g", "h", "i"].map(|name| app.join(name).exists());
    assert_eq!(there, [false, false, true, false]);
    let said = cli.fails("run --plan app -- no-such-program-at-all", 127);
    assert!(said.contains("no-such-program-at-all"), "{said}");
    let denied = || {
        let log = json(&cli, "log");
        let all = list(&log["operations"]).iter();
        all.filter(|one| one["outcome"] == "denied").count()
    };
    assert_eq!(denied(), 0);
    cli.fails("diff app", 3);
    assert_eq!(denied(), 1, "what somebody asked for is in the log");
}

/// What a command of the plan left decided what its validation ran: a program in the scratch home, or in the tree, where the
/// search path of the user leads.
// attack D21
#[test]
fn d21_a_program_that_the_command_left_passed_its_own_validation() {
    as_user_too();
    let (world, cli) = world();
    write(world.at("escrow.yaml"), "validate: [make check]\n");
    cli.trust();
    write(world.at("app/Makefile"), "check:\n\t@test ! -e evil\n");
    let home = world.dir("user");
    symlink(world.at("app/tools"), world.at("linked"));
    let mut path: Vec<PathBuf> = ["user/bin", "app/bin", "app/new/bin", "linked"]
        .map(|dir| world.at(dir))
        .into();
    path.extend([PathBuf::from("."), PathBuf::from("")]);
    path.extend(std::env::split_paths("/usr/local/bin:/usr/bin:/bin"));
    let cli = cli.env("HOME", &home).env(
        "PATH",
        std::env::join_paths(path).expect("no name has a colon"),
    );
    cli.plan("try", ".", "overlay");
    let script = "for dir in . bin new/bin tools $HOME/bin; do
            mkdir -p $dir; printf '#!/bin/sh\\nexit 0\\n' > $dir/make; chmod +x $dir/make
        done; touch evil; make check && echo passes inside";
    cli.says(in_try(script), "passes inside\n");
    let said = cli.fails("commit try", 1);
    has(&said, ["make check", "ended with status"]);
    assert!(!world.at("app/evil").exists());
    // What the user has outside is there, in the home directory too.
    sh(
        &home,
        "mkdir bin; printf '#!/bin/sh\\nexit 0\\n' > bin/make; chmod +x bin/make",
    );
    cli.ok("commit try");
    assert!(world.at("app/evil").exists());
}

/// A validation could send what it saw, and do what something outside told it to.
// attack D21
#[test]
fn d21_a_validation_reached_the_network_without_being_declared() {
    as_user_too();
    let (world, cli) = world();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a loopback");
    let port = listener.local_addr().expect("it has one").port();
    let reach = format!("bash -c ': < /dev/tcp/127.0.0.1/{port}'");
    let configure = |text: String| {
        write(world.at("escrow.yaml"), text);
        cli.trust();
    };
    configure(format!(
        "validate: [\"! {reach} 2>&1 | grep -v refused\"]\n"
    ));
    cli.plan("try", ".", "overlay");
    cli.ok(in_try("echo x > f"));
    // Refused, not unreachable: the namespace has a loopback of its own, which is up.
    cli.ok("commit try --dry-run");
    cli.ok("commit try");
    cli.plan("more", ".", "overlay");
    cli.ok(in_plan("more", "echo y > f"));
    configure(format!("validate: [\"{reach}\"]\n"));
    cli.fails("commit more", 1);
    configure(format!(
        "validate: [{{command: \"{reach}\", network: host}}]\n"
    ));
    cli.ok("commit more");
    assert_eq!(read(world.at("app/f")), "y\n");
    // A file that is not trusted declares nothing, and says what it would.
    write(
        world.at("escrow.yaml"),
        "validate: [{command: 'true', network: host, more: 1}]\n",
    );
    cli.fails("type validate ../escrow.yaml", 2);
}
