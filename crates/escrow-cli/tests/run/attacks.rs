//! What a hostile command tries from inside, and what comes of it: nothing outside changes, nothing is left.

use crate::*;

/// A plan `try` of `app`, and beside it what must stay as it is.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) cli: Cli,
    pub(crate) app: PathBuf,
    pub(crate) beside: PathBuf,
    before: [Sig; 2],
}

impl Scene {
    pub(crate) fn new(strategy: &str) -> Self {
        Self::with(strategy, |_| {})
    }

    /// With more in the world before anything is looked at.
    pub(crate) fn with(strategy: &str, more: impl FnOnce(&Path)) -> Self {
        let (world, cli) = world();
        let (app, beside) = (world.at("app"), world.dir("beside"));
        write(beside.join("file"), "precious\n");
        more(&app);
        cli.plan("try", ".", strategy);
        let before = [signature(&app), signature(&beside)];
        Self {
            cli: cli.env("ESCROW_BESIDE", &beside),
            world,
            app,
            beside,
            before,
        }
    }

    /// Runs a script inside; it may fail.
    pub(crate) fn run(&self, script: &str) -> Outcome {
        self.cli.run(in_try(script))
    }

    /// The same where user namespaces are allowed.
    pub(crate) fn run_nesting(&self, script: &str) -> Outcome {
        self.cli
            .run(inside("run --plan try --allow-userns", script))
    }

    /// Runs a script inside that must say exactly this, also where user namespaces are allowed.
    #[track_caller]
    pub(crate) fn says(&self, script: &str, expected: &str) {
        self.says_so(&self.run(script), script, expected);
        if script.contains("unshare") {
            self.says_so(&self.run_nesting(script), script, expected);
        }
    }

    #[track_caller]
    fn says_so(&self, outcome: &Outcome, script: &str, expected: &str) {
        let found = outcome.stdout_text();
        assert_eq!(found, expected, "{script}: {}", outcome.stderr_text());
    }

    /// Fails if anything outside has changed, or anything is left.
    #[track_caller]
    pub(crate) fn unharmed(&self) {
        assert_quiet(&self.world);
        for (before, path) in self.before.iter().zip([&self.app, &self.beside]) {
            unchanged(before, path);
        }
    }
}

/// The headers of every program in C.
const HEADERS: &str = "errno fcntl signal stdint stdio stdlib string sys/ioctl sys/mman sys/ptrace sys/socket \
    sys/stat sys/syscall sys/uio sys/un unistd";

/// Makes a program from C, outside.
pub(crate) fn compile(dir: &Path, name: &str, source: &str) {
    let file = dir.join(format!("{name}.c"));
    let headers = HEADERS
        .split(' ')
        .map(|name| format!("#include <{name}.h>\n"));
    let text = [
        "#define _GNU_SOURCE\n",
        &headers.collect::<String>(),
        source,
    ];
    write(&file, text.concat());
    let status = Command::new("cc")
        .args(["-w", "-o"])
        .args([&dir.join(name), &file])
        .status();
    assert!(status.expect("there is a compiler").success());
    remove(file);
}

// attack B7; rule S1
#[test]
fn b7_the_ways_out_through_proc() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script = r#"
            for p in /proc/[0-9]* /proc/self /proc/thread-self; do
                for way in root cwd exe fd/0 fd/1 fd/2 fd/3 fd/4 fd/5; do
                    (echo evil > $p/$way$ESCROW_BESIDE/file; echo evil > $p/$way/../beside/file) 2>/dev/null
                done
                # Through its own root a command reaches its sandbox, through another one nothing.
                case $p in /proc/1) echo evil > $p/root$PWD/a.txt && echo "through $p";; esac
                (cd $p/cwd/ && rm -rf ../beside; cd $p/root && rm -rf .$ESCROW_BESIDE) 2>/dev/null
            done
        "#;
        let outcome = scene.run(script);
        assert_eq!(outcome.stdout_text(), "");
        scene.unharmed();
    }
}

/// A file that is open for reading can be opened again through `/proc`, for writing, on the mount it came from.
// attack B7
#[test]
fn b7_what_is_on_standard_input_cannot_be_opened_for_writing() {
    as_user_too();
    let all = [
        (
            "app/a.txt",
            "head -n 1; for n in 0 1 2; do echo evil > /proc/self/fd/$n; done",
        ),
        (
            "app/a.txt",
            "head -n 1; echo evil > /dev/stdin; truncate -s 0 /dev/stdin; chmod 0 /dev/stdin",
        ),
        (
            "beside/file",
            "cat; echo evil >> /dev/fd/0; rm /proc/self/fd/0",
        ),
        (
            "app",
            "cd /proc/self/fd/0/ && echo evil > a.txt; rm -rf ../beside; rm -f a.txt",
        ),
        (
            "beside",
            "echo evil > /proc/self/fd/0/file; mkdir /proc/self/fd/0/new",
        ),
    ];
    for (path, script) in all {
        let scene = Scene::new("overlay");
        let file = File::open(scene.world.at(path)).expect("it is there");
        let output = scene
            .cli
            .command(in_try(script))
            .stdin(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .output()
            .expect("it starts");
        if path.contains('/') {
            // What it is there for works.
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.starts_with(['o', 'p']), "{path}: {said}");
        }
        scene.unharmed();
    }
}

#[test]
fn descriptors_that_the_parent_left_open_are_not_inside() {
    as_user_too();
    let scene = Scene::new("overlay");
    let inner = r#"
        echo /proc/self/fd/*
        (echo evil >&7; echo evil >&8; echo evil > /proc/self/fd/9/a.txt) 2>/dev/null
        for p in /proc/[0-9]*; do
            (echo evil > $p/fd/7; echo evil >> $p/fd/8; echo evil > $p/fd/9/a.txt) 2>/dev/null
        done
        :
    "#;
    let open = "exec 7>>a.txt 8<>../beside/file 9<. && exec \"$0\" \"$@\"";
    let mut command = scene.cli.behind(&["sh", "-c", open], in_try(inner));
    let before = signature(&scene.app);
    let output = command.output().expect("there is a shell");
    // The fourth is the directory itself, while it is listed.
    let said = String::from_utf8_lossy(&output.stdout);
    let listed = [0, 1, 2, 3].map(|n| format!("/proc/self/fd/{n}")).join(" ");
    assert_eq!(said.trim_end(), listed);
    unchanged(&before, &scene.app);
    scene.unharmed();
}

#[test]
fn what_is_outside_cannot_be_linked_into_the_sandbox() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script = r#"
            ln $ESCROW_BESIDE/file in 2>/dev/null && echo linked
            ln -L /proc/self/cwd/../beside/file in 2>/dev/null && echo linked
            mv $ESCROW_BESIDE/file in 2>/dev/null; cp -l $ESCROW_BESIDE/file in2 2>/dev/null
            [ -e in ] && echo evil > in; [ -e in2 ] && echo evil > in2
            ln a.txt $ESCROW_BESIDE/out 2>/dev/null && echo linked
            :
        "#;
        scene.says(script, "");
        scene.unharmed();
    }
}

#[test]
fn nothing_can_be_mounted_or_unmounted() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script = r#"
            exec 2>/dev/null
            mount -t tmpfs none /mnt && echo a tmpfs
            mount --bind $ESCROW_BESIDE /mnt && echo a bind
            mount -o remount,rw / && echo a remount
            mount -o remount,bind,rw / && echo a remount
            umount $PWD && echo an unmount
            umount -l /proc && echo an unmount
            chroot / true && echo a chroot
            nsenter -t 1 -m true && echo a join
            :
        "#;
        scene.says(script, "");
        scene.unharmed();
    }
}

/// In a namespace of its own the command is root, has every capability, and still finds every mount locked.
#[test]
fn root_of_an_inner_namespace_reaches_nothing() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| compile(app, "tree", TREE));
        let inner = r#"
            for at in / $ESCROW_BESIDE /var /var/tmp /proc/sys /sys /dev; do
                mount -o remount,rw $at; mount -o remount,bind,rw $at
            done
            umount "$PWD"; umount -l "$PWD"; umount -R /proc; umount /tmp
            mount --move "$PWD" /mnt
            mount --bind / /mnt && echo evil > /mnt$ESCROW_BESIDE/file
            umount /mnt
            mkdir -p /tmp/w /tmp/m
            mount -t overlay none -o upperdir=$ESCROW_BESIDE,lowerdir=/etc,workdir=/tmp/w /tmp/m && echo evil > /tmp/m/file
            ./tree $ESCROW_BESIDE file new; ./tree .. beside/file; ./tree / .$ESCROW_BESIDE/file etc/new
            # What is opened here may be the sandbox; the original is looked at afterwards.
            ./tree .. app/a.txt > /dev/null; ./tree / .$PWD/a.txt > /dev/null
            echo evil > $ESCROW_BESIDE/file; rm -f $ESCROW_BESIDE/file; touch $ESCROW_BESIDE/new
            chroot /proc/1/root true && echo in the root of another
            true
        "#;
        // Root may not be mapped without the capability for it, but capabilities can be kept without a map.
        scene.says(&format!(
            "for how in -Urm '-Um --keep-caps'; do unshare $how sh -c '{inner}' 2>/dev/null; done; echo evil > a.txt"
        ), "");
        scene.unharmed();
        let wanted = "M\ta.txt\n";
        assert_eq!(scene.cli.ok("diff try --name-status"), wanted, "{strategy}");
    }
}

/// Clones a tree with its mounts, makes it writable, and writes into it: the new calls, which mount(8) may not use.
pub(crate) const TREE: &str = r#"
int main(int argc, char **argv) {
    for (int deep = 0; deep < 2; deep++) {
        int fd = syscall(428, -100, argv[1], 1 | O_CLOEXEC | (deep ? 0x8000 : 0));
        uint64_t set[4] = {0, 1, 0, 0};
        if (fd < 0) continue;
        if (syscall(442, fd, "", 0x1000, set, sizeof set) == 0) puts("writable");
        for (int n = 2; n < argc; n++)
            if (openat(fd, argv[n], O_CREAT | O_WRONLY | O_TRUNC, 0644) >= 0) puts("opened");
    }
    return 0;
}
"#;

/// As root, a new `/proc` would hold settings of the kernel that can be written.
#[test]
fn a_new_proc_cannot_be_mounted_over_the_closed_one() {
    as_user_too();
    let scene = Scene::new("overlay");
    let (setting, pattern) = ("/proc/sys/kernel/core_pattern", read_setting());
    let script = r#"
        unshare -Urmpf --mount-proc=/mnt sh -c 'echo evil > /mnt/sys/kernel/core_pattern && echo written' 2>/dev/null
        unshare -Urmpfn sh -c 'mount -t sysfs none /mnt && touch /mnt/power/state && echo evil > /mnt/power/state && echo written' 2>/dev/null
        unshare -Urmpfi sh -c 'mount -t proc none /proc; echo evil > /proc/sys/kernel/core_pattern && echo written' 2>/dev/null
        :
    "#;
    scene.says(script, "");
    assert_eq!(read(setting), pattern);
    scene.unharmed();
}

fn read_setting() -> String {
    read("/proc/sys/kernel/core_pattern")
}

#[test]
fn settings_of_the_kernel_are_closed() {
    as_user_too();
    let scene = Scene::new("overlay");
    let script = r#"
        find /proc/sys /proc/irq /proc/bus /proc/fs -type f -writable 2>/dev/null | head -n 3
        find /sys -type f -writable 2>/dev/null | head -n 3
        for file in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /sys/power/state; do
            (echo h > $file) 2>/dev/null && echo "wrote $file"
        done
        (mkdir /sys/fs/cgroup/cpu/evil /sys/fs/cgroup/evil) 2>/dev/null && echo made a cgroup
        for file in /proc/kcore /proc/kmsg; do
            (head -c 1 $file | grep -q .) 2>/dev/null && echo "read $file"
        done
        :
    "#;
    scene.says(script, "");
}

#[test]
fn devices_are_few_and_harmless() {
    as_user_too();
    let scene = Scene::new("overlay");
    let script = r#"
        cd /dev; for f in * */*; do test -b $f && echo a disk; test -c $f && ! test -L $f && echo $f; done | tr '\n' ' '
        mknod /tmp/disk b 7 0 2>/dev/null && echo made a disk
        mknod /dev/mem c 1 1 2>/dev/null && echo made the memory
        echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 5 /dev/urandom | wc -c
        test -c /dev/null && test -w /dev/shm && test -d /dev/fd && echo usable
    "#;
    let steps = "full null random tty urandom zero pts/ptmx 3\n5\nusable\n";
    scene.says(script, steps);
    scene.unharmed();
}

/// A process that is outside is not there for those inside; and their own process 1 cannot be touched.
#[test]
fn the_supervisor_can_be_neither_seen_nor_killed_nor_traced() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "trace", TRACE));
    let script = r#"
        trap '' HUP INT TERM
        set -- /proc/[0-9]*; echo $#
        ./trace 1
        unshare -Ur ./trace 1
        cat /proc/1/environ /proc/1/maps 2>/dev/null
        for signal in KILL STOP TERM INT HUP SEGV; do kill -$signal 1; done 2>/dev/null
        ./trace $PPID
        unshare -Ur ./trace $PPID
        echo still here
    "#;
    for outcome in [scene.run(script), scene.run_nesting(script)] {
        // Process 1, the monitor and this shell.
        let expected = "3\nstill here\n";
        assert_eq!(outcome.stdout_text(), expected, "{}", outcome.stderr_text());
        assert_eq!(outcome.status, 0);
    }
    scene.unharmed();
}

/// Who stops the monitor would have a run that never ends.
#[test]
fn the_monitor_cannot_be_stopped() {
    as_user_too();
    let scene = Scene::with("overlay", |_| ());
    let outcome = scene.run("for n in 1 2 3; do kill -STOP $PPID; done; echo x > f; exit 5");
    assert_eq!(outcome.status, 5, "{}", outcome.stderr_text());
    scene.unharmed();
}

/// Everything of the user's that can be seen: the command ends with the rest, and its user is reported.
#[test]
fn a_command_that_kills_every_process_ends_with_them() {
    as_user_too();
    let scene = Scene::with("overlay", |_| ());
    let outcome = scene.run("echo x > f; kill -9 -1; sleep 10; echo still here");
    let expected = (125, String::new());
    assert_eq!((outcome.status, outcome.stdout_text()), expected);
    let said = outcome.stderr_text();
    has(&said, ["by a process inside", "escrow commit"]);
    scene.unharmed();
}

pub(crate) const TRACE: &str = r#"
int main(int argc, char **argv) {
    int pid = atoi(argv[1]);
    char path[64], byte;
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) puts("seized");
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0) puts("attached");
    sprintf(path, "/proc/%d/mem", pid);
    if (open(path, O_RDWR) >= 0) puts("has its memory");
    struct iovec here = {&byte, 1}, there = {(void *)main, 1};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) == 1) puts("reads its memory");
    int fd = syscall(434, pid, 0);
    for (int n = 0; n < 256; n++)
        if (syscall(438, fd, n, 0) >= 0) puts("takes its descriptors");
    return 0;
}
"#;

#[test]
fn what_the_command_left_running_is_ended() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let script = r#"
            for n in 1 2 3; do
                (setsid nohup sh -c 'trap "" TERM HUP INT; echo early > early; while :; do sleep 0.2; echo late >> late; done' \
                    </dev/null >/dev/null 2>&1 &)
            done
            while ! [ -s early ]; do sleep 0.02; done
            exit 0
        "#;
        assert_eq!(scene.run(script).status, 0);
        scene.unharmed();
        let now = scene.cli.ok("diff try --patch");
        assert!(now.contains("early"), "{now}");
        thread::sleep(Duration::from_millis(600));
        assert_eq!(scene.cli.ok("diff try --patch"), now, "{strategy}");
    }
}

// attack D5
#[test]
fn d5_a_command_cannot_type_for_the_user() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "type", TYPE));
    // Where the kernel permits it, the test tries what can be done.
    let permitted = fs::read_to_string("/proc/sys/dev/tty/legacy_tiocsti");
    if permitted.is_ok_and(|setting| setting.trim() == "1") {
        let terminal = Terminal::new(24, 80);
        let mut command = Command::new(scene.app.join("type"));
        command.current_dir(&scene.app);
        let mut child = terminal.start(command);
        let said = terminal.expect("tried");
        child.wait().expect("it ends");
        assert!(said.contains("typed"), "outside: {said}");
    }
    let terminal = Terminal::new(24, 80);
    let mut child = terminal.start(scene.cli.command("run --plan try -- ./type"));
    let said = terminal.expect("tried");
    child.wait().expect("it ends");
    assert!(!said.contains("typed"), "{said}");
    scene.unharmed();
}

const TYPE: &str = r#"
int main(void) {
    /* Below 4 GiB, for calls of 32 bits. */
    char *key = mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | 0x40, -1, 0);
    char paste[2] = {3, 0};
    *key = 'X';
    if (ioctl(0, TIOCSTI, key) == 0) puts("typed");
    if (ioctl(1, TIOCSTI, key) == 0) puts("typed by output");
    if (syscall(SYS_ioctl, 0, TIOCSTI | 1UL << 32, key) == 0) puts("typed with high bits");
    if (ioctl(0, 0x541C, paste) == 0) puts("typed by selection");
#ifdef __x86_64__
    long answer;
    if (syscall(0x40000000 | 514, 0, TIOCSTI, key) == 0) puts("typed by x32");
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(54L), "b"(0L), "c"((long)TIOCSTI), "d"((long)key) : "memory");
    if (answer == 0) puts("typed by a call of 32 bits");
#endif
    puts("tried");
    return 0;
}
"#;

#[test]
fn the_state_and_other_sandboxes_are_hidden() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        scene.cli.plan("other", "../beside", strategy);
        let secret = scene.cli.clone().stdin("a secret of another plan\n");
        secret.ok("write other beside secret");
        let home = scene.world.home();
        let theirs = scene.cli.ok("diff other --name-status");
        let cli = scene.cli.clone().env("ESCROW_STATE", &home);
        let script = r#"
            ls -A $ESCROW_STATE; grep -r 'a secret of' $ESCROW_STATE $ESCROW_BESIDE .. 2>/dev/null
            (echo evil > $ESCROW_STATE/sandboxes/evil; rm -rf $ESCROW_STATE/sandboxes $ESCROW_STATE/*) 2>/dev/null
            ls -d $ESCROW_STATE/sandboxes $ESCROW_STATE/locks 2>/dev/null
            env | grep -c ESCROW_HOME
        "#;
        let outcome = cli.run(in_try(script));
        let found = outcome.stdout_text();
        assert_eq!(found, "0\n", "{strategy}: {}", outcome.stderr_text());
        assert_eq!(scene.cli.ok("diff other --name-status"), theirs);
        let secret = scene.cli.ok("read other beside secret");
        assert_eq!(secret, "a secret of another plan\n");
        assert!(!home.join("sandboxes/evil").exists());
        scene.unharmed();
    }
}

/// The state is where it is by default, in the home directory, and the home directory is behind a link.
#[test]
fn the_state_is_hidden_wherever_it_is() {
    as_user_too();
    let (world, cli) = world();
    let home = world.dir("user-home/.local/share/escrow");
    symlink("user-home", world.at("alias"));
    let script = "chmod 0700 user-home user-home/.local/share/escrow";
    sh(world.path(), script);
    let cli = cli
        .env("ESCROW_HOME", "")
        .env("HOME", world.at("alias"))
        .env("ESCROW_STATE", &home);
    let script = r#"
        ls -A $ESCROW_STATE $HOME/.local/share/escrow | grep -v ':$\|^$'
        echo x > f; echo y > $HOME/file; cat $HOME/file
    "#;
    cli.says(inside("run", script), "y\n");
    assert!(home.join("sandboxes").exists());
    assert!(!world.at("user-home/file").exists());
    assert_eq!(cli.ok("diff --name-status"), "A\tf\n");
    assert_eq!(cli.ok("diff --scratch --name-status"), "A\tfile\n");
}

// attack D12
#[test]
fn d12_sockets_of_the_machine_are_out_of_reach() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "connect", CONNECT));
    scene.says("ls -A /run", "");
    if !is_root() {
        return;
    }
    // As the socket of a container engine, open to everyone.
    let path = format!("/run/escrow-test-{}.sock", std::process::id());
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("root may");
    sh(Path::new("/"), &format!("chmod 0666 {path}"));
    let outside = Command::new(scene.app.join("connect")).arg(&path).status();
    let holds = outside.expect("it starts").success();
    assert!(holds, "the test can find what it looks for");
    scene.says(
        &format!("./connect {path} || ./connect /var{path} || echo unreachable"),
        "unreachable\n",
    );
    drop(listener);
    remove(&path);
    // One of an engine outside of /run, whose users are root.
    let engine = World::new();
    let path = engine.at("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("there is room");
    chmod(&path, 0o666);
    let setup = "mount -t tmpfs -o mode=755 none /var/lib; mkdir /var/lib/incus; : > /var/lib/incus/unix.socket
        mount --bind $ESCROW_ENGINE /var/lib/incus/unix.socket
        $ESCROW_CONNECT /var/lib/incus/unix.socket && echo reachable; exec \"$0\" \"$@\"";
    let script = "$ESCROW_CONNECT /var/lib/incus/unix.socket || echo unreachable";
    let outer = ["unshare", "-m", "sh", "-euc", setup];
    for cli in [scene.cli.clone(), crate::attacks_root::user_of(&scene)] {
        let cli = cli.env("ESCROW_ENGINE", &path);
        let cli = cli.env("ESCROW_CONNECT", scene.app.join("connect"));
        let line = inside("run --new --rollback", script);
        let output = cli.behind(&outer, line).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "reachable\nunreachable\n", "{output:?}");
    }
    scene.unharmed();
}

pub(crate) const CONNECT: &str = r#"
int main(int argc, char **argv) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, argv[1]);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    return connect(fd, (struct sockaddr *)&at, sizeof at) != 0;
}
"#;

/// `write` from outside goes through the namespace of the command, which may lay out links there.
// attack B1; rule S1, S2
#[test]
fn b1_a_link_in_the_way_of_a_write_from_outside() {
    as_user_too();
    // In /tmp, where those inside can rename what lies above the sandbox.
    let (world, cli) = furnish(World::new());
    let victim = World::under(Path::new("/var/tmp"));
    write(victim.dir("app").join("a.txt"), "precious\n");
    cli.ok("plan create try --resource .");
    let before = signature(victim.path());
    let running = Running::ready(cli.command(in_try(&format!(
        "cd /; mv {world} {world}.away; ln -s {victim} {world}; {WAIT}",
        world = world.path().display(),
        victim = victim.path().display(),
    ))));
    let outcome = cli.clone().stdin("evil\n").run("write try app a.txt");
    let path = cli.run("path try app");
    running.finish();
    unchanged(&before, victim.path());
    // It may be refused; but what was written is in the sandbox.
    if outcome.status == 0 {
        assert_eq!(cli.ok("read try app a.txt"), "evil\n");
    }
    assert!(
        !path
            .stdout_text()
            .contains(&*victim.path().to_string_lossy())
    );
    assert_quiet(&world);
}

/// Helpers of the user outside that act when they are asked.
#[test]
fn the_environment_leads_nowhere() {
    as_user_too();
    let (_world, cli) = world();
    let cli = cli
        .env("SSH_AUTH_SOCK", "/run/agent")
        .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/bus")
        .env("CARGO_HOME", "yes");
    let script = "env | grep -c 'SSH_AUTH_SOCK\\|DBUS_SESSION\\|ESCROW_HOME'; echo $CARGO_HOME";
    cli.says(inside("run", script), "0\nyes\n");
}
