//! Questions from inside a run. One line of JSON asks; the helper program answers it as principal `agent`, in a process
//! of its own; one line of JSON and what that process wrote goes back.
//!
//! The helper gets the plan from here and the question on its standard input, so a command inside chooses neither the
//! plan nor the principal nor the state.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::program::{output, program};
use super::supervise::ended;
use super::{RunError, at};
use crate::model::PlanId;

/// The principal of commands inside.
pub const AGENT: &str = "agent";

/// The longest question.
const QUESTION: u64 = 64 * 1024;

/// How long a question may take to arrive, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

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
}

impl Helper {
    /// Answers questions, one after the other, until this process ends.
    pub(crate) fn listen(self, listener: UnixListener) {
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                match self.serve(stream) {
                    // A command that asked and went away needs no answer.
                    Ok(()) | Err(_) => {}
                }
            }
        });
    }

    fn serve(&self, mut stream: UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = Vec::new();
        BufReader::new((&stream).take(QUESTION)).read_until(b'\n', &mut line)?;
        let answer = match serde_json::from_slice::<Question>(&line) {
            Ok(_) => self.answer(&line),
            Err(_) => Answer::error(2, "the question was not understood"),
        };
        let head = Head {
            status: answer.status,
            stdout: answer.stdout.len(),
            stderr: answer.stderr.len(),
        };
        serde_json::to_writer(&mut stream, &head)?;
        stream.write_all(b"\n")?;
        stream.write_all(&answer.stdout)?;
        stream.write_all(&answer.stderr)
    }

    fn answer(&self, question: &[u8]) -> Answer {
        let Some(plan) = self.plan else {
            let why = "a validation is not answered: its plan is locked until the commit is over";
            return Answer::error(1, why);
        };
        let mut helper = program(self.program.as_os_str());
        helper
            .args(["--principal", AGENT, "--home"])
            .arg(&self.home);
        if let Some(file) = &self.config {
            helper.arg("--config").arg(file);
        }
        helper.arg("answer").arg(plan.to_string());
        match output(helper, question) {
            Ok(output) => output.into(),
            Err(error) => Answer::error(125, &error.to_string()),
        }
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
