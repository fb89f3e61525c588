//! `escrow completions`: scripts for shells, which ask this program for what can be typed, the names that exist among it.

use clap::{Arg, Args, Command, CommandFactory};
use clap_complete::env::{EnvCompleter, Shells};
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate, Shell};
use escrow::model::PlanState;
use escrow::{Manager, Plan};
use serde_json::json;

use super::{Cli, GlobalArgs};
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// By which a script says that it asks.
const ASKS: &str = "ESCROW_COMPLETE";

/// Print a completion script for a shell
///
/// It completes the names of plans, checkpoints, resources and strategies too, as they are when they are typed.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  escrow completions bash > ~/.local/share/bash-completion/completions/escrow"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    pub(crate) fn run(self, ui: &Ui) -> Result<(), Failure> {
        let (name, mut script) = (self.shell.to_string(), Vec::new());
        let shells = Shells::builtins();
        let completer: Option<&dyn EnvCompleter> = shells.completer(&name);
        let completer = completer
            .ok_or_else(|| Failure::usage(format!("there are no completions for '{name}'")))?;
        let written = completer.write_registration(ASKS, "escrow", "escrow", "escrow", &mut script);
        written.map_err(|error| Failure::failed(format!("cannot make the script: {error}")))?;
        if ui.is_json() {
            let script = String::from_utf8_lossy(&script);
            ui.document(json!({"shell": name, "script": script}));
            return Ok(());
        }
        ui.bytes(&script);
        Ok(())
    }
}

/// Answers a script, if one asks.
pub(crate) fn complete(typed: &[std::ffi::OsString]) -> bool {
    let asked = CompleteEnv::with_factory(|| with_names(Cli::command()))
        .var(ASKS)
        .try_complete(typed, context::here().as_deref());
    asked.unwrap_or(true)
}

/// The grammar with the names that there are.
fn with_names(command: Command) -> Command {
    let verb = command.get_name().to_owned();
    let one = |arg: Arg| {
        let find: fn(&Manager) -> escrow::Result<Vec<String>> =
            match (&*verb, arg.get_id().as_str()) {
                (_, "plan") | ("diff", "words") => plans,
                ("restore" | "show" | "delete", "words") => plans_and_checkpoints,
                ("fork", "at") | ("diff", "since" | "until") => checkpoints,
                ("path" | "read" | "write" | "sql", "words") => plans_and_resources,
                (_, "resource" | "parent") => resources,
                (_, "strategy") | ("check", "name") => strategies,
                _ => return arg,
            };
        arg.add(ArgValueCandidates::new(move || candidates(find)))
    };
    command.mut_args(one).mut_subcommands(with_names)
}

/// What was found, or nothing: a shell has no use for an error.
fn candidates(find: fn(&Manager) -> escrow::Result<Vec<String>>) -> Vec<CompletionCandidate> {
    let context = Context::open(&GlobalArgs::default(), true).ok();
    let found = context.and_then(|context| find(&context.manager).ok());
    let mut found = found.unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(CompletionCandidate::new).collect()
}

fn open(manager: &Manager) -> escrow::Result<Vec<Plan>> {
    let plans = manager.plans()?.into_iter().map(|view| view.plan);
    Ok(plans.filter(|plan| plan.state == PlanState::Open).collect())
}

/// Every plan that is not gone: one that was committed can be undone.
fn plans(manager: &Manager) -> escrow::Result<Vec<String>> {
    let plans = manager.plans()?.into_iter().map(|view| view.plan);
    let plans = plans.filter(|plan| plan.state != PlanState::CleanedUp);
    Ok(plans.map(|plan| plan.name).collect())
}

fn checkpoints(manager: &Manager) -> escrow::Result<Vec<String>> {
    let mut names = Vec::new();
    for plan in open(manager)? {
        for one in manager.checkpoints(&plan)? {
            names.push(one.id.to_string());
            names.extend(one.label);
        }
    }
    Ok(names)
}

fn resources(manager: &Manager) -> escrow::Result<Vec<String>> {
    let known = manager.resources()?.into_iter().map(|one| one.name);
    Ok(known.collect())
}

fn strategies(manager: &Manager) -> escrow::Result<Vec<String>> {
    let known = manager.registry().registrations();
    let known = known.map(|one| one.strategy().name().to_owned());
    Ok(known.chain(["auto".to_owned()]).collect())
}

fn plans_and_checkpoints(manager: &Manager) -> escrow::Result<Vec<String>> {
    Ok([plans(manager)?, checkpoints(manager)?].concat())
}

fn plans_and_resources(manager: &Manager) -> escrow::Result<Vec<String>> {
    Ok([plans(manager)?, resources(manager)?].concat())
}
