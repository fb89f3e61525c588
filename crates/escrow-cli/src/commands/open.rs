//! `escrow open`: opens a sandbox in the user's editor.

use std::ffi::OsString;

use clap::Args;
use escrow::manager::RunRequest;

use super::mount;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Open a sandbox in your editor or file manager
///
/// Starts what VISUAL, else EDITOR, names, else `xdg-open`, on the directory or file of the sandbox. Where the strategy gives
/// none, it is as for `escrow mount`: the directory is there for this program and what it starts, until it ends, so an
/// editor that hands its work to another process needs to wait, as `code --wait` does.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  escrow open try\n  VISUAL='code --wait' escrow open try app")]
pub(crate) struct OpenArgs {
    /// Name, id or prefix; the open plan of this directory if left out
    plan: Option<String>,
    /// The resource, by name or path; can be left out where the plan has one
    resource: Option<OsString>,
}

impl OpenArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let plan = context.plan(self.plan.as_deref(), ui)?;
        let resource = mount::resource(context, &plan, self.resource.as_ref())?;
        // A line of the shell, as git and others take it; the path follows as one word.
        let editor = context::editor();
        let mut script = editor.clone();
        script.push(" \"$@\"");
        let command = ["sh".into(), "-c".into(), script, editor];
        let request = RunRequest {
            output: mount::output(ui),
            ..RunRequest::new(command, &context.directory)
        };
        let ended = context.manager.run_on(&plan, &resource, &request);
        mount::end(context, ui, &plan, ended)
    }
}
