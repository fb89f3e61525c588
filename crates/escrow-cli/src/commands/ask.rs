//! Questions from inside a run: the supervisor answers some of them, as principal `agent`.
//!
//! One line of JSON asks, one line of JSON answers, followed by what the command wrote. Whoever asks
//! chooses among a few verbs about the own plan; nothing else of the outside can be reached.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Global;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Who asks from inside.
const AGENT: &str = "agent";

/// The longest question.
const QUESTION: u64 = 64 * 1024;

/// How long one waits for a question to be finished.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct Question {
    words: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    status: i32,
    stdout: usize,
    stderr: usize,
}

/// What the supervisor does with a question about `plan`.
pub(crate) fn answer(mut stream: UnixStream, home: &Path, config: Option<&Path>, plan: &str) {
    let told = question(&stream).map(|words| ask_outside(&words, home, config, plan));
    let (status, stdout, stderr) = match told {
        Some(told) => told,
        None => (
            2,
            Vec::new(),
            b"error: the question was not understood\n".to_vec(),
        ),
    };
    let head = Answer {
        status,
        stdout: stdout.len(),
        stderr: stderr.len(),
    };
    let head = serde_json::to_string(&head).expect("numbers are JSON");
    let sent = writeln!(stream, "{head}")
        .and_then(|()| stream.write_all(&stdout))
        .and_then(|()| stream.write_all(&stderr));
    // Whoever asked and went away needs no answer.
    match sent {
        Ok(()) | Err(_) => {}
    }
}

fn question(stream: &UnixStream) -> Option<Vec<String>> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION))
        .read_line(&mut line)
        .ok()?;
    Some(serde_json::from_str::<Question>(&line).ok()?.words)
}

/// What may be asked, put into the words of a command about the own plan.
fn translate(words: &[String], plan: &str) -> Option<Vec<String>> {
    const ABOUT_DIFFS: [&str; 6] = [
        "--json",
        "--stat",
        "--name-status",
        "--patch",
        "-p",
        "--scratch",
    ];
    let (options, verbs): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| word.starts_with('-'));
    let allowed = |known: &[&str]| options.iter().all(|word| known.contains(&word.as_str()));
    let named = |verb: &str| match verbs.as_slice() {
        [only] => *only == verb,
        [first, name] => *first == verb && *name == plan,
        _ => false,
    };
    let mut line: Vec<String> = match () {
        () if named("diff") && allowed(&ABOUT_DIFFS) => vec!["diff".to_owned()],
        () if named("status") && allowed(&["--json"]) => vec!["plan".to_owned(), "show".to_owned()],
        () => return None,
    };
    line.push(plan.to_owned());
    line.extend(options.into_iter().cloned());
    Some(line)
}

fn ask_outside(
    words: &[String],
    home: &Path,
    config: Option<&Path>,
    plan: &str,
) -> (i32, Vec<u8>, Vec<u8>) {
    let Some(line) = translate(words, plan) else {
        let reason =
            "inside a run only `escrow status` and `escrow diff` of its own plan are answered";
        let mut said = format!("error: {reason}\n");
        if note_refusal(words, home, plan, reason).is_err() {
            said.push_str("warning: the log could not be told of it\n");
        }
        return (3, Vec::new(), said.into_bytes());
    };
    let ran = Command::new("/proc/self/exe")
        .args(["--principal", AGENT, "--home"])
        .arg(home)
        .args(config.map(|_| "--config"))
        .args(config)
        .args(line)
        .stdin(std::process::Stdio::null())
        .output();
    match ran {
        Ok(output) => (
            context::shell_status(output.status),
            output.stdout,
            output.stderr,
        ),
        Err(error) => (125, Vec::new(), format!("error: {error}\n").into_bytes()),
    }
}

/// Puts into the log what the agent was refused.
fn note_refusal(words: &[String], home: &Path, plan: &str, reason: &str) -> Result<(), Failure> {
    let context = Context::open(&Global {
        principal: Some(AGENT.to_owned()),
        home: Some(home.to_owned()),
        ..Global::default()
    })?;
    let plan = context.plan(Some(plan))?;
    Ok(context
        .manager
        .note_refusal(&plan, &words.join(" "), reason)?)
}

/// Asks the supervisor, from inside.
pub(crate) fn ask(socket: &PathBuf, words: Vec<String>, ui: &Ui) -> Result<(), Failure> {
    let gone = |error: std::io::Error| {
        Failure::failed(format!(
            "the supervisor of this run does not answer: {error}"
        ))
    };
    let mut stream = UnixStream::connect(socket).map_err(gone)?;
    let question = serde_json::to_string(&Question { words }).expect("words are JSON");
    writeln!(stream, "{question}").map_err(gone)?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).map_err(gone)?;
    let head: Answer = serde_json::from_str(&head)
        .map_err(|_| Failure::failed("the supervisor of this run does not answer"))?;
    let mut stdout = vec![0; head.stdout];
    reader.read_exact(&mut stdout).map_err(gone)?;
    let mut stderr = vec![0; head.stderr];
    reader.read_exact(&mut stderr).map_err(gone)?;
    ui.bytes(&stdout);
    ui.said(&stderr);
    match head.status {
        0 => Ok(()),
        status => Err(Failure::ended(status)),
    }
}
