//! A part of a plan, released and taken back: killed at every call, with torn writes, with errors.
//!
//! After each fault:
//!
//! - `recover` succeeds, and finds nothing to do the second time;
//! - every original has the part, or every one is old; every sandbox lists the rest, or everything, accordingly;
//! - what the program said is true;
//! - it goes on from there: the part is released, taken back, and released again; then the rest makes it whole;
//! - after `cleanup` nothing is left.

use escrow_testkit::signature::Kind as Entry;

use crate::checker::leftovers;
use crate::door::Door;
use crate::errors::{ALL, SOME};
use crate::point::known_listing;
use crate::subject::Member;
use crate::*;

/// What is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Release,
    Undo,
}

/// Where a plan stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// Nothing is released.
    Old,
    /// The part is.
    Parted,
    /// Everything is.
    Whole,
}

/// One fault.
#[derive(Debug, Clone, Copy)]
struct Turn {
    scenario: Scenario,
    act: Act,
    n: u64,
    fault: Fault,
    only: Option<&'static [&'static str]>,
}

/// What is asked for.
const SELECTED: &[&str] = &[
    "modify.txt",
    "gone.txt",
    "mode.txt",
    "link",
    "doomed",
    "file-to-dir",
    "new/dir/deep.txt",
];

/// Whether a path belongs to the part: new directories that a new file lies in come along.
fn is_released(path: &str) -> bool {
    let below = |word: &&str| path == *word || path.starts_with(&format!("{word}/"));
    SELECTED.iter().any(below) || ["new", "new/dir"].contains(&path)
}

/// Without the times of directories, which come as they do while only a part is there.
fn timeless(mut sig: Sig) -> Sig {
    for entry in sig.values_mut().filter(|entry| entry.kind == Entry::Dir) {
        entry.mtime = Default::default();
    }
    sig
}

impl Turn {
    fn kill(scenario: Scenario, act: Act) -> Self {
        Self {
            scenario,
            act,
            n: 1,
            fault: Fault::Kill,
            only: None,
        }
    }

    fn name(&self, hit: Option<&Step>) -> String {
        let what = format!("{:?} of a part", self.act);
        let fault = (self.n, self.fault);
        sweep::name(&self.scenario, &what, None, fault, hit)
    }

    fn subject(&self) -> Result<Subject, String> {
        let subject = Subject::new(&self.scenario);
        if self.act == Act::Undo {
            let released = Door::Inside.enter(&subject).release(SELECTED);
            released.map_err(|error| format!("the release before failed: {error}"))?;
        }
        Ok(subject)
    }

    fn stepper(&self, subject: &Subject) -> escrow_testkit::Stepper {
        let mut words = match self.act {
            Act::Release => vec!["commit", PLAN, "--yes"],
            Act::Undo => vec!["undo", PLAN, "--yes"],
        };
        if self.act == Act::Release {
            words.extend(SELECTED.iter().flat_map(|path| ["--only", path]));
        }
        let stepper = subject.cli.stepper(words);
        match self.only {
            Some(names) => stepper.only(names),
            None => stepper,
        }
    }

    /// The calls of the verb, when nothing goes wrong.
    fn calls(&self) -> u64 {
        let subject = self
            .subject()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name(None)));
        sweep::calls(self.stepper(&subject), &self.name(None))
    }

    /// What an original must be; times of directories apart.
    fn original(&self, member: &Member, stands: Stands) -> Sig {
        let (old, new) = (&member.sides.old, &member.sides.new);
        let chosen = |path: &[u8]| is_released(&String::from_utf8_lossy(path));
        let mut sig = old.clone();
        match stands {
            Stands::Old => {}
            Stands::Whole => sig.clone_from(new),
            Stands::Parted => {
                sig.retain(|path, _| !chosen(path));
                let released = new.iter().filter(|(path, _)| chosen(path));
                sig.extend(released.map(|(path, entry)| (path.clone(), entry.clone())));
            }
        }
        timeless(sig)
    }

    /// Checks that every original, and every sandbox that is still there, stands where it should.
    fn expect(&self, subject: &Subject, stands: Stands, after: &str) -> Result<(), String> {
        let ignore = Ignore {
            hole_map: true,
            ..Ignore::default()
        };
        for member in &subject.members {
            let now = timeless(signature(&member.original));
            let differs = differences(&self.original(member, stands), &now, &ignore);
            if !differs.is_empty() {
                let kind = member.kind.short();
                return Err(format!(
                    "after {after} the original of {kind} is not {stands:?}: {}",
                    differs.join(", ")
                ));
            }
        }
        if stands == Stands::Whole {
            return Ok(());
        }
        let whole = known_listing(&self.scenario, Door::Inside)?;
        let stays = |line: &&str| {
            let path = line.splitn(3, ' ').nth(2).unwrap_or_default();
            stands == Stands::Old || !is_released(path)
        };
        let wanted: Vec<&str> = whole.lines().filter(stays).collect();
        let found = Door::Inside.enter(subject).listing()?;
        match found.lines().eq(wanted.iter().copied()) {
            true => Ok(()),
            false => Err(format!(
                "after {after} the sandboxes are not {stands:?}; wanted:\n{}\nfound:\n{found}",
                wanted.join("\n")
            )),
        }
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let subject = self.subject()?;
        let run = self.stepper(&subject).fault(self.n, self.fault);
        verdict.hit.clone_from(&run.hit);
        self.judge(&subject, &run).map_err(|error| {
            let (status, said) = (run.outcome.status, run.outcome.stderr_text());
            format!("{error} [it ended with {status}: {said}]")
        })
    }

    /// Checks everything that must hold after a run.
    fn judge(&self, subject: &Subject, run: &Run) -> Result<(), String> {
        let session = Door::Inside.enter(subject);
        let status = run.outcome.status;
        let (before, after) = match self.act {
            Act::Release => (Stands::Old, Stands::Parted),
            Act::Undo => (Stands::Parted, Stands::Old),
        };
        if session.recover()? > 0 && status == 0 {
            return Err("it was said to be over, but had to be recovered".to_owned());
        }
        if session.recover()? > 0 {
            return Err("the second recover had something to do".to_owned());
        }
        let stands = match status {
            0 => after,
            1..5 => before,
            // Either is right; the first original says which.
            -9 | 5 => self.first(subject),
            other => return Err(format!("the exit code {other} says nothing")),
        };
        self.expect(subject, stands, "the fault")?;
        if stands == Stands::Old {
            session.release(SELECTED)?;
            self.expect(subject, Stands::Parted, "the release")?;
        }
        session.undo()?;
        self.expect(subject, Stands::Old, "the undo")?;
        session.release(SELECTED)?;
        self.expect(subject, Stands::Parted, "the release again")?;
        session.commit()?;
        self.expect(subject, Stands::Whole, "the rest")?;
        session.cleanup()?;
        let left = leftovers(subject);
        match left.is_empty() {
            true => Ok(()),
            false => Err(left.join("; ")),
        }
    }

    fn first(&self, subject: &Subject) -> Stands {
        let gone = subject.members[0].original.join("gone.txt");
        match gone.exists() {
            true => Stands::Old,
            false => Stands::Parted,
        }
    }
}

impl Trial for Turn {
    fn plan(&self) -> String {
        self.scenario.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |hit| self.name(hit))
    }
}

fn every(plain: Turn) -> impl Iterator<Item = Turn> {
    (1..=plain.calls()).map(move |n| Turn { n, ..plain })
}

/// Both verbs: killed at every call, with every write half done, with errors at every call.
pub(crate) fn faults(form: Form) -> Figures {
    form.run(turns(form), 105)
}

pub(crate) fn turns(form: Form) -> Vec<impl Trial> {
    let (scenarios, errors): (&[Scenario], &[Fault]) = match form.is_long() {
        false => (&[Scenario::full(&[Copy, Overlay])], &SOME),
        true => (
            &[
                Scenario::full(&[Copy, Overlay]),
                Scenario::full(&[Overlay, Cow]),
                Scenario::full(&[Overlay, Overlay, Copy]),
            ],
            &ALL,
        ),
    };
    let mut turns = Vec::new();
    for scenario in scenarios {
        for act in [Act::Release, Act::Undo] {
            let plain = Turn::kill(*scenario, act);
            turns.extend(every(Turn {
                fault: Fault::Tear,
                only: Some(WRITES),
                ..plain
            }));
            for turn in every(plain) {
                turns.push(turn);
                turns.extend(errors.iter().map(|fault| Turn {
                    fault: *fault,
                    ..turn
                }));
            }
        }
    }
    turns
}

// rule C1, C3, C4, C6
#[test]
fn a_part_is_released_and_taken_back_under_faults() {
    need!(require_stepper());
    faults(Form::Bounded).settle("a part, killed, torn, with errors", 100);
}
