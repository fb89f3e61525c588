//! One test for each bug that was found and mended, named after it.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use escrow_testkit::skip::is_root;
use escrow_testkit::{Cli, Fs, LoopFs, World};

use crate::{binary, json, words, world};

/// Runs a script that must succeed.
pub(crate) fn sh(dir: &Path, script: &str) {
    let status = Command::new("sh")
        .args(["-euc", script])
        .current_dir(dir)
        .status();
    assert!(status.expect("there is a shell").success(), "{script}");
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).expect("it is there").count()
}

#[test]
fn cleanup_needed_room_on_a_full_disk() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 32) else {
        return;
    };
    let world = World::under(fs.path());
    std::fs::write(world.dir("app").join("file"), [7; 100_000]).expect("it fits");
    let cli = Cli::new(&world, &binary());
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    cli.ok(words(
        "plan create other --resource ./app --strategy filesystem_copy",
    ));
    cli.clone().stdin("x").ok(words("write try app file"));
    sh(
        world.path(),
        "cat /dev/zero > filler 2>/dev/null || :; sync -f filler",
    );
    cli.ok(words("diff try"));
    cli.ok(words("cleanup try"));
    cli.ok(words("cleanup other"));
    assert_eq!(entries(&world.home().join("sandboxes")), 0);
    // With room again, the bytes for the next time are put by.
    std::fs::remove_file(world.path().join("filler")).expect("it is there");
    cli.ok(words("status"));
    assert!(world.home().join("ballast").exists());
}

#[test]
fn the_plan_of_a_directory_was_the_newest_above_instead_of_the_nearest() {
    let (world, cli) = world();
    let project = world.dir("project");
    world.dir("project/app");
    world.dir("sibling");
    json(
        &cli.clone().cwd(&project),
        "plan create inner --resource ./app",
    );
    json(&cli, "plan create outer");
    let inside = cli.clone().cwd(project.join("app"));
    assert_eq!(json(&inside, "plan show")["name"], "inner");
    let beside = cli.clone().cwd(world.path().join("sibling"));
    beside.fails(words("cleanup"), 1);
    assert_eq!(json(&cli, "plan show outer")["state"], "open");
}

#[test]
fn groups_and_access_lists_from_above_the_area_got_into_copies() {
    let (world, cli) = world();
    let above = world.dir("above");
    let grant = if is_root() {
        "chgrp 4242 above; chmod g+s above;"
    } else {
        ""
    };
    sh(
        world.path(),
        &format!("{grant} setfacl -d -m u:4243:rwx above"),
    );
    let cli = cli.env("ESCROW_HOME", above.join("home"));
    for strategy in ["filesystem_copy", "overlay"] {
        cli.ok(words(&format!(
            "plan create {strategy} --resource ./app --strategy {strategy}"
        )));
        cli.clone()
            .stdin("x")
            .ok(["write", strategy, "app", "src/new"]);
        let listed = cli.ok(["diff", strategy, "--name-status"]);
        assert_eq!(listed, "A\tsrc/new\n", "{strategy}");
    }
    let path = cli.ok(words("path filesystem_copy app"));
    let copy = std::fs::metadata(Path::new(path.trim_end()).join("a.txt")).expect("it is there");
    let original = std::fs::metadata(world.path().join("app/a.txt")).expect("it is there");
    assert_eq!((copy.gid(), copy.mode()), (original.gid(), original.mode()));
}

#[test]
fn a_new_file_did_not_inherit_from_its_directory() {
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "mkdir shared; chmod 2775 shared; setfacl -d -m u:4243:rw shared",
    );
    if is_root() {
        sh(&app, "chgrp 4242 shared; chmod g+s shared");
    }
    sh(&app, "echo x > shared/native");
    let acl = |file: &Path| {
        let output = Command::new("getfacl")
            .args(["-cn"])
            .arg(file)
            .output()
            .expect("acl is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let native = app.join("shared/native");
    for strategy in ["filesystem_copy", "overlay", "none"] {
        let plan = json(
            &cli,
            &format!("plan create {strategy} --resource ./app --strategy {strategy}"),
        );
        let name = format!("new-{strategy}");
        cli.clone()
            .stdin("x")
            .ok(["write", strategy, "app", &format!("shared/{name}")]);
        let sandbox = plan["sandboxes"][0]["sandbox_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let root = match strategy {
            "none" => app.clone(),
            "overlay" => world
                .home()
                .join("sandboxes")
                .join(sandbox)
                .join("layers/0"),
            _ => world
                .home()
                .join("sandboxes")
                .join(sandbox)
                .join("copy/tree"),
        };
        let made = root.join("shared").join(name);
        assert_eq!(acl(&made), acl(&native), "{strategy}");
        let gid = |file: &Path| std::fs::metadata(file).expect("it is there").gid();
        assert_eq!(gid(&made), gid(&native), "{strategy}");
    }
}

#[test]
fn a_bare_carriage_return_broke_the_patch() {
    let (world, cli) = world();
    let app = world.path().join("app");
    std::fs::write(app.join("cr"), "one\rtwo\r\nthree\n").expect("it can be written");
    cli.ok(words("plan create try --resource ./app"));
    cli.clone()
        .stdin("one\rTWO\r\nthree\n")
        .ok(words("write try app cr"));
    std::fs::write(
        world.path().join("p"),
        cli.run(words("diff try --patch")).stdout,
    )
    .expect("it can be written");
    sh(&app, "patch -p1 --quiet --binary < ../p");
    assert_eq!(
        std::fs::read(app.join("cr")).expect("it is there"),
        b"one\rTWO\r\nthree\n"
    );
}

#[test]
fn a_patch_broke_off_when_the_original_was_gone() {
    let (world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = cli.ok(words("path try app"));
    std::fs::remove_file(Path::new(path.trim_end()).join("a.txt")).expect("it is there");
    std::fs::write(Path::new(path.trim_end()).join("z"), "z\n").expect("it can be written");
    std::fs::remove_file(world.path().join("app/a.txt")).expect("it is there");
    let patch = cli.ok(words("diff try --patch"));
    assert!(
        patch.contains("# the original's version is gone: a.txt"),
        "{patch}"
    );
    assert!(patch.contains("+z"), "{patch}");
}

/// Starts them all, then waits for all; their exit codes and what they said.
fn at_once(cli: &Cli, lines: &[String]) -> Vec<(i32, String)> {
    let start = |line: &String| {
        let mut command = cli.command(words(line));
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let children: Vec<_> = lines.iter().map(start).collect();
    let end = |child: std::process::Child| {
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
    assert_eq!(
        resources["resources"].as_array().map(Vec::len),
        Some(1),
        "{resources}"
    );
}

#[test]
fn readers_of_a_plan_that_is_over_fell_over_its_lock() {
    let (world, cli) = world();
    cli.ok(words("plan create try --resource ./app"));
    cli.ok(words("cleanup try"));
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
    cli.fails(
        words("plan create x --resource ./app --strategy quantum"),
        2,
    );
    cli.fails(
        words("plan create x --resource ./app --resource ./nowhere"),
        1,
    );
    assert_eq!(
        json(&cli, "resource list"),
        serde_json::json!({"resources": []})
    );
}

#[test]
fn what_a_killed_probe_left_was_never_swept() {
    let (world, cli) = world();
    cli.ok(words("status"));
    let sandboxes = world.home().join("sandboxes");
    for left in ["scratch-old/original", "probe-old/upper"] {
        std::fs::create_dir_all(sandboxes.join(left)).expect("it can be made");
    }
    cli.ok(words("strategy check none"));
    cli.ok(words("doctor app"));
    assert_eq!(entries(&sandboxes), 0);
}

#[test]
fn a_home_that_others_can_write_was_used() {
    let (world, cli) = world();
    let home = world.dir("open");
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o777)).expect("it is ours");
    let error = cli.env("ESCROW_HOME", &home).fails(words("status"), 1);
    assert!(error.contains("others may write in it"), "{error}");
    assert_eq!(entries(&home), 0);
}

#[test]
fn lost_output_was_a_success() {
    let (_world, cli) = world();
    cli.ok(words("plan create try --resource ./app"));
    for line in [
        "plan list",
        "--json status",
        "read try app a.txt",
        "diff try",
        "reference",
    ] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let output = cli
            .command(words(line))
            .stdout(full)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert_eq!(
            said.matches("cannot write the output").count(),
            1,
            "{line}: {said}"
        );
    }
}

#[test]
fn a_backslash_in_a_path_was_doubled_in_json() {
    let world = World::new();
    let inside = world.dir("we\\ird");
    world.dir("we\\ird/app");
    let cli = Cli::new(&world, &binary())
        .cwd(&inside)
        .env("ESCROW_HOME", inside.join("home"));
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = json(&cli, "path try app")["path"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(Path::new(&path).is_dir(), "{path}");
}

#[test]
fn one_file_that_cannot_be_shared_kept_all_from_being_shared() {
    let Some(fs) = LoopFs::new(Fs::Btrfs, 160) else {
        return;
    };
    let world = World::under(fs.path());
    let app = world.dir("app");
    sh(
        &app,
        "touch a; chattr +C a; head -c 9000 /dev/zero > a; for n in b c d; do echo $n > $n; done",
    );
    let cli = Cli::new(&world, &binary());
    let plan = json(
        &cli,
        "plan create try --resource ./app --strategy copy_on_write",
    );
    let message = plan["sandboxes"][0]["message"].as_str().expect("a text");
    assert_eq!(message, "4 files share their contents with the original");
}

#[test]
fn a_copy_could_not_be_read_without_its_original() {
    let (world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    std::fs::rename(world.path().join("app"), world.path().join("away")).expect("it can be moved");
    assert_eq!(cli.ok(words("read try app a.txt")), "one\ntwo\nthree\n");
    cli.clone().stdin("x").ok(words("write try app b.txt"));
    let error = cli.fails(words("rollback try"), 1);
    assert!(error.contains("is gone"), "{error}");
    std::fs::rename(world.path().join("away"), world.path().join("app")).expect("it can be moved");
    assert_eq!(cli.ok(words("diff try --name-status")), "A\tb.txt\n");
}

#[test]
fn a_resource_that_holds_the_state_was_copied_into_itself() {
    let (world, cli) = world();
    let add = format!(
        "resource add all --at {} --allow-root",
        world.path().display()
    );
    cli.fails(words(add.trim_end_matches("--allow-root")), 2);
    cli.ok(words(&add));
    let error = cli.fails(
        words("plan create try --resource all --strategy filesystem_copy"),
        1,
    );
    assert!(
        error.contains("cannot copy a directory into itself"),
        "{error}"
    );
    assert_eq!(entries(&world.home().join("sandboxes")), 0);
}

/// A killed cleanup leaves something that is not whole, and every command but cleanup says so.
#[test]
fn a_half_removed_sandbox_was_called_healthy() {
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 100); do echo x > d$d/f$f; done; done",
    );
    let mut halved = false;
    for wait in 1..200 {
        cli.ok(words(
            "plan create try --resource ./app --strategy filesystem_copy",
        ));
        let mut child = cli
            .command(words("cleanup try --yes"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        let state = json(&cli, "plan list")["plans"][0]["sandboxes"][0]["state"].clone();
        if state == "errored" {
            for line in ["diff try", "read try app a.txt"] {
                let error = cli.fails(words(line), 5);
                assert!(error.contains("is being removed"), "{line}: {error}");
            }
            // What changes something finishes the removal first.
            let error = cli.fails(words("sandbox create try app"), 4);
            assert!(error.contains("was cleaned up"), "{error}");
            halved = true;
        }
        cli.ok(words("cleanup try"));
        if halved {
            break;
        }
    }
    assert!(halved, "it was never killed half way");
    assert_eq!(entries(&world.home().join("sandboxes")), 0);
}

#[test]
fn an_interrupted_create_left_its_plan() {
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 200); do echo x > d$d/f$f; done; done",
    );
    let mut interrupted = false;
    for wait in 20..200 {
        let child = cli
            .command(words(
                "plan create try --resource ./app --strategy filesystem_copy",
            ))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        std::thread::sleep(std::time::Duration::from_millis(wait));
        sh(&app, &format!("kill -INT {} 2>/dev/null || :", child.id()));
        let output = child.wait_with_output().expect("it ends");
        match output.status.code() {
            Some(130) => interrupted = true,
            // Too early to be caught, or too late.
            _ => {
                let plans = json(&cli, "plan list")["plans"]
                    .as_array()
                    .map_or(0, Vec::len);
                if plans > 0 {
                    cli.run(words("cleanup try"));
                }
                continue;
            }
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("interrupted; what was begun was taken away again"),
            "{said}"
        );
        break;
    }
    assert!(interrupted, "it was never caught in the middle");
    let open: Vec<_> = json(&cli, "status")["plans"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(open, Vec::<serde_json::Value>::new());
    assert_eq!(entries(&world.home().join("sandboxes")), 0);
}

#[test]
fn an_unfinished_sandbox_was_made_anew_by_another_strategy() {
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "for d in $(seq 60); do mkdir d$d; for f in $(seq 100); do echo x > d$d/f$f; done; done",
    );
    cli.ok(words("plan create try"));
    crate::verbs::interrupted(&cli, "try");
    let made = json(&cli, "sandbox create try app");
    assert_eq!(made["strategy"], "filesystem_copy", "{made}");
}

#[test]
fn another_directory_of_the_same_name_was_taken_for_the_plans_own() {
    let (world, cli) = world();
    world.dir("o");
    let there = world.dir("o/app");
    std::fs::write(there.join("a.txt"), "the other\n").expect("it can be written");
    cli.ok(words("plan create first --resource ./app"));
    let beside = cli.clone().cwd(world.path().join("o"));
    beside.ok(words("plan create second --resource ./app"));
    assert_eq!(beside.ok(words("read second app a.txt")), "the other\n");
    assert_eq!(beside.ok(words("read second ./app a.txt")), "the other\n");
    // Directories that nobody named are forgotten with their last plan.
    cli.ok(words("cleanup first"));
    cli.ok(words("cleanup second"));
    assert_eq!(
        json(&cli, "resource list"),
        serde_json::json!({"resources": []})
    );
}

#[test]
fn inside_a_sandbox_its_plan_was_not_found() {
    let (_world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = cli.ok(words("path try app"));
    let inside = cli.clone().cwd(Path::new(path.trim_end()).join("src"));
    std::fs::write(Path::new(path.trim_end()).join("new"), "x").expect("it can be written");
    assert_eq!(inside.ok(words("diff --name-status")), "A\tnew\n");
}

#[test]
fn from_a_directory_that_is_gone_nothing_worked() {
    let (world, cli) = world();
    cli.ok(words("plan create try --resource ./app"));
    let gone = world.dir("gone");
    let line = format!(
        "cd gone && rmdir ../gone && '{}' status && '{}' diff try",
        binary().display(),
        binary().display()
    );
    let plain = cli.command(words("status"));
    let mut command = Command::new("sh");
    command
        .args(["-euc", &line])
        .current_dir(world.path())
        .env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let output = command.output().expect("there is a shell");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!gone.exists());
}

#[test]
fn a_forgotten_word_was_blamed_on_the_plan() {
    let (world, cli) = world();
    cli.ok(words("plan create try --resource ./app"));
    let elsewhere = cli.clone().cwd(world.dir("elsewhere"));
    for (cli, line) in [
        (&cli, "read try app"),
        (&elsewhere, "path try"),
        (&elsewhere, "write try app"),
    ] {
        let error = cli.fails(words(line), 2);
        assert!(
            error.contains("'try' is a plan; a word is missing behind it"),
            "{line}: {error}"
        );
    }
}

#[test]
fn stderr_that_cannot_be_written_was_a_panic() {
    let (_world, cli) = world();
    for (line, code) in [
        ("diff nope", 1),
        ("plan create try --resource ./app", 0),
        ("frobnicate", 2),
    ] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let status = cli
            .command(words(line))
            .stderr(full)
            .stdout(Stdio::null())
            .status();
        assert_eq!(status.expect("it starts").code(), Some(code), "{line}");
    }
}

#[test]
fn an_area_was_put_into_another_resource() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 32) else {
        return;
    };
    let there = World::under(fs.path());
    let outer = there.dir("outer");
    there.dir("outer/inner");
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    cli.ok(words("plan create out --resource ./outer"));
    cli.ok(words("plan create in --resource ./outer/inner"));
    assert_eq!(entries(&outer), 1);
    // One that came before the outer resource was known is left out of copies, by name.
    cli.ok(words("cleanup out"));
    cli.ok(words("cleanup in"));
    cli.ok(words("plan create in --resource ./outer/inner"));
    assert_eq!(entries(&outer), 2);
    let plan = json(
        &cli,
        "plan create out --resource ./outer --strategy filesystem_copy",
    );
    let warnings = plan["sandboxes"][0]["warnings"].to_string();
    assert!(warnings.contains("it is a sandbox of Escrow"), "{warnings}");
}

#[test]
fn quiet_was_not_quiet() {
    let (_world, cli) = world();
    for line in [
        "-q plan create try --resource ./app",
        "-q rollback try",
        "-q cleanup try",
    ] {
        let outcome = cli.run(words(line));
        assert_eq!(
            (outcome.status, outcome.stdout_text(), outcome.stderr_text()),
            (0, String::new(), String::new()),
            "{line}"
        );
    }
}

#[test]
fn a_directory_copied_up_inherited_a_list_that_its_original_has_not() {
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "mkdir -p a/b; setfacl -d -m u:4243:rwx a; touch a/b/f",
    );
    let plan = json(&cli, "plan create try --resource ./app --strategy overlay");
    cli.clone().stdin("x").ok(words("write try app a/b/f"));
    let id = plan["sandboxes"][0]["sandbox_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let upper = world.home().join("sandboxes").join(id).join("layers/0");
    sh(
        &upper,
        "getfacl -cn a | grep -q default:user:4243; ! getfacl -cn a/b | grep -q 4243",
    );
    assert_eq!(cli.ok(words("diff try --name-status")), "M\ta/b/f\n");
}

#[test]
fn a_users_own_hidden_directory_was_left_out_for_its_name() {
    let (world, cli) = world();
    sh(
        &world.path().join("app"),
        "mkdir .escrow-notes; echo mine > .escrow-notes/file",
    );
    let plan = json(
        &cli,
        "plan create try --resource ./app --strategy filesystem_copy",
    );
    assert_eq!(plan["sandboxes"][0]["warnings"], serde_json::json!([]));
    assert_eq!(cli.ok(words("read try app .escrow-notes/file")), "mine\n");
}
