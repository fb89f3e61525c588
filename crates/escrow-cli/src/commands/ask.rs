//! Questions from inside a run: the supervisor answers some of them, as principal `agent`.
//!
//! One line of JSON asks, one line of JSON answers, followed by what the command wrote. Whoever asks chooses among a few
//! verbs about the own plan, which are judged by the policy; nothing else of the outside can be reached. What is
//! asked is read by the same grammar as outside and then said again in words of ours.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command as Process;
use std::time::Duration;

use clap::Parser;
use escrow::store::Plan;
use serde::{Deserialize, Serialize};

use super::{Cli, Command, Global};
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Who asks from inside.
const AGENT: &str = "agent";

/// The longest question.
const QUESTION: u64 = 64 * 1024;

/// How long one waits for a question to be finished.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is answered.
const ONLY: &str = "inside a run only `escrow status`, `diff`, `checkpoint create|list|show` and `restore` of its own plan are answered";

#[derive(Serialize, Deserialize)]
struct Question {
    words: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    status: i32,
    stdout: usize,
    stderr: usize,
    refused: Option<Refused>,
}

/// Why a question was not answered; whoever asked tells it in the form that was asked for.
#[derive(Serialize, Deserialize)]
struct Refused {
    reason: String,
    hints: Vec<String>,
}

/// What is answered.
#[derive(Default)]
struct Told {
    status: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    refused: Option<Refused>,
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

/// A command about a plan, put into words of ours: what came from inside stands where it can only be a value.
#[derive(Default)]
pub(super) struct Asked {
    /// The words that name it.
    pub(super) verb: &'static [&'static str],
    /// The plan that was typed.
    pub(super) plan: Option<String>,
    /// The resource that was typed.
    pub(super) resource: Option<OsString>,
    /// Options, those with a value in one word with it.
    pub(super) options: Vec<String>,
    /// Words beside the plan.
    pub(super) operands: Vec<String>,
}

impl Asked {
    /// The option, if it was typed.
    pub(super) fn flag(mut self, name: &str, typed: bool) -> Self {
        self.options.extend(typed.then(|| name.to_owned()));
        self
    }

    /// The option and its value, if it was typed.
    pub(super) fn value(mut self, name: &str, typed: Option<String>) -> Self {
        let option = typed.map(|value| format!("{name}={value}"));
        self.options.extend(option);
        self
    }

    /// Takes `PLAN WORD` or `WORD` for what they are.
    pub(super) fn words(mut self, mut words: Vec<String>) -> Self {
        self.operands = words.pop().into_iter().collect();
        self.plan = words.pop();
        self
    }
}

/// What a command may be asked for from inside; `None` is never answered. Every command and every option is judged
/// here or in the file of its verb: one that is new is not answered, or does not build.
fn asked(command: Command) -> Option<Asked> {
    match command {
        Command::Status(args) => Some(args.asked()),
        Command::Diff(args) => Some(args.asked()),
        Command::Checkpoint(args) => args.asked(),
        Command::Restore(args) => Some(args.asked()),
        _ => None,
    }
}

/// Whoever runs a command inside, and what it may ask about.
pub(super) struct Supervisor {
    pub(super) home: PathBuf,
    pub(super) config: Option<PathBuf>,
    pub(super) plan: Plan,
}

impl Supervisor {
    /// Answers a question.
    pub(super) fn answer(&self, mut stream: UnixStream) {
        let told = match question(&stream) {
            Some(words) => self.ask_outside(&words),
            None => Told {
                status: 2,
                stderr: b"error: the question was not understood\n".to_vec(),
                ..Told::default()
            },
        };
        let head = Answer {
            status: told.status,
            stdout: told.stdout.len(),
            stderr: told.stderr.len(),
            refused: told.refused,
        };
        let head = serde_json::to_string(&head).expect("numbers and words are JSON");
        let sent = writeln!(stream, "{head}")
            .and_then(|()| stream.write_all(&told.stdout))
            .and_then(|()| stream.write_all(&told.stderr));
        // Whoever asked and went away needs no answer.
        match sent {
            Ok(()) | Err(_) => {}
        }
    }

    fn ask_outside(&self, words: &[String]) -> Told {
        let line = match self.translate(words) {
            Ok(line) => line,
            Err(reason) => return self.refuse(words, reason),
        };
        let ran = Process::new("/proc/self/exe")
            .args(["--principal", AGENT, "--home"])
            .arg(&self.home)
            .args(self.config.as_ref().map(|_| "--config"))
            .args(&self.config)
            .args(line)
            .stdin(std::process::Stdio::null())
            .output();
        match ran {
            Ok(output) => Told {
                status: context::shell_status(output.status),
                stdout: output.stdout,
                stderr: output.stderr,
                refused: None,
            },
            Err(error) => Told {
                status: 125,
                stderr: format!("error: {error}\n").into_bytes(),
                ..Told::default()
            },
        }
    }

    /// What is asked, as a command about the own plan; or why it is not answered. The words are read as they would be
    /// outside, and none of them is passed on as it is.
    fn translate(&self, words: &[String]) -> Result<Vec<String>, String> {
        let typed = iter::once("escrow").chain(words.iter().map(String::as_str));
        let Ok(cli) = Cli::try_parse_from(typed) else {
            return Err(ONLY.to_owned());
        };
        let Global {
            json,
            principal,
            home,
            config,
            verbose,
            quiet,
        } = cli.global;
        let mut asked = asked(cli.command).ok_or(ONLY)?;
        for (name, typed) in [
            ("--principal", principal.is_some()),
            ("--home", home.is_some()),
            ("--config", config.is_some()),
        ] {
            if typed {
                return Err(format!("inside a run nobody chooses {name}"));
            }
        }
        if let Some(typed) = &asked.plan
            && !self.is_own(typed)
        {
            return Err(format!(
                "inside a run only its own plan is answered for. {ONLY}"
            ));
        }
        let resource = asked.resource.take();
        let resource = resource.map(|typed| self.own_resource(&typed));
        let verbose = iter::repeat_n("-v".to_owned(), verbose.into());
        let asked = asked
            .flag("--json", json)
            .flag("-q", quiet)
            .value("--resource", resource.transpose()?);
        let verb = asked.verb.iter().map(|word| (*word).to_owned());
        let options = asked.options.into_iter().chain(verbose);
        // Behind this every word is a word.
        let plan = ["--".to_owned(), self.plan.id.to_string()];
        let words = verb.chain(options).chain(plan).chain(asked.operands);
        Ok(words.collect())
    }

    /// Whether a plan that was typed is the own one.
    fn is_own(&self, typed: &str) -> bool {
        let exact = typed == self.plan.name || typed == self.plan.id.to_string();
        let resolved = || self.context()?.plan(Some(typed));
        exact || resolved().is_ok_and(|plan| plan.id == self.plan.id)
    }

    /// The resource that was typed, if the plan has it. By its name only: paths are others inside.
    fn own_resource(&self, typed: &OsStr) -> Result<String, String> {
        let names = self.context().and_then(|context| {
            let names = context.manager.resource_names(&self.plan)?;
            Ok(names)
        });
        let names = names.unwrap_or_default();
        match names.iter().find(|name| typed == name.as_str()) {
            Some(name) => Ok(name.clone()),
            None => Err(format!(
                "inside a run only resources of its own plan are answered for, by name: {}",
                names.join(", ")
            )),
        }
    }

    /// The engine, as whoever asks.
    fn context(&self) -> Result<Context, Failure> {
        let global = Global {
            principal: Some(AGENT.to_owned()),
            home: Some(self.home.clone()),
            config: self.config.clone(),
            ..Global::default()
        };
        Context::open(&global, false)
    }

    /// Refuses, and puts it into the log.
    fn refuse(&self, words: &[String], reason: String) -> Told {
        let noted = self.context().and_then(|context| {
            let words = words.join(" ");
            Ok(context.manager.note_refusal(&self.plan, &words, &reason)?)
        });
        let hint = "the log could not be told of it".to_owned();
        let hints = noted.is_err().then_some(hint).into_iter().collect();
        Told {
            status: 3,
            refused: Some(Refused { reason, hints }),
            ..Told::default()
        }
    }
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
    if let Some(Refused { reason, hints }) = head.refused {
        let refused = Failure::denied(reason);
        return Err(hints.into_iter().fold(refused, Failure::hint));
    }
    match head.status {
        0 => Ok(()),
        status => Err(Failure::ended(status)),
    }
}

#[cfg(test)]
mod tests {
    use escrow::model::text::Location;
    use escrow::model::{PlanId, PlanState, SystemOrigin};
    use escrow::store::Plan;

    use super::Supervisor;

    fn supervisor() -> Supervisor {
        Supervisor {
            // Nothing can be kept there, so no other plan is known.
            home: "/dev/null/home".into(),
            config: None,
            plan: Plan {
                id: PlanId::new(&SystemOrigin),
                name: "try".to_owned(),
                directory: Location::from("/"),
                state: PlanState::Open,
                created_at: jiff::Timestamp::UNIX_EPOCH,
            },
        }
    }

    fn line(supervisor: &Supervisor, typed: &str) -> Option<String> {
        let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
        let line = supervisor.translate(&words).ok()?.join(" ");
        Some(line.replace(&supervisor.plan.id.to_string(), "PLAN"))
    }

    // rule S4
    #[test]
    fn what_is_passed_on_is_about_the_own_plan_in_words_of_ours() {
        let supervisor = supervisor();
        for (typed, passed) in [
            ("status", "plan show -- PLAN"),
            ("status --disk -v", "plan show --disk -v -- PLAN"),
            ("-q status", "plan show -q -- PLAN"),
            ("diff", "diff -- PLAN"),
            ("diff try -p", "diff --patch -- PLAN"),
            (
                "diff --since=a --until b",
                "diff --since=a --until=b -- PLAN",
            ),
            (
                "checkpoint create --message=--home",
                "checkpoint create --message=--home -- PLAN",
            ),
            (
                "checkpoint create -mone",
                "checkpoint create --message=one -- PLAN",
            ),
            (
                "checkpoint create --message=one",
                "checkpoint create --message=one -- PLAN",
            ),
            (
                "checkpoint list try --json",
                "checkpoint list --json -- PLAN",
            ),
            ("checkpoint show one", "checkpoint show -- PLAN one"),
            (
                "checkpoint show -- --home=x",
                "checkpoint show -- PLAN --home=x",
            ),
            ("restore try one", "restore -- PLAN one"),
            ("restore one -vv", "restore -v -v -- PLAN one"),
        ] {
            assert_eq!(line(&supervisor, typed).as_deref(), Some(passed), "{typed}");
        }
        for refused in [
            "commit",
            "commit try",
            "plan show try",
            "inside 1 2",
            "restore other one",
            "restore",
            "restore try one two",
            "restore --home=x one",
            "checkpoint create other",
            "trust",
            "trust --yes escrow.yaml",
            "checkpoint create -m",
            "checkpoint create -m --home",
            "diff --config=x",
            "diff --principal x",
            "diff --resource app",
            "diff --since",
            "status --home x",
            "status try",
            "--version",
            "diff --help",
            "",
        ] {
            assert_eq!(line(&supervisor, refused), None, "{refused}");
        }
    }
}
