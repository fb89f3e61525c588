//! `escrow type`: lists resource types and validates configuration files.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use escrow::config::Settings;
use escrow::error::Error;
use escrow::model::ResourceType;
use escrow::model::text::Location;
use escrow::strategy::Registry;
use serde_json::{Value, json};

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// List the types of resources, and check a configuration
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct TypeArgs {
    #[command(subcommand)]
    verb: TypeVerb,
}

#[derive(Debug, Subcommand)]
enum TypeVerb {
    /// List the types, those of the configuration among them
    List,
    /// Show a type
    Show(TypeNameArgs),
    Validate(TypeValidateArgs),
    /// Print the JSON Schema of `escrow.yaml`, with the names that the configuration declares
    Schema,
}

/// A type by its name
#[derive(Debug, Args)]
struct TypeNameArgs {
    /// Its name
    name: String,
}

/// Check a configuration, or a file of types: every key, every name and the policy in it
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow type validate escrow.yaml")]
struct TypeValidateArgs {
    /// The file
    file: PathBuf,
}

impl TypeArgs {
    /// Answers what is about a file only, whatever configuration counts here.
    pub(crate) fn validate(&self, ui: &Ui) -> Option<Result<(), Failure>> {
        match &self.verb {
            TypeVerb::Validate(args) => Some(args.run(ui)),
            TypeVerb::List | TypeVerb::Show(_) | TypeVerb::Schema => None,
        }
    }

    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            TypeVerb::List => {
                list(context, ui);
                Ok(())
            }
            TypeVerb::Show(args) => args.run(context, ui),
            TypeVerb::Validate(args) => args.run(ui),
            TypeVerb::Schema => schema(context, ui),
        }
    }
}

fn schema(context: &Context, ui: &Ui) -> Result<(), Failure> {
    let manager = &context.manager;
    let schema = escrow::config::schema_with(manager.registry(), &manager.settings().types);
    if ui.is_json() {
        ui.document(schema);
        return Ok(());
    }
    let mut out = ui.content();
    let written = writeln!(out, "{schema:#}").and_then(|()| out.flush());
    written.map_err(|error| Error::Output(error).into())
}

fn document(kind: &ResourceType) -> Value {
    let mut document = json!({
        "name": kind.name,
        "description": kind.description,
        "extends": kind.extends,
        "strategy": kind.default,
        "strategies": kind.allowed,
        "supported": kind.supported,
    });
    if let Some(options) = &kind.options {
        document["options"] = json!(options);
    }
    document
}

fn list(context: &Context, ui: &Ui) {
    let types = context.manager.settings().types.all();
    if ui.is_json() {
        let types: Vec<Value> = types.iter().map(document).collect();
        ui.document(json!({"types": types}));
        return;
    }
    let supported = |kind: &ResourceType| if kind.supported { "yes" } else { "not yet" };
    let rows = types.iter().map(|kind| {
        [
            kind.name.clone(),
            supported(kind).to_owned(),
            kind.default.clone(),
            kind.allowed.join(" "),
        ]
    });
    ui.table(["NAME", "SUPPORTED", "STRATEGY", "ALLOWED"], rows);
}

impl TypeNameArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let types = &context.manager.settings().types;
        let kind = types.named(&self.name).ok_or_else(|| Error::UnknownType {
            name: self.name.clone(),
            known: types.names(),
        })?;
        if ui.is_json() {
            ui.document(document(kind));
            return Ok(());
        }
        let name = paint(Tone::Strong, &kind.name);
        ui.line(&format!("{name}  {}", kind.description));
        if let Some(base) = &kind.extends {
            ui.line(&format!("  extends   {base}"));
        }
        ui.line(&format!("  strategy  {}", kind.default));
        ui.line(&format!("  allowed   {}", kind.allowed.join(" ")));
        if !kind.supported {
            ui.line("  not supported yet");
        }
        Ok(())
    }
}

impl TypeValidateArgs {
    fn run(&self, ui: &Ui) -> Result<(), Failure> {
        let settings = Settings::check_file(&self.file, &Registry::builtin());
        let settings = settings.map_err(Error::from)?;
        let own = settings.types.all().iter();
        let own: Vec<&str> = own
            .filter(|kind| kind.is_own())
            .map(|kind| kind.name.as_str())
            .collect();
        let resources = settings.resources.iter();
        let resources: Vec<&str> = resources.map(|one| one.name.as_str()).collect();
        let file = Location::from(self.file.as_path());
        if ui.is_json() {
            ui.document(json!({
                "file": show::location(&file),
                "valid": true,
                "types": own,
                "resources": resources,
            }));
            return Ok(());
        }
        ui.line(&format!("{file} is valid"));
        for (what, names) in [("types", own), ("resources", resources)] {
            if !names.is_empty() {
                ui.line(&format!("  {what}  {}", names.join(" ")));
            }
        }
        Ok(())
    }
}
