//! `escrow run`: runs a command inside the sandboxes of a plan.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use escrow::Plan;
use escrow::agents::AgentReport;
use escrow::error::{Error, chain};
use escrow::manager::{AgentChoice, AgentHomeChoice, CommitRequest, RunRequest};
use escrow::model::text::escape;
use escrow::model::{CheckpointId, DiffView, Expected, Limits, Network, units};
use escrow::run::{Output, PublishedPort};
use serde_json::{Value, json};

use super::run_ask::{AfterRun, ask, next};
use super::run_plan::holds_changes;
use super::{show, summary};
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{ReportFile, Tone, Ui, paint};

/// Run a command inside a plan's sandboxes
///
/// The command sees its files at their usual paths and changes nothing real: every sandbox appears
/// at the path of its original, your home directory gets a layer that is thrown away, /tmp is
/// private, and everything else is read-only. No root is needed. When it has ended, a summary says
/// what it changed.
///
/// Without `--plan` it goes on in the open plan of this directory, beside what is there already. If there is none, or with
/// `--new`, it begins a plan: of the resources that the `escrow.yaml` of this project declares, else of the project's top
/// directory (the checkout, else the package that the current directory lies in), else of the current directory.
///
/// With `--json` the document comes when the command has ended, and what the command prints goes to stderr. `--report`
/// writes the same document to a file.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow run -- make test\n  escrow run --commit -- ./migrate.sh\n  \
        escrow run --plan try -- bash"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) options: RunOptions,
    /// Run this text with `bash -c`, instead of a command
    #[arg(long, value_name = "TEXT", conflicts_with = "command")]
    pub(super) script: Option<OsString>,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "script",
        value_name = "COMMAND"
    )]
    pub(super) command: Vec<OsString>,
}

/// Where and how a command runs.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The plan to run in; the open one of this directory, or a new one, if left out
    #[arg(long, value_name = "PLAN")]
    pub(super) plan: Option<String>,
    /// Begin a plan, also where one is open
    #[arg(long, conflicts_with = "plan")]
    pub(super) new: bool,
    /// A resource of the new plan: its name, the path of a directory, file or SQLite database, or the URL of a PostgreSQL database
    /// (postgres://…); those of the project if left out
    #[arg(long, short, value_name = "RESOURCE", conflicts_with = "plan")]
    pub(super) resource: Vec<OsString>,
    /// Begin a plan of every resource: those of the project and all that were added by name
    #[arg(long, conflicts_with_all = ["plan", "resource"])]
    pub(super) all: bool,
    /// How the sandboxes of the new plan are made
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    pub(super) strategy: Option<String>,
    /// Commit the changes of the plan if the command succeeds; where the open plan holds changes from before, only when asked or with --plan
    #[arg(long, conflicts_with = "rollback")]
    pub(super) commit: bool,
    /// Discard the changes of the plan when the command has ended
    #[arg(long)]
    pub(super) rollback: bool,
    /// Go to this directory first
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
    /// Write the document of `--json` to this file when the command has ended
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Make this path, as one in the home directory, part of the new plan too; can be repeated
    #[arg(long, value_name = "PATH", conflicts_with = "plan")]
    pub(super) keep: Vec<PathBuf>,
    /// Let the command write this path for real; can be repeated. Refused for what a shell, git, ssh, the session or a known agent executes
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
    /// The same also for such a path; can be repeated
    #[arg(long, value_name = "PATH")]
    writable_anyway: Vec<PathBuf>,
    /// What the command reaches: `own` (the default), all but this machine; `own,allow:localhost:5432`, that of this machine too; `none`;
    /// `host`, all that this machine reaches; `allow:DOMAIN,…` through a proxy, as in allow:example.com,*.example.org,localhost:8080; or
    /// `preset`, the hosts of the agent that the command starts
    #[arg(long, value_name = "WHICH")]
    network: Option<NetworkArg>,
    /// Show this port of the command on this machine's loopback, as in 3000, or as another one, as in 3000:8000; can be repeated
    #[arg(long, value_name = "PORT[:PORT]")]
    publish: Vec<PublishedPort>,
    /// Leave the home directory read-only
    #[arg(long, overrides_with = "scratch")]
    no_scratch: bool,
    /// Lay a layer over the home directory that is thrown away, whatever the configuration says
    #[arg(long, overrides_with = "no_scratch")]
    scratch: bool,
    /// How much memory all processes of the command may use together, as in 2G
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,
    /// How many processes and threads the command may have
    #[arg(long, value_name = "NUMBER")]
    pids: Option<u64>,
    /// How many processors the command may use, as in 1.5
    #[arg(long, value_name = "NUMBER", value_parser = units::processors)]
    cpu: Option<u64>,
    /// How much the files it writes may take, as in 10G: on disk, and in each directory in memory such as /tmp
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    disk: Option<u64>,
    /// How long the command may take, as in 30m; then its status is 124
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    timeout: Option<Duration>,
    /// Let the command see nothing of this path; can be repeated
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Let the command see this path although it holds credentials; can be repeated
    #[arg(long, value_name = "PATH")]
    show: Vec<PathBuf>,
    /// Take the preset of this agent (`escrow agent list`), or `none`; that of the one which the command starts, if left out
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Where the agent's sessions are: `shared`, as in every run; `fresh`, nowhere before and after this plan; or in this directory
    #[arg(long, value_name = "WHERE", default_value = "shared")]
    agent_home: AgentHomeArg,
    /// Let the command make user namespaces of its own, as bubblewrap, browsers and container engines do
    #[arg(long)]
    allow_userns: bool,
    /// Run in the sandbox's own directory, without protection: where namespaces are forbidden
    #[arg(long, conflicts_with_all = ["writable", "writable_anyway", "no_scratch", "scratch", "network", "publish", "hide", "show", "memory", "pids", "cpu", "disk", "timeout", "allow_userns"])]
    unconfined: bool,
    /// Set a variable for the command, or pass yours of this name; can be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(super) env: Vec<OsString>,
}

/// A network as it is typed.
#[derive(Debug, Clone)]
enum NetworkArg {
    These(Network),
    Preset,
}

impl std::str::FromStr for NetworkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "preset" => Ok(Self::Preset),
            text => text.parse().map(Self::These),
        }
    }
}

/// The home of an agent as it is typed.
#[derive(Debug, Clone)]
struct AgentHomeArg(AgentHomeChoice);

impl std::str::FromStr for AgentHomeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "shared" => AgentHomeChoice::Shared,
            "fresh" => AgentHomeChoice::Fresh,
            "" => return Err("`shared`, `fresh` or a directory is expected".to_owned()),
            dir => AgentHomeChoice::Dir(context::absolute(OsStr::new(dir))),
        }))
    }
}

impl RunArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let command = match self.script {
            Some(script) => vec!["bash".into(), "-c".into(), "--".into(), script],
            None => self.command,
        };
        self.options.run(&command, context, ui)
    }
}

impl RunOptions {
    /// Runs a command with these options, and ends as it did.
    pub(super) fn run(
        &self,
        command: &[OsString],
        context: &Context,
        ui: &Ui,
    ) -> Result<(), Failure> {
        // What is wrong with what was typed is said before anything is made.
        let environment = self.environment()?;
        let report = self.report.as_deref().map(ReportFile::create).transpose()?;
        let done = self.carry_out(command, environment, context, ui);
        let mut done = done.map_err(|failure| failure.for_plan(ui));
        if let Some(mut report) = report {
            let written = match &done {
                Ok((_, answer)) => report.write(answer),
                Err(failure) => report.write(&failure.document()),
            };
            done = match (written, done) {
                (Err(failure), Ok((0, answer))) => Err(failure.beside(answer)),
                // Why the command failed matters more.
                (Err(failure), done) => {
                    ui.notice(failure.message());
                    done
                }
                (Ok(()), done) => done,
            };
        }
        let (status, answer) = done?;
        if ui.is_json() {
            ui.document(answer);
        }
        match status {
            0 => Ok(()),
            status => Err(Failure::ended(status)),
        }
    }

    /// Runs a command in a plan; gives the status to end with, and the document.
    fn carry_out(
        &self,
        command: &[OsString],
        environment: Vec<(OsString, OsString)>,
        context: &Context,
        ui: &Ui,
    ) -> Result<(i32, Value), Failure> {
        let (plan, made) = self.choose_plan(context, ui)?;
        ui.about_plan(&plan.name);
        let session = RunSession {
            options: self,
            context,
            ui,
            plan: &plan,
            made,
        };
        let ready = context.manager.run_defaults(&plan).and_then(|_| {
            // What would stop the release, or is left out of it, is said before anything is done.
            match self.commit {
                true => context.manager.validations(&plan).map(drop),
                false => Ok(()),
            }
        });
        context.tell_notices(ui);
        if let Err(error) = ready {
            session.keep_or_drop();
            return Err(error.into());
        }
        let request = self.request(command, environment, context, ui);
        let began = jiff::Timestamp::now();
        let ended = match self.unconfined {
            true => context.manager.run_unconfined(&plan, &request),
            false => context.manager.run(&plan, &request),
        };
        if ui.quiet {
            // Which variables a command goes without is no warning for a program that asked for its output alone.
            let notices = context.manager.notices();
            let told = notices
                .iter()
                .filter(|one| !one.starts_with("not passed: "));
            told.for_each(|one| ui.notice(one));
        }
        if let Ok(ended) = &ended
            && let Some(how) = ended.without.as_ref().filter(|_| ui.is_json())
        {
            // Without a document it was said when the command began.
            ui.notice(how);
        }
        let (status, denied, not_passed, hidden, before, agents) = match ended {
            Ok(ended) => (
                ended.exit.status(),
                ended.denied,
                ended.not_passed,
                ended.hidden,
                ended.before,
                ended.agents,
            ),
            Err(error) => {
                session.keep_or_drop();
                let status = match &error {
                    Error::Run(error) => Some(error.command_status().unwrap_or(125)),
                    _ => None,
                };
                let failure = Failure::from(error);
                return Err(match status {
                    Some(status) => failure.status(status),
                    None => failure,
                });
            }
        };
        let mut answer = json!({
            "plan": plan.name,
            "plan_id": plan.id,
            "exit_status": status,
            "outcome": "kept",
            "changes": null,
            "scratch": [],
            "conflicts": [],
            "denied": denied,
            "not_passed": not_passed,
            "hidden": hidden,
            "agents": agents.iter().map(|one| summary::agent(one, context)).collect::<Vec<_>>(),
        });
        summary::show_denied(&denied, ui);
        summary::show_hidden(&hidden, context, ui);
        if !not_passed.is_empty() {
            ui.verbose(&format!("not passed: {}", not_passed.join(", ")));
        }
        show_agents(&agents, context, ui);
        let done = session.end(status, before, &agents, &mut answer);
        if ui.is_json() || self.report.is_some() {
            answer["conflicts"] = summary::conflicts(context, &plan);
            let asked = match summary::denied_questions(context, &plan, began) {
                Ok(asked) => asked,
                Err(failure) => return Err(failure.beside(answer)),
            };
            let hosts = denied.iter().map(|one| json!(one));
            answer["denied"] = hosts.chain(asked).collect();
        }
        match done {
            Ok(status) => Ok((status, answer)),
            Err(failure) => Err(failure.beside(answer)),
        }
    }

    /// How the command is to run.
    fn request<'a>(
        &self,
        command: &[OsString],
        environment: Vec<(OsString, OsString)>,
        context: &'a Context,
        ui: &Ui,
    ) -> RunRequest<'a> {
        let absolute = |paths: &[PathBuf]| {
            let paths = paths.iter().map(|path| context.directory.join(path));
            paths.collect()
        };
        RunRequest {
            environment,
            scratch: match (self.scratch, self.no_scratch) {
                (false, false) => None,
                (scratch, _) => Some(scratch),
            },
            writable: self.writable.clone(),
            writable_anyway: self.writable_anyway.clone(),
            network: match &self.network {
                Some(NetworkArg::These(network)) => Some(network.clone()),
                Some(NetworkArg::Preset) | None => None,
            },
            preset_network: matches!(self.network, Some(NetworkArg::Preset)),
            publish: self.publish.clone(),
            hide: absolute(&self.hide),
            show: absolute(&self.show),
            agent: match self.agent.as_deref() {
                None => AgentChoice::Recognized,
                Some("none") => AgentChoice::None,
                Some(name) => AgentChoice::Named(name.to_owned()),
            },
            agent_home: self.agent_home.0.clone(),
            limits: Limits {
                memory: self.memory,
                pids: self.pids,
                cpu: self.cpu,
                disk: self.disk,
                timeout: self.timeout,
            },
            userns: self.allow_userns.then_some(true),
            output: match ui.is_json() {
                true => Output::Error,
                false => Output::Own,
            },
            ..RunRequest::new(command, &context.directory)
        }
    }

    /// The variables that were typed.
    fn environment(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let parse = |typed: &OsString| {
            let mut words = typed.as_bytes().splitn(2, |byte| *byte == b'=');
            match (words.next(), words.next()) {
                (Some(name), Some(value)) if !name.is_empty() => Ok((
                    OsStr::from_bytes(name).into(),
                    OsStr::from_bytes(value).into(),
                )),
                (Some(_), None) if let Some(value) = context::callers_variable(typed) => {
                    Ok((typed.clone(), value))
                }
                _ => {
                    let typed = typed.to_string_lossy();
                    Err(Failure::usage(format!(
                        "'{typed}' is neither NAME=VALUE nor a variable that is set here"
                    ))
                    .status(2))
                }
            }
        };
        self.env.iter().map(parse).collect()
    }
}

/// Says what came of the agents that ran.
fn show_agents(agents: &[AgentReport], context: &Context, ui: &Ui) {
    agents
        .iter()
        .for_each(|one| summary::show_agent(one, context, ui));
}

/// How many files of the home directory are named that would run later.
const PLANTED: usize = 5;

/// A command of a plan.
struct RunSession<'a> {
    options: &'a RunOptions,
    context: &'a Context,
    ui: &'a Ui,
    plan: &'a Plan,
    /// Whether the plan was made for this command.
    made: bool,
}

impl RunSession<'_> {
    /// Takes a plan away that was made for a command which never began; whatever a plan holds is kept. What fails is said beside
    /// the reason for which the command did not begin.
    fn keep_or_drop(&self) {
        let dropped = match holds_changes(self.context, self.plan) {
            Ok(Some(true)) => {
                next(self.ui, self.plan);
                Ok(())
            }
            Ok(_) if self.made => {
                let taken = self.context.manager.take_away_unused(self.plan);
                taken.map(drop).map_err(Failure::from)
            }
            held => held.map(drop),
        };
        if let Err(failure) = dropped {
            let name = &self.plan.name;
            let why = failure.message();
            self.ui
                .notice(&format!("the plan {name} is still there: {why}"));
        }
    }

    /// What is done when the command has ended; gives the status to end with.
    fn end(
        &self,
        status: i32,
        before: Option<CheckpointId>,
        agents: &[AgentReport],
        answer: &mut Value,
    ) -> Result<i32, Failure> {
        let (context, ui, plan) = (self.context, self.ui, self.plan);
        let options = self.options;
        // Who may run a command need not be permitted to see what it did, and did not ask for it.
        let seen = match context.manager.diff_after_run(plan) {
            Err(error @ Error::Denied { .. }) => {
                ui.say(&format!("cannot show the changes: {error}"));
                None
            }
            // The process that waited for the command was quicker.
            Err(Error::PlanOver { state, .. }) if !self.made => {
                ui.say(&format!("the plan {} was {state} meanwhile", plan.name));
                answer["outcome"] = json!(state.as_str());
                return Ok(status);
            }
            found => Some(found?),
        };
        let changed = seen.as_ref().map(|found| {
            let all = &found.resources;
            all.iter().any(|one| !one.diff.is_empty())
        });
        if let Some(found) = &seen {
            // Where nothing was before, the command did all of it.
            let before = before.filter(|_| !self.made);
            let since = before.and_then(|before| summary::since(context, plan, before));
            summary::summarize(context, found, since.as_ref(), ui);
        }
        let asks = changed == Some(true) && !options.commit && !options.rollback && ui.asks();
        // What is released then is what this says.
        let mut shown = match &seen {
            Some(found) if asks => Some(context.manager.digest(found)?),
            _ => None,
        };
        answer["changes"] = json!(seen.map(|found| summary::changes(&found)));
        if changed.is_some() {
            // Where the plan goes with this command, or may, nothing can be asked of it later.
            let ends = asks || options.rollback || (options.commit && status == 0);
            let stays = !ends && (changed == Some(true) || !self.made);
            answer["scratch"] = self.show_scratch(stays, agents)?;
        }
        let choice = match (options.rollback, options.commit && status == 0) {
            (true, _) => AfterRun::Discard,
            (_, true) => AfterRun::Commit,
            _ if asks => ask(context, ui, plan, &mut shown)?,
            _ => AfterRun::Keep,
        };
        match choice {
            AfterRun::Discard => {
                let manager = &context.manager;
                let progress = ui.progress("discarding");
                // A plan that was made for this command and holds nothing is not worth keeping.
                let nothing = changed == Some(false) && self.made;
                if !nothing || !manager.take_away_unused(plan)? {
                    manager.rollback(plan, &progress)?;
                }
                drop(progress);
                answer["outcome"] = json!("discarded");
                let name = &plan.name;
                ui.say(&match manager.keeps_discarded(plan)? {
                    true => format!("discarded; `escrow undo {name}` brings it back"),
                    false => "discarded".to_owned(),
                });
            }
            AfterRun::Commit => {
                let expected = shown.map(Expected::Shown);
                let request = CommitRequest {
                    expected: expected.as_ref(),
                    ..CommitRequest::default()
                };
                let progress = ui.progress("committing");
                let committed = context.manager.commit(plan, &request, &progress);
                let committed =
                    committed.map_err(|error| Failure::from(error).about("committed"))?;
                answer["outcome"] = json!("committed");
                let mut members = committed.preview.members.iter();
                match members.all(|member| member.undoable || member.diff.is_empty()) {
                    true => ui.say(&format!("committed; undo with `escrow undo {}`", plan.name)),
                    false => ui.say("committed"),
                }
            }
            AfterRun::Done => answer["outcome"] = json!("committed"),
            AfterRun::Leave => {
                next(ui, plan);
                return Ok(128 + signal_hook::consts::SIGINT);
            }
            AfterRun::Keep if changed == Some(true) => next(ui, plan),
            // Nothing was done in a plan that was made for this command alone.
            AfterRun::Keep if self.made => match context.manager.take_away_unused(plan)? {
                true => answer["outcome"] = json!("unchanged"),
                false => next(ui, plan),
            },
            AfterRun::Keep => {}
        }
        Ok(status)
    }

    /// Names files written into the home directory that would run there without being asked.
    fn show_planted(&self, written: &DiffView, agents: &[AgentReport]) {
        let planted = self.context.manager.runs_later_at_home(written, agents);
        for one in planted.iter().take(PLANTED) {
            let path = escape(one.path.as_bytes());
            self.ui.say(&format!(
                "{} ~/{path} is kept out: {}",
                paint(Tone::Careful, "  attention"),
                one.why
            ));
        }
        if let Some(more @ 1..) = planted.len().checked_sub(PLANTED) {
            self.ui.say(&format!(
                "  attention {more} more files that would run later are kept out"
            ));
        }
    }

    /// Names what was written beside the sandboxes; how to see it where the plan stays open.
    fn show_scratch(&self, stays: bool, agents: &[AgentReport]) -> Result<Value, Failure> {
        let options = self.options;
        let Some(home) =
            context::user_home().filter(|_| !options.no_scratch && !options.unconfined)
        else {
            return Ok(json!([]));
        };
        let written = match self.context.manager.scratch_diff(self.plan, &home) {
            Ok(written) => written,
            // The command has ended, and what it changed is no less for that.
            Err(error) => {
                let why = chain(&error);
                let ui = self.ui;
                ui.say(&format!(
                    "what was written into the home directory cannot be listed: {why}"
                ));
                return Ok(json!([]));
            }
        };
        if !written.is_empty() {
            let see = match stays {
                true => format!(" (`escrow diff --scratch {}`)", self.plan.name),
                false => String::new(),
            };
            self.ui.say(&format!(
                "in the home directory, never committed: {}{see}",
                show::sum(&written)
            ));
            for line in show::largest(&written) {
                self.ui.say(&line);
            }
            self.show_planted(&written, agents);
        }
        Ok(written.changes.iter().map(show::change).collect())
    }
}
