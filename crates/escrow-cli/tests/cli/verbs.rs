//! The verbs, one promise a test.

use std::io::Write;

use crate::*;

fn sandbox_path(cli: &Cli, plan: &str, resource: &str) -> PathBuf {
    let mut path = cli.run(["path", plan, resource]).stdout;
    assert_eq!(path.pop(), Some(b'\n'));
    PathBuf::from(OsString::from_vec(path))
}

#[test]
fn a_pipe_from_read_to_write_does_not_wait_for_itself() {
    let (_world, cli) = planned_app("auto");
    let mut read = cli
        .command("read try app a.txt")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let out = read.stdout.take().expect("it is piped");
    let write = cli.command("write try app copy.txt").stdin(out).status();
    assert!(write.expect("it starts").success());
    assert!(read.wait().expect("it ends").success());
    assert_eq!(cli.ok("read try app copy.txt"), "one\ntwo\nthree\n");
}

#[test]
fn a_writer_whose_source_never_ends_blocks_no_other() {
    let (_world, cli) = planned_app("auto");
    let mut slow = cli
        .command("write try app slow.txt")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut source = slow.stdin.take().expect("it is piped");
    source.write_all(b"the beginning").expect("it listens");
    put(&cli, "try app quick.txt", "quick");
    assert_eq!(cli.ok("diff try --name-status"), "A\tquick.txt\n");
    drop(source);
    assert!(slow.wait().expect("it ends").success());
    assert_eq!(cli.ok("read try app slow.txt"), "the beginning");
}

#[test]
fn large_content_goes_through_whole() {
    let (world, cli) = world();
    let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    write(world.at("large"), &large);
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app from-stdin", &large);
    cli.ok("write try app from-file --from large");
    for name in ["from-stdin", "from-file"] {
        let holds = cli.run(["read", "try", "app", name]).stdout == large;
        assert!(holds, "{name}");
    }
}

// rule P3, P4
#[test]
fn a_sandbox_is_made_once_and_found_again_by_every_process() {
    let (_world, cli) = world();
    cli.ok("plan create try");
    let first = json(&cli, "sandbox create try ./app");
    assert_eq!(first["created"], true);
    let second = json(&cli, "sandbox create try app --strategy filesystem_copy");
    assert_eq!(second["created"], false);
    assert_eq!(second["sandbox_id"], first["sandbox_id"]);
}

#[test]
fn a_plan_is_found_by_name_id_prefix_or_place() {
    as_user_too();
    let (world, cli) = world();
    let other = world.dir("elsewhere");
    let first = json(&cli, "plan create alpha --resource ./app");
    json(&cli, "plan create alpine");
    let id = first["id"].as_str().expect("an id").to_owned();
    for typed in ["alpha", &id, &id[..30], &id["plan_".len()..], "alph"] {
        assert_eq!(
            json(&cli, &format!("plan show {typed}"))["name"],
            "alpha",
            "{typed}"
        );
    }
    assert!(
        cli.fails("plan show alp", 2)
            .contains("could be any of 2 plans")
    );
    // Left out: the open plan that was made here, or that holds this directory.
    has(&cli.fails("plan show", 2), ["alpine, alpha"]);
    let elsewhere = cli.clone().cwd(&other);
    json(&elsewhere, "plan create gamma");
    assert_eq!(json(&elsewhere, "plan show")["name"], "gamma");
    json(&cli, "cleanup alpine");
    assert_eq!(json(&cli, "plan show")["name"], "alpha");
    assert_eq!(
        json(&cli.clone().cwd(world.at("app/src")), "plan show")["name"],
        "alpha"
    );
    json(&cli, "cleanup alpha");
    assert!(
        cli.fails("plan show", 1)
            .contains("no open plan belongs to")
    );
    // The name is free again, and the old plan can still be shown by its id.
    json(&cli, "plan create alpha");
    let expected = "cleaned_up";
    assert_eq!(json(&cli, &format!("plan show {id}"))["state"], expected);
}

#[test]
fn the_words_of_the_environment_count() {
    let (_world, cli) = world();
    let cli = cli.env("ESCROW_SANDBOX_STRATEGY", "filesystem_copy");
    let plan = json(&cli, "plan create try --resource ./app");
    assert_eq!(plan["sandboxes"][0]["strategy"], "filesystem_copy");
    let error = cli
        .env("ESCROW_SANDBOX_STRATEGY", "quantum")
        .fails("plan list", 2);
    assert!(error.contains("there is no strategy 'quantum'"), "{error}");
}

/// Everything a person does, from creating to cleaning up, for one strategy.
fn whole_story(world: World, strategy: &str) {
    let (world, cli) = furnish(world);
    let app = world.at("app");
    let before = signature(&app);
    cli.plan("try", "./app", strategy);
    assert_eq!(cli.ok("diff try --name-status"), "");
    put(&cli, "try app a.txt", "ONE\ntwo\nthree\n");
    let odd = OsStr::from_bytes(b"new dir/-\n\xff");
    let line = [words("write try app"), vec!["--".into(), odd.into()]].concat();
    cli.clone().stdin("odd\n").ok(line);
    let listed = cli.ok("diff try --name-status");
    assert_eq!(listed, "M\ta.txt\nA\tnew dir\nA\tnew dir/-\\x0a\\xff\n");
    cli.says(
        [words("read try app"), vec!["--".into(), odd.into()]].concat(),
        "odd\n",
    );
    unchanged(&before, &app);
    cli.ok("rollback try");
    assert_eq!(cli.ok("diff try --name-status"), "");
    cli.ok("cleanup try");
    cli.ok("cleanup try");
    unchanged(&before, &app);
    for room in ["sandboxes", "locks"] {
        assert_eq!(names(world.home().join(room)), [""; 0]);
    }
}

// rule P6, S4, F5
#[test]
fn the_whole_story_in_an_odd_directory() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy", "copy_on_write"] {
        whole_story(World::odd(), strategy);
    }
}

#[test]
fn the_patch_is_taken_by_git_and_by_patch() {
    let (world, cli) = world();
    // git knows 0644 and 0755 only.
    let ordinary = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(world.at("app/a.txt"), ordinary).expect("it is ours");
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    let sandbox = sandbox_path(&cli, "try", "app");
    write(sandbox.join("a.txt"), "one\n2\nthree\nno end");
    write(sandbox.join("with space"), "x\n");
    write(
        sandbox.join(OsStr::from_bytes(b"tab\t\"quote\" \xc3\xbc")),
        "y\n",
    );
    remove(sandbox.join("src/main.rs"));
    write(sandbox.join("binary"), b"a\0b");
    let patch = cli.run("diff try --patch").stdout;
    let text = String::from_utf8_lossy(&patch).into_owned();
    has(&text, ["# binary file, not shown (0 -> 3 bytes): binary\n"]);
    // Half of it would be worse than nothing: git refuses the whole.
    let refused = world.dir("refused");
    let mut git = Command::new("git")
        .args(["apply", "-p1"])
        .current_dir(&refused)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("git is installed");
    let mut input = git.stdin.take().expect("it is piped");
    input.write_all(&patch).expect("it listens");
    drop(input);
    assert!(!git.wait().expect("it ends").success());
    remove(sandbox.join("binary"));
    let patch = cli.run("diff try --patch").stdout;
    for tool in [&["git", "apply", "-p1"][..], &["patch", "-p1", "--quiet"]] {
        let copy = world.dir(tool[0]);
        let status = Command::new("cp")
            .arg("-a")
            .arg(world.at("app/."))
            .arg(&copy)
            .status();
        assert!(status.expect("there is a cp").success());
        let mut child = Command::new(tool[0])
            .args(&tool[1..])
            .current_dir(&copy)
            .stdin(Stdio::piped())
            .spawn()
            .expect("the tool is installed");
        child
            .stdin
            .take()
            .expect("it is piped")
            .write_all(&patch)
            .expect("it listens");
        assert!(child.wait().expect("it ends").success(), "{tool:?}: {text}");
        // Both tools remove directories that become empty; a patch knows none.
        let mut wanted = signature(&sandbox);
        wanted.retain(|path, _| path != b"src");
        let mut found = signature(&copy);
        found.retain(|path, _| path != b"src");
        let ignore = Ignore {
            times: true,
            ..Ignore::default()
        };
        assert_same(&wanted, &found, &ignore);
    }
}

#[test]
fn a_patch_names_a_mode_that_git_does_not_know_on_a_comment_line() {
    as_user_too();
    let (world, cli) = world();
    let app = world.at("app");
    let mode = |path: &str, bits: u32| {
        let bits = std::os::unix::fs::PermissionsExt::from_mode(bits);
        fs::set_permissions(app.join(path), bits).expect("it is ours");
    };
    write(app.join("tool"), "x\n");
    write(app.join("both"), "x\n");
    write(app.join("secret"), "x\n");
    for path in ["a.txt", "tool", "both", "secret"] {
        mode(path, 0o644);
    }
    cli.ok("plan create try --resource ./app");
    let script =
        "cd app; chmod 600 a.txt; chmod 700 tool; chmod 600 both; echo y > both; chmod 755 secret";
    cli.ok(["run", "--plan", "try", "--", "sh", "-c", script]);
    let patch = cli.ok("diff try --patch");
    let wanted = [
        "# mode changed from 0644 to 0600: a.txt\n# mode changed from 0644 to 0600: both\n",
        "diff --git a/both b/both\n--- a/both\n",
        "diff --git a/secret b/secret\nold mode 100644\nnew mode 100755\n# mode changed from 0644 to 0700: tool\n",
        "diff --git a/tool b/tool\nold mode 100644\nnew mode 100755\n",
    ];
    has(&patch, wanted);
    lacks(&patch, ["diff --git a/a.txt", "mode 100600"]);
    let at = world.at("p");
    write(&at, &patch);
    let mut git = Command::new("git");
    git.current_dir(&app).args(["apply", "-p1"]).arg(&at);
    assert!(git.status().expect("git is installed").success(), "{patch}");
    let bits = |path: &str| fs::metadata(app.join(path)).expect("it is there").mode() & 0o111;
    assert_eq!(
        (bits("tool"), bits("secret"), bits("both")),
        (0o111, 0o111, 0)
    );
    assert_eq!(read(app.join("both")), "y\n");
}

#[test]
fn colour_is_for_terminals_only() {
    let (_world, cli) = planned_app("auto");
    assert!(!cli.ok("plan show try").contains('\x1b'));
    let terminal = |extra: &[(&str, &str)]| {
        let line = "exec script -qec \"'$0' plan show try\" /dev/null";
        let mut command = cli.behind(&["sh", "-c", line], "");
        command.envs(extra.iter().copied()).stdin(Stdio::null());
        let output = command.env("TERM", "xterm-256color").output();
        let output = output.expect("script is part of util-linux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(terminal(&[]).contains('\x1b'), "{}", terminal(&[]));
    assert!(!terminal(&[("NO_COLOR", "1")]).contains('\x1b'));
}

#[test]
fn names_cannot_fool_the_reader() {
    let (world, cli) = world();
    let name = OsStr::from_bytes("evil\u{1b}[2J\u{202e}\nA\tapproved".as_bytes());
    write(world.at("app").join(name), "x");
    cli.ok("plan create try --resource ./app --strategy filesystem_copy");
    remove(sandbox_path(&cli, "try", "app").join(name));
    for form in ["--stat", "--name-status", "--patch"] {
        let text = cli.ok(["diff", "try", form]);
        assert!(!text.contains('\x1b'), "{form}: {text}");
        assert!(!text.contains('\u{202e}'), "{form}: {text}");
        assert!(
            !text.lines().any(|line| line.starts_with("A\tapproved")),
            "{form}: {text}"
        );
    }
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let (_world, cli) = world();
    let mut child = cli
        .command("reference")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn what_is_left_out_is_named() {
    let (world, cli) = world();
    let socket = world.at("app/socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a short path");
    let line = "plan create try --resource ./app --strategy filesystem_copy";
    let outcome = cli.expect(line, 0);
    assert!(
        outcome
            .stderr_text()
            .contains("warning: app: 'socket': a socket is not copied")
    );
    let shown = json(&cli, "plan show try");
    let expected = "'socket': a socket is not copied";
    assert_eq!(shown["sandboxes"][0]["warnings"][0], expected);
    assert_eq!(cli.ok("diff try --name-status"), "");
}

#[test]
fn doctor_gives_reasons_and_leaves_nothing() {
    let (world, cli) = world();
    let text = cli.ok("doctor app");
    for strategy in ["copy_on_write", "filesystem_copy", "overlay", "none"] {
        assert!(text.contains(strategy), "{text}");
    }
    assert!(text.contains("auto takes "), "{text}");
    for wall in ["namespaces", "system call filter", "socket scope", "limits"] {
        assert!(text.contains(wall), "{text}");
    }
    assert_eq!(world.areas(), [""; 0]);
    let missing = cli.fails("doctor nowhere", 1);
    assert!(missing.contains("cannot find the directory"), "{missing}");
}

#[test]
fn none_is_honest() {
    let (world, cli) = planned_app("none");
    put(&cli, "try app a.txt", "for real");
    let real = read(world.at("app/a.txt"));
    assert_eq!(real, "for real");
    let error = cli.fails("rollback try", 1);
    has(&error, ["what was written is already in the original"]);
    cli.ok("cleanup try");
    assert!(world.at("app/a.txt").exists());
}

/// Kills a command that makes a large copy until it dies half way.
pub(crate) fn interrupted(cli: &Cli, plan: &str) {
    for wait in 1.. {
        let mut child = cli.start(format!(
            "sandbox create {plan} ./app --strategy filesystem_copy"
        ));
        thread::sleep(Duration::from_millis(wait % 97));
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        let sandboxes = json(cli, &format!("sandbox list {plan}"));
        match sandboxes["sandboxes"][0]["state"].as_str() {
            Some("pending") => return,
            Some(_) => panic!("the copy was finished before it could be killed"),
            None => assert!(wait < 500, "it never got to work"),
        }
    }
}

// rule P3, P6
#[test]
fn a_killed_create_is_told_of_and_finished_or_swept() {
    let (world, cli) = world();
    let app = world.at("app");
    for directory in 0..40 {
        let directory = app.join(format!("d{directory}"));
        fs::create_dir(&directory).expect("the world can be written");
        for file in 0..200 {
            write(directory.join(format!("f{file}")), "x");
        }
    }
    let before = signature(&app);
    cli.ok("plan create try");
    interrupted(&cli, "try");
    let status = cli.ok("status");
    assert!(status.contains("interrupted: create of app"), "{status}");
    let error = cli.fails("diff try", 5);
    has(&error, ["was never finished", "hint: "]);
    json(&cli, "sandbox create try app --strategy filesystem_copy");
    assert_eq!(cli.ok("diff try --name-status"), "");
    assert_eq!(json(&cli, "status")["operations"], value!([]));
    cli.ok("plan create swept");
    interrupted(&cli, "swept");
    cli.ok("cleanup swept");
    cli.ok("cleanup try");
    assert_eq!(world.areas(), [""; 0]);
    unchanged(&before, &app);
}

// rule S3
#[test]
fn state_is_private() {
    let (world, cli) = world();
    let home = world.at("deep/er/home");
    let cli = cli.env("ESCROW_HOME", &home);
    cli.ok("plan create try --resource ./app");
    assert_eq!(mode(&home), 0o700);
    assert_eq!(mode(home.join("state.db")), 0o600);
    for area in paths(home.join("sandboxes")) {
        assert_eq!(mode(area), 0o700);
    }
}
