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

/// What is mounted in a home directory is seen and not written, by an ordinary user; beside it everything is as without.
#[test]
fn a_mount_in_the_home_directory_leaves_the_rest_as_it_is() {
    need!(require_root("a mount"));
    let (world, cli) = world();
    let home = world.dir("user-home");
    sh(
        &home,
        "mkdir -p mounted deep/mounted deep/side .config/nvim .ssh .claude; echo x > file; echo '{}' > .claude.json; ln -s file link
        echo key > .netrc; echo key > .ssh/key; echo n > .config/nvim/name; truncate -s 20M large; touch point; chmod 600 file; touch -d @1000 file",
    );
    let cli = cli.env("HOME", &home).user();
    sh(world.path(), &format!("chown -hR {UID}:{UID} ."));
    let lay = "mount -t tmpfs none user-home/mounted; echo y > user-home/mounted/file; mount --bind app/a.txt user-home/point
        mount -t tmpfs none user-home/deep/mounted; cd app; exec \"$0\" \"$@\"";
    let outer = ["unshare", "-m", "sh", "-euc", lay];
    let run = |line: Vec<OsString>| {
        let mut command = cli.behind(&outer, line);
        let output = command
            .current_dir(world.path())
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let script = "echo z > a.txt; cd; cat file link mounted/file .netrc .ssh/key .config/nvim/name; head -1 point
        stat -c '%a %Y' file; test $(stat -c %s large) = 20971520 || echo short
        for f in mounted/new mounted/file deep/mounted/new large point; do (echo w > $f) 2>/dev/null && echo written $f; done
        echo new > new; echo '{1}' > t; mv t .claude.json; mkdir .cache; echo cached > .cache/c; echo d > deep/new; echo s > deep/side/s
        echo t > .config/nvim/new; mv .config/nvim/name .config/nvim/named; mkdir -p .local/share; rm link; ls -A; ls deep";
    let (out, said) = run(in_new(script));
    assert_eq!(
        out,
        "x\nx\ny\nn\none\n600 1000\n.cache\n.claude\n.claude.json\n.config\n.local\n.ssh\ndeep\nfile\nlarge\nmounted\nnew\npoint\nmounted\nnew\nside\n",
        "{said}"
    );
    has(
        &said,
        [
            "what is mounted there cannot be written inside",
            "~/.cache/c  7 B, 1 file",
            "~/new  4 B",
            "~/.claude.json  4 B",
        ],
    );
    lacks(&said, ["~/file", "~/large", "~/point", "~/.netrc"]);
    // What was written stays with the plan, and never comes out.
    let (out, said) = run(inside(
        "run --agent claude",
        "cat ~/.claude.json ~/new ~/deep/side/s ~/.config/nvim/named ~/file",
    ));
    assert_eq!(out, "{1}\nnew\ns\nn\nx\n", "{said}");
    let (out, said) = run(inside(
        "run --new --rollback --no-scratch",
        "cat ~/file; (echo w > ~/new || echo w > ~/.config/new) 2>/dev/null || echo closed",
    ));
    assert_eq!(out, "x\nclosed\n", "{said}");
    sh(
        &home,
        "test ! -e new; test ! -e .cache; test ! -e .local; test -L link; grep -qx '{}' .claude.json; ls deep/side | wc -l | grep -qx 0; test -e .config/nvim/name",
    );
    // No key was copied anywhere.
    sh(world.path(), "! grep -rqx key state 2>/dev/null");
}

/// A line that begins a plan and runs a script in it.
fn in_new(script: &str) -> Vec<OsString> {
    inside("run --new --agent claude", script)
}
