//! `escrow path`: where native tools work.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use escrow::model::text::Location;
use escrow::strategy::Access;
use serde_json::json;

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Print where native tools work inside a sandbox: its directory, or its file
///
/// Work done there is in the diff. Overlay sandboxes have no such path.
#[derive(Args)]
#[command(
    override_usage = "escrow path [PLAN] <RESOURCE>",
    after_help = "Examples:\n  cd \"$(escrow path try app)\"\n  $EDITOR \"$(escrow path try notes.txt)\""
)]
pub(crate) struct PathArgs {
    /// Plan (the newest open one of this directory if left out) and resource
    #[arg(num_args = 1..=2, required = true, value_name = "[PLAN] RESOURCE")]
    words: Vec<OsString>,
}

impl PathArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, resource, _) = context.target(&self.words, 0)?;
        let Access::Directory(path) = context.manager.access(&plan, &resource)?;
        if ui.is_json() {
            ui.document(&json!({"path": show::location(&Location::from(path))}));
            return Ok(());
        }
        // Bytes, not text: it is there to be used.
        ui.bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
        Ok(())
    }
}
