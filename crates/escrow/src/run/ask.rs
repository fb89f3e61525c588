//! Questions from inside a run. One line of JSON asks; the helper program answers it as principal `agent`, in a process
//! of its own; one line of JSON and what that process wrote goes back.
//!
//! The helper ends with the command that asked, with its supervisor however that ends, and at a time limit; it runs in the
//! control groups of the command. The helper gets the plan from here and the question on its standard input, so a command inside chooses neither the
//! plan nor the principal nor the state.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::program::{die_with_this_thread, join_groups, output_until, program};
use super::supervise::{CommandExit, ended};
use super::{RunError, at};
use crate::model::PlanId;

/// The principal of commands inside.
pub const AGENT: &str = "agent";

/// The longest question.
const QUESTION: usize = 64 * 1024;

/// How long a question may take to arrive, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many may ask at once; the others are turned away.
const ASKING: usize = 16;

/// How long an answer may take: a checkpoint may have to copy much. The plan is locked meanwhile.
const LIMIT: Duration = Duration::from_secs(300);

/// How long an answer that is under way may still take when the command has ended.
const GRACE: Duration = Duration::from_secs(2);

/// The longest answer. Only one is held at a time.
const ANSWER: usize = 64 << 20;

/// What is asked: the words of a command line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Question {
    /// The words, without the name of the program.
    pub words: Vec<String>,
}

/// What comes before the bytes of an answer.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    status: i32,
    stdout: usize,
    stderr: usize,
}

/// An answer, as it came.
#[derive(Debug, Default)]
pub struct Answer {
    /// The exit status.
    pub status: i32,
    /// What is to be written to standard output.
    pub stdout: Vec<u8>,
    /// And to standard error.
    pub stderr: Vec<u8>,
}

impl Answer {
    fn error(status: i32, why: &str) -> Self {
        Self {
            status,
            stderr: format!("error: {why}\n").into_bytes(),
            ..Self::default()
        }
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            status: ended(output.status).status(),
            stdout: output.stdout,
            stderr: output.stderr,
        }
    }
}

/// What answers the commands of one run.
pub(crate) struct Helper {
    /// The program.
    pub(crate) program: PathBuf,
    /// The directory of all state.
    pub(crate) home: PathBuf,
    /// The project's configuration, where the caller named one.
    pub(crate) config: Option<PathBuf>,
    /// The plan that can be asked about; nothing is answered without.
    pub(crate) plan: Option<PlanId>,
    /// The files by which the program joins the control groups of the command.
    pub(crate) groups: Vec<OwnedFd>,
}

/// The questions of one command. When this is dropped the helper program is ended, and nothing is answered any more.
pub(crate) struct Questions(Arc<Asked>);

struct Asked {
    helper: Helper,
    /// One is answered at a time.
    turn: Mutex<()>,
    /// Held while a helper program runs.
    running: Mutex<()>,
    /// When the command ended.
    over: OnceLock<Instant>,
}

impl Drop for Questions {
    fn drop(&mut self) {
        self.0.over.get_or_init(Instant::now);
        drop(locked(&self.0.running));
    }
}

fn locked(mutex: &Mutex<()>) -> std::sync::MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    /// Answers questions, one after the other. One who is slow to ask keeps no other waiting.
    pub(crate) fn listen(self, listener: UnixListener) -> Questions {
        let all = Arc::new(Asked {
            helper: self,
            turn: Mutex::new(()),
            running: Mutex::new(()),
            over: OnceLock::new(),
        });
        let (questions, asking) = (Questions(Arc::clone(&all)), Arc::new(()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The stream that is dropped here says so to who asks.
                if Arc::strong_count(&asking) > ASKING {
                    continue;
                }
                let (all, asks) = (Arc::clone(&all), Arc::clone(&asking));
                let serve = move || match all.serve(stream) {
                    // A command that asked and went away needs no answer.
                    Ok(()) | Err(_) => drop(asks),
                };
                match std::thread::Builder::new().spawn(serve) {
                    Ok(_) | Err(_) => {}
                }
            }
        });
        questions
    }
}

impl Asked {
    fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        let line = question(&stream)?;
        let _turn = locked(&self.turn);
        let answer = match serde_json::from_slice::<Question>(&line) {
            Ok(_) => self.answer(&line),
            Err(_) => Answer::error(2, "the question was not understood"),
        };
        let answer = match answer.stdout.len() + answer.stderr.len() > ANSWER {
            true => Answer::error(
                1,
                "the answer is too long: ask for less, as with `--name-status`",
            ),
            false => answer,
        };
        let head = Head {
            status: answer.status,
            stdout: answer.stdout.len(),
            stderr: answer.stderr.len(),
        };
        let mut head = serde_json::to_vec(&head)?;
        head.push(b'\n');
        let until = Instant::now() + PATIENCE;
        for bytes in [head, answer.stdout, answer.stderr] {
            give(&stream, &bytes, until)?;
        }
        Ok(())
    }

    fn answer(&self, question: &[u8]) -> Answer {
        let own = &self.helper;
        let Some(plan) = own.plan else {
            let why = "a validation is not answered: its plan is locked until the commit is over";
            return Answer::error(1, why);
        };
        let _running = locked(&self.running);
        if self.over.get().is_some() {
            return Answer::error(1, "the command has ended");
        }
        let mut helper = program(own.program.as_os_str());
        helper.args(["--principal", AGENT, "--home"]).arg(&own.home);
        if let Some(file) = &own.config {
            helper.arg("--config").arg(file);
        }
        helper.arg("answer").arg(plan.to_string());
        let groups = own.groups.iter().map(OwnedFd::try_clone);
        match groups.collect::<std::io::Result<Vec<_>>>() {
            Ok(groups) => join_groups(&mut helper, groups),
            Err(error) => return Answer::error(125, &error.to_string()),
        }
        // This thread waits for the end of the program: the program ends with this process.
        die_with_this_thread(&mut helper);
        let until = Instant::now() + LIMIT;
        let stop = || {
            let over = self.over.get();
            Instant::now() >= until || over.is_some_and(|over| over.elapsed() >= GRACE)
        };
        match output_until(helper, question, ANSWER as u64 + 1, &stop) {
            Ok((output, true)) => match ended(output.status) {
                CommandExit::Signaled(signal) => {
                    let why = format!(
                        "what answers was ended by signal {signal}, perhaps at a limit of this command"
                    );
                    Answer::error(128 + signal, &why)
                }
                CommandExit::Exited(_) => output.into(),
            },
            Ok((_, false)) => {
                let limit = LIMIT.as_secs();
                let why = format!(
                    "the answer took longer than {limit} s and was ended: ask for less, as with `--resource NAME`, or outside of the run"
                );
                Answer::error(1, &why)
            }
            Err(error) => Answer::error(125, &error.to_string()),
        }
    }
}

/// Reads a question, all of it in its time.
fn question(mut stream: &UnixStream) -> std::io::Result<Vec<u8>> {
    let (mut line, until) = (Vec::new(), Instant::now() + PATIENCE);
    let mut buffer = [0; 4096];
    while !line.contains(&b'\n') && line.len() < QUESTION {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut buffer)? {
            0 => break,
            length => line.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(line)
}

/// Writes bytes to one who takes them; as long as it takes some, it has time for more.
fn give(mut stream: &UnixStream, bytes: &[u8], mut until: Instant) -> std::io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let length = stream.write(rest)?;
        rest = &rest[length..];
        // At least a MiB in each second.
        until += Duration::from_nanos(length as u64 * 1000);
    }
    Ok(())
}

pub(super) fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(std::io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Asks the supervisor of the run that this process is in.
pub fn ask(socket: &std::path::Path, words: Vec<String>) -> Result<Answer, RunError> {
    let gone = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::PIPE);
        at("reach the supervisor of this run")(errno)
    };
    let mut stream = UnixStream::connect(socket).map_err(gone)?;
    let question = serde_json::to_string(&Question { words }).expect("words are JSON");
    writeln!(stream, "{question}").map_err(gone)?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).map_err(gone)?;
    let head: Head = serde_json::from_str(&head).map_err(|error| gone(error.into()))?;
    let mut answer = Answer {
        status: head.status,
        stdout: vec![0; head.stdout],
        stderr: vec![0; head.stderr],
    };
    reader.read_exact(&mut answer.stdout).map_err(gone)?;
    reader.read_exact(&mut answer.stderr).map_err(gone)?;
    Ok(answer)
}
