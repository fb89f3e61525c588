//! What only root could reach, or prepare: devices elsewhere, files of others, areas on other file systems.

use std::os::unix::fs::FileExt;

use crate::attacks::{Scene, compile};
use crate::*;

/// Root owns the nodes of disks, wherever they lie, and a read-only mount does not close them.
#[test]
fn a_disk_cannot_be_written_through_a_node_elsewhere() {
    let disk = need!(LoopFs::new(Fs::Ext4, 16));
    let scene = Scene::new("overlay");
    write(disk.path().join("file"), "precious\n");
    let device = Command::new("findmnt")
        .args(["-n", "-o", "MAJ:MIN", "-M"])
        .arg(disk.path())
        .output()
        .expect("there is a findmnt");
    let device = String::from_utf8_lossy(&device.stdout);
    let (major, minor) = device.trim().split_once(':').expect("two numbers");
    let node = scene.world.dir("elsewhere").join("disk");
    sh(
        scene.world.path(),
        &format!("mknod elsewhere/disk b {major} {minor}; chmod 0666 elsewhere/disk"),
    );
    let block = || {
        let mut bytes = [0; 512];
        let disk = fs::File::open(&node).expect("root may");
        disk.read_exact_at(&mut bytes, 0).expect("it can be read");
        bytes
    };
    let before = block();
    for cli in [scene.cli.clone(), user_of(&scene)] {
        let script =
            "(printf evil | dd of=../elsewhere/disk conv=notrunc bs=4) 2>/dev/null && echo written
            (head -c 512 ../elsewhere/disk) 2>/dev/null | wc -c";
        let outcome = cli.run(inside("run", script));
        let after = block();
        if after != before {
            let disk = fs::File::options().write(true).open(&node);
            disk.and_then(|disk| disk.write_all_at(&before, 0))
                .expect("it is put back");
        }
        assert!(after == before, "the disk was written");
        assert_eq!(outcome.stdout_text(), "0\n", "{}", outcome.stderr_text());
    }
}

/// The test user, with a home and a state of its own, in an `app` of its own.
pub(crate) fn user_of(scene: &Scene) -> Cli {
    let world = &scene.world;
    let (app, home, state) = (
        world.dir("their/app"),
        world.dir("their/home"),
        world.dir("their/state"),
    );
    let script = format!("chown -R {UID}:{UID} app home state");
    sh(world.dir("their"), &script);
    let cli = Cli::new(world, &binary()).env("HOME", home);
    cli.env("ESCROW_HOME", state).cwd(app).user()
}

// attack D1
#[test]
fn d1_a_setuid_program_of_the_machine_has_no_effect() {
    need!(require_root("programs that change the user"));
    let scene = Scene::new("overlay");
    let tools = scene.world.dir("tools");
    compile(&tools, "who", WHO);
    sh(
        &tools,
        "cp who who.user; chown 54321:54321 who.user; chmod 6755 who who.user
        cp who who.cap; chmod 0755 who.cap; setcap cap_dac_override,cap_setuid+ep who.cap",
    );
    let user = user_of(&scene);
    let outside = Command::new("setpriv")
        .args([
            "--reuid=54321",
            "--regid=54321",
            "--clear-groups",
            "../tools/who",
        ])
        .current_dir(&scene.app)
        .output()
        .expect("there is a setpriv");
    let said = String::from_utf8_lossy(&outside.stdout);
    assert_eq!(said, "0 0\n", "the test can find what it looks for");
    // One with capabilities that are out of reach is not started at all.
    let script = "$ESCROW_TOOLS/who; $ESCROW_TOOLS/who.user; $ESCROW_TOOLS/who.cap 2>/dev/null || $ESCROW_TOOLS/who";
    for (cli, expected) in [(scene.cli.clone(), "0 0\n"), (user, "54321 54321\n")] {
        cli.env("ESCROW_TOOLS", &tools)
            .says(inside("run", script), expected.repeat(3));
    }
}

const WHO: &str = r#"
int main(void) {
    if (geteuid() == getuid()) setuid(0);
    printf("%d %d\n", geteuid(), getegid());
    return 0;
}
"#;

/// Areas of sandboxes lie beside their originals where the state is on another file system.
#[test]
fn areas_beside_their_originals_are_hidden() {
    let fs = need!(LoopFs::new(Fs::Ext4, 32));
    let there = World::under(fs.path());
    let (app, _) = (there.dir("app"), there.dir("other"));
    write(app.join("a.txt"), "one\n");
    let (world, cli) = world();
    let cli = cli.cwd(&app);
    for strategy in ["overlay", "filesystem_copy"] {
        let at = |plan: &str, path: &str| {
            cli.ok(format!(
                "plan create {plan} --resource {path} --strategy {strategy}"
            ));
        };
        at("try", ".");
        at("other", "../other");
        put(&cli, "other other secret", "a secret of another plan\n");
        let before = signature(there.path());
        let script = r#"
            grep -r 'a secret of' .. 2>/dev/null
            find .. -path '../.escrow-*/*' 2>/dev/null
            (for area in ../.escrow-*; do echo evil > $area/evil; rm -rf $area/*; done) 2>/dev/null
            echo new > f
        "#;
        let outcome = cli.run(in_try(script));
        let found = outcome.stdout_text();
        assert_eq!(found, "", "{strategy}: {}", outcome.stderr_text());
        let own = |path: &Vec<u8>| !path.starts_with(b".escrow-");
        let mut after = signature(there.path());
        after.retain(|path, _| own(path));
        let mut expected = before;
        expected.retain(|path, _| own(path));
        assert_same(&expected, &after, &Ignore::default());
        assert_eq!(cli.ok("diff try --name-status"), "A\tf\n");
        let wanted = "a secret of another plan\n";
        assert_eq!(cli.ok("read other other secret"), wanted);
        cli.ok("commit try");
        cli.ok("cleanup try");
        cli.ok("cleanup other");
        sh(&app, "rm f");
    }
    assert_quiet(&world);
    assert_quiet(&there);
}

/// Root inside is what root is in a container: files of others are its own to change in the sandbox, and nowhere else. What
/// is released has no more power than before.
#[test]
fn root_changes_files_of_others_in_the_sandbox_only() {
    need!(require_root("files of another user"));
    let make = "mkdir -m 0700 theirs; echo theirs > theirs/file; chmod 0600 theirs/file; chown -R 54321:54321 theirs";
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| drop(sh(app, make)));
        let beside = scene.world.dir("elsewhere");
        sh(&beside, make);
        let script = "cat theirs/file; echo more >> theirs/file; echo new > theirs/new; chown 54321:54322 theirs/new
            setpriv --reuid=54321 --clear-groups cat theirs/file; setcap cap_net_raw+ep a.txt; mv theirs renamed
            chown 0 $1/theirs || echo out of reach; mknod node b 7 0 || echo no device";
        let line = [&in_try(script)[..], &["sh".into(), beside.clone().into()]].concat();
        let said = scene.cli.ok(line);
        assert_eq!(
            said, "theirs\ntheirs\nmore\nout of reach\nno device\n",
            "{strategy}"
        );
        scene.cli.ok("commit try");
        sh(
            &scene.app,
            "test \"$(stat -c %u:%g renamed renamed/file renamed/new | xargs)\" = '54321:54321 54321:54321 54321:54322'
            test \"$(getcap a.txt)\" = ''; test \"$(stat -c %a renamed/file)\" = 600; test ! -e theirs",
        );
    }
}

/// A mask that was replaced by a link would hide nothing.
// attack B11
#[test]
fn b11_devices_that_are_links() {
    need!(require_root("a /dev of its own"));
    let scene = Scene::new("overlay");
    let trap = scene.world.dir("trap");
    write(trap.join("null"), "precious\n");
    // In a mount namespace of its own, so that the real /dev stays as it is.
    let setup = "mount -t tmpfs none /dev; for n in zero full random urandom tty; do mknod -m 666 /dev/$n c 1 5; done
         ln -s \"$TRAP/null\" /dev/null; exec \"$0\" \"$@\"";
    chmod(trap.join("null"), 0o666);
    let script = "echo evil > /dev/null; stat -L -c %F /dev/null";
    let outer = ["unshare", "-m", "sh", "-euc", setup];
    for cli in [scene.cli.clone(), user_of(&scene)] {
        let mut command = cli.behind(&outer, inside("run --new --rollback", script));
        command.env("TRAP", &trap);
        let output = command.output().expect("there is an unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        has(&said, ["which is not the device it should be"]);
        assert_eq!(read(trap.join("null")), "precious\n");
    }
    assert!(Path::new("/dev/null").exists());
    scene.unharmed();
}

/// Root read what the kernel has for those who debug it, and what is read from there once is gone.
// attack D41
#[test]
fn d41_root_read_the_traces_of_the_kernel() {
    need!(require_root("mounts"));
    let scene = Scene::new("overlay");
    let setup = "mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
        mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
        test -e /sys/kernel/tracing/trace_pipe && echo there; exec \"$0\" \"$@\"";
    let script = "ls -A /sys/kernel/debug /sys/kernel/tracing 2>/dev/null | grep -v '^$\\|:'; test -d /sys/kernel/mm && echo alive";
    let outer = ["unshare", "-m", "sh", "-euc", setup];
    for cli in [scene.cli.clone(), user_of(&scene)] {
        let line = inside("run --new --rollback", script);
        let output = cli.behind(&outer, line).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "there\nalive\n", "{output:?}");
    }
    scene.unharmed();
}

/// The socket for questions is made in a `/run` that no other process sees.
#[test]
fn no_socket_is_left_in_a_run_that_can_be_written() {
    need!(require_root("the machine's /run"));
    let (_world, cli) = world();
    let listed = || -> Vec<_> {
        let entries = fs::read_dir("/run").expect("it is there");
        let names = entries.map(|entry| entry.expect("it can be listed").file_name());
        names
            .filter(|name| name.to_string_lossy().contains("escrow"))
            .collect()
    };
    let before = listed();
    cli.ok(inside("run --writable /run", "test -S $ESCROW_SOCKET"));
    assert_eq!(before, listed());
}

/// `ssh` refuses parts of its configuration that belong to neither root nor the user.
#[test]
fn parts_of_the_configuration_of_ssh_belong_to_the_user() {
    need!(require_root("a configuration of the machine"));
    let scene = Scene::new("overlay");
    let setup = "mkdir -p /etc/ssh/ssh_config.d; mount -t tmpfs none /etc/ssh/ssh_config.d
        echo 'Host one' > /etc/ssh/ssh_config.d/one.conf; exec \"$0\" \"$@\"";
    let user = user_of(&scene);
    let script = "stat -c %u:%a /etc/ssh/ssh_config.d/one.conf; cat /etc/ssh/ssh_config.d/one.conf
        (echo evil > /etc/ssh/ssh_config.d/one.conf) 2>/dev/null || echo fixed";
    let outer = ["unshare", "-m", "sh", "-euc", setup];
    let mut command = user.behind(&outer, inside("run", script));
    let output = command.output().expect("there is an unshare");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "54321:644\nHost one\nfixed\n", "{output:?}");
}

/// Root read which pages of the machine's memory are used, and for what.
#[test]
fn root_reads_nothing_of_the_pages_of_the_machine() {
    need!(require_root("files of root in /proc"));
    let outside = "for f in kpagecount kpageflags kpagecgroup; do head -c 8 /proc/$f | wc -c; done";
    let (_world, cli) = world();
    let said = cli.ok(inside(
        "run --new --rollback",
        &format!("{outside} 2>/dev/null"),
    ));
    lacks(&said, ["8"]);
}
