//! Originals and state in places that do not go together well.

use std::path::{Path, PathBuf};
use std::process::Command;

use escrow_testkit::signature::{Ignore, assert_same, signature};
use escrow_testkit::skip::require_root;
use escrow_testkit::{Cli, Fs, LoopFs, World, tree};

use crate::{binary, json, words};

/// A file system that keeps no extended attributes, mounted while this lives.
struct Ramfs(PathBuf);

impl Ramfs {
    fn mount(at: &Path) -> Self {
        let status = Command::new("mount")
            .args(["-t", "ramfs", "ramfs"])
            .arg(at)
            .status();
        assert!(status.expect("there is a mount").success());
        Self(at.to_owned())
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// The root of a file system has nothing beside it, so its area lies on another one.
// rule F1, S8
#[test]
fn b10_an_area_on_another_file_system() {
    let Some(fs) = LoopFs::new(Fs::Ext4, 16) else {
        return;
    };
    tree::build(
        fs.path(),
        "file 0640 \"old\\n\"\ndir/x \"x\"\nhard = file\n",
    );
    let world = World::new();
    let cli = Cli::new(&world, &binary()).cwd(fs.path());
    for strategy in ["copy_on_write", "filesystem_copy", "overlay", "auto"] {
        let before = signature(fs.path());
        let plan = json(
            &cli,
            &format!("plan create p --resource . --strategy {strategy}"),
        );
        let sandbox = &plan["sandboxes"][0];
        if strategy == "copy_on_write" {
            let message = sandbox["message"].as_str().expect("a text");
            assert!(message.contains("cannot share contents"), "{message}");
        }
        cli.clone().stdin("new\n").ok(words("write p . dir/new"));
        assert_eq!(
            cli.ok(words("diff p --name-status")),
            "A\tdir/new\n",
            "{strategy}"
        );
        cli.ok(words("rollback p"));
        assert_eq!(cli.ok(words("diff p --name-status")), "", "{strategy}");
        cli.ok(words("cleanup p"));
        assert_same(&before, &signature(fs.path()), &Ignore::default());
    }
}

/// What the area cannot hold is named, and is not taken for a change.
// rule F1, S8
#[test]
fn c17_an_area_that_holds_no_attributes() {
    if !require_root("a mount") {
        return;
    }
    let Some(fs) = LoopFs::new(Fs::Ext4, 16) else {
        return;
    };
    tree::build(fs.path(), "file \"old\\n\"\n");
    let status = Command::new("setfattr")
        .args(["-n", "user.note", "-v", "kept?"])
        .arg(fs.path().join("file"))
        .status();
    assert!(status.expect("attr is installed").success());
    let world = World::new();
    let home = world.dir("ram");
    let ram = Ramfs::mount(&home);
    let cli = Cli::new(&world, &binary())
        .cwd(fs.path())
        .env("ESCROW_HOME", home.join("home"));
    let doctor = json(&cli, "doctor .");
    assert_eq!(doctor["auto"], "filesystem_copy", "{doctor}");
    let plan = json(&cli, "plan create p --resource . --strategy overlay");
    let sandbox = &plan["sandboxes"][0];
    assert_eq!(sandbox["strategy"], "filesystem_copy", "{plan}");
    let message = sandbox["message"].as_str().expect("a text");
    assert!(
        message.starts_with("overlay cannot be had here"),
        "{message}"
    );
    let warnings = sandbox["warnings"].to_string();
    assert!(
        warnings.contains("the attribute user.note cannot be kept here"),
        "{warnings}"
    );
    assert_eq!(cli.ok(words("diff p --name-status")), "");
    cli.clone().stdin("new\n").ok(words("write p . file"));
    assert_eq!(cli.ok(words("diff p --name-status")), "M\tfile\n");
    cli.ok(words("cleanup p"));
    drop(cli);
    drop(ram);
}
