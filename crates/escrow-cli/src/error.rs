//! Where failures become exit codes and words. Nothing else knows either.

use std::process::ExitCode;

use escrow::error::{Error, Kind, chain};
use escrow::fs::{Cause, FsError};
use escrow::strategy::StrategyError;
use serde_json::json;

use crate::ui::Ui;

/// Why a command did not do what it was asked.
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    hints: Vec<String>,
    details: serde_json::Value,
    told: bool,
    interrupted: bool,
}

impl Failure {
    /// Something went wrong outside the engine.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::of(Kind::Failed, message)
    }

    /// What was typed makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::of(Kind::Usage, message)
    }

    fn of(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hints: Vec::new(),
            details: json!({}),
            told: false,
            interrupted: false,
        }
    }

    /// A failure that the document on stdout has told already; only the exit code is left.
    pub(crate) fn told() -> Self {
        Self {
            told: true,
            ..Self::failed("")
        }
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Tells it, and gives the exit code.
    pub(crate) fn report(self, ui: &Ui) -> ExitCode {
        if self.told {
            return code(self.kind);
        }
        if self.interrupted {
            let message = "interrupted; what was begun was taken away again";
            match ui.is_json() {
                true => ui.document(&document(self.kind, message, &[], json!({}))),
                false => ui.error(message, &[]),
            }
            return ExitCode::from(130);
        }
        if ui.is_json() {
            ui.document(&document(
                self.kind,
                &self.message,
                &self.hints,
                self.details,
            ));
        } else {
            ui.error(&self.message, &self.hints);
        }
        code(self.kind)
    }
}

/// The exit code of each kind of failure.
fn code(kind: Kind) -> ExitCode {
    ExitCode::from(match kind {
        Kind::NotFound | Kind::Busy | Kind::Unsupported | Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::Denied => 3,
        Kind::Conflict => 4,
        Kind::RecoveryNeeded => 5,
    })
}

fn document(
    kind: Kind,
    message: &str,
    hints: &[String],
    details: serde_json::Value,
) -> serde_json::Value {
    json!({"error": {"kind": kind, "message": message, "hints": hints, "details": details}})
}

/// What a program may want to know of an error, as fields.
fn details(error: &Error) -> serde_json::Value {
    match error {
        Error::Partly { done, failed, .. } => {
            let entry =
                |(resource, why): &(String, String)| json!({"resource": resource, "why": why});
            json!({"done": done, "failed": failed.iter().map(entry).collect::<Vec<_>>()})
        }
        Error::Fs(error) | Error::Strategy(StrategyError::Fs(error)) => {
            json!({"path": error.path, "action": error.action})
        }
        Error::Strategy(
            StrategyError::NotThere { path } | StrategyError::NotAFile { path, .. },
        ) => {
            json!({"path": path})
        }
        Error::UnknownPlan { name } | Error::PlanExists { name } => json!({"plan": name}),
        Error::UnknownResource { name, .. } => json!({"resource": name}),
        Error::Unfinished { plan, resource } | Error::NoSandbox { plan, resource, .. } => {
            json!({"plan": plan, "resource": resource})
        }
        Error::Busy { plan, .. } | Error::PlanOver { plan } => json!({"plan": plan}),
        _ => json!({}),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let details = details(&error);
        let gave_up = |error: &FsError| error.cause == Cause::Cancelled;
        let interrupted =
            matches!(&error, Error::Strategy(StrategyError::Fs(error)) if gave_up(error));
        Self {
            kind: error.kind(),
            message: chain(&error),
            hints: error.hints(),
            details,
            told: false,
            interrupted,
        }
    }
}

/// Answers a line that could not be understood, or a wish for help.
pub(crate) fn usage(refused: &clap::Error, as_json: bool) -> ExitCode {
    if !refused.use_stderr() {
        // Help and version are answers. Whoever closes the pipe has read enough.
        return match refused.print() {
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        };
    }
    let ui = Ui::new(as_json, false, 0);
    if as_json {
        let text = refused.render().to_string();
        let message = text.trim().trim_start_matches("error: ");
        ui.document(&document(Kind::Usage, message, &[], json!({})));
    } else {
        ui.refusal(refused);
    }
    code(Kind::Usage)
}
