//! Resources where something is mounted.

use crate::*;

/// The mount point is the resource; beside it is another file system, so commits happen in it, and nothing
/// stays there.
// rule C1, P6, T1
#[test]
fn a_mount_point_is_sandboxed_committed_and_undone() {
    for kind in [Fs::Ext4, Fs::Xfs] {
        let mounted = need!(LoopFs::new(kind, 64));
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
        let work = format!("echo new > {path}/new; cat {path}/data");
        let ran = cli.ok(inside("run --plan try", &work));
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
    need!(require_root("mounts something on a file"));
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
    let mounted = need!(LoopFs::new(Fs::Ext4, 64));
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

/// As the root of a container: what the image brought lies in a lower layer, whose directories cannot be moved, and whose files
/// get another birth, those of several names another number too, when they are changed.
// rule C1, C15, F1
#[test]
fn what_an_image_brought_is_committed_and_undone() {
    need!(require_root("a mount"));
    for user in [false, true] {
        let world = World::new();
        let disk = world.dir("disk");
        let owner = if user { UID } else { 0 };
        let _disk = Mounted::new(["-t", "tmpfs", "none"], &disk);
        sh(&disk, "mkdir lower upper work root");
        tree::build(
            &disk.join("lower"),
            "home/\napp/file 0640 \"old\\n\"\napp/link -> file\napp/pair-a \"pair\\n\"\napp/pair-b = app/pair-a\n\
             app/pair-c = app/pair-a\napp/gone/deep/x \"x\"\napp/gone/y 0400 \"y\"\napp/turned/z \"z\"\napp/kept/k \"k\"\n",
        );
        sh(
            disk.join("lower"),
            &format!(
                "chmod 750 app/gone/deep; touch -d 2001-02-03 app/* app; chown -hR {owner}:{owner} ."
            ),
        );
        let root = disk.join("root");
        let layers = "lowerdir=lower,upperdir=upper,workdir=work";
        let _root = Mounted::new(["-t", "overlay", "none", "-o", layers], &root);
        let app = root.join("app");
        let cli = Cli::new(&world, &binary())
            .cwd(&app)
            .env("ESCROW_HOME", root.join("home"));
        let cli = if user { cli.user() } else { cli };
        let before = signature(&app);
        let edit = "echo new > file; rm link pair-b; echo other > pair-c.new; mv pair-c.new pair-c
            rm -r gone turned; echo file > turned; mkdir -p made/deep; echo m > made/deep/m; echo n > kept/n";
        let changes = "D\tgone\nD\tgone/deep\nD\tgone/deep/x\nD\tgone/y\nM\tfile\n";
        let sandbox = |plan: &str| {
            cli.ok(format!("plan create {plan} --resource ."));
            cli.ok(format!("path {plan} .")).trim_end().to_owned()
        };
        let inside = sandbox("p");
        sh(&inside, edit);
        if user {
            sh(&inside, &format!("chown -hR {UID}:{UID} ."));
        }
        let listed = cli.ok("diff p --name-status");
        for line in changes.lines() {
            assert!(listed.contains(line), "{listed}");
        }
        // Another plan of the same directory is not disturbed where they do not meet.
        let other = sandbox("q");
        write(Path::new(&other).join("kept/k"), "changed\n");
        write(app.join("file"), "theirs\n");
        has(&cli.fails("commit p", 4), ["file"]);
        cli.ok("commit p --on-conflict sandbox");
        assert_eq!(
            names(&app),
            ["file", "kept", "made", "pair-a", "pair-c", "turned"]
        );
        assert_eq!(read(app.join("file")), "new\n");
        assert_eq!(read(app.join("turned")), "file\n");
        cli.ok("undo p");
        assert_eq!(read(app.join("file")), "theirs\n");
        cli.ok("commit q");
        cli.ok("undo q");
        write(app.join("file"), "old\n");
        // The kernel makes several files of one that has several names in a lower layer.
        let pairs =
            "test $(stat -c %Y .) = $(date -d 2001-02-03 +%s); cmp pair-a pair-b; cmp pair-a pair-c
            ln -f pair-a pair-b; ln -f pair-a pair-c; touch -d 2001-02-03 . file pair-a";
        sh(&app, pairs);
        unchanged(&before, &app);
        cli.ok("cleanup p");
        cli.ok("cleanup q");
    }
}
