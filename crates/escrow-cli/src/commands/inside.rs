//! `escrow inside`: the way into a plan's sandboxes, started by `escrow run` only.

use clap::Args;

use crate::context;

/// Build the inside of `escrow run`; not for people
#[derive(Args)]
pub(crate) struct InsideArgs {
    /// The descriptor of the description
    spec: i32,
    /// The descriptor of the channel to the supervisor
    channel: i32,
}

impl InsideArgs {
    pub(crate) fn run(self) -> ! {
        escrow::run::enter(
            context::inherited(self.spec),
            context::inherited(self.channel),
        )
    }
}
