//! Power cuts on real file systems: what the disk holds at a call of commit, undo or recover, and going on with that.
//!
//! Home and originals lie on one image. Before each run one file of each sandbox is made anew, so that there is
//! always something that no disk has yet. A point beyond the last call is a cut right after the program said that it is
//! done: then the new state must be there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::sweep::thin;
use crate::*;

/// A machine whose power is cut.
pub(crate) struct Machine {
    pub(crate) subject: Subject,
    // After the subject, whose paths lie in it; the world is only a part of the file system.
    fs: LoopFs,
}

impl Machine {
    /// None, after recording the skip, for an ordinary user.
    pub(crate) fn new(kind: Fs, scenario: &Scenario, bug: Option<&'static str>) -> Option<Self> {
        let fs = LoopFs::new(kind, 48)?;
        let world = World::under(fs.path());
        let subject = Subject::within(scenario, &world).bugged(bug);
        // It goes with the image.
        std::mem::forget(world);
        Some(Self { subject, fs })
    }

    /// Brings the machine to where the verb is about to be run.
    pub(crate) fn ready(
        &mut self,
        lead_up: impl FnOnce(&Subject) -> Result<(), String>,
    ) -> Result<Disk, String> {
        lead_up(&self.subject)?;
        Ok(self.fs.disk_at_rest())
    }

    /// Does something `fresh`, which no disk has yet, cuts the power at call `n` of a run, and finds out what came of it.
    pub(crate) fn cut(
        &mut self,
        start: &Disk,
        n: u64,
        fresh: impl FnOnce(&Subject) -> Result<(), String>,
        stepper: impl FnOnce(&Subject) -> Stepper,
        judge: impl FnOnce(&Subject, &Run) -> Result<(), String>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.fs.boot(start);
            fresh(&self.subject)?;
            let mut cut = None;
            let run = stepper(&self.subject).stop_at(n, |_| cut = Some(self.fs.disk_now()));
            let cut = cut.unwrap_or_else(|| self.fs.disk_now());
            self.fs.boot(&cut);
            verdict.hit.clone_from(&run.hit);
            let said = (run.outcome.status, run.outcome.stderr_text());
            judge(&self.subject, &run).map_err(|error| format!("{error} {said:?}"))
        }));
        let wrong = match done {
            Ok(answer) => answer.err(),
            Err(panic) => Some(words(&*panic)),
        };
        verdict.wrong.extend(wrong);
        // The cut after the end counts too.
        verdict.hit.get_or_insert(Step::named("exit"));
        verdict
    }

    /// Cuts the power at a point.
    fn cut_at(&mut self, start: &Disk, point: &Point) -> Verdict {
        let fresh = |subject: &Subject| match point.verb {
            Verb::Commit => subject.add_again(),
            _ => Ok(()),
        };
        let step = |subject: &Subject| stepper(subject, point.verb, None);
        let judge = |subject: &Subject, run: &Run| point.judge(subject, run);
        self.cut(start, point.n, fresh, step, judge)
    }
}

/// What is cut on each file system.
fn runs(calls: &[Step]) -> Vec<(Before, Verb)> {
    let telling = telling(calls);
    let mut runs = vec![
        (Before::Nothing, Verb::Commit),
        (Before::Committed, Verb::Undo),
    ];
    let states = thin(&telling, 3);
    runs.extend(
        states
            .into_iter()
            .map(|n| (Before::CommitKilled(n), Verb::Recover)),
    );
    runs
}

/// Cuts on one file system, at most so many of each run, evenly, the last one after the end.
fn on(fs: Fs, members: &'static [Kind], form: Form, most: usize) -> Option<Figures> {
    let scenario = Scenario::full(members);
    let commit = Point::kill(scenario, Before::Nothing, Verb::Commit, 1);
    let runs = runs(&commit.calls());
    let each = form.part(runs.len());
    let mut figures = Figures::default();
    for (before, verb) in runs {
        let plain = Point {
            dark: true,
            ..Point::kill(scenario, before, verb, 1)
        };
        let mut machine = Machine::new(fs, &scenario, None)?;
        let start = match machine.ready(|subject| plain.lead_up(subject)) {
            Ok(start) => start,
            Err(error) => {
                figures.wrong.push(error);
                continue;
            }
        };
        let calls = plain.calls().len() as u64;
        let name = format!("{} on {}", scenario.name(), word(fs));
        figures.add(each.cuts(calls, most, |n| {
            let undo = n % 10 == 3;
            let point = Point { n, undo, ..plain };
            let mut verdict = machine.cut_at(&start, &point);
            for wrong in &mut verdict.wrong {
                let call = verdict.hit.as_ref().map(Step::to_string);
                *wrong = format!("{name}: {verb:?} {before:?} cut at {n} ({call:?}): {wrong}");
            }
            (name.clone(), verdict)
        }));
    }
    Some(figures)
}

pub(crate) fn word(fs: Fs) -> &'static str {
    match fs {
        Fs::Ext4 => "ext4",
        Fs::Xfs => "xfs",
        Fs::Btrfs => "btrfs",
    }
}

/// Cuts on every file system; none where there is no root.
pub(crate) fn cuts(form: Form) -> Option<Figures> {
    on_each(&Fs::ALL, |fs| {
        let members: &[Kind] = match fs {
            Fs::Ext4 => &[Copy, Overlay],
            Fs::Xfs => &[Cow, Overlay],
            Fs::Btrfs => &[Snapshot, Overlay],
        };
        let _ground = match fs {
            Fs::Btrfs => Some(crate::snapshots::Ground::new()?),
            _ => None,
        };
        on(fs, members, form, 6)
    })
}

/// Does something on each of these, side by side.
pub(crate) fn on_each<T: Send + std::marker::Copy>(
    all_kinds: &[T],
    work: impl Fn(T) -> Option<Figures> + Sync,
) -> Option<Figures> {
    let started = Instant::now();
    let all = Mutex::new(Some(Figures::default()));
    thread::scope(|scope| {
        for fs in all_kinds.iter().copied() {
            let (all, work) = (&all, &work);
            scope.spawn(move || {
                let found = work(fs);
                let mut all = all.lock().expect("nobody panics with it");
                match (found, all.as_mut()) {
                    (Some(found), Some(all)) => all.add(found),
                    _ => *all = None,
                }
            });
        }
    });
    let mut figures = all.into_inner().expect("nobody panics with it")?;
    // They ran side by side.
    figures.took = started.elapsed();
    Some(figures)
}

#[test]
fn the_power_is_cut() {
    need!(require_stepper());
    if let Some(figures) = cuts(Form::Bounded) {
        figures.settle("power cuts on ext4, xfs and btrfs", 100);
    }
}

/// Whether a seeded bug shows on one of the file systems: what was found, and after how many cuts.
pub(crate) fn finds(bug: &'static str) -> Option<(String, usize)> {
    let scenario = Scenario::tiny(&[Copy, Overlay]);
    let mut tried = 0;
    for fs in [Fs::Btrfs, Fs::Ext4, Fs::Xfs] {
        let plain = Point {
            bug: Some(bug),
            dark: true,
            door: crate::door::Door::Command,
            ..Point::kill(scenario, Before::Nothing, Verb::Commit, 1)
        };
        let mut machine = Machine::new(fs, &scenario, Some(bug))?;
        let start = machine.ready(|subject| plain.lead_up(subject)).ok()?;
        debug_assert_eq!(side(&machine.subject).word(), "old");
        let calls = plain.calls().len() as u64;
        let mut chosen: Vec<u64> = thin(&(calls / 3..=calls).collect::<Vec<_>>(), 40);
        chosen.insert(0, calls + 100);
        for n in chosen {
            tried += 1;
            let verdict = machine.cut_at(&start, &Point { n, ..plain });
            if let Some(wrong) = verdict.wrong.first() {
                return Some((format!("{} cut at {n}: {wrong}", word(fs)), tried));
            }
        }
    }
    None
}
