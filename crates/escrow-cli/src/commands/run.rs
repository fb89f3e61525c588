//! `escrow run`: runs a command inside the sandboxes of a plan.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use escrow::Plan;
use escrow::commit::CommitTerms;
use escrow::diff::{self, PatchOptions};
use escrow::error::{Error, chain};
use escrow::manager::{CommitRequest, PlanDiff, RunRequest};
use escrow::model::text::Location;
use escrow::model::{DeniedConnection, Expected, Limits, Network, PlanDigest};
use escrow::model::{WholeDirs, units};
use escrow::run::{Agent, Output};
use serde_json::{Value, json};

use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{PromptAnswer, ReportFile, Tone, Ui, paint};

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
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Where and how a command runs.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The plan to run in; the open one of this directory, or a new one, if left out
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
    /// Begin a plan, also where one is open
    #[arg(long, conflicts_with = "plan")]
    new: bool,
    /// A resource of the new plan: its name, the path of a directory, file or SQLite database, or the URL of a PostgreSQL database
    /// (postgres://…); those of the project if left out
    #[arg(long, short, value_name = "RESOURCE", conflicts_with = "plan")]
    resource: Vec<OsString>,
    /// Begin a plan of every resource: those of the project and all that were added by name
    #[arg(long, conflicts_with_all = ["plan", "resource"])]
    all: bool,
    /// How the sandboxes of the new plan are made
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    strategy: Option<String>,
    /// Release the changes of the plan if the command succeeds
    #[arg(long, conflicts_with = "rollback")]
    commit: bool,
    /// Discard the changes of the plan when the command has ended
    #[arg(long)]
    rollback: bool,
    /// Go to this directory first
    #[arg(short = 'C', long, value_name = "DIR")]
    pub(super) directory: Option<PathBuf>,
    /// Write the document of `--json` to this file when the command has ended
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Make this path, as one in the home directory, part of the new plan too; can be repeated
    #[arg(long, value_name = "PATH", conflicts_with = "plan")]
    keep: Vec<PathBuf>,
    /// Let the command write this path for real; can be repeated
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
    /// What the command reaches: `none`, `host` (the default), or `allow:DOMAIN,…` through a proxy, as in
    /// allow:example.com,*.example.org,localhost:8080
    #[arg(long, value_name = "WHICH")]
    network: Option<Network>,
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
    /// Let the credentials of this agent be usable; the one that the command starts, if left out
    #[arg(long, value_enum, value_name = "NAME")]
    agent: Option<AgentArg>,
    /// Let the command make user namespaces of its own, as bubblewrap, browsers and container engines do
    #[arg(long)]
    allow_userns: bool,
    /// Run in the sandbox's own directory, without protection: where namespaces are forbidden
    #[arg(long, conflicts_with_all = ["writable", "no_scratch", "scratch", "network", "hide", "show", "memory", "pids", "cpu", "disk", "timeout", "allow_userns"])]
    unconfined: bool,
    /// Set a variable for the command, or pass yours of this name; can be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AgentArg {
    /// Claude Code
    Claude,
    /// Codex
    Codex,
    /// Aider
    Aider,
    /// The Gemini CLI
    Gemini,
    /// None, whatever the command starts
    None,
}

impl AgentArg {
    fn agent(self) -> Option<Agent> {
        match self {
            Self::Claude => Some(Agent::Claude),
            Self::Codex => Some(Agent::Codex),
            Self::Aider => Some(Agent::Aider),
            Self::Gemini => Some(Agent::Gemini),
            Self::None => None,
        }
    }
}

impl RunArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        self.options.run(&self.command, context, ui)
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
        let (status, denied, not_passed) = match ended {
            Ok(ended) => (ended.exit.status(), ended.denied, ended.not_passed),
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
        });
        show_denied(&denied, ui);
        let done = session.end(status, &mut answer);
        if ui.is_json() || self.report.is_some() {
            answer["conflicts"] = conflicts(context, &plan);
            let asked = match denied_questions(context, &plan, began) {
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
            network: self.network.clone(),
            hide: absolute(&self.hide),
            show: absolute(&self.show),
            agent: self.agent.map(AgentArg::agent),
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

    /// The plan to run in, and whether it was made for this command.
    fn choose_plan(&self, context: &Context, ui: &Ui) -> Result<(Plan, bool), Failure> {
        if let Some(typed) = &self.plan {
            let plan = context.plan(Some(typed), ui)?;
            context.check_sandboxes(&plan)?;
            return Ok((plan, false));
        }
        let begins = self.new || self.all || self.strategy.is_some();
        let begins = begins || !self.resource.is_empty() || !self.keep.is_empty();
        let open = match begins {
            true => None,
            false => context.manager.open_plan_here(&context.directory)?,
        };
        let Some(plan) = open else {
            return Ok((self.make_plan(context, ui)?, true));
        };
        context.check_sandboxes(&plan)?;
        // What cannot be seen may be there.
        if self.rollback && holds_changes(context, &plan)? != Some(false) {
            let name = &plan.name;
            return Err(Failure::usage(format!(
                "the open plan {name} holds changes from before, which `--rollback` would discard too"
            ))
            .hint(format!(
                "`--new` runs the command in a plan of its own; `--plan {name}` discards all of it"
            ))
            .status(2));
        }
        ui.say(&format!(
            "in the open plan {} (`--new` begins another)",
            plan.name
        ));
        Ok((plan, false))
    }

    fn make_plan(&self, context: &Context, ui: &Ui) -> Result<Plan, Failure> {
        let manager = &context.manager;
        let (directory, mut resources) = match self.resource.is_empty() {
            true => {
                let project = manager.project(&context.directory, self.all)?;
                (project.root, project.resources)
            }
            false => (context.directory.clone(), self.resource.clone()),
        };
        let keep = self.keep.iter();
        resources.extend(keep.map(|path| context::absolute(path.as_os_str()).into()));
        let progress = ui.progress("copying");
        let strategy = self.strategy.as_deref();
        let view = manager.create_plan(None, &directory, &resources, strategy, &progress)?;
        drop(progress);
        for one in &view.sandboxes {
            show::warnings(one, ui);
        }
        // What was taken is said where it is not what the user sees around.
        let taken: Vec<&Location> = view.sandboxes.iter().map(|one| &one.resource.at).collect();
        let here = context::absolute(OsStr::new("."));
        if self.resource.is_empty() && taken.iter().any(|at| at.as_path() != here) {
            let taken: Vec<String> = taken.iter().map(ToString::to_string).collect();
            let (name, taken) = (&view.plan.name, taken.join(", "));
            ui.say(&format!("in the new plan {name} of {taken}"));
        }
        Ok(view.plan)
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
    fn end(&self, status: i32, answer: &mut Value) -> Result<i32, Failure> {
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
        seen.iter().for_each(|found| summarize(found, ui));
        let asks = changed == Some(true) && !options.commit && !options.rollback && ui.asks();
        // What is released then is what this says.
        let mut shown = match &seen {
            Some(found) if asks => Some(context.manager.digest(found)?),
            _ => None,
        };
        answer["changes"] = json!(seen.map(|found| changes(&found)));
        if changed.is_some() {
            answer["scratch"] = self.show_scratch()?;
        }
        let choice = match (options.rollback, options.commit && status == 0) {
            (true, _) => AfterRun::Discard,
            (_, true) => AfterRun::Release,
            _ if asks => ask(context, ui, plan, &mut shown)?,
            _ => AfterRun::Keep,
        };
        match choice {
            AfterRun::Discard => {
                let progress = ui.progress("discarding");
                context.manager.rollback(plan, &progress)?;
                answer["outcome"] = json!("discarded");
                ui.say("discarded");
                if self.made {
                    context.manager.take_away_unused(plan)?;
                }
            }
            AfterRun::Release => {
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

    /// Names what was written beside the sandboxes.
    fn show_scratch(&self) -> Result<Value, Failure> {
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
            self.ui.say(&format!(
                "in the home directory, never committed: {} (`escrow diff --scratch {}`)",
                show::sum(&written),
                self.plan.name
            ));
            for line in show::largest(&written) {
                self.ui.say(&line);
            }
        }
        Ok(written.changes.iter().map(show::change).collect())
    }
}

/// Names the hosts that were denied.
fn show_denied(denied: &[DeniedConnection], ui: &Ui) {
    for DeniedConnection {
        host,
        port,
        reason,
        count,
    } in denied
    {
        let times = match count {
            1 => String::new(),
            count => format!(" ({count} times)"),
        };
        ui.say(&format!("denied: {host}:{port}{times}: {reason}"));
    }
}

/// Whether a plan holds changes; `None` where the caller may not know.
fn holds_changes(context: &Context, plan: &Plan) -> Result<Option<bool>, Failure> {
    match context.manager.quick_diff(plan) {
        Ok(found) => Ok(Some(found.resources.iter().any(|one| !one.diff.is_empty()))),
        Err(Error::Denied { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What was denied to those inside, or about the plan, since the command began, beside connections.
fn denied_questions(
    context: &Context,
    plan: &Plan,
    since: jiff::Timestamp,
) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    context.manager.each_logged(Some(plan), |one| {
        let operation = &one.operation;
        let asked = operation.action != "connect" && operation.started_at >= since;
        if asked && one.outcome == "denied" {
            all.push(json!({
                "action": operation.action,
                "target": operation.target,
                "principal": operation.principal,
                "reason": one.reason,
            }));
        }
        Ok(())
    })?;
    Ok(all)
}

/// Where a commit would contradict the originals; none where the plan is over, or the caller may not commit it.
fn conflicts(context: &Context, plan: &Plan) -> Value {
    let manager = &context.manager;
    let may = manager.check_access(manager.principal(), "commit", "*");
    let may = may.is_ok_and(|decision| decision.permitted);
    let preview = may.then(|| manager.preview(plan, CommitTerms::default()).ok());
    let preview = preview.flatten();
    let members = preview.into_iter().flat_map(|preview| preview.members);
    let all = members.flat_map(|member| {
        let one = |conflict| show::conflict(&member.resource, conflict);
        member.conflicts.iter().map(one).collect::<Vec<_>>()
    });
    all.collect()
}

/// Says what was changed, in sums.
pub(super) fn summarize(found: &PlanDiff, ui: &Ui) {
    for one in &found.resources {
        let name = paint(Tone::Strong, &one.view.resource.name);
        match one.diff.is_empty() {
            true => ui.say(&format!("{name}: no changes")),
            false => ui.say(&format!("{name}: {}", show::sum(&one.diff))),
        }
        let later = one.view.resource.runs_later(&one.diff);
        let dirs = WholeDirs::of(&one.diff);
        for line in show::later_lines(&one.view.resource.name, &later, &dirs, ui) {
            ui.say(&line);
        }
    }
}

/// Every change of a plan as JSON, each with its resource.
pub(super) fn changes(found: &PlanDiff) -> Vec<Value> {
    let mut all = Vec::new();
    for one in &found.resources {
        for change in &one.diff.changes {
            let mut change = show::change(change);
            change["resource"] = json!(one.view.resource.name);
            all.push(change);
        }
    }
    all
}

/// What becomes of the changes.
enum AfterRun {
    Release,
    Keep,
    Discard,
    /// Keep, and say that there was no choice.
    Leave,
}

/// Says what to type next.
pub(super) fn next(ui: &Ui, plan: &Plan) {
    let name = &plan.name;
    ui.say(&format!(
        "next: `escrow diff {name}`, then `escrow commit {name}` or `escrow rollback {name}`"
    ));
}

/// Asks on a terminal; elsewhere everything is kept. What was shown last is what may be released.
fn ask(
    context: &Context,
    ui: &Ui,
    plan: &Plan,
    shown: &mut Option<PlanDigest>,
) -> Result<AfterRun, Failure> {
    while let Some(answer) = ui.ask("[d]iff, [r]elease, [k]eep, discard [x]?") {
        let word = match answer {
            PromptAnswer::Word(word) => word,
            PromptAnswer::Interrupted => return Ok(AfterRun::Leave),
        };
        match word.as_str() {
            "d" | "diff" => {
                let found = context.manager.diff(plan, None)?;
                *shown = Some(context.manager.digest(&found)?);
                // Standard output is the command's.
                let aside = ui.aside();
                for one in &found.resources {
                    let mut out = aside.patch();
                    let contents = context.manager.contents(&found, &one.view)?;
                    diff::patch(&one.diff, &contents, &PatchOptions::default(), &mut out)?;
                    out.flush().map_err(Error::Output)?;
                }
            }
            "r" | "release" | "y" | "yes" => return Ok(AfterRun::Release),
            "x" | "discard" => return Ok(AfterRun::Discard),
            "k" | "keep" | "" => return Ok(AfterRun::Keep),
            _ => {}
        }
    }
    Ok(AfterRun::Keep)
}
