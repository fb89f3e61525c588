//! `escrow inside`: enters the namespaces of a plan; started by `escrow run` only.

use clap::Args;

use crate::error::Failure;

/// Build the namespace of `escrow run`; not for people
#[derive(Debug, Args)]
pub(crate) struct InsideArgs {
    /// The descriptor of the description; without it, only tries what the kernel permits
    #[arg(requires = "channel")]
    spec: Option<i32>,
    /// The descriptor of the channel to the supervisor
    channel: Option<i32>,
}

impl InsideArgs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match (self.spec, self.channel) {
            (Some(spec), Some(channel)) => escrow::run::enter(spec, channel),
            _ => Ok(escrow::run::probe().map_err(escrow::error::Error::from)?),
        }
    }
}
