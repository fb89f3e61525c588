//! `escrow completions`: scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use super::Cli;
use crate::error::Failure;
use crate::ui::Ui;

/// Print a completion script for a shell
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
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "escrow", &mut script);
        if ui.is_json() {
            let script = String::from_utf8_lossy(&script);
            ui.document(&json!({"shell": self.shell.to_string(), "script": script}));
            return Ok(());
        }
        ui.bytes(&script);
        Ok(())
    }
}
