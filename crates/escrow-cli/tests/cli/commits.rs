//! Commit, undo, recover and log, as users meet them.

use std::io::{BufRead, BufReader};

use crate::*;

/// A plan `try` over `app` and `etc`, with one change in each.
fn two() -> (World, Cli) {
    let (world, cli) = world();
    write(world.dir("etc").join("hosts"), "127.0.0.1\n");
    cli.ok("plan create try --resource ./app --resource ./etc");
    put(&cli, "try app a.txt", "uno\n");
    put(&cli, "try etc hosts", "::1\n");
    (world, cli)
}

/// The same, killed at the exchange of the second member: the first is new, the second old.
fn half_committed() -> Option<(World, Cli)> {
    if !require_stepper() {
        return None;
    }
    let (world, cli) = two();
    kill(&cli, "commit try", MOVES, 2);
    Some((world, cli))
}

// rule P9
#[test]
fn a_commit_says_what_it_did_and_the_log_says_why() {
    let (world, cli) = two();
    let done = json(&cli, "commit try -m because");
    let expected =
        "committed conflicts digest left left_changes log_head message plan resources runs_later";
    assert_eq!(keys(&done), expected);
    assert_eq!(done["committed"], true);
    assert_eq!(done["conflicts"], value!([]));
    let one = &done["resources"][0];
    assert_eq!(
        keys(one),
        "at changes left merged notes resource summary undoable"
    );
    assert_eq!(one["changes"][0]["path"], "a.txt");
    assert_eq!(one["undoable"], true);
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
    assert_eq!(json(&cli, "plan show try")["state"], "committed");
    let log = json(&cli, "log try");
    let operations = list(&log["operations"]);
    let commit = operations.iter().find(|one| one["action"] == "commit");
    let commit = commit.expect("it is in the log");
    assert_eq!(
        keys(commit),
        "action duration_ms error finished_at id message outcome path_count paths plan_id principal reason resources started_at target"
    );
    assert_eq!(commit["message"], "because");
    assert_eq!(commit["outcome"], "done");
    assert!(cli.ok("log").contains("    because\n"));
    let undone = json(&cli, "undo try");
    assert_eq!(
        undone,
        value!({"success": true, "plan": "try", "dry_run": false, "resources": ["app", "etc"], "kept": [], "stays": [], "left": [],
            "standing": 0, "open": true, "apart": null, "lost": []})
    );
    assert_eq!(json(&cli, "plan show try")["state"], "open");
    assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n");
}

// rule C2
#[test]
fn a_dry_run_writes_nothing_at_all() {
    let (world, cli) = two();
    let home = signature(&world.home().join("sandboxes"));
    let app = signature(&world.at("app"));
    let shown = json(&cli, "commit try --dry-run");
    let expected = "committed conflicts digest dry_run left_changes plan resources runs_later";
    assert_eq!(keys(&shown), expected);
    assert_eq!(shown["committed"], false);
    assert_eq!(shown["resources"][1]["changes"][0]["kind"], "modified");
    write(world.at("app/a.txt"), "theirs\n");
    let shown = failed(&cli, "commit try --dry-run", 4);
    assert_eq!(shown["conflicts"][0]["path"], "a.txt");
    write(world.at("app/a.txt"), "one\ntwo\nthree\n");
    unchanged(&home, world.home().join("sandboxes"));
    let ignore = Ignore {
        times: true,
        ..Ignore::default()
    };
    assert_same(&app, &signature(&world.at("app")), &ignore);
}

// rule C15
#[test]
fn a_conflict_names_both_versions_and_changes_nothing() {
    let (world, cli) = two();
    let path = world.at("app/a.txt");
    write(&path, "zwei\n");
    let told = failed(&cli, "commit try", 4);
    let fields = "cause committed conflicts error kept left not_undone resources undone";
    assert_eq!(keys(&told), fields);
    assert_eq!(told["error"]["kind"], "conflict");
    let conflict = &told["conflicts"][0];
    assert_eq!(keys(conflict), "ours path resource theirs what");
    assert_eq!(conflict["ours"]["size"], 4);
    assert_eq!(conflict["theirs"]["size"], 5);
    assert_eq!(read(&path), "zwei\n");
    assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n");
    let text = cli.fails("commit try", 4);
    assert!(text.contains("nothing was changed"), "{text}");
    cli.ok("commit try --on-conflict sandbox");
    assert_eq!(read(&path), "uno\n");
    cli.ok("undo try");
    assert_eq!(read(&path), "zwei\n");
}

#[test]
fn a_committed_plan_is_over_and_its_name_is_free() {
    let (world, cli) = two();
    cli.ok("commit try");
    for line in "commit try; diff try; write try app a.txt; rollback try".split("; ") {
        let text = cli.fails(line, 4);
        assert!(text.contains("was committed"), "{line}: {text}");
    }
    let made = cli.expect("plan create try --resource ./app", 0);
    has(&made.stderr_text(), ["`escrow undo try-2` takes that back"]);
    put(&cli, "try app a.txt", "due\n");
    cli.ok("commit try");
    assert_eq!(read(world.at("app/a.txt")), "due\n");
    cli.ok("undo try");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    let text = cli.fails("undo try", 4);
    assert!(text.contains("no commit to undo"), "{text}");
    cli.ok("undo try-2");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
}

/// Which plan was made last says nothing about which was committed last.
#[test]
fn undo_without_a_name_takes_back_what_was_committed_last() {
    let (world, cli) = world();
    for plan in ["older", "newer"] {
        cli.ok(format!("plan create {plan} --resource ./app"));
        put(&cli, &format!("{plan} app {plan}"), "new\n");
    }
    cli.ok("commit newer");
    cli.ok("commit older");
    let app = world.at("app");
    let here = cli.clone().cwd(&app);
    assert_eq!(json(&here, "undo")["plan"], "older");
    assert!(!app.join("older").exists() && app.join("newer").exists());
    here.ok("undo");
    assert!(!app.join("newer").exists());
    let text = here.fails("undo", 1);
    assert!(text.contains("has a commit to undo"), "{text}");
}

// rule C3, C17
#[test]
fn a_killed_commit_is_told_and_recovered() {
    let (world, cli) = need!(half_committed());
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n");
    let status = json(&cli, "status");
    let expected = value!([{"plan": "try", "what": "commit", "phase": "decided"}]);
    assert_eq!(status["unfinished"], expected);
    let told = failed(&cli, "diff try", 5);
    assert_eq!(told["error"]["kind"], "recovery_needed");
    let recovered = json(&cli, "recover");
    assert_eq!(keys(&recovered), "recovered success");
    assert_eq!(
        recovered["recovered"],
        value!([{"plan": "try", "what": "commit", "found": "decided", "side": "new", "because": null, "kept": [], "left": []}])
    );
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
    assert_eq!(json(&cli, "recover")["recovered"], value!([]));
    cli.ok("undo try");
    assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n");
}

/// What a person says of a step must be one of two words, and asked for.
// rule C19
#[test]
fn an_outcome_that_nothing_waits_for_is_refused() {
    let (_world, cli) = two();
    for line in ["recover --outcome app=perhaps", "recover --outcome app"] {
        assert_eq!(cli.run(line).status, 2, "{line}");
    }
    let told = failed(&cli, "recover --outcome app=done", 2);
    assert_eq!(told["error"]["kind"], "usage");
    let text = told["error"]["message"].as_str().expect("a message");
    assert!(text.contains("app"), "{text}");
    assert_eq!(json(&cli, "recover")["recovered"], value!([]));
}

// rule C3
#[test]
fn the_next_command_that_changes_something_recovers_first() {
    let (world, cli) = need!(half_committed());
    let outcome = cli.expect("plan create other --resource ./etc", 0);
    let said = outcome.stderr_text();
    has(&said, ["an interrupted commit of the plan 'try' (decided)"]);
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
}

// rule C3, C17
#[test]
fn many_recover_at_once_and_find_one_side() {
    let (world, cli) = need!(half_committed());
    let answers: Vec<String> = thread::scope(|scope| {
        let one = |_| scope.spawn(|| cli.ok("--json recover"));
        let running: Vec<_> = (0..6).map(one).collect();
        let ended = running.into_iter().map(|one| one.join());
        ended.map(|said| said.expect("it ends")).collect()
    });
    let did = |said: &&String| said.contains("\"side\": \"new\"");
    assert_eq!(answers.iter().filter(did).count(), 1, "{answers:?}");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
}

// attack G9; rule C3
#[test]
fn an_edit_between_crash_and_recovery_is_kept() {
    as_user_too();
    let (world, cli) = need!(half_committed());
    write(world.at("etc/hosts"), "mine now\n");
    let recovered = json(&cli, "recover");
    assert_eq!(recovered["recovered"][0]["side"], "old");
    assert_eq!(read(world.at("etc/hosts")), "mine now\n");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    // The sandboxes are still there, and see the edit as what it is.
    let told = failed(&cli, "commit try", 4);
    assert_eq!(told["conflicts"][0]["resource"], "etc");
    cli.ok("commit try --on-conflict original");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
}

// rule C7
#[test]
fn edits_of_what_a_dead_commit_put_there_are_set_aside_and_named() {
    let (world, cli) = need!(half_committed());
    write(world.at("app/a.txt"), "on top of the new one\n");
    write(world.at("etc/hosts"), "mine now\n");
    let recovered = json(&cli, "recover");
    let one = &recovered["recovered"][0];
    assert_eq!(one["side"], "old");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    let kept = one["kept"][0]["kept"].as_str().expect("it is named");
    assert_eq!(read(kept), "on top of the new one\n");
    cli.ok("cleanup try");
    assert!(!Path::new(kept).exists());
}

// rule C8
#[test]
fn resources_that_overlap_are_refused() {
    let (world, cli) = world();
    cli.ok("resource add app --at app");
    let told = failed(&cli, "resource add src --at app/src", 4);
    assert_eq!(told["error"]["kind"], "conflict");
    let hints = told["error"]["hints"].to_string();
    assert!(hints.contains("--parent app"), "{hints}");
    symlink("app/src", world.at("link"));
    failed(&cli, "resource add src --at link", 4);
    cli.ok("resource add src --at app/src --parent app");
    // Within one plan also those that the user did not name.
    world.dir("lib/inner");
    failed(&cli, "plan create p --resource lib --resource lib/inner", 4);
    assert_eq!(json(&cli, "plan list")["plans"], value!([]));
}

// rule C8
#[test]
fn a_bind_mount_does_not_hide_an_overlap() {
    need!(require_root("a mount, a device node or a loop file system"));
    let (world, cli) = world();
    let bind = world.dir("bind");
    let mounted = Mounted::new(["--bind", "app/src"], &bind);
    cli.ok("resource add app --at app");
    let outcome = cli.run("resource add other --at bind");
    drop(mounted);
    assert_eq!(outcome.status, 4, "{}", outcome.stderr_text());
    assert!(bind.is_dir());
}

// rule C8, P4
#[test]
fn a_child_is_carved_out_or_shares_the_sandbox() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        world.dir("app/data/inner");
        write(world.at("app/data/inner/rows"), "1\n");
        cli.ok("resource add app --at app");
        cli.ok("resource add data --at app/data/inner --parent app");
        cli.ok("resource add src --at app/src --parent app --strategy inherit");
        let plan = json(
            &cli,
            &format!("plan create p --resource src --resource data --strategy {strategy}"),
        );
        let names = column(&plan["sandboxes"], "resource");
        assert_eq!(names, ["app", "data"], "src lives in the sandbox of app");
        assert_eq!(json(&cli, "sandbox create p app")["created"], false);
        assert_eq!(json(&cli, "sandbox create p src")["created"], false);
        let text = cli.clone().stdin("x").fails("write p app data/inner/x", 2);
        assert!(text.contains("belongs to another resource"), "{text}");
        put(&cli, "p data rows", "2\n");
        put(&cli, "p src main.rs", "// new\n");
        assert_eq!(cli.ok("read p app src/main.rs"), "// new\n");
        assert_eq!(cli.ok("diff p -r src --name-status"), "M\tsrc/main.rs\n");
        let done = json(&cli, "commit p");
        // Children before parents.
        assert_eq!(done["resources"][0]["resource"], "data");
        assert_eq!(done["resources"][1]["resource"], "app");
        assert_eq!(read(world.at("app/data/inner/rows")), "2\n");
        assert_eq!(read(world.at("app/src/main.rs")), "// new\n");
    }
}

#[test]
fn a_directory_that_holds_another_resource_is_not_removed() {
    let (world, cli) = world();
    world.dir("app/data/inner");
    write(world.at("app/data/inner/rows"), "1\n");
    write(world.at("app/data/other"), "2\n");
    cli.ok("resource add app --at app");
    cli.ok("resource add data --at app/data/inner --parent app");
    cli.ok("plan create p --resource app --strategy filesystem_copy");
    fs::remove_dir_all(copy_of(&cli, "p", "app").join("data")).expect("it is there");
    assert_eq!(cli.ok("diff p --name-status"), "D\tdata/other\n");
    cli.ok("commit p");
    assert_eq!(read(world.at("app/data/inner/rows")), "1\n");
    assert!(!world.at("app/data/other").exists());
}

/// Everything that a commit may leave behind somewhere.
fn remains(world: &World) -> Vec<String> {
    let dirs = [
        world.home().join("sandboxes"),
        world.at("."),
        world.at("app"),
    ];
    let mut found: Vec<String> = dirs.iter().flat_map(names).collect();
    found.retain(|name| name.starts_with("sbx_") || name.starts_with(".escrow"));
    found
}

// rule P6
#[test]
fn nothing_is_left_after_cleanup() {
    let (world, cli) = two();
    cli.ok("commit try");
    assert_eq!(remains(&world).len(), 2, "what undo needs");
    cli.ok("cleanup try");
    assert_eq!(remains(&world), Vec::<String>::new());
    assert_eq!(json(&cli, "plan show try")["state"], "cleaned_up");
    cli.fails("undo try", 4);
    assert_eq!(names(world.home().join("locks")), [""; 0]);
}

// attack C3
#[test]
fn a_device_node_is_refused() {
    need!(require_root("a mount, a device node or a loop file system"));
    for ordinary in [false, true] {
        let (world, mut cli) = world();
        if ordinary {
            world.chown_to_user();
            cli = cli.user();
        }
        cli.ok("plan create p --resource ./app --strategy filesystem_copy");
        sh(copy_of(&cli, "p", "app"), "mknod null c 1 3");
        let told = failed(&cli, "commit p", 3);
        assert_eq!(told["error"]["kind"], "denied");
        assert!(!world.at("app/null").exists());
    }
}

/// An original that is the root of a file system has nowhere to stage but in itself.
#[test]
fn the_root_of_a_file_system_can_be_committed() {
    let disk = need!(LoopFs::new(Fs::Ext4, 32));
    let (world, cli) = world();
    let at = disk.path();
    write(at.join("file"), "old\n");
    fs::create_dir(at.join("sub")).expect("nothing is there");
    let before = signature(at);
    cli.ok(format!("plan create p --resource {}", at.display()));
    let name = json(&cli, "plan show p")["sandboxes"][0]["resource"].clone();
    let name = name.as_str().expect("a name");
    cli.clone().stdin("new\n").ok(["write", "p", name, "file"]);
    cli.clone()
        .stdin("more\n")
        .ok(["write", "p", name, "sub/more"]);
    cli.ok("commit p");
    assert_eq!(read(at.join("file")), "new\n");
    assert_eq!(
        fs::metadata(at.join("file")).expect("it is there").nlink(),
        1
    );
    cli.ok("undo p");
    unchanged(&before, at);
    cli.ok("cleanup p");
    unchanged(&before, at);
    drop(world);
}

// rule C1
#[test]
fn an_ordinary_user_commits_into_closed_directories() {
    need!(as_ordinary_user());
    let (world, cli) = world();
    let closed = world.at("app/src");
    let set = |mode| chmod(&closed, mode);
    for strategy in ["overlay", "filesystem_copy"] {
        set(0o755);
        cli.plan(strategy, "./app", strategy);
        put(&cli, &format!("{strategy} app src/main.rs"), "// mine\n");
        // Closed since; what is in it can be replaced all the same, by its owner.
        set(0o555);
        let before = signature(&world.at("app"));
        cli.ok(format!("commit {strategy}"));
        assert_eq!(read(closed.join("main.rs")), "// mine\n");
        assert_eq!(mode(&closed), 0o555, "{strategy}");
        cli.ok(format!("undo {strategy}"));
        unchanged(&before, world.at("app"));
    }
}

/// A lock on the original that another program holds: it is said at once who is waited for, not after half a minute.
// attack D36; rule S5
#[test]
fn d36_a_lock_of_a_stranger_was_waited_for_in_silence() {
    as_user_too();
    let (world, cli) = world();
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app second", "new\n");
    let mut holder = Command::new("flock");
    let holder = holder
        .arg(world.at("app"))
        .args(["sh", "-c", "echo $PPID; read x"]);
    let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("flock starts");
    let mut pid = String::new();
    let said = holder.stdout.take().expect("a pipe");
    BufReader::new(said)
        .read_line(&mut pid)
        .expect("it says its number");
    let mut commit = cli.command("commit try");
    let mut commit = commit.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut told = String::new();
    let mut said = BufReader::new(commit.stderr.take().expect("a pipe"));
    said.read_line(&mut told).expect("it says why it waits");
    has(
        &told,
        ["waiting", &format!("process {}", pid.trim()), "app"],
    );
    drop(holder.stdin.take());
    holder.wait().expect("it is ours");
    std::io::copy(&mut said, &mut std::io::sink()).expect("it ends");
    assert!(commit.wait().expect("it is ours").success());
    assert_eq!(read(world.at("app/second")), "new\n");
}
