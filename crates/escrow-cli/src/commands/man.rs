//! `escrow man`: manual pages.

use clap::{Args, CommandFactory};
use serde_json::json;

use super::Cli;
use crate::error::Failure;
use crate::ui::Ui;

/// Print a manual page
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow man diff | man -l -")]
pub(crate) struct ManArgs {
    /// The command it is about, e.g. `plan create`; escrow itself if left out
    command: Vec<String>,
}

impl ManArgs {
    pub(crate) fn run(self, ui: &Ui) -> Result<(), Failure> {
        let mut command = Cli::command();
        command.build();
        for word in &self.command {
            let Some(below) = command.find_subcommand(word) else {
                return Err(Failure::usage(format!(
                    "there is no command '{}'",
                    self.command.join(" ")
                ))
                .hint("`escrow help` lists the commands"));
            };
            command = below.clone();
        }
        let name = command.get_display_name().unwrap_or("escrow").to_owned();
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| Failure::failed(format!("cannot make the page: {error}")))?;
        let text = String::from_utf8_lossy(&page);
        match ui.is_json() {
            true => ui.document(json!({"name": name, "page": text})),
            false => ui.bytes(&page),
        }
        Ok(())
    }
}
