//! `escrow shell`: runs the user's shell inside the sandboxes of a plan.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use super::run::RunOptions;
use crate::context::{self, Context};
use crate::error::Failure;
use crate::ui::Ui;

/// Work inside a plan's sandboxes with your shell
///
/// The same as `escrow run` with the shell that SHELL names, or `/bin/sh`. On a terminal the prompt and the title of the
/// window name the plan.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  escrow shell --plan try")]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(super) options: RunOptions,
}

/// Gives bash the user's settings, and then a prompt and a title with the plan.
const BASH: &str = r#"for rc in /etc/bash.bashrc ~/.bashrc; do [ -f "$rc" ] && . "$rc"; done
unset rc ESCROW_SHELL_RC
PS1="(escrow $ESCROW_PLAN) $PS1"
case $TERM in dumb|linux) ;; *) PS1="$PS1\[\e]0;escrow $ESCROW_PLAN\a\]" ;; esac
exec 9<&-
"#;

/// The same for fish.
const FISH: &str = r#"functions -q fish_prompt; and functions -c fish_prompt escrow_prompt
function fish_prompt; echo -n "(escrow $ESCROW_PLAN) "; functions -q escrow_prompt; and escrow_prompt; end
function fish_title; echo "escrow $ESCROW_PLAN"; end"#;

/// Starts bash with the settings of a variable: `/tmp` and the home directory need not be writable.
const START_BASH: &str = "exec \"$0\" --rcfile /dev/fd/9 -i 9<<E\n$ESCROW_SHELL_RC\nE\n";

impl ShellArgs {
    pub(crate) fn run(mut self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let shell = context::shell().unwrap_or_else(|| OsString::from("/bin/sh"));
        let name = Path::new(&shell).file_name();
        let command = match name
            .and_then(|name| name.to_str())
            .filter(|_| context::is_typed())
        {
            Some("bash") => {
                let rc = OsString::from(format!("ESCROW_SHELL_RC={BASH}"));
                self.options.env.push(rc);
                vec!["/bin/sh".into(), "-c".into(), START_BASH.into(), shell]
            }
            Some("fish") => vec![shell, "-C".into(), FISH.into()],
            Some("sh" | "dash" | "ash" | "ksh") => {
                let prompt = "PS1=(escrow $ESCROW_PLAN) $ ";
                self.options.env.push(prompt.into());
                vec![shell]
            }
            _ => vec![shell],
        };
        self.options.run(&command, context, ui)
    }
}
