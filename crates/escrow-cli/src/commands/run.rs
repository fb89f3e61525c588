//! `escrow run`: any command inside the sandboxes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use escrow::commit::Terms;
use escrow::manager::{CommitRequest, RunRequest};
use escrow::model::{Expected, PlanDigest};
use escrow::store::Plan;
use escrow::strategy::OnConflict;

use super::validate::validate;
use super::{ask, show};
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{Answer, Tone, Ui, paint};

/// Run a command inside a plan's sandboxes
///
/// The command sees its files at their usual paths and changes nothing real: every sandbox appears
/// at the path of its original, your home directory gets a layer that is thrown away, /tmp is
/// private, and everything else is read-only. No root is needed. When it has ended, a summary says
/// what it changed.
///
/// Without a plan, one is made for the current directory. A second command of the same plan joins the
/// first one.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  escrow run -- make test\n  escrow run --commit -- ./migrate.sh\n  \
        escrow run --plan try -- bash"
)]
pub(crate) struct RunArgs {
    /// The plan to run in; a new one for the current directory if left out
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
    /// A resource of the new plan, by name or path; the current directory if left out
    #[arg(long, short, value_name = "RESOURCE", conflicts_with = "plan")]
    resource: Vec<OsString>,
    /// How the sandboxes of the new plan are made
    #[arg(long, value_name = "NAME", conflicts_with = "plan")]
    strategy: Option<String>,
    /// Release the changes if the command succeeds
    #[arg(long, conflicts_with = "rollback")]
    commit: bool,
    /// Discard the changes when the command has ended
    #[arg(long)]
    rollback: bool,
    /// Let the command write this path for real; can be repeated
    #[arg(long, value_name = "PATH")]
    writable: Vec<PathBuf>,
    /// Whether the command reaches the network: it does, unless told otherwise
    #[arg(long, value_enum, value_name = "WHICH")]
    network: Option<Network>,
    /// Leave the home directory read-only
    #[arg(long, overrides_with = "scratch")]
    no_scratch: bool,
    /// Lay a layer over the home directory that is thrown away, whatever the configuration says
    #[arg(long, overrides_with = "no_scratch")]
    scratch: bool,
    /// Run in the sandbox's own directory, without protection: where namespaces are forbidden
    #[arg(long, conflicts_with_all = ["writable", "no_scratch", "scratch", "network"])]
    unconfined: bool,
    /// Set a variable for the command; can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<OsString>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    /// No network at all
    None,
    /// The network of this machine
    Host,
}

impl RunArgs {
    pub(crate) fn run(self, context: &mut Context, ui: &Ui) -> Result<(), Failure> {
        // What is wrong with what was typed is said before anything is made.
        self.environment(&BTreeMap::new())?;
        let plan = match &self.plan {
            Some(typed) => context.plan(Some(typed))?,
            None => self.make_plan(context, ui)?,
        };
        let ready = context.manager.run_defaults(&plan).and_then(|usual| {
            // What would stop the release, or is left out of it, is said before anything is done.
            if self.commit {
                context.manager.validations(&plan)?;
            }
            Ok(usual.env)
        });
        context.tell_notices(ui);
        let environment = match ready {
            Ok(usual) => self.environment(&usual)?,
            Err(error) => {
                self.keep_or_drop(context, ui, &plan)?;
                return Err(error.into());
            }
        };
        let ended = match self.unconfined {
            true => self.unconfined(context, &plan, environment),
            false => self.confined(context, &plan, environment, None),
        };
        let status = match ended {
            Ok(status) => self.end(context, ui, &plan, status)?,
            Err(failure) => {
                self.keep_or_drop(context, ui, &plan)?;
                return Err(failure);
            }
        };
        match status {
            0 => Ok(()),
            status => Err(Failure::ended(status)),
        }
    }

    /// Runs a command inside that judges what is there: what it says is talk, not data.
    pub(super) fn judge(
        context: &Context,
        plan: &Plan,
        command: Vec<OsString>,
    ) -> Result<i32, Failure> {
        let args = Self {
            plan: Some(plan.name.clone()),
            resource: Vec::new(),
            strategy: None,
            commit: false,
            rollback: false,
            writable: Vec::new(),
            network: None,
            no_scratch: false,
            scratch: false,
            unconfined: false,
            env: Vec::new(),
            command,
        };
        let usual = context.manager.run_defaults(plan)?.env;
        let environment = args.environment(&usual)?;
        // Where the plan was made, wherever this was typed: what is looked at is there.
        args.confined(context, plan, environment, Some(plan.directory.as_path()))
    }

    /// Runs the command inside; where it is a validation, in a directory of its own, and what it says is talk.
    fn confined(
        &self,
        context: &Context,
        plan: &Plan,
        environment: Vec<(OsString, OsString)>,
        validates: Option<&Path>,
    ) -> Result<i32, Failure> {
        let signals = context::Signals::watch()
            .map_err(|error| Failure::failed(format!("cannot watch for signals: {error}")))?;
        let mut door = context::door();
        context::shield_input(&mut door)
            .map_err(|error| Failure::failed(format!("cannot pass standard input on: {error}")))?;
        if validates.is_some() {
            context::talk_only(&mut door)
                .map_err(|error| Failure::failed(format!("cannot pass output on: {error}")))?;
        }
        let (terminal, front) = context::terminal();
        let supervisor = ask::Supervisor {
            home: context.manager.home().to_owned(),
            // Only what the user named; what was found is found again, and counts no more than here.
            config: context.config.clone(),
            plan: plan.clone(),
        };
        let ended = context.manager.run(
            plan,
            RunRequest {
                command: self.command.clone(),
                environment,
                directory: validates.unwrap_or(&context.directory),
                home: context::user_home().as_deref(),
                scratch: match (self.scratch, self.no_scratch) {
                    (false, false) => None,
                    (scratch, _) => Some(scratch),
                },
                writable: self.writable.clone(),
                network: self.network.map(|network| network == Network::Host),
                files: context::files_before(),
                terminal,
                front,
                door: &mut door,
                signals: &signals.0,
                serve: Box::new(move |stream| supervisor.answer(stream)),
            },
        );
        match ended {
            Ok(ended) => Ok(ended.status()),
            Err(escrow::error::Error::Run(error)) => {
                let status = error.command_status().unwrap_or(125);
                Err(Failure::from(escrow::error::Error::Run(error)).status(status))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a plan away that was made for a command which never began; whatever a plan holds is kept.
    fn keep_or_drop(&self, context: &Context, ui: &Ui, plan: &Plan) -> Result<(), Failure> {
        let changed = match context.manager.glance(plan) {
            Ok(found) => found.resources.iter().any(|one| !one.diff.is_empty()),
            // Why the command could not be run is what there is to tell.
            Err(escrow::error::Error::Denied { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        match changed {
            true => next(ui, plan),
            false if self.plan.is_none() => drop(context.manager.take_away_unused(plan)?),
            false => {}
        }
        Ok(())
    }

    fn make_plan(&self, context: &mut Context, ui: &Ui) -> Result<Plan, Failure> {
        let here = vec![OsString::from(".")];
        let resources = match self.resource.is_empty() {
            true => &here,
            false => &self.resource,
        };
        let progress = ui.progress("copying");
        let directory = context.directory.clone();
        let view = context.manager.create_plan(
            None,
            &directory,
            resources,
            self.strategy.as_deref(),
            &progress,
        )?;
        drop(progress);
        for one in &view.sandboxes {
            show::warnings(one, ui);
        }
        Ok(view.plan)
    }

    /// The environment of the command: ours, less what leads out, what the configuration sets, and
    /// what was typed.
    fn environment(
        &self,
        usual: &BTreeMap<String, String>,
    ) -> Result<Vec<(OsString, OsString)>, Failure> {
        let mut environment = context::environment();
        // Sockets of helpers that act for the user outside.
        let leads_out = ["SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "ESCROW_HOME"];
        environment.retain(|(name, _)| !leads_out.iter().any(|known| name == known));
        for (name, value) in usual {
            environment.retain(|(known, _)| known != name.as_str());
            environment.push((name.into(), value.into()));
        }
        for typed in &self.env {
            let bytes = typed.as_encoded_bytes();
            let Some(at) = bytes
                .iter()
                .position(|byte| *byte == b'=')
                .filter(|at| *at > 0)
            else {
                let typed = typed.to_string_lossy();
                return Err(Failure::usage(format!("'{typed}' is not NAME=VALUE")).status(2));
            };
            let (name, value) = context::split(typed, at);
            environment.retain(|(known, _)| *known != name);
            environment.push((name, value));
        }
        Ok(environment)
    }

    /// Runs the command in the directory of the sandbox that stands for this one.
    fn unconfined(
        &self,
        context: &Context,
        plan: &Plan,
        environment: Vec<(OsString, OsString)>,
    ) -> Result<i32, Failure> {
        let view = context.manager.view(plan.clone())?;
        let Some(first) = view.sandboxes.first() else {
            return Err(Failure::failed("the plan has no sandbox to run in"));
        };
        let (manager, resource) = (&context.manager, &first.resource);
        let ran = manager.run_unconfined(plan, resource, &self.command, |directory| {
            context::open_as_before()?;
            let ended = std::process::Command::new(&self.command[0])
                .args(&self.command[1..])
                .env_clear()
                .envs(environment)
                .env("ESCROW_PLAN", &plan.name)
                .current_dir(directory)
                .status();
            context::open_many();
            ended
        })?;
        match ran {
            Ok(status) => Ok(context::shell_status(status)),
            Err(error) => {
                // A directory of the search path that cannot be read is not the program.
                let status = match context::is_program(&self.command[0]) {
                    true => 126,
                    false => 127,
                };
                let command = self.command[0].to_string_lossy();
                Err(Failure::failed(format!("cannot run '{command}': {error}")).status(status))
            }
        }
    }

    /// What is done when the command has ended; gives the status to end with.
    fn end(&self, context: &Context, ui: &Ui, plan: &Plan, status: i32) -> Result<i32, Failure> {
        // Who may run a command need not be permitted to see what it did, and did not ask for it.
        let seen = match context.manager.glance(plan) {
            Err(error @ escrow::error::Error::Denied { .. }) => {
                ui.say(&format!("what was changed is not shown: {error}"));
                None
            }
            // Whoever waited for the command was quicker.
            Err(escrow::error::Error::PlanOver { state, .. }) if self.plan.is_some() => {
                ui.say(&format!("the plan {} was {state} meanwhile", plan.name));
                return Ok(status);
            }
            found => Some(found?),
        };
        let changed = seen.as_ref().map(|found| {
            let all = &found.resources;
            all.iter().any(|one| !one.diff.is_empty())
        });
        for one in seen.iter().flat_map(|found| &found.resources) {
            let name = paint(Tone::Strong, &one.view.resource.name);
            match one.diff.is_empty() {
                true => ui.say(&format!("{name}: no changes")),
                false => ui.say(&format!("{name}: {}", show::sum(&one.diff))),
            }
            for later in one.view.resource.runs_later(&one.diff) {
                ui.say(&show::later_line(&one.view.resource.name, &later));
            }
        }
        let asks = changed == Some(true) && !self.commit && !self.rollback && ui.asks();
        // What is released then is what this says.
        let mut shown = match &seen {
            Some(found) if asks => context.manager.digest(found)?,
            _ => None,
        };
        drop(seen);
        if changed.is_some() {
            self.tell_scratch(context, ui, plan)?;
        }
        let choice = match (self.rollback, self.commit && status == 0) {
            (true, _) => Choice::Discard,
            (_, true) => Choice::Release,
            _ if asks => ask(context, ui, plan, &mut shown)?,
            _ => Choice::Keep,
        };
        match choice {
            Choice::Discard => {
                let progress = ui.progress("discarding");
                context.manager.rollback(plan, &progress)?;
                ui.say("discarded");
            }
            Choice::Release => {
                let expected = shown.map(Expected::Shown);
                let request = CommitRequest {
                    message: None,
                    terms: Terms {
                        on_conflict: OnConflict::Abort,
                        strict: false,
                        allow_partial: false,
                    },
                    expected: expected.as_ref(),
                };
                let _validation = validate(context, plan, None, ui)?;
                let progress = ui.progress("committing");
                context.manager.commit(plan, &request, &progress)?;
                let name = &plan.name;
                ui.say(&format!("committed; `escrow undo {name}` takes it back"));
            }
            Choice::Leave => {
                next(ui, plan);
                return Ok(128 + signal_hook::consts::SIGINT);
            }
            Choice::Keep if changed == Some(true) => next(ui, plan),
            // Nothing was done in a plan that was made for this command alone.
            Choice::Keep if self.plan.is_none() => {
                if !context.manager.take_away_unused(plan)? {
                    next(ui, plan);
                }
            }
            Choice::Keep => {}
        }
        Ok(status)
    }

    /// Names what was written beside the sandboxes.
    fn tell_scratch(
        &self,
        context: &Context,
        ui: &Ui,
        plan: &Plan,
    ) -> Result<(), escrow::error::Error> {
        let Some(home) = context::user_home().filter(|_| !self.no_scratch && !self.unconfined)
        else {
            return Ok(());
        };
        let written = context.manager.scratch_diff(plan, &home)?;
        if !written.is_empty() {
            ui.say(&format!(
                "in the home directory, never committed: {} (`escrow diff --scratch {}`)",
                show::sum(&written),
                plan.name
            ));
        }
        Ok(())
    }
}

/// What becomes of the changes.
enum Choice {
    Release,
    Keep,
    Discard,
    /// Keep, and say that nobody chose.
    Leave,
}

/// Says what to type next.
fn next(ui: &Ui, plan: &Plan) {
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
) -> Result<Choice, Failure> {
    while let Some(answer) = ui.ask("[d]iff, [r]elease, [k]eep, discard [x]?") {
        let word = match answer {
            Answer::Word(word) => word,
            Answer::Interrupted => return Ok(Choice::Leave),
        };
        match word.as_str() {
            "d" | "diff" => {
                let found = context.manager.diff(plan, None)?;
                *shown = context.manager.digest(&found)?;
                // Standard output is the command's.
                let aside = ui.aside();
                for one in &found.resources {
                    let mut out = aside.content();
                    let contents = context.manager.contents(&one.view)?;
                    escrow::diff::patch(&one.diff, &contents, &mut out)?;
                    out.flush().map_err(escrow::error::Error::Output)?;
                }
            }
            "r" | "release" => return Ok(Choice::Release),
            "x" | "discard" => return Ok(Choice::Discard),
            "k" | "keep" | "" => return Ok(Choice::Keep),
            _ => {}
        }
    }
    Ok(Choice::Keep)
}
