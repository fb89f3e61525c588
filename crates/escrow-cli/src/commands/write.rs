//! `escrow write`: writes a file into a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use escrow::error::Error;
use escrow::model::text::Location;
use escrow::model::{ChangeKind, ResourcePath};
use serde_json::json;

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Put a file into a sandbox, from stdin or from another file
///
/// Directories on the way are made. A file that is there keeps its mode, owner and attributes.
/// The original is untouched. Of a resource that is one file, PATH is its own name, or `.`.
///
/// Of a database, PATH is a table (`orders`) or a row (`orders/17`), written as JSON lines, as `escrow read` gives them. A table is
/// written as a whole: rows that are not given are deleted.
#[derive(Debug, Args)]
#[command(
    override_usage = "escrow write [OPTIONS] [PLAN] <RESOURCE> <PATH>",
    after_help = "Example:\n  echo 'hello' | escrow write try app notes.txt\n  \
        escrow write try app config.yaml --from ./new-config.yaml"
)]
pub(crate) struct WriteArgs {
    /// Plan (the open one of this directory if left out), resource, path in it
    #[arg(num_args = 2..=3, required = true, value_name = "[PLAN] RESOURCE PATH")]
    words: Vec<OsString>,
    /// Take the bytes from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl WriteArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let (plan, resource, rest) = context.target(&self.words, 1, ui)?;
        if rest[0].as_bytes().ends_with(b"/") {
            return Err(Failure::usage(
                "the path ends in '/', but a file is to be written",
            ));
        }
        let path = ResourcePath::parse(rest[0].as_bytes()).map_err(Error::from)?;
        let path = resource.inner(&path);
        let mut content: Box<dyn Read> = match self.from {
            Some(from) => Box::new(File::open(&from).map_err(|error| {
                Failure::failed(format!("cannot open '{}': {error}", Location::from(from)))
            })?),
            None => {
                if std::io::stdin().is_terminal() {
                    ui.say("reading from the terminal; end with Ctrl-D");
                }
                Box::new(std::io::stdin().lock())
            }
        };
        let written = context
            .manager
            .write(&plan, &resource, &path, &mut content)?;
        let kind = written.kind;
        if ui.is_json() {
            ui.document(show::with_path(&path, json!({"kind": kind})));
            return Ok(());
        }
        let word = match kind {
            ChangeKind::Added => "added",
            _ => "modified",
        };
        ui.say(&format!("{word} {}:{path}", resource.name));
        Ok(())
    }
}
