//! `escrow shell`: runs the user's shell inside the sandboxes of a plan.

use std::ffi::OsString;

use clap::Args;

use super::run::RunOptions;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Work inside a plan's sandboxes with your shell
///
/// The same as `escrow run` with the shell that SHELL names, or `/bin/sh`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow shell --plan try")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(super) options: RunOptions,
}

impl ShellArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let shell = context::shell().unwrap_or_else(|| OsString::from("/bin/sh"));
        self.options.run(&[shell], context, ui)
    }
}
