//! `escrow holder`: keeps the transaction of a sandbox open; started by the engine only.

use clap::Args;

use crate::error::Failure;

/// Keep the transaction of a database sandbox open; not for people
#[derive(Debug, Args)]
pub(crate) struct HolderArgs {}

impl HolderArgs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        Ok(escrow::strategy::hold().map_err(escrow::error::Error::from)?)
    }
}
