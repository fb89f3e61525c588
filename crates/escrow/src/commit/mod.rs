//! Commits many sandboxes as one: all of them or none, whatever fails.
//!
//! # Invariants
//!
//! 1. Before the decision no original is touched. Everything that can fail comes before it: the
//!    diff, the conflicts, the space, the staging (rule C2).
//! 2. The decision is one transaction of the state store. Without it on disk the plan ends
//!    old; with it, new, or, until the point of no return, old everywhere (rules C1, C3).
//! 3. Before the first step that cannot be taken back the journal says `forward`, durably. From then on nothing is
//!    taken back: the rest is tried again, by this process and then by `recover` (rule C18). The one exception is the
//!    first irreversible step itself: where it is known not to have happened, nothing was done for good.
//! 4. A step that cannot be taken back and may have been begun is asked for its outcome. What is not known waits
//!    for a person; it is never guessed, and nothing is done twice (rule C19).
//! 5. What is needed to carry a member out, or to take it back, is durable before the decision, and
//!    never removed before the store has durably forgotten the need for it.
//! 6. Carrying out and taking back can both be repeated from wherever they stopped (rule C3).
//! 7. A sandbox is removed only when every original holds the new state, durably: until then the
//!    whole commit can be tried again (rule C6). One that stays shares nothing with its original.
//! 8. What takes back, recovers or removes many never stops at the first failure (rules C4, C17).
//! 9. One process at a time works on a commit. It holds the lock of the plan and those of all
//!    originals, taken in one order, and both end with it (rule C14).
//!
//! # States
//!
//! ```text
//!            prepare           decide          carry out: reversible · irreversible · forward-only         finish
//! Previewed ────────▶ Prepared ──────▶ Decided ───────────────┬────────────▶ Forward ────────▶ Applied ────────▶ Committed
//!    │                   │                │                   │ recorded first  │ ▲                                │ undo
//!    │ nothing written   │ drop           │ abort: last first │                 │ └─ retried                       ▼
//!    ▼                   ▼                ▼                   └─────────────────┤                               Undoing ─▶ old
//!   old                 old              old ◀─── only if the first irreversible step did not happen
//! ```
//!
//! A restore and a rollback take the same way. Every step of a restore can be taken back, and it ends without a
//! record of its own. A rollback begins as `forward`: nothing of it has to be staged, and nothing of it can be
//! taken back. Creating and removing a plan are recorded in the state of the plan instead, since nothing else
//! can be done with it then.
//!
//! Each arrow consumes a value and returns the next, so that what was not decided cannot be
//! applied. The journal knows the phase; the process that finds it goes on:
//!
//! | journal says | transition | function | found by `Execution::recover` |
//! |---|---|---|---|
//! | nothing | look, compare, measure | `Batch::preview` | |
//! | `preparing` | stage each member, children first; one sync, then all intents are stored | `Previewed::prepare`, `prepare_restore` | dropped: old |
//! | `decided` | the commit point | `Prepared::decide` | |
//! | `decided` | carry out what can be taken back | `Decided::execute` | carried out again: new |
//! | `forward` | the point of no return; carry out the rest | `Decided::execute`, `prepare_discard` | asked for its outcome, then carried out: new |
//! | `aborting` | take back, last first | `Execution::go_back` | taken back further: old |
//! | `applied` | remove the sandboxes, note what is left for undo | `Execution::finish` | finished: new |
//! | `committed` | – | – | it is over |
//! | `undoing` | take back, last first | `Execution::undo` | taken back further: old |
//! | `taken_back` | open the plan again with what was released | `Manager::reopen` | old; the next undo opens it |
//! | `undone` | – | – | it is over |
//!
//! Of a plan of which only a part was asked for, nothing is removed: the plan stays open, the commit can be undone for as
//! long as it does, and until then each sandbox is opened with its intent, which says what of it is released.

mod execute;
mod finish;
mod prepare;
mod preview;
mod recover;
mod revert;
mod select;
pub(crate) mod shared_layers;
mod step;
mod undo;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub(crate) use prepare::{Return, prepare_discard, prepare_restore};
pub(crate) use preview::Previewed;
pub use preview::{CommitPreview, CommitTerms, MemberPreview, check_expected};
pub use recover::{RecoveredPlan, RecoveredTo};
pub(crate) use select::{discarded, is_released};
pub use undo::{UndoReport, UndoRequest};

use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::workspace::{self, Workspaces};
use crate::model::text::Location;
use crate::model::{IdSource, JournaledWork, Phase};
use crate::store::{JournalEntry, Plan, Resource, SandboxRecord, Store};
use crate::strategy::{
    Capabilities, Intent, Outcome, Registry, Sandbox as OpenSandbox, Session, Strategy,
    StrategyError, Target,
};

/// What a commit works with.
#[derive(Clone, Copy)]
pub(crate) struct CommitEngine<'a> {
    pub(crate) store: &'a Store,
    pub(crate) registry: &'a Registry,
    pub(crate) origin: &'a dyn IdSource,
    pub(crate) observer: &'a dyn Observer,
    /// Whether sandboxes stay when their commit is over.
    pub(crate) keeps: bool,
    /// Where areas are made and removed.
    pub(crate) areas: Workspaces<'a>,
}

impl CommitEngine<'_> {
    /// Lets the strategies forget what they remember, where nothing is left that they could need it for.
    pub(crate) fn forget(&self) -> Result<()> {
        match self.store.is_idle()? {
            true => Ok(self.registry.forget()?),
            false => Ok(()),
        }
    }
}

/// What a person says of steps whose outcome no strategy knows: resource, and whether it was carried out.
pub type Settled = BTreeMap<String, Outcome>;

/// One sandbox on its way.
pub(crate) struct Member {
    pub(crate) sandbox: SandboxRecord,
    pub(crate) resource: Resource,
    /// The resource as its strategy is given it, with the options of the configuration.
    target: Target,
    /// How deep the resource lies in the graph of resources: children are deeper than parents.
    pub(crate) depth: usize,
    strategy: Arc<dyn Strategy>,
}

impl Member {
    pub(crate) fn new(
        engine: &CommitEngine<'_>,
        sandbox: SandboxRecord,
        resource: Resource,
        target: Target,
        depth: usize,
    ) -> Result<Self> {
        let strategy = Arc::clone(engine.registry.of(&sandbox.reference)?);
        Ok(Self {
            sandbox,
            resource,
            target,
            depth,
            strategy,
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.strategy.capabilities_of(&self.sandbox.reference)
    }

    pub(crate) fn name(&self) -> String {
        self.resource.name.clone()
    }

    /// Opens a session with the sandbox.
    pub(crate) fn open(&self, store: &Store, session: Session) -> Result<Box<dyn OpenSandbox>> {
        let parts = standing_parts(store, &self.sandbox)?;
        self.call(|strategy| strategy.open(&self.sandbox.reference, session, &parts))
    }

    /// Calls the strategy; a panic is a failure like any other (rule C4).
    pub(crate) fn call<T>(
        &self,
        work: impl FnOnce(&dyn Strategy) -> crate::strategy::Result<T>,
    ) -> Result<T> {
        self.guarded(|| work(&*self.strategy))
    }

    /// The same for an open session.
    pub(crate) fn session<T>(
        &self,
        session: &dyn OpenSandbox,
        work: impl FnOnce(&dyn OpenSandbox) -> crate::strategy::Result<T>,
    ) -> Result<T> {
        self.guarded(|| work(session))
    }

    fn guarded<T>(&self, work: impl FnOnce() -> crate::strategy::Result<T>) -> Result<T> {
        let called = std::panic::catch_unwind(AssertUnwindSafe(work));
        match called {
            Ok(answer) => Ok(answer?),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned());
                Err(Error::Panicked {
                    resource: self.name(),
                    what: text.unwrap_or_else(|| "no message".to_owned()),
                })
            }
        }
    }
}

/// All sandboxes of a plan, in the order in which they are committed.
pub(crate) struct Batch<'a> {
    engine: CommitEngine<'a>,
    plan: Plan,
    members: Vec<Member>,
}

impl<'a> Batch<'a> {
    /// The sandboxes of `plan`, whose locks the caller holds: those that can be taken back first, those that can
    /// only go forward last, children before parents in each group (rule C8).
    pub(crate) fn new(engine: CommitEngine<'a>, plan: Plan, mut members: Vec<Member>) -> Self {
        let rank = |member: &Member| {
            (
                member.direction(JournaledWork::Commit),
                std::cmp::Reverse(member.depth),
            )
        };
        members.sort_by_key(rank);
        Self {
            engine,
            plan,
            members,
        }
    }
}

/// A journal and its members, in its order: what the executor works on. The caller holds the locks of the plan and
/// of all originals.
pub(crate) struct Execution<'a> {
    engine: CommitEngine<'a>,
    plan: Plan,
    journal: JournalEntry,
    members: Vec<Member>,
}

impl<'a> Execution<'a> {
    /// What another process recorded. Refuses where anything that a member needs is not what was written (rule C3);
    /// nothing is touched then. What was never decided needs nothing.
    pub(crate) fn found(
        engine: CommitEngine<'a>,
        plan: Plan,
        journal: JournalEntry,
        members: Vec<Member>,
    ) -> Result<Self> {
        let found = Self {
            engine,
            plan,
            journal,
            members,
        };
        let damaged = |what: String| Error::Damaged {
            of: found.journal.work,
            plan: found.plan.name.clone(),
            what,
        };
        if let Some(what) = &found.journal.damaged {
            return Err(damaged(what.clone()));
        }
        if found.journal.phase == Phase::Preparing {
            return Ok(found);
        }
        for (position, member) in found.members.iter().enumerate() {
            let recorded = &found.journal.members[position].area;
            let none = recorded.as_bytes().is_empty();
            if !none && !workspace::is_of(recorded.as_path(), Some(member.sandbox.id)) {
                return Err(damaged(format!(
                    "'{recorded}' is no area of a commit of its sandbox"
                )));
            }
            let Some(intent) = found.prepared(position)? else {
                continue;
            };
            // Any other answer, or none, is asked for again where it matters.
            if let Err(Error::Strategy(error @ StrategyError::Altered { .. })) =
                member.call(|strategy| strategy.outcome(&intent))
            {
                return Err(damaged(error.to_string()));
            }
        }
        Ok(found)
    }

    /// What the strategy of a member needs; `None` where there is nothing to do for it.
    fn intent(&self, position: usize) -> Result<Option<Intent>> {
        let work = self.journal.work;
        if work == JournaledWork::Rollback {
            return Ok(Some(Intent(serde_json::Value::Null)));
        }
        let text = self.journal.members[position].intent.as_deref();
        let prepares = self.members[position].capabilities().prepares;
        let unchanged = work == JournaledWork::Commit && (prepares || self.journal.part);
        let intent = text.map(read_intent).transpose()?;
        Ok(intent.filter(|intent| !(unchanged && intent.0.is_null())))
    }

    /// The same, where something was prepared: of anything else the strategy knows nothing.
    fn prepared(&self, position: usize) -> Result<Option<Intent>> {
        Ok(self.intent(position)?.filter(|intent| !intent.0.is_null()))
    }

    /// Moves the journal to the next phase, durably, or not at all.
    fn set_phase(&mut self, to: Phase) -> Result<()> {
        let (id, from) = (self.journal.id, self.journal.phase);
        self.engine.store.set_phase(id, from, to)?;
        self.journal.phase = to;
        Ok(())
    }

    /// A failure of one member.
    fn failed(&self, position: usize, cause: Error) -> Error {
        let resource = self.members[position].name();
        match (cause, self.journal.work) {
            (Error::Cancelled, _) => Error::Cancelled,
            (cause, JournaledWork::Restore) => Error::Snapshot {
                resource,
                what: "be brought back".to_owned(),
                cause: Box::new(cause),
            },
            (cause, _) => Error::Member {
                resource,
                cause: Box::new(cause),
            },
        }
    }

    /// A failure after which it is not known what is on disk; recovery finds out.
    fn undecided(&self, cause: Error, why: &Error) -> Error {
        Error::Undecided {
            plan: self.plan.name.clone(),
            cause: Box::new(cause),
            why: chain(why),
        }
    }

    /// What is past its point of no return and not finished.
    fn forward(
        &self,
        done: Vec<String>,
        failed: Vec<(String, String)>,
        unknown: Vec<(String, Location, String)>,
    ) -> Error {
        Error::Forward {
            work: self.journal.work,
            plan: self.plan.name.clone(),
            done,
            failed,
            unknown,
        }
    }

    /// Removes what was staged, or kept for undo; returns what could not be removed, which `cleanup` of the plan
    /// removes later.
    fn remove_areas(&self) -> Vec<String> {
        let areas = self.journal.members.iter().map(|member| &member.area);
        let removed = areas.map(|area| self.engine.areas.remove(area.as_path()));
        removed
            .filter_map(|removed| removed.err().map(|error| chain(&error)))
            .collect()
    }
}

/// The partial commits of a sandbox that can be undone, oldest first: what they released is no change of it.
pub fn standing_parts(store: &Store, sandbox: &SandboxRecord) -> Result<Vec<Intent>> {
    let parts = store.standing_parts(sandbox.id)?;
    let parts = parts.iter().map(|text| read_intent(text));
    let mut parts = parts.collect::<Result<Vec<_>>>()?;
    // In some of them it had no share.
    parts.retain(|intent| !intent.0.is_null());
    Ok(parts)
}

fn read_intent(text: &str) -> Result<Intent> {
    serde_json::from_str(text).map_err(|error| {
        Error::from(StrategyError::Damaged {
            what: format!("the intent cannot be read ({error})"),
        })
    })
}

fn written(intent: &Intent) -> String {
    serde_json::to_string(intent).expect("an intent is JSON")
}

/// What commands of a plan wrote beside its sandboxes, among the areas.
pub(crate) fn scratch_name(plan: &Plan) -> Vec<u8> {
    format!("{}.scratch", plan.id).into_bytes()
}
