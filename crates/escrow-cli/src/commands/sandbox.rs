//! `escrow sandbox`: creates and lists sandboxes.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Make and list sandboxes
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SandboxArgs {
    #[command(subcommand)]
    verb: SandboxVerb,
}

#[derive(Debug, Subcommand)]
enum SandboxVerb {
    Create(SandboxCreateArgs),
    List(SandboxListArgs),
}

/// Give a plan a sandbox of a resource; if it has one, that one is meant
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow sandbox create try ./app --strategy filesystem_copy")]
struct SandboxCreateArgs {
    /// Name, id or prefix of the plan
    plan: String,
    /// A resource by its name, or a directory or file by its path
    resource: OsString,
    /// How it is made; see `escrow doctor`
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
}

/// List the sandboxes of all open plans, or of one plan
#[derive(Debug, Args)]
struct SandboxListArgs {
    /// Name, id or prefix of a plan
    plan: Option<String>,
}

impl SandboxArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            SandboxVerb::Create(args) => args.run(context, ui),
            SandboxVerb::List(args) => args.run(context, ui),
        }
    }
}

impl SandboxCreateArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(Some(&self.plan), ui)?;
        let resource = context
            .manager
            .take_resource(&self.resource, &context.directory)?;
        let progress = ui.progress("copying");
        let strategy = self.strategy.as_deref();
        let made = context
            .manager
            .create_sandbox(&plan, &resource, strategy, &progress)?;
        drop(progress);
        if ui.is_json() {
            let mut document = show::sandbox(context, &made.view)?;
            let answer = context.manager.sandbox_answer(&made)?;
            let path = answer.sandbox_path.as_ref().map(show::location);
            if let (Some(all), Value::Object(fields)) = (document.as_object_mut(), json!(answer)) {
                all.extend(fields);
            }
            document["sandbox_path"] = json!(path);
            document["plan"] = json!(plan.name);
            ui.document(document);
            return Ok(());
        }
        let sandbox = &made.view.sandbox;
        ui.news(&format!(
            "{} {} sandbox of {} by {}: {}",
            plan.name,
            if made.created {
                "has a new"
            } else {
                "already has a"
            },
            paint(Tone::Strong, &resource.name),
            sandbox.reference.strategy_name,
            sandbox.message,
        ));
        if !made.created && strategy.is_some_and(|name| name != sandbox.requested) {
            ui.warn(
                "the sandbox that is there was made with another strategy than the one asked for",
            );
        }
        show::warnings(&made.view, ui);
        Ok(())
    }
}

impl SandboxListArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let views = match self.plan.as_deref() {
            Some(plan) => vec![context.manager.view(context.plan(Some(plan), ui)?)?],
            None => context.manager.status()?.plans,
        };
        let all = || {
            views
                .iter()
                .flat_map(|view| view.sandboxes.iter().map(move |one| (view, one)))
        };
        if ui.is_json() {
            let sandboxes: Result<Vec<Value>, Failure> = all()
                .map(|(view, one)| {
                    let mut document = show::sandbox(context, one)?;
                    document["plan"] = json!(view.plan.name);
                    Ok(document)
                })
                .collect();
            ui.document(json!({"sandboxes": sandboxes?}));
            return Ok(());
        }
        if all().next().is_none() {
            ui.say("there are no sandboxes");
            return Ok(());
        }
        let rows = all().map(|(view, one)| {
            [
                view.plan.name.clone(),
                one.resource.name.clone(),
                one.sandbox.reference.strategy_name.clone(),
                one.sandbox.state.to_string(),
                one.sandbox.id.to_string(),
            ]
        });
        ui.table(["PLAN", "RESOURCE", "STRATEGY", "STATE", "ID"], rows);
        Ok(())
    }
}
