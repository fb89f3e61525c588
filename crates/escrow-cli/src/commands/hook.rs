//! `escrow hook`: answers the hooks of coding agents, so that their tools work in a plan's sandboxes.
//!
//! Guarantees that a tool call is either answered with a sandboxed input, passed because it needs no sandbox, or denied: every
//! failure on the way to an answer is a denial, and so is the end of the time limit or a crash.

mod event;
mod input;
mod paths;
mod session;
mod tools;
mod watchdog;
mod worktree;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use escrow::model::units;
use serde_json::{Value, json};

pub(super) use event::conversation;
pub(super) use session::collect_abandoned;

use self::input::Input;
use self::session::Session;
use self::tools::Verdict;
use self::watchdog::Watchdog;
use super::GlobalArgs;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Answer a hook of a coding agent
///
/// `escrow agent setup` enters this command into the agent's configuration. It reads one event as JSON on stdin and answers as the
/// agent expects: commands run in the plan of the session through `escrow run`, and tools that read or write files get the
/// path of the sandbox. A failure denies the tool call. Inside `escrow run` it answers nothing, since everything there is
/// sandboxed already.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow hook claude < event.json")]
pub(crate) struct HookArgs {
    /// Which agent asks
    #[arg(value_enum, value_name = "AGENT")]
    client: Client,
    /// How long an answer may take, as in 30s; then the call is denied. Must be below the agent's own limit
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "30s")]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
}

impl Client {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
        }
    }
}

/// How long an event may take that makes sandboxes: `escrow agent setup` gives it ten minutes at the agent.
const LONG: Duration = Duration::from_secs(570);

/// An event and the means to answer it.
struct Call<'a> {
    client: Client,
    input: &'a Input,
    context: &'a Context,
    global: &'a GlobalArgs,
    ui: &'a Ui,
}

impl HookArgs {
    pub(crate) fn run(&self, global: &GlobalArgs, ui: &Ui) -> Result<(), Failure> {
        watchdog::deny_on_panic();
        let watchdog = Watchdog::start(self.timeout);
        let input = match Input::read() {
            Ok(input) => input,
            Err(why) => return refuse(&why, ui),
        };
        if let Some(socket) = context::socket() {
            return pass_inside(&socket, &input, ui);
        }
        let event = input.event();
        if event == "PreToolUse" {
            return match self.answer_tool(&input, global, ui) {
                Ok(verdict) => answer(verdict, &input, ui),
                Err(failure) => refuse(&failure.reason(), ui),
            };
        }
        if !event::KNOWN.contains(&event) {
            return match event.is_empty() {
                true => refuse("the input names no hook_event_name", ui),
                false => {
                    ui.warn(&format!("hook {event}: no answer is needed"));
                    Ok(())
                }
            };
        }
        let creates = event == "WorktreeCreate";
        // A failure of any other event would block the user's prompt, or keep the agent from ending.
        watchdog.extend(LONG, i32::from(creates));
        let done = self.open(&input, global).and_then(|context| {
            let call = self.call(&input, &context, global, ui);
            let done = event::answer(&call);
            context.tell_notices(ui);
            done
        });
        match done {
            Err(failure) if !creates => {
                ui.warn(&format!("hook {event}: {}", failure.reason()));
                Ok(())
            }
            done => done,
        }
    }

    fn call<'a>(
        &self,
        input: &'a Input,
        context: &'a Context,
        global: &'a GlobalArgs,
        ui: &'a Ui,
    ) -> Call<'a> {
        Call {
            client: self.client,
            input,
            context,
            global,
            ui,
        }
    }

    /// The engine, from the directory in which the agent works. In a sandbox, as in a worktree, the configuration is that of the
    /// original: the agent can write the other one.
    fn open(&self, input: &Input, global: &GlobalArgs) -> Result<Context, Failure> {
        let cwd = input.cwd()?;
        context::go_to(&cwd)?;
        if session::may_be_sandbox(&cwd)
            && let Some(view) = session::around(&Context::open(global, true)?, &cwd)?
        {
            context::go_to(view.plan.directory.as_path())?;
        }
        Context::open(global, false)
    }

    fn answer_tool(&self, input: &Input, global: &GlobalArgs, ui: &Ui) -> Result<Verdict, Failure> {
        if tools::needs_no_sandbox(input.tool()?) {
            return Ok(Verdict::Pass);
        }
        let context = self.open(input, global)?;
        let call = self.call(input, &context, global, ui);
        let session = Session::begin(&call)?;
        tools::decide(&call, &session)
    }
}

/// Lets a call through that is made inside `escrow run`, once the supervisor of that run has answered: a variable alone, which a
/// project's settings can set, proves nothing.
fn pass_inside(socket: &Path, input: &Input, ui: &Ui) -> Result<(), Failure> {
    let answer = escrow::run::ask(socket, vec!["status".to_owned()]);
    match answer.map_err(escrow::error::Error::from) {
        Ok(_) => Ok(()),
        Err(_) if input.event() != "PreToolUse" => Ok(()),
        Err(error) => refuse(&format!("ESCROW_SOCKET is set, but {error}"), ui),
    }
}

/// Answers a tool call.
fn answer(verdict: Verdict, input: &Input, ui: &Ui) -> Result<(), Failure> {
    let changed = match verdict {
        Verdict::Pass => return Ok(()),
        Verdict::Deny(why) => return refuse(&why, ui),
        Verdict::Change(changed) => changed,
    };
    // The answer replaces the whole input, so the other fields are repeated.
    let mut updated = input.tool_input().clone();
    updated.extend(changed);
    print(
        &json!({"hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "permissionDecisionReason": "in an Escrow sandbox; nothing is final before `escrow commit`",
            "updatedInput": updated,
        }}),
        ui,
    )
}

/// The answer that denies a tool call.
fn denial(why: &str) -> Value {
    json!({"hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": format!("escrow: {why}"),
    }})
}

fn refuse(why: &str, ui: &Ui) -> Result<(), Failure> {
    print(&denial(why), ui)
}

/// Prints an answer; one that did not arrive is a failure with the status that denies.
fn print(answer: &Value, ui: &Ui) -> Result<(), Failure> {
    ui.bytes(format!("{answer}\n").as_bytes());
    match ui.lost_output() {
        true => Err(Failure::ended(2)),
        false => Ok(()),
    }
}
