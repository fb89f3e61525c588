//! A plan is judged by commands that run in it, and is afterwards what it was before.
//!
//! Whoever judges is alone from the first look to the end of the release: nobody's work can come between
//! what was judged and what is released, or go with what the commands wrote. A checkpoint of a kind of its own is
//! the journal: where one is found and nobody judges, whoever did died, and the plan goes back to it first.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{Manager, Restored};
use crate::error::{Error, Result, chain};
use crate::event::{Observer, Unobserved};
use crate::fs::private::Lock;
use crate::model::PlanId;
use crate::store::{Checkpoint, Plan};

/// The reason of the checkpoint that a plan returns to after it was judged.
pub(super) const REASON: &str = "before_validation";

/// How long one waits before looking again.
const PAUSE: Duration = Duration::from_millis(5);

fn lock_name(plan: &Plan) -> Vec<u8> {
    format!("{}.judged", plan.id).into_bytes()
}

/// A plan that is being judged. Other processes leave it alone for as long as this lives; what this manager
/// does with it meanwhile is done by the judge.
pub struct Validation<'a> {
    manager: &'a Manager,
    plan: &'a Plan,
    message: Option<&'a str>,
    since: Timestamp,
    before: Checkpoint,
    _lock: Lock,
}

impl Validation<'_> {
    /// Puts into the log that the commit was stopped, and why: it is one that failed, with what was said about it.
    pub fn stopped(&self, why: &str) {
        self.manager
            .note_stopped(self.plan, self.message, self.since, why);
    }

    /// Takes the plan back to what it was before. It stays in these hands.
    pub fn take_back(&self, observer: &dyn Observer) -> Result<()> {
        let _lock = self.manager.lock(self.plan, false)?;
        self.manager.unjudge(self.plan, &self.before, observer)?;
        Ok(())
    }
}

impl Drop for Validation<'_> {
    fn drop(&mut self) {
        self.manager.judging().retain(|id| *id != self.plan.id);
    }
}

impl Manager {
    /// Keeps a plan as it is, for commands to judge it that write whatever they want, before it is committed with
    /// this message; refuses while anybody else is inside.
    pub fn begin_validation<'a>(
        &'a self,
        plan: &'a Plan,
        message: Option<&'a str>,
        observer: &dyn Observer,
    ) -> Result<Validation<'a>> {
        self.permit_commit(plan)?;
        let _lock = self.lock(plan, false)?;
        self.check_quiet(plan)?;
        let lock = Lock::take(&self.locks, &lock_name(plan), false, Duration::ZERO)?;
        let lock = lock.ok_or_else(|| self.judged_by_others(plan))?;
        lock.note(&std::process::id().to_string())?;
        let _originals = self.steady_originals(plan)?;
        let since = self.options.origin.now();
        let before = self.keep(plan, None, Some(REASON), (false, observer));
        let before = before.inspect_err(|error| {
            self.note_stopped(plan, message, since, &chain(error));
        })?;
        self.judging().push(plan.id);
        Ok(Validation {
            manager: self,
            plan,
            message,
            since,
            before,
            _lock: lock,
        })
    }

    /// The plans that this manager judges now.
    fn judging(&self) -> std::sync::MutexGuard<'_, Vec<PlanId>> {
        let judging = self.judging.lock();
        judging.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether another process judges a plan.
    pub(super) fn is_judged_by_others(&self, plan: &Plan) -> Result<bool> {
        let name = lock_name(plan);
        if self.judging().contains(&plan.id) || self.locks.stat(&name)?.is_none() {
            return Ok(false);
        }
        Ok(Lock::take(&self.locks, &name, true, Duration::ZERO)?.is_none())
    }

    fn judged_by_others(&self, plan: &Plan) -> Error {
        let by = Lock::noted(&self.locks, &lock_name(plan)).unwrap_or_default();
        Error::Busy {
            plan: plan.name.clone(),
            owner: Some(format!("process {by} validates it")),
        }
    }

    /// Takes the lock of a plan alone, once nobody judges it.
    pub(super) fn lock_unjudged(&self, plan: &Plan) -> Result<Option<Lock>> {
        let (start, name) = (Instant::now(), plan.id.to_string());
        loop {
            let left = self.options.patience.saturating_sub(start.elapsed());
            let lock = Lock::take(&self.locks, name.as_bytes(), false, left)?;
            if lock.is_none() || !self.is_judged_by_others(plan)? {
                return Ok(lock);
            }
            drop(lock);
            if start.elapsed() >= self.options.patience {
                return Err(self.judged_by_others(plan));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether a validation of a plan was begun whose process died.
    pub(super) fn is_half_judged(&self, plan: &Plan) -> Result<bool> {
        Ok(!self.judging().contains(&plan.id)
            && self.store.has_checkpoint(plan.id, REASON)?
            && !self.is_judged_by_others(plan)?)
    }

    /// Takes back what such a validation wrote; the plan is locked.
    pub(super) fn settle_validation(&self, plan: &Plan) -> Result<()> {
        if !self.is_half_judged(plan)? {
            return Ok(());
        }
        let kept = self.checkpoints(plan)?;
        let left = kept
            .iter()
            .find(|one| one.reason.as_deref() == Some(REASON));
        let Some(before) = left else {
            return Ok(());
        };
        let restored = self.unjudge(plan, before, &Unobserved)?;
        self.notice(format!(
            "a validation of the plan '{}' was interrupted; what it wrote was taken back, and is kept as {}",
            plan.name, restored.before.id
        ));
        Ok(())
    }

    fn unjudge(
        &self,
        plan: &Plan,
        before: &Checkpoint,
        observer: &dyn Observer,
    ) -> Result<Restored> {
        self.check_quiet(plan)?;
        let restored = self.return_to(plan, before, observer)?;
        self.store.forget_checkpoint(before.id)?;
        self.let_go(plan)?;
        Ok(restored)
    }

    /// Removes the lock of a plan that is over.
    pub(super) fn forget_judged(&self, plan: &Plan) -> Result<()> {
        let name = lock_name(plan);
        if self.locks.stat(&name)?.is_none() || self.judging().contains(&plan.id) {
            return Ok(());
        }
        match Lock::take(&self.locks, &name, false, Duration::ZERO)? {
            Some(lock) => Ok(lock.remove(&self.locks, &name)?),
            None => Ok(()),
        }
    }
}
