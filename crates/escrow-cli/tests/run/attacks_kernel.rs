//! What a command tries of the kernel itself: namespaces and cgroups of its own, keys, calls that programs do not need.

use std::os::unix::process::CommandExt;

use crate::attacks::{Scene, compile};
use crate::*;

/// The machine's cgroups of the second version, where there is a tree of them.
pub(crate) fn cgroups() -> Option<PathBuf> {
    let mounts = read("/proc/mounts");
    let tree = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    });
    if tree.is_none() {
        skip("this machine has no tree of cgroup2");
    }
    tree
}

/// A cgroup with a process in it that must live.
struct Victim {
    group: PathBuf,
    process: std::process::Child,
}

impl Victim {
    fn new(group: PathBuf) -> Self {
        fs::create_dir_all(&group).expect("root may");
        let process = Command::new("sleep").arg("1000").process_group(0).spawn();
        let process = process.expect("it starts");
        write(group.join("cgroup.procs"), process.id().to_string());
        Self { group, process }
    }

    fn lives(&mut self) -> bool {
        let ended = self.process.try_wait().expect("it is ours");
        let frozen = read(self.group.join("cgroup.events")).contains("frozen 1");
        ended.is_none() && !frozen
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
        while fs::remove_dir(&self.group).is_err_and(|error| error.raw_os_error() == Some(16)) {
            thread::sleep(Duration::from_millis(2));
        }
        // With the last one goes the group that holds them.
        let _ = self.group.parent().map(fs::remove_dir);
    }
}

/// In a user namespace of its own a command mounted the machine's cgroups, and killed and froze what was in them: as root
/// everything, as an ordinary user what shared a cgroup that was delegated to that user.
// attack D18
#[test]
fn d18_processes_outside_were_killed_through_a_nested_cgroup_mount() {
    need!(require_root("cgroups"));
    let Some(tree) = cgroups() else { return };
    let scene = Scene::new("overlay");
    let name = format!("escrow-test-{}", std::process::id());
    let mine = tree.join(&name);
    let mut victims = ["root", "user"].map(|whose| Victim::new(mine.join(whose)));
    sh(
        &mine,
        &format!("chown {UID}:{UID} . cgroup.procs; chown -R {UID}:{UID} user"),
    );
    let strike = format!(
        r#"
        grep {name} /proc/self/cgroup
        for how in -UrmC '-UmC --keep-caps' -UCmpf; do
            unshare $how sh -c '
                mkdir -p /tmp/{name}; mount -t cgroup2 none /tmp/{name} || exit
                for group in /tmp/{name}/{name}/root /tmp/{name}/user; do
                    echo 1 > $group/cgroup.freeze; echo 1 > $group/cgroup.kill
                done' 2>/dev/null
        done; rmdir /tmp/{name} 2>/dev/null; true"#
    );
    let user = crate::attacks_root::user_of(&scene);
    let join = "echo $$ > $0/cgroup.procs; exec \"$@\"";
    let outer = ["sh", "-c", join, mine.to_str().expect("it is text")];
    for nesting in ["", " --allow-userns"] {
        let line = format!("run --new --rollback{nesting}");
        // That of the user from within a cgroup that is delegated; the cgroup cannot be seen inside.
        let theirs = output_of(&mut user.behind(&outer, inside(&line, &strike)));
        assert_eq!(theirs, "");
        let own = scene.cli.run(inside(&line, &strike));
        assert_eq!(own.stdout_text(), "", "{}", own.stderr_text());
        assert!(victims.iter_mut().all(Victim::lives), "{nesting}");
    }
    // The test can find what it looks for.
    let ids = format!("setpriv --reuid={UID} --regid={UID} --clear-groups");
    let all = [
        vec!["sh", "-c", &strike],
        [
            &outer[..],
            &ids.split(' ').collect::<Vec<_>>(),
            &["sh", "-c", &strike],
        ]
        .concat(),
    ];
    for (words, victim) in all.iter().zip(&mut victims) {
        let status = Command::new(words[0])
            .args(&words[1..])
            .current_dir(&scene.app)
            .status();
        assert!(status.expect("it starts").success());
        assert!(!victim.lives(), "{}", victim.group.display());
    }
    scene.unharmed();
}

/// Puts a key into a new session keyring and becomes a program; or looks for it, and overwrites it.
const KEYS: &str = r#"
int main(int argc, char **argv) {
    if (!strcmp(argv[1], "put")) {
        long ring = syscall(SYS_keyctl, 1, 0);
        if (syscall(SYS_add_key, "user", "escrow-secret", "precious", 8, -3) < 0) return 1;
        /* To its owner as well, not only to those who possess it. */
        long key = syscall(SYS_keyctl, 10, -3, "user", "escrow-secret", 0);
        syscall(SYS_keyctl, 5, key, 0x3f3f0000);
        char number[32];
        sprintf(number, "%ld", key);
        setenv("KEY", number, 1);
        execvp(argv[2], argv + 2);
        return 1;
    }
    char text[9] = {0};
    long found[] = {atol(getenv("KEY")), syscall(SYS_keyctl, 10, -3, "user", "escrow-secret", 0),
        syscall(SYS_request_key, "user", "escrow-secret", 0, 0)};
    for (int n = 0; n < 3; n++) {
        if (syscall(SYS_keyctl, 11, found[n], text, 8) == 8) puts(text);
        if (syscall(SYS_keyctl, 2, found[n], "evil", 4) == 0) puts("overwritten");
    }
    if (syscall(SYS_add_key, "user", "new", "x", 1, -3) > 0) puts("added");
    return 0;
}
"#;

/// The caller's session keyring, with tickets and passwords in it, could be read and overwritten.
// attack D19
#[test]
fn d19_the_callers_keys_were_read_and_overwritten() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "keys", KEYS));
    let keys = scene.app.join("keys");
    let keys = keys.to_str().expect("it is text");
    let bare = Command::new(keys)
        .args(["put", keys, "look"])
        .current_dir(&scene.app)
        .output();
    let said = String::from_utf8_lossy(&bare.expect("it starts").stdout).into_owned();
    has(&said, ["precious", "overwritten"]);
    // The key's number reaches the command, as a thief would guess it.
    let look = "exec \"$0\" \"$@\" -e KEY=$KEY -- ./keys look";
    for line in ["run --plan try", "run --plan try --allow-userns"] {
        let mut command = scene.cli.behind(&[keys, "put", "sh", "-c", look], line);
        assert_eq!(output_of(&mut command), "");
    }
    scene.unharmed();
}

/// Makes calls that programs have no use for, each so that it works where it may, or fails for another reason than being
/// refused.
pub(crate) const CALLS: &str = r#"
#include <sched.h>
#include <sys/wait.h>
static void tried(const char *name, long answer) {
    if (answer >= 0 || (errno != EPERM && errno != ENOSYS)) puts(name);
    fflush(stdout);
}
#ifdef __x86_64__
static long old(long call, long one) {
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(call), "b"(one), "c"(0L), "d"(0L) : "memory");
    if (answer < 0) { errno = -answer; return -1; }
    return answer;
}
#endif
static long in_child(long (*how)(void)) {
    int status, pid = fork();
    if (pid == 0) { long answer = how(); _exit(answer >= 0 ? 0 : errno); }
    waitpid(pid, &status, 0);
    errno = WEXITSTATUS(status);
    return errno ? -1 : 0;
}
static long new_user(void) { return syscall(SYS_unshare, CLONE_NEWUSER); }
static long new_user_and_files(void) { return syscall(SYS_unshare, CLONE_NEWUSER | CLONE_FILES | CLONE_FS); }
static long cloned(void) {
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    return pid;
}
static long cloned3(void) {
    uint64_t how[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    long pid = syscall(435, how, sizeof how);
    if (pid == 0) _exit(0);
    return pid;
}
#ifdef __x86_64__
static long old_new_user(void) { return old(310, CLONE_NEWUSER); }
static long x32_new_user(void) { return syscall(0x40000000 | SYS_unshare, CLONE_NEWUSER); }
#endif
int main(void) {
    tried("unshare", in_child(new_user));
    tried("unshare of more", in_child(new_user_and_files));
    tried("clone", in_child(cloned));
    tried("clone3", in_child(cloned3));
    tried("setns", syscall(SYS_setns, -1, 0));
    tried("open_tree", syscall(428, -100, ".", 0));
    tried("fsopen", syscall(430, "none of these", 0));
    tried("mount", syscall(SYS_mount, 0, 0, 0, 0, 0));
    tried("mount_setattr", syscall(442, -1, "", 0, 0, 0));
    tried("userfaultfd", syscall(SYS_userfaultfd, 1));
    tried("perf_event_open", syscall(SYS_perf_event_open, 0, 0, 0, 0, 0));
    tried("bpf", syscall(SYS_bpf, 0, 0, 0));
    tried("io_uring_setup", syscall(425, 1, 0));
    tried("keyctl", syscall(SYS_keyctl, 0, -3, 0));
    tried("add_key", syscall(SYS_add_key, 0, 0, 0, 0, 0));
    tried("request_key", syscall(SYS_request_key, 0, 0, 0, 0));
    tried("kexec_load", syscall(SYS_kexec_load, 0, 0, 0, 0));
    tried("finit_module", syscall(SYS_finit_module, -1, "", 0));
    tried("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, 0, 0));
    tried("quotactl", syscall(SYS_quotactl, 0, 0, 0, 0));
    tried("lease", fcntl(open("/etc/passwd", O_RDONLY), F_SETLEASE, F_RDLCK));
    tried("line discipline", ioctl(0, TIOCSETD, 0));
#ifdef __x86_64__
    tried("unshare of 32 bits", in_child(old_new_user));
    tried("open_tree of 32 bits", old(428, -100));
    tried("keyctl of 32 bits", old(288, 0));
    tried("userfaultfd of 32 bits", old(374, 1));
    tried("unshare of x32", in_child(x32_new_user));
#endif
    return 0;
}
"#;

// attack D20
#[test]
fn d20_calls_that_no_program_needs_reached_the_kernel() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "calls", CALLS));
    scene.says("./calls", "");
    // A command that is to nest may make namespaces and mounts, and nothing else.
    let nesting = scene.run_nesting("./calls").stdout_text();
    let mut found: Vec<&str> = nesting.lines().collect();
    found.retain(|name| !name.contains("32"));
    let expected = "unshare|unshare of more|clone|setns|open_tree|fsopen|mount|mount_setattr";
    let expected: Vec<&str> = expected
        .split('|')
        .filter(|name| found.contains(name))
        .collect();
    assert_eq!(found, expected);
    assert!(found.contains(&"unshare") && found.contains(&"open_tree"));
    let bare = Command::new(scene.app.join("calls")).output();
    let said = String::from_utf8_lossy(&bare.expect("it starts").stdout).into_owned();
    for name in [
        "unshare\n",
        "clone3\n",
        "open_tree\n",
        "keyctl\n",
        "lease\n",
        "line discipline\n",
    ] {
        assert!(
            said.contains(name),
            "the test can find what it looks for: {said}"
        );
    }
    scene.unharmed();
}

/// Takes a lease on a file, so that others who open it wait, and waits itself.
const LEASE: &str = r#"
int main(int argc, char **argv) {
    signal(SIGIO, SIG_IGN);
    puts(fcntl(open(argv[1], O_RDONLY), F_SETLEASE, F_WRLCK) ? "refused" : "leased");
    fflush(stdout);
    getchar();
}
"#;

/// Whoever opened a file that a command had a lease on, to read it, waited for 45 seconds.
// attack D39
#[test]
fn d39_processes_outside_waited_for_a_lease() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "lease", LEASE));
    let said = |command: Command| {
        let running = Running::start(command);
        let line = running.line();
        running.finish();
        line
    };
    let script = "exec ./lease $ESCROW_BESIDE/file";
    assert_eq!(said(scene.cli.command(in_try(script))), "refused");
    let mut bare = Command::new(scene.app.join("lease"));
    bare.arg(scene.beside.join("file"));
    assert_eq!(said(bare), "leased", "the test can find what it looks for");
    scene.unharmed();
}

/// Tools that make sandboxes of their own work where that is allowed, and those that come later join as it is.
#[test]
fn tools_that_nest_work_where_they_are_allowed_to() {
    as_user_too();
    let (world, cli) = world();
    cli.plan("try", ".", "overlay");
    let nest =
        "unshare -Um --keep-caps sh -c 'mkdir /tmp/m && mount -t tmpfs none /tmp/m && echo made'";
    cli.says(inside("run --plan try --allow-userns", nest), "made\n");
    let refused = cli.run(in_try(nest));
    assert_eq!((refused.status, refused.stdout_text()), (1, String::new()));
    let running = Running::ready(cli.command(in_try(WAIT)));
    let outcome = cli.run(inside("run --plan try --allow-userns", "true"));
    assert_eq!(outcome.status, 125);
    has(&outcome.stderr_text(), ["allows no user namespaces"]);
    running.finish();
    // A file of the tree does not decide how strong its own sandbox is.
    write(world.at("app/escrow.yaml"), "run: {allow_userns: true}\n");
    let refused = cli.run(inside("run --new", nest));
    assert_eq!(refused.status, 1, "{}", refused.stderr_text());
    has(&refused.stderr_text(), ["run.allow_userns", "escrow trust"]);
    cli.ok("trust --yes");
    cli.says(inside("run --new --rollback", nest), "made\n");
}

/// Should a mount be writable that must not be, Landlock still keeps a command from it.
// attack D32
#[test]
fn d32_a_mount_that_was_left_writable_was_written() {
    as_user_too();
    if !cfg!(feature = "seeded-bugs") {
        return skip("built without the feature seeded-bugs");
    }
    let script = "for way in 'echo evil > $ESCROW_BESIDE/file' 'rm $ESCROW_BESIDE/file' ': > $ESCROW_BESIDE/new' 'mkdir $ESCROW_BESIDE/dir' \
            'mv a.txt $ESCROW_BESIDE/a' 'ln -s x $ESCROW_BESIDE/link' 'truncate -s 0 $ESCROW_BESIDE/file' 'mkfifo $ESCROW_BESIDE/pipe'; do
            (eval \"$way\") 2>/dev/null && echo \"GOT $way\"
        done
        # What is the plan's works as ever.
        mkdir -p d/e; echo x > d/e/f; mv d/e/f src/g; ln src/g h; echo y >> h; rm -r d; ln -s h l; mkfifo p; mv src moved
        echo x > ~/f; mv ~/f ~/g; echo x > /tmp/f; echo x > /dev/null; echo x > /dev/stdout; exec 3<> p; cat h";
    for strategy in STRATEGIES {
        let scene = Scene::new(strategy);
        let cli = crate::attacks_descriptors::bug(&scene, "mounts-left-writable");
        let outcome = cli.run(in_try(script));
        assert_eq!(
            outcome.stdout_text(),
            "x\nx\ny\n",
            "{strategy}: {}",
            outcome.stderr_text()
        );
        scene.unharmed();
        let cli = crate::attacks_descriptors::bug(&scene, "both-walls-open");
        let outcome = cli.run(inside(
            "run --new --rollback",
            "echo evil > $ESCROW_BESIDE/file && echo GOT it",
        ));
        assert_eq!(
            outcome.stdout_text(),
            "GOT it\n",
            "the test can find what it looks for"
        );
    }
}
