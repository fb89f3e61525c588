//! The ways to the engine after a fault: as a command, or, ten times quicker, within this process.
//!
//! Both are the engine under test. What they say is compared with what the checker finds.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use escrow::commit::CommitTerms;
use escrow::error::{Error, chain};
use escrow::event::Unobserved;
use escrow::manager::{CommitRequest, Manager};
use escrow::policy::select::{ReleasePattern, ReleaseSelection};
use escrow::strategy::OnConflict;
use escrow_testkit::Cli;

use crate::point::words;
use crate::subject::{PLAN, Subject, options};

pub(crate) const REQUEST: CommitRequest<'static> = CommitRequest {
    message: None,
    terms: CommitTerms {
        on_conflict: OnConflict::Abort,
        merge: false,
        strict: false,
        allow_partial: false,
    },
    expected: None,
    live: false,
};

/// Through which a world is brought in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Command,
    Inside,
}

/// An answer, or what went wrong.
pub(crate) type Answer<T> = Result<T, String>;

impl Door {
    /// Goes in.
    pub(crate) fn enter(self, subject: &Subject) -> Session<'_> {
        Session {
            door: self,
            subject,
            manager: OnceCell::new(),
        }
    }
}

/// What is done through a launcher, one after the other.
pub(crate) struct Session<'a> {
    door: Door,
    subject: &'a Subject,
    manager: OnceCell<Manager>,
}

impl Session<'_> {
    /// Recovers everything; how many plans there were to recover.
    pub(crate) fn recover(&self) -> Answer<usize> {
        if self.door == Door::Command {
            let text = command(&self.subject.cli, &["--json", "recover"])?;
            let found: serde_json::Value =
                serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            let plans = found["recovered"].as_array();
            return Ok(plans.ok_or("there is no list")?.len());
        }
        self.inside(|manager| {
            let answers = manager.recover()?;
            let count = answers.len();
            for (_, answer) in answers {
                answer?;
            }
            Ok(count)
        })
    }

    /// Commits the plan.
    pub(crate) fn commit(&self) -> Answer<()> {
        if self.door == Door::Command {
            return command(&self.subject.cli, &["commit", PLAN, "--yes"]).map(drop);
        }
        self.inside(|manager| {
            let plan = manager.resolve_plan(Some(PLAN), &self.subject.place)?;
            manager.commit(&plan, &REQUEST, &Unobserved).map(drop)
        })
    }

    /// Releases some paths of every resource, and leaves the rest.
    pub(crate) fn release(&self, only: &[&str]) -> Answer<()> {
        if self.door == Door::Command {
            let mut words = vec!["commit", PLAN, "--yes"];
            words.extend(only.iter().flat_map(|path| ["--only", path]));
            return command(&self.subject.cli, &words).map(drop);
        }
        let patterns = only.iter().map(|path| ReleasePattern::parse(path));
        let selection = ReleaseSelection {
            only: patterns
                .collect::<Result<_, _>>()
                .map_err(|error| format!("{error:?}"))?,
            ..ReleaseSelection::default()
        };
        self.inside(|manager| {
            let plan = manager.resolve_plan(Some(PLAN), &self.subject.place)?;
            let done = manager.commit_part(&plan, &REQUEST, &selection, &Unobserved);
            done.map(drop)
        })
    }

    /// Takes the commit back.
    pub(crate) fn undo(&self) -> Answer<()> {
        if self.door == Door::Command {
            return command(&self.subject.cli, &["undo", PLAN, "--yes"]).map(drop);
        }
        self.inside(|manager| {
            let plan = manager.resolve_committed(Some(PLAN), &self.subject.place)?;
            manager.undo(&plan, &Unobserved).map(drop)
        })
    }

    /// What the sandboxes changed: a letter and a path each.
    pub(crate) fn listing(&self) -> Answer<String> {
        if self.door == Door::Command {
            return command(&self.subject.cli, &["diff", PLAN, "--name-status"]);
        }
        self.inside(|manager| {
            let plan = manager.resolve_plan(Some(PLAN), &self.subject.place)?;
            let mut lines = Vec::new();
            for one in manager.diff(&plan, None)?.resources {
                for change in &one.diff.changes {
                    let name = &one.view.resource.name;
                    lines.push(format!("{name} {} {}", change.kind.letter(), change.path));
                }
            }
            Ok(lines.join("\n"))
        })
    }

    /// Removes what the plan has on disk.
    pub(crate) fn cleanup(&self) -> Answer<()> {
        if self.door == Door::Command {
            return command(&self.subject.cli, &["cleanup", PLAN, "--yes"]).map(drop);
        }
        self.inside(|manager| {
            let plan = manager.resolve_plan(Some(PLAN), &self.subject.place)?;
            manager.cleanup(&plan, false).map(drop)
        })
    }

    fn inside<T>(&self, work: impl FnOnce(&Manager) -> Result<T, Error>) -> Answer<T> {
        let done = catch_unwind(AssertUnwindSafe(|| {
            if self.manager.get().is_none() {
                let manager = Manager::open(options(&self.subject.home))?;
                assert!(self.manager.set(manager).is_ok(), "it was not open");
            }
            work(self.manager.get().expect("it was opened above"))
        }));
        match done {
            Ok(answer) => answer.map_err(|error| chain(&error)),
            Err(panic) => Err(words(&*panic)),
        }
    }
}

fn command(cli: &Cli, words: &[&str]) -> Answer<String> {
    let outcome = cli.run(words);
    match outcome.status {
        0 => Ok(outcome.stdout_text()),
        status => Err(format!(
            "`{}` ended with {status}: {}{}",
            words.join(" "),
            outcome.stdout_text(),
            outcome.stderr_text()
        )),
    }
}
