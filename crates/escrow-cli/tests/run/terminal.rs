//! Keys, signals, the size of the window and the exit status pass through a real terminal; and at the end there is a
//! question.

use std::cell::Cell;

use escrow_testkit::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

use crate::*;

/// What the question says.
const QUESTION: &str = "[d]iff [v]review [c]ommit [k]eep [x]discard [?]";

/// A run that does not end by itself.
const FOREVER: &str = "echo ready; while :; do sleep 0.05; done";

/// A run in front of a terminal. Killed when dropped.
struct Front {
    child: Child,
    ended: Cell<bool>,
}

impl Front {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What became of it: it stopped, or it ended.
    #[track_caller]
    fn next(&self) -> WaitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.news() {
                return status;
            }
            assert!(Instant::now() < until, "it neither stops nor ends");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn news(&self) -> Option<WaitStatus> {
        let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
        let (_, status) = waitpid(Some(self.pid()), options).expect("it is our child")?;
        self.ended.set(!status.stopped());
        Some(status)
    }

    #[track_caller]
    fn ends_with(&self, status: i32) {
        let ended = self.next();
        assert_eq!(ended.exit_status(), Some(status), "{ended:?}");
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if !self.ended.get() {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn front(terminal: &Terminal, command: Command) -> Front {
    Front {
        child: terminal.start(command),
        ended: Cell::new(false),
    }
}

/// A plan `try`, and a terminal.
fn set_up() -> (World, Cli, Terminal) {
    let (world, cli) = planned("auto");
    (world, cli, Terminal::new(24, 80))
}

/// A run of a script in front of the terminal.
fn run(cli: &Cli, terminal: &Terminal, script: &str) -> Front {
    front(terminal, cli.command(in_try(script)))
}

#[test]
fn ctrl_c_ends_the_command() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, FOREVER);
    terminal.expect("ready");
    terminal.send(CTRL_C);
    child.ends_with(130);
    assert_quiet(&world);
    let child = run(&cli, &terminal, FOREVER);
    terminal.expect("ready");
    terminal.send(CTRL_BACKSLASH);
    child.ends_with(131);
    assert_quiet(&world);
}

#[test]
fn a_command_that_handles_ctrl_c_goes_on() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    // A shell that reads can miss a signal that comes just before the call, also outside of any sandbox.
    let script = r#"exec python3 -IS -c '
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
for n in 1, 2, 3:
    signal.sigwait([signal.SIGINT])
    print("caught", n, flush=True)
raise SystemExit(7)'"#;
    let child = run(&cli, &terminal, script);
    terminal.expect("ready");
    for n in 1..=3 {
        terminal.send(CTRL_C);
        terminal.expect(&format!("caught {n}"));
    }
    child.ends_with(7);
}

#[test]
fn ctrl_z_stops_the_run_and_it_can_go_on() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let script = "stty -echo; echo ready; while ! read line; do :; done; echo \"<$line>\"; exit 5";
    let child = run(&cli, &terminal, script);
    let own = child.pid().as_raw_nonzero().get();
    terminal.expect("ready");
    for _ in 0..3 {
        let until = Instant::now() + PATIENCE;
        while terminal.foreground() == own && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        assert_ne!(terminal.foreground(), own, "the command has the terminal");
        // A key that comes between the terminal and the signal to go on is lost, as in any shell.
        let until = Instant::now() + PATIENCE;
        let stopped = loop {
            terminal.send(CTRL_Z);
            let again = Instant::now() + Duration::from_secs(1);
            let news = std::iter::repeat_with(|| {
                thread::sleep(Duration::from_millis(2));
                child.news()
            });
            let mut news = news.take_while(|_| Instant::now() < again).flatten();
            match news.next() {
                Some(status) => break status.stopped(),
                None => assert!(Instant::now() < until, "it neither stops nor ends"),
            }
        };
        assert!(stopped, "its parent sees it stopped");
        // A process that started it can use the terminal meanwhile.
        assert_eq!(terminal.foreground(), own);
        kill_process(child.pid(), Signal::CONT).expect("it is there");
    }
    terminal.talk("hello\n", &["<hello>"]);
    child.ends_with(5);
    assert_quiet(&world);
}

#[test]
fn the_size_of_the_window_reaches_the_command() {
    as_user_too();
    let (_world, cli, _) = set_up();
    let terminal = Terminal::new(13, 77);
    let script = "stty size; trap 'stty size; [ $(stty size | cut -c1) = 4 ] && exit 3' WINCH
        echo ready; while :; do sleep 0.05; done";
    let child = run(&cli, &terminal, script);
    terminal.expect("13 77");
    terminal.expect("ready");
    terminal.resize(31, 99);
    terminal.expect("31 99");
    terminal.resize(41, 101);
    terminal.expect("41 101");
    child.ends_with(3);
    // What the user chose stays.
    let mut after = Command::new("stty");
    after.arg("size");
    let after = front(&terminal, after);
    terminal.expect("41 101");
    after.ends_with(0);
}

/// Sizes of terminals that are made inside: set by either end, by another thread, by `/dev/tty` of their session, and seen there.
const INNER_SIZES: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios, threading
def size(fd):
    return struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
def set(fd, *size):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size))
keys, line = pty.openpty()
for fd, other, wanted in (keys, line, (11, 12, 13, 14)), (line, keys, (21, 22, 0, 0)):
    set(fd, *wanted)
    assert size(other) == size(fd) == wanted
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
child, keys = pty.fork()
if child == 0:
    print("ready", flush=True)
    signal.sigwait([signal.SIGWINCH])
    assert size(0) == (31, 32, 0, 0)
    if "nested" not in sys.argv:
        set(os.open("/dev/tty", os.O_RDWR), 41, 42, 0, 0)
        assert size(1) == (41, 42, 0, 0)
    os._exit(7)
assert b"ready" in os.read(keys, 1000)
thread = threading.Thread(target=lambda: set(keys, 31, 32, 0, 0))
thread.start()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for fd, errno in (os.open("/dev/null", os.O_RDWR), 25), (99, 9):
    try:
        set(fd, 1, 1, 0, 0)
        raise SystemExit("it has a size")
    except OSError as error:
        assert error.errno == errno, error
print("fine")
"#;

#[test]
fn terminals_that_are_made_inside_can_be_resized() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    write(world.at("app/sizes.py"), INNER_SIZES);
    let line = "python3 -IS sizes.py";
    let child = run(&cli, &terminal, line);
    terminal.expect("fine");
    child.ends_with(0);
    cli.says(in_try(line), "fine\n");
    // Where containers are made inside, they have terminals of their own.
    let nested = format!(
        "unshare -Urm sh -ec 'mount -t devpts -o newinstance,ptmxmode=666 inner /dev/pts; {line} nested'"
    );
    let script = inside("run --plan try --allow-userns", &nested);
    let child = front(&terminal, cli.command(script));
    terminal.expect("fine");
    child.ends_with(0);
}

#[test]
fn the_terminal_has_a_name() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    let script =
        "tty; python3 -c 'import os; os.open(os.ttyname(0), os.O_RDWR); print(\"opened\")'";
    let child = run(&cli, &terminal, script);
    terminal.expect("/dev/console");
    terminal.expect("opened");
    child.ends_with(0);
}

#[test]
fn the_exit_status_passes_through() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    let all = [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ];
    for (script, status) in all {
        run(&cli, &terminal, script).ends_with(status);
        let outcome = cli.run(in_try(script));
        assert_eq!(outcome.status, status, "{script}");
    }
}

#[test]
fn signals_to_the_supervisor_reach_the_command() {
    as_user_too();
    let (world, cli, _) = set_up();
    let all = [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ];
    for (signal, status) in all {
        let running = Running::ready(cli.command(in_try(FOREVER)));
        running.signal(signal);
        assert_eq!(running.end().status, status, "{signal:?}");
        assert_quiet(&world);
    }
}

/// A server that is reported twice to end, and ends in its own time.
#[test]
fn a_second_signal_reaches_the_command_too() {
    as_user_too();
    let (world, cli) = world();
    let script = "n=0; trap 'n=$((n+1)); echo $n; [ $n -lt 3 ] || { echo end > end; exit 0; }' TERM
        echo ready; while :; do sleep 0.05; done";
    let running = Running::ready(cli.command(inside("run", script)));
    for n in 1..=3 {
        running.signal(Signal::TERM);
        assert_eq!(running.line(), n.to_string());
    }
    let ended = running.end();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(cli.ok("diff --name-status"), "A\tend\n");
    assert_quiet(&world);
}

/// What the command was reported to do is not what its supervisor was reported.
#[test]
fn a_signal_that_the_command_handled_does_not_stop_the_commit() {
    as_user_too();
    let (world, cli) = world();
    let script = "trap 'echo end > end; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let running = Running::ready(cli.command(inside("run --commit", script)));
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(read(world.at("app/end")), "end\n");
}

#[test]
fn a_terminal_that_goes_away_takes_the_command_with_it() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, FOREVER);
    terminal.expect("ready");
    drop(terminal);
    assert_ne!(child.next().exit_status(), Some(0));
    assert_soon_quiet(&world);
}

#[test]
fn the_question_can_be_answered_with_commit() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, "echo new > a.txt");
    terminal.expect("1 modified");
    terminal.expect(QUESTION);
    terminal.talk("what\n", &[QUESTION]);
    for letter in ["d  diff", "v  review", "c  commit", "k  keep", "x  discard"] {
        terminal.talk("?\n", &[letter, QUESTION]);
    }
    terminal.talk("d\n", &["+++ b/a.txt", "+new", QUESTION]);
    terminal.talk("c\n", &["escrow undo try"]);
    child.ends_with(0);
    assert_eq!(read(world.at("app/a.txt")), "new\n");
    cli.ok("undo try");
    assert_eq!(read(world.at("app/a.txt")), "one\ntwo\n");
}

#[test]
fn the_question_can_be_answered_with_keep_or_discard() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let before = signature(&world.at("app"));
    for answer in ["k\n", "\n", CTRL_D] {
        // The status is that of the command, whatever is answered.
        let child = run(&cli, &terminal, "echo new > a.txt; exit 9");
        terminal.expect(QUESTION);
        terminal.talk(answer, &["escrow commit try"]);
        child.ends_with(9);
        assert_eq!(cli.ok("diff try --name-status"), "M\ta.txt\n");
    }
    let child = run(&cli, &terminal, "true");
    terminal.expect(QUESTION);
    terminal.talk("x\n", &["discarded"]);
    child.ends_with(0);
    assert_eq!(cli.ok("diff try --name-status"), "");
    // Nothing was changed, so nothing is asked.
    let child = run(&cli, &terminal, "cat a.txt");
    terminal.expect("no changes");
    child.ends_with(0);
    unchanged(&before, world.at("app"));
}

/// A line with standard output in the file `out`; standard input and error stay at the terminal.
fn into_file(cli: &Cli, line: impl Words) -> Command {
    cli.behind(&["sh", "-c", "exec \"$0\" \"$@\" > out"], line)
}

/// What goes with a question is for the process that answers it; standard output is data.
#[test]
fn what_goes_with_a_question_is_no_data() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let out = || read(world.at("app/out"));
    let ask = |line: &str| front(&terminal, into_file(&cli, line));
    let script = "echo new > a.txt; echo '#!/bin/sh' > s; chmod +x s; echo data";
    let child = front(&terminal, into_file(&cli, in_try(script)));
    terminal.expect(QUESTION);
    terminal.talk("d\n", &["+++ b/a.txt", QUESTION]);
    terminal.send("k\n");
    child.ends_with(0);
    assert_eq!(out(), "data\n", "what the command said, and nothing else");
    for (line, answer, status) in [
        ("rollback try --json", "n\n", 1),
        ("cleanup try --json", "n\n", 1),
        ("commit try --json", "n\n", 1),
        ("commit try --json", "y\n", 0),
        ("undo try --json", "y\n", 0),
    ] {
        let child = ask(line);
        if line.starts_with("commit") {
            terminal.expect("would commit: 1 added, 1 modified");
            terminal.expect("runs later");
        }
        terminal.expect("[y/N]");
        terminal.send(answer);
        child.ends_with(status);
        let text = out();
        let document: Result<Value, _> = serde_json::from_str(&text);
        assert!(document.is_ok(), "{line}: {text}");
    }
    assert_quiet(&world);
}

#[test]
fn ctrl_c_at_the_question_keeps_everything() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, "echo new > a.txt");
    terminal.expect(QUESTION);
    terminal.send(CTRL_C);
    let until = Instant::now() + PATIENCE;
    let ended = loop {
        if let Some(status) = child.news() {
            break status;
        }
        let text = terminal.text();
        assert!(Instant::now() < until, "Ctrl-C is ignored: {text}");
        thread::sleep(Duration::from_millis(5));
    };
    assert_ne!(ended.exit_status(), Some(0));
    assert_eq!(cli.ok("diff try --name-status"), "M\ta.txt\n");
}

/// What was typed while the command ran was meant for the command.
#[test]
fn what_was_typed_ahead_is_no_answer() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, "echo new > a.txt; echo ready; sleep 1");
    terminal.expect("ready");
    terminal.talk("r\nr\n", &[QUESTION]);
    thread::sleep(Duration::from_millis(700));
    let released = read(world.at("app/a.txt")) == "new\n";
    assert!(
        !released,
        "it was released before anybody had read the question"
    );
    terminal.send("k\n");
    child.ends_with(0);
}

/// A command that was killed, or does not care, leaves the terminal as it wants it.
#[test]
fn the_question_can_be_answered_whatever_the_command_did_to_the_terminal() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    let child = run(&cli, &terminal, "echo new > a.txt; stty raw -echo");
    terminal.expect(QUESTION);
    // What the key Return sends.
    terminal.talk("x\r", &["discarded"]);
    child.ends_with(0);
}

/// There is no terminal, so nothing is asked and everything is kept.
#[test]
fn without_a_terminal_there_is_no_question() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    let outcome = cli.expect(in_try("echo new > a.txt"), 0);
    assert!(!outcome.stderr_text().contains(QUESTION));
    assert!(outcome.stderr_text().contains("escrow commit try"));
    // One that knows the answer does not ask either.
    let line = inside("run --plan try --commit", "echo newer > a.txt");
    let child = front(&terminal, cli.command(line));
    terminal.expect("escrow undo try");
    child.ends_with(0);
    assert!(!terminal.text().contains(QUESTION));
    assert_eq!(json(&cli, "plan show try")["state"], value!("committed"));
}

#[test]
fn a_shell_inside_has_job_control() {
    as_user_too();
    let (world, cli, terminal) = set_up();
    let line = "run --plan try --env PS1=%_ -- bash --norc --noprofile --noediting -i";
    let child = front(&terminal, cli.command(line));
    terminal.expect("%_");
    terminal.talk("echo in''side > f\n", &["%_"]);
    terminal.send("sleep 1000\n");
    await_process(&world, ": sleep 1000");
    terminal.talk(CTRL_Z, &["Stopped"]);
    terminal.talk("bg; jobs\n", &["Running"]);
    terminal.talk("cat f -\n", &["inside"]);
    terminal.talk(CTRL_C, &["%_"]);
    terminal.talk("fg\n", &["sleep 1000"]);
    thread::sleep(Duration::from_millis(200));
    terminal.talk(CTRL_C, &["%_"]);
    terminal.send("jobs; echo no''ne; exit 3\n");
    let said = terminal.expect("none");
    assert!(!said.contains("sleep 1000"), "{said}");
    terminal.expect(QUESTION);
    let all = terminal.text();
    assert!(!all.contains("job control"), "{all}");
    terminal.send("k\n");
    child.ends_with(3);
    assert_quiet(&world);
}

/// The command's own sessions of terminals, such as those that `script` makes.
#[test]
fn a_command_can_make_terminals_of_its_own() {
    as_user_too();
    let (_world, cli, terminal) = set_up();
    if Command::new("script").arg("--version").output().is_err() {
        skip("script is not installed");
        return;
    }
    let line = "script -qec 'test -t 0 && stty size && tty' /dev/null";
    let child = run(&cli, &terminal, line);
    terminal.expect("24 80");
    terminal.expect("/dev/pts/");
    child.ends_with(0);
}
