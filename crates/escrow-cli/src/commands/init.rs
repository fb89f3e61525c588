//! `escrow init`: writes a first configuration.

use std::path::Path;

use clap::Args;
use escrow::config::{self, FILE_NAME, InitialResource};
use escrow::error::Error;
use escrow::model::text::escape;
use serde_json::{Value, json};

use crate::context::database_url;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Write an escrow.yaml for this directory, from what is found here
///
/// The directory becomes a resource, and so do the databases of the project: SQLite files that lie in it, unless git keeps versions of
/// them, and PostgreSQL databases to which a variable of its `.env`, or DATABASE_URL, leads (without the password). An escrow.yaml that
/// is there stays as it is.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow init && escrow trust && escrow run -- make test")]
pub(crate) struct InitArgs {
    /// Write over the file that is there
    #[arg(long)]
    force: bool,
}

impl InitArgs {
    pub(crate) fn run(&self, ui: &Ui) -> Result<(), Failure> {
        let here = Path::new(".");
        let begun = config::begin(here, database_url()).map_err(Error::from)?;
        if !config::write_new(here, &begun.text, self.force).map_err(Error::from)? {
            return Err(Failure::conflict(format!("'{FILE_NAME}' exists already"))
                .hint("`escrow init --force` overwrites it")
                .hint(format!("`escrow type validate {FILE_NAME}` checks it")));
        }
        for (what, why) in &begun.left_out {
            ui.notice(&format!("left out: {what}: {why}"));
        }
        if ui.is_json() {
            let one =
                |one: &InitialResource| json!({"name": one.name, "type": one.kind, "at": one.at});
            let resources: Vec<Value> = begun.resources.iter().map(one).collect();
            ui.document(json!({"file": FILE_NAME, "resources": resources}));
            return Ok(());
        }
        ui.news(&format!("wrote {FILE_NAME}, with these resources:"));
        for one in &begun.resources {
            let name = paint(Tone::Strong, &one.name);
            ui.news(&format!(
                "  {name}  {}  {}",
                one.kind,
                escape(one.at.as_bytes())
            ));
        }
        match begun.loosens {
            true => ui.say(
                "next: read it, then `escrow trust` lets its databases and variables count, and `escrow run -- COMMAND` works on all of it",
            ),
            false => ui.say("next: `escrow run -- COMMAND` works on all of it"),
        }
        Ok(())
    }
}
