//! Bugs that only an ordinary user met, or that only came with several processes or a kill in the
//! right place; each test is named after one.

use std::path::Path;
use std::process::{Command, Stdio};

use escrow_testkit::skip::{is_root, require_root};
use escrow_testkit::user::{UID, as_user, rerun_test_as_user_with};
use escrow_testkit::{Cli, Fs, LoopFs, World};

use crate::regressions::sh;
use crate::{binary, json, words, world};

fn as_ordinary_user(test: &str) -> bool {
    if is_root() {
        rerun_test_as_user_with(test, &[&binary()]);
    }
    is_root()
}

#[test]
fn a_read_only_root_had_no_overlay() {
    if as_ordinary_user("regressions_user::a_read_only_root_had_no_overlay") {
        return;
    }
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(&app, "chmod 555 .");
    let plan = json(&cli, "plan create try --resource ./app");
    assert_eq!(plan["sandboxes"][0]["strategy"], "overlay", "{plan}");
    cli.clone().stdin("x").ok(words("write try app src/new"));
    assert_eq!(cli.ok(words("diff try --name-status")), "A\tsrc/new\n");
    cli.clone().stdin("x").fails(words("write try app new"), 1);
    cli.ok(words("rollback try"));
    assert_eq!(cli.ok(words("diff try --name-status")), "");
    sh(&app, "chmod 755 .");
}

#[test]
fn attributes_of_read_only_files_were_lost() {
    if as_ordinary_user("regressions_user::attributes_of_read_only_files_were_lost") {
        return;
    }
    let (world, cli) = world();
    let app = world.path().join("app");
    sh(
        &app,
        "setfattr -n user.a -v b a.txt; chmod 444 a.txt; setfattr -n user.d -v e src; chmod 555 src",
    );
    let plan = json(
        &cli,
        "plan create copy --resource ./app --strategy filesystem_copy",
    );
    assert_eq!(plan["sandboxes"][0]["warnings"], serde_json::json!([]));
    let path = cli.ok(words("path copy app"));
    sh(
        Path::new(path.trim_end()),
        "chmod 755 src; rm -r src; getfattr -n user.a a.txt > /dev/null",
    );
    cli.ok(words("rollback copy"));
    assert_eq!(cli.ok(words("diff copy --name-status")), "");
    cli.ok(words(
        "plan create over --resource ./app --strategy overlay",
    ));
    cli.clone().stdin("new").ok(words("write over app a.txt"));
    assert_eq!(cli.ok(words("diff over --name-status")), "M\ta.txt\n");
    sh(&app, "chmod 755 src");
}

#[test]
fn a_failed_write_left_directories_open() {
    if as_ordinary_user("regressions_user::a_failed_write_left_directories_open") {
        return;
    }
    let (world, cli) = world();
    sh(
        &world.path().join("app"),
        "mkdir -p ro/sub; chmod 555 ro/sub ro",
    );
    cli.ok(words("plan create try --resource ./app --strategy overlay"));
    for path in ["ro/new/f", "ro/sub/f", "ro/sub/new/f"] {
        cli.clone()
            .stdin("x")
            .fails(["write", "try", "app", path], 1);
        assert_eq!(cli.ok(words("diff try --name-status")), "", "{path}");
    }
    sh(&world.path().join("app"), "chmod 755 ro");
}

#[test]
fn a_touched_file_lost_its_capabilities_by_a_rollback() {
    if !require_root("file capabilities") {
        return;
    }
    let (world, cli) = world();
    sh(
        &world.path().join("app"),
        "cp /bin/true prog; chown 1000:1000 prog; setcap cap_net_raw+ep prog",
    );
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = cli.ok(words("path try app"));
    sh(Path::new(path.trim_end()), "touch prog");
    cli.ok(words("rollback try"));
    assert_eq!(cli.ok(words("diff try --name-status")), "");
    sh(
        Path::new(path.trim_end()),
        "getcap prog | grep -q cap_net_raw",
    );
}

#[test]
fn doctor_swept_what_belongs_to_others() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 16) else {
        return;
    };
    sh(
        fs.path(),
        &format!(
            "chmod 1777 .; mkdir app .escrow-probe-mine; touch .escrow-probe-mine/data; chown -R {UID} .escrow-probe-mine"
        ),
    );
    let world = World::new();
    let cli = Cli::new(&world, &binary()).cwd(fs.path());
    cli.ok(words("doctor app"));
    assert!(fs.path().join(".escrow-probe-mine/data").exists());
    let other = as_user("ls")
        .arg(fs.path())
        .output()
        .expect("there is an ls");
    assert!(other.status.success());
}

#[test]
fn a_kill_while_replacing_left_a_name_in_the_original() {
    let (world, cli) = world();
    cli.ok(words("plan create try --resource ./app --strategy none"));
    let status = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "inject=renameat,renameat2:signal=KILL:when=1",
        ])
        .arg(binary())
        .args(["write", "try", "app", "a.txt"])
        .current_dir(world.path())
        .env("ESCROW_HOME", world.home())
        .env("HOME", world.dir("user-home"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("strace is installed");
    assert!(!status.success());
    let names: Vec<String> = std::fs::read_dir(world.path().join("app"))
        .expect("it is there")
        .map(|entry| {
            entry
                .expect("it can be listed")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| name.starts_with(".escrow"))
        .collect();
    assert_eq!(names, Vec::<String>::new());
    cli.ok(words("cleanup try"));
}

#[test]
fn a_plan_that_is_no_text_was_taken_as_left_out() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let (_world, cli) = world();
    cli.ok(words("plan create try --resource ./app"));
    let line = [
        OsStr::new("write"),
        OsStr::from_bytes(b"\xff\xfe"),
        OsStr::new("app"),
        OsStr::new("f"),
    ];
    cli.fails(line, 1);
    assert_eq!(cli.ok(words("diff try --name-status")), "");
}

#[test]
fn cleanup_called_removed_what_was_out_of_reach() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 16) else {
        return;
    };
    let there = World::under(fs.path());
    there.dir("room");
    there.dir("room/app");
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    cli.ok(words(
        "plan create try --resource ./room/app --strategy filesystem_copy",
    ));
    sh(there.path(), "mv room away");
    let error = cli.fails(words("cleanup try"), 1);
    assert!(
        error.contains("is their file system not mounted"),
        "{error}"
    );
    sh(there.path(), "mv away room");
    cli.ok(words("cleanup try"));
    assert_eq!(
        std::fs::read_dir(there.path().join("room"))
            .expect("it is there")
            .count(),
        1
    );
    cli.ok(words("plan create again --resource ./room/app"));
    sh(there.path(), "mv room gone");
    cli.ok(words("cleanup again --forget"));
}

#[test]
fn a_rollback_that_failed_left_half_a_copy() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 32) else {
        return;
    };
    let world = World::under(fs.path());
    let app = world.dir("app");
    sh(
        &app,
        "for n in $(seq 100); do head -c 60000 /dev/zero > f$n; done; ln f1 g1",
    );
    let cli = Cli::new(&world, &binary());
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let path = cli.ok(words("path try app"));
    // A hard link that was touched makes it a whole new copy, for which there is no room.
    sh(Path::new(path.trim_end()), "touch f1");
    sh(
        world.path(),
        "head -c 100M /dev/zero > filler 2>/dev/null || :; truncate -s -1M filler; sync -f .",
    );
    let error = cli.fails(words("rollback try"), 5);
    assert!(error.contains("No space left"), "{error}");
    // It was decided, and goes on as soon as there is room; until then nothing of it can be committed.
    cli.fails(words("commit try"), 5);
    sh(world.path(), "rm filler");
    cli.ok(words("recover"));
    assert_eq!(cli.ok(words("diff try --name-status")), "");
    let area = Path::new(path.trim_end())
        .ancestors()
        .nth(2)
        .expect("the area");
    assert!(!area.join("copy.new").exists());
}
