//! Requests of commands inside a run, which the supervisor answers as principal `agent`.

use crate::context;
use crate::error::Failure;
use crate::ui::Ui;

/// Asks the supervisor what was typed.
pub(crate) fn ask(socket: &std::path::Path, ui: &Ui) -> Result<(), Failure> {
    let words = context::arguments();
    let words = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned());
    let answer = escrow::run::ask(socket, words.collect()).map_err(escrow::error::Error::from)?;
    ui.bytes(&answer.stdout);
    ui.said(&answer.stderr);
    match answer.status {
        0 => Ok(()),
        status => Err(Failure::ended(status)),
    }
}
