//! `escrow run`: runs a command inside the sandboxes of a plan.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use escrow::Plan;
use escrow::manager::{CommitRequest, RunRequest};
use escrow::model::{Expected, PlanDigest};

use super::show;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::{PromptAnswer, Tone, Ui, paint};

/// Run a command inside a plan's sandboxes
///
/// The command sees its files at their usual paths and changes nothing real: every sandbox appears
/// at the path of its original, your home directory gets a layer that is thrown away, /tmp is
/// private, and everything else is read-only. No root is needed. When it has ended, a summary says
/// what it changed.
///
/// Without a plan, one is made for the current directory. A second command of the same plan joins the
/// first one.
#[derive(Debug, Args)]
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
    network: Option<NetworkArg>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NetworkArg {
    /// No network at all
    None,
    /// The network of this machine
    Host,
}

impl RunArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        // What is wrong with what was typed is said before anything is made.
        let environment = self.environment()?;
        let plan = match &self.plan {
            Some(typed) => context.plan(Some(typed))?,
            None => self.make_plan(context, ui)?,
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
            self.keep_or_drop(context, ui, &plan)?;
            return Err(error.into());
        }
        let request = RunRequest {
            environment,
            scratch: match (self.scratch, self.no_scratch) {
                (false, false) => None,
                (scratch, _) => Some(scratch),
            },
            writable: self.writable.clone(),
            network: self.network.map(|network| network == NetworkArg::Host),
            ..RunRequest::new(&self.command, &context.directory)
        };
        let ended = match self.unconfined {
            true => context.manager.run_unconfined(&plan, &request),
            false => context.manager.run(&plan, &request),
        };
        let ended = match ended {
            Ok(ended) => Ok(ended.status()),
            Err(escrow::error::Error::Run(error)) => {
                let status = error.command_status().unwrap_or(125);
                Err(Failure::from(escrow::error::Error::Run(error)).status(status))
            }
            Err(error) => Err(error.into()),
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

    /// Takes a plan away that was made for a command which never began; whatever a plan holds is kept.
    fn keep_or_drop(&self, context: &Context, ui: &Ui, plan: &Plan) -> Result<(), Failure> {
        let changed = match context.manager.quick_diff(plan) {
            Ok(found) => found.resources.iter().any(|one| !one.diff.is_empty()),
            // Why the command could not be run is what there is to report.
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

    fn make_plan(&self, context: &Context, ui: &Ui) -> Result<Plan, Failure> {
        let here = vec![OsString::from(".")];
        let resources = match self.resource.is_empty() {
            true => &here,
            false => &self.resource,
        };
        let progress = ui.progress("copying");
        let view = context.manager.create_plan(
            None,
            &context.directory,
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

    /// The variables that were typed.
    fn environment(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let parse = |typed: &OsString| {
            let mut words = typed.as_bytes().splitn(2, |byte| *byte == b'=');
            match (words.next(), words.next()) {
                (Some(name), Some(value)) if !name.is_empty() => Ok((
                    OsStr::from_bytes(name).into(),
                    OsStr::from_bytes(value).into(),
                )),
                _ => {
                    let typed = typed.to_string_lossy();
                    Err(Failure::usage(format!("'{typed}' is not NAME=VALUE")).status(2))
                }
            }
        };
        self.env.iter().map(parse).collect()
    }

    /// What is done when the command has ended; gives the status to end with.
    fn end(&self, context: &Context, ui: &Ui, plan: &Plan, status: i32) -> Result<i32, Failure> {
        // Who may run a command need not be permitted to see what it did, and did not ask for it.
        let seen = match context.manager.quick_diff(plan) {
            Err(error @ escrow::error::Error::Denied { .. }) => {
                ui.say(&format!("cannot show the changes: {error}"));
                None
            }
            // The process that waited for the command was quicker.
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
            Some(found) if asks => Some(context.manager.digest(found)?),
            _ => None,
        };
        drop(seen);
        if changed.is_some() {
            self.show_scratch(context, ui, plan)?;
        }
        let choice = match (self.rollback, self.commit && status == 0) {
            (true, _) => AfterRun::Discard,
            (_, true) => AfterRun::Release,
            _ if asks => ask(context, ui, plan, &mut shown)?,
            _ => AfterRun::Keep,
        };
        match choice {
            AfterRun::Discard => {
                let progress = ui.progress("discarding");
                context.manager.rollback(plan, &progress)?;
                ui.say("discarded");
            }
            AfterRun::Release => {
                let expected = shown.map(Expected::Shown);
                let request = CommitRequest {
                    expected: expected.as_ref(),
                    ..CommitRequest::default()
                };
                let progress = ui.progress("committing");
                let committed = context.manager.commit(plan, &request, &progress);
                committed.map_err(|error| Failure::from(error).about("committed"))?;
                let name = &plan.name;
                ui.say(&format!("committed; undo with `escrow undo {name}`"));
            }
            AfterRun::Leave => {
                next(ui, plan);
                return Ok(128 + signal_hook::consts::SIGINT);
            }
            AfterRun::Keep if changed == Some(true) => next(ui, plan),
            // Nothing was done in a plan that was made for this command alone.
            AfterRun::Keep if self.plan.is_none() => {
                if !context.manager.take_away_unused(plan)? {
                    next(ui, plan);
                }
            }
            AfterRun::Keep => {}
        }
        Ok(status)
    }

    /// Names what was written beside the sandboxes.
    fn show_scratch(
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
enum AfterRun {
    Release,
    Keep,
    Discard,
    /// Keep, and say that there was no choice.
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
                    let mut out = aside.content();
                    let contents = context.manager.contents(&found, &one.view)?;
                    escrow::diff::patch(&one.diff, &contents, &mut out)?;
                    out.flush().map_err(escrow::error::Error::Output)?;
                }
            }
            "r" | "release" => return Ok(AfterRun::Release),
            "x" | "discard" => return Ok(AfterRun::Discard),
            "k" | "keep" | "" => return Ok(AfterRun::Keep),
            _ => {}
        }
    }
    Ok(AfterRun::Keep)
}
