//! Commit, undo and recover, killed or failing in the one place that matters.

use crate::*;

/// What another process wrote is where they put it, or where the answer says that it is kept.
#[track_caller]
fn assert_saved(answer: &Value, at: &Path, bytes: &str) {
    let named = answer["kept"].as_array();
    let mut places = named
        .into_iter()
        .flatten()
        .filter_map(|one| one["kept"].as_str());
    let kept = places.any(|place| holds(Path::new(place), bytes));
    assert!(kept || holds(at, bytes), "{bytes:?} is lost: {answer}");
}

/// A plan `try` over `app` and `etc`, by `strategy`, with one change in each.
fn two(strategy: &str) -> (World, Cli) {
    let (world, cli) = world();
    write(world.dir("etc").join("hosts"), "127.0.0.1\n");
    cli.ok(format!(
        "plan create try --resource ./app --resource ./etc --strategy {strategy}"
    ));
    put(&cli, "try app a.txt", "uno\n");
    put(&cli, "try etc hosts", "::1\n");
    (world, cli)
}

// rule C1, C3
#[test]
fn recovery_took_back_only_the_members_it_had_begun() {
    need!(require_stepper());
    for edited in ["r1", "r2"] {
        let (world, cli) = world();
        let at = |name: &str| world.at(name).join("f");
        for name in ["r1", "r2", "r3"] {
            world.dir(name);
            write(at(name), "old\n");
        }
        cli.ok("plan create try --resource ./r1 --resource ./r2 --resource ./r3");
        for name in ["r1", "r2", "r3"] {
            put(&cli, &format!("try {name} f"), "new\n");
        }
        kill(&cli, "commit try", MOVES, 3);
        let now = ["r1", "r2", "r3"].map(|name| read(at(name)));
        assert_eq!(now, ["new\n", "new\n", "old\n"]);
        write(world.at("saved"), "mine\n");
        fs::rename(world.at("saved"), at(edited)).expect("it is ours");
        let one = recovered(&cli);
        assert_eq!(one["side"], "old", "{one}");
        assert_saved(&one, &at(edited), "mine\n");
        for name in ["r1", "r2", "r3"] {
            let mine = name == edited && read(at(name)) == "mine\n";
            assert!(mine || read(at(name)) == "old\n", "{name}: {one}");
        }
    }
}

/// A plan `try` that deletes `app/a.txt` and changes `etc/hosts`.
fn deleting() -> (World, Cli) {
    let (world, cli) = two("filesystem_copy");
    remove(copy_of(&cli, "try", "app").join("a.txt"));
    (world, cli)
}

/// Another process puts something where nothing is: a file, or a directory with a file in it.
fn put_there(at: &Path, directory: bool) {
    match directory {
        false => write(at, "mine\n"),
        true => {
            fs::create_dir(at).expect("nothing is there");
            write(at.join("inner"), "mine\n");
        }
    }
}

// rule C3, C7
#[test]
fn what_was_put_where_a_commit_had_deleted_was_lost() {
    need!(require_stepper());
    for directory in [false, true] {
        let (world, cli) = deleting();
        let at = world.at("app/a.txt");
        kill(&cli, "commit try", MOVES, 2);
        assert!(!at.exists(), "it is deleted first");
        put_there(&at, directory);
        let one = recovered(&cli);
        assert_saved(&one, &at, "mine\n");
        let old = read(world.at("etc/hosts")) == "127.0.0.1\n";
        assert_eq!(one["side"], if old { "old" } else { "new" }, "{one}");
        if old {
            assert_eq!(read(&at), "one\ntwo\nthree\n");
        }
    }
}

// rule C3, C7
#[test]
fn what_was_put_where_a_commit_had_deleted_was_lost_by_a_killed_undo() {
    need!(require_stepper());
    let mut met = 0;
    for (n, directory) in (1..).flat_map(|n| [(n, false), (n, true)]) {
        let (world, cli) = deleting();
        let at = world.at("app/a.txt");
        cli.ok("commit try");
        let run = cli
            .stepper("undo try")
            .only(&["renameat2", "linkat", "syncfs"])
            .fault(n, Fault::Kill);
        if run.hit.is_none() {
            break;
        }
        let unfinished = json(&cli, "status")["unfinished"] != value!([]);
        if at.exists() || !unfinished {
            continue;
        }
        met += 1;
        put_there(&at, directory);
        let one = recovered(&cli);
        assert_eq!(one["side"], "old", "{n}: {one}");
        assert_saved(&one, &at, "mine\n");
        assert_eq!(read(&at), "one\ntwo\nthree\n", "{n}");
        assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n", "{n}");
    }
    assert!(met > 2, "it is killed before the file is back");
}

// rule C17, P6
#[test]
fn a_commit_whose_original_is_gone_could_never_be_let_go_of() {
    as_user_too();
    need!(require_stepper());
    let (world, cli) = two("overlay");
    kill(&cli, "commit try", MOVES, 2);
    fs::remove_dir_all(world.at("app")).expect("it is ours");
    assert_eq!(failed(&cli, "recover", 5)["success"], false);
    let told = failed(&cli, "cleanup try", 5);
    assert_eq!(told["error"]["kind"], "recovery_needed");
    cli.ok("cleanup try --forget");
    assert_eq!(json(&cli, "plan show try")["state"], "cleaned_up");
    assert_eq!(json(&cli, "status")["unfinished"], value!([]));
    write(world.dir("app").join("a.txt"), "fresh\n");
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app a.txt", "due\n");
    cli.ok("commit try");
    assert_eq!(read(world.at("app/a.txt")), "due\n");
}

// rule C2, C3
#[test]
fn an_undecided_commit_needed_its_originals() {
    need!(require_stepper());
    for (n, gone) in [(1, "app"), (2, "app"), (2, "etc")] {
        let (world, cli) = two("overlay");
        kill(&cli, "commit try", LINKS, n);
        fs::remove_dir_all(world.at(gone)).expect("it is ours");
        let one = recovered(&cli);
        assert_eq!(one["found"], "preparing", "{n}, {gone}");
        assert_eq!(one["side"], "old", "{n}, {gone}");
        let kept = list(&one["kept"]).len();
        assert_eq!(kept, 0, "{n}, {gone}: {one}");
        cli.ok("cleanup try");
    }
}

// rule C7, P6
#[test]
fn an_undo_without_its_old_versions_began_all_the_same() {
    let (world, cli) = two("overlay");
    let plan = json(&cli, "plan show try");
    let id = plan["sandboxes"][1]["sandbox_id"].as_str().expect("an id");
    let area = world.home().join("sandboxes").join(format!("{id}.undo"));
    cli.ok("commit try");
    fs::remove_dir_all(&area).expect("what undo needs is there");
    let told = failed(&cli, "undo try", 4);
    assert_eq!(told["error"]["kind"], "conflict", "{told}");
    assert_eq!(told["success"], false);
    assert_eq!(told["conflicts"][0]["resource"], "etc", "{told}");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
    assert_eq!(json(&cli, "plan show try")["state"], "committed");
    cli.ok("cleanup try");
    assert_eq!(json(&cli, "plan show try")["state"], "cleaned_up");
}

/// Kills the cleanup of a committed plan `try` everywhere, and cleans up again; `make` makes the
/// plan.
#[track_caller]
fn assert_cleanup_repeats<T>(make: impl Fn() -> (World, Cli, T)) {
    let mut met = 0;
    for n in 1.. {
        let (_world, cli, _there) = make();
        cli.ok("commit try");
        let run = cli
            .stepper("cleanup try")
            .only(&["unlinkat", "utimensat"])
            .fault(n, Fault::Kill);
        if run.hit.is_none() {
            break;
        }
        met += 1;
        cli.ok("cleanup try");
        assert_eq!(json(&cli, "plan show try")["state"], "cleaned_up", "{n}");
    }
    assert!(met > 4, "what was kept is removed in more than one call");
}

// rule P6
#[test]
fn a_killed_cleanup_of_a_commit_could_not_be_repeated() {
    need!(require_stepper());
    assert_cleanup_repeats(|| {
        let (world, cli) = two("overlay");
        (world, cli, ())
    });
}

// rule P6
#[test]
fn a_killed_cleanup_of_a_commit_on_another_file_system_could_not_be_repeated() {
    let disk = need!(LoopFs::new(Fs::Ext4, 32).filter(|_| require_stepper()));
    assert_cleanup_repeats(|| {
        let (world, cli) = world();
        let there = World::under(disk.path());
        let app = there.dir("app");
        write(app.join("f"), "old\n");
        let at = app.to_str().expect("a plain path");
        cli.ok(["plan", "create", "try", "--resource", at]);
        let plan = json(&cli, "plan show try");
        let name = plan["sandboxes"][0]["resource"].as_str().expect("a name");
        put(&cli, &format!("try {name} f"), "new\n");
        (world, cli, there)
    });
}

// rule C3, C7
#[test]
fn a_recovery_killed_while_it_set_aside_could_not_be_repeated() {
    need!(require_stepper());
    let mut met = 0;
    for n in 1.. {
        let (world, cli) = two("overlay");
        kill(&cli, "commit try", MOVES, 2);
        write(world.at("app/a.txt"), "on top of the new one\n");
        write(world.at("etc/hosts"), "mine now\n");
        let run = cli
            .stepper("recover")
            .only(&[
                "renameat",
                "renameat2",
                "linkat",
                "unlinkat",
                "fsync",
                "syncfs",
            ])
            .fault(n, Fault::Kill);
        if run.hit.is_none() {
            break;
        }
        let unfinished = json(&cli, "status")["unfinished"] != value!([]);
        let aside = world.areas().iter().any(|name| name.contains(".kept-"));
        met += u32::from(unfinished && aside);
        let again = json(&cli, "recover");
        assert_eq!(again["success"], true, "{n}: {again}");
        assert_eq!(json(&cli, "status")["unfinished"], value!([]), "{n}");
        let app = world.at("app/a.txt");
        assert_eq!(read(&app), "one\ntwo\nthree\n", "{n}");
        assert_eq!(read(world.at("etc/hosts")), "mine now\n", "{n}");
        let kept = holds(&world.home().join("sandboxes"), "on top of the new one\n");
        assert!(kept, "{n}: {again}");
        for one in list(&again["recovered"]) {
            assert_eq!(one["side"], "old", "{n}: {one}");
            assert_saved(one, &app, "on top of the new one\n");
        }
        cli.ok("cleanup try");
    }
    assert!(met > 0, "it is killed with what was kept set aside");
}

// rule C2, C3
#[test]
fn recovery_reverted_a_mode_set_by_another_process() {
    need!(require_stepper());
    // In `preparing`; in `decided`, which comes out new; the same, which ends old.
    for (calls, also_edited) in [(LINKS, false), (MOVES, false), (MOVES, true)] {
        for strategy in ["overlay", "filesystem_copy"] {
            let (world, cli) = world();
            let src = world.at("app/src");
            cli.plan("try", "./app", strategy);
            put(&cli, "try app src/main.rs", "// new\n");
            kill(&cli, "commit try", calls, 1);
            assert_eq!(mode(&src), 0o750);
            chmod(&src, 0o700);
            write(src.join("mine"), "mine\n");
            if also_edited {
                write(src.join("main.rs"), "// theirs\n");
            }
            let one = recovered(&cli);
            let (side, content) = match (calls == MOVES, also_edited) {
                (true, false) => ("new", "// new\n"),
                (true, true) => ("old", "// theirs\n"),
                (false, _) => ("old", "fn main() {}\n"),
            };
            assert_eq!(one["side"], side, "{strategy}: {one}");
            assert_eq!(mode(&src), 0o700, "{strategy}: {one}");
            assert_eq!(read(src.join("mine")), "mine\n", "{strategy}");
            assert_eq!(read(src.join("main.rs")), content, "{strategy}");
        }
    }
}

// rule C15, F6
#[test]
fn an_edit_that_keeps_its_time_was_taken_for_a_move_of_ours() {
    need!(require_stepper());
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        let at = world.at("app/b.txt");
        write(&at, "original\n");
        cli.plan("try", "./app", strategy);
        put(&cli, "try app a.txt", "uno\n");
        put(&cli, "try app b.txt", "sandbox\n");
        kill(&cli, "commit try", MOVES, 2);
        let before = fs::metadata(&at).expect("it is there");
        write(&at, "edit-ed!\n");
        let file = File::options().write(true).open(&at).expect("it is ours");
        let time = before.modified().expect("it has one");
        file.set_modified(time).expect("it is ours");
        drop(file);
        let now = fs::metadata(&at).expect("it is there");
        assert_eq!(
            (now.size(), now.mtime(), now.mtime_nsec(), now.ino()),
            (
                before.size(),
                before.mtime(),
                before.mtime_nsec(),
                before.ino()
            )
        );
        let one = recovered(&cli);
        assert_eq!(one["side"], "old", "{strategy}: {one}");
        let told = failed(&cli, "commit try", 4);
        let conflicts = list(&told["conflicts"]);
        assert_eq!(conflicts.len(), 1, "{strategy}: {told}");
        assert_eq!(conflicts[0]["path"], "b.txt", "{strategy}");
        assert_eq!(read(&at), "edit-ed!\n", "{strategy}");
    }
}

// rule C6, C15
#[test]
fn a_failed_commit_took_the_marks_off_the_sandbox() {
    need!(require_stepper());
    let (world, cli) = two("overlay");
    let run = cli
        .stepper("--json commit try")
        .only(LINKS)
        .fault(2, Fault::Once(5));
    assert!(run.hit.is_some(), "two files are staged");
    assert_eq!(run.outcome.status, 1, "{}", run.outcome.stdout_text());
    remove(world.at("app/a.txt"));
    let told = failed(&cli, "commit try", 4);
    assert_eq!(told["conflicts"][0]["path"], "a.txt", "{told}");
    assert_eq!(told["conflicts"][0]["what"], "deleted there, changed here");
    assert!(!world.at("app/a.txt").exists());
    assert_eq!(read(world.at("etc/hosts")), "127.0.0.1\n");
}

// rule F7
#[test]
fn setuid_that_came_after_the_staging_was_released() {
    need!(require_stepper());
    let (world, cli) = two("filesystem_copy");
    let copy = copy_of(&cli, "try", "app");
    fs::create_dir(copy.join("bin")).expect("nothing is there");
    write(copy.join("bin/tool"), "#!/bin/sh\n");
    chmod(copy.join("bin/tool"), 0o755);
    kill(&cli, "commit try", MOVES, 1);
    chmod(copy.join("bin/tool"), 0o4755);
    let one = recovered(&cli);
    let tool = world.at("app/bin/tool");
    match one["side"].as_str() {
        Some("new") => assert_eq!(mode(&tool), 0o755, "{one}"),
        _ => assert!(!tool.exists(), "{one}"),
    }
}

// rule C6, C7
#[test]
fn what_the_agent_wrote_into_its_sandbox_was_called_somebody_elses() {
    need!(require_stepper());
    let (world, cli) = two("filesystem_copy");
    let copy = copy_of(&cli, "try", "app");
    kill(&cli, "commit try", MOVES, 1);
    write(copy.join("a.txt"), "uno\ndue\n");
    let one = recovered(&cli);
    assert_eq!(one["kept"], value!([]), "{one}");
    assert_eq!(one["side"], "old", "{one}");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    cli.ok("commit try");
    assert_eq!(read(world.at("app/a.txt")), "uno\ndue\n");
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
}

// rule C17
#[test]
fn one_damaged_row_stopped_every_plan() {
    as_user_too();
    need!(require_stepper());
    let (world, cli) = world();
    write(world.dir("etc").join("hosts"), "127.0.0.1\n");
    write(world.at("app/file"), "old\n");
    cli.ok("plan create try --resource ./app");
    put(&cli, "try app file", "new\n");
    kill(&cli, "commit try", MOVES, 1);
    // The process that closes the state last puts everything into the one file.
    cli.ok("status");
    assert!(!world.home().join("state.db-wal").exists());
    let state = world.home().join("state.db");
    let mut bytes = fs::read(&state).expect("it is there");
    // What tells the file with what the commit needs.
    let digest = b"\"digest\":\"";
    let found: Vec<usize> = (0..bytes.len() - digest.len())
        .filter(|at| bytes[*at..].starts_with(digest))
        .collect();
    let holds = !found.is_empty();
    assert!(holds, "the state refers to what the commit needs");
    for at in found {
        bytes[at + 1] = b'D';
    }
    write(&state, bytes);
    cli.ok("plan create other --resource ./etc");
    put(&cli, "other etc hosts", "::1\n");
    cli.ok("diff other");
    cli.ok("commit other");
    assert_eq!(read(world.at("etc/hosts")), "::1\n");
    cli.ok("undo other");
    let told = failed(&cli, "recover", 5);
    let why = told["recovered"][0]["error"].as_str().expect("it says why");
    assert!(why.contains("is damaged"), "{why}");
    failed(&cli, "cleanup try", 5);
    cli.ok("cleanup try --forget");
    assert_eq!(read(world.at("app/file")), "old\n");
}

#[test]
fn a_kill_while_replacing_left_a_name_in_the_original() {
    let (world, cli) = planned_app("none");
    let inject = "inject=renameat,renameat2:signal=KILL:when=1";
    let outer = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", inject];
    let mut killed = cli.behind(&outer, "write try app a.txt");
    killed.stdin(Stdio::null()).stderr(Stdio::null());
    let status = killed.status().expect("strace is installed");
    assert!(!status.success());
    let hidden = |name: &String| name.starts_with(".escrow");
    assert!(!names(world.at("app")).iter().any(hidden));
    cli.ok("cleanup try");
}
