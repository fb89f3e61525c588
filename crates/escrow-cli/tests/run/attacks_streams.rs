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
