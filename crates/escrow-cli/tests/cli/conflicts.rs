//! Conflicts that were missed or made up, and what a commit or an undo that is refused says.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::*;

/// The sandbox deletes `a/d`, which holds `f`; then another process runs `script`, with a directory
/// `older` at hand that was there before and holds `name`. The commit must see it, and the file
/// must stay.
#[track_caller]
fn assert_conflict_in_deleted(strategy: &str, name: &str, script: &str, stays: &str) {
    let (world, cli) = world();
    let app = world.at("app");
    tree::build(&app, "a/d/f \"f\\n\"\n");
    tree::build(world.path(), &format!("older/{name} \"precious\\n\"\n"));
    cli.plan("try", "./app", strategy);
    cli.ok("run --plan try -- rm -r app/a/d");
    let said = cli.ok("diff try --name-status");
    assert!(said.contains("D\ta/d"), "{said}");
    sh(world.path(), script);
    let told = failed(&cli, "commit try", 4);
    let conflicts = told["conflicts"].to_string();
    assert!(conflicts.contains("\"a/d"), "{strategy}, {name}: {told}");
    assert_eq!(read(app.join(stays)), "precious\n", "{strategy}, {name}");
}

// rule C15
#[test]
fn an_older_directory_that_was_moved_into_a_deleted_one_was_deleted() {
    for strategy in ["overlay", "filesystem_copy"] {
        let script = "mv older app/a/d";
        assert_conflict_in_deleted(strategy, "f", script, "a/d/older/f");
    }
}

// rule C15
#[test]
fn an_older_directory_that_took_the_place_of_a_deleted_one_was_deleted() {
    for strategy in ["filesystem_copy", "overlay"] {
        for name in ["f", "g"] {
            let script = "rm -r app/a/d; mv older app/a/d";
            assert_conflict_in_deleted(strategy, name, script, &format!("a/d/{name}"));
        }
    }
}

/// The second it is.
fn second() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.expect("it is later than 1970").as_secs();
    i64::try_from(seconds).expect("it is not so late yet")
}

/// Waits for a second to begin.
fn next_second() -> i64 {
    let before = second();
    while second() == before {
        thread::sleep(Duration::from_millis(2));
    }
    second()
}

/// Makes a copy, and runs `edit` when all of it is there but its maker still waits for the clock.
fn edit_while_it_is_copied(cli: &Cli, home: &Path, edit: impl FnOnce()) {
    let line = "plan create try --resource ./app --strategy filesystem_copy";
    let mut making = cli.start(line);
    let copied = || holds(&home.join("sandboxes"), "old\n");
    while !copied() && making.try_wait().expect("it is ours").is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(100));
    edit();
    assert!(making.wait().expect("it ends").success());
}

// rule C15
#[test]
fn an_edit_in_the_second_in_which_the_sandbox_was_made_was_no_conflict() {
    // Times are whole seconds here.
    let disk = need!(LoopFs::with_mkfs_args(Fs::Ext4, 32, &["-I", "128"]));
    for strategy in ["overlay", "filesystem_copy"] {
        let mut met = false;
        for _ in 0..20 {
            let world = World::under(disk.path());
            let cli = Cli::new(&world, &binary());
            let at = world.dir("app").join("f");
            cli.ok("status");
            let began = next_second();
            write(&at, "old\n");
            let edit = || write(&at, "ed.\n");
            if strategy == "overlay" {
                cli.ok("plan create try --resource ./app --strategy overlay");
                edit();
            } else {
                edit_while_it_is_copied(&cli, &world.home(), edit);
            }
            let meta = fs::metadata(&at).expect("it is there");
            assert_eq!(meta.ctime_nsec(), 0);
            put(&cli, "try app f", "new\n");
            let told = failed(&cli, "commit try", 4);
            assert_eq!(told["conflicts"][0]["path"], "f", "{strategy}: {told}");
            assert_eq!(read(&at), "ed.\n", "{strategy}");
            met = meta.ctime() == began;
            if met {
                break;
            }
        }
        assert!(met, "{strategy}: it was never the same second");
    }
}

// rule C15
#[test]
fn whole_seconds_made_false_conflicts() {
    let disk = need!(LoopFs::with_mkfs_args(Fs::Ext4, 32, &["-I", "128"]));
    let world = World::under(disk.path());
    let cli = Cli::new(&world, &binary());
    write(world.dir("app").join("f"), "old\n");
    for strategy in ["overlay", "filesystem_copy"] {
        next_second();
        next_second();
        cli.plan(strategy, "./app", strategy);
        put(&cli, &format!("{strategy} app f"), "new\n");
        cli.ok(["commit", strategy]);
        cli.ok(["undo", strategy]);
        assert_eq!(read(world.at("app/f")), "old\n");
    }
}

// rule C5, C10
#[test]
fn an_undo_that_could_not_undo_all_said_it_was_not_committed() {
    let (world, cli) = world();
    write(world.dir("bare").join("f"), "1\n");
    cli.ok("resource add bare --at bare --strategy none");
    cli.ok("plan create p --resource ./app --resource bare");
    put(&cli, "p app a.txt", "uno\n");
    put(&cli, "p bare f", "2\n");
    cli.ok("commit p");
    let told = failed(&cli, "undo p", 1);
    assert_eq!(told["success"], false, "{told}");
    let not_undone = list(&told["not_undone"]);
    let names: Vec<&Value> = not_undone.iter().map(|one| &one["resource"]).collect();
    assert_eq!(names, ["bare"], "{told}");
    assert_eq!(told["undone"], value!(["app"]));
    let said = told["error"]["message"].as_str().expect("a text");
    assert!(!said.contains("was not committed"), "{said}");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    assert_eq!(read(world.at("bare/f")), "2\n");
    assert_not_stuck(&cli, "p");
}

// rule C5
#[test]
fn a_refused_commit_did_not_say_that_nothing_was_committed() {
    need!(require_root("a device node"));
    let (_world, cli) = world();
    cli.ok("plan create p --resource ./app --strategy filesystem_copy");
    sh(copy_of(&cli, "p", "app"), "mknod null c 1 3");
    let told = failed(&cli, "commit p", 3);
    let fields = "cause committed conflicts error kept left not_undone resources undone";
    assert_eq!(keys(&told), fields);
    assert_eq!(told["committed"], false);
    for field in ["conflicts", "resources", "undone", "not_undone"] {
        assert_eq!(told[field], value!([]), "{field}");
    }
    let cause = told["cause"].as_str().expect("a text");
    assert!(cause.contains("device node"), "{cause}");
}

// rule C14
#[test]
fn a_shared_lock_on_an_original_kept_others_from_looking() {
    let (world, cli) = world();
    let app = File::open(world.at("app")).expect("it is there");
    app.lock_shared().expect("nobody else has it");
    cli.ok("plan create p --resource ./app");
    put(&cli, "p app a.txt", "uno\n");
    assert_eq!(cli.ok("diff p --name-status"), "M\ta.txt\n");
    cli.ok("commit p --dry-run");
    app.unlock().expect("we have it");
    cli.ok("commit p");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
}

// rule C15
#[test]
fn what_both_sides_made_the_same_was_a_conflict() {
    let same = "echo same > new; mkdir nd; echo q > nd/q; ln -s target mine; echo two >> f; chmod 600 m; rm gone";
    for strategy in ["filesystem_copy", "overlay"] {
        let (world, cli) = world();
        let app = world.at("app");
        let text = "f \"one\\n\"\nm \"m\\n\"\ngone \"g\\n\"\nother \"o\\n\"\n";
        tree::build(&app, text);
        cli.plan("try", "./app", strategy);
        let script = format!("cd app; {same}; echo own > other");
        cli.ok(inside("run --plan try", &script));
        cli.ok("plan fork try again");
        sh(&app, same);
        let before = signature(&app);
        cli.ok("commit try --yes");
        assert_eq!(read(app.join("other")), "own\n", "{strategy}");
        // Nor does a fork that has nothing new conflict with what it was forked from.
        cli.ok("commit again --yes");
        cli.ok("undo again --yes");
        cli.ok("undo try --yes");
        assert_eq!(signature(&app), before, "{strategy}");
        // One letter more, one bit more, another target.
        for more in ["echo . >> new", "chmod 640 m", "ln -sfn elsewhere mine"] {
            cli.plan("differs", "./app", strategy);
            let script = "cd app; echo . >> new; echo . >> new; ln -sfn other mine; chmod 644 m";
            cli.ok(inside("run --plan differs", script));
            sh(&app, more);
            failed(&cli, "commit differs", 4);
            cli.ok("cleanup differs --yes");
        }
    }
}

/// A file that one plan wrote as it was gets a new time in the original, and nothing else.
// rule C15, F8
#[test]
fn a_file_that_another_plan_wrote_as_it_was_was_a_conflict() {
    as_user_too();
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        sh(world.path(), "touch -d 2001-02-03 app/a.txt");
        cli.plan("one", "./app", strategy);
        cli.plan("two", "./app", strategy);
        put(&cli, "one app a.txt", "one\ntwo\nthree\n");
        put(&cli, "one app b.txt", "new\n");
        put(&cli, "two app a.txt", "other\n");
        cli.ok("commit one");
        sh(world.path(), "test app/a.txt -nt app/src/main.rs");
        cli.ok("commit two");
        assert_eq!(read(world.at("app/a.txt")), "other\n", "{strategy}");
        // What another program did to it meanwhile is still one.
        cli.plan("three", "./app", strategy);
        cli.plan("four", "./app", strategy);
        put(&cli, "three app a.txt", "other\n");
        put(&cli, "three app c.txt", "new\n");
        put(&cli, "four app a.txt", "mine\n");
        cli.ok("commit three");
        write(world.at("app/a.txt"), "their\n");
        failed(&cli, "commit four", 4);
    }
}

/// A hint named no plan: typed as it stood, it released another one.
#[test]
fn commands_in_hints_are_about_the_plan_that_failed() {
    let (world, cli) = world();
    for plan in ["old", "young"] {
        cli.ok(["plan", "create", plan, "--resource", "app"]);
        put(&cli, &format!("{plan} app a.txt"), plan);
    }
    fs::write(world.at("app/a.txt"), "theirs").expect("it can be written");
    let hints = failed(&cli, "commit old", 4)["error"]["hints"].to_string();
    assert!(
        hints.contains("`escrow commit old --on-conflict sandbox`"),
        "{hints}"
    );
    let hints = cli.run("commit young").stderr_text();
    assert!(
        hints.contains("`escrow commit young --on-conflict sandbox`"),
        "{hints}"
    );
    // The plan that is in the way is another one.
    let hints = cli.run("plan rename young old").stderr_text();
    assert!(
        hints.contains("`escrow plan show old`") && !hints.contains("cleanup"),
        "{hints}"
    );
}
