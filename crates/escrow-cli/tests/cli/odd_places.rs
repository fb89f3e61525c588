//! Originals and state in places that do not go together well.

use crate::*;

/// The root of a file system has nothing beside it, so its area lies on another one.
// rule F1, S8
#[test]
fn b10_an_area_on_another_file_system() {
    let fs = need!(LoopFs::new(Fs::Ext4, 16));
    let content = "file 0640 \"old\\n\"\ndir/x \"x\"\nhard = file\n";
    tree::build(fs.path(), content);
    let world = World::new();
    let cli = Cli::new(&world, &binary()).cwd(fs.path());
    use_all_strategies(&cli, &fs);
    sh(
        fs.path(),
        &format!("rmdir lost+found; chown -R {UID}:{GID} ."),
    );
    use_all_strategies(&cli.user(), &fs);
}

fn use_all_strategies(cli: &Cli, fs: &LoopFs) {
    for strategy in ["copy_on_write", "filesystem_copy", "overlay", "auto"] {
        let before = signature(fs.path());
        let line = format!("plan create p --resource . --strategy {strategy}");
        let plan = json(cli, &line);
        let sandbox = &plan["sandboxes"][0];
        if strategy == "copy_on_write" {
            let message = sandbox["message"].as_str().expect("a text");
            assert!(message.contains("cannot share contents"), "{message}");
        }
        put(cli, "p . dir/new", "new\n");
        assert_eq!(cli.ok("diff p --name-status"), "A\tdir/new\n", "{strategy}");
        cli.ok("rollback p");
        assert_eq!(cli.ok("diff p --name-status"), "", "{strategy}");
        cli.ok("cleanup p");
        unchanged(&before, fs.path());
    }
}

/// What the area cannot hold is named, and is not taken for a change.
// rule F1, S8
#[test]
fn c17_an_area_that_holds_no_attributes() {
    need!(require_root("a mount"));
    let fs = need!(LoopFs::new(Fs::Ext4, 16));
    tree::build(fs.path(), "file \"old\\n\"\n");
    let status = Command::new("setfattr")
        .args(["-n", "user.note", "-v", "kept?"])
        .arg(fs.path().join("file"))
        .status();
    assert!(status.expect("attr is installed").success());
    let world = World::new();
    let home = world.dir("ram");
    let _ram = Mounted::new(["-t", "ramfs", "ramfs"], &home);
    let cli = Cli::new(&world, &binary()).cwd(fs.path());
    lose_attributes(&cli.clone().env("ESCROW_HOME", home.join("root")));
    let theirs = world.dir("ram/theirs");
    sh(
        fs.path(),
        &format!("rmdir lost+found; chown -R {UID}:{GID} ."),
    );
    lose_attributes(&cli.env("ESCROW_HOME", theirs).user());
}

fn lose_attributes(cli: &Cli) {
    let doctor = json(cli, "doctor .");
    assert_eq!(doctor["auto"], "filesystem_copy", "{doctor}");
    let plan = json(cli, "plan create p --resource . --strategy overlay");
    let sandbox = &plan["sandboxes"][0];
    assert_eq!(sandbox["strategy"], "filesystem_copy", "{plan}");
    let message = sandbox["message"].as_str().expect("a text");
    let holds = message.starts_with("overlay does not work here");
    assert!(holds, "{message}");
    let warnings = sandbox["warnings"].to_string();
    has(&warnings, ["the attribute user.note cannot be kept here"]);
    assert_eq!(cli.ok("diff p --name-status"), "");
    put(cli, "p . file", "new\n");
    assert_eq!(cli.ok("diff p --name-status"), "M\tfile\n");
    cli.ok("cleanup p");
}

#[test]
fn a_home_that_others_can_write_was_used() {
    let (world, cli) = world();
    let home = world.dir("open");
    fs::set_permissions(&home, PermissionsExt::from_mode(0o777)).expect("it is ours");
    let error = cli.env("ESCROW_HOME", &home).fails("status", 1);
    assert!(error.contains("others may write in it"), "{error}");
    assert_eq!(entries(&home), 0);
}

#[test]
fn a_resource_that_holds_the_state_was_copied_into_itself() {
    let (world, cli) = world();
    let add = format!(
        "resource add all --at {} --allow-root",
        world.path().display()
    );
    cli.fails(add.trim_end_matches("--allow-root"), 2);
    cli.ok(&add);
    let line = "plan create try --resource all --strategy filesystem_copy";
    let error = cli.fails(line, 1);
    has(&error, ["cannot copy a directory into itself"]);
    assert_eq!(world.areas(), [""; 0]);
}

#[test]
fn an_area_was_put_into_another_resource() {
    let fs = need!(LoopFs::new(Fs::Ext4, 32));
    let there = World::under(fs.path());
    let outer = there.dir("outer");
    there.dir("outer/inner");
    let home = World::new();
    let cli = Cli::new(&home, &binary()).cwd(there.path());
    cli.ok("plan create out --resource ./outer");
    cli.ok("plan create in --resource ./outer/inner");
    assert_eq!(entries(&outer), 1);
    // One that came before the outer resource was known is left out of copies, by name.
    cli.ok("cleanup out");
    cli.ok("cleanup in");
    cli.ok("plan create in --resource ./outer/inner");
    assert_eq!(entries(&outer), 2);
    let line = "plan create out --resource ./outer --strategy filesystem_copy";
    let plan = json(&cli, line);
    let warnings = plan["sandboxes"][0]["warnings"].to_string();
    assert!(warnings.contains("it is a sandbox of Escrow"), "{warnings}");
}
