//! Removals that fail at the end of a commit, and what becomes of the rest of the sandbox.
//!
//! The commit is decided and applied; then files and directories of the sandbox cannot be removed. After that:
//!
//! - every original is new, or, after a plain failure, every one is old;
//! - nothing in what is left of the sandbox is shared with an original: whatever is written there, no original changes;
//! - `gc` removes the rest, and the originals stay as they are;
//! - `undo` succeeds, and every original is exactly as it was.

use std::io::Write;

use crate::errors::{EACCES, EIO};
use crate::next_world::said;
use crate::sweep;
use crate::*;

/// The calls that remove something.
pub(crate) const UNLINKS: &[&str] = &["unlink", "unlinkat", "rmdir"];

/// What is done between the commit and the undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Write,
    Gc,
    WriteAndGc,
}

impl Between {
    const ALL: [Self; 4] = [Self::Nothing, Self::Write, Self::Gc, Self::WriteAndGc];
}

/// One removal that fails.
#[derive(Debug, Clone, Copy)]
struct Removal {
    scenario: Scenario,
    n: u64,
    fault: Fault,
    between: Between,
    bug: Option<&'static str>,
}

impl Removal {
    fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            n: 1,
            fault: Fault::Once(EIO),
            between: Between::Nothing,
            bug: None,
        }
    }

    fn name(&self, hit: Option<&Step>) -> String {
        sweep::name(
            &self.scenario,
            &format!("commit, then {:?}, then undo", self.between),
            self.bug,
            (self.n, self.fault),
            hit,
        )
    }

    fn subject(&self) -> Subject {
        Subject::new(&self.scenario).bugged(self.bug)
    }

    fn calls(&self) -> u64 {
        let subject = self.subject();
        let stepper = subject.cli.stepper(Verb::Commit.words()).only(UNLINKS);
        sweep::calls(stepper, &self.name(None))
    }

    fn try_run(&self, verdict: &mut Verdict) -> Result<(), String> {
        let subject = self.subject();
        let stepper = subject.cli.stepper(Verb::Commit.words()).only(UNLINKS);
        let run = stepper.fault(self.n, self.fault);
        verdict.hit.clone_from(&run.hit);
        self.check(&subject, run.outcome.status)
            .map_err(|error| format!("{error} [commit {}]", said(&run.outcome)))
    }

    fn check(&self, subject: &Subject, status: i32) -> Result<(), String> {
        let expect = |wanted: Side, when: &str| {
            let found = side(subject);
            match found == wanted {
                true => Ok(()),
                false => Err(format!("{when} it is {found:?}")),
            }
        };
        let must = |words: &[&str]| {
            let outcome = subject.cli.run(words);
            match outcome.status {
                0 => Ok(()),
                _ => Err(format!("`{}` {}", words.join(" "), said(&outcome))),
            }
        };
        match status {
            0 | 5 => {}
            1..5 => return expect(Side::Old, "after a plain failure"),
            other => return Err(format!("the exit code {other} says nothing")),
        }
        if status == 5 {
            must(&["recover"])?;
        }
        expect(Side::New, "after the commit")?;
        if matches!(self.between, Between::Write | Between::WriteAndGc) {
            let written = stray_writes(&subject.home)?;
            expect(
                Side::New,
                &format!(
                    "after stray writes to {} files of the sandbox",
                    written.len()
                ),
            )?;
        }
        if matches!(self.between, Between::Gc | Between::WriteAndGc) {
            must(&["gc"])?;
            expect(Side::New, "after gc")?;
        }
        must(&["undo", PLAN, "--yes"])?;
        expect(Side::Old, "after the undo")?;
        must(&["cleanup", PLAN, "--yes"])?;
        must(&["gc"])?;
        nothing_left(subject)
    }
}

impl Trial for Removal {
    fn plan(&self) -> String {
        self.scenario.name()
    }

    fn run(&self) -> Verdict {
        Verdict::of(|verdict| self.try_run(verdict), |hit| self.name(hit))
    }
}

/// Appends to every file that is left in a sandbox, and gives it another mode. What is kept for undo is left alone.
fn stray_writes(home: &Path) -> Result<Vec<PathBuf>, String> {
    let mut pending = vec![home.join("sandboxes")];
    let mut written = Vec::new();
    while let Some(dir) = pending.pop() {
        let entries = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            let (path, kind) = (entry.path(), entry.file_type());
            let kind = kind.map_err(|error| error.to_string())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if kind.is_dir() && !name.ends_with(".undo") {
                pending.push(path);
            } else if kind.is_file() {
                let appended = fs::OpenOptions::new().append(true).open(&path);
                appended
                    .and_then(|mut file| file.write_all(b"a stray write\n"))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                written.push(path);
            }
        }
    }
    Ok(written)
}

/// Every removal of a commit fails, once, and with all that follow.
pub(crate) fn removals(form: Form) -> Figures {
    let scenarios: &[Scenario] = match form.is_long() {
        false => &[Scenario::tiny(&[Copy, Overlay])],
        true => &[
            Scenario::tiny(&[Copy, Overlay]),
            Scenario::full(&[Copy, Overlay]),
            Scenario::full(&[Overlay, Cow]),
        ],
    };
    let mut all = Vec::new();
    for scenario in scenarios {
        all.extend(every(Removal::new(*scenario)));
    }
    form.run(all, 60)
}

fn every(plain: Removal) -> Vec<Removal> {
    let faults = [
        Fault::Forever(EIO),
        Fault::Once(EIO),
        Fault::Forever(EACCES),
        Fault::Once(EACCES),
    ];
    let mut all = Vec::new();
    for n in 1..=plain.calls() {
        for between in Between::ALL {
            all.extend(faults.map(|fault| Removal {
                n,
                fault,
                between,
                ..plain
            }));
        }
    }
    all
}

/// Whether a seeded bug shows.
pub(crate) fn finds(bug: &'static str) -> Option<(String, usize)> {
    let plain = Removal {
        bug: Some(bug),
        ..Removal::new(Scenario::tiny(&[Copy, Overlay]))
    };
    sweep::first_wrong(&sweep::spread(every(plain)))
}

// rule C3, C17
#[test]
fn a_sandbox_that_cannot_be_removed_shares_nothing_with_an_original() {
    need!(require_stepper());
    removals(Form::Bounded).settle("removals that fail, then gc and undo", 40);
}
