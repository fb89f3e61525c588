//! How many sandboxes are committed as one: all of them or none, whatever happens.
//!
//! # Invariants
//!
//! 1. Before the decision no original is touched. Everything that can fail comes before it: the
//!    diff, the conflicts, the space, the staging (rule C2).
//! 2. The decision is one transaction of the state store. Without it on disk the plan comes out
//!    old; with it, new, or, if that is impossible, old everywhere (rules C1, C3).
//! 3. What is needed to carry a member out, or to take it back, is durable before the decision, and
//!    never removed before the store has durably forgotten the need for it.
//! 4. Carrying out and taking back can both be repeated from wherever they stopped (rule C3).
//! 5. A sandbox is removed only when every original holds the new state, durably: until then the
//!    whole commit can be tried again (rule C6). One that stays shares nothing with its original.
//! 6. What takes back, recovers or removes many never stops at the first failure (rules C4, C17).
//! 7. One process at a time works on a commit. It holds the lock of the plan and those of all
//!    originals, taken in one order, and both end with it (rule C14).
//!
//! # States
//!
//! ```text
//!            prepare            decide            apply              finish
//! Previewed ────────▶ Prepared ────────▶ Decided ────────▶ Applied ─────────▶ Committed
//!    │                   │                  │                                    │
//!    │ nothing written   │ drop             │ abort: undo, last first            │ undo
//!    ▼                   ▼                  ▼                                    ▼
//!   old                 old                old                                 Undoing ─▶ old
//! ```
//!
//! A return to a checkpoint is journaled in the same way ([`crate::checkpoint`]). So is a rollback, which begins as
//! `decided`, since nothing of it has to be staged, and only goes forward: `recover` discards what is left. Creating
//! and removing a plan are recorded in the state of the plan instead, since nothing else can be done with it then.
//!
//! Each arrow consumes a value and returns the next, so that what was not decided cannot be
//! applied. The journal knows the phase; whoever finds it goes on:
//!
//! | journal says | transition | function | found by `recover` |
//! |---|---|---|---|
//! | nothing | look, compare, measure | [`Batch::preview`] | |
//! | `preparing` | stage each member, children first; one sync, then all intents are stored | [`Previewed::prepare`] | dropped: old |
//! | `decided` | the commit point | [`Prepared::decide`] | |
//! | `decided` | carry out, undoable members first | [`Decided::apply`] | carried out again: new |
//! | `aborting` | take back, last first | `abort::take_back` | taken back further: old |
//! | `applied` | remove the sandboxes, note what is left for undo | [`Applied::finish`] | finished: new |
//! | `committed` | – | – | it is over |
//! | `undoing` | take back, last first | [`undo::undo`] | taken back further: old |
//! | `undone` | – | – | it is over |
//!
//! | file | promise |
//! |---|---|
//! | `preview` | what would happen; nothing is written |
//! | `prepare` | everything that can fail |
//! | `decide` | the commit point |
//! | `apply` | carry out, then finish |
//! | `abort` | take back whatever was done, and say so |
//! | `recover` | bring what a dead process left to one side |
//! | `undo` | take a finished commit back |
//! | `select` | which changes go together when only some were asked for |
//!
//! Of a plan of which only a part was asked for, nothing is removed: `finish` tells each sandbox what of
//! it is released now, the plan stays open, and the commit can be undone for as long as it does.

mod abort;
mod apply;
mod decide;
pub mod lent;
mod prepare;
mod preview;
pub mod recover;
mod select;
pub mod undo;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub use apply::{Applied, Committed, Decided};
pub use decide::Prepared;
pub use preview::{CommitPreview, MemberPreview, Previewed, Terms, check_expected};
pub use recover::{Recovered, Side};
pub use undo::Undone;

use crate::error::{Error, Result, chain};
use crate::event::Observer;
use crate::fs::{Dir, private, remove, times};
use crate::model::text::Location;
use crate::model::{Origin, Phase};
use crate::store::{Journal, Plan, Resource, Sandbox, Store};
use crate::strategy::{Capabilities, Intent, Registry, Strategy, StrategyError};

/// What a commit works with.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// Where decisions are durable.
    pub store: &'a Store,
    /// The strategies there are.
    pub registry: &'a Registry,
    /// The time and fresh ids.
    pub origin: &'a dyn Origin,
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// Whether sandboxes stay when their commit is over.
    pub keeps: bool,
    /// Where the state lives.
    pub home: &'a Dir,
}

/// One sandbox on its way.
pub struct Member {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// What it is a sandbox of.
    pub resource: Resource,
    /// How deep the resource lies in the graph of resources: children are deeper than parents.
    pub depth: usize,
    strategy: Arc<dyn Strategy>,
}

impl Member {
    /// A member, if its strategy is known.
    pub fn new(
        engine: &Engine<'_>,
        sandbox: Sandbox,
        resource: Resource,
        depth: usize,
    ) -> Result<Self> {
        let strategy = Arc::clone(engine.registry.get(&sandbox.reference.strategy)?);
        Ok(Self {
            sandbox,
            resource,
            depth,
            strategy,
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.strategy.capabilities()
    }

    /// Whether it can neither be promised nor be taken back.
    fn is_irreversible(&self) -> bool {
        let capabilities = self.capabilities();
        !capabilities.prepares && !capabilities.undoes
    }

    /// Undoable members first, those that cannot be undone last, children before parents in each
    /// group (rule C8).
    fn rank(&self) -> (u8, std::cmp::Reverse<usize>) {
        let capabilities = self.capabilities();
        let group = match (capabilities.undoes, capabilities.prepares) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (group, std::cmp::Reverse(self.depth))
    }

    /// The file system of the original; nothing was moved on one that is not there.
    fn device(&self) -> Result<u64> {
        match Dir::open(self.resource.root()) {
            Err(error) if error.is_absent() => Ok(0),
            dir => Ok(dir?.meta()?.dev),
        }
    }

    pub(crate) fn name(&self) -> String {
        self.resource.name.clone()
    }

    /// Calls the strategy; a panic is a failure like any other (rule C4).
    pub(crate) fn call<T>(
        &self,
        work: impl FnOnce(&dyn Strategy) -> crate::strategy::Result<T>,
    ) -> Result<T> {
        let called = std::panic::catch_unwind(AssertUnwindSafe(|| work(&*self.strategy)));
        match called {
            Ok(answer) => Ok(answer?),
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned());
                Err(Error::Panicked {
                    resource: self.name(),
                    what: text.unwrap_or_else(|| "it said nothing".to_owned()),
                })
            }
        }
    }
}

/// All sandboxes of a plan, in the order in which they are committed.
pub struct Batch<'a> {
    engine: Engine<'a>,
    plan: Plan,
    members: Vec<Member>,
}

impl<'a> Batch<'a> {
    /// The sandboxes of `plan`, whose locks the caller holds.
    pub fn new(engine: Engine<'a>, plan: Plan, mut members: Vec<Member>) -> Self {
        members.sort_by_key(Member::rank);
        Self {
            engine,
            plan,
            members,
        }
    }
}

/// What a journal says of one member, read back.
pub(crate) fn intent_of(journal: &Journal, position: usize) -> Result<Option<Intent>> {
    let text = journal.members[position].intent.as_deref();
    text.map(read_intent).transpose()
}

fn read_intent(text: &str) -> Result<Intent> {
    serde_json::from_str(text).map_err(|error| {
        Error::from(StrategyError::Damaged {
            what: format!("what a commit needs cannot be read back ({error})"),
        })
    })
}

/// Refuses what another process prepared where anything that a member needs is not what was written (rule C3): nothing
/// is touched then. What was never decided needs nothing.
pub fn verify(plan: &Plan, journal: &Journal, members: &[Member]) -> Result<()> {
    if journal.phase == Phase::Preparing {
        return Ok(());
    }
    for (position, member) in members.iter().enumerate() {
        let Some(intent) = intent_of(journal, position)?.filter(|one| !one.0.is_null()) else {
            continue;
        };
        let reference = &member.sandbox.reference;
        match member.call(|strategy| strategy.verify(reference, &intent)) {
            Err(Error::Strategy(error @ StrategyError::Altered { .. })) => {
                return Err(Error::Damaged {
                    of: journal.work,
                    plan: plan.name.clone(),
                    what: error.to_string(),
                });
            }
            answer => answer?,
        }
    }
    Ok(())
}

/// Removes the area of a commit; done already if it is not there, or if there never was one.
pub fn remove_area(home: &Dir, area: &Location) -> Result<()> {
    let path = area.as_path();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match Dir::open(parent) {
        Err(error) if error.is_absent() => return Ok(()),
        parent => parent?,
    };
    let name = name.as_encoded_bytes();
    if parent.stat(name)?.is_none() {
        return Ok(());
    }
    times::traceless(home, &parent, name, || remove::remove(&parent, name))?;
    Ok(())
}

/// Removes what was staged, or kept for undo; says what could not be removed. `cleanup` of the plan
/// removes it later.
pub(crate) fn remove_areas(engine: &Engine<'_>, journal: &Journal) -> Vec<String> {
    let mut left = Vec::new();
    for member in &journal.members {
        if let Err(error) = remove_area(engine.home, &member.area) {
            left.push(chain(&error));
        }
    }
    left
}

/// Makes the area of a commit, empty and private; returns the directory it lies in, which the caller syncs.
pub(crate) fn make_area(home: &Dir, area: &Location) -> Result<Dir> {
    let path = area.as_path();
    let parent = Dir::open(path.parent().unwrap_or(path))?;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let made = times::traceless(home, &parent, name, || {
        remove::remove(&parent, name)?;
        private::make_plain(&parent, name)
    })?;
    private::keep_reserve(&made);
    Ok(parent)
}
