//! `escrow access`: what the policy permits.

use clap::{Args, Subcommand};
use escrow::error::Kind;

use crate::context::Context;
use crate::error::Failure;
use crate::ui::{Tone, Ui, paint};

/// Ask what is permitted
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    verb: AccessVerb,
}

#[derive(Debug, Subcommand)]
enum AccessVerb {
    Check(AccessCheckArgs),
}

/// Say whether a principal may do something, and why
///
/// Asks for `--principal`, or for the caller. Nothing is done, and nothing is logged. The exit
/// status is 0 if it is permitted, 3 if it is denied.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  escrow access check --principal agent --action commit --scope '*'\n  \
        escrow access check --principal agent --action write --scope app:.github/workflows/ci.yml"
)]
struct AccessCheckArgs {
    /// create, read, write, diff, run, checkpoint, restore, commit, rollback, undo, cleanup, gc or admin
    #[arg(long, value_name = "ACTION")]
    action: String,
    /// `*`, a resource, or `resource:path`
    #[arg(long, value_name = "SCOPE")]
    scope: String,
}

impl AccessArgs {
    pub(crate) fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        match self.verb {
            AccessVerb::Check(args) => args.run(context, ui),
        }
    }
}

impl AccessCheckArgs {
    fn run(self, context: &Context, ui: &Ui) -> Result<(), Failure> {
        let manager = &context.manager;
        let decision = manager.check_access(manager.principal(), &self.action, &self.scope)?;
        if ui.is_json() {
            ui.document(serde_json::json!(decision));
        } else {
            let word = match decision.permitted {
                true => paint(Tone::Good, "permitted"),
                false => paint(Tone::Bad, "denied"),
            };
            let reason = escrow::model::text::one_line(&decision.reason);
            ui.line(&format!("{word}: {reason}"));
        }
        match decision.permitted {
            true => Ok(()),
            false => Err(Failure::reported(Kind::Denied)),
        }
    }
}
