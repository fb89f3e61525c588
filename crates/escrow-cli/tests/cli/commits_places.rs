//! Commits where the file system, a mount or another resource makes it unusual.

use crate::*;

// rule C2
#[test]
fn a_commit_into_an_overlay_file_system_was_stuck() {
    need!(require_root("an overlay file system"));
    let world = World::new();
    for name in ["lower/app", "disk", "merged"] {
        world.dir(name);
    }
    write(world.at("lower/app/f"), "old\n");
    let _disk = Mounted::new(["-t", "tmpfs", "none"], &world.at("disk"));
    sh(world.at("disk"), "mkdir upper work");
    // Layers on two file systems: directories have no lasting numbers.
    let layers = "xino=off,lowerdir=lower,upperdir=disk/upper,workdir=disk/work";
    let options = ["-t", "overlay", "overlay", "-o", layers];
    let _mounted = Mounted::new(options, &world.at("merged"));
    let cli = Cli::new(&world, &binary());
    for strategy in ["auto", "filesystem_copy"] {
        cli.plan(strategy, "./merged/app", strategy);
        put(&cli, &format!("{strategy} app f"), "new\n");
        let told = failed(&cli, &format!("commit {strategy}"), 1);
        assert_eq!(told["error"]["kind"], "unsupported", "{told}");
        assert_eq!(read(world.at("merged/app/f")), "old\n");
        assert_eq!(cli.ok(["read", strategy, "app", "f"]), "new\n");
        assert_not_stuck(&cli, strategy);
    }
}

// rule C1
#[test]
fn a_subvolume_could_not_be_committed() {
    let disk = need!(LoopFs::new(Fs::Btrfs, 160));
    let world = World::under(disk.path());
    let script = "btrfs -q subvolume create app; btrfs -q subvolume create vol; echo old > app/f";
    sh(world.path(), script);
    let home = world.dir("vol/home");
    let cli = Cli::new(&world, &binary()).env("ESCROW_HOME", home);
    for strategy in ["auto", "overlay", "copy_on_write", "filesystem_copy"] {
        cli.plan(strategy, "./app", strategy);
        put(&cli, &format!("{strategy} app f"), "new\n");
        put(&cli, &format!("{strategy} app sub/more"), "more\n");
        cli.ok(["commit", strategy]);
        assert_eq!(read(world.at("app/f")), "new\n", "{strategy}");
        cli.ok(["undo", strategy]);
        assert_eq!(read(world.at("app/f")), "old\n", "{strategy}");
        assert!(!world.at("app/sub").exists(), "{strategy}");
        cli.ok(["cleanup", strategy]);
    }
}

// rule C2
#[test]
fn a_change_in_a_nested_subvolume_was_stuck_half_committed() {
    let disk = need!(LoopFs::new(Fs::Btrfs, 160));
    let world = World::under(disk.path());
    sh(
        world.path(),
        "btrfs -q subvolume create app; btrfs -q subvolume create app/sub; echo old > app/f; \
            echo old > app/sub/g",
    );
    let cli = Cli::new(&world, &binary());
    for strategy in ["overlay", "filesystem_copy"] {
        cli.plan(strategy, "./app", strategy);
        put(&cli, &format!("{strategy} app f"), "new\n");
        put(&cli, &format!("{strategy} app sub/g"), "new\n");
        let outcome = cli.run(["commit", strategy]);
        let said = outcome.stderr_text();
        assert!([1, 3].contains(&outcome.status), "{strategy}: {said}");
        assert!(said.contains("sub/g"), "{strategy}: {said}");
        assert_eq!(read(world.at("app/f")), "old\n", "{strategy}");
        assert_eq!(read(world.at("app/sub/g")), "old\n", "{strategy}");
        assert_eq!(cli.ok(["read", strategy, "app", "sub/g"]), "new\n");
        assert_not_stuck(&cli, strategy);
    }
}

// rule F8
#[test]
fn the_undo_area_of_another_plan_was_taken_into_a_copy() {
    let disk = need!(LoopFs::new(Fs::Ext4, 32));
    let (_world, cli) = world();
    let at = disk.path();
    write(at.join("f"), "old\n");
    let location = at.to_str().expect("a plain path");
    cli.ok(["resource", "add", "disk", "--at", location]);
    cli.ok("plan create first --resource disk");
    put(&cli, "first disk f", "new\n");
    cli.ok("commit first");
    let area = |dir: &Path| {
        let mut names = names(dir).into_iter();
        names.find(|name| name.starts_with(".escrow-"))
    };
    let name = area(at).expect("the old version lies in the root");
    assert!(name.ends_with(".undo"), "{name}");
    cli.ok("plan create copy --resource disk --strategy filesystem_copy");
    let copy = copy_of(&cli, "copy", "disk");
    assert_eq!(area(&copy), None);
    assert_eq!(cli.ok("diff copy --name-status"), "");
    // Planted in the copy, deleted in a layer.
    sh(&copy, &format!("mkdir {name}; echo planted > {name}/made"));
    assert_eq!(cli.ok("diff copy --name-status"), "");
    cli.ok("commit copy");
    cli.ok("plan create layer --resource disk --strategy overlay");
    cli.ok(format!("run --plan layer -- rm -rf {location}/{name}"));
    assert_eq!(cli.ok("diff layer --name-status"), "");
    cli.ok("commit layer");
    assert!(!at.join(&name).join("made").exists());
    cli.ok("undo first");
    assert_eq!(read(at.join("f")), "old\n");
}

// rule C8
#[test]
fn work_in_what_belongs_to_another_resource_was_lost() {
    let (world, cli) = world();
    tree::build(world.path(), "app/data/inner/rows \"1\\n\"\n");
    cli.ok("resource add app --at app");
    cli.ok("resource add data --at app/data/inner --parent app");
    cli.ok("plan create p --resource app --resource data --strategy filesystem_copy");
    put(&cli, "p app a.txt", "uno\n");
    let copy = copy_of(&cli, "p", "app");
    sh(&copy, "mkdir -p data/inner; echo stray > data/inner/stray");
    let told = failed(&cli, "commit p", 3);
    let said = told["error"]["message"].as_str().expect("a text");
    assert!(said.contains("data/inner/stray"), "{said}");
    assert_eq!(read(copy.join("data/inner/stray")), "stray\n");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\nthree\n");
    assert!(!world.at("app/data/inner/stray").exists());
    remove(copy.join("data/inner/stray"));
    cli.ok("commit p");
    assert_eq!(read(world.at("app/a.txt")), "uno\n");
    assert_eq!(read(world.at("app/data/inner/rows")), "1\n");
}

// rule C8, P4
#[test]
fn a_child_got_a_sandbox_although_its_parents_held_it_already() {
    for strategy in ["overlay", "filesystem_copy"] {
        let (world, cli) = world();
        tree::build(world.path(), "app/data/rows \"1\\n\"\n");
        cli.ok("resource add app --at app");
        cli.plan("p", "app", strategy);
        cli.ok("resource add data --at app/data --parent app");
        let told = failed(&cli, "sandbox create p data", 2);
        assert_eq!(told["error"]["kind"], "usage", "{told}");
        put(&cli, "p app data/rows", "2\n");
        cli.ok("commit p");
        assert_eq!(read(world.at("app/data/rows")), "2\n");
        cli.ok("plan create q --resource app");
        cli.ok("sandbox create q data");
    }
}

/// Commits into `at`, on the file system `disk`, and cleans up while that is not mounted.
#[track_caller]
fn assert_away(disk: &LoopFs, at: &Path) {
    let (_world, cli) = world();
    fs::create_dir_all(at).expect("it is ours");
    write(at.join("f"), "old\n");
    let location = at.to_str().expect("a plain path");
    cli.ok(["resource", "add", "there", "--at", location]);
    cli.ok("plan create p --resource there");
    put(&cli, "p there f", "new\n");
    cli.ok("commit p");
    let (mount, image) = (disk.path().display(), disk.image());
    sh(Path::new("/"), &format!("umount {mount}"));
    let refused = cli.run("--json cleanup p");
    let state = json(&cli, "plan show p")["state"].clone();
    let forgotten = cli.run("cleanup p --forget");
    sh(
        Path::new("/"),
        &format!("mount -o loop {} {mount}", image.display()),
    );
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
    need!(require_root("a bind mount"));
    let (world, cli) = world();
    let bind = world.dir("bind");
    let _mounted = Mounted::new(["--bind", "app"], &bind);
    cli.ok("plan create p --resource ./bind --strategy filesystem_copy");
    let copy = copy_of(&cli, "p", "bind");
    sh(&copy, "truncate -s 2T big; echo end >> big");
    cli.ok("commit p");
    let big = fs::metadata(world.at("app/big")).expect("it is there");
    assert_eq!(big.size(), (2 << 40) + 4);
    assert!(big.blocks() < 2048, "{}", big.blocks());
    cli.ok("undo p");
    assert!(!world.at("app/big").exists());
    cli.ok("cleanup p");
}
