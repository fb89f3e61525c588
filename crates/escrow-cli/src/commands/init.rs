//! `escrow init`: writes a first configuration.

use std::path::Path;

use clap::Args;
use escrow::config::{self, FILE_NAME};
use escrow::error::Error;
use serde_json::json;

use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Write an escrow.yaml for this directory, from what is found here
///
/// The directory becomes a resource that can be named. A file that is there stays as it is.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow init && escrow run -- make test")]
pub(crate) struct InitArgs {
    /// Write over the file that is there
    #[arg(long)]
    force: bool,
}

impl InitArgs {
    pub(crate) fn run(&self, ui: &Ui) -> Result<(), Failure> {
        let here = Path::new(".");
        let begun = config::begin(here).map_err(Error::from)?;
        if !config::write_new(here, &begun.text, self.force).map_err(Error::from)? {
            return Err(Failure::conflict(format!("'{FILE_NAME}' exists already"))
                .hint("`escrow init --force` overwrites it")
                .hint(format!("`escrow type validate {FILE_NAME}` checks it")));
        }
        if ui.is_json() {
            let resource = json!({"name": begun.name, "type": begun.kind, "at": begun.at});
            ui.document(json!({"file": FILE_NAME, "resources": [resource]}));
            return Ok(());
        }
        let name = paint(Tone::Strong, &begun.name);
        ui.news(&format!(
            "wrote {FILE_NAME}; its resource is {name}, a {}",
            begun.kind
        ));
        ui.say(&format!(
            "next: `escrow run --resource {} -- COMMAND`",
            begun.name
        ));
        Ok(())
    }
}
