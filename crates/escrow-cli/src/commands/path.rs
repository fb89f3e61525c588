//! `escrow path`: prints where native tools find a sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use escrow::error::Error;
use escrow::model::ResourcePath;
use escrow::model::text::Location;
use serde_json::json;

use super::show;
use crate::context::Context;
use crate::error::Failure;
use crate::ui::Ui;

/// Print where native tools work inside a sandbox: its directory, its file, or one path in it
///
/// Of a database it is the file, or the URL for any client. Work done there is in the diff. Overlay sandboxes have no such path: `escrow open` and `escrow mount` show them.
#[derive(Debug, Args)]
#[command(
    override_usage = "escrow path [PLAN] <RESOURCE>\n       escrow path <PLAN> <RESOURCE> <PATH>",
    after_help = "Examples:\n  sqlite3 \"$(escrow path try app.db)\" .tables\n  psql \"$(escrow path try shop)\" -c 'SELECT 1'\n  \
        cd \"$(escrow path try app)\"  # a copy or a snapshot"
)]
pub(crate) struct PathArgs {
    /// Plan (the open one of this directory if left out), resource, and a path in it
    #[arg(num_args = 1..=3, required = true, value_name = "[PLAN] RESOURCE [PATH]")]
    words: Vec<OsString>,
}

impl PathArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let rest = usize::from(self.words.len() == 3);
        let (plan, resource, rest) = context.target(&self.words, rest, ui)?;
        let inner = rest
            .first()
            .map(|word| ResourcePath::parse(word.as_bytes()));
        let inner = inner.transpose().map_err(Error::from)?;
        let access = context.manager.access(&plan, &resource, inner.as_ref())?;
        if ui.is_json() {
            ui.document(match (&access.cwd, &access.url) {
                (Some(path), _) => json!({"path": show::location(path)}),
                (None, url) => json!({"url": url}),
            });
            return Ok(());
        }
        // Bytes, not text: it is there to be used.
        let url = access.url.map(|url| Location::from_bytes(url.as_bytes()));
        let at = access.cwd.or(url);
        let at = at.as_ref().map_or(&b""[..], |at| at.as_bytes());
        ui.bytes(&[at, b"\n"].concat());
        Ok(())
    }
}
