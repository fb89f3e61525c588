//! `escrow resource`: adds, lists, shows and removes named resources.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use escrow::Resource;
use escrow::config::ConfigResource;
use escrow::manager::NewResource;
use escrow::model::resource::is_url;
use escrow::model::text::Location;
use escrow::strategy::registry::AUTO;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Name the real things that plans work on
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ResourceArgs {
    #[command(subcommand)]
    verb: ResourceVerb,
}

#[derive(Debug, Subcommand)]
enum ResourceVerb {
    Add(ResourceAddArgs),
    /// List the resources that have a name or are in use by an open plan, those of the configuration among them
    List,
    /// Show a resource
    Show(ResourceNameArgs),
    /// Forget a resource that no open plan uses; the real thing stays as it is
    Remove(ResourceNameArgs),
}

/// Name a resource
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  escrow resource add app --at ./app\n  \
        escrow resource add settings --type fs-file --at ./app/settings.toml")]
struct ResourceAddArgs {
    /// Its name
    name: String,
    /// What it is; if left out, what stands there decides
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Where it is: a path, or the URL of a PostgreSQL database (postgres://…)
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
#[derive(Debug, Args)]
struct ResourceNameArgs {
    /// Its name
    name: String,
}

impl ResourceArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            ResourceVerb::Add(args) => args.run(context, ui),
            ResourceVerb::List => list(context, ui),
            ResourceVerb::Show(args) => {
                match context.manager.resource(&args.name) {
                    Ok(resource) => one(&known(&resource), "", ui),
                    Err(error) => match context.manager.settings().resource(&args.name) {
                        Some(found) => one(&declared(context, found), "", ui),
                        None => return Err(error.into()),
                    },
                }
                Ok(())
            }
            ResourceVerb::Remove(args) => {
                let resource = context.manager.remove_resource(&args.name)?;
                one(&known(&resource), "removed: ", ui);
                Ok(())
            }
        }
    }
}

impl ResourceAddArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let at = match self.at.as_os_str().is_empty() {
            true => self.at,
            false if is_url(self.at.as_os_str()) => self.at,
            false => context.directory.join(self.at),
        };
        let resource = context.manager.add_resource(&NewResource {
            name: &self.name,
            kind: self.kind.as_deref(),
            at: &at,
            parent: self.parent.as_deref(),
            strategy: self.strategy.as_deref(),
            allow_root: self.allow_root,
        })?;
        one(&known(&resource), "", ui);
        Ok(())
    }
}

/// A resource, for programs, and for people: name, type, strategy and place.
type ResourceEntry = (Value, [String; 4]);

fn known(resource: &Resource) -> ResourceEntry {
    let Resource { name, kind, .. } = resource.clone();
    let row = [
        name,
        kind,
        resource.strategy.clone(),
        resource.at.to_string(),
    ];
    (show::resource(resource), row)
}

/// One of the configuration that was never used.
fn declared(context: &Context, resource: &ConfigResource) -> ResourceEntry {
    let kind = context.manager.type_of(resource);
    let row = [
        resource.name.clone(),
        kind.unwrap_or("unknown").to_owned(),
        resource.strategy.as_deref().unwrap_or(AUTO).to_owned(),
        Location::from(resource.at.as_path()).to_string(),
    ];
    (show::declared(resource, kind), row)
}

fn one((document, [name, kind, strategy, at]): &ResourceEntry, before: &str, ui: &Ui) {
    let name = paint(Tone::Strong, name);
    match ui.is_json() {
        true => ui.document(document.clone()),
        false => ui.line(&format!("{before}{name}  {kind}, {strategy}  {at}")),
    }
}

fn list(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let mut entries: Vec<ResourceEntry> = context
        .manager
        .resources_in_use()?
        .iter()
        .map(known)
        .collect();
    for resource in &context.manager.settings().resources {
        if entries.iter().all(|(_, [name, ..])| *name != resource.name) {
            entries.push(declared(context, resource));
        }
    }
    if ui.is_json() {
        let resources: Vec<Value> = entries.into_iter().map(|(document, _)| document).collect();
        ui.document(json!({"resources": resources}));
        return Ok(());
    }
    if entries.is_empty() {
        ui.say("there are no resources; `escrow resource add NAME --at PATH` names one");
        return Ok(());
    }
    let rows = entries.into_iter().map(|(_, row)| row);
    ui.table(["NAME", "TYPE", "STRATEGY", "AT"], rows);
    Ok(())
}
