//! `escrow resource`: the real things, by name.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use escrow::manager::NewResource;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Name the real things that plans work on
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ResourceArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Add(Add),
    /// List the resources
    List,
    /// Show a resource
    Show(Named),
    /// Forget a resource that no open plan uses; the real thing stays as it is
    Remove(Named),
}

/// Name a resource
#[derive(Args)]
#[command(after_help = "Example:\n  escrow resource add app --type fs-directory --at ./app")]
struct Add {
    /// Its name
    name: String,
    /// What it is
    #[arg(long = "type", value_name = "TYPE", default_value = "fs-directory")]
    kind: String,
    /// Where it is
    #[arg(long, value_name = "LOCATION")]
    at: PathBuf,
    /// The resource it lies in
    #[arg(long, value_name = "RESOURCE")]
    parent: Option<String>,
    /// How its sandboxes are made, unless a command says otherwise
    #[arg(long, value_name = "STRATEGY")]
    strategy: Option<String>,
    /// Take a location that holds the whole machine or your whole home
    #[arg(long)]
    allow_root: bool,
}

/// A resource by its name
#[derive(Args)]
struct Named {
    /// Its name
    name: String,
}

impl ResourceArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            Verb::Add(args) => args.run(context, ui),
            Verb::List => list(context, ui),
            Verb::Show(args) => {
                let resource = context.manager.resource(&args.name)?;
                one(&resource, "", ui);
                Ok(())
            }
            Verb::Remove(args) => {
                let resource = context.manager.remove_resource(&args.name)?;
                one(&resource, "forgotten: ", ui);
                Ok(())
            }
        }
    }
}

impl Add {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let at = match self.at.as_os_str().is_empty() {
            true => self.at,
            false => context.directory.join(self.at),
        };
        let resource = context.manager.add_resource(&NewResource {
            name: &self.name,
            kind: &self.kind,
            at: &at,
            parent: self.parent.as_deref(),
            strategy: self.strategy.as_deref(),
            allow_root: self.allow_root,
        })?;
        one(&resource, "", ui);
        Ok(())
    }
}

fn one(resource: &escrow::store::Resource, before: &str, ui: &Ui) {
    if ui.is_json() {
        ui.document(&show::resource(resource));
        return;
    }
    ui.line(&format!(
        "{before}{}  {}, {}  {}",
        paint(Tone::Strong, &resource.name),
        resource.kind,
        resource.strategy,
        resource.at,
    ));
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let resources = context.manager.resources()?;
    if ui.is_json() {
        let resources: Vec<Value> = resources.iter().map(show::resource).collect();
        ui.document(&json!({"resources": resources}));
        return Ok(());
    }
    if resources.is_empty() {
        ui.say("there are no resources; `escrow resource add NAME --at DIR` names one");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = resources
        .iter()
        .map(|one| {
            vec![
                one.name.clone(),
                one.kind.clone(),
                one.strategy.clone(),
                one.at.to_string(),
            ]
        })
        .collect();
    ui.table(&["NAME", "TYPE", "STRATEGY", "AT"], &rows);
    Ok(())
}
