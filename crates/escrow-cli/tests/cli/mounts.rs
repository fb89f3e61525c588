//! Resources where a file system is mounted.

use std::fs;
use std::os::unix::fs::MetadataExt;

use escrow_testkit::{Cli, Fs, LoopFs, World};
use serde_json::json as value;

use crate::{binary, json, json_error, words};

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
        fs::write(at.join("data"), "one\n").expect("written");
        let before = names(at);
        let world = World::new();
        let cli = Cli::new(&world, &binary());
        for strategy in ["overlay", "filesystem_copy", "copy_on_write"] {
            let path = at.to_str().expect("a plain path");
            let line = format!("plan create try --resource {path} --strategy {strategy}");
            let plan = json(&cli, &line);
            assert_eq!(plan["sandboxes"][0]["type"], "fs-mount", "{kind:?}");
            let resource = plan["sandboxes"][0]["resource"]
                .as_str()
                .expect("a name")
                .to_owned();
            let write = format!("write try {resource} data");
            cli.clone().stdin("two\n").ok(words(&write));
            let script = format!("echo new > {path}/new; cat {path}/data");
            let ran = cli.ok(["run", "--plan", "try", "--", "sh", "-c", &script]);
            assert_eq!(ran, "two\n", "{kind:?} {strategy}");
            assert_eq!(fs::read(at.join("data")).expect("it is there"), b"one\n");
            cli.ok(words("commit try"));
            assert_eq!(fs::read(at.join("data")).expect("it is there"), b"two\n");
            let device = |name: &str| fs::metadata(at.join(name)).expect("there").dev();
            assert_eq!(
                device("data"),
                device("."),
                "it lies on the mounted file system"
            );
            cli.ok(words("undo try"));
            cli.ok(words("cleanup try"));
            assert_eq!(names(at), before, "{kind:?} {strategy}");
            assert_eq!(fs::read(at.join("data")).expect("it is there"), b"one\n");
        }
        // A file on it has its area there, beside it.
        let path = at.join("data");
        let line = format!("plan create try --resource {}", path.display());
        assert_eq!(json(&cli, &line)["sandboxes"][0]["type"], "fs-file");
        cli.clone().stdin("two\n").ok(words("write try data ."));
        cli.ok(words("commit try"));
        cli.ok(words("undo try"));
        cli.ok(words("cleanup try"));
        assert_eq!(names(at), before);
        let begun = json(&cli.clone().cwd(at), "init");
        assert_eq!(begun["resources"][0]["type"], "fs-mount");
    }
}

fn names(directory: &std::path::Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(directory).expect("it can be listed");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    names
}

/// While nothing is mounted, the directory below is not taken for what is usually there.
// rule C3
#[test]
fn a_mount_that_is_away_is_not_replaced_by_the_directory_below() {
    let Some(mounted) = LoopFs::new(Fs::Ext4, 64) else {
        return;
    };
    let at = mounted.path().to_owned();
    fs::write(at.join("data"), "one\n").expect("written");
    let world = World::new();
    let cli = Cli::new(&world, &binary());
    cli.ok(words(&format!(
        "resource add disk --type fs-mount --at {}",
        at.display()
    )));
    cli.ok(words(
        "plan create try --resource disk --strategy filesystem_copy",
    ));
    cli.clone().stdin("two\n").ok(words("write try disk data"));
    // In a namespace of its own nothing is mounted there.
    let without = |line: &str| {
        let inner = cli.command(words(&format!("--json {line}")));
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", "umount \"$0\" && exec \"$@\""]);
        command
            .arg(&at)
            .arg(inner.get_program())
            .args(inner.get_args());
        command.env_clear();
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.current_dir(world.path());
        let output = command.output().expect("it starts");
        let document: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("a document");
        document["error"]["kind"].clone()
    };
    assert_eq!(
        without("plan create other --resource disk"),
        value!("usage")
    );
    assert_eq!(without("commit try"), value!("conflict"));
    assert_eq!(fs::read(at.join("data")).expect("it is there"), b"one\n");
    cli.ok(words("commit try"));
    assert_eq!(fs::read(at.join("data")).expect("it is there"), b"two\n");
    assert_eq!(
        json_error(&cli, "resource remove nothing", 1)["kind"],
        "not_found"
    );
}
