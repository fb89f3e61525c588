//! A shell outside sees a run as a job like any other: it stops, goes on in front or behind, and gives the terminal back.

use escrow_testkit::pty::{CTRL_C, CTRL_Z};

use crate::*;

/// A shell at a terminal, with a plan `try` and the program as `$E`.
struct Shell {
    world: World,
    terminal: Terminal,
    child: Child,
}

impl Shell {
    fn start() -> Self {
        let (world, cli) = planned("auto");
        let terminal = Terminal::new(24, 80);
        let shell = Self {
            child: terminal.start(bash(&cli)),
            terminal,
            world,
        };
        shell.terminal.expect("%_");
        shell
    }

    fn send(&self, text: &str) {
        self.terminal.send(text);
    }

    #[track_caller]
    fn talk(&self, typed: &str, expected: &[&str]) {
        self.terminal.talk(typed, expected);
    }

    #[track_caller]
    fn expect(&self, text: &str) -> String {
        self.terminal.expect(text)
    }

    /// The shell itself can be used.
    #[track_caller]
    fn is_usable(&self) {
        self.send("echo us''able\n");
        self.expect("usable\r\n");
        self.expect("%_");
    }

    /// Ends everything; nothing may be left.
    #[track_caller]
    fn leave(mut self) {
        self.send("exit\n");
        self.child.wait().expect("it ends");
        assert_soon_quiet(&self.world);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bash(cli: &Cli) -> Command {
    let program = cli.command("").get_program().to_owned();
    let outer = ["bash", "--norc", "--noprofile", "--noediting", "-i", "-s"];
    let mut command = cli.behind(&outer, "");
    command.env("E", program).env("PS1", "%_");
    command
}

#[test]
fn a_stopped_run_is_brought_back() {
    as_user_too();
    let shell = Shell::start();
    shell.talk("$E run --plan try -- sh -c 'echo rea\"\"dy; while ! read x; do :; done; echo \"<$x>\"; exit 6'\n", &["ready\r\n"]);
    shell.talk(CTRL_Z, &["Stopped", "%_"]);
    shell.is_usable();
    shell.talk("fg\n", &["run --plan try"]);
    shell.talk("back\n", &["<back>"]);
    shell.talk("echo st''atus $?\n", &["status 6"]);
    shell.leave();
}

/// A job that goes on behind leaves the terminal to the shell.
#[test]
fn a_stopped_run_goes_on_in_the_background() {
    as_user_too();
    let shell = Shell::start();
    shell.send("$E run --plan try -- sleep 2.0625\n");
    // Before it has become the program, it cannot be stopped.
    await_process(&shell.world, ": sleep 2.0625");
    shell.talk(CTRL_Z, &["Stopped", "%_"]);
    shell.talk("bg\n", &["%_"]);
    thread::sleep(Duration::from_millis(300));
    shell.is_usable();
    shell.talk("wait; echo st''atus $?\n", &["status 0"]);
    shell.leave();
}

#[test]
fn a_run_in_the_background_is_brought_to_the_front() {
    as_user_too();
    let shell = Shell::start();
    let script = "echo rea\"\"dy; sleep 1; read x; echo \"<$x>\"";
    shell.talk(
        &format!("$E run --plan try -- sh -c '{script}' &\n"),
        &["ready\r\n"],
    );
    shell.is_usable();
    shell.talk("fg\n", &["run --plan try"]);
    thread::sleep(Duration::from_millis(1500));
    shell.talk("front\n", &["<front>"]);
    shell.leave();
}

/// The other end of a pipe is part of the job.
#[test]
fn a_run_in_a_pipeline_stops_as_a_whole() {
    as_user_too();
    let shell = Shell::start();
    shell.send("$E run --plan try -- sleep 1000.5 | cat\n");
    await_process(&shell.world, ": sleep 1000.5");
    shell.talk(CTRL_Z, &["Stopped", "%_"]);
    shell.is_usable();
    shell.talk("fg\n", &["run --plan try"]);
    thread::sleep(Duration::from_millis(300));
    shell.talk(CTRL_C, &["%_"]);
    shell.is_usable();
    shell.leave();
}

/// Programs ask at the terminal although their input is a pipe.
#[test]
fn a_command_with_piped_input_can_read_from_the_terminal() {
    as_user_too();
    let shell = Shell::start();
    shell
        .send("echo pi''ped | $E run --plan try -- sh -c 'cat; read x </dev/tty; echo \"<$x>\"'\n");
    shell.expect("piped");
    shell.talk("typed\n", &["<typed>", "%_"]);
    shell.is_usable();
    shell.leave();
}

#[test]
fn a_shell_that_ends_takes_its_runs_with_it() {
    as_user_too();
    let shell = Shell::start();
    shell.talk(
        "$E run --plan try -- sh -c 'echo rea\"\"dy; while :; do sleep 0.1; done'\n",
        &["ready\r\n"],
    );
    let Shell {
        ref world,
        ref terminal,
        ..
    } = shell;
    assert!(terminal.foreground() > 0);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&shell.child),
        rustix::process::Signal::KILL,
    )
    .expect("it is there");
    // The kernel hangs up the process that is in front of the terminal of a session that ended.
    assert_soon_quiet(world);
}
