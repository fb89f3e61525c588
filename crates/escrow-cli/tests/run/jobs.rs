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
        let (world, cli) = world();
        cli.ok("plan create try --resource .");
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
    let model = cli.command("status");
    let mut command = Command::new("bash");
    command
        .args(["--norc", "--noprofile", "--noediting", "-i"])
        .env_clear();
    command.envs(
        model
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command.env("E", model.get_program()).env("PS1", "%_");
    command.current_dir(model.get_current_dir().expect("it is set"));
    command
}

#[test]
fn a_stopped_run_is_brought_back() {
    as_user_too();
    let shell = Shell::start();
    shell.send("$E run --plan try -- sh -c 'echo rea\"\"dy; while ! read x; do :; done; echo \"<$x>\"; exit 6'\n");
    shell.expect("ready\r\n");
    shell.send(CTRL_Z);
    shell.expect("Stopped");
    shell.expect("%_");
    shell.is_usable();
    shell.send("fg\n");
    shell.expect("run --plan try");
    shell.send("back\n");
    shell.expect("<back>");
    shell.send("echo st''atus $?\n");
    shell.expect("status 6");
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
    shell.send(CTRL_Z);
    shell.expect("Stopped");
    shell.expect("%_");
    shell.send("bg\n");
    shell.expect("%_");
    thread::sleep(Duration::from_millis(300));
    shell.is_usable();
    shell.send("wait; echo st''atus $?\n");
    shell.expect("status 0");
    shell.leave();
}

#[test]
fn a_run_in_the_background_is_brought_to_the_front() {
    as_user_too();
    let shell = Shell::start();
    let script = "echo rea\"\"dy; sleep 1; read x; echo \"<$x>\"";
    shell.send(&format!("$E run --plan try -- sh -c '{script}' &\n"));
    shell.expect("ready\r\n");
    shell.is_usable();
    shell.send("fg\n");
    shell.expect("run --plan try");
    thread::sleep(Duration::from_millis(1500));
    shell.send("front\n");
    shell.expect("<front>");
    shell.leave();
}

/// The other end of a pipe is part of the job.
#[test]
fn a_run_in_a_pipeline_stops_as_a_whole() {
    as_user_too();
    let shell = Shell::start();
    shell.send("$E run --plan try -- sleep 1000.5 | cat\n");
    await_process(&shell.world, ": sleep 1000.5");
    shell.send(CTRL_Z);
    shell.expect("Stopped");
    shell.expect("%_");
    shell.is_usable();
    shell.send("fg\n");
    shell.expect("run --plan try");
    thread::sleep(Duration::from_millis(300));
    shell.send(CTRL_C);
    shell.expect("%_");
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
    shell.send("typed\n");
    shell.expect("<typed>");
    shell.expect("%_");
    shell.is_usable();
    shell.leave();
}

#[test]
fn a_shell_that_ends_takes_its_runs_with_it() {
    as_user_too();
    let shell = Shell::start();
    shell.send("$E run --plan try -- sh -c 'echo rea\"\"dy; while :; do sleep 0.1; done'\n");
    shell.expect("ready\r\n");
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
