//! The commit point: one transaction of the state store.

use super::apply::Decided;
use super::{Engine, Member};
use crate::error::{Error, Result};
use crate::model::Phase;
use crate::seeded;
use crate::store::{Journal, Plan};

/// A commit that can no longer fail for reasons that could have been known.
pub struct Prepared<'a> {
    pub(super) engine: Engine<'a>,
    pub(super) plan: Plan,
    pub(super) journal: Journal,
    pub(super) members: Vec<Member>,
}

impl<'a> Prepared<'a> {
    /// Decides that the commit happens. From here on whoever finds it carries it out.
    pub fn decide(self) -> Result<Decided<'a>> {
        if self.engine.observer.is_cancelled() {
            return Err(self.drop_all(Error::Cancelled));
        }
        let (store, id) = (self.engine.store, self.journal.id);
        let recorded = match seeded::bug("no-decision") {
            true => Ok(()),
            false => store.set_phase(id, Phase::Preparing, Phase::Decided),
        };
        if let Err(error) = recorded {
            // It may be that it is on disk all the same; giving up says the opposite, durably,
            // before anything is removed.
            return Err(self.drop_all(error.into()));
        }
        let Self {
            engine,
            plan,
            mut journal,
            members,
        } = self;
        journal.phase = Phase::Decided;
        Ok(Decided {
            engine,
            plan,
            journal,
            members,
        })
    }
}
