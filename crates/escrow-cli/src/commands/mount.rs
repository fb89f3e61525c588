//! `escrow mount`: runs a program that finds a sandbox at a directory.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use escrow::error::Error;
use escrow::manager::RunRequest;
use escrow::run::{Output, RunOutcome};
use escrow::{Plan, Resource};
use serde_json::json;

use super::{run_ask, summary};
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Run a program of your own that finds a sandbox at a directory
///
/// For as long as the program runs, and for it and what it starts, the directory holds the sandbox, whatever its strategy:
/// what is changed there is in the diff. Unlike in `escrow run`, nothing confines the program: everything else is the real
/// thing. No command may be inside the plan meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  mkdir look && escrow mount look -- code --wait look\n  escrow mount --plan try --resource app /mnt -- bash"
)]
pub(crate) struct MountArgs {
    /// The plan; the open one of this directory if left out
    #[arg(long, value_name = "PLAN")]
    plan: Option<String>,
    /// The resource, by name or path; can be left out where the plan has one
    #[arg(long, short, value_name = "RESOURCE")]
    resource: Option<OsString>,
    /// Where: an empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl MountArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let resource = resource(context, &plan, self.resource.as_ref())?;
        let request = RunRequest {
            output: output(ui),
            ..RunRequest::new(&self.command, &context.directory)
        };
        let manager = &context.manager;
        let ended = manager.run_mounted(&plan, &resource, &self.directory, &request);
        end(context, ui, &plan, ended)
    }
}

/// Standard output is for the document, if there is one.
pub(super) fn output(ui: &Ui) -> Output {
    match ui.is_json() {
        true => Output::Error,
        false => Output::Own,
    }
}

/// The resource that was typed, or the only one of the plan.
pub(super) fn resource(
    context: &Context,
    plan: &Plan,
    typed: Option<&OsString>,
) -> Result<Resource, Failure> {
    if let Some(typed) = typed {
        return context.resource(plan, typed);
    }
    let mut all = context.manager.view(plan.clone())?.sandboxes;
    match (all.pop(), all.is_empty()) {
        (Some(only), true) => Ok(only.resource),
        _ => Err(Failure::usage(format!(
            "the plan {} has not one resource: name the one that is meant",
            plan.name
        ))
        .hint(format!("`escrow plan show {}` lists them", plan.name))
        .status(2)),
    }
}

/// Says what was changed, and ends as the program did.
pub(super) fn end(
    context: &Context,
    ui: &Ui,
    plan: &Plan,
    ended: escrow::Result<RunOutcome>,
) -> Result<(), Failure> {
    let status = ended.map(|ended| ended.exit.status()).map_err(|error| {
        let status = match &error {
            Error::Run(error) => error.command_status(),
            _ => None,
        };
        let failure = Failure::from(error);
        match status {
            Some(status) => failure.status(status),
            None => failure,
        }
    })?;
    let found = match context.manager.diff_after_run(plan) {
        // Who may run a program need not be permitted to see what it did.
        Err(error @ Error::Denied { .. }) => {
            ui.say(&format!("cannot show the changes: {error}"));
            None
        }
        found => Some(found?),
    };
    if let Some(found) = &found {
        summary::summarize(context, found, None, ui);
        if found.resources.iter().any(|one| !one.diff.is_empty()) {
            run_ask::next(ui, plan);
        }
    }
    if ui.is_json() {
        ui.document(json!({
            "plan": plan.name,
            "plan_id": plan.id,
            "exit_status": status,
            "changes": found.as_ref().map(summary::changes),
        }));
    }
    match status {
        0 => Ok(()),
        status => Err(Failure::ended(status)),
    }
}
