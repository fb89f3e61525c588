//! Each option does what it says, and the exit status is the right one.

use std::net::TcpListener;

use crate::*;

/// The names of the plans that are open.
#[track_caller]
fn open(cli: &Cli) -> Vec<String> {
    let status = json(cli, "status");
    let plans = list(&status["plans"]).iter();
    plans
        .map(|plan| plan["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// No plan is left open.
#[track_caller]
fn no_plans(cli: &Cli) {
    assert_eq!(open(cli), Vec::<String>::new());
}

#[test]
fn a_command_that_cannot_be_started_has_the_status_a_shell_gives() {
    as_user_too();
    let (world, cli) = world();
    sh(
        world.at("app"),
        "echo text > text; printf '#!/nonexistent/sh\\n' > script; chmod +x script; mkdir dir",
    );
    for (command, status) in [
        ("no-such-program", 127),
        ("./no-such-file", 127),
        ("/no/such/file", 127),
        ("./text", 126),
        ("./dir", 126),
        ("./a.txt", 126),
    ] {
        for line in ["run", "run --unconfined --strategy filesystem_copy"] {
            let outcome = cli.run(format!("{line} -- {command}"));
            let said = outcome.stderr_text();
            assert_eq!(outcome.status, status, "{line} -- {command}: {said}");
            assert!(said.contains(command), "{said}");
        }
    }
    // Nothing began, so nothing stays.
    no_plans(&cli);
    assert_clean(&world);
}

#[test]
fn a_failure_of_escrow_itself_is_125() {
    as_user_too();
    let (world, cli) = world();
    let before = signature(&world.at("app"));
    let lines = "run --plan no-such-plan -- true; run --resource ./no-such-directory -- true; \
        run --writable ./no-such-path -- true; run --strategy no-such-strategy -- true";
    for line in lines.split("; ") {
        let outcome = cli.expect(line, 125);
        assert!(outcome.stderr_text().contains("error:"), "{line}");
    }
    no_plans(&cli);
    unchanged(&before, world.at("app"));
    assert_clean(&world);
}

/// Without a home directory there is nothing to lay a layer over.
#[test]
fn a_user_without_a_home_directory_can_run_too() {
    as_user_too();
    for home in ["/nonexistent", "/nonexistent/deep", "/dev/null", "", "/"] {
        let (world, cli) = world();
        let cli = cli.env("HOME", home);
        let outcome = cli.run(inside("run", "echo x > f; touch /etc/new 2>/dev/null"));
        assert_eq!(outcome.status, 1, "'{home}': {}", outcome.stderr_text());
        assert_eq!(cli.ok("diff --name-status"), "A\tf\n");
        assert_quiet(&world);
    }
}

#[test]
fn a_plan_for_a_command_that_changes_nothing_is_taken_away() {
    as_user_too();
    let (world, cli) = world();
    let outcome = cli.run(inside("run", "cat a.txt; exit 3"));
    let expected = (3, "one\ntwo\n".to_owned());
    assert_eq!((outcome.status, outcome.stdout_text()), expected);
    assert_eq!(outcome.stderr_text(), "app: no changes\n");
    no_plans(&cli);
    assert_clean(&world);
    let outcome = cli.run(inside("run", "echo x > f; echo $ESCROW_PLAN"));
    let plan = outcome.stdout_text();
    assert!(
        outcome
            .stderr_text()
            .contains(&format!("escrow commit {}", plan.trim_end()))
    );
    assert_eq!(open(&cli).len(), 1);
}

#[test]
fn the_network_can_be_left_out() {
    as_user_too();
    let (_world, cli) = world();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has one").port();
    let script = format!(
        "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n'; echo
        bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo reached"
    );
    cli.says(inside("run --network none", &script), "lo\n");
    let outcome = cli.run(inside("run --network host", &script));
    assert!(outcome.stdout_text().ends_with("reached\n"));
    // Without a word the machine's loopback is not the plan's.
    cli.says(inside("run", &script), "loeth0\n");
}

#[test]
fn writable_paths_are_written_for_real() {
    as_user_too();
    for world in [
        World::under(Path::new("/var/tmp")),
        World::new(),
        World::odd(),
    ] {
        let (world, cli) = furnish(world);
        let (out, file) = (world.dir("out"), world.at("log"));
        write(&file, "log\n");
        let line = "run --writable ../out --writable ../log";
        let script = "echo x > ../out/f; mkdir ../out/d; echo more >> ../log; echo y > g; touch ../new 2>/dev/null; exit 0";
        cli.expect(inside(line, script), 0);
        assert_eq!(read(out.join("f")), "x\n");
        assert_eq!(read(&file), "log\nmore\n");
        assert!(!world.at("new").exists());
        assert_eq!(cli.ok("diff --name-status"), "A\tg\n");
        assert_quiet(&world);
    }
}

/// It says "for real", so it must not mean the sandbox.
#[test]
fn a_writable_path_in_the_resource_is_written_for_real_or_refused() {
    as_user_too();
    let (world, cli) = world();
    let outcome = cli.run(inside(
        "run --writable src",
        "echo x > src/real; echo y > sandbox",
    ));
    let real = world.at("app/src/real");
    match outcome.status {
        0 => {
            assert!(real.exists(), "it went into the sandbox");
            assert_eq!(cli.ok("diff --name-status"), "A\tsandbox\n");
        }
        status => assert_eq!(status, 125, "{}", outcome.stderr_text()),
    }
}

#[test]
fn the_home_directory_has_a_layer_that_is_thrown_away() {
    as_user_too();
    for end in ["commit try", "rollback try", "cleanup try"] {
        let (world, cli) = world();
        let home = world.dir("user-home");
        let script = "mkdir .local .cache; echo keys > .local/authorized_keys; echo rc > .profile";
        sh(&home, script);
        let before = signature(&home);
        cli.ok("plan create try --resource .");
        let script = "cd; echo evil >> .local/authorized_keys; rm .profile; echo x > .cache/c; echo z > new; cd - >/dev/null; echo y > f";
        let outcome = cli.run(in_try(script));
        let said = outcome.stderr_text();
        has(&said, ["in the home directory, never committed: "]);
        has(
            &said,
            [
                "escrow diff --scratch try",
                "~/.cache/c  2 B, 1 file",
                "--keep PATH",
            ],
        );
        let listed = "A\t.cache/c\nM\t.local/authorized_keys\nD\t.profile\nA\tnew\n";
        assert_eq!(cli.ok("diff try --scratch --name-status"), listed);
        assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
        unchanged(&before, &home);
        // It is there for the next command of the plan.
        let again = cli.ok(in_try("cat ~/new; test ! -e ~/.profile && echo gone"));
        assert_eq!(again, "z\ngone\n");
        // And not for one without it.
        let script = "ls ~/new ~/.profile 2>/dev/null; (echo x > ~/new) 2>/dev/null || echo closed";
        let without = cli.ok(inside("run --plan try --no-scratch", script));
        let expected = format!("{}\nclosed\n", home.join(".profile").display());
        assert_eq!(without, expected);
        cli.ok(end);
        unchanged(&before, &home);
        if end == "rollback try" {
            assert_eq!(cli.ok("diff try --scratch --name-status"), "");
            cli.ok(in_try("test -e ~/.profile && test ! -e ~/new"));
        }
        cli.ok("cleanup try");
        assert_clean(&world);
    }
}

#[test]
fn a_path_in_the_home_directory_can_be_kept() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user-home");
    sh(&home, "mkdir tool other more; echo old > tool/settings");
    let script =
        "echo new > ~/tool/settings; echo x > ~/other/lost; echo y > ~/more/also; echo z > z";
    let mut line = words("run --keep");
    line.push(home.join("tool").into());
    line.extend(inside("--commit", script));
    write(world.at("app/escrow.yaml"), "run: {keep: [~/more]}\n");
    let said = cli.clone().expect(line.clone(), 0).stderr_text();
    has(&said, ["is not trusted", "~/more"]);
    sh(
        &home,
        "test \"$(cat tool/settings)\" = new; test ! -e other/lost; test ! -e more/also",
    );
    cli.trust();
    cli.ok(line);
    sh(&home, "test -e more/also; test ! -e other/lost");
    assert_quiet(&world);
}

/// The usual case: a project in the home directory, and the state where it is by default.
#[test]
fn a_resource_in_the_home_directory_is_apart_from_its_layer() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = world();
        let home = world.path().to_owned();
        sh(&home, "chmod 0700 .; rm -r escrow-home");
        let cli = cli.env("HOME", &home).env("ESCROW_HOME", "");
        let line = format!("run --strategy {strategy}");
        let script = "echo x > f; echo y > ~/g; echo z > ../app/h; rm -rf ~/tmp ~/user-home; ls -A ~/.local/share/escrow";
        cli.says(inside(&line, script), "");
        assert_eq!(cli.ok("diff --name-status"), "A\tf\nA\th\n");
        let listed = cli.ok("diff --scratch --name-status");
        assert_eq!(listed, "A\tg\nD\ttmp\nD\tuser-home\n");
        assert!(home.join("tmp").exists() && !home.join("g").exists());
        cli.ok("commit");
        assert_eq!(read(home.join("app/f")), "x\n");
        assert!(home.join("user-home").exists() && !home.join("g").exists());
    }
}

#[test]
fn variables_are_set_and_passed_on() {
    as_user_too();
    let (world, cli) = world();
    let cli = cli
        .env("KEPT", "kept")
        .env("CHANGED", "old")
        .env("VOID", "");
    let line = "run --env NEW=a=b --env CHANGED=new --env EMPTY= -e KEPT --env VOID";
    let script = "echo \"$KEPT $CHANGED $NEW <${EMPTY-unset}> $ESCROW_PLAN $PWD\"";
    let said = cli.ok(inside(line, script));
    let here = world.at("app");
    assert_eq!(said, format!("kept new a=b <> app {}\n", here.display()));
    for wrong in ["NOVALUE", "=x", ""] {
        let line = [
            words("run"),
            vec!["--env".into(), wrong.into()],
            words("-- true"),
        ];
        let said = cli.fails(line.concat(), 2);
        assert!(said.contains("NAME=VALUE"), "{said}");
    }
    no_plans(&cli);
    // Any byte but NUL.
    let odd = OsString::from_vec(b"ODD=\xff\n\x01".to_vec());
    let line = [
        words("run --env"),
        vec![odd],
        inside("", "printf %s \"$ODD\" | od -An -tx1"),
    ];
    assert_eq!(cli.ok(line.concat()), " ff 0a 01\n");
}

/// As `env PATH=… program` does.
#[test]
fn the_path_that_was_set_is_the_one_that_is_searched() {
    as_user_too();
    let (world, cli) = world();
    let bin = world.dir("bin");
    write(bin.join("only-here"), "#!/bin/sh\necho found\n");
    sh(&bin, "chmod +x only-here");
    let mut path = OsString::from("PATH=");
    path.push(&bin);
    path.push(":/usr/bin:/bin");
    let line = [words("run --env"), vec![path], words("-- only-here")];
    assert_eq!(cli.ok(line.concat()), "found\n");
}

#[test]
fn words_and_streams_are_passed_on_byte_for_byte() {
    as_user_too();
    let (_world, cli) = world();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();
    let outcome = cli.clone().stdin(&bytes).run("run -- cat");
    assert!(outcome.stdout == bytes, "a pipe from end to end");
    let mut line = words("run -- printf %s/");
    line.extend(["", "-x", "--commit", "$(id)", "a b", "'"].map(OsString::from));
    line.push(OsString::from_vec(b"\xff\xfe\n".to_vec()));
    let outcome = cli.run(line);
    assert_eq!(outcome.stdout, b"/-x/--commit/$(id)/a b/'/\xff\xfe\n/");
    let outcome = cli.says(inside("run", "echo out; echo err >&2"), "out\n");
    assert!(outcome.stderr_text().starts_with("err\n"));
}

#[test]
fn a_command_that_succeeds_is_committed_if_asked() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = world();
        let app = world.at("app");
        let before = signature(&app);
        let line = format!("run --strategy {strategy} --commit");
        // One that fails is not.
        cli.expect(inside(&line, "echo x > f; exit 9"), 9);
        unchanged(&before, &app);
        assert_eq!(cli.ok("diff --name-status"), "A\tf\n");
        cli.ok("cleanup");
        let outcome = cli.expect(inside(&line, "echo x > f; rm link; echo $ESCROW_PLAN"), 0);
        assert!(outcome.stderr_text().contains("escrow undo"));
        assert_eq!(read(app.join("f")), "x\n");
        assert!(app.join("link").symlink_metadata().is_err());
        let plan = outcome.stdout_text();
        cli.ok(format!("undo {plan}"));
        unchanged(&before, &app);
        cli.ok(format!("cleanup {plan}"));
        assert_clean(&world);
        // Nothing to commit.
        assert_eq!(cli.run(inside(&line, "true")).status, 0);
    }
}

#[test]
fn a_commit_at_the_end_that_conflicts_is_told() {
    as_user_too();
    let (world, cli) = world();
    let app = world.at("app");
    let mut line = words("run --commit --writable");
    line.push(world.dir("out").into());
    // The edit is made from outside, while the command waits for it.
    let script =
        "echo inside > a.txt; echo > ../out/now; while ! [ -e ../out/done ]; do sleep 0.02; done";
    line.extend(inside("", script));
    let running = crate::running::Running::start(cli.command(line));
    while !world.at("out/now").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    write(app.join("a.txt"), "outside\n");
    write(world.at("out/done"), "");
    let ended = running.finish();
    assert_eq!(ended.status, 125, "{}", ended.stderr);
    assert!(ended.stderr.contains("conflict"), "{}", ended.stderr);
    assert_eq!(read(app.join("a.txt")), "outside\n");
    assert_eq!(cli.ok("diff --name-status"), "M\ta.txt\n");
}

#[test]
fn a_command_can_be_tried_and_discarded() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = world();
        let before = signature(&world.at("app"));
        let outcome = cli.expect(
            inside(
                &format!("run --strategy {strategy} --rollback"),
                "rm -rf * .[a-z]*; echo x > f; exit 8",
            ),
            8,
        );
        let said = outcome.stderr_text();
        has(&said, ["deleted", "discarded"]);
        unchanged(&before, world.at("app"));
        assert_quiet(&world);
    }
    let (_world, cli) = world();
    cli.fails("run --commit --rollback -- true", 2);
}

#[test]
fn without_protection_it_runs_in_the_sandbox_itself() {
    as_user_too();
    let (world, cli) = world();
    let before = signature(&world.at("app"));
    cli.ok("plan create try --resource . --strategy filesystem_copy");
    let line = "run --plan try --unconfined";
    let outcome = cli.expect(inside(line, "echo x > f; pwd; exit 7"), 7);
    let place = cli.ok("path try app");
    assert_eq!(outcome.stdout_text(), place);
    assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
    unchanged(&before, world.at("app"));
    assert_eq!(cli.run(inside(line, "kill -9 $$")).status, 137);
    for with in ["--writable .", "--no-scratch", "--network none"] {
        cli.fails(format!("{line} {with} -- true"), 2);
    }
    // A layer has no directory of its own.
    cli.expect("run --strategy overlay --unconfined -- true", 125);
    assert_eq!(open(&cli).len(), 1);
    assert_quiet(&world);
}

/// Spaces, quotes, a comma, a colon, a backslash, and a byte that is no text, in the path of everything.
// rule S4, F5
#[test]
fn odd_places_are_places_like_others() {
    as_user_too();
    for strategy in STRATEGIES {
        for world in [World::odd(), World::odd_under(Path::new("/var/tmp"))] {
            let (world, cli) = furnish(world);
            let odd = OsStr::from_bytes(b"sub, \"x\":\\ \n\xfe");
            let sub = world.at("app").join(odd);
            fs::create_dir(&sub).expect("it is free");
            let before = signature(&world.at("app"));
            cli.plan("try", ".", strategy);
            // It begins where its user is.
            let here = cli.clone().cwd(&sub);
            let outcome = here.run(in_try(
                "pwd; echo x > f; cat ../a.txt; echo y > ~/h; ls -A \"$STATE\" 2>&1 | wc -l",
            ));
            let mut said = sub.as_os_str().as_bytes().to_vec();
            said.extend_from_slice(b"\none\ntwo\n1\n");
            assert!(outcome.stdout == said, "{strategy}: {outcome:?}");
            assert_eq!(outcome.status, 0);
            unchanged(&before, world.at("app"));
            cli.ok("diff try --scratch");
            cli.ok("commit try");
            assert_eq!(read(sub.join("f")), "x\n");
            cli.ok("cleanup try");
            assert_clean(&world);
        }
    }
}

#[test]
fn it_begins_where_its_user_is() {
    as_user_too();
    let (world, cli) = planned("auto");
    for place in ["app/src", "app", ".", "user-home", "/usr/bin", "/"] {
        let place = world.at(place);
        let place = place.canonicalize().expect("it is there");
        let said = cli.clone().cwd(&place).ok("run --plan try -- pwd");
        assert_eq!(said, format!("{}\n", place.display()));
    }
    // In a place that is not there inside, it says so.
    let elsewhere = World::new();
    cli.clone()
        .cwd(elsewhere.path())
        .expect("run --plan try -- pwd", 125);
}

#[test]
fn many_resources_appear_each_at_its_path() {
    as_user_too();
    let (world, cli) = world();
    let cli = cli.cwd(world.path());
    let script = "mkdir -p lib data; echo l > lib/l; echo d > data/d";
    sh(world.path(), script);
    let before = signature(world.path());
    cli.ok("plan create try --resource ./app --resource ./lib --strategy overlay");
    cli.ok("sandbox create try ./data --strategy filesystem_copy");
    let script = "echo 1 > app/1; echo 2 > lib/2; rm lib/l; echo 3 >> data/d; mv app/a.txt data/; (echo x > x) 2>/dev/null; :";
    cli.ok(in_try(script));
    let only_app = |sig: &mut escrow_testkit::signature::Sig| {
        sig.retain(|path, _| {
            ["app", "lib", "data"]
                .iter()
                .any(|name| path.starts_with(name.as_bytes()))
        });
    };
    let (mut before, mut after) = (before, signature(world.path()));
    only_app(&mut before);
    only_app(&mut after);
    assert_same(&before, &after, &Ignore::default());
    assert!(!world.at("x").exists());
    let listed = cli.ok("diff try --name-status");
    for line in ["A\t1", "D\ta.txt", "A\t2", "D\tl", "M\td", "A\ta.txt"] {
        assert!(listed.lines().any(|one| one == line), "{line}: {listed}");
    }
    cli.ok("commit try");
    assert_eq!(read(world.at("data/a.txt")), "one\ntwo\n");
    assert_eq!(read(world.at("data/d")), "d\n3\n");
    assert!(!world.at("lib/l").exists());
    assert_quiet(&world);
}

/// One resource in another: the inner one is seen in the outer one.
#[test]
fn a_resource_in_another_is_seen_in_it() {
    as_user_too();
    let (world, cli) = world();
    cli.ok("resource add outer --at .");
    cli.ok("resource add inner --at src --parent outer");
    cli.expect("plan create try --resource outer --resource inner", 0);
    cli.ok(in_try("echo o > new; echo i > src/new; cat src/main.rs"));
    assert!(!world.at("app/src/new").exists());
    cli.ok("commit try");
    assert_eq!(read(world.at("app/src/new")), "i\n");
    assert_eq!(read(world.at("app/new")), "o\n");
    assert_quiet(&world);
}

/// What is inherited by every program is inherited inside.
#[test]
fn umask_and_limits_are_those_of_the_user() {
    as_user_too();
    let (world, cli) = world();
    let limit = "umask 027; ulimit -n 321; exec \"$0\" \"$@\"";
    let script = "umask; ulimit -n; echo x > f; echo y > /tmp/private";
    let line = inside("run --commit", script);
    let mut command = cli.behind(&["sh", "-c", limit], line);
    let output = command.output().expect("there is a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0027\n321\n");
    assert_eq!(mode(world.at("app/f")), 0o640);
    assert!(!Path::new("/tmp/private").exists());
}

#[test]
fn a_run_that_is_refused_says_why_as_json_too() {
    as_user_too();
    let (_world, cli) = world();
    fails_as(&cli, "run -- /no/such/program", 127);
    let kind = fails_as(&cli, "run --resource ./no-such-directory -- true", 125);
    assert_ne!(kind, "usage");
}

/// As on a machine that forbids user namespaces: they can be nested only so deep.
#[test]
fn where_namespaces_are_forbidden_it_says_so_and_goes_on_only_when_told() {
    as_user_too();
    if is_root() {
        // Root needs none.
        return;
    }
    let (_world, cli) = world();
    cli.ok("plan create try --resource . --strategy filesystem_copy");
    let again = "unshare --map-current-user true 2>/dev/null && exec unshare --map-current-user sh -c \"$0\" \"$0\" \"$1\"; eval \"$1\"";
    let script = |line: &str| {
        let model = match line {
            "doctor" => cli.command(line),
            line => cli.command(inside(line, "echo x > f")),
        };
        let quote = |word: &OsStr| format!("'{}'", word.to_string_lossy());
        let words = model.get_args().map(quote);
        let words: Vec<String> = [quote(model.get_program())]
            .into_iter()
            .chain(words)
            .collect();
        let outer = ["sh", "-c", again, again, &words.join(" ")];
        let mut command = cli.behind(&outer, "");
        command.output().expect("there is a shell")
    };
    let refused = script("run --plan try");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{said}");
    has(&said, ["namespaces", "escrow doctor"]);
    // No hint recommends to give up protection.
    lacks(&said, ["--unconfined"]);
    let doctor = String::from_utf8_lossy(&script("doctor").stdout).into_owned();
    let wall = doctor.lines().find(|line| line.contains("  namespaces  "));
    assert!(wall.is_some_and(|line| line.contains("not  ")), "{doctor}");
    assert_eq!(cli.ok("diff try --name-status"), "");
    let told = script("run --plan try --unconfined");
    let holds = told.status.success();
    assert!(holds, "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
}

/// A plan with many layers needs more open files than many a shell permits; what it runs keeps the shell's limit.
#[test]
fn many_layers_are_opened_under_a_low_limit() {
    let (world, cli) = world();
    let script = world.at("limited");
    let text = format!(
        "#!/bin/sh\nulimit -Sn 64; exec '{}' \"$@\"\n",
        binary().display()
    );
    write(&script, text);
    chmod(&script, 0o755);
    let limited = Cli::new(&world, &script).cwd(world.at("app"));
    cli.ok("plan create try --resource . --strategy overlay");
    for n in 0..40 {
        put(&cli, &format!("try app f{n}"), "x\n");
        cli.ok(format!("checkpoint create try -m n{n}"));
    }
    let listed = limited.ok("diff try --name-status");
    assert_eq!(listed.lines().count(), 40, "{listed}");
    let ran = limited.ok(inside("-q run --plan try", "ls; ulimit -Sn"));
    assert!(ran.contains("f39\n") && ran.ends_with("\n64\n"), "{ran}");
    let line = "-q run --strategy filesystem_copy --unconfined";
    assert_eq!(limited.ok(inside(line, "ulimit -Sn")), "64\n");
}

/// Who can replace what holds the state can replace the state, and with it what is undone.
// attack D27
#[test]
fn d27_the_state_was_replaced_through_a_path_above_it() {
    as_user_too();
    let (world, cli) = world();
    cli.plan("try", ".", "filesystem_copy");
    let (home, above) = (world.home(), world.path().to_owned());
    for path in [&above, &home, &home.join("sandboxes")] {
        let mut line = words("run --plan try --writable");
        line.push(path.into());
        line.extend(words("-- true"));
        let outcome = cli.expect(line, 125);
        has(&outcome.stderr_text(), ["cannot be made writable", "lie"]);
    }
    let path = world.dir("beside");
    let mut line = words("run --plan try --writable");
    line.push(path.into());
    line.extend(words("-- true"));
    cli.ok(line);
}

/// Another process's files, and files for others, do not go through it.
#[test]
fn the_other_directory_of_temporary_files_is_private_too() {
    as_user_too();
    let (_world, cli) = furnish(World::new());
    let name = format!("escrow-test-{}", std::process::id());
    let left = Path::new("/var/tmp").join(&name);
    write(&left, "precious\n");
    let script = format!("ls -A /var/tmp; echo x > /var/tmp/{name} && cat /var/tmp/{name}");
    cli.says(inside("run --rollback", &script), "x\n");
    assert_eq!(read(&left), "precious\n");
    remove(left);
}

/// A socket in the home directory leads to a helper of the user, also where the home directory is read-only.
// attack D12
#[test]
fn d12_sockets_in_the_home_directory_are_out_of_reach() {
    as_user_too();
    let (world, cli) = world();
    crate::attacks::compile(&world.at("app"), "connect", crate::attacks::CONNECT);
    let home = world.dir("user-home");
    let path = home.join("agent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("it is ours");
    let outside = Command::new(world.at("app/connect")).arg(&path).status();
    assert!(
        outside.expect("it starts").success(),
        "the test can find what it looks for"
    );
    for line in ["run --rollback --new", "run --rollback --new --no-scratch"] {
        let script = "./connect ~/agent.sock || echo unreachable";
        cli.says(inside(line, script), "unreachable\n");
    }
}
