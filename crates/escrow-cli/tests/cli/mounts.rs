//! Resources where something is mounted.

use crate::*;

/// The mount point is the resource; beside it is another file system, so commits happen in it, and nothing
/// stays there.
// rule C1, P6, T1
#[test]
fn a_mount_point_is_sandboxed_committed_and_undone() {
    for kind in [Fs::Ext4, Fs::Xfs] {
        let Some(mounted) = LoopFs::new(kind, 64) else {
            return;
        };
        let at = mounted.path();
        write(at.join("data"), "one\n");
        let world = World::new();
        goes_through(&Cli::new(&world, &binary()), at);
        let owner = format!("{UID}:{GID}");
        let given = Command::new("chown").arg("-R").arg(owner).arg(at).status();
        assert!(given.is_ok_and(|status| status.success()));
        let world = World::new();
        goes_through(&Cli::new(&world, &binary()).user(), at);
    }
}

fn goes_through(cli: &Cli, at: &Path) {
    let before = names(at);
    let text = || read(at.join("data"));
    let path = at.to_str().expect("a plain path");
    for strategy in ["overlay", "filesystem_copy", "copy_on_write"] {
        let line = format!("plan create try --resource {path} --strategy {strategy}");
        let plan = json(cli, &line);
        let sandbox = &plan["sandboxes"][0];
        assert_eq!(sandbox["type"], "fs-mount", "{strategy}");
        let resource = sandbox["resource"].as_str().expect("a name");
        let write = format!("write try {resource} data");
        cli.clone().stdin("two\n").ok(&write);
        let ran = cli.ok([
            "run",
            "--plan",
            "try",
            "--",
            "sh",
            "-c",
            &format!("echo new > {path}/new; cat {path}/data"),
        ]);
        assert_eq!((ran.as_str(), text().as_str()), ("two\n", "one\n"));
        cli.ok("commit try");
        assert_eq!(text(), "two\n", "{strategy}");
        let device = |name: &str| fs::metadata(at.join(name)).expect("there").dev();
        assert_eq!(device("new"), device("."), "it lies on what is mounted");
        cli.ok("undo try");
        cli.ok("cleanup try");
        assert_eq!((names(at), text().as_str()), (before.clone(), "one\n"));
    }
    // A file on it has its area beside it, and both go.
    assert_eq!(
        json(cli, &format!("plan create try --resource {path}/data"))["sandboxes"][0]["type"],
        "fs-file"
    );
    put(cli, "try data .", "two\n");
    cli.ok("commit try");
    assert_eq!(text(), "two\n");
    cli.ok("undo try");
    cli.ok("cleanup try");
    assert_eq!((names(at), text().as_str()), (before, "one\n"));
    let begun = json(&cli.clone().cwd(at), "init --force");
    assert_eq!(begun["resources"][0]["type"], "fs-mount");
    remove(at.join("escrow.yaml"));
}

/// Runs a line in a mount namespace of its own, after `setup`, whose `$0` is `at`; the error it ends with.
fn elsewhere(cli: &Cli, setup: &str, at: &Path, line: &str) -> Value {
    let setup = format!("{setup} && exec \"$@\"");
    let at = at.to_str().expect("a plain path");
    let outer = ["unshare", "--mount", "sh", "-c", &setup, at];
    let mut command = cli.behind(&outer, format!("--json {line}"));
    let output = command.output().expect("it starts");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    document["error"].clone()
}

/// No new version could be put in the place of a file on which something is mounted.
#[test]
fn a_file_on_which_something_is_mounted_is_refused() {
    if !require_root("mounts something on a file") {
        return;
    }
    let world = World::new();
    let file = world.dir("docs").join("notes.txt");
    write(&file, "one\n");
    write(world.at("other"), "two\n");
    let cli = Cli::new(&world, &binary());
    for line in [
        "plan create try --resource docs/notes.txt",
        "resource add it --type fs-file --at docs/notes.txt",
    ] {
        let error = elsewhere(&cli, "mount --bind other \"$0\"", &file, line);
        let told = error["message"].as_str().expect("a text");
        assert!(told.contains("something is mounted on it"), "{told}");
    }
}

/// While nothing is mounted, the directory below is not taken for what is usually there.
// rule C3
#[test]
fn a_mount_that_is_away_is_not_replaced_by_the_directory_below() {
    let Some(mounted) = LoopFs::new(Fs::Ext4, 64) else {
        return;
    };
    let at = mounted.path().to_owned();
    let text = || read(at.join("data"));
    write(at.join("data"), "one\n");
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    cli.ok(format!(
        "resource add disk --type fs-mount --at {}",
        at.display()
    ));
    cli.ok("plan create try --resource disk --strategy filesystem_copy");
    put(&cli, "try disk data", "two\n");
    let without = |line: &str| elsewhere(&cli, "umount \"$0\"", &at, line)["kind"].clone();
    assert_eq!(without("plan create other --resource disk"), "usage");
    assert_eq!(without("commit try"), "conflict");
    assert_eq!(text(), "one\n");
    cli.ok("commit try");
    assert_eq!(text(), "two\n");
}
