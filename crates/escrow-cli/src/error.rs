//! Turns errors into exit codes and messages. The only place that knows either.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use escrow::error::{Cause, Error, Kind, StoreError, chain};
use escrow::model::text::Location;
use escrow::model::{Conflict, ResourcePath};
use escrow::strategy::StrategyError;
use serde_json::{Map, Value, json};

use crate::commands::show;
use crate::ui::{Tone, Ui, paint};

/// Why a command did not do what it was asked.
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    hints: Vec<String>,
    details: serde_json::Value,
    told: bool,
    interrupted: bool,
    /// The exit status, where it is not that of the kind.
    status: Option<i32>,
    /// What a failed commit says beside the error itself.
    about: Map<String, Value>,
    /// Which of its fields says that it did not happen; none where no process asks.
    field: Option<&'static str>,
    /// What else the document says.
    beside: Value,
    /// What a person reads before the error.
    lines: Vec<String>,
    /// The home whose state lost its records.
    lost: Option<PathBuf>,
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

    /// What was asked for is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::of(Kind::NotFound, message)
    }

    /// What was asked for is not permitted.
    pub(crate) fn denied(message: impl Into<String>) -> Self {
        Self::of(Kind::Denied, message)
    }

    fn of(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hints: Vec::new(),
            details: json!({}),
            told: false,
            interrupted: false,
            status: None,
            about: Map::new(),
            field: None,
            beside: Value::Null,
            lines: Vec::new(),
            lost: None,
        }
    }

    /// What was asked for contradicts what is there.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::of(Kind::Conflict, message)
    }

    /// A failure of this kind that the document on stdout has told already; only the exit code is left.
    pub(crate) fn reported(kind: Kind) -> Self {
        Self {
            told: true,
            ..Self::of(kind, "")
        }
    }

    /// A command that was run ended with this status; it has said what there is to say.
    pub(crate) fn ended(status: i32) -> Self {
        Self {
            status: Some(status),
            ..Self::reported(Kind::Failed)
        }
    }

    /// Says in the document, beside the error, what became of a commit or an undo.
    pub(crate) fn about(mut self, field: &'static str) -> Self {
        if self.about.is_empty() {
            self.about = nothing_done(&self.message);
        }
        self.field = Some(field);
        self
    }

    /// The home whose state lost its records, if that is what went wrong.
    pub(crate) fn lost_home(&self) -> Option<&Path> {
        self.lost.as_deref()
    }

    /// Says in the document what else is known, and to a person before the error.
    pub(crate) fn with(mut self, details: Value, lines: Vec<String>) -> Self {
        self.details = details;
        self.lines = lines;
        self
    }

    /// Exits with this status instead of the one of its kind.
    pub(crate) fn status(mut self, status: i32) -> Self {
        self.status = Some(status);
        self
    }

    /// Exits with this status, unless another one was chosen.
    pub(crate) fn or_status(mut self, status: i32) -> Self {
        self.status.get_or_insert(status);
        self
    }

    /// Adds what to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Says in the document what else is known, where the error does not say it.
    pub(crate) fn beside(mut self, more: Value) -> Self {
        self.beside = more;
        self
    }

    /// What went wrong, on a line.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What went wrong and what to do, on a line.
    pub(crate) fn reason(&self) -> String {
        let hints = self.hints.iter().map(|hint| format!("; {hint}"));
        format!("{}{}", self.message, hints.collect::<String>())
    }

    /// The error as a document.
    pub(crate) fn document(&self) -> Value {
        let details = self.details.clone();
        let mut answer = document(self.kind, &self.message, &self.hints, details);
        let mut more = Map::new();
        if let Some(field) = self.field {
            more.insert(field.to_owned(), json!(false));
            more.extend(self.about.clone());
        }
        for (name, value) in self.beside.as_object().into_iter().flatten() {
            more.entry(name).or_insert_with(|| value.clone());
        }
        if let Some(answer) = answer.as_object_mut() {
            answer.extend(more);
        }
        answer
    }

    /// Names the plan that the command is about in the commands of its hints.
    pub(crate) fn for_plan(mut self, ui: &Ui) -> Self {
        if let Some(plan) = ui.plan() {
            for hint in &mut self.hints {
                *hint = with_plan(hint, &plan);
            }
        }
        self
    }

    /// Tells it, and gives the exit code.
    pub(crate) fn report(mut self, ui: &Ui) -> ExitCode {
        let own = self.status.and_then(|status| u8::try_from(status).ok());
        let mut exit = own.map_or_else(|| code(self.kind), ExitCode::from);
        if self.told {
            return exit;
        }
        if self.interrupted {
            exit = ExitCode::from(130);
            self.message = "interrupted; what was begun was removed".to_owned();
            (self.hints, self.details, self.lines) = (Vec::new(), json!({}), Vec::new());
        }
        self = self.for_plan(ui);
        if ui.is_json() {
            ui.document(self.document());
        } else {
            for line in &self.lines {
                ui.line(line);
            }
            ui.error(&self.message, &self.hints);
        }
        exit
    }
}

/// Commands that take the plan of the directory where none is named.
const OF_A_PLAN: [&str; 9] = [
    "checkpoint create",
    "checkpoint list",
    "cleanup",
    "commit",
    "diff",
    "plan stop",
    "restore",
    "rollback",
    "undo",
];

/// The same hint, with the plan in its commands: typed as they stand, they could be about another one.
fn with_plan(hint: &str, plan: &str) -> String {
    let mut hint = hint.to_owned();
    for command in OF_A_PLAN {
        for end in ["`", " --"] {
            let typed = format!("`escrow {command}");
            hint = hint.replace(&format!("{typed}{end}"), &format!("{typed} {plan}{end}"));
        }
    }
    hint
}

/// The exit code of each kind of failure.
/// The exit status where something was interrupted and has to be brought to an end.
pub(crate) const RECOVERY_NEEDED: u8 = 5;

fn code(kind: Kind) -> ExitCode {
    ExitCode::from(match kind {
        Kind::NotFound | Kind::Busy | Kind::Unsupported | Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::Denied => 3,
        Kind::Conflict => 4,
        Kind::RecoveryNeeded => RECOVERY_NEEDED,
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

/// Resources, each with a reason.
pub(crate) fn reasons(all: &[(String, String)]) -> Value {
    let one = |(resource, why): &(String, String)| json!({"resource": resource, "why": why});
    all.iter().map(one).collect()
}

/// What a program may want to know of an error, as fields.
pub(crate) fn details(error: &Error) -> serde_json::Value {
    match error {
        Error::Partly { done, failed, .. } => {
            json!({"done": done, "failed": reasons(failed)})
        }
        Error::Forward {
            done,
            failed,
            unknown,
            ..
        } => {
            let asked = |(resource, at, why): &(String, Location, String)| json!({"resource": resource, "at": show::location(at), "why": why});
            let unknown: Vec<Value> = unknown.iter().map(asked).collect();
            json!({"done": done, "failed": reasons(failed), "unknown": unknown})
        }
        Error::Fs(error) | Error::Strategy(StrategyError::Fs(error)) => {
            json!({"path": error.path, "action": error.action})
        }
        Error::Strategy(
            StrategyError::NotThere { path } | StrategyError::NotAFile { path, .. },
        ) => {
            json!({"path": path})
        }
        Error::Denied { decision, .. } => json!(decision),
        Error::Unexpected { found, differs, .. } => {
            let one = |(resource, path): &(String, ResourcePath)| {
                show::with_path(path, json!({"resource": resource}))
            };
            let differs: Vec<Value> = differs.iter().map(one).collect();
            json!({"digest": found, "differs": differs})
        }
        Error::UnknownPlan { name } | Error::PlanExists { name } => json!({"plan": name}),
        Error::SeveralPlans { plans, .. } => {
            let names = plans.iter().map(|plan| &plan.name);
            json!({"plans": names.collect::<Vec<_>>()})
        }
        Error::UnknownResource { name, .. } => json!({"resource": name}),
        Error::Unfinished { plan, resource } | Error::NoSandbox { plan, resource, .. } => {
            json!({"plan": plan, "resource": resource})
        }
        Error::Config(error) => json!({
            "file": show::location(&error.file),
            "line": error.line,
            "column": error.column,
            "key": error.key,
        }),
        Error::Busy { plan, .. } | Error::PlanOver { plan, .. } => json!({"plan": plan}),
        _ => json!({}),
    }
}

/// What a commit, or undo, that did nothing says beside the error itself.
fn nothing_done(cause: &str) -> Map<String, Value> {
    let lists = [
        "resources",
        "conflicts",
        "undone",
        "not_undone",
        "kept",
        "left",
    ];
    let lists = lists.map(|name| (name.to_owned(), json!([])));
    let cause = ("cause".to_owned(), json!(cause));
    lists.into_iter().chain([cause]).collect()
}

/// The same of one that failed.
fn about_commit(error: &Error) -> Map<String, Value> {
    let mut about = nothing_done(&chain(error));
    let mut say = |name: &str, value: Value| about.insert(name.to_owned(), value);
    match error {
        Error::Conflicts { conflicts, .. } => {
            let one =
                |(resource, conflict): &(String, Conflict)| show::conflict(resource, conflict);
            say("conflicts", conflicts.iter().map(one).collect());
        }
        Error::CommitFailed {
            cause,
            undone,
            not_undone,
            kept,
            left,
            lost,
            ..
        } => {
            say("cause", json!(chain(&**cause)));
            say("undone", json!(undone));
            say("not_undone", reasons(not_undone));
            say("kept", json!(show::kept(kept)));
            say("left", json!(left));
            if !lost.is_empty() {
                say("lost", json!(lost));
            }
        }
        Error::WorkLost { lost, .. } => drop(say("lost", json!(lost))),
        _ => {}
    }
    about
}

/// Conflicts, a line each, for people.
fn conflict_lines(error: &Error) -> Vec<String> {
    let Error::Conflicts { conflicts, .. } = error else {
        return Vec::new();
    };
    let line = |(resource, conflict): &(String, Conflict)| {
        let word = paint(Tone::Bad, "conflict");
        format!("{word}  {resource}:{}  {}", conflict.path, conflict.what)
    };
    conflicts.iter().map(line).collect()
}

/// Whether the user cancelled it, and everything is as it was before.
fn is_interrupted(error: &Error) -> bool {
    match error {
        Error::Cancelled => true,
        Error::Strategy(StrategyError::Fs(error)) => error.cause == Cause::Cancelled,
        Error::Member { cause, .. } => is_interrupted(cause),
        Error::CommitFailed {
            cause,
            not_undone,
            kept,
            left,
            ..
        } => not_undone.is_empty() && kept.is_empty() && left.is_empty() && is_interrupted(cause),
        _ => false,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            hints: error.hints(),
            details: details(&error),
            interrupted: is_interrupted(&error),
            // A bad configuration is wrong usage, also of `run`.
            status: matches!(error, Error::Config(_)).then_some(2),
            about: about_commit(&error),
            lines: conflict_lines(&error),
            lost: lost_home(&error),
            ..Self::of(error.kind(), chain(&error))
        }
    }
}

/// The home of a state that lost its records.
fn lost_home(error: &Error) -> Option<PathBuf> {
    match error {
        Error::Store(StoreError::Lost { path, .. }) => path.as_path().parent().map(Path::to_owned),
        _ => None,
    }
}

/// Tells how a command ended, and gives the exit code.
pub(crate) fn conclude(done: Result<(), Failure>, ui: &Ui) -> ExitCode {
    let failed = done.err().map(|failure| failure.report(ui));
    ui.close();
    let lost = ui.lost_output();
    match failed {
        Some(code) => code,
        None if lost => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

/// Answers a line that could not be understood, or a wish for help.
pub(crate) fn usage(refused: &clap::Error, as_json: bool) -> ExitCode {
    if !refused.use_stderr() {
        // Help and version are answers. The reader that closes the pipe has read enough.
        return match refused.print() {
            Ok(()) | Err(_) => ExitCode::SUCCESS,
        };
    }
    let ui = Ui::new(as_json, false, 0);
    if as_json {
        let text = refused.render().to_string();
        let message = text.trim().trim_start_matches("error: ");
        ui.document(document(Kind::Usage, message, &[], json!({})));
        ui.close();
    } else {
        ui.refusal(refused);
    }
    code(Kind::Usage)
}
