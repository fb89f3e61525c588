//! The commit point, and what follows it: every step is carried out, or, until the first that cannot be taken back,
//! all of them are taken back.

use super::revert::Reverted;
use super::step::{self, Direction};
use super::{Execution, Settled};
use crate::error::{Error, Result, chain};
use crate::failpoints;
use crate::model::{JournaledWork, Phase};
use crate::strategy::{Intent, Outcome};

/// How often the step of a commit that can only go forward is tried before it is left to `recover`.
const ATTEMPTS: usize = 2;

/// Something that can no longer fail for reasons that could have been known.
pub(crate) struct Prepared<'a>(pub(super) Execution<'a>);

/// Something that happens, whichever process carries it out.
pub(crate) struct Decided<'a>(pub(super) Execution<'a>);

/// Why not everything was carried out.
pub(super) enum Stopped {
    /// Everything was taken back, as far as that says.
    Reverted(Box<Reverted>, Error),
    /// It has to be gone on with.
    Unfinished(Error),
}

/// What is over.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What was done to each resource, in a few words, where the strategy says so.
    pub(crate) messages: Vec<(String, String)>,
    /// What could not be removed, and why: no original is concerned.
    pub(crate) left: Vec<(String, String)>,
}

/// What became of one step that cannot be taken back: done, in these words; not done, or not known, and why.
enum Carried {
    Done(String),
    NotDone(Error),
    Unknown(String),
}

impl<'a> Prepared<'a> {
    /// Decides that it happens. From here on the process that finds it carries it out.
    pub(crate) fn decide(self) -> Result<Decided<'a>> {
        let mut this = self.0;
        if this.engine.observer.is_cancelled() {
            return Err(this.drop_all(Error::Cancelled));
        }
        if let Err(cause) = this.promise() {
            return Err(this.drop_all(cause));
        }
        let bug = match this.journal.work {
            JournaledWork::Restore => "restore-undecided",
            _ => "no-decision",
        };
        if !failpoints::bug(bug)
            && let Err(error) = this.set_phase(Phase::Decided)
        {
            // It may be that it is on disk all the same; giving up says the opposite, durably,
            // before anything is removed.
            return Err(this.drop_all(error));
        }
        Ok(Decided(this))
    }
}

impl Decided<'_> {
    /// Carries every step out, those that can be taken back first (rule C8), and ends it.
    ///
    /// A failure of any kind takes back what was done, last first (rule C4), until `forward` is recorded, before the
    /// first step that cannot be taken back. From then on nothing is taken back: what fails is tried again, by this
    /// process and then by `recover` (rule C18). Only where the irreversible step itself is known not to have happened
    /// is everything taken back, since nothing else was done for good then.
    pub(crate) fn execute(self) -> Result<Ended> {
        let mut this = self.0;
        let messages = this
            .carry_out(&Settled::new())
            .map_err(|stopped| match stopped {
                Stopped::Unfinished(error) => error,
                Stopped::Reverted(reverted, cause) => {
                    reverted.into_error(&this.plan, this.journal.work, cause)
                }
            })?;
        let left = this.finish()?;
        Ok(Ended { messages, left })
    }
}

impl Execution<'_> {
    /// Has every member promise what can only go forward, now that what they need is stored.
    fn promise(&self) -> Result<()> {
        for (position, member) in self.members.iter().enumerate() {
            let promises = member.direction(self.journal.work) == Direction::ForwardOnly;
            let Some(intent) = self.prepared(position)?.filter(|_| promises) else {
                continue;
            };
            let promised = member.call(|strategy| strategy.promise(&intent));
            promised.map_err(|cause| self.failed(position, cause))?;
        }
        Ok(())
    }
}

type Steps<T> = std::result::Result<T, Stopped>;

impl Execution<'_> {
    /// Carries out what is not done yet; `settled` is what a person says of steps whose outcome is not known. Returns
    /// what was done for each member, in a few words.
    pub(super) fn carry_out(&mut self, settled: &Settled) -> Steps<Vec<(String, String)>> {
        let begun = self.journal.phase == Phase::Forward;
        if failpoints::bug("applied-too-early") && self.journal.work == JournaledWork::Commit {
            let noted = self.set_phase(Phase::Applied);
            noted.map_err(Stopped::Unfinished)?;
        }
        // Once `forward` is recorded, all of these were carried out, durably.
        if !begun {
            self.apply_reversible()?;
        }
        let done = self.apply_final(settled, begun)?;
        self.note_applied().map_err(Stopped::Unfinished)?;
        Ok(done)
    }

    /// What is still to be done for a member, by a step that can, or cannot, be taken back.
    fn to_do(&self, position: usize, reversible: bool) -> Steps<Option<Intent>> {
        let direction = self.members[position].direction(self.journal.work);
        let other = (direction == Direction::Reversible) != reversible;
        match other || self.journal.members[position].carried {
            true => Ok(None),
            false => self.intent(position).map_err(Stopped::Unfinished),
        }
    }

    fn apply_reversible(&mut self) -> Steps<()> {
        for position in 0..self.members.len() {
            let Some(intent) = self.to_do(position, true)? else {
                continue;
            };
            let (work, member) = (self.journal.work, &self.members[position]);
            let applied = match self.engine.observer.is_cancelled() {
                true => Err(Error::Cancelled),
                false => step::apply(&self.engine, work, member, &intent),
            };
            if let Err(cause) = applied {
                return Err(self.back_out(position, cause));
            }
        }
        Ok(())
    }

    /// Carries out what cannot be taken back; `begun`: another process may have begun it.
    fn apply_final(&mut self, settled: &Settled, mut begun: bool) -> Steps<Vec<(String, String)>> {
        let (mut done, mut failed, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for position in 0..self.members.len() {
            let Some(intent) = self.to_do(position, false)? else {
                continue;
            };
            if let Err(cause) = self.go_forward() {
                return Err(self.back_out(position, cause));
            }
            let member = &self.members[position];
            let (name, at) = (member.name(), member.resource.at.clone());
            let irreversible = member.direction(self.journal.work) == Direction::Irreversible;
            // As long as nothing was done for good, everything may still have to be taken back.
            let first = irreversible && !self.journal.members.iter().any(|one| one.carried);
            let asks = begun.then_some(settled);
            // Nothing after such a step is begun before it is recorded as done.
            begun &= !first;
            match self.carry_one(position, &intent, (asks, first)) {
                Ok(Carried::Done(message)) => done.push((name, message)),
                Ok(Carried::NotDone(cause)) if first => return Err(self.back_out(position, cause)),
                Ok(Carried::NotDone(cause)) => failed.push((name, chain(&cause))),
                Ok(Carried::Unknown(why)) => {
                    unknown.push((name, at, why));
                    if first {
                        break;
                    }
                }
                Err(cause) => {
                    failed.push((name, chain(&cause)));
                    break;
                }
            }
        }
        if failed.is_empty() && unknown.is_empty() {
            return Ok(done);
        }
        let done = done.into_iter().map(|(name, _)| name).collect();
        Err(Stopped::Unfinished(self.forward(done, failed, unknown)))
    }

    /// Records the point of no return, before the first step that cannot be taken back (rule C18).
    fn go_forward(&mut self) -> Result<()> {
        if self.journal.phase == Phase::Forward || failpoints::bug("forward-not-noted") {
            return Ok(());
        }
        if self.engine.observer.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.set_phase(Phase::Forward)
    }

    /// Carries out one step that cannot be taken back, and records that it is done. One that another process may have
    /// begun is asked for its outcome first (rule C19); `first`: nothing is done for good yet.
    fn carry_one(
        &mut self,
        position: usize,
        intent: &Intent,
        (begun, first): (Option<&Settled>, bool),
    ) -> Result<Carried> {
        let known = begun.and_then(|settled| self.ask(position, intent, settled, first));
        let carried = known.unwrap_or_else(|| self.attempt(position, intent));
        if matches!(carried, Carried::Done(_)) && self.journal.work == JournaledWork::Commit {
            self.journal.members[position].carried = true;
            self.engine.store.set_carried(self.journal.id, position)?;
        }
        Ok(carried)
    }

    /// What is known of a step that may have been begun; `None`: it was not carried out, and is tried again. Where a person
    /// says so of the first one, everything is taken back instead.
    fn ask(
        &self,
        position: usize,
        intent: &Intent,
        settled: &Settled,
        first: bool,
    ) -> Option<Carried> {
        let member = &self.members[position];
        let asked = step::outcome(self.journal.work, member, intent);
        let told = settled.get(&member.resource.name).copied();
        match (&asked, told) {
            (Ok(Outcome::Done), _) => Some(Carried::Done(String::new())),
            (_, Some(Outcome::NotDone)) if first => Some(Carried::NotDone(Error::Interrupted {
                why: "it was interrupted, and did not happen".to_owned(),
            })),
            (Ok(Outcome::NotDone), _) | (_, Some(Outcome::NotDone)) => None,
            (_, Some(Outcome::Done)) => Some(Carried::Done(String::new())),
            _ => Some(not_known(asked, "it was interrupted")),
        }
    }

    /// Tries a step. Of one that fails, the strategy says whether it was carried out all the same: that is never guessed.
    fn attempt(&self, position: usize, intent: &Intent) -> Carried {
        let (work, member) = (self.journal.work, &self.members[position]);
        let mut left = match (work, member.direction(work)) {
            (JournaledWork::Commit, Direction::ForwardOnly) => ATTEMPTS,
            _ => 1,
        };
        loop {
            left -= 1;
            let cause = match step::apply(&self.engine, work, member, intent) {
                Ok(message) => return Carried::Done(message),
                Err(cause) => cause,
            };
            return match step::outcome(work, member, intent) {
                Ok(Outcome::Done) => Carried::Done(String::new()),
                Ok(Outcome::NotDone) if left > 0 => continue,
                Ok(Outcome::NotDone) => Carried::NotDone(cause),
                asked => not_known(asked, &chain(&cause)),
            };
        }
    }

    /// Records that every original holds the new state. What else is journaled needs no such record: it ends at once.
    fn note_applied(&mut self) -> Result<()> {
        if self.journal.work != JournaledWork::Commit {
            return Ok(());
        }
        if failpoints::bug("sandbox-removed-early") {
            let mut members = self.members.iter();
            members.try_for_each(|member| self.release(member))?;
        }
        let noted = self.set_phase(Phase::Applied);
        noted.map_err(|error| self.unrecorded(error))
    }

    /// Takes everything back, also what a process before this one may have begun.
    fn back_out(&mut self, position: usize, cause: Error) -> Stopped {
        let cause = self.failed(position, cause);
        match self.give_up() {
            Ok(reverted) => Stopped::Reverted(Box::new(reverted), cause),
            Err(error) => Stopped::Unfinished(self.undecided(cause, &error)),
        }
    }
}

/// A step whose outcome is not known, and why.
fn not_known(asked: Result<Outcome>, why: &str) -> Carried {
    Carried::Unknown(match asked {
        Ok(_) => why.to_owned(),
        Err(error) => format!("{why}; {}", chain(&error)),
    })
}
