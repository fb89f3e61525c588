//! What goes wrong with a program that is a strategy: named, with its last lines on stderr.

use std::time::Duration;

use crate::model::text::escape;

/// How much of what a program wrote is shown.
const SHOWN: usize = 200;

/// A program that did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the program of the strategy '{strategy}' failed in `{verb}`: {fault}{}",
    last_words(said)
)]
pub struct PluginError {
    /// The strategy.
    pub strategy: String,
    /// The method that was called.
    pub verb: String,
    /// What went wrong.
    pub fault: PluginFault,
    /// Its last lines on stderr, escaped.
    pub said: Vec<String>,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginFault {
    /// It cannot be started.
    #[error("it cannot be started ({0})")]
    NotStarted(String),
    /// It ended.
    #[error("it ended{}", .0.as_ref().map(|how| format!(" ({how})")).unwrap_or_default())]
    Ended(Option<String>),
    /// It did not answer in time.
    #[error("it did not answer within {} s, and was ended", .0.as_secs_f64())]
    TooLate(Duration),
    /// The caller gave up.
    #[error("cancelled")]
    Cancelled,
    /// It wrote what is no message of the protocol.
    #[error("it broke the protocol: {0}")]
    Protocol(String),
    /// It answered with an error.
    #[error("{0}")]
    Answered(String),
    /// What it says of itself cannot be.
    #[error("{0}")]
    Refused(String),
}

/// The end of what it wrote on stderr, for one line.
fn last_words(said: &[String]) -> String {
    match said.last() {
        Some(last) => format!("; its last line on stderr: {last}"),
        None => String::new(),
    }
}

/// Something that a program wrote, short and without anything that a terminal obeys.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = escape(&bytes[..bytes.len().min(SHOWN)]);
    match bytes.len() > SHOWN {
        true => format!("{text}…"),
        false => text,
    }
}
