//! The audit log: records every operation and denial, with who, what, when, on what, and how it ended.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Manager;
use crate::error::{Error, Result, chain};
use crate::fs::process::ProcessIdentity;
use crate::model::{Change, DiffView, OperationId, PlanId, ResourcePath, SandboxState};
use crate::store::{
    LogCheck, LoggedOperation, Operation, OperationEnd, OperationOutcome, Plan, Resource,
    SandboxRecord,
};
use crate::strategy::PathSample;

/// How many paths an entry names; of the others it has the number.
const PATHS: usize = PathSample::NAMED;

/// What an operation is about.
pub(super) struct OperationSubject<'a> {
    /// What is done.
    pub(super) action: &'a str,
    /// On which plan.
    pub(super) plan: Option<PlanId>,
    /// On what in it, for people.
    pub(super) target: &'a str,
    /// On which resources.
    pub(super) resources: Vec<String>,
    /// What the user said about it (rule P9).
    pub(super) message: Option<&'a str>,
}

impl<'a> OperationSubject<'a> {
    /// An operation on one resource of a plan.
    pub(super) fn one(action: &'a str, plan: &Plan, target: &'a str, resource: &Resource) -> Self {
        Self {
            action,
            plan: Some(plan.id),
            target,
            resources: vec![resource.name.clone()],
            message: None,
        }
    }

    /// An operation on a resource itself.
    pub(super) fn resource(action: &'a str, name: &'a str) -> Self {
        Self {
            action,
            plan: None,
            target: name,
            resources: vec![name.to_owned()],
            message: None,
        }
    }
}

/// The paths that an operation changed, reported by the process that changes them.
#[derive(Default)]
pub(super) struct TouchedPaths(RefCell<(Vec<String>, u64)>);

impl TouchedPaths {
    pub(super) fn path(&self, resource: &str, path: &ResourcePath) {
        let (paths, count) = &mut *self.0.borrow_mut();
        if paths.len() < PATHS {
            paths.push(format!("{resource}:{path}"));
        }
        *count += 1;
    }

    pub(super) fn some(&self, resource: &str, all: &PathSample) {
        all.first().for_each(|path| self.path(resource, path));
        self.0.borrow_mut().1 += all.count() - all.first().count() as u64;
    }

    pub(super) fn all(&self, resource: &str, diff: &DiffView) {
        for change in &diff.changes {
            self.path(resource, &change.path);
        }
        // What a history changes and the files do not is done all the same.
        let unseen = diff.changes.iter().flat_map(Change::unseen);
        let unseen: BTreeSet<_> = unseen.map(|one| &one.change.path).collect();
        unseen
            .into_iter()
            .for_each(|path| self.path(resource, path));
    }
}

impl Manager {
    /// Everything that was done or denied, or on one plan, oldest first.
    pub fn log(&self, plan: Option<&Plan>) -> Result<Vec<LoggedOperation>> {
        let mut all = Vec::new();
        self.each_logged(plan, |one| {
            all.push(one);
            Ok(())
        })?;
        Ok(all)
    }

    /// The same, one after the other, however many there are.
    pub fn each_logged(
        &self,
        plan: Option<&Plan>,
        mut tell: impl FnMut(LoggedOperation) -> Result<()>,
    ) -> Result<()> {
        let mut after = 0;
        loop {
            let page = self.store.log_page(plan.map(|plan| plan.id), after)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.seq;
            page.into_iter().try_for_each(&mut tell)?;
        }
    }

    /// Whether the log is as it was written (rule S7).
    pub fn check_log(&self, expected: Option<&(u64, String)>) -> Result<LogCheck> {
        Ok(self.store.check_log(expected)?)
    }

    /// The end of the log as `NUMBER:HASH`. Kept elsewhere, it shows later that nothing was cut off.
    pub fn log_head(&self) -> Result<String> {
        Ok(self.store.log_head()?)
    }

    /// What an operation on a plan as a whole is about.
    pub(super) fn about<'a>(
        &self,
        action: &'a str,
        plan: Option<PlanId>,
        target: &'a str,
    ) -> Result<OperationSubject<'a>> {
        let mut members = match plan {
            Some(plan) => self.store.plan_members(plan)?,
            None => Vec::new(),
        };
        // A plan that was committed has only those that are gone.
        let live = |(one, _): &(SandboxRecord, _)| one.state != SandboxState::CleanedUp;
        if members.iter().any(live) {
            members.retain(live);
        }
        let names = members.into_iter().map(|(_, resource)| resource.name);
        let mut resources: Vec<String> = names.collect();
        resources.dedup();
        Ok(OperationSubject {
            action,
            plan,
            target,
            resources,
            message: None,
        })
    }

    /// The same, with what the user said about it, or what else belongs to it.
    pub(super) fn about_with<'a>(
        &self,
        action: &'a str,
        plan: &'a Plan,
        message: Option<&'a str>,
    ) -> Result<OperationSubject<'a>> {
        Ok(OperationSubject {
            message,
            ..self.about(action, Some(plan.id), &plan.name)?
        })
    }

    /// Does `work` and records it.
    pub(super) fn record<T>(
        &self,
        action: &str,
        plan: Option<PlanId>,
        target: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.record_about(self.about(action, plan, target)?, |_| work())
    }

    /// The same, where more is known about it.
    pub(super) fn record_about<T>(
        &self,
        about: OperationSubject<'_>,
        work: impl FnOnce(&TouchedPaths) -> Result<T>,
    ) -> Result<T> {
        let action = about.action;
        let operation = self.operation(about)?;
        self.store.begin(&operation)?;
        let touched = TouchedPaths::default();
        let answer = work(&touched);
        let (paths, path_count) = touched.0.into_inner();
        let now = self.options.origin.now();
        let mut ended = OperationEnd {
            paths,
            path_count,
            ..OperationEnd::plain(OperationOutcome::Done, now)
        };
        match &answer {
            Ok(_) => self.changed.store(true, Ordering::Relaxed),
            Err(Error::Denied { decision, .. }) => {
                ended.outcome = OperationOutcome::Denied;
                ended.reason = Some(decision.reason.clone());
            }
            Err(error) => {
                ended.outcome = OperationOutcome::Failed;
                ended.error = Some(chain(error));
            }
        }
        let ended = self.store.end(operation.id, &ended);
        // The work's own error is the one to report.
        match (answer, ended) {
            (Ok(done), Ok(())) => Ok(done),
            (Ok(done), Err(error)) => {
                let why = chain(&error);
                self.notice(format!(
                    "{action} was done, but could not write the log: {why}"
                ));
                Ok(done)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Notes that the supervisor of a run refused what was asked for inside.
    pub fn note_refusal(&self, plan: &Plan, asked: &str, reason: &str) -> Result<()> {
        let target: String = asked.chars().take(200).collect();
        let about = self.about("ask", Some(plan.id), &target)?;
        Ok(self
            .store
            .note(&self.operation(about)?, &self.denial(reason))?)
    }

    fn denial(&self, reason: &str) -> OperationEnd {
        OperationEnd {
            reason: Some(reason.to_owned()),
            ..OperationEnd::plain(OperationOutcome::Denied, self.options.origin.now())
        }
    }

    /// Notes what was denied before it began.
    pub(super) fn note_denial(&self, about: Result<OperationSubject<'_>>, reason: &str) {
        let operation = about.and_then(|about| self.operation(about));
        let noted = operation.and_then(|one| Ok(self.store.note(&one, &self.denial(reason))?));
        // It stays denied, whether the log knows or not.
        if let Err(error) = noted {
            let why = chain(&error);
            self.notice(format!(
                "this was denied, but the log could not be written: {why}"
            ));
        }
    }

    pub(super) fn operation(&self, about: OperationSubject<'_>) -> Result<Operation> {
        Ok(Operation {
            id: OperationId::new(&*self.options.origin),
            principal: self.options.principal.clone(),
            action: about.action.to_owned(),
            plan_id: about.plan,
            target: about.target.to_owned(),
            owner: ProcessIdentity::me()?,
            started_at: self.options.origin.now(),
            message: about.message.map(str::to_owned),
            resources: about.resources,
        })
    }
}
