//! `escrow read`: prints a file of a sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use escrow::error::Error;
use escrow::model::ResourcePath;
use serde_json::json;

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::shown::ShownContent;
use crate::ui::Ui;

/// Print a file of a sandbox, byte for byte
///
/// On a terminal what could fool a reader is escaped. Links are not followed. Reading changes nothing. Of a resource that is one file, PATH is its own name, or `.`. Of a database, PATH is a
/// table (`orders`), given as JSON lines, or a row (`orders/17`).
#[derive(Debug, Args)]
#[command(
    override_usage = "escrow read [PLAN] <RESOURCE> <PATH>",
    after_help = "Example:\n  escrow read try app src/main.rs\n  escrow read try app ./-name-with-a-dash"
)]
pub(crate) struct ReadArgs {
    /// Plan (the open one of this directory if left out), resource, path in it
    #[arg(num_args = 2..=3, required = true, value_name = "[PLAN] RESOURCE PATH")]
    words: Vec<OsString>,
}

impl ReadArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, resource, rest) = context.target(&self.words, 1, ui)?;
        let path = ResourcePath::parse(rest[0].as_bytes()).map_err(Error::from)?;
        let path = resource.inner(&path);
        let mut file = context.manager.read(&plan, &resource, &path)?;
        let unreadable = |error| Failure::failed(format!("cannot read '{path}': {error}"));
        if !ui.is_json() {
            let poured = match ui.is_terminal() {
                true => ui.pour(&mut ShownContent::new(file)),
                false => ui.pour(&mut file),
            };
            return poured.map_err(unreadable);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(unreadable)?;
        let mut document = show::path_fields(&path);
        document["size"] = json!(bytes.len());
        match String::from_utf8(bytes) {
            Ok(text) => document["content"] = json!(text),
            Err(binary) => {
                let hex: String = binary
                    .as_bytes()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                document["content_hex"] = json!(hex);
            }
        }
        ui.document(document);
        Ok(())
    }
}
