//! `transaction_rollback` of a SQLite database: a transaction on the original that a process keeps open between commands.
//!
//! From the beginning on no other process can write the original; all read it as it was. `escrow sql`, `read` and `write` work
//! in the transaction, by way of its holder, whose socket `control` lies in the area of the sandbox. Checkpoints are savepoints.
//!
//! A commit is staged as that of a copy is: as rows before and after. The holder makes them in its own transaction, from the
//! beginning, and ends it, so that no other writer comes between. Where the holder died after the decision, any process
//! carries the rows out; an undo is the inverse, and a mark and the rows settle what is not known (rule C19).

mod process;
mod session;
mod wire;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(in crate::strategy) use self::process::hold;
use self::session::HeldSession;
use self::wire::{Answer, HeldSpec, Request};
use super::plan::OpenPlan;
use super::{FileIdentity, SqliteMetadata, apply, check_names, probe};
use crate::event::Observer;
use crate::fs::Dir;
use crate::model::text::Location;
use crate::model::{Conflict, ResourcePath, SandboxRef};
use crate::strategy::error::{Result, StrategyError};
use crate::strategy::holder::{self, PATIENCE, no_checkpoint};
use crate::strategy::postgres::SharedHost;
use crate::strategy::sql::env_name;
use crate::strategy::{
    Capabilities, Checkpoints, CreateRequest, Created, Exposes, Intent, Outcome, Probe,
    RollbackReport, Sandbox, Session, Strategy, Target, tree, unsupported,
};

const NAME: &str = "transaction_rollback";

/// How long a question that is asked by the way waits.
const GLANCE: Duration = Duration::from_secs(2);

/// The strategy.
pub(in crate::strategy) struct SqliteTransaction {
    host: SharedHost,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct HeldMetadata {
    #[serde(flatten)]
    of: SqliteMetadata,
    max_age: u64,
}

/// What a commit needs.
#[derive(Serialize, Deserialize)]
struct HeldIntent {
    plan: Intent,
    area: Location,
    original: Location,
    /// The state of the transaction when it was compared: nothing else is committed.
    state: String,
}

/// What a return to a checkpoint needs.
#[derive(Serialize, Deserialize)]
struct RestoreIntent {
    area: Location,
    original: Location,
    savepoint: String,
}

/// What an intent is about.
enum Work {
    Nothing,
    Commit(HeldIntent),
    Restore(RestoreIntent),
}

fn work(intent: &Intent) -> Result<Work> {
    match &intent.0 {
        stored if stored.is_null() => Ok(Work::Nothing),
        stored if stored.get("savepoint").is_some() => {
            Ok(Work::Restore(tree::parse(stored, "the intent")?))
        }
        stored => Ok(Work::Commit(tree::parse(stored, "the intent")?)),
    }
}

fn worked_on() -> StrategyError {
    StrategyError::Moved {
        path: ResourcePath::root(),
        what: "the sandbox was worked in while it was being committed".to_owned(),
    }
}

/// Asks the holder of a sandbox; says what happened where it holds nothing any more.
fn ask(area: &Location, original: &Location, request: &Request) -> Result<Answer> {
    let patience = match request {
        Request::Status => GLANCE,
        _ => PATIENCE,
    };
    match holder::ask(area.as_path(), request, patience) {
        Ok(Answer::NotHeld(why)) => Err(StrategyError::HolderGone { why }),
        Ok(Answer::Refused(refusal)) => Err(refusal.about(original)),
        Ok(answer) => Ok(answer),
        Err(error) => Err(error.into()),
    }
}

fn failed(original: &Location, what: &str, said: String) -> StrategyError {
    StrategyError::Database {
        at: original.clone(),
        what: what.to_owned(),
        said,
    }
}

/// Starts a holder, and waits until it holds its transaction.
fn start(helper: &Path, of: &SqliteMetadata) -> Result<()> {
    let broken = |said: String| failed(&of.original, "begin a transaction", said);
    let spec = HeldSpec {
        database: of.original.clone(),
        area: of.area.clone(),
    };
    let spec = serde_json::to_vec(&spec).map_err(|error| broken(error.to_string()))?;
    let holds = |said: &str| matches!(serde_json::from_str(said), Ok(Answer::Done));
    let said = holder::start(helper, &spec, holds).map_err(broken)?;
    match serde_json::from_str(&said) {
        Ok(Answer::Done) => Ok(()),
        Ok(Answer::Refused(refusal)) => Err(refusal.about(&of.original)),
        _ => Err(broken("the holder ended without a word".to_owned())),
    }
}

/// Ends the holder of an area, if there is one: SQLite takes back what was not committed.
fn end(area: &Location, original: &Location) -> Result<()> {
    let ended = holder::end(area.as_path(), || {
        match ask(area, original, &Request::End) {
            // One that is gone has ended.
            Ok(_) | Err(_) => {}
        }
    });
    match ended? {
        true => Ok(()),
        false => Err(failed(
            original,
            "end the holder",
            "it still runs".to_owned(),
        )),
    }
}

impl SqliteTransaction {
    pub(in crate::strategy) fn new(host: SharedHost) -> Self {
        Self { host }
    }

    fn helper(&self) -> std::path::PathBuf {
        let host = self.host.read();
        host.map(|host| host.helper.clone()).unwrap_or_default()
    }
}

impl Strategy for SqliteTransaction {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survives: false,
            retryable: false,
            reopens: false,
            checkpoints: Checkpoints::Linear,
            exposes: Exposes::Nothing,
            strength: 2,
            ..Capabilities::PRIVATE
        }
    }

    fn remarks(&self, sandbox: &SandboxRef) -> Vec<String> {
        let Ok(HeldMetadata { of, max_age }) = tree::metadata(sandbox) else {
            return Vec::new();
        };
        let (age, checkpoints) = match ask(&of.area, &of.original, &Request::Status) {
            Ok(Answer::Status { age, checkpoints }) => (age, checkpoints),
            Ok(_) => return Vec::new(),
            Err(error) => return vec![error.to_string()],
        };
        let mut remark = holder::open_for(age);
        remark.push_str(", and no other process can write the database");
        if checkpoints > 0 {
            remark.push_str(&format!(", with {checkpoints} checkpoints"));
        }
        if age > max_age {
            remark.push_str(": that is long; commit it or roll it back and clean it up");
        }
        vec![remark]
    }

    fn gone(&self, sandbox: &SandboxRef) -> Option<String> {
        let HeldMetadata { of, .. } = tree::metadata(sandbox).ok()?;
        match ask(&of.area, &of.original, &Request::Status) {
            Err(error @ StrategyError::HolderGone { .. }) => Some(error.to_string()),
            _ => None,
        }
    }

    fn probe(&self, target: &Target, area: Option<&Path>) -> Probe {
        probe(target, area)
    }

    fn create(&self, request: &CreateRequest<'_>) -> Result<Created> {
        if request.from.is_some() {
            let why = "a held transaction shows no earlier state beside the present one; use `--strategy snapshot`";
            return Err(unsupported(NAME, "be forked", why));
        }
        let (at, area) = tree::places(NAME, request)?;
        check_names(at)?;
        let metadata = HeldMetadata {
            of: SqliteMetadata {
                original: Location::from(at),
                identity: FileIdentity::of(&Dir::look(at)?),
                area: Location::from(area),
                reflinks: false,
                env: env_name(NAME, request.target)?,
            },
            max_age: holder::max_age(NAME, request.target)?,
        };
        end(&metadata.of.area, &metadata.of.original)?;
        start(&self.helper(), &metadata.of)?;
        let message = "a transaction of the database";
        let warnings = [
            "no other process can write the database until this sandbox is gone",
            "work in it with `escrow sql`, `read` and `write`: at the path of the database a command of `escrow run` reads the \
             rows as they were, and cannot write them",
        ];
        let warnings = warnings.map(str::to_owned).to_vec();
        Ok(tree::created(NAME, request, &metadata, message, warnings))
    }

    fn open(
        &self,
        sandbox: &SandboxRef,
        session: Session,
        _parts: &[Intent],
    ) -> Result<Box<dyn Sandbox>> {
        let sandbox: HeldMetadata = tree::metadata(sandbox)?;
        if session == Session::Exclusive {
            sandbox.of.check_original()?;
        }
        let helper = self.helper();
        Ok(Box::new(HeldSession { sandbox, helper }))
    }

    fn commit(&self, intent: &Intent, _observer: &dyn Observer) -> Result<()> {
        let held = match work(intent)? {
            Work::Nothing => return Ok(()),
            Work::Restore(restore) => {
                let request = Request::Restore(restore.savepoint);
                return match ask(&restore.area, &restore.original, &request)? {
                    Answer::Done => Ok(()),
                    _ => Err(no_checkpoint()),
                };
            }
            Work::Commit(held) => held,
        };
        let request = Request::Commit {
            plan: held.plan.clone(),
            state: held.state,
        };
        match ask(&held.area, &held.original, &request) {
            Ok(Answer::Done) => Ok(()),
            Ok(_) => Err(worked_on()),
            // It was committed, or taken back: the rows tell, and are brought over where they are not there.
            Err(StrategyError::HolderGone { .. } | StrategyError::Damaged { .. }) => {
                match OpenPlan::read(&held.plan)? {
                    Some(plan) => apply::commit(&plan),
                    None => Ok(()),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn undo(&self, intent: &Intent, _observer: &dyn Observer) -> Result<RollbackReport> {
        // A return to a checkpoint comes last, so nothing is taken back once it was carried out.
        let Work::Commit(held) = work(intent)? else {
            return Ok(RollbackReport::default());
        };
        let request = Request::Undo(held.plan.clone());
        match ask(&held.area, &held.original, &request) {
            Ok(Answer::Undone(report)) => Ok(report),
            Ok(_) | Err(StrategyError::HolderGone { .. } | StrategyError::Damaged { .. }) => {
                let plan = OpenPlan::read(&held.plan)?;
                plan.map_or_else(|| Ok(RollbackReport::default()), |plan| apply::undo(&plan))
            }
            Err(error) => Err(error),
        }
    }

    fn outcome(&self, intent: &Intent) -> Result<Outcome> {
        // Whatever was done of it, it can be carried out again.
        if let Work::Commit(held) = work(intent)? {
            OpenPlan::read(&held.plan)?;
        }
        Ok(Outcome::NotDone)
    }

    fn check_undo(&self, intent: &Intent) -> Result<Vec<Conflict>> {
        let Work::Commit(held) = work(intent)? else {
            return Ok(Vec::new());
        };
        let plan = OpenPlan::read(&held.plan)?;
        plan.map_or_else(|| Ok(Vec::new()), |plan| apply::check_undo(&plan))
    }

    fn cleanup(&self, sandbox: &SandboxRef, _: &Target, _: Option<&Path>) -> Result<()> {
        // The holder of one that was only begun ends when its area goes.
        if sandbox.metadata.is_null() {
            return Ok(());
        }
        let HeldMetadata { of, .. } = tree::metadata(sandbox)?;
        end(&of.area, &of.original)
    }
}
