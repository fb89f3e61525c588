//! What a command may use of the machine: memory, processes, processors and time. As root the kernel keeps the limits by
//! control groups, as an ordinary user the monitor does.

use crate::attacks::{Scene, compile};
use crate::attacks_root::user_of;
use crate::*;

/// The control groups of commands.
fn groups() -> BTreeSet<PathBuf> {
    let find = "find /sys/fs/cgroup -maxdepth 6 -type d -name 'escrow-run-*'";
    sh("/", find).lines().map(PathBuf::from).collect()
}

/// Those without a process that are still there after a while. Other tests have theirs.
fn left_behind() -> BTreeSet<PathBuf> {
    let is_empty = |dir: &PathBuf| {
        let members = fs::read_to_string(dir.join("cgroup.procs"));
        members.is_ok_and(|members| members.is_empty())
    };
    let mut left = groups();
    for _ in 0..50 {
        left.retain(is_empty);
        if left.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    left
}

/// Takes so many MiB of memory, or as many processes, and waits.
const TAKE: &str = r#"
int main(int argc, char **argv) {
    int count = atoi(argv[2]), made = 0;
    for (int n = 0; n < count; n++) {
        if (argv[1][0] == 'm') memset(malloc(1 << 20), 1, 1 << 20);
        else {
            int pid = fork();
            if (pid == 0) { sleep(60); _exit(0); }
            made += pid > 0;
        }
    }
    if (argv[1][0] == 'p') { printf("made %d\n", made); fflush(stdout); }
    sleep(argc > 3 ? 0 : 60);
    return 0;
}
"#;

// attack H1
#[test]
fn h1_a_command_that_multiplies_is_stopped() {
    as_user_too();
    let (world, cli) = world();
    compile(&world.at("app"), "take", TAKE);
    let outcome = cli.run("run --rollback --pids 20 --timeout 2s -- ./take processes 300");
    let said = outcome.stderr_text();
    has(&said, ["its limit of 20 processes"]);
    assert_ne!(outcome.status, 0, "{said}");
    let made = outcome.stdout_text();
    let made = made.trim().strip_prefix("made ").unwrap_or("0");
    assert!(made.parse::<u32>().expect("a number") <= 28, "{made}");
    // What is within its limit notices nothing.
    let outcome = cli.expect(
        "run --rollback --pids 20 --memory 500M -- ./take processes 5 0",
        0,
    );
    assert_eq!(outcome.stdout_text(), "made 5\n");
    lacks(&outcome.stderr_text(), ["limit"]);
    assert_eq!(left_behind(), BTreeSet::new());
    assert_quiet(&world);
}

// attack H2
#[test]
fn h2_a_command_that_takes_all_memory_is_stopped() {
    as_user_too();
    let (world, cli) = world();
    compile(&world.at("app"), "take", TAKE);
    let outcome = cli.run("run --rollback --memory 64M -- ./take memory 200");
    let said = outcome.stderr_text();
    has(&said, ["its limit of 67108864 bytes of memory"]);
    assert_eq!(outcome.status, 137, "{said}");
    // The configuration says the same, also for what validates.
    write(
        world.at("app/escrow.yaml"),
        "run: {limits: {memory: 64M}}\nvalidate: [./take memory 200]\n",
    );
    cli.trust();
    cli.plan("try", ".", "overlay");
    assert_eq!(cli.run("run --plan try -- ./take memory 200").status, 137);
    cli.ok(in_try("echo x > f"));
    has(&cli.fails("commit try", 1), ["ended with status 137"]);
    assert_eq!(left_behind(), BTreeSet::new());
}

#[test]
fn a_command_gets_its_share_of_the_processors_or_an_error() {
    as_user_too();
    let (_world, cli) = planned("overlay");
    if !is_root() {
        let outcome = cli.expect(inside("run --plan try --cpu 0.5", "echo ran"), 125);
        has(
            &outcome.stderr_text(),
            ["limit the processors", "delegated"],
        );
        assert_eq!(outcome.stdout_text(), "");
        return;
    }
    let running = Running::ready(cli.command(inside("run --plan try --cpu 0.5", WAIT)));
    let quotas = groups().into_iter().filter_map(|group| {
        let newer = fs::read_to_string(group.join("cpu.max"));
        let older = || fs::read_to_string(group.join("cpu.cfs_quota_us"));
        newer.or_else(|_| older()).ok()
    });
    let quotas: Vec<String> = quotas.collect();
    assert!(
        quotas.iter().any(|quota| quota.starts_with("50000")),
        "{quotas:?}"
    );
    assert_eq!(running.finish().status, 0);
    assert_eq!(left_behind(), BTreeSet::new());
}

// rule S5
#[test]
fn a_command_whose_time_is_over_is_ended() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let script = "echo early > early; sleep 1000; echo late > late";
    let outcome = cli.expect(inside("run --plan try --timeout 1s", script), 124);
    has(&outcome.stderr_text(), ["limit of time", "escrow diff"]);
    assert_eq!(cli.ok("diff try --name-status"), "A\tearly\n");
    // One that does not listen has a few seconds more.
    let script = "trap '' TERM HUP INT; while :; do sleep 1; done";
    cli.expect(inside("run --plan try --timeout 1s", script), 124);
    cli.expect(inside("run --plan try --timeout 100s", "exit 3"), 3);
    for line in ["--timeout 3", "--memory x", "--cpu 0", "--pids -1"] {
        cli.expect(format!("run --plan try {line} -- true"), 2);
    }
    assert_quiet(&world);
}

// attack H9
#[test]
fn h9_a_command_that_fills_the_disk_is_stopped() {
    as_user_too();
    for strategy in STRATEGIES {
        let (world, cli) = planned(strategy);
        // One file, of the size that one may have.
        let outcome = cli.run(inside(
            "run --plan try --disk 8M",
            "dd if=/dev/zero of=large bs=1M count=20 2>/dev/null",
        ));
        let said = outcome.stderr_text();
        assert_eq!(outcome.status, 153, "{said}");
        has(
            &said,
            ["a file of the command reached its limit of 8388608 bytes"],
        );
        cli.ok("rollback try");
        // Many, in the sandbox and in the home directory.
        for place in [".", "$HOME"] {
            let fill = format!(
                "for n in $(seq 300); do head -c 1000000 /dev/zero > {place}/f$n || exit; done; sleep 60"
            );
            let outcome = cli.run(inside("run --plan try --disk 8M", &fill));
            let said = outcome.stderr_text();
            assert_eq!(outcome.status, 137, "{place}: {said}");
            has(&said, ["its limit of 8388608 bytes on disk"]);
            cli.ok("rollback try");
        }
        // In memory, where the kernel keeps it; what is within the limit notices nothing.
        let script = "head -c 9000000 /dev/zero > /tmp/f || echo full; head -c 9000000 /dev/zero > /dev/shm/f || echo full; \
            head -c 3000000 /dev/zero > within";
        let outcome = cli.run(inside("run --plan try --disk 8M", script));
        let said = outcome.stderr_text();
        assert_eq!(
            (outcome.status, outcome.stdout_text()),
            (0, "full\nfull\n".to_owned()),
            "{said}"
        );
        lacks(&said, ["its limit"]);
        assert_quiet(&world);
    }
}

/// A group of version 2 that is delegated, with one in which the command's caller is, and one that is mounted elsewhere too.
struct Delegated {
    group: PathBuf,
    /// Whether the machine has given the controllers to version 2; else the group only says that it has them.
    real: bool,
}

const CONTROLLERS: &str = "cpu memory pids";

impl Delegated {
    fn new(tree: &Path, to: u32) -> Self {
        let has = read(tree.join("cgroup.controllers"));
        let real = CONTROLLERS
            .split(' ')
            .all(|name| has.split_whitespace().any(|has| has == name));
        let group = tree.join(format!("escrow-test-limits-{to}-{}", std::process::id()));
        let enable = if real {
            "echo +cpu +memory +pids | tee ../cgroup.subtree_control > cgroup.subtree_control"
        } else {
            ""
        };
        fs::create_dir(&group).expect("root may");
        sh(
            &group,
            &format!(
                "{enable}\nmkdir own other; chown {to} . own *.procs *.subtree_control own/*.procs"
            ),
        );
        Self { group, real }
    }

    /// The groups of commands in it.
    fn commands(&self) -> Vec<PathBuf> {
        let all = names(&self.group).into_iter();
        let own = all.filter(|name| name.starts_with("escrow-run-"));
        own.map(|name| self.group.join(name)).collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for name in ["own", "other", ""] {
            let dir = self.group.join(name);
            while fs::remove_dir(&dir).is_err_and(|error| error.raw_os_error() == Some(16)) {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// A group of a command is made where it is delegated, joined, cannot be left, and is removed; what it cannot keep is watched. A
/// part of the tree that was mounted elsewhere hid the rest of it.
#[test]
fn groups_of_version_2_are_made_where_they_are_delegated() {
    need!(require_root("control groups"));
    let tree = need!(crate::attacks_kernel::cgroups());
    let scene = Scene::with("overlay", |app| compile(app, "take", TAKE));
    write(scene.world.at("controllers"), CONTROLLERS);
    let user = user_of(&scene);
    for (cli, to) in [(&scene.cli, 0), (&user, UID)] {
        let delegated = Delegated::new(&tree, to);
        let announce = if delegated.real {
            ":"
        } else {
            "mount --bind $0/controllers $ESCROW_GROUP/cgroup.subtree_control"
        };
        let setup = format!(
            "{announce}; mount --bind $ESCROW_GROUP/other /mnt; echo $$ > $ESCROW_GROUP/own/cgroup.procs; exec \"$@\""
        );
        let world = scene.world.path().to_str().expect("it is text");
        let outer = ["unshare", "-m", "sh", "-euc", &setup, world];
        let cli = cli.clone().env("ESCROW_GROUP", &delegated.group);
        let cli = cli.env("ESCROW_TAKE", scene.app.join("take"));
        let run = |line: &str| {
            let line = format!("run --new --rollback {line}");
            let (options, script) = line.split_once(" -- ").expect("a command");
            cli.behind(&outer, inside(options, script))
        };
        let leave = "for way in 'echo $$ > $ESCROW_GROUP/own/cgroup.procs' 'mkdir $ESCROW_GROUP/new' \
            'echo max > $ESCROW_GROUP/escrow-run-*/pids.max' 'echo 1 > $ESCROW_GROUP/own/cgroup.freeze'; do
            (eval \"$way\") 2>/dev/null && echo \"GOT $way\"; done";
        let running = Running::ready(run(&format!("--memory 64M --pids 20 -- {leave}; {WAIT}")));
        let groups = delegated.commands();
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_ne!(read(groups[0].join("cgroup.procs")), "");
        if delegated.real {
            assert_eq!(read(groups[0].join("memory.max")), "67108864\n");
            assert_eq!(read(groups[0].join("pids.max")), "20\n");
        }
        assert_eq!(running.finish().status, 0);
        for (line, says) in [
            (
                "--pids 20 --timeout 2s -- $ESCROW_TAKE processes 300",
                "its limit of 20 processes",
            ),
            (
                "--memory 64M -- $ESCROW_TAKE memory 200",
                "its limit of 67108864 bytes of memory",
            ),
        ] {
            let output = run(line).output().expect("there is an unshare");
            has(&String::from_utf8_lossy(&output.stderr), [says]);
        }
        let output = run("--cpu 0.5 -- cat $ESCROW_GROUP/escrow-run-*/cpu.max").output();
        let output = output.expect("there is an unshare");
        let said = String::from_utf8_lossy(&output.stderr);
        match delegated.real {
            true => assert_eq!(output.stdout, b"50000 100000\n", "{said}"),
            false => has(&said, ["limit the processors"]),
        }
        assert!(delegated.commands().is_empty());
    }
    scene.unharmed();
}
