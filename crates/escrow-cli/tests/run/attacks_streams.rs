//! What a command does with the streams it is given: files on them are the caller's, and so is the terminal.

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::attacks::{Scene, compile};
use crate::*;

/// Reads, cuts, overwrites and changes what is on standard output and standard error, which the shell holds as 8 and 9, then
/// writes a line to each.
const ABUSE: &str = r#"
    exec 8>&1 9>&2
    for n in 8 9; do
        it=/proc/$$/fd/$n
        dd if=$it iflag=nonblock of=stolen.$n; truncate -s 0 $it; chmod 4777 $it; : > $it
        rm $it; ln $it link.$n; ln -L $it link.$n
    done > /dev/null 2>&1
    grep -s earlier stolen.* link.*; echo out; echo error >&2
"#;

// attack D25
#[test]
fn d25_redirected_output_was_read_cut_and_made_setuid() {
    as_user_too();
    let scene = Scene::new("overlay");
    let log = scene.world.at("audit.log");
    let open = || {
        File::options()
            .append(true)
            .open(&log)
            .expect("it is there")
    };
    let fresh = || {
        write(&log, "earlier\n");
        fs::set_permissions(&log, fs::Permissions::from_mode(0o640)).expect("it is ours");
    };
    let mode = || {
        fs::metadata(&log)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o7777
    };
    let [out, error] = ["earlier\nout\n", "earlier\nerror\n"];
    let ways = [
        (true, false, out),
        (false, true, error),
        (true, true, "earlier\nout\nerror\n"),
    ];
    for (to_out, to_error, expected) in ways {
        fresh();
        let mut command = scene.cli.command(inside("-q run --plan try", ABUSE));
        command.stdout(if to_out { open().into() } else { Stdio::null() });
        command.stderr(if to_error {
            open().into()
        } else {
            Stdio::null()
        });
        let status = command.status().expect("it starts");
        assert!(status.success(), "{status}");
        assert_eq!((read(&log).as_str(), mode()), (expected, 0o640));
    }
    // The test can find what it looks for.
    fresh();
    let mut bare = Command::new("sh");
    bare.args(["-c", ABUSE])
        .current_dir(scene.world.dir("bare"));
    bare.stdout(open()).stderr(open());
    bare.status().expect("it starts");
    assert_ne!(
        (read(&log).as_str(), mode()),
        ("earlier\nout\nerror\n", 0o640)
    );
    scene.unharmed();
}

/// What goes through the pipes arrives, all of it and in its order, and what cannot be written is reported.
#[test]
fn what_is_relayed_is_exact() {
    as_user_too();
    let (world, cli) = planned("overlay");
    let large = world.at("large");
    let run = |script: &str, out: Stdio, error: Stdio| {
        let mut command = cli.command(inside("-q run --plan try", script));
        let child = command.stdout(out).stderr(error).output();
        child.expect("it starts")
    };
    let file = || Stdio::from(File::create(&large).expect("there is room"));
    sh(world.path(), "head -c 3000001 /dev/urandom > random");
    let output = run("cat ../random; exit 7", file(), Stdio::piped());
    assert_eq!(output.status.code(), Some(7));
    assert!(fs::read(&large).ok() == fs::read(world.at("random")).ok());
    // Both to one file: one pipe, so the order is kept.
    let both = File::create(&large).expect("there is room");
    let script = "n=0; while [ $n -lt 300 ]; do echo out $n; echo error $n >&2; n=$((n+1)); done";
    run(
        script,
        both.try_clone().expect("it is open").into(),
        both.into(),
    );
    let expected: String = (0..300).map(|n| format!("out {n}\nerror {n}\n")).collect();
    assert_eq!(read(&large), expected);
    // A process that is left behind does not keep the run waiting.
    let output = run("setsid sleep 1000 & echo over", file(), Stdio::piped());
    assert_eq!(
        (output.status.code(), read(&large).as_str()),
        (Some(0), "over\n")
    );
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("it is there");
    let output = run("echo lost", full.into(), Stdio::piped());
    assert_eq!(output.status.code(), Some(125));
    has(
        &String::from_utf8_lossy(&output.stderr),
        ["write the output of the command", "No space left"],
    );
    // A pipe whose reader has gone ends the command as it would without us.
    let script = "\"$0\" \"$@\" > fifo & head -n 1 < fifo; wait $!; echo $?";
    sh(world.at("app"), "rm -f fifo; mkfifo fifo");
    let mut command = cli.behind(&["bash", "-c", script], words("-q run --plan try -- yes"));
    let output = command.output().expect("there is bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "y\n141\n");
    assert_quiet(&world);
}

/// Root could change the machine's null device through the stream.
// attack D25
#[test]
fn d25_the_null_device_of_the_machine_was_changed() {
    as_user_too();
    let scene = Scene::new("overlay");
    let mode = || {
        fs::metadata("/dev/null")
            .expect("it is there")
            .permissions()
            .mode()
    };
    let before = mode();
    let script = "for n in 0 1 2; do chmod 0606 /proc/self/fd/$n; chmod 0606 /proc/$$/fd/$n; done; echo x; echo y >&2";
    let mut command = scene.cli.command(inside("-q run --plan try", script));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = command.status().expect("it starts");
    let after = mode();
    if after != before {
        fs::set_permissions("/dev/null", fs::Permissions::from_mode(before))
            .expect("it is put back");
    }
    assert_eq!((after, status.code()), (before, Some(0)));
    scene.unharmed();
}

/// A terminal that was closed to others, or opened to everyone, stayed so.
// attack D26
#[test]
fn d26_the_terminal_stayed_as_the_command_left_it() {
    as_user_too();
    let source = "int main(void) { return ioctl(0, TIOCEXCL) || fchmod(0, 0666); }";
    let scene = Scene::with("overlay", |app| compile(app, "close", source));
    let terminal = Terminal::new(24, 80);
    let script = "$0 -q run --plan try -- ./close; echo status $?; tty; stat -L -c %a $(tty); cat < $(tty) > /dev/null & sleep 0.1; kill $! && echo open";
    let mut command = scene.cli.behind(&["sh", "-c", script], words(""));
    command.current_dir(&scene.app);
    let mut child = terminal.start(command);
    let said = terminal.expect("open");
    child.wait().expect("it ends");
    assert!(said.contains("status 0"), "{said}");
    assert!(!said.contains("666"), "{said}");
    scene.unharmed();
}

/// Stops the terminal, has those who read it not wait, and lets it take and show nothing more.
const STOP: &str = r#"
#include <termios.h>
int main(void) {
    int nothing = 27;
    for (int fd = 0; fd < 3; fd++) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK | O_ASYNC);
    ioctl(0, TIOCSETD, &nothing);
    return tcflow(1, TCOOFF);
}
"#;

/// The run wrote its summary to a terminal that the command had stopped, and hung; one with another line discipline was lost.
// attack D26; rule S5
#[test]
fn d26_a_terminal_that_the_command_stopped_hung_the_run() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "stop", STOP));
    let terminal = Terminal::new(24, 80);
    // The shell has the same open file.
    let script = "flags() { grep flags /proc/$$/fdinfo/0; }; before=$(flags); for how in '' 'setsid -w'; do $how $0 run --plan try -- ./stop; echo status $?; done
        test \"$before\" = \"$(flags)\" && echo as before; echo over";
    let mut command = scene.cli.behind(&["sh", "-c", script], words(""));
    command.current_dir(&scene.app);
    let mut child = terminal.start(command);
    let said = terminal.expect("over");
    child.wait().expect("it ends");
    assert_eq!(said.matches("status 0").count(), 2, "{said}");
    has(&said, ["no changes", "as before"]);
    scene.unharmed();
}

/// Tries to give the terminal another size: by its streams, by the paths in its arguments, by calls in disguise, from a session of
/// its own while a terminal inside has the number of the user's, and by a number that means another terminal in turn.
const RESIZE: &str = r#"
#include <pthread.h>
#include <sys/wait.h>
static int inner;
static struct winsize *size, before;
static void *swap(void *unused) {
    for (;;) { dup2(inner, 200); dup2(0, 200); }
}
static int changed(const char *how) {
    struct winsize now;
    ioctl(0, TIOCGWINSZ, &now);
    int changed = now.ws_row == size->ws_row;
    if (changed) printf("changed by %s\n", how);
    size->ws_row++;
    return changed;
}
int main(int count, char **paths) {
    int tty = open("/dev/tty", O_RDWR), number = 0, device = 0;
    /* Below 4 GiB, for calls of 32 bits. */
    size = mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | 0x40, -1, 0);
    size->ws_row = 101;
    setbuf(stdout, 0);
    ioctl(0, TIOCGWINSZ, &before);
    for (int fd = 0; fd < 3; fd++) {
        if (ioctl(fd, TIOCSWINSZ, size) && errno != EPERM) perror("stream");
        changed("a stream");
    }
    for (int at = 1; at < count; at++) {
        ioctl(open(paths[at], O_RDWR | O_NOCTTY), TIOCSWINSZ, size);
        changed(paths[at]);
    }
    syscall(SYS_ioctl, 1L << 32, TIOCSWINSZ | 1UL << 32, size);
    changed("high bits");
#ifdef __x86_64__
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(54L), "b"(0L), "c"((long)TIOCSWINSZ), "d"((long)size) : "memory");
    changed("a call of 32 bits");
#endif
    ioctl(0, 0x80045432, &device);
    do ioctl(inner = posix_openpt(O_RDWR | O_NOCTTY), TIOCGPTN, &number);
    while (number < (device & 0xff | device >> 12 & 0xfff00));
    grantpt(inner); unlockpt(inner);
    ioctl(inner, TIOCSWINSZ, &before);
    if (fork() == 0) {
        setsid();
        ioctl(tty, TIOCSWINSZ, size);
        return 0;
    }
    wait(0);
    changed("another session");
    pthread_t thread;
    dup2(inner, 200);
    pthread_create(&thread, 0, swap, 0);
    int set = 0, refused = 0, raced = 0;
    for (int tries = 0; (tries < 20000 || !(set && refused)) && tries < 4000000 && !raced; tries++) {
        if (ioctl(200, TIOCSWINSZ, size) == 0) set++; else if (errno == EPERM) refused++; else perror("race");
        if (tries % 100 == 99) raced = changed("a race");
    }
    puts(set && refused ? "raced" : "no race");
    puts("tried");
    return 0;
}
"#;

/// Starts the program in front of a terminal. Returns what it said, with the size that the terminal has afterwards.
fn resize(scene: &Scene, script: &str) -> String {
    let terminal = Terminal::new(24, 80);
    let mut command = scene.cli.behind(&["sh", "-c", script], words(""));
    command.current_dir(&scene.app);
    let mut child = terminal.start(command);
    terminal.expect("tried");
    let mut said = terminal.expect("over");
    child.wait().expect("it ends");
    said.insert_str(0, &terminal.text());
    said
}

/// The size of the terminal stayed as the command left it: afterwards it cannot be told from a change by the user.
// attack D43
#[test]
fn d43_the_size_of_the_terminal_was_changed_from_inside() {
    as_user_too();
    for strategy in STRATEGIES {
        let scene = Scene::with(strategy, |app| compile(app, "resize", RESIZE));
        let ways = [
            "$0 -q run --plan try",
            "$0 -q run --plan try --allow-userns",
            // It is on the streams, and controls nothing.
            "setsid -w $0 -q run --plan try",
            // There is no overlay of a home directory, and with copies none at all.
            "env -u HOME $0 -q run --plan try",
        ];
        for way in ways {
            let paths = "/dev/tty /dev/console /proc/self/fd/0";
            let script = format!("{way} -- ./resize {paths}; stty size; echo over");
            let said = resize(&scene, &script);
            assert!(!said.contains("changed"), "{way}: {said}");
            assert!(said.contains("raced"), "{way}: {said}");
            has(&said, ["24 80"]);
        }
        scene.unharmed();
    }
}

/// The control: each of these ways changes it outside, and the race does where the kernel is left to go on.
#[test]
fn d43_the_size_is_changed_without_the_wall() {
    as_user_too();
    let scene = Scene::with("overlay", |app| compile(app, "resize", RESIZE));
    let said = resize(
        &scene,
        "./resize /dev/tty /proc/self/fd/0; stty size; echo over",
    );
    assert_eq!(said.matches("changed by a stream").count(), 3, "{said}");
    let all = [
        "/dev/tty",
        "/proc/self/fd/0",
        "high bits",
        "another session",
        "a race",
    ];
    for way in all {
        has(&said, [&format!("changed by {way}")]);
    }
    if !cfg!(feature = "seeded-bugs") {
        return skip("built without the feature seeded-bugs");
    }
    let script =
        "ESCROW_SEEDED_BUG=resize-goes-on $0 -q run --plan try -- ./resize /dev/tty; echo over";
    let said = resize(&scene, script);
    has(&said, ["changed by a race"]);
    lacks(&said, ["changed by a stream", "changed by /dev/tty"]);
}

/// A command reached the terminal of another one of its plan.
// attack D43
#[test]
fn d43_the_terminal_of_another_command_is_not_resized() {
    as_user_too();
    let scene = Scene::new("overlay");
    let terminal = Terminal::new(24, 80);
    let first = in_try("echo ready; read line; stty size; echo over");
    let mut child = terminal.start(scene.cli.command(first));
    terminal.expect("ready");
    // By its name, where it is the first command's, and through `/proc`, where Landlock lets one.
    let script = "for t in /dev/console /proc/[0-9]*/fd/0; do test -t 0 < $t && stty rows 41 < $t; done 2>&1";
    let said = scene.cli.run(in_try(script)).stdout_text();
    has(&said, ["stty: 'standard input': Operation not permitted"]);
    terminal.talk("\n", &["24 80", "over"]);
    child.wait().expect("it ends");
    scene.unharmed();
}

/// Without a shell that would continue it, a run that stopped with its command hung for ever.
// attack D26
#[test]
fn d26_a_command_that_stops_itself_can_be_ended() {
    as_user_too();
    let scene = Scene::new("overlay");
    let script = "echo ready; kill -STOP $$; echo continued";
    let running = Running::ready(scene.cli.behind(&["setsid"], in_try(script)));
    thread::sleep(Duration::from_millis(300));
    running.signal(Signal::TERM);
    let outcome = running.finish();
    assert_eq!(outcome.status, 143, "{}", outcome.stderr);
    scene.unharmed();
}

/// A pipe with a name that nothing reads any more keeps its output, not the run.
// rule S5
#[test]
fn an_output_that_nothing_takes_does_not_keep_the_run() {
    as_user_too();
    let (world, cli) = world();
    sh(world.path(), "mkfifo full");
    let line = "exec 3<> full; \"$0\" \"$@\" > full";
    let mut command = cli.behind(&["sh", "-c", line], words("-q run --timeout 1s -- yes"));
    let status = command.current_dir(world.path()).status();
    assert_eq!(status.expect("there is a shell").code(), Some(125));
    assert_quiet(&world);
}
