//! One test for each bug of commit and undo that came with an unusual place, an unusual file or
//! another resource; each is named after the bug.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use escrow_testkit::skip::require_root;
use escrow_testkit::{Cli, Fs, LoopFs, World, tree};
use serde_json::{Value, json as value};

use crate::regressions::sh;
use crate::regressions_commit::{copy_of, failed, holds, mode, put, read, write};
use crate::{binary, json, keys, words, world};

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: &Path, script: &str) -> Self {
        sh(at.parent().expect("it lies in a world"), script);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("--").arg(&self.0).status();
        // The world says what is still there.
        drop(ended);
    }
}

/// Nothing waits to be recovered, and the plan can go.
#[track_caller]
fn assert_not_stuck(cli: &Cli, plan: &str) {
    assert_eq!(json(cli, "status")["unfinished"], value!([]));
    cli.ok(["cleanup", plan]);
    assert_eq!(
        json(cli, &format!("plan show {plan}"))["state"],
        "cleaned_up"
    );
}

fn notes(done: &Value) -> Vec<String> {
    let notes = done["resources"][0]["notes"].as_array().expect("a list");
    let text = |note: &Value| format!("{}: {}", note["path"], note["what"]).replace('"', "");
    notes.iter().map(text).collect()
}

// rule C2
#[test]
fn a_commit_into_an_overlay_file_system_was_stuck() {
    if !require_root("an overlay file system") {
        return;
    }
    let world = World::new();
    for name in ["lower/app", "upper", "work", "merged"] {
        world.dir(name);
    }
    write(world.path().join("lower/app/f"), "old\n");
    let _mounted = Mounted::new(
        &world.path().join("merged"),
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged",
    );
    let cli = Cli::new(&world, &binary());
    for strategy in ["auto", "filesystem_copy"] {
        let line = format!("plan create {strategy} --resource ./merged/app --strategy {strategy}");
        cli.ok(words(&line));
        put(&cli, &format!("{strategy} app f"), "new\n");
        let told = failed(&cli, &format!("commit {strategy}"), 1);
        assert_eq!(told["error"]["kind"], "unsupported", "{told}");
        assert_eq!(read(world.path().join("merged/app/f")), "old\n");
        assert_eq!(cli.ok(["read", strategy, "app", "f"]), "new\n");
        assert_not_stuck(&cli, strategy);
    }
}

/// The sandbox deletes `a/d`, which holds `f`; then somebody runs `script`, with a directory
/// `older` at hand that was there before and holds `name`. The commit must see it, and the file
/// must stay.
#[track_caller]
fn assert_conflict_in_deleted(strategy: &str, name: &str, script: &str, stays: &str) {
    let (world, cli) = world();
    let app = world.path().join("app");
    tree::build(&app, "a/d/f \"f\\n\"\n");
    tree::build(world.path(), &format!("older/{name} \"precious\\n\"\n"));
    let line = format!("plan create try --resource ./app --strategy {strategy}");
    cli.ok(words(&line));
    cli.ok(words("run --plan try -- rm -r app/a/d"));
    let said = cli.ok(words("diff try --name-status"));
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
            let stays = format!("a/d/{name}");
            assert_conflict_in_deleted(strategy, name, script, &stays);
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
        std::thread::sleep(Duration::from_millis(2));
    }
    second()
}

/// Makes a copy, and runs `edit` when all of it is there but its maker still waits for the clock.
fn edit_while_it_is_copied(cli: &Cli, home: &Path, edit: impl FnOnce()) {
    let line = "plan create try --resource ./app --strategy filesystem_copy";
    let mut making = cli
        .command(words(line))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let copied = || holds(&home.join("sandboxes"), "old\n");
    while !copied() && making.try_wait().expect("it is ours").is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    edit();
    assert!(making.wait().expect("it ends").success());
}

// rule C15
#[test]
fn an_edit_in_the_second_in_which_the_sandbox_was_made_was_no_conflict() {
    // Times are whole seconds here.
    let Some(disk) = LoopFs::with_mkfs_args(Fs::Ext4, 32, &["-I", "128"]) else {
        return;
    };
    for strategy in ["overlay", "filesystem_copy"] {
        let mut met = false;
        for _ in 0..20 {
            let world = World::under(disk.path());
            let cli = Cli::new(&world, &binary());
            let at = world.dir("app").join("f");
            cli.ok(words("status"));
            let began = next_second();
            write(&at, "old\n");
            let edit = || write(&at, "ed.\n");
            if strategy == "overlay" {
                cli.ok(words("plan create try --resource ./app --strategy overlay"));
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
fn whole_seconds_made_conflicts_that_nobody_made() {
    let Some(disk) = LoopFs::with_mkfs_args(Fs::Ext4, 32, &["-I", "128"]) else {
        return;
    };
    let world = World::under(disk.path());
    let cli = Cli::new(&world, &binary());
    write(world.dir("app").join("f"), "old\n");
    for strategy in ["overlay", "filesystem_copy"] {
        next_second();
        next_second();
        let line = format!("plan create {strategy} --resource ./app --strategy {strategy}");
        cli.ok(words(&line));
        put(&cli, &format!("{strategy} app f"), "new\n");
        cli.ok(["commit", strategy]);
        cli.ok(["undo", strategy]);
        assert_eq!(read(world.path().join("app/f")), "old\n");
    }
}

// rule C1
#[test]
fn a_subvolume_could_not_be_committed() {
    let Some(disk) = LoopFs::new(Fs::Btrfs, 160) else {
        return;
    };
    let world = World::under(disk.path());
    sh(
        world.path(),
        "btrfs -q subvolume create app; btrfs -q subvolume create vol; echo old > app/f",
    );
    let home = world.dir("vol/home");
    let cli = Cli::new(&world, &binary()).env("ESCROW_HOME", home);
    for strategy in ["auto", "overlay", "copy_on_write", "filesystem_copy"] {
        let line = format!("plan create {strategy} --resource ./app --strategy {strategy}");
        cli.ok(words(&line));
        put(&cli, &format!("{strategy} app f"), "new\n");
        put(&cli, &format!("{strategy} app sub/more"), "more\n");
        cli.ok(["commit", strategy]);
        assert_eq!(read(world.path().join("app/f")), "new\n", "{strategy}");
        cli.ok(["undo", strategy]);
        assert_eq!(read(world.path().join("app/f")), "old\n", "{strategy}");
        assert!(!world.path().join("app/sub").exists(), "{strategy}");
        cli.ok(["cleanup", strategy]);
    }
}

// rule C2
#[test]
fn a_change_in_a_nested_subvolume_was_stuck_half_committed() {
    let Some(disk) = LoopFs::new(Fs::Btrfs, 160) else {
        return;
    };
    let world = World::under(disk.path());
    sh(
        world.path(),
        "btrfs -q subvolume create app; btrfs -q subvolume create app/sub; echo old > app/f; \
            echo old > app/sub/g",
    );
    let cli = Cli::new(&world, &binary());
    for strategy in ["overlay", "filesystem_copy"] {
        let line = format!("plan create {strategy} --resource ./app --strategy {strategy}");
        cli.ok(words(&line));
        put(&cli, &format!("{strategy} app f"), "new\n");
        put(&cli, &format!("{strategy} app sub/g"), "new\n");
        let outcome = cli.run(["commit", strategy]);
        let said = outcome.stderr_text();
        assert!([1, 3].contains(&outcome.status), "{strategy}: {said}");
        assert!(said.contains("sub/g"), "{strategy}: {said}");
        assert_eq!(read(world.path().join("app/f")), "old\n", "{strategy}");
        assert_eq!(read(world.path().join("app/sub/g")), "old\n", "{strategy}");
        assert_eq!(cli.ok(["read", strategy, "app", "sub/g"]), "new\n");
        assert_not_stuck(&cli, strategy);
    }
}

// rule F3
#[test]
fn a_commit_of_a_hard_link_alone_could_not_be_undone() {
    let (world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    sh(&copy_of(&cli, "try", "app"), "ln a.txt b.txt");
    cli.ok(words("commit try"));
    let (a, b) = (
        world.path().join("app/a.txt"),
        world.path().join("app/b.txt"),
    );
    let ino = |path: &Path| fs::metadata(path).expect("it is there").ino();
    assert_eq!(ino(&a), ino(&b));
    cli.ok(words("undo try"));
    assert!(!b.exists());
    assert_eq!(read(&a), "one\ntwo\nthree\n");
    assert_eq!(fs::metadata(&a).expect("it is there").nlink(), 1);
}

// rule F1, F3
#[test]
fn a_new_directory_with_a_hard_link_lost_its_time() {
    let (world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    sh(
        &copy_of(&cli, "try", "app"),
        "mkdir d d/e; ln a.txt d/e/b; echo x > d/own; touch -d 2001-02-03T04:05:06.7 d/e d",
    );
    cli.ok(words("commit try"));
    let d = world.path().join("app/d");
    assert_eq!(read(d.join("e/b")), "one\ntwo\nthree\n");
    for dir in [&d, &d.join("e")] {
        let meta = fs::metadata(dir).expect("it is there");
        let time = (meta.mtime(), meta.mtime_nsec());
        assert_eq!(time, (981_173_106, 700_000_000), "{}", dir.display());
    }
    cli.ok(words("undo try"));
    assert!(!d.exists());
}

// rule F7
#[test]
fn setuid_below_a_new_directory_was_released() {
    let (world, cli) = world();
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    sh(
        &copy_of(&cli, "try", "app"),
        "mkdir -p bin/deep; echo x > bin/deep/tool; chmod 4755 bin/deep/tool",
    );
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), ["bin/deep/tool: setuid dropped"]);
    assert_eq!(mode(world.path().join("app/bin/deep/tool")), 0o755);
}

// rule F7
#[test]
fn setuid_was_released_to_another_owner() {
    if !require_root("files of other users") {
        return;
    }
    let (world, cli) = world();
    let tool = world.path().join("app/tool");
    sh(
        &world.path().join("app"),
        "echo x > tool; chown 65534 tool; chmod 4755 tool",
    );
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    let copy = copy_of(&cli, "try", "app");
    assert_eq!(mode(copy.join("tool")), 0o4755);
    sh(&copy, "chown 0 tool; chmod 4755 tool");
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), ["tool: setuid dropped"]);
    let meta = fs::metadata(&tool).expect("it is there");
    assert_eq!((meta.uid(), mode(&tool)), (0, 0o755));
    cli.ok(words("undo try"));
    let meta = fs::metadata(&tool).expect("it is there");
    assert_eq!((meta.uid(), mode(&tool)), (65534, 0o4755));
}

// rule F7
#[test]
fn a_hard_link_to_a_setuid_file_was_said_to_lose_it() {
    let (world, cli) = world();
    sh(&world.path().join("app"), "echo x > tool; chmod 4755 tool");
    cli.ok(words(
        "plan create try --resource ./app --strategy filesystem_copy",
    ));
    sh(&copy_of(&cli, "try", "app"), "ln tool other");
    let done = json(&cli, "commit try");
    assert_eq!(notes(&done), [""; 0]);
    assert_eq!(mode(world.path().join("app/tool")), 0o4755);
    assert_eq!(mode(world.path().join("app/other")), 0o4755);
}

// rule F8
#[test]
fn the_undo_area_of_another_plan_was_taken_into_a_copy() {
    let Some(disk) = LoopFs::new(Fs::Ext4, 32) else {
        return;
    };
    let (_world, cli) = world();
    let at = disk.path();
    write(at.join("f"), "old\n");
    let location = at.to_str().expect("a plain path");
    cli.ok(["resource", "add", "disk", "--at", location]);
    cli.ok(words("plan create first --resource disk"));
    put(&cli, "first disk f", "new\n");
    cli.ok(words("commit first"));
    let area = |dir: &Path| {
        let entries = fs::read_dir(dir).expect("it is there");
        let names = entries.map(|entry| entry.expect("it can be read").file_name());
        let mut names = names.map(|name| name.to_string_lossy().into_owned());
        names.find(|name| name.starts_with(".escrow-"))
    };
    let name = area(at).expect("the old version lies in the root");
    assert!(name.ends_with(".undo"), "{name}");
    cli.ok(words(
        "plan create copy --resource disk --strategy filesystem_copy",
    ));
    let copy = copy_of(&cli, "copy", "disk");
    assert_eq!(area(&copy), None);
    assert_eq!(cli.ok(words("diff copy --name-status")), "");
    // Planted in the copy, deleted in a layer.
    sh(&copy, &format!("mkdir {name}; echo planted > {name}/made"));
    assert_eq!(cli.ok(words("diff copy --name-status")), "");
    cli.ok(words("commit copy"));
    cli.ok(words(
        "plan create layer --resource disk --strategy overlay",
    ));
    cli.ok([
        "run",
        "--plan",
        "layer",
        "--",
        "rm",
        "-rf",
        &format!("{location}/{name}"),
    ]);
    assert_eq!(cli.ok(words("diff layer --name-status")), "");
    cli.ok(words("commit layer"));
    assert!(!at.join(&name).join("made").exists());
    cli.ok(words("undo first"));
    assert_eq!(read(at.join("f")), "old\n");
}

// rule C8
#[test]
fn work_in_what_belongs_to_another_resource_was_lost() {
    let (world, cli) = world();
    tree::build(world.path(), "app/data/inner/rows \"1\\n\"\n");
    cli.ok(words("resource add app --at app"));
    cli.ok(words("resource add data --at app/data/inner --parent app"));
    cli.ok(words(
        "plan create p --resource app --resource data --strategy filesystem_copy",
    ));
    put(&cli, "p app a.txt", "uno\n");
    let copy = copy_of(&cli, "p", "app");
    sh(&copy, "mkdir -p data/inner; echo stray > data/inner/stray");
    let told = failed(&cli, "commit p", 3);
    let said = told["error"]["message"].as_str().expect("a text");
    assert!(said.contains("data/inner/stray"), "{said}");
    assert_eq!(read(copy.join("data/inner/stray")), "stray\n");
    assert_eq!(read(world.path().join("app/a.txt")), "one\ntwo\nthree\n");
    assert!(!world.path().join("app/data/inner/stray").exists());
    fs::remove_file(copy.join("data/inner/stray")).expect("it is there");
    cli.ok(words("commit p"));
    assert_eq!(read(world.path().join("app/a.txt")), "uno\n");
    assert_eq!(read(world.path().join("app/data/inner/rows")), "1\n");
}

// rule C8, P4
#[test]
fn a_child_got_a_sandbox_although_its_parents_held_it_already() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        tree::build(world.path(), "app/data/rows \"1\\n\"\n");
        cli.ok(words("resource add app --at app"));
        let line = format!("plan create p --resource app --strategy {strategy}");
        cli.ok(words(&line));
        cli.ok(words("resource add data --at app/data --parent app"));
        let told = failed(&cli, "sandbox create p data", 2);
        assert_eq!(told["error"]["kind"], "usage", "{told}");
        put(&cli, "p app data/rows", "2\n");
        cli.ok(words("commit p"));
        assert_eq!(read(world.path().join("app/data/rows")), "2\n");
        cli.ok(words("plan create q --resource app"));
        cli.ok(words("sandbox create q data"));
    }
}

// rule C5, C10
#[test]
fn an_undo_that_could_not_undo_all_said_it_was_not_committed() {
    let (world, cli) = world();
    write(world.dir("bare").join("f"), "1\n");
    cli.ok(words("resource add bare --at bare --strategy none"));
    cli.ok(words("plan create p --resource ./app --resource bare"));
    put(&cli, "p app a.txt", "uno\n");
    put(&cli, "p bare f", "2\n");
    cli.ok(words("commit p"));
    let told = failed(&cli, "undo p", 1);
    assert_eq!(told["success"], false, "{told}");
    let not_undone = told["not_undone"].as_array().expect("a list");
    let names: Vec<&Value> = not_undone.iter().map(|one| &one["resource"]).collect();
    assert_eq!(names, ["bare"], "{told}");
    assert_eq!(told["undone"], value!(["app"]));
    let said = told["error"]["message"].as_str().expect("a text");
    assert!(!said.contains("was not committed"), "{said}");
    assert_eq!(read(world.path().join("app/a.txt")), "one\ntwo\nthree\n");
    assert_eq!(read(world.path().join("bare/f")), "2\n");
    assert_not_stuck(&cli, "p");
}

// rule C5
#[test]
fn a_refused_commit_did_not_say_that_nothing_was_committed() {
    if !require_root("a device node") {
        return;
    }
    let (_world, cli) = world();
    cli.ok(words(
        "plan create p --resource ./app --strategy filesystem_copy",
    ));
    sh(&copy_of(&cli, "p", "app"), "mknod null c 1 3");
    let told = failed(&cli, "commit p", 3);
    let fields = [
        "cause",
        "committed",
        "conflicts",
        "error",
        "kept",
        "left",
        "not_undone",
        "resources",
        "undone",
    ];
    assert_eq!(keys(&told), fields);
    assert_eq!(told["committed"], false);
    for field in ["conflicts", "resources", "undone", "not_undone"] {
        assert_eq!(told[field], value!([]), "{field}");
    }
    let cause = told["cause"].as_str().expect("a text");
    assert!(cause.contains("device node"), "{cause}");
}

/// Commits into `at`, on the file system `disk`, and cleans up while that is not mounted.
#[track_caller]
fn assert_away(disk: &LoopFs, at: &Path) {
    let (_world, cli) = world();
    fs::create_dir_all(at).expect("it is ours");
    write(at.join("f"), "old\n");
    let location = at.to_str().expect("a plain path");
    cli.ok(["resource", "add", "there", "--at", location]);
    cli.ok(words("plan create p --resource there"));
    put(&cli, "p there f", "new\n");
    cli.ok(words("commit p"));
    let (mount, image) = (disk.path().display(), disk.image());
    sh(Path::new("/"), &format!("umount {mount}"));
    let refused = cli.run(words("--json cleanup p"));
    let state = json(&cli, "plan show p")["state"].clone();
    let forgotten = cli.run(words("cleanup p --forget"));
    let script = format!("mount -o loop {} {mount}", image.display());
    sh(Path::new("/"), &script);
    let said = refused.stdout_text();
    assert_eq!(refused.status, 1, "{said}");
    assert!(said.contains("\"not_found\""), "{said}");
    assert_eq!(state, "committed");
    assert_eq!(forgotten.status, 0, "{}", forgotten.stderr_text());
    assert_eq!(json(&cli, "plan show p")["state"], "cleaned_up");
    assert_eq!(read(at.join("f")), "new\n");
}

// rule P6
#[test]
fn cleanup_counted_what_is_not_mounted_as_removed() {
    if let Some(disk) = LoopFs::new(Fs::Ext4, 32) {
        assert_away(&disk, &disk.path().join("app"));
    }
}

/// The mount point stays, and is another directory than the original was.
// rule P6
#[test]
fn cleanup_took_a_mount_point_for_what_is_not_mounted() {
    if let Some(disk) = LoopFs::new(Fs::Ext4, 32) {
        assert_away(&disk, disk.path());
    }
}

// rule C12
#[test]
fn the_holes_of_a_file_counted_as_room() {
    if !require_root("a bind mount") {
        return;
    }
    let (world, cli) = world();
    let bind = world.dir("bind");
    let _mounted = Mounted::new(&bind, "mount --bind app bind");
    cli.ok(words(
        "plan create p --resource ./bind --strategy filesystem_copy",
    ));
    let copy = copy_of(&cli, "p", "bind");
    sh(&copy, "truncate -s 2T big; echo end >> big");
    cli.ok(words("commit p"));
    let big = fs::metadata(world.path().join("app/big")).expect("it is there");
    assert_eq!(big.size(), (2 << 40) + 4);
    assert!(big.blocks() < 2048, "{}", big.blocks());
    cli.ok(words("undo p"));
    assert!(!world.path().join("app/big").exists());
    cli.ok(words("cleanup p"));
}

// rule C14
#[test]
fn a_shared_lock_on_an_original_kept_others_from_looking() {
    let (world, cli) = world();
    let app = File::open(world.path().join("app")).expect("it is there");
    app.lock_shared().expect("nobody else has it");
    cli.ok(words("plan create p --resource ./app"));
    put(&cli, "p app a.txt", "uno\n");
    assert_eq!(cli.ok(words("diff p --name-status")), "M\ta.txt\n");
    cli.ok(words("commit p --dry-run"));
    app.unlock().expect("we have it");
    cli.ok(words("commit p"));
    assert_eq!(read(world.path().join("app/a.txt")), "uno\n");
}
