//! One fault, what was found after it, and everything that must hold then.
//!
//! After the fault `recover` must succeed without faults, and find nothing the second time. Then:
//!
//! - every resource is old, or every one is new;
//! - what the program said is true: success is success, a plain failure changed nothing, and only exit code 5 ("must be
//!   recovered") and a killed program leave it open on which side it comes out;
//! - a commit that came out old has lost nothing: the sandboxes list the same changes, and the commit succeeds when it
//!   is tried again; one that came out new can be undone;
//! - after `cleanup` nothing is left, in the home or beside the originals.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::door::{Door, Session};
use crate::sweep;
use crate::*;

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Commit,
    Undo,
    Recover,
}

impl Verb {
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Commit => &["commit", PLAN, "--yes"],
            Self::Undo => &["undo", PLAN, "--yes"],
            Self::Recover => &["recover"],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.words()[0]
    }
}

/// What was done before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    Committed,
    /// The commit was killed at this call.
    CommitKilled(u64),
    /// After a commit, the undo was killed at this call.
    UndoKilled(u64),
}

/// One point of a sweep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: Scenario,
    pub(crate) before: Before,
    pub(crate) verb: Verb,
    pub(crate) n: u64,
    pub(crate) fault: Fault,
    pub(crate) only: Option<&'static [&'static str]>,
    /// A bug that is put in on purpose.
    pub(crate) bug: Option<&'static str>,
    pub(crate) door: Door,
    /// Whether a commit that came out new is undone too.
    pub(crate) undo: bool,
    /// The power was cut: what was never synced in a sandbox may be lost, and is done again.
    pub(crate) dark: bool,
}

/// What was found at a point.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The call that went wrong; none where there were fewer.
    pub(crate) hit: Option<Step>,
    pub(crate) wrong: Vec<String>,
}

impl Point {
    pub(crate) fn kill(scenario: Scenario, before: Before, verb: Verb, n: u64) -> Self {
        Self {
            scenario,
            before,
            verb,
            n,
            fault: Fault::Kill,
            only: None,
            bug: None,
            door: Door::Inside,
            undo: false,
            dark: false,
        }
    }

    fn name(&self, hit: Option<&Step>) -> String {
        let before = match self.before {
            Before::Nothing | Before::Committed => String::new(),
            Before::CommitKilled(n) => format!(" after a commit killed at {n}"),
            Before::UndoKilled(n) => format!(" after an undo killed at {n}"),
        };
        let what = format!("{}{before}", self.verb.name());
        let fault = (self.n, self.fault);
        sweep::name(&self.scenario, &what, self.bug, fault, hit)
    }

    /// A world in which the verb is about to be run.
    pub(crate) fn subject(&self) -> Result<Subject, String> {
        let subject = Subject::new(&self.scenario).bugged(self.bug);
        self.lead_up(&subject)?;
        Ok(subject)
    }

    /// Does what was done before.
    pub(crate) fn lead_up(&self, subject: &Subject) -> Result<(), String> {
        let committed = || {
            let door = match self.bug {
                Some(_) => Door::Command,
                None => Door::Inside,
            };
            door.enter(subject)
                .commit()
                .map_err(|error| format!("the commit before failed: {error}"))
        };
        match self.before {
            Before::Nothing => {}
            Before::Committed => committed()?,
            Before::CommitKilled(n) => {
                stepper(subject, Verb::Commit, None).fault(n, Fault::Kill);
            }
            Before::UndoKilled(n) => {
                committed()?;
                stepper(subject, Verb::Undo, None).fault(n, Fault::Kill);
            }
        }
        Ok(())
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let subject = self.subject()?;
        let mut stepper = stepper(&subject, self.verb, self.only);
        if self.only == Some(SYNCS) {
            stepper = stepper.record();
        }
        let run = stepper.fault(self.n, self.fault);
        verdict.hit.clone_from(&run.hit);
        let said = format!(
            "[{} ended with {}: {}{}]",
            self.verb.name(),
            run.outcome.status,
            run.outcome.stdout_text(),
            run.outcome.stderr_text()
        );
        let tried = match self.only {
            Some(SYNCS) => no_sync_again(&subject, &run, (self.n, self.fault)),
            _ => Ok(()),
        };
        tried
            .and_then(|()| self.judge(&subject, &run))
            .map_err(|error| format!("{error} {said}"))
    }

    /// Checks everything that must hold after a run.
    pub(crate) fn judge(&self, subject: &Subject, run: &Run) -> Result<(), String> {
        let status = run.outcome.status;
        // Undo with a member that cannot be undone says so, and does the rest.
        let partly = self.is_undo() && self.scenario.has_none();
        let plain_failure = (1..5).contains(&status);
        if self.verb != Verb::Recover && plain_failure && !partly {
            let wanted = match self.verb {
                Verb::Undo => Side::New,
                _ => Side::Old,
            };
            let found = side(subject);
            if !found.may_be(&wanted) {
                return Err(format!("a plain failure left it {found:?}"));
            }
        }
        let session = self.door.enter(subject);
        let first = session.recover();
        match first {
            Err(error) if !partly => return Err(format!("recover failed: {error}")),
            Ok(count) if count > 0 && status == 0 => {
                return Err("it was said to be over, but had to be recovered".to_owned());
            }
            _ => {}
        }
        match session.recover() {
            Ok(0) => {}
            Ok(_) => return Err("the second recover had something to do".to_owned()),
            Err(error) => return Err(format!("the second recover failed: {error}")),
        }
        let found = side(subject);
        if let Side::Torn(what) = &found {
            return Err(format!("TORN: {what}"));
        }
        let wanted = match (self.verb, status) {
            (_, -9 | 5) | (Verb::Recover, 0..5) => None,
            (Verb::Commit, 0) => Some(Side::New),
            (Verb::Commit, 1..5) => Some(Side::Old),
            (Verb::Undo, 0) => Some(Side::Old),
            (Verb::Undo, 1..5) if partly => Some(Side::Old),
            (Verb::Undo, 1..5) => Some(Side::New),
            (_, other) => return Err(format!("the exit code {other} says nothing")),
        };
        if let Some(wanted) = wanted.filter(|wanted| !found.may_be(wanted)) {
            let word = found.word();
            return Err(format!(
                "it is {word}, but it was said to be {}",
                wanted.word()
            ));
        }
        self.go_on(subject, &session, &found)
    }

    /// Whether the world is one in which a commit was being undone.
    fn is_undo(&self) -> bool {
        self.verb == Verb::Undo || matches!(self.before, Before::UndoKilled(_))
    }

    /// What can still be done with the plan.
    fn go_on(&self, subject: &Subject, session: &Session<'_>, found: &Side) -> Result<(), String> {
        let expect = |wanted: Side, after: &str| {
            let found = side(subject);
            match found.may_be(&wanted) {
                true => Ok(()),
                false => Err(format!("after {after} it is not {wanted:?} but {found:?}")),
            }
        };
        match (found, self.is_undo()) {
            (Side::Old, false) => {
                if self.dark {
                    subject
                        .add_again()
                        .map_err(|error| format!("it is old, and a sandbox is gone: {error}"))?;
                }
                let listing = session
                    .listing()
                    .map_err(|error| format!("the sandboxes cannot be compared: {error}"))?;
                let known = known_listing(&self.scenario, self.door)?;
                if listing != known {
                    return Err(format!(
                        "the sandboxes changed; before:\n{known}\nnow:\n{listing}"
                    ));
                }
                match (session.commit(), self.scenario.refuses) {
                    (Ok(()), false) => expect(Side::New, "the second commit")?,
                    (Err(_), true) => expect(Side::Old, "the second, refused commit")?,
                    (Err(error), false) => return Err(format!("the second commit: {error}")),
                    (Ok(()), true) => {
                        return Err("the second commit was not refused".to_owned());
                    }
                }
            }
            (Side::New, false) if self.undo && !self.scenario.has_none() => {
                session
                    .undo()
                    .map_err(|error| format!("the undo: {error}"))?;
                expect(Side::Old, "the undo")?;
            }
            (Side::New, true) => {
                session
                    .undo()
                    .or_else(|error| match self.scenario.has_none() {
                        true => Ok(()),
                        false => Err(format!("the second undo: {error}")),
                    })?;
                expect(Side::Old, "the second undo")?;
            }
            _ => {}
        }
        session
            .cleanup()
            .map_err(|error| format!("the cleanup: {error}"))?;
        nothing_left(subject)
    }

    /// The calls of the verb, when nothing goes wrong.
    pub(crate) fn calls(&self) -> Vec<Step> {
        let subject = self
            .subject()
            .unwrap_or_else(|error| panic!("{}: {error}", self.scenario.name()));
        let run = stepper(&subject, self.verb, self.only).record().run();
        run.steps
    }
}

impl Trial for Point {
    fn plan(&self) -> String {
        self.scenario.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |hit| self.name(hit))
    }
}

impl Verdict {
    /// What came of something. A panic on the way is a finding too.
    pub(crate) fn of(
        run: impl FnOnce(&mut Self) -> Result<(), String>,
        name: impl FnOnce(Option<&Step>) -> String,
    ) -> Self {
        let mut verdict = Self::default();
        let done = catch_unwind(AssertUnwindSafe(|| run(&mut verdict)));
        let wrong = match done {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => Some(words(&*panic)),
        };
        if let Some(wrong) = wrong {
            let name = name(verdict.hit.as_ref());
            verdict.wrong.push(format!("{name}: {wrong}"));
        }
        verdict
    }
}

/// What the sandboxes of a scenario list in a world that nothing happened to.
pub(crate) fn known_listing(scenario: &Scenario, door: Door) -> Result<String, String> {
    type Known = HashMap<(String, bool), String>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let key = (scenario.name(), door == Door::Command);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(listing) = known.get(&key) {
        return Ok(listing.clone());
    }
    let listing = door.enter(&Subject::new(scenario)).listing()?;
    known.insert(key, listing.clone());
    Ok(listing)
}

/// A stepper for the verb.
pub(crate) fn stepper(
    subject: &Subject,
    verb: Verb,
    only: Option<&'static [&'static str]>,
) -> Stepper {
    let stepper = subject.cli.stepper(verb.words());
    match only {
        Some(names) => stepper.only(names),
        None => stepper,
    }
}

/// A sync that failed is final: the kernel has forgotten what was lost, and would say yes the next time. What
/// SQLite does with its own files is its own.
pub(crate) fn no_sync_again(
    subject: &Subject,
    run: &Run,
    (n, fault): (u64, Fault),
) -> Result<(), String> {
    let Some(hit) = &run.hit else {
        return Ok(());
    };
    let of_store = |step: &Step| {
        step.path.as_ref().is_some_and(|path| {
            *path == subject.home
                || path.starts_with(&subject.home) && path.to_string_lossy().contains("state.db")
        })
    };
    if of_store(hit) || !matches!(fault, Fault::Once(_) | Fault::Forever(_)) {
        return Ok(());
    }
    // To sync the whole file system after a file of it could not be synced is no second try: what was written
    // since is made durable, and nothing else is believed.
    let whole = |step: &Step| step.name == "syncfs";
    let later = run.steps.iter().skip(usize::try_from(n).unwrap_or(0));
    for step in later {
        let same = step.file.is_some() && step.file == hit.file;
        if same && whole(step) == whole(hit) {
            return Err(format!("a sync that failed was tried again: {step}"));
        }
    }
    Ok(())
}

/// What a panic said.
pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without words"))
}
