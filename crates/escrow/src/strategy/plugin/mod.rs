//! Strategies that are programs of the user's own, over one protocol: `docs/spec/plugin-protocol.md`.
//!
//! A program is a process that answers JSON-RPC on its standard output. Whatever it does — it ends, hangs, floods or writes
//! rubbish — the call fails with an error that names it, and the engine goes on (rule X1). It is given its options, its area and a
//! clean environment, and nothing of the state store (rule X3).
//!
//! | file | promise |
//! |---|---|
//! | `program` | started when it is first needed, once for each strategy and plan, and started again when it ended between calls |
//! | `process` | the process, its group, its streams; ended with its children |
//! | `channel` | one call at a time, with a time limit; anything unexpected is a fault |
//! | `handshake` | what it says of itself, and whether that can be |
//! | `wire` | what travels in messages |
//! | `sandbox` | a session with one sandbox |
//! | `fixture` | originals for the conformance suite, made by the program itself |
//! | `sdk` | the Python SDK, as it is shipped |
//!
//! A commit of a program that prepares is: `prepare` leaves an intent, `commit` carries it out, however often it is called. One
//! that does not prepare is given its reference and a commit id only. A restore is `restore_checkpoint` there, and the same back.

mod base64;
mod channel;
mod error;
mod fixture;
mod handshake;
mod process;
mod program;
mod sandbox;
mod sdk;
mod wire;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use error::{PluginError, PluginFault};
pub use fixture::PluginFixture;
pub use handshake::methods;
pub(in crate::strategy) use program::{Program, Unusable};
pub use program::{ProgramContext, ProgramLaunch, ProgramSpec, PythonClass};

use super::error::{Result, StrategyError};
use super::{
    Capabilities, CreateRequest, Created, FinishedCommit, Intent, Outcome, Probe, RollbackReport,
    Sandbox, Session, Snapshot, Strategy, Target, unsupported,
};
use crate::event::{Observer, Unobserved};
use crate::model::text::{Location, escape};
use crate::model::{Conflict, ResourcePath, SandboxRef};
use program::Failed;
use sandbox::PluginSandbox;
use wire::{StoredMetadata, WireRemark};

/// What is to be carried out or taken back, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
enum StoredIntent {
    Commit {
        sandbox: SandboxRef,
        commit_id: String,
        message: Option<String>,
        /// What the program prepared; nothing where it does not prepare.
        intent: Value,
        /// The directory of this commit.
        area: Option<Location>,
    },
    Restore {
        sandbox: SandboxRef,
        from: Snapshot,
        to: Snapshot,
    },
}

impl StoredIntent {
    fn is_restore(&self) -> bool {
        matches!(self, Self::Restore { .. })
    }
}

/// A strategy that is a program.
pub(in crate::strategy) struct Plugin {
    program: Arc<Program>,
    /// Commits that the program answered with an error: nothing was done.
    refused: Mutex<BTreeSet<String>>,
}

/// A result of which only some keys are needed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CreatedAnswer {
    metadata: Value,
    message: Option<String>,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct ProbeAnswer {
    works: bool,
    #[serde(default)]
    reason: String,
    limit: Option<String>,
}

#[derive(Deserialize)]
struct OutcomeAnswer {
    outcome: Outcome,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FinishAnswer {
    intent: Option<Value>,
}

#[derive(Deserialize)]
struct ConflictsAnswer {
    conflicts: Vec<WireRemark>,
}

impl Plugin {
    pub(in crate::strategy) fn new(program: Arc<Program>) -> Self {
        Self {
            program,
            refused: Mutex::default(),
        }
    }

    fn can(&self) -> Capabilities {
        let known = self.program.known();
        known.map_or_else(Capabilities::default, |known| known.capabilities)
    }

    fn has(&self, method: &str) -> bool {
        self.program.known().is_some_and(|known| known.has(method))
    }
}

/// Calls a method; what it answers must have the right form.
fn ask<T: serde::de::DeserializeOwned>(
    program: &Program,
    verb: &str,
    about: Option<&ResourcePath>,
    params: &Value,
    observer: &dyn Observer,
) -> Result<T> {
    let answer = program
        .call(verb, params, observer)
        .map_err(|failed| match failed {
            Failed::Answered(answered) => wire::error(program, verb, about, &answered),
            Failed::Broken(error) => StrategyError::Plugin(Box::new(error)),
        })?;
    serde_json::from_value(answer).map_err(|error| {
        let what = format!("its answer has another form: {error}");
        let fault = PluginFault::Protocol(what);
        StrategyError::Plugin(Box::new(program.error(verb, fault, Vec::new())))
    })
}

/// The same where nothing is answered that matters.
fn tell(program: &Program, verb: &str, params: &Value, observer: &dyn Observer) -> Result<()> {
    ask::<serde::de::IgnoredAny>(program, verb, None, params, observer).map(drop)
}

/// What `commit`, `undo`, `outcome`, `check_undo` and `finish` are given.
fn commit_params(stored: &StoredIntent) -> Result<Value> {
    let StoredIntent::Commit {
        sandbox,
        commit_id,
        message,
        intent,
        area,
    } = stored
    else {
        let what = "a restore stands where a commit is expected".to_owned();
        return Err(StrategyError::Damaged { what });
    };
    let (reference, _) = wire::reference(sandbox)?;
    Ok(json!({
        "ref": reference, "commit_id": commit_id, "message": message, "intent": intent, "area": area,
    }))
}

fn restore(
    program: &Program,
    sandbox: &SandboxRef,
    to: &Snapshot,
    observer: &dyn Observer,
) -> Result<()> {
    let (reference, stored) = wire::reference(sandbox)?;
    let params = json!({"ref": reference, "area": stored.area, "checkpoint_id": to});
    tell(program, "restore_checkpoint", &params, observer)
}

impl Strategy for Plugin {
    fn name(&self) -> &str {
        &self.program.spec.name
    }

    fn capabilities(&self) -> Capabilities {
        self.can()
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        if let Err(why) = self.program.handshake() {
            return Probe::no(match why {
                Unusable::Fails(error) => error.to_string(),
                Unusable::Lacks(missing) => format!("its program lacks {}", missing.join(", ")),
            });
        }
        if !self.has("probe") {
            return Probe::yes("its program answers, and names no condition");
        }
        let area = area.map(Location::from);
        let params = json!({"resource": wire::resource(target), "area": area});
        match ask::<ProbeAnswer>(&self.program, "probe", None, &params, &Unobserved) {
            Ok(answer) => {
                let reason = match answer.reason.is_empty() {
                    true => "its program says so".to_owned(),
                    false => escape(answer.reason.as_bytes()),
                };
                let probe = match answer.works {
                    true => Probe::yes(reason),
                    false => Probe::no(reason),
                };
                Probe {
                    limit: answer.limit.map(|limit| escape(limit.as_bytes())),
                    ..probe
                }
            }
            Err(error) => Probe::no(error.to_string()),
        }
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        let area = request.area.map(Location::from);
        let mut params = json!({
            "plan_id": request.plan_id, "resource": wire::resource(request.target), "area": area,
        });
        let verb = match request.from {
            None => "create",
            Some((other, snapshot)) => {
                if !self.has("fork") {
                    let why = "its program has no method `fork`";
                    return Err(unsupported(self.name(), "be forked", why));
                }
                params["from"] = wire::reference(other)?.0;
                params["checkpoint_id"] = json!(snapshot);
                "fork"
            }
        };
        let answer: CreatedAnswer = ask(&self.program, verb, None, &params, request.observer)?;
        let stored = StoredMetadata {
            plugin: answer.metadata,
            area,
            at: request.target.path().map(Location::from),
        };
        let warnings = answer.warnings.iter();
        Ok(Created {
            sandbox: SandboxRef {
                plan_id: request.plan_id,
                resource_id: request.target.resource_id,
                strategy_name: self.name().to_owned(),
                metadata: json!(stored),
            },
            message: match answer.message {
                Some(message) => escape(message.as_bytes()),
                None => format!("made by {}", self.name()),
            },
            warnings: warnings.map(|one| escape(one.as_bytes())).collect(),
        })
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        _session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let program = Arc::clone(&self.program);
        Ok(Box::new(PluginSandbox::open(program, sandbox)?))
    }

    fn commit(&self, intent: &Intent, observer: &dyn Observer) -> Result<()> {
        let stored: StoredIntent = wire::parse(&intent.0)?;
        match &stored {
            StoredIntent::Restore { sandbox, to, .. } => {
                restore(&self.program, sandbox, to, observer)
            }
            StoredIntent::Commit { commit_id, .. } => {
                let params = commit_params(&stored)?;
                let answer = self.program.call("commit", &params, observer);
                answer.map(drop).map_err(|failed| match failed {
                    Failed::Broken(error) => StrategyError::Plugin(Box::new(error)),
                    Failed::Answered(answered) => {
                        let mut refused =
                            self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                        refused.insert(commit_id.clone());
                        wire::error(&self.program, "commit", None, &answered)
                    }
                })
            }
        }
    }

    fn undo(&self, intent: &Intent, observer: &dyn Observer) -> Result<RollbackReport> {
        let stored: StoredIntent = wire::parse(&intent.0)?;
        if let StoredIntent::Restore { sandbox, from, .. } = &stored {
            restore(&self.program, sandbox, from, observer)?;
            return Ok(RollbackReport::default());
        }
        if !self.has("undo") {
            let why = "its program has no method `undo`";
            return Err(unsupported(self.name(), "undo a commit", why));
        }
        tell(&self.program, "undo", &commit_params(&stored)?, observer)?;
        Ok(RollbackReport::default())
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        let stored: StoredIntent = wire::parse(&intent.0)?;
        let StoredIntent::Commit { commit_id, .. } = &stored else {
            return Ok(Outcome::NotDone);
        };
        if self.has("outcome") {
            let params = commit_params(&stored)?;
            let answer: OutcomeAnswer = ask(&self.program, "outcome", None, &params, &Unobserved)?;
            return Ok(answer.outcome);
        }
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let (can, refused) = (self.can(), refused.contains(commit_id));
        // What prepares or undoes can be called again, and does nothing twice.
        match can.prepares || can.undoes || refused {
            true => Ok(Outcome::NotDone),
            false => Ok(Outcome::Unknown),
        }
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let stored: StoredIntent = wire::parse(&intent.0)?;
        if !self.has("check_undo") || stored.is_restore() {
            return Ok(Vec::new());
        }
        let params = commit_params(&stored)?;
        let verb = "check_undo";
        let answer: ConflictsAnswer = ask(&self.program, verb, None, &params, &Unobserved)?;
        Ok(answer.conflicts.into_iter().map(Conflict::from).collect())
    }

    fn finish(&self, intent: Intent) -> Result<FinishedCommit> {
        let notes = Vec::new();
        let mut stored: StoredIntent = wire::parse(&intent.0)?;
        if !self.has("finish") || stored.is_restore() {
            return Ok(FinishedCommit { intent, notes });
        }
        let params = commit_params(&stored)?;
        let answer: Option<FinishAnswer> =
            ask(&self.program, "finish", None, &params, &Unobserved)?;
        let changed = answer.and_then(|answer| answer.intent);
        if let (StoredIntent::Commit { intent, .. }, Some(changed)) = (&mut stored, changed) {
            *intent = changed;
        }
        let intent = Intent(json!(stored));
        Ok(FinishedCommit { intent, notes })
    }

    fn cleanup(&self, sandbox: &SandboxRef, target: &Target, _: Option<&Path>) -> Result<()> {
        let (reference, stored) = wire::reference(sandbox)?;
        let resource = wire::resource(target);
        let params = json!({"ref": reference, "area": stored.area, "resource": resource});
        tell(&self.program, "cleanup", &params, &Unobserved)
    }
}
