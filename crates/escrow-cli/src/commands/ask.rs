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

/// What may be asked: the words, what they become, the options that stand alone and those that have a
/// value, and how many words come beside the plan's name.
struct Verb {
    asked: &'static [&'static str],
    becomes: &'static [&'static str],
    options: &'static [&'static str],
    valued: &'static [(&'static str, &'static str)],
    operands: usize,
}

const VERBS: [Verb; 5] = [
    Verb {
        asked: &["status"],
        becomes: &["plan", "show"],
        options: &["--json"],
        valued: &[],
        operands: 0,
    },
    Verb {
        asked: &["diff"],
        becomes: &["diff"],
        options: &[
            "--json",
            "--stat",
            "--name-status",
            "--patch",
            "-p",
            "--scratch",
        ],
        valued: &[("--since", "--since")],
        operands: 0,
    },
    Verb {
        asked: &["checkpoint", "create"],
        becomes: &["checkpoint", "create"],
        options: &["--json"],
        valued: &[("-m", "--message"), ("--message", "--message")],
        operands: 0,
    },
    Verb {
        asked: &["checkpoint", "list"],
        becomes: &["checkpoint", "list"],
        options: &["--json"],
        valued: &[],
        operands: 0,
    },
    Verb {
        asked: &["restore"],
        becomes: &["restore"],
        options: &["--json"],
        valued: &[],
        operands: 1,
    },
];

/// What is asked, put into the words of a command about the own plan. Every word of the answer is ours,
/// or stands where it can only be a value.
fn translate(words: &[String], plan: &str) -> Option<Vec<String>> {
    VERBS.iter().find_map(|verb| verb.translate(words, plan))
}

impl Verb {
    fn translate(&self, words: &[String], plan: &str) -> Option<Vec<String>> {
        let (mut plain, mut options) = (Vec::new(), Vec::new());
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, glued) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value)),
                _ => (word.as_str(), None),
            };
            if !word.starts_with('-') {
                plain.push(word.as_str());
            } else if self.options.contains(&word.as_str()) {
                options.push(word.clone());
            } else {
                let (_, long) = self.valued.iter().find(|(known, _)| *known == name)?;
                let value = match glued {
                    Some(value) => value,
                    None => words.next()?,
                };
                options.push(format!("{long}={value}"));
            }
        }
        let operands = plain.strip_prefix(self.asked)?;
        let operands = match operands.len().checked_sub(self.operands)? {
            0 => operands,
            1 if operands[0] == plan => &operands[1..],
            _ => return None,
        };
        let becomes = self.becomes.iter().copied().chain([plan]);
        let line = becomes.chain(operands.iter().copied()).map(str::to_owned);
        Some(line.chain(options).collect())
    }
}

fn ask_outside(
    words: &[String],
    home: &Path,
    config: Option<&Path>,
    plan: &str,
) -> (i32, Vec<u8>, Vec<u8>) {
    let Some(line) = translate(words, plan) else {
        let reason = "inside a run only `escrow status`, `diff`, `checkpoint create`, `checkpoint list` and `restore` \
             of its own plan are answered";
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

#[cfg(test)]
mod tests {
    use super::translate;

    fn line(typed: &str) -> Option<String> {
        let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
        translate(&words, "try").map(|line| line.join(" "))
    }

    #[test]
    fn only_what_is_on_the_list_is_passed_on_and_only_about_the_own_plan() {
        let same = |typed: &str| assert_eq!(line(typed).as_deref(), Some(typed));
        same("checkpoint create try --message=one");
        same("restore try one");
        same("diff try --since=one");
        same("checkpoint list try --json");
        assert_eq!(line("status").as_deref(), Some("plan show try"));
        let created = "checkpoint create try --message=--home";
        assert_eq!(
            line("checkpoint create -m --home").as_deref(),
            Some(created)
        );
        assert_eq!(line("restore one").as_deref(), Some("restore try one"));
        for refused in [
            "commit",
            "commit try",
            "restore other one",
            "restore",
            "restore try one two",
            "restore --home=x one",
            "checkpoint delete try one",
            "checkpoint create other",
            "checkpoint create -m",
            "diff --config=x",
            "diff --since",
            "status --home x",
            "-- restore one",
        ] {
            assert_eq!(line(refused), None, "{refused}");
        }
    }
}
