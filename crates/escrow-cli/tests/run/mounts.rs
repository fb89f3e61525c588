//! Commands among mounts: in a container, where the root is an overlay and directories that matter lie on volumes, and where
//! something is mounted in the project or in the home directory.

use crate::*;

/// Makes an overlay of everything the root, with a volume at `vol`, as container engines do. `xino` makes layers of two file
/// systems what those of one are.
const SETUP: &str = r#"
    mount -t tmpfs none "$WORLD/mnt"; cd "$WORLD/mnt"; mkdir upper work root
    mount -t overlay none -o "xino=$XINO,lowerdir=/,upperdir=upper,workdir=work" root
    for name in proc sys dev; do mount --rbind /$name root/$name; done
    mount -t tmpfs none "root$WORLD/vol"; cp -a "$WORLD/app" "root$WORLD/vol/app"
    mkdir root/old; cd root; pivot_root . old; umount -l /old; cd "$WORLD/$WHERE"; exec "$0" "$@"
"#;

#[test]
fn commands_run_in_a_container_and_are_committed_there() {
    need!(require_root("mounts of its own"));
    let (world, cli) = world();
    let home = world.dir("user-home");
    sh(world.path(), "mkdir mnt vol; mkdir user-home/.cache");
    let escrow = binary().display().to_string();
    let script = format!(
        "{escrow} run -- sh -c 'echo cached > ~/.cache/c; cat ~/.cache/c; echo new > a.txt; mv src renamed'
        {escrow} commit; echo $?; cat a.txt; ls"
    );
    for (place, xino, committed) in [
        ("vol/app", "on", "cached\n0\nnew\na.txt\nlink\nrenamed\n"),
        ("app", "on", "cached\n0\nnew\na.txt\nlink\nrenamed\n"),
        ("app", "off", "cached\n1\none\ntwo\na.txt\nlink\nsrc\n"),
    ] {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-euc", SETUP]);
        command.args(["sh", "-c", &script]);
        let own = cli.command("status");
        for (name, value) in own.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let command = command
            .env("WORLD", world.path())
            .env("WHERE", place)
            .env("XINO", xino)
            .env("HOME", &home);
        let output = command.output().expect("there is an unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        let found = String::from_utf8_lossy(&output.stdout);
        let found: String = found
            .lines()
            .filter(|line| !line.starts_with("app: committed") && !line.starts_with("undo"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(found, committed, "{place}: {said}");
        has(&said, ["kept in memory"]);
        assert_eq!(said.contains("xino=on"), xino == "off", "{said}");
    }
    sh(&home, "test ! -e .cache/c");
}

/// What is mounted in a project is no part of it. Root lays a layer around it; an ordinary user is told why there is a copy.
#[test]
fn a_mount_in_the_project_is_seen_and_not_written() {
    need!(require_root("a mount"));
    let lay =
        "mkdir mounted; mount -t tmpfs none mounted; echo y > mounted/file; exec \"$0\" \"$@\"";
    let outer = ["unshare", "-m", "sh", "-euc", lay];
    let script =
        "cat mounted/file; (echo w > mounted/new) 2>/dev/null || echo closed; echo z > a.txt";
    let (world, cli) = world();
    let mut command = cli.behind(
        &outer,
        inside("run --new --strategy overlay --commit", script),
    );
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "y\nclosed\n",
        "{said}"
    );
    sh(world.at("app"), "test \"$(cat a.txt)\" = z; rmdir mounted");
    sh(world.path(), &format!("chown -R {UID}:{UID} ."));
    let create = "plan create try --resource . --strategy overlay";
    let output = cli
        .user()
        .behind(&outer, create)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    has(
        &said,
        ["app/mounted' is mounted in it, and an ordinary user can lay no layer over that"],
    );
}

/// Root mounts something below a home directory; its user can run commands all the same.
#[test]
fn a_mount_below_the_home_directory_is_no_obstacle() {
    need!(require_root("a mount"));
    let (world, cli) = world();
    let home = world.dir("user-home");
    sh(
        &home,
        "mkdir -p mounted deep/mounted deep/side .cache; echo x > file",
    );
    let cli = cli.env("HOME", &home).user();
    sh(world.path(), &format!("chown -R {UID}:{UID} ."));
    let lay = "mount -t tmpfs none user-home/mounted; echo y > user-home/mounted/file
        mount -t tmpfs none user-home/deep/mounted; cd app; exec \"$0\" \"$@\"";
    let script = "cat ~/file ~/mounted/file; echo z > a.txt; (echo w > ~/new) 2>/dev/null || echo closed
        (echo w > ~/mounted/file) 2>/dev/null || echo closed; echo cached > ~/.cache/c; echo s > ~/deep/side/s; cat ~/.cache/c";
    let outer = ["unshare", "-m", "sh", "-euc", lay];
    let mut command = cli.behind(&outer, inside("run --rollback", script));
    let output = command
        .current_dir(world.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "x\ny\nclosed\nclosed\ncached\n",
        "{said}"
    );
    has(
        &said,
        ["cannot be written inside", "~/.cache/c  7 B", "~/deep  2 B"],
    );
    sh(&home, "test ! -e .cache/c; test ! -e deep/side/s");
}
